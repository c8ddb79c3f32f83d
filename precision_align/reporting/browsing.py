"""A dump as a tree of modules, and one tensor of two dumps side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.records import TensorRecord
from precision_align.numerics.metrics import Difference, measure
from precision_align.reporting.dumps import (
    BINS,
    FIRST_VALUES,
    describe_record,
    format_value,
    read_values,
    render_bars,
    tell_rest,
)
from precision_align.reporting.serialization import encode_free
from precision_align.reporting.terminal import clip
from precision_align.reporting.wording import format_bytes, format_number, quote
from precision_align.storage.base import Dump

_WORST = 4  # largest differences that are listed: enough to see a row, a column or a stride in their indices
_SHOWN = ("max_abs", "max_rel", "rel_l2", "one_minus_cosine", "bias", "mismatched", "nonfinite")


@dataclass
class Branch:
    """A part of a module's path, with what is recorded at it and below: ``broken`` tensors hold NaN or infinities."""

    name: str
    kind: str = ""
    tensors: int = 0
    nbytes: int = 0
    broken: int = 0
    children: dict[str, Branch] = field(default_factory=dict)

    def add(self, record: TensorRecord) -> None:
        """Count a record."""
        self.tensors += 1
        self.nbytes += record.nbytes
        found = record.statistics
        self.broken += bool(found is not None and (found.nan or found.inf))

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        plain = {name: getattr(self, name) for name in ("name", "kind", "tensors", "nbytes", "broken")}
        return {**plain, "children": [child.to_dict() for child in self.children.values()]}


def grow_tree(dump: Dump, records: Sequence[TensorRecord]) -> Branch:
    """The modules of these records by the parts of their paths, in the order of recording."""
    kinds = {call.scope: call.kind.rpartition(".")[2] for call in dump.calls}
    root = Branch("(root)", kinds.get("", ""))
    for record in records:
        branch, path = root, ""
        branch.add(record)
        for part in filter(None, record.key.scope.split(".")):
            path = f"{path}.{part}" if path else part
            branch = branch.children.setdefault(part, Branch(part, kinds.get(path, "")))
            branch.add(record)
    return root


def render_tree(root: Branch, *, width: int = 80, limit: int = 40) -> str:
    """One line a module: its class, how many tensors it and its children have, their size. ``limit``: lines, 0: all."""
    lines = [clip(line, width) for line in _draw(root, "", "")]
    shown = lines[:limit] if limit else lines
    return "\n".join([*shown, *tell_rest(len(lines) - len(shown))]) + "\n"


def _draw(branch: Branch, head: str, rest: str) -> Iterator[str]:
    count = f"{branch.tensors:,} {'tensor' if branch.tensors == 1 else 'tensors'}, {format_bytes(branch.nbytes)}"
    broken = f", NaN or Inf in {branch.broken:,}" if branch.broken else ""
    yield f"{head}{' '.join(filter(None, (quote(branch.name), quote(branch.kind))))}  {count}{broken}"
    children = list(branch.children.values())
    for child in children:
        last = child is children[-1]
        yield from _draw(child, f"{rest}{'└─ ' if last else '├─ '}", f"{rest}{'   ' if last else '│  '}")


@dataclass(frozen=True)
class TensorPair:
    """One tensor of two dumps. ``difference`` is None where the values cannot be subtracted: ``trouble`` says why."""

    reference: TensorRecord
    candidate: TensorRecord
    values: tuple[Array | None, Array | None]
    difference: Difference | None
    trouble: str = ""


def read_pair(reference: tuple[Dump, TensorRecord], candidate: tuple[Dump, TensorRecord]) -> TensorPair:
    """Read both sides and measure candidate - reference."""
    (left, missing), (right, absent) = read_values(*reference), read_values(*candidate)
    records = reference[1], candidate[1]
    if left is None or right is None:
        side, why = ("reference", missing) if left is None else ("candidate", absent)
        return TensorPair(*records, (left, right), None, f"the {side} has no values: {why}")
    if left.shape != right.shape:
        return TensorPair(*records, (left, right), None, f"shapes differ: {list(left.shape)}, {list(right.shape)}")
    return TensorPair(*records, (left, right), measure(right, left))


def describe_pair(pair: TensorPair) -> dict[str, Any]:
    """Both records and the difference, as JSON values."""
    found = None if pair.difference is None else pair.difference.to_dict()
    return {
        "reference": describe_record(pair.reference),
        "candidate": describe_record(pair.candidate),
        "difference": encode_free(found),
        "missing": pair.trouble,
    }


def render_pair(pair: TensorPair, *, width: int = 80) -> str:
    """Facts, statistics, first values, histograms on common edges, and the largest differences, side by side."""
    left, right = pair.reference, pair.candidate
    rows = [
        ("", "reference", "candidate"),
        ("form", f"{list(left.shape)} {left.dtype}", f"{list(right.shape)} {right.dtype}"),
        ("device", left.device, right.device),
        ("hash", left.digest.hex()[:16], right.digest.hex()[:16]),
    ]
    rows += _list_statistics(pair)
    lines = [clip(f"key         {quote(pair.reference.key)}", width), *_lay_rows(rows, width)]
    if pair.difference is None:
        return "\n".join([*lines, "", f"not subtracted: {quote(pair.trouble)}"]) + "\n"
    told = {name: format_number(getattr(pair.difference, name)) for name in _SHOWN}
    lines += ["", "candidate - reference", *(f"  {name:<18}{number}" for name, number in told.items())]
    lines += ["", *_lay_rows(_list_values(pair), width), "", *_draw_histograms(pair, width)]
    return "\n".join(lines) + "\n"


def _list_statistics(pair: TensorPair) -> list[tuple[str, str, str]]:
    left, right = pair.reference.statistics, pair.candidate.statistics
    if left is None or right is None:
        return []
    names = (("min", "minimum"), ("max", "maximum"), ("mean", "mean"), ("l2", "l2"), ("nan", "nan"), ("inf", "inf"))
    return [(name, format_number(getattr(left, key)), format_number(getattr(right, key))) for name, key in names]


def _lay_rows(rows: Sequence[tuple[str, str, str]], width: int) -> list[str]:
    column = max((width - 12) // 2, 12)
    room = max(width - 12 - column, 12)
    laid = [(f"{name:<12}{clip(left, column - 1):<{column}}", clip(right, room)) for name, left, right in rows]
    return ["".join(parts).rstrip() for parts in laid]


def _list_values(pair: TensorPair) -> list[tuple[str, str, str]]:
    """The first values, then those that differ most; a NaN or Inf on one side only counts as most of all."""
    left, right = (values.ravel() for values in pair.values if values is not None)
    rows = [("first", "reference", "candidate")]
    rows += [_make_row(pair, place) for place in range(min(FIRST_VALUES, left.size))]
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(_widen(right) - _widen(left))
    apart[np.isnan(left) & np.isnan(right)] = 0
    apart[(left == right)] = 0  # equal infinities
    apart[np.isnan(apart)] = np.inf
    # the largest few without sorting all of a large tensor
    few = np.argpartition(-apart, _WORST)[:_WORST] if apart.size > _WORST else np.arange(apart.size)
    worst = [place for place in sorted(few.tolist(), key=lambda place: (-apart[place], place)) if apart[place]]
    return [*rows, *([("most apart", "", "")] if worst else []), *(_make_row(pair, place) for place in worst)]


def _make_row(pair: TensorPair, place: int) -> tuple[str, str, str]:
    left, right = (values for values in pair.values if values is not None)
    index = ",".join(str(number) for number in np.unravel_index(place, left.shape))
    return f"  [{index}]", format_value(left.ravel()[place]), format_value(right.ravel()[place])


def _widen(values: Array) -> Array:
    return values if values.dtype.kind == "c" else values.astype(np.float64)


def _draw_histograms(pair: TensorPair, width: int) -> list[str]:
    """Both distributions over the same bins, the reference's bar above the candidate's."""
    sides = [
        np.abs(values) if values.dtype.kind == "c" else _widen(values) for values in pair.values if values is not None
    ]
    finite = [side[np.isfinite(side)] for side in sides]
    if not all(side.size for side in finite):
        return ["no finite value on one side"]
    low, high = (float(pick([pick(side) for side in finite])) for pick in (np.min, np.max))
    # halves, so that the range of the largest doubles does not overflow
    found = [np.histogram(side / 2, bins=BINS, range=(low / 2, high / 2)) for side in finite]
    counts = np.stack([count for count, _ in found], axis=1)
    return render_bars(counts, found[0][1] * 2, width=width)
