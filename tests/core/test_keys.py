"""The text form of a key is one line, and is read back whatever the parts hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.core.keys import NUM_PARTS, Key, escape, unescape
from precision_align.core.terms import Pass, Phase, Role, Source

texts = st.one_of(st.text(st.characters()), st.text(alphabet="%/25F0AaD\n\r\0", max_size=12))
keys = st.builds(
    Key,
    step=st.integers(),
    micro=st.integers(0, 9),
    rank=st.integers(0, 9),
    source=st.sampled_from(Source),
    scope=texts,
    call=st.integers(0, 9),
    pass_=st.sampled_from(Pass),
    op=texts,
    ordinal=st.integers(0, 9),
    phase=st.sampled_from(Phase),
    role=st.sampled_from(Role),
    path=texts,
)


@settings(deadline=None)
@given(keys)
def test_text_form_is_one_line_and_reads_back(key: Key) -> None:
    text = str(key)
    assert Key.parse(text) == key
    assert text.count("/") == NUM_PARTS - 1
    assert not set(text) & {"\n", "\r", "\0"}


@settings(deadline=None)
@given(keys, keys)
def test_different_keys_have_different_texts(one: Key, other: Key) -> None:
    assert (str(one) == str(other)) == (one == other)


@settings(deadline=None)
@given(texts)
def test_escape_is_undone(text: str) -> None:
    assert unescape(escape(text)) == text


def test_text_form_is_stable() -> None:
    """Dumps on disk hold these texts: a change breaks every one of them."""
    key = Key(
        12, 1, 3, Source.MODULE, "h.0/x", 2, Pass.FIRST, "Linear", 0, Phase.BACKWARD, Role.GRADIENT, "input.args.0"
    )
    assert str(key) == "12/1/3/module/h.0%2Fx/2/first/Linear/0/backward/gradient/input.args.0"


@pytest.mark.parametrize(
    "text",
    ["", "a", "0/0/0/module/a/0/first/A/0/forward/output", "x/0/0/module/a/0/first/A/0/forward/output/"],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a key|invalid literal"):
        Key.parse(text)


def test_unknown_terms_are_refused() -> None:
    with pytest.raises(ValueError, match="sideways"):
        Key.parse("0/0/0/module/a/0/first/A/0/sideways/output/")


def test_keys_are_ordered_by_step_first() -> None:
    early = Key.parse("2/0/0/module/z/0/first/A/0/forward/output/")
    late = Key.parse("10/0/0/module/a/0/first/A/0/forward/output/")
    assert sorted([late, early]) == [early, late]
