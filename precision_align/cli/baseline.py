"""``precision-align baseline``: a ledger of what a training reached, and a new run against it."""

from __future__ import annotations

import argparse
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from precision_align.core.errors import UsageError

if TYPE_CHECKING:
    from precision_align.training.baselines import Entry
    from precision_align.training.health.findings import Costs

SUMMARY = "judge each change of a training against what it reached before"

_EPILOGUE = """\
add writes an entry, check judges a run against the newest entry at its gate, show lists the ledger. Gates, cheapest
first: tiny (one card, a tiny model), cards (several cards), full (the full run).
Exit status: 0 nothing got worse, 1 something did, 2 wrong usage, 3 the ledger cannot be read.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to do, the ledger, and what was measured."""
    parser.epilog = _EPILOGUE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("action", choices=("add", "check", "show"), help="what to do")
    parser.add_argument("ledger", metavar="LEDGER", help="the file, such as baseline.jsonl")
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="the change, such as 'fused rope'")
    parser.add_argument("--gate", choices=("tiny", "cards", "full"), default="tiny", help="default: tiny")
    parser.add_argument("--report", metavar="FILE", help="precision: a report.json of 'compare'")
    parser.add_argument("--losses", metavar="FILE", help="loss error: a .json of 'loss -o'")
    parser.add_argument("--log", metavar="FILE", help="step time: the median of a series in a log or dump")
    parser.add_argument("--time-series", metavar="NAME", default="elapsed time per iteration (ms)", help="its name")
    parser.add_argument("--step-time", metavar="SECONDS", type=float, help="or the step time itself")
    parser.add_argument(
        "--run", metavar="DUMP", help="step time and peak memory of a dump recorded with --facts, as health shows them"
    )
    parser.add_argument("--memory", metavar="SIZE", help="peak memory of the worst rank, such as 52.3GB")
    parser.add_argument("--communication", metavar="SHARE", type=float, help="share of a step, between 0 and 1")
    parser.add_argument("--note", default="", help="versions, or why")
    parser.add_argument("--against", metavar="NAME", default="", help="check: the entry to hold the run against")
    parser.add_argument("-o", "--output", metavar="FILE", help="save the result: .html or .json")


def run(arguments: argparse.Namespace) -> int:
    """Add, check or show. Returns 1 where a check finds something worse."""
    from precision_align.cli.output import print_log
    from precision_align.cli.pages import show_pages
    from precision_align.reporting.baseline import describe_baseline, describe_ledger
    from precision_align.reporting.languages import say
    from precision_align.training.baselines import add_entry, judge_entry, read_ledger

    if arguments.action == "show":
        ledger = read_ledger(arguments.ledger)
        content = {"entries": [vars(entry) for entry in ledger]}
        show_pages(arguments, content, lambda language: describe_ledger(ledger, language))
        return 0
    if not arguments.name:
        raise UsageError(f"baseline {arguments.action} needs the NAME of the change behind the ledger")
    entry = read_entry(arguments)
    if arguments.action == "add":
        add_entry(arguments.ledger, entry)
        print_log(say(arguments.lang, "cli.saved", path=arguments.ledger))
        return 0
    report = judge_entry(read_ledger(arguments.ledger), entry, arguments.against)
    show_pages(arguments, report.to_dict(), lambda language: describe_baseline(report, language))
    return int(not report.passed)


def read_entry(arguments: argparse.Namespace) -> Entry:
    """What the options say of a run. Raises UsageError, and the errors of the files' readers."""
    from precision_align.storage.settings import parse_size
    from precision_align.training.baselines import Entry, check_entry

    verdict, first = _read_report(arguments.report)
    costs = _read_costs(arguments.run)
    step_time = _read_step_time(arguments)
    return check_entry(
        Entry(
            name=arguments.name,
            gate=arguments.gate,
            verdict=verdict,
            first=first,
            step_time=costs.step_time if step_time is None else step_time,
            memory=costs.peak_memory if arguments.memory is None else float(parse_size(arguments.memory)),
            communication=arguments.communication,
            loss_error=_read_loss_error(arguments.losses),
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            note=arguments.note,
        )
    )


def _read_report(path: str | None) -> tuple[str, str]:
    if path is None:
        return "", ""
    from precision_align.reporting.report import Report

    report = Report.load(path)
    return str(report.verdict), "" if report.first is None else report.first.scope or "the model itself"


def _read_costs(path: str | None) -> Costs:
    """What the dump logged of its costs. Raises UsageError where it logged none."""
    from precision_align.storage.opening import open_dump
    from precision_align.training.health.costs import measure_costs
    from precision_align.training.health.facts import gather_facts
    from precision_align.training.health.findings import Costs

    if path is None:
        return Costs()
    costs = measure_costs(gather_facts(open_dump(path)))
    if costs.step_time is None and costs.peak_memory is None:
        raise UsageError(f"--run {path}: the dump has no step times and no memory; record it with 'capture --facts'")
    return costs


def _read_step_time(arguments: argparse.Namespace) -> float | None:
    if arguments.log is None or arguments.step_time is not None:
        return None if arguments.step_time is None else float(arguments.step_time)
    from precision_align.training.baselines import median_of_series
    from precision_align.training.reading import read_series

    series = read_series(arguments.log, arguments.time_series, duplicates="mean")
    unit = 1e-3 if "ms" in arguments.time_series else 1.0
    return median_of_series(series.values) * unit


def _read_loss_error(path: str | None) -> float | None:
    if path is None:
        return None
    import json
    from pathlib import Path

    try:
        found = json.loads(Path(path).read_text("utf-8"))
        broken = found.get("kind") == "not a number" or found.get("unjudged") is not None
        error = float(found["mean_error"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as trouble:
        raise UsageError(
            f"--losses {path}: {trouble!r}; 'precision-align loss REF CAND -o FILE.json' writes one"
        ) from trouble
    if broken:
        raise UsageError(f"--losses {path}: the loss is not finite at some step, so its mean error says nothing")
    return error
