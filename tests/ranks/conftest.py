"""The runs of real gloo groups that these tests look at."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the server of processes imports these, too

from gloo_processes import run_ranks
from rank_models import make_model, train
from rank_runs import run_all
from stage_models import train_experts, train_tower


@pytest.fixture(scope="session")
def groups(tmp_path_factory):
    """World size -> folder with a dump of each training, and "reference" of one device."""
    found = {}
    for world in (2, 4):
        found[world] = tmp_path_factory.mktemp(f"ranks{world}")
        run_ranks(world, found[world], run_all)
        train(make_model(), found[world] / "reference")
        train_tower(found[world] / "tower")
        train_experts(found[world] / "tokens")
    return found
