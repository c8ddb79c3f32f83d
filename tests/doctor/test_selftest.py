"""The self-test: the conformance suite without pytest, its outcome in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from precision_align.doctor import selftest  # noqa: E402
from precision_align.testing.devices import DeviceConformance, Inapplicable, list_checks  # noqa: E402


class Small(DeviceConformance):
    """Three checks, one of each outcome."""

    def test_passes(self) -> None:
        assert self.device.is_available()

    def test_fails(self) -> None:
        raise RuntimeError("the card is gone")

    def test_does_not_apply(self) -> None:
        raise Inapplicable("no such thing here")


def test_outcomes_are_told_kept_and_summed_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(selftest, "_make_suite", lambda name: Small())
    monkeypatch.setattr(
        "precision_align.testing.devices.list_checks", lambda suite: [n for n in vars(Small) if n.startswith("test_")]
    )
    lines: list[str] = []
    outcomes = selftest.run_suites(["cpu"], lines.append)
    assert [outcome.status for outcome in outcomes] == ["passed", "failed", "skipped"]
    assert len(lines) == 3
    path = tmp_path / "self-test.json"
    selftest.save_outcomes(path, outcomes, {"versions": {"torch": "2"}})
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert kept["facts"] == {"versions": {"torch": "2"}}
    assert "the card is gone" in kept["outcomes"][1]["text"]
    (check,) = selftest.summarise(outcomes, path)
    assert check.status == "bad"
    assert "1 passed, 1 failed, 1 skipped: test_fails" in check.text


def test_the_suite_is_the_one_that_pytest_runs() -> None:
    names = list_checks(DeviceConformance)
    assert len(names) == len(set(names)) > 15
    assert set(names) == {name for name in dir(DeviceConformance) if name.startswith("test_")}
    assert selftest.choose_devices([])[0] == "cpu"
    assert selftest.choose_devices(["cpu", "cpu"]) == ["cpu"]
