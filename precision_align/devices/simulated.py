"""The simulated NPU: a device type `npu` in host memory, with a profile's arithmetic and injected faults.

It is a model to test with, "emulated, not Ascend": with profile `none` it is the CPU to the last bit; other profiles
imitate what is documented of Ascend arithmetic (``profiles.py`` names the sources).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from precision_align.core.errors import Unavailable
from precision_align.devices.cpu import CpuDevice
from precision_align.devices.npu import is_real_torch_npu_loaded, is_real_torch_npu_present
from precision_align.devices.profiles import Profile, load_profile

# The Python back end of PrivateUse1 (torch._C._acc and its set-up function) came with this version.
_OLDEST_TORCH = (2, 11)


class _State:
    """What this process has installed; a device type can be claimed once."""

    libraries: list[Any] | None = None
    profile: Profile | None = None
    guard: Any = None


def is_installed() -> bool:
    """Whether the simulated device has claimed `npu` in this process."""
    return _State.libraries is not None


def is_supported() -> bool:
    """Whether this torch can have a device type written in Python."""
    return _torch_version() >= _OLDEST_TORCH


def install_simulated(profile: str | Profile = "ascend910b", faults: Sequence[Any] = ()) -> Profile:
    """Make `npu` a device of this process, or give the installed one another profile and other faults.

    ``profile``: a built-in name, a TOML path or a Profile; ``faults``: Fault objects or texts, for any module.
    Returns the profile in force. Raises Unavailable with torch < 2.11 or where the real torch_npu is loaded.
    """
    chosen = load_profile(profile)
    if not is_installed():
        _refuse_conflicts()
        _State.libraries = _register()
    _check_backward()
    return set_profile(chosen, faults)


def reserve_device() -> bool:
    """Keep a place for the device in autograd, so that ``install_simulated`` still works after a backward pass.

    Call it before the first backward pass of a process that may want the simulated device later. It claims nothing: no
    device type is renamed, no accelerator appears. Returns False where there is nothing to reserve (torch < 2.11, or
    another extension, such as torch_npu, is there and owns the device type).
    """
    if is_installed() or _State.guard is not None:
        return True
    taken = torch._C._get_privateuse1_backend_name() != "privateuseone" or is_real_torch_npu_present()
    if taken or not is_supported():
        return False
    from torch.utils.backend_registration import _DummyDeviceGuard

    _State.guard = _DummyDeviceGuard()
    torch._C._acc.register_python_privateuseone_device_guard(_State.guard)
    return True


def set_profile(profile: str | Profile, faults: Sequence[Any] = ()) -> Profile:
    """Put a profile and faults in force on the installed device; replaces those before. Returns the profile."""
    from precision_align.devices import autocast, backend
    from precision_align.devices.injection import compose_execution

    if not is_installed():
        raise Unavailable("The simulated NPU is not installed in this process: call install_simulated first.")
    chosen = load_profile(profile)
    backend.set_execution(compose_execution(chosen, faults))
    autocast.select_rules(chosen.autocast)
    _State.profile = chosen
    return chosen


def current_profile() -> Profile:
    """The profile in force. Raises Unavailable where the device is not installed."""
    if _State.profile is None:
        raise Unavailable("The simulated NPU is not installed in this process: call install_simulated first.")
    return _State.profile


def _torch_version() -> tuple[int, int]:
    major, minor = str(torch.__version__).split("+")[0].split(".")[:2]
    return int(major), int(minor)


def _refuse_conflicts() -> None:
    if is_real_torch_npu_loaded():
        raise Unavailable(
            "The real torch_npu is loaded and has claimed the device type npu; the simulated one needs a process of "
            "its own. Set TORCH_DEVICE_BACKEND_AUTOLOAD=0 there, so that torch does not load torch_npu by itself."
        )
    if not is_supported():
        raise Unavailable(
            f"The simulated NPU needs torch >= 2.11 (a device type written in Python); this is {torch.__version__}. "
            "Profiles work on CPU tensors with every torch: precision_align.devices.arithmetic.emulate."
        )
    claimed = torch._C._get_privateuse1_backend_name()
    if claimed not in ("privateuseone", "npu") or "torch.npu" in sys.modules:
        raise Unavailable(f'Another extension has already claimed this process\'s extra device type, as "{claimed}".')


def _register() -> list[Any]:
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    from precision_align.devices import aliasing, autocast, backend, composites, runtime

    module = runtime.make_runtime_module()
    sys.modules["torch.npu"] = module
    _setup_privateuseone_for_python_backend("npu", backend_module=module)
    aliasing.let_storages_be_made()
    return [*backend.register_kernels(), *composites.register_composites(), *autocast.register_autocast()]


def _check_backward() -> None:
    """Raise Unavailable where autograd cannot run on the device any more.

    Autograd counts the devices once, at the process's first backward pass; a device that comes later has no queue.
    """
    try:
        torch.autograd.backward(torch.ones((), device="npu", requires_grad=True).clone())
    except RuntimeError as error:
        if "device_ready_queues_" not in str(error):
            raise
        raise Unavailable(
            "A backward pass has run in this process before the simulated NPU was installed, so autograd cannot serve "
            'the device any more. Call install_simulated("none") (or reserve_device()) at the start of the process, '
            "before the CPU run; set_profile changes the arithmetic later."
        ) from error


class SimulatedDevice(CpuDevice):
    """The simulated NPU as a device; making one installs it."""

    kind = "npu"
    emulated = True

    def __init__(self, profile: str = "ascend910b") -> None:
        super().__init__(f"simulated:{profile}")
        install_simulated(profile)

    def versions(self) -> Mapping[str, str]:
        return {**super().versions(), "npu": f"simulated, profile {current_profile().name} (emulated, not Ascend)"}

    def modes(self) -> Mapping[str, object]:
        profile = current_profile()
        return {**super().modes(), "profile": profile.name, **{f"npu.{k}": v for k, v in profile.switches().items()}}

    def describe(self) -> str:
        return describe()


def describe() -> str:
    """One line on the installed device: what it is not, its profile with sources, its faults."""
    from precision_align.devices.injection import describe_faults

    return f"simulated NPU in host memory, torch {torch.__version__}; {current_profile().describe()}{describe_faults()}"
