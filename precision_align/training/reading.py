"""Reads one series from whatever a run left behind: a dump, a table, a log, or plain values."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Union

from precision_align.core.errors import LogUnreadable, UsageError
from precision_align.core.terms import Role
from precision_align.storage.base import Dump
from precision_align.training.batches import read_batches
from precision_align.training.events import PREFIX as EVENTS
from precision_align.training.events import find_event_folders, read_events
from precision_align.training.logs import list_names, read_lines, read_log
from precision_align.training.ranklosses import average_ranks
from precision_align.training.series import Entry, Series, build_series, series_from_values
from precision_align.training.tables import read_csv, read_json, read_jsonl

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

SeriesSource = Union[str, "os.PathLike[str]", Iterable[tuple[int, float]], Dump, Series]

_LOW_PRECISIONS = ("bfloat16", "float16")
_RECORDS_LOOKED_AT = 2000  # enough to meet each kind of module of one step; a listing of all would take seconds
_DUMP_SUFFIXES = (".h5", ".hdf5")
TRAINER_STATE = "trainer_state.json"


@dataclass(frozen=True)
class Reading:
    """How a series is read.

    ``name`` of the series; ``pattern``: for plain logs, see :func:`~precision_align.training.logs.read_log`;
    ``duplicates``: see :func:`~precision_align.training.series.build_series`; ``by``: another series of the same run
    whose values take the place of the steps, such as "consumed samples".
    """

    name: str = "loss"
    pattern: str | None = None
    duplicates: str = "error"
    by: str | None = None


def read_series(
    source: SeriesSource,
    name: str = "loss",
    *,
    pattern: str | None = None,
    duplicates: str = "error",
    by: str | None = None,
    role: str = "series",
) -> Series:
    """The series ``name`` of a run.

    ``source``: a path (dump folder or file, CSV, TSV, JSONL, JSON, trainer_state.json, TensorBoard event file, a folder
    that holds one of the last two, plain log), an open dump, or (step, value) pairs. ``pattern``, ``duplicates`` and
    ``by``: see :class:`Reading`; ``role``: what messages call values that have no path. Raises DumpError (unreadable,
    nothing there), UsageError, Unavailable.
    """
    return read_side(source, Reading(name, pattern, duplicates, by), role)


def read_side(source: SeriesSource, how: Reading, role: str = "series", factor: int = 1) -> Series:
    """As :func:`read_series`; each step is multiplied by ``factor``, what one step consumes."""
    _check(how, factor)
    series = _read(source, how, role)
    if factor == 1:
        return series
    return replace(series, steps=tuple(step * factor for step in series.steps))


def _check(how: Reading, factor: int) -> None:
    if not how.name.strip():
        raise UsageError("the name of the series is empty; give one such as 'loss' or 'grad norm'")
    if factor < 1:
        raise UsageError(f"{factor} is consumed in a step; it must be 1 or more")
    if how.by is not None and how.pattern is not None:
        raise UsageError("with a pattern the group 'step' takes the count: leave out the series to count by")
    if how.by is not None and factor != 1:
        raise UsageError("count either by a series or by how much one step consumes, not by both")


def _read(source: SeriesSource, how: Reading, role: str) -> Series:
    if isinstance(source, Series):
        return source
    if not isinstance(source, (str, os.PathLike)):
        if _is_dump(source):
            return _take_series(source, str(getattr(source, "path", role)), how)
        if how.by is not None:
            raise UsageError(f"the {role} is given as pairs: give its counts as their first members")
        return series_from_values(how.name, _iterate(source, role), role, duplicates=how.duplicates)
    if how.pattern is None and is_dump_source(source):
        return _read_dump(Path(source), how)
    notes: list[str] = []
    path = Path(source) if how.pattern is not None else _find_file(Path(source), notes)
    entries = _read_entries(path, how.name, how.pattern, notes)
    if not entries:
        raise LogUnreadable(_describe_absence(path, how.name, how.pattern))
    if how.by is not None:
        entries = _recount(entries, _read_entries(path, how.by, None, notes), how.by, str(path), notes)
    return build_series(how.name, entries, str(path), duplicates=how.duplicates, notes=notes)


def is_dump_source(source: SeriesSource) -> bool:
    """Whether this is a dump: then its steps are a capture's own. A folder without a log is taken for one."""
    if not isinstance(source, (str, os.PathLike)):
        return _is_dump(source)
    path = Path(source)
    return path.suffix in _DUMP_SUFFIXES or (path.is_dir() and not _find_logs(path))


def fetch_batches(source: SeriesSource) -> dict[int, str]:
    """Step -> fingerprint of its batch, of a dump; nothing of anything else."""
    if not is_dump_source(source):
        return {}
    if not isinstance(source, (str, os.PathLike)):
        return read_batches(source) if _is_dump(source) else {}
    from precision_align.storage.opening import open_dump

    with open_dump(source) as dump:
        return read_batches(dump)


def _find_file(path: Path, notes: list[str]) -> Path:
    """The log in a folder, or the path itself. Raises LogUnreadable where a folder holds several."""
    logs = _find_logs(path) if path.is_dir() else [path]
    if len(logs) > 1:
        raise LogUnreadable(f"{path} holds several logs: {', '.join(str(log) for log in logs[:6])}; name one of them")
    if logs[0].parent != path and logs[0] != path:
        notes.append(f"{path}: {logs[0]} is read")
    return logs[0]


def _find_logs(folder: Path) -> list[Path]:
    """What a trainer left in a folder: its trainer_state.json, that of its last checkpoint, or event files."""
    if (folder / TRAINER_STATE).is_file():
        return [folder / TRAINER_STATE]
    saved = [path for path in folder.glob(f"checkpoint-*/{TRAINER_STATE}") if path.parent.name[11:].isdecimal()]
    if saved:
        return [max(saved, key=lambda path: int(path.parent.name[11:]))]
    return find_event_folders(folder)


def _read_entries(path: Path, name: str, pattern: str | None, notes: list[str]) -> list[Entry]:
    return read_log(path, name, pattern) if pattern is not None else _read_text(path, name, notes)


def _recount(entries: Sequence[Entry], counts: Sequence[Entry], by: str, origin: str, notes: list[str]) -> list[Entry]:
    """The entries with the count of their own step (or line, where lines name no step) in the place of their step."""
    known = {_identify(entry): entry.value for entry in counts}
    kept = [entry for entry in entries if _identify(entry) in known]
    if not kept:
        raise LogUnreadable(f"{origin} has no value of {by!r} at the steps of the series")
    if len(kept) < len(entries):
        notes.append(f"{origin}: {len(entries) - len(kept)} values have no {by!r} beside them and are left out")
    strange = next((entry for entry in kept if not known[_identify(entry)].is_integer()), None)
    if strange is not None:
        raise LogUnreadable(f"{origin} {strange.place}: {by} is {known[_identify(strange)]!r}, which counts nothing")
    return [replace(entry, step=int(known[_identify(entry)])) for entry in kept]


def _identify(entry: Entry) -> object:
    return entry.place if entry.step is None else entry.step


def _is_dump(source: object) -> TypeGuard[Dump]:
    return hasattr(source, "series") and hasattr(source, "records")


def _iterate(source: object, role: str) -> Iterable[object]:
    if not isinstance(source, Iterable):
        raise UsageError(f"the {role} is a {type(source).__name__}; it must be a path or (step, value) pairs")
    return source


def _read_text(path: Path, name: str, notes: list[str]) -> list[Entry]:
    suffix = (path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower()
    if path.name.startswith(EVENTS) or path.is_dir():
        return read_events(path, name)
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


def _read_dump(path: Path, how: Reading) -> Series:
    from precision_align.storage.opening import open_dump  # loads h5py, which logs do not need

    return _take_series(open_dump(path), str(path), how)


def _take_series(dump: Dump, origin: str, how: Reading) -> Series:
    name = how.name
    points = [point for point in dump.series if point.name == name]
    if not points:
        names = ", ".join(sorted({repr(point.name) for point in dump.series})) or "none"
        raise LogUnreadable(
            f"{origin} holds no series {name!r}; its series: {names}. Record one with recorder.log({name}=value)"
        )
    points, averaged = average_ranks(dump, points) if name == "loss" else (points, "")
    entries = [Entry(point.step, float(point.value), f"step {point.step}") for point in points]
    micro = len({point.step for point in points}) < len(points)
    notes = [f"{origin}: several values a step (micro-batches); their mean is compared"] if micro else []
    notes += [f"{origin}: {averaged}"] if averaged else []
    if how.by is not None:
        counts = [Entry(point.step, float(point.value)) for point in dump.series if point.name == how.by]
        entries = _recount(entries, counts, how.by, origin, notes)
    series = build_series(name, entries, origin, duplicates="mean", precision=_find_precision(dump), notes=notes)
    return replace(series, command=dump.info.command, recorded=tuple(dump.steps))


def _find_precision(dump: Dump) -> str:
    """The lowest floating dtype that module calls computed in, from autocast and the outputs; "" if none is seen."""
    calls = islice(dump.calls, _RECORDS_LOOKED_AT)
    records = islice(dump.records, _RECORDS_LOOKED_AT)
    seen = [dtype for call in calls for dtype in call.autocast.values()]
    seen += [record.dtype for record in records if record.key.role == Role.OUTPUT]
    seen = [dtype.replace("torch.", "") for dtype in seen]
    return next((dtype for dtype in (*_LOW_PRECISIONS, "float32", "float64") if dtype in seen), "")
