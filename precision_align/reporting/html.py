"""report.html: one self-contained file that reads without a network, and without JavaScript as far as text goes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from precision_align import __version__
from precision_align.core.results import Curve, Divergence, Findings, RecordResult
from precision_align.core.terms import Status
from precision_align.reporting.columns import find_record, pack_records
from precision_align.reporting.commands import list_commands, suggest_command
from precision_align.reporting.languages import LANGUAGES, TEXTS, say, translate
from precision_align.reporting.pages import build_policy, open_templates, read_asset, trust
from precision_align.reporting.serialization import encode_curve, encode_error_map
from precision_align.reporting.visibility import list_modules, name_test
from precision_align.reporting.wording import (
    OWN_FIELDS,
    SEVERITY,
    compare_runs,
    count_statuses,
    describe_mapping,
    format_bytes,
    format_number,
    format_share,
    measure_excess,
    name_scope,
    order_metrics,
    phrase_excess,
    phrase_verdict,
    quote,
    total_coverage,
)

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

SCRIPTS = (
    "texts",
    "records",
    "filters",
    "table",
    "detail",
    "tree",
    "curves",
    "layers",
    "heat",
    "histograms",
    "errors",
    "walk",
    "page",
)
SHORTCUTS = (
    ("/", "search"),
    ("j k", "move"),
    ("n p", "bad"),
    ("o", "origin"),
    ("l", "language"),
    ("t", "theme"),
    ("Esc", "escape"),
    ("?", "help"),
)
SHOWN_METRICS = 6  # as many as the column beside them is long; the rest unfolds
SHOWN_MODULES = 20  # of those in which an error could hide, the worst
SHOWN_OTHERS = 50  # a run in which everything fails; the table has them all
PRINTED_ROWS = 100  # on paper and without JavaScript: enough to see the pattern, two or three pages

# the gauge runs from 1/100 of the limit to 1000 times it, on a logarithmic scale
_GAUGE_LOW, _GAUGE_HIGH = -2.0, 3.0
_MARK_OPEN, _MARK_CLOSE = "\ue000", "\ue001"  # private use: quote() lets none through from outside


def render_html(report: Findings, *, language: str = "en") -> str:
    """The whole page; ``language`` is the one it opens in. Raises Unavailable where jinja2 is not installed."""
    environment = build_environment()
    data = escape_json({**_pack_page(report), "language": language})
    head, body = read_asset("scripts/theme.js"), _join_scripts()
    return environment.get_template("report.html.j2").render(
        report=report,
        language=language,
        version=__version__,
        shown_metrics=SHOWN_METRICS,
        policy=build_policy(head, body),
        style=trust(read_asset("vendor/uPlot-1.6.32.min.css") + read_asset("report.css")),
        head_script=trust(head),
        body_script=trust(body),
        data=trust(data),
        **_describe(report),
    )


def build_environment() -> Environment:
    environment = open_templates()
    environment.globals.update(t=_say_everywhere, sentence=_phrase_everywhere, scope=_name_everywhere, metric=_label)
    environment.filters.update(
        number=format_number,
        share=format_share,
        bytes=format_bytes,
        safe_text=quote,
        breakable=_make_breakable,
        seen_by=name_test,
    )
    return environment


def _in_every_language(texts: Mapping[str, str]) -> Markup:
    from markupsafe import Markup, escape

    if len(set(texts.values())) == 1:
        return escape(next(iter(texts.values())))
    return Markup("").join(
        Markup('<span lang="{}">{}</span>').format(language, text) for language, text in texts.items()
    )


def _say_everywhere(key: str, **values: object) -> Markup:
    return _in_every_language({language: say(language, key, **values) for language in LANGUAGES})


def _label(name: str) -> Markup:
    """What a metric means."""
    return _in_every_language({language: translate(language, f"metric.{name}", quote(name)) for language in LANGUAGES})


def _name_everywhere(scope: str) -> Markup:
    if scope:
        return _make_breakable(quote(scope))
    return _in_every_language({language: name_scope("", language) for language in LANGUAGES})


def _phrase_everywhere(report: Findings) -> Markup:
    from markupsafe import Markup, escape

    def mark(name: str) -> str:
        return f"{_MARK_OPEN}{name}{_MARK_CLOSE}"

    spans = []
    for language in LANGUAGES:
        text = escape(phrase_verdict(report, language, mark))
        code = text.replace(_MARK_OPEN, Markup("<code>")).replace(_MARK_CLOSE, Markup("</code>"))
        spans.append(Markup('<span lang="{}">{}</span>').format(language, code))
    return Markup("").join(spans)


def _make_breakable(text: str) -> Markup:
    """Long dotted names and paths may break after their separators."""
    from markupsafe import Markup, escape

    parts = re.split(r"(?<=[./_])(?![./_\s]|$)", quote(text))
    return Markup("<wbr>").join(escape(part) for part in parts)


def escape_json(data: Any) -> str:
    """JSON that no text in it can end: no <, >, & and no line separators, for a script element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _join_scripts() -> str:
    parts = [read_asset(f"scripts/{name}.js") for name in SCRIPTS]
    return (
        read_asset("vendor/uPlot-1.6.32.iife.min.js") + '\n(() => {\n"use strict";\n' + "\n".join(parts) + "\n})();\n"
    )


_SCRIPT_TEXTS = (
    "status.",
    "meaning.",
    "phase.short.",
    "site.",
    "metric.",
    "role.",
    "table.",
    "map.",
    "layers.",
    "root",
    "page.search",
    "page.copied",
)


def _pack_page(report: Findings) -> dict[str, Any]:
    texts = {
        language: {key: say_raw(language, key) for key in TEXTS if key.startswith(_SCRIPT_TEXTS)}
        for language in LANGUAGES
    }
    return {
        "texts": texts,
        "records": pack_records(report.records),
        "origin": find_record(report, report.first),
        "curves": [encode_curve(curve) for curve in report.curves],
        "error_maps": [encode_error_map(found) for found in report.error_maps],
    }


def say_raw(language: str, key: str) -> str:
    """A text with its placeholders, for the page to fill in."""
    return TEXTS[key][LANGUAGES.index(language)]


def _describe(report: Findings) -> dict[str, Any]:
    total = total_coverage(report)
    runs = compare_runs(report.reference, report.candidate)
    others = [found for found in report.frontier if found != report.first]
    both = bool(report.reference) and bool(report.candidate)
    return {
        "first": None if report.first is None else _describe_divergence(report.first),
        "others": [_describe_divergence(found) for found in others[:SHOWN_OTHERS]],
        "unshown": max(len(others) - SHOWN_OTHERS, 0),
        "counts": count_statuses(report.records),
        "severity": SEVERITY,
        "coverage": report.coverage,
        "detectable": list_modules(report)[:SHOWN_MODULES],
        "total": total,
        "runs": [(name, left, right, both and left != right) for name, left, right in runs],
        "differing": sum(left != right and name not in OWN_FIELDS for name, left, right in runs) if both else 0,
        "shortcuts": SHORTCUTS,
        "curves": [_describe_curve(curve) for curve in report.curves],
        "next_command": suggest_command(report),
        "commands": list_commands(report),
        "maps": {found.key: place for place, found in enumerate(report.error_maps)},
        "printed": _choose_printed(report),
        "title": _name_runs(report),
    }


def _name_runs(report: Findings) -> str:
    devices = [str(side.get("device") or side.get("path") or "") for side in (report.reference, report.candidate)]
    return " → ".join(quote(device) for device in devices if device)


def _describe_curve(curve: Curve) -> dict[str, Any]:
    return {"name": quote(curve.name), "onset": curve.onset, "band": format_number(curve.band)}


def _describe_divergence(found: Divergence) -> dict[str, Any]:
    excess = measure_excess(found.metrics, found.limit)
    metrics = order_metrics(found.metrics, found.limit)
    leading = None if excess is None else {"name": metrics[0][0], "value": metrics[0][1]}
    words = {language: phrase_excess(found.metrics, found.limit, language) for language in LANGUAGES}
    return {
        "found": found,
        "leading": leading,
        "gauge": None if excess is None else _place_on_gauge(excess),
        "gauge_limit": _place_on_gauge(1.0),
        "excess": _in_every_language(words),
        "over": excess is not None and excess > 1,
        "metrics": metrics if leading is None else metrics[1:],
        "explanations": [(guess, _bar(guess.residual)) for guess in found.explanations],
        "mapping": None if found.mapping is None else describe_mapping(found.mapping),
    }


def _place_on_gauge(excess: float) -> float:
    """Percent of the gauge's width for a measured / allowed ratio."""
    if excess <= 0:
        return 0.0
    position = _GAUGE_HIGH if not math.isfinite(excess) else math.log10(excess)
    share = (position - _GAUGE_LOW) / (_GAUGE_HIGH - _GAUGE_LOW)
    return round(100 * min(max(share, 0.01), 1.0), 2)


def _bar(residual: float) -> float:
    return 100.0 if math.isnan(residual) else round(100 * min(max(residual, 0.0), 1.0), 2)


def _choose_printed(report: Findings) -> list[RecordResult]:
    rank = {status: index for index, status in enumerate(SEVERITY)}
    bad = [record for record in report.records if record.status not in (Status.PASS, Status.PROPAGATED)]
    return sorted(bad, key=lambda record: (rank[Status(record.status)], record.order))[:PRINTED_ROWS]
