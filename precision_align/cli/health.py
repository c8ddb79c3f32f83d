"""``precision-align health``: what goes wrong in one training by itself."""

from __future__ import annotations

import argparse
import shlex

from precision_align.cli.parsers import PROGRAM
from precision_align.cli.progress import Progress
from precision_align.core.errors import UsageError

SUMMARY = "find what goes wrong in one training by itself"

_EPILOGUE = f"""\
Checked are updates, gradients, their logged norm, loss scaling, the first loss, labels and masks, replicas, and who
made the first NaN. With --run a script is run and recorded into DUMP first (statistics and hashes only):
  {PROGRAM} health runs/check --run "train.py --lr 1e-3"
Exit status: 0 nothing wrong, 1 faults, 2 wrong usage, 3 nothing to check.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A dump, what it is held against, and a script to record."""
    parser.epilog = _EPILOGUE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("dump", metavar="DUMP", help="a recorded run, or the folder to record one into")
    parser.add_argument(
        "--reference", metavar="DUMP", help="the run that is right: settings and first update are compared"
    )
    parser.add_argument(
        "--replicas",
        metavar="RANKS",
        help='which ranks hold the same parameters, such as "0,1;2,3" (default: all ranks)',
    )
    parser.add_argument("--run", metavar="SCRIPT", help="run this script, with its arguments, and record it first")
    parser.add_argument("--steps", metavar="LIST", help='with --run: which steps to record, such as "0-9"')
    parser.add_argument("-o", "--output", metavar="FILE", help="save the result: .html or .json")


def run(arguments: argparse.Namespace) -> int:
    """Check and show. Returns 0 where nothing is wrong, 1 where something is."""
    from precision_align.cli.pages import show_pages
    from precision_align.reporting.health import describe_health
    from precision_align.reporting.saving import check_page_target
    from precision_align.training.health.checking import check_health

    if arguments.output:
        check_page_target(arguments.output)
    groups = None if arguments.replicas is None else read_groups(arguments.replicas)
    if arguments.run:
        _record(arguments)
    with Progress("checking") as progress:
        report = check_health(arguments.dump, arguments.reference, replicas=groups, progress=progress)
    show_pages(arguments, report.to_dict(), lambda language: describe_health(report, language))
    return int(bool(report.faults))


def read_groups(text: str) -> list[list[int]]:
    """Groups of ranks from "0,1;2-5". Raises UsageError."""
    from precision_align.recording.plan import parse_steps

    try:
        return [sorted(parse_steps(part) or ()) for part in text.split(";")]
    except UsageError:
        raise UsageError(f'--replicas {text!r}: write groups of ranks such as "0,1;2,3"') from None


def _record(arguments: argparse.Namespace) -> None:
    """Run the script under capture; its own exit status does not matter to what was recorded."""
    from precision_align.cli import capture
    from precision_align.cli.output import print_log
    from precision_align.cli.parsers import build_verb_parser

    parser = build_verb_parser("capture", capture.SUMMARY)
    capture.add_arguments(parser)
    steps = ["--steps", arguments.steps] if arguments.steps else []
    script = ["--", *shlex.split(arguments.run)]
    words = ["-o", arguments.dump, "--payload", "statistics", "--facts", "--overwrite", *steps, *script]
    options = parser.parse_args(words)
    options.json, options.lang = False, arguments.lang
    status = capture.run(options)
    if status:
        print_log(f"the script ended with status {status}; what it recorded is checked")
