"""Every wrong rotary embedding is caught by a case, every conforming one passes them all."""

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


def rotate_all(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False, compact: bool = False) -> Tensor:
    """Halves of the whole head where only a part of it is rotated."""
    if compact:
        cos, sin = spread(cos, interleaved), spread(sin, interleaved)
    width, size = cos.shape[-1], x.shape[-1]
    turned = rotate(x.float(), interleaved)[..., :width] if width < size else rotate(x.float(), interleaved)
    y = x.float()[..., :width] * cos.float() + turned * sin.float()
    return torch.cat([y.to(x.dtype), x[..., width:]], dim=-1)


def ignore_strides(x: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> Tensor:
    strides = torch.empty(x.shape, device="meta").stride()
    return Variant()(x.as_strided(x.shape, strides, x.storage_offset()), cos, sin, **options)


def ignore_table_strides(x: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> Tensor:
    tables = [
        t.as_strided(t.shape, torch.empty(t.shape, device="meta").stride(), t.storage_offset()) for t in (cos, sin)
    ]
    return Variant()(x, tables[0], tables[1], **options)


def share_tables(x: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> Tensor:
    """Tables of the first sequence for the whole batch."""
    return Variant()(x, cos[:1] if cos.dim() > 2 else cos, sin[:1] if sin.dim() > 2 else sin, **options)


def turn_by_matrix(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False, compact: bool = False) -> Tensor:
    """rotate(x) as a product with a matrix of 0 and 1: a NaN or infinity reaches the whole head."""
    if compact:
        cos, sin = spread(cos, interleaved), spread(sin, interleaved)
    width = cos.shape[-1]
    turned, rest = x[..., :width].float(), x[..., width:]
    matrix = rotate(torch.eye(width), interleaved)
    y = turned * cos.float() + (turned @ matrix) * sin.float()
    return torch.cat([y.to(x.dtype), rest], dim=-1)


class TurnBack(torch.autograd.Function):
    """The gradient is turned forward instead of back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, options: Any) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.options = options
        return Variant()(x, cos, sin, **options)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        return Variant()(gradient, cos, sin, **ctx.options), torch.zeros_like(cos), torch.zeros_like(sin), None


def turn_gradient_forward(x: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> Tensor:
    result: Tensor = TurnBack.apply(x, cos, sin, options)
    return result


def detach_tables(x: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> Tensor:
    return Variant()(x, cos.detach(), sin.detach(), **options)


def mask_after(limit: int, axis: int) -> Any:
    """Leaves what is beyond ``limit`` along the axis of x as it was."""

    def keep(y: Tensor, x: Tensor) -> Tensor:
        index = torch.arange(x.shape[axis]).view([-1 if d == axis % x.dim() else 1 for d in range(x.dim())])
        return torch.where(index < limit, y, x)

    return keep


def truncate(y: Tensor, x: Tensor) -> Tensor:
    """One unit in the last place towards zero, half of the time: what a store without rounding does on average."""
    return torch.where(torch.arange(y.shape[-1]) % 2 == 0, torch.nextafter(y, torch.zeros_like(y)), y)


WRONG = {
    "half-split for interleaved": Variant(pairs=lambda interleaved: False),
    "interleaved for half-split": Variant(pairs=lambda interleaved: True),
    "pairings swapped": Variant(pairs=lambda interleaved: not interleaved),
    "turned the other way": Variant(sign=-1.0),
    "cos and sin swapped": Variant(tables=lambda cos, sin: (sin, cos)),
    "compact tables spread as halves": Variant(spread=lambda interleaved: False),
    "compact tables spread as pairs": Variant(spread=lambda interleaved: True),
    "halves of the whole head": rotate_all,
    "rest set to zero": Variant(rest=torch.zeros_like),
    "positions shifted by one": Variant(tables=lambda cos, sin: (cos.roll(1, -2), sin.roll(1, -2))),
    "tables rounded to bfloat16": Variant(tables=lambda cos, sin: (cos.bfloat16().float(), sin.bfloat16().float())),
    "tables clipped to [-1, 1]": Variant(tables=lambda cos, sin: (cos.clamp(-1, 1), sin.clamp(-1, 1))),
    "tables of the first sequence": share_tables,
    "rotation by a matrix product": turn_by_matrix,
    "gradient turned forward": turn_gradient_forward,
    "no gradient for the tables": detach_tables,
    "positions beyond a tile of 64": Variant(output=mask_after(64, -2)),
    "elements beyond a tile of 64": Variant(output=mask_after(64, -1)),
    "strides of x ignored": ignore_strides,
    "strides of the tables ignored": ignore_table_strides,
    "result in float32": Variant(output=lambda y, x: y.float()),
    "store without rounding": Variant(output=truncate),
    "NaN becomes 0": Variant(
        output=lambda y, x: torch.nan_to_num(y, nan=0.0, posinf=float("inf"), neginf=-float("inf"))
    ),
    "a gain of one percent": Variant(tables=lambda cos, sin: (cos * 1.01, sin * 1.01)),
    "a gain of one thousandth": Variant(tables=lambda cos, sin: (cos * 1.001, sin * 1.001)),
}


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


@pytest.mark.parametrize("name", WRONG)
def test_wrong_rope_is_caught(bench: Any, name: str) -> None:
    assert bench.catches("rope", WRONG[name]), f"no case catches: {name}"


@pytest.mark.parametrize("name", CONFORMING)
def test_conforming_rope_passes(bench: Any, name: str) -> None:
    # the complex form reads one column a pair only, so the other's gradient is zero there: right, but another function
    skip = ("tables-gradient",) if name == "real and imaginary parts" else ()
    assert bench.failures("rope", CONFORMING[name], skip) == []
