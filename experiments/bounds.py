"""How precise log p can be: Cramér–Rao bounds computed from the truth of a drawn log.

A view at k of a document of relevance r is clicked with a chance of p r, and tells p r / (1 − p r) of log p_k. Each
function returns the bound of the variance of log p_k / p_1, and the error of one who attains it on this very log: the
score at the truth, over the information. On one log after another that error goes up and down with an estimator's, so
that the two are compared with less noise than by the bound itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from experiments.drawn import Drawn
from posbias._arrays import FloatArray, IntArray, group, tally

# A click that is certain would tell everything; this much is as good. One that is only guessed to be is not believed.
_CERTAIN, _MOST_CERTAIN = 1 - 1e-9, 0.99
# Steps of the regression of relevance on ranks, and how many pairs of even odds each rank of a ranker counts besides.
_STEPS, _EVEN = 8, 1.0


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
    relevance = drawn.relevance if by_pair else _alike(drawn)
    return _within_pairs(drawn, _places(drawn), _promised(drawn), relevance.ravel())


def relevance_learned(drawn: Drawn) -> Best:
    """Return what comes of the best guesses of relevance that clicks allow: what who must learn it can hope for.

    The guesser knows how relevance is distributed among documents that rankers treat alike, and of a document the
    clicks of all its views but the one that is looked at. The score is that of CrossFit, each view weighed by its
    guess.
    """
    width, p = drawn.world.max_rank, drawn.world.propensity
    exposure, relevance = _promised(drawn), drawn.relevance.ravel()
    compared = np.count_nonzero(exposure, axis=1) > 1
    views, clicks = (
        tally(_places(drawn), c, exposure.size).reshape(-1, width) for c in (drawn.impressions, drawn.clicks)
    )
    low, high = (_chance(p * r) for r in (drawn.world.noise, 1.0))
    told = (np.log((1 - high) / (1 - low)), np.log(high / low))
    odds = _odds_of_signature(drawn) + (views - clicks) @ told[0] + clicks @ told[1]
    scores, information = np.zeros(exposure.shape), np.zeros((width, width))
    for clicked, counts in enumerate((views - clicks, clicks)):
        pair, rank = np.nonzero(counts * compared[:, None])
        own = odds[pair] - told[clicked][rank]
        guess = drawn.world.noise + (1 - drawn.world.noise) / (1 + np.exp(-np.clip(own, -500, 500)))
        f = 1 / (1 - np.minimum(p * guess[:, None], _MOST_CERTAIN))
        weight = exposure[pair] * p * f
        share = weight / weight.sum(axis=1, keepdims=True)
        residual = counts[pair, rank] * (clicked - p[rank] * guess) * f[np.arange(len(pair)), rank]
        scores += tally(pair * width + rank, residual, scores.size).reshape(scores.shape)
        for k in range(width):
            scores[:, k] -= tally(pair, residual * share[:, k], len(scores))
        size = counts[pair, rank] * relevance[pair] * weight.sum(axis=1) / exposure[pair].sum(axis=1)
        information += np.diag(size @ share) - (size[:, None] * share).T @ share
    inverse = np.linalg.pinv(information[1:, 1:])
    influence = scores.reshape(*drawn.relevance.shape, width).sum(axis=1)[:, 1:] @ inverse.T
    return Best(np.asarray((influence**2).sum(axis=0)), np.asarray(influence.sum(axis=0)))


def _odds_of_signature(drawn: Drawn) -> FloatArray:
    """Return the log odds that each pair is relevant given its ranks: a sum over rankers, fitted to the truth."""
    queries, rankers, pool = drawn.ranks.shape
    size = drawn.world.max_rank + 1
    ranked = np.zeros((queries * pool, rankers * size))
    for ranker in range(rankers):
        ranked[np.arange(queries * pool), ranker * size + drawn.ranks[:, ranker].ravel()] = 1
    truth, found = (drawn.relevance == 1).ravel(), np.zeros(rankers * size)
    for _ in range(_STEPS):
        chance = 1 / (1 + np.exp(-(ranked @ found)))
        gradient = ranked.T @ (truth - chance) + _EVEN * (0.5 - 1 / (1 + np.exp(-found)))
        slope = (ranked * (chance * (1 - chance))[:, None]).T @ ranked + _EVEN / 4 * np.eye(len(found))
        found = found + np.linalg.solve(slope, gradient)
    return np.asarray(ranked @ found)


def _promised(drawn: Drawn) -> FloatArray:
    """Return the views that traffic promises each pair at each rank."""
    queries, rankers, pool = drawn.ranks.shape
    shares = tally(drawn.ranker, drawn.impressions, rankers)
    # Beyond M at 0.
    exposure = np.zeros((queries * pool, drawn.world.max_rank + 1))
    for ranker in range(rankers):
        exposure[np.arange(queries * pool), drawn.ranks[:, ranker].ravel()] += shares[ranker] / shares.sum()
    return np.asarray(exposure[:, 1:] * np.repeat(drawn.views, pool)[:, None])


def _places(drawn: Drawn) -> IntArray:
    """Return pair and rank of each row as one number."""
    pair = drawn.query * drawn.ranks.shape[2] + drawn.candidate
    return np.asarray(pair * drawn.world.max_rank + drawn.rank - 1)


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
