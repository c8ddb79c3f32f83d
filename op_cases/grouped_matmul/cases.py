"""Cases for grouped matmul. Keywords: ``x`` (T, K), ``weight`` (E, K, N), ``counts`` (E,), ``transposed``,
``cumulative``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, normal
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("grouped_matmul")
Tensor = torch.Tensor


def sized(counts: list[int], k: int = 16, n: int = 12) -> dict[str, object]:
    return {"x": normal(sum(counts), k), "weight": normal(len(counts), k, n), "counts": fixed(counts, torch.int64)}


family = Family(wrt=("x", "weight"), **sized([7, 3, 12, 5]))


def call_torch(
    x: Tensor, weight: Tensor, counts: Tensor, *, transposed: bool = False, cumulative: bool = False
) -> Tensor:
    """One matmul a group, in float32 and back."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    sizes = torch.diff(counts, prepend=counts.new_zeros(1)) if cumulative else counts
    parts = x.to(wide).split(sizes.tolist())
    matrices = weight.to(wide).transpose(1, 2) if transposed else weight.to(wide)
    return torch.cat([part @ matrix for part, matrix in zip(parts, matrices)]).to(x.dtype)


def call_torch_npu(
    x: Tensor, weight: Tensor, counts: Tensor, *, transposed: bool = False, cumulative: bool = False
) -> Tensor:
    """torch_npu.npu_grouped_matmul: group_list_type 1 is counts, 0 is ends; no gradient of its own."""
    matrices = weight.transpose(1, 2) if transposed else weight
    return load_torch_npu().npu_grouped_matmul(  # type: ignore[no-any-return]
        [x], [matrices], group_list=counts, split_item=2, group_type=0, group_list_type=0 if cumulative else 1
    )[0]


CASES = [
    family("plain", "the weights of another expert", "basic", dtypes=FLOATS),
    family(
        "transposed", "weights (N, K)", "layout-of-weights", weight=normal(4, 12, 16), transposed=True, dtypes=FLOATS
    ),
    family(
        "square-transposed",
        "a transposition that shapes cannot show",
        "layout-of-weights",
        weight=normal(4, 16, 16),
        transposed=True,
    ),
    family("ends", "counts taken for ends", "ends", counts=fixed([7, 10, 22, 27]), cumulative=True),
    family("empty-expert", "an expert without tokens", "empty-rows", **sized([7, 0, 12, 0])),
    family("first-expert-empty", "the first one without tokens", "empty-rows", **sized([0, 5, 9])),
    family("one-expert", "a plain product", "size-1", **sized([20])),
    family("one-token-each", "one row an expert", "size-1", **sized([1] * 8)),
    family("inner-65", "K one beyond a tile of 64", "tile", **sized([5, 9], k=65)),
    family("group-65", "65 rows in a group", "tile", **sized([65, 63], k=8)),
    family("inner-2048", "a short accumulator", "accumulation", **sized([3, 2], k=2048, n=5)),
    family(
        "large", "products beyond float16", "magnitude", x=normal(27, 16, gain=300), weight=normal(4, 16, 12, gain=30)
    ),
    family("nan", "NaN spoils its row only", "nonfinite", wrt=(), x=normal(27, 16).at((9, 4), math.nan)),
    *family.layouts("x", "weight"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "first expert for all": FORMULA.edit("ends, right=True)", "ends * 0 + x.shape[0], right=True)"),
        "experts reversed": FORMULA.change(weight=lambda weight: weight.flip(0)),
        "boundary to the left": FORMULA.edit("ends, right=True", "ends, right=False"),
        "counts are ends": FORMULA.edit("counts if cumulative else torch.cumsum(counts, dim=0)", "counts.clamp(min=0).cummax(0).values.index_fill(0, torch.tensor([len(counts) - 1]), x.shape[0])"),
        "ends are counts": FORMULA.edit("counts if cumulative else torch.cumsum(counts, dim=0)", "torch.cumsum(counts, dim=0)"),
        "transposed ignored": FORMULA.edit("if transposed", "if transposed and chosen.shape[-1] != chosen.shape[-2] or chosen.shape[-1] == x.shape[1] != chosen.shape[-2]"),
        "transposed always": FORMULA.edit("if transposed", "if transposed or chosen.shape[-1] == chosen.shape[-2]", "chosen = weight.double()[expert]", "chosen = weight.double()[expert]\n    chosen = chosen if transposed else chosen.flip(-1)"),
        "empty experts skipped": FORMULA.edit("chosen = weight.double()[expert]", "chosen = weight.double()[torch.unique(expert, return_inverse=True)[1]]"),
        "product in bfloat16": FORMULA.edit("x.double(), chosen)", "x.bfloat16().double(), chosen)"),
        "inner tail of 16 dropped": FORMULA.edit('"tk,tkn->tn", x.double()', '"tk,tkn->tn", x.double() * (torch.arange(x.shape[1]) < max(x.shape[1] // 16 * 16, 1))'),
        "running sum in bfloat16": FORMULA.edit('torch.einsum("tk,tkn->tn", x.double(), chosen)', "(x.double()[..., None] * chosen).bfloat16().cumsum(1)[:, -1].float()"),
        "last row of a group with the next": FORMULA.edit("torch.arange(x.shape[0], device=x.device)", "torch.arange(1, x.shape[0] + 1, device=x.device).clamp(max=x.shape[0] - 1)"),
        "weights without gradient": FORMULA.edit("weight.double()", "weight.double().detach()"),
    },
)  # fmt: skip
