"""Ranking SVMs: train linear rankers on samples of queries, rank documents, and measure and adjust their similarity."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from experiments.judgments import Judgments
from posbias._arrays import FloatArray, IntArray
from posbias._optional import optional
from posbias.errors import PosbiasError

# Pairs of one query are redundant, and without a limit a few long queries would dominate.
_PAIRS_PER_QUERY = 20
_MAX_PAIRS = 200_000
_STEPS = 12


def train_ranker(
    judgments: Judgments, query_ids: IntArray, *, C: float = 0.003, max_pairs: int = _MAX_PAIRS, seed: int = 0
) -> FloatArray:
    """Train a linear Ranking SVM: hinge loss on pairs of documents of one query with different grades.

    Arguments:
        judgments: the queries, documents and grades.
        query_ids: the training queries.
        C: the weight of the loss of each pair against the norm of the weights (for features scaled to variance 1; the
            returned weights are for unscaled features).
        max_pairs: the maximum number of training pairs, equally many from each query. The choice depends only on the
            query and the seed, so that rankers with common queries have common pairs.
        seed: the random seed of the choice of pairs.

    Returns:
        One weight for each feature; the score of a document is `features @ weights`.

    Example:
        >>> from experiments.judgments import generate_judgments
        >>> judgments = generate_judgments(300)
        >>> weights = train_ranker(judgments, np.arange(100))
        >>> weights.shape, ndcg(judgments, rank_documents(judgments, weights)) > 0.6
        ((128,), True)

    Reference: Joachims, Optimizing Search Engines using Clickthrough Data, KDD 2002.
    """
    svm, exceptions = (optional(f"sklearn.{module}", "Ranking SVMs need") for module in ("svm", "exceptions"))
    query_ids = np.asarray(query_ids, dtype=np.int64)
    better, worse = _draw_pairs(judgments, query_ids, max_pairs, seed)
    pairs = judgments.features[better] - judgments.features[worse]
    scale = np.sqrt(_mean_square(pairs))
    # A feature that never differs within a query gets weight 0.
    inverse = np.divide(1, scale, out=np.zeros_like(scale), where=scale > 0)
    # liblinear needs two classes: reverse every second pair.
    labels = np.where(np.arange(len(better)) % 2, 1.0, -1.0)
    model = svm.LinearSVC(C=C, loss="hinge", dual=True, fit_intercept=False, tol=1e-2, max_iter=300, random_state=0)
    with warnings.catch_warnings():
        # The last digits of the weights do not change rankings.
        warnings.simplefilter("ignore", exceptions.ConvergenceWarning)
        model.fit(_scaled(pairs, labels, inverse), labels)
    return cast(FloatArray, model.coef_[0] * inverse)


def rank_documents(judgments: Judgments, weights: FloatArray, max_rank: int = 10) -> IntArray:
    """Rank the candidates of every query by a linear ranker.

    Returns:
        One row for each query: the index (from 0) of the candidate at ranks 1 to `max_rank`, and -1 if there are fewer
        candidates. Ties keep the order of the data.

    Example:
        >>> features = np.array([[0.1], [0.9], [0.5]], dtype=np.float32)
        >>> judgments = Judgments(np.array([0, 2, 3]), np.array([0, 1, 0], np.int8), features)
        >>> rank_documents(judgments, np.array([1.0]), max_rank=2).tolist()
        [[1, 0], [0, -1]]
    """
    return rank_scores(judgments, np.asarray(judgments.features @ np.asarray(weights, dtype=np.float32)), max_rank)


def _draw_pairs(judgments: Judgments, query_ids: IntArray, max_pairs: int, seed: int) -> tuple[IntArray, IntArray]:
    """Return the rows of the better and the worse document of each pair."""
    most = min(_PAIRS_PER_QUERY, max(1, max_pairs // max(1, len(query_ids))))
    drawn: list[IntArray] = []
    for query in query_ids.tolist():
        start, end = judgments.offsets[query : query + 2]
        grades = judgments.grades[start:end]
        pairs = np.argwhere(grades[:, None] > grades)
        if len(pairs) > most:
            pairs = pairs[np.random.default_rng((seed, query)).choice(len(pairs), most, replace=False)]
        drawn.append(pairs + start)
    pairs = np.concatenate(drawn) if drawn else np.empty((0, 2), dtype=np.int64)
    if not len(pairs):
        raise PosbiasError(
            f"None of the {len(query_ids)} training queries has documents of different grades, so there is nothing "
            "to learn from: train on more queries"
        )
    # liblinear needs two classes, so a single pair is used twice.
    pairs = np.repeat(pairs, 2, axis=0) if len(pairs) == 1 else pairs
    return pairs[:, 0], pairs[:, 1]


def _mean_square(pairs: Any) -> FloatArray:
    if isinstance(pairs, np.ndarray):
        return cast(FloatArray, np.einsum("ij,ij->j", pairs, pairs, dtype=np.float64) / len(pairs))
    return np.asarray(pairs.power(2).mean(axis=0), dtype=np.float64).ravel()


def _scaled(pairs: Any, signs: FloatArray, factors: FloatArray) -> Any:
    if isinstance(pairs, np.ndarray):
        return pairs * signs[:, None] * factors
    from scipy.sparse import diags_array

    scaled = (diags_array(signs) @ pairs @ diags_array(factors)).tocsr()
    # liblinear accepts only 32-bit indices, but SciPy uses 64 bits for large files.
    scaled.indices, scaled.indptr = scaled.indices.astype(np.int32), scaled.indptr.astype(np.int32)
    return scaled


def rank_scores(judgments: Judgments, scores: npt.NDArray[Any], max_rank: int = 10) -> IntArray:
    """Rank the candidates of every query by the scores of documents, like `rank_documents`.

    Example:
        >>> judgments = Judgments(np.array([0, 2, 3]), np.array([0, 1, 0], np.int8), np.zeros((3, 1), np.float32))
        >>> rank_scores(judgments, np.array([0.1, 0.9, 0.5]), max_rank=2).tolist()
        [[1, 0], [0, -1]]
    """
    # lexsort is stable: ties keep the order of the data.
    order = np.lexsort((-scores.astype(np.float64), judgments.query_of))
    rank = np.arange(judgments.documents) - judgments.offsets[judgments.query_of]
    top = np.full((judgments.queries, max_rank), -1, dtype=np.int64)
    kept = rank < max_rank
    query = judgments.query_of[kept]
    top[query, rank[kept]] = order[kept] - judgments.offsets[query]
    return top


def sample_queries(judgments: Judgments, frac: float, overlap: float, seed: int = 0) -> tuple[IntArray, IntArray]:
    """Draw the training queries of two rankers.

    Arguments:
        judgments: the queries to sample from.
        frac: the share of all queries that each ranker is trained on.
        overlap: the share of the training queries of each ranker that both have in common.
        seed: the random seed. The first sample does not depend on the overlap.

    Example:
        >>> from experiments.judgments import generate_judgments
        >>> one, two = sample_queries(generate_judgments(1000), frac=0.02, overlap=0.8)
        >>> len(one), len(two), len(set(one) & set(two))
        (20, 20, 16)

    Reference: Agarwal et al., WSDM 2019, section "Robustness Analysis".
    """
    if not (0 < frac <= 1 and 0 <= overlap <= 1):
        raise PosbiasError(f"frac must be above 0, and both it and overlap at most 1, found {frac!r} and {overlap!r}")
    size = max(1, round(frac * judgments.queries))
    shared = round(overlap * size)
    if 2 * size - shared > judgments.queries:
        raise PosbiasError(
            f"Two samples of {size:,} queries of which {shared:,} are shared need {2 * size - shared:,} queries, and "
            f"there are {judgments.queries:,}: with overlap={overlap} frac can be {1 / (2 - overlap):.3g} at most"
        )
    order = np.random.default_rng(seed).permutation(judgments.queries)
    return order[:size], order[size - shared : 2 * size - shared]


def ndcg(judgments: Judgments, ranking: IntArray, k: int = 10) -> float:
    """Return NDCG@k of a ranking with gains 2^grade - 1, averaged over queries with a grade above 0.

    Example:
        >>> judgments = Judgments(np.array([0, 2]), np.array([0, 3], np.int8), np.zeros((2, 1), np.float32))
        >>> ndcg(judgments, np.array([[1, 0]])), ndcg(judgments, np.array([[0, 1]])).__round__(3)
        (1.0, 0.631)
    """
    found = _discounted_gain(judgments, ranking[:, :k])
    best = _discounted_gain(judgments, rank_scores(judgments, judgments.grades, k))
    return float((found[best > 0] / best[best > 0]).mean())


def _discounted_gain(judgments: Judgments, ranking: IntArray) -> FloatArray:
    rows = judgments.offsets[:-1, None] + np.maximum(ranking, 0)
    # The row of a last query without candidates would be out of range.
    grades = judgments.grades[np.minimum(rows, judgments.documents - 1)]
    gains = np.where(ranking >= 0, 2.0**grades - 1, 0)
    return cast(FloatArray, gains @ (1 / np.log2(np.arange(2, ranking.shape[1] + 2))))


def make_rankers_agree(rankings: Sequence[IntArray], share: float, seed: int) -> list[IntArray]:
    """Make rankers agree on random queries until they have `share` of the documents at the same rank.

    Rankers that are already more similar are returned unchanged.
    """
    queries, alike = len(rankings[0]), same_rank_share(*rankings)
    agreed = max(0.0, (share - alike) / (1 - alike)) if alike < 1 else 0.0
    chosen = np.zeros(queries, dtype=np.bool_)
    chosen[np.random.default_rng(seed).permutation(queries)[: round(agreed * queries)]] = True
    return [np.where(chosen[:, None], rankings[0], ranking) for ranking in rankings]


def same_rank_share(*rankings: IntArray) -> float:
    """Return the similarity of rankers: the share of ranks with the same document in all, averaged over queries.

    This is the similarity at the top of figure (b) of the paper.

    Example:
        >>> same_rank_share(np.array([[0, 1, 2], [1, 0, -1]]), np.array([[0, 2, 1], [1, 0, -1]])).__round__(3)
        0.667
    """
    first = rankings[0]
    shown = first >= 0
    same = np.logical_and.reduce([first == other for other in rankings]) & shown
    counts = shown.sum(axis=1)
    return float((same.sum(axis=1)[counts > 0] / counts[counts > 0]).mean())


def cautious_ranker(
    judgments: Judgments, production: FloatArray, new: FloatArray, *, identical: float, reordered: float
) -> tuple[IntArray, IntArray]:
    """Return the top 5 of a production ranker, and of a new ranker that differs only slightly.

    The new ranker blends in other weights. Within the top 5, the blend reorders a share `reordered` of the queries.
    Then the document at rank 6 replaces that at rank 5 in further queries, until only a share `identical` is unchanged.
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
    # Replace first where the production ranker loses least and the new one gains most.
    priority = (other[sixth] - other[fifth]) / np.maximum(own[fifth] - own[sixth], 1e-9)
    priority[changed] = -np.inf
    wanted = round((1 - identical) * len(top)) - int(changed.sum())
    replaced = np.argsort(-priority, kind="stable")[: max(0, wanted)]
    made[replaced, 4] = top[replaced, 5]
    return top[:, :5], made


def _scores(judgments: Judgments, weights: FloatArray) -> FloatArray:
    scores = np.asarray(judgments.features @ weights, dtype=np.float64)
    return np.asarray(scores / scores.std())


def _rank(judgments: Judgments, scores: FloatArray, max_rank: int) -> IntArray:
    """Rank by arbitrary scores, used as a single feature."""
    single = Judgments(judgments.offsets, judgments.grades, scores[:, None].astype(np.float32))
    return rank_documents(single, np.ones(1), max_rank)


def _bisect(measure: Callable[[float], float], wanted: float) -> float:
    """Return where in 0..1 an increasing function has the wanted value."""
    low, high = 0.0, 1.0
    if measure(low) >= wanted:
        return low
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if measure(middle) < wanted else (low, middle)
    return (low + high) / 2
