"""Waits inside an unchanged script for its models' calls and its optimizers' steps, and runs the session on them."""

from __future__ import annotations

import functools
import os
import sys
import warnings
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Optional

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from precision_align.core.trees import class_name
from precision_align.recording.beginning import NO_BEGINNING, Beginning
from precision_align.recording.counters import find_counter
from precision_align.recording.crew import Taps
from precision_align.recording.hooks import is_compiling
from precision_align.recording.limits import NO_LIMITS, Limits
from precision_align.recording.masters import find_masters
from precision_align.recording.models import Models, name_model
from precision_align.recording.optimizers import OptimizerRecorder, parameter_groups, takes_closure
from precision_align.recording.origins import plain_attributes
from precision_align.recording.parameters import owned_parameters
from precision_align.recording.plan import SOURCES, Payload, Select, Steps, make_plan
from precision_align.recording.recorder import Recorder
from precision_align.recording.session import start_recorder
from precision_align.recording.structures import flatten_arguments
from precision_align.recording.swaps import Swap
from precision_align.recording.visits import Visit, divide
from precision_align.storage.counting import CountingSink


@dataclass(frozen=True)
class LaunchOptions:
    """What to capture of a script; as for :func:`~precision_align.recording.session.capture`.

    ``model``: "module:attribute" of the model ("__main__:model"), None for all outermost modules that the script calls;
    ``begin``: the start pack to write, or to begin from; ``swaps``: what is executed in another way; ``visit``: a
    budget for all of it; ``dry_run``: write nothing, and end the script after its first two recorded steps (see
    ``Launch.counted``).
    """

    path: str
    steps: Steps = None
    payload: Payload = "full"
    select: Select = None
    sources: Sequence[str] = SOURCES
    model: Optional[str] = None
    overwrite: bool = False
    append: bool = False
    limits: Limits = NO_LIMITS
    force: Optional[str] = None
    eager: bool = False
    dry_run: bool = False
    begin: Beginning = NO_BEGINNING
    visit: Optional[Visit] = None
    swaps: Sequence[Swap] = ()


@dataclass
class Launch:
    """What became of a script: ``started`` or refused; ``recorder`` is None where no model was called; ``counted``:
    what a dry run saw; ``failure``: why the session could not begin; ``trained``: an optimizer has stepped.
    """

    started: bool = False
    recorder: Optional[Recorder] = None
    counted: Optional[CountingSink] = None
    failure: Optional[Exception] = None
    trained: bool = False


class Watch:
    """Waits for models' first calls, and for optimizers that hold their parameters.

    The first outermost module with parameters that is called is the root of the session; others join it under the
    names of their variables. Where a later one holds the root (a part was tried out before training began), and no
    backward pass has come yet, the session starts anew with the whole.

    Whatever fails here or in the session, the script's run goes on: ``launch.failure`` has what kept the session from
    beginning (``on_change`` is called then, and when it has begun), notes tell the rest. ``below``: this is a child of
    the program that is to be captured, recorded only if it trains.
    """

    def __init__(
        self,
        options: LaunchOptions,
        launch: Launch,
        below: bool = False,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._options, self._launch, self._below, self._on_change = options, launch, below, on_change
        self._path = str(Path(options.path).absolute())  # the script may change the working directory
        self._stack, self._session = ExitStack(), ExitStack()
        self._models: Optional[Models] = None
        self._known: dict[int, tuple[Any, OptimizerRecorder]] = {}
        self._replaced: Optional[Callable[..., Any]] = None
        self._replacement: Optional[Callable[..., Any]] = None
        self._taps = Taps(frozenset(options.sources), options.begin.is_asked_for, options.swaps)
        # id -> module, which keeps the id from being used again
        self._familiar: dict[int, torch.nn.Module] = {}
        self._losses: dict[Optional[tuple[str, str]], str] = {}

    def __enter__(self) -> Watch:
        self._taps.enter(self._stack, self._note)
        self._wait_for_calls()
        for register, hook in (
            (register_optimizer_step_pre_hook, self._before_step),
            (register_optimizer_step_post_hook, self._after_step),
        ):
            self._stack.callback(register(hook).remove)
        _follow_forks(self)
        return self

    def leave_to_parent(self) -> None:
        """This process was forked: what its parent records is not for it, and it may train on its own."""
        self._below = True
        if self._launch.recorder is not None:
            self._launch.recorder.fall_silent()
            self._stop_waiting()

    def __exit__(self, *error: Any) -> Optional[bool]:
        self._stop_waiting()
        try:
            with warnings.catch_warnings():  # the report at the program's end says it
                warnings.filterwarnings(
                    "ignore", message="the (dump holds no tensors|start pack:)", category=RuntimeWarning
                )
                self._session.__exit__(*error)
        finally:
            self._stack.close()
        return None

    def _note(self, text: str) -> None:
        if self._launch.recorder is not None:
            self._launch.recorder.note(text)

    def _wait_for_calls(self) -> None:
        # Not Module.__call__ itself, which frameworks and compilers check by identity; that calls this one.
        original: Callable[..., Any] = torch.nn.Module._call_impl

        @functools.wraps(original)
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not is_compiling() and self._replaced is not None and id(module) not in self._familiar:
                self._guard("a model that was called", self._consider, module, (args, kwargs))
            return original(module, *args, **kwargs)

        self._replaced, self._replacement = original, call
        torch.nn.Module._call_impl = call  # type: ignore[method-assign, assignment]

    def _stop_waiting(self) -> None:
        # where somebody has wrapped ours meanwhile it stays, and does nothing
        if self._replaced is not None and torch.nn.Module._call_impl is self._replacement:
            torch.nn.Module._call_impl = self._replaced  # type: ignore[method-assign]
        self._replaced = None

    def _guard(self, what: str, action: Callable[..., Any], *arguments: Any) -> None:
        """Our own work inside the script's: an error of ours never becomes the script's."""
        try:
            action(*arguments)
        except Exception as error:
            if self._launch.recorder is not None:
                self._launch.recorder.note(f"{what}: not recorded, {type(error).__name__}: {error}")
                return
            self._stop_waiting()
            self._launch.failure = error
            self._on_change()

    def _consider(self, module: torch.nn.Module, arguments: Any) -> None:
        """A module is called that the session does not know."""
        recorder = self._launch.recorder
        if torch.utils.data.get_worker_info() is not None:
            return
        if recorder is None and self._below and not _trains(module):
            return
        if recorder is None or self._models is None:
            model = _resolve(self._options.model) if self._options.model else module
            if model is not None and _has_parameters(model):
                self._begin(model)
        elif self._options.model:
            self._stop_waiting()
        elif recorder.is_inside or getattr(module, "_is_replica", False):
            return  # a part that came later: the next step's hooks find it
        elif _has_parameters(module) or _takes_gradients(arguments):
            self._join(recorder, self._models, module)

    def _begin(self, model: torch.nn.Module) -> None:
        self._models = Models(model)
        self._familiarize(model)
        options = _divide(self._options, self._models)
        recorder = start_recorder(
            self._models,
            self._path,
            make_plan(options.sources, options.payload, options.select, options.steps),
            overwrite=options.overwrite,
            append=options.append,
            accumulates=True,
            limits=options.limits,
            sink=self._launch.counted,
            taps=self._taps,
            force=options.force,
            eager=options.eager,
            begin=options.begin if self._launch.counted is None else NO_BEGINNING,
            norms=options.visit is not None,
            find_step=find_counter(model),
            swaps=options.swaps,
        )
        self._launch.recorder = self._session.enter_context(recorder)
        self._on_change()

    def _join(self, recorder: Recorder, models: Models, module: torch.nn.Module) -> None:
        holds_root = any(part is models.first for part in module.modules())
        if holds_root and not recorder.has_learned and not self._options.append:
            self._begin_anew(module)
            return
        # losses are often made anew at every step: equal ones take turns in one scope
        kind = None if _has_parameters(module) else (class_name(type(module)), str(plain_attributes(module)))
        before = self._losses.get(kind)
        if before is not None:
            self._familiar.pop(id(models.get(before)), None)
        scope = recorder.add_model(name_model(module), module, before)
        self._familiarize(module)
        if kind is not None:
            self._losses[kind] = scope

    def _begin_anew(self, module: torch.nn.Module) -> None:
        self._session.close()
        self._session = ExitStack()
        self._options = replace(self._options, overwrite=True)
        if self._launch.counted is not None:
            self._launch.counted = CountingSink(self._launch.counted.enough, self._options.limits.storage.weights_from)
        self._launch.recorder = None
        self._begin(module)

    def _familiarize(self, module: torch.nn.Module) -> None:
        self._familiar.update((id(part), part) for part in module.modules())

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._launch.trained = True
        self._guard("an optimizer step", self._begin_update, optimizer, args, kwargs)

    def _begin_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        recorder = self._launch.recorder
        if recorder is None:
            return
        if id(optimizer) not in self._known and self._holds_parameters(optimizer):
            self._known[id(optimizer)] = (optimizer, recorder.watch_optimizer(optimizer))
        if id(optimizer) in self._known:
            recorder.before_step(self._known[id(optimizer)][1], takes_closure(args, kwargs))

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        recorder = self._launch.recorder
        if recorder is not None and id(optimizer) in self._known:
            self._guard("an optimizer step", recorder.after_step, self._known[id(optimizer)][1])

    def _holds_parameters(self, optimizer: Any) -> bool:
        owned = owned_parameters(self._models) if self._models is not None else []
        held = [parameter for group in parameter_groups(optimizer) for parameter in group["params"]]
        mine = {id(item.tensor) for item in owned}
        return any(id(parameter) in mine for parameter in held) or bool(find_masters(owned, held))


def _follow_forks(watch: Watch) -> None:
    found = weakref.ref(watch)

    def tell() -> None:
        alive = found()
        if alive is not None:
            alive.leave_to_parent()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=tell)


def _trains(module: torch.nn.Module) -> bool:
    """Whether this call is one of a training loop, not of a program that uses a model."""
    learns = any(parameter.requires_grad for parameter in module.parameters())
    return learns and module.training and torch.is_grad_enabled()


def _divide(options: LaunchOptions, model: torch.nn.Module) -> LaunchOptions:
    """The options with a visit's budget shared out, now that the model is known; says what fits."""
    if options.visit is None:
        return options
    first = min(make_plan(steps=options.steps).steps or [0])
    division = divide(model, options.visit.budget_bytes, first)
    options.visit.tell("\n".join(division.lines()))
    return replace(
        options,
        begin=replace(options.begin, allowance=division.allowance),
        limits=replace(options.limits, budget_bytes=division.dump_bytes),
    )


def _has_parameters(module: torch.nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _takes_gradients(arguments: Any) -> bool:
    """Whether something of the model's making goes in: then a module without parameters is a loss, no transform."""
    leaves = flatten_arguments(arguments)[1]
    return any(tensor.requires_grad and not tensor.is_leaf for _, tensor in leaves)


def _resolve(name: str) -> Optional[torch.nn.Module]:
    """The module object behind "module:attribute", None while it does not exist yet."""
    module, _, attribute = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, torch.nn.Module) else None
