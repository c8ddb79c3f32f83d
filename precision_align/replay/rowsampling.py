"""Big products inside a module's own code, replayed for some rows only.

Attention and matrix products that would cost too much compute the rows of a sample and leave NaN in all others: both
ends (tail tiles) and seeded random ones. What the code goes on with carries the NaN to exactly those results that
depend on a row that was left out; the others are judged. Code that mixes rows, decides by them, or fails on NaN is
replayed whole instead.

**Power.** The rows are judged whole; one wrong value in another row is missed. Of faults in a share f of the rows, 32
random ones see nothing with a chance of (1 - f)^32: 7 % of the rows are seen with 90 %.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Callable, Optional

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from precision_align.core.dtypes import Array, dtype_of
from precision_align.numerics.judgement import Judgement
from precision_align.replay.bigcalls import SAMPLED_ABOVE
from precision_align.replay.execution import Recorded
from precision_align.replay.probing import EDGE, EVIDENCE, RANDOM_ROWS, choose
from precision_align.replay.replayability import NotReplayable

# Values of a tensor from which on a product with it may be big: 1290 x 1290 times itself is at the threshold.
LARGE_VALUES = 1 << 18


class RowSampler(TorchFunctionMode):
    """While active, big products compute a sample of their rows; ``count``: how many did."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        sample = _SAMPLED.get(func)
        found = None if sample is None else sample(func, args, kwargs or {})
        if found is None:
            return func(*args, **(kwargs or {}))
        self.count += 1
        return found


def may_be_sampled(node: Recorded) -> bool:
    """Whether a call computes with tensors so large that a product of them can be big."""
    holders = (*node.inputs.values(), *(record for child in node.children for record in child.outputs.values()))
    return any(dtype_of(record.dtype).is_floating and math.prod(record.shape) > LARGE_VALUES for record in holders)


def _sample_product(func: Any, args: Any, kwargs: Any) -> Optional[torch.Tensor]:
    if len(args) != 2 or kwargs or not all(isinstance(value, torch.Tensor) and value.dim() > 1 for value in args):
        return None
    left, right = args
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    count, inner, width = left.shape[-2], left.shape[-1], right.shape[-1]
    if math.prod(batch) * count * inner * width <= SAMPLED_ABOVE:
        return None
    rows = choose(count, EDGE, EDGE, RANDOM_ROWS)
    return _spread(func(left[..., rows, :], right), rows, count)


def _sample_attention(func: Any, args: Any, kwargs: Any) -> Optional[torch.Tensor]:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, args)), **kwargs}
    query, key, mask = given["query"], given["key"], given.get("attn_mask")
    count, length = query.shape[-2], key.shape[-2]
    if given.get("dropout_p") or math.prod(query.shape) * length * 2 <= SAMPLED_ABOVE:
        return None
    rows = choose(count, EDGE, EDGE, RANDOM_ROWS)
    if given.get("is_causal"):
        mask = rows[:, None] >= torch.arange(length)[None]  # aligned top left, as torch defines it
    elif mask is not None and mask.dim() > 1 and mask.shape[-2] == count:
        mask = mask[..., rows, :]
    given.update(query=query[..., rows, :], attn_mask=mask, is_causal=False)
    return _spread(func(**given), rows, count)


def _spread(values: torch.Tensor, rows: torch.Tensor, count: int) -> torch.Tensor:
    """The sampled rows in their places, NaN in all others."""
    whole = values.new_full((*values.shape[:-2], count, values.shape[-1]), math.nan)
    whole[..., rows, :] = values
    return whole


_SAMPLED: dict[Any, Callable[[Any, Any, Any], Optional[torch.Tensor]]] = {
    functional.scaled_dot_product_attention: _sample_attention,
    torch.matmul: _sample_product,
    torch.bmm: _sample_product,
    torch.mm: _sample_product,
    torch.Tensor.matmul: _sample_product,
    torch.Tensor.__matmul__: _sample_product,
    torch.Tensor.bmm: _sample_product,
    torch.Tensor.mm: _sample_product,
}


def find_rows(actual: Array, native: Array, golden: Array) -> Optional[Array]:
    """The rows of the last axis that both replays computed, bool; None where they computed all.

    Raises NotReplayable where there is none, and where the candidate has a NaN or Inf in the others.
    """
    if actual.shape != golden.shape or actual.shape != native.shape or not actual.ndim:
        return None
    missing = np.isnan(native) & np.isnan(golden)
    if not missing.any():
        return None
    rows = np.asarray(~missing.reshape(-1, missing.shape[-1]).any(axis=1))
    if not rows.any() or not np.isfinite(actual.reshape(len(rows), -1)[~rows]).all():
        raise NotReplayable("its rows cannot be told apart")
    return rows


def mark_sampled(found: Judgement, rows: Array, width: int) -> Judgement:
    """A judgement of some rows as one of the whole: where its worst element stands, and what may be missed."""
    metrics = {**found.metrics, "sample_miss": 1 - float(rows.mean())}
    if "worst_index" in metrics:
        row, column = divmod(int(metrics["worst_index"]), width)
        metrics["worst_index"] = float(int(np.flatnonzero(rows)[row]) * width + column)
    why = (
        f"{found.why}; sampled: {int(rows.sum())} of {len(rows)} rows; one wrong value in another row is missed with "
        f"{100 * metrics['sample_miss']:.0f} %"
    )
    return replace(found, why=why, metrics=metrics, evidence=EVIDENCE)
