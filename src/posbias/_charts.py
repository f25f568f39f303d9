"""Charts as plain values: what is drawn, apart from how it is drawn.

A module that has something to show describes it once, as a `Chart`. Two renderers draw it: `posbias._matplotlib` into
an Axes, for `posbias.plots` and the `plot` methods, and `posbias.reporting.drawing` as SVG, for reports. Reports
therefore need no matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from posbias._arrays import FloatArray
from posbias._text import format_count, printable

# The markers of the eight colours of a chart, so that series can be distinguished in grey too.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
# Cividis, which looks alike with any colour vision, without its darkest blue: on a dark page that looks like an empty
# cell.
SHADES = ("#2f426d", "#636670", "#928d78", "#c7b767", "#fee838")
# How high an arc is, in units of the x axis, for each unit that it spans.
ARC_HEIGHT = 0.45
Color = int | str
Ticker = Callable[[float, float], Mapping[float, str]]
# The largest number of ticks of an axis of numbers, and the share of the data range that stays free at both ends.
_MOST_TICKS, _MARGIN = 7, 0.05
# Numbers closer to each other, or to 0, than this are treated as equal.
_TOLERANCE = 1e-6
# The longest name in a legend, in characters.
_LONGEST_NAME = 22
# A map of pairs of ranks shows its counts if there are at most this many ranks.
_MOST_RANKS_WRITTEN = 12


@dataclass(frozen=True)
class Chart:
    """A chart: its axes, and what is drawn over them.

    Attributes:
        title (str): the title.
        x, y (Axis): the axes; one whose `low` is above its `high` runs the other way.
        series (sequence of Series): series of numbers, drawn in this order.
        rules (sequence of Rule): straight lines across the chart.
        cells (CellMap, default None): numbers in rows and columns, drawn as a map.
        arcs (mapping, default empty): the width in points of an arc between two numbers of the x axis.
        note (str, default ""): what the legend says besides the names of the series.
        legend (str, default "best"): where the legend goes if it stands within the picture.
        height (float, default 3.6): the height in inches where the picture is 5.6 inches wide.
    """

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series] = ()
    rules: Sequence[Rule] = ()
    cells: CellMap | None = None
    arcs: Mapping[tuple[int, int], float] = field(default_factory=dict)
    note: str = ""
    legend: Literal["best", "top", "right", "below"] = "best"
    height: float = 3.6

    @property
    def grid(self) -> bool:
        """Whether there are grid lines: these would strike out the texts of cells."""
        return self.cells is None and not self.arcs


@dataclass(frozen=True)
class Axis:
    """An axis: its label, its ends, its ticks, and whether it is logarithmic.

    Attributes:
        ticker: returns the ticks between two ends, each with its text.
    """

    label: str
    low: float
    high: float
    ticker: Ticker
    log: bool = False

    @property
    def ticks(self) -> Mapping[float, str]:
        """The ticks between the ends, each with its text."""
        return self.ticker(*sorted((self.low, self.high)))

    def share(self, value: float) -> float:
        """Return where a number lies, from 0 at the low end to 1 at the high end; −∞ for a logarithm of 0 or less."""
        if self.log and value <= 0:
            return -math.inf
        low, high, own = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return (own - low) / (high - low)

    def extended(self, share: float) -> Axis:
        """Return the axis with its high end moved up by a share of its length."""
        if self.log:
            return replace(self, high=self.high * (self.high / self.low) ** share)
        return replace(self, high=self.high + share * (self.high - self.low))


@dataclass(frozen=True)
class Series:
    """A series of numbers.

    Attributes:
        name (str): its name in the legend; "" for none.
        color (int or str): a number from 0 to 7, "alarm", "ink" or "grey".
        x, y (sequence of float): the numbers, NaN where they are not known.
        low, high (sequence of float): the ends of intervals, if there are any.
        marker (str): the marker of each number as matplotlib names it, if any; drawn as an outline if `hollow`.
        marked (sequence of int, default None): the places of the numbers that have a marker; None for all.
        line (str): the line through the numbers: "solid", "dashed", "dotted" or "" for none.
        band (bool): whether the intervals are filled.
        bars (bool): whether the intervals are bars with caps, without which a narrow one cannot be seen.
        across (bool): whether the intervals lie along the x axis.
        columns (bool): whether a column stands from 0 to each number.
        size (float): the size of a marker in points.
        opacity (float): 1 for opaque.
    """

    name: str
    color: Color
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    marker: str = ""
    marked: Sequence[int] | None = None
    line: str = "solid"
    band: bool = False
    bars: bool = True
    across: bool = False
    columns: bool = False
    hollow: bool = False
    size: float = 4.5
    opacity: float = 1.0

    @property
    def values(self) -> Iterator[float]:
        """All numbers that are drawn along the axis of the intervals."""
        yield from (*(self.x if self.across else self.y), *self.low, *self.high)


@dataclass(frozen=True)
class Rule:
    """A straight line across a chart at a number of one of its axes, with a name in the legend or a note at its end."""

    axis: Literal["x", "y"]
    value: float
    line: str = "dashed"
    color: Color = "ink"
    name: str = ""
    note: str = ""


@dataclass(frozen=True, eq=False)
class CellMap:
    """Numbers in rows and columns as a map, the first row on top; cells of 0 or NaN are empty.

    Attributes:
        values (array): the numbers, (rows, columns).
        scale (Axis or None): the numbers that the shades stand for; None if there are none.
        written (mapping): the text of each cell that has one, by row and column from 1; lines end with a newline.
        square (bool, default True): whether the map is as high as it is wide.
    """

    values: FloatArray
    scale: Axis | None
    written: Mapping[tuple[int, int], str] = field(default_factory=dict)
    square: bool = True

    @property
    def filled(self) -> npt.NDArray[np.bool_]:
        """Which cells have a number."""
        return np.nan_to_num(self.values) > 0

    @property
    def texts(self) -> list[tuple[int, int, str, bool]]:
        """The row, column and text of each cell that has one, and whether its shade is light."""
        scale = self.scale
        if scale is None:
            return []
        # On the shade at 0.35 of the scale, black and white are equally legible.
        cells = ((k, j, text, float(self.values[k - 1, j - 1])) for (k, j), text in self.written.items())
        return [(k, j, text, scale.share(value) > 0.35) for k, j, text, value in cells]


def count_map(counts: FloatArray, unit: str) -> CellMap:
    """Return a map of counts for pairs of ranks, (M, M), whose shades follow a logarithmic scale."""
    if not counts.any():
        return CellMap(counts, None)
    low, high = max(1.0, float(counts[counts > 0].min())), max(2.0, float(counts.max()))
    scale = Axis(unit, low, max(high, 1.01 * low), _count_ticks, log=True)
    cells = zip(*counts.nonzero(), strict=True) if len(counts) <= _MOST_RANKS_WRITTEN else ()
    return CellMap(counts, scale, {(int(k) + 1, int(j) + 1): format_count(float(counts[k, j])) for k, j in cells})


def rank_axis(ranks: Sequence[int], label: str = "Rank") -> Axis:
    """Return an axis of ranks, with half a rank more on either side."""
    first, last = (ranks[0], ranks[-1]) if len(ranks) else (1, 1)
    return Axis(label, first - 0.5, last + 0.5, _rank_ticks)


def _rank_ticks(low: float, high: float) -> dict[float, str]:
    """Return ticks at all ranks, at every other rank, or at the first rank and round numbers.

    >>> [" ".join(_rank_ticks(low, high).values()) for low, high in ((0.5, 4.5), (1.5, 20.5), (0.5, 30.5))]
    ['1 2 3 4', '2 4 6 8 10 12 14 16 18 20', '1 5 10 15 20 25 30']
    """
    first, last = math.ceil(low), math.floor(high)
    count = last - first + 1
    if count <= 24:
        ranks = [*range(first, last + 1, 1 if count <= 12 else 2)]
    else:
        step = next(step for step in (5, 10, 20, 50, 100) if count <= 12 * step or step == 100)
        ranks = [rank for rank in range(first, last + 1) if rank == first or rank % step == 0]
    return {rank: f"{rank}" for rank in ranks}


def named_axis(names: Sequence[str], label: str = "") -> Axis:
    """Return an axis of names in rows, the first one on top."""
    ticks = {float(row): printable(name) for row, name in enumerate(names)}
    return Axis(label, len(names) - 0.5, -0.5, lambda low, high: ticks)


def number_axis(
    label: str,
    values: Iterable[float],
    *,
    bottom: float | None = None,
    top: float = math.inf,
    log: bool = False,
    text: Callable[[float], str] | None = None,
) -> Axis:
    """Return an axis that holds all finite values.

    Arguments:
        label (str): the label.
        values (iterable of float): the numbers to hold; NaN and infinity are ignored.
        bottom (float, default None): the low end; None for a little below the least value.
        top (float, default ∞): the highest high end.
        log (bool, default False): whether the axis is logarithmic.
        text (callable, default None): returns the text of a tick; None for the number itself.
    """
    finite = [v for v in values if math.isfinite(v) and (v > _TOLERANCE or not log)] or [1.0]
    low, high = min(finite) if bottom is None else bottom, max(finite)
    if log:
        margin = (high / low) ** _MARGIN if high > low * (1 + _TOLERANCE) else 1.1
        low, high = low / margin, high * margin
    else:
        size = max(abs(low), abs(high), 1.0)
        margin = _MARGIN * (high - low) if high - low > _TOLERANCE * size else 0.1 * size
        low, high = low - margin, high + margin
    ticker = round_ratios if log else round_numbers

    def ticks(low: float, high: float) -> Mapping[float, str]:
        found = ticker(low, high)
        return found if text is None else {value: text(value) for value in found}

    return Axis(label, low if bottom is None else bottom, min(high, top), ticks, log)


def round_ratios(low: float, high: float) -> dict[float, str]:
    """Return round numbers between two positive numbers on a logarithmic scale.

    >>> for low, high in ((0.09, 1.2), (0.2, 250), (0.6, 2.1), (0.8, 1.3)):
    ...     print(*round_ratios(low, high).values())
    0.1 0.2 0.5 1
    0.3 1 3 10 30 100
    0.7 1 1.5 2
    0.8 0.9 1.0 1.1 1.2 1.3
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)

    def between(*steps: float) -> list[float]:
        every = (float(f"{step}e{power}") for power in powers for step in steps)
        return [value for value in every if low <= value <= high]

    found = between(1, 2, 5)
    if len(found) < 3:
        found = between(1, 1.5, 2, 3, 5, 7)
    for fewer in ((1, 3), (1,)):
        if len(found) > _MOST_TICKS:
            found = between(*fewer)
    if len(found) < 3:
        return round_numbers(low, high)
    return {value: f"{value:g}" for value in found[:: math.ceil(len(found) / _MOST_TICKS)]}


def round_numbers(low: float, high: float) -> dict[float, str]:
    """Return round numbers between two numbers, with as many decimals as all of them need.

    >>> for low, high in ((0, 1.04), (0.913, 1.21), (0, 42)):
    ...     print(*round_numbers(low, high).values())
    0.0 0.2 0.4 0.6 0.8 1.0
    0.95 1.00 1.05 1.10 1.15 1.20
    0 10 20 30 40
    """
    power = math.floor(math.log10((high - low) / _MOST_TICKS))
    for factor in (1, 2, 5, 10, 20):
        step = factor * 10.0**power
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < _MOST_TICKS:
            break
    decimals = max(0, -power - (factor >= 10))
    return {float(f"{i * step:.{decimals}f}"): f"{i * step:.{decimals}f}" for i in range(first, last + 1)}


def _count_ticks(low: float, high: float) -> dict[float, str]:
    return {n: text if n < 1000 else format_count(n).replace(".0", "") for n, text in round_ratios(low, high).items()}


def known(values: Iterable[float | None]) -> list[float]:
    """Return numbers, NaN in place of None."""
    return [math.nan if value is None else float(value) for value in values]


def short_names(names: Iterable[str]) -> list[str]:
    """Return names short enough for a legend, all different.

    >>> short_names(["phone", "a very long name of a segment", "a very long name of a segment too"])
    ['phone', 'a very long name of a…', 'a very long name … (2)']
    """
    found: list[str] = []
    for name in map(printable, names):
        cut = name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
        count = 1
        while cut in found:
            count += 1
            cut = f"{name[: _LONGEST_NAME - 5]}… ({count})"
        found.append(cut)
    return found
