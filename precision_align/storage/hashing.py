"""The 128-bit hash that names a payload.

Kind "fold128": data of up to 8 KiB go through BLAKE2b-128 as they are; longer data are folded, 256 KiB into 2 KiB at a
time (:mod:`precision_align.numerics.folding`), and BLAKE2b-128 runs over what is left and the length in bytes. Kind
"blake2b" is plain BLAKE2b-128, as files of schema 0 have it.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from typing import Callable, Optional

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.numerics.folding import BLOCK_BYTES, TABLE, Folder
from precision_align.numerics.statistics import iterate_blocks
from precision_align.numerics.summaries import load_summaries

DIGEST_BYTES = 16
DIGEST_KIND = "fold128"
# Up to here one call of BLAKE2b costs less than the dozen NumPy calls of a fold (about 10 us).
_WHOLE_BYTES = 8192
# Blocks a call: more cost nothing but 2 KiB each, fewer cost calls.
_BLOCKS = 16
# What one compiled call takes, so that it ends soon and pages are let go of.
_CALL_BYTES = _BLOCKS * BLOCK_BYTES
# A tag of its own for each way, so that no short payload can have the hash of a folded long one.
_WHOLE_TAG, _FOLDED_TAG = b"pa-whole", b"pa-folded"

_local = threading.local()

Release = Callable[[Array], None]
Digest = Callable[[Array, Optional[Release]], bytes]


def digest_words(words: Array, release: Release | None = None) -> bytes:
    """The hash of the logical bytes in C order, and of nothing else (neither dtype nor shape): 16 bytes.

    Tensors that are equal bit for bit have equal digests however they lie in memory. A broadcast or strided array is
    read block by block, never copied whole. ``release`` is told of each block that was read. Only digests of the same
    kind may be compared.
    """
    nbytes = words.size * words.itemsize
    if nbytes <= _WHOLE_BYTES:
        data = words if words.flags.c_contiguous else np.ascontiguousarray(words)
        return hashlib.blake2b(bytes_of(data).data, digest_size=DIGEST_BYTES, person=_WHOLE_TAG).digest()
    compiled = load_summaries()
    if compiled is not None and nbytes <= _CALL_BYTES and words.flags.c_contiguous:
        found = compiled.digest(words, TABLE)
        if release is not None:
            release(words)
        return found
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES, person=_FOLDED_TAG)
    folder = _folder()
    size = _BLOCKS * BLOCK_BYTES if words.flags.c_contiguous else BLOCK_BYTES
    for block in _iterate_bytes(words, size, release):
        hasher.update(folder.fold(block).astype("<u8", copy=False).data)
    hasher.update(nbytes.to_bytes(8, "little"))
    return hasher.digest()


def digest_folded(sums: Array, nbytes: int) -> bytes:
    """The hash of more than 8 KiB that were folded elsewhere: ``sums`` as uint8, little-endian; ``nbytes`` of data."""
    hasher = hashlib.blake2b(sums.data, digest_size=DIGEST_BYTES, person=_FOLDED_TAG)
    hasher.update(nbytes.to_bytes(8, "little"))
    return hasher.digest()


def _folder() -> Folder:
    found: Folder | None = getattr(_local, "folder", None)
    if found is None:
        found = _local.folder = Folder()
    return found


def _iterate_bytes(words: Array, size: int, release: Release | None) -> Iterable[Array]:
    for block in iterate_blocks(words, size // words.itemsize):
        yield bytes_of(np.ascontiguousarray(block))
        if release is not None:
            release(block)


def _digest_blake2b(words: Array, release: Release | None = None) -> bytes:
    hasher = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for block in _iterate_bytes(words, BLOCK_BYTES, release):
        hasher.update(block.data)
    return hasher.digest()


# What a file's attribute `digest_kind` may say; files without one have the first.
DIGESTS: dict[str, Digest] = {"blake2b": _digest_blake2b, DIGEST_KIND: digest_words}


def digest_bytes(data: bytes) -> str:
    """BLAKE2b-128 of bytes, in hexadecimal: for names and small texts."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def bytes_of(words: Array) -> Array:
    """A C-contiguous array as uint8[nbytes], without a copy."""
    return words.reshape(-1).view(np.uint8)
