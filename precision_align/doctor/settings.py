"""Switches of the environment: repeatability, HCCL's time limits and network, shared memory, rank table."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from precision_align.doctor.checks import BAD, GOOD, NOTE, Check

# Environment switches without which the same run differs from itself.
DETERMINISM = {"npu": ("HCCL_DETERMINISTIC", "LCCL_DETERMINISTIC"), "cuda": ("CUBLAS_WORKSPACE_CONFIG",)}
# (smallest, largest, default) in seconds. Sources: hiascend envref_07_0149 (CANN 8.5) and tfmigr1_000071 (CANN 6.0.1);
# HCCL_EXEC_TIMEOUT takes 0 for "wait for ever" on newer chips and rounds to multiples of 68 on the first generation.
TIME_LIMITS = {"HCCL_CONNECT_TIMEOUT": (120, 7200, 120), "HCCL_EXEC_TIMEOUT": (0, 2147483647, 1836)}
# Docker's default is 64 MiB; a data loader's workers hand batches over in shared memory and die with a bus error.
SMALLEST_SHM = 1 << 30


def check_switches(kind: str, modes: Mapping[str, object]) -> list[Check]:
    """Arithmetic modes and determinism switches of a device as they are set now."""
    set_now = ", ".join(f"{name}={value}" for name, value in modes.items())
    missing = [name for name in DETERMINISM.get(kind, ()) if not os.environ.get(name)]
    advice = f"for repeatable runs set {', '.join(missing)}" if missing else ""
    return [Check(f"device {kind}: switches", NOTE if missing else GOOD, set_now, advice)]


def check_time_limits(environment: Mapping[str, str]) -> list[Check]:
    """HCCL's limits where they are set: whole numbers in their range."""
    checks = []
    for name, (low, high, default) in TIME_LIMITS.items():
        text = environment.get(name)
        if text is None:
            continue
        fits = text.isdigit() and low <= int(text) <= high
        advice = "" if fits else f"set a whole number of seconds from {low} to {high}, or unset it ({default})"
        checks.append(Check(name, GOOD if fits else BAD, f"{text} s", advice))
    return checks


def check_shared_memory(folder: Path = Path("/dev/shm")) -> list[Check]:
    """Size of the shared memory that data loaders use; nothing where the system has none."""
    try:
        found = os.statvfs(folder)
    except (OSError, AttributeError):
        return []
    size = found.f_frsize * found.f_blocks
    text = f"{folder} has {size >> 20} MiB"
    if size < SMALLEST_SHM:
        return [Check("shared memory", NOTE, text, "start the container with --shm-size=16g (or --ipc=host)")]
    return [Check("shared memory", GOOD, text)]


def list_interfaces() -> list[str]:
    """Names of this host's network interfaces; none where the system does not tell."""
    try:
        return [name for _, name in socket.if_nameindex()]
    except (AttributeError, OSError):
        return []


def choose_interfaces(pattern: str, names: Sequence[str]) -> list[str]:
    """The interfaces that a HCCL_SOCKET_IFNAME means: "eth,enp" prefixes, "=eth0" exact names, "^" all others.

    Source: hiascend envref_07_0075 (CANN 8.3).
    """
    excludes = pattern.startswith("^")
    rest = pattern[1:] if excludes else pattern
    exact = rest.startswith("=")
    wanted = [part for part in (rest[1:] if exact else rest).split(",") if part]

    def is_meant(name: str) -> bool:
        return any(name == part if exact else name.startswith(part) for part in wanted)

    return [name for name in names if is_meant(name) != excludes]


def check_interfaces(environment: Mapping[str, str], names: Sequence[str]) -> list[Check]:
    """HCCL_SOCKET_IFNAME and HCCL_IF_IP against what this host has."""
    checks = []
    pattern = environment.get("HCCL_SOCKET_IFNAME")
    if pattern and names:
        chosen = choose_interfaces(pattern, names)
        text = f"{pattern} means {', '.join(chosen) or 'none'} of {', '.join(names)}"
        advice = "" if chosen else f"name one of this host's interfaces, such as {names[-1]}"
        checks.append(Check("HCCL_SOCKET_IFNAME", GOOD if chosen else BAD, text, advice))
    address = environment.get("HCCL_IF_IP")
    if address:
        local = is_local(address)
        advice = "" if local else "set it to an address of this host, on each host its own"
        checks.append(Check("HCCL_IF_IP", GOOD if local else BAD, address, advice))
    return checks


def is_local(address: str) -> bool:
    """Whether an IP address is one of this host's."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def check_rank_table(environment: Mapping[str, str]) -> list[Check]:
    """The file of RANK_TABLE_FILE, where one is named: is it complete, and is it of this job?"""
    path = environment.get("RANK_TABLE_FILE")
    if not path:
        return []
    try:
        problems = _find_table_problems(json.loads(Path(path).read_text(encoding="utf-8")), environment)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        problems = [f"cannot be read as a rank table: {type(error).__name__}: {error}"]
    if problems:
        return [Check("rank table", BAD, f"{path}: {'; '.join(problems)}", "write it again for these hosts and cards")]
    return [Check("rank table", GOOD, path)]


def _find_table_problems(table: Mapping[str, Any], environment: Mapping[str, str]) -> list[str]:
    servers = table["server_list"]
    ranks = sorted(int(device["rank_id"]) for server in servers for device in server["device"])
    world = environment.get("WORLD_SIZE", "")
    problems = []
    if table.get("status", "completed") != "completed":
        problems.append(f"its status is {table['status']}, not completed")
    if int(table.get("server_count", len(servers))) != len(servers):
        problems.append(f"server_count is {table['server_count']}, it lists {len(servers)}")
    if ranks != list(range(len(ranks))):
        problems.append(f"the rank ids are {ranks}, not 0 to {len(ranks) - 1}")
    if world.isdigit() and int(world) != len(ranks):
        problems.append(f"it lists {len(ranks)} ranks, WORLD_SIZE is {world}")
    for server in servers:
        cards = [device["device_id"] for device in server["device"]]
        if len(set(cards)) < len(cards):
            problems.append(f"server {server['server_id']} lists a card twice")
    return problems


def check_names(environment: Mapping[str, str]) -> list[Check]:
    """Does the address of the master, and this host's own name, resolve?"""
    names = {"MASTER_ADDR": environment.get("MASTER_ADDR", ""), "host name": socket.gethostname()}
    checks = []
    for label, name in names.items():
        if not name:
            continue
        try:
            checks.append(Check(label, GOOD, f"{name} is {socket.gethostbyname(name)}"))
        except OSError:
            status = BAD if label == "MASTER_ADDR" else NOTE
            checks.append(Check(label, status, f"{name} has no address", "add it to /etc/hosts on every node"))
    return checks


def check_environment(environment: Mapping[str, str]) -> list[Check]:
    """All of the above that needs no device."""
    checks = [*check_time_limits(environment), *check_shared_memory(), *check_rank_table(environment)]
    checks += check_interfaces(environment, list_interfaces())
    return checks + check_names(environment)
