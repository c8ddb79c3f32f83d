"""From an answer and the known place to exact, near, wrong or missed; and how large a missed bug's effect was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from localization_benchmark import Bug
from localization_benchmark.running import record_side

from precision_align.core.dtypes import dtype_of

EXACT, NEAR, WRONG, MISSED, QUIET, ALARM = "exact", "near", "wrong", "missed", "quiet", "false alarm"


@dataclass(frozen=True)
class Answer:
    """What a method blames first; ``scope`` None: nothing. ``site`` and ``call`` "" and -1 where it does not say."""

    scope: str | None
    phase: str = ""
    site: str = ""
    call: int = -1
    text: str = ""


def grade(bug: Bug, answer: Answer) -> str:
    """One of the words above. Site and call count only where the method gives them."""
    if bug.first is None:
        return QUIET if answer.scope is None else ALARM
    if answer.scope is None:
        return MISSED
    place = answer.scope == bug.first and answer.phase == bug.phase
    site = not answer.site or answer.site in bug.sites
    call = bug.call is None or answer.call < 0 or answer.call == bug.call
    if place and site and call:
        return EXACT
    return NEAR if is_near(answer.scope, bug.first) else WRONG


def is_near(left: str, right: str) -> bool:
    """The same module, its caller, its child, or one beside it."""
    if left == right:
        return True
    above = [scope.rpartition(".")[0] for scope in (left, right)]
    return above[0] == right or above[1] == left or above[0] == above[1]


def answer_of(report: Any) -> Answer:
    """What precision-align says."""
    first = report.first
    if first is None:
        return Answer(None, text="; ".join(report.notes[:3]))
    texts = [item.text for item in first.explanations[:3]]
    return Answer(first.scope, str(first.phase), str(first.site), first.call, "; ".join([first.evidence, *texts]))


def measure_effect(bug: Bug, seed: int, dtype: torch.dtype, faulty: Any) -> float:
    """How much the bug alone moves the tensors of its place, RMS in unit roundoffs of their dtype; 0: not a bit.

    The candidate's arithmetic on both: what is left is the bug.
    """
    clean = record_side(bug.build(False, seed, dtype), True)
    known = {str(record.key) for record in clean.records}
    worst = 0.0
    for record in faulty.records:
        if str(record.key) not in known or record.key.scope != bug.first or not dtype_of(record.dtype).is_floating:
            continue
        try:
            left, right = (side.values(record.key).astype(np.float64) for side in (faulty, clean))
        except (KeyError, ValueError):
            continue
        norm = float(np.linalg.norm(np.nan_to_num(right)))
        if left.shape == right.shape and norm > 0:
            distance = float(np.linalg.norm(np.nan_to_num(left - right))) / norm
            worst = max(worst, distance / dtype_of(record.dtype).roundoff)
    return worst
