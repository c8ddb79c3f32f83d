"""Big products judged by a sample: some rows and columns in float64, and Freivalds' check over all of them.

**Sample.** The first and last 16 rows (tail tiles), 32 seeded random ones and the 8 that Freivalds' check finds most
suspicious, all columns of each; the last 16 columns and 16 seeded random ones, all rows of each. Each block goes
through the whole local test.

**Freivalds' check** (R. Freivalds, 1977): for a random sign vector s, (Y - A B) s costs a product less. Of a build
whose errors e_ij stay within T_ij, a row's sum is below t sqrt(sum_j T_ij^2) but with probability 2 exp(-t^2 / 2)
(Hoeffding); t is set so that one false alarm in 1e9 products is expected. T is bounded by u|y| + c u32 |a_i| |b_j|
(Cauchy-Schwarz), so that no full product is needed. One wrong value of size d in row i shows for certain from
d = 2 t R_i on, R_i the bound above; a smaller one shows where its row is among the 8 most suspicious: about from 1.5
times the noise of a row, u |y_i| sqrt(columns), on. Below that it is missed with the probability (1 - rows
sampled / rows)(1 - columns sampled / columns). Faults of more than one value in a row cancel in one probe with
probability 1/2 at most: two are taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Optional

import torch

from precision_align.core.dtypes import Array, Dtype
from precision_align.core.results import Limit
from precision_align.core.terms import Status
from precision_align.numerics.judgement import Judgement, Scale, judge
from precision_align.numerics.limits import LIMITS, U32
from precision_align.replay.modes import ModeFinder
from precision_align.replay.products import CHUNK, LinearProduct, keep, widen
from precision_align.replay.values import to_array

EDGE = 16  # rows and columns at the ends: the tile of matrix units
RANDOM_ROWS = 32  # a fault in 7 % of the rows is seen with 90 % by these alone
RANDOM_COLUMNS = 16
SUSPECTS = 8
PROBES = 2
FALSE_ALARM = 1e-9
EVIDENCE = "sampled"

_SEVERITY = (Status.FAIL, Status.MODE, Status.INCONCLUSIVE, Status.WARN, Status.PASS)


@dataclass(frozen=True)
class Probe:
    """What Freivalds' check found: ``excess``, the largest row sum over its bound; ``suspects``: the rows with the
    largest; ``single``: the size, over the RMS of all values, from which on one wrong value exceeds its row's bound.
    """

    excess: float
    suspects: torch.Tensor
    single: float


def judge_product(product: LinearProduct, actual: torch.Tensor, kind: Dtype, finite: bool) -> Judgement:
    """Judge the output of a product by sample. ``actual``: the candidate's, in its own dtype and shape; ``finite``: no
    NaN or Inf went in."""
    found = product.as_rows(actual)
    probe = probe_product(product, found, kind)
    rows = choose(product.num_rows, EDGE, EDGE, RANDOM_ROWS, probe.suspects)
    columns = choose(product.num_columns, 0, EDGE, RANDOM_COLUMNS)
    row_judgement = _judge_rows(product, found, rows, kind, finite)
    column_judgement = _judge_columns(product, found, columns, kind, finite)
    worst = min((row_judgement, column_judgement), key=lambda one: _SEVERITY.index(one.status))
    if worst.status == Status.PASS and probe.excess > 1:
        limit = Limit("freivalds", 1.0, "row sums under random signs, Hoeffding's bound of conforming errors")
        worst = Judgement(Status.FAIL, "the product as a whole is not the product of its operands", limit=limit)
    missed = (1 - len(rows) / product.num_rows) * (1 - len(columns) / product.num_columns)
    power = {"freivalds": probe.excess, "freivalds_single": probe.single, "sample_miss": missed}
    why = (
        f"{worst.why}; sampled: {len(rows)} of {product.num_rows} rows, {len(columns)} of {product.num_columns} "
        f"columns, and Freivalds' check of all; one wrong value outside of them is certain to show from "
        f"{probe.single:.2g} times the RMS on, and the smallest are missed with {100 * missed:.0f} %"
    )
    return replace(worst, why=why, metrics={**worst.metrics, **power}, evidence=EVIDENCE)


def choose(count: int, first: int, last: int, random: int, suspects: Optional[torch.Tensor] = None) -> torch.Tensor:
    """Ascending positions: both ends, seeded random ones, and the suspects."""
    ends = {*range(min(first, count)), *range(max(0, count - last), count)}
    drawn = torch.randint(count, (random,), generator=torch.Generator().manual_seed(count))
    more = [] if suspects is None else suspects.tolist()
    return torch.tensor(sorted({*ends, *drawn.tolist(), *more}))


def probe_product(product: LinearProduct, actual: torch.Tensor, kind: Dtype) -> Probe:
    """Freivalds' check of all rows. ``actual``: (rows, columns)."""
    generator = torch.Generator().manual_seed(product.num_rows ^ product.num_columns)
    signs = torch.randint(2, (product.num_columns, PROBES), generator=generator).to(torch.float64) * 2 - 1
    weight, bias = product.weight, product.bias
    folded, size = torch.zeros(PROBES, product.length, dtype=torch.float64), 0.0
    step = max(1, CHUNK // max(1, product.length))
    for part, sign in zip(torch.split(weight, step), torch.split(signs, step)):
        wide = widen(part)
        folded += sign.T @ wide
        size += float(wide.square().sum())
    expected = product.project(folded, None if bias is None else signs.T @ widen(bias), widen)
    sums, norms = _fold_rows(actual, signs)
    lengths = product.project(torch.ones(1, product.length, dtype=torch.float64), None, lambda x: widen(x).square())
    inner = _find_coefficient(product) * U32
    offset = 0.0 if bias is None else float(widen(bias).norm())
    bound = kind.roundoff * norms + inner * (lengths[:, 0].sqrt() * math.sqrt(size) + offset)
    bound += kind.eta * math.sqrt(product.num_columns)
    ratio = (sums - expected).abs().amax(1) / bound
    ratio = torch.nan_to_num(ratio, nan=math.inf, posinf=math.inf)
    sigmas = math.sqrt(2 * math.log(2 * product.num_rows * PROBES / FALSE_ALARM))
    rms = float(norms.square().mean().div(product.num_columns).sqrt())
    suspects = ratio.topk(min(SUSPECTS, product.num_rows)).indices
    single = 2 * sigmas * float(bound.max()) / rms if rms > 0 else math.inf
    return Probe(float(ratio.max()) / sigmas, suspects, single)


def _fold_rows(actual: torch.Tensor, signs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(Y s, the norm of each row of Y)."""
    sums, norms = [], []
    for part in torch.split(actual, max(1, CHUNK // max(1, actual.shape[1]))):
        wide = widen(part)
        sums.append(wide @ signs)
        norms.append(wide.norm(dim=1))
    return torch.cat(sums), torch.cat(norms)


def _find_coefficient(product: LinearProduct) -> float:
    return 4 + math.sqrt(product.length)


def _judge_rows(
    product: LinearProduct, actual: torch.Tensor, rows: torch.Tensor, kind: Dtype, finite: bool
) -> Judgement:
    left = product.take_rows(rows)
    step = max(1, CHUNK // max(1, product.length))
    part = LinearProduct(left, product.weight, product.bias)
    golden, size, native = [], [], []
    for start in range(0, product.num_columns, step):
        golden_part, size_part, native_part = _compute(
            part, torch.arange(start, min(start + step, product.num_columns))
        )
        golden.append(golden_part)
        size.append(size_part)
        native.append(native_part)
    wide, own, scale = (to_array(torch.cat(parts, 1)) for parts in (golden, native, size))
    found = _judge_block(part, to_array(actual[rows]), wide, own, scale, kind, finite)
    return _place(found, product, rows, torch.arange(product.num_columns))


def _judge_columns(
    product: LinearProduct, actual: torch.Tensor, columns: torch.Tensor, kind: Dtype, finite: bool
) -> Judgement:
    golden, size, native = (to_array(part) for part in _compute(product, columns))
    part = product.select_columns(columns)
    found = _judge_block(part, to_array(actual[:, columns]), golden, native, size, kind, finite)
    return _place(found, product, torch.arange(product.num_rows), columns)


def _compute(product: LinearProduct, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(golden, S, native) of some columns."""
    part = product.select_columns(columns)
    weight, bias = part.weight, part.bias
    wide = None if bias is None else widen(bias)
    heavy = widen(weight)
    golden = product.project(heavy, wide, widen)
    size = product.project(heavy.abs_(), None if wide is None else wide.abs(), lambda x: widen(x).abs())
    return golden, size, product.project(weight, bias, keep)


def _judge_block(
    part: LinearProduct, actual: Array, golden: Array, native: Array, size: Array, kind: Dtype, finite: bool
) -> Judgement:
    bias = part.bias is not None
    scale = Scale(
        size,
        _find_coefficient(part),
        length=int(part.length),
        formula=True,
        decomposable=bias,
        split=not bias,
        origin="|x||W| + |b|",
    )
    found = judge(actual, golden, native, scale, kind, LIMITS, finite)
    if found.status == Status.FAIL:
        return ModeFinder().judge(actual, golden, kind.name, found, lambda mode: _run_mode(part, mode))
    return found


def _place(found: Judgement, product: LinearProduct, rows: torch.Tensor, columns: torch.Tensor) -> Judgement:
    """With the worst element's position in the whole output."""
    if "worst_index" not in found.metrics:
        return found
    row, column = divmod(int(found.metrics["worst_index"]), len(columns))
    place = product.locate(int(rows[row]), int(columns[column]))
    return replace(found, metrics={**found.metrics, "worst_index": float(place)})


def _run_mode(part: LinearProduct, mode: Any) -> Optional[Array]:
    with mode:
        return to_array(part.project(part.weight, part.bias, keep))
