"""The scanner against samples labelled by hand: our own lines in the manner of real code, with what each must yield.

A label is a comment at the end of its line, "#: R145 R149"; lines without one must yield nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from precision_align.scanner.findings import ScanReport
from precision_align.scanner.rules import load_rules
from precision_align.scanner.scanning import scan_tree

SAMPLES = Path(__file__).parent / "samples"
LABEL = re.compile(r"\s*(?:#|//):((?: R\d+)+)\s*$")
Place = tuple[str, int, str]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The samples under their real names, labels taken off: no rule may read them."""
    root = tmp_path_factory.mktemp("samples")
    for file in SAMPLES.glob("*.sample"):
        lines = [LABEL.sub("", line) for line in file.read_text(encoding="utf-8").splitlines()]
        (root / file.name.removesuffix(".sample")).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def report(tree: Path) -> ScanReport:
    return scan_tree(tree, load_rules())


def list_labels() -> Iterator[Place]:
    for file in sorted(SAMPLES.glob("*.sample")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            found = LABEL.search(line)
            for rule in found[1].split() if found else ():
                yield file.name.removesuffix(".sample"), number, rule


def test_there_are_enough_labelled_lines() -> None:
    lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in SAMPLES.glob("*.sample"))
    assert lines >= 300
    assert len(list(list_labels())) >= 120


def test_precision_and_recall_are_at_least_95_percent(report: ScanReport) -> None:
    expected = set(list_labels())
    # R198 stands for the file itself, and is shown at its first line
    found = {(finding.file, finding.line, finding.rule) for finding in report.findings}
    hits = len(expected & found)
    surplus, missing = sorted(found - expected), sorted(expected - found)
    assert hits / len(found) >= 0.95, surplus
    assert hits / len(expected) >= 0.95, missing
    assert {finding for finding in found if finding[0] == "benign.py"} == set()
