"""What ``map check`` finds: problems of rows, of cases, and between the two. Needs torch only to look into cases."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from precision_align.core.errors import RuleError, Unavailable
from precision_align.library.cases import Operator
from precision_align.library.evidence import Proof, find_installed, find_stale
from precision_align.library.folders import Folders, load_operator
from precision_align.library.loading import read_all
from precision_align.library.releases import read_releases
from precision_align.library.rows import MappingRow

_REPLACEMENT = re.compile(r"\btorch_npu\.(_?npu_\w+)")


@dataclass(frozen=True)
class CheckResult:
    """``problems``: what is wrong; ``notes``: what could not be checked; ``rows``, ``cases``: how many there are;
    ``untested``: reason -> number of rows without a case.
    """

    problems: tuple[str, ...]
    notes: tuple[str, ...]
    rows: int
    cases: int
    untested: Mapping[str, int]


def check_library(folders: Folders, evidence: Sequence[Proof] = ()) -> CheckResult:
    """Check every row, every case, and whether ``evidence`` still holds.

    Raises Unavailable where TOML cannot be read at all.
    """
    rows, problems = read_all(folders)
    notes: list[str] = []
    operators = _load_operators(folders, problems, notes)
    for op in sorted({row.op for row in rows}):
        mine = [row for row in rows if row.op == op]
        if op in operators:
            problems += _compare(mine, operators[op])
        elif op not in folders.operators:
            problems += [f"{row.file}: row {row.id}: cases: {op}/cases.py does not exist" for row in mine if row.cases]
    missing = sorted(set(folders.operators) - {row.op for row in rows})
    problems += [f"op_cases/{op}: has cases, but mapping.toml has no row that they prove" for op in missing]
    problems += [problem for row in rows for problem in _check_replacement(row)]
    problems += _check_goldens(rows, folders)
    problems += find_stale(evidence, folders, find_installed())
    count = sum(len(operator.cases) for operator in operators.values())
    untested = Counter(re.sub(r"\bM\d+\b", "another row", row.untested) for row in rows if row.untested)
    return CheckResult(tuple(problems), tuple(notes), len(rows), count, dict(untested.most_common()))


def _load_operators(folders: Folders, problems: list[str], notes: list[str]) -> dict[str, Operator]:
    operators: dict[str, Operator] = {}
    for name in folders.operators:
        try:
            operators[name] = load_operator(folders, name)
        except RuleError as error:
            problems += str(error).partition("] ")[2].splitlines()
        except Unavailable as error:
            notes.append(f"cases were not looked at: {error}")
            break
    return operators


def _compare(rows: Sequence[MappingRow], operator: Operator) -> Iterable[str]:
    """Every selector of a row finds a case, every case is claimed by a row, and both name the same rule."""
    ids = [case.id for case in operator.cases]
    for row in rows:
        boundary = [pattern for boundary in row.boundaries for pattern in boundary.cases]
        for pattern in dict.fromkeys((*row.cases, *boundary)):
            if not fnmatch.filter(ids, pattern):
                yield f"{row.file}: row {row.id}: cases: {pattern!r} finds no case of {operator.name}"
        if row.cases and row.rule is not None and row.rule.name != operator.rule:
            yield f"{row.file}: row {row.id}: rule: is {row.rule.name!r}, cases.py judges by {operator.rule!r}"
    patterns = [pattern for row in rows for pattern in row.cases]
    for id_ in ids:
        if not any(fnmatch.fnmatchcase(id_, pattern) for pattern in patterns):
            yield f"op_cases/{operator.name}/cases.py: case {id_}: no row names it"


def _check_replacement(row: MappingRow) -> Iterator[str]:
    """The operators that a replacement calls exist, in the first releases that the row names among those read."""
    releases = read_releases()
    for name in dict.fromkeys(_REPLACEMENT.findall(row.replacement)):
        place = f"{row.file}: row {row.id}: replacement"
        if name not in releases.operators:
            yield f"{place}: torch_npu.{name} is in none of the releases read ({', '.join(releases.names)})"
    for name in _REPLACEMENT.findall(row.replacement)[:1]:
        absent = releases.find_absent(name, row.versions.since) if name in releases.operators else ()
        if absent:
            yield f"{row.file}: row {row.id}: versions: torch_npu {', '.join(absent)} has no {name}"


def _check_goldens(rows: Sequence[MappingRow], folders: Folders) -> Iterator[str]:
    """A golden function that a row names exists, and every golden function belongs to an operator."""
    have = {file.stem for file in folders.functions.glob("*.py")}
    for row in rows:
        if row.golden and row.golden not in have:
            yield f"{row.file}: row {row.id}: golden: golden/functions/{row.golden}.py does not exist"
    for name in sorted(have - {row.op for row in rows} - {row.golden for row in rows}):
        yield f"golden/functions/{name}.py: no operator is called so, and no row names it as its golden"
