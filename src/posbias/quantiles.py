"""Quantiles of Student's t: all that intervals need of a library whose import takes longer than they do."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from posbias.arrays import FloatArray

_POINTS, _STEPS = 100, 100
# A level that rounds to 1 leaves this of a tail.
_LEAST_TAIL = 2.0**-53
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
