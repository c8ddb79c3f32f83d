"""Executes modules, functions and operators of a session in another way (see ``swaps`` for what, ``hopping`` for how).

Modules: ``forward`` is replaced on the instance for the session's time. Functions and operators: modes, which do
nothing until a session binds them. In all steps, recorded or not. A call inside of a swapped one is left alone.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Callable, Optional

import torch
import torch._decomp
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from precision_align.recording.companions import Companion
from precision_align.recording.draws import Reentry
from precision_align.recording.functions import name_function
from precision_align.recording.hooks import first_names, is_compiling
from precision_align.recording.hopping import Hop, Looks, choose_conversion, learn_looks, without_autocast
from precision_align.recording.modes import enabled_autocast
from precision_align.recording.operators import computes, find_written
from precision_align.recording.shards import is_distributed
from precision_align.recording.shortfalls import Shortfalls
from precision_align.recording.structures import flatten_arguments
from precision_align.recording.swaps import Swap, SwapKind, load_composed
from precision_align.recording.tape import Tape

Follow = Callable[[Any, Any, Any], Any]


class FunctionSwapTap(TorchFunctionMode):
    """Gives functions to ``follow`` once it is set."""

    def __init__(self) -> None:
        super().__init__()
        self.follow: Optional[Follow] = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_compiling() or self.follow is None:
            return func(*args, **(kwargs or {}))
        return self.follow(func, args, kwargs or {})


class OperatorSwapTap(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives operators to ``follow`` once it is set."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.follow: Optional[Follow] = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.follow is None:
            return func(*args, **(kwargs or {}))
        return self.follow(func, args, kwargs or {})


class _Forward:
    """Stands for a module's ``forward``; in copies and pickles of the module it is the class's own again."""

    def __init__(self, module: torch.nn.Module, original: Callable[..., Any], run: Follow) -> None:
        self.module, self.original, self.run = module, original, run
        self.active = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.active or is_compiling():
            return self.original(*args, **kwargs)
        return self.run(self, args, kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.module, "forward")  # the copy has no state yet: its class's method


class Swapper(Companion):
    """Swaps for one session; ``counts``: swap -> how many calls."""

    def __init__(
        self,
        swaps: Sequence[Swap],
        functions: FunctionSwapTap,
        operators: Optional[OperatorSwapTap],
        tape: Tape,
        model: torch.nn.Module,
    ) -> None:
        self._swaps, self._functions, self._operators = swaps, functions, operators
        self._tape, self._model = tape, model
        self.counts: Counter[str] = Counter()
        self._names: dict[str, Optional[Swap]] = {}
        self._known: dict[int, torch.nn.Module] = {}
        self._looks: dict[Any, Optional[Looks]] = {}
        self._left = Shortfalls()
        self._local = threading.local()
        self._cleanup: Optional[contextlib.ExitStack] = None
        self._reentry = Reentry(functions)

    # The session

    def start(self, cleanup: contextlib.ExitStack) -> None:
        """Bind the taps and replace forwards."""
        self._cleanup = cleanup
        self._functions.follow = self._follow_function
        cleanup.callback(setattr, self._functions, "follow", None)
        if self._operators is not None:
            self._operators.follow = self._follow_operator
            cleanup.callback(setattr, self._operators, "follow", None)
        hooks = (
            torch.nn.modules.module
        )  # a backward pass runs without function modes, what a checkpoint repeats in it, too
        cleanup.callback(hooks.register_module_forward_pre_hook(self._enter).remove)
        cleanup.callback(hooks.register_module_forward_hook(self._leave, always_call=True).remove)
        self.attach()

    def _enter(self, module: torch.nn.Module, args: Any) -> None:
        if not is_compiling():
            self._reentry.enter(module)

    def _leave(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if not is_compiling():
            self._reentry.leave(module)

    def start_step(self) -> None:
        """Modules may have come meanwhile."""
        self.attach()

    def attach(self) -> None:
        """Replace the forward of every module that a pattern means and that is not known yet."""
        for scope, module in first_names(self._model)[0].items():
            if id(module) in self._known:
                continue
            self._known[id(module)] = module
            swap = next((one for one in reversed(self._swaps) if one.fits_scope(scope)), None)
            if swap is not None:
                self._attach_one(swap, scope, module)

    def _attach_one(self, swap: Swap, scope: str, module: torch.nn.Module) -> None:
        reason = _find_obstacle(module)
        if reason or self._cleanup is None:
            self._left.add(reason, repr(scope))
            return
        before = module.__dict__.get("forward")
        forward = _Forward(module, module.forward, lambda own, args, kwargs: self._run_module(swap, own, args, kwargs))
        module.__dict__["forward"] = forward
        self._cleanup.callback(_detach, module, forward, before)
        self.counts[swap.text] += 0

    def finish(self) -> None:
        """Say what was swapped, and what was not."""
        done = ", ".join(f"{swap} ({count} calls)" for swap, count in self.counts.items())
        self._tape.note(f"executed in another way on purpose: {done or 'nothing'}")
        for text in self._left.texts():
            self._say(f"not swapped, {text}")
        for swap in self._swaps:
            if not self.counts[swap.text]:
                known = (
                    f"; composed equivalents: {', '.join(load_composed())}" if swap.kind is SwapKind.COMPOSED else ""
                )
                self._say(
                    f"the swap {swap.text} changed nothing: no module, function or operator that was called fits{known}"
                )

    def _say(self, text: str) -> None:
        self._tape.note(text)
        warnings.warn(text, RuntimeWarning, stacklevel=2)

    def describe(self) -> dict[str, Any]:
        return {"swapped": {swap.text: self.counts[swap.text] for swap in self._swaps}}

    # Calls

    @property
    def _is_inside(self) -> bool:
        return bool(getattr(self._local, "inside", False))

    @contextlib.contextmanager
    def _inside(self) -> Iterator[None]:
        self._local.inside = True
        try:
            yield
        finally:
            self._local.inside = False

    def _run_module(self, swap: Swap, forward: _Forward, args: Any, kwargs: Any) -> Any:
        if self._is_inside:
            return forward.original(*args, **kwargs)
        self.counts[swap.text] += swap.kind is not SwapKind.COMPOSED
        with self._inside():
            if swap.kind is SwapKind.COMPOSED:
                with _ComposeAll(self, swap):
                    return forward.original(*args, **kwargs)
            return self._hop(swap, forward, forward.original, args, kwargs, forward.module)

    def _hop(
        self,
        swap: Swap,
        site: Any,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        module: Optional[torch.nn.Module] = None,
    ) -> Any:
        looks = self._look(site, function, args, kwargs, module)
        hop = Hop(choose_conversion(swap.kind))
        with without_autocast(), contextlib.ExitStack() as held:
            sent = hop.send((args, kwargs))
            if module is not None:
                held.enter_context(hop.send_state(module))
            result = function(*sent[0], **sent[1])
        return hop.bring_back(result, looks)

    def _look(
        self, site: Any, function: Callable[..., Any], args: Any, kwargs: Any, module: Optional[torch.nn.Module]
    ) -> Optional[Looks]:
        """What the original's outputs are like, for these kinds of inputs."""
        leaves = flatten_arguments((args, kwargs))[1]
        key = (site, tuple((path, tensor.dtype, tensor.device) for path, tensor in leaves), str(enabled_autocast()))
        if key not in self._looks:
            clock = self._tape.clock
            recording, clock.recording = clock.recording, False
            try:
                with contextlib.ExitStack() as held:
                    if module is not None:
                        held.enter_context(Hop(lambda tensor: tensor.detach().clone()).send_state(module))
                    self._looks[key] = learn_looks(function, args, kwargs)
            finally:
                clock.recording = recording
        return self._looks[key]

    def compose(self, swap: Swap, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The equivalent's result, or the function's own where the equivalent does not know such arguments."""
        looks = self._look(name, function, args, kwargs, None)
        self.counts[swap.text] += 1  # a checkpoint may stop a repeated call half-way
        try:
            with without_autocast():
                result = load_composed()[name](*args, **kwargs)
        except (NotImplementedError, TypeError) as error:
            self.counts[swap.text] -= 1
            self._left.add(f"{name} has no composed equivalent for {error}", swap.text)
            return function(*args, **kwargs)
        return Hop(lambda tensor: tensor).bring_back(result, looks)

    def _find(self, name: str) -> Optional[Swap]:
        if name not in self._names:
            self._names[name] = next((one for one in reversed(self._swaps) if one.fits_name(name)), None)
        return self._names[name]

    def _follow_function(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = name_function(func)
        swap = self._find(name) if name and not self._is_inside else None
        if swap is None:
            return func(*args, **kwargs)
        with self._inside():
            if swap.kind is not SwapKind.COMPOSED:
                self.counts[swap.text] += 1
                return self._hop(swap, name, func, args, kwargs)
            if name in load_composed():
                return self.compose(swap, name, func, args, kwargs)
            self._left.add("there is no composed equivalent", name)
            return func(*args, **kwargs)

    def _follow_operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = self._run_operator(func, args, kwargs)
        written = find_written(func, args, kwargs)
        if written:
            self._tape.forget_written(tensor for _, tensor in written)
        return result

    def _run_operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = str(func)
        swap = self._find(name) if not self._is_inside and name.startswith("aten.") else None
        if swap is None:
            return func(*args, **kwargs)
        composed = torch._decomp.decomposition_table.get(func) if swap.kind is SwapKind.COMPOSED else func
        if composed is None or not computes(func):
            self._left.add("it is a view" if composed is not None else "torch has no decomposition of it", name)
            return func(*args, **kwargs)
        self.counts[swap.text] += 1
        with self._inside():
            if swap.kind is not SwapKind.COMPOSED:
                return self._hop(swap, name, func, args, _place(kwargs, swap.kind))
            looks = self._look(name, func, args, kwargs, None)
            return Hop(lambda tensor: tensor).bring_back(composed(*args, **kwargs), looks)


class _ComposeAll(TorchFunctionMode):
    """Every function inside of a module that has a composed equivalent takes it."""

    def __init__(self, swapper: Swapper, swap: Swap) -> None:
        super().__init__()
        self._swapper, self._swap = swapper, swap

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = name_function(func)
        if name not in load_composed():
            return func(*args, **(kwargs or {}))
        return self._swapper.compose(self._swap, name, func, args, kwargs or {})


def _place(kwargs: Any, kind: SwapKind) -> Any:
    """An operator that makes a tensor names its device."""
    if kind is SwapKind.CPU and kwargs.get("device") is not None:
        return {**kwargs, "device": torch.device("cpu")}
    return kwargs


def _find_obstacle(module: torch.nn.Module) -> str:
    if isinstance(module, torch.jit.ScriptModule):
        return "it is compiled TorchScript"
    if isinstance(module, torch.nn.DataParallel):
        return "DataParallel calls copies of it"
    if any(is_distributed(tensor) for tensor in module.parameters()):
        return "its parameters are sharded"
    return ""


def _detach(module: torch.nn.Module, forward: _Forward, before: Any) -> None:
    """Where somebody has wrapped ours meanwhile it stays, and does nothing."""
    forward.active = False
    if module.__dict__.get("forward") is forward:
        del module.__dict__["forward"]
        if before is not None:
            module.__dict__["forward"] = before
