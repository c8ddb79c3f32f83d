"""``precision-align case``: run the operator cases on a device, list them, extract one from a dump. Live half."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from precision_align.cli.output import print_json, print_log, print_text

if TYPE_CHECKING:
    from precision_align.library.results import CaseReport

SUMMARY = "test one operator, or all of the library, on a device"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``run``, ``prove``, ``search``, ``list`` and ``extract``."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="{run,prove,search,list,extract}")
    run_parser = verbs.add_parser("run", help="run cases and judge them in float64")
    _add_selection(run_parser)
    run_parser.add_argument("--device", default="cpu", help="cpu, cuda, npu or simulated[:profile] (default: cpu)")
    run_parser.add_argument(
        "--replacement",
        metavar="NAME|MODULE:CALLABLE",
        help="what to test: one of the operator's own (torch, torch_npu), or a callable of yours that takes the case's "
        "keywords; default: the one that the operator prefers on that device",
    )
    run_parser.add_argument(
        "--replacements",
        metavar="DIR",
        help="a folder of yours with <operator>.py files, each with a function of that name; its Python is executed",
    )
    run_parser.add_argument(
        "--record", metavar="FILE", help="put the result into this evidence store (JSON), as reports/evidence.json"
    )
    run_parser.add_argument("--seed", type=int, default=0, help="seed of the inputs (default: 0)")
    run_parser.add_argument("--forward-only", action="store_true", help="do not test gradients")
    _add_selection(
        verbs.add_parser("prove", help="run wrong variants: does a case catch each, does each case catch one?")
    )
    search_parser = verbs.add_parser("search", help="look for the worst input of a replacement (needs hypothesis)")
    _add_selection(search_parser)
    search_parser.add_argument("--replacement", metavar="NAME|MODULE:CALLABLE", help="as in `case run`")
    search_parser.add_argument("--dtype", default="float32", help="dtype of the inputs (default: float32)")
    search_parser.add_argument("--examples", type=int, default=100, help="inputs to try (default: 100)")
    _add_selection(verbs.add_parser("list", help="list the cases and what each is there to catch"))
    _add_extraction(verbs.add_parser("extract", help="make a case and a script of its own from a recorded call"))


def _add_extraction(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dump", metavar="DUMP", help="folder that capture wrote, with full payloads")
    parser.add_argument("key", metavar="KEY", help="a record of the call: its key, or words that only its key contains")
    parser.add_argument("-o", "--output", default=".", metavar="DIR", help="library to write to (default: here)")
    parser.add_argument("--name", default="extracted", help="name of the case's folder (default: extracted)")
    parser.add_argument("--module", metavar="MODULE:FACTORY", help="what builds the module, where it is no stock one")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="machine-readable result")


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "select",
        nargs="*",
        default=["*"],
        metavar="SELECT",
        help="operator or operator/case, with wildcards; default: all",
    )
    parser.add_argument("--library", metavar="DIR", help="a library of yours; its Python is executed")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="machine-readable result")


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0: all passed, 1: a case failed, 2: wrong use or nothing to run on."""
    actions = {"list": _list, "run": _run, "prove": _prove, "search": _search, "extract": _extract}
    return actions[arguments.action](arguments)


def _extract(arguments: argparse.Namespace) -> int:
    from precision_align.cli.show import find_record
    from precision_align.storage.opening import open_dump
    from precision_align.workflows.extracting import extract_case

    with open_dump(arguments.dump) as dump:
        record = find_record(dump.records, arguments.key)
        script, cases = extract_case(dump, record, arguments.output, arguments.name, module=arguments.module)
    if arguments.json:
        print_json({"script": str(script), "cases": str(cases)})
    else:
        select = f"precision-align case run {arguments.name} --library {arguments.output}"
        print_text(f"wrote {script} and {cases}\nnext: python {script}, or {select}")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    from precision_align.library.runner import run_cases

    report = run_cases(
        arguments.select,
        device=arguments.device,
        replacement=arguments.replacement,
        replacements=arguments.replacements,
        seed=arguments.seed,
        backward=not arguments.forward_only,
        library=arguments.library,
        progress=print_log,
    )
    if arguments.record:
        _record(report, arguments)
    if arguments.json:
        print_json(report.to_dict())
    else:
        print_text(report.render())
    return 0 if report.passed else 1


def _record(report: CaseReport, arguments: argparse.Namespace) -> None:
    from precision_align.library.evidence import collect_proofs, record_proofs
    from precision_align.library.folders import find_folders, load_operator

    folders = find_folders(arguments.library)
    operators = {result.op for result in report.results}
    known = {op: len(load_operator(folders, op).cases) for op in operators}
    count = record_proofs(arguments.record, collect_proofs(report, folders, known))
    print_log(f"recorded {len(operators)} operator(s) in {arguments.record}, which holds {count} proofs")


def _prove(arguments: argparse.Namespace) -> int:
    from precision_align.library.proving import render_proofs
    from precision_align.library.runner import prove_cases

    proofs = prove_cases(arguments.select, library=arguments.library, progress=print_log)
    if arguments.json:
        print_json([proof.to_dict() for proof in proofs])
    else:
        print_text(render_proofs(proofs))
    return 0 if all(proof.complete for proof in proofs) else 1


def _search(arguments: argparse.Namespace) -> int:
    from precision_align.library.searching import search_cases

    found = search_cases(
        arguments.select,
        replacement=arguments.replacement,
        dtype=arguments.dtype,
        examples=arguments.examples,
        library=arguments.library,
        progress=print_log,
    )
    if arguments.json:
        print_json([one.to_dict() for one in found])
    else:
        print_text("\n".join(one.render() for one in found))
    return 1 if any(one.failed for one in found) else 0


def _list(arguments: argparse.Namespace) -> int:
    from precision_align.library.runner import list_cases

    cases = list_cases(arguments.select, arguments.library)
    if arguments.json:
        print_json(cases)
        return 0
    width = max(len(case["case"]) for case in cases)
    print_text("\n".join(f"{case['case']:<{width}}  {case['why']}" for case in cases))
    return 0
