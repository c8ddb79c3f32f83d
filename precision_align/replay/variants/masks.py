"""Masks done otherwise: inverted, off by one, left out, aligned to another corner."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Callable, Optional

import torch

from precision_align.replay.variants.operations import Operation, Variant, changing

aten = torch.ops.aten

_STRICTER = {
    "ge": (aten.gt, ">", ">="),
    "gt": (aten.ge, ">=", ">"),
    "le": (aten.lt, "<", "<="),
    "lt": (aten.le, "<=", "<"),
}
# Position of the mask in the operators that use one.
_USES = {"masked_fill": 1, "where": 0}


def list_masks(operation: Operation, result: Any) -> Iterator[Variant]:
    """Where masks are made, where they are joined and where they are used."""
    for rule in (_use, _join, _triangle, _comparison, _attention):
        yield from rule(operation)


def _use(operation: Operation) -> Iterator[Variant]:
    position = _USES.get(operation.name)
    if position is None or len(operation.args) <= position:
        return
    mask = operation.args[position]
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or not mask.dim():
        return

    yield Variant("mask inverted", f"the mask is inverted, {operation.place}", changing(position, torch.logical_not))
    for value, which in ((False, "all are let through"), (True, "all are masked")):
        text = f"the mask is left out: {which}, {operation.place}"
        yield Variant("mask dropped", text, changing(position, partial(torch.full_like, fill_value=value)))
    for dim in range(max(0, mask.dim() - 2), mask.dim()):
        for step in (1, -1):
            if mask.shape[dim] > 2:
                text = f"the mask is off by one: moved by {step:+d} along dimension {dim}, {operation.place}"
                yield Variant("mask off by one", text, changing(position, partial(torch.roll, shifts=step, dims=dim)))


def _join(operation: Operation) -> Iterator[Variant]:
    """Two masks joined by and, or."""
    if operation.name not in ("bitwise_and", "logical_and", "bitwise_or", "logical_or", "mul"):
        return
    parts = operation.args[:2]
    if len(parts) < 2 or not all(isinstance(part, torch.Tensor) and part.dtype == torch.bool for part in parts):
        return
    for number, other in ((0, "second"), (1, "first")):
        text = f"the {other} of two masks is left out, {operation.place}"
        yield Variant("mask dropped", text, partial(_take_part, number))
        text = f"the {other} of two masks is inverted, {operation.place}"
        yield Variant("mask inverted", text, changing(1 - number, torch.logical_not))


def _take_part(number: int, found: Operation) -> Any:
    return found.args[number].expand(found.run().shape)


def _call(overload: Any, found: Operation) -> Any:
    return overload(*found.args)


def _triangle(operation: Operation) -> Iterator[Variant]:
    if operation.name not in ("tril", "triu"):
        return
    diagonal = operation.args[1] if len(operation.args) > 1 else 0
    rows, columns = operation.args[0].shape[-2:]

    def move(value: int) -> Callable[[Operation], Any]:
        return lambda found: found.func(found.args[0], value)

    for step in (1, -1):
        text = f"the causal mask is off by one: diagonal {diagonal + step} instead of {diagonal}, {operation.place}"
        yield Variant("mask off by one", text, move(diagonal + step))
    if rows != columns:
        for step, corner in ((columns - rows, "bottom-right"), (rows - columns, "top-left")):
            text = f"the causal mask is aligned to the {corner} corner instead of the other, {operation.place}"
            yield Variant("mask alignment", text, move(diagonal + step))
    yield Variant(
        "mask dropped", f"the causal mask is left out, {operation.place}", lambda found: found.args[0].clone()
    )


def _comparison(operation: Operation) -> Iterator[Variant]:
    if operation.name in _STRICTER:
        packet, now, before = _STRICTER[operation.name]
        overload = getattr(packet, operation.func._schema.overload_name or "default", None)
        if overload is not None:
            text = f"{now} instead of {before}: a mask or limit off by one, {operation.place}"
            yield Variant("mask off by one", text, partial(_call, overload))


def _attention(operation: Operation) -> Iterator[Variant]:
    """The fused operator: its own causal flag and mask."""
    if not operation.name.startswith("_scaled_dot_product"):
        return
    query, key = operation.args[:2]
    rows, columns = query.shape[-2], key.shape[-2]
    causal = len(operation.args) > 4 and bool(operation.args[4])
    mask = operation.kwargs.get("attn_mask")
    base = torch.ones(rows, columns, dtype=torch.bool)
    if causal:
        yield _with_mask("mask dropped", "the causal mask is left out", operation, None)
        for step in (1, -1):
            text = f"the causal mask is off by one: diagonal {step}"
            yield _with_mask("mask off by one", text, operation, base.tril(step))
        if rows != columns:
            text = "the causal mask is aligned to the bottom-right corner instead of the top-left one"
            yield _with_mask("mask alignment", text, operation, base.tril(columns - rows))
    if isinstance(mask, torch.Tensor):
        yield _with_mask("mask dropped", "the attention mask is left out", operation, None)
        yield _with_mask("mask inverted", "the attention mask is inverted", operation, torch.isneginf(mask))
        for step in (1, -1):
            text = f"the attention mask is off by one: moved by {step:+d} along the keys"
            yield _with_mask("mask off by one", text, operation, ~torch.isneginf(mask).roll(step, -1))
        for step in {0, columns - rows}:
            where = "top-left" if step == 0 else "bottom-right"
            text = f"causal, aligned to the {where} corner, instead of the given mask"
            yield _with_mask("mask alignment", text, operation, base.tril(step))
    elif not causal:
        yield _with_mask("mask added", "a causal mask where there is none", operation, base.tril())


def _with_mask(name: str, text: str, operation: Operation, mask: Optional[torch.Tensor]) -> Variant:
    return Variant(name, f"{text}, {operation.place}", partial(_attend, mask))


def _attend(mask: Optional[torch.Tensor], found: Operation) -> Any:
    """softmax(q k^T scale) v under another mask; what else the operator returns stays."""
    query, key, value = found.args[:3]
    scale = found.kwargs.get("scale")
    logits = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    return (logits.softmax(-1) @ value, *found.run()[1:])
