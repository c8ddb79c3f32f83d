"""``compare``: two dumps, or one dump and the reference's code, to a report."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from precision_align.comparison.engine import Engine, Progress
from precision_align.comparison.journals import Journal
from precision_align.comparison.rules import Rules, load_rules
from precision_align.core.errors import NothingInCommon, Unavailable, UsageError
from precision_align.core.results import Curve, Findings
from precision_align.core.terms import Verdict
from precision_align.divergence.locating import find_divergence
from precision_align.numerics.kernels import kernel_name
from precision_align.reporting.report import Report
from precision_align.storage.base import Dump
from precision_align.storage.foreign.dumps import ForeignDump
from precision_align.storage.opening import open_side
from precision_align.storage.redaction import require_one_secret

Side = "Dump | str | os.PathLike[str]"


def compare(
    reference: Any,
    candidate: Any,
    *,
    rules: Any = None,
    replay: Any = None,
    library: Any = None,
    naming: Any = None,
    progress: Progress | None = None,
    reading: Progress | None = None,
    journal: Journal | None = None,
) -> Report:
    """Find the first place where the candidate computes something else than the reference.

    ``reference``, ``candidate``: dumps or paths of dumps; ``reference`` may be None with ``replay``: then the candidate
    is judged by the reference's code alone. ``replay``: the reference's ``torch.nn.Module`` or a factory of it; without
    it stock ``torch.nn`` leaves are replayed from their recorded attributes and the rest is compared raw. ``rules``: a
    rule file or what :func:`load_rules` gave. ``library``: a folder with a team's own operator library.
    ``naming``: what the tensors of a side that is files of another tool are (see
    :func:`~precision_align.storage.opening.open_dump`). ``progress``: told (passes judged, passes in all),
    ``reading``: (tensors read, tensors in all) of a side that is files of another tool. ``journal``: keeps what was
    found, and has what an interrupted comparison of the same two sides found (see
    :func:`~precision_align.workflows.resuming.open_journal`).

    Raises DumpError where a dump cannot be read or the two have nothing in common, UsageError for wrong arguments.
    """
    if candidate is None:
        raise UsageError("compare needs a candidate: the dump of the run that is under suspicion")
    if reference is None and replay is None:
        raise UsageError("compare needs a reference dump, or the reference's code with replay=")
    known = rules if isinstance(rules, Rules) or rules is None else load_rules(rules)
    theirs = None if reference is None else _open(reference, naming)
    ours = _open(candidate, naming)
    if theirs is not None:
        require_one_secret(theirs.info, ours.info)
    if reading is not None:
        read_foreign([side for side in (theirs, ours) if isinstance(side, ForeignDump)], reading)
    engine = Engine(theirs, ours, replay=replay, rules=known, journal=journal)
    findings = find_divergence(engine, known, progress)
    report = finish(findings, theirs, ours, library)
    return replace(
        report,
        reference=name_path(report.reference, reference),
        candidate=name_path(report.candidate, candidate),
    )


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


def finish(findings: Findings, reference: Dump | None, candidate: Dump, library: Any = None) -> Report:
    """Add run information, curves and the operator library's rows to what was found."""
    rows, notes = find_mappings({found.op for found in findings.frontier}, library)
    frontier = [replace(found, mapping=rows.get(found.op)) for found in findings.frontier]
    first = None if findings.first is None else replace(findings.first, mapping=rows.get(findings.first.op))
    values = {name: getattr(findings, name) for name in ("verdict", "records", "coverage")}
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
        known = load_library(library)
    except Unavailable as error:  # the bundled one may lack a TOML reader
        if library is not None:
            raise
        return {}, [f"no operator library: {error}"]
    return {op: row.to_dict() for op, row in ((op, known.lookup(op)) for op in operators) if row is not None}, []


def describe(dump: Dump) -> Mapping[str, Any]:
    """Run information of a dump as plain data."""
    information = asdict(dump.info)
    information["path"] = str(getattr(dump, "path", ""))
    information.pop("notes", None)
    return information


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


def _open(side: Any, naming: Any = None) -> Dump:
    if isinstance(side, (str, os.PathLike)):
        return open_side(side, naming)
    if hasattr(side, "records") and hasattr(side, "payload"):
        dump: Dump = side
        return dump
    raise UsageError(f"a side of a comparison is a dump or the path of one, not {type(side).__name__}")
