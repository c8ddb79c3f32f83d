"""Cases for deformable convolution. Keywords: ``x`` (N, C, H, W), ``offset`` (N, 2 G kh kw, Ho, Wo), ``weight``
(O, C, kh, kw), ``bias``, ``mask`` (N, G kh kw, Ho, Wo), ``stride``, ``padding``, ``dilation``."""

from __future__ import annotations

from typing import Any, Optional

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, normal, uniform
from precision_align.library.formulas import Formula

FORMULA = Formula("deform_conv2d")
Tensor = torch.Tensor
Optionally = Optional[Tensor]


def sized(rows: int = 4, columns: int = 5, k: int = 3, groups: int = 1, gain: float = 0.7) -> dict[str, Any]:
    return {
        "offset": normal(2, 2 * groups * k * k, rows, columns, gain=gain),
        "weight": normal(3, 4, k, k, gain=0.3),
    }


def masked(rows: int = 4, columns: int = 5, k: int = 3, groups: int = 1) -> Any:
    return uniform(2, groups * k * k, rows, columns)


family = Family(x=normal(2, 4, 6, 7), wrt=("x", "offset", "weight", "bias", "mask"), **sized())


def call_torch(
    x: Tensor, offset: Tensor, weight: Tensor, bias: Optionally = None, mask: Optionally = None, *, stride: int = 1,
    padding: int = 0, dilation: int = 1,
) -> Tensor:  # fmt: skip
    """grid_sample for each kernel place and group of channels, in float32 and back."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    kh, kw = weight.shape[2:]
    rows, columns = offset.shape[2:]
    groups = offset.shape[1] // (2 * kh * kw)
    pairs = offset.to(wide).unflatten(1, (groups, kh * kw, 2))
    parts = x.to(wide).chunk(groups, dim=1)
    size = torch.tensor([x.shape[3], x.shape[2]], dtype=wide, device=x.device)
    u, v = torch.meshgrid(
        *(torch.arange(n, device=x.device, dtype=wide) * stride - padding for n in (rows, columns)), indexing="ij"
    )
    total: Any = 0.0
    for place in range(kh * kw):
        i, j = place // kw * dilation, place % kw * dilation
        sampled = []
        for group, part in enumerate(parts):
            at = torch.stack([v + j + pairs[:, group, place, 1], u + i + pairs[:, group, place, 0]], dim=-1)
            values = torch.nn.functional.grid_sample(part, (2 * at + 1) / size - 1, align_corners=False)
            if mask is not None:
                values = values * mask.to(wide)[:, group * kh * kw + place][:, None]
            sampled.append(values)
        total = total + torch.einsum(
            "nchw,oc->nohw", torch.cat(sampled, 1), weight.to(wide)[:, :, place // kw, place % kw]
        )
    return (total if bias is None else total + bias.to(wide)[:, None, None]).to(x.dtype)


CASES = [
    family("plain", "offsets as (x, y)", "basic", dtypes=FLOATS),
    family("modulated", "the mask forgotten", "mask", mask=masked(), dtypes=FLOATS),
    family("no-offset", "a plain convolution", "ties", offset=fixed([[[[0.0] * 5] * 4] * 18] * 2), wrt=("x", "weight")),
    family(
        "whole-offsets",
        "moved by whole pixels",
        "ties",
        offset=normal(2, 18, 4, 5).then(torch.round),
        wrt=("x", "weight"),
    ),
    family("far-offsets", "most places lie beyond the image", "edge", **sized(gain=6.0)),
    family("two-groups", "offsets of the other group", "groups", **sized(groups=2)),
    family("two-groups-modulated", "masks of the other group", "groups", mask=masked(groups=2), **sized(groups=2)),
    family("stride-2", "stride ignored", "stride", stride=2, **sized(2, 3)),
    family("padding", "padding ignored", "padding", padding=1, **sized(6, 7)),
    family("dilation", "dilation ignored", "dilation", dilation=2, **sized(2, 3)),
    family("bias", "the bias forgotten", "bias", bias=normal(3)),
    family("kernel-1", "one place", "size-1", **sized(6, 7, k=1)),
    family("zero-mask", "a mask of zero", "rows", mask=masked().at((slice(None), 4), 0.0)),
    family("large", "sums beyond float16", "magnitude", x=normal(2, 4, 6, 7, gain=1e4)),
    *family.layouts("x", "offset"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "offsets as (x, y)": FORMULA.change(offset=lambda o: o.unflatten(1, (-1, 2)).flip(2).flatten(1, 2)),
        "first all y, then all x": FORMULA.edit("offset.reshape(batch, -1, kh, kw, 2, rows, columns)", "offset.reshape(batch, offset.shape[1] // (2 * kh * kw), 2, kh, kw, rows, columns).permute(0, 1, 3, 4, 2, 5, 6)"),
        "kernel transposed in the offsets": FORMULA.edit("offset.reshape(batch, -1, kh, kw, 2, rows, columns)", "offset.reshape(batch, -1, kh, kw, 2, rows, columns).transpose(2, 3)"),
        "offsets ignored": FORMULA.change(offset=lambda o: 0 * o),
        "offsets rounded": FORMULA.change(offset=torch.round),
        "mask ignored": FORMULA.set(mask=None),
        "mask through a sigmoid": FORMULA.change(mask=torch.sigmoid),
        "mask 2 sigmoid": FORMULA.edit("mask.double().reshape", "(2 * mask.double()).reshape"),
        "groups swapped": FORMULA.edit("groups = moves.shape[1]", "groups = moves.shape[1]\n    moves = moves.flip(1)"),
        "channels interleaved in groups": FORMULA.edit("flat = x.reshape(batch, groups, channels // groups, height * width)", "flat = x.reshape(batch, channels // groups, groups, height * width).transpose(1, 2)"),
        "beyond takes the edge": FORMULA.edit("(1 - (z - column).abs()) * inside", "(1 - (z - column).abs())"),
        "edge column cut": FORMULA.edit("(column < width)", "(column < width - 1)"),
        "stride in one direction": FORMULA.edit("[None, :] * stride", "[None, :]"),
        "padding in one direction": FORMULA.edit("[None, :] * stride - padding", "[None, :] * stride"),
        "dilation in one direction": FORMULA.edit("torch.arange(kw, device=x.device)[:, None, None] * dilation", "torch.arange(kw, device=x.device)[:, None, None]"),
        "bias forgotten": FORMULA.set(bias=None),
        "kernel flipped": FORMULA.change(weight=lambda w: w.flip(-1)),
        "weights in bfloat16": FORMULA.edit("(1 - (y - row).abs())", "(1 - (y - row).abs()).bfloat16().double()"),
        "offsets without gradient": FORMULA.edit("offset.double(), weight", "offset.double().detach() + 0 * offset.double(), weight"),
        "inputs in float16": FORMULA.edit("total.flatten(1, 2), w", "total.flatten(1, 2).half().double(), w"),
        "weight transposed": FORMULA.change(weight=lambda w: w.transpose(-1, -2) if w.shape[-1] > 1 else w.flip(1)),
    },
)  # fmt: skip
