"""Statistics, sketch and hash that are made where a tensor lies: the host's, within rounding; the hash to the bit."""

from __future__ import annotations

import math
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from precision_align.core.dtypes import dtype_of
from precision_align.core.terms import Tier
from precision_align.devices import condensing
from precision_align.numerics.sketches import sketch
from precision_align.numerics.statistics import summarize
from precision_align.recording.staging import Stager
from precision_align.recording.summaries import Summaries
from precision_align.storage.hashing import digest_words

pytestmark = pytest.mark.live

NAMES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex128", "complex64",
    "bool", "uint8", "int8", "int16", "int32", "int64",
]  # fmt: skip
# Shapes on both sides of what the hash takes whole (8 KiB), of its blocks (256 KiB) and of the small cap's chunks.
SHAPES = [(), (0, 3), (5,), (17, 129), (3, 2777), (65, 1031), (9, 127, 129)]
# The smallest cap in use here: chunks of 4064 numbers and of one block.
SMALL = 1 << 20


@st.composite
def tensors(draw):
    """Any dtype, shape and layout of random bits, NaN and Inf among them; or of numbers near 1, that sums are seen."""
    dtype = getattr(torch, draw(st.sampled_from(NAMES)))
    shape = draw(st.sampled_from(SHAPES))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    count = math.prod(shape)
    if count and draw(st.booleans()):
        raw = torch.from_numpy(random.integers(0, 256, count * dtype.itemsize, dtype=np.uint8))
        tensor = ((raw % 2 == 0) if dtype is torch.bool else raw.view(dtype)).reshape(shape)
    else:
        numbers = torch.from_numpy(np.asarray(random.normal(1, 1, shape)))
        if count and dtype.is_floating_point and draw(st.booleans()):
            numbers.view(-1)[draw(st.sampled_from([0, count // 2, count - 1]))] = math.nan
        tensor = numbers.to(dtype)
    return draw(st.sampled_from(LAYOUTS))(tensor)


def _offset(tensor):
    """Not at an address that 64-bit words may have."""
    return torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:].view(tensor.shape).copy_(tensor)


LAYOUTS = [
    lambda tensor: tensor,
    _offset,
    lambda tensor: tensor.t() if tensor.dim() == 2 else tensor,
    lambda tensor: tensor[..., ::2] if tensor.dim() else tensor,
    lambda tensor: tensor.unsqueeze(0).expand(2, *tensor.shape),
    lambda tensor: tensor.conj(),
    lambda tensor: tensor.conj().imag if tensor.is_complex() else tensor,
]


def summarize_there(tensor, tier=Tier.SKETCH, **options):
    """(staged, notes)."""
    notes = []
    summaries = Summaries(notes.append, **options)
    staged = summaries.take(tensor, tier)
    summaries.settle()
    return staged, notes


def check_like_host(tensor, error=1e-12, **options):
    """``error``: relative to the sum of magnitudes, or for the norm to itself."""
    words, row = Stager().stage(tensor).words.copy(), dtype_of(str(tensor.dtype))
    staged, notes = summarize_there(tensor, **options)
    assert notes == []
    if staged is None:  # its copy in C order has no room under the cap
        assert tensor.nbytes > options["limit"] // 4
        return False
    if staged.words is not None:
        assert (staged.words.tobytes(), staged.summary) == (words.tobytes(), None)
        return False
    assert staged.summary.digest == digest_words(words)
    host, found, own = summarize(words, row), staged.summary.values, sketch(words, row)
    assert found[:5] == (host.numel, host.nan, host.inf, host.zero, host.subnormal)
    rounding = 1e-15 if tensor.is_complex() else 0.0  # two libraries' moduli
    assert np.allclose(found[5:7], [host.minimum, host.maximum], rtol=rounding, atol=0, equal_nan=True)
    magnitude = max(abs(host.minimum), abs(host.maximum))
    assert found[7] == pytest.approx(host.mean, rel=error, abs=error * magnitude, nan_ok=True)
    assert found[8] == pytest.approx(host.l2, rel=error, nan_ok=True)
    scale = error * magnitude * math.sqrt(words.size) if math.isfinite(magnitude) else 0.0
    assert staged.summary.sketch.shape == own.shape
    if np.isfinite(own).all():
        assert np.allclose(staged.summary.sketch, own, rtol=error, atol=scale)
    return True


@settings(max_examples=120)
@given(tensors(), st.sampled_from([SMALL, 512 << 20]))
def test_equals_the_host(tensor, limit):
    check_like_host(tensor, gathered=8192, limit=limit)


@pytest.mark.parametrize("scale", [1.0, 1e200, 1e-200])
def test_squares_neither_overflow_nor_vanish(scale):
    assert check_like_host(torch.randn(40000, dtype=torch.float64) * scale, limit=SMALL)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16])
def test_without_float64_the_error_is_the_stated_one(dtype, monkeypatch):
    monkeypatch.setattr(condensing, "_has_float64", lambda device: False)
    tensor = (torch.randn(300, 1001) * 1e25 if dtype.is_floating_point else torch.arange(300300)).to(dtype)
    words = Stager().stage(tensor).words.copy()
    staged, notes = summarize_there(tensor)
    host = summarize(words, dtype_of(str(dtype)))
    assert staged.summary.digest == digest_words(words)
    assert staged.summary.values[:7] == (*[host.numel, 0, 0, host.zero, host.subnormal], host.minimum, host.maximum)
    assert staged.summary.values[8] == pytest.approx(host.l2, rel=2e-6)
    assert abs(staged.summary.values[7] - host.mean) <= 2e-6 * max(-host.minimum, host.maximum)
    assert len(notes) == 1
    assert "no float64" in notes[0]


def test_a_device_that_does_not_fold_exactly_leaves_large_tensors_to_the_host(monkeypatch):
    fold = condensing._fold_rows
    monkeypatch.setattr(condensing, "_fold_rows", lambda words, keys: fold(words, keys) + 1)
    notes = []
    summaries = Summaries(notes.append)
    assert summaries.take(torch.randn(1 << 17), Tier.STATISTICS) is None
    assert summaries.take(torch.randn(8), Tier.STATISTICS) is not None
    assert len(notes) == 1
    assert "does not compute the hash exactly" in notes[0]


class Memory(TorchDispatchMode):
    """The most bytes that tensors made inside it took at one time."""

    def __init__(self, others):
        super().__init__()
        self.held, self.peak = 0, 0
        self.known = {tensor.untyped_storage().data_ptr(): 0 for tensor in others}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage):
        address, size = storage.data_ptr(), storage.nbytes()
        self.known[address] = size
        self.held += size
        self.peak = max(self.peak, self.held)
        weakref.finalize(storage, self._drop, address, size)

    def _drop(self, address, size):
        self.held -= self.known.pop(address, 0)


@pytest.mark.skipif(not hasattr(torch.UntypedStorage, "_get_filename"), reason="storages there have no identity")
@pytest.mark.parametrize("layout", LAYOUTS[:3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.bfloat16])
def test_extra_memory_stays_under_the_cap(layout, dtype):
    limit = 16 << 20
    many = [layout(torch.randn(400, 1000).to(dtype)) for _ in range(5)]
    summaries = Summaries(print, limit=limit, gathered=8192)
    summaries.take(many[0], Tier.SKETCH)  # tables are made
    with Memory(many) as memory:
        for tensor in many:
            assert summaries.take(tensor, Tier.SKETCH) is not None
        summaries.settle()
    assert limit / 16 < memory.peak <= limit


def test_out_of_memory_leads_to_the_host(monkeypatch):
    def fail(*arguments):
        raise RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB")

    summaries = Summaries((notes := []).append, gathered=8192)
    kept = summaries.take(torch.ones(1 << 15), Tier.STATISTICS)
    monkeypatch.setattr(condensing, "_sum_up", fail)
    assert summaries.take(torch.randn(1 << 15), Tier.STATISTICS) is None
    assert len(notes) == 1
    assert "ran out of memory" in notes[0]
    monkeypatch.setattr(torch, "cat", fail)  # no room to join what waits: piece by piece
    summaries.settle()
    assert kept.summary.values[8] == math.sqrt(1 << 15)
    assert len(notes) == 1
