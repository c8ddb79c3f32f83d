"""A dump as a tree, and a tensor of two dumps side by side."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from precision_align.core.keys import Key
from precision_align.core.records import Statistics, TensorRecord
from precision_align.core.terms import Pass, Phase, Role, Source, Tier
from precision_align.reporting.browsing import describe_pair, grow_tree, read_pair, render_pair, render_tree
from precision_align.reporting.terminal import to_encodable


def make_record(scope: str, shape: tuple[int, ...] = (2, 3), nan: int = 0) -> TensorRecord:
    key = Key(0, 0, 0, Source.MODULE, scope, 0, Pass.FIRST, "", 0, Phase.FORWARD, Role.OUTPUT, "")
    found = Statistics(6, nan, 0, 0, 0, -1.0, 2.5, 0.25, 3.0)
    return TensorRecord(
        key, "float32", shape, (3, 1), "strided", "npu:0", True, 1, Tier.FULL, b"\x01\x02", statistics=found, nbytes=24
    )


class OneTensor:
    """A dump of one record; ``values`` None: it was not kept."""

    def __init__(self, record: TensorRecord, values: Any) -> None:
        self.record, self._values = record, values

    def values(self, key: Key) -> Any:
        assert key == self.record.key
        if self._values is None:
            raise KeyError(key)
        return self._values


def show(left: Any, right: Any, **kinds: Any) -> tuple[str, dict[str, Any]]:
    sides = [OneTensor(make_record("a", getattr(values, "shape", (2, 3))), values) for values in (left, right)]
    pair = read_pair(*((side, side.record) for side in sides))  # type: ignore[arg-type]
    return render_pair(pair, **kinds), describe_pair(pair)


def test_tree_counts_what_lies_below() -> None:
    records = [make_record(scope) for scope in ("", "a.b", "a.b", "a.c")] + [make_record("d", nan=1)]
    calls = [SimpleNamespace(scope="a.b", kind="torch.nn.Linear")]
    tree = grow_tree(SimpleNamespace(calls=calls), records)  # type: ignore[arg-type]
    text = render_tree(tree)
    assert text.splitlines() == [
        "(root)  5 tensors, 120 B, NaN or Inf in 1",
        "├─ a  3 tensors, 72 B",
        "│  ├─ b Linear  2 tensors, 48 B",
        "│  └─ c  1 tensor, 24 B",
        "└─ d  1 tensor, 24 B, NaN or Inf in 1",
    ]
    assert render_tree(tree, limit=2).splitlines()[-1] == "  … 3 more; --limit 0 shows all"
    assert tree.to_dict()["children"][0]["children"][0]["tensors"] == 2
    assert to_encodable(text, "gbk") == text
    assert to_encodable(text, "ascii").splitlines()[3] == "|  `- c  1 tensor, 24 B"
    assert all(len(line) <= 24 for line in render_tree(tree, width=24).splitlines())


def test_pair_names_the_place_that_differs_most() -> None:
    left = np.arange(6.0).reshape(2, 3)
    right = left.copy()
    right[1, 2] += 0.5
    text, described = show(left, right)
    assert "max_abs           0.5" in text
    assert text.split("most apart")[1].split()[:3] == ["[1,2]", "5", "5.5"]
    assert {"█", "▓"} <= {*text}
    assert described["difference"]["worst_index"] == 5
    assert max(map(len, text.splitlines())) <= 80
    assert "\\u" not in to_encodable(text, "ascii")


def test_equal_sides_have_nothing_apart() -> None:
    values = np.array([[np.nan, np.inf, 1.0]])
    text, described = show(values, values.copy())
    assert "most apart" not in text
    assert described["difference"]["mismatched"] == 0


def test_nan_on_one_side_is_most_apart() -> None:
    left, right = np.zeros((2, 3)), np.ones((2, 3))
    right[0, 1] = np.nan
    text, described = show(left, right)
    assert text.split("most apart")[1].split()[0] == "[0,1]"
    assert described["difference"]["nonfinite"] == 1


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        (np.zeros((2, 3)), np.zeros(6), "shapes differ: [2, 3], [6]"),
        (None, np.zeros((2, 3)), "the reference has no values: only its full was recorded"),
    ],
)
def test_what_cannot_be_subtracted_says_why(left: Any, right: Any, said: str) -> None:
    text, described = show(left, right)
    assert f"not subtracted: {said}" in text
    assert described["difference"] is None
