"""A comparison of a quantised model with its high-precision one as a page."""

from __future__ import annotations

import math

from precision_align.core.terms import Verdict
from precision_align.reporting.languages import say
from precision_align.reporting.resultpages import Block, Page
from precision_align.reporting.wording import format_number, format_share
from precision_align.training.quantising.results import ModuleLoss, QuantReport, Spread

SHOWN = 40


def describe_quant(report: QuantReport, language: str = "en") -> Page:
    """The page: problems, SQNR by module, ranges that were exceeded, sensitivities, what to keep."""
    bad = bool(report.faults or report.exceeded)
    worst = min(report.modules, key=lambda module: _sortable(module.sqnr), default=None)
    place = "" if worst is None else (worst.scope or say(language, "root"))
    sqnr = "?" if worst is None else _decibels(worst.sqnr)
    values = {"count": len(report.faults), "exceeded": len(report.exceeded), "worst": place, "sqnr": sqnr}
    blocks = [
        Block(
            say(language, "quant.problems"),
            lines=[
                _phrase_problem(module, problem, language) for module in report.faults for problem in module.problems
            ],
        ),
        _tabulate_modules(report, language),
        Block(
            say(language, "quant.exceeded"),
            lines=[
                say(
                    language,
                    "quant.exceeded.line",
                    place=f"{one.scope} {one.path}".strip(),
                    low=format_number(one.calibrated[0]),
                    high=format_number(one.calibrated[1]),
                    reallow=format_number(one.real[0]),
                    realhigh=format_number(one.real[1]),
                    share=format_share(one.share),
                )
                for one in report.exceeded
            ],
        ),
        _tabulate_sensitivities(report, language),
        Block(
            say(language, "quant.keep"),
            lines=[
                say(language, "quant.keep.line", scope=scope, sqnr=_decibels(sqnr), base=_decibels(report.base))
                for scope, sqnr in report.keep
            ],
        ),
        Block(lines=report.notes),
    ]
    word = say(language, "quant.bad" if bad else "quant.good")
    return Page(Verdict.DIVERGED if bad else Verdict.ALIGNED, word, say(language, "quant.sentence", **values), blocks)


def _sortable(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _decibels(value: float) -> str:
    return "∞" if value == math.inf else f"{value:.1f} dB" if math.isfinite(value) else "?"


def _phrase_problem(module: ModuleLoss, problem: str, language: str) -> str:
    values = {
        "scale": format_number(module.scale),
        "zero": format_number(module.zero_point),
        "clipped": format_share(module.clipped),
        "used": format_share(module.used),
        "loss": _decibels(module.loss),
    }
    return f"{module.scope or say(language, 'root')}: {say(language, f'quant.problem.{problem}', **values)}"


def _describe(spread: Spread) -> str:
    return f"{format_number(spread.minimum)} .. {format_number(spread.maximum)}, σ {format_number(spread.deviation)}"


def _tabulate_modules(report: QuantReport, language: str) -> Block:
    ranked = sorted(report.modules, key=lambda module: _sortable(module.sqnr))[:SHOWN]
    rows = [
        (
            module.scope or say(language, "root"),
            module.dtype,
            _decibels(module.sqnr),
            _decibels(module.loss),
            "?" if math.isnan(module.clipped) else format_share(module.clipped),
            f"{_describe(module.before)} -> {_describe(module.after)}",
        )
        for module in ranked
    ]
    columns = [say(language, f"quant.{name}") for name in ("module", "dtype", "sqnr", "lost", "clipped", "spread")]
    return Block(say(language, "quant.modules"), columns=columns, rows=rows)


def _tabulate_sensitivities(report: QuantReport, language: str) -> Block:
    rows = [
        (one.scope, _decibels(one.alone), f"{one.gain:+.1f} dB", _decibels(one.weight))
        for one in report.sensitivities[:SHOWN]
    ]
    columns = [say(language, f"quant.{name}") for name in ("module", "alone", "gain", "weight")]
    return Block(say(language, "quant.sensitivity"), columns=columns, rows=rows) if rows else Block()
