"""Cases for fake quantisation. Keywords: ``x``, ``scale``, ``zero`` (float32), ``low``, ``high``."""

from __future__ import annotations

import torch

from precision_align.library.drawing import Family, fixed, levels, normal, uniform, whole
from precision_align.library.formulas import Formula

FORMULA = Formula("fake_quantize")
Tensor = torch.Tensor
family = Family(x=normal(7, 24), scale=fixed(0.02), zero=fixed(3.0), wrt=("x",), dtypes=("float32",))


def call_torch(x: Tensor, scale: Tensor, zero: Tensor, *, low: int = -128, high: int = 127) -> Tensor:
    """torch.fake_quantize_per_tensor_affine, or per_channel for one scale a channel of the last axis."""
    if scale.dim() == 0:
        return torch.fake_quantize_per_tensor_affine(x.float(), scale.float(), zero.int(), low, high).to(x.dtype)
    return torch.fake_quantize_per_channel_affine(x.float(), scale.float(), zero.int(), x.dim() - 1, low, high).to(
        x.dtype
    )


def call_steps(x: Tensor, scale: Tensor, zero: Tensor, *, low: int = -128, high: int = 127) -> Tensor:
    """A second formula: clamp x to the range that the grid covers, then the nearest multiple of the scale."""
    edge_low, edge_high = (low - zero - 0.5) * scale, (high - zero + 0.5) * scale
    inside = torch.minimum(torch.maximum(x, edge_low), edge_high)
    nearest = torch.minimum(torch.maximum((x / scale).round(), low - zero), high - zero) * scale
    return inside + (nearest - inside).detach()


CHANNELS = {"scale": uniform(24, low=0.01, high=0.03), "zero": whole(24, low=-20, high=20).then(lambda z: z.float())}
CASES = [
    family("plain", "no rounding", "basic"),
    family("by-channel", "one scale for all", "granularity", **CHANNELS),
    family("clipped", "gradients beyond the range are 0", "range", x=normal(7, 24, gain=4.0)),
    family("clipped-by-channel", "gradients beyond the range are 0", "range", x=normal(7, 24, gain=3.0), **CHANNELS),
    family("int4", "the range -8 to 7", "bits", low=-8, high=7, scale=fixed(0.2), zero=fixed(0.0)),
    family("unsigned", "the range 0 to 255", "bits", low=0, high=255, zero=fixed(128.0)),
    family("zero-point", "a zero point that shows", "zero", zero=fixed(-90.0), x=normal(7, 24, gain=2.0)),
    family(
        "ties",
        "halves away from zero",
        "ties",
        x=levels(7, 64, low=-40, high=40, step=0.5),
        scale=fixed(1.0),
        zero=fixed(0.0),
        exact=True,
    ),
    family(
        "edges",
        "the first and last step still pass the gradient",
        "edge",
        x=fixed([[-128.4, -128.6, 127.4, 127.6, -128.0, 127.0]]),
        scale=fixed(1.0),
        zero=fixed(0.0),
    ),
    family("odd-65", "one beyond a vector of 64", "tile", x=normal(3, 65)),
    family("single", "one value", "size-1", x=normal(1)),
    family("empty", "nothing", "empty", x=normal(0, 24)),
    *family.layouts("x"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "no rounding": FORMULA.edit("torch.round(x.detach() / scale)", "(x.detach() / scale)"),
        "truncation": FORMULA.edit("torch.round(x", "torch.trunc(x"),
        "halves away from zero": FORMULA.edit("torch.round(x.detach() / scale)", "(x.detach().sign() * torch.floor(x.detach().abs() / scale + 0.5))"),
        "range ignored": FORMULA.edit("steps.clamp(low, high)", "steps"),
        "-128 to 127 always": FORMULA.set(low=-128, high=127),
        "symmetric range": FORMULA.edit("steps.clamp(low, high)", "steps.clamp(low + 1, high)"),
        "zero point ignored": FORMULA.edit("/ scale) + zero", "/ scale)", "clamp(low, high) - zero)", "clamp(low, high))"),
        "zero point not taken back": FORMULA.edit("clamp(low, high) - zero)", "clamp(low, high))"),
        "left in steps": FORMULA.edit("- zero) * scale", "- zero)"),
        "one scale for all": FORMULA.change(scale=lambda scale: scale.mean().expand_as(scale)),
        "gradient everywhere": FORMULA.edit("* inside", "* 1.0"),
        "no gradient": FORMULA.edit("* inside", "* 0.0"),
        "gradient without the edges": FORMULA.edit("(steps >= low) & (steps <= high)", "(steps > low) & (steps < high)"),
        "gradient times the scale": FORMULA.edit("* inside", "* inside * scale"),
    },
    independent=call_steps,
)  # fmt: skip
