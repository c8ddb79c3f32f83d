"""JUnit XML for continuous integration: one test case a module and phase, and one for the verdict."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence

from precision_align.core.results import Findings, RecordResult
from precision_align.core.terms import Status, Verdict
from precision_align.reporting.wording import SEVERITY, name_scope, phrase_excess, phrase_verdict, quote

SUITE = "precision-align"
_FAILING = (Status.FAIL, Status.MISSING)  # and whatever else is listed in the frontier: undeclared modes and the like
_SHOWN = 20  # records quoted in one failure: enough to see the pattern, and CI pages stay readable


def render_junit(report: Findings) -> str:
    """The report as one test suite.

    A test case is a module in one phase; it fails where one of its records failed, is missing or is a place of the
    frontier, is skipped where nothing of it was judged, and passes otherwise. The case "verdict" fails unless the runs
    are aligned.
    """
    groups = _group(report.records)
    suite = ElementTree.Element("testsuite", name=SUITE)
    verdict = ElementTree.SubElement(suite, "testcase", classname=SUITE, name="verdict")
    if report.verdict != Verdict.ALIGNED:
        kind = "failure" if report.verdict == Verdict.DIVERGED else "error"
        found = ElementTree.SubElement(verdict, kind, message=phrase_verdict(report), type=str(report.verdict))
        found.text = _describe_place(report)
    places = {found.key for found in report.frontier}
    for (scope, phase), records in groups.items():
        failing = [record for record in records if record.status in _FAILING or record.key in places]
        _add_case(suite, scope, phase, records, failing)
    if report.notes:
        ElementTree.SubElement(suite, "system-out").text = "\n".join(quote(note) for note in report.notes)
    _count(suite)
    suites = ElementTree.Element("testsuites", name=SUITE)
    suites.append(suite)
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _group(records: Iterable[RecordResult]) -> dict[tuple[str, str], list[RecordResult]]:
    groups: dict[tuple[str, str], list[RecordResult]] = {}
    for record in records:
        groups.setdefault((record.scope, str(record.phase)), []).append(record)
    return groups


def _add_case(
    suite: ElementTree.Element,
    scope: str,
    phase: str,
    records: Sequence[RecordResult],
    failing: Sequence[RecordResult],
) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=f"{SUITE}.{phase}", name=name_scope(scope))
    if failing:
        worst = min(failing, key=lambda record: (SEVERITY.index(Status(record.status)), record.order))
        failure = ElementTree.SubElement(case, "failure", message=_describe(worst), type=str(worst.status))
        failure.text = "\n".join(_describe(record) for record in failing[:_SHOWN])
    elif all(record.status == Status.INCONCLUSIVE for record in records):
        ElementTree.SubElement(case, "skipped", message=quote(records[0].note or "not judged"))


def _describe(record: RecordResult) -> str:
    tensor = f"{record.role} {record.path}".rstrip()
    excess = phrase_excess(record.metrics, record.limit)
    parts = [f"step {record.step} call {record.call} {tensor}: {record.status}", record.note, excess]
    return quote(", ".join(part for part in parts if part))


def _describe_place(report: Findings) -> str:
    found = report.first
    if found is None:
        return "\n".join(quote(note) for note in report.notes)
    guesses = [f"explanation: {guess.text}" for guess in found.explanations]
    return "\n".join(quote(line) for line in (found.op, found.source, found.evidence, *guesses) if line)


def _count(suite: ElementTree.Element) -> None:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(sum(case.find(tag) is not None for case in cases)))
