"""Random number generators: fingerprints and positions of their states, and seeding all of them."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Callable, Optional

import numpy as np
import torch

from precision_align.core.errors import UsageError
from precision_align.recording.plain import compare_memory
from precision_align.recording.staging import has_modes, untouched
from precision_align.storage.hashing import digest_bytes

# Philox generators (CUDA, NPU) have a state of 16 bytes: the seed and the offset, 64 bits each.
_PHILOX_BYTES = 16
_cuda_is_initialized: Callable[[], bool] = torch.cuda.is_initialized
# Where the CPU has the only generator: its last state, how many bytes that has (0: not known), and what was said of it.
_settled: tuple[torch.Tensor, int, Mapping[str, str]] = (torch.empty(0), 0, {})


def describe_generators() -> Mapping[str, str]:
    """Device -> state of its default generator, only of devices that are in use.

    A counter-based generator is described as "SEED+OFFSET", any other by a fingerprint of its whole state, 16
    hexadecimal digits: equal texts mean that the same numbers come next. One object as long as nothing was drawn.
    Empty inside a torch.func transform, where a new tensor is a wrapper without memory.
    """
    try:
        return _describe_generators()
    except RuntimeError:
        return {}


def _describe_generators() -> Mapping[str, str]:
    global _settled
    alone = not _cuda_is_initialized() and "torch_npu" not in sys.modules
    if alone and not has_modes():
        before, size, described = _settled
        state = torch.default_generator.get_state()
        if size and not compare_memory(before.data_ptr(), state.data_ptr(), size):
            return described
    with untouched():  # reading a state goes through dispatch modes too
        state = torch.default_generator.get_state()
        found = _describe_all()
        _settled = (state, state.nbytes if alone else 0, found)
    return found


def _describe_all() -> dict[str, str]:
    found = {"cpu": _describe(torch.default_generator.get_state())}
    for name in ("cuda", "npu"):
        device = getattr(torch, name, None)
        if device is None or (name == "npu" and "torch_npu" not in sys.modules):
            continue
        try:
            if device.is_initialized():
                found[f"{name}:{device.current_device()}"] = _describe(device.get_rng_state())
        except (AttributeError, RuntimeError, NotImplementedError):  # a simulated device, a graph being captured
            continue
    return found


def _describe(state: torch.Tensor) -> str:
    return _fingerprint(state.numpy().tobytes())


@lru_cache(maxsize=8)  # most calls draw nothing
def _fingerprint(data: bytes) -> str:
    if len(data) != _PHILOX_BYTES:
        return digest_bytes(data)[:16]
    seed, offset = np.frombuffer(data, dtype=np.uint64)
    return f"{int(seed)}+{int(offset)}"


def seed_everything(seed: int, *, deterministic: bool = True) -> Mapping[str, Any]:
    """Seed Python's, NumPy's and torch's generators on all devices; returns what was done.

    ``deterministic``: also ask torch for deterministic algorithms, with a warning where an operator has none (see
    :func:`~precision_align.recording.determinism.guard_determinism`), and switch cuDNN's autotuner off.
    PYTHONHASHSEED and CUBLAS_WORKSPACE_CONFIG are set for processes started from here; where this process has started
    without them, the result says so. Equal seeds do not make two vendors' generators draw equal numbers.
    Raises UsageError for a seed outside 0 .. 2**32 - 1.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 1 << 32:
        raise UsageError(f"a seed is a whole number from 0 to 2**32 - 1, not {seed!r}")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    notes = _set_environment("PYTHONHASHSEED", str(seed), "the order of sets is not fixed")
    if deterministic:
        notes += _set_environment("CUBLAS_WORKSPACE_CONFIG", ":4096:8", "cuBLAS may still differ from run to run")
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
    return {
        "seed": seed,
        "seeded": ["python", "numpy", *describe_generators()],
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "notes": notes,
    }


def _set_environment(name: str, value: str, otherwise: str) -> list[str]:
    before: Optional[str] = os.environ.get(name)
    if before is not None and (before == value or name != "PYTHONHASHSEED"):
        return []
    os.environ[name] = value
    return [f"{name} was {before or 'not set'} when this process started: {otherwise} here, set it before starting"]
