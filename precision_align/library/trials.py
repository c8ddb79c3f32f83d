"""One trial: a replacement on one case in one dtype, held against its references."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from precision_align.core.dtypes import Array, dtype_of
from precision_align.core.errors import Unavailable
from precision_align.core.results import Limit
from precision_align.core.terms import Phase, Status
from precision_align.library.cases import Compute, OpCase, Operator, settle
from precision_align.library.folders import FAULTS
from precision_align.library.judging import RULES, Rule, judge_choice, judge_output
from precision_align.library.references import (
    GRADIENT,
    Evaluation,
    Inputs,
    References,
    evaluate,
    place,
    prepare_inputs,
    to_array,
)
from precision_align.library.results import CaseResult
from precision_align.numerics.judgement import Judgement

if TYPE_CHECKING:
    import torch

_ORDER = [Status.PASS, Status.WARN, Status.INCONCLUSIVE, Status.MODE, Status.FAIL]
_NOT_HERE = "not implemented for"  # how torch says that a kernel lacks a dtype; it raises a plain RuntimeError


@dataclass(frozen=True)
class _Finding:
    """The judgement of one named tensor."""

    tensor: str
    judgement: Judgement


def try_replacement(
    operator: Operator,
    case: OpCase,
    references: References,
    compute: Compute,
    device: torch.device,
    thorough: bool = True,
) -> list[CaseResult]:
    """Run ``compute`` on the case and judge outputs and gradients: one result a phase.

    ``thorough``: also that repeats are bit-equal, and that strides and memory format do not matter. Inputs must stay as
    they were. Dtype, device, replacement and versions are left to the caller, who knows them.
    """
    settled = settle(operator, compute)
    inputs = place(references.inputs, device, case.layouts)
    cotangents = place(references.cotangents, device, {})
    try:
        first = evaluate(settled, inputs, references.wrt, cotangents)
    except Unavailable:
        raise
    except FAULTS as error:
        return _report_error(operator, case, references, compute, device, error)
    rule = RULES[operator.rule]
    findings = _judge(rule, first, references, device)
    findings += [_Finding(name, _fail("rewrote its input in place")) for name in _find_rewritten(inputs, references)]
    notes: Mapping[Phase, str] = {}
    if thorough:
        findings += _check_layouts(rule, references, settled, device)
        notes = _check_repeat(settled, inputs, references, cotangents, first)
    return [_summarise(operator, case, phase, findings, notes) for phase in _phases(references)]


def try_refusal(
    operator: Operator, case: OpCase, dtype: str, seed: int, compute: Compute, device: torch.device
) -> list[CaseResult]:
    """Run a case whose inputs the replacement must refuse.

    A ValueError, RuntimeError or AssertionError passes; any result, or another exception, fails (a wrong keyword raises
    TypeError).
    """
    inputs = place(prepare_inputs(case, dtype, seed), device, case.layouts)
    try:
        compute(**inputs)
    except Unavailable:
        raise
    except (ValueError, AssertionError, RuntimeError) as error:
        absent = isinstance(error, NotImplementedError)
        status = Status.INCONCLUSIVE if absent else Status.PASS
        note = f"{'not available here' if absent else 'refused, as it must'}: {describe(error)}"
    except FAULTS as error:
        status, note = Status.FAIL, f"must refuse these inputs, but raised {describe(error)}"
    else:
        status, note = Status.FAIL, "accepted inputs that it must refuse"
    return [CaseResult(operator.name, case.id, "", Phase.FORWARD, status, note=note)]


def describe(error: BaseException) -> str:
    """Class and first line of an exception."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _phases(references: References) -> list[Phase]:
    return [Phase.FORWARD, Phase.BACKWARD] if references.wrt else [Phase.FORWARD]


def _fail(why: str) -> Judgement:
    return Judgement(Status.FAIL, why)


def _report_error(
    operator: Operator,
    case: OpCase,
    references: References,
    compute: Compute,
    device: torch.device,
    error: BaseException,
) -> list[CaseResult]:
    """The phase that raised; where that may have been the backward pass, the forward pass is judged by itself."""
    text = describe(error)
    absent = isinstance(error, NotImplementedError) or _NOT_HERE in text
    status, note = (Status.INCONCLUSIVE, f"not available here: {text}") if absent else (Status.FAIL, f"raised {text}")
    if isinstance(error, TypeError) and "argument" in text:
        note += f"; it is called with the keywords {', '.join(references.inputs)}"
    if not references.wrt:
        return [CaseResult(operator.name, case.id, "", Phase.FORWARD, status, note=note)]
    forward = try_replacement(operator, case, replace(references, wrt=()), compute, device)
    return [*forward, CaseResult(operator.name, case.id, "", Phase.BACKWARD, status, note=note)]


def _judge(rule: Rule, evaluation: Evaluation, references: References, device: torch.device) -> list[_Finding]:
    """By the native build that speaks best for it: each conforms, so to be as good as any of them is enough."""
    actual, golden = evaluation.named(), references.golden.named()
    natives = [native.named() for native in references.natives]
    by = (rule, RULES["double standard"])  # what moves values exactly still adds gradients up
    wanted = [name for name in natives[0] if references.wrt or not name.startswith(GRADIENT)]
    findings = []
    for name in wanted:
        if name not in actual:
            findings.append(_Finding(name, _fail("is missing")))
        elif actual[name].device.type != device.type:
            findings.append(_Finding(name, _fail(f"is on {actual[name].device}, its inputs are on {device}")))
        else:
            mine = [native[name] for native in natives]
            found = (
                _judge_by_any(by[name.startswith(GRADIENT)], actual[name], mine, golden[name], references.scales[name])
                if name in references.scales
                else _judge_decisions(actual[name], [golden[name], *mine], references.options.get(name, ()))
            )
            findings.append(_Finding(name, found))
    surplus = sorted(set(actual) - set(natives[0]))
    return findings + [_Finding(name, _fail("is not an output of this operator")) for name in surplus]


def _judge_decisions(actual: torch.Tensor, conforming: list[torch.Tensor], options: Sequence[Array]) -> Judgement:
    """Whole numbers and booleans: the golden value, or where perturbation shows it to hang in the balance another."""
    if actual.dtype != conforming[1].dtype:
        return _fail(f"has dtype {_name(actual.dtype)}, must have {_name(conforming[1].dtype)}")
    possible = [to_array(values) for values in (conforming if options else conforming[:1])]
    return judge_choice(to_array(actual), [*possible, *options])


def _judge_by_any(
    rule: Rule, actual: torch.Tensor, natives: list[torch.Tensor], golden: torch.Tensor, scale: Array
) -> Judgement:
    judged: list[Judgement] = []
    for native in natives:
        judged.append(_judge_one(rule, actual, native, golden, scale))
        if judged[-1].status == Status.PASS:
            break
    return min(judged, key=_badness)


def _judge_one(rule: Rule, actual: torch.Tensor, native: torch.Tensor, golden: torch.Tensor, scale: Array) -> Judgement:
    if actual.shape != native.shape:
        return _fail(f"has shape {tuple(actual.shape)}, must have {tuple(native.shape)}")
    if actual.dtype != native.dtype:
        return _fail(f"has dtype {_name(actual.dtype)}, must have {_name(native.dtype)}")
    reference = to_array(golden)
    return judge_output(rule, to_array(actual), reference, to_array(native), scale, dtype_of(str(actual.dtype)))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).replace("torch.", "")


def _find_rewritten(inputs: Inputs, references: References) -> list[str]:
    import torch

    tensors = {name: value for name, value in references.inputs.items() if torch.is_tensor(value)}
    return [n for n, value in tensors.items() if not _same(to_array(inputs[n]), to_array(value))]


def _same(left: Array, right: Array) -> bool:
    if left.shape != right.shape:
        return False
    return bool(np.array_equal(left, right, equal_nan=left.dtype.kind in "fc" and right.dtype.kind in "fc"))


def _check_repeat(
    compute: Compute, inputs: Inputs, references: References, cotangents: Mapping[str, Any], first: Evaluation
) -> dict[Phase, str]:
    """Phase -> note where a second call on the same tensors gives other bits."""
    second = evaluate(compute, inputs, references.wrt, cotangents)
    pairs = ((Phase.FORWARD, first.outputs, second.outputs), (Phase.BACKWARD, first.gradients, second.gradients))
    notes = {}
    for phase, left, right in pairs:
        if not all(name in right and _same(to_array(left[name]), to_array(right[name])) for name in left):
            notes[phase] = "not deterministic: a second call on the same tensors gave other bits"
    return notes


def _check_layouts(rule: Rule, references: References, compute: Compute, device: torch.device) -> list[_Finding]:
    """The same values in strided storage and, with four dimensions, channels last; cotangents too: right as well."""
    import torch

    findings = _check_layout(rule, references, compute, device, "strided")
    pictures = any(torch.is_tensor(value) and value.dim() == 4 for value in references.inputs.values())
    if pictures and _has_channels_last(device):
        findings += _check_layout(rule, references, compute, device, "channels last")
    return findings


def _has_channels_last(device: torch.device) -> bool:
    """Whether the device knows the format; torch_npu refuses it ("only supported contiguous memory format")."""
    import torch

    try:
        torch.zeros(1, 2, 2, 2, device=device).contiguous(memory_format=torch.channels_last)
    except RuntimeError:
        return False
    return True


_DESCRIBED = {"strided": "that are not contiguous", "channels last": "in the channels-last format"}


def _check_layout(
    rule: Rule, references: References, compute: Compute, device: torch.device, kind: str
) -> list[_Finding]:
    layouts = dict.fromkeys(references.inputs, kind)
    cotangents = place(references.cotangents, device, dict.fromkeys(references.cotangents, kind))
    try:
        result = evaluate(compute, place(references.inputs, device, layouts), references.wrt, cotangents)
    except Exception as error:
        return [_Finding("output", Judgement(Status.WARN, f"refuses inputs {_DESCRIBED[kind]}: {describe(error)}"))]
    found = _judge(rule, result, references, device)
    prefix = f"with inputs {_DESCRIBED[kind]}: "
    return [_Finding(f.tensor, replace(f.judgement, why=prefix + f.judgement.why)) for f in found]


def _summarise(
    operator: Operator, case: OpCase, phase: Phase, findings: list[_Finding], notes: Mapping[Phase, str]
) -> CaseResult:
    """The worst finding of a phase; equal ones: the one nearest to its limit, the plain call before the strided one."""
    mine = [f for f in findings if f.tensor.startswith(GRADIENT) == (phase == Phase.BACKWARD)]
    worst = max(mine, key=lambda f: _badness(f.judgement))
    judgement = worst.judgement
    note = "; ".join(text for text in (judgement.why, notes.get(phase, "")) if text)
    limit: Limit | None = judgement.limit
    return CaseResult(
        operator.name, case.id, "", phase, judgement.status, worst.tensor, dict(judgement.metrics), limit, note
    )


def _badness(judgement: Judgement) -> tuple[int, float]:
    z = judgement.metrics.get("z", 0.0)
    return _ORDER.index(judgement.status), math.inf if math.isnan(z) else z
