"""What a dump takes at each tier, on this rank, its node and all ranks, from one counted step; docs/scale.md shows it.

Of a step with n tensors, of which the distinct ones have b bytes and e elements each:

- tables T: an index row and a key a tensor, a row a call, texts, and a file's own bytes;
- fingerprint and statistics: T; full: T + sum(b), each rounded up to 64 bytes;
- sketch: T + sum(8 * buckets(e)), but sum(b) of tensors under 4 KB, which are kept whole;
- to write: n * 19.1 us + sum(b) / 6.87 GB/s for hashes and statistics + (bytes written) / 3.29 GB/s;
- to compare: n * 175 us + (bytes written) / 2.37 GB/s.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Optional

from precision_align.core.errors import UsageError
from precision_align.core.terms import Tier
from precision_align.numerics.sketches import WHOLE_BELOW_BYTES, count_buckets
from precision_align.storage.layout import ALIGNMENT

TIERS = (Tier.FINGERPRINT, Tier.STATISTICS, Tier.SKETCH, Tier.FULL)
# Measured, CPU of one core: reports/benchmarks/store.md, "Write" (64 B to 8 MB) and "Small tensors" (64 B).
SECONDS_A_TENSOR = 19.1e-6
SUMMARY_RATE = 6.87e9  # bytes a second, hash and statistics
WRITE_RATE = 3.29e9  # bytes a second, a raw write into the page cache
# One core, reports/benchmarks/store.md, "Compare and report", and diff.md, the first pass over two dumps.
SECONDS_A_RECORD = 175e-6
COMPARE_RATE = 2.37e9
_WORLD = re.compile(r"(\d+)(?:/(\d+))?")


@dataclass(frozen=True)
class World:
    """``ranks``: of all nodes; ``local``: of a node."""

    ranks: int
    local: int


@dataclass(frozen=True)
class Projection:
    """One step at one tier: bytes of this rank, of a node and of all ranks; ``seconds`` of one core to write this
    rank's, ``comparison``: to compare it with another of that size, nothing equal, without replay."""

    rank: int
    node: int
    world: int
    seconds: float
    comparison: float


def find_world(text: Optional[str], environment: Mapping[str, str] = os.environ) -> World:
    """From "1000" or "1000/8" (ranks, and of these on a node), else from the launcher. Raises UsageError."""
    local = environment.get("LOCAL_WORLD_SIZE", "")
    if text is None:
        ranks = environment.get("WORLD_SIZE", "")
        text = ranks if ranks.isdecimal() and int(ranks) else "1"
    found = _WORLD.fullmatch(text)
    if found is None or not all(int(part) for part in found.groups() if part):
        raise UsageError(f"--world {text!r}: write the number of ranks, or such as 1000/8 with those of a node")
    count = int(found[1])
    return World(count, min(count, int(found[2] or (local if local.isdecimal() and int(local) else 1))))


def count_bytes(tier: Tier, tables: int, tensors: Iterable[tuple[int, int]]) -> int:
    """Bytes of a step of one rank. ``tensors``: (bytes, elements) of the distinct ones."""
    if tier in (Tier.FINGERPRINT, Tier.STATISTICS):
        return tables
    return tables + sum(
        8 * count_buckets(numel)
        if tier == Tier.SKETCH and nbytes >= WHOLE_BELOW_BYTES
        else nbytes + -nbytes % ALIGNMENT
        for nbytes, numel in tensors
    )


def project(tiers: Mapping[str, int], tensors: int, raw: int, world: World) -> dict[str, Projection]:
    """For each tier what a step takes. ``tiers``: bytes on one rank; ``raw``: of the tensors that are summarized."""
    return {
        tier: Projection(
            nbytes,
            nbytes * world.local,
            nbytes * world.ranks,
            tensors * SECONDS_A_TENSOR + (0 if tier == Tier.FINGERPRINT else raw / SUMMARY_RATE) + nbytes / WRITE_RATE,
            tensors * SECONDS_A_RECORD + nbytes / COMPARE_RATE,
        )
        for tier, nbytes in tiers.items()
    }


def to_dict(projections: Mapping[str, Projection], world: World) -> dict[str, Any]:
    """Plain data for JSON."""
    return {"world": asdict(world), "tiers": {tier: asdict(one) for tier, one in projections.items()}}
