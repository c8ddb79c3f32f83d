"""The table of records as compact columns for the page: each text once, each row a few numbers.

100,000 records with keys, notes and metrics take about 20 MB this way; as objects they would take four times that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from precision_align.core.results import Divergence, Findings, RecordResult
from precision_align.core.terms import Status
from precision_align.reporting.serialization import encode_float
from precision_align.reporting.wording import SEVERITY, measure_excess, quote

_TEXTS: dict[str, Callable[[RecordResult], str]] = {
    "scope": lambda record: quote(record.scope),
    "op": lambda record: quote(record.op),
    "site": lambda record: str(record.site),
    "phase": lambda record: str(record.phase),
    "role": lambda record: str(record.role),
    "path": lambda record: quote(record.path),
    "evidence": lambda record: quote(record.evidence),
    "note": lambda record: quote(record.note),
    "source": lambda record: quote(record.source),
}
_NUMBERS = ("call", "step", "micro", "rank", "nbytes", "order")


class _Pool:
    """Texts (or other hashable things) by number."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}

    def number(self, item: Any) -> int:
        return self.numbers.setdefault(item, len(self.numbers))

    def items(self) -> list[Any]:
        return list(self.numbers)


def pack_records(records: Sequence[RecordResult]) -> dict[str, Any]:
    """Columns of the table, JSON-ready.

    ``texts``: the pool that the text columns index; ``columns``: name -> list, or {"all": value} where every row has
    the same; ``status`` indexes ``statuses`` (worst first); ``limits`` and ``metric_names`` are pools of their own;
    ``values``: per row the metrics in the order of its name list, rounded to 6 digits (report.json has them all).
    """
    texts, limits, names = _Pool(), _Pool(), _Pool()
    columns: dict[str, Any] = {
        name: _shorten([texts.number(read(record)) for record in records]) for name, read in _TEXTS.items()
    }
    columns.update({name: _shorten([int(getattr(record, name)) for record in records]) for name in _NUMBERS})
    columns["key"] = [quote(record.key) for record in records]
    severity = {status: index for index, status in enumerate(SEVERITY)}
    columns["status"] = _shorten([severity[Status(record.status)] for record in records])
    columns["excess"] = _shorten([_round(measure_excess(record.metrics, record.limit)) for record in records])
    columns["limit"] = _shorten([_number_limit(limits, record) for record in records])
    columns["names"] = _shorten([names.number(tuple(quote(name) for name in record.metrics)) for record in records])
    columns["values"] = [[_round(value) for value in record.metrics.values()] for record in records]
    return {
        "count": len(records),
        "texts": texts.items(),
        "statuses": [str(status) for status in SEVERITY],
        "limits": limits.items(),
        "metric_names": names.items(),
        "columns": columns,
    }


def find_record(findings: Findings, found: Divergence | None) -> int | None:
    """The row of a divergence: its key's, else its module's first bad one, else None."""
    if found is None:
        return None
    fallback = None
    bad = (Status.FAIL, Status.NONDETERMINISTIC, Status.MODE, Status.RANDOM)
    for index, record in enumerate(findings.records):
        if found.key and record.key == found.key:
            return index
        here = (record.scope, record.phase, record.step, record.rank) == (
            found.scope,
            found.phase,
            found.step,
            found.rank,
        )
        if fallback is None and here and record.status in bad:
            fallback = index
    return fallback


def _shorten(values: list[Any]) -> Any:
    return {"all": values[0]} if values and all(value == values[0] for value in values) else values


def _round(value: float | None) -> float | int | str | None:
    if value is None:
        return None
    return encode_float(float(f"{value:.6g}") if math.isfinite(value) else value)


def _number_limit(pool: _Pool, record: RecordResult) -> int:
    if record.limit is None:
        return -1
    return pool.number((quote(record.limit.metric), _round(record.limit.value), quote(record.limit.origin)))
