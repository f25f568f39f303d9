"""Curves as pictures with their tables: the answer, several over each other, and click rates beside one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from posbias.curves.curve import Curve
from posbias.curves.reasons import telling_segments
from posbias.pictures import MARKERS
from posbias.plots.evidence import ALONE, MIXED
from posbias.reporting.charts import Chart, Table, at_ranks, chart
from posbias.reporting.drawings import Drawing, Series, curve_series, known, plotted
from posbias.reporting.phrases import between, bracketed, interval, number, short_names, told
from posbias.reporting.scales import number_axis, rank_axis
from posbias.wording import label, printable

# So many curves fit a picture, and of so many ranks the intervals of several.
_MOST_CURVES, _MOST_RANKS = 8, 20


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


def _joint(curve: Curve, ends: Sequence[tuple[float | None, float | None]]) -> list[Series]:
    """Return the two sides of the band that holds all of a curve, if there is one."""
    ranks = [p.position for p in curve.positions]
    low, high = (known(sides) for sides in zip(*ends, strict=True))
    named = f"joint {100 * (curve.level or 0):g}% band"
    both = ((named, low), ("", high))
    return [Series(name, "c0", ranks, side, line="dotted") for name, side in both if any(map(math.isfinite, side))]


def _curves_drawn(
    series: Sequence[Series], curves: Iterable[Curve], label: str = "Propensity relative to rank 1"
) -> Drawing:
    """Return curves by rank, without the ends of very wide intervals, which would make all else flat."""
    curves = list(curves)
    ranks = sorted({p.position for one in curves for p in one.positions})
    most = max(p.propensity or 0.0 for one in curves for p in one.positions)
    y = number_axis(label, (value for one in series for value in one.values), bottom=0.0, top=1.5 * most)
    return plotted(series, rank_axis(ranks), y)


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


def _side_by_side(curves: Mapping[str, Curve]) -> list[Series]:
    """Return curves so far apart that the intervals of one rank do not hide each other."""
    return [
        curve_series(one, name, f"c{place}", MARKERS[place], beside=0.12 * (place - (len(curves) - 1) / 2))
        for place, (name, one) in enumerate(curves.items())
    ]


def _bare(curve: Curve) -> Curve:
    """Return a curve without its intervals."""
    return replace(curve, positions=tuple(replace(p, low=None, high=None) for p in curve.positions))


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
