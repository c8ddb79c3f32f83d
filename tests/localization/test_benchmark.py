"""The localization benchmark itself: its size, its grades, and a few of its runs."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent / "benchmark"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("localization_loading", HERE / "loading.py")
    assert spec is not None
    assert spec.loader is not None
    loading = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loading
    spec.loader.exec_module(loading)
    return loading.load_benchmark()


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    BENCHMARK = load()
    BUGS = BENCHMARK.find_bugs()
    COMMAND = importlib.import_module("localization_benchmark.command")
    SCORING = importlib.import_module("localization_benchmark.scoring")
    RULES = importlib.import_module("localization_benchmark.rules")
    RUNNING = importlib.import_module("localization_benchmark.running")
FEW = list(COMMAND.sample_jobs(BUGS))[::4]


def test_it_is_as_large_as_it_says():
    bugs = [bug for bug in BUGS if bug.first is not None]
    assert len(bugs) >= 80
    assert len({bug.family for bug in bugs}) >= 5
    assert len(BUGS) - len(bugs) >= 20
    assert {bug.phase for bug in bugs} == {"forward", "backward", "step"}
    assert len({bug.name for bug in BUGS}) == len(BUGS)


def test_grades():
    bug = next(bug for bug in BUGS if bug.name == "llama.act_gelu")
    answer = SCORING.Answer
    assert SCORING.grade(bug, answer("layers.1.mlp.act", "forward")) == "exact"
    assert SCORING.grade(bug, answer("layers.1.mlp.act", "backward")) == "near"
    assert SCORING.grade(bug, answer("layers.1.mlp", "forward")) == "near"
    assert SCORING.grade(bug, answer("embed", "forward")) == "wrong"
    assert SCORING.grade(bug, answer(None)) == "missed"
    benign = next(bug for bug in BUGS if bug.first is None)
    assert SCORING.grade(benign, answer("embed", "forward")) == "false alarm"


def test_the_candidate_is_not_bit_equal_and_the_rules_see_it():
    bug = next(bug for bug in BUGS if bug.name == "llama.rope_base")
    with RUNNING.quiet():
        recorded = RUNNING.record(bug, 0, bug.dtypes[0])
        found = RULES.answer_by_rules(bug, 0, bug.dtypes[0], recorded)
    walked = list(RULES.walk(recorded))
    assert any((actual != expected).any() for _, _, actual, expected, _ in walked)
    assert found["relative L2 > 1e-2"].scope == "layers.1.attn.rope"
    assert found["perturbation envelope x10"].scope == "layers.1.attn.rope"


@pytest.mark.parametrize("job", FEW, ids=[f"{bug.name}-{str(dtype)[6:]}" for bug, _, dtype in FEW])
def test_a_sample_is_placed_exactly(job):
    with RUNNING.quiet():
        line = COMMAND.run(job, rivals=False)
    assert line["grade"] in ("exact", "quiet"), line
