"""One operator call of a replay, the ways to do it otherwise, and the modes that list them and do one of them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Callable, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Frames below these are nobody's model code.
_MACHINERY = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]))
# Where a replay begins: what lies beyond called the comparison.
_REPLAYING = (str(Path("replay", "execution.py")), str(Path("replay", "judging.py")))
# Of one operation that a line makes several times, each is tried alone, too, up to this many.
MOST_SINGLE = 6

Key = tuple[Any, str, str]


@dataclass(frozen=True)
class Operation:
    """An operator call as the dispatcher sees it; ``line``: file:line of the user's code, "" in backward."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    line: str = ""

    @property
    def name(self) -> str:
        """The operator's name without its overload and without the mark of an in-place one."""
        return str(self.func.overloadpacket.__name__).rstrip("_")

    @property
    def key(self) -> Key:
        """Calls with equal keys are made by the same code: operator, line, kinds of tensors and all that is none."""
        return self.func, self.line, repr([_sketch(item) for item in (*self.args, *self.kwargs.values())])

    @property
    def place(self) -> str:
        """How a text names it."""
        return f"`{self.name}`{f' ({self.line})' if self.line else ''}"

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """With other arguments; none: with its own."""
        return self.func(*(args or self.args), **(kwargs or self.kwargs))

    def replace(self, position: int, value: Any) -> Any:
        """The result with one positional argument changed."""
        return self.func(*self.args[:position], value, *self.args[position + 1 :], **self.kwargs)


@dataclass(frozen=True)
class Variant:
    """A way to do an operation otherwise. ``alone``: worth a try in one line of the code; ``jointly``: also in all
    operations at once that have a variant of the same text; ``single``: also in each of a line's calls alone.
    """

    name: str
    text: str
    compute: Callable[[Operation], Any]
    alone: bool = True
    jointly: bool = False
    single: bool = False


Rule = Callable[[Operation, Any], Iterator[Variant]]


@dataclass(frozen=True)
class Trial:
    """What is done otherwise in one replay; ``only``: in call number so many of these alone."""

    name: str
    text: str
    changes: Mapping[Key, Variant]
    only: Optional[int] = None


class ObservingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, collects the variants that the rules know for each operation; the results stay as they are."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rules = rules
        self.known: dict[Key, list[Variant]] = {}
        self._counts: Counter[Key] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation = Operation(func, tuple(args), dict(kwargs or {}), find_line())
        given = _keep_arguments(operation) if _is_in_place(func) else operation
        result = operation.run()
        key = operation.key
        self._counts[key] += 1
        if key not in self.known:
            self.known[key] = [variant for rule in self._rules for variant in rule(given, result)]
        return result

    def list_trials(self) -> Iterator[Trial]:
        """Variants of single lines, then those of several operations, then of single calls."""
        together: dict[tuple[str, str], dict[Key, Variant]] = {}
        pairs = [(key, variant) for key, variants in self.known.items() for variant in variants]
        for key, variant in pairs:
            if variant.alone:
                yield Trial(variant.name, variant.text, {key: variant})
            if variant.jointly:
                together.setdefault((variant.name, variant.text), {})[key] = variant
        for (name, text), changes in together.items():
            if len(changes) > 1 or not next(iter(changes.values())).alone:
                yield Trial(name, text, changes)
        for key, variant in pairs:
            if variant.single and 1 < self._counts[key] <= MOST_SINGLE:
                yield from (Trial(variant.name, variant.text, {key: variant}, n) for n in range(self._counts[key]))


class TrialMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, the operations of a trial are done its way; ``count`` is how many were."""

    def __init__(self, trial: Trial) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._trial, self.count, self._number = trial, 0, 0
        self._operators = {key[0] for key in trial.changes}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation = Operation(func, tuple(args), dict(kwargs or {}))
        if func not in self._operators:
            return operation.run()
        operation = replace(operation, line=find_line())
        variant = self._trial.changes.get(operation.key)
        if variant is None:
            return operation.run()
        self._number += 1
        if self._trial.only not in (None, self._number - 1):
            return operation.run()
        self.count += 1
        return compute(operation, variant)


def compute(operation: Operation, variant: Variant) -> Any:
    """The variant's result; where the operation writes into its first argument, so does the variant."""
    if not _is_in_place(operation.func):
        return variant.compute(operation)
    target = operation.args[0]
    return target.copy_(variant.compute(_keep_arguments(operation)))


def changing(position: int, change: Callable[[Any], Any]) -> Callable[[Operation], Any]:
    """The operation with one positional argument changed."""
    return lambda found: found.replace(position, change(found.args[position]))


def taking(function: Callable[[Any], Any]) -> Callable[[Operation], Any]:
    """Another function of the operation's first argument."""
    return lambda found: function(found.args[0])


def find_line() -> str:
    """file:line of the user's code that makes the operation; "" where autograd makes it."""
    frame = sys._getframe(2)
    while frame is not None and not frame.f_code.co_filename.endswith(_REPLAYING):
        if not frame.f_code.co_filename.startswith((*_MACHINERY, "<")):
            return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def is_floating(value: Any) -> bool:
    """A floating-point tensor."""
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def list_tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among them."""
    return [value for value in values if isinstance(value, torch.Tensor)]


def _keep_arguments(operation: Operation) -> Operation:
    first, *rest = operation.args
    return Operation(operation.func, (first.clone(), *rest), operation.kwargs, operation.line)


def _is_in_place(func: Any) -> bool:
    return bool(func._schema.is_mutable) and str(func.overloadpacket.__name__).endswith("_")


def _sketch(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dim(), value.is_floating_point(), value.dtype == torch.bool
    return [_sketch(item) for item in value] if isinstance(value, (list, tuple)) else value
