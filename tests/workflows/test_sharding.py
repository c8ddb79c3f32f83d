"""A comparison in shares, on one machine or a cluster, gives the bytes of the one that is not shared out."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from precision_align.cli.app import main
from precision_align.comparison.engine import share_out
from precision_align.storage.opening import open_dump

torch = pytest.importorskip("torch")
distributed = pytest.importorskip("distributed")

MODEL = """
import os
import time

import torch
from torch import nn


class Scaled(nn.Linear):
    def forward(self, x):
        time.sleep(float(os.environ.get("PAUSE", "0")))
        return super().forward(x) * 1.5


def build():
    torch.manual_seed(0)
    return nn.Sequential(*[Scaled(6, 6) for _ in range(6)])
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two steps; the candidates' fourth layer is 1 % off: that of "ranks" on one of its two ranks."""
    import precision_align as pa
    from precision_align.workflows.factories import load_factory

    folder = tmp_path_factory.mktemp("shards")
    (folder / "sharded_model.py").write_text(MODEL, encoding="utf-8")
    for name, rank, factor in (("reference", 0, 1.0), ("candidate", 0, 1.01), ("ranks", 0, 1.0), ("ranks", 1, 1.01)):
        net = load_factory("sharded_model:build", folder=folder)()
        net[3].register_forward_hook(lambda module, args, out, factor=factor: out * factor)
        optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
        generator = torch.Generator().manual_seed(1)
        with pa.capture(net, folder / name, optimizer=optimizer, rank=rank) as recorder:
            for _ in range(2):
                with recorder.step():
                    net(torch.randn(3, 6, generator=generator, requires_grad=True)).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
    return folder


@pytest.fixture
def inside(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, without what another test left."""
    monkeypatch.chdir(runs)
    monkeypatch.syspath_prepend(str(runs))
    yield runs
    for path in runs.glob("*.parts/*"):
        path.unlink()


def compare(*words: str) -> int:
    return main(["compare", "reference", "candidate", "--replay", "sharded_model:build", *words])


@pytest.fixture(scope="module")
def whole(runs: Path) -> bytes:
    with contextlib.chdir(runs):
        assert compare("-o", "whole.json") == 1
    return (runs / "whole.json").read_bytes()


@pytest.mark.parametrize("count", [2, 5])
def test_shares_put_together_equal_the_whole_byte_for_byte(inside: Path, whole: bytes, count: int) -> None:
    for index in range(1, count + 1):
        assert compare("--shard", f"{index}/{count}", "-o", "shared.json") == 0
    parts = {path.name: path.read_bytes() for path in (inside / "shared.json.parts").iterdir()}
    assert len(parts) == count
    assert all(content.count(b"\n") > 2 for content in parts.values()), "each share has work of its own"
    assert compare("--merge", "-o", "shared.json") == 1
    assert (inside / "shared.json").read_bytes() == whole


def test_the_last_step_measures_nothing_again(inside: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in (1, 2):
        compare("--shard", f"{index}/2", "-o", "shared.json")
    called: list[str] = []
    from precision_align.replay import judging, updates

    for owner, name in ((judging.Replayer, "judge_forward"), (judging.Replayer, "judge_backward")):
        monkeypatch.setattr(owner, name, lambda *a, name=name: called.append(name))
    monkeypatch.setattr(updates, "judge_update", lambda *a: called.append("judge_update"))
    compare("--merge", "-o", "shared.json")
    assert called == []
    assert (inside / "shared.json").read_bytes() == whole


def test_a_share_done_twice_is_the_same_and_a_finished_one_is_kept(inside: Path) -> None:
    compare("--shard", "1/2", "-o", "shared.json")
    part = inside / "shared.json.parts" / "1-of-2.jsonl"
    first, when = part.read_bytes(), part.stat().st_mtime_ns
    compare("--shard", "1/2", "-o", "shared.json")
    assert part.stat().st_mtime_ns == when
    part.unlink()
    compare("--shard", "1/2", "-o", "shared.json")
    assert part.read_bytes() == first


def test_what_is_missing_damaged_or_foreign_is_named(inside: Path, capsys: Any) -> None:
    assert compare("--merge", "-o", "shared.json") == 2
    assert "--shard 1/N" in capsys.readouterr().err
    compare("--shard", "1/3", "-o", "shared.json")
    assert compare("--merge", "-o", "shared.json") == 2
    assert "lacks the parts of --shard 2/3, 3/3" in capsys.readouterr().err
    parts = inside / "shared.json.parts"
    for index in (2, 3):
        compare("--shard", f"{index}/3", "-o", "shared.json")
    (parts / "2-of-3.jsonl").write_text('{"comparison": "another 2/3"}\n', "ascii")
    assert compare("--merge", "-o", "shared.json") == 3
    assert "2-of-3.jsonl is of another comparison" in capsys.readouterr().err
    compare("--shard", "1/2", "-o", "shared.json")
    assert compare("--merge", "-o", "shared.json") == 2
    assert "parts of 2 and of 3" in capsys.readouterr().err
    assert compare("--shard", "4/3", "-o", "shared.json") == 2
    assert compare("--shard", "1/3") == 2


def test_other_code_makes_another_comparison(inside: Path, capsys: Any) -> None:
    for index in (1, 2):
        compare("--shard", f"{index}/2", "-o", "shared.json")
    source = inside / "sharded_model.py"
    text = source.read_text("utf-8")
    try:
        source.write_text(text.replace("1.5", "1.25"), "utf-8")
        assert compare("--merge", "-o", "shared.json") == 3
    finally:
        source.write_text(text, "utf-8")
    assert "another comparison" in capsys.readouterr().err


def test_shares_are_contiguous_complete_and_of_like_size(runs: Path) -> None:
    from precision_align.alignment.side import Side

    nodes = Side(open_dump(runs / "candidate")).nodes
    for count in (1, 2, 3, 7, 100):
        shares = share_out(nodes, count)
        assert shares == sorted(shares)
        assert set(shares) <= set(range(count))
        if count <= 3:
            assert all(len(nodes) / count * 0.5 < shares.count(share) for share in range(count))


@pytest.fixture(scope="module")
def cluster(runs: Path) -> Iterator[Any]:
    """Two worker processes; each replay takes a moment, so that one can be killed in the middle."""
    environment = {"PAUSE": "0.05", "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "OMP_NUM_THREADS": "1"}
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50, env=environment
    ) as made:
        yield made


def test_a_cluster_gives_the_same_bytes_although_a_worker_is_killed(inside: Path, whole: bytes, cluster: Any) -> None:
    parts = inside / "shared.json.parts"
    pids = {worker.name: worker.process.process.pid for worker in cluster.workers.values()}
    killed: list[int] = []

    def kill_one() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not list(parts.glob("*.jsonl")):
            time.sleep(0.01)
        os.kill(pids[0], signal.SIGKILL)
        killed.append(len(list(parts.glob("*.jsonl"))))

    killer = threading.Thread(target=kill_one)
    killer.start()
    assert compare("--dask", cluster.scheduler_address, "-o", "shared.json") == 1
    killer.join()
    assert 0 < killed[0] < 8, "a worker was killed while there was work left"
    assert (inside / "shared.json").read_bytes() == whole


def test_merged_ranks_in_shares_and_on_a_cluster_give_the_same_bytes(inside: Path, cluster: Any) -> None:
    written = {}
    for name, words in (
        ("whole", [["-o", "whole2.json"]]),
        ("shares", [["-o", "shares.json", "--shard", "1/2"], ["-o", "shares.json", "--shard", "2/2"]]),
        ("merged", [["-o", "shares.json", "--merge"]]),
        ("dask", [["-o", "dask.json", "--dask", cluster.scheduler_address]]),
    ):
        for options in words:
            code = main(["compare", "reference", "ranks", "--replay", "sharded_model:build", *options])
            assert code == (0 if name == "shares" else 1)
        if name != "shares":
            written[name] = (inside / options[1]).read_bytes()
    assert b"were merged" in written["whole"]
    assert written["merged"] == written["whole"] == written["dask"]


def test_nobody_at_the_address_is_told(inside: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precision_align.workflows.clusters._CONNECT_SECONDS", 1)
    assert compare("--dask", "tcp://127.0.0.1:9", "-o", "shared.json") == 2
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in capsys.readouterr().err
