"""Random operators on the stub CANN: torch_npu's own generator keeps seed and position, the CPU draws the numbers.

The numbers are not a device's; that a state says what comes next, is saved, set back and counted on, is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_torch: Any = torch  # torch_npu adds torch.npu
# A counter-based generator hands out four words a step.
_STEP = 4


def is_random(operator: Any) -> bool:
    """Whether the operator draws from a generator."""
    return torch.Tag.nondeterministic_seeded in operator.tags


def draw(operator: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run a random operator with the CPU's generator at a place that torch_npu's seed and offset decide."""
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]
    generator = given[0] if given else _torch.npu.default_generators[_torch.npu.current_device()]
    kept = torch.get_rng_state()
    try:
        torch.default_generator.manual_seed(_advance(generator))  # torch.manual_seed would seed the device, too
        return run(operator, *map(_drop, args), **{name: _drop(value) for name, value in kwargs.items()})
    finally:
        torch.set_rng_state(kept)


def _advance(generator: torch.Generator) -> int:
    """The seed of this draw; the generator moves on."""
    state = generator.get_state()
    if state.numel() != 16:  # a CPU generator's, which the caller handed to the operator
        return int(torch.randint(0, 2**31, (), generator=generator).item())
    seed, offset = (int(word) for word in state.view(torch.int64))
    state.view(torch.int64)[1] = offset + _STEP
    generator.set_state(state)
    # Fibonacci hashing keeps neighbouring seeds and offsets apart.
    return (seed * 0x9E3779B97F4A7C15 + offset) % 2**63


def _drop(value: Any) -> Any:
    return None if isinstance(value, torch.Generator) else value
