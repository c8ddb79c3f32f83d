"""What stays the same from call to call of one module, looked up once and again when it has changed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import torch

from precision_align.core.trees import Tree, class_name
from precision_align.recording.origins import is_settled, plain_attributes
from precision_align.recording.replicas import former_parameters

_UNKNOWN: Any = object()
# One before the call and one after it are ours.
_OWN_HOOKS = 2
# Modules of torch's own whose forward draws no random numbers: most of those that there are in a model.
_DETERMINATE = frozenset(
    getattr(torch.nn, name)
    for name in (
        *("Linear", "Bilinear", "Identity", "Embedding", "Flatten", "Conv1d", "Conv2d", "Conv3d"),
        *("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "MaxPool1d", "MaxPool2d", "AvgPool1d", "AvgPool2d"),
        *("AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm2d"),
        *("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "ReLU", "ReLU6", "LeakyReLU", "ELU", "GELU", "SiLU", "Mish"),
        *("Sigmoid", "Tanh", "Softplus", "Hardswish", "Softmax", "LogSoftmax", "CrossEntropyLoss", "MSELoss"),
    )
    if hasattr(torch.nn, name)  # RMSNorm came with torch 2.4
)


class Site:
    """One module under its scope; ``wanted``: whether its tensors are recorded; ``draws``: whether its class may draw
    random numbers.
    """

    __slots__ = ("_attributes", "_class", "_ids", "_kind", "_values", "draws", "module", "scope", "wanted")

    def __init__(self, module: torch.nn.Module, scope: str, wanted: bool) -> None:
        self.module, self.scope, self.wanted = module, scope, wanted
        self.draws = type(module) not in _DETERMINATE
        self._class: Optional[type] = None
        self._kind = ""
        self._attributes: Any = _UNKNOWN
        self._values: list[Any] = []
        self._ids: list[int] = []

    @property
    def kind(self) -> str:
        """The module's full class name."""
        if type(self.module) is not self._class:
            self._class, self._attributes = type(self.module), _UNKNOWN
            self._kind = class_name(self._class)
        return self._kind

    @property
    def is_stock(self) -> bool:
        """Whether no code but torch's own runs in its calls: that writes into tensors only where torch counts it."""
        module = self.module
        hooks = len(module._forward_hooks) + len(module._forward_pre_hooks)
        return hooks <= _OWN_HOOKS and type(module).__module__.startswith("torch.nn.modules.") and not module._modules

    @property
    def may_draw(self) -> bool:
        """Whether a call may have drawn random numbers; False only where no code but torch's own ran."""
        return self.draws or not self.is_stock

    @property
    def is_leaf(self) -> bool:
        """Whether it has no child modules."""
        children = self.module._modules
        return not children or next(self.module.children(), None) is None

    @property
    def attributes(self) -> Optional[Tree]:
        """Its plain attributes where it is one of torch's own, see ``plain_attributes``."""
        if not self.kind.startswith("torch.nn."):
            return None
        own = vars(self.module).values()
        if self._attributes is _UNKNOWN or list(map(id, own)) != self._ids:
            self._attributes = plain_attributes(self.module)
            self._values = list(own)  # kept, so that ids stay their own
            self._ids = list(map(id, own)) if is_settled(self.module) else []
        tree: Optional[Tree] = self._attributes
        return tree

    def own_parameters(self) -> Iterable[tuple[str, torch.Tensor]]:
        """The parameters that it holds itself, each once, by their names."""
        if type(self.module).named_parameters is not torch.nn.Module.named_parameters:
            return self.module.named_parameters(recurse=False)
        return _name_once(self.module._parameters or former_parameters(self.module))

    def own_buffers(self) -> Iterable[tuple[str, torch.Tensor]]:
        """The buffers that it holds itself, each once, by their names."""
        buffers = self.module._buffers
        return _name_once(buffers) if buffers else ()


def _name_once(tensors: Any) -> Iterable[tuple[str, torch.Tensor]]:
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if tensor is not None:
            found.setdefault(id(tensor), (name, tensor))
    return found.values()
