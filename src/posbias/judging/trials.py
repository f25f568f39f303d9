"""Trials: whether directions of surprise are more than chance, with buckets of queries as what chance draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posbias.arrays import FloatArray
from posbias.quantiles import f_tail

# Fewer degrees of freedom than this beyond what is tried tell nothing.
_FEWEST = 3.0


@dataclass(frozen=True)
class Trial:
    """The outcome of a test.

    Attributes:
        statistic: F, or the square of t where one direction was tried.
        directions: how many were tried.
        degrees: of freedom of the denominator.
        p: how often chance alone would do as much; NaN where there is too little to tell.
    """

    statistic: float
    directions: int
    degrees: float
    p: float

    @property
    def told(self) -> bool:
        """Whether there was enough to tell anything."""
        return bool(np.isfinite(self.p))


UNTOLD = Trial(float("nan"), 0, float("nan"), float("nan"))


def satterthwaite(parts: FloatArray) -> FloatArray:
    """Return the degrees of freedom of Σ_b u_b², by column: 2 (Σu²)² / (Σu⁴ − (Σu²)²/B), from 1 to B − 1."""
    buckets = len(parts)
    squares = (parts**2).sum(axis=0)
    spread = (parts**4).sum(axis=0) - squares**2 / buckets
    with np.errstate(divide="ignore", invalid="ignore"):
        degrees = np.where(spread > 0, 2 * squares**2 / spread, buckets - 1)
    return np.asarray(np.clip(degrees, 1, max(buckets - 1, 1)))


def wald(parts: Sequence[FloatArray]) -> Trial:
    """Try whether sums over buckets are all 0: Hotelling's T² with the smallest Satterthwaite degrees of freedom.

    Arguments:
        parts: for each direction, what each bucket adds to it.
    """
    table = np.stack(list(parts), axis=1) if parts else np.zeros((0, 0))
    buckets = len(table)
    scale = np.sqrt((table**2).sum(axis=0))
    moved = scale > 1e-9 * max(1.0, float(scale.max(initial=0)))
    table = table[:, moved] / scale[moved]
    if buckets < 2 or not table.shape[1]:
        return UNTOLD
    covariance = table.T @ table * buckets / (buckets - 1)
    values, vectors = np.linalg.eigh(covariance)
    kept = values > 1e-6 * values.max()
    size = int(kept.sum())
    along = table @ vectors[:, kept] / np.sqrt(values[kept])
    degrees = float(satterthwaite(table).min())
    rest = degrees - size + 1
    if rest < _FEWEST:
        return Trial(float("nan"), size, rest, float("nan"))
    squared = float((along.sum(axis=0) ** 2).sum())
    statistic = squared * rest / (size * degrees)
    return Trial(statistic, size, rest, f_tail(size, rest, statistic))
