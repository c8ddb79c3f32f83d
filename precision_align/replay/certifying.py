"""Certificates of recorded calls: the float64 golden of each result, and how much conforming arithmetic may be off it.

What a call of the reference computed is replayed in float64, natively, with every sum in another order, and on another
number of threads, all on its own recorded tensors. Whoever is fed the same tensors later, bit for bit, can be judged by
this without the reference's code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import torch

from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Status
from precision_align.devices.arithmetic import Arithmetic
from precision_align.devices.dispatch import ExecutionMode
from precision_align.devices.profiles import Profile
from precision_align.numerics.judgement import Scale
from precision_align.replay.calljudging import CallJudging, pick
from precision_align.replay.execution import Execution, Recorded, Style
from precision_align.replay.judging import Replayer
from precision_align.replay.lifting import LOW_PRECISIONS
from precision_align.replay.replayability import NotReplayable
from precision_align.replay.values import load_tensor, to_array

# Sums of products in pieces of 32 from the end, other sums in blocks of 32: what another kernel may do.
REORDERED = Profile(name="reordered", k_block=32, k_order="reversed", reduction="blocks", reduction_block=32)
THREADS = 4  # the native replay again on so many
NOT_COVERED = ("hf32", "tf32", "low-precision accumulation", "saturation")


@dataclass(frozen=True)
class Certified:
    """What is known of one result: ``golden`` and ``scale`` as :func:`~precision_align.numerics.judgement.judge` takes
    them; ``floors``: variant -> RMS error over the golden's RMS; ``noise``: the largest of them over the record's own.
    """

    child: int
    path: str
    record: TensorRecord
    golden: Array
    scale: Scale
    floors: Mapping[str, float]
    noise: float


def certify_call(replayer: Replayer, node: Recorded, backward: bool) -> Iterator[Certified]:
    """Certify the floating results of one call, one after the other.

    Raises NotReplayable, also where the code given is not what computed the records: against its golden the recorded
    error would be a floor under which anything passes.
    """
    judging, slots = replayer.open_call(node, backward)
    judged = [judging.judge_slot(slot) for slot in slots]
    if any(target is not None and target.judgement.status == Status.FAIL for target in judged):
        raise NotReplayable("the code given does not compute what was recorded")
    variants = dict(_run_variants(replayer, node, judging, backward))
    for child, path, record in slots:
        if record is None or record.reason or not dtype_of(record.dtype).is_floating:
            continue
        found = _certify(replayer, judging, variants, (child, path, record))
        if found is not None:
            yield found


def _run_variants(
    replayer: Replayer, node: Recorded, judging: CallJudging, backward: bool
) -> Iterator[tuple[str, Execution]]:
    yield "native", judging.native
    reordered = Style(golden=False, gradients=backward, arithmetic=ExecutionMode(Arithmetic(REORDERED)))
    for name, style, threads in (("reordered", reordered, 0), ("threads", Style(False, gradients=backward), THREADS)):
        try:
            with _on_threads(threads):
                yield name, replayer.rerun(node, style, judging.native, backward)
        except NotReplayable:  # a build that does not run says nothing of the floor
            continue


@contextmanager
def _on_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if count:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _certify(
    replayer: Replayer,
    judging: CallJudging,
    variants: Mapping[str, Execution],
    slot: tuple[int, str, TensorRecord],
) -> Optional[Certified]:
    child, path, record = slot
    wide = pick(judging.golden, child, path)
    if wide is None or wide.dtype in LOW_PRECISIONS or tuple(wide.shape) != tuple(record.shape):
        return None
    golden, own = to_array(wide), to_array(load_tensor(replayer.dump, record))
    known = {name: pick(run, child, path) for name, run in variants.items()}
    floors = {name: _measure(to_array(value), golden) for name, value in known.items() if value is not None}
    error = _measure(own, golden)
    noise = max(1.0, max(floors.values(), default=0.0) / error) if error > 0 else 1.0
    scale = judging.find_scale(child, path, record.dtype, golden)
    return Certified(child, path, record, golden, scale, {**floors, "recorded": error}, noise)


def _measure(values: Any, golden: Array) -> float:
    """RMS error relative to the golden's RMS; over finite values."""
    with np.errstate(all="ignore"):
        keep = np.isfinite(values) & np.isfinite(golden)
        norm = float(np.linalg.norm(golden[keep]))
        return float(np.linalg.norm(values[keep] - golden[keep])) / norm if norm > 0 else 0.0
