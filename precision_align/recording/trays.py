"""What waits to be handed to the sink. ``native/records.h`` is the same in C."""

from __future__ import annotations

from precision_align.storage.drafts import Item


class Tray:
    """Items in the order in which they came, and the counters of the session.

    ``nbytes``: of the items; ``num_records`` and ``num_calls`` so far (of calls all but those of optimizers).
    """

    __slots__ = ("_order", "items", "nbytes", "num_calls", "num_records")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.nbytes = self.num_records = self.num_calls = self._order = 0

    def tick(self) -> int:
        """The next sequence number."""
        order = self._order
        self._order = order + 1
        return order
