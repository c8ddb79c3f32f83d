"""TensorBoard event files: read by TensorBoard's own reader, or a message that says what is missing."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

from precision_align.core.errors import LogUnreadable, Unavailable
from precision_align.training.reading import read_series


@pytest.fixture(name="events")
def write_events(tmp_path: Path) -> Path:
    pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what torch and protobuf import with it
        from torch.utils.tensorboard import SummaryWriter

        for start in (0, 5):  # a resumed run leaves two files
            with SummaryWriter(str(tmp_path / "logs")) as writer:
                for step in range(start, start + 5):
                    writer.add_scalar("train/loss", 3 - step / 10, step)
                    writer.add_scalar("train/grad_norm", 1.5, step)
                    writer.add_scalar("eval/loss", 4.0, step, new_style=True)
    return tmp_path / "logs"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scalars_of_a_folder_and_of_one_file(events: Path) -> None:
    series = read_series(events, "train/loss")
    assert series.steps == tuple(range(10))
    assert series.values == pytest.approx([3 - step / 10 for step in range(10)])
    assert read_series(sorted(events.iterdir())[0], "grad_norm").values == (1.5,) * 5
    assert read_series(events.parent, "train/loss").steps == series.steps


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scalars_stored_as_tensors(events: Path) -> None:
    assert read_series(events, "eval/loss").values == (4.0,) * 10


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_name_that_is_not_there_or_not_one(events: Path) -> None:
    with pytest.raises(LogUnreadable, match=r"'accuracy'; its scalars: .*train/loss"):
        read_series(events, "accuracy")
    with pytest.raises(LogUnreadable, match="several series"):
        read_series(events, "loss")


def test_several_runs_below_a_folder_are_not_guessed_among(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.out.tfevents.1.host").write_bytes(b"")
    with pytest.raises(LogUnreadable, match="name one of them"):
        read_series(tmp_path)


def test_without_tensorboard_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_accumulator", None)
    path = tmp_path / "events.out.tfevents.1.host"
    path.write_bytes(b"\x00\x01")
    with pytest.raises(Unavailable, match=r"tensorboard.*CSV"):
        read_series(path)
