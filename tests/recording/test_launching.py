"""Unchanged scripts, in processes of their own, alone and under torchrun."""

from __future__ import annotations

import json
import textwrap

import pytest
import torch
from programs import make_environment, run_python

from precision_align.storage.opening import open_dump

pytestmark = pytest.mark.live

TRAIN = """
    import sys
    import torch
    from torch import nn
    import beside

    assert __name__ == "__main__"
    assert sys.argv[1:] == ["--epochs", "1"], sys.argv
    torch.set_num_threads(1)
    torch.manual_seed(0)
    flatten, model = nn.Flatten(0), nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for step in range(3):
        for micro in range(2):
            x = flatten(torch.randn(4)).view(1, 4)
            loss = model(input=x).pow(2).mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        print(step, repr(loss.item()))
    {end}
"""


def write(folder, text, name="train.py"):
    (folder / name).write_text(textwrap.dedent(text))
    (folder / "beside.py").write_text("")
    return folder / name


def launch(folder, *words, program=("-m", "precision_align"), check=None):
    environment = make_environment()
    environment.pop("RANK", None)
    done = run_python(*program, *words, cwd=folder, env=environment)
    if check is not None:
        assert done.returncode == check, done.stderr
    return done


def capture_words(*options):
    return ["capture", "-o", "dump", *options, "--", "train.py", "--epochs", "1"]


def test_a_script_runs_as_by_itself_and_is_recorded(tmp_path):
    write(tmp_path, TRAIN.format(end="pass"))
    alone = launch(tmp_path, "train.py", "--epochs", "1", program=(), check=0)
    done = launch(tmp_path, *capture_words("--payload", "statistics", "--payload", "2=full"), check=0)
    assert done.stdout == alone.stdout
    assert "show dump" in done.stderr.splitlines()[-1]
    dump = open_dump(tmp_path / "dump")
    calls = [(c.step, c.micro, c.scope) for c in dump.calls]
    modules = ["0", "1", "2", ""]
    expected = [(s, m, scope) for s in range(3) for m in (0, 1) for scope in modules + ["optimizer:0"] * m]
    assert calls == expected
    assert len([p for p in dump.series if p.name == "loss"]) == 6
    assert {str(r.tier) for r in dump.records if r.key.scope == "2"} == {"full"}
    assert {str(r.tier) for r in dump.records if r.key.scope == "0"} <= {"statistics", "full"}
    assert [r.key.path for r in dump.records if r.key.scope == "" and r.key.role == "input"] == ["kwargs.input"] * 6
    assert dump.info.command.endswith("train.py --epochs 1")


@pytest.mark.parametrize(
    ("end", "status", "text"),
    [
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no more data')", 1, "no more data"),
        ("raise ValueError('odd batch')", 1, "ValueError: odd batch"),
    ],
)
def test_the_scripts_end_stays_its_own(tmp_path, end, status, text):
    write(tmp_path, TRAIN.format(end=end))
    done = launch(tmp_path, *capture_words(), check=status)
    assert text in done.stderr
    assert "precision_align/" not in done.stderr
    assert {c.step for c in open_dump(tmp_path / "dump").calls} == {0, 1, 2}


def test_a_module_and_json(tmp_path):
    write(tmp_path, TRAIN.format(end="pass"))
    words = ["capture", "-o", "dump", "--json", "--steps", "1", "--model", "__main__:model", "--", "-m", "train"]
    done = launch(tmp_path, *words, "--epochs", "1", check=0)
    result = json.loads(done.stdout.split("\n", 3)[3])
    assert (result["dump"], result["status"], result["steps"]) == ("dump", 0, 3)
    dump = open_dump(tmp_path / "dump")
    assert {c.step for c in dump.calls} == {1}
    assert result["records"] == len(dump.records)


def test_inference_without_an_optimizer_counts_forwards(tmp_path):
    write(
        tmp_path,
        """
        import torch
        model = torch.nn.Linear(2, 2)
        with torch.no_grad():
            for _ in range(3):
                model(torch.ones(1, 2))
        """,
    )
    launch(tmp_path, *capture_words(), check=0)
    assert [c.step for c in open_dump(tmp_path / "dump").calls] == [0, 1, 2]


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["capture", "-o", "dump", "--", "nowhere.py"], 2, "no script 'nowhere.py'"),
        (["capture", "-o", "dump"], 2, "no script is given"),
        (["capture", "-o", "dump", "--steps", "x", "--", "train.py"], 2, "'x'"),
        (["capture", "-o", "dump", "--payload", "huge", "--", "train.py"], 2, "'huge'"),
        (["capture", "-o", "dump", "--sources", "loss", "--", "train.py"], 2, "'loss'"),
        (["capture", "-o", "dump", "--model", "model", "--", "train.py"], 2, "MODULE:ATTRIBUTE"),
        (["capture", "-o", "taken", "--", "train.py"], 2, "already holds a dump"),
        (["capture", "-o", "dump", "--", "train.py"], 3, "nothing was recorded"),
        (["capture", "-o", "dump", "--model", "__main__:m", "--", "train.py"], 3, "__main__:m did not exist"),
    ],
)
def test_mistakes(tmp_path, words, status, text):
    write(tmp_path, "import torch\ntorch.nn.ReLU()(torch.ones(1))\n")
    (tmp_path / "taken" / "rank00000").mkdir(parents=True)
    (tmp_path / "taken" / "rank00000" / "run.json").write_text("{}")
    done = launch(tmp_path, *words, check=status)
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "dump").exists()


DISTRIBUTED = """
    import torch
    import torch.distributed as distributed
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from precision_align.recording.session import capture

    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()

    def train(recorded):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        def steps():
            for _ in range(3):
                model(torch.randn(2, 4)).pow(2).mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        if recorded:
            with capture(model, "dump", optimizer=optimizer):
                steps()
        else:
            steps()
        return [p.detach().clone() for p in model.parameters()]

    assert all(map(torch.equal, train(False), train(True)))
    distributed.barrier()  # gloo aborts where one rank goes while another still talks to it
    distributed.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_two_ranks_write_one_dump_and_train_bit_equal(tmp_path):
    write(tmp_path, DISTRIBUTED, "ddp.py")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    launch(tmp_path, "ddp.py", program=torchrun, check=0)
    dump = open_dump(tmp_path / "dump")
    assert [(info.rank, info.world) for info in dump.infos] == [(0, 2), (1, 2)]
    first, second = ([r for r in dump.records if r.key.rank == rank] for rank in (0, 1))
    assert len(first) == len(second) > 50
    for left, right in zip(first, second):
        if left.key.source == "optimizer":  # gradients are averaged, so updates are equal; inputs are not
            assert left.digest == right.digest
    inputs = [[r.digest for r in side if r.key.role == "input" and r.key.scope == ""] for side in (first, second)]
    assert not set(inputs[0]) & set(inputs[1])
    assert {"", "module", "module.0", "module.1", "module.2"} == set(dump.info.modules)


SECOND = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    generator, critic = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(generator.parameters(), 0.1)
    for step in range(6):
        optimizer.zero_grad()
        (critic(generator(torch.ones(1, 2))).sum() * (float("nan") if step == 4 else 1.0)).backward()
        optimizer.step()
"""


def test_limits_and_all_sources_of_a_launch(tmp_path):
    write(tmp_path, SECOND)
    (tmp_path / "plan.json").write_text('{"default": "full"}')
    sources = "modules,operators,functions,optimizer"
    words = ["--plan", "plan.json", "--trigger", "nan", "--ring", "2", "--sources", sources, "--", "train.py"]
    launch(tmp_path, "capture", "-o", "dump", *words, check=0)
    dump = open_dump(tmp_path / "dump")
    assert {c.scope for c in dump.calls if c.kind.endswith(("Linear", "Sequential"))} == {"", "critic", "critic.0"}
    assert {r.key.step for r in dump.records} == {3, 4}
    assert {str(r.key.source) for r in dump.records} >= {"module", "aten", "function", "optimizer"}
    lines = {c.source.rpartition("/")[2] for c in dump.calls if c.kind == "aten.addmm.default"}
    assert lines == {"train.py:10"}


SCRIPTED = """
    import sys
    import torch
    torch.manual_seed(0)
    model = {wrap}(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    {end}
"""


@pytest.mark.parametrize(("end", "status"), [("pass", 3), ("sys.exit(0)", 3), ("sys.exit(5)", 5)])
def test_an_empty_dump_is_an_error_however_the_script_ends(tmp_path, end, status):
    write(tmp_path, SCRIPTED.format(wrap="torch.jit.script", end=end))
    done = launch(tmp_path, *capture_words(), check=status)
    assert "[PA207] nothing was captured" in done.stderr
    assert "PYTORCH_JIT=0" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="torch.compiler.set_stance came with torch 2.6")
def test_a_compiled_script_is_seen_in_an_eager_pass(tmp_path):
    write(tmp_path, SCRIPTED.format(wrap="(lambda m: torch.compile(m, backend='eager'))", end="pass"))
    done = launch(tmp_path, *capture_words(), check=0)
    assert "--eager" in done.stderr
    launch(tmp_path, *capture_words("--overwrite", "--eager"), check=0)
    dump = open_dump(tmp_path / "dump")
    assert {c.scope for c in dump.calls} == {"", "_orig_mod", "optimizer:0"}
    assert dump.steps == [0, 1]
