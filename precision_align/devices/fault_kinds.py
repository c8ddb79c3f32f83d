"""What each kind of fault does to one operator call.

Two sorts. A *result* effect changes a computed tensor. A *call* effect runs the operator differently. Neither touches
the inputs, and in-place operators stay in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Call:
    """One execution of an operator: ``run(operator, args, kwargs)`` carries it out; ``name`` is without namespace."""

    operator: Any
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    run: Callable[[Any, Sequence[Any], Mapping[str, Any]], Any]

    def proceed(self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run the operator, with other arguments where given."""
        return self.run(self.operator, self.args if args is None else args, self.kwargs if kwargs is None else kwargs)

    def with_argument(self, name: str, value: Any) -> Any:
        """Run the operator with one argument, by its schema name, replaced."""
        names = [argument.name for argument in self.operator._schema.arguments]
        position = names.index(name)
        if position < len(self.args):
            return self.proceed(args=[*self.args[:position], value, *self.args[position + 1 :]])
        return self.proceed(kwargs={**self.kwargs, name: value})

    def argument(self, name: str, default: Any = None) -> Any:
        """The value of an argument by its schema name."""
        names = [argument.name for argument in self.operator._schema.arguments]
        position = names.index(name) if name in names else len(self.args)
        return self.args[position] if position < len(self.args) else self.kwargs.get(name, default)


ResultEffect = Callable[[torch.Tensor, float, int], torch.Tensor]
CallEffect = Callable[[Call, float], Any]


def _scale(values: torch.Tensor, value: float, index: int) -> torch.Tensor:
    return values * value


def _shift(values: torch.Tensor, value: float, index: int) -> torch.Tensor:
    return values + value


def _round_to_bf16(values: torch.Tensor, value: float, index: int) -> torch.Tensor:
    return values.to(torch.bfloat16).to(values.dtype)


def _truncate(values: torch.Tensor, value: float, index: int) -> torch.Tensor:
    words = values.to(torch.float32).contiguous().view(torch.int32)
    return (words & -65536).view(torch.float32).view_as(values).to(values.dtype)


def _saturate(values: torch.Tensor, value: float, index: int) -> torch.Tensor:
    limit = value or torch.finfo(values.dtype).max
    return torch.nan_to_num(values, nan=0.0).clamp(-limit, limit)


def _change_element(values: torch.Tensor, index: int, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """A copy with ``change`` applied to one element, counted in row-major order and wrapped at the end."""
    changed = values.clone(memory_format=torch.contiguous_format)
    flat = changed.view(-1)
    place = index % max(1, flat.numel())
    flat[place : place + 1] = change(flat[place : place + 1])
    return changed


def _flip_bit(values: torch.Tensor, value: float, index: int) -> torch.Tensor:
    word = _WORDS[values.element_size()]
    bits = 8 * values.element_size()
    # The sign bit of a signed word cannot be written as a positive number.
    mask = torch.tensor(1, dtype=torch.int64) << (int(value) % bits)
    return _change_element(values, index, lambda one: (one.view(word) ^ mask.to(word)).view(values.dtype))


def _make_nan(values: torch.Tensor, value: float, index: int) -> torch.Tensor:
    return _change_element(values, index, lambda one: torch.full_like(one, float("nan")))


def _make_infinite(values: torch.Tensor, value: float, index: int) -> torch.Tensor:
    return _change_element(values, index, lambda one: torch.full_like(one, float("inf")))


def _lose_tile(values: torch.Tensor, value: float, index: int) -> torch.Tensor:
    changed = values.clone()
    side = int(value)
    corner = changed[..., :side, :side] if values.dim() > 1 else changed[..., :side]
    corner.zero_()
    return changed


RESULT_EFFECTS: Mapping[str, ResultEffect] = {
    "scale": _scale,
    "gradient_scale": _scale,
    "bias": _shift,
    "bf16": _round_to_bf16,
    "truncate": _truncate,
    "saturate": _saturate,
    "bit_flip": _flip_bit,
    "nan": _make_nan,
    "inf": _make_infinite,
    "lost_tile": _lose_tile,
}


def _zero_tail(call: Call, value: float) -> Any:
    names = ("mat1", "self") if call.name.startswith("add") else ("batch1", "self")
    name = next(name for name in names if call.argument(name) is not None)
    left = call.argument(name)
    depth = left.shape[-1]
    kept = max(1, depth - int(value))
    cut = left.clone()
    cut[..., kept:] = 0
    return call.with_argument(name, cut)


def _replace_epsilon(call: Call, value: float) -> Any:
    if call.name == "add":
        return call.proceed(args=[call.args[0], value, *call.args[2:]])
    name = "epsilon" if call.name.startswith("npu_") else "eps"
    return call.with_argument(name, value)


def _swap_gelu(call: Call, value: float) -> Any:
    asked = call.argument("approximate", "none")
    return call.with_argument("approximate", "none" if asked == "tanh" else "tanh")


def _unbias(call: Call, value: float) -> Any:
    if call.name != "native_layer_norm":
        return call.with_argument("correction", 1 - (call.argument("correction", 1) or 0))
    values, shape, weight, bias, epsilon = call.args
    dims = list(range(values.dim() - len(shape), values.dim()))
    mean = values.float().mean(dims, keepdim=True)
    scale = (values.float().var(dims, correction=1, keepdim=True) + epsilon).rsqrt()
    result = (values.float() - mean) * scale
    result = result if weight is None else result * weight.float()
    result = result if bias is None else result + bias.float()
    _, plain_mean, plain_scale = call.proceed()
    return result.to(values.dtype), mean.to(plain_mean.dtype), scale.to(plain_scale.dtype)


def _soften(call: Call, value: float) -> Any:
    """Compute in bfloat16 and give the dtype that was asked for."""
    values = call.args[0]
    plain = call.proceed()
    low = call.operator(values.to(torch.bfloat16), call.args[1], *([False] if len(call.args) > 2 else []))
    return low.to(plain.dtype)


def _interleave(call: Call, value: float) -> Any:
    if call.name == "npu_rotary_mul":
        mode = call.argument("rotary_mode", "half")
        return call.with_argument("rotary_mode", "interleave" if mode == "half" else "half")
    parts = call.args[0]
    # rotate_half concatenates (-second, first); the input is put together again and its neighbours are rotated.
    values = torch.cat([parts[1], -parts[0]], -1)
    return torch.stack([-values[..., 1::2], values[..., 0::2]], -1).flatten(-2)


def _drop_mask(call: Call, value: float) -> Any:
    if call.name == "masked_fill_":
        return call.args[0]
    if call.name in ("masked_fill", "where", "add"):
        scores = _pick_scores(call)
        return torch.broadcast_tensors(scores, *_tensors(call))[0].clone()  # type: ignore[no-untyped-call]
    if call.name == "npu_fusion_attention":
        return _without(call, atten_mask=None, sparse_mode=0)
    return _without(call, attn_mask=None, is_causal=False)


def _tensors(call: Call) -> list[torch.Tensor]:
    return [value for value in call.args if isinstance(value, torch.Tensor)]


def _pick_scores(call: Call) -> torch.Tensor:
    """masked_fill and add: the first argument; where(mask, scores, constant), in either order: what is no constant."""
    branches = _tensors(call)[1:] if call.name == "where" else _tensors(call)[:1]
    return max(branches, key=torch.Tensor.numel)


def _without(call: Call, **replaced: Any) -> Any:
    names = [argument.name for argument in call.operator._schema.arguments]
    args = [replaced.get(name, value) if name in replaced else value for name, value in zip(names, call.args)]
    absent = {name: value for name, value in replaced.items() if names.index(name) >= len(call.args)}
    return call.proceed(args=args, kwargs={**call.kwargs, **absent})


def _swap_halves(call: Call, value: float) -> Any:
    dim = call.argument("dim", -1)
    first, second = call.args[0].chunk(2, dim)
    return call.proceed(args=[torch.cat([second, first], dim), *call.args[1:]])


def _lose_updates(call: Call, value: float) -> Any:
    """Every update reads the old value, adds, and writes back: with equal places the last one wins."""
    name = call.name.rstrip("_")
    if name == "embedding_dense_backward":
        result = _lose_embedding_updates(call)
    elif name == "index_add":
        target, dim, index, source = call.args[:4]
        updated = target.index_select(dim, index) + call.argument("alpha", 1) * source
        result = target.index_copy(dim, index, updated)
    elif name == "scatter_add":
        target, dim, index, source = call.args[:4]
        picked = source[tuple(slice(size) for size in index.shape)]
        result = target.scatter(dim, index, target.gather(dim, index) + picked)
    else:
        target, indices, values = call.args[:3]
        places = tuple(slice(None) if index is None else index for index in indices)
        result = target.index_put(indices, target[places] + values)
    return call.args[0].copy_(result) if call.name.endswith("_") else result


def _lose_embedding_updates(call: Call) -> torch.Tensor:
    gradient, indices, rows, padding = call.args[:4]
    flat, places = gradient.reshape(-1, gradient.shape[-1]), indices.reshape(-1)
    result: torch.Tensor = flat.new_zeros(rows, flat.shape[-1]).index_copy(0, places, flat)
    if padding >= 0:
        result[padding] = 0
    return result


CALL_EFFECTS: Mapping[str, CallEffect] = {
    "zero_tail": _zero_tail,
    "eps": _replace_epsilon,
    "tanh_gelu": _swap_gelu,
    "unbiased_variance": _unbias,
    "low_softmax": _soften,
    "interleaved_rope": _interleave,
    "mask_dropped": _drop_mask,
    "swapped_halves": _swap_halves,
    "duplicates_dropped": _lose_updates,
}


def _adds_number(call: Call) -> bool:
    """A norm written out adds its epsilon as a plain number."""
    return call.name != "add" or (len(call.args) > 1 and isinstance(call.args[1], float))


def _joins_halves(call: Call) -> bool:
    parts = call.args[0]
    return call.name != "cat" or (len(parts) == 2 and parts[0].shape == parts[1].shape)


def _applies_mask(call: Call) -> bool:
    if call.name == "where":
        return sum(branch.numel() > 1 for branch in _tensors(call)[1:]) == 1
    if call.name == "add":
        return len(_tensors(call)) > 1 and bool(torch.isneginf(call.args[1]).any())
    return True


def _accumulates(call: Call) -> bool:
    return not call.name.startswith("index_put") or bool(call.argument("accumulate", False))


_CONDITIONS: Mapping[str, Callable[[Call], bool]] = {
    "eps": _adds_number,
    "interleaved_rope": _joins_halves,
    "mask_dropped": _applies_mask,
    "duplicates_dropped": _accumulates,
}


def is_about(kind: str, call: Call) -> bool:
    """Whether the call, an operator the kind names, does what the kind breaks; others are not counted."""
    condition = _CONDITIONS.get(kind)
    return condition is None or condition(call)


def find_floating(result: Any) -> int | None:
    """Position of the first floating tensor of a result (0 for a single tensor); None where there is none."""
    listed = result if isinstance(result, (list, tuple)) else [result]
    for position, one in enumerate(listed):
        if isinstance(one, torch.Tensor) and one.is_floating_point() and one.numel():
            return position
    return None


def change_result(kind: str, result: Any, value: float, index: int, in_place: bool) -> Any:
    """Apply a result effect to the first floating tensor of a result that has one."""
    if isinstance(result, (list, tuple)):
        position = find_floating(result) or 0
        changed = change_result(kind, result[position], value, index, in_place)
        return [*result[:position], changed, *result[position + 1 :]]
    changed = RESULT_EFFECTS[kind](result, value, index).to(result.dtype)
    return result.copy_(changed) if in_place else _restride(changed, result)


def _restride(changed: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Keep the strides: later kernels choose their way by them, and must choose as without the fault."""
    if changed.stride() == result.stride():
        return changed
    return torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device=result.device).copy_(changed)
