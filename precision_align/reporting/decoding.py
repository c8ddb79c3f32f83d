"""JSON values of a saved report back to findings: the inverse of :mod:`~precision_align.reporting.serialization`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from precision_align.core.results import (
    Coverage,
    Curve,
    Divergence,
    ErrorMap,
    Explanation,
    Limit,
    ModulePair,
    RecordResult,
)
from precision_align.core.terms import Kind, Phase, Role, Site, Status, Verdict, Way
from precision_align.reporting.serialization import FLOAT_TAG

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

T = TypeVar("T")


class Malformed(Exception):
    """A JSON value is not what the schema says; the text names the place."""


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
        "error_maps": _decode_all("error_maps", _error_map, data.get("error_maps", [])),
    }


def decode_free(value: Any) -> Any:
    """The inverse of :func:`encode_free` as far as JSON goes."""
    if isinstance(value, dict):
        if list(value) == [FLOAT_TAG]:
            return _number(value[FLOAT_TAG])
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


def _error_map(value: Any) -> ErrorMap:
    return ErrorMap(
        key=_text(value["key"]),
        against=_text(value["against"]),
        axes=_wholes(value["axes"]),
        shape=_wholes(value["shape"]),
        cells=tuple(_numbers(row) for row in value["cells"]),
        profiles=tuple((_whole(item["dimension"]), _numbers(item["errors"])) for item in value["profiles"]),
        bounds=_pair(_numbers(value["bounds"])),
        expected=_wholes(value["expected"]),
        actual=_wholes(value["actual"]),
        decades=_pair(_wholes(value["decades"])),
        errors=_wholes(value["errors"]),
        equal=_whole(value["equal"]),
        nonfinite=_whole(value["nonfinite"]),
    )


def _wholes(values: Any) -> tuple[int, ...]:
    return tuple(map(_whole, values))


def _numbers(values: Any) -> tuple[float, ...]:
    return tuple(map(_number, values))


def _pair(values: tuple[T, ...]) -> tuple[T, T]:
    low, high = values
    return low, high
