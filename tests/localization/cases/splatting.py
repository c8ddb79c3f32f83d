"""A Gaussian-splatting renderer: projection, radii, depth sort, tiles, alpha blending."""

from __future__ import annotations

import torch
from localization_cases import Pair, case
from torch import nn

N, SIZE = 80, 16


class Project(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.register_buffer("focal", torch.tensor(14.0))

    def forward(self, means, scales, rotations):
        depth = means[:, 2] + 4
        x, y = means[:, 0] / depth, means[:, 1] / depth
        half = SIZE / 2 if self.fault != "center" else (SIZE - 1) / 2
        place = torch.stack((x * self.focal + half, y * self.focal + half), -1)
        q = rotations / rotations.norm(dim=-1, keepdim=True)
        c, s = q[:, 0], q[:, 1]
        if self.fault == "transposed":
            s = -s
        rotate = torch.stack((torch.stack((c, -s), -1), torch.stack((s, c), -1)), -2)
        stretch = torch.diag_embed(scales.exp() * (self.focal / depth)[:, None])
        covariance = rotate @ stretch @ stretch.transpose(-1, -2) @ rotate.transpose(-1, -2)
        blur = 0.0 if self.fault == "no_blur" else 0.3
        covariance = covariance + blur * torch.eye(2)
        trace, determinant = covariance.diagonal(dim1=-2, dim2=-1).sum(-1), torch.linalg.det(covariance)
        largest = trace / 2 + (trace * trace / 4 - determinant).clamp_min(0.1).sqrt()
        radius = (3 * largest.sqrt()).ceil() if self.fault != "radius" else (3 * largest.sqrt()).floor()
        return place, depth, torch.linalg.inv(covariance), radius.int()


class Sort(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, depth):
        if self.fault == "descending":
            return depth.argsort(descending=True)
        if self.fault == "half":
            return depth.half().argsort(stable=True)
        return depth.argsort(stable=True)


class Blend(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, place, conic, radius, color, opacity, order):
        grid = torch.arange(SIZE).float()
        pixel = torch.stack(torch.meshgrid(grid, grid, indexing="xy"), -1)
        if self.fault == "half_pixel":
            pixel = pixel + 0.5
        d = pixel[None] - place[order][:, None, None]
        power = -0.5 * torch.einsum("nhwi,nij,nhwj->nhw", d, conic[order], d)
        alpha = opacity[order][:, None, None] * power.exp()
        alpha = alpha.clamp_max(1.0 if self.fault == "clamp" else 0.99)
        near = d.abs().amax(-1) <= radius[order][:, None, None]
        alpha = torch.where((alpha >= 1 / 255) & near, alpha, torch.zeros_like(alpha))
        through = torch.cumprod(1 - alpha, 0)
        if self.fault != "transmittance":
            through = torch.cat((torch.ones_like(through[:1]), through[:-1]))
        if self.fault == "stops_early":
            through = torch.where(through < 0.5, torch.zeros_like(through), through)
        weight = alpha * through
        image = torch.einsum("nhw,nc->chw", weight, color[order])
        background = 0.0 if self.fault == "background" else 0.2
        return image + background * (1 - weight.sum(0)), weight.sum(0)


class Colors(nn.Module):
    """Spherical harmonics of degree one."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, coefficients, means):
        direction = means / means.norm(dim=-1, keepdim=True)
        x, y, z = direction.unbind(-1)
        sign = 1.0 if self.fault == "sign" else -1.0
        basis = torch.stack((torch.full_like(x, 0.2820948), sign * 0.4886025 * y, 0.4886025 * z, -0.4886025 * x), -1)
        return (torch.einsum("nk,nkc->nc", basis, coefficients) + 0.5).clamp_min(0)


class Renderer(nn.Module):
    def __init__(self, fault: str = "", seed: int = 90) -> None:
        super().__init__()
        part, _, what = fault.partition(":")
        torch.manual_seed(seed)
        self.means = nn.Parameter(torch.randn(N, 3) * torch.tensor([0.8, 0.8, 0.1]))
        self.scales = nn.Parameter(torch.randn(N, 2) * 0.2 - 0.5)
        self.rotations = nn.Parameter(torch.randn(N, 2))
        self.opacity = nn.Parameter(torch.randn(N) * 3 + 2)
        self.harmonics = nn.Parameter(torch.randn(N, 4, 3) * 0.3)
        self.project, self.sort = Project(what if part == "project" else ""), Sort(what if part == "sort" else "")
        self.colors, self.blend = Colors(what if part == "colors" else ""), Blend(what if part == "blend" else "")
        self.fault = what if part == "render" else ""

    def forward(self, shift):
        means = self.means + shift
        place, depth, conic, radius = self.project(means, self.scales, self.rotations)
        color = self.colors(self.harmonics, means)
        opacity = self.opacity if self.fault == "no_sigmoid" else self.opacity.sigmoid()
        image, cover = self.blend(place, conic, radius, color, opacity, self.sort(depth))
        return image, cover


def _register(fault: str, first: str, site: str = "module", phase: str = "forward") -> None:
    def build(faulty: bool) -> Pair:
        return Renderer(fault if faulty else ""), (torch.full((3,), 0.05),)

    build.__name__ = fault.replace(":", "_")
    case(first, "Gaussian splatting reports", site=site, phase=phase)(build)


for _fault in ("center", "transposed", "no_blur", "radius"):
    _register(f"project:{_fault}", "project")
_register("sort:descending", "sort")
_register("sort:half", "sort")
for _fault in ("half_pixel", "clamp", "transmittance", "stops_early", "background"):
    _register(f"blend:{_fault}", "blend")
_register("colors:sign", "colors")
_register("render:no_sigmoid", "", "inline")


class FrontToBack(Blend):
    """The same blending as a loop, with early termination that does not matter."""

    def forward(self, place, conic, radius, color, opacity, order):
        grid = torch.arange(SIZE).float()
        pixel = torch.stack(torch.meshgrid(grid, grid, indexing="xy"), -1)
        image, left = torch.zeros(3, SIZE, SIZE), torch.ones(SIZE, SIZE)
        for n in order.tolist():
            d = pixel - place[n]
            a, b, c = conic[n, 0, 0], (conic[n, 0, 1] + conic[n, 1, 0]) / 2, conic[n, 1, 1]
            power = -0.5 * (a * d[..., 0] ** 2 + c * d[..., 1] ** 2) - b * d[..., 0] * d[..., 1]
            alpha = (opacity[n] * power.exp()).clamp_max(0.99)
            near = d.abs().amax(-1) <= radius[n]
            alpha = torch.where((alpha >= 1 / 255) & near, alpha, torch.zeros_like(alpha))
            image = image + (alpha * left) * color[n][:, None, None]
            left = left * (1 - alpha)
        return image + 0.2 * left, 1 - left


@case(None, "per-pixel loop against tensor code", phase="backward")
def blending_in_a_loop(faulty: bool) -> Pair:
    model = Renderer()
    if faulty:
        model.blend = FrontToBack("")
    return model, (torch.full((3,), 0.05),)


class Scatter(nn.Module):
    """Splats by scatter-add into pixels; the order of additions is free. ``fault``: the last write wins."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, index, value):
        if self.way == "set":
            return torch.zeros(50).scatter(0, index, value)
        if self.way == "reversed":
            return torch.zeros(50).scatter_add(0, index.flip(0), value.flip(0))
        if self.way == "sorted":
            order = index.argsort(stable=True)
            return torch.zeros(50).index_put((index[order],), value[order], accumulate=True)
        return torch.zeros(50).scatter_add(0, index, value)


class Splat(nn.Module):
    def __init__(self, way: str) -> None:
        super().__init__()
        self.pre, self.scatter, self.out = nn.Linear(3, 1), Scatter(way), nn.Linear(50, 2)

    def forward(self, x):
        index = (x[:, 0].abs() * 20).long().clamp_max(49)
        return self.out(self.scatter(index, self.pre(x)[:, 0].exp()))


def _register_scatter(way: str, first: str | None, phase: str) -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(91)
        return Splat(way if faulty else "add"), (torch.randn(400, 3),)

    build.__name__ = f"scatter_{way}"
    case(first, "unordered additions", site="module", phase=phase)(build)


_register_scatter("set", "scatter", "forward")
_register_scatter("reversed", None, "backward")
_register_scatter("sorted", None, "backward")
