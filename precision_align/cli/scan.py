"""``precision-align scan``: CUDA dependencies of a source tree, each with its class, its fix and its mapping rows."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from precision_align.cli.output import print_json, print_log, print_text
from precision_align.cli.progress import Progress
from precision_align.core.errors import UsageError

SUMMARY = "find what a source tree needs of CUDA"
CLASSES = ("blocks", "needs custom kernel", "needs mapping", "one line", "auto", "info")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PATH, the output's form, baseline, rules."""
    parser.add_argument("path", metavar="PATH", help="folder of source, or one file; nothing in it is run")
    parser.add_argument(
        "--all", action="store_true", help="show what transfer_to_npu rewrites and what is only to know"
    )
    parser.add_argument("--class", dest="classes", action="append", choices=CLASSES, help="these classes only")
    parser.add_argument("--sarif", metavar="FILE", help="write SARIF 2.1.0 too, for code-review tools")
    parser.add_argument("--baseline", metavar="FILE", help="show only what this file does not know")
    parser.add_argument("--write-baseline", metavar="FILE", help="write all findings to this file as known")
    parser.add_argument("--rules", metavar="FILE", action="append", default=[], help="rules of yours (TOML), added")
    parser.add_argument("--fail-on", metavar="CLASS", choices=CLASSES, help="exit status 1 for this class or more work")
    parser.add_argument("--library", metavar="DIR", help="a mapping library of yours instead of the bundled one")


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0; 1 where --fail-on names a class that was found."""
    from dataclasses import replace

    from precision_align.library.loading import load_library
    from precision_align.scanner.baseline import write_baseline
    from precision_align.scanner.rendering import render_scan
    from precision_align.scanner.rules import load_rules
    from precision_align.scanner.sarif import build_sarif
    from precision_align.workflows.scanning import scan_source

    rules = load_rules(arguments.rules)
    rows = load_library(arguments.library).rows
    with Progress("scanning") as progress:
        report = scan_source(arguments.path, rules, rows, baseline=arguments.baseline, progress=progress)
    if arguments.write_baseline:
        write_baseline(arguments.write_baseline, report.findings)
        print_log(f"wrote {len(report.findings)} findings to {arguments.write_baseline}")
    failed = _count_from(report.counts, arguments.fail_on) > 0
    if arguments.classes:
        report = replace(report, findings=[f for f in report.findings if f.cls in arguments.classes])
    if arguments.sarif:
        _write(Path(arguments.sarif), json.dumps(build_sarif(report, rules), indent=1, ensure_ascii=False) + "\n")
    if arguments.json:
        print_json(report.to_dict())
    else:
        print_text(render_scan(report, everything=arguments.all or bool(arguments.classes)))
    return 1 if failed else 0


def _count_from(counts: dict[str, int], cls: str | None) -> int:
    """Findings of this class and of those before it, which are more work."""
    return sum(counts[name] for name in CLASSES[: CLASSES.index(cls) + 1]) if cls else 0


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error}") from error
