"""Inputs that hide a class of faults, and the stimulus that would show it.

A comparison speaks of the inputs that were recorded. Some leave whole classes of faults without effect: no tail tile is
computed where every length is a multiple of the tile, no mask is applied where it lets everything through. Named here
from the index alone (shapes, statistics, attributes), and for near-ties from small payloads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from precision_align.alignment.side import Node, Side
from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.errors import DumpError
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Phase, Role
from precision_align.core.trees import scalars

TILE = 16  # the smallest tile of matrix units (Ascend's cube, tensor cores): what is a multiple of it has no tail
MANY = 16  # a tensor of fewer values may be constant by chance
TIE_UNITS = 8.0  # rounding units of the largest score: what two builds may differ by before a decision
MAX_SCORES = 1 << 20  # scores that are read to look for near-ties

_ROTARY = re.compile(r"rotary|rope|inv_freq|freqs", re.IGNORECASE)
_MASK = re.compile(r"mask|padding", re.IGNORECASE)

Hidden = tuple[str, str]  # what hides, what would show it


def describe_blindness(side: Side) -> list[str]:
    """Notes on the classes of faults that these inputs cannot show."""
    checks = (_find_single, _find_aligned, _find_masks, _find_dropout, _find_constant, _find_positions, _find_ties)
    found = [hidden for check in (*checks, _find_identity) for hidden in check(side)]
    return [f"these inputs hide {what}; {stimulus} would show it" for what, stimulus in dict.fromkeys(found)]


def _list_roots(side: Side) -> list[TensorRecord]:
    return [record for node in side.nodes if node.parent is None for record in node.inputs.values()]


def _find_single(side: Side) -> Iterator[Hidden]:
    sizes = {record.shape[0] for record in _list_roots(side) if len(record.shape) > 1}
    if sizes == {1}:
        yield "samples that are mixed up: every batch holds one", "a batch of three different samples"


def _find_aligned(side: Side) -> Iterator[Hidden]:
    lengths = {length for record in _list_roots(side) for length in _list_lengths(record)}
    if lengths and not any(length % TILE for length in lengths):
        shown = ", ".join(map(str, sorted(lengths)[:3]))
        yield f"faults of tail tiles: every length ({shown}) is a multiple of {TILE}", "a length such as 37"


def _list_lengths(record: TensorRecord) -> tuple[int, ...]:
    """Sizes along a sequence or an image: not the batch, and not features or channels."""
    if not dtype_of(record.dtype).is_floating:
        return record.shape[1:]
    return record.shape[1:-1] if len(record.shape) == 3 else record.shape[2:]


def _find_masks(side: Side) -> Iterator[Hidden]:
    """Masks by their name or dtype that are the same everywhere, in each of their records."""
    spread: dict[str, bool] = {}
    for node in side.nodes:
        names = _name_inputs(node)
        for path, record in node.inputs.items():
            name = names.get(path, path)
            known = record.statistics if record.dtype == "bool" or _MASK.search(name) else None
            if known is None or known.numel < 2:
                continue
            spread[name] = spread.get(name, False) or known.minimum != known.maximum
    for name, varies in spread.items():
        if not varies:
            yield (
                f"faults of masks and padding: {name} is the same everywhere, so it masks nothing",
                "a batch of sequences of different lengths",
            )


def _name_inputs(node: Node) -> Mapping[str, str]:
    """Path -> name as it was passed: "kwargs.attention_mask" is attention_mask."""
    return {path: path.rpartition(".")[2] if path.startswith("kwargs.") else path for path in node.inputs}


def _find_dropout(side: Side) -> Iterator[Hidden]:
    dropouts = [node for node in side.nodes if "Dropout" in node.call.kind]
    if dropouts and not any(node.call.training and _get_number(node, "p") != 0 for node in dropouts):
        yield (
            "faults of dropout (rate, scale, seed): every one is in evaluation mode or has rate 0",
            "a step in training mode with a rate above 0",
        )


def _get_number(node: Node, name: str) -> Any:
    if node.call.attributes is None:
        return None
    return next((leaf.get("value") for path, leaf in scalars(node.call.attributes) if path == name), None)


def _find_constant(side: Side) -> Iterator[Hidden]:
    for node in side.nodes:
        for path, record in node.inputs.items():
            if math.prod(record.shape) < MANY or not dtype_of(record.dtype).is_floating or _MASK.search(path):
                continue
            known = record.statistics if record.is_constant else None
            if known is not None:
                where = f"{path} of {node.scope or 'the model'}"
                yield f"values in wrong places: {where} is {known.minimum:g} everywhere", "values that all differ"
                return


def _find_positions(side: Side) -> Iterator[Hidden]:
    """Positions up to 1 / u are exact in a dtype, so that computing them in it shows nothing."""
    names = [*side.dump.info.modules, *side.dump.info.modules.values()]
    if not any(_ROTARY.search(name) for name in names):
        return
    used = {record.dtype for node in side.nodes for record in node.tensors.values()} & {"bfloat16", "float16"}
    lengths = [record.shape[1] for record in _list_roots(side) if len(record.shape) in (2, 3)]
    positions = [_largest(record) for node in side.nodes for path, record in node.inputs.items() if "position" in path]
    last = max([length - 1 for length in lengths] + [int(found) for found in positions if found is not None], default=0)
    for dtype in sorted(used):
        exact = round(1 / dtype_of(dtype).roundoff)
        if 0 < last <= exact:
            yield (
                f"rotary positions rounded to {dtype}: the last one is {last}, and all up to {exact} are exact in it",
                f"positions above {exact}",
            )


def _largest(record: TensorRecord) -> float | None:
    return None if record.statistics is None else record.statistics.maximum


def _find_ties(side: Side) -> Iterator[Hidden]:
    """Calls that choose among scores, none of which are close enough for rounding to decide."""
    for node in side.nodes:
        for scores, chosen in _list_choices(node):
            margin = _measure_margin(side, scores, chosen)
            if margin is None:
                continue
            if margin > TIE_UNITS * dtype_of(scores.dtype).roundoff:
                yield (
                    f"wrong tie-breaking of {node.scope or 'the model'}: the closest two scores that decide are "
                    f"{margin:.1g} of the largest apart",
                    "scores that are equal, and some one rounding unit apart",
                )
            return


def _list_choices(node: Node) -> Iterator[tuple[TensorRecord, TensorRecord]]:
    """(scores, positions): an integer result, and floating tensors of the same leading shape that are wider."""
    results = [record for record in node.outputs.values() if record.dtype in ("int64", "int32")]
    inner = [record for child in node.children for record in child.outputs.values()]
    for result in results:
        for scores in (*node.outputs.values(), *inner, *node.inputs.values()):
            if not dtype_of(scores.dtype).is_floating or len(scores.shape) < 2:
                continue
            one = result.shape == scores.shape[:-1]
            if one or (result.shape[:-1] == scores.shape[:-1] and result.shape[-1] < scores.shape[-1]):
                yield scores, result


def _measure_margin(side: Side, scores: TensorRecord, chosen: TensorRecord) -> float | None:
    """The smallest distance of the last chosen score from the first that was not, relative to the largest.

    None where the values are not at hand, or the positions are not those of the largest scores.
    """
    if not 0 < math.prod(scores.shape) <= MAX_SCORES:
        return None
    try:
        values: Array = side.dump.values(scores.key).astype(np.float64)
        places: Array = side.dump.values(chosen.key)
    except (KeyError, DumpError):
        return None
    values = values.reshape(-1, values.shape[-1])
    places = places.reshape(len(values), -1).astype(np.int64)
    count, width = places.shape[1], values.shape[1]
    if count >= width or not np.isfinite(values).all() or places.min() < 0 or places.max() >= width:
        return None
    ordered = np.sort(values, axis=-1)
    taken = np.sort(np.take_along_axis(values, places, axis=-1), axis=-1)
    if not np.array_equal(taken, ordered[:, width - count :]):
        return None
    gaps = ordered[:, -count] - ordered[:, -count - 1]
    return float(gaps.min() / max(np.abs(values).max(), 1e-300))


def _find_identity(side: Side) -> Iterator[Hidden]:
    """Norms as they are initialised: weight 1, bias 0."""
    kinds = side.dump.info.modules
    norms = {scope for scope, kind in kinds.items() if "Norm" in kind.rpartition(".")[2]}
    plain = None
    for unit in side.units:
        state = side.select_state(unit.rank, unit.step, Role.PARAMETER, Phase.FORWARD)
        for (scope, name), record in state.items():
            known = record.statistics if scope in norms and plain is not False else None
            if known is None:
                continue
            neutral = 1.0 if name == "weight" else 0.0
            plain = known.minimum == known.maximum == neutral
    if plain:
        yield (
            "weights and biases of norms that are not applied: all are 1 and 0 as initialised",
            "weights of a trained checkpoint, or random ones",
        )
