"""One scalar series of a run: its steps, its values, and where each of them was read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.errors import LogUnreadable, UsageError

_LAST_STEP = 2**53  # exact as a float64; even counts of tokens stay far below
DUPLICATES = ("error", "first", "last", "mean", "order")


@dataclass(frozen=True)
class Entry:
    """One value as it was read.

    ``step`` is None where the line names none; ``text`` the number as printed, "" if it was not text; ``place`` where
    it stands, such as "line 12".
    """

    step: int | None
    value: float
    place: str = ""
    text: str = ""


@dataclass(frozen=True)
class Series:
    """A scalar series in ascending steps, each step once.

    ``origin``: the path or what else it came from; ``places``: one a value, such as "line 12"; ``decimals`` and
    ``digits``: the most decimals and significant digits any value was printed with, None where values did not come as
    text; ``precision``: the lowest floating dtype the run computed in, "" where that is not known; ``command`` and
    ``recorded``: of a dump, the command line of its run and the steps it holds records of.
    """

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    origin: str
    places: tuple[str, ...] = ()
    decimals: int | None = None
    digits: int | None = None
    precision: str = ""
    notes: tuple[str, ...] = ()
    command: str = ""
    recorded: tuple[int, ...] = ()

    def resolve(self) -> Array:
        """Half a unit in the last printed place of each value, float64 of the values' length; 0 where unknown.

        A format with fixed decimals has that many everywhere; one with fixed significant digits has fewer decimals in
        larger values. The coarser reading is taken for each value.
        """
        values = np.abs(np.asarray(self.values, dtype=np.float64))
        if self.decimals is None or self.digits is None:
            return np.zeros_like(values)
        usable = np.where(np.isfinite(values) & (values > 0), values, 1.0)
        significant = 10.0 ** (np.floor(np.log10(usable)) + 1 - self.digits)
        return np.asarray(0.5 * np.maximum(10.0**-self.decimals, significant))

    def locate(self, step: int) -> str:
        """Where the value of a step was read, for a message: "run.log line 12", or the origin alone."""
        index = self.steps.index(step)
        place = self.places[index] if self.places else ""
        return f"{self.origin} {place}".strip()


def build_series(
    name: str,
    entries: Sequence[Entry],
    origin: str,
    *,
    duplicates: str = "error",
    precision: str = "",
    notes: Iterable[str] = (),
) -> Series:
    """Order the entries by step, each step once.

    ``duplicates`` says what a step with several *different* values means: "error", or keep the "first", the "last" (a
    resumed run), their "mean", or number all entries by "order" of appearance (a count that restarts each epoch).
    Equal values are merged. Raises LogUnreadable, UsageError.
    """
    if duplicates not in DUPLICATES:
        raise UsageError(f"duplicates is {duplicates!r}; it must be one of {', '.join(DUPLICATES)}")
    if not entries:
        raise LogUnreadable(f"{origin} holds no value of {name!r}")
    strange = next((entry for entry in entries if entry.step is not None and abs(entry.step) > _LAST_STEP), None)
    if strange is not None:
        raise LogUnreadable(f"{origin} {strange.place}: {strange.step} is no number of a training step")
    said = list(notes)
    stepped = _number_entries(entries, origin, duplicates, said)
    merged = _merge_steps(stepped, origin, duplicates, said)
    steps = sorted(merged)
    values = tuple(merged[step].value for step in steps)
    said += _note_nonfinite(steps, values, merged, origin)
    decimals, digits = _measure_format(entries)
    return Series(
        name=name,
        steps=tuple(steps),
        values=values,
        origin=origin,
        places=tuple(merged[step].place for step in steps) if any(entry.place for entry in entries) else (),
        decimals=decimals,
        digits=digits,
        precision=precision,
        notes=tuple(said),
    )


def _number_entries(
    entries: Sequence[Entry], origin: str, duplicates: str, notes: list[str]
) -> list[tuple[int, Entry]]:
    named = [entry for entry in entries if entry.step is not None]
    if not named or duplicates == "order":
        reason = "as asked" if duplicates == "order" else "no line names a step"
        notes.append(f"{origin}: values are numbered from 0 in order of appearance ({reason})")
        return list(enumerate(entries))
    if len(named) < len(entries):
        first = next(entry for entry in entries if entry.step is None)
        notes.append(
            f"{origin}: {len(entries) - len(named)} values without a step are left out, first at {first.place}"
        )
    return [(entry.step, entry) for entry in named if entry.step is not None]


def _merge_steps(
    stepped: Sequence[tuple[int, Entry]], origin: str, duplicates: str, notes: list[str]
) -> dict[int, Entry]:
    groups: dict[int, list[Entry]] = {}
    for step, entry in stepped:
        groups.setdefault(step, []).append(entry)
    repeated = [step for step, group in groups.items() if len(group) > 1]
    differing = [step for step in repeated if len({_identify(entry.value) for entry in groups[step]}) > 1]
    if differing and duplicates == "error":
        raise LogUnreadable(_describe_duplicates(differing, groups, origin))
    if repeated:
        kept = f"the {duplicates} is kept" if differing else "all equal, merged"
        notes.append(f"{origin}: {len(repeated)} steps appear more than once ({kept}), first step {repeated[0]}")
    return {step: _choose_entry(group, duplicates) for step, group in groups.items()}


def _identify(value: float) -> object:
    return "nan" if math.isnan(value) else value


def _choose_entry(group: Sequence[Entry], duplicates: str) -> Entry:
    if duplicates == "mean" and len(group) > 1:
        return Entry(group[0].step, sum(entry.value for entry in group) / len(group), group[-1].place)
    return group[0] if duplicates == "first" else group[-1]


def _describe_duplicates(differing: Sequence[int], groups: dict[int, list[Entry]], origin: str) -> str:
    shown = []
    for step in differing[:3]:
        group = groups[step]
        shown.append(f"step {step}: " + ", ".join(f"{e.value:g} ({e.place or 'no place'})" for e in group[:3]))
    more = f" and {len(differing) - 3} more steps" if len(differing) > 3 else ""
    return (
        f"{origin} has different values for one step: {'; '.join(shown)}{more}. Say what that means: duplicates = last "
        "(a resumed run), first, mean (micro-batches or ranks), or order (the count restarts each epoch)"
    )


def _note_nonfinite(steps: Sequence[int], values: Sequence[float], merged: dict[int, Entry], origin: str) -> list[str]:
    bad = [step for step, value in zip(steps, values) if not math.isfinite(value)]
    if not bad:
        return []
    first = merged[bad[0]]
    place = f" ({first.place})" if first.place else ""
    return [f"{origin}: {len(bad)} values are not finite, first {first.value} at step {bad[0]}{place}"]


def _measure_format(entries: Sequence[Entry]) -> tuple[int | None, int | None]:
    """The most decimals and significant digits among the printed finite numbers; whole numbers count as exact."""
    decimals, digits = -400, 0
    for entry in entries:
        if not entry.text or not math.isfinite(entry.value):
            continue
        mantissa, _, exponent = entry.text.lower().partition("e")
        whole, _, fraction = mantissa.lstrip("+-").partition(".")
        decimals = max(decimals, len(fraction) - int(exponent or 0))
        digits = max(digits, len((whole + fraction).lstrip("0")))
    return (decimals, digits) if digits and decimals > 0 else (None, None)


def series_from_values(name: str, values: Iterable[object], origin: str, *, duplicates: str = "error") -> Series:
    """A series from (step, value) pairs. Raises UsageError where an item is not such a pair."""
    entries = []
    for index, item in enumerate(values):
        step, value = _split_pair(item, index, origin)
        entries.append(Entry(step, value, f"item {index}"))
    return build_series(name, entries, origin, duplicates=duplicates)


def _split_pair(item: object, index: int, origin: str) -> tuple[int, float]:
    advice = f"item {index} of the {origin} is {item!r}; each item must be a pair of step (an integer) and value"
    if isinstance(item, (str, bytes)) or not isinstance(item, Iterable):
        raise UsageError(advice)
    pair: list[Any] = list(item)
    try:
        step, value = int(pair[0]), float(pair[1])
        fits = len(pair) == 2 and step == pair[0]
    except (IndexError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(advice) from error
    if not fits:
        raise UsageError(advice)
    return step, value


def pick_values(series: Series, steps: Array, values: Array | None = None) -> Array:
    """The values (or others in their order) at some steps, float64; NaN where the series lacks the step."""
    source = np.asarray(series.values, dtype=np.float64) if values is None else values
    known = np.asarray(series.steps, dtype=np.int64)
    places = np.minimum(np.searchsorted(known, steps), len(known) - 1)
    return np.where(known[places] == steps, source[places], np.nan)
