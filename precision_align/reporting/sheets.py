"""The table of records as CSV or as an Excel sheet, for those who pass sheets around."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence

from precision_align.core.errors import Unavailable, UsageError
from precision_align.core.results import Findings, RecordResult
from precision_align.reporting.wording import format_number, measure_excess, quote

_FIXED = ("order", "status", "scope", "op", "phase", "site", "role", "path", "step", "micro", "rank", "call", "nbytes")
_LIMIT = ("limit_metric", "limit_value", "limit_origin", "of_limit")
_TEXTS = ("evidence", "note", "source", "key")
# a sheet runs text that starts like this as a formula
_FORMULA_STARTS = ("=", "+", "-", "@")


# what a sheet of Excel holds, its head included
_SHEET_ROWS = 1 << 20
_WIDTHS = {"scope": 36, "op": 22, "path": 18, "note": 60, "key": 60, "source": 40, "limit_origin": 30}


def render_csv(report: Findings) -> str:
    """One line a record: its place, status, limit, every metric of any record as a column of its own, its key.

    RFC 4180 with a byte order mark, so that Excel reads UTF-8. Text that would run as a formula gets a quote before it.
    """
    stream = io.StringIO()
    stream.write("\ufeff")
    writer = csv.writer(stream)
    for row in _list_rows(report):
        writer.writerow([_disarm(cell) if isinstance(cell, str) else cell for cell in row])
    return stream.getvalue()


def render_xlsx(report: Findings) -> bytes:
    """The same table as a workbook of one sheet, its head frozen and with filters; no text of it is a formula.

    Raises Unavailable where openpyxl is not installed, UsageError where there are more records than a sheet has rows.
    """
    try:
        from openpyxl import Workbook
        from openpyxl.utils import get_column_letter
    except ImportError:
        raise Unavailable(
            "Excel sheets need openpyxl: pip install 'precision-align[xlsx]' (.csv needs nothing, and Excel reads it)"
        ) from None
    if len(report.records) >= _SHEET_ROWS:
        raise UsageError(f"{len(report.records)} records are more than an Excel sheet holds; use .csv")
    book = Workbook(write_only=True)
    sheet = book.create_sheet("records")
    head, *rows = _list_rows(report)
    sheet.freeze_panes = "A2"
    sheet.auto_filter.ref = f"A1:{get_column_letter(len(head))}{len(rows) + 1}"
    for place, name in enumerate(head, start=1):
        sheet.column_dimensions[get_column_letter(place)].width = _WIDTHS.get(str(name), 12)
    for row in (head, *rows):
        sheet.append([_make_cell(sheet, cell) for cell in row])
    stream = io.BytesIO()
    book.save(stream)
    return stream.getvalue()


def _make_cell(sheet: object, value: object) -> object:
    """What openpyxl is to write: NaN and Inf by name, and as text what it would take for a formula or an error."""
    if isinstance(value, float) and not math.isfinite(value):
        return format_number(value)
    if not (isinstance(value, str) and value.startswith(("=", "#"))):
        return None if value == "" else value
    from openpyxl.cell import WriteOnlyCell

    cell = WriteOnlyCell(sheet, value=value)
    cell.data_type = "s"
    return cell


def _list_rows(report: Findings) -> Iterator[Sequence[object]]:
    """The head, then a row a record; texts printable, on one line."""
    metrics = list(dict.fromkeys(name for record in report.records for name in record.metrics))
    yield [*_FIXED, *_LIMIT, *map(quote, metrics), *_TEXTS]
    for record in report.records:
        yield [*_place(record), *_limit(record), *_figures(record, metrics), *_words(record)]


def _disarm(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _place(record: RecordResult) -> list[object]:
    values = (getattr(record, name) for name in _FIXED)
    return [value if isinstance(value, int) else quote(value) for value in values]


def _limit(record: RecordResult) -> list[object]:
    if record.limit is None:
        return [""] * len(_LIMIT)
    excess = measure_excess(record.metrics, record.limit)
    limit = record.limit
    return [quote(limit.metric), float(limit.value), quote(limit.origin), "" if excess is None else excess]


def _figures(record: RecordResult, metrics: Iterable[str]) -> list[object]:
    return [float(record.metrics[name]) if name in record.metrics else "" for name in metrics]


def _words(record: RecordResult) -> list[str]:
    return [quote(getattr(record, name)) for name in _TEXTS]
