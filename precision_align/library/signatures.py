"""Operator schemas as torch writes them ("name.overload(Tensor self, *, int a=0) -> Tensor"), and how two differ."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from precision_align.core.terms import Term

_OPEN, _CLOSE = "([", ")]"


class Effect(Term):
    """What a change of a signature does to a program that was written for the old one."""

    SILENT = "silent"  # the same call runs and computes something else
    BREAKING = "breaking"  # the same call may raise, or its results unpack differently
    COMPATIBLE = "compatible"


@dataclass(frozen=True)
class Argument:
    """One argument; ``default`` is its text, None where it must be given."""

    name: str
    type: str
    default: str | None
    keyword_only: bool


@dataclass(frozen=True)
class Signature:
    """A parsed schema. ``name`` includes the overload."""

    name: str
    arguments: tuple[Argument, ...]
    returns: tuple[str, ...]

    def get(self, name: str) -> Argument | None:
        """The argument of that name."""
        return next((argument for argument in self.arguments if argument.name == name), None)


@dataclass(frozen=True)
class SignatureChange:
    """One difference between two signatures, in words."""

    effect: Effect
    text: str


def parse_signature(schema: str) -> Signature:
    """Raises ValueError for a text that is no schema."""
    name, bracket, rest = schema.partition("(")
    end = _find_end(rest)
    if not bracket or end < 0:
        raise ValueError(f"{schema!r} is no operator schema: it must read name(arguments) -> returns")
    arguments, keyword_only = [], False
    for part in _split(rest[:end]):
        if part == "*":
            keyword_only = True
        else:
            arguments.append(_parse_argument(part, keyword_only))
    returns = rest[end + 1 :].partition("->")[2].strip()
    inner = returns[1:-1] if returns.startswith("(") and returns.endswith(")") else returns
    return Signature(name.strip(), tuple(arguments), tuple(_split(inner)))


def _find_end(text: str) -> int:
    depth = 0
    for index, character in enumerate(text):
        if character == ")" and depth == 0:
            return index
        depth += (character in _OPEN) - (character in _CLOSE)
    return -1


def _split(text: str) -> list[str]:
    """At commas outside brackets."""
    parts, depth, start = [], 0, 0
    for index, character in enumerate(text):
        depth += (character in _OPEN) - (character in _CLOSE)
        if character == "," and depth == 0:
            parts.append(text[start:index])
            start = index + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def _parse_argument(text: str, keyword_only: bool) -> Argument:
    declaration, equals, default = text.partition("=")
    type_, _, name = declaration.strip().rpartition(" ")
    return Argument(name, type_.strip(), _normalize(default) if equals else None, keyword_only)


def _normalize(default: str) -> str:
    """'' and "" are one default, 1. and 1.0 too."""
    text = default.strip().replace('"', "'")
    return re.sub(r"(?<=\d)\.0*$", "", text)


def compare_signatures(old: Signature, new: Signature) -> list[SignatureChange]:
    """Every difference; one entry of effect "compatible" where only the spelling differs."""
    changes = [*_find_lost(old, new), *_find_added(old, new), *_find_altered(old, new), *_find_moved(old, new)]
    if old.returns != new.returns:
        text = f"returns {', '.join(old.returns) or 'nothing'} -> {', '.join(new.returns) or 'nothing'}"
        breaking = [_strip_alias(r) for r in old.returns] != [_strip_alias(r) for r in new.returns]
        changes.append(SignatureChange(Effect.BREAKING if breaking else Effect.COMPATIBLE, text))
    return changes or [SignatureChange(Effect.COMPATIBLE, "spelling only")]


def _strip_alias(returned: str) -> str:
    """Type of a result without its name and alias marks: naming a result changes no program."""
    return re.sub(r"\([a-z]!?\)", "", returned).split(" ")[0]


def _find_renamed(old: Signature, new: Signature) -> dict[str, str]:
    """Old name -> new name, for arguments at one position with one type."""
    pairs = zip(old.arguments, new.arguments)
    return {
        a.name: b.name
        for a, b in pairs
        if a.name != b.name and a.type == b.type and new.get(a.name) is None and old.get(b.name) is None
    }


def _find_lost(old: Signature, new: Signature) -> Iterator[SignatureChange]:
    renamed = _find_renamed(old, new)
    for argument in old.arguments:
        if argument.name in renamed:
            yield SignatureChange(Effect.BREAKING, f"{argument.name} renamed to {renamed[argument.name]}")
        elif new.get(argument.name) is None:
            yield SignatureChange(Effect.BREAKING, f"{argument.name} removed")


def _find_added(old: Signature, new: Signature) -> Iterator[SignatureChange]:
    renamed = set(_find_renamed(old, new).values())
    positional = [argument.name for argument in old.arguments if not argument.keyword_only]
    for index, argument in enumerate(new.arguments):
        if old.get(argument.name) is not None or argument.name in renamed:
            continue
        if argument.default is None:
            yield SignatureChange(Effect.BREAKING, f"{argument.name} added, must be given")
        elif not argument.keyword_only and index < len(positional):
            yield SignatureChange(Effect.BREAKING, f"{argument.name} added before {positional[index]}")
        else:
            yield SignatureChange(Effect.COMPATIBLE, f"{argument.name}={argument.default} added")


def _find_altered(old: Signature, new: Signature) -> Iterator[SignatureChange]:
    for before in old.arguments:
        after = new.get(before.name)
        if after is not None:
            yield from _compare_arguments(before, after)


def _find_moved(old: Signature, new: Signature) -> Iterator[SignatureChange]:
    """Arguments in another order: a call by position passes each to the wrong one, and may not raise."""
    before = [a.name for a in old.arguments if not a.keyword_only and new.get(a.name) is not None]
    after = [a.name for a in new.arguments if a.name in before]
    if before != after:
        yield SignatureChange(Effect.SILENT, f"order of arguments {', '.join(before)} -> {', '.join(after)}")


def _compare_arguments(before: Argument, after: Argument) -> Iterator[SignatureChange]:
    name = before.name
    if before.type != after.type:
        wider = after.type.rstrip("?") == before.type or after.type == before.type.replace("int", "SymInt")
        effect = Effect.COMPATIBLE if wider else Effect.BREAKING
        yield SignatureChange(effect, f"{name}: type {before.type} -> {after.type}")
    if before.keyword_only != after.keyword_only:
        how = "became keyword-only" if after.keyword_only else "may be given by position"
        effect = Effect.BREAKING if after.keyword_only else Effect.COMPATIBLE
        yield SignatureChange(effect, f"{name} {how}")
    if before.default == after.default:
        return
    if before.default is None:
        yield SignatureChange(Effect.COMPATIBLE, f"{name} became optional, default {after.default}")
    elif after.default is None:
        yield SignatureChange(Effect.BREAKING, f"{name} must be given")
    else:
        yield SignatureChange(Effect.SILENT, f"{name}: default {before.default} -> {after.default}")
