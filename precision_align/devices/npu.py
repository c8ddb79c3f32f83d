"""Ascend NPUs through torch_npu, imported only when asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from precision_align.core.errors import Unavailable
from precision_align.devices.accelerators import AcceleratorDevice
from precision_align.devices.ascend import find_ascend_versions

# Environment variables that change results or their order; sources in docs and facts on Ascend numerics.
_SWITCHES = (
    "ACL_OP_DETERMINISTIC",
    "ACL_PRECISION_MODE",
    "ATB_LLM_LCOC_ENABLE",
    "ATB_MATMUL_SHUFFLE_K_ENABLE",
    "CLOSE_MATMUL_K_SHIFT",
    "FORCE_OVERFLOW_CHECK",
    "HCCL_DETERMINISTIC",
    "INF_NAN_MODE_ENABLE",
    "INF_NAN_MODE_FORCE_DISABLE",
    "LCCL_DETERMINISTIC",
    "TASK_QUEUE_ENABLE",
    "TORCH_NPU_FALLBACK_CPU_DISABLE",
    "TORCH_NPU_USE_COMPATIBLE_IMPL",
)


def import_torch_npu() -> Any:
    """The real torch_npu. Raises Unavailable, with the reason, where it cannot be imported or is a look-alike."""
    try:
        with redirect_stdout(sys.stderr):  # it greets on stdout, where verbs write JSON
            module = import_module("torch_npu")
    except ModuleNotFoundError as error:
        if error.name != "torch_npu":
            raise _unusable(error) from error
        raise Unavailable(
            'Device "npu": torch_npu is not installed. Install the torch_npu that fits this torch (and CANN), '
            'or use the device "simulated".'
        ) from error
    except Exception as error:  # a wheel without CANN fails with ImportError, OSError or RuntimeError, by version
        raise _unusable(error) from error
    if getattr(module, "is_simulated", False):
        raise Unavailable('Device "npu": the torch_npu in this process is our look-alike. Use the device "simulated".')
    return module


def _unusable(error: Exception) -> Unavailable:
    reason = str(error).strip().splitlines()
    return Unavailable(
        'Device "npu": torch_npu is installed but does not load: '
        f"{type(error).__name__}: {reason[0] if reason else 'no message'}. It needs CANN (source its set_env.sh). "
        "Without, even plain `import torch` fails; set TORCH_DEVICE_BACKEND_AUTOLOAD=0 to keep torch usable."
    )


class NpuDevice(AcceleratorDevice):
    """An Ascend NPU. Raises Unavailable without torch_npu, without CANN, or without a device."""

    kind = "npu"
    switches = _SWITCHES

    def __init__(self, name: str = "npu") -> None:
        super().__init__(name)
        self._torch_npu = import_torch_npu()
        if not self.runtime.is_available():
            raise Unavailable(
                f'Device "{name}": torch_npu {self._torch_npu.__version__} loads but sees no NPU. '
                "Check npu-smi info and ASCEND_RT_VISIBLE_DEVICES."
            )

    def versions(self) -> Mapping[str, str]:
        found = {"torch_npu": str(self._torch_npu.__version__), **find_ascend_versions()}
        return {**super().versions(), **found, "soc": str(self.runtime.get_device_name())}

    def modes(self) -> Mapping[str, object]:
        flags = {
            f"{owner}.allow_hf32": getattr(getattr(self.runtime, owner, None), "allow_hf32", None)
            for owner in ("conv", "matmul")
        }
        return {**super().modes(), **{name: flag for name, flag in flags.items() if flag is not None}}


def is_real_torch_npu_loaded() -> bool:
    """Whether the real torch_npu has claimed the device type `npu` in this process."""
    module = sys.modules.get("torch_npu")
    return module is not None and not getattr(module, "is_simulated", False)


def is_real_torch_npu_present() -> bool:
    """Whether the real torch_npu is loaded or could be imported."""
    if "torch_npu" in sys.modules:
        return is_real_torch_npu_loaded()
    return find_spec("torch_npu") is not None


def falls_back(operator: Any) -> bool:
    """Whether the loaded torch_npu has no kernel for an operator (an OpOverload), so that the CPU computes it.

    torch_npu tells of it on stderr, once an operator, through a handler of its own: Python's warnings never see it. So
    the dispatcher is asked. A composite of other operators is none that falls back, whatever it is made of.
    """
    return is_real_torch_npu_loaded() and _lacks_kernel(operator)


@cache
def _lacks_kernel(operator: Any) -> bool:
    import torch

    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    name = operator.name()
    if has_kernel(name, "PrivateUse1"):
        return False
    if has_kernel(name, "CompositeImplicitAutograd") or has_kernel(name, "CompositeExplicitAutograd"):
        return False
    if not has_kernel(name, "CompositeExplicitAutogradNonFunctional"):
        return True
    # A structured operator makes its result and calls the form that writes to it.
    writing = _find_writing_form(operator)
    return writing != "" and not has_kernel(writing, "PrivateUse1")


def _find_writing_form(operator: Any) -> str:
    """ "aten::pow.Tensor_Scalar_out" of pow.Tensor_Scalar or its in-place form, "" where there is none."""
    import torch

    packet, _, overload = operator.name().partition(".")
    packet = packet[:-1] if packet.endswith("_") else packet
    for name in (f"{packet}.{overload}_out", f"{packet}.out"):
        if torch._C._dispatch_has_kernel(name):
            return name
    return ""
