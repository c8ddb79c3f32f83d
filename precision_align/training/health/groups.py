"""Groups of ranks, and what they are called."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

from precision_align.comparison.exchanges import Exchange, list_groups, match_exchanges
from precision_align.core.records import TensorRecord
from precision_align.storage.base import Dump

# Parts of the names that frameworks give to groups and mesh dimensions -> what the group is for. The first that fits.
_KINDS = (
    ("expert", ("expert", "ep", "moe")),
    ("data", ("data", "dp", "fsdp", "replicate", "batch", "shard")),
    ("tensor", ("tensor", "tp", "model")),
    ("context", ("context", "cp", "ring", "ulysses")),
    ("sequence", ("sequence", "sp")),
    ("pipeline", ("pipeline", "pipe", "pp", "stage")),
)


class Groups:
    """The groups of one dump's ranks: those that its collectives ran in and those of its meshes."""

    def __init__(self, dump: Dump) -> None:
        self._dump = dump

    @cached_property
    def exchanges(self) -> Sequence[Exchange]:
        """All collectives, matched across ranks."""
        return match_exchanges(self._dump)

    @cached_property
    def _names(self) -> Mapping[frozenset[int], str]:
        return list_groups(self.exchanges)

    def describe(self, ranks: Collection[int], shard: Mapping[str, object] | None = None) -> str:
        """ "0,1 (data)": the ranks and what their group is for, as far as a name tells."""
        text = ",".join(map(str, sorted(ranks)))
        name = self._names.get(frozenset(ranks), "")
        names = shard.get("mesh_names") if shard else None
        if not name and isinstance(names, list) and len(names) == 1:
            name = str(names[0])
        kind = classify_group(name)
        return f"{text} ({kind})" if kind else text


def classify_group(name: str) -> str:
    """What a group is for by its name: "tp" -> "tensor"; the name itself where it says nothing known."""
    words = [word for word in name.lower().replace("-", "_").split("_") if word]
    for kind, known in _KINDS:
        if any(word in known for word in words):
            return kind
    return name


def find_mesh_group(record: TensorRecord, dimension: int) -> list[int]:
    """The ranks along one mesh dimension through the record's own coordinate."""
    import numpy as np

    shard = record.extra["shard"]
    place: list[int | slice] = [int(number) for number in shard["coordinate"]]
    place[dimension] = slice(None)
    return [int(rank) for rank in np.asarray(shard["mesh"])[tuple(place)]]


def is_shard(record: TensorRecord) -> bool:
    """Whether a distributed tensor's record is a part of it."""
    placements = (record.extra.get("shard") or {}).get("placements", ())
    return any(not str(kind).startswith("Replicate") for kind in placements)
