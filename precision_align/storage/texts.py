"""JSON that comes back as it went in, and the table of interned texts of one file.

Plain JSON has no NaN, no tuples and no bytes. They are written as an object with one key that starts with "$"; keys of
the user's own that start with "$" get one more.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from precision_align.core.dtypes import Array

_NEWLINE = 10
# About 1 KB each: the argument structures, attributes and modes of a model's calls.
_MAX_ENCODED = 1 << 13
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def encode_value(value: Any) -> str:
    """One line of strict ASCII JSON. What JSON cannot hold (an object of an unknown class) is kept as its text."""
    return json.dumps(_plain(value), allow_nan=False, separators=(",", ":"))


def decode_value(text: str) -> Any:
    """The inverse of :func:`encode_value`. Raises ValueError where the text is not JSON."""
    return json.loads(text, object_hook=_revive)


def _plain(value: Any) -> Any:
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, Mapping):
        return {_escape(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return {"$tuple": [_plain(item) for item in value]}
    if isinstance(value, (list, set, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    return _plain_scalar(value)


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, (str, bool, int)):  # subclasses: our terms, other enums
        return str(value) if isinstance(value, str) else int(value)
    tolist = getattr(value, "tolist", None)  # NumPy scalars and arrays, tensors
    if callable(tolist):
        return _plain(tolist())
    return str(value)


def _escape(key: object) -> str:
    text = str(key)
    return "$" + text if text.startswith("$") else text


def _revive(pairs: dict[str, Any]) -> Any:
    if len(pairs) == 1:
        ((key, value),) = pairs.items()
        if key == "$float":
            return _FLOATS[value]
        if key == "$tuple":
            return tuple(value)
        if key == "$bytes":
            return bytes.fromhex(value)
    return {key[1:] if key.startswith("$") else key: value for key, value in pairs.items()}


class Encoder:
    """Encodes values; the same object again costs nothing. What it was given must not be changed any more."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}

    def encode(self, value: Any) -> str:
        """As :func:`encode_value`."""
        known = self._known.get(id(value))
        if known is not None and known[0] is value:
            return known[1]
        text = encode_value(value)
        if len(self._known) >= _MAX_ENCODED:
            self._known.clear()
        self._known[id(value)] = (value, text)  # kept, so that its id stays its own
        return text


class TextWriter:
    """Interns values; a value's number is the line that its JSON stands on. Line 0 is null.

    ``encoder``: one that has perhaps met these values in another file.
    """

    def __init__(self, encoder: Encoder | None = None) -> None:
        self._numbers = {"null": 0}
        self._strings: dict[str, int] = {}
        self._met: dict[int, int] = {}
        self._held: list[Any] = []
        self._encoder = Encoder() if encoder is None else encoder

    def intern(self, value: Any) -> int:
        """The number of a value."""
        if type(value) is not str:
            return self._add(self._encoder.encode(value))
        if value not in self._strings:
            self._strings[value] = self._add(encode_value(value))
        return self._strings[value]

    def intern_all(self, values: Sequence[Any]) -> list[int]:
        """The number of each; the same objects often come again, and must not be changed any more."""
        if len(self._held) >= _MAX_ENCODED:
            self._held.clear()
            self._met.clear()
        names = list(map(id, values))
        for name, value in dict(zip(names, values)).items():
            if name not in self._met:
                self._met[name] = self.intern(value)
                self._held.append(value)  # so that its id stays its own
        return [self._met[name] for name in names]

    def _add(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def to_bytes(self) -> bytes:
        """All lines, joined with a newline."""
        return "\n".join(self._numbers).encode("ascii")


class TextReader(dict[int, Any]):
    """Gives the values back by number; each is decoded when first asked for."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._lines = data.decode("ascii").split("\n")

    def __missing__(self, number: int) -> Any:
        value = self[number] = decode_value(self._lines[number])
        return value


def encode_keys(keys: list[str]) -> bytes:
    """Key texts as UTF-8 lines. Lone surrogates, which a module name may hold, survive."""
    return "\n".join(keys).encode("utf-8", "surrogatepass")


def decode_keys(data: Array) -> list[str]:
    """The inverse, from uint8[n]; no bytes are no keys."""
    text = str(data.data, "utf-8", "surrogatepass") if data.size else ""
    return text.split("\n") if text else []


def count_keys(data: Array) -> int:
    """How many keys uint8[n] holds, without decoding them."""
    return int(np.count_nonzero(data == _NEWLINE)) + 1 if data.size else 0
