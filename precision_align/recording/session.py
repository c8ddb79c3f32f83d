"""Capture sessions: the context manager around a training loop."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from types import TracebackType
from typing import Any, Optional, Union

import torch

from precision_align.core.errors import PrecisionAlignError, UsageError
from precision_align.core.records import Point, RunInfo
from precision_align.core.terms import Phase, Role, Source
from precision_align.recording.calls import CallRecorder
from precision_align.recording.crew import Taps, gather_crew
from precision_align.recording.environment import describe_run, find_last_step
from precision_align.recording.gradients import Ledger
from precision_align.recording.hooks import Hooks
from precision_align.recording.limits import NO_LIMITS, Limits
from precision_align.recording.losses import listening
from precision_align.recording.optimizers import OptimizerRecorder, StepWrapper, as_optimizers
from precision_align.recording.parameters import ParameterRecorder
from precision_align.recording.passes import PassRecorder
from precision_align.recording.points import check_saved, read_number
from precision_align.recording.plan import SOURCES, Payload, Plan, Select, Steps, make_plan
from precision_align.recording.rings import RING_BYTES, RingSink
from precision_align.recording.series import Series
from precision_align.recording.silence import NOTHING_CALLED, describe_silent
from precision_align.recording.signals import Switch
from precision_align.recording.tape import Clock, Place, Tape
from precision_align.storage.base import Sink
from precision_align.storage.hdf5 import Hdf5Sink


def capture(
    model: torch.nn.Module,
    path: Union[str, PathLike[str], None],
    *,
    optimizer: Any = None,
    sources: Sequence[str] = SOURCES,
    payload: Payload = "full",
    select: Select = None,
    steps: Steps = None,
    rank: Optional[int] = None,
    overwrite: bool = False,
    append: bool = False,
    sink: Optional[Sink] = None,
    budget_bytes: Optional[int] = None,
    trigger: Union[str, Sequence[str], None] = None,
    ring: int = 4,
    ring_bytes: int = RING_BYTES,
    switch: Optional[str] = None,
    facts: Optional[bool] = None,
    force: Any = None,
    certify: bool = False,
) -> Recorder:
    """Record what a model computes while inside; use as ``with capture(model, "runs/reference") as recorder:``.

    Outputs, gradients and updates are bit-equal with and without it.

    ``optimizer``: anything with ``step()``, or a list of them; ``sources``: of "modules", "gradients", "parameters",
    "optimizer", and beyond the default "functions" (``torch.nn.functional`` and custom operators) and "operators"
    (everything that torch dispatches); ``payload``: how much of each tensor is kept ("fingerprint", "statistics",
    "sketch", "sample", "full"), or a mapping scope glob -> that, the last match wins; ``select``: scope globs whose
    tensors are recorded (calls are always), or a :class:`~precision_align.recording.zoomplans.ZoomPlan`; ``steps``:
    which steps, as a collection or like "3,10-12" (all); ``rank``: of this process (found from torch.distributed or
    the launcher); ``path``: the dump's folder, or None with a ``sink`` of your own.

    ``budget_bytes``: of payload for this rank; beyond its share of it a step's tensors are kept as sketches or
    statistics, with a note. ``trigger``: keep the last ``ring`` steps in memory (at most ``ring_bytes`` of it) and write
    them only when a condition becomes true at a step's end: "nan", "inf", "loss>3*median", "loss>12.5", "env:NAME",
    "file:PATH", "signal:USR1", or a list of them. ``switch``: record only the steps that begin while "file:PATH"
    exists, "env:NAME" is set, or after "signal:USR1" (again to stop). ``facts``: series of cheap facts of each batch,
    recorded or not (see ``batches``); by default only with a trigger.

    Raises UsageError for arguments that do not fit, DumpError when the folder is in use.
    """
    if force is not None or certify:
        raise UsageError("force and certify are not available yet; leave them out")
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"capture records a torch.nn.Module, not a {type(model).__name__}")
    if path is None and sink is None:
        raise UsageError("give either the path of the dump or a sink")
    plan = make_plan(sources, payload, select, steps)
    limits = Limits(budget_bytes, trigger, ring, ring_bytes, switch, facts)
    return start_recorder(
        model, path, plan, optimizer, rank=rank, overwrite=overwrite, append=append, sink=sink, limits=limits
    )


def start_recorder(
    model: torch.nn.Module,
    path: Union[str, PathLike[str], None],
    plan: Plan,
    optimizer: Any = None,
    *,
    rank: Optional[int] = None,
    overwrite: bool = False,
    append: bool = False,
    sink: Optional[Sink] = None,
    accumulates: bool = False,
    limits: Limits = NO_LIMITS,
    taps: Optional[Taps] = None,
) -> Recorder:
    """A session from checked arguments; opens the dump. Raises as :func:`capture`."""
    limits.check()
    optimizers = as_optimizers(optimizer)
    info = describe_run(model, plan, rank)
    info = replace(info, capture={**info.capture, **limits.describe()})
    first = find_last_step(str(path), info.rank) + 1 if append and sink is None else 0
    with ExitStack() as opened:
        switch = limits.make_switch(opened)
        trigger = limits.make_trigger(opened)
        if sink is None:
            sink = Hdf5Sink(str(path), info, overwrite=overwrite, append=append)
        opened.pop_all()  # from here on the session closes them
    if trigger is not None:
        sink = RingSink(sink, trigger, limits.ring, limits.ring_bytes)
    tape = Tape(sink, plan, info.rank, Clock(first - 1), budget=limits.make_budget(plan))
    return Recorder(model, tape, info, optimizers, accumulates, taps=taps, switch=switch, facts=limits.wants_facts)


class Recorder:
    """A running session. ``notes``: what was not recorded so far, and why.

    Where ``step()`` is not used, each outermost forward of the model is a step (where only its parts are called, each
    backward pass ends one); with ``accumulates`` all forwards up to
    an optimizer's step are micro-batches of one (a loop that has a backward pass but no known optimizer yet counts as
    accumulating).
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tape: Tape,
        info: RunInfo,
        optimizers: Sequence[Any],
        accumulates: bool = False,
        *,
        taps: Optional[Taps] = None,
        switch: Optional[Switch] = None,
        facts: bool = False,
    ) -> None:
        self._accumulates = accumulates
        self._model, self._tape, self._info = model, tape, info
        self._ledger = Ledger(tape)
        self._calls = CallRecorder(tape, self._ledger)
        self._parameters = ParameterRecorder(tape, model)
        self._given_optimizers, self._optimizers = list(optimizers), list[OptimizerRecorder]()
        self._unwrapped: list[OptimizerRecorder] = []
        self._series = Series()
        self._hooks = Hooks(self._enter, self._leave, tape.note)
        self._cleanup = ExitStack()
        self._open = self._closed = self._explicit = self._step_open = False
        self._num_steps = 0
        self._stepped = False
        self._crew = gather_crew(
            tape, model, self._calls, self._ledger, self._series, taps=taps, switch=switch, facts=facts
        )
        self._passes = PassRecorder(tape, self._ledger, self._series, self._parameters, self._crew.scales)
        self._begun: set[int] = set()

    @property
    def notes(self) -> Sequence[str]:
        """What was not recorded so far, and why."""
        return tuple(self._tape.notes)

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
        for optimizer in self._given_optimizers:
            self._wrap(self.watch_optimizer(optimizer))

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            self._close()
        except PrecisionAlignError as problem:
            if error is None:
                raise
            warnings.warn(f"the dump could not be closed properly: {problem}", RuntimeWarning, stacklevel=2)

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
            self._tape.sink.close(replace(self._info, notes=tuple(self._tape.notes)))

    def _note_unseen(self) -> None:
        if not self._tape.num_calls:
            self._tape.note(NOTHING_CALLED)
            return
        for note in describe_silent(self._model, self._hooks.uncalled(self._calls.called)):
            self._tape.note(note)

    @contextlib.contextmanager
    def step(self, number: Optional[int] = None) -> Iterator[Recorder]:
        """One training step; ``number`` is the framework's global step, by default one more than the last."""
        if not self._open:
            raise UsageError("step() works inside the session: with capture(...) as recorder, with recorder.step()")
        if number is not None and (not isinstance(number, int) or number < 0):
            raise UsageError(f"a step is a number from 0 on, not {number!r}")
        self._end_step()
        self._begin_step(self._tape.clock.step + 1 if number is None else number)
        self._explicit = True
        try:
            yield self
        finally:
            self._explicit = False
            self._end_step()

    def log(self, **values: Any) -> None:
        """Points of scalar series at this step, for example ``log(loss=loss)``: numbers or one-element tensors."""
        for name, value in values.items():
            self._series.add(name, self._tape.clock.batch, read_number(name, value), given=True)

    def save(self, name: str, tensor: torch.Tensor) -> None:
        """Record a tensor of your own under a name, and the gradient that arrives at it.

        The same name again in a step counts as its next call. Raises UsageError for what is no name and tensor.
        """
        check_saved(name, tensor)
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

    def watch_optimizer(self, optimizer: Any) -> OptimizerRecorder:
        """Record the steps of one more optimizer; whoever calls this reports them: see before_step, after_step."""
        recorder = OptimizerRecorder(self._tape, self._model, optimizer, len(self._optimizers))
        self._optimizers.append(recorder)
        self._passes.expects_optimizer = True
        described = {"class": recorder.kind, "groups": recorder.describe_groups()}
        self._info = replace(self._info, optimizer={**self._info.optimizer, recorder.scope: described})
        return recorder

    # What the steps consist of

    def _begin_step(self, number: int) -> None:
        clock = self._tape.clock
        clock.step, clock.micro, clock.identities = number, -1, itertools.count()
        wanted = self._open and self._tape.plan.wants_step(number) and self._crew.wants_step()
        clock.recording = wanted and not self._came_before(number)
        self._step_open, self._stepped, clock.stepping = True, False, False
        self._passes.start_step()
        self._crew.start_step()
        self._num_steps += 1
        if not clock.recording:
            return
        self._hooks.attach(self._model)
        self._calls.start_step()
        for recorder in self._optimizers:
            recorder.start_step()
        if "parameters" in self._tape.plan.sources:
            self._tape.guard("parameters", self._parameters.record_start)

    def _came_before(self, number: int) -> bool:
        known = number in self._begun
        if known:
            self._tape.note(f"step {number} came more than once: only its first time is recorded")
        self._begun.add(number)
        return known

    def _end_step(self) -> None:
        if not self._step_open:
            return
        self._step_open = False
        self._ledger.close_step()
        self._passes.finish_step()
        if self._passes.passed and self._tape.clock.recording and "optimizer" in self._tape.plan.sources:
            for recorder in self._unwrapped:
                self._tape.guard("an optimizer step", recorder.record_late)
        self._crew.finish_step()
        clock = self._tape.clock
        for micro, name, value in self._series.finish():
            self._tape.point(Point(clock.step, micro, name, value))
        clock.recording = False
        self._tape.end_step(clock.step)

    def _enter(self, module: torch.nn.Module, scope: str, args: Any, kwargs: Any) -> None:
        clock = self._tape.clock
        if (
            not self._open
            or not (clock.recording or self._may_begin(scope))
            or torch._C._get_tracing_state() is not None
        ):
            return
        try:
            if self._calls.is_outermost(scope):
                self._begin_forward(scope)
                if scope == "":
                    self._crew.start_batch(args, kwargs)
            if clock.recording:
                self._calls.enter(module, scope, args, kwargs)
        except Exception as error:
            self._tape.excuse(f"the call of {scope!r}", error)

    def _leave(self, module: torch.nn.Module, scope: str, output: Any) -> None:
        if not self._open or not self._tape.clock.recording:
            return
        try:
            self._calls.leave(module, output)
        except Exception as error:
            self._tape.excuse(f"the outputs of {scope!r}", error)

    def _may_begin(self, scope: str) -> bool:
        return scope == "" or (not self._explicit and (not self._step_open or self._passes.passed))

    def _begin_forward(self, scope: str) -> None:
        """An outermost forward: the next micro-batch, or without ``step()`` the next step."""
        clock = self._tape.clock
        if not self._explicit and (not self._step_open or self._starts_anew(scope)):
            self._end_step()
            self._begin_step(clock.step + 1)
        if scope == "":
            clock.micro += 1
            self._passes.start_batch()

    def _starts_anew(self, scope: str) -> bool:
        if self._accumulates:
            return self._stepped or not (self._optimizers or self._passes.passed)
        return scope == "" or self._passes.passed

    # Backward passes and optimizer steps

    def _wrap(self, recorder: OptimizerRecorder) -> None:
        wrapper = StepWrapper(
            recorder.optimizer,
            lambda: self.before_step(recorder),
            lambda error: self.after_step(recorder, error),
        )
        if wrapper.install():
            self._cleanup.callback(wrapper.remove)
        else:
            self._unwrapped.append(recorder)
            self._tape.note(f"{recorder.scope} takes no attributes: its update was taken at the end of recorder.step()")

    def before_step(self, recorder: OptimizerRecorder) -> None:
        """A watched optimizer is about to step."""
        self._passes.passed = self._tape.clock.stepping = True
        if self._tape.clock.recording and "optimizer" in self._tape.plan.sources:
            self._tape.guard("an optimizer step", recorder.before)

    def after_step(self, recorder: OptimizerRecorder, error: str = "") -> None:
        """It has stepped, or raised ``error``."""
        self._stepped, self._tape.clock.stepping = True, False
        if self._tape.clock.recording and "optimizer" in self._tape.plan.sources:
            self._tape.guard("an optimizer step", recorder.after, error)
            self._passes.leave_to_optimizer()
