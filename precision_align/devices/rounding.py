"""Rounding of float32 tensors to fewer mantissa bits, and polynomial exp: the primitives of the arithmetic profiles."""

from __future__ import annotations

import torch

_MANTISSA_BITS = 23
# HF32 keeps 11 explicit mantissa bits, TF32 keeps 10; both have float32's exponent (hiascend SetHF32; NVIDIA TF32).
KEPT_BITS = {"hf32": 11, "tf32": 10}
# x * (2^13 + 1) must stay finite: 2^128 / 2^14.
_SAFE_MAXIMUM = 2.0**114
_SMALLEST_NORMAL = 2.0**-126


def round_mantissa_exactly(values: torch.Tensor, kept: int, ties: str = "even") -> torch.Tensor:
    """float32 with ``kept`` explicit mantissa bits, by integer arithmetic on the words.

    ``ties``: "even" or "away". Infinities and NaN pass; a value that rounds beyond the range becomes infinite, as in
    IEEE 754 conversions. Correct for every float32, and about nine times slower than ``round_mantissa``.
    """
    dropped = _MANTISSA_BITS - kept
    words = values.contiguous().view(torch.int32)
    half = 1 << (dropped - 1)
    increment = ((words >> dropped) & 1) + (half - 1) if ties == "even" else half
    rounded = ((words + increment) & ~((1 << dropped) - 1)).view(torch.float32)
    return torch.where(values.isfinite(), rounded.view_as(values), values)


def round_mantissa(values: torch.Tensor, kept: int, ties: str = "even") -> torch.Tensor:
    """As ``round_mantissa_exactly``, by Veltkamp's splitting where that is exact.

    t = x (2^s + 1), x' = t - (t - x) rounds x to nearest even in 24 - s bits (Veltkamp 1968; Boldo, "Pitfalls of a full
    floating-point proof", 2006). It overflows for large x and rounds subnormals at another place, so tensors
    with such values, infinities or NaN take the integer way.
    """
    if values.numel() == 0:
        return values
    size = values.abs()
    if ties != "even" or not bool(size.amax() < _SAFE_MAXIMUM):
        return round_mantissa_exactly(values, kept, ties)
    if bool(((size > 0) & (size < _SMALLEST_NORMAL)).any()):
        return round_mantissa_exactly(values, kept, ties)
    shifted = values * float((1 << (_MANTISSA_BITS - kept)) + 1)
    return shifted - (shifted - values)


def round_to(values: torch.Tensor, form: str, ties: str = "even") -> torch.Tensor:
    """A float32 tensor rounded to "hf32", "tf32", "float16" or "bfloat16", still as float32; others unchanged.

    float16 overflows to infinity where its range ends.
    """
    if form == "float32" or values.dtype != torch.float32:
        return values
    if form in KEPT_BITS:
        return round_mantissa(values, KEPT_BITS[form], ties)
    return values.to(getattr(torch, form)).to(torch.float32)


def exp_polynomially(values: torch.Tensor) -> torch.Tensor:
    """exp as 2^n times a degree-5 polynomial on [-1/2, 1/2], computed in float32; relative error below 4e-6.

    The coefficients are ln(2)^k / k!, Taylor's for 2^f; the first term left out bounds the error. A plausible shortcut
    of a vector unit, not a known Ascend kernel.
    """
    # Beyond these the result is 0 or infinite anyway, and inf - floor(inf) would be NaN.
    scaled = (values.float() * 1.4426950408889634).clamp(min=-160.0, max=200.0)
    whole = torch.floor(scaled + 0.5)
    fraction = scaled - whole
    total = torch.full_like(fraction, 0.0013333558146428443)
    for coefficient in (0.009618129107628477, 0.05550410866482158, 0.24022650695910072, 0.6931471805599453, 1.0):
        total = total * fraction + coefficient
    return torch.ldexp(total, whole).to(values.dtype)
