"""From many drafts to what is written of them: one call hashes and summarizes them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Union

import numpy as np

from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.terms import Tier
from precision_align.numerics.batches import Lying, Summaries, make_room, summarize_batch
from precision_align.storage.base import AnyDraft, Draft
from precision_align.storage.batches import (
    Batch,
    Columns,
    join_summaries,
    lies,
    make_batch,
    read_deferred,
    read_drafts,
    read_records,
)
from precision_align.storage.checkpoints import EXTRA, Checkpoint
from precision_align.storage.entries import Entry, Finisher, Met, read_summary
from precision_align.storage.hashing import digest_words
from precision_align.storage.patterns import Patterns

AnyItem = Union[AnyDraft, Entry]
# What was found of a smaller tensor is forgotten with its batch: hashing it again costs less than remembering.
_REMEMBERED_BYTES = 1 << 16
_NOTHING: Lying = (0, 0, "", False)
_LYING, _PLAIN, _SUMMARIZED, _ODD = range(4)


class BatchFinisher(Finisher):
    """Turns many drafts into batches; what it finds is what its parent finds."""

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        super().__init__(checkpoint)
        self._patterns = Patterns()

    def finish_run(self, items: Sequence[Any]) -> Batch:
        """What is kept of one of :func:`split_runs`. Raises OverflowError where a number is beyond 64 bits."""
        kind = _find_kind(items[0])
        if kind is _LYING:
            return self._finish_lying(read_deferred(items, self._patterns))
        if kind is _PLAIN:
            return self._finish_lying(read_drafts(items, self._patterns))
        if kind is _SUMMARIZED:
            return _finish_summarized(read_deferred(items, self._patterns))
        return self.collect([item if isinstance(item, Entry) else self.finish(item) for item in items])

    def collect(self, entries: Sequence[Entry]) -> Batch:
        """Entries as a batch."""
        columns = read_records([entry.draft for entry in entries], self._patterns)
        columns = columns._replace(extras=[entry.extra for entry in entries])
        found = join_summaries([entry.digest for entry in entries], [entry.values for entry in entries])
        sketches = {number: entry.sketch for number, entry in enumerate(entries) if entry.sketch is not None}
        tiers, reasons = [entry.tier for entry in entries], [entry.reason for entry in entries]
        batch = make_batch(columns, tiers, reasons, [entry.nbytes for entry in entries], found, sketches)
        for number, entry in enumerate(entries):
            if entry.words is not None and entry.sketch is None:
                batch.store(number, entry.words)
        return batch

    def _finish_lying(self, columns: Columns) -> Batch:
        sizes = [pattern.nbytes for pattern in columns.patterns]
        tiers, reasons = self._decide_all(columns, sizes)
        found = self._summarize_all(columns, tiers, sizes)
        sketches: dict[int, Array] = {}
        full: Sequence[int] = range(len(tiers))
        if any(tier is not Tier.FULL for tier in tiers):
            full = [number for number, tier in enumerate(tiers) if tier is Tier.FULL]
            sketches = dict(self._list_sketches(columns, tiers, found))
        batch = make_batch(columns, tiers, reasons, sizes, found, sketches)
        self._store_all(batch, columns, full)
        return batch

    def _decide_all(self, columns: Columns, sizes: Sequence[int]) -> tuple[Sequence[Tier], Sequence[str]]:
        if self.payloads and all(tier is Tier.FULL for tier in columns.tiers):
            return columns.tiers, columns.reasons
        decided = list(map(self.decide, columns.tiers, sizes))
        return [tier for tier, _ in decided], [given or why for given, (_, why) in zip(columns.reasons, decided)]

    def _summarize_all(self, columns: Columns, tiers: Sequence[Tier], sizes: Sequence[int]) -> Summaries:
        """Each stretch of memory once, however many records show it."""
        dtypes = [pattern.dtype for pattern in columns.patterns]
        first: dict[Lying, int] = {}
        places = [
            first.setdefault(one, len(first))
            for one in zip(columns.addresses, sizes, dtypes, [tier is Tier.SKETCH for tier in tiers])
        ]
        tensors, holders = list(first), dict(zip(places, columns.holders))
        large = [place for place, (_, nbytes, _, _) in enumerate(tensors) if nbytes >= _REMEMBERED_BYTES]
        known = {place: met for place in large if (met := self._recall_all(holders[place], tensors[place])) is not None}
        found = self._summarize_new([_NOTHING if place in known else one for place, one in enumerate(tensors)], holders)
        for place, (_, digest, (values, table)) in known.items():
            found.digests[place], found.statistics[place] = np.frombuffer(digest, np.uint8), values
            found.sketches[place], found.complete[place] = table, True
        if not found.complete.all():
            described = {place for place, tier in zip(places, tiers) if tier is not Tier.FINGERPRINT}
            for place in described.intersection(np.flatnonzero(~found.complete).tolist()):
                self._complete_one(found, place, tensors[place], holders[place].words)
        for place in large:
            if place not in known and found.complete[place]:
                summary = found.statistics[place].item(), found.sketches[place]
                self.remember(holders[place], found.digests[place].tobytes(), summary)
        return found if len(tensors) == len(places) else _take(found, places)

    def _recall_all(self, holder: Any, tensor: Lying) -> Met | None:
        """What is known of words that came before, if it is all that is wanted now."""
        known = self.recall(holder)
        if known is None or known[2][0] is None or (tensor[-1] and known[2][1] is None):
            return None
        return known

    def _summarize_new(self, tensors: Sequence[Lying], holders: dict[int, Any]) -> Summaries:
        found = summarize_batch(tensors)
        if found is None:
            found = make_room(len(tensors))
            for place, one in enumerate(tensors):
                if one is not _NOTHING:
                    found.digests[place] = np.frombuffer(digest_words(holders[place].words), np.uint8)
        return found

    def _complete_one(self, found: Summaries, place: int, tensor: Lying, words: Array) -> None:
        _, _, dtype, sketched = tensor
        values, table = self.complete(found.digests[place].tobytes(), words, dtype_of(dtype), sketched)
        found.statistics[place], found.sketches[place], found.complete[place] = values, table, True

    def _list_sketches(self, columns: Columns, tiers: Sequence[Tier], found: Summaries) -> Iterator[tuple[int, Array]]:
        for number, tier in enumerate(tiers):
            table = found.sketches[number]
            if tier is Tier.SAMPLE:
                dtype = dtype_of(columns.patterns[number].dtype)
                yield number, self.sample(found.digests[number].tobytes(), columns.holders[number].words, dtype)
            elif tier is Tier.SKETCH and table is not None:
                yield number, table

    def _store_all(self, batch: Batch, columns: Columns, full: Sequence[int]) -> None:
        """Where the payloads lie: most as they are, those that repeat themselves or may be referred to one by one."""
        if self.checkpoint is not None:
            odd = set(full)
        else:
            odd = {number for number in full if columns.patterns[number].repeats}
        batch.stored = [number for number in full if number not in odd] if odd else list(full)
        batch.addresses = [columns.addresses[number] for number in batch.stored]
        batch.sizes = [columns.patterns[number].nbytes for number in batch.stored]
        batch.held = list(columns.holders)
        for number in sorted(odd):
            words, dtype = columns.holders[number].words, columns.patterns[number].dtype
            reference = self.refer(words, batch.digest(number), columns.roles[number], dtype)
            if reference is None:
                batch.store(number, words)
            else:
                batch.extras[number] = {**batch.extras[number], EXTRA: reference}
        if odd:
            batch.sort_payloads()


def _take(found: Summaries, places: list[int]) -> Summaries:
    return Summaries(
        found.digests[places],
        found.statistics[places],
        found.complete[places],
        [found.sketches[place] for place in places],
    )


def _finish_summarized(columns: Columns) -> Batch:
    summaries = [copy.summary for copy in columns.holders]
    kept = list(map(read_summary, summaries, columns.tiers, columns.reasons))
    tiers, reasons, values, tables = zip(*kept)
    found = join_summaries([summary.digest for summary in summaries], values)
    sketches = {number: table for number, table in enumerate(tables) if table is not None}
    return make_batch(columns, tiers, reasons, [pattern.nbytes for pattern in columns.patterns], found, sketches)


def split_runs(items: Sequence[AnyItem]) -> list[list[AnyItem]]:
    """Pieces of a sequence whose items are finished in the same way."""
    return [list(run) for _, run in groupby(items, _find_kind)]


def _find_kind(item: Any) -> int:
    if type(item) is Draft:
        record = item.record
        given = record.digest or record.statistics is not None
        return _ODD if given or not lies(item.words, record) else _PLAIN
    if type(item) is Entry:
        return _ODD
    copy = item.copy
    if copy.address or lies(copy.words, copy.form):
        return _LYING
    return _SUMMARIZED if copy.summary is not None else _ODD
