"""Cases for rotary position embedding: pairing, partial heads, table forms, and the sizes where kernels err.

Keywords: ``x`` (B, N, S, D), ``cos`` and ``sin`` (S, R) or broadcastable, ``interleaved`` (pairs (2i, 2i + 1), not
(i, i + R/2)), ``compact`` (tables with one column a pair).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from precision_align.library.cases import OpCase, Operator
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("rope")
Inputs = dict[str, Any]
TABLES = ("cos", "sin")


def make(
    seed: int,
    *,
    batch: int = 2,
    heads: int = 2,
    length: int = 20,
    size: int = 32,
    rotary: int | None = None,
    start: int = 0,
    gain: float = 1.0,
    scaling: float = 1.0,
    interleaved: bool = False,
    compact: bool = False,
) -> Inputs:
    """Normal ``x`` times ``gain``; tables of the usual frequencies 10000^(-2i/R) from position ``start`` on, times
    ``scaling`` (YaRN's factor)."""
    generator = torch.Generator().manual_seed(seed)
    width = size if rotary is None else rotary
    frequencies = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(start, start + length, dtype=torch.float64)[:, None] * frequencies
    if not compact:
        angles = angles.repeat_interleave(2, dim=-1) if interleaved else torch.cat([angles, angles], dim=-1)
    return {
        "x": torch.randn(batch, heads, length, size, generator=generator) * gain,
        "cos": (angles.cos() * scaling).float(),
        "sin": (angles.sin() * scaling).float(),
        "interleaved": interleaved,
        "compact": compact,
    }


def make_cancelling(seed: int, **sizes: Any) -> Inputs:
    """Pairs whose two products cancel: x cos = -rotate(x) sin, so the result is nothing but rounding."""
    inputs = make(seed, **sizes)
    half = inputs["x"].shape[-1] // 2
    cos, sin = inputs["cos"][:, :half], inputs["sin"][:, :half]
    radius = 1 + inputs["x"][..., :half].abs()
    inputs["x"] = torch.cat([radius * sin, radius * cos], dim=-1)
    return inputs


def make_batched_tables(seed: int, **sizes: Any) -> Inputs:
    """Tables of shape (B, 1, S, R), other positions for every sequence of the batch."""
    inputs = make(seed, **sizes)
    for name in TABLES:
        table = inputs[name]
        inputs[name] = torch.stack([table, table.flip(0)])[:, None]
    return inputs


def make_zero(seed: int, **sizes: Any) -> Inputs:
    """Every third position is zero and must stay so."""
    inputs = make(seed, **sizes)
    inputs["x"][:, :, ::3] = 0.0
    return inputs


def make_nonfinite(seed: int, **sizes: Any) -> Inputs:
    """NaN and infinity reach their own pair and nothing else. Angles far from 0, where infinity times sin 0 is NaN."""
    inputs = make(seed, **sizes)
    inputs["x"][0, 0, 3, 1] = math.nan
    inputs["x"][0, 0, 7, 2] = math.inf
    return inputs


def compose(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *,
    rounded: bool,
    interleaved: bool = False,
    compact: bool = False,
) -> torch.Tensor:
    """Products and sum in float32; ``rounded``: each product, and its gradient, is rounded to the dtype of ``x``, as
    x * cos + rotate(x) * sin in that dtype is."""
    middle = x.dtype if rounded else torch.float32
    if compact:
        cos, sin = spread(cos, interleaved), spread(sin, interleaved)
    width = cos.shape[-1]
    turned, rest = x[..., :width].to(middle), x[..., width:]
    direct, crossed = (turned * cos).to(middle), (rotate(turned, interleaved) * sin).to(middle)
    return torch.cat([(direct + crossed).to(x.dtype), rest], dim=-1)


def rotate(x: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """(a, b) -> (-b, a) in every pair."""
    if interleaved:
        pairs = x.reshape(*x.shape[:-1], x.shape[-1] // 2, 2)
        return torch.stack([-pairs[..., 1], pairs[..., 0]], dim=-1).flatten(-2)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def spread(table: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """One column an element from one column a pair."""
    return table.repeat_interleave(2, dim=-1) if interleaved else torch.cat([table, table], dim=-1)


def call_torch(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool = False, compact: bool = False
) -> torch.Tensor:
    """The formula in the framework's own operators, in the dtype of ``x``, as transformers writes it."""
    if compact:
        cos, sin = spread(cos, interleaved), spread(sin, interleaved)
    width = cos.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    y = (turned * cos + rotate(turned, interleaved) * sin).to(x.dtype)
    return torch.cat([y, rest], dim=-1)


def call_torch_npu(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, interleaved: bool = False, compact: bool = False
) -> torch.Tensor:
    """torch_npu.npu_rotary_mul: whole-width tables in the dtype of ``x``; what is not rotated is passed on here."""
    if compact:
        cos, sin = spread(cos, interleaved), spread(sin, interleaved)
    width = cos.shape[-1]
    tables = [table.to(x.dtype).reshape((1,) * (4 - table.dim()) + table.shape).contiguous() for table in (cos, sin)]
    mode = "interleave" if interleaved else "half"
    y = load_torch_npu().npu_rotary_mul(x[..., :width].contiguous(), *tables, rotary_mode=mode)
    return torch.cat([y, x[..., width:]], dim=-1)


def case(
    id_: str, why: str, *tags: str, build: Any = make, options: dict[str, Any] | None = None, **sizes: Any
) -> OpCase:
    return OpCase(id_, partial(build, **sizes), tags=tags, why=why, **{"wrt": ("x",), **(options or {})})


CASES = [
    case("half", "interleaved pairs where half-split ones are meant, sign of the turn, cos and sin swapped", "pairing"),
    case("interleaved", "half-split pairs where interleaved ones are meant", "pairing", interleaved=True),
    case("half-compact", "flash_attn's tables of D / 2 columns, spread as [c, c]", "pairing", compact=True),
    case(
        "interleaved-compact",
        "flash_attn's tables of D / 2 columns, spread as repeat_interleave",
        "pairing",
        interleaved=True,
        compact=True,
    ),
    case(
        "partial-half", "half of what is rotated, not half of the head; the rest passes unchanged", "partial", rotary=12
    ),
    case("partial-interleaved", "interleaved, and the rest passes unchanged", "partial", rotary=12, interleaved=True),
    case("partial-compact", "R must come from the table, 2 columns an entry", "partial", rotary=16, compact=True),
    case(
        "tables-float32",
        "float32 tables with low-precision x: rounding them to x's dtype shifts angles",
        "dtype",
        options={"float32": TABLES},
    ),
    case(
        "tables-gradient",
        "gradients of cos and sin are sums over batch and heads",
        "gradient",
        options={"wrt": ("x", *TABLES)},
    ),
    case("tables-batched", "other positions for every sequence of the batch", "broadcast", build=make_batched_tables),
    case("start-1000", "positions that do not begin at 0", "positions", start=1000),
    case("far-positions", "positions beyond 2^16: angles made in low precision are wrong", "positions", start=70000),
    case(
        "scaled-tables",
        "YaRN multiplies the tables by more than 1; npu_rotary_mul asks for values in [-1, 1]",
        "range",
        scaling=1.3,
    ),
    case("length-65", "one position beyond a tile of 64", "tile", length=65),
    case("size-2", "a single pair", "size-1", size=2),
    case("size-6", "a head of 12 bytes in bf16: not 32-byte aligned", "tile", size=6, length=40),
    case("size-72", "head size over 64, not a multiple of 16", "tile", size=72),
    case("one-position", "decoding: a sequence of one", "size-1", length=1, start=17),
    case("one-of-everything", "one batch, one head", "size-1", batch=1, heads=1, length=1, size=4, start=3),
    case("empty", "a sequence without a position", "empty", length=0),
    case("zeros", "zero stays zero", "magnitude", build=make_zero),
    case(
        "cancelling",
        "the two products cancel: what is left is rounding, and must not be more",
        "magnitude",
        build=make_cancelling,
        start=1,
    ),
    case("large", "values of 10000: products stay in float16's range", "magnitude", gain=2500.0),
    case("tiny", "values around 2^-15: subnormal in float16", "magnitude", gain=2.0**-15),
    case(
        "nonfinite",
        "NaN and infinity stay in their pair",
        "nonfinite",
        build=make_nonfinite,
        start=1,
        options={"wrt": ()},
    ),
    case(
        "layout-transposed",
        "last two dimensions swapped in storage",
        "layout",
        options={"layouts": {"x": "transposed"}},
    ),
    case(
        "layout-strided-tables",
        "tables cut out of a wider cache",
        "layout",
        options={"layouts": dict.fromkeys(TABLES, "strided")},
    ),
]

OPERATOR = Operator(
    "rope",
    CASES,
    natives=[partial(compose, rounded=False), partial(compose, rounded=True)],
    golden=FORMULA.golden,
    replacements={"torch": call_torch, "torch_npu": call_torch_npu},
    preferred={"npu": "torch_npu"},
    wrong={
        "interleaved ignored": FORMULA.set(interleaved=False),
        "interleaved always": FORMULA.set(interleaved=True),
        "backwards": FORMULA.edit("turned * cos + rotate(turned, interleaved) * sin", "turned * cos - rotate(turned, interleaved) * sin"),
        "sine and cosine swapped": FORMULA.edit("turned * cos + rotate(turned, interleaved) * sin", "turned * sin + rotate(turned, interleaved) * cos"),
        "minus forgotten, halves": FORMULA.edit("[-x[..., half:], x[..., :half]]", "[x[..., half:], x[..., :half]]"),
        "minus forgotten, pairs": FORMULA.edit("[-x[..., 1::2], x[..., 0::2]]", "[x[..., 1::2], x[..., 0::2]]"),
        "rest dropped to zero": FORMULA.edit("* sin, rest]", "* sin, 0 * rest]"),
        "rest turned": FORMULA.edit("* sin, rest]", "* sin, -rest]"),
        "table repeated the other way": FORMULA.edit("if interleaved else torch.cat([table, table], dim=-1)", "if not interleaved else torch.cat([table, table], dim=-1)"),
        "table in bfloat16": FORMULA.change(cos=lambda t: t.bfloat16().to(t.dtype)),
        "positions one off": FORMULA.change(cos=lambda t: t.roll(1, -2) if t.dim() > 1 else t, sin=lambda t: t.roll(1, -2) if t.dim() > 1 else t),
        "sine without gradient": FORMULA.edit("rotate(turned, interleaved) * sin", "rotate(turned.detach(), interleaved) * sin"),
    },
)  # fmt: skip
