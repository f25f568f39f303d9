"""What a curve rests on: pairs of ranks, buckets of queries, and the click rates that it corrects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from posbias.arrays import FloatArray
from posbias.curves.curve import Curve
from posbias.errors import EstimateError, HarvestError
from posbias.estimators.base import CurveEstimator
from posbias.extras import optional
from posbias.harvesting.harvests import Harvest
from posbias.judging.pair_ratios import PairRatio, measure_pair_ratios, too_many
from posbias.learning.curve_values import curve_of
from posbias.pictures import (
    ALARM,
    COLORS,
    axes_of,
    draw_interval,
    draw_legend,
    dressed,
    legible,
    over_ranks,
    rank_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The pairs of which most is known are drawn.
_MOST_PAIRS = 150
# The buckets that move a rank most stand out.
_HEAVY = 0.25
MIXED, ALONE = "click rate: examination and relevance", "propensity: examination alone"


def pair_ratios(harvest: Harvest, estimate: CurveEstimator | Curve | None = None, ax: Axes | None = None) -> Axes:
    """Draw what each pair of ranks says of p_k'/p_k, with its interval, against what the curve says.

    If the model holds they lie on one line, but for chance.
    Without an estimate it is CrossFit's, or that of AllPairs where the harvest holds sums.
    """
    if not isinstance(harvest, Harvest):
        raise HarvestError(f"pair_ratios draws a Harvest, not a {type(harvest).__name__}.")
    fitted = _propensity(estimate if estimate is not None else _fitted(harvest))
    counts = harvest.interventions()
    if too_many(counts):
        raise HarvestError(f"The pairs of {harvest.max_rank} ranks are too many to draw with their intervals.")
    return draw_pair_ratios(measure_pair_ratios(counts, fitted), ax)


def draw_pair_ratios(ratios: Sequence[PairRatio], ax: Axes | None = None) -> Axes:
    """Draw ratios of pairs of ranks, the surest of them, against what a curve says."""
    surest = ratios[:_MOST_PAIRS]
    ax = axes_of(ax, 5.2, 4.6)
    axes: Any = dressed(ax)
    looks = (False, COLORS[0], "o", "two ranks"), (True, ALARM, "D", "off by over three standard errors")
    for apart, color, marker, name in looks:
        own = [one for one in surest if one.apart == apart]
        if own:
            x, y, low, high = np.array([(one.expected, one.ratio, one.low, one.high) for one in own]).T
            style = {"color": color, "marker": marker, "markersize": 3.5, "linestyle": "none", "label": name}
            draw_interval(axes, x, y, low, high, band=False, **style)
    expected = [one.expected for one in surest] or [0.1, 1.0]
    ends = [min(expected), max(expected)]
    axes.plot(ends, ends, color="black", linestyle="--", linewidth=1.1, label="as the curve says")
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain_ticks(axes)
    axes.set_xlabel("$p_{k'} / p_k$ by the curve")
    axes.set_ylabel("by the clicks of the pair alone")
    left = len(ratios) - len(surest)
    axes.set_title(
        "Pairs of ranks against the curve" + (f" ({left} less sure not drawn)" if left else ""), fontsize="medium"
    )
    draw_legend(axes)
    return ax


def influence(fitted: CurveEstimator, ax: Axes | None = None) -> Axes:
    """Draw by how much each rank would move without each of the buckets of queries; those that decide it stand out."""
    refits = fitted.deletions_ if isinstance(fitted, CurveEstimator) else None
    if refits is None:
        raise EstimateError("influence draws a fitted estimator that has intervals, made of buckets of queries.")
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = np.log(refits) - np.log(fitted.propensity_)
    ax = axes_of(ax)
    axes: Any = dressed(ax)
    heavy_named = False
    for k in range(1, moved.shape[1]):
        own = moved[:, k][np.isfinite(moved[:, k])]
        if not len(own):
            continue
        share = own**2 / max(float((own**2).sum()), 1e-300)
        heavy = share > _HEAVY
        percent = 100 * np.expm1(own)
        axes.plot(np.full((~heavy).sum(), k + 1), percent[~heavy], ".", color=COLORS[0], alpha=0.35, markersize=4)
        if heavy.any():
            name = None if heavy_named else f"over {_HEAVY:.0%} of the rank's variance"
            heavy_named = True
            axes.plot(np.full(heavy.sum(), k + 1), percent[heavy], "D", color=ALARM, markersize=5, label=name)
    axes.axhline(0, color="black", linewidth=0.8)
    rank_ticks(axes, list(range(1, moved.shape[1] + 1)))
    axes.set_xlabel("Rank")
    axes.set_ylabel("Change of p without one bucket, %")
    axes.set_title(legible(f"What each bucket of queries decides: {fitted.name}"), fontsize="medium")
    if heavy_named:
        draw_legend(axes)
    return ax


def click_rates(estimate: CurveEstimator | Curve, ax: Axes | None = None) -> Axes:
    """Draw click rates relative to rank 1, which mix relevance and examination, beside the curve, which does not."""
    curve = curve_of(estimate)
    ax = axes_of(ax)
    axes = dressed(ax)
    ranks = np.array([p.position for p in curve.positions], dtype=float)
    rate = np.array([p.clicks / p.impressions for p in curve.positions])
    first = rate[ranks == 1]
    if len(first) and first[0] > 0:
        axes.plot(ranks, rate / first[0], color=COLORS[1], marker="s", markersize=4.5, linewidth=1.3, label=MIXED)
    known = [(p.position, p.propensity, p.low, p.high) for p in curve.positions]
    x, y, low, high = np.array(known, dtype=float).reshape(-1, 4).T
    draw_interval(axes, x, y, low, high, color=COLORS[0], marker="o", markersize=4.5, label=ALONE)
    over_ranks(axes, [p.position for p in curve.positions])
    axes.set_ylabel("Relative to rank 1")
    axes.set_title(legible(f"Click rate and examination: {curve.estimator}"), fontsize="medium")
    draw_legend(axes)
    return ax


def _fitted(harvest: Harvest) -> CurveEstimator:
    from posbias.estimators import AllPairs, CrossFit

    return AllPairs(interval=None).fit(harvest) if harvest.kind == "pairs" else CrossFit(interval=None).fit(harvest)


def _propensity(estimate: CurveEstimator | Curve) -> FloatArray:
    return estimate.propensity_ if isinstance(estimate, CurveEstimator) else curve_of(estimate).propensity


def _plain_ticks(axes: Any) -> None:
    """Write ratios as numbers, not as powers of ten."""
    ticker = optional("matplotlib.ticker", "Pictures need")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(ticker.NullFormatter())
