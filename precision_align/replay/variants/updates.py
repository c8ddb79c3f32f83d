"""An optimizer's step done otherwise: another decay, no bias correction, eps in another place, no update at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Optional

import numpy as np
import torch

from precision_align.core.dtypes import Array, Dtype, dtype_of
from precision_align.numerics.judgement import round_once, settle
from precision_align.replay.replayability import NotReplayable
from precision_align.replay.updates import Group, Result, Update, find_optimizer, run_update
from precision_align.replay.values import load_tensor, to_array
from precision_align.replay.variants.searching import KEPT, Found, measure_distance
from precision_align.storage.base import Dump

State = dict[str, Any]
Edit = Callable[[State, torch.Tensor], None]

# AdamW decays the weights, Adam adds the decay to the gradient.
_OTHER_DECAY = {"torch.optim.adam.Adam": "torch.optim.adamw.AdamW", "torch.optim.adamw.AdamW": "torch.optim.adam.Adam"}
_ADAM = ("Adam", "AdamW")
# Values in use, of which a build may take another one.
_USUAL = {
    "eps": (0.0, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10, 1e-12, 1e-15),
    "weight_decay": (0.0,),
    "momentum": (0.0, 0.9, 0.95, 0.99),
    "dampening": (0.0, 0.9),
    "betas": tuple((one, two) for one in (0.0, 0.9, 0.95) for two in (0.9, 0.95, 0.98, 0.99, 0.999)),
    "alpha": (0.9, 0.99),
}
_INSIDE = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10)  # eps under the root: only one that is much larger than v shows
FOREVER = 1e9  # steps after which no bias is left to correct
MOST_STEPS = 64
NEAR = 0.02  # how far a fit over 16-bit weights may be off


@dataclass(frozen=True)
class _Form:
    """Another step: text, the update to run, and what is done to the state before."""

    name: str
    text: str
    update: Update
    edit: Optional[Edit] = None


def search_updates(dump: Dump, update: Update, place: Result) -> tuple[Array, list[Found]]:
    """(golden, variants that come near the candidate's) of one parameter or state after a step, float64.

    Raises NotReplayable where the optimizer is not one of torch.optim.
    """
    alone = _select(update, place[0])
    record = alone.state_after[place[0]][place[1]] if place[1] else alone.after[place[0]]
    actual, kind = to_array(load_tensor(dump, record)), dtype_of(record.dtype)
    golden = _run(dump, _Form("", "", alone), place)
    if golden is None:
        raise NotReplayable("the optimizer has no such state")
    error = measure_distance(actual, settle(golden, kind))
    found = []
    for name, text, value in _list_values(dump, alone, place, actual, golden, kind):
        if measure_distance(actual, settle(value, kind)) <= KEPT * error:
            found.append((name, text, value))
    return golden, found


def _select(update: Update, owner: Any) -> Update:
    """The step of one parameter."""
    groups = tuple(replace(group, members=(owner,)) for group in update.groups if owner in group.members)
    if not groups:
        raise NotReplayable("the reference's optimizer does not hold this parameter")
    return replace(update, groups=groups)


def _run(dump: Dump, form: _Form, place: Result) -> Optional[Array]:
    try:
        found = run_update(dump, form.update, find_optimizer(form.update.kind), golden=True, edit=form.edit)
    except NotReplayable:
        return None
    return to_array(found[place]) if place in found else None


def _list_values(
    dump: Dump, update: Update, place: Result, actual: Array, golden: Array, kind: Dtype
) -> Iterator[Found]:
    start = None if place[1] else to_array(load_tensor(dump, update.parameters[place[0]]))
    if start is not None:
        change = golden - start
        yield "not updated", "the update is skipped: every value is as before the step", start
        yield "sign", "the update goes the other way", start - change
        factor = _fit_factor(actual, start, change, kind)
        text = f"the update is {factor:.5g} times what it should be: another learning rate"
        yield "learning rate", text, start + factor * change
    for form in _list_forms(update, _read_step(update, dump, place[0])):
        value = _run(dump, form, place)
        if value is not None and value.shape == actual.shape:
            yield form.name, form.text, value


def _fit_factor(actual: Array, start: Array, change: Array, kind: Dtype) -> float:
    """The multiple of the change that comes nearest; where rounding hides much of it, the best of those around it."""
    first = float(np.sum((actual - start) * change)) / max(float(np.sum(change * change)), 1e-300)
    if round_once(change[:0], kind) is None:
        return first
    near = first + np.linspace(-NEAR, NEAR, 81)
    return float(min(near, key=lambda factor: measure_distance(actual, settle(start + factor * change, kind))))


def _read_step(update: Update, dump: Dump, owner: Any) -> int:
    """Steps done before this one."""
    known = update.state.get(owner, {}).get("step")
    return int(load_tensor(dump, known)) if known is not None else int(update.scalars.get(owner, {}).get("step", 0))


def _list_forms(update: Update, done: int) -> Iterator[_Form]:
    group = update.groups[0].hyperparameters
    if update.kind in _OTHER_DECAY and group.get("weight_decay"):
        coupled = update.kind.endswith("AdamW")
        which = "coupled with the gradient instead of decoupled" if coupled else "decoupled instead of coupled"
        other = replace(update, kind=_OTHER_DECAY[update.kind])
        # newer builds of torch keep the choice beside the other settings
        other = _set(other, {name: not coupled for name in group if name == "decoupled_weight_decay"})
        yield _Form("decay", f"weight decay is {which} (Adam against AdamW)", other)
    for name, values in _USUAL.items():
        for value in values:
            if name in group and value != group[name]:
                text = "no weight decay" if name == "weight_decay" else f"{name} {value!r} instead of {group[name]!r}"
                yield _Form(name, text, _set(update, {name: value}))
    for name, value in group.items():
        if isinstance(value, bool) and name in ("nesterov", "amsgrad", "maximize", "centered"):
            yield _Form("flag", f"{name} {not value} instead of {value}", _set(update, {name: not value}))
    if update.kind.rpartition(".")[2] in _ADAM:
        yield from _list_adam(update, done)


def _list_adam(update: Update, done: int) -> Iterator[_Form]:
    text = "no bias correction of the moments"
    yield _Form("bias correction", text, update, partial(_count, steps=FOREVER))
    for steps in range(MOST_STEPS):
        if steps != done:
            text = f"bias correction of step {steps + 1} instead of {done + 1}: a shared or a reset counter"
            yield _Form("bias correction", text, update, partial(_count, steps=float(steps)))
    beta = update.groups[0].hyperparameters["betas"][1]
    for eps in _INSIDE:
        add = eps * (1 - beta ** (done + 1)) / beta  # so that it is eps after this step's decay and correction
        text = f"eps {eps:g} is added under the root, not after it"
        yield _Form("eps inside", text, _set(update, {"eps": 0.0}), partial(_lift, add=add))


def _count(state: State, parameter: torch.Tensor, steps: float) -> None:
    _begin(state, parameter)
    state["step"] = torch.tensor(steps, dtype=torch.float64)


def _lift(state: State, parameter: torch.Tensor, add: float) -> None:
    _begin(state, parameter)
    state["exp_avg_sq"] = state["exp_avg_sq"] + add


def _begin(state: State, parameter: torch.Tensor) -> None:
    """Before its first step an optimizer has no state yet."""
    for name in ("exp_avg", "exp_avg_sq"):
        state.setdefault(name, torch.zeros_like(parameter))
    state.setdefault("step", torch.zeros((), dtype=torch.float64))


def _set(update: Update, values: Mapping[str, Any]) -> Update:
    groups = tuple(Group({**group.hyperparameters, **values}, group.members) for group in update.groups)
    return replace(update, groups=groups)
