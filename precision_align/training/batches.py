"""Which batch each step saw, from the fingerprints in a dump, and whether two runs saw the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from precision_align.core.terms import Role, Source
from precision_align.storage.base import Dump

FINGERPRINT = "batch.fingerprint"
_SHOWN = 12  # hexadecimal digits of a fingerprint: 48 bits, one chance pair in 10^14 batches squared


@dataclass(frozen=True)
class BatchOrder:
    """How two runs' batches relate.

    ``kind``: "same" (at every common step), "shifted" (the candidate sees at each step what the reference sees
    ``shift`` steps later), "reordered" (the same batches at other steps), "other" (batches that the reference never
    sees); ``step``: the first common step with different batches, None for "same"; ``compared``: how many steps;
    ``shared``: how many of the candidate's batches the reference sees at some step.
    """

    kind: str
    step: int | None
    shift: int | None
    compared: int
    shared: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def read_batches(dump: Dump) -> dict[int, str]:
    """Step -> fingerprint of what the model was given in it, all micro-batches together.

    From the series ``batch.fingerprint`` (capture with facts); without it from the digests of the outermost module's
    inputs, which are there for recorded steps only.
    """
    parts: dict[int, list[str]] = {}
    for point in dump.series:
        if point.name == FINGERPRINT:
            parts.setdefault(point.step, []).append(f"{int(point.value):012x}")
    for record in () if parts else dump.records:
        key = record.key
        if key.source == Source.MODULE and key.scope == "" and key.role == Role.INPUT and record.digest:
            parts.setdefault(key.step, []).append(record.digest.hex())
    return {step: _join(found) for step, found in parts.items()}


def _join(parts: list[str]) -> str:
    return parts[0][:_SHOWN] if len(parts) == 1 else hashlib.sha256("\n".join(parts).encode()).hexdigest()[:_SHOWN]


def compare_batches(reference: Mapping[int, str], candidate: Mapping[int, str]) -> BatchOrder | None:
    """How the batches of two runs relate; None where no step has a fingerprint on both sides."""
    common = sorted(set(reference) & set(candidate))
    if not common:
        return None
    known = set(reference.values())
    shared = sum(candidate[step] in known for step in common)
    differing = [step for step in common if reference[step] != candidate[step]]
    if not differing:
        return BatchOrder("same", None, None, len(common), shared)
    shift = _find_shift(reference, candidate, differing)
    kind = "shifted" if shift else "reordered" if shared == len(common) else "other"
    return BatchOrder(kind, differing[0], shift, len(common), shared)


def _find_shift(reference: Mapping[int, str], candidate: Mapping[int, str], differing: list[int]) -> int | None:
    """The one distance at which every differing batch that can be found is found; None where there are several."""
    places: dict[str, list[int]] = {}
    for step, text in reference.items():
        places.setdefault(text, []).append(step)
    distances = [{place - step for place in places[candidate[step]]} for step in differing if candidate[step] in places]
    # what the reference never reached is at an end of its steps, so at least half must be found
    if len(distances) * 2 < len(differing) or not distances:
        return None
    shared = set.intersection(*distances)
    return min(shared, key=abs) if shared else None
