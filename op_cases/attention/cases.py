"""Cases for scaled dot-product attention: the choices in which implementations differ, the sizes where kernels err.

Keywords: ``query`` (B, Nq, Sq, D), ``key`` (B, Nkv, Skv, D), ``value`` (B, Nkv, Skv, Dv), ``mask`` (boolean, True =
takes part, or added; or None), ``causal`` ("none", "top-left", "bottom-right"), ``scale`` (None: 1 / sqrt(D)).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Optional

import torch

from precision_align.library.cases import OpCase, Operator
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("attention")
Tensor = torch.Tensor
Mask = Optional[Tensor]
Scale = Optional[float]
Inputs = dict[str, Any]
QKV = ("query", "key", "value")


def make(
    seed: int,
    *,
    batch: int = 1,
    heads: int = 2,
    key_heads: int | None = None,
    queries: int = 32,
    keys: int | None = None,
    size: int = 16,
    value_size: int | None = None,
    gain: float = 1.0,
    mask: Any = None,
    **attributes: Any,
) -> Inputs:
    """Normal q, k, v; ``gain`` multiplies q; ``mask``: (generator, queries, keys) -> mask."""
    generator = torch.Generator().manual_seed(seed)
    keys = queries if keys is None else keys
    key_heads = heads if key_heads is None else key_heads

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "query": normal(batch, heads, queries, size) * gain,
        "key": normal(batch, key_heads, keys, size),
        "value": normal(batch, key_heads, keys, size if value_size is None else value_size),
        "mask": None if mask is None else mask(generator, queries, keys),
        **attributes,
    }


def keep_at_random(generator: torch.Generator, queries: int, keys: int) -> Tensor:
    """A third is masked out; every query sees the first key."""
    mask = torch.rand(queries, keys, generator=generator) > 1 / 3
    mask[:, 0] = True
    return mask


def keep_padding(generator: torch.Generator, queries: int, keys: int) -> Tensor:
    """(1, 1, 1, keys): the last quarter of the keys is padding."""
    return (torch.arange(keys) < keys - keys // 4)[None, None, None, :]


def keep_but_some_rows(generator: torch.Generator, queries: int, keys: int) -> Tensor:
    """Every fifth query sees nothing at all."""
    mask = keep_at_random(generator, queries, keys)
    mask[::5] = False
    return mask


def add_bias(generator: torch.Generator, queries: int, keys: int) -> Tensor:
    return torch.randn(1, 1, queries, keys, generator=generator)


def add_minus_infinity(generator: torch.Generator, queries: int, keys: int) -> Tensor:
    mask = torch.zeros(queries, keys)
    return mask.masked_fill(~keep_at_random(generator, queries, keys), -math.inf)


def add_lowest(generator: torch.Generator, queries: int, keys: int) -> Tensor:
    """What transformers builds: a huge finite number, -65504, that must not overflow when it is added."""
    return torch.zeros(queries, keys).masked_fill(~keep_at_random(generator, queries, keys), -65504.0)


def make_alibi(seed: int, **sizes: Any) -> Inputs:
    """Slopes 2^-1, 2^-2, ... by head, times the distance."""
    inputs = make(seed, **sizes)
    heads, queries, keys = inputs["query"].shape[1], inputs["query"].shape[2], inputs["key"].shape[2]
    distance = (torch.arange(keys)[None, :] - torch.arange(queries)[:, None]).abs().float()
    inputs["mask"] = -(2.0 ** -torch.arange(1.0, heads + 1))[None, :, None, None] * distance
    return inputs


def make_drowned(seed: int, **sizes: Any) -> Inputs:
    """One key gets nearly all the weight: scores of about 200, where exp without subtracting the maximum overflows."""
    inputs = make(seed, **sizes)
    inputs["query"][...] = inputs["query"].abs() + 2
    inputs["key"][..., 3, :] = 12.0
    return inputs


def make_flat(seed: int, **sizes: Any) -> Inputs:
    """Equal scores: 1 / keys each, so that what a short accumulator loses adds up."""
    inputs = make(seed, **sizes)
    inputs["query"].mul_(1e-3)
    inputs["value"].abs_().add_(1.0)
    return inputs


def make_nan(seed: int, **sizes: Any) -> Inputs:
    """One query holds a NaN: its row of the output is NaN, no other."""
    inputs = make(seed, **sizes)
    inputs["query"][0, 0, 5, 2] = math.nan
    return inputs


def make_tiny(seed: int, **sizes: Any) -> Inputs:
    """Values near the smallest normal float16 number, half of them below."""
    inputs = make(seed, **sizes)
    inputs["value"].mul_(2.0**-14)
    return inputs


def compose(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    rounded: bool,
    mask: Mask = None,
    causal: str = "none",
    scale: Scale = None,
) -> Tensor:
    """Built of single operators: products and softmax in float32; ``rounded``: scores and weights, and their gradients,
    are rounded to the dtype in between, as a model written by hand does, else they are not (all fused)."""
    middle = query.dtype if rounded else torch.float32
    key, value = repeat_heads(query, key.to(middle)), repeat_heads(query, value.to(middle))
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = ((query.float() @ key.float().transpose(-1, -2)) * factor).to(middle).float()
    bias, hidden = split_mask(mask, causal, scores)
    weights = soften(scores + bias, hidden).to(middle)
    return (weights.float() @ value.float()).to(query.dtype)


class Blockwise(torch.autograd.Function):
    """What FlashAttention-2 keeps and rounds (Dao 2023, algorithms 1 and 2).

    The weights are rounded to the dtype before they meet the values, the row sums of the gradient come from the rounded
    output, and dS is rounded before its products.
    """

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, bias: Any, hidden: Any, factor: float) -> Tensor:
        weights = soften((query.float() @ key.float().transpose(-1, -2)) * factor + bias, hidden)
        output: Tensor = (weights.to(query.dtype).float() @ value.float()).to(query.dtype)
        ctx.save_for_backward(query, key, value, weights, output)
        ctx.factor = factor
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        query, key, value, weights, output = ctx.saved_tensors
        dtype, pulled = query.dtype, gradient.float()
        row_sums = (pulled * output.float()).sum(dim=-1, keepdim=True)
        scores = (weights * (pulled @ value.float().transpose(-1, -2) - row_sums)).to(dtype).float()
        by_query = ctx.factor * (scores @ key.float())
        by_key = ctx.factor * (scores.transpose(-1, -2) @ query.float())
        by_value = weights.to(dtype).float().transpose(-1, -2) @ pulled
        return by_query.to(dtype), by_key.to(dtype), by_value.to(dtype), None, None, None


def compute_blockwise(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Mask = None, causal: str = "none", scale: Scale = None
) -> Tensor:
    """:class:`Blockwise` with this operator's keywords."""
    key, value = repeat_heads(query, key), repeat_heads(query, value)
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    bias, hidden = split_mask(mask, causal, query.new_empty((*query.shape[:3], key.shape[2])))
    apply: Any = Blockwise.apply
    result: Tensor = apply(query, key, value, bias, hidden, factor)
    return result


def repeat_heads(query: Tensor, key: Tensor) -> Tensor:
    """Each key head once for every query head it serves."""
    return key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)


def split_mask(mask: Mask, causal: str, scores: Tensor) -> tuple[Tensor, Tensor]:
    """(what is added to the scores, True where a key is hidden), the second in the scores' shape."""
    hidden = ~see(scores.shape[-2], scores.shape[-1], causal, scores.device)
    bias = torch.zeros((), device=scores.device)
    if mask is not None and mask.dtype == torch.bool:
        hidden = hidden | ~mask
    elif mask is not None:
        bias, hidden = mask.float(), hidden | (mask == -math.inf)
    return bias, hidden.expand(scores.shape)


def soften(scores: Tensor, hidden: Tensor) -> Tensor:
    """Softmax with hidden keys left out; a row without any key is zero."""
    empty = hidden.all(dim=-1, keepdim=True)
    kept = scores.masked_fill(hidden, -math.inf).masked_fill(empty, 0.0)
    return torch.softmax(kept, dim=-1).masked_fill(hidden, 0.0)


def see(queries: int, keys: int, causal: str, device: torch.device) -> Tensor:
    """(Sq, Skv) True where a query may see a key."""
    everything = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if causal == "none":
        return everything
    return everything.tril(keys - queries if causal == "bottom-right" else 0)


def call_torch(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Mask = None, causal: str = "none", scale: Scale = None
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention. is_causal is its top-left form; bottom-right needs a mask."""
    key, value = repeat_heads(query, key), repeat_heads(query, value)
    direct = causal == "top-left" and mask is None
    if causal != "none" and not direct:
        visible = see(query.shape[2], key.shape[2], causal, query.device)
        mask = visible if mask is None else combine(mask, visible)
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(query.dtype)
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=direct, scale=scale
    )


def combine(mask: Tensor, visible: Tensor) -> Tensor:
    """A mask of either kind that hides what is not visible too."""
    return mask & visible if mask.dtype == torch.bool else mask.masked_fill(~visible, -math.inf)


def call_torch_npu(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Mask = None, causal: str = "none", scale: Scale = None
) -> Tensor:
    """torch_npu.npu_fusion_attention: True = masked OUT, scale 1.0 by default, sparse_mode 2 top-left, 3 bottom-right.

    Added (floating) masks have no place in it; they stay with PyTorch's operator, as torch_npu itself does.
    """
    if mask is not None and mask.dtype != torch.bool:
        return call_torch(query, key, value, mask=mask, causal=causal, scale=scale)
    factor = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    sparse_mode, hidden = 0, None
    if mask is not None:
        visible = mask & see(query.shape[2], key.shape[2], causal, query.device)
        hidden = (~visible).expand(query.shape[0], 1, query.shape[2], key.shape[2]).contiguous()
    elif causal != "none":
        sparse_mode = 2 if causal == "top-left" else 3
        # the compressed causal mask of sparse modes 2 to 4 is this fixed size, whatever the sequence
        hidden = torch.ones(2048, 2048, dtype=torch.bool, device=query.device).triu(1)
    result: Tensor = load_torch_npu().npu_fusion_attention(
        query.contiguous(), key.contiguous(), value.contiguous(), query.shape[1], "BNSD",
        atten_mask=hidden, scale=factor, keep_prob=1.0, sparse_mode=sparse_mode,
    )[0]  # fmt: skip
    return result


def case(
    id_: str, why: str, *tags: str, build: Any = make, options: dict[str, Any] | None = None, **sizes: Any
) -> OpCase:
    return OpCase(id_, partial(build, **sizes), tags=tags, wrt=QKV, why=why, **(options or {}))


CASES = [
    case("plain", "scale missing or wrong, softmax over the wrong axis", "basic"),
    case("causal-square", "no causal mask, or shifted by one", "causal", causal="top-left"),
    case(
        "causal-top-left-more-keys",
        "bottom-right where top-left is meant",
        "causal",
        queries=24,
        keys=40,
        causal="top-left",
    ),
    case(
        "causal-bottom-right-more-keys",
        "top-left where bottom-right is meant (flash_attn >= 2.1)",
        "causal",
        queries=24,
        keys=40,
        causal="bottom-right",
    ),
    case(
        "causal-bottom-right-fewer-keys",
        "rows that see no key must be zero, not NaN or a mean",
        "causal",
        "empty-rows",
        queries=40,
        keys=24,
        causal="bottom-right",
    ),
    case("causal-top-left-fewer-keys", "late queries see every key", "causal", queries=40, keys=24, causal="top-left"),
    case("mask-bool", "polarity: True = takes part, the opposite of npu_fusion_attention", "mask", mask=keep_at_random),
    case("mask-padding", "a broadcast (1, 1, 1, Skv) padding mask", "mask", batch=2, mask=keep_padding),
    case("mask-and-causal", "one of the two masks dropped", "mask", "causal", mask=keep_at_random, causal="top-left"),
    case("mask-additive", "a bias treated as a boolean, or added before the scale", "mask", mask=add_bias),
    case("mask-additive-infinite", "minus infinity must hide, not make NaN", "mask", mask=add_minus_infinity),
    case("mask-additive-lowest", "-65504 overflows to -inf when added in float16", "mask", mask=add_lowest),
    case(
        "mask-empty-rows",
        "fully masked rows: zeros and no gradient, no NaN",
        "mask",
        "empty-rows",
        mask=keep_but_some_rows,
    ),
    case("alibi", "a bias that differs by head", "mask", build=make_alibi, heads=4),
    case("scale-explicit", "an explicit scale is ignored, or used on top of 1 / sqrt(D)", "scale", scale=0.3),
    case("scale-one", "scale=1.0 taken for 'not given'", "scale", scale=1.0, gain=0.2),
    case(
        "grouped-heads", "query head h must use key head h // groups, not h % key heads", "heads", heads=6, key_heads=2
    ),
    case("single-key-head", "multi-query: one key head for all", "heads", heads=4, key_heads=1),
    case("sequence-65", "the last of 65 rows and columns, beyond a tile of 64", "tile", queries=65, causal="top-left"),
    case("sequence-63", "one short of a tile of 64", "tile", queries=63),
    case(
        "keys-577", "more than 512 keys in two blocks: the running maximum must be merged", "tile", queries=9, keys=577
    ),
    case(
        "keys-577-growing",
        "later blocks hold the larger scores: rescale what was summed before",
        "tile",
        queries=9,
        keys=577,
        gain=4.0,
    ),
    case("head-size-20", "head size not a multiple of 16", "tile", size=20),
    case("head-size-72", "head size over 64, not a multiple of 16", "tile", size=72, queries=17),
    case("head-size-1", "one element a head", "tile", size=1),
    case(
        "head-size-65",
        "an odd head size: float32 goes another way on Ascend when D % 4 != 0",
        "tile",
        size=65,
        queries=17,
    ),
    case("value-size-8", "values narrower than keys", "tile", value_size=8),
    case(
        "one-query",
        "decoding: one query, many keys, bottom-right sees all",
        "size-1",
        queries=1,
        keys=70,
        causal="bottom-right",
    ),
    case("one-key", "one key: its value, whatever the score", "size-1", queries=20, keys=1),
    case("one-of-everything", "batch, head and sequence of one", "size-1", heads=1, queries=1, size=4),
    case("empty-batch", "no batch at all: an empty result", "empty", batch=0),
    case(
        "large-scores",
        "scores of about 200: exp overflows without subtracting the maximum",
        "magnitude",
        build=make_drowned,
    ),
    case("sharp-scores", "scores x 8: little weight left for most keys", "magnitude", gain=8.0),
    case(
        "flat-scores",
        "512 equal weights: a bf16 or fp16 accumulator loses most of them",
        "magnitude",
        build=make_flat,
        queries=16,
        keys=512,
    ),
    case("tiny-values", "values around 2^-14: subnormal in float16", "magnitude", build=make_tiny, queries=40),
    case("nan-query", "a NaN stays in its row", "nonfinite", build=make_nan),
    case(
        "layout-transposed",
        "inputs whose last two dimensions lie swapped in storage",
        "layout",
        options={"layouts": dict.fromkeys(QKV, "transposed")},
    ),
    case(
        "layout-offset",
        "inputs that start inside their storage, unaligned",
        "layout",
        options={"layouts": dict.fromkeys(QKV, "offset")},
    ),
]

OPERATOR = Operator(
    "attention",
    CASES,
    natives=[partial(compose, rounded=False), partial(compose, rounded=True), compute_blockwise],
    golden=FORMULA.golden,
    replacements={"torch": call_torch, "torch_npu": call_torch_npu},
    preferred={"npu": "torch_npu"},
    wrong={
        "scale ignored": FORMULA.set(scale=1.0),
        "scale always 1 / sqrt(D)": FORMULA.set(scale=None),
        "causal ignored": FORMULA.set(causal="none"),
        "top-left always": FORMULA.edit('keys - queries if causal == "bottom-right" else 0', "0"),
        "bottom-right always": FORMULA.edit('keys - queries if causal == "bottom-right" else 0', "keys - queries"),
        "diagonal hidden": FORMULA.edit("torch.arange(keys)[None, :] <= torch", "torch.arange(keys)[None, :] < torch"),
        "mask ignored": FORMULA.set(mask=None),
        "polarity of the mask": FORMULA.edit("visible = visible & mask\n", "visible = visible & ~mask\n"),
        "bias before the scale": FORMULA.edit("scores + mask.double()", "scores + factor * mask.double()"),
        "mask in float16": FORMULA.edit("scores + mask.double()", "(scores.half() + mask.half()).float()"),
        "empty rows are the mean": FORMULA.edit("masked_fill(~visible, 0.0) @ value", "masked_fill(seen & ~visible, 0.0) @ value"),
        "head h % key heads": FORMULA.edit("key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)", "key.repeat(1, groups, 1, 1), value.repeat(1, groups, 1, 1)"),
        "maximum not subtracted": FORMULA.edit("scores - scores.detach().amax(dim=-1, keepdim=True)", "scores"),
        "weights in bfloat16 summed one by one": FORMULA.edit("powers.sum(dim=-1, keepdim=True)", "powers.bfloat16().cumsum(-1)[..., -1:].float()"),
        "maximum of the first 512": FORMULA.edit("scores.detach().amax(", "scores.detach()[..., :512].amax(", "torch.exp(scores", "torch.exp(scores * 1.0", "return powers /", "return (powers * (torch.arange(scores.shape[-1]) < 512)) /"),
        "head size cut to 16": FORMULA.change(query=lambda q: torch.cat([q[..., : max(q.shape[-1] // 16 * 16, 1)], 0 * q[..., max(q.shape[-1] // 16 * 16, 1) :]], -1)),
        "keys beyond a tile of 64 lost": FORMULA.edit("masked_fill(~visible, 0.0) @ value", "masked_fill(~visible | (torch.arange(visible.shape[-1]) >= max(visible.shape[-1] // 64 * 64, min(visible.shape[-1], 64))), 0.0) @ value"),
        "values in float16": FORMULA.change(value=lambda v: torch.where(v.abs() < 2**-14, 0.0, v).to(v.dtype)),
        "keys without gradient": FORMULA.edit("key.transpose(-1, -2)", "key.detach().transpose(-1, -2)"),
    },
)  # fmt: skip
