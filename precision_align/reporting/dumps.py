"""A dump in words: its run, its calls, its records; and one tensor with statistics and histogram."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.errors import DumpDamaged
from precision_align.core.records import Call, RunInfo, TensorRecord
from precision_align.reporting.serialization import encode_free
from precision_align.reporting.terminal import clip, cut, fold
from precision_align.reporting.wording import format_bytes, format_number, quote
from precision_align.storage.base import Dump

BINS = 16  # lines of a histogram: fits a screen together with the statistics
FIRST_VALUES = 8
_GUTTER = 12


def describe_dump(dump: Dump, records: Sequence[TensorRecord]) -> dict[str, Any]:
    """The whole of a dump but its payloads, as JSON values."""
    return {
        "runs": [encode_free(asdict(info)) for info in dump.infos],
        "steps": list_steps(dump),
        "notes": list(dump.notes),
        "series": [encode_free(asdict(point)) for point in dump.series],
        "calls": [_describe_call(call) for call in dump.calls],
        "records": [describe_record(record) for record in records],
    }


def describe_record(record: TensorRecord) -> dict[str, Any]:
    """One record as JSON values; its key in the text form, its digest in hex."""
    described = {**vars(record), "key": str(record.key)}
    if record.statistics is not None:
        described["statistics"] = asdict(record.statistics)
    plain: dict[str, Any] = encode_free(described)
    return plain


def _describe_call(call: Call) -> dict[str, Any]:
    names = ("step", "micro", "rank", "scope", "call", "kind", "identity", "parent", "leaf", "training", "source")
    return {**{name: getattr(call, name) for name in names}, "pass": str(call.pass_), "error": call.error}


def describe_tensor(dump: Dump, record: TensorRecord) -> dict[str, Any]:
    """One record with its first values and its histogram, as JSON values."""
    values, trouble = read_values(dump, record)
    described = describe_record(record)
    if values is None:
        return {**described, "values": None, "histogram": None, "missing": trouble}
    counts, edges = measure_histogram(values)
    head = [encode_free(_plain_number(item)) for item in values.ravel()[:FIRST_VALUES]]
    histogram = {"edges": encode_free(edges.tolist()), "counts": counts.tolist()}
    return {**described, "values": head, "histogram": histogram, "missing": ""}


def _plain_number(item: Any) -> Any:
    number = item.item()
    return [number.real, number.imag] if isinstance(number, complex) else number


def list_steps(dump: Dump) -> list[int]:
    """Every step that has a record or a call, ascending."""
    known = getattr(dump, "steps", None)
    if known is not None:
        return [int(step) for step in known]
    return sorted({record.key.step for record in dump.records} | {call.step for call in dump.calls})


def read_values(dump: Dump, record: TensorRecord) -> tuple[Array | None, str]:
    """The numbers of a tensor, or None and why they are not there. A damaged payload counts as absent."""
    try:
        return dump.values(record.key), ""
    except KeyError:
        return None, record.reason or f"only its {record.tier} was recorded"
    except DumpDamaged as error:
        return None, str(error)


def measure_histogram(values: Array) -> tuple[Array, Array]:
    """(counts, edges) of the finite values, complex ones by modulus; both empty where no value is finite."""
    numbers = np.abs(values) if values.dtype.kind == "c" else values.astype(np.float64)
    finite = np.asarray(numbers[np.isfinite(numbers)], dtype=np.float64)
    if not finite.size:
        return np.zeros(0, np.int64), np.zeros(0)
    low, high = float(finite.min()), float(finite.max())
    if low == high:
        return np.array([finite.size]), np.array([low, high])
    # halves, so that the range of the largest doubles does not overflow
    counts, edges = np.histogram(finite / 2, bins=BINS, range=(low / 2, high / 2))
    return counts, edges * 2


def render_dump(dump: Dump, records: Sequence[TensorRecord], *, width: int = 80, limit: int = 40) -> str:
    """Run information, calls of the first step, records. ``limit``: lines a list, 0 for all."""
    blocks = [_render_run(dump, width)]
    calls = [call for call in dump.calls if (call.rank, call.step) == _first_step(dump.calls)]
    if calls:
        title = f"calls of step {calls[0].step}, rank {calls[0].rank}"
        blocks.append([title, *_shorten(list(render_calls(calls, width)), limit)])
    chosen = f"{len(records)} of {len(dump.records)} records" if len(records) != len(dump.records) else "records"
    if records:
        shown = records[:limit] if limit else records
        blocks.append([chosen, *render_records(shown, width), *tell_rest(len(records) - len(shown))])
    else:
        blocks.append([f"{chosen}: none"])
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _render_run(dump: Dump, width: int) -> list[str]:
    info, steps = dump.info, list_steps(dump)
    size = sum(record.nbytes for record in dump.records)
    fields = [
        ("run", f"{info.run} · {info.created}"),
        (
            "device",
            info.device + (" · forced" if info.forced else "") + (" · swapped" if info.capture.get("swapped") else ""),
        ),
        ("command", info.command),
        ("versions", " · ".join(f"{name} {version}" for name, version in info.versions.items())),
        ("steps", f"{_shorten_numbers(steps)} ({len(steps)})" if steps else "none"),
        ("ranks", f"{_shorten_numbers([one.rank for one in dump.infos])} of {info.world}"),
        ("records", f"{len(dump.records):,} tensors of {format_bytes(size)}, {len(dump.calls):,} calls"),
        ("optimizer", _name_optimizer(info)),
        ("series", ", ".join(dict.fromkeys(point.name for point in dump.series))),
    ]
    lines = [line for name, text in fields if text for line in _field(name, quote(text), width)]
    notes = list(dump.notes)
    return (
        lines + [line for note in notes[:5] for line in _field("note", quote(note), width)] + tell_rest(len(notes) - 5)
    )


def _name_optimizer(info: RunInfo) -> str:
    return str(info.optimizer.get("class") or info.optimizer.get("kind") or "") if info.optimizer else ""


def _field(name: str, text: str, width: int) -> list[str]:
    folded = cut(fold(text, width - _GUTTER), 3, width - _GUTTER)
    return [f"{name:<{_GUTTER}}{folded[0]}", *(" " * _GUTTER + line for line in folded[1:])]


def _first_step(calls: Sequence[Call]) -> tuple[int, int] | None:
    return min(((call.rank, call.step) for call in calls), default=None)


def _shorten(lines: list[str], limit: int) -> list[str]:
    return lines if not limit or len(lines) <= limit else [*lines[:limit], *tell_rest(len(lines) - limit)]


def tell_rest(count: int) -> list[str]:
    """The line below a list that was cut short, if it was."""
    return [f"  … {count:,} more; --limit 0 shows all"] if count > 0 else []


def _shorten_numbers(numbers: Iterable[int]) -> str:
    """[0, 1, 2, 5] as "0-2, 5"; after eight runs of numbers an ellipsis."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    return ", ".join(shown if len(shown) <= 8 else [*shown[:8], "…"])


def render_calls(calls: Sequence[Call], width: int) -> Iterator[str]:
    """The calls of one step as a tree, in order of entry."""
    known = {call.identity for call in calls}
    children: dict[int, list[Call]] = {}
    for call in sorted(calls, key=lambda call: call.enter):
        children.setdefault(call.parent if call.parent in known else -1, []).append(call)
    stack = [(call, 0) for call in reversed(children.get(-1, []))]
    while stack:
        call, depth = stack.pop()
        yield clip(_render_call(call, depth), width)
        stack += [(child, depth + 1) for child in reversed(children.get(call.identity, []))]


def _render_call(call: Call, depth: int) -> str:
    name = quote(call.scope) or "(root)"
    again = f" call {call.call}" if call.call else ""
    marks = [quote(call.kind.rpartition(".")[2]), str(call.pass_) if call.pass_ != "first" else ""]
    marks += [_describe_exchange(call), f"raised {quote(call.error)}" if call.error else ""]
    return f"  {'  ' * depth}{name}{again}  {' '.join(mark for mark in marks if mark)}"


def _describe_exchange(call: Call) -> str:
    """ "sum, float32, ranks 0,1 (tp)" of a collective, "" of other calls."""
    told = call.modes.get("collective")
    if told is None:
        return ""
    group = f" ({quote(told['group'])})" if told["group"] else ""
    ranks = f"ranks {','.join(map(str, told['ranks']))}{group}" if told["ranks"] else "group unknown"
    return ", ".join(filter(None, (quote(told["reduce_op"]), quote(told["dtype"]), ranks)))


_COLUMNS = ("step", "module", "tensor", "shape", "dtype", "min", "max", "l2", "nan")
_NUMERIC = ("step", "min", "max", "l2", "nan")
# what gives way on a narrow screen, in this order, and how far
_SHRINKING = (("module", 16), ("tensor", 16), ("shape", 8), ("dtype", 5), ("module", 8), ("tensor", 8))


def render_records(records: Sequence[TensorRecord], width: int) -> list[str]:
    """A table: key parts that tell them apart, shape, dtype, statistics; nan counts infinities too."""
    rows = [list(_COLUMNS), *(_make_row(record) for record in records)]
    sizes = {name: max(len(row[place]) for row in rows) for place, name in enumerate(_COLUMNS)}
    for name, least in _SHRINKING:
        excess = sum(sizes.values()) + 2 * len(_COLUMNS) - width
        if excess > 0:
            sizes[name] = min(sizes[name], max(sizes[name] - excess, least))
    return [_lay_row(row, sizes) for row in rows]


def _lay_row(row: Sequence[str], sizes: Mapping[str, int]) -> str:
    cells = []
    for name, cell in zip(_COLUMNS, row):
        size = sizes[name]
        # the end of a module's path tells more than its start
        kept = cell if len(cell) <= size else "…" + cell[len(cell) - size + 1 :]
        cells.append(kept.rjust(size) if name in _NUMERIC else kept.ljust(size))
    return ("  " + "  ".join(cells)).rstrip()


def _make_row(record: TensorRecord) -> list[str]:
    key, found = record.key, record.statistics
    shape = "x".join(str(size) for size in record.shape) or "scalar"
    numbers = ["", "", "", ""]
    if found is not None:
        broken = found.nan + found.inf
        numbers = [format_number(value) for value in (found.minimum, found.maximum, found.l2)]
        numbers.append(str(broken) if broken else "")
    return [str(key.step), quote(key.scope) or "(root)", quote(_name_tensor(record)), shape, record.dtype, *numbers]


def _name_tensor(record: TensorRecord) -> str:
    """Role and path; the phase only where the role does not tell it."""
    key = record.key
    told = (key.phase, key.role) == ("backward", "gradient") or key.phase == "forward"
    return " ".join(part for part in ("" if told else str(key.phase), str(key.role), key.path) if part)


def render_tensor(dump: Dump, record: TensorRecord, *, width: int = 80) -> str:
    """One tensor: what it is, its statistics, its first values and a histogram."""
    values, trouble = read_values(dump, record)
    lines = [line for name, text in _list_facts(record) if text for line in _field(name, quote(text), width)]
    if values is None:
        lines += ["", *_field("no values", quote(trouble), width)]
    else:
        head = "  ".join(format_value(item) for item in values.ravel()[:FIRST_VALUES])
        lines += _field("values", head + (" …" if values.size > FIRST_VALUES else ""), width)
        lines += ["", *render_histogram(*measure_histogram(values), width=width)]
    return "\n".join(lines) + "\n"


def _list_facts(record: TensorRecord) -> list[tuple[str, str]]:
    key, found = record.key, record.statistics
    at = f"step {key.step} · micro-batch {key.micro} · rank {key.rank} · call {key.call}"
    form = f"{list(record.shape)} {record.dtype} on {record.device}, {format_bytes(record.nbytes)}"
    facts = [
        ("key", str(key)),
        ("module", f"{key.scope or '(root)'} {key.op}".rstrip()),
        ("tensor", f"{key.phase} {key.role} {key.path}".rstrip()),
        ("at", at + (f" · {key.pass_}" if key.pass_ != "first" else "")),
        ("form", form),
        ("stride", f"{list(record.stride)} {record.layout}"),
        ("kept", f"{record.tier}" + (f": {record.reason}" if record.reason else "")),
        ("hash", record.digest.hex()),
        ("extra", json.dumps(encode_free(record.extra)) if record.extra else ""),
    ]
    return facts + ([] if found is None else _list_statistics(vars(found)))


def _list_statistics(found: Mapping[str, float]) -> list[tuple[str, str]]:
    numbers = [f"{name} {format_number(found[key])}" for name, key in
               (("min", "minimum"), ("max", "maximum"), ("mean", "mean"), ("l2", "l2"))]  # fmt: skip
    counts = [f"{found[name]:,} {name}" for name in ("nan", "inf", "zero", "subnormal") if found[name]]
    return [("statistics", "  ".join(numbers)), ("counts", ", ".join([f"{found['numel']:,} values", *counts]))]


def format_value(item: Any) -> str:
    """One value of a tensor in six digits."""
    number = item.item()
    return format(number, ".6g") if isinstance(number, (float, complex)) else str(number)


def render_histogram(counts: Array, edges: Array, *, width: int = 80) -> list[str]:
    """One line a bin: its lower edge, a bar, its count. Bars of non-empty bins are never empty."""
    return render_bars(counts[:, None], edges, width=width) if counts.size else ["no finite value"]


def render_bars(counts: Array, edges: Array, *, width: int = 80) -> list[str]:
    """One line for each of ``counts`` (bins, sides); the second side of a bin lies under the first, lighter."""
    room, most = max(width - 30, 10), int(counts.max())
    lines = []
    for edge, row in zip(edges, counts.tolist()):
        for side, count in enumerate(row):
            bar = "█▓"[side] * max(round(room * count / most), 1 if count else 0)
            label = "" if side else format(float(edge), ".4g")
            lines.append(f"{label:>12} │{bar} {count:,}")
    return lines
