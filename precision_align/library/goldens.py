"""Recorded golden tensors: what a CUDA machine computed, to be held against an NPU where there is no CUDA.

``record_goldens`` runs on the machine of the reference; each case becomes one .npz file (inputs, cotangents, float64
golden, the results of that machine and of the conforming builds, the condition scale) with its SHA-256, seed and
versions in ``manifest.json``. ``check_goldens`` needs only those files and the operator's cases.py: no golden function
is computed again, and inputs do not depend on this torch's random generator. Part of the live half.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from precision_align.core.errors import UsageError
from precision_align.library.cases import Compute, OpCase, Operator
from precision_align.library.evidence import digest_operator
from precision_align.library.folders import Folders, PathLike
from precision_align.library.references import Evaluation, References, evaluate, place
from precision_align.library.results import GOOD, CaseReport, CaseResult
from precision_align.library.trials import try_replacement
from precision_align.library.values import Store, decode, encode

if TYPE_CHECKING:
    from precision_align.devices.base import Device

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Recording:
    """What ``record_goldens`` did: names of files written, and why others were not."""

    written: tuple[str, ...]
    refused: tuple[str, ...]


@dataclass(frozen=True)
class GoldenCheck:
    """``report``: verdicts on the files that could be used; ``problems``: damaged, strange or outdated files."""

    report: CaseReport
    problems: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Every file was sound and every result good."""
        return self.report.passed and not self.problems


def record_goldens(
    folder: PathLike,
    chosen: Sequence[tuple[Operator, Sequence[OpCase]]],
    folders: Folders,
    device: Device,
    *,
    replacement: str | None = None,
    seed: int = 0,
) -> Recording:
    """Compute on ``device`` and write; a result that is itself wrong by the operator's rule is not recorded.

    Raises UsageError where nothing can be written.
    """
    from precision_align.library.runner import choose_replacement

    root = Path(folder)
    manifest = _read_manifest(root) if (root / MANIFEST).exists() else {}
    written, refused = [], []
    for operator, cases in chosen:
        name, compute = choose_replacement(operator, replacement, device)
        about = {
            "op": operator.name,
            "seed": seed,
            "device": device.name,
            "replacement": name,
            "versions": {key: str(value) for key, value in device.versions().items()},
            "digest": digest_operator(folders, operator.name),
        }
        for case, dtype in _list_pairs(cases):
            file = f"{operator.name}/{case.id}-{dtype}.npz"
            try:
                content = _record_one(operator, case, dtype, compute, device, seed)
            except (ValueError, RuntimeError, TypeError) as error:
                refused.append(f"{file}: {error}")
                continue
            _write(root / file, content)
            manifest[file] = {**about, "case": case.id, "dtype": dtype, "sha256": _hash(root / file)}
            written.append(file)
    _write_manifest(root, manifest)
    return Recording(tuple(written), tuple(refused))


def _list_pairs(cases: Sequence[OpCase]) -> Iterator[tuple[OpCase, str]]:
    """A case that must be refused has no result to record."""
    return ((case, dtype) for case in cases if not case.raises for dtype in case.dtypes)


def _record_one(
    operator: Operator, case: OpCase, dtype: str, compute: Compute, device: Device, seed: int
) -> dict[str, Any]:
    import torch

    from precision_align.library.cases import settle
    from precision_align.library.references import prepare_references

    references = prepare_references(operator, case, dtype, seed, True)
    where = torch.device(device.kind)
    results = try_replacement(operator, case, references, compute, where)
    wrong = [result for result in results if result.status not in GOOD]
    if wrong:
        raise ValueError(f"the result of {device.name} itself is wrong: {wrong[0].tensor}: {wrong[0].note}")
    inputs = place(references.inputs, where, case.layouts)
    cotangents = place(references.cotangents, where, {})
    mine = evaluate(settle(operator, compute), inputs, references.wrt, cotangents)
    store = Store()
    tree = {
        "inputs": encode(references.inputs, store),
        "wrt": list(references.wrt),
        "cotangents": encode(dict(references.cotangents), store),
        "golden": _encode_evaluation(references.golden, store),
        "natives": [_encode_evaluation(native, store) for native in (mine, *references.natives)],
        "scales": {name: store.add(array) for name, array in references.scales.items()},
        "options": {name: [store.add(array) for array in arrays] for name, arrays in references.options.items()},
    }
    return {**store.arrays, "tree": np.frombuffer(json.dumps(tree).encode(), np.uint8)}


def _encode_evaluation(evaluation: Evaluation, store: Store) -> Any:
    return [encode(dict(evaluation.outputs), store), encode(dict(evaluation.gradients), store)]


def _decode_evaluation(tree: Any, arrays: Mapping[str, Any]) -> Evaluation:
    return Evaluation(decode(tree[0], arrays), decode(tree[1], arrays))


def _write(path: Path, content: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            np.savez_compressed(stream, **content)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error}") from error


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _read_manifest(root: Path) -> dict[str, Any]:
    path = root / MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema_version"] != SCHEMA_VERSION:
            raise UsageError(f"{path} has schema_version {document['schema_version']}: record it again, or upgrade")
        return dict(document["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"no recorded goldens at {root} ({error!r}): golden update records them") from error


def _write_manifest(root: Path, files: Mapping[str, Any]) -> None:
    document = {"schema_version": SCHEMA_VERSION, "files": {name: files[name] for name in sorted(files)}}
    try:
        root.mkdir(parents=True, exist_ok=True)
        (root / MANIFEST).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {root / MANIFEST}: {error}") from error


def check_goldens(
    folder: PathLike,
    chosen: Sequence[tuple[Operator, Sequence[OpCase]]],
    folders: Folders,
    device: Device,
    *,
    replacement: Any = None,
) -> GoldenCheck:
    """Hold ``device`` against the recorded files of the chosen cases. Raises UsageError where there is none."""
    root = Path(folder)
    manifest = _read_manifest(root)
    known = {(operator.name, case.id): (operator, case) for operator, cases in chosen for case in cases}
    problems = [f"{name}: is not in {MANIFEST}" for name in _list_files(root) if name not in manifest]
    results: list[CaseResult] = []
    for name, entry in manifest.items():
        pair = known.get((entry["op"], entry["case"]))
        if pair is None:
            continue
        problem = _find_problem(root / name, entry, folders)
        if problem:
            problems.append(f"{name}: {problem}")
        else:
            results += _check_one(root / name, entry, *pair, device, replacement)
    if not results and not problems:
        raise UsageError(f"{root} holds no recorded case of those selected: golden update records them")
    report = CaseReport(results, f"goldens of {root}", device.describe(), 0)
    return GoldenCheck(report, tuple(problems))


def _list_files(root: Path) -> list[str]:
    return sorted(file.relative_to(root).as_posix() for file in root.glob("*/*.npz"))


def _find_problem(path: Path, entry: Mapping[str, Any], folders: Folders) -> str:
    if not path.is_file():
        return f"is missing: {MANIFEST} names it"
    if _hash(path) != entry["sha256"]:
        return "its SHA-256 is not the recorded one: the file was damaged or edited"
    if digest_operator(folders, entry["op"]) != entry["digest"]:
        return "is older than the operator's last change: record it again with golden update"
    return ""


def _check_one(
    path: Path, entry: Mapping[str, Any], operator: Operator, case: OpCase, device: Device, replacement: Any
) -> list[CaseResult]:
    import torch

    from precision_align.library.runner import choose_replacement, prepare_device

    name, compute = choose_replacement(operator, replacement, device)
    name = prepare_device(device, name)
    references = _load(path)
    versions = {key: str(value) for key, value in device.versions().items()}
    return [
        replace(result, dtype=entry["dtype"], device=device.name, replacement=name, versions=versions)
        for result in try_replacement(operator, case, references, compute, torch.device(device.kind))
    ]


def _load(path: Path) -> References:
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    tree = json.loads(arrays.pop("tree").tobytes())
    return References(
        decode(tree["inputs"], arrays),
        tuple(tree["wrt"]),
        decode(tree["cotangents"], arrays),
        _decode_evaluation(tree["golden"], arrays),
        [_decode_evaluation(native, arrays) for native in tree["natives"]],
        {name: arrays[key] for name, key in tree["scales"].items()},
        {name: [arrays[key] for key in keys] for name, keys in tree["options"].items()},
    )
