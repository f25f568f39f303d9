"""CrossFit: its score against a slow one, its root against other solvers, its fallbacks and its refits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from scipy import optimize, stats

import posbias
from experiments.simulated_logs import buckets_of, draw_log
from posbias._stats import t_quantile
from posbias.estimators import cross_fit
from posbias.estimators.base import (
    ONE_BUCKET_REASON,
    Jackknife,
    deletion_weights,
    explain_few_buckets,
    explain_few_degrees,
    percentile_intervals,
    resample_weights,
)
from posbias.estimators.cross_fit import CellRows, RelevanceGuess, ScoreTerms
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.tables import Cells
from posbias.logs.click_log import Layout
from posbias.simulation import simulate

WORLD = posbias.World(queries=600, rankers=("a", "b", "c"), traffic=(6, 3, 1), max_rank=4, similarity=0.6)


def harvest_of(world: posbias.World, layout: str = "wide") -> Harvest:
    return posbias.harvest(posbias.ClickLog(simulate(world, layout)), max_rank=world.max_rank)


@pytest.fixture(scope="module", params=["wide", "replay"])
def harvest(request: pytest.FixtureRequest) -> Harvest:
    return harvest_of(WORLD, request.param)


def cells(*rows: tuple[int, int, int, int, int, int]) -> Harvest:
    """A harvest from (bucket, stratum, ranker, rank, impressions, clicks)."""
    bucket, stratum, ranker, rank, impressions, clicks = np.array(rows, dtype=np.int64).T
    zero = np.zeros(len(rows), dtype=np.int64)
    table = Cells(zero, bucket, stratum, zero, ranker, rank, impressions, clicks)
    return Harvest(4, ("a", "b"), Layout.WIDE, "traffic", (), ((),), "signatures", table)


def swapped(*links: tuple[int, int, int, int], buckets: int = 8) -> Harvest:
    """A harvest of documents that one ranker puts at k and the other at l, with so many clicks of 1,000 at each."""
    return cells(
        *(
            row
            for b in range(buckets)
            for s, (k, other, c, d) in enumerate(links)
            for i in (0, 1)
            for row in (
                (b, 100 * b + 2 * s + i, i, k, 1000, c + b % 2),
                (b, 100 * b + 2 * s + i, 1 - i, other, 1000, d),
            )
        )
    )


# ---- The score


def score_by_views(strata, x, relevance, a, by_design, equal_clicks):
    """The score as the formulas have it: a cell, a rank and a view at a time."""
    p, total = np.exp(x), np.zeros(strata.max_rank)
    n = strata.views.sum(axis=0)
    found: dict[tuple[int, int], dict[int, list[float]]] = {}
    table = strata.cells
    for s, b, i, k, seen, clicks in zip(
        table.stratum, table.bucket, table.ranker, table.rank, table.impressions, table.clicks, strict=True
    ):
        if by_design or seen:
            at = found.setdefault((s, b), {}).setdefault(k - 1, [0, 0, 0])
            at[0] += seen
            at[1] += clicks
            at[2] += n[i] if by_design else seen
    for (s, _), ranks in found.items():
        if len(ranks) < 2:
            continue
        r0 = relevance[s]
        exposure, clicked = sum(v[0] * p[k] for k, v in ranks.items()), sum(v[1] for v in ranks.values())
        f = {k: 1 if equal_clicks else 1 / (1 - min(p[k] * r0, 0.9)) for k in ranks}
        residual = dict.fromkeys(ranks, 0.0)
        for k, (views, clicks, _) in ranks.items():
            for view in range(int(views)):
                y = view < clicks
                guess = (clicked - y + a * r0) / (exposure - p[k] + a) if by_design else 0.0
                residual[k] += f[k] * (y - p[k] * guess)
        promised = sum(v[2] * p[k] * f[k] for k, v in ranks.items())
        for k, v in ranks.items():
            total[k] += residual[k] - v[2] * p[k] * f[k] / promised * sum(residual.values())
    return total


@pytest.mark.parametrize("equal_clicks", [False, True])
@pytest.mark.parametrize("a", [0.5, 8.0])
def test_score_equals_the_sum_over_views(harvest, a, equal_clicks):
    strata = harvest.strata()
    rng = np.random.default_rng(0)
    x, relevance = np.log(rng.uniform(0.1, 1.4, 4)), rng.uniform(0.05, 0.95, strata.size)
    rows = CellRows.of(strata, by_design=strata.by_design)
    guess = RelevanceGuess(relevance, 1 / a, equal_clicks=equal_clicks)
    found = ScoreTerms.at(x, rows, strata.views.sum(axis=0), guess).by_bucket().sum(axis=0)
    expected = score_by_views(strata, x, relevance, a, strata.by_design, equal_clicks)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("equal_clicks", [False, True])
@pytest.mark.parametrize("trust", [None, 0.0, 0.5, 2.0])
def test_jacobians_are_derivatives_of_the_score(harvest, trust, equal_clicks, monkeypatch):
    strata = harvest.strata()
    rng = np.random.default_rng(1)
    x, n = np.log(rng.uniform(0.1, 1.0, 4)), strata.views.sum(axis=0)
    relevance = rng.uniform(0.05, 0.95, strata.size)
    guess = None if trust is None else RelevanceGuess(relevance, trust, equal_clicks=equal_clicks)
    rows = CellRows.of(strata, by_design=strata.by_design).weighted(rng.integers(0, 3, strata.buckets).astype(float))

    def gradient(x, n):
        return ScoreTerms.at(x, rows, n, guess).by_bucket().sum(axis=0)

    def difference(along, step):
        return (gradient(*along(step)) - gradient(*along(-step))) / (2 * step)

    score = ScoreTerms.at(x, rows, n, guess)
    slope = np.stack([-difference(lambda h, e=e: (x + h * e, n), 1e-5) for e in np.eye(4)], axis=1)
    np.testing.assert_allclose(score.jacobian(), slope, rtol=1e-5, atol=1e-5 * np.abs(slope).max())
    np.testing.assert_allclose(score.jacobian(by_bucket=True).sum(axis=0), slope, atol=1e-5 * np.abs(slope).max())
    dense = score.jacobian()
    monkeypatch.setattr("posbias.estimators.cross_fit._PAIR_COST", 0)
    by_pairs = ScoreTerms.at(x, replace(rows), n, guess).jacobian()
    np.testing.assert_allclose(by_pairs, dense, rtol=1e-12, atol=1e-12 * np.abs(slope).max())
    traffic = np.stack([difference(lambda h, e=e: (x, n + h * e), 1e-2) for e in np.eye(3)], axis=1)
    np.testing.assert_allclose(score.traffic_jacobian(len(n)), traffic, atol=1e-6 * np.abs(slope).max())


def test_chunks_hold_whole_cells(harvest, monkeypatch):
    strata = harvest.strata()
    whole = CellRows.of(strata, by_design=strata.by_design)
    assert len(whole.chunks) == 1
    monkeypatch.setattr("posbias.estimators.cross_fit._CHUNK_ROWS", 64)
    parts = CellRows.of(strata, by_design=strata.by_design).chunks
    assert len(parts) > 5
    assert sum(map(len, parts)) == len(whole)
    assert sum(len(part.cell_bucket) for part in parts) == len(whole.cell_bucket)


@pytest.mark.parametrize("relevance", [0.02, 0.9])
def test_score_has_mean_zero_for_any_guess(relevance):
    """The mean score of 20,000 cells of 3 views at the truth is 0 within chance, whatever relevance is guessed."""
    rng = np.random.default_rng(2)
    p, r, share, times = np.array([1.0, 0.4, 0.2]), 0.5, np.array([0.7, 0.2, 0.1]), 20_000
    shown = rng.choice(3, size=(times, 3), p=share)
    clicked = rng.random((times, 3)) < r * p[shown]
    rows = CellRows(
        cell=np.repeat(np.arange(times), 3),
        rank=np.tile(np.arange(3), times),
        views=(shown[:, :, None] == np.arange(3)).sum(axis=1).ravel().astype(float),
        clicks=((shown[:, :, None] == np.arange(3)) & clicked[:, :, None]).sum(axis=1).ravel().astype(float),
        design_row=np.tile(np.arange(3), times),
        design=np.eye(3),
        cell_bucket=np.arange(times),
        cell_stratum=np.zeros(times, dtype=np.int64),
        cell_weight=np.ones(times),
        mergeable=True,
        buckets=times,
        ranks=3,
    )
    for trust in (0.0, 0.5, 2.0):
        score = ScoreTerms.at(np.log(p), rows, share, RelevanceGuess(np.array([relevance]), trust)).by_bucket()
        error = score.std(axis=0) / np.sqrt(times)
        assert np.all(np.abs(score.mean(axis=0)) < 4 * error)


# ---- The root


@pytest.mark.parametrize("exposure", ["design", "observed"])
def test_without_a_guess_it_is_conditional_poisson_regression(exposure):
    """The maximum of Σ C log(D p / Σ D p), as another solver finds it."""
    harvest = harvest_of(WORLD)
    fitted = posbias.CrossFit(relevance="none", exposure=exposure, interval=None).fit(harvest)
    rows = CellRows.of(harvest.strata(), by_design=exposure == "design")
    promised = rows.promised(harvest.views.sum(axis=0))

    def loss(x):
        expected = promised * np.exp(np.append(0, x))[rows.rank]
        return -(rows.clicks @ np.log(expected / rows.cell_sum(expected)))

    best = optimize.minimize(loss, np.zeros(3), method="BFGS", options={"gtol": 1e-6})
    np.testing.assert_allclose(np.log(fitted.propensity_[1:]), best.x, atol=1e-5)


@pytest.mark.parametrize("guessed", [True, False])
def test_cells_without_clicks_add_nothing_where_the_guess_cancels(harvest, guessed):
    counts = posbias.CrossFit().count(harvest)
    rows, x = counts.rows, np.log([1.0, 0.6, 0.4, 0.3])
    guess = RelevanceGuess(np.linspace(0.05, 0.9, harvest.strata().size), 0.5) if guessed else None
    assert len(rows.clicked_cells) < len(rows)
    every = ScoreTerms.at(x, rows, counts.traffic, guess)
    score, jacobian = cross_fit.score_and_jacobian(x, rows, counts.traffic, guess)
    expansion = cross_fit.ScoreExpansion.at(cross_fit.Solution(x, guess), rows, counts.traffic, by_bucket=True)
    scale = np.abs(jacobian).max()
    for found, expected in (
        (score, rows.sum_by_rank(every.score)),
        (jacobian, every.jacobian()),
        (expansion.score, every.by_bucket()),
        (expansion.jacobian, every.jacobian(by_bucket=True)),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12 * scale)


@pytest.mark.parametrize("weighted", [False, True])
def test_equal_cells_count_as_often_as_they_occur(weighted):
    counts = posbias.CrossFit().count(harvest_of(replace(WORLD, queries=2000, repeats=2)))
    times = np.arange(counts.buckets) % 3 if weighted else np.ones(counts.buckets)
    rows, x = counts.rows.weighted(times.astype(float)), np.log([1.0, 0.6, 0.4, 0.3])
    guess = RelevanceGuess(np.linspace(0.05, 0.9, int(rows.cell_stratum.max()) + 1), 0.5)
    added_up, number = rows.equal_cells
    assert rows.has_equal_cells
    assert len(added_up) < len(rows) / 2
    np.testing.assert_allclose(added_up.cell_weight, np.bincount(number, weights=rows.cell_weight))
    every = ScoreTerms.at(x, rows, counts.traffic, guess)
    score, jacobian = cross_fit.score_and_jacobian(x, rows, counts.traffic, guess)
    np.testing.assert_allclose(score, rows.sum_by_rank(every.score), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(jacobian, every.jacobian(), rtol=1e-9, atol=1e-9 * np.abs(jacobian).max())


def test_refits_by_equal_cells_are_those_of_all_cells(monkeypatch):
    harvest = harvest_of(replace(WORLD, queries=2000, repeats=2))
    counts = posbias.CrossFit().count(harvest)
    assert counts.rows.has_equal_cells
    weights = deletion_weights(counts.buckets)[::40]
    found = np.array([counts._refit_fully(each) for each in weights])
    monkeypatch.setattr(cross_fit, "_FEW_VIEWS", 0)
    plain = posbias.CrossFit().count(harvest)
    assert not plain.rows.has_equal_cells
    np.testing.assert_allclose(found, [plain._refit_fully(each) for each in weights], rtol=1e-7)


def test_curve_is_a_root_of_its_score(harvest):
    counts = posbias.CrossFit().count(harvest)
    root, lost = counts._fit
    assert lost is None
    score = ScoreTerms.at(root.x, counts.rows, counts.traffic, root.guess).by_bucket().sum(axis=0)
    assert np.abs(score).max() < 1e-6 * counts.rows.clicks.sum()
    assert counts.notes == ()


def test_a_second_root_falls_back_on_no_guess(monkeypatch):
    harvest = harvest_of(WORLD)
    plain = posbias.CrossFit(relevance="none", interval=None).fit(harvest).propensity_
    monkeypatch.setattr(cross_fit, "is_only_root", lambda *_: False)
    fitted = posbias.CrossFit().fit(harvest)
    np.testing.assert_allclose(fitted.propensity_, plain, rtol=1e-9)
    assert "a second root" in fitted.curve().notes[0]
    assert "! The estimating equations with guessed relevance have a second root" in str(fitted.curve())


def test_a_second_root_is_searched_for(monkeypatch):
    counts = posbias.CrossFit().count(harvest_of(WORLD))
    root, _ = counts._fit
    ranks = np.ones(4, dtype=bool)
    elsewhere = np.append(root.x[:3], root.x[3] + 1)
    for found, alone in ((root.x, True), (None, True), (elsewhere, False)):
        monkeypatch.setattr(cross_fit, "solve_score", lambda *_, found=found, **__: found)
        assert cross_fit.is_only_root(root.x, root.x, counts.rows, counts.traffic, root.guess, ranks) is alone


def test_failed_newton_falls_back_on_no_guess(monkeypatch):
    harvest, newton = harvest_of(WORLD), cross_fit.solve_score
    plain = posbias.CrossFit(relevance="none", interval=None).fit(harvest).propensity_

    def lost(x, rows, traffic, guess, ranks, **how):
        return None if guess is not None else newton(x, rows, traffic, guess, ranks, **how)

    monkeypatch.setattr(cross_fit, "solve_score", lost)
    fitted = posbias.CrossFit().fit(harvest)
    np.testing.assert_allclose(fitted.propensity_, plain, rtol=1e-6)
    assert "no root near the start" in fitted.curve().notes[0]


@pytest.mark.parametrize("relevance", ["none", "signature"])
def test_cells_with_proportional_exposure_may_be_merged(harvest, relevance):
    counts = posbias.CrossFit(relevance=relevance).count(harvest)
    root, guess = counts._fit[0]
    assert len(counts.rows.merged.cell_bucket) < len(counts.rows.cell_bucket)
    if relevance == "signature" and counts.rows.design is not None:
        return
    whole, merged = (
        ScoreTerms.at(root, rows, counts.traffic, guess).jacobian() for rows in (counts.rows, counts.rows.merged)
    )
    np.testing.assert_allclose(whole, merged, rtol=1e-9, atol=1e-9 * np.abs(whole).max())


# ---- Ranks without an estimate or an interval


def test_unconnected_ranks_have_a_reason():
    fitted = posbias.CrossFit().fit(swapped((1, 2, 300, 150), (3, 4, 200, 100)))
    np.testing.assert_allclose(fitted.propensity_[:2], [1, 0.5], rtol=0.01)
    assert np.isnan(fitted.propensity_[2:]).all()
    assert all("connects it to rank 1" in reason for reason in fitted.reasons_[2:])


def test_clicks_on_one_side_only_do_not_identify_a_rank():
    fitted = posbias.CrossFit().fit(swapped((1, 2, 300, 150), (2, 3, 100, 0), (3, 4, 100, 50)))
    assert np.isnan(fitted.propensity_[2:]).all()
    assert "clicked on one side only" in fitted.reasons_[2]


def test_a_rank_without_a_click_is_0_without_an_interval():
    fitted = posbias.CrossFit().fit(swapped((1, 2, 300, 150), (1, 3, 200, 0)))
    assert fitted.propensity_[2] == 0
    assert np.isnan(fitted.interval_[2]).all()
    assert "no click at rank 3" in fitted.reasons_[2]
    assert "no document that appears at this rank" in fitted.reasons_[3]


def test_propensities_may_exceed_one():
    fitted = posbias.CrossFit(interval=None).fit(swapped((1, 2, 200, 400), (2, 3, 100, 150)))
    np.testing.assert_allclose(fitted.propensity_[:3], [1, 2, 3], rtol=0.02)


def test_one_stratum_is_enough():
    fitted = posbias.CrossFit().fit(
        cells(*((b, b, i, 1 + i, 1000, 300 - 150 * i + b) for b in range(9) for i in (0, 1)))
    )
    np.testing.assert_allclose(fitted.propensity_[:2], [1, 0.5], rtol=0.05)
    assert fitted.interval_[1, 0] < fitted.propensity_[1] < fitted.interval_[1, 1]


@pytest.mark.parametrize("kind", [posbias.CrossFit, posbias.AllPairs, posbias.PivotOne])
def test_few_buckets_make_no_interval(kind):
    for buckets in (1, 7):
        fitted = kind().fit(swapped((1, 2, 300, 150), buckets=buckets))
        assert fitted.propensity_[1] > 0
        assert np.isnan(fitted.interval_).all()
        assert np.isnan(fitted.degrees_of_freedom_).all()
        assert fitted.reasons_[0] is None
        assert fitted.reasons_[1] == explain_few_buckets(buckets)
        assert f"only {buckets} bucket" in fitted.reasons_[1]
        text = fitted.summary().to_text()
        assert "no interval\n" in text.splitlines(keepends=True)[0]
        assert "%" not in text
        assert kind(interval="bootstrap").fit(swapped((1, 2, 300, 150), buckets=buckets)).reasons_ == fitted.reasons_


@pytest.mark.parametrize("kind", [posbias.CrossFit, posbias.AllPairs])
def test_percentile_intervals_of_few_queries_carry_a_warning(kind):
    thin = harvest_of(posbias.World(queries=12, repeats=100, max_rank=3))
    reasons = kind().fit(thin).reasons_
    assert reasons[1] == explain_few_degrees()
    expected = [reason and f"{reason}, so percentile intervals are too narrow" for reason in reasons]
    fitted = kind(interval="bootstrap", bootstrap=200).fit(thin)
    assert fitted.reasons_ == expected
    assert np.isnan(fitted.degrees_of_freedom_).all()
    assert kind(interval="bootstrap", bootstrap=200).fit(harvest_of(WORLD)).reasons_ == [None] * WORLD.max_rank


def test_a_rank_that_depends_on_one_bucket_has_no_interval():
    rows = [swapped((1, 2, 300, 150)).table, swapped((2, 3, 100, 50), buckets=1).table]
    rows[1] = replace(rows[1], stratum=rows[1].stratum + 10_000)
    harvest = replace(swapped((1, 2, 300, 150)), table=Cells.concatenate(rows))
    for kind in (posbias.CrossFit, posbias.AllPairs):
        fitted = kind().fit(harvest)
        assert fitted.propensity_[2] > 0
        assert np.isnan(fitted.interval_[2]).all()
        assert fitted.reasons_[2] == ONE_BUCKET_REASON


def test_sums_over_pairs_have_no_strata():
    log = posbias.ClickLog(simulate(posbias.World(queries=200, max_rank=4), "replay"))
    sums = posbias.harvest(log, max_rank=4, max_strata=1)
    with pytest.raises(posbias.HarvestError, match="AllPairs"):
        posbias.CrossFit().fit(sums)


def test_replay_has_no_design():
    with pytest.raises(posbias.EstimateError, match="no exposure by design"):
        posbias.CrossFit(exposure="design").fit(harvest_of(WORLD, "replay"))
    with pytest.raises(posbias.EstimateError, match=r"exposure must be one of"):
        posbias.CrossFit(exposure="x").fit(harvest_of(WORLD))
    with pytest.raises(posbias.EstimateError, match=r"relevance must be one of"):
        posbias.CrossFit(relevance="x").fit(harvest_of(WORLD))


def test_sticky_assignment_is_detected_without_a_warning():
    fitted = posbias.CrossFit().fit(harvest_of(replace(WORLD, sticky=True, queries=2000)))
    assert 8 < fitted.dispersion_ < 12
    assert fitted.notes_ == ()
    by_signature = posbias.CrossFit(relevance="signature").fit(harvest_of(replace(WORLD, sticky=True, queries=2000)))
    np.testing.assert_array_equal(fitted.propensity_, by_signature.propensity_)
    assert by_signature.notes_ == ()
    assert posbias.CrossFit().fit(harvest_of(WORLD)).dispersion_ == pytest.approx(1, abs=0.1)
    assert np.isnan(posbias.CrossFit().fit(harvest_of(WORLD, "replay")).dispersion_)


# ---- Traffic that a few queries distort


def inflated(world: posbias.World, rows: int, impressions: int = 10**6, rate: float = 0.5) -> Harvest:
    """A harvest in which so many aggregated rows, each of another query, have that many impressions."""
    log = simulate(world).to_pandas()
    ranks = [name for name in log if name.startswith("rank_")]
    keys = ["query_id", "doc_id", "ranker", "position", *ranks]
    counts = log.groupby(keys, dropna=False)["clicked"].agg(["size", "sum"]).astype("int64").reset_index()
    counts = counts.rename(columns={"size": "impressions", "sum": "clicks"}).astype(dict.fromkeys(ranks, "Int64"))
    which = counts.index[(counts.position == 1) & (counts.ranker == "a")][:rows]
    counts.loc[which, ["impressions", "clicks"]] = impressions, int(rate * impressions)
    table = posbias.ClickLog(counts, impressions="impressions", clicks="clicks")
    return posbias.harvest(table, max_rank=world.max_rank)


LOPSIDED = {
    "10 views a query": posbias.World(queries=400, max_rank=4),
    "one view a query": posbias.World(queries=4000, repeats=1, max_rank=4),
    "sticky": posbias.World(queries=400, sticky=True, max_rank=4),
}


@pytest.mark.parametrize("rate", [0.01, 0.5])
@pytest.mark.parametrize("impressions", [10**5, 10**6, 10**8])
@pytest.mark.parametrize("world", LOPSIDED.values(), ids=LOPSIDED)
def test_one_row_with_most_of_the_impressions_does_not_decide_the_curve(world, impressions, rate):
    fitted = posbias.CrossFit().fit(inflated(world, 1, impressions, rate))
    plain = posbias.CrossFit().fit(inflated(world, 0))
    # Its bucket of queries is missing, and nothing else.
    np.testing.assert_allclose(fitted.propensity_, plain.propensity_, rtol=0.06)
    [left_out] = [note for note in fitted.notes_ if note.startswith("1 of ")]
    assert "aggregated row" in left_out
    assert not any("left out" in note for note in plain.notes_)
    half = np.log(fitted.interval_[1:, 1] / fitted.propensity_[1:])
    assert np.all(np.abs(np.log(fitted.propensity_ / world.propensity))[1:] < 1.6 * half)


def test_several_dominant_rows_are_left_out_but_too_many_give_no_curve():
    world = LOPSIDED["10 views a query"]
    plain = posbias.CrossFit().fit(inflated(world, 0)).propensity_
    np.testing.assert_allclose(posbias.CrossFit().fit(inflated(world, 6)).propensity_, plain, rtol=0.1)
    counts = posbias.CrossFit().count(inflated(world, 40))
    assert np.isnan(counts.estimate).all()
    assert all("no curve fits the traffic" in reason for reason in counts.reasons())


@pytest.mark.parametrize("sticky", [False, True])
def test_very_unequal_queries_are_all_counted(sticky):
    world = posbias.World(queries=300, repeats=30, skew=2.5, sticky=sticky, max_rank=4)
    for seed in range(5):
        harvest = harvest_of(replace(world, seed=seed))
        counts = posbias.CrossFit().count(harvest)
        assert counts.buckets == len(harvest.buckets)
        assert counts.left_out_note is None


def test_sticky_queries_bound_the_degrees_of_freedom():
    world = posbias.World(queries=300, skew=2.5, sticky=True, rankers=tuple("abcde"), max_rank=4)
    harvest = harvest_of(world)
    shares = harvest.views / harvest.views.sum(axis=0)
    few = 1 / (shares**2).sum(axis=0).max()
    fitted = posbias.CrossFit().fit(harvest)
    assert few < 10
    np.testing.assert_allclose(fitted.degrees_of_freedom_[1:], np.minimum(fitted.degrees_of_freedom_[1:], few))
    assert fitted.degrees_of_freedom_.max() == pytest.approx(few)
    for other in (replace(world, sticky=False), replace(world, skew=0, queries=2000)):
        counts = posbias.CrossFit().count(harvest_of(other))
        assert counts.max_degrees == np.inf


@pytest.mark.long
def test_intervals_cover_the_truth_with_few_large_sticky_queries():
    world = posbias.World(queries=1000, skew=2.5, sticky=True, rankers=tuple("abcde"))
    buckets = buckets_of(world.queries)
    held = []
    for seed in range(60):
        fitted = posbias.CrossFit().fit(draw_log(replace(world, seed=seed), buckets).harvest(Layout.WIDE))
        low, high = fitted.interval_[1:].T
        held.append(((low < world.propensity[1:]) & (world.propensity[1:] < high)).mean())
    assert np.mean(held) > 0.92


# ---- Refits


def test_one_step_deletions_agree_with_full_refits(harvest):
    """Standard errors agree within 1% with those of fits that see the rest alone, n anew, from the same guesses."""
    counts = posbias.CrossFit().count(harvest)
    weights = deletion_weights(counts.buckets)
    steps, fits = counts.refits(weights), np.array([counts._refit_fully(each) for each in weights])
    one, other = (np.sqrt((np.log(refits / counts.estimate) ** 2).sum(axis=0))[1:] for refits in (steps, fits))
    np.testing.assert_allclose(one, other, rtol=0.01)


def test_refit_without_a_bucket_equals_the_fit_of_the_rest():
    """Guesses made anew jump with the edges of their bins; without any, the refit is that of the rest of the log."""
    harvest = harvest_of(WORLD)
    counts = posbias.CrossFit(relevance="none").count(harvest)
    for place in (0, 7, 100):
        rest = replace(harvest, table=harvest.table.where(harvest.table.bucket != harvest.buckets[place]))
        anew = posbias.CrossFit(relevance="none", interval=None).fit(rest).propensity_
        np.testing.assert_allclose(counts._refit_fully(deletion_weights(counts.buckets)[place]), anew, rtol=1e-9)


def test_one_step_resamples_agree_with_full_refits(harvest):
    counts = posbias.CrossFit().count(harvest)
    weights = resample_weights(counts.buckets, 20, seed=1)
    steps, fits = counts.refits(weights), np.array([counts._refit_fully(each) for each in weights])
    assert np.abs(np.log(steps / fits)).max() < 0.15 * np.log(fits[:, 1:]).std(axis=0).min()


def test_a_ranker_that_only_one_bucket_has():
    """Leaving that bucket out leaves its ranker without traffic, and what only it compared without a link."""
    rows = [(b, 10 * b + s, i, k, 500, 200 // k + b) for b in range(10) for s, i, k in ((0, 0, 1), (0, 1, 2))]
    rows += [(0, 5, 0, 1, 500, 200), (0, 5, 2, 3, 500, 70)]
    rows += [
        (b, 10 * b + 6, i, k, 300 * (i < 2 or b == 0), (200 // k) * (i < 2))
        for b in range(10)
        for i, k in ((0, 1), (2, 3))
    ]
    harvest = replace(cells(*rows), rankers=("a", "b", "c"))
    fitted = posbias.CrossFit().fit(harvest)
    assert np.isfinite(fitted.interval_[1]).all()
    assert np.isnan(fitted.interval_[2]).all()
    assert fitted.reasons_[2] == ONE_BUCKET_REASON


def test_jackknife_by_hand():
    estimate = np.array([1.0, 0.5, 0.25, 0.1])
    moved = np.array([[0, d, 0, 0] for d in (0.1, -0.1, 0.05, -0.05, 0.4, -0.1, 0.02, -0.02)])
    refits = estimate * np.exp(moved)
    refits[0, 3] = np.nan
    found = Jackknife(estimate, refits).intervals(0.9)
    d = moved[:, 1]
    variance = 7 / 8 * (d**2).sum()
    degrees = 2 * (d**2).sum() ** 2 / ((d**4).sum() - (d**2).sum() ** 2 / 8)
    assert 1 < degrees < 7
    half = stats.t.ppf(0.95, degrees) * np.sqrt(variance)
    np.testing.assert_allclose(found.bounds[1], 0.5 * np.exp([-half, half]))
    np.testing.assert_allclose([found.covariance[1, 1], found.degrees[1]], [variance, degrees])
    np.testing.assert_array_equal(found.bounds[0], [1, 1])
    assert np.isnan(found.bounds[2:]).all()
    assert [found.reasons[k] for k in (0, 2, 3)] == [
        None,
        "no interval: leaving out queries does not change the estimate; log more queries",
        ONE_BUCKET_REASON,
    ]
    assert found.reasons[1] == "few queries determine the estimate (fewer than 10 degrees of freedom)"


def test_degrees_of_freedom_count_informative_buckets_only():
    estimate = np.array([1.0, 0.5])
    moved = np.zeros((20, 2))
    moved[:, 1] = 0.005
    moved[:3, 1] = 0.1, -0.1, 0.1
    found = Jackknife(estimate, estimate * np.exp(moved)).intervals(0.95)
    # By Satterthwaite alone they would be 7, and an interval 1.8 times too narrow.
    assert found.degrees.tolist() == [19, 2]


def test_useless_intervals_are_not_reported():
    estimate = np.array([1.0, 0.5, 0.25])
    moved = np.zeros((10, 3))
    moved[:, 1] = 1e-8 * (-1.0) ** np.arange(10)
    moved[0, 2] = 9.0
    found = Jackknife(estimate, estimate * np.exp(moved)).intervals(0.95)
    assert np.isnan(found.bounds[1:]).all()
    assert found.reasons[1] == "no interval: leaving out queries does not change the estimate; log more queries"
    assert found.reasons[2] == "no interval: too few queries determine the estimate; log more queries"
    few = percentile_intervals(estimate, np.tile(estimate, (5, 1)), 0.95)
    assert np.isnan(few.bounds).all()
    assert few.reasons[1] == "no interval: 5 resamples are too few for a level of 95%"


@pytest.mark.parametrize("level", [0.5, 0.75, 0.9, 0.95, 0.975, 0.995, 0.9999, 0.9999999])
def test_quantiles_of_t(level):
    degrees = np.array([1, 1.3, 2, 2.7, 3, 5, 8.1, 15, 40, 100, 255, 1000])
    np.testing.assert_allclose(t_quantile(degrees, level), stats.t.ppf(level, degrees), rtol=1e-8, atol=1e-12)
    assert np.isnan(t_quantile(np.array([np.nan]), level)).all()


def test_joint_bands_are_wider_by_bonferroni():
    curve = posbias.CrossFit(level=0.9).fit(harvest_of(WORLD)).curve()
    alone = posbias.CrossFit(level=1 - 0.1 / 3).fit(harvest_of(WORLD)).curve()
    np.testing.assert_allclose(curve.joint(), alone.interval, rtol=1e-9)
    np.testing.assert_allclose(curve.joint(0.5)[1:, 0] > curve.joint()[1:, 0], True)
    assert "joint band" in curve.to_text(joint=True)
    assert curve.to_dict(joint=True)["positions"][1]["joint_low"] == curve.joint()[1, 0]
    assert curve.to_csv(joint=True).splitlines()[0].endswith("joint_low,joint_high")
    with pytest.raises(posbias.CurveError, match="jackknife"):
        posbias.CrossFit(interval="bootstrap").fit(harvest_of(WORLD)).curve().joint()


# ---- Size


@pytest.mark.long
def test_a_million_cells():
    rng = np.random.default_rng(3)
    count, p = 1_000_000, 1 / np.arange(1, 11)
    one = rng.integers(0, 10, count)
    two = (one + rng.integers(1, 10, count)) % 10
    rank, ranker = np.stack([one, two], axis=1).ravel(), np.tile([0, 1], count)
    views = rng.poisson(3, 2 * count)
    clicks = rng.binomial(views, np.repeat(rng.uniform(0.1, 0.9, count), 2) * p[rank])
    zero = np.zeros(2 * count, dtype=np.int64)
    stratum = np.repeat(np.arange(count), 2)
    table = Cells(zero, stratum % 256, stratum, zero, ranker, rank + 1, views, clicks)
    harvest = Harvest(10, ("a", "b"), Layout.WIDE, "traffic", (), ((),), "signatures", table)
    fitted = posbias.CrossFit().fit(harvest)
    low, high = fitted.interval_[1:].T
    assert np.all((low < p[1:] * 1.02) & (high > p[1:] * 0.98))


def test_one_jacobian_serves_all_buckets_if_memory_is_short(monkeypatch):
    harvest = harvest_of(replace(WORLD, queries=2000))
    own = posbias.CrossFit().fit(harvest)
    monkeypatch.setattr(cross_fit, "_MAX_JACOBIAN_NUMBERS", 1000)
    counts = posbias.CrossFit().count(harvest)
    assert counts._expansion.jacobian.ndim == 2
    shared = posbias.CrossFit().fit(harvest)
    np.testing.assert_allclose(np.diag(shared.covariance_)[1:], np.diag(own.covariance_)[1:], rtol=0.02)


def test_rankers_that_never_agree_on_a_rank_keep_their_own_traffic() -> None:
    """No two cells are of one row then, and rows of the second ranker are in another order than its cells."""
    rows = [
        {
            "query_id": q,
            "doc_id": f"{q}-{d}",
            "ranker": ranker,
            "position": k,
            "impressions": n,
            "clicks": int(n * r / k),
        }
        | {"rank_a": d, "rank_b": 3 - d}
        for q in range(40)
        for ranker, n in (("a", 800), ("b", 200))
        for d, r in ((1, 0.5), (2, 0.25))
        for k in (d if ranker == "a" else 3 - d,)
    ]
    log = posbias.ClickLog(pa.Table.from_pylist(rows), impressions="impressions", clicks="clicks")
    harvest = posbias.harvest(log, max_rank=2)
    for relevance in ("guessed", "signature", "none"):
        found = posbias.CrossFit(relevance=relevance, interval=None).fit(harvest).propensity_
        assert found == pytest.approx([1, 0.5], rel=1e-6), relevance
