"""Small real trainings of frameworks: bit-equal under capture, steps as the framework counts them, a fault found.

Minutes and gigabytes: ``bash tests/launching/frameworks/run.sh`` installs the packages and runs them, CI does not.
"""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from precision_align.cli.app import main
from precision_align.storage.opening import open_dump

pytestmark = pytest.mark.skipif("FRAMEWORKS" not in os.environ, reason="bash tests/launching/frameworks/run.sh")

SCRIPTS = Path(__file__).with_name("scripts")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


@dataclass(frozen=True)
class Case:
    """``fault``: the scope, without wrappers, where the script's fault is; ``steps`` of the run."""

    package: str
    program: tuple[str, ...]
    fault: str
    steps: tuple[int, ...] = (0, 1, 2)
    ranks: int = 1


CASES = {
    "Trainer": Case("transformers", ("trainer.py",), "model.layers.1.post_attention_layernorm"),
    "Accelerate": Case("accelerate", ("-m", "accelerate.commands.launch", "--cpu", "accelerated.py"), "1"),
    "inductor's compile workers": Case("torch._inductor", ("compiled.py",), "norm"),
    "ZeRO 1": Case("deepspeed", (*TORCHRUN, "2", "zero.py", "1", "fp32"), "norm", ranks=2),
    "ZeRO 2 bf16": Case("deepspeed", (*TORCHRUN, "2", "zero.py", "2", "bf16"), "norm", ranks=2),
    "ZeRO 3": Case("deepspeed", (*TORCHRUN, "2", "zero.py", "3", "fp32"), "norm", ranks=2),
    "Megatron bf16, distributed optimizer, recompute": Case(
        "megatron.core",
        (*TORCHRUN, "1", "megatron_gpt.py", "--bf16", "--distributed", "--recompute"),
        "decoder.layers.1.self_attention.core_attention",
    ),
    "Megatron interleaved pipeline": Case(
        "megatron.core",
        (*TORCHRUN, "2", "megatron_gpt.py", "--pipeline", "--distributed"),
        "decoder.layers.0.self_attention.core_attention",
        ranks=2,
    ),
}


def is_installed(package: str) -> bool:
    top = package.partition(".")[0]
    return importlib.util.find_spec(top) is not None and importlib.util.find_spec(package) is not None


def results_of(done) -> list[str]:
    return sorted(line for line in done.stdout.splitlines() if line.startswith("RESULT"))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_a_framework(python, launch, tmp_path, capsys, name):
    case = CASES[name]
    if not is_installed(case.package):
        pytest.skip(f"{case.package} could not be installed")
    for script in SCRIPTS.iterdir():
        (tmp_path / script.name).write_text(script.read_text())
    command = (python, *case.program)
    # workers are processes of their own also for the two kernels of this test, and nothing is found in a cache
    compiling = {"TORCHINDUCTOR_COMPILE_THREADS": "2", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    surroundings = {"DS_ACCELERATOR": "cpu", "TORCHINDUCTOR_WORKER_START": "subprocess", **compiling}
    alone = results_of(launch(*command, **surroundings))
    done = launch(*command, configuration='output = "reference"\n', **surroundings)
    assert len(alone) == case.ranks
    assert results_of(done) == alone
    assert done.stderr.count("precision-align:") == 1  # rank 0's last line
    dump = open_dump(tmp_path / "reference")
    assert (tuple(dump.steps), tuple(dump.ranks)) == (case.steps, tuple(range(case.ranks)))
    updates = [(call.rank, call.step) for call in dump.calls if call.scope.startswith("optimizer:")]
    assert sorted(set(updates)) == [(rank, step) for rank in range(case.ranks) for step in case.steps]
    kinds = {(str(r.key.source), str(r.key.role)) for r in dump.records}
    assert kinds >= {("optimizer", role) for role in ("gradient", "parameter", "state")} | {("parameters", "parameter")}
    assert not [note for note in dump.notes if "not recorded" in note]
    launch(*command, "--fault", configuration='output = "candidate"\n', **surroundings)
    capsys.readouterr()
    assert main(["compare", str(tmp_path / "reference"), str(tmp_path / "candidate"), "--json"]) == 1
    result = json.loads(capsys.readouterr().out)
    # the gradient that another pipeline stage sends is an input from nowhere: there the module is among the frontier
    found = result["frontier"] if "pipeline" in name else [result["first"]]
    forward = [place for place in found if (place["step"], place["phase"]) == (0, "forward")]
    assert forward[0]["scope"].endswith(case.fault)


def test_a_resumed_trainer_goes_on_with_its_global_step(python, launch, tmp_path):
    if not is_installed("transformers"):
        pytest.skip("transformers could not be installed")
    (tmp_path / "trainer.py").write_text((SCRIPTS / "trainer.py").read_text())
    launch(python, "trainer.py")
    launch(python, "trainer.py", "--resume", configuration='output = "resumed"\n')
    assert list(open_dump(tmp_path / "resumed").steps) == [3, 4]
