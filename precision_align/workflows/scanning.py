"""Scan a source tree, and tell for each finding what the mapping library has for it: the migration's work list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from precision_align.library.rows import MappingRow
from precision_align.scanner.baseline import hide_known, read_baseline
from precision_align.scanner.findings import Cover, Finding, ScanReport
from precision_align.scanner.rules import Rule
from precision_align.scanner.scanning import scan_tree


def scan_source(
    path: str | Path,
    rules: Iterable[Rule],
    rows: Sequence[MappingRow] = (),
    *,
    baseline: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ScanReport:
    """Raises UsageError where there is nothing to read, or the baseline is none.

    ``progress``: told (files read, files in all).
    """
    known = read_baseline(baseline) if baseline is not None else frozenset()
    report = cover_findings(scan_tree(path, rules, progress), rows)
    return hide_known(report, known) if baseline is not None else report


def cover_findings(report: ScanReport, rows: Sequence[MappingRow]) -> ScanReport:
    """Each finding with its rows: those whose symbol it names in full, else those that its rule names."""
    by_id = {row.id: row for row in rows}
    by_symbol: dict[str, list[str]] = {}
    for row in rows:
        for symbol in row.symbols:
            by_symbol.setdefault(symbol, []).append(row.id)
    return replace(report, findings=[_cover(finding, by_id, by_symbol) for finding in report.findings])


def _cover(finding: Finding, by_id: Mapping[str, MappingRow], by_symbol: Mapping[str, Sequence[str]]) -> Finding:
    named = [id_ for name in finding.name.split(", ") for id_ in by_symbol.get(name, ())]
    ids = tuple(dict.fromkeys(id_ for id_ in named or finding.rows if id_ in by_id))
    tested = any(by_id[id_].cases for id_ in ids)
    return replace(finding, rows=ids, cover=Cover.TESTED if tested else Cover.ROW if ids else Cover.NONE)
