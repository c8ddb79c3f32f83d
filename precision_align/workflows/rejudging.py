"""``rejudge``: a saved report under other rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from precision_align.comparison.rules import Rules, load_rules
from precision_align.divergence.rejudging import judge_again
from precision_align.reporting.report import Report
from precision_align.workflows.comparing import find_mappings, note_curves


def rejudge(report: Any, rules: Any, *, library: Any = None) -> Report:
    """Judge the records of a saved report again, without dumps and without running anything.

    ``report``: a :class:`Report` or the path of a saved report.json; ``rules``: a rule file or what
    :func:`load_rules` gave. Every record starts from what was found before the rules of the first comparison. Raises
    RuleError, and what :meth:`Report.load` raises.
    """
    saved = report if isinstance(report, Report) else Report.load(report)
    known = rules if isinstance(rules, Rules) else load_rules(rules)
    found = judge_again(saved, known)
    rows, notes = find_mappings({one.op for one in found.frontier if one.mapping is None}, library)
    frontier = [replace(one, mapping=one.mapping or rows.get(one.op)) for one in found.frontier]
    first = None if found.first is None else frontier[0]
    stale = note_curves(saved.verdict, saved.curves)
    kept = [note for note in found.notes if note not in stale]
    parted = note_curves(found.verdict, found.curves)
    return Report.of(replace(found, first=first, frontier=frontier, notes=[*parted, *kept, *notes]))
