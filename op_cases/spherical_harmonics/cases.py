"""Cases for spherical harmonics. Keywords: ``directions`` (M, 3), ``coefficients`` (M, K, C), ``degree``."""

from __future__ import annotations

import math

import torch

from precision_align.library.drawing import Family, fixed, normal
from precision_align.library.formulas import Formula

FORMULA = Formula("spherical_harmonics")
Tensor = torch.Tensor
family = Family(
    directions=normal(20, 3),
    coefficients=normal(20, 16, 3),
    degree=3,
    wrt=("directions", "coefficients"),
    dtypes=("float32",),
)


def call_torch(directions: Tensor, coefficients: Tensor, *, degree: int) -> Tensor:
    """Associated Legendre functions by recurrence and cos(m phi), sin(m phi) as products: no table of polynomials."""
    x, y, z = torch.nn.functional.normalize(directions, dim=-1).unbind(-1)
    cosines, sines = [torch.ones_like(x)], [torch.zeros_like(x)]  # r^m cos(m phi), r^m sin(m phi)
    for _ in range(degree):
        cosines.append(cosines[-1] * x - sines[-1] * y)
        sines.append(sines[-1] * x + cosines[-2] * y)
    total = torch.zeros_like(coefficients[:, 0])
    for order in range(degree + 1):
        legendre = {order: torch.full_like(z, float(math.prod(range(2 * order - 1, 0, -2))) * (-1) ** order)}
        for row in range(order + 1, degree + 1):
            before = legendre.get(row - 2, torch.zeros_like(z))
            legendre[row] = ((2 * row - 1) * z * legendre[row - 1] - (row + order - 1) * before) / (row - order)
        for row in range(order, degree + 1):
            size = math.sqrt((2 * row + 1) / (4 * math.pi) * math.factorial(row - order) / math.factorial(row + order))
            middle = row * row + row
            part = size * (math.sqrt(2) if order else 1.0) * legendre[row]
            total = total + (part * cosines[order])[:, None] * coefficients[:, middle + order]
            if order:
                total = total + (part * sines[order])[:, None] * coefficients[:, middle - order]
    return total


CASES = [
    family("degree-3", "signs, order of the functions", "basic"),
    family("degree-2", "a degree too many", "basic", degree=2),
    family("degree-1", "y, z, x for x, y, z", "basic", degree=1),
    family("degree-0", "a constant", "size-1", degree=0, wrt=("coefficients",)),
    family("just-enough-coefficients", "K = 4", "shape", degree=1, coefficients=normal(20, 4, 3)),
    family("not-unit", "directions not normalised", "scale", directions=normal(20, 3, gain=9.0)),
    family(
        "axes",
        "along x, y and z: most functions vanish",
        "ties",
        directions=fixed([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [-1.0, 0, 0], [0, -1.0, 0], [0, 0, -1.0]]),
        coefficients=normal(6, 16, 3),
        wrt=("coefficients",),
    ),
    family("large-coefficients", "sums that cancel", "magnitude", coefficients=normal(20, 16, 3, gain=1e4)),
    family(
        "tiny-directions", "a norm of 1e-5", "magnitude", directions=normal(20, 3, gain=1e-5), wrt=("coefficients",)
    ),
    family("one-channel", "density alone", "size-1", coefficients=normal(20, 16, 1)),
    family("one", "a single point", "size-1", directions=normal(1, 3), coefficients=normal(1, 16, 3)),
    family("points-65", "one beyond a tile of 64", "tile", directions=normal(65, 3), coefficients=normal(65, 16, 3)),
    family("empty", "no point", "empty", directions=normal(0, 3), coefficients=normal(0, 16, 3)),
    family(
        "nan", "NaN spoils its point only", "nonfinite", wrt=(), coefficients=normal(20, 16, 3).at((3, 2, 1), math.nan)
    ),
    *family.layouts("directions", "coefficients"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch},
    {
        "without the phase": FORMULA.edit("-0.4886025119029199 * y, 0.4886025119029199 * z, -0.4886025119029199 * x", "0.4886025119029199 * y, 0.4886025119029199 * z, 0.4886025119029199 * x"),
        "x, y, z": FORMULA.edit("-0.4886025119029199 * y, 0.4886025119029199 * z, -0.4886025119029199 * x", "-0.4886025119029199 * x, -0.4886025119029199 * y, 0.4886025119029199 * z"),
        "degree 3 always": FORMULA.edit("if degree > 1:", "if coefficients.shape[1] > 8:", "if degree > 2:", "if coefficients.shape[1] > 15:"),
        "one degree too few": FORMULA.edit("if degree > 2:", "if degree > 3:"),
        "not normalised": FORMULA.edit("directions.double() / directions.double().norm(dim=-1, keepdim=True)", "directions.double()"),
        "a small number in the norm": FORMULA.edit(".norm(dim=-1, keepdim=True)", ".norm(dim=-1, keepdim=True).add(1e-4)"),
        "constant term 0.5": FORMULA.edit("0.28209479177387814", "0.5"),
        "offset of 0.5 added": FORMULA.after(lambda y: y + 0.5),
        "clamped at 0": FORMULA.after(lambda y: y.clamp(min=0)),
        "z^2 term without x, y": FORMULA.edit("(2 * z * z - x * x - y * y)]\n        basis += [-1.09", "(3 * z * z)]\n        basis += [-1.09"),
        "sign of one cubic term": FORMULA.edit("0.3731763325901154 * z", "-0.3731763325901154 * z"),
        "x and y swapped in a cubic term": FORMULA.edit("1.445305721320277 * z * (x * x - y * y)", "1.445305721320277 * z * (y * y - x * x)"),
        "basis in bfloat16": FORMULA.edit("torch.stack(basis, dim=-1)", "torch.stack(basis, dim=-1).bfloat16().double()"),
        "coefficients by channel": FORMULA.edit("coefficients.double()[:, : len(basis)]", "coefficients.double().transpose(1, 2).reshape(coefficients.shape)[:, : len(basis)]"),
        "directions without gradient": FORMULA.edit("x, y, z = unit", "unit = unit.detach()\n    x, y, z = unit"),
        "gradient of the norm forgotten": FORMULA.edit("directions.double().norm(dim=-1, keepdim=True)", "directions.double().norm(dim=-1, keepdim=True).detach()"),
    },
)  # fmt: skip
