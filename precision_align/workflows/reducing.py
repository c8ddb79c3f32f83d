"""The smallest model that still shows a fault: cut one dimension after the other, and judge each cut in lockstep."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

from precision_align.core.errors import PrecisionAlignError, UsageError
from precision_align.core.terms import Verdict
from precision_align.reporting.report import Report
from precision_align.training.reductions import Dimension, cut, find_dimensions
from precision_align.workflows.lockstep import lockstep

Build = Callable[[dict[str, Any]], tuple[Any, Any, Any]]
Judge = Callable[[Any, Any, Any], Report]


@dataclass(frozen=True)
class Trial:
    """One cut: by which ``factor`` the ``dimension`` was divided, whether the fault was still there, and why not."""

    dimension: str
    factor: float
    shows: bool
    note: str = ""


@dataclass(frozen=True)
class Reduction:
    """The smallest configuration that shows the fault.

    ``fault``: operator and module pattern (digits as *) of the first divergence; ``parameters`` before and after;
    ``factor``: their ratio; ``config``: the reduced configuration; ``trials``: all that were made.
    """

    fault: str
    config: Mapping[str, Any]
    parameters: tuple[int, int]
    trials: Sequence[Trial]

    @property
    def factor(self) -> float:
        """By how much the number of parameters shrank."""
        return self.parameters[0] / max(self.parameters[1], 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "fault": self.fault,
            "config": dict(self.config),
            "parameters": list(self.parameters),
            "factor": self.factor,
            "trials": [asdict(trial) for trial in self.trials],
        }


def reduce_model(
    build: Build,
    config: Mapping[str, Any],
    *,
    judge: Judge | None = None,
    progress: Callable[[Trial], None] = lambda trial: None,
) -> Reduction:
    """Cut a configuration down as far as the first divergence stays the same.

    ``build(config)`` returns (reference, candidate, inputs) of any size; ``config``: constructor arguments or a Hugging
    Face configuration as a dictionary (see :mod:`~precision_align.training.reductions` for the names that are known).
    The same means: same operator, same module but for numbers in its name, same phase. Of each dimension the largest
    cut is tried first; where the fault vanishes, the place between is found by bisection. A configuration that cannot
    be built counts as one without the fault. ``judge``: compares two modules on inputs, default
    :func:`~precision_align.workflows.lockstep.lockstep`. Raises UsageError where the uncut model cannot be built or
    shows no fault.
    """
    reducer = _Reducer(build, judge or lockstep, progress)
    fault, size = reducer.begin(dict(config))
    if fault is None:
        raise UsageError(
            "the model as it is shows no divergence, so there is nothing to keep in a cut; give inputs that show it"
        )
    reducer.fault = fault
    current = dict(config)
    for dimension in find_dimensions(config):
        current = cut(current, dimension, reducer.search(current, dimension))
    _, smallest = reducer.run(current)
    return Reduction(fault, current, (size, smallest), tuple(reducer.trials))


class _Reducer:
    """Makes trials and remembers them."""

    def __init__(self, build: Build, judge: Judge, progress: Callable[[Trial], None]) -> None:
        self._build, self._judge, self._progress = build, judge, progress
        self.fault: str | None = None
        self.trials: list[Trial] = []

    def begin(self, config: dict[str, Any]) -> tuple[str | None, int]:
        """As :meth:`run`, of the uncut configuration. Raises UsageError where the user's code fails at that."""
        try:
            return self.run(config)
        except PrecisionAlignError:
            raise
        except Exception as error:  # the user's code may raise anything
            raise UsageError(
                f"the uncut configuration cannot be built or run ({type(error).__name__}: {error}); BUILD takes it as "
                "a dictionary and returns (reference, candidate, inputs)"
            ) from error

    def run(self, config: dict[str, Any]) -> tuple[str | None, int]:
        """(what the first divergence is, number of the reference's parameters)."""
        reference, candidate, inputs = self._build(dict(config))
        size = sum(parameter.numel() for parameter in reference.parameters())
        return describe_fault(self._judge(reference, candidate, inputs)), size

    def search(self, config: dict[str, Any], dimension: Dimension) -> int | Fraction:
        """The largest factor at which the fault is still there; 1 where any cut hides it."""
        factor = self._search_factors(config, dimension)
        if dimension.exact or factor == dimension.factors[0]:
            return factor
        hides = min(other for other in dimension.factors if other > factor)
        return self._search_sizes(config, dimension, hides, factor)

    def _search_sizes(self, config: dict[str, Any], dimension: Dimension, hides: int, shows: int) -> int | Fraction:
        """The largest factor between two, by the sizes of the first field that lie between."""
        whole = int(config[dimension.fields[0]])
        low, high, best = whole // hides, whole // shows, Fraction(shows)
        while high - low > 1:
            middle = (low + high) // 2
            if self._shows(config, dimension, Fraction(whole, middle)):
                high, best = middle, Fraction(whole, middle)
            else:
                low = middle
        return best

    def _search_factors(self, config: dict[str, Any], dimension: Dimension) -> int:
        factors = list(dimension.factors)
        if self._shows(config, dimension, factors[0]):
            return factors[0]
        low, high = 1, len(factors)  # factors[0] hides it; past the end stands 1, which shows it
        while low < high:
            middle = (low + high) // 2
            if self._shows(config, dimension, factors[middle]):
                high = middle
            else:
                low = middle + 1
        return factors[low] if low < len(factors) else 1

    def _shows(self, config: dict[str, Any], dimension: Dimension, factor: int | Fraction) -> bool:
        note = ""
        try:
            fault, _ = self.run(cut(config, dimension, factor))
        except Exception as error:  # the user's code, at a size that it may never have seen
            fault, note = None, f"{type(error).__name__}: {error}"
        else:
            note = "" if fault == self.fault else f"shows {fault or 'nothing'} instead"
        trial = Trial(dimension.name, float(factor), fault == self.fault, note)
        self.trials.append(trial)
        self._progress(trial)
        return trial.shows


def describe_fault(report: Report) -> str | None:
    """Operator, module (its numbers as *) and phase of the first divergence; None where there is none."""
    if report.verdict != Verdict.DIVERGED or report.first is None:
        return None
    first = report.first
    return f"{first.op or first.site} in {re.sub(r'[0-9]+', '*', first.scope) or 'the model itself'} ({first.phase})"
