"""Reading a library's rows, all problems of all files at once, and finding the row for a module or an operator."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from precision_align.core.errors import RuleError, Unavailable
from precision_align.library.folders import Folders, PathLike, find_folders
from precision_align.library.rows import MappingRow, RowStatus
from precision_align.library.schema import read_rows

_WILDCARDS = "*?[]"
_LITERAL = re.compile(r"[^*?\[]*")
# A row's patterns as files have them: a list, in which nothing is found where it is of no usual form, and one of it.
_LIST = re.compile(r"^[ \t]*(?:symbols|modules|calls)\b(?: = \[([^\[\]'\\]*)\]$)?", re.MULTILINE)
_PATTERN = re.compile(r'"([^"\n]*)"')


@dataclass(frozen=True)
class Library:
    """The rows of one library folder, in the order of operators and files."""

    rows: tuple[MappingRow, ...]
    folders: Folders

    @property
    def operators(self) -> tuple[str, ...]:
        """Operators that have rows, sorted."""
        return tuple(sorted({row.op for row in self.rows}))

    def cases(self, op: str) -> tuple[str, ...]:
        """What to give to ``case run`` for an operator: its rows' selectors ("op/case", "op/glob"), each once."""
        return tuple(dict.fromkeys(selector for row in self.rows if row.op == op for selector in row.selectors))

    def lookup(self, op: str, kind: str = "") -> MappingRow | None:
        """The row that fits best, or None.

        ``kind``: full class name of a module ("torch.nn.modules.normalization.LayerNorm"); ``op``: name of an operator,
        a function or a class. The pattern that says most (characters that are no wildcards) wins; of equals, a verified
        row, then the first. Patterns without a "." match the last part of a name, so that a package called attention
        does not make attention of all that is in it; upper and lower case are told apart, so that Property is no Rope.
        """
        best: tuple[int, bool] | None = None
        found = None
        for row in self.rows:
            weight = max(_weigh(row.modules, (kind, op)), _weigh((*row.calls, *row.symbols), (op, kind)))
            rank = (weight, row.status == RowStatus.VERIFIED)
            if weight and (best is None or rank > best):
                best, found = rank, row
        return found


def _weigh(patterns: Sequence[str], names: Sequence[str]) -> int:
    """How many literal characters of the best matching pattern agree; 0 where none matches."""
    hits = (pattern for pattern in patterns for name in names if name and _fits(pattern, name))
    return max((sum(character not in _WILDCARDS for character in pattern) for pattern in hits), default=0)


def _fits(pattern: str, name: str) -> bool:
    target = name if "." in pattern else name.rpartition(".")[2]
    literal = _LITERAL.match(pattern)
    # most patterns are plain names, or begin as no name that is asked for: they need no regular expression
    if literal is not None and not target.startswith(literal[0]):
        return False
    if "?" in pattern or "[" in pattern:
        return fnmatch.fnmatchcase(target, pattern)
    first, *rest = pattern.split("*")
    return _has_in_order(target[len(first) :], rest) if rest else target == first


def _has_in_order(text: str, parts: Sequence[str]) -> bool:
    """Whether a text ends with the last part and has the others before it, in order; they do not overlap."""
    for part in parts[:-1]:
        at = text.find(part)
        if at < 0:
            return False
        text = text[at + len(part) :]
    return text.endswith(parts[-1])


def load_library(path: PathLike | None = None, names: Collection[str] | None = None) -> Library:
    """Read the bundled library, or the folder at ``path``.

    ``names``: what will be looked up; the files that have nothing of that name are not parsed, which takes most of the
    time, and not checked. Raises RuleError with every problem of every file, UsageError where there is no library,
    Unavailable where there is no TOML reader.
    """
    folders = find_folders(path)
    rows, problems = read_all(folders, names)
    if problems:
        raise RuleError(f"{len(problems)} problem(s) in the operator library:\n" + "\n".join(problems))
    return Library(tuple(rows), folders)


def read_all(folders: Folders, names: Collection[str] | None = None) -> tuple[list[MappingRow], list[str]]:
    """All rows that can be read, and all problems as "file: row: key: message". Raises Unavailable.

    ``names``: only of files that may have a row for one of them.
    """
    reader = _find_reader()
    rows: list[MappingRow] = []
    problems: list[str] = []
    for file in sorted(folders.cases.glob("*/mapping.toml")):
        place = _shorten(file, folders)
        document = _parse(reader, file, place, problems, names)
        if document is not None:
            rows += read_rows(document, file.parent.name, place, problems)
    problems += _find_repeated(rows)
    return rows, problems


def _shorten(file: Path, folders: Folders) -> str:
    return file.relative_to(folders.cases.parent).as_posix()


def _find_reader() -> ModuleType:
    """tomllib of Python 3.11, else its back-port."""
    try:
        import tomllib
    except ModuleNotFoundError:
        pass
    else:
        return tomllib
    try:
        import tomli
    except ModuleNotFoundError as error:
        raise Unavailable(
            "mapping rows are TOML, and Python before 3.11 has no reader for it: pip install tomli. "
            "Cases run without it: precision-align case run"
        ) from error
    reader: ModuleType = tomli
    return reader


def _parse(
    reader: Any, file: Path, place: str, problems: list[str], names: Collection[str] | None
) -> Mapping[str, Any] | None:
    try:
        text = file.read_text(encoding="utf-8-sig")
        if names is not None and not _may_answer(text, names):
            return None
        document: Mapping[str, Any] = reader.loads(text)
    except (OSError, UnicodeDecodeError, reader.TOMLDecodeError, RecursionError) as error:
        problems.append(f"{place}: cannot be read: {error}")
        return None
    return document


def _may_answer(text: str, names: Collection[str]) -> bool:
    """Whether a pattern in the text of a file fits one of the names; True where the text is not of the usual form."""
    lists = _LIST.findall(text)
    if not all(lists):
        return True
    whole = {*names, *(name.rpartition(".")[2] for name in names)}
    return any(
        pattern in whole or (("*" in pattern or "?" in pattern) and any(_fits(pattern, name) for name in names))
        for patterns in lists
        for pattern in _PATTERN.findall(patterns)
    )


def _find_repeated(rows: Sequence[MappingRow]) -> list[str]:
    first: dict[str, MappingRow] = {}
    problems = []
    for row in rows:
        if row.id and row.id in first:
            problems.append(f"{row.file}: row {row.id}: id: {first[row.id].file} has a row of that id too")
        first.setdefault(row.id, row)
    return problems
