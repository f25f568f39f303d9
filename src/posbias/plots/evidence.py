"""Draw the evidence behind a curve: click rates, pair ratios, intervention sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from posbias._arrays import FloatArray, IntArray
from posbias._optional import optional
from posbias._plotstyle import (
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
from posbias.curves.curve import Curve
from posbias.errors import EstimateError, HarvestError
from posbias.estimators.base import CurveEstimator, connected_ranks
from posbias.harvesting.harvest import Harvest
from posbias.judging.diagnostics import PairRatio, measure_pair_ratios, too_many_pairs
from posbias.learning.weights import curve_of
from posbias.progress import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The pairs of which most is known are drawn.
_MOST_PAIRS = 150
# The buckets that move a rank most stand out.
_HEAVY = 0.25
MIXED, ALONE = "click rate: examination and relevance", "propensity: examination alone"
# How high an arc is, in ranks, for each that it spans.
STEEP = 0.45
# Numbers are written into a map of up to so many ranks; links with less than this share of all are not drawn.
MOST_WRITTEN, _LEAST_SHARE = 12, 0.002


def pair_ratios(harvest: Harvest, estimate: CurveEstimator | Curve | None = None, ax: Axes | None = None) -> Axes:
    """Draw what each pair of ranks says of p_k'/p_k, with its interval, against what the curve says.

    If the model holds they lie on one line, but for chance.
    Without an estimate it is CrossFit's, or that of AllPairs where the harvest holds sums.
    """
    if not isinstance(harvest, Harvest):
        raise HarvestError(f"pair_ratios draws a Harvest, not a {type(harvest).__name__}.")
    fitted = _propensity(estimate if estimate is not None else _fitted(harvest))
    counts = harvest.interventions()
    if too_many_pairs(counts):
        raise HarvestError(f"The pairs of {harvest.max_rank} ranks are too many to draw with their intervals.")
    return draw_pair_ratios(measure_pair_ratios(counts, fitted), ax)


def _propensity(estimate: CurveEstimator | Curve) -> FloatArray:
    return estimate.propensity_ if isinstance(estimate, CurveEstimator) else curve_of(estimate).propensity


def _fitted(harvest: Harvest) -> CurveEstimator:
    from posbias.estimators import AllPairs, CrossFit

    return AllPairs(interval=None).fit(harvest) if harvest.kind == "pairs" else CrossFit(interval=None).fit(harvest)


def draw_pair_ratios(ratios: Sequence[PairRatio], ax: Axes | None = None) -> Axes:
    """Draw ratios of pairs of ranks, the surest of them, against what a curve says."""
    surest = ratios[:_MOST_PAIRS]
    ax = axes_of(ax, 5.2, 4.6)
    axes: Any = dressed(ax)
    looks = (False, COLORS[0], "o", "two ranks"), (True, ALARM, "D", "off by over three standard errors")
    for apart, color, marker, name in looks:
        own = [one for one in surest if one.off_curve == apart]
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


def _plain_ticks(axes: Any) -> None:
    """Write ratios as numbers, not as powers of ten."""
    ticker = optional("matplotlib.ticker", "Pictures need")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(ticker.NullFormatter())


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


def sets(harvest: Harvest | IntArray, ax: Axes | None = None) -> Axes:
    """Draw, as a map, the clicks at rank k on documents that are at k' too: what compares the two.

    In place of a harvest it may be what `intervention_sets` counted: pairs of query and document.
    """
    if isinstance(harvest, np.ndarray):
        if harvest.ndim != 2 or len({*harvest.shape}) > 1 or harvest.dtype.kind not in "iuf":
            raise HarvestError(f"Expected counts of M by M ranks, not {harvest.dtype} of the shape {harvest.shape}.")
        return draw_sets(np.asarray(harvest, dtype=np.float64), ax, of_pairs=True)
    return draw_sets(counted(harvest), ax)


def draw_sets(clicks: FloatArray, ax: Axes | None = None, *, of_pairs: bool = False) -> Axes:
    """Draw the clicks, or the pairs of query and document, of interventional sets as a map: (M, M)."""
    ax = axes_of(ax, 5.4, 4.5)
    axes: Any = ax
    # Its lines would strike out the numbers.
    axes.grid(visible=False)
    ranks = len(clicks)
    colors = optional("matplotlib.colors", "Pictures need")
    shown = np.ma.masked_where(clicks == 0, clicks)
    scale = colors.LogNorm(max(1.0, float(shown.min())), max(2.0, float(shown.max()))) if clicks.any() else None
    # Without its darkest blue, which is not told from an empty cell where the page is dark.
    shades = optional("matplotlib", "Pictures need").colormaps["cividis"](np.linspace(0.18, 1, 256))
    edges = np.arange(ranks + 1) + 0.5
    image = axes.pcolormesh(edges, edges, shown, cmap=colors.ListedColormap(shades), norm=scale)
    if scale is not None:
        bar = axes.figure.colorbar(image, ax=axes, fraction=0.05)
        bar.ax.set_title("Pairs" if of_pairs else "Clicks", fontsize="small")
        bar.set_ticks(round_counts(scale.vmin, scale.vmax), minor=False)
        bar.ax.yaxis.set_major_formatter(lambda count, _: short(count).replace(".0", ""))
        bar.minorticks_off()
    if ranks <= MOST_WRITTEN:
        # The colour on which black and white are read equally well.
        middle = scale.vmin**0.65 * scale.vmax**0.35 if scale else 0.0
        for k, j in zip(*np.nonzero(clicks), strict=True):
            ink = "black" if clicks[k, j] > middle else "white"
            axes.text(
                j + 1,
                k + 1,
                short(clicks[k, j]),
                ha="center",
                va="center",
                fontsize=7.5 if ranks <= 10 else 7,
                color=ink,
            )
    axes.invert_yaxis()
    axes.set_aspect("equal")
    rank_ticks(axes, list(range(1, ranks + 1)), both=True)
    axes.set_xlabel("Its other rank, k'")
    axes.set_ylabel("Rank of the document, k" if of_pairs else "Rank where it was clicked, k")
    axes.set_title(f"{'Sizes of' if of_pairs else 'Clicks in'} the interventional sets", fontsize="medium")
    return ax


def round_counts(low: float, high: float) -> list[float]:
    """Return numbers to write beside a scale: powers of ten, or what lies between where these are too few.

    >>> round_counts(3, 12000), round_counts(18, 86), round_counts(31, 38)
    ([10.0, 100.0, 1000.0, 10000.0], [20.0, 50.0], [31, 38])
    """
    for steps in ((1,), (1, 2, 5)):
        found = [step * 10.0**power for power in range(16) for step in steps if low <= step * 10**power <= high]
        if len(found) > 1:
            return found
    return [low, high]


def counted(harvest: object) -> FloatArray:
    """Return the clicks at rank k on what is at k' too: (M, M)."""
    if not isinstance(harvest, Harvest):
        raise HarvestError(f"This picture is of a Harvest, not of a {type(harvest).__name__}.")
    return harvest.pair_clicks()


def graph(harvest: Harvest, ax: Axes | None = None) -> Axes:
    """Draw the ranks in a row and an arc for each two that are compared, the wider the more is known from it.

    Arcs from which next to nothing is known are left out. Ranks that no chain of arcs with clicks on both sides leads
    to from rank 1 are hollow.
    """
    return draw_graph(counted(harvest), ax)


def draw_graph(clicks: FloatArray, ax: Axes | None = None) -> Axes:
    """Draw the ranks that interventional sets with so many clicks compare: (M, M)."""
    ax = axes_of(ax, 5.6, 3.0)
    axes: Any = ax
    axes.grid(visible=False)
    patches, paths = (optional(f"matplotlib.{name}", "Pictures need") for name in ("patches", "path"))
    # Two pieces are as round as an eye can see, and half as long in a page as those of matplotlib's own.
    half = paths.Path.arc(0, 180, n=2)
    drawn = widths(clicks)
    for (k, j), width in drawn.items():
        points = half.vertices * ((j - k) / 2, (j - k) * STEEP) + ((k + j) / 2, 0)
        arc = paths.Path(points, half.codes)
        style = {"lw": width, "color": COLORS[0], "alpha": 0.45, "fill": False, "capstyle": "butt"}
        axes.add_patch(patches.PathPatch(arc, **style))
    reached = connected_ranks(clicks > 0)
    ranks = np.arange(1, len(clicks) + 1)
    size = min(9.0, 240 / len(clicks))
    for inside, face in ((True, COLORS[0]), (False, "white")):
        own = ranks[reached == inside]
        style = {"markerfacecolor": face, "markeredgecolor": COLORS[0] if inside else ALARM, "linestyle": "none"}
        name = "compared with rank 1" if inside else "not compared with rank 1"
        if len(own):
            axes.plot(own, np.zeros(len(own)), marker="o", markersize=size, label=name, zorder=3, **style)
    rank_ticks(axes, ranks.tolist())
    axes.set_xlim(0.3, len(clicks) + 0.7)
    highest = max((STEEP * (j - k) for k, j in drawn), default=1.0)
    axes.set_ylim(-0.12 * highest, 1.35 * highest)
    axes.set_yticks([])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("Rank")
    axes.set_title("What links the ranks", fontsize="medium")
    draw_legend(axes, loc="upper right")
    return ax


def widths(clicks: FloatArray) -> dict[tuple[int, int], float]:
    """Return how wide the arc is, in points, of each two ranks (k < k') from which enough is known to draw it."""
    both = information(clicks)
    known = np.triu(both, 1)
    # What is known of a rank best is drawn, however little that is.
    best = (both > 0) & (both == both.max(axis=1, keepdims=True))
    drawn = (known >= _LEAST_SHARE * max(known.sum(), 1e-300)) | np.triu(best | best.T, 1)
    return {(k + 1, j + 1): float(0.4 + 9 * np.sqrt(known[k, j] / known.max())) for k, j in np.argwhere(drawn).tolist()}


def information(clicks: FloatArray) -> FloatArray:
    """Return what is known of each two ranks by their clicks: the inverse variance of a log ratio of two counts."""
    return np.divide(clicks * clicks.T, clicks + clicks.T, out=np.zeros_like(clicks), where=clicks * clicks.T > 0)
