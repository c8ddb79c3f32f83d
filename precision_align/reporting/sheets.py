"""The table of records as CSV, for those who pass sheets around."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from precision_align.core.results import Findings, RecordResult
from precision_align.reporting.wording import measure_excess, quote

_FIXED = ("order", "status", "scope", "op", "phase", "site", "role", "path", "step", "micro", "rank", "call", "nbytes")
_LIMIT = ("limit_metric", "limit_value", "limit_origin", "of_limit")
_TEXTS = ("evidence", "note", "source", "key")
# a sheet runs text that starts like this as a formula
_FORMULA_STARTS = ("=", "+", "-", "@")


def render_csv(report: Findings) -> str:
    """One line a record: its place, status, limit, every metric of any record as a column of its own, its key.

    RFC 4180 with a byte order mark, so that Excel reads UTF-8. Text that would run as a formula gets a quote before it.
    """
    metrics = list(dict.fromkeys(name for record in report.records for name in record.metrics))
    stream = io.StringIO()
    stream.write("\ufeff")
    writer = csv.writer(stream)
    writer.writerow([*_FIXED, *_LIMIT, *map(_disarm, metrics), *_TEXTS])
    for record in report.records:
        writer.writerow([*_place(record), *_limit(record), *_figures(record, metrics), *_words(record)])
    return stream.getvalue()


def _disarm(value: object) -> str:
    text = quote(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _place(record: RecordResult) -> list[object]:
    values = (getattr(record, name) for name in _FIXED)
    return [value if isinstance(value, int) else _disarm(value) for value in values]


def _limit(record: RecordResult) -> list[object]:
    if record.limit is None:
        return [""] * len(_LIMIT)
    excess = measure_excess(record.metrics, record.limit)
    limit = record.limit
    return [_disarm(limit.metric), float(limit.value), _disarm(limit.origin), "" if excess is None else excess]


def _figures(record: RecordResult, metrics: Iterable[str]) -> list[object]:
    return [float(record.metrics[name]) if name in record.metrics else "" for name in metrics]


def _words(record: RecordResult) -> list[str]:
    return [_disarm(getattr(record, name)) for name in _TEXTS]
