"""The entries of torch's zip archives: those of a few tensors are read in two small reads, all others by zipfile."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Optional

LIST = "data.pkl"
_MAX_LIST = 1 << 30
LOCAL_HEADER = struct.Struct("<4s22xHH")  # of an entry: signature, lengths of its name and of what follows that
_CENTRAL = struct.Struct("<4s2xBxHH4xLLLHHHH6xL")
_END = struct.Struct("<4sHHHHLLH")
# Torch writes the records of large archives into small ones, too: between the directory and the end.
_LARGE_RECORDS = 76
_UNKNOWN = 0xFFFFFFFF  # the number stands in a record of large archives
_NOT_PLAIN = 0x1 | 0x20 | 0x40  # flags: encrypted, a patch, strongly encrypted
_UTF8 = 0x800
_VERSION = 63  # of the format, times 10: the last that zipfile knows
# One tensor's archive has a directory of 0.8 KB, and begins with its list of tensors, of 0.3 KB.
_READ = 4096


class NoArchive(Exception):
    """A file is not a zip archive, or a damaged one."""


class Entry(NamedTuple):
    """Where an entry's local header begins, the bytes of its content and their CRC-32, whether they are compressed."""

    header: int
    nbytes: int
    crc: int
    compressed: bool


class Archive(NamedTuple):
    """``folder``: what stands before ``data.pkl`` in the names; ``data``: the content of that; all entries by name."""

    folder: str
    data: bytes
    entries: Mapping[str, Entry]


def read_archive(path: Path) -> Archive:
    """Raises NoArchive, ValueError, OSError and what else zipfile raises of damaged archives."""
    return _read_plain(path) or _read_any(path)


def _read_any(path: Path) -> Archive:
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = _find_lists(archive.namelist())
            if archive.getinfo(name).file_size > _MAX_LIST:
                raise ValueError("its list of tensors is larger than 1 GiB")
            entries = {
                info.filename: Entry(
                    info.header_offset, info.file_size, info.CRC, info.compress_type != zipfile.ZIP_STORED
                )
                for info in archive.infolist()
            }
            return Archive(name[: -len(LIST)], archive.read(name), entries)
    except zipfile.BadZipFile as error:
        raise NoArchive(str(error)) from error


def _find_lists(names: list[str]) -> list[str]:
    return [name for name in names if name.endswith(f"/{LIST}") or name == LIST]


def _read_plain(path: Path) -> Optional[Archive]:
    """None where anything is not as torch writes it: zipfile then reads it all the same, or says what is wrong."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
    try:
        head = os.read(descriptor, _READ)
        place = max(os.fstat(descriptor).st_size - _READ, 0)
        os.lseek(descriptor, place, os.SEEK_SET)
        tail = os.read(descriptor, _READ)
    finally:
        os.close(descriptor)
    try:
        entries = _read_directory(tail, place)
    except UnicodeDecodeError:
        return None
    lists = _find_lists(list(entries))
    data = _read_list(head, lists[0], entries[lists[0]]) if len(lists) == 1 else None
    return None if data is None else Archive(lists[0][: -len(LIST)], data, entries)


def _read_directory(tail: bytes, place: int) -> dict[str, Entry]:
    """``place``: of the tail in the file. Empty where it is not a plain directory that lies in the tail."""
    behind = len(tail) - _END.size
    if behind < 0:
        return {}
    signature, disk, first_disk, here, count, length, offset, comment = _END.unpack_from(tail, behind)
    at, stop = offset - place, offset - place + length
    if signature != b"PK\5\6" or (disk, first_disk, here, comment) != (0, 0, count, 0):
        return {}
    if at < 0 or behind - stop not in (0, _LARGE_RECORDS):
        return {}
    entries: dict[str, Entry] = {}
    while at <= stop - _CENTRAL.size:
        signature, version, flags, method, crc, packed, nbytes, *lengths, disk, header = _CENTRAL.unpack_from(tail, at)
        at += _CENTRAL.size
        name = tail[at : at + lengths[0]].decode("utf-8" if flags & _UTF8 else "ascii")
        at += sum(lengths)
        if signature != b"PK\1\2" or version > _VERSION or flags & _NOT_PLAIN or method or disk or "\0" in name:
            return {}
        if packed != nbytes or _UNKNOWN in (nbytes, header):
            return {}
        entries[name] = Entry(header, nbytes, crc, False)
    return entries if at == stop and len(entries) == count else {}


def _read_list(head: bytes, name: str, entry: Entry) -> Optional[bytes]:
    """The content of an entry that lies in the first bytes of the file and is as its header and checksum say."""
    if entry.header + LOCAL_HEADER.size > len(head):
        return None
    signature, length, more = LOCAL_HEADER.unpack_from(head, entry.header)
    at = entry.header + LOCAL_HEADER.size
    data = head[at + length + more : at + length + more + entry.nbytes]
    known = head[at : at + length] == name.encode() and len(data) == entry.nbytes
    return data if signature == b"PK\3\4" and known and zlib.crc32(data) == entry.crc else None
