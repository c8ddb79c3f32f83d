"""``precision-align bisect``: the smallest set of swaps that cures a run, found by running it."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from precision_align.cli.output import print_json, print_log, print_text
from precision_align.cli.parsers import PROGRAM
from precision_align.core.errors import UsageError
from precision_align.reporting.languages import say

if TYPE_CHECKING:
    from precision_align.reporting.report import Report
    from precision_align.workflows.bisecting import Bisection, Laboratory

SUMMARY = "find the fewest modules or operators whose swap cures a run"

CURED, NOT_CURED = 0, 1
REMEDY = "cure.py"

_EPILOGUE = f"""\
Everything after -- is the script and its own arguments, as for capture. Each run is
  LAUNCHER {PROGRAM} capture -o DIR/... CAPTURE_OPTIONS --swap ... -- script.py [arguments]
for example with --launcher "torchrun --nproc-per-node 2 --no-python". A run that crashes counts as not cured.
The same command again goes on where it was interrupted: runs that are done are taken from DIR/bisect.json.
Exit status: 0 a cure was found and confirmed, 1 none.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to try, when it is cured, how to run."""
    parser.epilog = _EPILOGUE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = f"{PROGRAM} bisect --candidates LIST -o DIR [options] -- script.py [arguments]"
    parser.add_argument(
        "--candidates",
        metavar="LIST",
        default="auto",
        help="by commas, WHAT or WHAT=HOW as for capture --swap; auto: what --report (or the run without swaps) "
        "blames, then all modules that compute (default: auto)",
    )
    parser.add_argument(
        "--kind", choices=("cpu", "composed", "fp32"), default="cpu", help="HOW where it is not given (default: cpu)"
    )
    parser.add_argument("--report", metavar="FILE", help="a report.json of the run: its suspects are tried first")
    parser.add_argument("-o", "--output", metavar="DIR", default="bisect", help="the folder (default: %(default)s)")
    parser.add_argument("--runs", metavar="N", type=int, default=20, help="at most so many (default: %(default)s)")
    parser.add_argument(
        "--until",
        metavar="CONDITION",
        default="aligned",
        help="when it is cured: aligned, or SERIES<SHARE: every step's value within SHARE of the reference's, such as "
        "'loss<0.01' (default: %(default)s)",
    )
    parser.add_argument("--reference", metavar="DUMP", help="the reference's dump; for a series also a log or table")
    parser.add_argument("--replay", metavar="MODULE:FACTORY", help="the reference's code, as for compare")
    parser.add_argument(
        "--confirm", metavar="N", type=int, default=1, help="run the cure so many times more (default: %(default)s)"
    )
    parser.add_argument("--capture", metavar="OPTIONS", default="", help="options of capture, such as '--steps 0-1'")
    parser.add_argument("--launcher", metavar="COMMAND", default="", help="what stands before capture in each run")
    parser.add_argument("script", nargs=argparse.REMAINDER, metavar="-- script.py ...", help="what to run")


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0: a cure was found and, if asked for, confirmed; 1 none."""
    from precision_align.workflows.bisecting import find_cure
    from precision_align.workflows.remedies import write_remedy

    words = arguments.script[1:] if arguments.script[:1] == ["--"] else arguments.script
    if not words:
        raise UsageError("no script is given: end the command with -- script.py ARGUMENTS")
    wanted = _parse_candidates(arguments)
    laboratory = _open_laboratory(arguments, words)
    report = None if arguments.report is None else _load_report(arguments.report)
    if report is None and laboratory.try_swaps(()).outcome == "cured":
        print_log("the run without any swap is not ill: there is nothing to cure")
        return CURED
    suspects, others = _order_candidates(wanted, laboratory, report, arguments.kind)
    if not suspects and not others:
        raise UsageError("there is nothing to try: name modules, functions or operators with --candidates")
    found = find_cure(laboratory, suspects, others, arguments.confirm)
    remedy = write_remedy(found.swaps, found.text) if found.swaps else ""
    _tell(found, remedy, arguments)
    return CURED if found.swaps and (found.confirmed or not arguments.confirm) else NOT_CURED


def _parse_candidates(arguments: argparse.Namespace) -> list[str] | None:
    """Swaps as texts, None for "auto". Raises UsageError, before anything is run."""
    from precision_align.recording.swaps import make_swaps, parse_swap

    if arguments.candidates == "auto":
        return None
    swaps = [parse_swap(word.strip(), arguments.kind) for word in arguments.candidates.split(",") if word.strip()]
    for swap in swaps:
        make_swaps({swap.pattern: swap.kind.value})
    return [swap.text for swap in swaps]


def _load_report(path: str) -> Report:
    from precision_align.reporting.report import Report

    return Report.load(path)


def _open_laboratory(arguments: argparse.Namespace, words: Sequence[str]) -> Laboratory:
    from precision_align.workflows.bisecting import Criterion, Laboratory
    from precision_align.workflows.factories import load_factory

    replay = None if arguments.replay is None else load_factory(arguments.replay)
    options = shlex.split(arguments.capture)
    launcher = shlex.split(arguments.launcher)

    def make_command(swaps: Sequence[str], dump: Path) -> list[str]:
        flags = [word for swap in swaps for word in ("--swap", swap)]
        ours = [sys.executable, "-m", "precision_align", "capture", "-o", str(dump), *options, *flags]
        return [*launcher, *ours, "--", *words]

    settings = {name: getattr(arguments, name) for name in ("until", "reference", "replay", "capture", "launcher")}
    return Laboratory(
        Path(arguments.output),
        make_command,
        execute,
        Criterion.parse(arguments.until, arguments.reference, replay),
        {**settings, "script": list(words)},
        arguments.runs,
        print_log,
    )


def execute(words: Sequence[str], log: Path) -> int:
    """Run a command with its output in a file. Returns the exit status; 127 where there is no such program."""
    with log.open("wb") as stream:
        try:
            return subprocess.run(words, stdout=stream, stderr=subprocess.STDOUT, check=False).returncode
        except OSError as error:
            stream.write(f"{error}\n".encode())
            return 127


def _order_candidates(
    wanted: list[str] | None, laboratory: Laboratory, report: Report | None, kind: str
) -> tuple[list[str], list[str]]:
    """What is blamed, and what else there is to try."""
    from precision_align.workflows.bisecting import list_leaves, list_suspects

    if wanted is not None and report is None:
        return [], wanted
    report = report if report is not None else laboratory.compare_unswapped()
    blamed = [] if report is None else list_suspects(report, kind)
    if wanted is None:
        return blamed, list_leaves(report, laboratory.dump_of(()), kind)
    return [swap for swap in wanted if swap in blamed], wanted


def _tell(found: Bisection, remedy: str, arguments: argparse.Namespace) -> None:
    place = Path(arguments.output) / REMEDY
    if remedy:
        place.write_text(remedy, encoding="utf-8")
    if arguments.json:
        print_json({**asdict(found), "remedy": str(place) if remedy else ""})
        return
    print_text(f"{', '.join(found.swaps) or 'no swap'}: {found.text}")
    if remedy:
        print_text(f"\n{remedy}")
        print_log(say(arguments.lang, "cli.saved", path=place))
