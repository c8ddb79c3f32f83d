"""Other forms of single operators: what two builds may take each other's operator for."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from precision_align.replay.variants.operations import Operation, Variant, changing, taking

aten = torch.ops.aten

_ACTIVATIONS = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
# Flags that say how a result is stored or returned, not what it is.
_SILENT = ("keepdim", "non_blocking", "pin_memory", "sorted", "half_to_float", "copy", "implicit", "training")
_CHUNKS = (2, 4, 8)
_MEAN, _SUM = 1, 2  # at::Reduction


def list_forms(operation: Operation, result: Any) -> Iterator[Variant]:
    """Another formula, another normalisation, another flag."""
    for rule in (_gelu, _correction, _norm_correction, _activation, _softmax, _reduction, _loss, _flags):
        yield from rule(operation)


def _gelu(operation: Operation) -> Iterator[Variant]:
    if operation.name not in ("gelu", "gelu_backward"):
        return

    def swap(found: Operation) -> Any:
        other = "none" if found.kwargs.get("approximate", "none") == "tanh" else "tanh"
        return found.run(*found.args, **{**found.kwargs, "approximate": other})

    yield Variant("gelu form", "the other form of GELU: tanh against erf", swap, alone=False, jointly=True)


def _correction(operation: Operation) -> Iterator[Variant]:
    if operation.name not in ("var", "var_mean", "std", "std_mean") or "correction" not in operation.kwargs:
        return

    def swap(found: Operation) -> Any:
        correction = found.kwargs["correction"]
        other = 0 if correction is None or correction else 1
        return found.run(*found.args, **{**found.kwargs, "correction": other})

    yield Variant("variance", "the variance is divided by n against n - 1 (biased against unbiased)", swap)


def _norm_correction(operation: Operation) -> Iterator[Variant]:
    name = operation.func._schema.name
    if name not in ("aten::native_layer_norm", "aten::native_batch_norm"):
        return
    if name == "aten::native_batch_norm" and not operation.args[5]:
        return

    def divide(found: Operation) -> Any:
        x, weight, bias = found.args[0], *(found.args[2:4] if "layer" in name else found.args[1:3])
        eps = found.args[4 if "layer" in name else 7]
        dims = (
            range(x.dim() - len(found.args[1]), x.dim()) if "layer" in name else [d for d in range(x.dim()) if d != 1]
        )
        shape = list(x.shape[dims[0] :]) if "layer" in name else [1, -1, *[1] * (x.dim() - 2)]
        values = normalise(x, list(dims), eps, 1)
        values = values if weight is None else values * weight.reshape(shape)
        values = values if bias is None else values + bias.reshape(shape)
        return (values, *found.run()[1:])

    yield Variant(
        "variance", "normalised by the variance over n - 1 instead of n (unbiased)", divide, alone=False, jointly=True
    )


def normalise(x: torch.Tensor, dims: Sequence[int], eps: float, correction: int) -> torch.Tensor:
    """x minus its mean, over the root of its variance and eps."""
    variance = x.var(list(dims), correction=correction, keepdim=True)
    return (x - x.mean(list(dims), keepdim=True)) / (variance + eps).sqrt()


def _activation(operation: Operation) -> Iterator[Variant]:
    if operation.name not in _ACTIVATIONS:
        return
    for other, function in _ACTIVATIONS.items():
        if other != operation.name:
            text = f"{other} instead of {operation.place}"
            yield Variant("activation", text, taking(function))


def _softmax(operation: Operation) -> Iterator[Variant]:
    if operation.name not in ("_softmax", "_log_softmax"):
        return
    dim = operation.args[1] % max(operation.args[0].dim(), 1)
    if operation.name == "_softmax":
        text = f"sigmoid instead of softmax, {operation.place}"
        yield Variant("activation", text, taking(torch.sigmoid))
    for other in range(operation.args[0].dim()):
        if other != dim:
            text = f"{operation.place} over dimension {other} instead of {dim}"
            yield Variant("dimension", text, changing(1, partial(_give, other)))


def _give(value: Any, _: Any) -> Any:
    return value


def _reduction(operation: Operation) -> Iterator[Variant]:
    if operation.name not in ("sum", "mean"):
        return
    x = operation.args[0]
    if operation.func._schema.overload_name in ("", "default"):
        if x.dim() > 1:
            text = "a mean of means: each slice of the first dimension has its own mean, and all count alike"
            yield Variant("mean of means", text, _reduce_slices, alone=False, jointly=True)
        if not x.dtype.is_floating_point and operation.name == "sum":
            text = f"all are counted, not the valid ones alone, {operation.place}"
            yield Variant("count", text, lambda found: found.run() * 0 + found.args[0].numel())
    if x.dtype.is_floating_point:
        other = "mean" if operation.name == "sum" else "sum"
        text = f"a {other} instead of a {operation.name}, {operation.place}"
        yield Variant("reduction", text, _exchange_reduction)


def _reduce_slices(found: Operation) -> Any:
    x = found.args[0]
    return found.run() if x.dim() < 2 else getattr(x.flatten(1), found.name)(1)


def _exchange_reduction(found: Operation) -> Any:
    result = found.run()
    count = found.args[0].numel() / max(result.numel(), 1)
    return result / count if found.name == "sum" else result * count


def _loss(operation: Operation) -> Iterator[Variant]:
    """Cross entropy: how the tokens' losses become one number."""
    if operation.name != "nll_loss_forward" or operation.args[3] not in (_MEAN, _SUM):
        return
    if operation.args[3] == _SUM:
        yield Variant(
            "reduction", "the mean over the tokens instead of their sum", lambda found: found.replace(3, _MEAN)
        )
        return
    yield Variant("reduction", "the sum over the tokens instead of their mean", lambda found: found.replace(3, _SUM))
    yield Variant("count", "all tokens are counted, not the valid ones alone", _count_all)
    for parts in _CHUNKS:
        if operation.args[0].dim() == 2 and len(operation.args[0]) % parts == 0:
            text = f"a mean of means: {parts} parts have their own mean, and all count alike"
            yield Variant("mean of means", text, partial(_average_parts, parts=parts))


def _count_all(found: Operation) -> Any:
    total, weight = found.replace(3, _SUM)
    return total / found.args[1].numel(), weight


def _average_parts(found: Operation, parts: int) -> Any:
    x, target, *rest = found.args
    means = [found.run(a, b, *rest)[0] for a, b in zip(x.chunk(parts), target.chunk(parts))]
    return torch.stack(means).mean(), found.run()[1]


def _flags(operation: Operation) -> Iterator[Variant]:
    for position, argument in enumerate(operation.func._schema.arguments[: len(operation.args)]):
        value = operation.args[position]
        if isinstance(value, bool) and str(argument.type) == "bool" and argument.name not in _SILENT:
            text = f"{argument.name} {not value} instead of {value} in {operation.place}"
            yield Variant("flag", text, changing(position, operator.not_))
