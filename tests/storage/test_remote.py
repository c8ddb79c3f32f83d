"""Dumps on an object store: the same as on a disk, with few requests."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precision_align.cli.app import main
from precision_align.core.errors import DumpDamaged, DumpError, DumpForeign, DumpNotFound, Unavailable
from precision_align.storage.opening import open_dump
from precision_align.storage.remote import BLOCK_BYTES, RemoteFile, collector_paused, find_place

torch = pytest.importorskip("torch")
fsspec = pytest.importorskip("fsspec")
pytest.importorskip("upath")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two steps; one tensor is larger than a block, and the candidates' second layer is off: that of "ranks"
    on one of its two ranks."""
    import precision_align as pa

    folder = tmp_path_factory.mktemp("remote")
    for name, rank, factor in (("reference", 0, 1.0), ("candidate", 0, 1.01), ("ranks", 0, 1.0), ("ranks", 1, 1.01)):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(8, 600), torch.nn.Linear(600, 600), torch.nn.Linear(600, 4))
        net[1].register_forward_hook(lambda module, args, out, factor=factor: out * factor)
        with pa.capture(net, folder / name, rank=rank) as recorder:
            for step in range(2):
                with recorder.step():
                    net(torch.ones(3, 8) * step).sum().backward()
    return folder


@pytest.fixture(scope="module")
def store(runs: Path) -> Iterator[str]:
    """The address of a bucket with both runs, on a real S3-compatible server on loopback."""
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {"endpoint_url": f"http://{host}:{port}", "key": "key", "secret": "secret"}
    fsspec.config.conf["s3"] = settings
    files = fsspec.filesystem("s3")
    files.makedirs("bucket", exist_ok=True)  # the server keeps its buckets in the process when it is started again
    files.put(f"{runs}/", "bucket/", recursive=True)
    yield "s3://bucket"
    del fsspec.config.conf["s3"]
    fsspec.filesystem("s3").clear_instance_cache()
    server.stop()


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the calls that reach the server by kind, and bytes asked for under "bytes"."""
    import s3fs

    counts: Counter[str] = Counter()
    original = s3fs.S3FileSystem._call_s3

    async def counted(self: Any, method: str, *args: Any, **words: Any) -> Any:
        counts[method] += 1
        if "Range" in words:
            low, high = words["Range"].removeprefix("bytes=").split("-")
            counts["bytes"] += int(high) - int(low) + 1
        return await original(self, method, *args, **words)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counted)
    return counts


def test_a_dump_on_a_store_is_the_dump_on_disk(runs: Path, store: str) -> None:
    with open_dump(runs / "candidate") as here, open_dump(f"{store}/candidate") as there:
        assert [str(record.key) for record in there.records] == [str(record.key) for record in here.records]
        assert (there.steps, there.info, list(there.notes)) == (here.steps, here.info, list(here.notes))
        for record in here.records:
            assert there.map_payload(record.key) is None
            np.testing.assert_array_equal(there.payload(record.key), here.payload(record.key))


def test_listing_costs_two_requests_a_file_and_reading_one_a_block(
    runs: Path, store: str, requests: Counter[str]
) -> None:
    dump = open_dump(f"{store}/candidate")
    assert len(dump.records) > 40
    assert requests["get_object"] <= 2 * 2 + 2, "head and tail of each part, run.json and series.jsonl"
    before = requests["get_object"]
    small = [record for record in dump.records if record.key.step == 0 and np.prod(record.shape) < 1000]
    for record in small:
        dump.payload(record.key)
    size = next((runs / "candidate" / "rank00000").glob("step00000000*")).stat().st_size
    assert requests["get_object"] - before <= -(-size // BLOCK_BYTES)


def test_fewer_requests_than_h5py_by_itself(runs: Path, store: str, requests: Counter[str]) -> None:
    import h5py

    part = next((runs / "candidate" / "rank00000").glob("step00000001*")).name
    address = f"{store}/candidate/rank00000/{part}"
    files = fsspec.filesystem("s3")
    with collector_paused(), files.open(address, block_size=BLOCK_BYTES) as raw, h5py.File(raw) as file:
        rows = file["index"][...]
        for row in rows[:: len(rows) // 8]:
            file["blob"][row["offset"] : row["offset"] + row["stored"]]
    plain, asked = requests["get_object"], requests["bytes"]
    requests.clear()
    dump = open_dump(address)
    for record in list(dump.records)[:: len(rows) // 8]:
        dump.payload(record.key)
    assert 0 < requests["get_object"] <= plain
    assert requests["bytes"] <= asked


@pytest.mark.parametrize("candidate", ["candidate", "ranks"])
def test_compare_over_the_store_equals_compare_on_disk(
    runs: Path, store: str, candidate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    monkeypatch.chdir(runs)
    saved = []
    for name, sides in (("disk", ("reference", candidate)), ("store", (f"{store}/reference", f"{store}/{candidate}"))):
        path = tmp_path / f"{name}.json"
        assert main(["compare", *sides, "-o", str(path)]) == 1
        content = json.loads(path.read_text("utf-8"))
        for side in ("reference", "candidate"):
            content[side].pop("path")
        saved.append(content)
    assert saved[0] == saved[1]
    assert any("were merged" in note for note in saved[1]["notes"]) == (candidate == "ranks")
    assert saved[1]["first"]["rank"] == (1 if candidate == "ranks" else 0)


def test_show_and_health_read_addresses(store: str, capsys: Any) -> None:
    assert main(["show", f"{store}/candidate", "--lang", "en"]) == 0
    assert "Sequential" in capsys.readouterr().out
    assert main(["health", f"{store}/candidate", "--json"]) in (0, 1)
    assert f"{store}/candidate" in capsys.readouterr().out


def test_what_is_not_there_or_no_dump_is_told(store: str, capsys: Any) -> None:
    with pytest.raises((DumpNotFound, DumpForeign)):
        open_dump(f"{store}/nothing")
    fsspec.filesystem("s3").pipe("bucket/other/notes.txt", b"text")
    with pytest.raises(DumpForeign):
        open_dump(f"{store}/other")
    with pytest.raises((DumpError, Unavailable)):
        open_dump("gibberish://bucket/run")
    assert main(["compare", "gibberish://a", "gibberish://b"]) in (2, 3)
    assert "gibberish" in capsys.readouterr().err


def test_a_flipped_bit_on_the_store_is_seen(runs: Path, store: str) -> None:
    source = next((runs / "candidate" / "rank00000").glob("step00000001*"))
    content = bytearray(source.read_bytes())
    record = max(open_dump(source).records, key=lambda one: np.prod(one.shape))
    payload = open_dump(source).payload(record.key).tobytes()
    at = content.find(payload)
    assert at > 0
    content[at + len(payload) // 2] ^= 1
    fsspec.filesystem("memory").pipe(f"/flipped/{source.name}", bytes(content))
    with pytest.raises(DumpDamaged, match="does not fit its hash"):
        open_dump(f"memory://flipped/{source.name}").payload(record.key)


def test_ranges_are_right_wherever_blocks_end() -> None:
    content = np.random.default_rng(0).integers(0, 256, 3 * BLOCK_BYTES + 17, dtype=np.uint8)
    fsspec.filesystem("memory").pipe("/ranges", content.tobytes())
    file = RemoteFile(find_place("memory://ranges"))
    generator = np.random.default_rng(1)
    for _ in range(200):
        start, stop = sorted(generator.integers(0, len(content) + 1, 2))
        np.testing.assert_array_equal(file.read_range(start, stop - start), content[start:stop])
    for offset, count in ((len(content), 1), (-1, 2), (0, len(content) + 1)):
        with pytest.raises(OSError, match="outside the file"):
            file.read_range(offset, count)


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "upath", None)
    with pytest.raises(Unavailable, match=r"precision-align\[remote\]"):
        open_dump("s3://bucket/run")


def test_a_store_that_refuses_is_told_as_a_dump_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Back ends raise errors of their own kinds, as for want of credentials."""
    import upath

    class Refused(Exception):
        pass

    def refuse(place: Any) -> bool:
        raise Refused("unable to locate credentials")

    place = find_place("memory://refused/run")
    assert isinstance(place, upath.UPath)
    monkeypatch.setattr(type(place), "is_dir", refuse)
    with pytest.raises(DumpError, match="Refused: unable to locate credentials"):
        open_dump("memory://refused/run")


def test_the_collector_rests_while_a_store_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it may free an h5py object in fsspec's thread, which waits for the lock that the reader holds."""
    import gc

    fsspec.filesystem("memory").pipe("/resting", bytes(100))
    file, seen = RemoteFile(find_place("memory://resting")), []
    original = type(file._fs).cat_file

    def watch(*args: Any, **words: Any) -> Any:
        seen.append(gc.isenabled())
        return original(*args, **words)

    monkeypatch.setattr(type(file._fs), "cat_file", watch)
    file.read_range(0, 10)
    assert seen == [False]
    assert gc.isenabled()
