"""From verdicts on records to the first divergence, the frontier, the coverage and the verdict as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from precision_align.comparison.boundaries import EVIDENCE
from precision_align.comparison.engine import Comparison, Engine
from precision_align.comparison.raw import SIZES
from precision_align.comparison.recomputing import Recomputed
from precision_align.comparison.repetition import MARK
from precision_align.comparison.rules import Rules
from precision_align.comparison.walking import Progress
from precision_align.core.errors import DumpDamaged
from precision_align.core.results import OUT_OF_TIME, Coverage, Divergence, ErrorMap, Findings, RecordResult
from precision_align.core.terms import Kind, Phase, Role, Site, Status, Verdict
from precision_align.divergence.explanations import explain, explain_part
from precision_align.numerics.errormaps import map_errors
from precision_align.numerics.limits import raw_limit

# A propagated difference that comes out this many times larger than it went in deserves a note: networks at rest stay
# below 10 a module, a norm over nearly constant input reaches 1e5.
AMPLIFIER = 100.0
# Places of the frontier whose errors are mapped: each costs a replay, and up to 40 KB of the report.
MAPPED = 4
_KINDS = {
    Status.FAIL: Kind.ORIGIN,
    Status.NONDETERMINISTIC: Kind.NONDETERMINISTIC,
    Status.MODE: Kind.MODE,
    Status.RANDOM: Kind.RANDOM,
}
_RANKED = (Kind.ORIGIN, Kind.NONDETERMINISTIC, Kind.MODE, Kind.RANDOM)
_POWERS = {
    "statistics": "statistics alone: values in the wrong places, and common factors within {power:.2g}, hide there",
    "sketch": "sketch alone: relative L2 errors below {power:.2g} hide there",
}
_UNJUDGED = (Status.INCONCLUSIVE, Status.MISSING)


def find_divergence(
    engine: Engine, rules: Rules | None = None, progress: Progress | None = None, *, maps: bool = True
) -> Findings:
    """Run a comparison, name its first divergence, explain it and map its error and that of a few others (``maps``)."""
    findings = locate(engine.run(progress), rules)
    frontier = [_name_own(engine, found) for found in findings.frontier]
    if findings.first is None:
        return replace(findings, frontier=frontier)
    first, notes, again = frontier[0], findings.notes, None
    try:
        again = engine.recomputer.recompute(first)
        first = first if again is None else explain_first(engine, first, again)
    except Exception as error:  # variants of the user's own code run in there: the verdict stands without a guess
        notes = [*notes, f"the cause was not searched: {type(error).__name__}: {str(error)[:160]}"]
    found = map_places(engine, frontier, again) if maps else []
    first = engine.operations.name(first)
    return replace(findings, first=first, frontier=[first, *frontier[1:]], notes=notes, error_maps=found)


def _name_own(engine: Engine, found: Divergence) -> Divergence:
    """Say what the candidate calls the module, where the two programs name it differently."""
    own = engine.name_own(found.scope)
    return replace(found, evidence=f"{found.evidence}; the candidate's {own}") if own else found


def locate(comparison: Comparison, rules: Rules | None = None) -> Findings:
    """Name the first divergence of a comparison. Rows must be in walk order."""
    declared = rules or Rules()
    frontier = find_frontier(comparison.rows, declared)
    first = frontier[0] if frontier else None
    frontier += find_harmless(comparison.rows, frontier)
    verdict, reason = _decide(comparison, first)
    notes = [*reason, *_note_power(comparison.rows), *comparison.notes, *declared.describe(comparison.rows)]
    notes += [*note_rows(comparison.rows, first), *_note_late(comparison.rows)]
    return Findings(
        verdict=verdict,
        first=first,
        frontier=frontier,
        records=comparison.rows,
        notes=notes,
        coverage=measure_coverage(comparison.rows),
        roots=sorted(comparison.roots),
        interrupted=comparison.interrupted,
        modules=comparison.modules,
    )


def note_rows(rows: Sequence[RecordResult], first: Divergence | None) -> list[str]:
    """Notes that follow from the verdicts on the records alone."""
    notes = []
    lacking = sum(row.status == Status.MISSING for row in rows)
    if lacking:
        stands = "record stands" if lacking == 1 else "records stand"
        notes.append(f"{lacking} {stands} on one side only (missing): see the table")
    reasons = Counter(row.note for row in rows if row.status == Status.INCONCLUSIVE)
    notes += [f"{count} record{'s' * (count != 1)} inconclusive: {note}" for note, count in reasons.most_common(12)]
    notes += [*_note_amplifiers(rows), *_note_limits(rows, first)]
    warned = sum(row.status == Status.WARN for row in rows)
    if warned:
        who = "1 record is" if warned == 1 else f"{warned} records are"
        notes.append(f"{who} noisier than the reference, within what a conforming build may be (warn)")
    return notes


def explain_first(engine: Engine, first: Divergence, again: Recomputed) -> Divergence:
    """The first divergence with ranked guesses at its cause."""
    explanations = explain(again.actual, again.golden, again.record.dtype, again.alternatives, again.given)
    parts = explain_part(again.actual, again.golden, engine.list_parts(first.scope))
    return replace(first, explanations=[*parts, *explanations])


def map_places(engine: Engine, frontier: Sequence[Divergence], again: Recomputed | None) -> list[ErrorMap]:
    """Where the errors of the first places lie, of those whose values are stored; ``again``: the first one's replay."""
    maps = []
    for place, found in enumerate(frontier[: 1 if engine.is_out_of_time else MAPPED]):
        known = again if place == 0 else engine.recomputer.recompute(found, variants=False)
        maps.append(_map_place(engine, found, known))
    return [found for found in maps if found is not None]


def _map_place(engine: Engine, found: Divergence, again: Recomputed | None) -> ErrorMap | None:
    """Against what it should be, else against the reference's run."""
    if again is not None and found.site != Site.PARAMETERS:
        return map_errors(found.key, "golden", again.actual, again.golden)
    try:
        pair = engine.read_pair(found.key)
    except DumpDamaged:  # the record's own note says so
        return None
    return None if pair is None else map_errors(found.key, "reference", *pair)


def find_frontier(rows: Iterable[RecordResult], rules: Rules) -> list[Divergence]:
    """Each failing place once, at its first record: origins in walk order, then undeclared modes, then random masks."""
    found: dict[tuple[object, ...], Divergence] = {}
    for row in rows:
        kind = _KINDS.get(row.status)
        if kind is None or (kind == Kind.MODE and rules.is_declared(row.note)):
            continue
        found.setdefault((kind, row.rank, row.scope, row.site, row.phase), make_divergence(row, kind))
    return sorted(found.values(), key=lambda divergence: _RANKED.index(divergence.kind))


def find_harmless(rows: Iterable[RecordResult], frontier: Sequence[Divergence]) -> list[Divergence]:
    """Where the candidate differs from itself no more than arithmetic explains: findings, but no divergence."""
    known = {(found.rank, found.scope, found.site, found.phase) for found in frontier}
    found: dict[tuple[object, ...], Divergence] = {}
    for row in rows:
        place = (row.rank, row.scope, row.site, row.phase)
        if MARK in row.metrics and row.status not in _KINDS and place not in known:
            found.setdefault(place, make_divergence(row, Kind.NONDETERMINISTIC))
    return list(found.values())


def make_divergence(row: RecordResult, kind: Kind) -> Divergence:
    """A divergence from the first record that shows it."""
    where = f" (seen at {row.role} {row.path or 'value'})"
    provider = {
        "replay": "float64 replay on the candidate's own inputs",
        "sampled": "float64 replay of a sample of the values, on the candidate's own inputs",
        "raw": "raw difference",
        "sketch": "raw difference of the sketches",
        "statistics": "raw difference of the statistics",
        "sample": "raw difference of a sample of the values",
        "certificate": "the reference's certificate, on its very inputs",
        "replay+certificate": "float64 replay and the reference's certificate, on the same inputs",
        EVIDENCE: "what all ranks gave to the collective",
        "replay+forced": "float64 replay and forced comparison, on the reference's own inputs",
        "forced": "forced comparison, on the reference's own inputs",
    }
    return Divergence(
        scope=row.scope,
        site=row.site,
        phase=row.phase,
        call=row.call,
        step=row.step,
        rank=row.rank,
        op=row.op,
        source=row.source,
        kind=kind,
        metrics=row.metrics,
        limit=row.limit,
        evidence=f"{provider.get(row.evidence, row.evidence)}: {row.note}{where}",
        key=row.key,
    )


def measure_coverage(rows: Sequence[RecordResult]) -> dict[Phase, Coverage]:
    """Judged and recorded, by phase; only phases in which something was recorded."""
    coverage = {}
    for phase in Phase:
        members = [row for row in rows if row.phase == phase]
        judged = [row for row in members if row.status not in _UNJUDGED]
        if members:
            sizes = sum(row.nbytes for row in members), sum(row.nbytes for row in judged)
            sampled = sum(row.evidence in ("sampled", "sample") for row in judged)
            coverage[phase] = Coverage(len(members), len(judged), *sizes, sampled)
    return coverage


def _decide(comparison: Comparison, first: Divergence | None) -> tuple[Verdict, list[str]]:
    """The verdict, and the note that says why there is none where the comparison's own first note does not."""
    if first is not None:
        return Verdict.DIVERGED, []
    if comparison.interrupted:
        return Verdict.NOT_COMPARABLE, []
    late = sum(OUT_OF_TIME in row.note for row in comparison.rows)
    if late:
        return Verdict.NOT_COMPARABLE, [f"nothing that was judged differs, but {late} records were not judged in time"]
    hidden = _find_hidden(comparison)
    if hidden:
        return Verdict.NOT_COMPARABLE, [_phrase_hidden(hidden)]
    judged = any(
        row.status not in _UNJUDGED
        and (row.phase == Phase.STEP or (row.scope in comparison.roots and row.role == Role.OUTPUT))
        for row in comparison.rows
        if row.site != Site.INPUTS and row.evidence != EVIDENCE
    )
    if judged:
        return Verdict.ALIGNED, []
    return Verdict.NOT_COMPARABLE, ["no output of the model and no optimizer step could be judged"]


def _phrase_hidden(hidden: Sequence[RecordResult]) -> str:
    first = hidden[0]
    place = f"{first.scope or '(root)'}, {first.phase}, step {first.step}"
    return (
        f"the runs differ, and what may be the cause could not be judged: {len(hidden)} in all, first {place} "
        f"({first.note}); with the reference's code, --replay MODULE:FACTORY, more can be"
    )


def _find_hidden(comparison: Comparison) -> list[RecordResult]:
    """What differs and nobody could judge, where the model's outputs or gradients differ after it; else nothing.

    Sums of shares and optimizer steps do not count: their sources were judged, and they are listed.
    """
    unknown = [
        row
        for row in comparison.rows
        if row.status == Status.INCONCLUSIVE and _differs(row) and row.phase != Phase.STEP and row.op != "gradient"
    ]
    if not unknown:
        return []
    start = min((row.step, row.rank, row.order) for row in unknown)
    seen = any(
        _differs(row) and (row.step, row.rank, row.order) >= start
        for row in comparison.rows
        if (row.role == Role.OUTPUT and row.scope in comparison.roots) or row.phase == Phase.BACKWARD
    )
    return unknown if seen else []


def _differs(row: RecordResult) -> bool:
    if row.limit is not None and row.limit.metric in SIZES:
        return row.metrics.get(row.limit.metric, 0.0) > row.limit.value
    return row.metrics.get("raw_over_max", 0.0) > raw_limit("float32")


def _note_late(rows: Sequence[RecordResult]) -> list[str]:
    """What a time budget left out, and where it begins."""
    late = [row for row in rows if OUT_OF_TIME in row.note]
    if not late:
        return []
    scopes = list(dict.fromkeys(row.scope or "(root)" for row in late))
    shown = ", ".join(scopes[:5]) + (f" and {len(scopes) - 5} more" if len(scopes) > 5 else "")
    return [
        f"the time budget was used up: {len(late)} records were not judged, in {shown} (from step {late[0].step}, "
        f"{late[0].phase}, on); suspicious ones were judged first, and the same command with -o goes on from there"
    ]


def _note_power(rows: Sequence[RecordResult]) -> list[str]:
    """What may hide in records that passed though less than their values was stored."""
    notes = []
    for evidence, text in _POWERS.items():
        powers = [row.metrics.get("raw_power", 0.0) for row in rows if row.evidence == evidence and _has_passed(row)]
        if powers:
            who = "1 record" if len(powers) == 1 else f"{len(powers)} records"
            notes.append(f"{who} passed by {text.format(power=max(powers))}")
    return notes


def _has_passed(row: RecordResult) -> bool:
    return row.status in (Status.PASS, Status.WARN, Status.PROPAGATED)


def _note_amplifiers(rows: Sequence[RecordResult]) -> list[str]:
    found = [row for row in rows if row.metrics.get("amplification", 0.0) > AMPLIFIER and row.status != Status.FAIL]
    found.sort(key=lambda row: -row.metrics["amplification"])
    notes = []
    for row in found[:5]:
        entered, out = row.metrics["raw_rel_l2_in"], row.metrics["raw_rel_l2"]
        notes.append(
            f"amplifier: {row.scope or '(root)'} turns a relative difference of {entered:.1e} into {out:.1e} "
            f"(x{row.metrics['amplification']:.0f}); it is innocent: replayed on its own inputs it is right"
        )
    return notes


def _note_limits(rows: Sequence[RecordResult], first: Divergence | None) -> list[str]:
    """What was not judged before the first divergence limits the claim that it is the first."""
    before = 0
    for row in rows:
        if first is not None and row.key == first.key:
            break
        before += row.status == Status.INCONCLUSIVE
    if not before:
        return []
    what = "before the first divergence" if first is not None else "in all"
    who = "1 record" if before == 1 else f"{before} records"
    return [f"{who} {what} could not be judged: an earlier cause may hide there"]
