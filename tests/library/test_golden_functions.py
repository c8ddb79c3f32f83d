"""Golden functions against independent sources: PyTorch's own operators, and plain loops in Python floats."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from precision_align.library.folders import load_golden

Tensor = torch.Tensor
attention, rope = load_golden("attention"), load_golden("rope")
rms_norm, layer_norm, swiglu = load_golden("rms_norm"), load_golden("layer_norm"), load_golden("swiglu")

sizes = st.integers(1, 5)
seeds = st.integers(0, 2**31)
few = settings(max_examples=25, deadline=None)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(left: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-12)


def loop_attention(q: Tensor, k: Tensor, v: Tensor, visible: Any, bias: Any, scale: float) -> Tensor:
    """One query at a time, in Python floats, with exactly rounded sums."""
    out = torch.zeros(*q.shape[:3], v.shape[-1], dtype=torch.float64)
    groups = q.shape[1] // k.shape[1]
    for b, h, i in ((b, h, i) for b in range(q.shape[0]) for h in range(q.shape[1]) for i in range(q.shape[2])):
        keys, values, row = k[b, h // groups].tolist(), v[b, h // groups].tolist(), q[b, h, i].tolist()
        seen = [j for j in range(len(keys)) if visible(i, j)]
        scores = [scale * math.fsum(x * y for x, y in zip(row, keys[j])) + bias(i, j) for j in seen]
        powers = [math.exp(score - max(scores)) for score in scores]
        for d in range(v.shape[-1]):
            top = math.fsum(p * values[j][d] for p, j in zip(powers, seen))
            out[b, h, i, d] = top / math.fsum(powers) if seen else 0.0
    return out


@few
@given(seeds, sizes, sizes, st.integers(1, 2), st.integers(1, 3), st.sampled_from(["none", "top-left", "bottom-right"]))
def test_attention_agrees_with_a_loop(seed: int, queries: int, keys: int, kv: int, groups: int, causal: str) -> None:
    q, k, v = (
        normal(seed, 1, kv * groups, queries, 3),
        normal(seed + 1, 1, kv, keys, 3),
        normal(seed + 2, 1, kv, keys, 2),
    )
    shift = {"none": keys + queries, "top-left": 0, "bottom-right": keys - queries}[causal]
    expected = loop_attention(q, k, v, lambda i, j: j <= i + shift, lambda i, j: 0.0, 0.7)
    close(attention(q, k, v, causal=causal, scale=0.7), expected)


@few
@given(seeds, sizes, sizes)
def test_attention_masks_agree_with_a_loop(seed: int, queries: int, keys: int) -> None:
    q, k, v = normal(seed, 1, 1, queries, 4), normal(seed + 1, 1, 1, keys, 4), normal(seed + 2, 1, 1, keys, 4)
    keep, bias = normal(seed + 3, queries, keys) > -0.3, normal(seed + 4, queries, keys)
    expected = loop_attention(q, k, v, lambda i, j: bool(keep[i, j]), lambda i, j: 0.0, 0.5)
    close(attention(q, k, v, mask=keep), expected)
    close(attention(q, k, v, mask=torch.zeros(queries, keys).masked_fill(~keep, -math.inf)), expected)
    added = loop_attention(q, k, v, lambda i, j: True, lambda i, j: float(bias[i, j]), 0.5)
    close(attention(q, k, v, mask=bias), added)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 1.7}])
def test_attention_and_its_gradients_agree_with_torch(options: dict[str, Any]) -> None:
    inputs = [normal(seed, 2, 3, 7, 5).requires_grad_() for seed in range(3)]
    ours = dict(options)
    causal = "top-left" if ours.pop("is_causal", False) else "none"
    left = attention(*inputs, causal=causal, **ours)
    right = torch.nn.functional.scaled_dot_product_attention(*inputs, **options)
    close(left, right)
    pull = normal(9, *left.shape)
    for one, other in zip(torch.autograd.grad(left, inputs, pull), torch.autograd.grad(right, inputs, pull)):
        close(one, other)


def test_a_query_without_keys_gives_zeros_and_no_gradient() -> None:
    inputs = [normal(seed, 1, 1, 4, 3).requires_grad_() for seed in range(3)]
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[2] = False
    result = attention(*inputs, mask=mask)
    assert torch.equal(result[0, 0, 2], torch.zeros(3, dtype=torch.float64))
    result.sum().backward()
    assert torch.equal(inputs[0].grad[0, 0, 2], torch.zeros(3, dtype=torch.float64))
    assert all(bool(part.grad.isfinite().all()) for part in inputs)


def test_attention_refuses_an_unknown_alignment() -> None:
    with pytest.raises(ValueError, match="top-left"):
        attention(*(normal(0, 1, 1, 2, 2) for _ in range(3)), causal="lower-left")


@few
@given(seeds, st.integers(1, 4), st.integers(0, 3), st.booleans(), st.booleans())
def test_rope_is_a_complex_product(seed: int, pairs: int, rest: int, interleaved: bool, compact: bool) -> None:
    x, angles = normal(seed, 3, 2 * pairs + rest), normal(seed + 1, 3, pairs)
    spread = angles.repeat_interleave(2, -1) if interleaved else torch.cat([angles, angles], -1)
    table = angles if compact else spread
    result = rope(x, table.cos(), table.sin(), interleaved=interleaved, compact=compact)
    for row in range(3):
        for pair in range(pairs):
            i, j = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + pairs)
            turned = complex(float(x[row, i]), float(x[row, j])) * cmath.exp(1j * float(angles[row, pair]))
            assert result[row, i].item() == pytest.approx(turned.real, abs=1e-12)
            assert result[row, j].item() == pytest.approx(turned.imag, abs=1e-12)
    assert torch.equal(result[:, 2 * pairs :], x[:, 2 * pairs :])


@few
@given(seeds, st.integers(1, 9), st.floats(1e-12, 1.0), st.sampled_from([0.0, 1.0]), st.floats(1e-3, 1e3))
def test_rms_norm_agrees_with_a_loop(seed: int, width: int, eps: float, offset: float, gain: float) -> None:
    x, weight = normal(seed, 3, width) * gain, normal(seed + 1, width)
    result = rms_norm(x, weight, eps=eps, offset=offset)
    for row in range(3):
        root = math.sqrt(math.fsum(float(v) ** 2 for v in x[row]) / width + eps)
        for column in range(width):
            expected = float(x[row, column]) / root * (offset + float(weight[column]))
            assert result[row, column].item() == pytest.approx(expected, rel=1e-12)


@few
@given(seeds, st.integers(1, 9), st.floats(1e-12, 1.0), st.floats(-100, 100))
def test_layer_norm_agrees_with_a_loop(seed: int, width: int, eps: float, mean: float) -> None:
    x, weight, bias = normal(seed, 3, width) + mean, normal(seed + 1, width), normal(seed + 2, width)
    result = layer_norm(x, weight, bias, eps=eps)
    for row in range(3):
        values = [float(v) for v in x[row]]
        centre = math.fsum(values) / width
        root = math.sqrt(math.fsum((v - centre) ** 2 for v in values) / width + eps)
        for column in range(width):
            expected = (values[column] - centre) / root * float(weight[column]) + float(bias[column])
            # values of 100 are known to 1e-14, divided by a root that may be as small as 1e-6
            assert result[row, column].item() == pytest.approx(expected, rel=1e-10, abs=1e-7)


@few
@given(seeds, st.integers(1, 6), st.booleans(), st.floats(0.1, 50))
def test_swiglu_agrees_with_a_loop(seed: int, width: int, gate_first: bool, gain: float) -> None:
    x = normal(seed, 2, 2 * width) * gain
    result = swiglu(x, gate_first=gate_first)
    for row in range(2):
        for column in range(width):
            first, second = float(x[row, column]), float(x[row, column + width])
            gate, up = (first, second) if gate_first else (second, first)
            assert result[row, column].item() == pytest.approx(gate / (1 + math.exp(-gate)) * up, rel=1e-11)


def test_swiglu_refuses_an_odd_size() -> None:
    with pytest.raises(ValueError, match="odd size 3"):
        swiglu(torch.zeros(2, 3))


TORCH = {
    "rms_norm": (
        lambda x, w: rms_norm(x, w, eps=1e-5),
        lambda x, w: torch.nn.functional.rms_norm(x, (6,), w, 1e-5),
        [(4, 6), (6,)],
    ),
    "layer_norm": (
        lambda x, w, b: layer_norm(x, w, b, eps=1e-5),
        lambda x, w, b: torch.nn.functional.layer_norm(x, (6,), w, b, 1e-5),
        [(4, 6), (6,), (6,)],
    ),
    "layer_norm over two": (
        lambda x, w, b: layer_norm(x, w, b, eps=1e-3, dims=2),
        lambda x, w, b: torch.nn.functional.layer_norm(x, (3, 6), w, b, 1e-3),
        [(4, 3, 6), (3, 6), (3, 6)],
    ),
    "swiglu": (
        swiglu,
        lambda x: torch.nn.functional.silu(x[:, :3]) * x[:, 3:],
        [(4, 6)],
    ),
    "swiglu along the rows": (
        lambda x: swiglu(x, dim=0, gate_first=False),
        lambda x: torch.nn.functional.silu(x[2:]) * x[:2],
        [(4, 6)],
    ),
}


@pytest.mark.skipif(not hasattr(torch.nn.functional, "rms_norm"), reason="rms_norm came with PyTorch 2.4")
@pytest.mark.parametrize("name", TORCH)
def test_golden_and_gradients_agree_with_torch(name: str) -> None:
    ours, theirs, shapes = TORCH[name]
    inputs = [normal(seed, *shape).requires_grad_() for seed, shape in enumerate(shapes)]
    left, right = ours(*inputs), theirs(*inputs)
    close(left, right)
    pull = normal(50, *left.shape)
    for one, other in zip(torch.autograd.grad(left, inputs, pull), torch.autograd.grad(right, inputs, pull)):
        close(one, other)


@pytest.mark.parametrize("call", [lambda x: rms_norm(x), lambda x: layer_norm(x), lambda x: swiglu(x)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_golden_works_in_float64_whatever_comes_in(call: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    x = normal(3, 4, 8).to(dtype)
    result = call(x)
    assert result.dtype == torch.float64
    assert torch.equal(result, call(x.double()))
