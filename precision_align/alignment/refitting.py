"""A candidate's dump in the reference's form: fused modules cut into their parts, separate ones joined.

The reference's code can then be replayed on it, and every part has a partner. Cut or joined is what has the parts'
rows: weights, their gradients and optimizer state, outputs and the gradients of outputs. The gradient of a fused
module's input is a sum over its parts: the first part carries it for its caller, marked, and it is judged under the
fused module's own name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from precision_align.alignment.fusions import Fusion
from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.errors import DumpDamaged
from precision_align.core.keys import Key
from precision_align.core.records import Call, RunInfo, TensorRecord
from precision_align.core.terms import Phase, Role, Source, Tier
from precision_align.numerics.statistics import summarize
from precision_align.storage.base import Dump
from precision_align.storage.hashing import digest_words
from precision_align.storage.views import ChangedDump

# Mark of a gradient that is a fused module's whole, on the first of its parts.
WHOLE = "fused"
Make = Callable[[], Array]


class RefittedDump(ChangedDump):
    """``fusions`` with, for each, the raw scopes of the candidate's modules that it speaks of.

    ``added``: raw scope of a new module -> the reference's aligned scope. What is derived is read when the dump is made
    and kept in memory, since its hashes are needed.
    """

    def __init__(self, dump: Dump, fusions: Sequence[tuple[Fusion, tuple[str, ...]]]) -> None:
        super().__init__(dump)
        self.added: dict[str, str] = {}
        self._derived: dict[str, Array] = {}
        self._origins: dict[str, Key] = {}
        self.replaced = {scope for _, scopes in fusions for scope in scopes}
        records = [record for record in dump.records if record.key.scope not in self.replaced]
        self._records = records
        self._calls = [call for call in dump.calls if call.scope not in self.replaced]
        self._next = 1 + max((call.identity for call in dump.calls), default=0)
        for fusion, scopes in fusions:
            (self._split if fusion.whole_is_candidate else self._join)(fusion, scopes)
        self._records.sort(key=lambda record: (record.key.rank, record.key.step, record.order))
        self._calls.sort(key=lambda call: (call.rank, call.step, call.exit))
        self._positions = {str(record.key): position for position, record in enumerate(self._records)}

    def _split(self, fusion: Fusion, scopes: tuple[str, ...]) -> None:
        (raw,) = scopes
        names = [f"{raw}[{part.rpartition('.')[2]}]" for part in fusion.parts]
        self.added.update(zip(names, fusion.parts))
        rows = [fusion.find_rows(part) for part in range(len(names))]
        for record in self._dump.records:
            if record.key.scope != raw:
                continue
            axis = _find_axis(record, fusion)
            for part, name in enumerate(names):
                if _is_input_gradient(record):
                    if part == 0:
                        self._alias(record, name, {WHOLE: True})
                elif axis is None:
                    self._alias(record, name)
                else:
                    self._cut(record, name, rows[part], axis)
        for call in self._dump.calls:
            if call.scope == raw:
                for name in names:
                    self._add_call(call, name)

    def _cut(self, record: TensorRecord, scope: str, rows: Array, axis: int) -> None:
        shape = list(record.shape)
        shape[axis] = len(rows)
        self._derive([record], scope, tuple(shape), lambda: np.take(self._dump.payload(record.key), rows, axis=axis))

    def _join(self, fusion: Fusion, scopes: tuple[str, ...]) -> None:
        parent = scopes[0].rpartition(".")[0]
        name = ".".join(filter(None, (parent, "+".join(scope.rpartition(".")[2] for scope in scopes))))
        self.added[name] = fusion.whole
        groups: dict[Key, list[TensorRecord]] = defaultdict(list)
        for scope in scopes:
            for record in self._dump.records:
                if record.key.scope == scope:
                    groups[replace(record.key, scope=name)].append(record)
        for members in groups.values():
            if len(members) == len(scopes):
                self._join_records(members, name, fusion)
        calls: dict[tuple[object, ...], list[Call]] = defaultdict(list)
        for call in self._dump.calls:
            if call.scope in scopes:
                calls[call.rank, call.step, call.micro, call.call, call.pass_].append(call)
        for made in calls.values():
            if len(made) == len(scopes):
                first = min(made, key=lambda call: call.enter)
                self._add_call(replace(first, exit=max(call.exit for call in made)), name)

    def _join_records(self, members: list[TensorRecord], scope: str, fusion: Fusion) -> None:
        first = members[0]
        if _is_input_gradient(first):
            wide = "float64" if first.dtype == "float64" else "float32"
            read = self._dump.values
            self._derive(members, scope, first.shape, lambda: _add([read(one.key) for one in members], wide), wide)
            return
        axis = _find_part_axis(members, fusion)
        if axis is None:
            self._alias(first, scope)
            return
        shape = list(first.shape)
        shape[axis] = fusion.total

        def make() -> Array:
            whole = np.concatenate([self._dump.payload(one.key) for one in members], axis=axis)
            return np.take(whole, fusion.order, axis=axis)

        self._derive(members, scope, tuple(shape), make)

    def _add_call(self, call: Call, scope: str) -> None:
        self._calls.append(replace(call, scope=scope, identity=self._next))
        self._next += 1

    def _alias(self, record: TensorRecord, scope: str, extra: Mapping[str, object] | None = None) -> None:
        key = replace(record.key, scope=scope)
        self._origins[str(key)] = record.key
        self._records.append(replace(record, key=key, extra={**record.extra, **(extra or {})}))

    def _derive(
        self, sources: Sequence[TensorRecord], scope: str, shape: tuple[int, ...], make: Make, dtype: str = ""
    ) -> None:
        record = sources[0]
        key, kind = replace(record.key, scope=scope), dtype_of(dtype or record.dtype)
        order = max(one.order for one in sources)
        new = replace(record, key=key, shape=shape, stride=_strides(shape), dtype=kind.name, order=order)
        try:
            words = np.ascontiguousarray(make())
        except (KeyError, DumpDamaged):
            reason = "cut or joined to fit the reference, which needs the whole payload"
            self._records.append(
                replace(new, tier=Tier.FINGERPRINT, digest=b"", statistics=None, nbytes=0, reason=reason)
            )
            return
        self._derived[str(key)] = words
        self._records.append(
            replace(
                new,
                tier=Tier.FULL,
                digest=digest_words(words),
                statistics=summarize(words, kind),
                nbytes=words.nbytes,
                reason="",
            )
        )

    @property
    def info(self) -> RunInfo:
        """The run's information, with the new modules beside the recorded ones."""
        known = self._dump.info
        return replace(known, modules={**known.modules, **dict.fromkeys(self.added, "")})

    def _find_origin(self, position: int) -> Key:
        record = self._records[position]
        return self._origins.get(str(record.key), record.key)

    def stored_words(self, position: int) -> Array | None:
        """A copy of the payload at a position, or None."""
        record = self._records[position]
        derived = self._derived.get(str(record.key))
        if derived is not None:
            return derived.copy()
        if record.reason and record.key.scope in self.added:
            return None
        try:
            return self._dump.payload(self._find_origin(position))
        except KeyError:
            return None

    def mapped_words(self, position: int) -> Array | None:
        """The payload at a position without a copy where the recorded dump has it so."""
        record = self._records[position]
        derived = self._derived.get(str(record.key))
        if derived is not None or record.key.scope in self.added:
            return derived
        return self._dump.map_payload(record.key)

    def stored_sketch(self, position: int) -> Array | None:
        """As recorded; of what is derived none is stored."""
        return None if self._is_derived(position) else self._dump.sketch(self._find_origin(position))

    def stored_sample(self, position: int) -> Array | None:
        """As recorded; of what is derived none is stored."""
        return None if self._is_derived(position) else self._dump.sample(self._find_origin(position))

    def _is_derived(self, position: int) -> bool:
        text = str(self._records[position].key)
        return self._records[position].key.scope in self.added and text not in self._origins


def _is_input_gradient(record: TensorRecord) -> bool:
    key = record.key
    return key.source == Source.MODULE and key.role == Role.GRADIENT and key.path.partition(".")[0] == "input"


def _find_axis(record: TensorRecord, fusion: Fusion) -> int | None:
    """The dimension of a whole's tensor that the parts share out among them, or None where each has all of it."""
    key, shape = record.key, record.shape
    is_result = key.role == Role.OUTPUT or (key.phase == Phase.BACKWARD and key.path.partition(".")[0] == "output")
    if key.source == Source.MODULE and is_result:
        return len(shape) - 1 if shape and shape[-1] == fusion.total else None
    if key.role in (Role.INPUT, Role.BUFFER) or not shape:
        return None
    axis = fusion.axis if len(shape) > 1 else 0
    return axis if shape[axis] == fusion.total else None


def _find_part_axis(members: Sequence[TensorRecord], fusion: Fusion) -> int | None:
    """The same for the parts' tensors: the dimension along which they are as long as their parts."""
    first = members[0]
    if not first.shape:
        return None
    for axis in dict.fromkeys((len(first.shape) - 1, fusion.axis if len(first.shape) > 1 else 0)):
        joined = replace(first, shape=(*first.shape[:axis], fusion.total, *first.shape[axis + 1 :]))
        if [one.shape[axis] for one in members] == list(fusion.sizes) and _find_axis(joined, fusion) == axis:
            return axis
    return None


def _add(values: Sequence[Array], dtype: str) -> Array:
    return np.asarray(np.sum([value.astype(np.float64) for value in values], axis=0), dtype=dtype)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    found, size = [], 1
    for length in reversed(shape):
        found.append(size)
        size *= length
    return tuple(reversed(found))


def list_raw_scopes(names: Mapping[str, str | None], scopes: Sequence[str]) -> Iterator[str]:
    """The recorded names of modules given by their aligned ones."""
    for scope in scopes:
        yield from (raw for raw, aligned in names.items() if aligned == scope)
