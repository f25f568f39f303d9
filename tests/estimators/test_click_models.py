"""Click rates and click models: against slow versions, and biased exactly where they should be."""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pandas
import pytest

import posbias
from posbias.estimators import ESTIMATORS, PBMEM, NaiveCTR, RandomTraffic, RegressionEM, estimator_class
from posbias.estimators.click_models import ItemCounts, PBMLikelihood

# Whole worlds are drawn and fitted: minutes in all, which CI takes.
pytestmark = pytest.mark.long

pytest.importorskip("sklearn")

TRUTH = np.array([1, 0.6, 0.4, 0.3])
RIVALS = {name: estimator_class(name) for name in ESTIMATORS if "log" in estimator_class(name).fits_on}


@pytest.fixture(autouse=True)
def _one_thread():
    """Several threads on a busy machine wait for each other more than they work."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):
        yield


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def features_log(queries: int, seed: int = 0, *, curved: bool = False) -> pandas.DataFrame:
    """One ranker that shows better results first, each query once: relevance is told by `good`, nothing by `noise`."""
    rng = np.random.default_rng(seed)
    good = rng.normal(size=(queries, 8))
    relevance = 0.1 + 0.7 * (np.abs(good) > 1) if curved else sigmoid(1.5 * good - 0.5)
    order = np.argsort(-relevance - 0.3 * rng.normal(size=good.shape), axis=1)[:, : len(TRUTH)]
    good, relevance = (np.take_along_axis(x, order, axis=1) for x in (good, relevance))
    clicked = rng.random(relevance.shape) < TRUTH * relevance
    return pandas.DataFrame(
        {
            "query_id": np.repeat(np.arange(queries), len(TRUTH)),
            "doc_id": np.arange(clicked.size),
            "ranker": "a",
            "position": np.tile(np.arange(1, len(TRUTH) + 1), queries),
            "clicked": clicked.ravel(),
            "original_rank": np.tile(np.arange(1, len(TRUTH) + 1), queries),
            "good": good.ravel(),
            "noise": rng.normal(size=clicked.size),
        }
    )


def repeated_log(queries: int, repeats: int, seed: int = 0, noise: float = 0.3) -> pandas.DataFrame:
    """Queries of four documents in noisy orders, again and again; the better ones come first more often."""
    rng = np.random.default_rng(seed)
    relevance = rng.uniform(0.1, 0.8, size=(queries, 4))
    score = relevance[:, None, :] + noise * rng.normal(size=(queries, repeats, 4))
    order = np.argsort(-score, axis=2)
    shown = np.take_along_axis(np.broadcast_to(relevance[:, None, :], score.shape), order, axis=2)
    clicked = rng.random(shown.shape) < 0.9 * TRUTH * shown
    return pandas.DataFrame(
        {
            "query_id": np.repeat(np.arange(queries), repeats * 4),
            "doc_id": order.ravel(),
            "ranker": np.repeat(rng.choice(["a", "b"], size=queries * repeats), 4),
            "position": np.tile(np.arange(1, 5), queries * repeats),
            "clicked": clicked.ravel(),
            "good": shown.ravel(),
        }
    )


def made(kind: Any, **settings: Any) -> Any:
    """An estimator of any kind that is quick and has what it needs."""
    quick: dict[str, Any] = {"features": ["good"], "iterations": 3} if kind is RegressionEM else {}
    quick |= {"ranker": "a"} if kind is RandomTraffic else {}
    return kind(**({"max_rank": 4} | quick | settings))


def swap_log(queries: int = 300) -> pandas.DataFrame:
    """A log for every estimator: repeats in random order, features, and swaps of all kinds, whatever was clicked."""
    table = repeated_log(queries, 4, seed=1, noise=1000)
    table["view"] = np.arange(len(table)) // 4
    table["original_rank"] = table["position"]
    swap = np.random.default_rng(2).integers(0, 6, size=table["view"].max() + 1)[table["view"]]
    for i, (low, high) in enumerate([(1, 2), (2, 3), (3, 4), (1, 3), (1, 4)]):
        for here, there in ((low, high), (high, low)):
            table.loc[(swap == i) & (table["position"] == here), "original_rank"] = there
    return table


# ---- The contract of all that fit on a log


@pytest.mark.parametrize("kind", RIVALS.values())
class TestContract:
    def test_init_only_stores_and_repr_shows_it(self, kind):
        estimator = kind(max_rank=-3)
        assert estimator.parameters()["max_rank"] == -3
        assert repr(estimator) == f"{kind.__name__}(max_rank=-3)"
        with pytest.raises(posbias.EstimateError, match="max_rank"):
            estimator.fit(posbias.ClickLog(swap_log()))

    def test_fit_returns_self_and_fills_results(self, kind):
        estimator = made(kind)
        assert estimator.fit(posbias.ClickLog(swap_log())) is estimator
        assert estimator.propensity_.shape == (4,)
        assert estimator.interval_.shape == (4, 2)
        assert estimator.covariance_.shape == (4, 4)
        assert estimator.propensity_[0] == 1
        assert len(estimator.reasons_) == 4
        if "bootstrap" in estimator.parameters():
            known = ~np.isnan(estimator.interval_[:, 0])
            assert known[:2].all()
            assert np.all(estimator.interval_[known, 0] <= estimator.propensity_[known])
        else:
            assert np.isnan(estimator.interval_).all()
            assert "no interval" in str(estimator.summary())

    def test_the_curve_has_the_shape_of_all_curves(self, kind):
        curve = made(kind).fit(posbias.ClickLog(swap_log())).curve().to_dict()
        harvest = posbias.harvest(posbias.ClickLog(posbias.simulate(posbias.World(queries=100))))
        assert curve.keys() == posbias.AllPairs(interval=None).fit(harvest).curve().to_dict().keys()
        assert curve["estimator"] == kind.name
        assert curve["weighting"] is None
        assert [p["position"] for p in curve["positions"]] == [1, 2, 3, 4]
        table = swap_log()
        if kind is RandomTraffic:
            table = table[table["ranker"] == "a"]
        assert [p["impressions"] for p in curve["positions"]] == table.groupby("position").size().tolist()
        assert [p["clicks"] for p in curve["positions"]] == table.groupby("position")["clicked"].sum().tolist()
        assert curve["page_views"] == (table.groupby("ranker").size() // 4).to_dict()
        json.dumps(curve, allow_nan=False)

    def test_the_order_of_rows_does_not_matter(self, kind):
        table = swap_log()
        one, other = (made(kind).fit(posbias.ClickLog(t)) for t in (table, table.sample(frac=1, random_state=0)))
        np.testing.assert_array_equal(one.propensity_, other.propensity_)
        np.testing.assert_array_equal(one.interval_, other.interval_)

    def test_segments_are_what_they_would_be_alone(self, kind):
        table = swap_log()
        table["device"] = np.where(table["query_id"] % 2, "phone", None)
        fitted = made(kind).fit(posbias.ClickLog(table), by=["device"])
        assert list(fitted.segments_) == [(None,), ("phone",)]
        alone = made(kind).fit(posbias.ClickLog(table[table["device"] == "phone"]))
        np.testing.assert_allclose(fitted.segments_[("phone",)].propensity_, alone.propensity_)
        np.testing.assert_allclose(fitted.propensity_, made(kind).fit(posbias.ClickLog(table)).propensity_)
        assert fitted.curve().segments[("phone",)].page_views == alone.curve().page_views

    def test_only_a_log_fits(self, kind):
        with pytest.raises(posbias.EstimateError, match="fit takes a ClickLog, not a list"):
            made(kind).fit([1, 2, 3])

    def test_not_fitted(self, kind):
        with pytest.raises(posbias.EstimateError, match=r"not fitted yet: call fit\(log\)"):
            made(kind).summary()

    def test_no_click_at_all(self, kind):
        with pytest.raises(posbias.LogError, match="not a single click"):
            made(kind).fit(posbias.ClickLog(swap_log().assign(clicked=False)))

    def test_an_empty_log(self, kind):
        with pytest.raises(posbias.LogError, match="The log is empty"):
            made(kind).fit(posbias.ClickLog(swap_log().iloc[:0]))

    def test_rows_that_cannot_be_counted_are_refused(self, kind):
        table = swap_log()
        with pytest.raises(posbias.LogError, match="count from 0"):
            made(kind).fit(posbias.ClickLog(table.assign(position=table["position"] - 1)))
        with pytest.raises(posbias.LogError, match="no value in column 'query_id'"):
            made(kind).fit(posbias.ClickLog(table.assign(query_id=table["query_id"].where(table["view"] > 2))))
        with pytest.raises(posbias.LogError, match="'country' is not in the log"):
            made(kind).fit(posbias.ClickLog(table), by=["country"])

    def test_positions_that_never_occur_are_not_invented(self, kind):
        fitted = made(kind, max_rank=6).fit(posbias.ClickLog(swap_log()))
        assert np.isnan(fitted.propensity_[4:]).all()
        assert all(fitted.reasons_[4:])
        assert [p.position for p in fitted.summary().positions] == [1, 2, 3, 4]

    def test_plot_takes_and_returns_an_axes(self, kind):
        from matplotlib.figure import Figure

        ax = Figure().add_subplot()
        assert made(kind).fit(posbias.ClickLog(swap_log())).plot(ax) is ax


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (NaiveCTR(level=2), "level"),
        (NaiveCTR(bootstrap=-1), "bootstrap"),
        (PBMEM(iterations=0), "iterations"),
        (PBMEM(prior=-1), "prior"),
        (RegressionEM(["good"], iterations=0.5), "iterations"),
        (RegressionEM(["good"], sample=0), "sample"),
        (RegressionEM(["good"], model="forest"), "'logistic', 'boosted'"),
        (RegressionEM(), "needs features"),
        (RegressionEM("good"), "needs features"),
    ],
)
def test_bad_parameters_are_named(estimator, message):
    with pytest.raises(posbias.EstimateError, match=message):
        estimator.fit(posbias.ClickLog(swap_log()))


# ---- NaiveCTR


def test_naive_ctr_is_the_ratio_of_rates():
    table = repeated_log(200, 3)
    rate = table.groupby("position")["clicked"].mean()
    fitted = NaiveCTR(max_rank=4).fit(posbias.ClickLog(table))
    np.testing.assert_allclose(fitted.propensity_, rate / rate[1])
    assert fitted.propensity_[3] < TRUTH[3]


def test_naive_ctr_of_a_harvest_is_that_of_its_log():
    world = posbias.World(queries=500, segments={"phone": 1.6, "desk": 0.6})
    log = posbias.ClickLog(posbias.simulate(world))
    one = NaiveCTR(level=0.9).fit(log, by=["device"])
    other = NaiveCTR(level=0.9).fit(posbias.harvest(log, by=["device"]))
    for a, b in [(one, other), *((part, other.segments_[name]) for name, part in one.segments_.items())]:
        np.testing.assert_allclose(a.propensity_, b.propensity_)
        np.testing.assert_allclose(a.interval_, b.interval_)
        assert a.curve() == b.curve()
    assert len(one.segments_) == 2


def test_naive_ctr_resamples_whole_queries():
    """A log in which each query is there four times over knows no more than one in which it is there once."""
    table = repeated_log(400, 1).assign(query_id=lambda t: t["query_id"].astype(str))
    once, often = (NaiveCTR(max_rank=4).fit(posbias.ClickLog(pandas.concat([table] * n))) for n in (1, 4))
    np.testing.assert_allclose(once.interval_, often.interval_)


def test_naive_ctr_without_clicks_at_rank_one():
    table = repeated_log(50, 2)
    with pytest.raises(posbias.EstimateError, match="no click at rank 1"):
        NaiveCTR().fit(posbias.ClickLog(table.assign(clicked=table["clicked"] & (table["position"] > 1))))


# ---- PBMEM


def slow_em(rows: list[dict[str, Any]], M: int, iterations: int, prior: float, seed: int) -> tuple[list[float], float]:
    """EM of the position-based model row by row, Chuklin et al., section 4.3: p_k / p_1 and what EM has maximised."""
    pairs = sorted({(row["query_id"], row["doc_id"]) for row in rows})
    rng = np.random.default_rng(seed)
    p, r = ({key: rng.uniform(0.1, 0.9) for key in keys} for keys in (range(1, M + 1), pairs))
    for _ in range(iterations):
        examined: dict[Any, list[float]] = defaultdict(list)
        relevant: dict[Any, list[float]] = defaultdict(list)
        for row in rows:
            k, pair = row["position"], (row["query_id"], row["doc_id"])
            if row["clicked"]:
                e = a = 1.0
            else:
                e = p[k] * (1 - r[pair]) / (1 - p[k] * r[pair])
                a = r[pair] * (1 - p[k]) / (1 - p[k] * r[pair])
            examined[k].append(e)
            relevant[pair].append(a)
        p = {k: (sum(examined[k]) + prior) / (len(examined[k]) + 2 * prior) for k in p}
        r = {pair: (sum(relevant[pair]) + prior) / (len(relevant[pair]) + 2 * prior) for pair in r}
    chance = [(row["clicked"], p[row["position"]] * r[row["query_id"], row["doc_id"]]) for row in rows]
    likelihood = sum(math.log(c if y else 1 - c) for y, c in chance)
    likelihood += sum(prior * math.log(v * (1 - v)) for v in (*p.values(), *r.values()) if prior)
    return [p[k] / p[1] for k in p], likelihood


@pytest.mark.parametrize("prior", [0, 1, 2.5])
def test_pbm_em_is_the_limit_of_em_from_any_start(prior):
    table = repeated_log(12, 7)
    fitted = PBMEM(max_rank=4, prior=prior, interval=None)
    observed = fitted.observe(posbias.ClickLog(table))
    fitted.fit(observed)
    assert fitted.converged_
    shown = ItemCounts.of(observed.rows, 4)
    ours = PBMLikelihood.of(shown, observed.rows["bucket"][shown.first_row], prior)
    summit = ours.maximise(ours.start(), 200, 1e-6)
    highest = ours.at(summit.x, summit.relevance).value
    for seed in range(3):
        curve, likelihood = slow_em(table.to_dict("records"), 4, 1500, prior, seed)
        assert likelihood < highest + 1e-6
        np.testing.assert_allclose(fitted.propensity_, curve, rtol=1e-3)


@pytest.mark.parametrize("prior", [0, 1])
def test_pbm_em_has_intervals_from_full_fits(prior):
    observed = PBMEM(max_rank=4).observe(posbias.ClickLog(repeated_log(60, 40)))
    fitted = PBMEM(max_rank=4, prior=prior).fit(observed)
    bucket = observed.rows["bucket"]
    refits = []
    for left_out in np.unique(bucket):
        rest = {name: column[bucket != left_out] for name, column in observed.rows.items()}
        refits.append(PBMEM(max_rank=4, prior=prior, interval=None).fit(replace(observed, rows=rest)).propensity_)
    moved = np.log(np.array(refits) / fitted.propensity_)
    covariance = (len(refits) - 1) / len(refits) * moved.T @ moved
    np.testing.assert_allclose(fitted.covariance_, covariance, atol=0.02 * covariance.max())


@pytest.mark.parametrize("prior", [-1, float("nan"), float("inf"), 1e308, "a", None, True])
def test_a_prior_is_a_number_of_impressions(prior):
    with pytest.raises(posbias.EstimateError, match="prior must be a number of pseudo-impressions"):
        PBMEM(prior=prior).fit(posbias.ClickLog(repeated_log(20, 5)))


def test_pbm_em_that_is_stopped_says_so():
    log = posbias.ClickLog(repeated_log(50, 50))
    stopped = PBMEM(max_rank=4, iterations=1, interval=None).fit(log)
    assert (stopped.iterations_, stopped.converged_) == (1, False)
    assert PBMEM(max_rank=4, interval=None).fit(log).converged_


def test_pbm_em_of_very_many_pairs_has_no_interval(monkeypatch):
    monkeypatch.setattr("posbias.estimators.click_models._MAX_REFITTED_ROWS", 1000)
    fitted = PBMEM(max_rank=4).fit(posbias.ClickLog(repeated_log(50, 50)))
    assert np.isnan(fitted.interval_).all()
    assert fitted.reasons_[1].startswith("no interval: ")


def test_pbm_em_needs_many_repeats():
    """As many rows either way: few queries that recur often give the curve, many that recur twice do not."""

    def error(queries: int, repeats: int) -> float:
        fitted = PBMEM(max_rank=4).fit(posbias.ClickLog(repeated_log(queries, repeats)))
        return float(np.max(np.abs(fitted.propensity_ - TRUTH)))

    assert error(20, 4000) < 0.05
    assert error(40_000, 2) > 0.1


def test_pbm_em_learns_nothing_from_pairs_at_one_rank():
    table = features_log(500)
    with pytest.raises(posbias.EstimateError, match="each clicked and shown at two ranks"):
        PBMEM(max_rank=4).fit(posbias.ClickLog(pandas.concat([table] * 3)))


def test_pbm_em_gives_no_number_to_ranks_that_are_not_connected():
    rows = [(1, 1, 60), (1, 2, 30), (2, 3, 40), (2, 4, 20)]
    table = pandas.DataFrame(
        {"query_id": 0, "doc_id": doc, "ranker": "a", "position": k, "impressions": 100, "clicks": c}
        for doc, k, c in rows
    )
    fitted = PBMEM(max_rank=5, prior=0, iterations=5000, tolerance=1e-9).fit(posbias.ClickLog(table))
    np.testing.assert_allclose(fitted.propensity_, [1, 0.5, np.nan, np.nan, np.nan], rtol=1e-6)
    assert "connects it to rank 1" in fitted.reasons_[2]
    assert fitted.reasons_[4] == "no result was shown at rank 5"
    table.loc[table["position"] == 2, "clicks"] = 0
    fitted = PBMEM(max_rank=5, prior=0).fit(posbias.ClickLog(table))
    assert fitted.propensity_[1] == 0
    assert fitted.reasons_[1] == "no click at rank 2: the estimate is 0, without an interval"


def test_pbm_em_needs_documents():
    table = repeated_log(20, 3)
    table["doc_id"] = table["doc_id"].where(table["position"] > 1)
    with pytest.raises(posbias.LogError, match="no value in column 'doc_id'"):
        PBMEM().fit(posbias.ClickLog(table))


# ---- RegressionEM


def test_regression_em_recovers_the_curve_from_features_that_tell_relevance():
    fitted = RegressionEM(["good", "noise"], max_rank=4).fit(posbias.ClickLog(features_log(30_000)))
    np.testing.assert_allclose(fitted.propensity_, TRUTH, rtol=0.07)


def test_regression_em_is_biased_where_features_tell_nothing():
    """The model then gives every result the same relevance, and the curve is that of click rates."""
    log = posbias.ClickLog(features_log(30_000))
    naive = NaiveCTR(max_rank=4, interval=None).fit(log).propensity_
    fitted = RegressionEM(["noise"], max_rank=4).fit(log)
    np.testing.assert_allclose(fitted.propensity_, naive, rtol=0.02)
    assert np.all(fitted.propensity_[1:] < 0.85 * TRUTH[1:])


def test_regression_em_is_biased_where_the_model_is_misspecified():
    """Relevance is in |good|: a line does not see it, trees do."""
    log = posbias.ClickLog(features_log(10_000, curved=True))
    line = RegressionEM(["good"], max_rank=4).fit(log)
    trees = RegressionEM(["good"], max_rank=4, model="boosted", iterations=60).fit(log)
    assert np.all(line.propensity_[1:] < 0.9 * TRUTH[1:])
    np.testing.assert_allclose(trees.propensity_, TRUTH, rtol=0.1)


def test_regression_em_with_a_feature_for_each_document_is_pbm_em():
    """Then both fit one relevance a document, and with a million impressions sampled labels are as good as shares."""
    rng = np.random.default_rng(0)
    relevance = [0.2, 0.35, 0.5, 0.65, 0.8]
    table = pandas.DataFrame(
        {"query_id": 0, "doc_id": d, "ranker": "a", "position": k + 1, "impressions": 200_000}
        | {f"is_{i}": int(i == d) for i in range(5)}
        for d in range(5)
        for k in range(4)
    )
    chance = 0.9 * TRUTH[table["position"] - 1] * np.array(relevance)[table["doc_id"]]
    table["clicks"] = rng.binomial(table["impressions"], chance)
    log = posbias.ClickLog(table)
    names = [f"is_{i}" for i in range(5)]
    one = RegressionEM(names, max_rank=4, iterations=400, tolerance=0).fit(log)
    other = PBMEM(max_rank=4, prior=0).fit(log)
    np.testing.assert_allclose(one.propensity_, other.propensity_, atol=5e-3)


def test_regression_em_is_decided_by_its_seed():
    log = posbias.ClickLog(features_log(500))
    one, same, other = (RegressionEM(["good"], max_rank=4, iterations=5, seed=s).fit(log) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.propensity_, same.propensity_)
    assert not np.array_equal(one.propensity_, other.propensity_)
    assert one.iterations_ == 5


def test_regression_em_converges_or_says_that_it_did_not():
    log = posbias.ClickLog(features_log(5000))
    fitted = RegressionEM(["good"], max_rank=4, tolerance=0.05).fit(log)
    assert fitted.converged_
    assert fitted.iterations_ < 100
    assert not RegressionEM(["good"], max_rank=4, iterations=3).fit(log).converged_


def test_regression_em_may_fit_the_model_to_a_sample():
    fitted = RegressionEM(["good"], max_rank=4, sample=5000).fit(posbias.ClickLog(features_log(20_000)))
    np.testing.assert_allclose(fitted.propensity_, TRUTH, rtol=0.15)


def test_regression_em_takes_any_classifier():
    from sklearn.linear_model import LogisticRegression

    log = posbias.ClickLog(features_log(2000))
    own = LogisticRegression(C=100.0)
    fitted = RegressionEM(["good"], max_rank=4, model=own, iterations=5).fit(log)
    known = RegressionEM(["good"], max_rank=4, iterations=5).fit(log)
    np.testing.assert_allclose(fitted.propensity_, known.propensity_, rtol=1e-2)
    assert not hasattr(own, "coef_")
    assert fitted.model_.coef_.shape == (1, 1)


def test_regression_em_says_which_feature_will_not_do():
    table = features_log(200).assign(text="x", flag=lambda t: t["good"] > 0)
    log = posbias.ClickLog(table)
    with pytest.raises(posbias.LogError, match=r"'goood' is not in the log. Did you mean 'good'"):
        RegressionEM(["goood"]).fit(log)
    with pytest.raises(posbias.LogError, match="'text' is of type VARCHAR"):
        RegressionEM(["good", "text"]).fit(log)
    RegressionEM(["flag"], iterations=2).fit(log)
    holes = posbias.ClickLog(table.assign(good=table["good"].where(table["position"] > 1)))
    with pytest.raises(posbias.EstimateError, match="'good' has no finite value in 1 of 601 distinct"):
        RegressionEM(["good"]).fit(holes)
    RegressionEM(["good"], model="boosted", iterations=2).fit(holes)


def test_regression_em_says_how_to_install_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(posbias.PosbiasError, match=r"pip install .*\[learn\]'"):
        RegressionEM(["good"]).fit(posbias.ClickLog(features_log(10)))


# ---- Command line


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a log and its harvest."""
    monkeypatch.chdir(tmp_path)
    table = swap_log().drop(columns="view")
    table.rename(columns={"original_rank": "was"}).to_parquet("renamed.parquet")
    table.to_parquet("log.parquet")
    posbias.harvest(posbias.ClickLog("log.parquet")).save("harvest.parquet")
    return tmp_path


def run(*words: str) -> Any:
    from click.testing import CliRunner

    from posbias.cli import cli

    return CliRunner().invoke(cli, ["estimate", *words])


@pytest.mark.parametrize("name", RIVALS)
def test_every_estimator_answers_from_the_command_line(name, folder):
    given = {"regression-em": {"features": ["good"], "seed": 3}, "pbm-em": {}}
    settings = given.get(name, {"interval": "bootstrap", "bootstrap": 20, "level": 0.8})
    words = [str(word) for key, value in settings.items() for word in (f"--{key}", value)]
    words = ["--feature", "good", "--seed", "3"] if name == "regression-em" else words
    words += ["--random", "a"] if name == "random-traffic" else []
    done = run("log.parquet", "--estimator", name, "--max-rank", "4", "--json", *words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["estimator"] == name
    settings |= {"ranker": "a"} if name == "random-traffic" else {}
    fitted = RIVALS[name](max_rank=4, **settings).fit(posbias.ClickLog("log.parquet"))
    assert found == fitted.curve().to_dict()


def test_original_names_the_column_of_the_rank_before_the_swap(folder):
    asked = ["--estimator", "swap-one", "--max-rank", "4", "--interval", "none"]
    done = run("renamed.parquet", "--original", "was", *asked)
    assert done.stdout.splitlines()[1:] == run("log.parquet", *asked).stdout.splitlines()[1:]
    assert done.stdout.startswith("swap-one, no interval")
    missing = run("renamed.parquet", *asked)
    assert missing.exit_code == 2
    assert "--original COLUMN" in missing.stderr


def test_by_segments_from_the_command_line(folder):
    done = run("log.parquet", "--estimator", "naive-ctr", "--by", "ranker", "--json", "--interval", "none")
    assert [part["segment"]["ranker"] for part in json.loads(done.stdout)["segments"]] == ["a", "b"]


@pytest.mark.parametrize("name", RIVALS)
def test_a_harvest_has_no_rows_to_look_at(name, folder):
    done = run("harvest.parquet", "--estimator", name, *(["--random", "a"] if name == "random-traffic" else []))
    if name in ("naive-ctr", "random-traffic"):
        assert done.exit_code == 0, done.output
    else:
        assert done.exit_code == 2
        assert f"{name} needs the rows of a log" in done.stderr


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("all-pairs", ["--feature", "good"]),
        ("swap-one", ["--weighting", "traffic"]),
        ("naive-ctr", ["--non-functional", "share"]),
        ("pbm-em", ["--feature", "good"]),
        ("cross-fit", ["--weighting", "traffic"]),
        ("cross-fit", ["--prior", "0"]),
        ("regression-em", ["--joint"]),
        ("regression-em", ["--level", "0.9"]),
    ],
)
def test_flags_that_an_estimator_has_no_use_for_are_refused(name, flags, folder):
    done = run("log.parquet", "--estimator", name, *flags)
    assert done.exit_code == 2
    assert f"{name} does not use {flags[0]}" in done.stderr


def test_missing_convergence_is_noted(folder):
    done = run("log.parquet", "--estimator", "regression-em", "--feature", "good", "--max-rank", "4")
    assert done.stdout.startswith("regression-em, no interval")
    assert "Note: regression-em did not converge in 100 iterations." in done.stderr
    assert run("log.parquet", "--estimator", "pbm-em", "--max-rank", "4").stderr == ""
