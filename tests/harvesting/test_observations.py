"""Test `Observations`: counted once, checked, and fitted without the log."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest

import posbias
from posbias.estimators import PBMEM, LogEstimator, NaiveCTR, RandomTraffic, RegressionEM, SwapAdjacent, SwapOne
from posbias.harvesting.observations import Observations, observe_features, observe_pairs, observe_swaps, observe_totals


def table_of(queries: int = 200, seed: int = 0) -> pandas.DataFrame:
    """Pages of four results in random order, each swapped with its neighbour now and then, on two devices."""
    rng = np.random.default_rng(seed)
    views = 5 * queries
    original = np.tile(np.arange(1, 5), (views, 1))
    for k in (0, 1, 2):
        page = np.flatnonzero(rng.integers(0, 6, views) == k)
        original[page, k], original[page, k + 1] = original[page, k + 1], original[page, k]
    good = rng.normal(size=(queries, 4))
    query = np.repeat(np.arange(queries), 5)
    order = rng.permuted(np.tile(np.arange(4), (views, 1)), axis=1)
    doc = np.take_along_axis(order, original - 1, axis=1)
    seen = np.take_along_axis(good[query], doc, axis=1)
    clicked = rng.random(seen.shape) < 1 / (1 + np.exp(-seen)) / np.arange(1, 5)
    return pandas.DataFrame(
        {
            "query_id": np.repeat(query, 4),
            "doc_id": doc.ravel() + 1,
            "ranker": np.repeat(rng.choice(["a", "b"], views), 4),
            "position": np.tile(np.arange(1, 5), views),
            "original_rank": original.ravel(),
            "clicked": clicked.ravel(),
            "good": seen.ravel(),
            "device": np.where(np.repeat(query, 4) % 3 > 0, "phone", None),
        }
    )


@pytest.fixture(scope="module")
def table() -> pandas.DataFrame:
    return table_of()


@pytest.fixture(scope="module")
def log(table) -> posbias.ClickLog:
    return posbias.ClickLog(table)


def estimators() -> list[LogEstimator]:
    regression = RegressionEM(["good"], max_rank=4, iterations=3)
    simple = [kind(max_rank=4) for kind in (SwapOne, SwapAdjacent, NaiveCTR, PBMEM)]
    return [*simple, RandomTraffic("a", max_rank=4), regression]


each = pytest.mark.parametrize("estimator", estimators(), ids=lambda estimator: estimator.name)


def again(estimator: LogEstimator, **other: Any) -> LogEstimator:
    return type(estimator)(**(estimator.parameters() | other))


@each
def test_fit_on_observations_equals_fit_on_the_log(estimator, log):
    observed = estimator.observe(log, by=["device"])
    assert isinstance(observed, Observations)
    assert (observed.kind, observed.max_rank, observed.rankers) == (estimator.needs, 4, ("a", "b"))
    assert (observed.by, observed.segments) == (("device",), ((None,), ("phone",)))
    one, other = again(estimator).fit(log, by=["device"]), again(estimator).fit(observed)
    for a, b in [(one, other), *((one.segments_[name], other.segments_[name]) for name in [(None,), ("phone",)])]:
        np.testing.assert_array_equal(a.propensity_, b.propensity_)
        np.testing.assert_array_equal(a.interval_, b.interval_)
        assert a.curve() == b.curve()


@each
def test_observations_have_their_own_max_rank(estimator, log):
    observed = again(estimator, max_rank=3).observe(log)
    assert len(again(estimator, max_rank=10).fit(observed).propensity_) == 3


@each
def test_observations_of_another_kind_are_rejected(estimator, log):
    for other in estimators():
        if other.needs != estimator.needs:
            said = rf"needs observations of {estimator.needs}, not of {other.needs}.*\.observe\(log\)"
            with pytest.raises(posbias.EstimateError, match=said):
                again(estimator).fit(other.observe(log))


def test_observations_of_other_features_are_rejected(table):
    log = posbias.ClickLog(table.assign(more=1.0))
    for features in (["more"], ["more", "good"], ["good", "more"]):
        with pytest.raises(posbias.EstimateError, match="have other features"):
            RegressionEM(["good"], max_rank=4).fit(observe_features(log, features, max_rank=4))
    RegressionEM(("good",), max_rank=4, iterations=2).fit(observe_features(log, ["good"], max_rank=4))


@each
def test_segments_are_chosen_when_observing(estimator, log):
    with pytest.raises(posbias.EstimateError, match="already have segments, by"):
        again(estimator).fit(estimator.observe(log), by=["device"])


def test_counts_agree_with_the_log(table, log):
    expected = table.groupby(["ranker", "position"])["clicked"].agg(["size", "sum"]).to_numpy().T.reshape(2, 2, 4)
    for observed in (
        observe_totals(log, max_rank=4),
        observe_pairs(log, max_rank=4, by=["device"]),
        observe_features(log, ["good"], max_rank=4),
        observe_swaps(log, max_rank=4),
    ):
        np.testing.assert_array_equal(observed.counts, expected)
        assert observed.rows["clicks"].sum() == observed.clicks.sum() == table["clicked"].sum()
        assert observed.page_views == (table.groupby("ranker").size() // 4).to_dict()
        assert list(observed.impressions) == [1000] * 4


def test_segment_has_the_counts_of_its_rows(table, log):
    whole = observe_pairs(log, max_rank=4, by=["device"])
    alone = observe_pairs(posbias.ClickLog(table[table["device"] == "phone"]), max_rank=4)
    part = whole.segment("phone")
    np.testing.assert_array_equal(part.counts, alone.counts)
    assert part.segments == ((),)
    assert len(part.rows["item"]) == len(alone.rows["item"])
    with pytest.raises(posbias.HarvestError, match="There is no segment"):
        whole.segment("tablet")


def test_invalid_observations_are_rejected(table, log):
    with pytest.raises(posbias.LogError, match="max_rank must be a whole number from 2"):
        observe_totals(log, max_rank=1)
    with pytest.raises(posbias.LogError, match="'device' is of type VARCHAR"):
        observe_features(log, ["good", "device"])
    with pytest.raises(posbias.LogError, match="'original_rank' is not in the log"):
        observe_swaps(posbias.ClickLog(table.drop(columns="original_rank")))
    with pytest.raises(posbias.LogError, match="no value in column 'doc_id'"):
        observe_pairs(posbias.ClickLog(table.assign(doc_id=table["doc_id"].where(table["position"] > 1))))
    with pytest.raises(posbias.LogError, match="1,000 of 4,000 rows of the log cannot be used"):
        observe_totals(posbias.ClickLog(table.assign(query_id=table["query_id"].where(table["position"] > 1))))
