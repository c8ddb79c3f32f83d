"""Rule files: a team's own overrides, each with its reason.

A TOML file of tables ``[[rule]]`` with selectors ``scope``, ``op``, ``role``, ``phase``, ``path`` (globs; all given
ones must match), what to do (``status`` = "ignore" | "warn" | "fail"), for which found status (``when``, default
"fail"), and a mandatory ``reason``. A threshold of one's own is a rule with ``metric`` (a name that the report shows,
such as "z" or "raw_rel_l2") and ``above`` or ``at_most``, or both: it speaks of records whose metric lies there.
``[modes]`` lists declared arithmetic modes (``declared = ["hf32"]``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from precision_align.core.errors import RuleError
from precision_align.core.results import RecordResult
from precision_align.core.terms import Status
from precision_align.core.tomls import find_toml

_SELECTORS = ("scope", "op", "role", "phase", "path")
_THRESHOLDS = ("metric", "above", "at_most")
_ACTIONS = {"ignore": Status.PASS, "warn": Status.WARN, "fail": Status.FAIL}


@dataclass(frozen=True)
class Rule:
    """One override: selectors, the status it replaces and the one it gives, its reason and where it stands.

    ``metric``: "" or the name of a metric that must be above one value and at most another.
    """

    selectors: Mapping[str, str]
    when: Status
    status: Status
    reason: str
    origin: str
    metric: str = ""
    above: float = -math.inf
    at_most: float = math.inf

    def matches(self, row: RecordResult) -> bool:
        """Whether this rule speaks of a row. A metric that is NaN is within no threshold, and above every one."""
        if not self.selects(row):
            return False
        if not self.metric:
            return True
        value = row.metrics.get(self.metric)
        if value is None:
            return False
        return math.isinf(self.at_most) if math.isnan(value) else self.above < value <= self.at_most

    def selects(self, row: RecordResult) -> bool:
        """Whether a row is of those that this rule is for, whatever its metrics."""
        if row.status != self.when:
            return False
        return all(fnmatchcase(str(getattr(row, name)), pattern) for name, pattern in self.selectors.items())


@dataclass(frozen=True)
class Rules:
    """All overrides of a run, the last match wins; and the arithmetic modes that are declared, so not a divergence."""

    rules: Sequence[Rule] = ()
    declared_modes: frozenset[str] = frozenset()

    def apply(self, row: RecordResult) -> RecordResult:
        """A row under these rules."""
        for rule in reversed(self.rules):
            if rule.matches(row):
                note = f"{rule.reason} ({rule.origin}); found: {row.note}"
                return replace(row, status=rule.status, note=note, found=row.status, found_note=row.note)
        return row

    def describe(self, rows: Iterable[RecordResult]) -> list[str]:
        """Thresholds on a metric that records lack. Bit-equal ones have none, and need none."""
        counts: Counter[str] = Counter()
        for row in map(restore, rows):
            for metric in {rule.metric for rule in self.rules if rule.metric and rule.selects(row)}:
                counts[metric] += metric not in row.metrics and row.evidence != "hash"
        return [
            f"a rule on {name} says nothing of {count} records without it" for name, count in counts.items() if count
        ]

    def is_declared(self, note: str) -> bool:
        """Whether a mode's description names a declared mode."""
        return any(mode in note.lower() for mode in self.declared_modes)


def restore(row: RecordResult) -> RecordResult:
    """A row as it was found, before any rule."""
    if row.found is None:
        return row
    return replace(row, status=row.found, note=row.found_note, found=None, found_note="")


def load_rules(path: str | Path) -> Rules:
    """Read a rule file. Raises RuleError naming every problem at once."""
    place = Path(path)
    toml = find_toml()
    try:
        data = toml.loads(place.read_text(encoding="utf-8"))
    except OSError as error:
        raise RuleError(f"cannot read the rule file {place}: {error.strerror}") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise RuleError(f"{place} is not TOML: {error}") from error
    problems: list[str] = [f"unknown key {key!r}" for key in data if key not in ("rule", "modes")]
    tables = data.get("rule", [])
    if not isinstance(tables, list):
        tables, problems = [], [*problems, "rule must be an array of tables: [[rule]]"]
    rules = [_read_rule(table, f"{place}, rule {number}", problems) for number, table in enumerate(tables, 1)]
    declared = _read_modes(data.get("modes", {}), problems)
    if problems:
        raise RuleError(f"{place}: " + "; ".join(problems))
    return Rules([rule for rule in rules if rule is not None], declared)


def _read_rule(table: Any, origin: str, problems: list[str]) -> Rule | None:
    if not isinstance(table, dict):
        problems.append(f"{origin}: not a table")
        return None
    known = {*_SELECTORS, *_THRESHOLDS, "status", "when", "reason"}
    problems += [f"{origin}: unknown key {key!r}" for key in table if key not in known]
    reason = table.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        problems.append(f"{origin}: a reason is mandatory")
    action = table.get("status")
    if not isinstance(action, str) or action not in _ACTIONS:
        problems.append(f"{origin}: status must be one of {', '.join(_ACTIONS)}, not {action!r}")
    when = table.get("when", "fail")
    if when not in [str(status) for status in Status]:
        problems.append(f"{origin}: when is not a status: {when!r}")
        when = "fail"
    selectors = {name: table[name] for name in _SELECTORS if name in table}
    threshold = _read_threshold(table, origin, problems)
    if not selectors and not threshold:
        problems.append(f"{origin}: no selector ({', '.join(_SELECTORS)})")
    problems += [f"{origin}: {name} must be text" for name, value in selectors.items() if not isinstance(value, str)]
    return Rule(selectors, Status(when), _ACTIONS.get(str(action), Status.FAIL), str(reason), origin, **threshold)


def _read_threshold(table: Mapping[str, Any], origin: str, problems: list[str]) -> dict[str, Any]:
    """``metric``, ``above`` and ``at_most`` of a rule, {} where it has none or a wrong one."""
    given = {name: table[name] for name in _THRESHOLDS if name in table}
    if not given:
        return {}
    numbers = [value for name, value in given.items() if name != "metric"]
    if not isinstance(given.get("metric"), str) or not numbers:
        problems.append(f"{origin}: a threshold is a metric with above or at_most, or both")
        return {}
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value) for value in numbers):
        problems.append(f"{origin}: above and at_most are numbers")
        return {}
    return given


def _read_modes(table: Any, problems: list[str]) -> frozenset[str]:
    if not isinstance(table, dict):
        problems.append("modes must be a table")
        return frozenset()
    problems += [f"modes: unknown key {key!r}" for key in table if key != "declared"]
    declared = table.get("declared", [])
    if not isinstance(declared, list) or not all(isinstance(name, str) for name in declared):
        problems.append("modes.declared must be a list of names")
        return frozenset()
    return frozenset(name.lower() for name in declared)
