"""What changed between two torch_npu wheels, and which mapping rows it touches."""

from __future__ import annotations

import fnmatch
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from precision_align.library.rows import MappingRow
from precision_align.library.signatures import Effect, SignatureChange, compare_signatures, parse_signature
from precision_align.library.wheels import Inventory, Operator

SCHEMA_VERSION = 1
NAMESPACES = ("npu", "aten")
_NPU_NAME = re.compile(r"\b_?npu_\w+")


@dataclass(frozen=True)
class ChangedSignature:
    """One overload whose schema differs."""

    name: str
    changes: tuple[SignatureChange, ...]

    @property
    def effect(self) -> Effect:
        """The worst of its changes: silent before breaking before compatible."""
        effects = {change.effect for change in self.changes}
        return next(effect for effect in (Effect.SILENT, Effect.BREAKING, Effect.COMPATIBLE) if effect in effects)


@dataclass(frozen=True)
class TouchedRow:
    """A mapping row, and for each changed name that it mentions what changed."""

    row: str
    op: str
    reasons: Mapping[str, str]


@dataclass(frozen=True)
class WheelDiff:
    """All differences, old to new; names carry their namespace ("npu::", "aten::") where they are overloads.

    ``delegated``: removed aten overloads that their .out form serves from now on (other removed aten overloads are
    composed or run on the CPU); ``kernels``: name -> (old, new) implementations; ``deprecated``: new deprecations and
    what to use instead; ``to_cpu``, ``from_cpu``: operators whose NPU kernel now runs, or no longer runs, on the CPU;
    ``dtypes``: name -> (no longer named, newly named); ``uses``: lines of a source tree that call what changed.
    """

    old: str
    new: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    delegated: frozenset[str]
    signatures: tuple[ChangedSignature, ...]
    kernels: Mapping[str, tuple[str, str]]
    deprecated: Mapping[str, str]
    to_cpu: tuple[str, ...]
    from_cpu: tuple[str, ...]
    dtypes: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
    rows: tuple[TouchedRow, ...] = ()
    uses: tuple[Mapping[str, Any], ...] = field(default=())

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Namespace -> how many overloads were added, removed, changed in signature or in implementation."""
        return {space: self._count(f"{space}::") for space in NAMESPACES}

    def _count(self, prefix: str) -> dict[str, int]:
        names = {
            "added": self.added,
            "removed": self.removed,
            "signatures": tuple(changed.name for changed in self.signatures),
            "silent": tuple(changed.name for changed in self.signatures if changed.effect == Effect.SILENT),
            "breaking": tuple(changed.name for changed in self.signatures if changed.effect == Effect.BREAKING),
            "implementations": tuple(self.kernels),
        }
        return {key: sum(name.startswith(prefix) for name in found) for key, found in names.items()}

    def explain(self) -> dict[str, str]:
        """Overload or plain name -> what changed, in words; without what was merely added."""
        reasons: dict[str, list[str]] = {}
        for name in self.removed:
            reasons.setdefault(name, []).append(self._phrase_removal(name))
        for changed in self.signatures:
            texts = [f"{c.text} ({c.effect})" for c in changed.changes if c.effect != Effect.COMPATIBLE]
            texts = texts or [change.text for change in changed.changes]
            reasons.setdefault(changed.name, []).extend(texts)
        for name, (before, after) in self.kernels.items():
            reasons.setdefault(name, []).append(f"implementation {before or 'none'} -> {after or 'none'}")
        for name, instead in self.deprecated.items():
            reasons.setdefault(f"npu::{name}", []).append(f"deprecated{f', use {instead}' if instead else ''}")
        for text, names in (("now runs on the CPU", self.to_cpu), ("no longer runs on the CPU", self.from_cpu)):
            for name in names:
                reasons.setdefault(f"aten::{name}", []).append(text)
        for name, (lost_dtypes, gained) in self.dtypes.items():
            reasons.setdefault(f"npu::{name}", []).append(f"documented dtypes {_phrase_dtypes(lost_dtypes, gained)}")
        return {name: "; ".join(dict.fromkeys(texts)) for name, texts in reasons.items()}

    def _phrase_removal(self, name: str) -> str:
        if not name.startswith("aten::"):
            return "removed"
        return "served by its .out overload" if name in self.delegated else "no NPU kernel of its own: composed, or CPU"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "schema_version": SCHEMA_VERSION,
            "old": self.old,
            "new": self.new,
            "counts": self.counts,
            "added": list(self.added),
            "removed": list(self.removed),
            "signatures": [
                {
                    "name": changed.name,
                    "effect": str(changed.effect),
                    "changes": [{"effect": str(c.effect), "text": c.text} for c in changed.changes],
                }
                for changed in self.signatures
            ],
            "implementations": {name: list(pair) for name, pair in self.kernels.items()},
            "deprecated": dict(self.deprecated),
            "to_cpu": list(self.to_cpu),
            "from_cpu": list(self.from_cpu),
            "dtypes": {name: {"lost": list(lost), "gained": list(new)} for name, (lost, new) in self.dtypes.items()},
            "rows": [{"row": r.row, "op": r.op, "reasons": dict(r.reasons)} for r in self.rows],
            "uses": [dict(use) for use in self.uses],
        }


def _phrase_dtypes(lost: Sequence[str], gained: Sequence[str]) -> str:
    parts = [f"no longer named: {', '.join(lost)}"] if lost else []
    parts += [f"newly named: {', '.join(gained)}"] if gained else []
    return "; ".join(parts)


def compare_wheels(old: Inventory, new: Inventory, rows: Sequence[MappingRow] = ()) -> WheelDiff:
    """All differences from ``old`` to ``new``, and the rows among ``rows`` that mention a changed operator."""
    common = [name for name in old.operators if name in new.operators]
    gone = old.operators.keys() - new.operators.keys()
    diff = WheelDiff(
        old.version,
        new.version,
        tuple(sorted(new.operators.keys() - old.operators.keys() | _name_atb(new.atb - old.atb))),
        tuple(sorted(gone | _name_atb(old.atb - new.atb))),
        frozenset(name for name in gone if f"{name.partition('.')[0]}.out" in new.operators),
        tuple(_compare_schemas(old.operators, new.operators, common)),
        dict(_compare_kernels(old.operators, new.operators, common)),
        {name: instead for name, instead in sorted(new.deprecated.items()) if name not in old.deprecated},
        tuple(sorted(new.cpu - old.cpu)),
        tuple(sorted(old.cpu - new.cpu)),
        dict(_compare_dtypes(old.dtypes, new.dtypes)),
    )
    return _with_rows(diff, rows)


def _name_atb(names: Iterable[str]) -> set[str]:
    return {f"atb::{name}" for name in names}


def _compare_schemas(
    old: Mapping[str, Operator], new: Mapping[str, Operator], names: Iterable[str]
) -> Iterator[ChangedSignature]:
    for name in sorted(names):
        before, after = old[name].schema, new[name].schema
        if "".join(before.split()) != "".join(after.split()) and "(" in before and "(" in after:
            changes = compare_signatures(parse_signature(before), parse_signature(after))
            yield ChangedSignature(name, tuple(changes))


def _compare_kernels(
    old: Mapping[str, Operator], new: Mapping[str, Operator], names: Iterable[str]
) -> Iterator[tuple[str, tuple[str, str]]]:
    for name in sorted(names):
        before, after = old[name].kernels, new[name].kernels
        if before != after:
            yield name, ("+".join(before), "+".join(after))


def _compare_dtypes(
    old: Mapping[str, frozenset[str]], new: Mapping[str, frozenset[str]]
) -> Iterator[tuple[str, tuple[tuple[str, ...], tuple[str, ...]]]]:
    """Only pages that name dtypes in both wheels: a page that was written or emptied is no change of the operator."""
    for name in sorted(old.keys() & new.keys()):
        if old[name] and new[name] and old[name] != new[name]:
            yield name, (tuple(sorted(old[name] - new[name])), tuple(sorted(new[name] - old[name])))


def _with_rows(diff: WheelDiff, rows: Sequence[MappingRow]) -> WheelDiff:
    reasons = diff.explain()
    touched = [TouchedRow(row.id, row.op, hits) for row in rows if (hits := _find_mentions(row, reasons))]
    return replace(diff, rows=tuple(touched))


def _find_mentions(row: MappingRow, reasons: Mapping[str, str]) -> dict[str, str]:
    """npu operators that its texts name as a word, aten operators that its ``calls`` patterns cover."""
    texts = " ".join((row.replacement, *row.calls, *row.symbols, *row.differences))
    words = set(_NPU_NAME.findall(texts))
    patterns = [pattern for pattern in row.calls if pattern.startswith("aten.")]
    return {name: reason for name, reason in reasons.items() if _mentions(name, words, patterns)}


def _mentions(name: str, words: set[str], patterns: Sequence[str]) -> bool:
    space, _, overload = name.partition("::")
    if space == "aten":
        return any(fnmatch.fnmatchcase(f"aten.{overload}", pattern) for pattern in patterns)
    return overload.partition(".")[0] in words


def render_diff(diff: WheelDiff) -> str:
    """For a terminal: the counts, what silently changes results first, then all the rest."""
    lines = [f"torch_npu {diff.old} -> {diff.new}"]
    for space, counts in diff.counts.items():
        lines.append(
            f"  {space:<5} +{counts['added']} -{counts['removed']}  {counts['signatures']} signatures changed "
            f"({counts['silent']} silently, {counts['breaking']} breaking), "
            f"{counts['implementations']} implementations changed"
        )
    for effect, title in (
        (Effect.SILENT, "same call, other result"),
        (Effect.BREAKING, "may raise"),
        (Effect.COMPATIBLE, "compatible"),
    ):
        found = [changed for changed in diff.signatures if changed.effect == effect]
        lines += _section(title, [f"{c.name}: {'; '.join(change.text for change in c.changes)}" for c in found])
    lines += _section("removed", [f"{name}: {diff.explain()[name]}" for name in diff.removed])
    lines += _section("deprecated", [f"{n}{f': use {i}' if i else ''}" for n, i in diff.deprecated.items()])
    lines += _section("runs on the CPU from now on", diff.to_cpu)
    lines += _section("no longer runs on the CPU", diff.from_cpu)
    lines += _section("documented dtypes", [f"{n}: {_phrase_dtypes(*pair)}" for n, pair in diff.dtypes.items()])
    lines += _section("implementation", [f"{n}: {a or 'none'} -> {b or 'none'}" for n, (a, b) in diff.kernels.items()])
    lines += _section("added", diff.added)
    lines += _section("mapping rows touched", [line for row in diff.rows for line in _render_touched(row)])
    lines += _section(
        "lines of your source touched", [f"{u['file']}:{u['line']}: {u['name']}: {u['reason']}" for u in diff.uses]
    )
    if len(lines) == 1 + len(NAMESPACES):
        lines.append("  no difference")
    return "\n".join(lines)


def _section(title: str, items: Sequence[str]) -> list[str]:
    return ["", f"{title} ({len(items)}):", *(f"  {item}" for item in items)] if items else []


def _render_touched(row: TouchedRow) -> Iterator[str]:
    kinds = Counter(row.reasons.values())
    if len(kinds) == 1 and len(row.reasons) > 3:
        names = ", ".join(list(row.reasons)[:3])
        yield f"{row.row} ({row.op}): {names} and {len(row.reasons) - 3} more: {next(iter(kinds))}"
        return
    for name, reason in row.reasons.items():
        yield f"{row.row} ({row.op}): {name}: {reason}"
