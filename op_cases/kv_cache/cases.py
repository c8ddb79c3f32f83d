"""Cases for vLLM's reshape_and_cache. Keywords: ``cache`` (blocks, size, N, D), rewritten, ``new`` (T, N, D), ``slots``."""

from __future__ import annotations

import math

import torch

from precision_align.library.cases import FLOATS
from precision_align.library.drawing import Family, fixed, normal, shuffled
from precision_align.library.formulas import Formula, load_torch_npu

FORMULA = Formula("kv_cache")
Tensor = torch.Tensor
family = Family(cache=normal(4, 8, 2, 16), new=normal(7, 2, 16), slots=shuffled(32).then(lambda order: order[:7]))


def call_torch(cache: Tensor, new: Tensor, slots: Tensor) -> None:
    """An indexed store by block and place, one token after the other."""
    size = cache.shape[1]
    for token, slot in zip(new, slots.tolist()):
        if slot >= 0:
            cache[slot // size, slot % size] = token


def call_torch_npu(cache: Tensor, new: Tensor, slots: Tensor) -> None:
    """torch_npu._npu_reshape_and_cache (needs the NNAL package); it writes keys and values at once."""
    load_torch_npu()._npu_reshape_and_cache(new, new, cache, cache.clone(), slots.int())


CASES = [
    family("plain", "slots taken for blocks", "basic", dtypes=FLOATS),
    family("one-token", "decoding", "size-1", new=normal(1, 2, 16), slots=fixed([13])),
    family("padding", "slot -1 is skipped, not the last", "padding", slots=fixed([3, -1, 30, -1, 0, -1, 9])),
    family("all-padding", "nothing is written", "padding", slots=fixed([-1] * 7)),
    family("last-slot", "the very end of the cache", "edge", slots=fixed([31, 0, 7, 8, 15, 16, 23])),
    family("whole-cache", "every slot", "shape", new=normal(32, 2, 16), slots=shuffled(32)),
    family(
        "size-5",
        "blocks of an odd size",
        "tile",
        cache=normal(5, 5, 2, 16),
        slots=shuffled(25).then(lambda order: order[:7]),
    ),
    family("head-size-20", "not a multiple of 16", "tile", cache=normal(4, 8, 2, 20), new=normal(7, 2, 20)),
    family("nan", "NaN is stored like any number", "nonfinite", new=normal(7, 2, 16).at((2, 1, 3), math.nan)),
    family("no-token", "nothing to write", "empty-rows", new=normal(0, 2, 16), slots=shuffled(0)),
    *family.layouts("cache", "new"),
]

OPERATOR = FORMULA.describe(
    CASES,
    {"torch": call_torch, "torch_npu": call_torch_npu},
    {
        "-1 is the last slot": FORMULA.change(slots=lambda slots: torch.where(slots < 0, slots + 32, slots)),
        "slots one off": FORMULA.change(slots=lambda slots: torch.where(slots >= 0, (slots + 1) % 25, slots)),
        "nothing written": FORMULA.set(slots=torch.tensor([], dtype=torch.int64), new=torch.zeros(0, 2, 16)),
        "block and place swapped": FORMULA.change(slots=lambda slots: torch.where(slots < 0, slots, slots % 8 * 4 + slots // 8) % 25),
        "rest of the cache cleared": FORMULA.edit("flat.index_copy", "torch.zeros_like(flat).index_copy"),
        "added": FORMULA.edit("flat.index_copy(", "flat.index_add("),
        "tokens reversed": FORMULA.edit("new.double()[kept]", "new.double()[kept].flip(0)"),
        "last token left out": FORMULA.edit("slots[kept], new.double()[kept]", "slots[kept][:-1], new.double()[kept][:-1]"),
        "rounded to bfloat16": FORMULA.edit("new.double()[kept]", "new.bfloat16().double()[kept]"),
        "first slot of each block kept": FORMULA.edit("kept = slots >= 0", "kept = slots > 0"),
    },
    rewrites=("cache",),
    rule="exact",
)  # fmt: skip
