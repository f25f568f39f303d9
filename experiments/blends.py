"""Rankers made to be as alike as those of the paper's real services: trained ones that are made to agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from experiments.judgments import Judgments
from experiments.ranking_svm import rank_documents, same_rank_share
from posbias._arrays import FloatArray, IntArray

_STEPS = 12


def agreeing(rankings: Sequence[IntArray], share: float, seed: int) -> list[IntArray]:
    """Let rankers agree on some queries, so many that all have `share` of the documents at the same rank.

    Rankers that are more alike from the start are returned as they are.
    """
    queries, alike = len(rankings[0]), same_rank_share(*rankings)
    agreed = max(0.0, (share - alike) / (1 - alike)) if alike < 1 else 0.0
    chosen = np.zeros(queries, dtype=np.bool_)
    chosen[np.random.default_rng(seed).permutation(queries)[: round(agreed * queries)]] = True
    return [np.where(chosen[:, None], rankings[0], ranking) for ranking in rankings]


def cautious_ranker(
    judgments: Judgments, production: FloatArray, new: FloatArray, *, identical: float, reordered: float
) -> tuple[IntArray, IntArray]:
    """Return the top 5 of a production ranker, and of a new one that departs from it only here and there.

    The new ranker blends in other weights. Within the top 5 it goes so far that a share `reordered` of the queries gets
    another order. At the edge it goes further, and brings rank 6 to rank 5, until a share `identical` is as it was.
    """
    own, other = (_scores(judgments, weights) for weights in (production, new))
    top = _rank(judgments, own, 6)
    inside = np.zeros(judgments.documents, dtype=np.bool_)
    inside[judgments.offsets[:-1, None] + top[:, :5]] = True

    def reorder(t: float) -> IntArray:
        return _rank(judgments, np.where(inside, own + t * (other - own), -np.inf), 5)

    t = _bisect(lambda t: float((reorder(t) != top[:, :5]).any(axis=1).mean()), reordered)
    made = reorder(t)
    changed = (made != top[:, :5]).any(axis=1)

    fifth, sixth = (judgments.offsets[:-1] + top[:, place] for place in (4, 5))
    # The blend prefers rank 6 the sooner, the less it loses by the one ranker and the more it gains by the other.
    wish = (other[sixth] - other[fifth]) / np.maximum(own[fifth] - own[sixth], 1e-9)
    wish[changed] = -np.inf
    wanted = round((1 - identical) * len(top)) - int(changed.sum())
    replaced = np.argsort(-wish, kind="stable")[: max(0, wanted)]
    made[replaced, 4] = top[replaced, 5]
    return top[:, :5], made


def _scores(judgments: Judgments, weights: FloatArray) -> FloatArray:
    scores = np.asarray(judgments.features @ weights, dtype=np.float64)
    return np.asarray(scores / scores.std())


def _rank(judgments: Judgments, scores: FloatArray, max_rank: int) -> IntArray:
    """Rank by scores that no linear ranker gives: by a single feature that holds them."""
    single = Judgments(judgments.offsets, judgments.grades, scores[:, None].astype(np.float32))
    return rank_documents(single, np.ones(1), max_rank)


def _bisect(measure: Callable[[float], float], wanted: float) -> float:
    """Return where in 0..1 a rising measure has the value wanted."""
    low, high = 0.0, 1.0
    if measure(low) >= wanted:
        return low
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if measure(middle) < wanted else (low, middle)
    return (low + high) / 2
