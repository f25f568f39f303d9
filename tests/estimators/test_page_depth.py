"""Test pages of different depth: how often rankers show what they rank, and curves that allow for it."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas
import pyarrow as pa
import pytest

import posbias
from posbias.estimators.base import deletion_weights
from posbias.estimators.one_curve import RankerPairs
from posbias.estimators.page_depth import PageDepth

RANKS, CANDIDATES, TRAFFIC = 6, 12, (0.6, 0.3, 0.1)
TRUTH = 1 / np.arange(1, RANKS + 1)
UNIFORM = tuple(range(2, RANKS + 1))
# One depth for each ranker: pages end anywhere, or those of one ranker after half of the ranks.
ALIKE, BY_RANKER = (UNIFORM,) * 3, ((RANKS,), UNIFORM, (3,))
DEPTHS = pytest.mark.parametrize("depths", [ALIKE, BY_RANKER], ids=["alike", "by ranker"])
ESTIMATORS = [posbias.CrossFit, posbias.AllPairs, posbias.PivotOne, posbias.AdjacentChain]


def simulated(
    depths: Sequence[Sequence[int]],
    *,
    queries: int = 600,
    views: int = 6000,
    results: tuple[int, int] = (CANDIDATES, CANDIDATES),
    seed: int = 0,
) -> pandas.DataFrame:
    """A wide log of three rankers of unequal quality and traffic, whose pages end at one of the depths of a ranker.

    A query has at least and at most this many results.
    """
    rng = np.random.default_rng(seed)
    exists = np.arange(CANDIDATES) < rng.integers(results[0], results[1] + 1, queries)[:, None]
    relevance = rng.beta(0.6, 1.4, exists.shape)
    noise = rng.normal(size=exists.shape)
    scores = [quality * relevance + noise + rng.normal(size=exists.shape) for quality in (4, 2, 0)]
    orders = np.stack([np.argsort(np.where(exists, -score, np.inf), axis=1) for score in scores])
    ranks = np.argsort(orders, axis=2) + 1
    query, ranker = rng.integers(0, queries, views), rng.choice(3, views, p=TRAFFIC)
    depth = np.choose(ranker, [rng.choice(choice, views) for choice in depths])
    view, place = np.nonzero(np.arange(RANKS) < np.minimum(depth, exists.sum(axis=1)[query])[:, None])
    doc = orders[ranker[view], query[view], place]
    clicked = rng.random(len(view)) < TRUTH[place] * relevance[query[view], doc]
    columns = {
        "query_id": query[view],
        "doc_id": doc,
        "ranker": np.array(list("abc"))[ranker[view]],
        "position": place + 1,
        "clicked": clicked.astype(int),
        "impression_id": view,
    }
    return pandas.DataFrame(columns | {f"rank_{name}": ranks[i, query[view], doc] for i, name in enumerate("abc")})


def harvest_of(depths: Sequence[Sequence[int]], **settings: object) -> posbias.Harvest:
    return posbias.harvest(posbias.ClickLog(simulated(depths, **settings)), max_rank=RANKS)  # type: ignore[arg-type]


def expected_depths(depths: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array([[np.mean(np.array(choice) >= k) for k in range(1, RANKS + 1)] for choice in depths])


# ---- The estimate of s


@DEPTHS
def test_shown_equals_the_oracle(depths):
    """The most likely s of a conditional multinomial, by the iteration of Bradley and Terry in pure Python."""
    harvest = harvest_of(depths)
    by_ranker = depths is BY_RANKER
    traffic = harvest.views.sum(axis=0).tolist()
    cells, strata = harvest.strata().cells, defaultdict(lambda: defaultdict(int))
    for stratum, ranker, rank, impressions in zip(
        cells.stratum.tolist(), cells.ranker.tolist(), cells.rank.tolist(), cells.impressions.tolist(), strict=True
    ):
        strata[stratum][ranker, rank] += impressions
    several = [entries for entries in strata.values() if len(entries) > 1]

    def place(ranker: int, rank: int) -> tuple[int, int]:
        return (ranker if by_ranker else 0), rank

    shown, counts = defaultdict(lambda: 1.0), defaultdict(int)
    for entries in several:
        for entry, impressions in entries.items():
            counts[place(*entry)] += impressions
    for _ in range(3000):
        share = defaultdict(float)
        for entries in several:
            total = sum(traffic[ranker] * shown[place(ranker, rank)] for ranker, rank in entries)
            for ranker, rank in entries:
                share[place(ranker, rank)] += sum(entries.values()) * traffic[ranker] / total if total else 0.0
        changed = {at: counts[at] / share[at] if share[at] else 0.0 for at in share}
        # Only ratios are determined.
        changed = {at: value / changed[0, 1] for at, value in changed.items()}
        largest = max(abs(changed[at] - shown[at]) for at in changed)
        shown.update(changed)
        if largest < 1e-9:
            break
    oracle = [[shown[place(ranker, rank)] for rank in range(1, RANKS + 1)] for ranker in range(3)]
    found = PageDepth.of(harvest.strata())
    np.testing.assert_allclose(found.shown, oracle, atol=1e-5)


@DEPTHS
def test_shown_is_the_share_of_page_views_that_reach_a_rank(depths):
    found = PageDepth.of(harvest_of(depths, views=30_000, seed=1).strata())
    np.testing.assert_allclose(found.shown, expected_depths(depths), atol=0.05)


@pytest.mark.parametrize("results", [(CANDIDATES, CANDIDATES), (1, CANDIDATES)], ids=["ten results", "few results"])
def test_whole_pages_have_no_depth(results):
    """A query with few results has short pages, but they show everything that the rankers rank."""
    for seed in range(10):
        assert PageDepth.of(harvest_of(((RANKS,),) * 3, results=results, seed=seed).strata()) is None


def test_short_pages_of_short_queries_do_not_hide_cut_pages():
    found = PageDepth.of(harvest_of(ALIKE, results=(1, CANDIDATES), views=20_000).strata())
    np.testing.assert_allclose(found.shown, expected_depths(ALIKE), atol=0.06)


def test_replay_has_no_depth():
    log = posbias.ClickLog(simulated(ALIKE), ranks="none")
    assert PageDepth.of(posbias.harvest(log, max_rank=RANKS).strata()) is None


# ---- Curves


@pytest.mark.parametrize("kind", ESTIMATORS)
@DEPTHS
def test_curves_of_cut_pages_are_near_the_truth(kind, depths):
    fitted = kind().fit(harvest_of(depths, queries=3000, views=60_000))
    error = np.log(fitted.propensity_[1:] / TRUTH[1:])
    assert np.all(np.abs(error) < 4 * np.sqrt(np.diagonal(fitted.covariance_))[1:])
    assert fitted.notes_ == ()


@pytest.mark.parametrize("kind", [posbias.CrossFit, posbias.PivotOne])
def test_without_depth_the_curve_is_biased(kind, monkeypatch):
    """The test above could fail: shown wherever ranked, the same log has another curve."""
    harvest = harvest_of(ALIKE, queries=3000, views=60_000)
    monkeypatch.setattr(PageDepth, "of", lambda strata: None)
    fitted = kind(**({"relevance": "none"} if kind is posbias.CrossFit else {})).fit(harvest)
    error = np.log(fitted.propensity_[1:] / TRUTH[1:])
    assert np.any(np.abs(error) > 6 * np.sqrt(np.diagonal(fitted.covariance_))[1:])


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_curves_of_whole_pages_do_not_change(kind, monkeypatch):
    harvest = harvest_of(((RANKS,),) * 3, results=(1, CANDIDATES))
    with_depth = kind().fit(harvest)
    monkeypatch.setattr(PageDepth, "of", lambda strata: None)
    without = kind().fit(harvest)
    np.testing.assert_array_equal(with_depth.propensity_, without.propensity_)
    np.testing.assert_array_equal(with_depth.interval_, without.interval_)


def test_pooled_segments_may_differ_in_depth():
    """Phones show three or six results, computers always six."""
    table = simulated(((RANKS,),) * 3, queries=2000, views=40_000)
    phone = table["impression_id"] % 2 == 1
    cut = table[~phone | (table["position"] <= 3) | (table["impression_id"] % 4 == 1)]
    cut = cut.assign(device=np.where(phone[cut.index], "phone", "computer"))
    fitted = posbias.CrossFit(pool=True).fit(posbias.harvest(posbias.ClickLog(cut), max_rank=RANKS, by="device"))
    for segment in fitted.segments_.values():
        error = np.log(segment.propensity_[1:] / TRUTH[1:])
        assert np.all(np.abs(error) < 4 * np.sqrt(np.diagonal(segment.covariance_))[1:])


# ---- Refits


@DEPTHS
def test_one_step_deletions_agree_with_full_refits(depths):
    """Standard errors agree with those of fits that see the rest alone, with n and s anew."""
    counts = posbias.CrossFit().count(harvest_of(depths))
    weights = deletion_weights(counts.buckets)
    steps, fits = counts.refits(weights), np.array([counts._refit_fully(each) for each in weights])
    one, other = (np.sqrt((np.log(refits / counts.estimate) ** 2).sum(axis=0))[1:] for refits in (steps, fits))
    np.testing.assert_allclose(one, other, rtol=0.01)


@DEPTHS
def test_refit_without_a_bucket_equals_the_fit_of_the_rest(depths):
    harvest = harvest_of(depths)
    counts = posbias.CrossFit(relevance="none").count(harvest)
    for place in (0, 7, 100):
        rest = replace(harvest, table=harvest.table.where(harvest.table.bucket != harvest.buckets[place]))
        weights = deletion_weights(counts.buckets)[place]
        np.testing.assert_allclose(
            counts.depth.regression._refit_fully(weights), PageDepth.of(rest.strata()).regression.estimate, rtol=1e-5
        )
        anew = posbias.CrossFit(relevance="none", interval=None).fit(rest).propensity_
        np.testing.assert_allclose(counts._refit_fully(weights), anew, rtol=1e-3)


@pytest.mark.parametrize("kind", [posbias.CrossFit, posbias.PivotOne])
def test_deletions_allow_for_the_error_of_depth(kind):
    """s moves the curve with each bucket that is left out: the standard error differs from that of a known s."""
    harvest = harvest_of(ALIKE)
    estimator = kind(interval=None)
    counts = estimator.count(harvest)
    depth = PageDepth.of(harvest.strata())
    weights = deletion_weights(counts.buckets)
    refits = estimator.curves(counts, weights)
    place = 5
    rest = replace(harvest, table=harvest.table.where(harvest.table.bucket != harvest.buckets[place]))
    assert not np.allclose(depth.refits(weights)[place], depth.shown, rtol=1e-6)
    anew = kind(interval=None).fit(rest).propensity_
    # CrossFit makes its guesses anew, which move it a little more.
    np.testing.assert_allclose(refits[place], anew, rtol=0.02 if kind is posbias.CrossFit else 1e-3)


def test_a_rank_that_seems_never_to_be_reached_is_not_compared() -> None:
    """In so small a log s is 0 at a rank that was shown, and its logarithm would be infinite."""
    rows = [
        *[(2, 1, "a", 4, 1, 4, 4), (2, 2, "a", 1, 1, 1, 2), (1, 0, "a", 4, 1, 4, 4), (1, 1, "a", 3, 1, 3, 1)],
        *[(1, 2, "a", 2, 1, 2, 2), (1, 3, "a", 1, 0, 1, 3), (0, 0, "a", 4, 1, 4, 4), (0, 2, "a", 2, 1, 2, 2)],
        *[(2, 1, "a", 4, 1, 4, 4), (2, 2, "a", 1, 1, 1, 2), (0, 0, "b", 4, 0, 4, 4), (0, 1, "b", 3, 0, 3, 3)],
        (0, 2, "b", 2, 1, 2, 2),
    ]
    names = ["query_id", "doc_id", "ranker", "position", "clicked", "rank_a", "rank_b"]
    table = pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", posbias.PosbiasWarning)
        harvest = posbias.harvest(posbias.ClickLog(table), max_rank=4, force=True)
    depth = PageDepth.of(harvest.strata())
    assert depth is not None
    assert (depth.seen & (depth.shown == 0)).any()
    assert np.isfinite(RankerPairs.of(harvest).log_shown).all()
