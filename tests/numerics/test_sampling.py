"""Which elements stand for a tensor, and what they can see."""

from __future__ import annotations

import numpy as np
import pytest

from precision_align.core.dtypes import DTYPES, widen
from precision_align.numerics.sampling import SAMPLES, describe_power, draw_positions, sample


@pytest.mark.parametrize("numel", [0, 1, SAMPLES - 1, SAMPLES, SAMPLES + 1, 3 * SAMPLES, 10**6, 2**33 + 7])
def test_one_position_of_each_stretch(numel):
    places = draw_positions(numel)
    count = min(numel, SAMPLES)
    assert len(places) == count
    bounds = [number * numel // SAMPLES for number in range(SAMPLES + 1)] if numel > SAMPLES else range(count + 1)
    assert all(low <= place < high for low, place, high in zip(bounds, places.tolist(), bounds[1:]))
    assert (draw_positions(numel) == places).all()


def test_positions_fall_in_step_with_no_power_of_two():
    places = draw_positions(1 << 22)
    for width in (2, 64, 1024, 4096):
        counts = np.bincount(places % width % 64, minlength=min(width, 64))[: min(width, 64)]
        assert counts.min() > 0.4 * counts.mean()


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_the_numbers_at_the_positions(name):
    row, size = DTYPES[name], 50_001
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2 if row.kind == "bool" else 256, size * row.itemsize, dtype=np.uint8).view(row.word)
    with np.errstate(all="ignore"):
        numbers = widen(words[draw_positions(size)], row)
        wanted = np.concatenate([numbers.real, numbers.imag]) if row.kind == "complex" else numbers
        assert np.array_equal(sample(words, row), wanted.astype(np.float64), equal_nan=True)


def test_the_layout_of_the_tensor_does_not_matter():
    x = np.arange(300 * 400, dtype=np.float32).reshape(300, 400)
    row = DTYPES["float32"]
    assert (sample(np.asfortranarray(x), row) == sample(x, row)).all()
    assert (sample(np.broadcast_to(x[:1], x.shape), row) == sample(np.tile(x[:1], (300, 1)), row)).all()


@pytest.mark.parametrize("share", [0.01, 0.0025])
def test_a_scattered_fault_is_seen_as_often_as_is_said(share):
    rng = np.random.default_rng(0)
    size, places = 1 << 20, draw_positions(1 << 20)
    seen = sum((rng.random(size)[places] < share).any() for _ in range(60))
    assert seen >= 58
    assert "2,048 of 1,048,576 elements" in describe_power(size)
    assert "0.22 %" in describe_power(size)


def test_a_run_of_neighbours_is_always_seen():
    size = 1 << 20
    places = draw_positions(size)
    length = 2 * size // SAMPLES
    starts = np.random.default_rng(3).integers(0, size - length, 500)
    assert all(((places >= start) & (places < start + length)).any() for start in starts)
