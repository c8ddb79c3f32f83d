"""The localization benchmark: injected bugs with a known place, run against re-ordered arithmetic, and scored.

``python tests/localization/benchmark`` runs all of it and writes the table; ``--quick`` a fixed sample. The bugs follow
public reports (the numbers in ``row`` are those of the project's survey; "pilot" are the generic ones beside them).
Everything that builds a model needs torch alone: the same bugs run under other tools.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
BOTH = (FP32, BF16)
FAMILIES = ("llama", "training", "moe", "vision", "recurrent", "splatting")
BENIGN = "benign"


@dataclass
class Setup:
    """One side, ready to run. ``between`` is called with the model between backward and the optimizer's step;
    ``batches``: one training step each; a batch with several entries is accumulated.
    """

    model: torch.nn.Module
    batches: list[list[dict[str, torch.Tensor]]]
    optimizer: Any = None
    between: Callable[[torch.nn.Module], None] | None = None
    forward_only: bool = False


@dataclass(frozen=True)
class Bug:
    """An injected bug, or with ``first`` None a benign variation.

    ``build(faulty, seed, dtype)``; ``first``: the scope to blame; ``sites``, ``phase``, ``call``: the rest of it;
    ``words``: an explanation is right if it contains one of them, () where no hypothesis claims this class;
    ``hidden``: dtype -> why it cannot be seen there, for the misses that detectability explains.
    """

    name: str
    family: str
    build: Callable[[bool, int, torch.dtype], Setup]
    first: str | None
    sites: tuple[str, ...]
    phase: str = "forward"
    call: int | None = None
    row: str = ""
    words: tuple[str, ...] = ()
    dtypes: tuple[torch.dtype, ...] = BOTH
    hidden: dict[torch.dtype, str] = field(default_factory=dict)


_FOUND: list[Bug] = []


def add(name: str, family: str, build: Any, first: str | None, sites: Any = ("module",), **more: Any) -> None:
    """Register a bug; ``sites`` may be one name."""
    chosen = (sites,) if isinstance(sites, str) else tuple(sites)
    _FOUND.append(Bug(f"{family}.{name}", family, build, first, chosen, **more))


def find_bugs() -> list[Bug]:
    """All bugs and benign variations, by family and name."""
    if not _FOUND:
        for name in (*FAMILIES, BENIGN):
            import_module(f"{__name__}.{name}")
    return list(_FOUND)


def train_step(setup: Setup, batch: list[dict[str, torch.Tensor]]) -> None:
    """One step: every micro-batch forward and backward, then what stands between, then the optimizer."""
    for part in batch:
        output = setup.model(**part)
        if not setup.forward_only:
            find_loss(output).backward()
    if setup.forward_only or setup.optimizer is None:
        return
    if setup.between is not None:
        setup.between(setup.model)
    setup.optimizer.step()
    for parameter in setup.model.parameters():
        parameter.grad = None


def find_loss(output: Any) -> torch.Tensor:
    """A scalar to differentiate: the output where it is one, else the mean square of its first floating tensor."""
    if isinstance(output, dict):
        output = output.get("loss", next(iter(output.values())))
    if isinstance(output, (tuple, list)):
        output = next(item for item in output if isinstance(item, torch.Tensor) and item.requires_grad)
    return output if output.dim() == 0 else output.float().square().mean()
