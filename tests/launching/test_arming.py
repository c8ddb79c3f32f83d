"""Which processes wait for a model, and where each stands among the ranks."""

from __future__ import annotations

import subprocess
import sys

import pytest

from precision_align.recording import arming
from precision_align.recording.placement import describe_placement, read_placement

pytestmark = pytest.mark.live

PLACES = [
    ({}, (None, 1, 0)),
    ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, (3, 8, 1)),
    ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, (2, 4, 2)),
    ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2, 0)),
    ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1"}, (5, 16, 1)),
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}, (None, 1, 0)),  # a batch script outside of srun
    ({"RANK": "odd"}, (None, 1, 0)),
]


@pytest.mark.parametrize(("environment", "expected"), PLACES)
def test_places_of_launchers(environment, expected):
    assert read_placement(environment) == expected


@pytest.fixture
def started(monkeypatch):
    """Arms with the given word from above; returns what was started: (configuration, is it a child)."""

    def started(above: str, **environment: str) -> list[tuple[str, bool]]:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(arming.VARIABLE, "/there/capture.toml")
        monkeypatch.setenv(arming.ABOVE, above)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        calls: list[tuple[str, bool]] = []
        arming.arm(lambda path, below: calls.append((path, below)))
        return calls

    return started


@pytest.mark.parametrize(
    ("above", "environment", "below"),
    [
        ("", {}, False),  # the program itself
        ("waiting|", {}, True),  # below accelerate's launcher, or a helper: it has to train
        ("recording|", {}, None),  # a helper of a program that is captured
        ("waiting|", {"RANK": "1"}, False),  # below torchrun
        ("recording|RANK=0", {"RANK": "0"}, None),
        ("recording|RANK=0", {"RANK": "1"}, False),  # given another place
        ("failed|", {}, None),
        ("failed|RANK=0", {"RANK": "1"}, None),
    ],
)
def test_who_waits(started, above, environment, below):
    assert started(above, **environment) == ([] if below is None else [("/there/capture.toml", below)])
    placed = describe_placement() == above.partition("|")[2]
    assert not placed or arming.os.environ[arming.ABOVE].startswith(above.partition("|")[0] or "waiting")


def test_the_start_up_file_costs_nothing_without_the_variable_and_little_without_torch(python):
    show = "import sys; print(sorted(n for n in sys.modules if n[:5] in ('preci', 'torch', 'numpy')))"
    plain = {"PATH": "/usr/bin:/bin"}
    assert subprocess.check_output([python, "-c", show], env=plain, text=True) == "[]\n"
    armed = subprocess.check_output([python, "-c", show], env={**plain, "PRECISION_ALIGN": "absent.toml"}, text=True)
    assert "torch" not in armed.replace("precision_align", "")
    assert "numpy" not in armed
    assert "precision_align.auto" in armed
    assert subprocess.check_output([sys.executable, "-c", "import precision_align.auto; print(1)"], text=True) == "1\n"
