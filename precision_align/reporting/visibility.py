"""What every form of report says of the errors that would have been seen; see :mod:`divergence.detectability`."""

from __future__ import annotations

from typing import Any

from precision_align.core.results import Findings
from precision_align.divergence.detectability import SHARE, TESTS, Detectability, measure_detectability
from precision_align.reporting.languages import say
from precision_align.reporting.serialization import encode_float
from precision_align.reporting.wording import format_number, format_share, name_scope


def phrase_detectability(findings: Findings, language: str) -> str:
    """One line; "" where nothing passed."""
    whole, _ = measure_detectability(findings.records)
    if not whole.records:
        return ""
    if whole.exact == whole.records:
        return say(language, "detectable.exact", count=whole.records)
    return say(
        language,
        "detectable.line",
        error=format_number(whole.error),
        share=format_share(SHARE),
        count=whole.records - whole.exact,
        exact=whole.exact,
        place=name_scope(whole.place, language),
        worst=format_number(whole.worst),
    )


def encode_detectability(findings: Findings) -> dict[str, Any]:
    """Of all and of each module as JSON values."""
    whole, modules = measure_detectability(findings.records)
    return {"share": SHARE, **_encode(whole), "modules": {one.scope or "": _encode(one) for one in modules}}


def list_modules(findings: Findings) -> list[Detectability]:
    """Modules that could hide an error, the worst first."""
    _, modules = measure_detectability(findings.records)
    return sorted((one for one in modules if one.worst > 0), key=lambda one: -one.worst)


def name_test(found: Detectability) -> str:
    """The test that would have fired, in words."""
    return TESTS.get(found.test, found.test)


def _encode(found: Detectability) -> dict[str, Any]:
    return {
        "records": found.records,
        "exact": found.exact,
        "error": encode_float(found.error),
        "worst": encode_float(found.worst),
        "place": found.place,
        "test": name_test(found),
    }
