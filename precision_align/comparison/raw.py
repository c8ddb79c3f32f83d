"""Raw evidence: how far two tensors are apart. Weak, because accumulated error is in it, but always at hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from precision_align.comparison.deadlines import Deadline
from precision_align.comparison.journals import Journal
from precision_align.core.dtypes import Array, Dtype, dtype_of
from precision_align.core.errors import DumpDamaged
from precision_align.core.records import TensorRecord
from precision_align.core.results import OUT_OF_TIME
from precision_align.core.terms import Tier
from precision_align.numerics.kernels import Kernel, choose_kernel
from precision_align.numerics.limits import raw_limit
from precision_align.numerics.metrics import Difference, measure, measure_words
from precision_align.numerics.sampling import describe_power
from precision_align.numerics.sketches import fold, relative_distance
from precision_align.numerics.spreads import spread_words
from precision_align.storage.base import Dump
from precision_align.storage.mapping import release_pages

# Below this a tensor's pages cost little, and the storage lets go of them now and then.
RELEASE_BYTES = 32 << 20

# Standard deviations of a sketch's norm that its stated power allows for: one record in 740 is seen a little later.
SKETCH_SIGMAS = 3.0
# How many exact zeros more or less mean nothing: a few by chance, and 2 % of a mask or a ReLU, whose decisions at ties
# and random draws differ by less from some thousand values on.
ZEROS = 16
ZERO_SHARE = 0.02

# How far apart two tensors seem whose hashes differ and whose statistics do not.
UNSEEN = 1e-12

# Counts that a report names only where there are any; the last fields.
_PATTERN = ("raw_nan_actual", "raw_nan_expected", "raw_inf_actual", "raw_inf_expected")
_NAMES = [f"raw_{name}" for name in Difference._fields[: -len(_PATTERN)]]

Pair = tuple[TensorRecord, "TensorRecord | None"]


# The metric of a gap's size, by what was compared: values or samples, sketches, statistics.
SIZES = ("raw_over_max", "raw_sketch_rel_l2", "raw_statistics_moved")


class Gap(NamedTuple):
    """The raw difference of one pair of records.

    ``equal``: bit for bit; ``close``: within the raw limit of the dtype, so not a difference worth the name; ``known``:
    something could be compared; ``metrics``: with the prefix "raw_"; ``how``: payload, sample, sketch, statistics or
    hash.
    """

    equal: bool
    close: bool
    known: bool
    metrics: Mapping[str, float]
    limit: float
    how: str
    note: str = ""

    @property
    def metric(self) -> str:
        """Which metric the limit is for."""
        return next((name for name in SIZES if name in self.metrics), SIZES[0])

    @property
    def size(self) -> float:
        """Its value; Inf where nothing but a difference is known."""
        return self.metrics.get(self.metric, math.inf)


class RawComparer:
    """Measures pairs of records of two dumps, each once."""

    def __init__(
        self,
        reference: Dump | None,
        candidate: Dump,
        journal: Journal | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        self._deadline = deadline or Deadline()
        self._reference = reference
        self._candidate = candidate
        self._journal = journal or Journal()
        self._gaps: dict[tuple[str, str], Gap] = {}

    def gap(self, candidate: TensorRecord, reference: TensorRecord | None) -> Gap:
        """How far a pair is apart; unknown where one side is missing or was not stored."""
        if reference is None or self._reference is None:
            return Gap(False, False, False, {}, 0.0, "", "no partner in the reference")
        place = (str(candidate.key), str(reference.key))
        found = self._gaps.get(place)
        if found is None:
            found = self._gaps[place] = self._measure(candidate, reference, place)
        return found

    def read_pair(self, key: str) -> tuple[Array, Array] | None:
        """The numbers of a record of the candidate and of its partner; None where one is not stored.

        Only of pairs that :meth:`gap` has measured. Raises DumpDamaged.
        """
        partner = next((theirs for ours, theirs in self._gaps if ours == key), None)
        if partner is None or self._reference is None:
            return None
        sides = ((self._candidate, key), (self._reference, partner))
        try:
            actual, expected = (dump.values(dump.find(text).key) for dump, text in sides)
        except KeyError:
            return None
        return actual, expected

    @cached_property
    def _kernel(self) -> Kernel:
        return choose_kernel()

    @property
    def is_out_of_time(self) -> bool:
        """Whether nothing may be read any more."""
        return self._deadline.is_over()

    def glance(self, candidate: TensorRecord, reference: TensorRecord | None) -> float:
        """How far a pair seems apart, by what the index holds: 0 where nothing says that it is."""
        if reference is None or self._reference is None or is_equal(candidate, reference):
            return 0.0
        if candidate.shape != reference.shape or not _same_pattern(candidate, reference):
            return math.inf
        if candidate.tier == reference.tier == Tier.SKETCH:
            return self._measure_summary(candidate, reference, 0.0).size
        return max(_measure_statistics(candidate, reference, 0.0).metrics.get("raw_statistics_moved", 0.0), UNSEEN)

    def are_equal(self, pairs: Iterable[Pair]) -> bool:
        """Whether every pair is bit-equal by hash; False where a hash is missing."""
        return all(other is not None and is_equal(record, other) for record, other in pairs)

    def are_close(self, pairs: Iterable[Pair]) -> bool:
        """Whether every pair is within its raw limit; False where one is unknown."""
        return all(self.gap(record, other).close for record, other in pairs)

    def find_largest(self, pairs: Iterable[Pair]) -> float:
        """The largest raw difference, over the largest value; 0 where all are bit-equal, Inf where one is unknown."""
        largest = 0.0
        for record, other in pairs:
            gap = self.gap(record, other)
            if not gap.equal:
                largest = max(largest, gap.size if gap.known else math.inf)
        return largest

    def _measure(self, candidate: TensorRecord, reference: TensorRecord, keys: tuple[str, str]) -> Gap:
        limit, *dtypes = _look_up(candidate.dtype, reference.dtype)
        if candidate.shape != reference.shape:
            note = f"shape {candidate.shape}, the reference has {reference.shape}"
            return Gap(False, False, True, {"raw_over_max": math.inf}, limit, "shape", note)
        if is_equal(candidate, reference):
            return _make_equal(limit)
        if dtypes[0].kind != dtypes[1].kind:
            note = f"dtype {candidate.dtype}, the reference has {reference.dtype}"
            return Gap(False, False, True, {"raw_over_max": math.inf}, limit, "dtype", note)
        return self._measure_values(candidate, reference, limit, ("gap", *keys))

    def _measure_values(
        self, candidate: TensorRecord, reference: TensorRecord, limit: float, place: tuple[str, ...]
    ) -> Gap:
        assert self._reference is not None
        known = self._journal.recall(*place)
        if known is not None:
            return Gap(*known)
        if self._deadline.is_over():
            return Gap(False, False, False, {}, limit, "", OUT_OF_TIME)
        try:
            actual, expected = read_words(self._candidate, candidate), read_words(self._reference, reference)
        except KeyError:
            return self._measure_summary(candidate, reference, limit)
        except DumpDamaged as error:
            return Gap(False, False, False, {}, limit, "", str(error))
        _, *dtypes = _look_up(candidate.dtype, reference.dtype)
        found = measure_words(actual, expected, *dtypes, release=_let_go(actual, expected), kernel=self._kernel)
        metrics = _name_metrics(found)
        close = found.nonfinite == 0 and found.over_max <= limit
        equal = found.mismatched == 0 and candidate.dtype == reference.dtype
        if not close:
            # Several times the work of the pass above, so only for what is a difference worth the name.
            release = _let_go(actual, expected)
            spread = spread_words(actual, expected, *dtypes, release=release, kernel=self._kernel)
            metrics.update({f"raw_{name}": value for name, value in spread.to_dict().items()})
        gap = Gap(equal, close, True, metrics, limit, "payload")
        self._journal.keep(gap, *place)
        return gap

    def _measure_summary(self, candidate: TensorRecord, reference: TensorRecord, limit: float) -> Gap:
        """Without payloads: samples, the sketches' distance, or what the statistics show."""
        assert self._reference is not None
        if Tier.SAMPLE in (candidate.tier, reference.tier):
            samples = self._candidate.sample(candidate.key), self._reference.sample(reference.key)
            if samples[0] is not None and samples[1] is not None:
                return _measure_samples(candidate, reference, samples[0], samples[1], limit)
        ours, theirs = self._candidate.sketch(candidate.key), self._reference.sketch(reference.key)
        if ours is not None and theirs is not None:
            size = min(len(ours), len(theirs))
            distance = relative_distance(fold(ours, size), fold(theirs, size))
            close = distance <= limit and _same_pattern(candidate, reference) and _same_zeros(candidate, reference)
            metrics = {"raw_sketch_rel_l2": distance, "raw_power": limit * (1 + SKETCH_SIGMAS / math.sqrt(2 * size))}
            note = f"sketch only: shows a relative L2 error from {metrics['raw_power']:.2g} on, wherever it stands"
            return Gap(False, close, True, metrics, limit, "sketch", note)
        return _measure_statistics(candidate, reference, limit)


@cache
def _look_up(candidate: str, reference: str) -> tuple[float, Dtype, Dtype]:
    """The raw limit of two dtypes, and their rows."""
    return max(raw_limit(candidate), raw_limit(reference)), dtype_of(candidate), dtype_of(reference)


@lru_cache(maxsize=16)  # limits are those of a few dtypes; most pairs of two long runs have one of these
def _make_equal(limit: float) -> Gap:
    return Gap(True, True, True, {}, limit, "hash")


def _measure_statistics(candidate: TensorRecord, reference: TensorRecord, limit: float) -> Gap:
    left, right = candidate.statistics, reference.statistics
    if left is None or right is None:
        note = "hashes differ and nothing else was stored" if candidate.is_hashed else candidate.reason
        return Gap(False, False, candidate.is_hashed and reference.is_hashed, {}, limit, "hash", note)
    scale = max(abs(right.minimum), abs(right.maximum), 1e-300)
    moved = max(abs(left.minimum - right.minimum), abs(left.maximum - right.maximum)) / scale
    norm = abs(left.l2 - right.l2) / max(right.l2, 1e-300)
    mean = abs(left.mean - right.mean) * math.sqrt(max(right.numel, 1)) / max(right.l2, 1e-300)
    worst = float(np.nanmax([moved, norm, mean, 0.0]))
    note = (
        f"statistics only: shows a common factor from {1 + limit:.6g} on, a shift, and what moves the extremes, the "
        "norm or the number of zeros; not values in the wrong places"
    )
    close = _same_pattern(candidate, reference) and _same_zeros(candidate, reference) and worst <= limit
    metrics = {"raw_statistics_moved": worst, "raw_power": limit}
    return Gap(False, close, True, metrics, limit, "statistics", note)


def _same_zeros(left: TensorRecord, right: TensorRecord) -> bool:
    """Whether about as many values are exactly zero: a lost column, tile or tail leaves zeros that a norm overlooks.

    Subnormal values that were flushed account for as many, and rounding makes a few zero or not.
    """
    ours, theirs = left.statistics, right.statistics
    if ours is None or theirs is None:
        return True
    allowed = ZEROS + ZERO_SHARE * max(ours.zero, theirs.zero) + abs(ours.subnormal - theirs.subnormal)
    return abs(ours.zero - theirs.zero) <= allowed


def _measure_samples(
    candidate: TensorRecord, reference: TensorRecord, actual: Array, expected: Array, limit: float
) -> Gap:
    """The elements that both sides kept, and the extremes, which the statistics have of all elements."""
    found = measure(actual, expected)
    apart, largest = [found.max_abs], found.max_abs / found.over_max if 0 < found.over_max < math.inf else 0.0
    ours, theirs = candidate.statistics, reference.statistics
    if ours is not None and theirs is not None and math.isfinite(theirs.minimum) and math.isfinite(ours.minimum):
        # no element is nearer to its partner than the extremes of all are to each other
        apart += [abs(ours.minimum - theirs.minimum), abs(ours.maximum - theirs.maximum)]
        largest = max(abs(theirs.minimum), abs(theirs.maximum))
    over = max(apart) / largest if largest else math.inf if max(apart) else 0.0
    found = found._replace(max_abs=max(apart), over_max=over)
    metrics = {**_name_metrics(found), "raw_sampled": float(actual.size)}
    close = found.nonfinite == 0 and over <= limit and _same_pattern(candidate, reference)
    return Gap(False, close, True, metrics, limit, "sample", describe_power(math.prod(candidate.shape)))


def _name_metrics(found: Difference) -> dict[str, float]:
    metrics = dict(zip(_NAMES, map(float, found)))
    for name, count in zip(_PATTERN, found[-len(_PATTERN) :]):
        if count:
            metrics[name] = float(count)
    return metrics


def read_words(dump: Dump, record: TensorRecord) -> Array:
    """The raw words of a record, where possible without a copy. Raises KeyError, DumpDamaged."""
    mapped = dump.map_payload(record.key)
    return dump.payload(record.key) if mapped is None else mapped


def _let_go(actual: Array, expected: Array) -> Callable[[int, int], None] | None:
    """What releases mapped pages of a large pair behind the kernel, so that memory stays flat; small ones may stay."""
    if max(actual.nbytes, expected.nbytes) < RELEASE_BYTES:
        return None
    flat = [words.reshape(-1) for words in (actual, expected) if words.flags.c_contiguous]

    def release(start: int, stop: int) -> None:
        for words in flat:
            release_pages(words[start:stop])

    return release


def is_equal(left: TensorRecord, right: TensorRecord) -> bool:
    """Bit for bit the same tensor, by dtype, shape and hash."""
    return left.is_hashed and (left.dtype, left.shape) == (right.dtype, right.shape) and left.has_hash_of(right)


def _same_pattern(left: TensorRecord, right: TensorRecord) -> bool:
    if left.statistics is None or right.statistics is None:
        return True
    return (left.statistics.nan, left.statistics.inf) == (right.statistics.nan, right.statistics.inf)
