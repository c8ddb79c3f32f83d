"""Operators that torch_npu hands to CANN's compiler ("aclop"), served in Python by name: the casts between formats.

A device keeps some tensors in private formats, blocks of 16 that its matrix unit reads; torch_npu brings them into
plain order before anybody on the host sees them. That way is its own code here, too.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

_DIMENSIONS = 16
BLOCK = 16
# aclFormat and aclDataType by number (acl_base_rt.h).
NC1HWC0, FRACTAL_NZ = 3, 29
_DTYPES = {
    0: torch.float32,
    1: torch.float16,
    2: torch.int8,
    3: torch.int32,
    4: torch.uint8,
    9: torch.int64,
    27: torch.bfloat16,
}
_OK, _UNSUPPORTED = 0, 500002


class _Description(ctypes.Structure):
    """``Description`` of operators.c."""

    _fields_ = (
        ("dtype", ctypes.c_int32),
        ("num_dimensions", ctypes.c_int32),
        ("format", ctypes.c_int32),
        ("placement", ctypes.c_int32),
        ("shape", ctypes.c_int64 * _DIMENSIONS),
        ("storage_format", ctypes.c_int32),
    )


class _Buffer(ctypes.Structure):
    """``Buffer`` of operators.c."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


_Descriptions = ctypes.POINTER(ctypes.POINTER(_Description))
_Buffers = ctypes.POINTER(ctypes.POINTER(_Buffer))
_Served = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_int,
    _Descriptions,
    _Buffers,
    ctypes.c_int,
    _Descriptions,
    _Buffers,
    ctypes.c_char_p,
)


class _State:
    function: Any = None
    holds_private_formats = False
    refused: tuple[str, ...] = ()


def to_private(values: torch.Tensor, form: int) -> torch.Tensor:
    """Plain values in the order of a private format, flat, padded with zeros to whole blocks.

    FRACTAL_NZ: [..., M, N] as [..., N/16, M/16, 16, 16]; NC1HWC0: [N, C, H, W] as [N, C/16, H, W, 16].
    """
    if form == FRACTAL_NZ:
        padded = torch.nn.functional.pad(values, (0, -values.shape[-1] % BLOCK, 0, -values.shape[-2] % BLOCK))
        rows, columns = padded.shape[-2] // BLOCK, padded.shape[-1] // BLOCK
        blocks = padded.reshape(*padded.shape[:-2], rows, BLOCK, columns, BLOCK)
        return blocks.movedim(-2, -4).flatten()
    if form == NC1HWC0:
        padded = torch.nn.functional.pad(values, (0, 0, 0, 0, 0, -values.shape[1] % BLOCK))
        batch, channels, height, width = padded.shape
        blocks = padded.reshape(batch, channels // BLOCK, BLOCK, height, width)
        return blocks.movedim(2, -1).flatten()
    return values.flatten()


def from_private(words: torch.Tensor, shape: tuple[int, ...], form: int) -> torch.Tensor:
    """The inverse of ``to_private``: plain values of that shape."""
    if form == FRACTAL_NZ:
        rows, columns = (-(-size // BLOCK) for size in shape[-2:])
        blocks = words[: torch.Size(shape[:-2]).numel() * rows * columns * BLOCK**2]
        blocks = blocks.reshape(*shape[:-2], columns, rows, BLOCK, BLOCK).movedim(-4, -2)
        return blocks.reshape(*shape[:-2], rows * BLOCK, columns * BLOCK)[..., : shape[-2], : shape[-1]]
    if form == NC1HWC0:
        batch, channels, height, width = shape
        groups = -(-channels // BLOCK)
        blocks = words[: batch * groups * height * width * BLOCK].reshape(batch, groups, height, width, BLOCK)
        return blocks.movedim(-1, 2).flatten(1, 2)[:, :channels]
    return words[: torch.Size(shape).numel()].reshape(shape)


def _view(description: _Description, buffer: _Buffer) -> torch.Tensor:
    dtype = _DTYPES[description.dtype]
    count = buffer.size // dtype.itemsize
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(buffer.address)
    return torch.frombuffer(memory, dtype=dtype)


def _cast_format(source: _Description, source_buffer: _Buffer, target: _Description, target_buffer: _Buffer) -> None:
    shape = tuple(source.shape[: source.num_dimensions])
    plain = from_private(_view(source, source_buffer), shape, source.storage_format)
    words = to_private(plain, target.storage_format)
    _view(target, target_buffer)[: words.numel()].copy_(words)
    _State.holds_private_formats |= target.storage_format in (NC1HWC0, FRACTAL_NZ)


def _serve(
    name: bytes, num_inputs: int, inputs: Any, input_buffers: Any, num_outputs: int, outputs: Any, output_buffers: Any,
    attributes: bytes,
) -> int:  # fmt: skip
    try:
        if name == b"Identity" and num_inputs == num_outputs == 1:
            with torch.no_grad():
                _cast_format(
                    inputs[0].contents, input_buffers[0].contents, outputs[0].contents, output_buffers[0].contents
                )
            return _OK
    except Exception as error:  # no exception may pass through C; torch_npu raises what we return
        _State.refused += (f"{name.decode()}: {type(error).__name__}: {error}",)
        return _UNSUPPORTED
    _State.refused += (name.decode(),)
    return _UNSUPPORTED


def serve_operators(library: ctypes.CDLL) -> None:
    """Let the stub's compile-and-run call come here; the library is what ``load_stub`` returned."""
    _State.function = _Served(_serve)  # kept alive: C holds its address only
    library.stub_set_operators(_State.function)


def holds_private_formats() -> bool:
    """Whether a tensor has been brought into a private format in this process."""
    return _State.holds_private_formats


def list_refused() -> list[str]:
    """Names of operators that torch_npu asked for and nothing here serves."""
    return list(_State.refused)
