"""One call executed in another way: its tensors sent to another device or dtype, its results brought back.

Differentiable both ways. What the call wrote in place is written back to the tensors that it was given. What its
outputs must look like is learned from one run of the original, without gradients and on copies.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np
import torch

from precision_align.recording.modes import enabled_autocast
from precision_align.recording.staging import untouched
from precision_align.recording.structures import flatten_arguments
from precision_align.recording.substitution import substitute
from precision_align.recording.swaps import SwapKind

Convert = Callable[[torch.Tensor], torch.Tensor]
_LOW = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Look:
    """Where and in what dtype an output is."""

    device: torch.device
    dtype: torch.dtype


Looks = Mapping[str, Look]


def choose_conversion(kind: SwapKind) -> Convert:
    """How tensors go in. On the CPU autocast does not follow the device's lists: what is under it computes in float32
    there.
    """
    wide = kind is SwapKind.FP32 or (kind is SwapKind.CPU and bool(enabled_autocast()))
    cpu = torch.device("cpu") if kind is SwapKind.CPU else None

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        dtype = torch.float32 if wide and tensor.dtype in _LOW else tensor.dtype
        return tensor.to(device=cpu or tensor.device, dtype=dtype)

    return convert


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Autocast is off on every device that has it on."""
    with contextlib.ExitStack() as stack:
        for device in enabled_autocast():
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def learn_looks(run: Callable[..., Any], args: Any, kwargs: Any) -> Optional[Looks]:
    """The outputs' devices and dtypes from a run on copies, None where that fails; generators are left as they were."""
    leaves = [tensor for _, tensor in flatten_arguments({"args": args, "kwargs": kwargs})[1]]
    with torch.no_grad(), _fork_generators(leaves):
        copies = {id(tensor): tensor.detach().clone() for tensor in leaves}
        try:
            result = run(*substitute(args, copies), **substitute(kwargs, copies))
        except Exception:  # what the swap is there for, perhaps
            return None
    return {path: Look(tensor.device, tensor.dtype) for path, tensor in flatten_arguments(result)[1]}


@contextlib.contextmanager
def _fork_generators(leaves: list[torch.Tensor]) -> Iterator[None]:
    devices = {tensor.device for tensor in leaves if tensor.device.type not in ("cpu", "meta")}
    python, numpy = random.getstate(), np.random.get_state()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=[]))
        for device in devices:
            with contextlib.suppress(AttributeError, RuntimeError, ValueError):  # a device without generators
                stack.enter_context(torch.random.fork_rng(devices=[device.index], device_type=device.type))
        yield
    random.setstate(python)
    np.random.set_state(numpy)


class Hop:
    """The tensors of one call on their way there and back."""

    def __init__(self, convert: Convert) -> None:
        self._convert = convert
        self._sent: dict[int, tuple[torch.Tensor, torch.Tensor, int]] = {}  # id -> original, sent, its version

    def send(self, value: Any) -> Any:
        """The same structure with converted tensors; one tensor passed twice stays one."""
        leaves = flatten_arguments(value)[1]
        return substitute(value, {id(tensor): self._send(tensor) for _, tensor in leaves})

    @contextlib.contextmanager
    def send_state(self, module: torch.nn.Module) -> Iterator[None]:
        """The module holds converted parameters and buffers while inside; a buffer that it replaces is brought back."""
        held = [part._parameters for part in module.modules()] + [part._buffers for part in module.modules()]
        places = [(own, name, tensor) for own in held for name, tensor in own.items() if tensor is not None]
        recurrent = [part for part in module.modules() if isinstance(part, torch.nn.RNNBase)]
        flat = [part._flat_weights for part in recurrent]
        sent = [(own, name, tensor, self._send(tensor)) for own, name, tensor in places]
        try:
            for own, name, _, other in sent:
                own[name] = other  # type: ignore[assignment]
            for part, weights in zip(recurrent, flat):
                part._flat_weights = [None if weight is None else self._send(weight) for weight in weights]
            yield
        finally:
            for own, name, tensor, other in sent:
                now = own.get(name)
                own[name] = tensor if now is other or now is None else now.to(tensor.device, tensor.dtype)  # type: ignore[assignment]
            for part, weights in zip(recurrent, flat):
                part._flat_weights = weights

    def _send(self, tensor: torch.Tensor) -> torch.Tensor:
        known = self._sent.get(id(tensor))
        if known is None:
            sent = self._convert(tensor)
            known = self._sent[id(tensor)] = (tensor, sent, -1 if sent.is_inference() else sent._version)
        return known[1]

    def bring_back(self, result: Any, looks: Optional[Looks]) -> Any:
        """The result with outputs as the original's, after writing back what was written; an argument stays itself."""
        self._write_back()
        originals = {id(sent): original for original, sent, _ in self._sent.values()}
        found = {}
        for path, tensor in flatten_arguments(result)[1]:
            look = self._guess() if looks is None else looks.get(path)
            if id(tensor) in originals:
                found[id(tensor)] = originals[id(tensor)]
            elif look is not None:
                dtype = look.dtype if tensor.is_floating_point() else tensor.dtype
                found[id(tensor)] = tensor.to(device=look.device, dtype=dtype)
        return substitute(result, found)

    def _guess(self) -> Optional[Look]:
        """As the first floating argument that is not on the CPU."""
        originals = [original for original, _, _ in self._sent.values() if original.is_floating_point()]
        chosen = next((one for one in originals if not one.is_cpu), originals[0] if originals else None)
        return None if chosen is None else Look(chosen.device, chosen.dtype)

    def _write_back(self) -> None:
        for original, sent, version in self._sent.values():
            if sent is original:
                continue
            if sent.requires_grad:
                if sent._version != version:
                    original.copy_(sent)
            elif is_changed(original, sent):
                with torch.no_grad():
                    original.copy_(sent)


def is_changed(original: torch.Tensor, sent: torch.Tensor) -> bool:
    """Whether a sent tensor was written. Values are looked at, as some kernels write without counting a version."""
    with untouched(), torch.no_grad():
        back = sent.to(device=original.device, dtype=original.dtype)
        if torch.equal(back, original):
            return False
        both_nan = (back != back) & (original != original)
        return not bool(((back == original) | both_nan).all())
