"""Error maps of real comparisons, and reports of every kind held against the published schema."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest
import torch
from torch import nn

import precision_align as pa
from precision_align.core.results import Findings
from precision_align.core.terms import Kind, Phase, Role, Site, Status, Verdict, Way
from precision_align.divergence.locating import MAPPED
from precision_align.recording.session import capture
from precision_align.reporting.report import SCHEMA, Report, format_json

VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


class Patched(nn.Conv2d):
    """Wrong in one region of the picture."""

    def forward(self, x):
        y = super().forward(x).clone()
        y[:, :, 8:16, 24:32] *= 1.01
        return y


class Net(nn.Module):
    def __init__(self, kinds):
        super().__init__()
        self.layers = nn.ModuleList(kind(3, 3, 3, padding=1) for kind in kinds)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def make_pair(*kinds):
    torch.manual_seed(0)
    reference, candidate = Net([nn.Conv2d] * len(kinds)), Net(kinds)
    candidate.load_state_dict(reference.state_dict())
    return reference, candidate


def run(reference, candidate):
    return pa.lockstep(reference, candidate, (torch.randn(2, 3, 32, 48),))


@pytest.fixture(scope="module")
def patched():
    return run(*make_pair(nn.Conv2d, Patched))


@pytest.fixture(scope="module")
def reparametrised():
    reference, candidate = make_pair(nn.Conv2d)
    with torch.no_grad():
        candidate.layers[0].weight[1, 2, 0, 0] += 1.0
    return run(reference, candidate)


@pytest.fixture(scope="module")
def aligned():
    return run(*make_pair(nn.Conv2d))


def test_a_wrong_region_of_a_picture_shows_where_it_is(patched):
    assert patched.first.scope == "layers.1"
    (found,) = patched.error_maps
    assert (found.key, found.against, found.shape, found.axes) == (patched.first.key, "golden", (2, 3, 32, 48), (2, 3))
    cells = np.array(found.cells)
    wrong = np.zeros((32, 48), dtype=bool)
    wrong[8:16, 24:32] = True
    assert cells[wrong].min() > 100 * cells[~wrong].max()
    assert found.nonfinite == 0


def test_a_wrong_parameter_is_mapped_against_the_reference(reparametrised):
    assert reparametrised.first.site == Site.PARAMETERS
    found = reparametrised.error_maps[0]
    assert (found.against, found.equal, found.shape) == ("reference", 80, (3, 3, 3, 3))
    assert [values.index(max(values)) for _, values in found.profiles] == [1, 2, 0, 0]


def test_what_is_aligned_or_not_stored_has_no_map(aligned, tmp_path):
    assert (aligned.verdict, aligned.error_maps) == (Verdict.ALIGNED, ())
    for model, name in zip(make_pair(Patched), ("reference", "candidate")):
        with capture(model, tmp_path / name, payload="statistics") as recorder, recorder.step():
            model(torch.ones(1, 3, 32, 48))
    report = pa.compare(tmp_path / "reference", tmp_path / "candidate")
    assert (report.verdict, report.error_maps) == (Verdict.DIVERGED, ())


def test_few_of_many_places_are_mapped():
    report = run(*make_pair(*[Patched] * (MAPPED + 2)))
    assert len(report.frontier) >= MAPPED + 2
    assert [found.key for found in report.error_maps] == [found.key for found in report.frontier[:MAPPED]]


@pytest.mark.parametrize("kind", ["patched", "reparametrised", "aligned"])
def test_real_reports_fit_the_schema_and_come_back(kind, request):
    report = request.getfixturevalue(kind)
    data = json.loads(format_json(report))
    VALIDATOR.validate(data)
    assert Report.from_dict(data) == report


def test_a_dump_judged_by_code_alone_fits_too(tmp_path):
    _, candidate = make_pair(Patched)
    with capture(candidate, tmp_path / "dump") as recorder, recorder.step():
        candidate(torch.ones(1, 3, 32, 48))
    report = pa.compare(None, tmp_path / "dump", replay=build_clean)
    assert report.candidate["replay"].endswith(":build_clean")
    VALIDATOR.validate(report.to_dict())
    VALIDATOR.validate(Report.of(Findings(Verdict.NOT_COMPARABLE, None, (), (), ("nothing",), {})).to_dict())


def build_clean():
    return make_pair(nn.Conv2d)[0]


def test_damage_does_not_fit(patched):
    whole = patched.to_dict()
    whole["records"], whole["error_maps"] = whole["records"][:2], [{**whole["error_maps"][0], "cells": []}]
    assert VALIDATOR.is_valid(whole)
    for name in whole:
        lacking = {key: value for key, value in whole.items() if key != name}
        assert not VALIDATOR.is_valid(lacking), name
    for part in ("first", "frontier", "records", "error_maps"):
        first = whole[part] if part == "first" else whole[part][0]
        odd = {**first, "surprise": 1}
        assert not VALIDATOR.is_valid({**whole, part: odd if part == "first" else [odd]}), part


def test_words_of_the_schema_are_those_of_the_code():
    fields = VALIDATOR.schema["$defs"]
    assert set(VALIDATOR.schema["properties"]["verdict"]["enum"]) == set(Verdict)
    for shape, name, term in (
        ("divergence", "kind", Kind),
        ("divergence", "site", Site),
        ("record", "status", Status),
        ("record", "role", Role),
        ("module_pair", "way", Way),
    ):
        assert set(fields[shape]["properties"][name]["enum"]) == set(term)
    assert set(fields["status"]["enum"]) == set(Status)
    assert set(fields["phase"]["enum"]) == set(Phase)


def test_every_field_of_the_schema_is_described():
    def walk(node, place):
        if not isinstance(node, dict):
            return
        for name, field in node.get("properties", {}).items():
            assert field.get("description"), f"{place}.{name}"
            walk(field, f"{place}.{name}")
        for name, shape in node.get("$defs", {}).items():
            assert shape.get("description"), name
            walk(shape, name)
        walk(node.get("items"), place)

    jsonschema.Draft202012Validator.check_schema(VALIDATOR.schema)
    walk(VALIDATOR.schema, "report")
