"""The command ends its process at once, and loses nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAD = """
import atexit, sys, threading, time
from precision_align.cli.leaving import leave
atexit.register(print, "exit handler")
sys.stdout.write("output")
"""


@pytest.mark.parametrize("torch", ["", "import types; sys.modules['torch'] = types.ModuleType('torch')\n"])
@pytest.mark.parametrize("status", [0, 3])
def test_threads_handlers_and_output_come_to_their_end(torch: str, status: int) -> None:
    code = (
        f"{HEAD}{torch}threading.Thread(target=lambda: (time.sleep(0.2), print(' thread'))).start()\nleave({status})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (status, "output thread\nexit handler\n", "")


def test_the_program() -> None:
    command = [sys.executable, "-m", "precision_align", "compare", "nowhere", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "nowhere" in done.stderr
