"""torch, torch_npu, CANN and Python against the vendor's table."""

from __future__ import annotations

import pytest

from precision_align.doctor.checks import BAD, GOOD, NOTE
from precision_align.doctor.compatibility import check_compatibility, load_table


def statuses(torch_npu: str, torch: str, cann: str, python: str = "3.11.7") -> list[str]:
    versions = {"torch_npu": torch_npu, "torch": torch, "cann": cann, "python": python}
    return [check.status for check in check_compatibility(versions)]


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        (("2.7.1.post2", "2.7.1+cpu", "8.5.0"), [GOOD, GOOD]),
        (("2.7.1", "2.7.1", "[8.3.RC1.alpha002:8.3.RC1]"), [GOOD, GOOD]),
        (("2.9.0.post3+gitabc", "2.9.0", "9.1.0"), [GOOD, GOOD]),
        (("2.7.1.post2", "2.8.0", "8.5.0"), [BAD]),
        (("2.7.1.post2", "2.7.1", "8.3.RC1"), [GOOD, NOTE]),
        (("2.7.1.post2", "2.7.1", ""), [GOOD, BAD]),
        (("2.7.1.post99", "2.7.1", "8.5.0"), [GOOD, NOTE]),
        (("2.9.0", "2.9.0", "8.5.0", "3.9.1"), [BAD, GOOD]),
        (("2.99.0", "2.99.0", "8.5.0"), [NOTE, NOTE]),
        (("", "2.7.1", ""), []),
    ],
)
def test_versions_that_do_and_do_not_belong_together(versions: tuple[str, ...], expected: list[str]) -> None:
    assert statuses(*versions) == expected


def test_every_problem_names_its_fix_and_the_source() -> None:
    (check,) = (
        check
        for check in check_compatibility(
            {"torch_npu": "2.7.1.post2", "torch": "2.7.1", "cann": "9.0.0", "python": "3.11"}
        )
        if check.status == NOTE
    )
    assert "CANN 8.5.0" in check.advice
    assert "torch_npu 2.7.1.post4" in check.advice
    assert "COMPATIBILITY.md" in check.text


def test_the_table_is_whole() -> None:
    table = load_table()
    assert len({row[0] for row in table["torch_npu"]}) == len(table["torch_npu"]) > 30
    assert all(row[0].startswith(row[1]) for row in table["torch_npu"])
    assert {row[1] for row in table["torch_npu"]} <= set(table["python"])
