"""Progress lines: only for what is slow, with rate and remaining time."""

from __future__ import annotations

import io

import pytest

from precision_align.cli.progress import Progress, format_seconds, phrase_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(stream: io.StringIO, seconds: float, calls: int) -> str:
    now = [0.0]
    with Progress("judging", stream, lambda: now[0]) as progress:
        for done in range(1, calls + 1):
            now[0] += seconds / calls
            progress(done, calls)
    return stream.getvalue()


def test_quick_work_is_silent() -> None:
    assert run(Terminal(), 1.9, 50) == ""
    assert run(io.StringIO(), 1.9, 50) == ""


def test_terminal_line_is_redrawn_and_cleaned() -> None:
    text = run(Terminal(), 10, 100)
    assert "\n" not in text
    assert text.count("\r") > 20
    assert "judging 50/100, 10/s, 5 s left" in text
    assert text.endswith("\r")


def test_log_file_gets_a_line_now_and_then() -> None:
    lines = run(io.StringIO(), 60, 600).splitlines()
    assert 5 <= len(lines) <= 7
    assert all("\r" not in line for line in lines)


def test_unknown_total() -> None:
    assert phrase_progress("reading", 5, 0, 5, 1.0) == "reading 5, 5/s"
    assert phrase_progress("reading", 1, 10, 0, 0.0) == "reading 1/10"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59.6, "1 min 00 s"), (125, "2 min 05 s"), (4200, "1 h 10 min")]
)
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
