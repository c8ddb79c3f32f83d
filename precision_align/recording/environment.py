"""What a run was made with: versions, device, ranks, switches."""

from __future__ import annotations

import itertools
import os
import platform
import sys
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional
from uuid import uuid4

import numpy as np
import torch

from precision_align.core.records import RunInfo
from precision_align.devices.ascend import find_ascend_versions
from precision_align.recording.hooks import first_names
from precision_align.recording.modes import session_modes
from precision_align.recording.origins import module_classes
from precision_align.recording.parameters import tied_names
from precision_align.recording.placement import read_placement
from precision_align.recording.plan import Plan
from precision_align.recording.shards import describe_shard
from precision_align.storage import layout

_SWITCHES = (
    "ASCEND_TOOLKIT_HOME",
    "ASCEND_LAUNCH_BLOCKING",
    "CANN_VERSION",
    "CLOSE_MATMUL_K_SHIFT",
    "CUBLAS_WORKSPACE_CONFIG",
    "HCCL_DETERMINISTIC",
    "INF_NAN_MODE_ENABLE",
    "LCCL_DETERMINISTIC",
    "NVIDIA_TF32_OVERRIDE",
    "PYTHONHASHSEED",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)


def find_rank(rank: Optional[int] = None) -> tuple[int, int]:
    """(rank, world size): as given, else of torch.distributed, else of the launcher's environment, else (0, 1)."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        found, world = distributed.get_rank(), distributed.get_world_size()
    else:
        placed, world, _ = read_placement()
        found = placed or 0
    return (found if rank is None else rank), max(world, found + 1, (rank or 0) + 1)


def describe_layout(model: torch.nn.Module) -> dict[str, Any]:
    """Where this process stands among the others: host, local rank, backend, the mesh of sharded parameters, and the
    numbers from 1 that Megatron gives the layers of the whole model, of which this rank may hold a few."""
    placement: dict[str, Any] = {"host": platform.node(), "local_rank": read_placement()[2]}
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        placement["backend"] = str(distributed.get_backend())
    shards = [shard for shard in map(describe_shard, model.parameters()) if shard is not None]
    meshes = [{"mesh": shard["mesh"], "names": shard["mesh_names"]} for shard in shards]
    if meshes:
        placement["meshes"] = [mesh for index, mesh in enumerate(meshes) if mesh not in meshes[:index]]
    numbers = {name: vars(module).get("layer_number") for name, module in model.named_modules()}
    layers = {name: n for name, n in numbers.items() if isinstance(n, int) and name.rpartition(".")[2].isdecimal()}
    if layers:
        placement["layers"] = layers
    return placement


def find_versions() -> dict[str, str]:
    """Versions of what takes part; torch_npu only if the program has loaded it, CANN, driver and firmware if there."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    torch_npu = sys.modules.get("torch_npu")
    if torch_npu is not None:
        versions["torch_npu"] = str(getattr(torch_npu, "__version__", "unknown"))
        commit = getattr(getattr(torch_npu, "version", None), "git_version", None)
        if isinstance(commit, str) and commit not in ("", "Unknown"):
            versions["torch_npu commit"] = commit
    versions.update(find_ascend_versions())
    return versions


def find_device(model: torch.nn.Module) -> str:
    """The device of the model's first parameter or buffer ("cpu" where it has none), and what is simulated there."""
    tensor = next(itertools.chain(model.parameters(), model.buffers()), None)
    device = "cpu" if tensor is None else str(tensor.device)
    simulated = sys.modules.get("precision_align.devices.simulated")
    if device.startswith("npu") and simulated is not None and simulated.is_installed():
        return f"{device} simulated {simulated.current_profile().name}"
    return device


def find_last_step(folder: str, rank: int) -> int:
    """The last step that a dump holds of a rank, -1 where there is none."""
    own = Path(folder) / layout.name_rank(rank)
    names = [layout.PART_FILE.fullmatch(path.name) for path in own.iterdir()] if own.is_dir() else []
    return max((int(name.group(2)) for name in names if name is not None), default=-1)


def has_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return any(counters.get("frames", {}).values()) or any(counters.get("stats", {}).values())


def update_models(info: RunInfo, model: torch.nn.Module) -> RunInfo:
    """The same run with what its model has become."""
    return replace(info, **_describe_model(model))


def _describe_model(model: torch.nn.Module) -> dict[str, Any]:
    tied = tied_names(model)
    return {
        "modules": module_classes(model),
        "aliases": first_names(model)[1],
        "parameters": {name: tied.get(name, []) for name, _ in model.named_parameters()},
    }


def describe_run(model: torch.nn.Module, plan: Plan, rank: Optional[int] = None) -> RunInfo:
    """Everything about a run that is known before its first step."""
    number, world = find_rank(rank)
    switches = {name: os.environ[name] for name in _SWITCHES if name in os.environ}
    return RunInfo(
        run=uuid4().hex,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        rank=number,
        world=world,
        device=find_device(model),
        versions=find_versions(),
        capture={
            **plan.describe(),
            "modes": session_modes(),
            "environment": switches,
            "layout": describe_layout(model),
        },
        **_describe_model(model),
        command=" ".join(sys.argv),
    )
