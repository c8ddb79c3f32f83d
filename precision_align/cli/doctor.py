"""``precision-align doctor``: is this machine fit to record, replay and compare? Part of the live half."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from precision_align.cli.output import measure_columns, print_json, print_log, print_text
from precision_align.cli.versions import find_versions
from precision_align.devices.ascend import run_tool
from precision_align.doctor.checks import BAD, Check, is_healthy
from precision_align.doctor.chips import parse_board, parse_table
from precision_align.doctor.examination import Examination, examine
from precision_align.reporting.terminal import fold

SUMMARY = "check versions, devices and arithmetic switches here"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--device, --lock, --against, --self-test."""
    parser.add_argument(
        "--device",
        action="append",
        metavar="NAME",
        help="check this device too, and call it bad where it is missing: cpu, cuda, npu or simulated[:profile]",
    )
    parser.add_argument("--lock", metavar="FILE", type=Path, help="write what was found as an environment lock (TOML)")
    parser.add_argument("--against", metavar="FILE", type=Path, help="tell what has changed since that lock")
    parser.add_argument(
        "--self-test",
        metavar="FILE",
        type=Path,
        help="run the conformance suite on the devices here and write its outcome, to be sent with a report",
    )


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0 where nothing is broken or changed, else 1. What is merely not installed is not broken."""
    from precision_align.doctor.ranks import find_launched

    text = run_tool("npu-smi", "info")
    versions = find_versions()
    if text:
        versions.update(parse_board(run_tool("npu-smi", "info", "-t", "board", "-i", "0")))
    found = examine(versions, arguments.device or [], parse_table(text))
    if arguments.lock:
        from precision_align.doctor.locks import write_lock

        write_lock(arguments.lock, found.facts)
        print_log(f"saved {arguments.lock}")
    sections = {"": found.checks}
    launched = find_launched(os.environ)
    if launched is not None:
        sections["between the ranks"] = _compare_ranks(found, launched)
    if arguments.against:
        from precision_align.doctor.locks import compare_facts, read_lock

        sections[f"since {arguments.against}"] = compare_facts(read_lock(arguments.against), found.facts)
    if arguments.self_test:
        sections["self-test"] = _test_itself(arguments.self_test, arguments.device or [], found)
    if launched is None or launched.rank == 0:
        _show(versions, sections, arguments.json)
    changed = any(check.status != "ok" for check in sections.get(f"since {arguments.against}", []))
    return 0 if is_healthy([check for checks in sections.values() for check in checks]) and not changed else 1


def _compare_ranks(found: Examination, launched: Any) -> list[Check]:
    from precision_align.doctor.ranks import compare_ranks, gather_reports

    reports, collectives = gather_reports(found, launched)
    return [*collectives, *(compare_ranks(reports) if len(reports) > 1 else [])]


def _test_itself(path: Path, wanted: Sequence[str], found: Examination) -> list[Check]:
    from precision_align.doctor.selftest import choose_devices, run_suites, save_outcomes, summarise

    outcomes = run_suites(choose_devices(wanted), print_log)
    save_outcomes(path, outcomes, found.facts)
    return summarise(outcomes, path)


def _show(versions: Mapping[str, str], sections: Mapping[str, Sequence[Check]], as_json: bool) -> None:
    checks = [check for one in sections.values() for check in one]
    if as_json:
        listed = [
            {**asdict(check), "section": name} if name else asdict(check)
            for name, one in sections.items()
            for check in one
        ]
        print_json({"healthy": is_healthy(checks), "versions": dict(versions), "checks": listed})
    else:
        print_text(render(versions, sections, measure_columns()))


def render(versions: Mapping[str, str], sections: Mapping[str, Sequence[Check]], width: int = 80) -> str:
    """Versions, then one paragraph a check under each section's title, then what to do first."""
    space = max(len(name) for name in versions) + 2
    lines = [f"{name:<{space}}{version or '-'}" for name, version in versions.items()]
    checks = [check for one in sections.values() for check in one]
    for title, listed in sections.items():
        lines += ["", *([f"{title}:"] if title else [])]
        for check in listed:
            lines += _hang(f"{check.status:<8}", f"{check.name}: {check.text}", width)
            lines += _hang(f"{'':<8}", f"-> {check.advice}", width) if check.advice else []
    bad = [check for check in checks if check.status == BAD]
    lines += ["", f"{len(bad)} of {len(checks)} checks failed" if bad else "nothing is broken"]
    return "\n".join(lines)


def _hang(head: str, text: str, width: int) -> list[str]:
    first, *rest = fold(text, width - len(head))
    return [head + first, *(" " * len(head) + line for line in rest)]
