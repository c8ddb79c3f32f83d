"""The local test of recorded calls, forward and backward, from their replays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Callable, Optional

import numpy as np
import torch
from torch import nn

from precision_align.core.dtypes import Array, Dtype, dtype_of
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Status
from precision_align.numerics.judgement import Judgement, Scale, judge, judge_exact
from precision_align.replay.alternatives import list_alternatives
from precision_align.replay.execution import Execution, Executor, Recorded, Style, join
from precision_align.replay.lifting import LOW_PRECISIONS
from precision_align.replay.models import Models
from precision_align.replay.modes import ModeFinder
from precision_align.replay.noise import RoundingNoise
from precision_align.replay.randomness import judge_dropout
from precision_align.replay.replayability import NotReplayable, find_obstacle
from precision_align.replay.scales import (
    DRAWS,
    STEP,
    estimate_scale,
    find_scale,
    is_exact,
    is_random,
    perturb,
)
from precision_align.replay.slots import (
    Slot,
    check_shares,
    list_backward_slots,
    list_cotangents,
    list_flag_differences,
    list_forward_slots,
    list_sources,
    take_outside_parts,
)
from precision_align.replay.ties import Change, are_ties, excuse_near_ties
from precision_align.replay.values import Resolver, dtype_name, is_finite, load_tensor, to_array
from precision_align.storage.base import Dump

TIE_UNITS = 1.0  # rounding units a legitimate score may be off by; the draws reach 2.5 times that


@dataclass(frozen=True)
class Target:
    """The verdict on one record: ``record`` is the candidate's tensor, None for a difference in non-tensor arguments of
    the child call number ``child``; ``child`` is -1 for the call's own tensors.
    """

    child: int
    path: str
    record: Optional[TensorRecord]
    judgement: Judgement


class Replayer:
    """Judges the calls of one dump by replaying the reference's code on the dump's own tensors.

    ``root``: the reference's module or None (then only stock torch.nn leaves can be replayed, from ``attributes``:
    call -> recorded attribute tree of the reference); ``locate``: aligned scope -> module path in ``root`` or None;
    ``training``: call -> the reference's training flag.
    """

    def __init__(
        self,
        dump: Dump,
        root: Optional[nn.Module],
        locate: Callable[[str], Optional[str]],
        attributes: Callable[[Recorded], Any],
        training: Callable[[Recorded], bool],
    ) -> None:
        self._dump = dump
        self._root = root
        self._locate = locate
        self._attributes = attributes
        self._training = training
        self._models = Models(root, locate)
        self._executor = Executor(dump, Resolver(root), training)
        self.modes = ModeFinder()

    @property
    def dump(self) -> Dump:
        """The dump whose calls are replayed."""
        return self._dump

    def load(self, records: Mapping[tuple[str, str], TensorRecord]) -> None:
        """Take the parameters and buffers that stood at the start of a step. Raises NotReplayable."""
        self._models.load(self._dump, records)

    def is_training(self, node: Recorded) -> bool:
        """The training flag a call is replayed under."""
        return self._training(node)

    def judge_forward(self, node: Recorded) -> list[Target]:
        """Judge a call's outputs and buffers and, where it called children, what it gave them. Raises NotReplayable."""
        native = self._run(node, Style(golden=False))
        if is_random(native[1]):
            return judge_random(self._dump, node, native[1])
        judging, slots = self._open_forward(node, *native)
        targets = [judging.judge_slot(slot) for slot in slots]
        for child, path, text in list_flag_differences(node, judging.native, judging.golden):
            targets.append(Target(child, path, None, Judgement(Status.FAIL, text)))
        return [target for target in targets if target is not None]

    def judge_backward(self, node: Recorded) -> list[Target]:
        """Judge the gradients that a call's own code computes: its inputs', its parameters', its children's outputs'.
        Raises NotReplayable.
        """
        judging, slots = self._open_backward(node)
        targets = [judging.judge_slot(slot) for slot in slots]
        return [target for target in targets if target is not None]

    def open_call(self, node: Recorded, backward: bool) -> tuple[CallJudging, list[Slot]]:
        """Both replays of a call, and which of its results they speak of. Raises NotReplayable."""
        if backward:
            return self._open_backward(node)
        native = self._run(node, Style(golden=False))
        if is_random(native[1]) or native[0].random:
            raise NotReplayable("it draws random numbers")
        return self._open_forward(node, *native)

    def _open_forward(self, node: Recorded, native: Execution, module: nn.Module) -> tuple[CallJudging, list[Slot]]:
        golden = self._run(node, Style(golden=True), native)[0]
        return CallJudging(self, node, native, golden, module), list_forward_slots(node, native)

    def _open_backward(self, node: Recorded) -> tuple[CallJudging, list[Slot]]:
        check_shares(node)
        native, module = self._run_gradients(node, Style(golden=False, gradients=True))
        if is_random(module) or native.random:
            raise NotReplayable("its backward depends on a random mask that is not recorded")
        golden, _ = self._run_gradients(node, Style(golden=True, gradients=True), native)
        return CallJudging(self, node, native, golden, module, backward=True), list_backward_slots(node)

    def compute(self, node: Recorded, child: int, path: str, backward: bool) -> tuple[Array, Array]:
        """(golden, native) of one result once more, float64, for explaining it. Raises NotReplayable."""
        plan = self.rerun(node, Style(golden=False, gradients=backward), None, backward)
        wide = self.rerun(node, Style(golden=True, gradients=backward), plan, backward)
        native, golden = pick(plan, child, path), pick(wide, child, path)
        if native is None or golden is None:
            raise NotReplayable("the reference's code has no such result")
        return to_array(golden), to_array(native)

    def compute_alternatives(
        self, node: Recorded, child: int, path: str, backward: bool
    ) -> Iterator[tuple[str, str, Array]]:
        """(name, text, golden) of one result under other forms of its operators. Raises NotReplayable."""
        plan = self.rerun(node, Style(golden=False, gradients=backward), None, backward)
        for name, text, form in list_alternatives():
            style = Style(golden=True, gradients=backward, arithmetic=form)
            value = pick(self.rerun(node, style, plan, backward), child, path)
            if value is not None and form.count:
                yield name, text, to_array(value)

    def rerun(self, node: Recorded, style: Style, plan: Optional[Execution], backward: bool) -> Execution:
        """One more execution in another style."""
        return self._run_gradients(node, style, plan)[0] if backward else self._run(node, style, plan)[0]

    def _run(self, node: Recorded, style: Style, plan: Optional[Execution] = None) -> tuple[Execution, nn.Module]:
        module, inside = self._prepare(node, style)
        return self._executor.execute(node, module, inside, style, plan), module

    def _prepare(self, node: Recorded, style: Style) -> tuple[nn.Module, dict[str, nn.Module]]:
        fresh = style.change or (torch.clone if style.gradients else None)
        if self._root is None:
            obstacle = find_obstacle(node.call.kind, self._attributes(node), bool(node.children))
            if obstacle:
                raise NotReplayable(obstacle)
            return self._models.build_stock(node.scope, node.call, self._attributes(node), style.golden, fresh), {}
        module, inside = self._models.copy_call(node.scope, style.golden, fresh)
        children: dict[str, nn.Module] = {}
        for child in node.children:
            path = self._locate(child.scope)
            if path is not None and path in inside:
                children[child.scope] = inside[path]
        own = self._locate(node.scope) or ""
        self._models.check_parameters(own, {self._locate(scope) or "" for scope in children})
        return module, children

    def _run_gradients(
        self, node: Recorded, style: Style, plan: Optional[Execution] = None
    ) -> tuple[Execution, nn.Module]:
        module, inside = self._prepare(node, style)

        def finish(result: Execution) -> None:
            for name, parameter in module._parameters.items():
                if parameter is not None and f"parameter.{name}" in node.gradients:
                    result.leaves[-1, f"parameter.{name}"] = parameter.requires_grad_()
            self._pull_back(node, style, result)

        return self._executor.execute(node, module, inside, style, plan, finish), module

    def _pull_back(self, node: Recorded, style: Style, result: Execution) -> None:
        """Vector-Jacobian product from the recorded gradients; results replace the leaves' places in ``outputs``."""
        arriving = []
        for tensor, record, is_total in list_cotangents(node, result):
            if tensor.requires_grad:
                loaded = self._executor.load(record, style)
                arriving.append((tensor, loaded.to(tensor.dtype).reshape(tensor.shape), is_total))
        leaves = list(result.leaves.items())
        if not arriving or not leaves:
            raise NotReplayable("no gradient flows through this call in the reference's code")
        produced, cotangents = zip(*take_outside_parts(arriving))
        found = torch.autograd.grad(produced, [leaf for _, leaf in leaves], cotangents, allow_unused=True)
        result.outputs = {}
        result.given = {}
        for ((child, path), leaf), gradient in zip(leaves, found):
            value = torch.zeros_like(leaf) if gradient is None else gradient
            if child < 0:
                result.outputs[path if path.startswith("parameter.") else f"input.{path}"] = value.detach()
            else:
                result.given[child, join("output", path)] = value.detach()


def judge_random(dump: Dump, node: Recorded, module: nn.Module) -> list[Target]:
    """Dropout and its kin: rate and scale on the candidate's own input."""
    targets = []
    source = next(iter(node.inputs.values()), None)
    for path, record in node.outputs.items():
        if source is None:
            raise NotReplayable("a random module without an input")
        inputs, output = to_array(load_tensor(dump, source)), to_array(load_tensor(dump, record))
        targets.append(Target(-1, path, record, judge_dropout(inputs, output, module, dtype_of(record.dtype))))
    return targets


class CallJudging:
    """Judges the slots of one call; runs the perturbed replays once, when the first slot needs them."""

    def __init__(
        self,
        replayer: Replayer,
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
        mismatch = _compare_kinds(record.dtype, dtype_name(native))
        if mismatch is not None:
            return mismatch
        # a finer dtype than the reference's may hold what was computed in the reference's
        kind = max(dtype_of(record.dtype), dtype_of(dtype_name(native)), key=lambda dtype: dtype.roundoff)
        if not kind.is_floating:
            return self._judge_discrete(child, path, actual, same)
        if child < 0 and not self._backward and not self._node.children and is_exact(self._module):
            return judge_exact(actual, same)
        if golden.dtype in LOW_PRECISIONS:
            return Judgement(Status.INCONCLUSIVE, f"its float64 replay still computes in {dtype_name(golden)}")
        wide = to_array(golden)
        if actual.shape != wide.shape or np.array_equal(actual, same, equal_nan=True):
            scale = Scale(np.zeros(wide.shape), 1.0)
        else:
            scale = self.find_scale(child, path, record.dtype, wide)
        judgement = judge(actual, wide, same, scale, kind, finite_inputs=self._has_finite_inputs())
        if judgement.status == Status.FAIL and self.native.random:
            return Judgement(Status.RANDOM, f"it draws random numbers, and {judgement.why}", judgement.metrics)
        if judgement.status == Status.FAIL:
            judgement = self._excuse_ties(child, path, (actual, wide, same), scale, kind, judgement)
        if judgement.status == Status.FAIL:
            return self._try_modes(child, path, (actual, wide), record.dtype, judgement)
        return judgement

    def _try_modes(self, child: int, path: str, values: tuple[Array, Array], dtype: str, found: Judgement) -> Judgement:
        """Whether another arithmetic explains the error: then it is a mode, not a fault."""

        def rerun(mode: Any) -> Optional[Array]:
            value = self._rerun(Style(golden=False, gradients=self._backward, arithmetic=mode), child, path)
            return None if value is None else to_array(value)

        mode = self._replayer.modes.find(*values, dtype, rerun)
        if mode is None:
            return found
        return Judgement(Status.MODE, mode[0], {**found.metrics, **mode[1]}, found.limit)

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
            return None if value is None else to_array(value)

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
                module = self._replayer._prepare(self._node, Style(golden=True))[0].train(
                    self._replayer.is_training(self._node)
                )
                found = find_scale(module, inputs, golden)
                if found is not None:
                    return found
        values = [pick(run, child, path) for run in self._perturbed()]
        return estimate_scale(golden, [to_array(value) for value in values if value is not None], dtype)

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


def _compare_kinds(actual: str, expected: str) -> Optional[Judgement]:
    """A dtype of another kind, or one that keeps fewer bits than the reference's, is a fault of its own."""
    if actual == expected:
        return None
    ours, theirs = dtype_of(actual), dtype_of(expected)
    if ours.kind != theirs.kind or not ours.is_floating or ours.roundoff > theirs.roundoff:
        return Judgement(Status.FAIL, f"dtype {actual}, the reference computes {expected}")
    return None
