"""``precision-align compare``: two dumps, or one dump and the reference's code, to the first divergence."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from precision_align.cli.output import print_log, print_report
from precision_align.core.errors import UsageError
from precision_align.core.terms import Verdict
from precision_align.reporting.languages import say

if TYPE_CHECKING:
    from pathlib import Path

    from precision_align.comparison.journals import Journal
    from precision_align.reporting.report import Report
    from precision_align.workflows.sharding import Job

SUMMARY = "find the first place where two runs really part"

ALIGNED, DIVERGED, NOT_COMPARABLE = 0, 1, 3

# What NumPy's OpenBLAS reads as it is loaded.
THREADS = "OPENBLAS_NUM_THREADS"
# New objects between two looks for cycles. Records and rows are many, live until the end and make none; Python's own
# 700 (2,000 from 3.14 on) has all of them walked through again and again.
COLLECT_EVERY = 50_000


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
        "--layout",
        metavar="FILE",
        help="how the tensors of a candidate on several ranks lie, against a reference of one device: a TOML file with "
        "[mesh] and [tensors], such as 'blocks.*.mlp' = 'b s h[tp]'; by default from DTensors and by content",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        action="append",
        default=[],
        help="save the report: .html, .json, .md, .xml (JUnit), .csv or .xlsx; may be given more than once",
    )
    several = parser.add_mutually_exclusive_group()
    several.add_argument(
        "--shard",
        metavar="I/N",
        help="do the slow part of the I-th of N shares, for instance one on each machine; the part goes beside -o FILE",
    )
    several.add_argument("--merge", action="store_true", help="make the report of the parts of all shards")
    several.add_argument(
        "--dask",
        metavar="CLUSTER",
        help="share the work out to a Dask cluster: tcp://HOST:PORT, or how many workers to start here",
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
    parser.add_argument(
        "--time-budget",
        metavar="SECONDS",
        type=_seconds,
        help="begin nothing more after so long; the most suspicious calls are judged first, and with -o the same "
        "command goes on from there (default: judge all)",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


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
    _import_numpy()
    _check_outputs(arguments.output)
    if (arguments.shard or arguments.merge or arguments.dask) and not arguments.output:
        raise UsageError("--shard, --merge and --dask need -o FILE: the parts lie beside it")
    if arguments.shard and arguments.time_budget:
        raise UsageError("--time-budget is for a whole comparison: a share is measured whole, so leave one of them out")
    if arguments.shard:
        return _measure_shard(reference, candidate, arguments)
    with _collecting_seldom():
        report = _compare_and_save(reference, candidate, arguments)
    print_report(report, as_json=arguments.json, language=arguments.lang)
    return finish(report, arguments)


@contextmanager
def _collecting_seldom() -> Iterator[None]:
    """Look for cycles every ``COLLECT_EVERY`` objects only: this may be somebody's own process."""
    before = gc.get_threshold()
    gc.set_threshold(COLLECT_EVERY)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _import_numpy() -> None:
    """Without a thread for each core: OpenBLAS starts them at once, and each spins for 50 ms before it sleeps.

    Only NumPy's own library is told so; torch's, which replays, is loaded later.
    """
    if "numpy" in sys.modules or THREADS in os.environ:
        return
    os.environ[THREADS] = "1"
    try:
        import numpy  # noqa: F401
    finally:
        del os.environ[THREADS]


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

    replay = _load_replay(arguments)
    if not arguments.output:
        return _compare(reference, candidate, arguments, replay, Journal())
    with _open_journal(reference, candidate, arguments, replay) as journal:
        try:
            report = _compare(reference, candidate, arguments, replay, journal)
        except KeyboardInterrupt:
            _keep(journal, arguments.lang)
            raise
        for path in arguments.output:
            print_log(say(arguments.lang, "cli.saved", path=report.save(path, language=arguments.lang)))
        if report.is_partial:
            _keep(journal, arguments.lang)
        else:
            journal.remove()
    return report


def _keep(journal: Journal, language: str) -> None:
    journal.flush()
    if journal.is_kept:
        print_log(say(language, "cli.kept", path=journal.path))


def _load_replay(arguments: argparse.Namespace) -> Any:
    from precision_align.workflows.factories import load_factory

    return None if arguments.replay is None else load_factory(arguments.replay)


def _open_journal(reference: str | None, candidate: str, arguments: argparse.Namespace, replay: Any) -> Journal:
    """What is known already: from the parts of shares, or from an interrupted comparison."""
    from precision_align.workflows.resuming import open_journal
    from precision_align.workflows.sharding import Job, find_folder, merge_parts

    if arguments.merge or arguments.dask:
        job = Job(reference, candidate, replay, arguments.naming, arguments.layout, arguments.rename)
        folder = find_folder(arguments.output[0])
        if arguments.dask:
            _measure_on_cluster(job, folder, arguments)
        return merge_parts(job, folder)
    names = ("rules", "naming", "layout", "rename")
    sides = {name: getattr(arguments, name) for name in names}
    journal = open_journal(arguments.output[0], reference, candidate, **sides)
    if journal.num_known:
        print_log(say(arguments.lang, "cli.resumed", count=journal.num_known, path=journal.path))
    return journal


def _measure_on_cluster(job: Job, folder: Path, arguments: argparse.Namespace) -> None:
    from precision_align.cli.progress import Progress
    from precision_align.workflows.clusters import measure_on_cluster

    with Progress("shares") as progress:
        measure_on_cluster(job, arguments.replay, folder, arguments.dask, progress)


def _measure_shard(reference: str | None, candidate: str, arguments: argparse.Namespace) -> int:
    """One share; the exit status says only that it is done."""
    from precision_align.cli.progress import Progress
    from precision_align.workflows.sharding import Job, find_folder, measure_shard, parse_shard

    shard = parse_shard(arguments.shard)
    job = Job(reference, candidate, _load_replay(arguments), arguments.naming, arguments.layout, arguments.rename)
    with Progress("judging") as progress:
        path = measure_shard(job, shard, find_folder(arguments.output[0]), progress)
    print_log(say(arguments.lang, "cli.saved", path=path))
    return ALIGNED


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
            layout=arguments.layout,
            rename=arguments.rename,
            again=arguments.again,
            reference_again=arguments.reference_again,
            progress=progress,
            reading=reading,
            journal=journal,
            time_budget=arguments.time_budget,
            error_maps=bool(arguments.json or arguments.output),  # the first screen has none
        )


def _check_outputs(paths: list[str]) -> None:
    """Wrong names are told before the work, not after it."""
    from precision_align.reporting.report import check_target

    for path in paths:
        check_target(path)


def _phrase_coverage(report: Report, minimum: float, language: str) -> str:
    from precision_align.reporting.wording import format_share, total_coverage

    share = format_share(total_coverage(report).share)
    return say(language, "cli.coverage", share=share, minimum=minimum)
