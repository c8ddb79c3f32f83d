"""The pytest plugin as a team uses it, on a suite of their own."""

from __future__ import annotations

import pytest
from programs import run_python

pytest_plugins = ("pytester",)

SUITE = """
import pytest
import torch

def right(x, dim=-1, gate_first=True):
    a, b = x.chunk(2, dim)
    return torch.nn.functional.silu(a) * b if gate_first else a * torch.nn.functional.silu(b)

def wrong(x, dim=-1, gate_first=True):
    return right(x, dim, not gate_first)

@pytest.mark.op_cases("swiglu/gate-*", dtypes=["float32"])
def test_right(op_case):
    assert op_case.make_inputs()["x"].dtype == torch.float32
    op_case.check(right)

@pytest.mark.op_cases("swiglu/gate-first")
def test_wrong(op_case):
    op_case.check(wrong)

@pytest.mark.op_cases("swiglu/gate-first", dtypes=["float16"])
def test_absent(op_case):
    def absent(**inputs):
        raise NotImplementedError("no kernel")
    op_case.check(absent)
"""


def run_suite(pytester: pytest.Pytester, *words: str, suite: str = SUITE) -> pytest.RunResult:
    pytester.makepyfile(test_ours=suite)
    # a process of its own: in-process runs unload what torch registers once a process
    program = ("-m", "pytest", "-q", "-rs", "-p", "precision_align.pytest_plugin", *words)
    done = run_python(*program, cwd=pytester.path)
    return pytest.RunResult(done.returncode, done.stdout.splitlines(), done.stderr.splitlines(), 0.0)


def test_cases_pass_fail_with_the_reason_and_skip_where_nothing_was_judged(pytester: pytest.Pytester) -> None:
    done = run_suite(pytester, "--pa-device", "simulated:none")
    done.assert_outcomes(passed=2, failed=3, skipped=1)
    text = done.stdout.str()
    assert "swiglu/gate-first float32 forward output: fail" in text
    assert "this case is there because" in text
    assert "no kernel" in text
    assert "test_wrong[swiglu/gate-first-bfloat16]" in text


def test_a_device_that_is_not_here_skips(pytester: pytest.Pytester) -> None:
    done = run_suite(pytester, "--pa-device", "npu", "-k", "test_right")
    done.assert_outcomes(skipped=2, deselected=4)
    assert "torch_npu" in done.stdout.str()


def test_a_selection_that_finds_nothing_stops_the_run(pytester: pytest.Pytester) -> None:
    done = run_suite(pytester, "--collect-only", suite=SUITE.replace("swiglu/gate-*", "swiglu/none-such"))
    assert done.ret != 0
    assert "selects no case" in done.stdout.str() + done.stderr.str()
