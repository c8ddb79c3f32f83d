"""``compare_regimes``, ``run_regimes``: float32 semantics and native precision as one question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import chain
from typing import Any

from precision_align.core.dtypes import dtype_of
from precision_align.core.errors import UsageError
from precision_align.core.terms import Role
from precision_align.reporting.regimes import RegimesReport
from precision_align.reporting.report import Report
from precision_align.storage.base import Dump
from precision_align.workflows.comparing import compare, take_side
from precision_align.workflows.lockstep import Step, judge_sides, record_sides

FLOAT32_ROUNDOFF = dtype_of("float32").roundoff


def compare_regimes(float32: tuple[Any, Any], native: tuple[Any, Any], **options: Any) -> RegimesReport:
    """Compare two pairs of runs of the same programs: (reference, candidate) in float32, and in their native dtype.

    ``float32``, ``native``: dumps or their paths; ``options``: as :func:`~precision_align.workflows.comparing.compare`
    takes them, for both. Raises what that raises.
    """
    reports = [compare(*pair, **options) for pair in (float32, native)]
    naming = options.get("naming")
    opened = [(take_side(pair[0], naming), take_side(pair[1], naming)) for pair in (float32, native)]
    return _report(reports, *opened)


def run_regimes(
    reference: Callable[[], Any],
    candidate: Callable[[], Any],
    inputs: Any,
    *,
    step: Step | None = None,
    rules: Any = None,
    library: Any = None,
) -> RegimesReport:
    """Run two models of one process in lockstep twice: converted to float32, and as they are.

    ``reference``, ``candidate``: functions that make the ``torch.nn.Module``, on the device that it is to run on, with
    the same weights; each is called once a regime. ``inputs``: as :func:`~precision_align.workflows.lockstep.lockstep`
    takes them, on any device; ``step(module, inputs)``: one training step, default one forward. Raises UsageError for
    what makes no module; what the modules raise passes through.
    """
    reports: list[Report] = []
    sides: list[tuple[Dump, Dump]] = []
    for is_float32 in (True, False):
        models = [_make(make, name) for make, name in ((reference, "reference"), (candidate, "candidate"))]
        if is_float32:
            models = [model.float() for model in models]
        fed = [_move(inputs, model, is_float32) for model in models]
        sides.append(record_sides(models[0], models[1], fed[0], candidate_inputs=fed[1], step=step))
        reports.append(judge_sides(sides[-1], models[0], rules=rules, library=library))
    return _report(reports, *sides)


def _make(factory: Any, name: str) -> Any:
    module = import_module("torch.nn").Module
    made = factory() if callable(factory) and not isinstance(factory, module) else None
    if not isinstance(made, module):
        raise UsageError(f"{name} must be a function that makes a torch.nn.Module: one is needed for each regime")
    return made


def _move(inputs: Any, model: Any, is_float32: bool) -> Any:
    """Tensors on the model's device; floating ones in float32 for that regime."""
    torch = import_module("torch")
    owned = next(chain(model.parameters(), model.buffers()), None)

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            moved = value.detach().to(value.device if owned is None else owned.device, copy=True)
            moved = moved.float() if is_float32 and moved.is_floating_point() else moved
            return moved.requires_grad_(value.requires_grad)
        if isinstance(value, dict):
            return {key: move(item) for key, item in value.items()}
        return type(value)(map(move, value)) if type(value) in (list, tuple) else value

    return move(inputs)


def _report(reports: list[Report], float32: tuple[Dump, Dump], native: tuple[Dump, Dump]) -> RegimesReport:
    return RegimesReport(reports[0], reports[1], [*_note_low(float32), *_note_wide(native)])


def _note_low(sides: tuple[Dump, Dump]) -> Iterator[str]:
    """What computes below float32 in the float32 regime all the same: casts in the code, autocast."""
    for name, dump in zip(("reference", "candidate"), sides):
        low = Counter(record.key.scope for record in _list_low(dump))
        if low:
            first = next(iter(low)) or "(root)"
            yield (
                f"the {name} gives results below float32 in its float32 run, in {len(low)} modules, first in {first}: "
                "casts in its code or autocast make it no pure float32 run"
            )


def _note_wide(sides: tuple[Dump, Dump]) -> Iterator[str]:
    if not any(_list_low(dump) for dump in sides):
        yield "nothing is below float32 in the native runs either: the second comparison is one of float32, too"


def _list_low(dump: Dump) -> list[Any]:
    """Floating results that have fewer bits than float32."""
    results = (record for record in dump.records if record.key.role == Role.OUTPUT)
    return [
        record
        for record in results
        if dtype_of(record.dtype).is_floating and dtype_of(record.dtype).roundoff > FLOAT32_ROUNDOFF
    ]
