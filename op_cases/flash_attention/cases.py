"""Cases for flash_attn_func. Keywords: ``q`` (B, Sq, N, D), ``k``, ``v`` (B, Skv, Nkv, D), ``slopes`` (N,), ``scale``,
``causal`` (bottom-right), ``window``, ``softcap``. Results: output, logsumexp (float32)."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch

from precision_align.library.cases import FLOATS, OpCase, Search
from precision_align.library.drawing import Family, fixed, normal
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("flash_attention", keep=(1,))
Tensor = torch.Tensor


def sized(
    queries: int, keys: int, heads: int = 2, key_heads: int = 2, size: int = 16, gain: float = 1.0
) -> dict[str, Any]:
    return {
        "q": normal(1, queries, heads, size, gain=gain),
        "k": normal(1, keys, key_heads, size),
        "v": normal(1, keys, key_heads, size),
    }


family = Family(wrt=("q", "k", "v"), float32=("slopes",), **sized(32, 32))


def hide(queries: int, keys: int, causal: bool, window: tuple[int, int], device: torch.device) -> Tensor:
    """(Sq, Skv) True where a query does not see a key, from two triangles."""
    everything = torch.ones(queries, keys, dtype=torch.bool, device=device)
    shift, (left, right) = keys - queries, window
    hidden = torch.zeros_like(everything)
    if causal or right >= 0:
        hidden |= everything.triu(shift + (0 if causal else right) + 1)
    return hidden | everything.tril(shift - left - 1) if left >= 0 else hidden


def call_torch(
    q: Tensor, k: Tensor, v: Tensor, *, slopes: Optional[Tensor] = None, scale: Optional[float] = None,
    causal: bool = False, window: tuple[int, int] = (-1, -1), softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """einsum, logsumexp and exp, in float32 and back."""
    wide = q.dtype if q.dtype == torch.float64 else torch.float32
    batch, queries, heads, size = q.shape
    grouped = q.to(wide).reshape(batch, queries, k.shape[2], heads // k.shape[2], size)
    scores = torch.einsum("bqhgd,bkhd->bhgqk", grouped, k.to(wide)).flatten(1, 2)
    scores = scores * (size**-0.5 if scale is None else scale)
    scores = torch.tanh(scores / softcap) * softcap if softcap else scores
    if slopes is not None:
        i, j = torch.arange(queries, device=q.device), torch.arange(k.shape[1], device=q.device)
        scores = scores + slopes.to(wide)[:, None, None] * -(i[:, None] + k.shape[1] - queries - j).abs()
    hidden = hide(queries, k.shape[1], causal, window, q.device)
    filled = scores.masked_fill(hidden, torch.finfo(wide).min)
    lse = torch.logsumexp(filled, dim=-1)
    weights = torch.softmax(filled, dim=-1).masked_fill(hidden, 0.0)
    values = v.to(wide).repeat_interleave(heads // v.shape[2], dim=2)
    output = torch.einsum("bhqk,bkhd->bqhd", weights, values)
    return output.to(q.dtype), torch.where(hidden.all(dim=-1), -math.inf, lse.detach())


def call_torch_npu(
    q: Tensor, k: Tensor, v: Tensor, *, slopes: Optional[Tensor] = None, scale: Optional[float] = None,
    causal: bool = False, window: tuple[int, int] = (-1, -1), softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """torch_npu.npu_fusion_attention in BSND: True = masked OUT; softcap has no argument there, nor have slopes here."""
    if softcap or slopes is not None:
        return call_torch(q, k, v, slopes=slopes, scale=scale, causal=causal, window=window, softcap=softcap)
    hidden = hide(q.shape[1], k.shape[1], causal, window, q.device)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    output, top, total = load_torch_npu().npu_fusion_attention(
        q, k, v, q.shape[2], "BSND", atten_mask=hidden if hidden.any() else None, scale=factor, keep_prob=1.0
    )[:3]
    lse = torch.where(hidden.all(dim=-1), -math.inf, (top + torch.log(total))[..., 0])
    return output, lse


def make_worst(queries: int, keys: int, size: int, gain: float) -> OpCase:
    return family(
        "searched", "the worst of sizes and a spread", causal=True, **sized(queries, keys, size=size, gain=gain)
    )


ALIBI = {"slopes": fixed([0.5, 0.25]), "wrt": ("q", "k", "v")}
CASES = [
    family("plain", "scale missing, layout BNSD for BSND", "basic", dtypes=FLOATS),
    family("causal", "a mask shifted by one", "causal", causal=True, dtypes=FLOATS),
    family("causal-more-keys", "top-left where bottom-right is meant", "causal", causal=True, **sized(20, 36)),
    family("causal-fewer-keys", "queries before the first key are zero", "causal", "masked", causal=True, **sized(36, 20)),
    family("window-5", "the window ignored, or one too wide", "window", window=(5, 0), causal=True),
    family("window-both", "a window to both sides", "window", window=(3, 7)),
    family("window-0", "only its own key: the value", "window", window=(0, 0)),
    family("window-right-only", "left -1 is no limit", "window", window=(-1, 4)),
    family("window-more-keys", "the window counts from the end", "window", window=(6, 0), causal=True, **sized(9, 40)),
    family("softcap", "the cap ignored, or used before the scale", "softcap", softcap=1.5, **sized(32, 32, gain=3.0)),
    family("softcap-causal", "capped scores are masked after the cap", "softcap", softcap=3.0, causal=True, **sized(32, 32, gain=20.0)),
    family("alibi", "the bias multiplied by the scale", "alibi", **ALIBI),
    family("alibi-more-keys", "distances from the end", "alibi", causal=True, **ALIBI, **sized(9, 30)),
    family("scale-1", "scale=1.0 taken for none", "scale", scale=1.0, **sized(32, 32, gain=0.3)),
    family("grouped-heads", "query head h uses key head h // groups", "heads", **sized(24, 24, 6, 2)),
    family("one-key-head", "multi-query", "heads", causal=True, **sized(24, 24, 4, 1)),
    family("sequence-65", "one beyond a tile of 64", "tile", causal=True, **sized(65, 65, 1, 1)),
    family("keys-577", "more than 512 keys: blocks are merged", "tile", window=(530, 0), causal=True, **sized(7, 577, 1, 1, gain=4.0)),
    family("head-size-20", "not a multiple of 16", "tile", **sized(17, 17, size=20)),
    family("one-query", "decoding", "size-1", causal=True, **sized(1, 70)),
    family("large-scores", "exp overflows without the maximum", "magnitude", **sized(16, 24, gain=60.0)),
    family("empty", "no batch", "empty", q=normal(0, 8, 2, 16), k=normal(0, 8, 2, 16), v=normal(0, 8, 2, 16)),
    family("nan", "NaN spoils its query only", "nonfinite", wrt=(), q=normal(1, 32, 2, 16).at((0, 3, 0, 3), math.nan)),
    *family.layouts("q", "k", "v"),
]  # fmt: skip

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "scale ignored": FORMULA.set(scale=1.0),
        "scale always 1 / sqrt(D)": FORMULA.set(scale=None),
        "top-left": FORMULA.edit("+ k.shape[2] - q.shape[2]", "+ 0"),
        "causal ignored": FORMULA.set(causal=False),
        "diagonal hidden": FORMULA.edit("right = 0 if causal", "right = -1 if causal", "if right >= 0", "if right >= 0 or causal"),
        "window ignored": FORMULA.set(window=(-1, -1)),
        "window one too wide": FORMULA.edit("(distance >= -left)", "(distance >= -left - 1)"),
        "window one too narrow": FORMULA.edit("(distance >= -left)", "(distance > -left)"),
        "window sides swapped": FORMULA.edit("left, right = window", "right, left = window"),
        "window 0 is no limit": FORMULA.edit("if left >= 0", "if left > 0"),
        "softcap ignored": FORMULA.set(softcap=0.0),
        "cap forgotten after tanh": FORMULA.edit("softcap * torch.tanh(scores / softcap)", "torch.tanh(scores / softcap)"),
        "cap after the mask and bias": FORMULA.edit("if softcap > 0:", "if False:", "top = scores.detach()", "scores = softcap * torch.tanh(scores / softcap) if softcap else scores\n    top = scores.detach()", ".masked_fill(~visible, 0.0)", ""),
        "alibi ignored": FORMULA.set(slopes=None),
        "alibi from the start": FORMULA.edit("* distance.abs()", "* (distance + k.shape[2] - q.shape[2]).abs()"),
        "alibi sign": FORMULA.edit("scores - slopes", "scores + slopes"),
        "one slope for all": FORMULA.change(slopes=lambda slopes: slopes[:1].expand_as(slopes)),
        "head h % key heads": FORMULA.edit("k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)", "k.repeat(1, groups, 1, 1), v.repeat(1, groups, 1, 1)"),
        "maximum not subtracted": FORMULA.edit("top = scores.detach().amax(dim=-1, keepdim=True)", "top = torch.zeros_like(scores[..., :1])"),
        "blocks of 512 not merged": FORMULA.edit("(~visible, 0.0)", "(~visible, 0.0)[..., :512]", "@ v)", "@ v[..., :512, :])"),
        "empty rows are the mean": FORMULA.edit(".masked_fill(~visible, 0.0)", ""),
        "logsumexp without the maximum": FORMULA.edit("torch.log(total) + top", "torch.log(total) + 0 * top"),
        "no gradient of the keys": FORMULA.edit("q @ k.transpose(-1, -2)", "q @ k.detach().transpose(-1, -2)"),
    },
    search=Search(make_worst, {"queries": (1, 40), "keys": (1, 80), "size": (1, 40), "gain": (0.1, 30.0)}),
)  # fmt: skip
