"""PRECISION_ALIGN in the environment: under launchers, beside helpers, and where everything goes wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from precision_align.storage.opening import open_dump

pytestmark = pytest.mark.live

TRAIN = """
    import os, subprocess, sys
    import torch
    from torch import nn
    {above}

    torch.set_num_threads(1)
    {before}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(3):
        for micro in range(2):
            loss = model(torch.randn(2, 4)).pow(2).mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, repr(loss.item()), flush=True)
    {end}
"""
OUTPUT = 'output = "dump"\n'


def fill(above: str = "", before: str = "", end: str = "pass") -> str:
    return TRAIN.format(above=above, before=before, end=end)


def steps_of(dump: Path) -> list[tuple[int, int, str]]:
    return [(call.step, call.micro, call.scope) for call in open_dump(dump).calls]


EXPECTED = [
    (step, micro, scope)
    for step in range(3)
    for micro in (0, 1)
    for scope in ["0", "1", "2", "", *["optimizer:0"] * micro]
]


def test_a_shell_script_is_captured_and_its_numbers_stay(python, launch, write, tmp_path):
    write("train.py", fill())
    write("pretrain.sh", f"echo begin\n{python} train.py\necho end\n")
    alone = launch("bash", "pretrain.sh")
    done = launch("bash", "pretrain.sh", configuration=OUTPUT + 'steps = [0, 1, 2]\npayload = { "*" = "full" }\n')
    assert done.stdout == alone.stdout
    assert "dump: 3 steps" in done.stderr
    assert steps_of(tmp_path / "dump") == EXPECTED
    assert not open_dump(tmp_path / "dump").notes


def test_one_import_line_does_the_same(launch, write, tmp_path):
    write("train.py", fill(above="import precision_align.auto"))
    root = str(Path(__file__).resolve().parents[2])
    launch(sys.executable, "train.py", configuration=OUTPUT, PYTHONPATH=root)
    assert steps_of(tmp_path / "dump") == EXPECTED
