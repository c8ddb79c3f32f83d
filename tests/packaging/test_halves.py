"""The two halves on their own: the wheel's contents, offline verbs without torch, the live half with torch alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
TRAIN = textwrap.dedent(
    """
    import sys
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

        def forward(self, x):
            y = torch.relu(self.norm(self.first(x)))
            return self.last(y * float(sys.argv[1]))

    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(3):
        loss = model(torch.randn(5, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    """
)


def run(*command: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command in a clean environment."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "COV", "PYTEST"))}
    environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=cwd, env=environment)


def check(*command: object, cwd: Path | None = None, status: int = 0) -> str:
    """Run a command, insist on its exit status, return stdout."""
    done = run(*command, cwd=cwd)
    assert done.returncode == status, f"{command}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "Traceback" not in done.stderr, done.stderr[-2000:]
    return done.stdout


def list_distributions(*names: str) -> dict[str, Distribution]:
    """The named distributions and all that they need, by name."""
    found: dict[str, Distribution] = {}
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found[name] = distribution(name)
            needed = (Requirement(text) for text in found[name].requires or ())
            waiting += [need.name for need in needed if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


def make_venv(folder: Path, wheel: Path, *packages: str) -> Path:
    """A fresh venv with the wheel (no dependencies of its own) and the named packages; returns its bin folder.

    The packages and all that they need are links to this environment's: to unpack torch anew takes half a minute.
    """
    venv.create(folder)
    program = folder / "bin" / "python"
    place = Path(check(program, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    for found in list_distributions(*packages).values():
        for top in {Path(file).parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (place / top).exists():
                (place / top).symlink_to(Path(str(found.locate_file(top))).resolve())
    install = ("install", "-q", "--disable-pip-version-check", "--no-deps", "--no-compile", wheel)
    check(sys.executable, "-m", "pip", "--python", program, *install)
    return folder / "bin"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    check(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Path:
    return make_venv(tmp_path_factory.mktemp("live") / "venv", wheel, "torch", "numpy", "h5py")


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory, live: Path) -> Path:
    """Two runs of one script, recorded by the live half; the candidate multiplies by 1.01 inside the root's forward."""
    folder = tmp_path_factory.mktemp("dumps")
    (folder / "train.py").write_text(TRAIN)
    for side, factor in (("reference", "1.0"), ("candidate", "1.01")):
        command = ("capture", "-o", side, "--", "train.py", factor)
        check(live / "precision-align", *command, cwd=folder)
    return folder


def test_wheel_holds_the_library_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "precision_align/_bundled/op_cases/rope/mapping.toml" in names
    assert "precision_align/_bundled/golden/functions/rope.py" in names
    assert "precision_align.pth" in names  # beside the package, where Python looks for start-up files
    assert any(name.endswith((".html.j2", ".html")) for name in names if "templates" in name)
    assert "precision_align/reporting/schema/report.schema.json" in names
    assert not [name for name in names if name.startswith(("tests", "docs", "reports"))]


@pytest.mark.slow
def test_live_half_needs_only_torch_numpy_h5py(live: Path, dumps: Path) -> None:
    listed = (
        "from importlib.metadata import distributions; print(*(found.metadata['Name'] for found in distributions()))"
    )
    names = set(check(live / "python", "-c", listed).lower().split())
    assert names >= {"precision-align", "torch", "numpy", "h5py"}
    assert not names & {"tomli", "rich", "numba", "pytest"}
    assert "rank00000" in [path.name for path in (dumps / "candidate").iterdir()]
    assert "torch" in check(live / "precision-align", "doctor", "--json")
    report = json.loads(check(live / "precision-align", "case", "run", "rms_norm", "--device", "cpu", "--json"))
    assert report


@pytest.mark.slow
def test_offline_half_needs_no_torch(tmp_path_factory: pytest.TempPathFactory, wheel: Path, dumps: Path) -> None:
    programs = make_venv(tmp_path_factory.mktemp("offline") / "venv", wheel, "numpy", "h5py", "jinja2")
    check(programs / "python", "-c", "import importlib.util as u; raise SystemExit(u.find_spec('torch') is not None)")
    tool = programs / "precision-align"
    shown = json.loads(check(tool, "show", dumps / "candidate", "--json"))
    assert shown
    report = dumps / "offline.json"
    out = check(tool, "compare", dumps / "reference", dumps / "candidate", "-o", report, "--json", status=1)
    found = json.loads(out)
    assert found["verdict"] == "diverged"
    assert (found["first"]["scope"], found["first"]["site"], found["first"]["phase"]) == ("", "inline", "forward")
    assert any("torch is not installed" in note for note in found["notes"])
    check(tool, "report", report, "-o", dumps / "offline.html")
    check(tool, "loss", dumps / "reference", dumps / "candidate", status=1)
    assert "npu_rms_norm" in check(tool, "map", "show", "rms_norm")
