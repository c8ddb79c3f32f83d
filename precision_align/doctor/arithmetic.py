"""Does the device compute? Products in each dtype and a fixed set of operators, against float64 on the CPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Callable

from precision_align.doctor.checks import BAD, GOOD, NOTE, Check, first_line

SIZE = 256  # of the trial product: K large enough to tell HF32 from fp32, small enough for a cold device
U32 = 2.0**-24
# inputs rounded to 11 mantissa bits (HF32, TF32): each factor is off by 2^-12 at most, the product by twice that; a
# device that truncates instead of rounding is off by twice as much again
REDUCED = 4 * 2.0**-12
DTYPES = {"float32": U32, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Relative L2 error of an operator in float32. A hundred roundings cover any order of sums at these sizes; above that an
# arithmetic mode or an approximate formula is at work; above 1 %, no documented mode explains it.
EXACT, WRONG = 100 * U32, 1e-2


def check_products(place: str) -> list[Check]:
    """A product of two random matrices in each dtype against float64 on the CPU, and against itself."""
    import torch

    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(SIZE, SIZE, generator=generator, dtype=torch.float64) for _ in range(2))
    checks = []
    for dtype in DTYPES:
        kind = getattr(torch, dtype)
        low = [side.to(kind) for side in (left, right)]
        try:
            first, second = (torch.matmul(*(side.to(place) for side in low)).cpu().double() for _ in range(2))
        except (RuntimeError, NotImplementedError) as error:
            checks.append(Check(f"{place} {dtype}", NOTE, f"not supported: {first_line(error)}"))
            continue
        golden = torch.matmul(*(side.double() for side in low))
        scale = torch.matmul(*(side.double().abs() for side in low))
        error_of = measure_error(first.numpy(), golden.numpy(), scale.numpy(), DTYPES[dtype])
        same = bool(torch.equal(first, second))
        checks.append(judge_product(f"{place} {dtype}", error_of, same))
    return checks


def measure_error(actual: Any, golden: Any, scale: Any, roundoff: float) -> float:
    """The largest |actual - golden| beyond the rounding of the result, over |A||B|; NaN counts as infinite.

    With fp32 accumulation it is at most gamma_K = K u / (1 - K u), u = 2^-24 (Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd ed., eq. 3.13).
    """
    import numpy as np

    excess = np.abs(actual - golden) - roundoff * np.abs(golden)
    worst = float(np.max(excess / scale))
    return math.inf if math.isnan(worst) else max(worst, 0.0)


def judge_product(name: str, error: float, same: bool) -> Check:
    """Full precision, a reduced arithmetic mode, or wrong; and the same twice or not."""
    bound = SIZE * U32 / (1 - SIZE * U32)
    shown = f"matmul error {error:.1e} of |A||B|, bound {bound:.1e}"
    if error > REDUCED:
        advice = "wrong beyond any arithmetic mode: update driver and toolkit before trusting this device"
        return Check(name, BAD, shown, advice)
    if error > bound:
        advice = "an arithmetic mode (HF32, TF32, fp16 accumulation) is on: switch it off for a float32 comparison"
        return Check(name, NOTE, shown, advice)
    if not same:
        return Check(name, NOTE, f"{shown}; two runs differ", "switch deterministic kernels on")
    return Check(name, GOOD, shown)


def list_operators() -> Mapping[str, Callable[[Mapping[str, Any]], Any]]:
    """The fixed set: name -> function of the inputs, one of each kind of arithmetic that a training step does."""
    from torch.nn import functional

    def attend(given: Mapping[str, Any]) -> Any:
        heads = given["x"].reshape(1, 4, 16, 64)
        return functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)

    return {
        "add": lambda given: given["x"] + given["y"],
        "exp": lambda given: given["x"].exp(),
        "gelu": lambda given: functional.gelu(given["x"]),
        "softmax": lambda given: given["x"].softmax(-1),
        "layer_norm": lambda given: functional.layer_norm(given["x"], (64,)),
        "sum": lambda given: given["x"].abs().sum(0),
        "cumsum": lambda given: given["x"].cumsum(0),
        "linear": lambda given: functional.linear(given["x"], given["y"]),
        "conv2d": lambda given: functional.conv2d(given["x"].reshape(1, 4, 32, 32), given["k"], padding=1),
        "embedding": lambda given: functional.embedding(given["i"], given["x"]),
        "index_add": lambda given: given["x"].index_add(0, given["i"], given["y"]),
        "sort": lambda given: given["x"].sort(-1)[0],
        "cross_entropy": lambda given: functional.cross_entropy(given["x"], given["i"]),
        "attention": attend,
    }


def _draw_inputs() -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(0)
    inputs: dict[str, Any] = {name: torch.randn(64, 64, generator=generator) for name in ("x", "y")}
    inputs["k"] = torch.randn(8, 4, 3, 3, generator=generator)
    inputs["i"] = torch.randint(0, 64, (64,), generator=generator)
    return inputs


def check_operators(place: str) -> list[Check]:
    """The fixed operators in float32, forward, as one check a verdict: right, in another arithmetic, wrong, missing."""
    import torch

    inputs = _draw_inputs()
    wide = {name: one.double() if one.is_floating_point() else one for name, one in inputs.items()}
    there = {name: one.to(place) for name, one in inputs.items()}
    found: dict[str, list[str]] = {GOOD: [], NOTE: [], BAD: [], "raised": []}
    for name, compute in list_operators().items():
        golden = compute(wide)
        try:
            actual = compute(there).cpu().double()
        except (RuntimeError, NotImplementedError) as error:
            found["raised"].append(f"{name} ({first_line(error)})")
            continue
        error_of = float(torch.linalg.vector_norm(actual - golden) / torch.linalg.vector_norm(golden))
        found[judge_error(error_of)].append(name if error_of <= EXACT else f"{name} ({error_of:.0e})")
    return _summarise(f"{place} operators", found)


def judge_error(error: float) -> str:
    """ok, note or bad for a relative L2 error; NaN is bad."""
    if not error <= WRONG:
        return BAD
    return GOOD if error <= EXACT else NOTE


def _summarise(name: str, found: Mapping[str, list[str]]) -> list[Check]:
    checks = [Check(name, GOOD, f"{len(found[GOOD])} as float32 should be: {', '.join(found[GOOD])}")]
    if found[NOTE]:
        text = f"less exact than float32: {', '.join(found[NOTE])}"
        checks.append(Check(name, NOTE, text, "an arithmetic mode or an approximate formula: see the switches below"))
    wrong = [*found[BAD], *found["raised"]]
    if wrong:
        advice = "update driver, CANN and torch_npu, then run `precision-align case run` on these operators"
        checks.append(Check(name, BAD, f"wrong or failing: {', '.join(wrong)}", advice))
    return checks if found[GOOD] else checks[1:]
