"""Intervals from the buckets of a harvest: whole queries are resampled, and every refit is one batch."""

from __future__ import annotations

import numpy as np

from posbias.arrays import FloatArray

# More resamples than this share without an estimate leave a rank without an interval.
MOST_UNDEFINED = 0.05


def resample(buckets: int, times: int, seed: int) -> FloatArray:
    """Return how often each bucket is drawn in each of `times` resamples with replacement: (times, buckets)."""
    if buckets == 0 or times == 0:
        return np.zeros((times, buckets))
    draws = np.random.default_rng(seed).multinomial(buckets, np.full(buckets, 1 / buckets), size=times)
    return draws.astype(np.float64)


def percentile(resampled: FloatArray, level: float) -> FloatArray:
    """Return the (M, 2) percentile interval of each rank from (resamples, M) estimates.

    A rank that is undefined in more than 5% of the resamples has none. An infinite estimate (a resample without clicks
    at rank 1) counts as large, not as missing.
    """
    ranks = resampled.shape[-1]
    bounds = np.full((ranks, 2), np.nan)
    tails = [(1 - level) / 2, (1 + level) / 2]
    for k in range(ranks):
        known = np.sort(resampled[~np.isnan(resampled[:, k]), k])
        if len(known) and len(known) >= (1 - MOST_UNDEFINED) * len(resampled):
            # Nearest order statistics: interpolating with an infinite one would give NaN.
            bounds[k] = np.quantile(known, tails, method="inverted_cdf")
    return bounds


def covariance(resampled: FloatArray) -> FloatArray:
    """Return the (M, M) covariance of the resampled estimates; NaN for ranks that some resample left undefined."""
    if len(resampled) < 2:
        return np.full((resampled.shape[-1],) * 2, np.nan)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.cov(resampled, rowvar=False))
