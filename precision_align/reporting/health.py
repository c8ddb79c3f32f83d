"""The checks of one training as a page."""

from __future__ import annotations

from collections.abc import Sequence

from precision_align.core.terms import Verdict
from precision_align.reporting.commands import join_command
from precision_align.reporting.languages import say
from precision_align.reporting.resultpages import Block, Page
from precision_align.reporting.wording import format_bytes, format_number
from precision_align.training.health.findings import Costs, Finding, HealthReport, Severity

SHOWN_MODULES = 10  # by memory, largest first; the JSON form has them all
SHOWN = 40  # of one kind of severity; the JSON form has them all
_NEXT = ("nan forward", "nan backward", "nan gradient", "nan update")


def describe_health(report: HealthReport, language: str = "en") -> Page:
    """The page: faults, remarks, what was looked at."""
    faults = report.faults
    follow = [finding for finding in report.findings if finding.severity == Severity.CONSEQUENCE]
    remarks = [finding for finding in report.findings if finding.severity == Severity.REMARK]
    blocks = [
        _tabulate("health.faults", faults, language),
        _tabulate("health.consequences", follow, language),
        _tabulate("health.remarks", remarks, language),
        Block(
            say(language, "health.checked"),
            lines=[say(language, "health.checked.lead")],
            columns=[say(language, "health.check"), say(language, "health.evidence")],
            rows=[(name, str(count)) for name, count in report.checks.items()],
        ),
        _tabulate_costs(report.costs, language),
        Block(say(language, "health.notes"), lines=report.notes),
        _suggest(report, language),
    ]
    if not faults:
        sentence = say(language, "health.sentence.healthy", steps=len(report.steps), ranks=len(report.ranks))
        return Page(Verdict.ALIGNED, say(language, "health.healthy"), sentence, blocks)
    kinds = len({finding.code for finding in faults})
    first = f"{faults[0].place}: {phrase_finding(faults[0], language)}" if faults[0].place else ""
    values = {"count": kinds, "step": faults[0].step, "first": first or phrase_finding(faults[0], language)}
    sentence = say(language, "health.sentence.unhealthy", **values)
    return Page(Verdict.DIVERGED, say(language, "health.unhealthy"), sentence, blocks)


def phrase_finding(finding: Finding, language: str) -> str:
    """What was found, in a sentence."""
    text = say(language, f"health.code.{finding.code}", **finding.values)
    return text if finding.count < 2 else say(language, "health.times", text=text, count=finding.count)


def _tabulate(heading: str, findings: Sequence[Finding], language: str) -> Block:
    rows = [
        (
            say(language, "health.rank", step=finding.step, rank=finding.rank),
            finding.place,
            phrase_finding(finding, language),
        )
        for finding in findings[:SHOWN]
    ]
    if len(findings) > SHOWN:
        rows.append(("…", "…", f"+{len(findings) - SHOWN}"))
    columns = [say(language, f"health.{name}") for name in ("step", "where", "what")]
    return Block(say(language, heading), columns=columns, rows=rows) if rows else Block()


def _tabulate_costs(costs: Costs, language: str) -> Block:
    rows = [
        (say(language, f"health.cost.{name}"), write(value))
        for name, value, write in (
            ("step_time", costs.step_time, lambda value: f"{format_number(value)} s"),
            ("tokens_per_second", costs.tokens_per_second, format_number),
            ("peak_memory", costs.peak_memory, lambda value: format_bytes(int(value))),
        )
        if value is not None
    ]
    for scope, found in list(costs.modules.items())[:SHOWN_MODULES]:
        place = scope or say(language, "health.cost.root")
        values = {"kept": format_bytes(found["kept"]), "peak": format_bytes(found["peak"])}
        rows.append((place, say(language, "health.cost.module", **values)))
    lines = [say(language, "health.cost.recording")] if costs.recording and rows else []
    return Block(say(language, "health.costs"), lines=lines, rows=rows) if rows else Block()


def _suggest(report: HealthReport, language: str) -> Block:
    """The record of the first NaN, where that is what was found."""
    keys = [str(finding.values["record"]) for finding in report.faults if finding.code in _NEXT]
    if not keys:
        return Block()
    return Block(say(language, "health.next"), commands=[join_command("show", report.path, keys[0])])
