"""``lockstep``: two modules in one process, recorded in memory and compared."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from precision_align.comparison.engine import Engine
from precision_align.comparison.rules import Rules, load_rules
from precision_align.core.errors import NothingCaptured, UsageError
from precision_align.core.results import Divergence
from precision_align.divergence.locating import find_divergence
from precision_align.reporting.report import Report
from precision_align.storage.base import Dump
from precision_align.storage.memory import MemorySink
from precision_align.workflows.comparing import add_note, finish, leave_out_empty
from precision_align.workflows.curing import kept_state, try_cure

Step = Callable[[Any, Any], Any]


def lockstep(
    reference: Any,
    candidate: Any,
    inputs: Any,
    *,
    candidate_inputs: Any = None,
    step: Step | None = None,
    optimizers: tuple[Any, Any] | None = None,
    steps: int | None = None,
    rules: Any = None,
    library: Any = None,
) -> Report:
    """Run two modules on the same inputs and find the first place where they differ.

    ``inputs``: a tuple is positional, a dict keyword, anything else the only argument; ``candidate_inputs``: the
    candidate's own (on its device), default a copy. ``step(module, inputs)`` runs one training step, default
    one forward; ``optimizers``: (reference's, candidate's), then two steps are run unless ``steps`` says otherwise, so
    that the effect of the first update is seen. The reference's code is replayed on what the candidate recorded.
    Where a module is blamed in the first forward, that forward is run once more with the reference's outputs in place
    of the module's (the cure test), and a note says whether the model's outputs agree then.

    Nothing is written to disk. Raises UsageError for wrong arguments; what the modules raise passes through.
    """
    _check(reference, candidate, optimizers)
    spare = copy_inputs(inputs if candidate_inputs is None else candidate_inputs)
    fed = {"candidate_inputs": candidate_inputs, "step": step, "optimizers": optimizers, "steps": steps}
    with same_randomness() as rewind, kept_state(candidate) as restore:
        sides = record_sides(reference, candidate, inputs, **fed)

        def cure(engine: Engine, first: Divergence) -> str:
            restore()
            rewind()
            return try_cure(engine, first, candidate, lambda: (step or call_module)(candidate, spare))

        return judge_sides(sides, reference, rules=rules, library=library, cure=cure)


def record_sides(
    reference: Any,
    candidate: Any,
    inputs: Any,
    *,
    candidate_inputs: Any = None,
    step: Step | None = None,
    optimizers: tuple[Any, Any] | None = None,
    steps: int | None = None,
) -> tuple[Dump, Dump]:
    """Run both, with the same random numbers, and record them in memory; arguments as :func:`lockstep` takes them."""
    _check(reference, candidate, optimizers)
    run = step or call_module
    count = steps if steps is not None else (2 if optimizers is not None else 1)
    updates = optimizers if optimizers is not None else (None, None)
    fed = copy_inputs(inputs) if candidate_inputs is None else candidate_inputs
    dumps = []
    with same_randomness() as rewind:
        for module, batch, optimizer in ((reference, inputs, updates[0]), (candidate, fed, updates[1])):
            rewind()
            sink = MemorySink()
            capture = import_module("precision_align.recording.session").capture
            record = capture(module, None, optimizer=optimizer, sink=sink)
            # of a side that takes no hooks the dump holds the reason, and so does the report
            with contextlib.suppress(NothingCaptured), record as recorder:
                for _ in range(count):
                    with recorder.step():
                        run(module, batch)
            dumps.append(sink.dump())
    return dumps[0], dumps[1]


def judge_sides(
    sides: tuple[Dump, Dump],
    reference: Any,
    *,
    rules: Any = None,
    library: Any = None,
    cure: Callable[[Engine, Divergence], str] | None = None,
) -> Report:
    """The report on two recorded sides; ``reference``: the module that the first is of; ``cure``: tries the first
    divergence on the candidate itself and says in a note what came of it."""
    known = rules if rules is None or isinstance(rules, Rules) else load_rules(rules)
    theirs, lacking = leave_out_empty(sides[0], reference)
    engine = Engine(theirs, sides[1], replay=reference, rules=known)
    findings = find_divergence(engine, known)
    if findings.first is not None and cure is not None:
        findings = add_note(findings, cure(engine, findings.first))
    return finish(add_note(findings, lacking), theirs, sides[1], library)


def copy_inputs(inputs: Any) -> Any:
    """The candidate's own copy: a module may write into what it is given. What cannot be copied is shared."""
    try:
        return copy.deepcopy(inputs)
    except Exception:  # a tensor inside a graph, an open file: both sides get the same object
        return inputs


@contextlib.contextmanager
def same_randomness() -> Iterator[Callable[[], None]]:
    """Gives a function that sets the CPU's generator back to where it stands now, so that both sides draw alike."""
    torch = import_module("torch")
    start = torch.get_rng_state()
    yield lambda: torch.set_rng_state(start)


def call_module(module: Any, inputs: Any) -> Any:
    """One forward."""
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple) else module(inputs)


def _check(reference: Any, candidate: Any, optimizers: Any) -> None:
    try:
        module = import_module("torch.nn").Module
    except ImportError as error:
        raise UsageError("lockstep runs two torch modules, and torch is not installed here") from error
    for name, side in (("reference", reference), ("candidate", candidate)):
        if not isinstance(side, module):
            raise UsageError(f"{name} must be a torch.nn.Module, not {type(side).__name__}")
    if optimizers is not None and (not isinstance(optimizers, tuple) or len(optimizers) != 2):
        raise UsageError("optimizers is a pair: (reference's, candidate's)")
