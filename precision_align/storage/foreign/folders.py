"""Plain files of tensors, alone or in folders, as a dump; a naming rule says what each tensor is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Callable

from precision_align.core.errors import DumpDamaged, DumpForeign
from precision_align.core.keys import Key
from precision_align.core.records import Call, RunInfo
from precision_align.core.terms import Phase, Role, Source
from precision_align.core.trees import Tree
from precision_align.storage.foreign.arrays import Loader, list_npy, list_npz, list_safetensors
from precision_align.storage.foreign.dumps import ForeignDump
from precision_align.storage.foreign.items import Item
from precision_align.storage.foreign.naming import Naming
from precision_align.storage.foreign.pickles import list_pickle

READERS: Mapping[str, Callable[[Path], Mapping[str, Loader]]] = {
    ".npy": list_npy,
    ".npz": list_npz,
    ".pt": list_pickle,
    ".pth": list_pickle,
    ".safetensors": list_safetensors,
}
_MAX_FILES = 1_000_000


def find_files(place: Path) -> list[Path]:
    """The files with tensors at a path, in order of their names."""
    if place.is_file():
        return [place] if place.suffix in READERS else []
    found = []
    for path in place.rglob("*"):
        if path.suffix in READERS and path.is_file():
            found.append(path)
            if len(found) > _MAX_FILES:
                raise DumpForeign(f"{place} holds more than {_MAX_FILES} files of tensors: name a smaller folder")
    return sorted(found)


def open_files(place: Path, files: list[Path], naming: Naming | None) -> ForeignDump:
    """The tensors of files as a dump.

    Without a rule a tensor of a .pt or safetensors file is a parameter (its dotted name is scope and local name), one
    of a .npy or .npz file an output of the scope that its name is. Raises DumpForeign where no name fits the rule,
    DumpDamaged where no file can be read.
    """
    items: list[Item] = []
    notes: list[str] = []
    unfit: list[str] = []
    for name, suffix, load in _list_all(place, files, notes):
        key = naming.read(name) if naming is not None else _guess(name, suffix)
        if key is None:
            unfit.append(name)
        else:
            items.append(Item(key, 3 * len(items) + 1, load))
    if not items and unfit:
        raise DumpForeign(
            f"no tensor in {place} fits the naming rule {naming.pattern if naming else ''!r}; the first is {unfit[0]!r}"
        )
    if not items and notes:
        kind = DumpDamaged if place.is_file() else DumpForeign
        raise kind(f"no tensor in {place} can be read; {notes[0]}")
    if unfit:
        notes.append(f"{len(unfit)} tensors do not fit the naming rule and are not shown, such as {unfit[0]!r}")
    notes.append(f"{place} holds tensors of another tool: calls, arguments and gradients are only as far as names tell")
    calls = _make_calls(items)
    ranks = sorted({item.key.rank for item in items}) or [0]
    modules = {item.key.scope: "" for item in items}
    infos = [RunInfo(f"files {place.name}", "", rank, ranks[-1] + 1, "", modules=modules) for rank in ranks]
    return ForeignDump(infos, items, calls, notes)


def _list_all(place: Path, files: list[Path], notes: list[str]) -> Iterator[tuple[str, str, Loader]]:
    for path in files:
        inside = path.relative_to(place).with_suffix("").as_posix() if path != place else path.stem
        try:
            found = READERS[path.suffix](path)
        except DumpDamaged as error:
            notes.append(str(error.args[0]))
            continue
        container = path.suffix != ".npy" and (len(found) != 1 or "" not in found)
        alone = len(files) == 1 and container
        for name, load in found.items():
            full = name if alone else f"{inside}/{name}" if container else inside
            yield full, path.suffix, load


def _guess(name: str, suffix: str) -> Key | None:
    if suffix in (".npy", ".npz"):
        return Naming().read(name)
    scope, _, local = name.replace("/", ".").rpartition(".")
    rule = Naming(
        defaults={"source": Source.PARAMETERS, "role": Role.PARAMETER, "scope": scope, "path": local}, pattern="*"
    )
    return rule.read(name)


def _make_calls(items: list[Item]) -> list[Call]:
    """A call for each module call that some tensor belongs to, in order of appearance and without callers."""
    groups: dict[tuple[int, int, int, str, int], list[Item]] = {}
    for item in items:
        key = item.key
        if key.source is Source.MODULE:
            groups.setdefault((key.rank, key.step, key.micro, key.scope, key.call), []).append(item)
    return [_make_call(number, group) for number, group in enumerate(groups.values())]


def _make_call(number: int, group: list[Item]) -> Call:
    key = group[0].key
    inputs = [item.key.path for item in group if item.key.role is Role.INPUT]
    outputs = [item.key.path for item in group if (item.key.role, item.key.phase) == (Role.OUTPUT, Phase.FORWARD)]
    return Call(
        step=key.step,
        micro=key.micro,
        rank=key.rank,
        scope=key.scope,
        call=key.call,
        pass_=key.pass_,
        kind=key.op,
        identity=number,
        parent=-1,
        enter=group[0].order - 1,
        exit=group[-1].order + 1,
        leaf=True,
        training=True,
        grad_enabled=True,
        arguments=_tuple_of(inputs),
        output={"kind": "tensor", "path": ""} if outputs == [""] else _tuple_of(outputs),
    )


def _tuple_of(paths: list[str]) -> Tree:
    items: list[Tree] = [{"kind": "tensor", "path": path} for path in paths]
    return {"kind": "tuple", "class": "builtins.tuple", "items": items}
