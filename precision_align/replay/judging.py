"""The local test of recorded calls, forward and backward, from their replays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Callable, Optional

import numpy as np
import torch
from torch import nn

from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Status
from precision_align.numerics.judgement import Judgement
from precision_align.replay.bigcalls import judge_big_backward, judge_big_forward
from precision_align.replay.calljudging import CallJudging, pick
from precision_align.replay.execution import Execution, Executor, Recorded, Style, join
from precision_align.replay.models import Models
from precision_align.replay.modes import ModeFinder
from precision_align.replay.randomness import judge_dropout
from precision_align.replay.replayability import NotReplayable, find_obstacle
from precision_align.replay.rowsampling import RowSampler, may_be_sampled
from precision_align.replay.scales import (
    is_random,
)
from precision_align.replay.slots import (
    Slot,
    Target,
    check_shares,
    list_backward_slots,
    list_cotangents,
    list_flag_differences,
    list_forward_slots,
    take_outside_parts,
)
from precision_align.replay.values import Resolver, load_tensor, to_array
from precision_align.replay.variants.searching import search_variants
from precision_align.storage.base import Dump


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
        self.sampler: Optional[RowSampler] = None
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
        sampled = judge_big_forward(self, node)
        if sampled is None and may_be_sampled(node):
            sampled = self._judge_rows(node)
        return self._judge_whole(node) if sampled is None else sampled

    def _judge_rows(self, node: Recorded) -> Optional[list[Target]]:
        """The verdicts where big products compute some of their rows only; None where the code needs all of them."""
        self.sampler = sampler = RowSampler()
        try:
            found = self._judge_whole(node)
        except NotReplayable:
            if not sampler.count:
                raise
            return None
        finally:
            self.sampler = None
        # a flag that differs may come of the rows that were left out
        return None if sampler.count and any(target.record is None for target in found) else found

    def _judge_whole(self, node: Recorded) -> list[Target]:
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
        sampled = judge_big_backward(self, node)
        if sampled is not None:
            return sampled
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

    def search_variants(
        self, node: Recorded, child: int, path: str, backward: bool, actual: Array, golden: Array, dtype: str
    ) -> list[tuple[str, str, Array]]:
        """(name, text, golden) of one result under variants of the code that come near ``actual``, the candidate's.
        Raises NotReplayable.
        """
        plan = self.rerun(node, Style(golden=False, gradients=backward), None, backward)

        def replay(mode: Any, native: bool) -> Optional[Array]:
            style = Style(golden=not native, gradients=backward, arithmetic=mode)
            try:
                value = pick(self.rerun(node, style, plan, backward), child, path)
            except NotReplayable:
                return None
            return None if value is None else to_array(value).astype(np.float64)

        return search_variants(actual, golden, dtype_of(dtype), replay)

    def rerun(self, node: Recorded, style: Style, plan: Optional[Execution], backward: bool) -> Execution:
        """One more execution in another style."""
        return self._run_gradients(node, style, plan)[0] if backward else self._run(node, style, plan)[0]

    def _run(self, node: Recorded, style: Style, plan: Optional[Execution] = None) -> tuple[Execution, nn.Module]:
        style = style if self.sampler is None else replace(style, sampler=self.sampler)
        module, inside = self.prepare(node, style)
        return self._executor.execute(node, module, inside, style, plan), module

    def prepare(self, node: Recorded, style: Style) -> tuple[nn.Module, dict[str, nn.Module]]:
        """A copy of the module that a call ran, in a style, and those inside it by scope. Raises NotReplayable."""
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
        module, inside = self.prepare(node, style)

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
