"""Which results of a call are judged, forward and backward, and the flags it hands to its children."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import torch

from precision_align.core.dtypes import dtype_of
from precision_align.core.records import TensorRecord
from precision_align.core.terms import Status
from precision_align.core.trees import Tree
from precision_align.numerics.judgement import Judgement
from precision_align.numerics.limits import U32
from precision_align.replay.arguments import describe_leaf, list_differences, pair_leaves
from precision_align.replay.execution import Execution, Recorded
from precision_align.replay.replayability import NotReplayable

Slot = tuple[int, str, Optional[TensorRecord]]  # child call (-1: the call itself), path, the candidate's record


@dataclass(frozen=True)
class Target:
    """The verdict on one record: ``record`` is the candidate's tensor, None for a difference in non-tensor arguments of
    the child call number ``child``; ``child`` is -1 for the call's own tensors.
    """

    child: int
    path: str
    record: Optional[TensorRecord]
    judgement: Judgement


ROUNDINGS = 16.0  # of a number computed from a tensor in its own dtype: a reduction and a few operations after it


def list_forward_slots(node: Recorded, native: Execution) -> list[Slot]:
    """What the call gave to its children, its outputs, and the buffers it changed."""
    slots: list[Slot] = []
    for index, path in native.given:
        slots.append((index, path, node.children[index].inputs.get(path)))
    slots += [(-1, path, node.outputs.get(path)) for path in native.outputs]
    for path, record in node.buffers.items():
        moment, _, name = path.partition(".")
        if moment == "after" and name in native.buffers:
            slots.append((-1, path, record))
    return slots


def list_backward_slots(node: Recorded) -> list[Slot]:
    """Gradients that this call's own code computes and no other code adds to."""
    slots: list[Slot] = []
    for index, child in enumerate(node.children):
        for path, record in child.gradients.items():
            if path.partition(".")[0] == "output" and not _is_shared(child, path):
                slots.append((index, path, record))
    for path, record in node.gradients.items():
        mixed = record.extra.get("shared") or record.extra.get("fused")
        if path.partition(".")[0] in ("input", "parameter") and not mixed:
            slots.append((-1, path, record))
    return slots


def _is_shared(child: Recorded, path: str) -> bool:
    """The tensor is an output of the caller too (or an input handed through): its gradient is not this code's alone."""
    output = child.outputs.get(path[len("output") :].lstrip("."))
    if child.gradients[path].extra.get("inside"):
        return True
    return output is None or bool(output.extra.get("same_as")) or bool(output.extra.get("returned"))


def list_cotangents(node: Recorded, result: Execution) -> list[tuple[torch.Tensor, TensorRecord, bool]]:
    """(result, recorded gradient, whether it is a total) through which gradients enter this code.

    The gradient of an output is the total of all its uses, those inside this call included; that of a child's input is
    the child's share alone. A tensor that stands in the output twice, or was made before the call, counts once or not.
    """
    found = []
    for path, record in node.gradients.items():
        kind, _, local = path.partition(".")
        tensor = result.outputs.get(local) if kind == "output" else None
        if tensor is None or record.extra.get("shared") or _is_repeated(node, local):
            continue
        found.append((tensor, record, True))
    for (index, path), tensor in result.given.items():
        share = node.children[index].gradients.get(f"input.{path}")
        if share is not None:
            found.append((tensor, share, False))
    return found


def _is_repeated(node: Recorded, local: str) -> bool:
    output = node.outputs.get(local)
    return output is not None and str(output.extra.get("same_as", "")).partition(".")[0] == "output"


def take_outside_parts(
    results: list[tuple[torch.Tensor, torch.Tensor, bool]],
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(result, gradient, is a total) -> (result, what comes from outside the call).

    Latest first: from each total goes what the results made after it send back to it.
    """
    outside = [(tensor, gradient) for tensor, gradient, is_total in results if not is_total]
    totals = [(tensor, gradient) for tensor, gradient, is_total in results if is_total]
    for tensor, gradient in sorted(totals, key=lambda pair: -_made_at(pair[0])):
        later = [pair for pair in outside if _made_at(pair[0]) >= _made_at(tensor)]
        if later:
            (inside,) = torch.autograd.grad(
                [result for result, _ in later],
                [tensor],
                [sent for _, sent in later],
                retain_graph=True,
                allow_unused=True,
            )
            gradient = gradient if inside is None else gradient - inside
        outside.append((tensor, gradient))
    return outside


def _made_at(tensor: torch.Tensor) -> int:
    return -1 if tensor.grad_fn is None else int(tensor.grad_fn._sequence_nr())


def check_shares(node: Recorded) -> None:
    """Raise NotReplayable where a child's gradient is unknown or not this code's alone."""
    for child in node.children:
        for path, record in child.gradients.items():
            if path.startswith("input.") and record.extra.get("shared"):
                raise NotReplayable(f"the gradient of {child.scope}'s {path} is a sum over all consumers")
        # what hands its input through has no gradient of its own: the tensor's is known elsewhere
        made = [record for record in child.outputs.values() if record.requires_grad and not record.extra.get("same_as")]
        if made and not child.gradients and any(record.requires_grad for record in child.inputs.values()):
            raise NotReplayable(f"the gradients of {child.scope} were not recorded")


def list_flag_differences(node: Recorded, native: Execution, golden: Execution) -> list[tuple[int, str, str]]:
    """(child or -1, place, text): numbers, flags and texts that the code gives to a child or returns, and that differ.

    Numbers that the code computes from tensors (``x.abs().max().item()``) differ between the two replays and so may
    differ on the candidate, by as much as rounding explains; all others must be equal.
    """
    trees = [
        (index, tree, native.recorded[index], golden.arguments.get(index)) for index, tree in native.arguments.items()
    ]
    trees.append((-1, native.output or {"kind": "object"}, node.call.output, golden.output))
    unit = ROUNDINGS * max([U32, *(dtype_of(record.dtype).roundoff for record in list_sources(node, False))])
    found = []
    for index, expected, actual, wide in trees:
        precise = {place: leaf for place, leaf, _ in pair_leaves(wide, wide)} if wide is not None else {}
        for place, left, right in list_differences(expected, actual):
            if not _is_rounding(left, right, precise.get(place), unit):
                what = "passes" if index >= 0 else "returns"
                text = f"the candidate {what} {place} = {describe_leaf(right)}, the reference {describe_leaf(left)}"
                found.append((index, place, text))
    return found


def _is_rounding(left: Tree, right: Tree, precise: Optional[Tree], unit: float) -> bool:
    expected, actual = left.get("value"), right.get("value")
    if not (isinstance(expected, float) and isinstance(actual, float)):
        return False
    # a Python number computed on both hosts in double precision: equal but for its last digits
    allowed = 1e-12 if precise is None or precise.get("value") == expected else unit
    return abs(actual - expected) <= allowed * max(abs(actual), abs(expected))


def list_sources(node: Recorded, backward: bool) -> list[TensorRecord]:
    """Everything that the call's own code computes from, parameters aside."""
    holders = (node, *node.children)
    records = [*node.inputs.values(), *(record for child in node.children for record in child.outputs.values())]
    return records + [record for holder in holders if backward for record in holder.gradients.values()]


def compare_kinds(actual: str, expected: str) -> Optional[Judgement]:
    """A dtype of another kind, or one that keeps fewer bits than the reference's, is a fault of its own."""
    if actual == expected:
        return None
    ours, theirs = dtype_of(actual), dtype_of(expected)
    if ours.kind != theirs.kind or not ours.is_floating or ours.roundoff > theirs.roundoff:
        return Judgement(Status.FAIL, f"dtype {actual}, the reference computes {expected}")
    return None
