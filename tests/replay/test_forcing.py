"""A call's own code is judged between its children, which answer from the record."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from precision_align.core.terms import Site, Status, Verdict

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


def run(module):
    return module(X)


class Pair(nn.Module):
    """Two layers and code between them; ``mode`` is the candidate's fault."""

    def __init__(self, mode=""):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.mode = mode

    def forward(self, x):
        if self.mode == "swapped":
            return self.a(self.b(x)) + x
        h = self.a(x)
        if self.mode == "extra":
            h = self.a(h)
        if self.mode == "missing":
            return h + x
        if self.mode == "scaled":
            h = h * 1.01
        y = self.b(h)
        return y - x if self.mode == "sign" else y + x


@pytest.mark.parametrize("mode", ["swapped", "extra", "missing", "scaled", "sign"])
def test_faults_between_children_are_inline(compare, mode):
    found = compare(Pair(), Pair(mode), run)
    assert found.verdict == Verdict.DIVERGED
    assert (found.first.scope, found.first.site) == ("", Site.INLINE)


def test_a_fault_inside_a_child_stays_there(compare, patch):
    candidate = Pair()
    patch(candidate.a, lambda y: y * 1.01)
    found = compare(Pair(), candidate, run)
    assert (found.first.scope, found.first.site) == ("a", Site.MODULE)
    assert [divergence.scope for divergence in found.frontier] == ["a"]
    assert {row.status for row in found.records if row.scope != "a" and row.role == "output"} == {Status.PROPAGATED}


def test_noise_of_a_conforming_build_is_aligned(compare, patch, noisy):
    candidate = Pair()
    patch(candidate.a, noisy(1e-7))
    patch(candidate.b, noisy(1e-7, 2))
    assert compare(Pair(), candidate, run).verdict == Verdict.ALIGNED


class Share(nn.Module):
    def __init__(self, inner, gain=1.0):
        super().__init__()
        self.inner, self.gain = inner, gain

    def forward(self, x):
        return self.inner(x) * self.gain


class Shared(nn.Module):
    """One layer under two parents: calls must go to the right parent."""

    def __init__(self, first=1.0, second=1.0):
        super().__init__()
        torch.manual_seed(0)
        inner = nn.Linear(8, 8)
        self.p, self.q = Share(inner, first), Share(inner, second)

    def forward(self, x):
        return self.q(self.p(x))


@pytest.mark.parametrize(("gains", "scope"), [((1.01, 1.0), "p"), ((1.0, 1.01), "q")])
def test_a_module_shared_by_two_parents(compare, gains, scope):
    found = compare(Shared(), Shared(*gains), run)
    assert (found.first.scope, found.first.site) == (scope, Site.INLINE)
    assert compare(Shared(), Shared(), run).verdict == Verdict.ALIGNED


class InPlace(nn.Module):
    """The returned value of the in-place child is thrown away."""

    def __init__(self, gain=1.0, slope=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.act = nn.Linear(8, 8), nn.LeakyReLU(slope, inplace=True)
        self.gain = gain

    def forward(self, x):
        h = self.a(x)
        self.act(h)
        return h * self.gain


@pytest.mark.parametrize(
    ("candidate", "scope", "site"),
    [(InPlace(1.01), "", Site.INLINE), (InPlace(1.0, 0.01), "act", Site.MODULE)],
    ids=["after it", "inside it"],
)
def test_an_in_place_child(compare, candidate, scope, site):
    found = compare(InPlace(), candidate, run)
    assert (found.first.scope, found.first.site) == (scope, site)
    assert compare(InPlace(), InPlace(), run).verdict == Verdict.ALIGNED


class Stack(nn.Module):
    def __init__(self, faulty=-1, reverse=False):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.faulty, self.reverse = faulty, reverse

    def forward(self, x):
        for index, layer in enumerate(reversed(self.layers) if self.reverse else self.layers):
            x = layer(x) * (1.01 if index == self.faulty else 1.0)
        return x


@pytest.mark.parametrize("candidate", [Stack(0), Stack(1), Stack(2), Stack(reverse=True)])
def test_a_module_list_walked_by_its_owner(compare, candidate):
    found = compare(Stack(), candidate, run)
    assert (found.first.scope, found.first.site) == ("", Site.INLINE)


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x, scale=1.0, *, causal=True, name="a"):
        y = self.fc(x) * scale
        return y.tril() if causal else y


class Flags(nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.args, self.kwargs = Masked(), args, kwargs

    def forward(self, x):
        return self.inner(x, *self.args, **self.kwargs)


@pytest.mark.parametrize("given", [{"causal": False}, {"scale": 0.5}, {"scale": 2}])
def test_a_flag_that_the_reference_does_not_pass(compare, given):
    found = compare(Flags(**{name: getattr(Flags, name, 1.0 if name == "scale" else True) for name in given}),
                    Flags(**given), run)  # fmt: skip
    assert (found.first.scope, found.first.site) == ("", Site.INLINE)
    assert next(iter(given)) in found.first.evidence


def test_a_flag_given_by_position_or_by_name_is_the_same(compare, patch, noisy):
    candidate = Flags(scale=1.0)
    patch(candidate.inner.fc, noisy(1e-7))
    assert compare(Flags(1.0), candidate, run).verdict == Verdict.ALIGNED


class Residual(nn.Module):
    """Keyword tensors, tuples and dictionaries between caller and child."""

    def __init__(self, gain=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.mix, self.gain = Mix(), gain

    def forward(self, x):
        found = self.mix({"left": x * self.gain, "right": [x, (x + 1, None)]}, shift=x * 0.1)
        return found["sum"], found["parts"][1]


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, parts, *, shift):
        total = self.fc(parts["left"]) + parts["right"][1][0] + shift
        return {"sum": total, "parts": (total * 2, total * 3)}


def test_nested_arguments_and_results(compare):
    assert compare(Residual(), Residual(), run).verdict == Verdict.ALIGNED
    found = compare(Residual(), Residual(1.01), run)
    assert (found.first.scope, found.first.site) == ("", Site.INLINE)
    assert "left" in found.first.key


class Recursive(nn.Module):
    def __init__(self, depth=3, gain=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.depth, self.gain = nn.Linear(8, 8), depth, gain

    def forward(self, x, level=0):
        if level == self.depth:
            return x * self.gain
        return self(torch.tanh(self.fc(x)), level + 1) + x


def test_a_module_that_calls_itself(compare):
    assert compare(Recursive(), Recursive(), run).verdict == Verdict.ALIGNED
    found = compare(Recursive(), Recursive(gain=1.01), run)
    assert (found.first.scope, found.first.site, found.first.call) == ("", Site.INLINE, 3)


class Counting(nn.Module):
    """State in a plain attribute: the second call computes something else than the first."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.count = nn.Linear(8, 8), 0

    def forward(self, x):
        self.count += 1
        return self.fc(x) * self.count


def test_state_outside_parameters_and_buffers_is_no_divergence(compare, patch, noisy):
    candidate = Counting()
    patch(candidate.fc, noisy(1e-7))
    assert compare(Counting(), candidate, lambda m: (m(X), m(X * 2))).verdict != Verdict.DIVERGED


class Dropped(Pair):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5)


def run_seeded(seed):
    def run_model(module):
        torch.manual_seed(seed)
        return module(X)

    return run_model


def test_equal_random_masks_with_rounding_noise_are_aligned(compare, patch, noisy):
    candidate = Dropped()
    patch(candidate.b, noisy(1e-7))
    assert compare(Dropped(), candidate, run_seeded(3)).verdict == Verdict.ALIGNED


def test_other_random_masks_are_random(compare):
    found = compare(Dropped(), Dropped(), run_seeded(3), candidate_run=run_seeded(4))
    assert (found.first.kind, found.first.scope) == ("random", "")
