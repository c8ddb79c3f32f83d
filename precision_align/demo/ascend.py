"""The port of the demo's model to Ascend: its operators replaced by torch_npu's fused ones, and one replaced wrongly.

Import this where ``torch_npu`` is there: on an Ascend host, or after
``precision_align.devices.torch_npu_lookalike.install_lookalike()`` beside the simulated NPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch
import torch_npu
from torch import Tensor, nn

from precision_align.demo.model import CausalAttention, InterleavedRotaryEmbedding, RMSNorm, SwiGLU


def rotate_interleaved(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """What the model means: dimensions 2i and 2i + 1 are a pair."""
    rotated: Tensor = torch_npu.npu_rotary_mul(x, cosine, sine, rotary_mode="interleave")
    return rotated


def rotate_by_default(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """WRONG for this model: ``rotary_mode`` is left at its default "half", which pairs dimensions i and i + D/2.

    The shapes fit and nothing is raised; a model that was trained with interleaved pairs only gets worse.
    """
    rotated: Tensor = torch_npu.npu_rotary_mul(x, cosine, sine)
    return rotated


def forward_rms_norm(self: RMSNorm, x: Tensor) -> Tensor:
    """npu_rms_norm returns the result and the reciprocal root mean square."""
    normalised: Tensor = torch_npu.npu_rms_norm(x, self.weight, epsilon=self.eps)[0]
    return normalised


def forward_swiglu(self: SwiGLU, gate_up: Tensor) -> Tensor:
    """npu_swiglu takes the gate from the first half, as this model packs it."""
    gated: Tensor = torch_npu.npu_swiglu(gate_up.contiguous(), dim=-1)
    return gated


def forward_attention(self: CausalAttention, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """npu_fusion_attention masks where its mask is true, and scales by 1 unless told otherwise."""
    heads, length, size = query.shape[1:]
    later = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1)
    outputs = torch_npu.npu_fusion_attention(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        heads,
        "BNSD",
        atten_mask=later,
        scale=1 / math.sqrt(size),
    )
    attended: Tensor = outputs[0]
    return attended


def make_rotary_forward(rotate: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    """A forward for InterleavedRotaryEmbedding that turns queries and keys with ``rotate``."""

    def forward_rotary(self: InterleavedRotaryEmbedding, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        length = query.shape[-2]
        cosine, sine = self.cosine[:, :, :length], self.sine[:, :, :length]
        return rotate(query, cosine, sine), rotate(key, cosine, sine)

    return forward_rotary


RIGHT: Mapping[type[nn.Module], Callable[..., Any]] = {
    RMSNorm: forward_rms_norm,
    InterleavedRotaryEmbedding: make_rotary_forward(rotate_interleaved),
    SwiGLU: forward_swiglu,
    CausalAttention: forward_attention,
}
WRONG: Mapping[type[nn.Module], Callable[..., Any]] = {
    **RIGHT,
    InterleavedRotaryEmbedding: make_rotary_forward(rotate_by_default),
}


def replace_operators(model: nn.Module, forwards: Mapping[type[nn.Module], Callable[..., Any]]) -> int:
    """Give every module of these classes the new forward. Returns how many were replaced."""
    replaced = 0
    for module in model.modules():
        forward = forwards.get(type(module))
        if forward is not None:
            module.forward = MethodType(forward, module)
            replaced += 1
    return replaced


def rotate_in_case(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False, compact: bool = False) -> Tensor:
    """The wrong replacement in the form in which the operator library's cases of ``rope`` call one."""
    if compact:
        cos, sin = cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)
    width = cos.shape[-1]
    tables = [table.to(x.dtype).expand(1, 1, *table.shape[-2:]).contiguous() for table in (cos, sin)]
    return torch.cat((rotate_by_default(x[..., :width].contiguous(), *tables), x[..., width:]), dim=-1)
