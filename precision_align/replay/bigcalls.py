"""Calls that are one big product: judged by a sample instead of two whole replays.

Linear layers forward and backward, convolutions forward. All else, however big, is replayed as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Optional, Protocol

import torch
from torch import nn

from precision_align.core.dtypes import dtype_of
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Status
from precision_align.numerics.judgement import Judgement, Scale, judge
from precision_align.replay.execution import Recorded, Style
from precision_align.replay.probing import judge_product
from precision_align.replay.products import LinearProduct, make_product, widen
from precision_align.replay.slots import Target, compare_kinds
from precision_align.replay.values import dtype_name, is_finite, load_tensor, to_array
from precision_align.storage.base import Dump

# Multiplications of one product from which on it is judged by a sample. The whole local test takes a native product and
# three of float64 (golden, condition scale, and twice the traffic): 2 s at this size on a CPU core with 20 GFLOP/s, and
# a training step of a model with such layers has hundreds of them.
SAMPLED_ABOVE = 1 << 31
# Values of operands and result together from which on it is sampled, too: five float64 copies of each are 20 GiB then.
SAMPLED_VALUES = 1 << 29
_MAX_TAPS = 1 << 10
# Marks of gradients that other code than this call's has added to.
_UNSURE = frozenset({"shared", "inside"})


class Preparer(Protocol):
    """What is needed of a :class:`~precision_align.replay.judging.Replayer`."""

    @property
    def dump(self) -> Dump: ...

    def prepare(self, node: Recorded, style: Style) -> tuple[nn.Module, dict[str, nn.Module]]: ...

    def is_training(self, node: Recorded) -> bool: ...


def judge_big_forward(replayer: Preparer, node: Recorded) -> Optional[list[Target]]:
    """The verdict on a call's output by sample; None where the call is no product, or too small a one."""
    output = node.outputs.get("")
    if output is None or len(node.outputs) > 1 or not _may_be_big(node, output):
        return None
    (source,) = node.inputs.values()
    inputs, module = load_tensor(replayer.dump, source), replayer.prepare(node, Style(golden=False))[0]
    lowered = next(iter(node.call.autocast.values()), None)
    if lowered is not None:
        dtype = getattr(torch, str(lowered).replace("torch.", ""))
        inputs, module = inputs.to(dtype), module.to(dtype)
    product = make_product(module, inputs, torch.Size(output.shape))
    if product is None or not is_big(product):
        return None
    if product.num_rows * product.num_columns != math.prod(output.shape):
        return None  # another shape than the reference's: the whole replay says which
    return [Target(-1, "", output, _judge(replayer.dump, product, output, [source]))]


def judge_big_backward(replayer: Preparer, node: Recorded) -> Optional[list[Target]]:
    """The same for the gradients of a linear layer; None where any of them is not this call's alone."""
    arriving = node.gradients.get("output")
    if arriving is None or not _may_be_big(node, arriving) or node.call.autocast:
        return None
    if any(record.reason or not _UNSURE.isdisjoint(record.extra) for record in node.gradients.values()):
        return None
    ((path, source),) = node.inputs.items()
    module = replayer.prepare(node, Style(golden=False))[0]
    if type(module) is not nn.Linear or module._forward_pre_hooks:
        return None
    inputs, gradient = load_tensor(replayer.dump, source), load_tensor(replayer.dump, arriving)
    rows, arrived = inputs.reshape(-1, inputs.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
    weight = module.weight.detach()
    if len(rows) != len(arrived) or weight.shape != (arrived.shape[1], rows.shape[1]) or arrived.dtype != rows.dtype:
        return None
    products = {
        f"input.{path}": LinearProduct(arrived, weight.T),
        "parameter.weight": LinearProduct(arrived.T, rows.T),
    }
    if not is_big(products["parameter.weight"]):
        return None
    sources = [source, arriving]
    found = []
    for name, record in _list_made(node):
        if name in products:
            judgement = _judge(replayer.dump, products[name], record, sources)
        else:
            judgement = _judge_bias(replayer.dump, arrived, record, sources)
        found.append(Target(-1, name, record, judgement))
    return found


def is_big(product: LinearProduct) -> bool:
    """Whether its whole replay would cost too much."""
    values = product.num_rows * (product.length + product.num_columns) + product.num_columns * product.length
    return product.multiplications > SAMPLED_ABOVE or values > SAMPLED_VALUES


def _may_be_big(node: Recorded, output: TensorRecord) -> bool:
    """From shapes alone, before anything is read; True may be wrong."""
    if node.children or len(node.inputs) != 1 or not dtype_of(output.dtype).is_floating or output.reason:
        return False
    (source,) = node.inputs.values()
    # exact for linear layers; a convolution multiplies each input by up to so many taps of each channel
    return math.prod(source.shape) * max(output.shape, default=1) * _MAX_TAPS > SAMPLED_ABOVE


def _list_made(node: Recorded) -> Iterator[tuple[str, TensorRecord]]:
    for name, record in node.gradients.items():
        if name.partition(".")[0] in ("input", "parameter"):
            yield name, record


def _judge(dump: Dump, product: LinearProduct, record: TensorRecord, sources: list[TensorRecord]) -> Judgement:
    native = dtype_name(product.weight)
    mismatch = compare_kinds(record.dtype, native)
    if mismatch is not None:
        return mismatch
    kind = max(dtype_of(record.dtype), dtype_of(native), key=lambda dtype: dtype.roundoff)
    finite = all(is_finite(dump, source) for source in sources)
    return judge_product(product, load_tensor(dump, record), kind, finite)


def _judge_bias(dump: Dump, arrived: torch.Tensor, record: TensorRecord, sources: list[TensorRecord]) -> Judgement:
    """A sum over rows: cheap, so judged whole."""
    wide = widen(arrived)
    scale = Scale(to_array(wide.abs().sum(0)), 4 + math.sqrt(len(wide)), length=len(wide), formula=True, split=True)
    mismatch = compare_kinds(record.dtype, dtype_name(arrived))
    if mismatch is not None:
        return mismatch
    values = to_array(load_tensor(dump, record)), to_array(wide.sum(0)), to_array(arrived.sum(0))
    if values[0].shape != values[1].shape:
        return Judgement(Status.FAIL, f"shape {values[0].shape}, the reference computes {values[1].shape}")
    return judge(*values, scale, dtype_of(record.dtype), finite_inputs=all(is_finite(dump, one) for one in sources))
