"""PRECISION_ALIGN in the environment: under launchers, beside helpers, and where everything goes wrong."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from precision_align.cli.app import main
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
ROOT = str(Path(__file__).resolve().parents[2])
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


def test_torchrun_writes_on_each_node_and_collect_makes_one_dump(python, launch, write, tmp_path, capsys):
    """As a launcher that the verb starts; what two nodes would write on two disks is taken apart here."""
    ddp = 'torch.distributed.init_process_group("gloo")\n    rank = torch.distributed.get_rank()'
    text = fill(before=ddp).replace(
        "nn.Linear(8, 1))\n", "nn.Linear(8, 1))\n    model = nn.parallel.DistributedDataParallel(model)\n"
    )
    write("train.py", text)
    torchrun = (python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")
    verb = (python, "-m", "precision_align", "capture", "-o", "dump", "--node-local", "disk", "--", *torchrun)
    done = launch(*verb)
    assert "disk/dump: 3 steps" in done.stderr
    first, second = tmp_path / "disk" / "dump", tmp_path / "other"
    second.mkdir()
    (first / "rank00001").rename(second / "rank00001")
    target = str(tmp_path / "all")
    assert main(["collect", str(first), "-o", target]) == 3
    assert "has 1 of 2 ranks; missing: 1" in capsys.readouterr().err
    assert main(["collect", str(second), "-o", target]) == 0
    assert "2 of 2 ranks" in capsys.readouterr().out
    dump = open_dump(target)
    assert [(info.rank, info.world) for info in dump.infos] == [(0, 2), (1, 2)]
    assert {call.scope for call in dump.calls} == {"", "module", *(f"module.{part}" for part in "012"), "optimizer:0"}
    part = next((second / "rank00001").glob("*.h5"))
    part.write_bytes(part.read_bytes()[:-100])
    assert main(["collect", str(first), str(second), "-o", target]) == 2
    assert "two different recordings of one rank" in capsys.readouterr().err


def test_the_verb_under_torchrun_runs_a_module(python, launch, write, tmp_path):
    write("train.py", fill())
    torchrun = (python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = launch(*torchrun, "-m", "precision_align", "capture", "-o", "dump", "--steps", "1", "--", "-m", "train")
    dump = open_dump(tmp_path / "dump")
    assert [(info.rank, info.world) for info in dump.infos] == [(0, 2), (1, 2)]
    assert list(dump.steps) == [1]
    assert len(done.stdout.splitlines()) == 6


HELPERS = """
    import multiprocessing, subprocess, sys

    def embed(batch):  # a module in the loader's workers, as a tokenizer's or an augmentation's would be
        torch.manual_seed(1)
        return nn.Linear(2, 2)(torch.stack(batch)).detach()

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return torch.full((2,), float(index))

    def load(context):
        options = {"num_workers": 2, "collate_fn": embed, "multiprocessing_context": context}
        return sum(batch.sum().item() for batch in torch.utils.data.DataLoader(Rows(), 2, **options))

    def learn():  # no backward pass: autograd itself refuses one in a fork
        nn.Linear(2, 2)(torch.ones(1, 2))

    if __name__ == "__main__":
        print(load("fork"), load("spawn"))
        prepare = "import torch; torch.nn.Linear(2, 2).eval()(torch.ones(1, 2))"
        subprocess.run([sys.executable, "-c", prepare], check=True)
"""


def test_one_import_line_captures_and_helpers_are_not_captured(launch, write, tmp_path):
    """Loader workers of both kinds before the model's first call, a subprocess that uses a model, forks after it."""
    after = 'fork = multiprocessing.get_context("fork").Process(target=learn)\n    fork.start(), fork.join()\n'
    after += '    print("fork", fork.exitcode, load("fork"))'
    body = textwrap.dedent(fill(end=after).split("torch.set_num_threads(1)")[1])
    head = "import torch\nimport precision_align.auto\nfrom torch import nn\n"
    write("train.py", head + textwrap.dedent(HELPERS) + textwrap.indent(body, "    "))
    done = launch(sys.executable, "train.py", configuration=OUTPUT, PYTHONPATH=ROOT)
    assert "fork 0" in done.stdout
    assert done.stderr.count("precision-align") == 1
    assert [path.name for path in (tmp_path / "dump").iterdir()] == ["rank00000"]
    assert steps_of(tmp_path / "dump") == EXPECTED


def test_a_broken_configuration_is_said_once_and_training_ends_as_it_would(launch, write, tmp_path):
    write(
        "train.py",
        fill(
            above="import precision_align.auto",
            before='subprocess.run([sys.executable, "-c", "import torch"])',
            end="sys.exit(7)",
        ),
    )
    wrong = 'outptu = "dump"\nsteps = 1.5\ncompress = "rar"\npayload = { "*" = 3 }\n'
    done = launch(sys.executable, "train.py", status=7, configuration=wrong, PYTHONPATH=ROOT)
    assert len(done.stdout.splitlines()) == 3
    for part in ("'outptu'", "'output'", "steps", "'rar'", "payload"):
        assert done.stderr.count(part) >= 1
    assert done.stderr.count("training goes on") == 1
    assert "outptu" in (tmp_path / "capture.toml.rank00000.log").read_text()
