"""Cases for NF4. Keywords: ``x`` (C,), ``block``. Results: codes (int64), maxima (float32), values."""

from __future__ import annotations

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("nf4_quantize", keep=(1,))
Tensor = torch.Tensor
family = Family(x=normal(512), block=64)
LEVELS = torch.tensor(FORMULA.golden.__globals__["CODE"], dtype=torch.float64)


def call_torch(x: Tensor, *, block: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """bucketize by the midpoints between codes, as CUDA's decision tree does."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    parts = x.to(wide).reshape(-1, block)
    top = torch.linalg.vector_norm(parts, ord=torch.inf, dim=1) if parts.numel() else parts.sum(dim=1)
    code = LEVELS.to(wide).to(x.device)
    scaled = torch.nan_to_num(parts / top[:, None], nan=0.0)
    index = torch.bucketize(scaled.contiguous(), (code[1:] + code[:-1]) / 2)
    return index.reshape(-1), top, (torch.take(code, index) * top[:, None]).reshape(-1).to(x.dtype)


CASES = [
    family("plain", "codes of another table", "basic", dtypes=FLOATS),
    family("block-128", "maxima over another block", "block", block=128),
    family("one-block", "a single maximum", "size-1", x=normal(64)),
    family("block-1", "each value its own maximum: code 0 or 15", "size-1", x=normal(40), block=1),
    family("block-4096", "a large block", "tile", x=normal(4096), block=4096),
    family("zero-block", "0 / 0: the code of 0, not 0", "rows", x=normal(512).at(slice(64, 128), 0.0)),
    family("outlier", "one value 100 times the others", "magnitude", x=normal(512).at(slice(None, None, 64), 100.0)),
    family(
        "negative-maximum",
        "the maximum without its absolute value",
        "sign",
        x=normal(512).at(slice(None, None, 64), -9.0),
    ),
    family(
        "mixed-sizes",
        "blocks of very different size",
        "magnitude",
        x=normal(512).then(lambda x: (x.reshape(8, 64) * torch.logspace(-3, 3, 8)[:, None]).flatten()),
    ),
    family("tiny", "maxima of 1e-6", "magnitude", x=normal(512, gain=1e-6)),
    family("large", "maxima of 1e4", "magnitude", x=normal(512, gain=1e4), dtypes=FLOATS),
    family("empty", "nothing", "empty", x=normal(0)),
    family("offset", "x starts inside its storage", "layout", layouts={"x": "offset"}),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "even levels": FORMULA.edit("torch.tensor(CODE,", "torch.tensor([i / 7.5 - 1 for i in range(16)],"),
        "one code off": FORMULA.edit("return index.flatten()", "return (index + 1).clamp(max=15).flatten()"),
        "packed order (i + 8) % 16": FORMULA.edit("return index.flatten()", "return ((index + 8) % 16).flatten()"),
        "lower code": FORMULA.edit("(scaled[..., None] - code).abs().argmin(dim=-1)", "(torch.bucketize(scaled.contiguous(), code, right=True) - 1).clamp(min=0)"),
        "maximum without abs": FORMULA.edit("parts.abs().amax(dim=-1)", "parts.amax(dim=-1).abs()"),
        "mean for maximum": FORMULA.edit("parts.abs().amax(dim=-1)", "parts.abs().mean(dim=-1)"),
        "one block": FORMULA.edit("top = parts.abs().amax(dim=-1)", "top = parts.abs().amax(dim=-1)\n    top = 0 * top + (top.amax() if top.numel() else 0)"),
        "block 64 always": FORMULA.edit("parts.abs().amax(dim=-1)", "parts[:, :64].abs().amax(dim=-1)"),
        "0 / 0 is the first code": FORMULA.edit("argmin(dim=-1)", "argmin(dim=-1) * (top > 0)[:, None]"),
        "values left unscaled": FORMULA.edit("code[index] * top[:, None]", "code[index]"),
        "maxima in bfloat16": FORMULA.edit("scaled = parts", "top = top.bfloat16().double()\n    scaled = parts"),
        "inverse maxima": FORMULA.edit("index.flatten(), top,", "index.flatten(), 1 / top,"),
        "code of -x": FORMULA.edit("(scaled[..., None] - code)", "(scaled[..., None] + code)"),
    },
)  # fmt: skip
