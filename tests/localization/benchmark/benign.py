"""What conforming builds may do differently: nothing of it may be blamed, in any seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from localization_benchmark import BENIGN, BOTH, FP16, FP32, Setup, add
from localization_benchmark.moe import make_moe
from localization_benchmark.recurrent import make_gru, make_unrolled
from localization_benchmark.splatting import make_loop, make_renderer, make_splat
from localization_benchmark.trainer import Attention, Norm, make_llama
from localization_benchmark.training import Adam, clip, make, stock
from localization_benchmark.vision import make_conv, make_vit
from torch import nn
from torch.nn import functional

Build = Callable[[bool, int, torch.dtype], Setup]


def _add(name: str, build: Build, dtypes: Any = BOTH) -> None:
    add(name, BENIGN, build, None, (), dtypes=dtypes)


# Another order of every sum is what each candidate has anyway: that alone, on each family.
_add("order_llama", lambda faulty, seed, dtype: make_llama("", seed, dtype), (*BOTH, FP16))
_add("order_moe", lambda faulty, seed, dtype: make_moe("", seed, dtype))
_add("order_conv", lambda faulty, seed, dtype: make_conv(seed, dtype))
_add("order_vit", lambda faulty, seed, dtype: make_vit("", seed, dtype))
_add("order_recurrent", lambda faulty, seed, dtype: make_unrolled("", seed, dtype))
_add("order_renderer", lambda faulty, seed, dtype: make_renderer("", seed), (FP32,))
_add("order_training", lambda faulty, seed, dtype: make(seed, dtype, stock, steps=2))
_add("order_clipping", lambda faulty, seed, dtype: make(seed, dtype, stock, between=clip))
_add("dispatch_order", lambda faulty, seed, dtype: make_moe("layer:order" if faulty else "", seed, dtype))
_add("recomputation", lambda faulty, seed, dtype: make_llama("", seed, dtype, recompute=faulty))
_add("recomputation_off", lambda faulty, seed, dtype: make_llama("", seed, dtype, recompute=not faulty))
_add("cast_before_weight", lambda faulty, seed, dtype: make_llama("norm2:early_cast" if faulty else "", seed, dtype))
_add("reciprocal_frequencies", lambda faulty, seed, dtype: make_llama("rope:reciprocal" if faulty else "", seed, dtype))
_add("optimizer_by_hand", lambda faulty, seed, dtype: make(seed, dtype, Adam if faulty else stock))
_add("optimizer_in_a_loop", lambda faulty, seed, dtype: make(seed, dtype, lambda p: stock(p, foreach=not faulty)))
_add("optimizer_fused", lambda faulty, seed, dtype: make(seed, dtype, lambda p: stock(p, fused=faulty)))
_add("gru_unrolled", lambda faulty, seed, dtype: make_gru(faulty, False, seed, dtype), (FP32,))
_add("blending_in_a_loop", lambda faulty, seed, dtype: make_loop(seed) if faulty else make_renderer("", seed), (FP32,))
_add("scatter_reversed", lambda faulty, seed, dtype: make_splat("reversed" if faulty else "add", seed), (FP32,))
_add("scatter_sorted", lambda faulty, seed, dtype: make_splat("sorted" if faulty else "add", seed), (FP32,))
_add("micro_batches", lambda faulty, seed, dtype: make(seed, dtype, stock, micro=2))


class FusedAttention(Attention):
    """The operator of torch in place of its parts."""

    def forward(self, x: torch.Tensor, keep: torch.Tensor, start: int) -> torch.Tensor:
        b, t, _ = x.shape
        q = self.rope(self.q(x).view(b, t, 4, -1).transpose(1, 2), start)
        k = self.rope(self.k(x).view(b, t, 2, -1).transpose(1, 2), start)
        v = self.v(x).view(b, t, 2, -1).transpose(1, 2)
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(keep))
        return self.o(y.transpose(1, 2).reshape(x.shape))


class SmallMask(Attention):
    """Hides positions with minus infinity, and rows with one key only with a large number."""

    def weigh(self, q: torch.Tensor, k: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        s = (q.float() @ k.float().transpose(-1, -2)) / 4
        return s.masked_fill(~self.mask(keep), -float("inf")).softmax(-1).to(q.dtype)


class ScaledFirst(Attention):
    """The scale goes into the queries, where it is a power of two."""

    def weigh(self, q: torch.Tensor, k: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        s = (q.float() / 4) @ k.float().transpose(-1, -2)
        return s.masked_fill(~self.mask(keep), -1e30).softmax(-1).to(q.dtype)


class OneByOne(Attention):
    """Each sequence on its own: a batch size of one."""

    def weigh(self, q: torch.Tensor, k: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        parts = [super(OneByOne, self).weigh(q[n : n + 1], k[n : n + 1], keep[n : n + 1]) for n in range(len(q))]
        return torch.cat(parts)


class OnePassNorm(Norm):
    """The mean square by blocks, the root by division."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        square = torch.stack([part.pow(2).sum(-1, keepdim=True) for part in y.split(16, -1)]).flip(0).sum(0)
        return (y / (square / y.shape[-1] + 1e-6).sqrt() * (1 + self.weight.float())).to(x.dtype)


def _replace(name: str, kind: type[nn.Module], part: str, dtypes: Any = BOTH) -> None:
    """One module of the candidate has another class: the same function, other code."""

    def build(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
        setup = make_llama("", seed, dtype)
        if faulty:
            for layer in setup.model.layers:
                getattr(layer, part).__class__ = kind
        return setup

    _add(name, build, dtypes)


_replace("attention_fused", FusedAttention, "attn", (FP32,))
_replace("mask_of_infinities", SmallMask, "attn")
_replace("scale_in_the_queries", ScaledFirst, "attn")
_replace("batch_one_by_one", OneByOne, "attn")
_replace("norm_by_blocks", OnePassNorm, "norm2")


def _contiguous(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
    """Weights in another memory order."""
    setup = make_llama("", seed, dtype)
    if faulty:
        for layer in setup.model.layers:
            for linear in (layer.mlp.gate, layer.mlp.up):
                linear.weight.data = linear.weight.data.t().contiguous().t()
    return setup


_add("weights_in_another_memory_order", _contiguous)
