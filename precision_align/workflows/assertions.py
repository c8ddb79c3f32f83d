"""``assert_aligned``: our verdict in a user's own test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from precision_align.core.dtypes import DTYPES, Array, Dtype, dtype_of
from precision_align.core.errors import UsageError
from precision_align.core.terms import Status
from precision_align.core.trees import flatten
from precision_align.library.folders import find_folders, load_operator
from precision_align.numerics.judgement import Judgement, judge, judge_exact
from precision_align.numerics.limits import raw_limit
from precision_align.numerics.metrics import measure


def assert_aligned(
    actual: Any,
    expected: Any,
    *,
    op: str | None = None,
    inputs: Mapping[str, Any] | None = None,
    dtype: Any = None,
) -> None:
    """Assert that ``actual`` is ``expected`` but for arithmetic.

    Both are tensors (torch or NumPy), numbers, or any nesting of these. Without ``op``: integers and booleans exact,
    NaN and Inf in the same places, the largest difference within the dtype's raw limit of the largest expected value.
    With ``op`` (a name in the operator library) and ``inputs`` (the operator's keyword arguments): a float64 golden is
    computed from the inputs, and ``actual`` is judged by the element-wise bound, by the ratio of its error to that of
    ``expected``, and by bias. ``dtype``: judge as if the results were of this dtype (default: that of ``actual``).

    Raises AssertionError with place, numbers and limit; UsageError for wrong arguments.
    """
    if inputs is not None and op is None:
        raise UsageError("inputs= enables the float64 golden of an operator: name it with op=")
    tree, ours = flatten(actual, _is_array)
    other, theirs = flatten(expected, _is_array)
    if [path for path, _ in ours] != [path for path, _ in theirs]:
        raise AssertionError(f"structures differ: {_list_paths(ours)} against {_list_paths(theirs)}")
    if not ours and tree != other:
        raise AssertionError(f"{actual!r} is not {expected!r}")
    golden = _compute_golden(op, inputs) if op is not None else None
    problems = []
    for path, value in ours:
        kind = _find_dtype(value if dtype is None else dtype)
        judgement = _judge(value, dict(theirs)[path], kind, None if golden is None else golden.get(path))
        if judgement.status in (Status.FAIL, Status.MODE):
            problems.append(_describe(path, judgement, np.shape(_to_array(value))))
    if problems:
        raise AssertionError("\n".join(problems))


def _is_array(value: Any) -> bool:
    if isinstance(value, (np.ndarray, np.generic)):
        return True
    return hasattr(value, "detach") and hasattr(value, "dtype")


def _list_paths(leaves: list[tuple[str, Any]]) -> str:
    return ", ".join(path or "(the value)" for path, _ in leaves) or "no tensor"


def _find_dtype(value: Any) -> Dtype:
    name = str(getattr(value, "dtype", value)).replace("torch.", "")
    if name not in DTYPES:
        raise UsageError(f"unknown dtype {name!r}: one of {', '.join(DTYPES)}")
    return dtype_of(name)


def _to_array(value: Any) -> Array:
    """Float64 (complex128) values of floating tensors, others as they are."""
    if hasattr(value, "detach"):
        return import_module("precision_align.replay.values").to_array(value)  # type: ignore[no-any-return]
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    return array.astype(np.complex128) if array.dtype.kind == "c" else array


def _judge(actual: Any, expected: Any, kind: Dtype, golden: Any) -> Judgement:
    ours, theirs = _to_array(actual), _to_array(expected)
    if ours.shape != theirs.shape:
        return Judgement(Status.FAIL, f"shape {ours.shape}, expected {theirs.shape}")
    if not kind.is_floating:
        return judge_exact(ours, theirs)
    if golden is not None:
        wide, scale = golden(kind.name)
        return judge(ours, wide, theirs, scale, kind)
    found = measure(ours, theirs)
    limit = raw_limit(kind.name)
    metrics = {name: float(value) for name, value in found.to_dict().items()}
    if found.nonfinite:
        return Judgement(Status.FAIL, f"{found.nonfinite} values are NaN or Inf on one side only", metrics)
    if found.over_max > limit:
        text = f"largest difference {found.max_abs:.6g} is {found.over_max:.3g} of the largest value, {limit:g} allowed"
        return Judgement(Status.FAIL, text, metrics)
    return Judgement(Status.PASS, "", metrics)


def _compute_golden(op: str, inputs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Output path -> (dtype -> (golden array, scale)) of an operator of the library on these inputs."""
    folders = find_folders()
    if op not in folders.operators:
        raise UsageError(f"the operator library has no {op!r}: one of {', '.join(folders.operators)}")
    if inputs is None:
        raise UsageError(f"op={op!r} needs inputs=: the keyword arguments the operator was called with")
    operator = load_operator(folders, op)
    torch = import_module("torch")
    scales = import_module("precision_align.replay.scales")

    def run(change: Any) -> dict[str, Any]:
        arguments = {}
        for name, value in inputs.items():
            wide = torch.as_tensor(value) if isinstance(value, np.ndarray) else value
            if isinstance(wide, torch.Tensor) and wide.is_floating_point():
                wide = wide.detach().cpu().double()
                wide = change(wide) if change is not None else wide
            arguments[name] = wide.cpu() if isinstance(wide, torch.Tensor) else wide
        with torch.no_grad():
            return dict(flatten(operator.golden(**arguments), _is_array)[1])

    base = run(None)
    draws = [run(scales.perturb(torch.Generator().manual_seed(seed))) for seed in range(scales.DRAWS)]

    def bind(path: str) -> Any:
        wide = _to_array(base[path])
        moved = [_to_array(draw[path]) for draw in draws]
        return lambda name: (wide, scales.estimate_scale(wide, moved, name))

    return {path: bind(path) for path in base}


def _describe(path: str, judgement: Judgement, shape: tuple[int, ...]) -> str:
    where = path or "the value"
    text = f"{where} is not aligned: {judgement.why}"
    index = judgement.metrics.get("worst_index")
    size = int(np.prod(shape, dtype=np.int64))
    if index is not None and shape and size:
        text += f"; worst at {tuple(int(i) for i in np.unravel_index(int(index) % size, shape))}"
    if judgement.limit is not None:
        name = judgement.limit.metric
        value = judgement.metrics.get(name, math.nan)
        text += f"; {name} = {value:.6g}, limit {judgement.limit.value:g} ({judgement.limit.origin})"
    return text
