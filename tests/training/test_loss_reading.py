"""Reading series from the layouts that trainings leave behind, and what is said of damaged ones."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from precision_align.core.errors import DumpNotFound, LogUnreadable, NothingInCommon, PrecisionAlignError, UsageError
from precision_align.core.keys import Key
from precision_align.core.records import Call, Point, RunInfo, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.training.curves import compare_losses
from precision_align.training.reading import read_series

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
----------------------------------------------------------------------------------------------
 validation loss at iteration 2 | lm loss value: 1.080000E+01 | lm loss PPL: 4.902080E+04 |
----------------------------------------------------------------------------------------------
 [2026-11-01 10:00:10] iteration        3/     500 | consumed samples:          768\
 | elapsed time per iteration (ms): 910.7 | learning rate: 3.000000E-06 | global batch size:   256\
 | lm loss: 1.072345E+01 | mtp_1 loss: 1.100000E+01 | load_balancing_loss: 1.012345E+00\
 | loss scale: 65536.0 | grad norm: 4.220 | number of skipped iterations:   0\
 | number of nan iterations:   0 |
"""
DEEPSPEED = """\
[2026-11-01 10:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[0.0001], mom=[[0.9, 0.95]]
steps: 10 loss: 8.1234 iter time (s): 0.512 samples/sec: 62.500
steps: 20 loss: 7.5321 iter time (s): 0.498 samples/sec: 64.257
"""
TRAINER = """\
{'loss': 2.3456, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.01}
{'loss': 2.2456, 'grad_norm': 1.35, 'learning_rate': 4.9e-05, 'epoch': 0.02}
{'eval_loss': 2.1, 'eval_runtime': 3.2, 'epoch': 0.02}
{'train_runtime': 12.5, 'train_loss': 2.29, 'epoch': 0.02}
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["loss", "lm loss", "LM Loss"])
def test_megatron_lines(tmp_path: Path, name: str) -> None:
    series = read_series(write(tmp_path, "train.log", MEGATRON), name)
    assert series.steps == (1, 2, 3)
    assert series.values == (10.87654, 10.81234, 10.72345)
    assert series.locate(3).endswith("train.log line 7")


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("grad norm", (4.512, 4.401, 4.220)),
        ("loss scale", (65536.0,) * 3),
        ("learning rate", (1e-6, 2e-6, 3e-6)),
        ("mtp_1 loss", (11.0,)),
        ("load_balancing_loss", (1.012345,)),
    ],
)
def test_other_series_of_megatron(tmp_path: Path, name: str, values: tuple[float, ...]) -> None:
    assert read_series(write(tmp_path, "train.log", MEGATRON), name).values == values


def test_deepspeed_lines(tmp_path: Path) -> None:
    series = read_series(write(tmp_path, "ds.log", DEEPSPEED))
    assert (series.steps, series.values) == ((10, 20), (8.1234, 7.5321))


def test_lines_without_steps_are_numbered_and_that_is_said(tmp_path: Path) -> None:
    series = read_series(write(tmp_path, "hf.log", "\n".join(TRAINER.splitlines()[:3])))
    assert (series.steps, series.values) == ((0, 1), (2.3456, 2.2456))
    assert any("no line names a step" in note for note in series.notes)


@pytest.mark.parametrize(
    "line",
    [
        "step {s} loss {v}",
        "Step: {s}, loss={v}, lr=1e-3",
        "iter {s}: loss {v}, time 12.3ms",
        "step:  {s}  loss:  {v}  memory: 1.2GiB(3%)",
        "\x1b[32mINFO\x1b[0m global_step={s} train_loss: {v}",
        " 20%|##        | {s}/500 [00:51<03:25,  2.1it/s, loss={v}]",
        "epoch 0 | it {s} | loss: tensor({v}, device='npu:0')",
        '"step": {s}, "loss": {v}, "note": "cut',
    ],
)
def test_usual_forms_of_a_line(tmp_path: Path, line: str) -> None:
    text = "\n".join(["started", *(line.format(s=step, v=f"{3 - step / 10:.4f}") for step in range(3)), "done"])
    series = read_series(write(tmp_path, "run.log", text))
    assert series.steps == (0, 1, 2)
    assert series.values == (3.0, 2.9, 2.8)


def test_two_column_file(tmp_path: Path) -> None:
    series = read_series(write(tmp_path, "golden.txt", "# golden\n1 8.1376\n2 7.9\n"))
    assert (series.steps, series.values) == ((1, 2), (8.1376, 7.9))


def test_validation_loss_is_not_the_loss(tmp_path: Path) -> None:
    text = "step 0: train loss 4.2, val loss 4.3\nstep 1: train loss 4.1, val loss 4.25\n"
    path = write(tmp_path, "run.log", text)
    assert read_series(path).values == (4.2, 4.1)
    assert read_series(path, "val loss").values == (4.3, 4.25)


def test_pattern_with_named_groups(tmp_path: Path) -> None:
    path = write(tmp_path, "run.log", "[7] J = 0.5 (x)\n[8] J = nan (x)\n")
    series = read_series(path, pattern=r"\[(?P<step>\d+)\] J = (?P<value>\S+)")
    assert series.steps == (7, 8)
    assert series.values[0] == 0.5
    assert any("nan at step 8 (line 2)" in note for note in series.notes)


@pytest.mark.parametrize("pattern", ["(", "loss", "(a)(b)(c)"])
def test_bad_pattern_is_a_usage_error(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(UsageError, match="pattern"):
        read_series(write(tmp_path, "run.log", "step 1 loss 2\n"), pattern=pattern)


def test_pattern_that_takes_no_number_names_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, "run.log", "a\nstep 1 loss oops\n")
    with pytest.raises(LogUnreadable, match=r"line 2.*'oops'"):
        read_series(path, pattern=r"step (\d+) loss (\w+)")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("step,loss\n1,2.5\n2,2.25\n", "loss"),
        ("Step;train/loss;eval/acc\n1;2.5;0.1\n2;2.25;0.2\n", "loss"),
        ("global_step\tLoss\n1\t2.5\n2\t2.25\n", "loss"),
        ("Wall time,Step,Value\n1.7e9,1,2.5\n1.7e9,2,2.25\n", "loss"),
        ("1,2.5\n2,2.25\n", "loss"),
        ("step,loss,lr\n1,2.5,1\n1.0,,1\n2,2.25,\n", "loss"),
        ('"Step","run-1 - train/loss"\n1,2.5\n2,2.25\n', "train/loss"),
    ],
)
def test_tables(tmp_path: Path, text: str, name: str) -> None:
    series = read_series(write(tmp_path, "run.csv", text), name)
    assert (series.steps, series.values) == ((1, 2), (2.5, 2.25))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("step,loss\n1,2.5\n2,high\n", "line 3.*'2,high'"),
        ("step,loss\n1.5,2.5\n", "line 2"),
        ("step,accuracy\n1,2.5\n", "no column 'loss'.*step, accuracy"),
        ("step,a/loss,b/loss\n1,2,3\n", "several series"),
        ("1,2,3\n", "without a header"),
        ("step,loss\n", "no line|no value"),
    ],
)
def test_tables_that_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(LogUnreadable, match=message):
        read_series(write(tmp_path, "run.csv", text))


def test_jsonl_with_other_events(tmp_path: Path) -> None:
    lines = [
        '{"step": 1, "loss": 2.5}',
        '{"event": "saved"}',
        "",
        '{"step": 2, "loss": NaN}',
        '{"step": 3, "loss": null}',
    ]
    series = read_series(write(tmp_path, "run.jsonl", "\n".join(lines)))
    assert series.steps == (1, 2)
    assert any("null" in note for note in series.notes)


def test_jsonl_broken_in_the_middle_and_at_the_end(tmp_path: Path) -> None:
    good = '{"step": 1, "loss": 2.5}\n'
    with pytest.raises(LogUnreadable, match="line 2"):
        read_series(write(tmp_path, "a.jsonl", good + '{"step": 2, \n' + good))
    series = read_series(write(tmp_path, "b.jsonl", good + '{"step": 2, "lo'))
    assert series.steps == (1,)
    assert any("cut off" in note for note in series.notes)


def test_trainer_state_and_the_folder_that_holds_it(tmp_path: Path) -> None:
    history = [{"loss": 2.5, "step": 10, "epoch": 0.1}, {"eval_loss": 2.4, "step": 10}, {"loss": 2.25, "step": 20}]
    path = write(tmp_path, "trainer_state.json", json.dumps({"global_step": 20, "log_history": history}))
    for source in (path, tmp_path):
        series = read_series(source)
        assert (series.steps, series.values) == ((10, 20), (2.5, 2.25))
    assert read_series(path, "eval_loss").values == (2.4,)


@pytest.mark.parametrize(
    "content",
    [
        [[1, 2.5], [2, 2.25]],
        {"step": [1, 2], "loss": [2.5, 2.25]},
        [{"iteration": 1, "loss": "2.5"}, {"iteration": 2, "loss": 2.25}],
    ],
)
def test_other_json(tmp_path: Path, content: object) -> None:
    series = read_series(write(tmp_path, "run.json", json.dumps(content)))
    assert (series.steps, series.values) == ((1, 2), (2.5, 2.25))


@pytest.mark.parametrize("text", ["{", "3", '{"a": 1}', '[{"step": 1, "loss": true}]', "[1, 2]", "[" * 100_000])
def test_json_that_is_no_series(tmp_path: Path, text: str) -> None:
    with pytest.raises(LogUnreadable):
        read_series(write(tmp_path, "run.json", text))


def test_steps_logged_twice(tmp_path: Path) -> None:
    path = write(tmp_path, "run.log", "step 1 loss 3.0\nstep 2 loss 2.5\nstep 2 loss 2.6\nstep 3 loss 2.4\n")
    with pytest.raises(LogUnreadable, match=r"step 2: 2.5 \(line 2\), 2.6 \(line 3\).*duplicates"):
        read_series(path)
    assert read_series(path, duplicates="last").values == (3.0, 2.6, 2.4)
    assert read_series(path, duplicates="first").values == (3.0, 2.5, 2.4)
    assert read_series(path, duplicates="mean").values == (3.0, 2.55, 2.4)
    assert read_series(path, duplicates="order").steps == (0, 1, 2, 3)
    with pytest.raises(UsageError, match="duplicates"):
        read_series(path, duplicates="best")


def test_equal_values_of_several_ranks_are_merged(tmp_path: Path) -> None:
    series = read_series(write(tmp_path, "run.log", "step 1 loss 3.0\nstep 1 loss 3.0\nstep 2 loss 2.5\n"))
    assert series.values == (3.0, 2.5)
    assert any("merged" in note for note in series.notes)


@pytest.mark.parametrize("name", ["", "  "])
def test_a_series_needs_a_name(name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        compare_losses([(0, 1.0)], [(0, 1.0)], name=name)


def test_missing_file_and_missing_series(tmp_path: Path) -> None:
    with pytest.raises(DumpNotFound, match="nowhere"):
        read_series(tmp_path / "nowhere.log")
    path = write(tmp_path, "run.log", "step 1 accuracy 0.5, throughput: 12.5\n")
    with pytest.raises(LogUnreadable, match="'throughput'"):
        read_series(path)


def test_gzipped_files(tmp_path: Path) -> None:
    for name, text in (("run.log", "step 1 loss 2.5\nstep 2 loss 2.25\n"), ("run.csv", "step,loss\n1,2.5\n2,2.25\n")):
        path = tmp_path / f"{name}.gz"
        path.write_bytes(gzip.compress(text.encode()))
        assert read_series(path).values == (2.5, 2.25)
        path.write_bytes(path.read_bytes()[:-12])
        with pytest.raises(LogUnreadable, match="cannot be read"):
            read_series(path)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "wide.log").write_bytes("step 1 loss 2\n".encode("utf-16"))
    with pytest.raises(LogUnreadable, match=r"line 1.*UTF-8"):
        read_series(tmp_path / "wide.log")


def test_no_step_in_common(tmp_path: Path) -> None:
    with pytest.raises(NothingInCommon, match=r"steps 0 to 1, 2 values.*steps 5 to 5"):
        compare_losses([(0, 1.0), (1, 1.0)], [(5, 1.0)])


@pytest.mark.parametrize(
    "values", [[1.0, 2.0], [(1,)], [(1, "x")], [(0.5, 1.0)], ["ab"], [(1, 2, 3)], [(None, 1.0)], 5]
)
def test_values_that_are_no_pairs(values: object) -> None:
    with pytest.raises(UsageError, match="pair"):
        compare_losses(values, [(0, 1.0)])  # type: ignore[arg-type]


def test_printed_digits_are_part_of_the_band(tmp_path: Path) -> None:
    values = [3 - step / 100 for step in range(60)]
    coarse = write(tmp_path, "a.log", "\n".join(f"step {i} loss {v:.3f}" for i, v in enumerate(values)))
    other = write(tmp_path, "b.log", "\n".join(f"step {i} loss {v + 4e-4:.3f}" for i, v in enumerate(values)))
    report = compare_losses(coarse, other, band="float32")
    assert not report.parted
    assert any("printed digits" in note for note in report.notes)
    assert compare_losses(list(enumerate(values)), [(i, v + 4e-4) for i, v in enumerate(values)], band="float32").parted


def test_both_sides_nan_at_one_step_is_told_and_no_onset() -> None:
    reference = [(step, float("nan") if step == 5 else 2.0) for step in range(20)]
    report = compare_losses(reference, reference)
    assert not report.parted
    assert report.unjudged == report.to_dict()["unjudged"] == 5
    assert any("step 5" in note or "first 5" in note for note in report.notes)


def test_the_same_infinity_is_judged_unless_there_is_nothing_else() -> None:
    skipped = [(step, float("inf") if step == 5 else 2.0) for step in range(20)]
    assert compare_losses(skipped, skipped, name="grad norm").unjudged is None
    assert compare_losses(skipped[5:6], skipped[5:6]).unjudged == 5


def test_infinity_against_nan_parts() -> None:
    left = [(step, float("inf") if step == 5 else 2.0) for step in range(20)]
    right = [(step, float("nan") if step == 5 else 2.0) for step in range(20)]
    assert compare_losses(left, right).onset == 5


@pytest.mark.parametrize("suffix", [".log", ".csv", ".jsonl", ".json", ".tsv"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=300),
        st.lists(
            st.sampled_from(
                ["step", "loss", "1", "2.5", ",", "\n", "{", "}", "[", "]", '"', ":", " ", "nan", "1e999", "-"]
            ),
            max_size=60,
        ).map(lambda parts: "".join(parts).encode()),
    )
)
def test_any_bytes_give_a_series_or_our_error(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"any{suffix}"
    path.write_bytes(content)
    try:
        series = read_series(path)
    except PrecisionAlignError as error:
        message = str(error)
    else:
        message = str(path)
        assert list(series.steps) == sorted(set(series.steps))
        assert len(series.values) == len(series.steps)
    assert str(path) in message


def test_a_file_that_can_be_read_once_only_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    with pytest.raises(LogUnreadable, match="regular file"):
        read_series(tmp_path / "pipe.log")


class SmallDump:
    """The part of a dump that a series is read from: one output of some dtype, and points."""

    def __init__(self, points: list[Point], dtype: str = "float32", autocast: str = "") -> None:
        key = Key(0, 0, 0, Source.MODULE, "head", 0, Pass.FIRST, "", 0, Phase.FORWARD, Role.OUTPUT, "")
        tree = {"kind": "scalar", "value": None}
        cast = {"npu": autocast} if autocast else {}
        self.series = points
        self.steps = [0]
        self.ranks = [0]
        self.info = RunInfo("run", "now", 0, 1, "cpu", command="train.py")
        self.records = [TensorRecord(key, dtype, (2,), (1,), "strided", "cpu", True, 0, Tier.FULL)]
        self.calls = [
            Call(0, 0, 0, "head", 0, Pass.FIRST, "Head", 0, -1, 0, 1, True, True, True, tree, tree, None, cast)
        ]


def test_micro_batches_of_a_dump_are_averaged() -> None:
    dump = SmallDump([Point(0, 0, "loss", 2.0), Point(0, 1, "loss", 3.0), Point(1, 0, "loss", 2.0)])
    series = read_series(dump)  # type: ignore[arg-type]
    assert series.values == (2.5, 2.0)
    assert any("mean" in note for note in series.notes)
    with pytest.raises(LogUnreadable, match="'loss'"):
        read_series(dump, "gnorm")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dtype", "autocast", "precision"),
    [
        ("float32", "", "float32"),
        ("bfloat16", "", "bfloat16"),
        ("float32", "torch.bfloat16", "bfloat16"),
        ("int64", "", ""),
    ],
)
def test_the_band_follows_the_dtype_of_the_dumps(dtype: str, autocast: str, precision: str) -> None:
    dump = SmallDump([Point(step, 0, "loss", 2.0) for step in range(9)], dtype, autocast)
    single = SmallDump(list(dump.series))
    assert read_series(dump).precision == precision  # type: ignore[arg-type]
    report = compare_losses(dump, single)  # type: ignore[arg-type]
    assert report.band.precision == precision  # the lower of both sides, or unknown
