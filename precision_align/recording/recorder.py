"""The running session: steps, calls, backward passes and optimizer steps as they come."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Optional

import torch

from precision_align.core.errors import NothingCaptured, PrecisionAlignError, UsageError
from precision_align.core.records import ENDED, Point, RunInfo
from precision_align.core.terms import Phase, Role, Source
from precision_align.recording.begun import Begun
from precision_align.recording.calls import CallRecorder
from precision_align.recording.crew import Setup, gather_crew
from precision_align.recording.cycles import Cycle
from precision_align.recording.environment import update_models
from precision_align.recording.gathering import Gathering
from precision_align.recording.gradients import Ledger
from precision_align.recording.hooks import Hooks
from precision_align.recording.lanes import make_lane
from precision_align.recording.losses import listening
from precision_align.recording.models import Models
from precision_align.recording.optimizers import OptimizerRecorder
from precision_align.recording.parameters import ParameterRecorder
from precision_align.recording.passes import PassRecorder
from precision_align.recording.points import check_saved, read_number
from precision_align.recording.series import Series
from precision_align.recording.silence import describe_silent, explain_emptiness
from precision_align.recording.tape import Place, Tape
from precision_align.recording.updates import Updates


class Recorder:
    """A running session. ``notes``: what was not recorded so far, and why; ``emptiness``: why nothing at all was.

    Where ``step()`` is not used, each outermost forward of the model is a step (where only its parts are called, each
    backward pass ends one); with ``accumulates`` a step is all forwards up to the optimizers' steps (see ``cycles``),
    and of a loop without gradients each forward of the model.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tape: Tape,
        info: RunInfo,
        optimizers: Sequence[Any],
        accumulates: bool = False,
        setup: Optional[Setup] = None,
    ) -> None:
        self._accumulates = accumulates
        self._model, self._tape, self._info = model, tape, info
        self._ledger = Ledger(tape)
        self._calls = CallRecorder(tape, self._ledger)
        self._parameters = ParameterRecorder(tape, model)
        self._gathering = Gathering(model, self._parameters.record_gathered, tape.note)
        self._series = Series()
        self._cleanup = ExitStack()
        self._open = self._closed = self._explicit = self._step_open = False
        self.emptiness = ""
        self._num_steps, self._given = 0, False
        self._cycle = Cycle(model)
        self._others: set[str] = set()
        self._forcer = None if setup is None else setup.forcer
        self._after = None if setup is None else setup.after
        self._find_step = None if setup is None else setup.find_step
        self._calls.forcer = self._forcer
        given = list(optimizers)
        self._crew = gather_crew(tape, model, self._calls, self._ledger, self._series, setup or Setup(), given)
        self._passes = PassRecorder(tape, self._ledger, self._series, self._parameters, self._crew.scales)
        self._crew.scales.cycle = self._cycle
        self._updates = Updates(tape, model, given, self._crew, self._passes, self._cycle, self._forcer)
        self._begun = Begun()
        self._starter = self._crew.starter
        self._hooks = Hooks(*self._find_ways(), tape.note)

    def _find_ways(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """What is called before and after each module's call: compiled where that can be."""
        if self._forcer is not None or self._starter is not None:
            return self._enter, self._leave
        lane = make_lane(self._tape, self._calls, self._ledger, self._enter, self._leave)
        if lane is None:
            return self._enter, self._leave
        self._calls.lane = self._ledger.lane = lane
        self._parameters.take_gradients = lane.take_gradients
        return lane.follow_enter, lane.follow_leave

    @property
    def notes(self) -> Sequence[str]:
        """What was not recorded so far, and why."""
        return tuple(self._tape.notes)

    @property
    def lost(self) -> str:
        """Why nothing of what was recorded could be written; known when the session has ended."""
        return self._tape.lost

    @property
    def num_records(self) -> int:
        """How many tensors were recorded so far."""
        return self._tape.num_records

    @property
    def num_steps(self) -> int:
        """How many steps were begun so far, recorded or not."""
        return self._num_steps

    def __enter__(self) -> Recorder:
        if self._open or self._closed:
            raise UsageError("a session is entered once: call capture(...) again for another")
        self._open = True
        try:
            self._start()
        except BaseException:
            self._cleanup.close()
            raise
        return self

    def _start(self) -> None:
        self._crew.start(self._cleanup)
        self._cleanup.enter_context(listening(self._passes))
        self._cleanup.callback(self._hooks.detach)
        self._hooks.attach(self._model)
        self._updates.start(self._cleanup)

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if kind is not None and not issubclass(kind, (SystemExit, GeneratorExit)):
            text = " ".join(str(error).split())[:200]
            self._tape.note(f"{ENDED}{kind.__name__}{': ' if text else ''}{text}")
        try:
            self._close()
        except PrecisionAlignError as problem:
            if error is None:
                raise
            warnings.warn(f"the dump could not be closed properly: {problem}", RuntimeWarning, stacklevel=2)
        if self.emptiness and error is None:
            raise NothingCaptured(f"nothing was captured: {self.emptiness}")
        if self.lost:  # no error: what the program does next, such as saving its weights, must still be done
            warnings.warn(f"the dump holds no tensors: {self.lost}", RuntimeWarning, stacklevel=2)

    def _close(self) -> None:
        try:
            self._calls.abandon()
            self._end_step()
        finally:
            self._open = self._tape.clock.recording = False
            self._closed = True
            self._ledger.close_step()
            self._cleanup.close()
            self._crew.finish()
            self._note_unseen()
            capture = {**self._info.capture, **self._crew.describe()}
            optimizer = {**self._info.optimizer, **self._updates.described}
            notes = tuple(self._tape.notes)
            self._tape.close(replace(self._info, capture=capture, optimizer=optimizer, notes=notes))
        if self._after is not None:
            self._after()

    def _note_unseen(self) -> None:
        if self._crew.muted:
            self._tape.note(f"rank {self._info.rank} was not asked to record")
            return
        if not self._tape.num_calls and not self._calls.called:
            self._note_emptiness()
            return
        for note in describe_silent(self._model, self._hooks.uncalled(self._calls.called)):
            self._tape.note(note)

    def _note_emptiness(self) -> None:
        if self._crew.switch is not None:
            self._tape.note(f"recording was never switched on ({self._crew.switch.text}): nothing was captured")
            return
        reason = explain_emptiness(self._model, self._tape.plan, self._num_steps)
        self._tape.note(reason)
        self.emptiness = "" if self._given else reason

    @contextlib.contextmanager
    def step(self, number: Optional[int] = None) -> Iterator[Recorder]:
        """One training step; ``number`` is the framework's global step, by default one more than the last."""
        if not self._open:
            raise UsageError("step() works inside the session: with capture(...) as recorder, with recorder.step()")
        if number is not None and (not isinstance(number, int) or number < 0):
            raise UsageError(f"a step is a number from 0 on, not {number!r}")
        self._end_step()
        self._begin_step(self._tape.clock.step + 1 if number is None else number, explicit=True)
        self._explicit = True
        try:
            yield self
        except Exception as error:  # whoever catches it goes on with the next step
            self._tape.note(f"step {self._tape.clock.step} ended with {type(error).__name__}: it is not whole")
            raise
        finally:
            self._explicit = False
            self._end_step()

    def log(self, **values: Any) -> None:
        """Points of scalar series at this step, for example ``log(loss=loss)``: numbers or one-element tensors."""
        self._given = True
        for name, value in values.items():
            self._series.add(name, self._tape.clock.batch, read_number(name, value), given=True)

    def save(self, name: str, tensor: torch.Tensor) -> None:
        """Record a tensor of your own under a name, and the gradient that arrives at it.

        The same name again in a step counts as its next call. Raises UsageError for what is no name and tensor.
        """
        check_saved(name, tensor)
        self._given = True
        if self._tape.clock.recording:
            clock = self._tape.clock
            number = self._series.count(f"save:{name}")
            place = Place(clock.step, clock.batch, "", number, source=Source.POINT)
            self._tape.record(place, Source.POINT, Phase.FORWARD, Role.OUTPUT, name, tensor)
            if "gradients" in self._tape.plan.sources:
                self._tape.guard(f"the gradient of {name!r}", self._ledger.watch_tensor, place, name, tensor)

    def note(self, text: str) -> None:
        """Add a line to the dump's notes."""
        self._tape.note(text)

    def fall_silent(self) -> None:
        """This process is a fork of the one that records: nothing of what it does is for the dump."""
        self._open = self._tape.clock.recording = False

    @property
    def is_inside(self) -> bool:
        """Whether a module of this session runs on this thread."""
        return bool(self._calls.open_frames)

    @property
    def has_learned(self) -> bool:
        """Whether a backward pass has come, or more than one step."""
        return self._passes.passed or self._num_steps > 1

    def add_model(self, name: str, model: torch.nn.Module, instead: Optional[str] = None) -> str:
        """Record one more model besides the first, from now on; returns its scope. For sessions on ``Models`` only.

        ``instead``: the scope of one that was added before and whose place it takes.
        """
        if not isinstance(self._model, Models):
            raise UsageError("this session is on one module: capture both as parts of one, such as a ModuleDict")
        scope = self._model.add(name, model) if instead is None else instead
        if instead is not None:
            self._model.replace(instead, model)
        else:
            self._info = update_models(self._info, self._model)
        self._others.add(scope)
        self._crew.meet_modules()
        if self._tape.clock.recording:
            self._hooks.attach(self._model, begins=False)
            if "parameters" in self._tape.plan.sources:
                self._tape.guard("parameters", self._record_parameters, scope)
        return scope

    # What the steps consist of

    def _begin_step(self, number: int, *, explicit: bool = False) -> None:
        clock = self._tape.clock
        clock.step, clock.micro, clock.identities = number, -1, itertools.count()
        wanted = self._open and self._tape.plan.wants_step(number) and self._crew.wants_step()
        clock.recording = wanted and not self._came_before(number)
        self._step_open, clock.stepping = True, False
        self._cycle.start_step()
        self._passes.start_step()
        self._crew.start_step()
        self._num_steps += 1
        if not clock.recording:
            self._tape.release()
            if explicit:  # else a part that is called on its own may begin the next step
                self._hooks.rest()
            return
        self._hooks.attach(self._model)
        self._calls.start_step()
        self._updates.start_step()
        if "parameters" in self._tape.plan.sources:
            self._tape.guard("parameters", self._record_parameters)

    def _record_parameters(self, within: str = "") -> None:
        self._gathering.wait(self._parameters.record_start(within))

    def _came_before(self, number: int) -> bool:
        if known := self._begun.add(number):
            self._tape.note(f"step {number} came more than once: only its first time is recorded")
        return known

    def _end_step(self) -> None:
        if not self._step_open:
            return
        self._step_open = False
        self._gathering.finish_step()
        self._ledger.close_step()
        self._passes.finish_step()
        self._updates.finish_step()
        self._crew.finish_step()
        clock = self._tape.clock
        for micro, name, value in self._series.finish():
            self._tape.point(Point(clock.step, micro, name, value))
        clock.recording = False
        self._tape.end_step(clock.step)

    def _enter(self, module: torch.nn.Module, scope: str, args: Any, kwargs: Any) -> Any:
        """Returns None, or where the session begins from a pack the (args, kwargs) to call the module with."""
        clock = self._tape.clock
        if (
            not self._open
            or not (clock.recording or self._may_begin(scope))
            or torch._C._get_tracing_state() is not None
        ):
            return None
        fed = None
        try:
            frames = self._calls.frames
            if not frames and self._calls.is_outermost(scope):
                self._begin_forward(scope, module)
                fed = self._feed(scope, args, kwargs)
                args, kwargs = fed or (args, kwargs)
                if scope == "":
                    self._crew.start_batch(args, kwargs)
                frames = self._calls.frames
            elif self._starter is not None:
                self._starter.enter(module, frames[-1].place.scope if frames else scope)
            if clock.recording:
                self._calls.enter(frames, module, scope, args, kwargs)
        except Exception as error:
            self._tape.excuse(f"the call of {scope!r}", error)
        return fed

    def _feed(self, scope: str, args: Any, kwargs: Any) -> Optional[tuple[Any, Any]]:
        if self._starter is None:
            return None
        try:
            return self._starter.feed_call(scope, args, kwargs)
        except Exception as error:
            self._tape.excuse(f"the batch of {scope!r}", error)
            return None

    def _leave(self, module: torch.nn.Module, scope: str, args: Any, kwargs: Any, output: Any) -> Any:
        """Returns None, or in a forced session what the module is to return."""
        if not self._open or not self._tape.clock.recording:
            return None
        try:
            if self._starter is not None:
                self._starter.leave(module, scope)
            forced = self._calls.leave(module, output)
            if self._starter is not None and not self._calls.open_frames:
                self._starter.leave_call(output if forced is None else forced)
            return forced
        except Exception as error:
            self._tape.excuse(f"the outputs of {scope!r}", error)
            return None

    def _may_begin(self, scope: str) -> bool:
        return scope == "" or (not self._explicit and (not self._step_open or self._passes.passed))

    def _begin_forward(self, scope: str, module: torch.nn.Module) -> None:
        """An outermost forward: the next micro-batch, or without ``step()`` the next step."""
        clock = self._tape.clock
        if not self._explicit and (not self._step_open or self._starts_anew(scope, module)):
            self._end_step()
            found = -1 if self._find_step is None else self._find_step()
            self._begin_step(max(clock.step + 1, found))
        if scope == "":
            clock.micro += 1
            self._passes.start_batch()

    def _starts_anew(self, scope: str, module: torch.nn.Module) -> bool:
        if not self._accumulates:
            return scope == "" or self._passes.passed
        if self._cycle.is_over:
            return True
        if self._passes.passed:
            return not (self._updates or self._cycle.has_optimizers)
        trains = torch.is_grad_enabled() and module.training
        return not (self._updates or trains or scope in self._others)

    # Optimizer steps

    def watch_optimizer(self, optimizer: Any) -> OptimizerRecorder:
        """Record the steps of one more optimizer; whoever calls this reports them: see before_step, after_step."""
        return self._updates.watch(optimizer)

    def before_step(self, recorder: OptimizerRecorder, closure: bool = False) -> None:
        """A watched optimizer is about to step; with a closure its gradients are made inside of that."""
        self._updates.before(recorder, closure)

    def after_step(self, recorder: OptimizerRecorder, error: str = "") -> None:
        """It has stepped, or raised ``error``."""
        self._updates.after(recorder, error)
