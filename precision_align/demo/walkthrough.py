"""The whole job on the demo's model, from a loss curve to the failing case of one operator, with the public API.

Read :func:`find_the_fault` first: it is what you would write for your own training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import precision_align
from precision_align.demo.model import build_model
from precision_align.demo.places import FILES
from precision_align.demo.train import Settings, break_model, prepare_device, save_checkpoint, train

if TYPE_CHECKING:
    from precision_align.library.results import CaseReport
    from precision_align.reporting.report import Report
    from precision_align.training.losses import LossReport

SIMULATED = "simulated NPU: emulated numerics, not Ascend"
STAGES = 7
PRETRAINING = Settings(steps=150, learning_rate=3e-3, seed=1)

Tell = Callable[[str], None]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Outcome:
    """What the demo found.

    ``losses``: of the reference and of the broken candidate; ``report``: their comparison, with the results of the op
    cases in it; ``cases``: the operator library's cases of the blamed operator, None where it has no row; ``repaired``:
    the comparison of the reference with the right replacements.
    """

    losses: LossReport
    report: Report
    cases: CaseReport | None
    repaired: Report


def find_the_fault(folder: Path, steps: int, fault: str | None, tell: Tell, progress: Progress) -> Outcome:
    """Train, record, compare, run the blamed operator's cases, repair, compare again.

    ``folder``: where dumps go; ``steps``: of each of the three trainings; ``fault``: break this instead of the RoPE
    replacement; ``tell``: gets a line at each stage; ``progress``: gets (done, total) within a stage.
    """
    start, reference, candidate, repaired = (str(folder / name) for name in FILES)
    prepare_device("simulated")  # a process that has run a backward pass before cannot have it any more
    with break_model(build_model(), fault):
        pass  # a fault that fits no module is told now, not after the first training

    tell("training a checkpoint on the CPU, which all runs go on from")
    model, _ = train(PRETRAINING, lambda step, loss: progress(step + 1, PRETRAINING.steps))
    save_checkpoint(model, start)

    def run(**changes: Any) -> None:
        train(Settings(steps=steps, start=start, **changes), lambda step, loss: progress(step + 1, steps))

    tell("reference: training on the CPU, recording step 0 in full")
    run(dump=reference)

    tell(f"candidate: training on the {SIMULATED}; {describe_fault(fault)}")
    operators = "ascend-wrong" if fault is None else "ascend"
    run(dump=candidate, device="simulated", operators=operators, fault=fault)

    tell("comparing the loss curves, then the records: each call again in float64, on the candidate's own inputs")
    losses = precision_align.compare_losses(reference, candidate)
    report = precision_align.compare(reference, candidate, replay=build_model, progress=progress)

    tell("running the operator library's cases of the blamed operator")
    cases = run_blamed_cases(report, wrong=fault is None)

    tell("repaired: the same training on the simulated NPU with the right replacements")
    run(dump=repaired, device="simulated", operators="ascend")

    tell("comparing the repaired run with the reference")
    aligned = precision_align.compare(reference, repaired, replay=build_model, progress=progress)
    return Outcome(losses, attach_results(report, cases), cases, aligned)


def describe_fault(fault: str | None) -> str:
    """What is wrong with the candidate, in words."""
    return "npu_rotary_mul without rotary_mode='interleave'" if fault is None else f"fault {fault}"


def run_blamed_cases(report: Report, *, wrong: bool) -> CaseReport | None:
    """The cases that the mapping row of the first divergence names, on the simulated device.

    ``wrong``: RoPE is replaced as in the broken candidate; else every operator's own replacement is run.
    """
    mapping = report.first.mapping if report.first is not None else None
    if not mapping or not mapping.get("cases"):
        return None
    from precision_align.demo.ascend import rotate_in_case

    replacement = rotate_in_case if wrong and mapping["op"] == "rope" else None
    report_of_cases: CaseReport = precision_align.run_cases(
        list(mapping["cases"]), device="simulated", replacement=replacement
    )
    return report_of_cases


def attach_results(report: Report, cases: CaseReport | None) -> Report:
    """The report with the case results beside the mapping row of its first divergence."""
    if cases is None or report.first is None or report.first.mapping is None:
        return report
    results = [
        {"name": result.name, "status": str(result.status), "note": f"{result.dtype}, {result.phase}: {result.note}"}
        for result in cases.results
    ]
    first = replace(report.first, mapping={**report.first.mapping, "results": results})
    return replace(report, first=first, frontier=(first, *report.frontier[1:]))
