"""The texts that an extracted call becomes: a script of its own, and a cases.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precision_align.workflows.extracting import Extract

_SCRIPT = '''"""{kind} of {where}; recorded on {device}. Run: python reproduce.py [cpu|cuda|npu]"""
import json
import sys
from pathlib import Path

import numpy as np
import torch
{imports}
device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
if device.startswith("npu"):
    import torch_npu
file = np.load(Path(__file__).with_name("tensors.npz"))
dtypes = json.loads(file["dtypes"].tobytes())


def load(name, where="cpu", wide=False):
    words, dtype = torch.from_numpy(file[name]), getattr(torch, dtypes[name])
    tensor = words if words.dtype == dtype else words.view(dtype)
    return (tensor.double() if wide and tensor.is_floating_point() else tensor).to(where)


def run(where, wide):
    leaves = {{}}
    def take(name):
        return leaves.setdefault(name, load(name, where, wide).requires_grad_(name in {leaves}))
{body}
    return {answer}


golden = run("cpu", True)
for title, got in (("recorded", load("{target}")), (device, run(device, False))):
    error = (got.detach().cpu().double() - golden).abs().max().item()
    print(f"{{title}}: largest error against float64 {{error:.3e}}, largest value {{golden.abs().max().item():.3e}}")
'''

_CASE = '''"""{kind} of {where}, with the tensors recorded on {device}: written by case extract."""

import json
from pathlib import Path

import numpy as np
import torch
{imports}
from precision_align.library.cases import OpCase, Operator

FILE = np.load(Path(__file__).with_name("tensors.npz"))
DTYPES = json.loads(FILE["dtypes"].tobytes())
NAMES = {names}
FLOATS = [name for name in NAMES if getattr(torch, DTYPES[name]).is_floating_point]


def make(seed):
    inputs = {{}}
    for name in NAMES:
        words, dtype = torch.from_numpy(FILE[name].copy()), getattr(torch, DTYPES[name])
        tensor = words if words.dtype == dtype else words.view(dtype)
        inputs[name.replace(".", "_")] = tensor.float() if tensor.is_floating_point() else tensor
    return inputs


def compute(**inputs):
    def take(name):
        return inputs[name.replace(".", "_")]

{body}
    return {answer}


MAIN = DTYPES[FLOATS[0]] if FLOATS else "float32"
WIDE = tuple(name.replace(".", "_") for name in FLOATS if DTYPES[name] == "float32")
OPERATOR = Operator(
    {name!r},
    [OpCase("recorded", make, dtypes=(MAIN,), float32=WIDE, wrt={wrt}, why={why!r})],
    natives=[compute],
    golden=compute,
    replacements={{"torch": compute}},
)
'''


def render_script(found: Extract) -> str:
    """At most 40 lines that need torch and NumPy alone: float64 on the CPU, the recorded tensor and a new run."""
    return _SCRIPT.format(
        kind=found.kind,
        where=found.where,
        device=found.device,
        imports=f"{found.imports}\n" if found.imports else "",
        leaves=repr(found.leaves),
        body=_render_body(found, "    ", script=True),
        answer=_render_answer(found),
        target=found.target,
    )


def render_case(found: Extract, name: str) -> str:
    """The cases.py of a folder ``name``: one case, which any replacement that takes its keywords can be run on."""
    names = [n for n in found.tensors if n.split(".")[0] in ("args", "kwargs", "parameter")]
    floating = [n.replace(".", "_") for n in names if "float" in found.tensors[n].dtype]
    return _CASE.format(
        kind=found.kind,
        where=found.where,
        device=found.device,
        imports=f"{found.imports}\n" if found.imports else "",
        names=repr(names),
        body=_render_body(found, "    ", script=False),
        answer=f"result{_index(found.index)}",
        name=name,
        wrt=repr(tuple(floating)) if found.leaves else "()",
        why=f"{found.where} was extracted from a run on {found.device}",
    )


def _render_body(found: Extract, indent: str, *, script: bool) -> str:
    lines = []
    if found.module:
        lines.append(f"module = {found.module}")
        if script:
            lines.append("module = (module.double() if wide else module).to(where)")
        given = ", ".join(f'"{name}": take("parameter.{name}")' for name in found.parameters)
        call = f"torch.func.functional_call(module, {{{given}}}, ({_list(found.positional)}), {_table(found.named)})"
    else:
        named = [f"{name}={text}" for name, text in found.named.items()]
        call = f"torch.ops.{found.kind}({', '.join([*found.positional, *named])})"
    lines.append(f"result = {call}")
    return "\n".join(indent + line for line in lines)


def _list(texts: tuple[str, ...]) -> str:
    return ", ".join(texts) + ("," if len(texts) == 1 else "")


def _table(texts: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": {text}' for name, text in texts.items()) + "}"


def _render_answer(found: Extract) -> str:
    if found.result == "output":
        return f"result{_index(found.index)}"
    pulled = [name for name in found.tensors if name.startswith("gradient.output")]
    outputs = ", ".join(f"result{_index(tuple(name.split('.')[2:]))}" for name in pulled)
    cotangents = ", ".join(f'load("{name}", where, wide)' for name in pulled)
    return f'torch.autograd.grad([{outputs}], [leaves["{found.result}"]], [{cotangents}])[0]'


def _index(parts: tuple[str, ...]) -> str:
    return "".join(f"[{part}]" if part.isdigit() else f'["{part}"]' for part in parts)
