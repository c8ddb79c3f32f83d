"""show: on dumps that capture wrote."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_align.cli import app
from precision_align.cli.show import format_ranges
from precision_align.storage import exports

FORWARD = "0/0/0/module/1/0/first//0/forward/output/"


def test_overview(command: Any, runs: Any) -> None:
    outcome = command("show", runs / "reference")
    assert (outcome.status, outcome.err) == (0, "")
    for part in (
        "device      cpu",
        "steps       0-1 (2)",
        "ranks       0 of 1",
        "calls of step 0, rank 0",
        "LayerNorm",
    ):
        assert part in outcome.out
    assert "more; --limit 0 shows all" in outcome.out
    assert max(len(line) for line in outcome.out.splitlines()) <= 80


def test_limit_and_filters(command: Any, runs: Any) -> None:
    everything = json.loads(command("show", runs / "reference", "--json").out)["records"]
    assert "more; --limit" not in command("show", runs / "reference", "--limit", 0).out
    wanted = [record for record in everything if record["key"].startswith("1/") and "/module/2/" in record["key"]]
    found = json.loads(command("show", runs / "reference", "--step", 1, "--scope", "2", "--json").out)["records"]
    assert {record["key"] for record in wanted} <= {record["key"] for record in found}
    assert all(record["key"].startswith("1/") for record in found)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--step", 99], "there is no step 99 in this dump; it has 0-1"),
        (["--rank", 3], "there is no rank 3 in this dump; it has 0"),
        (["--scope", "nothing.*"], "no module fits --scope 'nothing.*'; there are "),
        (["--scope", "0", "--step", 2], "there is no step 2"),
        (["module/1/", "--step", 7], "there is no step 7"),
    ],
)
def test_filters_that_fit_nothing_say_what_there_is(command: Any, runs: Any, words: list[Any], said: str) -> None:
    outcome = command("show", runs / "reference", *words)
    assert (outcome.status, outcome.out) == (2, "")
    assert said in outcome.err


@given(st.sets(st.integers(0, 40)))
def test_ranges_name_every_number(numbers: set[int]) -> None:
    parts = [part.split("-") for part in format_ranges(numbers).split(", ") if part]
    assert {number for part in parts for number in range(int(part[0]), int(part[-1]) + 1)} == numbers


def test_one_tensor(command: Any, runs: Any) -> None:
    listed = json.loads(command("show", runs / "reference", "--json").out)["records"]
    key = next(
        record["key"] for record in listed if "/module/1/" in record["key"] and "/forward/output/" in record["key"]
    )
    outcome = command("show", runs / "reference", key)
    assert outcome.status == 0
    for part in ("[32, 16] float32 on cpu", "512 values", "statistics  min", "values  ", "█"):
        assert part in outcome.out
    described = json.loads(command("show", runs / "reference", key, "--json").out)
    assert sum(described["histogram"]["counts"]) == 512
    assert len(described["values"]) == 8
    assert described["key"] == key
    assert described["statistics"]["numel"] == 512
    ascii_only = command("show", runs / "reference", key, PYTHONIOENCODING="ascii").out
    assert "|##" in ascii_only
    assert "\\u" not in ascii_only


def test_key_by_words(command: Any, runs: Any) -> None:
    outcome = command("show", runs / "reference", "0/0/0/ module/1/ forward/output")
    assert outcome.status == 0
    assert "[32, 16] float32" in outcome.out


def test_ambiguous_key_lists_candidates(command: Any, runs: Any) -> None:
    outcome = command("show", runs / "reference", "module/1/")
    assert (outcome.status, outcome.out) == (2, "")
    assert "'module/1/' fits" in outcome.err
    assert sum("/module/1/" in line for line in outcome.err.splitlines()) >= 2


def test_unknown_key(command: Any, runs: Any) -> None:
    outcome = command("show", runs / "reference", "nothing like this")
    assert outcome.status == 2
    assert "no record's key contains" in outcome.err


@pytest.mark.parametrize("format_", ["h5", "npy"])
def test_export(command: Any, runs: Any, format_: str) -> None:
    outcome = command("show", runs / "reference", "--export", "out", "--format", format_)
    assert (outcome.status, outcome.out) == (0, "")
    if format_ == "h5":
        with h5py.File(command.folder / "out" / "tensors.h5") as file:
            assert len(file) > 20
            assert all(isinstance(item, h5py.Dataset) for item in file.values())
    else:
        index = json.loads((command.folder / "out" / "index.json").read_text(encoding="utf-8"))
        assert np.load(command.folder / "out" / index[0]["file"]).shape == tuple(index[0]["shape"])
    again = command("show", runs / "reference", "--export", "out")
    assert again.status == 2
    assert "not an empty folder" in again.err


def test_bad_dumps(command: Any, runs: Any) -> None:
    folder = command.folder
    (folder / "empty").mkdir()
    (folder / "text.h5").write_text("no", encoding="utf-8")
    with h5py.File(folder / "foreign.h5", "w") as file:
        file["x"] = [1.0]
    for name in ("empty", "text.h5", "foreign.h5"):
        outcome = command("show", name)
        assert (outcome.status, outcome.out) == (3, "")
        assert outcome.err.startswith("error [PA20"), name


def test_truncated_dump(command: Any, runs: Any) -> None:
    copy = command.folder / "cut"
    shutil.copytree(runs / "reference", copy)
    parts = sorted(copy.rglob("*.h5"))
    for part in parts:
        part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])
    outcome = command("show", parts[0])
    assert (outcome.status, outcome.out) == (3, "")
    assert outcome.err.startswith("error [PA202] ")


@pytest.mark.parametrize("format_", ["h5", "npy"])
def test_export_to_a_full_disk(command: Any, runs: Any, format_: str) -> None:
    disk = command.folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        outcome = command("show", runs / "reference", "--export", "disk/out", "--format", format_)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert (outcome.status, outcome.out) == (3, "")
    assert outcome.err.startswith("error [PA210] disk/out: no space left to write the export")
    assert outcome.err.count("\n") == 1


def test_export_where_nothing_can_be_made(command: Any, runs: Any) -> None:
    (command.folder / "file").write_text("", encoding="utf-8")
    outcome = command("show", runs / "reference", "--export", "file/out")
    assert (outcome.status, outcome.out) == (2, "")
    assert "cannot write the export (Not a directory)" in outcome.err


@pytest.mark.parametrize("trouble", [OSError(errno.ENOSPC, "full"), RuntimeError("errno = 28, error message")])
def test_export_that_runs_out_of_space(
    runs: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trouble: Exception
) -> None:
    def fail(*_: object) -> None:
        raise trouble

    monkeypatch.setattr(exports, "export", fail)
    for name in ("excepthook", "unraisablehook"):  # show changes them for the rest of its process
        monkeypatch.setattr(sys, name, getattr(sys, name))
    assert app.main(["show", str(runs / "reference"), "--export", str(tmp_path / "out"), "--lang", "en"]) == 3
    assert "[PA210]" in capsys.readouterr().err


def test_tree_and_side_by_side(command: Any, runs: Any) -> None:
    tree = command("show", runs / "reference", "--tree", LANG="C", PYTHONIOENCODING="ascii")
    assert (tree.status, tree.err) == (0, "")
    assert "|- 0 Linear" in tree.out
    pair = command("show", runs / "reference", "0/0/0/ module/1/ forward/output", "--against", runs / "candidate")
    assert (pair.status, pair.err) == (0, "")
    assert "candidate - reference" in pair.out
    refused = command("show", runs / "reference", "--against", runs / "candidate")
    assert refused.status == 2
    assert "name it after DUMP" in refused.err
