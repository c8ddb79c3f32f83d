"""Environment variables, network and shared memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from precision_align.doctor import settings
from precision_align.doctor.checks import BAD, GOOD, NOTE

NAMES = ["lo", "eth0", "eth1", "enp3s0", "docker0"]


@pytest.mark.parametrize(
    ("pattern", "chosen"),
    [
        ("eth", ["eth0", "eth1"]),
        ("eth,enp", ["eth0", "eth1", "enp3s0"]),
        ("=eth0", ["eth0"]),
        ("=eth0,lo", ["lo", "eth0"]),
        ("^eth", ["lo", "enp3s0", "docker0"]),
        ("^=eth0,docker0", ["lo", "eth1", "enp3s0"]),
        ("=eth", []),
        ("ib", []),
    ],
)
def test_interfaces_that_a_pattern_means(pattern: str, chosen: list[str]) -> None:
    assert settings.choose_interfaces(pattern, NAMES) == chosen
    (check,) = settings.check_interfaces({"HCCL_SOCKET_IFNAME": pattern}, NAMES)
    assert check.status == (GOOD if chosen else BAD)
    assert bool(check.advice) != bool(chosen)


def test_addresses_of_this_host_and_of_others() -> None:
    assert [c.status for c in settings.check_interfaces({"HCCL_IF_IP": "127.0.0.1"}, [])] == [GOOD]
    assert [c.status for c in settings.check_interfaces({"HCCL_IF_IP": "192.0.2.7"}, [])] == [BAD]  # RFC 5737: nobody's
    assert settings.check_interfaces({}, NAMES) == []
    assert "lo" in settings.list_interfaces()


@pytest.mark.parametrize(
    ("name", "text", "status"),
    [
        ("HCCL_CONNECT_TIMEOUT", "1200", GOOD),
        ("HCCL_CONNECT_TIMEOUT", "60", BAD),
        ("HCCL_CONNECT_TIMEOUT", "2 min", BAD),
        ("HCCL_EXEC_TIMEOUT", "0", GOOD),
        ("HCCL_EXEC_TIMEOUT", "-1", BAD),
    ],
)
def test_time_limits(name: str, text: str, status: str) -> None:
    (check,) = settings.check_time_limits({name: text})
    assert check.status == status
    assert settings.check_time_limits({}) == []


def test_small_shared_memory_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert settings.check_shared_memory(tmp_path)[0].status in (GOOD, NOTE)
    assert settings.check_shared_memory(tmp_path / "none") == []
    monkeypatch.setattr(settings, "SMALLEST_SHM", 1 << 62)
    (check,) = settings.check_shared_memory(tmp_path)
    assert check.status == NOTE
    assert "--shm-size" in check.advice


def rank_table(**changes: Any) -> dict[str, Any]:
    servers = [
        {"server_id": host, "device": [{"device_id": str(i), "rank_id": str(4 * number + i)} for i in range(4)]}
        for number, host in enumerate(("10.0.0.1", "10.0.0.2"))
    ]
    return {"status": "completed", "server_count": "2", "server_list": servers, **changes}


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (rank_table(), ""),
        (rank_table(status="initializing"), "initializing"),
        (rank_table(server_count="3"), "server_count is 3"),
        (rank_table(server_list=rank_table()["server_list"][1:], server_count="1"), "rank ids"),
        ({}, "cannot be read"),
        ([], "cannot be read"),
    ],
)
def test_rank_tables(tmp_path: Path, table: Any, problem: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table), encoding="utf-8")
    (check,) = settings.check_rank_table({"RANK_TABLE_FILE": str(path), "WORLD_SIZE": "8"})
    assert check.status == (BAD if problem else GOOD)
    assert problem in check.text


def test_rank_tables_of_another_job(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    double = rank_table()
    double["server_list"][0]["device"][1]["device_id"] = "0"
    path.write_text(json.dumps(double), encoding="utf-8")
    (check,) = settings.check_rank_table({"RANK_TABLE_FILE": str(path), "WORLD_SIZE": "16"})
    assert "WORLD_SIZE is 16" in check.text
    assert "10.0.0.1 lists a card twice" in check.text
    (check,) = settings.check_rank_table({"RANK_TABLE_FILE": str(tmp_path / "gone.json")})
    assert check.status == BAD
    assert settings.check_rank_table({}) == []


def test_names_that_do_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> str:
        raise OSError("unknown")

    monkeypatch.setattr(settings.socket, "gethostbyname", refuse)
    found = {check.name: check.status for check in settings.check_names({"MASTER_ADDR": "node-0"})}
    assert found == {"MASTER_ADDR": BAD, "host name": NOTE}
