"""What a comparison found, as plain data that survives a trip through JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precision_align.core.terms import Kind, Phase, Role, Site, Status, Verdict, Way

# In the note of a record that a time budget left unjudged.
OUT_OF_TIME = "not judged: the time budget was used up"
# Before a test's name: the metric that says how small an error that test would have seen.
DETECTABLE = "detectable_"


@dataclass(frozen=True)
class Limit:
    """A bound that a metric was held against: which metric, its value, and where it comes from."""

    metric: str
    value: float
    origin: str


@dataclass(frozen=True)
class Explanation:
    """A guess at the cause: ``residual`` is what is left of the error under it, in units of the error without it."""

    name: str
    text: str
    residual: float


@dataclass(frozen=True)
class Divergence:
    """One place where the candidate computes something else than the reference.

    ``scope``: module path without wrapper parts, "" = root; ``site``: whose code; ``call``: 0-based call of that module
    in its step; ``op``: class or operator name; ``source``: file:line of the user's code; ``evidence``: which provider
    said so, in words; ``explanations``: ranked; ``mapping``: the operator library's row and its cases, or None.
    """

    scope: str
    site: Site
    phase: Phase
    call: int
    step: int
    rank: int
    op: str
    source: str
    kind: Kind
    metrics: Mapping[str, float]
    limit: Limit | None
    evidence: str
    explanations: Sequence[Explanation] = ()
    mapping: Mapping[str, Any] | None = None
    key: str = ""


@dataclass(frozen=True)
class RecordResult:
    """The verdict on one recorded tensor of the candidate (or of the reference, when the candidate lacks it).

    ``key``: text form of the candidate's key; ``scope``, ``op``, ``site``: whose code made it; ``evidence``: "hash",
    "replay", "sampled" (replay of a part of the values), "certificate", "replay+certificate", "raw", "sketch",
    "statistics" and "sample" (raw, where no more is stored), "forced" (raw, of a candidate forced from the reference),
    "replay+forced", "sum" (total against shares), "ranks" (a collective's output against what all ranks gave),
    "structure" or "" where nothing could judge it; ``metrics``: all that were computed, raw ones with the prefix
    "raw_"; ``note``: the reason in words; ``order``: position in the candidate's walk; ``source``: file:line of the
    user's code that made the call; ``found``, ``found_note``: status and note before a rule changed them, None and ""
    where none did.
    """

    key: str
    scope: str
    site: Site
    phase: Phase
    role: Role
    path: str
    call: int
    step: int
    micro: int
    rank: int
    op: str
    status: Status
    evidence: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    limit: Limit | None = None
    note: str = ""
    nbytes: int = 0
    order: int = 0
    source: str = ""
    found: Status | None = None
    found_note: str = ""


@dataclass(frozen=True)
class Coverage:
    """How much of what was recorded was judged, in records and bytes; ``sampled``: judged records of which only a part
    of the values was looked at."""

    recorded: int
    judged: int
    recorded_bytes: int
    judged_bytes: int
    sampled: int = 0

    @property
    def share(self) -> float:
        """Judged records / recorded records; 0 where nothing was recorded."""
        return self.judged / self.recorded if self.recorded else 0.0


@dataclass(frozen=True)
class ModulePair:
    """A module of the candidate and its partner: paths without wrapper parts, "" where a side has none ("(root)" is the
    model itself); of a fused one all parts, joined by " + ". ``note``: on what grounds, in words.
    """

    candidate: str
    reference: str
    way: Way
    note: str = ""


@dataclass(frozen=True)
class Curve:
    """One scalar series of both runs: steps and values, and the step where they part (None: they do not)."""

    name: str
    reference: Sequence[tuple[int, float]]
    candidate: Sequence[tuple[int, float]]
    onset: int | None = None
    band: float = 0.0


@dataclass(frozen=True)
class ErrorMap:
    """Where the error of one tensor lies and how it spreads, in few bins: to look at, not to judge by.

    ``key``: of the record; ``against``: "golden" (its float64 replay) or "reference"; ``shape``: of the tensor.
    ``axes``: the two dimensions that rows and columns of ``cells`` stand for, empty where fewer than two have more than
    one element; ``cells``: up to 64 x 64, the largest |actual - expected| in each, over all other dimensions (of a
    dimension longer than 64, bin i begins at element i * size // 64);
    ``profiles``: (dimension, up to 64 such values) of each dimension with more than one element.
    ``bounds``: smallest and largest finite value of both sides; ``expected``, ``actual``: up to 64 counts of equal bins
    between them. ``decades``: whole powers of ten around the error; ``errors``: counts of equal bins of its logarithm
    between them; ``equal``: elements without error; ``nonfinite``: elements finite on one side only, or infinities
    and NaNs that differ: their error is Inf. Complex values count by their modulus.
    """

    key: str
    against: str
    shape: Sequence[int]
    axes: Sequence[int]
    cells: Sequence[Sequence[float]]
    profiles: Sequence[tuple[int, Sequence[float]]]
    bounds: tuple[float, float]
    expected: Sequence[int]
    actual: Sequence[int]
    decades: tuple[int, int]
    errors: Sequence[int]
    equal: int
    nonfinite: int


@dataclass(frozen=True)
class Findings:
    """The whole result of a comparison.

    ``frontier``: all local failures without a failing producer, then modes, then random masks; ``coverage``: by phase;
    ``reference`` and ``candidate``: run information as plain mappings (empty where a side is absent); ``curves``: loss
    and other series; ``roots``: scopes whose calls no other module makes; ``interrupted``: a run was cut off, and the
    other side has records without a partner for it; ``modules``: which module was held against which; ``error_maps``:
    of the first divergence and a few places of the frontier, where their values are stored.
    """

    verdict: Verdict
    first: Divergence | None
    frontier: Sequence[Divergence]
    records: Sequence[RecordResult]
    notes: Sequence[str]
    coverage: Mapping[Phase, Coverage]
    reference: Mapping[str, Any] = field(default_factory=dict)
    candidate: Mapping[str, Any] = field(default_factory=dict)
    curves: Sequence[Curve] = ()
    roots: Sequence[str] = ()
    interrupted: bool = False
    modules: Sequence[ModulePair] = ()
    error_maps: Sequence[ErrorMap] = ()

    @property
    def is_partial(self) -> bool:
        """Whether a time budget left records unjudged."""
        return any(OUT_OF_TIME in record.note for record in self.records)
