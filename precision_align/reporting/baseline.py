"""A run against its baseline, and a ledger, as pages."""

from __future__ import annotations

from collections.abc import Sequence

from precision_align.core.terms import Verdict
from precision_align.reporting.languages import say
from precision_align.reporting.resultpages import Block, Page
from precision_align.reporting.wording import format_bytes, format_number
from precision_align.training.baselines import QUANTITIES, BaselineReport, Entry, Judgement


def describe_baseline(report: BaselineReport, language: str = "en") -> Page:
    """One table of what is better, worse or was not measured, then the gates."""
    rows = [_row(judgement, language) for judgement in report.judgements]
    columns = [say(language, f"baseline.{name}") for name in ("quantity", "before", "now", "limit", "result")]
    gates = [
        (gate, say(language, "baseline.unknown" if passed is None else "loss.holds" if passed else "loss.fails"))
        for gate, passed in report.gates
    ]
    word = say(language, "baseline.passed" if report.passed else "baseline.worse")
    values = {"name": report.now.name, "gate": report.now.gate, "base": report.baseline.name}
    blocks = [
        Block(columns=columns, rows=rows),
        Block(say(language, "baseline.gates", name=report.now.name), rows=gates),
    ]
    verdict = Verdict.ALIGNED if report.passed else Verdict.DIVERGED
    return Page(verdict, word, say(language, "baseline.sentence", **values), blocks)


def describe_ledger(ledger: Sequence[Entry], language: str = "en") -> Page:
    """All entries, oldest first."""
    rows = [
        (
            entry.created,
            entry.name,
            entry.gate,
            entry.verdict,
            *(_show(name, getattr(entry, name)) for name in QUANTITIES),
        )
        for entry in ledger
    ]
    columns = [say(language, f"baseline.{name}") for name in ("created", "name", "gate", "precision", *QUANTITIES)]
    sentence = say(language, "baseline.ledger", count=len(ledger))
    return Page(Verdict.ALIGNED, say(language, "baseline.word"), sentence, [Block(columns=columns, rows=rows)])


def _row(judgement: Judgement, language: str) -> tuple[str, ...]:
    name = judgement.quantity
    result = "baseline.unknown" if judgement.holds is None else "loss.holds" if judgement.holds else "loss.fails"
    shown = [_show(name, value) for value in (judgement.baseline, judgement.now, judgement.limit)]
    return (say(language, f"baseline.{name}"), *shown, say(language, result))


def _show(name: str, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "–"
    return format_bytes(int(value)) if name == "memory" else format_number(value)
