"""Forced capture: each call gets the reference's results, so that every module is judged by itself.

The candidate's own output is recorded, then replaced by the reference's through an autograd Function that hands the
reference's gradient on. Parameters and buffers are set when a step starts, gradients and state before an optimizer's
step. Calls are paired by what went into them, then by their number; what could not be forced is listed in the notes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Optional, Union

import torch

from precision_align.core.errors import UsageError
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source
from precision_align.recording.companions import Companion
from precision_align.recording.copies import Staged
from precision_align.recording.fitting import Unfit, load_fitting, overwrite
from precision_align.recording.parameters import Owned, gradient_of, owned_buffers, owned_parameters
from precision_align.recording.plan import Plan
from precision_align.recording.shards import is_distributed
from precision_align.recording.shortfalls import Shortfalls
from precision_align.recording.tape import Place, Tape
from precision_align.storage.base import Dump
from precision_align.storage.hashing import digest_words
from precision_align.storage.opening import open_dump

Numbers = tuple[int, int, str, int]  # step, micro-batch, scope, call
Fingerprint = tuple[tuple[str, bytes], ...]


def open_reference(
    force: Union[str, PathLike[str], Dump, None], rank: int, plan: Plan, opened: ExitStack
) -> Optional[Reference]:
    """The reference to force from, None where none is given; ``opened`` closes what is opened here.

    Raises UsageError where the plan has no modules source, DumpError where the path is no dump.
    """
    if force is None:
        return None
    if "modules" not in plan.sources:
        raise UsageError("forcing replaces what modules return: sources must have 'modules'")
    if isinstance(force, (str, PathLike)):
        return Reference(opened.enter_context(open_dump(Path(force).absolute())), rank)
    if not hasattr(force, "records") or not hasattr(force, "payload"):
        raise UsageError(f"force takes a reference's dump or its path, not a {type(force).__name__}")
    return Reference(force, rank)


def number_call(place: Any) -> Numbers:
    """The numbers of a call, from its place or a key."""
    return place.step, place.micro, place.scope, place.call


class Reference:
    """One rank of the reference's dump, by call."""

    def __init__(self, dump: Dump, rank: int) -> None:
        self.dump = dump
        self.outputs: dict[Numbers, dict[str, TensorRecord]] = defaultdict(dict)
        self.gradients: dict[Numbers, dict[str, TensorRecord]] = defaultdict(dict)
        self.state: dict[tuple[Any, ...], TensorRecord] = {}
        inputs: dict[Numbers, dict[str, bytes]] = defaultdict(dict)
        chosen = rank if rank in dump.ranks else min(dump.ranks, default=rank)
        for record in dump.records:
            key = record.key
            if key.rank != chosen or key.pass_ != Pass.FIRST:
                continue
            if key.source == Source.MODULE and key.role == Role.INPUT:
                inputs[number_call(key)][key.path] = record.digest
            elif key.source == Source.MODULE and key.role == Role.OUTPUT:
                self.outputs[number_call(key)][key.path] = record
            elif key.source == Source.MODULE and key.role == Role.GRADIENT and key.ordinal == 0:
                self.gradients[number_call(key)][key.path] = record
            elif key.source in (Source.PARAMETERS, Source.OPTIMIZER):
                self.state[key.source, key.step, key.call, key.ordinal, key.phase, key.role, key.scope, key.path] = (
                    record
                )
        self.calls = {number_call(call) for call in dump.calls if call.rank == chosen and call.pass_ == Pass.FIRST}
        self.by_inputs: dict[tuple[int, str, Fingerprint], list[Numbers]] = defaultdict(list)
        for numbers in sorted(self.calls):
            self.by_inputs[numbers[0], numbers[2], tuple(sorted(inputs[numbers].items()))].append(numbers)


class _Force(torch.autograd.Function):
    """Forward: the reference's output in place of the own; backward: the reference's gradient in place of the own."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, choice: _Choice) -> torch.Tensor:
        ctx.choice = choice
        return choice.value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.choice.choose_gradient(gradient), None


@dataclass
class _Choice:
    forcer: Forcer
    value: torch.Tensor
    record: Optional[TensorRecord]
    what: str

    def choose_gradient(self, own: torch.Tensor) -> torch.Tensor:
        """The reference's gradient where it fits, else the candidate's own."""
        if self.record is None:
            self.forcer.leave("the reference has no gradient of it", self.what)
            return own
        found = self.forcer.load(self.record, own, self.what)
        return own if found is None else found


class Forcer(Companion):
    """Forces one session from a reference; ``forced`` counts what was replaced, by kind."""

    def __init__(self, reference: Reference, tape: Tape, model: torch.nn.Module) -> None:
        self._reference, self._tape, self._model = reference, tape, model
        self._used: dict[Numbers, Numbers] = {}
        self._left = Shortfalls()
        self.forced: Counter[str] = Counter()

    def leave(self, reason: str, what: str) -> None:
        """Something could not be forced."""
        self._left.add(reason, what)

    def load(self, record: TensorRecord, like: torch.Tensor, what: str) -> Optional[torch.Tensor]:
        """The reference's tensor on the device and in the dtype of the candidate's, None (listed) where impossible."""
        try:
            return load_fitting(self._reference.dump, record, like)
        except Unfit as error:
            self.leave(str(error), what)
            return None

    # Calls

    def pair(self, place: Place, inputs: Mapping[str, Staged], repeats: Optional[Place]) -> Optional[Numbers]:
        """The reference's call of this one: that of the call it repeats, by inputs, or by number; None: unpaired."""
        own = number_call(place)
        if repeats is not None:
            return self._used.get(number_call(repeats))
        known = self._reference.by_inputs.get((place.step, place.scope, _fingerprint(inputs)), [])
        if place.pass_ is not Pass.FIRST:
            again = [numbers for numbers in known if numbers in self._used.values()]
            if not again:
                self._note_unpaired(own)
            return again[0] if again else None
        taken = set(self._used.values())
        free = [numbers for numbers in known if numbers not in taken]
        chosen = own if own in free else free[0] if free else None
        if chosen is None and own in self._reference.calls and own not in taken:
            chosen = own
            self.forced["calls paired by number, as their inputs differ"] += 1
        if chosen is None:
            self._note_unpaired(own)
            return None
        self._used[own] = chosen
        return chosen

    def _note_unpaired(self, own: Numbers) -> None:
        self.leave("the reference has no such call", _name(own, "all outputs"))

    def force_output(
        self, pair: Numbers, place: Place, path: str, tensor: torch.Tensor, staged: Optional[Staged], aliases: bool
    ) -> Optional[torch.Tensor]:
        """What to return in place of an output, None where it stays as it is."""
        what = _name(number_call(place), f"output {path!r}")
        if is_distributed(tensor):
            self.leave("it is a DTensor", what)
            return None
        record = self._reference.outputs[pair].get(path)
        if record is None:
            self.leave("the reference has no such output", what)
            return None
        if aliases:
            if staged is None or staged.words is None or digest_words(staged.words) != record.digest:
                self.leave("it shares memory with an input", what)
            return None
        value = self.load(record, tensor, what)
        if value is None:
            return None
        self.forced["outputs"] += 1
        if not tensor.requires_grad:
            return value
        gradients = self._reference.gradients[pair]
        gradient = gradients.get(f"output.{path}" if path else "output")
        forced: torch.Tensor = _Force.apply(  # type: ignore[no-untyped-call]
            tensor, _Choice(self, value, gradient, f"the gradient of {what}")
        )
        return forced

    # State

    def start_step(self) -> None:
        """Set parameters and buffers to the reference's."""
        if not self._tape.clock.recording:
            return
        self._used.clear()
        for role, owned in ((Role.PARAMETER, owned_parameters), (Role.BUFFER, owned_buffers)):
            for item in owned(self._model):
                self._set(item, item.tensor, (Source.PARAMETERS, 0, 0, Phase.FORWARD, role), item.local)

    def before_update(self, owned: Sequence[Owned], states: Mapping[str, Any], index: int, call: int) -> None:
        """Set gradients and state (full parameter name -> {name: value}) to what the reference's step saw."""
        for item in owned:
            gradient = gradient_of(item.tensor)
            if gradient is not None:
                self._set(item, gradient, (Source.OPTIMIZER, call, index, Phase.STEP, Role.GRADIENT), item.local)
            for name, value in states.get(item.name, {}).items():
                if isinstance(value, torch.Tensor):
                    place = (Source.OPTIMIZER, call, index, Phase.STEP, Role.STATE)
                    self._set(item, value, place, f"before.{name}.{item.local}")

    def _set(self, item: Owned, tensor: torch.Tensor, place: tuple[Any, ...], path: str) -> None:
        source, call, index, phase, role = place
        step = self._tape.clock.step
        what = f"{role} {path!r} of {item.scope!r} at step {step}"
        record = self._reference.state.get((source, step, call, index, phase, role, item.scope, path))
        if record is None:
            self.leave("the reference has none at this step", what)
            return
        try:
            overwrite(self._reference.dump, record, tensor)
            self.forced[f"{role}s"] += 1
        except Unfit as error:
            self.leave(str(error), what)

    def finish(self) -> None:
        """List what was forced and what was not."""
        self._tape.note(
            "forced from a reference: "
            + (", ".join(f"{n} {k}" for k, n in self.forced.items()) or "nothing")
            + "; random generators are not: each run draws its own numbers"
        )
        for text in self._left.texts():
            self._tape.note(f"not forced, {text}")


def _fingerprint(inputs: Mapping[str, Staged]) -> Fingerprint:
    found = [(path, b"" if staged.words is None else digest_words(staged.words)) for path, staged in inputs.items()]
    return tuple(sorted(found))


def _name(numbers: Numbers, what: str) -> str:
    step, _, scope, call = numbers
    return f"{what} of {scope or 'the model'!r} (step {step}, call {call})"
