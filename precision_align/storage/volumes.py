"""Files in volumes of a chosen size, each with its hash, and back.

A volume is a plain slice of all files behind each other; ``manifest.json`` says which, and holds SHA-256 of every file,
every volume, and the whole. Both ways may be interrupted at any time and started again: what is there and right is
kept, what is missing or wrong is named.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

from precision_align.core.errors import DumpDamaged, DumpForeign, DumpNotFound, SchemaTooNew, UsageError
from precision_align.storage.blobs import is_disk_full, require_room
from precision_align.storage.handles import create_file
from precision_align.storage.meters import Meter, Progress

MANIFEST = "manifest.json"
FORMAT = "precision-align volumes"
VERSION = 1
# Where files are put together until all volumes have come.
UNPACKING = ".unpacking"
_STATE = "applied.json"
_BLOCK = 1 << 20
_SUFFIX = ".tmp"
_VOLUME = re.compile(rf"volume\d{{5,}}\.pav({re.escape(_SUFFIX)})?")


@dataclass(frozen=True)
class Piece:
    """A file or a volume: ``name`` relative to its folder, with "/"."""

    name: str
    nbytes: int
    sha256: str = ""


@dataclass(frozen=True)
class Manifest:
    """``files`` in the order of their bytes; ``volumes``: all but the last have ``volume_bytes``."""

    volume_bytes: int
    files: tuple[Piece, ...]
    volumes: tuple[Piece, ...] = ()
    sha256: str = ""

    @property
    def nbytes(self) -> int:
        """Of all files."""
        return sum(file.nbytes for file in self.files)

    def encode(self) -> str:
        """As JSON with a hash of its own."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps({**content, "digest": _digest(content)}, indent=1)


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("ascii")).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """Raises DumpNotFound, DumpForeign, DumpDamaged, SchemaTooNew."""
    path = folder / MANIFEST
    try:
        content = json.loads(path.read_text("ascii"))
    except FileNotFoundError as error:
        raise DumpNotFound(f"{folder} has no {MANIFEST}: bring it too, or let `pack` end first") from error
    except (OSError, ValueError) as error:
        raise DumpDamaged(f"{path} cannot be read ({error}): bring it again") from error
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise DumpForeign(f"{path} is not of `precision-align pack`")
    version = content.get("version")
    if isinstance(version, int) and version > VERSION:
        raise SchemaTooNew(f"{path} was written by a newer precision-align: upgrade")
    if content.pop("digest", None) != _digest({"format": FORMAT, **content}):
        raise DumpDamaged(f"{path} was changed on its way: bring it again")
    files, volumes = ([Piece(**piece) for piece in content[name]] for name in ("files", "volumes"))
    for file in files:
        _check_name(file.name)
    return Manifest(content["volume_bytes"], tuple(files), tuple(volumes), content["sha256"])


def _check_name(name: str) -> None:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or parts[0] == UNPACKING:
        raise DumpDamaged(f"the manifest names a file outside of its folder, {name!r}: it was not made by `pack`")


def name_volume(number: int) -> str:
    """The file of a volume; numbers count from 1."""
    return f"volume{number:05d}.pav"


def count_volumes(nbytes: int, volume_bytes: int) -> int:
    """How many volumes so many bytes take; at least one."""
    return max(1, -(-nbytes // volume_bytes))


@dataclass
class Outcome:
    """What was done: names of volumes that were ``kept`` as they were, and of those ``written``."""

    kept: list[str]
    written: list[str]


class _Volume:
    """The volume that is being filled: compared with what is there, and written only where that is not the same."""

    def __init__(self, folder: Path, number: int) -> None:
        self.path = folder / name_volume(number)
        self._temporary = self.path.with_name(self.path.name + _SUFFIX)
        self._hasher, self.nbytes = hashlib.sha256(), 0
        self._there = self.path.open("rb") if self.path.is_file() else None
        self._file: IO[bytes] | None = None

    def add(self, data: bytes) -> None:
        """More bytes."""
        self._hasher.update(data)
        if self._there is not None and self._there.read(len(data)) != data:
            self._diverge()
        if self._there is None:
            self._open().write(data)
        self.nbytes += len(data)

    def _diverge(self) -> None:
        """What is there is another: take over what was the same, and go on by ourselves."""
        assert self._there is not None
        self._there.seek(0)
        target = self._open()
        left = self.nbytes
        while left:
            block = self._there.read(min(left, _BLOCK))
            target.write(block)
            left -= len(block)
        self._there.close()
        self._there = None

    def _open(self) -> IO[bytes]:
        if self._file is None:
            self._file = os.fdopen(create_file(self._temporary, os.O_WRONLY | os.O_TRUNC), "wb")
        return self._file

    def finish(self, expected: Piece | None) -> tuple[Piece, bool]:
        """The volume, and whether it was written now. Raises UsageError, with nothing changed, where it is another."""
        if self._there is not None and self._there.read(1):
            self._diverge()
        if self._there is not None:
            self._there.close()
        elif self._file is None:
            self._open()
        piece = Piece(self.path.name, self.nbytes, self._hasher.hexdigest())
        if self._file is not None:
            self._file.close()
            if expected is not None and expected != piece:
                self._temporary.unlink()
                raise UsageError(f"{self.path.parent} holds the pack of another content: choose another folder")
            self._temporary.replace(self.path)
        return piece, self._file is not None


def write_volumes(
    files: Sequence[tuple[str, Path]], folder: Path, volume_bytes: int, progress: Progress | None = None
) -> tuple[Manifest, Outcome]:
    """Write (name, path) of files into volumes and a manifest; volumes that are there and right stay.

    ``progress``: told (MiB done, MiB in all). Raises UsageError where the folder holds other files or another pack,
    OSError where the disk is full.
    """
    pieces = tuple(Piece(name, path.stat().st_size) for name, path in files)
    manifest = Manifest(volume_bytes, pieces)
    before = _check_target(folder, manifest)
    make_folder(folder)
    there = sum(path.stat().st_size for path in folder.glob("volume*.pav"))
    require_room(folder, max(0, manifest.nbytes - there))
    whole, outcome, meter = hashlib.sha256(), Outcome([], []), Meter(progress, manifest.nbytes)
    hashed: list[Piece] = []
    volumes: list[Piece] = []
    volume = _Volume(folder, 1)

    def close_volume() -> None:
        piece, is_new = volume.finish(None if before is None else before.volumes[len(volumes)])
        volumes.append(piece)
        (outcome.written if is_new else outcome.kept).append(piece.name)

    for piece, (_, path) in zip(pieces, files):
        hasher = hashlib.sha256()
        for block in _read_blocks(path, piece.nbytes):
            hasher.update(block)
            whole.update(block)
            meter.add(len(block))
            while block:
                if volume.nbytes == volume_bytes:
                    close_volume()
                    volume = _Volume(folder, len(volumes) + 1)
                taken = block[: volume_bytes - volume.nbytes]
                volume.add(taken)
                block = block[len(taken) :]
        hashed.append(replace(piece, sha256=hasher.hexdigest()))
    close_volume()
    _remove_others(folder, {piece.name for piece in volumes})
    manifest = Manifest(volume_bytes, tuple(hashed), tuple(volumes), whole.hexdigest())
    temporary = folder / (MANIFEST + _SUFFIX)
    with os.fdopen(create_file(temporary, os.O_WRONLY | os.O_TRUNC), "w", encoding="ascii") as file:
        file.write(manifest.encode())
    temporary.replace(folder / MANIFEST)
    return manifest, outcome


def _remove_others(folder: Path, names: Collection[str]) -> None:
    """Volumes of a pack that was interrupted here before: they may hold what this one leaves out."""
    for path in folder.iterdir():
        if _VOLUME.fullmatch(path.name) and path.name not in names:
            path.unlink()


def _read_blocks(path: Path, nbytes: int) -> Iterator[bytes]:
    left = nbytes
    with path.open("rb") as file:
        while left:
            block = file.read(min(left, _BLOCK))
            if not block:
                raise DumpDamaged(f"{path} became shorter while it was read: is its run still going on?")
            left -= len(block)
            yield block


def _check_target(folder: Path, wanted: Manifest) -> Manifest | None:
    """The manifest of the same pack that is there already, None where there is none. Raises UsageError."""
    if not folder.exists():
        return None
    known = [path for path in folder.iterdir() if path.name != MANIFEST and not path.name.startswith(("volume", "."))]
    if not folder.is_dir() or known:
        raise UsageError(f"{folder} holds other files ({known[0].name if known else 'it is one'}): choose a new folder")
    if not (folder / MANIFEST).exists():
        return None
    before = read_manifest(folder)
    names = [(piece.name, piece.nbytes) for piece in before.files]
    if before.volume_bytes != wanted.volume_bytes or names != [(piece.name, piece.nbytes) for piece in wanted.files]:
        raise UsageError(f"{folder} holds another pack, or one in volumes of another size: choose another folder")
    return before


def find_trouble(folder: Path, manifest: Manifest, applied: Sequence[str], meter: Meter) -> dict[str, str]:
    """Name of a volume -> "missing" or "damaged"; those already ``applied`` need not be there."""
    found = {}
    for piece in manifest.volumes:
        path = folder / piece.name
        if piece.name in applied:
            continue
        if not path.is_file():
            found[piece.name] = "missing"
        elif path.stat().st_size != piece.nbytes or _hash_file(path, meter) != piece.sha256:
            found[piece.name] = "damaged"
    return found


def _hash_file(path: Path, meter: Meter) -> str:
    hasher = hashlib.sha256()
    for block in _read_blocks(path, path.stat().st_size):
        hasher.update(block)
        meter.add(len(block))
    return hasher.hexdigest()


def make_folder(folder: Path) -> None:
    """Make it and those above. Raises UsageError where that cannot be, OSError where the disk is full."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if is_disk_full(error):
            raise
        raise UsageError(f"{folder} cannot be made ({error.strerror}): choose another folder") from error


def read_volumes(folder: Path, target: Path, progress: Progress | None = None) -> Manifest:
    """Put the files of a pack together in ``target``; ``progress``: told (MiB read or written, MiB in all).

    Volumes that have come are used at once, and are not needed again; raises DumpDamaged, naming them, where others
    are missing or damaged: bring those, and call it again. Raises UsageError where the target holds anything else.
    """
    manifest = read_manifest(folder)
    place = target / UNPACKING
    begun = place.is_dir()  # then files of the pack may already be where they belong
    mine = {UNPACKING, *(PurePosixPath(file.name).parts[0] for file in manifest.files if begun)}
    if target.exists() and (not target.is_dir() or any(path.name not in mine for path in target.iterdir())):
        raise UsageError(f"{target} is not empty: choose another folder")
    make_folder(place)
    applied = _read_applied(place, manifest)
    meter = Meter(progress, 3 * manifest.nbytes)  # volumes are hashed, copied, and the files hashed
    trouble = find_trouble(folder, manifest, applied, meter)
    require_room(target, manifest.nbytes * (len(manifest.volumes) - len(applied)) // len(manifest.volumes))
    for number, piece in enumerate(manifest.volumes):
        if piece.name not in applied and piece.name not in trouble:
            _apply(folder / piece.name, number * manifest.volume_bytes, manifest, place)
            meter.add(piece.nbytes)
            applied.append(piece.name)
            temporary = place / (_STATE + _SUFFIX)
            temporary.write_text(json.dumps({"sha256": manifest.sha256, "applied": applied}), "ascii")
            temporary.replace(place / _STATE)
    if trouble:
        listed = ", ".join(f"{name} ({what})" for name, what in trouble.items())
        raise DumpDamaged(
            f"{len(applied)} of {len(manifest.volumes)} volumes are unpacked; not {listed}: bring these again, and "
            "give the same command"
        )
    _finish(manifest, place, target, meter)
    return manifest


def _read_applied(place: Path, manifest: Manifest) -> list[str]:
    try:
        content = json.loads((place / _STATE).read_text("ascii"))
    except (OSError, ValueError):
        return []
    if content["sha256"] != manifest.sha256:
        raise UsageError(f"{place.parent} was begun with another pack: choose another folder")
    return list(content["applied"])


def _apply(volume: Path, start: int, manifest: Manifest, place: Path) -> None:
    """Write a volume's bytes to where they belong; ``start``: the place of its first one among all."""
    offset = 0
    with volume.open("rb") as source:
        end = start + volume.stat().st_size
        for piece in manifest.files:
            first, last = max(start, offset), min(end, offset + piece.nbytes)
            if first < last:
                source.seek(first - start)
                _copy_part(source, last - first, place / "files" / piece.name, first - offset)
            offset += piece.nbytes


def _copy_part(source: IO[bytes], nbytes: int, path: Path, where: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(create_file(path, os.O_WRONLY), "wb") as target:
        target.seek(where)
        while nbytes:
            block = source.read(min(nbytes, _BLOCK))
            target.write(block)
            nbytes -= len(block)


def _finish(manifest: Manifest, place: Path, target: Path, meter: Meter) -> None:
    whole = hashlib.sha256()
    for piece in manifest.files:
        path = _find_part(piece.name, place, target)
        if not path.exists() and not piece.nbytes:  # an empty file lies in no volume
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(create_file(path))
        hasher = hashlib.sha256()
        for block in _read_blocks(path, piece.nbytes):
            hasher.update(block)
            whole.update(block)
            meter.add(len(block))
        if hasher.hexdigest() != piece.sha256:
            shutil.rmtree(place)
            raise DumpDamaged(f"{piece.name} does not fit its hash, though its volumes did: give the command again")
    if whole.hexdigest() != manifest.sha256:
        raise DumpDamaged("the whole does not fit its hash, though its files do: the manifest was not made by `pack`")
    unpacked = place / "files"
    for path in sorted(unpacked.iterdir() if unpacked.is_dir() else ()):
        path.replace(target / path.name)
    shutil.rmtree(place)


def _find_part(name: str, place: Path, target: Path) -> Path:
    """A file of the pack; an interruption at the very end left some of them where they belong."""
    moved = target / name
    return moved if (target / PurePosixPath(name).parts[0]).exists() else place / "files" / name
