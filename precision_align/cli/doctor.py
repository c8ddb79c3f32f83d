"""``precision-align doctor``: is this machine fit to record, replay and compare? Part of the live half."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, Callable

from precision_align.cli.output import measure_columns, print_json, print_text
from precision_align.cli.versions import find_versions
from precision_align.core.errors import Unavailable
from precision_align.reporting.terminal import fold

SUMMARY = "check versions, devices and arithmetic switches here"

GOOD, NOTE, BAD, ABSENT = "ok", "note", "bad", "absent"
OLDEST_TORCH = (2, 1)
DEVICES = ("cpu", "cuda", "npu")
SIZE = 256  # of the trial product: K large enough to tell HF32 from fp32, small enough for a cold device
U32 = 2.0**-24
# inputs rounded to 11 mantissa bits (HF32, TF32): each factor is off by 2^-12 at most, the product by twice that; a
# device that truncates instead of rounding is off by twice as much again
REDUCED = 4 * 2.0**-12
DTYPES = {"float32": U32, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# environment switches without which the same run differs from itself
DETERMINISM = {"npu": ("HCCL_DETERMINISTIC", "LCCL_DETERMINISTIC"), "cuda": ("CUBLAS_WORKSPACE_CONFIG",)}


@dataclass(frozen=True)
class Check:
    """One thing looked at: ``status`` is ok, note, bad or absent; ``advice`` what to do, "" where nothing."""

    name: str
    status: str
    text: str
    advice: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--device."""
    parser.add_argument(
        "--device",
        action="append",
        metavar="NAME",
        help="check this device too, and call it bad where it is missing: cpu, cuda, npu or simulated[:profile]",
    )


def run(arguments: argparse.Namespace) -> int:
    """Exit status 0 where nothing is broken, 1 where a check failed. What is merely not installed is not broken."""
    versions = find_versions()
    checks = examine(versions, arguments.device or [])
    if arguments.json:
        listed = [asdict(check) for check in checks]
        print_json({"healthy": is_healthy(checks), "versions": versions, "checks": listed})
    else:
        print_text(render(versions, checks, measure_columns()))
    return 0 if is_healthy(checks) else 1


def is_healthy(checks: Sequence[Check]) -> bool:
    """Nothing is broken."""
    return all(check.status != BAD for check in checks)


def examine(versions: Mapping[str, str], wanted: Sequence[str]) -> list[Check]:
    """All checks: packages, devices, and on each device arithmetic and switches."""
    checks = [_check_storage(versions), _check_pages(versions), check_torch(versions.get("torch", ""))]
    if checks[-1].status not in (GOOD, NOTE):
        missing = [Check(f"device {name}", BAD, "cannot be used without torch") for name in wanted]
        return checks + missing
    for name in [*DEVICES, *(name for name in wanted if name not in DEVICES)]:
        checks += check_device(name, name in wanted)
    return checks


def _check_storage(versions: Mapping[str, str]) -> Check:
    absent = [name for name in ("numpy", "h5py") if not versions.get(name)]
    if absent:
        return Check("dumps", BAD, f"{' and '.join(absent)} missing", f"pip install {' '.join(absent)}")
    return Check("dumps", GOOD, f"can be read and written (numpy {versions['numpy']}, h5py {versions['h5py']})")


def _check_pages(versions: Mapping[str, str]) -> Check:
    if versions.get("jinja2"):
        return Check("report.html", GOOD, f"can be written (jinja2 {versions['jinja2']})")
    return Check("report.html", ABSENT, "jinja2 is not installed", "pip install 'precision-align[analysis]'")


def check_torch(version: str) -> Check:
    """torch is there, loads, and is new enough."""
    if not version:
        text = "not installed: dumps can be shown and compared, not recorded or replayed"
        return Check("torch", ABSENT, text, "pip install 'precision-align[torch]'")
    try:
        import_module("torch")
    except Exception as error:  # a torch_npu without CANN breaks `import torch` with whatever its loader raises
        advice = "source CANN's set_env.sh, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0 to leave torch_npu out"
        return Check("torch", BAD, f"{version} does not load: {_first_line(error)}", advice)
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if numbers < OLDEST_TORCH:
        return Check("torch", BAD, f"{version} is too old", "install torch 2.1 or later")
    return Check("torch", GOOD, version)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def check_device(name: str, wanted: bool) -> list[Check]:
    """Is it there, does it compute, is it set to compute the same twice? ``wanted``: its absence is an error."""
    from precision_align.devices.selection import open_device

    label = f"device {name}"
    try:
        device = open_device(name)
    except Unavailable as error:
        text = str(error).partition("] ")[2]
        return [Check(label, BAD if wanted else ABSENT, text)]
    checks = [Check(label, GOOD, device.describe())]
    for place in _list_places(device.kind):
        checks += _try(f"{label}: matmul", lambda place=place: check_products(name, place))
    return checks + _try(f"{label}: switches", lambda: check_switches(device.kind, device.modes()))


def _try(name: str, examine_it: Callable[..., list[Check]]) -> list[Check]:
    try:
        return examine_it()
    except Exception as error:  # drivers raise anything; a broken device is what we are here to find
        advice = "the device does not work from torch: check its driver and versions"
        return [Check(name, BAD, _first_line(error), advice)]


def _list_places(kind: str) -> list[str]:
    import torch

    if kind == "cpu":
        return ["cpu"]
    count = int(getattr(torch, kind).device_count())
    return [f"{kind}:{index}" for index in range(count)] or [kind]


def check_products(name: str, place: str) -> list[Check]:
    """A product of two random matrices in each dtype against float64 on the CPU, and against itself."""
    import torch

    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64) for _ in range(2))
    checks = []
    for dtype in DTYPES:
        kind = getattr(torch, dtype)
        low = [side.to(kind) for side in (left, right)]
        try:
            first, second = (torch.matmul(*(side.to(place) for side in low)).cpu().double() for _ in range(2))
        except (RuntimeError, NotImplementedError) as error:
            checks.append(Check(f"{place} {dtype}", NOTE, f"not supported: {_first_line(error)}"))
            continue
        golden = torch.matmul(*(side.double() for side in low))
        scale = torch.matmul(*(side.double().abs() for side in low))
        error_of = measure_error(first.numpy(), golden.numpy(), scale.numpy(), DTYPES[dtype])
        same = bool(torch.equal(first, second))
        checks.append(judge_product(f"{place} {dtype}", error_of, same))
    return checks


def measure_error(actual: Any, golden: Any, scale: Any, roundoff: float) -> float:
    """The largest |actual - golden| beyond the rounding of the result, over |A||B|; NaN counts as infinite.

    With fp32 accumulation it is at most gamma_K = K u / (1 - K u), u = 2^-24 (Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd ed., eq. 3.13).
    """
    import numpy as np

    excess = np.abs(actual - golden) - roundoff * np.abs(golden)
    worst = float(np.max(excess / scale))
    return math.inf if math.isnan(worst) else max(worst, 0.0)


def judge_product(name: str, error: float, same: bool) -> Check:
    """Full precision, a reduced arithmetic mode, or wrong; and the same twice or not."""
    bound = SIZE * U32 / (1 - SIZE * U32)
    shown = f"matmul error {error:.1e} of |A||B|, bound {bound:.1e}"
    if error > REDUCED:
        advice = "wrong beyond any arithmetic mode: update driver and toolkit before trusting this device"
        return Check(name, BAD, shown, advice)
    if error > bound:
        advice = "an arithmetic mode (HF32, TF32, fp16 accumulation) is on: switch it off for a float32 comparison"
        return Check(name, NOTE, shown, advice)
    if not same:
        return Check(name, NOTE, f"{shown}; two runs differ", "switch deterministic kernels on")
    return Check(name, GOOD, shown)


def check_switches(kind: str, modes: Mapping[str, object]) -> list[Check]:
    """Arithmetic modes and determinism switches as they are set now."""
    import os

    set_now = ", ".join(f"{name}={value}" for name, value in modes.items())
    missing = [name for name in DETERMINISM.get(kind, ()) if not os.environ.get(name)]
    advice = f"for repeatable runs set {', '.join(missing)}" if missing else ""
    return [Check(f"device {kind}: switches", NOTE if missing else GOOD, set_now, advice)]


def render(versions: Mapping[str, str], checks: Sequence[Check], width: int = 80) -> str:
    """Versions, then one paragraph a check, then what to do first."""
    space = max(len(name) for name in versions) + 2
    lines = [f"{name:<{space}}{version or '-'}" for name, version in versions.items()]
    lines.append("")
    for check in checks:
        text = f"{check.name}: {check.text}"
        lines += _hang(f"{check.status:<8}", text, width)
        lines += _hang(f"{'':<8}", f"-> {check.advice}", width) if check.advice else []
    bad = [check for check in checks if check.status == BAD]
    lines += ["", f"{len(bad)} of {len(checks)} checks failed" if bad else "nothing is broken"]
    return "\n".join(lines)


def _hang(head: str, text: str, width: int) -> list[str]:
    first, *rest = fold(text, width - len(head))
    return [head + first, *(" " * len(head) + line for line in rest)]
