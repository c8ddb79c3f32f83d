"""Pages of results as one self-contained HTML file, in every language at once."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from precision_align import __version__
from precision_align.core.results import Curve
from precision_align.reporting.html import build_environment, escape_json, say_raw
from precision_align.reporting.languages import LANGUAGES
from precision_align.reporting.pages import build_policy, read_asset, trust
from precision_align.reporting.resultpages import Page
from precision_align.reporting.serialization import encode_curve

_TEXTS = ("table.step", "table.onset", "table.reference", "table.candidate")
_SCRIPTS = ("texts", "curves", "sheet")


def render_pages(pages: Mapping[str, Page], title: str, *, language: str = "en") -> str:
    """The file; ``pages`` holds one page for each language, ``language`` is the one it opens in.

    Raises Unavailable where jinja2 is not installed.
    """
    environment = build_environment()
    head = read_asset("scripts/theme.js")
    body = _join_scripts()
    curves = [curve for block in pages[language].blocks for curve in block.curves]
    return environment.get_template("page.html.j2").render(
        pages=pages,
        curve_places=_number_curves(pages),
        title=title,
        language=language,
        version=__version__,
        policy=build_policy(head, body),
        style=trust(read_asset("vendor/uPlot-1.6.32.min.css") + read_asset("report.css")),
        head_script=trust(head),
        body_script=trust(body),
        data=trust(escape_json(_pack(curves, language))),
        encode_picture=_encode_picture,
    )


def _join_scripts() -> str:
    parts = [read_asset(f"scripts/{name}.js") for name in _SCRIPTS]
    return (
        read_asset("vendor/uPlot-1.6.32.iife.min.js") + '\n(() => {\n"use strict";\n' + "\n".join(parts) + "\n})();\n"
    )


def _number_curves(pages: Mapping[str, Page]) -> dict[str, list[list[int]]]:
    """For each language and block the numbers of its curves."""
    numbered = {}
    for language, page in pages.items():
        count, places = 0, []
        for block in page.blocks:
            places.append([*range(count, count + len(block.curves))])
            count += len(block.curves)
        numbered[language] = places
    return numbered


def _pack(curves: list[Curve], language: str) -> dict[str, Any]:
    texts = {language: {key: say_raw(language, key) for key in _TEXTS} for language in LANGUAGES}
    return {"texts": texts, "curves": [encode_curve(curve) for curve in curves], "language": language}


def _encode_picture(content: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(content).decode("ascii")
