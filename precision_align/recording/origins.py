"""Where a call came from, and what a stock module was built with."""

from __future__ import annotations

import sys
import warnings
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, Optional

import torch

from precision_align.core.trees import Tree, class_name, flatten, scalars

_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parent), str(warnings.__file__))
_BOOKKEEPING = frozenset((*torch.nn.Module().__dict__, "_is_replica", "_former_parameters"))


def caller_line() -> str:
    """File and line of the innermost running code that is neither torch's nor ours, or "" where there is none."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not is_library(name):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@lru_cache(maxsize=1 << 14)
def is_library(name: str) -> bool:
    return name.startswith(_LIBRARIES)


def plain_attributes(module: torch.nn.Module) -> Optional[Tree]:
    """The tree of a stock torch.nn module's plain attributes (numbers, texts, flags, dtypes, tuples of them).

    None for modules whose class is not torch's own: only there is the attribute list known to be enough to build the
    module again.
    """
    if not type(module).__module__.startswith("torch.nn."):
        return None
    return flatten({name: value for name, value in _own(module).items() if _is_plain(value)}, _is_never)[0]


def _own(module: torch.nn.Module) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in _BOOKKEEPING}


def is_settled(module: torch.nn.Module) -> bool:
    """Whether its attributes can only change by being set anew: none is a container that may be written into."""
    return all(_is_fixed(value) for value in _own(module).values() if _is_plain(value))


def _is_fixed(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_fixed(item) for item in value)
    return value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device))


def _is_plain(value: Any) -> bool:
    tree = flatten(value, _is_never)[0]
    return tree["kind"] != "object" and all(leaf["kind"] not in ("object", "cycle") for _, leaf in scalars(tree))


def _is_never(value: Any) -> bool:
    return False


def module_classes(model: torch.nn.Module) -> dict[str, str]:
    """Scope -> full class name, in registration order."""
    return {scope: class_name(type(module)) for scope, module in model.named_modules()}
