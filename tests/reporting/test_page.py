"""report.html in a real Chromium: no complaint, no request, and everything in it works."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from precision_align.core.terms import Status

pytestmark = pytest.mark.browser


def visible_rows(page: Any) -> list[str]:
    rows: list[str] = page.eval_on_selector_all(".line .scope", "cells => cells.map(cell => cell.textContent)")
    return rows


def shown_count(page: Any) -> str:
    text: str = page.inner_text("#shown")
    return text


def wait_for_text(page: Any, selector: str, pattern: str) -> None:
    """Without wait_for_function: the page's policy forbids eval, even to a test."""
    page.locator(selector).filter(has_text=re.compile(pattern)).first.wait_for()


def is_in_view(page: Any, selector: str) -> bool:
    inside: bool = page.eval_on_selector(
        selector, "e => { const b = e.getBoundingClientRect(); return b.top >= 0 && b.bottom <= innerHeight + 1; }"
    )
    return inside


@pytest.mark.parametrize(
    ("make", "width", "scheme"),
    [
        ("make_diverged", 1280, "light"),
        ("make_diverged", 400, "dark"),
        ("make_aligned", 1280, "dark"),
        ("make_empty", 400, "light"),
        ("make_hostile", 400, "light"),
        ("make_hostile", 1280, "dark"),
    ],
)
def test_every_report_opens_without_complaint(
    findings: ModuleType, open_report: Any, tmp_path: Path, make: str, width: int, scheme: str
) -> None:
    page = open_report(getattr(findings, make)(), width=width, scheme=scheme).page
    page.screenshot(path=tmp_path / f"{make}-{width}-{scheme}.png", full_page=True)
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow == 0
    assert page.get_attribute("html", "data-theme") == scheme


def test_verdict_place_and_reasons_are_on_the_page(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged()).page
    assert "inline code of module transformer.h.0.attn" in page.inner_text("h1")
    text = page.inner_text("#first")
    for part in (
        "CausalSelfAttention",
        "model.py:57",
        "52.9x the limit",
        "float64 replay",
        "top-left",
        "sparse_mode=3",
    ):
        assert part in text
    assert page.inner_text(".cases li.failed code") == "attention/causal_sq_lt_skv"
    assert "95.4 %" in page.inner_text("#coverage")
    assert "statistics only" in page.inner_text("#coverage")
    assert "precision-align compare runs/reference runs/candidate" in page.inner_text("#reproduce")


def test_names_cannot_break_out(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_hostile()).page
    page.keyboard.press("j")
    page.hover(".walk canvas")
    page.click("#language")
    assert page.evaluate("window.pwned") is None
    assert page.locator("img").count() == 0
    assert "</script><img src=x" in page.inner_text("h1")
    assert "</script><img src=x" in page.inner_text("#detail")


def test_injected_markup_would_not_run_either(findings: ModuleType, open_report: Any) -> None:
    watched = open_report(findings.make_diverged())
    watched.page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.pwned=1\"><i onclick=\"pwned=1\">')"
    )
    watched.page.wait_for_timeout(100)
    assert watched.page.evaluate("window.pwned") is None
    assert any("Content Security Policy" in complaint for complaint in watched.complaints)
    watched.complaints.clear()


def test_search_filters_rows_and_slash_reaches_it(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged()).page
    assert shown_count(page) == "176 records"
    page.keyboard.press("/")
    page.keyboard.type("h.3 gelu", delay=30)  # each letter is handled before the next, the blank too
    wait_for_text(page, "#shown", "^4 of 176$")
    assert set(visible_rows(page)) == {"transformer.h.3.mlp.gelu"}
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    assert shown_count(page) == "176 records"


def test_nothing_found_says_so(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged()).page
    page.fill("#search", "no such thing")
    page.wait_for_selector("#nothing:visible")
    assert visible_rows(page) == []
    page.click("#clear")
    assert shown_count(page) == "176 records"


def test_status_filter_counts_and_filters(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged()).page
    page.click("button[data-status=fail]")
    assert shown_count(page) == "2 of 176"
    page.click("button[data-status=inconclusive]")
    assert shown_count(page) == "4 of 176"
    page.click("button[data-status=fail]")
    assert shown_count(page) == "2 of 176"
    assert page.get_attribute("button[data-status=inconclusive]", "aria-pressed") == "true"


def test_legend_in_the_head_leads_to_filtered_rows(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged()).page
    page.click(".legend a[href='#status=warn']")
    wait_for_text(page, "#shown", "^16 of")


def test_sorting_by_excess_brings_the_worst_to_the_top(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged()).page
    page.click("[data-sort=excess]")
    assert page.locator(".line").first.get_attribute("class").split()[1] == "fail"
    page.click("[data-sort=scope]")
    assert visible_rows(page)[0] == "lm_head" or visible_rows(page)[0] == "the model itself"
    page.click("[data-sort=scope]")
    assert visible_rows(page)[0] == "transformer.wte"


def test_modules_sort_as_numbers(findings: ModuleType, open_report: Any) -> None:
    records = [findings.make_record(f"h.{layer}", Status.PASS, layer) for layer in (10, 2, 1)]
    page = open_report(findings.make_diverged(records=records)).page
    page.click("[data-sort=scope]")
    assert visible_rows(page) == ["h.1", "h.2", "h.10"]


def test_origin_link_jumps_to_the_row(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged()).page
    page.click("button[data-status=warn]")  # hides the origin: the jump must bring it back
    page.click("#origin")
    page.wait_for_selector(".line.origin[aria-selected=true]")
    page.wait_for_timeout(600)  # smooth scrolling
    assert is_in_view(page, ".line.origin")
    assert "transformer.h.0.attn" in page.inner_text("#detail")
    assert "single values are further" in page.inner_text("#detail")


def test_tree_marks_the_origin_and_filters(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged()).page
    node = page.locator(".node[data-path='transformer.h.0.attn']")
    assert "origin" in node.get_attribute("class")
    assert "fail" in node.get_attribute("class")
    assert "fail" in page.locator(".node[data-path='transformer']").get_attribute("class")
    assert "warn" in page.locator(".node[data-path='transformer.h.2']").get_attribute("class")
    page.click(".node[data-path='transformer.h.2'] .name")
    assert shown_count(page) == "40 of 176"
    assert all(scope.startswith("transformer.h.2") for scope in visible_rows(page))
    page.focus(".node[data-path='transformer.h.2']")
    page.keyboard.press("ArrowRight")
    assert page.locator(".node[data-path='transformer.h.2.mlp']").is_visible()
    page.click("#module")
    assert shown_count(page) == "176 records"


def test_a_view_can_be_linked_to(findings: ModuleType, open_report: Any) -> None:
    first = open_report(findings.make_diverged()).page
    first.click("button[data-status=fail]")
    first.click(".line >> nth=1")
    hash_ = first.evaluate("location.hash")
    assert "status=fail" in hash_
    assert "record=" in hash_
    second = open_report(findings.make_diverged(), hash_=hash_).page
    assert shown_count(second) == "2 of 176"
    assert second.locator(".line[aria-selected=true]").count() == 1
    assert second.inner_text("#detail") == first.inner_text("#detail")


@pytest.mark.parametrize(
    "hash_", ["#status=none&step=x&phase=up&sort=evil", "#record=%00", "#=", "#records", "#q=%3Cimg%3E"]
)
def test_strange_links_do_no_harm(findings: ModuleType, open_report: Any, hash_: str) -> None:
    page = open_report(findings.make_diverged(), hash_=hash_).page
    assert page.locator("#grid").is_visible()


def test_keyboard_walks_rows(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged()).page
    for _ in range(40):
        page.keyboard.press("j")
    selected = page.locator(".line[aria-selected=true] .order")
    assert selected.inner_text() == "39"
    page.keyboard.press("k")
    assert selected.inner_text() == "38"
    page.keyboard.press("o")
    assert selected.inner_text() == "3"
    page.keyboard.press("Escape")
    assert page.locator("#detail").is_hidden()


def test_theme_switches_and_recolors(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged()).page
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.keyboard.press("t")
    assert page.get_attribute("html", "data-theme") == "dark"
    assert page.evaluate(ground) != light


def test_language_switches_everything(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged()).page
    page.click("#language")
    assert page.inner_text("h1").startswith("候选运行最早在模块 transformer.h.0.attn")
    assert page.inner_text("#shown") == "176 条记录"
    assert "失败" in page.inner_text("#states")
    assert page.get_attribute("html", "lang") == "zh"
    page.click("#language")
    assert page.inner_text("#shown") == "176 records"


def test_page_opens_in_the_language_asked_for(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged(), language="zh").page
    assert page.inner_text(".verdict") == "已偏离"


def test_curves_are_drawn_with_nan_and_one_sided_steps(findings: ModuleType, open_report: Any) -> None:
    curve = findings.make_curves(10)[0]
    broken = type(curve)("loss", curve.reference[:5], [*curve.candidate, (10, float("nan"))], 9, 0.03)
    page = open_report(findings.make_diverged(curves=[broken, type(curve)("grad_norm", [], [], None, 0.0)])).page
    assert page.locator(".curve .uplot").count() == 1
    assert (
        page.locator("#curves figcaption").first.inner_text()
        == "loss: the two runs part at step 9, beyond a band of 0.03."
    )


def read_pixel(page: Any, selector: str, across: float, down: float) -> list[int]:
    """RGB of a canvas at a share of its width and height."""
    pixel: list[int] = page.eval_on_selector(
        selector,
        """(canvas, [x, y]) => {
           const copy = new OffscreenCanvas(1, 1).getContext("2d");
           copy.drawImage(canvas, -Math.floor(x * canvas.width), -Math.floor(y * canvas.height));
           return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }""",
        [across, down],
    )
    return pixel


def test_heat_map_shows_the_wrong_heads_in_both_themes(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged()).page
    heat = ".map-figures .heat canvas"
    assert page.locator(".map-figures canvas").count() == 4  # cells, values, errors, the batch's profile
    width = page.eval_on_selector(heat, "canvas => canvas.clientWidth")
    head = (58 + (width - 68) * 3.5 / 12) / width  # the middle of head 3 of 12, between the axis and the margin
    for _ in range(2):
        right, wrong = read_pixel(page, heat, head, 0.2), read_pixel(page, heat, head, 0.7)
        assert max(abs(a - b) for a, b in zip(right, wrong, strict=True)) > 60
        page.keyboard.press("t")
    assert "2 × 128 × 768" in page.get_attribute(heat, "aria-label")
    words = page.inner_text(".map-lead")
    assert "The largest error is Inf, at dimension 0: 1, dimension 1: 100–101, dimension 2: 492–503" in words
    assert "1 element is not finite on one side." in words
    page.hover(heat, position={"x": head * width, "y": 200})
    assert re.match(r"\[\d+–\d+, \d+–\d+\] 1\.\d", page.get_attribute(heat, "title"))
    page.keyboard.press("l")
    assert page.inner_text(".map-lead").startswith("2 × 128 × 768：候选与其 float64 重放之比较。")


def test_other_places_draw_their_map_when_opened(findings: ModuleType, open_report: Any) -> None:
    report = findings.make_diverged()
    keys = [found.key for found in report.frontier]
    page = open_report(findings.make_diverged(error_maps=[findings.make_error_map(key) for key in keys])).page
    assert page.locator(".other canvas").count() == 0
    page.click(".other summary")
    page.locator(".other .heat canvas").wait_for()


def test_error_curves_name_the_module_and_lead_to_it(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged()).page
    page.locator("#layers .u-over").scroll_into_view_if_needed()
    box = page.locator("#layers .u-over").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 3 / 43, box["y"] + 40)
    assert "transformer.h.0.attn · call 0" in page.inner_text("#layers .u-legend")
    page.mouse.click(box["x"] + box["width"] * 3 / 43, box["y"] + 40)
    assert "transformer.h.0.attn" in page.inner_text("#detail")
    assert page.locator("#steps .uplot").is_visible()


def test_keys_are_listed_under_a_question_mark(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged()).page
    page.keyboard.press("?")
    assert "first divergence" in page.inner_text("#help")
    page.keyboard.press("j")  # the list is open: keys are its own
    page.keyboard.press("Escape")
    assert page.locator("#help").is_hidden()
    assert page.locator(".line[aria-selected=true]").count() == 0
    page.keyboard.press("n")
    assert page.locator(".line[aria-selected=true] .order").inner_text() == "3"
    page.keyboard.press("n")
    page.keyboard.press("p")
    assert page.locator(".line[aria-selected=true] .order").inner_text() == "3"


def test_every_control_has_a_name(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged(), language="zh").page
    nameless = page.eval_on_selector_all(
        "button, select, input, canvas, [role=tree], [role=grid], [role=group], dialog",
        """all => all.filter((e) => e.checkVisibility() && !(e.getAttribute("aria-label") || e.innerText
           || e.labels?.length || document.getElementById(e.getAttribute("aria-labelledby"))))
           .map((e) => e.outerHTML.slice(0, 80))""",
    )
    assert nameless == []
    assert page.get_attribute("#phase", "aria-label") == "阶段"


def test_runs_show_differences_first(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged()).page
    assert page.locator("#sides tr.equal").first.is_hidden()
    assert page.locator("#sides tr.different", has_text="versions.torch_npu").is_visible()
    page.check("#equal")
    assert page.locator("#sides tr.equal", has_text="versions.torch").first.is_visible()


def test_paper_and_no_script_still_tell_the_story(findings: ModuleType, browser: Any, tmp_path: Path) -> None:
    path = findings.make_diverged().save(tmp_path / "report.html")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert "transformer.h.0.attn" in page.inner_text("h1")
    assert page.locator(".printed tbody tr").first.is_visible()
    page.emulate_media(media="print")
    assert page.locator(".printed").is_visible()
    assert not page.locator(".top").is_visible()
    context.close()


def test_a_run_in_which_everything_fails_stays_readable(findings: ModuleType, open_report: Any) -> None:
    many = [findings.make_divergence(f"model.layers.{layer}") for layer in range(3000)]
    page = open_report(findings.make_diverged(first=many[0], frontier=many)).page
    assert page.locator(".other").count() == 50
    assert "2949 more are in the table." in page.inner_text("#frontier")


def test_dark_pages_print_on_white(findings: ModuleType, open_report: Any) -> None:
    page = open_report(findings.make_diverged(), scheme="dark").page
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.emulate_media(media="screen")
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.get_attribute("html", "data-theme") == "dark"


def test_100_000_records_are_usable(findings: ModuleType, open_report: Any, tmp_path: Path) -> None:
    report = findings.make_large()
    page = open_report(report).page
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    print(f"first paint after {paint:.0f} ms")  # shown, not held to a limit: the machine is shared
    assert paint > 0
    assert (tmp_path / "report.html").stat().st_size < 50_000_000
    assert shown_count(page) == "100,000 records"
    assert page.locator(".line").count() < 60
    page.evaluate("document.getElementById('grid-body').scrollTop = 1e9")
    wait_for_text(page, ".line .order", "^99999$")
    page.fill("#search", "layers.173 part_5")
    wait_for_text(page, "#shown", "^6[23] of")
    page.click("#clear")
    page.keyboard.press("o")
    page.wait_for_selector(".line.origin[aria-selected=true]")
    assert page.locator(".line.origin .order").inner_text() == "77777"
    page.click("[data-sort=excess]")
    assert shown_count(page) == "100,000 records"
    page.screenshot(path=tmp_path / "large.png")


def test_file_fetches_nothing_by_its_text(findings: ModuleType, tmp_path: Path) -> None:
    text = findings.make_diverged().save(tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", text)
    assert "default-src &#39;none&#39;" in text
