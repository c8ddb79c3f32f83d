"""Pages of results as files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precision_align.core.errors import UsageError
from precision_align.reporting.resultpages import Page
from precision_align.reporting.serialization import encode_free

_SUFFIXES = (".html", ".htm", ".json")


def check_page_target(path: str | os.PathLike[str]) -> Path:
    """A place that a page can be written to. Raises UsageError for an unknown suffix or a missing folder."""
    target = Path(path)
    if target.suffix.lower() not in _SUFFIXES:
        raise UsageError(f"{target}: the suffix {target.suffix!r} names no form of this result; use .html or .json")
    if target.is_dir() or not target.parent.is_dir():
        raise UsageError(f"{target}: name a file in a folder that is there")
    return target


def save_pages(
    path: str | os.PathLike[str], result: Mapping[str, Any], pages: Mapping[str, Page], title: str, language: str
) -> Path:
    """Write the result as JSON or its pages (one a language) as HTML, by the suffix. Raises UsageError, Unavailable."""
    target = check_page_target(path)
    if target.suffix.lower() == ".json":
        text = json.dumps(encode_free(result), indent=1, allow_nan=False) + "\n"
    else:
        from precision_align.reporting.pagehtml import render_pages

        text = render_pages(pages, title, language=language)
    try:
        target.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
    except OSError as error:
        raise UsageError(f"{target}: cannot be written ({error.strerror or error}); name another place") from error
    return target
