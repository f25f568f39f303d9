"""Directions: what contests would show more of than chance if an assumption were broken in a certain way.

Each is a number c for every contest of ranker i at rank k with j at k'; what is tried is Σ c (A − T π).
"""

from __future__ import annotations

import numpy as np

from posbias.arrays import FloatArray, tally
from posbias.judging.contests import Contests, Surprises

# So many rankers, the busiest, have an effect of their own.
_MOST_EFFECTS = 3
_ROUNDS = 20
_LEAST_READING = 0.05


def ranker_effects(contests: Contests) -> list[FloatArray]:
    """Return, for each ranker but the busiest, what it wins more than the curve and traffic say."""
    busy = np.argsort(-contests.views.sum(axis=0), kind="stable")
    effects = [
        (contests.first == ranker).astype(np.float64) - (contests.second == ranker)
        for ranker in busy[1 : 1 + _MOST_EFFECTS]
    ]
    return [effect for effect in effects if effect.any()]


def trust(surprises: Surprises) -> FloatArray:
    """(x_k − x_k') λ: the curve is steeper or flatter for relevant documents: affine clicks (Vardasbi et al., 2020)."""
    c, x = surprises.contests, surprises.curve
    return np.asarray((x[c.rank] - x[c.other]) * relevance(surprises))


def bend(contests: Contests) -> FloatArray:
    """(k − k')|k − k'|: far ranks differ by more, or less, than the steps between them."""
    apart = (contests.rank - contests.other).astype(np.float64)
    return np.asarray(apart * np.abs(apart))


def above(contests: Contests) -> FloatArray:
    """How often a page is still read at i's k, against j's k', by users who stop at their first click (cascade)."""
    reading = 1 - (np.cumsum(contests.rates, axis=1) - contests.rates)
    reached = np.log(np.maximum(reading, _LEAST_READING))
    return np.asarray(reached[contests.first, contests.rank] - reached[contests.second, contests.other])


def neighbours(surprises: Surprises) -> FloatArray:
    """The relevance next to i's k less that next to j's k': results that draw the eye from, or to, one another."""
    c, x = surprises.contests, surprises.curve
    worth = c.rates / np.exp(x - x[0])
    around = np.zeros_like(worth)
    around[:, 1:] += worth[:, :-1]
    around[:, :-1] += worth[:, 1:]
    around[:, 1:-1] /= 2
    return np.asarray(around[c.first, c.rank] - around[c.second, c.other])


def relevance(surprises: Surprises) -> FloatArray:
    """λ: the log relevance of the set of a contest, 0 on average, smoothed to a term of k and one of k'."""
    c, p = surprises.contests, np.exp(surprises.curve - surprises.curve.max())
    clicks = c.by_set(c.total)
    first = c.sets[0]
    exposed = c.by_set(c.shown[0]) * p[c.rank[first]] + c.by_set(c.shown[1]) * p[c.other[first]]
    rate = np.log((clicks + 0.5) / (exposed + 0.5))
    weight = clicks + 0.5
    left = c.first[first] * c.ranks + c.rank[first]
    right = c.second[first] * c.ranks + c.other[first]
    size = c.views.shape[1] * c.ranks
    a, b = np.zeros(size), np.zeros(size)
    at_left, at_right = (np.maximum(tally(side, weight, size), 1e-300) for side in (left, right))
    for _ in range(_ROUNDS):
        a = tally(left, weight * (rate - b[right]), size) / at_left
        b = tally(right, weight * (rate - a[left]), size) / at_right
    smooth = a[left] + b[right]
    smooth -= (weight * smooth).sum() / max(weight.sum(), 1e-300)
    return np.asarray(smooth[c.sets[1]])
