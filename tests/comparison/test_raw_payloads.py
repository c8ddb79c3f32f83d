"""How the raw comparison reads payloads: not at all, or as mappings, in blocks, with memory that stays flat."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from precision_align.comparison.raw import RELEASE_BYTES, RawComparer
from precision_align.core.keys import Key
from precision_align.core.records import RunInfo, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.numerics.metrics import measure
from precision_align.storage.base import Draft
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.memory import MemorySink
from precision_align.storage.opening import open_dump

INFO = RunInfo("run", "2026-01-01T00:00:00+00:00", 0, 1, "cpu", {}, {"payload": "full"})


def draft(number, words, dtype="float32"):
    key = Key(0, 0, 0, Source.MODULE, f"m{number}", 0, Pass.FIRST, "Linear", 0, Phase.FORWARD, Role.OUTPUT, "")
    stride = tuple(step // words.itemsize for step in words.strides)
    record = TensorRecord(key, dtype, words.shape, stride, "strided", "cpu", False, number, Tier.FULL)
    return Draft(record, words)


def fill(sink, tensors):
    for number, words in enumerate(tensors):
        sink.put(draft(number, words))
    sink.end_step(0)
    sink.close(INFO)


def write(folder, tensors):
    fill(Hdf5Sink(folder, INFO), tensors)
    return open_dump(folder)


def in_memory(tensors):
    sink = MemorySink()
    fill(sink, tensors)
    return sink.dump()


def make_pair(size, noise, seed=0):
    rng = np.random.default_rng(seed)
    expected = rng.standard_normal(size).astype(np.float32)
    return expected * (1 + np.float32(noise) * rng.standard_normal(size).astype(np.float32)), expected


def only_gap(reference, candidate):
    raw = RawComparer(reference, candidate)
    return raw.gap(candidate.records[0], reference.records[0]), raw


@pytest.mark.parametrize("size", [1, 1000, RELEASE_BYTES // 4 + 12_345])
@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_pair_from_dumps_is_as_from_arrays(tmp_path, size, kind):
    actual, expected = make_pair(size, 1e-3)
    if kind == "file":
        reference, candidate = write(tmp_path / "a", [expected]), write(tmp_path / "b", [actual])
    else:
        reference, candidate = in_memory([expected]), in_memory([actual])
    gap, _ = only_gap(reference, candidate)
    assert gap.how == "payload"
    wanted = {f"raw_{name}": float(value) for name, value in measure(actual, expected).to_dict().items()}
    assert {name: gap.metrics.get(name, 0.0) for name in wanted} == wanted


def test_files_come_as_views(tmp_path):
    dump = write(tmp_path / "a", [np.arange(100_000, dtype=np.float32)])
    words = dump.map_payload(dump.records[0].key)
    assert not words.flags.owndata
    assert not words.flags.writeable


def test_only_a_difference_worth_the_name_has_a_spread():
    near, far = (make_pair(5000, noise) for noise in (1e-7, 1e-2))
    close, _ = only_gap(in_memory([near[1]]), in_memory([near[0]]))
    apart, _ = only_gap(in_memory([far[1]]), in_memory([far[0]]))
    assert close.close
    assert "raw_p99" not in close.metrics
    assert not apart.close
    size = np.abs(far[0].astype(np.float64) - far[1])
    assert apart.metrics["raw_p99"] == pytest.approx(np.quantile(size, 0.99), rel=0.07)
    assert apart.metrics["raw_ulp_p50"] > 2**10


def test_equal_hashes_need_no_payload(monkeypatch):
    dumps = [in_memory([np.ones(3000, np.float32)]) for _ in range(2)]
    for name in ("payload", "map_payload", "values"):
        monkeypatch.setattr(type(dumps[0]), name, lambda *_: pytest.fail("a payload was read"))
    gap, _ = only_gap(*dumps)
    assert (gap.equal, gap.how) == (True, "hash")


def test_patterns_are_named_where_there_are_any():
    actual, expected = make_pair(100, 1e-7)
    gap, _ = only_gap(in_memory([expected]), in_memory([actual]))
    assert not [name for name in gap.metrics if "nan" in name or "inf" in name]
    actual[3], expected[5] = np.nan, np.inf
    gap, _ = only_gap(in_memory([expected]), in_memory([actual]))
    assert (gap.metrics["raw_nan_actual"], gap.metrics["raw_inf_expected"], gap.metrics["raw_nonfinite"]) == (1, 1, 2)


def test_kernels_lead_to_the_same_gap(monkeypatch):
    actual, expected = make_pair(70_000, 1e-3)
    gaps = []
    for kernel in ("numpy", ""):
        monkeypatch.setenv("PRECISION_ALIGN_KERNEL", kernel)
        gaps.append(only_gap(in_memory([expected]), in_memory([actual]))[0])
    assert gaps[0].metrics == pytest.approx(gaps[1].metrics, rel=1e-9)


PEAK = """
import sys
from pathlib import Path
import numpy as np
from precision_align.comparison.raw import RawComparer
from precision_align.numerics.metrics import measure
from precision_align.storage.opening import open_dump

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

measure(np.zeros(4, np.float32), np.ones(4, np.float32))
before = peak()
with open_dump(sys.argv[1]) as reference, open_dump(sys.argv[2]) as candidate:
    gap = RawComparer(reference, candidate).gap(candidate.records[0], reference.records[0])
assert gap.how == "payload" and not gap.close and "raw_p50" in gap.metrics
print(peak() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_does_not_grow_with_the_tensor(tmp_path):
    actual, expected = make_pair(24 << 20, 1e-3)  # 96 MiB a side
    for name, words in (("a", expected), ("b", actual)):
        write(tmp_path / name, [words]).close()
    del actual, expected
    command = [sys.executable, "-c", PEAK, str(tmp_path / "a"), str(tmp_path / "b")]
    done = subprocess.run(command, env={"PYTHONPATH": str(Path(__file__).parents[2])}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 48 << 10  # kB: a quarter of the two payloads
