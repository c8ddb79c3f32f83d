"""``compare``: two dumps, or one dump and the reference's code, to a report."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from precision_align.comparison.deadlines import Deadline
from precision_align.comparison.engine import Engine
from precision_align.comparison.journals import Journal
from precision_align.comparison.rules import Rules, load_rules
from precision_align.comparison.walking import Progress
from precision_align.core.errors import NothingCaptured, NothingInCommon, Unavailable, UsageError
from precision_align.core.results import Curve, Findings
from precision_align.core.terms import Role, Verdict
from precision_align.divergence.locating import find_divergence
from precision_align.numerics.kernels import kernel_name
from precision_align.reporting.report import Report
from precision_align.storage.base import Dump
from precision_align.storage.foreign.dumps import ForeignDump
from precision_align.storage.opening import open_side
from precision_align.storage.redaction import require_one_secret

if TYPE_CHECKING:
    from precision_align.alignment.merging import MergedDump

Side = "Dump | str | os.PathLike[str]"


def compare(
    reference: Any,
    candidate: Any,
    *,
    rules: Any = None,
    replay: Any = None,
    library: Any = None,
    naming: Any = None,
    layout: Any = None,
    rename: Any = None,
    again: Sequence[Any] = (),
    reference_again: Sequence[Any] = (),
    progress: Progress | None = None,
    reading: Progress | None = None,
    journal: Journal | None = None,
    time_budget: float | None = None,
    error_maps: bool = True,
) -> Report:
    """Find the first place where the candidate computes something else than the reference.

    ``reference``, ``candidate``: dumps or paths of dumps; ``reference`` may be None with ``replay``: then the candidate
    is judged by the reference's code alone. ``replay``: the reference's ``torch.nn.Module`` or a factory of it; without
    it stock ``torch.nn`` leaves are replayed from their recorded attributes and the rest is compared raw. ``rules``: a
    rule file or what :func:`load_rules` gave. ``library``: a folder with a team's own operator library.
    A reference of one device and a candidate of several ranks: the ranks are merged first, by DTensors' placements, by
    ``layout`` (a layout file or what :func:`~precision_align.alignment.layouts.read_layouts` gave), or by content.
    ``rename``: which module of the candidate is which of the reference: a mapping or the path of a file (see
    :mod:`~precision_align.alignment.renaming`); what names and file leave open is paired by content.
    ``again``, ``reference_again``: further runs of the candidate and of the reference, on the same data: what differs
    between them on bit-equal inputs is nondeterministic, a finding of its own kind, and an error within it no origin.
    ``naming``: what the tensors of a side that is files of another tool are (see
    :func:`~precision_align.storage.opening.open_dump`). ``progress``: told (passes judged, passes in all),
    ``reading``: (tensors read, tensors in all) of a side that is files of another tool. ``journal``: keeps what was
    found, and has what an interrupted comparison of the same two sides found (see
    :func:`~precision_align.workflows.resuming.open_journal`). ``time_budget``: seconds after which no further call is
    begun; the most suspicious ones, by hashes, statistics and sketches, are judged first, and what was not judged is
    listed and never called aligned. ``error_maps``: also show where the errors of a few places lie.

    Raises DumpError where a dump cannot be read or the two have nothing in common, UsageError for wrong arguments.
    """
    if candidate is None:
        raise UsageError("compare needs a candidate: the dump of the run that is under suspicion")
    if reference is None and replay is None:
        raise UsageError("compare needs a reference dump, or the reference's code with replay=")
    if reference is None and reference_again:
        raise UsageError("further runs of the reference need the reference itself")
    known = rules if isinstance(rules, Rules) or rules is None else load_rules(rules)
    theirs = None if reference is None else take_side(reference, naming)
    ours = take_side(candidate, naming)
    if theirs is not None:
        require_one_secret(theirs.info, ours.info)
    if reading is not None:
        read_foreign([side for side in (theirs, ours) if isinstance(side, ForeignDump)], reading)
    theirs, lacking = leave_out_empty(theirs, replay)
    further, theirs_further = ([take_side(side, naming) for side in sides] for sides in (again, reference_again))
    _require_further(further, ours, theirs, "the candidate")
    if theirs is not None:
        _require_further(theirs_further, theirs, ours, "the reference")
    merged = merge_ranks(theirs, ours, layout)
    engine = Engine(
        theirs,
        merged or ours,
        replay=replay,
        rules=known,
        journal=journal,
        deadline=Deadline(time_budget),
        ranks=None if merged is None else ours,
        rename=rename,
        again=further,
        reference_again=theirs_further,
    )
    findings = find_divergence(engine, known, progress, maps=error_maps)
    if merged is not None and theirs is not None:
        from precision_align.divergence.ranks import name_ranks

        findings, ours = name_ranks(findings, engine, merged, theirs), merged
    report = finish(add_note(findings, lacking), theirs, ours, library)
    code = name_code(replay)
    return replace(
        report,
        reference=name_path(report.reference, reference),
        candidate={**name_path(report.candidate, candidate), **({"replay": code} if code else {})},
    )


def _require_further(further: Sequence[Dump], own: Dump, other: Dump | None, name: str) -> None:
    """Raises UsageError where a further run is the run itself, which shows nothing, or one of the other side, whose
    differences would pass for noise.
    """
    for dump in further:
        for known, what in ((own, "that run itself"), (other, "the other side's")):
            if known is not None and _session(dump) and _session(dump) == _session(known):
                raise UsageError(f"a further run of {name} is {what}: record {name} once more, on the same data")


def _session(dump: Dump) -> tuple[str, str] | None:
    """What is unique to one capture session; None of files of another tool."""
    return (dump.info.run, dump.info.created) if dump.info.created else None


def merge_ranks(reference: Dump | None, candidate: Dump, layout: Any = None) -> MergedDump | None:
    """The candidate's ranks as one where the reference is of one device; None where both are of as many.

    Raises UsageError for a layout that cannot be used.
    """
    if reference is None or reference.info.world > 1 or len(candidate.ranks) < 2:
        if layout is not None:
            raise UsageError("a layout says how several ranks make up one: it needs a reference of a single device")
        return None
    from precision_align.alignment.layouts import Layouts, read_layouts
    from precision_align.alignment.merging import MergedDump

    layouts = layout if layout is None or isinstance(layout, Layouts) else read_layouts(layout)
    return MergedDump(candidate, reference, layouts)


def leave_out_empty(reference: Dump | None, replay: Any) -> tuple[Dump | None, str]:
    """(reference, ""), or (None, why) where it recorded not one call and its code is there to judge by.

    Raises NothingCaptured where there is no code either.
    """
    if reference is None or reference.calls:
        return reference, ""
    reason = f": {reference.notes[0]}" if reference.notes else ""
    if replay is None:
        raise NothingCaptured(f"the reference's dump holds not one call, so there is nothing to compare with{reason}")
    return (
        None,
        f"the reference recorded not one call, so the candidate is judged by the reference's code alone{reason}",
    )


def add_note(findings: Findings, note: str) -> Findings:
    """With one more note, in front; behind the first where that says why there is no verdict."""
    if not note:
        return findings
    place = int(findings.verdict == Verdict.NOT_COMPARABLE)
    return replace(findings, notes=[*findings.notes[:place], note, *findings.notes[place:]])


def read_foreign(dumps: Sequence[ForeignDump], reading: Progress) -> None:
    """Hash the tensors of other tools' files, which have no hashes of their own; the records keep them."""
    total, done = sum(len(dump.records) for dump in dumps), 0
    for dump in dumps:
        for _ in dump.records:
            done += 1
            reading(done, total)


def name_path(information: Mapping[str, Any], side: Any) -> Mapping[str, Any]:
    """Run information with the path as the caller wrote it: the commands that a report suggests then work from here."""
    return {**information, "path": os.fspath(side)} if isinstance(side, (str, os.PathLike)) else information


def name_code(replay: Any) -> str:
    """MODULE:NAME of the reference's code as ``--replay`` takes it; "" for what has no such name, a module at hand."""
    module, name = getattr(replay, "__module__", ""), getattr(replay, "__qualname__", "")
    return f"{module}:{name}" if module and name and module != "__main__" and "<" not in name else ""


def finish(findings: Findings, reference: Dump | None, candidate: Dump, library: Any = None) -> Report:
    """Add run information, curves and the operator library's rows to what was found."""
    rows, notes = find_mappings({found.op for found in findings.frontier}, library)
    frontier = [replace(found, mapping=rows.get(found.op)) for found in findings.frontier]
    first = None if findings.first is None else replace(findings.first, mapping=rows.get(findings.first.op))
    names = ("verdict", "records", "coverage", "roots", "interrupted", "modules", "error_maps")
    values = {name: getattr(findings, name) for name in names}
    curves = [] if reference is None else build_curves(reference, candidate)
    parted = note_curves(findings.verdict, curves)
    return Report(
        **values,
        notes=[*parted, *note_swaps(reference, candidate), *findings.notes, *notes],
        first=first,
        frontier=frontier,
        reference={} if reference is None else describe(reference),
        candidate={**describe(candidate), "difference_kernel": kernel_name()},
        curves=curves,
    )


def find_mappings(operators: Collection[str], library: Any) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """The operator library's rows for some operators, and a note where there is no library.

    Where nothing is looked up the bundled library is not even read; one that was named must be readable all the same.
    """
    if not operators and library is None:
        return {}, []
    from precision_align.library.loading import load_library

    try:
        known = load_library(library, operators if library is None else None)
    except Unavailable as error:  # the bundled one may lack a TOML reader
        if library is not None:
            raise
        return {}, [f"no operator library: {error}"]
    return {op: row.to_dict() for op, row in ((op, known.lookup(op)) for op in operators) if row is not None}, []


def describe(dump: Dump) -> Mapping[str, Any]:
    """Run information of a dump as plain data."""
    information = asdict(dump.info)
    information["path"] = str(getattr(dump, "path", ""))
    information["ranks"] = list(dump.ranks)
    information["dtypes"] = list_dtypes(dump)
    information.pop("notes", None)
    return information


def list_dtypes(dump: Dump) -> dict[str, list[str]]:
    """Role -> the dtypes of its tensors, of parameters, gradients and outputs."""
    found: dict[str, dict[str, None]] = {str(role): {} for role in (Role.PARAMETER, Role.OUTPUT, Role.GRADIENT)}
    for role, dtype in {(record.key.role, record.dtype) for record in dump.records}:
        if role in found:
            found[role][dtype] = None
    return {role: sorted(dtypes) for role, dtypes in found.items() if dtypes}


def build_curves(reference: Dump, candidate: Dump) -> list[Curve]:
    """Every scalar series that both runs have, but for facts about batches, which are no measure of training."""
    curves: list[Curve] = []
    known = {point.name for point in candidate.series if not point.name.startswith("batch.")}
    names = dict.fromkeys(point.name for point in reference.series if point.name in known)
    if not names:
        return []
    from precision_align.training.curves import compare_losses

    for name in names:
        with suppress(NothingInCommon):  # no step in common: there is no curve to compare
            curves.append(compare_losses(reference, candidate, name=name).to_curve())
    return sorted(curves, key=lambda curve: curve.name != "loss")


def note_swaps(reference: Dump | None, candidate: Dump) -> list[str]:
    """What was executed in another way on purpose: the verdict is of the run as it was with that."""
    sides = {"reference": reference, "candidate": candidate}
    found = {name: dump.info.capture.get("swapped") for name, dump in sides.items() if dump is not None}
    return [
        f"the {name} was recorded with swaps: {', '.join(f'{swap} ({count} calls)' for swap, count in swapped.items())}"
        for name, swapped in found.items()
        if swapped
    ]


def note_curves(verdict: Verdict, curves: Sequence[Curve]) -> list[str]:
    """A loss that parts although nothing that was judged fails: the cause lies in what was not recorded."""
    return [
        f"the {curve.name} curves part at step {curve.onset} although nothing judged fails: record that step on both "
        "sides, and what stands between the model and the loss"
        for curve in curves
        if verdict == Verdict.ALIGNED and curve.name == "loss" and curve.onset is not None
    ]


def take_side(side: Any, naming: Any = None) -> Dump:
    """A dump, or the one at a path. Raises what opening raises, and UsageError for anything else."""
    if isinstance(side, (str, os.PathLike)):
        return open_side(side, naming)
    if hasattr(side, "records") and hasattr(side, "payload"):
        dump: Dump = side
        return dump
    raise UsageError(f"a side of a comparison is a dump or the path of one, not {type(side).__name__}")
