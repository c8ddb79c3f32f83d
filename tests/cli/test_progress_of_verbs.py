"""Verbs that may take long say how far they are, how fast, and how long still."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from precision_align.cli import app, progress


def list_commands(reference: Path, candidate: Path) -> list[Sequence[object]]:
    return [
        ("certify", reference),
        ("compare", reference, candidate),
        ("checkpoint", reference, candidate),
        ("health", reference),
        ("quant", reference, candidate),
        ("scan", Path(app.__file__).parent),
        ("collect", candidate, "-o", "collected"),
        ("pack", reference, "-o", "volumes"),
        ("pack", reference, "--steps", "1", "-o", "fewer"),
        ("unpack", "volumes", "-o", "arrived"),
    ]


def test_every_long_verb_tells_its_progress(
    runs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0)
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0)
    monkeypatch.chdir(tmp_path)
    for words in list_commands(runs / "reference", runs / "candidate"):
        app.main([str(word) for word in words])
        said = capsys.readouterr().err
        assert re.search(r"^\w.* \d+/\d+", said, re.MULTILINE), (words, said)
        assert "Traceback" not in said
