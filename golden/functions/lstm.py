"""Float64 reference of one LSTM layer, step by step."""

from __future__ import annotations

import torch


def lstm(
    x: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    w_input: torch.Tensor,
    w_hidden: torch.Tensor,
    bias: torch.Tensor,
    *,
    reverse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All hidden states (T, B, H), the last hidden and the last cell state (B, H).

    ``x`` (T, B, I), ``h``, ``c`` (B, H); ``w_input`` (4H, I), ``w_hidden`` (4H, H), ``bias`` (4H,) in the order input,
    forget, cell, output: c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c'). ``reverse``: from the last
    step to the first. Source: Hochreiter and Schmidhuber (1997) with forget gates; torch.nn.LSTM's documentation.
    """
    x, h, c, bias = x.double(), h.double(), c.double(), bias.double()
    states = []
    for step in reversed(x.unbind(0)) if reverse else x.unbind(0):
        gates = step @ w_input.double().T + h @ w_hidden.double().T + bias
        i, f, g, o = gates.chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        states.append(h)
    return torch.stack(states[::-1] if reverse else states), h, c
