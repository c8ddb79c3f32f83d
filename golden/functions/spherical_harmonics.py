"""Float64 reference of view-dependent colour from real spherical harmonics."""

from __future__ import annotations

import torch


def spherical_harmonics(directions: torch.Tensor, coefficients: torch.Tensor, *, degree: int) -> torch.Tensor:
    """Sum of the basis functions up to ``degree`` (0 to 3) times their coefficients. Returns (M, C).

    ``directions`` (M, 3), normalised here; ``coefficients`` (M, K, C), K >= (degree + 1)^2, in the order l, m =
    -l..l, with the Condon-Shortley phase (the signs of 3D Gaussian splatting). Source: Green, "Spherical harmonic
    lighting" (2003), table of real SH; Kerbl and others, arXiv:2308.04079.
    """
    unit = directions.double() / directions.double().norm(dim=-1, keepdim=True)
    x, y, z = unit.unbind(-1)
    basis = [torch.full_like(x, 0.28209479177387814)]
    if degree > 0:
        basis += [-0.4886025119029199 * y, 0.4886025119029199 * z, -0.4886025119029199 * x]
    if degree > 1:
        basis += [1.0925484305920792 * x * y, -1.0925484305920792 * y * z]
        basis += [0.31539156525252005 * (2 * z * z - x * x - y * y)]
        basis += [-1.0925484305920792 * x * z, 0.5462742152960396 * (x * x - y * y)]
    if degree > 2:
        basis += [-0.5900435899266435 * y * (3 * x * x - y * y), 2.890611442640554 * x * y * z]
        basis += [-0.4570457994644658 * y * (4 * z * z - x * x - y * y)]
        basis += [0.3731763325901154 * z * (2 * z * z - 3 * x * x - 3 * y * y)]
        basis += [-0.4570457994644658 * x * (4 * z * z - x * x - y * y)]
        basis += [1.445305721320277 * z * (x * x - y * y), -0.5900435899266435 * x * (x * x - 3 * y * y)]
    return torch.einsum("mk,mkc->mc", torch.stack(basis, dim=-1), coefficients.double()[:, : len(basis)])
