"""Recurrent layers under autocast, for which oneDNN has no bfloat16 kernel on every CPU."""

from __future__ import annotations

import torch
from torch import nn

from precision_align.core.terms import Phase, Status


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.LSTM(8, 8)

    def forward(self, x):
        return self.layer(x)[0] * 1.5


def test_an_lstm_under_autocast_is_replayed_on_any_cpu(judge):
    x = torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(0))

    def step(module):
        # as another device computes it: where this CPU lacks the kernel, torch itself raises
        was_enabled = torch._C._get_mkldnn_enabled()
        torch._C._set_mkldnn_enabled(False)
        try:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                result = module(x.clone().requires_grad_())
            result.float().sum().backward()
        finally:
            torch._C._set_mkldnn_enabled(was_enabled)

    rows = [row for row in judge(Recurrent(), step, replay=Recurrent()) if row.scope == "layer"]
    assert {row.phase for row in rows} == {Phase.FORWARD, Phase.BACKWARD}
    assert {row.status for row in rows} <= {Status.PASS, Status.WARN}
