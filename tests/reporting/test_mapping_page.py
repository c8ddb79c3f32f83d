"""mapping.html in a real Chromium: it searches and filters, asks nobody for anything, and complains of nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from precision_align.library.loading import load_library
from precision_align.library.releases import read_releases
from precision_align.library.rows import Evidence, MappingRow, RowKind, RowStatus
from precision_align.reporting.mapping_page import render_mapping_page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    symbol, evidence = '</script><img src=x onerror="alert(1)">', Evidence("here", "CPU")
    texts = ((symbol,), "a < b & c", RowKind.NATIVE, "'\"", RowStatus.VERIFIED, (evidence,))
    hostile = MappingRow("X1", "op", "", *texts, untested="why")
    file = tmp_path_factory.mktemp("mapping") / "mapping.html"
    file.write_text(render_mapping_page([*load_library().rows, hostile]), encoding="utf-8")
    return file


@pytest.fixture
def page(browser: Any, page_file: Path) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.extend([] if request.url.startswith("file:") else [request.url]))
    page.goto(page_file.as_uri())
    page.wait_for_selector("html[data-ready]")
    yield page
    context.close()
    assert [text for text in complaints if not text.startswith("data:")] == []


def shown(page: Any) -> set[str]:
    return set(page.eval_on_selector_all(".entry:not([hidden])", "entries => entries.map(entry => entry.id)"))


def test_it_searches_all_words_and_filters_by_kind_status_domain_and_release(page: Any) -> None:
    rows = {row.id: row for row in load_library().rows}
    assert shown(page) == {*rows, "X1"}
    page.fill("#search", "rotary INTERLEAVE")
    assert {"M054", "M009"} <= shown(page) <= rows.keys()
    assert page.inner_text("#shown").startswith(f"{len(shown(page))} of ")
    page.fill("#search", "")
    page.select_option("#kind", "fused")
    page.select_option("#status", "unverified")
    assert shown(page) == {id_ for id_, row in rows.items() if (row.kind, row.status) == ("fused", "unverified")}
    page.select_option("#status", "")
    page.select_option("#release", "2.1.0.post8")
    releases = read_releases()
    fused = {id_ for id_, row in rows.items() if row.kind == "fused"}
    assert shown(page) == {id_ for id_ in fused if releases.is_available("2.1.0.post8", rows[id_].versions.since)}
    assert "M043" not in shown(page)
    page.fill("#search", "no such operator anywhere")
    assert shown(page) == set()
    assert page.is_visible("#nothing")


def test_a_link_opens_filtered_or_at_a_row(page: Any, page_file: Path) -> None:
    page.goto("about:blank")
    page.goto(page_file.as_uri() + "#kind=unsupported&search=sparse")
    page.wait_for_selector("html[data-ready]")
    assert "M181" in shown(page)
    assert page.input_value("#kind") == "unsupported"
    page.goto("about:blank")
    page.goto(page_file.as_uri() + "#M053")
    page.wait_for_selector("html[data-ready]")
    assert page.is_visible("#M053 dl")
    page.click("#M053 summary")
    assert not page.is_visible("#M053 dl")


def test_texts_from_rows_cannot_become_markup_and_the_page_fits(page: Any) -> None:
    assert page.locator("#X1 img").count() == 0
    page.set_viewport_size({"width": 400, "height": 800})
    page.click("#X1 summary")
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow == 0
    before = page.get_attribute("html", "data-theme")
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") != before
