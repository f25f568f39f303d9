"""Draw curves over each other and over time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from posbias._optional import optional
from posbias._plotstyle import (
    ALARM,
    COLORS,
    MARKERS,
    axes_of,
    draw_legend,
    dressed,
    legible,
    over_ranks,
    refuse_other,
    save_picture,
)
from posbias._validate import whole
from posbias.curves.curve import Curve, draw_curve, draw_line, draw_truth
from posbias.errors import CurveError
from posbias.estimators.base import CurveEstimator
from posbias.judging.history import History
from posbias.learning.weights import curve_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# More lines than these would hide each other.
_MOST_CURVES, _MOST_RANKS = 8, 5


def save(ax: Axes, path: str | os.PathLike[str]) -> None:
    """Write the picture that an Axes is in as .png, .svg or .pdf, whole or not at all, the same each time."""
    refuse_other("ax", ax, optional("matplotlib.axes", "Pictures need").Axes)
    save_picture(ax.figure, path)


def curve(
    estimate: CurveEstimator | Curve,
    ax: Axes | None = None,
    *,
    truth: Sequence[float] | None = None,
    joint: bool = False,
) -> Axes:
    """Draw a curve with its intervals, those of its segments, its joint band if asked for, and the truth if known."""
    return draw_curve(curve_of(estimate), ax, truth=truth, joint=joint)


def curves(
    estimates: Mapping[str, CurveEstimator | Curve], ax: Axes | None = None, *, truth: Sequence[float] | None = None
) -> Axes:
    """Draw several curves over each other, by name: of estimators, segments or days."""
    if not isinstance(estimates, Mapping) or not all(isinstance(name, str) for name in estimates):
        raise CurveError(f"curves draws estimates by name, as in {{'today': ...}}, not a {type(estimates).__name__}.")
    if not 0 < len(estimates) <= _MOST_CURVES:
        raise CurveError(f"From 1 to {_MOST_CURVES} curves can be told apart in one picture, not {len(estimates)}.")
    ax = axes_of(ax)
    axes = dressed(ax)
    found = {name: curve_of(estimate) for name, estimate in estimates.items()}
    for number, (name, one) in enumerate(found.items()):
        # Side by side, so that intervals of one rank do not hide each other.
        beside = 0.12 * (number - (len(found) - 1) / 2)
        draw_line(axes, one, name, COLORS[number], marker=MARKERS[number], beside=beside, band=False)
    if truth is not None:
        draw_truth(axes, truth, [*found.values()])
    over_ranks(axes, sorted({p.position for one in found.values() for p in one.positions}))
    names = dict.fromkeys(one.interval_name for one in found.values())
    axes.set_title(f"Examination by rank, {' and '.join(names)}", fontsize="medium")
    draw_legend(axes)
    return ax


def history(kept: History, ax: Axes | None = None, *, ranks: Sequence[int] | None = None) -> Axes:
    """Draw the propensities of some ranks over the days, with their intervals; days with findings are marked."""
    refuse_other("history", kept, History, CurveError)
    if not kept.days:
        raise CurveError("The history has no day yet: add one with History.add, or posbias history add.")
    ax = axes_of(ax)
    axes: Any = dressed(ax)
    every = sorted({p.position for day in kept.days for p in day.positions if p.position > 1})
    if ranks is not None and not isinstance(ranks, Sequence | np.ndarray):
        raise CurveError(f"ranks must be a list of ranks, such as ranks=[2, 5], not {ranks!r}.")
    chosen = [whole("ranks", rank, 1, error=CurveError) for rank in ranks] if ranks is not None else _spread(every)
    if not chosen or len(chosen) > len(COLORS):
        raise CurveError(f"From 1 to {len(COLORS)} ranks can be drawn over days, not {len(chosen)}.")
    days = np.array([np.datetime64(day.date) for day in kept.days])
    every_day = np.arange(days[0], days[-1] + 1)
    place = np.searchsorted(every_day, days)
    for number, rank in enumerate(chosen):
        # A day without a curve is a gap.
        values = np.full((3, len(every_day)), np.nan)
        for at, day in zip(place, kept.days, strict=True):
            found = next((p for p in day.positions if p.position == rank), None)
            if found is not None:
                values[:, at] = [np.nan if v is None else v for v in (found.propensity, found.low, found.high)]
        axes.fill_between(every_day, values[1], values[2], color=COLORS[number], alpha=0.18, linewidth=0)
        style = {"color": COLORS[number], "marker": MARKERS[number], "markersize": 4, "linewidth": 1.3}
        axes.plot(every_day, values[0], label=f"rank {rank}", **style)
    told = [day for day, one in zip(days, kept.days, strict=True) if one.findings]
    for number, day in enumerate(told):
        axes.axvline(day, color=ALARM, linestyle=":", linewidth=1.1, label=None if number else "something was found")
    dates = optional("matplotlib.dates", "Pictures need")
    # Days, however few there are: never hours.
    locator = dates.AutoDateLocator(minticks=1, maxticks=8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))
    axes.set_ylabel("Propensity relative to rank 1")
    axes.set_ylim(bottom=0)
    axes.set_title(legible(f"Examination by day: {kept.days[-1].estimator}"), fontsize="medium")
    draw_legend(axes, loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


def _spread(ranks: list[int]) -> list[int]:
    """Return some ranks from the first to the last."""
    places = np.unique(np.linspace(0, len(ranks) - 1, min(_MOST_RANKS, len(ranks))).round().astype(int))
    return [ranks[place] for place in places]
