"""``precision-align quant``: what quantising a model cost, module by module."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from precision_align.cli.progress import Progress
from precision_align.core.errors import UsageError

if TYPE_CHECKING:
    from precision_align.training.quantising.results import QuantReport

SUMMARY = "find what quantising a model cost, module by module"

_EPILOGUE = """\
REF and CAND are dumps of the model in high precision and of the quantised one on the same inputs (--payload full).
With --code, a file with functions reference(), candidate() and inputs() without arguments, each module is also switched
to the other precision by itself, and --keep N says which N to keep in high precision.
Exit status: 0 nothing wrong with scales and ranges, 1 something is, 2 wrong usage, 3 not comparable.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Two dumps, the calibration's, and code to switch modules in."""
    parser.epilog = _EPILOGUE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("reference", metavar="REF", help="the dump of the model in high precision")
    parser.add_argument("candidate", metavar="CAND", help="the dump of the quantised model")
    parser.add_argument(
        "--calibration", metavar="DUMP", help="the high-precision model on the inputs that the scales were taken from"
    )
    parser.add_argument("--code", metavar="FILE.py", help="reference(), candidate() and inputs(): it is imported")
    parser.add_argument("--keep", metavar="N", type=int, default=0, help="with --code: how many modules to choose")
    parser.add_argument("-o", "--output", metavar="FILE", help="save the result: .html or .json")


def run(arguments: argparse.Namespace) -> int:
    """Compare and show. Returns 0 where nothing is wrong, 1 where something is."""
    from precision_align.cli.pages import show_pages
    from precision_align.reporting.quant import describe_quant
    from precision_align.reporting.saving import check_page_target
    from precision_align.training.quantising.comparing import compare_quantised

    if arguments.output:
        check_page_target(arguments.output)
    if arguments.keep and not arguments.code:
        raise UsageError("--keep needs the models: give their code with --code FILE.py")
    with Progress("comparing") as progress:
        report = compare_quantised(arguments.reference, arguments.candidate, arguments.calibration, progress)
    if arguments.code:
        report = _measure(report, arguments)
    show_pages(arguments, report.to_dict(), lambda language: describe_quant(report, language))
    return int(bool(report.faults or report.exceeded))


def _measure(report: QuantReport, arguments: argparse.Namespace) -> QuantReport:
    from precision_align.workflows.factories import load_factory
    from precision_align.workflows.quantising import measure_sensitivity

    models = [load_factory(f"{arguments.code}:{name}", "--code")() for name in ("reference", "candidate", "inputs")]
    base, sensitivities, keep = measure_sensitivity(models[0], models[1], list(models[2]), budget=arguments.keep)
    return replace(report, base=base, sensitivities=sensitivities, keep=keep)
