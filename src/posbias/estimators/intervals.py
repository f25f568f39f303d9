"""Intervals from the buckets of a harvest: whole queries are left out or drawn anew, and every refit is one batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from posbias.arrays import FloatArray
from posbias.quantiles import t_quantile

Interval = Literal["jackknife", "bootstrap"]
INTERVALS: tuple[Interval, ...] = ("jackknife", "bootstrap")
# With fewer buckets than this no interval is worth its name.
FEWEST_BUCKETS = 8
# An interval with fewer degrees of freedom than this rests on few queries, and says so.
FEW_DEGREES = 10
# What a deletion moves log p by, at the least, to be more than rounding; and the half-width beyond which an interval,
# from a ten-thousandth to ten thousand times the estimate, says nothing.
_MOVED, _WIDEST = 1e-6, np.log(1e4)
# A bucket that moves an estimate by less than this share of what the one does that moves it most, tells nothing of it.
_TELLS = 0.1
# More resamples than this share without an estimate leave a rank without an interval.
MOST_UNDEFINED = 0.05


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


def deletions(buckets: int) -> FloatArray:
    """Return how often each bucket counts in each refit of the jackknife, which leaves one out: (buckets, buckets)."""
    return 1.0 - np.eye(buckets)


def resample(buckets: int, times: int, seed: int) -> FloatArray:
    """Return how often each bucket is drawn in each of `times` resamples with replacement: (times, buckets)."""
    if buckets == 0 or times == 0:
        return np.zeros((times, buckets))
    draws = np.random.default_rng(seed).multinomial(buckets, np.full(buckets, 1 / buckets), size=times)
    return draws.astype(np.float64)


def no_intervals(ranks: int, reason: str | None = None) -> Intervals:
    """Return that there are none, and why."""
    unknown = np.full(ranks, np.nan)
    return Intervals(np.full((ranks, 2), np.nan), np.full((ranks, ranks), np.nan), unknown, [reason] * ranks)


def few_buckets(buckets: int) -> str:
    """Say why so few buckets make no interval."""
    return f"{buckets} bucket{'s'[: buckets > 1]} of queries: no interval from fewer than {FEWEST_BUCKETS}"


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
    squares = (moved**2).sum(axis=0)
    spread = (moved**4).sum(axis=0) - squares**2 / buckets
    degrees = np.full(ranks, np.nan)
    # Deletions that all move an estimate alike leave B − 1; rounding may leave a little less than none to divide by.
    np.divide(2 * squares**2, spread, out=degrees, where=spread > 0)
    # A few that happen to tell the same are no more than these few.
    telling = (np.abs(moved) >= _TELLS * np.abs(moved).max(axis=0)).sum(axis=0)
    most = np.maximum(1.0, np.minimum(telling - 1, most_degrees))
    degrees = np.where(known, np.clip(np.where(spread > 0, degrees, buckets - 1), 1, most), np.nan)
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
    for k in np.flatnonzero(known & ~wide & (degrees < FEW_DEGREES) & (squares > 0)):
        reasons[k] = few_degrees(degrees[k])
    return Intervals(ends, covariance, degrees, reasons)


def few_degrees(degrees: float) -> str:
    """Say that an interval rests on few queries."""
    return f"{degrees:.1f} degrees of freedom: few queries decide it"


def warned(percentiles: Intervals, degrees: FloatArray) -> Intervals:
    """Return percentile intervals with a word where, by a jackknife's degrees of freedom, few queries decide them."""
    reasons = [
        f"{few_degrees(few)}, and percentiles are too narrow" if reason is None and few < FEW_DEGREES else reason
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
