"""Drafts whose record is put together only when somebody asks for it, from parts that are the same in every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Union

from precision_align.core.dtypes import Array
from precision_align.core.keys import Key, escape
from precision_align.core.records import Call, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.numerics.batches import Values


@dataclass(frozen=True, eq=False)
class Form:
    """What is known of a tensor without its values, as in :class:`~precision_align.core.records.TensorRecord`."""

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    layout: str
    device: str
    requires_grad: bool
    nbytes: int
    reason: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Slot:
    """A place for a record in every step: its key but for the step and the micro-batch; ``extra`` of the record."""

    rank: int
    source: Source
    scope: str
    call: int
    pass_: Pass
    op: str
    ordinal: int
    phase: Phase
    role: Role
    path: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    def key(self, step: int, micro: int) -> Key:
        """The key of the record of one step."""
        return Key(
            step,
            micro,
            self.rank,
            self.source,
            self.scope,
            self.call,
            self.pass_,
            self.op,
            self.ordinal,
            self.phase,
            self.role,
            self.path,
        )

    @cached_property
    def tail(self) -> str:
        """The text of the key behind step and micro-batch."""
        parts = (self.scope, str(self.call), self.pass_, self.op, str(self.ordinal), self.phase, self.role, self.path)
        return "/".join((str(self.rank), self.source, *map(escape, parts)))


@dataclass(eq=False)
class Summary:
    """What was made of a tensor on its device, filled in at the step's end; ``reason``: why there is nothing.

    ``values``: those of the statistics; ``sketch``: None where none was asked for.
    """

    digest: bytes = b""
    values: Values | None = None
    sketch: Array | None = None
    reason: str = ""


class Copy(Protocol):
    """A tensor that was copied: its form, its words or None (see :class:`~precision_align.storage.base.Draft`).

    ``summary``: of a tensor on a device what is kept in place of its words, None of one that was copied.
    ``address``: where plain words lie, not 0 only where they are as the form says, in C order.
    """

    @property
    def address(self) -> int: ...

    @property
    def form(self) -> Form: ...

    @property
    def words(self) -> Array | None: ...

    @property
    def parts(self) -> Sequence[tuple[str, Any]]: ...

    @property
    def summary(self) -> Summary | None: ...


class DeferredDraft:
    """What a :class:`~precision_align.storage.base.Draft` is, at the price of a few references."""

    __slots__ = ("_record", "copy", "micro", "order", "reason", "slot", "step", "tier")

    def __init__(self, slot: Slot, step: int, micro: int, order: int, tier: Tier, reason: str, copy: Copy) -> None:
        self.slot, self.step, self.micro, self.order = slot, step, micro, order
        self.tier, self.reason, self.copy = tier, reason, copy

    @property
    def words(self) -> Array | None:
        """The raw words."""
        return self.copy.words

    @property
    def record(self) -> TensorRecord:
        """The record without digest and statistics."""
        found: TensorRecord | None = getattr(self, "_record", None)
        if found is None:
            found = self._record = make_record(self)
        return found


def make_record(draft: DeferredDraft) -> TensorRecord:
    """The record of anything that has a deferred draft's attributes."""
    form, slot = draft.copy.form, draft.slot
    extra = {**form.extra, **slot.extra}
    if not draft.copy.address and draft.copy.parts:
        extra["parts"] = [name for name, _ in draft.copy.parts]
    return TensorRecord(
        key=slot.key(draft.step, draft.micro),
        dtype=form.dtype,
        shape=form.shape,
        stride=form.stride,
        layout=form.layout,
        device=form.device,
        requires_grad=form.requires_grad,
        order=draft.order,
        tier=draft.tier,
        nbytes=form.nbytes,
        reason=form.reason or draft.reason,
        extra=extra,
    )


class DeferredCall(NamedTuple):
    """A call by the values of its fields, in their order: a frozen dataclass takes several times as long to make."""

    values: tuple[Any, ...]

    def call(self) -> Call:
        """The call itself."""
        return Call(*self.values)


Item = Union[DeferredDraft, DeferredCall, Call]
