"""The training step's number where the framework keeps one: a resumed run goes on with it."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any, Callable, Optional

import torch

from precision_align.core.trees import class_name


def find_counter(model: torch.nn.Module) -> Optional[Callable[[], int]]:
    """What gives the number of the step that begins, for the root of a session that starts in the middle of its call.

    Known are DeepSpeed's engine, which is the root itself, and the Trainer of transformers, whose training loop is
    found among the callers. None where there is neither.
    """
    if _is_a(model, "deepspeed.", "DeepSpeedEngine"):
        engine: Any = model
        return lambda: int(engine.global_steps)
    if "transformers.trainer" in sys.modules:
        frame: Optional[FrameType] = sys._getframe(1)
        while frame is not None:
            trainer: Any = frame.f_locals.get("self")
            if _is_a(trainer, "transformers.trainer.", "Trainer"):
                return lambda: int(trainer.state.global_step)
            frame = frame.f_back
    return None


def _is_a(thing: Any, start: str, end: str) -> bool:
    names = (class_name(kind) for kind in type(thing).__mro__)
    return any(name.startswith(start) and name.endswith(end) for name in names)
