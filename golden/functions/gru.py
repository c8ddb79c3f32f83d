"""Float64 reference of one GRU layer, step by step."""

from __future__ import annotations

import torch


def gru(
    x: torch.Tensor,
    h: torch.Tensor,
    w_input: torch.Tensor,
    w_hidden: torch.Tensor,
    bias_input: torch.Tensor,
    bias_hidden: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """All hidden states (T, B, H) and the last one (B, H).

    ``x`` (T, B, I), ``h`` (B, H); ``w_input`` (3H, I), ``w_hidden`` (3H, H), biases (3H,) in the order reset, update,
    new: n = tanh(W x + b + r (U h + b')), h' = (1 - z) n + z h. The reset gate multiplies after the product, bias
    included (cuDNN, PyTorch), not before (the paper). Source: Cho and others, arXiv:1406.1078; torch.nn.GRU's
    documentation.
    """
    x, h = x.double(), h.double()
    states = []
    for step in x.unbind(0):
        from_input = step @ w_input.double().T + bias_input.double()
        from_hidden = h @ w_hidden.double().T + bias_hidden.double()
        (r, z, n), (r_h, z_h, n_h) = from_input.chunk(3, dim=-1), from_hidden.chunk(3, dim=-1)
        reset, update = torch.sigmoid(r + r_h), torch.sigmoid(z + z_h)
        new = torch.tanh(n + reset * n_h)
        h = (1 - update) * new + update * h
        states.append(h)
    return torch.stack(states), h
