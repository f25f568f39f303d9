"""Planning: forecasts come true in simulated logs, and a missing forecast has a reason."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import posbias
from posbias._stats import t_quantile
from posbias.cli import cli
from posbias.errors import EstimateError, PosbiasError
from posbias.estimators.page_depth import PageDepth
from posbias.planning import forecast as forecast_module
from posbias.planning.forecast import (
    Forecast,
    HarvestModel,
    RankRequirement,
    best_split,
    buckets_at,
    degrees_at,
    fill_curve,
    mean_similarity,
    measure_errors,
    non_negative_least_squares,
    precision_at,
    shares_of,
    times_for,
    with_new_ranker,
)
from posbias.planning.plan import Plan, format_compact

# Whole worlds are drawn and fitted: minutes in all, which CI takes.
pytestmark = pytest.mark.long

WORLD = posbias.World(queries=800, max_rank=6)


def harvested(world: posbias.World, **settings: Any) -> posbias.Harvest:
    table = posbias.simulate(world, aggregated=True)
    return posbias.harvest(posbias.ClickLog(table), max_rank=world.max_rank, **settings)


def changed(world: posbias.World, **settings: Any) -> posbias.World:
    return posbias.World(**{name: getattr(world, name) for name in world.__dataclass_fields__} | settings)


@cache
def small() -> posbias.Harvest:
    return harvested(posbias.World(queries=600, max_rank=5))


@cache
def planned() -> Plan:
    return posbias.plan(small(), queries=600, traffic={"a": 0.9, "b": 0.1}, precision=0.1)


def mean_error(name: str, world: posbias.World, logs: int) -> np.ndarray:
    """The root of the mean squared standard error over logs of a world, by rank from 2."""
    each = [measure_errors(name, harvested(changed(world, seed=1000 + i))).se[1:] for i in range(logs)]
    return np.sqrt(np.mean(np.square(each), axis=0))


def errors(forecast: Forecast) -> np.ndarray:
    return np.array([requirement.standard_error or np.nan for requirement in forecast.requirements])


# ---- Compared with simulation


def test_four_times_the_queries_give_the_forecast_error() -> None:
    found = measure_errors("cross-fit", harvested(WORLD))
    forecast = found.se[1:] / 2
    there = mean_error("cross-fit", changed(WORLD, queries=3200), 3)
    assert np.exp(np.mean(np.log(forecast / there))) == pytest.approx(1, abs=0.1)
    assert forecast == pytest.approx(there, rel=0.25)


def test_other_traffic_gives_the_forecast_error() -> None:
    world = changed(WORLD, traffic=(0.85, 0.15))
    found = posbias.plan(
        harvested(world), queries=800, estimators=["cross-fit"], traffic={"a": 0.5, "b": 0.5}
    ).scenarios[0]
    there = mean_error("cross-fit", changed(world, traffic=None), 4)
    assert np.exp(np.mean(np.log(errors(found.forecasts[0]) / there))) == pytest.approx(1, abs=0.15)
    now = mean_error("cross-fit", world, 4)
    assert np.all(there < now)
    assert np.all(errors(found.forecasts[0])[3:] < now[3:])


WORLDS = {
    "alike": posbias.World(queries=2000),
    "three": posbias.World(queries=2000, rankers=("a", "b", "c"), traffic=(0.6, 0.3, 0.1)),
    "unequal": posbias.World(queries=2000, quality=(0.5, 2.0), eta=0.5, traffic=(0.8, 0.2)),
}


@pytest.mark.parametrize(
    ("name", "estimator"),
    [("three", "cross-fit"), ("unequal", "cross-fit"), ("alike", "all-pairs"), ("alike", "adjacent-chain")],
)
def test_forecasts_come_true_within_15_percent(name: str, estimator: str) -> None:
    """At each rank, on average over a few planned logs: a single log knows its error to 5%."""
    world = WORLDS[name]
    rankers = world.rankers
    split = (0.3, 0.7) if len(rankers) == 2 else (0.2, 0.3, 0.5)
    joined = (*(share * len(rankers) / (len(rankers) + 1) for share in world.shares), 1 / (len(rankers) + 1))
    quality = float(np.mean(world.qualities))
    more = changed(world, rankers=(*rankers, "z"), traffic=joined, quality=(*world.qualities, quality))
    plans = [
        posbias.plan(
            harvested(changed(world, seed=i)),
            queries=world.queries,
            estimators=[estimator],
            traffic=dict(zip(rankers, split, strict=True)),
            seed=i,
        )
        for i in range(4)
    ]

    def forecast_error(pick: Callable[[Plan], Forecast]) -> np.ndarray:
        return np.sqrt(np.mean(np.square([errors(pick(plan)) for plan in plans]), axis=0))

    assert forecast_error(lambda plan: plan.forecasts[0]) / 2 == pytest.approx(
        mean_error(estimator, changed(world, queries=4 * world.queries), 6), rel=0.15
    )
    assert forecast_error(lambda plan: plan.scenarios[0].forecasts[0]) == pytest.approx(
        mean_error(estimator, changed(world, traffic=split), 12), rel=0.15
    )
    joining = forecast_error(lambda plan: plan.scenarios[-1].forecasts[0])
    if estimator == "adjacent-chain":
        # No forecast for a new ranker: this world was within 15%, others were not.
        assert np.isnan(joining).all()
    else:
        assert joining == pytest.approx(mean_error(estimator, more, 12), rel=0.15)


def test_an_assumed_world_is_as_precise_as_its_logs() -> None:
    world = posbias.World(queries=1500, max_rank=4)
    found = posbias.plan(world, estimators=["all-pairs"])
    assert found.assumed
    assert errors(found.forecasts[0]) == pytest.approx(mean_error("all-pairs", world, 4), rel=0.15)


# ---- Arithmetic


def test_the_required_data_give_the_target_precision() -> None:
    se, degrees = np.array([0.001, 0.02, 0.3, np.nan]), np.array([200.0, 30.0, 3.0, np.nan])
    for buckets, queries in ((256, None), (256, 5000), (100, None), (9, 9)):
        times = times_for(0.05, se, degrees, 0.9, buckets, queries)
        assert np.isnan(times[3])
        there = precision_at(times, se, degrees, 0.9, buckets, queries)[:3]
        held = buckets_at(times[:3], buckets, queries)
        # Fewer buckets than make an interval are never enough, however precise.
        assert np.all(held >= 7.99)
        assert np.all(there <= 0.05 * 1.001)
        assert there[held > 8.01] == pytest.approx(0.05, rel=1e-3)


def test_degrees_of_freedom_grow_with_queries() -> None:
    degrees = np.array([5.0, 60.0, 200.0])
    for buckets, queries in ((256, None), (256, 4000), (220, None)):
        assert degrees_at(np.ones(3), degrees, buckets, queries) == pytest.approx(degrees, rel=0.01)
        grown = [degrees_at(np.full(3, times), degrees, buckets, queries) for times in (0.5, 1, 2, 10, 1000)]
        assert np.all(np.diff(grown, axis=0) >= 0)
        assert np.all(grown[-1] <= 255)


def test_degrees_of_freedom_grow_as_they_do_in_logs() -> None:
    def degrees(queries: int) -> np.ndarray:
        world = posbias.World(queries=queries, max_rank=4, skew=0.7)
        each = [1 / measure_errors("all-pairs", harvested(changed(world, seed=i))).degrees[1:] for i in range(4)]
        return 1 / np.mean(each, axis=0)

    few, many = degrees(150), degrees(900)
    buckets = round(256 * -np.expm1(-150 / 256))
    assert np.all(many > 1.5 * few)
    forecast = degrees_at(np.full(3, 6.0), few, buckets, 150)
    assert t_quantile(forecast, 0.975) == pytest.approx(t_quantile(many, 0.975), rel=0.02)


def test_non_negative_least_squares() -> None:
    rng = np.random.default_rng(0)
    design = rng.random((8, 3))
    assert non_negative_least_squares(design, design @ [1.0, 2.0, 3.0]) == pytest.approx([1, 2, 3])
    assert non_negative_least_squares(design, -design @ [1.0, 2.0, 3.0]).tolist() == [0, 0, 0]


def test_a_missing_rank_takes_the_propensity_of_the_rank_above() -> None:
    assert fill_curve(np.array([np.nan, 0.5, np.nan, 0.0, 0.2])).tolist() == [1, 0.5, 0.5, 0.5, 0.2]


# ---- Synthetic harvests and new rankers


def test_a_synthetic_harvest_has_as_many_page_views_and_clicks() -> None:
    harvest = small()
    model = HarvestModel.of(harvest, posbias.CrossFit(interval=None).fit(harvest).propensity_)
    drawn = model.draw(np.array([0.5, 0.5]), np.random.default_rng(0))
    # A bucket may have nothing to compare.
    assert drawn.views.sum() == pytest.approx(harvest.views.sum(), rel=0.05)
    # Only of documents that are at two ranks.
    pairs, again = (h.interventions() for h in (harvest, drawn))
    assert again.clicks.sum() == pytest.approx(pairs.clicks.sum(), rel=0.05)
    assert again.skips.sum() == pytest.approx(pairs.skips.sum(), rel=0.05)


@pytest.mark.parametrize("similarity", [0.3, 0.8, 0.97])
def test_a_new_ranker_differs_from_the_others_as_they_differ_from_each_other(similarity: float) -> None:
    harvest = harvested(posbias.World(queries=300, similarity=similarity))
    model = HarvestModel.of(harvest, 1 / np.arange(1.0, 11.0))
    joined = with_new_ranker(model, 300, np.random.default_rng(0))
    now, then = (
        mean_similarity(model.ranks, model.views),
        mean_similarity(joined.ranks[:, :2], joined.views, joined.ranks[:, 2]),
    )
    assert then.distance == pytest.approx(now.distance, rel=0.05)
    assert then.overlap == pytest.approx(now.overlap, rel=0.05)
    assert joined.views.sum() == pytest.approx(model.views.sum())


def test_the_best_split_of_similar_rankers_is_equal() -> None:
    harvest = small()
    best = best_split(
        HarvestModel.of(harvest, 1 / np.arange(1.0, 6.0)), np.array([0.9, 0.1]), "all-pairs", np.random.default_rng(0)
    )
    assert best is not None
    assert best.sum() == pytest.approx(1)
    assert best[0] == pytest.approx(0.5, abs=0.1)


def test_a_ranker_that_served_nothing_may_be_given_traffic() -> None:
    harvest = harvested(posbias.World(queries=400, max_rank=4, rankers=("a", "b", "c"), traffic=(0.5, 0.5, 0)))
    assert harvest.page_views["c"] == 0
    found = posbias.plan(harvest, estimators=["all-pairs"], traffic={"a": 1, "b": 1, "c": 1})
    assert found.scenarios[0].traffic == pytest.approx({"a": 0.3333, "b": 0.3333, "c": 0.3333})
    assert np.mean(errors(found.scenarios[0].forecasts[0]) / errors(found.forecasts[0])) < 0.95


# ---- The plan as a value


def test_a_plan_has_the_requirement_of_each_rank() -> None:
    found = planned()
    assert [each.estimator for each in found.forecasts] == ["cross-fit", "all-pairs", "pivot-one", "adjacent-chain"]
    assert (found.page_views, found.queries) == (6000, 600)
    for requirement in found.forecast().requirements:
        assert requirement.times is not None
        assert requirement.precision is not None
        assert requirement.queries == pytest.approx(600 * requirement.times, abs=1)
        assert requirement.page_views == pytest.approx(6000 * requirement.times, abs=1)
        assert (requirement.more_queries == 0) == (requirement.precision <= 0.1)
    interval = posbias.CrossFit().fit(small()).interval_
    for requirement in found.forecast().requirements:
        low, high = interval[requirement.rank - 1]
        assert requirement.precision == pytest.approx(np.sqrt(high / low) - 1, rel=0.01)


def test_scenarios_are_of_the_same_page_views() -> None:
    given, *others = planned().scenarios
    assert given.traffic == {"a": 0.9, "b": 0.1}
    assert np.all(errors(given.forecasts[0]) > errors(planned().forecasts[0]))
    assert others[-1].name == "third ranker"
    assert sum(others[-1].traffic.values()) == pytest.approx(1, abs=1e-3)
    assert np.mean(errors(others[-1].forecasts[0]) / errors(planned().forecasts[0])) < 1


def test_every_fit_of_a_scenario_reports_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the search for the best split: a bar that stands still looks like a command that hangs."""
    reported: list[tuple[str, float]] = []
    fits: list[int] = []
    original = forecast_module.error_variances

    def error_variances(name: str, harvest: posbias.Harvest) -> np.ndarray:
        fits.append(len([share for step, share in reported if step == "Forecasting scenarios"]))
        return original(name, harvest)

    monkeypatch.setattr(forecast_module, "error_variances", error_variances)
    posbias.plan(small(), estimators=["all-pairs"], progress=lambda *report: reported.append(report))
    # As many harvests as there are processors are fitted together.
    together = os.cpu_count() or 1
    assert all(number <= before < number + together for number, before in enumerate(sorted(fits), start=1))
    shares = [share for step, share in reported if step == "Forecasting scenarios"]
    assert shares == sorted(set(shares))
    assert shares[0] == 0
    assert shares[-1] < 1


def test_the_same_seed_gives_the_same_plan() -> None:
    one, again = (posbias.plan(small(), estimators=["all-pairs"]).to_dict() for _ in range(2))
    assert one == again
    assert one != posbias.plan(small(), estimators=["all-pairs"], seed=1).to_dict()


def test_threads_do_not_change_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Harvests are fitted in threads, but one after another if the user wants a profile."""
    together = posbias.plan(small(), estimators=["cross-fit"]).to_dict()
    monkeypatch.setattr(forecast_module, "profile_is_on", lambda: True)
    assert posbias.plan(small(), estimators=["cross-fit"]).to_dict() == together


def test_pages_of_synthetic_harvests_are_whole() -> None:
    """Otherwise every fit would have to test whether pages end early."""
    harvest = small()
    model = HarvestModel.of(harvest, posbias.CrossFit(interval=None).fit(harvest).propensity_)
    drawn = model.draw(np.array([0.5, 0.5]), np.random.default_rng(0))
    assert np.all(drawn.counts("ranker", "rank")[0] >= drawn.views.sum(axis=0)[:, None])
    assert PageDepth.of(drawn.strata()) is None


def test_pages_of_synthetic_harvests_end_where_those_of_the_log_do() -> None:
    log = posbias.simulate(posbias.World(queries=400, max_rank=6, similarity=0.6, seed=1))
    page = np.unique(np.array(log.column("impression_id").to_pylist()), return_inverse=True)[1]
    depth = np.random.default_rng(0).choice([3, 6], page.max() + 1)[page]
    harvest = posbias.harvest(posbias.ClickLog(log.filter(log.column("position").to_numpy() <= depth)), max_rank=6)
    model = HarvestModel.of(harvest, posbias.CrossFit(interval=None).fit(harvest).propensity_)
    drawn = model.draw(np.array([0.5, 0.5]), np.random.default_rng(0))
    np.testing.assert_allclose(drawn.impressions, harvest.impressions, rtol=0.08)
    joined = with_new_ranker(model, 400, np.random.default_rng(0)).draw(np.ones(3), np.random.default_rng(0))
    np.testing.assert_allclose(joined.impressions, harvest.impressions, rtol=0.1)


def test_a_plan_is_json_and_text() -> None:
    found = json.loads(json.dumps(planned().to_dict(), allow_nan=False))
    assert found["forecasts"][0]["requirements"][0]["rank"] == 2
    text = planned().to_text()
    assert "queries needed, by estimator" in text
    assert "third ranker" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_rank_without_an_interval_has_a_reason() -> None:
    harvest = harvested(posbias.World(queries=60, max_rank=10, similarity=0.99))
    requirements = posbias.plan(harvest, scenarios=False).forecast("pivot-one").requirements
    lost = [requirement for requirement in requirements if requirement.times is None]
    assert lost
    assert all(requirement.reason and requirement.page_views is None for requirement in lost)


def test_a_rank_with_few_degrees_of_freedom_has_a_range_instead_of_a_number() -> None:
    """A single log knows a standard error to 1/√(2 df), and the required data to twice that."""
    harvest = harvested(posbias.World(queries=300, max_rank=5))
    found = posbias.plan(harvest, queries=300, scenarios=False)
    requirements = found.forecast("pivot-one").requirements
    degrees = np.array([requirement.degrees_of_freedom for requirement in requirements], dtype=np.float64)
    assert (
        degrees.min() < 32 < max(requirement.degrees_of_freedom or 0 for requirement in found.forecast().requirements)
    )
    for requirement in [*requirements, *found.forecast().requirements]:
        assert requirement.precision is not None
        assert (
            (requirement.times is None) == (requirement.queries is None) == ((requirement.degrees_of_freedom or 0) < 32)
        )
        if requirement.times is None:
            assert "too few queries for a precise number" in (requirement.reason or "")
            assert (
                requirement.times_low is None or requirement.times_high is None or requirement.rough_times is not None
            )
            if requirement.rough_times is not None:
                assert (requirement.times_low or 0) < requirement.rough_times < (requirement.times_high or math.inf)
        elif requirement.times_low is not None and requirement.times_high is not None:
            assert requirement.times_low < requirement.times < requirement.times_high
    thin = next(
        requirement for requirement in requirements if requirement.times is None and requirement.times_low is not None
    )
    text = " ".join(found.to_text().split())
    low, high = (format_compact(300 * times) for times in thin.bounds() or ())
    assert f"{low} – {high}" in text
    own = posbias.plan(harvest, queries=300, scenarios=False, estimators=["pivot-one"]).to_text()
    assert re.search(rf"≈ ×[\d.,]+ +{low} – {high} +[\d.,k]+ – [\d.,kM]+ +[\d.,kM]+ – [\d.,kM]+\n", own), own
    assert max(map(len, own.splitlines())) <= 80
    assert "About 95% of the time, what is needed lies in the range" in text
    assert "lies in the range" not in posbias.plan(small(), estimators=["cross-fit"], scenarios=False).to_text()


def test_a_range_covers_what_is_needed() -> None:
    """About 95% of the time, over ranks with a range instead of a number; with all degrees of freedom it was 89%."""
    name, queries, logs = "pivot-one", 300, 100

    def requirements(world: posbias.World) -> Sequence[RankRequirement]:
        return (
            posbias.plan(harvested(world), queries=world.queries, estimators=[name], scenarios=False)
            .forecasts[0]
            .requirements
        )

    world = posbias.World(queries=6000, max_rank=5)
    there = {requirement.rank: requirement.queries or 0 for requirement in requirements(world)}
    found = [
        requirement for i in range(logs) for requirement in requirements(changed(world, queries=queries, seed=100 + i))
    ]
    ranges = [(requirement.rank, requirement.bounds(queries)) for requirement in found if requirement.times is None]
    covered = [low <= there[rank] <= high for rank, (low, high) in ((r, b) for r, b in ranges if b is not None)]
    assert len(covered) > 2 * logs
    assert np.mean(covered) == pytest.approx(0.96, abs=0.025)


def thin_plan(**settings: Any) -> Plan:
    harvest = harvested(posbias.World(queries=40, max_rank=3))
    return posbias.plan(harvest, estimators=["cross-fit"], **settings)


def test_scenarios_without_a_forecast_have_no_column() -> None:
    found = thin_plan(traffic={"a": 0.7, "b": 0.3})
    assert not any(each.forecasts[0].available for each in found.scenarios)
    assert not any(each.name.startswith("best") for each in found.scenarios)
    text = " ".join(found.to_text().split())
    assert "page views with other traffic: no forecast: too few queries." in text
    assert "third ranker" not in text
    assert "Forecasts for other traffic" not in text
    # Beside scenarios with a forecast, one without has its reason and no column.
    chain = posbias.plan(small(), estimators=["adjacent-chain"], traffic={"a": 0.4, "b": 0.6}).to_text()
    rows = chain[chain.index("page views with other traffic") :].splitlines()
    assert "a=0.4 b=0.6" in rows[1]
    assert "third ranker" not in rows[1]
    assert "third ranker: no forecast: this estimator depends on how many" in " ".join(chain.split())


def test_ranges_are_drawn_dashed_and_unknown_ranks_are_not_drawn() -> None:
    found = thin_plan(scenarios=False)
    ranges = [
        requirement
        for requirement in found.forecast().requirements
        if requirement.times is None and requirement.times_low is not None
    ]
    lines = [line for line in found.plot().get_lines() if str(line.get_label()).startswith("rank")]
    assert ranges
    rows = [" ".join(line.split()) for line in found.to_text().splitlines()]
    assert all(any(f" ≈ ×{one.rough_times:.3g} " in row for row in rows) for one in ranges if one.rough_times < 1000)
    assert [line.get_label() for line in lines if line.get_linestyle() == "--"] == [
        f"rank {requirement.rank}, roughly" for requirement in ranges
    ]
    own = found.forecast()
    lost = tuple(replace(requirement, times_low=None, times_high=None) for requirement in own.requirements)
    with pytest.raises(PosbiasError, match="too few queries at every rank"):
        replace(found, forecasts=(replace(own, requirements=lost),)).plot()
    none = tuple(RankRequirement(requirement.rank, reason="no interval") for requirement in own.requirements)
    with pytest.raises(PosbiasError, match="no interval at any rank"):
        replace(found, forecasts=(replace(own, requirements=none),)).plot()


def test_ticks_of_a_plot_do_not_overlap() -> None:
    axes = posbias.plan(small(), queries=600, precision=0.015, scenarios=False).plot()
    axes.figure.draw_without_rendering()  # type: ignore[union-attr]
    low, high = axes.get_xlim()
    labels = [tick.label1 for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    boxes = [label.get_window_extent() for label in labels if label.get_text()]
    assert len(boxes) >= 3
    assert all(one.x1 < two.x0 for one, two in itertools.pairwise(boxes))


def test_estimators_of_one_distance_have_no_forecast_for_a_new_ranker() -> None:
    for name in ("all-pairs", "adjacent-chain"):
        (forecast,) = posbias.plan(harvested(WORLD), estimators=[name]).scenarios[-1].forecasts
        assert forecast.available == (name == "all-pairs")
        reasons = [requirement.reason or "" for requirement in forecast.requirements]
        assert all(("exact distance" in reason) == (name == "adjacent-chain") for reason in reasons)


def test_scenarios_are_forecast_for_the_first_estimator() -> None:
    found = posbias.plan(harvested(WORLD), estimators=["all-pairs", "cross-fit"])
    assert [each.estimator for each in found.forecasts] == ["all-pairs", "cross-fit"]
    assert {forecast.estimator for each in found.scenarios for forecast in each.forecasts} == {"all-pairs"}


def test_a_log_is_harvested_and_its_queries_are_counted() -> None:
    log = posbias.ClickLog(posbias.simulate(posbias.World(queries=200, max_rank=3)))
    found = posbias.plan(log, max_rank=3, scenarios=False)
    assert (found.page_views, found.queries, found.scenarios) == (2000, 200, ())
    assert [requirement.rank for requirement in found.forecast().requirements] == [2, 3]


def test_a_harvest_of_sums_leaves_out_cross_fit() -> None:
    harvest = harvested(posbias.World(queries=300, max_rank=3), max_strata=0)
    assert harvest.kind == "pairs"
    found = posbias.plan(harvest)
    assert [each.estimator for each in found.forecasts] == ["all-pairs", "pivot-one", "adjacent-chain"]
    assert any("left out" in note for note in found.notes)
    with pytest.raises(EstimateError, match="Plan for all-pairs"):
        posbias.plan(harvest, estimators=["cross-fit"])


def test_replay_has_no_scenarios() -> None:
    log = posbias.ClickLog(posbias.simulate(posbias.World(queries=300, max_rank=3), "replay"))
    found = posbias.plan(log, max_rank=3)
    assert found.scenarios == ()
    assert any("replay" in note for note in found.notes)
    with pytest.raises(PosbiasError, match="replay"):
        posbias.plan(log, max_rank=3, traffic={"a": 1, "b": 1})


def test_a_harvest_with_another_weighting_has_no_scenarios() -> None:
    harvest = harvested(posbias.World(queries=300, max_rank=3), weighting="harmonic")
    assert any("weighting 'traffic'" in note for note in posbias.plan(harvest).notes)


def test_sticky_assignment_makes_scenarios_a_rough_guide() -> None:
    harvest = harvested(posbias.World(queries=300, max_rank=3, sticky=True))
    assert any("rough guide" in note for note in posbias.plan(harvest, estimators=["all-pairs"]).notes)
    assert not any("rough guide" in note for note in planned().notes)


def test_a_plan_for_all_segments_together_has_a_note() -> None:
    world = posbias.World(queries=300, max_rank=3, segments={"phone": 1, "desktop": 0.5})
    found = posbias.plan(harvested(world, by=["device"]), scenarios=False)
    assert any("all segments of the harvest together" in note for note in found.notes)


def test_a_log_with_missing_rows_or_pages_beyond_the_top_can_be_planned() -> None:
    rows = posbias.simulate(posbias.World(queries=1000, repeats=1, max_rank=3)).to_pylist()
    thin = [row for i, row in enumerate(rows) if i % 2 == 0]
    below = [row | {"query_id": -1 - i, "position": 9} for i, row in enumerate(rows)]
    for kept in (thin, [*rows, *below]):
        found = posbias.plan(posbias.ClickLog(pa.Table.from_pylist(kept)), max_rank=3, scenarios=False)
        assert found.queries == 1000


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "precision": ({"precision": 0}, "precision must be a share above 0"),
    "level": ({"level": 1.5}, "level must lie between"),
    "estimators": ({"estimators": ["pbm-em"]}, "'pbm-em' is not known"),
    "none": ({"estimators": []}, "found none"),
    "queries": ({"queries": 7}, "7, but the harvest has 30,000 results"),
    "many queries": ({"queries": 10**9}, "distinct queries of the log"),
    "ranker": ({"traffic": {"a": 1, "z": 1}}, "gives a share to 'z'"),
    "one ranker": ({"traffic": {"a": 1}}, "two rankers or more"),
    "negative": ({"traffic": {"a": 1, "b": -1}}, "traffic must give a share of 0 or more"),
    "curve": ({"curve": [1.0, 0.5]}, "curve goes with an assumed world only"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_arguments_raise(name: str) -> None:
    settings, message = BAD[name]
    with pytest.raises(PosbiasError, match=message):
        posbias.plan(small(), **settings)


def test_too_few_queries_raise_with_a_remedy() -> None:
    with pytest.raises(EstimateError, match=r"no interval to plan from.*Harvest more queries"):
        posbias.plan(harvested(posbias.World(queries=5, max_rank=3)))
    with pytest.raises(PosbiasError, match="not a dict"):
        posbias.plan({})  # type: ignore[arg-type]


def test_shares_are_of_all_rankers() -> None:
    assert shares_of({"b": 3, "a": 1}, ["a", "b", "c"]).tolist() == [0.25, 0.75, 0]


# ---- Before there is any data


def test_a_steeper_curve_needs_more_data() -> None:
    world = posbias.World(max_rank=3)
    plans = [
        posbias.plan(world, estimators=["all-pairs"], curve=curve)
        for curve in (None, [1, 0.5, 1 / 3, 0.2], [1, 0.1, 0.05])
    ]
    same, given, steep = (
        [requirement.queries or 0 for requirement in plan.forecasts[0].requirements] for plan in plans
    )
    assert given == pytest.approx(same, rel=1e-6)
    assert all(more > few for more, few in zip(steep, same, strict=True))
    with pytest.raises(PosbiasError, match="each of the 3 ranks"):
        posbias.plan(world, curve=[1, 0.5])


def test_an_assumed_world_without_intervals_has_reasons() -> None:
    found = posbias.plan(posbias.World(max_rank=3, similarity=1.0), estimators=["all-pairs"])
    reasons = [requirement.reason or "" for requirement in found.forecasts[0].requirements]
    assert all("no click at rank 1 in any" in reason for reason in reasons), reasons


def test_an_assumed_world_needs_two_rankers_and_has_its_own_traffic() -> None:
    with pytest.raises(EstimateError, match="Fewer than two of the assumed rankers"):
        posbias.plan(posbias.World(rankers=("a",)))
    with pytest.raises(PosbiasError, match="its own traffic"):
        posbias.plan(posbias.World(), traffic={"a": 1, "b": 1})


# ---- The command


def run(*words: str) -> Any:
    return CliRunner().invoke(cli, ["plan", *words], catch_exceptions=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import pyarrow.parquet as pq

    path = tmp_path_factory.mktemp("plan")
    world = posbias.World(queries=300, max_rank=3)
    pq.write_table(posbias.simulate(world), path / "clicks.parquet")
    pq.write_table(posbias.simulate(world, "replay"), path / "replay.parquet")
    harvest = posbias.harvest(posbias.ClickLog(path / "clicks.parquet"), max_rank=3)
    harvest.save(path / "h.parquet")
    posbias.AllPairs().fit(harvest).curve().save(path / "curve.json")
    return path


def test_the_command_plans_from_a_log_and_from_its_harvest(folder: Path) -> None:
    log = run(str(folder / "clicks.parquet"), "--max-rank", "3", "--json", "--estimator", "all-pairs")
    harvest = run(str(folder / "h.parquet"), "--queries", "300", "--json", "--estimator", "all-pairs")
    assert log.exit_code == harvest.exit_code == 0
    assert json.loads(log.stdout) == json.loads(harvest.stdout)


def test_the_command_prints_and_draws(folder: Path) -> None:
    picture = folder / "plan.png"
    shown = run(str(folder / "h.parquet"), "--precision", "2.5", "--no-scenarios", "--plot", str(picture))
    assert shown.exit_code == 0
    assert "Target: 95% intervals of ±2.5%. Data: 3,000 page views (a " in shown.stdout
    assert "more page views" in shown.stdout
    assert "queries needed" not in shown.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_command_rejects_a_share_in_place_of_percent(folder: Path) -> None:
    shown = run(str(folder / "h.parquet"), "--precision", "0.03", "--no-scenarios")
    assert shown.exit_code == 2
    assert "Write 3 for ±3%" in " ".join(shown.stderr.split())


def test_the_command_assumes_a_curve_of_an_estimate(folder: Path) -> None:
    common = ("--assume", "--max-rank", "3", "--estimator", "all-pairs", "--json")
    found = run(*common, "--curve", str(folder / "curve.json"), "--rankers", "3", "--traffic", "a=2,b=1,c=1")
    assert found.exit_code == 0
    plan = json.loads(found.stdout)
    assert plan["assumed"] is True
    assert plan["traffic"] == {"a": 0.5, "b": 0.25, "c": 0.25}
    assert [each["estimator"] for each in plan["forecasts"]] == ["all-pairs"]


def test_an_edited_curve_file_has_the_error_of_a_curve_file(folder: Path) -> None:
    record = json.loads((folder / "curve.json").read_text())
    # By so little that its interval still holds it.
    record["positions"][1]["propensity"] *= 1.0001
    edited = folder / "edited.json"
    edited.write_text(json.dumps(record))
    found = run("--assume", "--max-rank", "3", "--curve", str(edited))
    assert found.exit_code == 2
    message = " ".join(found.stderr.split())
    assert "its checksum does not match its content" in message
    assert "remove the field 'checksum'" in message
    assert "truth" not in message


COMMANDS: dict[str, tuple[Sequence[str], str]] = {
    "nothing": ((), "LOG is missing"),
    "both": (("--assume", "h.parquet"), "--assume plans without data"),
    "assumed": (("h.parquet", "--eta", "2"), "--eta is for an assumed world only"),
    "of a log": (("--assume", "--click", "x"), "--click is for a log or a harvest only"),
    "decided": (("h.parquet", "--max-rank", "5"), "--max-rank was decided when it was made"),
    "traffic": (("h.parquet", "--traffic", "half"), "such as a=0.5,b=0.5"),
    "ranker": (("h.parquet", "--traffic", "a=1,z=1"), "gives a share to 'z'"),
    "twice": (("--assume", "--traffic", "a=1,b=1", "--traffic", "a=1,b=2"), "Give --traffic once"),
    "rankers": (("--assume", "--rankers", "1"), "expected 2 to 26 rankers"),
    "curve": (("--assume", "--curve", "none.json"), "There is no truth file"),
    "plot": (("h.parquet", "--plot", "plan.txt"), "expected a file name that ends in"),
    "replay": (("replay.parquet", "--max-rank", "3", "--traffic", "a=1,b=1"), "in replay it is not known"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_command_says_what_is_wrong(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, message = COMMANDS[name]
    monkeypatch.chdir(folder)
    found = run(*words)
    assert found.exit_code == 2
    assert message in " ".join(found.stderr.replace("│", " ").split())


# ---- The answer above the tables


def test_a_plan_begins_with_what_is_needed() -> None:
    log = posbias.ClickLog(posbias.simulate(posbias.World(queries=300, max_rank=4)))
    made = posbias.plan(log, max_rank=4, scenarios=False)
    worst = made.forecasts[0].worst
    assert worst is not None
    top = " ".join(made.to_text().split("\n\n")[0].split())
    assert f"for ±5% at every rank; rank {worst.rank} needs the most." in top
    assert f"{worst.times:,.0f} times the present data" in top or f"{worst.times:.2f} times the present data" in top
    enough = posbias.plan(log, max_rank=4, scenarios=False, precision=5.0)
    assert "Needed: no more data. Ranks 2 to 4 already have intervals of ±500%." in enough.to_text()
