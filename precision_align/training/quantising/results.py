"""What a comparison of a quantised run with its high-precision one found, as plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Spread:
    """The distribution of a tensor's finite values; ``low`` and ``high``: the 0.1 % and 99.9 % quantiles."""

    minimum: float
    maximum: float
    mean: float
    deviation: float
    low: float
    high: float


@dataclass(frozen=True)
class ModuleLoss:
    """One output of one module call in both runs.

    ``sqnr``: of the output, in decibels; ``loss``: by how much that is under the input's; ``before`` and ``after``: the
    distributions; ``scale``, ``zero_point``, ``dtype``: of a quantised output; ``clipped``: share of the reference's
    values that its codes cannot reach; ``used``: share of the codes' range that occurs; ``problems``: codes of what is
    wrong with scale and range.
    """

    scope: str
    path: str
    step: int
    sqnr: float
    loss: float
    before: Spread
    after: Spread
    dtype: str
    scale: float = math.nan
    zero_point: float = math.nan
    clipped: float = math.nan
    used: float = math.nan
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Exceeded:
    """A module whose inputs leave the range that calibration saw: by how much of that range, and how many values."""

    scope: str
    path: str
    calibrated: tuple[float, float]
    real: tuple[float, float]
    beyond: float
    share: float


@dataclass(frozen=True)
class Sensitivity:
    """One module switched to the other precision.

    ``alone``: the output's SQNR where it alone is quantised; ``gain``: what the quantised model gains where it alone is
    in high precision; ``weight``: SQNR of its weight, NaN where it cannot be read.
    """

    scope: str
    alone: float
    gain: float
    weight: float = math.nan


@dataclass(frozen=True)
class QuantReport:
    """What became of a quantised model.

    ``modules`` in the order of their calls; ``sensitivities`` most sensitive first; ``keep``: what to keep in high
    precision, with the output's SQNR after each; ``base``: that of the quantised model as it is.
    """

    reference: str
    candidate: str
    modules: Sequence[ModuleLoss]
    exceeded: Sequence[Exceeded] = ()
    sensitivities: Sequence[Sensitivity] = ()
    base: float = math.nan
    keep: Sequence[tuple[str, float]] = field(default=())
    notes: Sequence[str] = ()

    @property
    def faults(self) -> tuple[ModuleLoss, ...]:
        """Modules with something wrong in scale or range."""
        return tuple(module for module in self.modules if module.problems)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; numbers that are not finite become their names."""
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "modules": [_plain(asdict(module)) for module in self.modules],
            "exceeded": [_plain(asdict(module)) for module in self.exceeded],
            "sensitivities": [_plain(asdict(module)) for module in self.sensitivities],
            "base": _plain(self.base),
            "keep": [{"scope": scope, "sqnr": _plain(value)} for scope, value in self.keep],
            "notes": list(self.notes),
        }


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value
