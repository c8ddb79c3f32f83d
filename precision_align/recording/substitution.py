"""Putting other tensors into a returned structure, without changing the structure that the module keeps."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch


def substitute(value: Any, forced: Mapping[int, torch.Tensor]) -> Any:
    """The same nesting with tensors replaced, by id; equal parts are kept as they are.

    Raises TypeError for a container that cannot be built anew.
    """
    if isinstance(value, torch.Tensor):
        return forced.get(id(value), value)
    if isinstance(value, Mapping):
        return _substitute_mapping(value, forced)
    if isinstance(value, (tuple, list)):
        items = [substitute(item, forced) for item in value]
        if all(new is old for new, old in zip(items, value)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _substitute_fields(value, forced)
    return value


def _substitute_mapping(value: Mapping[Any, Any], forced: Mapping[int, torch.Tensor]) -> Any:
    changed = {key: new for key, old in value.items() if (new := substitute(old, forced)) is not old}
    if not changed:
        return value
    twin = copy.copy(value)
    if not isinstance(twin, MutableMapping):
        raise TypeError(f"a {type(value).__name__} takes no new values")
    for key, new in changed.items():
        twin[key] = new
    return twin


def _substitute_fields(value: Any, forced: Mapping[int, torch.Tensor]) -> Any:
    changed = {}
    for field in dataclasses.fields(value):
        old = getattr(value, field.name, None)
        new = substitute(old, forced)
        if new is not old:
            changed[field.name] = new
    if not changed:
        return value
    twin = copy.copy(value)
    for name, new in changed.items():
        object.__setattr__(twin, name, new)
    return twin
