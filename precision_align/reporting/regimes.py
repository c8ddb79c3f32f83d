"""The two regimes of one comparison, float32 semantics and native precision, and what they mean together."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_align.core.results import Divergence
from precision_align.core.terms import Kind, Verdict
from precision_align.reporting.languages import LANGUAGES, say
from precision_align.reporting.messages import translate_message
from precision_align.reporting.report import Report
from precision_align.reporting.resultpages import Block, Page, render_page
from precision_align.reporting.saving import save_pages
from precision_align.reporting.wording import format_share, name_scope, phrase_verdict, total_coverage

FORMAT = "precision-align regimes"
_NOTES = 5


@dataclass(frozen=True, repr=False)
class RegimesReport:
    """``float32``, ``native``: the two comparisons; ``notes``: what limits the reading of both together."""

    float32: Report
    native: Report
    notes: Sequence[str] = ()

    @property
    def conclusion(self) -> str:
        """What the two verdicts mean together.

        "aligned"; "precision" (float32 is aligned, native is not); "semantics" (both diverge, at the same place);
        "elsewhere" (at two places); "hidden" (only float32 diverges); "mode", "random", "nondeterministic" (float32 has
        no fault but one of these); "open" (one of the two has no verdict).
        """
        first = self.float32.first
        if Verdict.NOT_COMPARABLE in (self.float32.verdict, self.native.verdict):
            return "open"
        if first is None:
            return "aligned" if self.native.first is None else "precision"
        if first.kind != Kind.ORIGIN:
            return str(first.kind)
        if self.native.first is None:
            return "hidden"
        return "semantics" if _place(first) == _place(self.native.first) else "elsewhere"

    @property
    def verdict(self) -> Verdict:
        """Of both together: diverged where one is, aligned where both are."""
        verdicts = (self.float32.verdict, self.native.verdict)
        if Verdict.DIVERGED in verdicts:
            return Verdict.DIVERGED
        return Verdict.ALIGNED if set(verdicts) == {Verdict.ALIGNED} else Verdict.NOT_COMPARABLE

    def __repr__(self) -> str:
        return f"<RegimesReport {self.conclusion}: float32 {self.float32.verdict}, native {self.native.verdict}>"

    def __str__(self) -> str:
        return render_page(describe_regimes(self))

    def to_dict(self) -> dict[str, Any]:
        """Plain values: the conclusion, and both reports as :meth:`Report.to_dict` has them."""
        return {
            "format": FORMAT,
            "conclusion": self.conclusion,
            "verdict": str(self.verdict),
            "notes": list(self.notes),
            "float32": self.float32.to_dict(),
            "native": self.native.to_dict(),
        }

    def save(self, path: str | os.PathLike[str], *, language: str = "en") -> Path:
        """Write it as .json or .html. Raises UsageError, Unavailable."""
        pages = {name: describe_regimes(self, name) for name in LANGUAGES}
        return save_pages(path, self.to_dict(), pages, pages[language].sentence, language)


def _place(found: Divergence) -> tuple[object, ...]:
    return found.scope, found.site


def describe_regimes(report: RegimesReport, language: str = "en") -> Page:
    """The page: what both mean together, then each of the two."""
    verdicts = {name: say(language, f"verdict.{one.verdict}") for name, one in _list(report)}
    unknown = [name for name, one in _list(report) if one.verdict == Verdict.NOT_COMPARABLE]
    values = {
        "float32": _name(report.float32.first, language),
        "native": _name(report.native.first, language),
        "first": verdicts["float32"],
        "verdict": verdicts["native"],
        "regimes": ", ".join(say(language, f"regimes.name.{name}") for name in unknown),
    }
    blocks = [Block(say(language, f"regimes.{name}"), lines=[*_phrase(one, language)]) for name, one in _list(report)]
    blocks.append(Block(lines=[say(language, "regimes.note", text=note) for note in report.notes]))
    word = say(language, f"verdict.{report.verdict}").upper()
    return Page(report.verdict, word, say(language, f"regimes.{report.conclusion}", **values), blocks)


def _list(report: RegimesReport) -> list[tuple[str, Report]]:
    return [("float32", report.float32), ("native", report.native)]


def _name(found: Divergence | None, language: str) -> str:
    return "" if found is None else name_scope(found.scope, language)


def _phrase(report: Report, language: str) -> Iterator[str]:
    yield f"{say(language, f'verdict.{report.verdict}').upper()}: {phrase_verdict(report, language)}"
    if report.first is not None:
        yield f"{report.first.op}  {report.first.source}".strip()
        yield report.first.evidence
        yield from (
            f"{say(language, 'leaves', share=format_share(guess.residual))} {guess.text or guess.name}"
            for guess in list(report.first.explanations)[:2]
        )
    yield f"{say(language, 'coverage')}: {format_share(total_coverage(report).share)}"
    yield from (
        say(language, "regimes.note", text=translate_message(note, language)) for note in list(report.notes)[:_NOTES]
    )
