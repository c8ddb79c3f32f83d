"""Optimizer steps of both sides: what they started from, with which hyperparameters, and how to replay them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from precision_align.alignment.side import Side, read_arguments
from precision_align.core.records import Call, TensorRecord
from precision_align.core.terms import Phase, Role

Owner = tuple[str, str]


def find_step(side: Side, rank: int, step: int) -> Call | None:
    """The only optimizer call of a step; None where there is none or there are several (then pairs are compared)."""
    calls = side.steps.get((rank, step), [])
    return calls[0] if len(calls) == 1 and not calls[0].error else None


def compare_hyperparameters(candidate: Call | None, reference: Call | None) -> list[str]:
    """Every hyperparameter that differs between the two sides' steps, in words."""
    if candidate is None or reference is None:
        return []
    found = []
    if candidate.kind != reference.kind:
        found.append(f"optimizer {candidate.kind.rpartition('.')[2]} instead of {reference.kind.rpartition('.')[2]}")
    ours, theirs = read_arguments(candidate).get("groups", []), read_arguments(reference).get("groups", [])
    if len(ours) != len(theirs):
        found.append(f"{len(ours)} parameter groups instead of {len(theirs)}")
    for number, (left, right) in enumerate(zip(ours, theirs)):
        for name in left:
            plain = name not in ("parameters", "foreach", "fused", "capturable", "differentiable")
            if plain and name in right and left[name] != right[name]:
                found.append(f"{name} {left[name]!r} instead of {right[name]!r} (group {number})")
    return found


def build_update(side: Side, reference: Side | None, rank: int, step: int, partner: int | None) -> Any:
    """What a replay of the candidate's step needs, under the reference's hyperparameters; None where it is unknown."""
    call = find_step(side, rank, step)
    if call is None:
        return None
    updates = import_module("precision_align.replay.updates")
    specification = find_step(reference, rank, partner) if reference is not None and partner is not None else None
    specification = specification or call
    is_own_build = specification.kind != call.kind and not call.kind.startswith("torch.optim.")
    # somebody's own build of the reference's optimizer: where its state is named otherwise, pairs are compared
    if is_own_build and not _has_same_state(side, step, reference, partner, rank):
        return None
    groups = read_arguments(specification).get("groups", [])
    scalars = read_arguments(call).get("state", {})
    return updates.Update(
        kind=specification.kind,
        is_foreign=specification.kind != call.kind,
        groups=tuple(
            updates.Group(
                {name: value for name, value in group.items() if name != "parameters"},
                tuple(split_owner(side, name) for name in group.get("parameters", [])),
            )
            for group in groups
        ),
        parameters=side.select_state(rank, step, Role.PARAMETER, Phase.FORWARD),
        gradients=side.select_state(rank, step, Role.GRADIENT, Phase.STEP),
        state=_collect_state(side.select_state(rank, step, Role.STATE, Phase.STEP), "before"),
        scalars={split_owner(side, name): values for name, values in scalars.items()},
        after=side.select_state(rank, step, Role.PARAMETER, Phase.STEP),
        state_after=_collect_state(side.select_state(rank, step, Role.STATE, Phase.STEP), "after"),
    )


def _has_same_state(side: Side, step: int, reference: Side | None, partner: int | None, rank: int) -> bool:
    """Both optimizers keep state of the same names for the same parameters."""
    if reference is None or partner is None:
        return False
    ours, theirs = (
        {(owner, name) for owner, names in found.items() for name in names}
        for found in (
            _collect_state(side.select_state(rank, step, Role.STATE, Phase.STEP), "after"),
            _collect_state(reference.select_state(rank, partner, Role.STATE, Phase.STEP), "after"),
        )
    )
    return bool(ours) and ours <= theirs


def split_owner(side: Side, name: str) -> Owner:
    """A full parameter name as (aligned owner scope, local name)."""
    scope, _, local = name.rpartition(".")
    return side.names.get(scope, scope) or "", local


def _collect_state(records: Mapping[Owner, TensorRecord], when: str) -> dict[Owner, dict[str, TensorRecord]]:
    """Group by owner: "before.exp_avg.weight" of a scope -> {(scope, "weight"): {"exp_avg": record}}."""
    found: dict[Owner, dict[str, TensorRecord]] = {}
    for (scope, path), record in records.items():
        moment, name, local = split_state(path)
        if moment == when:
            found.setdefault((scope, local), {})[name] = record
    return found


def split_state(path: str) -> tuple[str, str, str]:
    """("before" or "after", the optimizer's name of the state, the parameter's local name)."""
    moment, _, rest = path.partition(".")
    name, _, local = rest.rpartition(".")
    return moment, name, local
