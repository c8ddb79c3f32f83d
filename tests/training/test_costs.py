"""What a step and a module cost is measured by the recorder and judged by health and the ledger."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from precision_align.cli.app import main
from precision_align.storage.opening import open_dump
from precision_align.training.health.checking import check_health

torch = pytest.importorskip("torch")
nn = torch.nn
MIB = 1 << 20


class Wide(nn.Module):
    """Keeps ``size`` MiB of activations in ``body``; sleeps for ``pause`` seconds.

    Over 32 MiB the C library maps memory anew; less may come from what the process holds already, and shows nothing.
    """

    def __init__(self, size: int, pause: float) -> None:
        super().__init__()
        self.size, self.pause = size, pause
        self.embed, self.body, self.head = nn.Embedding(8, 4), Grown(size), nn.Linear(4, 8)

    def forward(self, tokens: Any) -> Any:
        time.sleep(self.pause)
        return self.head(self.body(self.embed(tokens)))


class Grown(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.held: list[Any] = []

    def forward(self, x: Any) -> Any:
        self.held[:] = [torch.ones(self.size * MIB // 4)]
        return x + self.held[0][0]


def record(path: Path, size: int = 64, pause: float = 0.0, steps: str = "0-1") -> Path:
    import precision_align as pa

    torch.manual_seed(0)
    model = Wide(size, pause)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pa.capture(model, path, optimizer=optimizer, steps=steps, facts=True, payload="statistics") as recorder:
        for _ in range(6):
            with recorder.step():
                model(torch.arange(6).reshape(2, 3)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                model.body.held.clear()
    return path


def test_every_step_is_timed_and_every_module_weighed(tmp_path: Path) -> None:
    path = record(tmp_path / "run", pause=0.05)
    costs = check_health(path).costs
    assert not costs.recording  # the steps from 2 on are the training's own
    assert costs.step_time is not None
    assert 0.05 < costs.step_time < 5
    assert costs.tokens_per_second == pytest.approx(6 / costs.step_time, rel=0.5)
    assert costs.peak_memory is not None
    assert costs.peak_memory > 64 * MIB
    assert costs.modules["body"]["kept"] == pytest.approx(64 * MIB, rel=0.2)
    assert costs.modules["head"]["kept"] < 4 * MIB
    assert costs.modules["body"]["peak"] <= 1.01 * costs.peak_memory  # the kernel counts pages lazily
    assert {point.step for point in open_dump(path).series if point.name == "step_time"} == set(range(6))


def test_a_slower_and_larger_candidate_is_remarked_on_and_an_equal_one_is_not(tmp_path: Path) -> None:
    reference = record(tmp_path / "reference", pause=0.05)
    again = record(tmp_path / "again", pause=0.05)
    worse = record(tmp_path / "worse", size=192, pause=0.15)
    found = {one.place: one.values["ratio"] for one in check_health(worse, reference).findings if one.code == "cost"}
    assert found["memory of body"] == pytest.approx(3, rel=0.2)
    assert found["step_time"] > 1.5
    assert found["tokens_per_second"] < 0.7
    silent = {one.place for one in check_health(again, reference).findings if one.code == "cost"}
    assert not {place for place in silent if place.startswith("memory of")}


def test_a_run_recorded_throughout_says_so_and_is_not_held_against_one_that_is_not(tmp_path: Path) -> None:
    reference = record(tmp_path / "reference")
    whole = record(tmp_path / "whole", pause=0.05, steps="0-5")
    report = check_health(whole, reference)
    assert report.costs.recording
    assert not [one for one in report.findings if one.code == "cost"]


def test_the_page_shows_costs_in_both_languages(tmp_path: Path, capsys: Any) -> None:
    path = record(tmp_path / "run", steps="0-5")
    for language, words in (("en", ("tokens per second", "body", "--steps")), ("zh", ("峰值内存", "保留"))):
        main(["health", str(path), "--lang", language])
        shown = capsys.readouterr().out
        assert all(word in shown for word in words)


def test_the_ledger_takes_step_time_and_memory_from_a_dump(tmp_path: Path) -> None:
    ledger = tmp_path / "baseline.jsonl"
    reference, slower = record(tmp_path / "reference", pause=0.02), record(tmp_path / "slower", pause=0.1)
    assert main(["baseline", "add", str(ledger), "start", "--run", str(reference)]) == 0
    entry = json.loads(ledger.read_text("utf-8"))
    assert 0.02 < entry["step_time"] < 5
    assert entry["memory"] > 64 * MIB
    assert main(["baseline", "check", str(ledger), "slower", "--run", str(slower)]) == 1


def test_a_dump_without_costs_is_refused_by_the_ledger(tmp_path: Path, capsys: Any) -> None:
    import precision_align as pa

    model = nn.Linear(2, 2)
    with pa.capture(model, tmp_path / "plain"):
        model(torch.ones(1, 2))
    assert main(["baseline", "add", str(tmp_path / "b.jsonl"), "start", "--run", str(tmp_path / "plain")]) == 2
    assert "--facts" in capsys.readouterr().err
