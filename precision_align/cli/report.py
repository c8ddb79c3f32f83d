"""``precision-align report``: another form of a saved result."""

from __future__ import annotations

import argparse

from precision_align.cli.compare import add_minimum, finish
from precision_align.cli.output import print_log, print_report, print_text
from precision_align.core.errors import UsageError
from precision_align.reporting.languages import say

SUMMARY = "turn a saved result into HTML, Markdown, JUnit or a sheet"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """RESULT.json, --rules, --min-coverage, and where to write; or --schema."""
    parser.add_argument("result", metavar="RESULT.json", nargs="?", help="what 'compare -o report.json' saved")
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        action="append",
        default=[],
        help="where to write: .html, .md, .xml (JUnit), .csv, .xlsx or .json; may be given more than once",
    )
    parser.add_argument("--schema", action="store_true", help="print the JSON schema of RESULT.json, and do no more")
    parser.add_argument(
        "--rules",
        metavar="FILE",
        help="judge the saved records again under another TOML file of rules and thresholds, from their saved metrics; "
        "the exit status then follows the verdict, as in compare",
    )
    add_minimum(parser)


def run(arguments: argparse.Namespace) -> int:
    """Load, write, and show the first screen.

    Exit status 0: the result was shown, whatever its verdict; with --rules as compare's.
    """
    from precision_align.reporting.report import SCHEMA, Report, check_target

    if arguments.schema:
        print_text(SCHEMA.read_text(encoding="utf-8"))
        return 0
    if arguments.result is None:
        raise UsageError("report needs RESULT.json, or --schema")
    for path in arguments.output:
        check_target(path)
    report = Report.load(arguments.result)
    if arguments.rules is not None:
        from precision_align.workflows.rejudging import rejudge

        report = rejudge(report, arguments.rules)
    for path in arguments.output:
        written = report.save(path, language=arguments.lang)
        print_log(say(arguments.lang, "cli.saved", path=written))
    print_report(report, as_json=arguments.json, language=arguments.lang)
    return 0 if arguments.rules is None else finish(report, arguments)
