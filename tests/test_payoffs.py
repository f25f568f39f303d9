"""What rankers gain from corrected clicks: clicks drawn, labels made of them, rankers learned and chosen, verdicts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from posbias import ClickLog, CrossFit, harvest
from posbias.errors import PosbiasError
from posbias.objectives import ips_dcg, ips_dcg_gain
from posbias.reproduction import curve_errors, gains, learners
from posbias.reproduction.clicked import CAP, Clicked, Served, draw_clicks, floored
from posbias.reproduction.payoffs import Payoffs, judge_payoffs, payoff_lines, payoff_rows
from posbias.simulation import (
    Judgments,
    PositionBased,
    generate_judgments,
    generate_non_linear_judgments,
    ndcg,
    rank_documents,
    rank_scores,
)

CURVE = np.array([1.0, 0.5, 0.25])


@pytest.fixture(scope="module")
def site() -> gains.Site:
    return gains.open_site(generate_non_linear_judgments(460, seed=3), 200, seed=0)


@pytest.fixture(scope="module")
def clicked(site: gains.Site) -> Clicked:
    return draw_clicks(site.training, site.rankings, site.user(1.0), 16, seed=1)


# --- judgments ----------------------------------------------------------------------------------------------


def test_non_linear_judgments_are_of_one_kind_for_one_seed() -> None:
    one, again, other = (generate_non_linear_judgments(300, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.features, again.features)
    np.testing.assert_array_equal(one.grades, again.grades)
    assert one.features.shape != other.features.shape or not np.array_equal(one.features, other.features)
    np.testing.assert_allclose(np.bincount(one.grades) / one.documents, [0.45, 0.25, 0.15, 0.1, 0.05], atol=0.01)
    assert (one.features >= 0).all()
    assert (one.features <= 1).all()
    with pytest.raises(PosbiasError, match="queries must be 1 or more"):
        generate_non_linear_judgments(0)


def test_trees_learn_what_no_linear_ranker_can_on_non_linear_judgments(site: gains.Site) -> None:
    found = gains.learn_from_labels(site, [80])
    assert found["LightGBM", "full labels"] > found["linear", "full labels"] + 0.04
    assert found["XGBoost", "full labels"] > found["linear", "full labels"] + 0.04


def test_scores_rank_as_linear_weights_do() -> None:
    judgments = generate_judgments(100)
    weights = np.random.default_rng(0).standard_normal(128)
    scores = judgments.features @ weights.astype(np.float32)
    np.testing.assert_array_equal(rank_scores(judgments, scores), rank_documents(judgments, weights))


# --- clicks and labels --------------------------------------------------------------------------------------


def test_weights_and_exposure_by_hand() -> None:
    # One query, four documents: "a" served it 3 times and "b" once; the last document was never shown.
    judgments = Judgments(np.array([0, 4]), np.array([0, 1, 2, 0], np.int8), np.zeros((4, 1), np.float32))
    served = {
        "a": Served(np.array([1, 2, 3, 0]), np.full(4, 3), np.array([2, 1, 0, 0])),
        "b": Served(np.array([0, 1, 2, 0]), np.full(4, 1), np.array([0, 1, 1, 0])),
    }
    clicked = Clicked(judgments, served, 3)
    assert clicked.shown.tolist() == [True, True, True, False]
    assert clicked.clicks.tolist() == [2, 2, 1, 0]
    assert clicked.weights(CURVE).tolist() == [2, 2 + 1, 2, 0]
    assert clicked.weights(np.ones(3)).tolist() == clicked.clicks.tolist()
    assert clicked.exposure(CURVE).tolist() == [3 + 0.25, 3 * 0.5 + 1, 3 * 0.25 + 0.5, 4 * 0.25]
    # The cap holds for both.
    assert clicked.weights(np.array([1, 1e-9, 1])).tolist() == [2, CAP + 1, CAP, 0]


def test_a_ranker_that_served_nothing_showed_nothing() -> None:
    judgments = Judgments(np.array([0, 1]), np.array([0], np.int8), np.zeros((1, 1), np.float32))
    clicked = Clicked(judgments, {"a": Served(np.array([1]), np.array([0]), np.array([0]))}, 1)
    assert not clicked.shown.any()


def test_ranks_without_a_number_are_taken_for_the_one_above() -> None:
    assert floored(np.array([1, np.nan, np.nan, 0.5, 0.0])).tolist() == [1, 1, 1, 0.5, 1 / CAP]


def test_clicks_drawn_at_once_are_those_of_the_model(site: gains.Site) -> None:
    user = site.user(1.0)
    clicked = draw_clicks(site.training, site.rankings, user, 2_000, seed=2)
    p = np.concatenate([[0], user.propensity(gains.RANKS)])
    for one in clicked.served.values():
        expected = one.views * p[one.ranks] * user.attractiveness(site.training.grades)
        assert (one.clicks[one.ranks == 0] == 0).all()
        off = (one.clicks - expected)[one.ranks > 0] / np.sqrt(np.maximum(expected[one.ranks > 0], 1))
        assert abs(off.mean()) < 0.1
        assert off.std() < 1.1
    assert (sum(one.views for one in clicked.served.values()) == 2_000).all()


def test_the_curve_is_estimated_from_the_log_itself(site: gains.Site) -> None:
    user = site.user(1.0)
    clicked = draw_clicks(site.training, site.rankings, user, 100, seed=3)
    fitted = CrossFit().fit(harvest(ClickLog(clicked.to_log()), max_rank=gains.RANKS))
    np.testing.assert_allclose(clicked.estimate(), fitted.propensity_)
    low, high = fitted.interval_[1:].T
    truth = user.propensity(gains.RANKS)[1:]
    assert ((low < truth) & (truth < high)).mean() > 0.6
    np.testing.assert_allclose(clicked.estimate(), user.propensity(gains.RANKS), rtol=0.25)


# --- choosing -----------------------------------------------------------------------------------------------


def slow_dcg(scores: list[float], weights: list[float], groups: list[int]) -> float:
    """Straight from the definition; a tie is broken in all ways."""
    found, start = 0.0, 0
    for size in groups:
        s, w = scores[start : start + size], weights[start : start + size]
        for i in range(size):
            above, alike = sum(o > s[i] for o in s), sum(o == s[i] for o in s)
            found += w[i] * sum(1 / math.log2(2 + above + place) for place in range(alike)) / alike
        start += size
    return found / sum(weights)


def test_ips_dcg_is_its_definition() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        groups = rng.integers(1, 7, rng.integers(1, 6))
        scores = rng.integers(0, 4, groups.sum()).astype(float)
        weights = np.where(rng.random(groups.sum()) < 0.5, rng.random(groups.sum()), 0)
        weights[0] = 1
        expected = slow_dcg(scores.tolist(), weights.tolist(), groups.tolist())
        assert ips_dcg(scores, weights, groups) == pytest.approx(expected)
        assert ips_dcg(scores, 7 * weights, groups) == pytest.approx(expected)
        gain, _ = ips_dcg_gain(scores, -scores, weights, groups)
        assert gain == pytest.approx(expected - slow_dcg((-scores).tolist(), weights.tolist(), groups.tolist()))


def test_the_error_of_a_gain_is_that_of_logs_drawn_again() -> None:
    rng = np.random.default_rng(0)
    groups = np.full(300, 5)
    found = []
    for _ in range(200):
        weights, one, other = rng.exponential(size=1500), rng.random(1500), rng.random(1500)
        found.append(ips_dcg_gain(one, other, weights, groups))
    spread, errors = np.std([gain for gain, _ in found]), np.mean([error for _, error in found])
    assert errors == pytest.approx(spread, rel=0.15)


def test_nothing_is_chosen_by_no_clicks() -> None:
    for wrong in (lambda: ips_dcg([1.0], [0.0], [1]), lambda: ips_dcg_gain([1.0], [0.0], [0.0], [1])):
        with pytest.raises(PosbiasError, match="No row was clicked"):
            wrong()
    with pytest.raises(PosbiasError, match="groups must be the sizes"):
        ips_dcg([1.0, 2.0], [1.0, 0.0], [3])
    # One query has no spread to tell by.
    assert ips_dcg_gain([1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [2])[1] == math.inf
