"""Packs of dumps: whole, with less in them, and without data."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from precision_align.cli.app import main
from precision_align.core.dtypes import DTYPES
from precision_align.core.keys import Key
from precision_align.core.records import Call, Point, RunInfo, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.storage.base import Draft
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.opening import open_dump
from precision_align.storage.redaction import Redactor
from precision_align.storage.runs import read_run, write_run

pytestmark = pytest.mark.live

# What must not be found in a pack without data. Words of every place that a dump stores texts in.
WORDS = {
    name: f"planted{name}word"
    for name in (
        *("scope", "local", "op", "path", "kind", "class", "key", "value", "flag", "attribute", "source", "error"),
        *("note", "command", "host", "version", "capture", "user", "reason", "extra", "device", "series", "alias"),
        *("tied", "group", "layout", "stack"),
    )
}
NUMBER = 1234.5678
SHORT = 0.7236328125  # exact in float16 and bfloat16 too


def list_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def make_record(words: np.ndarray, dtype: str, *, step: int = 0, number: int = 0, tier: Tier = Tier.FULL) -> Draft:
    w = WORDS
    key = Key(
        step,
        0,
        0,
        Source.MODULE,
        f"{w['scope']}.3.{w['alias']}",
        number,
        Pass.FIRST,
        f"{w['op']}.op",
        0,
        Phase.FORWARD,
        Role.OUTPUT,
        f"kwargs.{w['path']}.0",
    )
    record = TensorRecord(
        key,
        dtype,
        words.shape,
        tuple(step // words.itemsize for step in words.strides),
        "strided" if tier is Tier.FULL else w["layout"],
        f"cuda:0 {w['device']}",
        True,
        number,
        tier,
        reason=w["reason"] if tier is Tier.FINGERPRINT else "",
        extra={"scale": NUMBER, "same_as": w["extra"], "shared": True},
    )
    return Draft(record, words)


def plant(folder: Path) -> Path:
    """A dump with a planted word or number in every place there is."""
    w = WORDS
    info = RunInfo(
        run="0" * 32,
        created=w["user"],
        rank=0,
        world=1,
        device=f"cuda:0 {w['device']}",
        versions={"torch": f"2.1.0+{w['version']}", w["version"]: w["version"]},
        capture={"sources": ["modules", w["capture"]], "layout": {"host": w["host"]}, "start": {"lr": NUMBER}},
        modules={"": f"{w['kind']}.{w['class']}", f"{w['scope']}.3": "torch.nn.modules.linear.Linear"},
        aliases={w["scope"]: [w["alias"]]},
        parameters={f"{w['scope']}.{w['local']}": [w["tied"]]},
        optimizer={"optimizer:0": {"class": w["class"], "groups": [{"lr": NUMBER, "parameters": [w["group"]]}]}},
        command=f"{w['command']} --token {NUMBER}",
        notes=(w["note"],),
    )
    sink = Hdf5Sink(folder, info)
    generator = np.random.default_rng(1)
    large = generator.normal(size=5000)
    number = 0
    for name, row in DTYPES.items():
        value = encode(name, row.word)
        if value is None:
            continue
        for tier in (Tier.FULL, Tier.SKETCH, Tier.SAMPLE, Tier.STATISTICS, Tier.FINGERPRINT):
            sink.put(make_record(np.full(3, value), name, number=number, tier=tier))
            number += 1
    sink.put(make_record(np.append(large, NUMBER), "float64", number=number, tier=Tier.SKETCH))
    sink.put(make_record(np.full(9000, NUMBER), "float64", number=number + 1, tier=Tier.SAMPLE))
    scalar = {"kind": "scalar", "value": w["value"]}
    tree = {
        "kind": "dict",
        "class": "builtins.dict",
        "keys": [
            {"kind": "scalar", "value": w["key"]},
            {"kind": "scalar", "value": NUMBER},
            {"kind": "scalar", "value": 1},
        ],
        "items": [
            scalar,
            {"kind": "complex", "value": [str(NUMBER), "0.0"]},
            {
                "kind": "dataclass",
                "class": f"{w['kind']}.{w['class']}",
                "keys": [w["flag"], "b"],
                "items": [{"kind": "scalar", "value": NUMBER}, {"kind": "slice", "items": [scalar, scalar, scalar]}],
            },
        ],
    }
    sink.put_call(
        Call(
            0,
            0,
            0,
            f"operator:{w['scope']}.3",
            0,
            Pass.FIRST,
            f"{w['op']}.op",
            0,
            -1,
            1,
            2,
            True,
            True,
            True,
            tree,
            {"kind": "tensor", "path": w["path"]},
            attributes={"kind": "scalar", "value": w["attribute"]},
            autocast={"cuda": "bfloat16", w["device"]: w["version"]},
            modes={"rng": w["stack"], "stack": [w["stack"]], "phase": w["stack"], "seed": NUMBER, "inference": False},
            source=f"/home/{w['user']}/{w['source']}.py:3",
            error=w["error"],
        )
    )
    sink.put_point(Point(0, 0, w["series"], NUMBER))
    sink.end_step(0)
    sink.close(replace(info))
    return folder


def encode(name: str, word: str) -> object | None:
    """A planted value as one word of a type, where the type can hold it."""
    value = np.dtype(word)
    if name == "bfloat16":
        return value.type(np.float32(SHORT).view(np.uint32) >> 16)
    if value.kind == "f":
        return value.type(SHORT if value.itemsize == 2 else NUMBER)
    return value.type(NUMBER) if value.kind in "iuc" and value.itemsize >= 4 and not name.startswith("q") else None


def patterns() -> dict[str, bytes]:
    found = {f"word {name}": word.encode() for name, word in WORDS.items()}
    found["number as text"] = b"1234.5678"
    for kind in ("<f4", "<f8", ">f4", ">f8"):
        found[f"number as {kind}"] = np.array(NUMBER).astype(kind).tobytes()
    # two neighbours: the two bytes of one alone come up by chance
    found["number as float16"] = np.full(2, SHORT, "<f2").tobytes()
    found["number as bfloat16"] = (np.full(2, np.float32(SHORT)).view(np.uint32) >> 16).astype("<u2").tobytes()
    found["number as int32"] = struct.pack("<3i", 1234, 1234, 1234)
    found["number as int64"] = struct.pack("<2q", 1234, 1234)
    return found


def search(data: bytes) -> set[str]:
    lowered = data.lower()
    return {name for name, pattern in patterns().items() if pattern in data or pattern.lower() in lowered}


def read_all(folder: Path) -> bytes:
    """Every byte of every file, and every dataset and attribute as HDF5 gives it, decompressed."""
    parts = list(list_files(folder).values())
    parts += [str(path).encode() for path in sorted(folder.rglob("*"))]
    for path in folder.rglob("*.h5"):
        with h5py.File(path, "r") as file:
            parts += [file[name][...].tobytes() for name in file]
            parts += [repr(dict(item.attrs)).encode() for item in (file, *(file[name] for name in file))]
    return b"\n".join(parts)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(tmp_path_factory.mktemp("planted") / "secretfolder")


def test_the_plants_are_really_there(planted: Path) -> None:
    """The search below must be able to find them: it does, in the dump itself."""
    assert set(patterns()) - search(read_all(planted)) == {"number as >f4", "number as >f8"}  # no machine writes these


@pytest.mark.parametrize("words", [[], ["--key", "KEY"]], ids=["without a key", "keyed"])
def test_nothing_planted_is_in_a_pack_without_data(planted: Path, tmp_path: Path, words: list[str]) -> None:
    words = [str(tmp_path / "key") if word == "KEY" else word for word in words]
    volumes, target = tmp_path / "volumes", tmp_path / "target"
    command = ["pack", str(planted), "-o", str(volumes), "--no-data", "--volume", "20KB", *words]
    assert main(command) == 0
    assert sorted(path.name for path in volumes.iterdir())[0] == "manifest.json"
    carried = read_all(volumes)
    assert search(carried) == set()
    assert main(["unpack", str(volumes), "-o", str(target)]) == 0
    everything = read_all(target)
    assert search(everything) == set()
    assert b"secretfolder" not in carried + everything
    before, after = open_dump(planted), open_dump(target)
    assert len(after.records) == len(before.records)
    for ours, theirs in zip(before.records, after.records):
        assert (ours.shape, ours.dtype, ours.key.step, ours.key.role) == (
            theirs.shape,
            theirs.dtype,
            theirs.key.step,
            theirs.key.role,
        )
        assert theirs.statistics is None
        assert theirs.digest != ours.digest
        assert bool(theirs.digest) is bool(words)
    assert len({r.digest for r in after.records}) == (len({r.digest for r in before.records}) if words else 1)
    if words:
        assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
        assert (tmp_path / "key").read_bytes() not in carried
        names = json.loads((tmp_path / "key.names.json").read_text())
        scope = after.records[0].key.scope
        assert [names.get(part, part) for part in scope.split(".")] == before.records[0].key.scope.split(".")
        assert main([*command[:3], str(tmp_path / "again"), *command[4:]]) == 0
        assert list_files(volumes) == list_files(tmp_path / "again"), "the same key gives the same pack"


def test_names_stay_only_where_asked(planted: Path, tmp_path: Path) -> None:
    command = ["pack", str(planted), "-o", str(tmp_path / "volumes"), "--no-data", "--keep-names"]
    assert main(command) == 0
    found = search(read_all(tmp_path / "volumes"))
    names = {"scope", "alias", "op", "path", "kind", "class", "local", "tied", "key", "flag"}
    assert found <= {f"word {name}" for name in names}
    assert "word scope" in found


def test_long_numbers_are_keys_and_do_not_leave() -> None:
    redactor = Redactor(b"0" * 32)
    assert redactor.path("args.0.999") == "args.0.999"
    assert "7712" not in redactor.path("args.0.7712")
    assert "7712" not in redactor.scope("experts.7712")


def make_plain(folder: Path) -> Path:
    sink = Hdf5Sink(folder, RunInfo("run", "now", 0, 1, "cpu", capture={"sources": ["modules"]}))
    generator = np.random.default_rng(0)
    for step in range(3):
        for number, scope in enumerate(("head", "tail")):
            for tier in (Tier.FULL, Tier.SKETCH, Tier.SAMPLE):
                draft = make_record(generator.normal(size=3000), "float64", step=step, number=number, tier=tier)
                key = replace(draft.record.key, scope=scope, path=str(tier))
                sink.put(Draft(replace(draft.record, key=key, extra={}), draft.words))
        sink.put_point(Point(step, 0, "loss", float(step)))
        sink.end_step(step)
    sink.close(RunInfo("run", "now", 0, 1, "cpu", capture={"sources": ["modules"]}, notes=("a note",)))
    return folder


def test_a_selection_holds_what_was_selected_and_all_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = make_plain(tmp_path / "dump")
    command = ["pack", str(dump), "-o", str(tmp_path / "volumes"), "--select", "tail*", "--steps", "1-2"]
    assert main([*command, "--dry-run", "--json"]) == 0
    estimate = json.loads(capsys.readouterr().out)["bytes"]
    assert not (tmp_path / "volumes").exists()
    assert main([*command, "--json"]) == 0
    nbytes = json.loads(capsys.readouterr().out)["bytes"]
    assert 0.3 < estimate / nbytes < 3
    assert main(command) == 0, "a finished pack is only verified"
    assert "0 volumes written, 1 were there already" in capsys.readouterr().out
    assert main(["unpack", str(tmp_path / "volumes"), "-o", str(tmp_path / "target")]) == 0
    before, after = open_dump(dump), open_dump(tmp_path / "target")
    wanted = [r for r in before.records if r.key.scope == "tail" and r.key.step > 0]
    assert list(after.records) == wanted
    for record in wanted:
        for read in ("sketch", "sample"):
            left, right = getattr(before, read)(record.key), getattr(after, read)(record.key)
            assert (left is None) is (right is None)
            assert left is None or np.array_equal(left, right)
        if record.tier is Tier.FULL:
            assert np.array_equal(before.payload(record.key), after.payload(record.key))
    assert [point.step for point in after.series] == [1, 2]
    assert "a note" in after.notes


@pytest.mark.parametrize("words", [["--select", "tail*"], ["--no-data"]])
def test_that_a_run_did_not_end_is_said_and_goes_along(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    dump = make_plain(tmp_path / "dump")
    run = read_run(dump / "rank00000")
    assert run is not None
    write_run(dump / "rank00000", replace(run, closed=False))
    assert main(["pack", str(dump), "-o", str(tmp_path / "volumes"), *words]) == 0
    assert "note: " in (said := capsys.readouterr().err)
    assert "the capture was not closed" in said
    assert main(["unpack", str(tmp_path / "volumes"), "-o", str(tmp_path / "target")]) == 0
    assert any("the capture was not closed" in note for note in open_dump(tmp_path / "target").notes)


def test_a_dump_recorded_again_is_packed_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump, volumes = make_plain(tmp_path / "dump"), tmp_path / "volumes"
    command = ["pack", str(dump), "-o", str(volumes), "--steps", "1"]

    def stop(*_: object) -> None:
        raise OSError(5, "the medium is gone")

    with monkeypatch.context() as patch:
        patch.setattr("precision_align.storage.packing.write_volumes", stop)
        assert main(command) == 3
    assert (volumes / ".staging" / "request.json").exists()
    series = dump / "rank00000" / "series.jsonl"
    series.write_text(series.read_text().replace("1.0", "7.0"))
    assert main(command) == 0
    assert main(["unpack", str(volumes), "-o", str(tmp_path / "target")]) == 0
    assert [point.value for point in open_dump(tmp_path / "target").series] == [
        point.value for point in open_dump(dump).series if point.step == 1
    ]


def test_mistakes_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = make_plain(tmp_path / "dump")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("mine")
    for words, status, text in (
        (["pack", str(tmp_path / "nothing"), "-o", "x"], 3, "holds no dump"),
        (["pack", str(dump)], 2, "-o DIR names the folder"),
        (["pack", str(dump), "-o", str(tmp_path / "other")], 2, "letter.txt"),
        (["pack", str(dump), "-o", str(tmp_path)], 2, "holds what is to be packed"),
        (["pack", str(dump), "-o", "x", "--key", "y"], 2, "belong to --no-data"),
        (["pack", str(dump), "-o", "x", "--volume", "0"], 2, "at least one byte"),
        (["pack", str(dump), "-o", "x", "--select", "nothing.*"], 2, "no tensor is in all"),
        (["pack", str(dump), "-o", "x", "--ranks", "5"], 2, "no tensor is in all"),
        (["pack", str(dump), "-o", "x", "--steps", "5-2"], 2, "'5-2' is neither"),
        (["pack", str(dump), "-o", str(tmp_path / "other" / "letter.txt" / "x")], 2, "cannot be made"),
        (["unpack", str(dump), "-o", "x"], 3, "no manifest.json"),
    ):
        assert main(words) == status
        assert text in capsys.readouterr().err
    assert (tmp_path / "other" / "letter.txt").read_text() == "mine"
