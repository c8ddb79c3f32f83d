"""Optimizer steps of torch.optim executed again, in float64 and natively, from what the candidate's step began with."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Callable, Optional

import numpy as np
import torch
from torch import nn

from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.records import TensorRecord
from precision_align.numerics.judgement import Judgement, Scale, judge, judge_exact
from precision_align.numerics.limits import U32
from precision_align.replay.lifting import lift
from precision_align.replay.replayability import NotReplayable
from precision_align.replay.scales import DRAWS, estimate_scale, perturb
from precision_align.replay.values import load_tensor, to_array
from precision_align.storage.base import Dump

Owner = tuple[str, str]  # aligned scope, local name
Result = tuple[Owner, str]  # "" is the parameter itself, else the optimizer's name of a state
Change = Optional[Callable[[torch.Tensor], torch.Tensor]]

# Of the largest change, what another build's scalars may add: 6e-5 with beta2 = 0.999.
FOREIGN_SHARE = 1e-4

# Which kernel runs is not what the step computes; the replay takes the plain one.
_PLAIN = {"foreach": False, "fused": False, "capturable": False, "differentiable": False}


@dataclass(frozen=True)
class Group:
    """Parameters that share hyperparameters."""

    hyperparameters: Mapping[str, Any]
    members: tuple[Owner, ...]


@dataclass(frozen=True)
class Update:
    """One recorded step: tensors before it by owner, state by owner and the optimizer's own name, and after it.

    ``kind``: full class name of the code that is replayed; ``scalars``: state that is no tensor; ``is_foreign``: the
    step was made by another class.
    """

    kind: str
    groups: tuple[Group, ...]
    parameters: Mapping[Owner, TensorRecord]
    gradients: Mapping[Owner, TensorRecord]
    state: Mapping[Owner, Mapping[str, TensorRecord]]
    scalars: Mapping[Owner, Mapping[str, Any]]
    after: Mapping[Owner, TensorRecord]
    state_after: Mapping[Owner, Mapping[str, TensorRecord]]
    is_foreign: bool = False


def judge_update(dump: Dump, update: Update) -> dict[Result, Judgement]:
    """Judge each parameter (name "") and state tensor after the step.

    Raises NotReplayable where the optimizer is not one of torch.optim.
    """
    kind = find_optimizer(update.kind)
    native = run_update(dump, update, kind, golden=False)
    golden = run_update(dump, update, kind, golden=True)
    draws = [
        run_update(dump, update, kind, golden=True, change=perturb(torch.Generator().manual_seed(seed)))
        for seed in range(DRAWS)
    ]
    found = {}
    for place, record in _list_results(update):
        if place not in golden or place not in native:
            continue
        wide, actual = to_array(golden[place]), to_array(load_tensor(dump, record))
        if not dtype_of(record.dtype).is_floating:
            found[place] = judge_exact(actual, to_array(native[place]))
            continue
        scale = estimate_scale(wide, [to_array(draw[place]) for draw in draws], record.dtype)
        # torch.optim's plain kernels round after each operation: the native replay is that build of small operators
        scale = replace(scale, decomposable=False)
        if update.is_foreign:
            scale = _widen(scale, wide, update.parameters.get(place[0]) if not place[1] else None, dump)
        found[place] = judge(actual, wide, to_array(native[place]), scale, dtype_of(record.dtype))
    return found


def _widen(scale: Scale, golden: Array, before: Optional[TensorRecord], dump: Dump) -> Scale:
    """Room for another build: bias corrections from a float32 step counter are off by 2^-24 / (1 - beta2)."""
    start = np.zeros_like(golden) if before is None else to_array(load_tensor(dump, before))
    largest = float(np.max(np.abs(golden - start), initial=0.0))
    return replace(scale, values=scale.values + FOREIGN_SHARE * largest / (scale.coefficient * U32))


def _list_results(update: Update) -> Iterator[tuple[Result, TensorRecord]]:
    for owner, record in update.after.items():
        yield (owner, ""), record
    for owner, states in update.state_after.items():
        for name, record in states.items():
            yield (owner, name), record


def find_optimizer(kind: str) -> type[torch.optim.Optimizer]:
    """A class of torch.optim by its full name. Raises NotReplayable."""
    found = getattr(torch.optim, kind.rpartition(".")[2], None)
    if not kind.startswith("torch.optim.") or found is None or found is torch.optim.LBFGS:
        raise NotReplayable(f"{kind} is not an optimizer of torch.optim that can be replayed")
    result: type[torch.optim.Optimizer] = found
    return result


def run_update(
    dump: Dump,
    update: Update,
    kind: type[torch.optim.Optimizer],
    *,
    golden: bool,
    change: Change = None,
    edit: Optional[Callable[[dict[str, Any], torch.Tensor], None]] = None,
) -> dict[Result, torch.Tensor]:
    """What a step leaves, by owner and name of the state. ``change``: of each tensor that goes in; ``edit``: of each
    parameter's state before the step. Raises NotReplayable."""

    def load(record: TensorRecord) -> torch.Tensor:
        tensor = load_tensor(dump, record)
        tensor = lift(tensor) if golden else tensor
        return change(tensor) if change is not None and tensor.is_floating_point() and tensor.dim() else tensor

    owners, groups = _build_groups(update, load)
    optimizer = _construct(kind, groups)
    for owner, parameter in owners.items():
        state: dict[str, Any] = {name: load(record) for name, record in update.state.get(owner, {}).items()}
        state.update(update.scalars.get(owner, {}))
        if edit is not None:
            edit(state, parameter)
        if state:
            optimizer.state[parameter] = state
    try:
        optimizer.step()
    except Exception as error:
        raise NotReplayable(f"replay of the step raised {type(error).__name__}: {error}") from error
    return dict(_read_results(optimizer, owners))


def _build_groups(
    update: Update, load: Callable[[TensorRecord], torch.Tensor]
) -> tuple[dict[Owner, nn.Parameter], list[dict[str, Any]]]:
    owners: dict[Owner, nn.Parameter] = {}
    groups = []
    for group in update.groups:
        members = [owner for owner in group.members if owner in update.parameters and owner in update.gradients]
        for owner in members:
            owners[owner] = nn.Parameter(load(update.parameters[owner]))
            owners[owner].grad = load(update.gradients[owner]).to(owners[owner].dtype)
        if members:
            groups.append({"params": [owners[owner] for owner in members], **group.hyperparameters, **_PLAIN})
    if not groups:
        raise NotReplayable("no parameter of this step was recorded with its gradient")
    return owners, groups


def _read_results(
    optimizer: torch.optim.Optimizer, owners: Mapping[Owner, nn.Parameter]
) -> Iterator[tuple[Result, torch.Tensor]]:
    for owner, parameter in owners.items():
        yield (owner, ""), parameter.detach()
        for name, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                yield (owner, str(name)), value.detach()


def _construct(kind: type[torch.optim.Optimizer], groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    names = inspect.signature(kind).parameters
    arguments = {name: value for name, value in groups[0].items() if name in names and name != "params"}
    try:
        return kind(groups, **arguments)
    except Exception as error:
        raise NotReplayable(f"{kind.__name__} cannot be built from its hyperparameters: {error}") from error
