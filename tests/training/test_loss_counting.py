"""Series counted by what was consumed, and sources that a trainer's folder holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precision_align.core.errors import LogUnreadable, UsageError
from precision_align.training.curves import compare_losses
from precision_align.training.reading import read_series

MINDFORMERS = """\
2026-11-01 10:00:00,1 - mindformers[callback.py:720] - INFO - { Epoch:[  1/  2], step:[    1/  100], loss: 10.612,\
 per_step_time: 9012ms, lr: 1.0e-06, overflow cond: False, loss_scale: 65536, global_norm: [12.5],\
 train_throughput_per_npu: 123.4T }
2026-11-01 10:00:01,1 - mindformers[callback.py:720] - INFO - { Epoch:[  1/  2], step:[    2/  100], loss: 10.498,\
 per_step_time: 1012ms, lr: 2.0e-06, overflow cond: False, loss_scale: 65536, global_norm: [11.25],\
 train_throughput_per_npu: 183.4T }
"""
MEGATRON = """\
using world size: 8, data-parallel size: 2
 [2026-11-01 10:00:00] iteration        1/     500 | consumed samples:          256\
 | elapsed time per iteration (ms): 9321.5 | learning rate: 1.000000E-06 | global batch size:   256\
 | lm loss: 1.087654E+01 | loss scale: 65536.0 | grad norm: 4.512 | number of skipped iterations:   0\
 | number of nan iterations:   0 |
 [2026-11-01 10:00:09] iteration        2/     500 | consumed samples:          512\
 | elapsed time per iteration (ms): 911.2 | learning rate: 2.000000E-06 | global batch size:   256\
 | lm loss: 1.081234E+01 | loss scale: 65536.0 | grad norm: 4.401 | number of skipped iterations:   0\
 | number of nan iterations:   0 |
 [2026-11-01 10:00:10] iteration        3/     500 | consumed samples:          768\
 | elapsed time per iteration (ms): 910.7 | learning rate: 3.000000E-06 | global batch size:   256\
 | lm loss: 1.072345E+01 | mtp_1 loss: 1.100000E+01 | loss scale: 65536.0 | grad norm: 4.220 |
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "values"), [("loss", (10.612, 10.498)), ("global_norm", (12.5, 11.25))])
def test_mindspore_transformers_lines(tmp_path: Path, name: str, values: tuple[float, ...]) -> None:
    series = read_series(write(tmp_path, "mf.log", MINDFORMERS), name)
    assert (series.steps, series.values) == ((1, 2), values)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.log", MEGATRON),
        ("t.csv", "step,loss,consumed samples\n1,10.87654,256\n2,10.81234,512\n3,10.72345,768\n"),
        ("t.jsonl", "\n".join(f'{{"step": {i}, "loss": 1, "consumed samples": {256 * i}}}' for i in (1, 2, 3))),
    ],
)
def test_counting_by_another_series(tmp_path: Path, name: str, text: str) -> None:
    assert read_series(write(tmp_path, name, text), by="consumed samples").steps == (256, 512, 768)


def test_runs_of_other_batch_sizes_align_by_what_they_consumed(tmp_path: Path) -> None:
    wide = "\n".join(f"iteration {i} | consumed samples: {512 * i} | lm loss: {9 - i / 10}" for i in range(1, 21))
    narrow = "\n".join(f"iteration {i} | consumed samples: {256 * i} | lm loss: {9 - i / 20}" for i in range(1, 41))
    sides = write(tmp_path, "a.log", wide), write(tmp_path, "b.log", narrow)
    report = compare_losses(*sides, by="consumed samples")
    assert (len(report.steps), report.parted, report.steps[0]) == (20, False, 512)
    assert compare_losses(*sides, per_step=(2, 1)).steps == tuple(range(2, 41, 2))
    assert compare_losses(*sides).parted


def test_counts_that_do_not_count(tmp_path: Path) -> None:
    path = write(tmp_path, "a.log", "step 1 loss 3.0 epoch: 0.5\nstep 2 loss 2.5 epoch: 1.0\n")
    with pytest.raises(LogUnreadable, match=r"line 1: epoch is 0.5"):
        read_series(path, by="epoch")
    with pytest.raises(UsageError, match="pattern"):
        read_series(path, by="epoch", pattern="loss (.*)")
    with pytest.raises(UsageError, match="pairs"):
        read_series([(0, 1.0)], by="epoch")
    with pytest.raises(UsageError, match="1 or more"):
        compare_losses(path, path, per_step=(0, 1))


def test_the_last_checkpoint_of_a_trainers_folder(tmp_path: Path) -> None:
    for step in (5, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
        state = {"log_history": [{"loss": float(step), "step": step}]}
        write(tmp_path / f"checkpoint-{step}", "trainer_state.json", json.dumps(state))
    series = read_series(tmp_path)
    assert series.steps == (10,)
    assert any("checkpoint-10" in note for note in series.notes)


def test_coarse_digits_do_not_hide_a_quarter(tmp_path: Path) -> None:
    sides = [
        write(
            tmp_path, f"{index}.csv", "step,loss\n" + "\n".join(f"{i},{factor * (2.3 - i / 10):.1f}" for i in range(3))
        )
        for index, factor in enumerate((1.0, 1.23))
    ]
    assert compare_losses(*sides).parted
    assert not compare_losses(sides[0], sides[0]).parted
