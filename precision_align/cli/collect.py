"""``precision-align collect``: one dump from what each node wrote on its own disk."""

from __future__ import annotations

import argparse
from pathlib import Path

from precision_align.cli.output import print_json, print_log, print_text
from precision_align.cli.parsers import PROGRAM
from precision_align.cli.progress import Progress
from precision_align.reporting.commands import join_command

SUMMARY = "make one dump from what each node wrote on its own disk"

INCOMPLETE = 3  # as a dump of which a part cannot be read

_EPILOGUE = f"""\
  {PROGRAM} collect node0/candidate node1/candidate -o runs/candidate
Nodes may come one after another: what is there already is kept. Every tensor is read back and its hash compared.
Exit status: 0 all ranks are there and whole; 3 some are missing or damaged (the others can be used).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """DIR... and the dump to make."""
    parser.epilog = _EPILOGUE
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "folders", metavar="DIR", nargs="+", help="a folder that one node wrote, copied here or mounted"
    )
    parser.add_argument("-o", "--output", metavar="DUMP", required=True, help="the dump to make, or to add to")


def run(arguments: argparse.Namespace) -> int:
    """Copy, read back, say what is missing."""
    from precision_align.storage.collecting import collect

    with Progress("copying MiB") as copying, Progress("reading back") as reading:
        found = collect([Path(folder) for folder in arguments.folders], Path(arguments.output), copying, reading)
    for problem in found.problems:
        print_log(f"note: {problem}")
    if arguments.json:
        row = {"dump": arguments.output, "ranks": list(found.ranks), "world": found.world, "tensors": found.tensors}
        print_json({**row, "problems": list(found.problems)})
    else:
        print_text(f"{arguments.output}: {len(found.ranks)} of {found.world} ranks, {found.tensors} tensors read back")
        print_log(f"next: {join_command('show', arguments.output)}")
    return INCOMPLETE if found.problems else 0
