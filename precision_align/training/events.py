"""Scalars out of TensorBoard event files, by TensorBoard's own reader."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from precision_align.core.errors import LogUnreadable, Unavailable
from precision_align.training.series import Entry
from precision_align.training.tables import pick_name

PREFIX = "events.out.tfevents"


def find_event_folders(folder: Path) -> list[Path]:
    """The folders at or under this one that hold event files, by name."""
    return sorted({path.parent for path in folder.rglob(f"{PREFIX}*") if path.is_file()})


def read_events(path: Path, name: str) -> list[Entry]:
    """Every value of the scalar ``name`` in an event file, or in all event files of one folder (a resumed run).

    Raises LogUnreadable (no such scalar; the message lists those there are), Unavailable where tensorboard is not
    installed.
    """
    reader = _load_reader(path)
    scalars = list(reader.Tags()["scalars"])
    tensors = list(reader.Tags()["tensors"])
    found = pick_name(path, [*scalars, *tensors], name)
    if found is None:
        known = ", ".join([*scalars, *tensors][:20]) or "none"
        raise LogUnreadable(f"{path} has no scalar {name!r}; its scalars: {known}")
    if found in scalars:
        values = [(event.step, float(event.value)) for event in reader.Scalars(found)]
    else:
        values = [(event.step, _read_tensor(event.tensor_proto, path, found)) for event in reader.Tensors(found)]
    return [Entry(int(step), value, f"event {index}") for index, (step, value) in enumerate(values)]


def _load_reader(path: Path) -> Any:
    try:
        module = import_module("tensorboard.backend.event_processing.event_accumulator")
    except ImportError:
        raise Unavailable(
            f"{path} is a TensorBoard event file, which needs tensorboard: pip install "
            "'precision-align[tensorboard]'. Or export the series as CSV (Step, Value) and give that"
        ) from None
    reader = module.EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    try:
        reader.Reload()
    except Exception as error:  # protobuf's and the file system's, whatever their classes
        raise LogUnreadable(f"{path} cannot be read as TensorBoard events: {error}") from error
    return reader


def _read_tensor(proto: Any, path: Path, name: str) -> float:
    """The one number of a tensor, as TensorFlow 2 writes scalars."""
    array = import_module("tensorboard.util.tensor_util").make_ndarray(proto)
    if array.size != 1 or array.dtype.kind not in "fiu":
        raise LogUnreadable(f"{path}: {name!r} is a tensor of shape {array.shape}, not a scalar")
    return float(array.reshape(()))
