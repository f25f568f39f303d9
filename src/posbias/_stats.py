"""Quantiles and tails of distributions."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from posbias._arrays import FloatArray

_POINTS, _STEPS, _TERMS = 100, 100, 10_000
# A level that rounds to 1 leaves this of a tail.
_LEAST_TAIL = 2.0**-53
# The coefficients of log(erfc(x) / t) + x² in t = 1 / (1 + x/2), the highest power first.
_ERFC = [0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807]
_ERFC += [-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223]
# Beyond so many degrees of freedom the quantile stays within a thousandth.
_MOST_DEGREES = 1000


def t_quantile(degrees: FloatArray, level: float) -> FloatArray:
    """Return the quantile of Student's t at a level of ½ or more, for each of the degrees of freedom; NaN for NaN.

    With t = √ν cot ψ the upper tail is c ∫ sin^(ν−1) from 0 to ψ. In z with ψ z⁴ in place of the angle it is smooth for
    every ν from 1 on, so that points of Gauss and Legendre integrate it to the last digits; Newton finds log ψ.

    >>> t_quantile(np.array([1.0, 10.0, 255.0]), 0.975).round(4).tolist()
    [12.7062, 2.2281, 1.9693]
    """
    z, dz = _points()
    nu = np.minimum(np.asarray(degrees, dtype=np.float64), _MOST_DEGREES)[..., None]
    scale = np.array([_constant(value) for value in nu.ravel().tolist()]).reshape(nu.shape)
    psi = np.full(nu.shape, math.pi / 2)
    with np.errstate(invalid="ignore"):
        for _ in range(_STEPS):
            tail = scale * (4 * psi * z**3 * dz * np.sin(psi * z**4) ** (nu - 1)).sum(axis=-1, keepdims=True)
            slope = psi * scale * np.sin(psi) ** (nu - 1) / tail
            step = np.log(max(1 - level, _LEAST_TAIL) / tail) / slope
            psi = np.minimum(psi * np.exp(np.clip(step, -5, 5)), math.pi / 2)
            if not np.any(np.abs(step) > 1e-14):
                break
        return np.asarray((np.sqrt(nu) / np.tan(psi))[..., 0])


@cache
def _points() -> tuple[FloatArray, FloatArray]:
    """The points of Gauss and Legendre from 0 to 1 and their weights, which take longer to find than to use."""
    nodes, weights = np.polynomial.legendre.leggauss(_POINTS)
    return (nodes + 1) / 2, weights / 2


def _constant(nu: float) -> float:
    """Γ((ν+1)/2) / (√π Γ(ν/2))."""
    return math.exp(math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2)) / math.sqrt(math.pi) if nu == nu else math.nan


def normal_tail(z: FloatArray) -> FloatArray:
    """Return how often a standard normal exceeds z, to seven digits.

    Chebyshev's fit to erfc (Press et al., Numerical Recipes, 6.2.2), whose digits hold in the tail too.

    >>> normal_tail(np.array([-1.0, 0.0, 1.959964])).round(6).tolist()
    [0.841345, 0.5, 0.025]
    """
    t = 1 / (1 + np.abs(z) / math.sqrt(8))
    upper = t / 2 * np.exp(np.polyval(_ERFC, t) - z**2 / 2)
    return np.asarray(np.where(z < 0, 1 - upper, upper))


def f_tail(above: float, below: float, value: float) -> float:
    """Return how often F with so many degrees of freedom above and below the line exceeds a value; NaN for NaN.

    It is the incomplete beta function at x = ν₂ / (ν₂ + ν₁ F), by its continued fraction (Lentz). The square of
    Student's t has one degree above.

    >>> round(f_tail(3, 100, 2.6955), 4), round(f_tail(1, 10, 2.2281**2), 4)
    (0.05, 0.05)
    """
    if math.isnan(above + below + value):
        return math.nan
    if value <= 0:
        return 1.0
    x = below / (below + above * value)
    a, b = below / 2, above / 2
    # The fraction is quick on one side of the mean, and on the other of what is left.
    if x < (a + 1) / (a + b + 2):
        return _beta_share(a, b, x)
    return 1 - _beta_share(b, a, 1 - x)


def _beta_share(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for x below its mean or so."""
    if x <= 0:
        return 0.0
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, _TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / _away(1 + term * d), _away(1 + term / c)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(scale) * fraction / a


def _away(value: float) -> float:
    """A number that may be divided by."""
    return value if abs(value) > 1e-300 else 1e-300
