"""Argument structures of calls: the tree and the tensors, looked up where the same structure has passed before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import torch

from precision_align.core.trees import Tree, class_name, flatten

Leaves = Sequence[tuple[str, torch.Tensor]]

_ATOMS = frozenset((bool, int, str, type(None)))
_PLAIN_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
# Structures beyond this depth, and others with something in them that cannot be told from its like by a look, are
# flattened every time.
_MAX_DEPTH = 4
# Structures with numbers that change from call to call fill it without ever being met again.
_MAX_KNOWN = 4096

_known: dict[tuple[Any, ...], tuple[Tree, tuple[str, ...]]] = {}
TENSOR_TREE: Tree = {"kind": "tensor", "path": ""}


def is_tensor(value: Any) -> bool:
    """What counts as a tensor in an argument structure."""
    return isinstance(value, torch.Tensor)


@lru_cache(maxsize=1 << 14)
def prefixed(prefix: str, path: str) -> str:
    """A path one level down; unlike :func:`~precision_align.core.trees.join` for a path that is escaped already."""
    return f"{prefix}.{path}" if path else prefix


def flatten_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Tree, Leaves]:
    """The tree of {"args", "kwargs"} and its tensors."""
    if not kwargs and len(args) == 1 and type(args[0]) is torch.Tensor:  # most modules
        return one_tensor_tree(), (("args.0", args[0]),)
    return flatten_arguments({"args": args, "kwargs": kwargs})


@cache
def one_tensor_tree() -> Tree:
    return flatten_arguments({"args": (torch.empty(0),), "kwargs": {}})[0]


def flatten_arguments(value: Any) -> tuple[Tree, Leaves]:
    """The tree and tensors of any value; an object whose own code raises is kept as its class name alone.

    Trees of equal structures are one object: they are not to be changed.
    """
    if type(value) is torch.Tensor:
        return TENSOR_TREE, (("", value),)
    looks: list[Any] = []
    tensors: list[torch.Tensor] = []
    if not _look(value, looks, tensors, 0):
        return _flatten(value)
    key = tuple(looks)
    known = _known.get(key)
    if known is None:
        tree, leaves = _flatten(value)
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[key] = tree, tuple(path for path, _ in leaves)
        return tree, leaves
    return known[0], list(zip(known[1], tensors))


def _flatten(value: Any) -> tuple[Tree, Leaves]:
    try:
        return flatten(value, is_tensor)
    except Exception:
        return {"kind": "object", "class": class_name(type(value))}, []


def _look(value: Any, looks: list[Any], tensors: list[torch.Tensor], depth: int) -> bool:
    """Append what tells this structure from others, and its tensors; False where a look does not tell."""
    kind = type(value)
    looks.append(kind)
    if kind in _PLAIN_TENSORS:
        looks[-1] = torch.Tensor
        tensors.append(value)
    elif kind in _ATOMS:
        looks.append(value)
    elif kind is float:
        looks.append(str(value))  # 0.0 equals -0.0, and NaN nothing
    elif depth >= _MAX_DEPTH:
        return False
    elif kind is tuple or kind is list:
        return _look_inside(value, looks, tensors, depth)
    elif kind is dict:
        return _look_at_keys(value, looks) and _look_inside(value.values(), looks, tensors, depth)
    else:
        return False
    return True


def _look_inside(items: Any, looks: list[Any], tensors: list[torch.Tensor], depth: int) -> bool:
    looks.append(len(items))
    for item in items:  # noqa: SIM110 -- a generator costs as much as the look
        if not _look(item, looks, tensors, depth + 1):
            return False
    return True


def _look_at_keys(value: Mapping[Any, Any], looks: list[Any]) -> bool:
    for key in value:
        if type(key) is not str:
            return False
        looks.append(key)
    return True
