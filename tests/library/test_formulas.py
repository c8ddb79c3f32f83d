"""Builds and wrong variants of a golden function."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from precision_align.core.errors import RuleError, Unavailable
from precision_align.library.formulas import Formula, load_torch_npu

SOURCE = '''
"""twice: not to be edited here"""
import torch

def twice(x, *, factor=2.0, extra=None):
    """factor * x, where 2.0 * x is usual."""
    seen.append(x.dtype)
    y = x.double() * factor
    y = y + torch.zeros(1, dtype=torch.float64)
    seen.append(y.dtype)
    return y if extra is None else (y, y.sum(), x > 0)

seen = []
'''


@pytest.fixture
def formula(tmp_path: Path) -> Formula:
    (tmp_path / "twice.py").write_text(SOURCE, encoding="utf-8")
    return Formula("twice", keep=(1,), folder=tmp_path)


X = torch.tensor([1.0, 2.5, -3.0], dtype=torch.bfloat16)


def test_the_build_computes_in_float32_and_rounds_once(formula: Formula) -> None:
    result = formula.build()(x=X)
    assert result.dtype == torch.bfloat16
    assert formula.golden.__globals__["seen"][-1] == torch.float32
    assert formula.golden(x=X).dtype == torch.float64
    assert formula.golden.__globals__["seen"][-1] == torch.float64


def test_float64_inputs_stay_in_float64(formula: Formula) -> None:
    assert formula.build()(x=X.double()).dtype == torch.float64


def test_results_that_are_kept_stay_in_float32_and_whole_ones_as_they_are(formula: Formula) -> None:
    result = formula.build()(x=X, extra=1)
    assert [part.dtype for part in result] == [torch.bfloat16, torch.float32, torch.bool]


def test_an_edit_changes_the_code_and_not_the_docstring(formula: Formula) -> None:
    wrong = formula.edit("x.double() * factor", "x.double() + factor")
    assert wrong(x=X).tolist() == [3.0, 4.5, -1.0]
    assert formula.build()(x=X).tolist() == [2.0, 5.0, -6.0]


@pytest.mark.parametrize("old", ["factor * y", "x.dtype, y", "where 2.0 * x is usual"])
def test_an_edit_that_does_not_fit_is_a_rule_error(formula: Formula, old: str) -> None:
    with pytest.raises(RuleError, match="an edit needs it once"):
        formula.edit(old, "1")


def test_arguments_overruled_and_inputs_and_results_changed(formula: Formula) -> None:
    assert formula.set(factor=3.0)(x=X, factor=5.0).tolist() == [3.0, 7.5, -9.0]
    assert formula.change(x=torch.neg)(x=X).tolist() == [-2.0, -5.0, 6.0]
    assert formula.change(extra=lambda extra: 1 / 0)(x=X, extra=None).tolist() == [2.0, 5.0, -6.0]
    assert formula.after(lambda y: y + 1)(x=X).tolist() == [3.0, 6.0, -5.0]


def test_an_operator_prefers_torch_npu_on_an_npu_and_torch_on_the_simulated_one(formula: Formula) -> None:
    from precision_align.library.drawing import Family, normal

    cases = [Family(x=normal(3))("plain", "")]
    operator = formula.describe(cases, {"torch": formula.build(), "torch_npu": formula.build()}, {})
    assert operator.preferred == {"npu": "torch_npu", "simulated": "torch"}
    assert formula.describe(cases, {"torch": formula.build()}, {}).preferred == {}


def test_without_torch_npu_its_replacement_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with pytest.raises(Unavailable, match="needs torch_npu"):
        load_torch_npu()
