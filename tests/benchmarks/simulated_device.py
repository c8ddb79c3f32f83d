"""What the simulated NPU costs: a training step of a real size on it, against the same step on the CPU.

    python tests/benchmarks/simulated_device.py [--quick]

Both sides in one process, turn by turn, CPU time, the smallest of several; beside it the limit for profile `none`,
LIMIT times the CPU's time; the emulated profiles are printed and have no limit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from precision_align.devices.simulated import install_simulated, set_profile

# Each operator costs some 20 us more in Python: nothing beside a real step, five times a toy's.
LIMIT = 1.5
PROFILES = ("none", "ascend910b", "ascend910")


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, 3, 8, width // 8).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads.unbind(0), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


def make_side(kind: str, width: int, layers: int) -> tuple[nn.Module, Any, torch.Tensor]:
    """(model, optimizer, tokens) on a device type."""
    torch.manual_seed(0)
    blocks = [Block(width) for _ in range(layers)]
    model = nn.Sequential(nn.Embedding(1000, width), *blocks, nn.LayerNorm(width), nn.Linear(width, 1000)).to(kind)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), torch.randint(0, 1000, (4, 129)).to(kind)


def train_step(model: nn.Module, optimizer: Any, tokens: torch.Tensor) -> float:
    """CPU seconds of one step."""
    started = time.process_time()
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    return time.process_time() - started


def main() -> None:
    """Print the row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller step, profile none only")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    install_simulated("none")
    width, layers, rounds = (256, 2, 4) if quick else (512, 4, 5)
    host, device = make_side("cpu", width, layers), make_side("npu", width, layers)
    row: dict[str, Any] = {"width": width, "layers": layers, "tokens": 4 * 128, "torch": str(torch.__version__)}
    for profile in PROFILES[:1] if quick else PROFILES:
        set_profile(profile)
        train_step(*host), train_step(*device)
        pairs = [(train_step(*host), train_step(*device)) for _ in range(rounds)]
        cpu, simulated = (min(side) for side in zip(*pairs))
        row[profile] = {"cpu_ms": round(cpu * 1e3, 1), "npu_ms": round(simulated * 1e3, 1)}
        row[profile]["ratio"] = round(simulated / cpu, 2)
    row["limit_for_none"] = LIMIT
    print(json.dumps(row))


if __name__ == "__main__":
    main()
