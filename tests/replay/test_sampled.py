"""Big products judged by sampled rows, tails and Freivalds' check: faults are found, conforming builds pass."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from precision_align.core.dtypes import dtype_of
from precision_align.core.terms import Phase, Status
from precision_align.replay import bigcalls
from precision_align.replay.arithmetics import round_mantissa
from precision_align.replay.probing import EDGE, choose, probe_product
from precision_align.replay.products import LinearProduct

ROWS, LENGTH, COLUMNS = 512, 384, 320
FLOAT16 = pytest.param(
    torch.float16, marks=pytest.mark.skipif(torch.__version__ < "2.2", reason="no float16 products on the CPU")
)


@pytest.fixture(autouse=True)
def small_threshold(monkeypatch):
    monkeypatch.setattr(bigcalls, "SAMPLED_ABOVE", 1 << 20)


class Net(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


def make_linear(dtype, bias=True):
    torch.manual_seed(3)
    return Net(nn.Linear(LENGTH, COLUMNS, bias=bias)).to(dtype)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def judge_change(judge, patch, dtype, change, backward=False):
    """Rows of one linear layer whose output was changed, judged by the reference's code."""
    reference, candidate = make_linear(dtype), make_linear(dtype)
    patch(candidate.layer, change)

    def run(model):
        x = draw(ROWS, LENGTH).to(dtype).requires_grad_(backward)
        output = model(x)
        if backward:
            output.backward(draw(ROWS, COLUMNS, seed=1).to(dtype))

    return judge(candidate, run, replay=reference)


def find(rows, phase=Phase.FORWARD):
    return [row for row in rows if row.scope == "layer" and row.phase == phase]


def reorder(y):
    """Another build: sums in another order, one rounding."""
    x, net = draw(ROWS, LENGTH).to(y.dtype), make_linear(y.dtype)
    halves = [
        torch.nn.functional.linear(x[:, part].float(), net.layer.weight[:, part].float())
        for part in (slice(0, 100), slice(100, None))
    ]
    return (halves[0] + halves[1] + net.layer.bias.float()).to(y.dtype) + 0 * y


def spoil(places, value):
    def change(y):
        wrong = y.clone()
        wrong[places] += value * y.detach().float().square().mean().sqrt().to(y.dtype)
        return wrong

    return change


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FLOAT16])
def test_a_conforming_build_is_not_flagged_and_the_row_says_sampled(judge, patch, dtype):
    (row,) = find(judge_change(judge, patch, dtype, reorder))
    assert (row.status, row.evidence) == (Status.PASS, "sampled")
    assert row.metrics["freivalds"] < 0.5
    assert 0.5 < row.metrics["sample_miss"] < 0.9
    assert "missed with" in row.note


FAULTS = {
    "one value": ((200, 100), 2.0),
    "a column": ((slice(None), 100), 0.2),
    "tail tile": ((slice(-16, None), slice(-16, None)), 0.1),
    "tile": ((slice(160, 176), slice(64, 80)), 1.0),
    "tail columns": ((slice(100, 200), slice(-8, None)), 0.1),
    "rows": ((slice(0, 300), slice(None)), 0.1),
    "NaN": ((200, 100), math.nan),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_faults_are_found_where_they_are(judge, patch, dtype, fault):
    places, size = FAULTS[fault]
    (row,) = find(judge_change(judge, patch, dtype, spoil(places, size)))
    assert (row.status, row.evidence) == (Status.FAIL, "sampled")
    worst = divmod(int(row.metrics["worst_index"]), COLUMNS)
    touched = torch.zeros(ROWS, COLUMNS, dtype=torch.bool)
    touched[places] = True
    assert touched[worst]


def test_lost_terms_of_the_sums_and_a_lost_bias_are_found(judge, patch):
    net = make_linear(torch.bfloat16)
    lost = draw(ROWS, LENGTH).bfloat16()[:, -8:] @ net.layer.weight[:, -8:].T
    for change in (lambda y: y - lost, lambda y: y - net.layer.bias):
        (row,) = find(judge_change(judge, patch, torch.bfloat16, change))
        assert row.status == Status.FAIL


def test_float32_products_in_tf32_are_still_a_mode(judge, patch):
    def degrade(y):
        net, x = make_linear(torch.float32), draw(ROWS, LENGTH)
        return nn.functional.linear(
            round_mantissa(x, 10), round_mantissa(net.layer.weight.detach(), 10), net.layer.bias
        )

    (row,) = find(judge_change(judge, patch, torch.float32, degrade))
    assert (row.status, "TF32" in row.note) == (Status.MODE, True)


def test_how_often_one_wrong_value_is_missed():
    """The stated power, measured: sizes over Freivalds' bound always show; small ones mostly do not."""
    torch.manual_seed(0)
    left, weight = torch.randn(ROWS, LENGTH).bfloat16(), torch.randn(COLUMNS, LENGTH).bfloat16()
    product = LinearProduct(left, weight)
    kind = dtype_of("bfloat16")
    clean = (left.float() @ weight.float().T).bfloat16()
    single, rms = probe_product(product, clean, kind).single, float(clean.float().square().mean().sqrt())

    def count(size):
        seen = 0
        for trial in range(20):
            wrong, row = clean.clone(), (37 * trial) % ROWS
            wrong[row, (53 * trial) % COLUMNS] += size * rms
            seen += row in probe_product(product, wrong, kind).suspects.tolist()
        return seen

    assert single < 2.0
    assert count(1.1 * single) == 20
    assert count(0.3) >= 19
    assert count(0.01) <= 5


def test_the_sample_takes_both_ends_and_is_the_same_each_time():
    taken = choose(1000, EDGE, EDGE, 32, torch.tensor([500]))
    assert {0, EDGE - 1, 999, 1000 - EDGE, 500} <= set(taken.tolist())
    assert taken.tolist() == choose(1000, EDGE, EDGE, 32, torch.tensor([500])).tolist()
    assert choose(5, EDGE, EDGE, 32).tolist() == [0, 1, 2, 3, 4]


class SpoiledLinear(torch.autograd.Function):
    """A linear layer with its own backward, one gradient of which is off by a constant at one element."""

    @staticmethod
    def forward(ctx, x, weight, bias, fault):
        ctx.save_for_backward(x, weight)
        ctx.fault = fault
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        made = {
            "input.args.0": gradient @ weight,
            "parameter.weight": (gradient[:200].T @ x[:200]) + (gradient[200:].T @ x[200:]),
            "parameter.bias": gradient.flip(0).sum(0),
        }
        if ctx.fault:
            made[ctx.fault].flatten()[77] += 10.0
        return *made.values(), None


@pytest.mark.parametrize("fault", ["", "parameter.weight", "input.args.0", "parameter.bias"])
def test_gradients_of_a_linear_layer(judge, fault):
    reference, candidate = make_linear(torch.float32), make_linear(torch.float32)
    layer = candidate.layer
    layer.forward = lambda x: SpoiledLinear.apply(x, layer.weight, layer.bias, fault)

    def run(model):
        model(draw(ROWS, LENGTH).requires_grad_()).backward(draw(ROWS, COLUMNS, seed=1))

    rows = {row.path: row for row in find(judge(candidate, run, replay=reference), Phase.BACKWARD)}
    assert {path for path, row in rows.items() if row.evidence == "sampled"} == {"parameter.weight", "input.args.0"}
    for path, row in rows.items():
        assert (row.status == Status.FAIL) == (path == fault), (path, row)


@pytest.mark.parametrize("padding", [1, "same"])
@pytest.mark.parametrize("wrong", [False, True])
def test_convolutions(judge, patch, wrong, padding):
    torch.manual_seed(1)
    reference, candidate = (Net(nn.Conv2d(16, 24, 3, padding=padding)) for _ in range(2))
    candidate.load_state_dict(reference.state_dict())

    def change(y):
        if not wrong:
            return nn.functional.conv2d(
                draw(2, 16, 24, 20).double(),
                reference.layer.weight.double(),
                reference.layer.bias.double(),
                padding=padding,
            ).float()
        y = y.clone()
        y[1, 5, 11, 7] += 0.5
        return y

    patch(candidate.layer, change)
    (row,) = find(judge(candidate, lambda model: model(draw(2, 16, 24, 20)), replay=reference))
    assert row.evidence == "sampled"
    assert (row.status == Status.FAIL) == wrong
    if wrong:
        assert int(row.metrics["worst_index"]) == ((1 * 24 + 5) * 24 + 11) * 20 + 7


def test_coverage_counts_them_apart(compare, patch):
    reference, candidate = make_linear(torch.float32), make_linear(torch.float32)
    patch(candidate.layer, reorder)
    seen = compare(reference, candidate, lambda model: model(draw(ROWS, LENGTH))).coverage[Phase.FORWARD]
    assert (seen.sampled, seen.judged) == (1, seen.recorded)
    assert seen.judged > 1


def test_small_products_are_judged_whole(judge, patch, monkeypatch):
    monkeypatch.setattr(bigcalls, "SAMPLED_ABOVE", 1 << 31)
    (row,) = find(judge_change(judge, patch, torch.float32, reorder))
    assert row.evidence == "replay"
