"""How much error an operator's own arithmetic may make: S for stock modules by formula, for all else by perturbation.

Formulas: sums and products, Higham, "Accuracy and Stability of Numerical Algorithms", eq. 3.5 (|A||B| is the scale, not
|AB|) with the probabilistic sqrt(K) growth of Ipsen and Zhou (arXiv:1906.10465); norms, softmax and activations by
first derivatives of their definitions. Measured on conforming builds over K = 64..16384: no z above 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Callable, Optional

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from precision_align.core.dtypes import Array, dtype_of
from precision_align.numerics.judgement import Scale
from precision_align.numerics.limits import GENERIC_COEFFICIENT_FLOAT32, GENERIC_COEFFICIENT_LOW
from precision_align.replay.values import to_array

DRAWS = 3  # random perturbations: enough for a typical size, and four float64 runs in all
STEP = 2.0**-20  # relative size of one: far above float64 rounding, far below any non-linearity
ROW_SHARE = 0.3  # of the row's RMS added: one draw can be near zero by chance at single elements

# A one-pass variance loses mean x^2 / variance roundings. Builds that use it are fit for data up to a mean of about 32
# deviations; beyond, only what a two-pass or a running variance loses (one power of the ratio less) is excused.
ONE_PASS_RATIO = 1024.0

EXACT_MODULES = (
    nn.Embedding,
    nn.ReLU,
    nn.Identity,
    nn.Flatten,
    nn.Unflatten,
    nn.MaxPool1d,
    nn.MaxPool2d,
    nn.MaxPool3d,
    nn.ZeroPad2d,
    nn.ConstantPad1d,
    nn.ConstantPad2d,
    nn.PixelShuffle,
    nn.PixelUnshuffle,
)
RANDOM_MODULES = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
)


def is_exact(module: nn.Module) -> bool:
    """A module that only moves or selects values: bit equality is asked for."""
    if type(module) in RANDOM_MODULES:
        return not module.training or getattr(module, "p", 1) == 0
    return type(module) in EXACT_MODULES


def is_random(module: nn.Module) -> bool:
    """A module that draws a random mask: a Dropout, or what is made of one, while training."""
    return isinstance(module, RANDOM_MODULES) and module.training and getattr(module, "p", 1) != 0


def find_scale(module: nn.Module, inputs: Sequence[torch.Tensor], golden: Array) -> Optional[Scale]:
    """S of a stock module's only output, from its float64 inputs and parameters; None where there is no formula."""
    formula = _FORMULAS.get(type(module))
    # a pre-hook (weight_norm, spectral_norm) makes the weight anew in each call: what stands there now is an old one
    if formula is None or not inputs or module._forward_pre_hooks:
        return None
    with torch.no_grad():
        found = formula(module, inputs[0], torch.from_numpy(golden))
    if found is None or tuple(found.values.shape) != golden.shape:
        return None
    return found


def perturb(generator: torch.Generator) -> Callable[[torch.Tensor], torch.Tensor]:
    """A change of a float64 tensor by relative noise of size STEP.

    Whole numbers stay: labels, masks and one-hot rows that are floating carry decisions, and a flipped decision would
    count as a boundless condition.
    """

    def change(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.dtype.is_complex and bool((tensor == tensor.round()).all()):
            return tensor.clone()
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        return tensor * (1 + STEP * noise)

    return change


def estimate_scale(golden: Array, perturbed: Sequence[Array], dtype: str) -> Scale:
    """S from float64 results under perturbed inputs, with the coefficient of an S that no formula gives."""
    low = dtype_of(dtype).roundoff >= 2.0**-11
    coefficient = GENERIC_COEFFICIENT_LOW if low else GENERIC_COEFFICIENT_FLOAT32
    return Scale(measure_change(golden, perturbed), coefficient)


def measure_change(golden: Array, perturbed: Sequence[Array]) -> Array:
    """RMS over the draws of |change| / STEP, plus some of the row's. A draw of another shape (a decision fell the other
    way) tells nothing."""
    fitting = [values for values in perturbed if values.shape == golden.shape]
    with np.errstate(all="ignore"):
        total = np.zeros(golden.shape)
        for values in fitting:
            change = np.abs(values - golden) / STEP
            total += np.square(np.nan_to_num(change, nan=0.0, posinf=0.0))
        size = np.sqrt(total / max(len(fitting), 1))
    row = np.sqrt(np.mean(np.square(size), axis=-1, keepdims=True)) if size.ndim and size.size else size
    return np.asarray(size + ROW_SHARE * row)


def _make(values: torch.Tensor, coefficient: float, origin: str, **more: object) -> Scale:
    return Scale(to_array(values), coefficient, formula=True, origin=origin, **more)  # type: ignore[arg-type]


def _scale_linear(module: nn.Module, x: torch.Tensor, golden: torch.Tensor) -> Optional[Scale]:
    assert isinstance(module, nn.Linear)
    bias = None if module.bias is None else module.bias.abs()
    size = functional.linear(x.abs(), module.weight.abs(), bias)
    length = module.in_features
    return _make(
        size, 4 + math.sqrt(length), "|x||W| + |b|", length=length, decomposable=bias is not None, split=bias is None
    )


def _scale_conv(module: nn.Module, x: torch.Tensor, golden: torch.Tensor) -> Optional[Scale]:
    assert isinstance(module, nn.modules.conv._ConvNd)
    bias = None if module.bias is None else module.bias.abs()
    if module.padding_mode != "zeros" or module.transposed:
        return None
    operator = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[len(module.kernel_size)]
    size = operator(
        x.abs(),
        module.weight.abs(),
        bias,
        module.stride,
        module.padding,
        module.dilation,
        module.groups,
    )
    length = int(module.weight[0].numel())
    return _make(size, 4 + math.sqrt(length), "|x|*|W| + |b|", length=length, split=True)


def _scale_statistics(
    x: torch.Tensor, dims: Sequence[int], eps: float, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, int]:
    """|w|[(|x| + mean|x|)/s + |x-m|/s (1 + min(q^2, 1024 + q))] + |b|, s^2 = var + eps, q^2 = mean x^2/s^2."""
    mean = x.mean(tuple(dims), keepdim=True)
    variance = (x - mean).square().mean(tuple(dims), keepdim=True) + eps
    deviation = variance.sqrt()
    first = (x.abs() + x.abs().mean(tuple(dims), keepdim=True)) / deviation
    square = x.square().mean(tuple(dims), keepdim=True) / variance
    second = (x - mean).abs() / deviation * (1 + torch.minimum(square, ONE_PASS_RATIO + square.sqrt()))
    count = math.prod(int(x.shape[dim]) for dim in dims)
    return weight.abs() * (first + second) + bias.abs(), count


def _scale_layer_norm(module: nn.Module, x: torch.Tensor, golden: torch.Tensor) -> Optional[Scale]:
    assert isinstance(module, nn.LayerNorm)
    dims = list(range(x.dim() - len(module.normalized_shape), x.dim()))
    one, zero = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    weight = module.weight if module.weight is not None else one
    bias = module.bias if module.bias is not None else zero
    size, count = _scale_statistics(x, dims, module.eps, weight, bias)
    return _make(size, 8 + 0.5 * math.sqrt(count), "first derivatives of layer norm")


def _scale_batch_norm(module: nn.Module, x: torch.Tensor, golden: torch.Tensor) -> Optional[Scale]:
    assert isinstance(module, nn.modules.batchnorm._BatchNorm)
    if not module.training or x.dim() < 2:
        return None
    shape = [1, -1] + [1] * (x.dim() - 2)
    one, zero = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    weight = module.weight.reshape(shape) if module.weight is not None else one
    bias = module.bias.reshape(shape) if module.bias is not None else zero
    size, count = _scale_statistics(x, [dim for dim in range(x.dim()) if dim != 1], module.eps, weight, bias)
    return _make(size, 8 + 0.5 * math.sqrt(count), "first derivatives of batch norm")


def _scale_softmax(module: nn.Module, x: torch.Tensor, golden: torch.Tensor) -> Optional[Scale]:
    dim = module.dim
    if not isinstance(dim, int):
        return None
    distance = (x - x.amax(dim, keepdim=True)).abs()
    distance = torch.where(torch.isfinite(distance), distance, torch.zeros_like(distance))
    return _make(golden.abs() * (1 + distance), 4 + math.sqrt(int(x.shape[dim])), "p(1 + |x - max|)")


def _scale_gelu(module: nn.Module, x: torch.Tensor, golden: torch.Tensor) -> Optional[Scale]:
    return _make(x.abs(), 10.0, "|x|")


def _scale_silu(module: nn.Module, x: torch.Tensor, golden: torch.Tensor) -> Optional[Scale]:
    return _make(golden.abs() * (1 + x.abs()), 10.0, "|g|(1 + |x|)")


_FORMULAS: Mapping[type, Callable[[nn.Module, torch.Tensor, torch.Tensor], Optional[Scale]]] = {
    nn.Linear: _scale_linear,
    nn.Conv1d: _scale_conv,
    nn.Conv2d: _scale_conv,
    nn.Conv3d: _scale_conv,
    nn.LayerNorm: _scale_layer_norm,
    nn.BatchNorm1d: _scale_batch_norm,
    nn.BatchNorm2d: _scale_batch_norm,
    nn.BatchNorm3d: _scale_batch_norm,
    nn.Softmax: _scale_softmax,
    nn.GELU: _scale_gelu,
    nn.SiLU: _scale_silu,
}
