"""Bugs of a Llama-like model: embedding, positions, attention, MLP, head, loss, their gradients, recomputation."""

from __future__ import annotations

from typing import Any

import torch
from localization_benchmark import BF16, BOTH, FP16, FP32, Setup, add
from localization_benchmark.trainer import make_llama


def _add(
    fault: str, first: str, sites: Any, row: str, words: tuple[str, ...] = (), dtypes: Any = BOTH, **more: Any
) -> None:
    plain = "proj:quantised=" if "quantised" in fault else ""
    options = {name: more.pop(name) for name in ("recompute", "passes") if name in more}

    def build(faulty: bool, seed: int, dtype: torch.dtype) -> Setup:
        return make_llama(fault if faulty else plain, seed, dtype, **options)

    name = fault.replace(":", "_").replace("=", "_") + ("_second_pass" if options.get("passes") else "")
    add(name, "llama", build, first, sites, row=row, words=words, dtypes=dtypes, **more)


SMALL = "one more rounding to the dtype inside: what a build of small operators may do (a warning)"
ATTN, MLP = "layers.1.attn", "layers.1.mlp"
_add("rope:interleaved", f"{ATTN}.rope", "module", "1", ("interleaved",))
_add("rope:bf16", f"{ATTN}.rope", "module", "2", ("bfloat16 inside",))
_add("rope:base", f"{ATTN}.rope", "module", "4", ("500000 instead",))
_add("rope:late", f"{ATTN}.rope", "module", "22", ("301 instead",))
_add("rope:sign", f"{ATTN}.rope", "module", "1", ("the sign of",))
_add("rope:delta", f"{ATTN}.rope", "module", "16", ("301 instead",), call=1)
_add("norm1:eps", "layers.0.norm1", "module", "pilot", ("eps 1e-05",))
_add("norm2:low", "layers.1.norm2", "module", "pilot", ("bfloat16 inside",))
_add("norm2:weight_low", "layers.1.norm2", "module", "5", ("bfloat16 inside",), hidden={BF16: SMALL})
_add("norm2:mean", "layers.1.norm2", "module", "pilot", ("each row is shifted",))
_add("embed:scale", "embed", "module", "6", ("scaled by a constant, 1.001",))
_add("embed:padding", "embed", "module", "10", ("left out",))
_add("act:gelu", f"{MLP}.act", "module", "7", ("tanh",))
_add("act:clamp", f"{MLP}.act", "module", "18", ("clamped",))
_add("act:no_clamp", f"{MLP}.act", "module", "18")
_add("proj:q=memory", f"{ATTN}.q", "module", "9", ("permuted",))
_add("proj:v=channel", f"{ATTN}.v", "module", "pilot", ("not read, or zero", "are zero"))
_add("proj:q=tail", f"{ATTN}.q", "module", "pilot", ("last 16 of its 64 columns",))
_add("mlp_proj:up=offset", f"{MLP}.up", "module", "14", ("permuted", "confined"))
_add("mlp_proj:down=fp16", f"{MLP}.down", "module", "20", ("overflow",), dtypes=(FP32, BF16, FP16))
_add("mlp_proj:down=low_sum", f"{MLP}.down", "module", "numerics 4.3", ("bfloat16",))
_add("proj:quantised=scale_fp8", f"{ATTN}.o", "module", "23", ("other scales",))
_add("proj:quantised=scale_7_8", f"{ATTN}.o", "module", "23", ("scaled by a constant, 0.87",))
_add("proj:quantised=zero_point", f"{ATTN}.o", "module", "23", ("zero point",))
_add("attn:heads", ATTN, "inline", "pilot", ("repeat_interleave",))
_add("attn:scale", ATTN, "inline", "pilot", ("instead of 0.25", "left out"), dtypes=(FP32, BF16, FP16))
_add("attn:scale_1", ATTN, "inline", "numerics 4.2", ("instead of 0.25", "1.01 times"))
_add("attn:cap", ATTN, "inline", "pilot")
_add("attn:low_softmax", ATTN, "inline", "pilot", ("bfloat16 inside",), hidden={BF16: SMALL})
_add("attn:mask_late", ATTN, "inline", "pilot", ("off by one",))
_add("attn:window", ATTN, "inline", "17")
_add("attn:no_padding", ATTN, "inline", "17", ("masks is left out",))
_add("attn:inverted", ATTN, "inline", "17", ("inverted",))
_add("attn:bidirectional", ATTN, "inline", "17", ("mask is left out", "masks is left out"))
_add("attn:dropout", f"{ATTN}.drop", "module", "21", ("dropout is on",))
_add("mlp:swap", MLP, "inline", "pilot", ("bit for bit",))
_add("mlp:workspace", MLP, "inline", "14", ("shifted by 4", "permuted"))
_add("mlp:token", MLP, "inline", "pilot", ("permuted", "confined"))
_add("block:low", "layers.1", "inline", "5", ("bfloat16",), dtypes=(FP32,))
_add("block:no_residual", "layers.1", "inline", "pilot", ("term of `add`",))
_add("head:padding", "head", "module", "26", ("confined", "left out"))
_add("head:temperature", "head", "module", "pilot", ("scaled by a constant, 1.02", "scaled by a constant, 1.01"))
_add("head:bf16", "head", "module", "28", ("bfloat16",), dtypes=(FP32,))
_add("model:left_pad", "", "inline", "22")
_add("model:skip_norm", "", "inline", "19", ("bit for bit",))
_add("loss:mean_of_means", "loss", "module", "55", ("mean of means",))
_add("loss:all_tokens", "loss", "module", "56", ("counted",))
_add("loss:shift", "loss", "module", "pilot")
_add("loss:accumulation", "loss", "module", "57", ("1/4",))
_add("loss:low", "loss", "module", "28", dtypes=(FP32,))
_add("loss:z", "loss", "module", "pilot")
_add("embed:rare", "embed", "module", "30", ("confined",), phase="backward")
_add("embed:sliced", "embed", "module", "42", (), phase="backward")
_add("attn:barrier", ATTN, "inline", "31", ("confined",), phase="backward")
_add("attn:chunks", ATTN, "inline", "38", ("own factor", "confined"), phase="backward")
_add("attn:zero", ATTN, "inline", "39", ("all zero",), phase="backward")
_add("act:row", f"{MLP}.act", "module", "30", ("confined", "own factor"), phase="backward")
_add("act:zero", f"{MLP}.act", "module", "39", ("all zero",), phase="backward")
_add("block:detached", "layers.1", "inline", "39", ("detached",), phase="backward")
_add("mlp_proj:up=frozen", f"{MLP}.up", "module", "64", ("detached",), phase="backward")
for _kind, _row in (("transposed", "32"), ("stale", "33"), ("skips", "34")):
    _add(f"act:again_{_kind}", f"{MLP}.act", "module", _row, (), phase="backward", recompute=True)
