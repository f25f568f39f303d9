"""Figures of the experiments: curves by rank, errors over a setting, and one number per setting, as in the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.outcomes import mean_and_spread
from posbias._arrays import FloatArray
from posbias._charts import MARKERS, Chart, Series, number_axis, rank_axis
from posbias._matplotlib import COLORS, draw, draw_series, new_axes

# Height and width in inches; two figures fit side by side on a page.
_SIZE = 3.9, 5.6
# Each estimator has the same colour and marker in all figures and in reports.
_STYLE_NUMBERS = {
    "CrossFit": 0,
    "AllPairs": 1,
    "PivotOne": 2,
    "AdjacentChain": 3,
    "Swap(1,k)": 4,
    "Swap(k,k+1)": 4,
    "RegressionEM": 5,
    "Naive CTR": 6,
}


def draw_curves(lines: Sequence[Line], *, bands: bool, truth: FloatArray | None = None) -> Any:
    """Draw propensity curves by rank, with bands or with error bars."""
    ranks = range(1, len(lines[0].y) + 1)
    series = []
    if truth is not None:
        series.append(Series("True propensities", "ink", range(1, len(truth) + 1), truth.tolist(), line="dashed"))
    for number, line in enumerate(lines):
        place = _STYLE_NUMBERS.get(line.label, number)
        low, high = ([] if limits is None else limits.tolist() for limits in (line.low, line.high))
        band = bands and bool(low)
        series.append(Series(line.label, place, ranks, line.y.tolist(), low, high, MARKERS[place], band=band, size=4))
    y = number_axis("Propensity relative to rank 1", (value for one in series for value in one.values), bottom=0.0)
    return draw(Chart("", rank_axis(ranks), y, series), new_axes(*_SIZE)).figure


@dataclass(frozen=True)
class Line:
    """A curve, and the ends of its interval or None."""

    label: str
    y: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None


def style_of(name: str, number: int) -> dict[str, Any]:
    """Return the colour and marker of an estimator; a name without its own takes those of `number`."""
    place = _STYLE_NUMBERS.get(name, number)
    return {"color": COLORS[place], "marker": MARKERS[place]}


def draw_errors(
    x: Sequence[float], errors: Mapping[str, FloatArray], axis: SettingAxis, top: Sequence[float] | None
) -> Any:
    """Draw the MSE of estimators (arrays of points by runs) over a setting, with the standard deviation over runs."""
    axes = new_axes(*_SIZE)
    figure = axes.figure
    for number, (label, values) in enumerate(errors.items()):
        mean, spread = mean_and_spread(values)
        place, shifted = _STYLE_NUMBERS.get(label, number), shift_right(x, number, axis.log).tolist()
        low, high = (limits.tolist() for limits in log_bars(mean, spread))
        draw_series(axes, Series(label, place, shifted, mean.tolist(), low, high, MARKERS[place]))
    axes.set_yscale("log")
    if axis.log:
        axes.set_xscale("log")
        axes.minorticks_off()
    if axis.ticks is not None:
        axes.set_xticks(axis.ticks, [f"{tick:g}" for tick in axis.ticks])
    axes.set_xlabel(axis.label)
    axes.set_ylabel("MSE of inverse propensities")
    if top is not None:
        above = axes.secondary_xaxis("top")
        above.set_xticks(list(x), [f"{value:.2f}" for value in top], fontsize=8)
        above.set_xlabel("Similarity (share of documents at the same rank)")
    # The legend is below the axes because error bars fill the space inside.
    figure.legend(loc="outside lower center", ncols=len(errors), frameon=False)
    return figure


@dataclass(frozen=True)
class SettingAxis:
    """The axis of the setting that an experiment varies."""

    label: str
    log: bool = False
    ticks: Sequence[float] | None = None


def shift_right(x: Sequence[float], number: int, log: bool) -> FloatArray:
    """Shift a line slightly to the right, so that error bars at the same x do not hide each other."""
    place = np.asarray(x, dtype=np.float64)
    if log:
        return np.asarray(place * (place[-1] / place[0]) ** (0.008 * number))
    return np.asarray(place + 0.008 * number * (place[-1] - place[0]))


def log_bars(mean: FloatArray, spread: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the ends of error bars on a logarithmic axis: symmetric in the logarithm, and therefore always positive.

    Example:
        >>> log_bars(np.array([1.0, 1.0]), np.array([0.25, 3.0]))
        (array([0.8 , 0.25]), array([1.25, 4.  ]))
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return mean**2 / (mean + spread), mean + spread


def draw_settings(
    settings: Sequence[str],
    lines: Mapping[str, FloatArray],
    label: str,
    goal: tuple[float, float],
    limits: tuple[float, float] | None = None,
) -> Any:
    """Draw a value with its standard error for each estimator and setting, and shade the range of the goal."""
    axes = new_axes(1.2 + 0.32 * len(settings), 8.0)
    figure = axes.figure
    axes.axvspan(*goal, color="black", alpha=0.08, linewidth=0)
    rows = np.arange(len(settings), dtype=np.float64)
    for number, (name, (value, error)) in enumerate(lines.items()):
        style = style_of(name, number) | {"markersize": 4.5}
        place = rows + 0.6 * ((number + 0.5) / len(lines) - 0.5)
        axes.errorbar(value, place, xerr=2 * error, label=name, linestyle="none", elinewidth=1, **style)
    axes.set_xlim(limits)
    axes.set_yticks(rows, settings)
    axes.set_ylim(len(settings) - 0.5, -0.5)
    axes.set_xlabel(label)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure
