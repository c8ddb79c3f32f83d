"""The blocks of a page of documentation, and the process that runs them in the reader's folder.

A page's blocks are of five kinds. ``bash`` and ``python`` are run. A block whose first line is ``# NAME.py``,
``# NAME.toml`` is a file, written before anything of the page runs. ``yaml`` is a CI job: its ``run:`` lines are run. A
block without a language is not run here, and its first line says why: ``# needs ...`` or ``# 需要 ...``.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w.]+\.(?:py|toml))\n")
NEEDS = re.compile(r"# (?:needs|需要) \S")
RUN_LINE = re.compile(r"^ +(?:- )?run: (.+)$", re.MULTILINE)
RESULTS = "results.json"


@dataclass
class Block:
    """One block: ``line`` of its fence, ``statuses``: (command, exit status, the end of what it said)."""

    page: str
    line: int
    language: str
    text: str
    statuses: list[tuple[str, int, str]] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """ "file", "needs", or the language; "unknown" for what nobody would run."""
        if FILE.match(self.text):
            return "file"
        if not self.language:
            return "needs" if NEEDS.match(self.text) else "unknown"
        return self.language if self.language in ("bash", "python", "yaml") else "unknown"


def read_blocks(root: Path, page: str) -> Iterator[Block]:
    """All blocks of a page."""
    text = (root / page).read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(page, line, found["language"], textwrap.dedent(found["text"]))


def list_lines(block: Block) -> list[str]:
    """The commands of a bash block or of a CI job, continued lines joined, comments left out."""
    text = "\n".join(RUN_LINE.findall(block.text)) if block.kind == "yaml" else block.text
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


class Runner:
    """Runs blocks one after another, with the names that the pages take for granted."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def run(self, block: Block) -> None:
        """Fills ``statuses``."""
        if block.kind == "python":
            # there is no NPU here, and its numbers are not what is tested
            exec(compile(block.text, f"{block.page}:{block.line}", "exec"), dict(self._names))
            block.statuses.append(("python", 0, ""))
        elif block.kind in ("bash", "yaml"):
            for line in list_lines(block):
                block.statuses.append(self._run_line(line))

    def _run_line(self, line: str) -> tuple[str, int, str]:
        words = shlex.split(line.replace("-device npu", "-device cpu"), comments=True)
        program = words[0]
        if program == "precision-align":
            return (line, *_call_main(_make_room(words[1:])))
        if program == "pytest":
            return (
                line,
                *_capture(lambda: int(__import__("pytest").main(["-q", "-p", "no:cacheprovider", *words[1:]]))),
            )
        if program in ("set", "pip"):  # pip: the package under test is this checkout
            return line, 0, ""
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        return line, done.returncode, (done.stdout + done.stderr)[-2000:]


def _make_room(words: list[str]) -> list[str]:
    """The same command where another page has run it before."""
    if words[0] == "capture":
        words = ["capture", "--overwrite", *words[1:]]
    if words[0] in ("pack", "unpack", "collect"):
        shutil.rmtree(words[words.index("-o") + 1], ignore_errors=True)
    if "--save-start" in words:
        shutil.rmtree(words[words.index("--save-start") + 1], ignore_errors=True)
    return words


def _call_main(words: list[str]) -> tuple[int, str]:
    from precision_align.cli.app import main

    return _capture(lambda: main(words))


def _capture(call: Any) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = int(call())
    return status, said.getvalue()[-2000:]


def main(root: str, pages: list[str]) -> None:
    """Run the pages' blocks in this folder; what came of each goes to RESULTS as soon as it is known."""
    import prepare_guides

    runner = Runner(prepare_guides.prepare(lambda line: _call_main(shlex.split(line))))
    done: list[Block] = []
    for page in pages:
        blocks = list(read_blocks(Path(root), page))
        for block in blocks:
            name = FILE.match(block.text)
            if name:
                Path(name[1]).write_text(block.text.replace('.to("npu")', ""), encoding="utf-8")
        for block in blocks:
            runner.run(block)
            done.append(block)
        Path(RESULTS).write_text(json.dumps([asdict(block) for block in done]), encoding="utf-8")


if __name__ == "__main__":
    sys.path[:0] = [str(Path.cwd())]
    main(sys.argv[1], sys.argv[2:])
