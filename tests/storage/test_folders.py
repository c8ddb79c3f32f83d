"""Who may write where: fresh folders, overwrite, append, several ranks."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from precision_align.core.errors import StorageFull, UsageError
from precision_align.core.records import Point
from precision_align.storage import folders
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.opening import open_dump
from precision_align.training.health.checking import check_health
from precision_align.workflows.comparing import compare


@pytest.fixture
def record_steps(make_draft: Any) -> Any:
    """Write one tensor and one loss a step; the tensor's value is ``value``."""

    def record(folder: Path, info: Any, steps: Any, value: float = 0.0, call: Any = None, **options: Any) -> None:
        sink = Hdf5Sink(folder, info, **options)
        for step in steps:
            sink.put(make_draft(np.full(3, value, np.float32), key={"step": step, "rank": info.rank}))
            if call is not None:
                sink.put_call(replace(call, step=step, rank=info.rank))
            sink.put_point(Point(step, 0, "loss", value))
            sink.end_step(step)
        sink.close(info)

    return record


def test_layout_and_modes(tmp_path: Path, make_info: Any, record_steps: Any) -> None:
    record_steps(tmp_path / "a" / "d", make_info(), range(12, 14))
    rank = tmp_path / "a" / "d" / "rank00000"
    assert sorted(path.name for path in rank.iterdir()) == [
        "run.json",
        "series.jsonl",
        "step00000012-00000012.part000.h5",
        "step00000013-00000013.part000.h5",
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in rank.iterdir()} == {0o640}


def test_steps_without_end_step_share_one_file(tmp_path: Path, make_info: Any, make_draft: Any) -> None:
    sink = Hdf5Sink(tmp_path / "d", make_info())
    for step in (4, 3, 7):
        sink.put(make_draft(np.zeros(2, np.float32), key={"step": step}))
    sink.close(make_info())
    assert [path.name for path in (tmp_path / "d").glob("*/*.h5")] == ["step00000003-00000007.part000.h5"]


def test_an_empty_folder_is_fine_a_used_one_is_not(tmp_path: Path, make_info: Any, record_steps: Any) -> None:
    (tmp_path / "d").mkdir()
    record_steps(tmp_path / "d", make_info(), range(2))
    with pytest.raises(UsageError, match=r"already holds a dump.*overwrite.*append"):
        Hdf5Sink(tmp_path / "d", make_info())
    with open_dump(tmp_path / "d") as dump:
        assert dump.steps == [0, 1]


def test_overwrite_leaves_nothing_of_the_old_run(tmp_path: Path, make_info: Any, record_steps: Any) -> None:
    for rank in range(3):
        record_steps(tmp_path / "d", make_info(world=3, rank=rank), range(5))
    (tmp_path / "d" / "rank00000" / "step00000009-00000009.part000.h5.tmp").write_bytes(b"half")
    (tmp_path / "d" / "rank00000" / "step00000000.certificate").write_bytes(b"of the old calls")
    record_steps(tmp_path / "d", make_info(run="run-2"), range(1), 2.0, overwrite=True)
    with open_dump(tmp_path / "d") as dump:
        assert dump.info.run == "run-2"
        assert (dump.steps, dump.ranks, dump.notes) == ([0], [0], [])
        assert [point.value for point in dump.series] == [2.0]
    assert not [*(tmp_path / "d").rglob("*.certificate")]


@pytest.mark.parametrize("foreign", ["notes.txt", "rank00000/model.pt", "rank00000/step1.h5", "src/a.py", "rank1"])
@pytest.mark.parametrize("option", ["overwrite", "append", None])
def test_foreign_content_is_never_touched(
    tmp_path: Path, make_info: Any, record_steps: Any, foreign: str, option: str | None
) -> None:
    record_steps(tmp_path / "d", make_info(), range(1))
    path = tmp_path / "d" / foreign
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match="not part of a dump"):
        Hdf5Sink(tmp_path / "d", make_info(), **({option: True} if option else {}))
    assert sorted(tmp_path.rglob("*")) == before
    assert path.read_text() == "mine"


def test_a_folder_of_other_peoples_files_gets_nothing(tmp_path: Path, make_info: Any) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(UsageError, match=r"thesis\.tex"):
        Hdf5Sink(tmp_path, make_info(), overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_append_continues_the_same_run(tmp_path: Path, make_info: Any, record_steps: Any) -> None:
    record_steps(tmp_path / "d", make_info(notes=("old note",)), range(3), 1.0)
    record_steps(tmp_path / "d", make_info(run="run-2"), range(2, 5), 2.0, append=True)
    with open_dump(tmp_path / "d") as dump:
        assert dump.steps == [0, 1, 2, 3, 4]
        assert [dump.payload(record.key)[0] for record in dump.records] == [1, 1, 2, 2, 2]
        assert [point.value for point in dump.series] == [1, 1, 2, 2, 2]
        assert dump.info.run == "run-2"
        assert "old note" in dump.info.notes
        assert not any("missing" in note for note in dump.notes)


def test_append_to_nothing_starts(tmp_path: Path, make_info: Any, record_steps: Any) -> None:
    record_steps(tmp_path / "d", make_info(), range(2), append=True)
    assert open_dump(tmp_path / "d").steps == [0, 1]


@pytest.mark.parametrize("changes", [{"modules": {"": "other.Model"}}, {"capture": {"payload": "sketch"}}])
@pytest.mark.parametrize("with_run_file", [True, False])
def test_append_refuses_another_run(
    tmp_path: Path, make_info: Any, record_steps: Any, changes: dict[str, Any], with_run_file: bool
) -> None:
    record_steps(tmp_path / "d", make_info(), range(2))
    if not with_run_file:
        (tmp_path / "d" / "rank00000" / "run.json").unlink()
    with pytest.raises(UsageError, match=f"other {next(iter(changes))}"):
        Hdf5Sink(tmp_path / "d", make_info(**changes), append=True)


def test_append_after_a_kill_ends_the_half_written_line(tmp_path: Path, make_info: Any, record_steps: Any) -> None:
    record_steps(tmp_path / "d", make_info(), range(1))
    with (tmp_path / "d" / "rank00000" / "series.jsonl").open("a") as file:
        file.write('{"step": 1, "mic')
    record_steps(tmp_path / "d", make_info(), range(1, 2), append=True)
    assert [point.step for point in open_dump(tmp_path / "d").series] == [0, 1]


def test_overwrite_and_append_exclude_each_other(tmp_path: Path, make_info: Any) -> None:
    with pytest.raises(UsageError, match="exclude"):
        Hdf5Sink(tmp_path / "d", make_info(), overwrite=True, append=True)


def test_ranks_share_a_folder(tmp_path: Path, make_info: Any, record_steps: Any) -> None:
    for rank in (1, 0):
        record_steps(tmp_path / "d", make_info(world=2, rank=rank, device=f"npu:{rank}"), range(2), float(rank))
    with open_dump(tmp_path / "d") as dump:
        assert dump.ranks == [0, 1]
        assert [info.device for info in dump.infos] == ["npu:0", "npu:1"]
        assert dump.info.rank == 0
        assert [(record.key.rank, record.key.step) for record in dump.records] == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert [point.value for point in dump.series] == [0.0, 0.0]
    with pytest.raises(UsageError):
        Hdf5Sink(tmp_path / "d", make_info(world=2, rank=1))


def test_absent_ranks_are_a_note(tmp_path: Path, make_info: Any, record_steps: Any) -> None:
    for rank in (0, 2):
        record_steps(tmp_path / "d", make_info(world=4, rank=rank), range(1))
    with open_dump(tmp_path / "d") as dump:
        assert dump.ranks == [0, 2]
        (note,) = dump.notes
        assert "2 of 4 ranks; missing: 1, 3" in note
    assert not open_dump(tmp_path / "d" / "rank00002").notes


def test_a_broken_rank_among_good_ones_is_a_note(tmp_path: Path, make_info: Any, record_steps: Any) -> None:
    for rank in range(2):
        record_steps(tmp_path / "d", make_info(world=2, rank=rank), range(1))
    for path in (tmp_path / "d" / "rank00000").iterdir():
        path.write_bytes(path.read_bytes()[:50])
    with open_dump(tmp_path / "d") as dump:
        assert dump.info.rank == 1
        assert any("truncated" in note for note in dump.notes)
        assert any("missing: 0" in note for note in dump.notes)


def test_writing_where_locks_are_refused(
    tmp_path: Path, make_info: Any, record_steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = h5py.File

    def refuse(path: Any, mode: str, **options: Any) -> Any:
        if options.get("locking") is not False:
            raise OSError(38, "Unable to synchronously create file (unable to lock file, errno = 38)")
        return real(path, mode, **options)

    monkeypatch.setattr(h5py, "File", refuse)
    record_steps(tmp_path / "d", make_info(), range(2))
    with open_dump(tmp_path / "d") as dump:
        assert dump.steps == [0, 1]
        assert not dump.notes


def test_a_file_in_the_way(tmp_path: Path, make_info: Any) -> None:
    (tmp_path / "d").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        Hdf5Sink(tmp_path / "d", make_info())
    for path in (tmp_path / "d" / "below", tmp_path / ("x" * 5000), str(tmp_path) + "\0x"):
        with pytest.raises(UsageError, match="cannot be written"):
            Hdf5Sink(path, make_info())


@pytest.mark.parametrize(("code", "kind"), [(28, StorageFull), (122, StorageFull), (30, UsageError), (13, UsageError)])
def test_a_folder_that_cannot_be_made(
    tmp_path: Path, make_info: Any, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    def refuse(*args: Any) -> None:
        raise OSError(code, "no")

    monkeypatch.setattr(folders, "_prepare", refuse)
    with pytest.raises(kind):
        Hdf5Sink(tmp_path / "d", make_info())


def test_a_run_without_records_is_readable(tmp_path: Path, make_info: Any) -> None:
    info = make_info()
    Hdf5Sink(tmp_path / "d", info).close(replace(info, notes=("nothing ran",)))
    with open_dump(tmp_path / "d") as dump:
        assert (len(dump.records), dump.steps, dump.calls, dump.series) == (0, [], [], [])
        assert dump.notes == ["nothing ran"]


def test_a_closed_sink_ignores_what_comes_late(tmp_path: Path, make_info: Any, make_draft: Any) -> None:
    sink = Hdf5Sink(tmp_path / "d", make_info())
    sink.close(make_info())
    sink.close(make_info())
    sink.put(make_draft(np.zeros(2, np.float32)))
    sink.put_point(Point(0, 0, "loss", 1.0))
    sink.end_step(0)
    sink.end_step(1)
    assert len(open_dump(tmp_path / "d").records) == 0


def test_a_rank_that_was_restarted_or_has_a_gap_is_told(
    tmp_path: Path, make_info: Any, record_steps: Any, make_call: Any
) -> None:
    for rank, steps in enumerate((range(5), range(3), (0, 1, 4))):
        record_steps(tmp_path / "d", make_info(rank=rank, world=3), steps, call=make_call())
    again = make_info(run="run-2", rank=1, world=3)
    record_steps(tmp_path / "d", again, range(2, 5), 2.0, call=make_call(), append=True)
    with open_dump(tmp_path / "d") as dump:
        assert (
            "rank 1 was restarted, others not: it began anew at step 2; of steps 2, recorded twice, the later records "
            "count" in dump.notes
        )
        assert "rank 2 has a gap: steps 2, 3 of the other ranks are not recorded there" in dump.notes
    assert any("rank 1 was restarted" in note for note in check_health(tmp_path / "d").notes)
    assert any("rank 1 was restarted" in note for note in compare(tmp_path / "d", tmp_path / "d").notes)


def test_a_run_that_all_ranks_go_on_with_is_no_restart(tmp_path: Path, make_info: Any, record_steps: Any) -> None:
    for rank in (0, 1):
        record_steps(tmp_path / "d", make_info(rank=rank, world=2), range(3))
        record_steps(tmp_path / "d", make_info(run=f"run-2{rank}", rank=rank, world=2), range(3, 5), append=True)
    assert not any("restarted" in note or "gap" in note for note in open_dump(tmp_path / "d").notes)
