"""Cases for paged decoding attention. Keywords: ``q`` (B, N, D), ``key_cache``, ``value_cache`` (blocks, size, Nkv, D),
``tables`` (B, M), ``lengths`` (B,), ``scale``."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, normal, shuffled
from precision_align.library.formulas import Formula

FORMULA = Formula("paged_attention")
Tensor = torch.Tensor


def paged(
    lengths: list[int], size: int = 8, per: int = 4, heads: int = 4, key_heads: int = 2, d: int = 16
) -> dict[str, Any]:
    count = len(lengths) * per
    return {
        "q": normal(len(lengths), heads, d),
        "key_cache": normal(count, size, key_heads, d),
        "value_cache": normal(count, size, key_heads, d),
        "tables": shuffled(count).then(lambda order: order.reshape(len(lengths), per)),
        "lengths": fixed(lengths, torch.int64),
    }


family = Family(**paged([29, 1, 16, 8]))


def call_torch(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, tables: Tensor, lengths: Tensor, *, scale: Optional[float] = None
) -> Tensor:
    """Gather all blocks, mask by length, scaled_dot_product_attention in float32 and back."""
    if q.shape[0] == 0:
        return torch.zeros_like(q)
    wide = q.dtype if q.dtype == torch.float64 else torch.float32
    keys, values = (cache[tables.clamp(min=0)].flatten(1, 2).to(wide) for cache in (key_cache, value_cache))
    seen = torch.arange(keys.shape[1], device=q.device) < lengths[:, None]
    keys, values = (part.masked_fill(~seen[..., None, None], 0.0) for part in (keys, values))
    keys, values = (part.transpose(1, 2).repeat_interleave(q.shape[1] // part.shape[2], 1) for part in (keys, values))
    # contiguous: the simulated device's operator misreads some other strides
    found = torch.nn.functional.scaled_dot_product_attention(
        q.to(wide).contiguous()[:, :, None], keys, values, seen[:, None, None], scale=scale
    )[:, :, 0]
    return found.masked_fill((lengths == 0)[:, None, None], 0.0).to(q.dtype)


CASES = [
    family("plain", "blocks in the order of the cache, not of the table", "basic", dtypes=FLOATS),
    family("one-key", "sequences of one", "size-1", **paged([1, 1, 1])),
    family("full-blocks", "lengths that end with a block", "tile", **paged([8, 16, 32])),
    family("block-edge", "one key in the last block", "tile", **paged([9, 17, 25])),
    family("length-0", "no key: zeros", "empty-rows", **paged([0, 12])),
    family("holes", "-1 in the table beyond the length", "holes", tables=shuffled(16).then(lambda order: order.reshape(4, 4)).at((1, slice(1, None)), -1)),
    family("nan-in-unused-slots", "what lies beyond a length has no influence", "nonfinite", wrt=(),
           tables=fixed([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]),
           key_cache=normal(16, 8, 2, 16).at((4, slice(1, None)), math.nan).at((3, slice(5, None)), math.nan),
           value_cache=normal(16, 8, 2, 16).at((4, slice(1, None)), math.nan)),
    family("shared-blocks", "two sequences with the same prefix", "shape", tables=fixed([[3, 5, 6, 1], [3, 5, 2, 0], [3, 1, 2, 4], [7, 1, 2, 4]])),
    family("block-128", "blocks as on the NPU", "tile", **paged([200, 130], size=128, per=2)),
    family("keys-600", "more than 512 keys", "tile", **paged([600], size=16, per=38, heads=2)),
    family("head-size-20", "not a multiple of 16", "tile", **paged([29, 13], d=20)),
    family("one-key-head", "multi-query", "heads", **paged([29, 13], key_heads=1)),
    family("scale-1", "scale=1.0 taken for none", "scale", scale=1.0),
    family("empty", "no sequence", "empty", **{**paged([4]), "q": normal(0, 4, 16), "tables": fixed([[0, 1]]).then(lambda t: t[:0]), "lengths": fixed([1]).then(lambda t: t[:0])}),
    *family.layouts("q", "key_cache", "value_cache"),
]  # fmt: skip

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "table ignored": FORMULA.edit("key_cache[used]", "key_cache[: len(used)]"),
        "table ignored for values": FORMULA.edit("value_cache[used]", "value_cache[: len(used)]"),
        "length one too short": FORMULA.change(lengths=lambda lengths: (lengths - 1).clamp(min=0)),
        "length one too long": FORMULA.change(lengths=lambda lengths: (lengths + 1).clamp(max=32)),
        "whole blocks only": FORMULA.edit("-(-length // size)", "length // size"),
        "length ignored": FORMULA.edit("key_cache[used].double().flatten(0, 1)[:length]", "key_cache[used].double().flatten(0, 1)", "value_cache[used].double().flatten(0, 1)[:length]", "value_cache[used].double().flatten(0, 1)"),
        "head h % key heads": FORMULA.edit("key_cache[used].double().flatten(0, 1)[:length].repeat_interleave(groups, dim=1)", "key_cache[used].double().flatten(0, 1)[:length].repeat(1, groups, 1)"),
        "scale ignored": FORMULA.set(scale=1.0),
        "scale always 1 / sqrt(D)": FORMULA.set(scale=None),
        "keys for values": FORMULA.edit("value_cache[used]", "key_cache[used]"),
        "first 512 keys": FORMULA.edit("weights = torch.softmax(scores, dim=-1)", "weights = torch.softmax(scores.masked_fill(torch.arange(length) >= 512, -torch.inf), dim=-1)"),
        "length 0 gives the first value": FORMULA.change(lengths=lambda lengths: lengths.clamp(min=1)),
    },
)  # fmt: skip
