"""``precision-align show``: look into a dump."""

from __future__ import annotations

import argparse
import difflib
import shutil
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from precision_align.cli.failures import is_full, mute_full_disk
from precision_align.cli.output import measure_columns, print_json, print_log, print_text
from precision_align.core.errors import PrecisionAlignError, StorageFull, UsageError
from precision_align.core.terms import Tier
from precision_align.reporting.wording import format_bytes

if TYPE_CHECKING:
    from precision_align.core.records import TensorRecord
    from precision_align.storage.base import Dump

SUMMARY = "look into a dump: run, records, one tensor"
_CANDIDATES = 12  # keys listed where one part of a key fits several
_EXPORT_OVERHEAD = 1024  # bytes a tensor: HDF5's header, link and attributes took 540; a .npy has 128 and its line
_NEAR = 6  # modules listed where a glob fits none


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """DUMP, KEY, filters, --export."""
    parser.add_argument(
        "dump",
        metavar="DUMP",
        help="the folder that 'capture' wrote, one .h5 file of it, or a recording of another tool",
    )
    parser.add_argument("--naming", metavar="PATTERN", help="what the names of another tool's files mean (see compare)")
    parser.add_argument(
        "key", metavar="KEY", nargs="?", help="a record: its key, or words that only its key contains ('attn output')"
    )
    parser.add_argument("--scope", metavar="GLOB", help="only records of these modules, such as 'encoder.layers.0.*'")
    parser.add_argument("--step", type=int, help="only records of this step")
    parser.add_argument("--rank", type=int, help="only records of this rank")
    parser.add_argument("--limit", type=int, default=40, help="lines of each list; 0 for all (default: 40)")
    parser.add_argument("--tree", action="store_true", help="the modules as a tree, with their tensors' count and size")
    parser.add_argument(
        "--against",
        metavar="DUMP",
        help="another dump: show its tensor of the same KEY beside this one, and how far apart",
    )
    parser.add_argument("--export", metavar="DIR", help="write every stored tensor into a new folder")
    parser.add_argument(
        "--format",
        choices=("h5", "hdf5", "npy", "safetensors", "pt"),
        default="h5",
        help="of --export: one HDF5 file, one .npy a tensor, one safetensors file, or one .pt a tensor (default: h5)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Show a dump, one of its tensors, or export it. Exit status 0."""
    if arguments.limit < 0:
        raise UsageError("--limit takes a number of lines from 0 (all) up")
    if arguments.against and not arguments.key:
        raise UsageError("--against shows one tensor: name it after DUMP; 'precision-align compare' takes whole dumps")
    from precision_align.storage.opening import open_dump

    with open_dump(arguments.dump, arguments.naming) as dump:
        if arguments.export:
            _export(dump, arguments)
        elif arguments.against:
            _show_pair(dump, arguments)
        elif arguments.key:
            _show_tensor(dump, arguments)
        else:
            _show_dump(dump, arguments)
    return 0


def _export(dump: Dump, arguments: argparse.Namespace) -> None:
    from precision_align.storage.exports import export

    _check_space(dump, Path(arguments.export))
    mute_full_disk()
    try:
        written = export(dump, arguments.export, "hdf5" if arguments.format == "h5" else arguments.format)
    except PrecisionAlignError:
        raise
    except (OSError, RuntimeError) as error:  # HDF5 knows both for a failed write
        raise _explain_export(error, arguments.export) from error
    if arguments.json:
        print_json({"exported": written})
    else:
        print_log(f"exported to {written}")


def _check_space(dump: Dump, folder: Path) -> None:
    """Raise StorageFull before anything is written: HDF5 cannot be trusted to survive a full disk."""
    stored = [record.nbytes for record in dump.records if record.tier is Tier.FULL]
    needed = sum(stored) + _EXPORT_OVERHEAD * len(stored)
    place = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.is_dir())
    free = shutil.disk_usage(place).free
    if free < needed:
        raise StorageFull(
            f"{folder}: no space left to write the export: about {format_bytes(needed)} are needed, "
            f"{format_bytes(free)} are free; free some or name another place"
        )


def _explain_export(error: Exception, folder: str) -> Exception:
    if is_full(error):
        return StorageFull(
            f"{folder}: no space left to write the export, what is there is incomplete; free some or name another place"
        )
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).partition("\n")[0]
    return UsageError(f"{folder}: cannot write the export ({reason}); name another place")


def _show_dump(dump: Dump, arguments: argparse.Namespace) -> None:
    from precision_align.reporting.browsing import grow_tree, render_tree
    from precision_align.reporting.dumps import describe_dump, render_dump

    records = select_records(dump.records, arguments.scope, arguments.step, arguments.rank)
    if arguments.tree:
        tree = grow_tree(dump, records)
        if arguments.json:
            print_json(tree.to_dict())
        else:
            print_text(render_tree(tree, width=measure_columns(), limit=arguments.limit))
    elif arguments.json:
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


def _show_pair(dump: Dump, arguments: argparse.Namespace) -> None:
    from precision_align.reporting.browsing import describe_pair, read_pair, render_pair
    from precision_align.storage.opening import open_dump

    record = find_record(select_records(dump.records, arguments.scope, arguments.step, arguments.rank), arguments.key)
    with open_dump(arguments.against, arguments.naming) as other:
        twin = find_record(other.records, str(record.key))
        pair = read_pair((dump, record), (other, twin))
    if arguments.json:
        print_json(describe_pair(pair))
    else:
        print_text(render_pair(pair, width=measure_columns()))


def select_records(
    records: Sequence[TensorRecord], scope: str | None, step: int | None, rank: int | None
) -> Sequence[TensorRecord]:
    """The records of some modules, of one step, of one rank; None: of all. Raises UsageError where there are none."""
    if scope is None and step is None and rank is None:
        return records
    found = [
        record
        for record in records
        if (scope is None or fnmatchcase(record.key.scope, scope))
        and (step is None or record.key.step == step)
        and (rank is None or record.key.rank == rank)
    ]
    if not found:
        raise UsageError(_explain_nothing(records, scope, step, rank))
    return found


def _explain_nothing(records: Sequence[TensorRecord], scope: str | None, step: int | None, rank: int | None) -> str:
    """Which filter lets nothing through, and what there is."""
    steps, ranks = ({getattr(record.key, name) for record in records} for name in ("step", "rank"))
    scopes = list(dict.fromkeys(record.key.scope for record in records))
    if not records:
        return "this dump holds no records; its notes, which 'show' without a filter prints, may say why"
    if step is not None and step not in steps:
        return f"there is no step {step} in this dump; it has {format_ranges(steps)}"
    if rank is not None and rank not in ranks:
        return f"there is no rank {rank} in this dump; it has {format_ranges(ranks)}"
    if scope is not None and not any(fnmatchcase(name, scope) for name in scopes):
        near = difflib.get_close_matches(scope, scopes, n=_NEAR) or scopes[:_NEAR]
        rest = f" and {len(scopes) - len(near)} more" if len(scopes) > len(near) else ""
        return f"no module fits --scope {scope!r}; there are {', '.join(map(repr, near))}{rest}"
    return "each of these filters fits some records, but no record fits all of them"


def format_ranges(numbers: Iterable[int]) -> str:
    """ "0-3, 7" for {0, 1, 2, 3, 7}."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


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
