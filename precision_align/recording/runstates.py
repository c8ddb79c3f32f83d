"""The state a run begins with: taken into a start pack, or set from one.

Optimizers are paired by the parameters that they hold, schedulers and scalers by their class and order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Optional

import torch

from precision_align.core.terms import Role, Source, Tier
from precision_align.core.trees import class_name
from precision_align.core.wrappers import strip_wrappers
from precision_align.recording.fitting import Unfit, overwrite
from precision_align.recording.living import find_optimizers, find_scalers, find_schedulers
from precision_align.recording.optimizers import OptimizerRecorder, parameter_groups
from precision_align.recording.parameters import Owned, ParameterRecorder, owned_buffers, owned_parameters
from precision_align.recording.shortfalls import Shortfalls
from precision_align.recording.staging import Stager, untouched
from precision_align.recording.startpacks import StartPack, StartWriter
from precision_align.recording.tape import Tape
from precision_align.storage.hashing import digest_words

# How an optimizer goes about its update, not what it computes: the device's own choice stays.
_MANNERS = frozenset({"params", "parameters", "foreach", "fused", "capturable", "differentiable"})
_ABSENT = "its values are not in the pack, and the script's own differ: load the reference's checkpoint first"
_NAMED = "its values are not in the pack, and the script's own differ: load {file} (sha256 {sha256:.16}...) first"


def list_optimizers(model: torch.nn.Module, given: Sequence[Any]) -> list[Any]:
    """Those given and all living ones of a model; of a wrapper and what it wraps only one."""
    found: dict[int, Any] = {}
    for optimizer in [*given, *find_optimizers(model)]:
        found.setdefault(id(getattr(optimizer, "state", optimizer)), optimizer)
    return list(found.values())


def save_state(writer: StartWriter, session: Tape, model: torch.nn.Module, given: Sequence[Any]) -> None:
    """Write parameters, buffers, and all of optimizers, schedulers and scalers; ``session``: told of what is odd."""
    optimizers = list(enumerate(list_optimizers(model, given)))
    content: dict[str, Any] = {
        "optimizers": [
            OptimizerRecorder(session, model, optimizer, index).describe() for index, optimizer in optimizers
        ]
    }
    found = {"schedulers": find_schedulers([optimizer for _, optimizer in optimizers]), "scalers": find_scalers()}
    for name, things in found.items():
        content[name] = [{"class": class_name(type(t)), "state": _keep_plain(t.state_dict())} for t in things]
    tape = writer.open(content)
    weights = writer.weights_tape(tape)
    ParameterRecorder(weights, model).record_start()
    weights.hand_on()
    if not writer.allowance.state:
        writer.lacking.add("optimizer state, as the budget was too small", f"of {len(optimizers)} optimizers")
        return
    for index, optimizer in optimizers:
        OptimizerRecorder(tape, model, optimizer, index).record_start()


def _keep_plain(value: Any) -> Any:
    """Numbers, texts and lists of them; what else a state holds (lambdas, counters) is configuration, not state."""
    if isinstance(value, Mapping):
        return {key: _keep_plain(item) for key, item in value.items() if isinstance(key, str) and _is_plain(item)}
    return [_keep_plain(item) for item in value] if isinstance(value, list) else value


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) for key in value)
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item) for item in value)
    return value is None or type(value) in (bool, int, float, str)


class StateSetter:
    """Sets a program's state from a pack; ``left``: told of what did not match."""

    def __init__(self, pack: StartPack, model: torch.nn.Module, given: Sequence[Any], left: Shortfalls) -> None:
        self._pack, self._model, self._left = pack, model, left
        self._optimizers = list_optimizers(model, given)
        self._unfit: set[str] = set()  # parameters whose state would not fit either

    def set_all(self) -> None:
        """Everything."""
        for role, owned in ((Role.PARAMETER, owned_parameters), (Role.BUFFER, owned_buffers)):
            self._set_tensors(role, owned(self._model))
        self._set_optimizers()
        for name, found in (("schedulers", find_schedulers(self._optimizers)), ("scalers", find_scalers())):
            self._set_by_class(name, found)

    def _set_tensors(self, role: Role, owned: Sequence[Owned]) -> None:
        mine = {strip_wrappers(item.name): item for item in owned}
        for name, _, record in self._pack.state(Source.PARAMETERS, role):
            item = mine.pop(strip_wrappers(name), None)
            what = f"{role} {name!r}"
            if item is None:
                self._left.add("it is in the pack, and not in this model", what)
            elif record.tier is Tier.FINGERPRINT:
                self._check_hash(record.digest, item.tensor, what)
            else:
                self._set_tensor(record, item.tensor, strip_wrappers(item.name), what)
        for item in mine.values():
            self._left.add("it is in this model, and not in the pack: it begins as the script made it", repr(item.name))

    def _set_tensor(self, record: Any, tensor: torch.Tensor, name: str, what: str) -> None:
        try:
            overwrite(self._pack.dump, record, tensor)
        except Unfit as error:
            self._left.add(f"it begins as the script made it, as {error}", what)
            self._unfit.add(name)
            return
        if str(tensor.dtype) != f"torch.{record.dtype}":
            self._left.add(f"it was rounded from {record.dtype} to {str(tensor.dtype)[6:]}", what)

    def _check_hash(self, digest: bytes, tensor: torch.Tensor, what: str) -> None:
        words = Stager().stage(tensor).words
        if words is None or digest_words(words) != digest:
            file = self._pack.content["checkpoint"]
            self._left.add(_NAMED.format(**file) if file else _ABSENT, what)

    # Optimizers

    def _set_optimizers(self) -> None:
        names = {id(item.tensor): strip_wrappers(item.name) for item in owned_parameters(self._model)}
        states = self._collect_states()
        free = list(self._optimizers)
        for index, described in enumerate(self._pack.content["optimizers"]):
            held = {strip_wrappers(name) for group in described["groups"] for name in group["parameters"]}
            chosen = max(free, key=lambda optimizer: len(held & set(_list_held(optimizer, names))), default=None)
            if chosen is None or (held and not held & set(_list_held(chosen, names))):
                self._left.add("no optimizer of this script holds its parameters", f"{described['class']} {index}")
                continue
            free.remove(chosen)
            self._set_groups(chosen, described["groups"], names)
            self._set_state(chosen, described["state"], states.get(index, {}), names)
        for optimizer in free:
            self._left.add("it has no counterpart in the pack", class_name(type(optimizer)))

    def _collect_states(self) -> dict[int, dict[str, dict[str, Any]]]:
        """Index of the optimizer -> parameter -> name of the state -> record."""
        found: dict[int, dict[str, dict[str, Any]]] = {}
        for name, path, record in self._pack.state(Source.OPTIMIZER, Role.STATE):
            mine = found.setdefault(record.key.ordinal, {}).setdefault(strip_wrappers(name), {})
            mine[path.split(".", 2)[1]] = record
        return found

    def _set_groups(self, optimizer: Any, groups: Sequence[Mapping[str, Any]], names: Mapping[int, str]) -> None:
        for own in parameter_groups(optimizer):
            members = {names[id(parameter)] for parameter in own["params"] if id(parameter) in names}
            fitting = [group for group in groups if members & {strip_wrappers(name) for name in group["parameters"]}]
            if not fitting:
                continue
            for key, value in fitting[0].items():
                if key not in _MANNERS and key in own:
                    self._set_hyperparameter(own, key, value)

    def _set_hyperparameter(self, group: Any, key: str, value: Any) -> None:
        before = group[key]
        if isinstance(before, torch.Tensor):
            if isinstance(value, (int, float)) and before.numel() == 1:
                with untouched():
                    before.fill_(value)
            return
        value = tuple(value) if isinstance(before, tuple) else value
        if before != value:
            self._left.add("a hyperparameter of the script was replaced", f"{key}: {before!r} by {value!r}")
            group[key] = value

    def _set_state(
        self,
        optimizer: Any,
        scalars: Mapping[str, Mapping[str, Any]],
        tensors: Mapping[str, Mapping[str, Any]],
        names: Mapping[int, str],
    ) -> None:
        plain = {strip_wrappers(name): values for name, values in scalars.items()}
        for group in parameter_groups(optimizer):
            for parameter in group["params"]:
                name = names.get(id(parameter))
                if name is None or name in self._unfit:
                    continue
                state: dict[str, Any] = dict(plain.get(name, {}))
                for key, record in tensors.get(name, {}).items():
                    state[key] = self._load_state(group, key, record, parameter, name)
                kept = {key: value for key, value in state.items() if value is not None}
                if kept or parameter in optimizer.state:
                    optimizer.state[parameter] = kept

    def _load_state(self, group: Any, key: str, record: Any, parameter: torch.Tensor, name: str) -> Any:
        """Where torch's own ``load_state_dict`` would put it: counters stay on the CPU unless the kernel reads them."""
        try:
            value = self._pack.load(record)
        except Unfit as error:
            self._left.add(str(error), f"{key} of {name!r}")
            return None
        follows = record.device != "cpu" or self._pack.info.device == "cpu"
        if key == "step":
            follows = bool(group.get("fused") or group.get("capturable"))
        return value.clone().to(parameter.device) if follows else value.clone()

    # Schedulers and scalers

    def _set_by_class(self, name: str, found: Sequence[Any]) -> None:
        free = list(found)
        for described in self._pack.content[name]:
            chosen = _take_first(free, described["class"])
            if chosen is None:
                self._left.add(f"this script has none of the pack's {name}", described["class"])
                continue
            try:
                chosen.load_state_dict(described["state"])
            except Exception as error:  # of any class: the script's own
                self._left.add(f"its state could not be set ({type(error).__name__}: {error})", described["class"])
        for thing in free:
            self._left.add(f"it has no counterpart among the pack's {name}", class_name(type(thing)))


def _list_held(optimizer: Any, names: Mapping[int, str]) -> Iterator[str]:
    return (names[id(p)] for group in parameter_groups(optimizer) for p in group["params"] if id(p) in names)


def _take_first(free: list[Any], kind: str) -> Optional[Any]:
    """By class, whichever module of torch it lies in: torch.cuda.amp's GradScaler became torch.amp's."""
    short = kind.rpartition(".")[2]
    for index, thing in enumerate(free):
        if type(thing).__name__ == short:
            return free.pop(index)
    return None
