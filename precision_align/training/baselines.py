"""A ledger of what each state of a training reached: precision, speed, memory; every change is judged against it.

The ledger is a text file, one JSON object a line, appended to and never rewritten, so that it can live in version
control. A run is judged at one of three gates, cheapest first: one card and a tiny model, several cards, the full run.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from precision_align.core.errors import DumpDamaged, DumpNotFound, SchemaTooNew, UsageError
from precision_align.core.terms import Verdict

SCHEMA_VERSION = 1
GATES = ("tiny", "cards", "full")
# quantity -> (unit, how much more than the baseline is too much, whether that is a ratio)
QUANTITIES: dict[str, tuple[str, float, bool]] = {
    "step_time": ("s", 1.05, True),  # run-to-run scatter of a median over many steps is one or two percent
    "memory": ("bytes", 1.05, True),
    "communication": ("share of the step", 0.02, False),
    "loss_error": (
        "mean relative error",
        1.5,
        True,
    ),  # of the loss against the reference's; noise halves and doubles it
}
_ORDER = (Verdict.ALIGNED, Verdict.NOT_COMPARABLE, Verdict.DIVERGED)
_SKIPPED = 0.1  # first share of a log's steps, in which caches and compilers warm up


@dataclass(frozen=True)
class Entry:
    """One state of a training at one gate.

    ``name``: the change, such as "fused rope"; ``gate``: one of GATES; ``verdict``: of ``compare``; ``first``: the
    module of the first divergence, "" if none; the quantities are None where they were not measured;
    ``note``: versions or why.
    """

    name: str
    gate: str
    verdict: str = ""
    first: str = ""
    step_time: float | None = None
    memory: float | None = None
    communication: float | None = None
    loss_error: float | None = None
    created: str = ""
    note: str = ""
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True)
class Judgement:
    """One quantity of a run against the baseline's: ``limit`` is the most that passes; ``holds``: None where a side has
    no value."""

    quantity: str
    baseline: float | str | None
    now: float | str | None
    limit: float | str | None
    holds: bool | None


@dataclass(frozen=True)
class BaselineReport:
    """A run against its baseline; ``gates``: whether this change has passed each, None where that is unknown."""

    baseline: Entry
    now: Entry
    judgements: Sequence[Judgement]
    gates: Sequence[tuple[str, bool | None]]

    @property
    def passed(self) -> bool:
        """Whether nothing got worse, and something was compared."""
        held = [judgement.holds for judgement in self.judgements if judgement.holds is not None]
        return bool(held) and all(held)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "passed": self.passed,
            "baseline": asdict(self.baseline),
            "now": asdict(self.now),
            "judgements": [asdict(judgement) for judgement in self.judgements],
            "gates": dict(self.gates),
        }


def read_ledger(path: str | os.PathLike[str]) -> list[Entry]:
    """All entries, oldest first. Raises DumpNotFound, DumpDamaged (naming the line), SchemaTooNew."""
    place = Path(path)
    try:
        lines = place.read_text("utf-8").splitlines()
    except FileNotFoundError as error:
        raise DumpNotFound(f"no ledger at {place}; 'precision-align baseline add {place} NAME' begins one") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DumpDamaged(f"{place} is no readable ledger: {error}") from error
    return [_read_entry(place, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _read_entry(place: Path, number: int, line: str) -> Entry:
    try:
        content = json.loads(line)
        if content["schema_version"] > SCHEMA_VERSION:
            raise SchemaTooNew(f"{place} line {number} was written by a newer version: pip install -U precision-align")
        known = {field.name for field in fields(Entry)}
        unknown = sorted(set(content) - known)
        if unknown:
            raise DumpDamaged(f"{place} line {number}: unknown fields {', '.join(unknown)}")
        return check_entry(Entry(**content))
    except (ValueError, TypeError, KeyError) as error:
        raise DumpDamaged(f"{place} line {number} is no entry of a ledger: {error}") from error


def check_entry(entry: Entry) -> Entry:
    """The entry itself. Raises UsageError for an unknown gate or verdict, or a number that cannot be."""
    if entry.gate not in GATES:
        raise UsageError(f"the gate is {entry.gate!r}; it must be one of {', '.join(GATES)}")
    if entry.verdict and entry.verdict not in _ORDER:
        raise UsageError(f"the verdict is {entry.verdict!r}; it must be one of {', '.join(_ORDER)}")
    for name in QUANTITIES:
        value = getattr(entry, name)
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise UsageError(f"{name} is {value!r}; it must be a finite number of 0 or more")
    for name in ("step_time", "memory"):
        if getattr(entry, name) == 0:
            raise UsageError(f"{name} is 0, which no training needs: what was not measured is left out")
    if entry.communication is not None and entry.communication > 1:
        raise UsageError(f"communication is {entry.communication!r}; it is a share of a step, between 0 and 1")
    return entry


def add_entry(path: str | os.PathLike[str], entry: Entry) -> None:
    """Append an entry. Raises UsageError where it measures nothing, DumpDamaged where the ledger is damaged already."""
    place = Path(path)
    if not entry.verdict and all(getattr(entry, name) is None for name in QUANTITIES):
        raise UsageError(
            f"the entry {entry.name!r} measures nothing: give --report, --losses, --log, --memory or others"
        )
    if place.exists():
        read_ledger(place)  # behind half a line the new one would be lost as well
    line = json.dumps(asdict(check_entry(entry)), ensure_ascii=False, allow_nan=False)
    try:
        with place.open("a+", encoding="utf-8") as file:
            file.seek(0)
            begun = file.read()
            file.write("\n" * (begun != "" and not begun.endswith("\n")) + line + "\n")
    except OSError as error:
        raise UsageError(f"{place} cannot be written: {error.strerror or error}") from error


def judge_entry(ledger: Sequence[Entry], now: Entry, against: str = "") -> BaselineReport:
    """The run against the newest entry at its gate (of that name). Raises UsageError where there is none."""
    check_entry(now)
    candidates = [entry for entry in ledger if entry.gate == now.gate and (not against or entry.name == against)]
    if not candidates:
        wanted = f" called {against!r}" if against else ""
        known = ", ".join(sorted({f"{entry.name} ({entry.gate})" for entry in ledger})) or "none"
        raise UsageError(f"the ledger has no entry{wanted} at the gate {now.gate!r}; it has: {known}")
    base = candidates[-1]
    judgements = [_judge_verdict(base, now), *(_judge_quantity(base, now, name) for name in QUANTITIES)]
    gates = [(gate, _has_passed(ledger, now, gate)) for gate in GATES]
    return BaselineReport(base, now, judgements, gates)


def _judge_verdict(base: Entry, now: Entry) -> Judgement:
    if not base.verdict or not now.verdict:
        return Judgement("precision", base.verdict or None, now.verdict or None, base.verdict or None, None)
    worse = _ORDER.index(Verdict(now.verdict)) > _ORDER.index(Verdict(base.verdict))
    elsewhere = now.verdict == base.verdict == Verdict.DIVERGED and now.first != base.first
    return Judgement("precision", _say(base), _say(now), _say(base), not worse and not elsewhere)


def _say(entry: Entry) -> str:
    return f"{entry.verdict} in {entry.first}" if entry.first else entry.verdict


def _judge_quantity(base: Entry, now: Entry, name: str) -> Judgement:
    before, after = getattr(base, name), getattr(now, name)
    if before is None or after is None:
        return Judgement(name, before, after, None, None)
    _, margin, is_ratio = QUANTITIES[name]
    limit = before * margin if is_ratio else before + margin
    return Judgement(name, before, after, limit, after <= limit)


def _has_passed(ledger: Sequence[Entry], now: Entry, gate: str) -> bool | None:
    """Whether the newest entry of this change at a gate is aligned; None where there is none."""
    found = [entry for entry in ledger if entry.name == now.name and entry.gate == gate]
    return found[-1].verdict == Verdict.ALIGNED if found else None


def median_of_series(values: Sequence[float]) -> float:
    """The median without the first tenth, in which caches and compilers warm up. Raises UsageError for no values."""
    kept = list(values)[math.ceil(_SKIPPED * len(values)) if len(values) > 1 else 0 :]
    if not kept:
        raise UsageError("the series has no value")
    return float(median(kept))
