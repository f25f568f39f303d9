"""Forecast the precision of a curve under other traffic."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, log10
from typing import Any

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray, group, tally
from posbias._stats import t_quantile
from posbias._text import listed
from posbias._validate import DEFAULT_LEVEL
from posbias._validate import shares as given_shares
from posbias.errors import EstimateError, PosbiasError
from posbias.estimators import CrossFit, estimator_class
from posbias.estimators.base import MIN_BUCKETS
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.tables import Cells, strata_of
from posbias.progress import Progress
from posbias.sql.dialects import BUCKETS

BETWEEN = " – "
Between = tuple[float, float] | None
# How reasons begin that a scenario has no half-width, and the commonest.
NOT_FORESEEN, TOO_FEW = "not to be foreseen", "too few queries decide it"
# Halvings of the bracket in which the answer lies: it is wanted to a thousandth.
_STEPS_OF_DEGREES = 20
# What is foreseen is told as one number if the standard error that it rests on is known to this share of itself, which
# made numbers hold in simulated logs, and not at all from fewer degrees of freedom than these.
_KNOWN_TO, _FEWEST_DEGREES = 1 / 8, 5.0
# The share of degrees of freedom, themselves estimated, that makes ranges hold what is needed.
_SURE = 0.5
# A bracket that holds every quantile of t beside that of the normal distribution: at one degree of freedom, 99.9%.
_WIDEST = 1e5
# a: how many views, each sure to be examined, the relevance of a stratum counts for beside those of a bucket's.
_PRIORS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0, 1e6)
# The relevance of a stratum is drawn to that of all by this many views.
_SHRINK = 2.0
# Beyond so many cells some of the buckets stand for all: only ratios are read.
_MOST_CELLS = 40_000
_FEWEST_BUCKETS = 128
# Candidates of a query, as multiples of M, among which the likeliest is looked for.
_POOLS = (1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0)
_STEPS_OF_POOL = 12
# Documents of a row, where it is not known how many queries there are.
_VIEWS_OF_QUERY = 10
# Twins drawn to read a standard error from: each knows it to 4%.
DRAWS = 6
_DRAWS_OF_SEARCH = 2
# No ranker is suggested a smaller share than this: what it brings was not looked at.
_LEAST = 0.05
# A split that lowers the mean variance by less than this, or moves no share by as much, is as good as the present one.
_WORTH = 0.05
SAME = (
    "Other traffic is foreseen by showing the strata anew, with the relevance that their clicks tell, to users of the "
    "position-based model: as many page views, each given to a ranker by itself."
)
BEST = "the split with the least variance, on average over the ranks."
NEWCOMER = (
    "one that differs from the present ones as they differ from each other, in how far it moves documents and in "
    "how many it leaves out, and finds as relevant ones; it gets an equal share, the others lose in proportion."
)
# A newcomer is made as unlike the others as they are on average. Those that compare two ranks at a time hang on how
# many documents it moves by one certain distance: where it is of another quality, they were off by a fifth.
_LOCAL = ("pivot-one", "adjacent-chain")
_BY_DISTANCE = f"{NOT_FORESEEN}: it rests on how many documents a new ranker moves by one certain distance"
_ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth"}


def percent(share: float) -> str:
    """Return a share as a percentage."""
    return f"{float(f'{100 * share:.3g}'):g}%"


def precision_of(share: float | None) -> str:
    """Return a half-width."""
    if share is None:
        return "–"
    return f"±{100 * share:.1f}%" if share < 1 else f"±{100 * share:,.0f}%" if share < 100 else "no bound"


def times_of(times: float | None, between: Between = None) -> str:
    """Return how many times the data are needed: a number, or a range where that is not known.

    >>> times_of(9.094), times_of(None, (0.5, 12.3)), times_of(None)
    ('×9.09', '×0.50 – 12', '–')
    """
    if times is None and between is not None:
        return f"×{BETWEEN.join(map(_multiple, between))}"
    return "–" if times is None else f"×{_multiple(times)}"


def _multiple(times: float) -> str:
    return f"{times:.2f}" if times < 10 else f"{times:,.0f}" if times < 1e5 else "10⁵+"


def more_of(count: int | None, between: Between, held: float) -> str:
    """Return how much is needed beyond what is held.

    >>> more_of(1510, None, 2000), more_of(None, (1500.0, 52_000.0), 2000), more_of(None, (500.0, 900.0), 2000)
    ('1,510', '0 – 50k', 'enough')
    """
    if count is None and between is not None:
        low, high = (max(0.0, end - held) for end in between)
        return needed_of(None, (low, high)) if high > 0 else "enough"
    return "enough" if count == 0 else rounded(count)


def needed_of(count: int | None, between: Between) -> str:
    """Return how much is needed: a number, or a range where that is not known."""
    if count is None and between is not None:
        return BETWEEN.join(map(compact, between))
    return rounded(count)


def compact(count: float) -> str:
    """Return a count in a few letters.

    >>> compact(9270), compact(42850), compact(437_000), compact(4_370_000)
    ('9,270', '42.9k', '437k', '4.37M')
    """
    found = _up(ceil(count))
    if found < 10_000:
        return f"{found:,}"
    unit, letter = (10**3, "k") if found < 10**6 else (10**6, "M") if found < 10**9 else (10**9, "G")
    return f"{found / unit:,.10g}{letter}"


def _up(count: int) -> int:
    if count <= 0:
        return 0
    step = 10 ** max(0, floor(log10(count)) - 2)
    return int(-(-count // step) * step)


def rounded(count: int | None) -> str:
    """Return a count, rounded up."""
    return "–" if count is None else f"{_up(count):,}"


def play(stage: Stage, splits: Sequence[Mapping[str, float]]) -> tuple[Scenario, ...]:
    """Return what splits of traffic would bring, the best split that was found, and one more ranker."""
    given = [shares_of(split, stage.harvest.rankers) for split in splits]
    twin = Twin.of(stage.harvest, CrossFit(interval=None).fit(stage.harvest).propensity_)
    now = stage.shares
    steps = len(given) + 3
    names = [each.estimator for each in stage.measured]
    # Fits that are to be made: of each estimator in each step, and of the first while the best split is looked for.
    fits, done = DRAWS * steps * len(names) + _DRAWS_OF_SEARCH * len(splits_to_try(now)), 0

    def tell(ahead: int) -> None:
        nonlocal done
        stage.progress("Playing scenarios", done / fits)
        done += ahead

    def errors(twin: Twin, shares: FloatArray, step: int) -> FloatArray:
        rng = np.random.default_rng([stage.seed, step])
        drawn = []
        for _ in range(DRAWS):
            tell(len(names))
            drawn.append(errors_of(names, twin.draw(shares, rng)))
        return _averaged(drawn)

    present = errors(twin, now, 0)

    def scenario(name: str, shares: FloatArray, assumes: str, found: FloatArray) -> Scenario:
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio, degrees = np.sqrt(found[0] / present[0]), 1 / np.maximum(found[1], present[1])
        outlooks = [
            foresee(each, stage.wish, stage.base, _played(each.estimator, assumes, ratio[i], degrees[i]))
            for i, each in enumerate(stage.measured)
        ]
        return Scenario(name, stage.named(shares), assumes, tuple(outlooks))

    played = []
    for step, shares in enumerate(given, start=1):
        played.append(scenario(told(stage.named(shares)), shares, "", errors(twin, shares, step)))
    best = best_split(twin, now, names[0], np.random.default_rng([stage.seed, 99]), lambda: tell(1))
    if best is not None and np.abs(best - now).max() > _WORTH:
        found = errors(twin, best, steps - 2)
        variance, before = found[0, 0], present[0, 0]
        known = np.isfinite(variance) & np.isfinite(before)
        if variance[known].sum() < (1 - _WORTH) * before[known].sum():
            name = f"best: {told(stage.named(best))}"
            whole = scenario(name, best, BEST, found)
            # A split that nothing is foreseen of is not to be called the best.
            played += [whole] if whole.outlooks[0].foreseen else []
    joined = joined_by_newcomer(twin, stage.base.queries, np.random.default_rng([stage.seed, 98]))
    rankers = int((now > 0).sum())
    shares = np.append(now * rankers / (rankers + 1), 1 / (rankers + 1))
    name = f"{_ORDINALS.get(rankers + 1, f'{rankers + 1}th')} ranker"
    played.append(scenario(name, shares, NEWCOMER, errors(joined, shares, steps - 1)))
    return tuple(played)


@dataclass(frozen=True)
class Stage:
    """What scenarios are played on: a harvest, what was measured of it, and what is wanted."""

    harvest: Harvest
    measured: Sequence[Measured]
    wish: Wish
    base: Base
    seed: int
    progress: Progress

    @property
    def shares(self) -> FloatArray:
        """The share of traffic of each ranker."""
        views = self.harvest.views.sum(axis=0)
        return np.asarray(views / views.sum())

    def named(self, shares: FloatArray) -> dict[str, float]:
        """Return shares by the names of rankers, those that have any."""
        names = [*self.harvest.rankers, "new"]
        return {name: round(float(share), 4) for name, share in zip(names, shares, strict=False) if share > 0}


# Those that are fitted on a harvest, the best first.


@dataclass(frozen=True)
class Measured:
    """Standard errors of log p by rank, (M,), their degrees of freedom in one of the logs, and why a rank has none."""

    estimator: str
    propensity: FloatArray
    se: FloatArray
    degrees: FloatArray
    reasons: Sequence[str | None]
    buckets: int
    notes: tuple[str, ...] = ()
    logs: int = 1


@dataclass(frozen=True)
class Wish:
    """What is wanted: intervals of a level that are ± a share of the estimate."""

    precision: float
    level: float


@dataclass(frozen=True)
class Base:
    """The data that standard errors were read from, and those that are told of: at `at` times as much."""

    page_views: float
    queries: int | None
    at: float = 1.0
    # Whether they are there, so that only more is needed.
    held: bool = True


@dataclass(frozen=True)
class Scenario:
    """The same number of page views otherwise: another split of traffic, or one more ranker."""

    name: str
    traffic: Mapping[str, float] = field(hash=False)
    assumes: str
    outlooks: tuple[Outlook, ...]


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


def shares_of(split: Mapping[str, float], rankers: Sequence[str]) -> FloatArray:
    """Return a split as shares of the rankers; those that it leaves out have none."""
    unknown = [name for name in split if name not in rankers]
    if unknown:
        raise PosbiasError(
            f"traffic gives a share to {listed(unknown)}, but the rankers are {listed(rankers)}. Name those, such as "
            f"{rankers[0]}=0.5; a ranker whose ranks are known may be named though it served nothing yet."
        )
    given = given_shares("traffic", split, "{'a': 0.5, 'b': 0.5}")
    weights = np.array([given.get(name, 0.0) for name in rankers])
    if (weights > 0).sum() < 2:
        raise PosbiasError(
            f"traffic must give a share above 0 to two rankers or more, found {dict(split)!r}: with one alone, no "
            "document is at two ranks."
        )
    return np.asarray(weights / weights.sum())


@dataclass(frozen=True, eq=False)
class Twin:
    """The strata of a harvest, a row for each bucket and stratum.

    Attributes:
        harvest: whose twin it is.
        bucket: of each row, counted from 0.
        ranks: where each ranker puts its documents, (rows, m); 0 where beyond M.
        views: how many page views of theirs there were, by whatever ranker.
        clicks: the clicks on them and those missed, (rows, 2), from which relevance is drawn: a Beta distribution.
        pages: page views by bucket.
        propensity: p_k / p_1, (M,), a number at every rank.
    """

    harvest: Harvest
    bucket: IntArray
    ranks: IntArray
    views: FloatArray
    clicks: FloatArray
    pages: IntArray
    propensity: FloatArray

    @classmethod
    def of(cls, harvest: Harvest, propensity: FloatArray) -> Twin:
        """Return the twin of a harvest by signature, with the curve that was estimated from it."""
        if not isinstance(harvest.table, Cells) or harvest.kind != "signatures":
            raise TypeError("twins are made of harvests by signature")
        p = filled(propensity)
        # Rankers that served nothing keep their ranks: they may be given traffic.
        known = harvest.views + 1e-9
        strata = strata_of(harvest.table, harvest.max_rank, harvest.buckets, known, by_design=True)
        cells, traffic = strata.cells, harvest.views.sum(axis=0)
        rankers = len(traffic)
        first, row = group([cells.bucket, cells.stratum])
        ranks = np.zeros((len(first), rankers), dtype=np.int64)
        ranks[row, cells.ranker] = cells.rank
        shown = tally(row, cells.impressions, len(first))
        clicks = tally(row, cells.clicks, len(first))
        exposure = tally(row, cells.impressions * p[cells.rank - 1], len(first))
        reach = (ranks > 0) @ (traffic / traffic.sum())
        pages = np.rint(harvest.views.sum(axis=1)).astype(np.int64)
        bucket, stratum = cells.bucket[first], cells.stratum[first]
        # Shown only by those who rank it: with the others there were so many page views.
        views = np.minimum(shown / np.maximum(reach, 1e-12), pages[bucket])
        told = _told(stratum, clicks, exposure)
        twin = cls(harvest, bucket, ranks, views, told, pages, p)
        return twin._some()

    def _some(self) -> Twin:
        """Return the twin with no more cells than are worth drawing."""
        every = min(len(self.bucket) // _MOST_CELLS + 1, max(1, len(self.pages) // _FEWEST_BUCKETS))
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
        """How many rankers put documents somewhere."""
        return int(self.ranks.shape[1])

    def draw(self, shares: FloatArray, rng: np.random.Generator) -> Harvest:
        """Return a harvest of as many page views, each given to a ranker by its share, with clicks drawn anew."""
        traffic = rng.multinomial(self.pages, np.asarray(shares) / np.sum(shares))
        # Rows that compare nothing under this traffic would only take time.
        ranked = np.where(np.asarray(shares) > 0, self.ranks, 0)
        high, low = ranked.max(axis=1), np.where(ranked > 0, ranked, np.iinfo(np.int64).max).min(axis=1)
        kept = high > low
        bucket, ranked = self.bucket[kept], ranked[kept]
        relevance = rng.beta(*(self.clicks[kept] + 1e-9).T)
        views = np.floor(self.views[kept] + rng.random(len(bucket))).astype(np.int64)
        views = np.minimum(views, self.pages[bucket])
        shown = _dealt(traffic[bucket], views, rng)
        row, ranker = np.nonzero(ranked)
        rank, impressions = ranked[row, ranker], shown[row, ranker]
        chance = np.minimum(self.propensity[rank - 1] * relevance[row], 1.0)
        cells = Cells(
            segment=np.zeros(len(row), dtype=np.int64),
            bucket=bucket[row],
            stratum=row,
            pairs=np.zeros(len(row), dtype=np.int64),
            ranker=ranker,
            rank=rank,
            impressions=impressions,
            clicks=rng.binomial(impressions, chance),
        )
        names = (*self.harvest.rankers, *(f"new {i + 1}" for i in range(self.rankers - len(self.harvest.rankers))))
        held = np.unique(cells.bucket)
        return replace(
            self.harvest,
            rankers=names,
            by=(),
            segments=((),),
            table=cells,
            findings=(),
            traffic=traffic[held].astype(np.float64),
        )


def filled(propensity: FloatArray) -> FloatArray:
    """Return a curve with a number at every rank: that of the rank above where there is none."""
    p = np.where(np.isfinite(propensity) & (propensity > 0), propensity, np.nan)
    p[0] = 1.0
    known = np.flatnonzero(np.isfinite(p))
    return np.asarray(p[known[np.searchsorted(known, np.arange(len(p)), side="right") - 1]])


def told(shares: Mapping[str, float]) -> str:
    """Return a split in a few letters."""
    return " ".join(f"{name}={share:.3g}" for name, share in shares.items())


def _told(stratum: IntArray, clicks: FloatArray, exposure: FloatArray) -> FloatArray:
    """Return what is known of each row's relevance, as clicks and misses: its own, and a of the stratum's.

    a makes the guess of one row from its stratum and all but one of its views best; here by the likelihood of the
    clicks of rows, which overdispersion beyond the binomial lowers.
    """
    size = int(stratum.max(initial=0)) + 1
    rate = clicks.sum() / max(exposure.sum(), 1e-300)
    mean = (tally(stratum, clicks, size) + _SHRINK * rate) / (tally(stratum, exposure, size) + _SHRINK)
    mean = np.clip(mean, 1e-6, 1 - 1e-6)[stratum]
    missed = np.maximum(exposure - clicks, 0)
    from scipy.special import betaln

    fits = [
        float((betaln(clicks + a * mean, missed + a * (1 - mean)) - betaln(a * mean, a * (1 - mean))).sum())
        for a in _PRIORS
    ]
    a = _PRIORS[int(np.argmax(fits))]
    # By exposure and not by clicks and misses, of which a thin row may have more than exposure: so clicks add up.
    relevance = np.minimum((clicks + a * mean) / (exposure + a), 1.0)
    return np.stack([(exposure + a) * relevance, (exposure + a) * (1 - relevance)], axis=1)


def _dealt(traffic: IntArray, views: IntArray, rng: np.random.Generator) -> IntArray:
    """Return how many of a row's views each ranker served, out of the page views of its bucket, (rows, m).

    Rows of a bucket lie on the same pages, so that chance favours a ranker in all of them together.
    """
    shown = np.zeros(traffic.shape, dtype=np.int64)
    rest, left = traffic.sum(axis=1), views.copy()
    for ranker in range(traffic.shape[1]):
        own = traffic[:, ranker]
        rest = rest - own
        shown[:, ranker] = rng.hypergeometric(own, rest, left)
        left = left - shown[:, ranker]
    return shown


def splits_to_try(now: FloatArray) -> list[FloatArray]:
    """Return splits among the rankers that have traffic: the present one, an equal one, and most to each in turn."""
    served = now[now > 0]
    m = len(served)
    return [served, np.full(m, 1 / m), *(np.where(np.arange(m) == i, 0.7, 0.3 / (m - 1)) for i in range(m))]


def errors_of(names: Sequence[str], harvest: Harvest) -> FloatArray:
    """Return variances of log p and one over their degrees of freedom, (2, estimators, M); NaN where there is none."""
    found = []
    for name in names:
        try:
            own = measure(name, harvest)
            found.append(np.stack([own.se**2, 1 / own.degrees]))
        except EstimateError:
            found.append(np.full((2, harvest.max_rank), np.nan))
    return np.stack(found, axis=1)


def measure(name: str, harvest: Harvest, level: float = DEFAULT_LEVEL) -> Measured:
    """Fit an estimator on a harvest, and return how precise it is."""
    kind: Any = estimator_class(name)
    fitted = kind(level=level)
    # Where one estimator identifies no rank, another may: that is no error yet.
    fitted.estimate(harvest)
    se = np.sqrt(np.diagonal(fitted.covariance_))
    known = np.isfinite(fitted.interval_[:, 0]) & (se > 0)
    return Measured(
        estimator=name,
        propensity=fitted.propensity_,
        se=np.where(known, se, np.nan),
        degrees=np.where(known, fitted.degrees_of_freedom_, np.nan),
        reasons=fitted.reasons_,
        buckets=len(harvest.buckets),
        notes=fitted.notes_,
    )


def _averaged(drawn: Sequence[FloatArray]) -> FloatArray:
    """Return the mean of what is there in most of the draws."""
    values = np.stack(drawn)
    known = np.isfinite(values)
    counts = known.sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(2 * counts > len(values), np.where(known, values, 0.0).sum(axis=0) / counts, np.nan)


def foresee(measured: Measured, wish: Wish, base: Base, played: Played | None = None) -> Outlook:
    """Return what each rank needs, if standard errors become what was `played` of those that were measured.

    A rank whose standard error is not known well enough has no number but a range, or none at all.
    """
    se, sure = measured.se, measured.logs * measured.degrees
    if played is not None:
        se, sure = se * played.ratio, np.minimum(sure, played.degrees)
    setting = (wish.level, measured.buckets, base.queries)
    at = np.full(len(se), base.at)
    with np.errstate(invalid="ignore", divide="ignore"):
        now = precision_at(at, se, measured.degrees, *setting)
        degrees = degrees_at(at, measured.degrees, *setting[1:])
        times = times_for(wish.precision, se, measured.degrees, *setting)
        between = times * variance_between(sure) / base.at
    foreseen = foreseeable(sure)
    # Of the data that there are it is no prediction.
    told = foreseen | (base.held and played is None)

    def need(k: int) -> Need:
        if not np.isfinite(se[k]):
            reason = measured.reasons[k] if played is None or np.isnan(measured.se[k]) else played.reason
            return Need(rank=k + 1, reason=reason or "no interval")
        queries = None if base.queries is None else math.ceil(times[k] * base.queries)
        views = math.ceil(times[k] * base.page_views)
        had = base.at if base.held else 0.0
        found = Need(
            rank=k + 1,
            precision=float(now[k]) if told[k] and np.isfinite(now[k]) else None,
            standard_error=float(se[k] / math.sqrt(base.at)) if told[k] else None,
            degrees_of_freedom=float(degrees[k]) if told[k] else None,
            reason=measured.reasons[k],
            times_low=float(between[0, k]) if np.isfinite(between[0, k]) else None,
            times_high=float(between[1, k]) if np.isfinite(between[1, k]) else None,
        )
        if not foreseen[k]:
            return replace(found, reason=f"{sure[k]:.1f} degrees of freedom: too few to foresee from")
        return replace(
            found,
            times=float(times[k] / base.at),
            queries=queries,
            page_views=views,
            more_queries=None if queries is None else max(0, queries - round(had * (base.queries or 0))),
            more_page_views=max(0, views - round(had * base.page_views)),
        )

    held = round(float(buckets_at(np.array(base.at), *setting[1:])))
    return Outlook(measured.estimator, tuple(need(k) for k in range(1, len(se))), held)


@dataclass(frozen=True)
class Played:
    """What standard errors become of what they are in a play, (M,), and the degrees of freedom that this rests on."""

    ratio: FloatArray
    degrees: FloatArray
    reason: str = f"{NOT_FORESEEN}: too thin"


def precision_at(
    times: FloatArray, se: FloatArray, degrees: FloatArray, level: float, buckets: int, queries: int | None = None
) -> FloatArray:
    """Return the ± of intervals, as a share of the estimate, with so many times the queries; NaN where se is.

    >>> precision_at(np.array([1.0, 4.0]), np.array([0.05]), np.array([255.0]), 0.95, 256).round(3).tolist()
    [0.103, 0.05]
    """
    quantile = t_quantile(degrees_at(times, degrees, buckets, queries), (1 + level) / 2)
    with np.errstate(over="ignore"):
        return np.asarray(np.expm1(quantile * se / np.sqrt(times)))


def degrees_at(times: FloatArray, degrees: FloatArray, buckets: int, queries: int | None = None) -> FloatArray:
    """Return the degrees of freedom with so many times the queries that gave `degrees` in `buckets`.

    Satterthwaite's are 2 B / (κ − 1) for deletions of kurtosis κ. A bucket's is that of its queries, of which the part
    beyond 3 falls as their number grows.

    >>> degrees_at(np.array([1.0, 4.0, 100.0]), np.array([64.0]), 256).round(0).tolist()
    [64.0, 146.0, 249.0]
    """
    unequal = np.maximum(1 / np.asarray(degrees) - 1 / buckets, 0)
    held = buckets_at(times, buckets, queries)
    found = 1 / (1 / np.maximum(held, 1) + unequal / np.asarray(times))
    return np.asarray(np.clip(found, 1, np.maximum(held - 1, 1)))


def buckets_at(times: FloatArray, buckets: int, queries: int | None = None) -> FloatArray:
    """Return how many buckets hold anything with so many times the queries that fill `buckets` of them.

    >>> buckets_at(np.array([0.1, 1.0, 10.0]), 128).round(0).tolist()
    [17.0, 128.0, 256.0]
    """
    return np.asarray(-BUCKETS * np.expm1(-queries_of_bucket(buckets, queries) * np.asarray(times)))


def queries_of_bucket(buckets: int, queries: int | None) -> float:
    """Return the mean queries of a bucket, from how many buckets hold any; without bound where that does not tell."""
    if buckets < BUCKETS:
        return -math.log(1 - buckets / BUCKETS)
    return math.inf if queries is None else max(queries / BUCKETS, -math.log(1 / (2 * BUCKETS)))


def times_for(
    precision: float, se: FloatArray, degrees: FloatArray, level: float, buckets: int, queries: int | None = None
) -> FloatArray:
    """Return how many times the queries make intervals ± a share of the estimate; NaN where se is.

    >>> times_for(0.05, np.array([0.025, 0.05]), np.array([255.0, 255.0]), 0.95, 256).round(2).tolist()
    [1.02, 4.07]
    """
    normal = t_quantile(np.array([1e9]), (1 + level) / 2)
    low = np.log((normal * se / math.log1p(precision)) ** 2)
    # No interval is made of fewer buckets than this.
    fewest = -math.log(1 - MIN_BUCKETS / BUCKETS) / queries_of_bucket(buckets, queries)
    low = np.maximum(low, math.log(max(fewest, 1e-300)))
    high = low + math.log(_WIDEST)
    for _ in range(_STEPS_OF_DEGREES):
        middle = (low + high) / 2
        wide = precision_at(np.exp(middle), se, degrees, level, buckets, queries) > precision
        low, high = np.where(wide, middle, low), np.where(wide, high, middle)
    return np.asarray(np.exp(high))


def variance_between(degrees: FloatArray) -> FloatArray:
    """Return between which multiples of a variance the true one lies about 95% of the time, (2, ...); NaN from too few.

    It would be df / χ² if the degrees of freedom were known, but they are read from the same few queries. All of
    them held it 86 to 92% of the time in simulated logs, and half of them 96 to 99%.

    >>> variance_between(np.array([3.0, 10.0, 255.0])).round(2).tolist()
    [[nan, 0.39, 0.79], [nan, 6.02, 1.3]]
    """
    from scipy.special import chdtri

    df = _SURE * np.where(np.asarray(degrees) >= _FEWEST_DEGREES, degrees, np.nan)
    return np.stack([df / chdtri(df, beyond) for beyond in (0.025, 0.975)])


def foreseeable(degrees: FloatArray) -> BoolArray:
    """Return whether a standard error of so many degrees of freedom is known well enough: to 1/√(2 df) of itself.

    >>> foreseeable(np.array([3.0, 31.0, 33.0, np.nan])).tolist()
    [False, False, True, False]
    """
    return np.asarray(np.asarray(degrees) >= 1 / (2 * _KNOWN_TO**2))


def _played(estimator: str, assumes: str, ratio: FloatArray, degrees: FloatArray) -> Played:
    if assumes == NEWCOMER and estimator in _LOCAL:
        return Played(np.full(len(ratio), np.nan), degrees, _BY_DISTANCE)
    return Played(ratio, degrees)


def best_split(
    twin: Twin,
    now: FloatArray,
    estimator: str,
    rng: np.random.Generator,
    tell: Callable[[], None] = lambda: None,
) -> FloatArray | None:
    """Return the split of traffic among those that have some with the least variance, on average over ranks.

    The variance is nearly c0 + Σ c_i / π_i, each ranker telling as much as it shows: fitted to a few splits, it is
    least where π_i is proportional to √c_i. Before each fit it `tell`s.
    """
    served = np.flatnonzero(now > 0)
    m = len(served)
    points, variances = [], []
    for shares in splits_to_try(now):
        whole = np.zeros(len(now))
        whole[served] = shares
        drawn = []
        for _ in range(_DRAWS_OF_SEARCH):
            tell()
            drawn.append(errors_of([estimator], twin.draw(whole, rng)))
        found = _averaged(drawn)[0, 0, 1:]
        if np.isfinite(found).any():
            points.append(shares)
            variances.append(found)
    known = np.isfinite(np.array(variances)).all(axis=0) if variances else np.zeros(1, dtype=np.bool_)
    if len(points) < m + 1 or not known.any():
        return None
    variance = np.array(variances)[:, known].mean(axis=1)
    design = np.concatenate([np.ones((len(points), 1)), 1 / np.maximum(np.array(points), 1e-3)], axis=1)
    # Each to the same share of itself.
    cost = non_negative(design / variance[:, None], np.ones(len(points)))[1:]
    if not cost.any():
        return None
    shares = np.maximum(np.sqrt(cost) / np.sqrt(cost).sum(), _LEAST)
    answer = np.zeros(len(now))
    answer[served] = np.round(shares / shares.sum(), 2)
    return answer


def non_negative(design: FloatArray, values: FloatArray) -> FloatArray:
    """Return the coefficients of least squares, leaving out whatever would be negative.

    >>> non_negative(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), np.array([1.0, -1.0, 0.5])).round(2).tolist()
    [0.75, 0.0]
    """
    kept = np.ones(design.shape[1], dtype=np.bool_)
    answer = np.zeros(design.shape[1])
    while kept.any():
        found = np.linalg.lstsq(design[:, kept], values, rcond=None)[0]
        if (found >= 0).all():
            answer[kept] = found
            break
        kept[np.flatnonzero(kept)[np.argmin(found)]] = False
    return answer


def joined_by_newcomer(twin: Twin, queries: int | None, rng: np.random.Generator) -> Twin:
    """Return the twin with one more ranker, which draws its ranks of every document."""
    each = _VIEWS_OF_QUERY if queries is None else max(1.0, twin.harvest.views.sum() / queries)
    documents = np.maximum(1, np.rint(twin.views / each)).astype(np.int64)
    row = np.repeat(np.arange(len(twin.bucket)), documents)
    ranks, views = twin.ranks[row], twin.views[row] / documents[row]
    newcomer = _drawn_alike(ranks, views, len(twin.propensity), rng)
    # Documents of one bucket that all rankers treat alike are one row again, so that it has all their clicks.
    m = twin.rankers
    key = row * (len(twin.propensity) + 1) + newcomer
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    kept = row[first]
    ranks, views = np.concatenate([ranks[first], newcomer[first][:, None]], axis=1), tally(which, views, len(first))
    clicks = _as_relevant(ranks, views, twin.clicks[kept], len(twin.propensity))
    return replace(twin, bucket=twin.bucket[kept], ranks=ranks.reshape(-1, m + 1), views=views, clicks=clicks)


def _drawn_alike(ranks: IntArray, views: FloatArray, most: int, rng: np.random.Generator) -> IntArray:
    """Return the ranks of a newcomer that is to the rankers as they are to each other."""
    wanted = mean_likeness(ranks, views)
    place, noise = rng.random(ranks.shape), rng.standard_normal(len(ranks))
    best, off = np.zeros(len(ranks), dtype=np.int64), np.inf
    for times in _POOLS:
        pool = times * most
        low, high = 0.0, 1.0
        for _ in range(_STEPS_OF_POOL):
            rho = (low + high) / 2
            drawn = newcomer_ranks(ranks, most, pool, rho, place, noise)
            low, high = (low, rho) if mean_likeness(ranks, views, drawn).apart < wanted.apart else (rho, high)
        found = abs(mean_likeness(ranks, views, drawn).shared - wanted.shared)
        if found < off:
            best, off = drawn, found
    return best


def mean_likeness(ranks: IntArray, views: FloatArray, newcomer: IntArray | None = None) -> Likeness:
    """Return the likeness of any two rankers, or of a newcomer to each of them, on average."""
    m = ranks.shape[1]
    if newcomer is None:
        found = [likeness(ranks[:, i], ranks[:, j], views) for i in range(m) for j in range(i)]
    else:
        # What only the newcomer ranks was never shown: as many as the others' that it leaves out.
        found = []
        for i in range(m):
            own = ranks[:, i] > 0
            found.append(likeness(ranks[own, i], newcomer[own], views[own]))
        found = [Likeness(each.apart, each.shared / max(2 - each.shared, 1e-300)) for each in found]
    return Likeness(float(np.mean([each.apart for each in found])), float(np.mean([each.shared for each in found])))


@dataclass(frozen=True)
class Likeness:
    """How alike two rankers are on the documents that one of them puts in the top M.

    Attributes:
        apart: by how many ranks they differ, on average, where both have the document in their top M.
        shared: how often the other has it there, too.
    """

    apart: float
    shared: float


def likeness(one: IntArray, other: IntArray, views: FloatArray) -> Likeness:
    """Return how alike two rankers are, from the ranks they give to documents, 0 beyond M."""
    both, either = (one > 0) & (other > 0), (views * (one > 0)).sum() + (views * (other > 0)).sum()
    shared = 2 * views[both].sum()
    apart = (views[both] * np.abs(one - other)[both]).sum() / max(shared / 2, 1e-300)
    return Likeness(float(apart), float(shared / max(either, 1e-300)))


def newcomer_ranks(
    ranks: IntArray, most: int, pool: float, rho: float, place: FloatArray, noise: FloatArray
) -> IntArray:
    """Return a newcomer's rank of each document, 0 beyond `most`, given those by the others among `pool` candidates."""
    from scipy.special import ndtr, ndtri

    m = ranks.shape[1]
    # Beyond M a document is anywhere; within its rank, too.
    beyond = most + place * max(pool - most, 0.5)
    z = -ndtri(np.where(ranks > 0, ranks - 1 + place, beyond) / max(pool, most + 0.5))
    z = np.clip(z, -5, 5)
    spread = 1 + (m - 1) * rho
    score = rho * z.sum(axis=1) / spread + np.sqrt(max(1 - m * rho**2 / spread, 0)) * noise
    rank = np.floor(max(pool, most + 0.5) * ndtr(-score)).astype(np.int64) + 1
    return np.where(rank <= most, rank, 0)


def _as_relevant(ranks: IntArray, views: FloatArray, clicks: FloatArray, most: int) -> FloatArray:
    """Return clicks and misses so that the newcomer, the last ranker, finds as relevant documents for each rank.

    It knows more of a document than the others' ranks tell: of those that they treat alike, it puts the better first.
    """
    weight = clicks.sum(axis=1)
    relevance = clicks[:, 0] / weight
    size = most + 1
    found, among = (np.stack([tally(own, values, size) for own in ranks.T]) for values in (views * relevance, views))
    present = found[:-1].sum(axis=0) / np.maximum(among[:-1].sum(axis=0), 1e-300)
    gain = np.where(
        (found[-1] > 0) & (present > 0), present / np.maximum(found[-1] / np.maximum(among[-1], 1e-300), 1e-300), 1.0
    )
    # What the newcomer leaves out is as much less relevant as what it ranks is more.
    rest = found[-1][0]
    gain[0] = np.clip(1 - (found[-1][1:] @ (gain[1:] - 1)) / rest, 0.1, 10) if rest > 0 else 1.0
    tilted = np.clip(relevance * gain[ranks[:, -1]], 1e-9, 1 - 1e-9)
    return np.stack([weight * tilted, weight * (1 - tilted)], axis=1)
