"""Which results of a call are judged, forward and backward, and the flags it hands to its children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import torch

from precision_align.core.records import TensorRecord
from precision_align.core.trees import scalars
from precision_align.replay.execution import Execution, Recorded
from precision_align.replay.replayability import NotReplayable

Slot = tuple[int, str, Optional[TensorRecord]]  # child call (-1: the call itself), path, the candidate's record


def join(prefix: str, path: str) -> str:
    """One path part in front of another, which may be empty."""
    return f"{prefix}.{path}" if path else prefix


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
        if path.partition(".")[0] in ("input", "parameter") and not record.extra.get("shared"):
            slots.append((-1, path, record))
    return slots


def _is_shared(child: Recorded, path: str) -> bool:
    """The tensor is an output of the caller too (or an input handed through): its gradient is not this code's alone."""
    output = child.outputs.get(path[len("output") :].lstrip("."))
    return output is None or bool(output.extra.get("same_as")) or bool(output.extra.get("returned"))


def list_cotangents(node: Recorded, result: Execution) -> list[tuple[torch.Tensor, TensorRecord]]:
    """Results through which gradients enter this code, with the recorded gradients."""
    pairs = []
    for path, record in node.gradients.items():
        if path.partition(".")[0] == "output":
            tensor = result.outputs.get(path[len("output") :].lstrip("."))
            if tensor is not None:
                pairs.append((tensor, record))
    for (index, path), tensor in result.given.items():
        record_or_none = node.children[index].gradients.get(f"input.{path}")
        if record_or_none is not None:
            pairs.append((tensor, record_or_none))
    return pairs


def check_shares(node: Recorded) -> None:
    """Raise NotReplayable where a child's gradient is unknown or not this code's alone."""
    for child in node.children:
        for path, record in child.gradients.items():
            if path.startswith("input.") and record.extra.get("shared"):
                raise NotReplayable(f"the gradient of {child.scope}'s {path} is a sum over all consumers")
        needs = any(record.requires_grad for record in child.inputs.values())
        if needs and not child.gradients and any(record.requires_grad for record in child.outputs.values()):
            raise NotReplayable(f"the gradients of {child.scope} were not recorded")


def list_flag_differences(node: Recorded, native: Execution) -> list[tuple[int, str, str]]:
    """(child, path, text) where the code gives a child another number or flag than the candidate's did."""
    found = []
    for index, flags in native.flags.items():
        expected = dict(_plain(flags))
        actual = dict(_plain(scalars(node.children[index].call.arguments)))
        for path in expected:
            if path in actual and not _is_same_flag(actual[path], expected[path]):
                text = f"the candidate passes {path} = {actual[path]!r}, the reference {expected[path]!r}"
                found.append((index, path, text))
    return found


def _plain(flags: Sequence[tuple[str, Any]]) -> list[tuple[str, Any]]:
    kinds = ("scalar", "float", "complex", "slice", "ellipsis", "torch.dtype", "torch.Size")
    return [(path, leaf.get("value")) for path, leaf in flags if leaf.get("kind") in kinds]


def _is_same_flag(actual: Any, expected: Any) -> bool:
    if isinstance(actual, float) and isinstance(expected, (int, float)) and not isinstance(expected, bool):
        # a Python number computed on both hosts in double precision: equal but for its last digits
        return abs(actual - expected) <= 1e-12 * max(abs(actual), abs(expected))
    return type(actual) is type(expected) and bool(actual == expected)
