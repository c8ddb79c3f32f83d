"""Findings as plain JSON values, without loss; see :mod:`~precision_align.reporting.decoding` for the way back.

JSON knows neither NaN nor infinities: where a float is expected they are the strings "NaN", "Infinity", "-Infinity";
in free-form parts (run information, mapping rows) they are ``{"$float": "NaN"}``, so that text stays text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from precision_align.core.results import (
    Coverage,
    Curve,
    Divergence,
    ErrorMap,
    Findings,
    Limit,
    RecordResult,
)

FORMAT = "precision-align report"
SCHEMA_VERSION = 1

FLOAT_TAG = "$float"


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
        "error_maps": [encode_error_map(found) for found in findings.error_maps],
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
    return {FLOAT_TAG: encoded} if isinstance(encoded, str) else encoded


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


def encode_error_map(found: ErrorMap) -> dict[str, Any]:
    """The bins of one tensor's error."""
    return {
        "key": str(found.key),
        "against": found.against,
        "shape": list(found.shape),
        "axes": list(found.axes),
        "cells": [list(map(encode_float, row)) for row in found.cells],
        "profiles": [
            {"dimension": dimension, "errors": list(map(encode_float, values))} for dimension, values in found.profiles
        ],
        "bounds": list(map(encode_float, found.bounds)),
        "expected": list(found.expected),
        "actual": list(found.actual),
        "decades": list(found.decades),
        "errors": list(found.errors),
        "equal": int(found.equal),
        "nonfinite": int(found.nonfinite),
    }
