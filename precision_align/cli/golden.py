"""``precision-align golden``: record what a CUDA machine computes, and hold an NPU against it where there is none."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from precision_align.cli.output import print_json, print_log, print_text

if TYPE_CHECKING:
    from precision_align.devices.base import Device
    from precision_align.library.cases import OpCase, Operator
    from precision_align.library.folders import Folders

    Chosen = list[tuple[Operator, list[OpCase]]]

SUMMARY = "record op results on CUDA, hold an NPU against them elsewhere"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``update`` and ``check``."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="{update,check}")
    update = verbs.add_parser("update", help="record the selected cases on this machine's device")
    _add_shared(update, "cuda", "the reference's")
    update.add_argument("--seed", type=int, default=0, help="seed of the inputs (default: 0)")
    check = verbs.add_parser("check", help="verify the files' hashes, and judge this machine's device by them")
    _add_shared(check, "npu", "the candidate's")


def _add_shared(parser: argparse.ArgumentParser, device: str, whose: str) -> None:
    parser.add_argument("folder", metavar="DIR", help="folder of recorded goldens, with its manifest.json")
    parser.add_argument("select", nargs="*", default=["*"], metavar="SELECT", help="as for case run; default: all")
    parser.add_argument("--device", default=device, help=f"{whose} device (default: {device})")
    parser.add_argument("--replacement", metavar="NAME", help="which of the operator's replacements to run")
    parser.add_argument("--library", metavar="DIR", help="a library of yours; its Python is executed")
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="machine-readable result")


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0: recorded, or all sound and passed; 1: a file is damaged, or a case failed or was refused."""
    from precision_align.library.folders import find_folders
    from precision_align.library.runner import choose_cases, open_available

    folders = find_folders(arguments.library)
    chosen = choose_cases(folders, arguments.select)
    device = open_available(arguments.device)
    if arguments.action == "check":
        return _check(arguments, chosen, folders, device)
    from precision_align.library.goldens import record_goldens

    done = record_goldens(
        arguments.folder, chosen, folders, device, replacement=arguments.replacement, seed=arguments.seed
    )
    if arguments.json:
        print_json({"written": done.written, "refused": done.refused})
    else:
        print_text("\n".join([*done.refused, f"{len(done.written)} recorded, {len(done.refused)} refused"]))
    print_log(f"next, on the machine with the NPU: precision-align golden check {arguments.folder}")
    return 1 if done.refused else 0


def _check(arguments: argparse.Namespace, chosen: Chosen, folders: Folders, device: Device) -> int:
    from precision_align.library.goldens import check_goldens

    found = check_goldens(arguments.folder, chosen, folders, device, replacement=arguments.replacement)
    if arguments.json:
        print_json({"problems": found.problems, **found.report.to_dict(), "passed": found.passed})
    else:
        print_text("\n".join([found.report.render(), *found.problems]))
    return 0 if found.passed else 1
