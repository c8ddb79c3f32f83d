"""A convolutional net with batch norm, and a small vision transformer: the models of the localization cases."""

from __future__ import annotations

from typing import Any

import torch
from localization_benchmark import BOTH, Setup, add
from localization_cases.vision import ConvNet, ViT


def make_conv(seed: int, dtype: torch.dtype, **faults: str) -> Setup:
    torch.manual_seed(seed)
    model = ConvNet(**faults).train().to(dtype)
    return Setup(model, [[{"x": torch.randn(8, 3, 8, 8).to(dtype)}]])


def make_vit(fault: str, seed: int, dtype: torch.dtype) -> Setup:
    torch.manual_seed(seed)
    return Setup(ViT(fault).to(dtype), [[{"x": torch.randn(8, 3, 9, 9).to(dtype)}]])


def _conv(
    part: str, fault: str, first: str, row: str = "pilot", words: tuple[str, ...] = (), dtypes: Any = BOTH
) -> None:
    def build(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
        return make_conv(seed, dtype, **({part: fault} if faulty else {}))

    add(f"{part.partition('_')[0]}_{fault}", "vision", build, first, row=row, words=words, dtypes=dtypes)


_WORDS = {
    "normalises_unbiased": ("biased against unbiased", "n - 1"),
    "stores_biased": ("biased against unbiased", "n - 1"),
    "momentum": ("0.9 instead of 0.1",),
    "eps": ("eps 0.001",),
}
for _fault in _WORDS:
    _conv("norm_fault", _fault, "norm2", words=_WORDS[_fault])
for _fault in ("asymmetric_padding", "flipped", "channels"):
    _conv("conv_fault", _fault, "conv")
_conv("conv_fault", "corner", "conv", "14", ("confined",))
_conv("pool_fault", "excludes_padding", "pool")


def _vit(
    fault: str, first: str, sites: Any, row: str = "pilot", words: tuple[str, ...] = (), dtypes: Any = BOTH
) -> None:
    def build(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
        return make_vit(fault if faulty else "", seed, dtype)

    add(f"vit_{fault.replace(':', '_')}", "vision", build, first, sites, row=row, words=words, dtypes=dtypes)


_vit("resize:corners", "resize", "module", "15", ("align_corners",))
_vit("resize:nearest", "resize", "module", "15")

_vit("patches:order", "patches", "inline")
_vit("patches:cls", "patches", "inline")
_vit("x:shuffle", "shuffle", "module", words=("permuted",))
