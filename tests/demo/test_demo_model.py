"""The demo's model, text and training script, on the CPU."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

import precision_align
from precision_align.demo.model import CausalAttention, InterleavedRotaryEmbedding, RMSNorm, SwiGLU, build_model
from precision_align.demo.text import draw_batches, load_text, read_sources
from precision_align.demo.train import Settings, main, train
from precision_align.training.curves import compare_losses


def test_the_model_is_small_and_the_same_each_time() -> None:
    first, second = build_model(), build_model()
    assert sum(parameter.numel() for parameter in first.parameters()) < 1_000_000
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))


def test_building_leaves_the_random_state_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    build_model()
    assert torch.equal(torch.rand(3), expected)


def test_rotation_depends_on_distance_alone() -> None:
    rotary = InterleavedRotaryEmbedding(16, 32)
    query, key = torch.randn(2, 1, 1, 1, 16, generator=torch.Generator().manual_seed(0)).expand(2, 1, 1, 32, 16)
    query, key = rotary(query, key)
    scores = (query @ key.transpose(-1, -2))[0, 0]
    for distance in (-7, 0, 3):
        diagonal = scores.diagonal(distance)
        assert torch.allclose(diagonal, diagonal[0].expand_as(diagonal), atol=1e-5)
    assert not torch.allclose(scores[0, 0], scores[0, 3], atol=1e-3)


def test_operators_are_those_of_torch() -> None:
    x = torch.randn(4, 6, 32, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(RMSNorm(32)(x), torch.nn.functional.rms_norm(x, (32,), eps=1e-6), atol=1e-6)
    gate, up = x.chunk(2, -1)
    assert torch.equal(SwiGLU()(x), torch.nn.functional.silu(gate) * up)


def test_attention_sees_no_later_position() -> None:
    query, key, value = torch.randn(3, 1, 2, 9, 8, generator=torch.Generator().manual_seed(2))
    before = CausalAttention()(query, key, value)
    value[:, :, 5:] = 100.0
    key[:, :, 5:] = -3.0
    assert torch.allclose(CausalAttention()(query, key, value)[:, :, :5], before[:, :, :5])


def test_batches_are_text_and_repeat_for_a_seed() -> None:
    text = load_text()
    assert text.count(b" the ") > 100
    (tokens, targets), (again, _) = (next(draw_batches(text, 4, 16, seed)) for seed in (3, 3))
    assert torch.equal(tokens, again)
    assert torch.equal(tokens[:, 1:], targets[:, :-1])
    assert bytes(tokens[0].tolist()) in text
    assert not torch.equal(tokens, next(draw_batches(text, 4, 16, 4))[0])


def test_text_where_python_has_no_help_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pydoc_data.topics", None)
    text = load_text()
    assert len(text) > 10_000
    assert b"def load_text" in text


def test_sources_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text("two")
    (tmp_path / "a.py").write_text("one")
    assert read_sources(tmp_path) == b"one\ntwo"


def test_training_learns_and_its_log_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--steps", "25", "--learning-rate", "3e-3", "--save", str(tmp_path / "start.pt")])
    log = tmp_path / "run.log"
    log.write_text(capsys.readouterr().out)
    series = precision_align.compare_losses(log, log).reference
    assert series.steps == tuple(range(25))
    assert series.values[0] == pytest.approx(5.7, abs=0.2)  # ln 256 and a little: nothing is learnt yet
    assert series.values[-1] < 4.0
    _, losses = train(Settings(steps=1, start=str(tmp_path / "start.pt")))
    assert losses[0] < 4.0


@pytest.mark.parametrize("seed", range(2))
def test_runs_that_differ_by_roundoff_do_not_part(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real curves: the same training from weights that differ in their last bit."""
    from precision_align.demo import train as script

    settings = Settings(steps=60, learning_rate=3e-3)
    _, reference = train(settings)
    generator = torch.Generator().manual_seed(seed)

    def prepare(settings: Settings) -> torch.nn.Module:
        model = build_model()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 1 + (torch.rand(parameter.shape, generator=generator) - 0.5) * 2.0**-23
        return model

    monkeypatch.setattr(script, "prepare_model", prepare)
    _, candidate = train(settings)
    assert reference != candidate
    for band in (None, "float32"):
        report = compare_losses(list(enumerate(reference)), list(enumerate(candidate)), band=band)
        assert not report.parted


def test_a_named_fault_is_found_where_it_is(tmp_path: Path) -> None:
    for name, fault in (("clean", None), ("broken", "scale@blocks.1.mlp.down:mm:forward:value=1.01")):
        train(Settings(steps=2, batch=2, length=16, dump=str(tmp_path / name), record="0", fault=fault))
    report = precision_align.compare(tmp_path / "clean", tmp_path / "broken", replay=build_model)
    assert report.first is not None
    assert (report.first.scope, str(report.first.phase), report.first.step) == ("blocks.1.mlp.down", "forward", 0)


def test_recording_changes_no_loss(tmp_path: Path) -> None:
    plain, recorded = (
        train(Settings(steps=4, batch=2, length=16, dump=dump))[1] for dump in (None, str(tmp_path / "dump"))
    )
    assert plain == recorded
    points = precision_align.open_dump(tmp_path / "dump").series
    assert [point.value for point in itertools.islice(points, 4)] == pytest.approx(plain, abs=0)
