"""What can go wrong with any operation: it is left out, or its sign is inverted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from precision_align.replay.variants.operations import Operation, Variant, is_floating

# Views and copies: to leave one out changes nothing or only the shape.
_MOVES = frozenset(
    [
        "view",
        "_unsafe_view",
        "clone",
        "_to_copy",
        "to",
        "detach",
        "alias",
        "expand",
        "t",
        "transpose",
        "permute",
        "unsqueeze",
        "squeeze",
        "slice",
        "select",
        "copy",
        "lift_fresh",
        "_reshape_alias",
        "as_strided",
        "split",
        "unbind",
        "empty_like",
        "zeros_like",
        "ones_like",
        "fill",
        "zero",
        "index_put",
        "empty",
        "zeros",
        "ones",
        "full",
        "arange",
        "scalar_tensor",
        "cat",
        "stack",
    ]
)


def list_edits(operation: Operation, result: Any) -> Iterator[Variant]:
    """Left out, another sign."""
    if operation.name in _MOVES or not isinstance(result, torch.Tensor):
        return
    for position, value in enumerate(operation.args):
        if isinstance(value, torch.Tensor) and value.shape == result.shape and value.dtype == result.dtype:
            yield Variant("left out", _say_left_out(operation, position), partial(_keep, position))
    if not is_floating(result):
        return
    text = f"the sign of {operation.place} is inverted"
    yield Variant("sign of", text, lambda found: found.run().neg(), single=True)
    if operation.name in ("add", "sub") and all(is_floating(value) for value in operation.args[:2]):
        text = f"the sign of the second term is inverted, {operation.place}"
        yield Variant("sign of", text, lambda found: found.replace(1, found.args[1].neg()), single=True)


def _keep(position: int, found: Operation) -> Any:
    return found.args[position].clone()


def _say_left_out(operation: Operation, kept: int) -> str:
    others = [value for number, value in enumerate(operation.args[:2]) if number != kept]
    if operation.name in ("add", "sub", "mul", "div", "addmm") and any(isinstance(v, torch.Tensor) for v in others):
        what = "term" if operation.name in ("add", "sub", "addmm") else "factor"
        return f"the {'second' if kept == 0 else 'first'} {what} of {operation.place} is left out"
    return f"{operation.place} is left out"
