"""Plan how much more data a curve needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from posbias._arrays import FloatArray
from posbias._optional import Columns, optional, pandas_frame, polars_frame
from posbias._plotstyle import COLORS, MARKERS, axes_of, draw_legend, dressed, legible, refuse_other, save_picture
from posbias._text import Column, folded, printable, table
from posbias._validate import DEFAULT_LEVEL, DEFAULT_MAX_RANK, number, one_of, share, shares, texts, whole
from posbias.engines import EngineChoice, open_log
from posbias.errors import EstimateError, PosbiasError
from posbias.estimators import FROM_HARVESTS, CrossFit
from posbias.estimators.cross_fit import STICKY_DISPERSION
from posbias.harvesting.harvest import Harvest, harvest
from posbias.harvesting.harvest import harvest as make_harvest
from posbias.logs.click_log import ClickLog
from posbias.planning.forecast import (
    BETWEEN,
    SAME,
    TOO_FEW,
    Base,
    Measured,
    Outlook,
    Scenario,
    Stage,
    Wish,
    compact,
    foresee,
    measure,
    more_of,
    needed_of,
    percent,
    play,
    precision_at,
    precision_of,
    rounded,
    times_of,
)
from posbias.progress import Progress, silent
from posbias.simulation import World, simulate
from posbias.version import __version__

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from matplotlib.axes import Axes

FORMAT = 1
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
# So many ranks get a line; more would hide each other.
_MOST_RANKS = 6
_WIDEST = 100.0
_MOST_SPAN = 1e4
# Page views of each of the logs simulated, and how many of these: a few seconds in all.
_PAGE_VIEWS, _LOGS = 30_000, 4
_FEWEST_QUERIES = 500
_ASSUMES_SIMULATED = (
    "Standard errors are read from simulated logs of the assumed world: users of the position-based model and "
    "rankers that share a part of their noise. Half-widths fall as one over the root of the number of queries; ±x% is "
    "exp of the half-width on the log scale, less 1."
)
_ASSUMES_MEASURED = (
    "Half-widths fall as one over the root of the number of queries: more queries like those seen, with as many page "
    "views each and the same split of traffic. ±x% is exp of the half-width on the log scale, less 1."
)
_STICKY = (
    "What other traffic would bring is foreseen as if each page view drew its ranker by itself. Here page views of one "
    "query went to rankers together, so take it for a rough guide."
)
# No interval was ever as narrow as that, nor a log as long.
_FINEST, _MOST_QUERIES = 1e-6, 10**15


def plan(
    source: Harvest | ClickLog | World,
    *,
    precision: float = 0.05,
    level: float = DEFAULT_LEVEL,
    estimators: Sequence[str] = tuple(FROM_HARVESTS),
    queries: int | None = None,
    traffic: Mapping[str, float] | Sequence[Mapping[str, float]] = (),
    scenarios: bool = True,
    curve: Sequence[float] | None = None,
    max_rank: int = DEFAULT_MAX_RANK,
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    seed: int = 0,
) -> Plan:
    """Say how much more data intervals need to be ± a share of the estimate, and what else would narrow them.

    Arguments:
        source: a harvest; a log, which is harvested first; or, before any data, a world as you assume it to be.
        precision: the share: 0.05 is ±5%.
        level: the coverage of the intervals.
        estimators: by name, the first the one that scenarios are told for.
        queries: how many distinct queries a harvest holds, which it does not know itself; a log's are counted. Of a
            world, the number for which ± is told.
        traffic: other splits of traffic to look at, each with a share by ranker, such as {"a": 0.5, "b": 0.5}.
        scenarios: whether to look at other traffic and at one more ranker; only where all rankers' ranks are known.
        curve: p_k / p_1 of an assumed world, in place of its eta.
        max_rank: M, of a log.
        engine: what harvests a log, as in `posbias.harvest`.
        progress: called with what is being done and the share done.
        seed: of what is drawn for scenarios and assumed worlds.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=1000, max_rank=3)))
        >>> found = plan(log, precision=0.02, max_rank=3, scenarios=False)
        >>> [round(need.times, 1) for need in found.outlook("cross-fit").needs]
        [10.1, 22.2]
    """
    wish = Wish(_precision(precision), share("level", level))
    names = _estimators(estimators)
    splits = _splits(traffic)
    if queries is not None:
        whole("queries", queries, 1, _MOST_QUERIES)
    whole("seed", seed, 0)
    if isinstance(source, World):
        if splits:
            raise PosbiasError("An assumed world has its own traffic. Give the split as World(traffic=...).")
        return plan_assumed(source, wish, names, curve=curve, told_for=queries, progress=progress, seed=seed)
    if curve is not None:
        raise PosbiasError("curve is what a world is assumed to have; a log or harvest has its own. Leave it out.")
    if isinstance(source, ClickLog):
        made = make_harvest(source, max_rank=max_rank, engine=engine, progress=progress)
        queries = count_queries(source, max_rank, engine, progress) if queries is None else queries
    elif isinstance(source, Harvest):
        made = source
    else:
        raise PosbiasError(f"plan takes a Harvest, a ClickLog or a World, not a {type(source).__name__}.")
    return _plan(made, wish, names, queries, splits, scenarios, progress, seed)


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
        pass

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


def _precision(value: float) -> float:
    found = number(value)
    if found is None or not _FINEST <= found < 10:
        raise PosbiasError(
            f"precision must be a share above 0, such as 0.05 for ±5%, of {_FINEST:g} or more, not {value!r}."
        )
    return found


def _estimators(names: Sequence[str]) -> list[str]:
    found = list(dict.fromkeys([names] if isinstance(names, str) else texts("estimators", names)))
    for name in found:
        one_of("estimators", name, FROM_HARVESTS)
    if not found:
        raise PosbiasError(f"estimators must name one or more of {', '.join(FROM_HARVESTS)}, found none.")
    return found


def _splits(traffic: Mapping[str, float] | Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return splits of traffic, of which one may stand alone."""
    given = [traffic] if isinstance(traffic, Mapping) or not isinstance(traffic, list | tuple) else traffic
    return [shares("traffic", split, "{'a': 0.5, 'b': 0.5}") for split in given]


def plan_assumed(
    world: World,
    wish: Wish,
    names: Sequence[str],
    *,
    curve: Sequence[float] | None = None,
    told_for: int | None = None,
    progress: Progress = silent,
    seed: int = 0,
) -> Plan:
    """Return the plan of a world, ± told for as many queries as it has, or for `told_for`."""
    if len([share for share in world.shares if share > 0]) < 2:
        raise EstimateError(
            f"Of the assumed rankers, {', '.join(world.rankers)}, fewer than two serve traffic. "
            "Propensities come from documents that two rankers put at different ranks: assume two."
        )
    world = world if curve is None else with_curve(world, curve)
    told = world.queries if told_for is None else told_for
    queries = max(_FEWEST_QUERIES, round(_PAGE_VIEWS / world.repeats))
    drawn: list[list[Measured]] = []
    for i in range(_LOGS):
        progress("Simulating", i / _LOGS)
        table = simulate(replace(world, queries=queries, seed=seed + i), aggregated=True)
        made = harvest(ClickLog(table), max_rank=world.max_rank)
        drawn.append([measure(name, made, wish.level) for name in names])
    measured = [_joined(list(each), queries) for each in zip(*drawn, strict=True)]
    base = Base(queries * world.repeats, queries, at=told / queries, held=False)
    return Plan(
        precision=wish.precision,
        level=wish.level,
        page_views=round(told * world.repeats),
        queries=told,
        traffic={name: round(share, 4) for name, share in zip(world.rankers, world.shares, strict=True)},
        outlooks=tuple(foresee(each, wish, base) for each in measured),
        assumes=(_ASSUMES_SIMULATED,),
        notes=tuple(dict.fromkeys(note for each in measured for note in each.notes)),
        assumed=True,
    )


def with_curve(world: World, curve: Sequence[float]) -> World:
    """Return a world with this curve, from rank 1 on."""
    found = [number(p) for p in curve] if isinstance(curve, Iterable) else []
    values = [p for p in found if p is not None and p > 0]
    if len(values) < max(len(found), world.max_rank):
        raise PosbiasError(
            f"The assumed curve must have a number above 0 for each of the {world.max_rank} ranks, found {curve!r}. "
            "Give a longer curve, or a smaller max_rank."
        )
    scale = max(values[: world.max_rank])
    shape = tuple(p / scale for p in values[: world.max_rank])
    return CurvedWorld(**{f.name: getattr(world, f.name) for f in fields(World)} | {"segments": {}}, curve=shape)


@dataclass(frozen=True)
class CurvedWorld(World):
    """A world with a curve given rank by rank in place of an eta.

    Example:
        >>> CurvedWorld(max_rank=3, curve=(1.0, 0.9, 0.4)).propensity.tolist()
        [1.0, 0.9, 0.4]
    """

    curve: tuple[float, ...] = ()

    @property
    def curves(self) -> FloatArray:
        """The curve, as one row."""
        return np.array([self.curve], dtype=np.float64)


def _joined(drawn: Sequence[Measured], queries: int) -> Measured:
    """Return what several logs say together: the mean variance of each rank that most of them have an interval for."""
    se = np.stack([each.se for each in drawn])
    degrees = np.stack([each.degrees for each in drawn])
    known = np.isfinite(se)
    enough = 2 * known.sum(axis=0) > len(drawn)

    def mean(values: FloatArray) -> FloatArray:
        with np.errstate(invalid="ignore", divide="ignore"):
            total = np.where(known, values, 0.0).sum(axis=0) / known.sum(axis=0)
        return np.where(enough, total, np.nan)

    def reason(k: int) -> str:
        # What all logs lack that have no interval, they do not lack by chance.
        told = {each.reasons[k] for each, has in zip(drawn, known[:, k], strict=True) if not has}
        why = told.pop() if len(told) == 1 else None
        return f"no interval from {queries:,} simulated queries: {why or 'too thin to foresee'}"

    return replace(
        drawn[0],
        se=np.sqrt(mean(se**2)),
        degrees=1 / mean(1 / degrees),
        reasons=[None if good else reason(k) for k, good in enumerate(enough)],
        logs=len(drawn),
    )


def count_queries(log: ClickLog, max_rank: int, engine: EngineChoice | None = None, progress: Progress = silent) -> int:
    """Return how many distinct queries of a log have results in the top M."""
    with open_log(log, engine, progress) as opened:
        d, schema = opened.dialect, opened.schema
        position = d.integer(d.quote(schema.position), schema.types[schema.position])
        sql = f"SELECT COUNT(DISTINCT {d.quote(schema.query)}) FROM log WHERE {position} <= {max_rank}"
        return int(opened.rows(sql, "Counting queries")[0][0])


def _plan(
    made: Harvest,
    wish: Wish,
    names: Sequence[str],
    queries: int | None,
    splits: Sequence[Mapping[str, float]],
    scenarios: bool,
    progress: Progress,
    seed: int,
) -> Plan:
    notes = []
    if made.kind == "pairs" and "cross-fit" in names:
        names = [name for name in names if name != "cross-fit"]
        left = "The harvest holds sums over pairs of ranks, from which cross-fit cannot be made: it is left out."
        if not names:
            raise EstimateError(f"{left} Plan for all-pairs.")
        notes.append(left)
    total = made.views.sum()
    results = int(made.shown("rank")[0].sum())
    if queries is not None and not len(made.buckets) <= queries <= results:
        raise PosbiasError(
            f"queries is {queries:,}, but the harvest has {results:,} results in {len(made.buckets)} buckets of "
            "queries, each of one query or more. Give the number of distinct queries of the log."
        )
    measured = []
    for i, name in enumerate(names):
        progress("Estimating", i / len(names))
        measured.append(measure(name, made, wish.level))
    if not any(np.isfinite(each.se[1:]).any() for each in measured):
        told = next((reason for each in measured for reason in each.reasons[1:] if reason), "no rank has an interval")
        raise EstimateError(
            f"There is no interval to plan from: {told}. Harvest more queries first, or plan before any data, from a "
            "world as you assume it to be."
        )
    base = Base(float(total), queries)
    stage = Stage(made, measured, wish, base, seed, progress)
    why_not = _no_scenarios(made) if scenarios else None
    if why_not and splits:
        raise PosbiasError(why_not)
    if why_not:
        notes.append(why_not)
    played = play(stage, splits) if scenarios and not why_not else ()
    foreseen = any(outlook.foreseen for each in played for outlook in each.outlooks)
    if foreseen and CrossFit().count(made).dispersion > STICKY_DISPERSION:
        notes.append(_STICKY)
    return Plan(
        precision=wish.precision,
        level=wish.level,
        page_views=int(total),
        queries=queries,
        traffic=stage.named(stage.shares),
        outlooks=tuple(foresee(each, wish, base) for each in measured),
        scenarios=played,
        assumes=(_ASSUMES_MEASURED, *((SAME,) if foreseen else ())),
        notes=(*notes, *_notes(measured), *_segments(made)),
    )


def _no_scenarios(made: Harvest) -> str | None:
    """Say why nothing is known of other traffic."""
    if made.kind == "signatures":
        return None
    if made.kind == "pairs":
        return (
            "The harvest holds sums over pairs of ranks, which do not tell what another split of traffic would bring."
        )
    if made.layout.ranks_known:
        return (
            f"The harvest is weighted by {made.weighting!r}, for which it counts what each pair was shown, not where "
            "all rankers put it: what other traffic would bring is not known. Harvest it with the weighting 'traffic'."
        )
    return (
        "In replay it is not known where the rankers that were not shown would have put a document, so that nothing "
        "tells what other traffic or another ranker would bring. Log every ranker's rank (ranks or rankings)."
    )


def _notes(measured: Sequence[Measured]) -> list[str]:
    return list(dict.fromkeys(note for each in measured for note in each.notes))


def _segments(made: Harvest) -> list[str]:
    if not made.by:
        return []
    return ["The harvest has segments; this is the plan of all together. Plan for one with harvest.segment(...)."]


def draw_plan(plan: Plan, ax: Axes | None = None) -> Axes:
    """Draw the half-width at some ranks against queries, or page views where those were not counted."""
    refuse_other("plan", plan, Plan)
    ax = axes_of(ax)
    dressed(ax)
    outlook = plan.outlooks[0]
    known = [need for need in outlook.needs if need.times_high is not None and need.precision is not None]
    if not known:
        why = f"{TOO_FEW} at every rank" if outlook.foreseen or _ranges(outlook) else "it has no interval at any rank"
        raise PosbiasError(f"There is nothing to draw of {outlook.estimator}: {why}.")
    chosen = sorted({round(i) for i in np.linspace(0, len(known) - 1, min(_MOST_RANKS, len(known)))})
    count = plan.page_views if plan.queries is None else plan.queries
    most = max(need.times or need.times_high or 1.0 for need in known)
    least = min(0.25, 0.5 * min(need.times or need.times_low or 1.0 for need in known))
    # Up to what there is, which is marked, and on from there.
    times = np.r_[np.geomspace(least, 1, 20), np.geomspace(1, 3 * max(most, 1.0), 40)[1:]]
    for i, place in enumerate(chosen):
        need = known[place]
        se, degrees = np.array([need.standard_error]), np.array([need.degrees_of_freedom])
        wide = precision_at(times, se, degrees, plan.level, outlook.buckets, plan.queries)
        style: dict[str, Any] = {"color": COLORS[i], "marker": MARKERS[i], "markersize": 5, "markevery": [19]}
        rough = need.times is None
        label = f"rank {need.rank}" + (", roughly" if rough else "")
        # Beyond that there is no bound worth a place in the picture.
        drawn = np.where(wide < _WIDEST, 100 * wide, np.nan)
        ax.plot(count * times, drawn, label=label, linestyle="--" if rough else "-", **style)
    ax.axhline(100 * plan.precision, color="black", linestyle=":", linewidth=1.2)
    ax.annotate(f"±{100 * plan.precision:g}%", (count * times[-1], 100 * plan.precision), ha="right", va="bottom")
    ax.axvline(count, color="grey", linewidth=0.8, alpha=0.6)
    ax.set_xscale("log")
    ax.set_yscale("log")
    # At 1, 2 and 5 of each power of ten, as people write them, and at powers alone where these print over each other.
    ticker = optional("matplotlib.ticker", "Plots need")
    for axis, form in ((ax.xaxis, lambda x, _: compact(x)), (ax.yaxis, "{x:g}%")):
        low, high = sorted(axis.get_view_interval())
        axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5) if high < _MOST_SPAN * low else (1,)))
        axis.set_major_formatter(form)
        axis.set_minor_formatter(ticker.NullFormatter())
    ax.set_xlabel("Page views" if plan.queries is None else "Queries")
    ax.set_ylabel(f"{100 * plan.level:g}% interval, ±")
    ax.set_title(legible(f"How intervals narrow with more data: {outlook.estimator}"), fontsize="medium")
    draw_legend(ax)
    return ax


def _ranges(outlook: Outlook) -> bool:
    return any(need.times_high is not None for need in outlook.needs)


def _wrapped(text: str) -> str:
    return "\n".join(folded(printable(text)))


def _split(traffic: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {percent(share)}" for name, share in traffic.items())


def save_plan(plan: Plan, path: str) -> None:
    """Write the picture of a plan as PNG, SVG or PDF, whole or not at all."""
    figure: Any = draw_plan(plan).figure
    save_picture(figure, path)


def read_curve(path: str) -> list[float]:
    """Read the curve to assume: the truth of a simulated log, or an estimate as JSON."""
    from posbias.curves.files import load, looks_like_curve, read_truth

    if not looks_like_curve(path):
        return read_truth(path)
    found = load(path).propensity.tolist()
    if not all(p == p and p > 0 for p in found):
        unknown = [str(k) for k, p in enumerate(found, start=1) if not (p == p and p > 0)]
        raise PosbiasError(
            f"The curve in {path!r} has no number at rank {', '.join(unknown)}. Assume one that is known at every rank."
        )
    return list(found)
