"""Cases for alpha blending. Keywords: ``pixels`` (P, 2), ``places`` (M, 2), ``inverse`` (M, 3), ``opacity`` (M,),
``colours`` (M, C), ``background`` (C,), ``least``, ``stop``, ``most``. Results: colour, light."""

from __future__ import annotations

from typing import Any, Optional

import torch

from precision_align.library.drawing import Family, derived, fixed, uniform
from precision_align.library.formulas import Formula

FORMULA = Formula("alpha_blend")
Tensor = torch.Tensor
PIXELS = [[x + 0.5, y + 0.5] for y in range(5) for x in range(6)]
WRT = ("places", "inverse", "opacity", "colours", "background")


def cloud(count: int, low: float = 0.1, high: float = 0.9, wide: float = 0.5) -> dict[str, Any]:
    """Gaussians with covariances of about 1 / wide pixels, every one positive definite."""
    return {
        "places": uniform(count, 2, low=-1.0, high=7.0),
        "inverse": uniform(count, 3, low=wide / 2, high=wide).then(lambda s: s * torch.tensor([1.0, 0.3, 1.0])),
        "opacity": uniform(count, low=low, high=high),
        "colours": uniform(count, 3),
    }


family = Family(pixels=fixed(PIXELS), wrt=WRT, dtypes=("float32",), **cloud(12))


def call_torch(
    pixels: Tensor, places: Tensor, inverse: Tensor, opacity: Tensor, colours: Tensor,
    background: Optional[Tensor] = None, *, least: float = 1 / 255, stop: float = 1e-4, most: float = 0.99,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """All pixels and Gaussians at once: cumprod of 1 - alpha; what comes after the first stop is cut."""
    offset = pixels[:, None] - places
    matrix = torch.stack([inverse[:, 0], inverse[:, 1], inverse[:, 1], inverse[:, 2]], -1).reshape(-1, 2, 2)
    power = -0.5 * torch.einsum("pmi,mij,pmj->pm", offset, matrix, offset)
    alpha = torch.minimum(opacity * torch.exp(power), torch.full_like(power, most))
    alpha = torch.where((alpha >= least) & (power <= 0), alpha, 0.0)
    after = torch.cumprod(1 - alpha, dim=1)
    stopped = (
        torch.cummax(((after <= stop) & (alpha > 0)).to(torch.int8), dim=1).values.bool()
        if alpha.shape[1]
        else alpha > 1
    )
    alpha = torch.where(stopped, 0.0, alpha)
    after = torch.cumprod(1 - alpha, dim=1)
    before = torch.nn.functional.pad(after, (1, 0), value=1.0)
    colour = (before[:, :-1] * alpha) @ colours
    return colour if background is None else torch.addcmul(colour, before[:, -1:], background[None]), before[:, -1]


CASES = [
    family("plain", "back to front", "basic"),
    family("background", "the background forgotten", "background", background=uniform(3), wrt=WRT),
    family("faint", "alpha below 1/255 counts", "edge", **cloud(12, low=0.002, high=0.02)),
    family("opaque", "light below 1e-4: the rest is cut", "edge", **cloud(40, low=0.85, high=1.2, wide=0.01)),
    family("stop-0.1", "the stop ignored", "edge", stop=0.1, **cloud(12, wide=0.05)),
    family("least-0.2", "the least alpha ignored", "edge", least=0.2),
    family("most-0.5", "alpha above the most", "edge", most=0.5),
    family(
        "not-positive-definite",
        "a positive exponent is skipped",
        "edge",
        inverse=uniform(12, 3, low=-0.4, high=0.2),
        wrt=("opacity", "colours"),
    ),
    family("far-away", "no Gaussian reaches a pixel", "rows", places=uniform(12, 2, low=400.0, high=500.0), wrt=()),
    family(
        "same-place",
        "equal Gaussians: the first counts more",
        "ties",
        places=fixed([[3.0, 2.0]] * 6),
        inverse=fixed([[0.3, 0.0, 0.3]] * 6),
        opacity=fixed([0.5] * 6),
        colours=uniform(6, 3),
    ),
    family("many", "products of a hundred factors", "accumulation", **cloud(100, low=0.02, high=0.06, wide=0.05)),
    family("one-channel", "grey", "size-1", colours=uniform(12, 1)),
    family("one-gaussian", "a single Gaussian", "size-1", **cloud(1)),
    family("one-pixel", "a single pixel", "size-1", pixels=fixed([[3.1, 2.2]])),
    family("gaussians-65", "one beyond a tile of 64", "tile", **cloud(65, low=0.02, high=0.2)),
    family("no-gaussian", "the background alone", "empty-rows", background=uniform(3), wrt=("background",), **cloud(0)),
    family(
        "reversed-twice",
        "the order of depth",
        "shape",
        colours=derived(lambda o: o[:, None] * torch.tensor([1.0, 2.0, 3.0]), "opacity"),
        wrt=("places", "opacity"),
    ),
    *family.layouts("places", "colours"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "back to front": FORMULA.edit("in zip(places, inverse, opacity, colours)", "in zip(places.flip(0), inverse.flip(0), opacity.flip(0), colours.flip(0))"),
        "half forgotten": FORMULA.edit("-0.5 * (xx", "-1.0 * (xx"),
        "mixed term halved": FORMULA.edit("- xy * dx * dy", "- 0.5 * xy * dx * dy"),
        "sign of the mixed term": FORMULA.edit("- xy * dx * dy", "+ xy * dx * dy"),
        "xx and yy swapped": FORMULA.edit("xx * dx * dx + yy * dy * dy", "yy * dx * dx + xx * dy * dy"),
        "pixel corners for centres": FORMULA.change(pixels=lambda p: p - 0.5),
        "least ignored": FORMULA.set(least=0.0),
        "least 1/255 always": FORMULA.set(least=1 / 255),
        "least 0.01": FORMULA.set(least=0.01),
        "stop ignored": FORMULA.set(stop=0.0),
        "stop 1e-4 always": FORMULA.set(stop=1e-4),
        "the last one counts": FORMULA.edit("going, counts = going & ~ends, counts & ~ends", "going = going & ~ends"),
        "stop skips one only": FORMULA.edit("going, counts = going & ~ends, counts & ~ends", "counts = counts & ~ends"),
        "most ignored": FORMULA.edit("torch.clamp(strength * torch.exp(power), max=most)", "strength * torch.exp(power)"),
        "most 0.99 always": FORMULA.set(most=0.99),
        "positive exponents count": FORMULA.edit("& (power.detach() <= 0)", ""),
        "light not reduced": FORMULA.edit("light = torch.where(counts, rest, light)", "light = torch.where(counts, rest, light) * 0 + 1"),
        "light reduced first": FORMULA.edit("(light * alpha * counts)", "(rest * alpha * counts)"),
        "background forgotten": FORMULA.set(background=None),
        "background full": FORMULA.edit("light[:, None] * background.double()", "(1 - light)[:, None] * background.double()"),
        "light is opacity": FORMULA.after(lambda y: (y[0], 1 - y[1])),
        "alpha in float16": FORMULA.edit("rest = light * (1 - alpha)", "alpha = alpha.half().double()\n        rest = light * (1 - alpha)"),
        "light in bfloat16": FORMULA.edit("torch.where(counts, rest, light)", "torch.where(counts, rest, light).bfloat16().double()"),
        "light without gradient": FORMULA.edit("(light * alpha * counts)", "(light.detach() * alpha * counts)"),
    },
)  # fmt: skip
