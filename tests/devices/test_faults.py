"""Each fault happens once, at the named place, and nothing else changes by a bit."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from device_models import Trace, differing, lm_loss, make_lm
from torch import nn
from torch.utils.checkpoint import checkpoint

from precision_align.core.errors import Unavailable, UsageError
from precision_align.core.terms import Phase
from precision_align.devices import attribution, simulated
from precision_align.devices.faults import parse_fault
from precision_align.devices.injection import Injection, device_injection, inject

pytestmark = pytest.mark.live


@pytest.fixture(params=["cpu", "npu"])
def device(request: pytest.FixtureRequest) -> str:
    """Faults work on both."""
    if request.param == "npu":
        request.getfixturevalue("npu")
    return str(request.param)


def run_with(device: str, *faults: str) -> tuple[Trace, Injection]:
    """One training step of the language model with faults."""
    model, tokens = make_lm(device)
    trace = Trace(model)
    with inject(model, faults) as injection:
        lm_loss(model, tokens).backward()
    return trace.finish(), injection


# The text, the operator that fires, and the first module whose output differs.
FORWARD = [
    ("scale@blocks.1.down:mm:forward:value=1.01", "addmm", "blocks.1.down"),
    ("bias@blocks.0.out", "addmm", "blocks.0.out"),
    ("bf16@blocks.1.norm1", "native_layer_norm", "blocks.1.norm1"),
    ("truncate@blocks.0.norm2", "native_layer_norm", "blocks.0.norm2"),
    ("saturate@blocks.0.up:value=0.1", "addmm", "blocks.0.up"),
    ("bit_flip@blocks.0.act:index=5", "gelu", "blocks.0.act"),
    ("nan@blocks.1.qkv", "addmm", "blocks.1.qkv"),
    ("inf@emb", "embedding", "emb"),
    ("lost_tile@blocks.0.qkv:value=4", "addmm", "blocks.0.qkv"),
    ("zero_tail@head", "mm", "head"),
    ("eps@blocks.0.norm2", "native_layer_norm", "blocks.0.norm2"),
    ("tanh_gelu@blocks.1.act", "gelu", "blocks.1.act"),
    ("unbiased_variance@norm", "native_layer_norm", "norm"),
    ("low_softmax@blocks.1", "_softmax", "blocks.1.out"),
    ("mask_dropped@blocks.0", "masked_fill", "blocks.0.out"),
    ("scale@blocks.0:bmm:call=1", "bmm", "blocks.0.out"),
]


@pytest.mark.parametrize(("text", "operator", "module"), FORWARD, ids=[row[0] for row in FORWARD])
def test_a_forward_fault_fires_once_and_shows_first_at_its_module(
    device: str, text: str, operator: str, module: str
) -> None:
    expected, _ = run_with(device)
    actual, injection = run_with(device, text)
    fault = parse_fault(text)
    assert [(firing.op, firing.scope, firing.phase) for firing in injection.fired] == [
        (operator, fault.module, Phase.FORWARD)
    ]
    assert injection.unfired == []
    assert differing(expected.outputs, actual.outputs)[0] == module


# The text and the only gradient that may differ; None = everything upstream does.
BACKWARD = [
    ("scale@blocks.1.up:mm:backward:call=1", ["blocks.1.up.weight"]),
    ("gradient_scale@head:mm:call=0", ["head.weight"]),
    ("bf16@blocks.0.norm1:layer_norm_backward:backward", None),
    ("duplicates_dropped@emb:phase=backward", ["emb.weight"]),
    ("tanh_gelu@blocks.0.act:phase=backward", None),
    ("nan@blocks.0:bmm:backward", None),
]


@pytest.mark.parametrize(("text", "gradients"), BACKWARD, ids=[row[0] for row in BACKWARD])
def test_a_backward_fault_leaves_the_forward_pass_alone(device: str, text: str, gradients: list[str] | None) -> None:
    expected, _ = run_with(device)
    actual, injection = run_with(device, text)
    assert [firing.phase for firing in injection.fired] == [Phase.BACKWARD]
    assert injection.fired[0].scope == parse_fault(text).module
    assert differing(expected.outputs, actual.outputs) == []
    different = differing(expected.gradients, actual.gradients)
    assert different == gradients if gradients else different
    later = ("blocks.1", "norm", "head")
    assert gradients or not any(name.startswith(later) for name in different)


def test_watching_changes_no_bit(device: str) -> None:
    model, tokens = make_lm(device)
    plain = Trace(model)
    lm_loss(model, tokens).backward()
    plain.finish()
    watched, injection = run_with(device, "scale@blocks.1:mm:call=99", "nan@head:mm:backward:call=99")
    assert injection.fired == []
    assert len(injection.unfired) == 2
    assert differing(plain.outputs, watched.outputs) == []
    assert differing(plain.gradients, watched.gradients) == []


def train_steps(device: str, steps: int, *faults: str) -> tuple[list[dict[str, torch.Tensor]], Injection]:
    """Parameters after each of some optimizer steps."""
    model, tokens = make_lm(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    states = []
    with inject(model, faults) as injection:
        for _ in range(steps):
            optimizer.zero_grad()
            lm_loss(model, tokens).backward()
            optimizer.step()
            states.append({name: one.detach().cpu().clone() for name, one in model.named_parameters()})
    return states, injection


@pytest.mark.parametrize("text", ["update_skipped@blocks.0.up", "scale@blocks.0.up:phase=step:value=1.5"])
def test_a_step_fault_changes_the_parameters_of_its_module_at_its_step(device: str, text: str) -> None:
    expected, _ = train_steps(device, 2)
    actual, injection = train_steps(device, 2, f"{text}:call=1")
    assert [(firing.phase, firing.scope, firing.call) for firing in injection.fired] == [(Phase.STEP, "blocks.0.up", 1)]
    assert differing(expected[0], actual[0]) == []
    assert differing(expected[1], actual[1]) == ["blocks.0.up.weight", "blocks.0.up.bias"]
    if text.startswith("update_skipped"):
        assert torch.equal(actual[1]["blocks.0.up.weight"], expected[0]["blocks.0.up.weight"])


def test_every_call_and_the_number_of_calls(device: str) -> None:
    _, injection = train_steps(device, 3, "scale@blocks.0.act:gelu:call=*", "scale@blocks.1.act:gelu:call=2")
    assert [firing.call for firing in injection.fired if firing.scope == "blocks.0.act"] == [0, 1, 2]
    assert [firing.call for firing in injection.fired if firing.scope == "blocks.1.act"] == [2]


def test_two_faults_on_one_call_both_act(device: str) -> None:
    expected, _ = run_with(device)
    actual, injection = run_with(device, "scale@blocks.0.act:value=2", "bias@blocks.0.act:gelu:value=1")
    assert len(injection.fired) == 2
    assert torch.equal(actual.outputs["blocks.0.act"], (expected.outputs["blocks.0.act"] + 1) * 2)


class Rotary(nn.Module):
    """Rotation by halves and an epsilon written out."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, -1)
        rotated = torch.cat([-second, first], -1)
        return rotated * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def test_rotation_and_epsilon_written_out(device: str) -> None:
    model, values = Rotary(), torch.arange(8.0).reshape(2, 4).to(device)
    with inject(model, "interleaved_rope@") as injection:
        rotated = model(values)
    assert [firing.op for firing in injection.fired] == ["cat"]
    scale = torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + 1e-6)
    interleaved = torch.stack([-values[..., 1::2], values[..., 0::2]], -1).flatten(-2)
    assert torch.equal(rotated, interleaved * scale)
    with inject(model, "eps@:value=4"):
        shifted = model(values)
    first, second = values.chunk(2, -1)
    expected = torch.cat([-second, first], -1) * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + 4)
    assert torch.equal(shifted, expected)


class Masked(nn.Module):
    """Masks applied in four ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, scores: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
        low = torch.tensor(float("-inf"), device=scores.device)
        if self.way == "in place":
            return (scores * 1).masked_fill_(masked, float("-inf"))
        if self.way == "where":
            return torch.where(masked, low, scores)
        if self.way == "added":
            return scores + torch.zeros_like(scores).masked_fill(masked, float("-inf"))
        return nn.functional.scaled_dot_product_attention(scores, scores, scores, attn_mask=~masked)


@pytest.mark.parametrize(("way", "op"), [("in place", ""), ("where", "where"), ("added", "add"), ("attention", "")])
def test_masks_dropped_in_each_form(device: str, way: str, op: str) -> None:
    torch.manual_seed(0)
    model, scores = Masked(way), torch.randn(1, 1, 4, 4).to(device)
    masked = torch.ones(4, 4, dtype=torch.bool).triu(1).to(device)
    with inject(model, f"mask_dropped@:{op}") as injection:
        result = model(scores, masked)
    assert len(injection.fired) == 1
    plain = nn.functional.scaled_dot_product_attention(scores, scores, scores) if way == "attention" else scores
    assert torch.equal(result, plain)


@pytest.mark.parametrize("way", ["index_add", "scatter_add", "index_put", "in place"])
def test_updates_of_one_place_are_lost(device: str, way: str) -> None:
    class Adds(nn.Module):
        def forward(self, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            start = torch.ones(3, device=values.device)
            if way == "index_add":
                return start.index_add(0, places, values)
            if way == "scatter_add":
                return start.scatter_add(0, places, values)
            if way == "index_put":
                return start.index_put((places,), values, accumulate=True)
            return start.index_add_(0, places, values)

    model = Adds()
    places, values = torch.tensor([1, 1, 2]).to(device), torch.tensor([2.0, 4.0, 8.0]).to(device)
    assert model(places, values).tolist() == [1, 7, 9]
    with inject(model, "duplicates_dropped@"):
        assert model(places, values).tolist() == [1, 5, 9]


class InPlace(nn.Module):
    """In-place operators and a view as output: full backward hooks raise on such models."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.relu(self.linear(x).mul_(2)).t()


def test_models_that_write_in_place(device: str) -> None:
    torch.manual_seed(0)
    model, inputs = InPlace().to(device), torch.randn(3, 4).to(device)
    plain = model(inputs)
    with inject(model, ["scale@relu:relu_:value=2", "scale@linear:mm:backward:call=0:value=3"]) as injection:
        faulty = model(inputs)
        faulty.sum().backward()
    assert [(firing.scope, firing.phase) for firing in injection.fired] == [
        ("relu", Phase.FORWARD),
        ("linear", Phase.BACKWARD),
    ]
    assert torch.equal(faulty, plain * 2)
    once = model.linear.weight.grad.clone()
    model.zero_grad()
    model(inputs).sum().backward()
    assert torch.allclose(once, model.linear.weight.grad * 3)


class Checkpointed(nn.Module):
    """A block that is computed again in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.after = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 4)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(checkpoint(self.inner, x, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_recomputation_is_a_forward_call_of_its_module(device: str, reentrant: bool) -> None:
    model, inputs = Checkpointed(reentrant).to(device), torch.randn(2, 4).to(device).requires_grad_()
    with inject(
        model, ["scale@inner.0:mm:call=*", "scale@inner.0:mm:backward:call=*", "scale@after:mm:backward"]
    ) as injection:
        model(inputs).sum().backward()
    places = [(firing.scope, firing.phase) for firing in injection.fired]
    assert places.count(("inner.0", Phase.FORWARD)) == 2
    assert places.count(("after", Phase.BACKWARD)) == 1
    assert places.count(("inner.0", Phase.BACKWARD)) == 2  # of the input and of the weight
    assert set(places) == {("inner.0", Phase.FORWARD), ("inner.0", Phase.BACKWARD), ("after", Phase.BACKWARD)}


def test_gradients_taken_inside_a_forward_are_backward_calls(device: str) -> None:
    class Penalty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            (slope,) = torch.autograd.grad(self.inner(x).sum(), x, create_graph=True)
            return slope.pow(2).sum()

    model, inputs = Penalty().to(device), torch.randn(2, 4).to(device).requires_grad_()
    with inject(model, ["scale@inner:mm:call=*", "scale@inner:mm:backward:call=0"]) as injection:
        model(inputs)
    assert [(firing.scope, firing.phase) for firing in injection.fired] == [
        ("inner", Phase.FORWARD),
        ("inner", Phase.BACKWARD),
    ]


def test_copies_of_a_watched_model_are_left_alone(device: str) -> None:
    model, tokens = make_lm(device)
    buffer = io.BytesIO()
    with inject(model, "scale@*:mm:call=*") as injection:
        lm_loss(copy.deepcopy(model), tokens)
        torch.save(model, buffer)
        assert injection.fired == []
        lm_loss(model, tokens)
    assert injection.fired
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert torch.equal(lm_loss(loaded, tokens).detach(), lm_loss(model, tokens).detach())


def test_a_forward_that_raises_leaves_the_stack_clean(device: str) -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("meant")

    model = nn.Sequential(nn.Linear(4, 4), Fails()).to(device)
    inputs = torch.randn(2, 4).to(device)
    with inject(model, "scale@1:call=*") as injection:
        with pytest.raises(RuntimeError, match="meant"):
            model(inputs)
        model[0](inputs) * 2
    assert injection.fired == []
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_faults_reach_into_recurrent_layers(device: str, kind: str) -> None:
    torch.manual_seed(0)
    layer = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](4, 4).to(device)
    with inject(layer, "scale@:call=0") as injection:
        layer(torch.randn(3, 2, 4).to(device))
    assert len(injection.fired) == 1


def test_the_device_takes_faults_for_any_model(npu: None) -> None:
    expected, _ = run_with("npu")
    simulated.set_profile("none", faults=["tanh_gelu@blocks.1.act", "scale@blocks.0.up:mm:backward:call=1"])
    actual, _ = run_with("npu")
    injection = device_injection()
    assert injection is not None
    assert [(firing.scope, firing.phase) for firing in injection.fired] == [
        ("blocks.1.act", Phase.FORWARD),
        ("blocks.0.up", Phase.BACKWARD),
    ]
    assert differing(expected.outputs, actual.outputs)[0] == "blocks.1.act"
    assert "tanh_gelu@blocks.1.act" in simulated.describe()
    simulated.set_profile("none")
    assert device_injection() is None
    clean, _ = run_with("npu")
    assert differing(expected.outputs, clean.outputs) == []


def test_the_device_refuses_step_faults(npu: None) -> None:
    with pytest.raises(UsageError, match="inject"):
        simulated.set_profile("none", faults="update_skipped@*")


def test_a_torch_that_cannot_follow_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution, "_next_number", None)
    model = InPlace()
    with pytest.raises(Unavailable, match="newer torch"), inject(model, "scale@linear:mm:backward"):
        pass
    with inject(model, "scale@linear:mm") as injection:
        model(torch.randn(2, 4)).sum().backward()
    assert len(injection.fired) == 1
