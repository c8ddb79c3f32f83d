"""An environment lock: the facts of a machine as TOML, and what has changed against one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from precision_align.core.errors import UsageError
from precision_align.devices.profiles import parse_toml
from precision_align.doctor.checks import GOOD, NOTE, Check

Facts = Mapping[str, Mapping[str, str]]
# Of another run of the same machine these differ and mean nothing.
_PASSING = {("host", "visible")}


def write_lock(path: Path, facts: Facts) -> None:
    """Write the facts as TOML: one table a section, texts only. Raises UsageError where it cannot be written."""
    lines = [
        "# Environment of a run, written by `precision-align doctor --lock`. Compare with `doctor --against FILE`."
    ]
    for section in sorted(facts):
        lines += ["", f"[{_quote(section)}]"]
        lines += [f"{_quote(name)} = {_quote(value)}" for name, value in sorted(facts[section].items())]
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the lock {path} cannot be written: {error.strerror or error}") from error


def _quote(text: str) -> str:
    """A TOML basic string: JSON's escapes are a part of TOML's, save for the delete character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def read_lock(path: Path) -> Facts:
    """The facts of a lock. Raises RuleError where it is no TOML and UsageError where it is no lock."""
    table = parse_toml(path, "environment lock")
    if not all(isinstance(section, dict) for section in table.values()):
        raise UsageError(f"{path} is not an environment lock: write one with `precision-align doctor --lock FILE`")
    return {name: {key: str(value) for key, value in section.items()} for name, section in table.items()}


def compare_facts(before: Facts, now: Facts) -> list[Check]:
    """One check a change: what it was, what it is, what to do; one good check where nothing has changed."""
    checks = []
    for section in sorted({*before, *now}):
        old, new = before.get(section, {}), now.get(section, {})
        for name in sorted({*old, *new}):
            if (section, name) not in _PASSING and old.get(name) != new.get(name):
                checks.append(_phrase_change(section, name, old.get(name), new.get(name)))
    return checks or [Check("lock", GOOD, "nothing has changed")]


def _phrase_change(section: str, name: str, old: str | None, new: str | None) -> Check:
    text = f"was {_show(old)}, is {_show(new)}"
    if section == "environment":
        advice = f"unset {name}" if old is None else f"export {name}={old}"
    elif section == "versions" and old is not None:
        advice = f"install {name} {old}, or write a new lock"
    else:
        advice = "set it back, or write a new lock"
    return Check(f"{section}: {name}", NOTE, text, advice)


def _show(value: str | None) -> str:
    return "not there" if value is None else value or '""'
