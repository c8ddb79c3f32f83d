"""Hostile and broken files: a clear error, or a note, never a wrong number."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from precision_align.core.errors import DumpDamaged, DumpError, DumpForeign, DumpNotFound, SchemaTooNew
from precision_align.core.records import Point, RunInfo
from precision_align.core.terms import Tier
from precision_align.storage.hashing import digest_bytes, digest_words
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.opening import open_dump
from precision_align.storage.texts import encode_value

INFO = RunInfo("run-1", "2026-11-29T00:00:00+00:00", 0, 1, "cpu")


@pytest.fixture
def dump_folder(tmp_path: Path, make_draft: Any, make_call: Any) -> Path:
    """Three steps with payloads, a sketch, a call and a loss each."""
    sink = Hdf5Sink(tmp_path / "d", INFO)
    generator = np.random.default_rng(0)
    for step in range(3):
        for number in range(5):
            words = generator.standard_normal((8, 16)).astype(np.float32)
            sink.put(make_draft(words, order=number, key={"step": step, "call": number}))
        words = generator.standard_normal(2048).astype(np.float32)
        sink.put(make_draft(words, tier=Tier.SKETCH, order=9, key={"step": step, "scope": "big"}))
        sink.put_call(make_call(step=step, identity=step))
        sink.put_point(Point(step, 0, "loss", 1.0 / (step + 1)))
        sink.end_step(step)
    sink.close(INFO)
    return tmp_path / "d"


def part_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("rank00000/*.h5"))


def count_handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def read_all(path: Path) -> str:
    """Everything a reader can see of a dump, as one text."""
    with open_dump(path) as dump:
        records = [{**vars(record), "statistics": vars(record.statistics)} for record in dump.records]
        payloads = [dump.payload(r.key).tobytes() if r.tier is Tier.FULL else b"" for r in dump.records]
        sketches = [found.tobytes() for found in map(dump.sketch, [r.key for r in dump.records]) if found is not None]
        others = [[vars(call) for call in dump.calls], [vars(point) for point in dump.series], vars(dump.info)]
        return encode_value([records, payloads, sketches, others, dump.notes])


def test_a_flipped_bit_is_harmless_or_detected(dump_folder: Path, tmp_path: Path) -> None:
    original = part_paths(dump_folder)[0]
    expected, content = read_all(original), original.read_bytes()
    broken = tmp_path / original.name
    generator = np.random.default_rng(1)
    detected = []
    for position, bit in zip(generator.integers(0, len(content), 300).tolist(), generator.integers(0, 8, 300).tolist()):
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        broken.write_bytes(damaged)
        try:
            assert read_all(broken) == expected, f"silently wrong: bit {bit} of byte {position}"
        except DumpError as error:
            detected.append(str(error))
    assert len(detected) > 150  # most bytes matter
    assert all(broken.name in message for message in detected)


def test_a_flipped_bit_in_the_metadata_of_a_large_file(tmp_path: Path, make_draft: Any) -> None:
    """The same where payloads lie in chunks; bits outside the chunks only, which are most of the file."""
    sink = Hdf5Sink(tmp_path / "d", INFO)
    for number in range(3):
        words = np.random.default_rng(number).standard_normal(600_000).astype(np.float32)
        sink.put(make_draft(words, order=number, key={"call": number}))
    sink.close(INFO)
    (original,) = part_paths(tmp_path / "d")
    expected, content = read_all(original), original.read_bytes()
    with h5py.File(original) as file:
        chunks = [file["blob"].id.get_chunk_info(i) for i in range(file["blob"].id.get_num_chunks())]
    assert len(chunks) > 5
    outside = np.ones(len(content), dtype=bool)
    for chunk in chunks:
        outside[chunk.byte_offset : chunk.byte_offset + chunk.size] = False
    broken = tmp_path / original.name
    for position in np.random.default_rng(2).choice(np.flatnonzero(outside), 60).tolist():
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 8
        broken.write_bytes(damaged)
        with contextlib.suppress(DumpError):
            assert read_all(broken) == expected, f"silently wrong: byte {position}"


def test_a_flip_in_a_payload_names_file_and_key(dump_folder: Path) -> None:
    path = part_paths(dump_folder)[1]
    with h5py.File(path) as file:
        place = file["blob"].id.get_offset() + int(file["index"][2]["offset"])
        key = file["keys"][:].tobytes().decode().split("\n")[2]
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with open_dump(dump_folder) as dump:
        with pytest.raises(DumpDamaged) as caught:
            dump.payload(dump.find(key).key)
        assert path.name in str(caught.value)
        assert key in str(caught.value)
        other = dump.records[0].key
        assert dump.payload(other).shape == (8, 16)


@pytest.mark.parametrize("share", [0.0, 0.0005, 0.01, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_file_is_damaged(dump_folder: Path, share: float) -> None:
    path = part_paths(dump_folder)[0]
    os.truncate(path, int(path.stat().st_size * share))
    with pytest.raises(DumpDamaged) as caught:
        open_dump(path)
    assert path.name in str(caught.value)


def test_one_broken_part_of_three_is_a_note(dump_folder: Path) -> None:
    path = part_paths(dump_folder)[1]
    os.truncate(path, path.stat().st_size // 2)
    with open_dump(dump_folder) as dump:
        assert dump.steps == [0, 2]
        assert [note for note in dump.notes if path.name in note]
        assert [point.step for point in dump.series] == [0, 1, 2]


def test_a_dump_of_which_nothing_is_readable_raises(dump_folder: Path) -> None:
    for path in part_paths(dump_folder):
        os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(DumpDamaged, match="truncated"):
        open_dump(dump_folder)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_missing_part_is_a_note(dump_folder: Path, number: int) -> None:
    part_paths(dump_folder)[number].unlink()
    with open_dump(dump_folder) as dump:
        (note,) = dump.notes
        assert "1 of 3 files are missing" in note
        assert dump.steps == [step for step in range(3) if step != number]


def test_leftovers_of_a_killed_writer_are_a_note(dump_folder: Path) -> None:
    leftover = dump_folder / "rank00000" / "step00000003-00000003.part000.h5.tmp"
    leftover.write_bytes(b"half")
    with open_dump(dump_folder) as dump:
        assert any(leftover.name in note and "unfinished" in note for note in dump.notes)


def test_a_changed_run_file_is_a_note(dump_folder: Path) -> None:
    path = dump_folder / "rank00000" / "run.json"
    path.write_text(path.read_text().replace("run-1", "run-2"))
    with open_dump(dump_folder) as dump:
        assert dump.info.run == "run-1"
        assert any("run.json" in note and "hash" in note for note in dump.notes)


def test_garbage_in_the_series_is_a_note(dump_folder: Path) -> None:
    path = dump_folder / "rank00000" / "series.jsonl"
    path.write_bytes(
        path.read_bytes() + b'\xff\xfe\n[1, 2]\n"x"\n{"step": 7, "micro": 0, "name": "l',
    )
    with open_dump(dump_folder) as dump:
        assert len(dump.series) == 3
        assert any("4 unreadable lines" in note for note in dump.notes)


def test_a_missing_path(tmp_path: Path) -> None:
    for name in ("nothing", "nothing.h5", "no/such/folder"):
        with pytest.raises(DumpNotFound, match="no dump at"):
            open_dump(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        open_dump(str(tmp_path / "nothing"))


def test_foreign_things(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "model.pt").write_bytes(b"PK\x03\x04")
    (tmp_path / "random.h5").write_bytes(np.random.default_rng(0).bytes(5000))
    (tmp_path / "zero.h5").write_bytes(b"")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["index"] = np.arange(4)
    with h5py.File(tmp_path / "liar.h5", "w") as file:
        file.attrs["format"] = np.arange(3)
    for name in ("empty", "strange", "random.h5", "zero.h5", "other.h5", "liar.h5"):
        with pytest.raises(DumpForeign) as caught:
            open_dump(tmp_path / name)
        assert name in str(caught.value)


def test_a_rank_folder_with_nothing_in_it(tmp_path: Path) -> None:
    (tmp_path / "d" / "rank00000").mkdir(parents=True)
    with pytest.raises(DumpDamaged, match="no finished file"):
        open_dump(tmp_path / "d")


def test_an_unreadable_folder_is_not_a_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d").mkdir()

    def refuse(self: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(DumpError, match="Permission denied"):
        open_dump(tmp_path / "d")


def test_a_newer_schema_says_upgrade(dump_folder: Path) -> None:
    for path in part_paths(dump_folder):
        with h5py.File(path, "r+") as file:
            file.attrs["schema_version"] = 99
            del file["index"]
    with pytest.raises(SchemaTooNew, match=r"99.*upgrade"):
        open_dump(part_paths(dump_folder)[0])
    with pytest.raises(SchemaTooNew):
        open_dump(dump_folder)


def test_a_newer_run_file_alone_says_upgrade(dump_folder: Path) -> None:
    for path in part_paths(dump_folder):
        path.unlink()
    path = dump_folder / "rank00000" / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 7}))
    with pytest.raises(SchemaTooNew):
        open_dump(dump_folder)


def test_a_file_without_its_completeness_marker_is_damaged(dump_folder: Path) -> None:
    path = part_paths(dump_folder)[0]
    with h5py.File(path, "r+") as file:
        del file.attrs["complete"]
    with pytest.raises(DumpDamaged, match="not complete"):
        open_dump(path)


def test_nonsense_with_fitting_hashes_is_damaged(dump_folder: Path) -> None:
    """Rows that point outside their tables."""
    path = part_paths(dump_folder)[0]
    with h5py.File(path) as file:
        table = file["index"][...]
    table["offset"], table["device"], table["tier"] = 1 << 60, 1 << 30, 77
    rewrite_table(path, "index", table)
    with open_dump(path) as dump, pytest.raises(DumpDamaged):
        dump.records[0]


def rewrite_table(path: Path, name: str, table: Any, **options: Any) -> None:
    """Replace a table and its hash, as only a faulty or a hostile writer would."""
    with h5py.File(path, "r+") as file:
        del file[name]
        file.create_dataset(name, **({"data": table} if table is not None else {}), **options)
        digests = json.loads(file.attrs["digests"])
        digests[name] = digest_words(np.zeros(0) if table is None else table.view(np.uint8)).hex()
        file.attrs["digests"] = json.dumps(digests)


def test_a_table_that_claims_to_be_huge(dump_folder: Path) -> None:
    """A terabyte of fill values, in a file of a few kilobytes."""
    path = part_paths(dump_folder)[0]
    rewrite_table(path, "keys", None, shape=(1 << 40,), dtype="u1", chunks=(1 << 20,))
    with pytest.raises(DumpDamaged, match="larger than the file"):
        open_dump(path)


def test_a_payload_that_claims_to_be_huge(dump_folder: Path) -> None:
    path = part_paths(dump_folder)[0]
    with h5py.File(path, "r+") as file:
        table = file["index"][...]
        del file["blob"]
        file.create_dataset("blob", shape=(1 << 40,), dtype="u1", chunks=(1 << 20,))
    table["stored"] = 1 << 39
    rewrite_table(path, "index", table)
    with open_dump(path) as dump, pytest.raises(DumpDamaged, match="larger than the file"):
        dump.payload(dump.records[0].key)


def test_numbers_that_claim_to_be_huge(dump_folder: Path) -> None:
    """A sequence number, a count of parts and a world that no loop may run up to."""
    path = dump_folder / "rank00000" / "run.json"
    content = json.loads(path.read_text())
    content["parts"], content["info"]["world"] = 1 << 60, 1 << 60
    content.pop("digest")
    content["digest"] = digest_bytes(json.dumps(content, sort_keys=True).encode())
    path.write_text(json.dumps(content))
    with h5py.File(part_paths(dump_folder)[2], "r+") as file:
        file.attrs["sequence"] = 1 << 61
    with open_dump(dump_folder) as dump:
        assert dump.steps == [0, 1, 2]
        assert any("files are missing" in note for note in dump.notes)
        assert any("ranks; missing: 1, 2, 3" in note for note in dump.notes)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"step": 1e999, "micro": 0, "name": "a", "value": 1}',
        '{"value": 1' + "0" * 400 + "}",
        "\x00",
        "{}",
    ],
)
def test_hostile_json(dump_folder: Path, text: str) -> None:
    (dump_folder / "rank00000" / "series.jsonl").write_text(text + "\n")
    (dump_folder / "rank00000" / "run.json").write_text(text)
    with open_dump(dump_folder) as dump:
        assert len(dump.series) == 3
        assert any("run.json" in note for note in dump.notes)
        assert any("1 unreadable line" in note for note in dump.notes)


def test_pipes_and_devices_do_not_hang(tmp_path: Path, dump_folder: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(DumpForeign, match="neither a file nor a folder"):
            open_dump(path)
    os.mkfifo(dump_folder / "rank00000" / "step00000007-00000007.part000.h5")
    with open_dump(dump_folder) as dump:
        assert dump.steps == [0, 1, 2]
        assert any("step00000007" in note for note in dump.notes)


def test_odd_paths(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "loop", tmp_path / ("x" * 5000), str(tmp_path) + "\0x"):
        with pytest.raises(DumpError):
            open_dump(path)


def test_opening_one_rank_folder_or_one_file(dump_folder: Path) -> None:
    with open_dump(dump_folder / "rank00000") as dump:
        assert dump.steps == [0, 1, 2]
        assert not dump.notes
    with open_dump(part_paths(dump_folder)[1]) as dump:
        assert dump.steps == [1]
        assert [point.step for point in dump.series] == [1]


def test_a_folder_that_was_moved_still_opens(dump_folder: Path, tmp_path: Path) -> None:
    shutil.move(str(dump_folder), str(tmp_path / "elsewhere"))
    with open_dump(tmp_path / "elsewhere") as dump:
        assert not dump.notes
        assert dump.payload(dump.records[0].key).shape == (8, 16)


def test_few_file_handles_over_many_parts(tmp_path: Path, make_draft: Any) -> None:
    sink = Hdf5Sink(tmp_path / "d", INFO)
    for step in range(100):
        sink.put(make_draft(np.full(4, step, np.float32), key={"step": step}))
        sink.end_step(step)
    sink.close(INFO)
    before = count_handles()
    with open_dump(tmp_path / "d") as dump:
        for record in dump.records:
            assert dump.payload(record.key)[0] == record.key.step
        assert count_handles() - before <= 10
    assert count_handles() == before


def test_a_dump_may_be_open_elsewhere(dump_folder: Path) -> None:
    path = part_paths(dump_folder)[0]
    with h5py.File(path) as _, open_dump(dump_folder) as one, open_dump(dump_folder) as two:
        key = one.records[0].key
        assert one.payload(key).tobytes() == two.payload(key).tobytes()


def test_a_file_system_without_locks(dump_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lustre without flock, some NFS mounts: HDF5 refuses to open, unless told to do without."""
    real = h5py.File

    def refuse(path: Any, mode: str, **options: Any) -> Any:
        if options.get("locking") is not False:
            raise OSError(38, "Unable to synchronously open file (unable to lock file, errno = 38)")
        return real(path, mode, **options)

    monkeypatch.setattr(h5py, "File", refuse)
    with open_dump(dump_folder) as dump:
        assert dump.payload(dump.records[0].key).shape == (8, 16)
