"""``capture -- torchrun ... train.py``: a command that starts the script itself, captured through its environment."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from precision_align.cli.configuration import PATHS
from precision_align.cli.output import print_log
from precision_align.core.errors import NothingCaptured, UsageError
from precision_align.recording.arming import ABOVE, VARIABLE
from precision_align.storage import layout

_OWN = ("script", "json", "lang", "dry_run")  # of the command line alone


def is_launcher(words: Sequence[str]) -> bool:
    """Whether it is a program (torchrun, bash, ./pretrain.sh), not a Python script to be run in this process."""
    return (
        bool(words) and not words[0].startswith("-") and Path(words[0]).suffix != ".py" and bool(shutil.which(words[0]))
    )


def run_launcher(words: Sequence[str], arguments: argparse.Namespace, folder: Path) -> int:
    """Run it with the options in a file that PRECISION_ALIGN names, beside the dump's ``folder``.

    Returns its exit status, 3 where no dump came.

    Raises UsageError for a dry run, which would have to end the script.
    """
    if arguments.dry_run:
        raise UsageError(f"--dry-run works on a script, not on {words[0]}: give -- train.py ARGUMENTS")
    folder = folder.absolute()
    place = folder.with_name(f"{folder.name}.capture.json")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(_gather(arguments), indent=1) + "\n", "utf-8")
    before = _list_files(folder)
    environment = {name: value for name, value in os.environ.items() if name != ABOVE}
    status = subprocess.run(words, env={**environment, VARIABLE: str(place)}, check=False).returncode
    if _list_files(folder) != before:
        return status
    text = (
        f"nothing was captured: no process wrote to {folder}. What they said is above and in {place}.rank*.log; where "
        "they said nothing, the Python that trains lacks precision_align.pth in its site-packages (pip installs it): "
        "put `import precision_align.auto` at the top of the script"
    )
    print_log(f"error {NothingCaptured(text)}")
    return status or NothingCaptured.exit_status


def _gather(arguments: argparse.Namespace) -> dict[str, Any]:
    """What was asked for, as a configuration has it."""
    table = {name: value for name, value in vars(arguments).items() if name not in _OWN and value not in (None, [])}
    return {**table, **{name: str(Path(table[name]).absolute()) for name in PATHS if name in table}}


def _list_files(folder: Path) -> dict[str, int]:
    """The finished files of all ranks, with their times."""
    ranks = [path for path in folder.iterdir() if layout.RANK_FOLDER.fullmatch(path.name)] if folder.is_dir() else []
    return {str(path): path.stat().st_mtime_ns for rank in ranks for path in rank.glob("*.h5")}
