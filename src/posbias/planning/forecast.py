"""Forecast how precise a curve becomes with more data, with other traffic, or with one more ranker.

**More data.** An interval is p exp(± t se), so ±x% means exp(t se) − 1 = x: its upper end lies x% above the estimate,
its lower end a little nearer. With f times the queries, se becomes se / √f, and t has more degrees of freedom: 1/df is
1/B, for the B buckets that hold data, plus a part that measures how unequal the queries are and falls as 1/f.

**Other traffic.** `HarvestModel` keeps the strata of a harvest with the relevance estimated from their clicks.
Synthetic harvests are drawn from it, once with the present traffic and once with another. Only the ratio of their
standard errors is used, so errors of the model mostly cancel; the level comes from the harvest itself.

**One more ranker.** `with_new_ranker` adds a ranker that resembles the present ones as they resemble each other. Ranks
are taken as those of scores that share one factor, z_i = √ρ f + √(1−ρ) e_i with normal f and e, among L candidates. The
new ranker's score given those of m others is then normal, with mean ρ Σz / (1 + (m−1)ρ) and variance
1 − mρ² / (1 + (m−1)ρ). ρ and L are chosen so that the new ranker differs from the others as they differ from each
other: as far on average where both rank a document, and as often where only one does.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray, group, map_threads, one_blas_thread, sum_by_index
from posbias._defaults import DEFAULT_LEVEL
from posbias._stats import t_quantile
from posbias._text import listed
from posbias._validate import shares as valid_shares
from posbias.errors import EstimateError, PosbiasError
from posbias.estimators import CrossFit, estimator_class
from posbias.estimators.base import MIN_BUCKETS, Jackknife, deletion_weights
from posbias.estimators.page_depth import PageDepth
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.tables import Cells, strata_from_cells
from posbias.progress import Progress, profile_is_on, step
from posbias.sql.dialects import BUCKETS

# The reasons why a scenario has no half-width start with the first; the second is the most common.
NO_FORECAST, TOO_FEW_QUERIES = "no forecast", "too few queries"
# Bisections of the bracket around the answer, which is wanted to a thousandth.
_TIMES_BISECTIONS = 20
# A forecast is one number if its standard error is known to this share of itself, which made the numbers hold in
# simulated logs. Below the least degrees of freedom there is not even a range.
_RELATIVE_ERROR, _LEAST_DEGREES = 1 / 8, 5.0
_TOO_FEW_DEGREES = (
    f"too few queries for a precise number (fewer than {1 / (2 * _RELATIVE_ERROR**2):.0f} degrees of freedom)"
)
# The share of the degrees of freedom, themselves estimated, with which ranges cover what is needed.
_DEGREES_SHARE = 0.5
# A bracket that holds every t quantile relative to the normal one: at one degree of freedom, 99.9%.
_LARGEST_RATIO = 1e5
# a: how many views, each sure to be examined, the relevance of a stratum counts for beside those of one bucket.
_PRIOR_VIEWS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0, 1e6)
# The relevance of a stratum is shrunk to that of all strata by this many views.
_SHRINKAGE_VIEWS = 2.0
# Beyond this many cells a part of the buckets stands for all, because only ratios are read.
_MAX_CELLS = 40_000
_LEAST_BUCKETS = 64
# Candidates of a query, as multiples of M, among which the best fit is searched.
_POOL_FACTORS = (1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0)
_SIMILARITY_BISECTIONS = 12
# Page views of a query, where the number of queries is not known.
_VIEWS_PER_QUERY = 10
# Synthetic harvests per standard error, which is then known to 4%, and of each split in the search for the best one.
# Where a model has more rows than are worth drawing there are fewer: it has many ranks, and the neighbours of a rank
# help to forecast it.
DRAWS, _DRAWS_OF_MANY_ROWS = 6, 3
# The ratio of a rank is the mean of as many ranks on each side as this goes into M: none up to 23 ranks.
_RANKS_PER_NEIGHBOUR = 24
_SEARCH_DRAWS, _SEARCH_DRAWS_OF_MANY_ROWS = 2, 1
# Documents by which a new ranker is made similar to the others.
_MAX_DOCUMENTS = 20_000
# The search for the best split gives no ranker less than this share.
_LEAST_SHARE = 0.05
# A split that lowers the mean variance by less than this, or changes no share by as much, is no improvement.
_LEAST_GAIN = 0.05
TRAFFIC_ASSUMPTION = (
    "Forecasts for other traffic show the same documents again, with the relevance estimated from their clicks, to "
    "simulated users of the position-based model: the same number of page views, each assigned to a ranker "
    "independently."
)
BEST_SPLIT_ASSUMPTION = "the split with the smallest variance, on average over the ranks."
NEW_RANKER_ASSUMPTION = (
    "a new ranker that differs from the present rankers as much as they differ from each other, in how far it moves "
    "documents and in how many it leaves out, and whose documents are as relevant. It gets an equal share of the "
    "traffic; the others lose in proportion."
)
# The new ranker differs from the others as much as they do on average. These estimators compare two ranks at a time, so
# they depend on how many documents it moves by one exact distance: with rankers of unequal quality they were 20% off.
_DISTANCE_ESTIMATORS = ("pivot-one", "adjacent-chain")
_DISTANCE_REASON = (
    f"{NO_FORECAST}: this estimator depends on how many documents the new ranker moves by one exact distance"
)
_ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth"}


@step("Forecasting scenarios")
def forecast_scenarios(inputs: ScenarioInputs, splits: Sequence[Mapping[str, float]]) -> tuple[Scenario, ...]:
    """Forecast the given splits of traffic, the best split found, and one more ranker, for the first estimator."""
    split_shares = [shares_of(split, inputs.harvest.rankers) for split in splits]
    curves = {errors.estimator: errors.propensity for errors in inputs.measured}
    curve = curves.get(CrossFit.name)
    model = HarvestModel.of(
        inputs.harvest, CrossFit(interval=None).fit(inputs.harvest).propensity_ if curve is None else curve
    )
    current = inputs.shares
    steps = len(split_shares) + 3
    errors = inputs.measured[0]
    # All fits ahead: in each step, and in the search for the best split.
    fits, done = model.draws * steps + model.search_draws * len(splits_to_try(current)), 0

    def report_progress() -> None:
        nonlocal done
        inputs.progress("Forecasting scenarios", done / fits)
        done += 1

    def draw_errors(drawn_model: HarvestModel, shares: FloatArray, number: int) -> FloatArray:
        rng = np.random.default_rng([inputs.seed, number])
        drawn = draw_error_variances(errors.estimator, drawn_model, shares, rng, model.draws, report_progress)
        return _mean_of_draws(drawn)

    present = draw_errors(model, current, 0)

    def scenario(name: str, shares: FloatArray, assumption: str, drawn: FloatArray) -> Scenario:
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio, degrees = np.sqrt(mean_of_neighbours(drawn[0] / present[0])), model.draws / (drawn[1] + present[1])
        change = _error_ratio(errors.estimator, assumption, ratio, degrees)
        forecast = forecast_ranks(errors, inputs.target, inputs.size, change)
        return Scenario(name, inputs.shares_by_name(shares), assumption, (forecast,))

    scenarios = []
    for number, shares in enumerate(split_shares, start=1):
        name = format_split(inputs.shares_by_name(shares))
        scenarios.append(scenario(name, shares, "", draw_errors(model, shares, number)))
    best = best_split(model, current, errors.estimator, np.random.default_rng([inputs.seed, 99]), report_progress)
    if best is not None and np.abs(best - current).max() > _LEAST_GAIN:
        drawn = draw_errors(model, best, steps - 2)
        variance, before = drawn[0], present[0]
        known = np.isfinite(variance) & np.isfinite(before)
        if variance[known].sum() < (1 - _LEAST_GAIN) * before[known].sum():
            name = f"best: {format_split(inputs.shares_by_name(best))}"
            candidate = scenario(name, best, BEST_SPLIT_ASSUMPTION, drawn)
            # A split without a forecast cannot be called the best.
            scenarios += [candidate] if candidate.forecasts[0].available else []
    extended = with_new_ranker(model, inputs.size.queries, np.random.default_rng([inputs.seed, 98]))
    rankers = int((current > 0).sum())
    shares = np.append(current * rankers / (rankers + 1), 1 / (rankers + 1))
    name = f"{_ORDINALS.get(rankers + 1, f'{rankers + 1}th')} ranker"
    scenarios.append(scenario(name, shares, NEW_RANKER_ASSUMPTION, draw_errors(extended, shares, steps - 1)))
    return tuple(scenarios)


@dataclass(frozen=True)
class ScenarioInputs:
    """What scenarios are forecast from: a harvest, its measured standard errors, and the target."""

    harvest: Harvest
    measured: Sequence[StandardErrors]
    target: PrecisionTarget
    size: DataSize
    seed: int
    progress: Progress

    @property
    def shares(self) -> FloatArray:
        """The share of traffic of each ranker."""
        views = self.harvest.views.sum(axis=0)
        return np.asarray(views / views.sum())

    def shares_by_name(self, shares: FloatArray) -> dict[str, float]:
        """Return the shares above 0 by the names of the rankers."""
        names = [*self.harvest.rankers, "new"]
        return {name: round(float(share), 4) for name, share in zip(names, shares, strict=False) if share > 0}


@dataclass(frozen=True)
class StandardErrors:
    """Standard errors of log p by rank, (M,), their degrees of freedom in one log, and why a rank has none."""

    estimator: str
    propensity: FloatArray
    se: FloatArray
    degrees: FloatArray
    reasons: Sequence[str | None]
    buckets: int
    notes: tuple[str, ...] = ()
    logs: int = 1


@dataclass(frozen=True)
class PrecisionTarget:
    """The intervals that are wanted: of a level, and ± a share of the estimate."""

    precision: float
    level: float


@dataclass(frozen=True)
class DataSize:
    """The data that standard errors were measured on; forecasts are for `times` as much.

    `collected` says whether these data exist, so that only the rest is needed.
    """

    page_views: float
    queries: int | None
    times: float = 1.0
    collected: bool = True


@dataclass(frozen=True)
class Scenario:
    """The same number of page views with another split of traffic, or with one more ranker.

    Attributes:
        name (str): of the scenario, such as "a=0.5 b=0.5" or "third ranker".
        traffic (dict): the share of each ranker.
        assumption (str): what the scenario assumes; empty for a split that you gave.
        forecasts (tuple of Forecast): that of the first estimator of the plan.
    """

    name: str
    traffic: Mapping[str, float] = field(hash=False)
    assumption: str
    forecasts: tuple[Forecast, ...]


@dataclass(frozen=True)
class Forecast:
    """The data that each rank requires with one estimator.

    Attributes:
        estimator (str): its name.
        requirements (tuple of RankRequirement): one for each rank from 2.
        buckets (int): buckets of queries that hold data.
    """

    estimator: str
    requirements: tuple[RankRequirement, ...]
    buckets: int

    @property
    def worst(self) -> RankRequirement | None:
        """The rank that requires most data; None if no rank has a number."""
        known = [requirement for requirement in self.requirements if requirement.times is not None]
        return max(known, key=lambda requirement: requirement.times or 0.0, default=None)

    @property
    def available(self) -> bool:
        """Whether any rank has a half-width."""
        return any(requirement.precision is not None for requirement in self.requirements)

    @property
    def missing_reason(self) -> str:
        """Why no rank of a scenario has a half-width."""
        reasons = [requirement.reason or "" for requirement in self.requirements]
        return next((text for text in reasons if text.startswith(NO_FORECAST)), f"{NO_FORECAST}: {TOO_FEW_QUERIES}")

    def requirement(self, rank: int) -> RankRequirement | None:
        """Return what a rank requires; None if the forecast has no such rank."""
        return next((requirement for requirement in self.requirements if requirement.rank == rank), None)


@dataclass(frozen=True)
class RankRequirement:
    """The data that one rank requires for an interval as precise as wanted.

    Attributes:
        rank (int): k.
        precision (float or None): the present interval: its upper end lies this share above the estimate.
        standard_error (float or None): of log p_k.
        degrees_of_freedom (float or None): of the interval.
        times (float or None): how many times the present data are required.
        queries (int or None): required queries, where queries were counted.
        page_views (int or None): required page views.
        more_queries (int or None): required queries beyond the present ones.
        more_page_views (int or None): required page views beyond the present ones.
        reason (str or None): why there is no number, or why it is uncertain.
        times_low, times_high (float or None): the range of `times`, from how well the standard error is known
            (about 95%).
        rough_times (float or None): in place of `times` where only the range is reliable: the value within the range
            that the present standard error gives.
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
    rough_times: float | None = None

    def bounds(self, total: float | None = 1.0) -> tuple[float, float] | None:
        """Return the least and the most that is required, if there is `total` now; None where that is not known."""
        if total is None or self.times_low is None or self.times_high is None:
            return None
        return self.times_low * total, self.times_high * total


def shares_of(split: Mapping[str, float], rankers: Sequence[str]) -> FloatArray:
    """Return a split as an array of shares by ranker, 0 for a ranker that it does not name."""
    unknown = [name for name in split if name not in rankers]
    if unknown:
        raise PosbiasError(
            f"traffic gives a share to {listed(unknown)}, but the rankers are {listed(rankers)}. Name one of those, "
            f"such as {rankers[0]}=0.5. A ranker that has served nothing yet may be named if its ranks are known."
        )
    valid = valid_shares("traffic", split, "{'a': 0.5, 'b': 0.5}")
    weights = np.array([valid.get(name, 0.0) for name in rankers])
    if (weights > 0).sum() < 2:
        raise PosbiasError(
            f"traffic must give a share above 0 to two rankers or more, found {dict(split)!r}. With one ranker, no "
            "document is shown at two ranks."
        )
    return np.asarray(weights / weights.sum())


def format_split(shares: Mapping[str, float]) -> str:
    """Return a split as text, such as "a=0.5 b=0.5"."""
    return " ".join(f"{name}={share:.3g}" for name, share in shares.items())


# ---- Synthetic harvests


@dataclass(frozen=True, eq=False)
class HarvestModel:
    """A model of a harvest from which synthetic harvests are drawn, with a row for each bucket and stratum.

    Attributes:
        harvest: the harvest that is modelled.
        bucket: of each row, counted from 0.
        ranks: the rank that each ranker gives to the row's documents, (rows, m); 0 where beyond M.
        views: page views of queries with these documents, by any ranker.
        clicks: clicks and missed clicks, (rows, 2): the parameters of the Beta distribution of relevance.
        pages: page views by bucket.
        propensity: p_k / p_1, (M,), a number at every rank.
        shown: the share of its page views on which each ranker shows what it ranks, (m, M); None if pages are whole.
    """

    harvest: Harvest
    bucket: IntArray
    ranks: IntArray
    views: FloatArray
    clicks: FloatArray
    pages: IntArray
    propensity: FloatArray
    shown: FloatArray | None = None

    @classmethod
    def of(cls, harvest: Harvest, propensity: FloatArray) -> HarvestModel:
        """Return the model of a harvest by signature, with the curve estimated from it."""
        if not isinstance(harvest.table, Cells) or harvest.kind != "signatures":
            raise TypeError("a HarvestModel is made of a harvest by signature")
        p = fill_curve(propensity)
        # Rankers that served nothing keep their ranks: they may be given traffic.
        known = harvest.views + 1e-9
        strata = strata_from_cells(harvest.table, harvest.max_rank, harvest.buckets, known, by_design=True)
        cells, traffic = strata.cells, harvest.views.sum(axis=0)
        rankers = len(traffic)
        first, row = group([cells.bucket, cells.stratum])
        ranks = np.zeros((len(first), rankers), dtype=np.int64)
        ranks[row, cells.ranker] = cells.rank
        shown = sum_by_index(row, cells.impressions, len(first))
        clicks = sum_by_index(row, cells.clicks, len(first))
        exposure = sum_by_index(row, cells.impressions * p[cells.rank - 1], len(first))
        depth = PageDepth.of(harvest.strata())
        reached = None if depth is None else _shown_shares(depth, traffic)
        on_page = ranks > 0 if reached is None else _at_ranks(reached, ranks)
        reach = on_page @ (traffic / traffic.sum())
        pages = np.rint(harvest.views.sum(axis=1)).astype(np.int64)
        bucket, stratum = cells.bucket[first], cells.stratum[first]
        # Only the rankers that rank a document show it: with the others there were this many page views.
        views = np.minimum(shown / np.maximum(reach, 1e-12), pages[bucket])
        relevance = _relevance_counts(stratum, clicks, exposure)
        return cls(harvest, bucket, ranks, views, relevance, pages, p, reached)._thinned()

    def _thinned(self) -> HarvestModel:
        """Return the model with a part of the buckets, if it has more cells than are worth drawing."""
        every = min(len(self.bucket) // _MAX_CELLS + 1, max(1, len(self.pages) // _LEAST_BUCKETS))
        if every == 1:
            return self
        kept = self.bucket % every == 0
        return replace(
            self,
            bucket=self.bucket[kept] // every,
            ranks=self.ranks[kept],
            views=self.views[kept],
            clicks=self.clicks[kept],
            pages=self.pages[::every],
        )

    @property
    def rankers(self) -> int:
        """The number of rankers."""
        return int(self.ranks.shape[1])

    @property
    def draws(self) -> int:
        """The number of synthetic harvests for each standard error."""
        return DRAWS if len(self.bucket) <= _MAX_CELLS else _DRAWS_OF_MANY_ROWS

    @property
    def search_draws(self) -> int:
        """The number of synthetic harvests for each split, in the search for the best one."""
        return _SEARCH_DRAWS if len(self.bucket) <= _MAX_CELLS else _SEARCH_DRAWS_OF_MANY_ROWS

    @step("Drawing a synthetic harvest")
    def draw(self, shares: FloatArray, rng: np.random.Generator) -> Harvest:
        """Draw a harvest of as many page views, each assigned to a ranker by its share, with new clicks."""
        traffic = rng.multinomial(self.pages, np.asarray(shares) / np.sum(shares))
        # Rows with one rank under this traffic compare nothing and would only take time.
        ranked = np.where(np.asarray(shares) > 0, self.ranks, 0)
        high, low = ranked.max(axis=1), np.where(ranked > 0, ranked, np.iinfo(np.int64).max).min(axis=1)
        kept = high > low
        bucket, ranked = self.bucket[kept], ranked[kept]
        relevance = rng.beta(*(self.clicks[kept] + 1e-9).T)
        views = np.floor(self.views[kept] + rng.random(len(bucket))).astype(np.int64)
        views = np.minimum(views, self.pages[bucket])
        shown = _draw_impressions(traffic[bucket], views, rng)
        row, ranker = np.nonzero(ranked)
        rank, impressions = ranked[row, ranker], shown[row, ranker]
        if self.shown is not None:
            impressions = rng.binomial(impressions, self.shown[ranker, rank - 1])
        click_rate = np.minimum(self.propensity[rank - 1] * relevance[row], 1.0)
        cells = Cells(
            segment=np.zeros(len(row), dtype=np.int64),
            bucket=bucket[row],
            stratum=row,
            pairs=np.zeros(len(row), dtype=np.int64),
            ranker=ranker,
            rank=rank,
            impressions=impressions,
            clicks=rng.binomial(impressions, click_rate),
        )
        names = (*self.harvest.rankers, *(f"new {i + 1}" for i in range(self.rankers - len(self.harvest.rankers))))
        used_buckets = np.unique(cells.bucket)
        cells = _with_other_documents(cells, traffic[used_buckets].sum(axis=0), self.harvest.max_rank, self.shown)
        return replace(
            self.harvest,
            rankers=names,
            by=(),
            segments=((),),
            table=cells,
            findings=(),
            traffic=traffic[used_buckets].astype(np.float64),
        )


def _shown_shares(depth: PageDepth, traffic: FloatArray) -> FloatArray:
    """Return the share of page views on which each ranker shows what it ranks, (m, M), at most 1.

    A ranker that served nothing yet shows as much as the others on average.
    """
    shares = np.minimum(depth.shown, 1.0)
    mean = traffic @ shares / traffic.sum()
    return np.where(traffic[:, None] > 0, shares, mean)


def _at_ranks(shown: FloatArray, ranks: IntArray) -> FloatArray:
    """Return, for each row and ranker, the share of page views that show the row's documents, (rows, m)."""
    return np.where(ranks > 0, shown[np.arange(len(shown)), ranks - 1], 0.0)


def _with_other_documents(cells: Cells, traffic: IntArray, max_rank: int, shown: FloatArray | None) -> Cells:
    """Return cells with those of documents at one rank only, so that every page view shows all of its results.

    If these impressions were missing, pages would seem to end earlier than they do.
    """
    if not len(cells):
        return cells
    ranker, rank = np.divmod(np.arange(len(traffic) * max_rank), max_rank)
    counted = sum_by_index(cells.ranker * max_rank + cells.rank - 1, cells.impressions, len(rank))
    wanted = traffic[ranker] if shown is None else np.rint(traffic[ranker] * shown.ravel()).astype(np.int64)
    none = np.zeros_like(rank)
    others = Cells(
        segment=none,
        bucket=np.full_like(rank, cells.bucket[-1]),
        stratum=cells.stratum[-1] + 1 + np.arange(len(rank)),
        pairs=none,
        ranker=ranker,
        rank=rank + 1,
        impressions=np.maximum(wanted - counted.astype(np.int64), 0),
        clicks=none,
    )
    return Cells.concatenate([cells, others])


def fill_curve(propensity: FloatArray) -> FloatArray:
    """Return a curve with a number at every rank: where it has none, that of the last rank above with a number."""
    p = np.where(np.isfinite(propensity) & (propensity > 0), propensity, np.nan)
    p[0] = 1.0
    known = np.flatnonzero(np.isfinite(p))
    return np.asarray(p[known[np.searchsorted(known, np.arange(len(p)), side="right") - 1]])


def _relevance_counts(stratum: IntArray, clicks: FloatArray, exposure: FloatArray) -> FloatArray:
    """Return the clicks and missed clicks that describe each row's relevance: its own, and `a` views of its stratum.

    `a` maximises the beta-binomial likelihood of the clicks of rows; overdispersion lowers it.
    """
    size = int(stratum.max(initial=0)) + 1
    rate = clicks.sum() / max(exposure.sum(), 1e-300)
    stratum_clicks, stratum_exposure = sum_by_index(stratum, clicks, size), sum_by_index(stratum, exposure, size)
    mean = (stratum_clicks + _SHRINKAGE_VIEWS * rate) / (stratum_exposure + _SHRINKAGE_VIEWS)
    of_stratum = np.clip(mean, 1e-6, 1 - 1e-6)
    mean, missed = of_stratum[stratum], np.maximum(exposure - clicks, 0)
    from scipy.special import betaln

    likelihoods = [
        float((betaln(clicks + a * mean, missed + a * (1 - mean)) - prior[stratum]).sum())
        for a in _PRIOR_VIEWS
        # It depends on the stratum alone, and there are fewer strata than rows.
        for prior in [betaln(a * of_stratum, a * (1 - of_stratum))]
    ]
    a = _PRIOR_VIEWS[int(np.argmax(likelihoods))]
    # Divide by the exposure: clicks and misses of a thin row may exceed it, and clicks must add up.
    relevance = np.minimum((clicks + a * mean) / (exposure + a), 1.0)
    return np.stack([(exposure + a) * relevance, (exposure + a) * (1 - relevance)], axis=1)


def _draw_impressions(traffic: IntArray, views: IntArray, rng: np.random.Generator) -> IntArray:
    """Draw how many of a row's views each ranker served, out of the page views of its bucket, (rows, m).

    Rows of a bucket lie on the same pages, so chance favours a ranker in all of them together.
    """
    shown = np.zeros(traffic.shape, dtype=np.int64)
    others, left = traffic.sum(axis=1), views.copy()
    for ranker in range(traffic.shape[1]):
        served = traffic[:, ranker]
        others = others - served
        shown[:, ranker] = rng.hypergeometric(served, others, left)
        left = left - shown[:, ranker]
    return shown


def draw_error_variances(
    name: str,
    model: HarvestModel,
    shares: FloatArray,
    rng: np.random.Generator,
    draws: int,
    report_progress: Callable[[], None],
) -> list[FloatArray]:
    """Return the `error_variances` of several synthetic harvests; each of them is reported before it is drawn.

    Harvests are drawn one after another and fitted in threads. A profile is of one thread, so that steps add up.
    """
    together = 1 if profile_is_on() else os.cpu_count() or 1
    variances: list[FloatArray] = []
    for start in range(0, draws, together):
        drawn = []
        for _ in range(start, min(start + together, draws)):
            report_progress()
            drawn.append(model.draw(shares, rng))
        variances += map_threads(lambda harvest: error_variances(name, harvest), drawn)
    return variances


@one_blas_thread()
def error_variances(name: str, harvest: Harvest) -> FloatArray:
    """Return variances of log p and one over their degrees of freedom, (2, M); NaN where there is none.

    They are for ratios between synthetic harvests, so that rough refits by queries alone are enough.
    """
    estimator: Any = estimator_class(name)()
    try:
        counts = estimator.count(harvest)
        with step(f"Fitting {name}"):
            curve = estimator.curves(counts, np.ones(counts.buckets))
        with step("Computing intervals"):
            refits = estimator.rough_refits(counts, deletion_weights(counts.buckets))
            intervals = Jackknife(curve, refits, estimator.max_degrees(counts)).intervals(DEFAULT_LEVEL)
    except EstimateError:
        return np.full((2, harvest.max_rank), np.nan)
    variance = np.diagonal(intervals.covariance)
    known = np.isfinite(intervals.bounds[:, 0]) & (variance > 0)
    return np.where(known, [variance, 1 / intervals.degrees], np.nan)


def measure_errors(name: str, harvest: Harvest, level: float = DEFAULT_LEVEL) -> StandardErrors:
    """Fit an estimator on a harvest and return its standard errors."""
    kind: Any = estimator_class(name)
    fitted = kind(level=level)
    # Not `fit`, which raises where no rank is identified: another estimator may identify some.
    fitted.estimate(harvest)
    se = np.sqrt(np.diagonal(fitted.covariance_))
    known = np.isfinite(fitted.interval_[:, 0]) & (se > 0)
    return StandardErrors(
        estimator=name,
        propensity=fitted.propensity_,
        se=np.where(known, se, np.nan),
        degrees=np.where(known, fitted.degrees_of_freedom_, np.nan),
        reasons=fitted.reasons_,
        buckets=len(harvest.buckets),
        notes=fitted.notes_,
    )


def mean_of_neighbours(ratio: FloatArray) -> FloatArray:
    """Return, for many ranks, the mean ratio of each rank and its neighbours; NaN where the rank has none.

    How much a scenario changes a standard error differs little between neighbours, and by chance more.

    >>> mean_of_neighbours(np.array([0.5, np.nan, *[0.7] * 22]))[:3].round(2).tolist()
    [0.5, nan, 0.7]
    """
    reach = len(ratio) // _RANKS_PER_NEIGHBOUR
    known = np.isfinite(ratio)
    window = np.ones(2 * reach + 1)
    sums, counts = (np.convolve(values, window, "same") for values in (np.where(known, ratio, 0.0), known))
    return np.where(known, sums / np.maximum(counts, 1), np.nan)


def _mean_of_draws(drawn: Sequence[FloatArray]) -> FloatArray:
    """Return the mean of values that most draws have; NaN for others."""
    values = np.stack(drawn)
    known = np.isfinite(values)
    counts = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(2 * counts > len(values), np.where(known, values, 0.0).sum(axis=0) / counts, np.nan)


# ---- From standard errors to the data required


def forecast_ranks(
    errors: StandardErrors, target: PrecisionTarget, size: DataSize, change: ErrorRatio | None = None
) -> Forecast:
    """Return what each rank requires, if the measured standard errors `change` as in a scenario.

    A rank whose standard error is not known well enough has a rough number and a range, or neither.
    """
    se, reliable_degrees = errors.se, errors.logs * errors.degrees
    if change is not None:
        se, reliable_degrees = se * change.ratio, np.minimum(reliable_degrees, change.degrees)
    setting = (target.level, errors.buckets, size.queries)
    at = np.full(len(se), size.times)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = precision_at(at, se, errors.degrees, *setting)
        degrees = degrees_at(at, errors.degrees, *setting[1:])
        times = times_for(target.precision, se, errors.degrees, *setting)
        bounds = times * variance_bounds(reliable_degrees) / size.times
    reliable = is_reliable(reliable_degrees)
    # The present half-width is measured, so it needs no forecast.
    shown = reliable | (size.collected and change is None)

    def requirement(k: int) -> RankRequirement:
        if not np.isfinite(se[k]):
            reason = errors.reasons[k] if change is None or np.isnan(errors.se[k]) else change.reason
            return RankRequirement(rank=k + 1, reason=reason or "no interval")
        queries = None if size.queries is None else math.ceil(times[k] * size.queries)
        views = math.ceil(times[k] * size.page_views)
        present = size.times if size.collected else 0.0
        known = RankRequirement(
            rank=k + 1,
            precision=float(precision[k]) if shown[k] and np.isfinite(precision[k]) else None,
            standard_error=float(se[k] / math.sqrt(size.times)) if shown[k] else None,
            degrees_of_freedom=float(degrees[k]) if shown[k] else None,
            reason=errors.reasons[k],
            times_low=float(bounds[0, k]) if np.isfinite(bounds[0, k]) else None,
            times_high=float(bounds[1, k]) if np.isfinite(bounds[1, k]) else None,
        )
        if not reliable[k]:
            rough = float(times[k] / size.times) if known.bounds() else None
            return replace(known, reason=_TOO_FEW_DEGREES, rough_times=rough)
        return replace(
            known,
            times=float(times[k] / size.times),
            queries=queries,
            page_views=views,
            more_queries=None if queries is None else max(0, queries - round(present * (size.queries or 0))),
            more_page_views=max(0, views - round(present * size.page_views)),
        )

    buckets = round(float(buckets_at(np.array(size.times), *setting[1:])))
    return Forecast(errors.estimator, tuple(requirement(k) for k in range(1, len(se))), buckets)


@dataclass(frozen=True)
class ErrorRatio:
    """Standard errors of a scenario over the present ones, (M,), and the degrees of freedom of that ratio."""

    ratio: FloatArray
    degrees: FloatArray
    reason: str = f"{NO_FORECAST}: too little data"


def precision_at(
    times: FloatArray, se: FloatArray, degrees: FloatArray, level: float, buckets: int, queries: int | None = None
) -> FloatArray:
    """Return the half-width of intervals as a share of the estimate, with `times` the queries; NaN where se is NaN.

    >>> precision_at(np.array([1.0, 4.0]), np.array([0.05]), np.array([255.0]), 0.95, 256).round(3).tolist()
    [0.103, 0.05]
    """
    quantile = t_quantile(degrees_at(times, degrees, buckets, queries), (1 + level) / 2)
    with np.errstate(over="ignore"):
        return np.asarray(np.expm1(quantile * se / np.sqrt(times)))


def degrees_at(times: FloatArray, degrees: FloatArray, buckets: int, queries: int | None = None) -> FloatArray:
    """Return the degrees of freedom with `times` the queries that gave `degrees` in `buckets`.

    Satterthwaite's degrees of freedom are 2 B / (κ − 1) for deletions of kurtosis κ. The kurtosis of a bucket comes
    from its queries, and its part beyond 3 falls as their number grows.

    >>> degrees_at(np.array([1.0, 4.0, 100.0]), np.array([64.0]), 256).round(0).tolist()
    [64.0, 146.0, 249.0]
    """
    inequality = np.maximum(1 / np.asarray(degrees) - 1 / buckets, 0)
    used_buckets = buckets_at(times, buckets, queries)
    grown = 1 / (1 / np.maximum(used_buckets, 1) + inequality / np.asarray(times))
    return np.asarray(np.clip(grown, 1, np.maximum(used_buckets - 1, 1)))


def buckets_at(times: FloatArray, buckets: int, queries: int | None = None) -> FloatArray:
    """Return how many buckets hold data with `times` the queries that fill `buckets` of them.

    >>> buckets_at(np.array([0.1, 1.0, 10.0]), 128).round(0).tolist()
    [17.0, 128.0, 256.0]
    """
    return np.asarray(-BUCKETS * np.expm1(-queries_per_bucket(buckets, queries) * np.asarray(times)))


def queries_per_bucket(buckets: int, queries: int | None) -> float:
    """Return the mean queries of a bucket, from how many buckets hold data; infinity where that is not known."""
    if buckets < BUCKETS:
        return -math.log(1 - buckets / BUCKETS)
    return math.inf if queries is None else max(queries / BUCKETS, -math.log(1 / (2 * BUCKETS)))


def times_for(
    precision: float, se: FloatArray, degrees: FloatArray, level: float, buckets: int, queries: int | None = None
) -> FloatArray:
    """Return how many times the queries give intervals of ± `precision`; NaN where se is NaN.

    >>> times_for(0.05, np.array([0.025, 0.05]), np.array([255.0, 255.0]), 0.95, 256).round(2).tolist()
    [1.02, 4.07]
    """
    normal = t_quantile(np.array([1e9]), (1 + level) / 2)
    low = np.log((normal * se / math.log1p(precision)) ** 2)
    # Fewer buckets than this give no interval.
    fewest = -math.log(1 - MIN_BUCKETS / BUCKETS) / queries_per_bucket(buckets, queries)
    low = np.maximum(low, math.log(max(fewest, 1e-300)))
    high = low + math.log(_LARGEST_RATIO)
    for _ in range(_TIMES_BISECTIONS):
        middle = (low + high) / 2
        wide = precision_at(np.exp(middle), se, degrees, level, buckets, queries) > precision
        low, high = np.where(wide, middle, low), np.where(wide, high, middle)
    return np.asarray(np.exp(high))


def variance_bounds(degrees: FloatArray) -> FloatArray:
    """Return the multiples of a variance between which the true one lies about 95% of the time, (2, ...).

    They would be df / χ² if the degrees of freedom were known, but these come from the same few queries. With all
    of them the range covered the truth 86 to 92% of the time in simulated logs, and with half of them 96 to 99%.
    NaN where the degrees of freedom are too few.

    >>> variance_bounds(np.array([3.0, 10.0, 255.0])).round(2).tolist()
    [[nan, 0.39, 0.79], [nan, 6.02, 1.3]]
    """
    from scipy.special import chdtri

    df = _DEGREES_SHARE * np.where(np.asarray(degrees) >= _LEAST_DEGREES, degrees, np.nan)
    return np.stack([df / chdtri(df, tail) for tail in (0.025, 0.975)])


def is_reliable(degrees: FloatArray) -> BoolArray:
    """Return whether a standard error with so many degrees of freedom is known well enough: to 1/√(2 df) of itself.

    >>> is_reliable(np.array([3.0, 31.0, 33.0, np.nan])).tolist()
    [False, False, True, False]
    """
    return np.asarray(np.asarray(degrees) >= 1 / (2 * _RELATIVE_ERROR**2))


def _error_ratio(estimator: str, assumption: str, ratio: FloatArray, degrees: FloatArray) -> ErrorRatio:
    if assumption == NEW_RANKER_ASSUMPTION and estimator in _DISTANCE_ESTIMATORS:
        return ErrorRatio(np.full(len(ratio), np.nan), degrees, _DISTANCE_REASON)
    return ErrorRatio(ratio, degrees)


# ---- The best split of traffic


@step("Searching for the best split")
def best_split(
    model: HarvestModel,
    current: FloatArray,
    estimator: str,
    rng: np.random.Generator,
    report_progress: Callable[[], None] = lambda: None,
) -> FloatArray | None:
    """Return the split among the rankers with traffic that has the least variance, on average over ranks.

    The variance is nearly c0 + Σ c_i / π_i. Fitted to a few splits, it is least where π_i is proportional to √c_i.
    """
    served = np.flatnonzero(current > 0)
    m = len(served)
    points, variances = [], []
    for shares in splits_to_try(current):
        split = np.zeros(len(current))
        split[served] = shares
        drawn = draw_error_variances(estimator, model, split, rng, model.search_draws, report_progress)
        mean = _mean_of_draws(drawn)[0, 1:]
        if np.isfinite(mean).any():
            points.append(shares)
            variances.append(mean)
    known = np.isfinite(np.array(variances)).all(axis=0) if variances else np.zeros(1, dtype=np.bool_)
    if len(points) < m + 1 or not known.any():
        return None
    variance = np.array(variances)[:, known].mean(axis=1)
    design = np.concatenate([np.ones((len(points), 1)), 1 / np.maximum(np.array(points), 1e-3)], axis=1)
    # Divided by the variance, so that relative errors count.
    cost = non_negative_least_squares(design / variance[:, None], np.ones(len(points)))[1:]
    if not cost.any():
        return None
    shares = np.maximum(np.sqrt(cost) / np.sqrt(cost).sum(), _LEAST_SHARE)
    best = np.zeros(len(current))
    best[served] = np.round(shares / shares.sum(), 2)
    return best


def splits_to_try(current: FloatArray) -> list[FloatArray]:
    """Return splits among the rankers with traffic: the present one, an equal one, and most to each in turn."""
    served = current[current > 0]
    m = len(served)
    return [served, np.full(m, 1 / m), *(np.where(np.arange(m) == i, 0.7, 0.3 / (m - 1)) for i in range(m))]


def non_negative_least_squares(design: FloatArray, values: FloatArray) -> FloatArray:
    """Return the coefficients of least squares, dropping the most negative one until none is negative.

    >>> design = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> non_negative_least_squares(design, np.array([1.0, -1.0, 0.5])).round(2).tolist()
    [0.75, 0.0]
    """
    kept = np.ones(design.shape[1], dtype=np.bool_)
    answer = np.zeros(design.shape[1])
    while kept.any():
        coefficients = np.linalg.lstsq(design[:, kept], values, rcond=None)[0]
        if (coefficients >= 0).all():
            answer[kept] = coefficients
            break
        kept[np.flatnonzero(kept)[np.argmin(coefficients)]] = False
    return answer


# ---- One more ranker


@step("Adding a ranker")
def with_new_ranker(model: HarvestModel, queries: int | None, rng: np.random.Generator) -> HarvestModel:
    """Return the model with one more ranker, whose ranks of all documents are drawn."""
    views_per_query = _VIEWS_PER_QUERY if queries is None else max(1.0, model.harvest.views.sum() / queries)
    documents = np.maximum(1, np.rint(model.views / views_per_query)).astype(np.int64)
    row = np.repeat(np.arange(len(model.bucket)), documents)
    ranks, views = model.ranks[row], model.views[row] / documents[row]
    new_ranks = _draw_similar_ranks(ranks, views, len(model.propensity), rng)
    # Documents of one bucket with equal ranks by all rankers become one row again, which has all their clicks.
    m = model.rankers
    key = row * (len(model.propensity) + 1) + new_ranks
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    kept = row[first]
    ranks, views = (
        np.concatenate([ranks[first], new_ranks[first][:, None]], axis=1),
        sum_by_index(which, views, len(first)),
    )
    clicks = _match_relevance(ranks, views, model.clicks[kept], len(model.propensity))
    # The pages of the new ranker are as long as those of the others.
    shown = None if model.shown is None else np.vstack([model.shown, model.shown.mean(axis=0)])
    ranks = ranks.reshape(-1, m + 1)
    return replace(model, bucket=model.bucket[kept], ranks=ranks, views=views, clicks=clicks, shown=shown)


def _draw_similar_ranks(ranks: IntArray, views: FloatArray, max_rank: int, rng: np.random.Generator) -> IntArray:
    """Draw the ranks of a new ranker that resembles the present ones as they resemble each other."""
    within_rank, noise = rng.random(ranks.shape), rng.standard_normal(len(ranks))
    some = slice(None, None, -(-len(ranks) // _MAX_DOCUMENTS))
    some_ranks, some_views = ranks[some], views[some]
    wanted = mean_similarity(some_ranks, some_views)
    best, least_error = (_POOL_FACTORS[0], 0.0), np.inf
    for factor in _POOL_FACTORS:
        scores = SharedScores.of(some_ranks, max_rank, factor * max_rank, within_rank[some])
        low, high = 0.0, 1.0
        for _ in range(_SIMILARITY_BISECTIONS):
            rho = (low + high) / 2
            drawn = mean_similarity(some_ranks, some_views, scores.new_ranks(rho, noise[some]))
            low, high = (low, rho) if drawn.distance < wanted.distance else (rho, high)
        error = abs(drawn.overlap - wanted.overlap)
        if error < least_error:
            best, least_error = (factor, rho), error
    factor, rho = best
    return SharedScores.of(ranks, max_rank, factor * max_rank, within_rank).new_ranks(rho, noise)


def mean_similarity(ranks: IntArray, views: FloatArray, new_ranks: IntArray | None = None) -> Similarity:
    """Return the mean similarity of any two rankers, or of a new ranker to each of them."""
    m = ranks.shape[1]
    if new_ranks is None:
        pairs = [similarity(ranks[:, i], ranks[:, j], views) for i in range(m) for j in range(i)]
    else:
        # A document that only the new ranker ranks was never shown. Assume as many of these as it leaves out.
        pairs = []
        for i in range(m):
            ranked = ranks[:, i] > 0
            pairs.append(similarity(ranks[ranked, i], new_ranks[ranked], views[ranked]))
        pairs = [Similarity(pair.distance, pair.overlap / max(2 - pair.overlap, 1e-300)) for pair in pairs]
    return Similarity(
        float(np.mean([pair.distance for pair in pairs])), float(np.mean([pair.overlap for pair in pairs]))
    )


@dataclass(frozen=True)
class Similarity:
    """How similar two rankers are on the documents that one of them ranks in the top M.

    Attributes:
        distance: mean difference of their ranks, where both rank the document in the top M.
        overlap: how often the other ranks it there, too.
    """

    distance: float
    overlap: float


def similarity(ranks_a: IntArray, ranks_b: IntArray, views: FloatArray) -> Similarity:
    """Return how similar two rankers are, from their ranks of the same documents, 0 beyond M."""
    both = (ranks_a > 0) & (ranks_b > 0)
    either = (views * (ranks_a > 0)).sum() + (views * (ranks_b > 0)).sum()
    shared = 2 * views[both].sum()
    distance = (views[both] * np.abs(ranks_a - ranks_b)[both]).sum() / max(shared / 2, 1e-300)
    return Similarity(float(distance), float(shared / max(either, 1e-300)))


@dataclass(frozen=True)
class SharedScores:
    """Scores of documents that rankers share, given their ranks among the candidates of a query.

    Attributes:
        total: Σz of each document over the rankers.
        rankers: m.
        max_rank: M.
        pool: L, the number of candidates, at least M + 0.5.
    """

    total: FloatArray
    rankers: int
    max_rank: int
    pool: float

    @classmethod
    def of(cls, ranks: IntArray, max_rank: int, pool: float, within_rank: FloatArray) -> SharedScores:
        """Return the scores of documents by their ranks, 0 beyond `max_rank`, at random places within their rank."""
        from scipy.special import ndtri

        # Beyond M a document may be anywhere; within its rank, too.
        beyond = max_rank + within_rank * max(pool - max_rank, 0.5)
        pool = max(pool, max_rank + 0.5)
        z = -ndtri(np.where(ranks > 0, ranks - 1 + within_rank, beyond) / pool)
        return cls(np.clip(z, -5, 5).sum(axis=1), ranks.shape[1], max_rank, pool)

    def new_ranks(self, rho: float, noise: FloatArray) -> IntArray:
        """Return a new ranker's rank of each document, 0 beyond M, if scores of rankers have the correlation rho."""
        from scipy.special import ndtr

        m = self.rankers
        spread = 1 + (m - 1) * rho
        score = rho * self.total / spread + np.sqrt(max(1 - m * rho**2 / spread, 0)) * noise
        rank = np.floor(self.pool * ndtr(-score)).astype(np.int64) + 1
        return np.where(rank <= self.max_rank, rank, 0)


def _match_relevance(ranks: IntArray, views: FloatArray, clicks: FloatArray, max_rank: int) -> FloatArray:
    """Return clicks and misses with which the new ranker, the last one, ranks as relevant documents at each rank.

    A real ranker knows more about a document than the others' ranks: of those that they rank alike, it puts the more
    relevant first.
    """
    weight = clicks.sum(axis=1)
    relevance = clicks[:, 0] / weight
    size = max_rank + 1
    relevant, total = (
        np.stack([sum_by_index(column, values, size) for column in ranks.T]) for values in (views * relevance, views)
    )
    present = relevant[:-1].sum(axis=0) / np.maximum(total[:-1].sum(axis=0), 1e-300)
    gain = np.where(
        (relevant[-1] > 0) & (present > 0),
        present / np.maximum(relevant[-1] / np.maximum(total[-1], 1e-300), 1e-300),
        1.0,
    )
    # Documents that the new ranker leaves out lose the relevance that those it ranks gain.
    left_out = relevant[-1][0]
    gain[0] = np.clip(1 - (relevant[-1][1:] @ (gain[1:] - 1)) / left_out, 0.1, 10) if left_out > 0 else 1.0
    changed = np.clip(relevance * gain[ranks[:, -1]], 1e-9, 1 - 1e-9)
    return np.stack([weight * changed, weight * (1 - changed)], axis=1)
