"""Float64 reference of non-maximum suppression."""

from __future__ import annotations

import torch


def nms(boxes: torch.Tensor, scores: torch.Tensor, *, threshold: float) -> torch.Tensor:
    """Boxes that no better box overlaps by more than ``threshold``. Returns their numbers, best score first, int64
    (K,).

    ``boxes`` (M, 4) as x1, y1, x2, y2; ``scores`` (M,); overlap = intersection / union, and suppressed where it is
    greater, not equal. Of equal scores the lower number comes first. Source: Girshick and others, arXiv:1311.2524,
    section 2.2; torchvision.ops.nms's documentation.
    """
    boxes, left = boxes.double(), torch.argsort(-scores.double(), stable=True)
    areas, kept = (boxes[:, 2:] - boxes[:, :2]).prod(dim=-1), []
    while left.numel():
        best, left = left[0], left[1:]
        kept.append(best)
        low = torch.maximum(boxes[best, :2], boxes[left, :2])
        high = torch.minimum(boxes[best, 2:], boxes[left, 2:])
        inner = (high - low).clamp(min=0).prod(dim=-1)
        overlap = inner / (areas[best] + areas[left] - inner)
        left = left[~(overlap > threshold)]
    return torch.stack(kept) if kept else torch.zeros(0, dtype=torch.int64, device=boxes.device)
