"""Swap experiments: the paper's ratios against slow ones, known curves recovered, and what must not confound them."""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any

import numpy as np
import pandas
import pytest

import posbias
from experiments.judgments import generate_judgments
from experiments.ranking_svm import rank_documents
from experiments.sessions import simulate_swaps, sweeps
from posbias.estimators import SwapAdjacent, SwapOne
from posbias.estimators.base import resample_weights
from posbias.harvesting.observations import Observations
from posbias.simulation import PositionBased

SWAPS = [SwapOne, SwapAdjacent]
Row = dict[str, Any]


def log_of(rows: Any) -> posbias.ClickLog:
    return posbias.ClickLog(rows if isinstance(rows, pandas.DataFrame) else pandas.DataFrame(rows))


def swapped(
    kind: type,
    views: int,
    max_rank: int,
    *,
    ranker: str = "a",
    probability: float = 0.5,
    quality: float = 0.5,
    seed: int = 0,
) -> pandas.DataFrame:
    """Page views of one query each: relevance falls with the original rank, examination with the rank shown."""
    rng = np.random.default_rng(seed)
    places = np.tile(np.arange(max_rank), (views, 1))
    low = np.zeros(views, dtype=int) if kind is SwapOne else rng.integers(0, max_rank - 1, views)
    high = rng.integers(1, max_rank, views) if kind is SwapOne else low + 1
    page = np.flatnonzero(rng.random(views) < probability)
    places[page, low[page]], places[page, high[page]] = high[page], low[page]
    relevance = quality * 0.9**places
    clicked = rng.random(places.shape) < relevance / np.arange(1, max_rank + 1)
    return pandas.DataFrame(
        {
            "query_id": np.repeat([f"{ranker}{seed}-{i}" for i in range(views)], max_rank),
            "doc_id": places.ravel(),
            "ranker": ranker,
            "position": np.tile(np.arange(1, max_rank + 1), views),
            "original_rank": places.ravel() + 1,
            "clicked": clicked.ravel(),
        }
    )


# ---- The ratios, slowly


def counts(rows: list[Row], M: int) -> dict[tuple[Any, int, int], list[int]]:
    """Impressions and clicks by (ranker, length of page), original rank and rank shown."""
    reach: dict[tuple[Any, Any], int] = defaultdict(int)
    for row in rows:
        if row["position"] <= M:
            reach[row["query_id"], row["ranker"]] = max(reach[row["query_id"], row["ranker"]], row["position"])
    found: dict[tuple[Any, int, int], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        if row["position"] <= M:
            cell = found[(row["ranker"], reach[row["query_id"], row["ranker"]]), row["original_rank"], row["position"]]
            cell[0] += 1
            cell[1] += int(row["clicked"])
    return found


def compared(groups: list[tuple[list[int], list[int]]]) -> tuple[Fraction, Fraction]:
    """The click rates of groups at one rank and at another, summed with weights N N' / (N + N')."""
    sums = [Fraction(0), Fraction(0)]
    for here, there in groups:
        if here[0] and there[0]:
            weight = Fraction(here[0] * there[0], here[0] + there[0])
            sums[0] += weight * Fraction(here[1], here[0])
            sums[1] += weight * Fraction(there[1], there[0])
    return sums[0], sums[1]


def swap_one(rows: list[Row], M: int) -> list[float]:
    found = counts(rows, M)
    groups = {group for group, _, _ in found}
    curve = [1.0]
    for k in range(2, M + 1):
        at_one, at_k = compared([(found[g, 1, 1], found[g, 1, k]) for g in groups])
        curve.append(float(at_k / at_one) if at_one else np.nan)
    return curve


def swap_adjacent(rows: list[Row], M: int) -> list[float]:
    found = counts(rows, M)
    groups = {group for group, _, _ in found}
    curve = [Fraction(1)]
    for k in range(1, M):
        above, below = compared([(found[g, o, k], found[g, o, k + 1]) for g in groups for o in (k, k + 1)])
        if not above or not curve[-1]:
            return [float(p) for p in curve] + [np.nan] * (M - len(curve))
        curve.append(curve[-1] * below / above)
    return [float(p) for p in curve]


@pytest.mark.parametrize(("make", "slow"), [(SwapOne, swap_one), (SwapAdjacent, swap_adjacent)])
@pytest.mark.parametrize("seed", range(6))
def test_it_is_the_slow_ratio(make, slow, seed):
    """Rankers of different probabilities, pages of different lengths, queries that recur, ranks beyond M."""
    rng = np.random.default_rng(seed)
    parts = [
        swapped(make, 60, length, ranker=ranker, probability=rng.random(), seed=10 * seed + length)
        for ranker in "ab"
        for length in (2, 4, 6)
    ]
    table = pandas.concat(parts).sample(frac=1, random_state=seed)
    table["query_id"] = table["query_id"].str.replace(r"\d$", "", regex=True)
    for max_rank in (3, 6):
        fitted = make(max_rank=max_rank, interval=None).fit(log_of(table))
        expected = slow(table.to_dict("records"), max_rank)
        np.testing.assert_allclose(fitted.propensity_, expected, rtol=1e-12)


def test_one_ranker_and_whole_pages_are_the_papers_rates():
    table = swapped(SwapOne, 4000, 4, probability=0.3)
    rate = table[table["original_rank"] == 1].groupby("position")["clicked"].mean()
    np.testing.assert_allclose(SwapOne(max_rank=4, interval=None).fit(log_of(table)).propensity_, rate / rate[1])
    # Where both documents of a swap are logged, the groups are of one size and their rates add up.
    table = swapped(SwapAdjacent, 4000, 2, probability=0.3)
    rate = table.groupby(["original_rank", "position"])["clicked"].mean()
    below, above = (rate[1, k] + rate[2, k] for k in (2, 1))
    np.testing.assert_allclose(SwapAdjacent(max_rank=2, interval=None).fit(log_of(table)).propensity_[1], below / above)


@pytest.mark.parametrize("make", SWAPS)
def test_resamples_take_rates_anew(make):
    """The batch of refits equals fitting each resample as a log of its own."""
    rng = np.random.default_rng(0)
    size = 2000
    rows = {name: rng.integers(low, high, size) for name, low, high in (("bucket", 0, 40), ("ranker", 0, 2))}
    rows |= {"original": rng.integers(1, 6, size), "rank": rng.integers(1, 5, size), "reach": rng.integers(4, 6, size)}
    rows |= {"impressions": rng.integers(5, 50, size), "segment": np.zeros(size, dtype=int)}
    rows["clicks"] = rng.binomial(rows["impressions"], 0.3)
    refits = []
    for times in resample_weights(40, 7, seed=5).astype(int):
        again = rows | {name: rows[name] * times[rows["bucket"]] for name in ("impressions", "clicks")}
        estimator = make(max_rank=4, interval=None)
        estimator.estimate(Observations("swaps", 4, ("a", "b"), again, again))
        refits.append(estimator.propensity_)
    estimator = make(max_rank=4, interval="bootstrap", bootstrap=7, seed=5, level=0.8)
    estimator.estimate(Observations("swaps", 4, ("a", "b"), rows, rows))
    np.testing.assert_allclose(estimator.covariance_, np.cov(np.log(refits), rowvar=False), atol=1e-12)
    np.testing.assert_allclose(estimator.interval_[1:, 0], np.min(refits, axis=0)[1:], rtol=1e-9)


# ---- Recovery, and what must not confound it


@pytest.mark.parametrize(("make", "kind"), [(SwapOne, "one"), (SwapAdjacent, "adjacent")])
@pytest.mark.parametrize("probability", [0.2, 0.8])
def test_it_recovers_the_curve_within_its_interval(make, kind, probability):
    judgments = generate_judgments(800)
    rankings = {name: rank_documents(judgments, np.eye(128)[i], max_rank=5) for i, name in enumerate("ab")}
    views = {"a": sweeps(judgments.queries, 20), "b": sweeps(judgments.queries, 5)}
    table = simulate_swaps(judgments, rankings, views, PositionBased(), kind=kind, probability=probability)
    fitted = make(max_rank=5, level=0.999).fit(posbias.ClickLog(table))
    low, high = fitted.interval_.T
    truth = 1 / np.arange(1, 6)
    assert np.all((low <= truth) & (truth <= high))


def naive_one(table: pandas.DataFrame) -> float:
    rate = table[table["original_rank"] == 1].groupby("position")["clicked"].mean()
    return rate[2] / rate[1]


def naive_adjacent(table: pandas.DataFrame) -> float:
    rate = table.groupby(["original_rank", "position"])["clicked"].mean()
    return (rate[1, 2] + rate[2, 2]) / (rate[1, 1] + rate[2, 1])


@pytest.mark.parametrize(("make", "naive"), [(SwapOne, naive_one), (SwapAdjacent, naive_adjacent)])
def test_rankers_that_swap_with_different_probabilities_do_not_confound(make, naive):
    """A good ranker that swaps seldom and a poor one that swaps often: pooled, their swaps look worse than they are."""
    good = swapped(make, 20_000, 3, ranker="good", probability=0.1, quality=0.9)
    poor = swapped(make, 20_000, 3, ranker="poor", probability=0.9, quality=0.1)
    table = pandas.concat([good, poor])
    fitted = make(max_rank=3, level=0.999).fit(log_of(table))
    low, high = fitted.interval_[1]
    assert low <= 0.5 <= high
    assert high - low < 0.15
    assert not low <= naive(table) <= high


def test_short_pages_that_cannot_be_swapped_do_not_confound():
    """Pages of two good results are left as they are when rank 3 or 4 is drawn, so they abound among the unswapped."""
    long = swapped(SwapOne, 20_000, 4, probability=0.75, quality=0.3)
    short = swapped(SwapOne, 20_000, 2, ranker="a", probability=0.25, quality=0.9, seed=1)
    table = pandas.concat([long, short])
    fitted = SwapOne(max_rank=4, level=0.999).fit(log_of(table))
    low, high = fitted.interval_[1]
    assert low <= 0.5 <= high
    assert not low <= naive_one(table) <= high


@pytest.mark.long
def test_intervals_cover_the_truth():
    """95% intervals of 60 logs: the share that covers, within 4 standard errors of 95%."""
    covered = []
    for seed in range(60):
        make = SWAPS[seed % 2]
        log = log_of(swapped(make, 1500, 4, seed=seed))
        fitted = make(max_rank=4, bootstrap=200, seed=seed).fit(log, engine=posbias.DuckDB(threads=1))
        low, high = fitted.interval_[1:].T
        truth = 1 / np.arange(2, 5)
        covered.append((low <= truth) & (truth <= high))
    error = np.std(np.mean(covered, axis=1)) / np.sqrt(len(covered))
    assert abs(np.mean(covered) - 0.95) < 4 * error, np.mean(covered)


# ---- What is not there


def cells(*found: tuple[int, int, int, int]) -> pandas.DataFrame:
    """An aggregated log of (original rank, rank shown, impressions, clicks), each of a query that has five results."""
    rows = [(o, k, n, c) for cell in found for o, k, n, c in [cell, (5, 5, 1, 0)]]
    queries = np.arange(len(rows)) // 2
    columns = dict(zip(("original_rank", "position", "impressions", "clicks"), np.array(rows).T, strict=True))
    return pandas.DataFrame({"query_id": queries, "doc_id": np.arange(len(rows)), "ranker": "a"} | columns)


def test_a_swap_that_was_not_made_has_no_number():
    fitted = SwapOne(max_rank=5, bootstrap=50).fit(log_of(cells((1, 1, 100, 50), (1, 2, 100, 25), (1, 4, 100, 0))))
    np.testing.assert_allclose(fitted.propensity_, [1, 0.5, np.nan, 0, np.nan])
    assert "both at rank 1 and at rank 3" in fitted.reasons_[2]
    assert (
        fitted.reasons_[3]
        == "no click at rank 4 on documents that were swapped there: the estimate is 0, without an interval"
    )
    assert np.isnan(fitted.interval_[3]).all()


def test_a_broken_chain_says_where_and_gives_no_number_beyond():
    links = [(1, 1, 100, 50), (1, 2, 100, 25), (2, 2, 100, 20), (3, 2, 100, 30), (3, 3, 100, 20)]
    fitted = SwapAdjacent(max_rank=5, bootstrap=10).fit(log_of(cells(*links, (4, 4, 100, 9), (5, 4, 100, 9))))
    np.testing.assert_allclose(fitted.propensity_[:3], [1, 1 / 2, 1 / 3])
    assert np.isnan(fitted.propensity_[3:]).all()
    assert all("between ranks 3 and 4: no ranker swapped them" in reason for reason in fitted.reasons_[3:])
    clickless = [(1, 1, 100, 50), (1, 2, 100, 0), (2, 2, 100, 20), (2, 3, 100, 20)]
    fitted = SwapAdjacent(max_rank=5, bootstrap=10).fit(log_of(cells(*clickless)))
    np.testing.assert_allclose(fitted.propensity_, [1, 0, np.nan, np.nan, np.nan])
    assert "between ranks 1 and 2: no click at rank 2" in fitted.reasons_[2]


@pytest.mark.parametrize("make", SWAPS)
def test_nothing_swapped_is_an_error(make):
    with pytest.raises(posbias.EstimateError, match="No rank below the first has an estimate"):
        make().fit(log_of(swapped(make, 50, 3, probability=0)))
    table = swapped(make, 50, 3)
    with pytest.raises(posbias.LogError, match="not a single click"):
        make().fit(log_of(table.assign(clicked=False)))
    with pytest.raises(posbias.EstimateError, match=r"Nothing was swapped: .* has a value in 'original_rank'"):
        make().fit(log_of(table.assign(original_rank=pandas.Series([None] * len(table), dtype="Int64"))))


@pytest.mark.parametrize("make", SWAPS)
def test_a_log_without_original_ranks_says_what_it_lacks(make):
    log = posbias.ClickLog(posbias.simulate(posbias.World(queries=5)))
    with pytest.raises(posbias.LogError, match=r"'original_rank' is not in the log.*original='COLUMN'"):
        make().fit(log)
    table = swapped(make, 50, 3)
    with pytest.raises(posbias.LogError, match="50 of 150 rows have a value in 'original_rank' that is not a rank"):
        make().fit(log_of(table.assign(original_rank=table["original_rank"] - 1)))
    with pytest.raises(posbias.LogError, match="'was' is not in the log"):
        make().fit(posbias.ClickLog(table, original="was"))
    with pytest.raises(posbias.LogError, match="50 of 150 rows of the log cannot be used"):
        make().fit(log_of(table.assign(query_id=table["query_id"].where(table["position"] > 1))))


# ---- What the log is like


@pytest.mark.parametrize("make", SWAPS)
def test_what_is_no_part_of_the_experiment_is_left_out(make):
    table = swapped(make, 500, 3)
    other = swapped(make, 500, 3, quality=0.9, seed=1).assign(original_rank=None)
    both = pandas.concat([table.astype({"original_rank": "object"}), other]).astype({"original_rank": "Int64"})
    alone, beside = (make(max_rank=3, bootstrap=20).fit(log_of(t)) for t in (table, both))
    np.testing.assert_array_equal(alone.propensity_, beside.propensity_)
    np.testing.assert_array_equal(alone.interval_, beside.interval_)
    assert alone.summary() == beside.summary()
    assert alone.summary().page_views == {"a": 500}


@pytest.mark.parametrize("make", SWAPS)
def test_names_duplicates_and_aggregates_do_not_matter(make):
    table = swapped(make, 300, 3).assign(impression_id=np.arange(900) // 3)
    expected = make(max_rank=3, bootstrap=20).fit(log_of(table))
    twice = pandas.concat([table, table]).rename(columns={"original_rank": "was"})
    keys = ["query_id", "doc_id", "ranker", "position", "original_rank"]
    added = table.groupby(keys, as_index=False)["clicked"].agg(impressions="size", clicks="sum")
    for log in (posbias.ClickLog(twice, original="was", duplicates="drop"), posbias.ClickLog(added)):
        fitted = make(max_rank=3, bootstrap=20).fit(log)
        np.testing.assert_allclose(fitted.propensity_, expected.propensity_, rtol=1e-12)
        np.testing.assert_allclose(fitted.interval_, expected.interval_, rtol=1e-12)


def test_segments_have_curves_of_their_own():
    parts = {name: swapped(SwapOne, 2000, 3, ranker=name, seed=i).assign(device=name) for i, name in enumerate("xy")}
    fitted = SwapOne(max_rank=3, bootstrap=30).fit(log_of(pandas.concat(parts.values())), by=["device"])
    assert list(fitted.segments_) == [("x",), ("y",)]
    for name, part in parts.items():
        alone = SwapOne(max_rank=3, bootstrap=30).fit(log_of(part))
        np.testing.assert_allclose(fitted.segments_[(name,)].propensity_, alone.propensity_)
        np.testing.assert_allclose(fitted.segments_[(name,)].interval_, alone.interval_)
        assert fitted.segments_[(name,)].summary().page_views == {name: 2000}
