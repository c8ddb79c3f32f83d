"""Steps and values out of CSV, JSONL and JSON files, trainer_state.json among them."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from precision_align.core.errors import LogUnreadable
from precision_align.training.logs import read_lines
from precision_align.training.series import Entry

STEP_NAMES = ("step", "global_step", "iteration", "iter", "_step", "steps", "trainer/global_step", "train/global_step")


def read_csv(path: Path, name: str, notes: list[str]) -> list[Entry]:
    """One column of a table with a header, or of two bare columns: step and value. Raises LogUnreadable."""
    lines = [(number, line.rstrip("\r\n")) for number, line in read_lines(path) if line.strip()]
    if not lines:
        raise LogUnreadable(f"{path} is empty")
    delimiter = max(",;\t", key=lines[0][1].count)
    rows = [(number, next(csv.reader([line], delimiter=delimiter))) for number, line in lines]
    header = [cell.strip() for cell in rows[0][1]]
    if all(_is_number(cell) for cell in header):
        return _read_bare_columns(path, rows)
    step_column = _find_step_column(header)
    value_column = _find_value_column(path, header, name, notes)
    entries, blank = [], 0
    for number, row in rows[1:]:
        if len(row) <= value_column or not row[value_column].strip():
            blank += 1
            continue
        entries.append(_entry_of_row(path, number, row, step_column, value_column))
    if blank:
        notes.append(f"{path}: {blank} rows have no value of {name!r}")
    return entries


def _read_bare_columns(path: Path, rows: Sequence[tuple[int, list[str]]]) -> list[Entry]:
    if len(rows[0][1]) > 2:
        raise LogUnreadable(f"{path} line {rows[0][0]}: {len(rows[0][1])} columns without a header; name the columns")
    columns = (0, 1) if len(rows[0][1]) == 2 else (None, 0)
    return [_entry_of_row(path, number, row, *columns) for number, row in rows]


def _find_step_column(header: Sequence[str]) -> int | None:
    lowered = [cell.lower() for cell in header]
    return next((lowered.index(candidate) for candidate in STEP_NAMES if candidate in lowered), None)


def _find_value_column(path: Path, header: Sequence[str], name: str, notes: list[str]) -> int:
    found = pick_name(path, header, name)
    if found is None and [cell.lower() for cell in header] == ["wall time", "step", "value"]:
        notes.append(f"{path}: the column 'Value' is taken for {name!r}, as TensorBoard exports it")
        return 2
    if found is None:
        raise LogUnreadable(f"{path} has no column {name!r}; its columns: {', '.join(header[:20])}")
    return header.index(found)


def _entry_of_row(path: Path, number: int, row: Sequence[str], step_column: int | None, value_column: int) -> Entry:
    try:
        text = row[value_column].strip()
        step = None if step_column is None else _read_step(row[step_column])
        return Entry(step, float(text), f"line {number}", text)
    except (ValueError, IndexError) as error:
        raise LogUnreadable(f"{path} line {number}: {','.join(row)[:120]!r} is not a step and a number") from error


def _read_step(value: Any) -> int:
    """An integer step, also written as 12.0. Raises ValueError."""
    number = float(value)
    if not math.isfinite(number) or number != int(number):
        raise ValueError(f"{value!r} is no step")
    return int(number)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def pick_name(path: Path, names: Iterable[str], name: str) -> str | None:
    """The one of ``names`` that is meant: exactly, else by its last parts ("train/loss", "run1 - loss").

    Raises LogUnreadable where several could be meant.
    """
    known = list(dict.fromkeys(names))
    exact = [candidate for candidate in known if candidate.lower() == name.lower()]
    if exact:
        return exact[0]
    endings = tuple(f"{separator}{name.lower()}" for separator in ("/", ".", " - "))
    similar = [candidate for candidate in known if candidate.lower().endswith(endings)]
    if len(similar) > 1:
        raise LogUnreadable(f"{path} has several series for {name!r}: {', '.join(similar)}; name one of them")
    return similar[0] if similar else None


def read_jsonl(path: Path, name: str, notes: list[str]) -> list[Entry]:
    """One object a line; objects without the series are other events and are passed over. Raises LogUnreadable."""
    lines = [(number, line) for number, line in read_lines(path) if line.strip()]
    objects: list[tuple[str, Mapping[str, Any]]] = []
    for number, line in lines:
        try:
            item = json.loads(line, parse_float=_Printed)
        except (ValueError, RecursionError) as error:
            if number == lines[-1][0] and len(lines) > 1:
                notes.append(f"{path}: the last line ({number}) is cut off and left out")
                break
            raise LogUnreadable(f"{path} line {number} is no JSON: {error}") from error
        if not isinstance(item, Mapping):
            raise LogUnreadable(f"{path} line {number} is no JSON object: {line.strip()[:80]!r}")
        objects.append((f"line {number}", item))
    return _entries_of_objects(path, objects, name, notes)


def read_json(path: Path, name: str, notes: list[str]) -> list[Entry]:
    """trainer_state.json (its log_history), a list of objects or of pairs, or an object of equally long lists."""
    text = "".join(line for _, line in read_lines(path))
    try:
        content = json.loads(text, parse_float=_Printed)
    except (ValueError, RecursionError) as error:
        raise LogUnreadable(f"{path} is no JSON: {error}") from error
    if isinstance(content, Mapping) and isinstance(content.get("log_history"), list):
        content = content["log_history"]
    if isinstance(content, Mapping):
        content = _rows_of_columns(path, content)
    if not isinstance(content, list):
        raise LogUnreadable(f"{path}: neither a list of objects, nor a log_history, nor lists by name")
    objects = []
    for index, item in enumerate(content):
        if isinstance(item, list) and len(item) == 2:
            item = {"step": item[0], name: item[1]}
        if not isinstance(item, Mapping):
            raise LogUnreadable(f"{path} entry {index} is neither an object nor a pair of step and value")
        objects.append((f"entry {index}", item))
    return _entries_of_objects(path, objects, name, notes)


class _Printed(float):
    """A float that remembers how it was printed: the decimals tell the log's resolution."""

    text: str

    def __new__(cls, text: str) -> _Printed:
        value = super().__new__(cls, text)
        value.text = text
        return value


def _rows_of_columns(path: Path, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    columns = {key: value for key, value in content.items() if isinstance(value, list)}
    if len({len(column) for column in columns.values()}) != 1:
        raise LogUnreadable(f"{path}: expected log_history, or lists of one length by name; keys: {list(content)[:10]}")
    return [dict(zip(columns, row)) for row in zip(*columns.values())]


def _entries_of_objects(
    path: Path, objects: Sequence[tuple[str, Mapping[str, Any]]], name: str, notes: list[str]
) -> list[Entry]:
    names = dict.fromkeys(key for _, item in objects for key in item)
    found = pick_name(path, names, name)
    if found is None:
        raise LogUnreadable(f"{path} has no series {name!r}; its keys: {', '.join(list(names)[:20])}")
    entries, empty = [], 0
    for place, item in objects:
        if found not in item:
            continue
        if item[found] is None:
            empty += 1
            continue
        entries.append(_entry_of_object(path, place, item, found))
    if empty:
        notes.append(f"{path}: {empty} entries of {name!r} are null and left out")
    return entries


def _entry_of_object(path: Path, place: str, item: Mapping[str, Any], name: str) -> Entry:
    value = item[name]
    step = next((item[candidate] for candidate in STEP_NAMES if item.get(candidate) is not None), None)
    try:
        if isinstance(value, bool) or isinstance(step, bool):
            raise ValueError("a truth value is no number")
        text = value.text if isinstance(value, _Printed) else str(value)
        return Entry(None if step is None else _read_step(step), float(value), place, text)
    except (TypeError, ValueError) as error:
        raise LogUnreadable(
            f"{path} {place}: step {step!r} and {name} {value!r} are not an integer and a number"
        ) from error
