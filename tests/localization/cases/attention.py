"""Transformer blocks: masks, rotary positions, head layout, cache, in a Llama-like model."""

from __future__ import annotations

import math

import torch
from localization_cases import Pair, case
from torch import nn
from torch.nn import functional


class Rope(nn.Module):
    """Half-split rotary positions. ``fault``: "bf16" rounds the angles, "base" another base, "late" off by one."""

    def __init__(self, dim: int, fault: str = "") -> None:
        super().__init__()
        self.dim, self.fault = dim, fault

    def forward(self, x: torch.Tensor, start: int = 0) -> torch.Tensor:
        base = 5e5 if self.fault == "base" else 1e4
        frequency = base ** (-torch.arange(0, self.dim, 2).float() / self.dim)
        position = torch.arange(x.shape[2]).float() + start + (self.fault == "late")
        if self.fault == "bf16":
            angle = (position.bfloat16()[:, None] * frequency.bfloat16()).float()
        else:
            angle = position[:, None] * frequency
        a, b = x.float().chunk(2, -1)
        c, s = angle.cos(), angle.sin()
        return torch.cat((a * c - b * s, a * s + b * c), -1).to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(d) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


class Attention(nn.Module):
    """Grouped-query attention. ``fault`` selects what its own forward gets wrong."""

    def __init__(self, d: int, heads: int, fault: str = "", rope_fault: str = "") -> None:
        super().__init__()
        self.heads, self.groups, self.fault = heads, heads // 2, fault
        width = d // heads
        self.q_proj = nn.Linear(d, d, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(d, width * self.groups, bias=False) for _ in range(2))
        self.o_proj = nn.Linear(d, d, bias=False)
        self.rope = Rope(width, rope_fault)

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q = self.q_proj(x).view(b, t, self.heads, -1).transpose(1, 2)
        k, v = (f(x).view(b, t, self.groups, -1).transpose(1, 2) for f in (self.k_proj, self.v_proj))
        q, k = self.rope(q), self.rope(k)
        k, v = self._repeat(k), self._repeat(v)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=self._mask(keep), scale=self._scale(q.shape[-1]))
        return self.o_proj(y.transpose(1, 2).reshape(b, t, d))

    def _repeat(self, x: torch.Tensor) -> torch.Tensor:
        if self.fault == "kv_order":
            return x.repeat(1, 2, 1, 1)
        return x.repeat_interleave(2, 1)

    def _scale(self, width: int) -> float:
        return {"scale": 1.0, "scale_1pct": 1.01 / math.sqrt(width)}.get(self.fault, 1 / math.sqrt(width))

    def _mask(self, keep: torch.Tensor) -> torch.Tensor:
        t = keep.shape[-1]
        causal = torch.ones(t, t, dtype=torch.bool).tril()
        padding = keep[:, None, None, :]
        if self.fault == "bidirectional":
            return padding.expand(-1, 1, t, t)
        if self.fault == "ignores_padding":
            return causal.expand(len(keep), 1, t, t)
        if self.fault == "off_by_one":
            causal = torch.ones(t, t, dtype=torch.bool).tril(1)
        if self.fault == "window":
            causal = causal & torch.ones(t, t, dtype=torch.bool).triu(-3)
        return padding & causal


class FeedForward(nn.Module):
    def __init__(self, d: int, fault: str = "") -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.fault = fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate(x), self.up(x)
        if self.fault == "swap":
            gate, up = up, gate
        return self.down(functional.silu(gate) * up)


class Block(nn.Module):
    def __init__(self, d: int, heads: int, fault: str) -> None:
        super().__init__()
        kind, _, what = fault.partition(":")
        self.norm1, self.norm2 = RMSNorm(d), RMSNorm(d)
        self.attn = Attention(d, heads, what if kind == "attn" else "", what if kind == "rope" else "")
        self.mlp = FeedForward(d, what if kind == "mlp" else "")
        self.fault = what if kind == "block" else ""

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), keep)
        if self.fault == "post_norm":
            return self.norm2(x + self.mlp(x))
        if self.fault == "no_residual":
            return self.mlp(self.norm2(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    """``faults``: layer -> "part:what"."""

    def __init__(self, faults: dict[int, str], d: int = 32, heads: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, d)
        self.layers = nn.ModuleList(Block(d, heads, faults.get(i, "")) for i in range(layers))
        self.norm, self.lm_head = RMSNorm(d), nn.Linear(d, 50, bias=False)

    def forward(self, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, keep)
        return self.lm_head(self.norm(x))


def make(faults: dict[int, str], dtype: torch.dtype = torch.float32, length: int = 12) -> Pair:
    torch.manual_seed(4)
    model = Llama(faults).to(dtype).eval()
    keep = torch.ones(2, length, dtype=torch.bool)
    keep[1, length - 3 :] = False
    return model, {"ids": torch.randint(0, 50, (2, length)), "keep": keep}


def _register(name: str, fault: str, first: str, site: str, source: str, dtype: torch.dtype = torch.float32) -> None:
    def build(faulty: bool) -> Pair:
        return make({1: fault} if faulty else {}, dtype)

    build.__name__ = name
    case(first, source, site=site)(build)


_BF16, _FP16 = torch.bfloat16, torch.float16
_register("kv_heads_in_another_order", "attn:kv_order", "layers.1.attn", "inline", "anchors pilot")
_register("kv_heads_in_another_order_bf16", "attn:kv_order", "layers.1.attn", "inline", "anchors pilot", _BF16)
_register("scale_missing_fp16", "attn:scale", "layers.1.attn", "inline", "anchors pilot", _FP16)
# in bf16 it is 0.3 units in the last place here: below what the dtype can show
_register("scale_1_percent_off", "attn:scale_1pct", "layers.1.attn", "inline", "numerics 4.2")
_register("scale_1_percent_off_fp16", "attn:scale_1pct", "layers.1.attn", "inline", "numerics 4.2", _FP16)
_register("mask_bidirectional", "attn:bidirectional", "layers.1.attn", "inline", "diffusers#14396")
_register("mask_bidirectional_bf16", "attn:bidirectional", "layers.1.attn", "inline", "diffusers#14396", _BF16)
_register("mask_off_by_one_fp16", "attn:off_by_one", "layers.1.attn", "inline", "anchors pilot", _FP16)
_register("gate_and_up_swapped", "mlp:swap", "layers.1.mlp", "inline", "anchors pilot")
_register("gate_and_up_swapped_bf16", "mlp:swap", "layers.1.mlp", "inline", "anchors pilot", _BF16)
_register("post_norm", "block:post_norm", "layers.1", "inline", "structure")
_register("residual_dropped_bf16", "block:no_residual", "layers.1", "inline", "structure", _BF16)
_register("mask_ignores_padding", "attn:ignores_padding", "layers.1.attn", "inline", "MiMo, DATA.09")
_register("sliding_window_by_default", "attn:window", "layers.1.attn", "inline", "MiMo, DATA.09")
_register("rope_base", "rope:base", "layers.1.attn.rope", "module", "Megatron#6585")
_register("rope_off_by_one", "rope:late", "layers.1.attn.rope", "module", "OpGuard 28")


@case("layers.1.attn.rope", "Gemma 5, 7", site="module")
def rope_angles_in_bf16(faulty: bool) -> Pair:
    return make({1: "rope:bf16"} if faulty else {}, length=200)


class Packed(nn.Module):
    """Several sequences in one row: attention must not cross their borders."""

    def __init__(self, leaky: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.leaky = nn.Linear(16, 48), nn.Linear(16, 16), leaky

    def forward(self, x: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        segment = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
        mask = torch.ones(len(segment), len(segment), dtype=torch.bool).tril()
        if not self.leaky:
            mask = mask & (segment[:, None] == segment)
        return self.out(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))


@case("", "packed sequences: mask of segments lost", site="inline")
def packed_segments_leak(faulty: bool) -> Pair:
    torch.manual_seed(5)
    return Packed(faulty), {"x": torch.randn(9, 16), "lengths": [4, 2, 3]}


class Decoder(nn.Module):
    """Prefill and two decode steps over a cache. ``fault``: "stale" never appends, "aligned" top-left causal mask."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.attn, self.emb, self.head = CachedAttention(16, fault), nn.Embedding(20, 16), nn.Linear(16, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        cache = None
        outputs = []
        for part in (ids, ids[:, :2] + 1, ids[:, :1] + 2):
            y, cache = self.attn(self.emb(part), cache)
            outputs.append(self.head(y))
        return torch.cat(outputs, 1)


class CachedAttention(nn.Module):
    def __init__(self, d: int, fault: str) -> None:
        super().__init__()
        self.q, self.kv, self.o, self.fault = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d), fault

    def forward(self, x, cache=None):
        q, (k, v) = self.q(x), self.kv(x).chunk(2, -1)
        if cache is not None:
            k, v = torch.cat((cache[0], k), 1), torch.cat((cache[1], v), 1)
        t, s = q.shape[1], k.shape[1]
        diagonal = 0 if self.fault == "aligned" else s - t
        mask = torch.ones(t, s, dtype=torch.bool).tril(diagonal)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        if self.fault == "stale" and cache is not None:
            k, v = cache
        return self.o(y), (k, v)


@case("attn", "flash-attention 2.1: causal mask aligned top-left", site="inline", call=1)
def causal_alignment_with_cache(faulty: bool) -> Pair:
    torch.manual_seed(6)
    return Decoder("aligned" if faulty else ""), (torch.randint(0, 17, (2, 5)),)


@case("attn", "cached state not extended", site="inline", call=1)
def cache_is_stale(faulty: bool) -> Pair:
    torch.manual_seed(6)
    return Decoder("stale" if faulty else ""), (torch.randint(0, 17, (2, 5)),)


class Scored(nn.Module):
    """Passes the rotary start as a plain number."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start, self.fc, self.rope = start, nn.Linear(16, 16), Rope(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x).view(2, -1, 2, 8).transpose(1, 2)
        return self.rope(y, start=self.start)


@case("", "OpGuard 28: position offset, a number and not a tensor", site="inline")
def offset_is_a_number(faulty: bool) -> Pair:
    torch.manual_seed(7)
    return Scored(3 if faulty else 0), (torch.randn(2, 5, 16),)


class Bidirectional(nn.Module):
    """nn.MultiheadAttention inside, with a key padding mask."""

    def __init__(self, inverted: bool) -> None:
        super().__init__()
        self.attn, self.norm, self.inverted = nn.MultiheadAttention(16, 4, batch_first=True), nn.LayerNorm(16), inverted

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        padding = ~padding if self.inverted else padding
        y, _ = self.attn(x, x, x, key_padding_mask=padding, need_weights=False)
        return self.norm(x + y)


@case("", "bool mask semantics", site="inline")
def padding_mask_inverted(faulty: bool) -> Pair:
    torch.manual_seed(8)
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[:, 4:] = True
    return Bidirectional(faulty), {"x": torch.randn(2, 6, 16), "padding": padding}
