"""The figures of a report: a chart as SVG, what it shows in words, and the table of its numbers.

The charts are those that `posbias.plots` draws. Reports add the words and the table. A reader who points at a rank of
the chart sees its row of the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from posbias._charts import Chart, Series, known, number_axis, rank_axis, short_names
from posbias._text import label, printable
from posbias.curves.curve import Curve, Position, curve_chart, grid_chart, grid_place, largest_segments
from posbias.estimators.base import connected_ranks
from posbias.estimators.one_curve import MAX_FACTOR, unnoticed_factors
from posbias.judging.compare import Comparison, comparison_chart, format_change, p_value_cell
from posbias.judging.history import History
from posbias.plots.curves import curves_chart, day_number, history_chart, some_ranks
from posbias.plots.evidence import click_rates_chart, graph_chart, information, pair_ratios_chart, sets_chart
from posbias.reporting.drawing import Mark, draw_svg

if TYPE_CHECKING:
    from posbias.reporting.report import ClickWeights, ReportPart

# The largest number of ranks in a figure; half of them are the first.
_MOST_RANKS = 50
# Several curves with more ranks than this are drawn without intervals.
_MOST_RANKS_WITH_INTERVALS = 20
# The largest number of ranks in a table of pairs of ranks, and of pairs in a list.
_MOST_RANKS_IN_TABLE, _MOST_PAIRS = 20, 50
# The largest number of days, the last ones.
_MOST_DAYS = 92


@dataclass(frozen=True)
class Table:
    """The head and rows of a table, as texts."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Figure:
    """A chart as SVG, its title, what it shows in words, and its numbers; its ids in the page begin with the key."""

    key: str
    title: str
    text: str
    svg: str
    table: Table


def _figure(
    key: str,
    title: str,
    text: str,
    chart: Chart,
    table: Table,
    *,
    at: Sequence[float] = (),
    marks: Sequence[Mark] = (),
) -> Figure:
    """Return a figure whose marks show the rows of its table, each at its number of the x axis, or other marks."""
    marks = marks or [Mark(_describe(table.heads, row), x=x) for x, row in zip(at, table.rows, strict=True)]
    return Figure(key, title, text, draw_svg(chart, marks, key=key, title=title, text=text), table)


def _describe(heads: Sequence[str], row: Sequence[str]) -> str:
    """Return a row of a table as lines.

    >>> _describe(("rank", "propensity", "note"), ("2", "0.484", ""))
    'Rank 2\\npropensity: 0.484'
    """
    cells = zip(map(printable, heads[1:]), row[1:], strict=True)
    return "\n".join([f"{heads[0].capitalize()} {row[0]}", *(f"{head}: {cell}" for head, cell in cells if cell)])


# ---- Curves


def curve_figure(key: str, curve: Curve, *, unnoticed: float | None = None) -> Figure:
    """Return the figure of a curve, with its intervals and its joint band; that of segments is their average.

    Arguments:
        key (str): the start of its ids in the page.
        curve (Curve): the curve.
        unnoticed (float, optional): the size of trust bias that could have gone unnoticed, shown as one more band.
    """
    title = "Examination by rank: all segments together" if curve.segments else "Examination by rank"
    curve = without_segments(curve)
    trust_bias = _trust_bias_band(curve, unnoticed)
    joint = curve.interval_by == "jackknife" and curve.covariance is not None
    bands = curve.joint_ends() if joint else [(None, None)] * len(curve.positions)
    more = [*(["joint band"] if joint else []), *(["with trust bias"] if trust_bias else [])]
    heads = ("rank", "propensity", "interval", *more, "impressions", "clicks", "note")
    rows = [
        (
            f"{p.position}",
            number(p.propensity),
            "" if p.position == 1 else interval(p.low, p.high),
            *([interval(*band)] if joint else []),
            *(["" if p.position == 1 else interval(*trust_bias[place])] if trust_bias else []),
            f"{p.impressions:,}",
            f"{p.clicks:,}",
            p.reason or "",
        )
        for place, (p, band) in enumerate(zip(curve.positions, bands, strict=True))
    ]
    last = [p for p in curve.positions if p.propensity is not None][-1]
    text = (
        f"How often each rank is seen relative to rank 1: from 1 at rank 1 to {number(last.propensity)} at rank "
        f"{last.position}, with {curve.interval_name}."
        + (" The dotted band holds all ranks at once, so it is wider than the bars of single ranks." if joint else "")
    )
    chart = curve_chart(curve, joint=joint)
    if trust_bias:
        text += (
            " Grey: the curves of documents half and twice as relevant as the average, if there were trust bias of the "
            "size that this log could not show."
        )
        chart = replace(chart, series=[*_trust_bias_series(curve, trust_bias), *chart.series])
    return _figure(
        key,
        title,
        text,
        chart,
        Table(heads, tuple(rows)),
        at=[p.position for p in curve.positions],
    )


def _trust_bias_band(curve: Curve, unnoticed: float | None) -> list[tuple[float | None, float | None]]:
    """Return the ends of the curve with trust bias of this size, by position; nothing if any size is possible."""
    if unnoticed is None:
        return []
    factors = unnoticed_factors(np.log(np.maximum(curve.propensity, 1e-300)), unnoticed)
    estimated = np.isfinite(curve.propensity) & (curve.propensity > 0)
    if not estimated.any() or not factors[estimated].max() <= MAX_FACTOR:
        return []
    ends = (curve.propensity[:, None] * factors).tolist()
    # A curve has positions only at ranks with results, which may be fewer than M.
    places = [p.position - 1 for p in curve.positions]
    return [(ends[k][0], ends[k][1]) if estimated[k] else (None, None) for k in places]


def _trust_bias_series(curve: Curve, band: Sequence[tuple[float | None, float | None]]) -> list[Series]:
    ranks = [p.position for p in curve.positions]
    low, high = (known(ends) for ends in zip(*band, strict=True))
    filled = Series(
        "if unnoticed trust bias were there", "grey", ranks, low, low, high, line="dashed", band=True, bars=False
    )
    return [filled, Series("", "grey", ranks, high, line="dashed")]


def curves_figure(key: str, title: str, text: str, curves: Mapping[str, Curve]) -> Figure:
    """Return the figure of up to eight curves over each other."""
    ranks = sorted({p.position for curve in curves.values() for p in curve.positions})
    positions = [{p.position: p for p in curve.positions} for curve in curves.values()]
    rows = [(f"{rank}", *(_estimate(by_rank.get(rank)) for by_rank in positions)) for rank in ranks]
    shown = [_without_intervals(c) if len(ranks) > _MOST_RANKS_WITH_INTERVALS else c for c in curves.values()]
    return _figure(
        key,
        title,
        text,
        curves_chart(dict(zip(short_names(curves), shown, strict=True))),
        Table(("rank", *curves), tuple(rows)),
        at=ranks,
    )


def grid_figure(key: str, title: str, curve: Curve, columns: int) -> Figure:
    """Return the heat map of a curve whose ranks are the places of a grid, numbered row by row."""
    rows, marks = [], []
    heads = ("place", "row", "column", "propensity", "interval")
    for p in curve.positions:
        row, column = grid_place(p.position, columns)
        ends = "" if p.position == 1 else interval(p.low, p.high)
        rows.append((f"{p.position}", f"{row}", f"{column}", number(p.propensity), ends))
        marks.append(Mark(_describe(heads, rows[-1]), x=column, y=row, cell=True))
    text = "How often each place of the grid is seen relative to the first, which is the place in the upper left."
    return _figure(key, title, text, grid_chart(curve, columns), Table(heads, tuple(rows)), marks=marks)


def without_segments(curve: Curve) -> Curve:
    """Return a curve without those of its segments."""
    return replace(curve, by=(), segments={})


def _without_intervals(curve: Curve) -> Curve:
    return replace(curve, positions=tuple(replace(p, low=None, high=None) for p in curve.positions))


def segment_curves(curve: Curve, most: int) -> dict[str, Curve]:
    """Return the curves of the segments with most data, by name."""
    return {label(key): part for key, part in largest_segments(curve, most).items()}


def thin_curve(curve: Curve) -> Curve:
    """Return a curve, and those of its segments, with no more ranks than a figure has room for."""
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


def spread(count: int, most: int = _MOST_RANKS) -> list[int]:
    """Return places from 0: all of them or, where there are too many, the first ones and then some up to the last.

    >>> spread(4), spread(100, most=6)
    ([0, 1, 2, 3], [0, 1, 2, 34, 67, 99])
    """
    if count <= most:
        return list(range(count))
    first = most // 2
    rest = most - first
    return [*range(first), *(first - 1 + round((count - first) * step / rest) for step in range(1, rest + 1))]


# ---- Comparisons


def comparison_figure(comparison: Comparison) -> Figure:
    """Return the figure of the ratio of two curves."""
    first, second = comparison.names
    rows = [
        (
            f"{d.rank}",
            number(d.before),
            number(d.after),
            number(d.ratio),
            interval(d.low, d.high),
            p_value_cell(d.p_value),
            f"differs by {format_change(d.ratio)}" if d.differs else d.reason or "",
        )
        for d in comparison.differences
    ]
    note = f" ({comparison.interval_note})" if comparison.interval_note else ""
    return _figure(
        "c-ratio",
        f"{second} against {first}",
        f"The ratio of the two curves by rank, {second} to {first}, with {100 * comparison.level:g}% intervals. Red "
        f"diamonds are ranks that differ significantly{note}.",
        comparison_chart(comparison),
        Table(("rank", first, second, "ratio", "interval", "p", "note"), tuple(rows)),
        at=[d.rank for d in comparison.differences],
    )


def history_figure(history: History) -> Figure:
    """Return the figure of the curves of the last days."""
    shown = History(history.days[-_MOST_DAYS:])
    ranks = some_ranks(shown)
    rows = []
    for day in shown.days:
        by_rank = {p.position: p for p in day.positions}
        rows.append((str(day.date), *(_estimate(by_rank.get(rank)) for rank in ranks), "; ".join(day.findings)))
    first, last, missing = shown.days[0].date, shown.days[-1].date, len(shown.missing)
    period = f"on {first}" if first == last else f"from {first} to {last} ({_count_days(len(shown.days))})"
    gaps = f" {_count_days(missing)} between {'have' if missing > 1 else 'has'} no curve." if missing else ""
    return _figure(
        "h-days",
        "Examination by day",
        f"The propensities of some ranks {period}, with their intervals. Red lines mark days with findings.{gaps}",
        history_chart(shown, ranks),
        Table(("day", *(f"rank {rank}" for rank in ranks), "findings"), tuple(rows)),
        at=[day_number(day.date) for day in shown.days],
    )


def _count_days(days: int) -> str:
    return f"{days} day{'s' if days > 1 else ''}"


# ---- Evidence


def click_rates_figure(key: str, curve: Curve) -> Figure:
    """Return the figure of click rates beside the curve."""
    curve = without_segments(curve)
    rates = {p.position: p.clicks / p.impressions for p in curve.positions}
    first = rates.get(1) or float("nan")
    rows = [
        (f"{p.position}", f"{rates[p.position]:.2%}", number(rates[p.position] / first), number(p.propensity))
        for p in curve.positions
    ]
    return _figure(
        key,
        "Click rate and examination",
        "Click rates relative to rank 1 depend on how often results are seen and on how relevant they are. The curve "
        "shows only how often they are seen.",
        click_rates_chart(curve),
        Table(("rank", "click rate", "relative to rank 1", "propensity"), tuple(rows)),
        at=[p.position for p in curve.positions],
    )


def sets_figure(key: str, part: ReportPart) -> Figure:
    """Return the figure of the clicks in the intervention sets."""
    clicks = part.pair_clicks
    ranks = [place + 1 for place in spread(len(clicks))]
    texts = [_describe_sets(clicks[k - 1], k) for k in ranks]
    if len(ranks) <= _MOST_RANKS_IN_TABLE:
        heads = ("k \\ k'", *map(str, ranks))
        rows = [(f"{k}", *("" if k == j else f"{clicks[k - 1, j - 1]:,.0f}" for j in ranks)) for k in ranks]
    else:
        heads = ("rank", "clicks")
        rows = [(f"{k}", "; ".join(text.split("\n")[1:])) for k, text in zip(ranks, texts, strict=True)]
    return _figure(
        key,
        "Clicks in the intervention sets",
        "Clicks at rank k on documents that are at rank k' too, by another ranker or at another time. These clicks "
        "compare the two ranks.",
        sets_chart(clicks),
        Table(heads, tuple(rows)),
        marks=[Mark(text, y=rank) for text, rank in zip(texts, ranks, strict=True)],
    )


def _describe_sets(clicks: Any, rank: int) -> str:
    order = [int(j) for j in np.argsort(-clicks, kind="stable")[:3] if clicks[j] > 0]
    if not order:
        return f"Rank {rank}\nno click on a document that is at another rank too"
    most = ", ".join(f"{clicks[j]:,.0f} at {j + 1}" for j in order)
    return f"Rank {rank}\n{clicks.sum():,.0f} clicks on documents at other ranks too\nmost: {most}"


def graph_figure(key: str, part: ReportPart) -> Figure:
    """Return the figure of the comparisons that link the ranks."""
    connected = connected_ranks(part.pair_clicks > 0)
    linked_ranks = (information(part.pair_clicks) > 0).sum(axis=1)
    places = spread(len(part.pair_clicks))
    rows = [(f"{k + 1}", "yes" if connected[k] else "no", f"{linked_ranks[k]}") for k in places]
    apart = int((~connected).sum())
    linked = "Every rank is" if not apart else "1 rank is not" if apart == 1 else f"{apart} ranks are not"
    return _figure(
        key,
        "Comparisons that link the ranks",
        "Arcs link each rank with the two ranks that the same documents compare it with most precisely. The wider the "
        f"arc, the more precise the comparison. {linked} linked to rank 1.",
        graph_chart(part.pair_clicks),
        Table(("rank", "linked to rank 1", "linked ranks"), tuple(rows)),
        at=[place + 1 for place in places],
    )


def pair_ratios_figure(key: str, part: ReportPart) -> Figure:
    """Return the figure of pairs of ranks against the curve."""
    shown = part.pair_ratios[:_MOST_PAIRS]
    rows, marks = [], []
    for one in shown:
        ends = interval(one.low, one.high)
        note = "differs" if one.off_curve else ""
        rows.append((f"{one.rank}", f"{one.other_rank}", number(one.ratio), ends, number(one.expected), note))
        text = f"{one.ratio:.3f} ({ends}) by their clicks\n{one.expected:.3f} by the curve"
        marks.append(Mark(f"Rank {one.other_rank} against {one.rank}\n{text}", x=one.expected, y=one.ratio))
    differ, rest = sum(one.off_curve for one in part.pair_ratios), len(part.pair_ratios) - len(shown)
    verdict = "No pair differs" if not differ else "1 pair differs" if differ == 1 else f"{differ:,} pairs differ"
    return _figure(
        key,
        "Pairs of ranks against the curve",
        f"The ratio of propensities by the clicks of each of {len(part.pair_ratios):,} pairs of ranks, against the "
        f"ratio by the curve. If one curve fits all pairs, they lie on the line. {verdict} by more than three standard "
        "errors." + (f" The {rest:,} least precise are not drawn." if rest else ""),
        pair_ratios_chart(part.pair_ratios, _MOST_PAIRS),
        Table(("rank k", "rank k'", "p_k'/p_k by clicks", "interval", "by the curve", "note"), tuple(rows)),
        marks=marks,
    )


# ---- Weights


def weights_figure(key: str, weights: ClickWeights) -> Figure:
    """Return the figure of the weight of a click at each rank."""
    ranks = [weights.ranks[place] for place in spread(len(weights.ranks))]
    rows = [(f"{one.rank}", number(one.weight), f"{one.clicks:,}", "capped" if one.capped else "") for one in ranks]
    known = {one.rank: one.weight for one in ranks if one.weight is not None}
    mean = " The weight of a rank is the mean over segments, each with its own curve." if weights.by else ""
    chart = Chart(
        "Weight of a click by rank",
        rank_axis([one.rank for one in ranks]),
        number_axis("Weight of a click", known.values(), bottom=0.0),
        [Series("", 0, [*known], [*known.values()], columns=True)],
        height=2.8,
    )
    text = (
        "How much a click at each rank counts when a ranker learns from clicks: one over the propensity, at most "
        f"{weights.cap:g}.{mean}"
    )
    table = Table(("rank", "weight", "clicks", "note"), tuple(rows))
    return _figure(key, chart.title, text, chart, table, at=[one.rank for one in ranks])


# ---- Numbers as texts


def number(value: float | None) -> str:
    """Return a number as tables show it."""
    return "–" if value is None or value != value else f"{value:.3f}"


def interval(low: float | None, high: float | None) -> str:
    """Return the ends of an interval as tables show them."""
    return "" if low is None else f"{low:.3f} – {'∞' if high is None else f'{high:.3f}'}"


def _estimate(p: Position | None) -> str:
    """Return the estimate of a rank with its interval as tables show them."""
    if p is None or p.propensity is None:
        return "–"
    return f"{p.propensity:.3f}" + (f" ({interval(p.low, p.high)})" if p.low is not None and p.position > 1 else "")
