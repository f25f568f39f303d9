"""What compares ranks: the interventional sets as a map, and the ranks with what links them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from posbias.arrays import FloatArray, IntArray
from posbias.errors import HarvestError
from posbias.estimators.rank_links import component
from posbias.extras import optional
from posbias.harvesting.harvests import Harvest
from posbias.pictures import ALARM, COLORS, axes_of, draw_legend, rank_ticks
from posbias.progress import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# How high an arc is, in ranks, for each that it spans.
STEEP = 0.45
# Numbers are written into a map of up to so many ranks; links with less than this share of all are not drawn.
MOST_WRITTEN, _LEAST_SHARE = 12, 0.002


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
    reached = component(clicks > 0)
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


def information(clicks: FloatArray) -> FloatArray:
    """Return what is known of each two ranks by their clicks: the inverse variance of a log ratio of two counts."""
    return np.divide(clicks * clicks.T, clicks + clicks.T, out=np.zeros_like(clicks), where=clicks * clicks.T > 0)


def widths(clicks: FloatArray) -> dict[tuple[int, int], float]:
    """Return how wide the arc is, in points, of each two ranks (k < k') from which enough is known to draw it."""
    both = information(clicks)
    known = np.triu(both, 1)
    # What is known of a rank best is drawn, however little that is.
    best = (both > 0) & (both == both.max(axis=1, keepdims=True))
    drawn = (known >= _LEAST_SHARE * max(known.sum(), 1e-300)) | np.triu(best | best.T, 1)
    return {(k + 1, j + 1): float(0.4 + 9 * np.sqrt(known[k, j] / known.max())) for k, j in np.argwhere(drawn).tolist()}


def counted(harvest: object) -> FloatArray:
    """Return the clicks at rank k on what is at k' too: (M, M)."""
    if not isinstance(harvest, Harvest):
        raise HarvestError(f"This picture is of a Harvest, not of a {type(harvest).__name__}.")
    return harvest.set_clicks()


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
