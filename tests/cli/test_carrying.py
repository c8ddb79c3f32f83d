"""Two machines from the command line: one visit, volumes, packs without data, and not one network call."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from precision_align.cli.app import main
from precision_align.storage.opening import open_dump

SCRIPT = """
    import sys
    import torch
    from torch import nn

    torch.manual_seed(int(sys.argv[1]))
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Dropout(0.4), nn.Linear(128, 3))
    optimizer, criterion = torch.optim.AdamW(model.parameters(), 0.01), nn.CrossEntropyLoss()
    if "wrong" in sys.argv:
        model[1].forward = lambda x: nn.functional.gelu(x, approximate="tanh")
    for step in range(4):
        x, y = torch.randn(32, 64), torch.randint(0, 3, (32,))
        criterion(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


class _Guard:
    """An audit hook that counts events of sockets; hooks cannot be removed, so it is switched."""

    watching = False
    seen: list[str]

    def __init__(self) -> None:
        self.seen = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: Any) -> None:
        if self.watching and event.startswith(("socket.", "urllib.", "http.", "ftplib.", "smtplib.")):
            self.seen.append(event)


@pytest.fixture(scope="module")
def guard() -> _Guard:
    return _Guard()


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guard: _Guard) -> Iterator[Path]:
    """A folder with the script; every command of the test runs under the guard."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(textwrap.dedent(SCRIPT))
    guard.watching, guard.seen[:] = True, []
    yield tmp_path
    guard.watching = False
    assert guard.seen == [], "the tool opened a network connection"


def test_the_guard_sees_a_socket(guard: _Guard) -> None:
    import socket

    guard.watching = True
    socket.socket().close()
    guard.watching = False
    assert guard.seen


def test_one_visit_then_an_equal_start_elsewhere(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "--one-visit", "--budget", "8MB", "-o", "visit", "--", "train.py", "1"]) == 0
    said = capsys.readouterr().err
    for text in (
        "one visit, 8.0 MiB a rank:",
        "weights and buffers: 34.0 KiB, kept",
        "dropped first",
        "this visit answers alone:",
        "can the candidate begin equal: yes",
        "a forced run (capture --force)",
        "next: precision-align pack visit -o visit-volumes",
    ):
        assert text in said
    dump = open_dump("visit/dump")
    assert dump.steps == [0, 1, 2]
    names = {point.name for point in dump.series}
    assert {"loss", "grad_norm", "batch.fingerprint"} <= names
    assert [p.step for p in dump.series if p.name == "grad_norm"] == [0, 1, 2, 3], "of all steps"
    tiers = {(r.key.scope, str(r.tier)) for r in dump.records if r.nbytes > 1 << 14}
    assert tiers == {("0", "sketch")}
    assert all(str(r.tier) == "full" for r in dump.records if r.key.scope == "" and r.key.role in ("input", "loss"))
    assert main(["pack", "visit", "-o", "volumes", "--volume", "100KB"]) == 0
    assert main(["unpack", "volumes", "-o", "arrived"]) == 0
    assert "show arrived/dump" in capsys.readouterr().out
    assert main(["capture", "-o", "own", "--start-from", "arrived/start", "--steps", "0-2", "--", "train.py", "2"]) == 0
    capsys.readouterr()
    assert main(["compare", "arrived/dump", "own", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "aligned"


def test_a_budget_that_is_too_small_says_what_is_left_out(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", "--one-visit", "--budget", "30KB", "-o", "visit", "--", "train.py", "1"]) == 0
    said = capsys.readouterr().err
    assert "weights and buffers: 34.0 KiB, do not fit" in said
    assert "can the candidate begin equal: as far as it can: the start pack lacks batches and masks" in said
    assert "where the budget left only statistics" in said
    size = sum(r.nbytes for r in open_dump("visit/dump").records if str(r.tier) == "full")
    assert size < 30 << 10


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--one-visit", "--save-start", "x", "-o", "y"], "leave --save-start out"),
        (["--one-visit"], "-o DUMP names the folder"),
        (["-o", "y", "--start-from", "nothing"], "nothing"),
        (["-o", "y", "--checkpoint", "nothing"], "give save_start too"),
    ],
)
def test_mistakes_are_told_before_the_script_runs(
    work: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    assert main(["capture", *words, "--", "train.py", "1"]) in (2, 3)
    assert text in capsys.readouterr().err
    assert not Path("y").exists()


def test_packs_without_data_can_be_compared(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who may not let values out learns whether, and behind which stand-in, two runs part."""
    for name, words in (("reference", ["1"]), ("equal", ["1"]), ("faulty", ["1", "wrong"])):
        assert main(["capture", "-o", name, "--steps", "0", "--", "train.py", *words]) == 0
        assert main(["pack", name, "-o", f"{name}.volumes", "--no-data", "--key", "key"]) == 0
        assert main(["unpack", f"{name}.volumes", "-o", f"{name}.bare"]) == 0
    capsys.readouterr()
    assert main(["compare", "reference.bare", "equal.bare"]) == 0
    assert main(["compare", "reference.bare", "faulty.bare", "--json"]) == 1
    found = json.loads(capsys.readouterr().out.partition("\n{")[2].join(["{", ""]))
    assert (found["first"]["scope"], found["first"]["op"]) == ("1", "GELU")
    assert main(["compare", "reference", "equal.bare"]) == 3
    assert "both sides were packed with --no-data" in capsys.readouterr().err
    assert main(["pack", "equal", "-o", "x.volumes", "--no-data", "--key", "another"]) == 0
    assert main(["unpack", "x.volumes", "-o", "x.bare"]) == 0
    assert main(["compare", "reference.bare", "x.bare"]) == 3
