"""Capture sessions: the context manager around a training loop."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, Callable, Optional, Union

import torch

from precision_align.core.errors import UsageError
from precision_align.recording.beginning import NO_BEGINNING, Beginning
from precision_align.recording.crew import Setup, Taps
from precision_align.recording.eagerness import check_eager
from precision_align.recording.environment import describe_run, find_last_step
from precision_align.recording.forcing import Forcer, open_reference
from precision_align.recording.limits import NO_LIMITS, Limits
from precision_align.recording.optimizers import as_optimizers
from precision_align.recording.plan import SOURCES, Payload, Plan, Select, Steps, make_plan
from precision_align.recording.recorder import Recorder
from precision_align.recording.rings import RING_BYTES, DroppingSink, RingSink
from precision_align.recording.swaps import Swap, make_swaps
from precision_align.recording.tape import Clock, Tape
from precision_align.storage.base import Dump, Sink
from precision_align.storage.hdf5 import Hdf5Sink
from precision_align.storage.settings import DEFAULT_SETTINGS, Settings


def _certify(path: str, model: torch.nn.Module, rank: Optional[int]) -> None:
    """The offline half's work, found by name: nothing of a session needs it."""
    try:
        import_module("precision_align.workflows.certifying").certify(path, replay=model, rank=rank)
    except Exception as error:  # the dump is complete, and training goes on
        text = f"no certificate was written ({type(error).__name__}: {error}); try the verb certify on {path}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def capture(
    model: torch.nn.Module,
    path: Union[str, PathLike[str], None],
    *,
    optimizer: Any = None,
    sources: Sequence[str] = SOURCES,
    payload: Payload = "full",
    select: Select = None,
    steps: Steps = None,
    rank: Optional[int] = None,
    overwrite: bool = False,
    append: bool = False,
    sink: Optional[Sink] = None,
    budget_bytes: Optional[int] = None,
    trigger: Union[str, Sequence[str], None] = None,
    ring: int = 4,
    ring_bytes: int = RING_BYTES,
    switch: Optional[str] = None,
    facts: Optional[bool] = None,
    storage: Settings = DEFAULT_SETTINGS,
    ranks: Steps = None,
    force: Union[str, PathLike[str], Dump, None] = None,
    certify: bool = False,
    eager: bool = False,
    save_start: Union[str, PathLike[str], None] = None,
    start_from: Union[str, PathLike[str], None] = None,
    checkpoint: Union[str, PathLike[str], None] = None,
    swap: Optional[Mapping[str, str]] = None,
) -> Recorder:
    """Record what a model computes while inside; use as ``with capture(model, "runs/reference") as recorder:``.

    Outputs, gradients and updates are bit-equal with and without it.

    ``optimizer``: anything with ``step()``, or a list of them; ``sources``: of "modules", "gradients", "parameters",
    "optimizer", and beyond the default "functions" (``torch.nn.functional`` and custom operators), "operators"
    (everything that torch dispatches) and "collectives" (what ranks send each other); ``payload``: how much of each
    tensor is kept ("fingerprint", "statistics", "sketch", "sample", "full"), or a mapping scope glob -> that, the last
    match wins; ``select``: scope globs whose tensors are recorded (calls are always), or a
    :class:`~precision_align.recording.zoomplans.ZoomPlan`; ``steps``: which steps, as a collection or like "3,10-12"
    (all); ``rank``: of this process (found from torch.distributed or
    the launcher); ``ranks``: which ranks record, as ``steps``; ``path``: the dump's folder, or None with a ``sink`` of
    your own.

    ``budget_bytes``: of payload for this rank; beyond its share of it a step's tensors are kept as sketches or
    statistics, with a note. ``trigger``: keep the last ``ring`` steps in memory (at most ``ring_bytes``) and write them
    only when a condition becomes true at a step's end: "nan", "inf", "loss>3*median", "loss>12.5", "env:NAME",
    "file:PATH", "signal:USR1", or a list of them. ``switch``: record only the steps that begin while "file:PATH"
    exists, "env:NAME" is set, or after "signal:USR1" (again to stop). ``facts``: series of cheap facts of each batch,
    recorded or not (see ``batches``); by default only with a trigger. ``force``: a reference's dump, or its path: each
    call returns the reference's outputs, each output's gradient becomes the reference's, each step starts from its
    parameters; this changes the numbers on purpose, and the dump says so (see ``forcing``). ``eager``: run what
    torch.compile made uncompiled meanwhile, as no hook runs in compiled code; its numbers may differ then.

    ``save_start``: the folder of a start pack to write: parameters, buffers, the state of optimizers, schedulers and
    gradient scalers at the first recorded step, and of all recorded steps the batches and the random masks;
    ``checkpoint``: the file that holds the weights: the pack keeps their hashes alone. ``start_from``: such a pack to
    begin with, on whatever device: state, batches and masks are set from it, steps are numbered on from its own, and
    what did not match is noted (see ``starting``).

    ``swap``: module scope, function or operator (globs) -> "cpu", "composed" or "fp32": execute it on the CPU, by
    elementary operators, or in float32 out of autocast, in all steps; this changes the numbers on purpose, and the dump
    says so (see ``swaps``).

    ``storage``: how the dump is written (see :class:`~precision_align.storage.settings.Settings`): memory for tensors
    on their way, how long they may hold up training, disk space to leave free, how many steps to keep, compression.

    Raises UsageError for arguments that do not fit, DumpError when the folder is in use, and at the end
    NothingCaptured where not one call was seen.
    """
    if certify and path is None:
        raise UsageError("certify writes beside the dump's files: give the path of the dump, not a sink")
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"capture records a torch.nn.Module, not a {type(model).__name__}")
    if path is None and sink is None:
        raise UsageError("give either the path of the dump or a sink")
    plan = make_plan(sources, payload, select, steps)
    limits = Limits(budget_bytes, trigger, ring, ring_bytes, switch, facts, storage, ranks)
    return start_recorder(
        model,
        path,
        plan,
        optimizer,
        rank=rank,
        overwrite=overwrite,
        append=append,
        sink=sink,
        limits=limits,
        force=force,
        eager=eager,
        after=partial(_certify, str(path), model, rank) if certify else None,
        begin=Beginning.at(save_start, start_from, checkpoint),
        swaps=make_swaps(swap),
    )


def start_recorder(
    model: torch.nn.Module,
    path: Union[str, PathLike[str], None],
    plan: Plan,
    optimizer: Any = None,
    *,
    rank: Optional[int] = None,
    overwrite: bool = False,
    append: bool = False,
    sink: Optional[Sink] = None,
    accumulates: bool = False,
    limits: Limits = NO_LIMITS,
    taps: Optional[Taps] = None,
    force: Union[str, PathLike[str], Dump, None] = None,
    eager: bool = False,
    after: Optional[Callable[[], None]] = None,
    begin: Beginning = NO_BEGINNING,
    norms: bool = False,
    find_step: Optional[Callable[[], int]] = None,
    swaps: Sequence[Swap] = (),
) -> Recorder:
    """A session from checked arguments; opens the dump. ``find_step``: the framework's number of the step that begins.

    Raises as :func:`capture`.
    """
    limits.check()
    check_eager(eager)
    path = None if path is None else str(Path(path).absolute())  # the run may change the working directory
    optimizers = as_optimizers(optimizer)
    info = describe_run(model, plan, rank)
    info = replace(info, capture={**info.capture, **limits.describe(), **({"eager": True} if eager else {})})
    first = find_last_step(str(path), info.rank) + 1 if append and sink is None else 0
    with ExitStack() as opened:
        pack = begin.open(info.rank, opened)
        if pack is not None:
            first = max(first, pack.step)
            info = replace(info, capture={**info.capture, "started_from": pack.info.run})
        reference = open_reference(force, info.rank, plan, opened)
        if reference is not None:
            info = replace(info, forced=True, capture={**info.capture, "forced_from": reference.dump.info.run})
        switch = limits.make_switch(opened)
        trigger = limits.make_trigger(opened)
        muted = not limits.wants_rank(info.rank)
        if muted:
            sink = DroppingSink()
        elif sink is None:
            sink = Hdf5Sink(str(path), info, overwrite=overwrite, append=append, settings=limits.storage)
        kept = opened.pop_all()  # from here on the session closes them
    if trigger is not None:
        sink = RingSink(sink, trigger, limits.ring, limits.ring_bytes)
    clock = Clock(first - 1)
    start = None if muted else begin.make(pack, info, clock, limits.storage, overwrite)
    tape = Tape(sink, plan, info.rank, clock, budget=limits.make_budget(plan))
    forcer = None if reference is None else Forcer(reference, tape, model)
    setup = Setup(taps, switch, limits.wants_facts, forcer, kept, muted, eager, after, start, norms, find_step, swaps)
    return Recorder(model, tape, info, optimizers, accumulates, setup)
