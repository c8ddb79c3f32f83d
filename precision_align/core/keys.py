"""The identity of a recorded tensor: one ordered key, one text form."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TypeVar

from precision_align.core.terms import Pass, Phase, Role, Source, Term

AnyTerm = TypeVar("AnyTerm", bound=Term)

_ESCAPES = {"%": "%25", "/": "%2F", "\n": "%0A", "\r": "%0D", "\0": "%00"}
_TRANSLATION = str.maketrans(_ESCAPES)
NUM_PARTS = 12


@lru_cache(maxsize=1 << 14)  # the same scopes and paths come with every step
def escape(part: str) -> str:
    """Percent-escape the characters that separate the parts of a key, and line ends."""
    return part.translate(_TRANSLATION)


def unescape(part: str) -> str:
    """The inverse of :func:`escape`."""
    if "%" not in part:
        return part
    for character, code in reversed(list(_ESCAPES.items())):
        part = part.replace(code, character)
    return part


@cache
def _term(kind: type[AnyTerm], text: str) -> AnyTerm:
    """A member by its text: several times cheaper than the call of the class. Raises ValueError."""
    return kind(text)


@dataclass(frozen=True, order=True)
class Key:
    """Where and when a tensor was seen.

    ``scope`` is the first-registered raw module name ("" is the root); ``call`` counts that module's calls from 0
    within one micro-batch; ``path`` is the place inside the argument structure (:mod:`~precision_align.core.trees`):
    for an input "args.0" or "kwargs.mask", for an output "" or "0", for a gradient the same behind "input." or
    "output.", or "parameter.weight"; for parameters and buffers the local name.
    """

    step: int
    micro: int
    rank: int
    source: Source
    scope: str
    call: int
    pass_: Pass
    op: str
    ordinal: int
    phase: Phase
    role: Role
    path: str

    def __str__(self) -> str:
        # Asked for several times a record by every reader: kept, beside the fields.
        text: str | None = self.__dict__.get("_text")
        if text is None:
            text = self._join()
            self.__dict__["_text"] = text
        return text

    def _join(self) -> str:
        # join takes our terms as the strings that they are; formatting them would call Enum code four times.
        return "/".join(
            (
                str(self.step),
                str(self.micro),
                str(self.rank),
                self.source,
                escape(self.scope),
                str(self.call),
                self.pass_,
                escape(self.op),
                str(self.ordinal),
                self.phase,
                self.role,
                escape(self.path),
            )
        )

    @classmethod
    def parse(cls, text: str) -> Key:
        """Read the text form back. Raises ValueError when it is not one."""
        parts = text.split("/")
        if len(parts) != NUM_PARTS:
            raise ValueError(f"not a key: {text!r} has {len(parts)} parts, a key has {NUM_PARTS}")
        if "%" in text:
            parts = [unescape(part) for part in parts]
        step, micro, rank, source, scope, call, pass_, op, ordinal, phase, role, path = parts
        key = cls(
            int(step),
            int(micro),
            int(rank),
            _term(Source, source),
            scope,
            int(call),
            _term(Pass, pass_),
            op,
            int(ordinal),
            _term(Phase, phase),
            _term(Role, role),
            path,
        )
        joined = key._join()
        # the reader's own text where that is the text form: then there is one of it in memory
        key.__dict__["_text"] = text if text == joined else joined
        return key
