"""What all estimators share: a curve with its interval, its reasons and its segments, whatever it is fitted on."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from posbias.arguments import share, whole
from posbias.arrays import BoolArray, FloatArray, IntArray
from posbias.curves.curve import Covariance, Curve, Position, Segment
from posbias.errors import EstimateError
from posbias.estimators.intervals import (
    FEWEST_BUCKETS,
    INTERVALS,
    Interval,
    Intervals,
    deletions,
    few_buckets,
    jackknife,
    no_intervals,
    percentile,
    resample,
    warned,
)
from posbias.harvesting.counts import MOST_RANKS
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.observations import Observations
from posbias.wording import listed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Reasons = list[str | None]
# So many numbers of tables are refitted at once.
_MOST_NUMBERS = 10**7
# The bounds of parameters that are whole numbers; resamples beyond theirs would add nothing but time.
_BOUNDS: dict[str, tuple[int, int | None]] = {
    "bootstrap": (1, 100_000),
    "iterations": (1, None),
    "max_rank": (2, MOST_RANKS),
    "sample": (1, None),
    "seed": (0, None),
}


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
        if buckets < FEWEST_BUCKETS:
            return no_intervals(len(propensity), few_buckets(buckets))
        step = max(1, _MOST_NUMBERS // max(1, size))

        def refits(weights: FloatArray) -> FloatArray:
            return np.concatenate([refit(weights[start : start + step]) for start in range(0, len(weights), step)])

        self.deletions_, self.most_degrees_ = refits(deletions(buckets)), most_degrees
        by_deletion = jackknife(propensity, self.deletions_, given["level"], most_degrees)
        if how == "jackknife":
            return by_deletion
        resamples = refits(resample(buckets, given["bootstrap"], given["seed"]))
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
        from posbias.curves.plots import draw_curve

        return draw_curve(self.curve(), ax, truth=truth, joint=joint)

    def _require_fit(self) -> None:
        if not hasattr(self, "evidence_"):
            raise EstimateError(f"This {type(self).__name__} is not fitted yet: call fit({self.fits_on[0]}) first.")

    def __repr__(self) -> str:
        known = inspect.signature(type(self)).parameters
        given = [f"{name}={v!r}" for name, v in self.parameters().items() if v != known[name].default]
        return f"{type(self).__name__}({', '.join(given)})"


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


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _rows(covariance: FloatArray, known: BoolArray) -> Covariance | None:
    """Return a covariance as rows, if any of it is known."""
    # A rank without an interval has none: refits that all give 0 are not certainty.
    values = np.where(known[:, None] & known, covariance, np.nan)
    if not np.isfinite(values).any():
        return None
    return tuple(tuple(map(_number, row)) for row in values.tolist())
