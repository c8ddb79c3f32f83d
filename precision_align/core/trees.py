"""Argument structures as plain JSON: containers, scalars, flags and class names, never pickled objects.

:func:`flatten` turns any nesting into a JSON tree whose tensors are replaced by their paths; :func:`rebuild` is the
inverse, given tensors and a way to resolve class names. Paths join the parts with "."; "." , "%" and "/" inside a part
are percent-escaped. The root itself has the path "".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Callable, Optional

Tree = dict[str, Any]
IsTensor = Callable[[Any], bool]
Resolve = Callable[[str], Optional[type]]

_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Unbuildable(Exception):
    """A tree names something that may not, or cannot, be built here; the text says what."""


def join(prefix: str, part: object) -> str:
    """One path deeper."""
    text = str(part).replace("%", "%25").replace(".", "%2E").replace("/", "%2F")
    return f"{prefix}.{text}" if prefix else text


def class_name(kind: type) -> str:
    """The full name of a class, as it stands in a tree."""
    return f"{kind.__module__}.{kind.__qualname__}"


def flatten(value: Any, is_tensor: IsTensor, prefix: str = "") -> tuple[Tree, list[tuple[str, Any]]]:
    """Split a nesting into its JSON tree and its tensors with their paths, in order."""
    leaves: list[tuple[str, Any]] = []
    return _flatten(value, is_tensor, prefix, leaves, set()), leaves


def _flatten(value: Any, is_tensor: IsTensor, path: str, leaves: list[tuple[str, Any]], above: set[int]) -> Tree:
    if is_tensor(value):
        leaves.append((path, value))
        return {"kind": "tensor", "path": path}
    scalar = _flatten_scalar(value)
    if scalar is not None:
        return scalar
    if id(value) in above:
        return {"kind": "cycle", "class": class_name(type(value))}
    inside = above | {id(value)}

    def child(part: object, item: Any) -> Tree:
        return _flatten(item, is_tensor, join(path, part), leaves, inside)

    name = class_name(type(value))
    if isinstance(value, Mapping):
        kind = "dict" if type(value) is dict else "mapping"
        return {
            "kind": kind,
            "class": name,
            "keys": [_flatten_key(key) for key in value],
            "items": [child(key, item) for key, item in value.items()],
        }
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        items = [child(field, item) for field, item in zip(value._fields, value)]
        return {"kind": "namedtuple", "class": name, "items": items}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {"kind": kind, "class": name, "items": [child(index, item) for index, item in enumerate(value)]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        items = [child(field, getattr(value, field)) for field in names]
        return {"kind": "dataclass", "class": name, "keys": names, "items": items}
    return {"kind": "object", "class": name}


def _flatten_scalar(value: Any) -> Tree | None:
    if value is None or type(value) in (bool, int, str):
        return {"kind": "scalar", "value": value}
    if type(value) is float:
        return {"kind": "scalar", "value": value} if math.isfinite(value) else {"kind": "float", "value": str(value)}
    if type(value) is complex:
        return {"kind": "complex", "value": [repr(value.real), repr(value.imag)]}
    if isinstance(value, slice):
        parts = [_flatten_scalar(part) for part in (value.start, value.stop, value.step)]
        return {"kind": "slice", "items": parts} if None not in parts else None
    if value is Ellipsis:
        return {"kind": "ellipsis"}
    name = class_name(type(value))
    if name in ("torch.dtype", "torch.device", "torch.layout", "torch.memory_format"):
        return {"kind": name, "value": str(value)}
    if name == "torch.Size":
        return {"kind": "torch.Size", "value": [int(size) for size in value]}
    return None


def _flatten_key(key: Any) -> Tree:
    return _flatten_scalar(key) or {"kind": "object", "class": class_name(type(key))}


def rebuild(tree: Tree, tensors: Mapping[str, Any], resolve: Resolve, torch_value: Callable[[str, Any], Any]) -> Any:
    """Build the nesting again. Raises :class:`Unbuildable`.

    ``tensors``: path -> tensor; ``resolve``: class name -> class or None where the class may not be used;
    ``torch_value``: (kind, value) -> torch.dtype, device, Size and the like.
    """
    kind = tree["kind"]
    if kind == "tensor":
        if tree["path"] not in tensors:
            raise Unbuildable(f"the tensor at {tree['path']!r} has no payload")
        return tensors[tree["path"]]
    simple = _rebuild_scalar(tree, torch_value)
    if simple is not _NOT_SCALAR:
        return simple
    if kind in ("object", "cycle"):
        raise Unbuildable(f"an object of class {tree['class']} is not a tensor, scalar or container")
    items = [rebuild(item, tensors, resolve, torch_value) for item in tree["items"]]
    return _rebuild_container(tree, items, resolve)


_NOT_SCALAR = object()


def _rebuild_scalar(tree: Tree, torch_value: Callable[[str, Any], Any]) -> Any:
    kind = tree["kind"]
    if kind == "scalar":
        return tree["value"]
    if kind == "float":
        return _FLOATS[tree["value"]]
    if kind == "complex":
        return complex(*(float(part) for part in tree["value"]))
    if kind == "ellipsis":
        return Ellipsis
    if kind == "slice":
        return slice(*(_rebuild_scalar(part, torch_value) for part in tree["items"]))
    if kind.startswith("torch."):
        return torch_value(kind, tree["value"])
    return _NOT_SCALAR


def _rebuild_container(tree: Tree, items: list[Any], resolve: Resolve) -> Any:
    kind = tree["kind"]
    if kind == "list" and tree["class"] == "builtins.list":
        return items
    if kind == "tuple" and tree["class"] == "builtins.tuple":
        return tuple(items)
    if kind == "dict":
        return dict(zip(_rebuild_keys(tree), items))
    found = resolve(tree["class"])
    if found is None:
        raise Unbuildable(f"class {tree['class']} is not reachable from the replay module's own code")
    try:
        if kind == "mapping":
            return _rebuild_mapping(found, _rebuild_keys(tree), items)
        if kind == "dataclass":
            value: Any = object.__new__(found)
            for name, item in zip(tree["keys"], items):
                object.__setattr__(value, name, item)
            return value
        return found(*items) if kind == "namedtuple" else found(items)
    except Unbuildable:
        raise
    except Exception as error:
        raise Unbuildable(f"class {tree['class']} could not be built again: {error}") from error


def _rebuild_keys(tree: Tree) -> list[Any]:
    keys = [_rebuild_scalar(key, lambda kind, value: value) for key in tree["keys"]]
    if any(key is _NOT_SCALAR for key in keys):
        raise Unbuildable("a mapping key is neither text nor a number")
    return keys


def _rebuild_mapping(found: type, keys: list[Any], items: list[Any]) -> Any:
    pairs = list(zip(keys, items))
    if dataclasses.is_dataclass(found):  # ModelOutput of transformers: a mapping and a dataclass at once
        return found(**{str(key): item for key, item in pairs})
    try:
        return found(pairs)
    except TypeError:
        return found(**{str(key): item for key, item in pairs})


def scalars(tree: Tree, path: str = "") -> list[tuple[str, Any]]:
    """All non-tensor leaves with their places, for comparing flags and numbers of two calls."""
    kind = tree["kind"]
    if kind == "tensor":
        return []
    if "items" not in tree or kind == "slice":
        return [(path, dict(tree))]
    keys = tree.get("keys") or list(range(len(tree["items"])))
    found: list[tuple[str, Any]] = []
    for key, item in zip(keys, tree["items"]):
        part = key.get("value", key) if isinstance(key, dict) else key
        found += scalars(item, join(path, part))
    return found
