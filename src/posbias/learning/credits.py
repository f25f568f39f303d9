"""The value of rankings from clicks: each weighed by how likely it was seen, and again without each bucket.

Δ = 1/N Σ over clicks of λ(rank(d)) / ρ(q,d), with ρ = Σ_f share_f · p_{rank_f(d)} / p_1, where share_f is what ranker f
served of the page views of the query: the exposure that the document had, by page view. A click's worth is credited to
the ranks at which its document was shown, by their part in ρ. Where p_k is x times what it was, the credit there is 1/x
of what it was: to the first order that is what becomes of 1/ρ, and exactly so where a document has one rank. So the
engine answers with one small table, and Δ is taken again for every refit of the curve.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posbias.arrays import FloatArray
from posbias.estimators.intervals import FEW_DEGREES, FEWEST_BUCKETS, deletions, few_buckets, few_degrees
from posbias.judging.contrasts import Contrasts, ratio_of
from posbias.quantiles import t_quantile

# A rank that lost more than so much of its exposure in a refit counts by the tangent.
_LEAST = 0.5


@dataclass(frozen=True, eq=False)
class Credits:
    """Worth of clicks by bucket and rank.

    Attributes:
        worth: by list, bucket and rank: Σ clicks λ / ρ, each split by the part of the rank in ρ. (L, B, M)
        views: page views by bucket. (B,)
        propensity: p_k / p_1 that ρ was made with; 0 where nothing was shown. (M,)
    """

    worth: FloatArray
    views: FloatArray
    propensity: FloatArray

    def values(self, weights: FloatArray, curves: FloatArray) -> FloatArray:
        """Return Δ of every list, (..., L), for buckets counted `weights` (..., B) times and curves (..., M)."""
        shown = self.propensity > 0
        exposure = np.where(shown, curves / np.where(shown, self.propensity, 1.0), 1.0)
        sums = np.einsum("...b,lbk,...k->...l", weights, self.worth, _inverse(exposure), optimize=True)
        return np.asarray(sums / (weights @ self.views)[..., None])


def _inverse(x: FloatArray) -> FloatArray:
    """Return 1/x, and its tangent below ½: a refit may leave a rank without any click, and other ranks remain."""
    return np.where(x >= _LEAST, 1 / np.maximum(x, _LEAST), (2 - x / _LEAST) / _LEAST)


@dataclass(frozen=True)
class Estimate:
    """A number with its interval, None where there is none; `reason` says why, or what makes it a weak one."""

    value: float
    low: float | None = None
    high: float | None = None
    degrees_of_freedom: float | None = None
    reason: str | None = None


@dataclass(frozen=True, eq=False)
class Refits:
    """Values of some lists, (L,), and those without each of the buckets, (B, L), where there are enough of these."""

    value: FloatArray
    without: FloatArray | None
    level: float
    most_degrees: float
    reason: str | None = None

    @classmethod
    def of(
        cls, credits: Credits, curve: FloatArray, refitted: FloatArray | None, level: float, most_degrees: float
    ) -> Refits:
        """Return the values with one curve, and with each of the curves that leaving out a bucket gives."""
        buckets = len(credits.views)
        value = credits.values(np.ones(buckets), curve)
        if buckets < FEWEST_BUCKETS:
            return cls(value, None, level, most_degrees, few_buckets(buckets))
        if refitted is None or len(refitted) != buckets:
            return cls(value, None, level, most_degrees, "the curve has no refits of the same buckets: no interval")
        return cls(value, credits.values(deletions(buckets), refitted), level, most_degrees)

    def ratio(self, one: int, other: int) -> Estimate:
        """Return how many times the value of another list that of one is, with its interval on the log scale."""
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.log(self.value[one]) - np.log(self.value[other])
            without = None if self.without is None else np.log(self.without[:, one]) - np.log(self.without[:, other])
        return self._interval(value, without, log=True)

    def difference(self, one: int, other: int) -> Estimate:
        """Return by how much the value of one list exceeds that of another, with its interval."""
        without = None if self.without is None else self.without[:, one] - self.without[:, other]
        return self._interval(self.value[one] - self.value[other], without, log=False)

    def of_list(self, one: int) -> Estimate:
        """Return the value of one list, with its interval on the log scale."""
        with np.errstate(divide="ignore", invalid="ignore"):
            value, without = np.log(self.value[one]), None if self.without is None else np.log(self.without[:, one])
        return self._interval(value, without, log=True)

    def _interval(self, value: float, without: FloatArray | None, *, log: bool) -> Estimate:
        """Return an interval by the jackknife, with t quantiles, as those of curves are made."""
        told = float(np.exp(value)) if log else float(value)
        if without is None or not np.isfinite(value):
            return Estimate(told, reason=self.reason)
        moved = without - value
        if not np.isfinite(moved).all():
            return Estimate(told, reason="rests on one bucket of queries: no interval")
        buckets = len(moved)
        scaled = (moved * np.sqrt((buckets - 1) / buckets))[:, None]
        found = Contrasts.of_deletions(np.array([value]), scaled, self.most_degrees)
        degrees = float(found.degrees[0])
        half = float((t_quantile(found.degrees, (1 + self.level) / 2) * found.error)[0])
        ends = value - half, value + half
        low, high = map(ratio_of, ends) if log else ends
        weak = few_degrees(degrees) if degrees < FEW_DEGREES and half > 0 else None
        return Estimate(told, float(low), float(high), degrees, weak)
