"""A checkpoint as names and loaders, whatever its format: nothing is loaded before it is asked for.

Read are torch's .pt, .pth and .bin files (zip format; by an unpickler that runs nothing), .safetensors, folders of
either with Hugging Face's index, torch's distributed checkpoints, and dumps of our own: the live model as it was
recorded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from precision_align.core.dtypes import dtype_of
from precision_align.core.errors import DumpDamaged, DumpForeign, DumpNotFound
from precision_align.core.keys import Key
from precision_align.core.terms import Role, Source, Tier
from precision_align.core.wrappers import strip_wrappers
from precision_align.storage.base import Dump
from precision_align.storage.foreign.arrays import list_safetensors
from precision_align.storage.foreign.items import Tensor, Unreadable
from precision_align.storage.foreign.pickles import list_pickle
from precision_align.training.checkpoints.distributed import METADATA, list_distributed
from precision_align.training.health.facts import name_parameter

Loader = Callable[[], Tensor]

_PICKLES = (".pt", ".pth", ".bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_SHARDS = ("model*.safetensors", "pytorch_model*.bin", "*.safetensors", "*.pt", "*.pth", "*.bin")


@dataclass(frozen=True)
class Checkpoint:
    """``tensors``: name -> loader; ``kind``: what was read, in words; ``notes``: what is missing or was left out."""

    path: str
    kind: str
    tensors: Mapping[str, Loader]
    notes: tuple[str, ...] = field(default=())

    def load(self, name: str) -> Tensor:
        """One tensor, a read-only view where the file can be mapped. Raises DumpDamaged where it cannot be read."""
        try:
            return self.tensors[name]()
        except Unreadable as error:
            raise DumpDamaged(f"{self.path}: the tensor {name!r} cannot be read: {error}") from error


def open_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Open a checkpoint. Raises DumpNotFound, DumpForeign (nothing that is known), DumpDamaged."""
    place = Path(path)
    if not place.exists():
        raise DumpNotFound(f"no file or folder at {place}")
    if place.is_file():
        return Checkpoint(str(place), _name_kind(place), _list_file(place))
    if (place / METADATA).is_file():
        return Checkpoint(str(place), "distributed checkpoint", list_distributed(place))
    index = next((place / name for name in _INDEXES if (place / name).is_file()), None)
    if index is not None:
        return _open_index(place, index)
    shards = next((found for pattern in _SHARDS if (found := sorted(place.glob(pattern)))), [])
    if shards:
        return _open_shards(place, shards)
    return _open_recording(place)


def _name_kind(place: Path) -> str:
    return "safetensors file" if place.suffix == ".safetensors" else "torch file"


def _list_file(place: Path) -> Mapping[str, Loader]:
    if place.suffix == ".safetensors":
        return list_safetensors(place)
    if place.suffix in _PICKLES:
        return list_pickle(place)
    raise DumpForeign(
        f"{place}: {place.suffix or 'no suffix'} is no form of checkpoint that is read; there are .safetensors, "
        f"{', '.join(_PICKLES)}, folders of them, distributed checkpoints and dumps"
    )


def _open_index(place: Path, index: Path) -> Checkpoint:
    """Shards by Hugging Face's index; what the index promises and no shard holds is said."""
    try:
        wanted = json.loads(index.read_text("utf-8"))["weight_map"]
        files = sorted({str(name) for name in wanted.values()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DumpDamaged(f"{index} is no readable index: {error!r}; save the checkpoint again") from error
    missing = [name for name in files if not (place / name).is_file()]
    if missing:
        raise DumpDamaged(f"{index} names {len(missing)} files that are not there, such as {missing[0]}; copy them too")
    tensors: dict[str, Loader] = {}
    for name in files:
        tensors.update(_list_file(place / name))
    lost = [name for name in wanted if name not in tensors]
    notes = [f"{index.name} promises {name!r}, and no file holds it" for name in lost[:20]]
    extra = [name for name in tensors if name not in wanted]
    notes += [f"{name!r} is in a file but not in {index.name}: loaders pass it over" for name in extra[:20]]
    return Checkpoint(str(place), f"{len(files)} shards with an index", tensors, tuple(notes))


def _open_shards(place: Path, shards: list[Path]) -> Checkpoint:
    tensors: dict[str, Loader] = {}
    notes = []
    for shard in shards:
        found = _list_file(shard)
        notes += [
            f"{name!r} is in more than one file; that of {shard.name} counts" for name in found if name in tensors
        ]
        tensors.update(found)
    return Checkpoint(str(place), f"{len(shards)} files", tensors, tuple(notes[:20]))


def _open_recording(place: Path) -> Checkpoint:
    from precision_align.storage.opening import open_dump

    try:
        dump = open_dump(place)
    except DumpForeign as error:
        raise DumpForeign(f"{place} holds no checkpoint: no {METADATA}, no index, no tensor files, no dump") from error
    step = max(dump.steps, default=0)
    tensors = dict(_list_recorded(dump, step))
    if not tensors:
        raise DumpForeign(f"{place} is a dump without full parameters; record with --payload full")
    return Checkpoint(str(place), f"the live model at the end of step {step}", tensors)


def _list_recorded(dump: Dump, step: int) -> Iterator[tuple[str, Loader]]:
    """Parameters and buffers of one step, the value after the optimizer's step where that was recorded."""
    found: dict[str, tuple[int, Loader]] = {}
    for record in dump.records:
        key = record.key
        if key.step != step or key.rank != min(dump.ranks) or record.tier != Tier.FULL:
            continue
        rank = _prefer(key)
        if rank is None:
            continue
        name = strip_wrappers(name_parameter(key, key.path.rpartition("after.")[2]))
        if rank >= found.get(name, (0,))[0]:
            found[name] = rank, partial(_load_recorded, dump, record.key, record.dtype)
    yield from ((name, load) for name, (_, load) in found.items())


def _prefer(key: Key) -> int | None:
    """How late in the step a value was taken; None for what is no parameter or buffer."""
    if key.role == Role.PARAMETER:
        return {Source.PARAMETERS: 1, Source.OPTIMIZER: 2}.get(key.source)
    if key.role == Role.BUFFER and key.source == Source.PARAMETERS:
        return 1
    return 2 if key.role == Role.BUFFER and key.path.startswith("after.") else None


def _load_recorded(dump: Dump, key: Key, dtype: str) -> Tensor:
    words = dump.map_payload(key)
    if words is None:
        words = dump.payload(key)
    return Tensor(words, dtype_of(dtype).name)
