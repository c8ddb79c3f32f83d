"""Linear maps and convolutions as products of a row matrix and a weight, any part of which can be had by itself.

Rows are what the operator is applied to (tokens, output pixels), columns its output features or channels. Nothing here
holds a whole float64 copy of an operand: rows are taken in chunks.
"""

from __future__ import annotations

import copy
import math
from typing import Callable, Optional

import numpy as np
import torch
from torch import nn
from torch.nn import functional

CHUNK = 1 << 21  # values of a float64 chunk: 16 MiB, which allocators hand out again instead of mapping it anew

Change = Callable[[torch.Tensor], torch.Tensor]
_CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def widen(tensor: torch.Tensor) -> torch.Tensor:
    """In float64."""
    return tensor.to(torch.float64)


def keep(tensor: torch.Tensor) -> torch.Tensor:
    """As it is: the operator's own dtype."""
    return tensor


class LinearProduct:
    """``left @ weight.T + bias``; ``left``: (rows, length), ``weight``: (columns, length), own dtypes."""

    def __init__(self, left: torch.Tensor, weight: torch.Tensor, bias: Optional[torch.Tensor] = None) -> None:
        self.left, self.weight, self.bias = left, weight, bias
        self.num_rows, self.length = left.shape
        self.num_columns = weight.shape[0]

    @property
    def multiplications(self) -> int:
        """Of the whole product."""
        return int(self.num_rows) * int(self.num_columns) * int(self.length)

    def select_columns(self, columns: torch.Tensor) -> LinearProduct:
        """The product with some columns only."""
        part = copy.copy(self)
        part.weight = self.weight[columns]
        part.bias = None if self.bias is None else self.bias[columns]
        part.num_columns = len(columns)
        return part

    def project(self, weight: torch.Tensor, bias: Optional[torch.Tensor], change: Change) -> torch.Tensor:
        """All rows, changed, by other weights: (rows, columns of ``weight``)."""
        step = max(1, CHUNK // max(1, self.length))
        parts = [functional.linear(change(part), weight, bias) for part in torch.split(self.left, step)]
        return torch.cat(parts)

    def take_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Some rows of ``left``: (rows, length)."""
        return self.left[rows]

    def as_rows(self, output: torch.Tensor) -> torch.Tensor:
        """The operator's output as (rows, columns)."""
        return output.reshape(-1, self.num_columns)

    def locate(self, row: int, column: int) -> int:
        """The flat position of an element in the operator's output."""
        return row * int(self.num_columns) + column


class ConvProduct(LinearProduct):
    """A convolution without groups, zero padding: its rows are patches, cut out when they are asked for."""

    def __init__(self, module: nn.modules.conv._ConvNd, inputs: torch.Tensor, shape: tuple[int, ...]) -> None:
        self._module, self._inputs = module, inputs
        self._spatial = shape[2:]
        self._pixels = math.prod(self._spatial)
        self.weight = module.weight.detach().flatten(1)
        self.bias = None if module.bias is None else module.bias.detach()
        self.num_rows, self.num_columns, self.length = shape[0] * self._pixels, shape[1], self.weight.shape[1]

    def project(self, weight: torch.Tensor, bias: Optional[torch.Tensor], change: Change) -> torch.Tensor:
        module, shape = self._module, self._module.weight.shape[1:]
        kernel = weight.reshape(-1, *shape)
        operator = _CONVOLUTIONS[len(self._spatial)]
        step = max(1, CHUNK // max(1, int(self._inputs[:1].numel())))
        parts = [
            operator(change(part), kernel, bias, module.stride, module.padding, module.dilation)
            for part in torch.split(self._inputs, step)
        ]
        return torch.cat([part.movedim(1, -1).reshape(-1, kernel.shape[0]) for part in parts])

    def take_rows(self, rows: torch.Tensor) -> torch.Tensor:
        pads = [size for pair in reversed(_list_padding(self._module)) for size in pair]
        padded: dict[int, torch.Tensor] = {}
        found = []
        for row in rows.tolist():
            image, pixel = divmod(row, self._pixels)
            if image not in padded:
                padded[image] = functional.pad(self._inputs[image], pads)
            found.append(padded[image][(slice(None), *self._find_window(pixel))].reshape(-1))
        return torch.stack(found)

    def _find_window(self, pixel: int) -> list[slice]:
        window = []
        places = np.unravel_index(pixel, self._spatial)
        sizes = zip(places, self._module.kernel_size, self._module.stride, self._module.dilation)
        for place, size, stride, dilation in sizes:
            start = int(place) * stride
            window.append(slice(start, start + dilation * (size - 1) + 1, dilation))
        return window

    def as_rows(self, output: torch.Tensor) -> torch.Tensor:
        return output.movedim(1, -1).reshape(-1, self.num_columns)

    def locate(self, row: int, column: int) -> int:
        image, pixel = divmod(row, self._pixels)
        return (image * int(self.num_columns) + column) * self._pixels + pixel


def _list_padding(module: nn.modules.conv._ConvNd) -> list[tuple[int, int]]:
    """(before, after) of each dimension; "same" pads the odd one behind, as torch documents it."""
    if module.padding == "same":
        totals = [dilation * (size - 1) for size, dilation in zip(module.kernel_size, module.dilation)]
        return [(total // 2, total - total // 2) for total in totals]
    if module.padding == "valid":
        return [(0, 0)] * len(module.kernel_size)
    return [(int(size), int(size)) for size in module.padding]


def make_product(module: nn.Module, inputs: torch.Tensor, output: torch.Size) -> Optional[LinearProduct]:
    """The product that a stock module computes, in the module's own dtypes; None where it is none that is known."""
    if module._forward_pre_hooks or module._forward_hooks or not inputs.dtype.is_floating_point:
        return None
    if any(parameter.dtype != inputs.dtype for parameter in module.parameters()):
        return None
    if type(module) is nn.Linear and inputs.dim() > 1:
        bias = None if module.bias is None else module.bias.detach()
        return LinearProduct(inputs.reshape(-1, inputs.shape[-1]), module.weight.detach(), bias)
    if type(module) in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        assert isinstance(module, nn.modules.conv._ConvNd)
        plain = module.groups == 1 and module.padding_mode == "zeros"
        if plain and inputs.dim() == 2 + len(module.kernel_size):
            return ConvProduct(module, inputs, tuple(output))
    return None
