"""Plan how much more data a curve needs: from a harvest, a log or an assumed world to the queries required.

`plan` measures standard errors on a harvest, or on simulated logs of an assumed world before there is any data, and
`posbias.planning.forecast` turns them into the data required. `Plan` prints as tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from posbias._arrays import FloatArray, one_blas_thread
from posbias._charts import MARKERS, Chart, Rule, Series, number_axis
from posbias._defaults import DEFAULT_LEVEL, DEFAULT_MAX_RANK
from posbias._matplotlib import draw, save
from posbias._optional import Columns, pandas_frame, polars_frame
from posbias._text import Column, format_ranks, printable, table, wrap
from posbias._validate import check_type, integer, number, one_of, share, shares, texts
from posbias.engines import EngineChoice, open_log
from posbias.errors import EstimateError, PosbiasError
from posbias.estimators import FROM_HARVESTS, CrossFit
from posbias.estimators.cross_fit import STICKY_DISPERSION
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.harvest import harvest as make_harvest
from posbias.logs.click_log import ClickLog
from posbias.planning.forecast import (
    TOO_FEW_QUERIES,
    TRAFFIC_ASSUMPTION,
    DataSize,
    Forecast,
    PrecisionTarget,
    RankRequirement,
    Scenario,
    ScenarioInputs,
    StandardErrors,
    forecast_ranks,
    forecast_scenarios,
    measure_errors,
    precision_at,
)
from posbias.progress import Progress, silent
from posbias.simulation import World, simulate
from posbias.version import __version__

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from matplotlib.axes import Axes

FORMAT = 1
_DASH = " – "
_RANGE_NOTE = (
    "≈: a rough number, because there are too few queries for a precise one. About 95% of the time, what is needed "
    f"lies in the range a{_DASH}b (k: thousands, M: millions). –: not even a range is known."
)
# The columns of a frame and their types.
_COLUMN_TYPES: dict[str, type[int] | type[float] | type[str]] = {
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
    "rough_times": float,
}
# Ranks with a line in the plot; more would hide each other.
_MAX_LINES = 6
# The widest half-width that the plot shows.
_WIDEST = 100.0
# Page views of each simulated log, and the number of logs: a few seconds in all.
_SIMULATED_PAGE_VIEWS, _SIMULATED_LOGS = 30_000, 4
_FEWEST_SIMULATED_QUERIES = 500
_HALF_WIDTH = "±x% is exp(half-width on the log scale) − 1."
_SIMULATED_ASSUMPTION = (
    "Standard errors come from simulated logs of the assumed world: users follow the position-based model, and rankers "
    "share a part of their noise. Half-widths of intervals shrink with the square root of the number of queries. "
    f"{_HALF_WIDTH}"
)
_MEASURED_ASSUMPTION = (
    "Half-widths of intervals shrink with the square root of the number of queries, if more queries are like those "
    f"seen: as many page views each, and the same split of traffic. {_HALF_WIDTH}"
)
_STICKY_NOTE = (
    "Forecasts for other traffic assume that each page view draws its ranker independently. Here, page views of one "
    "query went to rankers together: take these forecasts as a rough guide."
)
_FINEST_PRECISION, _MOST_QUERIES = 1e-6, 10**15
# Other traffic is recommended if it needs at most this share of the data.
_WORTHWHILE = 0.8


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
    """Plan how much more data the confidence intervals of a curve need, and what else would narrow them.

    Arguments:
        source (Harvest, ClickLog or World): a harvest; a log, which is harvested first; or, before there is any data, a
            world as you assume it to be.
        precision (float, default 0.05): the half-width that is wanted, as a share of the estimate: 0.05 is ±5%.
        level (float, default 0.95): the coverage of the intervals.
        estimators (sequence of str, default all): names of estimators. Scenarios are forecast for the first one.
        queries (int, default None): the number of distinct queries of a harvest, which a harvest does not contain; the
            queries of a log are counted. For a world, the number of queries for which half-widths are shown.
        traffic (dict or list of dicts, default none): other splits of traffic to forecast, each with a share by ranker,
            such as {"a": 0.5, "b": 0.5}.
        scenarios (bool, default True): whether to forecast other traffic and one more ranker. This takes the ranks that
            all rankers give.
        curve (sequence of float, default None): p_k / p_1 of an assumed world, in place of its eta.
        max_rank (int, default 10): M, for a log.
        engine (str or engine, default "duckdb"): what harvests a log, as in `posbias.harvest`.
        progress (callable, default none): called with the present step and the share that is done.
        seed (int, default 0): seeds the random draws of scenarios and assumed worlds.

    Returns:
        A `Plan`, which prints as tables.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=1000, max_rank=3)))
        >>> result = plan(log, precision=0.02, max_rank=3, scenarios=False)
        >>> [round(requirement.times, 1) for requirement in result.forecast("cross-fit").requirements]
        [10.1, 22.2]
    """
    target = PrecisionTarget(_valid_precision(precision), share("level", level))
    names = _valid_estimators(estimators)
    splits = _valid_splits(traffic)
    if queries is not None:
        integer("queries", queries, 1, _MOST_QUERIES)
    integer("seed", seed, 0)
    if isinstance(source, World):
        if splits:
            raise PosbiasError("An assumed world has its own traffic. Give the split as World(traffic=...).")
        return _plan_world(source, target, names, curve, queries, progress, seed)
    if curve is not None:
        raise PosbiasError("curve goes with an assumed world only: a log or harvest has its own curve. Leave it out.")
    if isinstance(source, ClickLog):
        harvest = make_harvest(source, max_rank=max_rank, engine=engine, progress=progress)
        queries = count_queries(source, max_rank, engine, progress) if queries is None else queries
    elif isinstance(source, Harvest):
        harvest = source
    else:
        raise PosbiasError(f"plan takes a Harvest, a ClickLog or a World, not a {type(source).__name__}.")
    return _plan_harvest(harvest, target, names, queries, splits, scenarios, progress, seed)


@dataclass(frozen=True)
class Plan:
    """How much more data the intervals of a curve need to be as precise as wanted; it prints as tables.

    Made by `posbias.plan`.

    Attributes:
        precision (float): the half-width that is wanted, as a share of the estimate: the upper end of the interval lies
            this share above the estimate.
        level (float): the coverage of the intervals.
        page_views (int): the present page views; for an assumed world, those for which half-widths are shown.
        queries (int or None): the present queries, if they were counted; for an assumed world, those for which
            half-widths are shown.
        traffic (dict): the share of each ranker.
        forecasts (tuple of Forecast): one for each estimator. Tables show the first one.
        scenarios (tuple of Scenario): the same number of page views with other traffic, or with one more ranker.
        assumptions (tuple of str): what the forecasts assume.
        notes (tuple of str): cautions.
        assumed (bool): whether the plan is for an assumed world, before there is any data.
    """

    precision: float
    level: float
    page_views: int
    queries: int | None
    traffic: Mapping[str, float] = field(hash=False)
    forecasts: tuple[Forecast, ...]
    scenarios: tuple[Scenario, ...] = ()
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    assumed: bool = False

    def forecast(self, estimator: str | None = None) -> Forecast:
        """Return the forecast of an estimator, by default of the first one."""
        return next(forecast for forecast in self.forecasts if estimator in (None, forecast.estimator))

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as `--json` prints it."""
        return {"format": FORMAT, **asdict(self), "version": __version__}

    def to_pandas(self) -> pd.DataFrame:
        """Return the plan as a pandas frame with a row for each scenario, estimator and rank."""
        return pandas_frame(self._columns())

    def to_polars(self) -> pl.DataFrame:
        """Return the plan as a Polars frame with a row for each scenario, estimator and rank."""
        return polars_frame(self._columns())

    def _columns(self) -> Columns:
        named = [("now", self.forecasts), *((scenario.name, scenario.forecasts) for scenario in self.scenarios)]
        rows = [
            {"scenario": name, "estimator": forecast.estimator, **asdict(requirement)}
            for name, forecasts in named
            for forecast in forecasts
            for requirement in forecast.requirements
        ]
        return {name: (kind, [row[name] for row in rows]) for name, kind in _COLUMN_TYPES.items()}

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.to_text())}</pre>"

    def to_text(self) -> str:
        """Return the plan as tables."""
        blocks = [
            "\n".join([self._title(), *map(_wrap, self._answer())]),
            self._requirement_table(),
            self._estimator_table(),
            self._scenario_table(),
            self._footnotes(),
        ]
        return "\n\n".join(block for block in blocks if block)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw how intervals narrow with more data, and return the Axes."""
        return draw_plan(self, ax)

    def _title(self) -> str:
        size = f"{self.page_views:,} page views" + ("" if self.queries is None else f" of {self.queries:,} queries")
        data = f"an assumed world, {size}" if self.assumed else size
        traffic = ", ".join(f"{name} {_format_percent(share)}" for name, share in self.traffic.items())
        return _wrap(
            f"Target: {100 * self.level:g}% intervals of ±{_format_percent(self.precision)}. Data: {data} ({traffic})."
        )

    def _answer(self) -> list[str]:
        """Return the plan in a few sentences: what is needed, for which ranks nothing is known, and what would help."""
        first, target = self.forecasts[0], f"±{_format_percent(self.precision)}"
        known = [each for each in first.requirements if each.times is not None]
        unknown = format_ranks([each.rank for each in first.requirements if each.times is None]).capitalize()
        worst = first.worst
        if worst is None:
            have = "has" if len(first.requirements) == 1 else "have"
            rough = any(each.rough_times is not None for each in first.requirements)
            ranges = " The table has rough numbers, with ranges." * rough
            return [f"Needed: not known. {unknown} {have} too little data for a precise number.{ranges}"]
        done = [each.rank for each in known if (each.times or 0) <= 1]
        if len(done) == len(known):
            sentences = [f"Needed: no more data. {format_ranks(done).capitalize()} already have intervals of {target}."]
        else:
            size = f"{_format_count(worst.page_views)} page views"
            size += "" if worst.queries is None else f" of {_format_count(worst.queries)} queries"
            times = "" if self.assumed else f", {_format_multiple(worst.times or 0.0)} times the present data"
            ranks = "every rank" if len(known) == len(first.requirements) else "every rank with a forecast"
            sentences = [f"Needed: {size}{times}, for {target} at {ranks}; rank {worst.rank} needs the most."]
            half = [each.rank for each in known if (each.times or 0) <= (worst.times or 0) / 2]
            if half:
                sentences.append(f"{format_ranks(half).capitalize()} need{'s' * (len(half) == 1)} at most half of it.")
        if len(known) < len(first.requirements):
            single = len(first.requirements) - len(known) == 1
            sentences.append(f"{unknown} {'has' if single else 'have'} too little data for a precise number.")
        return [" ".join(sentences), *self._best_scenario(worst)]

    def _best_scenario(self, worst: RankRequirement) -> list[str]:
        """Return the scenario that needs the least data for all ranks, if it needs a fifth less than the present."""
        needs = {
            scenario.name: found.times
            for scenario in self.scenarios
            if (found := scenario.forecasts[0].worst) is not None and found.times is not None
        }
        name = min(needs, key=lambda name: needs[name], default=None)
        if name is None or worst.times is None or worst.times <= 1 or needs[name] > _WORTHWHILE * worst.times:
            return []
        times = f"{_format_times(needs[name])} instead of {_format_times(worst.times)}"
        return [f"What would help most: {printable(name)} ({times}; see below)."]

    def _requirement_table(self) -> str:
        first = self.forecasts[0]
        requirements, counted = first.requirements, self.queries is not None
        columns = [
            Column("rank", [f"{requirement.rank}" for requirement in requirements]),
            Column(
                f"at {_format_count(self.queries)}" if self.assumed else "now",
                [_format_precision(requirement.precision) for requirement in requirements],
            ),
            Column("times", [_format_times(each.times, each.rough_times) for each in requirements]),
        ]
        if counted:
            needed = [_format_needed(each.queries, each.bounds(self.queries)) for each in requirements]
            columns.append(Column("queries needed", needed))
        if counted and not self.assumed:
            present = self.queries or 0
            more = [_format_more(each.more_queries, each.bounds(present), present) for each in requirements]
            columns.append(Column("more queries", more))
        if self.assumed:
            needed = [_format_needed(each.page_views, each.bounds(self.page_views)) for each in requirements]
            columns.append(Column("page views needed", needed))
        else:
            views = self.page_views
            more = [_format_more(each.more_page_views, each.bounds(views), views) for each in requirements]
            columns.append(Column("more page views", more))
        reasons = [printable(requirement.reason or "") for requirement in requirements]
        return f"{first.estimator}\n{table(columns, remarks=reasons)}"

    def _estimator_table(self) -> str:
        if len(self.forecasts) < 2:
            return ""
        counted, total = self.queries is not None, self.queries or self.page_views
        columns = [Column("rank", [f"{requirement.rank}" for requirement in self.forecasts[0].requirements])]
        for forecast in self.forecasts:
            cells = [
                _format_needed(each.queries if counted else each.page_views, each.bounds(total))
                for each in forecast.requirements
            ]
            columns.append(Column(forecast.estimator, cells))
        return f"{'queries' if counted else 'page views'} needed, by estimator\n{table(columns)}"

    def _scenario_table(self) -> str:
        if not self.scenarios:
            return ""
        first = self.forecasts[0]
        forecasts = [(scenario, scenario.forecasts[0]) for scenario in self.scenarios]
        available = [(scenario.name, forecast) for scenario, forecast in forecasts if forecast.available]
        if not available:
            reason = forecasts[0][1].missing_reason
            return _wrap(f"The same {self.page_views:,} page views with other traffic: {reason}.")
        columns = [Column("rank", [*(f"{requirement.rank}" for requirement in first.requirements), "times"])]
        for name, forecast in [("now", first), *available]:
            requirements = [forecast.requirement(requirement.rank) for requirement in first.requirements]
            cells = [_format_precision(None if each is None else each.precision) for each in requirements]
            worst = forecast.worst
            columns.append(Column(printable(name), [*cells, _format_times(None if worst is None else worst.times)]))
        lines = [f"the same {self.page_views:,} page views with other traffic, {first.estimator}", table(columns)]
        lines.append(_wrap("times: how many times the page views bring every rank with a forecast to the target"))
        for scenario, forecast in forecasts:
            remark = scenario.assumption if forecast.available else f"{forecast.missing_reason}."
            lines += [_wrap(f"{scenario.name}: {remark}")] if remark else []
        return "\n".join(lines)

    def _footnotes(self) -> str:
        requirements = [requirement for forecast in self.forecasts for requirement in forecast.requirements]
        has_range = any(each.times is None and each.times_low is not None for each in requirements)
        notes = [*(f"! {note}" for note in self.notes), *([_RANGE_NOTE] if has_range else []), *self.assumptions]
        return "\n".join(map(_wrap, notes))

    def __str__(self) -> str:
        return self.to_text()

    __repr__ = __str__


def _valid_precision(value: float) -> float:
    precision = number(value)
    if precision is None or not _FINEST_PRECISION <= precision < 10:
        raise PosbiasError(
            f"precision must be a share above 0, such as 0.05 for ±5%, and at least {_FINEST_PRECISION:g}, not "
            f"{value!r}."
        )
    return precision


def _valid_estimators(names: Sequence[str]) -> list[str]:
    unique = list(dict.fromkeys([names] if isinstance(names, str) else texts("estimators", names)))
    for name in unique:
        one_of("estimators", name, FROM_HARVESTS)
    if not unique:
        raise PosbiasError(f"estimators must name one or more of {', '.join(FROM_HARVESTS)}, found none.")
    return unique


def _valid_splits(traffic: Mapping[str, float] | Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return splits of traffic as a list; a single split may stand alone."""
    splits = [traffic] if isinstance(traffic, Mapping) or not isinstance(traffic, list | tuple) else traffic
    return [shares("traffic", split, "{'a': 0.5, 'b': 0.5}") for split in splits]


# ---- Before there is any data


def _plan_world(
    world: World,
    target: PrecisionTarget,
    names: Sequence[str],
    curve: Sequence[float] | None,
    shown_queries: int | None,
    progress: Progress,
    seed: int,
) -> Plan:
    """Return the plan of an assumed world, with half-widths for `shown_queries`, by default those of the world."""
    if len([share for share in world.shares if share > 0]) < 2:
        raise EstimateError(
            f"Fewer than two of the assumed rankers ({', '.join(world.rankers)}) serve traffic. Propensities come from "
            "documents that two rankers put at different ranks: assume two rankers with traffic."
        )
    world = world if curve is None else with_curve(world, curve)
    shown = world.queries if shown_queries is None else shown_queries
    queries = max(_FEWEST_SIMULATED_QUERIES, round(_SIMULATED_PAGE_VIEWS / world.repeats))
    logs: list[list[StandardErrors]] = []
    for i in range(_SIMULATED_LOGS):
        progress("Simulating", i / _SIMULATED_LOGS)
        rows = simulate(replace(world, queries=queries, seed=seed + i), aggregated=True)
        harvest = make_harvest(ClickLog(rows), max_rank=world.max_rank)
        logs.append([measure_errors(name, harvest, target.level) for name in names])
    measured = [_mean_errors(list(errors), queries) for errors in zip(*logs, strict=True)]
    size = DataSize(queries * world.repeats, queries, times=shown / queries, collected=False)
    return Plan(
        precision=target.precision,
        level=target.level,
        page_views=round(shown * world.repeats),
        queries=shown,
        traffic={name: round(share, 4) for name, share in zip(world.rankers, world.shares, strict=True)},
        forecasts=tuple(forecast_ranks(errors, target, size) for errors in measured),
        assumptions=(_SIMULATED_ASSUMPTION,),
        notes=_unique_notes(measured),
        assumed=True,
    )


def with_curve(world: World, curve: Sequence[float]) -> World:
    """Return a world with this curve, from rank 1 on."""
    numbers = [number(p) for p in curve] if isinstance(curve, Iterable) else []
    values = [p for p in numbers if p is not None and p > 0]
    if len(values) < max(len(numbers), world.max_rank):
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


def _mean_errors(logs: Sequence[StandardErrors], queries: int) -> StandardErrors:
    """Return the errors of several logs together: the mean variance of each rank with an interval in most logs."""
    se = np.stack([errors.se for errors in logs])
    degrees = np.stack([errors.degrees for errors in logs])
    known = np.isfinite(se)
    enough = 2 * known.sum(axis=0) > len(logs)

    def mean(values: FloatArray) -> FloatArray:
        with np.errstate(invalid="ignore", divide="ignore"):
            total = np.where(known, values, 0.0).sum(axis=0) / known.sum(axis=0)
        return np.where(enough, total, np.nan)

    def reason(k: int) -> str:
        # A reason that all logs without an interval share is not chance.
        reasons = {errors.reasons[k] for errors, has in zip(logs, known[:, k], strict=True) if not has}
        common = reasons.pop() if len(reasons) == 1 else None
        return f"no interval from {queries:,} simulated queries: {common or 'too little data for a forecast'}"

    return replace(
        logs[0],
        se=np.sqrt(mean(se**2)),
        degrees=1 / mean(1 / degrees),
        reasons=[None if good else reason(k) for k, good in enumerate(enough)],
        logs=len(logs),
    )


def _unique_notes(measured: Sequence[StandardErrors]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for errors in measured for note in errors.notes))


# ---- From a log or harvest


def count_queries(log: ClickLog, max_rank: int, engine: EngineChoice | None = None, progress: Progress = silent) -> int:
    """Count the distinct queries of a log with results in the top M."""
    with open_log(log, engine, progress) as opened:
        d, schema = opened.dialect, opened.schema
        position = d.integer(d.quote(schema.position), schema.types[schema.position])
        sql = f"SELECT COUNT(DISTINCT {d.quote(schema.query)}) FROM log WHERE {position} <= {max_rank}"
        return int(opened.rows(sql, "Counting queries")[0][0])


@one_blas_thread()
def _plan_harvest(
    harvest: Harvest,
    target: PrecisionTarget,
    names: Sequence[str],
    queries: int | None,
    splits: Sequence[Mapping[str, float]],
    scenarios: bool,
    progress: Progress,
    seed: int,
) -> Plan:
    notes = []
    if harvest.kind == "pairs" and "cross-fit" in names:
        names = [name for name in names if name != "cross-fit"]
        left_out = "cross-fit is left out: it cannot be fitted on a harvest of sums over pairs of ranks."
        if not names:
            raise EstimateError(f"{left_out} Plan for all-pairs.")
        notes.append(left_out)
    page_views = harvest.views.sum()
    results = int(harvest.counts("rank")[0].sum())
    if queries is not None and not len(harvest.buckets) <= queries <= results:
        raise PosbiasError(
            f"queries is {queries:,}, but the harvest has {results:,} results in {len(harvest.buckets)} buckets, each "
            "with at least one query. Give the number of distinct queries of the log."
        )
    measured = []
    for i, name in enumerate(names):
        progress("Estimating", i / len(names))
        measured.append(measure_errors(name, harvest, target.level))
    if not any(np.isfinite(errors.se[1:]).any() for errors in measured):
        reason = next((text for errors in measured for text in errors.reasons[1:] if text), "no rank has an interval")
        raise EstimateError(
            f"There is no interval to plan from: {reason}. Harvest more queries first, or plan before there is any "
            "data: give plan a World as you assume it to be."
        )
    size = DataSize(float(page_views), queries)
    inputs = ScenarioInputs(harvest, measured, target, size, seed, progress)
    no_scenarios = _no_scenarios_reason(harvest) if scenarios else None
    if no_scenarios and splits:
        raise PosbiasError(no_scenarios)
    if no_scenarios:
        notes.append(no_scenarios)
    forecast_traffic = forecast_scenarios(inputs, splits) if scenarios and not no_scenarios else ()
    available = any(forecast.available for scenario in forecast_traffic for forecast in scenario.forecasts)
    if available and CrossFit().count(harvest).dispersion > STICKY_DISPERSION:
        notes.append(_STICKY_NOTE)
    if harvest.by:
        segments = "This plan is for all segments of the harvest together. For one segment, harvest its rows alone."
    return Plan(
        precision=target.precision,
        level=target.level,
        page_views=int(page_views),
        queries=queries,
        traffic=inputs.shares_by_name(inputs.shares),
        forecasts=tuple(forecast_ranks(errors, target, size) for errors in measured),
        scenarios=forecast_traffic,
        assumptions=(_MEASURED_ASSUMPTION, *((TRAFFIC_ASSUMPTION,) if available else ())),
        notes=(*notes, *_unique_notes(measured), *((segments,) if harvest.by else ())),
    )


def _no_scenarios_reason(harvest: Harvest) -> str | None:
    """Return why other traffic cannot be forecast; None if it can."""
    if harvest.kind == "signatures":
        return None
    if harvest.kind == "pairs":
        return "No forecast for other traffic: it cannot be computed from a harvest of sums over pairs of ranks."
    if harvest.layout.ranks_known:
        return (
            f"No forecast for other traffic: a harvest weighted by {harvest.weighting!r} counts where each pair was "
            "shown, not where all rankers put it. Harvest the log with the weighting 'traffic'."
        )
    return (
        "No forecast for other traffic or another ranker: in replay it is not known where the rankers that were not "
        "shown would have put a document. Log every ranker's rank (ranks or rankings)."
    )


# ---- Plot and text


def draw_plan(plan: Plan, ax: Axes | None = None) -> Axes:
    """Draw how the intervals of some ranks narrow with more queries, or page views if queries were not counted."""
    check_type("plan", plan, Plan)
    return draw(plan_chart(plan), ax)


def plan_chart(plan: Plan) -> Chart:
    """Return the chart of the half-width of intervals against the amount of data."""
    first = plan.forecasts[0]
    known = [each for each in first.requirements if each.times_high is not None and each.precision is not None]
    if not known:
        measured = first.available or any(each.times_high is not None for each in first.requirements)
        reason = f"{TOO_FEW_QUERIES} at every rank" if measured else "it has no interval at any rank"
        raise PosbiasError(f"There is nothing to draw for {first.estimator}: {reason}.")
    chosen = sorted({round(i) for i in np.linspace(0, len(known) - 1, min(_MAX_LINES, len(known)))})
    count = plan.page_views if plan.queries is None else plan.queries
    most = max(each.times or each.times_high or 1.0 for each in known)
    least = min(0.25, 0.5 * min(each.times or each.times_low or 1.0 for each in known))
    # Two parts, so that one point lies at the present data, which is marked.
    times = np.r_[np.geomspace(least, 1, 20), np.geomspace(1, 3 * max(most, 1.0), 40)[1:]]
    x, series = (count * times).tolist(), []
    for color, place in enumerate(chosen):
        requirement = known[place]
        se, degrees = np.array([requirement.standard_error]), np.array([requirement.degrees_of_freedom])
        half_width = precision_at(times, se, degrees, plan.level, first.buckets, plan.queries)
        y = np.where(half_width < _WIDEST, 100 * half_width, np.nan).tolist()
        name, line = f"rank {requirement.rank}", "solid"
        if requirement.times is None:
            name, line = f"{name}, roughly", "dashed"
        series.append(Series(name, color, x, y, marker=MARKERS[color], marked=[19], line=line, size=5))
    wanted = 100 * plan.precision
    values = [wanted, *(value for one in series for value in one.values)]
    return Chart(
        f"How intervals narrow with more data: {first.estimator}",
        number_axis("Page views" if plan.queries is None else "Queries", x, log=True, text=format_compact),
        number_axis(f"{100 * plan.level:g}% interval, ±", values, log=True, text=lambda percent: f"{percent:g}%"),
        series,
        [Rule("y", wanted, "dotted", note=f"±{wanted:g}%"), Rule("x", count, "solid", "grey")],
    )


def save_plan(plan: Plan, path: str) -> None:
    """Write the plot of a plan as PNG, SVG or PDF, completely or not at all."""
    save(draw_plan(plan), path)


def _wrap(text: str) -> str:
    return "\n".join(wrap(printable(text)))


# Numbers of a plan have three digits: a forecast is not more precise.


def _format_percent(share: float) -> str:
    return f"{float(f'{100 * share:.3g}'):g}%"


def _format_precision(share: float | None) -> str:
    if share is None:
        return "–"
    return f"±{100 * share:.1f}%" if share < 1 else f"±{100 * share:,.0f}%" if share < 100 else "no bound"


def _format_times(times: float | None, rough: float | None = None) -> str:
    """Return how many times the data are needed, as a precise or a rough number.

    >>> _format_times(9.094), _format_times(None, 31.2), _format_times(None)
    ('×9.09', '≈ ×31', '–')
    """
    if times is None and rough is not None:
        return f"≈ ×{_format_multiple(rough)}"
    return "–" if times is None else f"×{_format_multiple(times)}"


def _format_multiple(times: float) -> str:
    return f"{times:.2f}" if times < 10 else f"{times:,.0f}" if times < 1e5 else "10⁵+"


def _format_more(count: int | None, bounds: tuple[float, float] | None, present: float) -> str:
    """Return how much is needed beyond the present data.

    >>> _format_more(1510, None, 2000), _format_more(None, (1500.0, 52_000.0), 2000)
    ('1,510', '0 – 50k')
    >>> _format_more(None, (500.0, 900.0), 2000)
    'enough'
    """
    if count is None and bounds is not None:
        low, high = (max(0.0, end - present) for end in bounds)
        return _format_needed(None, (low, high)) if high > 0 else "enough"
    return "enough" if count == 0 else _format_count(count)


def _format_needed(count: int | None, bounds: tuple[float, float] | None) -> str:
    """Return how much is needed: a number, or a range where that is not known."""
    if count is None and bounds is not None:
        return _DASH.join(map(format_compact, bounds))
    return _format_count(count)


def _format_count(count: int | None) -> str:
    return "–" if count is None else f"{_round_up(count):,}"


def format_compact(count: float) -> str:
    """Return a count in a few characters, rounded up to three digits.

    >>> format_compact(9270), format_compact(42850), format_compact(437_000), format_compact(4_370_000)
    ('9,270', '42.9k', '437k', '4.37M')
    """
    rounded = _round_up(math.ceil(count))
    if rounded < 10_000:
        return f"{rounded:,}"
    unit, letter = (10**3, "k") if rounded < 10**6 else (10**6, "M") if rounded < 10**9 else (10**9, "G")
    return f"{rounded / unit:,.10g}{letter}"


def _round_up(count: int) -> int:
    if count <= 0:
        return 0
    step = 10 ** max(0, math.floor(math.log10(count)) - 2)
    return int(-(-count // step) * step)


def read_curve(path: str) -> list[float]:
    """Read the curve to assume: the truth of a simulated log, or an estimate as JSON."""
    from posbias.curves.files import load, looks_like_curve, read_truth

    if not looks_like_curve(path):
        return read_truth(path)
    curve = load(path).propensity.tolist()
    unknown = [str(k) for k, p in enumerate(curve, start=1) if not (p == p and p > 0)]
    if unknown:
        raise PosbiasError(
            f"The curve in {path!r} has no number at rank {', '.join(unknown)}. Assume a curve with a number at every "
            "rank."
        )
    return list(curve)
