"""What a curve rests on, as pictures with their tables: sets, links, pairs of ranks, estimators, segments, weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from posbias.estimators.rank_links import component
from posbias.judging.pair_ratios import PairRatio
from posbias.plots.links import STEEP, information, widths
from posbias.reporting.charts import Chart, Table, at_points, at_ranks, at_rows, chart
from posbias.reporting.drawings import Drawing, Frame, Series, plotted
from posbias.reporting.maps import counts_map
from posbias.reporting.phrases import between, number
from posbias.reporting.reports import Part
from posbias.reporting.scales import Axis, number_axis, rank_axis
from posbias.reporting.svgs import box, group, path, short
from posbias.reporting.thinning import spread
from posbias.reporting.uses import Weights

# So many ranks fit a table by their pairs.
_MOST_RANKS = 20
# The pairs of ranks that are sure enough to tell anything.
_MOST_PAIRS = 50
# How high pictures are, in points, that are not as others: of pairs, of links and of weights.
_PAIRS, _LINKS, _WEIGHTS = 288.0, 185.0, 187.2


def sets_chart(key: str, part: Part) -> Chart:
    """Return the clicks in the interventional sets as a map."""
    clicks = part.sets
    ranks = [place + 1 for place in spread(len(clicks))]
    texts = [_most_compared(clicks[k - 1], k) for k in ranks]
    if len(ranks) <= _MOST_RANKS:
        heads = ("k \\ k'", *map(str, ranks))
        rows = [(f"{k}", *("" if k == j else f"{clicks[k - 1, j - 1]:,.0f}" for j in ranks)) for k in ranks]
    else:
        heads = ("rank", "clicks")
        rows = [(f"{k}", "; ".join(text.split("\n")[1:])) for k, text in zip(ranks, texts, strict=True)]

    return chart(
        key,
        "Clicks in the interventional sets",
        "Clicks at rank k on documents that are at rank k' too, by another ranker or at another time: what compares "
        "the two ranks.",
        Table(heads, tuple(rows)),
        counts_map(clicks, "Its other rank, k'", "Rank where it was clicked, k"),
        at_rows(ranks, texts),
    )


def _most_compared(clicks: Any, k: int) -> str:
    order = [int(j) for j in np.argsort(-clicks, kind="stable")[:3] if clicks[j] > 0]
    if not order:
        return f"Rank {k}\nno click on a document that is at another rank too"
    most = ", ".join(f"{clicks[j]:,.0f} at {j + 1}" for j in order)
    return f"Rank {k}\n{clicks.sum():,.0f} clicks on documents at other ranks too\nmost: {most}"


def graph_chart(key: str, part: Part) -> Chart:
    """Return the ranks and what links them."""
    clicks = part.sets
    reached = component(clicks > 0)
    told_by = information(clicks)
    share = told_by / np.maximum(told_by.sum(axis=1, keepdims=True), 1e-300)
    rows, texts = [], []
    places = spread(len(clicks))
    for k in places:
        order = [int(j) for j in np.argsort(-share[k], kind="stable")[:3] if share[k, j] > 0]
        links = ", ".join(f"{j + 1} ({share[k, j]:.0%})" for j in order)
        linked = "yes" if reached[k] else "no"
        rows.append((f"{k + 1}", linked, f"{int((share[k] > 0).sum())}", links or "–"))
        texts.append(f"Rank {k + 1}\n{'' if reached[k] else 'not '}compared with rank 1\nmostly by: {links or 'none'}")
    apart = int((~reached).sum())
    linked = "Every rank is" if not apart else "1 rank is not" if apart == 1 else f"{apart} ranks are not"
    return chart(
        key,
        "What links the ranks",
        "Ranks in a row, with an arc between each two that the same documents are shown at; the wider, the more is "
        f"known, and the faintest are left out. {linked} linked to rank 1.",
        Table(("rank", "compared with rank 1", "linked ranks", "most of it by ranks"), tuple(rows)),
        _links_drawn(clicks, reached),
        at_ranks([place + 1 for place in places], texts),
    )


def _links_drawn(clicks: Any, reached: Any) -> Drawing:
    """Return the ranks in a row, those hollow that no chain of arcs leads to from rank 1, and an arc for each link."""
    looks = (True, "c0", "compared with rank 1"), (False, "alarm", "not compared with rank 1")
    size = min(9.0, 240 / len(clicks))
    dots = []
    for inside, color, name in looks:
        own = (np.flatnonzero(reached == inside) + 1).tolist()
        if own:
            zeros = [0.0] * len(own)
            dots.append(Series(name, color, own, zeros, marker="o", line="", hollow=not inside, size=size))
    arcs = widths(clicks)
    highest = max((STEEP * (j - k) for k, j in arcs), default=1.0)
    y = Axis("", -0.12 * highest, 1.05 * highest, {})

    def behind(frame: Frame) -> str:
        shapes = []
        for (k, j), width in arcs.items():
            (left, bottom), (right, _), (_, top) = (frame.at(*at) for at in ((k, 0), (j, 0), (k, STEEP * (j - k))))
            round_ = f"A{short((right - left) / 2)} {short(bottom - top)} 0 0 1"
            outline = f"M{short(left)} {short(bottom)}{round_} {short(right)} {short(bottom)}"
            shapes.append(path("arc", outline, stroke_width=short(width)))
        return group("c0", shapes)

    return plotted(dots, rank_axis(range(1, len(clicks) + 1)), y, height=_LINKS, grid=False, behind=behind)


def ratios_chart(key: str, part: Part) -> Chart:
    """Return pairs of ranks against the curve."""
    shown = part.ratios[:_MOST_PAIRS]
    rows = [
        (
            f"{one.rank}",
            f"{one.other}",
            number(one.ratio),
            between(one.low, one.high),
            number(one.expected),
            "off" if one.apart else "",
        )
        for one in shown
    ]
    texts = [
        f"Rank {one.other} against {one.rank}\n{one.ratio:.3f} ({between(one.low, one.high)}) by their clicks\n"
        f"{one.expected:.3f} by the curve"
        for one in shown
    ]
    apart, rest = sum(one.apart for one in part.ratios), len(part.ratios) - len(shown)
    off = "none is" if not apart else "1 is" if apart == 1 else f"{apart:,} are"
    return chart(
        key,
        "Pairs of ranks against the curve",
        f"What each of {len(part.ratios):,} pairs of ranks says by itself, against what the curve says of it. They lie "
        f"on one line if one curve holds for all; {off} off by over three standard errors."
        + (f" The {rest:,} least sure are not drawn." if rest else ""),
        Table(("rank k", "rank k'", "p_k'/p_k by clicks", "interval", "by the curve", "note"), tuple(rows)),
        _ratios_drawn(shown),
        at_points([(one.expected, one.ratio) for one in shown], texts),
    )


def _ratios_drawn(ratios: Sequence[PairRatio]) -> Drawing:
    """Return what two ranks say by themselves against what the curve says, and the line on which both say the same."""
    expected = [one.expected for one in ratios]
    ends = [min(expected), max(expected)]
    series = [Series("as the curve says", "ink", ends, ends, line="dashed")]
    looks = (False, "c0", "o", "two ranks"), (True, "alarm", "D", "off by over three standard errors")
    for apart, color, marker, name in looks:
        own = [one for one in ratios if one.apart == apart]
        if own:
            low, high = ([getattr(one, end) for one in own] for end in ("low", "high"))
            x, y = [one.expected for one in own], [one.ratio for one in own]
            series.append(Series(name, color, x, y, low, high, marker, line="", size=3.5))
    x_axis = number_axis("p_k' / p_k by the curve", expected, log=True)
    values = (value for one in series for value in one.values)
    return plotted(series, x_axis, number_axis("by the clicks of the pair alone", values, log=True), height=_PAIRS)


def weights_chart(key: str, weights: Weights) -> Chart:
    """Return the weight of a click at each rank."""
    rows = [
        (
            f"{one.rank}",
            "–" if one.weight is None else f"{one.weight:.3f}",
            f"{one.clicks:,}",
            "capped" if one.capped else "",
        )
        for one in weights.ranks
    ]
    texts = [
        f"Rank {one.rank}\n"
        + ("no weight" if one.weight is None else f"a click counts {one.weight:.2f}{' (capped)' * one.capped}")
        + f"\n{one.clicks:,} clicks"
        for one in weights.ranks
    ]

    return chart(
        key,
        "Weight of a click by rank",
        f"One over the propensity, no more than {weights.cap:g}: what a click at each rank counts when a ranker learns "
        f"from clicks{', on average over segments, each by its own curve' if weights.by else ''}.",
        Table(("rank", "weight", "clicks", "note"), tuple(rows)),
        _weights_drawn(weights),
        at_ranks([one.rank for one in weights.ranks], texts),
    )


def _weights_drawn(weights: Weights) -> Drawing:
    """Return the weights as columns."""
    found = [(one.rank, one.weight) for one in weights.ranks if one.weight is not None]

    def columns(frame: Frame) -> str:
        outlines = ""
        for rank, weight in found:
            (left, bottom), (right, top) = frame.at(rank - 0.35, 0), frame.at(rank + 0.35, weight)
            outlines += box(left, top, right - left, bottom - top)
        return group("c0", [path("dot", outlines)])

    y = number_axis("Weight of a click", (weight for _, weight in found), bottom=0.0)
    return plotted([], rank_axis([one.rank for one in weights.ranks]), y, height=_WEIGHTS, behind=columns)
