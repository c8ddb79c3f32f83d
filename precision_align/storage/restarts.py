"""Ranks of one run that did not go through the same steps: restarted, or with a gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from precision_align.storage.files import PartFile


def describe_restarts(ranks: Mapping[int, Sequence[PartFile]]) -> list[str]:
    """A note for each rank that began anew where others did not, or lacks steps in between that others have.

    ``ranks``: rank -> its files in the order in which they were written. A restart of all ranks at the same steps is
    how a run is gone on with, and needs no word.
    """
    sessions = {rank: _list_sessions(parts) for rank, parts in ranks.items()}
    if len(sessions) < 2:
        return []
    usual = min(sessions.values(), key=len)
    notes = [
        f"rank {rank} was restarted, others not: it began anew at step {', '.join(str(min(one)) for one in own[1:])}"
        + _describe_repeated(own)
        for rank, own in sorted(sessions.items())
        if [min(one) for one in own] != [min(one) for one in usual] and len(own) > 1
    ]
    every = sorted({step for own in sessions.values() for one in own for step in one})
    for rank, own in sorted(sessions.items()):
        held = {step for one in own for step in one}
        lacking = [step for step in every if held and min(held) < step < max(held) and step not in held]
        if lacking:
            notes.append(f"rank {rank} has a gap: steps {_join(lacking)} of the other ranks are not recorded there")
    return notes


def _list_sessions(parts: Sequence[PartFile]) -> list[set[int]]:
    """The recorded steps of each capture session that wrote into one rank's folder."""
    found: dict[str, set[int]] = {}
    for part in parts:
        steps = {int(step) for step in np.unique(part.index["step"])}
        if steps:
            found.setdefault(part.info.run, set()).update(steps)
    return list(found.values())


def _describe_repeated(sessions: Sequence[set[int]]) -> str:
    seen: set[int] = set()
    repeated: set[int] = set()
    for steps in sessions:
        repeated |= seen & steps
        seen |= steps
    return f"; of steps {_join(sorted(repeated))}, recorded twice, the later records count" if repeated else ""


def _join(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps))
