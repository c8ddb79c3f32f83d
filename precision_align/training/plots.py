"""Two curves and their difference as text, for a terminal.

Only braille cells and ASCII are used: both are one column wide everywhere, while block and box characters are two
columns wide in many Chinese terminals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from precision_align.core.dtypes import Array

if TYPE_CHECKING:
    from precision_align.training.losses import LossReport

_UNICODE = {"reference": "\u2812", "candidate": "\u28ff", "both": "\u28b7", "band": "\u2804", "difference": "\u28ff"}
_ASCII = {"reference": ".", "candidate": "#", "both": "@", "band": "-", "difference": "#"}
_LABEL = 10  # columns left of the axis
_LEAST_WIDTH = 32
_HEIGHT = 12
_LOWER_HEIGHT = 6
_LARGEST = 1e99  # what is larger is drawn at the edge
_LINE_POINTS = 8  # points a column on a line between two values


def plot_curves(report: LossReport, width: int = 72, *, ascii_only: bool = False) -> str:
    """The two curves above, |relative difference| on a logarithmic axis with the band below.

    ``width``: columns of the whole plot, at least 32. A column shows the full range of the steps that fall into it. A
    value that is not finite is marked N in the top row; the onset is marked ^ under both.
    """
    glyphs = _ASCII if ascii_only else _UNICODE
    columns = max(width, _LEAST_WIDTH) - _LABEL - 2
    steps = np.asarray(sorted({*report.reference.steps, *report.candidate.steps}), dtype=np.float64)
    axis = _Axis(float(steps[0]), float(steps[-1]), columns)
    legend = (
        f"{report.name}   {glyphs['reference']} reference   {glyphs['candidate']} candidate   {glyphs['both']} both"
    )
    lines = [legend, *_draw_values(report, axis, glyphs), axis.draw(report.onset), "", "|relative difference|"]
    lines += [*_draw_differences(report, axis, glyphs), axis.draw(report.onset), axis.label()]
    if report.onset is not None:
        lines.append(f"{'':{_LABEL}}  ^ step {report.onset}: the curves part")
    return "\n".join(line.rstrip() for line in lines)


class _Axis:
    """Steps to columns."""

    def __init__(self, first: float, last: float, columns: int) -> None:
        self.first, self.last, self.columns = first, last, columns

    def place(self, steps: Sequence[int]) -> Array:
        """The column of each step."""
        span = max(self.last - self.first, 1.0)
        return ((np.asarray(steps, dtype=np.float64) - self.first) / span * (self.columns - 1)).round().astype(int)

    def draw(self, onset: int | None) -> str:
        cells = ["-"] * self.columns
        if onset is not None:
            cells[int(self.place([onset])[0])] = "^"
        return f"{'':{_LABEL}} +{''.join(cells)}"

    def label(self) -> str:
        first, last = f"step {self.first:.0f}", f"{self.last:.0f}"
        return f"{'':{_LABEL}}  {first}{last:>{max(1, self.columns - len(first))}}"


def _draw_values(report: LossReport, axis: _Axis, glyphs: dict[str, str]) -> list[str]:
    values = np.asarray([*report.reference.values, *report.candidate.values], dtype=np.float64)
    finite = values[np.isfinite(values)].clip(-_LARGEST, _LARGEST)
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    canvas = _Canvas(low, high, _HEIGHT, axis.columns)
    left = canvas.draw(axis.place(report.reference.steps), report.reference.values)
    right = canvas.draw(axis.place(report.candidate.steps), report.candidate.values)
    cells = np.full(left.shape, " ")
    cells[left] = glyphs["reference"]
    cells[right] = glyphs["candidate"]
    cells[left & right] = glyphs["both"]
    _mark_nonfinite(cells, axis.place(report.reference.steps), report.reference.values)
    _mark_nonfinite(cells, axis.place(report.candidate.steps), report.candidate.values)
    return canvas.label(cells, lambda value: f"{value:.4g}")


def _draw_differences(report: LossReport, axis: _Axis, glyphs: dict[str, str]) -> list[str]:
    columns = axis.place(report.steps)
    magnitudes = np.abs(np.asarray(report.differences, dtype=np.float64))
    with np.errstate(divide="ignore"):
        difference, law = np.log10(magnitudes), np.log10(np.clip(report.limits, _LARGEST**-1, _LARGEST))
    shown = np.concatenate([difference[np.isfinite(difference)], law[np.isfinite(law)]])
    low, high = math.floor(float(shown.min())), math.ceil(float(shown.max()))
    canvas = _Canvas(low, max(high, low + 1), _LOWER_HEIGHT, axis.columns)
    cells = np.full((_LOWER_HEIGHT, axis.columns), " ")
    cells[canvas.draw(columns, law)] = glyphs["band"]
    cells[canvas.draw(columns, difference)] = glyphs["difference"]
    _mark_nonfinite(cells, columns, np.where(magnitudes == 0, 0.0, magnitudes))
    return canvas.label(cells, lambda value: f"{10**value:.0e}")


class _Canvas:
    """Values to rows, the highest in row 0."""

    def __init__(self, low: float, high: float, height: int, columns: int) -> None:
        self.low, self.high, self.height, self.columns = low, high, height, columns

    def draw(self, columns: Array, values: Sequence[float] | Array) -> Array:
        """Which cells a curve covers, bool (height, columns): its values, and lines between neighbours.

        ``columns``: ascending, one a value. Values that are not finite leave a gap.
        """
        data = np.asarray(values, dtype=np.float64)
        data = np.where(np.isfinite(data), data.clip(-_LARGEST, _LARGEST), np.nan)
        fine = np.arange(columns[0], columns[-1], 1 / _LINE_POINTS)
        between = np.interp(fine, columns, data) if len(columns) <= self.columns else fine[:0]
        places = np.concatenate([columns, fine[: len(between)].round().astype(int)])
        heights = np.concatenate([data, between])
        known = np.isfinite(heights)
        span = self.high - self.low or 1.0
        rows = ((self.high - heights[known]) / span * (self.height - 1)).round().clip(0, self.height - 1)
        return self._fill(places[known], rows.astype(int))

    def _fill(self, columns: Array, rows: Array) -> Array:
        top, bottom = np.full(self.columns, self.height), np.full(self.columns, -1)
        np.minimum.at(top, columns, rows)
        np.maximum.at(bottom, columns, rows)
        every = np.arange(self.height)[:, None]
        return np.asarray((every >= top) & (every <= bottom))

    def label(self, cells: Array, write: Callable[[float], str]) -> list[str]:
        """The rows with their values beside the first, middle and last."""
        shown = {0, self.height // 2, self.height - 1}
        lines = []
        for row in range(self.height):
            value = self.high - (self.high - self.low) * row / (self.height - 1)
            text = write(value) if row in shown else ""
            lines.append(f"{text:>{_LABEL}} |{''.join(cells[row])}")
        return lines


def _mark_nonfinite(cells: Array, columns: Array, values: Sequence[float] | Array) -> None:
    bad = ~np.isfinite(np.asarray(values, dtype=np.float64))
    cells[0, columns[bad]] = "N"
