"""Optional compression of payloads, through the package hdf5plugin (the extra ``compress``).

Dense activations hardly compress (1.06 to 1.3), so none is the default; "bitshuffle-lz4" costs about 2.5 times an
uncompressed write, "zstd" (behind a byte shuffle) about 4 times and packs a little better. gzip is not offered: it
costs 40 times.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.errors import Unavailable, UsageError
from precision_align.storage.settings import CODECS


def check_codec(name: str) -> None:
    """Raises UsageError for a codec that is not offered, Unavailable without hdf5plugin."""
    if name not in CODECS:
        raise UsageError(f"unknown compression {name!r}: choose one of {', '.join(CODECS)}, or none")
    _load_plugin(f"compress={name!r}")


def filter_options(name: str) -> dict[str, Any]:
    """What h5py's ``create_dataset`` takes for a codec. Raises UsageError, Unavailable."""
    check_codec(name)
    plugin = _load_plugin(name)
    if name == "bitshuffle-lz4":
        return dict(plugin.Bitshuffle())
    return {**dict(plugin.Zstd(clevel=1)), "shuffle": True}


def _load_plugin(why: str) -> Any:
    try:
        import hdf5plugin
    except ImportError as error:
        raise Unavailable(
            f"{why} needs the package hdf5plugin: pip install 'precision-align[compress]', or leave compression out"
        ) from error
    return hdf5plugin


def read_filtered(dataset: Any, start: int, nbytes: int) -> Array:
    """uint8[nbytes] from byte ``start`` of a 1-D dataset, through its filters. Raises Unavailable, OSError."""
    if dataset.id.get_create_plist().get_nfilters():
        _load_plugin(f"the compressed dump {dataset.file.filename}")
    width = dataset.dtype.itemsize
    if start % width or nbytes % width:
        raise OSError(f"bytes {start} to {start + nbytes} are no whole words of {width} bytes")
    data = np.asarray(dataset[start // width : (start + nbytes) // width])
    return np.ascontiguousarray(data).view(np.uint8)
