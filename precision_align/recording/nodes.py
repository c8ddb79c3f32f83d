"""Autograd nodes: which pass and which node run, and in what order nodes were made."""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

# The number of the backward pass that runs on this thread, -1 outside.
graph_task: Callable[[], int] = torch._C._current_graph_task_id


def running_node() -> tuple[int, int]:
    """The backward pass and the number of the autograd node that runs on this thread, (-1, -1) outside.

    Torch versions that do not tell the node give -1 for it.
    """
    current = getattr(torch._C, "_current_autograd_node", None)
    node = None if current is None else current()
    return graph_task(), -1 if node is None else sequence_of(node)


def sequence_position() -> Optional[int]:
    """The number that this thread's next autograd node gets, or None where torch does not tell."""
    peek = getattr(torch.autograd, "_get_sequence_nr", None)
    return None if peek is None else int(peek())


def sequence_of(node: Any) -> int:
    """The number of an autograd node in its thread's order of creation."""
    return int(node._sequence_nr())
