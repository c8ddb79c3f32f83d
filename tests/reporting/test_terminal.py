"""The first screen: fits, says the place, survives poor terminals."""

from __future__ import annotations

import re
from dataclasses import replace
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_align.core.results import Explanation, Limit
from precision_align.core.terms import Kind, Phase, Site, Verdict
from precision_align.reporting.terminal import clip, fold, measure_width, render


def lines_of(text: str) -> list[str]:
    return text.rstrip("\n").split("\n")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("make", ["make_diverged", "make_aligned", "make_empty", "make_hostile"])
def test_screen_fits_80_by_24(findings: ModuleType, make: str, language: str) -> None:
    lines = lines_of(render(getattr(findings, make)(), 80, language=language))
    assert len(lines) <= (24 if make != "make_hostile" else 32)
    command = lines[-1] if ":" in lines[-1] or "：" in lines[-1] else ""
    assert max(measure_width(line) for line in lines if line != command) <= 80
    assert all(line == line.rstrip() for line in lines)


def test_screen_names_place_evidence_and_next_command(findings: ModuleType) -> None:
    text = render(findings.make_diverged())
    head = lines_of(text)[:2]
    assert head[0].startswith("DIVERGED")
    assert "inline code of module" in " ".join(head)
    assert "transformer.h.0.attn · forward · step 0 · call 0" in text
    assert "/workspace/nanogpt/model.py:57" in text
    assert "212, limit 4 (52.9x the limit)" in text
    assert "[leaves <0.1 %] the causal mask" in text
    assert "attention/causal_sq_lt_skv: fail" in text
    assert "backward 95.4 % (84/88)" in text
    assert lines_of(text)[-1] == "Next: precision-align case run attention --device npu"


def test_aligned_never_claims_what_was_not_judged(findings: ModuleType) -> None:
    text = render(findings.make_aligned())
    assert "224 of 228 records judged" in text.replace("\n", " ")
    assert "4 gradients" in text.partition("  notes  ")[2]


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("site", Site)
@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_place_has_its_sentence(
    findings: ModuleType, kind: Kind, site: Site, phase: Phase, language: str
) -> None:
    for scope in ("encoder.layers.0", ""):
        first = findings.make_divergence(scope, kind=kind, site=site, phase=phase)
        text = render(findings.make_diverged(first=first, frontier=[first]), language=language)
        assert "{" not in text
        assert (scope or ("the model itself" if language == "en" else "模型整体")) in text.replace("\n", " ")


def test_control_characters_cannot_reach_the_terminal(findings: ModuleType) -> None:
    text = render(findings.make_hostile())
    assert "\x1b" not in text
    assert "\u2028" not in text
    assert "\\x1b[31m" in text


def test_color_adds_only_escapes(findings: ModuleType) -> None:
    report = findings.make_diverged()
    colored = render(report, color=True)
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[\d;]*m", "", colored) == render(report)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "gbk", "utf-8", "cp1252"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_any_encoding_can_show_it(findings: ModuleType, encoding: str, language: str) -> None:
    first = findings.make_divergence("模型.编码器.\udcff", source="/家/训练.py:3")
    text = render(findings.make_diverged(first=first), language=language, encoding=encoding)
    assert text.encode(encoding)
    chinese = language == "zh" and encoding in ("gbk", "utf-8")
    assert text.startswith("已偏离" if chinese else "DIVERGED")


def test_ascii_uses_plain_marks_instead_of_escapes(findings: ModuleType) -> None:
    text = render(findings.make_diverged(), encoding="ascii")
    assert "\\u" not in text
    assert "flash_attn.flash_attn_func ->" in text


def test_not_comparable_leads_to_the_dump(findings: ModuleType) -> None:
    text = render(findings.make_empty())
    assert text.startswith("NOT COMPARABLE")
    assert "precision-align show runs/candidate" in text


def test_limit_of_zero_is_not_divided_by(findings: ModuleType) -> None:
    first = findings.make_divergence(metrics={"mismatched": 0.25}, limit=Limit("mismatched", 0.0, "exact"))
    assert "none may" in render(findings.make_diverged(first=first))


def test_unknown_residual_is_not_called_zero(findings: ModuleType) -> None:
    first = findings.make_divergence(explanations=[Explanation("x", "a guess", float("nan"))])
    assert "[leaves ? %] a guess" in render(findings.make_diverged(first=first))


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_nothing_of_the_first_divergence_is_cut(findings: ModuleType, width: int, language: str) -> None:
    long = "encoder." + ".".join(f"layers.{number}" for number in range(20))
    evidence = "float64 replay: " + " ".join(f"word{number}" for number in range(60)) + f" (seen at output {long})"
    guess = "optimizer: " + " ".join(f"decay{number}" for number in range(40))
    row = {"op": "x", "symbols": ["a.b"], "replacement": " ".join(f"or{n}" for n in range(40)), "cases": ["x/1", "x/2"]}
    first = findings.make_divergence(
        long, source=f"/home/{long}.py:3", evidence=evidence, explanations=[Explanation("g", guess, 0.1)], mapping=row
    )
    others = [findings.make_divergence(f"{long}.{number}", key=str(number)) for number in range(3)]
    report = findings.make_diverged(first=first, frontier=[first, *others], notes=["one"])
    text = "".join(render(report, width, language=language).split())
    for part in (long, first.source, evidence, guess, row["replacement"], "x/2", f"{long}.2"):
        assert "".join(str(part).split()) in text
    assert "…" not in text


def test_optional_lines_fill_what_is_left(findings: ModuleType) -> None:
    first = findings.make_divergence(evidence=" ".join(["word"] * 30))
    full = render(findings.make_diverged(first=first))
    assert "pitfalls" not in full
    assert "loss parts at step 9" in full
    assert "pitfalls" in render(findings.make_diverged(first=findings.make_divergence(evidence="short", op="")))


@pytest.mark.parametrize(("count", "said"), [(1, "1 more independent place: a "), (2, "2 more independent places: ")])
def test_one_place_is_not_many(findings: ModuleType, count: int, said: str) -> None:
    first = findings.make_divergence()
    others = [findings.make_divergence("ab"[number], key=str(number)) for number in range(count)]
    assert said in render(findings.make_diverged(first=first, frontier=[first, *others]))


@pytest.mark.parametrize(
    ("note", "english", "chinese"),
    [
        (
            "candidate: runs/c/rank00000: the capture was not closed, later steps may be missing",
            "No verdict: candidate: runs/c/rank00000: the capture was not closed, later steps may be missing. 0 of",
            "没有结论：候选：runs/c/rank00000：录制没有正常结束，之后的步骤可能缺失。共",
        ),
        (
            "no output of the model and no optimizer step could be judged",
            "No verdict: no output of the model and no optimizer step could be judged. 0 of",
            "没有结论：模型的输出和优化器更新都无法判定。共",
        ),
        ("something\nnew.", "No verdict: something\\nnew. 0 of", "没有结论：something\\nnew。共"),
    ],
)
def test_no_verdict_says_why(findings: ModuleType, note: str, english: str, chinese: str) -> None:
    report = replace(findings.make_empty(), notes=[note, "another"])
    assert english in " ".join(render(report, 400).split())
    assert chinese in render(report, 400, language="zh")
    assert "too little could be judged" in render(replace(report, notes=[]))


def test_many_notes_are_counted(findings: ModuleType) -> None:
    text = render(findings.make_diverged(notes=[f"note {number}" for number in range(30)]))
    assert "[1/30] note 0" in text
    assert "note 7" not in text


@given(st.text(max_size=200), st.integers(2, 60))
def test_fold_loses_nothing_but_blanks(text: str, width: int) -> None:
    text = " ".join("".join(character for character in text if character.isprintable()).split())
    lines = fold(text, width)
    assert all(measure_width(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_verdict_of_findings_that_are_no_report(findings: ModuleType) -> None:
    report = findings.make_diverged()
    assert render(replace(report, verdict=Verdict.DIVERGED)) == render(report)


@given(st.text(max_size=60), st.integers(2, 50))
def test_clipped_lines_fit_and_begin_alike(line: str, width: int) -> None:
    clipped = clip(line, width)
    assert measure_width(clipped) <= width
    assert clipped == line or line.startswith(clipped.removesuffix("…"))
