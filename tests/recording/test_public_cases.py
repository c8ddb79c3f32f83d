"""Faults that other tools were reported for (`facts/cases.tsv`), re-created on captures to files."""

from __future__ import annotations

import gc
import signal

import h5py
import numpy as np
import pytest
import torch
from programs import run_python
from torch import nn
from torch.utils.checkpoint import checkpoint

from precision_align.recording.session import capture
from precision_align.storage.opening import open_dump
from precision_align.workflows.comparing import compare

pytestmark = pytest.mark.live

SPECIAL = [1.0, 3.140625, 1e30, -1e30, float("nan"), float("inf"), -0.0, 1e-40, 3e-39]


class Same(nn.Module):
    def __init__(self, flip=False):
        super().__init__()
        self.flip = flip

    def forward(self, x):
        y = x.clone()
        if self.flip:
            y.view(torch.int16)[0] ^= 1
        return y


def test_c48_bfloat16_keeps_its_bits_and_its_name(tmp_path):
    """Through float16 1e30 becomes infinite; as an opaque two-byte type it reads back as void."""
    x = torch.tensor(SPECIAL).bfloat16()
    for name, model in (("reference", Same()), ("candidate", Same()), ("flipped", Same(flip=True))):
        with capture(model, tmp_path / name) as recorder, recorder.step():
            model(x)
    with open_dump(tmp_path / "reference") as dump:
        (output,) = (record for record in dump.records if record.key.role == "output")
        words, values = dump.payload(output.key), dump.values(output.key)
    assert (output.dtype, words.dtype) == ("bfloat16", np.uint16)
    assert words.tolist() == x.view(torch.int16).numpy().view(np.uint16).tolist()
    assert values.dtype == np.float32
    assert np.array_equal(values, x.float().numpy(), equal_nan=True)
    for path in (tmp_path / "reference").rglob("*.h5"):
        with h5py.File(path, "r") as file:
            kinds: list[np.dtype] = []
            file.visititems(lambda _, item, kinds=kinds: kinds.append(item.dtype) if hasattr(item, "dtype") else None)
        assert kinds
        assert not [kind for kind in kinds if kind.kind == "V" and kind.names is None]
    assert compare(tmp_path / "reference", tmp_path / "candidate").verdict == "aligned"
    rows = compare(tmp_path / "reference", tmp_path / "flipped").records
    assert [row for row in rows if row.role == "output" and row.evidence != "hash"]


KILLED = """
import os, signal, sys
import torch
from torch import nn
from precision_align.recording.session import capture

torch.set_num_threads(1)
torch.manual_seed(52)
model = nn.Linear(64, 64)
with capture(model, sys.argv[1]) as recorder:
    for step in range(4):
        with recorder.step():
            model(torch.full((8, 64), float(step))).sum().backward()
            if step == 3:
                os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory runs out, with the file open
"""


def test_c52_a_killed_run_keeps_every_step_before_the_last(tmp_path):
    done = run_python("-c", KILLED, tmp_path / "dump")
    assert done.returncode == -signal.SIGKILL, done.stderr
    with open_dump(tmp_path / "dump") as dump:
        assert {0, 1} <= set(dump.steps) <= {0, 1, 2}  # step 2 may still have been on its way to the disk
        assert any("not closed" in note for note in dump.notes)
        for record in dump.records:
            values = dump.values(record.key)
            if record.key.role == "input":
                assert np.array_equal(values, np.full((8, 64), record.key.step, np.float32))


class Attention(nn.Module):
    def forward(self, hidden=None, mask=None, scale=1.0):
        return hidden * scale if mask is None else hidden * mask * scale


class Layered(nn.Module):
    def __init__(self, drops_mask):
        super().__init__()
        self.attention, self.drops_mask = Attention(), drops_mask

    def forward(self, x):
        mask = None if self.drops_mask else torch.ones_like(x)
        return checkpoint(lambda h, m: self.attention(hidden=h, mask=m), x, mask, use_reentrant=False)


def test_x38_an_argument_that_a_wrapper_strips_is_shown(tmp_path):
    """The mask is all ones, so no value differs: only what was passed does."""
    x = torch.ones(2, 3, requires_grad=True)
    for name, drops in (("reference", False), ("candidate", True)):
        model = Layered(drops)
        with capture(model, tmp_path / name) as recorder, recorder.step():
            model(x).sum().backward()
    with open_dump(tmp_path / "reference") as dump:
        inputs = {r.key.path for r in dump.records if (r.key.scope, r.key.role) == ("attention", "input")}
    assert inputs == {"kwargs.hidden", "kwargs.mask"}
    report = compare(tmp_path / "reference", tmp_path / "candidate", replay=lambda: Layered(False))
    shown = [row.note for row in report.records if row.status in ("fail", "warn", "missing")] + list(report.notes)
    assert [text for text in shown if "mask" in text], shown


def count_hooks(model):
    hooks = 0
    for module in model.modules():
        hooks += sum(len(value) for name, value in vars(module).items() if name.endswith("hooks"))
    return hooks + sum(len(p._backward_hooks or ()) for p in model.parameters())


def test_x39_hooks_and_memory_stay_flat_over_many_steps(tmp_path):
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(inplace=True), nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters())
    before, seen = count_hooks(model), []
    with capture(model, tmp_path / "dump", optimizer=optimizer, payload="statistics") as recorder:
        for step in range(300):
            with recorder.step():
                optimizer.zero_grad()
                model(torch.randn(4, 16)).sum().backward()
                optimizer.step()
            if step in (99, 199, 299):
                gc.collect()
                tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
                seen.append((count_hooks(model), tensors))
    assert {hooks for hooks, _ in seen} == {before + 2 * 4}  # one before and one after each module's forward
    assert seen[2][1] - seen[1][1] < 50  # one tensor kept a step would be 100; some wait for the writer
    assert count_hooks(model) == before
