"""Start packs: a small dump of all that a run begins with, so that another machine can begin with the same.

Written as any dump is. ``info.capture["start"]`` holds the global step at which it was taken, and of each optimizer,
scheduler and gradient scaler what is no tensor; the records are parameters and buffers (source ``parameters``), the
optimizers' state (source ``optimizer``, path "before.NAME.LOCAL"), what the script gave to its models (source
``module``, role input) and to functions outside of them (source ``function``, scope "(script)", role input), and what
was drawn (source ``function``, role output; ``op`` names the function, ``ordinal`` which of its draws in the call).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Optional, Union

import torch

from precision_align.core.errors import UsageError
from precision_align.core.keys import Key
from precision_align.core.records import Call, RunInfo, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.core.trees import Tree
from precision_align.core.wrappers import strip_wrappers
from precision_align.recording.fitting import load, load_fitting
from precision_align.recording.plan import make_plan
from precision_align.recording.shortfalls import Shortfalls
from precision_align.recording.structures import flatten_call
from precision_align.recording.tape import Clock, Place, Tape
from precision_align.storage.base import Dump
from precision_align.storage.folders import prepare_folder
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.opening import open_dump
from precision_align.storage.settings import Settings

START = "start"  # in RunInfo.capture


@dataclass(frozen=True)
class Allowance:
    """How much a start pack may hold: values of weights, of optimizers' state; ``rest_bytes`` of batches and masks."""

    weights: bool = True
    state: bool = True
    rest_bytes: Optional[int] = None


ALL = Allowance()


class StartPack:
    """One rank of a start pack. ``step``: the global step it begins with; ``steps``: all of which it holds batches.

    Raises DumpError, UsageError.
    """

    def __init__(self, path: Union[str, PathLike[str]], rank: int) -> None:
        self.path = str(Path(path).absolute())
        self.dump: Dump = open_dump(self.path)
        self.rank = rank if rank in self.dump.ranks else min(self.dump.ranks)
        infos = [info for info in self.dump.infos if info.rank == self.rank]
        if not infos or START not in infos[0].capture:
            raise UsageError(f"{path} is a dump, but no start pack: make one with capture --save-start")
        self.info = infos[0]
        self.content: Mapping[str, Any] = self.info.capture[START]
        self.step = int(self.content["step"])
        self._found: dict[tuple[Any, ...], dict[str, TensorRecord]] = defaultdict(dict)
        for record in self.dump.records:
            if record.key.rank == self.rank:
                self._found[_place(record.key)][record.key.path] = record
        self.steps = frozenset(place[2] for place in self._found)
        self._trees = {
            (call.step, call.micro, strip_wrappers(call.scope), call.call): call.arguments
            for call in self.dump.calls
            if call.rank == self.rank
        }

    def inputs(self, place: Place) -> dict[str, TensorRecord]:
        """What was given to a call: path -> record."""
        return self._found.get(_place_of(place, Role.INPUT), {})

    def tree(self, place: Place) -> Optional[Tree]:
        """The arguments of a model's call."""
        return self._trees.get((place.step, place.micro, strip_wrappers(place.scope), place.call))

    def draw(self, place: Place) -> Optional[TensorRecord]:
        """What was drawn there."""
        return self._found.get(_place_of(place, Role.OUTPUT), {}).get("")

    def state(self, source: Source, role: Role) -> Iterator[tuple[str, str, TensorRecord]]:
        """(full name of the parameter or buffer, path of the record, record) of what the first step begins with."""
        for place, records in self._found.items():
            if (place[0], place[1]) == (source, role):
                for path, record in records.items():
                    local = path.split(".", 2)[2] if role is Role.STATE else path
                    yield ".".join(filter(None, (record.key.scope, local))), path, record

    def load(self, record: TensorRecord) -> torch.Tensor:
        """A recorded tensor on the CPU. Raises Unfit."""
        return load(self.dump, record)

    def load_like(self, record: TensorRecord, like: torch.Tensor) -> torch.Tensor:
        """A recorded tensor as another one is. Raises Unfit."""
        return load_fitting(self.dump, record, like)


def _place(key: Key) -> tuple[Any, ...]:
    return (key.source, key.role, key.step, key.micro, strip_wrappers(key.scope), key.call, key.op, key.ordinal)


def _place_of(place: Place, role: Role) -> tuple[Any, ...]:
    scope = strip_wrappers(place.scope)
    return (place.source, role, place.step, place.micro, scope, place.call, place.op, place.number)


class StartWriter:
    """Writes a start pack beside a running session. ``lacking``: what was left out, and why.

    ``checkpoint``: describes the file that holds the weights; then only their hashes are kept. Raises UsageError where
    the folder is taken.
    """

    def __init__(
        self,
        path: Union[str, PathLike[str]],
        info: RunInfo,
        clock: Clock,
        settings: Settings,
        allowance: Allowance = ALL,
        *,
        overwrite: bool = False,
        checkpoint: Optional[Mapping[str, Any]] = None,
    ) -> None:
        self.path = str(Path(path).absolute())
        self._settings, self._clock, self._checkpoint = settings, clock, checkpoint
        self.allowance, self._rest_bytes = allowance, 0
        self.lacking = Shortfalls()
        self._info = replace(info, capture={**info.capture, START: {}})
        prepare_folder(Path(self.path), self._info, overwrite=overwrite, append=False)
        self._content: dict[str, Any] = {}
        self.tape: Optional[Tape] = None

    @property
    def is_open(self) -> bool:
        """Whether the first step has begun."""
        return self.tape is not None

    def open(self, content: Mapping[str, Any]) -> Tape:
        """Begin, at the first step: what is no tensor is on disk from here on."""
        self._content = {"step": self._clock.step, "checkpoint": self._checkpoint, **content}
        self._info = replace(self._info, capture={**self._info.capture, START: self._content})
        sink = Hdf5Sink(self.path, self._info, overwrite=True, settings=self._settings)
        self.tape = Tape(sink, make_plan(payload="full"), self._info.rank, self._clock)
        return self.tape

    def weights_tape(self, tape: Tape) -> Tape:
        """Where parameters go: with a checkpoint, or where they do not fit, only their hashes are kept."""
        if self._checkpoint is None and self.allowance.weights:
            return tape
        return Tape(tape.sink, make_plan(payload=Tier.FINGERPRINT), tape.rank, tape.clock)

    def add_call(self, place: Place, args: Any, kwargs: Any) -> None:
        """What the script gives to a model, or to a function outside of all models."""
        if self.tape is None:
            return
        tree, leaves = flatten_call(args, kwargs)
        for path, tensor in leaves:
            self.add_input(place, path, tensor)
        tick = self.tape.tick
        self.tape.call(
            Call(
                step=place.step,
                micro=place.micro,
                rank=self.tape.rank,
                scope=place.scope,
                call=place.call,
                pass_=Pass.FIRST,
                kind="",
                identity=self._clock.next_identity(),
                parent=-1,
                enter=tick(),
                exit=tick(),
                leaf=True,
                training=True,
                grad_enabled=True,
                arguments=tree,
                output={"kind": "scalar", "value": None},
            )
        )

    def add_input(self, place: Place, path: str, tensor: torch.Tensor) -> None:
        """One tensor of them."""
        if self.tape is not None and self._fits(tensor, place):
            self.tape.record(place, place.source, Phase.FORWARD, Role.INPUT, path, tensor)

    def add_draw(self, place: Place, tensor: torch.Tensor, extra: dict[str, Any]) -> None:
        """What was drawn."""
        if self.tape is not None and place.pass_ is Pass.FIRST and self._fits(tensor, place):
            self.tape.record(place, Source.FUNCTION, Phase.FORWARD, Role.OUTPUT, "", tensor, extra=extra)

    def _fits(self, tensor: torch.Tensor, place: Place) -> bool:
        limit, nbytes = self.allowance.rest_bytes, tensor.numel() * tensor.element_size()
        if limit is not None and self._rest_bytes + nbytes > limit:
            self.lacking.add("batches and masks, as the budget was used up", f"of step {place.step}")
            return False
        self._rest_bytes += nbytes
        return True

    def end_step(self) -> None:
        """Make the step durable."""
        if self.tape is not None:
            self.tape.end_step(self._clock.step)

    def close(self, notes: tuple[str, ...]) -> None:
        """The pack is complete."""
        if self.tape is not None:
            self.tape.close(replace(self._info, notes=notes))
