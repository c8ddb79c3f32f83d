"""From a recorded divergence to a case folder and to a script of its own: the call, with the tensors it was given.

Only plain arguments, stock torch.nn modules and aten operators can be written down; another module needs a factory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from precision_align.core.errors import UsageError
from precision_align.core.records import OPERATOR_SCOPE, Call, TensorRecord
from precision_align.core.terms import Role, Source
from precision_align.core.trees import Tree
from precision_align.library.adding import NewRow, add_row
from precision_align.library.rows import RowKind
from precision_align.workflows.scripts import render_case, render_script

if TYPE_CHECKING:
    from precision_align.storage.base import Dump

TENSORS = "tensors.npz"
_BY_WORD = {"<u2": "<i2", "<u4": "<i4", "<u8": "<i8"}  # words that torch.from_numpy takes; bits stay


@dataclass(frozen=True)
class Extract:
    """What a script needs of one call.

    ``positional``, ``named``: the arguments as Python, with ``take("args.0")`` for tensors; ``module``: Python that
    builds the module, "" for an operator; ``imports``: a line it needs; ``tensors``: name -> record; ``parameters``:
    names of its own parameters and buffers; ``leaves``: names that are differentiated by; ``target``: the tensor that
    diverged, by name; ``result``: how it is reached, "output" or the leaf's name; ``index``: place in a result of
    several.
    """

    kind: str
    where: str
    device: str
    positional: tuple[str, ...]
    named: Mapping[str, str]
    module: str
    imports: str
    tensors: Mapping[str, TensorRecord]
    parameters: tuple[str, ...]
    leaves: tuple[str, ...]
    target: str
    result: str
    index: tuple[str, ...]


def extract_case(
    dump: Dump, record: TensorRecord, folder: str | Path, name: str, *, module: str | None = None
) -> tuple[Path, Path]:
    """Write ``folder/op_cases/<name>/`` (cases, row, tensors) and ``reproduce.py`` in it: (script, cases.py).

    ``module``: "package.module:factory" for a module that is no stock one. Raises UsageError where the call cannot be
    written down, or the place is taken.
    """
    if not name.isidentifier():
        raise UsageError(f"{name!r} cannot name a case folder: use letters, digits and '_', as in layer3_norm")
    place = Path(folder) / "op_cases" / name
    if place.exists():
        raise UsageError(f"{place} exists already: give another --name, or another --output")
    found = describe_call(dump, record, module)
    arrays, dtypes = _collect_arrays(dump, found)
    try:
        place.mkdir(parents=True)
        with (place / TENSORS).open("wb") as stream:
            np.savez_compressed(stream, dtypes=np.frombuffer(json.dumps(dtypes).encode(), np.uint8), **arrays)
        (place / "reproduce.py").write_text(render_script(found), encoding="utf-8")
        (place / "cases.py").write_text(render_case(found, name), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {place}: {error}") from error
    where = f"recorded by capture: {record.key}"
    add_row(Path(folder), NewRow(name, [found.kind], RowKind.COMPOSED, where=where, cases=("*",)))
    return place / "reproduce.py", place / "cases.py"


def describe_call(dump: Dump, record: TensorRecord, module: str | None = None) -> Extract:
    """Raises UsageError for a record that no call explains, or whose call cannot be written as Python."""
    call = _find_call(dump, record)
    is_operator = call.scope.startswith(OPERATOR_SCOPE)
    records = list(_list_records(dump, record, call))
    tensors = {_name(r): r for r in records}
    parameters = () if is_operator else tuple(_list_parameters(dump, record, tensors))
    imports, built = ("", "") if is_operator else _build(call, parameters, module)
    positional, named = _render_arguments(call.arguments)
    key = record.key
    target, result, index = _find_target(tensors, record)
    leaves = tuple(n for n, r in tensors.items() if _is_leaf(n, r)) if result != "output" else ()
    where = f"{key.scope or 'the root'}, step {key.step}, rank {key.rank}, call {key.call}, {key.phase}"
    device = dump.infos[0].device
    return Extract(
        call.kind, where, device, positional, named, built, imports, tensors, parameters, leaves, target, result, index
    )


def _find_call(dump: Dump, record: TensorRecord) -> Call:
    key = record.key
    scope = f"{OPERATOR_SCOPE}{key.scope}" if key.source == Source.ATEN else key.scope
    if key.source not in (Source.ATEN, Source.MODULE):
        raise UsageError(f"{key} belongs to no call: name a tensor of a module or of an operator")
    same = [
        call
        for call in dump.calls
        if (call.step, call.micro, call.rank, call.scope, call.pass_)
        == (key.step, key.micro, key.rank, scope, key.pass_)
    ]
    if key.source == Source.ATEN:
        same = [call for call in same if call.kind == key.op and call.enter <= record.order <= call.exit]
    else:
        same = [call for call in same if call.call == key.call]
    if not same:
        raise UsageError(f"{key}: its call was not recorded, so that its arguments are not known")
    return same[0]


def _list_records(dump: Dump, record: TensorRecord, call: Call) -> Iterator[TensorRecord]:
    """The tensors of the same call, those that carry data."""
    key = record.key
    for other in dump.records:
        mine = other.key
        if (mine.step, mine.micro, mine.rank, mine.source, mine.scope, mine.pass_) != (
            key.step, key.micro, key.rank, key.source, key.scope, key.pass_,
        ):  # fmt: skip
            continue
        if mine.source == Source.ATEN:
            if mine.op == key.op and call.enter <= other.order <= call.exit:
                yield other
        elif mine.call == key.call:
            yield other


def _list_parameters(dump: Dump, record: TensorRecord, tensors: dict[str, TensorRecord]) -> Iterator[str]:
    """Names of the module's own parameters and buffers of that step; their records are added to ``tensors``."""
    key = record.key
    for other in dump.records:
        mine = other.key
        if mine.role in (Role.PARAMETER, Role.BUFFER) and (mine.step, mine.rank, mine.scope) == (
            key.step, key.rank, key.scope,
        ):  # fmt: skip
            name = f"parameter.{mine.path}"
            if name not in tensors:
                tensors[name] = other
                yield mine.path


def _name(record: TensorRecord) -> str:
    """ "args.0", "output", "output.1", "gradient.output", "gradient.input.args.0", "parameter.weight"."""
    key = record.key
    prefix = {Role.OUTPUT: "output", Role.GRADIENT: "gradient", Role.BUFFER: "parameter", Role.PARAMETER: "parameter"}
    parts = (prefix.get(key.role, ""), key.path)
    return ".".join(part for part in parts if part)


def _find_target(tensors: Mapping[str, TensorRecord], record: TensorRecord) -> tuple[str, str, tuple[str, ...]]:
    """The tensor to look at, how it is reached, and its place in a result of several."""
    name = _name(record)
    if record.key.role == Role.GRADIENT and name.startswith("gradient.input."):
        return name, name.removeprefix("gradient.input."), ()
    if record.key.role == Role.GRADIENT and name.startswith("gradient.parameter."):
        return name, name.removeprefix("gradient."), ()
    outputs = [other for other in tensors if other.split(".")[0] == "output"]
    chosen = name if name in outputs else next(iter(outputs), "")
    if not chosen:
        raise UsageError(f"{record.key}: the call has no recorded output to compare with")
    return chosen, "output", tuple(chosen.split(".")[1:])


def _is_leaf(name: str, record: TensorRecord) -> bool:
    return name.split(".")[0] in ("args", "kwargs", "parameter") and "float" in record.dtype


def _build(call: Call, parameters: Sequence[str], module: str | None) -> tuple[str, str]:
    """(a line of import, an expression that builds the module)."""
    if module:
        package, _, factory = module.partition(":")
        if not factory:
            raise UsageError(f"--module is {module!r}, must be of the form package.module:factory")
        return f"from {package} import {factory}", f"{factory}().train({call.training})"
    if call.attributes is None:
        raise UsageError(
            f"{call.scope or 'the root'} is {call.kind}, no stock module of torch.nn: name a function that builds it "
            "with --module package.module:factory, or extract one of its parts"
        )
    from precision_align.replay.models import list_constructor_arguments

    values = {key["value"]: item for key, item in zip(call.attributes["keys"], call.attributes["items"])}
    names = list_constructor_arguments(call.kind)
    given = {name: _render(values[name]) for name in names if name in values}
    if "bias" in names and "bias" not in given:
        given["bias"] = str(any(name.rpartition(".")[2].startswith("bias") for name in parameters))
    arguments = ", ".join(f"{name}={text}" for name, text in given.items())
    name = re.sub(r"^torch\.nn\.modules\.[a-z_]+\.", "torch.nn.", call.kind)
    return "", f"{name}({arguments}).train({call.training})"


def _render_arguments(tree: Tree) -> tuple[tuple[str, ...], dict[str, str]]:
    parts = dict(zip((key["value"] for key in tree["keys"]), tree["items"]))
    names = [key["value"] for key in parts["kwargs"]["keys"]]
    named = {name: _render(item) for name, item in zip(names, parts["kwargs"]["items"])}
    return tuple(_render(item) for item in parts["args"]["items"]), named


def _render(tree: Tree) -> str:
    """A recorded argument as Python. Raises UsageError for what has no such form."""
    kind = tree["kind"]
    if kind == "tensor":
        return f'take("{tree["path"]}")'
    if kind in ("scalar", "float"):
        value = tree["value"]
        return f'float("{value}")' if kind == "float" and isinstance(value, str) else repr(value)
    if kind in ("list", "tuple", "torch.Size"):
        items = [_render(item) for item in tree["items"]] if "items" in tree else [repr(v) for v in tree["value"]]
        inner = ", ".join(items)
        return f"[{inner}]" if kind == "list" else f"({inner}{',' if len(items) == 1 else ''})"
    if kind == "dict":
        keys = [_render(key) for key in tree["keys"]]
        return "{" + ", ".join(f"{k}: {_render(v)}" for k, v in zip(keys, tree["items"])) + "}"
    if kind in ("torch.dtype", "torch.memory_format", "torch.layout"):
        return str(tree["value"]) if str(tree["value"]).startswith("torch.") else f"torch.{tree['value']}"
    if kind == "torch.device":
        return "where"
    raise UsageError(f"an argument of the call is a {tree.get('class', kind)}, which cannot be written down as Python")


def _collect_arrays(dump: Dump, found: Extract) -> tuple[dict[str, Any], dict[str, str]]:
    """Words and dtypes of what the script loads. Raises UsageError where one was not stored in full."""
    backward = found.result != "output"
    arrays, dtypes = {}, {}
    for name, record in found.tensors.items():
        if name.startswith("gradient.") and not backward:
            continue
        try:
            words = dump.payload(record.key)
        except KeyError as error:
            if name.split(".")[0] in ("args", "kwargs", "parameter") or name == found.target:
                raise UsageError(
                    f"{record.key} was not stored in full (tier {record.tier}): capture it with payload full, "
                    f"--select '{record.key.scope}'"
                ) from error
            continue
        carrier = _BY_WORD.get(np.dtype(words.dtype).str)
        plain = np.ascontiguousarray(words)
        arrays[name] = (plain.view(carrier) if carrier else plain).reshape(record.shape)
        dtypes[name] = record.dtype
    return arrays, dtypes
