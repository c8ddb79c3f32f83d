"""The fault benchmark: every case must be blamed on the right place, and harmless differences on none.

``dump`` records both sides to disk and compares the dumps; ``lockstep`` runs both in one process.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from drawing import IS_FULL, draw

import precision_align as pa

HERE = Path(__file__).parent


def _load_cases() -> ModuleType:
    """The folder of cases as a package, under a name of its own: pytest does not put this folder on the path."""
    place = HERE / "cases"
    spec = importlib.util.spec_from_file_location(
        "localization_cases", place / "__init__.py", submodule_search_locations=[str(place)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["localization_cases"] = module
    spec.loader.exec_module(module)
    return module


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch.jit warns of its deprecation when the module is imported
    CASES = _load_cases().find_cases()


def run_step(module: torch.nn.Module, inputs: Any, phase: str) -> None:
    """One forward; for the later phases the backward pass and the optimizer's step too."""
    output = module(**inputs) if isinstance(inputs, dict) else module(*inputs)
    if phase == "forward":
        return
    loss = find_loss(output)
    if loss is not None:
        loss.backward()
        if phase == "step":
            module.opt.step()


def find_loss(output: Any) -> torch.Tensor | None:
    """The first tensor with a gradient, as it is where it is a scalar."""
    if isinstance(output, torch.Tensor):
        if not output.requires_grad:
            return None
        return output if output.dim() == 0 else output.float().square().sum()
    items = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else ()
    return next((loss for item in items if (loss := find_loss(item)) is not None), None)


def report_from_dumps(found: Any, phase: str, folder: Path) -> Any:
    """Record both sides to disk, compare."""
    for side in ("reference", "candidate"):
        module, inputs = getattr(found, side)()
        optimizer = module.opt if phase == "step" else None
        with pa.capture(module, folder / side, optimizer=optimizer) as recorder:
            for _ in range(2 if phase == "step" else 1):
                with recorder.step():
                    run_step(module, inputs, phase)
    return pa.compare(folder / "reference", folder / "candidate", replay=found.reference()[0])


def report_from_lockstep(found: Any, phase: str, folder: Path) -> Any:
    """Run both sides in this process."""
    (reference, inputs), (candidate, candidate_inputs) = found.reference(), found.candidate()
    return pa.lockstep(
        reference,
        candidate,
        inputs,
        candidate_inputs=candidate_inputs,
        optimizers=(reference.opt, candidate.opt) if phase == "step" else None,
        step=lambda module, batch: run_step(module, batch, phase),
    )


MODES: dict[str, Callable[[Any, str, Path], Any]] = {"dump": report_from_dumps, "lockstep": report_from_lockstep}


def _pair_modes() -> Iterator[Any]:
    """A third of the cases, drawn by a fixed seed, in one process, every third of them over the disk too.

    The two modes differ in storage alone. PRECISION_ALIGN_FULL=1 takes every case in both.
    """
    drawn = draw(CASES, 1 / 3)
    for number, found in enumerate(drawn):
        for mode in ("lockstep",) if number % 3 and not IS_FULL else MODES:
            yield pytest.param(found, mode, id=f"{found.name}-{mode}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("found", "mode"), list(_pair_modes()))
def test_the_right_place_is_blamed(found: Any, mode: str, tmp_path: Path) -> None:
    expect = found.EXPECT
    phase = expect.get("phase", "backward" if expect["kind"] == "missed" else "forward")
    report = MODES[mode](found, phase, tmp_path)
    if expect["first"] is None:
        check_nothing_blamed(expect, report)
    else:
        check_blame(expect, report)


def check_nothing_blamed(expect: Any, report: Any) -> None:
    """Neither a first divergence nor that verdict; of what could not be seen a note must speak."""
    assert report.first is None, f"blamed: {report.first}"
    assert report.verdict != "diverged"
    assert expect["kind"] == "missed" or report.verdict == expect.get("verdict", "aligned")
    assert expect["kind"] != "missed" or report.notes


def check_blame(expect: Any, report: Any) -> None:
    """Scope, site, phase and call of the first divergence."""
    first = report.first
    if first is None and expect.get("or_note"):
        assert report.notes
        return
    assert first is not None, f"nothing blamed; notes: {report.notes}"
    assert report.verdict == "diverged"
    sites = expect.get("site", first.site)
    seen = {"scope": first.scope, "phase": str(first.phase), "call": first.call, "site": str(first.site)}
    assert seen == {
        "scope": expect["first"],
        "phase": "forward" if first.site == "parameters" else expect.get("phase", "forward"),
        "call": expect.get("call", first.call),
        "site": str(first.site) if first.site in (sites if isinstance(sites, tuple) else (sites,)) else sites,
    }


def test_the_benchmark_has_enough_of_each_kind() -> None:
    kinds = [found.EXPECT["kind"] for found in CASES]
    assert kinds.count("benign") >= 60
    assert kinds.count("divergence") >= 120
