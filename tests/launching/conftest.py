"""A Python that has the package's start-up file in its site-packages, as a wheel would leave it there."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STARTUP = ROOT / "precision_align" / "startup.pth"


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment's interpreter: this one's packages, and the start-up file."""
    folder = tmp_path_factory.mktemp("launching") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    others = [entry for entry in sys.path if entry.endswith("site-packages")]
    (site / "_others.pth").write_text("\n".join([str(ROOT), *others, ""]))
    (site / "precision_align.pth").write_bytes(STARTUP.read_bytes())
    return folder / "bin" / "python"


@pytest.fixture
def launch(tmp_path: Path):
    """Runs a command in a folder of its own with a configuration in the environment; returns what it did."""

    def launch(*words: object, status: int = 0, configuration: str | None = None, **environment: str):
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith(("PRECISION_", "PYTHON", "COV"))
        }
        variables = {**inherited, "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", **environment}
        if configuration is not None:
            (tmp_path / "capture.toml").write_text(textwrap.dedent(configuration))
            variables["PRECISION_ALIGN"] = "capture.toml"
        done = subprocess.run(
            [str(word) for word in words],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == status, done.stderr[-3000:]
        return done

    return launch


@pytest.fixture
def write(tmp_path: Path):
    """Writes a script into the test's folder."""

    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(textwrap.dedent(text))
        return name

    return write
