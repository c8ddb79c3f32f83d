"""What judging the layers of a 7B model costs: CPU seconds and peak memory, whole and by a sample.

    python tests/benchmarks/big_layers.py [--tokens 4096] [--write reports/benchmarks/big_layers.md] [--quick]

One layer and one way a process, bfloat16, a candidate whose arithmetic differs from the reference's (else nothing has
to be judged). Seconds are CPU seconds of judging alone; memory is what the process's peak grows by over the recorded
tensors. Fails where a sampled product is not at least LIMIT times cheaper than the whole.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from precision_align.comparison.engine import Engine
from precision_align.recording.session import capture
from precision_align.replay import bigcalls, rowsampling
from precision_align.storage.memory import MemorySink

ROOT = Path(__file__).resolve().parents[2]
WIDTH, HIDDEN, HEADS, VOCABULARY = 4096, 11008, 32, 32000
LIMIT = 1.3  # of CPU time; a linear layer at 1024 tokens, the least of all, saves half of it
NEVER = 1 << 62
WARM_TOKENS = 8
PAGE = "reports/benchmarks/big_layers.md"


class Linear(nn.Linear):
    """As the candidate computes it: products of float32, rounded once."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x.float(), self.weight.float()).to(x.dtype)


class Attention(nn.Module):
    """Causal attention over heads that are given, as Megatron's core attention is."""

    wide = False

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        given = [part.float() if self.wide else part for part in (q, k, v)]
        y = functional.scaled_dot_product_attention(given[0], given[1], given[2], is_causal=True).to(q.dtype)
        return y.transpose(1, 2).flatten(2)


class RMSNorm(nn.Module):
    """As Llama's."""

    wide = False

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.double() if self.wide else x.float()
        normal = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return (self.weight.to(wide.dtype) * normal).to(x.dtype)


class Root(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(*inputs)


def make(name: str, tokens: int) -> tuple[nn.Module, nn.Module, list[torch.Tensor]]:
    """(reference, candidate, inputs) of one layer."""
    torch.manual_seed(0)
    x = torch.randn(1, tokens, WIDTH, dtype=torch.bfloat16)
    if name.startswith("linear"):
        reference = nn.Linear(WIDTH, HIDDEN, bias=False, dtype=torch.bfloat16)
        candidate: nn.Module = Linear(WIDTH, HIDDEN, bias=False, dtype=torch.bfloat16)
        candidate.load_state_dict(reference.state_dict())
        candidate.__class__ = type(
            "Linear", (nn.Linear,), {"forward": Linear.forward, "__module__": nn.Linear.__module__}
        )
        return Root(reference), Root(candidate), [x.requires_grad_("backward" in name)]
    if name == "embedding":
        table = nn.Embedding(VOCABULARY, WIDTH, dtype=torch.bfloat16)
        return Root(table), Root(table), [torch.randint(VOCABULARY, (1, tokens))]
    kind = Attention if name == "attention" else RMSNorm
    reference, candidate = kind().to(torch.bfloat16), kind().to(torch.bfloat16)
    candidate.wide = True
    inputs = [torch.randn(1, HEADS, tokens, WIDTH // HEADS, dtype=torch.bfloat16) for _ in range(3)]
    return Root(reference), Root(candidate), inputs if name == "attention" else [x]


LAYERS = {
    "linear": f"linear {WIDTH} x {HIDDEN}, forward",
    "linear-backward": f"linear {WIDTH} x {HIDDEN}, backward",
    "attention": f"causal attention, {HEADS} heads of {WIDTH // HEADS}",
    "norm": f"RMSNorm {WIDTH}",
    "embedding": f"embedding {VOCABULARY} x {WIDTH}",
}


def measure(name: str, whole: bool, tokens: int) -> dict[str, Any]:
    """Judge one layer in this process."""
    if whole:
        bigcalls.SAMPLED_ABOVE = bigcalls.SAMPLED_VALUES = rowsampling.SAMPLED_ABOVE = NEVER
    reference, candidate, inputs = make(name, tokens)
    sink = MemorySink()
    with capture(candidate, None, sink=sink) as recorder, recorder.step(), torch.set_grad_enabled("backward" in name):
        y = candidate(*inputs)
        if "backward" in name:
            y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype))
    engine = Engine(None, sink.dump(), replay=reference)
    before = read_memory(reset=True)
    phase = "backward" if "backward" in name else "forward"
    started = time.process_time()
    rows = engine.run().rows if phase == "forward" else judge_backward(engine)
    spent = time.process_time() - started
    judged = [row for row in rows if row.scope == "layer" and row.phase == phase]
    return {
        "seconds": spent,
        "bytes": max(0, read_memory() - before),
        "evidence": ", ".join(sorted({row.evidence for row in judged})),
        "status": ", ".join(sorted({str(row.status) for row in judged})),
    }


def judge_backward(engine: Engine) -> list[Any]:
    """The backward pass of the layer alone."""
    (node,) = (node for node in engine._candidate.nodes if node.scope == "layer")
    return engine._backward.judge(node)


def read_memory(reset: bool = False) -> int:
    """Bytes of the peak of this process, which ``reset`` sets to what it holds now."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 if found else 0


def run_all(tokens: int, names: list[str]) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(layer, whole, sampled), each in a process of its own."""
    found = []
    for name in names:
        sides = []
        for whole in ("whole", "sampled"):
            command = [sys.executable, __file__, "--one", name, whole, "--tokens", str(tokens)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            sides.append(json.loads(done.stdout.splitlines()[-1]))
            print(name, whole, sides[-1], file=sys.stderr)
        found.append((name, sides[0], sides[1]))
    return found


def render(found: list[tuple[str, dict[str, Any], dict[str, Any]]], tokens: int) -> str:
    """The page."""
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT).stdout
    lines = [
        "# What judging the layers of a 7B model costs",
        "",
        f"- Command: `python tests/benchmarks/big_layers.py --tokens {tokens} --write {PAGE}`",
        f"- Commit: {commit.strip()}; {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}",
        f"- torch {torch.__version__}, {torch.get_num_threads()} threads, bfloat16, {tokens} tokens",
        "- CPU seconds of judging alone, forward unless said; memory beyond the recorded tensors",
        "",
        "| layer | whole, s | GB | sampled, s | GB | times cheaper | evidence | status |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, whole, sampled in found:
        ratio = whole["seconds"] / max(sampled["seconds"], 1e-9)
        cells = [LAYERS[name], *(cell for side in (whole, sampled) for cell in _figures(side))]
        cells += [f"{ratio:.1f}", f"{whole['evidence']} / {sampled['evidence']}"]
        cells.append(f"{whole['status']} / {sampled['status']}")
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "Sampled are products of more than 2^31 multiplications; norms and embeddings are always judged whole. What a "
        "sample can miss stands in docs/big-models.md and beside each record.",
        "",
    ]
    return "\n".join(lines)


def _figures(side: dict[str, Any]) -> list[str]:
    return [f"{side['seconds']:.2f}", f"{side['bytes'] / 1e9:.2f}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--quick", action="store_true", help="the linear layer forward, at 1024 tokens")
    parser.add_argument("--write", metavar="FILE")
    parser.add_argument("--one", nargs=2, metavar=("LAYER", "WAY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, way = arguments.one
        measure(name, way == "whole", WARM_TOKENS)  # torch loads much of itself at the first use
        print(json.dumps(measure(name, way == "whole", arguments.tokens)))
        return 0
    tokens = 1024 if arguments.quick else arguments.tokens
    found = run_all(tokens, ["linear"] if arguments.quick else list(LAYERS))
    page = render(found, tokens)
    print(page)
    if arguments.write:
        Path(arguments.write).write_text(page, encoding="utf-8")
    slow = [
        name
        for name, whole, sampled in found
        if "sampled" in sampled["evidence"] and whole["seconds"] < LIMIT * sampled["seconds"]
    ]
    print(f"sampling saves too little in {', '.join(slow)}" if slow else "ok", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
