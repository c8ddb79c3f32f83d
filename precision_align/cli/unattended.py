"""A capture that no command started: configured by a file, for as long as the program runs, never in its way."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.util
import os
import platform
import sys
import tempfile
import traceback
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

from precision_align.core.errors import PrecisionAlignError
from precision_align.recording.arming import FAILED, RECORDING, leave_word
from precision_align.recording.placement import read_placement

if TYPE_CHECKING:
    from precision_align.recording.watching import LaunchOptions


def start_unattended(path: str, below: bool) -> Optional[Attendance]:
    """Capture what this program will train, as the file at ``path`` says; ``below``: it is a child of one that waits.

    Never raises: what goes wrong is said on stderr and in a log beside the file, and the program goes on. Returns the
    watch that has begun, None where it could not.
    """
    try:
        from precision_align.cli.configuration import read_configuration

        attendance = Attendance(read_configuration(path), Log(path), below)
        attendance.begin()
        return attendance
    except Exception as error:
        leave_word(FAILED)
        Log(path).complain("nothing will be captured", error)
        return None


class Log:
    """Where an unattended capture says what went wrong: stderr, and PATH.rankNNNNN.log beside its configuration."""

    def __init__(self, path: str) -> None:
        self._path = path

    def complain(self, what: str, error: Optional[BaseException] = None) -> None:
        """Say it loudly; a log that cannot be written is no reason to stop either."""
        with contextlib.suppress(Exception):
            reason = "" if error is None else f": {error if str(error) else type(error).__name__}"
            text = f"precision-align: {what}{reason} (training goes on)"
            # what is not an error of ours on purpose is a bug of ours: its place is worth having
            trace = "" if error is None or isinstance(error, PrecisionAlignError) else self._format(error)
            place = self._write(f"{text}\n{trace}")
            say(f"{text}{f'; see {place}' if place else ''}")

    @staticmethod
    def _format(error: BaseException) -> str:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))

    def _write(self, text: str) -> str:
        rank = read_placement()[0] or 0
        name = f"{Path(self._path).name}.rank{rank:05d}.log"
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        for folder in (Path(self._path).parent, Path(tempfile.gettempdir())):
            with contextlib.suppress(OSError):
                with (folder / name).open("a", encoding="utf-8") as file:
                    file.write(f"{now} {platform.node()} process {os.getpid()}: {text}")
                return str(folder / name)
        return ""


def say(text: str) -> None:
    """One line on stderr, which may be closed."""
    with contextlib.suppress(Exception):
        print(text, file=sys.stderr, flush=True)


class Attendance:
    """The watch over one program, from torch's import to its exit."""

    def __init__(self, options: LaunchOptions, log: Log, below: bool) -> None:
        from precision_align.recording.watching import Launch, Watch

        self._options, self._log, self._below = options, log, below
        self._launch = Launch(started=True)
        self._watch = Watch(options, self._launch, below, self._change)
        self._process = 0

    def begin(self) -> None:
        """Wait for the models' calls."""
        self._watch.__enter__()
        self._end_with_the_program()

    def _change(self) -> None:
        """The session has begun, or could not."""
        if self._launch.failure is not None:
            leave_word(FAILED)
            self._log.complain("nothing will be captured", self._launch.failure)
            return
        leave_word(RECORDING)
        self._end_with_the_program()

    def _end_with_the_program(self) -> None:
        # Callbacks run in reverse order, and the writer's own closes a sink that it finds open: ours is to be before.
        atexit.unregister(self.finish)
        atexit.register(self.finish)
        self._process = os.getpid()
        if multiprocessing.parent_process() is not None:  # such a process ends without calling atexit's
            multiprocessing.util.Finalize(None, self.finish, exitpriority=100)

    def finish(self) -> None:
        """Close the dump and say what became of it. Once only, and not in a fork."""
        if os.getpid() != self._process:
            return
        self._process = 0
        try:
            self._close()
        except Exception as error:
            self._log.complain("the dump could not be closed", error)

    def _close(self) -> None:
        from precision_align.core.errors import NothingCaptured

        error: Any = getattr(sys, "last_value", None)  # what ended the program, if anything has
        with contextlib.suppress(NothingCaptured):  # told below
            self._watch.__exit__(
                type(error) if error is not None else None, error, getattr(error, "__traceback__", None)
            )
        recorder = self._launch.recorder
        if recorder is None:
            if self._launch.trained and self._launch.failure is None and not self._below:
                self._log.complain(f"nothing was captured: {self._explain()}")
        elif recorder.emptiness or recorder.lost:
            self._log.complain(f"nothing was captured: {recorder.emptiness or recorder.lost}")
        elif not read_placement()[0]:
            steps, records = recorder.num_steps, recorder.num_records
            say(f"precision-align: {self._options.path}: {steps} steps, {records} tensors of this rank")

    def _explain(self) -> str:
        if self._options.model:
            return f"{self._options.model} did not exist when a module was called"
        return "an optimizer has stepped, but no call of a module was seen; compiled code (torch.compile) hides calls"
