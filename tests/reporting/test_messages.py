"""Chinese sentences for the errors that users meet."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import precision_align
from precision_align.reporting.messages import ADVICE, REASONS, SENTENCES, advise, translate_message

PACKAGE = Path(precision_align.__file__).parent
# argparse says these; the others are ours
FOREIGN = ("the following arguments are required: ", "unrecognized arguments: ", "argument ")
FIELD = re.compile(r"\{(\w+)\}")


def collect_literals() -> str:
    """Every piece of text in our own code but the table itself, in one string."""
    parts = []
    for path in PACKAGE.rglob("*.py"):
        if path.name != "messages.py":
            tree = ast.parse(path.read_text(encoding="utf-8"))
            parts += [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return "\n".join(part for part in parts if isinstance(part, str))


def is_said(piece: str, said: str) -> bool:
    """Whole, or in two halves: a word that the code chooses does not stand beside the rest of its sentence."""
    halves = ((piece[:place].strip(), piece[place:].strip()) for place in range(6, len(piece) - 6))
    return piece in said or any(first in said and second in said for first, second in halves)


def test_a_changed_sentence_would_be_found() -> None:
    said = collect_literals()
    assert is_said("is not complete: its writer was stopped; record it again", said)
    assert not is_said("is not complete: its writer was halted; record it again", said)


def test_every_sentence_is_one_that_the_code_still_says() -> None:
    said = collect_literals()
    for english, _ in (*SENTENCES, *REASONS):
        if not english.startswith(FOREIGN):
            for piece in filter(None, FIELD.sub("\0", english).split("\0")):
                assert is_said(piece.strip(), said), (english, piece)


@pytest.mark.parametrize(("english", "chinese"), [*SENTENCES, *REASONS])
def test_sentences_take_over_their_fields(english: str, chinese: str) -> None:
    names = FIELD.findall(english)
    assert set(FIELD.findall(chinese)) <= set(names)
    values = {name: f"<{name}\n0>" for name in names}
    assert translate_message(english.format(**values), "zh") == chinese.format(**values)
    assert translate_message(english.format(**values), "en") == english.format(**values)


@given(st.text())
def test_any_other_text_stays(text: str) -> None:
    assert translate_message(f"§{text}", "zh") == f"§{text}"


def test_values_are_never_read_as_fields() -> None:
    assert translate_message("there is no dump at {path} {0}", "zh") == "{path} {0} 处没有转储"


@pytest.mark.parametrize("code", ADVICE)
def test_advice_is_not_said_twice(code: str) -> None:
    english, chinese = ADVICE[code]
    assert advise(code, "what", "zh") == chinese
    assert advise(code, f"what; {english}", "en") == ""
