"""What a scan finds, as plain data."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from precision_align.core.terms import Term

SCHEMA_VERSION = 1


class FindingClass(Term):
    """What a finding costs, most work first."""

    BLOCKS = "blocks"  # nothing replaces it
    CUSTOM_KERNEL = "needs custom kernel"
    MAPPING = "needs mapping"
    ONE_LINE = "one line"
    AUTO = "auto"  # transfer_to_npu rewrites it
    INFO = "info"  # nothing to change, something to know


ORDER = tuple(FindingClass)


class Cover(Term):
    """What the mapping library has for a finding."""

    TESTED = "row with cases"
    ROW = "row without cases"
    NONE = "no row"


@dataclass(frozen=True)
class Finding:
    """One place. ``file``: relative to the root of the scan, with "/"; ``name``: what was met there, in full;
    ``text``: the line; ``rows``: ids of mapping rows; ``fingerprint``: stays the same while lines above move.
    """

    rule: str
    cls: FindingClass
    file: str
    line: int
    column: int
    name: str
    text: str
    what: str
    fix: str
    transfer: str = ""
    rows: tuple[str, ...] = ()
    cover: Cover = Cover.NONE
    fingerprint: str = ""


@dataclass(frozen=True)
class ScanReport:
    """All findings by file and line. ``known``: how many a baseline hid; ``notes``: what was not read."""

    root: str
    findings: Sequence[Finding]
    files: int
    lines: int
    known: int = 0
    notes: Sequence[str] = field(default=())

    @property
    def counts(self) -> dict[str, int]:
        """Class -> number of findings, most work first; every class is there."""
        counter = Counter(finding.cls for finding in self.findings)
        return {str(cls): counter[cls] for cls in ORDER}

    @property
    def work(self) -> dict[str, int]:
        """Cover -> number of findings that need work on an operator (mapping, kernel, blocks)."""
        counter = Counter(finding.cover for finding in self.findings if needs_work(finding))
        return {str(cover): counter[cover] for cover in Cover}

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "schema_version": SCHEMA_VERSION,
            "root": self.root,
            "files": self.files,
            "lines": self.lines,
            "counts": self.counts,
            "work": self.work,
            "known": self.known,
            "notes": list(self.notes),
            "findings": [_make_plain(finding) for finding in self.findings],
        }


def _make_plain(finding: Finding) -> Mapping[str, Any]:
    plain = dataclasses.asdict(finding)
    return {**plain, "class": str(plain.pop("cls")), "cover": str(finding.cover), "rows": list(finding.rows)}


def needs_work(finding: Finding) -> bool:
    """Whether an operator has to be found, mapped or written for it."""
    return finding.cls in (FindingClass.BLOCKS, FindingClass.CUSTOM_KERNEL, FindingClass.MAPPING)
