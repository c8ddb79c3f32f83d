"""Environment locks: written, read, compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precision_align.core.errors import RuleError, UsageError
from precision_align.doctor.checks import GOOD
from precision_align.doctor.locks import compare_facts, read_lock, write_lock

FACTS = {
    "versions": {"torch": "2.7.1", "cann": "8.5.0"},
    "environment": {"HCCL_DETERMINISTIC": "true"},
    "device npu": {"matmul.allow_hf32": "False"},
}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(max_examples=40, deadline=None)
@given(facts=st.dictionaries(TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=3), max_size=3))
def test_every_text_comes_back(tmp_path_factory: pytest.TempPathFactory, facts: dict[str, dict[str, str]]) -> None:
    path = tmp_path_factory.mktemp("lock") / "lock.toml"
    write_lock(path, facts)
    assert read_lock(path) == facts


def test_what_has_changed_is_told_with_its_fix() -> None:
    now = {
        "versions": {"torch": "2.7.1", "cann": "9.0.0"},
        "environment": {"HCCL_CONNECT_TIMEOUT": "1200"},
        "device npu": {"matmul.allow_hf32": "True"},
    }
    found = {check.name: (check.text, check.advice) for check in compare_facts(FACTS, now)}
    assert found == {
        "versions: cann": ("was 8.5.0, is 9.0.0", "install cann 8.5.0, or write a new lock"),
        "environment: HCCL_DETERMINISTIC": ("was true, is not there", "export HCCL_DETERMINISTIC=true"),
        "environment: HCCL_CONNECT_TIMEOUT": ("was not there, is 1200", "unset HCCL_CONNECT_TIMEOUT"),
        "device npu: matmul.allow_hf32": ("was False, is True", "set it back, or write a new lock"),
    }
    assert [check.status for check in compare_facts(FACTS, FACTS)] == [GOOD]


def test_files_that_are_no_locks(tmp_path: Path) -> None:
    path = tmp_path / "other.toml"
    path.write_text("name = 3\n", encoding="utf-8")
    with pytest.raises(UsageError, match="not an environment lock"):
        read_lock(path)
    path.write_text("[", encoding="utf-8")
    with pytest.raises(RuleError, match=r"environment lock .* is not TOML"):
        read_lock(path)
    with pytest.raises(UsageError, match="cannot be written"):
        write_lock(tmp_path / "none" / "lock.toml", FACTS)
