"""Float64 reference of box overlaps: IoU, generalised, distance and complete."""

from __future__ import annotations

import math

import torch


def box_iou(a: torch.Tensor, b: torch.Tensor, *, kind: str = "iou", eps: float = 1e-7) -> torch.Tensor:
    """The overlap of each pair of boxes (M, 4), x1, y1, x2, y2. Returns (M,).

    "iou": inner / (union + eps); "giou": minus the share of the enclosing box that neither covers; "diou": minus the
    squared distance of the centres over the squared diagonal of the enclosing box; "ciou": minus also v^2 / (1 - iou
    + v), v = (4 / pi^2) (atan(wb / hb) - atan(wa / ha))^2, the quotient without gradient. Source: Rezatofighi and
    others, arXiv:1902.09630; Zheng and others, arXiv:1911.08287, eq. 7, 9-11.
    """
    a, b = a.double(), b.double()
    inner = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(dim=-1)
    size_a, size_b = a[:, 2:] - a[:, :2], b[:, 2:] - b[:, :2]
    union = size_a.prod(dim=-1) + size_b.prod(dim=-1) - inner
    iou = inner / (union + eps)
    hull = torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])
    if kind == "iou":
        return iou
    if kind == "giou":
        whole = hull.prod(dim=-1)
        return iou - (whole - union) / (whole + eps)
    centres = (a[:, :2] + a[:, 2:] - b[:, :2] - b[:, 2:]) / 2
    near = iou - centres.square().sum(dim=-1) / (hull.square().sum(dim=-1) + eps)
    if kind == "diou":
        return near
    angle_a, angle_b = (torch.atan(size[:, 0] / (size[:, 1] + eps)) for size in (size_a, size_b))
    v = 4 / math.pi**2 * (angle_b - angle_a).square()
    return near - (v / (1 - iou + v + eps)).detach() * v
