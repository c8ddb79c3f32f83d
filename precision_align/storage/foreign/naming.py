"""From the names of foreign tensors to keys: a pattern such as "step{step}/{scope}.{role}.{path}"."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precision_align.core.errors import UsageError
from precision_align.core.keys import Key
from precision_align.core.terms import Pass, Phase, Role, Source

_NUMBERS = ("step", "micro", "rank", "call", "ordinal")
_TEXTS = ("scope", "op", "path")
_TERMS = {"source": Source, "phase": Phase, "role": Role}
_PART = re.compile(r"\{(\w+)\}|(\*)")
_GRADIENT_WORDS = ("grad", "gradient", "dx", "dy")


@dataclass(frozen=True)
class Naming:
    """``pattern``: literal text with {step}, {micro}, {rank}, {scope}, {call}, {op}, {phase}, {role}, {path} and * (any
    text); "" takes the whole name as the scope. ``defaults``: values for what the pattern leaves out; ``rename``: whole
    words that a foreign run uses for roles and phases, such as {"in": "input"}.
    """

    pattern: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unknown = [name for name, _ in _PART.findall(self.pattern) if name and name not in _all_fields()]
        unknown += [name for name in self.defaults if name not in _all_fields()]
        if unknown:
            known = ", ".join(_all_fields())
            raise UsageError(f"the naming rule has unknown fields {', '.join(unknown)}; there are {known}")
        object.__setattr__(self, "_expression", self._compile())

    def _compile(self) -> re.Pattern[str]:
        bodies = dict.fromkeys(_NUMBERS, r"\d+")
        for name, terms in _TERMS.items():
            words = [*map(str, terms), *self.rename, *(_GRADIENT_WORDS if name == "role" else ())]
            bodies[name] = "|".join(map(re.escape, words))
        return re.compile(_to_expression(self.pattern, bodies) or r"(?P<scope>.*)", re.DOTALL | re.IGNORECASE)

    def read(self, name: str) -> Key | None:
        """The key of a tensor's name (folders with "/", no file suffix), or None where it does not fit the pattern."""
        found = self._expression.fullmatch(name)  # type: ignore[attr-defined]
        if found is None:
            return None
        values: dict[str, Any] = {**self.defaults, **{part: text for part, text in found.groupdict().items() if text}}
        try:
            return self._build(values)
        except ValueError:
            return None

    def _build(self, values: Mapping[str, Any]) -> Key:
        numbers = {name: int(values.get(name, 0)) for name in _NUMBERS}
        texts = {name: str(values.get(name, "")) for name in _TEXTS}
        role = Role(self._word(values.get("role", Role.OUTPUT)))
        phase = Phase.BACKWARD if role is Role.GRADIENT else Phase.FORWARD
        return Key(
            **numbers,
            source=Source(self._word(values.get("source", Source.MODULE))),
            scope=texts["scope"].replace("/", "."),
            pass_=Pass.FIRST,
            op=texts["op"],
            phase=Phase(self._word(values.get("phase", phase))),
            role=role,
            path=texts["path"],
        )

    def _word(self, value: Any) -> str:
        word = str(value)
        word = self.rename.get(word, word)
        return "gradient" if word.lower() in _GRADIENT_WORDS else word.lower()


def _all_fields() -> tuple[str, ...]:
    return (*_NUMBERS, *_TEXTS, *_TERMS)


def _to_expression(pattern: str, bodies: Mapping[str, str]) -> str:
    text, last, seen = "", 0, set()
    for found in _PART.finditer(pattern):
        text += re.escape(pattern[last : found.start()])
        last, name = found.end(), found[1]
        if name and name in seen:
            raise UsageError(f"the naming rule {pattern!r} has {{{name}}} twice")
        seen.add(name)
        text += f"(?P<{name}>{bodies.get(name, '.*?')})" if name else ".*?"
    return text + re.escape(pattern[last:])


def read_naming(rule: Naming | str | os.PathLike[str] | None) -> Naming:
    """A rule from itself, a pattern, or the path of a TOML file with ``pattern``, ``[defaults]`` and ``[rename]``.

    Raises UsageError, and what is wrong with the file in its text.
    """
    if rule is None:
        return Naming()
    if isinstance(rule, Naming):
        return rule
    text = os.fspath(rule)
    if not text.endswith(".toml"):
        return Naming(text)
    content = read_toml(Path(text), "naming rule")
    unknown = sorted(set(content) - {"pattern", "defaults", "rename"})
    if unknown:
        raise UsageError(f"{text}: unknown keys {', '.join(unknown)}; there are pattern, defaults, rename")
    if not isinstance(content.get("pattern", ""), str):
        raise UsageError(f'{text}: pattern is a text, such as "{{scope}}.{{role}}"')
    for table in ("defaults", "rename"):
        if not isinstance(content.get(table, {}), dict):
            raise UsageError(f"{text}: {table} is a table")
    return Naming(content.get("pattern", ""), content.get("defaults", {}), content.get("rename", {}))


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """A TOML file; ``what`` it is stands in the UsageError that is raised where it cannot be read."""
    for module in ("tomllib", "tomli"):
        try:
            toml: Any = importlib.import_module(module)
        except ImportError:
            continue
        try:
            return dict(toml.loads(path.read_text("utf-8")))
        except (OSError, ValueError) as error:
            raise UsageError(f"the {what} {path} cannot be read: {error}") from error
    raise UsageError(f"a {what} in TOML needs Python 3.11 or the package tomli")
