"""Where the score of CrossFit is 0: Newton's method with its guards, and the search for a second root."""

from __future__ import annotations

import numpy as np

from posbias.arrays import BoolArray, FloatArray
from posbias.estimators.compared_rows import Rows
from posbias.estimators.relevance_guesses import Guess
from posbias.estimators.view_scores import score_and_slope

# The most steps, the furthest that one goes in log p, how often it is halved.
_STEPS, _REACH, _HALVINGS = 50, 1.0, 10
# The size of the last step: what it leaves is of the order of its square. Where only the neighbourhood matters, less.
_END, NEAR = 1e-6, 1e-3
# Roots of one score that are further apart than this in log p are two.
_APART = 1e-2
# So many cells show whether there is one.
_CELLS_TO_LOOK_AT = 20_000


def newton(
    x: FloatArray,
    rows: Rows,
    traffic: FloatArray,
    guess: Guess | None,
    ranks: BoolArray,
    steps: int = _STEPS,
    end: float = _END,
) -> FloatArray | None:
    """Return the x near this one at which the score of some ranks is 0, x = 0 at rank 1; None if Newton is lost.

    A step must bring the next one down, measured by this one's slope, or it is halved. After `steps` fewer than all
    it returns how far it came.
    """
    free = np.flatnonzero(ranks)[1:]
    if not len(free):
        return None
    inner = np.ix_(free, free)
    gradient, slope = score_and_slope(x, rows, traffic, guess)
    for _ in range(steps):
        try:
            inverse = np.linalg.inv(slope[inner])
        except np.linalg.LinAlgError:
            return None
        step = inverse @ gradient[free]
        size = np.abs(step).max()
        if not np.isfinite(size):
            return None
        scale = min(1.0, _REACH / size) if size else 1.0
        for _ in range(_HALVINGS):
            ahead = x.copy()
            ahead[free] += scale * step
            if size < end:
                return ahead
            gradient, slope = score_and_slope(ahead, rows, traffic, guess)
            if np.abs(inverse @ gradient[free]).max() < (1 - scale / 4) * size:
                break
            scale /= 2
        else:
            return None
        x = ahead
    return x if steps < _STEPS else None


def naive(rows: Rows, ranks: BoolArray) -> FloatArray:
    """Return log click rates relative to that of rank 1: somewhere to start from."""
    clicks, views = rows.by_rank(rows.clicks), rows.by_rank(rows.views)
    rate = np.divide(clicks, views, out=np.ones(len(ranks)), where=ranks & (clicks > 0))
    return np.where(ranks, np.log(rate / rate[0]), 0.0)


def unique(
    root: FloatArray, start: FloatArray, rows: Rows, traffic: FloatArray, guess: Guess, ranks: BoolArray
) -> bool:
    """Return whether Newton from other places, a flatter curve and a steeper one, finds no other root.

    On a large log it looks at some of the buckets, whose score has the same shape.
    """
    every = max(1, len(rows.bucket) // _CELLS_TO_LOOK_AT)
    if every > 1:
        rows = rows.weighted((np.arange(rows.buckets) % every == 0).astype(np.float64))
        nearby = newton(root, rows, traffic, guess, ranks, end=NEAR)
        if nearby is None:
            return True
        root = nearby
    for factor in (0.5, 1.5):
        other = newton(factor * start, rows, traffic, guess, ranks, end=NEAR)
        if other is not None and np.abs(other - root)[ranks].max() > _APART:
            return False
    return True
