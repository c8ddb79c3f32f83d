"""The autograd nodes made inside a call that send gradients to its inputs and parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

import torch

from precision_align.recording.nodes import sequence_of, sequence_position

Edge = tuple[Any, int]  # an autograd node and the number of its output


@dataclass
class Targets:
    """Where gradients enter a call's inputs and own parameters, taken before the call (in-place code rebases edges).

    ``edges``: (id of node, output number) -> path, for tensors with a history; ``leaves``: id of tensor -> path;
    ``boundary``: nodes numbered below it were made before the call. ``keep`` holds the nodes so that their ids last;
    ``also``: path -> further paths of the same tensor; ``dtypes`` of the tensors by path.
    """

    edges: dict[tuple[int, int], str] = field(default_factory=dict)
    leaves: dict[int, str] = field(default_factory=dict)
    boundary: int = 0
    keep: dict[int, Any] = field(default_factory=dict)
    also: dict[str, list[str]] = field(default_factory=dict)
    dtypes: dict[str, torch.dtype] = field(default_factory=dict)

    def add(self, path: str, tensor: torch.Tensor) -> None:
        """One more input or parameter; those that need no gradient do not count, nor does the same tensor again."""
        if not tensor.requires_grad:
            return
        node = tensor.grad_fn
        if node is None:
            first = self.leaves.setdefault(id(tensor), path)
        else:
            first = self.edges.setdefault((id(node), tensor.output_nr), path)
            self.keep[id(node)] = node
        self.dtypes.setdefault(first, tensor.dtype)
        if first != path:
            self.also.setdefault(first, []).append(path)

    def set_boundary(self) -> None:
        """Take the boundary, now; without help from torch: the youngest input's number."""
        position = sequence_position()
        if position is None:
            position = max((sequence_of(node) + 1 for node in self.keep.values()), default=0)
        self.boundary = position

    def __bool__(self) -> bool:
        return bool(self.edges or self.leaves)


# The types of nodes that stand for leaves, and of casts; no Function of a user's can have these names.
_LEAF, _CAST = "AccumulateGrad", "ToCopyBackward0"


def find_consumers(roots: Iterable[Any], targets: Targets) -> dict[str, list[Edge]]:
    """The nodes made inside the call that send gradients to its targets: path -> (node, index of its gradient).

    Walks from the outputs' nodes (``roots``) back to what was made before the call.
    """
    found: dict[str, list[Edge]] = {}
    if not targets:
        return found
    seen: dict[int, Any] = {}  # keeps the nodes' Python objects alive, so that their ids stay their own
    keep, edges, leaves, boundary = targets.keep, targets.edges, targets.leaves, targets.boundary
    stack = [node for node in roots if node is not None and type(node).__name__ != _LEAF]
    while stack:
        node = stack.pop()
        key = id(node)
        if key in seen or key in keep:
            continue
        seen[key] = node
        if node._sequence_nr() < boundary:
            continue
        index = -1
        for edge in node.next_functions:
            index += 1
            below = edge[0]
            path = edges.get((id(below), edge[1])) or _path_of_leaf(below, leaves)
            if path:
                found.setdefault(path, []).append((node, index))
            elif path is None:
                stack.append(below)
    return found


def _path_of_leaf(node: Any, leaves: Mapping[int, str]) -> Optional[str]:
    """The path of the leaf that this node stands for, or casts; "" for other leaves and no node, None for the rest.

    Autocast casts a parameter once and shares the cast between all calls: what a call sends to the cast is its share,
    what the cast sends on is everybody's.
    """
    if node is None:
        return ""
    kind = type(node).__name__
    if kind == _LEAF:
        return leaves.get(id(node.variable), "")
    if kind != _CAST:
        return None
    below = node.next_functions[0][0]
    is_leaf = below is not None and type(below).__name__ == _LEAF
    return leaves.get(id(below.variable)) if is_leaf else None
