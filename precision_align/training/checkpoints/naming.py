"""The names under which the tensors of two checkpoints meet, whatever dictionaries and wrappers each was saved in."""

from __future__ import annotations

import re
from collections.abc import Sequence

from precision_align.core.errors import UsageError
from precision_align.core.wrappers import strip_wrappers
from precision_align.training.checkpoints.opening import Checkpoint

# What trainers call the dictionary that holds the model, and models the child that holds all but their head.
CONTAINERS = ("state_dict", "model_state_dict", "model", "net")


def find_common_names(side: Checkpoint, rename: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Common name -> the side's own name.

    Containers and wrappers are taken off until none is left: one side may have been saved inside more of them, and
    "model.layers.0" of a bare model and "model.module.model.layers.0" of a trainer must meet. ``rename``: (regular
    expression, replacement) pairs, applied in order to what is left; what a replacement puts in front may be a
    container again. Raises UsageError.
    """
    own = list(side.tensors)
    names = _unwrap(own)
    if rename:
        names = _unwrap([_rename(name, rename) for name in names])
    common: dict[str, str] = {}
    for name, original in zip(names, own):
        if name in common:
            raise UsageError(f"{side.path}: {common[name]!r} and {original!r} would both be called {name!r}")
        common[name] = original
    return common


def _rename(name: str, rename: Sequence[tuple[str, str]]) -> str:
    for pattern, replacement in rename:
        try:
            name = re.sub(pattern, replacement, name)
        except (re.error, IndexError) as error:
            raise UsageError(f"--rename {pattern!r}={replacement!r}: {error}") from error
    return name


def _unwrap(names: Sequence[str]) -> list[str]:
    """The names in their order, without wrappers and containers; what is outside of them (optimizer states) stays."""
    current = [strip_wrappers(name) for name in names]
    while True:
        inner = next((found for part in CONTAINERS if (found := _open_container(current, part)) is not None), None)
        if inner is None:
            return current
        current = inner


def _open_container(names: Sequence[str], part: str) -> list[str] | None:
    """The names without this first part; None where none has it, or two would become one: then it tells them apart."""
    opened = [name[len(part) + 1 :] if name.startswith(f"{part}.") else name for name in names]
    return opened if opened != list(names) and len(set(opened)) == len(set(names)) else None
