"""Cases for layer normalisation. Keywords: ``x``, ``weight`` and ``bias`` of the last ``dims`` dimensions (or None),
``eps``."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from precision_align.library.cases import OpCase, Operator
from precision_align.library.formulas import Formula

FORMULA = Formula("layer_norm")
Inputs = dict[str, Any]
ALL = ("x", "weight", "bias")


def make(
    seed: int,
    *,
    shape: tuple[int, ...] = (4, 8, 64),
    gain: float = 1.0,
    mean: float = 0.0,
    weighted: bool = True,
    biased: bool = True,
    dims: int = 1,
    **attributes: Any,
) -> Inputs:
    """Normal ``x`` times ``gain`` plus ``mean``; weights around 1, biases around 0."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator) * gain + mean
    weight = 1 + 0.2 * torch.randn(*shape[-dims:], generator=generator)
    bias = 0.2 * torch.randn(*shape[-dims:], generator=generator)
    return {
        "x": x,
        "weight": weight if weighted else None,
        "bias": bias if biased else None,
        "dims": dims,
        **attributes,
    }


def make_constant_rows(seed: int, **sizes: Any) -> Inputs:
    """Every third row is constant: variance 0, so the result is the bias."""
    inputs = make(seed, **sizes)
    inputs["x"][..., ::3, :] = 0.75
    return inputs


def make_rows(seed: int, *, low: float, high: float, **sizes: Any) -> Inputs:
    """Rows of very different size, from ``low`` to ``high``."""
    inputs = make(seed, **sizes)
    inputs["x"] *= torch.logspace(math.log10(low), math.log10(high), inputs["x"].shape[-2])[:, None]
    return inputs


def make_positive(seed: int, **sizes: Any) -> Inputs:
    """A sum that grows: a short accumulator stops long before 4096 values are in."""
    inputs = make(seed, **sizes)
    inputs["x"] += 1.0
    return inputs


def make_nonfinite(seed: int, **sizes: Any) -> Inputs:
    """A NaN, and an infinity, each spoil their own row only."""
    inputs = make(seed, **sizes)
    inputs["x"][0, 1, 3] = math.nan
    inputs["x"][0, 2, 4] = math.inf
    return inputs


def compose(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    rounded: bool,
    eps: float = 1e-5,
    dims: int = 1,
) -> torch.Tensor:
    """In float32, two passes; ``rounded``: normalised values and their product are rounded to the dtype in between."""
    middle = x.dtype if rounded else torch.float32
    over, wide = tuple(range(-dims, 0)), x.float()  # one cast: the gradients of two would meet in the low dtype
    centred = wide - wide.mean(dim=over, keepdim=True)
    y = (centred * torch.rsqrt(centred.square().mean(dim=over, keepdim=True) + eps)).to(middle).float()
    y = y if weight is None else (y * weight.float()).to(middle).float()
    return (y if bias is None else y + bias.float()).to(x.dtype)


def call_torch(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    *,
    eps: float = 1e-5,
    dims: int = 1,
) -> torch.Tensor:
    """torch.nn.functional.layer_norm; mixed dtypes go through float32, since some backends refuse them."""
    own = all(part is None or part.dtype == x.dtype for part in (weight, bias))
    wide = x if own else x.float()
    weight, bias = (part if part is None or own else part.float() for part in (weight, bias))
    return torch.nn.functional.layer_norm(wide, tuple(x.shape[-dims:]), weight, bias, eps).to(x.dtype)


def call_torch_float32(
    x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, **attributes: Any
) -> torch.Tensor:
    """The same in float32 and back, as under autocast on CUDA and on NPU. The CPU's own low-precision kernel keeps the
    row statistics and the running sums of the weight's gradient in the low dtype, and fails these cases."""
    weight, bias = (part if part is None else part.float() for part in (weight, bias))
    return call_torch(x.float(), weight, bias, **attributes).to(x.dtype)


def case(
    id_: str, why: str, *tags: str, build: Any = make, options: dict[str, Any] | None = None, **sizes: Any
) -> OpCase:
    return OpCase(id_, partial(build, **sizes), tags=tags, why=why, **{"wrt": ALL, **(options or {})})


CASES = [
    case("plain", "mean or variance over the wrong axis, weight or bias dropped", "basic"),
    case(
        "no-weight-no-bias", "neither weight nor bias", "weight", weighted=False, biased=False, options={"wrt": ("x",)}
    ),
    case("no-bias", "weight alone", "weight", biased=False, options={"wrt": ("x", "weight")}),
    case(
        "weight-float32",
        "float32 weight and bias with low-precision x (apex's mixed form)",
        "dtype",
        options={"float32": ("weight", "bias")},
    ),
    case("two-dimensions", "statistics over the last two dimensions", "shape", dims=2, shape=(6, 5, 12)),
    case("few-channels", "8 channels: unbiased variance (n - 1) is off by 7 percent", "variance", shape=(4, 32, 8)),
    case("large-eps", "eps ignored", "eps", eps=0.1),
    case(
        "small-rows-eps-5",
        "rows of variance near 1e-5: eps 1e-6 instead of 1e-5, or eps outside the root",
        "eps",
        gain=3e-3,
        eps=1e-5,
    ),
    case("small-rows-eps-6", "rows of variance near 1e-6: eps 1e-5 instead of 1e-6", "eps", gain=1e-3, eps=1e-6),
    case(
        "small-rows-eps-12", "eps 1e-12 (BERT): must not be lost in a half-precision sum", "eps", gain=1e-4, eps=1e-12
    ),
    case("constant-rows", "variance 0: the result is the bias", "rows", build=make_constant_rows, eps=1e-3),
    case("rows-of-all-sizes", "statistics of one row used for another", "rows", build=make_rows, low=1e-2, high=1e2),
    case("mean-3", "mean three times the deviation: statistics made in bf16 are wrong", "magnitude", mean=3.0),
    case(
        "mean-300",
        "mean 300 times the deviation: E[x^2] - E[x]^2 cancels in float32",
        "magnitude",
        mean=300.0,
        shape=(4, 8, 256),
        options={"dtypes": ("float32",)},
    ),
    case("large", "x of 400: x^2 overflows float16 unless it is squared in float32", "magnitude", gain=400.0),
    case("tiny", "x around 2^-15: subnormal in float16", "magnitude", gain=2.0**-15),
    case(
        "wide-4096",
        "4096 values: a bf16 accumulator stops at 256",
        "accumulation",
        build=make_positive,
        shape=(2, 4, 4096),
    ),
    case("width-65", "one channel beyond a tile of 64", "tile", shape=(4, 8, 65)),
    case("width-20", "not a multiple of 16: 40 bytes, not 32-byte aligned", "tile", shape=(4, 16, 20)),
    case("width-1", "a single channel: the bias, and no gradient to x", "size-1", shape=(4, 80, 1)),
    case("one-row", "a single row", "size-1", shape=(1, 1, 300)),
    case("empty", "no row", "empty", shape=(0, 4, 16)),
    case(
        "nonfinite",
        "NaN and infinity spoil their own rows only",
        "nonfinite",
        build=make_nonfinite,
        options={"wrt": ()},
    ),
    case(
        "layout-transposed",
        "last two dimensions swapped in storage",
        "layout",
        options={"layouts": {"x": "transposed"}},
    ),
    case(
        "layout-offset",
        "inputs that start inside their storage, unaligned",
        "layout",
        options={"layouts": {"x": "offset", "weight": "strided"}},
    ),
]

OPERATOR = Operator(
    "layer_norm",
    CASES,
    natives=[partial(compose, rounded=False), partial(compose, rounded=True)],
    golden=FORMULA.golden,
    replacements={"torch": call_torch, "torch_float32": call_torch_float32},
    preferred={"cpu": "torch_float32", "simulated": "torch_float32"},
    wrong={
        "eps 1e-6 always": FORMULA.set(eps=1e-6),
        "eps ignored": FORMULA.set(eps=0.0),
        "eps outside the root": FORMULA.edit("torch.sqrt(centred.square().mean(dim=over, keepdim=True) + eps)", "(torch.sqrt(centred.square().mean(dim=over, keepdim=True)) + eps)"),
        "mean not subtracted": FORMULA.edit("x - x.mean(dim=over, keepdim=True)", "x + 0"),
        "sum for mean": FORMULA.edit("centred.square().mean(", "centred.square().sum("),
        "last dimension always": FORMULA.edit("tuple(range(-dims, 0))", "(-1,)"),
        "weight ignored": FORMULA.set(weight=None),
        "bias ignored": FORMULA.set(bias=None),
        "bias before the weight": FORMULA.edit("y + bias.double()", "y + bias.double() * (1 if weight is None else weight.double())"),
        "squares in float16": FORMULA.edit("centred.square()", "centred.half().square().float()"),
        "one-pass variance": FORMULA.edit("centred.square().mean(dim=over, keepdim=True)", "(x.square().mean(dim=over, keepdim=True) - x.mean(dim=over, keepdim=True).square()).clamp(min=0)"),
        "variance of whole tiles of 16": FORMULA.edit("centred.square()", "centred[..., : max(x.shape[-1] // 16 * 16, 1)].square()"),
        "variance without gradient": FORMULA.edit("centred.square()", "centred.detach().square()"),
        "weight without gradient": FORMULA.edit("weight.double()", "weight.double().detach()"),
    },
)  # fmt: skip
