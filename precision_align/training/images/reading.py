"""Images out of files, as float64 (height, width, channels) in [0, 1] or in their own unit."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.errors import DumpDamaged, DumpNotFound, Unavailable, UsageError

ARRAYS = (".npy", ".npz")
PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".exr")
_CHANNELS = (1, 3, 4)


def read_image(path: str | os.PathLike[str]) -> Array:
    """An image file, or an array of (H, W), (H, W, C), (C, H, W), or a batch of one of these.

    Whole numbers are divided by their type's largest. Raises DumpNotFound, DumpDamaged, UsageError (no image),
    Unavailable where a picture needs scikit-image.
    """
    place = Path(path)
    if not place.is_file():
        raise DumpNotFound(f"no file or folder at {place}")
    if place.suffix.lower() in ARRAYS:
        return to_image(_read_array(place), str(place))
    if place.suffix.lower() not in PICTURES:
        raise UsageError(f"{place}: {place.suffix!r} is no image that is read; use {', '.join((*ARRAYS, *PICTURES))}")
    try:
        reader = import_module("skimage.io")
    except ImportError:
        raise Unavailable(f"{place} needs scikit-image: pip install 'precision-align[image]', or save a .npy") from None
    try:
        return to_image(np.asarray(reader.imread(place)), str(place))
    except (OSError, ValueError, SyntaxError) as error:
        raise DumpDamaged(f"{place} cannot be read as an image: {error}") from error


def _read_array(place: Path) -> Array:
    try:
        loaded = np.load(place, allow_pickle=False)
        if place.suffix.lower() == ".npy":
            return np.asarray(loaded)
        if len(loaded.files) != 1:
            raise UsageError(f"{place} holds {len(loaded.files)} arrays; save the image alone")
        return np.asarray(loaded[loaded.files[0]])
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, UsageError):
            raise
        raise DumpDamaged(f"{place} is no readable array: {error}") from error


def to_image(values: Array, origin: str) -> Array:
    """float64 (H, W, C). Raises UsageError for what has no such shape or no numbers."""
    if values.dtype.kind not in "fiub":
        raise UsageError(f"{origin} holds {values.dtype}, no image")
    while values.ndim > 3 and values.shape[0] == 1:
        values = values[0]
    if values.ndim == 3 and values.shape[-1] not in _CHANNELS and values.shape[0] in _CHANNELS:
        values = np.moveaxis(values, 0, -1)
    if values.ndim == 2:
        values = values[..., None]
    if values.ndim != 3 or values.shape[-1] not in _CHANNELS or not values.size:
        raise UsageError(f"{origin} has the shape {values.shape}; an image is (H, W), (H, W, C) or (C, H, W)")
    if values.dtype.kind in "iu":
        return np.asarray(values / float(np.iinfo(values.dtype).max), dtype=np.float64)
    return values.astype(np.float64)
