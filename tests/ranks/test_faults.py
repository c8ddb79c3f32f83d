"""Faults of distributed trainings are named from one run, with rank and group; benign topologies are silent."""

from __future__ import annotations

import pytest
import torch
from rank_runs import NEW, list_jobs
from rank_trainings import BENIGN, FAULTS, Bypassed

from precision_align.cli.app import main
from precision_align.comparison.collectives import judge_exchange
from precision_align.comparison.exchanges import match_exchanges
from precision_align.storage.opening import open_dump
from precision_align.training.health.checking import check_health

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")


def cases(known):
    return [
        pytest.param(world, job, id=f"{job.__name__}-{world}")
        for world in (2, 4)
        for job in list_jobs(world)
        if job in known
    ]


@pytest.mark.parametrize(("world", "job"), cases(FAULTS))
def test_a_fault_is_named_with_rank_and_group(groups, world, job):
    code, rank, place = FAULTS[job]
    if job.__name__ == "LeftOut" and world == 2:  # what is left of a group of two is one rank alone
        code, rank = "not reduced", 0
    report = check_health(groups[world] / job.__name__)
    found = [one for one in report.findings if one.code == code]
    assert found, code
    others = {one.code for one in report.faults} - {code}  # what follows from it is no fault of its own
    assert others <= ({"mean of means"} if job.__name__ == "OtherBatch" else set()), others
    assert str(found[0].values["group"]).startswith(",".join(map(str, range(world))))
    assert rank is None or found[0].rank == rank
    assert place is None or found[0].place == place


@pytest.mark.parametrize(("world", "job"), cases(BENIGN))
def test_a_benign_topology_is_silent(groups, world, job):
    report = check_health(groups[world] / job.__name__)
    assert not report.findings, report.findings
    assert report.checks["collectives"] > 0
    assert report.checks["replicas"] == world


def test_the_verb_says_rank_and_group(groups, capsys):
    assert main(["health", str(groups[2] / Bypassed.__name__)]) == 1
    screen = " ".join(capsys.readouterr().out.split())
    assert "was not reduced over ranks 0,1" in screen
    assert main(["health", str(groups[2] / BENIGN[0].__name__), "--lang", "zh"]) == 0


@pytest.mark.skipif(not NEW, reason="gloo of older torch lacks some collectives")
def test_every_kind_of_collective_is_judged_from_all_ranks_inputs(groups):
    with open_dump(groups[2] / "talking") as dump:
        judged = [judge_exchange(dump, exchange) for exchange in match_exchanges(dump)]
    kinds = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter", "all_to_all")
    assert {one.exchange.kind for one in judged} == {*kinds, "send"}
    assert all(one.status == "pass" for one in judged), [(one.exchange.kind, one.note) for one in judged]
    assert len(judged) == 15
