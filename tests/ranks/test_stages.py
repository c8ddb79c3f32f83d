"""Ranks that hold different modules against a reference of one device: torch's pipelines, and experts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rank_runs import NEW
from stage_models import cut_tower, draw_batch, make_tower

import precision_align as pa
from precision_align.alignment.rows import match_rows
from precision_align.alignment.stages import Renaming
from precision_align.cli.app import main
from precision_align.training.health.checking import check_health
from precision_align.workflows.comparing import compare

pytestmark = pytest.mark.skipif(not NEW, reason="these schedules of torch.distributed.pipelining came later")

# world, reference, candidate, module of the fault, its rank
RUNS = [
    (2, "tower", "stages", "", 0),
    (2, "tower", "stages-fault", "blocks.2.up", 1),
    (2, "tower", "chunks", "", 0),
    (2, "tower", "chunks-fault", "blocks.2.down", 0),
    (4, "tower", "stages", "", 0),
    (4, "tower", "stages-fault", "blocks.1.up", 1),
    (2, "tokens", "experts", "", 0),
    (2, "tokens", "experts-fault", "experts.2.0", 1),
]


@pytest.mark.parametrize(("world", "reference", "name", "place", "rank"), RUNS)
def test_parts_of_a_model_are_one(groups, world, reference, name, place, rank):
    report = compare(groups[world] / reference, groups[world] / name)
    assert any("go under the whole model's names, by the parameters at the start" in note for note in report.notes)
    if not place:
        assert report.verdict == "aligned", report.first
        assert all(coverage.share == 1.0 for coverage in report.coverage.values()), report.coverage
        assert not any("not merged" in note for note in report.notes), report.notes
        return
    assert report.verdict == "diverged"
    assert (report.first.scope, report.first.rank) == (place, rank)
    assert f"on rank {rank}" in report.first.evidence


@pytest.mark.parametrize("name", ["stages", "chunks", "experts"])
def test_different_modules_of_one_name_are_no_fault(groups, name):
    report = check_health(groups[2] / name)
    assert not report.faults, report.faults
    assert any("no replicas of each other" in note for note in report.notes)


def test_what_a_stage_gets_is_what_was_sent(groups):
    notes = compare(groups[4] / "tower", groups[4] / "stages").notes
    assert any("12 of 12 tensors between stages arrive as they were sent" in note for note in notes), notes
    notes = compare(groups[2] / "tokens", groups[2] / "experts").notes
    assert any("rows in another order, matched by their content" in note for note in notes), notes


def test_a_layout_file_names_the_stages(groups, tmp_path, capsys):
    layout = tmp_path / "layout.toml"
    sides = [str(groups[2] / "tower"), str(groups[2] / "stages"), "--layout", str(layout), "--json"]
    layout.write_text("[stages]\n1 = { blocks = 2 }\n")
    assert main(["compare", *sides]) == 0
    report = json.loads(capsys.readouterr().out)
    assert any("by the layout file" in note for note in report["notes"])
    layout.write_text("[stages.1]\nblocks = 1\n")  # a wrong one is no cover: other parameters are found there
    assert main(["compare", *sides]) == 1
    capsys.readouterr()
    layout.write_text('[stages]\nlast = { blocks = 2 }\n"1" = { blocks = 2.5 }\n')
    assert main(["compare", *sides]) == 2
    told = capsys.readouterr().err
    assert "stages.last: write ranks and scopes" in told
    assert "stages.1.blocks = 2.5 is neither a scope nor a number" in told


def test_names_of_a_stage():
    renaming = Renaming({"tail": "head", "": ""}, {"layers": ("model.layers", 4)})
    assert renaming.apply("layers.1.up") == "model.layers.5.up"
    assert renaming.apply("tail.weight") == "head.weight"
    assert renaming.apply("norm") == "norm"


def test_rows_are_matched_only_where_they_can_be_told_apart():
    generator = np.random.default_rng(0)
    rows = generator.standard_normal((20, 8)).astype(np.float32)
    order = generator.permutation(20)
    for noise in (0.0, 1e-6, 1e-2):
        found = match_rows(rows[order] + np.float32(noise) * generator.standard_normal((20, 8)), rows)
        assert np.array_equal(rows[order][found], rows)
    assert match_rows(rows, rows) is None
    assert match_rows(generator.standard_normal((20, 8)), rows) is None
    rows[3] = rows[4] + 1e-3
    assert match_rows(rows[order] + np.float32(1e-2) * generator.standard_normal((20, 8)), rows) is None
    rows[0, 0] = np.nan
    assert match_rows(rows[order], rows) is None


@pytest.mark.parametrize("lost", [False, True])
def test_layer_numbers_of_a_framework_and_a_broken_transfer(tmp_path, lost):
    """Two stages one after the other, as Megatron numbers their layers; the second gets what it gets."""
    x, _ = draw_batch()
    whole = make_tower()
    with pa.capture(whole, tmp_path / "reference", sources=("modules",)) as recorder, recorder.step():
        whole(x)
    for rank in (0, 1):
        stage = cut_tower(rank, 2)
        for number, block in enumerate(stage.blocks):
            block.layer_number = 2 * rank + number + 1
        with pa.capture(stage, tmp_path / "stages", sources=("modules",), rank=rank) as recorder, recorder.step():
            x = stage(x).detach()
        if lost:
            x[0] = 0
    report = compare(tmp_path / "reference", tmp_path / "stages")
    notes = " ".join(report.notes)
    assert "modules of ranks 1 go under the whole model's names, by the framework's layer numbers" in notes
    assert f"{int(not lost)} of 1 tensors between stages arrive as they were sent" in notes
    assert report.verdict == ("diverged" if lost else "aligned"), report.first
    assert report.first is None or report.first.scope == ""
