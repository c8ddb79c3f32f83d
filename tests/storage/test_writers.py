"""Processes that write a dump: killed, read meanwhile, forked, ended without closing."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from precision_align.storage import hdf5
from precision_align.storage.opening import open_dump

WRITER = """
import sys, numpy as np
sys.path.insert(0, {root!r})
from precision_align.core.keys import Key
from precision_align.core.records import Point, RunInfo, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.storage.base import Draft
from precision_align.storage.hdf5 import Hdf5Sink
info = RunInfo("run-1", "now", 0, 1, "cpu")
sink = Hdf5Sink({folder!r}, info)
for step in range({steps}):
    for call in range(4):
        key = Key(step, 0, 0, Source.MODULE, "a", call, Pass.FIRST, "A", 0, Phase.FORWARD, Role.OUTPUT, "")
        record = TensorRecord(key, "float32", (65536,), (1,), "strided", "cpu", False, call, Tier.FULL)
        sink.put(Draft(record, np.random.default_rng(step * 4 + call).standard_normal(65536).astype("f4")))
    sink.put_point(Point(step, 0, "loss", float(step)))
    sink.end_step(step)
    print(step, flush=True)
{end}
"""


def start_writer(folder: Path, steps: int = 10**6, end: str = "") -> subprocess.Popen[str]:
    root = str(Path(hdf5.__file__).parents[2])
    script = WRITER.format(root=root, folder=str(folder), steps=steps, end=end)
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("acknowledged", [0, 1, 5, 12])
def test_a_killed_writer_leaves_whole_files_only(tmp_path: Path, acknowledged: int, count_payloads: Any) -> None:
    writer = start_writer(tmp_path / "d")
    assert writer.stdout is not None
    while int(writer.stdout.readline()) < acknowledged:
        pass
    time.sleep(0.007 * acknowledged)
    writer.kill()
    last = [acknowledged, *map(int, writer.stdout.read().split())][-1]
    writer.wait()
    writer.stdout.close()
    with open_dump(tmp_path / "d") as dump:
        assert set(range(last)) <= set(dump.steps)
        assert set(count_payloads(dump).values()) <= {4}
        assert [point.step for point in dump.series][: last + 1] == list(range(last + 1))
        assert any("was not closed" in note for note in dump.notes)
        assert not any("missing files" in note or "damaged" in note for note in dump.notes)


def test_reading_while_it_is_written(tmp_path: Path, count_payloads: Any) -> None:
    writer = start_writer(tmp_path / "d", steps=60)
    assert writer.stdout is not None
    writer.stdout.readline()
    seen = []
    while writer.poll() is None:
        with open_dump(tmp_path / "d") as dump:
            assert set(count_payloads(dump).values()) <= {4}
            assert dump.steps == list(range(len(dump.steps)))
            seen.append(len(dump.steps))
    writer.stdout.close()
    assert seen == sorted(seen)
    assert open_dump(tmp_path / "d").steps == list(range(60))


def test_a_program_that_ends_without_closing_loses_nothing(tmp_path: Path) -> None:
    writer = start_writer(tmp_path / "d", steps=3, end="sink.put(Draft(record, np.zeros(65536, 'f4'))); sys.exit(5)")
    writer.communicate()
    assert writer.returncode == 5
    with open_dump(tmp_path / "d") as dump:
        assert dump.steps == [0, 1, 2]
        assert any("without closing" in note for note in dump.notes)


FORK = """
import os
pid = os.fork()
if pid == 0:
    for call in range(2000):
        sink.put(Draft(record, np.zeros(65536, "f4")))
    sink.put_point(Point(9, 0, "loss", 9.0))
    sink.end_step(9)
    sink.end_step(10)
    sink.flush()
    sink.close(info)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
sink.close(info)
"""


def test_a_forked_child_neither_blocks_nor_writes(tmp_path: Path) -> None:
    writer = start_writer(tmp_path / "d", steps=2, end=FORK)
    writer.communicate(timeout=60)
    assert writer.returncode == 0
    with open_dump(tmp_path / "d") as dump:
        assert dump.steps == [0, 1]
        assert len(dump.series) == 2
        assert not dump.notes
