"""How a tensor lies on several ranks, and how it is put together again.

A layout has one placement for each dimension of the grid of ranks, as DTensor's: "Shard(1)", "Replicate", "Partial".
A short form names the tensor's dimensions, with the grid's dimension that each is cut along: ``b[dp] s h[tp]``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Union

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.errors import UsageError
from precision_align.core.tomls import find_toml

REPLICATE, PARTIAL, UNEQUAL = "Replicate", "Partial", "Unequal"  # the last: replicas that differ
_SHARD = re.compile(r"(Strided)?Shard\((\d+)\)")
_PART = re.compile(r"([A-Za-z_]\w*|\.\.\.)(?:\[(\w+(?:,\w+)*)\])?")
_SUM = re.compile(r"sum\[(\w+(?:,\w+)*)\]")

Placements = tuple[str, ...]
Stage = tuple[frozenset[int], str, Union[str, int]]
Cells = Any  # an object array of the grid's shape: of records, shapes or arrays


@dataclass(frozen=True)
class Grid:
    """Ranks in as many dimensions as there are kinds of parallelism; ``names``: of the dimensions, "" if unknown."""

    ranks: Array
    names: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.ranks.shape)

    def select(self, ranks: Collection[int]) -> Grid | None:
        """The part with just these ranks, of as many dimensions; None where they do not make up a block."""
        places = np.argwhere(np.isin(self.ranks, list(ranks)))
        block = np.ix_(*(np.unique(places[:, axis]) for axis in range(self.ranks.ndim)))
        return Grid(self.ranks[block], self.names) if self.ranks[block].size == len(places) == len(ranks) else None


@dataclass(frozen=True)
class Layouts:
    """What a layout file says: ``mesh``: name -> size, outermost first; ``tensors``: (glob of a scope, role or "",
    dims string) in the file's order, the last that fits wins; ``stages``: (ranks, scope there, the whole model's scope,
    or of a list of modules what is added to each number); ``path``: for messages."""

    mesh: Mapping[str, int] = field(default_factory=dict)
    tensors: Sequence[tuple[str, str, str]] = ()
    stages: Sequence[Stage] = ()
    path: str = ""

    def find(self, scope: str, role: str, path: str) -> str:
        """The dims string of a record, "" where none fits. A glob is held against "scope" and "scope:path"."""
        found = ""
        for glob, of, dims in self.tensors:
            if of in ("", role) and (fnmatchcase(scope, glob) or fnmatchcase(f"{scope}:{path}", glob)):
                found = dims
        return found


def shard_dimension(placement: str) -> int | None:
    """The tensor's dimension that a placement cuts, None where it cuts none."""
    found = _SHARD.fullmatch(placement)
    return None if found is None else int(found.group(2))


def assemble(pieces: Cells, placements: Sequence[str], join: Any = None) -> Array:
    """Put pieces together. ``pieces``: an object array of the grid's shape; ``join``: how parts that are to be summed
    are (default: a sum in float64).

    The grid's last dimension was cut last and is joined first; a strided shard (FSDP over tensor parallelism) was.
    """
    order = sorted(range(len(placements)), key=lambda one: (not placements[one].startswith("Strided"), -one))
    axes = list(range(len(placements)))
    for dimension in order:
        axis = axes.index(dimension)
        axes.pop(axis)
        lines = np.moveaxis(pieces, axis, -1)
        joined = np.empty(lines.shape[:-1], dtype=object)
        for place in np.ndindex(*joined.shape):
            joined[place] = _join(list(lines[place]), placements[dimension], join)
        pieces = joined
    whole: Array = pieces[()]
    return whole


def _join(line: list[Array], placement: str, join: Any) -> Array:
    dimension = shard_dimension(placement)
    if dimension is not None:
        return np.concatenate(line, axis=dimension)
    if placement.startswith(PARTIAL):
        total: Array = np.sum([one.astype(np.float64) for one in line], axis=0) if join is None else join(line)
        return total / len(line) if "avg" in placement else total
    return line[0]


def name_owners(shapes: Cells, ranks: Array, placements: Sequence[str]) -> Array:
    """For each element of the whole the rank that it comes from; -1 where several add to it."""
    pieces = np.empty(ranks.shape, dtype=object)
    for place in np.ndindex(*ranks.shape):
        pieces[place] = np.full(shapes[place], ranks[place], dtype=np.int32)
    return assemble(pieces, placements, join=lambda line: np.full_like(line[0], -1))


def parse_dims(text: str, grid: Grid, rank: int) -> Placements:
    """Placements from ``b[dp] s h[tp]`` (with ``sum[tp]`` before it where ranks hold parts of a sum).

    ``rank``: of the tensor: "..." stands for the dimensions in between. Raises UsageError.
    """
    placements = [REPLICATE] * len(grid.shape)
    words = text.split()
    for word in [word for word in words if _SUM.fullmatch(word)]:
        for name in word[4:-1].split(","):
            placements[_find_dimension(name, grid, text)] = PARTIAL
    dims = [word for word in words if not _SUM.fullmatch(word)]
    behind = len(dims) - dims.index("...") - 1 if "..." in dims else 0
    for number, word in enumerate(dims):
        part = _PART.fullmatch(word)
        if part is None:
            raise UsageError(f'layout {text!r}: {word!r} is no dimension; write such as "b s h[tp]"')
        place = number if not behind and "..." not in dims[:number] else rank - (len(dims) - number)
        for name in (part.group(2) or "").split(",") if part.group(2) else ():
            placements[_find_dimension(name, grid, text)] = f"Shard({place})"
    if "..." not in dims and dims and len(dims) != rank:
        raise UsageError(f"layout {text!r} has {len(dims)} dimensions, the tensor {rank}")
    return tuple(placements)


def _find_dimension(name: str, grid: Grid, text: str) -> int:
    if name not in grid.names:
        known = ", ".join(filter(None, grid.names)) or "none has a name: give [mesh] in the layout file"
        raise UsageError(f"layout {text!r}: the ranks have no dimension {name!r} ({known})")
    return grid.names.index(name)


def read_layouts(path: str | os.PathLike[str]) -> Layouts:
    """Read a TOML file with ``[mesh]`` (name = size, outermost first), ``[tensors]`` (glob = dims, or a table
    {input = dims, output = dims, gradient = dims}) and ``[stages]`` (ranks such as "2,3" = a table of scopes there =
    the whole model's scope or number). Raises UsageError with all that is wrong."""
    content = _load(Path(path))
    problems = [f"unknown key {key!r}" for key in content if key not in ("mesh", "tensors", "stages")]
    mesh, tensors = content.get("mesh", {}), content.get("tensors", {})
    problems += [f"mesh.{name} = {size!r} is no size" for name, size in mesh.items() if not _is_size(size)]
    entries: list[tuple[str, str, str]] = []
    for glob, value in tensors.items():
        each = value if isinstance(value, dict) else {"": value}
        for role, dims in each.items():
            if not isinstance(dims, str) or role not in ("", "input", "output", "gradient", "parameter"):
                problems.append(
                    f"tensors.{glob}: write a dims string, or {{input = ..., output = ..., gradient = ...}}"
                )
            else:
                entries.append((glob, role, dims))
    stages = _read_stages(content.get("stages", {}), problems)
    if problems:
        raise UsageError(f"{path}: " + "; ".join(problems))
    return Layouts(dict(mesh), tuple(entries), stages, str(path))


def _read_stages(content: Mapping[str, Any], problems: list[str]) -> tuple[Stage, ...]:
    stages = []
    for ranks, scopes in content.items():
        numbers = [one.strip() for one in ranks.split(",")]
        if not all(one.isdecimal() for one in numbers) or not isinstance(scopes, dict):
            problems.append(f'stages.{ranks}: write ranks and scopes, such as "2,3" = {{ layers = 4 }}')
            continue
        for scope, target in scopes.items():
            if isinstance(target, bool) or not isinstance(target, (str, int)):
                problems.append(f"stages.{ranks}.{scope} = {target!r} is neither a scope nor a number")
            else:
                stages.append((frozenset(map(int, numbers)), scope, target))
    return tuple(stages)


def _is_size(size: object) -> bool:
    return isinstance(size, int) and size > 0


def _load(path: Path) -> dict[str, Any]:
    try:
        return dict(find_toml().loads(path.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise UsageError(f"the layout file {path} cannot be read: {error}") from error
