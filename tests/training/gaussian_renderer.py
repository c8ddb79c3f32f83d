"""A small differentiable renderer of Gaussians in plain torch: project, sort by depth, and blend tile by tile.

As 3D Gaussian splatting does it (Kerbl et al. 2023): covariance of the projection plus a blur of 0.3 pixels, alpha
capped at 0.99 and cut at 1/255, front to back. ``fault`` makes one of the mistakes that ports make.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

TILE = 16
FAULTS = ("depth key", "blur", "background", "alpha cap", "half pixel", "tile list", "tile order", "channel")


@dataclass
class Scene:
    """Gaussians before a camera; all float32 parameters with gradients."""

    count: int = 120
    size: int = 64
    seed: int = 0
    parameters: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)

        def draw(*shape: int) -> Any:
            return torch.randn(shape, generator=generator)

        self.parameters = {
            "means": draw(self.count, 3) * torch.tensor([0.7, 0.7, 0.3]),
            "scales": draw(self.count, 2) * 0.3 - 2.2,
            "angles": draw(self.count),
            "opacity": draw(self.count) + 1.5,
            "colors": torch.rand((self.count, 3), generator=generator),
        }

    def to(self, device: Any) -> dict[str, Any]:
        return {name: value.clone().to(device).requires_grad_() for name, value in self.parameters.items()}


def render(parameters: dict[str, Any], size: int = 64, fault: str = "") -> Any:
    """The image, float32 (size, size, 3)."""
    device = parameters["means"].device
    place, depth, conic, radius = _project(parameters, size, fault)
    # equal keys keep their order: a key of few bits blends what lies close in the wrong order
    key = (depth * 4).round() if fault == "depth key" else depth
    order = key.argsort(stable=True)
    rows = []
    tiles = size // TILE
    numbers = [(row, column) for row in range(tiles) for column in range(tiles)]
    images = {}
    for row, column in reversed(numbers) if fault == "tile order" else numbers:
        kept = order[: len(order) // 2] if fault == "tile list" and (row, column) == (1, 2) else order
        images[row, column] = _blend(parameters, place, conic, radius, kept, row, column, fault, device)
    for row in range(tiles):
        rows.append(torch.cat([images[row, column] for column in range(tiles)], 1))
    image = torch.cat(rows, 0)
    return image * torch.tensor([1.0, 0.9, 1.0], device=device) if fault == "channel" else image


def _project(parameters: dict[str, Any], size: int, fault: str) -> tuple[Any, Any, Any, Any]:
    means, angle = parameters["means"], parameters["angles"]
    depth = means[:, 2] + 3
    place = means[:, :2] / depth[:, None] * size + size / 2 + (0.5 if fault == "half pixel" else 0.0)
    c, s = angle.cos(), angle.sin()
    long, short = (parameters["scales"].exp() * size / depth[:, None]).square().unbind(-1)
    blur = 0.0 if fault == "blur" else 0.3
    a, b = c * c * long + s * s * short + blur, s * s * long + c * c * short + blur
    d = c * s * (long - short)
    determinant = a * b - d * d
    conic = torch.stack((b, -d, a), -1) / determinant[:, None]
    radius = 3 * torch.maximum(a, b).sqrt()
    return place, depth, conic, radius


def _blend(
    parameters: dict[str, Any],
    place: Any,
    conic: Any,
    radius: Any,
    order: Any,
    row: int,
    column: int,
    fault: str,
    device: Any,
) -> Any:
    y = torch.arange(TILE, device=device, dtype=torch.float32) + row * TILE + 0.5
    x = torch.arange(TILE, device=device, dtype=torch.float32) + column * TILE + 0.5
    dx = x[None, None, :] - place[order, 0][:, None, None]
    dy = y[None, :, None] - place[order, 1][:, None, None]
    p, q, r = (part[:, None, None] for part in conic[order].unbind(-1))
    power = -0.5 * (p * dx * dx + r * dy * dy) - q * dx * dy
    alpha = parameters["opacity"].sigmoid()[order][:, None, None] * power.exp()
    alpha = alpha.clamp_max(0.6 if fault == "alpha cap" else 0.99)
    near = torch.maximum(dx.abs(), dy.abs()) <= radius[order][:, None, None]
    alpha = torch.where((alpha >= 1 / 255) & near, alpha, torch.zeros_like(alpha))
    through = torch.cumprod(1 - alpha, 0)
    before = torch.cat((torch.ones_like(through[:1]), through[:-1]))
    image = torch.einsum("nhw,nc->hwc", alpha * before, parameters["colors"][order])
    background = 0.1 if fault == "background" else 0.0
    return image + background * through[-1][..., None]
