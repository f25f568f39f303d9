"""Pictures of a plan: how intervals narrow with more data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from posbias.errors import PosbiasError
from posbias.extras import optional
from posbias.pictures import COLORS, MARKERS, axes_of, draw_legend, dressed, legible, refuse_other, save_picture
from posbias.planning.numerals import compact
from posbias.planning.plans import TOO_FEW, Outlook, Plan
from posbias.planning.precision import precision_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# So many ranks get a line; more would hide each other.
_MOST_RANKS = 6
_WIDEST = 100.0
_MOST_SPAN = 1e4


def draw_plan(plan: Plan, ax: Axes | None = None) -> Axes:
    """Draw the half-width at some ranks against queries, or page views where those were not counted."""
    refuse_other("plan", plan, Plan)
    ax = axes_of(ax)
    dressed(ax)
    outlook = plan.outlooks[0]
    known = [need for need in outlook.needs if need.times_high is not None and need.precision is not None]
    if not known:
        why = f"{TOO_FEW} at every rank" if outlook.foreseen or _ranges(outlook) else "it has no interval at any rank"
        raise PosbiasError(f"There is nothing to draw of {outlook.estimator}: {why}.")
    chosen = sorted({round(i) for i in np.linspace(0, len(known) - 1, min(_MOST_RANKS, len(known)))})
    count = plan.page_views if plan.queries is None else plan.queries
    most = max(need.times or need.times_high or 1.0 for need in known)
    least = min(0.25, 0.5 * min(need.times or need.times_low or 1.0 for need in known))
    # Up to what there is, which is marked, and on from there.
    times = np.r_[np.geomspace(least, 1, 20), np.geomspace(1, 3 * max(most, 1.0), 40)[1:]]
    for i, place in enumerate(chosen):
        need = known[place]
        se, degrees = np.array([need.standard_error]), np.array([need.degrees_of_freedom])
        wide = precision_at(times, se, degrees, plan.level, outlook.buckets, plan.queries)
        style: dict[str, Any] = {"color": COLORS[i], "marker": MARKERS[i], "markersize": 5, "markevery": [19]}
        rough = need.times is None
        label = f"rank {need.rank}" + (", roughly" if rough else "")
        # Beyond that there is no bound worth a place in the picture.
        drawn = np.where(wide < _WIDEST, 100 * wide, np.nan)
        ax.plot(count * times, drawn, label=label, linestyle="--" if rough else "-", **style)
    ax.axhline(100 * plan.precision, color="black", linestyle=":", linewidth=1.2)
    ax.annotate(f"±{100 * plan.precision:g}%", (count * times[-1], 100 * plan.precision), ha="right", va="bottom")
    ax.axvline(count, color="grey", linewidth=0.8, alpha=0.6)
    ax.set_xscale("log")
    ax.set_yscale("log")
    # At 1, 2 and 5 of each power of ten, as people write them, and at powers alone where these print over each other.
    ticker = optional("matplotlib.ticker", "Plots need")
    for axis, form in ((ax.xaxis, lambda x, _: compact(x)), (ax.yaxis, "{x:g}%")):
        low, high = sorted(axis.get_view_interval())
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high < _MOST_SPAN * low else (1,)))
        axis.set_major_formatter(form)
        axis.set_minor_formatter(ticker.NullFormatter())
    ax.set_xlabel("Page views" if plan.queries is None else "Queries")
    ax.set_ylabel(f"{100 * plan.level:g}% interval, ±")
    ax.set_title(legible(f"How intervals narrow with more data: {outlook.estimator}"), fontsize="medium")
    draw_legend(ax)
    return ax


def _ranges(outlook: Outlook) -> bool:
    return any(need.times_high is not None for need in outlook.needs)


def save_plan(plan: Plan, path: str) -> None:
    """Write the picture of a plan as PNG, SVG or PDF, whole or not at all."""
    figure: Any = draw_plan(plan).figure
    save_picture(figure, path)
