"""A grey image as PNG, by the standard library: reports need no imaging package."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from precision_align.core.dtypes import Array

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_LARGEST = 1024  # pixels a side: a report is no archive; larger maps are thinned by their maximum


def encode_png(levels: Array) -> bytes:
    """uint8 (H, W) as an 8-bit grey PNG (PNG specification, sections 5 and 11)."""
    levels = _thin(levels)
    rows = np.concatenate([np.zeros((len(levels), 1), np.uint8), levels], axis=1)  # filter type 0 before each row
    header = struct.pack(">IIBBBBB", levels.shape[1], levels.shape[0], 8, 0, 0, 0, 0)
    return (
        _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows.tobytes(), 6)) + _chunk(b"IEND", b"")
    )


def _thin(levels: Array) -> Array:
    step = -(-max(levels.shape) // _LARGEST)
    if step < 2:
        return levels
    height, width = (-(-size // step) * step for size in levels.shape)
    padded = np.zeros((height, width), np.uint8)
    padded[: levels.shape[0], : levels.shape[1]] = levels
    return np.asarray(padded.reshape(height // step, step, width // step, step).max(axis=(1, 3)))


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
