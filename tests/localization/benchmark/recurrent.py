"""Recurrent cells in a loop, by hand and of torch: the models of the localization cases."""

from __future__ import annotations

from typing import Any

import torch
from localization_benchmark import Setup, add
from localization_cases.recurrent import GruByHand, Stock, Unrolled
from torch import nn

D, BATCH, LENGTH = 16, 24, 6


class Cached(nn.Module):
    """Reads a state that an earlier call left, where a sequence has one element only. ``fault``: it is stale."""

    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.cell, self.fault, self.kept = nn.GRUCell(D, D), fault, None

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        if self.fault and x.shape[1] == 1 and self.kept is not None:
            h = self.kept
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        if self.kept is None:
            self.kept = torch.zeros_like(h)
        return h


class Decoder(nn.Module):
    def __init__(self, fault: bool) -> None:
        super().__init__()
        self.cached, self.head = Cached(fault), nn.Linear(D, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.cached(x[:, :-1], x.new_zeros(len(x), D))
        return self.head(self.cached(x[:, -1:], h))


def make_unrolled(fault: str, seed: int, dtype: torch.dtype) -> Setup:
    torch.manual_seed(seed)
    return Setup(Unrolled(fault, D).to(dtype), [[{"x": torch.randn(BATCH, LENGTH, D).to(dtype)}]])


def make_gru(by_hand: bool, wrong: bool, seed: int, dtype: torch.dtype) -> Setup:
    torch.manual_seed(seed)
    kind = GruByHand if by_hand else nn.GRU
    gru = kind(D, D, batch_first=True)
    if by_hand:
        gru.before = wrong
    model = nn.Sequential(gru, Last(), nn.Linear(D, 5)).to(dtype)
    return Setup(model, [[{"input": torch.randn(BATCH, LENGTH, D).to(dtype)}]])


class Last(nn.Module):
    def forward(self, result: Any) -> torch.Tensor:
        return result[0][:, -1]


def _unrolled(
    fault: str, first: str, sites: Any, call: int | None, phase: str = "forward", words: tuple[str, ...] = ()
) -> None:
    def build(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
        return make_unrolled(fault if faulty else "", seed, dtype)

    add(fault.replace(":", "_"), "recurrent", build, first, sites, row="pilot", call=call, phase=phase, words=words)


_unrolled("cell:gates", "cell", "inline", 0)
_unrolled("cell:forget", "cell", "inline", None)
_unrolled("cell:sigmoid", "cell", "inline", 0, words=("sigmoid instead",))
_unrolled("loop:reversed", "", "inline", 0)
_unrolled("loop:reset", "", "inline", 0, words=("all zero",))
_unrolled("loop:detached", "", "inline", 0, "backward")


def _stock(kind: str, fault: str) -> None:
    def build(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
        torch.manual_seed(seed)
        return Setup(Stock(kind, fault if faulty else ""), [[{"x": torch.randn(BATCH, LENGTH, 8)}]])

    add(f"{kind.lower()}_{fault}", "recurrent", build, "", "inline", row="pilot", dtypes=(torch.float32,))


for _kind in ("LSTM", "GRU"):
    _stock(_kind, "last_output")
    _stock(_kind, "no_state")
add(
    "gru_resets_before",
    "recurrent",
    lambda faulty, seed, dtype: make_gru(True, faulty, seed, dtype),
    "0",
    row="pilot",
    dtypes=(torch.float32,),
)


def _decoder(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
    torch.manual_seed(seed)
    return Setup(Decoder(faulty).to(dtype), [[{"x": torch.randn(BATCH, LENGTH, D).to(dtype)}]])


add("stale_state_at_length_one", "recurrent", _decoder, "cached", "inline", row="13", call=1, words=("all zero",))
