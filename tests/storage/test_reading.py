"""Reading without copies: what a view is, when its hash is verified, which pages stay, and how older files open."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from precision_align.core.errors import DumpDamaged, SchemaTooNew
from precision_align.core.records import RunInfo
from precision_align.core.terms import Tier
from precision_align.storage import layout, mapping
from precision_align.storage.hashing import digest_words
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.mapping import MappedFile, release_pages
from precision_align.storage.memory import MemorySink
from precision_align.storage.opening import open_dump, open_own

INFO = RunInfo("run-1", "2026-11-29T00:00:00+00:00", 0, 1, "cpu")
OLD = Path(__file__).parent / "old" / "schema0.h5"


def write(folder: Path, make_draft: Any, sizes: list[int], **changes: Any) -> None:
    sink = Hdf5Sink(folder, INFO)
    for number, size in enumerate(sizes):
        words = np.random.default_rng(number).standard_normal(size).astype(np.float32)
        sink.put(make_draft(words, key={"call": number}, order=number, **changes))
    sink.close(INFO)


@pytest.mark.parametrize("sizes", [[1, 7, 0, 300], [100_000, 900_000, 3, 5_000_000, 17]])
def test_views_are_the_payloads_without_a_copy(tmp_path: Path, make_draft: Any, sizes: list[int]) -> None:
    """In a file without whole chunks, and in one whose payloads cross many."""
    write(tmp_path / "d", make_draft, sizes)
    with open_dump(tmp_path / "d") as dump:
        views = [dump.map_payload(record.key) for record in dump.records]
        for record, view in zip(dump.records, views):
            assert view is not None
            assert not view.flags.writeable
            assert not view.flags.owndata
            assert (view.shape, view.dtype) == (record.shape, np.float32)
            assert view.tobytes() == dump.payload(record.key).tobytes()
    for number, view in enumerate(views):  # after close
        assert view is not None
        assert (
            view.tobytes() == np.random.default_rng(number).standard_normal(sizes[number]).astype(np.float32).tobytes()
        )


def test_expanded_payloads_map_as_broadcast_views(tmp_path: Path, make_draft: Any) -> None:
    words = np.broadcast_to(np.arange(1000, dtype=np.float32), (50, 1000))
    sink = Hdf5Sink(tmp_path / "d", INFO)
    sink.put(make_draft(words, stride=(0, 1)))
    sink.close(INFO)
    with open_dump(tmp_path / "d") as dump:
        view = dump.map_payload(dump.records[0].key)
        assert view is not None
        assert view.strides == (0, 4)
        assert np.array_equal(view, words)


def test_what_has_no_payload_has_no_view(tmp_path: Path, make_draft: Any) -> None:
    write(tmp_path / "d", make_draft, [2000], tier=Tier.SKETCH)
    with open_dump(tmp_path / "d") as dump:
        assert dump.map_payload(dump.records[0].key) is None
        with pytest.raises(KeyError):
            dump.map_payload(dump.records[0].key.__class__.parse("9/0/0/module/x/0/first//0/forward/output/"))


def test_a_memory_dump_gives_its_own_words_read_only(make_draft: Any) -> None:
    sink, words = MemorySink(INFO), np.arange(5, dtype=np.float32)
    sink.put(make_draft(words))
    view = sink.dump().map_payload(sink.dump().records[0].key)
    assert view is not None
    assert np.shares_memory(view, words)
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_a_flipped_bit_is_found_when_a_view_is_first_asked_for(tmp_path: Path, make_draft: Any) -> None:
    write(tmp_path / "d", make_draft, [3000])
    (path,) = (tmp_path / "d").glob("rank*/*.h5")
    with h5py.File(path) as file:
        place = file["blob"].id.get_offset() + 5000
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)
    with open_dump(tmp_path / "d") as dump, pytest.raises(DumpDamaged, match="does not fit its hash"):
        dump.map_payload(dump.records[0].key)


def test_the_hash_is_verified_once(tmp_path: Path, make_draft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "d", make_draft, [3000])
    with open_own(tmp_path / "d") as dump:
        key, calls = dump.records[0].key, []
        (part,) = dump._parts
        real = part._digest
        monkeypatch.setattr(part, "_digest", lambda words, *more: calls.append(words.size) or real(words, *more))
        for _ in range(3):
            dump.map_payload(key)
            dump.payload(key)
    assert calls == [3000]


def test_pages_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resident file pages stay bounded however much is looked at; views remain valid."""
    size = 8 << 20
    (tmp_path / "f").write_bytes(np.random.default_rng(0).bytes(8 * size))
    monkeypatch.setattr(mapping, "RESIDENT_BYTES", size)
    file = MappedFile(tmp_path / "f")
    views = []
    for number in range(8):
        views.append(file.view(number * size, size))
        views[-1].sum()
        assert resident_kib() < 3 * size / 1024
    total = sum(int(view.sum(dtype=np.int64)) for view in views)
    release_pages(views[-1])
    assert resident_kib(str(tmp_path / "f")) < 8 * size / 1024
    assert total == int(np.frombuffer((tmp_path / "f").read_bytes(), np.uint8).sum(dtype=np.int64))
    file.close()


def resident_kib(name: str = "/f") -> int:
    """Resident KiB of mappings of files whose name ends so."""
    total, mine = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0] and ":" not in line.split(" ")[0]:
            mine = line.endswith(name)
        elif mine and line.startswith("Rss:"):
            total += int(line.split()[1])
    return total


def test_a_mapped_array_has_the_bytes_that_were_asked_for(tmp_path: Path) -> None:
    words = np.arange(1000, dtype=np.int32)
    words.tofile(tmp_path / "f")
    file = MappedFile(tmp_path / "f")
    shown = file.show(400, 1200, words.dtype, (3, 100))
    assert np.array_equal(shown, words[100:400].reshape(3, 100))
    assert not shown.flags.writeable
    assert file.show(400, 0, words.dtype, (3, 0)).shape == (3, 0)
    with pytest.raises(ValueError, match="1200 bytes are no int32"):
        file.show(400, 1200, words.dtype, (3, 99))
    with pytest.raises(OSError, match="outside the file"):
        file.show(3600, 1200, words.dtype, (3, 100))
    file.close()
    with pytest.raises(OSError, match="closed"):
        file.show(400, 1200, words.dtype, (3, 100))
    assert shown[-1, -1] == 399


def test_listing_builds_no_record(tmp_path: Path, make_draft: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "d", make_draft, [3] * 50)
    with open_own(tmp_path / "d") as dump:
        assert len(dump.records) == 50
        texts = dump.key_texts()
        assert dump.records._built == {}  # type: ignore[attr-defined]
        assert texts == [str(record.key) for record in dump.records]


def test_a_file_of_schema_0_still_opens() -> None:
    """Written by the first version: BLAKE2b hashes are verified but not compared, its sketches not used."""
    with open_dump(OLD) as dump:
        by_scope = {record.key.scope: record for record in dump.records}
        assert np.array_equal(dump.payload(by_scope["layer"].key), np.arange(96, dtype=np.float32).reshape(8, 12))
        assert dump.map_payload(by_scope["half"].key) is not None
        assert all(record.digest == b"" for record in dump.records)
        assert dump.sketch(by_scope["wide"].key) is None
        assert by_scope["wide"].statistics is not None
        assert any("hashes of an earlier kind" in note for note in dump.notes)
        assert any("sketches of an earlier kind" in note for note in dump.notes)
        assert [point.value for point in dump.series] == [1.5]


def test_old_hashes_are_still_verified(tmp_path: Path) -> None:
    content = bytearray(OLD.read_bytes())
    with h5py.File(OLD) as file:
        place = file["blob"].id.get_offset()
    content[place] ^= 1
    (tmp_path / "x.h5").write_bytes(content)
    with open_dump(tmp_path / "x.h5") as dump, pytest.raises(DumpDamaged, match="does not fit its hash"):
        dump.payload(dump.records[0].key)


def test_hashes_of_a_later_kind_ask_for_an_upgrade(tmp_path: Path, make_draft: Any) -> None:
    write(tmp_path / "d", make_draft, [3])
    (path,) = (tmp_path / "d").glob("rank*/*.h5")
    with h5py.File(path, "r+") as file:
        file.attrs["digest_kind"] = "fold256"
    with pytest.raises(SchemaTooNew, match="upgrade"):
        open_dump(path)


@pytest.mark.parametrize("codec", ["bitshuffle-lz4", "zstd"])
def test_compressed_dumps_come_back(tmp_path: Path, make_draft: Any, make_words: Any, codec: str) -> None:
    pytest.importorskip("hdf5plugin")
    from precision_align.storage.settings import Settings

    sink = Hdf5Sink(tmp_path / "d", INFO, settings=Settings(compress=codec))
    given = {
        dtype: make_words(dtype, (700, 901) if dtype == "float32" else (7, 3), seed)
        for seed, dtype in enumerate(["float32", "bfloat16", "bool", "float64", "complex128"])
    }
    for call, (dtype, words) in enumerate(given.items()):
        sink.put(make_draft(words, dtype, key={"call": call}, order=call))
    zeros = np.zeros(1 << 20, np.float32)
    sink.put(make_draft(zeros, key={"call": 9}, order=9))
    sink.close(INFO)
    (path,) = (tmp_path / "d").glob("rank*/*.h5")
    assert path.stat().st_size < given["float32"].nbytes * 1.2 + 200_000
    with open_dump(tmp_path / "d") as dump:
        for record in dump.records:
            expected = zeros if record.key.call == 9 else given[record.dtype]
            assert dump.payload(record.key).tobytes() == expected.tobytes()
            assert dump.map_payload(record.key) is None


def test_compression_without_its_package_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['hdf5plugin'] = None\n"
        "from precision_align.storage.settings import Settings\n"
        "from precision_align.core.errors import Unavailable\n"
        "try: Settings(compress='zstd').check()\n"
        "except Unavailable as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'precision-align[compress]'" in done.stdout


def test_an_index_with_other_columns(tmp_path: Path, make_draft: Any) -> None:
    """In another order and of another byte order, one unknown: records are the same."""
    write(tmp_path / "d", make_draft, [3, 40, 500])
    with open_dump(tmp_path / "d") as dump:
        expected = list(dump.records)
    (path,) = tmp_path.rglob("*.h5")
    with h5py.File(path, "r+") as file:
        index = file["index"][...]
        names = sorted(index.dtype.names)
        dtype = np.dtype([("later", "u1"), *((name, layout.INDEX[name].newbyteorder(">")) for name in names)])
        table = np.zeros(len(index), dtype)
        for name in names:
            table[name] = index[name]
        del file["index"]
        file["index"] = table
        file.attrs["digests"] = json.dumps(
            {**json.loads(file.attrs["digests"]), "index": digest_words(table.view(np.uint8)).hex()}
        )
    with open_dump(tmp_path / "d") as dump:
        assert list(dump.records) == expected
        assert [dump.payload(record.key).size for record in expected] == [3, 40, 500]


def test_a_dump_is_freed_without_the_collector(tmp_path: Path, make_draft: Any) -> None:
    """Its tables and keys are memory that the next dump needs."""
    write(tmp_path / "d", make_draft, [3, 40])
    gc.disable()
    try:
        dump = open_dump(tmp_path / "d")
        assert len(list(dump.records)) == len(dump.key_texts()) == 2
        dump.close()
        seen = weakref.ref(dump)
        del dump
        assert seen() is None
    finally:
        gc.enable()
