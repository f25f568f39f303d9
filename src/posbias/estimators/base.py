"""What all estimators share: a curve with its interval, its reasons and its segments, whatever it is fitted on."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from posbias.arguments import share, whole
from posbias.arrays import BoolArray, FloatArray, IntArray
from posbias.curves.curve import Covariance, Curve, Position, Segment
from posbias.errors import EstimateError
from posbias.estimators.intervals import covariance, percentile
from posbias.harvesting.counts import MOST_RANKS
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.observations import Observations

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Reasons = list[str | None]
# The bounds of parameters that are whole numbers; resamples beyond theirs would add nothing but time.
_BOUNDS: dict[str, tuple[int, int | None]] = {
    "bootstrap": (0, 100_000),
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
    which it has `propensity_` (length M, NaN where not identified), `interval_` (M × 2), `covariance_` (M × M),
    `reasons_` (why a rank has no estimate or no interval), and `segments_`, a fitted estimator for each segment by its
    values of the columns `by_`.
    """

    name: ClassVar[str]
    # What `fit` takes: "harvest", "log", or both.
    fits_on: ClassVar[tuple[str, ...]]
    # Why a rank has the estimate 0.
    clickless: ClassVar[str] = "no click at rank {rank}"

    propensity_: FloatArray
    interval_: FloatArray
    covariance_: FloatArray
    reasons_: Reasons
    by_: tuple[str, ...] = ()
    segments_: dict[Segment, Self]
    evidence_: Evidence

    @abstractmethod
    def estimate(self, seen: Any, /) -> None:
        """Estimate one curve of what `fit` was given or made, and keep it."""

    def _estimate_segments(self, seen: Harvest | Observations) -> Self:
        """Estimate the curve of each segment, if there are any."""
        self.by_ = seen.by
        for key in seen.segments if seen.by else ():
            part = type(self)(**self.parameters())
            part.estimate(seen.segment(key))
            self.segments_[key] = part
        return self

    def _keep(self, evidence: Evidence, propensity: FloatArray, reasons: Reasons, refits: FloatArray | None) -> None:
        """Keep an estimate, why ranks have none, and the interval that its refits on resamples make, if any."""
        self.evidence_ = evidence
        self.segments_ = {}
        self.propensity_ = propensity
        self.reasons_ = [
            None if np.isfinite(p) else reason or "not determined by this data"
            for p, reason in zip(propensity, reasons, strict=True)
        ]
        refits = np.empty((0, len(propensity))) if refits is None else refits
        self.interval_ = percentile(refits, self.parameters().get("level", np.nan))
        self.covariance_ = covariance(refits)
        self._withhold_intervals(resampled=len(refits) > 0)

    def _withhold_intervals(self, *, resampled: bool) -> None:
        """Say which estimates have no interval that could be trusted."""
        for k, p in enumerate(self.propensity_):
            if np.isnan(p):
                self.interval_[k] = np.nan
            elif p == 0:
                # Resamples of no clicks are all 0: that is not certainty.
                self.interval_[k] = np.nan
                self.reasons_[k] = f"{self.clickless.format(rank=k + 1)}: 0, without an interval"
            elif resampled and np.isnan(self.interval_[k, 0]):
                self.reasons_[k] = "too thin for an interval: not identified in over 5% of the resamples"

    def _check(self) -> None:
        """Refuse parameters that mean nothing."""
        given = self.parameters()
        if "level" in given:
            share("level", given["level"], EstimateError)
        for name, (low, high) in _BOUNDS.items():
            if name in given:
                whole(name, given[name], low, high, EstimateError)

    def parameters(self) -> dict[str, Any]:
        """Return what the estimator was made with."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

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
            )
            for k in map(int, ranks)
        )
        return Curve(
            estimator=self.name,
            max_rank=len(self.propensity_),
            level=self.parameters().get("level"),
            weighting=seen.weighting,
            positions=positions,
            page_views={name: n for name, n in seen.page_views.items() if n},
            covariance=_rows(self.covariance_[np.ix_(ranks, ranks)], np.isfinite(self.interval_[ranks, 0])),
            by=self.by_,
            segments={key: part.curve() for key, part in self.segments_.items()},
        )

    def summary(self) -> Curve:
        """Return the fitted curve; it prints as a table."""
        return self.curve()

    def plot(self, ax: Axes | None = None, *, truth: FloatArray | None = None) -> Axes:
        """Draw the curve with its band, and return the Axes."""
        from posbias.curves.plots import draw_curve

        return draw_curve(self.curve(), ax, truth=truth)

    def _require_fit(self) -> None:
        if not hasattr(self, "evidence_"):
            raise EstimateError(f"This {type(self).__name__} is not fitted yet: call fit({self.fits_on[0]}) first.")

    def __repr__(self) -> str:
        known = inspect.signature(type(self)).parameters
        given = [f"{name}={v!r}" for name, v in self.parameters().items() if v != known[name].default]
        return f"{type(self).__name__}({', '.join(given)})"


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _rows(covariance: FloatArray, known: BoolArray) -> Covariance | None:
    """Return a covariance as rows, if any of it is known."""
    # A rank without an interval has none: refits that all give 0 are not certainty.
    values = np.where(known[:, None] & known, covariance, np.nan)
    if not np.isfinite(values).any():
        return None
    return tuple(tuple(map(_number, row)) for row in values.tolist())
