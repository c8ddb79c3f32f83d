"""The usual rules on raw differences, run over the same two dumps: the first tensor in walk order that one flags.

They see every tensor that we record, so more than their own tools do, and an input that differs counts against the
caller that computed it. ``assert_close``: torch.testing's defaults; ``msprobe thresholds``: its "Accuracy Reached" rule
(cosine and largest absolute error); ``envelope``: ten times what inputs perturbed by one roundoff change in three
re-runs of the reference (the idea of TTrace, arXiv:2506.09280).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from localization_benchmark import Bug
from localization_benchmark.running import Recorded, record_side
from localization_benchmark.scoring import Answer

from precision_align.core.dtypes import dtype_of

Array = Any
TOLERANCES = {"float32": (1.3e-6, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float16": (1e-3, 1e-5)}
RERUNS, ENVELOPE = 3, 10.0


def is_unequal(actual: Array, expected: Array, dtype: str) -> bool:
    rtol, atol = TOLERANCES.get(dtype, (0.0, 0.0))
    return not np.allclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)


def cosine(actual: Array, expected: Array) -> float:
    norms = float(np.linalg.norm(actual) * np.linalg.norm(expected))
    if norms == 0:
        return 1.0 if not (actual.any() or expected.any()) else 0.0
    return float(np.dot(actual.ravel(), expected.ravel())) / norms


def relative(actual: Array, expected: Array) -> float:
    norm = float(np.linalg.norm(expected))
    return float(np.linalg.norm(actual - expected)) / norm if norm > 0 else float(np.any(actual != expected))


def misses_accuracy(actual: Array, expected: Array, dtype: str) -> bool:
    largest = float(np.max(np.abs(actual - expected), initial=0.0))
    similarity = cosine(actual, expected)
    return not (largest <= 1 and similarity >= 0.9 and (similarity >= 0.99 or largest <= 0.001))


RULES: dict[str, Callable[[Array, Array, str], bool]] = {
    "assert_close defaults": is_unequal,
    "relative L2 > 1e-3": lambda a, b, dtype: not relative(a, b) <= 1e-3,
    "relative L2 > 1e-2": lambda a, b, dtype: not relative(a, b) <= 1e-2,
    "cosine < 0.999": lambda a, b, dtype: not cosine(a, b) >= 0.999,
    "cosine < 0.99": lambda a, b, dtype: not cosine(a, b) >= 0.99,
    "msprobe thresholds": misses_accuracy,
}
ENVELOPE_NAME = "perturbation envelope x10"


def answer_by_rules(bug: Bug, seed: int, dtype: torch.dtype, recorded: Recorded) -> dict[str, Answer]:
    """Rule -> its first flag."""
    found: dict[str, Answer] = {}
    envelope = measure_envelope(bug, seed, dtype, recorded.reference)
    for name, blame, actual, expected, kind in walk(recorded):
        for rule, flags in RULES.items():
            if rule not in found and flags(actual, expected, kind):
                found[rule] = blame
        allowed = ENVELOPE * envelope.get(name, 0.0) + dtype_of(kind).roundoff if dtype_of(kind).is_floating else 0.0
        if ENVELOPE_NAME not in found and not relative(actual, expected) <= allowed:
            found[ENVELOPE_NAME] = blame
        if len(found) == len(RULES) + 1:
            break
    return {rule: found.get(rule, Answer(None)) for rule in (*RULES, ENVELOPE_NAME)}


def walk(recorded: Recorded) -> Iterator[tuple[str, Answer, Array, Array, str]]:
    """(key, who made it, candidate's and reference's values, dtype) of every tensor of both, in walk order."""
    callers = {call.identity: call.scope for call in recorded.candidate.calls}
    parents = {(call.step, call.scope, call.call): callers.get(call.parent, "") for call in recorded.candidate.calls}
    known = {str(record.key) for record in recorded.reference.records}
    for record in recorded.candidate.records:
        key = record.key
        if str(key) not in known or str(key.pass_) != "first":
            continue
        try:
            actual, expected = (
                side.values(key).astype(np.float64) for side in (recorded.candidate, recorded.reference)
            )
        except (KeyError, ValueError):
            continue
        scope = parents.get((key.step, key.scope, key.call), "") if str(key.role) == "input" else key.scope
        if actual.shape == expected.shape:
            yield str(key), Answer(scope, str(key.phase)), actual, expected, record.dtype


def measure_envelope(bug: Bug, seed: int, dtype: torch.dtype, reference: Any) -> dict[str, float]:
    """Key -> largest relative L2 change over re-runs of the reference with perturbed inputs and weights."""
    found: dict[str, float] = {}
    for number in range(RERUNS):
        setup = bug.build(False, seed, dtype)
        generator = torch.Generator().manual_seed(number)
        unit = torch.finfo(dtype).eps / 2
        with torch.no_grad():
            for parameter in setup.model.parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(parameter.float() * (1 + unit * noise))
        dump = record_side(setup, False)
        for record in dump.records:
            try:
                left, right = (side.values(record.key).astype(np.float64) for side in (dump, reference))
            except (KeyError, ValueError):
                continue
            if left.shape == right.shape:
                key = str(record.key)
                found[key] = max(found.get(key, 0.0), relative(left, right))
    return found
