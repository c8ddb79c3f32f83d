"""Cases for GEGLU. Keywords: ``x`` (halves along ``dim``), ``dim``, ``approximate``, ``gate_first``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, normal, uniform
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("geglu")
family = Family(x=normal(5, 7, 64), wrt=("x",))


def call_torch(x: torch.Tensor, *, dim: int = -1, approximate: str = "none", gate_first: bool = False) -> torch.Tensor:
    """torch's gelu of one half times the other, in float32 and back."""
    wide = x if x.dtype == torch.float64 else x.float()
    first, second = wide.chunk(2, dim)
    if x.shape[dim] % 2:
        raise ValueError("odd size")
    gate, up = (first, second) if gate_first else (second, first)
    return (torch.nn.functional.gelu(gate, approximate=approximate) * up).to(x.dtype)


def call_torch_npu(
    x: torch.Tensor, *, dim: int = -1, approximate: str = "none", gate_first: bool = False
) -> torch.Tensor:
    """torch_npu.npu_geglu(approximate=1 is tanh and the default, 0 is erf)[0]."""
    code = 1 if approximate == "tanh" else 0
    return load_torch_npu().npu_geglu(x, dim, code, gate_first)[0]  # type: ignore[no-any-return]


CASES = [
    family("plain", "gate and up swapped, tanh form", "basic", dtypes=FLOATS),
    family("tanh", "erf form where tanh is asked", "basic", approximate="tanh", dtypes=FLOATS),
    family("gate-first", "the halves the other way round", "order", gate_first=True),
    family("first-dimension", "split along the last axis always", "axis", x=normal(6, 64), dim=0),
    family("forms-apart", "4.7e-4 between the forms near -2.7", "form", x=uniform(4, 66, low=-3.2, high=-2.2)),
    family("negative-tail", "the tanh form has other digits here", "magnitude", x=uniform(4, 64, low=-7, high=-4)),
    family("large", "gate x up beyond float16", "magnitude", x=normal(4, 64, gain=300), dtypes=("float16", "float32")),
    family("half-33", "halves of an odd size", "tile", x=normal(4, 66)),
    family("half-1", "halves of one element", "size-1", x=normal(40, 2)),
    family("odd-size", "an odd size must be refused", "refusal", x=normal(3, 5), raises=True, dtypes=("float32",)),
    family("empty", "no row", "empty", x=normal(0, 8)),
    family("nan", "a NaN spoils one value", "nonfinite", wrt=(), x=normal(4, 64).at((1, 40), math.nan)),
    *family.layouts("x"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "gate and up swapped": FORMULA.edit("if gate_first", "if not gate_first"),
        "gate_first ignored": FORMULA.set(gate_first=False),
        "tanh always": FORMULA.set(approximate="tanh"),
        "erf always": FORMULA.set(approximate="none"),
        "last axis always": FORMULA.set(dim=-1),
        "interleaved halves": FORMULA.edit("torch.chunk(x.double(), 2, dim=dim)", "(x.double().unflatten(dim, (-1, 2)).movedim(-1 if dim < 0 else dim + 1, 0))"),
        "silu": FORMULA.edit("(0.5 * gate * torch.erfc(gate * -math.sqrt(0.5)))", "torch.nn.functional.silu(gate)"),
        "gate rounded to bfloat16": FORMULA.edit("0.5 * gate", "0.5 * gate.bfloat16().float()"),
        "odd size cut": FORMULA.edit("if x.shape[dim] % 2:", "if False:", "torch.chunk(x.double(), 2, dim=dim)",
                                     "x.double().narrow(dim, 0, x.shape[dim] // 2 * 2).chunk(2, dim)"),
        "cubic term forgotten": FORMULA.edit("(gate + 0.044715 * gate**3)", "gate"),
        "up without gradient": FORMULA.edit("return up * (0.5", "return up.detach() * (0.5"),
    },
    natives=[call_torch],  # 1 + erf, which cancels below -4, is what PyTorch computes on every device
)  # fmt: skip
