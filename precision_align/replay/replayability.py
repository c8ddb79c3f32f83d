"""Why something could not be replayed. Every reason reaches the report."""

from __future__ import annotations


class NotReplayable(Exception):
    """This call cannot be executed again with meaning; the text says why."""
