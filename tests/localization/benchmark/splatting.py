"""A Gaussian-splatting renderer. float32 only: ``linalg.inv`` and ``det`` have no lower precision."""

from __future__ import annotations

from typing import Any

import torch
from localization_benchmark import FP32, Setup, add
from localization_cases.splatting import FrontToBack, Renderer, Splat


def make_renderer(fault: str, seed: int) -> Setup:
    torch.manual_seed(seed)
    shift = torch.full((3,), 0.05) + 0.01 * torch.randn(3)
    return Setup(Renderer(fault, seed), [[{"shift": shift}]])


def _add(fault: str, first: str, sites: Any = "module", words: tuple[str, ...] = (), **more: Any) -> None:
    def build(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
        return make_renderer(fault if faulty else "", seed)

    add(fault.replace(":", "_"), "splatting", build, first, sites, row="3DGS", words=words, dtypes=(FP32,), **more)


_WORDS = {
    "center": ("shifted by a constant, -0.5",),
    "no_blur": ("term of `add`",),
    "radius": ("shifted by a constant, -1", "`ceil`"),
    "clamp": ("`clamp_max`",),
    "background": ("term of `add`",),
}
for _fault in ("center", "transposed", "no_blur", "radius"):
    _add(f"project:{_fault}", "project", words=_WORDS.get(_fault, ()))
_add("sort:descending", "sort", words=("reversed",))
_add("sort:half", "sort")
for _fault in ("half_pixel", "clamp", "transmittance", "stops_early", "background"):
    _add(f"blend:{_fault}", "blend", words=_WORDS.get(_fault, ()))
_add("colors:sign", "colors", words=("the sign of",))
_add("render:no_sigmoid", "", "inline", ("`sigmoid`",))


def make_loop(seed: int) -> Setup:
    """The same blending as a loop over Gaussians."""
    setup = make_renderer("", seed)
    setup.model.blend = FrontToBack("")
    return setup


def _splat(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
    return make_splat("set" if faulty else "add", seed)


def make_splat(way: str, seed: int) -> Setup:
    torch.manual_seed(seed)
    return Setup(Splat(way), [[{"x": torch.randn(400, 3)}]])


add("scatter_last_write_wins", "splatting", _splat, "scatter", row="42", dtypes=(FP32,))
