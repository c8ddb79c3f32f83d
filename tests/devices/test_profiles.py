"""Every arithmetic switch changes what it says, first where it says, and a profile names its sources."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from device_models import differing, run_lm

from precision_align.core.errors import RuleError, Unavailable, UsageError
from precision_align.devices import simulated
from precision_align.devices.arithmetic import emulate
from precision_align.devices.profiles import CHOICES, PROFILES, Profile, load_profile

pytestmark = pytest.mark.live

PLAIN = Profile(name="one switch")
# Switches, and the first module of the language model that must differ; "" = only gradients do.
FIRST_DIFFERENCE = [
    ({"matmul_inputs": "hf32"}, "blocks.0.qkv"),
    ({"matmul_inputs": "hf32", "hf32_ties": "away"}, "blocks.0.qkv"),
    ({"matmul_inputs": "tf32"}, "blocks.0.qkv"),
    ({"matmul_inputs": "float16"}, "blocks.0.qkv"),
    ({"matmul_inputs": "bfloat16"}, "blocks.0.qkv"),
    ({"k_block": 128}, "blocks.0.down"),  # the only product with K > 128
    ({"k_block": 128, "k_order": "reversed"}, "blocks.0.down"),
    ({"k_block": 16}, "blocks.0.qkv"),
    ({"gelu": "tanh"}, "blocks.0.act"),
    ({"exponential": "polynomial"}, "blocks.0.out"),  # softmax is inline: its consumer shows it
    ({"norm_inner": "input"}, "blocks.0.norm1"),
    ({"reduction": "reversed"}, ""),  # sums stand only in the backward pass here
]


@pytest.mark.parametrize(("switches", "module"), FIRST_DIFFERENCE, ids=str)
def test_a_switch_first_differs_where_its_operator_is(npu: None, switches: dict[str, object], module: str) -> None:
    expected = run_lm("npu")
    simulated.set_profile(replace(PLAIN, **switches))
    actual = run_lm("npu")
    different = differing(expected.outputs, actual.outputs)
    assert (different[0] if different else "") == module
    assert differing(expected.gradients, actual.gradients)


@pytest.mark.parametrize(("switches", "module"), FIRST_DIFFERENCE, ids=str)
def test_emulation_on_cpu_tensors_equals_the_device(npu: None, switches: dict[str, object], module: str) -> None:
    profile = replace(PLAIN, **switches)
    simulated.set_profile(profile)
    on_device = run_lm("npu")
    with emulate(profile):
        on_cpu = run_lm("cpu")
    assert differing(on_device.outputs, on_cpu.outputs) == []
    assert differing(on_device.gradients, on_cpu.gradients) == []


def compute_on(profile: Profile, compute: object, *tensors: torch.Tensor) -> torch.Tensor:
    simulated.set_profile(profile)
    return compute(*[tensor.npu() for tensor in tensors]).cpu()  # type: ignore[operator]


def test_hf32_convolution_rounds_data_and_weights(npu: None) -> None:
    image, kernel = torch.full((1, 1, 4, 4), 1 + 2.0**-13), torch.full((1, 1, 1, 1), 1 + 2.0**-13)
    convolved = compute_on(replace(PLAIN, conv_inputs="hf32"), torch.nn.functional.conv2d, image, kernel)
    assert convolved.unique().tolist() == [1.0]


def test_an_accumulator_of_the_outputs_dtype_rounds_between_pieces(npu: None) -> None:
    # 1 + 2^-8 is halfway between bfloat16 numbers; each piece adds a quarter of that and is lost when rounded away.
    left = torch.tensor([[1.0, *[2.0**-10] * 8]]).bfloat16()
    right = torch.ones(9, 1).bfloat16()
    wide, narrow = replace(PLAIN, k_block=1), replace(PLAIN, k_block=1, accumulator="output")
    assert compute_on(wide, torch.mm, left, right).item() == pytest.approx(1 + 2.0**-7, abs=2.0**-8)
    assert compute_on(narrow, torch.mm, left, right).item() == 1.0


def test_saturation_replaces_infinity_and_nan(npu: None) -> None:
    saturating = replace(PLAIN, overflow="saturate")
    large = torch.tensor([6e4, -6e4, 0.0], dtype=torch.float16)
    assert compute_on(saturating, lambda x: x * 2, large).tolist() == [65504, -65504, 0]
    assert compute_on(saturating, lambda x: x.clone().mul_(2), large).tolist() == [65504, -65504, 0]
    assert compute_on(saturating, lambda x: x / x, large).tolist() == [1, 1, 0]


def test_a_saturating_device_saturates_when_it_narrows_inputs(npu: None) -> None:
    large, one = torch.full((1, 1), 1e6), torch.ones(1, 1)
    assert compute_on(replace(PLAIN, matmul_inputs="float16"), torch.mm, large, one).item() == float("inf")
    assert compute_on(PROFILES["ascend910"], torch.mm, large, one).item() == 65504


def test_subnormal_results_are_flushed(npu: None) -> None:
    tiny = torch.tensor([2.0**-126, 2.0**-120])
    assert compute_on(replace(PLAIN, subnormals="flush"), lambda x: x * 0.5, tiny).tolist() == [0.0, 2.0**-121]


def test_sums_in_blocks_differ_from_one_long_sum_and_are_close(npu: None) -> None:
    torch.manual_seed(0)
    values = torch.rand(8, 5001)
    blocked = compute_on(replace(PLAIN, reduction="blocks", reduction_block=7), lambda x: x.sum(-1), values)
    mean = compute_on(replace(PLAIN, reduction="blocks", reduction_block=7), lambda x: x.mean((0, 1)), values)
    assert not torch.equal(blocked, values.sum(-1))
    assert torch.allclose(blocked, values.sum(-1))
    assert mean.item() == pytest.approx(values.mean().item(), rel=1e-6)


@pytest.mark.parametrize("form", ["mm_out", "addmm_", "addmm", "baddbmm", "bmm", "mv", "dot"])
def test_every_form_of_a_product_is_rounded(npu: None, form: str) -> None:
    exact = 1 + 2.0**-13
    left, right = torch.full((2, 2), exact, device="npu"), torch.full((2, 2), exact, device="npu")
    simulated.set_profile(replace(PLAIN, matmul_inputs="hf32"))
    products = {
        "mm_out": lambda: torch.mm(left, right, out=torch.empty(0, device="npu")),
        "addmm_": lambda: torch.zeros(2, 2, device="npu").addmm_(left, right),
        "addmm": lambda: torch.addmm(torch.zeros(2, device="npu"), left, right),
        "baddbmm": lambda: torch.baddbmm(torch.zeros(1, 2, 2, device="npu"), left[None], right[None]),
        "bmm": lambda: torch.bmm(left[None], right[None]),
        "mv": lambda: torch.mv(left, right[0]),
        "dot": lambda: torch.dot(left[0], right[0]),
    }
    assert products[form]().cpu().unique().tolist() == [2.0]


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0, 2), (0.5, -1)])
def test_blocked_addmm_scales_like_the_plain_one(npu: None, beta: float, alpha: float) -> None:
    torch.manual_seed(0)
    addend, left, right = torch.randn(3), torch.randn(2, 40), torch.randn(40, 3)
    if beta == 0:
        addend[0] = float("nan")
    expected = torch.addmm(addend, left, right, beta=beta, alpha=alpha)
    simulated.set_profile(replace(PLAIN, k_block=16))
    actual = torch.addmm(addend.npu(), left.npu(), right.npu(), beta=beta, alpha=alpha).cpu()
    assert torch.allclose(actual, expected, atol=1e-5)


def test_integer_and_double_products_are_left_alone(npu: None) -> None:
    simulated.set_profile("ascend910")
    wide = torch.randn(3, 300, dtype=torch.float64)
    assert torch.equal((wide.npu() @ wide.npu().t()).cpu(), wide @ wide.t())
    whole = torch.arange(6).reshape(2, 3)
    assert torch.equal((whole.npu() @ whole.npu().t()).cpu(), whole @ whole.t())


def test_autocast_lists_follow_the_profile(npu: None) -> None:
    values, weight = torch.randn(2, 4, device="npu").bfloat16(), torch.ones(4, device="npu")
    found = {}
    for name in ("none", "ascend910b"):
        simulated.set_profile(name)
        with torch.autocast("npu", dtype=torch.bfloat16):
            found[name] = values.exp().dtype, torch.nn.functional.layer_norm(values, (4,), weight, weight).dtype
    assert found == {"none": (torch.bfloat16, torch.bfloat16), "ascend910b": (torch.float32, torch.float32)}


def test_a_leaf_shares_one_cast_in_an_autocast_region(npu: None) -> None:
    weight = torch.ones(2, 2, device="npu", requires_grad=True)
    casts = []
    for _ in range(2):
        with torch.autocast("npu", dtype=torch.bfloat16):
            inputs = torch.ones(2, 2, device="npu")
            products = [torch.mm(inputs, weight) for _ in range(2)]
            casts.append({product.grad_fn.next_functions[1][0] for product in products})
    assert [len(nodes) for nodes in casts] == [1, 1]
    assert casts[0] != casts[1]


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_a_built_in_profile_says_what_it_is_and_who_says_so(npu: None, name: str) -> None:
    profile = simulated.set_profile(name)
    assert simulated.current_profile() is profile
    assert "emulated, not Ascend" in simulated.describe()
    assert set(profile.switches()) <= set(profile.sources)
    for switch, choices in CHOICES.items():
        assert getattr(profile, switch) in choices


def test_every_switch_of_the_dataclass_is_checked() -> None:
    named = {one.name for one in fields(Profile)} - {"name", "sources", "k_block", "reduction_block"}
    assert named == set(CHOICES)


def test_a_profile_file_extends_a_built_in_one(npu: None, tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text('base = "ascend910b"\nk_block = 64\n[sources]\nk_block = "measured on our cluster"\n')
    profile = simulated.install_simulated(str(path))
    assert (profile.name, profile.k_block, profile.conv_inputs) == ("ours", 64, "hf32")
    assert "measured on our cluster" in simulated.describe()


def test_all_problems_of_a_profile_file_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text('base = "ascend42"\nk_block = -1\ngelu = "erfish"\ncolour = "red"\nname = ""\nsources = 3\n')
    with pytest.raises(RuleError) as caught:
        load_profile(str(path))
    for word in ("ascend42", "k_block", "erfish", "colour", "name", "sources", "wrong.toml"):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"k_block = [", "not TOML"),
        (b"\xff\xfe", "cannot be read"),
        (None, "cannot be read"),
        (b"base = 3", "base"),
        (b"base = []", "base"),
    ],
)
def test_a_profile_file_that_cannot_be_read(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "broken.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RuleError, match=message):
        load_profile(str(path))


def test_unknown_profiles_and_a_missing_device_are_errors() -> None:
    with pytest.raises(UsageError, match="ascend910b"):
        load_profile("ascend42")
    with pytest.raises(UsageError), emulate("ascend42"):
        pass


def test_profiles_need_an_installed_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated._State, "libraries", None)
    monkeypatch.setattr(simulated._State, "profile", None)
    with pytest.raises(Unavailable, match="install_simulated"):
        simulated.set_profile("none")
    with pytest.raises(Unavailable, match="install_simulated"):
        simulated.current_profile()
