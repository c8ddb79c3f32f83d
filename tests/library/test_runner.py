"""The runner: selection, replacements, devices, and that nothing wrong ends as "passed"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from precision_align.core.errors import RuleError, Unavailable, UsageError
from precision_align.core.terms import Phase, Status
from precision_align.library.folders import find_folders, load_operator
from precision_align.library.loading import load_library
from precision_align.library.runner import list_cases, run_cases

ONE = "swiglu/gate-first"


def silu(x: torch.Tensor, dim: int = -1, gate_first: bool = True) -> torch.Tensor:
    gate, up = x.chunk(2, dim)
    return torch.nn.functional.silu(gate) * up


def statuses(replacement: Any, select: str = ONE, **options: Any) -> dict[Phase, set[Status]]:
    found: dict[Phase, set[Status]] = {}
    for result in run_cases(select, replacement=replacement, **options).results:
        found.setdefault(result.phase, set()).add(result.status)
    return found


def test_a_right_replacement_passes_forward_and_backward() -> None:
    report = run_cases(ONE, replacement=silu)
    assert report.passed
    assert {(r.dtype, r.phase) for r in report.results} == {
        (dtype, phase) for dtype in ("float32", "bfloat16", "float16") for phase in (Phase.FORWARD, Phase.BACKWARD)
    }
    first = report.results[0]
    assert first.name == ONE
    assert first.device == "cpu"
    assert first.replacement.endswith(":silu")
    assert first.versions["torch"] == str(torch.__version__)


def test_forward_only() -> None:
    assert {r.phase for r in run_cases(ONE, replacement=silu, backward=False).results} == {Phase.FORWARD}


def test_selection() -> None:
    names = {case["case"] for case in list_cases(["swiglu/grid-*", "rope/half"])}
    assert names == {"swiglu/grid-10", "swiglu/grid-2", "swiglu/grid-100", "swiglu/grid-second", "rope/half"}
    assert len(list_cases("swiglu")) == len(list_cases("swiglu/*"))
    assert {case["case"].split("/")[0] for case in list_cases("*")} == set(find_folders().operators)


@pytest.mark.parametrize("select", ["swigl", "swiglu/none", "", "a/b/c", "SWIGLU", []])
def test_a_selection_that_finds_nothing_is_a_usage_error(select: str) -> None:
    with pytest.raises(UsageError):
        run_cases(select)


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(UsageError, match="did you mean swiglu/gate-first"):
        run_cases("swiglu/gate-frist")


@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        ("cudnn", "has no replacement 'cudnn': name one of torch"),
        ("no_such_module:f", "cannot be imported"),
        ("math:nothing", "has no 'nothing'"),
        ("math:pi", "not callable"),
        (":f", "not of the form"),
        ("math:", "not of the form"),
    ],
)
def test_a_bad_replacement_is_a_usage_error(replacement: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_cases(ONE, replacement=replacement)


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_bad_seed_is_a_usage_error(seed: int) -> None:
    with pytest.raises(UsageError, match="seed"):
        run_cases(ONE, seed=seed)


def test_an_unknown_device_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="abacus"):
        run_cases(ONE, device="abacus")


@pytest.mark.skipif("'torch_npu' in sys.modules", reason="torch_npu is loaded")  # asked when the test begins
def test_torch_npu_is_unavailable_without_it() -> None:
    with pytest.raises(Unavailable, match="torch_npu"):
        run_cases(ONE, replacement="torch_npu")


def test_other_seeds_give_other_inputs_and_pass_too() -> None:
    seen: dict[int, torch.Tensor] = {}
    for seed in (1, 2):

        def watch(x: torch.Tensor, seed: int = seed, **options: Any) -> torch.Tensor:
            seen.setdefault(seed, x.detach().clone())
            return silu(x, **options)

        assert run_cases(ONE, replacement=watch, seed=seed).passed
    assert seen[1].shape == seen[2].shape
    assert not torch.equal(seen[1], seen[2])


def fail_with(error: BaseException) -> Any:
    def compute(**inputs: Any) -> None:
        raise error

    return compute


HOSTILE = {
    "an exception": fail_with(ValueError("no")),
    "an exception without text": fail_with(RuntimeError()),
    "an exit": fail_with(SystemExit(0)),
    "a wrong keyword": lambda y: y,
    "None": lambda x, **rest: None,
    "a number": lambda x, **rest: 1.0,
    "a NumPy array": lambda x, **rest: silu(x, **rest).detach().float().numpy(),
    "an empty tuple": lambda x, **rest: (),
    "two outputs": lambda x, **rest: (silu(x, **rest), silu(x, **rest)),
    "a sparse tensor": lambda x, **rest: silu(x, **rest).detach().to_sparse(),
    "a meta tensor": lambda x, **rest: silu(x, **rest).to("meta"),
    "NaN everywhere": lambda x, **rest: silu(x, **rest) * float("nan"),
    "one NaN": lambda x, **rest: silu(x, **rest).index_fill(-1, torch.tensor([0]), float("nan")),
    "infinity": lambda x, **rest: silu(x, **rest) + float("inf"),
    "zeros": lambda x, **rest: silu(x, **rest) * 0,
    "another shape": lambda x, **rest: silu(x, **rest)[None],
    "another dtype": lambda x, **rest: silu(x, **rest).double(),
    "integers": lambda x, **rest: silu(x, **rest).int(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_nothing_wrong_passes(name: str) -> None:
    report = run_cases(ONE, replacement=HOSTILE[name])
    assert not report.passed
    assert all(result.status == Status.FAIL for result in report.results if result.phase == Phase.FORWARD)
    assert all(result.note for result in report.results)


def test_a_replacement_without_a_gradient_fails_backward_only() -> None:
    found = statuses(lambda x, **rest: silu(x, **rest).detach())
    assert found == {Phase.FORWARD: {Status.PASS}, Phase.BACKWARD: {Status.FAIL}}


def test_what_the_device_lacks_is_inconclusive_and_alone_does_not_pass() -> None:
    report = run_cases(ONE, replacement=fail_with(NotImplementedError("no such kernel")))
    assert {r.status for r in report.results} == {Status.INCONCLUSIVE}
    assert not report.passed
    assert report.failures == []


def test_a_second_result_is_reported_as_not_deterministic() -> None:
    calls: list[int] = []

    def compute(x: torch.Tensor, **rest: Any) -> torch.Tensor:
        calls.append(1)
        return silu(x, **rest) * (1 + 2**-22 * (len(calls) % 3 == 0))

    report = run_cases(ONE, replacement=compute)
    assert any("not deterministic" in result.note for result in report.results)


def test_inputs_that_must_be_contiguous_warn() -> None:
    def compute(x: torch.Tensor, **rest: Any) -> torch.Tensor:
        if not x.is_contiguous():
            raise RuntimeError("contiguous tensors only")
        return silu(x, **rest)

    report = run_cases(ONE, replacement=compute)
    assert report.passed
    assert any(r.status == Status.WARN and "not contiguous" in r.note for r in report.results)


def test_a_refusal_case_wants_a_refusal_and_not_just_any_exception() -> None:
    assert statuses("torch", "swiglu/odd-size") == {Phase.FORWARD: {Status.PASS}}
    assert statuses(lambda y: y, "swiglu/odd-size") == {Phase.FORWARD: {Status.FAIL}}
    assert statuses(lambda x: x, "swiglu/odd-size") == {Phase.FORWARD: {Status.FAIL}}


def test_the_cpu_kernel_of_layer_norm_fails_in_low_precision_and_this_is_written_down() -> None:
    """The fact that the row M039 notes; when PyTorch mends its kernel, the note and the default must follow."""
    assert Status.FAIL in statuses("torch", "layer_norm/width-65")[Phase.BACKWARD]
    assert run_cases("layer_norm/width-65").passed
    (row,) = (row for row in load_library().rows if row.id == "M039")
    assert "keeps rstd and the running sums" in row.note


def test_the_report_is_plain_json_even_with_infinities() -> None:
    report = run_cases(ONE, replacement=lambda x, **rest: silu(x, **rest) * 1e38 * 1e38)
    text = json.dumps(report.to_dict(), allow_nan=False)
    back = json.loads(text)
    assert back["passed"] is False
    assert back["results"][0]["status"] == "fail"
    assert back["counts"] == {"fail": 6}


def test_the_table_names_each_reason_once() -> None:
    text = run_cases("swiglu/grid-*", replacement=fail_with(ValueError("no"))).render()
    assert text.count("raised ValueError: no") == 1
    assert "swiglu/grid-10" in text
    assert text.splitlines()[-1].startswith("FAILED on cpu")


CASES = """
import torch
from precision_align.library.cases import OpCase, Operator

def make(seed):
    return {"x": torch.randn(4, 80, generator=torch.Generator().manual_seed(seed))}

def double(x):
    return x.double() * 2

OPERATOR = Operator(
    "twice", [OpCase("plain", make, wrt=("x",))], natives=[lambda x: x * 2], golden=double,
    replacements={"torch": lambda x: x + x, "wrong": lambda x: x * 2.01},
)
"""


def write_cases(folder: Path, text: str, op: str = "twice") -> Path:
    file = folder / "op_cases" / op / "cases.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return folder


def test_a_failure_says_what_its_case_is_there_to_catch() -> None:
    """PyTorch's own attention before 2.5 gives NaN where a query sees no key: the report has to say that this is it."""

    def before_2_5(query: Any, key: Any, value: Any, mask: Any = None, **options: Any) -> Any:
        scores = query.float() @ key.float().transpose(-1, -2) / query.shape[-1] ** 0.5
        weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
        return (weights @ value.float()).to(query.dtype)

    right, wrong = (f"attention/mask-{name}" for name in ("bool", "empty-rows"))
    report = run_cases([right, wrong], replacement=before_2_5, backward=False)
    assert {result.name for result in report.failures} == {wrong}
    text = report.render()
    assert text.count(f"{wrong}: fully masked rows") == 1
    assert "PyTorch before 2.5" in text
    assert f"{right}: " not in text
    assert run_cases(right, replacement=before_2_5).render().count("there to catch") == 0


def test_a_folder_of_the_users_own(tmp_path: Path) -> None:
    library = write_cases(tmp_path, CASES)
    assert run_cases("*", library=library).passed
    assert not run_cases("twice", library=library, replacement="wrong").passed


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    library = write_cases(tmp_path, CASES)
    assert run_cases("*", library=library).passed
    write_cases(tmp_path, CASES.replace("x + x", "x + x + x"))
    assert not run_cases("*", library=library).passed


def test_a_loaded_library_is_accepted() -> None:
    assert run_cases(ONE, library=load_library(), replacement=silu).passed


BROKEN = {
    "no operator": ("x = 1", "must define OPERATOR"),
    "another name": (CASES.replace('"twice", [', '"thrice", ['), "OPERATOR.name is 'thrice'"),
    "syntax": ("def", "raised SyntaxError"),
    "raises": ("x = 1\nraise ValueError('bad day')", "raised ValueError: bad day (line 2)"),
    "exits": ("import sys\nsys.exit(0)", "raised SystemExit"),
    "missing import": ("import no_such_module", "raised ModuleNotFoundError"),
    "repeated case": (CASES.replace("[OpCase(", "2 * [OpCase("), "case plain is defined twice"),
    "no case": (CASES.replace('[OpCase("plain", make, wrt=("x",))]', "[]"), "has no case"),
    "bad id": (CASES.replace('"plain"', '"pl*n"'), "its id must be a name"),
    "bad layout": (CASES.replace('wrt=("x",)', 'layouts={"x": "spiral"}'), "unknown layout 'spiral'"),
    "bad rule": (CASES.replace("golden=double,", "golden=double, rule='lenient',"), "no rule is called 'lenient'"),
    "bad dtype": (CASES.replace('wrt=("x",)', "dtypes=('fp16',)"), "'fp16' is no torch dtype"),
    "bad preference": (CASES.replace("golden=double,", "golden=double, preferred={'npu': 'x'},"), "preferred"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_cases_file_is_a_rule_error(tmp_path: Path, name: str) -> None:
    text, message = BROKEN[name]
    with pytest.raises(RuleError) as caught:
        run_cases("*", library=write_cases(tmp_path, text))
    assert message in str(caught.value)
    assert "cases.py" in str(caught.value)


SPOILT = {
    "inputs raise": (CASES.replace("return {", "raise KeyError('x')\n    return {"), "KeyError"),
    "golden raises": (CASES.replace("return x.double() * 2", "return x.nothing()"), "AttributeError"),
    "golden in another shape": (CASES.replace("return x.double() * 2", "return x.double()[0] * 2"), "golden"),
    "golden in float32": (CASES.replace("return x.double() * 2", "return x.float() * 2"), "float64"),
    "unknown input": (CASES.replace('wrt=("x",)', 'wrt=("y",)'), "'y'"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_case_that_cannot_be_prepared_fails_with_the_reason(tmp_path: Path, name: str) -> None:
    text, message = SPOILT[name]
    report = run_cases("*", library=write_cases(tmp_path, text))
    assert {result.status for result in report.results} == {Status.FAIL}
    assert "the case itself is broken" in report.results[0].note
    assert message in report.results[0].note


def test_a_replacement_that_forgets_the_memory_format_fails() -> None:
    native = load_operator(find_folders(), "max_pool2d").replacements["torch"]

    def wrong(x: torch.Tensor, **options: Any) -> Any:
        """As a kernel that reads NCHW whatever the strides say: right for contiguous and for strided inputs."""
        if x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
            x = x.permute(0, 2, 3, 1).reshape(x.shape)
        return native(x=x, **options)

    assert run_cases("max_pool2d/overlapping", backward=False).passed
    found = run_cases("max_pool2d/overlapping", replacement=wrong, backward=False)
    assert not found.passed
    assert all("channels-last format" in result.note for result in found.failures)
