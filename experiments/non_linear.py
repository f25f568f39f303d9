"""Generated judgments of non-linear relevance, on which boosted trees learn what no linear ranker can."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from experiments.judgments import Judgments
from posbias.errors import PosbiasError

_FEATURES = 20
_FEWEST, _MOST = 12, 28  # candidates of a query
_GRADE_SHARES = (0.45, 0.25, 0.15, 0.10, 0.05)
_SHARED_IN_QUERY = 0.2  # of a feature's variance
# The variance of each part of relevance. A linear ranker sees the first, in which it is right, and no other.
_LINEAR, _BUMPS, _PRODUCTS, _NOISE = 1.0, 1.0, 0.7, 0.15
_BUMP_WIDTH = 0.7

_Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Taste:
    """What makes a document relevant: how much of each feature, which value of it, which two together."""

    slopes: _Floats
    tops: _Floats
    heights: _Floats
    pairs: npt.NDArray[np.int64]
    products: _Floats


def generate_non_linear_judgments(queries: int = 4_000, *, seed: int = 0) -> Judgments:
    """Generate judgments whose relevance is known from 20 features, but not by a linear ranker.

    A document is relevant by three parts of about equal variance: a sum of features, a value of each feature that is
    best (neither too cheap nor too dear), and products of two. Little of it is noise, so that what keeps a ranker
    that learns from clicks from being perfect is the bias of the clicks. `generate_judgments` is the opposite: there
    a linear ranker is about as good as any, and most of what is not linear differs from query to query.

    Example:
        >>> judgments = generate_non_linear_judgments(500, seed=1)
        >>> judgments
        <Judgments of 500 queries and 10,062 documents, grades 0 to 4, 20 features>
    """
    if queries < 1:
        raise PosbiasError(f"queries must be 1 or more, found {queries}")
    # What holds for all queries comes first, so that a small set and a large one of the same seed are of one kind.
    rng = np.random.default_rng(seed)
    taste = _draw_taste(rng)
    sizes = rng.integers(_FEWEST, _MOST + 1, queries)
    query_of = np.repeat(np.arange(queries), sizes)
    values = np.sqrt(1 - _SHARED_IN_QUERY) * rng.standard_normal((len(query_of), _FEATURES))
    values += np.sqrt(_SHARED_IN_QUERY) * rng.standard_normal((queries, _FEATURES))[query_of]
    score = _score(values, taste) + np.sqrt(_NOISE) * rng.standard_normal(len(query_of))
    bounds = np.quantile(score, np.cumsum(_GRADE_SHARES)[:-1])
    grades = np.searchsorted(bounds, score, side="right").astype(np.int8)
    from scipy.special import ndtr

    return Judgments(np.concatenate([[0], np.cumsum(sizes)]), grades, ndtr(values).astype(np.float32))


def _draw_taste(rng: np.random.Generator) -> _Taste:
    half = _FEATURES // 2
    return _Taste(
        slopes=rng.standard_normal(_FEATURES).astype(np.float32),
        tops=rng.uniform(-1, 1, half).astype(np.float32),
        heights=rng.uniform(0.5, 1.5, half).astype(np.float32),
        pairs=rng.permutation(_FEATURES)[: 2 * (half // 2)].reshape(2, -1),
        products=rng.uniform(0.5, 1.5, half // 2).astype(np.float32),
    )


def _score(values: npt.NDArray[np.float64], taste: _Taste) -> npt.NDArray[np.float64]:
    """Relevance without noise: parts of the variances above."""
    half = len(taste.tops)
    linear = values @ taste.slopes
    bumps = np.exp(-((values[:, :half] - taste.tops) ** 2) / (2 * _BUMP_WIDTH**2)) @ taste.heights
    products = (values[:, taste.pairs[0]] * values[:, taste.pairs[1]]) @ taste.products
    parts = ((linear, _LINEAR), (bumps, _BUMPS), (products, _PRODUCTS))
    return np.asarray(sum(np.sqrt(variance) * part / part.std() for part, variance in parts))
