"""``precision-align loss``: the step where two curves part beyond their noise."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from precision_align.cli.output import encoding_of, measure_columns, print_log
from precision_align.cli.pages import show_pages
from precision_align.core.errors import UsageError
from precision_align.reporting.languages import say

if TYPE_CHECKING:
    from precision_align.training.losses import LossReport

SUMMARY = "find the step where two loss curves part"

_EPILOGUE = """\
A side is a dump of 'precision-align capture', a CSV, TSV, JSONL or JSON file, a trainer_state.json or a TensorBoard
event file (or the folder that holds it), or a plain log: lines of Megatron, MindSpeed, DeepSpeed, Hugging Face,
MindSpore Transformers and "step 12 loss 3.4" are understood; for others give --pattern.
Exit status: 0 the curves stay within their noise, 1 they part, 2 wrong usage, 3 not comparable.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Two sides, the series, and what is known of its noise."""
    parser.epilog = _EPILOGUE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("reference", metavar="REF", help="the run that is right")
    parser.add_argument("candidate", metavar="CAND", help="the run under suspicion")
    parser.add_argument("--name", default="loss", help="the series to compare (default: loss), such as 'grad norm'")
    parser.add_argument(
        "--pattern",
        metavar="REGEX",
        help="for plain logs: an expression with (?P<step>...) and (?P<value>...), or two groups in that order",
    )
    parser.add_argument(
        "--band",
        metavar="WIDTH",
        help="how far apart noise may be: a relative number (1e-3), or the dtype both runs computed in "
        "(float32, bfloat16, float16, tf32, hf32); default: by the dumps' dtypes, else estimated",
    )
    parser.add_argument(
        "--repeat",
        metavar="RUN",
        action="append",
        default=[],
        help="another run of the reference, to measure the noise; may be given more than once",
    )
    parser.add_argument(
        "--duplicates",
        choices=("error", "first", "last", "mean", "order"),
        default="error",
        help="a step with several different values: keep the first, the last (a resumed run) or the mean, or number "
        "all values in order (a count that restarts each epoch); default: an error that names the lines",
    )
    counting = parser.add_mutually_exclusive_group()
    counting.add_argument(
        "--by", metavar="SERIES", help="align by another series instead of steps, such as 'consumed samples'"
    )
    counting.add_argument(
        "--per-step",
        metavar="N",
        nargs=2,
        type=int,
        help="align by consumption: sequences or tokens that REF and CAND consume a step",
    )
    parser.add_argument("--plan", metavar="FILE", help="write a plan of what to record next, for 'capture --plan'")
    parser.add_argument("-o", "--output", metavar="FILE", help="save the result: .html or .json")
    parser.add_argument("--no-plot", action="store_true", help="text only")


def run(arguments: argparse.Namespace) -> int:
    """Compare and show. Returns 0 where the curves stay together, 1 where they part."""
    from precision_align.reporting.losses import describe_losses
    from precision_align.reporting.saving import check_page_target
    from precision_align.training.curves import compare_losses

    if arguments.output:
        check_page_target(arguments.output)
    report = compare_losses(
        arguments.reference,
        arguments.candidate,
        name=arguments.name,
        band=read_band(arguments.band),
        repeats=arguments.repeat,
        pattern=arguments.pattern,
        duplicates=arguments.duplicates,
        by=arguments.by,
        per_step=None if arguments.per_step is None else tuple(arguments.per_step),
    )
    plan = _write_plan(report, arguments)
    drawing = ""
    if not arguments.no_plot and not arguments.json:
        drawing = report.plot(measure_columns(), ascii_only=not can_draw(encoding_of(sys.stdout)))
    show_pages(
        arguments, report.to_dict(), lambda language: describe_losses(report, language, drawing=drawing, plan=plan)
    )
    return int(report.parted)


def _write_plan(report: LossReport, arguments: argparse.Namespace) -> str:
    """The plan's path, "" where none is asked for or nothing parts. Raises UsageError where it cannot be written."""
    if not arguments.plan or report.capture is None:
        return ""
    from precision_align.recording.zoomplans import write_zoom_plan

    try:
        write_zoom_plan(report.capture.to_zoom_plan(), arguments.plan)
    except OSError as error:
        raise UsageError(f"the plan {arguments.plan} cannot be written: {error.strerror or error}") from error
    print_log(say(arguments.lang, "cli.saved", path=arguments.plan))
    return str(arguments.plan)


def read_band(text: str | None) -> float | str | None:
    """A number where it is one, else the name of a dtype; whether it is known is for the comparison to say."""
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text


def can_draw(encoding: str) -> bool:
    """Whether an encoding has braille characters."""
    try:
        "\u28ff".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
