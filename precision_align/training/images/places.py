"""Where the error of an image sits, and whether a simple change of the whole explains it.

Each test looks at the squared error per pixel, summed over the channels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from precision_align.core.dtypes import Array

FEW_SHARE = 0.9  # of the error in FEW of the pixels: isolated wrong ones, not a wrong formula
FEW = 0.002
TILES = (8, 16, 32, 64)  # what rasterisers use
TILE_SHARE = 0.9  # of the error in a quarter of the tiles, each of which it fills
TILE_COUNT = 0.25
TILE_STEP = 10.0  # error just inside a wrong tile over that just outside: an object that lies in a tile ends softly
EDGE = 4.0  # mean error at tile edges over that inside: smooth errors have 1
BORDER = 5.0  # mean error of the border over that inside
LEFT = 0.1  # share of the error that an explanation by the whole may leave
_SHIFT = 2  # pixels
_LEAST = 8  # pixels a side: smaller images have no places


@dataclass(frozen=True)
class Place:
    """One statement about the error; ``share``: of the squared error that it covers or explains."""

    name: str
    share: float
    detail: str = ""


def find_places(reference: Array, candidate: Array) -> tuple[Place, ...]:
    """What fits, the strongest first; () for equal images. Both float64 (H, W, C), finite."""
    error = np.square(candidate - reference)
    pixels = error.sum(axis=-1)
    total = float(pixels.sum())
    if not total or min(pixels.shape) < _LEAST:
        return ()
    found = [
        *_explain_whole(reference, candidate, total),
        *_find_few(pixels, total),
        *_find_tiles(pixels, total),
        *_find_border(pixels, total),
        *_find_channel(error, total),
    ]
    return tuple(sorted(found, key=lambda place: -place.share))


def _explain_whole(reference: Array, candidate: Array, total: float) -> Iterator[Place]:
    for name, explained, detail in _list_explanations(reference, candidate):
        left = float(np.square(candidate - explained).sum()) / total
        if left < LEFT:
            yield Place(name, 1 - left, detail)


def _list_explanations(reference: Array, candidate: Array) -> Iterator[tuple[str, Array, str]]:
    x, y = reference.reshape(-1), candidate.reshape(-1)
    spread = float(((x - x.mean()) ** 2).sum())
    gain = float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread else 1.0
    offset = float(y.mean() - gain * x.mean())
    yield "brightness", gain * reference + offset, f"{gain:.4g} * reference {offset:+.4g}"
    if reference.shape[-1] >= 3:
        swapped = reference[..., [2, 1, 0, *range(3, reference.shape[-1])]]
        yield "channels swapped", swapped, "BGR"
    yield "flipped", reference[::-1], "upside down"
    yield "flipped", reference[:, ::-1], "left to right"
    for down in range(-_SHIFT, _SHIFT + 1):
        for right in range(-_SHIFT, _SHIFT + 1):
            if down or right:
                yield "shifted", _shift(reference, candidate, down, right), f"{right:+d} right, {down:+d} down"


def _shift(reference: Array, candidate: Array, down: int, right: int) -> Array:
    """The reference moved; what comes in from outside is taken as right."""
    moved = np.roll(reference, (down, right), axis=(0, 1))
    edge = np.zeros(moved.shape[:2], dtype=bool)
    if down:
        edge[slice(0, down) if down > 0 else slice(down, None)] = True
    if right:
        edge[:, slice(0, right) if right > 0 else slice(right, None)] = True
    return np.where(edge[..., None], candidate, moved)


def _find_few(pixels: Array, total: float) -> Iterator[Place]:
    count = max(int(FEW * pixels.size), 1)
    largest = np.sort(pixels, axis=None)[::-1][:count]
    share = float(largest.sum()) / total
    if share >= FEW_SHARE:
        wrong = int((np.cumsum(largest) < FEW_SHARE * total).sum()) + 1
        place = np.unravel_index(int(pixels.argmax()), pixels.shape)
        yield Place("a few pixels", share, f"{wrong} of {pixels.size}, the worst at row {place[0]}, column {place[1]}")


def _find_tiles(pixels: Array, total: float) -> Iterator[Place]:
    for size in reversed(TILES):
        rows, columns = pixels.shape[0] // size, pixels.shape[1] // size
        if rows * columns < 4:
            continue
        inside = pixels[: rows * size, : columns * size].reshape(rows, size, columns, size)
        yield from _find_wrong_tiles(inside, size, total)
        yield from _find_edges(inside, size, total)


def _find_wrong_tiles(inside: Array, size: int, total: float) -> Iterator[Place]:
    tiles = inside.sum(axis=(1, 3)).reshape(-1)
    order = tiles.argsort()[::-1]
    count = int((np.cumsum(tiles[order]) < TILE_SHARE * total).sum()) + 1
    if count > TILE_COUNT * len(tiles):
        return
    rows, columns = inside.shape[0], inside.shape[2]
    wrong = np.zeros(len(tiles), dtype=bool)
    wrong[order[:count]] = True
    pixels = inside.reshape(rows * size, columns * size)
    if _measure_step(pixels, np.kron(wrong.reshape(rows, columns), np.ones((size, size), dtype=bool))) > TILE_STEP:
        first = ", ".join(f"({tile // columns}, {tile % columns})" for tile in sorted(order[:count].tolist())[:4])
        yield Place(
            "whole tiles", float(tiles[wrong].sum()) / total, f"{count} of {len(tiles)} tiles of {size}: {first}"
        )


def _measure_step(pixels: Array, wrong: Array) -> float:
    """Mean error of the pixels along the inner side of a mask's outline over that along its outer side."""
    within = outside = 0.0
    for values, mask in ((pixels, wrong), (pixels.T, wrong.T)):
        leaving, entering = mask[:-1] & ~mask[1:], mask[1:] & ~mask[:-1]
        within += float(values[:-1][leaving].sum() + values[1:][entering].sum())
        outside += float(values[1:][leaving].sum() + values[:-1][entering].sum())
    return within / outside if outside else np.inf


def _find_edges(inside: Array, size: int, total: float) -> Iterator[Place]:
    at_edge = np.zeros((size, size), dtype=bool)
    at_edge[[0, -1]] = at_edge[:, [0, -1]] = True
    mean = inside.mean(axis=(0, 2))
    edge, middle = float(mean[at_edge].mean()), float(mean[~at_edge].mean())
    if edge > EDGE * middle:
        share = float(inside.transpose(0, 2, 1, 3)[..., at_edge].sum()) / total
        if share > TILE_SHARE / 2:
            yield Place("edges of tiles", share, f"tiles of {size}")


def _find_border(pixels: Array, total: float) -> Iterator[Place]:
    width = max(1, min(pixels.shape) // 50)
    inside = pixels[width:-width, width:-width]
    outside = total - float(inside.sum())
    count = pixels.size - inside.size
    if outside / count > BORDER * float(inside.mean()) and outside > TILE_SHARE / 2 * total:
        yield Place("the border", outside / total, f"{width} pixels wide")


def _find_channel(error: Array, total: float) -> Iterator[Place]:
    if error.shape[-1] < 2:
        return
    shares = error.sum(axis=(0, 1)) / total
    worst = int(shares.argmax())
    if shares[worst] > FEW_SHARE:
        yield Place("one channel", float(shares[worst]), f"channel {worst}")
