"""Random numbers that a model draws: recorded by module call and order, and put in place of another device's own.

Generators of two vendors never draw equal numbers; equal masks make two runs comparable all the same. Followed are the
dropouts of ``torch.nn.functional`` and ``torch``, the dropout of attention, and the tensors that ``torch.rand``,
``Tensor.bernoulli_`` and their like fill. What draws without being followed is told by the generators' states.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Callable, Optional, Protocol

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from precision_align.core.terms import Pass, Source
from precision_align.recording.calls import CallRecorder
from precision_align.recording.glimpses import Glimpse
from precision_align.recording.hooks import is_compiling
from precision_align.recording.masks import Mask, apply_mask, attend
from precision_align.recording.nodes import graph_task
from precision_align.recording.randomness import describe_generators
from precision_align.recording.shortfalls import Shortfalls
from precision_align.recording.staging import untouched
from precision_align.recording.tape import Place, Tape

# Scope of what the training script does outside of its modules; no module has such a name.
SCRIPT = "(script)"
ATTENTION = "attention"
_FILLED = frozenset(
    [
        "rand",
        "randn",
        "randint",
        "randperm",
        "rand_like",
        "randn_like",
        "randint_like",
        "normal",
        "bernoulli",
        "multinomial",
        "poisson",
        "bernoulli_",
        "uniform_",
        "normal_",
        "exponential_",
        "random_",
        "log_normal_",
        "geometric_",
        "cauchy_",
    ]
)
# Functions in whose kernels or Python code numbers are drawn that no function call shows.
_INSIDE = frozenset(
    [
        "gumbel_softmax",
        "fractional_max_pool2d_with_indices",
        "fractional_max_pool3d_with_indices",
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
    ]
)
_BUILTINS = (types.BuiltinFunctionType, types.MethodDescriptorType)


@dataclass(frozen=True)
class Dropping:
    """A dropout function: ``kind`` names its draws, ``names`` are its arguments; ``training`` by default."""

    kind: str
    names: tuple[str, ...]
    training: bool = True
    inplace: bool = False

    def read(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """The arguments by name."""
        given = {"p": 0.5, "training": self.training, "inplace": self.inplace, **dict(zip(self.names, args)), **kwargs}
        return {**given, "training": given.pop("train", given["training"])}

    @property
    def alpha(self) -> bool:
        """Whether dropped elements take SELU's saturation value."""
        return "alpha" in self.kind


@cache
def _droppings() -> dict[int, Dropping]:
    """id of a function object -> what it drops; the objects live as long as torch does."""
    names = ("input", "p", "training", "inplace")
    found = {id(functional.dropout): Dropping("dropout", names)}
    for name in ("dropout1d", "dropout2d", "dropout3d"):
        found[id(getattr(functional, name))] = Dropping("feature_dropout", names)
    for kind in ("alpha_dropout", "feature_alpha_dropout"):
        found[id(getattr(functional, kind))] = Dropping(kind, names, training=False)
    for kind in ("dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"):
        for inplace in (False, True):
            function = getattr(torch, kind + "_" * inplace)
            found[id(function)] = Dropping(kind, ("input", "p", "train"), inplace=inplace)
    return found


class Keeper(Protocol):
    """Where draws go, and where those of the reference come from."""

    def keep_draw(self, place: Place, tensor: torch.Tensor, extra: dict[str, Any]) -> None:
        """Take what was drawn."""

    def find_mask(self, place: Place, p: float) -> Optional[Mask]:
        """The reference's mask, None (reported) where there is none that fits."""

    def fill_draw(self, place: Place, tensor: torch.Tensor) -> None:
        """Put the reference's numbers into a tensor that was just drawn; reports where that cannot be."""


class DrawTap(TorchFunctionMode):
    """The function mode; passes everything on until somebody follows what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.follow: Optional[Callable[[Any, Any, Any], Any]] = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_compiling() or self.follow is None:  # a compiler traces modes into its graph
            return func(*args, **(kwargs or {}))
        return self.follow(func, args, kwargs or {})


class Reentry:
    """Backward passes run without function modes: torch takes them off for the call of ``backward``. What a checkpoint
    runs again in there is to be followed too, so the mode goes on again with the outermost module of it.
    """

    def __init__(self, tap: TorchFunctionMode) -> None:
        self._tap = tap
        self._modules: list[Any] = []

    def enter(self, module: Any) -> None:
        """A module starts."""
        if graph_task() != -1 and not self._modules and not self._is_on():
            self._tap.__enter__()  # type: ignore[no-untyped-call]
            self._modules.append(module)

    def leave(self, module: Any) -> None:
        """A module ends, or has raised."""
        if self._modules and self._modules[-1] is module:
            self._modules.pop()
            self._tap.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _is_on(self) -> bool:
        count = torch._C._len_torch_function_stack()
        return any(torch._C._get_function_stack_at(index) is self._tap for index in range(count))


class DrawFollower:
    """Follows the draws of one session; ``left``: those that were not recorded or not replaced."""

    def __init__(self, tape: Tape, calls: CallRecorder, keeper: Keeper, left: Shortfalls) -> None:
        self._tape, self._calls, self._keeper, self._left = tape, calls, keeper, left
        self._numbers: Counter[tuple[Any, ...]] = Counter()
        self._accounted: set[str] = set()

    def start_step(self) -> None:
        """Count from 0 again."""
        self._numbers.clear()

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run a function; what it draws is followed."""
        dropping = _droppings().get(id(func))
        name = getattr(func, "__name__", "")
        if dropping is not None:
            return self._drop(dropping, func, args, kwargs)
        if func is functional.scaled_dot_product_attention:
            return self._attend(func, args, kwargs)
        if func is functional.multi_head_attention_forward:
            return self._run_nested(func, args, kwargs)
        if name in _FILLED and isinstance(func, _BUILTINS):
            return self._fill(name, func, args, kwargs)
        if name in _INSIDE:
            return self._look_inside(func, args, kwargs)
        return func(*args, **kwargs)

    # Draws that no function shows

    def begin(self) -> None:
        """A forward of the model starts: what the generators did before it is none of ours."""
        self._accounted = {_read_generators()}

    def account(self, scope: str) -> None:
        """The generators' states are looked at where a module starts or ends; ``scope``: what has run until now."""
        if graph_task() != -1:  # a recomputation sets the states itself
            return
        state = _read_generators()
        if state not in self._accounted:
            self._accounted.add(state)
            self._left.add("numbers were drawn, or a generator was set, by something that is not followed", repr(scope))

    def _settle(self) -> None:
        self._accounted.add(_read_generators())

    def _account_here(self) -> None:
        frames = self._calls.open_frames
        if frames:
            self.account(frames[-1].place.scope)

    # The functions

    def _place(self, kind: str) -> Place:
        """Of the next draw of a kind here; a repeated call's draws are those of the call that it repeats."""
        frames, clock = self._calls.open_frames, self._tape.clock
        place = Place(clock.step, clock.batch, SCRIPT, 0)
        if frames:
            place = frames[-1].place if frames[-1].repeats is None else frames[-1].repeats.place
        pass_ = Pass.FIRST if graph_task() == -1 else Pass.RECOMPUTE
        counted = (place.micro, place.scope, place.call, pass_, kind)
        number = self._numbers[counted]
        self._numbers[counted] += 1
        return Place(place.step, place.micro, place.scope, place.call, pass_, Source.FUNCTION, kind, number)

    def _drop(self, dropping: Dropping, func: Any, args: Any, kwargs: Any) -> Any:
        given = dropping.read(args, kwargs)
        x, p = given["input"], given["p"]
        if not given["training"] or not 0 < p < 1 or not x.numel():
            return func(*args, **kwargs)

        def compose(mask: Mask) -> Any:
            return apply_mask(x, mask, alpha=dropping.alpha, inplace=given["inplace"])

        return self._drop_with(dropping.kind, p, compose, lambda: func(*args, **kwargs))

    def _attend(self, func: Any, args: Any, kwargs: Any) -> Any:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
        given = {**dict(zip(names, args)), **kwargs}
        p = given.pop("dropout_p", 0.0)
        if not 0 < p < 1:
            return func(*args, **kwargs)
        return self._drop_with(ATTENTION, p, lambda mask: attend(mask=mask, **given), lambda: func(*args, **kwargs))

    def _drop_with(self, kind: str, p: float, compose: Callable[[Mask], Any], run: Callable[[], Any]) -> Any:
        self._account_here()
        place = self._place(kind)
        mask = self._keeper.find_mask(place, p)
        if mask is not None:
            try:
                result = compose(mask)
                self._keeper.keep_draw(place, mask.keep, {"p": p, "kernel": mask.kernel})
                return result
            except (TypeError, ValueError) as error:  # no others: a checkpoint ends what it runs again with one
                self._left.add(f"an own mask was drawn, as {error}", f"{kind} of {place.scope!r}")
        with Glimpse() as glimpse:
            result = run()
        self._settle()
        if len(glimpse.keep) == 1:
            keep, kernel = glimpse.keep[0]
            self._keeper.keep_draw(place, keep, {"p": p, "kernel": kernel})
        else:
            self._left.add("a fused kernel keeps its mask to itself", f"{kind} of {place.scope!r}")
        return result

    def _fill(self, name: str, func: Any, args: Any, kwargs: Any) -> Any:
        self._account_here()
        result = func(*args, **kwargs)
        self._take_filled(name, result)
        self._settle()
        return result

    def _look_inside(self, func: Any, args: Any, kwargs: Any) -> Any:
        self._account_here()
        with Glimpse(self._take_filled):
            result = func(*args, **kwargs)
        self._settle()
        return result

    def _take_filled(self, name: str, tensor: Any) -> None:
        if isinstance(tensor, torch.Tensor):
            with untouched():
                place = self._place(name)
                self._keeper.fill_draw(place, tensor)
                self._keeper.keep_draw(place, tensor, {})

    def _run_nested(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Its dropout and its attention are looked up in the module's globals, where a mode does not see them."""

        def drop(*inner: Any, **named: Any) -> Any:
            return self._drop(_droppings()[id(_DROPOUT)], _DROPOUT, inner, named)

        def attend_inside(*inner: Any, **named: Any) -> Any:
            return self._attend(_ATTENTION, inner, named)

        with _stand_in("dropout", drop), _stand_in("scaled_dot_product_attention", attend_inside):
            return func(*args, **kwargs)


_DROPOUT, _ATTENTION = functional.dropout, functional.scaled_dot_product_attention


@contextmanager
def _stand_in(name: str, function: Callable[..., Any]) -> Iterator[None]:
    before = getattr(functional, name)
    setattr(functional, name, function)
    try:
        yield
    finally:
        setattr(functional, name, before)


def _read_generators() -> str:
    return repr(sorted(describe_generators().items()))
