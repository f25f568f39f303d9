"""Test intervals that cluster by query and by unit, against refits of logs without the rows of one bucket."""

from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import posbias
from posbias._stats import t_quantile
from posbias.estimators.base import Jackknife, UnitJackknives
from posbias.judging.diagnostics import unit_split_test
from tests.support.users import with_users

HARVEST_ESTIMATORS = [posbias.CrossFit, posbias.AllPairs, posbias.PivotOne, posbias.AdjacentChain]


# Where ranks are known, and in replay.
BOTH_WAYS = pytest.mark.parametrize("ranks", [None, "none"], ids=["wide", "replay"])


def fit(estimator: Any, log: pa.Table, ranks: str | None = None, **options: Any) -> Any:
    return estimator(**options).fit(posbias.harvest(posbias.ClickLog(log, unit=None, ranks=ranks), max_rank=4))


def buckets(log: pa.Table, column: str) -> np.ndarray[Any, Any]:
    """The bucket of each row by a column, which is part of the format of a harvest."""
    return duckdb.sql(f"SELECT hash({column}::BIGINT) & 255 AS b FROM log").fetchnumpy()["b"].astype(np.int64)


def variance(estimator: Any, log: pa.Table, bucket: np.ndarray[Any, Any], ranks: str | None) -> tuple[Any, Any]:
    """The jackknife variance of log p, and its degrees of freedom, by refits of the log without each bucket."""

    def log_curve(rows: pa.Table) -> Any:
        return np.log(fit(estimator, rows, ranks, interval=None).propensity_)

    whole, numbers = log_curve(log), np.unique(bucket)
    changes = np.array([log_curve(log.filter(pa.array(bucket != b))) - whole for b in numbers])[:, 1:]
    squares = changes**2
    informative = (np.abs(changes) >= 0.1 * np.abs(changes).max(axis=0)).sum(axis=0)
    spread = (squares**2).sum(axis=0) - squares.sum(axis=0) ** 2 / len(numbers)
    degrees = np.minimum(2 * squares.sum(axis=0) ** 2 / spread, np.minimum(informative, len(numbers)) - 1)
    return (len(numbers) - 1) / len(numbers) * squares.sum(axis=0), degrees


@pytest.mark.long
@pytest.mark.parametrize(
    ("estimator", "ranks"), [(posbias.AllPairs, None), (posbias.PivotOne, None), (posbias.AllPairs, "none")]
)
def test_two_way_intervals_are_those_of_refits_without_each_bucket(estimator: Any, ranks: str | None) -> None:
    log = with_users(8, queries=24, max_rank=3)
    query, user = buckets(log, "query_id"), buckets(log, "user_id")
    by_query, by_user, by_both = (variance(estimator, log, b, ranks) for b in (query, user, (query + user) % 256))
    total = by_query[0] + np.maximum(by_user[0] - by_both[0], 0)
    assert (total > 1.05 * by_query[0]).any()
    degrees = total**2 / sum(v**2 / df for v, df in (by_query, by_user, by_both))
    found = fit(estimator, log, ranks)
    np.testing.assert_allclose(np.diagonal(found.covariance_)[1:], total, rtol=1e-6)
    np.testing.assert_allclose(found.degrees_of_freedom_[1:], np.maximum(degrees, 1), rtol=1e-5)
    half = t_quantile(np.maximum(degrees, 1), 0.975) * np.sqrt(total)
    np.testing.assert_allclose(np.log(found.interval_[1:, 1] / found.propensity_[1:]), half, rtol=1e-5)


@BOTH_WAYS
@pytest.mark.parametrize("estimator", HARVEST_ESTIMATORS)
def test_units_change_intervals_and_not_the_curve(estimator: Any, ranks: str | None) -> None:
    log = with_users(20, queries=300)
    with_units = estimator().fit(posbias.harvest(posbias.ClickLog(log, ranks=ranks), max_rank=4))
    without = estimator().fit(posbias.harvest(posbias.ClickLog(log, unit="none", ranks=ranks), max_rank=4))
    if estimator is posbias.CrossFit:
        # With units all clicks count equally. In replay, CrossFit is then conditional Poisson regression.
        assert 0 < np.abs(np.log(with_units.propensity_ / without.propensity_)).max() < 0.05
        if ranks == "none":
            poisson = estimator(relevance="none").fit(with_units.harvest_)
            np.testing.assert_allclose(with_units.propensity_, poisson.propensity_, rtol=1e-6)
    else:
        np.testing.assert_array_equal(with_units.propensity_, without.propensity_)
        np.testing.assert_array_equal(with_units.deletions_, without.deletions_)
    errors, by_query = (np.sqrt(np.diagonal(one.covariance_))[1:] for one in (with_units, without))
    assert (errors >= by_query * (1 - 1e-12)).all()
    assert (errors > 1.05 * by_query).any()
    scaled = with_units.jackknife_.changes * np.sqrt(1 - 1 / len(with_units.deletions_))
    np.testing.assert_allclose(scaled.T @ scaled, with_units.covariance_, atol=1e-15)


def test_bootstrap_intervals_are_widened_too() -> None:
    log = with_users(20, queries=300)
    widths = [
        np.log(high / low)
        for unit in (None, "none")
        for low, high in [
            posbias.AllPairs(interval="bootstrap")
            .fit(posbias.harvest(posbias.ClickLog(log, unit=unit), max_rank=4))
            .interval_[1:]
            .T
        ]
    ]
    widening = fit(posbias.AllPairs, log).jackknife_.widening[1:]
    np.testing.assert_allclose(widths[0] / widths[1], widening, rtol=1e-6)


@BOTH_WAYS
@pytest.mark.parametrize("estimator", HARVEST_ESTIMATORS)
def test_rows_without_a_unit_count_by_their_query(estimator: Any, ranks: str | None) -> None:
    log = with_users(20, queries=300)
    nobody = log.set_column(log.column_names.index("user_id"), "user_id", pa.nulls(len(log), pa.int64()))
    found, plain = fit(estimator, nobody, ranks), estimator()
    if estimator is posbias.CrossFit:
        # A column of units, even an empty one, makes all clicks count equally.
        plain._equal_clicks = True
    unnamed = posbias.ClickLog(log.drop_columns("user_id"), ranks=ranks)
    expected = plain.fit(posbias.harvest(unnamed, max_rank=4))
    assert found.harvest_.units is not None
    if estimator is not posbias.CrossFit:
        np.testing.assert_allclose(found.jackknife_.units.by_both.changes, expected.jackknife_.changes, atol=1e-12)
    np.testing.assert_allclose(found.covariance_, expected.covariance_, rtol=1e-9)


@BOTH_WAYS
def test_too_few_units_give_no_interval(ranks: str | None) -> None:
    found = fit(posbias.CrossFit, with_users(4, queries=300), ranks)
    assert np.isnan(found.interval_[1:]).all()
    assert found.reasons_[1].startswith("no interval: the units (user_id) fill only 4 buckets, and 8 are needed")


def test_a_unit_with_most_page_views_leaves_few_degrees_of_freedom() -> None:
    log = with_users(40, queries=300)
    user = log.column("user_id").to_numpy().copy()
    user[(user % 2 == 0) & (user < 38)] = 0
    found = fit(posbias.AllPairs, log.set_column(log.column_names.index("user_id"), "user_id", pa.array(user)))
    assert found.degrees_of_freedom_[1:].min() < 10
    assert any("few units determine the estimate" in (reason or "") for reason in found.reasons_)


@BOTH_WAYS
def test_segments_cluster_by_unit_too(ranks: str | None) -> None:
    log = with_users(20, queries=300)
    log = log.append_column("half", pa.array(np.asarray(log.column("query_id")) % 2))
    whole = posbias.AllPairs().fit(posbias.harvest(posbias.ClickLog(log, ranks=ranks), by="half", max_rank=4))
    for half in (0, 1):
        alone = fit(posbias.AllPairs, log.filter(pa.array(np.asarray(log.column("half")) == half)), ranks)
        np.testing.assert_allclose(whole.segments_[str(half)].interval_, alone.interval_)
    pooled, by_query = (
        posbias.CrossFit(pool=True).fit(
            posbias.harvest(posbias.ClickLog(log, unit=unit, ranks=ranks), by="half", max_rank=4)
        )
        for unit in (None, "none")
    )
    widths = [
        np.log(one.segments_["0"].interval_[1:, 1] / one.segments_["0"].interval_[1:, 0]) for one in (pooled, by_query)
    ]
    assert (widths[0] > widths[1]).all()


@BOTH_WAYS
def test_segments_of_documents_cluster_by_unit(ranks: str | None) -> None:
    log = with_users(20, queries=300)
    log = log.append_column("kind", pa.array([str(int(doc) % 2) for doc in log.column("doc_id").to_pylist()]))
    harvest = posbias.harvest(posbias.ClickLog(log, ranks=ranks), by="kind", max_rank=4)
    segment = harvest.segment("1")
    assert segment.units is not None
    assert segment.units.by_unit.page_views == harvest.page_views
    assert posbias.AllPairs().fit(harvest).segments_["1"].jackknife_.widening.max() > 1


def test_a_rank_that_one_bucket_of_units_decides_has_no_interval() -> None:
    curve = np.array([1.0, 0.5])
    by_query = np.tile(curve, (10, 1)) * np.array([1.0, 1.01])
    by_unit = by_query.copy()
    by_unit[3, 1] = np.nan
    units = UnitJackknives(Jackknife(curve, by_unit), Jackknife(curve, by_query))
    intervals = Jackknife(curve, by_query, units=units).intervals(0.95)
    assert intervals.reasons[1] == "no interval: the estimate depends on a single bucket of units; log more units"


@BOTH_WAYS
@pytest.mark.parametrize("estimator", HARVEST_ESTIMATORS)
def test_a_unit_with_all_results_at_rank_1_leaves_no_interval(estimator: Any, ranks: str | None) -> None:
    log = with_users(20, queries=300)
    user = np.where(log.column("position").to_numpy() == 1, 0, log.column("user_id").to_numpy())
    found = fit(estimator, log.set_column(log.column_names.index("user_id"), "user_id", pa.array(user)), ranks)
    assert np.isnan(found.interval_[1:]).all()
    assert {*found.reasons_[1:]} == {"no interval: the estimate depends on a single bucket of units; log more units"}


def test_comparisons_use_the_wider_errors() -> None:
    log = with_users(20, queries=300)
    day = np.asarray(log.column("query_id")) % 2
    errors = []
    for unit in (None, "none"):
        one, other = (
            posbias.harvest(posbias.ClickLog(log.filter(pa.array(day == d)), unit=unit), max_rank=4) for d in (0, 1)
        )
        errors.append([np.log(d.high / d.low) for d in posbias.compare(one, other).differences if d.high is not None])
    assert np.mean(errors[0]) > 1.02 * np.mean(errors[1])


# ---- The test of the traffic split


def test_split_by_user_raises_few_false_alarms_and_lost_users_are_found() -> None:
    random = np.random.default_rng(0)

    def alarm(users: int, shares: tuple[float, ...], lost: float = 0.0) -> bool:
        ranker = random.choice(len(shares), users, p=shares)
        kept = (ranker > 0) | (random.random(users) >= lost)
        counts = np.zeros((256, len(shares)))
        np.add.at(counts, (random.integers(0, 256, users)[kept], ranker[kept]), 1)
        return unit_split_test(counts[counts.any(axis=1)], np.array(shares)).p_value < 0.05

    for users, shares in ((120, (0.5, 0.5)), (2000, (0.9, 0.1)), (2000, (0.6, 0.3, 0.1))):
        assert np.mean([alarm(users, shares) for _ in range(400)]) < 0.08
    assert np.mean([alarm(20_000, (0.5, 0.5), lost=0.1) for _ in range(20)]) > 0.9


def test_diagnosis_counts_each_unit_once() -> None:
    """Users of b have few page views, and are as many as those of a."""
    log = with_users(200, queries=300)
    page, ranker = (
        log.column("impression_id").to_numpy(zero_copy_only=False),
        np.array(log.column("ranker").to_pylist()),
    )
    _, number = np.unique(page, return_inverse=True)
    log = log.filter(pa.array((ranker == "a") | (number % 3 == 0)))
    split = {"a": 50, "b": 50}
    by_units = posbias.diagnose(posbias.ClickLog(log), split=split, max_rank=4)
    [found] = [f for f in by_units.findings if f.code == "sample-ratio-as-intended"]
    pairs = {*zip(log.column("user_id").to_pylist(), log.column("ranker").to_pylist(), strict=True)}
    assert found.evidence["units"] == Counter(ranker for _, ranker in pairs)
    harvest = posbias.harvest(posbias.ClickLog(log), max_rank=4)
    for source in (harvest, posbias.ClickLog(log, unit="none")):
        codes = [f.code for f in posbias.diagnose(source, split=split, max_rank=4).findings]
        assert "sample-ratio-mismatch" in codes
