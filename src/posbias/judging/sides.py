"""One side of a comparison: a curve, and what leaving out each bucket of its harvest moves it by, where it has one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from posbias.arrays import FloatArray, IntArray
from posbias.curves.curve import Curve
from posbias.errors import CurveError
from posbias.estimators import ESTIMATORS
from posbias.estimators.base import CurveEstimator
from posbias.estimators.harvested import Estimator
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.notes import OTHER_BUCKETS
from posbias.wording import listed


@dataclass(frozen=True, eq=False)
class Deletions:
    """What leaving out each of some buckets moves log p by, (B, M), scaled so that the sum of squares is a variance.

    `engine` put queries into these buckets; another may have put them into others.
    """

    buckets: IntArray
    moved: FloatArray
    engine: object
    most_degrees: float

    def within(self, every: IntArray) -> FloatArray:
        """Return them for all of some buckets: one that this side does not have moves nothing."""
        moved = np.zeros((len(every), self.moved.shape[1]))
        moved[np.searchsorted(every, self.buckets)] = self.moved
        return moved


@dataclass(frozen=True, eq=False)
class Side:
    """A curve by rank: log p, its covariance and degrees of freedom, NaN where there is no interval."""

    x: FloatArray
    covariance: FloatArray
    degrees: FloatArray
    curve: Curve
    deletions: Deletions | None = None

    @classmethod
    def of(cls, given: Any, estimator: str | None, level: float) -> Side:
        """Return the side that a curve, a fitted estimator or a harvest makes."""
        if isinstance(given, Harvest):
            given = fit(given, estimator, level)
        if isinstance(given, Curve):
            return cls._of_curve(given)
        if not isinstance(given, CurveEstimator):
            raise CurveError(
                f"A {type(given).__name__} cannot be compared. Give a Harvest, a fitted estimator or a Curve."
            )
        side = cls._of_curve(given.curve())
        return cls(side.x, side.covariance, side.degrees, side.curve, _deletions(given))

    @classmethod
    def _of_curve(cls, curve: Curve) -> Side:
        covariance, degrees = curve.covariance_matrix, np.full(curve.max_rank, np.nan)
        # A percentile interval takes no quantile of t: it is taken for one of many degrees of freedom.
        for p in curve.positions:
            degrees[p.position - 1] = np.inf if p.degrees_of_freedom is None else p.degrees_of_freedom
        known = np.isfinite(curve.interval[:, 0]) & np.isfinite(np.diagonal(covariance)) & (curve.propensity > 0)
        known[0] = True
        x = np.log(np.where(known, curve.propensity, np.nan))
        if not known[1:].any():
            raise CurveError(
                f"The curve of {curve.estimator!r} has no interval at any rank but the first, and without one there is "
                "no telling a difference from chance. Estimate it with intervals, from more queries."
            )
        return cls(x, covariance, np.where(known, degrees, np.nan), curve)


def choose(harvest: Harvest, estimator: str | None) -> str:
    """Return the estimator that is asked for, by default the best for the harvest, if it is made of one."""
    name = ("all-pairs" if harvest.kind == "pairs" else "cross-fit") if estimator is None else estimator
    fitting = [one for one in ESTIMATORS if one not in ESTIMATORS.of_logs]
    if not isinstance(name, str) or name not in fitting:
        raise CurveError(f"The estimator {name!r} is not made of a harvest. Use one of {listed(fitting)}.")
    return name


def fit(harvest: Harvest, estimator: str | None = None, level: float = 0.95) -> Estimator[Any]:
    """Return the estimator of a name, fitted; by default the best for the harvest."""
    kind: Any = ESTIMATORS[choose(harvest, estimator)]
    return kind(level=level).fit(harvest)  # type: ignore[no-any-return]


def _deletions(fitted: CurveEstimator) -> Deletions | None:
    """Return the deletions of an estimator of a harvest, if its buckets can be told apart from those of another."""
    if not isinstance(fitted, Estimator) or fitted.deletions_ is None:
        return None
    harvest, refits = fitted.harvest_, fitted.deletions_
    mixed = any(finding.code == OTHER_BUCKETS.code for finding in harvest.findings)
    # An estimator may have left buckets out.
    if mixed or len(refits) != len(harvest.buckets):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = np.log(refits) - np.log(fitted.propensity_)
    moved *= np.sqrt((len(refits) - 1) / len(refits))
    return Deletions(harvest.buckets, moved, harvest.about.get("engine"), fitted.most_degrees_)
