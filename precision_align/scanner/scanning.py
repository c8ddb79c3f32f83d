"""Walks a source tree and collects what the rules find in it."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precision_align.core.errors import UsageError
from precision_align.scanner.findings import Finding, ScanReport
from precision_align.scanner.matching import RuleIndex
from precision_align.scanner.python_source import Hit, collect_aliases, parse_python, resolve, scan_python
from precision_align.scanner.rules import Rule
from precision_align.scanner.text_source import PYTHON, classify, scan_text

SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages", "venv", "build", "dist"})
MAXIMUM_BYTES = 4 << 20  # longer files are generated or data
_SHOWN = 160  # characters of a line that is quoted
Progress = Callable[[int, int], None]  # files read, files in all


@dataclass(frozen=True)
class _Source:
    """A file that was read: ``name`` relative to the root."""

    name: str
    kind: str
    text: str


def scan_tree(root: str | Path, rules: Iterable[Rule], progress: Progress | None = None) -> ScanReport:
    """Scan a folder or one file. Raises UsageError where there is nothing to read."""
    path = Path(root)
    if not path.exists():
        raise UsageError(f"{path} does not exist: name a folder of source, or a file")
    index, notes = RuleIndex(rules), list[str]()
    local = find_local_packages(path)
    findings: list[Finding] = []
    files = lines = 0
    paths = list(_list_files(path))
    for source in _read_sources(path, _count(paths, progress), notes):
        files, lines = files + 1, lines + source.text.count("\n") + 1
        findings += _scan_source(source, index, local, notes)
    return ScanReport(str(path), findings, files, lines, notes=notes)


def find_local_packages(root: Path) -> frozenset[str]:
    """Names that import from the tree itself: folders and files at its top, and in its ``src``."""
    if root.is_file():
        return frozenset()
    folders = [folder for folder in (root, root / "src", root / "python") if folder.is_dir()]
    entries = [entry for folder in folders for entry in folder.iterdir()]
    packages = {entry.name for entry in entries if entry.is_dir() and any(entry.glob("*.py"))}
    return frozenset(packages | {entry.stem for entry in entries if entry.suffix == ".py"} | {root.name})


def _count(paths: Sequence[Path], progress: Progress | None) -> Iterator[Path]:
    for done, path in enumerate(paths):
        if progress is not None:
            progress(done, len(paths))
        yield path


def _read_sources(root: Path, paths: Iterable[Path], notes: list[str]) -> Iterator[_Source]:
    for path in paths:
        name = _spell(path.name if root.is_file() else path.relative_to(root).as_posix())
        kind = classify(name)
        if not kind:
            continue
        try:
            if not path.is_file():
                notes.append(f"{name}: not read: not a file, or a link to nothing")
                continue
            if path.stat().st_size > MAXIMUM_BYTES:
                notes.append(f"{name}: not read: larger than {MAXIMUM_BYTES >> 20} MiB")
                continue
            yield _Source(name, kind, path.read_text(encoding="utf-8-sig", errors="replace"))
        except OSError as error:
            notes.append(f"{name}: not read: {error.strerror}")


def _spell(name: str) -> str:
    """A file's name as reports can carry it: bytes that are no UTF-8, and line breaks, are written as escapes."""
    text = os.fsencode(name).decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def _list_files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for folder, names, files in os.walk(root):
        names[:] = sorted(name for name in names if name not in SKIPPED and not name.startswith("."))
        yield from (Path(folder, file) for file in sorted(files))


def _scan_source(source: _Source, index: RuleIndex, local: frozenset[str], notes: list[str]) -> list[Finding]:
    if source.kind == PYTHON:
        try:
            hits: Iterable[Hit] = scan_python(parse_python(source.text), index, local)
        except (SyntaxError, ValueError) as error:
            notes.append(f"{source.name}: not parsed as Python: {error}")
            return []
    else:
        hits = scan_text(source.text, source.kind, source.name, index)
    return _make_findings(source, _merge(hits))


def _merge(hits: Iterable[Hit]) -> list[tuple[Hit, tuple[str, ...]]]:
    """One entry for each line and rule, with every name met there."""
    merged: dict[tuple[int, str], list[Hit]] = {}
    for hit in hits:
        merged.setdefault((hit.line, hit.rule.id), []).append(hit)
    entries = [(group[0], tuple(dict.fromkeys(hit.name for hit in group))) for group in merged.values()]
    return sorted(entries, key=lambda entry: (entry[0].line, entry[0].column))


def _make_findings(source: _Source, entries: Sequence[tuple[Hit, tuple[str, ...]]]) -> list[Finding]:
    lines = source.text.splitlines() or [""]
    seen: Counter[str] = Counter()
    findings = []
    for hit, names in entries:
        text = lines[min(hit.line, len(lines)) - 1].strip()[:_SHOWN]
        key = f"{hit.rule.id}\0{source.name}\0{' '.join(text.split())}"
        seen[key] += 1
        finding = _make_finding(hit, names, source.name, text)
        findings.append(replace(finding, fingerprint=_hash(f"{key}\0{seen[key]}")))
    return findings


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _make_finding(hit: Hit, names: tuple[str, ...], file: str, text: str) -> Finding:
    rule = hit.rule
    return Finding(
        rule.id,
        rule.cls,
        file,
        hit.line,
        hit.column + 1,
        ", ".join(names),
        text,
        rule.what,
        rule.fix,
        rule.transfer,
        rule.rows,
    )


def find_uses(root: str | Path, reasons: Mapping[str, str]) -> tuple[Mapping[str, Any], ...]:
    """Lines that call torch_npu operators among ``reasons`` ("npu::name.overload" -> what changed), as plain data."""
    changed: dict[str, list[str]] = {}
    for overload, reason in reasons.items():
        space, _, name = overload.partition("::")
        if space != "aten":
            changed.setdefault(name.partition(".")[0], []).append(reason)
    found = []
    for source in _read_sources(Path(root), _list_files(Path(root)), []):
        if source.kind == PYTHON:
            found += [_describe_use(source, line, name, changed) for line, name in _list_uses(source, changed)]
    return tuple(found)


def _describe_use(source: _Source, line: int, name: str, changed: Mapping[str, Sequence[str]]) -> Mapping[str, Any]:
    return {"file": source.name, "line": line, "name": name, "reason": "; ".join(dict.fromkeys(changed[name]))}


def _list_uses(source: _Source, changed: Mapping[str, Sequence[str]]) -> list[tuple[int, str]]:
    import ast

    if not any(name in source.text for name in changed):
        return []
    try:
        tree = parse_python(source.text)
    except (SyntaxError, ValueError):
        return []
    aliases = collect_aliases(tree)
    uses = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Attribute, ast.Name)):
            package, _, last = resolve(node, aliases)[0].rpartition(".")
            if last in changed and package in ("torch_npu", "torch.ops.npu", "torch.ops.atb"):
                uses.add((node.lineno, last))
    return sorted(uses)
