"""Pages of results: on a terminal, as a file, in a browser."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from precision_align.core.errors import UsageError
from precision_align.core.results import Curve
from precision_align.core.terms import Verdict
from precision_align.reporting.losses import describe_losses
from precision_align.reporting.resultpages import Block, Page, render_page
from precision_align.reporting.saving import check_page_target, save_pages
from precision_align.reporting.terminal import measure_width
from precision_align.training.curves import compare_losses

REFERENCE = [(step, 3.0 - step / 50) for step in range(60)]
CANDIDATE = [(step, value * (1.1 if step >= 40 else 1.0)) for step, value in REFERENCE]
HOSTILE = "</script><script>alert(1)</script>\x1b[31m\u202e"
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360f8cf00000301010018dd8db0"
    "0000000049454e44ae426082"
)


def make_page(word: str = "PARTED") -> Page:
    curve = Curve("loss", REFERENCE, CANDIDATE, 40, 0.1)
    blocks = [
        Block(curves=[curve], drawing="#.#\n.#."),
        Block("Facts", lines=["one " * 60, HOSTILE]),
        Block("Table", columns=["a", "b"], rows=[("short", "long words " * 20), ("模块", "值")]),
        Block("Pictures", pictures=[("error map", PNG)]),
        Block("Next", commands=["precision-align compare a b"]),
        Block("Left out"),
    ]
    return Page(Verdict.DIVERGED, word, "the curves part", blocks)


@dataclass(frozen=True)
class Saved:
    """Opens in the browser fixture."""

    pages: dict[str, Page]

    def save(self, path: Path, language: str) -> Path:
        return save_pages(path, {"a": float("nan")}, self.pages, "title", language)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_text_keeps_to_the_width(width: int) -> None:
    text = render_page(make_page(), width)
    assert max(measure_width(line) for line in text.splitlines()) <= width
    assert text.startswith("PARTED  the curves part\n")
    assert "Left out" not in text
    assert "\x1b" not in text
    assert "\x1b[31;1mPARTED" in render_page(make_page(), width, color=True)


def test_a_real_result_keeps_to_the_width_in_both_languages() -> None:
    report = compare_losses(REFERENCE, CANDIDATE)
    for language in ("en", "zh"):
        text = render_page(describe_losses(report, language, drawing=report.plot(80)), 80)
        commands = "precision-align capture"
        assert all(measure_width(line) <= 80 for line in text.splitlines() if commands not in line)
        assert text.isprintable() or "\n" in text
        assert render_page(describe_losses(report, language), 80, encoding="ascii").isascii()


def test_files_by_suffix(tmp_path: Path) -> None:
    pages = {"en": make_page(), "zh": make_page("已分开")}
    assert '"a"' in save_pages(tmp_path / "r.json", {"a": float("inf")}, pages, "t", "en").read_text()
    html = save_pages(tmp_path / "r.html", {}, pages, "t", "en").read_text("utf-8")
    assert html.count("<script") == 3  # theme, data, body: nothing from outside
    assert "data:image/png;base64," in html
    assert "Left out" not in html
    for name in ("r.txt", "nowhere/r.html", "."):
        with pytest.raises(UsageError):
            check_page_target(tmp_path / name)


@pytest.mark.browser
def test_the_page_opens_draws_and_switches_its_language(open_report: Any) -> None:
    watched = open_report(Saved({"en": make_page(), "zh": make_page("已分开")}))
    page = watched.page
    assert page.locator("main:visible .verdict").inner_text() == "PARTED"
    assert page.locator("main:visible .curve canvas").count() == 1
    page.click("#language")
    assert page.locator("main:visible .verdict").inner_text() == "已分开"
    assert page.locator("main:visible .curve canvas").count() == 1
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.locator("main:visible img").evaluate("image => image.naturalWidth") == 1


@pytest.mark.browser
def test_a_narrow_page_does_not_scroll_sideways(open_report: Any) -> None:
    page = open_report(Saved({"en": make_page(), "zh": make_page()}), width=390).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
