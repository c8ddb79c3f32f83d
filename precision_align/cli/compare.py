"""``precision-align compare``: two dumps, or one dump and the reference's code, to the first divergence."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_align.cli.failures import phrase_exit
from precision_align.cli.output import print_log, print_report
from precision_align.core.errors import UsageError
from precision_align.core.terms import Verdict
from precision_align.reporting.languages import say

if TYPE_CHECKING:
    from precision_align.comparison.journals import Journal
    from precision_align.reporting.report import Report

SUMMARY = "find the first place where two runs really part"

ALIGNED, DIVERGED, NOT_COMPARABLE = 0, 1, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """REFERENCE, CANDIDATE, --replay, --rules, --library, --output, --min-coverage."""
    parser.add_argument(
        "dumps",
        metavar="DUMP",
        nargs="+",
        help="REFERENCE CANDIDATE; CANDIDATE alone where --replay gives the reference's code",
    )
    parser.add_argument(
        "--replay",
        metavar="MODULE:FACTORY",
        help="the reference's code: a torch.nn.Module, or a function without arguments that makes one; it is imported",
    )
    parser.add_argument(
        "--rename",
        metavar="FILE",
        help='where the two programs name modules differently: a TOML file, [modules], "candidate" = "reference"; '
        "without one they are paired by their content",
    )
    parser.add_argument(
        "--again",
        metavar="DUMP",
        action="append",
        default=[],
        help="a further run of the candidate on the same data: what differs on bit-equal inputs is nondeterministic; "
        "may be given more than once",
    )
    parser.add_argument(
        "--reference-again", metavar="DUMP", action="append", default=[], help="a further run of the reference"
    )
    parser.add_argument("--rules", metavar="FILE", help="a TOML file with rules of yours, each with its reason")
    parser.add_argument("--library", metavar="DIR", help="an operator library of yours instead of the bundled one")
    parser.add_argument(
        "--naming",
        metavar="PATTERN",
        help="for .npy, .npz, .pt or .safetensors files of another tool: what their names mean, such as "
        "'step{step}/{scope}.{role}.{path}', or a TOML file",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        action="append",
        default=[],
        help="save the report: .html, .json, .md, .xml (JUnit) or .csv; may be given more than once",
    )
    add_minimum(parser)


def add_minimum(parser: argparse.ArgumentParser) -> None:
    """--min-coverage."""
    parser.add_argument(
        "--min-coverage",
        metavar="SHARE",
        type=_share,
        default=0.5,
        help="share of the records that must be judged before 'aligned' is believed (default: 0.5)",
    )


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share between 0 and 1")
    return share


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0 aligned, 1 diverged, 3 not comparable or too little judged to call it aligned."""
    reference, candidate = split_sides(arguments.dumps, arguments.replay)
    _check_outputs(arguments.output)
    report = _compare_and_save(reference, candidate, arguments)
    print_report(report, as_json=arguments.json, language=arguments.lang)
    return finish(report, arguments)


def finish(report: Report, arguments: argparse.Namespace) -> int:
    """The exit status of a report; says on stderr where too little was judged to call it aligned."""
    status = find_status(report, arguments.min_coverage)
    if status == NOT_COMPARABLE and report.verdict == Verdict.ALIGNED:
        print_log(_phrase_coverage(report, arguments.min_coverage, arguments.lang))
    return status


def split_sides(dumps: list[str], replay: str | None) -> tuple[str | None, str]:
    """(reference or None, candidate). Raises UsageError where a side is missing."""
    if len(dumps) > 2:
        raise UsageError(f"compare takes a reference and a candidate, not {len(dumps)} dumps")
    if len(dumps) == 2:
        return dumps[0], dumps[1]
    if replay is None:
        raise UsageError(
            "compare needs REFERENCE and CANDIDATE, or a dump and the reference's code: --replay MODULE:FACTORY"
        )
    return None, dumps[0]


def find_status(report: Report, minimum: float) -> int:
    """The exit status. A divergence stands however little was judged; "aligned" does not."""
    from precision_align.reporting.wording import total_coverage

    if report.verdict == Verdict.DIVERGED:
        return DIVERGED
    if report.verdict == Verdict.ALIGNED and total_coverage(report).share >= minimum:
        return ALIGNED
    return NOT_COMPARABLE


def _compare_and_save(reference: str | None, candidate: str, arguments: argparse.Namespace) -> Report:
    """The report, saved; an interrupted comparison leaves a journal beside the first output, and goes on from it."""
    from precision_align.comparison.journals import Journal

    replay = None if arguments.replay is None else load_factory(arguments.replay)
    if not arguments.output:
        return _compare(reference, candidate, arguments, replay, Journal())
    from precision_align.workflows.resuming import open_journal

    sides = {"rules": arguments.rules, "naming": arguments.naming, "rename": arguments.rename}
    with open_journal(arguments.output[0], reference, candidate, **sides) as journal:
        if journal.num_known:
            print_log(say(arguments.lang, "cli.resumed", count=journal.num_known, path=journal.path))
        try:
            report = _compare(reference, candidate, arguments, replay, journal)
        except KeyboardInterrupt:
            journal.flush()
            if journal.is_kept:
                print_log(say(arguments.lang, "cli.kept", path=journal.path))
            raise
        for path in arguments.output:
            print_log(say(arguments.lang, "cli.saved", path=report.save(path, language=arguments.lang)))
        journal.remove()
    return report


def _compare(
    reference: str | None, candidate: str, arguments: argparse.Namespace, replay: Any, journal: Journal
) -> Report:
    from precision_align.cli.progress import Progress
    from precision_align.workflows.comparing import compare

    with Progress("reading") as reading, Progress("judging") as progress:
        return compare(
            reference,
            candidate,
            rules=arguments.rules,
            replay=replay,
            library=arguments.library,
            naming=arguments.naming,
            rename=arguments.rename,
            again=arguments.again,
            reference_again=arguments.reference_again,
            progress=progress,
            reading=reading,
            journal=journal,
        )


def load_factory(text: str, option: str = "--replay") -> Any:
    """What MODULE:NAME (or FILE.py:NAME) stands for, imported with the working directory on the path.

    Raises UsageError where it cannot be imported or has no such name.
    """
    module, _, name = text.rpartition(":")
    if not module or not name:
        raise UsageError(f"{option} {text!r}: write MODULE:FACTORY, for example train:build_model or model.py:GPT")
    try:
        found = _import_file(Path(module)) if module.endswith(".py") else _import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except SystemExit as stop:
        raise UsageError(
            f"{option} {text!r} ended the program ({phrase_exit(stop)}) while it was imported; put what it runs under "
            "if __name__ == '__main__':"
        ) from stop
    except Exception as error:  # the user's code may raise anything
        raise UsageError(f"{option} {text!r}: {type(error).__name__}: {error}") from error
    return found


def _import_module(name: str) -> Any:
    from importlib import import_module

    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return import_module(name)


def _import_file(path: Path) -> Any:
    from importlib.util import module_from_spec, spec_from_file_location

    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported")
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _check_outputs(paths: list[str]) -> None:
    """Wrong names are told before the work, not after it."""
    from precision_align.reporting.report import check_target

    for path in paths:
        check_target(path)


def _phrase_coverage(report: Report, minimum: float, language: str) -> str:
    from precision_align.reporting.wording import format_share, total_coverage

    share = format_share(total_coverage(report).share)
    return say(language, "cli.coverage", share=share, minimum=minimum)
