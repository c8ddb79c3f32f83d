"""Memory for copies: used again only when nobody looks at it any more, and bounded."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from precision_align.recording import plain, slabs
from precision_align.recording.slabs import ALIGNMENT, OWN_BYTES, SLAB_BYTES, Slabs
from precision_align.recording.staging import Stager

pytestmark = pytest.mark.live


def test_a_slab_is_taken_again_once_all_views_are_gone():
    pool = Slabs(10 * SLAB_BYTES)
    first = pool.find(100)
    held = first.array[5:9].view("<i4")
    second = pool.find(100)
    assert second is not first
    derived = torch.from_numpy(held)
    del held
    assert not first.is_free
    assert pool.find(100) is second
    del derived
    assert pool.find(100) is first
    assert first.address % ALIGNMENT == 0


def test_large_copies_get_a_slab_of_their_own_and_what_is_kept_is_bounded():
    pool = Slabs(2 * SLAB_BYTES)
    large = pool.find(OWN_BYTES + 1)
    assert OWN_BYTES < large.array.size < SLAB_BYTES
    views = [pool.find(SLAB_BYTES).array[:1] for _ in range(5)]
    assert pool._kept_bytes <= 2 * SLAB_BYTES
    del views
    pool.find(2 * SLAB_BYTES - 1)  # no room beside the others: those that are free go
    assert pool._kept_bytes <= 2 * SLAB_BYTES
    pool.clear()
    assert pool._kept_bytes == 0


def test_copies_stay_as_they_were_while_others_are_made_and_dropped(twin, monkeypatch):
    monkeypatch.setattr(slabs, "SLAB_BYTES", 1 << 12)
    monkeypatch.setattr(plain, "SLAB_BYTES", 1 << 12)
    monkeypatch.setattr(plain, "OWN_BYTES", 1 << 11)
    monkeypatch.setattr(slabs, "OWN_BYTES", 1 << 11)
    stager, generator, kept = Stager(limit=1 << 16), torch.Generator().manual_seed(0), []
    for number in range(400):
        tensor = torch.randn(int(torch.randint(1, 1500, (1,), generator=generator)), generator=generator)
        kept.append((tensor.clone(), stager.stage(tensor).words))
        if number % 7 == 0:
            stager.forget()
        del kept[: number % 3]
        assert all((copy.numpy() == words).all() for copy, words in kept[-5:])
    assert all((copy.numpy() == words).all() for copy, words in kept)


def test_a_stager_gives_its_memory_back_when_nothing_is_recorded(twin):
    stager = Stager()
    words = stager.stage(torch.arange(5.0)).words
    slab = weakref.ref(words.base)
    stager.release()
    assert words.tolist() == [0, 1, 2, 3, 4]
    assert slab() is not None
    del words
    gc.collect()
    assert slab() is None


@pytest.mark.parametrize("part", [slice(0, 10), slice(10, 20), slice(0, 20, 2)])
def test_a_freed_storage_has_a_reason(twin, part):
    whole = torch.arange(100.0)
    view = whole[part]
    whole.untyped_storage().resize_(0)  # as FSDP does; reading it would crash
    staged = Stager().stage(view)
    assert staged.words is None
    assert staged.reason == "its memory was freed"


def test_ever_new_shapes_take_no_ever_more_memory(twin, monkeypatch):
    monkeypatch.setattr(plain, "KNOWN_FORMS", 10)
    stager = Stager()
    for count in range(1, 50):
        assert stager.stage(torch.ones(count)).shape == (count,)
        assert len(stager.copier.forms) <= 10


@pytest.mark.parametrize("change", [lambda whole: whole, lambda whole: whole[::2], lambda whole: whole[9 << 20 :]])
def test_a_tensor_that_reaches_beyond_its_memory_is_never_read(twin, change):
    whole = torch.zeros(10 << 20)
    view = change(whole)
    whole.untyped_storage().resize_(64)  # reading on behind the end would end the process
    staged = Stager().stage(view)
    assert staged.words is None
    assert staged.reason == "its memory was made smaller than the tensor"


def test_a_view_that_ends_where_a_smaller_memory_ends_is_kept(twin):
    whole = torch.arange(100.0)
    view = whole[6:16]
    whole.untyped_storage().resize_(64)
    assert Stager().stage(view).words.view(np.float32).tolist() == list(range(6, 16))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "int64", "complex64", "bool"])
def test_tensors_in_another_order_are_copied_into_slabs_too(name):
    tensor = torch.randn(3, 4, 5, 6).to(getattr(torch, name)).to(memory_format=torch.channels_last)
    stager = Stager()
    for view in (tensor, tensor.transpose(0, 3), tensor[:, ::2], tensor.conj() if name == "complex64" else tensor):
        staged = stager.stage(view)
        before = view.resolve_conj().clone(memory_format=torch.contiguous_format)
        assert staged.address
        assert staged.stride == view.stride()
        np.testing.assert_array_equal(staged.words.view(np.uint8), before.view(torch.uint8).numpy())
