"""Generated judgments: built-in data of the shape of Yahoo's set 1, which may not be redistributed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from experiments.judgments import Judgments
from posbias.errors import PosbiasError

# Yahoo LTR set 1, training part: 19,944 queries with 473,134 documents, 1 to 139 each.
YAHOO_QUERIES = 19_944
_MEDIAN_CANDIDATES, _SPREAD, _MOST_CANDIDATES = 19.2, 0.65, 139
_GRADE_SHARES = (0.26, 0.36, 0.28, 0.08, 0.02)

# What makes trained rankers find it as hard as real data; `tests/test_rankers.py` holds the result.
_FEATURES, _TRAITS = 128, 40
_USED_TRAITS = 0.1  # share of the traits that one feature mixes
_FEATURE_NOISE = 1.0
_SHARED_IN_QUERY = 0.3  # of a trait's variance: candidates of one query are alike
_NON_LINEAR, _NOISE, _QUERY_EFFECT, _QUERY_TASTE = 0.8, 0.4, 0.5, 1.2  # beside a linear part of 1

_Floats = npt.NDArray[np.float32]


def generate_judgments(queries: int = YAHOO_QUERIES, *, seed: int = 0) -> Judgments:
    """Generate judgments with the shape of Yahoo LTR set 1.

    About 24 candidates a query with a heavy tail, grades 0 to 4 in Yahoo's shares, and 128 features between 0 and 1,
    uniform as Yahoo's quantiles are. Hidden traits of a document show in its features with noise, and make its
    relevance in part linearly, in part by a taste of each query, and by a hundredth by products of two: no ranker is
    perfect, a linear one is as good as any, and one trained on few queries is clearly worse than one trained on all.
    `generate_non_linear_judgments` has more for others to learn.

    Example:
        >>> judgments = generate_judgments(500, seed=1)
        >>> judgments
        <Judgments of 500 queries and 11,... documents, grades 0 to 4, 128 features>
        >>> (np.bincount(judgments.grades) / judgments.documents).round(2).tolist()
        [0.26, 0.36, 0.28, 0.08, 0.02]
    """
    if queries < 1:
        raise PosbiasError(f"queries must be 1 or more, found {queries}")
    # What holds for all queries comes first, so that a small set and a large one of the same seed are of one kind.
    rng = np.random.default_rng(seed)
    loadings = _draw_loadings(rng)
    tastes = _draw_tastes(rng)
    sizes = np.rint(rng.lognormal(np.log(_MEDIAN_CANDIDATES), _SPREAD, queries)).astype(np.int64)
    sizes = np.clip(sizes, 1, _MOST_CANDIDATES)
    query_of = np.repeat(np.arange(queries), sizes)

    traits = _normal(rng, len(query_of), _TRAITS)
    traits *= np.float32(np.sqrt(1 - _SHARED_IN_QUERY))
    traits += np.float32(np.sqrt(_SHARED_IN_QUERY)) * _normal(rng, queries, _TRAITS)[query_of]

    half = _TRAITS // 2
    score = traits @ tastes
    # What matters differs from query to query, so that what is learnt depends on how many queries were seen.
    own = _normal(rng, queries, _TRAITS) * np.float32(_QUERY_TASTE / np.sqrt(_TRAITS))
    score += np.einsum("ij,ij->i", traits, own[query_of])
    # Products of two traits: of mean 0 whatever the other, so that no linear ranker sees them.
    score += np.float32(_NON_LINEAR) * (traits[:, :half] * traits[:, half:]) @ np.abs(tastes[:half] * tastes[half:])
    score += np.float32(_NOISE) * rng.standard_normal(len(query_of), dtype=np.float32)
    score += np.float32(_QUERY_EFFECT) * rng.standard_normal(queries, dtype=np.float32)[query_of]
    bounds = np.quantile(score, np.cumsum(_GRADE_SHARES)[:-1])
    grades = np.searchsorted(bounds, score, side="right").astype(np.int8)
    return Judgments(np.concatenate([[0], np.cumsum(sizes)]), grades, _show(traits, loadings, rng))


def _draw_loadings(rng: np.random.Generator) -> _Floats:
    """How each feature mixes a few traits, with a variance of 1; some mix none and are noise."""
    loadings = _normal(rng, _TRAITS, _FEATURES)
    loadings *= rng.random(loadings.shape) < _USED_TRAITS
    norms = np.sqrt((loadings**2).sum(axis=0))
    return np.asarray(loadings / np.where(norms > 0, norms, 1), dtype=np.float32)


def _draw_tastes(rng: np.random.Generator) -> _Floats:
    """How much each trait matters: a few a lot, most a little, as the features of real data do."""
    tastes = rng.standard_normal(_TRAITS) * rng.permutation(np.exp(-np.arange(_TRAITS) / (_TRAITS / 3)))
    return np.asarray(tastes / np.linalg.norm(tastes), dtype=np.float32)


def _show(traits: _Floats, loadings: _Floats, rng: np.random.Generator) -> _Floats:
    """The features by which a document shows its traits, as quantiles: a normal's own distribution function."""
    from scipy.special import ndtr

    features = traits @ loadings
    features += np.float32(_FEATURE_NOISE) * _normal(rng, *features.shape)
    features /= np.sqrt((loadings**2).sum(axis=0) + np.float32(_FEATURE_NOISE**2))
    return np.asarray(ndtr(features, out=features), dtype=np.float32)


def _normal(rng: np.random.Generator, *shape: int) -> _Floats:
    return rng.standard_normal(shape, dtype=np.float32)
