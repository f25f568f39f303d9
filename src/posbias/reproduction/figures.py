"""The pictures of the experiments, drawn as the paper draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from posbias.arrays import FloatArray
from posbias.extras import optional
from posbias.reproduction.claims import mean_and_spread

_COLORS = {
    "CrossFit": "black",
    "AllPairs": "#c1272d",
    "AdjacentChain": "#1f5fa8",
    "PivotOne": "#6b6b6b",
    "Swap(1,k)": "#1f5fa8",
    "Swap(k,k+1)": "#1f5fa8",
    "RegressionEM": "#2a8c4a",
    "Naive CTR": "#8a5fb0",
    "True propensities": "black",
}
_MARKERS = {
    "CrossFit": "D",
    "PivotOne": "x",
    "AllPairs": "o",
    "AdjacentChain": "s",
    "RegressionEM": "^",
    "Naive CTR": "v",
}


@dataclass(frozen=True)
class Line:
    """A curve with its interval: low and high are as long as y, or None for none."""

    label: str
    y: FloatArray
    low: FloatArray | None = None
    high: FloatArray | None = None


@dataclass(frozen=True)
class Axis:
    """How the setting that an experiment varies is drawn."""

    label: str
    log: bool = False
    ticks: Sequence[float] | None = None


def new_axes(width: float = 5.6, height: float = 3.9) -> tuple[Any, Any]:
    """Return a Figure and its Axes, without touching the state of pyplot."""
    figure = optional("matplotlib.figure", "Figures need").Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_curves(lines: Sequence[Line], *, bands: bool, truth: FloatArray | None = None) -> Any:
    """Draw propensity curves over ranks, with bands or with error bars."""
    figure, axes = new_axes()
    if truth is not None:
        ranks = np.arange(1, len(truth) + 1)
        axes.plot(ranks, truth, color="black", linestyle="--", linewidth=1.2, label="True propensities", zorder=3)
    for line in lines:
        ranks = np.arange(1, len(line.y) + 1)
        style = {"color": _COLORS[line.label], "marker": _MARKERS.get(line.label, "s"), "markersize": 4}
        if line.low is None or line.high is None:
            axes.plot(ranks, line.y, label=line.label, **style)
        elif bands:
            axes.fill_between(ranks, line.low, line.high, color=style["color"], alpha=0.18, linewidth=0)
            axes.plot(ranks, line.y, label=line.label, **style)
        else:
            bars = np.abs(np.stack([line.y - line.low, line.high - line.y]))
            axes.errorbar(ranks, line.y, yerr=bars, label=line.label, linewidth=1.3, capsize=3, **style)
    axes.set_xlabel("Rank")
    axes.set_ylabel("Propensity relative to rank 1")
    axes.set_ylim(bottom=0)
    axes.set_xticks(ranks if len(ranks) <= 12 else ranks[::2])
    axes.legend(frameon=False)
    return figure


def draw_errors(x: Sequence[float], errors: Mapping[str, FloatArray], axis: Axis, top: Sequence[float] | None) -> Any:
    """Draw the MSE of estimators (points by runs) over a setting, with the standard deviation over the runs."""
    figure, axes = new_axes()
    lowest = []
    for number, (label, values) in enumerate(errors.items()):
        mean, spread = mean_and_spread(values)
        lowest.append(np.min(mean, where=np.isfinite(mean), initial=np.inf))
        style = {"color": _COLORS[label], "marker": _MARKERS.get(label, "s"), "markersize": 4.5}
        place = _aside(x, number, axis.log)
        axes.errorbar(place, mean, yerr=spread, label=label, linewidth=1.3, capsize=3, elinewidth=1, **style)
    axes.set_yscale("log", nonpositive="clip")
    # A bar that reaches below 0 has no end on a logarithmic axis.
    if np.isfinite(min(lowest)):
        axes.set_ylim(bottom=min(lowest) / 3)
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
    # Below the axes: within them there is a bar wherever it could stand.
    figure.legend(loc="outside lower center", ncols=len(errors), frameon=False)
    return figure


def draw_settings(
    settings: Sequence[str],
    lines: Mapping[str, FloatArray],
    label: str,
    goal: tuple[float, float],
    ends: tuple[float, float] | None = None,
) -> Any:
    """Draw a number of each estimator, (value, standard error) by settings, a row for each, with a goal to be in."""
    figure, axes = new_axes(8.0, 1.2 + 0.32 * len(settings))
    axes.axvspan(*goal, color="black", alpha=0.08, linewidth=0)
    rows = np.arange(len(settings), dtype=np.float64)
    for number, (name, (value, error)) in enumerate(lines.items()):
        style = {"color": _COLORS.get(name, f"C{number}"), "marker": _MARKERS.get(name, "s"), "markersize": 4.5}
        place = rows + 0.6 * ((number + 0.5) / len(lines) - 0.5)
        axes.errorbar(value, place, xerr=2 * error, label=name, linestyle="none", elinewidth=1, **style)
    axes.set_xlim(ends)
    axes.set_yticks(rows, settings)
    axes.set_ylim(len(settings) - 0.5, -0.5)
    axes.set_xlabel(label)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure


def _aside(x: Sequence[float], number: int, log: bool) -> FloatArray:
    """Move a line a little to the right: bars that stand at the same x would hide each other."""
    place = np.asarray(x, dtype=np.float64)
    if log:
        return np.asarray(place * (place[-1] / place[0]) ** (0.008 * number))
    return np.asarray(place + 0.008 * number * (place[-1] - place[0]))
