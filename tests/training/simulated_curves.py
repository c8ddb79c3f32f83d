"""Loss curves with known noise and known faults."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precision_align.core.dtypes import Array

Points = list[tuple[int, float]]

# The relative difference of two equal runs at step t has the scale first * (1 + t) ** growth: measured envelopes are
# 1e-6 for float32 and 1e-4 (step 1) to 4e-3 (step 120) for bfloat16, facts/numerics.md section 4.7.
NOISE = {"float32": (6e-8, 0.5), "bfloat16": (5e-5, 0.75), "exact": (0.0, 0.0)}
SATURATION = 0.01  # chaotic runs stop moving apart


@dataclass(frozen=True)
class Scenario:
    """A fault of one kind at one step; ``size`` in units of the relative loss."""

    fault: str
    onset: int
    length: int
    size: float


def make_loss(rng: np.random.Generator, length: int, batch_spread: float = 0.02) -> Array:
    """A falling loss with each batch's own difficulty."""
    steps = np.arange(length)
    return np.asarray((2.2 + 3.3 * np.exp(-steps / 60)) * (1 + batch_spread * rng.standard_normal(length)))


def make_noise(rng: np.random.Generator, length: int, first: float, growth: float, persistence: float = 0.5) -> Array:
    """Relative noise, partly independent from step to step and partly wandering over twenty steps."""
    white, wandering, state = rng.standard_normal(length), np.empty(length), rng.standard_normal()
    for step in range(length):
        state = 0.95 * state + np.sqrt(1 - 0.95**2) * rng.standard_normal()
        wandering[step] = state
    shape = np.sqrt(1 - persistence**2) * white + persistence * wandering
    noise = first * (1.0 + np.arange(length)) ** growth * shape
    return np.asarray(SATURATION * np.tanh(noise / SATURATION))


def make_pair(seed: int, precision: str, scenario: Scenario | None, length: int = 200) -> tuple[Points, Points]:
    """Reference and candidate."""
    rng = np.random.default_rng(seed)
    length = scenario.length if scenario else length
    shifted = scenario is not None and scenario.fault == "shift"
    whole = make_loss(rng, length + 3, 0.06 if shifted else 0.02)
    reference = whole[:length]
    candidate = reference * (1 + make_noise(rng, length, *NOISE[precision]))
    if scenario is not None:
        candidate = inject(candidate, whole, scenario, rng)
    return number(reference), number(candidate)


def inject(candidate: Array, whole: Array, scenario: Scenario, rng: np.random.Generator) -> Array:
    """The candidate with the fault."""
    steps = np.arange(scenario.length)
    after, since = steps >= scenario.onset, np.clip(steps - scenario.onset, 0, None)
    size = scenario.size
    if scenario.fault == "nan":
        return np.where(after, np.nan, candidate)
    if scenario.fault == "shift":
        return np.where(after, whole[3:], candidate)
    factors = {
        "bias": 1 + size * after,
        "low bias": 1 - size * after,
        "drift": 1 + size * since,
        "spike": 1 + size * (steps == scenario.onset),
        "wide spike": 1 + size * (after & (since < 3)),
        "scatter": 1 + size * after * rng.standard_normal(scenario.length),
    }
    return np.asarray(candidate * factors[scenario.fault])


def number(values: Array, start: int = 0) -> Points:
    """(step, value) pairs."""
    return [(start + index, float(value)) for index, value in enumerate(values)]
