"""Which modules of a quantised model cost the most: each is switched to high precision and back, one at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from precision_align.core.errors import UsageError
from precision_align.training.quantising.comparing import measure_sqnr
from precision_align.training.quantising.results import Sensitivity


class Switched(nn.Module):
    """A module of the other precision in a model's place: what it is given and gives back is converted.

    ``given`` and ``returned``: (scale, zero point, dtype) to quantise by, None for plain numbers.
    """

    def __init__(self, inner: nn.Module, given: Any, returned: Any) -> None:
        super().__init__()
        self.inner, self.given, self.returned = inner, given, returned

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The inner module's result on converted arguments."""
        result = self.inner(*(_convert(value, self.given) for value in args), **kwargs)
        return _convert(result, self.returned)


def _convert(value: Any, quantiser: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not (value.is_quantized or value.is_floating_point()):
        return value
    plain = value.dequantize() if value.is_quantized else value
    return plain if quantiser is None else torch.quantize_per_tensor(plain.float(), *quantiser)


def _quantiser_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_quantized and value.qscheme() == torch.per_tensor_affine:
        return value.q_scale(), value.q_zero_point(), value.dtype
    return None


def find_switchable(reference: nn.Module, candidate: nn.Module) -> list[str]:
    """Modules that both models have under one name and whose classes differ: the outermost ones, without the root."""
    theirs = dict(candidate.named_modules())
    found: list[str] = []
    for name, module in reference.named_modules():
        other = theirs.get(name)
        inside = any(name.startswith(f"{scope}.") for scope in found)
        if name and not inside and other is not None and type(other) is not type(module) and _has_weight(module):
            found.append(name)
    return found


def _has_weight(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def measure_sensitivity(
    reference: nn.Module,
    candidate: nn.Module,
    inputs: Sequence[Any],
    *,
    budget: int = 0,
    output: Callable[[Any], torch.Tensor] | None = None,
) -> tuple[float, list[Sensitivity], list[tuple[str, float]]]:
    """(SQNR of the quantised model, one sensitivity a module, what to keep in high precision).

    ``inputs``: batches, each a tensor or a tuple of arguments; ``output``: picks the tensor that is judged from what
    the model returns. Both ways are measured: the quantised model with one module in high precision, and the other way
    round. What to keep is chosen greedily, at most ``budget`` modules, each with the SQNR of the model after it.
    Models run in evaluation mode and are left as they were. Raises UsageError where no module can be switched.
    """
    names = find_switchable(reference, candidate)
    if not names or not inputs:
        raise UsageError("no module of the two models differs in its class under the same name, or there are no inputs")
    runs = _Runs(reference, candidate, inputs, output or _first_tensor)
    base = runs.measure(candidate, [])
    gains = {name: runs.measure(candidate, [name]) - base for name in names}
    alone = {name: runs.measure(reference, [name]) for name in names}
    found = [Sensitivity(name, alone[name], gains[name], _measure_weight(reference, candidate, name)) for name in names]
    keep = list(_choose(runs, names, budget))
    return base, sorted(found, key=lambda one: (one.alone, -one.gain)), keep


def _choose(runs: _Runs, names: Sequence[str], budget: int) -> Iterator[tuple[str, float]]:
    kept: list[str] = []
    for _ in range(min(budget, len(names))):
        scores = {name: runs.measure(runs.candidate, [*kept, name]) for name in names if name not in kept}
        best = max(scores, key=lambda name: scores[name])
        kept.append(best)
        yield best, scores[best]


class _Runs:
    """Runs of both models on the same inputs, with some modules switched."""

    def __init__(
        self, reference: nn.Module, candidate: nn.Module, inputs: Sequence[Any], output: Callable[[Any], torch.Tensor]
    ) -> None:
        self.reference, self.candidate, self.inputs, self.output = reference, candidate, inputs, output
        self.given: dict[str, Any] = {}
        self.returned: dict[str, Any] = {}
        with self._watching():
            self._run(candidate)
        self.golden = self._run(reference)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Remember by which scales the quantised model's modules are fed and answer."""
        handles = []
        for name in find_switchable(self.reference, self.candidate):
            module = self.candidate.get_submodule(name)

            def watch(_: nn.Module, args: Any, result: Any, name: str = name) -> None:
                self.given.setdefault(name, next(map(_quantiser_of, args), None))
                self.returned.setdefault(name, _quantiser_of(result))

            handles.append(module.register_forward_hook(watch))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _run(self, model: nn.Module) -> np.ndarray[Any, Any]:
        modes = {module: module.training for module in model.modules()}
        model.eval()
        with torch.no_grad():
            found = [self.output(model(*(batch if isinstance(batch, tuple) else (batch,)))) for batch in self.inputs]
        for module, training in modes.items():
            module.training = training
        return np.concatenate([_to_numbers(tensor).reshape(-1) for tensor in found])

    def measure(self, model: nn.Module, switched: Sequence[str]) -> float:
        """SQNR of a model's output with these modules taken from the other one."""
        other = self.candidate if model is self.reference else self.reference
        originals = {name: model.get_submodule(name) for name in switched}
        try:
            for name in switched:
                _replace(model, name, self._adapt(model, other.get_submodule(name), name))
            return measure_sqnr(self.golden, self._run(model))
        finally:
            for name, module in originals.items():
                _replace(model, name, module)

    def _adapt(self, model: nn.Module, module: nn.Module, name: str) -> nn.Module:
        if model is self.reference:
            return Switched(module, self.given.get(name), None)
        return Switched(module, None, self.returned.get(name))


def _to_numbers(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    plain = tensor.dequantize() if tensor.is_quantized else tensor
    return np.asarray(plain.detach().double().cpu().numpy())


def _first_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    items = value.values() if isinstance(value, dict) else value
    return next(item for item in items if isinstance(item, torch.Tensor))


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    owner, _, child = name.rpartition(".")
    setattr(model.get_submodule(owner), child, module)


def _measure_weight(reference: nn.Module, candidate: nn.Module, name: str) -> float:
    """SQNR of a weight; NaN where a module has none or packs it in an unknown way."""
    left, right = (getattr(model.get_submodule(name), "weight", None) for model in (reference, candidate))
    try:
        right = right() if callable(right) else right  # torch's quantised modules unpack it by a call
    except (RuntimeError, TypeError):
        return math.nan
    if not isinstance(left, torch.Tensor) or not isinstance(right, torch.Tensor) or left.shape != right.shape:
        return math.nan
    return measure_sqnr(_to_numbers(left), _to_numbers(right))
