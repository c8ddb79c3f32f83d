"""Every conforming rotary embedding passes all cases; `case prove` shows that wrong ones fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch

Tensor = torch.Tensor


def rotate(x: Tensor, interleaved: bool) -> Tensor:
    if interleaved:
        return torch.stack([-x[..., 1::2], x[..., 0::2]], dim=-1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def spread(table: Tensor, interleaved: bool) -> Tensor:
    return table.repeat_interleave(2, dim=-1) if interleaved else torch.cat([table, table], dim=-1)


class Variant:
    """The right rotation with one thing changed: a table transform, a pairing, what happens to the rest, ..."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes

    def __call__(
        self, x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False, compact: bool = False
    ) -> Tensor:
        change = self.changes
        pairs = change.get("pairs", lambda value: value)(interleaved)
        if compact:
            spread_pairs = change.get("spread", lambda value: value)(interleaved)
            cos, sin = spread(cos, spread_pairs), spread(sin, spread_pairs)
        cos, sin = change.get("tables", lambda c, s: (c, s))(cos.float(), sin.float())
        width = cos.shape[-1]
        turned, rest = x[..., :width].float(), x[..., width:]
        y = turned * cos + change.get("sign", 1.0) * rotate(turned, pairs) * sin
        y = torch.cat([y.to(x.dtype), change.get("rest", lambda value: value)(rest)], dim=-1)
        result: Tensor = change.get("output", lambda value, x: value)(y, x)
        return result


def as_complex(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False, compact: bool = False) -> Tensor:
    """LLaMA's original form, one complex product a pair."""
    wide = spread(cos, interleaved) if compact else cos
    width = wide.shape[-1]
    columns = slice(None) if compact else slice(0, None, 2) if interleaved else slice(0, width // 2)
    turned, rest = x[..., :width].float(), x[..., width:]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    c, s = cos[..., columns].float(), sin[..., columns].float()
    real, imaginary = first * c - second * s, first * s + second * c
    y = torch.stack([real, imaginary], dim=-1).flatten(-2) if interleaved else torch.cat([real, imaginary], dim=-1)
    return torch.cat([y.to(x.dtype), rest], dim=-1)


def in_dtype(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False, compact: bool = False) -> Tensor:
    """Every product and the sum rounded to the dtype."""
    if compact:
        cos, sin = spread(cos, interleaved), spread(sin, interleaved)
    width = cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    y = (turned * cos).to(x.dtype) + (rotate(turned, interleaved) * sin).to(x.dtype)
    return torch.cat([y, rest], dim=-1)


def fused_multiply_add(
    x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False, compact: bool = False
) -> Tensor:
    """One rounding for product and sum."""
    if compact:
        cos, sin = spread(cos, interleaved), spread(sin, interleaved)
    width = cos.shape[-1]
    turned, rest = x[..., :width].double(), x[..., width:]
    y = turned * cos + rotate(turned, interleaved) * sin
    return torch.cat([y.to(x.dtype), rest], dim=-1)


CONFORMING = {
    "float32 inside": Variant(),
    "rounded at every step": in_dtype,
    "fused multiply-add": fused_multiply_add,
    "real and imaginary parts": as_complex,
}


@pytest.mark.parametrize("name", CONFORMING)
def test_conforming_rope_passes(bench: Any, name: str) -> None:
    # the complex form reads one column a pair only, so the other's gradient is zero there: right, but another function
    skip = ("tables-gradient",) if name == "real and imaginary parts" else ()
    assert bench.failures("rope", CONFORMING[name], skip) == []
