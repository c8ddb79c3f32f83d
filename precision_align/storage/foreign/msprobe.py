"""Dumps of msprobe (mindstudio-probe): ``step{N}/rank{R} or proc{PID}/dump.json`` with ``dump_tensor_data/*.pt``.

Names such as ``Module.blocks.0.attn.Attention.forward.0`` become the call of a module; ``Functional.linear.3.forward``
a function's. msprobe does not record the module that it was given, only its children, and calls a backward's incoming
gradients its input.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Callable

from precision_align.core.errors import DumpDamaged
from precision_align.core.keys import Key
from precision_align.core.records import Call, RunInfo, Statistics
from precision_align.core.terms import Pass, Phase, Role, Source
from precision_align.core.trees import Tree, join
from precision_align.storage.foreign.arrays import list_npy
from precision_align.storage.foreign.dumps import ForeignDump
from precision_align.storage.foreign.items import Item, Tensor, Unreadable
from precision_align.storage.foreign.pickles import list_pickle

INDEX = "dump.json"
_STEP = re.compile(r"step(\d+)")
_RANK = re.compile(r"(?:rank|proc)(\d*)")
_MODULE = re.compile(
    r"(?:Module|Cell)\.(?:(?P<scope>.+)\.)?(?P<kind>[^.]+)\.(?P<what>forward|backward|parameters_grad)\.(?P<call>\d+)"
)
_FUNCTION = re.compile(r"(?P<op>.+)\.(?P<call>\d+)\.(?P<what>forward|backward)")


@dataclass(frozen=True)
class _Place:
    """One dump.json: which step and rank it is of."""

    folder: Path
    step: int
    rank: int


def find_places(folder: Path) -> list[_Place]:
    """The dump.json files of a dump's folder, one of its steps, or one rank of that; none where it is no dump."""
    if (folder / INDEX).is_file():
        return [_Place(folder, _number(_STEP, folder.parent.name), _number(_RANK, folder.name, ranks=True))]
    ranks = sorted(child for child in folder.iterdir() if child.is_dir() and _RANK.fullmatch(child.name))
    if any((rank / INDEX).is_file() for rank in ranks):
        step = _number(_STEP, folder.name)
        return [
            _Place(rank, step, _number(_RANK, rank.name, ranks=True) if rank.name.startswith("rank") else number)
            for number, rank in enumerate(ranks)
            if (rank / INDEX).is_file()
        ]
    steps = sorted(child for child in folder.iterdir() if child.is_dir() and _STEP.fullmatch(child.name))
    return [place for step in steps for place in find_places(step)]


def _number(expression: re.Pattern[str], name: str, *, ranks: bool = False) -> int:
    found = expression.fullmatch(name)
    if found is None or not found[1] or (ranks and not name.startswith("rank")):
        return 0  # a process that was no rank of a distributed run
    return int(found[1])


def open_msprobe(folder: Path, places: Sequence[_Place]) -> ForeignDump:
    """The dump behind places that :func:`find_places` found. Raises DumpDamaged."""
    items: list[Item] = []
    calls: list[Call] = []
    notes: list[str] = []
    modules: dict[str, str] = {}
    levels: dict[str, str] = {}
    for place in places:
        reader = _Reader(place)
        items += reader.items
        calls += reader.calls
        notes += reader.notes
        modules.update(reader.modules)
        levels.update(reader.settings)
    world = max(place.rank for place in places) + 1
    infos = [
        RunInfo(f"msprobe {folder.name}", "", rank, world, "", capture={"msprobe": levels}, modules=modules)
        for rank in sorted({place.rank for place in places})
    ]
    notes.append(f"{folder} is a dump of msprobe: it has no root module, no training flags, no buffers and no loss")
    return ForeignDump(infos, items, calls, list(dict.fromkeys(notes)))


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DumpDamaged(f"{path} cannot be read: {error}; dump it again") from error
    if not isinstance(content, dict):
        raise DumpDamaged(f"{path} is no dump of msprobe: it holds no JSON object")
    return content


class _Reader:
    """Everything of one dump.json."""

    def __init__(self, place: _Place) -> None:
        self._place = place
        content = _read_json(place.folder / INDEX)
        data = content.get("data")
        if not isinstance(data, dict):
            raise DumpDamaged(f"{place.folder / INDEX} is no dump of msprobe: it has no `data`")
        self.settings = {name: str(content[name]) for name in ("task", "level", "framework") if name in content}
        self.items: list[Item] = []
        self.notes: list[str] = []
        self.modules: dict[str, str] = {}
        self._trees: dict[str, tuple[Tree, Tree]] = {}
        self._data = {str(name): entry for name, entry in data.items() if isinstance(entry, dict)}
        self._parents = self._read_parents()
        self._spans = self._order()
        for name, entry in self._data.items():
            self._read_entry(name, entry)
        self.calls = list(self._make_calls())

    def _read_parents(self) -> dict[str, str]:
        path = self._place.folder / "construct.json"
        if not path.is_file():
            return {}
        found = _read_json(path)
        return {child: parent for child, parent in found.items() if isinstance(parent, str) and parent in self._data}

    def _order(self) -> dict[str, tuple[int, int]]:
        """Sequence numbers of entry and exit. The file lists calls as they end; what they called lies between."""
        children: dict[str, list[str]] = {}
        for name in self._data:
            children.setdefault(self._parents.get(name, ""), []).append(name)
        spans: dict[str, tuple[int, int]] = {}
        counter = 0
        waiting = [(name, False) for name in reversed(children.get("", []))]
        entered: dict[str, int] = {}
        while waiting:
            name, done = waiting.pop()
            counter += 1
            if done:
                spans[name] = (entered[name], counter)
                continue
            entered[name] = counter
            waiting.append((name, True))
            waiting += [(child, False) for child in reversed(children.get(name, [])) if child not in entered]
        for name in self._data:  # callers that call themselves, in a file that makes no sense
            spans.setdefault(name, (counter + 1, counter + 2))
        return spans

    def _read_entry(self, name: str, entry: Mapping[str, Any]) -> None:
        module, function = _MODULE.fullmatch(name), _FUNCTION.fullmatch(name)
        if module is not None:
            scope = module["scope"] or ""
            self._read_module(name, entry, scope, int(module["call"]), module["what"])
            self.modules.setdefault(scope, module["kind"])
        elif function is not None:
            self._read_values(
                name, entry, self._key(Source.FUNCTION, "", int(function["call"]), function["op"]), function["what"]
            )
        else:
            self.notes.append(f"{name}: a name of an unknown form, not shown")

    def _key(self, source: Source, scope: str, call: int, op: str = "") -> Key:
        place = self._place
        return Key(place.step, 0, place.rank, source, scope, call, Pass.FIRST, op, 0, Phase.FORWARD, Role.INPUT, "")

    def _read_module(self, name: str, entry: Mapping[str, Any], scope: str, call: int, what: str) -> None:
        if what != "parameters_grad":
            self._read_values(name, entry, self._key(Source.MODULE, scope, call), what)
            for local, value in _pairs(entry.get("parameters")):
                self._add(name, self._key(Source.PARAMETERS, scope, 0), Phase.FORWARD, Role.PARAMETER, local, value)
            return
        for local, values in _pairs(entry):
            for value in values if isinstance(values, list) else [values]:
                self._add(name, self._key(Source.PARAMETERS, scope, 0), Phase.BACKWARD, Role.GRADIENT, local, value)

    def _read_values(self, name: str, entry: Mapping[str, Any], key: Key, what: str) -> None:
        if what == "backward":
            for side, word in (("output", "input"), ("input.args", "output")):
                values = entry.get(word)
                for path, value in _walk(values, side, _is_single(values) and side == "output"):
                    self._add(name, key, Phase.BACKWARD, Role.GRADIENT, path, value)
            return
        arguments, output = (
            {"args": entry.get("input_args") or [], "kwargs": entry.get("input_kwargs") or {}},
            entry.get("output"),
        )
        for path, value in [*_walk(arguments["args"], "args"), *_walk(arguments["kwargs"], "kwargs")]:
            self._add(name, key, Phase.FORWARD, Role.INPUT, path, value)
        alone = _is_single(output)
        for path, value in _walk(output, "", alone):
            self._add(name, key, Phase.FORWARD, Role.OUTPUT, path, value)
        result = output[0] if alone and isinstance(output, list) else output
        self._trees[name] = (_tree(arguments, ""), _tree(result, ""))

    def _add(self, name: str, key: Key, phase: Phase, role: Role, path: str, value: Mapping[str, Any]) -> None:
        enter, leave = self._spans[name]
        full = Key(key.step, 0, key.rank, key.source, key.scope, key.call, key.pass_, key.op, 0, phase, role, path)
        data_name = value.get("data_name")
        load = _Loader(self._place.folder / "dump_tensor_data" / Path(str(data_name)).name) if data_name else None
        self.items.append(
            Item(
                full,
                enter if role is Role.INPUT else leave,
                load,
                None if load else _read_statistics(value),
                tuple(int(size) for size in value.get("shape") or ()),
                str(value.get("dtype", "")).replace("torch.", ""),
                bool(value.get("requires_grad", False)),
                "" if load else "only statistics were dumped",
            )
        )

    def _make_calls(self) -> Iterator[Call]:
        parents = set(self._parents.values())
        for name, (arguments, output) in self._trees.items():
            found = _MODULE.fullmatch(name)
            if found is None:
                continue
            enter, leave = self._spans[name]
            yield Call(
                step=self._place.step,
                micro=0,
                rank=self._place.rank,
                scope=found["scope"] or "",
                call=int(found["call"]),
                pass_=Pass.FIRST,
                kind=found["kind"],
                identity=enter,
                parent=self._spans[self._parents[name]][0] if name in self._parents else -1,
                enter=enter,
                exit=leave,
                leaf=name not in parents,
                training=True,
                grad_enabled=True,
                arguments=arguments,
                output=output,
            )


def _pairs(value: Any) -> list[tuple[str, Any]]:
    pairs = value.items() if isinstance(value, dict) else ()
    return [(str(name), item) for name, item in pairs if isinstance(item, (dict, list))]


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dict) and "shape" in value and "dtype" in value


def _is_single(values: Any) -> bool:
    """A module that returns a tensor is dumped as one that returns a tuple of one."""
    return isinstance(values, list) and len(values) == 1 and _is_tensor(values[0])


def _walk(value: Any, path: str, alone: bool = False) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All tensors with their paths."""
    if _is_tensor(value):
        yield path, value
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _walk(item, path if alone else join(path, number))
    elif isinstance(value, dict) and "type" not in value:
        for key, item in value.items():
            yield from _walk(item, join(path, key))


def _tree(value: Any, path: str) -> Tree:
    """The argument tree (:mod:`precision_align.core.trees`) of msprobe's JSON."""
    if _is_tensor(value):
        return {"kind": "tensor", "path": path}
    if isinstance(value, list):
        items = [_tree(item, join(path, number)) for number, item in enumerate(value)]
        return {"kind": "tuple", "class": "builtins.tuple", "items": items}
    if isinstance(value, dict) and "type" not in value:
        keys: list[Tree] = [{"kind": "scalar", "value": str(key)} for key in value]
        return {
            "kind": "dict",
            "class": "builtins.dict",
            "keys": keys,
            "items": [_tree(item, join(path, key)) for key, item in value.items()],
        }
    if isinstance(value, dict):
        return (
            {"kind": "scalar", "value": value.get("value")}
            if "value" in value
            else {"kind": "object", "class": str(value["type"])}
        )
    return {"kind": "scalar", "value": value}


def _read_statistics(value: Mapping[str, Any]) -> Statistics | None:
    """msprobe's Max, Min, Mean and Norm; it counts no NaN, infinities or zeros: those are taken as 0."""
    try:
        low, high, mean, norm = (float(value[name]) for name in ("Min", "Max", "Mean", "Norm"))
    except (KeyError, TypeError, ValueError):
        return None
    count = 1
    for size in value.get("shape") or ():
        count *= int(size)
    return Statistics(count, 0, 0, 0, 0, low, high, mean, abs(norm))


class _Loader:
    """The one tensor of a file; where in the file it lies is looked up once."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self) -> Tensor:
        return self._load()

    @cached_property
    def _load(self) -> Callable[[], Tensor]:
        if self._path.suffix == ".npy":  # of MindSpore
            return list_npy(self._path)[""]
        try:
            found = list_pickle(self._path)
        except DumpDamaged as error:
            raise Unreadable(str(error.args[0])) from error
        if len(found) != 1:
            raise Unreadable(f"{self._path.name} holds {len(found)} tensors, not one")
        return next(iter(found.values()))
