"""Unchanged scripts, run in this process: several models, losses, steps of other shapes."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest
import torch

from precision_align.recording.launching import run_script
from precision_align.recording.watching import Launch, LaunchOptions
from precision_align.storage.opening import open_dump
from precision_align.workflows.comparing import compare

pytestmark = pytest.mark.live

HEAD = """
import os
import torch
from torch import nn

torch.manual_seed(0)
def mlp(*widths):
    layers = [layer for pair in zip(widths, widths[1:]) for layer in (nn.Linear(*pair), nn.Tanh())]
    return nn.Sequential(*layers[:-1])
"""


@pytest.fixture
def run(tmp_path):
    """Runs a script and gives its dump; what it stores in ``result`` must be bit-equal to a run without capture."""

    def run(text, name="dump", **options):
        path = tmp_path / f"{name}.py"
        path.write_text(HEAD + textwrap.dedent(text))
        plain = runpy_result(path)
        launch = Launch()
        call = torch.nn.Module.__call__
        watched = run_script([str(path)], LaunchOptions(str(tmp_path / name), **options), launch)
        assert watched is launch
        assert torch.nn.Module.__call__ is call
        assert all(map(torch.equal, plain, CAUGHT.pop()))
        return open_dump(tmp_path / name)

    return run


CAUGHT: list[list[torch.Tensor]] = []


def runpy_result(path):
    import runpy

    runpy.run_path(str(path), run_name="__main__")
    return CAUGHT.pop()


END = """
import sys
next(m for n, m in sys.modules.items() if n.endswith("test_scripts")).CAUGHT.append(
    [value.detach().clone() for model in MODELS for value in model.state_dict().values()]
)
"""

GAN = """
    class Trainer:
        def __init__(self):
            self.G, self.D = mlp(4, 8, 6), mlp(6, 8, 1)
            self.first = torch.optim.SGD(self.D.parameters(), 0.1)
            self.second = torch.optim.SGD(self.G.parameters(), 0.1, momentum=0.9)
            self.loss = nn.BCEWithLogitsLoss()

        def train(self):
            for _ in range(3):
                self.D.zero_grad()
                self.loss(self.D(torch.randn(5, 6)), torch.ones(5, 1)).backward()
                fake = self.G(torch.randn(5, 4)){fault}
                self.loss(self.D(fake.detach()), torch.zeros(5, 1)).backward()
                self.first.step()
                self.G.zero_grad()
                self.loss(self.D(fake), torch.ones(5, 1)).backward()
                self.second.step()

    trainer = Trainer()
    trainer.train()
    MODELS = [trainer.G, trainer.D]
    """


def test_both_models_of_a_gan_are_captured_and_an_iteration_is_one_step(run):
    dump = run(textwrap.dedent(GAN.format(fault="")) + END)
    assert dump.steps == [0, 1, 2]
    found = [c for c in dump.calls if c.step == 1 and "." not in c.scope and not c.scope.isdigit()]
    modules = [(c.micro, c.scope) for c in sorted(found, key=lambda call: call.enter)]
    assert modules == [
        (0, ""), (0, "loss"), (0, "G"), (1, ""), (1, "loss"), (1, "optimizer:0"),
        (2, ""), (2, "loss"), (2, "optimizer:1"),
    ]  # fmt: skip
    generator = [r for r in dump.records if r.key.scope.startswith("G") and r.key.step == 1]
    assert {str(r.key.role) for r in generator} == {"parameter", "input", "output", "gradient", "state"}
    assert dump.info.modules["G.0"].endswith("Linear")
    assert dump.info.parameters.keys() >= {"0.weight", "G.0.weight"}
    assert not [note for note in dump.notes if "not recorded" in note or "after their step" in note]


def test_a_fault_in_the_second_model_is_found_there(run):
    reference = run(textwrap.dedent(GAN.format(fault="")) + END, "reference")
    candidate = run(textwrap.dedent(GAN.format(fault="")).replace("mlp(4, 8, 6)", "mlp(4, 8, 6)[:]") + END, "same")
    assert compare(reference, candidate).verdict == "aligned"
    faulty = textwrap.dedent(GAN.format(fault="")).replace(
        "self.loss = ", "self.G[1].forward = lambda x: torch.tanh(x) * 1.01\n        self.loss = "
    )
    report = compare(reference, run(faulty + END, "faulty"))
    assert (report.first.scope, report.first.phase, report.first.step) == ("G.1", "forward", 0)


def test_a_teacher_a_student_and_losses_made_anew(run):
    dump = run(
        """
        teacher, student = mlp(4, 3).eval(), mlp(4, 8, 3)
        optimizer = torch.optim.AdamW(student.parameters())
        scale = nn.Flatten()  # a transform: no gradients go in
        for _ in range(2):
            for _ in range(2):
                x = scale(torch.randn(5, 4))
                with torch.no_grad():
                    target = teacher(x).argmax(-1)
                loss = nn.CrossEntropyLoss()(student(x), target)
                loss = loss + nn.CrossEntropyLoss(label_smoothing=0.1)(student(x), target)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        MODELS = [teacher, student]
        """
        + textwrap.indent(END, " " * 8)
    )
    calls = [(c.step, c.micro, c.scope) for c in dump.calls if "." not in c.scope and not c.scope.isdigit()]
    one = ["", "student", "CrossEntropyLoss", "student", "CrossEntropyLoss_2"]
    expected = [(s, m, name) for s in (0, 1) for m in (0, 1) for name in one + ["optimizer:0"] * m]
    assert calls == expected
    assert dump.info.modules["CrossEntropyLoss"].endswith("CrossEntropyLoss")


def test_a_part_that_is_tried_out_first_is_not_taken_for_the_model(run):
    dump = run(
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.features = mlp(4, 6)
                self.head = nn.Linear(self.features(torch.zeros(1, 4)).shape[1], 2)

            def forward(self, x):
                return self.head(self.features(x))

        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).sum().backward()
            optimizer.step()
        MODELS = [model]
        """
        + textwrap.indent(END, " " * 8)
    )
    assert [(c.step, c.scope) for c in dump.calls if c.step == 0] == [
        (0, "features.0"), (0, "features"), (0, "head"), (0, ""), (0, "optimizer:0")
    ]  # fmt: skip
    assert dump.steps == [0, 1]


def test_a_named_model_is_captured_alone(run):
    text = textwrap.dedent(GAN.format(fault="")) + END
    dump = run(text.replace("trainer.train()", "G = trainer.G\ntrainer.train()"), model="__main__:G")
    assert {c.scope for c in dump.calls} == {"", "0", "1", "2", "optimizer:0"}
    assert dump.steps == [0, 1, 2]


LOOPS = {
    # two forwards of a training model before the first backward pass
    "twins": ("(model(x) - model(x + 1)).sum().backward()\n    optimizer.step()\n    optimizer.zero_grad()", 3, 2),
    "no optimizer": ("model(x).sum().backward()\n    update()", 3, 1),
    "inference": ("with torch.no_grad(): model(x)", 3, 1),
    "two optimizers, one idle": ("model(x).sum().backward()\n    optimizer.step()\n    optimizer.zero_grad()", 3, 1),
    "critic steps": ("for _ in range(2): model(x).sum().backward(); optimizer.step()", 6, 1),
}


@pytest.mark.parametrize("kind", LOOPS)
def test_what_a_step_is(run, kind):
    body, steps, calls = LOOPS[kind]
    made = "" if kind in ("no optimizer", "inference") else "optimizer = torch.optim.SGD(model.parameters(), 0.1)"
    made += "\nidle = torch.optim.SGD(model.parameters(), 0.1)" if kind == "two optimizers, one idle" else ""
    dump = run(
        f"""
def update():
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None

model = nn.Linear(4, 2)
{made}
for _ in range(3):
    x = torch.ones(1, 4)
    {body}
MODELS = [model]
"""
        + END
    )
    found = [len([c for c in dump.calls if c.step == step and c.scope == ""]) for step in dump.steps]
    idle = kind == "two optimizers, one idle"  # known once the other steps for the second time
    assert found == ([2, 1] if idle else [calls] * steps)


def test_a_script_that_changes_its_folder_loses_nothing(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    before = Path.cwd()
    path = tmp_path / "moving.py"
    path.write_text(
        HEAD
        + textwrap.dedent(
            """
            model = nn.Linear(2, 2)
            for step in range(3):
                with torch.no_grad():
                    model(torch.ones(1, 2))
                if step == 0:
                    os.chdir("elsewhere")
            """
        )
    )
    run_script(["moving.py"], LaunchOptions("dump"))
    os.chdir(before)
    dump = open_dump("dump")
    assert dump.steps == [0, 1, 2]
    assert not dump.notes
    assert all(dump.payload(record.key).size for record in dump.records)


def test_an_update_that_a_gradient_scaler_skips_ends_a_step_too(run):
    """Else an overflow on one side would shift all later steps against the other side's."""
    if not hasattr(torch.amp, "GradScaler"):
        pytest.skip("torch before 2.3 scales on CUDA only")
    dumps = [
        run(
            textwrap.dedent(f"""
            model = mlp(3, 4, 1)
            MODELS = [model]
            optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
            for step in range(4):
                loss = model(torch.randn(2, 3)).square().mean() * (float("inf") if step == {overflow} else 1)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            """)
            + END,
            name=f"dump{overflow}",
        )
        for overflow in (1, 9)
    ]
    for dump in dumps:
        assert [(c.step, c.micro) for c in dump.calls if c.scope == ""] == [(0, 0), (1, 0), (2, 0), (3, 0)]


@pytest.mark.parametrize("name", ["execv", "execvp"])
def test_a_script_that_replaces_its_process_is_told(tmp_path, monkeypatch, capfd, name):
    def fail(*_):
        raise FileNotFoundError

    (tmp_path / "script.py").write_text(f"import os; os.{name}('x', ['x'])")
    monkeypatch.setattr(os, "execv", fail)
    monkeypatch.setenv("PATH", "/one:/two")
    with pytest.raises(FileNotFoundError):
        run_script([str(tmp_path / "script.py")], LaunchOptions(str(tmp_path / "dump")))
    assert capfd.readouterr().err.count("what follows is not recorded") == 1
    assert os.execv is fail
