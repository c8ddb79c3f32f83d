"""Findings as plain JSON values and back, without loss.

JSON knows neither NaN nor infinities: where a float is expected they are the strings "NaN", "Infinity", "-Infinity";
in free-form parts (run information, mapping rows) they are ``{"$float": "NaN"}``, so that text stays text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from precision_align.core.results import (
    Coverage,
    Curve,
    Divergence,
    Explanation,
    Findings,
    Limit,
    ModulePair,
    RecordResult,
)
from precision_align.core.terms import Kind, Phase, Role, Site, Status, Verdict, Way

FORMAT = "precision-align report"
SCHEMA_VERSION = 0

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TAG = "$float"

T = TypeVar("T")


class Malformed(Exception):
    """A JSON value is not what the schema says; the text names the place."""


def encode_findings(findings: Findings) -> dict[str, Any]:
    """The whole result as JSON values, with ``format`` and ``schema_version`` first."""
    return {
        "format": FORMAT,
        "schema_version": SCHEMA_VERSION,
        "verdict": str(findings.verdict),
        "first": None if findings.first is None else encode_divergence(findings.first),
        "frontier": [encode_divergence(divergence) for divergence in findings.frontier],
        "notes": [str(note) for note in findings.notes],
        "coverage": {str(phase): encode_coverage(coverage) for phase, coverage in findings.coverage.items()},
        "reference": encode_free(findings.reference),
        "candidate": encode_free(findings.candidate),
        "curves": [encode_curve(curve) for curve in findings.curves],
        "roots": [str(scope) for scope in findings.roots],
        "interrupted": bool(findings.interrupted),
        "modules": [
            {"candidate": pair.candidate, "reference": pair.reference, "way": str(pair.way), "note": pair.note}
            for pair in findings.modules
        ],
        "records": [encode_record(record) for record in findings.records],
    }


def encode_float(value: float) -> float | int | str:
    """A number, or the name of a non-finite one. NumPy scalars become Python's."""
    if isinstance(value, int):
        return int(value)
    number = float(value)
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def encode_free(value: Any) -> Any:
    """Any plain value as JSON: enums and paths as text, bytes as hex, tuples and sets as lists, NaN tagged."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (str, Enum)):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): encode_free(item) for key, item in value.items()}
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, (set, frozenset)):
        return [encode_free(item) for item in sorted(value, key=str)]
    if isinstance(value, Sequence):
        return [encode_free(item) for item in value]
    if isinstance(value, int):
        return int(value)
    if hasattr(value, "__float__"):
        return _encode_free_float(value)
    return str(value)


def _encode_free_float(value: Any) -> Any:
    encoded = encode_float(int(value) if hasattr(value, "__index__") else float(value))
    return {_TAG: encoded} if isinstance(encoded, str) else encoded


def encode_metrics(metrics: Mapping[str, float]) -> dict[str, Any]:
    """Metric name -> number or the name of a non-finite one."""
    return {str(name): encode_float(value) for name, value in metrics.items()}


def encode_limit(limit: Limit | None) -> dict[str, Any] | None:
    """A limit, or None."""
    if limit is None:
        return None
    return {"metric": limit.metric, "value": encode_float(limit.value), "origin": limit.origin}


def encode_divergence(found: Divergence) -> dict[str, Any]:
    """One divergence with its explanations and mapping row."""
    return {
        "scope": found.scope,
        "site": str(found.site),
        "phase": str(found.phase),
        "call": int(found.call),
        "step": int(found.step),
        "rank": int(found.rank),
        "op": found.op,
        "source": found.source,
        "kind": str(found.kind),
        "metrics": encode_metrics(found.metrics),
        "limit": encode_limit(found.limit),
        "evidence": found.evidence,
        "explanations": [
            {"name": guess.name, "text": guess.text, "residual": encode_float(guess.residual)}
            for guess in found.explanations
        ],
        "mapping": None if found.mapping is None else encode_free(found.mapping),
        "key": str(found.key),
    }


def encode_record(record: RecordResult) -> dict[str, Any]:
    """One row of the table."""
    return {
        "key": str(record.key),
        "scope": record.scope,
        "site": str(record.site),
        "phase": str(record.phase),
        "role": str(record.role),
        "path": record.path,
        "call": int(record.call),
        "step": int(record.step),
        "micro": int(record.micro),
        "rank": int(record.rank),
        "op": record.op,
        "status": str(record.status),
        "evidence": record.evidence,
        "metrics": encode_metrics(record.metrics),
        "limit": encode_limit(record.limit),
        "note": record.note,
        "nbytes": int(record.nbytes),
        "order": int(record.order),
        "source": record.source,
        **({} if record.found is None else {"found": str(record.found), "found_note": record.found_note}),
    }


def encode_coverage(coverage: Coverage) -> dict[str, int]:
    """Counts of one phase."""
    return {
        "recorded": int(coverage.recorded),
        "judged": int(coverage.judged),
        "recorded_bytes": int(coverage.recorded_bytes),
        "judged_bytes": int(coverage.judged_bytes),
        "sampled": int(coverage.sampled),
    }


def encode_curve(curve: Curve) -> dict[str, Any]:
    """One series of both sides as [step, value] pairs."""
    return {
        "name": curve.name,
        "reference": [[int(step), encode_float(value)] for step, value in curve.reference],
        "candidate": [[int(step), encode_float(value)] for step, value in curve.candidate],
        "onset": None if curve.onset is None else int(curve.onset),
        "band": encode_float(curve.band),
    }


def decode_findings(data: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of :class:`Findings`. Raises :class:`Malformed` naming the place that is wrong."""
    first = data.get("first")
    return {
        "verdict": _decode("verdict", Verdict, _field(data, "verdict")),
        "first": None if first is None else _decode("first", _divergence, first),
        "frontier": _decode_all("frontier", _divergence, _field(data, "frontier")),
        "records": _decode_all("records", _record, _field(data, "records")),
        "notes": _decode_all("notes", _text, _field(data, "notes")),
        "coverage": {
            _decode("coverage", Phase, phase): _decode(f"coverage.{phase}", _coverage, counts)
            for phase, counts in _mapping(_field(data, "coverage")).items()
        },
        "reference": _decode("reference", _free_mapping, data.get("reference", {})),
        "candidate": _decode("candidate", _free_mapping, data.get("candidate", {})),
        "curves": _decode_all("curves", _curve, data.get("curves", [])),
        "roots": _decode_all("roots", _text, data.get("roots", [])),
        "interrupted": bool(data.get("interrupted", False)),
        "modules": _decode_all("modules", _module_pair, data.get("modules", [])),
    }


def decode_free(value: Any) -> Any:
    """The inverse of :func:`encode_free` as far as JSON goes."""
    if isinstance(value, dict):
        if list(value) == [_TAG]:
            return _number(value[_TAG])
        return {key: decode_free(item) for key, item in value.items()}
    return [decode_free(item) for item in value] if isinstance(value, list) else value


def _field(data: Mapping[str, Any], name: str) -> Any:
    if name not in data:
        raise Malformed(f"the field {name!r} is missing")
    return data[name]


def _decode(place: str, build: Callable[[Any], T], value: Any) -> T:
    try:
        return build(value)
    except KeyError as error:
        raise Malformed(f"{place}: the field {error} is missing") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise Malformed(f"{place}: {error}") from error


def _decode_all(place: str, build: Callable[[Any], T], values: Any) -> tuple[T, ...]:
    if not isinstance(values, list):
        raise Malformed(f"{place} is not a list")
    return tuple(_decode(f"{place}[{index}]", build, value) for index, value in enumerate(values))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{value!r} is not an object")
    return value


def _free_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("is not an object")
    decoded = {key: decode_free(item) for key, item in value.items()}
    return decoded


def _number(value: Any) -> float:
    if isinstance(value, str):
        if value not in _NON_FINITE:
            raise ValueError(f"{value!r} is not a number")
        return _NON_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    return value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _limit(value: Any) -> Limit | None:
    if value is None:
        return None
    return Limit(_text(value["metric"]), _number(value["value"]), _text(value["origin"]))


def _metrics(value: Any) -> dict[str, float]:
    return {name: _number(item) for name, item in value.items()}


def _divergence(value: Any) -> Divergence:
    mapping = value["mapping"]
    return Divergence(
        scope=_text(value["scope"]),
        site=Site(value["site"]),
        phase=Phase(value["phase"]),
        call=_whole(value["call"]),
        step=_whole(value["step"]),
        rank=_whole(value["rank"]),
        op=_text(value["op"]),
        source=_text(value["source"]),
        kind=Kind(value["kind"]),
        metrics=_metrics(value["metrics"]),
        limit=_limit(value["limit"]),
        evidence=_text(value["evidence"]),
        explanations=tuple(
            Explanation(_text(guess["name"]), _text(guess["text"]), _number(guess["residual"]))
            for guess in value["explanations"]
        ),
        mapping=None if mapping is None else _free_mapping(mapping),
        key=_text(value["key"]),
    )


def _record(value: Any) -> RecordResult:
    return RecordResult(
        key=_text(value["key"]),
        scope=_text(value["scope"]),
        site=Site(value["site"]),
        phase=Phase(value["phase"]),
        role=Role(value["role"]),
        path=_text(value["path"]),
        call=_whole(value["call"]),
        step=_whole(value["step"]),
        micro=_whole(value["micro"]),
        rank=_whole(value["rank"]),
        op=_text(value["op"]),
        status=Status(value["status"]),
        evidence=_text(value["evidence"]),
        metrics=_metrics(value["metrics"]),
        limit=_limit(value["limit"]),
        note=_text(value["note"]),
        nbytes=_whole(value["nbytes"]),
        order=_whole(value["order"]),
        source=_text(value["source"]),
        found=Status(value["found"]) if "found" in value else None,
        found_note=_text(value.get("found_note", "")),
    )


def _module_pair(value: Any) -> ModulePair:
    return ModulePair(_text(value["candidate"]), _text(value["reference"]), Way(value["way"]), _text(value["note"]))


def _coverage(value: Any) -> Coverage:
    names = ("recorded", "judged", "recorded_bytes", "judged_bytes")
    recorded, judged, recorded_bytes, judged_bytes = (_whole(value[name]) for name in names)
    return Coverage(recorded, judged, recorded_bytes, judged_bytes, _whole(value.get("sampled", 0)))


def _curve(value: Any) -> Curve:
    onset = value["onset"]
    return Curve(
        name=_text(value["name"]),
        reference=tuple((_whole(step), _number(item)) for step, item in value["reference"]),
        candidate=tuple((_whole(step), _number(item)) for step, item in value["candidate"]),
        onset=None if onset is None else _whole(onset),
        band=_number(value["band"]),
    )
