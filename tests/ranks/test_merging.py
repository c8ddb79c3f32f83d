"""A reference of one device against candidates on several ranks, built with torch's own parallelism."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from rank_runs import NEW, PARALLEL

from precision_align.alignment.merging import MergedDump
from precision_align.cli.app import main
from precision_align.comparison.boundaries import find_boundary
from precision_align.storage.opening import open_dump
from precision_align.training.health.checking import check_health
from precision_align.workflows.comparing import compare

pytestmark = pytest.mark.skipif(not NEW, reason="fully_shard and DTensor have their public names from torch 2.6")
RUNS = [pytest.param(world, name, id=f"{name}-{world}") for world, names in PARALLEL.items() for name in names]


@pytest.mark.parametrize(("world", "name"), RUNS)
def test_a_candidate_on_several_ranks(groups, world, name):
    report = compare(groups[world] / "reference", groups[world] / name)
    fault = name.partition("-")[2]
    if not fault:
        assert report.verdict == "aligned", report.first
        shares = {phase: coverage.share for phase, coverage in report.coverage.items()}
        assert all(share == 1.0 for share in shares.values()), shares
        return
    assert report.verdict == "diverged"
    assert report.first.scope == ("blocks.0.down" if fault == "unreduced" else fault)
    if fault != "unreduced":
        assert report.first.rank == 1
        assert "rank 1" in report.first.evidence


@pytest.mark.parametrize(("world", "name"), [run for run in RUNS if "-" not in run.values[1]])
def test_parallelism_is_no_fault_of_a_run(groups, world, name):
    assert not check_health(groups[world] / name).findings


def test_merged_tensors_are_the_whole_ones(groups):
    with open_dump(groups[4] / "both") as dump, open_dump(groups[4] / "reference") as reference:
        merged = MergedDump(dump, reference)
        assert merged.ranks == [0]
        equal = 0
        for record in reference.records:
            if record.key.source == "parameters" and record.key.role == "parameter":
                assert np.array_equal(merged.values(record.key), reference.values(record.key)), record.key
                equal += 1
        assert equal == 16


def test_a_layout_file_and_its_errors(groups, tmp_path, capsys):
    layout = tmp_path / "layout.toml"
    sides = [str(groups[2] / "reference"), str(groups[2] / "tp"), "--layout", str(layout), "--json"]
    layout.write_text(
        '[mesh]\ntp = 2\n[tensors]\n"blocks.*.act" = "... h[tp]"\n"blocks.*.up" = { output = "b s h[tp]" }\n'
    )
    assert main(["compare", *sides]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "aligned"
    layout.write_text('[mesh]\ntp = 2\n[tensors]\n"blocks.*.act" = "b s h[dp]"\n')
    assert main(["compare", *sides]) == 2
    assert "no dimension 'dp' (tp)" in capsys.readouterr().err
    layout.write_text('[mesh]\ntp = 3\n[tensor]\n"blocks.*.act" = "b s h[tp]"\n')
    assert main(["compare", *sides]) == 2
    assert "unknown key 'tensor'" in capsys.readouterr().err
    layout.write_text("[mesh]\ntp = 3\n")
    assert main(["compare", *sides]) == 2
    assert "the dump has 2 ranks" in capsys.readouterr().err


def test_a_rank_that_is_missing_or_ends_early_is_said(groups, tmp_path):
    shutil.copytree(groups[2] / "Clean", tmp_path / "cut")
    last = sorted((tmp_path / "cut" / "rank00001").glob("step*"))[-1]
    last.unlink()
    report = compare(groups[2] / "Clean", tmp_path / "cut")
    assert report.verdict == "not comparable"  # what there is was compared, and agrees
    assert "candidate: rank 1 ends after step 0, others after step 1" in report.notes, report.notes
    shutil.rmtree(tmp_path / "cut" / "rank00001")
    report = compare(groups[2] / "Clean", tmp_path / "cut")
    assert report.verdict == "not comparable"
    assert all(coverage.share > 0.4 for coverage in report.coverage.values()), report.coverage
    assert any("missing: 1" in note for note in report.notes), report.notes


def test_the_boundary_at_which_agreement_ends(groups):
    with open_dump(groups[2] / "tp") as reference, open_dump(groups[2] / "tp-unreduced") as candidate:
        told = find_boundary(reference, candidate)
        assert find_boundary(reference, reference) == []
    assert len(told) == 1
    assert "all_reduce over ranks 0,1" in told[0]
    report = compare(groups[2] / "ddp", groups[2] / "ddp-blocks.1.norm")
    assert any("its inputs differ on rank 1" in note for note in report.notes), report.notes


def test_the_loss_of_parts_of_a_batch_is_their_mean(groups, capsys):
    arguments = ["loss", str(groups[2] / "reference"), str(groups[2] / "ddp"), "--json"]
    assert main(arguments) == 0
    assert "the mean of ranks 0, 1 is taken" in capsys.readouterr().out


def test_merged_ranks_in_shares_give_the_same_report(groups, tmp_path, capsys):
    sides = [str(groups[2] / "reference"), str(groups[2] / "fsdp-blocks.0.act"), "-o", str(tmp_path / "report.json")]
    for share in ("1/2", "2/2"):
        assert main(["compare", *sides, "--shard", share]) == 0
    assert main(["compare", *sides, "--merge"]) == 1
    shared = (tmp_path / "report.json").read_bytes()
    assert main(["compare", *sides]) == 1
    assert (tmp_path / "report.json").read_bytes() == shared
    capsys.readouterr()
