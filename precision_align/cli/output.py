"""Where verbs write: results to stdout, everything else to stderr, in characters the terminal has."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from io import StringIO
from typing import TYPE_CHECKING, Any, TextIO

from precision_align.core.errors import DumpError, StorageFull
from precision_align.reporting.serialization import encode_free
from precision_align.reporting.terminal import to_encodable

if TYPE_CHECKING:
    from precision_align.reporting.report import Report

MAXIMUM_WIDTH = 120  # longer lines are hard to read however wide the window is


def prepare_streams() -> None:
    """No character of a path or a message may end the program with an encoding error."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: >&-
            setattr(sys, name, StringIO())
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
    _write(to_encodable(text if text.endswith("\n") else f"{text}\n", encoding_of(sys.stdout)))


def print_json(value: Any) -> None:
    """A machine-readable result, to stdout; NaN and infinities as the report schema writes them."""
    _write(json.dumps(encode_free(value), indent=1, allow_nan=False) + "\n")


def print_report(report: Report, *, as_json: bool, language: str) -> None:
    """A report: its JSON form, or its first screen."""
    from precision_align.reporting.report import format_json
    from precision_align.reporting.terminal import render

    if as_json:
        _write(format_json(report))
        return
    encoding = encoding_of(sys.stdout)
    color = wants_color(sys.stdout)
    print_text(render(report, measure_columns(), color, language=language, encoding=encoding))


def print_log(text: str) -> None:
    """Progress and remarks, to stderr."""
    try:
        sys.stderr.write(to_encodable(f"{text}\n", encoding_of(sys.stderr)))
        sys.stderr.flush()
    except OSError:  # closed or full: there is nowhere left to say so, and the result does not depend on it
        abandon(sys.stderr)


def finish_output() -> None:
    """Write what stdout still holds. Raises as :func:`print_text` does."""
    _write("")


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        abandon(sys.stdout)
        kind = StorageFull if error.errno in (errno.ENOSPC, errno.EDQUOT) else DumpError
        raise kind(f"cannot write to stdout: {(error.strerror or str(error)).lower()}") from error


def abandon(stream: TextIO) -> None:
    """Let what the stream still holds go nowhere, so that the interpreter does not complain about it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
