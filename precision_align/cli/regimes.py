"""``precision-align regimes``: float32 semantics first, then native precision, in one report."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from precision_align.cli.compare import find_status
from precision_align.core.errors import UsageError

if TYPE_CHECKING:
    from precision_align.reporting.regimes import RegimesReport

SUMMARY = "tell a wrong function from lost precision"

_EPILOGUE = """\
Two pairs of dumps of the same programs, one recorded in float32 and one in the dtype that is used; or, where both sides
run in one process, --code with a file of functions without arguments: reference() and candidate() make the model on
its device, inputs() gives what one call takes, step(module, inputs), if there is one, runs a training step.
Exit status: 0 both aligned, 1 one diverged, 2 wrong usage, 3 not comparable.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Two pairs of dumps, or code."""
    parser.epilog = _EPILOGUE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    pair = ("REF", "CAND")
    parser.add_argument("--float32", metavar=pair, nargs=2, help="the dumps of both sides, run in float32")
    parser.add_argument("--native", metavar=pair, nargs=2, help="the dumps of both sides in their own dtype")
    parser.add_argument("--code", metavar="FILE.py", help="reference(), candidate(), inputs(): it is imported and run")
    parser.add_argument("--replay", metavar="MODULE:FACTORY", help="with dumps: the reference's code, as for compare")
    parser.add_argument("--rules", metavar="FILE", help="a TOML file with rules of yours, each with its reason")
    parser.add_argument("-o", "--output", metavar="FILE", help="save the result: .html or .json")


def run(arguments: argparse.Namespace) -> int:
    """Compare and show. Returns 0 where both are aligned, 1 where one diverged, 3 where nothing can be said."""
    from precision_align.cli.pages import show_pages
    from precision_align.reporting.regimes import describe_regimes
    from precision_align.reporting.saving import check_page_target

    if arguments.output:
        check_page_target(arguments.output)
    report = _make(arguments)
    show_pages(arguments, report.to_dict(), lambda language: describe_regimes(report, language))
    statuses = {find_status(one, 0.5) for one in (report.float32, report.native)}
    return 1 if 1 in statuses else max(statuses)


def _make(arguments: argparse.Namespace) -> RegimesReport:
    from precision_align.workflows.factories import load_factory
    from precision_align.workflows.regimes import compare_regimes, run_regimes

    pairs = arguments.float32 is not None, arguments.native is not None
    if arguments.code is not None and not any(pairs) and arguments.replay is None:
        models = [load_factory(f"{arguments.code}:{name}", "--code") for name in ("reference", "candidate", "inputs")]
        step = _find_step(arguments.code)
        return run_regimes(models[0], models[1], models[2](), step=step, rules=arguments.rules)
    if arguments.code is not None or not all(pairs):
        raise UsageError("regimes needs --float32 REF CAND and --native REF CAND, or --code FILE.py alone")
    replay = None if arguments.replay is None else load_factory(arguments.replay)
    return compare_regimes(tuple(arguments.float32), tuple(arguments.native), replay=replay, rules=arguments.rules)


def _find_step(code: str) -> Any:
    """The file's step function; it is loaded already, so all that can fail is that there is none."""
    from precision_align.workflows.factories import load_factory

    try:
        return load_factory(f"{code}:step", "--code")
    except UsageError:
        return None
