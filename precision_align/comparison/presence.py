"""What stands on one side only: lost steps, calls never made, runs that were cut off, models that are not the same."""

from __future__ import annotations

from precision_align.alignment.pairing import Alignment
from precision_align.alignment.side import Node, Side
from precision_align.comparison.rows import blame_call, make_row
from precision_align.core.errors import NothingInCommon
from precision_align.core.records import ENDED
from precision_align.core.results import RecordResult
from precision_align.core.terms import Phase, Site, Status


def check_common(reference: Side | None, candidate: Side, alignment: Alignment) -> None:
    """Raise NothingInCommon where the two dumps are of different models.

    The root has one name in every model: where it is all that two models of several modules share, under two classes,
    they are not the same model.
    """
    if reference is None or not candidate.nodes:
        return
    ours, theirs = ({node.scope for node in side.nodes} for side in (candidate, reference))
    paired = {node.scope for node in alignment.pairs}
    classes = {side.dump.info.modules.get("", "") for side in (candidate, reference)}
    only_root = paired <= {""} and len(classes) > 1 and min(len(ours), len(theirs)) > 1
    if paired and not only_root:
        return
    shown = (", ".join(sorted(scope or "(root)" for scope in scopes)[:4]) or "nothing" for scopes in (ours, theirs))
    raise NothingInCommon(
        "the two dumps have not one module in common: the candidate calls {}, the reference {}. Are these runs of the "
        "same model?".format(*shown)
    )


def find_interruptions(reference: Side | None, candidate: Side, alignment: Alignment) -> list[str]:
    """Why records may be missing: damaged or absent files, a run that was cut off, a call that raised on one side."""
    found = []
    for name, side in (("reference", reference), ("candidate", candidate)):
        if side is not None:
            found += [f"{name}: {gap}" for gap in getattr(side.dump, "gaps", ())]
            found += [f"{name}: {note}" for note in side.dump.notes if note.startswith(ENDED)]
    for node in candidate.nodes:
        partner = alignment.pairs.get(node)
        if node.call.error and not node.children and (partner is None or not partner.call.error):
            where = node.scope or "the root"
            found.append(f"candidate: {where} raised {node.call.error} in step {node.unit.step} (call {node.number})")
    return list(dict.fromkeys(found))


def note_further(reference: Side | None, alignment: Alignment) -> list[str]:
    """Micro-batches of the reference that the candidate did not record."""
    if reference is None:
        return []
    paired = set(alignment.units.values())
    further = sorted({unit.step for unit in reference.units if unit not in paired})
    if not further:
        return []
    shown = ", ".join(map(str, further[:5])) + (", ..." if further[5:] else "")
    return [f"the reference goes on where the candidate has no record: step {shown}; nothing is said of these"]


def rows_missing(reference: Side | None, alignment: Alignment, *, everything: bool) -> list[RecordResult]:
    """Rows for the reference's calls that have no partner.

    Within paired micro-batches always; of micro-batches that the candidate lacks only where it was interrupted
    (``everything``), since recording fewer steps is anybody's choice.
    """
    if reference is None:
        return []
    paired = set(alignment.pairs.values())
    units = set(alignment.units.values())
    lost = [node for node in reference.nodes if node not in paired and (everything or node.unit in units)]
    return [row for node in lost for row in _rows_of(node)]


def _rows_of(node: Node) -> list[RecordResult]:
    site = Site.MODULE if node.call.leaf else Site.INLINE
    rows = []
    for phase, records in ((Phase.FORWARD, node.outputs), (Phase.BACKWARD, node.gradients)):
        blame = blame_call(node.call, node.scope, node.number, site, phase)
        note = "the candidate has no such call"
        rows += [make_row(record, blame, Status.MISSING, "structure", note=note) for record in records.values()]
    return rows


def note_idle(name: str, side: Side) -> list[str]:
    """An optimizer that capture was given and that made no step: not one update was looked at."""
    if not side.dump.info.optimizer or not side.nodes or side.steps:
        return []
    return [f"{name}: an optimizer was given and made no step in what was recorded: no update was judged"]
