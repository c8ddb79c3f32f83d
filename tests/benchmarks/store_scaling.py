"""Compare and report at 10,000, 30,000 and 100,000 records: microseconds a record must not grow with their number.

Two shapes: one step of a deep model, and many steps of a small one. Every tenth layer of the candidate is off, so that
rows of every kind come out.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from diff import format_table
from store_commands import measure_command

from precision_align.core.keys import Key
from precision_align.core.records import Call, RunInfo, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.storage.base import Draft
from precision_align.storage.hdf5 import Hdf5Sink

Row = tuple[str, ...]
SIZE = 64  # elements of each tensor
LEAVES = ("ln1", "qkv", "proj", "fc1", "act", "fc2")


class _Run:
    """Writes one side: the calls and tensors that a capture of modules and gradients would have seen."""

    def __init__(self, place: Path, layers: int, wrong: bool) -> None:
        scopes = [f"blocks.{number}" for number in range(layers)]
        self._modules = {"": "model.Model"} | dict.fromkeys(scopes, "model.Block")
        self._modules |= {f"{scope}.{leaf}": "model.Layer" for scope in scopes for leaf in LEAVES}
        self._info = RunInfo("scaling", "2026-11-30T00:00:00+00:00", 0, 1, "cpu", modules=self._modules)
        self._sink = Hdf5Sink(place, self._info)
        self._layers, self._wrong = layers, wrong
        self._generator = np.random.default_rng(0)
        self._clock = 0
        self._step = 0

    def write(self, steps: int) -> None:
        """Everything, then close."""
        for self._step in range(steps):
            self._clock = 0
            self._write_parameters()
            self._write_step()
            self._sink.end_step(self._step)
        self._sink.close(self._info)

    def _write_parameters(self) -> None:
        for layer in range(self._layers):
            for leaf in LEAVES:
                words = np.random.default_rng(layer).standard_normal(SIZE, dtype=np.float32)
                place = (Source.PARAMETERS, f"blocks.{layer}.{leaf}", Phase.FORWARD, Role.PARAMETER, "weight")
                self._put(words, *place, call=0)

    def _write_step(self) -> None:
        value = self._generator.standard_normal(SIZE, dtype=np.float32)
        root = self._tick()
        self._put(value, Source.MODULE, "", Phase.FORWARD, Role.INPUT, "args.0", call=0)
        identity = 0
        for layer in range(self._layers):
            scope, block, identity = f"blocks.{layer}", identity + 1, identity + 1
            entered = self._tick()
            self._put(value, Source.MODULE, scope, Phase.FORWARD, Role.INPUT, "args.0", call=0)
            for leaf in LEAVES:
                identity += 1
                value = self._write_leaf(f"{scope}.{leaf}", value, layer, identity, block)
            self._put(value, Source.MODULE, scope, Phase.FORWARD, Role.OUTPUT, "", call=0)
            self._put_call(scope, block, 0, entered, leaf=False)
        self._put(value, Source.MODULE, "", Phase.FORWARD, Role.OUTPUT, "", call=0)
        self._put_call("", 0, -1, root, leaf=False)
        for layer in reversed(range(self._layers)):
            for leaf in reversed(LEAVES):
                words = self._generator.standard_normal(SIZE, dtype=np.float32)
                place = (Source.MODULE, f"blocks.{layer}.{leaf}", Phase.BACKWARD, Role.GRADIENT)
                self._put(words, *place, "output", call=0)
                self._put(words + np.float32(1), *place, "parameter.weight", call=0)

    def _write_leaf(self, scope: str, value: Any, layer: int, identity: int, parent: int) -> Any:
        entered = self._tick()
        self._put(value, Source.MODULE, scope, Phase.FORWARD, Role.INPUT, "args.0", call=0)
        value = self._generator.standard_normal(SIZE, dtype=np.float32)
        if self._wrong and layer % 10 == 3 and scope.endswith("act"):
            value = value * np.float32(1.01)
        self._put(value, Source.MODULE, scope, Phase.FORWARD, Role.OUTPUT, "", call=0)
        self._put_call(scope, identity, parent, entered, leaf=True)
        return value

    def _tick(self) -> int:
        self._clock += 1
        return self._clock

    def _put(self, words: Any, source: Source, scope: str, phase: Phase, role: Role, path: str, call: int) -> None:
        key = Key(self._step, 0, 0, source, scope, call, Pass.FIRST, "", 0, phase, role, path)
        record = TensorRecord(key, "float32", (SIZE,), (1,), "strided", "cpu", True, self._tick(), Tier.FULL)
        self._sink.put(Draft(record, words))

    def _put_call(self, scope: str, identity: int, parent: int, entered: int, *, leaf: bool) -> None:
        tensor = {"kind": "tensor", "path": "args.0"}
        arguments = {
            "kind": "dict",
            "class": "builtins.dict",
            "keys": [{"kind": "scalar", "value": "args"}],
            "items": [{"kind": "tuple", "class": "builtins.tuple", "items": [tensor]}],
        }
        kind = self._modules[scope]
        call = Call(
            self._step, 0, 0, scope, 0, Pass.FIRST, kind, identity, parent, entered, self._tick(), leaf, True, True,
            arguments, {"kind": "tensor", "path": ""}, source="model.py:12",
        )  # fmt: skip
        self._sink.put_call(call)


def count_records(place: Path) -> int:
    """How many tensors a dump has."""
    from precision_align.storage.opening import open_own

    with open_own(place) as dump:
        return len(dump.records)


def bench_records(folder: Path, counts: list[int]) -> list[Row]:
    """The whole command, with a report in each format, by number of records."""
    rows = []
    for shape in ("one step", "many steps"):
        for wanted in counts:
            layers = max(wanted // 33, 1) if shape == "one step" else 15
            places = [folder / "scaling-reference", folder / "scaling-candidate"]
            for place, wrong in zip(places, (False, True)):
                shutil.rmtree(place, ignore_errors=True)
                _Run(place, layers, wrong).write(1 if shape == "one step" else max(wanted // 500, 1))
            count = count_records(places[1])
            command = [sys.executable, "-m", "precision_align", "compare", *map(str, places)]
            used = []
            for suffix in ("", ".json", ".html"):
                output = ["-o", str(folder / f"report{suffix}")] if suffix else []
                cpu, _, memory = measure_command([*command, *output])
                used.append(f"{cpu:.2f} s, {cpu / count * 1e6:.0f} us, {memory:.0f} MB")
                if suffix == ".json":
                    assert len(json.loads((folder / "report.json").read_text())["records"]) > count // 2
            rows.append((shape, f"{count:,}", *used))
            for suffix in (".json", ".html"):
                (folder / f"report{suffix}").unlink()
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    return rows


def bench(mode: str, folder: Path) -> Iterator[str]:
    """The table."""
    counts = {"quick": [2_000], "full": [10_000, 30_000, 100_000]}.get(mode, [10_000, 30_000])
    head = ("recorded as", "records", "compare", "and .json", "and .html")
    yield format_table("Compare and report: CPU, a record, peak memory", head, bench_records(folder, counts))
