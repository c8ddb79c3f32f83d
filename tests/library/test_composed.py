"""Composed equivalents take a function's own arguments and give its results and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from precision_align.library.composed import list_composed

pytestmark = pytest.mark.live

COMPOSED = list_composed()
GENERATOR = torch.Generator().manual_seed(1)


def draw(*shape):
    return torch.randn(*shape, generator=GENERATOR)


ROW, IMAGE, CHANNELS = draw(5, 12), draw(2, 6, 5, 5), (draw(6), draw(6))
CALLS = {
    "gelu": [((ROW,), {}), ((ROW,), {"approximate": "tanh"})],
    "mish": [((ROW,), {})],
    "softmax": [((ROW, 0), {}), ((ROW,), {"dim": -1})],
    "log_softmax": [((ROW,), {"dim": -1, "_stacklevel": 5})],
    "layer_norm": [((ROW, (12,), draw(12), draw(12), 1e-3), {}), ((IMAGE, (5, 5)), {})],
    "rms_norm": [((ROW, (12,), draw(12)), {})],
    "group_norm": [((IMAGE, 3, *CHANNELS), {"eps": 1e-3})],
    "batch_norm": [
        ((IMAGE, torch.zeros(6), torch.ones(6), *CHANNELS, True, 0.3, 1e-3), {}),
        ((IMAGE, torch.zeros(6), torch.ones(6)), {}),
        ((IMAGE, None, None), {"training": True}),
    ],
    "cross_entropy": [
        ((ROW, torch.tensor([1, 2, -100, 4, 0])), {"label_smoothing": 0.1}),
        ((ROW, torch.tensor([1, 2, 3, 4, 0]), draw(12).abs()), {"reduction": "none"}),
    ],
    "scaled_dot_product_attention": [
        ((draw(2, 3, 4, 8), draw(2, 3, 4, 8), draw(2, 3, 4, 8)), {"is_causal": True}),
        ((draw(2, 3, 4, 8), draw(2, 3, 6, 8), draw(2, 3, 6, 8), draw(4, 6) > -0.5), {"scale": 0.3}),
    ],
    "conv2d": [((IMAGE, draw(4, 3, 3, 3), draw(4), (2, 2), 1), {"groups": 2})],
    "huber_loss": [((ROW, draw(5, 12)), {"delta": 0.4})],
}


@pytest.mark.parametrize(("name", "args", "kwargs"), [(n, a, k) for n, calls in CALLS.items() for a, k in calls])
def test_results_gradients_and_written_buffers_are_the_functions_own(name, args, kwargs):
    if not hasattr(functional, name):
        pytest.skip("newer than this torch")
    found = []
    for function in (getattr(functional, name), COMPOSED[f"torch.nn.functional.{name}"]):
        mine = [value.clone() if isinstance(value, torch.Tensor) else value for value in args]
        mine[0].requires_grad_()
        output = function(*mine, **kwargs)
        (output * torch.linspace(0.5, 2, output.numel()).view_as(output)).sum().backward()
        found.append([output.detach(), mine[0].grad, *(t.detach() for t in mine[1:] if isinstance(t, torch.Tensor))])
    for expected, actual in zip(*found):
        torch.testing.assert_close(actual, expected)


def test_what_the_formula_does_not_know_is_refused_by_name():
    assert all(name.startswith("npu.") or name.rpartition(".")[2] in CALLS for name in COMPOSED)
    with pytest.raises(NotImplementedError, match="dropout"):
        COMPOSED["torch.nn.functional.scaled_dot_product_attention"](*[draw(1, 1, 2, 4)] * 3, dropout_p=0.1)


def test_fused_operators_of_the_npu_have_their_formulas():
    x, weight = draw(3, 8), draw(8)
    y, scale = COMPOSED["npu.npu_rms_norm"](x, weight, 1e-5)
    torch.testing.assert_close(y, x * scale * weight)
    torch.testing.assert_close(COMPOSED["npu.npu_gelu"](x, approximate="tanh"), functional.gelu(x, approximate="tanh"))
    torch.testing.assert_close(COMPOSED["npu.npu_swiglu"](x), functional.silu(x[:, :4]) * x[:, 4:])
