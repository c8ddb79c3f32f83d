"""Float64 reference of projecting 3D Gaussians to the image plane (EWA splatting)."""

from __future__ import annotations

import torch


def gaussian_projection(
    means: torch.Tensor,
    quaternions: torch.Tensor,
    scales: torch.Tensor,
    view: torch.Tensor,
    *,
    focal: tuple[float, float],
    centre: tuple[float, float],
    blur: float = 0.3,
    near: float = 0.01,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Image places (M, 2), depths (M,), inverse covariances (M, 3) as (xx, xy, yy), radii int64 (M,), visible (M,).

    ``means`` (M, 3), ``quaternions`` (M, 4) as (w, x, y, z), normalised here, ``scales`` (M, 3), ``view`` (4, 4)
    world to camera. S = R diag(s^2) R^T; S2 = J W S W^T J^T + blur I, J the derivative of the perspective; the radius
    is ceil(3 sqrt(largest eigenvalue)). What lies nearer than ``near`` is not visible: zeros. Source: Zwicker and
    others, "EWA volume splatting" (2001), eq. 24-31; Kerbl and others, arXiv:2308.04079, eq. 5-6.
    """
    means, scales, view = means.double(), scales.double(), view.double()
    w, x, y, z = (quaternions.double() / quaternions.double().norm(dim=-1, keepdim=True)).unbind(-1)
    rows = [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)]
    rows += [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)]
    rows += [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)]
    factor = view[:3, :3] @ (torch.stack(rows, dim=-1).unflatten(-1, (3, 3)) * scales[:, None, :])
    tx, ty, tz = (means @ view[:3, :3].T + view[:3, 3]).unbind(-1)
    visible = tz.detach() > near
    depth = torch.where(visible, tz, torch.ones_like(tz))
    places = torch.stack([focal[0] * tx / depth + centre[0], focal[1] * ty / depth + centre[1]], dim=-1)
    one = focal[0] / depth[:, None] * (factor[:, 0] - (tx / depth)[:, None] * factor[:, 2])
    two = focal[1] / depth[:, None] * (factor[:, 1] - (ty / depth)[:, None] * factor[:, 2])
    xx, xy, yy = (one * one).sum(-1) + blur, (one * two).sum(-1), (two * two).sum(-1) + blur
    area = xx * yy - xy * xy
    inverse = torch.stack([yy / area, -xy / area, xx / area], dim=-1)
    largest = (xx + yy) / 2 + torch.sqrt((((xx - yy) / 2).square() + xy * xy).detach())
    radius = torch.ceil(3 * torch.sqrt(largest.detach())).long().masked_fill(~visible, 0)
    shown = visible.double()
    return places * shown[:, None], tz * shown, inverse * shown[:, None], radius, visible
