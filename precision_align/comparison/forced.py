"""A candidate that was forced from its reference: what its records show, and what they were not computed from.

Its calls got the reference's values, so that its own results stand against the reference's directly. What a call
returned is recorded, but the reference's output went on from there; the same holds for gradients. A replay on records
is therefore possible only for the forward pass of calls without children.
"""

from __future__ import annotations

from dataclasses import replace

from precision_align.alignment.side import Node
from precision_align.comparison.replaying import ReplayProvider, Verdicts
from precision_align.comparison.rows import WEAKER
from precision_align.core.records import TensorRecord
from precision_align.core.results import RecordResult
from precision_align.core.terms import Site
from precision_align.storage.base import Dump

_REASON = (
    "the candidate was forced: what went on from its calls was the reference's, so only the two runs can be compared"
)
_OWN_CODE = (Site.MODULE, Site.INLINE)


class ForcedReplay(ReplayProvider):
    """Replays only what a forced run's own records are inputs of."""

    def judge_forward(self, node: Node) -> tuple[Verdicts, str]:
        return ({}, _REASON) if node.children else super().judge_forward(node)

    def judge_backward(self, node: Node) -> tuple[Verdicts, str]:
        return {}, _REASON


def was_replaced(record: TensorRecord) -> bool:
    """Whether the reference's value went on in the place of this output."""
    return bool(record.extra.get("forced"))


def is_gradient_replaced(node: Node, path: str) -> bool:
    """Whether the reference's gradient went on in the place of the gradient of an output."""
    output = node.outputs.get(path[len("output") :].lstrip("."))
    return output is not None and was_replaced(output)


def mark_row(row: RecordResult) -> RecordResult:
    """A raw verdict on equal inputs is more than that of two free runs, alone or beside a replay's."""
    if row.site not in _OWN_CODE:
        return row
    if row.evidence == "replay" and "raw_over_max" in row.metrics:
        return replace(row, evidence="replay+forced")
    return replace(row, evidence="forced") if row.evidence in ("raw", *WEAKER) else row


def note_origin(reference: Dump | None, candidate: Dump) -> list[str]:
    """Says where the candidate was forced from another run than the one that it is compared with."""
    origin = candidate.info.capture.get("forced_from")
    if not candidate.info.forced or reference is None or origin in (None, reference.info.run):
        return []
    return ["the candidate was forced from another run than this reference: its inputs differ from the reference's"]
