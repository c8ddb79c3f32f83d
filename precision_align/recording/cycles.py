"""When a training step of a script is over: once the optimizers that take turns have all stepped."""

from __future__ import annotations

from collections import Counter
from typing import Any, Optional

import torch

from precision_align.recording.living import find_optimizers
from precision_align.recording.masters import is_managed


class Cycle:
    """Which optimizers of a model have stepped since the training step began.

    A GAN steps its critic, runs the generator again and steps that: one training step. Of the optimizers that exist
    those that have not stepped when another does so for the second time take no part in the cycle (they belong to
    another phase of the training, or are the inner one of a wrapper).
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._expected: Optional[set[int]] = None
        self._stepped: Counter[int] = Counter()

    def start_step(self) -> None:
        """A training step begins."""
        self._stepped.clear()

    def note_step(self, optimizer: Any) -> None:
        """An optimizer has stepped."""
        self._look()
        self._stepped[id(optimizer)] += 1
        if self._stepped[id(optimizer)] > 1:
            self._expected = set(self._stepped)

    def count_steps(self, optimizer: Any) -> int:
        """How often it has stepped in this training step."""
        return self._stepped[id(optimizer)]

    def note_skip(self, optimizer: Any, before: int) -> None:
        """A gradient scaler was asked to step it: where it had stepped ``before`` times and still has, it was left out.

        That update ends a training step as any other does.
        """
        if self.count_steps(optimizer) == before and id(optimizer) in self._look():
            self.note_step(optimizer)

    def _look(self) -> set[int]:
        if self._expected is None:  # by now the first backward pass or update has come: all are there
            self._expected = {id(optimizer) for optimizer in find_optimizers(self._model)}
        return self._expected

    @property
    def is_over(self) -> bool:
        """Whether the next forward begins a new step."""
        return bool(self._stepped) and self._look() <= set(self._stepped)

    @property
    def has_optimizers(self) -> bool:
        """Whether any is to be waited for; without one a backward pass ends a step."""
        return bool(self._look()) or any(map(is_managed, self._model.parameters()))
