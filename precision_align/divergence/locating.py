"""From verdicts on records to the first divergence, the frontier, the coverage and the verdict as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from precision_align.comparison.engine import Comparison, Engine, Progress, Recomputed
from precision_align.comparison.rules import Rules
from precision_align.core.errors import DumpDamaged
from precision_align.core.results import Coverage, Divergence, ErrorMap, Findings, RecordResult
from precision_align.core.terms import Kind, Phase, Role, Site, Status, Verdict
from precision_align.divergence.explanations import explain
from precision_align.numerics.errormaps import map_errors
from precision_align.numerics.limits import raw_limit

# A propagated difference that comes out this many times larger than it went in deserves a note: networks at rest stay
# below 10 a module, a norm over nearly constant input reaches 1e5.
AMPLIFIER = 100.0
# Places of the frontier whose errors are mapped: each costs a replay, and up to 40 KB of the report.
MAPPED = 4
_KINDS = {Status.FAIL: Kind.ORIGIN, Status.MODE: Kind.MODE, Status.RANDOM: Kind.RANDOM}
_RANKED = (Kind.ORIGIN, Kind.MODE, Kind.RANDOM)
_UNJUDGED = (Status.INCONCLUSIVE, Status.MISSING)


def find_divergence(engine: Engine, rules: Rules | None = None, progress: Progress | None = None) -> Findings:
    """Run a comparison, name its first divergence, explain it and map its error and that of a few others."""
    findings = locate(engine.run(progress), rules)
    if findings.first is None:
        return findings
    first, maps = findings.first, []
    for place, found in enumerate(findings.frontier[:MAPPED]):
        again = engine.recompute(found.key, found.scope, found.phase)
        if place == 0 and again is not None:
            first = explain_first(first, again)
        maps.append(map_place(engine, found, again))
    first = engine.operations.name(first)
    return replace(
        findings,
        first=first,
        frontier=[first, *findings.frontier[1:]],
        error_maps=[found for found in maps if found is not None],
    )


def locate(comparison: Comparison, rules: Rules | None = None) -> Findings:
    """Name the first divergence of a comparison. Rows must be in walk order."""
    declared = rules or Rules()
    frontier = find_frontier(comparison.rows, declared)
    first = frontier[0] if frontier else None
    verdict, reason = _decide(comparison, first)
    notes = [*reason, *comparison.notes, *_note_amplifiers(comparison.rows)]
    notes += _note_limits(comparison.rows, first)
    warned = sum(row.status == Status.WARN for row in comparison.rows)
    if warned:
        who = "1 record is" if warned == 1 else f"{warned} records are"
        notes.append(f"{who} noisier than the reference, within what a conforming build may be (warn)")
    return Findings(
        verdict=verdict,
        first=first,
        frontier=frontier,
        records=comparison.rows,
        notes=notes,
        coverage=measure_coverage(comparison.rows),
    )


def explain_first(first: Divergence, again: Recomputed) -> Divergence:
    """The first divergence with ranked guesses at its cause."""
    explanations = explain(again.actual, again.golden, again.record.dtype, again.alternatives)
    return replace(first, explanations=explanations)


def map_place(engine: Engine, found: Divergence, again: Recomputed | None) -> ErrorMap | None:
    """Where the error of a divergence lies: against its float64 replay, else against the reference's run."""
    if again is not None:
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


def make_divergence(row: RecordResult, kind: Kind) -> Divergence:
    """A divergence from the first record that shows it."""
    where = f" (seen at {row.role} {row.path or 'value'})"
    provider = {
        "replay": "float64 replay on the candidate's own inputs",
        "raw": "raw difference",
        "certificate": "the reference's certificate, on its very inputs",
        "replay+certificate": "float64 replay and the reference's certificate, on the same inputs",
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
            coverage[phase] = Coverage(len(members), len(judged), *sizes)
    return coverage


def _decide(comparison: Comparison, first: Divergence | None) -> tuple[Verdict, list[str]]:
    """The verdict, and the note that says why there is none where the comparison's own first note does not."""
    if first is not None:
        return Verdict.DIVERGED, []
    if comparison.interrupted:
        return Verdict.NOT_COMPARABLE, []
    hidden = _find_hidden(comparison)
    if hidden:
        return Verdict.NOT_COMPARABLE, [_phrase_hidden(hidden)]
    judged = any(
        row.status not in _UNJUDGED
        and (row.phase == Phase.STEP or (row.scope in comparison.roots and row.role == Role.OUTPUT))
        for row in comparison.rows
        if row.site != Site.INPUTS
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
    limit = raw_limit("float32") if row.limit is None or row.limit.metric != "raw_over_max" else row.limit.value
    return row.metrics.get("raw_over_max", 0.0) > limit


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
