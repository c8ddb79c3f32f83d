"""Each profile is found at the module that it changes, and told from a fault; benign arithmetic is not flagged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from device_models import TinyLm, lm_loss
from torch import nn

from precision_align.core.terms import Kind, Verdict
from precision_align.devices import simulated
from precision_align.devices.profiles import PROFILES, Profile
from precision_align.recording.session import capture
from precision_align.testing import models
from precision_align.workflows.comparing import compare
from precision_align.workflows.lockstep import lockstep

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("npu")]

PLAIN = Profile(name="changed")
# Profile, model, and the first divergence: module and kind. None: the difference is what arithmetic explains.
TABLE: dict[str, tuple[Profile, str, tuple[str, Kind] | None]] = {
    "none": (PROFILES["none"], "lm", None),
    "ascend910b": (PROFILES["ascend910b"], "lm", ("blocks.0.act", Kind.ORIGIN)),
    "ascend910b, convolution": (PROFILES["ascend910b"], "conv", ("first", Kind.MODE)),
    "ascend910": (PROFILES["ascend910"], "lm", ("blocks.0.act", Kind.ORIGIN)),
    "ascend910, convolution": (PROFILES["ascend910"], "conv", ("first", Kind.MODE)),
    "products in HF32": (replace(PLAIN, matmul_inputs="hf32"), "lm", ("blocks.0.qkv", Kind.MODE)),
    "products in TF32": (replace(PLAIN, matmul_inputs="tf32"), "lm", ("blocks.0.qkv", Kind.MODE)),
    "products in bfloat16": (replace(PLAIN, matmul_inputs="bfloat16"), "lm", ("blocks.0.qkv", Kind.MODE)),
    "tanh GELU": (replace(PLAIN, gelu="tanh"), "lm", ("blocks.0.act", Kind.ORIGIN)),
    "K in pieces": (replace(PLAIN, k_block=8), "lm", None),
    "K in pieces, backwards": (replace(PLAIN, k_block=8, k_order="reversed"), "lm", None),
    "sums backwards": (replace(PLAIN, reduction="reversed"), "lm", None),
    "sums in blocks": (replace(PLAIN, reduction="blocks", reduction_block=8), "lm", None),
    "norms in steps": (replace(PLAIN, norm_inner="input"), "lm", None),
    "subnormals flushed": (replace(PLAIN, subnormals="flush"), "lm", None),
    "saturation": (replace(PLAIN, overflow="saturate"), "lm", None),
}


def build(model: str, kind: str) -> tuple[nn.Module, Any]:
    """(model, batch) on a device type, equal everywhere."""
    if model == "conv":
        return models.build(kind), models.make_batches(kind, 1)[0]
    torch.manual_seed(0)
    made, tokens = TinyLm(words=20, width=32, heads=2, layers=1, length=8), torch.randint(0, 20, (2, 9))
    return made.to(kind), tokens.to(kind)


def step(model: nn.Module, batch: Any) -> None:
    """Forward and backward."""
    if isinstance(batch, tuple):
        models.backward_step(model, batch)
    else:
        lm_loss(model, batch).backward()


def record(folder: Path, model: nn.Module, batch: Any) -> str:
    """The dump of one step."""
    with capture(model, folder) as recorder, recorder.step():
        step(model, batch)
    return str(folder)


@pytest.mark.parametrize("name", TABLE)
def test_a_profile_shows_first_where_it_acts(name: str, tmp_path: Path) -> None:
    profile, model, expected = TABLE[name]
    (reference, batch), (candidate, other) = build(model, "cpu"), build(model, "npu")
    simulated.set_profile(profile)
    if list(TABLE).index(name) % 2:  # both ways take every form; each profile goes one of them
        report = lockstep(reference, candidate, batch, candidate_inputs=other, step=step)
    else:
        dumps = [
            record(tmp_path / "reference", reference, batch),
            record(tmp_path / "candidate", candidate, other),
        ]
        report = compare(*dumps, replay=reference)
    assert report.verdict == (Verdict.ALIGNED if expected is None else Verdict.DIVERGED)
    assert (None if report.first is None else (report.first.scope, report.first.kind)) == expected
