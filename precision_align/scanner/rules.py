"""Rules as data: the built-in ones in ``data/rules.toml``, and files of the user's own in the same form.

A rule says what to look for, in one or more of these keys:

- Python, by syntax tree: ``imports`` (packages), ``names`` (full dotted names, imports resolved), ``unless`` (names
  excepted), ``calls`` (full names of functions), ``methods`` (names of methods of anything), ``functions`` (last part
  of a called name), ``attributes`` ("is_cuda", or "props.major" with the receiver's last part), ``bases`` (of a
  class), ``decorators`` (last part), ``subscripts`` (last part of what is indexed), ``strings`` (a pattern that a whole
  literal matches), ``compared`` (the same, in a comparison), ``environment`` (variables, with "*");
- ``argument`` and ``keywords`` narrow ``calls``, ``methods`` and ``subscripts``: a pattern for a positional argument
  (literals as they are, names by name, "<int>", "<lambda>"), and for named ones. ``keywords`` alone fit any call;
- other files: ``files`` (cpp, build, shell, docker, config, requirements) with ``text``, a pattern for a line that is
  no comment; ``suffixes`` (the file itself is the finding).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

from precision_align.core.errors import RuleError, Unavailable
from precision_align.scanner.findings import FindingClass

SCHEMA_VERSION = 1
KINDS = ("cpp", "build", "shell", "docker", "config", "requirements")
_PATTERNS = ("argument", "strings", "compared", "text")
_MATCHERS = (
    "imports", "names", "calls", "methods", "functions", "attributes", "bases", "decorators", "subscripts",
    "environment", "suffixes", "strings", "compared", "text", "keywords",
)  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """One rule; see the module's text for what its patterns mean."""

    id: str
    cls: FindingClass
    what: str
    fix: str = ""
    rows: tuple[str, ...] = ()
    transfer: str = ""
    status: str = "unverified"
    imports: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()
    decorators: tuple[str, ...] = ()
    subscripts: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    argument: str = ""
    strings: str = ""
    compared: str = ""
    text: str = ""
    keywords: Mapping[str, str] = field(default_factory=dict)


_KEYS = {"class" if item.name == "cls" else item.name: item for item in fields(Rule)}


def load_rules(user: Sequence[str | Path] = ()) -> list[Rule]:
    """The built-in rules, then the user's; a rule of the same id replaces, ``disable`` at the top of a file removes.

    Raises RuleError with every problem of every file, Unavailable where there is no TOML reader.
    """
    problems: list[str] = []
    built_in = files("precision_align.scanner").joinpath("data/rules.toml").read_text(encoding="utf-8")
    rules = {rule.id: rule for rule in _read(built_in, "data/rules.toml", problems)[0]}
    for file in user:
        mine, disabled = _read_file(Path(file), problems)
        problems += [f"{file}: disable: no rule is called {id_!r}" for id_ in disabled if id_ not in rules]
        rules = {id_: rule for id_, rule in rules.items() if id_ not in disabled}
        rules.update({rule.id: rule for rule in mine})
    if problems:
        raise RuleError("\n".join(problems))
    return list(rules.values())


def _read_file(path: Path, problems: list[str]) -> tuple[list[Rule], list[str]]:
    try:
        return _read(path.read_text(encoding="utf-8-sig"), str(path), problems)
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path}: cannot be read: {error}")
        return [], []


def _read(text: str, place: str, problems: list[str]) -> tuple[list[Rule], list[str]]:
    reader = _find_reader()
    try:
        document: dict[str, Any] = reader.loads(text)
    except reader.TOMLDecodeError as error:
        problems.append(f"{place}: is no TOML: {error}")
        return [], []
    if document.get("schema_version") != SCHEMA_VERSION:
        problems.append(f"{place}: schema_version: must be {SCHEMA_VERSION}")
    unknown = sorted(set(document) - {"schema_version", "rule", "disable"})
    problems += [f"{place}: {key}: unknown key; known are schema_version, rule, disable" for key in unknown]
    tables = document.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        problems.append(f"{place}: rule: must be a list of tables: write [[rule]]")
        return [], []
    rules = [
        _read_rule(table, f"{place}: rule {table.get('id', index)}", problems) for index, table in enumerate(tables)
    ]
    return [rule for rule in rules if rule is not None], [str(id_) for id_ in document.get("disable", [])]


def _find_reader() -> Any:
    for name in ("tomllib", "tomli"):
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise Unavailable("scan rules are TOML, and Python before 3.11 has no reader for it: pip install tomli")


def _read_rule(table: Mapping[str, Any], place: str, problems: list[str]) -> Rule | None:
    before = len(problems)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _KEYS:
            problems.append(f"{place}: {key}: unknown key; known are {', '.join(_KEYS)}")
        else:
            values[_KEYS[key].name] = _check(key, value, place, problems)
    problems += [f"{place}: {key}: is missing" for key in ("id", "class", "what") if key not in table]
    if not any(key in table for key in _MATCHERS):
        problems.append(f"{place}: looks for nothing: give it one of {', '.join(_MATCHERS)}")
    if ("text" in table) != ("files" in table):
        problems.append(f"{place}: text: goes with files, which names kinds of file: {', '.join(KINDS)}")
    return Rule(**values) if len(problems) == before else None


def _check(key: str, value: Any, place: str, problems: list[str]) -> Any:
    """The value in the field's type; what is wrong with it goes to ``problems``."""
    if key == "class":
        return _check_class(value, place, problems)
    if key == "keywords":
        return _check_keywords(value, place, problems)
    if "tuple" in str(_KEYS[key].type):
        return _check_list(key, value, place, problems)
    if not isinstance(value, str) or not value:
        problems.append(f"{place}: {key}: is {value!r}, must be a text")
        return ""
    if key in _PATTERNS:
        _check_pattern(key, value, place, problems)
    return value


def _check_class(value: Any, place: str, problems: list[str]) -> FindingClass:
    known = [str(cls) for cls in FindingClass]
    if value not in known:
        problems.append(f"{place}: class: is {value!r}, must be one of {', '.join(known)}")
        return FindingClass.INFO
    return FindingClass(value)


def _check_keywords(value: Any, place: str, problems: list[str]) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        problems.append(f"{place}: keywords: is {value!r}, must be a table of argument = pattern")
        return {}
    for name, pattern in value.items():
        _check_pattern(f"keywords.{name}", pattern, place, problems)
    return value


def _check_list(key: str, value: Any, place: str, problems: list[str]) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        problems.append(f"{place}: {key}: is {value!r}, must be a list of texts")
        return ()
    unknown = sorted(set(value) - set(KINDS)) if key == "files" else []
    problems += [f"{place}: files: {kind!r} is no kind of file; there are {', '.join(KINDS)}" for kind in unknown]
    return tuple(value)


def _check_pattern(key: str, value: str, place: str, problems: list[str]) -> None:
    try:
        re.compile(value)
    except re.error as error:
        problems.append(f"{place}: {key}: {value!r} is no regular expression: {error}")
