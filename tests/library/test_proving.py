"""What proves a case, what does not; what is searched and shrunk; decisions that may fall either way."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from precision_align.core.errors import UsageError
from precision_align.core.terms import Status
from precision_align.library.cases import OpCase, Operator, Search
from precision_align.library.crosschecking import find_disagreements
from precision_align.library.drawing import Family, fixed, levels, normal
from precision_align.library.judging import judge_choice
from precision_align.library.proving import Prover, make_generic, render_proofs
from precision_align.library.runner import prove_cases, run_case
from precision_align.library.searching import search_cases, search_worst

CPU = torch.device("cpu")
Tensor = torch.Tensor


def double(x: Tensor, *, factor: float = 2.0) -> Tensor:
    return x.double() * factor


def build(x: Tensor, *, factor: float = 2.0) -> Tensor:
    return x * factor


def make_operator(**changes: Any) -> Operator:
    family = Family(x=normal(8, 9), wrt=("x",), dtypes=("float32",))
    cases = [
        family("plain", ""),
        family("factor-three", "", factor=3.0),
        family("empty", "", "empty", x=normal(0, 9)),
        family("nan", "", "nonfinite", wrt=(), x=normal(8, 9).at((1, 2), math.nan)),
        *family.layouts("x"),
    ]
    wrong = {"factor ignored": lambda x, factor=2.0: x * 2, "halved": lambda x, factor=2.0: x * factor / 2}
    return replace(Operator("twice", cases, [build], {"torch": build}, double, wrong=wrong), **changes)


def test_every_variant_and_every_case_is_proved() -> None:
    proof = Prover(make_operator()).prove()
    assert proof.complete
    assert proof.caught == {"factor ignored": "factor-three", "halved": "plain"}
    assert proof.proved["empty"].startswith("empty input")
    assert proof.proved["plain"] == "halved"


def test_a_variant_that_is_not_wrong_and_a_case_that_sees_nothing_are_named() -> None:
    blind = OpCase("blind", lambda seed: {"x": torch.zeros(3)}, ("float32",))
    operator = make_operator(wrong={"summed": lambda x, factor=2.0: x + x * (factor - 1)}, cases=[blind])
    proof = Prover(operator).prove()
    assert (list(proof.missed), list(proof.unproved), proof.complete) == (["summed"], ["blind"], False)
    text = render_proofs([proof])
    assert "| twice | 0 / 1 | 0 / 1 | variant: summed; case: blind |" in text


def test_an_exception_of_the_variant_is_no_proof() -> None:
    def fail(**inputs: Any) -> Tensor:
        raise RuntimeError("no kernel")

    proof = Prover(make_operator(wrong={"fails": fail})).prove()
    assert list(proof.missed) == ["fails"]
    assert "plain" in proof.unproved


@pytest.mark.parametrize("tag", ["layout", "nonfinite", "empty"])
def test_generic_mistakes_are_caught_by_the_cases_that_are_there_for_them(tag: str) -> None:
    operator = make_operator()
    for case in (case for case in operator.cases if tag in case.tags):
        variants = make_generic(operator, case)
        assert variants
        for name, compute in variants.items():
            assert Prover(operator).catches(case, compute), (case.id, name)


def test_no_operator_with_variants_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="wrong variants"):
        prove_cases("opinfo:mm")


def test_a_golden_function_that_disagrees_is_found() -> None:
    assert list(find_disagreements(make_operator())) == []
    found = list(find_disagreements(make_operator(golden=lambda x, factor=2.0: x.double() * factor * (1 + 1e-8))))
    assert any(text.startswith("plain: output: differ by") for text in found)
    assert any("gradient.x" in text for text in found)
    wrong_nan = make_operator(golden=lambda x, factor=2.0: torch.nan_to_num(x.double() * factor))
    assert any("NaN" in text for text in find_disagreements(wrong_nan))


def make_searched(size: int, gain: float) -> OpCase:
    return Family(x=normal(size, gain=gain), wrt=("x",))("searched", "")


SEARCH = Search(make_searched, {"size": (1, 100), "gain": (0.01, 100.0)})


def test_a_search_shrinks_what_fails() -> None:
    def wrong_beyond_20(x: Tensor) -> Tensor:
        return torch.where(torch.arange(len(x)) < 20, x * 2, x)

    found = search_worst(make_operator(search=SEARCH), "mine", wrong_beyond_20, "float32", 100)
    assert found.failed
    assert found.numbers == {"size": 21, "gain": 0.01, "seed": 0}
    assert "FAILS, smallest input: size=21" in found.render()


def test_a_search_that_finds_nothing_names_the_worst_input_and_is_repeatable() -> None:
    operator = make_operator(search=SEARCH)
    first, again = (
        search_worst(operator, "torch", lambda x: x.bfloat16().float() * 2 * 0 + x * 2.0000002, "float32", 30)
        for _ in range(2)
    )
    assert not first.failed
    assert first == again
    assert first.metrics["z"] > 0


def test_a_bundled_operator_can_be_searched() -> None:
    (found,) = search_cases("softmax", examples=5)
    assert (found.op, found.failed) == ("softmax", False)
    with pytest.raises(UsageError, match="can be searched"):
        search_cases("moe_permute", examples=5)


def judged(case: OpCase, compute: Any) -> Status:
    def right(x: Tensor) -> Tensor:
        return torch.round(x.double() / 0.1).long()

    operator = Operator("rounded", [case], [lambda x: torch.round(x / 0.1).long()], {"torch": compute}, right)
    (result,) = run_case(operator, case, "float32", compute, CPU)
    return result.status


def test_a_decision_that_hangs_in_the_balance_may_fall_either_way() -> None:
    near = Family(x=fixed([0.05, 0.25, 0.31, 1.05]), dtypes=("float32",))
    other = torch.tensor([1, 3, 3, 11])  # halves the other way
    assert judged(near("near", ""), lambda x: other) == Status.PASS
    assert judged(near("near", ""), lambda x: other + torch.tensor([0, 0, 1, 0])) == Status.FAIL


def test_ties_on_purpose_have_one_right_answer() -> None:
    def even(x: Tensor) -> Tensor:
        return torch.round(x.double()).long()

    def up(x: Tensor) -> Tensor:
        return torch.floor(x + 0.5).long()

    family = Family(x=levels(40, low=-9, high=9, step=0.5), dtypes=("float32",))
    for exact, expected in ((True, Status.FAIL), (False, Status.PASS)):
        case = family("ties", "", exact=exact)
        operator = Operator("rounded", [case], [lambda x: torch.round(x).long()], {"torch": up}, even)
        (result,) = run_case(operator, case, "float32", up, CPU)
        assert result.status == expected


def test_choices_of_another_shape_do_not_help() -> None:
    options = [np.array([1, 2, 3]), np.array([1, 3]), np.array([2, 2, 3])]
    assert judge_choice(np.array([2, 2, 3]), options).status == Status.PASS
    assert judge_choice(np.array([1, 3]), options).status == Status.PASS
    assert judge_choice(np.array([3, 2, 3]), options).status == Status.FAIL
    assert judge_choice(np.array([1, 2, 3, 4]), options).status == Status.FAIL


def test_overwritten_inputs_are_results_and_a_canonical_form_takes_free_choices_away() -> None:
    def golden(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.double() + y.double(), y.double()

    def overwrite(x: Tensor, y: Tensor) -> None:
        x.add_(y)

    case = Family(x=normal(5), y=normal(5), dtypes=("float32",))("plain", "")
    operator = Operator("add", [case], [lambda x, y: (x + y, y)], {"torch": overwrite}, golden, rewrites=("x", "y"))
    assert {r.status for r in run_case(operator, case, "float32", overwrite, CPU)} == {Status.PASS}

    def in_any_order(inputs: Any, result: Tensor) -> Tensor:
        return result.sort().values

    flipped = Operator(
        "same", [case], [lambda x, y: x], {"torch": torch.add}, lambda x, y: x.double(), canonical=in_any_order
    )
    assert {r.status for r in run_case(flipped, case, "float32", lambda x, y: x.flip(0), CPU)} == {Status.PASS}
