"""Findings built by hand, and a browser."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def findings() -> ModuleType:
    """The module fixtures/findings.py."""
    name = "reporting_findings"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "fixtures" / "findings.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    playwright = pytest.importorskip("playwright.sync_api")
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not installed")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield chromium
        chromium.close()


class Watched:
    """A page, and everything that went wrong or out of it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", self._see)

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def _see(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:")):
            self.complaints.append(f"request: {request.url}")


@pytest.fixture
def open_report(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """open_report(report, width=, scheme=, hash=) -> Watched; no page may complain by the end of the test."""
    opened: list[Watched] = []

    def open_one(
        report: Any, width: int = 1280, scheme: str = "light", hash_: str = "", language: str = "en"
    ) -> Watched:
        path = report.save(tmp_path / "report.html", language=language)
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        watched = Watched(context.new_page())
        opened.append(watched)
        watched.page.goto(path.as_uri() + hash_)
        watched.page.wait_for_selector("html[data-ready]", timeout=30_000)
        return watched

    yield open_one
    for watched in opened:
        watched.page.context.close()
        assert watched.complaints == []
