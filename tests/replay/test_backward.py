"""Gradients by vector-Jacobian products in float64: the faults of facts 4.6 are found, conforming builds are not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from precision_align.core.terms import Phase, Site, Status, Verdict

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
DTYPES = [F32, BF16, F16]
G = torch.Generator().manual_seed(0)
X, W = torch.randn(128, 256, generator=G), torch.randn(512, 256, generator=G) / 16
WEIGHT, BIAS = 1 + 0.1 * torch.randn(256, generator=G), 0.1 * torch.randn(256, generator=G)
TABLE, IDS = torch.randn(64, 256, generator=G), torch.randint(0, 64, (512,), generator=G)


def keep_bits(x, bits):
    words = x.contiguous().view(torch.int32)
    drop = 23 - bits
    return ((words + (1 << (drop - 1))) & ~((1 << drop) - 1)).view(torch.float32)


def split(a, b, chunks=7, low=None):
    total = torch.zeros(a.shape[0], b.shape[1])
    for part in torch.arange(a.shape[1]).flip(0).chunk(chunks):
        total = total + a[:, part] @ b[part]
        total = total if low is None else total.to(low).float()
    return total


def gelu(x, gradient, tanh=False):
    if tanh:
        with torch.enable_grad():
            y = x.clone().requires_grad_()
            return torch.autograd.grad(functional.gelu(y, approximate="tanh"), y, gradient)
    density = torch.exp(-0.5 * x * x) * 0.3989422804014327
    return (gradient * (0.5 * torch.erfc(-x * math.sqrt(0.5)) + x * density),)


def softmax(x, gradient, low=None):
    cut = (lambda t: t) if low is None else (lambda t: t.to(low).float())
    p = cut(torch.softmax(x, -1))
    return (p * (gradient - cut(cut(p * gradient).flip(-1).sum(-1, keepdim=True))),)


def norm(x, weight, bias, gradient, drop="", unbiased=False, low=None):
    cut = (lambda t: t) if low is None else (lambda t: t.to(low).float())
    mean = cut(x.mean(-1, keepdim=True))
    variance = (x - mean).square().mean(-1, keepdim=True) * (256 / 255 if unbiased else 1)
    inverse = torch.rsqrt(cut(variance) + 1e-5)
    hat, scaled = (x - mean) * inverse, gradient * weight
    inner = scaled.clone()
    if drop != "mean":
        inner -= scaled.mean(-1, keepdim=True)
    if drop != "projection":
        inner -= hat * (scaled * hat).mean(-1, keepdim=True)
    return inner * inverse, (gradient * hat).sum(0), gradient.sum(0)


def linear(x, weight, gradient, tail=0, lost=0, bits=0, low=None, gain=1.0):
    if bits:
        x, weight, gradient = (keep_bits(t, bits) for t in (x, weight, gradient))
    columns, rows = gradient.shape[1] - tail, gradient.shape[0] - lost
    dx = split(gradient[:, :columns], weight[:columns], 32 if low else 7, low)
    dw = split(gradient[:rows].T, x[:rows], 32 if low else 7, low)
    return dx * gain, dw * gain


def embedding(ids, table, gradient, how=""):
    result = torch.zeros(table.shape)
    if how == "overwritten":
        result[ids] = gradient
    elif how:
        for index in range(len(ids)):
            result[ids[index]] = (result[ids[index]] + gradient[index]).to(how).float()
    else:
        order = torch.arange(len(ids)).flip(0)
        result.index_add_(0, ids[order], gradient[order])
    return None, result


FORWARD = {
    "gelu": functional.gelu,
    "softmax": lambda x: functional.softmax(x, -1),
    "norm": lambda x, w, b: functional.layer_norm(x, (256,), w, b, 1e-5),
    "linear": functional.linear,
    "embedding": functional.embedding,
}
BACKWARD = {"gelu": gelu, "softmax": softmax, "norm": norm, "linear": linear, "embedding": embedding}


class Function(torch.autograd.Function):
    """The stock forward with a backward of our own, in float32 inside."""

    @staticmethod
    def forward(ctx, name, options, *inputs):
        ctx.name, ctx.options = name, options
        ctx.save_for_backward(*inputs)
        return FORWARD[name](*inputs)

    @staticmethod
    def backward(ctx, gradient):
        wide = [t.float() if t.is_floating_point() else t for t in ctx.saved_tensors]
        found = BACKWARD[ctx.name](*wide, gradient.float(), **ctx.options)
        given = ctx.saved_tensors
        return (None, None, *(None if d is None else d.to(t.dtype) for d, t in zip(found, given)))


class Operator(nn.Module):
    """One operator as the reference has it, or with a backward of its own."""

    def __init__(self, name, dtype, options=None):
        super().__init__()
        self.name, self.options = name, options
        values = {"norm": (WEIGHT, BIAS), "linear": (W,), "embedding": (TABLE,)}.get(name, ())
        for index, value in enumerate(values):
            self.register_parameter(f"p{index}", nn.Parameter(value.to(dtype).clone()))

    def forward(self, x):
        inputs = (x, *self.parameters())
        return FORWARD[self.name](*inputs) if self.options is None else Function.apply(self.name, self.options, *inputs)


class Net(nn.Module):
    def __init__(self, name, dtype, options=None):
        super().__init__()
        self.op = Operator(name, dtype, options)

    def forward(self, x):
        return self.op(x) * 1.5


def run(name, dtype):
    source = IDS if name == "embedding" else (X * 2).to(dtype)
    generator = torch.Generator().manual_seed(5)

    def step(module):
        x = source.clone()
        y = module(x.requires_grad_() if x.is_floating_point() else x)
        generator.manual_seed(5)
        y.backward((0.1 * torch.randn(y.shape, generator=generator)).to(y.dtype))

    return step


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", sorted(FORWARD))
def test_conforming_backward(name, dtype, compare):
    found = compare(Net(name, dtype), Net(name, dtype, {}), run(name, dtype))
    assert found.verdict == Verdict.ALIGNED, found.first
    judged = [row for row in found.records if row.scope == "op" and row.phase == Phase.BACKWARD]
    judged = [row for row in judged if row.site != Site.INPUTS]
    assert {row.evidence for row in judged} <= {"replay", "hash", "sum"}
    assert judged


FAULTS = [
    ("gelu", {"tanh": True}, DTYPES),
    ("softmax", {"low": BF16}, [F32, F16]),  # in bfloat16 torch's own kernel starts from rounded probabilities too
    ("norm", {"drop": "mean"}, DTYPES),
    ("norm", {"drop": "projection"}, DTYPES),
    ("norm", {"unbiased": True}, [F32]),
    ("norm", {"low": BF16}, [F32]),
    ("linear", {"tail": 8}, DTYPES),
    ("linear", {"lost": 1}, DTYPES),
    ("linear", {"bits": 10}, [F32]),
    ("linear", {"low": BF16}, [BF16]),
    ("linear", {"low": F16}, [F16]),
    ("linear", {"gain": 1024.0}, DTYPES),
    ("linear", {"gain": 1.001}, DTYPES),
    ("embedding", {"how": "overwritten"}, DTYPES),
    ("embedding", {"how": BF16}, [F32, F16]),  # in bfloat16 torch's own kernel does the same
]
CASES = [(name, options, dtype) for name, options, dtypes in FAULTS for dtype in dtypes]


@pytest.mark.parametrize(("name", "options", "dtype"), CASES)
def test_faulty_backward_is_found_in_its_operator(name, options, dtype, compare):
    found = compare(Net(name, dtype), Net(name, dtype, options), run(name, dtype))
    assert found.verdict == Verdict.DIVERGED
    assert (found.first.scope, found.first.phase) == ("op", Phase.BACKWARD)
    assert not any(row.status == Status.FAIL for row in found.records if row.phase == Phase.FORWARD)


@pytest.mark.parametrize(
    ("options", "dtype"), [({"unbiased": True}, BF16), ({"unbiased": True}, F16), ({"low": BF16}, F16)]
)
def test_faults_near_the_rounding_of_the_dtype_do_not_pass_unnoticed(options, dtype, compare):
    found = compare(Net("norm", dtype), Net("norm", dtype, options), run("norm", dtype))
    noticed = {row.status for row in found.records if row.scope == "op" and row.phase == Phase.BACKWARD}
    assert noticed & {Status.FAIL, Status.WARN}


class Skips(nn.Module):
    """One tensor used by a child, by inline code and as an output of its own."""

    def __init__(self, gain=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.gain = nn.Linear(8, 8), nn.Linear(8, 8), gain

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return h, self.b(h) + h * self.gain


class Outer(nn.Module):
    def __init__(self, gain=1.0, wrong=False):
        super().__init__()
        self.skips, self.wrong = Skips(gain), wrong

    def forward(self, x):
        h, y = self.skips(x)
        if self.wrong:
            h = h * 1.0 + (h.detach() - h) * 0.01  # the right value, 99 % of its gradient
        return (h * y).sum() + y.square().sum()


def backward(module):
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    y = module(x)
    (sum(part.sum() for part in y) if isinstance(y, tuple) else y).backward()


@pytest.mark.parametrize("model", [Skips, Outer])
def test_results_that_feed_each_other(model, judge):
    rows = judge(model(), backward, replay=model())
    assert not [row for row in rows if row.status in (Status.FAIL, Status.WARN)]


def test_a_gradient_lost_between_children_is_inline(compare):
    found = compare(Outer(), Outer(wrong=True), backward)
    assert (found.first.scope, found.first.site, found.first.phase) == ("", Site.INLINE, Phase.BACKWARD)


def test_a_random_backward_is_inconclusive(judge):
    class Noisy(nn.Module):
        def forward(self, x):
            return functional.dropout(x, 0.5)

    rows = judge(Noisy(), lambda module: module(X.clone().requires_grad_()).sum().backward(), replay=Noisy())
    gradients = [row for row in rows if row.phase == Phase.BACKWARD and row.site != Site.INPUTS]
    assert [row.status for row in gradients] == [Status.INCONCLUSIVE]
