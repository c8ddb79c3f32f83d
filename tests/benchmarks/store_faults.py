"""What the store survives: kill -9, flipped bits, a full disk at every stage."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from diff import format_table

from precision_align.core.errors import PrecisionAlignError
from precision_align.core.keys import Key
from precision_align.core.records import RunInfo, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.storage import blobs, parts
from precision_align.storage.base import Draft
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.opening import open_dump

Row = tuple[str, ...]
INFO = RunInfo("faults", "2026-11-29T00:00:00+00:00", 0, 1, "cpu")
TENSORS = 20


def put_step(sink: Any, step: int, nbytes: int = 256 << 10) -> None:
    """20 tensors whose values tell which they are."""
    for number in range(TENSORS):
        words = np.full(nbytes // 4, step * TENSORS + number, np.float32)
        key = Key(step, 0, 0, Source.MODULE, "layer", number, Pass.FIRST, "", 0, Phase.FORWARD, Role.OUTPUT, "")
        sink.put(
            Draft(TensorRecord(key, "float32", words.shape, (1,), "strided", "cpu", False, number, Tier.FULL), words)
        )
    sink.end_step(step)


def write_for_ever(folder: str) -> None:
    """Steps until somebody kills us; each line says which step is safe."""
    sink = Hdf5Sink(folder, INFO)
    for step in range(10**6):
        put_step(sink, step)
        sys.stdout.write(f"{step - 1}\n")  # end_step(n) acknowledges all before n
        sys.stdout.flush()


def bench_kills(folder: Path, trials: int) -> Row:
    """Kill the writer at a random moment; look for every acknowledged step, whole."""
    generator = np.random.default_rng(0)
    lost = broken = acknowledged = 0
    for trial in range(trials):
        place = folder / f"kill-{trial}"
        command = [sys.executable, __file__, str(place)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(float(generator.uniform(0.05, 0.6)))
            process.send_signal(signal.SIGKILL)
            lines = process.stdout.read().split()
        safe = int(lines[-1]) if lines else -1
        acknowledged += safe + 1
        found, bad = read_whole_steps(place)
        lost += sum(step not in found for step in range(safe + 1))
        broken += bad
    return (
        "kill -9",
        str(trials),
        f"{acknowledged - lost} of {acknowledged} acknowledged steps whole",
        f"{broken} broken visible",
    )


def read_whole_steps(place: Path) -> tuple[set[int], int]:
    """Steps whose 20 tensors have their values, and how many visible steps do not."""
    whole, broken = set(), 0
    try:
        dump = open_dump(place)
    except PrecisionAlignError:
        return whole, broken
    with dump:
        counts: dict[int, int] = {}
        for record in dump.records:
            value = record.key.step * TENSORS + record.key.call
            counts[record.key.step] = counts.get(record.key.step, 0) + bool((dump.payload(record.key) == value).all())
        for step, count in counts.items():
            if count == TENSORS:
                whole.add(step)
            else:
                broken += 1
    return whole, broken


def bench_flips(folder: Path, trials: int) -> Row:
    """One bit of a file at a time: harmless, detected, or silently wrong."""
    sink = Hdf5Sink(folder / "flips", INFO)
    put_step(sink, 0, 4096)
    sink.close(INFO)
    (original,) = (folder / "flips").rglob("*.h5")
    content, broken = original.read_bytes(), folder / original.name
    generator = np.random.default_rng(0)
    outcomes = {"harmless": 0, "detected": 0, "silent": 0}
    for _ in range(trials):
        damaged = bytearray(content)
        damaged[int(generator.integers(len(content)))] ^= 1 << int(generator.integers(8))
        broken.write_bytes(damaged)
        try:
            whole, _ = read_whole_file(broken)
            outcomes["harmless" if whole == {0} else "silent"] += 1
        except PrecisionAlignError:
            outcomes["detected"] += 1
    return ("one flipped bit", str(trials), ", ".join(f"{count} {name}" for name, count in outcomes.items()), "")


def read_whole_file(path: Path) -> tuple[set[int], int]:
    """As :func:`read_whole_steps`, but damage is raised."""
    open_dump(path).close()
    return read_whole_steps(path)


def bench_full_disk(folder: Path, stages: int) -> Row:
    """The disk is full from the n-th look at it on, for every n: earlier steps stay, the training goes on."""
    intact = told = 0
    real = blobs.require_room
    for stage in range(stages):
        looks = [0]

        def look(place: Path, nbytes: int, reserve: int = 0, looks: list[int] = looks, stage: int = stage) -> None:
            looks[0] += 1
            if looks[0] > stage:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(place, nbytes, reserve)

        blobs.require_room = parts.require_room = look
        try:
            sink = Hdf5Sink(folder / f"full-{stage}", INFO)
            for step in range(3):
                put_step(sink, step)
            sink.close(INFO)
        finally:
            blobs.require_room = parts.require_room = real
        dump = open_dump(folder / f"full-{stage}")
        whole = {record.key.step for record in dump.records if record.tier is Tier.FULL}
        wrong = [
            record
            for record in dump.records
            if record.tier is Tier.FULL
            and not (dump.payload(record.key) == record.key.step * TENSORS + record.key.call).all()
        ]
        intact += not wrong
        told += len(whole) == 3 or any("full" in note or "lost" in note for note in dump.notes)
    return ("disk full from the n-th write on", str(stages), f"{intact} intact", f"{told} told in the dump's notes")


def bench(mode: str, folder: Path) -> Iterator[str]:
    """The table."""
    quick = mode == "quick"
    rows = [
        bench_kills(folder, 3 if quick else 50),
        bench_flips(folder, 60 if quick else 300),
        bench_full_disk(folder, 8 if quick else 24),
    ]
    yield format_table("Faults", ("what", "trials", "found", ""), rows)


if __name__ == "__main__":
    write_for_ever(sys.argv[1])
