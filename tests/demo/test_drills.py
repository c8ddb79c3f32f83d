"""The fire drills: every named fault is found at its module, through lockstep and through two dumps."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

from precision_align.core.errors import UsageError
from precision_align.core.terms import Verdict
from precision_align.demo.drills import DRILLS, Drill, resolve_fault, run_drill
from precision_align.devices import simulated
from precision_align.devices.faults import KINDS, parse_fault
from precision_align.devices.torch_npu_lookalike import uninstall_lookalike

pytestmark = pytest.mark.skipif(not simulated.is_supported(), reason="the simulated device needs torch >= 2.11")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Nothing is left in the process."""
    yield
    uninstall_lookalike()
    if simulated.is_installed():
        simulated.set_profile("none")


# Each goes one way here, every kind of place both; `precision-align demo --fault all` runs every fault both ways.
@pytest.mark.parametrize(("name", "way"), list(zip(DRILLS, cycle(["lockstep", "dumps"]))))
def test_every_named_fault_is_found_where_it_was_put(name: str, way: str, tmp_path: Path) -> None:
    drill = run_drill(name, folder=tmp_path if way == "dumps" else None)
    assert drill.fired
    assert drill.found, drill.describe()
    assert drill.describe().endswith(": found")


def test_the_names_cover_the_kinds() -> None:
    kinds = {parse_fault(text).kind for text in DRILLS.values()}
    assert len(DRILLS) >= 20
    assert set(KINDS) - kinds == {"tanh_gelu"}  # the model has no GELU


@pytest.mark.parametrize("way", ["lockstep", "dumps"])
def test_without_a_fault_nothing_is_found(way: str, tmp_path: Path) -> None:
    # a fault that waits for a call that never comes
    drill = run_drill("scale@blocks.0.mlp.down:mm:call=99", folder=tmp_path if way == "dumps" else None)
    assert not drill.fired
    assert not drill.found
    assert drill.report.verdict == Verdict.ALIGNED
    assert "NEVER ACTED in blocks.0.mlp.down, forward" in drill.describe()


def test_names_are_resolved() -> None:
    assert resolve_fault("scale") == DRILLS["scale"]
    assert resolve_fault("scale@head") == "scale@head"
    for wrong in ("no-such-name", "nonsense@head"):
        with pytest.raises(UsageError, match=r"named fault|unknown kind"):
            resolve_fault(wrong)


def test_a_drill_that_blames_another_place_is_missed() -> None:
    drill = run_drill("offset")
    moved = Drill(drill.name, parse_fault(DRILLS["nan"]), True, drill.report)
    assert not moved.found
    assert "MISSED, expected" in moved.describe()


def test_the_verb_lists_names_and_runs_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from precision_align.cli.app import main
    from precision_align.demo import drills

    assert main(["demo", "--fault", "list"]) == 0
    assert "dropped-mask" in capsys.readouterr().out
    monkeypatch.setattr(drills, "DRILLS", {"scale": DRILLS["scale"]})
    assert main(["demo", "--fault", "all"]) == 0
    assert "2 of 2 runs found the fault at its module" in capsys.readouterr().out
    monkeypatch.setattr(drills, "DRILLS", {"waits": "scale@blocks.0.mlp.down:mm:call=99"})
    assert main(["demo", "--fault", "all"]) == 1
    assert "0 of 2 runs" in capsys.readouterr().out
    assert main(["demo", "--fault", "no-such-name"]) == 2
    assert "no named fault" in capsys.readouterr().err
