"""Tensors on a device of which no payload is wanted: summarized there, and copied to the host once a step.

What is queued for a tensor runs on its stream before any later write to it. The small results stay on the device until
:meth:`Summaries.settle`, where one copy a device brings all of them over. A tensor of up to ``GATHERED_BYTES`` goes
along as it is: one kernel instead of some forty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple, Optional

import numpy as np
import torch

from precision_align.core.dtypes import DTYPES, Array, Dtype
from precision_align.core.terms import Tier
from precision_align.devices.condensing import COLUMNS, Condenser, is_out_of_memory, run_natively
from precision_align.numerics.batches import Values
from precision_align.numerics.sketches import count_buckets
from precision_align.recording.copies import DEVICE_BYTES, Staged, describe, layout_of
from precision_align.storage.drafts import Form, Summary
from precision_align.storage.hashing import digest_folded

SUMMARIZED = (Tier.FINGERPRINT, Tier.STATISTICS, Tier.SKETCH)
# Copying so little over the bus takes some 20 us (at 12 GB/s); launching the forty kernels that it saves takes several
# times that. More would fill the queue's share of memory, and so cost copies. No less than 8 KiB, which the hash takes
# whole.
GATHERED_BYTES = 1 << 18
# Of the memory cap: a copy in C order, scratch, results that wait; and once more those when they are joined.
_SHARES = 4


class _Result(NamedTuple):
    """What waits on the device for one tensor: its bytes (``fold`` and ``sums`` empty), or what was made of them."""

    staged: Staged
    summary: Summary
    dtype: Dtype
    numel: int
    buckets: int
    pieces: Sequence[torch.Tensor]
    num_folds: int


@dataclass
class _Queue:
    """What waits on one device."""

    condenser: Condenser
    results: list[_Result]
    nbytes: int = 0


class Summaries:
    """Takes tensors on devices, within ``limit`` bytes of each device's memory; ``note`` is told what went otherwise.

    Call inside :func:`~precision_align.recording.staging.untouched`. Not safe from several threads.
    """

    def __init__(self, note: Callable[[str], None], limit: int = DEVICE_BYTES, gathered: Optional[int] = None) -> None:
        self._note, self._share = note, limit // _SHARES
        self._gathered = GATHERED_BYTES if gathered is None else gathered
        self._queues: dict[torch.device, _Queue] = {}

    def take(self, tensor: torch.Tensor, tier: Tier) -> Optional[Staged]:
        """Queue what the tier asks for; None where the tensor has to be copied to the host for it."""
        if not self._can_take(tensor):
            return None
        try:
            with run_natively():
                return self._take(tensor.detach(), tier, describe(tensor, extra=_extra(tensor)).form)
        except Exception as error:
            self._note(_explain(tensor, error))
            return None

    def _can_take(self, tensor: torch.Tensor) -> bool:
        row = DTYPES.get(str(tensor.dtype).replace("torch.", ""))
        if row is None or row.kind == "quantized" or row.name == "complex32" or tensor.is_nested:
            return False
        return layout_of(tensor) == "strided" and (tensor.nbytes <= self._share or _lies_in_order(tensor))

    def _take(self, tensor: torch.Tensor, tier: Tier, form: Form) -> Optional[Staged]:
        queue = self._find_queue(tensor.device)
        dtype = DTYPES[form.dtype]
        small = form.nbytes <= self._gathered
        wide = queue.condenser.wide
        if not small and (not queue.condenser.exact or not _fits(dtype, wide)):
            return None
        flat = tensor if _lies_in_order(tensor) and not small else tensor.clone(memory_format=torch.contiguous_format)
        flat = flat.resolve_conj().resolve_neg().reshape(-1)
        data = _view_bytes(flat)
        buckets = count_buckets(flat.numel() * (1 + flat.is_complex())) if tier is Tier.SKETCH else 0
        pieces, num_folds = [data], 0
        if not small:
            pieces = list(queue.condenser.fold(data))
            num_folds = len(pieces)
            pieces += queue.condenser.condense(flat, dtype, buckets)  # also of a fingerprint: triggers look for NaN
        staged = Staged(form, summary=Summary())
        assert staged.summary is not None
        queue.results.append(_Result(staged, staged.summary, dtype, flat.numel(), buckets, pieces, num_folds))
        queue.nbytes += sum(piece.nbytes for piece in pieces)
        if queue.nbytes > self._share:
            self._settle(queue)
        return staged

    def _find_queue(self, device: torch.device) -> _Queue:
        found = self._queues.get(device)
        if found is None:
            found = self._queues[device] = _Queue(Condenser(device, self._share), [])
            if not found.condenser.exact:
                self._note(f"{device} does not compute the hash exactly: large tensors were copied to the host for it")
            elif found.condenser.wide is not torch.float64:
                self._note(f"{device} has no float64: means and norms there are within about 2e-6, sums in float32")
        return found

    def settle(self) -> None:
        """Bring all results over: one copy a device."""
        for queue in self._queues.values():
            if queue.results:
                with run_natively():
                    self._settle(queue)

    def _settle(self, queue: _Queue) -> None:
        results, queue.results, queue.nbytes = queue.results, [], 0
        # Words must lie at multiples of their size: the widest come first.
        results.sort(key=lambda result: 0 if result.num_folds else -result.dtype.itemsize)
        pieces = [_view_bytes(piece.reshape(-1)) for result in results for piece in result.pieces]
        try:
            _wait_for_streams(pieces[0].device)
            data = _bring(pieces)
        except Exception as error:
            first_line = (str(error).splitlines() or [""])[0]
            reason = f"its summary was lost on the device, {type(error).__name__}: {first_line}"
            self._note(reason)
            for result in results:
                result.summary.reason = reason
            return
        position = 0
        for result in results:
            position = _finish(result, data, position, queue.condenser.wide)


def _extra(tensor: torch.Tensor) -> dict[str, Any]:
    repeats = any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape))
    return {"expanded": True} if repeats else {}


def _explain(tensor: torch.Tensor, error: Exception) -> str:
    if is_out_of_memory(error):
        return f"{tensor.device} ran out of memory for statistics: tensors were copied to the host for them instead"
    first_line = (str(error).splitlines() or [""])[0]
    return f"{tensor.device} could not summarize {tensor.dtype}, {type(error).__name__}: {first_line}; done on the host"


def _lies_in_order(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _fits(dtype: Dtype, wide: torch.dtype) -> bool:
    """Whether the device's sums hold the values: without float64 not those of its own 64-bit types."""
    return wide is torch.float64 or dtype.name not in ("float64", "complex128", "int64", "uint64")


def _view_bytes(flat: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(flat).reshape(-1).view(torch.uint8) if flat.is_complex() else flat.view(torch.uint8)


def _wait_for_streams(device: torch.device) -> None:
    """Results may come from several streams; the copy waits for its own only."""
    runtime = getattr(torch, device.type, None)
    if runtime is not None and device.type != "cpu":
        runtime.synchronize()


def _bring(pieces: Sequence[torch.Tensor]) -> Array:
    """All bytes, one behind the other, in host memory of our own."""
    try:
        whole = torch.cat(list(pieces))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return np.concatenate([piece.cpu().numpy() for piece in pieces])
    data: Array = whole.cpu().numpy()
    return data


def _finish(result: _Result, data: Array, position: int, wide: torch.dtype) -> int:
    """Put one tensor's results together; returns where the next one's begin."""
    sizes = [piece.nbytes for piece in result.pieces]
    if not result.num_folds:
        result.staged.fill(data, position)
        return position + sum(sizes)
    middle = position + sum(sizes[: result.num_folds])
    end = position + sum(sizes)
    result.summary.digest = digest_folded(data[position:middle], result.staged.form.nbytes)
    numbers = data[middle:end].view(np.float64 if wide is torch.float64 else np.float32).astype(np.float64)
    rows = numbers.reshape(-1, len(COLUMNS) + result.buckets)
    result.summary.values = _join(rows[:, : len(COLUMNS)], result.numel)
    if result.buckets:
        with np.errstate(all="ignore"):  # sums of float64's largest values overflow on the host, too
            result.summary.sketch = rows[:, len(COLUMNS) :].sum(axis=0)
    return end


def _join(rows: Array, numel: int) -> Values:
    """The statistics of a tensor from its chunks'."""
    nan, finite, zero, below = (int(total) for total in rows[:, :4].sum(axis=0))
    counts = (numel, nan, numel - nan - finite, zero, below - zero)
    if not finite:
        return (*counts, math.nan, math.nan, math.nan, math.nan)
    sums, squares, factors = rows[:, 6:].T.tolist()
    mean = math.fsum(total / finite / factor for total, factor in zip(sums, factors))
    l2 = math.hypot(*(math.sqrt(square) / factor for square, factor in zip(squares, factors)))
    return (*counts, float(rows[:, 4].min()), float(rows[:, 5].max()), mean, l2)
