"""A comparison of two checkpoints as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from precision_align.core.terms import Verdict
from precision_align.reporting.languages import say
from precision_align.reporting.resultpages import Block, Page
from precision_align.reporting.wording import format_number, format_share
from precision_align.training.checkpoints.differences import FAULTS, CheckpointReport, Fate, TensorFate

SHOWN = 60  # tensors of one table; the JSON form has them all


def describe_checkpoints(report: CheckpointReport, language: str = "en") -> Page:
    """The page: what is lost or changed, then what only looks different."""
    faults = report.faults
    changes = [fate for fate in report.fates if fate.fate not in FAULTS and fate.fate != Fate.EQUAL]
    counts = ", ".join(f"{count} {say(language, f'checkpoint.fate.{kind}')}" for kind, count in report.count().items())
    kinds = say(language, "checkpoint.kinds", reference=report.kinds[0], candidate=report.kinds[1])
    word = say(language, "checkpoint.different" if faults else "checkpoint.equal")
    blocks = [
        _tabulate("checkpoint.faults", faults, language),
        _tabulate("checkpoint.changes", changes, language),
        Block(say(language, "checkpoint.notes"), lines=report.notes),
    ]
    sentence = say(language, "checkpoint.sentence", counts=counts, kinds=kinds)
    return Page(Verdict.DIVERGED if faults else Verdict.ALIGNED, word, sentence, blocks)


def _tabulate(heading: str, fates: Sequence[TensorFate], language: str) -> Block:
    if not fates:
        return Block()
    rows = [
        (fate.name, say(language, f"checkpoint.fate.{fate.fate}"), "; ".join(_list_details(fate)))
        for fate in fates[:SHOWN]
    ]
    if len(fates) > SHOWN:
        rows.append(("…", "…", f"+{len(fates) - SHOWN}"))
    columns = [say(language, f"checkpoint.{name}") for name in ("name", "fate", "detail")]
    return Block(say(language, heading), columns=columns, rows=rows)


def _list_details(fate: TensorFate) -> Iterator[str]:
    """Names, dtypes, shapes and figures, which read the same in every language."""
    if fate.partner and fate.partner != fate.name:
        yield fate.partner
    if fate.layout:
        yield fate.layout
    if len(set(fate.dtypes)) > 1:
        yield " -> ".join(fate.dtypes)
    if len(set(fate.shapes)) > 1:
        yield " -> ".join(str(list(shape)) for shape in fate.shapes)
    if fate.metrics.get("mismatched"):
        yield format_share(fate.metrics["mismatched"])
        yield from (f"{name} {format_number(fate.metrics[name])}" for name in ("max_abs", "rel_l2"))
    if fate.metrics.get("nonfinite"):
        yield f"NaN/Inf {fate.metrics['nonfinite']:.0f}"
    if fate.note:
        yield fate.note
