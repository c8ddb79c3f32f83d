"""Two ranks and more: what differs, who is to blame, what to do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from precision_align.doctor.checks import BAD, GOOD, NOTE, Check
from precision_align.doctor.ranks import Launched, RankReport, compare_ranks, find_launched, list_ranks

ROOT = Path(__file__).parents[2]


def report(rank: int, world: int = 4, checks: tuple[Check, ...] = (), **sections: dict[str, str]) -> RankReport:
    facts = {"versions": {"torch": "2.7.1"}, "environment": {}, "host": {"name": "a"}, **sections}
    return RankReport(Launched(rank, world, rank, world), checks, facts)


def test_equal_ranks() -> None:
    (check,) = compare_ranks([report(rank) for rank in range(4)])
    assert (check.status, check.text) == (GOOD, "4 ranks found the same")


def test_one_rank_that_differs_is_named_with_its_fix() -> None:
    ranks = [report(rank) for rank in range(3)] + [report(3, versions={"torch": "2.6.0"})]
    (check,) = compare_ranks(ranks)
    assert check.status == BAD
    assert "ranks 0-2: 2.7.1; rank 3: 2.6.0" in check.text
    assert check.advice == "on rank 3: install torch 2.7.1"


def test_variables_that_differ_and_those_that_may() -> None:
    ranks = [
        report(
            rank,
            environment={
                "HCCL_CONNECT_TIMEOUT": "1200" if rank != 1 else "120",
                "HCCL_IF_IP": f"10.0.0.{rank}",
                "ASCEND_RT_VISIBLE_DEVICES": str(rank),
                **({"HCCL_DETERMINISTIC": "true"} if rank == 2 else {}),
            },
        )
        for rank in range(4)
    ]
    found = {check.name: check for check in compare_ranks(ranks)}
    assert set(found) == {"environment: HCCL_CONNECT_TIMEOUT", "environment: HCCL_DETERMINISTIC"}
    assert {check.status for check in found.values()} == {NOTE}
    assert found["environment: HCCL_CONNECT_TIMEOUT"].advice == "on rank 1: export HCCL_CONNECT_TIMEOUT=1200"
    assert found["environment: HCCL_DETERMINISTIC"].advice == "on rank 2: unset HCCL_DETERMINISTIC"


def test_a_check_that_failed_on_some_ranks() -> None:
    broken = Check("npu:0 float32", BAD, "matmul error 1e-1", "replace it")
    checks = compare_ranks([report(0), report(1, checks=(broken,)), report(2), report(3, checks=(broken,))])
    assert [(check.name, check.text, check.advice) for check in checks] == [
        ("npu:0 float32", "ranks 1, 3: matmul error 1e-1", "replace it")
    ]
    assert compare_ranks([report(rank, checks=(broken,)) for rank in range(2)])[0].status == GOOD  # told already


@pytest.mark.parametrize(
    ("visible", "count", "placed"),
    [
        ([None, None], 2, True),
        ([None, None], 1, False),
        (["0", "0"], 1, False),
        (["0", "1"], 1, True),
        (["0,1", "0,1"], 2, True),
    ],
)
def test_all_ranks_on_one_card_are_seen(visible: list[str | None], count: int, placed: bool) -> None:
    ranks = [
        report(
            rank,
            2,
            environment={} if value is None else {"ASCEND_RT_VISIBLE_DEVICES": value},
            **{"device npu": {"count": str(count)}},
        )
        for rank, value in enumerate(visible)
    ]
    found = [check for check in compare_ranks(ranks) if check.name == "placement"]
    assert not found if placed else [check.status for check in found] == [BAD]


def test_spans_of_ranks() -> None:
    assert list_ranks([5, 0, 2, 1]) == "ranks 0-2, 5"
    assert list_ranks([3]) == "rank 3"


def test_a_launcher_is_recognised() -> None:
    assert find_launched({}) is None
    assert find_launched({"RANK": "0", "WORLD_SIZE": "1"}) is None
    assert find_launched({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}) == Launched(3, 8, 1, 8)


def find_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str, str]]:
    """(exit status, stdout, stderr) of the doctor on two ranks that differ in a variable and in their chips."""
    pytest.importorskip("torch")
    folder, port = tmp_path_factory.mktemp("job"), find_port()
    children = []
    for rank in range(2):
        tools = folder / str(rank)
        tools.mkdir()
        smi = tools / "npu-smi"
        health = "OK" if rank == 0 else "Alarm"
        smi.write_text(
            f"#!/bin/sh\necho '| npu-smi 24.1.1 |'\necho '| 0     910B3    | {health} | 88.2   30   0 / 0 |'\n"
            "echo '| 0              | 0000:C1:00.0 | 0 0 / 0 |'\n"
        )
        smi.chmod(0o755)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "HCCL_EXEC_TIMEOUT": str(1800 * (rank + 1)),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "precision_align", "doctor", "--json"]
        children.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    return [(child.wait(), *child.communicate()) for child in children]


def test_two_real_ranks_make_one_table(job: list[tuple[int, str, str]]) -> None:
    (status, out, err), (other_status, other_out, _) = job
    assert (status, other_status, other_out) == (1, 1, ""), err
    found: dict[str, Any] = json.loads(out)
    between = {check["name"]: check for check in found["checks"] if check.get("section") == "between the ranks"}
    assert between["collective gloo"]["status"] == GOOD
    assert "rank 0: 1800; rank 1: 3600" in between["environment: HCCL_EXEC_TIMEOUT"]["text"]
    assert between["npu-smi"]["text"].startswith("rank 1: ")
    assert "Alarm" in between["npu-smi"]["text"]
    assert all(check["advice"] for check in between.values() if check["status"] != GOOD)
