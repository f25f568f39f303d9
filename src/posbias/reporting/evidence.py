"""What a curve rests on, as pictures with their tables: sets, links, pairs of ranks, estimators, segments, weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from posbias.curves.curve import Curve
from posbias.estimators.rank_links import component
from posbias.pictures import COLORS, dressed, rank_ticks
from posbias.plots.evidence import click_rates, draw_pair_ratios
from posbias.plots.links import draw_graph, draw_sets
from posbias.plots.overlays import curve as draw_curve
from posbias.plots.overlays import curves as draw_curves
from posbias.reporting.charts import Chart, Table, at_points, at_ranks, at_rows, draw
from posbias.reporting.phrases import between, bracketed, interval, number, short_names, told
from posbias.reporting.reports import Part
from posbias.reporting.svgs import Styles
from posbias.reporting.thinning import spread
from posbias.reporting.uses import Weights
from posbias.wording import label, printable

# So many curves fit a picture, and of so many ranks the intervals of several.
_MOST_CURVES, _MOST_RANKS = 8, 20
# The pairs of ranks that are sure enough to tell anything.
_MOST_PAIRS = 50
# The cells of larger maps are drawn as one image: each by itself would take more room than the rest of the page.
_MOST_CELLS = 400


def curve_chart(key: str, curve: Curve, styles: Styles) -> Chart:
    """Return the curve itself, with its intervals and the band that holds all of it."""
    alone = replace(curve, by=(), segments={})
    joint = curve.interval_by == "jackknife" and curve.covariance is not None
    ends = alone.joint_ends() if joint else [(None, None)] * len(alone.positions)
    heads = ("rank", "propensity", "interval", *(["joint band"] if joint else []), "impressions", "clicks", "note")
    rows = [
        (
            f"{p.position}",
            number(p.propensity),
            interval(p),
            *([between(*band)] if joint else []),
            f"{p.impressions:,}",
            f"{p.clicks:,}",
            p.reason or "",
        )
        for p, band in zip(alone.positions, ends, strict=True)
    ]
    known = [p for p in alone.positions if p.propensity is not None]
    return draw(
        key,
        "Examination by rank",
        f"How often each rank is seen, relative to rank 1: from 1 at rank 1 to {number(known[-1].propensity)} at rank "
        f"{known[-1].position}, with {curve.interval_name}.",
        Table(heads, tuple(rows)),
        styles,
        lambda axes: _bounded(draw_curve(alone, axes, joint=joint), [alone]),
        at_ranks([p.position for p in alone.positions], [told(p, curve.level) for p in alone.positions]),
    )


def sets_chart(key: str, part: Part, styles: Styles) -> Chart:
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

    def paint(axes: Any) -> None:
        draw_sets(clicks, axes)
        for mesh in axes.collections:
            mesh.set_rasterized(clicks.size > _MOST_CELLS)
        for bar in axes.figure.axes[1:]:
            # The title of the picture says it, and above it there is no room.
            bar.set_title("")
        # On cells, whose colours are the same in the dark.
        for text in axes.texts:
            text.set_color("#010101" if text.get_color() == "black" else "#fefefe")

    return draw(
        key,
        "Clicks in the interventional sets",
        "Clicks at rank k on documents that are at rank k' too, by another ranker or at another time: what compares "
        "the two ranks.",
        Table(heads, tuple(rows)),
        styles,
        paint,
        at_rows(ranks, texts),
        height=4.4,
        right=0.5,
    )


def _most_compared(clicks: Any, k: int) -> str:
    order = [int(j) for j in np.argsort(-clicks, kind="stable")[:3] if clicks[j] > 0]
    if not order:
        return f"Rank {k}\nno click on a document that is at another rank too"
    most = ", ".join(f"{clicks[j]:,.0f} at {j + 1}" for j in order)
    return f"Rank {k}\n{clicks.sum():,.0f} clicks on documents at other ranks too\nmost: {most}"


def graph_chart(key: str, part: Part, styles: Styles) -> Chart:
    """Return the ranks and what links them."""
    clicks = part.sets
    reached = component(clicks > 0)
    known = np.divide(clicks * clicks.T, clicks + clicks.T, out=np.zeros_like(clicks), where=clicks * clicks.T > 0)
    share = known / np.maximum(known.sum(axis=1, keepdims=True), 1e-300)
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
    return draw(
        key,
        "What links the ranks",
        "Ranks in a row, with an arc between each two that the same documents are shown at; the wider, the more is "
        f"known, and the faintest are left out. {linked} linked to rank 1.",
        Table(("rank", "compared with rank 1", "linked ranks", "most of it by ranks"), tuple(rows)),
        styles,
        lambda axes: draw_graph(clicks, axes),
        at_ranks([place + 1 for place in places], texts),
        height=2.8,
    )


def ratios_chart(key: str, part: Part, styles: Styles) -> Chart:
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
    return draw(
        key,
        "Pairs of ranks against the curve",
        f"What each of {len(part.ratios):,} pairs of ranks says by itself, against what the curve says of it. They lie "
        f"on one line if one curve holds for all; {off} off by over three standard errors."
        + (f" The {rest:,} least sure are not drawn." if rest else ""),
        Table(("rank k", "rank k'", "p_k'/p_k by clicks", "interval", "by the curve", "note"), tuple(rows)),
        styles,
        lambda axes: draw_pair_ratios(shown, axes).set_xlabel("p_k' / p_k by the curve"),
        at_points([(one.expected, one.ratio) for one in shown], texts),
        height=4.0,
    )


def curves_chart(key: str, title: str, text: str, curves: Mapping[str, Curve], styles: Styles) -> Chart:
    """Return several curves over each other."""
    ranks = sorted({p.position for one in curves.values() for p in one.positions})
    drawn = dict(list(curves.items())[:_MOST_CURVES])
    thin = len(ranks) > _MOST_RANKS
    cut = dict(zip(short_names(drawn), map(_bare, drawn.values()) if thin else drawn.values(), strict=True))
    at = {name: {p.position: p for p in one.positions} for name, one in curves.items()}

    def cell(name: str, rank: int) -> str:
        p = at[name].get(rank)
        return "–" if p is None or p.propensity is None else f"{p.propensity:.3f}{bracketed(p)}"

    rows = [(f"{rank}", *(cell(name, rank) for name in curves)) for rank in ranks]
    texts = [
        "\n".join([f"Rank {rank}", *(f"{printable(name)}: {cell(name, rank)}" for name in drawn)]) for rank in ranks
    ]
    return draw(
        key,
        title,
        text,
        Table(("rank", *curves), tuple(rows)),
        styles,
        lambda axes: _bounded(draw_curves(cut, axes), cut.values()),
        at_ranks(ranks, texts),
    )


def _bare(curve: Curve) -> Curve:
    """Return a curve without its intervals."""
    return replace(curve, positions=tuple(replace(p, low=None, high=None) for p in curve.positions))


def _bounded(axes: Any, curves: Iterable[Curve]) -> None:
    """Keep the ends of very wide intervals out of a picture, which would make all else flat."""
    most = max(p.propensity or 0.0 for one in curves for p in one.positions)
    axes.set_ylim(0, min(axes.get_ylim()[1], 1.5 * most))


def segment_curves(curve: Curve, most: int) -> dict[str, Curve]:
    """Return the curve of all and those of the segments with most page views."""
    parts = sorted(curve.segments.items(), key=lambda item: -sum(item[1].page_views.values()))[:most]
    chosen = {key for key, _ in parts}
    whole = {"all": replace(curve, by=(), segments={})}
    # A segment may be called "all", too.
    return whole | {_unlike(label(key), whole): part for key, part in curve.segments.items() if key in chosen}


def _unlike(name: str, others: Mapping[str, Curve]) -> str:
    return f'"{name}"' if name in others else name


def rates_chart(key: str, curve: Curve, styles: Styles) -> Chart:
    """Return click rates beside the curve."""
    alone = replace(curve, by=(), segments={})
    rate = {p.position: p.clicks / p.impressions for p in alone.positions}
    first = rate.get(1) or float("nan")
    rows = [
        (f"{p.position}", f"{rate[p.position]:.2%}", number(rate[p.position] / first), number(p.propensity))
        for p in alone.positions
    ]
    texts = [f"Rank {k}\nclick rate {own}\nrelative to rank 1: {naive}\npropensity: {p}" for k, own, naive, p in rows]
    return draw(
        key,
        "Click rate and examination",
        "Click rates relative to rank 1, which mix how good results are with how often they are seen, beside the "
        "curve, which is the latter alone.",
        Table(("rank", "click rate", "relative to rank 1", "propensity"), tuple(rows)),
        styles,
        lambda axes: click_rates(alone, axes),
        at_ranks([p.position for p in alone.positions], texts),
    )


def weights_chart(key: str, weights: Weights, styles: Styles) -> Chart:
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

    def paint(axes: Any) -> None:
        dressed(axes).set_axisbelow(True)
        known = [(one.rank, one.weight) for one in weights.ranks if one.weight is not None]
        axes.bar(*zip(*known, strict=True), color=COLORS[0], width=0.7)
        rank_ticks(axes, [one.rank for one in weights.ranks])
        axes.set_xlabel("Rank")
        axes.set_ylabel("Weight of a click")

    return draw(
        key,
        "Weight of a click by rank",
        f"One over the propensity, no more than {weights.cap:g}: what a click at each rank counts when a ranker learns "
        f"from clicks{', on average over segments, each by its own curve' if weights.by else ''}.",
        Table(("rank", "weight", "clicks", "note"), tuple(rows)),
        styles,
        paint,
        at_ranks([one.rank for one in weights.ranks], texts),
        height=2.6,
    )
