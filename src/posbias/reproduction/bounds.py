"""How precise log p can be: Cramér–Rao bounds computed from the truth of a drawn log.

A view at k of a document of relevance r tells p r / (1 − p r) of log p_k, with p r the chance of its click: `_told`.
Each function returns the bound of the variance of log p_k / p_1, by rank from the second.
"""

from __future__ import annotations

import numpy as np

from posbias.arrays import FloatArray, group, tally
from posbias.reproduction.drawn import Drawn

# A click that is certain would tell everything; this much is as good.
_CERTAIN = 1 - 1e-9


def relevance_known(drawn: Drawn) -> FloatArray:
    """Return the bound where every pair's relevance is known: all views count, those of pairs at one rank too."""
    chance = drawn.world.propensity[drawn.rank - 1] * drawn.relevance[drawn.query, drawn.candidate]
    told = tally(drawn.rank - 1, drawn.impressions * _told(chance), drawn.world.max_rank)
    return np.asarray(1 / told[1:] + 1 / told[0])


def ranks_known(drawn: Drawn, *, by_pair: bool = True) -> FloatArray:
    """Return the bound where rankers' ranks are known, and of each pair's relevance all but its level.

    No estimator that takes relevance for unknown does better. With several views of a query, relevance that is truly
    unknown costs more. With one view it is known only as the mean of the pairs that rankers treat alike, which
    `by_pair=False` takes in place of its own; the rankers must be of one quality.
    """
    relevance = drawn.relevance if by_pair else _alike(drawn)
    shares = np.array([drawn.impressions[(drawn.ranker == i) & (drawn.rank == 1)].sum() for i in _rankers(drawn)])
    queries, rankers, pool = drawn.ranks.shape
    width = drawn.world.max_rank
    # What traffic promises each pair at each rank, beyond M at 0.
    exposure = np.zeros((queries * pool, width + 1))
    pair = np.arange(queries * pool)
    for ranker in range(rankers):
        np.add.at(exposure, (pair, drawn.ranks[:, ranker].ravel()), shares[ranker] / shares.sum())
    exposure *= np.repeat(drawn.views, pool)[:, None]
    return _within_pairs(exposure[:, 1:], relevance.ravel(), drawn.world.propensity)


def ranks_unknown(drawn: Drawn) -> FloatArray:
    """Return the bound where nothing is known of a pair but what was shown of it (replay), its relevance included."""
    first, pair = group([drawn.query, drawn.candidate])
    width = drawn.world.max_rank
    shown = tally(pair * width + drawn.rank - 1, drawn.impressions, len(first) * width)
    relevance = drawn.relevance[drawn.query[first], drawn.candidate[first]]
    return _within_pairs(shown.reshape(-1, width), relevance, drawn.world.propensity)


def _within_pairs(exposure: FloatArray, relevance: FloatArray, p: FloatArray) -> FloatArray:
    """Return the bound of views by pair and rank, the level of each pair's relevance to be estimated beside log p.

    Σ over pairs of diag(λ) − λ λᵀ / Σλ, with λ what the pair's views at each rank tell.
    """
    told = exposure * _told(relevance[:, None] * p)
    told = told[np.count_nonzero(told, axis=1) > 1]
    information = np.diag(told.sum(axis=0)) - told.T @ (told / told.sum(axis=1, keepdims=True))
    return np.asarray(np.diagonal(np.linalg.pinv(information[1:, 1:])))


def _alike(drawn: Drawn) -> FloatArray:
    """Return, for each pair, the mean relevance of those with the same ranks by whichever rankers."""
    ranks = np.sort(drawn.ranks.astype(np.int64), axis=1).transpose(0, 2, 1).reshape(-1, drawn.ranks.shape[1])
    first, which = group(list(ranks.T))
    mean = tally(which, drawn.relevance.ravel(), len(first)) / tally(which, np.ones(len(which)), len(first))
    return np.asarray(mean[which].reshape(drawn.relevance.shape))


def _told(chance: FloatArray) -> FloatArray:
    chance = np.minimum(chance, _CERTAIN)
    return np.asarray(chance / (1 - chance))


def _rankers(drawn: Drawn) -> range:
    return range(len(drawn.world.rankers))
