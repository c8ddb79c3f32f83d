"""Float64 reference of index_put with and without accumulation."""

from __future__ import annotations

import torch


def index_put(x: torch.Tensor, rows: torch.Tensor, values: torch.Tensor, *, accumulate: bool = True) -> torch.Tensor:
    """x with values[i] added to (or written over) row rows[i]. Returns the shape of ``x`` (M, C).

    ``rows`` (T,) whole numbers, negative ones from the end, ``values`` (T, C). Without ``accumulate`` each row may
    stand there once only. Source: torch.Tensor.index_put_'s documentation.
    """
    out = list(x.double().unbind(0))
    for row, value in zip(rows.tolist(), values.double().unbind(0)):
        out[row] = out[row] + value if accumulate else value
    return torch.stack(out) if out else x.double()
