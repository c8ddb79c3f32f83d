"""``precision-align show``: look into a dump."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from precision_align.cli.output import measure_columns, print_json, print_log, print_text
from precision_align.core.errors import UsageError

if TYPE_CHECKING:
    from precision_align.core.records import TensorRecord
    from precision_align.storage.base import Dump

SUMMARY = "look into a dump: run, records, one tensor"
_CANDIDATES = 12  # keys listed where one part of a key fits several


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """DUMP, KEY, filters, --export."""
    parser.add_argument("dump", metavar="DUMP", help="the folder that 'capture' wrote, or one .h5 file of it")
    parser.add_argument(
        "key", metavar="KEY", nargs="?", help="a record: its key, or words that only its key contains ('attn output')"
    )
    parser.add_argument("--scope", metavar="GLOB", help="only records of these modules, such as 'encoder.layers.0.*'")
    parser.add_argument("--step", type=int, help="only records of this step")
    parser.add_argument("--rank", type=int, help="only records of this rank")
    parser.add_argument("--limit", type=int, default=40, help="lines of each list; 0 for all (default: 40)")
    parser.add_argument("--export", metavar="DIR", help="write every stored tensor into a new folder")
    parser.add_argument(
        "--format", choices=("h5", "npy"), default="h5", help="of --export: one HDF5 file, or one .npy a tensor"
    )


def run(arguments: argparse.Namespace) -> int:
    """Show a dump, one of its tensors, or export it. Exit status 0."""
    if arguments.limit < 0:
        raise UsageError("--limit takes a number of lines from 0 (all) up")
    from precision_align.storage.opening import open_dump

    with open_dump(arguments.dump) as dump:
        if arguments.export:
            _export(dump, arguments)
        elif arguments.key:
            _show_tensor(dump, arguments)
        else:
            _show_dump(dump, arguments)
    return 0


def _export(dump: Dump, arguments: argparse.Namespace) -> None:
    from precision_align.storage.exports import export

    written = export(dump, arguments.export, "hdf5" if arguments.format == "h5" else arguments.format)
    if arguments.json:
        print_json({"exported": written})
    else:
        print_log(f"exported to {written}")


def _show_dump(dump: Dump, arguments: argparse.Namespace) -> None:
    from precision_align.reporting.dumps import describe_dump, render_dump

    records = select_records(dump.records, arguments.scope, arguments.step, arguments.rank)
    if arguments.json:
        print_json(describe_dump(dump, records))
    else:
        print_text(render_dump(dump, records, width=measure_columns(), limit=arguments.limit))


def _show_tensor(dump: Dump, arguments: argparse.Namespace) -> None:
    from precision_align.reporting.dumps import describe_tensor, render_tensor

    records = select_records(dump.records, arguments.scope, arguments.step, arguments.rank)
    record = find_record(records, arguments.key)
    if arguments.json:
        print_json(describe_tensor(dump, record))
    else:
        print_text(render_tensor(dump, record, width=measure_columns()))


def select_records(
    records: Sequence[TensorRecord], scope: str | None, step: int | None, rank: int | None
) -> Sequence[TensorRecord]:
    """The records of some modules, of one step, of one rank; None: of all."""
    if scope is None and step is None and rank is None:
        return records
    return [
        record
        for record in records
        if (scope is None or fnmatchcase(record.key.scope, scope))
        and (step is None or record.key.step == step)
        and (rank is None or record.key.rank == rank)
    ]


def find_record(records: Sequence[TensorRecord], key: str) -> TensorRecord:
    """The record of a key, or the only one whose key contains all words. Raises UsageError with the candidates."""
    words = key.split() or [key]
    found = []
    for record in records:
        text = str(record.key)
        if text == key:
            return record
        if all(word in text for word in words):
            found.append(record)
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"no record's key contains {key!r}; 'precision-align show DUMP --limit 0' lists them")
    listed = [f"  {record.key}" for record in found[:_CANDIDATES]]
    rest = [f"  … and {len(found) - _CANDIDATES} more"] if len(found) > _CANDIDATES else []
    raise UsageError("\n".join([f"{key!r} fits {len(found)} records; name one of:", *listed, *rest]))
