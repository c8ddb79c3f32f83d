"""How near the difference kernels come to reading memory: ``python tests/benchmarks/diff.py [--quick] [--write F]``.

Every figure is CPU time (other programs mostly make it wait), the least of several repeats in which the variants take
turns, beside a limit measured in the same run. Design: fp32 diff >= 10 % of stream read with <= 4 MB extra (NumPy),
>= 50 % (numba), >= 75 % (compiled); from two files in the page cache >= 75 % of reading their mappings and
<= 30 us a 64 KB pair; hash-equal pairs <= 10 us.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from precision_align.comparison.raw import RawComparer
from precision_align.core.dtypes import DTYPES
from precision_align.core.errors import Unavailable
from precision_align.core.keys import Key
from precision_align.core.records import RunInfo, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.numerics.kernels import NAMES, Kernel, choose_kernel
from precision_align.numerics.metrics import measure_words
from precision_align.numerics.spreads import spread_words
from precision_align.storage.base import Draft, Dump
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.mapping import release_pages
from precision_align.storage.opening import open_dump

MIB = 1 << 20
Row = tuple[str, ...]


def least(variants: dict[str, Callable[[], Any]], repeats: int, calls: int = 1) -> dict[str, float]:
    """CPU seconds a call of each variant, the least of ``repeats``; the variants take turns."""
    best = dict.fromkeys(variants, float("inf"))
    for _ in range(repeats):
        for name, run in variants.items():
            best[name] = min(best[name], clock(lambda run=run: [run() for _ in range(calls)]) / calls)
    return best


def clock(run: Callable[[], Any]) -> float:
    """CPU seconds of one call."""
    started = time.process_time()
    run()
    return time.process_time() - started


def make_pair(dtype: str, nbytes: int, seed: int = 0, noise: float = 1e-6) -> tuple[Any, Any]:
    """Two tensors that differ almost everywhere, by ``noise`` of each value."""
    rng = np.random.default_rng(seed)
    size = nbytes // DTYPES[dtype].itemsize
    expected = rng.standard_normal(size, dtype=np.float32)
    actual = expected * (1 + np.float32(noise) * rng.standard_normal(size, dtype=np.float32))
    if dtype == "float32":
        return actual, expected
    return tuple((item.view(np.uint32) >> 16).astype(np.uint16) for item in (actual, expected))


def read_through(*arrays: Any) -> None:
    """The fastest reduction that NumPy has: reads every byte once, as 64-bit integers."""
    for words in arrays:
        np.maximum.reduce(words.reshape(-1).view(np.int64))


def compare_naively(actual: Any, expected: Any, dtype: str) -> float:
    """What one writes first: whole arrays in float64."""
    row = DTYPES[dtype]
    if dtype == "bfloat16":
        actual, expected = ((item.astype(np.uint32) << 16).view(np.float32) for item in (actual, expected))
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    error = a - b
    size = np.abs(error)
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.nanmax(size / np.abs(b))
    # Not a @ b: BLAS would leave threads spinning, whose time the next variant would be charged with.
    cosine = (a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum())
    found = [size.max(), size.argmax(), relative, size.mean(), np.sqrt((error**2).mean()), cosine, error.mean()]
    return float(sum(found) + (a != b).mean() + (~finite).sum() + b.max() - b.min() + row.code)


def find_kernels() -> dict[str, Kernel]:
    """Those that this machine has."""
    found = {}
    for name in NAMES:
        try:
            found[name] = choose_kernel(name)
        except Unavailable:
            print(f"({name}: not here)", file=sys.stderr)
    return found


def extra_memory(run: Callable[[], Any]) -> float:
    """Peak MB allocated through Python and NumPy; in a new thread, since buffers are kept for each.

    The compiled kernel's own memory is not seen: less than 0.1 MB of stack.
    """
    tracemalloc.start()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / MIB


def bench_kernels(nbytes: int, repeats: int) -> list[Row]:
    """In memory, one thread."""
    rows = []
    for dtype in ("float32", "bfloat16"):
        actual, expected = make_pair(dtype, nbytes, noise=1e-6 if dtype == "float32" else 4e-3)
        row = DTYPES[dtype]
        variants: dict[str, Callable[[], Any]] = {"stream read": lambda a=actual, b=expected: read_through(a, b)}
        for name, kernel in find_kernels().items():
            variants[name] = lambda k=kernel, a=actual, b=expected, d=row: measure_words(a, b, d, threads=1, kernel=k)
        for name in ("compiled", "numpy"):
            if name in variants:
                k = choose_kernel(name)
                variants[f"{name}, spread alone"] = lambda k=k, a=actual, b=expected, d=row: spread_words(
                    a, b, d, kernel=k
                )
        variants["naive float64"] = lambda a=actual, b=expected, d=dtype: compare_naively(a, b, d)
        for run in variants.values():
            run()  # compiles, allocates
        best = least(variants, repeats)
        for name, seconds in best.items():
            share = best["stream read"] / seconds
            memory = "" if name == "stream read" else f"{extra_memory(variants[name]):.1f}"
            rows.append((dtype, name, f"{2 * nbytes / seconds / 1e9:.2f}", f"{100 * share:.1f} %", memory))
    return rows


def bench_pairs(repeats: int) -> list[Row]:
    """64 KB tensors in memory, and what a pair costs besides its bytes."""
    rows = []
    for label, nbytes in (("64 KB", 1 << 16), ("256 B", 256)):
        actual, expected = make_pair("float32", nbytes)
        row = DTYPES["float32"]
        variants: dict[str, Callable[[], Any]] = {
            name: lambda k=kernel, a=actual, b=expected, d=row: measure_words(a, b, d, kernel=k)
            for name, kernel in find_kernels().items()
        }
        variants["naive float64"] = lambda a=actual, b=expected: compare_naively(a, b, "float32")
        for run in variants.values():
            run()
        best = least(variants, repeats, 200)
        rows += [(label, name, f"{1e6 * seconds:.1f}") for name, seconds in best.items()]
    return rows


def write_dump(folder: Path, tensors: list[Any], name: str) -> Dump:
    """A dump of float32 tensors, one a layer."""
    info = RunInfo(name, "2026-01-01T00:00:00+00:00", 0, 1, "cpu", {}, {"payload": "full"})
    sink = Hdf5Sink(folder / name, info)
    for number, words in enumerate(tensors):
        key = Key(0, 0, 0, Source.MODULE, f"layer{number}", 0, Pass.FIRST, "Linear", 0, Phase.FORWARD, Role.OUTPUT, "")
        record = TensorRecord(key, "float32", words.shape, (1,), "strided", "cpu", False, number, Tier.FULL)
        sink.put(Draft(record, words))
    sink.end_step(0)
    sink.close(info)
    return open_dump(folder / name)


def compare_dumps(reference: Dump, candidate: Dump) -> int:
    """All pairs once; how many were not equal."""
    raw = RawComparer(reference, candidate)
    return sum(not raw.gap(ours, theirs).equal for ours, theirs in zip(candidate.records, reference.records))


def read_mappings(*dumps: Dump) -> None:
    """Every payload byte of the dumps, through their mappings."""
    for dump in dumps:
        for record in dump.records:
            words = dump.map_payload(record.key)
            assert words is not None
            read_through(words)
            release_pages(words)


def bench_files(folder: Path, scale: int, repeats: int) -> list[Row]:
    """Two dumps in the page cache, through the comparison's own code; hashes were verified by an earlier pass."""
    rows = []
    rng = np.random.default_rng(2)
    mixed = [int(2 ** rng.uniform(8, 23)) // 2 * 2 for _ in range(25 * scale)]  # values: 1 KB to 32 MB, log-uniform
    for name, label, sizes in (
        ("mixed", "1 KB to 32 MB", mixed),
        ("small", "64 KB each", [1 << 14] * (250 * scale)),
    ):
        pairs = [make_pair("float32", 4 * size, seed) for seed, size in enumerate(sizes)]
        dumps = [write_dump(folder, [pair[side] for pair in pairs], f"{name}{side}") for side in (0, 1)]
        del pairs
        again = open_dump(folder / f"{name}1")
        variants: dict[str, Callable[[], Any]] = {
            "read the mappings": lambda d=dumps: read_mappings(*d),
            "compare": lambda d=dumps: compare_dumps(d[1], d[0]),
            "compare, all hash-equal": lambda d=dumps, a=again: compare_dumps(d[1], a),
        }
        first = {what: clock(run) for what, run in variants.items()}
        best = least(variants, repeats)
        best["the first pass, which verifies hashes"] = first["read the mappings"]
        total = 8 * sum(sizes)
        for what, seconds in best.items():
            share = best["read the mappings"] / seconds
            row = (label, what, f"{total / seconds / 1e9:.2f}", f"{100 * share:.0f} %")
            rows.append((*row, f"{1e6 * seconds / len(sizes):.1f}"))
        for dump in (*dumps, again):
            dump.close()
    return rows


def bench_threads(nbytes: int, repeats: int) -> list[Row]:
    """Wall time, for once: what threads are there for. Means little while other programs run."""
    actual, expected = make_pair("float32", nbytes)
    row = DTYPES["float32"]
    rows = []
    for name, kernel in find_kernels().items():
        if not kernel.threaded:
            continue
        for threads in (1, len(os.sched_getaffinity(0))):
            walls = []
            for _ in range(repeats):
                started = time.perf_counter()
                measure_words(actual, expected, row, threads=threads, kernel=kernel)
                walls.append(time.perf_counter() - started)
            rows.append((name, str(threads), f"{2 * nbytes / min(walls) / 1e9:.2f}"))
    return rows


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
    raw = RawComparer(reference, candidate)
    found = [raw.gap(a, b).how for a, b in zip(candidate.records, reference.records)]
assert set(found) == {"payload"}, found
print(peak() - before)
"""


def bench_memory(folder: Path, sizes: list[int]) -> list[Row]:
    """Peak resident memory of a fresh process that compares one pair of tensors, above that of a process that only
    imported the same; mapped pages count."""
    rows = []
    for megabytes in sizes:
        pair = make_pair("float32", megabytes * MIB)
        for side in (0, 1):
            write_dump(folder, [pair[side]], f"one{megabytes}-{side}").close()
        command = [sys.executable, "-c", PEAK, *(str(folder / f"one{megabytes}-{side}") for side in (1, 0))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append((f"{megabytes} MB", f"{int(done.stdout) / 1024:.0f}"))
    return rows


def ask(*command: str) -> str:
    """What a program prints, or "" where there is none."""
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent).stdout.strip()
    except OSError:
        return ""


def describe() -> list[str]:
    """Machine, versions, commit, date."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    model = next((line.split(":")[1].strip() for line in cpu.split("\n") if line.startswith("model name")), "?")
    simd = "AVX-512" if "avx512f" in cpu else "AVX2" if "avx2" in cpu else platform.machine()
    packages = [f"{name} {version(name)}" for name in ("numpy", "h5py", "numba", "torch") if find_spec(name)]
    peer = os.environ.get("MSPROBE_PYTHON")
    if peer:
        code = "from importlib.metadata import version; print(version('mindstudio-probe'))"
        packages.append(f"mindstudio-probe {ask(peer, '-c', code) or '?'}")
    compiler = ask("cc", "--version").split("\n")[0] or "no C compiler"
    changed = " with uncommitted changes" if ask("git", "status", "--short") else ""
    load = f"{os.getloadavg()[0]:.1f}"
    return [
        f"Machine: {model}, {simd}, {len(os.sched_getaffinity(0))} cores, {platform.system()}, load {load}",
        f"Versions: Python {platform.python_version()}, {', '.join(packages)}, {compiler}",
        f"Commit: {ask('git', 'rev-parse', '--short', 'HEAD') or '?'}{changed}",
        f"Date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
    ]


def format_table(title: str, header: Row, rows: list[Row]) -> str:
    """A Markdown table with aligned columns."""
    widths = [max(len(line[column]) for line in [header, *rows]) for column in range(len(header))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in [header, *rows]
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join([f"## {title}", "", *lines, ""])


def bench(quick: bool) -> list[str]:
    """All tables."""
    nbytes, repeats, scale = (8 * MIB, 2, 1) if quick else (64 * MIB, 9, 2)
    tables = []
    title = f"In memory: {nbytes // MIB} MB tensors, all metrics, one thread"
    header: Row = ("dtype", "kernel", "GB/s", "of stream read", "extra MB")
    tables.append(format_table(title, header, bench_kernels(nbytes, repeats)))
    tables.append(format_table("One pair in memory", ("tensors", "kernel", "us a pair"), bench_pairs(repeats)))
    with tempfile.TemporaryDirectory() as folder:
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})  # one thread: two of them wait for each other in page faults
        rows = bench_files(Path(folder), scale, repeats)
        os.sched_setaffinity(0, cores)
        header = ("tensors", "what", "GB/s", "of mmap read", "us a pair")
        tables.append(format_table("Two dumps in the page cache, one thread", header, rows))
    with tempfile.TemporaryDirectory() as folder:
        rows = bench_memory(Path(folder), [64] if quick else [64, 256, 1024])
        tables.append(format_table("Peak memory of a comparison above its imports", ("each tensor", "MB"), rows))
    header = ("kernel", "threads", "GB/s")
    tables.append(format_table("Threads, wall time", header, bench_threads(nbytes, 2 * repeats)))
    return tables


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, a few seconds")
    parser.add_argument("--write", type=Path, help="a Markdown file to write the tables to")
    options = parser.parse_args()
    text = "\n".join(["# Difference kernels", "", *(f"- {line}" for line in describe()), "", *bench(options.quick)])
    print(text)
    if options.write is not None:
        options.write.parent.mkdir(parents=True, exist_ok=True)
        options.write.write_text(text + "\nMade by `python tests/benchmarks/diff.py --write ...`\n", encoding="utf-8")


if __name__ == "__main__":
    main()
