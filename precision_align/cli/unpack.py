"""``precision-align unpack``: volumes back into dumps, verified; goes on where it was interrupted."""

from __future__ import annotations

import argparse
from pathlib import Path, PurePosixPath

from precision_align.cli.output import print_json, print_text
from precision_align.cli.progress import Progress
from precision_align.reporting.commands import join_command
from precision_align.reporting.languages import say
from precision_align.storage.settings import format_size

SUMMARY = "put the volumes of pack together again, and verify every hash"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The folder of the volumes, and of the dump."""
    parser.add_argument("folder", metavar="DIR", help="the folder with the volumes and manifest.json")
    parser.add_argument("-o", "--output", metavar="DUMP", required=True, help="a new folder, or one that is half done")


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0; 3 with the names of volumes that are missing or damaged: bring them, and call it again."""
    from precision_align.storage.volumes import read_volumes

    with Progress("unpacking MiB") as progress:
        manifest = read_volumes(Path(arguments.folder), Path(arguments.output), progress)
    if arguments.json:
        print_json({"dump": arguments.output, "files": len(manifest.files), "bytes": manifest.nbytes})
        return 0
    # one of several dumps lies in a folder of its own: DUMP/rank00000/file
    dump = Path(arguments.output, *PurePosixPath(manifest.files[0].name if manifest.files else "").parts[:-2])
    size, files = format_size(manifest.nbytes), len(manifest.files)
    print_text(say(arguments.lang, "unpack.done", files=files, size=size, dump=arguments.output))
    print_text(say(arguments.lang, "unpack.next", command=join_command("show", str(dump))))
    return 0
