"""Compiled code run uncompiled for a session, so that its modules can be seen."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from precision_align.core.errors import UsageError


def check_eager(wanted: bool) -> None:
    """Raises UsageError where this torch cannot do it."""
    if wanted and not hasattr(torch.compiler, "set_stance"):
        raise UsageError(
            f"eager needs torch 2.6, this is {torch.__version__}: set TORCHDYNAMO_DISABLE=1 in the environment instead"
        )


def run_eagerly() -> contextlib.AbstractContextManager[Any]:
    """While inside, what torch.compile made runs as the Python that it was made from."""
    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
