"""The compiled kernel's library: built once, kept, never an error. Real compilers, real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from precision_align.numerics import building
from precision_align.numerics.compiled import load_compiled

pytestmark = pytest.mark.skipif(load_compiled() is None, reason="no C compiler here")

ROOT = Path(__file__).parents[2]
SCRIPT = """
import numpy as np
from precision_align.numerics.kernels import kernel_name
from precision_align.numerics.metrics import measure
print(kernel_name(), measure(np.array([1.0, 2.0]), np.array([1.0, 2.5])).max_abs)
"""


def run(**environment):
    """(kernel, stderr) in a process with nothing in its environment but this."""
    command = [sys.executable, "-W", "error", "-c", SCRIPT]
    done = subprocess.run(command, env={"PYTHONPATH": str(ROOT), **environment}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    name, value = done.stdout.split()
    assert value == "0.5"
    return name, done.stderr


def libraries(folder):
    return sorted(folder.glob("precision-align/*.so"))


def test_built_once_and_used_again(tmp_path):
    assert run(PATH=os.environ["PATH"], XDG_CACHE_HOME=str(tmp_path)) == ("compiled", "")
    (library,) = libraries(tmp_path)
    before = library.stat()
    assert before.st_mode & 0o077 == 0
    assert run(PATH=os.environ["PATH"], XDG_CACHE_HOME=str(tmp_path)) == ("compiled", "")
    assert [(path, path.stat().st_mtime_ns) for path in libraries(tmp_path)] == [(library, before.st_mtime_ns)]
    assert [path.name for path in library.parent.iterdir()] == [library.name]  # nothing half-made is left


def test_home_is_used_without_xdg(tmp_path):
    assert run(PATH=os.environ["PATH"], HOME=str(tmp_path))[0] == "compiled"
    assert len(libraries(tmp_path / ".cache")) == 1


def test_two_processes_at_once(tmp_path):
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", SCRIPT]
    started = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate()[0].split() for process in started] == [["compiled", "0.5"]] * 3
    assert len(libraries(tmp_path)) == 1


def test_no_compiler_is_no_error(tmp_path):
    name, errors = run(PATH=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    assert (name != "compiled", errors) == (True, "")


def test_a_compiler_that_fails_is_asked_once(tmp_path):
    calls = tmp_path / "calls"
    compiler = tmp_path / "bin" / "cc"
    compiler.parent.mkdir()
    compiler.write_text(f"#!/bin/sh\necho x >> {calls}\necho broken >&2\nexit 1\n")
    compiler.chmod(0o755)
    for _ in range(2):
        name, errors = run(PATH=str(compiler.parent), XDG_CACHE_HOME=str(tmp_path / "cache"))
        assert (name != "compiled", errors) == (True, "")
    assert len(calls.read_text().split()) == len(building._TRIES)
    (failed,) = (tmp_path / "cache" / "precision-align").glob("*.failed")
    assert "broken" in failed.read_text()


def test_a_compiler_that_writes_nonsense_is_no_error(tmp_path):
    compiler = tmp_path / "bin" / "cc"
    compiler.parent.mkdir()
    compiler.write_text('#!/bin/sh\nfor name; do last="$name"; done\necho nonsense > "$last"\n')
    compiler.chmod(0o755)
    name, errors = run(PATH=str(compiler.parent), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (name != "compiled", errors) == (True, "")


def test_no_cache_folder_is_no_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    name, errors = run(PATH=os.environ["PATH"], XDG_CACHE_HOME=str(tmp_path / "file"))
    assert (name != "compiled", errors) == (True, "")


def test_a_library_that_others_can_write_is_not_loaded(tmp_path):
    environment = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path)}
    assert run(**environment)[0] == "compiled"
    libraries(tmp_path)[0].chmod(0o777)
    assert run(**environment)[0] != "compiled"


def test_another_cpu_has_another_library(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert building.load_library() is not None
    monkeypatch.setattr(building, "_describe_cpu", lambda: "another CPU")
    assert building.load_library() is not None
    assert len(libraries(tmp_path)) == 2
