"""report: every form, every kind of bad file."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest


def test_shows_the_first_screen(command: Any, findings: ModuleType) -> None:
    path = findings.make_diverged().save(command.folder / "r.json")
    outcome = command("report", path)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("DIVERGED")
    assert outcome.out.endswith("Next: precision-align case run attention --device npu\n")
    assert "\x1b" not in outcome.out


def test_writes_every_form(command: Any, findings: ModuleType) -> None:
    path = findings.make_diverged().save(command.folder / "r.json")
    outcome = command(
        "report", path, "-o", "a.html", "-o", "a.md", "--output", "a.xml", "-o", "b.json", "-o", "a.csv", "-o", "a.xlsx"
    )
    assert outcome.status == 0
    assert outcome.err.splitlines() == [
        f"saved {name}" for name in ("a.html", "a.md", "a.xml", "b.json", "a.csv", "a.xlsx")
    ]
    folder = command.folder
    assert (folder / "a.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (folder / "a.md").read_text(encoding="utf-8").startswith("## Diverged")
    assert ElementTree.parse(folder / "a.xml").getroot().tag == "testsuites"
    assert (folder / "b.json").read_bytes() == path.read_bytes()


def test_schema_is_printed_and_fits(command: Any, findings: ModuleType) -> None:
    outcome = command("report", "--schema")
    assert (outcome.status, outcome.err) == (0, "")
    schema = json.loads(outcome.out)
    for make in (findings.make_diverged, findings.make_aligned, findings.make_empty, findings.make_hostile):
        jsonschema.validate(make().to_dict(), schema, jsonschema.Draft202012Validator)
    assert command("report").status == 2


def test_json_is_the_saved_result(command: Any, findings: ModuleType) -> None:
    path = findings.make_hostile().save(command.folder / "r.json")
    assert command("report", path, "--json").out == path.read_text(encoding="ascii")


def test_chinese_page_and_screen(command: Any, findings: ModuleType) -> None:
    path = findings.make_diverged().save(command.folder / "r.json")
    outcome = command("report", path, "-o", "a.html", "--lang", "zh")
    assert outcome.out.startswith("已偏离")
    assert '<html lang="zh"' in (command.folder / "a.html").read_text(encoding="utf-8")


def write_truncated(path: Path, findings: ModuleType) -> None:
    whole = findings.make_diverged().save(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def write_foreign(path: Path, findings: ModuleType) -> None:
    path.write_text('{"hello": 1}', encoding="utf-8")


def write_binary(path: Path, findings: ModuleType) -> None:
    path.write_bytes(bytes(range(256)))


def write_newer(path: Path, findings: ModuleType) -> None:
    path.write_text(json.dumps({**findings.make_aligned().to_dict(), "schema_version": 99}), encoding="utf-8")


def write_deep(path: Path, findings: ModuleType) -> None:
    path.write_text('{"a":' * 100_000, encoding="utf-8")


def make_folder(path: Path, findings: ModuleType) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("write", "code"),
    [
        (write_truncated, "PA202"),
        (write_deep, "PA202"),
        (write_foreign, "PA203"),
        (write_binary, "PA203"),
        (make_folder, "PA203"),
        (write_newer, "PA204"),
    ],
)
def test_bad_files(command: Any, findings: ModuleType, write: Any, code: str) -> None:
    path = command.folder / "bad.json"
    write(path, findings)
    outcome = command("report", path, "-o", "a.html")
    assert (outcome.status, outcome.out) == (3, "")
    assert outcome.err.startswith(f"error [{code}] ")
    assert "bad.json" in outcome.err
    assert not (command.folder / "a.html").exists()


def test_html_without_jinja2_says_what_to_install(command: Any, findings: ModuleType) -> None:
    path = findings.make_diverged().save(command.folder / "r.json")
    (command.folder / "jinja2.py").write_text("raise ImportError('not here')", encoding="utf-8")
    program, environment = [sys.executable, "-m", "precision_align", "report"], {"PYTHONPATH": str(command.folder)}
    outcome = command.launch(program, (path, "-o", "a.html"), environment)
    assert outcome.status == 2
    assert outcome.err.startswith("error [PA300] ")
    assert "pip install 'precision-align[analysis]'" in outcome.err
    assert command.launch(program, (path, "-o", "a.md"), environment).status == 0


def test_read_only_folder(command: Any, findings: ModuleType) -> None:
    path = findings.make_diverged().save(command.folder / "r.json")
    outcome = command("report", path, "-o", "/proc/a.html")
    assert outcome.status == 2
    assert "cannot write the report" in outcome.err
