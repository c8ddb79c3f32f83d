"""The fused operators of the simulated torch_npu against float64, with their defaults, gradients and refusals."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from precision_align.core.errors import Unavailable, UsageError
from precision_align.devices import npu as npu_device
from precision_align.devices.injection import inject
from precision_align.devices.torch_npu_lookalike import install_lookalike, uninstall_lookalike

pytestmark = pytest.mark.live

COMPRESSED = torch.ones(2048, 2048, dtype=torch.bool).triu(1)


@pytest.fixture
def torch_npu() -> Iterator[ModuleType]:
    """The look-alike, as user code imports it; taken out again."""
    install_lookalike()
    yield importlib.import_module("torch_npu")
    uninstall_lookalike()


@pytest.fixture(params=["cpu", "npu"])
def device(request: pytest.FixtureRequest) -> str:
    """The operators work on both."""
    if request.param == "npu":
        request.getfixturevalue("npu")
    return str(request.param)


def close(actual: torch.Tensor, golden: torch.Tensor) -> bool:
    """One rounding to the dtype, and float32 inside."""
    unit = torch.finfo(actual.dtype).eps
    return torch.allclose(actual.detach().cpu().double(), golden, rtol=unit, atol=4e-6)


def attend_exactly(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, masked: Any = None
) -> torch.Tensor:
    """Attention in float64 on [B, N, S, D], keys repeated for grouped queries; masked rows give zero."""
    repeats = query.shape[1] // key.shape[1]
    keys, values = (one.double().repeat_interleave(repeats, 1) for one in (key, value))
    scores = query.double() @ keys.transpose(-1, -2) * scale
    if masked is not None:
        scores = scores.masked_fill(masked, float("-inf"))
    return scores.softmax(-1).nan_to_num(0) @ values


def make_heads(dtype: torch.dtype, rows: int = 6, columns: int = 6, kv_heads: int = 2) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        torch.randn(2, heads, length, 8).to(dtype)
        for heads, length in ((4, rows), (kv_heads, columns), (kv_heads, columns))
    ]


def diagonal_distance(rows: int, columns: int, from_end: bool) -> torch.Tensor:
    shift = columns - rows if from_end else 0
    return torch.arange(columns)[None, :] - torch.arange(rows)[:, None] - shift


def to_layout(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    if layout == "BNSD":
        return tensor
    if layout == "BSND":
        return tensor.transpose(1, 2)
    packed = tensor.transpose(1, 2).flatten(2)
    return packed if layout == "BSH" else packed.transpose(0, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
def test_attention_in_every_layout(torch_npu: Any, device: str, layout: str, dtype: torch.dtype) -> None:
    query, key, value = make_heads(dtype)
    inputs = [to_layout(one, layout).to(device) for one in (query, key, value)]
    results = torch_npu.npu_fusion_attention(*inputs, 4, layout, scale=0.35)
    assert results[0].shape == inputs[0].shape
    assert results[0].dtype == dtype
    assert close(results[0], to_layout(attend_exactly(query, key, value, 0.35), layout))
    scores = query.double() @ key.double().repeat_interleave(2, 1).transpose(-1, -2) * 0.35
    assert results[1].shape == results[2].shape == (2, 4, 6, 8)
    assert results[1].dtype == torch.float32
    assert close(results[1][..., 0], scores.amax(-1))
    assert close(results[2][..., 7], (scores - scores.amax(-1, keepdim=True)).exp().sum(-1))
    assert len(results) == 7
    assert results[3].numel() == 0
    assert all(isinstance(one, int) for one in results[4:])


@pytest.mark.parametrize(("rows", "columns"), [(6, 6), (4, 7), (7, 4)])
@pytest.mark.parametrize("mode", [2, 3, 4])
def test_compressed_masks(torch_npu: Any, mode: int, rows: int, columns: int) -> None:
    query, key, value = make_heads(torch.float32, rows, columns)
    distance = diagonal_distance(rows, columns, from_end=mode != 2)
    masked = distance > 0 if mode != 4 else (distance > 1) | (distance < -2)
    window = {"pre_tockens": 2, "next_tockens": 1} if mode == 4 else {}
    options = {"atten_mask": COMPRESSED, "scale": 0.35, "sparse_mode": mode, **window}
    actual = torch_npu.npu_fusion_attention(query, key, value, 4, "BNSD", **options)[0]
    assert close(actual, attend_exactly(query, key, value, 0.35, masked))
    # The mask's content counts: a reader who takes True for "keep" must see it.
    wrong = torch_npu.npu_fusion_attention(query, key, value, 4, "BNSD", **{**options, "atten_mask": ~COMPRESSED})[0]
    assert not torch.allclose(wrong, actual, atol=1e-3)


@pytest.mark.parametrize("shape", [(6, 6), (1, 1, 6, 6), (2, 1, 6, 6), (2, 4, 6, 6)])
@pytest.mark.parametrize("kind", [torch.bool, torch.uint8])
def test_a_full_mask_is_true_where_masked_out(torch_npu: Any, shape: tuple[int, ...], kind: torch.dtype) -> None:
    query, key, value = make_heads(torch.float32)
    mask = torch.rand(shape) > 0.6
    for mode in (0, 1):
        actual = torch_npu.npu_fusion_attention(
            query, key, value, 4, "BNSD", atten_mask=mask.to(kind), scale=0.35, sparse_mode=mode
        )[0]
        assert close(actual, attend_exactly(query, key, value, 0.35, mask))


def test_a_window_counts_in_mode_zero_only_with_a_mask(torch_npu: Any) -> None:
    query, key, value = make_heads(torch.float32)
    distance = diagonal_distance(6, 6, from_end=False)
    nothing = torch.zeros(6, 6, dtype=torch.bool)
    options = {"scale": 0.35, "pre_tockens": 1, "next_tockens": 0}
    windowed = torch_npu.npu_fusion_attention(query, key, value, 4, "BNSD", atten_mask=nothing, **options)[0]
    assert close(windowed, attend_exactly(query, key, value, 0.35, (distance > 0) | (distance < -1)))
    ignored = torch_npu.npu_fusion_attention(query, key, value, 4, "BNSD", **options)[0]
    assert close(ignored, attend_exactly(query, key, value, 0.35))


def test_the_scale_is_one_unless_given_and_rows_without_keys_give_zero(torch_npu: Any) -> None:
    query, key, value = make_heads(torch.float32)
    assert close(
        torch_npu.npu_fusion_attention(query, key, value, 4, "BNSD")[0], attend_exactly(query, key, value, 1.0)
    )
    mask = torch.zeros(6, 6, dtype=torch.bool)
    mask[2] = True
    leaf = query.clone().requires_grad_()
    attended = torch_npu.npu_fusion_attention(leaf, key, value, 4, "BNSD", atten_mask=mask)[0]
    assert attended[:, :, 2].abs().max() == 0
    attended.sum().backward()
    assert leaf.grad.isfinite().all()


def test_a_bias_is_added_before_the_scale(torch_npu: Any) -> None:
    query, key, value = make_heads(torch.float32)
    pse = torch.randn(1, 4, 6, 6)
    actual = torch_npu.npu_fusion_attention(query, key, value, 4, "BNSD", pse=pse, scale=0.35)[0]
    scores = (query.double() @ key.double().repeat_interleave(2, 1).transpose(-1, -2) + pse) * 0.35
    assert close(actual, scores.softmax(-1) @ value.double().repeat_interleave(2, 1))


def test_dropout_scales_and_is_the_same_in_backward(torch_npu: Any, device: str) -> None:
    query, key = torch.zeros(1, 1, 64, 8, device=device), torch.zeros(1, 1, 64, 8, device=device)
    value = torch.ones(1, 1, 64, 8, device=device, requires_grad=True)
    torch.manual_seed(0)
    results = torch_npu.npu_fusion_attention(query, key, value, 1, "BNSD", keep_prob=0.75)
    assert results[6] == 64 * 64
    assert results[0].mean().item() == pytest.approx(1, abs=0.05)
    results[0].sum().backward()
    # Value is constant: what a query got is what its weights gave back.
    assert value.grad.sum().item() == pytest.approx(results[0].sum().item(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_norms(torch_npu: Any, device: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    values, other, gamma = torch.randn(3, 5, 16).to(dtype), torch.randn(3, 5, 16).to(dtype), torch.rand(16).to(dtype)
    normed, rstd = torch_npu.npu_rms_norm(values.to(device), gamma.to(device))
    exact = (values.double().pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()
    assert close(normed, values.double() * exact * gamma.double())
    assert (rstd.shape, rstd.dtype) == ((3, 5, 1), torch.float32)
    assert close(rstd, exact)
    normed, rstd, total = torch_npu.npu_add_rms_norm(values.to(device), other.to(device), gamma.to(device), 1e-5)
    added = (values.float() + other.float()).to(dtype)
    assert torch.equal(total.cpu(), added)
    exact = (added.double().pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()
    assert close(normed, added.double() * exact * gamma.double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_swiglu_gates_with_the_first_half_and_gelu_has_two_forms(
    torch_npu: Any, device: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    values = torch.randn(4, 6).to(dtype)
    wide = values.double()
    gated = torch_npu.npu_swiglu(values.to(device))
    assert close(gated, F.silu(wide[:, :3]) * wide[:, 3:])
    rows = torch_npu.npu_swiglu(values.to(device), dim=0)
    assert close(rows, F.silu(wide[:2]) * wide[2:])
    assert close(torch_npu.npu_gelu(values.to(device)), F.gelu(wide))
    assert close(torch_npu.npu_gelu(values.to(device), approximate="tanh"), F.gelu(wide, approximate="tanh"))


@pytest.mark.parametrize("mode", ["half", "interleave"])
def test_rotation(torch_npu: Any, device: str, mode: str) -> None:
    torch.manual_seed(0)
    values = torch.randn(2, 3, 5, 8)
    angles = torch.rand(1, 1, 5, 4)
    full = torch.cat([angles, angles], -1) if mode == "half" else angles.repeat_interleave(2, -1)
    rotated = torch_npu.npu_rotary_mul(values.to(device), full.cos().to(device), full.sin().to(device), mode)
    real, imaginary = (
        values.double().chunk(2, -1) if mode == "half" else (values.double()[..., ::2], values.double()[..., 1::2])
    )
    spun = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angles), angles).to(torch.complex128)
    parts = [spun.real, spun.imag]
    golden = torch.cat(parts, -1) if mode == "half" else torch.stack(parts, -1).flatten(-2)
    assert close(rotated, golden)
    if mode == "half":
        assert torch.equal(
            rotated, torch_npu.npu_rotary_mul(values.to(device), full.cos().to(device), full.sin().to(device))
        )


CALLS = {
    "rms_norm": (lambda m, x, y, w: m.npu_rms_norm(x, w)[0], lambda x, y, w: F.rms_norm(x, (8,), w, 1e-6)),
    "add_rms_norm": (
        lambda m, x, y, w: sum(m.npu_add_rms_norm(x, y, w)[::2]),
        lambda x, y, w: F.rms_norm(x + y, (8,), w, 1e-6) + x + y,
    ),
    "swiglu": (lambda m, x, y, w: m.npu_swiglu(x * y), lambda x, y, w: F.silu((x * y)[..., :4]) * (x * y)[..., 4:]),
    "gelu": (
        lambda m, x, y, w: m.npu_gelu(x + y, approximate="tanh"),
        lambda x, y, w: F.gelu(x + y, approximate="tanh"),
    ),
    "rotary": (
        lambda m, x, y, w: m.npu_rotary_mul(x, y, w),
        lambda x, y, w: x * y + torch.cat([-x[..., 4:], x[..., :4]], -1) * w,
    ),
    "attention": (
        lambda m, x, y, w: m.npu_fusion_attention(x, y * w, y, 3, "BNSD", scale=0.3)[0],
        lambda x, y, w: F.scaled_dot_product_attention(x, y * w, y, scale=0.3),
    ),
}


@pytest.mark.parametrize("name", sorted(CALLS))
def test_gradients_equal_those_of_the_plain_formula(torch_npu: Any, device: str, name: str) -> None:
    fused, plain = CALLS[name]
    torch.manual_seed(0)
    seeds = [torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 8), torch.rand(8)]
    leaves = [one.clone().to(device).requires_grad_() for one in seeds]
    wide = [one.double().requires_grad_() for one in seeds]
    result, golden = fused(torch_npu, *leaves), plain(*wide)
    weights = torch.randn(golden.shape)
    (result * weights.to(device)).sum().backward()
    (golden * weights.double()).sum().backward()
    assert torch.allclose(result.detach().cpu().double(), golden.detach(), atol=1e-5)
    for leaf, exact in zip(leaves, wide):
        assert (leaf.grad is None) == (exact.grad is None)
        if leaf.grad is not None:
            assert torch.allclose(leaf.grad.cpu().double(), exact.grad, atol=2e-5)


def test_a_frozen_weight_gets_no_gradient(torch_npu: Any, device: str) -> None:
    values = torch.randn(2, 8, device=device, requires_grad=True)
    weight = torch.ones(8, device=device)
    normed, rstd = torch_npu.npu_rms_norm(values, weight)
    assert not rstd.requires_grad
    normed.sum().backward()
    assert values.grad is not None
    assert weight.grad is None
    assert not torch_npu.npu_rms_norm(weight, weight)[0].requires_grad


class Fused(torch.nn.Module):
    """A block that calls fused operators."""

    def __init__(self, torch_npu: Any) -> None:
        super().__init__()
        self.ops = [torch_npu]
        self.weight = torch.nn.Parameter(torch.rand(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (ops,) = self.ops
        mask = COMPRESSED.to(x.device)
        normed = ops.npu_rotary_mul(ops.npu_rms_norm(x, self.weight)[0], x.cos(), x.sin())
        attended = ops.npu_fusion_attention(normed, normed, normed, 3, "BNSD", atten_mask=mask, sparse_mode=2)[0]
        return ops.npu_gelu(ops.npu_swiglu(attended))


@pytest.mark.parametrize(
    ("text", "operator"),
    [
        ("eps@:rms_norm:value=0.5", "npu_rms_norm"),
        ("interleaved_rope@", "npu_rotary_mul"),
        ("mask_dropped@", "npu_fusion_attention"),
        ("swapped_halves@", "npu_swiglu"),
        ("tanh_gelu@", "npu_gelu"),
    ],
)
def test_faults_see_one_fused_operator(torch_npu: Any, device: str, text: str, operator: str) -> None:
    torch.manual_seed(0)
    model, values = Fused(torch_npu).to(device), torch.randn(1, 3, 5, 8).to(device)
    plain = model(values)
    with inject(model, text) as injection:
        faulty = model(values)
    assert [firing.op for firing in injection.fired] == [operator]
    assert not torch.equal(faulty, plain)
    assert torch.equal(model(values), plain)


BAD_CALLS = {
    "layout": (lambda m, x: m.npu_fusion_attention(x, x, x, 3, "TND"), "TND"),
    "heads": (lambda m, x: m.npu_fusion_attention(x, x, x, 2, "BNSD"), "head_num 2"),
    "dtypes": (lambda m, x: m.npu_fusion_attention(x, x.half(), x, 3, "BNSD"), "one dtype"),
    "double": (lambda m, x: m.npu_fusion_attention(x.double(), x.double(), x.double(), 3, "BNSD"), "float64"),
    "mode": (lambda m, x: m.npu_fusion_attention(x, x, x, 3, "BNSD", sparse_mode=7), "sparse_mode 7"),
    "no mask": (lambda m, x: m.npu_fusion_attention(x, x, x, 3, "BNSD", sparse_mode=3), "needs an atten_mask"),
    "small mask": (
        lambda m, x: m.npu_fusion_attention(x, x, x, 3, "BNSD", atten_mask=torch.ones(5, 5).bool(), sparse_mode=2),
        "2048",
    ),
    "lengths": (lambda m, x: m.npu_fusion_attention(x, x, x, 3, "BNSD", actual_seq_qlen=[5]), "actual_seq_qlen"),
    "gamma": (lambda m, x: m.npu_rms_norm(x, torch.ones(7)), "gamma"),
    "odd": (lambda m, x: m.npu_swiglu(x[..., :7]), "even"),
    "half width": (lambda m, x: m.npu_rotary_mul(x, x[..., :4], x[..., :4]), "full width"),
    "rotary mode": (lambda m, x: m.npu_rotary_mul(x, x, x, "neox"), "neox"),
    "gelu": (lambda m, x: m.npu_gelu(x, approximate="fast"), "fast"),
}


@pytest.mark.parametrize("name", sorted(BAD_CALLS))
def test_wrong_calls_are_told_what_is_wrong(torch_npu: Any, name: str) -> None:
    call, message = BAD_CALLS[name]
    with pytest.raises(UsageError, match=message):
        call(torch_npu, torch.randn(2, 3, 5, 8))


def test_the_module_says_that_it_is_simulated(npu: None, torch_npu: ModuleType) -> None:
    assert torch_npu.is_simulated
    assert torch_npu.__version__ == "0.0+simulated"
    assert install_lookalike() is torch_npu
    assert torch_npu.npu is torch.npu
    assert importlib.util.find_spec("torch_npu") is not None
    with pytest.raises(AttributeError, match="npu_swiglu"):
        _ = torch_npu.npu_moe_gating_top_k
    with pytest.raises(Unavailable, match="look-alike"):
        npu_device.import_torch_npu()


def test_it_never_hides_a_real_torch_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    uninstall_lookalike()
    real = ModuleType("torch_npu")
    monkeypatch.setitem(sys.modules, "torch_npu", real)
    with pytest.raises(Unavailable, match="does not hide"):
        install_lookalike()
    uninstall_lookalike()
    assert sys.modules["torch_npu"] is real
