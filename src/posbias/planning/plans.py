"""A plan as a value: for people as a table, for programs as JSON, as a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from posbias.frames import Columns, pandas_frame, polars_frame
from posbias.planning.numerals import BETWEEN, more_of, needed_of, percent, precision_of, rounded, times_of
from posbias.tables import Column, folded, table
from posbias.version import __version__
from posbias.wording import printable

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from matplotlib.axes import Axes

FORMAT = 1
# How reasons begin that a scenario has no half-width, and the commonest.
NOT_FORESEEN, TOO_FEW = "not to be foreseen", "too few queries decide it"
_RANGES = (
    f"a{BETWEEN}b: too few queries decide it for one number; what is needed lies between these about 95% of the time "
    "(k: thousands, M: millions). –: not even that is known."
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
        times_low: how many times the data at the least, by how well the standard error is known (about 95%).
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

    def between(self, total: float | None = 1.0) -> tuple[float, float] | None:
        """Return the least and the most that is needed of what there is `total` of; None where that is not known."""
        if total is None or self.times_low is None or self.times_high is None:
            return None
        return self.times_low * total, self.times_high * total


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

    @property
    def foreseen(self) -> bool:
        """Whether a rank has a half-width."""
        return any(need.precision is not None for need in self.needs)

    @property
    def why_not(self) -> str:
        """Why no rank of a scenario has one."""
        reasons = [need.reason or "" for need in self.needs]
        return next((why for why in reasons if why.startswith(NOT_FORESEEN)), f"{NOT_FORESEEN}: {TOO_FEW}")

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
            f"{100 * self.level:g}% intervals of ±{percent(self.precision)}; {given} ({_split(self.traffic)})"
        )

    def _main(self) -> str:
        chosen = self.outlooks[0]
        needs, counted = chosen.needs, self.queries is not None
        now = f"at {rounded(self.queries)}" if self.assumed else "now"
        columns = [
            Column("rank", [f"{need.rank}" for need in needs]),
            Column(now, [precision_of(need.precision) for need in needs]),
            Column("times", [times_of(need.times, need.between()) for need in needs]),
        ]
        views = [need.between(self.page_views) for need in needs]
        if counted:
            asked = [need.between(self.queries) for need in needs]
            columns.append(Column("queries needed", list(map(needed_of, [need.queries for need in needs], asked))))
        if counted and not self.assumed:
            more = [more_of(need.more_queries, own, self.queries or 0) for need, own in zip(needs, asked, strict=True)]
            columns.append(Column("more queries", more))
        if self.assumed:
            found = list(map(needed_of, [need.page_views for need in needs], views))
            columns.append(Column("page views needed", found))
        else:
            more = [more_of(need.more_page_views, own, self.page_views) for need, own in zip(needs, views, strict=True)]
            columns.append(Column("more page views", more))
        return f"{chosen.estimator}\n{table(columns, remarks=[printable(need.reason or '') for need in needs])}"

    def _by_estimator(self) -> str:
        if len(self.outlooks) < 2:
            return ""
        counted, total = self.queries is not None, self.queries or self.page_views
        columns = [Column("rank", [f"{need.rank}" for need in self.outlooks[0].needs])]
        for each in self.outlooks:
            cells = [
                needed_of(need.queries if counted else need.page_views, need.between(total)) for need in each.needs
            ]
            columns.append(Column(each.estimator, cells))
        return f"{'queries' if counted else 'page views'} needed, by estimator\n{table(columns)}"

    def _otherwise(self) -> str:
        if not self.scenarios:
            return ""
        chosen = self.outlooks[0]
        looks = [(each, each.outlooks[0]) for each in self.scenarios]
        told = [(each.name, own) for each, own in looks if own.foreseen]
        if not told:
            why = looks[0][1].why_not
            return _wrapped(f"What the same {self.page_views:,} page views would bring otherwise is {why}.")
        columns = [Column("rank", [*(f"{need.rank}" for need in chosen.needs), "need"])]
        for name, outlook in [("now", chosen), *told]:
            needs = [outlook.need(need.rank) for need in chosen.needs]
            cells = [precision_of(None if n is None else n.precision) for n in needs]
            worst = outlook.worst
            columns.append(Column(printable(name), [*cells, times_of(None if worst is None else worst.times)]))
        lines = [f"the same {self.page_views:,} page views otherwise, {chosen.estimator}", table(columns)]
        lines.append(_wrapped("need: times the page views until every rank that is foreseen is as precise as wanted"))
        for each, own in looks:
            said = each.assumes if own.foreseen else f"{own.why_not}."
            lines += [_wrapped(f"{each.name}: {said}")] if said else []
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
    return ", ".join(f"{name} {percent(share)}" for name, share in traffic.items())
