"""What every form of report says the same way: sentences, numbers, places, mapping rows, the next command."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from precision_align.core.results import Coverage, Divergence, Findings, Limit, RecordResult
from precision_align.core.terms import Kind, Status, Verdict
from precision_align.reporting.languages import say
from precision_align.reporting.messages import translate_message

# worst first: what a module is coloured by, and how rows sort
SEVERITY = (
    Status.FAIL,
    Status.MISSING,
    Status.NONDETERMINISTIC,
    Status.MODE,
    Status.RANDOM,
    Status.WARN,
    Status.INCONCLUSIVE,
    Status.PROPAGATED,
    Status.PASS,
)

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def quote(text: object) -> str:
    """Text from outside on one line, with control characters, bidi overrides and lone surrogates made visible."""
    words = str(text)
    if words.isprintable():  # bidi overrides are not
        return words
    return "".join(character if character.isprintable() else _escape(character) for character in words)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def format_number(value: float) -> str:
    """Three significant digits, whole numbers below a million whole, non-finite ones by name."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    if float(value).is_integer() and abs(value) < 1e6:
        return str(int(value))
    rounded = float(f"{value:.3g}")
    if 1e4 <= abs(rounded) < 1e6:
        return f"{rounded:,.0f}"
    return f"{rounded:g}" if 1e-4 <= abs(value) < 1e4 else f"{value:.3g}"


def format_share(share: float) -> str:
    """A share as percent, never rounded up to 100 nor down to 0."""
    percent = share * 100
    if math.isnan(percent):
        return "? %"
    if percent <= 0:
        return "0 %"
    if percent >= 100:
        return f"{percent:.0f} %" if math.isfinite(percent) else "Inf %"
    if percent < 0.1:
        return "<0.1 %"
    return f"{math.floor(percent * 10) / 10:g} %"


def format_bytes(count: int) -> str:
    """A size in binary units."""
    size = float(count)
    for unit in _BYTE_UNITS:
        if size < 1024 or unit == _BYTE_UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit always returns")


def name_scope(scope: str, language: str = "en") -> str:
    """A module's path as shown; the root has a name of its own."""
    return quote(scope) if scope else say(language, "root")


def total_coverage(findings: Findings) -> Coverage:
    """All phases together."""
    parts = list(findings.coverage.values())
    return Coverage(
        sum(part.recorded for part in parts),
        sum(part.judged for part in parts),
        sum(part.recorded_bytes for part in parts),
        sum(part.judged_bytes for part in parts),
        sum(part.sampled for part in parts),
    )


def count_statuses(records: Iterable[RecordResult]) -> dict[Status, int]:
    """How many records of each status, worst first; absent ones left out."""
    counts: dict[Status, int] = {}
    for record in records:
        counts[record.status] = counts.get(record.status, 0) + 1
    return {status: counts[status] for status in SEVERITY if status in counts}


def phrase_place(found: Divergence, language: str = "en", mark: Callable[[str], str] = str) -> str:
    """ "in the inline code of encoder.layers.0": where, as a part of a sentence; ``mark`` sets off the module."""
    name = mark(name_scope(found.scope, language))
    module = say(language, "module", name=name) if found.scope else name
    return say(language, f"place.{found.site}", module=module)


def phrase_verdict(findings: Findings, language: str = "en", mark: Callable[[str], str] = str) -> str:
    """The verdict in one sentence; ``mark`` sets off the module's name in it."""
    total = total_coverage(findings)
    counts = {"judged": total.judged, "recorded": total.recorded}
    found = findings.first
    if findings.verdict == Verdict.DIVERGED and found is not None:
        kind = Kind(found.kind)
        place, phase = phrase_place(found, language, mark), say(language, f"phase.{found.phase}")
        return say(language, f"sentence.{kind}", place=place, phase=phase, step=found.step)
    if findings.verdict == Verdict.ALIGNED:
        warn = sum(record.status == Status.WARN for record in findings.records)
        return say(language, "sentence.aligned.warn" if warn else "sentence.aligned", warn=warn, **counts)
    return say(language, "sentence.not comparable", reason=_phrase_reason(findings, language), **counts)


def _phrase_reason(findings: Findings, language: str) -> str:
    """Why there is no verdict: the comparison says it in its first note."""
    if not findings.notes:
        return say(language, "reason.unknown")
    return quote(translate_message(findings.notes[0], language)).rstrip(".")


def measure_excess(metrics: Mapping[str, float], limit: Limit | None) -> float | None:
    """What was measured over what is allowed, in the metric that the limit is for; None where that makes no sense."""
    if limit is None or limit.metric not in metrics:
        return None
    value = abs(float(metrics[limit.metric]))
    if limit.value == 0:
        return math.inf if value > 0 else 0.0
    return value / abs(float(limit.value))


def phrase_excess(metrics: Mapping[str, float], limit: Limit | None, language: str = "en") -> str:
    """ "38.2x the limit", or "" where nothing was measured against a limit."""
    excess = measure_excess(metrics, limit)
    if excess is None:
        return ""
    if limit is not None and limit.value == 0:
        return say(language, "no_limit")
    if not math.isfinite(excess):
        return say(language, "boundless")
    return say(language, "times", ratio=format_number(excess))


def order_metrics(metrics: Mapping[str, float], limit: Limit | None) -> list[tuple[str, float]]:
    """The metric that the limit is for first, raw ones last, the rest as they came."""

    def rank(item: tuple[int, str]) -> tuple[bool, bool, int]:
        index, name = item
        return (limit is None or name != limit.metric, name.startswith("raw_"), index)

    names = [name for _, name in sorted(enumerate(metrics), key=rank)]
    return [(name, metrics[name]) for name in names]


@dataclass(frozen=True)
class CaseLine:
    """One case of an operator: its name, its last result ("" if never run), and a remark."""

    name: str
    status: str = ""
    note: str = ""

    @property
    def failed(self) -> bool:
        return self.status.lower() in ("fail", "failed", "error")

    @property
    def passed(self) -> bool:
        return self.status.lower() in ("pass", "passed", "warn")


@dataclass(frozen=True)
class MappingLines:
    """A mapping row as shown: a title, plain facts, pitfalls, cases with results (failing ones first)."""

    identity: str
    title: str
    facts: Sequence[tuple[str, str]]
    pitfalls: Sequence[str]
    cases: Sequence[CaseLine]


# the library's own field names first, then what other tables call them
_IDENTITY = ("op", "operator", "name", "id")
_SOURCES = ("symbols", "title", "source_symbol", "source", "function")
_REPLACEMENTS = ("replacement", "candidate", "ascend_replacement")
_PITFALLS = ("differences", "pitfalls", "boundaries")
# how a row is found, not what a reader of a report needs
_HIDDEN = ("modules", "calls", "inputs", "outputs", "cases", "results", "domain")


def describe_mapping(mapping: Mapping[str, Any], op: str = "") -> MappingLines:
    """Read a row of the operator library, whatever fields it has; of several symbols the one that names ``op``."""
    identity = _first_of(mapping, _IDENTITY)
    source, target = _first_of(mapping, _SOURCES), _first_of(mapping, _REPLACEMENTS)
    sources = sorted(_as_list(source or identity), key=lambda symbol: str(symbol).rpartition(".")[2] != op)
    title = " → ".join(_inline(part) for part in (sources[:1], target) if part)
    used = {*_HIDDEN, "op", *_PITFALLS, *_name_used(mapping, _SOURCES), *_name_used(mapping, _REPLACEMENTS)}
    facts = [(name, _inline(value)) for name, value in mapping.items() if name not in used]
    pitfalls = [_phrase_pitfall(item) for name in _PITFALLS for item in _as_list(mapping.get(name))]
    return MappingLines(
        _inline(identity) if identity else "",
        title,
        [(name, value) for name, value in facts if value],
        [pitfall for pitfall in pitfalls if pitfall],
        _collect_cases(_as_list(mapping.get("cases")), _as_list(mapping.get("results"))),
    )


def _phrase_pitfall(item: Any) -> str:
    """A sentence as it stands; a boundary as "value: what to expect"."""
    if isinstance(item, Mapping) and item.get("value"):
        return ": ".join(_inline(item[name]) for name in ("value", "expected") if item.get(name))
    return _inline(item)


def _collect_cases(cases: Sequence[Any], results: Sequence[Any]) -> list[CaseLine]:
    """Every case once, with the worst of its results; failing ones first."""
    found = {line.name: line for line in map(_read_case, cases)}
    lines = [_read_case(result) for result in results]
    for line in lines:
        known = found.get(line.name)
        if known is None or not known.status or (line.failed and not known.failed):
            alike = [other for other in lines if other.name == line.name]
            found[line.name] = _add_count(line, sum(other.failed for other in alike), len(alike))
    return sorted(found.values(), key=lambda line: not line.failed)


def _add_count(line: CaseLine, failed: int, count: int) -> CaseLine:
    """A failing line that stands for several results says of how many."""
    if not line.failed or count < 2:
        return line
    return CaseLine(line.name, line.status, f"{line.note} ({failed} of {count} results fail)".lstrip())


def _name_used(mapping: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    return [name for name in names if mapping.get(name)][:1]


def _first_of(mapping: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((mapping[name] for name in names if mapping.get(name)), None)


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [
            {"name": name, **(item if isinstance(item, Mapping) else {"status": item})} for name, item in value.items()
        ]
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        parts = [(name, _inline(item)) for name, item in value.items()]
        return ", ".join(f"{name}: {text}" for name, text in parts if text)
    if isinstance(value, (list, tuple)):
        nested = any(isinstance(item, (Mapping, list, tuple)) for item in value)
        return ("; " if nested else ", ").join(filter(None, map(_inline, value)))
    return "" if value is None else str(value)


def _read_case(case: Any) -> CaseLine:
    if not isinstance(case, Mapping):
        return CaseLine(_inline(case))
    name = _inline(_first_of(case, ("name", "id", "case")) or case)
    if case.get("op") and "/" not in name:
        name = f"{case['op']}/{name}"  # the form that selects a case
    status = _first_of(case, ("status", "verdict", "result")) or ""
    return CaseLine(name, _inline(status), _inline(_first_of(case, ("note", "why", "reason", "pitfall")) or ""))


# one entry a module or a parameter: thousands, and seldom what differs
_LISTS = ("modules", "aliases", "parameters")
# what any two runs differ in, and what says nothing of the model: told last
OWN_FIELDS = ("run", "created", "path", "command", "difference_kernel", "replay")


def compare_runs(reference: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(field, reference's value, candidate's value) of both run informations: what differs first, the runs' own last.

    Nested fields are dotted; of module and parameter lists only their sizes and what differs are told.
    """
    left, right = dict(_flatten_fields(reference)), dict(_flatten_fields(candidate))
    rows = [(name, left.get(name, ""), right.get(name, "")) for name in [*left, *(n for n in right if n not in left)]]
    for name in _LISTS:
        rows += _compare_lists(name, reference.get(name), candidate.get(name))
    return sorted(rows, key=lambda row: (row[0] in OWN_FIELDS, row[1] == row[2]))


def _compare_lists(name: str, reference: Any, candidate: Any) -> list[tuple[str, str, str]]:
    sides = [side if isinstance(side, Mapping) else {} for side in (reference, candidate)]
    if not any(sides):
        return []
    left, right = sides
    rows = [(f"{name}.{key}", _inline(left.get(key)), _inline(right.get(key))) for key in {**left, **right}]
    counted = (name, *(str(len(side)) if side else "" for side in sides))
    return [(counted[0], counted[1], counted[2]), *(row for row in rows if all(sides) and row[1] != row[2])]


def _flatten_fields(value: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, item in value.items():
        place = f"{prefix}{name}"
        if not prefix and name in _LISTS:
            continue
        if isinstance(item, Mapping) and item:
            yield from _flatten_fields(item, f"{place}.")
        else:
            yield place, _inline(item)
