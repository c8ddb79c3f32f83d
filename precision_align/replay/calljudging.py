"""The verdicts on the results of one call, from its native and its float64 replay."""

from __future__ import annotations

from typing import Any, Optional, Protocol

import numpy as np
import torch
from torch import nn

from precision_align.core.dtypes import Array, Dtype, dtype_of
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Status
from precision_align.numerics.judgement import Judgement, Scale, judge, judge_exact
from precision_align.replay.bigcalls import Preparer
from precision_align.replay.execution import Execution, Recorded, Style
from precision_align.replay.lifting import LOW_PRECISIONS
from precision_align.replay.modes import ModeFinder
from precision_align.replay.noise import RoundingNoise
from precision_align.replay.replayability import NotReplayable
from precision_align.replay.rowsampling import RowSampler, find_rows, mark_sampled
from precision_align.replay.scales import DRAWS, STEP, estimate_scale, find_scale, is_exact, perturb
from precision_align.replay.slots import Slot, Target, compare_kinds, list_sources
from precision_align.replay.ties import Change, are_ties, excuse_near_ties
from precision_align.replay.values import dtype_name, is_finite, load_tensor, to_array

TIE_UNITS = 1.0  # rounding units a legitimate score may be off by; the draws reach 2.5 times that


class Rerunner(Preparer, Protocol):
    """What is needed of a :class:`~precision_align.replay.judging.Replayer`; ``sampler``: what leaves rows out now;
    ``modes``: tries other arithmetics on what fails."""

    sampler: Optional[RowSampler]
    modes: ModeFinder

    def rerun(self, node: Recorded, style: Style, plan: Optional[Execution], backward: bool) -> Execution: ...


class CallJudging:
    """Judges the slots of one call; runs the perturbed replays once, when the first slot needs them."""

    def __init__(
        self,
        replayer: Rerunner,
        node: Recorded,
        native: Execution,
        golden: Execution,
        module: nn.Module,
        backward: bool = False,
    ) -> None:
        self._replayer, self._node, self._backward = replayer, node, backward
        self.native, self.golden, self._module = native, golden, module
        self._draws: Optional[list[Execution]] = None
        self._finite: Optional[bool] = None
        self._rows: Optional[Array] = None  # of the slot that is judged: those that a row sampler left

    def judge_slot(self, slot: Slot) -> Optional[Target]:
        child, path, record = slot
        if record is None or record.reason:
            return None
        native, golden = pick(self.native, child, path), pick(self.golden, child, path)
        if native is None or golden is None:
            return None
        return Target(child, path, record, self._judge(child, path, record, native, golden))

    def _judge(
        self, child: int, path: str, record: TensorRecord, native: torch.Tensor, golden: torch.Tensor
    ) -> Judgement:
        if native.layout != torch.strided:
            raise NotReplayable(f"{record.layout} results are not judged by replay")
        actual, same = to_array(load_tensor(self._replayer.dump, record)), to_array(native)
        mismatch = compare_kinds(record.dtype, dtype_name(native))
        if mismatch is not None:
            return mismatch
        # a finer dtype than the reference's may hold what was computed in the reference's
        kind = max(dtype_of(record.dtype), dtype_of(dtype_name(native)), key=lambda dtype: dtype.roundoff)
        if not kind.is_floating:
            if self._replayer.sampler is not None and self._replayer.sampler.count:
                raise NotReplayable("decisions may depend on rows that were left out")
            return self._judge_discrete(child, path, actual, same)
        if child < 0 and not self._backward and not self._node.children and is_exact(self._module):
            return judge_exact(actual, same)
        if golden.dtype in LOW_PRECISIONS:
            return Judgement(Status.INCONCLUSIVE, f"its float64 replay still computes in {dtype_name(golden)}")
        wide = to_array(golden)
        sampler = self._replayer.sampler
        self._rows = find_rows(actual, same, wide) if sampler is not None and sampler.count else None
        if self._rows is None:
            return self._judge_values(child, path, (actual, wide, same), kind, record)
        values = (self._take(actual), self._take(wide), self._take(same))
        found = self._judge_values(child, path, values, kind, record)
        return mark_sampled(found, self._rows, actual.shape[-1])

    def _take(self, values: Array) -> Array:
        """The rows that are judged."""
        return values if self._rows is None else values.reshape(-1, values.shape[-1])[self._rows]

    def _judge_values(
        self, child: int, path: str, values: tuple[Array, Array, Array], kind: Dtype, record: TensorRecord
    ) -> Judgement:
        actual, wide, same = values
        if actual.shape != wide.shape or np.array_equal(actual, same, equal_nan=True):
            scale = Scale(np.zeros(wide.shape), 1.0)
        else:
            scale = self.find_scale(child, path, record.dtype, wide)
        judgement = judge(actual, wide, same, scale, kind, finite_inputs=self._has_finite_inputs())
        if judgement.status == Status.FAIL and self.native.random:
            return Judgement(Status.RANDOM, f"it draws random numbers, and {judgement.why}", judgement.metrics)
        if judgement.status == Status.FAIL:
            judgement = self._excuse_ties(child, path, values, scale, kind, judgement)
        if judgement.status == Status.FAIL:
            found = self._replayer.modes
            return found.judge(actual, wide, record.dtype, judgement, lambda mode: self._run_mode(mode, child, path))
        return judgement

    def _run_mode(self, mode: Any, child: int, path: str) -> Optional[Array]:
        """The native replay of a result under an arithmetic mode."""
        value = self._rerun(Style(golden=False, gradients=self._backward, arithmetic=mode), child, path)
        return None if value is None else self._take(to_array(value))

    def _rerun(self, style: Style, child: int, path: str) -> Optional[torch.Tensor]:
        """One result in another style; None where the code does not run in it."""
        try:
            return pick(self._replayer.rerun(self._node, style, self.native, self._backward), child, path)
        except NotReplayable:
            return None

    def _excuse_ties(
        self, child: int, path: str, values: tuple[Array, Array, Array], scale: Scale, kind: Dtype, found: Judgement
    ) -> Judgement:
        """Whether the few failing values are decisions (a rounding, a threshold) that rounding flips."""

        def rerun(change: Change) -> Optional[Array]:
            value = self._rerun(Style(golden=True, change=change, gradients=self._backward), child, path)
            return None if value is None else self._take(to_array(value))

        return excuse_near_ties(*values, scale, kind, found, rerun)

    def _has_finite_inputs(self) -> bool:
        """Whether neither NaN nor Inf went into the call's own code."""
        if self._finite is None:
            records = list_sources(self._node, self._backward)
            self._finite = all(is_finite(self._replayer.dump, record) for record in records)
        return self._finite

    def find_scale(self, child: int, path: str, dtype: str, golden: Array) -> Scale:
        if child < 0 and path == "" and not self._backward and not self._node.children:
            records = list(self._node.inputs.values())
            if len(records) == 1:
                inputs = [load_tensor(self._replayer.dump, records[0]).to(torch.float64)]
                module = self._replayer.prepare(self._node, Style(golden=True))[0].train(
                    self._replayer.is_training(self._node)
                )
                found = find_scale(module, inputs, golden)
                if found is not None:
                    return found
        values = [pick(run, child, path) for run in self._perturbed()]
        return estimate_scale(golden, [self._take(to_array(value)) for value in values if value is not None], dtype)

    def _perturbed(self) -> list[Execution]:
        if self._draws is None:
            self._draws = []
            for seed in range(DRAWS):
                generator = torch.Generator().manual_seed(seed)
                noise = RoundingNoise(generator, STEP)
                style = Style(True, change=perturb(generator), gradients=self._backward, arithmetic=noise)
                self._draws.append(self._replayer.rerun(self._node, style, self.native, self._backward))
        return self._draws

    def _judge_discrete(self, child: int, path: str, actual: Array, native: Array) -> Judgement:
        """Integers and booleans are exact, except where a rounding-size change of the inputs flips them: near-ties."""
        exact = judge_exact(actual, native)
        if exact.status == Status.PASS or actual.shape != native.shape or self._backward:
            return exact
        floating = [record for record in self._node.inputs.values() if dtype_of(record.dtype).is_floating]
        if not floating:
            return exact
        unit = TIE_UNITS * max(dtype_of(record.dtype).roundoff for record in floating)

        def rerun(change: Change) -> Optional[Array]:
            value = self._rerun(Style(golden=True, change=change), child, path)
            return None if value is None else to_array(value)

        if are_ties(actual, native, unit, rerun):
            share = {"mismatched": exact.metrics["mismatched"]}
            return Judgement(Status.WARN, "decisions differ only at near-ties, which rounding flips", share)
        return exact


def pick(run: Execution, child: int, path: str) -> Optional[torch.Tensor]:
    if child >= 0:
        return run.given.get((child, path))
    if path.startswith("after."):
        return run.buffers.get(path[len("after.") :])
    return run.outputs.get(path)
