"""Sums of gradients that wait for more contributions, on their device within a limit and on the host beyond it."""

from __future__ import annotations

import torch

from precision_align.recording.copies import DEVICE_BYTES


class Sums:
    """Own copies of gradients; inside ``untouched`` only. A lock of the caller's keeps threads apart."""

    def __init__(self) -> None:
        self._device_bytes = 0

    def start(self, gradient: torch.Tensor) -> torch.Tensor:
        """The first contribution."""
        nbytes = _weigh(gradient)
        if self._device_bytes + nbytes > DEVICE_BYTES:
            return gradient.detach().to("cpu", copy=True)
        self._device_bytes += nbytes
        return gradient.detach().clone()

    def add(self, total: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """One more, in the order in which they come."""
        return total + gradient.detach().to(total.device)

    def finish(self, total: torch.Tensor, device: torch.device) -> torch.Tensor:
        """The sum, on the gradients' device."""
        self._device_bytes -= _weigh(total)
        return total.to(device)


def _weigh(tensor: torch.Tensor) -> int:
    """Bytes on a device."""
    if tensor.device.type == "cpu" or tensor.layout is not torch.strided or tensor.is_nested:
        return 0
    return tensor.numel() * tensor.element_size()
