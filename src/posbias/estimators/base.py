"""Base classes of the estimators."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray
from posbias._stats import satterthwaite, t_quantile
from posbias._text import listed
from posbias._validate import DEFAULT_LEVEL, DEFAULT_MAX_RANK, share, whole
from posbias.curves.curve import Covariance, Curve, Position, Segment
from posbias.errors import EstimateError
from posbias.harvesting.count import MAX_RANKS
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.interventions import Interventions
from posbias.harvesting.observations import EngineChoice, ObservationKind, Observations
from posbias.harvesting.tables import MIN_PAGE_VIEWS, Cells
from posbias.logs.click_log import ClickLog, Weighting
from posbias.logs.schema import ANY_RANKER
from posbias.progress import Progress, silent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Interval = Literal["jackknife", "bootstrap"]
INTERVALS: tuple[Interval, ...] = ("jackknife", "bootstrap")
# With fewer buckets than this no interval is worth its name.
MIN_BUCKETS = 8
# An interval with fewer degrees of freedom than this rests on few queries, and says so.
FEW_DEGREES = 10
# What a deletion moves log p by, at the least, to be more than rounding; and the half-width beyond which an interval,
# from a ten-thousandth to ten thousand times the estimate, says nothing.
_MOVED, _WIDEST = 1e-6, np.log(1e4)
# A bucket that moves an estimate by less than this share of what the one does that moves it most, tells nothing of it.
_TELLS = 0.1
# More resamples than this share without an estimate leave a rank without an interval.
MOST_UNDEFINED = 0.05
Reasons = list[str | None]
# So many numbers of tables are refitted at once.
_MOST_NUMBERS = 10**7
# The bounds of parameters that are whole numbers; resamples beyond theirs would add nothing but time.
_BOUNDS: dict[str, tuple[int, int | None]] = {
    "bootstrap": (1, 100_000),
    "iterations": (1, None),
    "max_rank": (2, MAX_RANKS),
    "sample": (1, None),
    "seed": (0, None),
}
# So many rankers with few page views are named.
_MOST_NAMED = 4


class CurveEstimator(ABC):
    """An estimator of p_k / p_1: its results and what one does with them, whatever it is fitted on.

    `__init__` only stores parameters, each in an attribute of its name. `fit` returns the estimator itself, after
    which it has `propensity_` (length M, NaN where not identified), `interval_` (M × 2), `covariance_` (M × M, of
    log p), `degrees_of_freedom_` (of the intervals), `reasons_` (why a rank has no estimate or no interval, or what
    makes it a weak one), `notes_` (what is to be known of the whole curve), and `segments_`, a fitted estimator for
    each segment by its values of the columns `by_`. Where intervals were made, `deletions_` are the curves without
    each of the B buckets (B × M), of which standard errors have at most `most_degrees_` of freedom.
    """

    name: ClassVar[str]
    # What `fit` takes: "harvest", "log", or both.
    fits_on: ClassVar[tuple[str, ...]]
    # Why a rank has the estimate 0.
    clickless: ClassVar[str] = "no click at rank {rank}"

    propensity_: FloatArray
    interval_: FloatArray
    covariance_: FloatArray
    degrees_of_freedom_: FloatArray
    reasons_: Reasons
    notes_: tuple[str, ...] = ()
    by_: tuple[str, ...] = ()
    segments_: dict[Segment, Self]
    evidence_: Evidence
    deletions_: FloatArray | None = None
    most_degrees_: float = np.inf

    @abstractmethod
    def estimate(self, seen: Any, /) -> None:
        """Estimate one curve of what `fit` was given or made, and keep it."""

    def _require_estimate(self) -> None:
        """Refuse a curve on which no rank but the first has a number, or a click: nobody could use it."""
        if np.isnan(self.propensity_[1:]).all() or not self.evidence_.clicks[1:].any():
            raise EstimateError(_no_estimate(self.evidence_, self.reasons_))

    def _estimate_segments(self, harvest: Harvest | Observations) -> Self:
        """Estimate the curve of each segment, if there are any."""
        self.by_ = harvest.by
        for key in harvest.segments if harvest.by else ():
            part = type(self)(**self.parameters())
            part.estimate(harvest.segment(key))
            self.segments_[key] = part
        return self

    def _intervals(
        self,
        propensity: FloatArray,
        buckets: int,
        refit: Callable[[FloatArray], FloatArray],
        size: int = 1,
        most_degrees: float = np.inf,
    ) -> Intervals:
        """Return the intervals that refits on weights of the buckets, (..., B), make.

        All refits go as one batch, or as several where their tables of `size` numbers each would fill the memory.
        """
        given, how = self.parameters(), self._interval
        self.deletions_ = None
        if how is None:
            return no_intervals(len(propensity))
        if buckets < MIN_BUCKETS:
            return no_intervals(len(propensity), explain_few_buckets(buckets))
        step = max(1, _MOST_NUMBERS // max(1, size))

        def refits(weights: FloatArray) -> FloatArray:
            return np.concatenate([refit(weights[start : start + step]) for start in range(0, len(weights), step)])

        self.deletions_, self.most_degrees_ = refits(deletion_weights(buckets)), most_degrees
        by_deletion = jackknife(propensity, self.deletions_, given["level"], most_degrees)
        if how == "jackknife":
            return by_deletion
        resamples = refits(resample_weights(buckets, given["bootstrap"], given["seed"]))
        return warned(percentile(propensity, resamples, given["level"]), by_deletion.degrees)

    def _keep(
        self, evidence: Evidence, propensity: FloatArray, reasons: Reasons, intervals: Intervals | None = None
    ) -> None:
        """Keep an estimate, why ranks have none, and its intervals, if any."""
        found = no_intervals(len(propensity)) if intervals is None else intervals
        self.evidence_ = evidence
        self.segments_ = {}
        self.propensity_ = propensity
        # Resamples of no clicks are all 0: that is not certainty.
        known = np.isfinite(propensity) & (propensity > 0)
        self.interval_ = np.where(known[:, None], found.ends, np.nan)
        self.covariance_ = np.where(known[:, None] & known, found.covariance, np.nan)
        self.degrees_of_freedom_ = np.where(np.isfinite(self.interval_[:, 0]), found.degrees, np.nan)
        self.reasons_ = [
            (reason or "not determined by this data")
            if np.isnan(p)
            else f"{self.clickless.format(rank=k)}: 0, without an interval"
            if p == 0
            else told
            if k > 1  # By definition it is 1, whatever there is no interval of.
            else None
            for k, (p, reason, told) in enumerate(zip(propensity, reasons, found.reasons, strict=True), start=1)
        ]

    def _check(self) -> None:
        """Refuse parameters that mean nothing."""
        given = self.parameters()
        if "level" in given:
            share("level", given["level"], EstimateError)
        interval = given.get("interval")
        if interval is not None and not (isinstance(interval, str) and interval in INTERVALS):
            raise EstimateError(
                f"interval must be one of {listed(INTERVALS)}, or None for none, not {given['interval']!r}."
            )
        for name, (low, high) in _BOUNDS.items():
            if name in given:
                whole(name, given[name], low, high, EstimateError)

    def parameters(self) -> dict[str, Any]:
        """Return what the estimator was made with."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return what the estimator was made with, as scikit-learn asks for it; `deep` changes nothing here."""
        return self.parameters()

    def set_params(self, **params: Any) -> Self:
        """Change what the estimator was made with, and return it; `fit` says what it makes of that."""
        known = self.parameters()
        unknown = [name for name in params if name not in known]
        if unknown:
            raise EstimateError(
                f"{type(self).__name__} has no parameter {', '.join(map(repr, unknown))}. It has {listed(known)}."
            )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    @property
    def _interval(self) -> Interval | None:
        """How intervals are made, if they are."""
        return self.parameters().get("interval")

    def curve(self) -> Curve:
        """Return the fitted curve, rank by rank: the ranks at which anything was shown."""
        self._require_fit()
        seen = self.evidence_
        ranks = np.flatnonzero(seen.impressions)
        positions = tuple(
            Position(
                position=k + 1,
                propensity=_number(self.propensity_[k]),
                low=_number(self.interval_[k, 0]),
                high=_number(self.interval_[k, 1]),
                impressions=int(seen.impressions[k]),
                clicks=int(seen.clicks[k]),
                reason=self.reasons_[k],
                degrees_of_freedom=_number(self.degrees_of_freedom_[k]),
            )
            for k in map(int, ranks)
        )
        return Curve(
            estimator=self.name,
            max_rank=len(self.propensity_),
            level=self.parameters()["level"] if self._interval else None,
            interval_by=self._interval,
            weighting=seen.weighting,
            positions=positions,
            page_views={name: n for name, n in seen.page_views.items() if n},
            covariance=_rows(self.covariance_[np.ix_(ranks, ranks)], np.isfinite(self.interval_[ranks, 0])),
            notes=self.notes_,
            by=self.by_,
            segments={key: part.curve() for key, part in self.segments_.items()},
        )

    def summary(self) -> Curve:
        """Return the fitted curve: it prints as a table, and `to_pandas` and `to_polars` make a frame of it."""
        return self.curve()

    def plot(self, ax: Axes | None = None, *, truth: FloatArray | None = None, joint: bool = False) -> Axes:
        """Draw the curve with its intervals, and its joint band if asked for, and return the Axes."""
        from posbias.curves.curve import draw_curve

        return draw_curve(self.curve(), ax, truth=truth, joint=joint)

    def _require_fit(self) -> None:
        if not hasattr(self, "evidence_"):
            raise EstimateError(f"This {type(self).__name__} is not fitted yet: call fit({self.fits_on[0]}) first.")

    def __repr__(self) -> str:
        known = inspect.signature(type(self)).parameters
        given = [f"{name}={v!r}" for name, v in self.parameters().items() if v != known[name].default]
        return f"{type(self).__name__}({', '.join(given)})"


class Counts(Protocol):
    """What an estimator takes from a harvest: `Interventions`, `Strata`, or anything that says this much of itself."""

    @property
    def buckets(self) -> int:
        """How many buckets there are, each to be counted by a weight of its own."""

    @property
    def clicked(self) -> bool:
        """Whether there is a click on anything that compares ranks."""


C = TypeVar("C", bound=Counts)


class Estimator(CurveEstimator, Generic[C]):
    """An estimator of p_k / p_1 from a harvest.

    A new one defines `name`, `count`, `curves` and `reasons`; or, if pair tables are all it needs, it is a
    `PairEstimator`. The base does segments, intervals, tables and plots.

    Arguments:
        level: the coverage of the intervals.
        interval: "jackknife", which leaves out each of the harvest's buckets, the percentiles of a "bootstrap" over
            them, or None for no interval.
        bootstrap: the number of resamples of the bootstrap.
        seed: of the resamples. Nothing else is drawn.
    """

    fits_on: ClassVar[tuple[str, ...]] = ("harvest",)

    harvest_: Harvest

    def __init__(
        self,
        *,
        level: float = DEFAULT_LEVEL,
        interval: Interval | None = "jackknife",
        bootstrap: int = 1000,
        seed: int = 0,
    ) -> None:
        self.level = level
        self.interval = interval
        self.bootstrap = bootstrap
        self.seed = seed

    @abstractmethod
    def count(self, harvest: Harvest) -> C:
        """Return what the estimator needs of a harvest, by bucket: `harvest.interventions()`, `harvest.strata()`."""

    @abstractmethod
    def curves(self, counts: C, weights: FloatArray) -> FloatArray:
        """Return p_k / p_1 as (..., M) for buckets counted `weights` (..., B) times; NaN where it is not identified."""

    @abstractmethod
    def reasons(self, counts: C) -> Reasons:
        """Return, for each rank, why the counts do not identify it, or None."""

    def most_degrees(self, counts: C) -> float:
        """Return the most degrees of freedom that a standard error can have, where deletions do not tell."""
        return np.inf

    def fit(self, harvest: Harvest) -> Self:
        """Estimate the curve of a harvest, and of each of its segments."""
        self._check()
        if not isinstance(harvest, Harvest):
            raise EstimateError(
                f"fit takes a Harvest, not a {type(harvest).__name__}. Make one with posbias.harvest(ClickLog(...))."
            )
        require_first(harvest.impressions)
        counts = self.count(harvest)
        if not counts.clicked:
            raise EstimateError(_nothing(harvest))
        self._fit_counts(harvest, counts)
        self._require_estimate()
        return self._estimate_parts(harvest, counts)

    def _estimate_parts(self, harvest: Harvest, counts: C) -> Self:
        """Estimate the curve of each segment, given what was counted of all."""
        return self._estimate_segments(harvest)

    def estimate(self, harvest: Harvest) -> None:
        """Estimate one curve, and keep it."""
        self._fit_counts(harvest, self.count(harvest))

    def _fit_counts(self, harvest: Harvest, counts: C) -> None:
        self.notes_ = ()
        propensity = self.curves(counts, np.ones(counts.buckets))
        intervals = self._intervals(
            propensity,
            counts.buckets,
            lambda weights: self.curves(counts, weights),
            len(propensity) ** 2,
            self.most_degrees(counts),
        )
        self.harvest_ = harvest
        self.notes_ += (*_few_views(harvest), *self.doubts(harvest, counts))
        self._keep(Evidence.of(harvest, self._weighting(harvest)), propensity, self.reasons(counts), intervals)

    def doubts(self, harvest: Harvest, counts: C) -> tuple[str, ...]:
        """Say what in a harvest this estimator takes for granted, and should not."""
        return ()

    def _weighting(self, harvest: Harvest) -> str | None:
        """Return the weighting of pairs that the curve has, if it has any."""
        return None


class PairEstimator(Estimator[Interventions]):
    """An estimator of p_k / p_1 from the interventional sets of a harvest.

    A new one defines `name`, `propensities` and `explain`.

    Arguments:
        weighting: how much each (query, document) pair counts; the harvest's own weighting by default.
        level: the coverage of the intervals.
        interval: "jackknife", which leaves out each of the harvest's buckets, the percentiles of a "bootstrap" over
            them, or None for no interval.
        bootstrap: the number of resamples of the bootstrap.
        seed: of the resamples. Nothing else is drawn.
    """

    # Whether clicks alone are compared, and not click rates: then a page view that ends above a rank looks like one in
    # which nothing was clicked there.
    counts_clicks = False
    clickless = "no click at rank {rank} in its interventional sets"

    def __init__(
        self,
        *,
        weighting: Weighting | None = None,
        level: float = DEFAULT_LEVEL,
        interval: Interval | None = "jackknife",
        bootstrap: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__(level=level, interval=interval, bootstrap=bootstrap, seed=seed)
        self.weighting = weighting

    @abstractmethod
    def propensities(self, clicks: FloatArray, skips: FloatArray) -> FloatArray:
        """Return p_k / p_1 as (..., M) from ĉ and ¬ĉ as (..., M, M); NaN where it is not identified."""

    @abstractmethod
    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Return, for each rank, why ĉ and ¬ĉ do not identify it, or None."""

    def count(self, harvest: Harvest) -> Interventions:
        """Return ĉ and ¬ĉ by bucket."""
        return harvest.interventions(self.weighting)

    def curves(self, counts: Interventions, weights: FloatArray) -> FloatArray:
        """Return the curve of each batch of bucket weights."""
        return self.propensities(*counts.tables(weights))

    def reasons(self, counts: Interventions) -> Reasons:
        """Return why the sets of the log as it is do not identify a rank."""
        return self.explain(*counts.total())

    def doubts(self, harvest: Harvest, counts: Interventions) -> tuple[str, ...]:
        """Say where rankers showed less than traffic promised, by which pairs are weighed."""
        if not isinstance(harvest.table, Cells) or self._weighting(harvest) != "traffic":
            return ()
        uneven = uneven_traffic(harvest)
        if uneven:
            return (
                f"{uneven} {self.name} weighs by traffic, and is wrong then: use cross-fit, which bears most of it, or "
                "estimate each period by itself.",
            )
        # What pages leave out, clicks alone do not tell from fewer clicks.
        short = harvest.expected_impressions.shortfalls() if self.counts_clicks else []
        if not short:
            return ()
        name = harvest.rankers[short[0].ranker]
        return (
            f"Ranker {name!r} showed {short[0].shown:,} results at rank {short[0].rank} where its traffic promised "
            f"{short[0].expected:,.0f}, as where pages end above it or begin below. {self.name} takes them for shown, "
            "and is wrong there; cross-fit and all-pairs do not.",
        )

    def _weighting(self, harvest: Harvest) -> str:
        return self.weighting or harvest.weighting


class LogEstimator(CurveEstimator):
    """An estimator of p_k / p_1 from what the rows of a log show: its `Observations`.

    A new one defines `name`, the kind of observations it needs and how to `observe` them, and `estimate`.

    Arguments:
        max_rank: M; results shown beyond it are not counted.
        level: the coverage of the intervals.
        interval: "jackknife", which leaves out queries bucket by bucket, the percentiles of a "bootstrap" over
            buckets, or None for no interval.
        bootstrap: the number of resamples of the bootstrap.
        seed: of the resamples. Nothing else is drawn.
    """

    fits_on: ClassVar[tuple[str, ...]] = ("log",)
    needs: ClassVar[ObservationKind]

    def __init__(
        self,
        *,
        max_rank: int = DEFAULT_MAX_RANK,
        level: float = DEFAULT_LEVEL,
        interval: Interval | None = "jackknife",
        bootstrap: int = 1000,
        seed: int = 0,
    ) -> None:
        self.max_rank = max_rank
        self.level = level
        self.interval = interval
        self.bootstrap = bootstrap
        self.seed = seed

    @abstractmethod
    def observe(self, log: ClickLog, **how: Any) -> Observations:
        """Return what the estimator needs to know of a log, which `fit` takes in its place."""

    @abstractmethod
    def estimate(self, observations: Observations) -> None:
        """Estimate one curve, and keep it."""

    def fit(
        self,
        log: ClickLog | Observations,
        *,
        by: Sequence[str] = (),
        engine: EngineChoice | None = None,
        progress: Progress = silent,
        force: bool = False,
    ) -> Self:
        """Estimate the curve of a log, and of each of its segments.

        Arguments:
            log: the click log, or what `observe` counted on it, which then has M and the segments of its own.
            by: segment columns; each segment gets its own curve too.
            engine: "duckdb" (embedded, the default) or "spark" (the active session).
            progress: called with what is being done and the share done.
            force: go on where the log was found to be damaged.
        """
        self._check()
        if isinstance(log, ClickLog):
            observations = self.observe(log, by=by, engine=engine, progress=progress, force=force)
        else:
            observations = self._accepted(log, by)
        if not observations.clicks.any():
            raise EstimateError(
                f"There is not a single click in the top {observations.max_rank} ranks. Check the column of clicks."
            )
        return self._fit(observations)

    def _accepted(self, given: Observations, by: Sequence[str]) -> Observations:
        """Return observations made beforehand if they are those that the estimator needs."""
        kind = type(self).__name__
        if not isinstance(given, Observations):
            raise EstimateError(
                f"{kind} looks at the rows of a log: fit takes a ClickLog, not a {type(given).__name__}."
            )
        remedy = f"Make them by {self!r}.observe(log)."
        if given.kind != self.needs:
            raise EstimateError(f"{kind} needs observations of {self.needs}, and these are of {given.kind}. {remedy}")
        features = tuple(self.parameters().get("features", ()))
        if given.features != features:
            raise EstimateError(f"These observations are of other features, {given.features}. {remedy}")
        if by:
            raise EstimateError(f"Observations have segments of their own, by {given.by}: leave by={by!r} to observe.")
        return given

    def _fit(self, seen: Any) -> Self:
        require_first(seen.impressions)
        self.estimate(seen)
        self._require_estimate()
        return self._estimate_segments(seen)


@dataclass(frozen=True)
class Evidence:
    """What stands beside a curve: impressions and clicks by rank, the page views of each ranker, the weighting."""

    impressions: IntArray
    clicks: IntArray
    page_views: Mapping[str, int]
    weighting: str | None

    @classmethod
    def of(cls, seen: Harvest | Observations, weighting: str | None = None) -> Evidence:
        """Return what a harvest or observations show beside a curve."""
        return cls(seen.impressions, seen.clicks, seen.page_views, weighting)


def _no_estimate(seen: Evidence, reasons: Reasons) -> str:
    """Say why no rank but the first has an estimate."""
    said = "No rank but the first could have an estimate"
    if not seen.clicks[0]:
        return (
            f"{said}: there is no click at rank 1, in {seen.impressions[0]:,} impressions, and the curve is relative "
            "to it. Check that positions count from 1, and that clicks on the first result are logged."
        )
    if not seen.clicks[1:].any():
        return (
            f"{said}: there is no click beyond rank 1, in {seen.impressions[1:].sum():,} impressions. Check that "
            "clicks on results below the first are logged."
        )
    why = "; ".join(dict.fromkeys(reason for reason in reasons[1:] if reason))
    return f"{said}: {why}. It takes more data, or rankers that differ more."


@dataclass(frozen=True)
class Intervals:
    """What refits say of an estimate: the ends of its intervals, the covariance of log p, the degrees of freedom.

    Attributes:
        ends: by rank, (M, 2); NaN where there is no interval.
        covariance: of log p, (M, M).
        degrees: of freedom by rank, from which the interval takes its quantile of t; NaN where it takes none.
        reasons: why a rank has no interval, or what is to be known of it.
    """

    ends: FloatArray
    covariance: FloatArray
    degrees: FloatArray
    reasons: list[str | None]


def no_intervals(ranks: int, reason: str | None = None) -> Intervals:
    """Return that there are none, and why."""
    unknown = np.full(ranks, np.nan)
    return Intervals(np.full((ranks, 2), np.nan), np.full((ranks, ranks), np.nan), unknown, [reason] * ranks)


def explain_few_buckets(buckets: int) -> str:
    """Say why so few buckets make no interval."""
    return f"{buckets} bucket{'s'[: buckets > 1]} of queries: no interval from fewer than {MIN_BUCKETS}"


def deletion_weights(buckets: int) -> FloatArray:
    """Return how often each bucket counts in each refit of the jackknife, which leaves one out: (buckets, buckets)."""
    return 1.0 - np.eye(buckets)


def jackknife(estimate: FloatArray, refits: FloatArray, level: float, most_degrees: float = np.inf) -> Intervals:
    """Return the intervals of an estimate, (M,), from its refits without each of B buckets, (B, M).

    On the log scale, with d_b = x(−b) − x: se² = (B−1)/B Σ d² (the estimator CV3 of clustered data), and t quantiles
    with the degrees of freedom of Satterthwaite, 2 (Σd²)² / (Σd⁴ − (Σd²)²/B): as many as if so many buckets told the
    same, one fewer than do tell of the estimate at the most, and no more than `most_degrees`. `docs/intervals.md` says
    how often they hold the truth.
    """
    buckets, ranks = refits.shape
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = np.log(refits) - np.log(estimate)
    # Rank 1 is 1 by definition, however the refits come out.
    finite = np.isfinite(moved).all(axis=0)
    moved = np.where(finite, moved, 0.0)
    # Deletions that move nothing say that there is nothing to be moved, not that it is certain.
    known = finite & ((np.abs(moved).max(axis=0) > _MOVED) | (np.arange(ranks) == 0))
    covariance = (buckets - 1) / buckets * moved.T @ moved
    # A few that happen to tell the same are no more than these few.
    telling = (np.abs(moved) >= _TELLS * np.abs(moved).max(axis=0)).sum(axis=0)
    most = np.maximum(1.0, np.minimum(telling - 1, most_degrees))
    degrees = np.where(known, np.minimum(satterthwaite(moved), most), np.nan)
    half = t_quantile(degrees, (1 + level) / 2) * np.sqrt(np.diagonal(covariance))
    wide = half > _WIDEST
    half = np.where(wide, np.nan, half)
    ends = estimate[:, None] * np.exp(np.stack([-half, half], axis=-1))
    covariance = np.where(known[:, None] & known, covariance, np.nan)
    reasons: list[str | None] = [
        None
        if sure
        else "rests on one bucket of queries: no interval"
        if wild
        else "every query tells the same: no interval"
        for sure, wild in zip(known, ~finite, strict=True)
    ]
    for k in np.flatnonzero(wide):
        reasons[k] = "so few queries decide it that an interval would say nothing"
    for k in np.flatnonzero(known & ~wide & (degrees < FEW_DEGREES) & (moved != 0).any(axis=0)):
        reasons[k] = explain_few_degrees(degrees[k])
    return Intervals(ends, covariance, degrees, reasons)


def explain_few_degrees(degrees: float) -> str:
    """Say that an interval rests on few queries."""
    return f"{degrees:.1f} degrees of freedom: few queries decide it"


def resample_weights(buckets: int, times: int, seed: int) -> FloatArray:
    """Return how often each bucket is drawn in each of `times` resamples with replacement: (times, buckets)."""
    if buckets == 0 or times == 0:
        return np.zeros((times, buckets))
    draws = np.random.default_rng(seed).multinomial(buckets, np.full(buckets, 1 / buckets), size=times)
    return draws.astype(np.float64)


def warned(percentiles: Intervals, degrees: FloatArray) -> Intervals:
    """Return percentile intervals with a word where, by a jackknife's degrees of freedom, few queries decide them."""
    reasons = [
        f"{explain_few_degrees(few)}, and percentiles are too narrow"
        if reason is None and few < FEW_DEGREES
        else reason
        for reason, few in zip(percentiles.reasons, degrees, strict=True)
    ]
    return replace(percentiles, reasons=reasons)


def percentile(estimate: FloatArray, refits: FloatArray, level: float) -> Intervals:
    """Return the percentile intervals of an estimate, (M,), from (resamples, M) refits.

    A rank that is undefined in more than 5% of the resamples has none. An infinite estimate (a resample without clicks
    at rank 1) counts as large, not as missing.
    """
    ranks = refits.shape[-1]
    ends = np.full((ranks, 2), np.nan)
    if len(refits) * (1 - level) < 1:
        return no_intervals(ranks, f"{len(refits):,} resamples are too few for a level of {100 * level:g}%")
    reasons: list[str | None] = [None] * ranks
    tails = [(1 - level) / 2, (1 + level) / 2]
    for k in range(ranks):
        known = np.sort(refits[~np.isnan(refits[:, k]), k])
        if len(known) and len(known) >= (1 - MOST_UNDEFINED) * len(refits):
            # Nearest order statistics: interpolating with an infinite one would give NaN.
            ends[k] = np.quantile(known, tails, method="inverted_cdf")
        else:
            reasons[k] = "too thin for an interval: not identified in over 5% of the resamples"
    with np.errstate(divide="ignore", invalid="ignore"):
        covariance = (
            np.asarray(np.cov(np.log(refits), rowvar=False)) if len(refits) > 1 else np.full((ranks,) * 2, np.nan)
        )
    covariance[~np.isfinite(covariance)] = np.nan
    return Intervals(ends, covariance, np.full(ranks, np.nan), reasons)


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _rows(covariance: FloatArray, known: BoolArray) -> Covariance | None:
    """Return a covariance as rows, if any of it is known."""
    # A rank without an interval has none: refits that all give 0 are not certainty.
    values = np.where(known[:, None] & known, covariance, np.nan)
    if not np.isfinite(values).any():
        return None
    return tuple(tuple(map(_number, row)) for row in values.tolist())


def require_first(impressions: IntArray) -> None:
    """Refuse impressions by rank of which none is at rank 1, to which propensities are relative."""
    if not impressions.any() or impressions[0]:
        return
    first = int(np.flatnonzero(impressions)[0]) + 1
    raise EstimateError(
        f"Nothing was shown at rank 1, to which propensities are relative: the first rank with results is {first}. "
        f"Check that no filter left the top of the page out. If results always begin at {first}, as below an "
        f"advertisement, count from there: subtract {first - 1} from positions and from ranks (sql), and the curve is "
        "relative to it."
    )


def _nothing(harvest: Harvest) -> str:
    """Say why there is nothing to estimate from."""
    served = [name for name, n in harvest.page_views.items() if n]
    if not harvest.clicks.sum():
        return (
            f"There is not a single click in the top {harvest.max_rank} ranks. Check the column of clicks, and that "
            "page views without clicks are not all that was logged."
        )
    if harvest.rankers == (ANY_RANKER,):
        return (
            "No (query, document) pair was both shown at two ranks and clicked, within one window if there is one. "
            "Queries must recur with their documents at other ranks. Is the query what was looked for, and not the id "
            "of a request (query)? If so, harvest a longer period, take a longer window, or log each ranker's rank "
            "(ranks or rankings)."
        )
    if len(served) < 2:
        return (
            f"Only one ranker served the log ({', '.join(served) or 'none'}). Propensities come from documents that "
            "two rankers put at different ranks: add the log of another ranker, or of the same one before it changed."
        )
    if harvest.kind == "exposures":
        return (
            f"No (query, document) pair was both shown at two ranks and clicked. In replay a query must recur and be "
            f"served by different rankers ({', '.join(served)}). Is the query what was looked for, and not the id of a "
            "request (query)? If so, log each ranker's rank (ranks or rankings) so that queries need not recur, or "
            "harvest a longer period."
        )
    return (
        f"The rankers {', '.join(served)} never put a document that was clicked at two different ranks of the top "
        f"{harvest.max_rank}: there is no intervention to harvest. Use rankers that differ more, or a longer period."
    )


def _few_views(harvest: Harvest) -> tuple[str, ...]:
    """Say which rankers served so few page views that what they compare is chance; in replay it is not they who do."""
    if not harvest.layout.ranks_known:
        return ()
    few = {name: n for name, n in harvest.page_views.items() if 0 < n < MIN_PAGE_VIEWS}
    if not few:
        return ()
    shown = ", ".join(f"{name!r} ({n:,})" for name, n in list(few.items())[:_MOST_NAMED])
    more = f" and {len(few) - _MOST_NAMED:,} more" if len(few) > _MOST_NAMED else ""
    return (
        f"Rankers with fewer than {MIN_PAGE_VIEWS} page views: {shown}{more}. What only they compare is chance: wait "
        "for more of them, or leave them out.",
    )


def uneven_traffic(harvest: Harvest) -> str | None:
    """Say which ranker showed too little of what its traffic promised, where exposure is what traffic promised."""
    found = harvest.expected_impressions.largest_shortfall() if harvest.kind == "signatures" else None
    if found is None:
        return None
    return (
        f"Ranker {harvest.rankers[found.ranker]!r} showed {found.shown:,} of the results that others rank "
        f"too, where its share of all page views promised {found.expected:,.0f}: as where a ranker took "
        "another's place, or traffic was split anew, while not all rankers' ranks were logged."
    )


def linked(keys: IntArray, ranks: int) -> BoolArray:
    """Return which ranks are linked, k M + l saying that k is to l: (M, M)."""
    links = np.zeros(ranks * ranks, dtype=np.bool_)
    links[keys] = True
    return links.reshape(ranks, ranks)


def curve_of(x: FloatArray, links: BoolArray) -> FloatArray:
    """Return p_k / p_1 from log p; NaN where nothing connects k to rank 1, 0 where it was never clicked."""
    compared = connected_ranks(links)
    # A rank without a click, beside ranks that have a number.
    never = ~links.any(axis=1) & links[compared].any(axis=0)
    return np.where(compared, np.exp(x), np.where(never, 0.0, np.nan))


def connected_ranks(links: BoolArray) -> BoolArray:
    """Return which ranks chains of clicks connect with rank 1, both there and back; none if rank 1 has no link."""
    found = reachable(links) & reachable(links.T)
    return found if found.sum() > 1 else np.zeros_like(found)


def reachable(links: BoolArray) -> BoolArray:
    """Return which ranks a chain of links leads to from rank 1."""
    found: BoolArray = np.arange(len(links)) == 0
    while not np.array_equal(found, further := np.asarray(found | links[found].any(axis=0))):
        found = further
    return found
