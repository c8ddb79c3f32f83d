"""Certificates: computed from a reference's dump, and what they judge without the reference's code."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from programs import make_environment, run_python
from torch import nn

import precision_align as pa
from precision_align.alignment.pairing import Alignment
from precision_align.alignment.side import Side
from precision_align.comparison.certificates import CertificateProvider
from precision_align.core.errors import DumpDamaged
from precision_align.core.terms import Status
from precision_align.numerics.judgement import Judgement
from precision_align.storage.certificates import Certificates, CertificateWriter, Entry, find_certificates
from precision_align.storage.opening import open_own


class Act(nn.Module):
    """No stock module: only its code, or a certificate, tells what is right. ``gain``: what a faulty build adds;
    ``spelled``: the same by other operators, whose roundings differ."""

    gain = 1.0
    spelled = False

    def forward(self, x):
        if self.spelled:
            return x.exp().log1p() / (1 + (-x).exp())
        return torch.nn.functional.softplus(x) * x.sigmoid() * self.gain


class Inner(nn.Module):
    """Code between children. ``offset``: what a faulty build adds."""

    offset = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(16, 32), Act(), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(self.act(self.up(x) * (1 + self.offset)))


def build(dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), Inner(), nn.LayerNorm(16), nn.Linear(16, 4)).to(dtype)


class Split(nn.Linear):
    """The same product in pieces, so that nothing after it is bit-equal."""

    def forward(self, x):
        parts = [a.float() @ b.float().t() for a, b in zip(x.split(4, -1), self.weight.split(4, -1))]
        return (sum(reversed(parts)) + self.bias.float()).to(x.dtype)


def run(model: nn.Module, path: Path, **options) -> None:
    torch.manual_seed(1)
    batch = torch.randn(64, 16).to(model[0].weight.dtype)
    with pa.capture(model, path, **options) as recorder, recorder.step():
        model(batch).float().square().mean().backward()


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certified") / "reference"
    run(build(), folder)
    return folder, pa.certify(folder, replay=build)


@pytest.fixture(scope="module")
def fine(tmp_path_factory):
    """In float32, where nothing of another order of sums is bit-equal."""
    folder = tmp_path_factory.mktemp("certified") / "fine"
    run(build(torch.float32), folder)
    pa.certify(folder, replay=lambda: build(torch.float32))
    return folder


def change_nothing(model):
    for name in ("up", "down"):
        getattr(model[1], name).__class__ = Split
    model[0].__class__ = Split


def spell_act(model):
    """Where all of a call is bit-equal there is nothing to judge: a right build that is not."""
    change_nothing(model)
    model[1].act.spelled = True


def scale_act(model):
    change_nothing(model)
    model[1].act.gain = 1.006  # below the raw limit of bfloat16


def shift_inline(model):
    change_nothing(model)
    model[1].offset = 0.004


def judge_forced(reference, change, tmp_path, dtype=torch.bfloat16, **options):
    model = build(dtype)
    change(model)
    run(model, tmp_path / "candidate", force=reference)
    return pa.compare(reference, tmp_path / "candidate", **options)


def test_certifying_says_what_it_did(reference):
    folder, found = reference
    assert [path.suffix for path in found.files] == [".certificate"]
    assert found.records > 20
    known = Certificates(find_certificates([folder / "rank00000"]))
    assert len(known) == found.records


def test_floors_hold_every_build_that_was_tried(reference):
    folder, _ = reference
    known = Certificates(find_certificates([folder / "rank00000"]))
    with pa.open_dump(folder) as dump:
        entries = [known.get(str(record.key)) for record in dump.records]
    found = [entry for entry in entries if entry is not None]
    assert {"native", "reordered", "threads", "recorded"} <= {name for entry in found for name in entry.floors}
    assert all(entry.noise >= 1 for entry in found)


def test_a_conforming_candidate_passes_without_the_references_code(fine, tmp_path):
    report = judge_forced(fine, change_nothing, tmp_path, torch.float32)
    assert (report.verdict, report.first) == ("aligned", None)
    assert any(row.evidence == "certificate" for row in report.records)


@pytest.mark.parametrize(("change", "scope", "site"), [(scale_act, "1.act", "module"), (shift_inline, "1", "inline")])
def test_a_fault_below_the_raw_limit_is_found_without_the_references_code(reference, change, scope, site, tmp_path):
    first = judge_forced(reference[0], change, tmp_path).first
    assert first is not None
    assert (first.scope, first.site, first.phase) == (scope, site, "forward")
    assert "certificate" in first.evidence


def test_both_kinds_of_evidence_are_shown_where_both_apply(reference, tmp_path):
    report = judge_forced(reference[0], scale_act, tmp_path, replay=build)
    assert "float64 replay and the reference's certificate" in report.first.evidence
    assert not [note for note in report.notes if "disagrees" in note]


class Other(Act):
    gain = 1.05


def build_other():
    model = build(torch.float32)
    model[1].act.__class__ = Other
    return model


def test_code_that_is_not_what_was_recorded_certifies_nothing(tmp_path):
    """Its golden is off the reference's own records, which would let anything as far off pass."""
    run(build(torch.float32), tmp_path / "reference")
    found = pa.certify(tmp_path / "reference", replay=build_other)
    assert found.skipped["the code given does not compute what was recorded"] == 2  # forward and backward
    assert found.records > 20
    report = judge_forced(tmp_path / "reference", scale_act, tmp_path, torch.float32)
    assert not [row for row in report.records if row.scope == "1.act" and row.evidence == "certificate"]


def test_a_disagreement_is_shown_and_the_more_severe_verdict_stands(fine, tmp_path):
    model = build(torch.float32)
    scale_act(model)
    run(model, tmp_path / "candidate", force=fine)
    with open_own(fine) as reference, open_own(tmp_path / "candidate") as candidate:
        alignment = Alignment(Side(reference), Side(candidate))
        provider = CertificateProvider(alignment)
        node = next(node for node in alignment.candidate.nodes if node.scope == "1.act")
        replayed = {(-1, ""): (Judgement(Status.PASS, "fine"), node.outputs[""])}
        judgement, _ = provider.combine(node, replayed, backward=False)[-1, ""]
    assert (judgement.status, judgement.evidence) == ("fail", "replay+certificate")
    assert "replay says pass (fine), the certificate fail" in judgement.why
    assert ["evidence disagrees" in note for note in provider.disagreements] == [True]


def test_code_that_is_not_the_references_gives_way_to_the_certificate(fine, tmp_path):
    report = judge_forced(fine, spell_act, tmp_path, torch.float32, replay=build_other)
    assert (report.verdict, report.first) == ("aligned", None)
    assert {row.evidence for row in report.records if row.scope == "1.act" and row.role == "output"} == {"certificate"}


def test_a_certificate_is_not_used_for_other_inputs(fine, tmp_path):
    model = build(torch.float32)
    scale_act(model)
    run(model, tmp_path / "free")
    report = pa.compare(fine, tmp_path / "free")
    assert any("certificates do not hold" in note for note in report.notes)
    judged = [row for row in report.records if "certificate" in row.evidence]
    assert all(row.scope in ("0", "") for row in judged)


def test_capture_certifies_when_the_session_is_over(tmp_path):
    run(build(), tmp_path / "dump", certify=True)
    assert len(Certificates(find_certificates([tmp_path / "dump" / "rank00000"]))) > 20


def test_certify_needs_a_place_to_write():
    with pytest.raises(pa.PrecisionAlignError, match="beside the dump's files"):
        pa.capture(build(), None, sink=object(), certify=True)


def test_values_come_back_exactly(tmp_path):
    recorded = np.array([1.0, -2.5, 0.0])
    golden = recorded + np.array([1e-9, -3e-8, np.nan])
    size = np.array([1.0, 0.25, 3.0])
    path = tmp_path / "step00000000.certificate"
    fields = {"coefficient": 4.0, "length": 0, "formula": False, "decomposable": True, "split": False, "origin": "x"}
    with CertificateWriter(path, {"run": "r"}) as writer:
        writer.add(Entry("k", "f", (3,), fields, {"native": 0.1}, 1.0), golden, recorded, size)
        writer.add(Entry("m", "f", (2,), fields, {}, 2.0), recorded[:2] + 1e-10, recorded[:2], size[:2])
    known = Certificates([path])
    read, scale = known.read("k", recorded)
    np.testing.assert_array_equal(read, golden)
    np.testing.assert_array_equal(scale, size)
    np.testing.assert_allclose(known.read("m", recorded[:2])[0] - recorded[:2], 1e-10, rtol=1e-6)
    assert known.get("absent") is None


def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path):
    path = tmp_path / "step00000000.certificate"
    path.write_bytes(b"\x89HDF but not really")
    with pytest.raises(DumpDamaged, match="certify again"):
        Certificates([path])


def test_the_verb_certifies_and_the_next_comparison_uses_it(reference, tmp_path):
    run(build(), tmp_path / "dump")
    (tmp_path / "plain.py").write_text(
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom test_certificates import build\n"
    )
    words = ("certify", "dump", "--replay", "plain.py:build", "--json")
    helpers = Path(inspect.getfile(run_python)).parent  # what this file imports
    done = run_python("-m", "precision_align", *words, cwd=tmp_path, env=make_environment(PYTHONPATH=str(helpers)))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["records"] == reference[1].records
    assert Path(tmp_path / found["files"][0]).exists()
