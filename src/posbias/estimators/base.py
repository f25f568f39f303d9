"""The base classes of all estimators, their confidence intervals, and which ranks are identified.

To add an estimator, subclass one of these and add one line to `posbias/estimators/__init__.py`:

- `PairEstimator`: computed from the intervention sets of a harvest, ĉ and ¬ĉ (paper, sections 3.3 and 4.2). Define
  `name`, `propensities` and `explain`.
- `Estimator`: computed from any other counts of a harvest, such as its strata. Define `name`, `count`, `curves` and
  `reasons`.
- `LogEstimator`: computed from the rows of a log. Define `name`, `needs`, `observe` and `estimate`.

The base class validates the parameters, fits each segment, computes intervals and makes tables and plots.
`CONTRIBUTING.md` adds an estimator step by step.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, Self, TypeVar

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray, one_blas_thread
from posbias._defaults import DEFAULT_LEVEL, DEFAULT_MAX_RANK
from posbias._stats import satterthwaite, t_quantile
from posbias._text import listed
from posbias._validate import integer, share
from posbias.curves.curve import Covariance, Curve, Position
from posbias.errors import EstimateError
from posbias.findings import serious, warn
from posbias.harvesting.count import MAX_RANKS
from posbias.harvesting.harvest import Harvest, Units
from posbias.harvesting.interventions import Interventions
from posbias.harvesting.observations import EngineChoice, ObservationKind, Observations
from posbias.harvesting.tables import MIN_PAGE_VIEWS, Cells
from posbias.logs.click_log import BySegment, ClickLog, Weighting
from posbias.logs.schema import ANY_RANKER
from posbias.progress import Progress, silent, step

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from posbias.estimators.one_curve import OneCurve

Interval = Literal["jackknife", "bootstrap"]
INTERVALS: tuple[Interval, ...] = ("jackknife", "bootstrap")
DEFAULT_INTERVAL: Interval = "jackknife"
DEFAULT_RESAMPLES = 1000
# For each rank, why it has no estimate or no interval, or what makes its estimate weak.
Reasons = list[str | None]
# The smallest number of buckets from which intervals are computed.
MIN_BUCKETS = 8
# An interval with fewer degrees of freedom than this is reported as weak.
FEW_DEGREES = 10
# Changes of log p below this are rounding errors.
_ROUNDING = 1e-6
# An interval from a ten-thousandth to ten thousand times the estimate has no use, and is not reported.
_MAX_HALF_WIDTH = np.log(1e4)
# A bucket is informative about an estimate if it changes it by this share of the largest change or more.
_INFORMATIVE_SHARE = 0.1
# A rank that more than this share of the resamples leave without an estimate has no percentile interval.
_MAX_UNDEFINED_SHARE = 0.05
# Refits are batched so that their tables hold at most this many numbers at once.
_MAX_BATCH_NUMBERS = 10**7
# Bounds of the parameters that are whole numbers. More resamples would cost time and gain nothing.
_BOUNDS: dict[str, tuple[int, int | None]] = {
    "bootstrap": (1, 100_000),
    "iterations": (1, None),
    "max_rank": (2, MAX_RANKS),
    "sample": (1, None),
    "seed": (0, None),
}
# Notes name at most this many rankers.
_MAX_NAMED_RANKERS = 4


# ---- Base classes


class CurveEstimator(ABC):
    """An estimator of the propensity curve p_k / p_1.

    `__init__` only stores its parameters, each in the attribute of the same name. `fit` returns the estimator itself
    and sets the attributes below. M is the number of ranks, B the number of buckets of queries.

    Attributes:
        propensity_ (array of length M): the estimates of p_k / p_1; NaN where the data do not identify a rank.
        interval_ (array of shape M × 2): the lower and upper confidence limits; NaN where there is no interval.
        covariance_ (array of shape M × M): the covariance of log p; NaN where there is no interval.
        degrees_of_freedom_ (array of length M): the degrees of freedom of each interval; NaN for percentile intervals.
        reasons_ (list of str or None): for each rank, why it has no estimate or no interval, or what makes it weak.
        notes_ (tuple of str): what a reader must know about the whole curve, including the findings of severity
            "warning" about the log, and that pairs of ranks contradict each other, which `fit` tests unless it
            computes no intervals. `fit` warns of the notes about the curve with a `PosbiasWarning`.
        by_ (tuple of str): the columns that define the segments.
        segments_ (dict): a fitted estimator for each segment, by its values of the columns `by_`: `segments_["phone"]`,
            or `segments_["phone", "de"]` with two columns.
        jackknife_ (Jackknife or None): the curve with its refits without each bucket; None without intervals.
        deletions_ (array of shape B × M, or None): the curves of those refits.
        reported_counts_ (ReportedCounts): the impressions, clicks and page views that are reported beside the curve.
    """

    name: ClassVar[str]
    # What `fit` accepts: "harvest", "log", or both.
    fits_on: ClassVar[tuple[str, ...]]
    # Why the estimate of a rank is 0.
    no_click_reason: ClassVar[str] = "no click at rank {rank}"

    propensity_: FloatArray
    interval_: FloatArray
    covariance_: FloatArray
    degrees_of_freedom_: FloatArray
    reasons_: Reasons
    notes_: tuple[str, ...] = ()
    by_: tuple[str, ...] = ()
    segments_: BySegment[Self]
    jackknife_: Jackknife | None = None
    reported_counts_: ReportedCounts

    @abstractmethod
    def estimate(self, data: Any, /) -> None:
        """Estimate one curve, without segments, and store it; `data` is a harvest or observations."""

    @property
    def deletions_(self) -> FloatArray | None:
        """The curves without each of the buckets, (B, M); None without intervals."""
        return None if self.jackknife_ is None else self.jackknife_.deletions

    def curve(self) -> Curve:
        """Return the fitted curve with all ranks at which results were shown."""
        self._require_fit()
        counts = self.reported_counts_
        ranks = np.flatnonzero(counts.impressions)
        positions = tuple(
            Position(
                position=k + 1,
                propensity=_number_or_none(self.propensity_[k]),
                low=_number_or_none(self.interval_[k, 0]),
                high=_number_or_none(self.interval_[k, 1]),
                impressions=int(counts.impressions[k]),
                clicks=int(counts.clicks[k]),
                reason=self.reasons_[k],
                degrees_of_freedom=_number_or_none(self.degrees_of_freedom_[k]),
            )
            for k in map(int, ranks)
        )
        return Curve(
            estimator=self.name,
            max_rank=len(self.propensity_),
            level=self.parameters()["level"] if self._interval else None,
            interval_by=self._interval,
            weighting=counts.weighting,
            positions=positions,
            page_views={name: n for name, n in counts.page_views.items() if n},
            covariance=_covariance_rows(self.covariance_[np.ix_(ranks, ranks)], np.isfinite(self.interval_[ranks, 0])),
            notes=self.notes_,
            by=self.by_,
            segments=BySegment({key: segment.curve() for key, segment in self.segments_.items()}),
        )

    def summary(self) -> Curve:
        """Return the fitted curve, which prints as a table; `to_pandas` and `to_polars` convert it to a data frame."""
        return self.curve()

    def plot(
        self,
        ax: Axes | None = None,
        *,
        truth: FloatArray | None = None,
        joint: bool = False,
        columns: int | None = None,
    ) -> Axes:
        """Draw the curve with its confidence intervals.

        Arguments:
            ax (Axes, default None): where to draw; by default on new axes.
            truth (array, default None): the true curve of a simulation, drawn beside the estimate.
            joint (bool, default False): whether to draw the joint band of all ranks, too.
            columns (int, default None): the columns of a grid whose places are numbered row by row, to draw the curve
                as a heat map.

        Returns:
            The Axes.
        """
        from posbias.curves.curve import draw_curve

        return draw_curve(self.curve(), ax, truth=truth, joint=joint, columns=columns)

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of the estimator by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name, as scikit-learn does; `deep` has no effect."""
        return self.parameters()

    def set_params(self, **params: Any) -> Self:
        """Set parameters, as in scikit-learn, and return the estimator; `fit` validates them."""
        known = self.parameters()
        unknown = [name for name in params if name not in known]
        if unknown:
            raise EstimateError(
                f"{type(self).__name__} has no parameter {', '.join(map(repr, unknown))}. It has {listed(known)}."
            )
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        known = inspect.signature(type(self)).parameters
        changed = [f"{name}={v!r}" for name, v in self.parameters().items() if v != known[name].default]
        return f"{type(self).__name__}({', '.join(changed)})"

    @property
    def _interval(self) -> Interval | None:
        """How intervals are computed; None for no intervals."""
        return self.parameters().get("interval")

    def _check(self) -> None:
        """Reject invalid parameters."""
        parameters = self.parameters()
        if "level" in parameters:
            share("level", parameters["level"], EstimateError)
        interval = parameters.get("interval")
        if interval is not None and not (isinstance(interval, str) and interval in INTERVALS):
            raise EstimateError(f"interval must be one of {listed(INTERVALS)}, or None for none, not {interval!r}.")
        for name, (low, high) in _BOUNDS.items():
            if name in parameters:
                integer(name, parameters[name], low, high, EstimateError)

    def _require_fit(self) -> None:
        if not hasattr(self, "reported_counts_"):
            raise EstimateError(f"This {type(self).__name__} is not fitted yet: call fit({self.fits_on[0]}) first.")

    def _require_estimate(self) -> None:
        """Reject a curve that has no estimate, or no click, at any rank below the first."""
        if np.isnan(self.propensity_[1:]).all() or not self.reported_counts_.clicks[1:].any():
            raise EstimateError(_explain_no_estimate(self.reported_counts_, self.reasons_))

    def _estimate_segments(self, data: Harvest | Observations) -> Self:
        """Estimate the curve of each segment."""
        self.by_ = data.by
        for key in data.segments if data.by else ():
            segment = type(self)(**self.parameters())
            segment.estimate(data.segment(key))
            self.segments_[key] = segment
        return self

    @step("Computing intervals")
    def _compute_intervals(
        self,
        propensity: FloatArray,
        buckets: int,
        refit: Callable[[FloatArray], FloatArray],
        *,
        table_size: int = 1,
        max_degrees: float = np.inf,
        units: Callable[[], UnitJackknives | None] = lambda: None,
    ) -> Intervals:
        """Return the confidence intervals of an estimate from refits on weighted buckets.

        Arguments:
            propensity: the estimate.
            buckets: B.
            refit: returns the curves, (n, M), of buckets counted by weights, (n, B).
            table_size: how many numbers one refit works on; refits go in batches that fit in memory.
            max_degrees: an upper bound on the degrees of freedom.
            units: returns the curve with its refits without each bucket of units, if the log has units.
        """
        parameters, method = self.parameters(), self._interval
        self.jackknife_ = None
        if method is None:
            return no_intervals(len(propensity))
        if buckets < MIN_BUCKETS:
            return no_intervals(len(propensity), explain_few_buckets(buckets))
        step = max(1, _MAX_BATCH_NUMBERS // max(1, table_size))

        def refits(weights: FloatArray) -> FloatArray:
            return np.concatenate([refit(weights[start : start + step]) for start in range(0, len(weights), step)])

        self.jackknife_ = Jackknife(propensity, refits(deletion_weights(buckets)), max_degrees, units())
        by_jackknife = self.jackknife_.intervals(parameters["level"])
        if method == "jackknife":
            return by_jackknife
        resamples = refits(resample_weights(buckets, parameters["bootstrap"], parameters["seed"]))
        resamples = self.jackknife_.widen(resamples)
        percentiles = percentile_intervals(propensity, resamples, parameters["level"])
        return _warn_of_narrow_percentiles(percentiles, by_jackknife.degrees)

    def _store(
        self, counts: ReportedCounts, propensity: FloatArray, reasons: Reasons, intervals: Intervals | None = None
    ) -> None:
        """Set the fitted attributes from an estimate, why ranks have none, and its intervals, if any."""
        intervals = no_intervals(len(propensity)) if intervals is None else intervals
        self.reported_counts_ = counts
        self.segments_ = BySegment()
        self.propensity_ = propensity
        # Refits without any click all give 0, which is not certainty.
        positive = np.isfinite(propensity) & (propensity > 0)
        self.interval_ = np.where(positive[:, None], intervals.bounds, np.nan)
        self.covariance_ = np.where(positive[:, None] & positive, intervals.covariance, np.nan)
        self.degrees_of_freedom_ = np.where(np.isfinite(self.interval_[:, 0]), intervals.degrees, np.nan)
        self.reasons_ = [
            (reason or "not identified by this data")
            if np.isnan(p)
            else f"{self.no_click_reason.format(rank=k)}: the estimate is 0, without an interval"
            if p == 0
            else interval_reason
            if k > 1  # p_1 is 1 by definition.
            else None
            for k, (p, reason, interval_reason) in enumerate(
                zip(propensity, reasons, intervals.reasons, strict=True), start=1
            )
        ]


class Counts(Protocol):
    """What an `Estimator` needs from its counts: `Interventions`, `Strata` and `CrossFitCounts` have it."""

    @property
    def buckets(self) -> int:
        """The number of buckets; refits weight each of them."""

    @property
    def clicked(self) -> bool:
        """Whether there is a click on any document that can be compared between ranks."""


C = TypeVar("C", bound=Counts)


class Estimator(CurveEstimator, Generic[C]):
    """An estimator of p_k / p_1 from a harvest.

    A subclass defines `name`, `count`, `curves` and `reasons`. If it only needs pair tables, subclass `PairEstimator`.

    Arguments:
        level (float, default 0.95): the coverage of the intervals.
        interval (str or None, default "jackknife"): "jackknife" leaves out one bucket of queries at a time, "bootstrap"
            takes percentiles of resampled buckets, None computes no intervals.
        bootstrap (int, default 1000): the number of bootstrap resamples.
        seed (int, default 0): the random seed of the resamples. Nothing else is random.
    """

    fits_on: ClassVar[tuple[str, ...]] = ("harvest",)

    harvest_: Harvest

    def __init__(
        self,
        *,
        level: float = DEFAULT_LEVEL,
        interval: Interval | None = DEFAULT_INTERVAL,
        bootstrap: int = DEFAULT_RESAMPLES,
        seed: int = 0,
    ) -> None:
        self.level = level
        self.interval = interval
        self.bootstrap = bootstrap
        self.seed = seed

    @abstractmethod
    def count(self, harvest: Harvest) -> C:
        """Return the counts that the estimator needs, by bucket: `harvest.interventions()` or `harvest.strata()`."""

    @abstractmethod
    def curves(self, counts: C, weights: FloatArray) -> FloatArray:
        """Return p_k / p_1, (..., M), with buckets counted `weights` (..., B) times; NaN where not identified."""

    @abstractmethod
    def reasons(self, counts: C) -> Reasons:
        """Return, for each rank, why the counts do not identify it, or None."""

    def rough_refits(self, counts: C, weights: FloatArray) -> FloatArray:
        """Return `curves` for rows of weights near 1, by a first-order approximation if there is a fast one."""
        return self.curves(counts, weights)

    def max_degrees(self, counts: C) -> float:
        """Return an upper bound on the degrees of freedom, where the changes by deletions do not show it."""
        return np.inf

    def for_units(self) -> Estimator[Any]:
        """Return the estimator that is fitted to buckets of units; the variances of the two are subtracted."""
        return type(self)(**self.parameters())

    def unit_jackknives(self, harvest: Harvest) -> UnitJackknives | None:
        """Return the curve with its refits without each bucket of units, and of (query, unit) pairs, if there are."""
        if harvest.units is None:
            return None
        if not harvest.units.are_losses:
            return UnitJackknives.of(self.for_units(), harvest.units)
        from posbias.estimators.pair_estimators import AllPairs

        return UnitJackknives.of_losses(self if isinstance(self, PairEstimator) else AllPairs(), harvest, harvest.units)

    def assumption_notes(self, harvest: Harvest, counts: C) -> tuple[str, ...]:
        """Return a note for each assumption of the estimator that the harvest violates."""
        return ()

    @one_blas_thread()
    def fit(self, harvest: Harvest) -> Self:
        """Estimate the curve of a harvest, and of each of its segments."""
        self._check()
        if not isinstance(harvest, Harvest):
            raise EstimateError(
                f"fit takes a Harvest, not a {type(harvest).__name__}. Make one with posbias.harvest(ClickLog(...))."
            )
        require_rank_one(harvest.impressions)
        counts = self._timed_count(harvest)
        if not counts.clicked:
            raise EstimateError(_explain_no_comparison(harvest))
        self._fit_counts(harvest, counts)
        self._require_estimate()
        self._fit_segments(harvest, counts)
        if self._interval is not None:
            self.notes_ = (*self._note_contradiction(), *self.notes_)
        warn((*self.notes_, *self._note_missing_intervals()))
        # The findings about rows were warnings when the log was harvested.
        self.notes_ += log_notes(harvest)
        return self

    @one_blas_thread()
    def estimate(self, harvest: Harvest) -> None:
        """Estimate one curve, without segments, and store it."""
        counts = self._timed_count(harvest)
        self._fit_counts(harvest, counts)

    def _timed_count(self, harvest: Harvest) -> C:
        with step("Grouping the counts") as measured:
            measured.add_rows(rows_in=len(harvest.table))
            return self.count(harvest)

    def _fit_counts(self, harvest: Harvest, counts: C) -> None:
        self.notes_ = ()
        with step(f"Fitting {self.name}"):
            propensity = self.curves(counts, np.ones(counts.buckets))
        intervals = self._compute_intervals(
            propensity,
            counts.buckets,
            lambda weights: self.curves(counts, weights),
            table_size=len(propensity) ** 2,
            max_degrees=self.max_degrees(counts),
            units=lambda: self.unit_jackknives(harvest),
        )
        self.harvest_ = harvest
        self.notes_ += (*_note_few_page_views(harvest), *self.assumption_notes(harvest, counts))
        reported = ReportedCounts.of(harvest, self._weighting(harvest))
        self._store(reported, propensity, self.reasons(counts), intervals)

    @property
    def one_curve_(self) -> OneCurve | None:
        """The tests whether one curve fits all pairs of ranks; None for a harvest of sums over pairs of ranks."""
        from posbias.estimators.one_curve import OneCurve

        self._require_fit()
        return OneCurve.of_harvest(self.harvest_)

    @step("Testing for one curve")
    def _note_contradiction(self) -> tuple[str, ...]:
        """Return a note if pairs of ranks contradict each other: the most important result of a diagnosis."""
        one_curve = self.one_curve_
        if one_curve is None or not one_curve.contradicted:
            return ()
        from posbias.estimators.one_curve import verdict

        return (f"{verdict(one_curve, self.harvest_)}. The pattern resembles {one_curve.resemblance}.",)

    def _note_missing_intervals(self) -> tuple[str, ...]:
        """Return why no rank has an interval, if none has one; the table of the curve says it in its own way."""
        if self._interval is None or np.isfinite(self.interval_[1:, 0]).any():
            return ()
        reasons = dict.fromkeys(reason for reason in self.reasons_[1:] if reason is not None)
        return (f"No rank has a confidence interval: {'; '.join(r.removeprefix('no interval: ') for r in reasons)}.",)

    def _fit_segments(self, harvest: Harvest, counts: C) -> Self:
        """Estimate the curve of each segment, given the counts of the whole harvest."""
        return self._estimate_segments(harvest)

    def _weighting(self, harvest: Harvest) -> str | None:
        """Return how (query, document) pairs are weighted; None if the estimator has no weighting."""
        return None


class PairEstimator(Estimator[Interventions]):
    """An estimator of p_k / p_1 from the intervention sets of a harvest (paper, section 4).

    A subclass defines `name`, `propensities` and `explain`.

    Arguments:
        weighting (str or None, default None): how much each (query, document) pair counts: "traffic", "harmonic",
            "min" or "uniform"; by default the harvest's own weighting.
        level (float, default 0.95): the coverage of the intervals.
        interval (str or None, default "jackknife"): "jackknife" leaves out one bucket of queries at a time, "bootstrap"
            takes percentiles of resampled buckets, None computes no intervals.
        bootstrap (int, default 1000): the number of bootstrap resamples.
        seed (int, default 0): the random seed of the resamples. Nothing else is random.
    """

    no_click_reason = "no click at rank {rank} in its intervention sets"

    def __init__(
        self,
        *,
        weighting: Weighting | None = None,
        level: float = DEFAULT_LEVEL,
        interval: Interval | None = DEFAULT_INTERVAL,
        bootstrap: int = DEFAULT_RESAMPLES,
        seed: int = 0,
    ) -> None:
        super().__init__(level=level, interval=interval, bootstrap=bootstrap, seed=seed)
        self.weighting = weighting

    @abstractmethod
    def propensities(self, clicks: FloatArray, skips: FloatArray) -> FloatArray:
        """Return p_k / p_1, (..., M), from ĉ and ¬ĉ, (..., M, M); NaN where not identified."""

    @abstractmethod
    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Return, for each rank, why ĉ and ¬ĉ do not identify it, or None."""

    def count(self, harvest: Harvest) -> Interventions:
        """Return ĉ and ¬ĉ by bucket; w allows for pages that end at different depths."""
        from posbias.estimators.page_depth import PageDepth

        interventions = harvest.interventions(self.weighting)
        if interventions.shares is None or harvest.kind != "signatures":
            return interventions
        depth = PageDepth.of(harvest.strata())
        if depth is None:
            return interventions
        # What a ranker never shows, because its pages end above it, is in no intervention set.
        cells = harvest.cells
        reached = replace(harvest, table=cells.where(depth.shown[cells.ranker, cells.rank - 1] > 0))
        return replace(reached.interventions(self.weighting), shown=depth.refits)

    def curves(self, counts: Interventions, weights: FloatArray) -> FloatArray:
        """Return the curve for each row of bucket weights."""
        return self.propensities(*counts.tables(weights))

    def reasons(self, counts: Interventions) -> Reasons:
        """Return, for each rank, why the intervention sets do not identify it, or None."""
        return self.explain(*counts.total())

    def assumption_notes(self, harvest: Harvest, counts: Interventions) -> tuple[str, ...]:
        """Return a note if a ranker showed fewer results than its traffic implies, where pairs are weighted by it."""
        if not isinstance(harvest.table, Cells) or self._weighting(harvest) != "traffic" or counts.shown is not None:
            return ()
        uneven = explain_uneven_traffic(harvest)
        if uneven is None:
            return ()
        return (
            f"{uneven} {self.name} weights by traffic and is biased in this case. Use cross-fit, which is much "
            "less affected, or estimate each period separately.",
        )

    def _weighting(self, harvest: Harvest) -> str:
        return self.weighting or harvest.weighting


class LogEstimator(CurveEstimator):
    """An estimator of p_k / p_1 from the rows of a log, which it aggregates to `Observations`.

    A subclass defines `name`, the kind of observations that it `needs`, how to `observe` them, and `estimate`.

    Arguments:
        max_rank (int, default 10): M; results shown below rank M are not counted.
        level (float, default 0.95): the coverage of the intervals.
        interval (str or None, default "jackknife"): "jackknife" leaves out one bucket of queries at a time, "bootstrap"
            takes percentiles of resampled buckets, None computes no intervals.
        bootstrap (int, default 1000): the number of bootstrap resamples.
        seed (int, default 0): the random seed of the resamples. Nothing else is random.
    """

    fits_on: ClassVar[tuple[str, ...]] = ("log",)
    needs: ClassVar[ObservationKind]

    def __init__(
        self,
        *,
        max_rank: int = DEFAULT_MAX_RANK,
        level: float = DEFAULT_LEVEL,
        interval: Interval | None = DEFAULT_INTERVAL,
        bootstrap: int = DEFAULT_RESAMPLES,
        seed: int = 0,
    ) -> None:
        self.max_rank = max_rank
        self.level = level
        self.interval = interval
        self.bootstrap = bootstrap
        self.seed = seed

    @abstractmethod
    def observe(self, log: ClickLog, **options: Any) -> Observations:
        """Return the aggregated rows of a log that the estimator needs; `fit` accepts them in place of the log."""

    @abstractmethod
    def estimate(self, observations: Observations) -> None:
        """Estimate one curve, without segments, and store it."""

    def fit(
        self,
        log: ClickLog | Observations,
        *,
        by: str | Sequence[str] = (),
        engine: EngineChoice | None = None,
        progress: Progress = silent,
        force: bool = False,
    ) -> Self:
        """Estimate the curve of a log, and of each of its segments.

        Arguments:
            log (ClickLog or Observations): the click log, or what `observe` returned for it. Observations have their
                own number of ranks and segments.
            by (str or sequence of str, default ()): columns that define segments; each segment gets a curve of its own.
            engine (Engine, str or None, default None): "duckdb" (embedded, the default) or "spark" (the active
                session).
            progress (callable, default silent): called with a description of the step and the share that is done.
            force (bool, default False): whether to go on if the log has errors.
        """
        self._check()
        if isinstance(log, ClickLog):
            observations = self.observe(log, by=by, engine=engine, progress=progress, force=force)
        else:
            observations = self._check_observations(log, by)
        if not observations.clicks.any():
            raise EstimateError(
                f"There is not a single click in the top {observations.max_rank} ranks. Check the column of clicks."
            )
        return self._fit_data(observations)

    def _check_observations(self, observations: Observations, by: Sequence[str]) -> Observations:
        """Return the observations if they are of the kind that the estimator needs."""
        kind = type(self).__name__
        if not isinstance(observations, Observations):
            raise EstimateError(
                f"{kind} needs the rows of a log: fit takes a ClickLog, not a {type(observations).__name__}."
            )
        remedy = f"Make them with {self!r}.observe(log)."
        if observations.kind != self.needs:
            raise EstimateError(f"{kind} needs observations of {self.needs}, not of {observations.kind}. {remedy}")
        features = tuple(self.parameters().get("features", ()))
        if observations.features != features:
            raise EstimateError(f"These observations have other features: {observations.features}. {remedy}")
        if by:
            raise EstimateError(
                f"These observations already have segments, by {observations.by}: pass by={by!r} to observe instead."
            )
        return observations

    @one_blas_thread()
    def _fit_data(self, data: Any) -> Self:
        require_rank_one(data.impressions)
        self.estimate(data)
        self._require_estimate()
        return self._estimate_segments(data)


@dataclass(frozen=True)
class ReportedCounts:
    """The counts that are reported beside a curve.

    Attributes:
        impressions (array of length M): impressions by rank.
        clicks (array of length M): clicks by rank.
        page_views (mapping): page views by ranker.
        weighting (str or None): how (query, document) pairs were weighted, if they were.
    """

    impressions: IntArray
    clicks: IntArray
    page_views: Mapping[str, int]
    weighting: str | None

    @classmethod
    def of(cls, data: Harvest | Observations, weighting: str | None = None) -> ReportedCounts:
        """Return the counts of a harvest or of observations."""
        return cls(data.impressions, data.clicks, data.page_views, weighting)


# ---- Confidence intervals


@dataclass(frozen=True, eq=False)
class Jackknife:
    """A curve and its refits without each bucket of queries.

    With x = log p and d_b = x(−b) − x, the change of x when bucket b of B is left out, the covariance of x is
    (B−1)/B Σ_b d_b d_bᵀ (CV3, the jackknife over clusters). Intervals and tests of differences are computed from it.

    With units, the variance of x_k is V_query + V_unit − V_both, but at least V_query (Cameron, Gelbach and Miller,
    Robust Inference with Multiway Clustering, 2011). The changes d_b of all queries are widened by the same factor, so
    that they show this variance: whatever is computed from them clusters by query and by unit.

    Attributes:
        propensity (array of length M): p_k / p_1; NaN where not identified.
        deletions (array of shape B × M): p_k / p_1 without each of the buckets.
        max_degrees (float, default inf): an upper bound on the degrees of freedom.
        units (UnitJackknives or None, default None): the same for buckets of units.
    """

    propensity: FloatArray
    deletions: FloatArray
    max_degrees: float = np.inf
    units: UnitJackknives | None = None

    @property
    def buckets(self) -> int:
        """B, the number of buckets."""
        return len(self.deletions)

    @cached_property
    def log_propensity(self) -> FloatArray:
        """x = log p, (M,); NaN where there is no estimate, or an estimate of 0."""
        with np.errstate(divide="ignore"):
            x = np.log(self.propensity)
        return np.where(np.isfinite(x), x, np.nan)

    @cached_property
    def changes(self) -> FloatArray:
        """d_b = x(−b) − x, (B, M), widened for units; NaN where the estimate or the refit is missing or 0."""
        return self._query_changes * self.widening

    @cached_property
    def _query_changes(self) -> FloatArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            changes = np.log(self.deletions) - np.log(self.propensity)
        return np.where(np.isfinite(changes), changes, np.nan)

    @cached_property
    def widening(self) -> FloatArray:
        """How many times the standard error by queries alone the standard error is, (M,); 1 without units."""
        if self.units is None:
            return np.ones(len(self.propensity))
        variance = _variance(self._query_changes)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = self.units.added_variance / self.units.comparable_variance(variance)
        return np.asarray(np.sqrt(1 + np.where(variance > 0, ratio, 0.0)))

    def widen(self, refits: FloatArray) -> FloatArray:
        """Return curves of resampled queries, (n, M), as far from the estimate as units move it."""
        if self.units is None:
            return refits
        with np.errstate(divide="ignore", invalid="ignore"):
            widened = self.propensity * (refits / self.propensity) ** self.widening
        return np.asarray(np.where(self.propensity > 0, widened, refits))

    @cached_property
    def degrees(self) -> FloatArray:
        """The degrees of freedom at each rank: Satterthwaite's, for the sum of three variances if there are units."""
        changes = self._query_changes
        degrees = np.minimum(_degrees(changes), max(1.0, self.max_degrees))
        if self.units is None:
            return degrees
        variance = _variance(changes)
        total = variance * self.widening**2
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = (variance / self.units.comparable_variance(variance)) ** 2
            both = total**2 / (variance**2 / degrees + scale * self.units.squared_variance_by_degrees)
        return np.asarray(np.where(variance > 0, np.maximum(both, 1.0), degrees))

    @property
    def _few_units(self) -> BoolArray:
        """Whether the degrees of freedom at each rank are few because of the units, not of the queries."""
        by_query = np.minimum(_degrees(self._query_changes), max(1.0, self.max_degrees))
        return np.asarray((self.degrees < FEW_DEGREES) & (by_query >= FEW_DEGREES))

    def intervals(self, level: float) -> Intervals:
        """Return the confidence intervals p_k exp(± t se_k), with t at Satterthwaite's degrees of freedom.

        The degrees of freedom are 2 (Σd²)² / (Σd⁴ − (Σd²)²/B), which is the number of equally influential buckets. They
        are limited to one less than the number of informative buckets, and to `max_degrees`. `docs/intervals.md`
        reports the measured coverage.
        """
        buckets, ranks = self.deletions.shape
        if self.units is not None and self.units.reason is not None:
            return no_intervals(ranks, self.units.reason)
        identified = np.asarray(np.isfinite(self.changes).all(axis=0))
        changes = np.where(identified, self.changes, 0.0)
        largest = np.abs(changes).max(axis=0)
        # An estimate that no deletion changes has no measurable error; p_1 is 1 by definition.
        known = identified & ((largest > _ROUNDING) | (np.arange(ranks) == 0))
        covariance = (buckets - 1) / buckets * changes.T @ changes
        degrees = np.where(known, self.degrees, np.nan)
        half = t_quantile(degrees, (1 + level) / 2) * np.sqrt(np.diagonal(covariance))
        too_wide = half > _MAX_HALF_WIDTH
        half = np.where(too_wide, np.nan, half)
        bounds = self.propensity[:, None] * np.exp(np.stack([-half, half], axis=-1))
        covariance = np.where(known[:, None] & known, covariance, np.nan)
        reasons: Reasons = [
            (ONE_UNIT_REASON if np.isnan(self.widening[k]) else ONE_BUCKET_REASON)
            if not identified[k]
            else "no interval: leaving out queries does not change the estimate; log more queries"
            if not known[k]
            else "no interval: too few queries determine the estimate; log more queries"
            if too_wide[k]
            else explain_few_degrees("units" if self._few_units[k] else "queries")
            if degrees[k] < FEW_DEGREES and changes[:, k].any()
            else None
            for k in range(ranks)
        ]
        return Intervals(bounds, covariance, degrees, reasons)


@dataclass(frozen=True, eq=False)
class UnitJackknives:
    """A curve with its refits without each bucket of units, and without each bucket of (query, unit) pairs.

    Attributes:
        by_unit (Jackknife): the refits without each bucket of units.
        by_both (Jackknife): the refits without each bucket of (query, unit) pairs.
        reason (str or None): why there is no interval, if the units fill too few buckets.
        by_query (Jackknife or None): the refits without each bucket of queries by the same estimator, if that is
            another one than the estimator of the curve (replay): units then add the same share to both variances.
    """

    by_unit: Jackknife
    by_both: Jackknife
    reason: str | None = None
    by_query: Jackknife | None = None

    @classmethod
    def of(cls, estimator: Estimator[Any], units: Units) -> UnitJackknives:
        """Refit an estimator without each bucket."""

        def refit(harvest: Harvest) -> Jackknife:
            counts = estimator.count(harvest)
            curve = estimator.curves(counts, np.ones(counts.buckets))
            if counts.buckets < MIN_BUCKETS:
                return Jackknife(curve, np.tile(curve, (counts.buckets, 1)))
            return Jackknife(
                curve, estimator.curves(counts, deletion_weights(counts.buckets)), estimator.max_degrees(counts)
            )

        by_unit, by_both = refit(units.by_unit), refit(units.by_both)
        return cls(by_unit, by_both, _explain_few_units(by_unit.buckets, units.column))

    @classmethod
    def of_losses(cls, estimator: PairEstimator, harvest: Harvest, units: Units) -> UnitJackknives:
        """Refit an estimator to the sums over intervention sets without what they lose by leaving out each bucket."""
        sums = harvest.interventions(None if harvest.kind == "pairs" else "harmonic")
        clicks, skips = sums.total()
        curve = estimator.propensities(clicks, skips)

        def refit(lost: Harvest) -> Jackknife:
            tables = lost.interventions().tables(np.eye(len(lost.buckets)))
            # What is left of a sum that loses all is a rounding error.
            left = (
                np.where(whole - table > _ROUNDING, whole - table, 0.0)
                for whole, table in zip((clicks, skips), tables, strict=True)
            )
            return Jackknife(curve, estimator.propensities(*left))

        by_query = Jackknife(curve, estimator.propensities(*sums.tables(deletion_weights(sums.buckets))))
        reason = _explain_few_units(len(units.by_unit.buckets), units.column)
        return cls(refit(units.by_unit), refit(units.by_both), reason, by_query)

    def comparable_variance(self, variance: FloatArray) -> FloatArray:
        """Return the variance by queries, (M,), that `added_variance` is to be compared with."""
        return variance if self.by_query is None else _variance(self.by_query.changes)

    @cached_property
    def added_variance(self) -> FloatArray:
        """V_unit − V_both of x = log p where that is positive, (M,): what the units add to the variance by queries."""
        return np.asarray(np.maximum(_variance(self.by_unit.changes) - self._both_variance, 0.0))

    @cached_property
    def _both_variance(self) -> FloatArray:
        """V_both, (M,); 0 where a refit has no estimate, which makes the interval wider."""
        return np.nan_to_num(_variance(self.by_both.changes))

    @cached_property
    def squared_variance_by_degrees(self) -> FloatArray:
        """Σ V² / ν over both, (M,), which Satterthwaite's formula for a sum of variances adds up."""
        by_unit = _variance(self.by_unit.changes) ** 2 / self.by_unit.degrees
        return np.asarray(by_unit + self._both_variance**2 / self.by_both.degrees)


def _explain_few_units(buckets: int, column: str) -> str | None:
    """Return why there is no interval, if the units fill too few buckets."""
    if buckets >= MIN_BUCKETS:
        return None
    why = explain_few_buckets(buckets, f"units ({column})")
    return f"{why}, or leave the unit out (unit 'none') if rankers were drawn for each page view"


def _variance(changes: FloatArray) -> FloatArray:
    """Return the jackknife variance of each rank from changes, (B, M)."""
    return np.asarray((len(changes) - 1) / len(changes) * (changes**2).sum(axis=0))


def _degrees(changes: FloatArray) -> FloatArray:
    """Return Satterthwaite's degrees of freedom of each rank; at most one less than the informative buckets."""
    changes = np.where(np.isfinite(changes).all(axis=0), changes, 0.0)
    # A few buckets that happen to change the estimate equally much are still only a few.
    informative = (np.abs(changes) >= _INFORMATIVE_SHARE * np.abs(changes).max(axis=0)).sum(axis=0)
    return np.asarray(np.minimum(satterthwaite(changes), np.maximum(1.0, informative - 1)))


@dataclass(frozen=True)
class Intervals:
    """The confidence intervals of a curve.

    Attributes:
        bounds (array of shape M × 2): lower and upper limits; NaN where there is no interval.
        covariance (array of shape M × M): the covariance of log p.
        degrees (array of length M): the degrees of freedom of the t quantile; NaN if none was used.
        reasons (list of str or None): for each rank, why it has no interval, or what makes it weak.
    """

    bounds: FloatArray
    covariance: FloatArray
    degrees: FloatArray
    reasons: Reasons


ONE_BUCKET_REASON = "no interval: the estimate depends on a single bucket of queries; log more queries"
ONE_UNIT_REASON = "no interval: the estimate depends on a single bucket of units; log more units"


def no_intervals(ranks: int, reason: str | None = None) -> Intervals:
    """Return empty intervals for all ranks, with the reason."""
    unknown = np.full(ranks, np.nan)
    return Intervals(np.full((ranks, 2), np.nan), np.full((ranks, ranks), np.nan), unknown, [reason] * ranks)


def explain_few_buckets(buckets: int, what: str = "queries") -> str:
    """Return why there is no interval with so few buckets."""
    return (
        f"no interval: the {what} fill only {buckets} bucket{'s'[: buckets > 1]}, and {MIN_BUCKETS} are needed; "
        f"log more distinct {what}"
    )


def explain_few_degrees(what: str = "queries") -> str:
    """Return the warning that an interval depends on few queries, or on few units: the same text at all such ranks."""
    return f"few {what} determine the estimate (fewer than {FEW_DEGREES} degrees of freedom)"


def deletion_weights(buckets: int) -> FloatArray:
    """Return the weights of the buckets, (B, B), in refits that each leave one bucket out."""
    return 1.0 - np.eye(buckets)


def resample_weights(buckets: int, times: int, seed: int) -> FloatArray:
    """Return the weights of the buckets, (times, B), in resamples with replacement."""
    if buckets == 0 or times == 0:
        return np.zeros((times, buckets))
    draws = np.random.default_rng(seed).multinomial(buckets, np.full(buckets, 1 / buckets), size=times)
    return draws.astype(np.float64)


def percentile_intervals(propensity: FloatArray, resamples: FloatArray, level: float) -> Intervals:
    """Return the percentile intervals of an estimate, (M,), from its bootstrap resamples, (n, M).

    A rank that is not identified in more than 5% of the resamples has none. An infinite estimate (a resample without a
    click at rank 1) counts as large, not as missing.
    """
    ranks = resamples.shape[-1]
    bounds = np.full((ranks, 2), np.nan)
    if len(resamples) * (1 - level) < 1:
        return no_intervals(
            ranks, f"no interval: {len(resamples):,} resamples are too few for a level of {100 * level:g}%"
        )
    reasons: Reasons = [None] * ranks
    tails = [(1 - level) / 2, (1 + level) / 2]
    for k in range(ranks):
        known = np.sort(resamples[~np.isnan(resamples[:, k]), k])
        if len(known) and len(known) >= (1 - _MAX_UNDEFINED_SHARE) * len(resamples):
            # Nearest order statistics: interpolating with an infinite one would give NaN.
            bounds[k] = np.quantile(known, tails, method="inverted_cdf")
        else:
            reasons[k] = "no interval: over 5% of the resamples do not identify this rank; log more queries"
    with np.errstate(divide="ignore", invalid="ignore"):
        covariance = (
            np.asarray(np.cov(np.log(resamples), rowvar=False)) if len(resamples) > 1 else np.full((ranks,) * 2, np.nan)
        )
    covariance[~np.isfinite(covariance)] = np.nan
    return Intervals(bounds, covariance, np.full(ranks, np.nan), reasons)


def _warn_of_narrow_percentiles(percentiles: Intervals, degrees: FloatArray) -> Intervals:
    """Return percentile intervals with a warning at ranks where the jackknife has few degrees of freedom."""
    reasons = [
        f"{explain_few_degrees()}, so percentile intervals are too narrow"
        if reason is None and df < FEW_DEGREES
        else reason
        for reason, df in zip(percentiles.reasons, degrees, strict=True)
    ]
    return replace(percentiles, reasons=reasons)


def _number_or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _covariance_rows(covariance: FloatArray, known: BoolArray) -> Covariance | None:
    """Return a covariance as rows of numbers; None if nothing of it is known."""
    # A rank without an interval has no variance: refits that all give 0 are not certainty.
    values = np.where(known[:, None] & known, covariance, np.nan)
    if not np.isfinite(values).any():
        return None
    return tuple(tuple(map(_number_or_none, row)) for row in values.tolist())


# ---- Which ranks are identified
#
# Links are a matrix (M, M): k is linked to l if a document was clicked at k and is also ranked at l. Only ranks that
# chains of links connect with rank 1, in both directions, are identified. Reference: Chen et al., Identifiability
# Matters, arXiv 2309.15560, 2023.


def link_matrix(keys: IntArray, ranks: int) -> BoolArray:
    """Return the links, (M, M), of keys k M + l."""
    links = np.zeros(ranks * ranks, dtype=np.bool_)
    links[keys] = True
    return links.reshape(ranks, ranks)


def identified_curve(x: FloatArray, links: BoolArray) -> FloatArray:
    """Return p_k / p_1 from x = log p; NaN where k is not connected to rank 1, 0 where it was never clicked."""
    connected = connected_ranks(links)
    never_clicked = ~links.any(axis=1) & links[connected].any(axis=0)
    return np.where(connected, np.exp(x), np.where(never_clicked, 0.0, np.nan))


def connected_ranks(links: BoolArray) -> BoolArray:
    """Return which ranks chains of links connect with rank 1 in both directions; none if rank 1 has no link."""
    connected = reachable_ranks(links) & reachable_ranks(links.T)
    return connected if connected.sum() > 1 else np.zeros_like(connected)


def reachable_ranks(links: BoolArray) -> BoolArray:
    """Return which ranks chains of links lead to from rank 1."""
    reached: BoolArray = np.arange(len(links)) == 0
    while not np.array_equal(reached, further := np.asarray(reached | links[reached].any(axis=0))):
        reached = further
    return reached


# ---- Errors and notes


def require_rank_one(impressions: IntArray) -> None:
    """Reject data in which no result was shown at rank 1."""
    if not impressions.any() or impressions[0]:
        return
    first = int(np.flatnonzero(impressions)[0]) + 1
    raise EstimateError(
        "No result was shown at rank 1, and propensities are relative to rank 1: the first rank with results is "
        f"{first}. Check that no filter removed the top of the page. If results always start at {first}, for example "
        f"below an advertisement, count from there: subtract {first - 1} from positions and from ranks (sql)."
    )


def explain_uneven_traffic(harvest: Harvest) -> str | None:
    """Return which ranker showed too few results for its traffic, if exposure is computed from traffic."""
    uneven = harvest.largest_shortfall
    if uneven is None:
        return None
    what = (
        f"Ranker {harvest.rankers[uneven.ranker]!r} showed {uneven.shown:,} of the results that other rankers rank, "
        f"too, but its share of all page views implies {uneven.expected:,.0f}."
    )
    if harvest.traffic is not None:
        return (
            f"{what} The segment has only some results of its page views, so its traffic is taken from the whole log. "
            "Its own traffic differs: the log lost many rows, or the segment is no property of documents. Harvest the "
            "segment from its own rows (sql)."
        )
    return (
        f"{what} This happens if one ranker replaced another, or if the traffic split changed, and the log does not "
        "have the ranks of all rankers in both periods."
    )


def log_notes(harvest: Harvest) -> tuple[str, ...]:
    """Return the findings of severity "warning" about the rows of a harvest, as notes on its curve."""
    return tuple(f"{finding.message}." for finding in serious(harvest.findings))


def _note_few_page_views(harvest: Harvest) -> tuple[str, ...]:
    """Return a note that names the rankers with very few page views; in replay they decide nothing."""
    if not harvest.layout.ranks_known:
        return ()
    few = {name: n for name, n in harvest.page_views.items() if 0 < n < MIN_PAGE_VIEWS}
    if not few:
        return ()
    named = ", ".join(f"{name!r} ({n:,})" for name, n in list(few.items())[:_MAX_NAMED_RANKERS])
    more = f" and {len(few) - _MAX_NAMED_RANKERS:,} more" if len(few) > _MAX_NAMED_RANKERS else ""
    return (
        f"Rankers with fewer than {MIN_PAGE_VIEWS} page views: {named}{more}. Comparisons that depend on them are "
        "mostly chance. Wait for more page views, or leave these rankers out.",
    )


def _explain_no_estimate(counts: ReportedCounts, reasons: Reasons) -> str:
    """Return why no rank below the first has an estimate."""
    result = "No rank below the first has an estimate"
    if not counts.clicks[0]:
        return (
            f"{result}: there is no click at rank 1, in {counts.impressions[0]:,} impressions, and the curve is "
            "relative to rank 1. Check that positions count from 1, and that clicks on the first result are logged."
        )
    if not counts.clicks[1:].any():
        return (
            f"{result}: there is no click below rank 1, in {counts.impressions[1:].sum():,} impressions. Check that "
            "clicks on results below the first are logged."
        )
    why = "; ".join(dict.fromkeys(reason for reason in reasons[1:] if reason))
    return f"{result}: {why}. Use more data, or rankers that differ more."


def _explain_no_comparison(harvest: Harvest) -> str:
    """Return why a harvest has no click on a document that can be compared between ranks."""
    served = [name for name, n in harvest.page_views.items() if n]
    replaced = [finding for finding in harvest.findings if "shared_windows" in finding.evidence]
    if replaced:
        return str(replaced[0])
    if not harvest.clicks.sum():
        return (
            f"There is not a single click in the top {harvest.max_rank} ranks. Check the column of clicks, and that "
            "the log has page views with clicks."
        )
    if harvest.rankers == (ANY_RANKER,):
        return (
            "No (query, document) pair was shown at two ranks and clicked, within one window if there is one. "
            "Queries must recur with their documents at other ranks. Check that the query column (query) holds what "
            "the user searched for, not the id of a request. If it does, harvest a longer period, use a longer "
            "window, or log each ranker's rank (ranks or rankings)."
        )
    if len(served) < 2:
        return (
            f"Only one ranker served the log ({', '.join(served) or 'none'}). Propensities come from documents that "
            "two rankers put at different ranks: add the log of another ranker, or of the same one before it changed."
        )
    if harvest.kind == "exposures":
        return (
            "No (query, document) pair was shown at two ranks and clicked. In replay a query must recur and be "
            f"served by different rankers ({', '.join(served)}). Check that the query column (query) holds what the "
            "user searched for, not the id of a request. If it does, log each ranker's rank (ranks or rankings), so "
            "that queries need not recur, or harvest a longer period."
        )
    return (
        f"The rankers {', '.join(served)} never put a clicked document at two different ranks of the top "
        f"{harvest.max_rank}: there is no intervention to harvest. Use rankers that differ more, or a longer period."
    )
