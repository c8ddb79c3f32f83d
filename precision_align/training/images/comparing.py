"""Compares two images: PSNR and SSIM, and where the error sits."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.errors import NothingInCommon
from precision_align.training.images.places import Place, find_places
from precision_align.training.images.reading import read_image, to_image

# Round-off of a renderer that blends in float32: half a level of an 8-bit image, which nobody can store. A little more,
# so that the nearest level of a value half-way between two is not off. Of values over 1 (HDR, depth) it is a share.
EQUAL_BELOW = 0.5001 / 255
_SSIM_WINDOW = 7  # scikit-image's default


@dataclass(frozen=True)
class ImageReport:
    """How far a candidate image is from the reference.

    ``shape``: (height, width, channels); ``psnr`` in decibels over the reference's range, infinite for equal images;
    ``ssim``: structural similarity as scikit-image defines it, NaN where it is not installed or the image is too small;
    ``max_error``, ``mean_error``: absolute, of one channel value; ``wrong``: share of the pixels that are off by more
    than half a level of an 8-bit image, or by that share of a value over 1; ``nonfinite``: values that are NaN on any
    side or infinite on one, all of them where none is finite on both; ``places``: where the error sits, strongest
    first; ``picture``: the error map as PNG.
    """

    reference: str
    candidate: str
    shape: tuple[int, int, int]
    psnr: float
    ssim: float
    max_error: float
    mean_error: float
    wrong: float
    nonfinite: int
    places: tuple[Place, ...]
    picture: bytes
    notes: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether anything can be seen: a pixel off by half an 8-bit level, or a value that is not finite."""
        return self.nonfinite > 0 or self.wrong > 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        names = ("psnr", "ssim", "max_error", "mean_error", "wrong")
        figures = {name: getattr(self, name) for name in names}
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "shape": list(self.shape),
            "differs": self.differs,
            **{name: value if math.isfinite(value) else str(value) for name, value in figures.items()},
            "nonfinite": self.nonfinite,
            "places": [asdict(place) for place in self.places],
            "notes": list(self.notes),
        }


def compare_images(reference: str | os.PathLike[str] | Array, candidate: str | os.PathLike[str] | Array) -> ImageReport:
    """Compare two images, given as files or as arrays of (H, W), (H, W, C) or (C, H, W).

    Raises DumpNotFound, DumpDamaged, UsageError, NothingInCommon (other sizes), Unavailable.
    """
    left, right = (_load(side, role) for side, role in ((reference, "reference"), (candidate, "candidate")))
    if left.shape != right.shape:
        raise NothingInCommon(
            f"the images have other sizes: {left.shape} and {right.shape} (height, width, channels); render both alike"
        )
    finite = np.isfinite(left) & np.isfinite(right)
    # the same infinity is agreement (a depth map's sky), unless there is nothing else to agree on
    odd = int((~finite & (left != right)).sum()) if finite.any() else finite.size
    left, right = np.where(finite, left, 0.0), np.where(finite, right, 0.0)
    error = np.abs(right - left)
    notes = () if finite.all() else (f"{int((~finite).sum())} values are not finite and are left out of every figure",)
    similarity, missing = _measure_ssim(left, right)
    return ImageReport(
        reference=_name(reference, "reference"),
        candidate=_name(candidate, "candidate"),
        shape=left.shape,
        psnr=_measure_psnr(left, right),
        ssim=similarity,
        max_error=float(error.max()),
        mean_error=float(error.mean()),
        wrong=float((error > EQUAL_BELOW * np.maximum(1.0, np.abs(left))).any(axis=-1).mean()),
        nonfinite=odd,
        places=find_places(left, right),
        picture=draw_error(error.max(axis=-1)),
        notes=(*notes, *missing),
    )


def _load(side: str | os.PathLike[str] | Array, role: str) -> Array:
    return read_image(side) if isinstance(side, (str, os.PathLike)) else to_image(np.asarray(side), role)


def _name(side: str | os.PathLike[str] | Array, role: str) -> str:
    return str(side) if isinstance(side, (str, os.PathLike)) else role


def _range(reference: Array) -> float:
    """1 for an image in [0, 1], else the reference's own range."""
    low, high = float(reference.min()), float(reference.max())
    return 1.0 if low >= 0 and high <= 1 else (high - low) or 1.0


def _measure_psnr(reference: Array, candidate: Array) -> float:
    mean = float(np.square(candidate - reference).mean())
    return 10 * math.log10(_range(reference) ** 2 / mean) if mean else math.inf


def _measure_ssim(reference: Array, candidate: Array) -> tuple[float, tuple[str, ...]]:
    if min(reference.shape[:2]) < _SSIM_WINDOW:
        return math.nan, (f"no SSIM: the image is smaller than its window of {_SSIM_WINDOW} pixels",)
    try:
        metrics = import_module("skimage.metrics")
    except ImportError:
        return math.nan, ("no SSIM: it needs scikit-image (pip install 'precision-align[image]')",)
    value = metrics.structural_similarity(reference, candidate, channel_axis=-1, data_range=_range(reference))
    return float(value), ()


def draw_error(error: Array) -> bytes:
    """The error (H, W) as a grey PNG on a logarithmic scale: white is the largest, black a ten-thousandth of it."""
    from precision_align.training.images.pictures import encode_png

    largest = float(error.max())
    if not largest:
        return encode_png(np.zeros(error.shape, dtype=np.uint8))
    with np.errstate(divide="ignore"):
        level = 1 + np.log10(error / largest) / 4
    return encode_png((255 * level.clip(0, 1)).astype(np.uint8))
