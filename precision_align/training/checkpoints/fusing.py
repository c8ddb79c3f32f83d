"""Projections that one side keeps in one tensor and the other in several: in which layout the parts lie in the whole.

Frameworks differ in whether they store query, key and value apart, one after the other, or interleaved by head or by
group of heads; gate and up projections likewise. The layout is found by the values: that which brings both sides
nearest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# The last module name of the whole -> of its parts in their usual order. What Hugging Face's models, Megatron,
# vLLM and torch.nn.MultiheadAttention call them.
_ATTENTION = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("wq", "wk", "wv"),
    ("to_q", "to_k", "to_v"),
    ("q_lin", "k_lin", "v_lin"),
)
_GATED = (("gate_proj", "up_proj"), ("w1", "w3"), ("wi_0", "wi_1"))
FUSED: dict[str, tuple[tuple[str, ...], ...]] = {
    **dict.fromkeys(("qkv_proj", "query_key_value", "Wqkv", "qkv", "linear_qkv", "in_proj", "c_attn"), _ATTENTION),
    **dict.fromkeys(("gate_up_proj", "linear_fc1", "w13", "gate_up", "dense_h_to_4h"), _GATED),
}


@dataclass(frozen=True)
class Fusion:
    """One tensor of a side and the tensors of the other that it holds, in order."""

    whole: str
    parts: tuple[str, ...]
    whole_is_candidate: bool


def find_fusions(whole_names: set[str], part_names: set[str], *, whole_is_candidate: bool) -> Iterator[Fusion]:
    """Names of wholes that have all their parts on the other side, beside them in the same module."""
    for name in sorted(whole_names):
        owner, projection, local = _split(name)
        for parts in FUSED.get(projection, ()):
            found = tuple(".".join(filter(None, (owner, part, local))) for part in parts)
            if all(part in part_names for part in found):
                yield Fusion(name, found, whole_is_candidate)
                break


def _split(name: str) -> tuple[str, str, str]:
    """(owner, projection, local name); "in_proj_weight" is read as "in_proj.weight"."""
    owner, _, local = name.rpartition(".")
    if local.startswith("in_proj_"):
        return owner, "in_proj", local[len("in_proj_") :]
    owner, _, projection = owner.rpartition(".")
    return owner, projection, local
