"""Conditions that make a ring of recorded steps worth keeping."""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from collections.abc import Sequence
from statistics import median
from typing import Callable, Optional, Union

import numpy as np

from precision_align.core.dtypes import DTYPES
from precision_align.core.errors import UsageError
from precision_align.core.records import Point, Statistics, TensorRecord
from precision_align.core.terms import Role
from precision_align.recording.signals import Switch

_JUMP = re.compile(r"\s*([\w.]+)\s*([<>])\s*(?:([0-9.eE+-]+)\s*\*\s*)?(median|mean|[0-9.eE+-]+)\s*")
# Fewer values have no median worth the name; more would follow a slow drift too late.
_MIN_HISTORY, _MAX_HISTORY = 5, 64
# An infinity is ordinary in an attention mask and in scores under it; where it is none of these it is not.
_NEVER_INFINITE = (Role.GRADIENT, Role.PARAMETER, Role.STATE, Role.LOSS)
_HELP = "nan, inf, loss>3*median, loss>12.5, env:NAME, file:PATH, signal:NAME"


class Condition:
    """One condition. It fires when it becomes true, not while it stays true."""

    text = ""

    def look_at_tensor(self, record: TensorRecord, count: Callable[[], Statistics]) -> None:
        """A tensor of the running step; ``count`` gives its statistics."""

    def look_at_point(self, point: Point) -> None:
        """A value of a series."""

    def finish_step(self) -> str:
        """Why it holds for the step that ends, "" where it does not."""
        return ""

    def close(self) -> None:
        """Let go of what it holds."""


class NonFinite(Condition):
    """For "nan" a NaN anywhere, or an infinity in a gradient, parameter, state or loss; for "inf" any of both."""

    def __init__(self, text: str) -> None:
        self.text, self._all_infinities = text, text == "inf"
        self._found = ""

    def look_at_tensor(self, record: TensorRecord, count: Callable[[], Statistics]) -> None:
        """Count its NaNs and infinities."""
        dtype = DTYPES.get(record.dtype)
        if self._found or dtype is None or not dtype.is_floating or 0 in record.shape:
            return
        counted = count()
        bad = counted.nan
        if self._all_infinities or record.key.role in _NEVER_INFINITE:
            bad += counted.inf
        if bad:
            what = "NaN" if counted.nan else "Inf"
            self._found = (
                f"{bad} {what} in {record.key.role} {record.key.path!r} of {record.key.scope or 'the model'!r}"
            )

    def look_at_point(self, point: Point) -> None:
        """A series that is not finite counts, whatever its name."""
        if not self._found and not math.isfinite(point.value):
            self._found = f"{point.name} is {point.value}"

    def finish_step(self) -> str:
        """The first finding of the step."""
        found, self._found = self._found, ""
        return found


class Jump(Condition):
    """ "NAME>3*median": a value of a series against the median or mean of up to 64 before it, or against a number."""

    def __init__(self, text: str, name: str, sign: str, factor: Optional[float], against: str) -> None:
        self.text, self._name, self._sign = text, name, sign
        self._factor, self._against = factor, against
        self._history: deque[float] = deque(maxlen=_MAX_HISTORY)
        self._found = ""

    def look_at_point(self, point: Point) -> None:
        """Compare with what came before, then remember; a value that fires is kept out of the history."""
        if point.name != self._name:
            return
        limit = self._limit()
        if limit is not None and (point.value > limit if self._sign == ">" else point.value < limit):
            self._found = f"{point.name} is {point.value:.6g}, the limit is {limit:.6g}"
        elif math.isfinite(point.value):
            self._history.append(point.value)

    def _limit(self) -> Optional[float]:
        if self._against not in ("median", "mean"):
            return float(self._against) * (1.0 if self._factor is None else self._factor)
        if len(self._history) < _MIN_HISTORY:
            return None
        middle = median(self._history) if self._against == "median" else float(np.mean(self._history))
        return middle * (1.0 if self._factor is None else self._factor)

    def finish_step(self) -> str:
        """Whether a value of the step was beyond the limit."""
        found, self._found = self._found, ""
        return found


class Outside(Condition):
    """ "env:NAME", "file:PATH", "signal:NAME": somebody asked for it."""

    def __init__(self, text: str) -> None:
        self.text, self._switch = text, Switch(text)
        self._before = 0

    def finish_step(self) -> str:
        """Whether it was asked since the last step."""
        now = self._switch.count()
        asked, self._before = now > self._before, now
        return f"{self.text} was seen" if asked else ""

    def close(self) -> None:
        """Let go of the signal."""
        self._switch.close()


def parse_condition(text: str) -> Condition:
    """A condition from its text. Raises UsageError."""
    if text in ("nan", "inf"):
        return NonFinite(text)
    if text.partition(":")[0] in ("env", "file", "signal"):
        return Outside(text)
    found = _JUMP.fullmatch(text)
    try:
        if found is None:
            raise ValueError(text)
        name, sign, factor, against = found.groups()
        float(0 if against in ("median", "mean") else against)
        return Jump(text, name, sign, None if factor is None else float(factor), against)
    except ValueError:
        raise UsageError(f"cannot read the trigger {text!r}; there are {_HELP}") from None


class Trigger:
    """Any of several conditions."""

    def __init__(self, texts: Union[str, Sequence[str]]) -> None:
        self._conditions: list[Condition] = []
        self._held: dict[str, bool] = defaultdict(bool)
        try:
            for text in [texts] if isinstance(texts, str) else texts:
                self._conditions.append(parse_condition(text))
        except UsageError:
            self.close()
            raise
        if not self._conditions:
            raise UsageError(f"a trigger needs a condition: {_HELP}")

    def look_at_tensor(self, record: TensorRecord, count: Callable[[], Statistics]) -> None:
        """A tensor of the running step; ``count`` gives its statistics."""
        for condition in self._conditions:
            condition.look_at_tensor(record, count)

    def look_at_point(self, point: Point) -> None:
        """A value of a series."""
        for condition in self._conditions:
            condition.look_at_point(point)

    def finish_step(self) -> str:
        """Why a condition fires at the step that ends, "" where none has become true."""
        reasons = []
        for condition in self._conditions:
            reason = condition.finish_step()
            if reason and not self._held[condition.text]:
                reasons.append(f"{condition.text}: {reason}")
            self._held[condition.text] = bool(reason)
        return "; ".join(reasons)

    def close(self) -> None:
        """Let go of signals."""
        for condition in self._conditions:
            condition.close()
