"""How small an error the local test would have seen in a record that passed it.

The error asked about is one relative size for all values, y = g (1 + e): the commonest fault (a scale, an epsilon, a
constant), and the one that fixed tolerances overlook longest. Each test gives the e from which on it fails; single
wrong values are seen from ``z`` alone. The candidate's own rounding adds to e or takes from it, so these are sizes, not
edges.
"""

from __future__ import annotations

import math

import numpy as np

from precision_align.core.dtypes import Array
from precision_align.core.results import DETECTABLE
from precision_align.numerics.limits import Limits


def measure_detectable(
    golden: Array, bound: Array, shift: Array, relax: float, unit: float, low: bool, limits: Limits
) -> dict[str, float]:
    """``detectable_z``, ``detectable_rho`` and ``detectable_bias``, those that apply; none where the golden is all 0.

    ``golden``, ``bound`` (T), ``shift`` (candidate minus native): float64, flat, finite; ``relax``: factor on z's
    limit; ``unit``: the e that alone makes a ratio of 1; ``low``: the mean is tested, too.
    """
    weight = np.abs(golden) / bound
    largest = float(weight.max()) if weight.size else 0.0
    if largest <= 0:
        return {}
    found = {f"{DETECTABLE}z": limits.z_fail * relax / largest}
    if golden.size >= limits.minimum_ratio:
        found[f"{DETECTABLE}rho"] = limits.rho_fail * unit
    if low and golden.size >= limits.minimum_bias:
        noise = limits.t * float((shift / bound).std(ddof=1)) / math.sqrt(golden.size)
        found[f"{DETECTABLE}bias"] = max(limits.bias_fail, noise) / float(weight.mean())
    return found
