"""``map routes``: aten overload -> the CANN operators that a torch_npu wheel asks for, for a chip's name.

Routing, not numerics: it is read off the real dispatcher of the wheel on a stub CANN, without hardware. It depends on
the chip's name and on every CANN function being there; an older CANN may send torch_npu to another one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_align.core.errors import Unavailable, UsageError
from precision_align.library.wheels import LIBRARY

SCHEMA_VERSION = 1
SECONDS = 900  # it takes half a minute on an idle core
LABEL = "routing recorded on a stub CANN, not numerics"


@dataclass(frozen=True)
class Routes:
    """``routes``: overload -> the sequences of CANN operators that were seen for it (none: it makes views or memory).

    ``operators``, ``clean``: how many entries of torch's table were run, and how many ran to the end; ``errors``: why
    the others did not.
    """

    torch_npu: str
    torch: str
    soc: str
    operators: int
    clean: int
    routes: Mapping[str, Sequence[Sequence[str]]]
    errors: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "schema_version": SCHEMA_VERSION,
            "label": LABEL,
            "torch_npu": self.torch_npu,
            "torch": self.torch,
            "soc": self.soc,
            "operators": self.operators,
            "clean": self.clean,
            "routes": {name: [list(path) for path in paths] for name, paths in self.routes.items()},
            "errors": dict(self.errors),
        }


def record_routes(wheel: str | Path, soc: str = "Ascend910B1") -> Routes:
    """Run the recorder in a process of its own. ``wheel``: a folder that holds ``torch_npu/``, fit for this torch.

    Raises UsageError for another folder, Unavailable without a C compiler, or where torch_npu does not load.
    """
    from precision_align.devices.stub_cann.building import build_stub
    from precision_align.devices.stub_cann.routes import build_routes, find_names

    library = Path(wheel) / LIBRARY
    if not library.is_file():
        raise UsageError(
            f"{wheel} holds no torch_npu: pip install --no-deps --target DIR torch_npu==VERSION, fit for this torch"
        )
    with tempfile.TemporaryDirectory(prefix="precision-align-routes-") as scratch:
        folder = build_stub(Path(scratch))
        build_routes(folder, find_names(library.read_bytes()))
        output = folder / "routes.json"
        command = [sys.executable, "-m", "precision_align.library.route_child", str(folder), str(output)]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=_build_environment(Path(wheel), soc),
            timeout=SECONDS, check=False,
        )  # fmt: skip
        if not output.is_file():
            reason = done.stderr.strip().splitlines()
            raise Unavailable(f"torch_npu of {wheel} did not run on the stub: {reason[-1] if reason else 'no message'}")
        return Routes(**json.loads(output.read_text(encoding="utf-8")))


def _build_environment(wheel: Path, soc: str) -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    path = [root, str(wheel.resolve()), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "STUB_CANN_SOC": soc,
        "TASK_QUEUE_ENABLE": "0",
        "ASCEND_LAUNCH_BLOCKING": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "OMP_NUM_THREADS": "1",
    }


def read_routes(path: str | Path) -> Routes:
    """What ``map routes -o`` wrote. Raises UsageError."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        if document.pop("schema_version") != SCHEMA_VERSION:
            raise UsageError(f"{path} was written by another version: record it again")
        document.pop("label")
        return Routes(**document)
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path} holds no routes of map routes: {error!r}") from error


def write_routes(path: str | Path, routes: Routes) -> None:
    """Raises UsageError."""
    try:
        Path(path).write_text(json.dumps(routes.to_dict(), indent=1) + "\n", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error}") from error


def compare_routes(old: Routes, new: Routes) -> dict[str, tuple[str, str]]:
    """Overload -> (old, new) for those that ask for other operators; what one side did not run is left out."""
    common = sorted(old.routes.keys() & new.routes.keys())
    pairs = {name: (phrase_route(old.routes[name]), phrase_route(new.routes[name])) for name in common}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def phrase_route(paths: Sequence[Sequence[str]]) -> str:
    """ "aclnnMul" or "aclnnPow, aclnnMean | aclnnRmsNorm" where samples went two ways."""
    return " | ".join(sorted(", ".join(path) for path in paths)) or "no CANN operator"


def render_routes(routes: Routes) -> str:
    """For a terminal: what was run, then one line an overload."""
    head = f"torch_npu {routes.torch_npu}, torch {routes.torch}, {routes.soc}: {LABEL}"
    served = {name: paths for name, paths in routes.routes.items() if paths}
    distinct = {name for paths in served.values() for path in paths for name in path}
    lines = [head, f"{routes.clean} of {routes.operators} entries of torch's operator table ran to the end"]
    lines.append(
        f"{len(routes.routes)} aten overloads, {len(served)} ask CANN, for {len(distinct)} different operators"
    )
    return "\n".join([*lines, "", *(f"{name}: {phrase_route(paths)}" for name, paths in served.items())])
