"""The replay evidence provider: finds the code to replay, and says why where it cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from precision_align.alignment.names import align_names, strip_wrappers
from precision_align.alignment.pairing import Alignment
from precision_align.alignment.side import Node, Side
from precision_align.core.dtypes import Array
from precision_align.core.errors import UsageError
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Phase, Role
from precision_align.core.trees import class_name
from precision_align.numerics.judgement import Judgement

Verdicts = Mapping[tuple[int, str], tuple[Judgement, TensorRecord | None]]


class ReplayProvider:
    """Judges nodes of the candidate by local replay; ``reason`` is set where nothing can be replayed at all."""

    def __init__(self, alignment: Alignment, replay: Any) -> None:
        self._alignment = alignment
        self.reason = ""
        self._replayer: Any = None
        self._not_replayable: type[Exception] = Exception
        try:
            judging = import_module("precision_align.replay.judging")
        except ImportError as error:
            if replay is not None:
                raise UsageError("replay= needs torch, which is not installed here: pip install torch") from error
            self.reason = "torch is not installed here: no replay, raw evidence only"
            return
        self._not_replayable = import_module("precision_align.replay.replayability").NotReplayable
        root = _make_root(replay)
        candidate = alignment.candidate
        locate = _make_locator(root, candidate)
        self._replayer = judging.Replayer(candidate.dump, root, locate, self._find_attributes, self._find_training)
        self._load_error = ""

    def load(self, rank: int, step: int) -> None:
        """Take the parameters and buffers at the start of this step."""
        if self._replayer is None:
            return
        candidate = self._alignment.candidate
        records: dict[tuple[str, str], TensorRecord] = {}
        for role in (Role.PARAMETER, Role.BUFFER):
            records.update(candidate.select_state(rank, step, role, Phase.FORWARD))
        for name, others in candidate.dump.info.parameters.items():
            _add_tied(records, name, others, candidate.names)
        self._load_error = ""
        try:
            self._replayer.load(records)
        except self._not_replayable as error:
            self._load_error = str(error)

    def judge_forward(self, node: Node) -> tuple[Verdicts, str]:
        """((child index, path) -> (judgement, record), "") or ({}, why not)."""
        return self._judge(node, "judge_forward")

    def judge_backward(self, node: Node) -> tuple[Verdicts, str]:
        """The same for the backward pass."""
        return self._judge(node, "judge_backward")

    def judge_update(self, update: Any) -> tuple[Mapping[Any, Judgement], str]:
        """(owner -> judgement, "") of an optimizer step (a replay.updates.Update), or ({}, why not)."""
        if self._replayer is None:
            return {}, self.reason
        try:
            found: Mapping[Any, Judgement] = import_module("precision_align.replay.updates").judge_update(
                self._alignment.candidate.dump, update
            )
        except self._not_replayable as error:
            return {}, str(error)
        return found, ""

    def compute(self, node: Node, child: int, path: str, backward: bool) -> tuple[Array, Array] | None:
        """(golden, native) of one result of a node, float64; None where it cannot be replayed."""
        if self._replayer is None:
            return None
        self.load(node.unit.rank, node.unit.step)
        try:
            found: tuple[Array, Array] = self._replayer.compute(node, child, path, backward)
        except self._not_replayable:
            return None
        return found

    def _judge(self, node: Node, method: str) -> tuple[Verdicts, str]:
        if self._replayer is None or self._load_error:
            return {}, self.reason or self._load_error
        if node.call.error:
            return {}, f"the call raised {node.call.error}"
        try:
            targets = getattr(self._replayer, method)(node)
        except self._not_replayable as error:
            return {}, str(error)
        return {(target.child, target.path): (target.judgement, target.record) for target in targets}, ""

    def _find_attributes(self, node: Node) -> Any:
        """The reference's recorded attributes are the specification; without a reference the candidate's own."""
        partner = self._alignment.pairs.get(node)
        if partner is not None and partner.call.attributes is not None:
            return partner.call.attributes
        return node.call.attributes

    def _find_training(self, node: Node) -> bool:
        """The reference's training flag is part of the specification, too."""
        partner = self._alignment.pairs.get(node)
        return node.call.training if partner is None else partner.call.training


def _make_root(replay: Any) -> Any:
    if replay is None:
        return None
    module = import_module("torch.nn").Module
    if isinstance(replay, module):
        return replay
    if not callable(replay):
        raise UsageError(f"replay= takes the reference's module or a factory of it, not {type(replay).__name__}")
    made = replay()
    if not isinstance(made, module):
        raise UsageError(f"the replay factory returned {type(made).__name__}, not a torch.nn.Module")
    return made


def _make_locator(root: Any, candidate: Side) -> Callable[[str], str | None]:
    """Aligned scope -> module path in the replay module: the same path and class, the same aligned name, or an alias."""
    if root is None:
        return lambda scope: None
    kinds = {path: class_name(type(module)) for path, module in root.named_modules(remove_duplicate=False)}
    structural = {name: path for path, name in align_names(kinds, kinds).items() if name is not None}
    information = candidate.dump.info
    paths: dict[str, str] = {}
    for raw, aligned in candidate.names.items():
        if aligned is None:
            continue
        same = raw in kinds and kinds[raw] == information.modules.get(raw)
        known = [raw if same else structural.get(aligned)]
        known += [structural.get(strip_wrappers(name)) for name in information.aliases.get(raw, [])]
        found = next((path for path in known if path is not None), None)
        if found is not None:
            paths[aligned] = found
    return lambda scope: paths.get(scope, structural.get(scope))


def _add_tied(
    records: dict[tuple[str, str], TensorRecord], name: str, others: list[str], names: Mapping[str, str | None]
) -> None:
    """A tied parameter stands under its first name; the reference may know it by another."""
    first = _split(name, names)
    if first in records:
        for other in others:
            records.setdefault(_split(other, names), records[first])


def _split(parameter: str, names: Mapping[str, str | None]) -> tuple[str, str]:
    scope, _, local = parameter.rpartition(".")
    return names.get(scope, scope) or "", local
