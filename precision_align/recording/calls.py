"""Module calls: frames, numbering, and what is copied before and after each."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Optional

import torch

from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.core.trees import Tree
from precision_align.recording.consumers import Targets
from precision_align.recording.copies import Staged
from precision_align.recording.forcing import Forcer
from precision_align.recording.gradients import Ledger, Output, watch_call
from precision_align.recording.modes import call_modes, enabled_autocast
from precision_align.recording.nodes import graph_task, running_node
from precision_align.recording.origins import caller_line
from precision_align.recording.randomness import describe_generators
from precision_align.recording.recomputation import FirstCall, Recomputations, point_at
from precision_align.recording.replicas import Replica, find_replica, is_replica
from precision_align.recording.sightings import Sighting, describe_origin, shares_memory
from precision_align.recording.sites import Site
from precision_align.recording.structures import Leaves, flatten_arguments, flatten_call, prefixed
from precision_align.recording.substitution import substitute
from precision_align.recording.tape import Place, Shelf, Tape
from precision_align.storage.drafts import DeferredCall

# First part of the path of an output record that holds an argument as the call left it.
WRITTEN = "written"
_NOTHING: Tree = {"kind": "scalar", "value": None}


class Frame:
    """One running call."""

    __slots__ = (
        "arguments",
        "autocast",
        "buffers",
        "counted",
        "enter",
        "grad_enabled",
        "identity",
        "modes",
        "module",
        "origin",
        "pair",
        "parent",
        "place",
        "raised_before",
        "random",
        "repeats",
        "replica",
        "seen",
        "shelf",
        "site",
        "targets",
        "training",
    )

    def __init__(
        self, site: Site, place: Place, shelf: Shelf, identity: int, parent: int, enter: int, arguments: Tree
    ) -> None:
        self.module = module = site.module
        self.site, self.place, self.shelf, self.identity, self.parent = site, place, shelf, identity, parent
        self.enter, self.arguments = enter, arguments
        self.origin = caller_line()
        self.raised_before = sys.exc_info()[1]
        self.autocast = enabled_autocast()
        self.modes, self.random = call_modes(), describe_generators()
        self.training = bool(module.training)
        self.grad_enabled = torch.is_grad_enabled()
        self.targets = Targets()
        self.seen: dict[int, Sighting] = {}
        self.buffers: dict[str, Staged] = {}
        self.repeats: Optional[FirstCall] = None
        self.pair: Any = None
        self.replica: Optional[Replica] = None
        self.counted = place.pass_ is Pass.FIRST

    def remember(self, tensor: torch.Tensor, path: str, staged: Optional[Staged]) -> None:
        """A child returned this tensor; what was seen before stays the origin while it still holds."""
        known = self.seen.get(id(tensor))
        if known is None or not known.holds(tensor, staged):
            self.seen[id(tensor)] = Sighting.loosely(tensor, path, staged)


class CallRecorder:
    """Follows module calls on every thread and records them; ``lane``: its compiled twin, where there is one."""

    def __init__(self, tape: Tape, ledger: Ledger) -> None:
        self._tape, self._ledger = tape, ledger
        self._local = threading.local()
        self.numbers: dict[tuple[int, str, Pass, int], int] = {}
        self._latest: list[Frame] = []  # the calls of the thread that last began one on no replica
        self._recomputations = Recomputations()
        self.sites: dict[str, Site] = {}
        self._modes: tuple[Any, Any, Mapping[str, Any]] = (None, None, {})
        self.called: set[str] = set()
        self.lane: Any = None
        self._lock = threading.Lock()
        self._num_open = 0
        self.forcer: Optional[Forcer] = None
        self._with_tensors = "modules" in tape.plan.sources
        self._with_gradients = "gradients" in tape.plan.sources

    def is_outermost(self, scope: str) -> bool:
        """Whether a call entered now would be a forward of its own, not part of another (or of a recomputation).

        Worker threads (DataParallel) see an empty stack while the root's call is open on another thread.
        """
        return graph_task() == -1 and not self.frames and (scope == "" or self._num_open == 0)

    def start_step(self) -> None:
        """Number calls from 0 again; frames that a KeyboardInterrupt or an early stop left behind are dropped."""
        with self._lock:
            self.numbers.clear()
            self._recomputations.clear()
            self._num_open = 0
            self._local = threading.local()
            self._latest = []
        if self.lane is not None:
            self.lane.reset()

    @property
    def open_frames(self) -> Sequence[Frame]:
        """The module calls that run on this thread, the innermost last."""
        return self.frames

    @property
    def frames(self) -> list[Frame]:
        """The same, to be changed."""
        try:
            stacks: dict[int, list[Frame]] = self._local.frames
        except AttributeError:
            stacks = self._local.frames = {}
        task = graph_task()
        if task not in stacks:
            stacks[task] = []
        return stacks[task]

    def enter(self, frames: list[Frame], module: torch.nn.Module, scope: str, args: Any, kwargs: Any) -> None:
        """Before a module's forward; ``frames``: the calls around it."""
        above = frames[-1] if frames else None
        tree, leaves = flatten_call(args, kwargs)
        replica = None
        if is_replica(module):
            above, replica = self._place_replica(above, leaves)
        elif frames is not self._latest:
            self._latest = frames
        place, identity = self._number(scope, Pass.FIRST if graph_task() == -1 else Pass.RECOMPUTE, replica)
        site = self._find_site(module, scope)
        parent = -1 if above is None else above.identity
        frame = Frame(site, place, self._tape.find_shelf(place), identity, parent, self._tape.tick(), tree)
        frame.replica = replica
        self._relate(frame, above, leaves)
        frames.append(frame)
        if frame.counted:
            with self._lock:
                self._num_open += 1
        if site.wanted:
            self._take_inputs(frame, leaves)

    def _place_replica(self, above: Optional[Frame], leaves: Leaves) -> tuple[Optional[Frame], Optional[Replica]]:
        """The caller of a replica's call, which runs on another thread, and which replica it is."""
        if above is not None:
            return above, above.replica
        holder = self._latest[-1] if self._latest else None
        return holder, find_replica(None if holder is None else holder.module, [tensor for _, tensor in leaves])

    def _find_site(self, module: torch.nn.Module, scope: str) -> Site:
        site = self.sites.get(scope)
        if site is None or site.module is not module:
            site = Site(module, scope, self._tape.plan.wants_scope(scope))
            self.called.add(scope)
            if not is_replica(module):  # DataParallel makes new ones for every call
                self.sites[scope] = site
        return site

    def leave(self, module: torch.nn.Module, output: Any) -> Any:
        """After a module's forward, or after it raised; a call whose entry was never seen is ignored.

        Returns what the module is to return instead, None (nearly always) for what it has returned.
        """
        frames = self.frames
        if not self._unwind(frames, module):
            return None
        frame = frames.pop()
        raised = sys.exc_info()[1]
        if raised is not None and raised is not frame.raised_before:
            self._close(frame, _NOTHING, f"{type(raised).__name__}: {raised}")
            return None
        tree, leaves = flatten_arguments(output)
        forced: dict[int, torch.Tensor] = {}
        if frame.site.wanted:
            forced = self._take_outputs(frame, frames[-1] if frames else None, leaves)
        self._close(frame, tree, "")
        return substitute(output, forced) if forced else None

    def _unwind(self, frames: list[Frame], module: torch.nn.Module) -> bool:
        """Close calls inside of this module's whose end was not seen; False where it has none itself."""
        if not any(frame.module is module for frame in reversed(frames)):
            return False
        while frames[-1].module is not module:
            self._close(frames.pop(), _NOTHING, "its end was not seen")
        return True

    def _relate(self, frame: Frame, above: Optional[Frame], leaves: Leaves) -> None:
        """Remember a call that may be repeated in the backward pass, or find the one that this call repeats."""
        if not self._with_gradients or frame.grad_enabled is (frame.place.pass_ is Pass.FIRST):
            return
        pointers = point_at([tensor for _, tensor in leaves])
        with self._lock:
            if frame.place.pass_ is Pass.FIRST:
                self._recomputations.remember(FirstCall(frame.place, frame.identity, frame.parent, pointers))
            else:
                repeated = above.repeats if above is not None else None
                frame.repeats = self._recomputations.match(frame.place.scope, repeated, pointers, running_node())

    def abandon(self) -> None:
        """Close what is still open on this thread (the session ends inside a call)."""
        for frames in getattr(self._local, "frames", {}).values():
            while frames:
                self._close(frames.pop(), _NOTHING, "its end was not seen")

    def _number(self, scope: str, pass_: Pass, replica: Optional[Replica]) -> tuple[Place, int]:
        clock = self._tape.clock
        batch = clock.batch
        index, count = (0, 1) if replica is None else replica
        key = (batch, scope, pass_, index)
        with self._lock:
            number = self.numbers.get(key, 0)
            self.numbers[key] = number + 1
            call = number * count + index
            return Place(clock.step, batch, scope, call, pass_), next(clock.identities)

    def _take_inputs(self, frame: Frame, leaves: Leaves) -> None:
        if self._with_gradients and frame.grad_enabled:
            for path, tensor in leaves:
                frame.targets.add(prefixed("input", path), tensor)
            for name, parameter in frame.site.own_parameters():
                frame.targets.add(prefixed("parameter", name), parameter)
            frame.targets.set_boundary()
        inputs = {}
        for path, tensor in leaves:
            staged = self._copy(frame, tensor)
            if staged is not None:
                inputs[path] = staged
            known = frame.seen.get(id(tensor))
            if known is None:
                frame.seen[id(tensor)] = Sighting.of(tensor, prefixed("input", path), staged)
            self._hand_over(frame, Role.INPUT, path, staged, None if known is None else {"same_as": known.path})
        if self.forcer is not None:
            frame.pair = self.forcer.pair(frame.place, inputs, frame.repeats.place if frame.repeats else None)
        if self._with_tensors:
            self._take_buffers(frame)

    def _take_buffers(self, frame: Frame) -> None:
        for name, buffer in frame.site.own_buffers():
            frame.buffers[name] = self._tape.stage(buffer, self._tier(frame), reuse=False)
            self._hand_over(frame, Role.BUFFER, prefixed("before", name), frame.buffers[name])

    def _take_outputs(self, frame: Frame, parent: Optional[Frame], leaves: Leaves) -> dict[int, torch.Tensor]:
        """Record the outputs; returns what to put in their place in a forced session: id of a tensor -> another."""
        outputs: list[Output] = []
        forced: dict[int, torch.Tensor] = {}
        returned = {id(tensor) for _, tensor in leaves}
        for path, tensor in leaves:
            staged = self._copy(frame, tensor)
            known = frame.seen.get(id(tensor))
            extra = describe_origin(known, tensor, staged)
            own, given = staged, tensor
            if self.forcer is not None and frame.pair is not None:
                tensor, staged = self._force(frame, path, tensor, staged, extra, forced)
            told = extra if tensor is given else {**extra, "forced": True}
            self._hand_over(frame, Role.OUTPUT, path, own, told)
            local = prefixed("output", path)
            if len(leaves) > 1:
                frame.seen[id(tensor)] = Sighting.of(tensor, local, staged)
            if parent is not None:
                parent.remember(tensor, name_result(frame.place.scope, frame.place.call, local), staged)
            outputs.append(Output(local, tensor, extra))
        self._take_written_inputs(frame, returned)
        self._take_changed_buffers(frame)
        if self._with_gradients and frame.grad_enabled:
            if frame.repeats is None:
                watch_call(self._ledger, frame.place, outputs, frame.targets, {})
            else:
                watch_call(self._ledger, frame.repeats.place, outputs, frame.targets, {"recomputed": True})
        return forced

    def _force(
        self,
        frame: Frame,
        path: str,
        tensor: torch.Tensor,
        staged: Optional[Staged],
        extra: Mapping[str, str],
        forced: dict[int, torch.Tensor],
    ) -> tuple[torch.Tensor, Optional[Staged]]:
        """The tensor that goes on from here, and its copy: the reference's, or the own where it is to stay."""
        if self.forcer is None or "@" in extra.get("same_as", ""):
            return tensor, staged  # a child's output, which was forced there
        if id(tensor) not in forced:
            inputs = [known.reference() for known in frame.seen.values() if known.path.startswith("input")]
            aliases = bool(extra) or any(other is not None and shares_memory(tensor, other) for other in inputs)
            other = self.forcer.force_output(frame.pair, frame.place, path, tensor, staged, aliases)
            if other is None:
                return tensor, staged
            forced[id(tensor)] = other
        return forced[id(tensor)], self._copy(frame, forced[id(tensor)])

    def _take_written_inputs(self, frame: Frame, returned: set[int]) -> None:
        """Inputs that the call wrote into without returning them (a cache): outputs under "written.PATH"."""
        for known in list(frame.seen.values()):
            if known.path[:6] != "input.":
                continue
            tensor = known.reference()
            if tensor is None or id(tensor) in returned or (frame.site.is_stock and known.has_version_of(tensor)):
                continue
            staged = self._copy(frame, tensor)
            if staged is not None and not known.holds(tensor, staged):
                path = prefixed(WRITTEN, known.path[6:])
                self._hand_over(frame, Role.OUTPUT, path, staged, {"overwrites": known.path})

    def _take_changed_buffers(self, frame: Frame) -> None:
        if not self._with_tensors:
            return
        for name, buffer in frame.site.own_buffers():
            staged, path = self._tape.stage(buffer, self._tier(frame), reuse=False), prefixed("after", name)
            self._tape.put_if_changed(frame.shelf, frame.place, path, staged, frame.buffers.get(name))

    def _tier(self, frame: Frame) -> Tier:
        """What is kept of the tensors of a call; a forced session compares their words."""
        return frame.shelf.tier if self.forcer is None else Tier.FULL

    def _copy(self, frame: Frame, tensor: torch.Tensor) -> Optional[Staged]:
        return self._tape.stage(tensor, self._tier(frame)) if self._with_tensors else None

    def _hand_over(
        self, frame: Frame, role: Role, path: str, staged: Optional[Staged], extra: Optional[Mapping[str, Any]] = None
    ) -> None:
        if staged is not None:
            self._tape.put(frame.shelf, frame.place, Source.MODULE, Phase.FORWARD, role, path, 0, staged, extra)

    def _close(self, frame: Frame, output: Tree, error: str) -> None:
        if frame.counted:
            with self._lock:
                self._num_open -= 1
        site, place = frame.site, frame.place
        drawn = describe_generators() if site.may_draw else frame.random
        values = (
            place.step,
            place.micro,
            self._tape.rank,
            place.scope,
            place.call,
            place.pass_,
            site.kind,
            frame.identity,
            frame.parent,
            frame.enter,
            self._tape.tick(),
            site.is_leaf,
            frame.training,
            frame.grad_enabled,
            frame.arguments,
            output,
            site.attributes,
            frame.autocast,
            self._describe_modes(frame, drawn),
            frame.origin,
            error,
        )
        self._tape.call(DeferredCall(values))

    def _describe_modes(self, frame: Frame, drawn: Mapping[str, str]) -> Mapping[str, Any]:
        """The modes with the generators' states, one object while nothing changes."""
        before, random, merged = self._modes
        if before is not frame.modes or random is not frame.random:
            merged = {**frame.modes, "rng": frame.random}
            self._modes = (frame.modes, frame.random, merged)
        return merged if drawn is frame.random or drawn == frame.random else {**merged, "rng_after": drawn}


@lru_cache(maxsize=1 << 14)
def name_result(scope: str, call: int, path: str) -> str:
    return f"{scope}@{call}:{path}"
