"""The companions of a session, chosen by what was asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch

from precision_align.recording.batches import BatchFacts
from precision_align.recording.beginning import Start
from precision_align.recording.calls import CallRecorder
from precision_align.recording.collectives import CollectiveRecorder, CollectiveTap
from precision_align.recording.companions import Companion
from precision_align.recording.costs import Costs
from precision_align.recording.draws import DrawTap
from precision_align.recording.eagerness import run_eagerly
from precision_align.recording.environment import has_compiled
from precision_align.recording.findings import Findings
from precision_align.recording.forcing import Forcer
from precision_align.recording.functions import FunctionRecorder, FunctionTap
from precision_align.recording.gradients import Ledger
from precision_align.recording.operators import OperatorRecorder, OperatorTap
from precision_align.recording.scaling import ScaleWatcher
from precision_align.recording.series import Series
from precision_align.recording.signals import Switch
from precision_align.recording.starting import Starter
from precision_align.recording.swapping import FunctionSwapTap, OperatorSwapTap, Swapper
from precision_align.recording.swaps import Swap, means_operators
from precision_align.recording.tape import Tape
from precision_align.recording.units import listen
from precision_align.recording.visits import GradientNorms

MODES_LEFT = (
    "a torch mode of the program's own was still open when the session ended: ours could not be removed; it does "
    "nothing from here on"
)

EAGER = (
    "torch.compile was used in this process: under the sources 'operators' and 'functions' compiled code runs eagerly "
    "or in parts, and its numbers may differ from those of the compiled run"
)


class Taps:
    """The torch modes of three sources, and of start packs. Modes form a stack: they are entered and left in order.

    A script's session begins in the middle of a call, perhaps inside modes of the script's own: there the taps are
    entered before the script starts, and do nothing until a session binds them.
    """

    def __init__(self, sources: frozenset[str], draws: bool = False, swaps: Sequence[Swap] = ()) -> None:
        self.operators = OperatorTap() if "operators" in sources else None
        self.functions = FunctionTap() if "functions" in sources else None
        self.collectives = CollectiveTap() if "collectives" in sources and has_distributed() else None
        self.draws = DrawTap() if draws else None
        self.swapped_functions = FunctionSwapTap() if swaps else None
        self.swapped_operators = OperatorSwapTap() if any(map(means_operators, swaps)) else None
        self._entered = False

    def enter(self, cleanup: contextlib.ExitStack, note: Callable[[str], None]) -> None:
        """Enter the modes; ``cleanup`` leaves them. Once only."""
        if self._entered:
            return
        self._entered = True
        if self.draws is not None:  # below the other: a function's record holds what was put in place of its draws
            self.draws.__enter__()  # type: ignore[no-untyped-call]
            cleanup.callback(_leave, self.draws, _top_function_mode, note)
        for functions in (self.swapped_functions, self.functions):  # what is recorded is the swapped call's
            if functions is not None:
                functions.__enter__()  # type: ignore[no-untyped-call]
                cleanup.callback(_leave, functions, _top_function_mode, note)
        for operators in (self.swapped_operators, self.operators):
            if operators is not None:
                operators.__enter__()  # type: ignore[no-untyped-call]
                cleanup.callback(_leave, operators, _top_dispatch_mode, note)
        if self.collectives is not None:
            self.collectives.__enter__()  # type: ignore[no-untyped-call]
            cleanup.callback(_leave, self.collectives, _top_dispatch_mode, note)


def has_distributed() -> bool:
    """Whether this torch was built with torch.distributed."""
    return bool(torch.distributed.is_available())


def _top_function_mode() -> Any:
    count = torch._C._len_torch_function_stack()
    return torch._C._get_function_stack_at(count - 1) if count else None


def _top_dispatch_mode() -> Any:
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    return _get_current_dispatch_mode()


def _leave(mode: Any, find_top: Callable[[], Any], note: Callable[[str], None]) -> None:
    if find_top() is mode:
        mode.__exit__(None, None, None)
    else:
        note(MODES_LEFT)


@dataclass(frozen=True)
class Setup:
    """What a session is made with; ``opened`` closes the switch, the trigger and the reference; ``muted``: it
    records nothing; ``eager``: compiled code runs uncompiled; ``after``: called when the dump is complete; ``start``:
    what it begins from, and writes of its beginning; ``norms``: a series of gradient norms is wanted;
    ``find_step``: the framework's number of the step that begins; ``swaps``: what is executed in another way.
    """

    taps: Optional[Taps] = None
    switch: Optional[Switch] = None
    facts: bool = False
    forcer: Optional[Forcer] = None
    opened: Optional[contextlib.ExitStack] = None
    muted: bool = False
    eager: bool = False
    after: Optional[Callable[[], None]] = None
    start: Optional[Start] = None
    norms: bool = False
    find_step: Optional[Callable[[], int]] = None
    swaps: Sequence[Swap] = ()


@dataclass
class Crew:
    """All companions; ``scales`` is asked by others too. Their errors become notes."""

    tape: Tape
    scales: ScaleWatcher
    members: Sequence[Companion]
    taps: Taps
    switch: Optional[Switch] = None
    opened: Optional[contextlib.ExitStack] = None
    muted: bool = False
    eager: bool = False
    starter: Optional[Starter] = None
    norms: Optional[GradientNorms] = None
    swapper: Optional[Swapper] = None

    def start(self, cleanup: contextlib.ExitStack) -> None:
        """The session opens."""
        if self.opened is not None:
            cleanup.push(self.opened)
        if self.eager:
            cleanup.enter_context(run_eagerly())
        self.taps.enter(cleanup, self.tape.note)
        for member in self.members:
            member.start(cleanup)

    def start_step(self) -> None:
        """A step begins."""
        self._tell("start_step")

    def meet_modules(self) -> None:
        """One more model has come in the middle of a step."""
        if self.swapper is not None:
            self.swapper.attach()

    def start_batch(self, args: Any, kwargs: Any) -> None:
        """The model is about to be called."""
        self._tell("start_batch", args, kwargs)

    def finish_step(self) -> None:
        """The running step ends."""
        self._tell("finish_step")

    def finish(self) -> None:
        """The session closes."""
        self._tell("finish")
        if (self.taps.operators is not None or self.taps.functions is not None) and has_compiled():
            self.tape.note(EAGER)

    def describe(self) -> dict[str, Any]:
        """What all companions found, for the dump's description; read it when the session has closed."""
        found: dict[str, Any] = {}
        for member in self.members:
            found.update(member.describe())
        return found

    def wants_step(self) -> bool:
        """Whether this rank records and recording is switched on from outside."""
        return not self.muted and (self.switch is None or self.switch.is_on())

    def _tell(self, what: str, *arguments: Any) -> None:
        for member in self.members:
            self.tape.guard(type(member).__name__, getattr(member, what), *arguments)


class _Units(Companion):
    """Lets registered units be heard while the session runs."""

    def __init__(self, recorder: FunctionRecorder) -> None:
        self._recorder = recorder

    def start(self, cleanup: contextlib.ExitStack) -> None:
        cleanup.callback(listen(self._recorder))


def gather_crew(
    tape: Tape,
    model: torch.nn.Module,
    calls: CallRecorder,
    ledger: Ledger,
    series: Series,
    setup: Setup,
    optimizers: Sequence[Any],
) -> Crew:
    """The companions of one session."""
    taps = setup.taps
    if taps is None:
        taps = Taps(tape.plan.sources, setup.start is not None, setup.swaps)
    findings, scales = Findings(tape), ScaleWatcher(tape)
    functions = FunctionRecorder(tape, calls, ledger, taps.functions, model)
    members: list[Companion] = [findings, scales, functions, _Units(functions)]
    if taps.operators is not None:
        members.append(OperatorRecorder(tape, calls, taps.operators, findings, model))
    if taps.collectives is not None:
        members.append(CollectiveRecorder(tape, calls, taps.collectives))
    if setup.facts:
        members += [BatchFacts(model, series, tape.clock), Costs(model, series, tape.clock)]
    if setup.forcer is not None:
        members.append(setup.forcer)
    norms = GradientNorms(series, tape.clock) if setup.norms else None
    starter = None
    if setup.start is not None and taps.draws is not None:
        starter = Starter(setup.start, taps.draws, tape, model, calls, optimizers)
        members.append(starter)
    swapper = None
    if taps.swapped_functions is not None:
        swapper = Swapper(setup.swaps, taps.swapped_functions, taps.swapped_operators, tape, model)
        members.append(swapper)
    return Crew(
        tape,
        scales,
        members,
        taps,
        setup.switch,
        setup.opened,
        setup.muted,
        setup.eager,
        starter,
        norms,
        swapper,
    )
