"""How a dump is written: limits of memory, time and disk."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from precision_align.core.errors import UsageError

PART_BYTES = 1 << 30
# The stated cap of host memory for tensors on their way to the disk. 512 MB hold a few layers; a container's share is
# small, because the training needs the rest.
_STAGING_BYTES = 512 << 20
_STAGING_SHARE = 4
# A collective waits 10 minutes (NCCL, HCCL: 30) for the slowest rank; this leaves room for many waits in one step.
WAIT_SECONDS = 30.0
FSYNC = ("never", "step")
CODECS = ("bitshuffle-lz4", "zstd")

_CGROUP_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True)
class Settings:
    """Limits and manners of a writer.

    ``queue_bytes``: host memory for tensors that wait to be written (None: 512 MiB, or a quarter of the container's
    memory limit where that is less); ``wait_seconds``: how long the training may be held up when they do not fit, after
    which sketches are kept instead of payloads until there is room; ``part_bytes``: a file closes beyond this;
    ``reserve_free``: bytes of the file system to leave free; ``keep``: only the last so many recorded steps stay on
    disk (None: all); ``compress``: "bitshuffle-lz4", "zstd" (see :mod:`~precision_align.storage.compression`) or None;
    ``weights_from``: a checkpoint (.pt, .safetensors, or a folder of them); parameters and buffers that equal one of
    its tensors are kept as a reference to it (see :mod:`~precision_align.storage.checkpoints`); ``fsync``:
    "never" (survives kill -9) or "step" (each finished file is flushed to the medium: survives a power failure too).
    """

    queue_bytes: Optional[int] = None
    wait_seconds: float = WAIT_SECONDS
    part_bytes: int = PART_BYTES
    reserve_free: int = 0
    keep: Optional[int] = None
    compress: Optional[str] = None
    fsync: str = "never"
    weights_from: Optional[str] = None

    def check(self) -> None:
        """Raises UsageError for values that make no sense, Unavailable for a codec whose package is not there."""
        if self.keep is not None and self.keep < 1:
            raise UsageError(f"keep={self.keep}: at least one step has to stay")
        if self.fsync not in FSYNC:
            raise UsageError(f"unknown fsync policy {self.fsync!r}: choose one of {', '.join(FSYNC)}")
        if self.reserve_free < 0 or self.wait_seconds < 0 or (self.queue_bytes or 0) < 0:
            raise UsageError("reserve_free, wait_seconds and queue_bytes cannot be negative")
        if self.weights_from is not None:
            from precision_align.storage.checkpoints import check_checkpoint

            check_checkpoint(self.weights_from)
        if self.compress is not None:
            from precision_align.storage.compression import check_codec  # imports NumPy, which --help does not need

            check_codec(self.compress)

    @property
    def staging_bytes(self) -> int:
        """``queue_bytes``, or the default of this machine."""
        return default_staging_bytes() if self.queue_bytes is None else self.queue_bytes


DEFAULT_SETTINGS = Settings()


def default_staging_bytes() -> int:
    """512 MiB, or a quarter of the container's memory limit where that is less."""
    limits = [limit for limit in map(_read_limit, _CGROUP_FILES) if limit]
    return min([_STAGING_BYTES, *(limit // _STAGING_SHARE for limit in limits)])


def _read_limit(name: str) -> int:
    """Bytes, 0 where there is no such file or no limit ("max")."""
    try:
        text = Path(name).read_text("ascii").strip()
    except (OSError, ValueError):
        return 0
    return int(text) if text.isdigit() else 0


def parse_size(text: str) -> int:
    """Bytes of "10GB", "512 MiB" or "4096" (powers of 1024). Raises UsageError."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise UsageError(f"cannot read the size {text!r}: write it like 20GB, 512MB or 4096")
    return int(float(found[1]) * 1024 ** _POWERS[found[2].lower()])


def format_size(count: int) -> str:
    """ "1.5 GiB" of bytes; the inverse of :func:`parse_size` up to rounding."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
