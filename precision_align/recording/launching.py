"""Run an unchanged training script and capture the model that it trains."""

from __future__ import annotations

import functools
import os
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Callable, Optional

from precision_align.core.errors import UsageError
from precision_align.recording.eagerness import check_eager
from precision_align.recording.environment import find_rank
from precision_align.recording.forcing import open_reference
from precision_align.recording.plan import make_plan
from precision_align.recording.watching import Launch, LaunchOptions, Watch
from precision_align.storage.counting import CountingSink, StepCounted
from precision_align.storage.layout import name_rank


def run_script(argv: Sequence[str], options: LaunchOptions, launch: Optional[Launch] = None) -> Launch:
    """Run ``argv`` (a script and its arguments, or "-m", a module name and its arguments) as ``__main__``.

    The first outermost call of a module starts the session (see ``watching``); a training step ends when the optimizers
    that hold its parameters have stepped (see ``cycles``; without gradients: each forward of the first model). Whatever
    the script raises, SystemExit included, is raised again after the dump is closed; ``launch``, if given, then tells
    what was recorded. Raises UsageError where there is no such script and for options that do not fit.
    """
    check_options(options)
    run, arguments, folder = _find_program(argv)
    if not options.dry_run:
        check_folder(options)
    launch = Launch() if launch is None else launch
    launch.started = True
    if options.dry_run:
        launch.counted = CountingSink(_count_enough(options), options.limits.storage.weights_from)
    with suppress(StepCounted), _as_main(arguments, folder), _telling_of_exec(), Watch(options, launch):
        run()
    return launch


def check_options(options: LaunchOptions) -> None:
    """Say a mistake before the script runs. Raises UsageError, and what opening the reference raises."""
    make_plan(options.sources, options.payload, options.select, options.steps)
    options.limits.check()
    check_eager(options.eager)
    with ExitStack() as opened:
        options.limits.make_trigger(opened)
        options.limits.make_switch(opened)
        open_reference(options.force, 0, make_plan(options.sources), opened)
        options.begin.open(0, opened)
    if options.model is not None and not all(options.model.partition(":")):
        raise UsageError(f"--model takes MODULE:ATTRIBUTE, such as __main__:model, not {options.model!r}")


def check_folder(options: LaunchOptions) -> None:
    """Say now that the dump's folder, or the start pack's, is taken, not when the model is called, minutes later."""
    for folder in filter(None, (Path(options.path), options.begin.save)):
        own = folder / name_rank(find_rank()[0])
        taken = own.is_dir() and any(own.iterdir())
        if taken and not (options.overwrite or options.append):
            raise UsageError(f"{folder} already holds a dump: choose another folder, --overwrite or --append")


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


@contextmanager
def _telling_of_exec() -> Iterator[None]:
    """A script that replaces its own process leaves nobody who could say afterwards why there is no dump."""
    own, told = os.getpid(), False

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def replace_process(*args: Any) -> Any:
            nonlocal told
            if os.getpid() == own and not told:  # a fork is not recorded anyway; execvp tries each folder of PATH
                told = True
                sys.stderr.write(
                    "precision-align: the script replaces its process (os.exec): what follows is not recorded; "
                    "`capture -o DUMP -- python train.py`, with the word python, follows it\n"
                )
            return original(*args)

        return replace_process

    originals = {name: getattr(os, name) for name in ("execv", "execve")}  # the others call these
    for name, original in originals.items():
        setattr(os, name, wrap(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
