"""A plan as a value: for people as a table, for programs as JSON, as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

from posbias.frames import Columns, pandas_frame, polars_frame
from posbias.tables import Column, folded, table
from posbias.version import __version__
from posbias.wording import printable

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from matplotlib.axes import Axes

FORMAT = 1
_BETWEEN = " – "
_RANGES = (
    f"a{_BETWEEN}b: too few queries decide it for one number; what is needed lies between these 95% of the time. "
    "–: not even that is known."
)
# The columns of a frame, and what their values are.
_KINDS: dict[str, type[int] | type[float] | type[str]] = {
    "scenario": str,
    "estimator": str,
    "rank": int,
    "precision": float,
    "standard_error": float,
    "degrees_of_freedom": float,
    "times": float,
    "queries": int,
    "page_views": int,
    "more_queries": int,
    "more_page_views": int,
    "reason": str,
    "times_low": float,
    "times_high": float,
}


@dataclass(frozen=True)
class Need:
    """What one rank needs.

    Attributes:
        rank: k.
        precision: of the interval as it is: its upper end lies this share above the estimate.
        standard_error: of log p_k.
        degrees_of_freedom: of the interval.
        times: how many times the data it needs to be as precise as wanted.
        queries: so many, where they were counted.
        page_views: so many.
        more_queries: beyond those there are.
        more_page_views: beyond those there are.
        reason: why there is no answer, or what makes it a weak one.
        times_low: how many times the data at the least, by how well the standard error is known (95%).
        times_high: likewise, at the most.
    """

    rank: int
    precision: float | None = None
    standard_error: float | None = None
    degrees_of_freedom: float | None = None
    times: float | None = None
    queries: int | None = None
    page_views: int | None = None
    more_queries: int | None = None
    more_page_views: int | None = None
    reason: str | None = None
    times_low: float | None = None
    times_high: float | None = None


@dataclass(frozen=True)
class Outlook:
    """What each rank needs with one estimator, and what lines of the picture are drawn from."""

    estimator: str
    needs: tuple[Need, ...]
    buckets: int

    @property
    def worst(self) -> Need | None:
        """The rank that needs most; None if no rank has an answer."""
        known = [need for need in self.needs if need.times is not None]
        return max(known, key=lambda need: need.times or 0.0, default=None)

    def need(self, rank: int) -> Need | None:
        """Return what a rank needs."""
        return next((need for need in self.needs if need.rank == rank), None)


@dataclass(frozen=True)
class Scenario:
    """The same number of page views otherwise: another split of traffic, or one more ranker."""

    name: str
    traffic: Mapping[str, float] = field(hash=False)
    assumes: str
    outlooks: tuple[Outlook, ...]


@dataclass(frozen=True)
class Plan:
    """How much more data intervals need to be as precise as wanted; it prints as tables.

    Attributes:
        precision: what is wanted, as a share of the estimate: the upper end of the interval is exp of its half-width
            on the log scale, so this share above the estimate.
        level: the coverage of the intervals.
        page_views: those there are; of an assumed world, those that the `precision` of each need is told for.
        queries: those there are, if they were counted; of an assumed world, likewise.
        traffic: the share of each ranker.
        outlooks: one for each estimator, the first the one that other tables are told for.
        scenarios: what the same number of page views would bring otherwise.
        assumes: what all this takes for granted.
        notes: what is to be known besides.
        assumed: whether it was made before any data.
    """

    precision: float
    level: float
    page_views: int
    queries: int | None
    traffic: Mapping[str, float] = field(hash=False)
    outlooks: tuple[Outlook, ...]
    scenarios: tuple[Scenario, ...] = ()
    assumes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    assumed: bool = False

    def outlook(self, estimator: str | None = None) -> Outlook:
        """Return the outlook of an estimator, by default of the first."""
        return next(each for each in self.outlooks if estimator in (None, each.estimator))

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as `--json` prints it."""
        return {"format": FORMAT, **asdict(self), "version": __version__}

    def to_pandas(self) -> pd.DataFrame:
        """Return the plan as a frame of pandas: a row for each scenario, estimator and rank."""
        return pandas_frame(self._columns())

    def to_polars(self) -> pl.DataFrame:
        """Return the plan as a frame of Polars: a row for each scenario, estimator and rank."""
        return polars_frame(self._columns())

    def _columns(self) -> Columns:
        looks = [("now", self.outlooks), *((each.name, each.outlooks) for each in self.scenarios)]
        rows = [
            {"scenario": name, "estimator": outlook.estimator, **asdict(need)}
            for name, outlooks in looks
            for outlook in outlooks
            for need in outlook.needs
        ]
        return {name: (kind, [row[name] for row in rows]) for name, kind in _KINDS.items()}

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.to_text())}</pre>"

    def to_text(self) -> str:
        """Return the plan as tables."""
        blocks = [self._head(), self._main(), self._by_estimator(), self._otherwise(), self._foot()]
        return "\n\n".join(block for block in blocks if block)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw how intervals narrow with more data, and return the Axes."""
        from posbias.planning.pictures import draw_plan

        return draw_plan(self, ax)

    def _head(self) -> str:
        counted = f"{self.page_views:,} page views" + ("" if self.queries is None else f" of {self.queries:,} queries")
        given = f"assumed, told for {counted}" if self.assumed else counted
        return _wrapped(
            f"{100 * self.level:g}% intervals of ±{_percent(self.precision)}; {given} ({_split(self.traffic)})"
        )

    def _main(self) -> str:
        chosen = self.outlooks[0]
        needs, counted = chosen.needs, self.queries is not None
        now = f"at {_rounded(self.queries)}" if self.assumed else "now"
        columns = [
            Column("rank", [f"{need.rank}" for need in needs]),
            Column(now, [_precision(need.precision) for need in needs]),
            Column("times", [_times(need.times) for need in needs]),
        ]
        if counted:
            columns.append(Column("queries needed", [_needed(need, need.queries, self.queries) for need in needs]))
        if counted and not self.assumed:
            columns.append(Column("more queries", [_more(need.more_queries) for need in needs]))
        if self.assumed:
            views = [_needed(need, need.page_views, self.page_views) for need in needs]
            columns.append(Column("page views needed", views))
        else:
            columns.append(Column("more page views", [_more(need.more_page_views) for need in needs]))
        return f"{chosen.estimator}\n{table(columns, remarks=[printable(need.reason or '') for need in needs])}"

    def _by_estimator(self) -> str:
        if len(self.outlooks) < 2:
            return ""
        counted, total = self.queries is not None, self.queries or self.page_views
        columns = [Column("rank", [f"{need.rank}" for need in self.outlooks[0].needs])]
        for each in self.outlooks:
            cells = [_needed(need, need.queries if counted else need.page_views, total) for need in each.needs]
            columns.append(Column(each.estimator, cells))
        return f"{'queries' if counted else 'page views'} needed, by estimator\n{table(columns)}"

    def _otherwise(self) -> str:
        if not self.scenarios:
            return ""
        chosen = self.outlooks[0]
        columns = [Column("rank", [*(f"{need.rank}" for need in chosen.needs), "need"])]
        for name, outlook in [("now", chosen), *((each.name, each.outlooks[0]) for each in self.scenarios)]:
            own = [outlook.need(need.rank) for need in chosen.needs]
            told = [_precision(None if n is None else n.precision) for n in own]
            worst = outlook.worst
            columns.append(Column(printable(name), [*told, _times(None if worst is None else worst.times)]))
        lines = [f"the same {self.page_views:,} page views otherwise, {chosen.estimator}", table(columns)]
        lines.append(_wrapped("need: times the page views until every rank that is foreseen is as precise as wanted"))
        lines += [_wrapped(f"{each.name}: {each.assumes}") for each in self.scenarios if each.assumes]
        return "\n".join(lines)

    def _foot(self) -> str:
        needs = [need for each in self.outlooks for need in each.needs]
        ranges = [_RANGES] if any(need.times is None and need.times_low is not None for need in needs) else []
        return "\n".join(map(_wrapped, [*(f"! {note}" for note in self.notes), *ranges, *self.assumes]))

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


def _wrapped(text: str) -> str:
    return "\n".join(folded(printable(text)))


def _split(traffic: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_percent(share)}" for name, share in traffic.items())


def _percent(share: float) -> str:
    return f"{float(f'{100 * share:.3g}'):g}%"


def _precision(share: float | None) -> str:
    if share is None:
        return "–"
    return f"±{100 * share:.1f}%" if share < 1 else f"±{100 * share:,.0f}%" if share < 100 else "no bound"


def _times(times: float | None) -> str:
    if times is None:
        return "–"
    return f"×{times:.2f}" if times < 10 else f"×{times:,.0f}" if times < 1e5 else "×10⁵+"


def _rounded(count: int | None) -> str:
    """Return a count to three digits: no more of a prediction is worth reading."""
    if count is None:
        return "–"
    if count <= 0:
        return "0"
    step = 10 ** max(0, floor(log10(count)) - 2)
    return f"{-(-count // step) * step:,}"


def _needed(need: Need, count: int | None, total: int | None) -> str:
    """Return how much of what there is `total` of is needed: a number, or a range where that is not known."""
    if count is not None or total is None or need.times_low is None or need.times_high is None:
        return _rounded(count)
    return _BETWEEN.join(_rounded(ceil(times * total)) for times in (need.times_low, need.times_high))


def _more(count: int | None) -> str:
    return "enough" if count == 0 else _rounded(count)
