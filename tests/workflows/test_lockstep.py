"""Two modules in one process, from the call to the report."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from precision_align.core.errors import RuleError, UsageError
from precision_align.core.terms import Phase, Site, Verdict
from precision_align.recording.session import capture
from precision_align.workflows.comparing import compare
from precision_align.workflows.lockstep import lockstep

X = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self, gain=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.gain = nn.Linear(8, 16), nn.Linear(16, 8), gain

    def forward(self, x, shift=0.0):
        return self.down(torch.relu(self.up(x)) * self.gain) + shift


def train(module, inputs):
    module(inputs).square().mean().backward()
    if hasattr(module, "optimizer"):
        module.optimizer.step()
        module.optimizer.zero_grad()


@pytest.mark.parametrize("inputs", [X, (X,), {"x": X}, {"x": X, "shift": 0.5}, (X, 0.5)])
def test_every_form_of_inputs(inputs):
    assert lockstep(Net(), Net(), inputs).verdict == Verdict.ALIGNED
    report = lockstep(Net(), Net(1.01), inputs)
    assert (report.verdict, report.first.scope, report.first.site) == (Verdict.DIVERGED, "", Site.INLINE)


def test_the_candidates_own_inputs():
    assert lockstep(Net(), Net(), X, candidate_inputs=X.clone()).verdict == Verdict.ALIGNED
    assert lockstep(Net(), Net(), X, candidate_inputs=X + 1).first.site == Site.INPUTS


def test_a_training_step_of_ones_own():
    report = lockstep(Net(), Net(), X, step=train)
    assert report.verdict == Verdict.ALIGNED
    assert Phase.BACKWARD in report.coverage


def make_optimizers(*classes, **options):
    models = [Net() for _ in classes]
    found = tuple(kind(model.parameters(), lr=0.1, **options) for kind, model in zip(classes, models))
    for model, optimizer in zip(models, found):
        model.optimizer = optimizer
    return models, found


def test_optimizers_are_judged():
    models, optimizers = make_optimizers(torch.optim.SGD, torch.optim.SGD)
    report = lockstep(*models, X, step=train, optimizers=optimizers)
    assert report.verdict == Verdict.ALIGNED
    assert Phase.STEP in report.coverage

    class Slow(torch.optim.SGD):
        def step(self, closure=None):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(0.9)
            return super().step(closure)

    models, optimizers = make_optimizers(torch.optim.SGD, Slow)
    report = lockstep(*models, X, step=train, optimizers=optimizers)
    assert (report.first.site, report.first.phase, report.first.step) == (Site.OPTIMIZER, Phase.STEP, 0)


def test_both_modules_stay_as_they_were():
    reference, candidate = Net(), Net().eval()
    lockstep(reference, candidate, X)
    assert reference.training
    assert not candidate.training
    for module in (reference, candidate):
        assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
        assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((Net(), lambda x: x, X), {}),
        (("reference", Net(), X), {}),
        ((Net(), Net(), X), {"optimizers": [1, 2]}),
        ((Net(), Net(), X), {"optimizers": (1, 2, 3)}),
    ],
)
def test_wrong_arguments(arguments, options):
    with pytest.raises(UsageError):
        lockstep(*arguments, **options)


def test_what_a_module_raises_passes_through():
    with pytest.raises(RuntimeError, match="shapes"):
        lockstep(Net(), Net(), X[:, :3])


def write_dump(model, folder):
    with capture(model, folder) as recorder, recorder.step():
        model(X)
    return folder


def test_compare_dumps_on_disk(tmp_path):
    reference, candidate = write_dump(Net(), tmp_path / "a"), write_dump(Net(1.01), tmp_path / "b")
    for replay in (Net(), Net):
        report = compare(reference, str(candidate), replay=replay)
        assert (report.first.scope, report.first.site) == ("", Site.INLINE)
    assert compare(None, candidate, replay=Net).verdict == Verdict.DIVERGED
    assert compare(reference, reference).verdict == Verdict.ALIGNED
    report.save(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["verdict"] == "diverged"


def test_rules_are_applied(tmp_path):
    reference, candidate = write_dump(Net(), tmp_path / "a"), write_dump(Net(1.01), tmp_path / "b")
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rule]]\nscope = ""\nstatus = "ignore"\nreason = "a gain on purpose"\n')
    assert compare(reference, candidate, replay=Net, rules=rules).verdict == Verdict.ALIGNED
    rules.write_text('[[rule]]\nscope = ""\nstatus = "ignore"\n')
    with pytest.raises(RuleError, match="reason"):
        compare(reference, candidate, rules=rules)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [((None, None), {}), ((None, "somewhere"), {}), ((1, 2), {}), (("a", "b"), {"replay": 3})],
)
def test_wrong_arguments_of_compare(tmp_path, arguments, options):
    folder = write_dump(Net(), tmp_path / "a")
    given = [folder if argument in ("a", "b") else argument for argument in arguments]
    with pytest.raises(UsageError):
        compare(*given, **options)


def test_a_factory_that_makes_no_module(tmp_path):
    folder = write_dump(Net(), tmp_path / "a")
    with pytest.raises(UsageError, match="factory"):
        compare(folder, folder, replay=lambda: 3)


class Dropped(Net):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), 0.5, self.training)


def test_equal_modules_draw_equal_masks():
    assert lockstep(Dropped(), Dropped(), X).verdict == Verdict.ALIGNED


class Writing(Net):
    def forward(self, x):
        return super().forward(x.add_(1.0))


def test_modules_that_write_into_their_inputs():
    assert lockstep(Writing(), Writing(), X.clone()).verdict == Verdict.ALIGNED


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [lambda model, _: model, torch.jit.trace], ids=["plain", "scripted"])
def test_a_side_of_which_nothing_is_recorded_is_reported_and_never_aligned(make):
    report = lockstep(make(Net(), X), torch.jit.trace(Net(1.5), X), X)
    assert (report.verdict, report.first) == (Verdict.NOT_COMPARABLE, None)
    assert any("candidate: the model is compiled TorchScript" in note for note in report.notes)


def test_optimizers_that_never_step_are_said():
    models, optimizers = make_optimizers(torch.optim.SGD, torch.optim.SGD)
    idle = [note for note in lockstep(*models, X, optimizers=optimizers, steps=1).notes if "made no step" in note]
    assert [note.partition(":")[0] for note in idle] == ["reference", "candidate"]
    busy = lockstep(*models, X, step=train, optimizers=optimizers, steps=1)
    assert not [note for note in busy.notes if "made no step" in note]


class Cast(nn.Module):
    """Two products, the result in float32 whatever they are computed in. ``low``: run under autocast."""

    def __init__(self, low=False):
        super().__init__()
        torch.manual_seed(0)
        self.up, self.weight, self.low = nn.Linear(8, 16), nn.Parameter(torch.randn(8, 16)), low

    def forward(self, x):
        return (self.up(x) @ self.weight.t()).float()


class Hidden(Cast):
    """No result shows the lower type."""

    def forward(self, x):
        return (x @ self.up.weight.t()).float()


def lowered(module, inputs):
    with torch.autocast("cpu", torch.bfloat16, enabled=module.low):
        module(inputs).square().mean().backward()


def test_autocast_on_one_side_is_a_mode(tmp_path):
    found = lockstep(Cast(), Cast(low=True), X, step=lowered).first
    assert (found.scope, found.kind, "autocast" in found.evidence) == ("up", "mode", True)
    assert lockstep(Cast(low=True), Cast(low=True), X, step=lowered).verdict == Verdict.ALIGNED
    assert lockstep(Cast(low=True), Cast(), X, step=lowered).verdict == Verdict.ALIGNED  # more bits, no fault
    assert lockstep(Cast().bfloat16(), Cast().bfloat16(), X.bfloat16(), step=lowered).verdict == Verdict.ALIGNED
    found = lockstep(Hidden(), Hidden(low=True), X, step=lowered).first
    assert (found.scope, found.kind, "autocast" in found.evidence) == ("", "mode", True)
    rules = tmp_path / "rules.toml"
    rules.write_text('[modes]\ndeclared = ["autocast"]\n', "utf-8")

    def forward(module, inputs):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=module.low):
            module(inputs)

    assert lockstep(Cast(), Cast(low=True), X, step=forward, rules=rules).verdict == Verdict.ALIGNED


class Counter(nn.Module):
    """Keeps a running mean which its outputs do not depend on."""

    def __init__(self, kept=True, rate=0.1):
        super().__init__()
        self.kept, self.rate = kept, rate
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x):
        if self.kept:
            self.mean = torch.lerp(self.mean, x.mean(0).detach(), self.rate)
        return x * 2


def test_a_buffer_that_only_the_reference_updates_is_a_fault():
    found = lockstep(Counter(), Counter(kept=False), X).first
    assert (found.scope, found.phase) == ("", Phase.FORWARD)
    assert "mean is not updated" in found.evidence
    assert lockstep(Counter(), Counter(), X).verdict == Verdict.ALIGNED
    assert lockstep(Counter(rate=0.0), Counter(kept=False), X).verdict == Verdict.ALIGNED


def test_gradients_clipped_one_by_one_are_no_clipped_norm():
    models, optimizers = make_optimizers(torch.optim.SGD, torch.optim.SGD)

    def clip(by_value):
        def step(module, inputs):
            module(inputs).square().mean().backward()
            if by_value and module is models[1]:
                nn.utils.clip_grad_value_(module.parameters(), 0.02)
            else:
                nn.utils.clip_grad_norm_(module.parameters(), 0.1)
            module.optimizer.step()
            module.optimizer.zero_grad()

        return lockstep(*models, X, step=step, optimizers=optimizers, steps=1)

    assert clip(by_value=False).verdict == Verdict.ALIGNED
    models[1].load_state_dict(models[0].state_dict())
    assert "clipping by value" in clip(by_value=True).first.evidence


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(torch.tanh(self.table(ids)))


def test_a_lost_row_of_a_tied_gradient_is_found():
    models = [Tied(), Tied()]
    optimizers = tuple(torch.optim.SGD(model.parameters(), lr=0.1) for model in models)

    def lose(row):
        def step(module, ids):
            module.zero_grad()
            module(ids).square().mean().backward()
            if row is not None and module is models[1]:
                module.table.weight.grad[row] = 0
            optimizers[module is models[1]].step()

        return lockstep(*models, torch.arange(6), step=step, optimizers=optimizers, steps=1)

    assert lose(None).verdict == Verdict.ALIGNED
    models[1].load_state_dict(models[0].state_dict())
    found = lose(3)
    assert (found.verdict, found.first.op) == (Verdict.DIVERGED, "gradient")
