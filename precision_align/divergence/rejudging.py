"""Saved findings under other rules: from the metrics that were saved, without a dump and without running anything."""

from __future__ import annotations

from dataclasses import replace

from precision_align.comparison.engine import Comparison
from precision_align.comparison.rules import Rules, restore
from precision_align.core.results import Divergence, Findings
from precision_align.divergence.locating import locate, note_rows

# How the first note of a report begins that has no verdict because of what could not be judged.
_STALE = ("the runs differ, and what may be the cause could not be judged", "no output of the model and no optimizer")


def judge_again(findings: Findings, rules: Rules) -> Findings:
    """The same records under other rules: verdict, first divergence, frontier, coverage and notes follow from them.

    What was found is what the comparison found before its own rules. Explanations and operations inside a module are
    kept where the same place is blamed; for another place they would need the dumps, and a note says so.
    """
    rows = [rules.apply(restore(row)) for row in findings.records]
    stale = {*note_rows(findings.records, findings.first)}
    kept = [note for note in findings.notes if note not in stale and not note.startswith((*_STALE, "a rule on "))]
    comparison = Comparison(rows, kept, frozenset(findings.roots), findings.interrupted)
    found = locate(comparison, rules)
    known = {(one.key, one.scope, one.phase, one.kind): one for one in findings.frontier}
    frontier = [_take_over(one, known.get((one.key, one.scope, one.phase, one.kind))) for one in found.frontier]
    first = None if found.first is None else frontier[0]
    notes = list(found.notes)
    if first is not None and first.key not in {one.key for one in findings.frontier[:1]}:
        notes.append("judged again from saved metrics: explanations of another first place need the dumps, see compare")
    if not findings.roots and findings.records:
        notes.append("the saved report does not say which modules are outermost: compare again for a verdict")
    return replace(
        findings,
        verdict=found.verdict,
        first=first,
        frontier=frontier,
        records=rows,
        notes=notes,
        coverage=found.coverage,
    )


def _take_over(found: Divergence, known: Divergence | None) -> Divergence:
    return found if known is None else replace(known, metrics=found.metrics, limit=found.limit)
