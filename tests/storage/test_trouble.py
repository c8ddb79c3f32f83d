"""A full disk, a killed process, a slow disk, a forked child: the training goes on, and the dump says what it lacks."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precision_align.core.records import Point
from precision_align.storage import blobs, parts
from precision_align.storage.blobs import Blob, is_disk_full, require_room
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.opening import open_dump
from precision_align.storage.parts import Part
from precision_align.storage.settings import Settings

MIB = 1 << 20


def put_step(sink: Any, make_draft: Any, step: int, tensors: int = 4) -> None:
    """A step of ``tensors`` MiB."""
    for number in range(tensors):
        words = np.random.default_rng(100 * step + number).standard_normal(MIB // 4).astype(np.float32)
        sink.put(make_draft(words, key={"step": step, "call": number}, order=number))
    sink.put_point(Point(step, 0, "loss", float(step)))
    sink.end_step(step)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_in_the_middle_of_a_part(
    tmp_path: Path, make_info: Any, make_draft: Any, monkeypatch: pytest.MonkeyPatch, code: int, count_payloads: Any
) -> None:
    spills, real = [0], Blob._spill

    def spill(self: Blob, chunk: Any) -> None:
        spills[0] += 1
        if spills[0] > 6:
            raise OSError(code, os.strerror(code))
        real(self, chunk)

    monkeypatch.setattr(Blob, "_spill", spill)
    sink = Hdf5Sink(tmp_path / "d", make_info())
    for step in range(4):
        put_step(sink, make_draft, step)
    sink.close(make_info())
    assert not list((tmp_path / "d").glob("*/*.tmp"))
    with open_dump(tmp_path / "d") as dump:
        assert count_payloads(dump) == {0: 4, 1: 0, 2: 0, 3: 0}
        lost = [record for record in dump.records if record.key.step == 1]
        assert all("disk is full" in record.reason and record.statistics for record in lost)
        assert len(dump.series) == 4
        assert any("disk is full" in note and "steps 1 to 1" in note for note in dump.notes)


def test_a_disk_too_full_even_for_tables(
    tmp_path: Path, make_info: Any, make_draft: Any, monkeypatch: pytest.MonkeyPatch, count_payloads: Any
) -> None:
    real = parts.require_room
    full = [False]

    def room(folder: Path, nbytes: int, reserve: int = 0) -> None:
        if full[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(folder, nbytes, reserve)

    monkeypatch.setattr(parts, "require_room", room)
    monkeypatch.setattr(blobs, "require_room", room)
    sink = Hdf5Sink(tmp_path / "d", make_info())
    put_step(sink, make_draft, 0)
    sink.flush()
    full[0] = True
    for step in range(1, 5):
        put_step(sink, make_draft, step)
    sink.flush()
    full[0] = False
    put_step(sink, make_draft, 5)
    sink.close(make_info())
    with open_dump(tmp_path / "d") as dump:
        assert count_payloads(dump) == {0: 4, 5: 0}
        assert any("steps 1 to 4" in note and "lost" in note for note in dump.notes)
        assert len(dump.series) == 6


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 12 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", str(place)]
    if mount is None or os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no right to mount a tmpfs")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_real_full_disk(
    small_disk: Path,
    make_info: Any,
    make_draft: Any,
    monkeypatch: pytest.MonkeyPatch,
    guarded: bool,
    count_payloads: Any,
) -> None:
    """With our own look at the free space before each write, and without it, when HDF5 runs into the wall."""
    if not guarded:
        for module in (parts, blobs):
            monkeypatch.setattr(module, "require_room", lambda *_: None)
    before = len(list(Path("/proc/self/fd").iterdir()))
    sink = Hdf5Sink(small_disk / "d", make_info())
    for step in range(5):
        put_step(sink, make_draft, step)
    sink.close(make_info())
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert not list((small_disk / "d").glob("*/*.tmp"))
    with open_dump(small_disk / "d") as dump:
        assert count_payloads(dump)[0] == 4
        assert count_payloads(dump)[4] == 0
        assert any("disk is full" in note for note in dump.notes)
        assert len(dump.series) == 5
    (small_disk / "d" / "other").write_bytes(bytes(MIB))  # room was left for others


def test_a_disk_that_was_full_from_the_start(
    small_disk: Path, make_info: Any, make_draft: Any, count_payloads: Any
) -> None:
    ballast = small_disk.parent / "disk" / "ballast"
    sink = Hdf5Sink(small_disk / "d", make_info())
    ballast.write_bytes(bytes(12 * MIB - (60 << 10)))
    put_step(sink, make_draft, 0)
    sink.flush()
    ballast.unlink()
    put_step(sink, make_draft, 1)
    sink.close(make_info())
    with open_dump(small_disk / "d") as dump:
        assert count_payloads(dump) == {1: 0}
        assert any("steps 0 to 0" in note and "lost" in note for note in dump.notes)
        assert len(dump.series) == 2


def test_a_series_goes_on_after_a_failed_and_after_a_short_write(
    tmp_path: Path, make_info: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, real = Hdf5Sink(tmp_path / "d", make_info()), os.write

    def write(file: int, data: bytes) -> int:
        if b'"step": 1' in data:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, data[:20]) if b'"step": 3' in data else real(file, data)

    monkeypatch.setattr(os, "write", write)
    for step in range(6):
        sink.put_point(Point(step, 0, "loss", float(step)))
    monkeypatch.undo()
    lines = (tmp_path / "d" / "rank00000" / "series.jsonl").read_text().split("\n")
    assert [line for line in lines if line.endswith("}")] == [line for line in lines if len(line) > 20]
    sink.close(make_info())
    with open_dump(tmp_path / "d") as dump:
        assert [point.step for point in dump.series] == list(range(6))  # the others come from the part file
        assert any("lacks a value of step 1" in note for note in dump.notes)
        assert any("lacks a value of step 3" in note for note in dump.notes)


def test_a_long_series_is_thinned_and_stays_small(
    tmp_path: Path, make_info: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("precision_align.storage.series.SERIES_BYTES", 8192)
    sink, path = Hdf5Sink(tmp_path / "d", make_info()), tmp_path / "d" / "rank00000" / "series.jsonl"
    sizes = []
    for step in range(1000):
        sink.put_point(Point(step, 0, "loss", float(step)))
        sink.end_step(step)
        sizes.append(path.stat().st_size)
    assert 4096 < max(sizes) <= 8192 + 64
    with open_dump(tmp_path / "d") as running:  # as after kill -9
        steps = [point.step for point in running.series]
    assert steps == sorted(set(steps))
    assert steps[-40:] == list(range(960, 1000))
    assert 0 in steps
    assert all(point.value == point.step for point in running.series)
    sink.close(make_info())
    with open_dump(tmp_path / "d") as dump:
        assert any("was thinned" in note for note in dump.notes)
    assert sorted(path.name for path in path.parent.iterdir()) == ["run.json", "series.jsonl"]


def test_a_series_that_cannot_be_thinned_goes_on(
    tmp_path: Path, make_info: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("precision_align.storage.series.SERIES_BYTES", 1024)
    sink = Hdf5Sink(tmp_path / "d", make_info())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        for step in range(30):
            sink.put_point(Point(step, 0, "loss", float(step)))
    with open_dump(tmp_path / "d") as running:
        assert [point.step for point in running.series] == list(range(30))
    sink.close(make_info())


def test_no_half_written_run_file_stays(tmp_path: Path, make_info: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    sink = Hdf5Sink(tmp_path / "d", make_info())
    monkeypatch.setattr(Path, "replace", refuse)
    sink.close(make_info(run="run-2"))
    monkeypatch.undo()
    assert sorted(path.name for path in (tmp_path / "d" / "rank00000").iterdir()) == ["run.json", "series.jsonl"]
    assert open_dump(tmp_path / "d").info.run == "run-1"


def test_what_counts_as_a_full_disk() -> None:
    assert is_disk_full(OSError(errno.ENOSPC, "x"))
    assert is_disk_full(RuntimeError("Unable to flush (errno = 28, error message = 'No space left on device')"))
    assert not is_disk_full(OSError(errno.EIO, "x"))
    assert not is_disk_full(RuntimeError("Unable to flush (errno = 5)"))


def test_room_is_left_for_others(tmp_path: Path) -> None:
    require_room(tmp_path, 0)
    with pytest.raises(OSError, match="would leave less"):
        require_room(tmp_path, 1 << 60)


def test_an_input_output_error_costs_one_part_only(
    tmp_path: Path, make_info: Any, make_draft: Any, monkeypatch: pytest.MonkeyPatch, count_payloads: Any
) -> None:
    spills, real = [0], Blob._spill

    def spill(self: Blob, chunk: Any) -> None:
        spills[0] += 1
        if spills[0] == 6:
            raise OSError(errno.EIO, "Input/output error")
        real(self, chunk)

    monkeypatch.setattr(Blob, "_spill", spill)
    sink = Hdf5Sink(tmp_path / "d", make_info())
    for step in range(3):
        put_step(sink, make_draft, step)
    sink.close(make_info())
    with open_dump(tmp_path / "d") as dump:
        found = count_payloads(dump)
        assert (found[0], found[2]) == (4, 4)
        assert found[1] < 4
        assert any("Input/output error" in note for note in dump.notes)


def test_an_unexpected_error_in_the_writer_is_a_note(
    tmp_path: Path, make_info: Any, make_draft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Part.add

    def add(self: Part, batch: Any) -> None:
        if any("/layer/1/" in key for key in batch.keys):
            raise ZeroDivisionError("surprise")
        real(self, batch)

    monkeypatch.setattr(Part, "add", add)
    sink = Hdf5Sink(tmp_path / "d", make_info())
    put_step(sink, make_draft, 0)
    sink.close(make_info())
    with open_dump(tmp_path / "d") as dump:
        assert len(dump.records) == 3
        assert any("ZeroDivisionError: surprise" in note and "0/0/0/module/layer/1" in note for note in dump.notes)


def test_a_record_that_no_table_can_hold_costs_itself_only(tmp_path: Path, make_info: Any, make_draft: Any) -> None:
    sink = Hdf5Sink(tmp_path / "d", make_info())
    sink.put(make_draft(np.zeros(2, np.float32), key={"scope": "good"}))
    sink.put(make_draft(np.zeros(2, np.float32), order=1 << 70, key={"scope": "bad"}))
    sink.end_step(0)
    sink.close(make_info())
    with open_dump(tmp_path / "d") as dump:
        assert [record.key.scope for record in dump.records] == ["good"]
        assert any("bad" in note for note in dump.notes)


def test_put_waits_while_the_disk_is_slow(
    tmp_path: Path, make_info: Any, make_draft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, real, peak = threading.Event(), Hdf5Sink._take, [0]

    def take(self: Hdf5Sink, item: Any) -> None:
        gate.wait()
        peak[0] = max(peak[0], self._queue.nbytes)
        real(self, item)

    monkeypatch.setattr(Hdf5Sink, "_take", take)
    sink = Hdf5Sink(tmp_path / "d", make_info(), settings=Settings(queue_bytes=3 * MIB))
    producer = threading.Thread(target=put_step, args=(sink, make_draft, 0, 8))
    producer.start()
    producer.join(0.3)
    assert producer.is_alive()  # three of eight fit, the fourth waits
    gate.set()
    producer.join()
    sink.close(make_info())
    assert peak[0] <= 3 * MIB
    assert len(open_dump(tmp_path / "d").records) == 8


def test_many_threads_put_at_once(tmp_path: Path, make_info: Any, make_draft: Any) -> None:
    """Autograd runs gradient hooks on threads of its own."""
    sink = Hdf5Sink(tmp_path / "d", make_info(), settings=Settings(queue_bytes=4096))

    def work(number: int) -> None:
        for call in range(50):
            words = np.full(100, number * 1000 + call, np.int32)
            sink.put(make_draft(words, "int32", key={"scope": f"thread{number}", "call": call}))
            sink.put_point(Point(0, number, f"value{call}", float(call)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sink.close(make_info())
    with open_dump(tmp_path / "d") as dump:
        assert (len(dump.records), len(dump.series)) == (300, 300)
        assert not dump.notes
        for record in dump.records:
            expected = int(record.key.scope[6:]) * 1000 + record.key.call
            assert dump.payload(record.key).tolist() == [expected] * 100


def test_what_is_wrong_with_one_item_costs_none_of_those_that_came_with_it(
    tmp_path: Path, make_info: Any, make_draft: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Part.add

    def add(part: Part, batch: Any) -> None:
        if any("/layer/1/" in key for key in batch.keys):
            raise ValueError("a fault of ours")
        real(part, batch)

    monkeypatch.setattr(Part, "add", add)
    sink = Hdf5Sink(tmp_path / "d", make_info())
    drafts = [make_draft(np.full(5, n, np.float32), key={"call": n}, order=n) for n in range(4)]
    sink.put_many(drafts, 80)
    sink.close(make_info())
    with open_dump(tmp_path / "d") as dump:
        assert [record.key.call for record in dump.records] == [0, 2, 3]
        assert any("a fault of ours" in note and str(drafts[1].record.key) in note for note in dump.notes)
