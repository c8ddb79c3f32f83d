"""The 128-bit hash that names a payload."""

from __future__ import annotations

import hashlib

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.numerics.statistics import iterate_blocks

DIGEST_BYTES = 16
_BLOCK = 1 << 18


def digest_words(words: Array) -> bytes:
    """BLAKE2b-128 of the logical bytes in C order, and of nothing else (neither dtype nor shape): 16 bytes.

    Tensors that are equal bit for bit have equal digests however they lie in memory. A broadcast or strided array is
    read block by block, never copied whole.
    """
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    if words.flags.c_contiguous:
        hasher.update(bytes_of(words).data)
    else:
        for block in iterate_blocks(words, _BLOCK):
            hasher.update(bytes_of(np.ascontiguousarray(block)).data)
    return hasher.digest()


def digest_bytes(data: bytes) -> str:
    """BLAKE2b-128 of bytes, in hexadecimal."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def bytes_of(words: Array) -> Array:
    """A C-contiguous array as uint8[nbytes], without a copy."""
    return words.reshape(-1).view(np.uint8)
