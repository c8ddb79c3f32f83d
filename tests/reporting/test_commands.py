"""Commands to type next: what a shell makes of them, and which one it is."""

from __future__ import annotations

import os
import shlex
import subprocess
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.core.terms import Verdict
from precision_align.reporting.commands import join_command, list_commands, quote_word, suggest_command

# whatever a POSIX path may hold: any bytes but zero
PATHS = st.binary(min_size=1, max_size=40).map(lambda data: os.fsdecode(data.replace(b"\0", b"0")))


def read_words(command: str) -> list[bytes]:
    """The words that bash takes a command line to be."""
    script = f"for word in {command}; do printf '%s\\0' \"$word\"; done"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    return done.stdout.split(b"\0")[:-1]


@settings(max_examples=60)
@given(st.lists(PATHS | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=3))
def test_commands_can_be_pasted(parts: list[str]) -> None:
    command = join_command("show", *parts)
    assert command.isprintable()
    assert read_words(command) == [b"precision-align", b"show", *map(os.fsencode, parts)]


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("runs/a", "runs/a"),
        ("dir with 空格", "'dir with 空格'"),
        ("it's", "'it'\"'\"'s'"),
        ("dir\nit's \\x", r"$'dir\nit\'s \\x'"),
        ("a\x1b7", r"$'a\0337'"),
        ("\udcff", r"$'\377'"),
        ("\u202e", r"$'\342\200\256'"),
    ],
)
def test_quoted_words(word: str, quoted: str) -> None:
    assert quote_word(word) == quoted


@given(st.text(st.characters(exclude_categories=["C"]), min_size=1))
def test_plain_words_need_no_bash(text: str) -> None:
    if quote_word(text)[0] != "$":
        assert shlex.split(quote_word(text)) == [text]


@pytest.mark.parametrize(
    ("device", "option"),
    [("npu:0 Ascend910B3", "npu"), ("npu:0 simulated ascend910b", "simulated:ascend910b"), ("cuda:1", "cuda")],
)
def test_next_command_names_the_device(findings: ModuleType, device: str, option: str) -> None:
    report = findings.make_diverged(candidate={**findings.CANDIDATE, "device": device})
    assert suggest_command(report) == f"precision-align case run attention --device {option}"


def test_next_command_without_a_row_shows_the_tensor(findings: ModuleType) -> None:
    first = findings.make_divergence(mapping=None)
    assert suggest_command(findings.make_diverged(first=first)) == f"precision-align show runs/candidate {first.key}"


def test_no_command_names_a_dump_that_lies_nowhere(findings: ModuleType) -> None:
    nowhere = {**findings.CANDIDATE, "path": ""}
    first = findings.make_divergence(mapping=None)
    for changes in ({"first": first}, {"first": None, "verdict": Verdict.NOT_COMPARABLE}, {"first": None}):
        report = findings.make_diverged(candidate=nowhere, frontier=[], **changes)
        assert suggest_command(report) == ""
        assert list_commands(report) == []


def test_commands_name_the_replayed_code_and_extract_only_what_is_there(findings: ModuleType) -> None:
    candidate = {**findings.CANDIDATE, "replay": "train:build_model"}
    compare, _, extract, _ = list_commands(findings.make_diverged(candidate=candidate))
    assert compare == (
        "precision-align compare runs/reference runs/candidate --replay train:build_model -o report.html"
    )
    assert extract.startswith("precision-align case extract runs/candidate 0/0/0/module/")
    sketched = {**findings.CANDIDATE, "capture": {"payload": {"*": "sketch"}}}
    parameter = findings.make_divergence(key="0/0/0/parameters/a/0/first//0/forward/parameter/weight")
    for changes in ({"candidate": sketched}, {"first": parameter}):
        assert not [text for text in list_commands(findings.make_diverged(**changes)) if " extract " in text]
