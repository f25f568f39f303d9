"""Draw curves over each other and over time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING

import numpy as np

from posbias._charts import MARKERS, Axis, Chart, Rule, Series, known, number_axis
from posbias._matplotlib import checked_axes, draw
from posbias._matplotlib import save as save_picture
from posbias._validate import check_type, integer
from posbias.curves.curve import Curve, curve_series, draw_curve, propensity_chart
from posbias.errors import CurveError
from posbias.estimators.base import CurveEstimator
from posbias.judging.history import History
from posbias.learning.weights import curve_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# More lines would hide each other.
_MOST_RANKS, _MOST_CURVES = 5, len(MARKERS)
# Days are numbered from here, as matplotlib does.
_EPOCH = date(1970, 1, 1)
# The largest number of dates below a chart but one, and the number of days from which they have a year but no day.
_MOST_DATES, _MANY_DAYS = 5, 300


def save(ax: Axes, path: str | os.PathLike[str]) -> None:
    """Write the picture that an Axes is part of as a file.

    The file is written as a whole or not at all, and has the same bytes each time.

    Arguments:
        ax (Axes): the Axes that a function of this module returned.
        path (str or path): the file, which ends in .png, .svg or .pdf.
    """
    save_picture(checked_axes(ax), path)


def curve(
    estimate: CurveEstimator | Curve,
    ax: Axes | None = None,
    *,
    truth: Sequence[float] | None = None,
    joint: bool = False,
    columns: int | None = None,
) -> Axes:
    """Draw a curve with its confidence intervals, and those of its segments; or as the heat map of a grid.

    Arguments:
        estimate (Curve or fitted estimator): the curve.
        ax (Axes, default None): where to draw; None for a new figure.
        truth (sequence of float, default None): the true propensities from rank 1 on, if they are known.
        joint (bool, default False): whether to draw the band that holds the whole curve at once.
        columns (int, default None): the columns of a grid whose places are numbered row by row, to draw the curve as a
            heat map.
    """
    return draw_curve(curve_of(estimate), ax, truth=truth, joint=joint, columns=columns)


def curves(
    estimates: Mapping[str, CurveEstimator | Curve], ax: Axes | None = None, *, truth: Sequence[float] | None = None
) -> Axes:
    """Draw several curves over each other, for example of estimators, segments or days.

    Arguments:
        estimates (mapping of str to Curve or fitted estimator): 1 to 8 curves by name.
        ax (Axes, default None): where to draw; None for a new figure.
        truth (sequence of float, default None): the true propensities from rank 1 on, if they are known.
    """
    if not isinstance(estimates, Mapping) or not all(isinstance(name, str) for name in estimates):
        raise CurveError(f"curves draws estimates by name, as in {{'today': ...}}, not a {type(estimates).__name__}.")
    if not 0 < len(estimates) <= _MOST_CURVES:
        raise CurveError(f"A chart shows 1 to {_MOST_CURVES} curves, not {len(estimates)}.")
    return draw(curves_chart({name: curve_of(estimate) for name, estimate in estimates.items()}, truth=truth), ax)


def curves_chart(curves: Mapping[str, Curve], *, truth: Sequence[float] | None = None) -> Chart:
    """Return the chart of several curves, side by side so that the intervals of a rank do not hide each other."""
    series = [
        curve_series(one, name, place, shift=0.12 * (place - (len(curves) - 1) / 2))
        for place, (name, one) in enumerate(curves.items())
    ]
    intervals = dict.fromkeys(one.interval_name for one in curves.values())
    title = f"Examination by rank, {' and '.join(intervals)}"
    return propensity_chart(title, series, [*curves.values()], truth=truth)


def history(history: History, ax: Axes | None = None, *, ranks: Sequence[int] | None = None) -> Axes:
    """Draw the propensities of some ranks by day, with their confidence intervals; days with findings are marked.

    Arguments:
        history (History): the curves of the days.
        ax (Axes, default None): where to draw; None for a new figure.
        ranks (sequence of int, default None): 1 to 8 ranks; None for some from the second to the last.
    """
    check_type("history", history, History, CurveError)
    if not history.days:
        raise CurveError("The history has no day yet: add one with History.add, or posbias history add.")
    if ranks is not None and not isinstance(ranks, Sequence | np.ndarray):
        raise CurveError(f"ranks must be a list of ranks, such as ranks=[2, 5], not {ranks!r}.")
    chosen = (
        [integer("ranks", rank, 1, error=CurveError) for rank in ranks] if ranks is not None else some_ranks(history)
    )
    if not 0 < len(chosen) <= len(MARKERS):
        raise CurveError(f"From 1 to {len(MARKERS)} ranks can be drawn over days, not {len(chosen)}.")
    return draw(history_chart(history, chosen), ax)


def some_ranks(history: History) -> list[int]:
    """Return some ranks of a history, from the second to the last."""
    ranks = sorted({p.position for day in history.days for p in day.positions if p.position > 1})
    places = np.unique(np.linspace(0, len(ranks) - 1, min(_MOST_RANKS, len(ranks))).round().astype(int))
    return [ranks[place] for place in places]


def history_chart(history: History, ranks: Sequence[int]) -> Chart:
    """Return the chart of some ranks by day; a day without a curve is a gap."""
    positions = {day_number(day.date): {p.position: p for p in day.positions} for day in history.days}
    days = range(min(positions), max(positions) + 1)
    series = []
    for color, rank in enumerate(ranks):
        row = [positions.get(day, {}).get(rank) for day in days]
        y, low, high = (known(getattr(p, field, None) for p in row) for field in ("propensity", "low", "high"))
        marker = MARKERS[color]
        series.append(Series(f"rank {rank}", color, days, y, low, high, marker, band=True, bars=False, size=4))
    alarms = [day_number(day.date) for day in history.days if day.findings]
    names = ["day with findings", *[""] * len(alarms)]
    return Chart(
        f"Examination by day: {history.days[-1].estimator}",
        _day_axis(days[0], days[-1]),
        number_axis("Propensity relative to rank 1", (v for one in series for v in one.values), bottom=0.0),
        series,
        [Rule("x", day, "dotted", "alarm", name) for day, name in zip(alarms, names, strict=False)],
        legend="right",
    )


def day_number(day: date) -> int:
    """Return the number of a day on the axis of a history."""
    return (day - _EPOCH).days


def _day_axis(first: int, last: int) -> Axis:
    years = sorted({(_EPOCH + timedelta(day)).year for day in (first, last)})
    return Axis(" to ".join(map(str, years)), first - 0.5, last + 0.5, _day_ticks)


def _day_ticks(low: float, high: float) -> dict[float, str]:
    """Return ticks at days, never at hours, however few days there are.

    >>> [*_day_ticks(day_number(date(2026, 2, 27)) - 0.5, day_number(date(2026, 3, 1)) + 0.5).values()]
    ['Feb 27', 'Feb 28', 'Mar 1']
    """
    first, last = int(np.ceil(low)), int(np.floor(high))
    form = "{day:%b %Y}" if last - first > _MANY_DAYS else "{day:%b} {day.day}"
    step = 1 + (last - first) // _MOST_DATES
    return {day: form.format(day=_EPOCH + timedelta(day)) for day in range(first, last + 1, step)}
