"""From dumps to volumes: which files, whole or written again with less in them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from precision_align.core.errors import DumpError, DumpForeign, UsageError
from precision_align.storage import layout
from precision_align.storage.certificates import find_certificates
from precision_align.storage.folders import is_ours
from precision_align.storage.meters import Progress
from precision_align.storage.opening import open_own
from precision_align.storage.redaction import Redactor
from precision_align.storage.rewriting import Selection, list_ranks, measure, rewrite_dump
from precision_align.storage.volumes import Manifest, Outcome, make_folder, write_volumes

# Beside the volumes while they are written: dumps with less in them, and what was asked for.
STAGING = ".staging"
_REQUEST = "request.json"


@dataclass(frozen=True)
class Request:
    """``redactor``: None for a pack with its data; ``names``: where it writes what its stand-ins stand for; ``asked``:
    what tells this request from another, as JSON.
    """

    sources: tuple[Path, ...]
    selection: Selection
    redactor: Redactor | None
    asked: str
    names: Path | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the files are taken as they are."""
        return self.redactor is None and self.selection.is_all


def find_dumps(sources: Sequence[Path], *, named: bool = True) -> list[tuple[str, Path]]:
    """(name in the pack, folder) of each dump; a single one lies in the pack's root, "". Raises DumpForeign.

    A folder of dumps (what ``--one-visit`` writes) counts as all of them; ``named``: by the names of their folders.
    """
    found: list[Path] = []
    for source in sources:
        inside = sorted(source.iterdir()) if source.is_dir() else []
        dumps = [source] if _holds_ranks(source) else [path for path in inside if _holds_ranks(path)]
        if not dumps:
            raise DumpForeign(f"{source} holds no dump of this package: name the folder that `capture` wrote")
        found += dumps
    if len(found) == 1:
        return [("", found[0])]
    names: list[str] = []
    for number, path in enumerate(found, 1):
        name = path.name if named and path.name not in names else f"dump{number}"
        names.append(name)
    return list(zip(names, found))


def _holds_ranks(folder: Path) -> bool:
    return folder.is_dir() and any(layout.RANK_FOLDER.fullmatch(path.name) for path in folder.iterdir())


def list_files(dumps: Sequence[tuple[str, Path]]) -> list[tuple[str, Path]]:
    """(name in the pack, path) of every finished file and certificate."""
    return list(_list_files(dumps))


def _list_files(dumps: Sequence[tuple[str, Path]]) -> Iterator[tuple[str, Path]]:
    for name, folder in dumps:
        for rank in list_ranks(folder):
            finished = [path for path in rank.iterdir() if is_ours(path) and path.suffix != layout.UNFINISHED]
            for path in sorted([*finished, *find_certificates([rank])]):
                yield "/".join(filter(None, (name, rank.name, path.name))), path


def measure_pack(request: Request) -> list[tuple[str, int]]:
    """(name, bytes) of each dump as it will be packed; about, where it is written again.

    Raises DumpError, and UsageError where the selection leaves no tensor.
    """
    found, chosen = [], 0
    for name, folder in find_dumps(request.sources, named=request.redactor is None):
        if request.is_plain:
            nbytes = sum(path.stat().st_size for _, path in list_files([(name, folder)]))
        else:
            tensors, nbytes = measure(folder, request.selection, payloads=request.redactor is None)
            chosen += tensors
        found.append((name, nbytes))
    if not request.selection.is_all and not chosen:
        raise UsageError(
            "no tensor is in all of the modules, steps and ranks that were asked for: `precision-align show "
            f"{request.sources[0]}` lists those that are there"
        )
    return found


def find_losses(request: Request) -> list[str]:
    """What the dumps themselves lack: files unreadable, missing or unfinished, a run that did not end, or goes on."""
    found: list[str] = []
    for _, folder in find_dumps(request.sources):
        for rank in list_ranks(folder):
            if request.selection.wants_rank(int(rank.name[4:])):
                try:
                    with open_own(rank) as dump:
                        found += dump.losses
                except DumpError as error:
                    found.append(str(error))
    return found


def pack(
    request: Request,
    target: Path,
    volume_bytes: int,
    rewriting: Progress | None = None,
    packing: Progress | None = None,
) -> tuple[Manifest, Outcome]:
    """Write volumes; started again after an interruption it goes on. Raises DumpError, UsageError, StorageFull.

    ``rewriting``: told (tensors done, tensors in all) of each rank whose dump is not packed as it is; ``packing``:
    (MiB done, MiB in all).
    """
    dumps = find_dumps(request.sources, named=request.redactor is None)
    for _, folder in dumps:
        if folder.resolve() == target.resolve() or target.resolve() in folder.resolve().parents:
            raise UsageError(f"{target} holds what is to be packed: choose another folder for the volumes")
    staging = target / STAGING
    if request.is_plain:
        shutil.rmtree(staging, ignore_errors=True)
        return write_volumes(list_files(dumps), target, volume_bytes, packing)
    make_folder(target)
    if not _is_staged(staging, request):
        shutil.rmtree(staging, ignore_errors=True)
        for name, folder in dumps:
            rewrite_dump(folder, staging / "dumps" / name, request.selection, request.redactor, rewriting)
        if request.redactor is not None and request.names is not None:
            request.redactor.save_names(request.names)
        _mark_staged(staging, request)
    staged = [(name, staging / "dumps" / name) for name, _ in dumps]
    done = write_volumes(list_files(staged), target, volume_bytes, packing)
    shutil.rmtree(staging)
    return done


def _is_staged(staging: Path, request: Request) -> bool:
    """Whether the same was asked for before, and staged to the end."""
    try:
        content = json.loads((staging / _REQUEST).read_text("ascii"))
    except (OSError, ValueError):
        return False
    return bool(content.get("asked") == _hash_request(str(content.get("salt")), request))


def _mark_staged(staging: Path, request: Request) -> None:
    salt = os.urandom(8).hex()
    content = {"salt": salt, "asked": _hash_request(salt, request)}
    (staging / _REQUEST).write_text(json.dumps(content), "ascii")


def _hash_request(salt: str, request: Request) -> str:
    """Of what was asked for, and of what: the dumps may have been recorded again."""
    facts = [(name, path.stat()) for name, path in list_files(find_dumps(request.sources))]
    files = [(name, fact.st_size, fact.st_mtime_ns) for name, fact in facts]
    return hashlib.sha256(f"{salt}{request.asked}{files}".encode("utf-8", "surrogatepass")).hexdigest()
