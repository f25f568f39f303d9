"""Test Ranking SVMs: samples of queries, training, rankings, and their similarity and quality."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from scipy.sparse import csr_array

from experiments.judgments import Judgments, generate_judgments
from experiments.ranking_svm import ndcg, rank_documents, same_rank_share, sample_queries, train_ranker
from posbias.errors import PosbiasError

# Whole worlds are drawn and fitted: minutes in all, which CI takes.
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def judgments() -> Judgments:
    return generate_judgments(6_000)


# --- samples ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frac", "overlap"), [(0.02, 0.8), (0.02, 0.01), (0.1, 0.99), (0.5, 0.5), (1, 1), (0.5, 0), (1e-9, 0)]
)
def test_samples_have_the_requested_size_and_overlap(judgments: Judgments, frac: float, overlap: float) -> None:
    one, two = sample_queries(judgments, frac, overlap, seed=3)
    size = max(1, round(frac * judgments.queries))
    assert len(one) == len(two) == len(set(one)) == len(set(two)) == size
    assert len(set(one) & set(two)) == round(overlap * size)
    assert set(one) | set(two) <= set(range(judgments.queries))
    np.testing.assert_array_equal(one, sample_queries(judgments, frac, overlap, seed=3)[0])
    if frac < 1e-3 or frac == 1:
        return
    assert one.tolist() != sample_queries(judgments, frac, overlap, seed=4)[0].tolist()


@pytest.mark.parametrize(("frac", "overlap"), [(0, 0.5), (1.1, 1), (0.1, -0.1), (0.1, 1.1), (math.nan, 0.5)])
def test_invalid_samples_are_rejected(judgments: Judgments, frac: float, overlap: float) -> None:
    with pytest.raises(PosbiasError, match="frac must be"):
        sample_queries(judgments, frac, overlap)


def test_too_large_samples_are_rejected_with_the_largest_possible_size(judgments: Judgments) -> None:
    with pytest.raises(PosbiasError, match=r"frac can be 0\.833 at most"):
        sample_queries(judgments, 0.9, 0.8)


# --- training -----------------------------------------------------------------------------------------------


def test_more_training_data_makes_a_better_ranker(judgments: Judgments) -> None:
    # 200 queries are 1% of the full-size set. On all of that: 0.688 (1%), 0.696 (2%), 0.708 (10%), 0.710 (all).
    held_out = judgments.take(np.arange(3_000, 6_000))

    def quality(ids: np.ndarray) -> float:
        return ndcg(held_out, rank_documents(held_out, train_ranker(judgments, ids)))

    small = [quality(np.arange(start, start + 200)) for start in (0, 1_000, 2_000)]
    large = quality(np.arange(3_000))
    unranked = ndcg(held_out, rank_documents(held_out, np.zeros(128)))
    assert unranked + 0.1 < min(small)
    assert max(small) + 0.01 < large < 0.85
    assert np.mean(small) + 0.015 < large


def test_rankers_with_more_common_training_queries_are_more_similar(judgments: Judgments) -> None:
    alike = []
    for overlap in (0.01, 0.8, 0.99, 1):
        samples = sample_queries(judgments, 400 / judgments.queries, overlap, seed=1)
        alike.append(same_rank_share(*(rank_documents(judgments, train_ranker(judgments, ids)) for ids in samples)))
    assert 0.15 < alike[0] < alike[1] - 0.1
    assert alike[1] < alike[2] - 0.1
    assert alike[3] == 1


def test_a_perfect_linear_order_is_learned() -> None:
    rng = np.random.default_rng(0)
    features = rng.random((600, 5), dtype=np.float32)
    truth = np.array([3.0, -2.0, 1.0, 0.0, 0.0])
    score = features @ truth
    grades = np.digitize(score, np.quantile(score, [0.3, 0.6, 0.8, 0.95])).astype(np.int8)
    judgments = Judgments(np.arange(0, 601, 20), grades, features * np.float32([1, 100, 1, 1e-3, 0]))
    weights = train_ranker(judgments, np.arange(30), C=1)
    assert weights[4] == 0
    assert ndcg(judgments, rank_documents(judgments, weights)) > 0.98


def test_sparse_and_dense_features_train_the_same_ranker(judgments: Judgments) -> None:
    dense = judgments.take(np.arange(100))
    dense = Judgments(dense.offsets, dense.grades, np.where(dense.features > 0.7, dense.features, 0))
    features = csr_array(dense.features)
    # As wide as scipy makes them for a large file.
    features.indices, features.indptr = features.indices.astype(np.int64), features.indptr.astype(np.int64)
    sparse = Judgments(dense.offsets, dense.grades, features)
    one, two = (train_ranker(each, np.arange(100)) for each in (dense, sparse))
    np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-4)
    np.testing.assert_array_equal(rank_documents(dense, one), rank_documents(sparse, one))


def test_training_is_deterministic_and_bounded_in_pairs(judgments: Judgments) -> None:
    ids = np.arange(50)
    np.testing.assert_array_equal(train_ranker(judgments, ids), train_ranker(judgments, ids))
    assert not np.array_equal(train_ranker(judgments, ids), train_ranker(judgments, ids, seed=1))
    assert train_ranker(judgments, ids, max_pairs=50).shape == (128,)


def test_one_pair_is_enough_and_none_is_an_error() -> None:
    judgments = Judgments(np.array([0, 2, 4]), np.array([1, 0, 2, 2], np.int8), np.eye(4, dtype=np.float32))
    weights = train_ranker(judgments, np.array([0]))
    assert weights[0] > weights[1]
    for ids in ([1], []):
        with pytest.raises(PosbiasError, match="has documents of different grades"):
            train_ranker(judgments, np.array(ids))


def test_without_scikit_learn_the_error_says_what_to_install(
    judgments: Judgments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.svm", None)
    with pytest.raises(PosbiasError, match=r"pip install .*\[learn\]'"):
        train_ranker(judgments, np.arange(10))


# --- rankings and their measures ----------------------------------------------------------------------------


def test_rankings_are_sorted_by_score_and_ties_by_row(judgments: Judgments) -> None:
    some = judgments.take(np.arange(300))
    weights = np.random.default_rng(0).standard_normal(128)
    scores = some.features @ weights.astype(np.float32)
    ranking = rank_documents(some, weights, max_rank=21)
    assert ranking.shape == (300, 21)
    for query in range(300):
        start, end = some.offsets[query : query + 2]
        expected = sorted(range(end - start), key=lambda d: (-scores[start + d], d))[:21]
        assert ranking[query].tolist() == expected + [-1] * (21 - len(expected))
    tied = rank_documents(some, np.zeros(128), max_rank=5)
    assert tied[:, 0].tolist() == [0] * 300
    assert set(map(tuple, tied)) == {tuple(i if i < n else -1 for i in range(5)) for n in some.sizes}


def test_same_rank_share_averages_over_queries() -> None:
    one = np.array([[0, 1, 2, 3], [0, -1, -1, -1], [-1, -1, -1, -1]])
    two = np.array([[0, 2, 1, 3], [0, -1, -1, -1], [-1, -1, -1, -1]])
    three = np.array([[1, 0, 2, 3], [0, -1, -1, -1], [-1, -1, -1, -1]])
    assert same_rank_share(one, one) == 1
    assert same_rank_share(one, two) == (0.5 + 1) / 2
    assert same_rank_share(one, two, three) == (0.25 + 1) / 2


def test_ndcg_matches_a_calculation_by_hand() -> None:
    grades = np.array([0, 3, 1, 0, 0], np.int8)
    judgments = Judgments(np.array([0, 3, 5, 5]), grades, np.zeros((5, 1), np.float32))
    ranking = np.array([[2, 1, 0], [0, 1, -1], [-1, -1, -1]])
    # The second query has nothing to find and the third no candidates: neither counts.
    found = (1 + 7 / math.log2(3)) / (7 + 1 / math.log2(3))
    assert ndcg(judgments, ranking) == pytest.approx(found)
    assert ndcg(judgments, ranking, k=1) == pytest.approx(1 / 7)
