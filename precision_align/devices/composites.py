"""Composite operators that ATen computes in another way on every device but the CPU: LSTM, GRU, dropout, attention.

For LSTM and GRU ATen picks fused cells that the CPU does not have. Here the whole operator runs on CPU aliases, with
its own small autograd graph there, so that the result is the CPU's to the last bit. Single cells, dropout and the
choice of an attention kernel are written out as for the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import linear

from precision_align.devices import backend
from precision_align.devices.aliasing import alias_on_cpu, alias_on_npu, is_on_npu
from precision_align.devices.dispatch import ExecutionMode, find_operator, open_library

aten = torch.ops.aten
_RECURRENT = ("lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input", "rnn_relu.input")


@contextmanager
def _as_the_device() -> Iterator[None]:
    """CPU operators that compute as the device does: its autocast region, its execution."""
    low = torch.get_autocast_dtype("npu")
    with torch.autocast("cpu", dtype=low, enabled=torch.is_autocast_enabled("npu")):
        if backend.is_native():
            yield
            return
        # oneDNN's recurrent layer is one operator; without it the products inside are visible to the execution.
        was_enabled = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            with ExecutionMode(backend.current_execution()):
                yield
        finally:
            torch._C._set_mkldnn_enabled(was_enabled)


class _OnHost(torch.autograd.Function):
    """One composite operator on CPU aliases; the graph of the CPU run is kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, operator: Any, with_grad: bool, spec: Any, leaves: Sequence[Any], *tensors: torch.Tensor
    ) -> Any:
        hosts = [alias_on_cpu(tensor.detach()).requires_grad_(needed) for tensor, needed in _with_needs(ctx, tensors)]
        supply = iter(hosts)
        args = torch.utils._pytree.tree_unflatten([next(supply) if is_on_npu(leaf) else leaf for leaf in leaves], spec)
        # ATen picks oneDNN's layer by the caller's grad mode, which autograd has switched off in here.
        with torch.set_grad_enabled(with_grad), _as_the_device():
            results = operator(*args)
        results = (results,) if isinstance(results, torch.Tensor) else tuple(results)
        ctx.hosts, ctx.results = hosts, results
        ctx.save_for_backward(*tensors)  # not read, but an input changed in place must raise as it does elsewhere
        return tuple(alias_on_npu(result.detach()) for result in results)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        _ = ctx.saved_tensors
        wanted = [host for host in ctx.hosts if host.requires_grad]
        pairs = [
            (result, alias_on_cpu(gradient)) for result, gradient in zip(ctx.results, gradients) if result.requires_grad
        ]
        with _as_the_device():
            found = iter(
                torch.autograd.grad(
                    [result for result, _ in pairs],
                    wanted,
                    [gradient for _, gradient in pairs],
                    retain_graph=True,
                    allow_unused=True,
                )
            )
        on_host = [next(found) if host.requires_grad else None for host in ctx.hosts]
        return (None, None, None, None, *(None if one is None else alias_on_npu(one) for one in on_host))


def _with_needs(ctx: Any, tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, bool]]:
    needs = ctx.needs_input_grad[4:]
    return list(zip(tensors, needs))


def _step_lstm(
    inputs: torch.Tensor,
    hx: Sequence[torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The CPU's LSTM cell, in its order of operations."""
    hidden, state = hx
    gates = linear(hidden, w_hh, b_hh).add_(linear(inputs, w_ih, b_ih))
    entered, kept, candidate, shown = gates.unsafe_chunk(4, 1)
    updated = (kept.sigmoid_() * state).add_(entered.sigmoid_() * candidate.tanh_())
    return shown.sigmoid_() * updated.tanh(), updated


def _step_gru(
    inputs: torch.Tensor,
    hx: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> torch.Tensor:
    """The CPU's GRU cell, in its order of operations."""
    reset_in, update_in, candidate_in = linear(inputs, w_ih, b_ih).unsafe_chunk(3, 1)
    reset_of, update_of, candidate_of = linear(hx, w_hh, b_hh).unsafe_chunk(3, 1)
    reset = reset_of.add_(reset_in).sigmoid_()
    update = update_of.add_(update_in).sigmoid_()
    candidate = candidate_in.add(candidate_of.mul_(reset)).tanh_()
    return (hx - candidate).mul_(update).add_(candidate)


def _drop_out(inputs: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """The CPU's dropout; the fused kernel of other devices multiplies by mask and scale one after the other."""
    if p == 0 or not train or inputs.numel() == 0:
        return inputs
    if p == 1:
        return inputs * torch.zeros((), dtype=inputs.dtype, device=inputs.device)
    noise = torch.empty_like(inputs).bernoulli_(1 - p)
    scaled: torch.Tensor = inputs * aten.div_.Scalar(noise, 1 - p)
    return scaled


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The CPU's choice between its fused attention kernel and the composite."""
    chosen = torch._fused_sdp_choice(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    # Neither form below reads a boolean mask: the composite would add it, True as 1.
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, float("-inf"))
    # The choice runs on aliases, which do not show requires_grad; the fused kernel has no gradient for the mask.
    mask_learns = attn_mask is not None and attn_mask.requires_grad
    if chosen != torch.nn.attention.SDPBackend.FLASH_ATTENTION.value or mask_learns:
        attended: torch.Tensor = aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
        return attended
    attended = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )[0]
    return attended


def _bind(operator: Any, single: bool) -> Any:
    apply: Any = _OnHost.apply

    def kernel(*args: Any) -> Any:
        leaves, spec = torch.utils._pytree.tree_flatten(args)
        results = apply(operator, torch.is_grad_enabled(), spec, leaves, *[leaf for leaf in leaves if is_on_npu(leaf)])
        return results[0] if single else results

    return kernel


def register_composites() -> list[Any]:
    """Register the composite operators; returns the libraries, which must stay alive."""
    libraries = []
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        library = open_library("aten", key)
        for name in _RECURRENT:
            operator = find_operator(f"aten::{name}")
            library.impl(name, _bind(operator, single=len(operator._schema.returns) == 1))
        library.impl("lstm_cell", _step_lstm)
        library.impl("gru_cell", _step_gru)
        library.impl("dropout", _drop_out)
        library.impl("scaled_dot_product_attention", _attend)
        libraries.append(library)
    return libraries
