"""A profile's arithmetic, operator by operator, on CPU tensors.

``Arithmetic(profile)`` is an execution: called with (operator, args, kwargs) it computes the operator as the profile
says. The device runs it on aliases; ``emulate`` runs it over plain CPU tensors, with no device at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from precision_align.devices.dispatch import Execution, ExecutionMode, makes_view
from precision_align.devices.profiles import Profile, load_profile
from precision_align.devices.rounding import exp_polynomially, round_to

aten = torch.ops.aten

# Matrix products: position of the two factors.
_PRODUCTS = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
    aten.mv.default: (0, 1),
    aten.dot.default: (0, 1),
    aten.addmv.default: (1, 2),
}
# Forms that write to an argument, and the form that returns a new tensor.
_WRITING_FORMS = {
    aten.mm.out: aten.mm.default,
    aten.bmm.out: aten.bmm.default,
    aten.addmm.out: aten.addmm.default,
    aten.addmm_.default: aten.addmm.default,
    aten.addmv.out: aten.addmv.default,
    aten.addmv_.default: aten.addmv.default,
    aten.baddbmm.out: aten.baddbmm.default,
    aten.baddbmm_.default: aten.baddbmm.default,
    aten.sum.IntList_out: aten.sum.dim_IntList,
    aten.mean.out: aten.mean.dim,
    aten.exp_.default: aten.exp.default,
    aten.exp.out: aten.exp.default,
    aten.gelu_.default: aten.gelu.default,
    aten.gelu.out: aten.gelu.default,
}
_CONVOLUTIONS = (aten.convolution.default, aten.convolution_backward.default)
_SUMS = (aten.sum.dim_IntList, aten.sum.default)
_MEANS = (aten.mean.dim, aten.mean.default)
_LOW_RANGE = (torch.float16, torch.bfloat16, torch.float32)


class Arithmetic:
    """The execution of one profile."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._handlers = self._choose_handlers()
        self._finishes = profile.overflow == "saturate" or profile.subnormals == "flush"

    def __call__(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        plain = _WRITING_FORMS.get(operator, operator)
        handler = self._handlers.get(plain)
        if handler is None:
            result = operator(*args, **kwargs)
        elif plain is operator:
            result = handler(operator, args, kwargs)
        else:
            result = self._write(operator, plain, handler, args, kwargs)
        return self._finish(operator, result) if self._finishes else result

    def _choose_handlers(self) -> dict[Any, Execution]:
        profile = self.profile
        handlers: dict[Any, Execution] = {}
        if profile.matmul_inputs != "float32" or profile.k_block:
            handlers.update((operator, self._multiply) for operator in _PRODUCTS)
        if profile.conv_inputs != "float32":
            handlers.update((operator, self._convolve) for operator in _CONVOLUTIONS)
        if profile.reduction != "native":
            handlers.update((operator, self._reduce) for operator in _SUMS + _MEANS)
        if profile.gelu == "tanh":
            handlers.update((operator, _use_tanh) for operator in (aten.gelu.default, aten.gelu_backward.default))
        if profile.exponential == "polynomial":
            handlers[aten.exp.default] = _exponentiate
        if profile.exponential == "polynomial" or profile.norm_inner == "input":
            handlers[aten._softmax.default] = self._softmax
        if profile.norm_inner == "input":
            handlers[aten.native_layer_norm.default] = _normalise_in_steps
        return handlers

    def _write(
        self, operator: Any, plain: Any, handler: Execution, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> torch.Tensor:
        """Compute the returning form, then store: in ``out``, or in the first argument of an in-place form."""
        rest = {name: value for name, value in kwargs.items() if name != "out"}
        computed = handler(plain, args, rest)
        target: torch.Tensor = kwargs["out"] if "out" in kwargs else args[0]
        if target.shape != computed.shape:
            target.resize_(computed.shape)
        return target.copy_(computed)

    def _multiply(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
        left, right = _PRODUCTS[operator]
        form = self.profile.matmul_inputs
        factors = list(args)
        factors[left], factors[right] = self._round(args[left], form), self._round(args[right], form)
        depth = args[left].shape[-1]
        if not self.profile.k_block or depth <= self.profile.k_block or args[left].dtype not in _LOW_RANGE:
            return operator(*factors, **kwargs)  # type: ignore[no-any-return]
        total = self._accumulate(factors[left], factors[right])
        if left == 1:
            total = _combine(args[0], total, kwargs.get("beta", 1), kwargs.get("alpha", 1))
        return total.to(args[left].dtype)

    def _round(self, values: torch.Tensor, form: str) -> torch.Tensor:
        """Round an input; a device that saturates also saturates where float16's range ends."""
        if self.profile.overflow == "saturate" and form == "float16" and values.dtype == torch.float32:
            limit = torch.finfo(torch.float16).max
            values = torch.nan_to_num(values).clamp(-limit, limit)
        return round_to(values, form, self.profile.hf32_ties)

    def _accumulate(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Sum the product over pieces of K in float32, each piece in the CPU's own order."""
        block, depth = self.profile.k_block, left.shape[-1]
        starts = list(range(0, depth, block))
        if self.profile.k_order == "reversed":
            starts.reverse()
        inner = -2 if right.dim() > 1 else -1
        total: torch.Tensor | None = None
        for start in starts:
            length = min(block, depth - start)
            piece = torch.matmul(left.narrow(-1, start, length).float(), right.narrow(inner, start, length).float())
            total = piece if total is None else total + piece
            if self.profile.accumulator == "output":
                total = total.to(left.dtype).float()
        assert total is not None  # depth > block > 0
        return total

    def _convolve(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Round data, weights and gradients (all but the bias, which is added after the product)."""
        form = self.profile.conv_inputs
        rounded = [self._round(one, form) if isinstance(one, torch.Tensor) and one.dim() > 1 else one for one in args]
        return operator(*rounded, **kwargs)

    def _reduce(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
        values = args[0]
        if values.dtype not in _LOW_RANGE or values.dim() == 0 or values.numel() == 0:
            return operator(*args, **kwargs)  # type: ignore[no-any-return]
        dims = [dim % values.dim() for dim in _reduced_dims(args)] or list(range(values.dim()))
        if self.profile.reduction == "reversed":
            return operator(values.flip(dims), *args[1:], **kwargs)  # type: ignore[no-any-return]
        keep = bool(args[2]) if len(args) > 2 else False
        total = self._sum_in_blocks(values.float(), dims, keep)
        if operator in _MEANS:
            total = total / _count(values, dims)
        return total.to(kwargs.get("dtype") or values.dtype)

    def _sum_in_blocks(self, values: torch.Tensor, dims: Sequence[int], keep: bool) -> torch.Tensor:
        last = dims[-1]
        pieces = [piece.sum(last, keepdim=True) for piece in torch.split(values, self.profile.reduction_block, last)]
        return torch.cat(pieces, last).sum(list(dims), keepdim=keep)

    def _softmax(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor:
        values, dim, to_float = args
        wanted = torch.float32 if to_float else values.dtype
        inner = values if self.profile.norm_inner == "input" else values.float()
        exponential = exp_polynomially if self.profile.exponential == "polynomial" else torch.exp
        powers = exponential(inner - inner.amax(dim, keepdim=True))
        return (powers / powers.sum(dim, keepdim=True)).to(wanted)

    def _finish(self, operator: Any, result: Any) -> Any:
        if isinstance(result, (list, tuple)):
            return [self._finish(operator, one) for one in result]
        if not isinstance(result, torch.Tensor) or result.dtype not in _LOW_RANGE or makes_view(operator):
            return result
        finished = result
        if self.profile.overflow == "saturate":
            finished = _saturate(finished)
        if self.profile.subnormals == "flush" and result.dtype != torch.bfloat16:
            finished = torch.nn.functional.hardshrink(finished, torch.finfo(result.dtype).tiny)
        return result.copy_(finished) if operator._schema.is_mutable else finished


def _saturate(values: torch.Tensor) -> torch.Tensor:
    """Infinities to the largest finite value, NaN to zero (hiascend Envir_004)."""
    return torch.nan_to_num(values)


def _combine(addend: torch.Tensor, product: torch.Tensor, beta: float, alpha: float) -> torch.Tensor:
    """beta * addend + alpha * product; beta = 0 drops the addend, NaN included, as ATen does."""
    scaled = product if alpha == 1 else product * alpha
    return scaled if beta == 0 else addend.float() * beta + scaled


def _use_tanh(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return operator(*args, **{**kwargs, "approximate": "tanh"})


def _exponentiate(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return exp_polynomially(args[0]) if args[0].dtype in _LOW_RANGE else operator(*args, **kwargs)


def _normalise_in_steps(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """LayerNorm with every inner step rounded to the input's dtype; mean and rstd in that dtype, as on the CPU."""
    values, shape, weight, bias, epsilon = args
    dims = list(range(values.dim() - len(shape), values.dim()))
    mean = values.mean(dims, keepdim=True)
    centred = values - mean
    scale = ((centred * centred).mean(dims, keepdim=True) + epsilon).rsqrt()
    result = centred * scale
    result = result if weight is None else result * weight
    return (result if bias is None else result + bias), mean, scale


def _reduced_dims(args: Sequence[Any]) -> list[int]:
    return list(args[1]) if len(args) > 1 and args[1] else []


def _count(values: torch.Tensor, dims: Sequence[int]) -> int:
    count = 1
    for dim in dims:
        count *= values.shape[dim]
    return count


@contextmanager
def emulate(profile: str | Profile) -> Iterator[Profile]:
    """Compute on plain CPU tensors inside the block as the profile says: for torch versions without the device."""
    chosen = load_profile(profile)
    with ExecutionMode(Arithmetic(chosen)):
        yield chosen
