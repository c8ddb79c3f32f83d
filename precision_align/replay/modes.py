"""Which arithmetic explains a failing result: the suspect is replayed under each in turn.

A mode is a setting to change or to declare, no operator to correct: another multiplier (HF32, TF32, 16 bits), sums of
products held in 16 bits, autocast, the largest finite value in place of Inf, subnormals flushed to zero.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Optional

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from precision_align.core.dtypes import Array
from precision_align.core.terms import Status
from precision_align.numerics.judgement import Judgement
from precision_align.replay.arithmetics import ARITHMETICS, ArithmeticMode

# What a mode leaves of the error when it is the cause: another order of sums, about 1e-3; the wrong mode leaves 0.7 and
# more.
RESIDUAL = 0.1
# Modes that leave no more than so many times what the best leaves cannot be told from it.
ALIKE = 2.0
# Lengths of the pieces in which hardware adds up products before it rounds: cubes and tensor cores take 16, kernels
# split the rest in powers of two.
BLOCKS = (16, 32, 64, 128, 256, 512)
# So many results without an explanation, and further ones are tried with the multipliers alone: a broken run fails in
# every call, and each trial is a replay.
PATIENCE = 16

_LOW = {"float16": torch.float16, "bfloat16": torch.bfloat16}
_LEFT = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1}


class AccumulationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, matrix products are summed piece by piece, and the sum is rounded to ``dtype`` after each piece of
    ``block`` terms; ``count`` is how many products were long enough to notice. Convolutions stay as they are.
    """

    def __init__(self, dtype: torch.dtype, block: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype, self._block, self.count = dtype, block, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        place = _LEFT.get(func._schema.name)
        if place is None or func._schema.is_mutable or args[place].shape[-1] <= self._block:
            return func(*args, **kwargs)
        self.count += 1
        product = self._multiply(args[place], args[place + 1])
        if place == 1:
            product = kwargs.get("alpha", 1) * product + kwargs.get("beta", 1) * args[0].float()
        return product.to(args[place].dtype)

    def _multiply(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        total: Any = None
        for start in range(0, left.shape[-1], self._block):
            stop = start + self._block
            part = left[..., start:stop].float() @ right[..., start:stop, :].float()
            total = (part if total is None else total + part).to(self._dtype).float()
        return total  # type: ignore[no-any-return]


class ResultMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, every floating result is changed; ``count`` is how many values were."""

    def __init__(self, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._change, self.count = change, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, torch.Tensor) or not result.dtype.is_floating_point or func._schema.is_mutable:
            return result
        changed = self._change(result)
        count = int((changed != result).sum())
        self.count += count
        return changed if count else result


class AutocastMode(torch.autocast):
    """Autocast on the CPU; ``count`` as of the other modes."""

    count = 1

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__("cpu", dtype=dtype)


def saturate(values: torch.Tensor) -> torch.Tensor:
    """The largest finite value in the place of Inf; NaN stays."""
    largest = torch.finfo(values.dtype).max
    return torch.where(torch.isinf(values), values.sign() * largest, values)


def flush(values: torch.Tensor) -> torch.Tensor:
    """Zero in the place of subnormal values."""
    return torch.where(values.abs() < torch.finfo(values.dtype).tiny, torch.zeros_like(values), values)


@dataclass(frozen=True)
class Trial:
    """One arithmetic: ``make`` gives the mode to replay under; ``multiplies``: it changes products alone."""

    text: str
    make: Callable[[], Any]
    multiplies: bool = True


def list_trials(dtype: str) -> Iterator[Trial]:
    """The arithmetics that may explain a result of a dtype, the usual ones first."""
    if dtype == "float32":
        for arithmetic in ARITHMETICS:
            yield Trial(arithmetic.text, partial(ArithmeticMode, arithmetic))
    lower = _LOW if dtype == "float32" else {dtype: _LOW[dtype]} if dtype in _LOW else {}
    if dtype == "float32":
        for name, low in lower.items():
            text = f"autocast: computed in {name}, as torch.autocast(dtype=torch.{name}) would"
            yield Trial(text, partial(AutocastMode, low))
    for name, low in lower.items():
        for block in BLOCKS:
            text = f"sums of products held in {name}, rounded after every {block} terms"
            yield Trial(text, partial(AccumulationMode, low, block))
    if dtype == "float16":
        text = "saturation: the largest finite value where an intermediate result overflows"
        yield Trial(text, partial(ResultMode, saturate), False)
        yield Trial("subnormal intermediate results flushed to zero", partial(ResultMode, flush), False)


@dataclass
class ModeFinder:
    """Tries modes on failing results; remembers in vain how often."""

    failed: int = 0

    def find(
        self, actual: Array, golden: Array, dtype: str, rerun: Callable[[Any], Optional[Array]]
    ) -> Optional[tuple[str, dict[str, float]]]:
        """(text, metrics) of the mode that leaves least of the error, or None where none explains it.

        ``rerun``: the result under a mode, in the dtype of the reference, or None where the code does not run so.
        Those that leave about as little are named, too. ``mode_residual`` and ``mode_second``: what the best and the
        best of the others leave of the error.
        """
        error = _measure_distance(actual, golden)
        if not 0 < error < math.inf:
            return None
        left = sorted(self._try_all(actual, dtype, error, rerun))
        if not left or left[0][0] > RESIDUAL:
            self.failed += 1
            return None
        # TF32 and float16 keep the same bits of numbers within float16's range: then it may be either
        alike = [text for residual, text in left if residual <= ALIKE * left[0][0]]
        metrics = {"mode_residual": left[0][0]}
        if len(left) > len(alike):
            metrics["mode_second"] = left[len(alike)][0]
        return "; or ".join(alike), metrics

    def judge(
        self,
        actual: Array,
        golden: Array,
        dtype: str,
        failure: Judgement,
        rerun: Callable[[Any], Optional[Array]],
    ) -> Judgement:
        """The failure, or where an arithmetic explains it that mode; arguments as of :meth:`find`."""
        mode = self.find(actual, golden, dtype, rerun)
        if mode is None:
            return failure
        return Judgement(Status.MODE, mode[0], {**failure.metrics, **mode[1]}, failure.limit)

    def _try_all(
        self, actual: Array, dtype: str, error: float, rerun: Callable[[Any], Optional[Array]]
    ) -> Iterator[tuple[float, str]]:
        """(share of the error that is left, text) of every mode that changes anything; until one explains it."""
        best, multiplies = math.inf, True
        for number, trial in enumerate(list_trials(dtype)):
            if number >= len(ARITHMETICS) and (best <= RESIDUAL / 10 or self.failed > PATIENCE):
                return  # the multipliers are all tried: two of them may leave the same
            if trial.multiplies and not multiplies:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                mode = trial.make()
            try:
                value = rerun(mode)
            except RuntimeError:  # an autocast that this torch has not on the CPU
                continue
            multiplies = multiplies and not (isinstance(mode, ArithmeticMode) and not mode.count)
            if value is not None and mode.count:
                residual = _measure_distance(actual, value) / error
                best = min(best, residual)
                yield residual, trial.text


def _measure_distance(left: Array, right: Array) -> float:
    if left.shape != right.shape or not np.array_equal(np.isfinite(left), np.isfinite(right)):
        return math.inf
    with np.errstate(invalid="ignore"):
        return float(np.linalg.norm(np.nan_to_num(left - right, nan=0.0, posinf=0.0, neginf=0.0)))
