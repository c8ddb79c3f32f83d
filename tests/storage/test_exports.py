"""Plain files for other tools."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from precision_align.core.errors import UsageError
from precision_align.core.records import RunInfo
from precision_align.core.terms import Tier
from precision_align.storage.exports import export, name_dataset
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.memory import MemorySink
from precision_align.storage.opening import open_dump


@pytest.fixture
def drafts(make_draft: Any, make_words: Any) -> list[Any]:
    shapes = [("float32", (3, 5)), ("bfloat16", (7,)), ("bool", ()), ("complex64", (0, 4)), ("float8_e5m2", (2, 2))]
    scopes = ["", "a/b|c", "层 注意力", "\ud800", "x" * 5000]
    return [
        make_draft(make_words(name, shape, order), name, order=order, key={"scope": scope, "call": order})
        for order, ((name, shape), scope) in enumerate(zip(shapes, scopes))
    ]


def make_dump(drafts: list[Any], more: list[Any]) -> Any:
    sink = MemorySink(RunInfo("r", "now", 0, 1, "cpu"))
    for draft in [*drafts, *more]:
        sink.put(draft)
    return sink.dump()


def test_hdf5_has_one_named_dataset_a_tensor(tmp_path: Path, drafts: list[Any], make_draft: Any) -> None:
    hidden = make_draft(np.zeros(3, np.float32), tier=Tier.STATISTICS, key={"scope": "hidden"})
    path = export(make_dump(drafts, [hidden]), tmp_path / "out", "hdf5")
    with h5py.File(path) as file:
        assert len(file) == len(drafts)
        for draft in drafts:
            dataset = file[name_dataset(draft.record)]
            assert dataset.attrs["dtype"] == draft.record.dtype
            assert dataset[...].tobytes() == draft.words.tobytes()
            assert ("note" in dataset.attrs) == (draft.record.dtype in ("bfloat16", "float8_e5m2"))
        assert "0|0|0|module||0|first|Linear|0|forward|output|" in file


def test_npy_files_with_a_listing(tmp_path: Path, drafts: list[Any]) -> None:
    sink = Hdf5Sink(tmp_path / "d", RunInfo("r", "now", 0, 1, "cpu"))
    for draft in drafts:
        sink.put(draft)
    sink.close(RunInfo("r", "now", 0, 1, "cpu"))
    with open_dump(tmp_path / "d") as dump:
        path = export(dump, tmp_path / "out", "npy")
    listing = json.loads(path.read_text("ascii"))
    assert [row["key"] for row in listing] == [str(draft.record.key) for draft in drafts]
    for row, draft in zip(listing, drafts):
        words = np.load(path.parent / row["file"], allow_pickle=False)
        assert words.tobytes() == draft.words.tobytes()
        assert list(words.shape) == row["shape"]
        assert ("raw" in row.get("note", "")) == (row["dtype"] in ("bfloat16", "float8_e5m2"))


def test_a_used_folder_or_an_unknown_format_is_refused(tmp_path: Path, drafts: list[Any]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    dump = make_dump(drafts, [])
    with pytest.raises(UsageError, match="not an empty folder"):
        export(dump, tmp_path, "npy")
    with pytest.raises(UsageError, match="not an empty folder"):
        export(dump, tmp_path / "mine.txt", "npy")
    with pytest.raises(UsageError, match="unknown export format 'parquet'"):
        export(dump, tmp_path / "out", "parquet")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_formats_that_know_the_types_of_torch(tmp_path: Path, make_draft: Any, make_words: Any, kind: str) -> None:
    """Written, and read back by our own readers of foreign files and by torch itself."""
    sink = MemorySink(RunInfo("run-1", "", 0, 1, "cpu"))
    names = ["float32", "bfloat16", "float8_e4m3fn", "bool", "int64", "complex128"]
    given = {name: make_words(name, (2, 3) if name != "bool" else (0, 3), seed) for seed, name in enumerate(names)}
    for call, (name, words) in enumerate(given.items()):
        sink.put(make_draft(words, name, key={"call": call}, order=call))
    export(sink.dump(), tmp_path / "out", kind)
    with open_dump(tmp_path / "out") as dump:
        found = {record.dtype: record for record in dump.records}
        for name in names[:-1]:
            assert dump.payload(found[name].key).tobytes() == given[name].tobytes()
        if kind == "pt":
            assert dump.payload(found["complex128"].key).tobytes() == given["complex128"].tobytes()
            (first,) = (tmp_path / "out").glob("000001-*.pt")
            loaded = torch.load(first, weights_only=True)
            assert loaded.dtype is torch.bfloat16
            assert loaded.view(torch.int16).numpy().tobytes() == given["bfloat16"].tobytes()
        else:
            assert dump.payload(found["uint8"].key).tobytes() == given["complex128"].tobytes()


@pytest.mark.parametrize("room", [0, 1, 1000, 3000, 9000, 20_000])
def test_a_disk_that_fills_up_in_the_middle_of_hdf5_is_an_error_and_no_crash(
    tmp_path: Path, make_draft: Any, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    info = RunInfo("r", "now", 0, 1, "cpu")
    sink = Hdf5Sink(tmp_path / "d", info)
    for number in range(12):
        sink.put(make_draft(np.arange(500, dtype=np.float32), order=number, key={"call": number}))
    sink.close(info)
    real, written = os.pwrite, [0]

    def write(file: int, data: Any, place: int) -> int:
        fits = room - written[0]
        if fits <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written[0] += len(data[:fits])
        return real(file, data[:fits], place)

    with open_dump(tmp_path / "d") as dump:
        monkeypatch.setattr(os, "pwrite", write)
        with pytest.raises(OSError, match="No space left"):
            export(dump, tmp_path / "out", "hdf5")
        assert list((tmp_path / "out").iterdir()) == []
        monkeypatch.setattr(os, "pwrite", real)
        with h5py.File(export(dump, tmp_path / "out", "hdf5")) as file:
            assert all((file[name][:] == np.arange(500)).all() for name in file)
            assert len(file) == 12
