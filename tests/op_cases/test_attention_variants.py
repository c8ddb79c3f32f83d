"""Every wrong attention is caught by a case, every conforming one passes them all."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

Tensor = torch.Tensor


def see(queries: int, keys: int, causal: str) -> Tensor:
    everything = torch.ones(queries, keys, dtype=torch.bool)
    if causal == "none":
        return everything
    return everything.tril(keys - queries if causal == "bottom-right" else 0)


def soften(scores: Tensor, hidden: Tensor) -> Tensor:
    """Softmax; a query that sees nothing gets zeros."""
    empty = hidden.all(dim=-1, keepdim=True)
    kept = scores.masked_fill(hidden, -math.inf).masked_fill(empty, 0.0)
    return torch.softmax(kept, dim=-1).masked_fill(hidden, 0.0)


def repeat(key: Tensor, groups: int) -> Tensor:
    return key.repeat_interleave(groups, dim=1)


class Variant:
    """The right attention with one thing changed."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None = None,
        causal: str = "none",
        scale: float | None = None,
    ) -> Tensor:
        change = self.changes
        dtype, groups = query.dtype, query.shape[1] // key.shape[1]
        repeat_heads = change.get("repeat", repeat)
        q, k, v = query.float(), repeat_heads(key.float(), groups), repeat_heads(value.float(), groups)
        q, k, v = change.get("inputs", lambda *parts: parts)(q, k, v)
        factor = change.get("scale", lambda s, size: size**-0.5 if s is None else s)(scale, query.shape[-1])
        scores = (q @ k.transpose(-1, -2)) * factor
        hidden = ~change.get("see", see)(scores.shape[-2], scores.shape[-1], causal)
        mask = change.get("mask", lambda m: m)(mask)
        if mask is not None and mask.dtype == torch.bool:
            hidden = hidden | ~mask
        elif mask is not None:
            scores = scores + change.get("bias", lambda bias, factor: bias)(mask.float(), factor)
            hidden = hidden | (mask == -math.inf)
        hidden = hidden.expand(scores.shape)
        weights = change.get("soften", soften)(scores, hidden)
        y = change.get("product", torch.matmul)(weights, v)
        result: Tensor = change.get("output", lambda y, q, dtype: y.to(dtype))(y, query, dtype)
        return result


def exponentiate(scores: Tensor, hidden: Tensor) -> Tensor:
    """No maximum subtracted."""
    powers = torch.exp(scores).masked_fill(hidden, 0.0)
    return powers / powers.sum(dim=-1, keepdim=True).clamp(min=1e-30)


def fill_with(number: float) -> Any:
    """Hidden keys get a large negative score instead of being left out."""
    return lambda scores, hidden: torch.softmax(scores.masked_fill(hidden, number), dim=-1)


def soften_in(dtype: torch.dtype) -> Any:
    """Exponentials and their sum in a low dtype."""

    def compute(scores: Tensor, hidden: Tensor) -> Tensor:
        empty = hidden.all(dim=-1, keepdim=True)
        kept = scores.masked_fill(hidden, -math.inf).masked_fill(empty, 0.0).to(dtype)
        powers = torch.exp(kept - kept.detach().amax(dim=-1, keepdim=True))
        return (powers / powers.sum(dim=-1, keepdim=True)).masked_fill(hidden, 0.0).float()

    return compute


def forget_blocks(size: int) -> Any:
    """Only the first ``size`` keys."""

    def compute(scores: Tensor, hidden: Tensor) -> Tensor:
        far = torch.arange(scores.shape[-1]) >= size
        return soften(scores, hidden | far)

    return compute


def merge_without_rescaling(size: int) -> Any:
    """Blocks of keys with a maximum each; earlier sums are not rescaled when the maximum grows."""

    def compute(scores: Tensor, hidden: Tensor) -> Tensor:
        kept = scores.masked_fill(hidden, -math.inf)
        parts, maximum = [], torch.full_like(kept[..., :1], -1e30)
        for block in kept.split(size, dim=-1):
            maximum = torch.maximum(maximum, block.detach().amax(dim=-1, keepdim=True))
            parts.append(torch.exp(block - maximum))
        powers = torch.cat(parts, dim=-1).masked_fill(hidden, 0.0)
        return powers / powers.sum(dim=-1, keepdim=True).clamp(min=1e-30)

    return compute


def add_up_in(dtype: torch.dtype, size: int = 16) -> Any:
    """weights v with the running sum kept in a low dtype, a few keys at a time."""

    def compute(weights: Tensor, value: Tensor) -> Tensor:
        total = torch.zeros(())
        for index in range(0, value.shape[-2], size):
            part = weights[..., index : index + size] @ value[..., index : index + size, :]
            total = (total + part).to(dtype).float()
        return total

    return compute


def round_mantissa(bits: int) -> Any:
    """Inputs of the products keep so many bits behind the point: 10 is TF32, 11 is HF32."""

    def compute(*parts: Tensor) -> tuple[Tensor, ...]:
        return tuple(part + (cut(part.detach(), bits) - part.detach()) for part in parts)

    return compute


def cut(x: Tensor, bits: int) -> Tensor:
    fraction, exponent = torch.frexp(x)
    return torch.ldexp(torch.round(fraction * 2 ** (bits + 1)) / 2 ** (bits + 1), exponent)


def drop_tail(axis: int, multiple: int) -> Any:
    """Rows or columns beyond the last whole tile are left at zero; smaller ones are one tile."""

    def compute(y: Tensor, query: Tensor, dtype: torch.dtype) -> Tensor:
        size = y.shape[axis]
        whole = size if size < multiple else size // multiple * multiple
        keep = torch.arange(size) < whole
        return (y * keep.view([-1 if d == axis % 4 else 1 for d in range(4)])).to(dtype)

    return compute


def drop_inner_tail(multiple: int) -> Any:
    """Scores from the whole tiles of the head size only."""

    def compute(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        whole = q.shape[-1] // multiple * multiple or q.shape[-1]
        return q[..., :whole], k[..., :whole], v

    return compute


def ignore_strides(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    parts = [
        t.as_strided(t.shape, torch.empty(t.shape, device="meta").stride(), t.storage_offset())
        for t in (query, key, value)
    ]
    return Variant()(*parts, **options)


def ignore_offset(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Variant()(query.as_strided(query.shape, query.stride(), 0), key, value, **options)


def rewrite_input(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    y = Variant()(query.clone(), key, value, **options)
    with torch.no_grad():
        query.detach().mul_(0.5)
    return y


class NoRowSums(torch.autograd.Function):
    """Softmax whose gradient forgets to subtract the row's mean."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, hidden: Tensor) -> Tensor:
        weights = soften(scores, hidden)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (weights,) = ctx.saved_tensors
        return weights * gradient, None


class ScaleGradient(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.factor, None


def scale_gradient(part: int, factor: float) -> Any:
    def compute(*parts: Tensor) -> tuple[Tensor, ...]:
        return tuple(ScaleGradient.apply(x, factor) if index == part else x for index, x in enumerate(parts))

    return compute


def truncate(y: Tensor, query: Tensor, dtype: torch.dtype) -> Tensor:
    """A store that cuts off what does not fit; float32 stays."""
    near = y.to(dtype)
    return torch.where(near.float().abs() > y.abs(), torch.nextafter(near, torch.zeros_like(near)), near)


def tile_heads(key: Tensor, groups: int) -> Tensor:
    """Query head h uses key head h % Nkv."""
    return key.repeat(1, groups, 1, 1)


def shift_mask(queries: int, keys: int, causal: str) -> Tensor:
    """j < i instead of j <= i; the first query keeps its own key."""
    visible = see(queries, keys, causal)
    if causal == "none":
        return visible
    shifted = visible & ~torch.eye(queries, keys, dtype=torch.bool)
    shifted[0] = visible[0]
    return shifted


def flip(mask: Tensor | None) -> Tensor | None:
    return ~mask if mask is not None and mask.dtype == torch.bool else mask


def align(name: str) -> Any:
    return lambda queries, keys, causal: see(queries, keys, causal if causal == "none" else name)


WRONG = {
    "scale missing": Variant(scale=lambda s, size: 1.0 if s is None else s),
    "explicit scale ignored": Variant(scale=lambda s, size: size**-0.5),
    "explicit scale on top": Variant(scale=lambda s, size: size**-0.5 * (1.0 if s is None else s)),
    "scale 1.0 taken for none": Variant(scale=lambda s, size: size**-0.5 if s in (None, 1.0) else s),
    "scale of the padded head size": Variant(scale=lambda s, size: (-(-size // 16) * 16) ** -0.5 if s is None else s),
    "scale one percent off": Variant(scale=lambda s, size: 1.01 * (size**-0.5 if s is None else s)),
    "mask inverted": Variant(mask=flip),
    "mask ignored": Variant(mask=lambda m: None),
    "added mask ignored": Variant(mask=lambda m: m if m is None or m.dtype == torch.bool else None),
    "added mask taken for boolean": Variant(mask=lambda m: m if m is None or m.dtype == torch.bool else m != 0),
    "boolean mask added as 0 and 1": Variant(mask=lambda m: None if m is None else m.float()),
    "bias added before the scale": Variant(bias=lambda bias, factor: bias * factor),
    "bias of the first head for all": Variant(mask=lambda m: m if m is None or m.dim() < 3 else m[:, :1]),
    "causal ignored": Variant(see=align("none")),
    "causal shifted by one": Variant(see=shift_mask),
    "top-left for bottom-right": Variant(see=align("top-left")),
    "bottom-right for top-left": Variant(see=align("bottom-right")),
    "maximum not subtracted": Variant(soften=exponentiate),
    "hidden keys at -10000": Variant(soften=fill_with(-1e4)),
    "rows without a key are a mean": Variant(soften=fill_with(-1e30)),
    "rows without a key are NaN": Variant(soften=fill_with(-math.inf)),
    "softmax over the queries": Variant(soften=lambda s, hidden: torch.softmax(s.masked_fill(hidden, -1e30), dim=-2)),
    "softmax in bfloat16": Variant(soften=soften_in(torch.bfloat16)),
    "softmax in float16": Variant(soften=soften_in(torch.float16)),
    "keys beyond 512 forgotten": Variant(soften=forget_blocks(512)),
    "blocks of 512 not rescaled": Variant(soften=merge_without_rescaling(512)),
    "blocks of 64 not rescaled": Variant(soften=merge_without_rescaling(64)),
    "running sum in bfloat16": Variant(product=add_up_in(torch.bfloat16)),
    "running sum in float16": Variant(product=add_up_in(torch.float16)),
    "HF32 products": Variant(inputs=round_mantissa(11)),
    "TF32 products": Variant(inputs=round_mantissa(10)),
    "heads tiled, not repeated": Variant(repeat=tile_heads),
    "rows beyond a tile of 64": Variant(output=drop_tail(-2, 64)),
    "head elements beyond 16": Variant(output=drop_tail(-1, 16)),
    "scores without the tail of 16": Variant(inputs=drop_inner_tail(16)),
    "strides ignored": ignore_strides,
    "storage offset ignored": ignore_offset,
    "result in float32": Variant(output=lambda y, q, dtype: y),
    "truncating store": Variant(output=truncate),
    "NaN becomes 0": Variant(output=lambda y, q, dtype: torch.nan_to_num(y).to(dtype)),
    "a NaN spoils everything": Variant(output=lambda y, q, dtype: (y + 0 * q.float().sum()).to(dtype)),
    "input rewritten": rewrite_input,
    "softmax gradient without row sums": Variant(soften=NoRowSums.apply),
    "gradient of q without scale": Variant(inputs=scale_gradient(0, 4.0)),
    "gradient of k one thousandth off": Variant(inputs=scale_gradient(1, 1.001)),
    "no gradient for v": Variant(inputs=lambda q, k, v: (q, k, v.detach())),
}


def merge_blocks(size: int) -> Any:
    """FlashAttention's online softmax over blocks of keys, written as weights."""

    def compute(scores: Tensor, hidden: Tensor) -> Tensor:
        kept = scores.masked_fill(hidden, -math.inf)
        maximum = torch.full_like(kept[..., :1], -1e30)
        total, parts = torch.zeros_like(maximum), []
        for block in kept.split(size, dim=-1):
            higher = torch.maximum(maximum, block.detach().amax(dim=-1, keepdim=True))
            rescale = torch.exp(maximum - higher)
            powers = torch.exp(block - higher)
            parts = [*(part * rescale for part in parts), powers]
            total, maximum = total * rescale + powers.sum(dim=-1, keepdim=True), higher
        weights = torch.cat(parts, dim=-1).masked_fill(hidden, 0.0)
        return weights / total.clamp(min=1e-30)

    return compute


def soften_by_exp2(scores: Tensor, hidden: Tensor) -> Tensor:
    empty = hidden.all(dim=-1, keepdim=True)
    kept = scores.masked_fill(hidden, -math.inf).masked_fill(empty, 0.0)
    powers = torch.exp2((kept - kept.detach().amax(dim=-1, keepdim=True)) * math.log2(math.e))
    return (powers * (1 / powers.flip(-1).sum(dim=-1, keepdim=True))).masked_fill(hidden, 0.0)


def split_sums(weights: Tensor, value: Tensor) -> Tensor:
    """Keys in another order and in four partial sums."""
    order = torch.randperm(value.shape[-2], generator=torch.Generator().manual_seed(7))
    parts = [weights[..., index] @ value[..., index, :] for index in order.chunk(4)]
    return torch.stack(parts).sum(dim=0)


def in_float64(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def widen(*parts: Tensor) -> tuple[Tensor, ...]:
        return tuple(part.double() for part in parts)

    return Variant(inputs=widen)(query, key, value, **options)


CONFORMING = {
    "float32 inside": Variant(),
    "online softmax over blocks of 16": Variant(soften=merge_blocks(16)),
    "online softmax over blocks of 512": Variant(soften=merge_blocks(512)),
    "exp2 and a reciprocal": Variant(soften=soften_by_exp2),
    "split sums": Variant(product=split_sums),
    "in float64": in_float64,
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_attention_is_caught(bench: Any, name: str) -> None:
    assert bench.catches("attention", WRONG[name]), f"no case catches: {name}"


@pytest.mark.parametrize("name", CONFORMING)
def test_conforming_attention_passes(bench: Any, name: str) -> None:
    assert bench.failures("attention", CONFORMING[name]) == []
