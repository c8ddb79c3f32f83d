"""What the store costs and survives: ``python tests/benchmarks/store.py [--quick | --full] [--only ...] [--write F]``.

Figures are CPU time (other programs mostly make it wait), the least of several repeats in which the variants take
turns, beside a limit measured in the same run. Goals: dump with statistics and hash >= 0.55 of a raw write; <= 15 us a
small tensor; open and list 100,000 tensors <= 20 ms; a sketch dump >= 1,000 times smaller for tensors of 4 MB and more,
its error within 10 % at the most buckets; step times and faults: see ``store_runs.py`` and ``store_faults.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import store_faults
import store_runs
import store_scaling
import torch
from diff import describe, format_table, least
from store_armed import bench_armed

from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.keys import Key
from precision_align.core.records import RunInfo, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.numerics.sketches import fold, relative_distance, sketch
from precision_align.numerics.statistics import summarize
from precision_align.storage.base import Draft
from precision_align.storage.hashing import digest_words
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.opening import open_own
from precision_align.storage.settings import Settings

INFO = RunInfo("benchmark", "2026-11-29T00:00:00+00:00", 0, 1, "cpu")
FLOAT32 = dtype_of("float32")
Row = tuple[str, ...]


def make_drafts(sizes: list[int], tier: Tier = Tier.FULL) -> list[Draft]:
    """float32 tensors of so many bytes each, with names as long as those of a real model."""
    generator = np.random.default_rng(0)
    drafts = []
    for number, nbytes in enumerate(sizes):
        words = generator.standard_normal(max(nbytes // 4, 1), dtype=np.float32)
        scope = f"model.layers.{number % 61}.self_attn.o_proj"
        key = Key(0, 0, 0, Source.MODULE, scope, number, Pass.FIRST, "", 0, Phase.FORWARD, Role.OUTPUT, "")
        drafts.append(
            Draft(TensorRecord(key, "float32", words.shape, (1,), "strided", "cpu", False, number, tier), words)
        )
    return drafts


def mixed_sizes(scale: int) -> list[int]:
    """1020 tensors of 64 B to 8 MB and 487 MB in all, at scale 1."""
    sizes = [64] * 300 + [4096] * 300 + [65536] * 300 + [1 << 20] * 70 + [8 << 20] * 50
    return [size for number, size in enumerate(sizes) if number % scale == 0]


def write_raw(folder: Path, drafts: list[Draft]) -> None:
    """The limit: the same bytes into one new file."""
    file = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY)
    for draft in drafts:
        os.write(file, draft.words)  # type: ignore[arg-type]
    os.close(file)


def write_ours(folder: Path, drafts: list[Draft], **settings: Any) -> None:
    """A dump with everything: statistics, hash, index."""
    sink = Hdf5Sink(folder / "ours", INFO, settings=Settings(**settings))
    for draft in drafts:
        sink.put(draft)
    sink.end_step(0)
    sink.close(INFO)


def write_h5py(folder: Path, drafts: list[Draft]) -> None:
    """A dataset a tensor with statistics as attributes: what one writes first."""
    with h5py.File(folder / "plain.h5", "w") as file:
        for number, draft in enumerate(drafts):
            words: Any = draft.words
            dataset = file.create_dataset(str(number), data=words)
            for name in ("min", "max", "mean"):
                dataset.attrs[name] = getattr(words, name)()
            dataset.attrs["norm"] = np.linalg.norm(words)


def write_torch(folder: Path, drafts: list[Draft]) -> None:
    """A file a tensor and statistics in JSON, as msprobe has it."""
    (folder / "files").mkdir()
    listing = []
    for number, draft in enumerate(drafts):
        tensor = torch.from_numpy(draft.words)
        torch.save(tensor, folder / "files" / f"{number}.pt")
        listing.append([float(found) for found in (tensor.max(), tensor.min(), tensor.mean(), tensor.norm())])
    (folder / "files" / "dump.json").write_text(json.dumps(listing))


def freshly(folder: Path, run: Callable[..., None], drafts: list[Draft], **options: Any) -> Callable[[], None]:
    """Into an empty folder each time; emptying it costs every variant its own."""

    def once() -> None:
        place = folder / "fresh"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        run(place, drafts, **options)

    return once


def bench_write(folder: Path, scale: int, repeats: int) -> list[Row]:
    """Throughput of mixed sizes and of large tensors, beside a raw write."""
    rows = []
    for label, sizes in (("mixed 64 B to 8 MB", mixed_sizes(scale)), ("16 MB each", [16 << 20] * max(16 // scale, 3))):
        drafts = make_drafts(sizes)
        total = sum(draft.words.nbytes for draft in drafts if draft.words is not None)
        found = least(
            {
                "raw write": freshly(folder, write_raw, drafts),
                "hash and statistics alone": lambda drafts=drafts: [  # type: ignore[misc]
                    (digest_words(draft.words), summarize(draft.words, FLOAT32)) for draft in drafts
                ],
                "dump": freshly(folder, write_ours, drafts),
                "h5py, a dataset each": freshly(folder, write_h5py, drafts),
                "torch.save each + JSON": freshly(folder, write_torch, drafts),
            },
            repeats,
        )
        raw = found["raw write"]
        for name, seconds in found.items():
            rows.append((label, name, f"{total / seconds / 1e9:.2f}", f"{raw / seconds:.2f}"))
    return rows


def bench_small(folder: Path, count: int, repeats: int) -> list[Row]:
    """Microseconds a small tensor."""
    rows = []
    for nbytes in (64, 1024, 4096, 65536):
        drafts = make_drafts([nbytes] * (count if nbytes < 65536 else count // 8))
        found = least(
            {
                "raw": freshly(folder, write_raw, drafts),
                "ours": freshly(folder, write_ours, drafts),
            },
            repeats,
        )
        rows.append((f"{nbytes} B", *(f"{found[name] / len(drafts) * 1e6:.1f}" for name in ("raw", "ours"))))
    return rows


def bench_read(folder: Path, count: int, repeats: int) -> list[Row]:
    """Open and list, random look-ups and payloads."""
    place = folder / "read"
    place.mkdir()
    write_ours(place, make_drafts([1024] * count))

    def list_all() -> None:
        with open_own(place / "ours") as dump:
            assert len(dump.key_texts()) == len(dump.records) == count

    found = least({"open": lambda: open_own(place / "ours").close(), "open and list": list_all}, repeats)
    rows = [(f"{name} {count:,} tensors", f"{seconds * 1e3:.1f} ms") for name, seconds in found.items()]
    with open_own(place / "ours") as dump:
        texts = dump.key_texts()
        picked = [texts[number] for number in np.random.default_rng(1).integers(0, count, 3000)]
        dump.find(picked[0])
        for name, act in (("record", dump.find), ("payload", lambda text: dump.payload(Key.parse(text)))):
            started = time.process_time()
            for text in picked:
                act(text)
            rows.append((f"{name}, at random", f"{(time.process_time() - started) / len(picked) * 1e6:.1f} us"))
    return rows


# In a process of its own: CPU of reading everything (each hash verified), and what stayed resident above the imports.
_READ_ALL = """
import sys, time
from precision_align.storage.opening import open_dump
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
with open_dump(sys.argv[1]) as dump:
    before, started, peak = resident(), time.process_time(), 0
    for record in dump.records:
        dump.map_payload(record.key)
        peak = max(peak, resident())
    print(time.process_time() - started, peak - before)
"""


def bench_growth(folder: Path, sizes: list[int]) -> list[Row]:
    """Reading dumps of so many MB."""
    for megabytes in sizes:
        sink = Hdf5Sink(folder / f"growth{megabytes}", INFO)
        for number in range(megabytes // 16):
            (draft,) = make_drafts([16 << 20])
            draft.words[:2] = number  # type: ignore[index]
            key = replace(draft.record.key, call=number)
            sink.put(replace(draft, record=replace(draft.record, key=key, order=number)))
        sink.close(INFO)
    found: dict[int, list[tuple[float, ...]]] = {megabytes: [] for megabytes in sizes}
    for _ in range(5):
        for megabytes in sizes:
            command = [sys.executable, "-c", _READ_ALL, str(folder / f"growth{megabytes}")]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found[megabytes].append(tuple(map(float, text.split())))
    rows = []
    for megabytes, usages in found.items():
        seconds, resident = min(one[0] for one in usages), max(one[1] for one in usages)
        rows.append((f"{megabytes} MB", f"{seconds * 1e3 / (megabytes / 1024):.0f}", f"{resident / 1e6:.0f} MB"))
        shutil.rmtree(folder / f"growth{megabytes}", ignore_errors=True)
    return rows


def make_changes(x: Array, generator: np.random.Generator) -> dict[str, Array]:
    """Dense and structured differences of a matrix."""
    column, element = x.copy(), x.copy()
    column[:, 11] += 0.5
    element[5, 7] += 50
    return {
        "dense noise 1e-6": x * (1 + 1e-6 * generator.standard_normal(x.shape)),
        "dense noise 1e-3": x + 1e-3 * generator.standard_normal(x.shape),
        "bias": x + 1e-3,
        "scale": x * 1.001,
        "one column": column,
        "one element": element,
        "rows permuted": x[generator.permutation(len(x))],
    }


def bench_sketch(folder: Path, scale: int) -> tuple[list[Row], list[Row]]:
    """How much smaller a sketch dump is, and how far its distances are from the true ones, by buckets."""
    rows = []
    for nbytes in (1 << 20, 4 << 20, 16 << 20):
        drafts = make_drafts([nbytes] * max(32 // scale, 4), Tier.SKETCH)
        shutil.rmtree(folder / "ours", ignore_errors=True)
        write_ours(folder, drafts)
        full = nbytes * len(drafts)
        kept = sum(path.stat().st_size for path in (folder / "ours").rglob("*.h5"))
        rows.append((f"{nbytes >> 20} MB", f"{full / kept:.0f}"))
    generator = np.random.default_rng(0)
    x = generator.standard_normal((4096, 1024))
    whole = sketch(x, dtype_of("float64"))
    errors = []
    for name, y in make_changes(x, generator).items():
        truth = float(np.linalg.norm(x - y) / np.linalg.norm(x))
        other = sketch(y, dtype_of("float64"))
        ratios = [relative_distance(fold(whole, k), fold(other, k)) / truth for k in (127, 254, 508, 1016)]
        errors.append((name, f"{truth:.2e}", *(f"{100 * (ratio - 1):+.1f} %" for ratio in ratios)))
    return rows, errors


def tabulate_write(mode: str, folder: Path) -> Iterator[str]:
    """Throughput."""
    scale, repeats = (10, 2) if mode == "quick" else (2, 3)
    yield format_table("Write", ("tensors", "what", "GB/s", "of raw"), bench_write(folder, scale, repeats))


def tabulate_small(mode: str, folder: Path) -> Iterator[str]:
    """Small tensors."""
    count, repeats = (1000, 2) if mode == "quick" else (5000, 5)
    yield format_table("Small tensors, us each", ("size", "raw", "dump"), bench_small(folder, count, repeats))


def tabulate_read(mode: str, folder: Path) -> Iterator[str]:
    """Look-ups."""
    count, repeats = (10_000, 3) if mode == "quick" else (100_000, 4)
    yield format_table("Read", ("what", "CPU"), bench_read(folder, count, repeats))


def tabulate_growth(mode: str, folder: Path) -> Iterator[str]:
    """Linear growth."""
    sizes = {"quick": [64], "full": [256, 1024, 4096]}.get(mode, [256, 1024])
    title = "Growth: read all, hashes verified"
    yield format_table(title, ("dump", "ms a GB", "resident"), bench_growth(folder, sizes))


def tabulate_sketch(mode: str, folder: Path) -> Iterator[str]:
    """Sketches."""
    sketch_rows, error_rows = bench_sketch(folder, 8 if mode == "quick" else 1)
    yield format_table("Sketch dump", ("tensors of", "times smaller than full"), sketch_rows)
    yield format_table("Sketch distance", ("difference", "true", "127", "254", "508", "1016 buckets"), error_rows)


def tabulate_armed(mode: str, folder: Path) -> Iterator[str]:
    """A long run."""
    rows = bench_armed(folder, 200 if mode == "quick" else 20_000)
    yield format_table("Armed with a trigger and a ring of 4", ("steps", "resident", "handles", "disk"), rows)


TABLES: dict[str, Callable[[str, Path], Iterator[str]]] = {
    "write": tabulate_write,
    "small": tabulate_small,
    "read": tabulate_read,
    "growth": tabulate_growth,
    "sketch": tabulate_sketch,
    "faults": store_faults.bench,
    "armed": tabulate_armed,
    "steps": store_runs.tabulate_steps,
    "compare": store_runs.tabulate_compare,
    "records": store_scaling.bench,
}


def main() -> None:
    """Print the tables, and write them where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--quick", action="store_const", dest="mode", const="quick", help="under half a minute, for CI")
    group.add_argument("--full", action="store_const", dest="mode", const="full", help="growth up to 4 GB, all trials")
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES), metavar="TABLE", help="some of them")
    parser.add_argument("--write", type=Path, metavar="FILE", help="keep the tables")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="store-") as folder:
        tables = ["\n".join(["# Store benchmark", "", *(f"- {line}" for line in describe()), ""])]
        sys.stdout.write(tables[0] + "\n")
        for name in arguments.only:
            started = time.perf_counter()
            for table in TABLES[name](arguments.mode or "normal", Path(folder)):
                tables.append(table)
                sys.stdout.write(table + "\n")
                sys.stdout.flush()
            sys.stderr.write(f"({name}: {time.perf_counter() - started:.0f} s)\n")
    text = "\n".join(tables)
    if arguments.write is not None:
        arguments.write.parent.mkdir(parents=True, exist_ok=True)
        arguments.write.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
