"""Cases for Megatron's fused softmax. Keywords: ``x`` (B, N, Sq, Skv), ``mask`` (True = out), ``scale``, ``causal``."""

from __future__ import annotations

import math
from typing import Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, flags, normal
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("scaled_masked_softmax")
Mask = Optional[torch.Tensor]
family = Family(x=normal(2, 3, 16, 32, gain=3.0), wrt=("x",))


def hide(x: torch.Tensor, mask: Mask, causal: bool) -> torch.Tensor:
    """All that is masked out."""
    visible = torch.ones(x.shape, dtype=torch.bool, device=x.device)
    visible = visible.tril() if causal else visible
    return ~visible if mask is None else ~(visible & ~mask)


def call_torch(x: torch.Tensor, mask: Mask = None, *, scale: float = 1.0, causal: bool = False) -> torch.Tensor:
    """masked_fill with the lowest number and torch.softmax, in float32 and back; empty rows are zeroed."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    hidden = hide(x, mask, causal)
    scores = (x.to(wide) * scale).masked_fill(hidden, torch.finfo(wide).min)
    return torch.softmax(scores, dim=-1).masked_fill(hidden, 0.0).to(x.dtype)


def call_torch_npu(x: torch.Tensor, mask: Mask = None, *, scale: float = 1.0, causal: bool = False) -> torch.Tensor:
    """torch_npu.npu_scaled_masked_softmax(x, mask, scale, fixed_triu_mask=False); the causal mask is built."""
    hidden = hide(x, mask, causal)[:, :1].contiguous() if causal or mask is not None else hide(x, mask, causal)
    return load_torch_npu().npu_scaled_masked_softmax(x, hidden, scale, False)  # type: ignore[no-any-return]


CASES = [
    family("plain", "no scale, no mask", "basic", scale=0.25, dtypes=FLOATS),
    family("masked", "polarity: True is masked out", "mask", mask=flags(2, 1, 16, 32, share=0.3), scale=0.25, dtypes=FLOATS),
    family("causal", "the diagonal is seen", "causal", x=normal(2, 3, 32, 32, gain=3), causal=True, scale=0.5),
    family("causal-and-mask", "one of the two masks dropped", "causal", "mask", x=normal(1, 3, 32, 32, gain=3),
           mask=flags(1, 1, 32, 32, share=0.2), causal=True),
    family("mask-by-key", "a mask that broadcasts over queries", "mask", mask=flags(2, 1, 1, 32, share=0.4)),
    family("empty-rows", "a row without an element is zero", "masked", mask=flags(2, 1, 16, 32, share=0.3).at((slice(None), 0, slice(None, None, 5)), True)),
    family("size-48", "not a multiple of 32", "tile", x=normal(1, 2, 17, 48, gain=3), mask=flags(1, 1, 17, 48, share=0.3)),
    family("keys-577", "more than 512 keys", "tile", x=normal(1, 1, 5, 577).at((0, 0, slice(None), 570), 200.0)),
    family("scale-0.01-large", "the scale comes before the maximum", "magnitude", x=normal(1, 2, 16, 32, gain=3e4), scale=0.001, dtypes=FLOATS),
    family("all-hidden", "nothing is seen at all", "masked", mask=fixed(True), dtypes=("float32",), wrt=()),
    family("one-key", "one key: 1", "size-1", x=normal(1, 2, 16, 1)),
    family("empty", "no batch", "empty", x=normal(0, 2, 16, 32)),
    family("nan", "NaN spoils its row only", "nonfinite", wrt=(), x=normal(1, 2, 16, 32).at((0, 0, 3, 3), math.nan)),
    *family.layouts("x"),
]  # fmt: skip

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "polarity": FORMULA.change(mask=lambda mask: ~mask),
        "mask ignored": FORMULA.set(mask=None),
        "causal ignored": FORMULA.set(causal=False),
        "diagonal hidden": FORMULA.edit("triu(1)", "triu(0)"),
        "one too many seen": FORMULA.edit("triu(1)", "triu(2)"),
        "lower triangle hidden": FORMULA.edit("triu(1)", "tril(-1)"),
        "scale ignored": FORMULA.set(scale=1.0),
        "scale after the softmax": FORMULA.edit("scale * x.double()", "x.double()", "return (", "return scale * ("),
        "masked scores are 0": FORMULA.edit("masked_fill(hidden, -math.inf)", "masked_fill(hidden, 0.0)", ").masked_fill(hidden, 0.0)", ")"),
        "empty rows are even": FORMULA.edit("keepdim=True)).masked_fill(hidden, 0.0)", "keepdim=True))"),
        "empty rows are NaN": FORMULA.edit(".masked_fill(empty, 0.0)", "", ").masked_fill(hidden, 0.0)", ")"),
        "maximum of the first 512": FORMULA.edit("scores.detach().amax(", "scores.detach()[..., :512].amax("),
        "softmax over queries": FORMULA.edit("powers.sum(dim=-1, keepdim=True)", "powers.sum(dim=-2, keepdim=True)"),
        "sum without gradient": FORMULA.edit("powers.sum(dim=-1, keepdim=True)", "powers.detach().sum(dim=-1, keepdim=True)"),
    },
)  # fmt: skip
