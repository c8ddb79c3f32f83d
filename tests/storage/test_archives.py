"""Torch's archives without zipfile, and what is told of two tensors in files without a hash of each."""

from __future__ import annotations

import mmap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precision_align.core.dtypes import Array
from precision_align.core.keys import Key
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source
from precision_align.storage.foreign import archives
from precision_align.storage.foreign.archives import NoArchive, read_archive
from precision_align.storage.foreign.dumps import BLOCK_BYTES, FIRST_BYTES, ForeignDump, are_same
from precision_align.storage.foreign.items import Item, Tensor
from precision_align.storage.mapping import find_mapping, map_file, release_pages


def write(path: Path, **changes: Any) -> None:
    """An archive as torch writes one, but for ``changes``."""
    with zipfile.ZipFile(path, "w", changes.get("compression", zipfile.ZIP_STORED)) as file:
        for name, data in (("data.pkl", b"a list of tensors"), ("byteorder", b"little"), ("data/0", bytes(range(64)))):
            file.writestr(f"{changes.get('folder', 'archive')}/{name}", data)
        file.comment = changes.get("comment", b"")


def test_plain_archives_are_read_as_zipfile_reads_them(tmp_path: Path) -> None:
    for folder in ("archive", "a.b/c", "\N{GREEK SMALL LETTER ALPHA}"):
        write(tmp_path / "x", folder=folder)
        found = archives._read_plain(tmp_path / "x")
        assert found == archives._read_any(tmp_path / "x")
        assert found is not None
        assert found.data == b"a list of tensors"


@pytest.mark.parametrize(
    "changes", [{"comment": b"text"}, {"compression": zipfile.ZIP_DEFLATED}, {"folder": 5000 * "x"}]
)
def test_other_archives_are_left_to_zipfile(tmp_path: Path, changes: dict[str, Any]) -> None:
    write(tmp_path / "x", **changes)
    assert archives._read_plain(tmp_path / "x") is None
    assert read_archive(tmp_path / "x").data == b"a list of tensors"


def test_data_before_an_archive_shifts_it(tmp_path: Path) -> None:
    write(tmp_path / "x")
    (tmp_path / "y").write_bytes(b"#!" + (tmp_path / "x").read_bytes())
    assert read_archive(tmp_path / "y").entries["archive/data.pkl"].header == 2


def test_no_flipped_bit_is_overlooked_that_zipfile_sees(tmp_path: Path) -> None:
    write(tmp_path / "x")
    data = (tmp_path / "x").read_bytes()

    def read(reader: Callable[[Path], Any]) -> Any:
        try:
            return reader(tmp_path / "y")
        except (NoArchive, ValueError, RuntimeError, NotImplementedError, OSError) as error:
            return type(error)

    for place in range(2 * len(data)):
        flipped = bytearray(data)
        flipped[place // 2] ^= 0xFF if place % 2 else 1 << place // 2 % 8
        (tmp_path / "y").write_bytes(flipped)
        plain = read(archives._read_plain)
        if plain is not None:
            assert plain == read(archives._read_any), place


def test_what_is_no_archive(tmp_path: Path) -> None:
    for data in (b"", b"PK", b"PK\5\6", bytes(100)):
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(NoArchive):
            read_archive(tmp_path / "x")


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, FIRST_BYTES - 1, FIRST_BYTES + 1, FIRST_BYTES + BLOCK_BYTES + 3])
def test_one_byte_makes_the_difference(size: int) -> None:
    left = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert are_same(left, left.copy())
    for place in {0, size // 2, size - 1} & set(range(size)):
        right = left.copy()
        right[place] ^= 128
        assert not are_same(left, right)


def record_of(path: Path, words: Array, dtype: str, mapped: bool = True) -> TensorRecord:
    words.tofile(path)
    key = Key(0, 0, 0, Source.MODULE, "m", 0, Pass.FIRST, "", 0, Phase.FORWARD, Role.OUTPUT, "")

    def load() -> Tensor:
        return Tensor(np.ndarray(words.shape, words.dtype, map_file(path)) if mapped else words, dtype)

    (record,) = ForeignDump([], [Item(key, 0, load)], [], []).records
    return record


VALUES = {
    "varied": np.arange(100.0),
    "zeros": np.zeros(100),
    "NaN": np.full(100, np.nan),
    "constant": np.full(100, 2.5),
    "infinite": np.full(100, np.inf),
    "zeros but the last": np.eye(1, 100, 99)[0],
    "NaN but the last": np.where(np.arange(100) < 99, np.nan, 1),
    "zero of both signs": np.where(np.arange(100) % 2, -0.0, 0.0),
}


@pytest.mark.parametrize("name", VALUES)
def test_facts_that_a_look_denies_are_those_of_the_statistics(tmp_path: Path, name: str) -> None:
    words = VALUES[name].astype(np.float32)
    cold, warm = (record_of(tmp_path / number, words, "float32") for number in "ab")
    known = warm.statistics
    assert known is not None
    assert cold.is_all_nan == warm.is_all_nan == (known.nan == known.numel)
    assert cold.is_all_zero == warm.is_all_zero == (known.zero == known.numel)
    assert cold.is_constant == warm.is_constant == (name in ("zeros", "constant", "zero of both signs"))


@pytest.mark.parametrize("dtype", ["bfloat16", "bool", "int64"])
def test_facts_of_other_types(tmp_path: Path, dtype: str) -> None:
    word = {"bfloat16": "<u2", "bool": "?", "int64": "<i8"}[dtype]
    record = record_of(tmp_path / "x", np.zeros(20, dtype=word), dtype)
    assert (record.is_all_nan, record.is_all_zero, record.is_constant) == (False, True, True)


def test_equal_tensors_need_no_hash(tmp_path: Path) -> None:
    words = np.arange(3000, dtype=np.float32)
    other = words.copy()
    other[2999] = 0
    left, equal, unequal = (
        record_of(tmp_path / name, one, "float32") for name, one in zip("abc", (words, words, other))
    )
    assert left.is_hashed
    assert left.has_hash_of(equal)
    assert not left.has_hash_of(unequal)
    assert left.has_hash_of(equal)
    assert not {"digest", "statistics"} & (left.__dict__.keys() | equal.__dict__.keys() | unequal.__dict__.keys())
    hashed = record_of(tmp_path / "d", words, "float32", mapped=False)
    assert "digest" in hashed.__dict__
    assert left.has_hash_of(hashed)
    assert hashed.has_hash_of(left)
    assert left.digest == equal.digest != unequal.digest


def test_a_tensor_that_is_gone_equals_nothing(tmp_path: Path) -> None:
    from precision_align.storage.foreign.items import Unreadable

    words = np.arange(100, dtype=np.float32)
    left, right = (record_of(tmp_path / name, words, "float32") for name in "ab")

    def refuse() -> Tensor:
        raise Unreadable("gone")

    right.__dict__["_load"] = refuse
    assert not left.has_hash_of(right)
    assert right.digest == b""
    assert right.statistics is None


def test_only_pages_of_files_are_let_go(tmp_path: Path) -> None:
    """Memory that is no file's would be lost."""
    memory = mmap.mmap(-1, 1 << 16)
    view = np.frombuffer(memory, dtype=np.uint8)[100:60000]
    view[:] = 7  # type: ignore[index]
    release_pages(view)
    assert find_mapping(view) is None
    assert (view == 7).all()
    (tmp_path / "x").write_bytes(bytes(view))
    shown = np.ndarray((59000,), np.uint8, map_file(tmp_path / "x"), 5)
    assert find_mapping(shown[9:].reshape(-1, 1)) is not None
    release_pages(shown[5000:])
    assert (shown == 7).all()
