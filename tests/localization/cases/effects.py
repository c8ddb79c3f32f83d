"""Randomness, hooks, patches, in-place effects, loading, dummy calls: they change results without being arithmetic."""

from __future__ import annotations

import torch
from localization_cases import Pair, case
from torch import nn
from torch.nn import functional


class FunctionalDropout(nn.Module):
    """``skip``: how many numbers this device's generator is ahead, as generators of two devices never agree."""

    def __init__(self, p: float, skip: int = 0) -> None:
        super().__init__()
        self.fc, self.out, self.p, self.skip = nn.Linear(16, 16), nn.Linear(16, 2), p, skip

    def forward(self, x):
        torch.rand(self.skip)
        x = functional.dropout(self.fc(x), self.p, self.training)
        return self.out(x)


@case("", "functional dropout: other generator state", site="inline")
def functional_dropout_masks(faulty: bool) -> Pair:
    """Not an operator fault: reported as random, at the module that draws."""
    torch.manual_seed(50)
    return FunctionalDropout(0.2, skip=7 * faulty).train(), (torch.randn(32, 16),)


@case("drop", "dropout left on in evaluation", site="module")
def dropout_on_in_eval(faulty: bool) -> Pair:
    torch.manual_seed(51)
    model = nn.Sequential()
    model.add_module("fc", nn.Linear(32, 32))
    model.add_module("drop", nn.Dropout(0.3))
    model.add_module("out", nn.Linear(32, 2))
    model.eval()
    model.drop.train(faulty)
    return model, (torch.randn(16, 32),)


@case("drop", "keeps p instead of 1 - p", site="module")
def dropout_rate_inverted(faulty: bool) -> Pair:
    class Drop(nn.Dropout):
        def forward(self, x):
            keep = self.p if faulty else 1 - self.p
            return x * (torch.rand(x.shape) < keep) / keep

    torch.manual_seed(52)
    model = nn.Sequential()
    model.add_module("fc", nn.Linear(32, 32))
    model.add_module("drop", Drop(0.1))
    model.add_module("out", nn.Linear(32, 2))
    return model.train(), (torch.randn(16, 32),)


class Scripted(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.fc, self.factor = nn.Linear(8, 8), factor

    def forward(self, x):
        return self.fc(x) * self.factor


@case(None, "pytorch hooks do not run on compiled TorchScript", kind="missed")
def scripted_module(faulty: bool) -> Pair:
    torch.manual_seed(53)
    return torch.jit.trace(Scripted(1.5 if faulty else 1.0), torch.randn(2, 8)), (torch.randn(2, 8),)


@case("", "a scripted module inside: its caller sees what it returned", site="inline", or_note=True)
def scripted_child(faulty: bool) -> Pair:
    torch.manual_seed(54)
    inner = torch.jit.trace(Scripted(1.5 if faulty else 1.0), torch.randn(2, 8))
    return nn.Sequential(nn.Linear(8, 8), inner, nn.Linear(8, 2)), (torch.randn(2, 8),)


class Hooked(nn.Linear):
    """Its output identity decides the way it goes."""

    def forward(self, x):
        y = super().forward(x)
        return y.clone() if x.grad_fn is not None and "View" in type(x.grad_fn).__name__ else y


class Identity(nn.Module):
    def forward(self, x):
        return x


class Fork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Identity(), Hooked(8, 8)

    def forward(self, x):
        y = self.a(x)
        return self.b(y) if y is x else self.b(y) * 2


@case(None, "the tool must not change which tensor object comes back", phase="backward")
def identity_matters(faulty: bool) -> Pair:
    torch.manual_seed(55)
    return nn.Sequential(nn.Linear(8, 8), Fork()), (torch.randn(2, 8),)


class Monkey(nn.Module):
    """forward replaced on the instance, as patching libraries do."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.fc, self.factor = nn.Linear(8, 8), factor
        self.forward = self._patched

    def _patched(self, x):
        return self.fc(x) * self.factor


@case("1", "forward patched on the instance", site="inline")
def forward_patched_on_the_instance(faulty: bool) -> Pair:
    torch.manual_seed(56)
    return nn.Sequential(nn.Linear(8, 8), Monkey(1.1 if faulty else 1.0)), (torch.randn(2, 8),)


class WithHook(nn.Module):
    """A forward hook of the user's changes the output."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(8, 8), nn.Linear(8, 2)
        self.fc.register_forward_hook(lambda module, args, output: output * factor)

    def forward(self, x):
        return self.out(self.fc(x))


@case("fc", "a hook of the user's own scales an output", site=("module", "inline"))
def user_hook_scales(faulty: bool) -> Pair:
    torch.manual_seed(57)
    return WithHook(1.1 if faulty else 1.0), (torch.randn(2, 8),)


@case(None, "a hook of the user's own on both sides", phase="backward")
def user_hook_on_both_sides(faulty: bool) -> Pair:
    torch.manual_seed(57)
    return WithHook(1.1), (torch.randn(2, 8),)


class PreHooked(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.fc, self.out = nn.Linear(8, 8), nn.Linear(8, 2)
        self.fc.register_forward_pre_hook(lambda module, args: (args[0] * factor,))

    def forward(self, x):
        return self.out(self.fc(x))


@case(None, "a pre-hook of the user's own on both sides", phase="backward")
def user_pre_hook_on_both_sides(faulty: bool) -> Pair:
    torch.manual_seed(57)
    return PreHooked(1.1), (torch.randn(2, 8),)


@case("fc", "a pre-hook of the user's own scales an input", site="module")
def user_pre_hook_scales(faulty: bool) -> Pair:
    torch.manual_seed(57)
    return PreHooked(1.1 if faulty else 1.0), (torch.randn(2, 8),)


@case("1", "stale checkpoint: one layer was not loaded", site="parameters")
def stale_weight(faulty: bool) -> Pair:
    torch.manual_seed(58)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    if faulty:
        nn.init.zeros_(model[1].weight)
    return model, (torch.randn(2, 8),)


@case("experts.1", "expert weights permuted on loading", site="parameters")
def experts_permuted(faulty: bool) -> Pair:
    torch.manual_seed(59)

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(3))

        def forward(self, x):
            return torch.cat([expert(part) for expert, part in zip(self.experts, x.chunk(3))])

    model = Experts()
    if faulty:
        one, two = model.experts[1].weight.detach().clone(), model.experts[2].weight.detach().clone()
        model.experts[1].weight.data, model.experts[2].weight.data = two, one
    return model, (torch.randn(6, 8),)


class Warm(nn.Module):
    """``extra``: dummy calls before the real ones."""

    def __init__(self, extra: int) -> None:
        super().__init__()
        self.fc, self.norm, self.extra = nn.Linear(8, 8), nn.LayerNorm(8), extra

    def forward(self, x):
        for _ in range(self.extra):
            self.norm(self.fc(torch.zeros_like(x)))
        return self.norm(self.fc(x))


@case(None, "vllm-ascend#8574: a dummy run on one side", phase="backward")
def dummy_calls_first(faulty: bool) -> Pair:
    torch.manual_seed(60)
    return Warm(2 if faulty else 0), (torch.randn(4, 8),)


class Lengths(nn.Module):
    """Debug statistics that one side computes in addition."""

    def __init__(self, more: bool) -> None:
        super().__init__()
        self.fc, self.probe, self.more = nn.Linear(8, 8), nn.LayerNorm(8), more

    def forward(self, x):
        y = self.fc(x)
        if self.more:
            self.probe(y)
        return y


@case(None, "a module that one side calls for logging only", phase="backward", or_note=True)
def additional_call_without_effect(faulty: bool) -> Pair:
    torch.manual_seed(61)
    return Lengths(faulty), (torch.randn(4, 8),)


class Empty(nn.Module):
    """Zero-size batches, 0-d tensors, booleans, integers."""

    def __init__(self, shift: int) -> None:
        super().__init__()
        self.fc, self.shift = nn.Linear(8, 8), shift

    def forward(self, x):
        y = self.fc(x)
        index = (y.abs() * 1000).long() // 10 + self.shift
        return y[:0], y.sum(), y > 0, index


@case("", "integers are exact", site="inline")
def integer_output_off_by_one(faulty: bool) -> Pair:
    torch.manual_seed(62)
    return Empty(int(faulty)), (torch.randn(4, 8),)


class Cached(nn.Module):
    """Its child writes into a cache that is an argument, and returns something else. ``fault``: one row too far."""

    def __init__(self, fault: bool, other: bool) -> None:
        super().__init__()
        self.fc, self.store, self.head = nn.Linear(8, 8), Store(fault), nn.Linear(8, 2)
        self.other = other

    def forward(self, x):
        cache = x.new_zeros(6, 8)
        for t in range(3):
            size = self.store(self.fc(x[t] * (1.0000001 if self.other else 1)), cache, t)
        return self.head(cache[:4]) / size


class Store(nn.Module):
    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, value, cache, t):
        cache[t + int(self.fault and t == 2)] = value
        return cache.shape[0]


@case(None, "a cache written in place")
def cache_written_in_place(faulty: bool) -> Pair:
    torch.manual_seed(63)
    return Cached(False, faulty), (torch.randn(3, 8),)


@case("store", "a cache written in place, at the wrong row", call=2)
def cache_written_at_the_wrong_row(faulty: bool) -> Pair:
    torch.manual_seed(63)
    return Cached(faulty, False), (torch.randn(3, 8),)


class Ignores(nn.Module):
    """Calls in-place modules for their effect and uses what they changed."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.fc, self.act, self.norm, self.factor = nn.Linear(8, 8), nn.ReLU(inplace=True), nn.LayerNorm(8), factor

    def forward(self, x):
        y = self.fc(x * self.factor)
        self.act(y)
        return self.norm(y * 2) + y


@case(None, "in-place activation whose result is not used", phase="backward")
def in_place_for_its_effect(faulty: bool) -> Pair:
    torch.manual_seed(64)
    return nn.Sequential(nn.Linear(8, 8), Ignores(1 + 1e-7 * faulty)), (torch.randn(5, 8),)
