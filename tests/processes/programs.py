"""``run_python``: a program in a process of its own, without paying for the import of torch again.

``run_python("-m", "precision_align", "show", dump)`` is ``subprocess.run([sys.executable, ...], capture_output=True,
text=True)``, but the process is forked from a server that has imported the packages of others (PRELOADED) and nothing
of ours: our modules are imported afresh by each program, which has its own arguments, folder, environment, streams,
umask and module ``__main__``, runs its exit handlers and ends with Python's status. One server serves one test process.

It doesn't show what a process does before its first line, so for that tests start a real one with ``subprocess``: the
time and order of imports, options of the interpreter (``-W``, ``-X``), variables that are read while it or torch starts
(PYTHONHASHSEED, PYTHONUTF8, PYTHONWARNINGS, LD_PRELOAD), encodings, closed or full streams, signals, and what happens
while modules are torn down. Its programs compute in one thread.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = ("torch", "torch._dynamo", "h5py", "jinja2")  # the second: torch loads it at the first gradient
TIMEOUT = 300


def run_python(
    *words: object, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What ``python words`` leaves behind; ``words``: as Python's own, from ``-m``, ``-c`` or a script on.

    ``env``: the whole environment; default: this process's, with this checkout first in PYTHONPATH.
    """
    arguments = [str(word) for word in words]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        streams = [out.fileno(), err.fileno()]
        status = _Server.start().run(arguments, cwd or Path.cwd(), env or make_environment(), streams)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", "replace"))
    return subprocess.CompletedProcess([sys.executable, *arguments], status, *texts)


def make_environment(**more: str) -> dict[str, str]:
    """This process's environment with this checkout importable, one thread, UTF-8, and ``more``."""
    paths = [more.pop("PYTHONPATH", ""), str(ROOT), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    return {**os.environ, "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", **more, "PYTHONPATH": path}


class _Server:
    """This process's end of the socket to the server."""

    def __init__(self) -> None:
        self._socket, other = socket.socketpair()
        environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        with other:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(other.fileno())],
                pass_fds=[other.fileno()],
                env={**environment, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
            )
        self._socket.settimeout(TIMEOUT)
        self._file = self._socket.makefile("r", encoding="utf-8")
        atexit.register(self._stop)

    @classmethod
    @functools.cache
    def start(cls) -> _Server:
        return cls()

    def run(self, words: list[str], folder: Path, environment: dict[str, str], streams: list[int]) -> int:
        """The exit status of one program; negative: the signal that ended it."""
        umask = os.umask(0)
        os.umask(umask)
        request = {"words": words, "folder": str(folder), "environment": environment, "umask": umask}
        data = json.dumps(request).encode()
        socket.send_fds(self._socket, [len(data).to_bytes(8, "big")], streams)
        self._socket.sendall(data)
        pid = int(self._file.readline())
        try:
            return int(self._file.readline())
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(words, TIMEOUT) from None

    def _stop(self) -> None:
        self._file.close()
        self._socket.close()
        self._process.wait(TIMEOUT)


def serve(descriptor: int) -> dict[str, Any]:
    """Forks a process for every request. Returns the request, in the forked process; ends with the socket."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):  # the offline half's tests run without torch
            importlib.import_module(name)
    gc.freeze()
    connection = socket.socket(fileno=descriptor)
    while True:
        head, streams, _, _ = socket.recv_fds(connection, 8, 2)
        if not head:
            sys.exit()
        request: dict[str, Any] = json.loads(connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL))
        assert len([*Path("/proc/self/task").iterdir()]) == 1, "a fork keeps one thread only"
        pid = os.fork()
        if not pid:
            connection.close()
            for number, stream in enumerate(streams, 1):
                os.dup2(stream, number)
                os.close(stream)
            return request
        for stream in streams:
            os.close(stream)
        connection.sendall(f"{pid}\n".encode())
        connection.sendall(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n".encode())


def enter(request: dict[str, Any]) -> None:
    """Makes this process what Python would have made of it."""
    os.chdir(request["folder"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environment"])
    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    encoding = encoding or "utf-8"
    sys.stdin = sys.__stdin__ = os.fdopen(0, encoding=encoding, errors=errors or "strict")
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", encoding=encoding, errors=errors or "strict")
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, encoding=encoding, errors="backslashreplace")
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # Python's own generator sees to it itself
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    shadowing = [name for name in PRELOADED for path in paths if Path(path, f"{name}.py").exists()]
    assert not shadowing, f"a module instead of {shadowing} needs a real process"
    sys.path[:1] = paths  # the first is this file's folder
    sys.modules["__main__"] = types.ModuleType("__main__")


def run_main(words: list[str]) -> None:
    """The program, in the module ``__main__``."""
    kind, *rest = words
    names = vars(sys.modules["__main__"])
    if kind == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv[:] = rest
        runpy._run_module_as_main(rest[0])  # what Python itself calls; run_module would make a second __main__
    elif kind == "-c":
        sys.path.insert(0, "")
        sys.argv[:] = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), names)
    else:
        assert not kind.startswith("-"), f"{kind}: options of the interpreter need a real process"
        sys.path.insert(0, str(Path(kind).resolve().parent))
        sys.argv[:] = words
        names["__file__"] = kind
        exec(compile(Path(kind).read_bytes(), kind, "exec"), names)


def run_to_end(words: list[str]) -> int:
    """Exit status of the program after its threads, exit handlers and last output, as the interpreter ends it.

    Only the tearing down of modules is left out: that of torch costs more than most programs here.
    """
    status = 0
    try:
        run_main(words)
    except SystemExit as stop:
        status = stop.code & 0xFF if isinstance(stop.code, int) else bool(stop.code)
        if status and not isinstance(stop.code, int):
            print(stop.code, file=sys.stderr)
    except BaseException as error:
        status = 1
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next  # the program's own frames only
        error.__traceback__ = trace
        sys.excepthook(type(error), error, trace)
    threading._shutdown()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        status = 120  # Python's own for output that could not be written
    return status


if __name__ == "__main__":
    request = serve(int(sys.argv[1]))
    enter(request)
    os._exit(run_to_end(request["words"]))
