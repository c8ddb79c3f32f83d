"""Switches that change what arithmetic is done: autocast, default dtype, TF32 and HF32, determinism."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from functools import cache
from typing import Any, Callable

import torch

NO_AUTOCAST: Mapping[str, str] = {}
_is_any_autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled


@cache
def _autocast_devices() -> tuple[str, ...]:
    """The device types this torch can be asked about; two-argument forms exist from torch 2.4 on."""
    names = ["cpu", "cuda", torch._C._get_privateuse1_backend_name()]
    found = []
    for name in names:
        try:
            torch.is_autocast_enabled(name)
        except (TypeError, RuntimeError):
            continue
        found.append(name)
    return tuple(found)


def enabled_autocast() -> Mapping[str, str]:
    """Device type -> dtype where autocast is on, on this thread."""
    if not _is_any_autocast_enabled():
        return NO_AUTOCAST
    devices = _autocast_devices()
    if not devices:
        return _enabled_autocast_before_2_4()
    return {name: _short(torch.get_autocast_dtype(name)) for name in devices if torch.is_autocast_enabled(name)}


def _enabled_autocast_before_2_4() -> Mapping[str, str]:
    found = {}
    if torch.is_autocast_enabled():
        found["cuda"] = _short(torch.get_autocast_gpu_dtype())
    if torch.is_autocast_cpu_enabled():
        found["cpu"] = _short(torch.get_autocast_cpu_dtype())
    return found


def call_modes() -> Mapping[str, Any]:
    """What may change from call to call; one object as long as it does not."""
    return _describe_call_modes(torch.get_default_dtype(), torch.is_inference_mode_enabled())


@cache
def _describe_call_modes(dtype: torch.dtype, inference: bool) -> Mapping[str, Any]:
    return {"default_dtype": _short(dtype), "inference": inference}


def session_modes() -> Mapping[str, Any]:
    """The arithmetic and determinism switches of the process, those that exist here."""
    readers: dict[str, Callable[[], Any]] = {
        "default_dtype": lambda: _short(torch.get_default_dtype()),
        "float32_matmul_precision": torch.get_float32_matmul_precision,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "num_threads": torch.get_num_threads,
        "cudnn.deterministic": lambda: torch.backends.cudnn.deterministic,
        "cudnn.benchmark": lambda: torch.backends.cudnn.benchmark,
        "cudnn.allow_tf32": lambda: torch.backends.cudnn.allow_tf32,
        "cuda.matmul.allow_tf32": lambda: torch.backends.cuda.matmul.allow_tf32,
        "cuda.matmul.allow_bf16_reduced_precision": lambda: (
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        ),
        "mkldnn.enabled": lambda: torch.backends.mkldnn.enabled,
        "npu.matmul.allow_hf32": lambda: _npu_switch("matmul"),
        "npu.conv.allow_hf32": lambda: _npu_switch("conv"),
    }
    found = {}
    with warnings.catch_warnings():  # reading a switch by its older name warns in newer torch
        warnings.simplefilter("ignore")
        for name, read in readers.items():
            try:
                found[name] = read()
            except (AttributeError, RuntimeError):  # not in this version, or set through the newer name only
                continue
    return found


def _npu_switch(group: str) -> Any:
    if "torch_npu" not in sys.modules:
        raise AttributeError("torch_npu is not loaded")
    return getattr(getattr(torch, "npu"), group).allow_hf32  # noqa: B009 -- torch_npu adds it to torch


def _short(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")
