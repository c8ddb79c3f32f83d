"""Recurrent nets: cells in a loop, stock LSTM and GRU, state carried between calls."""

from __future__ import annotations

import torch
from localization_cases import Pair, case
from torch import nn


class Cell(nn.Module):
    """An LSTM cell by hand. ``fault``: gate order, forget bias, activation."""

    def __init__(self, d: int, fault: str = "") -> None:
        super().__init__()
        self.x, self.h, self.fault = nn.Linear(d, 4 * d), nn.Linear(d, 4 * d), fault

    def forward(self, x, state):
        h, c = state
        i, f, g, o = (self.x(x) + self.h(h)).chunk(4, -1)
        if self.fault == "gates":
            f, g = g, f
        if self.fault == "forget":
            f = f + 1
        g = torch.sigmoid(g) if self.fault == "sigmoid" else torch.tanh(g)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * g
        return torch.sigmoid(o) * torch.tanh(c), c


class Unrolled(nn.Module):
    def __init__(self, fault: str = "", d: int = 8) -> None:
        super().__init__()
        part, _, what = fault.partition(":")
        self.cell, self.head = Cell(d, what if part == "cell" else ""), nn.Linear(d, 3)
        self.fault, self.d = what if part == "loop" else "", d

    def forward(self, x):
        state = (x.new_zeros(len(x), self.d), x.new_zeros(len(x), self.d))
        outputs = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, -1 - t if self.fault == "reversed" else t], state)
            state = (h.detach() if self.fault == "detached" and t == 2 else h, c)
            if self.fault == "reset" and t == 2:
                state = (torch.zeros_like(h), c)
            outputs.append(h)
        return self.head(torch.stack(outputs, 1))


def _register(fault: str, first: str, site: str, call: int | None, phase: str = "forward") -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(80)
        return Unrolled(fault if faulty else ""), (torch.randn(3, 6, 8).requires_grad_(phase != "forward"),)

    build.__name__ = fault.replace(":", "_")
    case(first, "recurrent nets", site=site, phase=phase, **({} if call is None else {"call": call}))(build)


_register("cell:gates", "cell", "inline", 0)
_register("cell:forget", "cell", "inline", None)
_register("cell:sigmoid", "cell", "inline", 0)
_register("loop:reversed", "", "inline", 0)
_register("loop:reset", "", "inline", 0)
_register("loop:detached", "", "inline", 0, "backward")


class Stock(nn.Module):
    """``fault``: reads the last output instead of the last state, drops the initial state, one direction."""

    def __init__(self, kind: str, fault: str = "") -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(8, 8, 2, batch_first=True, bidirectional=True)
        self.head, self.fault = nn.Linear(16, 3), fault

    def forward(self, x):
        start = torch.full((4, len(x), 8), 0.1)
        state = (start, start) if isinstance(self.rnn, nn.LSTM) else start
        y, last = self.rnn(x) if self.fault == "no_state" else self.rnn(x, state)
        h = last[0] if isinstance(last, tuple) else last
        end = y[:, -1] if self.fault == "last_output" else torch.cat((h[-2], h[-1]), -1)
        return self.head(end)


def _register_stock(kind: str, fault: str, first: str | None, phase: str = "forward") -> None:
    def build(faulty: bool) -> Pair:
        torch.manual_seed(81)
        return Stock(kind, fault if faulty else ""), (torch.randn(3, 6, 8).requires_grad_(phase != "forward"),)

    build.__name__ = f"{kind.lower()}_{fault}"
    case(first, "recurrent nets", site="inline", phase=phase)(build)


for _kind in ("LSTM", "GRU"):
    _register_stock(_kind, "last_output", "")
    _register_stock(_kind, "no_state", "")
    _register_stock(_kind, "same", None, "backward")


class GruByHand(nn.GRU):
    """The cell of another framework: the reset gate before the product."""

    before = False

    def forward(self, x, h=None):
        h = x.new_zeros(len(x), self.hidden_size) if h is None else h[0]
        outputs = []
        for t in range(x.shape[1]):
            r, z, n = (x[:, t] @ self.weight_ih_l0.t() + self.bias_ih_l0).chunk(3, -1)
            hr, hz, hn = (h @ self.weight_hh_l0.t() + self.bias_hh_l0).chunk(3, -1)
            r, z = torch.sigmoid(r + hr), torch.sigmoid(z + hz)
            if self.before:
                d = self.hidden_size
                hn = (r * h) @ self.weight_hh_l0[2 * d :].t() + self.bias_hh_l0[2 * d :]
                n = torch.tanh(n + hn)
            else:
                n = torch.tanh(n + r * hn)
            h = (1 - z) * n + z * h
            outputs.append(h)
        return torch.stack(outputs, 1), h[None]


def _make_gru(other: bool, wrong: bool) -> Pair:
    torch.manual_seed(82)
    kind = GruByHand if other else nn.GRU
    gru = kind(8, 8, batch_first=True)
    gru.before = wrong

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru, self.head = gru, nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.gru(x)[0])

    torch.manual_seed(83)
    net = Net()
    return net, (torch.randn(3, 7, 8).requires_grad_(),)


@case("gru", "reset_after of another framework", site="module")
def gru_resets_before(faulty: bool) -> Pair:
    return _make_gru(faulty, faulty)


@case(None, "fused against unrolled", phase="backward")
def gru_unrolled(faulty: bool) -> Pair:
    return _make_gru(faulty, False)
