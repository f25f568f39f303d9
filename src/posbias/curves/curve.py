"""The propensity curve as a value: as a table, text, data frame, record and chart.

Every estimator returns a `Curve`, and everything after estimation takes one: comparison, diagnosis, reports, weights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from posbias._charts import MARKERS, Axis, CellMap, Chart, Series, known, number_axis, rank_axis, round_ratios
from posbias._json import checksum
from posbias._matplotlib import draw
from posbias._matplotlib import save as save_picture
from posbias._optional import Columns, pandas_frame, polars_frame
from posbias._text import Column, csv_field, format_ranges, html_table, label, printable, table, wrap
from posbias._validate import boolean, integer, number, share
from posbias.errors import CurveError
from posbias.logs.click_log import Segment
from posbias.version import __version__

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from matplotlib.axes import Axes

    from posbias._arrays import FloatArray

# The format of `to_dict`, raised if older versions cannot read it. In format 1 the covariance was of p, not log p.
FORMAT = 2
Covariance = tuple[tuple[float | None, ...], ...]
# The types of the fields of a position, for data frames.
_KINDS: dict[str, type[int] | type[float] | type[str]] = {
    "position": int,
    "propensity": float,
    "low": float,
    "high": float,
    "impressions": int,
    "clicks": int,
    "reason": str,
    "degrees_of_freedom": float,
}
# More segments than this would hide each other in a chart.
_MOST_SEGMENTS = 7
# The cells of a heat map have no numbers with more columns than the first, and no intervals with more than the second.
_MOST_COLUMNS_WRITTEN, _MOST_COLUMNS_WITH_INTERVALS = 12, 5


@dataclass(frozen=True)
class Curve:
    """A propensity curve relative to rank 1, with confidence intervals and the counts it was estimated from.

    The method `curve()` of a fitted estimator returns it. `save` writes it to a JSON file and `Curve.load` reads it
    back, unchanged; `Curve.load` also reads the output of `posbias estimate --json`.

    Attributes:
        estimator (str): the name of the estimator.
        max_rank (int): M, the number of top ranks that were estimated.
        level (float or None): the coverage of the confidence intervals.
        interval_by (str or None): the method of the intervals, "jackknife" or "bootstrap".
        weighting (str or None): the weighting of pairs, if the estimator has one.
        positions (tuple of Position): the ranks at which anything was shown. An interval with a lower end and no upper
            end is unbounded.
        page_views (mapping): the page views of each ranker.
        covariance (tuple of tuples or None): the covariance of log p, with a row for each of the positions.
        notes (tuple of str): notes on the whole curve.
        by (tuple of str): the segment columns.
        segments (mapping): the curve of each segment, by the values of the segment columns.

    Example:
        >>> import tempfile, posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=500, max_rank=3)))
        >>> curve = posbias.AllPairs().fit(posbias.harvest(log, max_rank=3)).curve()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     curve.save(f"{folder}/monday.json")
        ...     kept = Curve.load(f"{folder}/monday.json")
        >>> kept == curve
        True
        >>> kept.propensity.shape, kept.interval.shape, kept.covariance_matrix.shape
        ((3,), (3, 2), (3, 3))
    """

    estimator: str
    max_rank: int
    level: float | None
    interval_by: str | None
    weighting: str | None
    positions: tuple[Position, ...]
    page_views: Mapping[str, int] = field(hash=False)
    covariance: Covariance | None = None
    notes: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    segments: Mapping[Segment, Curve] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for key, part in self.segments.items():
            named = dict(zip(self.by, key, strict=False))
            if not self.by or tuple(named.get(name) for name in self.by) != key:
                raise CurveError(f"The segment {key!r} must have one value for each of the columns {self.by!r}.")
            if part._setting != self._setting or part.by:
                raise CurveError(
                    f"The curve of the segment {key!r} has other settings than the whole curve: {part._setting} in "
                    f"place of {self._setting}, by {part.by!r}. Fit both with the same settings."
                )

    @property
    def _setting(self) -> tuple[str, int, float | None, str | None, str | None]:
        """The settings that the curves of all segments share."""
        return self.estimator, self.max_rank, self.level, self.interval_by, self.weighting

    @property
    def propensity(self) -> FloatArray:
        """p_k / p_1 by rank, an array of shape (M,); NaN if it is not known."""

        values = np.full(self.max_rank, np.nan)
        values[self._places()] = [np.nan if p.propensity is None else p.propensity for p in self.positions]
        return values

    @property
    def interval(self) -> FloatArray:
        """The ends of the interval by rank, an array of shape (M, 2); NaN if there is none, infinite if unbounded."""

        ends = np.full((self.max_rank, 2), np.nan)
        for place, p in zip(self._places(), self.positions, strict=True):
            if p.low is not None:
                ends[place] = p.low, np.inf if p.high is None else p.high
        return ends

    @property
    def covariance_matrix(self) -> FloatArray:
        """The covariance of log p by rank, an array of shape (M, M); NaN if it is not known."""

        values = np.full((self.max_rank, self.max_rank), np.nan)
        if self.covariance is not None:
            places = self._places()
            values[np.ix_(places, places)] = np.array(self.covariance, dtype=np.float64).reshape(len(places), -1)
        return values

    def joint(self, level: float | None = None) -> FloatArray:
        """Return a joint confidence band, which contains the whole curve with the given probability.

        It uses Bonferroni's correction: t quantiles at 1 − α / (2 (m − 1)), where m ranks including rank 1 have an
        interval.

        Arguments:
            level (float, default None): the coverage of the band; by default that of the intervals.

        Returns:
            The ends of the band by rank, an array of shape (M, 2).
        """

        from posbias._stats import t_quantile

        if self.interval_by != "jackknife":
            raise CurveError(
                f"A joint band needs jackknife intervals; this curve has {self.interval_by or 'no'} intervals. "
                "Estimate it with interval='jackknife'.",
            )
        level = share("level", self.level if level is None else level, CurveError)
        degrees = np.full(self.max_rank, np.nan)
        degrees[self._places()] = [np.nan if p.low is None else p.degrees_of_freedom for p in self.positions]
        degrees[np.isnan(self.interval[:, 0])] = np.nan
        others = max(1, int(np.isfinite(degrees[1:]).sum()))
        half = t_quantile(degrees, 1 - (1 - level) / (2 * others)) * np.sqrt(np.diagonal(self.covariance_matrix))
        return np.asarray(self.propensity[:, None] * np.exp(np.stack([-half, half], axis=-1)))

    def _places(self) -> list[int]:
        return [p.position - 1 for p in self.positions]

    def to_dict(self, *, joint: bool = False) -> dict[str, Any]:
        """Return the curve as a JSON record, as `posbias estimate --json` prints it.

        Arguments:
            joint (bool, default False): add the joint band.
        """
        answer: dict[str, Any] = {
            "format": FORMAT,
            "estimator": self.estimator,
            "max_rank": self.max_rank,
            "level": self.level,
            "interval_by": self.interval_by,
            "weighting": self.weighting,
            **self._estimate(joint),
            "rankers": list(self.page_views),
            "version": __version__,
        }
        if self.by:
            answer["by"] = list(self.by)
            answer["segments"] = [
                {"segment": dict(zip(self.by, key, strict=True)), **part._estimate(joint)}
                for key, part in self.segments.items()
            ]
        return answer | {"checksum": checksum(answer)}

    def _estimate(self, joint: bool) -> dict[str, Any]:
        return {
            "positions": self._records(joint),
            "page_views": dict(self.page_views),
            "covariance": None if self.covariance is None else [list(row) for row in self.covariance],
            "notes": list(self.notes),
        }

    def _records(self, joint: bool) -> list[dict[str, Any]]:
        """Return each position as a record."""
        records = [asdict(position) for position in self.positions]
        if joint:
            for record, (low, high) in zip(records, self.joint_ends(), strict=True):
                record |= {"joint_low": low, "joint_high": high}
        return records

    def joint_ends(self) -> list[tuple[float | None, float | None]]:
        """Return the ends of the joint band at each of the positions, None without a band."""
        ends = self.joint()[self._places()].tolist()
        return [(None, None) if low != low else (low, high) for low, high in ends]

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Curve:
        """Return the curve of a record that `to_dict` made; raise CurveError if it is none, or is damaged."""
        from posbias.curves.files import from_record

        return from_record(record)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the curve to a JSON file, completely or not at all."""
        from posbias.curves.files import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Curve:
        """Read a curve that `save` or `posbias estimate --json` wrote; raise CurveError if it is damaged."""
        from posbias.curves.files import load

        return load(path)

    def to_csv(self, *, joint: bool = False) -> str:
        """Return the curve as CSV, with a row for each rank of the whole curve and of each segment.

        With segments there is a column `scope` ("all" or "segment") and a column for each segment column. A missing
        value is an empty field, and an empty text is `""`.

        Arguments:
            joint (bool, default False): add the joint band.
        """
        columns = self.columns(joint=joint)
        lines = [[*columns], *zip(*(values for _, values in columns.values()), strict=True)]
        return "".join(",".join(map(csv_field, line)) + "\n" for line in lines)

    def columns(self, *, joint: bool = False) -> Columns:
        """Return the columns of `to_csv` and of data frames, each with the type of its values."""
        kinds = _KINDS | ({"joint_low": float, "joint_high": float} if joint else {})
        parts = [(("all", *(None for _ in self.by)), self)]
        parts += [(("segment", *key), part) for key, part in self.segments.items()]
        rows = [(key, record) for key, part in parts for record in part._records(joint)]
        labels: dict[str, tuple[type[Any], list[Any]]] = {}
        for place, name in enumerate(["scope", *self.by] if self.by else []):
            # A segment column must not replace a column of the curve.
            while place and (name in kinds or name in labels):
                name = f"segment_{name}"
            labels[name] = (str, [key[place] for key, _ in rows])
        return labels | {name: (kind, [record[name] for _, record in rows]) for name, kind in kinds.items()}

    def to_pandas(self, *, joint: bool = False) -> pd.DataFrame:
        """Return the curve as a pandas data frame, with the columns of `to_csv`."""
        return pandas_frame(self.columns(joint=joint))

    def to_polars(self, *, joint: bool = False) -> pl.DataFrame:
        """Return the curve as a Polars data frame, with the columns of `to_csv`."""
        return polars_frame(self.columns(joint=joint))

    def to_text(self, truth: Sequence[float] | None = None, *, joint: bool = False) -> str:
        """Return the curve as a text table.

        Arguments:
            truth (sequence of float, default None): the true propensities from rank 1, to show beside the estimates.
            joint (bool, default False): add the joint band.
        """
        return curve_text(self, truth, joint=joint)

    @property
    def interval_name(self) -> str:
        """The kind of intervals as text, such as "95% interval"."""
        ends = [p.low for curve in (self, *self.segments.values()) for p in curve.positions if p.position > 1]
        if self.level is None or self.interval_by is None or all(low is None for low in ends):
            return "no interval"
        return f"{100 * self.level:g}% interval" + (" by bootstrap" if self.interval_by == "bootstrap" else "")

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return curve_html(self)


@dataclass(frozen=True)
class Position:
    """One rank of a curve; unknown numbers are None.

    Attributes:
        position (int): the rank.
        propensity (float or None): p_k / p_1.
        low (float or None): the lower end of its confidence interval.
        high (float or None): the upper end.
        impressions (int): the results shown at this rank.
        clicks (int): the clicks on them.
        reason (str or None): why there is no number, or why it is uncertain.
        degrees_of_freedom (float or None): of the jackknife interval.
    """

    position: int
    propensity: float | None
    low: float | None
    high: float | None
    impressions: int
    clicks: int
    reason: str | None
    degrees_of_freedom: float | None = None


def curve_text(curve: Curve, truth: Sequence[float] | None = None, *, joint: bool = False) -> str:
    """Return a curve and its segments as text tables, with notes below each."""
    known = None if truth is None else known_truth(truth, [curve])
    blocks = [[*wrap(_title(curve)), _table(curve, known, joint)]]
    blocks += [[*wrap(label(key)), _table(part, None, joint)] for key, part in curve.segments.items()]
    return "\n\n".join("\n".join(block) for block in blocks)


def known_truth(truth: object, curves: Sequence[Curve]) -> list[float]:
    """Return the true propensities from rank 1; raise an error unless they cover all estimated ranks."""
    iterable = hasattr(truth, "__iter__") and not isinstance(truth, str | bytes | Mapping)
    found = [number(value) for value in truth] if iterable else [None]  # type: ignore[attr-defined]
    deepest = max((p.position for one in curves for p in one.positions if p.propensity is not None), default=1)
    numbers = [value for value in found if value is not None]
    if len(numbers) < max(len(found), deepest):
        raise CurveError(f"truth must be a list of numbers, one for each rank from 1 to {deepest}, not {truth!r}.")
    return numbers


def _title(curve: Curve) -> str:
    weighting = "" if curve.weighting is None else f", {curve.weighting} weighting"
    return printable(f"{curve.estimator}{weighting}, {curve.interval_name}")


def _table(curve: Curve, truth: Sequence[float] | None, joint: bool) -> str:
    known = [p.propensity for p in curve.positions]
    top = max((p for p in known if p is not None), default=0.0) or 1.0
    bars = [None if p is None else p / top for p in known]
    drawn = table(_columns(curve, truth, joint), bars=bars, remarks=_remarks(curve))
    # An interval allows for what its reason says: that is information. A rank without one is a problem.
    ends = {p.position: p.low for p in curve.positions}
    signs = ["! " if any(ends[rank] is None for rank in ranks) else "· " for ranks in _shared(curve).values()]
    signs += ["! "] * len(curve.notes)
    notes = [wrap(printable(note), sign) for sign, note in zip(signs, _notes(curve), strict=True)]
    return "\n".join([drawn, *(line for note in notes for line in note)])


def _columns(curve: Curve, truth: Sequence[float] | None = None, joint: bool = False) -> list[Column]:
    positions = curve.positions
    columns = [
        Column("rank", [f"{p.position}" for p in positions]),
        Column("propensity", ["–" if p.propensity is None else f"{p.propensity:.3f}" for p in positions]),
        Column("interval", [_ends(p.low, p.high, p.position) for p in positions], left=True),
    ]
    if joint:
        ends = [_ends(*ends, p.position) for p, ends in zip(positions, curve.joint_ends(), strict=True)]
        columns.append(Column("joint band", ends, left=True))
    if truth is not None:
        columns.append(Column("truth", [_known(truth, p.position) for p in positions]))
    columns.append(Column("impressions", [f"{p.impressions:,}" for p in positions]))
    columns.append(Column("clicks", [f"{p.clicks:,}" for p in positions]))
    return columns


def _ends(low: float | None, high: float | None, position: int) -> str:
    """Return an interval as text; rank 1 has none, because its propensity is 1 by definition."""
    if low is None or position == 1:
        return ""
    return f"{low:.3f} – {'∞' if high is None else f'{high:.3f}'}"


def _known(truth: Sequence[float], position: int) -> str:
    return f"{truth[position - 1]:.3f}" if position <= len(truth) else ""


def _remarks(curve: Curve) -> list[str]:
    return [printable(reason) for reason in own_reasons(curve)]


def own_reasons(curve: Curve) -> list[str]:
    """Return the reason at each position, or "" if other ranks share it."""
    shared = _shared(curve)
    return ["" if p.reason is None or p.reason in shared else p.reason for p in curve.positions]


def _shared(curve: Curve) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for p in curve.positions:
        if p.reason is not None:
            found.setdefault(p.reason, []).append(p.position)
    return {reason: ranks for reason, ranks in found.items() if len(ranks) > 1}


def _notes(curve: Curve) -> list[str]:
    return [*shared_reasons(curve), *curve.notes]


def shared_reasons(curve: Curve) -> list[str]:
    """Return each reason that several ranks share, with these ranks."""
    return [f"Ranks {format_ranges(ranks)}: {reason}." for reason, ranks in _shared(curve).items()]


def curve_html(curve: Curve) -> str:
    """Return a curve and its segments as HTML tables."""
    parts = [(_title(curve), curve), *((label(key), part) for key, part in curve.segments.items())]
    return "\n".join(
        html_table(_columns(part), caption=title, remarks=_remarks(part), notes=_notes(part)) for title, part in parts
    )


def save_plot(
    curve: Curve,
    path: str,
    *,
    truth: Sequence[float] | None = None,
    joint: bool = False,
    columns: int | None = None,
) -> None:
    """Write the picture of a curve as PNG, SVG or PDF."""
    save_picture(draw_curve(curve, truth=truth, joint=joint, columns=columns), path)


def draw_curve(
    curve: Curve,
    ax: Axes | None = None,
    *,
    truth: Sequence[float] | Any = None,
    joint: bool = False,
    columns: int | None = None,
) -> Axes:
    """Draw a curve with its intervals, its joint band if asked for, its segments, and the truth if it is known.

    With `columns`, ranks are the places of a grid, row by row, and the curve is drawn as a heat map.
    """
    if columns is None:
        return draw(curve_chart(curve, truth=truth, joint=joint), ax)
    if truth is not None or joint:
        raise CurveError("A heat map (columns) shows neither the truth nor a joint band. Leave out one of them.")
    if curve.segments:
        raise CurveError(
            f"A heat map (columns) shows one curve, and this one has {len(curve.segments):,} segments by "
            f"{printable(', '.join(curve.by))}. Draw a segment in Python (segments_[...].plot), leave out the "
            "segments, or write a report, which draws a map of each."
        )
    return draw(grid_chart(curve, columns), ax)


def grid_chart(curve: Curve, columns: int) -> Chart:
    """Return the heat map of a curve whose ranks are the places of a grid, numbered row by row.

    A cell shows the propensity and, if there is room, its interval.
    """
    last = max(p.position for p in curve.positions)
    integer("columns", columns, 1, curve.max_rank, CurveError)
    rows = -(-last // columns)
    values, written = np.full((rows, columns), np.nan), {}
    for p in curve.positions:
        if p.propensity is None:
            continue
        row, column = grid_place(p.position, columns)
        values[row - 1, column - 1] = p.propensity
        if columns <= _MOST_COLUMNS_WRITTEN:
            ends = _ends(p.low, p.high, p.position).replace(" ", "") if columns <= _MOST_COLUMNS_WITH_INTERVALS else ""
            written[row, column] = f"{p.propensity:.3f}" + (f"\n{ends}" if ends else "")
    down, across = rank_axis(range(1, rows + 1), "Row"), rank_axis(range(1, columns + 1), "Column")
    # Equal ratios have equal differences of shade.
    shown = values[np.nan_to_num(values) > 0]
    low, high = (float(shown.min()), float(shown.max())) if len(shown) else (1.0, 1.0)
    scale = Axis("Propensity", low, max(high, 1.01 * low), round_ratios, log=True)
    return Chart(
        f"Examination by place: {curve.estimator}, {curve.interval_name}",
        across,
        replace(down, low=down.high, high=down.low),
        cells=CellMap(values, scale, written, square=False),
        height=1.0 + 0.45 * rows,
    )


def grid_place(rank: int, columns: int) -> tuple[int, int]:
    """Return the row and the column of a rank in a grid that is numbered row by row, all from 1.

    >>> [grid_place(rank, 3) for rank in (1, 3, 4)]
    [(1, 1), (1, 3), (2, 1)]
    """
    return (rank - 1) // columns + 1, (rank - 1) % columns + 1


def curve_chart(curve: Curve, *, truth: Sequence[float] | Any = None, joint: bool = False) -> Chart:
    """Return the chart of a curve and its segments."""
    boolean("joint", joint, CurveError)
    segments = largest_segments(curve, _MOST_SEGMENTS)
    # The joint band is the only area then: two areas of one colour would hide each other.
    series = [curve_series(curve, "all" if segments else curve.estimator, band=not joint)]
    if joint:
        ranks = [p.position for p in curve.positions]
        low, high = (known(ends) for ends in zip(*curve.joint_ends(), strict=True))
        name = f"joint {100 * (curve.level or 0):g}% band"
        series.append(Series(name, 0, ranks, low, low, high, line="dotted", band=True, bars=False))
        series.append(Series("", 0, ranks, high, line="dotted"))
    for place, (key, part) in enumerate(segments.items(), start=1):
        series.append(curve_series(part, label(key), place, shift=0.08 * place))
    rest = len(curve.segments) - len(segments)
    return propensity_chart(
        f"Examination by rank: {curve.estimator}, {curve.interval_name}",
        series,
        [curve],
        truth=truth,
        note=f"{rest} more segments not drawn" if rest else "",
    )


def largest_segments(curve: Curve, most: int) -> dict[Segment, Curve]:
    """Return the segments with the most page views, at most so many, in their order.

    Segments with an estimate beyond rank 1 go before those without any.
    """

    def merit(key: Segment) -> tuple[bool, int]:
        part = curve.segments[key]
        estimated = any(p.propensity is not None for p in part.positions if p.position > 1)
        return estimated, sum(part.page_views.values())

    chosen = {*sorted(curve.segments, key=merit, reverse=True)[:most]}
    return {key: part for key, part in curve.segments.items() if key in chosen}


def curve_series(curve: Curve, name: str, color: int = 0, *, shift: float = 0.0, band: bool = False) -> Series:
    """Return a curve with its intervals, shifted by a part of a rank so that several do not hide each other.

    Rank 1 is not shifted: all curves are 1 there.
    """
    ranks = [p.position + shift * (p.position > 1) for p in curve.positions]
    y, low, high = (known(getattr(p, field) for p in curve.positions) for field in ("propensity", "low", "high"))
    return Series(name, color, ranks, y, low, high, MARKERS[color], band=band)


def propensity_chart(
    title: str,
    series: Sequence[Series],
    curves: Sequence[Curve],
    *,
    truth: object = None,
    label: str = "Propensity relative to rank 1",
    note: str = "",
) -> Chart:
    """Return a chart of series over the ranks of curves, with the truth if it is known."""
    ranks = {p.position for curve in curves for p in curve.positions}
    if truth is not None:
        true = known_truth(truth, curves)
        ranks |= {*range(1, len(true) + 1)}
        series = [*series, Series("truth", "ink", range(1, len(true) + 1), true, line="dashed")]
    # Intervals and joint bands (dotted) may be so wide that all else would look flat.
    highest = max((y for one in series if one.line != "dotted" for y in one.y if y == y), default=0.0)
    values = [value for one in series for value in one.values]
    y = number_axis(label, values, bottom=0.0, top=1.5 * highest or 1.0)
    return Chart(title, rank_axis(sorted(ranks)), y, series, note=note)
