"""Limits of disk, memory and time: ring buffers, reserved space, a disk that stands still, dry runs."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from precision_align.core.errors import UsageError
from precision_align.core.records import Point
from precision_align.core.terms import Tier
from precision_align.storage import blobs, handles, settings
from precision_align.storage.blobs import Blob
from precision_align.storage.counting import CountingSink, StepCounted
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.opening import open_dump
from precision_align.storage.projections import TIERS, WRITE_RATE, World, find_world, project
from precision_align.storage.queues import ByteQueue
from precision_align.storage.settings import Settings, default_staging_bytes, format_size, parse_size


def put_steps(sink: Any, make_draft: Any, steps: range, size: int = 1000) -> None:
    for step in steps:
        words = np.random.default_rng(step).standard_normal(size).astype(np.float32)
        sink.put(make_draft(words, key={"step": step}, order=step))
        sink.put_point(Point(step, 0, "loss", float(step)))
        sink.end_step(step)


def list_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("rank*/*.h5*"))


def test_only_the_last_steps_stay(tmp_path: Path, make_info: Any, make_draft: Any) -> None:
    sink = Hdf5Sink(tmp_path / "d", make_info(), settings=Settings(keep=3))
    for first in range(0, 20, 5):
        put_steps(sink, make_draft, range(first, first + 5))
        sink.flush()
        assert len(list_files(tmp_path / "d")) <= 3
    sink.close(make_info())
    with open_dump(tmp_path / "d") as dump:
        assert dump.steps == [17, 18, 19]
        assert len(dump.series) == 20
        assert any("only the last 3 recorded steps" in note for note in dump.notes)
        assert not dump.gaps
    sink = Hdf5Sink(tmp_path / "d", make_info(), append=True, settings=Settings(keep=3))
    put_steps(sink, make_draft, range(20, 22))
    sink.close(make_info())
    with open_dump(tmp_path / "d") as dump:
        assert dump.steps == [19, 20, 21]


def test_a_gap_in_a_ring_is_still_told(tmp_path: Path, make_info: Any, make_draft: Any) -> None:
    sink = Hdf5Sink(tmp_path / "d", make_info(), settings=Settings(keep=4))
    put_steps(sink, make_draft, range(9))
    sink.close(make_info())
    next((tmp_path / "d").glob("rank*/step00000006*")).unlink()
    with open_dump(tmp_path / "d") as dump:
        assert any("1 of 9 files are missing" in note for note in dump.notes)


def test_steps_that_were_not_recorded_make_no_file(tmp_path: Path, make_info: Any, make_draft: Any) -> None:
    sink = Hdf5Sink(tmp_path / "d", make_info())
    for step in range(50):
        sink.put_point(Point(step, 0, "loss", 1.0))
        sink.end_step(step)
    put_steps(sink, make_draft, range(50, 51))
    sink.close(make_info())
    assert list_files(tmp_path / "d") == ["step00000050-00000050.part000.h5"]
    with open_dump(tmp_path / "d") as dump:
        assert len(dump.series) == 51
    with open_dump(tmp_path / "d" / "rank00000" / list_files(tmp_path / "d")[0]) as dump:
        assert [point.step for point in dump.series] == [50]


def test_space_that_was_reserved_stays_free(tmp_path: Path, make_info: Any, make_draft: Any) -> None:
    free = shutil.disk_usage(tmp_path).free
    sink = Hdf5Sink(tmp_path / "d", make_info(), settings=Settings(reserve_free=2 * free))
    put_steps(sink, make_draft, range(2))
    sink.close(make_info())
    with open_dump(tmp_path / "d") as dump:
        assert not any(record.tier is Tier.FULL for record in dump.records)
        assert any("would leave less than" in note for note in dump.notes)
        assert len(dump.series) == 2


def test_a_tensor_beyond_the_limit_leaves_room_for_what_little_is_kept_of_those_behind_it(
    tmp_path: Path, make_info: Any, make_draft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving, real = threading.Event(), Blob._spill
    monkeypatch.setattr(Blob, "_spill", lambda self, chunk: moving.wait() and real(self, chunk))
    sink = Hdf5Sink(tmp_path / "d", make_info(), settings=Settings(queue_bytes=1 << 20, wait_seconds=0.05))
    sink.put(make_draft(np.zeros(1 << 20, np.float32), key={"call": 0}, order=0))  # 4 MB: it is alone, and may pass
    for number in range(1, 6):
        sink.put(make_draft(np.full(9, number, np.float32), key={"call": number}, order=number))
    moving.set()
    sink.close(make_info())
    with open_dump(tmp_path / "d") as dump:
        assert [record.key.call for record in dump.records] == list(range(6))
        assert all(record.digest and record.statistics for record in dump.records)


def test_a_disk_that_stands_still_costs_payloads_and_little_time(
    tmp_path: Path, make_info: Any, make_draft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait is paid once, not once a tensor: a collective would time out."""
    moving, real = threading.Event(), Blob._spill
    monkeypatch.setattr(Blob, "_spill", lambda self, chunk: moving.wait() and real(self, chunk))
    limits = Settings(queue_bytes=8 << 20, wait_seconds=0.3)
    sink = Hdf5Sink(tmp_path / "d", make_info(), settings=limits)
    start = time.monotonic()
    for number in range(30):
        words = np.random.default_rng(number).standard_normal(1 << 19).astype(np.float32)
        sink.put(make_draft(words, key={"call": number}, order=number))
    sink.end_step(0)
    sink.put(make_draft(np.ones(3, np.float32), key={"call": 99}, order=99))
    sink.end_step(1)
    waited = time.monotonic() - start
    moving.set()
    sink.flush()
    put_steps(sink, make_draft, range(2, 3))
    sink.close(make_info())
    assert waited < 30 * limits.wait_seconds  # and not some multiple of it for each of 30 tensors
    with open_dump(tmp_path / "d") as dump:
        first = [record for record in dump.records if record.key.step == 0]
        assert len(first) == 31
        whole = [record for record in first if record.tier is Tier.FULL]
        reduced = [record for record in first if record.tier is Tier.SKETCH]
        assert 2 <= len(whole) <= 6
        assert len(reduced) >= 20
        assert all("too slow" in record.reason and record.statistics and record.digest for record in reduced)
        assert all(dump.sketch(record.key) is not None for record in reduced)
        assert [record.tier for record in dump.records if record.key.step == 2] == [Tier.FULL]
        assert any("too slow" in note for note in dump.notes)


def test_a_disk_that_never_moves_does_not_fill_the_memory(
    tmp_path: Path, make_info: Any, make_draft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = threading.Event()
    real = Hdf5Sink._take
    monkeypatch.setattr(Hdf5Sink, "_take", lambda self, items: moving.wait() and real(self, items))
    sink = Hdf5Sink(tmp_path / "d", make_info(), settings=Settings(queue_bytes=50_000, wait_seconds=0.01))
    for number in range(500):
        sink.put(make_draft(np.ones(2000, np.float32), key={"call": number}, order=number))
    assert sink._queue.nbytes <= 2 * 50_000 + 2048
    moving.set()
    sink.close(make_info())
    with open_dump(tmp_path / "d") as dump:
        assert 0 < len(dump.records) < 500
        assert any("no memory was left" in note for note in dump.notes)


def test_fsync_flushes_each_file_and_its_folder(
    tmp_path: Path, make_info: Any, make_draft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, real = [], os.fsync
    monkeypatch.setattr(handles.os, "fsync", lambda file: synced.append(os.fstat(file).st_mode) or real(file))
    sink = Hdf5Sink(tmp_path / "d", make_info(), settings=Settings(fsync="step"))
    put_steps(sink, make_draft, range(3))
    sink.close(make_info())
    assert len(synced) == 6
    sink = Hdf5Sink(tmp_path / "e", make_info())
    put_steps(sink, make_draft, range(3))
    sink.close(make_info())
    assert len(synced) == 6


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"keep": 0}, "at least one step"),
        ({"fsync": "always"}, "unknown fsync policy"),
        ({"compress": "gzip"}, "unknown compression 'gzip'"),
        ({"reserve_free": -1}, "cannot be negative"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, make_info: Any, changes: Any, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Hdf5Sink(tmp_path / "d", make_info(), settings=Settings(**changes))
    assert not (tmp_path / "d").exists()


def test_a_container_gets_a_quarter_of_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(settings, "_CGROUP_FILES", (str(limit),))
    assert default_staging_bytes() == 512 << 20
    for text, expected in (("max\n", 512 << 20), ("1073741824\n", 256 << 20), ("9223372036854771712", 512 << 20)):
        limit.write_text(text)
        assert default_staging_bytes() == expected


def test_sizes() -> None:
    texts = ["0", "4096", "512MB", "1.5 GiB", "20g", "2 tb"]
    assert [parse_size(text) for text in texts] == [0, 4096, 512 << 20, 3 << 29, 20 << 30, 2 << 40]
    for text in ("", "12 parsecs", "-1", "1e3"):
        with pytest.raises(UsageError, match="cannot read the size"):
            parse_size(text)
    assert [format_size(size) for size in (0, 1023, 1536, 3 << 29)] == ["0 B", "1023 B", "1.5 KiB", "1.5 GiB"]


def test_counting_agrees_with_what_is_written(tmp_path: Path, make_info: Any, make_draft: Any, make_call: Any) -> None:
    counter, sink = CountingSink(), Hdf5Sink(tmp_path / "d", make_info())
    words = [np.random.default_rng(n).standard_normal(n * 400).astype(np.float32) for n in range(40)]
    for target in (counter, sink):
        for number, array in enumerate(words + words[:10]):  # ten that are stored already
            tier = Tier.SKETCH if number % 5 == 0 else Tier.FULL
            target.put(make_draft(array, key={"call": number}, order=number, tier=tier))
        target.put_call(make_call())
    sink.close(make_info())
    with pytest.raises(StepCounted):
        counter.end_step(0)
    counter.end_step(1)  # the session ends its step again
    (count,) = counter.steps
    (path,) = (tmp_path / "d").glob("rank*/*.h5")
    assert (count.tensors, count.calls, count.files) == (50, 1, 1)
    assert count.nbytes == pytest.approx(path.stat().st_size, rel=0.03)


@pytest.mark.parametrize("tier", TIERS)
def test_each_tiers_bytes_are_told_whatever_is_recorded(
    tmp_path: Path, make_info: Any, make_draft: Any, tier: Tier
) -> None:
    counter, sink = CountingSink(enough=None), Hdf5Sink(tmp_path / "d", make_info())
    words = [np.random.default_rng(n).standard_normal(n * n * 40).astype(np.float32) for n in range(60)]
    for number, array in enumerate(words + words[:10]):
        for target, kept in ((sink, tier), (counter, Tier.STATISTICS)):
            target.put(make_draft(array, key={"call": number}, order=number, tier=kept))
    sink.close(make_info())
    counter.end_step(0)
    (path,) = (tmp_path / "d").glob("rank*/*.h5")
    (count,) = counter.steps
    assert count.tiers[tier] == pytest.approx(path.stat().st_size, rel=0.1)
    world = find_world("1000/8")
    projected = project(count.tiers, count.tensors, count.raw_bytes, world)[tier]
    assert (projected.node, projected.world) == (8 * projected.rank, 1000 * projected.rank)
    assert projected.seconds >= projected.rank / WRITE_RATE


def test_the_world_is_the_launchers_or_what_is_said() -> None:
    launcher = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
    assert find_world(None, launcher) == World(16, 8)
    assert find_world("4", launcher) == World(4, 4)
    assert find_world(None, {}) == World(1, 1)
    for text in ("0", "8/0", "many", "-1"):
        with pytest.raises(UsageError, match="--world"):
            find_world(text)


def test_a_file_system_without_locks(
    tmp_path: Path, make_info: Any, make_draft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lustre without flock, some NFS: HDF5 refuses, and is asked again without locks."""
    real, refused = h5py.File, []

    def refuse(path: Any, mode: str, **options: Any) -> Any:
        if options.get("locking") is not False:
            refused.append(path)
            raise OSError("[Errno 38] Unable to synchronously open file (unable to lock file, errno = 38)")
        return real(path, mode, **options)

    monkeypatch.setattr(h5py, "File", refuse)
    sink = Hdf5Sink(tmp_path / "d", make_info())
    put_steps(sink, make_draft, range(2))
    sink.close(make_info())
    with open_dump(tmp_path / "d") as dump:
        assert [dump.payload(record.key).size for record in dump.records] == [1000, 1000]
    assert len(refused) >= 3


def test_the_guard_counts_what_others_reserved() -> None:
    with pytest.raises(OSError, match="would leave less than"):
        blobs.require_room(Path.cwd(), 0, shutil.disk_usage(Path.cwd()).free + (1 << 30))


def test_an_item_larger_than_the_queue_passes() -> None:
    queue: ByteQueue[str] = ByteQueue(10)
    queue.put("huge", 1000)
    assert queue.get() == "huge"
    queue.release()
    queue.wait_empty()
