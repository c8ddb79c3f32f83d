"""What ``map check`` finds: problems of rows, of cases, and between the two. Needs torch only to look into cases."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from precision_align.core.errors import RuleError, Unavailable
from precision_align.library.cases import Operator
from precision_align.library.folders import Folders, load_operator
from precision_align.library.loading import read_all
from precision_align.library.rows import MappingRow


@dataclass(frozen=True)
class CheckResult:
    """``problems``: what is wrong; ``notes``: what could not be checked; ``rows``, ``cases``: how many there are."""

    problems: tuple[str, ...]
    notes: tuple[str, ...]
    rows: int
    cases: int


def check_library(folders: Folders) -> CheckResult:
    """Check every row and every case. Raises Unavailable where TOML cannot be read at all."""
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
    count = sum(len(operator.cases) for operator in operators.values())
    return CheckResult(tuple(problems), tuple(notes), len(rows), count)


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
        if row.rule is not None and row.rule.name != operator.rule:
            yield f"{row.file}: row {row.id}: rule: is {row.rule.name!r}, cases.py judges by {operator.rule!r}"
    patterns = [pattern for row in rows for pattern in row.cases]
    for id_ in ids:
        if not any(fnmatch.fnmatchcase(id_, pattern) for pattern in patterns):
            yield f"op_cases/{operator.name}/cases.py: case {id_}: no row names it"
