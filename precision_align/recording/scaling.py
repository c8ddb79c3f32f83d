"""Loss scaling: the loss is logged as the user's code computed it, and an update that ``GradScaler`` skips ends a step.

Else an overflow on one side would make its later steps other ones than those of the other side.
"""

from __future__ import annotations

import functools
import weakref
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Optional

import torch

from precision_align.recording.companions import Companion
from precision_align.recording.copies import Staged
from precision_align.recording.cycles import Cycle
from precision_align.recording.living import scaler_classes
from precision_align.recording.staging import untouched
from precision_align.recording.tape import Tape


@dataclass(frozen=True)
class Unscaled:
    """A loss before scaling: its value, its copy where the step is recorded, and the factor."""

    value: torch.Tensor
    staged: Optional[Staged]
    scale: torch.Tensor


class ScaleWatcher(Companion):
    """Remembers what ``GradScaler.scale`` turned into what, until the step ends; ``cycle``: told of skipped updates."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self.cycle: Optional[Cycle] = None
        self._known: dict[int, tuple[Any, Unscaled]] = {}
        self._live = False

    def start(self, cleanup: ExitStack) -> None:
        """Wrap ``scale`` and ``step`` on the classes."""
        self._live = True
        for kind in scaler_classes():
            for name, wrap in (("scale", self._wrap_scale), ("step", self._wrap_step)):
                if name in vars(kind):
                    original = vars(kind)[name]
                    wrapper = wrap(original)
                    setattr(kind, name, wrapper)
                    cleanup.callback(self._restore, kind, name, original, wrapper)

    def _restore(self, kind: Any, name: str, original: Any, wrapper: Any) -> None:
        self._live = False
        if vars(kind).get(name) is wrapper:  # else somebody has wrapped ours: it stays, and does nothing
            setattr(kind, name, original)

    def _wrap_scale(self, original: Any) -> Any:
        @functools.wraps(original)
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if self._live:
                self._tape.guard("a scaled loss", self._remember, outputs, scaled, scaler)
            return scaled

        return scale

    def _wrap_step(self, original: Any) -> Any:
        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._live or self.cycle is None:
                return original(scaler, optimizer, *args, **kwargs)
            before = self.cycle.count_steps(optimizer)
            result = original(scaler, optimizer, *args, **kwargs)
            self._tape.guard("a skipped update", self.cycle.note_skip, optimizer, before)
            return result

        return step

    def _remember(self, outputs: Any, scaled: Any, scaler: Any) -> None:
        if not isinstance(outputs, torch.Tensor) or outputs is scaled or outputs.numel() != 1:
            return
        factor = getattr(scaler, "_scale", None)
        if not isinstance(factor, torch.Tensor):
            return
        with untouched():
            value, scale = outputs.detach().clone(), factor.detach().clone()
        staged = self._tape.stage(outputs, self._tape.plan.tier("")) if self._tape.clock.recording else None
        self._known[id(scaled)] = (weakref.ref(scaled), Unscaled(value, staged, scale))

    def find(self, root: torch.Tensor) -> Optional[Unscaled]:
        """What this root of a backward pass was before it was scaled, None where it was not."""
        reference, unscaled = self._known.get(id(root), (None, None))
        return unscaled if reference is not None and reference() is root else None

    def finish_step(self) -> None:
        """Forget all."""
        self._known.clear()
