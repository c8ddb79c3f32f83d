"""The one place where records leave the session: numbering, staging, notes."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple, Optional, Union

import torch

from precision_align.core.records import OPTIMIZER_SCOPE, Call, Point, RunInfo
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.recording.budgets import Budget
from precision_align.recording.copies import Staged
from precision_align.recording.native import make_tray
from precision_align.recording.plan import Plan
from precision_align.recording.sightings import same_bits
from precision_align.recording.staging import Stager
from precision_align.recording.sums import Sums
from precision_align.recording.trays import Tray
from precision_align.storage.base import Sink, put_all
from precision_align.storage.drafts import DeferredCall, DeferredDraft, Slot
from precision_align.storage.settings import default_staging_bytes

# A batch goes to the sink when it has so many bytes or items. Each hand-over wakes the writer, which then fights for
# the interpreter's lock with the training: batches of 1 MiB cost the small benchmark model's step 5 to 10 % more of the
# training thread's CPU than these. They stay far below what may wait for the writer.
_BATCH_BYTES = 8 << 20
BATCH_ITEMS = 1024
_BATCHES_STAGED = 16
# About 0.5 KB each. Records of one step of a large model are fewer.
_MAX_SLOTS = 1 << 17


class Place(NamedTuple):
    """The call a record belongs to; ``number``: which of the calls of ``op`` within the module's call."""

    step: int
    micro: int
    scope: str
    call: int
    pass_: Pass = Pass.FIRST
    source: Source = Source.MODULE
    op: str = ""
    number: int = 0


class Clock:
    """Where the run is: ``step`` and ``micro`` from 0, -1 before the first.

    ``recording``: this step is wanted; ``stepping``: an optimizer's ``step`` runs.
    """

    __slots__ = ("identities", "micro", "recording", "step", "stepping")

    def __init__(self, step: int = -1) -> None:
        self.step, self.micro = step, -1
        self.recording = self.stepping = False
        self.identities: itertools.count[int] = itertools.count()

    def next_identity(self) -> int:
        """A number for one call, unique in the step, in order of entry."""
        return next(self.identities)

    @property
    def batch(self) -> int:
        """The micro-batch that records of now belong to."""
        return max(self.micro, 0)


class Shelf:
    """The slots of one place's records, the same in every step."""

    __slots__ = ("_fixed", "_gradients", "_rank", "slots", "tier")

    def __init__(self, rank: int, place: Place, tier: Tier) -> None:
        self._rank, self.tier = rank, tier
        self._fixed = (place.scope, place.call, place.pass_, place.op)
        self.slots: dict[tuple[Any, ...], Slot] = {}
        self._gradients: dict[str, Slot] = {}

    def gradient(self, source: Source, path: str, number: int, extra: Mapping[str, Any]) -> Slot:
        """The slot of a gradient; those of a place and path are nearly always alike."""
        known = self._gradients.get(path)
        if known is None or known.ordinal != number or known.source is not source or known.extra != extra:
            known = self.find(source, Phase.BACKWARD, Role.GRADIENT, path, number, extra)
            self._gradients[path] = known
        return known

    def find(
        self, source: Source, phase: Phase, role: Role, path: str, ordinal: int, extra: Optional[Mapping[str, Any]]
    ) -> Slot:
        """The slot of a record."""
        try:
            looks = (source, phase, role, path, ordinal, *(extra.items() if extra else ()))
            return self.slots[looks]
        except KeyError:
            if len(self.slots) >= _MAX_SLOTS:  # extras that never come again
                self.slots.clear()
            slot = self.slots[looks] = self._make(source, phase, role, path, ordinal, extra)
            return slot
        except TypeError:  # a list in extra
            return self._make(source, phase, role, path, ordinal, extra)

    def _make(
        self, source: Source, phase: Phase, role: Role, path: str, ordinal: int, extra: Optional[Mapping[str, Any]]
    ) -> Slot:
        scope, call, pass_, op = self._fixed
        return Slot(self._rank, source, scope, call, pass_, op, ordinal, phase, role, path, extra or {})


@dataclass
class Tape:
    """Hands drafts, calls and points to the sink, in the order of one session-wide counter.

    ``lost``: why the sink, now closed, could write nothing at all.

    Methods may be called from any thread (autograd runs hooks on its device threads). What a record has in common with
    that of other steps is made once (:class:`~precision_align.storage.drafts.Slot`), and records go to the sink in
    batches: each hand-over wakes the writer, and would make it fight for the interpreter's lock.
    """

    sink: Sink
    plan: Plan
    rank: int
    clock: Clock = field(default_factory=Clock)
    notes: list[str] = field(default_factory=list)
    budget: Optional[Budget] = None
    lost: str = ""
    sums: Sums = field(default_factory=Sums)
    lock: threading.RLock = field(default_factory=threading.RLock)
    tray: Tray = field(default_factory=make_tray)
    shelves: dict[tuple[Any, ...], Shelf] = field(default_factory=dict)
    # Their summaries may still be on the device; and the copy that a draft must differ from to be recorded.
    _unsettled: list[tuple[DeferredDraft, Staged, Optional[Staged]]] = field(default_factory=list)
    batch_bytes: int = field(default_factory=lambda: min(_BATCH_BYTES, default_staging_bytes() // _BATCHES_STAGED))

    def __post_init__(self) -> None:
        self.stager = Stager(note=self.note)

    @property
    def num_records(self) -> int:
        """How many tensors so far."""
        return self.tray.num_records

    @property
    def num_calls(self) -> int:
        """How many calls so far, but for those of optimizers."""
        return self.tray.num_calls

    def tick(self) -> int:
        """The next sequence number."""
        return self.tray.tick()

    def note(self, text: str) -> None:
        """Remember, once, something that was not recorded."""
        with self.lock:
            if text not in self.notes:
                self.notes.append(text)
                self.sink.note(text)

    def stage(self, tensor: torch.Tensor, tier: Tier = Tier.FULL, *, reuse: bool = True) -> Staged:
        """A copy of the tensor, possibly one that was made before; ``tier``: what will be kept of it at the most.

        ``reuse``: see :meth:`~precision_align.recording.staging.Stager.stage`.
        """
        with self.lock:
            return self.stager.stage(tensor, tier, reuse=reuse)

    def forget_written(self, tensors: Iterable[torch.Tensor]) -> None:
        """An operator has written these: their next copies are made anew."""
        with self.lock:
            self.stager.forget_written(tensors)

    def record(
        self,
        place: Place,
        source: Source,
        phase: Phase,
        role: Role,
        path: str,
        tensor: torch.Tensor,
        *,
        ordinal: int = 0,
        extra: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """Copy a tensor and hand it to the sink."""
        staged = self.stage(tensor, self.plan.tier(place.scope))
        self.hand_over(place, source, phase, role, path, staged, ordinal=ordinal, extra=extra)

    def hand_over(
        self,
        place: Place,
        source: Source,
        phase: Phase,
        role: Role,
        path: str,
        staged: Staged,
        *,
        ordinal: int = 0,
        order: Optional[int] = None,
        extra: Optional[Mapping[str, Any]] = None,
    ) -> None:
        """Hand a tensor that was copied before (at ``order``) to the sink; a sparse one's parts follow as path#part."""
        number = place.number if place.op else ordinal
        self.put(self.find_shelf(place), place, source, phase, role, path, number, staged, extra, order)

    def find_shelf(self, place: Place) -> Shelf:
        """Where the slots of a place's records are; the same object for the same call of every step."""
        looks = place[2:7]
        found = self.shelves.get(looks)
        if found is None:
            if len(self.shelves) >= _MAX_SLOTS:
                self.shelves.clear()
            found = self.shelves[looks] = Shelf(self.rank, place, self.plan.tier(place.scope))
        return found

    def put(
        self,
        shelf: Shelf,
        place: Place,
        source: Source,
        phase: Phase,
        role: Role,
        path: str,
        number: int,
        staged: Staged,
        extra: Optional[Mapping[str, Any]],
        order: Optional[int] = None,
    ) -> None:
        """As :meth:`hand_over`, where the shelf is known; ``number``: the ordinal in the key."""
        slot = None if extra else shelf.slots.get((source, phase, role, path, number))
        if slot is None:
            slot = shelf.find(source, phase, role, path, number, extra)
        with self.lock:
            self._append(shelf, slot, place.step, place.micro, staged, order)

    def take(self, shelf: Shelf, slot: Slot, step: int, micro: int, tensor: torch.Tensor) -> None:
        """As :meth:`record`, where the slot is known."""
        with self.lock:
            self._append(shelf, slot, step, micro, self.stager.stage(tensor, shelf.tier), None)

    def put_if_changed(self, shelf: Shelf, place: Place, path: str, buffer: Staged, before: Optional[Staged]) -> None:
        """A module's buffer, unless its bits are those of ``before``; of what is on a device that is known later."""
        slot = shelf.find(Source.MODULE, Phase.FORWARD, Role.BUFFER, path, 0, None)
        with self.lock:
            if before is None or not (buffer.is_awaited or before.is_awaited):
                if not same_bits(buffer, before):
                    self._append(shelf, slot, place.step, place.micro, buffer, None)
            elif buffer is not before:
                self._append(shelf, slot, place.step, place.micro, buffer, None, before)

    def _append(
        self,
        shelf: Shelf,
        slot: Slot,
        step: int,
        micro: int,
        staged: Staged,
        order: Optional[int],
        before: Optional[Staged] = None,
    ) -> None:
        tier, reason = (shelf.tier, "") if self.budget is None else self.budget.choose(shelf.tier, staged)
        if order is None:
            order = self.tray.tick()
        draft = DeferredDraft(slot, step, micro, order, tier, reason, staged)
        tray = self.tray
        tray.num_records += 1
        if staged.summary is not None or before is not None:
            self._unsettled.append((draft, staged, before))
            if not self._unsettled[0][1].is_awaited:  # so many that the device handed them over early
                self._settle()
            return
        tray.items.append(draft)
        tray.nbytes += staged.form.nbytes
        if tray.nbytes >= self.batch_bytes or len(tray.items) >= BATCH_ITEMS:
            self._hand_on()
        for name, part in staged.parts or ():
            path = f"{slot.path}#{name}"
            own = shelf.find(slot.source, slot.phase, slot.role, path, slot.ordinal, slot.extra)
            self._append(shelf, own, step, micro, part, None)

    def call(self, call: Union[Call, DeferredCall]) -> None:
        """Hand a finished call to the sink."""
        with self.lock:
            self.tray.num_calls += isinstance(call, DeferredCall) or not call.scope.startswith(OPTIMIZER_SCOPE)
            self.tray.items.append(call)

    def point(self, point: Point) -> None:
        """Hand one value of a series to the sink."""
        with self.lock:
            self.sink.put_point(point)

    def _hand_on(self) -> None:
        tray = self.tray
        items, nbytes = tray.items, tray.nbytes
        tray.items, tray.nbytes = [], 0
        if items:
            self.guard("records", put_all, self.sink, items, nbytes)

    def _settle(self) -> None:
        """Let what is still on devices come, and hand all on."""
        self.stager.settle()
        found, self._unsettled = self._unsettled, []
        drafts = [draft for draft, staged, before in found if before is None or not same_bits(staged, before)]
        self.tray.num_records -= len(found) - len(drafts)
        self.tray.items += drafts
        self.tray.nbytes += sum(draft.copy.form.nbytes for draft in drafts if draft.copy.address)
        self._hand_on()

    def hand_on(self) -> None:
        """Give the sink what it has not got yet."""
        with self.lock:
            self._settle()

    def end_step(self, step: int) -> None:
        """Forget copies and make the step durable."""
        with self.lock:
            self._settle()
            self.stager.forget()
            overrun = "" if self.budget is None else self.budget.finish_step(step)
            if overrun:
                self.note(overrun)
            self.sink.end_step(step)

    def close(self, info: RunInfo) -> None:
        """Hand over what is left, and close the sink."""
        with self.lock:
            self._settle()
            self.stager.release()
            self.sink.close(info)
            told = getattr(self.sink, "notes", ())  # what the sink itself could not do
            self.notes.extend(note for note in told if note not in self.notes)
            self.lost = str(getattr(self.sink, "lost", ""))

    def forget_copies(self) -> None:
        """Tensors may have changed unseen: no copy is used again."""
        with self.lock:
            self.stager.forget()

    def release(self) -> None:
        """Steps that are not recorded follow: the memory for copies is not needed for now."""
        with self.lock:
            self.stager.release()

    def guard(self, what: str, action: Callable[..., Any], *arguments: Any) -> None:
        """Run our own work inside the user's: an error of ours becomes a note."""
        try:
            action(*arguments)
        except Exception as error:
            self.excuse(what, error)

    def excuse(self, where: str, error: BaseException) -> None:
        """An error of our own inside the user's run: training goes on, the dump says what is missing."""
        first_line = (str(error).splitlines() or [""])[0]
        self.note(f"{where}: not recorded, {type(error).__name__}: {first_line}")
