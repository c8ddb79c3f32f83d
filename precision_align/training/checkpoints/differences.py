"""What a comparison of two checkpoints found, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precision_align.core.terms import Term


class Fate(Term):
    """What became of one tensor."""

    EQUAL = "equal"
    ROUNDED = "rounded"  # the other dtype's nearest values
    TRANSPOSED = "transposed"
    PADDED = "padded"
    TIED = "tied"  # left out, and equal to one that is there
    EXTRA = "extra"
    DIFFERS = "differs"
    SHAPE = "shape"
    MISSING = "missing"
    BROKEN = "broken"  # holds NaN or infinities that the reference does not
    UNREADABLE = "unreadable"


FAULTS = frozenset({Fate.DIFFERS, Fate.SHAPE, Fate.MISSING, Fate.BROKEN, Fate.UNREADABLE})


@dataclass(frozen=True)
class TensorFate:
    """One tensor of the reference (of the candidate, for what is extra).

    ``name``: the reference's; ``partner``: how the candidate calls it; ``layout``: how a fused one lies; ``dtypes`` and
    ``shapes``: of both sides; ``metrics``: of :class:`~precision_align.numerics.metrics.Difference`, empty where values
    were not compared; ``note``: what else there is to say.
    """

    name: str
    fate: Fate
    partner: str = ""
    layout: str = ""
    dtypes: tuple[str, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        finite = {name: value if math.isfinite(value) else str(value) for name, value in self.metrics.items()}
        shapes = [list(shape) for shape in self.shapes]
        return {**vars(self), "fate": str(self.fate), "shapes": shapes, "dtypes": list(self.dtypes), "metrics": finite}


@dataclass(frozen=True)
class CheckpointReport:
    """What became of every tensor of two checkpoints, in the reference's order, extra ones last."""

    reference: str
    candidate: str
    kinds: tuple[str, str]
    fates: Sequence[TensorFate]
    notes: Sequence[str] = ()

    @property
    def faults(self) -> tuple[TensorFate, ...]:
        """The tensors that are lost or other than they should be."""
        return tuple(fate for fate in self.fates if fate.fate in FAULTS)

    def count(self) -> dict[str, int]:
        """How many tensors met each fate, in the order of :class:`Fate`."""
        found = [fate.fate for fate in self.fates]
        return {str(kind): found.count(kind) for kind in Fate if kind in found}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "kinds": list(self.kinds),
            "equal": not self.faults,
            "counts": self.count(),
            "tensors": [fate.to_dict() for fate in self.fates],
            "notes": list(self.notes),
        }
