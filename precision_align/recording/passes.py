"""Backward passes of a step: the losses they start from, the gradient totals they leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import torch

from precision_align.core.terms import Phase, Role, Source
from precision_align.recording.copies import Staged
from precision_align.recording.gradients import Ledger
from precision_align.recording.losses import BackwardListener
from precision_align.recording.parameters import ParameterRecorder
from precision_align.recording.scaling import ScaleWatcher
from precision_align.recording.series import Series
from precision_align.recording.shards import local_shard
from precision_align.recording.staging import untouched
from precision_align.recording.tape import Place, Tape


class PassRecorder(BackwardListener):
    """Listens to all backward passes while a session runs.

    ``passed``: one has ended in this step; ``expects_optimizer``: an optimizer will record the gradients as it sees
    them, so the totals are left to it.
    """

    def __init__(
        self, tape: Tape, ledger: Ledger, series: Series, parameters: ParameterRecorder, scales: ScaleWatcher
    ) -> None:
        self._tape, self._ledger, self._series, self._parameters = tape, ledger, series, parameters
        self._scales = scales
        self._losses: list[tuple[torch.Tensor, Optional[Staged], int]] = []
        self._num_passes = self._taken_before = 0
        self._waiting = False
        self.passed = self.expects_optimizer = self.in_step = False

    def start_step(self) -> None:
        """A new step: no pass so far."""
        self._losses.clear()
        self._num_passes = 0
        self._waiting = self.passed = False
        self.in_step = True

    def start_batch(self) -> None:
        """A new micro-batch: its passes are numbered from 0."""
        self._num_passes = 0

    def finish_step(self) -> None:
        """Record the totals that no optimizer has recorded."""
        if self._waiting:
            self._record_totals()
        self.in_step = False

    def leave_to_optimizer(self) -> None:
        """An optimizer has recorded the gradients."""
        self._waiting = False

    def before_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """Keep the losses; their values are read at the step's end, so that no device has to wait here."""
        self._losses.clear()
        self._taken_before = self._ledger.num_taken
        for root in roots:
            self._tape.guard("the loss", self._keep_loss, root)

    def after_backward(self, alone: bool) -> None:
        """Without an optimizer to wait for, the totals are recorded now: who knows when they are cleared."""
        watching = self._tape.clock.recording and "gradients" in self._tape.plan.sources
        if watching and not alone and self._ledger.num_taken == self._taken_before:
            return  # another session's model: nothing of ours was passed through
        self.passed = True
        for loss in self._losses:
            self._tape.guard("the loss", self._log_loss, *loss)
        if watching:
            self._waiting = True
            if not self.expects_optimizer:
                self._record_totals()

    def _keep_loss(self, root: torch.Tensor) -> None:
        if root.numel() != 1 or root.is_complex() or not self.in_step:
            return
        unscaled = self._scales.find(root)
        if unscaled is not None:
            self._series.add("loss_scale", self._tape.clock.batch, unscaled.scale, given=False)
            self._losses.append((unscaled.value, unscaled.staged, self._tape.tick()))
            return
        with untouched():
            value = local_shard(root).detach().clone()
        self._losses.append(
            (
                value,
                self._tape.stage(root, self._tape.plan.tier("")) if self._tape.clock.recording else None,
                self._tape.tick(),
            )
        )

    def _log_loss(self, value: torch.Tensor, staged: Optional[Staged], order: int) -> None:
        clock = self._tape.clock
        self._series.add("loss", clock.batch, value, given=False)
        if staged is not None:
            place, ordinal = Place(clock.step, clock.batch, "", 0), self._series.count(f"loss:{clock.batch}")
            self._tape.hand_over(
                place, Source.POINT, Phase.FORWARD, Role.LOSS, "loss", staged, ordinal=ordinal, order=order
            )

    def _record_totals(self) -> None:
        self._waiting = False
        ordinal, self._num_passes = self._num_passes, self._num_passes + 1
        if self._tape.clock.recording:
            self._tape.guard("gradient totals", self._parameters.record_totals, ordinal)
