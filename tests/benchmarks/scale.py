"""Cluster and object store: python tests/benchmarks/scale.py [--write].

Shares: one comparison of a small transformer's runs by 1 and by 2 Dask worker processes, the same eight shares, wall
time without the workers' start. Store: requests and bytes for listing, one tensor, and a whole comparison, over a real
S3-compatible server on loopback, against plain h5py on s3fs's own file objects. ``--write`` keeps the tables in
reports/benchmarks/scale.md.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # processes share two cores: threads of their own would only wait

sys.path.insert(0, str(Path(__file__).parent))
from diff import describe, format_table

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "reports" / "benchmarks" / "scale.md"
MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, dropout=0.0)
    layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(32, 128), layers, nn.Linear(128, 32))
"""


def record(folder: Path) -> None:
    import torch

    import precision_align as pa
    from precision_align.workflows.factories import load_factory

    (folder / "scale_model.py").write_text(MODEL, "utf-8")
    for name, factor in (("reference", 1.0), ("candidate", 1.001)):
        net = load_factory("scale_model:build", folder=folder)()
        net[1].layers[3].linear1.register_forward_hook(lambda module, args, out, factor=factor: out * factor)
        optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
        generator = torch.Generator().manual_seed(1)
        with pa.capture(net, folder / name, optimizer=optimizer) as recorder:
            for _ in range(4):
                with recorder.step():
                    net(torch.randn(4, 64, 32, generator=generator)).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()


def bench_shares(folder: Path) -> list[tuple[str, ...]]:
    """Rows: workers, seconds, speed-up, equal to the serial report."""
    import distributed

    from precision_align.cli.app import main

    os.chdir(folder)
    words = ["compare", "reference", "candidate", "--replay", "scale_model:build", "--json"]
    start = time.perf_counter()
    with _silent():
        main([*words, "-o", "serial.json"])
    serial = time.perf_counter() - start
    rows = [("this process alone, no shares", f"{serial:.1f}", "", "")]
    first = None
    for workers in (1, 2):
        environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))}
        with (
            distributed.LocalCluster(
                n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=50, env=environment
            ) as cluster,
            distributed.Client(cluster) as client,
        ):
            client.run(_warm)
            seconds = _time_shares(folder, client, workers)
        first = first or seconds
        with _silent():
            main([*words, "--merge", "-o", f"with{workers}.json"])
        equal = (folder / "serial.json").read_bytes() == (folder / f"with{workers}.json").read_bytes()
        rows.append(
            (
                f"{workers} workers" if workers > 1 else "1 worker",
                f"{seconds:.1f}",
                f"{first / seconds:.2f}",
                "yes" if equal else "NO",
            )
        )
    return rows


def _warm() -> None:
    import torch  # noqa: F401

    import precision_align.workflows.comparing  # noqa: F401


def _time_shares(folder: Path, client: Any, workers: int) -> float:
    from precision_align.workflows.clusters import _measure_remotely, _write
    from precision_align.workflows.sharding import Shard, find_folder

    words = (str(folder / "reference"), str(folder / "candidate"), None, None, None, "scale_model:build", str(folder))
    start = time.perf_counter()
    shards = [Shard(index, 8) for index in range(1, 9)]
    for name, content in client.gather(
        [client.submit(_measure_remotely, words, shard, pure=False) for shard in shards]
    ):
        _write(find_folder(folder / f"with{workers}.json") / name, content)
    return time.perf_counter() - start


@contextmanager
def _silent() -> Iterator[None]:
    with Path(os.devnull).open("w") as nothing:
        kept, sys.stdout = sys.stdout, nothing
        errors, sys.stderr = sys.stderr, nothing
        try:
            yield
        finally:
            sys.stdout, sys.stderr = kept, errors


def bench_store(folder: Path) -> list[tuple[str, ...]]:
    """Rows: what, requests and MB of ours, requests and MB of plain h5py."""
    import fsspec
    import h5py
    from moto.server import ThreadedMotoServer

    from precision_align.storage.opening import open_dump
    from precision_align.storage.remote import collector_paused
    from precision_align.workflows.comparing import compare

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    fsspec.config.conf["s3"] = {"endpoint_url": f"http://{host}:{port}", "key": "key", "secret": "secret"}
    files = fsspec.filesystem("s3")
    files.mkdir("bucket")
    files.put(f"{folder}/", "bucket/", recursive=True)
    counts = _count_requests()
    parts = sorted(name for name in files.find("bucket/candidate") if name.endswith(".h5"))

    def take() -> tuple[str, str]:
        found = str(counts["get_object"]), f"{counts['bytes'] / 1e6:.1f}"
        counts.clear()
        return found

    def read_plainly(name: str, wanted: int | None) -> None:
        with collector_paused(), files.open(name) as raw, h5py.File(raw) as file:
            rows, keys = file["index"][...], file["keys"][...]
            file["strings"][...], file["calls"][...]
            for row in rows if wanted is None else rows[wanted : wanted + 1] if wanted >= 0 else []:
                file["blob"][row["offset"] : row["offset"] + row["stored"]]
            del keys

    take()
    dump = open_dump("s3://bucket/candidate")
    number = len(dump.records)
    rows = [(f"open and list {number} tensors in {len(parts)} files", *take())]
    for part in parts:
        read_plainly(part, -1)
    rows[0] += take()
    record = dump.records[number // 8]
    dump.payload(record.key)
    rows.append(("then one tensor", *take()))
    read_plainly(parts[0], 40)
    rows[1] += take()
    compare("s3://bucket/reference", "s3://bucket/candidate")
    rows.append(("a whole comparison (plain: every tensor of both once)", *take()))
    for part in sorted(name for name in files.find("bucket") if name.endswith(".h5")):
        read_plainly(part, None)
    rows[2] += take()
    server.stop()
    return rows


def _count_requests() -> Counter[str]:
    import s3fs

    counts: Counter[str] = Counter()
    original = s3fs.S3FileSystem._call_s3

    async def counted(self: Any, method: str, *args: Any, **words: Any) -> Any:
        counts[method] += 1
        if "Range" in words:
            low, high = words["Range"].removeprefix("bytes=").split("-")
            counts["bytes"] += int(high) - int(low) + 1
        return await original(self, method, *args, **words)

    s3fs.S3FileSystem._call_s3 = counted
    return counts


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        record(folder)
        lines = ["# Cluster and object store", "", *(f"- {line}" for line in describe()), ""]
        header = ("who", "seconds", "speed-up", "report equal byte for byte")
        lines.append(format_table("One comparison in eight shares", header, bench_shares(folder)))
        header = ("what", "range requests", "MB", "plain h5py: requests", "its MB")
        lines.append(format_table("Over an S3-compatible server (moto, loopback)", header, bench_store(folder)))
        os.chdir(ROOT)
    text = "\n".join(lines)
    print(text)
    if "--write" in sys.argv:
        REPORT.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
