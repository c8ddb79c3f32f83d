"""Recorded goldens: written on one machine, checked on another, and never silently damaged, outdated or wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from precision_align.core.errors import UsageError
from precision_align.core.terms import Status
from precision_align.library.folders import find_folders
from precision_align.library.goldens import check_goldens, record_goldens
from precision_align.library.runner import choose_cases, open_available
from precision_align.library.values import Store, decode, encode

pytestmark = pytest.mark.live
SELECT = ["swiglu/gate-first", "swiglu/odd-size", "moe_gating/ties"]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("goldens")
    folders = find_folders()
    done = record_goldens(folder, choose_cases(folders, SELECT), folders, open_available("cpu"))
    assert done.refused == ()
    assert (
        len(done.written) == 4
    )  # ties come in float32 only; odd-size must be refused by a replacement: there is nothing to record
    return folder


def check(folder: Path, replacement: Any = None, select: list[str] | None = None) -> Any:
    folders = find_folders()
    chosen = choose_cases(folders, select or SELECT)
    return check_goldens(folder, chosen, folders, open_available("cpu"), replacement=replacement)


def test_the_machine_that_recorded_passes_and_so_does_another_conforming_build(recorded: Path) -> None:
    assert check(recorded).passed
    mine = check(recorded, lambda x, **_: torch.nn.functional.silu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], ["swiglu"])
    assert mine.passed
    assert {result.dtype for result in mine.report.results} == {"float32", "bfloat16", "float16"}


def test_a_wrong_replacement_fails(recorded: Path) -> None:
    found = check(recorded, lambda x, **_: torch.sigmoid(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1], ["swiglu"])
    assert not found.passed
    assert all(result.status == Status.FAIL for result in found.report.results if result.phase == "forward")


def test_a_manifest_names_hash_seed_and_versions(recorded: Path) -> None:
    entry = json.loads((recorded / "manifest.json").read_text())["files"]["swiglu/gate-first-float32.npz"]
    assert (entry["seed"], entry["device"], len(entry["sha256"])) == (0, "cpu", 64)
    assert entry["versions"]["torch"] == str(torch.__version__)


def test_damaged_missing_strange_and_outdated_files_are_reported(recorded: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(recorded, folder)
    file = folder / "swiglu" / "gate-first-float32.npz"
    with file.open("r+b") as stream:
        stream.seek(200)
        stream.write(b"\xff")
    (folder / "swiglu" / "gate-first-float16.npz").unlink()
    (folder / "swiglu" / "stranger-float32.npz").write_bytes(b"")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["swiglu/gate-first-bfloat16.npz"]["digest"] = "0"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    text = "\n".join(check(folder).problems)
    for expected in ("SHA-256 is not the recorded one", "is missing", "is not in manifest.json", "record it again"):
        assert expected in text
    assert not check(folder).passed
    with pytest.raises(UsageError, match="golden update records them"):
        check(tmp_path)


def test_a_result_that_is_itself_wrong_is_not_recorded(tmp_path: Path) -> None:
    from dataclasses import replace

    folders = find_folders()
    ((operator, cases),) = choose_cases(folders, ["swiglu/gate-first"])
    bad = replace(operator, replacements={"torch": lambda x, **_: x.chunk(2, -1)[0]})
    done = record_goldens(tmp_path, [(bad, cases)], folders, open_available("cpu"))
    assert done.written == ()
    assert all("itself is wrong" in text for text in done.refused)


VALUES = [
    torch.tensor([1.5, -0.0, float("nan")], dtype=torch.bfloat16),
    torch.tensor([1, 2], dtype=torch.float8_e4m3fn) if hasattr(torch, "float8_e4m3fn") else torch.tensor([1]),
    torch.tensor([True, False]),
    torch.randn(2, 3).t(),
    torch.tensor(1j),
    torch.empty(0, 4),
    [torch.ones(1), {"a": (1, 2.5, None, "x", torch.int8)}],
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_values_come_back_bit_for_bit(value: Any) -> None:
    store = Store()
    tree = json.loads(json.dumps(encode(value, store)))
    back = decode(tree, store.arrays)
    if torch.is_tensor(value):
        assert back.dtype == value.dtype
        assert back.shape == value.shape
        words = [t.reshape(-1).contiguous().view(torch.uint8).numpy() for t in (value, back)]
        assert np.array_equal(*words)
    else:
        assert torch.equal(back[0], value[0])
        assert back[1] == value[1]


def test_what_has_no_plain_form_is_refused() -> None:
    with pytest.raises(TypeError, match="a object cannot be recorded"):
        encode([object()], Store())
