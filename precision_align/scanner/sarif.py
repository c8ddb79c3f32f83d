"""SARIF 2.1.0 (OASIS), which code-review tools show beside the lines. Only what its schema requires, and locations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from precision_align import __version__
from precision_align.scanner.findings import Finding, FindingClass, ScanReport
from precision_align.scanner.rules import Rule

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {
    FindingClass.BLOCKS: "error",
    FindingClass.CUSTOM_KERNEL: "error",
    FindingClass.MAPPING: "warning",
    FindingClass.ONE_LINE: "warning",
    FindingClass.AUTO: "note",
    FindingClass.INFO: "note",
}


def build_sarif(report: ScanReport, rules: Iterable[Rule]) -> dict[str, Any]:
    """One run. ``rules``: those of the scan; only the ones met are described."""
    met = {finding.rule for finding in report.findings}
    used = [rule for rule in rules if rule.id in met]
    places = {rule.id: index for index, rule in enumerate(used)}
    driver = {
        "name": "precision-align scan",
        "version": __version__,
        "informationUri": "https://github.com/precision-align/precision-align",
        "rules": [_describe_rule(rule) for rule in used],
    }
    results = [_describe_finding(finding, places[finding.rule]) for finding in report.findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _describe_rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "shortDescription": {"text": rule.what},
        "help": {"text": rule.fix or "nothing to change"},
        "defaultConfiguration": {"level": LEVELS[rule.cls]},
        "properties": {"class": str(rule.cls), "transfer_to_npu": rule.transfer, "mappingRows": list(rule.rows)},
    }


def _describe_finding(finding: Finding, index: int) -> dict[str, Any]:
    region = {"startLine": finding.line, "startColumn": finding.column, "snippet": {"text": finding.text}}
    location = {"artifactLocation": {"uri": quote(finding.file)}, "region": region}
    fix = f" Fix: {finding.fix}." if finding.fix else ""
    rows = f" Mapping rows: {', '.join(finding.rows)}." if finding.rows else ""
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": LEVELS[finding.cls],
        "message": {"text": f"{finding.name}: {finding.what}.{fix}{rows}"},
        "locations": [{"physicalLocation": location}],
        "partialFingerprints": {"precisionAlign/v1": finding.fingerprint},
        "properties": {"class": str(finding.cls), "cover": str(finding.cover), "mappingRows": list(finding.rows)},
    }
