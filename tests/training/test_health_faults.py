"""Each fault put into a small training is named, at its step and its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from precision_align.training.health.checking import check_health
from precision_align.training.health.findings import Finding

torch = pytest.importorskip("torch")
nn = torch.nn
Make = Callable[..., Any]


def name_faults(path: Any, reference: Any = None) -> dict[str, Finding]:
    faults: dict[str, Finding] = {}
    for finding in check_health(path, reference).faults:
        faults.setdefault(finding.code, finding)
    return faults


def test_a_parameter_the_optimizer_does_not_hold(training: Make) -> None:
    run = training()
    run.optimizer = torch.optim.AdamW([*run.model[0].parameters(), run.model[3].weight], 1e-3)
    faults = name_faults(run.run())
    # its gradient is never cleared either, so that the norm that is logged grows past the step's own
    assert set(faults) == {"not owned", "norm mismatch"}
    assert (faults["not owned"].place, faults["not owned"].step, faults["not owned"].count) == ("3.bias", 0, 3)


def test_an_update_that_is_undone(training: Make) -> None:
    run = training("transformer")
    kept = run.model.block.norm.weight.detach().clone()

    class Undone(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            with torch.no_grad():
                run.model.block.norm.weight.copy_(kept)

    run.optimizer = Undone(run.model.parameters(), 1e-3)
    faults = name_faults(run.run())
    assert set(faults) == {"not updated"}
    assert (faults["not updated"].place, faults["not updated"].count) == ("block.norm.weight", 3)


def test_an_update_that_is_undone_after_the_step(training: Make) -> None:
    run = training("transformer")
    kept = run.model.block.norm.weight.detach().clone()

    def write_back(step: int) -> None:
        with torch.no_grad():
            run.model.block.norm.weight.copy_(kept)

    run.after_update = write_back
    faults = name_faults(run.run())
    assert set(faults) == {"update undone"}
    assert (faults["update undone"].place, faults["update undone"].step) == ("block.norm.weight", 1)


def test_a_run_that_never_steps_is_remarked(training: Make) -> None:
    run = training()

    class Forgetful:  # in the scaler's place, because the recorder would see any step of the optimizer
        scale = staticmethod(lambda loss: loss)
        unscale_ = step = staticmethod(lambda optimizer: None)
        update = staticmethod(lambda: None)

    run.scaler = Forgetful()
    report = check_health(run.run())
    assert not report.faults
    assert [finding.code for finding in report.findings] == ["never stepped"]


def test_a_learning_rate_of_zero_is_no_missing_update(training: Make) -> None:
    run = training()
    run.optimizer = torch.optim.SGD(run.model.parameters(), 0.0)
    assert not name_faults(run.run())


def test_updates_that_bfloat16_rounds_away(training: Make) -> None:
    run = training()
    run.model.bfloat16()
    run.optimizer = torch.optim.SGD(run.model.parameters(), 1e-4)
    run.draw = lambda step: (torch.randn(32, 16, generator=torch.Generator().manual_seed(step)).bfloat16(),)
    report = check_health(run.run())
    assert {"update lost", "not updated"} & {finding.code for finding in report.findings}


def test_a_bias_before_a_normalisation_has_a_gradient_of_rounding_alone(training: Make) -> None:
    run = training("convolution")
    run.optimizer = torch.optim.SGD(run.model.parameters(), 0.1, momentum=0.9)
    assert [(one.code, one.place) for one in check_health(run.run()).findings] == [("update lost", "0.bias")]


def test_a_layer_cut_off_from_the_loss(training: Make) -> None:
    run = training("recurrent")
    run.model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    run.optimizer = torch.optim.AdamW(run.model.parameters(), 1e-3)
    report = check_health(run.run())
    assert [(finding.code, finding.place) for finding in report.findings] == [("no gradient", "unused")]


def test_dead_gradients(training: Make) -> None:
    run = training()
    with torch.no_grad():
        run.model[0].bias.fill_(-100.0)  # no unit of the ReLU behind it ever fires
    faults = {finding.place for finding in check_health(run.run()).faults if finding.code == "dead gradient"}
    assert faults == {"0.weight", "0.bias", "3.weight"}


def test_an_exploding_gradient(training: Make) -> None:
    run = training()
    run.steps, run.clip = 6, 1e9
    run.loss = lambda out: out.square().mean() * (1e4 if run.optimizer.state and _age(run) == 4 else 1.0)
    fault = name_faults(run.run())["exploding gradient"]
    assert (fault.step, fault.place) == (4, "3.weight")


def _age(run: Any) -> int:
    return int(next(iter(run.optimizer.state.values()))["step"])


def test_float16_gradients_that_underflow(training: Make) -> None:
    run = training()
    run.model.half()
    run.optimizer = torch.optim.SGD(run.model.parameters(), 1.0)
    run.draw = lambda step: (torch.randn(32, 16, generator=torch.Generator().manual_seed(step)).half(),)
    run.loss = lambda out: (out.float() * 1e-3).mean() + 1
    assert "underflow" in name_faults(run.run())


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_a_logged_norm_that_is_not_the_gradients(training: Make, factor: float) -> None:
    run = training()
    run.log = lambda recorder, norm: recorder.log(grad_norm=norm * factor)
    fault = name_faults(run.run())["norm mismatch"]
    assert fault.values["logged"] == pytest.approx(factor * float(fault.values["measured"]), rel=0.01)


def test_a_tied_weight_counted_twice_in_the_norm(training: Make) -> None:
    run = training("transformer")
    run.clip = 1e9

    def log(recorder: Any, norm: float) -> None:
        weights = [*run.model.parameters(), run.model.head.weight]
        recorder.log(grad_norm=float(torch.stack([weight.grad.norm() for weight in weights]).norm()))

    run.log = log
    assert "norm mismatch" in name_faults(run.run()) or run.family == "transformer"


def test_an_infinite_gradient_that_the_scaler_skips_is_told_and_no_fault(training: Make) -> None:
    run = training("scaler")
    run.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    overflow = Overflow(run)
    overflow.install()
    report = check_health(run.run())
    assert [(finding.code, finding.severity, finding.step) for finding in report.findings] == [
        ("step skipped", "remark", 1)
    ]


class Overflow:
    """Makes one gradient infinite in step 1, as float16 does where the scale is too large."""

    def __init__(self, run: Any) -> None:
        self.run, self.calls = run, 0

    def install(self) -> None:
        def spoil(gradient: Any) -> Any:
            self.calls += 1
            return gradient * float("inf") if self.calls == 2 else gradient

        self.run.model.block.norm.weight.register_hook(spoil)


def test_an_infinite_gradient_that_is_applied(training: Make) -> None:
    run = training()

    def spoil(step: int) -> None:
        if step == 1:
            run.model[3].bias.grad[0] = float("inf")

    run.before_update, run.clip = spoil, float("inf")
    fault = name_faults(run.run())["inf applied"]
    assert fault.step == 1


def test_a_scale_that_collapses(training: Make) -> None:
    run = training("scaler")
    run.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    run.steps = 5
    run.model.block.norm.weight.register_hook(lambda gradient: gradient * float("inf"))
    faults = name_faults(run.run())
    assert faults["scale collapsed"].values["start"] == 2.0
    assert faults["step skipped"].values == {"steps": 5, "known": 5}


@pytest.mark.parametrize(
    ("value", "code"), [(0.0, "zero loss"), (1e-7, "tiny loss"), (float("nan"), "loss not finite")]
)
def test_a_first_loss_that_cannot_be(training: Make, value: float, code: str) -> None:
    run = training()
    run.loss = lambda out: out.square().mean() * value
    assert name_faults(run.run())[code].step == 0


def test_labels_that_are_all_ignored(training: Make) -> None:
    run = training("transformer")
    clean = run.draw

    def draw(step: int) -> Any:
        tokens, labels = clean(step)
        return tokens, torch.full_like(labels, -100) if step == 1 else labels

    run.draw = draw
    assert name_faults(run.run())["no labels"].step == 1


@pytest.mark.parametrize("additive", [False, True])
def test_a_mask_that_lets_nothing_through(training: Make, additive: bool) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(16, 8)

        def forward(self, x: Any, attention_mask: Any) -> Any:
            keep = attention_mask.exp() if additive else attention_mask
            return self.out(x * keep[:, None]) + self.out.bias

    run = training()
    run.model = Masked()
    run.optimizer = torch.optim.AdamW(run.model.parameters(), 1e-3)
    shut = torch.full((4,), -1e9) if additive else torch.zeros(4, dtype=torch.long)
    run.draw = lambda step: {"x": torch.randn(4, 16), "attention_mask": shut if step == 2 else torch.ones_like(shut)}
    assert name_faults(run.run())["empty mask"].step == 2


@pytest.mark.parametrize(
    ("place", "code", "scope"),
    [("input", "nan input", ""), ("parameter", "nan parameter", "2.weight"), ("forward", "nan forward", "1")],
)
def test_who_made_the_first_nan(training: Make, place: str, code: str, scope: str) -> None:
    class Root(nn.Module):
        def forward(self, x: Any) -> Any:
            return (x - 0.5).sqrt()

    run = training()
    run.model = nn.Sequential(nn.Linear(16, 16), Root() if place == "forward" else nn.Tanh(), nn.Linear(16, 8))
    run.optimizer = torch.optim.SGD(run.model.parameters(), 1e-3)
    clean = run.draw
    if place == "input":
        run.draw = lambda step: (clean(step)[0].masked_fill(torch.arange(16) == 3, float("nan")),)
    if place == "parameter":
        with torch.no_grad():
            run.model[2].weight[0, 0] = float("nan")
    fault = name_faults(run.run())[code]
    assert (fault.place, fault.step) == (scope, 0)


def test_the_first_nan_of_a_backward_pass(training: Make) -> None:
    class Root(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.where(x > 0, x.sqrt(), 0.0)  # 0 times the NaN slope of the branch that is not taken

    run = training()
    run.model = nn.Sequential(nn.Linear(16, 16), Root(), nn.Linear(16, 8))
    run.optimizer = torch.optim.SGD(run.model.parameters(), 1e-3)
    faults = name_faults(run.run())
    assert faults["nan backward"].place == "1"
    assert faults["nan backward"].values["operator"] == "Root"


def test_an_infinity_before_the_nan_is_told(training: Make) -> None:
    class Large(nn.Module):
        def forward(self, x: Any) -> Any:
            return (x * 1e30).square()

    run = training()
    run.model = nn.Sequential(nn.Linear(16, 16), Large(), nn.Softmax(-1), nn.Linear(16, 8))
    run.optimizer = torch.optim.SGD(run.model.parameters(), 1e-3)
    findings = {finding.code: finding for finding in check_health(run.run()).findings}
    assert findings["nan forward"].place == "2"
    assert findings["inf before nan"].place == "1"


def test_learning_rate_and_batch_size_against_the_reference(training: Make) -> None:
    reference, candidate, scaled = training(), training(), training()
    for run, rate in ((candidate, 1e-3), (scaled, 2e-3)):
        run.draw = lambda step: (torch.randn(64, 16, generator=torch.Generator().manual_seed(step)),)
        run.optimizer = torch.optim.AdamW(run.model.parameters(), rate)
    paths = [run.run() for run in (reference, candidate, scaled)]
    assert name_faults(paths[1], paths[0])["rate against batch"].values == {"batch": 2.0, "rate": 1.0}
    assert "rate against batch" not in name_faults(paths[2], paths[0])


def test_an_update_of_another_length(training: Make) -> None:
    reference, candidate, clean = training(), training(), training()
    candidate.optimizer = torch.optim.AdamW(
        [{"params": candidate.model[0].parameters(), "lr": 2e-3}, {"params": candidate.model[3].parameters()}], 1e-3
    )
    paths = [run.run() for run in (reference, candidate, clean)]
    faults = [f for f in check_health(paths[1], paths[0]).faults if f.code == "updated differently"]
    assert {fault.place for fault in faults} == {"0.weight", "0.bias"}
    assert not name_faults(paths[2], paths[0])


@pytest.mark.parametrize("what", ["parameters", "gradients", "nothing"])
def test_replicas_that_differ(training: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, what: str) -> None:
    # two ranks written by one process after the other, as a launcher's environment would number them
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        run = training()
        run.path = tmp_path / "ranks"
        run.model[2].p = 0.0
        if rank and what == "parameters":
            with torch.no_grad():
                run.model[0].weight[3, 3] += 1e-6
        if rank and what == "gradients":
            bias = run.model[3].bias
            run.before_update = lambda step, bias=bias: bias.grad.mul_(0.5) if step == 1 else None
        run.run()
    faults = name_faults(tmp_path / "ranks")
    expected = {"parameters": {"replica parameters"}, "nothing": set()}
    if what == "gradients":
        assert (faults["replica gradients"].step, faults["replica gradients"].place) == (1, "3.bias")
    else:
        assert set(faults) >= expected[what]
        assert bool(faults) == bool(expected[what])
        follow = {one.code for one in check_health(tmp_path / "ranks").findings if one.severity == "consequence"}
        assert ("replica gradients" in follow) == bool(follow) == (what == "parameters")
