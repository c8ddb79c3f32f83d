"""The optimizers of a session, and their steps as they come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Optional

import torch

from precision_align.recording.crew import Crew
from precision_align.recording.cycles import Cycle
from precision_align.recording.forcing import Forcer
from precision_align.recording.optimizers import OptimizerRecorder, StepWrapper
from precision_align.recording.passes import PassRecorder
from precision_align.recording.tape import Tape


class Updates:
    """``given``: the optimizers that the session was begun with; others join when they step: see ``watch``."""

    def __init__(
        self,
        tape: Tape,
        model: torch.nn.Module,
        given: Sequence[Any],
        crew: Crew,
        passes: PassRecorder,
        cycle: Cycle,
        forcer: Optional[Forcer],
    ) -> None:
        self._tape, self._model, self._given, self._forcer = tape, model, given, forcer
        self._crew, self._passes, self._cycle = crew, passes, cycle
        self._recorders: list[OptimizerRecorder] = []
        self._unwrapped: list[OptimizerRecorder] = []
        self.described: dict[str, Mapping[str, Any]] = {}

    def __bool__(self) -> bool:
        """Whether any optimizer is watched."""
        return bool(self._recorders)

    def start(self, cleanup: ExitStack) -> None:
        """Watch those that were given, until the session ends."""
        for optimizer in self._given:
            self._wrap(self.watch(optimizer), cleanup)

    def watch(self, optimizer: Any) -> OptimizerRecorder:
        """Record the steps of one more optimizer; whoever calls this reports them: see before, after."""
        recorder = OptimizerRecorder(self._tape, self._model, optimizer, len(self._recorders))
        self._recorders.append(recorder)
        recorder.forcer = self._forcer
        # a forced update sees the reference's gradients: the own ones are recorded as totals
        self._passes.expects_optimizer = self._forcer is None
        self.described[recorder.scope] = {"class": recorder.kind, "groups": recorder.describe_groups()}
        return recorder

    def _wrap(self, recorder: OptimizerRecorder, cleanup: ExitStack) -> None:
        wrapper = StepWrapper(
            recorder.optimizer,
            lambda closure: self.before(recorder, closure),
            lambda error: self.after(recorder, error),
        )
        if wrapper.install():
            cleanup.callback(wrapper.remove)
        else:
            self._unwrapped.append(recorder)
            self._tape.note(f"{recorder.scope} takes no attributes: its update was taken at the end of recorder.step()")

    def start_step(self) -> None:
        """A training step that is recorded begins."""
        for recorder in self._recorders:
            recorder.start_step()

    def finish_step(self) -> None:
        """It ends: what could not be wrapped is recorded now."""
        if self._passes.passed and self._is_wanted:
            for recorder in self._unwrapped:
                self._tape.guard("an optimizer step", recorder.record_late)

    def before(self, recorder: OptimizerRecorder, closure: bool = False) -> None:
        """A watched optimizer is about to step; with a closure its gradients are made inside of that."""
        self._passes.passed = self._tape.clock.stepping = True
        if self._crew.norms is not None:
            self._tape.guard("the gradients' norm", self._crew.norms.before_update, recorder.optimizer)
        if self._is_wanted:
            self._tape.guard("an optimizer step", recorder.before, closure)

    def after(self, recorder: OptimizerRecorder, error: str = "") -> None:
        """It has stepped, or raised ``error``."""
        self._tape.clock.stepping = False
        self._cycle.note_step(recorder.optimizer)
        if self._is_wanted:
            self._tape.guard("an optimizer step", recorder.after, error)
            self._passes.leave_to_optimizer()

    @property
    def _is_wanted(self) -> bool:
        return self._tape.clock.recording and "optimizer" in self._tape.plan.sources
