"""One recorded call executed again, its child calls answered from the record.

The children are *forced*: each returns what the candidate's child returned, whatever it is given. What it was given is
kept. So the code of the module itself, between its children, is judged on the candidate's own data: every child's
inputs and the module's outputs are its results, and an error inside a child cannot reach them.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Optional, Protocol

import torch
from torch import nn

from precision_align.core.records import Call, TensorRecord
from precision_align.core.trees import Tree, Unbuildable, flatten, rebuild
from precision_align.replay.arguments import bind_arguments, rename_tensors
from precision_align.replay.lifting import LiftingMode, lift
from precision_align.replay.replayability import NotReplayable
from precision_align.replay.values import is_tensor, load_tensor, torch_value
from precision_align.storage.base import Dump

# Relative L2 distance up to which a call's inputs count as the same data: four times what three bfloat16 roundings
# lose, twenty times less than two independent batches differ by.
SAME_DATA = 0.05


class Recorded(Protocol):
    """A recorded call with its tensors by path and the calls it made."""

    call: Call
    scope: str

    @property
    def inputs(self) -> Mapping[str, TensorRecord]: ...
    @property
    def outputs(self) -> Mapping[str, TensorRecord]: ...
    @property
    def buffers(self) -> Mapping[str, TensorRecord]: ...
    @property
    def gradients(self) -> Mapping[str, TensorRecord]: ...
    @property
    def children(self) -> Sequence[Recorded]: ...


@dataclass
class Execution:
    """What one execution gave.

    ``outputs``: path -> tensor; ``given``: (child index, path) -> tensor handed to that child call; ``arguments``,
    ``recorded``: child index -> what this code and what the candidate's gave it, by parameter name; ``output``: its
    tree; ``buffers``: name -> value afterwards; ``random``: it drew random numbers; ``leaves``: what gradients can be
    asked for; ``unmatched``: calls the reference makes and the candidate did not.
    """

    outputs: dict[str, torch.Tensor] = field(default_factory=dict)
    given: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)
    arguments: dict[int, Tree] = field(default_factory=dict)
    recorded: dict[int, Tree] = field(default_factory=dict)
    output: Optional[Tree] = None
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    leaves: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict)
    random: bool = False
    unmatched: list[str] = field(default_factory=list)
    order: list[Optional[int]] = field(default_factory=list)


@dataclass(frozen=True)
class Style:
    """How to execute: in float64 or natively, with inputs changed (perturbed) or not, with gradients or not.

    ``arithmetic``: a dispatch mode that computes products as another device would; ``sampler``: a function mode that
    computes some rows of big products only.
    """

    golden: bool
    change: Optional[Callable[[torch.Tensor], torch.Tensor]] = None
    gradients: bool = False
    arithmetic: Optional[Any] = None
    sampler: Optional[Any] = None


class Executor:
    """Executes the calls of one dump. ``training``: the flag each call is to run under."""

    def __init__(
        self, dump: Dump, resolve: Callable[[str], Optional[type]], training: Callable[[Recorded], bool]
    ) -> None:
        self._dump = dump
        self._resolve = resolve
        self._training = training

    def execute(
        self,
        node: Recorded,
        module: nn.Module,
        inside: Mapping[str, nn.Module],
        style: Style,
        plan: Optional[Execution] = None,
        finish: Optional[Callable[[Execution], None]] = None,
    ) -> Execution:
        """Run ``module`` on the recorded inputs; ``inside``: child scope -> module to force; ``plan``: an earlier
        execution whose pairing of child calls is kept; ``finish`` runs in the same environment (a backward pass).
        Raises NotReplayable.
        """
        result = Execution()
        self._set_buffers(node, module, style)
        module.train(self._training(node))
        force = _Forcing(self, node, inside, style, result, plan)
        force.install(module)
        with _environment(node.call, style), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arguments, tensors = self.build(node.call.arguments, node.inputs, style, result, -1, {})
            before = torch.get_rng_state()
            with _naming_errors("forward", style):
                output = module(*arguments["args"], **arguments["kwargs"])
            result.random = not torch.equal(before, torch.get_rng_state())
            result.output, leaves = flatten(output, is_tensor)
            result.outputs = dict(leaves)
            written = [path for path, record in node.outputs.items() if is_written(path, record)]
            result.outputs.update({path: tensors[path.partition(".")[2]] for path in written})
            result.buffers = {name: value for name, value in module._buffers.items() if value is not None}
            if finish is not None:
                with _naming_errors("backward", style):
                    finish(result)
        return result

    def build(
        self,
        tree: Tree,
        records: Mapping[str, TensorRecord],
        style: Style,
        result: Execution,
        child: int,
        known: Mapping[str, torch.Tensor],
    ) -> tuple[Any, dict[str, torch.Tensor]]:
        """Recorded arguments or outputs, built again, and their tensors by path; with gradients, floating tensors
        become leaves. ``known``: tensors that these may be or may have written into, by the name of their origin.
        """
        tensors: dict[str, torch.Tensor] = {}
        origins = dict(known)
        for path, record in records.items():
            same, written = (origins.get(str(record.extra.get(kind))) for kind in ("same_as", "overwrites"))
            if same is not None:
                tensors[path] = same
            else:
                tensors[path] = self._build_leaf(record, style, result, child, path)
                if written is not None:
                    # the caller may go on with the argument instead of what is returned
                    tensors[path] = _write(written, tensors[path])
            origins[join("output" if child >= 0 else "input", path)] = tensors[path]
        try:
            return rebuild(tree, tensors, self._resolve, torch_value), tensors
        except Unbuildable as error:
            raise NotReplayable(str(error)) from error

    def _build_leaf(self, record: TensorRecord, style: Style, result: Execution, child: int, path: str) -> torch.Tensor:
        tensor = self.load(record, style)
        if style.gradients and record.requires_grad and tensor.dtype.is_floating_point:
            leaf = tensor.detach().requires_grad_()
            result.leaves[child, path] = leaf
            return leaf.clone()
        return tensor

    def load(self, record: TensorRecord, style: Style) -> torch.Tensor:
        """A recorded tensor as this style computes with it. Raises NotReplayable."""
        with LiftingMode.paused():
            tensor = load_tensor(self._dump, record)
        return self._style(tensor, style)

    def _style(self, tensor: torch.Tensor, style: Style) -> torch.Tensor:
        tensor = lift(tensor) if style.golden else tensor
        if style.change is not None and (tensor.dtype.is_floating_point or tensor.dtype.is_complex):
            return style.change(tensor)
        return tensor

    def _set_buffers(self, node: Recorded, module: nn.Module, style: Style) -> None:
        for path, record in node.buffers.items():
            moment, _, name = path.partition(".")
            if moment == "before" and name in module._buffers:
                value = load_tensor(self._dump, record)
                module._buffers[name] = lift(value) if style.golden else value


@dataclass(frozen=True)
class _Given:
    """What the reference's code hands to a child: its arguments by parameter name, its tensors by path."""

    tree: Tree
    tensors: Mapping[str, torch.Tensor]
    forward: Callable[..., Any]

    def match(self, child: Recorded) -> tuple[Tree, dict[str, torch.Tensor]]:
        """The recorded call's arguments by parameter name, and the tensors under the recorded call's paths."""
        recorded = bind_arguments(child.call.arguments, self.forward)
        names = rename_tensors(self.tree, recorded)
        return recorded, {names.get(path, path): tensor for path, tensor in self.tensors.items()}


class _Forcing:
    """Replaces the forward of each called child by the recorded answers."""

    def __init__(
        self,
        executor: Executor,
        node: Recorded,
        inside: Mapping[str, nn.Module],
        style: Style,
        result: Execution,
        plan: Optional[Execution],
    ) -> None:
        self._executor, self._style, self._result, self._plan = executor, style, result, plan
        self._children = list(node.children)
        self._waiting: dict[str, list[int]] = {}
        self._inside = inside
        self._position = 0
        for index, child in sorted(enumerate(self._children), key=lambda pair: pair[1].call.enter):
            self._waiting.setdefault(child.scope, []).append(index)

    def install(self, executed: nn.Module) -> None:
        """Replace the children's forward; a module that calls itself runs its own code once, then it is a child."""
        for scope in self._waiting:
            module = self._inside.get(scope)
            if module is None:
                continue
            module._forward_pre_hooks.clear()
            module._forward_hooks.clear()
            forward = self._make_forward(scope, module.forward)
            module.forward = _after_first(module.forward, forward) if module is executed else forward

    def _make_forward(self, scope: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            tree, leaves = flatten({"args": args, "kwargs": kwargs}, is_tensor)
            given = _Given(bind_arguments(tree, original), dict(leaves), original)
            index = self._choose(scope, given)
            if index is None:
                self._result.unmatched.append(scope)
                return original(*args, **kwargs)
            recorded, tensors = given.match(self._children[index])
            self._result.arguments[index], self._result.recorded[index] = given.tree, recorded
            for path, tensor in tensors.items():
                # as it is now: the code may write into it afterwards
                self._result.given[index, path] = tensor.clone() if self._style.gradients else tensor.detach().clone()
            return self._answer(index, tensors)

        return forward

    def _choose(self, scope: str, given: _Given) -> Optional[int]:
        """The recorded call that this one answers to: the next, or a later one that was fed exactly this."""
        if self._plan is not None:
            position, self._position = self._position, self._position + 1
            return self._plan.order[position] if position < len(self._plan.order) else None
        waiting = self._waiting[scope]
        chosen = self._match(waiting, given)
        self._result.order.append(chosen)
        if chosen is not None:
            del waiting[: waiting.index(chosen) + 1]
        return chosen

    def _match(self, waiting: Sequence[int], given: _Given) -> Optional[int]:
        """The first recorded call that was fed about this; none was: the next one, to be judged as it is."""
        for index in waiting:
            if self._was_fed(self._children[index], given.match(self._children[index])[1]):
                return index
        return waiting[0] if waiting else None

    def _was_fed(self, child: Recorded, given: Mapping[str, torch.Tensor]) -> bool:
        if set(child.inputs) != set(given):
            return False
        for path, record in child.inputs.items():
            if tuple(record.shape) != tuple(given[path].shape):
                return False
            try:
                recorded = self._executor.load(record, Style(self._style.golden))
            except NotReplayable:
                return False
            if not _is_same_data(recorded, given[path].detach()):
                return False
        return True

    def _answer(self, index: int, given: Mapping[str, torch.Tensor]) -> Any:
        child = self._children[index]
        known = {join("input", path): tensor for path, tensor in given.items()}
        return self._executor.build(child.call.output, child.outputs, self._style, self._result, index, known)[0]


def is_written(path: str, record: TensorRecord) -> bool:
    """Whether an output record is an argument as the call left it, which it did not return."""
    return path.partition(".")[0] == "written" and record.extra.get("overwrites") == join(
        "input", path.partition(".")[2]
    )


def _write(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """What an in-place child does to its argument; where torch does not let us, its result stands alone."""
    if target.shape != value.shape:
        return value
    try:
        return target.copy_(value)
    except RuntimeError:
        return value


def join(prefix: str, path: str) -> str:
    """One path part in front of another, which may be empty."""
    return f"{prefix}.{path}" if path else prefix


def _after_first(first: Callable[..., Any], later: Callable[..., Any]) -> Callable[..., Any]:
    """The one function on the first call, the other on all later ones."""
    functions = itertools.chain([first], itertools.repeat(later))
    return lambda *args, **kwargs: next(functions)(*args, **kwargs)


@contextlib.contextmanager
def _naming_errors(what: str, style: Style) -> Iterator[None]:
    """Whatever the reference's code raises in a replay becomes a reason."""
    try:
        yield
    except NotReplayable:
        raise
    except Exception as error:
        dtype = "float64" if style.golden else "its own dtype"
        raise NotReplayable(f"{what} replay in {dtype} raised {type(error).__name__}: {_first_line(error)}") from error


@contextlib.contextmanager
def _environment(call: Call, style: Style) -> Iterator[None]:
    """Grad mode, default dtype, autocast and RNG of the call; nothing of it leaks."""
    default = torch.get_default_dtype()
    recorded = str(call.modes.get("default_dtype", default)).replace("torch.", "")
    torch.set_default_dtype(torch.float64 if style.golden else getattr(torch, recorded, default))
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            torch.default_generator.manual_seed(0)  # the CPU's alone: the other one of torch costs milliseconds
            stack.enter_context(torch.enable_grad() if style.gradients else torch.no_grad())
            lowered = next(iter(call.autocast.values()), None)
            autocast = None if lowered is None else getattr(torch, str(lowered).replace("torch.", ""))
            if autocast is not None and not style.golden:
                stack.enter_context(_autocast(autocast))
            if style.arithmetic is not None:
                stack.enter_context(style.arithmetic)
            if style.golden:
                stack.enter_context(LiftingMode(autocast))
            if style.sampler is not None:
                stack.enter_context(style.sampler)
            yield
    finally:
        torch.set_default_dtype(default)


@contextlib.contextmanager
def _autocast(dtype: torch.dtype) -> Iterator[None]:
    """Autocast on the CPU, also where oneDNN lacks kernels for the dtype: torch hands it recurrent layers all the same,
    which raise."""
    was_enabled = torch._C._get_mkldnn_enabled()
    name = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}.get(dtype)
    is_supported = getattr(torch.ops.mkldnn, name or "", None)
    torch._C._set_mkldnn_enabled(was_enabled and is_supported is not None and is_supported())
    try:
        with torch.autocast("cpu", dtype=dtype):
            yield
    finally:
        torch._C._set_mkldnn_enabled(was_enabled)


def _is_same_data(recorded: torch.Tensor, given: torch.Tensor) -> bool:
    """Whether two tensors are the same data up to arithmetic, not two different batches."""
    if torch.equal(recorded, given):
        return True
    if not (recorded.dtype.is_floating_point and given.dtype.is_floating_point):
        return False
    left, right = torch.nan_to_num(recorded.double()), torch.nan_to_num(given.double())
    return bool((left - right).norm() <= SAME_DATA * right.norm())


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:160]
