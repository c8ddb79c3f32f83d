"""A comparison of two curves as a page."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator

from precision_align.core.terms import Verdict
from precision_align.reporting.commands import join_command
from precision_align.reporting.languages import say
from precision_align.reporting.messages import translate_message
from precision_align.reporting.resultpages import Block, Page
from precision_align.training.losses import LossReport
from precision_align.training.spikes import Spike

_SCRIPT = "train.py"


def describe_losses(report: LossReport, language: str = "en", *, drawing: str = "", plan: str = "") -> Page:
    """The page; ``drawing``: the curves as text, for a terminal; ``plan``: where the capture plan was written."""
    verdict = Verdict.DIVERGED if report.parted else Verdict.ALIGNED
    word = say(language, "loss.parted" if report.parted else "loss.together")
    blocks = [
        Block(drawing=drawing, curves=[report.to_curve()]),
        Block(lines=list(_list_facts(report, language))),
        _tabulate_rules(report, language),
        Block(
            say(language, "loss.spikes"),
            lines=[_phrase_spike(spike, language) for spike in report.spikes],
        ),
        Block(say(language, "loss.notes"), lines=[translate_message(note, language) for note in report.notes]),
        *_list_next(report, language, plan),
    ]
    return Page(verdict, word, _phrase_sentence(report, language), blocks)


def _phrase_sentence(report: LossReport, language: str) -> str:
    common = {
        "name": report.name,
        "count": len(report.steps),
        "first": report.steps[0],
        "last": report.steps[-1],
        "limit": f"{report.limit:.1e}",
    }
    if report.onset is None:
        return say(language, "loss.sentence.together", **common)
    difference = report.onset_difference
    size = (
        say(language, "loss.size.nan")
        if math.isnan(difference)
        else say(language, "loss.size", difference=f"{difference:+.2e}")
    )
    kind = say(language, f"loss.kind.{report.kind}")
    return say(language, "loss.sentence.parted", **common, axis=report.axis, onset=report.onset, kind=kind, size=size)


def _list_facts(report: LossReport, language: str) -> Iterator[str]:
    yield say(
        language,
        "loss.figures",
        mean=f"{report.mean_error:.2e}",
        largest=f"{report.max_error:.2e}",
        step=report.max_error_step,
        trend=f"{report.trend:+.1e}",
    )
    yield say(language, "loss.band", method=translate_message(report.band.method, language))
    if report.cause:
        yield say(language, f"loss.cause.{report.cause}")
    if report.shift is not None:
        spacing = 1 if report.order is not None else report.steps[1] - report.steps[0]
        way = "ahead" if report.shift > 0 else "behind"
        yield say(language, f"loss.shift.{way}", count=abs(report.shift) * spacing)
    if report.order is not None:
        order = report.order
        values = {"step": order.step, "shift": order.shift, "shared": order.shared, "count": order.compared}
        yield say(language, f"loss.batches.{order.kind}", **values)


def _tabulate_rules(report: LossReport, language: str) -> Block:
    if not report.acceptance:
        return Block()
    rows = [
        (
            result.name,
            say(language, "loss.holds" if result.holds else "loss.fails"),
            f"{result.value:.4g} / {result.limit:g}",
            result.source.partition(":")[0] + (f" ({translate_message(result.note, language)})" if result.note else ""),
        )
        for result in report.acceptance
    ]
    columns = [say(language, f"loss.{name}") for name in ("rule", "result", "measured", "source")]
    return Block(
        say(language, "loss.acceptance"), lines=[say(language, "loss.acceptance.lead")], columns=columns, rows=rows
    )


def _phrase_spike(spike: Spike, language: str) -> str:
    sides = "both" if len(spike.sides) > 1 else spike.sides[0]
    batch = ""
    if spike.batch:
        key = "loss.spike.batches" if len(spike.batch) > 1 else "loss.spike.batch"
        batch = say(language, key, batch=", ".join(spike.batch))
    rise = f"{100 * spike.rise:.0f} %"
    return say(
        language, "loss.spike", step=spike.step, rise=rise, sides=say(language, f"loss.spike.{sides}"), batch=batch
    )


def _list_next(report: LossReport, language: str, plan: str) -> Iterator[Block]:
    capture = report.capture
    if capture is None:
        return
    heading = say(language, "loss.next")
    sides = (report.reference, report.candidate)
    if all(capture.last in side.recorded for side in sides):
        command = join_command("compare", *(side.origin for side in sides))
        yield Block(heading, lines=[say(language, "loss.next.recorded")], commands=[command])
        return
    lines = []
    if capture.offset:
        lines.append(say(language, "loss.next.offset", step=report.onset, captured=capture.last))
    lines.append(say(language, "loss.next.record"))
    targets = [f"{role}-{capture.label}" for role in ("reference", "candidate")]
    options = ["--plan", plan] if plan else ["--steps", capture.steps]
    commands = [
        join_command("capture", *options, "-o", target, "--", *(shlex.split(side.command) or [_SCRIPT]))
        for target, side in zip(targets, sides)
    ]
    yield Block(heading, lines=lines, commands=[*commands, join_command("compare", *targets)])
