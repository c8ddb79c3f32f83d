"""All checks of one process, and the facts that they found: what a lock keeps and ranks compare."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precision_align.core.errors import Unavailable
from precision_align.doctor.arithmetic import check_operators, check_products
from precision_align.doctor.checks import ABSENT, BAD, GOOD, NOTE, Check, attempt
from precision_align.doctor.chips import Table, check_chips, list_visible
from precision_align.doctor.compatibility import check_compatibility
from precision_align.doctor.settings import check_environment, check_switches
from precision_align.doctor.software import check_pages, check_storage, check_torch

DEVICES = ("cpu", "cuda", "npu")
# Variables that change results, speed or the network of a run: by prefix, and by name.
_PREFIXES = (
    "HCCL_",
    "ASCEND_",
    "ACL_",
    "NPU_",
    "TORCH_NPU_",
    "TASK_QUEUE",
    "NCCL_",
    "CUDA_",
    "CUBLAS_",
    "LCCL_",
    "GLOO_",
)
_NAMES = (
    "ATB_LLM_LCOC_ENABLE", "ATB_MATMUL_SHUFFLE_K_ENABLE", "CLOSE_MATMUL_K_SHIFT", "CPU_AFFINITY_CONF",
    "INF_NAN_MODE_ENABLE", "INF_NAN_MODE_FORCE_DISABLE", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "PYTHONHASHSEED",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF", "RANK_TABLE_FILE", "TORCH_DEVICE_BACKEND_AUTOLOAD",
)  # fmt: skip


@dataclass
class Examination:
    """``checks`` in the order of looking; ``facts``: section -> name -> value, all texts."""

    checks: list[Check] = field(default_factory=list)
    facts: dict[str, dict[str, str]] = field(default_factory=dict)


def examine(versions: Mapping[str, str], wanted: Sequence[str], table: Table) -> Examination:
    """Packages, chips, network, and on each device arithmetic and switches.

    ``wanted``: devices whose absence is an error; ``table``: what npu-smi says. Raises UsageError for a device name
    that does not exist.
    """
    done = Examination()
    done.facts["versions"] = {name: version for name, version in versions.items() if version}
    done.facts["environment"] = collect_environment(os.environ)
    done.facts["host"] = {"name": socket.gethostname(), "chips": _describe_chips(table), "visible": list_visible()}
    done.checks += [check_storage(versions), check_pages(versions), check_torch(versions.get("torch", ""))]
    has_torch = done.checks[-1].status in (GOOD, NOTE)
    done.checks += check_compatibility(versions)
    if has_torch:
        for name in [*DEVICES, *(name for name in wanted if name not in DEVICES)]:
            done.checks += _examine_device(name, name in wanted, done.facts)
    else:
        done.checks += [Check(f"device {name}", BAD, "cannot be used without torch") for name in wanted]
    done.checks += check_chips(table, _count_npus(done.facts))
    done.checks += check_environment(os.environ)
    return done


def collect_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that change a run, sorted by name."""
    return {name: value for name, value in sorted(environment.items()) if name.startswith(_PREFIXES) or name in _NAMES}


def _describe_chips(table: Table) -> str:
    return ", ".join(f"{chip.npu}.{chip.chip} {chip.name}" for chip in table.chips)


def _count_npus(facts: Mapping[str, Mapping[str, str]]) -> int | None:
    known = facts.get("device npu", {}).get("count")
    return None if known is None else int(known)


def check_device(name: str, wanted: bool) -> list[Check]:
    """Is it there, does it compute, is it set to compute the same twice? ``wanted``: its absence is an error."""
    return _examine_device(name, wanted, {})


def _examine_device(name: str, wanted: bool, facts: dict[str, dict[str, str]]) -> list[Check]:
    from precision_align.devices.selection import open_device

    label = f"device {name}"
    try:
        device = open_device(name)
    except Unavailable as error:
        return [Check(label, BAD if wanted else ABSENT, str(error).partition("] ")[2])]
    places = list_places(device.kind)
    advice = "the device does not work from torch: check its driver and versions"
    checks = [Check(label, GOOD, device.describe())]
    for place in places:
        checks += attempt(f"{label}: matmul", lambda place=place: check_products(place), advice)  # type: ignore[misc]
    checks += attempt(f"{label}: operators", lambda: check_operators(places[0]), advice)

    def look_at_switches() -> list[Check]:
        modes = device.modes()
        facts[label] = {"count": str(len(places)), **{name: str(value) for name, value in modes.items()}}
        facts[label].update({f"version of {name}": str(value) for name, value in device.versions().items()})
        return check_switches(device.kind, modes)

    return checks + attempt(f"{label}: switches", look_at_switches, advice)


def list_places(kind: str) -> list[str]:
    """Every device of a type: ["npu:0", ...]."""
    import torch

    if kind == "cpu":
        return ["cpu"]
    runtime: Any = getattr(torch, kind)
    return [f"{kind}:{index}" for index in range(int(runtime.device_count()))] or [kind]
