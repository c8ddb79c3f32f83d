"""Reads one series from whatever a run left behind: a dump, a table, a log, or plain values."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Union

from precision_align.core.errors import LogUnreadable, UsageError
from precision_align.core.terms import Role
from precision_align.storage.base import Dump
from precision_align.training.logs import list_names, read_lines, read_log
from precision_align.training.series import Entry, Series, build_series, series_from_values
from precision_align.training.tables import read_csv, read_json, read_jsonl

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

SeriesSource = Union[str, "os.PathLike[str]", Iterable[tuple[int, float]], Dump, Series]

_LOW_PRECISIONS = ("bfloat16", "float16")
_RECORDS_LOOKED_AT = 2000  # enough to meet each kind of module of one step; a listing of all would take seconds
_DUMP_SUFFIXES = (".h5", ".hdf5")


def read_series(
    source: SeriesSource,
    name: str = "loss",
    *,
    pattern: str | None = None,
    duplicates: str = "error",
    role: str = "series",
) -> Series:
    """The series ``name`` of a run.

    ``source``: a path (dump folder or file, CSV, TSV, JSONL, JSON, trainer_state.json or a folder that holds one,
    plain log), an open dump, or (step, value) pairs. ``pattern``: for plain logs, see
    :func:`~precision_align.training.logs.read_log`; ``duplicates``: see
    :func:`~precision_align.training.series.build_series`; ``role``: what messages call values that have no path.
    Raises DumpError (unreadable, nothing there), UsageError.
    """
    if not name.strip():
        raise UsageError("the name of the series is empty; give one such as 'loss' or 'grad norm'")
    if isinstance(source, Series):
        return source
    if not isinstance(source, (str, os.PathLike)):
        if _is_dump(source):
            return _take_series(source, str(getattr(source, "path", role)), name)
        return series_from_values(name, _iterate(source, role), role, duplicates=duplicates)
    path = Path(source)
    if path.is_dir() and (path / "trainer_state.json").is_file():
        path = path / "trainer_state.json"
    if pattern is None and (path.is_dir() or path.suffix in _DUMP_SUFFIXES):
        return _read_dump(path, name)
    notes: list[str] = []
    entries = read_log(path, name, pattern) if pattern is not None else _read_text(path, name, notes)
    if not entries:
        raise LogUnreadable(_describe_absence(path, name, pattern))
    return build_series(name, entries, str(path), duplicates=duplicates, notes=notes)


def _is_dump(source: object) -> TypeGuard[Dump]:
    return hasattr(source, "series") and hasattr(source, "records")


def _iterate(source: object, role: str) -> Iterable[object]:
    if not isinstance(source, Iterable):
        raise UsageError(f"the {role} is a {type(source).__name__}; it must be a path or (step, value) pairs")
    return source


def _read_text(path: Path, name: str, notes: list[str]) -> list[Entry]:
    suffix = path.suffix.lower()
    if path.name.startswith("events.out.tfevents"):
        raise LogUnreadable(f"{path} is a TensorBoard event file; export the series as CSV (Step, Value) and give that")
    if suffix in (".csv", ".tsv"):
        return read_csv(path, name, notes)
    if suffix in (".jsonl", ".ndjson"):
        return read_jsonl(path, name, notes)
    if suffix == ".json":
        return read_json(path, name, notes)
    first = next((line for _, line in read_lines(path) if line.strip()), "")
    if _is_json_object(first):
        return read_jsonl(path, name, notes)
    return read_log(path, name)


def _is_json_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _describe_absence(path: Path, name: str, pattern: str | None) -> str:
    if pattern is not None:
        return f"no line of {path} matches the pattern {pattern!r}"
    names = list_names(line for _, line in islice(read_lines(path), 2000))
    hint = f"; it seems to hold {', '.join(repr(found) for found in names)}" if names else ""
    return (
        f"no line of {path} has a value of {name!r}{hint}. Name another series, or give a pattern with "
        "(?P<step>...) and (?P<value>...)"
    )


def _read_dump(path: Path, name: str) -> Series:
    from precision_align.storage.opening import open_dump  # loads h5py, which logs do not need

    return _take_series(open_dump(path), str(path), name)


def _take_series(dump: Dump, origin: str, name: str) -> Series:
    points = [point for point in dump.series if point.name == name]
    if not points:
        names = ", ".join(sorted({repr(point.name) for point in dump.series})) or "none"
        raise LogUnreadable(
            f"{origin} holds no series {name!r}; its series: {names}. Record one with recorder.log({name}=value)"
        )
    entries = [Entry(point.step, float(point.value), f"step {point.step}") for point in points]
    micro = len({point.step for point in points}) < len(points)
    notes = [f"{origin}: several values a step (micro-batches); their mean is compared"] if micro else []
    return build_series(name, entries, origin, duplicates="mean", precision=_find_precision(dump), notes=notes)


def _find_precision(dump: Dump) -> str:
    """The lowest floating dtype that module calls computed in, from autocast and the outputs; "" if none is seen."""
    calls = islice(dump.calls, _RECORDS_LOOKED_AT)
    records = islice(dump.records, _RECORDS_LOOKED_AT)
    seen = [dtype for call in calls for dtype in call.autocast.values()]
    seen += [record.dtype for record in records if record.key.role == Role.OUTPUT]
    seen = [dtype.replace("torch.", "") for dtype in seen]
    return next((dtype for dtype in (*_LOW_PRECISIONS, "float32", "float64") if dtype in seen), "")
