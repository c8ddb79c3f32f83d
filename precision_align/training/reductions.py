"""Which numbers of a model's configuration can be cut, and how they hang together.

The names are those of Hugging Face's configurations and of what model code calls its constructor's arguments. Ratios
are kept: width is cut with the feed-forward size and the numbers of heads, so that the size of a head, its rotary part
and the heads a group stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers", "depth")
HIDDEN = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "width")
INNER = ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "moe_intermediate_size", "ffn_hidden_size", "inner")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "heads")
GROUPS = ("num_key_value_heads", "n_kv_heads", "kv_heads", "num_query_groups")
VOCABULARY = ("vocab_size", "n_vocab", "vocabulary")
SEQUENCE = ("max_position_embeddings", "n_positions", "seq_length", "seq_len", "sequence_length", "length")
BATCH = ("batch_size", "batch", "samples")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "experts")
CHOSEN = ("num_experts_per_tok", "moe_topk", "top_k", "experts_per_token")
# cut in this order: first what makes every further trial cheapest
_ALONE = (
    ("layers", LAYERS),
    ("batch", BATCH),
    ("sequence", SEQUENCE),
    ("vocabulary", VOCABULARY),
    ("experts", EXPERTS),
)


@dataclass(frozen=True)
class Dimension:
    """One thing that can be cut: the fields that change together, and the factors to try, largest first.

    A factor divides every field without remainder.
    """

    name: str
    fields: tuple[str, ...]
    factors: tuple[int, ...]


def find_dimensions(config: Mapping[str, Any]) -> list[Dimension]:
    """Everything in a configuration that can be cut, in the order to try."""
    found = []
    for name, names in _ALONE:
        fields = _present(config, names)
        if fields:
            least = (
                max((int(config[field]) for field in _present(config, CHOSEN)), default=1) if names is EXPERTS else 1
            )
            factors = _list_factors([int(config[field]) // least for field in fields], exact=False)
            found.append(Dimension(name, fields, factors))
    width = _find_width(config)
    return [dimension for dimension in [*found, *width] if dimension.factors]


def _find_width(config: Mapping[str, Any]) -> list[Dimension]:
    hidden = _present(config, HIDDEN)
    if not hidden:
        return []
    fields = (*hidden, *_present(config, INNER), *_present(config, HEADS), *_present(config, GROUPS))
    return [Dimension("width", fields, _list_factors([int(config[field]) for field in fields], exact=True))]


def _present(config: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(
        name
        for name in names
        if isinstance(config.get(name), int) and not isinstance(config[name], bool) and config[name] > 1
    )


def _list_factors(sizes: list[int], *, exact: bool) -> tuple[int, ...]:
    """Factors over 1, largest first: divisors of every size; where ``exact`` is not needed, powers of two as well."""
    least = min(sizes)
    factors = {factor for factor in range(2, least + 1) if all(size % factor == 0 for size in sizes)}
    if not exact:
        factors |= {2**power for power in range(1, least.bit_length()) if 2**power <= least}
    return tuple(sorted(factors, reverse=True))


def cut(config: Mapping[str, Any], dimension: Dimension, factor: int) -> dict[str, Any]:
    """The configuration with one dimension divided by a factor (1 leaves it as it is)."""
    return {**config, **{field: max(1, int(config[field]) // factor) for field in dimension.fields}}
