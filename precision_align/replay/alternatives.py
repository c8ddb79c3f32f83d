"""Other forms of what a call computes: the golden again with one choice of a stock operator made differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
Change = Callable[[list[Any], dict[str, Any]], bool]


class OtherForm(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, some operators get other arguments; ``count`` is how many did."""

    def __init__(self, changes: Mapping[Any, Change]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._changes, self.count = changes, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        change, new_args, new_kwargs = self._changes.get(func), list(args), dict(kwargs or {})
        if change is not None:
            self.count += change(new_args, new_kwargs)
        return func(*new_args, **new_kwargs)


def list_alternatives() -> Iterator[tuple[str, str, OtherForm]]:
    """(name, what it means for the candidate, the mode to replay under)."""
    gelu = {aten.gelu.default: _swap_gelu, aten.gelu_backward.default: _swap_gelu}
    yield "gelu form", "the other form of GELU: tanh against erf", OtherForm(gelu)
    variance = {aten.var.correction: _swap_correction, aten.var_mean.correction: _swap_correction}
    yield "variance", "the variance is divided by n against n - 1", OtherForm(variance)
    for eps in (1e-3, 1e-5, 1e-6, 1e-8, 1e-12):
        norms = {
            aten.native_layer_norm.default: _set(4, eps),
            aten.native_group_norm.default: _set(7, eps),
            aten.native_batch_norm.default: _set(7, eps),
        }
        yield "eps", f"eps {eps:g} in the norm", OtherForm(norms)


def _swap_gelu(args: list[Any], kwargs: dict[str, Any]) -> bool:
    kwargs["approximate"] = "none" if kwargs.get("approximate", "none") == "tanh" else "tanh"
    return True


def _swap_correction(args: list[Any], kwargs: dict[str, Any]) -> bool:
    kwargs["correction"] = 0 if kwargs.get("correction", 1) else 1
    return True


def _set(position: int, value: float) -> Change:
    def change(args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        if len(args) <= position or args[position] == value:
            return False
        args[position] = value  # type: ignore[index]
        return True

    return change
