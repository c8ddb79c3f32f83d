"""A number in the code that is another one on the candidate: an eps, a scale, a limit, a base. Found by a fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.replay.noise import ROUNDING
from precision_align.replay.variants.operations import Operation, Variant, is_floating

# Change of a constant that shows its effect: far above float64 rounding.
PROBE = 1e-4
# Below this share of the error in the direction of a constant's effect, no value of it can be the cause.
ALIGNED = 0.3
ROUNDS = 12
# One round multiplies or divides by no more than this: the effect is known nearby only.
STRIDE = math.log(8.0)
# A fit that left this share of the error is done.
DONE = 1e-3
ENOUGH = 0.999  # and one that gains less is stuck
SMALL = 1e-2  # a smaller number that is added is an eps
DECADES = (-3, -2, -1, 1, 2, 3)
# Bases of rotary frequencies in public models: too far apart for a fit, since angles wrap.
BASES = (1e4, 5e4, 1e5, 5e5, 1e6, 1e7)
LARGEST = 1e29  # what is larger stands for infinity

_TAKING_NUMBERS = ("float", "number", "Scalar", "Tensor", "Optional[float]", "Optional[number]", "Optional[Tensor]")


@dataclass(frozen=True)
class Constant(Variant):
    """A number among an operation's positional arguments; as a variant by itself it changes nothing."""

    position: int = 0
    value: float = 0.0

    def using(self, value: float) -> Variant:
        """The variant in which it is another number."""
        if 0 < self.value <= SMALL:
            name, text = "eps", f"eps {value:.4g} instead of {self.value:.4g} in {self.text}"
        else:
            name, text = "constant", f"{_write(value)} instead of {_write(self.value)} in {self.text}"
        return Variant(name, text, lambda found: found.replace(self.position, value))


@dataclass(frozen=True)
class Factor(Constant):
    """A number that the result is multiplied by: 1, where the code has none."""

    value: float = 1.0

    def using(self, value: float) -> Variant:
        """The variant in which it is another number."""
        text = f"the result of {self.text} is {_write(value)} times as large"
        return Variant("scaled inside", text, lambda found: found.run() * value)


def _write(value: float) -> str:
    """A fitted number is known to about four digits."""
    return f"{value:.6g}" if value == round(value) else f"{value:.4g}"


def list_constants(operation: Operation, result: Any) -> Iterator[Variant]:
    """Where numbers stand."""
    for position, argument in enumerate(operation.func._schema.arguments[: len(operation.args)]):
        value = operation.args[position]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and str(argument.type) in _TAKING_NUMBERS and abs(value) < LARGEST:
            yield Constant("constant", operation.place, Operation.run, position=position, value=float(value))
    if operation.name in ROUNDING and is_floating(result):
        yield Factor("scaled inside", operation.place, Operation.run)


Rerun = Callable[[Variant], Optional[Array]]


def fit_constant(constant: Constant, actual: Array, golden: Array, rerun: Rerun) -> Iterator[tuple[Variant, Array]]:
    """The values worth a look, with the golden under each: zero, the opposite, the neighbours, the best fit."""
    for value in () if isinstance(constant, Factor) else _list_plain(constant.value):
        variant = constant.using(value)
        found = rerun(variant)
        if found is not None:
            yield variant, found
    best = _descend(constant, actual, golden, rerun)
    if best is not None:
        yield constant.using(best.value), best.result


@dataclass(frozen=True)
class _Fit:
    value: float
    result: Array
    error: float


def _list_plain(value: float) -> list[float]:
    if value == 0:
        return [1.0, -1.0]
    if value >= BASES[0]:
        return [base for base in BASES if base != value]
    if 0 < value <= SMALL:
        return [0.0, *(value * 10.0**power for power in DECADES)]
    if value == round(value):
        return [0.0, -value, value + 1, value - 1]
    return [0.0, -value, *([1 - value] if 0 < value < 1 else [])]


def _descend(constant: Constant, actual: Array, golden: Array, rerun: Rerun) -> Optional[_Fit]:
    """Least squares in the logarithm of the constant, by Gauss and Newton with halved steps."""
    if constant.value == 0:
        return None
    first = fit = _Fit(constant.value, golden, _norm(actual - golden))
    for _ in range(ROUNDS):
        better = _improve(constant, actual, fit, rerun)
        if better is None:
            break
        fit = better
        if fit.error <= DONE * first.error:
            break
    return None if fit is first else fit


def _improve(constant: Constant, actual: Array, fit: _Fit, rerun: Rerun) -> Optional[_Fit]:
    """One round; None where the effect points elsewhere than the error, or no step helps."""
    nearby = rerun(constant.using(fit.value * (1 + PROBE)))
    if nearby is None:
        return None
    error, effect = actual - fit.result, (nearby - fit.result) / math.log1p(PROBE)
    size, length, along = _norm(error), _norm(effect), float(np.nansum(error * effect))
    if not (size > 0 and length > 0) or abs(along) < ALIGNED * size * length:
        return None
    step = max(-STRIDE, min(STRIDE, along / length**2))
    for _ in range(4):
        value = fit.value * math.exp(step)
        found = rerun(constant.using(value))
        if found is not None and _norm(actual - found) < fit.error * ENOUGH:
            return _Fit(value, found, _norm(actual - found))
        step /= 2
    return None


def _norm(values: Array) -> float:
    return float(np.linalg.norm(values[np.isfinite(values)]))
