"""How payloads lie in files: once each, in chunks and parts, by tier, and readable without us."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from precision_align.core.records import RunInfo
from precision_align.core.terms import Tier
from precision_align.storage import hdf5
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.memory import MemorySink
from precision_align.storage.opening import open_dump
from precision_align.storage.settings import Settings

INFO = RunInfo("run-1", "2026-11-29T00:00:00+00:00", 0, 1, "cpu")


def test_a_tensor_can_be_read_with_h5py_alone(tmp_path: Path, make_draft: Any, make_words: Any) -> None:
    """Runs the three lines that the writer's documentation promises."""
    sink = Hdf5Sink(tmp_path / "d", INFO)
    items = [
        make_draft(make_words(name, shape, seed), name, order=seed, key={"scope": f"层/{name}\n{seed}"})
        for seed, (name, shape) in enumerate(
            [("float32", (3, 5)), ("bfloat16", (7,)), ("bool", ()), ("complex64", (0, 4)), ("float8_e5m2", (2, 2))]
        )
    ]
    for item in items:
        sink.put(item)
    sink.close(INFO)
    snippet = [line[4:] for line in (hdf5.__doc__ or "").split("\n") if line.startswith("    ")]
    assert len(snippet) == 3
    (path,) = (tmp_path / "d").glob("rank*/*.h5")
    for item in items:
        with h5py.File(path) as file:
            names: dict[str, Any] = {"file": file, "key": str(item.record.key)}
            exec("\n".join(snippet), names)
        assert names["words"].tobytes() == item.words.tobytes()
        assert names["words"].shape == item.words.shape


def test_equal_payloads_are_stored_once(tmp_path: Path, make_draft: Any) -> None:
    words = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)
    sink = Hdf5Sink(tmp_path / "d", INFO)
    for number in range(20):
        shape = (1 << 8, 1 << 8) if number % 2 else (1 << 16,)
        sink.put(make_draft(words.reshape(shape).copy(), key={"call": number}))
    sink.close(INFO)
    (path,) = (tmp_path / "d").glob("rank*/*.h5")
    assert path.stat().st_size < 2 * words.nbytes
    with open_dump(tmp_path / "d") as dump:
        assert all(dump.payload(record.key).tobytes() == words.tobytes() for record in dump.records)


def test_expanded_dimensions_are_stored_once(tmp_path: Path, make_draft: Any) -> None:
    row = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
    wide = np.broadcast_to(row, (4096, 64))
    honest = make_draft(np.ascontiguousarray(wide), stride=(0, 1), key={"scope": "honest"})
    view = make_draft(wide, stride=(0, 1), key={"scope": "view"})
    other = np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)
    lying = make_draft(other, stride=(0, 1), key={"scope": "lying"})
    sink = Hdf5Sink(tmp_path / "d", INFO)
    for item in (honest, view, lying):
        sink.put(item)
    sink.close(INFO)
    (path,) = (tmp_path / "d").glob("rank*/*.h5")
    assert path.stat().st_size < wide.nbytes // 8
    with open_dump(tmp_path / "d") as dump:
        assert dump.payload(honest.record.key).tobytes() == wide.tobytes()
        assert dump.payload(view.record.key).flags.writeable
        assert dump.payload(lying.record.key).tobytes() == other.tobytes()
        assert dump.get(honest.record.key).digest == dump.get(view.record.key).digest


def test_what_each_tier_keeps(tmp_path: Path, make_draft: Any) -> None:
    words = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    sink = Hdf5Sink(tmp_path / "d", INFO)
    for tier in Tier:
        sink.put(make_draft(words.copy(), tier=tier, key={"scope": str(tier)}))
    sink.close(INFO)
    with open_dump(tmp_path / "d") as dump:
        found = {record.key.scope: record for record in dump.records}
        assert found["fingerprint"].statistics is None
        assert found["fingerprint"].digest == found["full"].digest
        assert found["statistics"].statistics == found["full"].statistics
        assert dump.sketch(found["statistics"].key) is None
        assert dump.sketch(found["sketch"].key).tobytes() == dump.sketch(found["full"].key).tobytes()
        assert (found["sample"].tier, found["sample"].reason) == (Tier.SAMPLE, "")
        assert dump.sample(found["sample"].key).tobytes() == dump.sample(found["full"].key).tobytes()
        with pytest.raises(KeyError, match="only sketch"):
            dump.payload(found["sketch"].key)


def test_small_tensors_of_the_sketch_tier_are_stored_whole(tmp_path: Path, make_draft: Any) -> None:
    sink = Hdf5Sink(tmp_path / "d", INFO)
    small = make_draft(np.arange(1023, dtype=np.float32), tier=Tier.SKETCH)
    sink.put(small)
    sink.close(INFO)
    with open_dump(tmp_path / "d") as dump:
        assert dump.get(small.record.key).tier is Tier.FULL
        assert dump.payload(small.record.key).tobytes() == small.words.tobytes()


@pytest.mark.parametrize(
    ("words", "dtype", "reason"),
    [
        (np.zeros(3, np.float32), "bfloat16", "words of type float32"),
        (np.zeros((2, 3), np.float32), "float32", "words of shape"),
        (np.zeros(3, np.uint8), "bits1x8", "no raw-word form"),
        (None, "float32", "no values"),
    ],
)
def test_unusable_words_leave_a_reason(tmp_path: Path, make_draft: Any, words: Any, dtype: str, reason: str) -> None:
    sink = Hdf5Sink(tmp_path / "d", INFO)
    item = make_draft(words, dtype, shape=(3,), stride=(1,))
    sink.put(item)
    sink.close(INFO)
    with open_dump(tmp_path / "d") as dump:
        assert reason in dump.get(item.record.key).reason
        with pytest.raises(KeyError, match="only fingerprint"):
            dump.payload(item.record.key)


def test_words_in_a_sibling_type_are_reinterpreted(tmp_path: Path, make_draft: Any) -> None:
    words = np.array([1.5, -2.0], np.float32)
    sink = Hdf5Sink(tmp_path / "d", INFO)
    item = make_draft(words.view(np.int32), "torch.float32")
    sink.put(item)
    sink.close(INFO)
    with open_dump(tmp_path / "d") as dump:
        assert dump.payload(item.record.key).tolist() == [1.5, -2.0]
        assert dump.values(item.record.key).dtype == np.float32


def test_values_widen_low_precision(tmp_path: Path, make_draft: Any) -> None:
    sink = Hdf5Sink(tmp_path / "d", INFO)
    item = make_draft(np.array([0x3F80, 0xC000], np.uint16), "bfloat16")
    sink.put(item)
    sink.close(INFO)
    with open_dump(tmp_path / "d") as dump:
        assert dump.values(item.record.key).tolist() == [1.0, -2.0]


def test_payloads_across_chunks_and_parts(tmp_path: Path, make_draft: Any) -> None:
    """Tensors larger than a chunk, unaligned sizes, and a part limit that splits one step."""
    generator = np.random.default_rng(0)
    sizes = [3 << 20, 1, (1 << 20) - 64, 65, (2 << 20) + 7, 1 << 20, 5]
    items = [
        make_draft(generator.integers(0, 256, size, dtype=np.uint8), "uint8", order=number, key={"call": number})
        for number, size in enumerate(sizes)
    ]
    sink = Hdf5Sink(tmp_path / "d", INFO, settings=Settings(part_bytes=4 << 20, queue_bytes=1 << 20))
    for item in items:
        sink.put(item)
    sink.end_step(0)
    sink.close(INFO)
    names = sorted(path.name for path in (tmp_path / "d").glob("rank*/*.h5"))
    assert names == [f"step00000000-00000000.part{number:03d}.h5" for number in range(2)]
    with open_dump(tmp_path / "d") as dump:
        assert not dump.notes
        assert [record.order for record in dump.records] == list(range(len(sizes)))
        for item in items:
            assert dump.payload(item.record.key).tobytes() == item.words.tobytes()


def test_the_readers_arrays_may_be_changed(make_draft: Any) -> None:
    memory = MemorySink(INFO)
    item = make_draft(np.arange(4, dtype=np.float32))
    memory.put(item)
    dump = memory.dump()
    dump.payload(item.record.key)[:] = 7
    assert dump.payload(item.record.key).tolist() == [0, 1, 2, 3]


def test_a_key_recorded_twice_shows_its_last_value_and_a_note(tmp_path: Path, make_draft: Any) -> None:
    sink = Hdf5Sink(tmp_path / "d", INFO)
    first, second = make_draft(np.zeros(2, np.float32)), make_draft(np.ones(2, np.float32))
    sink.put(first)
    sink.end_step(0)
    sink.put(replace(second, record=replace(second.record, order=5)))
    sink.close(INFO)
    with open_dump(tmp_path / "d") as dump:
        assert len(dump.records) == 1
        assert dump.payload(first.record.key).tolist() == [1, 1]
        assert "more than once" in dump.notes[0]
