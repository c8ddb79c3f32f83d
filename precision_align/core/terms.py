"""The closed vocabularies of the field. Every member equals its string, so JSON needs no translation."""

from __future__ import annotations

from enum import Enum


class Term(str, Enum):
    """A back-port of StrEnum (Python 3.11) for the Python 3.9 of the live half."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(str(self.value), spec)


class Verdict(Term):
    """What a report says of two runs as a whole."""

    ALIGNED = "aligned"
    DIVERGED = "diverged"
    NOT_COMPARABLE = "not comparable"


class Status(Term):
    """What was found of one record."""

    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    RANDOM = "random"
    NONDETERMINISTIC = "nondeterministic"
    MODE = "mode"
    PROPAGATED = "propagated"
    INCONCLUSIVE = "inconclusive"
    MISSING = "missing"


class Phase(Term):
    """The part of a training step a record belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STEP = "step"


class Site(Term):
    """Which code a divergence blames.

    ``module``: the leaf computed it; ``inline``: code in that module's own forward that no child covers.
    """

    MODULE = "module"
    INLINE = "inline"
    INPUTS = "inputs"
    PARAMETERS = "parameters"
    OPTIMIZER = "optimizer"


class Kind(Term):
    """The nature of a divergence: a fault, a candidate that differs from itself, an arithmetic mode (HF32, saturation),
    or a differing random mask.
    """

    ORIGIN = "origin"
    NONDETERMINISTIC = "nondeterministic"
    MODE = "mode"
    RANDOM = "random"


class Way(Term):
    """How a module of the candidate came to its partner in the reference, or why it has none.

    ``matched``: the same name, wrappers aside; ``mapped``: by the rename file; ``content``: by weights, outputs, and
    where the calls stand; ``fused``: one side has in one module what the other has in several; ``unresolved``: more
    than one partner would fit, or none does for certain.
    """

    MATCHED = "matched"
    MAPPED = "mapped"
    CONTENT = "by content"
    FUSED = "fused"
    INSERTED = "inserted"
    REMOVED = "removed"
    UNRESOLVED = "unresolved"


class Source(Term):
    """Which tap a record came from."""

    MODULE = "module"
    FUNCTION = "function"
    ATEN = "aten"
    POINT = "point"
    COLLECTIVE = "collective"
    PARAMETERS = "parameters"
    OPTIMIZER = "optimizer"


class Role(Term):
    """What a recorded tensor is to the call it belongs to."""

    INPUT = "input"
    OUTPUT = "output"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    STATE = "state"
    LOSS = "loss"


class Pass(Term):
    """First execution, or a recomputation by activation checkpointing."""

    FIRST = "first"
    RECOMPUTE = "recompute"


class Tier(Term):
    """How much of a tensor is kept, from least to most."""

    FINGERPRINT = "fingerprint"
    STATISTICS = "statistics"
    SKETCH = "sketch"
    SAMPLE = "sample"
    FULL = "full"
