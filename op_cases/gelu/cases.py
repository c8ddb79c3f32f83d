"""Cases for GELU. Keywords: ``x``, ``approximate`` ("none": erf, "tanh")."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS, OpCase, Search
from precision_align.library.drawing import Family, normal, uniform
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("gelu")
family = Family(x=normal(6, 96), wrt=("x",))


def call_torch(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """torch.nn.functional.gelu."""
    return torch.nn.functional.gelu(x, approximate=approximate)


def call_torch_npu(x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    """torch_npu.npu_gelu, which obeys ``approximate``; aten::gelu on the NPU takes the tanh form whatever is asked."""
    return load_torch_npu().npu_gelu(x, approximate=approximate)  # type: ignore[no-any-return]


def make_worst(size: int, gain: float) -> OpCase:
    return family("searched", "the worst of a size and a spread", x=normal(size, gain=gain))


# at x = -2.7 the two forms differ by 4.7e-4: beyond bfloat16's rounding of the value there
APART = uniform(6, 96, low=-3.2, high=-2.2)
CASES = [
    family("plain", "the tanh form where erf is asked", "basic", dtypes=FLOATS),
    family("tanh", "the erf form where tanh is asked", "basic", approximate="tanh", dtypes=FLOATS),
    family("forms-apart", "the tanh form: 4.7e-4 away near -2.7", "form", x=APART),
    family("forms-apart-tanh", "the erf form: 4.7e-4 away near -2.7", "form", x=APART, approximate="tanh"),
    family("negative-tail", "the tanh form has other digits here", "magnitude", x=uniform(4, 65, low=-8, high=-4)),
    family("large", "x^3 overflows float16 above 40", "magnitude", x=normal(4, 64, gain=200), approximate="tanh",
           dtypes=FLOATS),
    family("small", "near zero it is x / 2", "magnitude", x=normal(5, 64, gain=1e-3)),
    family("subnormal", "below the smallest normal float16", "magnitude", x=normal(5, 64, gain=1e-6),
           dtypes=("float16",)),
    family("zero-row", "0 gives 0, its gradient is one half", "rows", x=normal(6, 64).at(2, 0.0)),
    family("size-1", "a single value", "size-1", x=normal(1)),
    family("scalar", "no dimension", "0-d", x=normal()),
    family("empty", "nothing", "empty", x=normal(0, 5)),
    family("nonfinite", "NaN stays NaN, inf stays inf, -inf gives NaN or 0", "nonfinite", wrt=(),
           x=normal(4, 33).at((1, 3), math.nan).at((2, 5), math.inf)),
    family("odd-size", "one beyond a vector of 64", "tile", x=normal(3, 65)),
    *family.layouts("x"),
]  # fmt: skip

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "tanh always": FORMULA.set(approximate="tanh"),
        "erf always": FORMULA.set(approximate="none"),
        "erf of x": FORMULA.edit("-math.sqrt(0.5)", "-1.0"),
        "half forgotten": FORMULA.edit("0.5 * x *", "x *"),
        "quick form": FORMULA.edit("0.5 * x * torch.erfc(x * -math.sqrt(0.5))", "x * torch.sigmoid(1.702 * x)"),
        "cubic term forgotten": FORMULA.edit("(x + 0.044715 * x**3)", "x"),
        "cubic coefficient 0.0447": FORMULA.edit("0.044715", "0.0447"),
        "cube in float16": FORMULA.edit("x**3", "(x.half() ** 3).float()"),
        "square for cube": FORMULA.edit("x**3", "x**2"),
        "sqrt(pi / 2)": FORMULA.edit("2 / math.pi", "math.pi / 2"),
        "ReLU": FORMULA.after(torch.relu),
        "zero below -5": FORMULA.change(x=lambda x: x.masked_fill(x < -5, 0)),
        "gate without gradient": FORMULA.edit("torch.erfc(x ", "torch.erfc(x.detach() "),
    },
    natives=[call_torch],  # 1 + erf, which cancels below -4, is what PyTorch computes on every device
    search=Search(make_worst, {"size": (1, 200), "gain": (1e-3, 1e2)}),
)  # fmt: skip
