"""The reference's modules, loaded with the candidate's own parameters, in float64 and in their own dtype."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Mapping
from typing import Any, Callable, Optional

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from precision_align.core.records import Call, TensorRecord
from precision_align.core.trees import Unbuildable, rebuild
from precision_align.replay.lifting import lift
from precision_align.replay.replayability import STOCK, NotReplayable
from precision_align.replay.values import load_tensor, torch_value
from precision_align.storage.base import Dump

Change = Callable[[torch.Tensor], torch.Tensor]
# Attributes that a stock module sets to None when built without them.
_OPTIONAL_PARAMETERS = ("weight", "bias")
_OPTIONAL_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


class _Memo(dict[int, Any]):
    """A deepcopy memo that makes what it is asked for: a leaf's copy is not to cost a change of the whole model."""

    def __init__(self, makers: Mapping[int, Callable[[], Any]]) -> None:
        super().__init__()
        self._makers = makers

    def get(self, key: int, default: Any = None) -> Any:
        """The copy of an object by its id, made on first use."""
        if key not in self and key in self._makers:
            self[key] = self._makers[key]()
        return super().get(key, default)


class Models:
    """Two private copies of the replay module, golden (float64) and native, set to one recorded step's parameters."""

    def __init__(self, root: Optional[nn.Module], locate: Callable[[str], Optional[str]]) -> None:
        self._root = root
        self._locate = locate
        self._copies: dict[bool, Optional[nn.Module]] = {True: None, False: None}
        self._modules: dict[bool, dict[str, nn.Module]] = {True: {}, False: {}}
        self._kept: dict[bool, list[torch.Tensor]] = {True: [], False: []}
        self._missing: dict[str, str] = {}
        self._records: Mapping[tuple[str, str], TensorRecord] = {}
        self._dump: Optional[Dump] = None

    def load(self, dump: Dump, records: Mapping[tuple[str, str], TensorRecord]) -> None:
        """Set parameters and buffers: (aligned owner scope, name) -> record of the candidate's dump."""
        self._dump, self._records, self._missing = dump, records, {}
        self._copies[True] = None  # made when it is asked for: four times the bytes of a bfloat16 model
        if self._root is not None:
            self._make_copy(self._root, golden=False)

    def _make_copy(self, root: nn.Module, golden: bool) -> None:
        try:
            loaded = copy.deepcopy(root, _Memo(_detach_lazily(find_results(root))))
        except Exception as error:
            raise NotReplayable(f"the replay module cannot be copied: {error}") from error
        self._copies[golden] = loaded
        self._modules[golden] = dict(loaded.named_modules(remove_duplicate=False))
        self._kept[golden] = find_results(loaded)
        self._load_copy(loaded, golden)

    def _load_copy(self, root: nn.Module, golden: bool) -> None:
        places = {path: scope for scope, path in self._paths(root).items()}
        digests: dict[int, bytes] = {}
        for path, module in root.named_modules():
            scope = places.get(path)
            owned: list[tuple[str, Optional[torch.Tensor]]] = [*module._parameters.items(), *module._buffers.items()]
            for name, tensor in owned:
                if tensor is None:
                    continue
                try:
                    value = self._load_value(scope, name, tensor)
                    self._check_tie(digests, tensor, scope, name)
                except NotReplayable as error:
                    self._missing[f"{path}.{name}" if path else name] = str(error)
                    if is_lazy(tensor):
                        continue
                    value = tensor.detach()
                tensor.data = lift(value) if golden else value

    def _check_tie(self, digests: dict[int, bytes], tensor: torch.Tensor, scope: Optional[str], name: str) -> None:
        """One parameter under two names takes one value: the candidate must not hold two."""
        digest = self._records[scope or "", name].digest
        if digests.setdefault(id(tensor), digest) != digest:
            raise NotReplayable(f"{name} of {scope or 'the root'!r} is tied in the reference, and not on the candidate")

    def _paths(self, root: nn.Module) -> dict[str, str]:
        scopes = {scope for scope, _ in self._records}
        found = {scope: self._locate(scope) for scope in scopes}
        known = dict(root.named_modules(remove_duplicate=False))
        return {scope: path for scope, path in found.items() if path is not None and path in known}

    def _load_value(self, scope: Optional[str], name: str, tensor: torch.Tensor) -> torch.Tensor:
        if is_lazy(tensor):
            raise NotReplayable(f"{name} of the replay module is not initialised yet: call the module once before")
        record = self._records.get((scope, name)) if scope is not None else None
        if record is None or self._dump is None:
            raise NotReplayable(f"{name} of {scope or 'the root'!r} is not in the candidate's dump")
        if tuple(record.shape) != tuple(tensor.shape):
            raise NotReplayable(
                f"{name} of {scope or 'the root'!r} has shape {record.shape}, the reference's has {tuple(tensor.shape)}"
            )
        return load_tensor(self._dump, record)

    def copy_call(self, scope: str, golden: bool, change: Optional[Change] = None) -> tuple[nn.Module, dict[str, Any]]:
        """A throw-away copy of the module at ``scope``, and every module inside it by path of the replay root.

        Parameters are shared with the loaded copy unless ``change`` gives new ones; buffers and the rest are copied.
        Raises NotReplayable where there is no such module.
        """
        if golden and self._copies[True] is None and self._copies[False] is not None and self._root is not None:
            self._make_copy(self._root, golden=True)
        root, path = self._copies[golden], self._locate(scope)
        if root is None or path is None:
            raise NotReplayable("no replay module was given" if root is None else f"the reference has no {scope!r}")
        modules = self._modules[golden]
        if path not in modules:
            raise NotReplayable(f"the replay module has no {path!r}")
        makers = _detach_lazily(self._kept[golden])
        makers.update((id(parameter), _bind(parameter, change)) for parameter in root.parameters())
        memo = _Memo(makers)
        try:
            module = copy.deepcopy(modules[path], memo)
        except Exception as error:
            raise NotReplayable(f"the module cannot be copied: {error}") from error
        inside = {name: memo[id(found)] for name, found in modules.items() if id(found) in memo}
        return module, inside

    def check_parameters(self, path: str, forced: set[str]) -> None:
        """Raise NotReplayable where a parameter or buffer that this call may use was not recorded."""
        prefix = f"{path}." if path else ""
        for name, reason in self._missing.items():
            owner = name.rpartition(".")[0]
            inside = name.startswith(prefix)
            covered = any(owner == other or owner.startswith(f"{other}.") for other in forced)
            if inside and not covered:
                raise NotReplayable(reason)

    def build_stock(
        self, scope: str, call: Call, attributes: Any, golden: bool, change: Optional[Change] = None
    ) -> nn.Module:
        """A stock torch.nn leaf from its recorded attributes and the candidate's parameters of the aligned ``scope``.

        Raises NotReplayable, also where a parameter or buffer that it needs was not recorded.
        """
        kind = find_stock(call.kind)
        if kind is None or attributes is None:
            raise NotReplayable(f"{call.kind} is not a stock torch.nn leaf: give its code with replay=")
        try:
            values = rebuild(attributes, {}, lambda name: None, torch_value)
        except Unbuildable as error:
            raise NotReplayable(str(error)) from error
        module = _construct(kind, values, {name for owner, name in self._records if owner == scope})
        for path, part in module.named_modules():
            self._fill(part, ".".join(filter(None, (scope, path))), golden, change)
        return module

    def _fill(self, module: nn.Module, scope: str, golden: bool, change: Optional[Change]) -> None:
        """Set the parameters and buffers of one module of a stock leaf from the candidate's records."""
        for name in [*module._parameters, *module._buffers]:
            record = self._records.get((scope, name))
            if record is None or self._dump is None:
                if getattr(module, name) is not None:
                    raise NotReplayable(f"{name} of {scope or 'the root'!r} is not in the candidate's dump")
                continue
            value = load_tensor(self._dump, record)
            value = lift(value) if golden else value
            if name in module._parameters:
                # assigned as an attribute: recurrent modules keep a second list of their weights in step with it
                setattr(module, name, nn.Parameter(change(value) if change else value, record.requires_grad))
            else:
                module._buffers[name] = value


def _bind(parameter: nn.Parameter, change: Optional[Change]) -> Callable[[], nn.Parameter]:
    """The parameter itself, or a changed one."""
    if change is None:
        return lambda: parameter
    return lambda: nn.Parameter(change(parameter.detach()), parameter.requires_grad)


def _detach_lazily(results: list[torch.Tensor]) -> dict[int, Callable[[], Any]]:
    return {id(value): lambda value=value: value.detach().clone() for value in results}  # type: ignore[misc]


def find_results(root: nn.Module) -> list[torch.Tensor]:
    """What modules keep of earlier calls with its graph: torch refuses to copy such tensors."""
    found = []
    for module in root.modules():
        waiting = list(vars(module).values())
        while waiting:
            value = waiting.pop()
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                found.append(value)
            elif type(value) in (list, tuple):
                waiting += value
            elif type(value) is dict:
                waiting += value.values()
    return found


def find_stock(kind: str) -> Optional[type]:
    """A class of torch.nn by its full name, or None."""
    if not kind.startswith(STOCK):
        return None
    place, _, name = kind.rpartition(".")
    found = getattr(sys.modules.get(place), name, None)
    return found if isinstance(found, type) and issubclass(found, nn.Module) else None


def list_constructor_arguments(kind: str) -> list[str]:
    """Names of the constructor arguments of a stock torch.nn class; [] for what is none."""
    found = find_stock(kind)
    return _list_arguments(found) if found is not None else []


def _list_arguments(kind: type) -> list[str]:
    """The constructor's argument names; a constructor that hands everything on has those of its base class."""
    for base in kind.__mro__:
        parameters = list(inspect.signature(vars(base).get("__init__", object)).parameters.values())[1:]
        names = [item.name for item in parameters if item.kind not in (item.VAR_POSITIONAL, item.VAR_KEYWORD)]
        if names:
            return [name for name in names if base is kind or name != "mode"]  # RNNBase: LSTM and GRU fix their mode
    return []


def _construct(kind: type, values: Mapping[str, Any], recorded: set[str]) -> nn.Module:
    """Call the constructor with the recorded attributes of its argument names; then set all attributes."""
    module = _call_constructor(kind, values, recorded)
    for name, value in values.items():
        if name not in ("training", "bias"):
            module.__dict__[name] = value
    for name in _OPTIONAL_PARAMETERS:
        if name in module._parameters and name not in recorded:
            module._parameters[name] = None
    for name in _OPTIONAL_BUFFERS:
        if name in module._buffers and name not in recorded:
            module._buffers[name] = None
    return module


def _call_constructor(kind: type, values: Mapping[str, Any], recorded: set[str]) -> nn.Module:
    names = _list_arguments(kind)
    arguments = {name: values[name] for name in names if name in values}
    if not arguments.get("proj_size", 1):
        del arguments["proj_size"]  # only LSTM takes it, not even as 0
    if "bias" in names:
        arguments["bias"] = values.get("bias", "bias" in recorded)
    try:
        module: nn.Module = kind(**arguments)
    except Exception as error:
        raise NotReplayable(f"{kind.__name__} cannot be built from its recorded attributes: {error}") from error
    unknown = [name for name in names if name not in values and callable(getattr(module, name, None))]
    if unknown:
        raise NotReplayable(f"what {kind.__name__} was given as {unknown[0]} is code, which is not recorded")
    return module
