"""Statistics that several rooms share: quantiles, tail probabilities, degrees of freedom.

SciPy is imported inside the functions, because its import takes longer than most commands do.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from posbias._arrays import FloatArray

# A level that rounds to 1 leaves this much of the upper tail.
_LEAST_TAIL = 2.0**-53
# With more degrees of freedom than this, the t quantile is within 0.2% of the normal one.
_MOST_DEGREES = 1000


def t_quantile(degrees: FloatArray, level: float) -> FloatArray:
    """Return the quantile of Student's t distribution, for each of the degrees of freedom.

    Arguments:
        degrees (array of float): degrees of freedom; more than 1,000 count as 1,000, and NaN gives NaN.
        level (float): the lower tail probability, ½ or more: 0.975 for a two-sided 95% interval.

    Example:
        >>> t_quantile(np.array([1.0, 10.0, 255.0]), 0.975).round(4).tolist()
        [12.7062, 2.2281, 1.9693]
    """
    from scipy.special import stdtrit

    degrees = np.minimum(np.asarray(degrees, dtype=np.float64), _MOST_DEGREES)
    return np.asarray(-stdtrit(degrees, max(1 - level, _LEAST_TAIL)))


def f_tail(numerator: float, denominator: float, value: float) -> float:
    """Return the probability that an F variable with these degrees of freedom exceeds a value; NaN for NaN.

    The square of Student's t with ν degrees of freedom is F with 1 and ν.

    >>> round(f_tail(3, 100, 2.6955), 4), round(f_tail(1, 10, 2.2281**2), 4)
    (0.05, 0.05)
    """
    from scipy.special import fdtrc

    return float(fdtrc(numerator, denominator, max(value, 0.0)))


def satterthwaite(deletions: FloatArray) -> FloatArray:
    """Return Satterthwaite's degrees of freedom of a jackknife variance, for each column.

    With d_b the change of the estimate when bucket b is left out: 2 (Σd²)² / (Σd⁴ − (Σd²)²/B), from 1 to B − 1.
    If all buckets change the estimate equally much, that is B − 1.

    Arguments:
        deletions (array of float): the change of each estimate without each bucket, (B, columns).

    Example:
        >>> satterthwaite(np.array([[1.0, 5.0], [-1.0, 1.0], [1.0, 0.0], [-1.0, 0.0]])).round(2).tolist()
        [3.0, 2.96]
    """
    most = max(len(deletions) - 1, 1)
    return np.asarray(np.clip(satterthwaite_of_squares(deletions**2), 1, most))


def satterthwaite_of_squares(squares: FloatArray) -> FloatArray:
    """Return Satterthwaite's degrees of freedom of Σ_b s_b for squares s_b, without bounds; B − 1 if all are equal."""
    buckets = len(squares)
    total = squares.sum(axis=0)
    spread = (squares**2).sum(axis=0) - total**2 / buckets
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(spread > 0, 2 * total**2 / spread, buckets - 1))


class FTest(NamedTuple):
    """The outcome of an F test.

    Attributes:
        statistic (float): F, which is the square of t if one direction was tested; NaN if not tested.
        numerator (int): degrees of freedom of the numerator, which is the number of directions tested.
        denominator (float): degrees of freedom of the denominator.
        p_value (float): NaN if not tested.
        reason (str): why it was not tested.
    """

    statistic: float
    numerator: int
    denominator: float
    p_value: float
    reason: str = ""

    @property
    def tested(self) -> bool:
        """Whether there was enough data for the test."""
        return math.isfinite(self.p_value)


def not_tested(reason: str, numerator: int = 0, denominator: float = math.nan) -> FTest:
    """Return the outcome of a test that could not be made, with the reason."""
    return FTest(math.nan, numerator, denominator, math.nan, reason)


def hotelling_test(t_squared: float, directions: int, degrees: float) -> FTest:
    """Return Hotelling's T² test of q directions.

    F = T² (ν − q + 1) / (ν q) has q and ν − q + 1 degrees of freedom.

    >>> test = hotelling_test(8.0, 2, 60.0)
    >>> round(test.statistic, 3), test.denominator, round(test.p_value, 4)
    (3.933, 59.0, 0.0249)
    """
    rest = degrees - directions + 1
    statistic = t_squared * rest / (directions * degrees)
    return FTest(statistic, directions, rest, f_tail(directions, rest, statistic))


def round_significant(value: float, digits: int = 4) -> float | None:
    """Return a number with so many significant digits, or None if it is not finite: a number as JSON can hold it.

    >>> round_significant(0.0123456), round_significant(float("nan"))
    (0.01235, None)
    """
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
