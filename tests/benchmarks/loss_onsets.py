"""False alarms and onsets of `loss` on simulated curves: python tests/benchmarks/loss_onsets.py [seeds] [--json].

Nothing is told to the comparison but the two curves (no dtype, no repeated runs): the hardest case. Noise is relative
to the loss, of the families below; a fault's size is given in multiples of the noise's own scale at its onset, but at
least 5e-4 (what lies under float32's band is no fault), and 6 % at step 0, where no past shows the noise. The table
shows for each family how many clean pairs part (must be none), and for each fault how many are found and how many
onsets lie within two steps.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from precision_align.training.curves import compare_losses

sys.path.insert(0, str(Path(__file__).parents[1] / "training"))
from simulated_curves import make_loss, number

Array = np.ndarray
LENGTHS = (3, 5, 12, 40, 300, 1500)
ONSETS = ((0, 60), (25, 60), (150, 400), (900, 1200))
# name: (scale at step 0, growth exponent, share of the slowly wandering part, degrees of freedom of the tails)
NOISE = {
    "float32": (6e-8, 0.5, 0.5, None),
    "float32, heavy tails": (6e-8, 0.5, 0.3, 4),
    "bfloat16": (5e-5, 0.75, 0.5, None),
    "bfloat16, wandering": (5e-5, 0.5, 0.9, None),
    "fast growth": (1e-6, 1.0, 0.5, None),
    "white 0.05 %": (5e-4, 0.0, 0.0, None),
    "white 0.2 %": (2e-3, 0.0, 0.0, None),
    "white 0.2 %, heavy tails": (2e-3, 0.0, 0.0, 4),
    "wandering 0.2 %": (2e-3, 0.0, 0.9, None),
}
# fault: multiples of the noise's scale at the onset
FAULTS = {"bias": 30.0, "low bias": 30.0, "drift": 15.0, "spike": 60.0, "wide spike": 60.0, "scatter": 40.0}
SATURATION = 0.01


def noise_scale(family: str, length: int) -> Array:
    first, growth, _, _ = NOISE[family]
    return first * (1.0 + np.arange(length)) ** growth


def draw_noise(rng: np.random.Generator, family: str, length: int) -> Array:
    """Relative noise of a family, float64 (length,)."""
    _, _, share, freedom = NOISE[family]
    white = rng.standard_t(freedom, length) if freedom else rng.standard_normal(length)
    steps, wandering, state = rng.standard_normal(length), np.empty(length), rng.standard_normal()
    for index, step in enumerate(steps):
        state = 0.95 * state + np.sqrt(1 - 0.95**2) * step
        wandering[index] = state
    noise = noise_scale(family, length) * (np.sqrt(1 - share**2) * white + share * wandering)
    return SATURATION * np.tanh(noise / SATURATION)


def draw_pair(seed: int, family: str, fault: str, onset: int, length: int) -> tuple[Array, Array, float]:
    """Reference, candidate, and the fault's relative size."""
    rng = np.random.default_rng([seed, length, onset, sorted(NOISE).index(family)])
    reference = make_loss(rng, length)
    noise = draw_noise(rng, family, length)
    size = 0.0
    if fault:
        scale = min(noise_scale(family, length)[onset], SATURATION)
        size = max(FAULTS[fault] * scale, 5e-4) if onset else 0.06
        noise = noise + size * shape_fault(rng, fault, onset, length)
    return reference, reference * (1 + noise), size


def shape_fault(rng: np.random.Generator, fault: str, onset: int, length: int) -> Array:
    since = np.arange(length) - onset
    after = since >= 0
    shapes = {
        "bias": 1.0 * after,
        "low bias": -1.0 * after,
        "drift": np.clip(since + 1, 0, None),
        "spike": 1.0 * (since == 0),
        "wide spike": 1.0 * (after & (since < 3)),
        "scatter": after * rng.standard_normal(length),
    }
    return shapes[fault]


def count_alarms(family: str, length: int, seeds: int) -> list[int]:
    """The seeds whose clean pair parts."""
    return [seed for seed in range(seeds) if _compare(*draw_pair(seed, family, "", 0, length)[:2])[0] is not None]


def count_found(family: str, fault: str, onset: int, length: int, seeds: int) -> tuple[int, int]:
    """How many faults are found at or after their onset's two steps, and how many onsets are within two steps."""
    found = [_compare(*draw_pair(seed, family, fault, onset, length)[:2])[0] for seed in range(seeds)]
    return sum(step is not None for step in found), sum(step is not None and abs(step - onset) <= 2 for step in found)


def _compare(reference: Array, candidate: Array) -> tuple[int | None, str]:
    report = compare_losses(number(reference), number(candidate))
    return report.onset, report.kind


def main(words: list[str]) -> int:
    seeds = next((int(word) for word in words if word.isdigit()), 200)
    alarms = {f: {n: len(count_alarms(f, n, seeds)) for n in LENGTHS} for f in NOISE}
    print(f"clean pairs that part, of {seeds}")
    print(f"{'noise':28}" + "".join(f"{n:>8}" for n in LENGTHS))
    for family, counts in alarms.items():
        print(f"{family:28}" + "".join(f"{counts[n]:>8}" for n in LENGTHS))
    tries = max(1, seeds // 10)
    found: dict[str, dict[str, dict[str, tuple[int, int]]]] = {}
    print(f"\nfaults found / onset within two steps, of {tries}; onset of length")
    for fault in FAULTS:
        print(
            f"\n{fault + f' of {FAULTS[fault]:g} times the noise':36}"
            + "".join(f"{f'{o} of {n}':>14}" for o, n in ONSETS)
        )
        for family in NOISE:
            cells = {f"{o} of {n}": count_found(family, fault, o, n, tries) for o, n in ONSETS}
            found.setdefault(fault, {})[family] = cells
            print(f"  {family:34}" + "".join(f"{f'{a}/{b}':>14}" for a, b in cells.values()))
    if "--json" in words:
        print(json.dumps({"seeds": seeds, "alarms": alarms, "found": found}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
