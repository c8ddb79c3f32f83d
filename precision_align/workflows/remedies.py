"""The code to put into a training script in the place of swaps: plain torch, but for composed functions."""

from __future__ import annotations

from collections.abc import Sequence

_HEAD = '''"""Call cure(model) once: when the model is on its device, before it is wrapped, compiled or trained.

Found by precision-align bisect. {text}
"""

import torch


def convert(value, change):
    """The same structure with its tensors changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {{key: convert(item, change) for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        items = [convert(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def to_float32(tensor):
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def to_cpu(tensor):
    return to_float32(tensor.cpu())


class Holder(torch.nn.Module):
    def __init__(self, part, compute):
        super().__init__()
        self.part, self.compute = part, compute

    def forward(self, *args, **kwargs):
        return self.compute(*args, **kwargs)


def elsewhere(compute, change, module=None):
    """``compute`` (a module's forward, a function) on changed inputs and parameters, out of autocast, and back."""

    def call(*args, **kwargs):
        given = []
        convert((args, kwargs), given.append)
        own = {{}} if module is None else dict([*module.named_parameters(), *module.named_buffers()])
        device = next((t.device for t in [*given, *own.values()] if t.device.type != "cpu"), torch.device("cpu"))
        dtype = next((t.dtype for t in given if t.is_floating_point()), None)
        args, kwargs = convert((args, kwargs), change)
        with torch.autocast(device.type, enabled=False):
            if module is None:
                result = compute(*args, **kwargs)
            else:
                state = {{f"part.{{name}}": change(tensor) for name, tensor in own.items()}}
                result = torch.func.functional_call(Holder(module, compute), state, args, kwargs)
                with torch.no_grad():
                    for name, buffer in module.named_buffers():
                        buffer.copy_(state[f"part.{{name}}"])
        return convert(result, lambda t: t.to(device, dtype if t.is_floating_point() else t.dtype))

    return call


def cure(model):
'''
_CHANGE = {"cpu": "to_cpu", "fp32": "to_float32"}


def write_remedy(swaps: Sequence[str], text: str) -> str:
    """Python source with a function ``cure(model)`` for swaps that cure."""
    body = [line for swap in swaps for line in _treat(*swap.rpartition("=")[::2])]
    return _HEAD.format(text=text) + "\n".join(f"    {line}" for line in body) + "\n"


def _treat(name: str, kind: str) -> list[str]:
    if name.startswith("aten."):
        return _treat_operator(name, kind)
    if kind == "composed":
        return _compose(name)
    if name.startswith("torch."):
        return [f"{name} = elsewhere({name}, {_CHANGE[kind]})"]
    return [f"part = model.get_submodule({name!r})", f"part.forward = elsewhere(part.forward, {_CHANGE[kind]}, part)"]


def _compose(name: str) -> list[str]:
    load = "from precision_align.library.composed import list_composed"
    if name.startswith("torch."):
        return [load, f"{name} = list_composed()[{name!r}]"]
    return [
        load,
        f"# every function that the module {name} calls and that is in list_composed(): replace its call there by",
        "# list_composed()[NAME](the same arguments)",
        "raise NotImplementedError('replace the calls as the comment above says')",
    ]


def _treat_operator(name: str, kind: str) -> list[str]:
    """An operator has no place in Python that could be replaced: its kernel is."""
    base = name.removeprefix("aten.").removesuffix(".default")
    if kind == "cpu":
        compute = f"elsewhere(torch.ops.{name}, torch.Tensor.cpu)"
    elif kind == "composed":
        compute = f"torch._decomp.decomposition_table[torch.ops.{name}]"
    else:
        return [f"# call what runs {name} with torch.autocast(DEVICE, enabled=False) and float32 inputs",
                "raise NotImplementedError('see the comment above')"]  # fmt: skip
    return [
        'cure.library = torch.library.Library("aten", "IMPL")  # for CUDA: "CUDA" instead of "PrivateUse1"',
        f'cure.library.impl({base!r}, {compute}, "PrivateUse1")',
    ]
