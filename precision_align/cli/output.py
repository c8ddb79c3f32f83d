"""Where verbs write: results to stdout, everything else to stderr, in characters the terminal has."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any, TextIO

from precision_align.reporting.serialization import encode_free
from precision_align.reporting.terminal import to_encodable

if TYPE_CHECKING:
    from precision_align.reporting.report import Report

MAXIMUM_WIDTH = 120  # longer lines are hard to read however wide the window is


def prepare_streams() -> None:
    """No character of a path or a message may end the program with an encoding error."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def encoding_of(stream: TextIO) -> str:
    """The stream's encoding, "utf-8" where it has none (a StringIO)."""
    return getattr(stream, "encoding", None) or "utf-8"


def wants_color(stream: TextIO) -> bool:
    """Colours only on a terminal, and not under NO_COLOR (https://no-color.org) or TERM=dumb."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def measure_columns() -> int:
    """Columns to lay out for: the terminal's, 80 where there is none."""
    return min(shutil.get_terminal_size((80, 24)).columns, MAXIMUM_WIDTH)


def print_text(text: str) -> None:
    """A result in words, to stdout."""
    sys.stdout.write(to_encodable(text if text.endswith("\n") else f"{text}\n", encoding_of(sys.stdout)))


def print_json(value: Any) -> None:
    """A machine-readable result, to stdout; NaN and infinities as the report schema writes them."""
    sys.stdout.write(json.dumps(encode_free(value), indent=1, allow_nan=False) + "\n")


def print_report(report: Report, *, as_json: bool, language: str) -> None:
    """A report: its JSON form, or its first screen."""
    from precision_align.reporting.report import format_json
    from precision_align.reporting.terminal import render

    if as_json:
        sys.stdout.write(format_json(report))
        return
    encoding = encoding_of(sys.stdout)
    color = wants_color(sys.stdout)
    print_text(render(report, measure_columns(), color, language=language, encoding=encoding))


def print_log(text: str) -> None:
    """Progress and remarks, to stderr."""
    sys.stderr.write(to_encodable(f"{text}\n", encoding_of(sys.stderr)))
    sys.stderr.flush()
