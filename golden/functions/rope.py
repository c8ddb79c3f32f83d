"""Float64 reference of rotary position embedding: half-split or interleaved pairs, whole or partial heads."""

from __future__ import annotations

import torch


def rope(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool = False, compact: bool = False
) -> torch.Tensor:
    """Rotate the first R of the D elements of each head, pass the others on. Returns the shape of ``x``.

    ``x`` (..., S, D); ``cos``, ``sin`` broadcast to (..., S, R), R even and <= D, already laid out for the pairing:
    half-split pairs (i, i + R/2) repeat the table as a whole, interleaved pairs (2i, 2i + 1) repeat each entry.
    ``compact``: the tables have one column a pair, (..., S, R/2), as flash_attn passes them.
    """
    x, cos, sin = x.double(), cos.double(), sin.double()
    if compact:
        cos, sin = spread(cos, interleaved), spread(sin, interleaved)
    width = cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    return torch.cat([turned * cos + rotate(turned, interleaved) * sin, rest], dim=-1)


def rotate(x: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """A quarter turn of every pair: (a, b) -> (-b, a)."""
    if interleaved:
        return torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).flatten(-2)
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], dim=-1)


def spread(table: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """From one column a pair to one column an element."""
    return table.repeat_interleave(2, dim=-1) if interleaved else torch.cat([table, table], dim=-1)
