"""Draw the evidence behind a curve: click rates, pairs of ranks, intervention sets, buckets of queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from posbias._arrays import FloatArray, IntArray
from posbias._charts import ARC_HEIGHT, Axis, Chart, Rule, Series, count_map, number_axis, rank_axis
from posbias._matplotlib import draw
from posbias.curves.curve import Curve, curve_series, propensity_chart
from posbias.errors import CurveError, EstimateError, HarvestError
from posbias.estimators.base import CurveEstimator, connected_ranks
from posbias.harvesting.harvest import Harvest
from posbias.judging.diagnostics import PairRatio, measure_pair_ratios, too_many_pairs
from posbias.learning.weights import curve_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The largest number of pairs of ranks in a chart, the most precise ones.
_MOST_PAIRS = 150
# A bucket that makes up more than this share of the variance of a rank is marked.
_LARGE_SHARE = 0.25
# So many links of each rank are drawn, the most precise ones: more arcs would hide each other.
_LINKS = 2


# ---- Click rates


def click_rates(estimate: CurveEstimator | Curve, ax: Axes | None = None) -> Axes:
    """Draw click rates relative to rank 1, which mix relevance and examination, beside the curve, which does not.

    Arguments:
        estimate (Curve or fitted estimator): the curve, which has the click rates too.
        ax (Axes, default None): where to draw; None for a new figure.
    """
    return draw(click_rates_chart(curve_of(estimate)), ax)


def click_rates_chart(curve: Curve) -> Chart:
    """Return the chart of click rates beside the curve."""
    if not all(p.impressions for p in curve.positions):
        raise CurveError(
            "The curve has no impressions, so it has no click rates. Give the estimate of a log or harvest."
        )
    rates = {p.position: p.clicks / p.impressions for p in curve.positions}
    series = [curve_series(curve, "propensity: examination alone", band=True)]
    if first := rates.get(1):
        relative = [rate / first for rate in rates.values()]
        series.insert(0, Series("click rate: examination and relevance", 1, [*rates], relative, marker="s"))
    title = f"Click rate and examination: {curve.estimator}"
    return propensity_chart(title, series, [curve], label="Relative to rank 1")


# ---- Pairs of ranks


def pair_ratios(harvest: Harvest, estimate: CurveEstimator | Curve | None = None, ax: Axes | None = None) -> Axes:
    """Draw the ratio p_k' / p_k by the clicks of each pair of ranks, with its interval, against that by the curve.

    If the position-based model holds, all pairs lie on one line up to chance.

    Arguments:
        harvest (Harvest): the clicks.
        estimate (Curve or fitted estimator, default None): the curve; None for that of CrossFit, or of AllPairs where
            the harvest has sums only.
        ax (Axes, default None): where to draw; None for a new figure.
    """
    if not isinstance(harvest, Harvest):
        raise HarvestError(f"pair_ratios draws a Harvest, not a {type(harvest).__name__}.")
    propensity = _propensity(estimate if estimate is not None else _fit(harvest))
    counts = harvest.interventions()
    if too_many_pairs(counts):
        raise HarvestError(f"The pairs of {harvest.max_rank} ranks are too many to draw with their intervals.")
    return draw(pair_ratios_chart(measure_pair_ratios(counts, propensity), _MOST_PAIRS), ax)


def _propensity(estimate: CurveEstimator | Curve) -> FloatArray:
    return estimate.propensity_ if isinstance(estimate, CurveEstimator) else curve_of(estimate).propensity


def _fit(harvest: Harvest) -> CurveEstimator:
    from posbias.estimators import AllPairs, CrossFit

    return AllPairs(interval=None).fit(harvest) if harvest.kind == "pairs" else CrossFit(interval=None).fit(harvest)


def pair_ratios_chart(ratios: Sequence[PairRatio], most: int) -> Chart:
    """Return the chart of pairs of ranks against the curve, without the least precise beyond a number of them."""
    shown = ratios[:most]
    expected = [one.expected for one in shown] or [0.1, 1.0]
    ends = [min(expected), max(expected)]
    series = [Series("equal", "ink", ends, ends, line="dashed")]
    for off_curve, color, marker, name in (
        (False, 0, "o", "pair of ranks"),
        (True, "alarm", "D", "differs by over three standard errors"),
    ):
        rows = [one for one in shown if one.off_curve == off_curve]
        if rows:
            x, y, low, high = ([getattr(r, field) for r in rows] for field in ("expected", "ratio", "low", "high"))
            series.append(Series(name, color, x, y, low, high, marker, line="", size=3.5))
    rest = len(ratios) - len(shown)
    return Chart(
        "Pairs of ranks against the curve" + (f" ({rest} less precise not drawn)" if rest else ""),
        number_axis("Ratio of propensities by the curve", expected, log=True),
        number_axis("Ratio by the clicks of the pair alone", (v for one in series for v in one.values), log=True),
        series,
        height=4.6,
    )


# ---- Buckets of queries


def influence(fitted: CurveEstimator, ax: Axes | None = None) -> Axes:
    """Draw how much each propensity changes without each bucket of queries; buckets with a large effect are marked.

    Arguments:
        fitted (fitted estimator): an estimator with intervals from buckets of queries.
        ax (Axes, default None): where to draw; None for a new figure.
    """
    deletions = fitted.deletions_ if isinstance(fitted, CurveEstimator) else None
    if deletions is None:
        raise EstimateError("influence draws a fitted estimator that has intervals, made of buckets of queries.")
    return draw(influence_chart(fitted.name, fitted.propensity_, deletions), ax)


def influence_chart(name: str, propensity: FloatArray, deletions: FloatArray) -> Chart:
    """Return the chart of the change of each propensity without each bucket: (buckets, M)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.log(deletions) - np.log(propensity)
    change[:, 0] = np.nan
    variance = np.maximum(np.nansum(change**2, axis=0, where=np.isfinite(change)), 1e-300)
    large, finite = change**2 / variance > _LARGE_SHARE, np.isfinite(change)
    series = []
    for places, look in (
        (finite & ~large, Series("", 0, [], [], marker="o", line="", size=2.5, opacity=0.35)),
        (
            finite & large,
            Series(f"over {_LARGE_SHARE:.0%} of the rank's variance", "alarm", [], [], marker="D", line=""),
        ),
    ):
        if places.any():
            x, y = (np.nonzero(places)[1] + 1).tolist(), (100 * np.expm1(change[places])).tolist()
            series.append(replace(look, x=x, y=y))
    return Chart(
        f"Influence of each bucket of queries: {name}",
        rank_axis(range(1, len(propensity) + 1)),
        number_axis("Change of p without one bucket, %", (v for one in series for v in one.values)),
        series,
        [Rule("y", 0.0, "solid")],
    )


# ---- Intervention sets


def sets(harvest: Harvest | IntArray, ax: Axes | None = None) -> Axes:
    """Draw a map of the clicks at rank k on documents that are at rank k' too: the data that compare the two ranks.

    Arguments:
        harvest (Harvest or array): a harvest, or the pairs of query and document that `intervention_sets` counted.
        ax (Axes, default None): where to draw; None for a new figure.
    """
    if isinstance(harvest, np.ndarray):
        if harvest.ndim != 2 or len({*harvest.shape}) > 1 or harvest.dtype.kind not in "iuf":
            raise HarvestError(f"Expected counts of M by M ranks, not {harvest.dtype} of the shape {harvest.shape}.")
        return draw(sets_chart(np.asarray(harvest, dtype=np.float64), of_pairs=True), ax)
    return draw(sets_chart(_set_clicks(harvest)), ax)


def sets_chart(counts: FloatArray, *, of_pairs: bool = False) -> Chart:
    """Return the chart of the clicks, or the pairs of query and document, in intervention sets: (M, M)."""
    ranks = range(1, len(counts) + 1)
    y = rank_axis(ranks, "Rank of the document, k" if of_pairs else "Rank where it was clicked, k")
    return Chart(
        f"{'Sizes of' if of_pairs else 'Clicks in'} the intervention sets",
        rank_axis(ranks, "Its other rank, k'"),
        replace(y, low=y.high, high=y.low),
        cells=count_map(counts, "Pairs" if of_pairs else "Clicks"),
        height=4.5,
    )


def _set_clicks(harvest: object) -> FloatArray:
    if not isinstance(harvest, Harvest):
        raise HarvestError(f"This picture is of a Harvest, not of a {type(harvest).__name__}.")
    return harvest.pair_clicks()


def graph(harvest: Harvest, ax: Axes | None = None) -> Axes:
    """Draw the ranks in a row, with an arc between two ranks that are compared, the wider the more precisely.

    Each rank has its two most precise arcs. A rank is hollow if no chain of clicks connects it with rank 1.

    Arguments:
        harvest (Harvest): the clicks.
        ax (Axes, default None): where to draw; None for a new figure.
    """
    return draw(graph_chart(_set_clicks(harvest)), ax)


def graph_chart(clicks: FloatArray) -> Chart:
    """Return the chart of the ranks that the clicks in intervention sets compare: (M, M)."""
    connected = connected_ranks(clicks > 0)
    size = min(9.0, 240 / len(clicks))
    arcs = _arc_widths(clicks)
    series = []
    for inside, color, name in ((True, 0, "compared with rank 1"), (False, "alarm", "not compared with rank 1")):
        ranks = (np.flatnonzero(connected == inside) + 1).tolist()
        if ranks:
            zeros = [0.0] * len(ranks)
            series.append(Series(name, color, ranks, zeros, marker="o", line="", hollow=not inside, size=size))
    highest = max((ARC_HEIGHT * (last - first) for first, last in arcs), default=1.0)
    return Chart(
        "Comparisons that link the ranks",
        rank_axis(range(1, len(clicks) + 1)),
        Axis("", -0.12 * highest, 1.05 * highest, lambda low, high: {}),
        series,
        arcs=arcs,
        legend="top",
        height=3.0,
    )


def _arc_widths(clicks: FloatArray) -> dict[tuple[int, int], float]:
    """Return the width in points of the arc between two ranks, first < last, for the best links of each rank."""
    both = information(clicks)
    best = np.argsort(-both, axis=1, kind="stable")[:, :_LINKS]
    drawn = np.zeros(both.shape, dtype=bool)
    np.put_along_axis(drawn, best, True, axis=1)
    drawn = np.triu((drawn | drawn.T) & (both > 0), 1)
    return {(k + 1, j + 1): float(0.4 + 6 * np.sqrt(both[k, j] / both.max())) for k, j in np.argwhere(drawn).tolist()}


def information(clicks: FloatArray) -> FloatArray:
    """Return the information about each pair of ranks: the inverse variance of the log ratio of two counts."""
    return np.divide(clicks * clicks.T, clicks + clicks.T, out=np.zeros_like(clicks), where=clicks * clicks.T > 0)
