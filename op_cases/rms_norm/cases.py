"""Cases for root-mean-square normalisation. Keywords: ``x`` (..., C), ``weight`` (C,) or None, ``eps``, ``offset``
(added to the weight: 1.0 in Gemma)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from precision_align.library.cases import OpCase, Operator
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("rms_norm")
Inputs = dict[str, Any]


def make(
    seed: int,
    *,
    shape: tuple[int, ...] = (4, 8, 64),
    gain: float = 1.0,
    mean: float = 0.0,
    weighted: bool = True,
    centre: float = 1.0,
    **attributes: Any,
) -> Inputs:
    """Normal ``x`` times ``gain`` plus ``mean``; weights around ``centre``."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator) * gain + mean
    weight = centre + 0.2 * torch.randn(shape[-1], generator=generator)
    return {"x": x, "weight": weight if weighted else None, **attributes}


def make_rows(seed: int, *, low: float, high: float, **sizes: Any) -> Inputs:
    """Rows of very different size, from ``low`` to ``high``."""
    inputs = make(seed, **sizes)
    rows = inputs["x"].shape[-2]
    inputs["x"] *= torch.logspace(math.log10(low), math.log10(high), rows)[:, None]
    return inputs


def make_zero_rows(seed: int, **sizes: Any) -> Inputs:
    inputs = make(seed, **sizes)
    inputs["x"][..., ::3, :] = 0.0
    return inputs


def make_outlier(seed: int, **sizes: Any) -> Inputs:
    """One channel 200 times the others, as in trained language models: its square carries the whole sum."""
    inputs = make(seed, **sizes)
    inputs["x"][..., 5] *= 200.0
    return inputs


def make_positive(seed: int, **sizes: Any) -> Inputs:
    """Squares of one size: a short accumulator stops growing long before 4096 of them are in."""
    inputs = make(seed, **sizes)
    inputs["x"] = 1.0 + inputs["x"].abs() / 8
    return inputs


def make_nonfinite(seed: int, **sizes: Any) -> Inputs:
    """A NaN, and an infinity, each spoil their own row only."""
    inputs = make(seed, **sizes)
    inputs["x"][0, 1, 3] = math.nan
    inputs["x"][0, 2, 4] = math.inf
    return inputs


def compose(
    x: torch.Tensor, weight: torch.Tensor | None = None, *, rounded: bool, eps: float = 1e-6, offset: float = 0.0
) -> torch.Tensor:
    """In float32, result in the dtype of ``x``; ``rounded``: the normalised values are rounded to the dtype before the
    weight comes (transformers' Llama), else there is one rounding at the end (apex, npu_rms_norm)."""
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    y = y.to(x.dtype).float() if rounded else y
    return (y if weight is None else y * (offset + weight.float())).to(x.dtype)


def call_torch(
    x: torch.Tensor, weight: torch.Tensor | None = None, *, eps: float = 1e-6, offset: float = 0.0
) -> torch.Tensor:
    """torch.nn.functional.rms_norm in float32 and back (what CUDA autocast does); the formula before PyTorch 2.4."""
    wide = x if x.dtype == torch.float64 else x.float()
    scale = None if weight is None else weight.to(wide.dtype) + offset
    if hasattr(torch.nn.functional, "rms_norm"):
        return torch.nn.functional.rms_norm(wide, x.shape[-1:], scale, eps).to(x.dtype)
    y = wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + eps)
    return (y if scale is None else y * scale).to(x.dtype)


def call_torch_npu(
    x: torch.Tensor, weight: torch.Tensor | None = None, *, eps: float = 1e-6, offset: float = 0.0
) -> torch.Tensor:
    """torch_npu.npu_rms_norm(x, gamma, epsilon)[0]: needs a weight, in float32 or the dtype of ``x``."""
    gamma = torch.ones(x.shape[-1], dtype=x.dtype, device=x.device) if weight is None else weight
    gamma = gamma if offset == 0.0 else gamma.float() + offset
    result: torch.Tensor = load_torch_npu().npu_rms_norm(x.contiguous(), gamma.contiguous(), eps)[0]
    return result.to(x.dtype)


def case(
    id_: str, why: str, *tags: str, build: Any = make, options: dict[str, Any] | None = None, **sizes: Any
) -> OpCase:
    return OpCase(id_, partial(build, **sizes), tags=tags, why=why, **{"wrt": ("x", "weight"), **(options or {})})


ONLY_X = {"wrt": ("x",)}

CASES = [
    case("plain", "mean subtracted, root forgotten, wrong axis", "basic"),
    case("no-weight", "no weight at all", "weight", weighted=False, options=ONLY_X),
    case(
        "weight-float32",
        "float32 weight with low-precision x: the result keeps the dtype of x",
        "dtype",
        options={"float32": ("weight",)},
    ),
    case("gemma-offset", "Gemma multiplies by 1 + weight", "weight", offset=1.0, centre=0.0),
    case("large-eps", "eps ignored", "eps", eps=0.1),
    case(
        "small-rows-eps-6",
        "rows where mean(x^2) is near 1e-6: eps 1e-5 instead of 1e-6, or eps outside the root",
        "eps",
        gain=1e-3,
        eps=1e-6,
    ),
    case("small-rows-eps-5", "rows where mean(x^2) is near 1e-5: eps 1e-6 instead of 1e-5", "eps", gain=3e-3, eps=1e-5),
    case("small-rows-eps-12", "eps 1e-12: must not be lost in a half-precision sum", "eps", gain=1e-4, eps=1e-12),
    case(
        "rows-of-all-sizes",
        "statistics of one row used for another",
        "rows",
        build=make_rows,
        low=1e-3,
        high=1e3,
        eps=1e-6,
    ),
    case(
        "zero-rows",
        "0 / sqrt(0 + eps) is 0; its gradient is weight / sqrt(eps)",
        "rows",
        build=make_zero_rows,
        eps=1e-3,
    ),
    case("mean-three", "the mean stays in: RMSNorm is not LayerNorm", "magnitude", mean=3.0),
    case("large", "x of 400: x^2 overflows float16 unless it is squared in float32", "magnitude", gain=400.0),
    case("outlier-channel", "one channel 200 times the others", "magnitude", build=make_outlier),
    case("tiny", "x around 2^-15: subnormal in float16, x^2 underflows there", "magnitude", gain=2.0**-15, eps=1e-6),
    case(
        "wide-4096",
        "4096 equal squares: a bf16 accumulator stops at 256",
        "accumulation",
        build=make_positive,
        shape=(2, 4, 4096),
    ),
    case("width-65", "one channel beyond a tile of 64", "tile", shape=(4, 8, 65)),
    case("width-20", "not a multiple of 16: 40 bytes, not 32-byte aligned", "tile", shape=(4, 16, 20)),
    case("width-1", "a single channel: plus or minus the weight", "size-1", shape=(4, 80, 1), eps=1e-2),
    case("one-row", "a single row", "size-1", shape=(1, 1, 300)),
    case("two-dimensions", "rows without a batch", "shape", shape=(37, 64)),
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
        "x starts inside its storage, unaligned",
        "layout",
        options={"layouts": {"x": "offset", "weight": "strided"}},
    ),
]

OPERATOR = Operator(
    "rms_norm",
    CASES,
    natives=[partial(compose, rounded=False), partial(compose, rounded=True)],
    golden=FORMULA.golden,
    replacements={"torch": call_torch, "torch_npu": call_torch_npu},
    preferred={"npu": "torch_npu"},
    wrong={
        "eps 1e-5 always": FORMULA.set(eps=1e-5),
        "eps 1e-6 always": FORMULA.set(eps=1e-6),
        "eps ignored": FORMULA.set(eps=0.0),
        "eps outside the root": FORMULA.edit("torch.sqrt(x.square().mean(dim=-1, keepdim=True) + eps)", "(torch.sqrt(x.square().mean(dim=-1, keepdim=True)) + eps)"),
        "root forgotten": FORMULA.edit("torch.sqrt(", "("),
        "sum for mean": FORMULA.edit(".mean(", ".sum("),
        "mean subtracted": FORMULA.edit("x = x.double()", "x = x.double() - x.double().mean(dim=-1, keepdim=True)"),
        "weight ignored": FORMULA.set(weight=None),
        "offset ignored": FORMULA.set(offset=0.0),
        "offset always": FORMULA.set(offset=1.0),
        "squares in float16": FORMULA.edit("x.square()", "x.half().square().float()"),
        "running sum in bfloat16": FORMULA.edit("x.square().mean(dim=-1, keepdim=True)", "x.square().bfloat16().cumsum(-1)[..., -1:].float() / x.shape[-1]"),
        "statistics of whole tiles of 16": FORMULA.edit("x.square()", "x[..., : max(x.shape[-1] // 16 * 16, 1)].square()"),
        "statistic without gradient": FORMULA.edit("torch.sqrt(x.square()", "torch.sqrt(x.detach().square()"),
        "weight without gradient": FORMULA.edit("weight.double()", "weight.double().detach()"),
    },
)  # fmt: skip
