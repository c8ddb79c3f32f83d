"""What is to be executed in another way: patterns of modules, functions and operators, each with a kind.

Kinds: "cpu" (on the CPU), "composed" (by elementary operators), "fp32" (in float32, out of autocast). A pattern is a
glob that fits module scopes (with or without wrapper parts), functions as the source ``functions`` names them, or
operators as the source ``operators`` does ("aten.gelu.default"); of functions and operators the first part is literal,
so that "*" means modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from typing import Any, Callable, Optional

from precision_align.core.errors import UsageError
from precision_align.core.wrappers import strip_wrappers

Compute = Callable[..., Any]


class SwapKind(str, Enum):
    """How a swapped call is executed."""

    CPU = "cpu"
    COMPOSED = "composed"
    FP32 = "fp32"


@dataclass(frozen=True)
class Swap:
    """One pattern and its kind."""

    pattern: str
    kind: SwapKind

    @property
    def text(self) -> str:
        """As on the command line."""
        return f"{self.pattern}={self.kind.value}"

    def fits_scope(self, scope: str) -> bool:
        """Whether it means a module."""
        return fnmatchcase(scope, self.pattern) or fnmatchcase(strip_wrappers(scope), self.pattern)

    def fits_name(self, name: str) -> bool:
        """Whether it means a function or an operator."""
        return self.pattern.split(".")[0] == name.split(".")[0] and fnmatchcase(name, self.pattern)


def means_operators(swap: Swap) -> bool:
    """Whether it can mean operators."""
    return swap.pattern.split(".")[0] == "aten"


def parse_swap(word: str, default: Optional[str] = None) -> Swap:
    """From "SCOPE_OR_OP=KIND"; without "=KIND" the ``default``. Raises UsageError."""
    pattern, given, kind = word.rpartition("=")
    pattern, kind = (pattern, kind) if given else (word, default or "")
    kinds = ", ".join(one.value for one in SwapKind)
    try:
        found = Swap(pattern, SwapKind(kind))
    except ValueError:
        raise UsageError(f"a swap is SCOPE_OR_OP=KIND with a kind of {kinds}, not {word!r}") from None
    if not pattern:
        raise UsageError(f"{word!r} names no module, function or operator: write '*{word}' for the whole model")
    return found


def make_swaps(swap: Optional[Mapping[str, str]]) -> tuple[Swap, ...]:
    """Checked swaps from pattern -> kind. Raises UsageError, for a function without a composed equivalent too."""
    swaps = tuple(parse_swap(f"{pattern}={kind}") for pattern, kind in (swap or {}).items())
    _check_composed(swaps)
    return swaps


def _check_composed(swaps: Sequence[Swap]) -> None:
    for swap in swaps:
        is_named = swap.pattern.startswith(("torch.", "npu."))
        if swap.kind is SwapKind.COMPOSED and is_named and not any(map(swap.fits_name, load_composed())):
            raise UsageError(f"{swap.pattern} has no composed equivalent; these have: {', '.join(load_composed())}")


@cache
def load_composed() -> Mapping[str, Compute]:
    """Function name -> composed equivalent: the operator library's, found by name as it lies above this package."""
    found: Mapping[str, Compute] = import_module("precision_align.library.composed").list_composed()
    return found
