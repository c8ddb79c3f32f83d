"""Golden functions against a second source, in float64, on the inputs of all cases: PyTorch's own operator where
there is one, else a second formula."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.library.cases import OpCase, Operator, settle
from precision_align.library.references import draw_cotangents, evaluate, prepare_inputs, to_array, widen

# Two float64 formulas differ by roundings of 1e-16 times a condition that the cases drive up to about 1e5.
TOLERANCE = 1e-10


def find_disagreements(operator: Operator, seed: int = 3) -> Iterator[str]:
    """One text for each output or gradient of each case in which the two sources differ; none for a case that must be
    refused. Whole numbers must be equal, floating ones within 1e-10 of the largest value (both finite or not alike)."""
    second = operator.independent or operator.replacements["torch"]
    for case in operator.cases:
        if not case.raises:
            yield from (f"{case.id}: {text}" for text in _compare(operator, case, seed, second))


def _compare(operator: Operator, case: OpCase, seed: int, second: object) -> Iterator[str]:
    inputs = widen(prepare_inputs(case, "float32", seed))
    golden, other = settle(operator, operator.golden), settle(operator, second)  # type: ignore[arg-type]
    first = evaluate(golden, inputs, (), {})
    cotangents = widen(draw_cotangents(first.outputs, seed)) if case.wrt else {}
    left = evaluate(golden, inputs, case.wrt, cotangents).named()
    right = evaluate(other, inputs, case.wrt, cotangents).named()
    if set(left) != set(right):
        yield f"outputs {sorted(left)} and {sorted(right)}"
        return
    for name in left:
        text = _differ(to_array(left[name]), to_array(right[name]))
        if text:
            yield f"{name}: {text}"


def _differ(left: Array, right: Array) -> str:
    if left.shape != right.shape:
        return f"shapes {left.shape} and {right.shape}"
    if left.dtype.kind not in "fc":
        return "" if np.array_equal(left, right) else f"{np.count_nonzero(left != right)} values differ"
    finite = np.isfinite(left)
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True) or not np.isfinite(right[finite]).all():
        return "NaN and infinities at different places"
    if not finite.any():
        return ""
    error = float(np.abs(left[finite] - right[finite]).max())
    size = float(np.abs(left[finite]).max())
    return "" if error <= TOLERANCE * max(size, 1.0) else f"differ by {error:.3g} of {size:.3g}"
