"""Test incomplete pages: advertisements between results, truncated pages, and a missing first position.

Each is estimated near the truth, or it is said why not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import pytest

import posbias

TRUTH = 1 / np.arange(1, 11)
QUERIES, VIEWS, CANDIDATES = 1200, 8, 16

LAYOUTS = pytest.mark.parametrize("layout", ["wide", "long", "replay"])
ESTIMATORS = pytest.mark.parametrize("kind", [posbias.AllPairs, posbias.CrossFit])


def simulated(places: Callable[[np.random.Generator, int], np.ndarray], seed: int = 0) -> pandas.DataFrame:
    """A wide log in which results stand at given places of each page view, in order; 0 is not shown.

    Ranks are those of the page: where each ranker's result would have stood.
    """
    rng = np.random.default_rng(seed)
    relevance = np.where(rng.random((QUERIES, CANDIDATES)) < 0.3, 0.9, 0.1)
    shared = rng.normal(size=(QUERIES, CANDIDATES))
    orders = np.stack(
        [np.argsort(-(quality * relevance + shared + rng.normal(size=shared.shape)), axis=1) for quality in (1, 2)]
    )
    ranks = np.argsort(orders, axis=2)
    views = QUERIES * VIEWS
    query, ranker = np.repeat(np.arange(QUERIES), VIEWS), rng.integers(0, 2, size=views)
    place = places(rng, views)
    length = place.shape[1]
    doc = orders[ranker, query, :length]
    seen = np.take_along_axis(relevance[query], doc, axis=1) * np.where(place > 0, TRUTH[place - 1], 0)
    beyond = np.concatenate([place, np.zeros((views, CANDIDATES - length), dtype=int)], axis=1)
    columns = {
        "query_id": np.broadcast_to(query[:, None], doc.shape),
        "doc_id": doc,
        "ranker": np.broadcast_to(np.array(["a", "b"])[ranker][:, None], doc.shape),
        "position": place,
        "clicked": (rng.random(doc.shape) < seen).astype(int),
        "impression_id": np.broadcast_to(np.arange(views)[:, None], doc.shape),
    }
    for i, name in enumerate("ab"):
        rank = np.take_along_axis(ranks[i][query], doc, axis=1)
        columns[f"rank_{name}"] = np.take_along_axis(beyond, rank, axis=1)
    table = pandas.DataFrame({name: column.ravel() for name, column in columns.items()})
    table = table[table["position"] > 0].reset_index(drop=True)
    for name in ("rank_a", "rank_b"):
        table[name] = table[name].astype("Int64").where(table[name] > 0)
    return table


def log_of(table: pandas.DataFrame, layout: str) -> posbias.ClickLog:
    if layout == "wide":
        return posbias.ClickLog(table)
    if layout == "replay":
        return posbias.ClickLog(table, ranks="none")
    rankings = [
        table[["query_id", "doc_id"]].assign(ranker=name, rank=table[f"rank_{name}"]).dropna().drop_duplicates()
        for name in ("a", "b")
    ]
    return posbias.ClickLog(table.drop(columns=["rank_a", "rank_b"]), rankings=pandas.concat(rankings))


def assert_near(fitted: Any, truth: np.ndarray) -> None:
    """Within four standard errors wherever there is a truth, none of which is large."""
    told = ~np.isnan(truth[1:])
    error = np.log(fitted.propensity_[1:]) - np.log(truth[1:])
    spread = np.sqrt(np.diagonal(fitted.covariance_))[1:]
    assert np.all(np.isnan(fitted.propensity_[1:][~told]))
    assert np.all(np.abs(error[told]) < 4 * spread[told])
    assert np.all(spread[told] < 0.25)


def always(*positions: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda rng, views: np.tile(positions, (views, 1))


def half(*positions: int, others: tuple[int, ...] = tuple(range(1, 11))) -> Callable[..., np.ndarray]:
    """Some page views of one form, as many of another."""
    rows = np.zeros((2, max(len(positions), len(others))), dtype=int)
    rows[0, : len(positions)], rows[1, : len(others)] = positions, others
    return lambda rng, views: rows[rng.integers(0, 2, size=views)]


@LAYOUTS
@ESTIMATORS
def test_positions_without_results_have_no_estimate(layout, kind):
    """Advertisements at 3 and 6."""
    harvest = posbias.harvest(log_of(simulated(always(1, 2, 4, 5, 7, 8, 9, 10)), layout))
    assert harvest.findings == ()
    fitted = kind().fit(harvest)
    assert_near(fitted, np.where(np.isin(np.arange(1, 11), [3, 6]), np.nan, TRUTH))
    assert [p.position for p in fitted.curve().positions] == [1, 2, 4, 5, 7, 8, 9, 10]


@LAYOUTS
@ESTIMATORS
def test_pages_truncated_at_different_depths(layout, kind):
    """Five results on one device, ten on the other."""
    harvest = posbias.harvest(log_of(simulated(half(*range(1, 6))), layout))
    assert_near(kind().fit(harvest), TRUTH)


@LAYOUTS
@ESTIMATORS
def test_truncated_pages_with_known_ranks_beyond(layout, kind):
    """A ranker's rank 8 counts although half of the page views could not have shown it."""
    table = simulated(always(*range(1, 11)))
    cut = table[(table["impression_id"] % 2 == 0) | (table["position"] <= 5)]
    fitted = kind().fit(posbias.harvest(log_of(cut, layout)))
    assert_near(fitted, TRUTH)
    assert fitted.notes_ == ()


@pytest.mark.parametrize("layout", ["wide", "replay"])
@ESTIMATORS
@pytest.mark.parametrize("hole", [1, 3])
def test_advertisements_on_part_of_the_page_views(layout, kind, hole):
    places = half(*(k for k in range(1, 11) if k != hole))
    assert_near(kind().fit(posbias.harvest(log_of(simulated(places), layout))), TRUTH)


@ESTIMATORS
@pytest.mark.parametrize("hole", [1, 3])
def test_ranks_before_advertisements_drop_shifted_results(kind, hole):
    """What is left was shown where its ranker puts it, and is enough."""
    table = simulated(half(*(k for k in range(1, 11) if k != hole)))
    shifted = ~table["impression_id"].isin(table["impression_id"][table["position"] == hole])
    for name in ("rank_a", "rank_b"):
        table[name] -= (shifted & (table[name] > hole).fillna(False)).astype(int)
    harvest = posbias.harvest(log_of(table, "wide"))
    late = ["pages-begin-late"] if hole == 1 else []
    assert [finding.code for finding in harvest.findings] == ["contradicted-rank", *late]
    assert_near(kind().fit(harvest), TRUTH)


@ESTIMATORS
def test_one_rankings_table_cannot_distinguish_two_pages(kind):
    """In the long layout a document has one rank: where it has two, it is left out, and that is said."""
    table = simulated(half(*range(2, 11)))
    harvest = posbias.harvest(log_of(table, "long"))
    assert {finding.code for finding in harvest.findings} == {
        *("contradicted-rank", "non-functional-ranker", "pages-begin-late")
    }


@LAYOUTS
@ESTIMATORS
def test_missing_first_position_is_reported_with_the_first_result(layout, kind):
    table = simulated(always(*range(2, 11)))
    log = log_of(table, layout)
    harvest = posbias.harvest(log)
    assert [finding.code for finding in harvest.findings] == ["no-first-position"]
    with pytest.raises(posbias.EstimateError, match=r"first rank with results is 2.*subtract 1"):
        kind().fit(harvest)
    # As it is told.
    moved = table.assign(**{name: table[name] - 1 for name in ("position", "rank_a", "rank_b")})
    assert_near(kind().fit(posbias.harvest(log_of(moved, layout), max_rank=9)), TRUTH[1:] / TRUTH[1])


def test_other_estimators_report_missing_positions():
    table = simulated(always(*range(3, 11)))
    for estimator in (posbias.NaiveCTR(), posbias.PBMEM()):
        with pytest.raises(posbias.EstimateError, match=r"first rank with results is 3.*subtract 2"):
            estimator.fit(posbias.ClickLog(table))
