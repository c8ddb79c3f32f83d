"""Nothing that goes wrong in the tool ends training or changes its numbers; and no function changes its identity."""

from __future__ import annotations

import atexit
import multiprocessing

import pytest
import torch
from torch import nn

from precision_align.cli import unattended
from precision_align.recording import arming
from precision_align.recording.calls import CallRecorder
from precision_align.recording.gradients import Ledger
from precision_align.recording.optimizers import OptimizerRecorder
from precision_align.recording.parameters import ParameterRecorder
from precision_align.recording.recorder import Recorder
from precision_align.recording.tape import Tape
from precision_align.recording.watching import Watch
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.opening import open_dump

pytestmark = pytest.mark.live


def train() -> list[torch.Tensor]:
    """Losses and final weights of a small training."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    losses = []
    for _ in range(3):
        loss = model(torch.randn(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.detach())
    return [*losses, *(parameter.detach() for parameter in model.parameters())]


@pytest.fixture
def attend(tmp_path, monkeypatch):
    """Starts a capture as the start-up file would, in this process; what it registered is taken back afterwards."""
    monkeypatch.setenv(arming.VARIABLE, "")
    monkeypatch.setenv(arming.ABOVE, "")
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    begun = []

    def attend(text: str, name: str = "capture.toml"):
        (tmp_path / name).write_text(text, "utf-8")
        begun.append(unattended.start_unattended(str(tmp_path / name), below=False))
        return begun[-1]

    yield attend
    for attendance in begun:
        if attendance is not None:
            atexit.unregister(attendance.finish)
            attendance.finish()


def fail(*_: object, **__: object) -> None:
    raise RuntimeError("planted")


BROKEN = {
    "a model's first call": (Watch, "_begin"),
    "every call": (Watch, "_consider"),
    "a module's call": (CallRecorder, "enter"),
    "a module's outputs": (CallRecorder, "leave"),
    "copies": (Tape, "stage"),
    "gradients": (Ledger, "watch_outputs"),
    "parameters": (ParameterRecorder, "record_start"),
    "a new optimizer": (Recorder, "watch_optimizer"),
    "an optimizer before": (OptimizerRecorder, "before"),
    "an optimizer after": (OptimizerRecorder, "after"),
    "the step's end": (Tape, "end_step"),
    "the writer's queue": (Hdf5Sink, "put_many"),
    "closing": (Recorder, "_close"),
}


@pytest.mark.parametrize("place", list(BROKEN))
def test_a_fault_of_ours_leaves_training_alone(attend, monkeypatch, capsys, tmp_path, place):
    alone = train()
    attendance = attend('output = "dump"\n')
    with monkeypatch.context() as planted:
        planted.setattr(*BROKEN[place], fail)
        captured = train()
        attendance.finish()
    assert all(map(torch.equal, alone, captured))
    notes = "".join(open_dump(tmp_path / "dump").notes) if (tmp_path / "dump").exists() else ""
    assert "planted" in notes + capsys.readouterr().err


TROUBLE = {
    "a folder that cannot be made": ('output = "capture.toml/dump"\n', "capture.toml"),
    "a full disk": ('output = "dump"\nreserve_free = "900000GB"\n', "could not be written"),
    "no such step": ('output = "dump"\nsteps = "100"\n', "none of the steps"),
    "an unknown key": ('output = "dump"\nstep = 1\n', "Did you mean 'steps'"),
    "not TOML": ("output = \n", "not valid toml"),
    "a wrong tier": ('output = "dump"\npayload = "huge"\n', "huge"),
    "a missing reference": ('output = "dump"\nforce = "nowhere"\n', "nowhere"),
    "another model": ('output = "dump"\nmodel = "__main__:nothing_of_this_name"\n', "did not exist"),
}


@pytest.mark.parametrize("trouble", list(TROUBLE))
def test_trouble_is_said_loudly_and_in_a_file(attend, capsys, tmp_path, trouble):
    alone = train()
    text, reason = TROUBLE[trouble]
    attendance = attend(text)
    captured = train()
    if attendance is not None:
        attendance.finish()
    assert all(map(torch.equal, alone, captured))
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("training goes on") == 1
    assert reason in (tmp_path / "capture.toml.rank00000.log").read_text()


def test_a_log_that_cannot_be_written_is_written_elsewhere(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(unattended.tempfile, "gettempdir", lambda: str(tmp_path))
    unattended.Log(str(tmp_path / "absent" / "odd.json")).complain("planted trouble")
    assert f"see {tmp_path}" in capsys.readouterr().err
    assert "planted trouble" in (tmp_path / "odd.json.rank00000.log").read_text()


def test_the_dump_is_what_the_verb_writes(attend, capsys, tmp_path):
    alone = train()
    attendance = attend(
        '\ufeff{"output": "dump", "steps": [0, 2], "payload": {"*": "fingerprint", "2": "full"}}', "capture.json"
    )
    captured = train()
    attendance.finish()
    assert all(map(torch.equal, alone, captured))
    dump = open_dump(tmp_path / "dump")
    assert list(dump.steps) == [0, 2]
    assert {call.scope for call in dump.calls} == {"", "0", "1", "2", "optimizer:0"}
    assert {str(record.tier) for record in dump.records if record.key.scope == "2"} == {"full"}
    assert "training goes on" not in capsys.readouterr().err


def identities() -> dict[str, object]:
    """What frameworks and compilers look at by identity."""
    owners = {"torch": torch, "functional": nn.functional, "Tensor": torch.Tensor, "Optimizer": torch.optim.Optimizer}
    owners |= {
        "Module": nn.Module,
        "Linear": nn.Linear,
        "Function": torch.autograd.Function,
        "AdamW": torch.optim.AdamW,
    }
    found = {f"{name}.{key}": value for name, owner in owners.items() for key, value in vars(owner).items()}
    return {key: value for key, value in found.items() if callable(value)}


@pytest.mark.parametrize("sources", ["modules,gradients,parameters,optimizer", "modules,functions,operators"])
def test_functions_stay_identical_while_a_session_runs(attend, sources, tmp_path):
    before = identities()
    attendance = attend(f'output = "dump"\nsources = "{sources}"\n')
    train()
    during = identities()
    changed = {key for key, value in before.items() if during.get(key) is not value}
    assert changed == {"Module._call_impl"}  # private, and called by Module.__call__, which stays
    attendance.finish()
    assert identities() == before
    assert open_dump(tmp_path / "dump").calls


def test_a_fork_and_a_loader_of_this_process_write_nothing(attend, tmp_path):
    attendance = attend('output = "dump"\n')
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2))
    child = multiprocessing.get_context("fork").Process(target=model, args=(torch.ones(1, 2),))
    child.start()
    child.join()
    assert child.exitcode == 0
    attendance.finish()
    assert [call.step for call in open_dump(tmp_path / "dump").calls] == [0]
