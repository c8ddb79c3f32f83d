"""One visit: what is recorded of a machine that can be reached once, within a number of bytes.

First come the loss and gradient-norm series, which weigh nothing; then the start pack; what is left goes to the dump.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import torch

from precision_align.recording.companions import Companion
from precision_align.recording.optimizers import parameter_groups
from precision_align.recording.parameters import gradient_of
from precision_align.recording.runstates import list_optimizers
from precision_align.recording.series import Series
from precision_align.recording.shards import local_shard
from precision_align.recording.staging import untouched
from precision_align.recording.startpacks import Allowance
from precision_align.recording.tape import Clock
from precision_align.storage.settings import format_size

# Folders of a visit.
DUMP, START = "dump", "start"
# Without --steps: the start, the first update with state, and one more, which shows how a difference grows.
STEPS = "0-2"
PAYLOAD = {"*": "sketch", "": "full"}
# Of what the state leaves: masks are a byte an element, activations two or four.
_REST_SHARE = 0.2
# Sketches of a 7B model's step take megabytes: with a tenth for the dump a budget of some GB never has to drop them.
_DUMP_SHARE = 0.1
# Adam's state weighs twice its parameters in their own dtype; it is there from the second step on.
_STATE_FACTOR = 2


@dataclass(frozen=True)
class Visit:
    """``budget_bytes`` a rank; ``tell``: gets the lines that say what fits, before the first step."""

    budget_bytes: int
    tell: Callable[[str], None]


@dataclass(frozen=True)
class Division:
    """Who gets what of a visit's bytes."""

    budget_bytes: int
    weights: int
    state: int
    allowance: Allowance
    dump_bytes: int

    def lines(self) -> Iterator[str]:
        """What fits, and what is dropped first."""
        yield f"one visit, {format_size(self.budget_bytes)} a rank:"
        for name, size, kept in (
            ("weights and buffers", self.weights, self.allowance.weights),
            ("optimizer state", self.state, self.allowance.state),
        ):
            yield f"  {name}: {format_size(size)}, {'kept' if kept else 'do not fit: only hashes or nothing is kept'}"
        yield f"  batches and masks: up to {format_size(self.allowance.rest_bytes or 0)}"
        yield f"  sketches, root inputs, loss, selected modules in full: up to {format_size(self.dump_bytes)}"
        yield (
            "  dropped first where that is not enough: payloads in full (sketches stay), then sketches (statistics "
            "stay), then batches and masks of the later steps; never the loss and gradient-norm series"
        )


def divide(model: torch.nn.Module, budget_bytes: int, first_step: int) -> Division:
    """Share a budget out: weights before state, and at least a tenth for the dump."""
    parameters = [local_shard(parameter) for parameter in model.parameters()]
    weights = _count(parameters) + _count([local_shard(buffer) for buffer in model.buffers()])
    state = _count_state(model)
    if first_step:
        state = max(state, _STATE_FACTOR * _count([tensor for tensor in parameters if tensor.requires_grad]))
    left = budget_bytes - int(_DUMP_SHARE * budget_bytes)
    keeps_weights = weights <= left
    left -= weights if keeps_weights else 0
    keeps_state = state <= left
    rest = budget_bytes - (weights if keeps_weights else 0) - (state if keeps_state else 0)
    masks = int(_REST_SHARE * rest)
    return Division(budget_bytes, weights, state, Allowance(keeps_weights, keeps_state, masks), rest - masks)


def _count(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _count_state(model: torch.nn.Module) -> int:
    states = [getattr(optimizer, "state", {}) for optimizer in list_optimizers(model, ())]
    values = [value for state in states for mine in state.values() for value in mine.values()]
    return _count([value for value in values if isinstance(value, torch.Tensor)])


class GradientNorms(Companion):
    """A series "grad_norm": the L2 norm of all gradients that an update sees, over this rank's part of them."""

    def __init__(self, series: Series, clock: Clock) -> None:
        self._series, self._clock = series, clock

    def before_update(self, optimizer: object) -> None:
        """An optimizer is about to step; the number is read at the step's end, so that no device waits here."""
        held = [parameter for group in parameter_groups(optimizer) for parameter in group["params"]]
        found = [gradient for parameter in held if (gradient := gradient_of(parameter)) is not None]
        with untouched():
            norms = [torch.linalg.vector_norm(local_shard(g).to_dense().float()) for g in found]
            if norms:
                total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
                self._series.add("grad_norm", self._clock.batch, total, given=False)


def name_folders(visit: str) -> tuple[str, str]:
    """(dump, start pack) of a visit's folder."""
    return str(Path(visit) / DUMP), str(Path(visit) / START)


def list_questions(notes: Sequence[str], steps: str) -> Iterator[str]:
    """Which later questions the visit answers alone, and which it does not; ``notes``: of its dump."""
    degraded = any("over the byte budget" in note for note in notes)
    lacking = [note for note in notes if note.startswith("the start pack lacks")]
    equal = "as far as it can: " + "; ".join(lacking) if lacking else "yes"
    yield f"""this visit answers alone:
  where losses and gradient norms part (all steps); what the batches were (steps {steps})
  can the candidate begin equal: {equal}
  which module's outputs, gradients or updates differ first in steps {steps}: by hash, and the size within 2 to 6 %
  whether a module of the candidate computes wrongly: from the candidate's own full dump and the reference's code
it does not answer:
  a forced run (capture --force), and single elements of modules that no --payload GLOB=full selected
  tensors of other steps than {steps}, and what happens inside of modules unless --sources had operators"""
    if degraded:
        yield "  the size of differences where the budget left only statistics: the dump's notes count them"
