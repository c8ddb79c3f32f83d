"""A baseline: the findings that are known already, so that only new ones count. It survives lines that move."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from precision_align.core.errors import UsageError
from precision_align.scanner.findings import Finding, ScanReport

SCHEMA_VERSION = 1


def write_baseline(path: str | Path, findings: Iterable[Finding]) -> None:
    """Fingerprints, each with its file and rule for people who read the file. Raises UsageError."""
    known = sorted((f.fingerprint, f.file, f.rule) for f in findings)
    entries = [{"fingerprint": mark, "file": file, "rule": rule} for mark, file, rule in known]
    text = json.dumps({"schema_version": SCHEMA_VERSION, "findings": entries}, indent=1, ensure_ascii=False) + "\n"
    try:
        Path(path).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"cannot write the baseline {path}: {error}") from error


def read_baseline(path: str | Path) -> frozenset[str]:
    """The fingerprints. Raises UsageError for a file that is none of ours."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        if document["schema_version"] != SCHEMA_VERSION:
            raise UsageError(
                f"{path} has schema_version {document['schema_version']}, this version reads {SCHEMA_VERSION}: "
                "write it again with scan --write-baseline"
            )
        return frozenset(str(entry["fingerprint"]) for entry in document["findings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path} is no baseline of scan --write-baseline: {error!r}") from error


def hide_known(report: ScanReport, known: frozenset[str]) -> ScanReport:
    """The report without what the baseline has."""
    new = [finding for finding in report.findings if finding.fingerprint not in known]
    return replace(report, findings=new, known=len(report.findings) - len(new))
