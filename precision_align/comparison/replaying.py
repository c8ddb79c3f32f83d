"""The replay evidence provider: finds the code to replay, and says why where it cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from precision_align.alignment.names import align_names
from precision_align.alignment.pairing import Alignment
from precision_align.alignment.side import Node, Side
from precision_align.comparison.deadlines import Deadline
from precision_align.comparison.journals import Journal
from precision_align.core.dtypes import Array
from precision_align.core.errors import UsageError
from precision_align.core.records import TensorRecord
from precision_align.core.results import OUT_OF_TIME, Limit
from precision_align.core.terms import Phase, Role, Status
from precision_align.core.trees import class_name
from precision_align.core.wrappers import strip_wrappers
from precision_align.numerics.judgement import Judgement
from precision_align.replay.replayability import NotReplayable, find_obstacle

UNFAITHFUL = (
    "the reference's code, replayed on the reference's own record, does not give what was recorded there either: "
    "it depends on something outside inputs, parameters and buffers"
)

Moment = tuple[int, int, int]  # rank, step, parameters updated so far in it

Verdicts = Mapping[tuple[int, str], tuple[Judgement, TensorRecord | None]]


class ReplayProvider:
    """Judges nodes of the candidate by local replay; ``reason`` is set where nothing can be replayed at all,
    ``is_given`` where the user gave the reference's code."""

    def __init__(
        self, alignment: Alignment, replay: Any, journal: Journal | None = None, deadline: Deadline | None = None
    ) -> None:
        self._deadline = deadline or Deadline()
        self._alignment = alignment
        self._journal = journal or Journal()
        self.reason = "" if _has_torch() else "torch is not installed here: no replay, raw evidence only"
        self.notes: list[str] = []
        self.is_given = replay is not None
        self._reasons: Counter[str] = Counter()
        if self.reason and self.is_given:
            raise UsageError("replay= needs torch, which is not installed here: pip install torch")
        self._root = make_root(replay)
        self._load_error = ""
        self._loaded: Moment | None = None
        self._own_loaded: Moment | None = None

    @cached_property
    def _replayer(self) -> Any:
        """Of the candidate's calls; made when the first call needs it, since torch takes seconds to load."""
        return self._make_replayer(self._alignment.candidate, self._find_attributes, self._find_training)

    @cached_property
    def _own(self) -> Any:
        """Of the reference's own calls, or None."""
        if self._alignment.reference is None:
            return None
        return self._make_replayer(
            self._alignment.reference, lambda node: node.call.attributes, lambda node: node.call.training
        )

    def _make_replayer(self, side: Side, attributes: Callable[[Node], Any], training: Callable[[Node], bool]) -> Any:
        judging = import_module("precision_align.replay.judging")
        return judging.Replayer(side.dump, self._root, make_locator(self._root, side), attributes, training)

    def _find_obstacle(self, node: Node) -> str:
        """Why a call cannot be replayed, as far as that is known without torch; "" where it may be."""
        if self.reason:
            return self.reason
        if self._root is not None:
            return ""
        return find_obstacle(node.call.kind, self._find_attributes(node), bool(node.children))

    def _load(self, node: Node) -> None:
        """Take the parameters and buffers as they stood when the call was made."""
        moment = find_moment(self._alignment.candidate, node)
        if self._loaded == moment:
            return
        self._loaded, self._load_error = moment, ""
        try:
            self._replayer.load(collect_state(self._alignment.candidate, node))
        except NotReplayable as error:
            self._load_error = str(error)
        except Exception as error:
            self._load_error = _describe(error)

    def judge_forward(self, node: Node) -> tuple[Verdicts, str]:
        """((child index, path) -> (judgement, record), "") or ({}, why not)."""
        return self._judge(node, "judge_forward")

    def judge_backward(self, node: Node) -> tuple[Verdicts, str]:
        """The same for the backward pass."""
        return self._judge(node, "judge_backward")

    def judge_update(self, update: Any) -> tuple[Mapping[Any, Judgement], str]:
        """(owner -> judgement, "") of an optimizer step (a replay.updates.Update), or ({}, why not)."""
        if self.reason:
            return {}, self.reason
        place = ("update", *sorted(str(record.key) for record in update.after.values())[:1])
        known = self._journal.recall(*place)
        if known is None and self._deadline.is_over():
            return {}, OUT_OF_TIME
        if known is None:
            known = self._try_update(update)
            self._journal.keep(known, *place)
        reason, results = known
        return {((owner[0], owner[1]), name): _decode_judgement(found) for owner, name, found in results}, reason

    def _try_update(self, update: Any) -> list[Any]:
        """[why not or "", [[owner, name, judgement], ...]] as JSON."""
        try:
            found = import_module("precision_align.replay.updates").judge_update(self._alignment.candidate.dump, update)
        except NotReplayable as error:
            return [str(error), []]
        except Exception as error:
            return [_describe(error), []]
        return ["", [[*place, _encode_judgement(judgement)] for place, judgement in found.items()]]

    def search_updates(self, update: Any, place: Any) -> tuple[Array, list[tuple[str, str, Array]]] | None:
        """(golden, variants that come near) of one result of an optimizer step, ``place`` its owner and name; None
        where it cannot be replayed."""
        if update is None or self.reason:
            return None
        try:
            found: tuple[Array, list[tuple[str, str, Array]]] = import_module(
                "precision_align.replay.variants.updates"
            ).search_updates(self._alignment.candidate.dump, update, place)
        except NotReplayable:
            return None
        return found

    def compute(self, node: Node, child: int, path: str, backward: bool) -> tuple[Array, Array] | None:
        """(golden, native) of one result of a node, float64; None where it cannot be replayed."""
        if self._find_obstacle(node):
            return None
        self._load(node)
        try:
            found: tuple[Array, Array] = self._replayer.compute(node, child, path, backward)
        except Exception:  # an explanation is a courtesy: the verdict stands without it
            return None
        return found

    def search_variants(
        self, node: Node, child: int, path: str, backward: bool, actual: Array, golden: Array, dtype: str
    ) -> list[tuple[str, str, Array]]:
        """(name, text, golden) of one result under variants of the code; empty where it cannot be replayed."""
        try:
            found: list[tuple[str, str, Array]] = self._replayer.search_variants(
                node, child, path, backward, actual, golden, dtype
            )
        except NotReplayable:
            return []
        return found

    def describe_failures(self) -> list[str]:
        """Why calls could not be replayed although the reference's code was given."""
        if not self.is_given:
            return []
        return [f"{count} calls were not replayed: {reason}" for reason, count in self._reasons.most_common(3)]

    def _judge(self, node: Node, method: str) -> tuple[Verdicts, str]:
        found, reason = self._recall(node, method)
        if reason not in ("", OUT_OF_TIME) and method == "judge_forward":
            self._reasons[reason] += 1
        return found, reason

    def _recall(self, node: Node, method: str) -> tuple[Verdicts, str]:
        """What an interrupted comparison found already, else a replay."""
        obstacle = f"the call raised {node.call.error}" if node.call.error else self._find_obstacle(node)
        if obstacle:
            return {}, obstacle
        place = (method, node.unit.rank, node.unit.step, node.call.identity)
        known = self._journal.recall(*place)
        if known is None and self._deadline.is_over():
            return {}, OUT_OF_TIME
        if known is None:
            verdicts, reason = self._try(node, method)
            is_loaded = not self._load_error
            self._journal.keep([is_loaded, reason, _encode_verdicts(verdicts)], *place)
        else:
            is_loaded, reason, targets = known
            verdicts = _decode_verdicts(targets, self._alignment.candidate.dump.find)
        if not is_loaded:
            self.notes.append(f"replay was not possible: {reason}")
        return verdicts, reason

    def _try(self, node: Node, method: str) -> tuple[Verdicts, str]:
        self._load(node)
        if self._load_error:
            return {}, self._load_error
        try:
            targets = getattr(self._replayer, method)(node)
        except NotReplayable as error:
            return {}, str(error)
        except Exception as error:  # the user's code runs in there: one record must not end the comparison
            return {}, _describe(error)
        found = {(target.child, target.path): (target.judgement, target.record) for target in targets}
        failing = [place for place, (judgement, _) in found.items() if judgement.status == Status.FAIL]
        for place in self._find_unfaithful(node, method, failing) if failing else ():
            found[place] = (Judgement(Status.INCONCLUSIVE, UNFAITHFUL), found[place][1])
        return found, ""

    def _find_unfaithful(self, node: Node, method: str, places: list[tuple[int, str]]) -> list[tuple[int, str]]:
        """Those places where the reference's code does not even reproduce the reference's own record."""
        partner = self._alignment.pairs.get(node)
        if self._own is None or partner is None or len(partner.children) != len(node.children):
            return []
        assert self._alignment.reference is not None
        moment = find_moment(self._alignment.reference, partner)
        try:
            if self._own_loaded != moment:
                self._own.load(collect_state(self._alignment.reference, partner))
                self._own_loaded = moment
            targets = getattr(self._own, method)(partner)
        except Exception:  # nothing is known of the reference's own record then, and the failure stands
            self._own_loaded = None
            return []
        own = {(target.child, target.path) for target in targets if target.judgement.status == Status.FAIL}
        return [place for place in places if place in own]

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


def find_moment(side: Side, node: Node) -> Moment:
    return node.unit.rank, node.unit.step, side.count_updates(node.unit.rank, node.unit.step, node.call.enter)


def collect_state(side: Side, node: Node) -> dict[tuple[str, str], TensorRecord]:
    """Parameters and buffers when a call was made, by aligned owner and name, tied ones under all their names."""
    records = side.parameters_at(node.unit.rank, node.unit.step, node.call.enter)
    records.update(side.select_state(node.unit.rank, node.unit.step, Role.BUFFER, Phase.FORWARD))
    for name, others in side.dump.info.parameters.items():
        _add_tied(records, name, others, side.names)
    return records


def _describe(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"the replay raised {type(error).__name__}: {first[:160]}"


def _encode_judgement(found: Judgement) -> list[Any]:
    limit = found.limit and astuple(found.limit)
    return [found.status, found.why, dict(found.metrics), limit, found.evidence]


def _decode_judgement(values: Sequence[Any]) -> Judgement:
    status, why, metrics, limit, evidence = values
    return Judgement(Status(status), why, metrics, limit and Limit(*limit), evidence)


def _encode_verdicts(verdicts: Verdicts) -> list[Any]:
    return [
        [*place, _encode_judgement(found), record and str(record.key)] for place, (found, record) in verdicts.items()
    ]


def _decode_verdicts(targets: list[Any], find: Callable[[str], TensorRecord]) -> Verdicts:
    return {
        (child, path): (_decode_judgement(judgement), None if key is None else find(key))
        for child, path, judgement, key in targets
    }


def _has_torch() -> bool:
    """Whether torch could be loaded; that itself waits until something has to be replayed."""
    try:
        return find_spec("torch") is not None
    except ImportError:
        return False


def make_root(replay: Any) -> Any:
    if replay is None:
        return None
    module = import_module("torch.nn").Module
    if isinstance(replay, module):
        return replay
    if not callable(replay):
        raise UsageError(f"replay= takes the reference's module or a factory of it, not {type(replay).__name__}")
    try:
        made = replay()
    except (Exception, SystemExit) as error:
        name = getattr(replay, "__qualname__", repr(replay))
        raise UsageError(
            f"the replay factory {name} raised {type(error).__name__}: {error}; it is called without arguments and "
            "returns the reference's module"
        ) from error
    if not isinstance(made, module):
        raise UsageError(f"the replay factory returned {type(made).__name__}, not a torch.nn.Module")
    return made


def make_locator(root: Any, candidate: Side) -> Callable[[str], str | None]:
    """Aligned scope -> module path in the replay module: same path and class, same aligned name, or an alias."""
    if root is None:
        return lambda scope: None
    kinds = {path: class_name(type(module)) for path, module in root.named_modules(remove_duplicate=False)}
    structural = {name: path for path, name in align_names(kinds, kinds).items() if name is not None}
    information = candidate.dump.info
    paths: dict[str, str] = {}
    for raw, aligned in candidate.names.items():
        if aligned is None:
            continue
        same = raw in kinds and kinds[raw] == information.modules.get(raw) and raw not in candidate.renamed
        known = [raw if same else structural.get(aligned)]
        known += [structural.get(strip_wrappers(name)) for name in information.aliases.get(raw, [])]
        found = next((path for path in known if path is not None), None)
        if found is not None:
            paths[aligned] = found
    return lambda scope: paths.get(scope, structural.get(scope))


def find_tied(side: Side) -> dict[tuple[str, str], tuple[str, str]]:
    """Further name of a tied parameter -> its first, as aligned owner and name."""
    return {
        _split(other, side.names): _split(name, side.names)
        for name, others in side.dump.info.parameters.items()
        for other in others
    }


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
