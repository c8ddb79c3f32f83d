"""Elements taken in another order: halves against interleaved pairs, transposed operands, exclusive sums."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from precision_align.replay.variants.operations import Operation, Variant, changing, is_floating, list_tensors

_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")


def list_orders(operation: Operation, result: Any) -> Iterator[Variant]:
    """Ways to read, join or multiply in another order."""
    for rule in (_slice, _split, _join, _product, _repeat, _cumulative):
        yield from rule(operation)


INTERLEAVED = "interleaved pairs against halves: which elements form a pair"


def _slice(operation: Operation) -> Iterator[Variant]:
    """x[..., :half] against x[..., ::2]: everywhere, since a pair is taken by two slices."""
    if operation.name == "slice" and _read_half(operation) is not None:
        yield Variant("interleaved", INTERLEAVED, _exchange_slice, alone=False, jointly=True)


def _read_half(operation: Operation) -> tuple[int, bool] | None:
    """(which of a pair, whether halves) a slice of the last dimension takes; None: neither."""
    given: list[Any] = [*operation.args, *(None, 0, None, None, 1)[len(operation.args) :]]
    x, dim, start, end, step = given
    size = x.shape[dim] if x.dim() else 0
    if dim % max(x.dim(), 1) != x.dim() - 1 or size % 2 or size < 4:
        return None
    start, end = start or 0, size if end is None else min(end, size)
    if step == 1 and (start, end) in ((0, size // 2), (size // 2, size)):
        return int(start > 0), True
    return (start, False) if step == 2 and start in (0, 1) and end == size else None


def _exchange_slice(found: Operation) -> Any:
    known = _read_half(found)
    if known is None:
        return found.run()
    x, (which, halves) = found.args[0], known
    half = x.shape[-1] // 2
    return x[..., which::2] if halves else x[..., which * half : (which + 1) * half]


def _split(operation: Operation) -> Iterator[Variant]:
    if operation.name not in ("split", "split_with_sizes", "unbind"):
        return
    parts = operation.run()
    if len(parts) < 2 or any(part.shape != parts[0].shape for part in parts):
        return
    yield Variant(
        "parts swapped", f"the parts stand in reverse order, {operation.place}", lambda found: found.run()[::-1]
    )
    if operation.name != "unbind" and len(parts) == 2:
        yield Variant("interleaved", INTERLEAVED, _take_pairs, jointly=True)


def _take_pairs(found: Operation) -> Any:
    dim = found.args[2] if len(found.args) > 2 else 0
    moved = found.args[0].movedim(dim, -1)
    return [moved[..., start::2].movedim(-1, dim) for start in (0, 1)]


def _join(operation: Operation) -> Iterator[Variant]:
    if operation.name not in ("cat", "stack") or not operation.args:
        return
    parts = list_tensors(operation.args[0])
    if len(parts) < 2 or any(part.shape != parts[0].shape for part in parts):
        return
    text = f"the parts are joined in reverse order, {operation.place}"
    yield Variant("parts swapped", text, lambda found: found.replace(0, list(found.args[0])[::-1]))
    if operation.name == "cat" and len(parts) == 2:
        yield Variant("interleaved", INTERLEAVED, _join_pairs, jointly=True)


def _join_pairs(found: Operation) -> Any:
    dim = found.args[1] if len(found.args) > 1 else 0
    moved = torch.stack([part.movedim(dim, -1) for part in found.args[0]], -1)
    return moved.flatten(-2).movedim(-1, dim)


def _product(operation: Operation) -> Iterator[Variant]:
    if operation.name not in _PRODUCTS:
        return
    first = 1 if operation.name in ("addmm", "baddbmm") else 0
    for position, which in ((first, "first"), (first + 1, "second")):
        factor = operation.args[position]
        if factor.shape[-1] == factor.shape[-2]:
            text = f"the {which} factor is transposed, {operation.place}"
            yield Variant("transposed", text, changing(position, torch.Tensor.adjoint))


def _repeat(operation: Operation) -> Iterator[Variant]:
    """repeat against repeat_interleave: which copy belongs to which head."""
    text = (
        f"copies stand side by side against one after the other (repeat_interleave against repeat), {operation.place}"
    )
    if operation.name == "repeat":
        x, counts = operation.args
        many = [dim for dim, count in enumerate(counts) if count > 1 and x.dim() == len(counts) and x.shape[dim] > 1]
        if len(many) == 1:
            yield Variant("repeat", text, partial(_repeat_each, many[0]))
    if operation.name == "clone" and _find_copies(operation.args[0]) is not None:
        yield Variant("repeat", text, _copy_otherwise)


def _repeat_each(dim: int, found: Operation) -> Any:
    return found.args[0].repeat_interleave(found.args[1][dim], dim)


def _find_copies(x: torch.Tensor) -> int | None:
    """The expanded dimension that a clone of x writes out, where others stand before it."""
    copied = [dim for dim in range(1, x.dim()) if x.stride(dim) == 0 and x.shape[dim] > 1 and x.shape[dim - 1] > 1]
    return copied[0] if len(copied) == 1 else None


def _copy_otherwise(found: Operation) -> Any:
    x = found.args[0]
    dim = _find_copies(x)
    return found.run() if dim is None else x.transpose(dim - 1, dim).contiguous().view(x.shape)


def _cumulative(operation: Operation) -> Iterator[Variant]:
    if operation.name not in ("cumsum", "cumprod") or not is_floating(operation.args[0]):
        return
    text = f"exclusive against inclusive: each element counts itself, {operation.place}"

    def exclude(found: Operation) -> Any:
        dim, neutral = found.args[1], 0.0 if found.name == "cumsum" else 1.0
        values = found.run().roll(1, dim)
        values.select(dim, 0).fill_(neutral)
        return values

    yield Variant("off by one", text, exclude)
