"""In how many dimensions a run's ranks stand, and what their DTensors say of where a tensor lies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from precision_align.alignment.layouts import REPLICATE, Cells, Grid, Layouts, Placements
from precision_align.core.errors import UsageError
from precision_align.storage.base import Dump


def find_grid(dump: Dump, layouts: Layouts) -> Grid:
    """From the layout file, else from the meshes of sharded parameters, else one dimension. Raises UsageError."""
    ranks = sorted(dump.ranks)
    if layouts.mesh:
        sizes = list(layouts.mesh.values())
        if int(np.prod(sizes)) != len(ranks):
            product = " x ".join(map(str, sizes))
            raise UsageError(f"{layouts.path}: [mesh] is {product}, and the dump has {len(ranks)} ranks")
        return Grid(np.array(ranks).reshape(sizes), tuple(layouts.mesh))
    meshes = _list_meshes(dump)
    whole = [mesh for mesh in meshes if sorted(mesh.ranks.flat) == ranks]
    if whole and max(mesh.ranks.ndim for mesh in whole) > 1:
        return max(whole, key=lambda mesh: mesh.ranks.ndim)
    lines = [mesh for mesh in meshes if mesh.ranks.ndim == 1 and mesh.ranks.size < len(ranks)]
    stacked = _stack(lines, ranks)
    if stacked is not None:
        return stacked
    return whole[0] if whole else Grid(np.array(ranks), ("",))


def _list_meshes(dump: Dump) -> list[Grid]:
    found = []
    for info in dump.infos:
        for mesh in (info.capture.get("layout") or {}).get("meshes", ()):
            ranks = np.array(mesh["mesh"])
            names = tuple(mesh["names"]) or ("",) * ranks.ndim
            found.append(Grid(ranks, names))
    return found


def _stack(lines: Sequence[Grid], ranks: Sequence[int]) -> Grid | None:
    """Meshes of parts of the ranks, one under the other, where they make up all of them."""
    unique = {tuple(map(int, line.ranks)): line for line in lines}
    if sorted(rank for line in unique for rank in line) != list(ranks) or len({len(line) for line in unique}) != 1:
        return None
    name = next(iter(unique.values())).names[0]
    return Grid(np.array(sorted(unique)), ("", name))


def find_known(records: Cells, grid: Grid) -> Placements | None:
    """The placements of a distributed tensor on the grid; None where it is not one, or its mesh is no part of that."""
    shard = records.flat[0].extra.get("shard")
    if shard is None:
        return None
    mesh, placements = np.array(shard["mesh"]), [str(one) for one in shard["placements"]]
    if np.array_equal(mesh, grid.ranks):
        return tuple(placements)
    if mesh.ndim != 1:
        return None
    for axis in range(grid.ranks.ndim):
        line = np.moveaxis(grid.ranks, axis, -1).reshape(-1, grid.shape[axis])[0]
        if np.array_equal(line, mesh):
            return tuple(placements[0] if one == axis else REPLICATE for one in range(grid.ranks.ndim))
    return None
