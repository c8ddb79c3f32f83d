"""The file ``run.json`` of a rank: whose run it is, whether it was closed, and how many parts it should have."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_align.core.errors import DumpDamaged, SchemaTooNew
from precision_align.core.records import SCHEMA_VERSION, RunInfo
from precision_align.storage import layout
from precision_align.storage.handles import create_file
from precision_align.storage.hashing import digest_bytes
from precision_align.storage.tables import decode_info, encode_info


@dataclass(frozen=True)
class Run:
    """``parts``: how many files were completed when this was written; ``closed``: no more will follow; ``keep``: how
    many steps stay on disk (None: all)."""

    info: RunInfo
    closed: bool
    parts: int
    keep: int | None = None


def write_run(folder: Path, run: Run) -> None:
    """Replace the file in one step. Raises OSError."""
    content: dict[str, Any] = {
        "format": layout.FORMAT,
        "schema_version": SCHEMA_VERSION,
        "closed": run.closed,
        "parts": run.parts,
        "info": json.loads(encode_info(run.info)),
    }
    if run.keep is not None:
        content["keep"] = run.keep
    content["digest"] = _digest(content)
    temporary = folder / (layout.RUN_FILE + layout.UNFINISHED)
    try:
        with os.fdopen(create_file(temporary, os.O_WRONLY | os.O_TRUNC), "w", encoding="ascii") as file:
            file.write(json.dumps(content, allow_nan=False, indent=1))
        temporary.replace(folder / layout.RUN_FILE)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def read_run(folder: Path) -> Run | None:
    """The run of a rank folder, None where there is no such file. Raises DumpDamaged, SchemaTooNew."""
    path = folder / layout.RUN_FILE
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise DumpDamaged(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("format") != layout.FORMAT:
        raise DumpDamaged(f"{path} is not the run file of a dump")
    require_known_schema(path, content.get("schema_version"))
    if content.pop("digest", None) != _digest(content):
        raise DumpDamaged(f"{path} was changed after it was written: its hash does not fit")
    try:
        keep = content.get("keep")
        info = decode_info(json.dumps(content["info"]))
        return Run(info, bool(content["closed"]), int(content["parts"]), None if keep is None else int(keep))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DumpDamaged(f"{path} lacks run information: {error}") from error


def _digest(content: dict[str, Any]) -> str:
    return digest_bytes(json.dumps(content, allow_nan=False, sort_keys=True).encode("ascii"))


def require_known_schema(path: Path, version: Any) -> None:
    """Raise SchemaTooNew where a newer version of this package wrote the file, DumpDamaged where it has no version."""
    try:
        number = int(version)
    except (TypeError, ValueError, OverflowError) as error:
        raise DumpDamaged(f"{path} has no schema version") from error
    if number > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"{path} has schema version {number}, this version of precision-align reads up to {SCHEMA_VERSION}: "
            "upgrade with `pip install -U precision-align`"
        )
