"""One comparison on several machines: each measures a share of it, and the last step puts the shares together.

A part is a file ``OUTPUT.parts/2-of-8.jsonl`` with what its share measured and replayed (see
:mod:`~precision_align.comparison.journals`). Putting together is the comparison itself, which finds all that is slow
already done: the result is that of one machine, bit for bit. Parts know what they are parts of by the hashes of both
dumps, not by paths: they may be made on machines that see the dumps elsewhere.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precision_align import __version__
from precision_align.alignment.renaming import read_renames
from precision_align.comparison.engine import Engine, Progress
from precision_align.comparison.journals import Journal
from precision_align.core.errors import DumpDamaged, UsageError
from precision_align.numerics.kernels import kernel_name
from precision_align.storage.base import Dump
from precision_align.storage.hashing import digest_bytes
from precision_align.storage.opening import open_side
from precision_align.workflows.comparing import merge_ranks
from precision_align.workflows.resuming import find_version

SUFFIX = ".parts"


@dataclass(frozen=True)
class Shard:
    """The ``index``-th (from 1) of ``count`` shares. ``str`` gives "2/8"."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @property
    def file(self) -> str:
        """The name of its part."""
        return f"{self.index}-of-{self.count}.jsonl"


@dataclass(frozen=True)
class Job:
    """What is compared: both sides (``reference`` may be None), the reference's code, the rule of foreign names, the
    layout file of a candidate whose ranks are merged, and the rename file.
    """

    reference: str | None
    candidate: str
    replay: Any = None
    naming: Any = None
    layout: Any = None
    rename: Any = None

    def open(self) -> tuple[Dump | None, Dump]:
        """Both sides. Raises DumpError."""
        reference = None if self.reference is None else open_side(self.reference, self.naming)
        candidate = open_side(self.candidate, self.naming)
        return reference, merge_ranks(reference, candidate, self.layout) or candidate

    def identify(self, reference: Dump | None, candidate: Dump) -> str:
        """The same for the same tensors, code and versions wherever they lie."""
        sides = [None if side is None else _identify(side) for side in (reference, candidate)]
        versions = [__version__, *sys.version_info[:2], *(find_version(name) for name in ("torch", "numpy"))]
        known = {"sides": sides, "versions": versions, "kernel": kernel_name(), "code": _identify_code(self.replay)}
        known["renames"] = read_renames(self.rename)
        return digest_bytes(json.dumps(known).encode())


def parse_shard(text: str) -> Shard:
    """The shard of "2/8". Raises UsageError."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise UsageError(f"--shard {text!r}: write I/N, such as 2/8 for the second of eight shares")
    return Shard(int(index), int(count))


def find_folder(output: str | Path) -> Path:
    """Where the parts of the comparison that writes ``output`` lie."""
    return Path(f"{output}{SUFFIX}")


def measure_shard(job: Job, shard: Shard, folder: Path, progress: Progress | None = None) -> Path:
    """Measure one share and write its part into ``folder``; one that is there already and fits is left as it is.

    Raises DumpError, UsageError and, where the part cannot be written, OSError.
    """
    reference, candidate = job.open()
    target = folder / shard.file
    head = _name(job.identify(reference, candidate), shard)
    folder.mkdir(parents=True, exist_ok=True)
    if _fits(target, head):
        return target
    with Journal(Path(f"{target}.partial"), head) as journal:
        engine = Engine(reference, candidate, replay=job.replay, rename=job.rename, journal=journal)
        engine.measure_share(shard.index - 1, shard.count, progress)
        journal.finish(target)
    return target


def has_part(job: Job, shard: Shard, folder: Path) -> bool:
    """Whether the part of this share is there already. Raises DumpError."""
    target = folder / shard.file
    return target.exists() and _fits(target, _name(job.identify(*job.open()), shard))


def find_shards(folder: Path) -> list[Shard]:
    """The shards of all parts in a folder, in order. Raises UsageError where there are none, or of two divisions."""
    found = []
    for path in folder.glob("*-of-*.jsonl"):
        index, _, count = path.stem.partition("-of-")
        if index.isdecimal() and count.isdecimal():
            found.append(Shard(int(index), int(count)))
    if not found:
        raise UsageError(f"{folder} holds no parts: run the comparison with --shard 1/N to N/N first")
    counts = sorted({shard.count for shard in found})
    if len(counts) > 1:
        raise UsageError(f"{folder} holds parts of {' and of '.join(map(str, counts))}: remove those of one division")
    return sorted(found, key=lambda shard: shard.index)


def merge_parts(job: Job, folder: Path) -> Journal:
    """A journal that knows all that the parts found.

    Raises UsageError where a part is missing, and DumpDamaged where one is damaged or of another comparison.
    """
    shards = find_shards(folder)
    count = shards[0].count
    missing = sorted({*range(1, count + 1)} - {shard.index for shard in shards})
    if missing:
        shown = ", ".join(f"{index}/{count}" for index in missing[:8]) + (", ..." if missing[8:] else "")
        raise UsageError(f"{folder} lacks the parts of --shard {shown}: run them, then merge again")
    identity = job.identify(*job.open())
    journal = Journal()
    for shard in shards:
        _absorb(journal, folder / shard.file, _name(identity, shard))
    return journal


def _absorb(journal: Journal, path: Path, head: str) -> None:
    try:
        journal.absorb(path, head)
    except (OSError, UnicodeDecodeError) as error:
        raise DumpDamaged(f"{path} cannot be read: {error}; remove it and run its shard again") from error
    except ValueError as error:
        raise DumpDamaged(
            f"{path} is of another comparison: its dumps, its reference's code or its versions were others; remove it "
            "and run its shard again"
        ) from error


def _fits(path: Path, head: str) -> bool:
    try:
        Journal().absorb(path, head)
    except (OSError, ValueError):
        return False
    return True


def _name(identity: str, shard: Shard) -> str:
    return f"{identity} {shard}"


def _identify(dump: Dump) -> str:
    lines: Iterable[str] = (f"{record.key} {record.dtype} {record.digest.hex()}" for record in dump.records)
    runs: Sequence[str] = [info.run for info in dump.infos]
    return digest_bytes("\n".join([*runs, *lines]).encode("utf-8", "surrogatepass"))


def _identify_code(replay: Any) -> str:
    """The text of the file that defines the reference's code; "" where none is given or its file is not known."""
    if replay is None:
        return ""
    try:
        defined = replay if inspect.isroutine(replay) or inspect.isclass(replay) else type(replay)
        path = inspect.getsourcefile(defined)
    except TypeError:
        return ""
    return "" if path is None else digest_bytes(Path(path).read_bytes())
