"""Process groups as the dispatcher hands them over: ranks, and the name of the mesh dimension they are of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch


@dataclass(frozen=True)
class Group:
    """``ranks``: global, in the group's order, () where this torch does not tell; ``name``: of the mesh dimension or
    what its maker called it, "" where nothing is known ("world" for the default group)."""

    ranks: tuple[int, ...]
    name: str


UNKNOWN = Group((), "")


def find_group(args: Any, kwargs: Any) -> Group:
    """The process group among the arguments of a collective's operator: an object, a name, or a list of ranks."""
    ranks = kwargs.get("ranks")
    if ranks is not None:
        return Group(tuple(ranks), "world" if len(ranks) == torch.distributed.get_world_size() else "")
    for value in (*args, *kwargs.values()):
        group = _unbox(value)
        if group is not None:
            return describe_group(group)
    return _find_only()


def _unbox(value: Any) -> Any:
    """The process group behind an operator's argument, None for other arguments."""
    kind = torch.distributed.ProcessGroup
    if isinstance(value, kind):
        return value
    if isinstance(value, torch.ScriptObject) and hasattr(kind, "unbox") and "ProcessGroup" in str(value._type()):
        return kind.unbox(value)
    return None


def resolve_name(name: str) -> Group:
    """A group by the name that functional collectives carry."""
    resolve = getattr(torch._C._distributed_c10d, "_resolve_process_group", None)
    return _find_only() if resolve is None else describe_group(resolve(name))


def describe_group(group: Any) -> Group:
    """Ranks and name of a process group."""
    ranks = tuple(torch.distributed.get_process_group_ranks(group))
    return Group(ranks, _clean(str(getattr(group, "group_desc", "") or ""), len(ranks)))


@lru_cache(maxsize=256)
def _clean(name: str, size: int) -> str:
    """The name without what torch puts around it: "mesh_tp" -> "tp"."""
    if name in ("default_pg", "") and size == torch.distributed.get_world_size():
        return "world"
    if name in ("undefined", "default_pg"):
        return ""
    return name[5:] if name.startswith("mesh_") else name


def _find_only() -> Group:
    """Torch before 2.3 does not say which group a collective runs in: where there is one alone, it is that."""
    world = getattr(torch.distributed.distributed_c10d, "_world", None)
    groups = list(getattr(world, "pg_map", ()))
    return describe_group(groups[0]) if len(groups) == 1 else UNKNOWN
