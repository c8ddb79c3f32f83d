"""What hooks do not see: a report must say so, or see the effect in the caller."""

from __future__ import annotations

import torch
from localization_cases import Pair, case
from torch import nn


class Inner(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.fc, self.act, self.factor = nn.Linear(8, 8), nn.Tanh(), factor

    def forward(self, x):
        return self.act(self.fc(x) * self.factor)


@case("", "pytorch hooks on compiled modules: the caller gets what it cannot explain", site="inline")
def compiled_child(faulty: bool) -> Pair:
    torch.manual_seed(150)
    inner = torch.compile(Inner(1.5 if faulty else 1.0), backend="eager")
    model = nn.Sequential(nn.Linear(8, 8), inner, nn.Linear(8, 2))
    model(torch.randn(2, 8))
    return model, (torch.randn(2, 8),)


@case(None, "pytorch hooks on compiled modules", kind="missed")
def compiled_model(faulty: bool) -> Pair:
    torch.manual_seed(151)
    model = torch.compile(nn.Sequential(nn.Linear(8, 8), Inner(1.0)), backend="eager")
    model(torch.randn(2, 8))
    return model, (torch.randn(2, 8),)


class Quiet(nn.Module):
    """Runs a child through its forward method, past the hooks. ``factor`` is the fault, inside that child."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.out = Inner(factor), nn.Linear(8, 2)

    def forward(self, x):
        return self.out(self.inner.forward(x))


@case("", "a child's forward called past its hooks", site="inline")
def forward_called_directly(faulty: bool) -> Pair:
    torch.manual_seed(152)
    return Quiet(1.1 if faulty else 1.0), (torch.randn(3, 8),)


class Raises(nn.Module):
    """A child raises and its caller goes on without it."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.out, self.bad = Inner(factor), nn.Linear(8, 2), Bad()

    def forward(self, x):
        y = self.inner(x)
        try:
            y = self.bad(y)
        except ValueError:
            y = y * 2
        return self.out(y)


class Bad(nn.Module):
    def forward(self, x):
        raise ValueError("never mind")


@case("inner", "an exception that the model handles", site="inline")
def exception_inside(faulty: bool) -> Pair:
    torch.manual_seed(153)
    return Raises(1.1 if faulty else 1.0), (torch.randn(3, 8),)


@case(None, "an exception that the model handles", phase="backward")
def exception_inside_is_harmless(faulty: bool) -> Pair:
    torch.manual_seed(153)
    return Raises(1.0), (torch.randn(3, 8),)


class Config:
    """Not a tensor, not a container: cannot be rebuilt."""

    def __init__(self, factor: float) -> None:
        self.factor = factor


class Configured(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.out, self.factor = TakesConfig(), nn.Linear(8, 2), factor

    def forward(self, x):
        return self.out(self.inner(x, Config(self.factor)))


class TakesConfig(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x, config):
        return self.fc(x) * config.factor


@case("inner", "an argument that is an object", site="inline", or_note=True)
def object_argument(faulty: bool) -> Pair:
    """Its contents are not recorded: the module that used it is the first that differs."""
    torch.manual_seed(154)
    return Configured(1.1 if faulty else 1.0), (torch.randn(3, 8),)


@case(None, "an argument that is an object", phase="backward")
def object_argument_is_harmless(faulty: bool) -> Pair:
    torch.manual_seed(154)
    return Configured(1.0), (torch.randn(3, 8),)


class Generator(nn.Module):
    """Consumes a generator argument and gives one."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = Lists(), factor

    def forward(self, x):
        return sum(self.inner(part * self.factor for part in x.chunk(2)))


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, parts):
        return [self.fc(part) for part in parts]


@case(None, "a generator as argument", phase="backward")
def generator_argument(faulty: bool) -> Pair:
    torch.manual_seed(155)
    return Generator(1.0), (torch.randn(4, 8),)
