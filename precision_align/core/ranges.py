"""Lists of step and rank numbers as users write them."""

from __future__ import annotations

from precision_align.core.errors import UsageError


def parse_numbers(text: str) -> frozenset[int]:
    """The numbers of "3,10-12". Raises UsageError where a part is neither a number nor a range."""
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        first, dash, last = part.partition("-")
        try:
            numbers = range(int(first), int(last if dash else first) + 1)
        except ValueError:
            numbers = range(0)
        if not numbers:
            raise UsageError(f"cannot read the steps {text!r}: {part!r} is neither a number nor a range like 10-12")
        found.update(numbers)
    return frozenset(found)
