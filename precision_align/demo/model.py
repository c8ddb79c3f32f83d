"""A small GPT-like language model, written as a user would write it: no line of it knows of precision-align."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the model; the default has about 0.4 million parameters.

    ``vocabulary``: number of byte values; ``context``: the longest sequence, in tokens; ``hidden``: width of the
    residual stream, a multiple of ``heads``; ``inner``: width of the MLP after the gate.
    """

    vocabulary: int = 256
    context: int = 64
    hidden: int = 96
    heads: int = 4
    layers: int = 3
    inner: int = 256

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension."""

    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.float().pow(2).mean(-1, keepdim=True)
        return (x.float() * torch.rsqrt(variance + self.eps)).to(x.dtype) * self.weight


class InterleavedRotaryEmbedding(nn.Module):
    """Rotary position embedding in GPT-J's layout: dimensions 2i and 2i + 1 form the pair that is rotated.

    Takes queries and keys of shape (batch, heads, length, head size) and returns both, rotated.
    """

    cosine: Tensor
    sine: Tensor

    def __init__(self, head_size: int, context: int, base: float = 10000.0) -> None:
        super().__init__()
        frequencies = base ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
        angles = torch.outer(torch.arange(context, dtype=torch.float64), frequencies).repeat_interleave(2, dim=-1)
        self.register_buffer("cosine", angles.cos().float()[None, None], persistent=False)
        self.register_buffer("sine", angles.sin().float()[None, None], persistent=False)

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        length = query.shape[-2]
        cosine, sine = self.cosine[:, :, :length], self.sine[:, :, :length]
        return self.rotate(query, cosine, sine), self.rotate(key, cosine, sine)

    @staticmethod
    def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Rotate each pair: (a, b) becomes (a cos - b sin, b cos + a sin)."""
        turned = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)
        return x * cosine + turned * sine


class CausalAttention(nn.Module):
    """softmax(q k^T / sqrt(head size) + causal mask) v on (batch, heads, length, head size)."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)


class SwiGLU(nn.Module):
    """silu(gate) * up, where gate is the first half of the last dimension and up the second."""

    def forward(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate) * up


class SelfAttention(nn.Module):
    """Projections, rotary embedding, attention."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden, bias=False)
        self.rotary = InterleavedRotaryEmbedding(config.head_size, config.context)
        self.core = CausalAttention()
        self.output = nn.Linear(config.hidden, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, hidden = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        query, key = self.rotary(query, key)
        mixed = self.core(query, key, value)
        out: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return out


class FeedForward(nn.Module):
    """The gated MLP."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.hidden, 2 * config.inner, bias=False)
        self.activation = SwiGLU()
        self.down = nn.Linear(config.inner, config.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.activation(self.gate_up(x)))
        return out


class Block(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden)
        self.attention = SelfAttention(config)
        self.mlp_norm = RMSNorm(config.hidden)
        self.mlp = FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class LanguageModel(nn.Module):
    """Bytes in, the loss of the next byte out."""

    def __init__(self, config: ModelConfig | None = None) -> None:
        super().__init__()
        config = config or ModelConfig()
        self.embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy, in nats a byte. Both arguments: int64, (batch, length)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def build_model(seed: int = 0) -> LanguageModel:
    """The model with its initial weights, the same on every machine: they are drawn on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LanguageModel()
