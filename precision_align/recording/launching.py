"""Run an unchanged training script and capture the model that it trains."""

from __future__ import annotations

import functools
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from precision_align.core.errors import UsageError
from precision_align.recording.crew import Taps
from precision_align.recording.environment import find_rank, has_compiled
from precision_align.recording.forcing import open_reference
from precision_align.recording.limits import NO_LIMITS, Limits
from precision_align.recording.optimizers import OptimizerRecorder, parameter_groups, takes_closure
from precision_align.recording.plan import SOURCES, Payload, Select, Steps, make_plan
from precision_align.recording.recorder import Recorder
from precision_align.recording.session import start_recorder
from precision_align.storage.counting import CountingSink, StepCounted
from precision_align.storage.layout import name_rank


@dataclass(frozen=True)
class LaunchOptions:
    """What to capture of a script; as for :func:`~precision_align.recording.session.capture`.

    ``model``: "module:attribute" of the model ("__main__:model"), None for the first module with parameters that the
    script calls; ``dry_run``: write nothing, and end the script after its first two recorded steps (see
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
    dry_run: bool = False


# By then every model of the loop has had its turn; watching longer would cost every module call of the script.
_STEPS_WATCHED = 2


@dataclass
class Launch:
    """What became of a script: ``started`` or refused; ``recorder`` is None where no model was called; ``counted``:
    what a dry run saw.
    """

    started: bool = False
    recorder: Optional[Recorder] = None
    counted: Optional[CountingSink] = None


class _Watch:
    """Waits for the model's first call, then for optimizers that hold its parameters."""

    def __init__(self, options: LaunchOptions, launch: Launch) -> None:
        self._options, self._launch = options, launch
        self._stack = ExitStack()
        self._model: Optional[torch.nn.Module] = None
        self._known: dict[int, tuple[Any, OptimizerRecorder]] = {}
        self._replaced: Optional[Callable[..., Any]] = None
        self._replacement: Optional[Callable[..., Any]] = None
        self._taps = Taps(frozenset(options.sources))
        self._familiar: set[int] = set()
        self._others: list[torch.nn.Module] = []

    def __enter__(self) -> _Watch:
        self._taps.enter(self._stack, self._note)
        self._wait_for_call()
        for register, hook in (
            (register_optimizer_step_pre_hook, self._before_step),
            (register_optimizer_step_post_hook, self._after_step),
        ):
            self._stack.callback(register(hook).remove)
        return self

    def __exit__(self, *error: Any) -> Optional[bool]:
        self._stop_waiting()
        return self._stack.__exit__(*error)

    def _note(self, text: str) -> None:
        if self._launch.recorder is not None:
            self._launch.recorder.note(text)

    def _wait_for_call(self) -> None:
        original = torch.nn.Module.__call__

        @functools.wraps(original)
        def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._replaced is not None:
                self._consider(module)
            return original(module, *args, **kwargs)

        self._replaced, self._replacement = original, call
        torch.nn.Module.__call__ = call  # type: ignore[method-assign]

    def _stop_waiting(self) -> None:
        # where somebody has wrapped ours meanwhile it stays, and does nothing
        if self._replaced is not None and torch.nn.Module.__call__ is self._replacement:
            torch.nn.Module.__call__ = self._replaced  # type: ignore[method-assign]
        self._replaced = None

    def _consider(self, module: torch.nn.Module) -> None:
        """Start the session if this call is the model's; modules without parameters (transforms) are no models."""
        if self._launch.recorder is not None:
            self._name_other(self._launch.recorder, module)
            return
        model = _resolve(self._options.model) if self._options.model else module
        if model is None or next(model.parameters(), None) is None:
            return
        self._model = model
        self._familiar = {id(part) for part in model.modules()}
        options = self._options
        plan = make_plan(options.sources, options.payload, options.select, options.steps)
        recorder = start_recorder(
            model,
            options.path,
            plan,
            overwrite=options.overwrite,
            append=options.append,
            accumulates=True,
            limits=options.limits,
            sink=self._launch.counted,
            taps=self._taps,
            force=options.force,
        )
        self._launch.recorder = self._stack.enter_context(recorder)

    def _name_other(self, recorder: Recorder, module: torch.nn.Module) -> None:
        """A module is called that is no part of the captured model: a second network, which is not recorded."""
        if recorder.num_steps > _STEPS_WATCHED or has_compiled():
            self._stop_waiting()
        if id(module) in self._familiar:
            return
        parts = {id(part) for part in module.modules()}
        if not parts.isdisjoint(self._familiar) or next(module.parameters(), None) is None:
            return  # a wrapper around the model, or part of it that came later, or no network at all
        self._familiar |= parts
        self._others.append(module)  # its parts keep their ids while it lives
        recorder.note(
            f"the script also calls a {type(module).__name__} that is no part of the captured "
            f"{type(self._model).__name__}: it is not recorded; choose with --model, or capture both as parts of one "
            "module"
        )

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
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
            recorder.after_step(self._known[id(optimizer)][1])

    def _holds_parameters(self, optimizer: Any) -> bool:
        mine = {id(parameter) for parameter in self._model.parameters()} if self._model is not None else set()
        return any(id(parameter) in mine for group in parameter_groups(optimizer) for parameter in group["params"])


def _resolve(name: str) -> Optional[torch.nn.Module]:
    """The module object behind "module:attribute", None while it does not exist yet."""
    module, _, attribute = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, torch.nn.Module) else None


def run_script(argv: Sequence[str], options: LaunchOptions, launch: Optional[Launch] = None) -> Launch:
    """Run ``argv`` (a script and its arguments, or "-m", a module name and its arguments) as ``__main__``.

    The first outermost call of a module starts the session; a step is what lies between two steps of an optimizer that
    holds its parameters (without one: a forward). Whatever the script raises, SystemExit included, is raised again
    after the dump is closed; ``launch``, if given, then tells what was recorded. Raises UsageError where there is no
    such script and for options that do not fit.
    """
    make_plan(options.sources, options.payload, options.select, options.steps)
    options.limits.check()
    with ExitStack() as opened:  # a mistake in them is to be said before the script runs
        options.limits.make_trigger(opened)
        options.limits.make_switch(opened)
        open_reference(options.force, 0, make_plan(options.sources), opened)
    if options.model is not None and not all(options.model.partition(":")):
        raise UsageError(f"--model takes MODULE:ATTRIBUTE, such as __main__:model, not {options.model!r}")
    run, arguments, folder = _find_program(argv)
    if not options.dry_run:
        _check_folder(options)
    launch = Launch() if launch is None else launch
    launch.started = True
    launch.counted = CountingSink(_count_enough(options)) if options.dry_run else None
    with suppress(StepCounted), _as_main(arguments, folder), _Watch(options, launch):
        run()
    return launch


def _count_enough(options: LaunchOptions) -> int:
    """Two steps where there are two: an optimizer has no state before its first."""
    steps = make_plan(options.sources, options.payload, options.select, options.steps).steps
    return 2 if steps is None else min(2, len(steps))


def _find_program(argv: Sequence[str]) -> tuple[Callable[[], Any], list[str], str]:
    """How to run it, its sys.argv, and the first entry of its sys.path."""
    words = list(argv)
    if not words or words == ["-m"]:
        raise UsageError("no script is given: end the command with -- script.py ARGUMENTS, or -- -m MODULE ARGUMENTS")
    if words[0] == "-m":
        return (
            functools.partial(runpy.run_module, words[1], run_name="__main__", alter_sys=True),
            words[1:],
            str(Path.cwd()),
        )
    script = Path(words[0])
    if not script.exists():
        raise UsageError(f"there is no script {words[0]!r} here ({Path.cwd()})")
    return functools.partial(runpy.run_path, str(script), run_name="__main__"), words, str(script.resolve().parent)


def _check_folder(options: LaunchOptions) -> None:
    """Say now that the dump's folder is taken, not when the model is called, minutes into the script."""
    own = Path(options.path) / name_rank(find_rank()[0])
    taken = own.is_dir() and any(own.iterdir())
    if taken and not (options.overwrite or options.append):
        raise UsageError(f"{options.path} already holds a dump: choose another folder, --overwrite or --append")


@contextmanager
def _as_main(arguments: list[str], folder: str) -> Iterator[None]:
    """sys.argv and sys.path as the script would find them."""
    argv, path = sys.argv[:], sys.path[:]
    sys.argv[:], sys.path[:] = arguments, [folder, *path]
    try:
        yield
    finally:
        sys.argv[:] = argv
        sys.path[:] = path
