"""The module ``torch.npu`` of the simulated device: what training code and torch itself ask a device runtime for.

Work is done when a call returns, so streams and events have nothing to order. The generator is the CPU's: dropout and
initial values are equal to a CPU run of the same seed, which is what makes profile `none` bit-identical.
"""

from __future__ import annotations

import time
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any

import torch

from precision_align.devices.aliasing import check_index

DEVICE_NAME = "Simulated NPU (emulated, not Ascend)"


class Stream:
    """A queue that is always empty."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = torch.device("npu", 0)

    def synchronize(self) -> None: ...

    def wait_stream(self, stream: Stream) -> None: ...

    def wait_event(self, event: Event) -> None: ...

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        return True

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Event:
    """A moment in time; everything before it has happened."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._moment = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self._moment = time.perf_counter()

    def elapsed_time(self, other: Event) -> float:
        """Milliseconds from this event to the other."""
        return (other._moment - self._moment) * 1e3

    def synchronize(self) -> None: ...

    def wait(self, stream: Stream | None = None) -> None: ...

    def query(self) -> bool:
        return True


class DeviceContext:
    """``torch.npu.device(index)``: there is one device, so nothing changes."""

    def __init__(self, device: Any) -> None:
        check_index(device)

    def __enter__(self) -> DeviceContext:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def manual_seed(seed: int) -> None:
    """Seed the generator, which is the CPU's."""
    torch.default_generator.manual_seed(seed)


def get_rng_state(device: Any = "npu") -> torch.Tensor:
    return torch.get_rng_state()


def set_rng_state(state: torch.Tensor, device: Any = "npu") -> None:
    torch.set_rng_state(state)


def _seed_all() -> dict[str, Any]:
    return {
        "manual_seed": manual_seed,
        "manual_seed_all": manual_seed,
        "initial_seed": torch.initial_seed,
        "get_rng_state": get_rng_state,
        "set_rng_state": set_rng_state,
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state_all": lambda states: torch.set_rng_state(states[0]),
        "_is_in_bad_fork": lambda: False,
    }


def _device_functions() -> dict[str, Any]:
    properties = SimpleNamespace(name=DEVICE_NAME, total_memory=_host_memory())
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": check_index,
        "device": DeviceContext,
        "get_device_name": lambda device=None: DEVICE_NAME,
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: None,
        "is_bf16_supported": lambda: True,
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16, torch.float32],
    }


def _queue_functions() -> dict[str, Any]:
    stream = Stream.__new__(Stream)
    return {
        "Stream": Stream,
        "Event": Event,
        "synchronize": lambda device=None: check_index(device),
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "stream": lambda stream: stream,
        "set_stream": lambda stream: None,
    }


def _memory_functions() -> dict[str, Any]:
    """Host memory is not counted for the device: zero, as for a device that holds nothing."""
    counters = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")
    functions: dict[str, Any] = {name: (lambda device=None: 0) for name in counters}
    for name in ("empty_cache", "reset_peak_memory_stats"):
        functions[name] = lambda device=None: None
    return functions


def _host_memory() -> int:
    import os

    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def make_runtime_module() -> ModuleType:
    """The module object for ``torch.npu``; ``is_simulated`` tells it from torch_npu's."""
    module = ModuleType("torch.npu", "Runtime of the simulated NPU of precision-align.")
    for functions in (_seed_all(), _device_functions(), _queue_functions(), _memory_functions()):
        vars(module).update(functions)
    vars(module).update(is_simulated=True, npu=module)
    return module
