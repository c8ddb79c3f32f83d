"""Cases for packed attention. Keywords: ``q`` (Tq, N, D), ``k``, ``v`` (Tk, Nkv, D), ``starts_q``, ``starts_k``,
``scale``, ``causal``."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, normal
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("attention_varlen")
Tensor = torch.Tensor


def packed(
    q: list[int], k: list[int] | None = None, heads: int = 2, key_heads: int = 2, size: int = 16
) -> dict[str, Any]:
    """Inputs for sequences of these lengths."""
    k = q if k is None else k
    starts = [[sum(part[:i]) for i in range(len(part) + 1)] for part in (q, k)]
    return {
        "q": normal(sum(q), heads, size),
        "k": normal(sum(k), key_heads, size),
        "v": normal(sum(k), key_heads, size),
        "starts_q": fixed(starts[0]),
        "starts_k": fixed(starts[1]),
    }


family = Family(wrt=("q", "k", "v"), **packed([13, 1, 30, 7]))


def call_torch(
    q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, *, scale: Optional[float] = None,
    causal: bool = False,
) -> Tensor:  # fmt: skip
    """scaled_dot_product_attention of one sequence after the other, in float32 and back."""
    wide = q.dtype if q.dtype == torch.float64 else torch.float32
    ends_q, ends_k, parts = starts_q.tolist(), starts_k.tolist(), []
    for a, b, c, d in zip(ends_q, ends_q[1:], ends_k, ends_k[1:]):
        # contiguous: the simulated device's operator misreads some other strides
        one = [part.to(wide).transpose(0, 1).contiguous() for part in (q[a:b], k[c:d], v[c:d])]
        one[1:] = [part.repeat_interleave(q.shape[1] // k.shape[1], dim=0) for part in one[1:]]
        mask = torch.ones(b - a, d - c, dtype=torch.bool, device=q.device).tril((d - c) - (b - a)) if causal else None
        dead = torch.zeros(b - a, 1, dtype=torch.bool, device=q.device) if mask is None else ~mask.any(-1, keepdim=True)
        mask = None if mask is None else mask | dead  # before PyTorch 2.5 such a row is NaN, its gradient too
        if b > a and d > c:
            found = torch.nn.functional.scaled_dot_product_attention(*(part[None] for part in one), mask, scale=scale)[
                0
            ]
            parts.append(found.masked_fill(dead, 0.0).transpose(0, 1))
        else:
            parts.append(torch.zeros_like(q[a:b], dtype=wide))
    return torch.cat(parts).to(q.dtype)


def call_torch_npu(
    q: Tensor, k: Tensor, v: Tensor, starts_q: Tensor, starts_k: Tensor, *, scale: Optional[float] = None,
    causal: bool = False,
) -> Tensor:  # fmt: skip
    """torch_npu.npu_fusion_attention in TND: the lists are ends, without the first 0; sparse_mode 3 is bottom-right."""
    mask = torch.ones(2048, 2048, dtype=torch.bool, device=q.device).triu(1) if causal else None
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return load_torch_npu().npu_fusion_attention(  # type: ignore[no-any-return]
        q, k, v, q.shape[1], "TND", atten_mask=mask, scale=factor, keep_prob=1.0, sparse_mode=3 if causal else 0,
        actual_seq_qlen=starts_q[1:].tolist(), actual_seq_kvlen=starts_k[1:].tolist(),
    )[0]  # fmt: skip


CASES = [
    family("plain", "sequences see each other", "basic", dtypes=FLOATS),
    family("causal", "a mask over the whole pack", "causal", causal=True, dtypes=FLOATS),
    family("causal-more-keys", "top-left for bottom-right", "causal", causal=True, **packed([5, 9, 3], [11, 9, 20])),
    family("causal-fewer-keys", "early tokens see nothing: zeros", "causal", "masked", causal=True, **packed([11, 9], [5, 9])),
    family("one-sequence", "a pack of one", "shape", causal=True, **packed([33])),
    family("all-of-one-token", "each token only itself", "size-1", **packed([1] * 9)),
    family("empty-sequence", "a sequence without tokens in the middle", "empty-rows", **packed([6, 0, 9])),
    family("real-lengths", "lengths as in a batch of documents", "real", causal=True, **packed([77, 3, 128, 19], size=8)),
    family("sequence-65", "one beyond a tile of 64", "tile", **packed([65, 63])),
    family("keys-577", "more than 512 keys", "tile", **packed([3, 2], [577, 9])),
    family("grouped-heads", "query head h uses key head h // groups", "heads", **packed([9, 14], heads=6, key_heads=2)),
    family("scale-1", "scale=1.0 taken for none", "scale", scale=1.0),
    family("empty", "no token", "empty", wrt=(), **packed([0])),
    family("nan", "NaN spoils its token only", "nonfinite", wrt=(), q=normal(51, 2, 16).at((20, 1, 3), math.nan)),
    *family.layouts("q", "k", "v"),
]  # fmt: skip

SAME = "sequence_q[:, None] == sequence_k[None, :]"
OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "sequences see each other": FORMULA.edit(SAME, "(sequence_q[:, None] >= 0) & (sequence_k[None, :] >= 0)"),
        "sequences see the ones before": FORMULA.edit(SAME, "sequence_q[:, None] >= sequence_k[None, :]"),
        "starts one off": FORMULA.change(starts_k=lambda starts: (starts + 1).clamp(max=int(starts[-1]))),
        "key starts for queries": FORMULA.edit("starts_q[1:], right=True", "starts_k[1:], right=True"),
        "boundary to the left": FORMULA.edit("starts_q[1:], right=True", "starts_q[1:], right=False"),
        "causal ignored": FORMULA.set(causal=False),
        "diagonal hidden": FORMULA.edit("left_k[None, :] >= left_q", "left_k[None, :] > left_q"),
        "top-left": FORMULA.edit("starts_q[1:][sequence_q] -", "starts_q[:-1][sequence_q] -", "starts_k[1:][sequence_k] -", "starts_k[:-1][sequence_k] -"),
        "scale ignored": FORMULA.set(scale=1.0),
        "scale 1 taken for none": FORMULA.set(scale=None),
        "head h % key heads": FORMULA.edit("k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)", "k.repeat(1, groups, 1), v.repeat(1, groups, 1)"),
        "values of the first 512 keys": FORMULA.edit("weights, v)", "weights[..., :512], v[:512])"),
        "no gradient of the values": FORMULA.edit("weights, v)", "weights, v.detach())"),
    },
)  # fmt: skip
