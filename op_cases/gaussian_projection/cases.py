"""Cases for the projection of Gaussians. Keywords: ``means`` (M, 3), ``quaternions`` (M, 4), ``scales`` (M, 3), ``view``
(4, 4), ``focal``, ``centre``, ``blur``, ``near``. Results: places, depths, inverse covariances, radii, visible."""

from __future__ import annotations

from typing import Any

import torch

from precision_align.library.drawing import Drawn, Family, derived, fixed, normal, uniform
from precision_align.library.formulas import Formula

FORMULA = Formula("gaussian_projection")
Tensor = torch.Tensor


def cloud(count: int, depth: float = 4.0, low: float = 0.05, high: float = 0.3) -> dict[str, Any]:
    return {
        "means": normal(count, 3).then(lambda m: m * torch.tensor([1.0, 1.0, 0.7]) + torch.tensor([0.0, 0.0, depth])),
        "quaternions": normal(count, 4),
        "scales": uniform(count, 3, low=low, high=high),
    }


def camera(angle: float = 0.3) -> Drawn:
    """A turn about y by ``angle``, a small shift."""
    turn = torch.tensor(angle)
    c, s = float(turn.cos()), float(turn.sin())
    return fixed([[c, 0.0, s, 0.2], [0.0, 1.0, 0.0, -0.1], [-s, 0.0, c, 0.5], [0.0, 0.0, 0.0, 1.0]])


family = Family(
    wrt=("means", "quaternions", "scales"), dtypes=("float32",), focal=(120.0, 110.0), centre=(32.0, 24.0), view=camera(),
    **cloud(25),
)  # fmt: skip


def call_torch(
    means: Tensor, quaternions: Tensor, scales: Tensor, view: Tensor, *, focal: tuple[float, float],
    centre: tuple[float, float], blur: float = 0.3, near: float = 0.01,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The textbook way: rotation by cross products, covariance, Jacobian matrices, torch.linalg.inv."""
    q = torch.nn.functional.normalize(quaternions, dim=-1)
    basis = torch.eye(3, dtype=means.dtype, device=means.device).expand(len(means), 3, 3)
    vector, real = q[:, None, 1:].expand(-1, 3, -1), q[:, None, :1]
    turned = basis + 2 * torch.linalg.cross(vector, torch.linalg.cross(vector, basis) + real * basis)  # rows: R e_i
    sigma = turned.transpose(1, 2) @ torch.diag_embed(scales**2) @ turned
    camera_points = torch.nn.functional.pad(means, (0, 1), value=1.0) @ view.T
    depth = camera_points[:, 2]
    visible = depth > near
    safe = torch.where(visible, depth, 1.0)
    zero = torch.zeros_like(safe)
    jacobian = torch.stack([
        torch.stack([focal[0] / safe, zero, -focal[0] * camera_points[:, 0] / safe**2], -1),
        torch.stack([zero, focal[1] / safe, -focal[1] * camera_points[:, 1] / safe**2], -1),
    ], 1)  # fmt: skip
    t = jacobian @ view[:3, :3]
    flat = t @ sigma @ t.transpose(1, 2) + blur * torch.eye(2, dtype=means.dtype, device=means.device)
    inverse = torch.linalg.inv(flat)
    places = torch.tensor(focal, device=means.device) * camera_points[:, :2] / safe[:, None]
    places = places + torch.tensor(centre, device=means.device)
    radius = torch.ceil(3 * torch.linalg.eigvalsh(flat.detach())[:, 1].sqrt()).long()
    keep = visible[:, None]
    packed = torch.stack([inverse[:, 0, 0], inverse[:, 0, 1], inverse[:, 1, 1]], -1)
    return (torch.where(keep, places, 0.0), torch.where(visible, depth, 0.0), torch.where(keep, packed, 0.0),
            torch.where(visible, radius, 0), visible)  # fmt: skip


CASES = [
    family("plain", "the quaternion as (x, y, z, w)", "basic"),
    family("straight-camera", "a view of the identity", "shape", view=fixed(torch.eye(4).tolist())),
    family("quaternions-not-unit", "not normalised", "scale", quaternions=normal(25, 4, gain=5.0)),
    family("no-blur", "the blur always", "blur", blur=0.0),
    family("blur-2", "the blur ignored", "blur", blur=2.0),
    family("behind", "what lies behind is not visible", "edge", **cloud(25, depth=0.0)),
    family("near-plane", "near 0.01 for 3.5", "edge", near=3.5),
    family(
        "flat",
        "one scale of almost 0: a disc",
        "magnitude",
        scales=uniform(25, 3, low=0.05, high=0.3).at((slice(None), 2), 1e-6),
    ),
    family(
        "needles",
        "one scale far larger",
        "magnitude",
        scales=uniform(25, 3, low=0.01, high=0.02).at((slice(None), 0), 1.0),
        blur=0.3,
    ),
    family("tiny", "smaller than a pixel: the blur is all", "magnitude", **cloud(25, low=1e-4, high=1e-3)),
    family("focal-different", "one focal length for both", "shape", focal=(200.0, 60.0)),
    family("gaussians-65", "one beyond a tile of 64", "tile", **cloud(65)),
    family("one", "a single Gaussian", "size-1", **cloud(1)),
    family(
        "same-twice",
        "the same Gaussian twice",
        "ties",
        means=fixed([[0.1, 0.2, 4.0]] * 2),
        quaternions=fixed([[1.0, 0.0, 0.0, 0.0]] * 2),
        scales=derived(lambda m: m.abs() * 0.05, "means"),
        wrt=("means", "quaternions"),
    ),
    family("empty", "no Gaussian", "empty", wrt=(), **cloud(0)),
    *family.layouts("means", "scales"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "quaternion as (x, y, z, w)": FORMULA.change(quaternions=lambda q: q.roll(1, -1)),
        "rotation transposed": FORMULA.change(quaternions=lambda q: q * torch.tensor([1.0, -1, -1, -1])),
        "not normalised": FORMULA.edit("(quaternions.double() / quaternions.double().norm(dim=-1, keepdim=True))", "quaternions.double()"),
        "scale for its square": FORMULA.edit("* scales[:, None, :]", "* scales.sqrt()[:, None, :]"),
        "scales as logarithms": FORMULA.change(scales=torch.exp),
        "view transposed": FORMULA.change(view=lambda view: view.T),
        "view's shift ignored": FORMULA.edit(" + view[:3, 3]", ""),
        "view not in the covariance": FORMULA.edit("view[:3, :3] @ (torch", "(torch"),
        "Jacobian without depth": FORMULA.edit("(factor[:, 0] - (tx / depth)[:, None] * factor[:, 2])", "factor[:, 0]"),
        "sign in the Jacobian": FORMULA.edit("(factor[:, 1] - (ty", "(factor[:, 1] + (ty"),
        "one focal length": FORMULA.edit("two = focal[1]", "two = focal[0]"),
        "centre forgotten": FORMULA.edit("+ centre[0]", ""),
        "blur forgotten": FORMULA.set(blur=0.0),
        "blur 0.3 always": FORMULA.set(blur=0.3),
        "blur on xx only": FORMULA.edit("(two * two).sum(-1) + blur", "(two * two).sum(-1)"),
        "covariance for its inverse": FORMULA.edit("[yy / area, -xy / area, xx / area]", "[xx, xy, yy]"),
        "diagonal of the inverse swapped": FORMULA.edit("[yy / area, -xy / area, xx / area]", "[xx / area, -xy / area, yy / area]"),
        "sign of the mixed term": FORMULA.edit("-xy / area", "xy / area"),
        "radius of two deviations": FORMULA.edit("torch.ceil(3 *", "torch.ceil(2 *"),
        "radius rounded": FORMULA.edit("torch.ceil(", "torch.round("),
        "radius by the smaller eigenvalue": FORMULA.edit("(xx + yy) / 2 + torch.sqrt", "(xx + yy) / 2 - torch.sqrt"),
        "near plane 0.01 always": FORMULA.set(near=0.01),
        "near plane 0.2": FORMULA.set(near=0.2),
        "what lies behind is kept": FORMULA.edit("tz.detach() > near", "tz.detach().abs() > near"),
        "depth as distance": FORMULA.edit("places * shown[:, None], tz * shown", "places * shown[:, None], torch.sqrt(tx * tx + ty * ty + tz * tz) * shown"),
        "area in bfloat16": FORMULA.edit("area = xx * yy - xy * xy", "area = (xx * yy - xy * xy).bfloat16().double()"),
        "scales without gradient": FORMULA.edit("scales.double(), view", "scales.double().detach() + 0 * scales.double(), view"),
    },
)  # fmt: skip
