"""A Llama-like trainer: embedding, rotary positions, grouped-query attention, gated MLP, head and loss as modules."""

from __future__ import annotations

import math
from typing import Any

import torch
from localization_benchmark import Setup
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

D, HEADS, VOCAB, LENGTH, BATCH, LAYERS = 64, 4, 60, 32, 4, 2
START = 300  # positions beyond 256, where bfloat16 cannot hold them
TINY = 7  # a token whose embedding is so small that the norm's eps matters


class EmbedGradient(torch.autograd.Function):
    """Rows of a table; ``fault`` changes the gradient alone."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, ids: torch.Tensor, fault: str) -> torch.Tensor:
        ctx.save_for_backward(ids)
        ctx.shape, ctx.fault = weight.shape, fault
        return weight[ids]

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        (ids,) = ctx.saved_tensors
        flat = ids.flatten()
        if ctx.fault == "sliced":  # the rows of the second half land where those of the first belong
            flat = flat % (ctx.shape[0] // 2)
        total = torch.zeros(ctx.shape, dtype=torch.float32).index_add(0, flat, g.flatten(0, -2).float())
        if ctx.fault == "rare":
            total[ids[1, 5], :3] *= 1.5
        return total.to(g.dtype), None, None


class Embed(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        weight = torch.randn(VOCAB, D)
        weight[TINY] *= 2e-4
        self.weight, self.fault = nn.Parameter(weight), fault

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = EmbedGradient.apply(self.weight, ids, self.fault)
        if self.fault != "padding":
            x = x * (ids != 0)[..., None]
        return x * (1.285 if self.fault == "scale" else 1.2833)


class Norm(nn.Module):
    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.weight, self.fault = nn.Parameter(torch.rand(D) * 0.2 - 0.1), fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        if self.fault == "low":
            y = y * torch.rsqrt(y.bfloat16().pow(2).mean(-1, keepdim=True).float() + 1e-6)
        else:
            eps = 1e-5 if self.fault == "eps" else 1e-6
            y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
        if self.fault == "mean":
            y = y - y.mean(-1, keepdim=True)
        weight = 1 + self.weight.bfloat16() if self.fault == "weight_low" else 1 + self.weight.float()
        return (y.to(x.dtype) * weight.to(x.dtype)) if self.fault == "early_cast" else (y * weight.float()).to(x.dtype)


class Rope(nn.Module):
    def __init__(self, width: int, fault: str = "") -> None:
        super().__init__()
        self.width, self.fault, self.calls = width, fault, 0

    def angles(self, length: int, start: int) -> torch.Tensor:
        base = 5e5 if self.fault == "base" else 1e4
        power = torch.arange(0, self.width, 2).float() / self.width
        frequency = (1 / base**power) if self.fault != "reciprocal" else base ** (-power)
        position = torch.arange(length).float() + start + (self.fault == "late")
        if self.fault == "bf16":
            return (position.bfloat16()[:, None] * frequency.bfloat16()).float()
        return position[:, None] * frequency

    def forward(self, x: torch.Tensor, start: int) -> torch.Tensor:
        if self.fault == "delta":
            start, self.calls = (start + 1 if self.calls else start), self.calls + 1
        angle = self.angles(x.shape[2], start)
        c, s, y = angle.cos(), angle.sin(), x.float()
        if self.fault == "interleaved":
            a, b = y[..., ::2], y[..., 1::2]
            return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2).to(x.dtype)
        a, b = y.chunk(2, -1)
        if self.fault == "sign":
            s = -s
        return torch.cat((a * c - b * s, a * s + b * c), -1).to(x.dtype)


class Gradient(torch.autograd.Function):
    """Passes values on; ``fault`` changes the gradient that comes back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, fault: str) -> torch.Tensor:
        ctx.fault = fault
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        if ctx.fault == "barrier":  # a block that another thread had not written yet
            g = g.clone()
            g[:, :, 8:16] = g[:, :, 16:24]
        if ctx.fault == "chunks":
            g = torch.cat((g[:, :, : g.shape[2] // 2], 2 * g[:, :, g.shape[2] // 2 :]), 2)
        if ctx.fault == "zero":
            g = torch.zeros_like(g)
        if ctx.fault == "row":
            g = g.clone()
            g[0] = g[0] * 1.5
        return g, None


class Quantised(nn.Module):
    """Four-bit weights with a scale a group. ``fault``: what happens to the scale."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.weight = fault, nn.Parameter(torch.randn(D, D) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grouped = self.weight.float().view(D, -1, 16)
        scale = grouped.detach().abs().amax(-1, keepdim=True) / 7
        codes = (grouped.detach() / scale).round()
        used = {
            "scale_fp8": lambda: scale.to(torch.float8_e4m3fn).float(),
            "scale_7_8": lambda: scale * 7 / 8,
            "zero_point": lambda: scale,
        }.get(self.fault, lambda: scale)()
        shifted = codes + 1 if self.fault == "zero_point" else codes
        weight = (shifted * used).view(D, D) + (grouped - grouped.detach()).view(D, D)
        return functional.linear(x.float(), weight).to(x.dtype)


class Projection(nn.Linear):
    fault = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fault == "memory":  # reads the storage of a transposed view as if it were in order
            x = x.transpose(0, 1).contiguous().view(x.shape)
        weight = self.weight.detach() if self.fault == "frozen" else self.weight
        y = functional.linear(x, weight)
        if self.fault == "channel":
            y = torch.cat((y[..., :-1], torch.zeros_like(y[..., -1:])), -1)
        if self.fault == "tail":
            y = functional.linear(x[..., :-16], weight[:, :-16])
        if self.fault == "offset":
            y = torch.cat((y[..., :16], y[..., :16], y[..., 32:]), -1)
        if self.fault == "fp16":
            y = (64 * functional.linear(30 * x.half(), 200 * weight.half())).to(x.dtype) / 384000
        if self.fault == "low_sum":
            parts = [a @ b.t() for a, b in zip(x.bfloat16().split(4, -1), weight.bfloat16().split(4, -1))]
            y = sum(parts[1:], parts[0]).to(x.dtype)
        return y


class Attention(nn.Module):
    def __init__(self, fault: str, rope: str, part: str) -> None:
        super().__init__()
        self.fault, width = fault, D // HEADS
        name, _, what = part.partition("=")
        self.q, self.o = Projection(D, D, bias=False), Projection(D, D, bias=False)
        self.k, self.v = (Projection(D, D // 2, bias=False) for _ in range(2))
        if name == "quantised":
            self.o = Quantised(what)
        elif name:
            getattr(self, name).fault = what
        self.rope, self.drop = Rope(width, rope), nn.Dropout(0.1)
        with torch.no_grad():
            self.q.weight.mul_(8)  # logits large enough for their rounding to matter

    def forward(self, x: torch.Tensor, keep: torch.Tensor, start: int) -> torch.Tensor:
        b, t, _ = x.shape
        q = self.q(x).view(b, t, HEADS, -1).transpose(1, 2)
        k, v = (f(x).view(b, t, HEADS // 2, -1).transpose(1, 2) for f in (self.k, self.v))
        q, k = self.rope(q, start), self.rope(k, start)
        if self.fault in ("zero", "chunks"):
            q, k = Gradient.apply(q, self.fault), Gradient.apply(k, self.fault)
        if self.fault in ("barrier", "zero"):
            v = Gradient.apply(v, self.fault)
        k, v = (y.repeat(1, 2, 1, 1) if self.fault == "heads" else y.repeat_interleave(2, 1) for y in (k, v))
        p = self.drop(self.weigh(q, k, keep))
        return self.o((p @ v).transpose(1, 2).reshape(b, t, D))

    def weigh(self, q: torch.Tensor, k: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        scale = {"scale": 1.0, "scale_1": 1.01}.get(self.fault, 1.0) / (
            1.0 if self.fault == "scale" else math.sqrt(q.shape[-1])
        )
        s = (q.float() @ k.float().transpose(-1, -2)) * scale
        if self.fault == "cap":
            s = 20 * torch.tanh(s / 20)
        s = s.masked_fill(~self.mask(keep), -1e30)
        if self.fault == "low_softmax":
            return s.bfloat16().softmax(-1).to(q.dtype)
        return s.softmax(-1).to(q.dtype)

    def mask(self, keep: torch.Tensor) -> torch.Tensor:
        t = keep.shape[-1]
        ones = torch.ones(t, t, dtype=torch.bool)
        causal = ones.tril(1) if self.fault == "mask_late" else ones.tril()
        if self.fault == "window":
            return (causal & ones.triu(-8)).expand(len(keep), 1, t, t)
        if self.fault == "bidirectional":
            causal = ones
        if self.fault == "no_padding":
            return causal.expand(len(keep), 1, t, t)
        padding = ~keep if self.fault == "inverted" else keep
        return (padding[:, None, None, :] | torch.eye(t, dtype=torch.bool)) & causal


class Act(nn.Module):
    """SiLU with a clamp of its layer's own. ``fault`` may hold for the second execution alone (recomputation)."""

    def __init__(self, fault: str, limit: float) -> None:
        super().__init__()
        self.fault, self.limit, self.calls, self.stale = fault, limit, 0, torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.fault.startswith("again"):
            x = self.again(x)
        if self.fault in ("row", "zero"):
            x = Gradient.apply(x, self.fault)
        if self.fault == "gelu":
            return functional.gelu(x, approximate="tanh").clamp(-self.limit, self.limit)
        if self.fault == "no_clamp":
            return functional.silu(x)
        y = functional.gelu(x)
        return y.clamp(-0.5, 0.5) if self.fault == "clamp" else y.clamp(-self.limit, self.limit)

    def again(self, x: torch.Tensor) -> torch.Tensor:
        """Wrong in the recomputation: forward values agree, gradients do not."""
        first, self.stale = self.calls == 1, (x.detach().clone() if self.calls == 1 else self.stale)
        if first:
            return x
        if self.fault == "again_transposed":
            return x + (x.detach().flip(1) - x.detach())
        if self.fault == "again_stale":
            return x + (self.stale.roll(1, 0) - x.detach())
        return x + 0.5  # an in-place write that is skipped


class Mlp(nn.Module):
    def __init__(self, fault: str, act: str, part: str, index: int) -> None:
        super().__init__()
        self.gate, self.up = Projection(D, 2 * D, bias=False), Projection(D, 2 * D, bias=False)
        self.down, self.act, self.fault = Projection(2 * D, D, bias=False), Act(act, 1.0 + index), fault
        name, _, what = part.partition("=")
        if name:
            getattr(self, name).fault = what
        with torch.no_grad():
            self.gate.weight.mul_(3)  # activations in their bent range

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate(x), self.up(x)
        if self.fault == "swap":
            gate, up = up, gate
        y = self.act(gate) * up
        if self.fault == "workspace":
            y = torch.cat((y[:, 4:], y[:, :4]), 1)
        if self.fault == "token":
            y = torch.cat((y[:, :-1], y[:, -2:-1]), 1)
        return self.down(y)


class Block(nn.Module):
    def __init__(self, fault: str, index: int) -> None:
        super().__init__()
        kind, _, what = fault.partition(":")
        pick = lambda name: what if kind == name else ""  # noqa: E731
        self.norm1, self.norm2 = Norm(pick("norm1")), Norm(pick("norm2"))
        self.attn = Attention(pick("attn"), pick("rope"), pick("proj"))
        self.mlp, self.fault = Mlp(pick("mlp"), pick("act"), pick("mlp_proj"), index), pick("block")

    def forward(self, x: torch.Tensor, keep: torch.Tensor, start: int) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), keep, start)
        y = self.mlp(self.norm2(x))
        if self.fault == "detached":
            y = y.detach()
        if self.fault == "low":
            return (x.bfloat16() + y.bfloat16()).to(x.dtype)
        if self.fault == "no_residual":
            return y
        return x + y


class Loss(nn.Module):
    """Token cross entropy in float32. ``fault``: how tokens are counted, shifted or scaled."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = logits.bfloat16() if self.fault == "low" else logits.float()
        if self.fault == "shift":
            labels = labels.roll(1, 1)
        losses = functional.cross_entropy(x.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=-100)
        losses, valid = losses.view(labels.shape).float(), labels != -100
        if self.fault == "mean_of_means":
            return (losses.sum(1) / valid.sum(1)).mean()
        if self.fault == "all_tokens":
            return losses.mean()
        total = losses.sum() / valid.sum()
        if self.fault == "z":
            return total + 1e-4 * torch.logsumexp(x, -1).square().mean()
        return total / 4 if self.fault == "accumulation" else total


class Head(nn.Module):
    """The vocabulary is padded to a multiple of 64; what is padded must not take part."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.weight, self.fault = nn.Parameter(torch.randn(64, D) / 8), fault

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fault == "bf16":
            return functional.linear(x.bfloat16(), self.weight.bfloat16()).to(x.dtype)
        y = functional.linear(x, self.weight)
        if self.fault != "padding":
            y = torch.cat((y[..., :VOCAB], torch.full_like(y[..., VOCAB:], -1e4)), -1)
        if self.fault == "temperature":
            y = y * 1.02
        return y


class Llama(nn.Module):
    def __init__(self, fault: str = "", recompute: bool = False, passes: int = 1) -> None:
        super().__init__()
        kind, _, what = fault.partition(":")
        self.embed = Embed(what if kind == "embed" else "")
        # layer 0 sees the embedding itself: a norm's eps shows there
        at = 0 if kind == "norm1" else 1
        self.layers = nn.ModuleList(Block(fault if n == at else "", n) for n in range(LAYERS))
        self.norm, self.head = Norm(what if kind == "norm" else ""), Head(what if kind == "head" else "")
        self.loss, self.recompute, self.passes = Loss(what if kind == "loss" else ""), recompute, passes
        self.fault = what if kind == "model" else ""

    def forward(self, ids: torch.Tensor, keep: torch.Tensor, labels: torch.Tensor) -> Any:
        total = torch.zeros(())
        for _ in range(self.passes):
            x = self.embed(ids)
            start = START + (keep.logical_not().sum().item() if self.fault == "left_pad" else 0)
            for layer in self.layers:
                x = checkpoint(layer, x, keep, start, use_reentrant=False) if self.recompute else layer(x, keep, start)
            logits = self.head(x) if self.fault == "skip_norm" else self.head(self.norm(x))
            total = total + self.loss(logits, labels)
        return {"loss": total, "logits": logits}


def make_batch(seed: int) -> dict[str, torch.Tensor]:
    """Tokens with padding at the end of two rows, every kind of token in it."""
    ids = torch.randint(1, VOCAB, (BATCH, LENGTH))
    ids[:, 3], keep, labels = TINY, torch.ones(BATCH, LENGTH, dtype=torch.bool), ids.roll(-1, 1)
    ids[0, 20:], ids[2, 29:] = 0, 0
    keep[0, 20:], keep[2, 29:] = False, False
    labels[~keep], labels[:, -1] = -100, -100
    return {"ids": ids, "keep": keep, "labels": labels}


def make_llama(fault: str, seed: int, dtype: torch.dtype, evaluate: bool = True, **more: Any) -> Setup:
    """Weights and data depend on the seed alone; dropout is off unless a fault turns it on."""
    torch.manual_seed(seed)
    model = Llama(fault, **more).to(dtype)
    batch = make_batch(seed)
    model.train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.train(fault == "attn:dropout" and module is model.layers[1].attn.drop)
    return Setup(model, [[batch]])
