"""Test the experiment "learning": simulated clicks, training labels, learners, rules and verdicts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from experiments import learning_trial as gains
from experiments import learning_trial as learners
from experiments.judgments import Judgments, generate_judgments, generate_non_linear_judgments
from experiments.learning import (
    WRONG,
    LearningResults,
    curve_lines,
    curve_rows,
    judge_results,
    result_lines,
    result_rows,
)
from experiments.learning_trial import CAP, Clicked, Served, draw_clicks, floored
from experiments.ranking_svm import rank_documents, rank_scores
from posbias import ClickLog, CrossFit, harvest
from posbias.errors import PosbiasError

CURVE = np.array([1.0, 0.5, 0.25])


@pytest.fixture(scope="module")
def site() -> gains.Site:
    return gains.open_site(generate_non_linear_judgments(460, seed=3), 200, seed=0)


@pytest.fixture(scope="module")
def clicked(site: gains.Site) -> Clicked:
    return draw_clicks(site.training, site.rankings, site.user(1.0), 16, seed=1)


# --- judgments ----------------------------------------------------------------------------------------------


def test_non_linear_judgments_depend_only_on_the_seed() -> None:
    one, again, other = (generate_non_linear_judgments(300, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.features, again.features)
    np.testing.assert_array_equal(one.grades, again.grades)
    assert one.features.shape != other.features.shape or not np.array_equal(one.features, other.features)
    np.testing.assert_allclose(np.bincount(one.grades) / one.documents, [0.45, 0.25, 0.15, 0.1, 0.05], atol=0.01)
    assert (one.features >= 0).all()
    assert (one.features <= 1).all()
    with pytest.raises(PosbiasError, match="queries must be 1 or more"):
        generate_non_linear_judgments(0)


def test_trees_beat_linear_rankers_on_non_linear_judgments(site: gains.Site) -> None:
    found = gains.learn_from_labels(site, [80])
    assert found["LightGBM", "full labels"] > found["linear", "full labels"] + 0.04
    assert found["XGBoost", "full labels"] > found["linear", "full labels"] + 0.04


def test_rank_scores_agrees_with_rank_documents() -> None:
    judgments = generate_judgments(100)
    weights = np.random.default_rng(0).standard_normal(128)
    scores = judgments.features @ weights.astype(np.float32)
    np.testing.assert_array_equal(rank_scores(judgments, scores), rank_documents(judgments, weights))


# --- clicks and labels --------------------------------------------------------------------------------------


def test_weights_and_exposure_match_a_calculation_by_hand() -> None:
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


def test_a_ranker_without_views_shows_nothing() -> None:
    judgments = Judgments(np.array([0, 1]), np.array([0], np.int8), np.zeros((1, 1), np.float32))
    clicked = Clicked(judgments, {"a": Served(np.array([1]), np.array([0]), np.array([0]))}, 1)
    assert not clicked.shown.any()


def test_ranks_without_estimate_take_that_of_the_rank_above() -> None:
    assert floored(np.array([1, np.nan, np.nan, 0.5, 0.0])).tolist() == [1, 1, 1, 0.5, 1 / CAP]


def test_simulated_clicks_follow_the_position_based_model(site: gains.Site) -> None:
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


# --- learners -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", learners.LEARNERS)
def test_every_learner_learns_with_both_losses(name: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((400, 3), dtype=np.float32)
    groups = np.full(40, 10)
    rate = np.exp(3 * x[:, 0] - 2 * x[:, 1])
    exposure = rng.uniform(0.5, 3, 400)
    held_out = rng.random((200, 3), dtype=np.float32)
    for lesson in (
        learners.softmax_lesson(x, rate, groups),
        learners.poisson_lesson(x, rng.poisson(20 * rate * exposure).astype(float), exposure),
    ):
        (scores,) = learners.LEARNERS[name](lesson, [held_out], [10, 60])
        assert scores.shape == (2, 200)
        assert np.corrcoef(scores[-1], 3 * held_out[:, 0] - 2 * held_out[:, 1])[0, 1] > 0.9


@pytest.mark.parametrize("learn", [learners.learn_lightgbm, learners.learn_xgboost])
def test_one_fit_gives_scores_for_every_number_of_trees(
    learn: gains.Learner, clicked: Clicked, site: gains.Site
) -> None:
    lesson = gains.ips_lesson(clicked, site.user(1.0).propensity(gains.RANKS))
    rows = site.held_out.features[:300]
    (together,) = learn(lesson, [rows], [5, 12])
    for number, trees in enumerate((5, 12)):
        (alone,) = learn(lesson, [rows], [trees])
        # Where a learner adds a constant to all, it moves no document.
        np.testing.assert_allclose(np.diff(together[number]), np.diff(alone[0]), atol=1e-5)


def test_built_in_corrections_get_pages_in_the_order_shown(
    clicked: Clicked, site: gains.Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = {}

    def positions(features, clicks, ranks, groups, held_out, trees):  # type: ignore[no-untyped-def]
        seen.update(features=features, clicks=clicks, ranks=ranks, groups=groups)
        return [np.zeros((1, len(held_out[0])))]

    monkeypatch.setattr(gains, "learn_positions", positions)
    gains.learn_built_in(clicked, "position", site.held_out.features, [1])
    assert seen["groups"].sum() == len(seen["ranks"]) == sum(one.shown.sum() for one in clicked.served.values())
    ends = np.cumsum(seen["groups"])
    assert all((np.diff(page) > 0).all() and page[0] == 1 for page in np.split(seen["ranks"], ends[:-1]))
    assert seen["clicks"].sum() == clicked.clicks.sum()
    a = clicked.served["a"]
    top = np.flatnonzero((a.ranks == 1) & (site.training.query_of == site.training.query_of[a.shown][0]))[0]
    np.testing.assert_array_equal(seen["features"][0], site.training.features[top])


def test_each_query_of_a_site_has_one_use(site: gains.Site) -> None:
    judgments = generate_non_linear_judgments(460, seed=3)
    assert site.training.queries == site.held_out.queries == 200
    rows = {row.tobytes() for row in site.training.features}
    assert not rows & {row.tobytes() for row in site.held_out.features}
    assert 0.4 < site.production < 0.9
    with pytest.raises(PosbiasError, match="There are 99 queries"):
        gains.open_site(judgments.take(np.arange(99)), 200, seed=0)


def test_sparse_features_are_made_dense() -> None:
    judgments = generate_non_linear_judgments(120)
    sparse = Judgments(judgments.offsets, judgments.grades, csr_array(judgments.features))
    one, other = (gains.open_site(each, 50, seed=0) for each in (judgments, sparse))
    np.testing.assert_array_equal(one.training.features, other.training.features)


def test_learn_from_clicks_uses_every_rule(site: gains.Site) -> None:
    found = gains.learn_from_clicks(site, 1.0, 16, [3, 6], seed=0)
    corrected = {"IPS", "Poisson", "cautious"}
    rules = {"naive", "blend"} | corrected
    true = {(learner, f"{rule}, true p") for learner in ("linear", "LightGBM") for rule in corrected}
    own = {("LightGBM", "position"), ("LightGBM", "chosen"), ("XGBoost", "lambdarank_unbiased")}
    assert set(found) == {(learner, rule) for learner in learners.LEARNERS for rule in rules} | true | own
    either = np.stack([found["LightGBM", "IPS"], found["LightGBM", "Poisson"]])
    assert (either == found["LightGBM", "chosen"]).any(axis=0).all()
    again = gains.learn_from_clicks(site, 1.0, 16, [3, 6], seed=0)
    assert all(np.array_equal(found[name], again[name]) for name in found)


# --- verdicts -----------------------------------------------------------------------------------------------


def results(seeds: int = 8, **gain: float) -> LearningResults:
    """Return results with nDCG 0.7 without correction and the given gains, for all learners and settings."""
    rules = {
        "naive": 0.0,
        "IPS": 0.03,
        "Poisson": 0.02,
        "blend": 0.03,
        "cautious": 0.03,
        "chosen": 0.02,
        "lambdarank_unbiased": 0.01,
    } | gain
    off = {"cautious": gain.get("cautious_off", 0.0), "IPS": gain.get("ips_off", 0.0), "Poisson": 0.0}
    rules |= {f"{rule}, true p": rules[rule] - less for rule, less in off.items()}
    noise = 1e-4 * np.random.default_rng(0).standard_normal((2, 2, 2, seeds))
    ndcg = {
        (learner, rule): 0.7 + value + noise for learner in ("LightGBM", "XGBoost") for rule, value in rules.items()
    }
    return LearningResults((0.5, 1.0), (1, 16), (40, 80), ndcg)


@pytest.mark.parametrize(
    ("gain", "fails"),
    [
        ({}, ""),
        ({"cautious_off": 0.004}, "with cautious, nDCG with estimated propensities"),
        ({"ips_off": -0.004}, "with IPS and Poisson, nDCG with estimated propensities"),
        ({"IPS": 0.012, "Poisson": 0.012, "cautious": 0.012, "lambdarank_unbiased": 0.0}, "cautious blend gains"),
        ({"lambdarank_unbiased": 0.025}, "better than XGBoost"),
        ({"IPS": 0.05}, "cautious blend keeps"),
        ({"chosen": -0.01}, "by cross-validation"),
    ],
)
def test_verdicts_fail_where_they_should(gain: dict[str, float], fails: str) -> None:
    for verdict in judge_results("here", results(**gain)):
        assert verdict.holds == (not fails or fails not in verdict.claim), verdict


def test_verdict_fails_if_correction_does_harm() -> None:
    verdicts = {v.claim: v.holds for v in judge_results("here", results(cautious=-0.004))}
    assert [holds for claim, holds in verdicts.items() if "cautious blend is never worse" in claim] == [False]


def test_few_seeds_leave_claims_undecided() -> None:
    assert {verdict.holds for verdict in judge_results("here", results(seeds=2))} == {None}
    assert {verdict.holds for verdict in judge_results("here", results(seeds=1))} == {None}


def test_rows_have_every_setting_and_the_table_one_number_of_trees() -> None:
    made = results()
    rows = list(result_rows("here", made))
    assert len(rows) == len(made.ndcg) * 2 * 2 * 2
    ips = [row for row in rows if row["rule"] == "IPS"]
    assert all(abs(row["gain"] - 0.03) < 1e-9 and abs(row["ndcg"] - 0.73) < 1e-3 for row in ips)
    lines = list(result_lines("here", made, 40))
    assert "XGBoost | IPS | +30 / +30 | +30 / +30" in lines


def test_loss_from_a_wrong_curve_is_relative_to_the_true_one() -> None:
    logs = [
        {
            1.0: {
                (rule, label): 0.8 - 0.01 * place
                for rule in ("IPS", "Poisson", "cautious")
                for place, label in enumerate(WRONG)
            }
        }
    ] * 3
    rows = curve_rows(logs, [1.0])
    lost = {row["curve"]: row["against_true"] for row in rows if row["rule"] == "IPS"}
    assert lost["the true curve"] == 0
    assert lost["no correction"] == pytest.approx(0.04)
    assert any("no correction | +40.0 | +40.0 | +40.0" in line for line in curve_lines(rows))


def test_wrong_curves_match_their_names() -> None:
    p, rng = np.array([1.0, 0.5, 0.25]), np.random.default_rng(0)
    assert WRONG["no correction"](p, rng).tolist() == [1, 1, 1]
    assert WRONG["η twice too high"](p, rng).tolist() == [1, 0.25, 0.0625]
    off = np.log([WRONG["each rank off by 20%"](p, rng) / p for _ in range(2000)])
    assert (off[:, 0] == 0).all()
    assert off[:, 1:].std() == pytest.approx(0.2, rel=0.1)
