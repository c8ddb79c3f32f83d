"""By how much one token counts in the loss: read off the gradient that a cross-entropy sends into the logits.

That gradient is w * (softmax(logits) - onehot) in each row that counts and zero in the others, with w = 1/n where the
loss is divided by n. So w and the number of rows that count are in the dump, whatever code computed the loss.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.errors import DumpDamaged
from precision_align.core.keys import Key
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.storage.base import Dump

_TRIED = 3  # outputs with the earliest gradients of a micro-batch: the logits, or what holds them
_ROWS = 256  # of them, evenly, to fit w by
_FITS = 0.03  # relative L2 of what the formula leaves, and relative spread of w; bfloat16 gradients leave 0.01


@dataclass(frozen=True)
class TokenWeight:
    """``weight``: of one token in the loss of its micro-batch; ``tokens``: how many count."""

    weight: float
    tokens: int


Weights = Mapping[tuple[int, int], list[TokenWeight]]  # (step, rank) -> one a micro-batch


def read_weights(dump: Dump) -> Weights:
    """Of each micro-batch whose loss is a cross-entropy over recorded logits."""
    outputs: dict[tuple[object, ...], TensorRecord] = {}
    gradients: dict[tuple[int, int, int], list[TensorRecord]] = defaultdict(list)
    for record in dump.records:
        key = record.key
        if key.source != Source.MODULE or key.pass_ != Pass.FIRST or record.tier != Tier.FULL or len(record.shape) < 2:
            continue
        if key.role == Role.OUTPUT and key.phase == Phase.FORWARD:
            outputs[_identify(key, key.path)] = record
        elif key.role == Role.GRADIENT and key.path.partition(".")[0] == "output":
            gradients[key.step, key.rank, key.micro].append(record)
    found: dict[tuple[int, int], list[TokenWeight]] = defaultdict(list)
    for (step, rank, _), records in sorted(gradients.items()):
        records.sort(key=lambda record: record.order)
        pairs = [(outputs.get(_identify(one.key, one.key.path.partition(".")[2])), one) for one in records[:_TRIED]]
        weights = (_read(dump, output, gradient) for output, gradient in pairs if output is not None)
        weight = next((one for one in weights if one is not None), None)
        if weight is not None:
            found[step, rank].append(weight)
    return found


def _identify(key: Key, path: str) -> tuple[object, ...]:
    return key.step, key.rank, key.micro, key.scope, key.call, path


def _read(dump: Dump, output: TensorRecord, gradient: TensorRecord) -> TokenWeight | None:
    if output.shape != gradient.shape:
        return None
    try:
        return fit_cross_entropy(dump.values(output.key), dump.values(gradient.key))
    except (KeyError, DumpDamaged):
        return None


def fit_cross_entropy(logits: Array, gradient: Array) -> TokenWeight | None:
    """The weight of a row and how many count; None where the gradient is not that of a cross-entropy.

    ``logits`` and ``gradient``: of shape (..., classes).
    """
    rows = gradient.reshape(-1, gradient.shape[-1])
    counting = np.flatnonzero(rows.any(axis=1))
    if not len(counting) or gradient.shape[-1] < 2:
        return None
    chosen = counting[:: max(1, len(counting) // _ROWS)]
    slopes = rows[chosen].astype(np.float64)
    values = logits.reshape(rows.shape)[chosen].astype(np.float64)
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    shares = powers / powers.sum(axis=1, keepdims=True)
    target = slopes.argmin(axis=1)
    direction = shares.copy()
    direction[np.arange(len(chosen)), target] -= 1.0
    sizes = (direction**2).sum(axis=1)
    if not sizes.all() or not np.isfinite(slopes).all():
        return None
    each = (slopes * direction).sum(axis=1) / sizes
    weight = float(np.median(each))
    rest = slopes - weight * direction
    if weight <= 0 or np.linalg.norm(rest) > _FITS * np.linalg.norm(slopes):
        return None
    return TokenWeight(weight, len(counting))
