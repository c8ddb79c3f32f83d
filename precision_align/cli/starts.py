"""Options of ``capture`` for two machines: start packs, and all that one visit can take along."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from precision_align.cli.output import print_log
from precision_align.core.errors import UsageError
from precision_align.reporting.commands import join_command
from precision_align.storage.settings import parse_size

if TYPE_CHECKING:
    from precision_align.recording.beginning import Beginning
    from precision_align.recording.visits import Visit

_BUDGET = "20GB"


def add_start_options(parser: argparse.ArgumentParser) -> None:
    """An equal start on another machine."""
    group = parser.add_argument_group("two machines")
    group.add_argument(
        "--save-start",
        metavar="PACK",
        help="write a start pack: weights, state of optimizers, schedulers and scalers, batches, random masks",
    )
    group.add_argument("--start-from", metavar="PACK", help="begin with the state, batches and masks of a start pack")
    group.add_argument(
        "--checkpoint", metavar="FILE", help="with --save-start: this file holds the weights, keep their hashes alone"
    )
    group.add_argument(
        "--one-visit",
        action="store_true",
        help="start pack, sketches of everything, root inputs, loss and modules given with --payload GLOB=full, series "
        "of loss and gradient norm, into DUMP/dump and DUMP/start; steps 0-2 unless --steps is given",
    )
    group.add_argument(
        "--budget", metavar="SIZE", default=_BUDGET, help="of --one-visit, for each rank (default: %(default)s)"
    )


def read_visit(arguments: argparse.Namespace) -> Visit | None:
    """The visit that is asked for; fills in its other options. Raises UsageError where they exclude each other."""
    if not arguments.one_visit:
        return None
    from precision_align.recording.visits import STEPS, Visit, name_folders

    decided = ("save_start", "start_from", "budget_bytes", "trigger", "plan")
    given = [name for name in decided if getattr(arguments, name)]
    if given or arguments.output is None:
        wrong = "leave --" + given[0].replace("_", "-") + " out" if given else "-o DUMP names the folder"
        raise UsageError(f"--one-visit decides what is kept and where: {wrong}")
    arguments.visit = arguments.output
    arguments.output, arguments.save_start = name_folders(arguments.output)
    arguments.steps = arguments.steps or STEPS
    arguments.facts = True
    return Visit(parse_size(arguments.budget), print_log)


def read_beginning(arguments: argparse.Namespace) -> Beginning:
    """What to write of the start, and to begin from. Raises UsageError."""
    from precision_align.recording.beginning import Beginning

    return Beginning.at(arguments.save_start, arguments.start_from, arguments.checkpoint)


def report_start(recorder: Any, arguments: argparse.Namespace) -> None:
    """What to type next with what was written for the other machine."""
    if arguments.one_visit:
        from precision_align.recording.visits import list_questions

        for line in list_questions(recorder.notes, arguments.steps):
            print_log(line)
        print_log(f"next: {join_command('pack', arguments.visit, '-o', f'{arguments.visit}-volumes')}")
    elif arguments.save_start:
        print_log(f"start pack: {arguments.save_start}; on the other machine: capture --start-from")
