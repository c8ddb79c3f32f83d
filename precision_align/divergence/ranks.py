"""Which rank a divergence of merged ranks sits on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from precision_align.comparison.engine import Engine
from precision_align.core.dtypes import Array
from precision_align.core.errors import DumpDamaged
from precision_align.core.keys import Key
from precision_align.core.results import Divergence, Findings
from precision_align.core.terms import Source
from precision_align.storage.base import Dump

if TYPE_CHECKING:
    from precision_align.alignment.merging import MergedDump

EQUAL, ALONE, WORST = "equal on all ranks", " on rank ", "is furthest off, its replicas differ"
_ALONE = 4.0  # times the error of every other rank: then this one has the fault; noise of equal shards stays below two


def name_ranks(findings: Findings, engine: Engine, merged: MergedDump, reference: Dump) -> Findings:
    """The same findings, each divergence with the rank that it sits on and a word on the others."""
    named = [_name_rank(found, engine, merged, reference) for found in findings.frontier]
    if findings.first is None:
        return findings
    first = named[0]
    if EQUAL in first.evidence:  # made on one rank and summed up: its other pass may tell
        telling = [
            one for one in named[1:] if one.scope == first.scope and (ALONE in one.evidence or WORST in one.evidence)
        ]
        for one in telling[:1]:
            text = f"{first.evidence}; the error of its {one.phase} pass sits{ALONE}{one.rank}"
            first = replace(first, rank=one.rank, evidence=text)
    return replace(findings, first=first, frontier=[first, *named[1:]])


def _name_rank(found: Divergence, engine: Engine, merged: MergedDump, reference: Dump) -> Divergence:
    key = Key.parse(found.key)
    if key.source == Source.COLLECTIVE:
        return replace(found, rank=key.rank)
    try:
        owners = merged.find_owners(found.key)
    except KeyError:  # a record of the reference's that the candidate lacks
        return found
    ranks = [int(rank) for rank in np.unique(owners)]
    if ranks == [-1]:
        return replace(found, evidence=f"{found.evidence}; {EQUAL}, a sum over them")
    if len(ranks) == 1:
        if merged.is_held_by_one(found.key):
            return replace(found, rank=ranks[0], evidence=f"{found.evidence}; made{ALONE}{ranks[0]}")
        alone = set(merged.source_ranks) - set(ranks) and merged.is_worst(found.key)
        text = f"; rank {ranks[0]} {WORST}" if alone else f"; {EQUAL}"
        return replace(found, rank=ranks[0], evidence=found.evidence + text)
    errors = _measure_errors(found, engine, merged, reference)
    if errors is None or errors.shape != owners.shape:
        return found
    each = {rank: float(np.linalg.norm(errors[owners == rank])) for rank in ranks}
    worst = max(each, key=lambda rank: each[rank])
    rest = max(error for rank, error in each.items() if rank != worst)
    where = f"{ALONE}{worst}" if each[worst] > _ALONE * rest else f" on ranks {','.join(map(str, ranks))}"
    return replace(found, rank=worst, evidence=f"{found.evidence}; the error sits{where}")


def _measure_errors(found: Divergence, engine: Engine, merged: MergedDump, reference: Dump) -> Array | None:
    """The element-wise error: against the float64 replay, else against the reference's tensor."""
    again = engine.recomputer.recompute(found, variants=False)
    if again is not None:
        return np.asarray(np.nan_to_num(np.abs(again.actual - again.golden), nan=np.inf))
    key = Key.parse(found.key)
    partner = next((one.key for one in reference.records if str(one.key) == found.key), None)
    if partner is None:
        return None
    try:
        difference = merged.values(key).astype(np.float64) - reference.values(partner)
    except (KeyError, DumpDamaged):
        return None
    return np.asarray(np.nan_to_num(np.abs(difference), nan=np.inf))
