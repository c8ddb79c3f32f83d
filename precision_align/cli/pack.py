"""``precision-align pack``: dumps into volumes that cross an air gap, whole, in part, or without data."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from precision_align.cli.output import print_json, print_log, print_text
from precision_align.cli.progress import Progress
from precision_align.core.errors import UsageError
from precision_align.core.ranges import parse_numbers
from precision_align.reporting.commands import join_command
from precision_align.reporting.languages import say
from precision_align.reporting.messages import translate_message
from precision_align.storage.settings import format_size, parse_size

if TYPE_CHECKING:
    from precision_align.storage.packing import Request

SUMMARY = "put dumps into volumes to carry: whole, part, or without data"

_EPILOGUE = """\
--no-data leaves out payloads, sketches, statistics, series, numbers and texts among arguments, paths, host, command,
environment, source lines and notes; names of modules and arguments become stand-ins. With --key FILE (made if there is
none; keep it, and use the same on the other side) hashes stay, under that secret, so that two such packs can be
compared for equality, and FILE.names.json says what the
stand-ins stand for; without it there are none. Nothing is sent anywhere: this tool opens no network connection.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Dumps, the folder of the volumes, and what to leave out."""
    parser.epilog = _EPILOGUE
    parser.add_argument("dumps", metavar="DUMP", nargs="+", help="dumps, start packs, or the folder of a visit")
    parser.add_argument("-o", "--output", metavar="DIR", help="the folder of the volumes; --dry-run needs none")
    parser.add_argument("--volume", metavar="SIZE", default="2GB", help="of one volume (default: %(default)s)")
    parser.add_argument("--select", metavar="GLOB", action="append", help="tensors of these modules only")
    parser.add_argument("--steps", metavar="LIST", help='these steps only, such as "3,10-12"')
    parser.add_argument("--ranks", metavar="LIST", help="these ranks only")
    parser.add_argument("--no-data", action="store_true", help="leave out whatever reveals values, places and names")
    parser.add_argument("--keep-names", action="store_true", help="with --no-data: names of modules and arguments stay")
    parser.add_argument("--key", metavar="FILE", help="with --no-data: keep hashes, made with the secret in this file")
    parser.add_argument("--dry-run", action="store_true", help="only say how large it would be")


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0; 2 where the folder is taken, 3 where a dump cannot be read or the disk is full."""
    from precision_align.storage.packing import find_losses, measure_pack, pack
    from precision_align.storage.volumes import count_volumes

    volume_bytes = parse_size(arguments.volume)
    if volume_bytes < 1:
        raise UsageError(f"--volume {arguments.volume}: a volume holds at least one byte")
    if arguments.output is None and not arguments.dry_run:
        raise UsageError("-o DIR names the folder of the volumes")
    request = _read_request(arguments)
    sizes = measure_pack(request)
    for loss in find_losses(request):
        print_log(f"note: {translate_message(loss, arguments.lang)}")
    total = sum(nbytes for _, nbytes in sizes)
    volumes = count_volumes(total, volume_bytes)
    lines = [f"{name or arguments.dumps[0]}: {format_size(nbytes)}" for name, nbytes in sizes]
    lines.append(say(arguments.lang, "pack.sizes", total=format_size(total), volumes=volumes))
    if arguments.dry_run:
        if arguments.json:
            print_json({"bytes": total, "volumes": volumes, "dumps": [{"name": n, "bytes": b} for n, b in sizes]})
        else:
            print_text("\n".join(lines))
        return 0
    if not arguments.json:
        print_text("\n".join(lines))
    with Progress("rewriting") as rewriting, Progress("packing MiB") as packing:
        manifest, outcome = pack(request, Path(arguments.output), volume_bytes, rewriting, packing)
    if arguments.json:
        done = {"written": outcome.written, "kept": outcome.kept, "bytes": manifest.nbytes}
        print_json({"folder": arguments.output, "sha256": manifest.sha256, **done})
        return 0
    written, kept = len(outcome.written), len(outcome.kept)
    print_text(say(arguments.lang, "pack.done", written=written, kept=kept, sha256=manifest.sha256))
    print_text(say(arguments.lang, "pack.next", command=join_command("unpack", arguments.output, "-o", "DUMP")))
    return 0


def _read_request(arguments: argparse.Namespace) -> Request:
    from precision_align.storage.packing import Request
    from precision_align.storage.redaction import Redactor, read_secret
    from precision_align.storage.rewriting import Selection

    if (arguments.key or arguments.keep_names) and not arguments.no_data:
        raise UsageError("--key and --keep-names belong to --no-data: give that too, or leave them out")
    select = None if arguments.select is None else tuple(arguments.select)
    selection = Selection(select, _read_numbers(arguments.steps), _read_numbers(arguments.ranks))
    secret = None if arguments.key is None or arguments.dry_run else read_secret(arguments.key)
    redactor = Redactor(secret, arguments.keep_names) if arguments.no_data else None
    asked = [sorted(vars(arguments).items()), [str(Path(dump).resolve()) for dump in arguments.dumps]]
    names = Path(f"{arguments.key}.names.json") if arguments.key else None
    return Request(tuple(map(Path, arguments.dumps)), selection, redactor, json.dumps(asked, default=str), names)


def _read_numbers(text: str | None) -> frozenset[int] | None:
    return None if text is None else parse_numbers(text)
