"""Small files that people write for us: TOML, or the same content as JSON."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from precision_align.core.errors import UsageError

# The last is the copy that every pip up to 25 carries: Python 3.9 and 3.10 have no reader of their own.
_READERS = ("tomllib", "tomli", "pip._vendor.tomli")


def read_document(path: Path, what: str) -> Any:
    """The content of a file, JSON by the suffix .json, else TOML. Raises UsageError, which says ``what`` it is."""
    try:
        text = path.read_text("utf-8-sig")  # editors of Windows write a mark first
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{what} {path} cannot be read: {error}") from error
    try:
        return json.loads(text) if path.suffix == ".json" else _load_toml(text, path, what)
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{what} {path} is not valid {path.suffix.lstrip('.') or 'TOML'}: {error}") from error


def _load_toml(text: str, path: Path, what: str) -> Any:
    for name in _READERS:
        try:
            return import_module(name).loads(text)
        except ModuleNotFoundError:
            continue
    raise UsageError(f"this Python cannot read TOML: write {what} {path} as .json, or `pip install tomli`")
