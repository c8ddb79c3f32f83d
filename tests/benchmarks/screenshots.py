"""Screenshots of report.html: 100 and 100,000 records, 1280 and 400 pixels, light and dark, English and Chinese.

Usage: python tests/benchmarks/screenshots.py [FOLDER]; default reports/screenshots, which git ignores. Prints the size
of each page and the time to its first paint. Chinese needs a font, such as Debian's fonts-wqy-microhei.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "reporting" / "fixtures"))

import findings  # noqa: E402

CHROMIUM = "/usr/bin/chromium"
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
READY = "performance.now()"


def main(folder: Path) -> None:
    """Write the pages and their screenshots."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {
        "100": findings.make_diverged(records=findings.make_records(layers=2, steps=2)),
        "100000": findings.make_large(),
    }
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--headless", "--no-sandbox"])
        for name, report in pages.items():
            page = report.save(folder / f"report-{name}.html")
            print(f"{name} records: {page.stat().st_size / 1024:,.0f} KB")
            for width in (1280, 400):
                for scheme in ("light", "dark"):
                    _shoot(browser, page, width, scheme)
        browser.close()


def _shoot(browser: Any, path: Path, width: int, scheme: str) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]", timeout=60_000)
    print(f"  {width} {scheme}: first paint {page.evaluate(PAINT):.0f} ms, ready {page.evaluate(READY):.0f} ms")
    for language in ("en", "zh"):
        target = path.with_name(f"{path.stem}-{width}-{scheme}-{language}.png")
        page.screenshot(path=target, full_page=True)
        page.click("#language")
    context.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "reports" / "screenshots")
