"""Pictures of a plan: how intervals narrow with more data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from posbias.errors import PosbiasError
from posbias.extras import optional
from posbias.pictures import COLORS, MARKERS, draw_legend, dressed, legible, new_axes, save_picture
from posbias.planning.plans import Plan
from posbias.planning.precision import precision_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# So many ranks get a line; more would hide each other.
_MOST_RANKS = 6


def draw_plan(plan: Plan, ax: Axes | None = None) -> Axes:
    """Draw the half-width at some ranks against queries, or page views where those were not counted."""
    if ax is None:
        _, ax = new_axes()
    dressed(ax)
    outlook = plan.outlooks[0]
    known = [need for need in outlook.needs if need.times is not None and need.precision is not None]
    if not known:
        raise PosbiasError(f"{outlook.estimator} has no interval at any rank: there is nothing to draw.")
    chosen = sorted({round(i) for i in np.linspace(0, len(known) - 1, min(_MOST_RANKS, len(known)))})
    count = plan.page_views if plan.queries is None else plan.queries
    most = max(need.times or 1.0 for need in known)
    least = min(0.25, 0.5 * min(need.times or 1.0 for need in known))
    # Up to what there is, which is marked, and on from there.
    times = np.r_[np.geomspace(least, 1, 20), np.geomspace(1, 3 * max(most, 1.0), 40)[1:]]
    for i, place in enumerate(chosen):
        need = known[place]
        se, degrees = np.array([need.standard_error]), np.array([need.degrees_of_freedom])
        wide = precision_at(times, se, degrees, plan.level, outlook.buckets, plan.queries)
        style: dict[str, Any] = {"color": COLORS[i], "marker": MARKERS[i], "markersize": 5, "markevery": [19]}
        ax.plot(count * times, 100 * wide, label=f"rank {need.rank}", **style)
    ax.axhline(100 * plan.precision, color="black", linestyle=":", linewidth=1.2)
    ax.annotate(f"±{100 * plan.precision:g}%", (count * times[-1], 100 * plan.precision), ha="right", va="bottom")
    ax.axvline(count, color="grey", linewidth=0.8, alpha=0.6)
    ax.set_xscale("log")
    ax.set_yscale("log")
    # At 1, 2 and 5 of each power of ten, as people write them: the ticks between would print over each other.
    ticker = optional("matplotlib.ticker", "Plots need")
    for axis, form in ((ax.xaxis, "{x:,.0f}"), (ax.yaxis, "{x:g}%")):
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(form)
        axis.set_minor_formatter(ticker.NullFormatter())
    ax.set_xlabel("Page views" if plan.queries is None else "Queries")
    ax.set_ylabel(f"{100 * plan.level:g}% interval, ±")
    ax.set_title(legible(f"How intervals narrow with more data: {outlook.estimator}"), fontsize="medium")
    draw_legend(ax)
    return ax


def save_plan(plan: Plan, path: str) -> None:
    """Write the picture of a plan as PNG, SVG or PDF, whole or not at all."""
    figure: Any = draw_plan(plan).figure
    save_picture(figure, path)
