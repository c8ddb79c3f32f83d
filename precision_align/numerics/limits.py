"""Every constant of the verdicts in one table, each with its reason.

Symbols: u unit roundoff of the output's dtype, u32 = 2^-24, g the float64 golden, S the condition scale, z the largest
error in units of the bound T = u|g| + c*u32*S + eta, rho the RMS error over that of the same-dtype reference. Tuned on
264 fault runs and 120 benign runs with seeds held out; every limit has a factor 2 to 4 of slack both ways.
"""

from __future__ import annotations

from dataclasses import dataclass

U32 = 2.0**-24  # fp32 accumulation inside an operator: what CUDA, Ascend's cube unit and CPU kernels all keep


@dataclass(frozen=True)
class Limits:
    """Limits of one local test. Each comment is the reason."""

    z_warn: float = 1.001  # the bound itself; one part in a thousand for the rounding of T
    z_fail: float = 4.0  # conforming builds reached 1.0 over K = 64..16384 and 7 distributions; faults start near 10
    native_slack: float = 1.5  # without a formula for S the reference's own z is the best scale known
    rho_warn: float = 1.6  # twice-rounded builds reach 1.41 (two roundings) and 1.5 (four partial sums)
    rho_fail: float = 4.0  # HF32 at K = 16384 has z = 0.8 and rho = 85; no benign build passed 2.25
    rho_split: float = 1.6  # up to 8 low-precision partial results stay below; a running sum does not
    rho_decomposed: float = 1.15  # extra roundings must show as extra noise, else it is a shift
    decomposed: float = 3.0  # extra roundings to the output's dtype stay within 3*u*S (sqrt(8) = 2.83 partial results)
    minimum_ratio: int = 64  # a scalar loss gave rho > 4 by chance: below this many values the ratio means nothing
    t: float = 8.0  # standard errors a mean must be away from zero to be called a shift
    bias_warn: float = 0.01  # in units of T; fused and native builds stay below 0.0045
    bias_fail: float = 0.05  # a truncating store shifts by 0.78
    bias_decomposed: float = 0.25  # an 8-bit mantissa times a scalar shifts coherently by up to 0.21
    minimum_bias: int = 256  # values needed for the mean to be known well enough
    group_warn: float = 0.05  # RMS of row or column means beyond chance
    group_fail: float = 0.12  # statistics or scale wrong for a whole row or channel
    group_decomposed: float = 0.6  # a bias added to a rounded product moves a column by up to half a unit: RMS 0.58 T
    minimum_group: int = 1024  # values, with at least 16 in a group
    group_size: int = 16
    group_f: float = 6.0  # median F of the group means


LIMITS = Limits()

# c of the bound where S comes from random perturbation of the inputs instead of a formula: such an S is a typical, not
# a worst-case, size, so it needs more room; fp32 more than low dtypes, whose u|g| dominates.
GENERIC_COEFFICIENT_LOW = 16.0
GENERIC_COEFFICIENT_FLOAT32 = 48.0

# What a raw difference, relative to the largest reference value, may be before it counts as a difference at all; no
# more than a hint, since accumulated error is in it (facts of 42 re-created reports).
RAW_LIMITS = {
    "float64": 1e-9,
    "complex128": 1e-9,
    "float32": 1e-5,
    "complex64": 1e-5,
    "float16": 4e-3,
    "bfloat16": 1.7e-2,
}
RAW_LIMIT_LOW = 0.25  # float8: two units in the last place of e5m2


def raw_limit(dtype: str) -> float:
    """The raw relative limit of a dtype; 0 (exact) for integers and booleans."""
    return RAW_LIMITS.get(dtype, RAW_LIMIT_LOW if dtype.startswith("float8") or dtype == "complex32" else 0.0)
