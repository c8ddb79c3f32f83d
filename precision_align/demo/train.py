"""Trains the demo's model on one device: a training script as a user has it, with four lines of precision-align in it.

python -m precision_align.demo.train --steps 150 --save start.pt
python -m precision_align.demo.train --start start.pt --dump runs/cpu
python -m precision_align.demo.train --start start.pt --dump runs/npu --device simulated --operators ascend-wrong
precision-align compare runs/cpu runs/npu --replay precision_align.demo.model:LanguageModel
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import precision_align
from precision_align.core.errors import UsageError
from precision_align.demo.model import build_model
from precision_align.demo.text import draw_batches, load_text

OPERATORS = ("torch", "ascend", "ascend-wrong")


@dataclass(frozen=True)
class Settings:
    """One training run.

    ``device``: "cpu", "cuda", "npu" or "simulated"; ``operators``: whose forwards the mapped modules run; ``batch`` and
    ``length``: sequences a step and bytes a sequence; ``warmup``: steps of linearly rising learning rate; ``start``: a
    checkpoint to go on from; ``dump``: where to record, and ``record``: which steps; ``seed``: of the data order;
    ``fault``: what else to break, as ``KIND@MODULE[:OP[:PHASE]][:KEY=VALUE]``.
    """

    device: str = "cpu"
    operators: str = "torch"
    steps: int = 40
    batch: int = 8
    length: int = 64
    learning_rate: float = 1e-3
    warmup: int = 10
    seed: int = 0
    start: str | None = None
    dump: str | None = None
    record: str = "0"
    fault: str | None = None


def train(settings: Settings, report: Callable[[int, float], None] | None = None) -> tuple[nn.Module, list[float]]:
    """Train and return the model with the loss of each step. ``report`` is told every step and its loss."""
    device = prepare_device(settings.device)
    model = prepare_model(settings).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / settings.warmup))
    batches = draw_batches(load_text(), settings.batch, settings.length, settings.seed)
    losses = []
    with break_model(model, settings.fault) as injection, open_recorder(model, optimizer, settings) as recorder:
        for step, (tokens, targets) in zip(range(settings.steps), batches):
            with recorder.step() if recorder else nullcontext():
                loss = model(tokens.to(device), targets.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            losses.append(loss.item())
            if report:
                report(step, losses[-1])
    if injection is not None and not injection.fired:
        raise UsageError(
            f"The fault {settings.fault} never acted in {settings.steps} steps: no call of that module fits its "
            "operator, phase and call number. Leave the operator out, or see `precision-align demo --fault list`."
        )
    return model, losses


def open_recorder(model: nn.Module, optimizer: torch.optim.Optimizer, settings: Settings) -> Any:
    """The capture session, or nothing where no dump is wanted."""
    if settings.dump is None:
        return nullcontext()
    return precision_align.capture(model, settings.dump, optimizer=optimizer, steps=settings.record, overwrite=True)


def break_model(model: nn.Module, fault: str | None) -> AbstractContextManager[Any]:
    """The model with a named fault inside the block, to see how a fault of that kind looks."""
    if fault is None:
        return nullcontext()
    from precision_align.devices.injection import inject

    return inject(model, fault)


def prepare_device(name: str) -> torch.device:
    """The torch device. "simulated" makes an emulated NPU (not Ascend) and a look-alike of torch_npu here."""
    if name.partition(":")[0] != "simulated":
        if name == "npu":
            import torch_npu  # noqa: F401, makes the device known to torch
        return torch.device(name)
    from precision_align.devices.simulated import install_simulated
    from precision_align.devices.torch_npu_lookalike import install_lookalike

    install_simulated(name.partition(":")[2] or "ascend910b")
    install_lookalike()
    return torch.device("npu")


def prepare_model(settings: Settings) -> nn.Module:
    """The model with its weights on the CPU and its operators as asked."""
    model = build_model()
    if settings.start is not None:
        model.load_state_dict(torch.load(settings.start, weights_only=True))
    if settings.operators != "torch":
        from precision_align.demo.ascend import RIGHT, WRONG, replace_operators

        replace_operators(model, WRONG if settings.operators == "ascend-wrong" else RIGHT)
    return model


def save_checkpoint(model: nn.Module, path: str | Path) -> None:
    """The weights alone, from the CPU."""
    torch.save({name: tensor.cpu() for name, tensor in model.state_dict().items()}, path)


def print_step(step: int, loss: float) -> None:
    """The line of the log; ``precision-align loss`` reads it."""
    print(f"step {step:4d}  loss {loss:.6f}", flush=True)  # noqa: T201, a training script's log


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m precision_align.demo.train", description="Trains a small GPT.")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, npu, or simulated (an emulated NPU, not Ascend)")
    parser.add_argument(
        "--operators", choices=OPERATORS, default="torch", help="ascend-wrong: RoPE is replaced wrongly"
    )
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--learning-rate", type=float, default=Settings.learning_rate)
    parser.add_argument("--seed", type=int, default=Settings.seed, help="of the order of the data")
    parser.add_argument("--start", help="checkpoint to go on from")
    parser.add_argument("--save", help="write the trained weights here")
    parser.add_argument("--dump", help="record the run here")
    parser.add_argument("--fault", help="break the model: KIND@MODULE[:OP[:PHASE]][:KEY=VALUE]")
    parser.add_argument("--record", default=Settings.record, help="which steps to record (default: 0)")
    arguments = vars(parser.parse_args(argv))
    save = arguments.pop("save")
    model, _ = train(Settings(**arguments), print_step)
    if save:
        save_checkpoint(model, save)


if __name__ == "__main__":
    main()
