"""What a run costs: seconds and tokens of a step, memory of the process and of each module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import median

from precision_align.training.health.facts import Facts
from precision_align.training.health.findings import Costs, Finding, Severity

WORSE = 1.1  # medians of step times scatter by some percent between runs
_LEAST_BYTES = 1 << 20  # what a module keeps below this is of no weight, and page-sized steps make its ratio jump
_WARMUP = 0.1  # first share of the steps, in which caches fill and kernels compile


def measure_costs(facts: Facts) -> Costs:
    """Of the steps in which nothing was recorded, where there are such behind the warm-up; else of all behind it."""
    seconds = _sum_steps(facts.find_series("step_time", "iteration_time"))
    tokens = _sum_steps(facts.find_series("tokens"))
    steps, recording = _choose_steps(sorted(seconds), set(facts.dump.steps))
    rates = [tokens[step] / seconds[step] for step in steps if seconds[step] > 0 and step in tokens]
    logged = list(facts.find_series("tokens_per_second").values())
    memory = facts.find_series("peak_memory")
    found = facts.dump.info.capture.get("memory", {})
    modules = dict(sorted(found.get("modules", {}).items(), key=lambda item: -item[1]["kept"]))
    return Costs(
        median(seconds[step] for step in steps) if steps else None,
        median(logged or rates) if logged or rates else None,
        max(memory.values(), default=None),
        recording or bool(found.get("recorded", False)),
        modules,
    )


def _sum_steps(series: Mapping[tuple[int, int], float]) -> dict[int, float]:
    sums: dict[int, float] = {}
    for (step, _), value in series.items():
        sums[step] = sums.get(step, 0.0) + value
    return sums


def _choose_steps(steps: list[int], recorded: set[int]) -> tuple[list[int], bool]:
    warm = steps[max(1, round(_WARMUP * len(steps))) :] or steps
    idle = [step for step in warm if step not in recorded]
    return idle or warm, bool(warm) and not idle


def compare_costs(ours: Costs, theirs: Costs) -> Iterator[Finding]:
    """What is over 10 % worse than the reference's. Costs of recorded and of unrecorded steps say nothing together."""
    if ours.recording != theirs.recording:
        return
    for name in ("step_time", "tokens_per_second", "peak_memory"):
        before, now = getattr(theirs, name), getattr(ours, name)
        if before and now and (before / now if name == "tokens_per_second" else now / before) > WORSE:
            yield _make_finding(name, now, before)
    for scope, found in ours.modules.items():
        before, now = theirs.modules.get(scope, {}).get("kept", 0), found["kept"]
        if now > max(WORSE * before, before + _LEAST_BYTES) and before:
            yield _make_finding(f"memory of {scope or 'the model itself'}", now, before)


def _make_finding(place: str, now: float, before: float) -> Finding:
    values = {"candidate": now, "reference": before, "ratio": now / before}
    return Finding("cost", Severity.REMARK, 0, place=place, values=values)
