"""Cases for MoE routing. Keywords: ``logits`` (T, E), ``bias`` (E,), ``k``, ``groups``, ``best_groups``, ``scoring``,
``normalise``, ``factor``. Results: weights (T, k), experts (T, k) in int64, best first; equal scores: the lower first."""

from __future__ import annotations

from typing import Any, Optional

import torch

from precision_align.library.drawing import Family, levels, normal
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("moe_gating", keep=(0,))
Tensor = torch.Tensor
family = Family(logits=normal(20, 16), k=2, wrt=("logits",), dtypes=("float32",), float32=("bias",))


def call_torch(
    logits: Tensor, bias: Optional[Tensor] = None, *, k: int, groups: int = 1, best_groups: int = 1,
    scoring: str = "softmax", normalise: bool = False, factor: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """softmax or sigmoid, one maximum after the other (the first of equals), gather; float32 inside and in the weights."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    scores = torch.softmax(wide, dim=-1) if scoring == "softmax" else 1 / (1 + torch.exp(-wide))
    left = (scores if bias is None else scores + bias).detach().clone()
    if groups > 1:
        size = left.shape[1] // groups
        merit = torch.stack([part.topk(1 if bias is None else 2).values.sum(-1) for part in left.split(size, dim=1)], 1)
        for _ in range(groups - best_groups):  # the worst group goes, of equals the last
            worst = groups - 1 - merit.flip(1).argmin(dim=1)
            merit.scatter_(1, worst[:, None], torch.inf)
            left.view(-1, groups, size)[torch.arange(len(left)), worst] = -torch.inf
    chosen = []
    for _ in range(k):
        chosen.append(left.argmax(dim=-1))
        left.scatter_(1, chosen[-1][:, None], -torch.inf)
    experts = torch.stack(chosen, dim=1)
    weights = torch.gather(scores, 1, experts)
    return torch.nn.functional.normalize(weights, p=1, dim=-1) * factor if normalise else weights * factor, experts


def call_torch_npu(logits: Tensor, bias: Optional[Tensor] = None, *, k: int, **options: Any) -> tuple[Tensor, Tensor]:
    """torch_npu.npu_moe_gating_top_k_softmax(x, None, k)[:2], which does not normalise; npu_moe_gating_top_k for groups."""
    if bias is None and options.get("scoring", "softmax") == "softmax" and options.get("groups", 1) == 1:
        weights, experts, _ = load_torch_npu().npu_moe_gating_top_k_softmax(logits, None, k)
        weights = weights / weights.sum(-1, keepdim=True) if options.get("normalise") else weights
        return weights.float() * options.get("factor", 1.0), experts.long()
    weights, experts, _ = load_torch_npu().npu_moe_gating_top_k(
        logits, k, bias=bias, k_group=options.get("best_groups", 1), group_count=options.get("groups", 1),
        group_select_mode=0 if bias is None else 1, renorm=0, norm_type=int(options.get("scoring") == "sigmoid"),
        routed_scaling_factor=options.get("factor", 1.0),
    )  # fmt: skip
    return weights.float(), experts.long()


V3 = {
    "scoring": "sigmoid",
    "bias": normal(16, gain=0.3, mean=-1.0),
    "groups": 4,
    "best_groups": 2,
    "k": 4,
    "normalise": True,
    "factor": 2.5,
}
CASES = [
    family("plain", "weights of the neighbour", "basic", dtypes=("float32", "bfloat16")),
    family("normalised", "weights that do not sum to 1", "normalise", normalise=True, dtypes=("float32", "bfloat16")),
    family("top-1", "normalised over one: always 1", "size-1", k=1),
    family("top-all", "k is the number of experts: sorted", "edge", k=16),
    family("sigmoid", "softmax for sigmoid", "scoring", scoring="sigmoid"),
    family("bias", "the bias in the weights, not in the choice only", "bias", scoring="sigmoid", bias=normal(16), wrt=("logits",)),
    family("groups", "experts of groups that lost", "groups", groups=4, best_groups=2, k=3),
    family("deepseek-v3", "groups by the best instead of the two best", "groups", wrt=("logits",), **V3),
    family("factor", "the scaling factor forgotten", "factor", factor=2.5),
    family("ties", "equal scores: the lower expert first", "ties", logits=levels(20, 16, low=0, high=2), exact=True, k=4),
    family("all-equal", "all scores equal: experts 0 .. k - 1", "ties", logits=levels(9, 16, low=1, high=1), exact=True, k=3, wrt=()),
    family("tied-groups", "equal groups: the lower first", "ties", logits=levels(20, 16, low=0, high=1), exact=True, groups=4, best_groups=2, k=3),
    family("large", "exp overflows without the maximum", "magnitude", logits=normal(20, 16, gain=200.0)),
    family("experts-256", "many experts", "tile", logits=normal(9, 256), k=8),
    family("experts-65", "one beyond a tile of 64", "tile", logits=normal(9, 65), k=6),
    family("one-token", "a single token", "size-1", logits=normal(1, 16)),
    family("empty", "no token", "empty", logits=normal(0, 16), wrt=()),
    *family.layouts("logits"),
]  # fmt: skip

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "smallest": FORMULA.edit("experts = torch.sort(choice, dim=-1, descending=True", "experts = torch.sort(choice, dim=-1, descending=False"),
        "of equals the higher": FORMULA.edit("experts = torch.sort(choice, dim=-1, descending=True, stable=True).indices[:, :k]", "experts = choice.shape[1] - 1 - torch.sort(choice.flip(1), dim=-1, descending=True, stable=True).indices[:, :k]"),
        "of equal groups the higher": FORMULA.edit("best = torch.sort(merit, dim=-1, descending=True, stable=True).indices[:, :best_groups]", "best = merit.shape[1] - 1 - torch.sort(merit.flip(1), dim=-1, descending=True, stable=True).indices[:, :best_groups]"),
        "experts by number": FORMULA.edit("weights = scores.gather(1, experts)", "experts = experts.sort(-1).values\n    weights = scores.gather(1, experts)"),
        "softmax after the choice": FORMULA.edit("weights = scores.gather(1, experts)", "weights = torch.softmax(x.gather(1, experts), -1)"),
        "normalise ignored": FORMULA.set(normalise=False),
        "normalise always": FORMULA.set(normalise=True),
        "softmax always": FORMULA.set(scoring="softmax"),
        "bias in the weights": FORMULA.edit("weights = scores.gather(1, experts)", "weights = choice.gather(1, experts) if bias is not None else scores.gather(1, experts)"),
        "bias ignored": FORMULA.set(bias=None),
        "groups ignored": FORMULA.set(groups=1),
        "one group too many": FORMULA.edit("indices[:, :best_groups]", "indices[:, : best_groups + 1]"),
        "group merit by the best always": FORMULA.edit("parts.amax(dim=-1) if bias is None else parts.sort(dim=-1, descending=True).values[..., :2].sum(dim=-1)", "parts.amax(dim=-1)"),
        "closed groups have score 0": FORMULA.edit("-torch.inf)", "0.0)"),
        "factor ignored": FORMULA.set(factor=1.0),
        "factor before normalising": FORMULA.edit("weights = weights / weights.sum", "weights = weights * factor / (weights * factor).sum", "weights * factor, experts", "weights * (1.0 if normalise else factor), experts"),
        "maximum not subtracted": FORMULA.edit("x - x.detach().amax(dim=-1, keepdim=True)", "x"),
        "experts of the first 64": FORMULA.edit("experts = torch.sort(choice,", "experts = torch.sort(choice[:, :64],"),
        "scores in bfloat16": FORMULA.edit("powers / powers.sum(dim=-1, keepdim=True)", "(powers / powers.sum(dim=-1, keepdim=True)).bfloat16().float()"),
        "gradient through the choice only": FORMULA.edit("powers.sum(dim=-1, keepdim=True)", "powers.sum(dim=-1, keepdim=True).detach()"),
    },
)  # fmt: skip
