"""Why something could not be replayed. Every reason reaches the report."""

from __future__ import annotations

from typing import Any

# Where the classes stand that recorded attributes are enough to build again.
STOCK = "torch.nn.modules."


class NotReplayable(Exception):
    """This call cannot be executed again with meaning; the text says why."""


def find_obstacle(kind: str, attributes: Any, has_children: bool) -> str:
    """Why a call cannot be replayed without the reference's code, as far as its record tells; "" where it may be.

    ``kind``: the full class name; ``attributes``: the recorded tree of them, or None.
    """
    if has_children:
        return "no replay module was given: only stock torch.nn leaves are replayed"
    if attributes is None or not kind.startswith(STOCK):
        return f"{kind} is not a stock torch.nn leaf: give its code with replay="
    return ""
