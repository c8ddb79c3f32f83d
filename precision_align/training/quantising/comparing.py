"""Module by module: what quantising cost, from two dumps of the same inputs."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.errors import NothingInCommon
from precision_align.core.keys import Key
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.storage.base import Dump
from precision_align.storage.opening import open_dump
from precision_align.training.quantising.results import Exceeded, ModuleLoss, QuantReport, Spread

CODES = {"quint8": (0, 255), "qint8": (-128, 127), "qint32": (-(2**31), 2**31 - 1), "int8": (-128, 127)}
CLIPPED = 1e-3  # share of values out of reach; observers that cut outliers on purpose give away less
UNUSED = 0.25  # of the codes' range: a scale four times too wide loses two of eight bits
LOST = 20.0  # decibels lost in one module: 8 bits over a normal distribution leave 40
BEYOND = 0.01  # of the calibrated range: less is the scatter of a few samples
_SMALLEST_SCALE = 2.0**-126  # a subnormal scale has lost its own digits


def compare_quantised(
    reference: Dump | str | os.PathLike[str],
    candidate: Dump | str | os.PathLike[str],
    calibration: Dump | str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> QuantReport:
    """Compare a quantised run with one in high precision, recorded on the same inputs with full payloads.

    ``calibration``: a dump of the high-precision model on the inputs that the scales were taken from; then modules
    whose range the reference's inputs exceed are named. ``progress``: told (outputs compared, outputs).
    Raises the errors of the dump reader, NothingInCommon.
    """
    ours, theirs = _open(reference), _open(candidate)
    left, right = dict(_list_tensors(ours)), dict(_list_tensors(theirs))
    outputs = [name for name in right if name in left and right[name].key.role == Role.OUTPUT]
    if not outputs:
        raise NothingInCommon(
            f"{_name(reference)} and {_name(candidate)} have no module output in common that both hold in full: record "
            "both on the same inputs, with --payload full"
        )
    modules = list[ModuleLoss]()
    for done, name in enumerate(outputs):
        progress(done, len(outputs))
        modules += _judge(ours, theirs, left, right, name)
    exceeded = () if calibration is None else tuple(find_exceeded(_open(calibration), ours))
    notes = [
        f"{theirs_only} outputs are in one run only" for theirs_only in [len(right) - len(left)] if theirs_only > 0
    ]
    return QuantReport(_name(reference), _name(candidate), modules, exceeded, notes=notes)


def _open(dump: Dump | str | os.PathLike[str]) -> Dump:
    return open_dump(dump) if isinstance(dump, (str, os.PathLike)) else dump


def _name(dump: Dump | str | os.PathLike[str]) -> str:
    return str(dump) if isinstance(dump, (str, os.PathLike)) else str(getattr(dump, "path", "a dump"))


_Place = tuple[int, int, int, str, int, Role, str]


def _list_tensors(dump: Dump) -> Iterator[tuple[_Place, TensorRecord]]:
    """Inputs and outputs of module calls that are held in full, in the order of the calls."""
    for record in dump.records:
        key = record.key
        wanted = key.source == Source.MODULE and key.phase == Phase.FORWARD and key.pass_ == Pass.FIRST
        if wanted and key.role in (Role.INPUT, Role.OUTPUT) and record.tier == Tier.FULL:
            yield _place(key), record


def _place(key: Key) -> _Place:
    return key.step, key.micro, key.rank, key.scope, key.call, key.role, key.path


def read_numbers(dump: Dump, record: TensorRecord) -> Array:
    """The real numbers of a tensor, float64: quantised codes are taken off their scale."""
    values = dump.values(record.key).astype(np.float64)
    if "scale" in record.extra:
        return (values - float(record.extra.get("zero_point", 0))) * float(record.extra["scale"])
    if "scales" in record.extra:
        shape = [1] * values.ndim
        shape[int(record.extra.get("axis", 0))] = -1
        zeros = np.asarray(record.extra.get("zero_points", 0.0), dtype=np.float64)
        scales = np.asarray(record.extra["scales"], dtype=np.float64)
        return np.asarray((values - zeros.reshape(shape if zeros.size > 1 else [1])) * scales.reshape(shape))
    return values


def measure_sqnr(reference: Array, candidate: Array) -> float:
    """10 log10 of signal over quantisation noise, in decibels; infinite for equal tensors, NaN for non-finite ones."""
    known = np.isfinite(reference) & np.isfinite(candidate)
    if not known.all():
        return math.nan
    signal, noise = float(np.square(reference).sum()), float(np.square(candidate - reference).sum())
    if not noise:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def measure_spread(values: Array) -> Spread:
    """The distribution of the finite values; all NaN where there are none."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return Spread(*(math.nan,) * 6)
    low, high = np.quantile(finite, (0.001, 0.999))
    return Spread(
        float(finite.min()), float(finite.max()), float(finite.mean()), float(finite.std()), float(low), float(high)
    )


def _judge(
    ours: Dump,
    theirs: Dump,
    left: Mapping[_Place, TensorRecord],
    right: Mapping[_Place, TensorRecord],
    name: _Place,
) -> Iterator[ModuleLoss]:
    record = right[name]
    before, after = read_numbers(ours, left[name]), read_numbers(theirs, record)
    if before.shape != after.shape or record.dtype.startswith(("int64", "bool")):
        return
    sqnr = measure_sqnr(before, after)
    given = _measure_inputs(ours, theirs, left, right, name)
    loss = given - sqnr if math.isfinite(given) and math.isfinite(sqnr) else math.nan
    scale, zero, clipped, used = _measure_codes(theirs, record, before)
    spreads = measure_spread(before), measure_spread(after)
    # a count of n scatters by its root: one value of a small output proves no share
    sure = clipped - 3 * math.sqrt(CLIPPED / max(before.size, 1))
    low, high = CODES.get(record.dtype, (0, 0))
    # wide enough, but for what an observer cuts, and not where the values are
    shifted = scale * (high - low) >= 0.99 * (spreads[0].maximum - spreads[0].minimum)
    problems = tuple(_find_problems(record, scale, zero, sure, used, loss, sqnr))
    problems = tuple("codes shifted" if shifted and problem == "clipped" else problem for problem in problems)
    step, scope, path = name[0], name[3], name[6]
    yield ModuleLoss(scope, path, step, sqnr, loss, *spreads, record.dtype, scale, zero, clipped, used, problems)


def _measure_inputs(
    ours: Dump,
    theirs: Dump,
    left: Mapping[_Place, TensorRecord],
    right: Mapping[_Place, TensorRecord],
    name: _Place,
) -> float:
    """The worst SQNR among the inputs of the same call; NaN where none is held on both sides."""
    *call, _, _ = name
    found = []
    for place, record in right.items():
        if list(place[:5]) == call and place[5] == Role.INPUT and place in left:
            values = read_numbers(ours, left[place]), read_numbers(theirs, record)
            if values[0].shape == values[1].shape:
                found.append(measure_sqnr(*values))
    return min(found, default=math.nan)


def _measure_codes(dump: Dump, record: TensorRecord, before: Array) -> tuple[float, float, float, float]:
    """(scale, zero point, clipped share, used share); NaN for an output that is not quantised by one scale."""
    if "scale" not in record.extra or record.dtype not in CODES:
        return (math.nan,) * 4
    scale, zero = float(record.extra["scale"]), float(record.extra.get("zero_point", 0))
    low, high = CODES[record.dtype]
    reach = sorted(((low - zero) * scale, (high - zero) * scale))
    # half a step beyond the last code still rounds to it
    outside = (before < reach[0] - abs(scale) / 2) | (before > reach[1] + abs(scale) / 2)
    codes = dump.values(record.key)
    used = (int(codes.max()) - int(codes.min())) / (high - low) if codes.size else math.nan
    return scale, zero, float(outside.mean()) if before.size else math.nan, used


def _find_problems(
    record: TensorRecord, scale: float, zero: float, clipped: float, used: float, loss: float, sqnr: float
) -> Iterator[str]:
    if "scale" in record.extra:
        if not math.isfinite(scale) or scale < _SMALLEST_SCALE:
            yield "bad scale"
        low, high = CODES.get(record.dtype, (-math.inf, math.inf))
        if not low <= zero <= high:
            yield "bad zero point"
    if clipped > CLIPPED:
        yield "clipped"
    if used < UNUSED:
        yield "range unused"
    if loss > LOST:
        yield "loses much"
    if math.isnan(sqnr):
        yield "not finite"


def find_exceeded(calibration: Dump, real: Dump) -> Iterator[Exceeded]:
    """Module inputs that leave the range of all calibration inputs of the same module, widest first."""
    ranges: dict[tuple[str, str], tuple[float, float]] = {}
    for place, record in _list_tensors(calibration):
        if place[5] == Role.INPUT:
            low, high = _span(read_numbers(calibration, record))
            known = ranges.get((place[3], place[6]), (math.inf, -math.inf))
            ranges[place[3], place[6]] = min(known[0], low), max(known[1], high)
    found: dict[tuple[str, str], Exceeded] = {}
    for place, record in _list_tensors(real):
        name = place[3], place[6]
        if place[5] == Role.INPUT and name in ranges:
            exceeded = _measure_exceeded(*name, ranges[name], read_numbers(real, record))
            if exceeded.beyond > BEYOND and exceeded.beyond > found.get(name, exceeded).beyond * (name in found):
                found[name] = exceeded
    yield from sorted(found.values(), key=lambda exceeded: -exceeded.beyond)


def _span(values: Array) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (math.inf, -math.inf)


def _measure_exceeded(scope: str, path: str, calibrated: tuple[float, float], values: Array) -> Exceeded:
    low, high = _span(values)
    width = calibrated[1] - calibrated[0] or 1.0
    beyond = max(calibrated[0] - low, high - calibrated[1], 0.0) / width
    outside = (values < calibrated[0]) | (values > calibrated[1])
    return Exceeded(scope, path, calibrated, (low, high), beyond, float(outside.mean()) if values.size else 0.0)
