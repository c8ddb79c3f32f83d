"""Runs all checks on a dump."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence, Set

from precision_align.core.errors import NothingInCommon
from precision_align.storage.base import Dump
from precision_align.training.health.consequences import mark_consequences
from precision_align.training.health.costs import compare_costs, measure_costs
from precision_align.training.health.facts import Facts, gather_facts
from precision_align.training.health.families import Families
from precision_align.training.health.findings import Finding, HealthReport, Severity, merge
from precision_align.training.health.gradients import NORMS, check_gradients, check_norms
from precision_align.training.health.groups import Groups
from precision_align.training.health.inputs import check_inputs
from precision_align.training.health.origins import find_origin
from precision_align.training.health.pairs import compare_settings
from precision_align.training.health.peers import check_peers
from precision_align.training.health.reductions import check_collectives, check_reductions
from precision_align.training.health.replicas import check_replicas
from precision_align.training.health.scales import SCALES, check_scales
from precision_align.training.health.updates import check_lasting, check_updates, compare_updates


def check_health(
    dump: Dump | str | os.PathLike[str],
    reference: Dump | str | os.PathLike[str] | None = None,
    *,
    replicas: Sequence[Sequence[int]] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> HealthReport:
    """Look for what goes wrong in trainings by itself: no second run is needed.

    ``reference``: a dump of the run that is right; then settings and the first update are held against it too.
    ``replicas``: groups of ranks that hold the same parameters; default: all. ``progress``: told (checks made, checks).
    Raises the errors of the dump reader, NothingInCommon where the dump holds no record.
    """
    facts = gather_facts(_open(dump))
    if not facts.dump.records:
        raise NothingInCommon(f"{_name(dump)} holds no record of a tensor: there is nothing to check; record it again")
    groups = Groups(facts.dump)
    families = Families(facts, groups)
    findings = _check_run(facts, groups, families, replicas, progress)
    costs = measure_costs(facts)
    if reference is not None:
        other = gather_facts(_open(reference))
        findings += [*compare_updates(facts, other), *compare_settings(facts, other)]
        findings += compare_costs(costs, measure_costs(other))
    return HealthReport(
        path=_name(dump),
        steps=tuple(facts.dump.steps),
        ranks=tuple(facts.dump.ranks),
        findings=_order(findings),
        checks=_count_evidence(facts, groups, reference is not None),
        notes=(*facts.dump.notes, *families.describe()),
        costs=costs,
    )


def _check_run(
    facts: Facts,
    groups: Groups,
    families: Families,
    replicas: Sequence[Sequence[int]] | None,
    progress: Callable[[int, int], None],
) -> list[Finding]:
    """What one run shows by itself."""
    reduced = list[Finding](check_reductions(facts, groups, families, replicas))
    explained = {finding.place for finding in reduced}
    checks: tuple[Iterable[Finding], ...] = (
        find_origin(facts),
        check_collectives(groups, facts),
        check_inputs(facts),
        check_updates(facts),
        check_lasting(facts),
        check_gradients(facts),
        check_norms(facts),
        check_scales(facts),
        (one for one in check_replicas(facts, groups, families, replicas) if not _repeats(one, explained)),
        reduced,
        check_peers(facts, groups, replicas),
    )
    findings: list[Finding] = []
    for done, check in enumerate(checks):
        progress(done, len(checks))
        findings += check  # generators: the work is done here
    return findings


def _repeats(finding: Finding, explained: Set[str]) -> bool:
    """Whether a gradient that differs between replicas is explained by what its reduction did."""
    return finding.code == "replica gradients" and bool({finding.place, ""} & explained)


def _open(dump: Dump | str | os.PathLike[str]) -> Dump:
    if not isinstance(dump, (str, os.PathLike)):
        return dump
    from precision_align.storage.opening import open_dump

    return open_dump(dump)


def _name(dump: Dump | str | os.PathLike[str]) -> str:
    return os.fspath(dump) if isinstance(dump, (str, os.PathLike)) else str(getattr(dump, "path", "the dump"))


def _order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(
        sorted(
            mark_consequences(merge(findings)),
            key=lambda finding: (list(Severity).index(finding.severity), finding.step, finding.rank),
        )
    )


def _count_evidence(facts: Facts, groups: Groups, paired: bool) -> dict[str, int]:
    """How much each check had to look at: what is 0 was not checked."""
    ranks = len(facts.dump.ranks)
    return {
        "updates": len(facts.updated),
        "gradients": sum(len(records) for records in facts.gradients.values()),
        "gradient norm": len(facts.find_series(*NORMS)) if ranks == 1 else 0,
        "loss": len(facts.find_series("loss", "lm loss")),
        "loss scale": len(facts.find_series(*SCALES)),
        "inputs": len(facts.inputs),
        "replicas": ranks if ranks > 1 else 0,
        "collectives": len(groups.exchanges),
        "settings of both runs": int(paired),
    }
