"""Traffic that changed within the log: which estimators note it, and which of them correct for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas
import pytest

import posbias
from posbias.estimators import Estimator
from posbias.estimators.base import explain_uneven_traffic
from posbias.harvesting.harvest import Harvest

WORLD = posbias.World(queries=800, max_rank=3, rankers=("a", "b", "c"), quality=(0.0, 2.0, 2.0))
BY_TRAFFIC = [posbias.AllPairs, posbias.PivotOne, posbias.AdjacentChain]


def weeks() -> tuple[Harvest, Harvest]:
    """Ranker a beside b, and then beside c, half of the page views each time; ranks are logged of the two."""
    log = posbias.simulate(WORLD).to_pandas()
    first = np.random.default_rng(0).random(log["impression_id"].nunique()) < 0.5
    first = first[log["impression_id"].astype("category").cat.codes]
    served = {"b": first, "c": ~first}
    parts = [log[served[new] & log["ranker"].isin(["a", new])] for new in "bc"]
    without = [part.drop(columns=f"rank_{other}") for part, other in zip(parts, "cb", strict=True)]
    one, other = (posbias.harvest(posbias.ClickLog(part), max_rank=3) for part in without)
    return one, other


@pytest.fixture(scope="module")
def merged() -> Harvest:
    return posbias.merge(weeks())


def off(fitted: Estimator) -> np.ndarray:
    """How many standard errors the estimate is away from the truth."""
    error = np.log(fitted.propensity_[1:] / WORLD.propensity[1:])
    return np.abs(error) / np.sqrt(np.diagonal(fitted.covariance_))[1:]


@pytest.mark.parametrize("kind", BY_TRAFFIC)
def test_a_ranker_that_replaced_another_is_noted(kind, merged):
    fitted = kind().fit(merged)
    assert np.all(off(fitted) > 3)
    contradiction, note = fitted.notes_
    assert contradiction.startswith("Pairs of ranks contradict each other")
    assert note.startswith("Ranker 'a' showed ")
    assert f"{kind.name} weights by traffic and is biased in this case. Use cross-fit" in note


@pytest.mark.parametrize("relevance", ["guessed", "signature"])
def test_guesses_of_relevance_correct_for_it(relevance, merged):
    fitted = posbias.CrossFit(relevance=relevance).fit(merged)
    assert np.all(off(fitted) < 3)
    assert "Guesses of relevance correct most of the bias" in fitted.notes_[-1]


def test_without_guesses_the_curve_is_biased_and_noted(merged):
    fitted = posbias.CrossFit(relevance="none").fit(merged)
    assert np.all(off(fitted) > 4)
    assert fitted.notes_[-1].endswith("Without guesses of relevance the curve is biased in this case.")


def test_each_period_alone_is_unbiased_and_has_no_note():
    for period in weeks():
        for kind in (posbias.CrossFit, *BY_TRAFFIC):
            fitted = kind().fit(period)
            assert np.all(off(fitted) < 4)
            assert fitted.notes_ == ()


WORLDS = {
    "unequal": replace(WORLD, traffic=(90, 9, 1)),
    "sticky": replace(WORLD, sticky=True),
    "sticky, unequal queries": replace(WORLD, sticky=True, skew=2.0),
    "one view a query": replace(WORLD, repeats=1, queries=4000),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_constant_traffic_has_no_note(world):
    made = posbias.harvest(posbias.ClickLog(posbias.simulate(world)), max_rank=3)
    for kind in (posbias.CrossFit, *BY_TRAFFIC):
        assert not any("implies" in note for note in kind(interval=None).fit(made).notes_)


def test_pages_of_unequal_length_have_no_note():
    log = posbias.simulate(posbias.World(queries=1500, max_rank=4)).to_pandas()
    # Half of the page views end after the second result, whoever served them.
    short = log["impression_id"].astype("category").cat.codes % 2 == 0
    made = posbias.harvest(posbias.ClickLog(log[~short | (log["position"] <= 2)]), max_rank=4)
    assert posbias.CrossFit(interval=None).fit(made).notes_ == ()
    assert posbias.AllPairs(interval=None).fit(made).notes_ == ()


def devices_with_their_own_traffic(lost: float) -> Harvest:
    """Phones with 70% of their traffic on ranker a, desktops with 30%, and a share of rows lost at random."""
    world = posbias.World(queries=1000, max_rank=4, quality=(0.2, 2.5))
    parts = []
    for seed, (device, share) in enumerate({"phone": 0.7, "desktop": 0.3}.items()):
        log = posbias.simulate(replace(world, traffic=(share, 1 - share), seed=seed)).to_pandas()
        # Each device has queries of its own: the simulation numbers them alike.
        for column in ("query_id", "impression_id"):
            log[column] = device + log[column].astype(str)
        parts.append(log.assign(device=device))
    log = pandas.concat(parts)
    log = log[np.random.default_rng(1).random(len(log)) >= lost]
    return posbias.harvest(posbias.ClickLog(log), max_rank=4, by="device", force=True)


def test_segments_of_page_views_that_lose_a_few_rows_keep_their_own_traffic():
    whole, thinned = (posbias.AllPairs(interval=None).fit(devices_with_their_own_traffic(lost)) for lost in (0, 0.003))
    for key, curve in whole.segments_.items():
        found = thinned.segments_[key]
        shares = np.array([*thinned.harvest_.segment(key).page_views.values()])
        assert shares[0] / shares.sum() == pytest.approx({"phone": 0.7, "desktop": 0.3}[key[0]], abs=0.02)
        assert np.allclose(found.propensity_, curve.propensity_, rtol=0.05)
        assert not found.notes_


def test_a_segment_of_some_results_with_traffic_of_its_own_is_explained():
    """Phones have half of the first results and all others: neither page views nor documents."""
    log = posbias.simulate(replace(WORLD, queries=1500, rankers=("a", "b"), quality=(0.0, 2.0))).to_pandas()
    share = np.where(log["ranker"] == "a", 0.8, 0.2) * np.where(log["position"] == 1, 0.5, 1)
    log["device"] = np.where(np.random.default_rng(0).random(len(log)) < share, "phone", "desktop")
    phones = posbias.harvest(posbias.ClickLog(log), max_rank=3, by="device").segment("phone")
    assert "its traffic is taken from the whole log" in str(explain_uneven_traffic(phones))
