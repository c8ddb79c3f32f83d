"""An equal start: a session that writes a start pack, or begins from one, or both."""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Optional

import torch

from precision_align.core.terms import Source
from precision_align.core.trees import scalars
from precision_align.recording.beginning import Start
from precision_align.recording.calls import CallRecorder
from precision_align.recording.companions import Companion
from precision_align.recording.draws import SCRIPT, DrawFollower, DrawTap, Reentry
from precision_align.recording.fitting import Unfit
from precision_align.recording.masks import Mask
from precision_align.recording.runstates import StateSetter, save_state
from precision_align.recording.shortfalls import Shortfalls
from precision_align.recording.staging import untouched
from precision_align.recording.startpacks import StartPack
from precision_align.recording.structures import flatten_arguments, flatten_call
from precision_align.recording.substitution import substitute
from precision_align.recording.tape import Place, Tape


class Starter(Companion):
    """Sets and writes state at the first step, batches at each call of the script's, random numbers as they are drawn.

    A tensor counts as the script's data where it has no gradient to hand on and was not computed from what a model
    returned.
    """

    def __init__(
        self,
        start: Start,
        tap: DrawTap,
        tape: Tape,
        model: torch.nn.Module,
        calls: CallRecorder,
        optimizers: Sequence[Any],
    ) -> None:
        self._pack, self._writer, self._tap = start.pack, start.writer, tap
        self._tape, self._model, self._calls, self._optimizers = tape, model, calls, optimizers
        self._left, self._unsaved = Shortfalls(), Shortfalls()
        self._set: Counter[str] = Counter()
        self._numbers: Counter[tuple[Any, ...]] = Counter()
        self._derived: dict[int, weakref.ref[torch.Tensor]] = {}
        self._has_begun = self._feeds = False
        self._reentry = Reentry(tap)
        self._draws = DrawFollower(tape, calls, self, self._unsaved if self._pack is None else self._left)

    def start(self, cleanup: ExitStack) -> None:
        """Follow what the mode sees."""
        self._tap.follow = self._follow
        cleanup.callback(setattr, self._tap, "follow", None)

    def start_step(self) -> None:
        """The first one sets the state, and saves it."""
        self._numbers.clear()
        self._derived.clear()
        self._draws.start_step()
        clock = self._tape.clock
        self._feeds = self._pack is not None and clock.step in self._pack.steps
        if self._pack is not None and clock.step == self._pack.step and not self._has_begun:
            self._has_begun = True
            if self._pack.rank != self._tape.rank:
                self._left.add("the pack has no such rank", f"rank {self._tape.rank} began as rank {self._pack.rank}")
            StateSetter(self._pack, self._model, self._optimizers, self._left).set_all()
        if self._writer is not None and clock.recording and not self._writer.is_open:
            save_state(self._writer, self._tape, self._model, self._optimizers)

    def finish_step(self) -> None:
        """Make the pack's step durable."""
        if self._writer is not None:
            self._writer.end_step()

    # Calls of the script's

    def feed_call(self, scope: str, args: Any, kwargs: Any) -> Optional[tuple[Any, Any]]:
        """The script calls a model: the arguments to call it with instead, None for its own."""
        self._draws.begin()
        clock = self._tape.clock
        counted = (clock.batch, scope)
        place = Place(clock.step, clock.batch, scope, self._numbers[counted], source=Source.MODULE)
        self._numbers[counted] += 1
        fed = self._feed(place, args, kwargs)
        if self._writer is not None and clock.recording:
            self._writer.add_call(place, *(fed or (args, kwargs)))
        return fed

    def leave_call(self, output: Any) -> None:
        """A model has returned to the script: what is computed from this is no data."""
        self._mark(output)

    def enter(self, module: torch.nn.Module, scope: str) -> None:
        """A module starts inside another, of this scope, or alone in a backward pass."""
        self._reentry.enter(module)
        self._draws.account(scope)

    def leave(self, module: torch.nn.Module, scope: str) -> None:
        """A module ends."""
        self._draws.account(scope)
        self._reentry.leave(module)

    def _feed(self, place: Place, args: Any, kwargs: Any) -> Optional[tuple[Any, Any]]:
        if self._pack is None or not self._feeds:
            return None
        tree, leaves = flatten_call(args, kwargs)
        recorded, fed = self._pack.inputs(place), dict[int, torch.Tensor]()
        what = f"step {place.step}, micro-batch {place.micro}, {place.scope or 'the model'!r}"
        if not recorded and leaves:
            self._left.add("the pack holds no such call: the script's own batch was used", what)
        for path, tensor in leaves:
            if path in recorded and self._is_data(tensor):
                self._feed_tensor(recorded[path], tensor, fed, f"{path} of {what}")
            elif recorded and path not in recorded:
                self._left.add("the pack's call has no such tensor", f"{path} of {what}")
        for path in recorded.keys() - {path for path, _ in leaves}:
            self._left.add("the pack's call has it, and this one not", f"{path} of {what}")
        reference = self._pack.tree(place)
        if reference is not None and scalars(reference) != scalars(tree):
            self._left.add("numbers or flags among the arguments differ: the script's own were used", what)
        return substitute((args, kwargs), fed) if fed else None

    def _feed_tensor(self, record: Any, tensor: torch.Tensor, fed: dict[int, torch.Tensor], what: str) -> None:
        assert self._pack is not None
        try:
            with untouched():
                value = self._pack.load(record)
                if value.dtype != tensor.dtype and value.is_floating_point() and tensor.is_floating_point():
                    self._left.add(f"it was rounded from {value.dtype} to {tensor.dtype}", what)
                    value = value.to(tensor.dtype)
                value = value.to(tensor.device)
        except Unfit as error:
            self._left.add(f"the script's own was used, as {error}", what)
            return
        self._set["batch tensors"] += 1
        if tensor.requires_grad:  # the script reads its gradient from this very object
            if value.shape == tensor.shape:
                tensor.data.copy_(value)
            else:
                self._left.add("it has another shape, and the script reads its gradient", what)
            return
        fed[id(tensor)] = value

    # What the mode sees

    @property
    def _is_active(self) -> bool:
        clock = self._tape.clock
        wanted = clock.recording and (self._feeds or self._writer is not None)
        return wanted and clock.micro >= 0 and not clock.stepping

    def _follow(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not self._is_active:
            return func(*args, **kwargs)
        if self._calls.open_frames:
            return self._draws.run(func, args, kwargs)
        return self._call_outside(func, args, kwargs) if torch.is_grad_enabled() else func(*args, **kwargs)

    def _call_outside(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A function that the script calls itself: with labels, say, where it computes the loss."""
        leaves = flatten_call(args, kwargs)[1]
        if not any(self._is_learned(tensor) for _, tensor in leaves):
            return func(*args, **kwargs)
        # numbers are no batch: a gradient scaler multiplies the loss by one, which is state
        data = [(path, tensor) for path, tensor in leaves if tensor.dim() and self._is_data(tensor)]
        if data and not any(tensor.requires_grad for _, tensor in data):
            name = getattr(func, "__name__", str(func))
            try:
                args, kwargs = self._feed_function(name, data, args, kwargs)
            except Exception as error:  # of ours: training goes on with the script's own
                self._tape.excuse(f"what {name} was given", error)
        result = self._draws.run(func, args, kwargs)
        self._mark(result)
        return result

    def _feed_function(self, name: str, data: Sequence[tuple[str, torch.Tensor]], args: Any, kwargs: Any) -> Any:
        clock = self._tape.clock
        counted = (clock.batch, SCRIPT, name)
        place = Place(
            clock.step, clock.batch, SCRIPT, 0, source=Source.FUNCTION, op=name, number=self._numbers[counted]
        )
        self._numbers[counted] += 1
        fed: dict[int, torch.Tensor] = {}
        if self._pack is not None and self._feeds:
            recorded = self._pack.inputs(place)
            for path, tensor in data:
                what = f"{path} of {name} in the script, step {place.step}"
                if path in recorded:
                    self._feed_tensor(recorded[path], tensor, fed, what)
                else:
                    self._left.add("the pack holds no such call: the script's own was used", what)
        if self._writer is not None:
            for path, tensor in data:
                self._writer.add_input(place, path, fed.get(id(tensor), tensor))
        return substitute((args, kwargs), fed) if fed else (args, kwargs)

    def _is_learned(self, tensor: torch.Tensor) -> bool:
        known = self._derived.get(id(tensor))
        return (tensor.requires_grad and not tensor.is_leaf) or (known is not None and known() is tensor)

    def _is_data(self, tensor: torch.Tensor) -> bool:
        return not self._is_learned(tensor) and not isinstance(tensor, torch.nn.Parameter)

    def _mark(self, value: Any) -> None:
        for _, tensor in flatten_arguments(value)[1]:
            if not tensor.requires_grad:
                self._derived[id(tensor)] = weakref.ref(tensor)

    # Draws

    def keep_draw(self, place: Place, tensor: torch.Tensor, extra: dict[str, Any]) -> None:
        """Take what was drawn into the pack that is written."""
        if self._writer is not None:
            self._tape.guard(f"the draw {_name_draw(place)}", self._writer.add_draw, place, tensor, extra)

    def _find_draw(self, place: Place) -> Any:
        if self._pack is None or not self._feeds:
            return None
        record = self._pack.draw(place)
        if record is None:
            self._left.add("the pack holds no such draw: this run drew its own numbers", _name_draw(place))
        return record

    def find_mask(self, place: Place, p: float) -> Optional[Mask]:
        """The reference's mask, None (reported) where there is none that fits."""
        record = self._find_draw(place)
        if record is None or self._pack is None:
            return None
        if record.extra["p"] != p:
            self._left.add(
                f"p is {record.extra['p']} in the pack and {p} here: an own mask was drawn", _name_draw(place)
            )
            return None
        try:
            with untouched():
                mask = Mask(self._pack.load(record), p, record.extra["kernel"])
        except Unfit as error:
            self._left.add(f"an own mask was drawn, as {error}", _name_draw(place))
            return None
        self._set["masks"] += 1
        return mask

    def fill_draw(self, place: Place, tensor: torch.Tensor) -> None:
        """Put the reference's numbers into a tensor that was just drawn."""
        record = self._find_draw(place)
        if record is None or self._pack is None:
            return
        try:
            tensor.data.copy_(self._pack.load_like(record, tensor))
            self._set["drawn tensors"] += 1
        except Unfit as error:
            self._left.add(f"this run drew its own numbers, as {error}", _name_draw(place))

    def finish(self) -> None:
        """Say what was set and what was not, in the notes and on stderr, and close the pack."""
        missing = [f"not equal at the start, {text}" for text in self._left.texts()]
        if self._pack is not None:
            missing += self._find_unused(self._pack)
            done = ", ".join(f"{count} {what}" for what, count in self._set.items())
            state = f"state of step {self._pack.step}" if self._has_begun else "no state"
            self._tape.note(f"started from {self._pack.path}: {', '.join(filter(None, (state, done)))}")
            self._pack.dump.close()
        lacking = () if self._writer is None else self._writer.lacking.texts()
        unsaved = [f"the start pack lacks {text}" for text in (*self._unsaved.texts(), *lacking)]
        if self._writer is not None:
            self._writer.close(tuple(unsaved))
        for text in (*missing, *unsaved):
            self._tape.note(text)
        if missing or unsaved:
            warnings.warn("\n".join(("the start pack:", *missing, *unsaved)), RuntimeWarning, stacklevel=2)

    def _find_unused(self, pack: StartPack) -> list[str]:
        if not self._has_begun:
            return [f"not equal at the start: step {pack.step}, with which the pack begins, never came"]
        return [f"the start pack itself lacks: {note}" for note in pack.info.notes]


def _name_draw(place: Place) -> str:
    return f"{place.op} {place.number} of {place.scope!r}, call {place.call}, step {place.step}"
