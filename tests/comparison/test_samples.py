"""Tensors of which a sample of the elements was kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import precision_align as pa
from precision_align.comparison.raw import RawComparer
from precision_align.core.errors import DumpDamaged
from precision_align.core.keys import Key
from precision_align.core.records import RunInfo, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier, Verdict
from precision_align.numerics.sampling import SAMPLES
from precision_align.storage.base import Draft
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.memory import MemorySink
from precision_align.storage.opening import open_dump

INFO = RunInfo("r", "now", 0, 1, "cpu")
X = np.random.default_rng(0).standard_normal((300, 400)).astype(np.float32)


def make_record(words: Any, tier: Tier) -> TensorRecord:
    key = Key(0, 0, 0, Source.MODULE, "a", 0, Pass.FIRST, "", 0, Phase.FORWARD, Role.OUTPUT, "")
    return TensorRecord(key, "float32", words.shape, (words.shape[1], 1), "strided", "cpu", False, 0, tier)


def keep(words: Any, tier: Tier = Tier.SAMPLE, folder: Path | None = None) -> Any:
    sink: Any = MemorySink(INFO) if folder is None else Hdf5Sink(folder, INFO)
    sink.put(Draft(make_record(words, tier), words))
    if folder is None:
        return sink.dump()
    sink.close(INFO)
    return open_dump(folder)


def gap(actual: Any, expected: Any) -> Any:
    return RawComparer(expected, actual).gap(actual.records[0], expected.records[0])


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_is_kept(tmp_path: Path, on_disk: bool) -> None:
    dump = keep(X, folder=tmp_path / "d" if on_disk else None)
    (record,) = dump.records
    assert (record.tier, record.reason, record.nbytes) == (Tier.SAMPLE, "", X.nbytes)
    assert len(dump.sample(record.key)) == SAMPLES
    assert dump.sketch(record.key) is None
    assert dump.map_payload(record.key) is None
    with pytest.raises(KeyError, match="only sample"):
        dump.payload(record.key)
    whole = keep(X, Tier.FULL)
    assert (whole.sample(record.key) == dump.sample(record.key)).all()


def test_small_tensors_are_kept_whole() -> None:
    assert keep(X[:1]).records[0].tier is Tier.FULL


def test_a_change_of_all_elements_is_measured() -> None:
    found = gap(keep(X * np.float32(1.01)), keep(X))
    assert (found.how, found.known, found.equal, found.close) == ("sample", True, False, False)
    assert found.metrics["raw_rel_l2"] == pytest.approx(0.01, rel=0.01)
    assert found.metrics["raw_sampled"] == SAMPLES
    assert "2,048 of 120,000 elements" in found.note


def test_rounding_is_close_and_says_that_it_was_sampled() -> None:
    found = gap(keep(np.nextafter(X, np.float32(9))), keep(X))
    assert found.close
    assert "sampled" in found.note


def test_one_extreme_element_is_seen_by_the_statistics() -> None:
    y = X.copy()
    y.flat[np.argmax(X)] += np.float32(0.5)
    found = gap(keep(y), keep(X))
    assert not found.close
    assert found.metrics["raw_max_abs"] == pytest.approx(0.5, rel=1e-5)


def test_a_nan_anywhere_is_seen() -> None:
    y = X.copy()
    y[17, 3] = np.nan
    assert not gap(keep(y), keep(X)).close


def test_a_sample_and_a_whole_tensor_compare() -> None:
    found = gap(keep(X * np.float32(1.01)), keep(X, Tier.FULL))
    assert (found.how, found.close) == ("sample", False)


def test_equal_tensors_are_equal_by_hash() -> None:
    assert gap(keep(X), keep(X)).how == "hash"


def test_a_flipped_bit_of_a_sample_is_told(tmp_path: Path) -> None:
    keep(X, folder=tmp_path / "d").close()
    (path,) = (tmp_path / "d").rglob("*.h5")
    data = path.read_bytes()
    stored = keep(X).sample(make_record(X, Tier.SAMPLE).key)[SAMPLES // 2 : SAMPLES // 2 + 4].tobytes()
    at = data.index(stored)
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with open_dump(tmp_path / "d") as dump, pytest.raises(DumpDamaged):
        dump.sample(dump.records[0].key)


class Net(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.factor = nn.Linear(128, 128), nn.Linear(128, 128), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)) * self.factor)


def record(model: nn.Module, place: Path) -> Path:
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(1))
    with pa.capture(model, place, payload="sample") as recorder, recorder.step():
        model(x)
    return place


def test_a_capture_of_samples_compares_and_the_report_says_so(tmp_path: Path) -> None:
    reference = record(Net(), tmp_path / "r")
    same = pa.compare(reference, record(Net(), tmp_path / "s"))
    assert same.verdict == Verdict.ALIGNED
    report = pa.compare(reference, record(Net(1.05), tmp_path / "c"))
    assert report.verdict != Verdict.ALIGNED
    rows = [row for row in report.records if "raw_sampled" in row.metrics]
    assert rows
    assert any("compared by a sample of the elements" in note for note in report.notes)
    assert all("sampled: 2,048" in row.note for row in rows)
