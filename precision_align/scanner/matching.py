"""The rules of a run, arranged for looking up: by name, by method, by pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from precision_align.scanner.rules import Rule

NEVER = re.compile(r"(?!)")


@dataclass(frozen=True)
class Call:
    """One call in source: what is called, and its arguments as texts (a literal's value, a name, "<int>", ...).

    ``name``: the full name where it is imported, else ""; ``last``: the last part; ``is_method``: called on a value.
    """

    name: str
    last: str
    is_method: bool
    positional: Sequence[str]
    named: Mapping[str, str]


@dataclass(frozen=True)
class CallHit:
    """A rule that a call fits; ``positional``, ``named``: the arguments that made it fit."""

    rule: Rule
    positional: tuple[int, ...] = ()
    named: tuple[str, ...] = ()


class RuleIndex:
    """All look-ups that a scan makes. Of several names that fit, the longest decides."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = list(rules)
        self._imports = self._by("imports")
        self._names = self._by("names")
        self._calls = self._by_all("calls")
        self._methods = self._by_all("methods")
        self._functions = self._by("functions")
        self._attributes = self._by("attributes")
        self._bases = self._by("bases")
        self._decorators = self._by("decorators")
        self._subscripts = self._by_all("subscripts")
        self._anywhere = [rule for rule in self.rules if rule.keywords and not (rule.calls or rule.methods)]
        self._wanted = {name for rule in self._anywhere for name in rule.keywords}
        self._strings = [(re.compile(rule.strings), rule) for rule in self.rules if rule.strings]
        self._compared = [(re.compile(rule.compared), rule) for rule in self.rules if rule.compared]
        self._environment = [(_join_variables(rule), rule) for rule in self.rules if rule.environment]
        self._texts = [(re.compile(rule.text), rule) for rule in self.rules if rule.text]
        self.suffixes = self._by("suffixes")
        self._patterns = {pattern: re.compile(pattern) for rule in self.rules for pattern in _list_patterns(rule)}

    def _by(self, key: str) -> dict[str, Rule]:
        return {text: rule for rule in self.rules for text in getattr(rule, key)}

    def _by_all(self, key: str) -> dict[str, list[Rule]]:
        found: dict[str, list[Rule]] = {}
        for rule in self.rules:
            for text in getattr(rule, key):
                found.setdefault(text, []).append(rule)
        return found

    def find_import(self, name: str) -> Rule | None:
        """By the longest package that ``name`` lies in."""
        return _find_longest(self._imports, name)

    def find_name(self, name: str) -> Rule | None:
        """By the longest dotted prefix, unless the rule excepts it."""
        rule = _find_longest(self._names, name)
        return None if rule is None or any(_lies_in(name, other) for other in rule.unless) else rule

    def find_attribute(self, receiver: str, name: str) -> Rule | None:
        """By "receiver.name", then by name."""
        return self._attributes.get(f"{receiver}.{name}") or self._attributes.get(name)

    def find_base(self, name: str) -> Rule | None:
        """For a base class, by its full name."""
        return self._bases.get(name)

    def find_decorator(self, name: str) -> Rule | None:
        """By the last part of its name."""
        return self._decorators.get(name.rpartition(".")[2])

    def find_string(self, text: str) -> Rule | None:
        """For a literal that nothing else has explained: an environment variable's name, or a pattern."""
        return _find_pattern(self._environment, text) or _find_pattern(self._strings, text)

    def find_compared(self, text: str) -> Rule | None:
        """For a literal in a comparison."""
        return _find_pattern(self._compared, text)

    def find_subscript(self, last: str, key: str) -> Rule | None:
        """For ``something[key]`` with a literal key."""
        rules = self._subscripts.get(last, ())
        return next((rule for rule in rules if self._fits(rule.argument, key)), None)

    def may_match(self, name: str, last: str, keywords: Iterable[str | None]) -> bool:
        """Whether any rule asks for a call of that name, or with such an argument: most calls need no closer look."""
        by_name = name in self._calls or last in self._methods or last in self._functions
        return by_name or not self._wanted.isdisjoint(keywords)

    def find_call(self, call: Call) -> CallHit | None:
        """The rule that says most: one of the function with its arguments, of the method, of the function's name."""
        for rule in self._calls.get(call.name, ()) if call.name else ():
            hit = self._match_arguments(rule, call)
            if hit:
                return hit
        for rule in self._methods.get(call.last, ()) if call.is_method else ():
            hit = self._match_arguments(rule, call)
            if hit:
                return hit
        by_function = self._functions.get(call.last)
        return CallHit(by_function) if by_function else None

    def find_keywords(self, call: Call) -> Iterator[CallHit]:
        """Rules for a named argument of any call."""
        for rule in self._anywhere:
            hit = self._match_arguments(rule, call)
            if hit:
                yield hit

    def find_text(self, kind: str, line: str) -> Iterator[tuple[Rule, re.Match[str]]]:
        """Rules for a line of a file that is not Python."""
        for pattern, rule in self._texts:
            if kind in rule.files:
                found = pattern.search(line)
                if found:
                    yield rule, found
        if kind in ("shell", "docker", "config", "requirements"):
            for pattern, rule in self._environment:
                found = pattern.search(line)
                if found:
                    yield rule, found

    def _match_arguments(self, rule: Rule, call: Call) -> CallHit | None:
        if not rule.argument and not rule.keywords:
            return CallHit(rule)
        positional = tuple(i for i, text in enumerate(call.positional) if self._fits(rule.argument, text))
        named = tuple(n for n, text in call.named.items() if n in rule.keywords and self._fits(rule.keywords[n], text))
        return CallHit(rule, positional, named) if positional or named else None

    def _fits(self, pattern: str, text: str) -> bool:
        return bool(pattern and text and self._patterns[pattern].fullmatch(text))


def _list_patterns(rule: Rule) -> Iterator[str]:
    yield from (pattern for pattern in (rule.argument, *rule.keywords.values()) if pattern)


def _find_longest(table: Mapping[str, Rule], name: str) -> Rule | None:
    while name:
        rule = table.get(name)
        if rule is not None:
            return rule
        name = name.rpartition(".")[0]
    return None


def _lies_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _find_pattern(patterns: Iterable[tuple[re.Pattern[str], Rule]], text: str) -> Rule | None:
    return next((rule for pattern, rule in patterns if pattern.fullmatch(text)), None)


def _join_variables(rule: Rule) -> re.Pattern[str]:
    """Whole names only: NCCL_* is not in TORCH_NCCL_TRACE."""
    names = "|".join(re.escape(name).replace(r"\*", r"[A-Z0-9_]+") for name in rule.environment)
    return re.compile(rf"(?<![A-Za-z0-9_])(?:{names})(?![A-Za-z0-9_])")
