"""How precise an estimate becomes with more queries, and how many it takes: arithmetic of standard errors.

An interval is p exp(± t se), so ±x% means exp(t se) − 1 = x: its upper end lies x% above the estimate, its lower end a
little nearer. With f times the queries se becomes se / √f, and t comes with more degrees of freedom: 1/df is 1/B, for
the B buckets that hold anything, and a part that says how unequal queries are, which falls as 1/f.
"""

from __future__ import annotations

import math

import numpy as np

from posbias.arrays import BoolArray, FloatArray
from posbias.estimators.intervals import FEWEST_BUCKETS
from posbias.quantiles import t_quantile
from posbias.sql.dialect import BUCKETS

# Halvings of the bracket in which the answer lies: it is wanted to a thousandth.
_HALVINGS = 20
# What is foreseen is told as one number if the standard error that it rests on is known to this share of itself, which
# made numbers hold in simulated logs, and not at all from fewer degrees of freedom than these.
_KNOWN_TO, _FEWEST_DEGREES = 1 / 8, 5.0
# The share of degrees of freedom, themselves estimated, that makes ranges hold what is needed.
_SURE = 0.5
# A bracket that holds every quantile of t beside that of the normal distribution: at one degree of freedom, 99.9%.
_WIDEST = 1e5


def queries_of_bucket(buckets: int, queries: int | None) -> float:
    """Return the mean queries of a bucket, from how many buckets hold any; without bound where that does not tell."""
    if buckets < BUCKETS:
        return -math.log(1 - buckets / BUCKETS)
    return math.inf if queries is None else max(queries / BUCKETS, -math.log(1 / (2 * BUCKETS)))


def buckets_at(times: FloatArray, buckets: int, queries: int | None = None) -> FloatArray:
    """Return how many buckets hold anything with so many times the queries that fill `buckets` of them.

    >>> buckets_at(np.array([0.1, 1.0, 10.0]), 128).round(0).tolist()
    [17.0, 128.0, 256.0]
    """
    return np.asarray(-BUCKETS * np.expm1(-queries_of_bucket(buckets, queries) * np.asarray(times)))


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
    fewest = -math.log(1 - FEWEST_BUCKETS / BUCKETS) / queries_of_bucket(buckets, queries)
    low = np.maximum(low, math.log(max(fewest, 1e-300)))
    high = low + math.log(_WIDEST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        wide = precision_at(np.exp(middle), se, degrees, level, buckets, queries) > precision
        low, high = np.where(wide, middle, low), np.where(wide, high, middle)
    return np.asarray(np.exp(high))


def foreseeable(degrees: FloatArray) -> BoolArray:
    """Return whether a standard error of so many degrees of freedom is known well enough: to 1/√(2 df) of itself.

    >>> foreseeable(np.array([3.0, 31.0, 33.0, np.nan])).tolist()
    [False, False, True, False]
    """
    return np.asarray(np.asarray(degrees) >= 1 / (2 * _KNOWN_TO**2))


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
