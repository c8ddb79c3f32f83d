"""Cases for SwiGLU on a packed projection.

Keywords: ``x``, ``dim`` (halved), ``gate_first`` (gate | up, not up | gate).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from precision_align.library.cases import OpCase, Operator
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("swiglu")
Inputs = dict[str, Any]


def make(seed: int, *, shape: tuple[int, ...] = (4, 8, 64), gain: float = 1.0, **attributes: Any) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(*shape, generator=generator) * gain, **attributes}


def make_grid(seed: int, *, low: float, high: float, shape: tuple[int, int] = (8, 96), **attributes: Any) -> Inputs:
    """Gates on a grid from ``low`` to ``high``, random ups: where an approximated sigmoid differs most."""
    inputs = make(seed, shape=(shape[0], 2 * shape[1]), **attributes)
    gates = torch.linspace(low, high, shape[0] * shape[1]).reshape(shape)
    first = attributes.get("gate_first", True)
    inputs["x"][:, slice(0, shape[1]) if first else slice(shape[1], None)] = gates
    return inputs


def make_zero(seed: int, **sizes: Any) -> Inputs:
    """Gates zero: the result is zero and only the gate gets a gradient, up / 2."""
    inputs = make(seed, **sizes)
    inputs["x"][..., : inputs["x"].shape[-1] // 2] = 0.0
    return inputs


def make_nonfinite(seed: int, **sizes: Any) -> Inputs:
    """NaN in a gate, NaN in an up, infinity in a gate: one element each. (silu(-inf) is NaN by the formula, 0 in the
    limit: builds differ, so it is left out.)"""
    inputs = make(seed, **sizes)
    half = inputs["x"].shape[-1] // 2
    inputs["x"][0, 1, 3] = math.nan
    inputs["x"][0, 2, half + 4] = math.nan
    inputs["x"][0, 3, 5] = math.inf
    return inputs


def compose(x: torch.Tensor, *, rounded: bool, dim: int = -1, gate_first: bool = True) -> torch.Tensor:
    """In float32; ``rounded``: silu(gate) is rounded to the dtype before it meets up, as two operators do."""
    first, second = x.chunk(2, dim=dim)
    gate, up = (first, second) if gate_first else (second, first)
    active = torch.nn.functional.silu(gate.float())
    active = active.to(x.dtype).float() if rounded else active
    return (active * up.float()).to(x.dtype)


def call_torch(x: torch.Tensor, *, dim: int = -1, gate_first: bool = True) -> torch.Tensor:
    """silu(gate) * up with the framework's own operators in the dtype of ``x``; refuses an odd size."""
    if x.shape[dim] % 2:
        raise ValueError(f"dimension {dim} has the odd size {x.shape[dim]}")
    first, second = x.chunk(2, dim=dim)
    gate, up = (first, second) if gate_first else (second, first)
    return torch.nn.functional.silu(gate) * up


def call_torch_npu(x: torch.Tensor, *, dim: int = -1, gate_first: bool = True) -> torch.Tensor:
    """torch_npu.npu_swiglu(x, dim): gate first, contiguous, not empty; the rest is arranged here."""
    if x.shape[dim] % 2:
        raise ValueError(f"dimension {dim} has the odd size {x.shape[dim]}")
    if x.numel() == 0:
        return call_torch(x, dim=dim, gate_first=gate_first)
    packed = x if gate_first else torch.cat(tuple(reversed(x.chunk(2, dim=dim))), dim=dim)
    result: torch.Tensor = load_torch_npu().npu_swiglu(packed.contiguous(), dim=dim)
    return result


def case(
    id_: str, why: str, *tags: str, build: Any = make, options: dict[str, Any] | None = None, **sizes: Any
) -> OpCase:
    return OpCase(id_, partial(build, **sizes), tags=tags, why=why, **{"wrt": ("x",), **(options or {})})


CASES = [
    case("gate-first", "gate and up swapped; gelu for silu", "order"),
    case(
        "gate-second",
        "packing up | gate (some checkpoints): npu_swiglu takes gate | up only",
        "order",
        gate_first=False,
    ),
    case("dim-0", "halves along another dimension", "dim", dim=0, shape=(8, 5, 16)),
    case("dim-middle", "halves along the middle", "dim", dim=1, shape=(3, 8, 33)),
    case("grid-10", "gates from -10 to 10: hard or tabulated sigmoids", "grid", build=make_grid, low=-10.0, high=10.0),
    case(
        "grid-2",
        "gates from -2 to 2, where most values of a trained model lie",
        "grid",
        build=make_grid,
        low=-2.0,
        high=2.0,
    ),
    case(
        "grid-100",
        "gates from -100 to 100: exp(-gate) overflows in float32, no NaN may come of it",
        "grid",
        build=make_grid,
        low=-100.0,
        high=100.0,
    ),
    case("grid-second", "a grid behind up", "grid", "order", build=make_grid, low=-6.0, high=6.0, gate_first=False),
    case("large", "x of 60: the product reaches thousands, inside float16", "magnitude", gain=60.0),
    case(
        "overflowing",
        "gates and ups of 1000: infinity where float16 ends, and nowhere else",
        "magnitude",
        gain=400.0,
        options={"dtypes": ("float16",), "wrt": ()},
    ),
    case("tiny", "x around 2^-8: the product is subnormal in float16", "magnitude", gain=2.0**-8),
    case("zero-gate", "silu(0) = 0 and its slope is 1/2", "magnitude", build=make_zero),
    case("width-65", "halves of 65, one beyond a tile of 64", "tile", shape=(4, 8, 130)),
    case("width-3", "halves of 3: 6 bytes, nothing aligned", "tile", shape=(4, 40, 6)),
    case("width-1", "halves of one element", "size-1", shape=(4, 80, 2)),
    case("one-row", "a single row, no batch", "size-1", shape=(600,)),
    case(
        "rows-70000",
        "more rows than a 16-bit counter holds",
        "tile",
        shape=(70000, 4),
        options={"dtypes": ("bfloat16",), "wrt": ()},
    ),
    case("empty", "no row: an empty result", "empty", shape=(0, 4, 16)),
    case(
        "odd-size",
        "an odd size cannot hold two halves: it must be refused",
        "refusal",
        shape=(4, 8, 65),
        options={"wrt": (), "raises": True},
    ),
    case("nonfinite", "NaN and infinity stay in their element", "nonfinite", build=make_nonfinite, options={"wrt": ()}),
    case(
        "layout-transposed",
        "last two dimensions swapped in storage",
        "layout",
        options={"layouts": {"x": "transposed"}},
    ),
    case("layout-strided", "every other element of a wider buffer", "layout", options={"layouts": {"x": "strided"}}),
]

OPERATOR = Operator(
    "swiglu",
    CASES,
    natives=[partial(compose, rounded=False), partial(compose, rounded=True)],
    golden=FORMULA.golden,
    replacements={"torch": call_torch, "torch_npu": call_torch_npu},
    preferred={"npu": "torch_npu"},
    wrong={
        "gate and up swapped": FORMULA.edit("(first, second) if gate_first", "(second, first) if gate_first", "else (second, first)", "else (first, second)"),
        "gate_first ignored": FORMULA.set(gate_first=True),
        "last axis always": FORMULA.set(dim=-1),
        "sigmoid for silu": FORMULA.edit("gate * torch.sigmoid(gate) * up", "torch.sigmoid(gate) * up"),
        "gelu for silu": FORMULA.edit("gate * torch.sigmoid(gate) * up", "torch.nn.functional.gelu(gate) * up"),
        "hard sigmoid": FORMULA.edit("torch.sigmoid(gate)", "torch.nn.functional.hardsigmoid(gate)"),
        "exp overflows": FORMULA.edit("torch.sigmoid(gate)", "(torch.exp(gate) / (1 + torch.exp(gate)))"),
        "gate in bfloat16": FORMULA.edit("torch.sigmoid(gate)", "torch.sigmoid(gate).bfloat16().float()"),
        "odd size cut": FORMULA.edit("if size % 2:", "if False:", "torch.chunk(x.double(), 2, dim=dim)", "x.double().narrow(dim, 0, size // 2 * 2).chunk(2, dim)"),
        "interleaved halves": FORMULA.edit("torch.chunk(x.double(), 2, dim=dim)", "(x.double().unflatten(dim, (-1, 2)).movedim(-1 if dim < 0 else dim + 1, 0))"),
        "gate without gradient": FORMULA.edit("torch.sigmoid(gate)", "torch.sigmoid(gate.detach())"),
        "up without gradient": FORMULA.edit("torch.sigmoid(gate) * up", "torch.sigmoid(gate) * up.detach()"),
    },
)  # fmt: skip
