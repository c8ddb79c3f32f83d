"""Which numbers of a model's configuration can be cut, and how they hang together.

The names are those of Hugging Face's configurations and of what model code calls its constructor's arguments. Ratios
are kept: width is cut with the feed-forward size and the numbers of heads, so that the size of a head, its rotary part
and the heads a group stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers", "depth")
HIDDEN = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "width")
INNER = ("intermediate_size", "ffn_dim", "n_inner", "d_ff", "moe_intermediate_size", "ffn_hidden_size", "inner")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "heads")
GROUPS = ("num_key_value_heads", "n_kv_heads", "kv_heads", "num_query_groups")
VOCABULARY = ("vocab_size", "n_vocab", "vocabulary")
SEQUENCE = ("max_position_embeddings", "n_positions", "seq_length", "seq_len", "sequence_length", "length")
BATCH = ("batch_size", "batch", "samples")
IMAGE = ("image_size", "img_size", "input_size", "resolution")
PATCH = ("patch_size", "patch")
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

    ``exact``: only these factors keep the ratios, which divide every field without remainder; else any size will do.
    """

    name: str
    fields: tuple[str, ...]
    factors: tuple[int, ...]
    exact: bool = True


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
            found.append(Dimension(name, fields, factors, exact=names is EXPERTS))
    width = _find_width(config)
    return [dimension for dimension in [*found, *_find_image(config), *width] if dimension.factors]


def _find_image(config: Mapping[str, Any]) -> list[Dimension]:
    """The side of an image: whole patches are kept."""
    fields = _present(config, IMAGE)
    if not fields:
        return []
    patch = max((int(config[field]) for field in _present(config, PATCH)), default=1)
    sizes = [int(config[field]) // patch if int(config[field]) % patch == 0 else 1 for field in fields]
    return [Dimension("image", fields, _list_factors(sizes, exact=True))]


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


def cut(config: Mapping[str, Any], dimension: Dimension, factor: int | Fraction) -> dict[str, Any]:
    """The configuration with one dimension divided by a factor (1 leaves it as it is), fractions rounded down."""
    return {**config, **{field: max(1, int(config[field]) // factor) for field in dimension.fields}}
