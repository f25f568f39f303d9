"""How precise log p can be: Cramér–Rao bounds computed from the truth of a drawn log.

A view at k of a document of relevance r is clicked with a chance of p r, and tells p r / (1 − p r) of log p_k. Each
function returns the bound of the variance of log p_k / p_1, and the error of one who attains it on this very log: the
score at the truth, over the information. On one log after another that error goes up and down with an estimator's, so
that the two are compared with less noise than by the bound itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from posbias.arrays import FloatArray, IntArray, group, tally
from posbias.reproduction.drawn import Drawn

# A click that is certain would tell everything; this much is as good.
_CERTAIN = 1 - 1e-9


class Best(NamedTuple):
    """The bound of the variance of log p_k / p_1, by rank from the second, and the error of one who attains it."""

    variance: FloatArray
    error: FloatArray


def relevance_known(drawn: Drawn) -> Best:
    """Return the best there is where every pair's relevance is known: pairs that are at one rank count too."""
    chance = _chance(drawn.world.propensity[drawn.rank - 1] * drawn.relevance[drawn.query, drawn.candidate])
    told = tally(drawn.rank - 1, drawn.impressions * chance / (1 - chance), drawn.world.max_rank)
    score = tally(drawn.rank - 1, (drawn.clicks - drawn.impressions * chance) / (1 - chance), drawn.world.max_rank)
    return Best(1 / told[1:] + 1 / told[0], score[1:] / told[1:] - score[0] / told[0])


def ranks_known(drawn: Drawn, *, by_pair: bool = True) -> Best:
    """Return the best there is where rankers' ranks are known, and of each pair's relevance all but its level.

    No estimator that takes relevance for unknown does better. With several views of a query, relevance that is truly
    unknown costs more. With one view it is known only as the mean of the pairs that rankers treat alike, which
    `by_pair=False` takes in place of its own; the rankers must be of one quality.
    """
    queries, rankers, pool = drawn.ranks.shape
    width = drawn.world.max_rank
    shares = tally(drawn.ranker, drawn.impressions, rankers)
    # What traffic promises each pair at each rank; beyond M at 0.
    exposure = np.zeros((queries * pool, width + 1))
    pair = np.arange(queries * pool)
    for ranker in range(rankers):
        exposure[pair, drawn.ranks[:, ranker].ravel()] += shares[ranker] / shares.sum()
    exposure *= np.repeat(drawn.views, pool)[:, None]
    relevance = drawn.relevance if by_pair else _alike(drawn)
    where = (drawn.query * pool + drawn.candidate) * width + drawn.rank - 1
    return _within_pairs(drawn, where, exposure[:, 1:], relevance.ravel())


def ranks_unknown(drawn: Drawn) -> Best:
    """Return the best there is where nothing is known of a pair but what was shown of it (replay)."""
    first, pair = group([drawn.query, drawn.candidate])
    width = drawn.world.max_rank
    where = pair * width + drawn.rank - 1
    exposure = tally(where, drawn.impressions, len(first) * width).reshape(-1, width)
    return _within_pairs(drawn, where, exposure, drawn.relevance[drawn.query[first], drawn.candidate[first]])


def _within_pairs(drawn: Drawn, where: IntArray, exposure: FloatArray, relevance: FloatArray) -> Best:
    """Return the best there is of views by pair and rank, the level of each pair's relevance to be estimated too.

    With λ what the views promised to a pair tell of each rank, and s what those it had say, the information is the sum
    over pairs of diag(λ) − λ λᵀ / Σλ, and the score that of s − λ Σs / Σλ.
    """
    width = drawn.world.max_rank
    chance = _chance(relevance[:, None] * drawn.world.propensity)
    views, clicks = (tally(where, c, exposure.size).reshape(-1, width) for c in (drawn.impressions, drawn.clicks))
    told = exposure * chance / (1 - chance)
    score = (clicks - views * chance) / (1 - chance)
    compared = np.count_nonzero(told, axis=1) > 1
    told, score = told[compared], score[compared]
    share = told / told.sum(axis=1, keepdims=True)
    information = np.diag(told.sum(axis=0)) - told.T @ share
    inverse = np.linalg.pinv(information[1:, 1:])
    error = inverse @ (score - share * score.sum(axis=1, keepdims=True)).sum(axis=0)[1:]
    return Best(np.asarray(np.diagonal(inverse)), np.asarray(error))


def _alike(drawn: Drawn) -> FloatArray:
    """Return, for each pair, the mean relevance of those with the same ranks by whichever rankers."""
    ranks = np.sort(drawn.ranks.astype(np.int64), axis=1).transpose(0, 2, 1).reshape(-1, drawn.ranks.shape[1])
    first, which = group(list(ranks.T))
    mean = tally(which, drawn.relevance.ravel(), len(first)) / tally(which, np.ones(len(which)), len(first))
    return np.asarray(mean[which].reshape(drawn.relevance.shape))


def _chance(chance: FloatArray) -> FloatArray:
    return np.minimum(chance, _CERTAIN)
