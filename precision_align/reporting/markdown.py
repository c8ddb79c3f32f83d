"""Markdown to paste into an issue: short, and safe whatever a name contains."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from precision_align.core.results import Divergence, Findings
from precision_align.core.terms import Status, Way
from precision_align.reporting.commands import list_commands
from precision_align.reporting.languages import say, translate
from precision_align.reporting.wording import (
    SEVERITY,
    compare_runs,
    describe_mapping,
    format_number,
    format_share,
    name_scope,
    order_metrics,
    phrase_excess,
    phrase_verdict,
    quote,
)

_SHOWN = 20  # rows in the table of an issue


def render_markdown(report: Findings, *, language: str = "en") -> str:
    """Verdict, first divergence, worst records, coverage, notes and the differences of the runs."""
    blocks = [
        f"## {say(language, f'verdict.{report.verdict}')}",
        _escape_markup(phrase_verdict(report, language, mark=_mark)).replace(_OPEN, "**").replace(_CLOSE, "**"),
    ]
    if report.first is not None:
        blocks += _render_divergence(report.first, language)
    others = [found for found in report.frontier if found != report.first]
    if others:
        places = [f"- {_code(name_scope(found.scope, language))} {escape(found.op)}" for found in others]
        blocks += [f"### {say(language, 'page.frontier')}", "\n".join(places)]
    blocks += _render_worst(report, language)
    blocks += _render_coverage(report, language)
    blocks += _render_runs(report, language)
    commands = list_commands(report)
    if commands:
        body = "\n".join(commands)
        fence = _fence(body)
        blocks += [f"### {say(language, 'page.reproduce')}", f"{fence}sh\n{body}\n{fence}"]
    return "\n\n".join(blocks) + "\n"


def escape(text: object) -> str:
    """Outside text as plain Markdown text: no markup, no HTML, no mentions, no table cells."""
    return _escape_markup(quote(text))


def _escape_markup(text: str) -> str:
    # a blank of no width after @ keeps GitHub from telling people
    escaped = re.sub(r"([\\`*_{}\[\]<>#|~$])", r"\\\1", text.replace("&", "&amp;"))
    return escaped.replace("@", "@\u200b")


_OPEN, _CLOSE = "\ue000", "\ue001"


def _mark(name: str) -> str:
    return f"{_OPEN}{name}{_CLOSE}"


def _code(text: object) -> str:
    """A code span that no backtick in the text ends; a pipe would end a table cell even there."""
    shown = quote(text).replace("|", "\\|")
    runs = [len(run) for run in re.findall(r"`+", shown)]
    ticks = "`" * (max(runs, default=0) + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{ticks}{pad}{shown}{pad}{ticks}" if shown else ""


def _fence(body: str) -> str:
    return "`" * max(3, *(len(run) + 1 for run in re.findall(r"`+", body)), 3)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _render_divergence(found: Divergence, language: str) -> list[str]:
    at = [say(language, f"phase.{found.phase}")]
    at += [say(language, f"at.{name}", number=getattr(found, name)) for name in ("step", "call", "rank")]
    rows = [
        (say(language, "where"), f"{_code(name_scope(found.scope, language))} {' · '.join(at)}"),
        (say(language, "operator"), _code(found.op)),
        (say(language, "source"), _code(found.source)),
        (say(language, "page.field.site"), say(language, f"site.{found.site}")),
        (say(language, "evidence"), escape(found.evidence)),
    ]
    blocks = [f"### {say(language, 'page.first')}", _table(["", ""], [row for row in rows if row[1]])]
    if found.metrics:
        blocks.append(_render_metrics(found, language))
    if found.explanations:
        lines = [
            f"{number}. {escape(guess.text or guess.name)} "
            f"({say(language, 'leaves.long', share=format_share(guess.residual))})"
            for number, guess in enumerate(found.explanations, start=1)
        ]
        blocks += [f"**{say(language, 'page.explanations')}**", "\n".join(lines)]
    return blocks + (_render_mapping(found, language) if found.mapping is not None else [])


def _render_metrics(found: Divergence, language: str) -> str:
    rows = []
    for name, value in order_metrics(found.metrics, found.limit):
        limiting = found.limit is not None and found.limit.metric == name
        limit = format_number(found.limit.value) if limiting and found.limit is not None else ""
        excess = phrase_excess(found.metrics, found.limit, language) if limiting else ""
        label = escape(translate(language, f"metric.{name}", ""))
        rows.append(
            [f"{_code(name)} {label}", format_number(value), " · ".join(part for part in (limit, excess) if part)]
        )
    return _table([say(language, key) for key in ("measured", "page.measured.value", "limit")], rows)


def _render_mapping(found: Divergence, language: str) -> list[str]:
    row = describe_mapping(found.mapping or {})
    blocks = [f"**{say(language, 'page.mapping')}**: {_code(row.title)}"]
    if row.pitfalls:
        blocks.append("\n".join(f"- {escape(pitfall)}" for pitfall in row.pitfalls))
    if row.cases:
        head = [say(language, "page.cases"), say(language, "table.status"), say(language, "table.note")]
        blocks.append(_table(head, [[_code(case.name), escape(case.status), escape(case.note)] for case in row.cases]))
    return blocks


def _render_worst(report: Findings, language: str) -> list[str]:
    bad = [record for record in report.records if record.status not in (Status.PASS, Status.PROPAGATED)]
    if not bad:
        return []
    bad.sort(key=lambda record: (SEVERITY.index(Status(record.status)), record.order))
    rows = [
        [
            say(language, f"status.{record.status}"),
            _code(name_scope(record.scope, language)),
            say(language, f"phase.short.{record.phase}"),
            str(record.step),
            phrase_excess(record.metrics, record.limit, language),
            escape(record.note),
        ]
        for record in bad[:_SHOWN]
    ]
    head = [say(language, f"table.{name}") for name in ("status", "scope", "phase", "step", "excess", "note")]
    return [f"### {say(language, 'page.worst', count=len(rows))}", _table(head, rows)]


def _render_coverage(report: Findings, language: str) -> list[str]:
    head = [say(language, f"page.{name}") for name in ("phase", "judged", "recorded", "share")]
    rows = [
        [say(language, f"phase.{phase}"), str(seen.judged), str(seen.recorded), format_share(seen.share)]
        for phase, seen in report.coverage.items()
    ]
    blocks = [f"### {say(language, 'page.coverage')}"]
    blocks.append(_table(head, rows) if rows else say(language, "nothing_recorded"))
    blocks += ["\n".join(f"- {escape(note)}" for note in report.notes)] if report.notes else []
    return blocks + _render_modules(report, language)


def _render_modules(report: Findings, language: str) -> list[str]:
    """Modules that are not simply called the same on both sides."""
    unlike = [pair for pair in report.modules if pair.way != Way.MATCHED]
    if not unlike:
        return []
    rows = []
    for pair in unlike[:_SHOWN]:
        note = f" ({escape(pair.note)})" if pair.note else ""
        names = (_code(name) if name else "" for name in (pair.candidate, pair.reference))
        rows.append([*names, f"{say(language, f'way.{pair.way}')}{note}"])
    head = [say(language, f"page.{name}") for name in ("candidate", "reference", "way")]
    return [f"### {say(language, 'page.modules')} ({len(unlike)})", _table(head, rows)]


def _render_runs(report: Findings, language: str) -> list[str]:
    differing = [row for row in compare_runs(report.reference, report.candidate) if row[1] != row[2]]
    if not differing:
        return []
    head = [say(language, f"page.{name}") for name in ("field", "reference", "candidate")]
    rows = [[escape(name), _code(left), _code(right)] for name, left, right in differing]
    return [f"### {say(language, 'page.runs')}", _table(head, rows)]
