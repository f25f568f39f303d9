"""The charts of a report."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from posbias._arrays import FloatArray
from posbias._plotstyle import MARKERS
from posbias._text import label, printable
from posbias.curves.curve import Curve, telling_segments
from posbias.estimators.base import connected_ranks
from posbias.judging.diagnostics import PairRatio
from posbias.plots.evidence import ALONE, MIXED, MOST_WRITTEN, STEEP, information, round_counts, widths
from posbias.progress import short as short_count
from posbias.reporting.drawing import (
    ABOVE,
    LEFT,
    Axis,
    Chart,
    Drawing,
    Frame,
    Series,
    Table,
    at_points,
    at_ranks,
    at_rows,
    axes,
    box,
    chart,
    curve_series,
    group,
    known,
    line,
    number_axis,
    path,
    plotted,
    rank_axis,
    short,
    text,
)
from posbias.reporting.report import Part, Weights, between, bracketed, interval, number, short_names, told

# So many ranks are drawn and told of, half of them the first.
_MOST_POSITIONS = 50
# So many curves fit a picture, and of so many ranks the intervals of several.
_MOST_CURVES, _MOST_RANKS = 8, 20
Levels = npt.NDArray[np.uint8]
# Cividis, which people see alike however they see colours, without its darkest blue, which is not told from an empty
# cell where the page is dark.
_SHADES = ("2f426d", "636670", "928d78", "c7b767", "fee838")
# How large the map is, in points, and how many cells of it a screen can show; beside it the shades, and how wide these.
_SIDE, _MOST_CELLS, _BESIDE, _WIDE = 250.0, 500, 10.0, 11.0
# So many ranks fit a table by their pairs.
_MOST_LINKED_RANKS = 20
# The pairs of ranks that are sure enough to tell anything.
_MOST_PAIRS = 50
# How high pictures are, in points, that are not as others: of pairs, of links and of weights.
_PAIRS, _LINKS, _WEIGHTS = 288.0, 185.0, 187.2


def thin_curve(curve: Curve) -> Curve:
    """Return a curve with no more ranks than there is room for, those of its segments likewise."""
    kept = spread(len(curve.positions))
    if len(kept) == len(curve.positions):
        return curve
    covariance = curve.covariance
    return replace(
        curve,
        positions=tuple(curve.positions[place] for place in kept),
        covariance=None if covariance is None else tuple(tuple(covariance[i][j] for j in kept) for i in kept),
        segments={key: thin_curve(part) for key, part in curve.segments.items()},
    )


def spread(ranks: int, most: int = _MOST_POSITIONS) -> list[int]:
    """Return places from 0: all of them or, where there are too many, the first and then every so many to the last.

    >>> spread(4), spread(100, most=6)
    ([0, 1, 2, 3], [0, 1, 2, 34, 67, 99])
    """
    if ranks <= most:
        return list(range(ranks))
    first = most // 2
    rest = most - first
    return [*range(first), *(first - 1 + round((ranks - first) * step / rest) for step in range(1, rest + 1))]


def thin_weights(weights: Weights) -> Weights:
    """Return weights with no more ranks than there is room for; what is told of all of them stays."""
    return replace(weights, ranks=tuple(weights.ranks[place] for place in spread(len(weights.ranks))))


def curve_chart(key: str, curve: Curve) -> Chart:
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
    found = [p for p in alone.positions if p.propensity is not None]
    return chart(
        key,
        "Examination by rank",
        f"How often each rank is seen, relative to rank 1: from 1 at rank 1 to {number(found[-1].propensity)} at rank "
        f"{found[-1].position}, with {curve.interval_name}.",
        Table(heads, tuple(rows)),
        _curves_drawn([curve_series(alone, alone.estimator, "c0", band=True), *_joint(alone, ends)], [alone]),
        at_ranks([p.position for p in alone.positions], [told(p, curve.level) for p in alone.positions]),
    )


def _curves_drawn(
    series: Sequence[Series], curves: Iterable[Curve], label: str = "Propensity relative to rank 1"
) -> Drawing:
    """Return curves by rank, without the ends of very wide intervals, which would make all else flat."""
    curves = list(curves)
    ranks = sorted({p.position for one in curves for p in one.positions})
    most = max(p.propensity or 0.0 for one in curves for p in one.positions)
    y = number_axis(label, (value for one in series for value in one.values), bottom=0.0, top=1.5 * most)
    return plotted(series, rank_axis(ranks), y)


def _joint(curve: Curve, ends: Sequence[tuple[float | None, float | None]]) -> list[Series]:
    """Return the two sides of the band that holds all of a curve, if there is one."""
    ranks = [p.position for p in curve.positions]
    low, high = (known(sides) for sides in zip(*ends, strict=True))
    named = f"joint {100 * (curve.level or 0):g}% band"
    both = ((named, low), ("", high))
    return [Series(name, "c0", ranks, side, line="dotted") for name, side in both if any(map(math.isfinite, side))]


def curves_chart(key: str, title: str, text: str, curves: Mapping[str, Curve]) -> Chart:
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
    return chart(
        key,
        title,
        text,
        Table(("rank", *curves), tuple(rows)),
        _curves_drawn(_side_by_side(cut), cut.values()),
        at_ranks(ranks, texts),
    )


def _bare(curve: Curve) -> Curve:
    """Return a curve without its intervals."""
    return replace(curve, positions=tuple(replace(p, low=None, high=None) for p in curve.positions))


def _side_by_side(curves: Mapping[str, Curve]) -> list[Series]:
    """Return curves so far apart that the intervals of one rank do not hide each other."""
    return [
        curve_series(one, name, f"c{place}", MARKERS[place], beside=0.12 * (place - (len(curves) - 1) / 2))
        for place, (name, one) in enumerate(curves.items())
    ]


def segment_curves(curve: Curve, most: int) -> dict[str, Curve]:
    """Return the curve of all and those of the segments that tell most."""
    whole = {"all": replace(curve, by=(), segments={})}
    # A segment may be called "all", too.
    return whole | {_unlike(label(key), whole): part for key, part in telling_segments(curve, most).items()}


def _unlike(name: str, others: Mapping[str, Curve]) -> str:
    return f'"{name}"' if name in others else name


def rates_chart(key: str, curve: Curve) -> Chart:
    """Return click rates beside the curve."""
    alone = replace(curve, by=(), segments={})
    rate = {p.position: p.clicks / p.impressions for p in alone.positions}
    first = rate.get(1) or float("nan")
    rows = [
        (f"{p.position}", f"{rate[p.position]:.2%}", number(rate[p.position] / first), number(p.propensity))
        for p in alone.positions
    ]
    texts = [f"Rank {k}\nclick rate {own}\nrelative to rank 1: {naive}\npropensity: {p}" for k, own, naive, p in rows]
    return chart(
        key,
        "Click rate and examination",
        "Click rates relative to rank 1, which mix how good results are with how often they are seen, beside the "
        "curve, which is the latter alone.",
        Table(("rank", "click rate", "relative to rank 1", "propensity"), tuple(rows)),
        _curves_drawn(
            [
                Series(MIXED, "c1", [*rate], [own / first for own in rate.values()], marker="s"),
                curve_series(alone, ALONE, "c0", band=True),
            ],
            [alone],
            "Relative to rank 1",
        ),
        at_ranks([p.position for p in alone.positions], texts),
    )


def sets_chart(key: str, part: Part) -> Chart:
    """Return the clicks in the interventional sets as a map."""
    clicks = part.sets
    ranks = [place + 1 for place in spread(len(clicks))]
    texts = [_most_compared(clicks[k - 1], k) for k in ranks]
    if len(ranks) <= _MOST_LINKED_RANKS:
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


def counts_map(counts: FloatArray, x_label: str, y_label: str) -> Drawing:
    """Return counts, (M, M), as a map from the first rank in the upper left; cells without any are empty."""
    ranks = range(1, len(counts) + 1)
    x, y = rank_axis(ranks, x_label), rank_axis(ranks, y_label)
    frame = Frame(x, Axis(y_label, y.high, y.low, y.ticks), LEFT, LEFT + _SIDE, ABOVE, ABOVE + _SIDE)
    if not counts.any():
        return Drawing(frame, "", axes(frame, grid=False))
    low, high = max(1.0, float(counts[counts > 0].min())), max(2.0, float(counts.max()))
    # More cells than can be seen are left out, evenly.
    kept = np.unique(np.linspace(0, len(counts) - 1, _MOST_CELLS).astype(int))
    shown = counts[np.ix_(kept, kept)]
    share = np.log(np.clip(shown, low, high) / low) / math.log(high / low)
    levels = np.where(shown > 0, 1 + np.rint(254 * share), 0).astype(np.uint8)
    words = "" if len(counts) > MOST_WRITTEN else _words(counts, frame, low, high)
    cells = _image(levels, frame.left, frame.top, _SIDE, _SIDE, "cells")
    return Drawing(frame, cells + words, axes(frame, grid=False) + _shades(frame, low, high))


def _words(counts: FloatArray, frame: Frame, low: float, high: float) -> str:
    # The colour on which black and white are read equally well.
    middle = low**0.65 * high**0.35
    return "".join(
        text(short_count(counts[k, j]), *_below(frame.at(j + 1, k + 1)), "light" if counts[k, j] > middle else "dark")
        for k, j in np.argwhere(counts > 0).tolist()
    )


def _below(point: tuple[float, float]) -> tuple[float, float]:
    """Return where words begin that are to have their middle at a point."""
    return point[0], point[1] + 2.6


def _image(levels: Levels, x: float, y: float, width: float, height: float, kind: str) -> str:
    data = base64.b64encode(_png(levels)).decode()
    return (
        f'<image class="{kind}" x="{short(x)}" y="{short(y)}" width="{short(width)}" height="{short(height)}" '
        f'preserveAspectRatio="none" href="data:image/png;base64,{data}"/>'
    )


def _png(levels: Levels) -> bytes:
    """Return shades, (rows, columns), as a PNG of one pixel each; 0 is see-through.

    >>> _png(np.array([[0, 255]], dtype=np.uint8))[:8]
    b'\\x89PNG\\r\\n\\x1a\\n'
    """
    anchors = np.array([[*bytes.fromhex(shade)] for shade in _SHADES])
    places = np.linspace(0, len(anchors) - 1, 255)
    colors = np.stack([np.interp(places, np.arange(len(anchors)), anchors[:, i]) for i in range(3)], axis=1)
    palette = bytes(3) + np.rint(colors).astype(np.uint8).tobytes()
    # Before each row stands how it was filtered: not.
    rows = np.pad(levels, ((0, 0), (1, 0))).tobytes()
    head = struct.pack(">IIBBBBB", levels.shape[1], levels.shape[0], 8, 3, 0, 0, 0)
    parts = ((b"IHDR", head), (b"PLTE", palette), (b"tRNS", b"\0"), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


def _shades(frame: Frame, low: float, high: float) -> str:
    """Return the shades beside a map, and what some of them stand for."""
    left, tall = frame.right + _BESIDE, frame.bottom - frame.top
    every = np.arange(255, 0, -1, dtype=np.uint8)[:, None]
    scale = Axis("", low, high, {}, log=True)
    ticks, words = "", ""
    for count in round_counts(low, high):
        y = frame.bottom - scale.share(count) * tall
        ticks += line([(left + _WIDE, y), (left + _WIDE + 3.5, y)])
        words += text(short_count(count).replace(".0", ""), left + _WIDE + 6, y + 3.5)
    return _image(every, left, frame.top, _WIDE, tall, "shades") + path("axis", ticks) + words


def graph_chart(key: str, part: Part) -> Chart:
    """Return the ranks and what links them."""
    clicks = part.sets
    reached = connected_ranks(clicks > 0)
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
            f"{one.other_rank}",
            number(one.ratio),
            between(one.low, one.high),
            number(one.expected),
            "off" if one.off_curve else "",
        )
        for one in shown
    ]
    texts = [
        f"Rank {one.other_rank} against {one.rank}\n{one.ratio:.3f} ({between(one.low, one.high)}) by their clicks\n"
        f"{one.expected:.3f} by the curve"
        for one in shown
    ]
    apart, rest = sum(one.off_curve for one in part.ratios), len(part.ratios) - len(shown)
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
        own = [one for one in ratios if one.off_curve == apart]
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
