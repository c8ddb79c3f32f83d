"""The arithmetic of the fused ``torch_npu.npu_*`` operators, in float32 inside and with one rounding at the end.

Arguments, defaults and returns follow torch_npu 2.14 (facts/torch_npu_ops_by_version.tsv, op-plugin's pages). Where the
pages leave something open the docstring says "assumed". Letters: B batch, N heads, S sequence, D head size, H = N * D.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from precision_align.core.errors import UsageError

_ATTENTION_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# The compressed masks of sparse modes 2, 3 and 4 have this size whatever the sequence length (op-plugin's page).
_COMPRESSED = 2048
# Row maxima and sums come eight times each, one 32-byte block of float32 (op-plugin's page: [B, N, Sq, 8]).
_STATISTIC_LANES = 8


def compute_rms_norm(values: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6) -> tuple[torch.Tensor, ...]:
    """y = x / sqrt(mean(x^2) + epsilon) * gamma over gamma's dimensions, and 1 / sqrt(...) as float32."""
    if tuple(values.shape[values.dim() - gamma.dim() :]) != tuple(gamma.shape):
        raise UsageError(
            f"npu_rms_norm: gamma {tuple(gamma.shape)} does not fit the last dimensions of x {tuple(values.shape)}."
        )
    dims = list(range(values.dim() - gamma.dim(), values.dim()))
    inner = values.float()
    rstd = torch.rsqrt(inner.pow(2).mean(dims, keepdim=True) + epsilon)
    return (inner * rstd * gamma.float()).to(values.dtype), rstd


def compute_add_rms_norm(
    x1: torch.Tensor, x2: torch.Tensor, gamma: torch.Tensor, epsilon: float = 1e-6
) -> tuple[torch.Tensor, ...]:
    """(y, rstd, x) with x = x1 + x2 rounded to the inputs' dtype and y, rstd the RMSNorm of that x."""
    total = (x1.float() + x2.float()).to(x1.dtype)
    normed, rstd = compute_rms_norm(total, gamma, epsilon)
    return normed, rstd, total


def compute_swiglu(values: torch.Tensor, dim: int = -1) -> tuple[torch.Tensor, ...]:
    """silu(first half) * second half along ``dim``, whose size must be even."""
    if values.dim() == 0 or values.numel() == 0 or values.shape[dim] % 2:
        raise UsageError(f"npu_swiglu: the size of dimension {dim} of {tuple(values.shape)} must be even and not zero.")
    gate, linear = values.float().chunk(2, dim)
    return ((torch.nn.functional.silu(gate) * linear).to(values.dtype),)


def compute_gelu(values: torch.Tensor, *, approximate: str = "none") -> tuple[torch.Tensor, ...]:
    """GELU in the form asked for: "none" (erf) or "tanh"."""
    if approximate not in ("none", "tanh"):
        raise UsageError(f'npu_gelu: approximate must be "none" or "tanh", not "{approximate}".')
    return (torch.nn.functional.gelu(values.float(), approximate=approximate).to(values.dtype),)


def compute_rotary_mul(
    values: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """x * r1 + rotate(x) * r2 with r1 = cos and r2 = sin of full width D.

    "half": (x1, x2) -> (-x2, x1) by halves; "interleave": neighbours (x0, x1) -> (-x1, x0).
    """
    width = values.shape[-1]
    if rotary_mode not in ("half", "interleave"):
        raise UsageError(f'npu_rotary_mul: rotary_mode must be "half" or "interleave", not "{rotary_mode}".')
    if rotate is not None:
        raise UsageError("npu_rotary_mul: the argument rotate is not emulated.")
    if values.dim() not in (3, 4) or width % 2 or r1.shape[-1] != width or r2.shape[-1] != width:
        raise UsageError(
            f"npu_rotary_mul: x {tuple(values.shape)} must have an even last dimension, and r1 {tuple(r1.shape)} and "
            f"r2 {tuple(r2.shape)} its full width (not half of it)."
        )
    inner = values.float()
    if rotary_mode == "half":
        first, second = inner.chunk(2, -1)
        rotated = torch.cat([-second, first], -1)
    else:
        rotated = torch.stack([-inner[..., 1::2], inner[..., 0::2]], -1).flatten(-2)
    return ((inner * r1.float() + rotated * r2.float()).to(values.dtype),)


@dataclass(frozen=True)
class _Layout:
    """How a layout's tensors become [B, N, S, D], and how a result goes back."""

    split: Callable[[torch.Tensor, int], torch.Tensor]
    join: Callable[[torch.Tensor], torch.Tensor]


def _unpack(values: torch.Tensor, heads: int) -> torch.Tensor:
    """[..., H] as [..., N, D]."""
    return values.reshape(*values.shape[:-1], heads, -1)


_LAYOUTS = {
    "BNSD": _Layout(lambda x, heads: x, lambda y: y),
    "BSND": _Layout(lambda x, heads: x.transpose(1, 2), lambda y: y.transpose(1, 2).contiguous()),
    "BSH": _Layout(lambda x, heads: _unpack(x, heads).transpose(1, 2), lambda y: y.transpose(1, 2).flatten(2)),
    "SBH": _Layout(lambda x, heads: _unpack(x, heads).permute(1, 2, 0, 3), lambda y: y.permute(2, 0, 1, 3).flatten(2)),
}


def compute_fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    pse: torch.Tensor | None = None,
    padding_mask: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = 2147483647,
    next_tockens: int = 2147483647,
    inner_precise: int = 0,
    prefix: Sequence[int] | None = None,
    actual_seq_qlen: Sequence[int] | None = None,
    actual_seq_kvlen: Sequence[int] | None = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: torch.Tensor | None = None,
    dropout_mask: torch.Tensor | None = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Any, ...]:
    """softmax(mask(scale * (q k^T + pse))) v, with ``atten_mask`` True (or 1) = masked OUT.

    Returns (attention, row maxima, row sums, an empty tensor, seed, offset, elements of the dropout mask). ``scale`` is
    1.0 unless given. ``sparse_mode`` 0 and 1 take a full mask; 2 (causal from the top left), 3 (from the bottom right)
    and 4 (band of pre_tockens, next_tockens from the bottom right) take the compressed 2048 x 2048 one. Rows masked
    throughout give zero (assumed). ``dropout_mask``: here one boolean an element, True = kept.
    """
    _check_attention(query, key, value, input_layout, sparse_mode, atten_mask)
    _refuse_arguments(padding_mask=padding_mask, prefix=prefix, actual_seq_qlen=actual_seq_qlen, sink=sink)
    layout = _LAYOUTS[input_layout]
    queries, keys, values = _split_heads(query, key, value, head_num, input_layout)
    scores = queries.float() @ keys.float().transpose(-1, -2)
    if pse is not None:
        scores = scores + pse.float()
    masked = _build_mask(scores, atten_mask, sparse_mode, pre_tockens, next_tockens)
    scores = scores * scale
    if masked is not None:
        scores = scores.masked_fill(masked, float("-inf"))
    weights, statistics = _normalise(scores)
    if dropout_mask is not None and keep_prob < 1:
        weights = weights * dropout_mask.to(weights.dtype) / keep_prob
    attention = layout.join(weights @ values.float()).to(query.dtype)
    dropped = 0 if dropout_mask is None else dropout_mask.numel()
    return attention, *statistics, query.new_empty(0), seed, offset, dropped


def _normalise(scores: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Softmax over the last dimension, zero for rows masked throughout; row maxima and sums in their eight lanes."""
    maxima = scores.detach().amax(-1, keepdim=True)
    powers = torch.exp(scores - torch.where(maxima == float("-inf"), 0.0, maxima))
    sums = powers.sum(-1, keepdim=True)
    lanes = (*maxima.shape[:-1], _STATISTIC_LANES)
    weights = powers / torch.where(sums == 0, 1.0, sums)
    return weights, [maxima.expand(lanes).contiguous(), sums.detach().expand(lanes).contiguous()]


def attention_shape(
    query: torch.Tensor, key: torch.Tensor, head_num: int, input_layout: str
) -> tuple[int, int, int, int]:
    """(B, N, Sq, Skv), the shape of the scores and of a dropout mask."""
    if input_layout not in _LAYOUTS:
        raise UsageError(_explain_layout(input_layout))
    batch, sequence = input_layout.index("B"), input_layout.index("S")
    return query.shape[batch], head_num, query.shape[sequence], key.shape[sequence]


def _explain_layout(input_layout: str) -> str:
    known = ", ".join(_LAYOUTS)
    return f'npu_fusion_attention: input_layout "{input_layout}" is not emulated (here: {known}; TND needs the device).'


def _check_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    input_layout: str,
    sparse_mode: int,
    atten_mask: torch.Tensor | None,
) -> None:
    if input_layout not in _LAYOUTS:
        raise UsageError(_explain_layout(input_layout))
    if len({query.dtype, key.dtype, value.dtype}) > 1 or query.dtype not in _ATTENTION_DTYPES:
        raise UsageError(
            "npu_fusion_attention: query, key and value must have one dtype of float16, bfloat16, float32, not "
            f"{query.dtype}, {key.dtype}, {value.dtype}."
        )
    if sparse_mode not in (0, 1, 2, 3, 4):
        raise UsageError(f"npu_fusion_attention: sparse_mode {sparse_mode} is not emulated (here: 0, 1, 2, 3, 4).")
    if sparse_mode == 0:
        return
    if atten_mask is None:
        raise UsageError(f"npu_fusion_attention: sparse_mode {sparse_mode} needs an atten_mask.")
    if sparse_mode > 1 and tuple(atten_mask.shape[-2:]) != (_COMPRESSED, _COMPRESSED):
        raise UsageError(
            f"npu_fusion_attention: sparse_mode {sparse_mode} takes the compressed {_COMPRESSED} x {_COMPRESSED} mask, "
            f"torch.triu(torch.ones({_COMPRESSED}, {_COMPRESSED}), 1).bool(), not {tuple(atten_mask.shape)}."
        )


def _refuse_arguments(**arguments: Any) -> None:
    given = [name for name, value in arguments.items() if value is not None]
    if given:
        raise UsageError(f"npu_fusion_attention: {', '.join(given)} is not emulated.")


def _split_heads(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, head_num: int, input_layout: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[B, N, S, D] each, keys and values repeated for grouped queries."""
    packed = input_layout.endswith("H")
    width = query.shape[-1] // head_num if packed else query.shape[-1]
    heads = head_num if packed else query.shape[input_layout.index("N")]
    kv_heads = key.shape[-1] // max(1, width) if packed else key.shape[input_layout.index("N")]
    if heads != head_num or not kv_heads or head_num % kv_heads or (packed and query.shape[-1] % head_num):
        raise UsageError(
            f"npu_fusion_attention: head_num {head_num} does not fit query {tuple(query.shape)} and key "
            f"{tuple(key.shape)} in layout {input_layout}."
        )
    split, repeats = _LAYOUTS[input_layout].split, head_num // kv_heads
    keys, values = (split(one, kv_heads).repeat_interleave(repeats, 1) for one in (key, value))
    return split(query, head_num), keys, values


def _build_mask(
    scores: torch.Tensor, atten_mask: torch.Tensor | None, sparse_mode: int, pre_tockens: int, next_tockens: int
) -> torch.Tensor | None:
    """True = masked out, broadcastable to the scores; None = nothing is masked (mode 0 then ignores the window)."""
    if atten_mask is None:
        return None
    mask = atten_mask.bool()
    rows, columns = scores.shape[-2:]
    if sparse_mode == 1:
        return mask
    # Distance of each key from its query's diagonal; modes 3 and 4 count from the bottom right corner.
    shift = columns - rows if sparse_mode in (3, 4) else 0
    distance = torch.arange(columns, device=mask.device) - torch.arange(rows, device=mask.device)[:, None] - shift
    if sparse_mode == 0:
        return mask | (distance > next_tockens) | (distance < -pre_tockens)
    if sparse_mode == 4:
        return _look_up(mask, distance - next_tockens) | _look_up(mask, -distance - pre_tockens)
    return _look_up(mask, distance)


def _look_up(compressed: torch.Tensor, distance: torch.Tensor) -> torch.Tensor:
    """Read the compressed mask at a distance from the diagonal, so that a wrong mask shows as on a device."""
    bounded = distance.clamp(1 - _COMPRESSED, _COMPRESSED - 1)
    return compressed[..., (-bounded).clamp(min=0), bounded.clamp(min=0)]
