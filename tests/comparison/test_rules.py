"""Rule files: each override has a reason, and all problems are told at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_align.comparison.rules import Rules, load_rules
from precision_align.core.errors import RuleError
from precision_align.core.results import RecordResult
from precision_align.core.terms import Phase, Role, Site, Status

ROW = RecordResult(
    key="k",
    scope="layers.3.mlp.act",
    site=Site.MODULE,
    phase=Phase.FORWARD,
    role=Role.OUTPUT,
    path="",
    call=0,
    step=0,
    micro=0,
    rank=0,
    op="GELU",
    status=Status.FAIL,
    evidence="replay",
    note="too far",
)


@pytest.fixture
def write(tmp_path):
    def write_rules(text):
        path = tmp_path / "rules.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_rules


def rule(**values):
    lines = [f'{name} = "{value}"' for name, value in {"status": "ignore", "reason": "known", **values}.items()]
    return "\n".join(["[[rule]]", *lines, ""])


@pytest.mark.parametrize(
    ("selectors", "matches"),
    [
        ({"scope": "layers.*.act"}, True),
        ({"scope": "layers.3.*"}, True),
        ({"scope": "layers.4.*"}, False),
        ({"op": "GELU"}, True),
        ({"op": "gelu"}, False),
        ({"op": "GE*", "role": "output", "phase": "forward", "path": ""}, True),
        ({"op": "GELU", "phase": "backward"}, False),
    ],
)
def test_selectors_are_globs_and_all_must_match(write, selectors, matches):
    found = load_rules(write(rule(**selectors))).apply(ROW)
    assert found.status == (Status.PASS if matches else Status.FAIL)


@pytest.mark.parametrize(("action", "status"), [("ignore", Status.PASS), ("warn", Status.WARN), ("fail", Status.FAIL)])
def test_actions_and_their_reason(write, action, status):
    found = load_rules(write(rule(op="GELU", status=action, reason="vendor says so"))).apply(ROW)
    assert found.status == status
    assert "vendor says so" in found.note
    assert "too far" in found.note
    assert "rule 1" in found.note


def test_when_chooses_the_status_that_is_replaced(write):
    rules = load_rules(write(rule(op="GELU", status="fail", when="warn")))
    assert rules.apply(ROW).status == Status.FAIL
    assert rules.apply(ROW).note == "too far"
    assert rules.apply(replace(ROW, status=Status.WARN)).status == Status.FAIL
    assert rules.apply(replace(ROW, status=Status.PASS)).status == Status.PASS


def test_the_last_match_wins(write):
    rules = load_rules(write(rule(op="*", status="ignore") + rule(op="GELU", status="warn")))
    assert rules.apply(ROW).status == Status.WARN


def test_declared_modes(write):
    rules = load_rules(write('[modes]\ndeclared = ["HF32"]\n'))
    assert rules.is_declared("HF32: inputs of products rounded")
    assert not rules.is_declared("saturation: the largest finite value")
    assert not Rules().is_declared("anything")


def test_all_problems_at_once(write):
    text = """
extra = 1
[[rule]]
scope = "a"
status = "ignore"
[[rule]]
status = "hide"
reason = "  "
colour = "red"
[[rule]]
op = 3
status = "warn"
reason = "x"
when = "sometimes"
[modes]
declared = "hf32"
unknown = 1
"""
    with pytest.raises(RuleError) as caught:
        load_rules(write(text))
    message = str(caught.value)
    for part in (
        "unknown key 'extra'",
        "rule 1: a reason is mandatory",
        "rule 2: a reason is mandatory",
        "rule 2: unknown key 'colour'",
        "rule 2: status must be one of",
        "rule 2: no selector",
        "rule 3: op must be text",
        "rule 3: when is not a status",
        "modes: unknown key 'unknown'",
        "modes.declared must be a list",
        "rules.toml",
    ):
        assert part in message, part
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    "text",
    [
        "rule = 1",
        "[rule]\nscope = 'a'",
        "rule = [1]",
        "modes = 3",
        "rule = [[1]]",
        "modes = []",
        "[modes]\ndeclared = [1]",
    ],
)
def test_wrong_shapes_are_rule_errors(write, text):
    with pytest.raises(RuleError):
        load_rules(write(text))


def test_values_of_other_types_are_rule_errors(write):
    for line in ("status = []", "when = {}", "reason = 1", "when = 1", "status = 1"):
        with pytest.raises(RuleError):
            load_rules(write(f'[[rule]]\nscope = "a"\n{line}\n'))


def test_files_that_are_not_there_or_not_toml(write, tmp_path):
    with pytest.raises(RuleError, match="cannot read"):
        load_rules(tmp_path / "none.toml")
    with pytest.raises(RuleError, match="cannot read"):
        load_rules(tmp_path)
    with pytest.raises(RuleError, match="not TOML"):
        load_rules(write("[[rule"))
    path = tmp_path / "latin.toml"
    path.write_bytes(b"reason = '\xff'")
    with pytest.raises(RuleError, match="not TOML"):
        load_rules(path)


def test_an_empty_file_changes_nothing(write):
    assert load_rules(write("")).apply(ROW) == ROW
