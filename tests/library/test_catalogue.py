"""PyTorch's catalogue as operators of the library: a fixed sample is judged right, and a wrong operator is caught."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from programs import run_python

from precision_align.core.errors import RuleError
from precision_align.core.terms import Status
from precision_align.library.results import GOOD
from precision_align.library.runner import run_cases

pytest.importorskip("expecttest", reason="torch's catalogue imports it")

from precision_align.library.catalogue import list_catalogue, load_catalogued

SAMPLE = 15


def test_it_holds_most_of_the_catalogue() -> None:
    names = list_catalogue()
    assert len(names) > 500
    assert {"opinfo:softmax", "opinfo:nn.functional.gelu", "opinfo:topk", "opinfo:index_add"} <= set(names)


def test_a_fixed_sample_passes_on_the_cpu() -> None:
    """All of it: ``precision-align case run "opinfo:*"``."""
    usable: list[str] = []
    for name in random.Random(0).sample(list_catalogue(), 2 * SAMPLE):
        try:
            load_catalogued(name, 1)
        except RuleError:
            continue
        usable.append(f"{name}/sample-0")
    report = run_cases([name.replace("[", "?") for name in usable[:SAMPLE]])
    assert [f"{r.name} {r.dtype} {r.phase}: {r.note}" for r in report.results if r.status not in GOOD] == []
    assert len({result.op for result in report.results}) == SAMPLE


@pytest.mark.parametrize("name", ["opinfo:mm", "opinfo:nn.functional.gelu"])
def test_a_wrong_result_is_caught(name: str) -> None:
    operator = load_catalogued(name, 1)
    run: Any = operator.golden
    good = run_cases(f"{name}/*")
    bad = run_cases(f"{name}/*", replacement=lambda **inputs: run(**inputs) * 1.01)
    assert good.passed
    assert Status.FAIL in {result.status for result in bad.results}


def test_the_same_seed_gives_the_same_inputs_and_another_seed_others() -> None:
    (case, *_) = load_catalogued("opinfo:mm").cases
    first, again, other = (case.make_inputs(seed)["tensor_0"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_an_unknown_name_is_a_rule_error() -> None:
    with pytest.raises(RuleError, match="no such operator"):
        load_catalogued("opinfo:softermax")


def test_the_command_line_takes_the_prefix() -> None:
    done = run_python("-m", "precision_align", "case", "run", "opinfo:nn.functional.silu/sample-0")
    assert done.returncode == 0, done.stderr
    assert "opinfo:nn.functional.silu/sample-0" in done.stdout
