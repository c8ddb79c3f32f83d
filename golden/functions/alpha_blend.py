"""Float64 reference of front-to-back alpha blending of Gaussians."""

from __future__ import annotations

import torch


def alpha_blend(
    pixels: torch.Tensor,
    places: torch.Tensor,
    inverse: torch.Tensor,
    opacity: torch.Tensor,
    colours: torch.Tensor,
    background: torch.Tensor | None = None,
    *,
    least: float = 1 / 255,
    stop: float = 1e-4,
    most: float = 0.99,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Colour of each pixel and the light left behind. Returns (P, C) and (P,).

    ``pixels`` (P, 2); Gaussians in the order of depth: ``places`` (M, 2), ``inverse`` covariances (M, 3) as (xx, xy,
    yy), ``opacity`` (M,), ``colours`` (M, C). alpha = min(most, opacity exp(-d S d / 2)); skipped where alpha <
    ``least`` or the exponent is positive; T starts at 1, and a Gaussian that would bring T (1 - alpha) to ``stop`` or
    below ends the pixel without counting. Colour = sum of T alpha c + T background. Source: Kerbl and others,
    arXiv:2308.04079, eq. 3 and appendix C.
    """
    places, inverse, opacity, colours = places.double(), inverse.double(), opacity.double(), colours.double()
    pixels = pixels.double()
    light = torch.ones(pixels.shape[0], dtype=torch.float64, device=pixels.device)
    colour = torch.zeros(pixels.shape[0], colours.shape[1], dtype=torch.float64, device=pixels.device)
    going = torch.ones(pixels.shape[0], dtype=torch.bool, device=pixels.device)
    for place, (xx, xy, yy), strength, tint in zip(places, inverse, opacity, colours):
        dx, dy = (pixels - place).unbind(-1)
        power = -0.5 * (xx * dx * dx + yy * dy * dy) - xy * dx * dy
        alpha = torch.clamp(strength * torch.exp(power), max=most)
        counts = going & (alpha.detach() >= least) & (power.detach() <= 0)
        rest = light * (1 - alpha)
        ends = counts & (rest.detach() <= stop)
        going, counts = going & ~ends, counts & ~ends
        colour = colour + (light * alpha * counts)[:, None] * tint
        light = torch.where(counts, rest, light)
    return colour if background is None else colour + light[:, None] * background.double(), light
