"""The evidence store: what a run of cases showed, with versions, so that a row can say when and where it was proved.

One JSON file that people may read and merge: an entry for each (operator, device, replacement), replaced by the next
run of the same. Part of the live half: no TOML, no torch. An entry is *stale* when the operator's own files have
changed since (``digest``), or when the torch_npu or CANN that is installed is not the one of the run.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from precision_align.core.errors import UsageError
from precision_align.library.folders import Folders
from precision_align.library.results import CaseReport, CaseResult

SCHEMA_VERSION = 1
KEYS = ("torch_npu", "cann")  # what a proof on an NPU depends on beside the operator's own files
# keys of mapping.toml whose change asks for a new proof; texts about the operator may be reworded freely
_TESTED = ("id", "cases", "rule", "dtypes", "replacement")


@dataclass(frozen=True)
class Proof:
    """One operator on one device with one replacement.

    ``cases``: how many were run, of ``known``; ``counts``: status -> results; ``failed``: ids of cases; ``versions``:
    of everything that took part; ``digest``: of the operator's files; ``day``: ISO date.
    """

    op: str
    device: str
    replacement: str
    day: str
    cases: int
    known: int
    counts: Mapping[str, int]
    failed: tuple[str, ...]
    versions: Mapping[str, str]
    digest: str
    seed: int = 0

    @property
    def key(self) -> tuple[str, str, str]:
        """What the next run of the same replaces."""
        return self.op, self.device, self.replacement

    @property
    def passed(self) -> bool:
        """Something passed and nothing failed."""
        return bool(self.counts.get("pass") or self.counts.get("warn")) and not self.failed


def digest_operator(folders: Folders, op: str) -> str:
    """A hash of what the operator's cases depend on: cases.py, the golden function, and the tested keys of its rows."""
    parts = [folders.cases / op / "cases.py", folders.functions / f"{op}.py"]
    content = [file.read_bytes() if file.is_file() else b"" for file in parts]
    mapping = folders.cases / op / "mapping.toml"
    if mapping.is_file():
        lines = mapping.read_text(encoding="utf-8").splitlines()
        content += [line.encode() for line in lines if line.partition("=")[0].strip() in _TESTED]
    return hashlib.sha256(b"\0".join(content)).hexdigest()[:16]


def collect_proofs(report: CaseReport, folders: Folders, known: Mapping[str, int], day: str = "") -> list[Proof]:
    """One proof for each operator of a report. ``known``: operator -> number of its cases."""
    groups: dict[tuple[str, str, str], list[CaseResult]] = {}
    for result in report.results:
        groups.setdefault((result.op, result.device, result.replacement), []).append(result)
    today = day or datetime.date.today().isoformat()
    bad = {id(result) for result in report.failures}
    return [
        Proof(
            op,
            device,
            replacement,
            today,
            len({result.case for result in results}),
            known.get(op, 0),
            {str(status): count for status, count in sorted(Counter(r.status for r in results).items())},
            tuple(sorted({result.case for result in results if id(result) in bad})),
            dict(results[0].versions),
            digest_operator(folders, op),
            report.seed,
        )
        for (op, device, replacement), results in groups.items()
    ]


def read_store(path: str | Path) -> list[Proof]:
    """Raises UsageError for a file that is none of ours; a missing file is an empty store."""
    file = Path(path)
    if not file.exists():
        return []
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["schema_version"] != SCHEMA_VERSION:
            raise UsageError(
                f"{file} has schema_version {document['schema_version']}, this version reads {SCHEMA_VERSION}: "
                "upgrade precision-align, or record the evidence again"
            )
        return [_read_proof(entry) for entry in document["proofs"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{file} is no evidence store of case run --record: {error!r}") from error


def _read_proof(entry: Mapping[str, Any]) -> Proof:
    return Proof(**{**entry, "failed": tuple(entry["failed"])})


def record_proofs(path: str | Path, proofs: Iterable[Proof]) -> int:
    """Put proofs into the store, each in the place of its predecessor: how many the store holds then.

    The file is written beside itself and renamed: an interrupted run loses nothing. Raises UsageError.
    """
    file = Path(path)
    merged = {proof.key: proof for proof in read_store(file)}
    merged.update({proof.key: proof for proof in proofs if not _says_less(proof, merged.get(proof.key))})
    entries = [asdict(merged[key]) for key in sorted(merged)]
    text = json.dumps({"schema_version": SCHEMA_VERSION, "proofs": entries}, indent=1, ensure_ascii=False) + "\n"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        half = file.with_name(file.name + ".tmp")
        half.write_text(text, encoding="utf-8")
        half.replace(file)
    except OSError as error:
        raise UsageError(f"cannot write the evidence store {file}: {error}") from error
    return len(entries)


def _says_less(new: Proof, old: Proof | None) -> bool:
    """A run of a few cases, all well, takes nothing from a run of more on the same files and versions."""
    if old is None or new.failed:
        return False
    return new.cases < old.cases and (new.digest, new.versions) == (old.digest, old.versions)


def find_stale(proofs: Sequence[Proof], folders: Folders, installed: Mapping[str, str]) -> list[str]:
    """Why a proof does not hold any more, one line each. ``installed``: torch_npu and cann of this machine, if any."""
    digests = {op: digest_operator(folders, op) for op in {proof.op for proof in proofs}}
    problems = []
    for proof in proofs:
        place = f"evidence: {proof.op} on {proof.device} with {proof.replacement} of {proof.day}"
        again = f"run: precision-align case run {proof.op} --device {proof.device} --record FILE"
        if not (folders.cases / proof.op).is_dir():
            problems.append(f"{place}: there is no operator {proof.op} any more: delete the entry")
        elif digests[proof.op] != proof.digest:
            problems.append(f"{place}: is older than the operator's last change; {again}")
        elif proof.device.startswith("npu"):
            moved = [
                f"{k} {proof.versions.get(k, 'unknown')} -> {installed[k]}" for k in KEYS if _moved(proof, installed, k)
            ]
            problems += [f"{place}: was shown on another version ({', '.join(moved)}); {again}"] if moved else []
    return problems


def _moved(proof: Proof, installed: Mapping[str, str], key: str) -> bool:
    return bool(installed.get(key)) and proof.versions.get(key) != installed[key]


def find_installed() -> dict[str, str]:
    """Versions of torch_npu and CANN on this machine, without importing either; empty where neither is."""
    from importlib import metadata

    from precision_align.devices.ascend import find_cann_version

    found = {"cann": find_cann_version()}
    with contextlib.suppress(metadata.PackageNotFoundError):
        found["torch_npu"] = metadata.version("torch_npu")
    return {key: value for key, value in found.items() if value}


def render_store(proofs: Sequence[Proof]) -> str:
    """The committed table: the same store gives the same bytes."""
    versions = sorted({key for proof in proofs for key in proof.versions})
    lines = [
        "# What the cases have shown",
        "",
        "Generated by `precision-align map build` from `reports/evidence.json`; do not edit. One line for each",
        "operator, device and replacement: the last run that was recorded (`precision-align case run --record`).",
        "The simulated device computes on the CPU: its runs show that calls are right, not that Ascend hardware is.",
        "",
        f"| operator | device | replacement | cases run / known | results | failed | day | {' | '.join(versions)} |",
        f"|{'---|' * (7 + len(versions))}",
    ]
    for proof in proofs:
        counts = ", ".join(f"{count} {status}" for status, count in proof.counts.items())
        cells = [proof.op, proof.device, proof.replacement, f"{proof.cases} / {proof.known}", counts]
        cells += [", ".join(proof.failed) or "none", proof.day, *(proof.versions.get(key, "") for key in versions)]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"
