"""Test the numbering of strata against a dictionary, and an estimator on them against brute force."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import fields
from typing import Any

import numpy as np
import pandas
import pytest
from scipy.optimize import minimize

import posbias
from posbias import _arrays as arrays
from posbias._arrays import FloatArray, sum_by_index
from posbias.engines.duckdb import DuckDBLog
from posbias.estimators import Estimator
from posbias.estimators.base import Reasons, resample_weights
from posbias.harvesting import tables
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.tables import Cells, Strata
from posbias.logs.click_log import Layout
from posbias.simulation.simulate import rank

LAYOUTS = ["wide", "long", "replay"]
WORLD = posbias.World(
    queries=1500, repeats=4, max_rank=4, similarity=0.5, traffic=(0.7, 0.3), segments={"phone": 1.0, "desk": 1.0}
)


class ConditionalPoisson(Estimator[Strata]):
    """Clicks of a stratum over its ranks are multinomial by D_k p_k: argmax Σ_s Σ_k C_sk log(D_sk p_k / Σ_j D_sj p_j).

    D_k is what traffic promised where ranks are known, and what was observed in replay. Concave in log p.
    """

    name = "conditional-poisson"

    def count(self, harvest: Harvest) -> Strata:
        return harvest.strata()

    def curves(self, counts: Strata, weights: FloatArray) -> FloatArray:
        exposure, clicks = self.tables(counts, weights)
        at, of = clicks.sum(axis=-2), clicks.sum(axis=-1, keepdims=True)
        x = np.zeros(at.shape)
        for _ in range(100):
            share = exposure * np.exp(x)[..., None, :]
            share = np.divide(share, share.sum(axis=-1, keepdims=True), out=np.zeros_like(share), where=of > 0)
            expected = (of * share).sum(axis=-2)
            hessian = np.eye(len(x.T)) * expected[..., None] - np.swapaxes(of * share, -1, -2) @ share
            step = (np.linalg.pinv(hessian, hermitian=True) @ (at - expected)[..., None])[..., 0]
            x = x + np.clip(step, -1, 1)
            if np.abs(step).max(initial=0) < 1e-12:
                break
        linked = np.linalg.matrix_power(np.abs(hessian) > 1e-9, len(x.T))[..., 0, :] > 0
        return np.where(linked & (at[..., :1] > 0), np.where(at > 0, np.exp(x - x[..., :1]), 0.0), np.nan)

    def tables(self, counts: Strata, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return D and C as (..., S, M), in strata at several ranks alone: the others cancel."""
        cells, shape = counts.cells, (counts.size, counts.max_rank)
        place, size = cells.stratum * shape[1] + cells.rank - 1, shape[0] * shape[1]
        put, first = np.unique(place * counts.views.shape[1] + cells.ranker, return_index=True)
        if counts.by_design:
            rankers = sum_by_index(put, np.ones(len(put)), size * counts.views.shape[1]).reshape(size, -1)
            exposure = weights @ counts.views @ rankers.T
        else:
            exposure = sum_by_index(place[first], cells.impressions[first] / cells.pairs[first], size)
        clicks = weights @ sum_by_index(cells.bucket * size + place, cells.clicks, counts.buckets * size).reshape(
            -1, size
        )
        exposure, clicks = (table.reshape(*table.shape[:-1], *shape) for table in (exposure, clicks))
        return exposure, clicks * ((exposure > 0).sum(axis=-1, keepdims=True) > 1)

    def reasons(self, counts: Strata) -> Reasons:
        return ["no stratum with clicks connects it to rank 1"] * counts.max_rank


def harvest_of(layout: str, **settings: Any) -> Harvest:
    log = posbias.ClickLog(posbias.simulate(WORLD, layout), rankings=rank(WORLD) if layout == "long" else None)
    harvested = posbias.harvest(log, **({"max_rank": WORLD.max_rank} | settings))
    assert harvested.layout == layout
    return harvested


@pytest.fixture(scope="module", params=LAYOUTS)
def harvest(request) -> Harvest:
    return harvest_of(request.param)


# ---- The numbers


Signature = tuple[tuple[int, int, int], ...]


def slow_strata(harvest: Harvest) -> dict[tuple[Signature, int], Counter[tuple[Any, ...]]]:
    """Pairs, impressions and clicks by signature (ranker, rank, impressions a pair) and bucket, cell by cell."""
    table = harvest.table
    rows = [dict(zip(table.columns(), row, strict=True)) for row in zip(*table.columns().values(), strict=True)]
    served = {i for i, name in enumerate(harvest.rankers) if harvest.page_views[name]}
    found: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        own = found[row["stratum"]]
        # In replay it does not matter who showed a pair.
        same = [r for r in own if r["rank"] == row["rank"]] if harvest.kind == "exposures" else []
        if same:
            same[0].update({name: same[0][name] + row[name] for name in ("impressions", "clicks")})
        elif row["ranker"] in served:
            own.append(row | ({"ranker": 0} if harvest.kind == "exposures" else {}))
    summed: dict[tuple[Signature, int], Counter[tuple[Any, ...]]] = defaultdict(Counter)
    for stratum in found.values():
        each = [(r["ranker"], r["rank"], r["impressions"] // r["pairs"] if r["pairs"] else 0) for r in stratum]
        for row in stratum:
            cell = summed[tuple(sorted(each)), row["bucket"]]
            for name in ("pairs", "impressions", "clicks"):
                cell[row["ranker"], row["rank"], name] += int(row[name])
    return summed


def assert_strata(harvest: Harvest) -> None:
    strata, slow = harvest.strata(), slow_strata(harvest)
    cells = strata.cells
    order = np.lexsort((cells.rank, cells.ranker, cells.stratum, cells.bucket))
    np.testing.assert_array_equal(order, np.arange(len(cells)))
    signature: dict[int, Signature] = {}
    found: dict[tuple[Signature, int], Counter[tuple[Any, ...]]] = defaultdict(Counter)
    for number in range(strata.size):
        own = cells.where(cells.stratum == number)
        for bucket in np.unique(own.bucket):
            part = own.where(own.bucket == bucket)
            each = np.where(part.pairs > 0, part.impressions // np.maximum(part.pairs, 1), 0)
            key = tuple(zip(part.ranker.tolist(), part.rank.tolist(), each.tolist(), strict=True))
            # The same in every bucket.
            assert signature.setdefault(number, key) == key
            for name in ("pairs", "impressions", "clicks"):
                for ranker, k, value in zip(part.ranker, part.rank, getattr(part, name), strict=True):
                    assert (ranker, k, name) not in found[key, harvest.buckets[bucket]]
                    found[key, harvest.buckets[bucket]][ranker, k, name] = int(value)
    assert len(set(signature.values())) == strata.size
    assert found == slow
    assert strata.buckets == len(harvest.buckets)
    np.testing.assert_array_equal(strata.views, harvest.views)


def test_stratum_numbers_agree_with_a_dictionary(harvest):
    assert_strata(harvest)
    assert harvest.strata().by_design == (harvest.layout != "replay")
    assert harvest.strata().size < len(harvest.table)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_segments_are_summed_and_separated(layout):
    whole = harvest_of(layout, by=["device"])
    assert_strata(whole)
    for key in whole.segments:
        assert_strata(whole.segment(key))
    if layout != "replay":
        plain = harvest_of(layout).strata()
        for column in fields(Cells):
            mine = getattr(whole.strata().cells, column.name)
            np.testing.assert_array_equal(mine, getattr(plain.cells, column.name))


def test_replay_by_segments_compares_within_segments_like_windows():
    """As docs/segments.md says of the curve of all."""
    table = posbias.simulate(WORLD, layout="replay")
    plain, apart = posbias.ClickLog(table), posbias.ClickLog(table, window="device")
    one, by, within = (
        posbias.CrossFit(interval=None).fit(harvest).propensity_
        for harvest in (posbias.harvest(plain), posbias.harvest(plain, by=["device"]), posbias.harvest(apart))
    )
    np.testing.assert_allclose(by, within)
    assert not np.allclose(by, one)


@pytest.mark.parametrize(("layout", "ranker"), [("wide", "ranker"), ("replay", "ranker"), ("replay", "none")])
def test_cells_made_in_parts_equal_cells_made_at_once(layout, ranker, monkeypatch):
    log = posbias.ClickLog(posbias.simulate(WORLD, layout), ranker=ranker)
    at_once = posbias.harvest(log, max_rank=4, by=["device"])
    monkeypatch.setattr(arrays, "_BLOCK", 7)
    by_parts = posbias.harvest(log, max_rank=4, by=["device"])
    # Merging puts them in order, which an engine may not do.
    one, other = (posbias.merge([harvest]).table.columns() for harvest in (at_once, by_parts))
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert by_parts.page_views == at_once.page_views


@pytest.mark.parametrize("ranker", ["ranker", "none"])
def test_exposures_of_equal_hash_stay_apart(ranker, monkeypatch):
    log = posbias.ClickLog(posbias.simulate(posbias.World(queries=300, repeats=12, skew=1.0), "replay"), ranker=ranker)
    plain = posbias.harvest(log).table
    # Now the hash is the last column alone.
    monkeypatch.setattr(tables, "_MIX", 0)
    same = posbias.harvest(log).table
    assert all(np.array_equal(getattr(plain, f.name), getattr(same, f.name)) for f in fields(plain))


def test_strata_of_merged_days(harvest):
    assert_strata(posbias.merge([harvest, harvest], force=True))


def test_strata_of_a_non_functional_ranker():
    rng = np.random.default_rng(0)
    table = pandas.DataFrame({"query_id": rng.integers(0, 60, 2000), "doc_id": rng.integers(0, 3, 2000)})
    table["ranker"] = rng.choice(["a", "b"], 2000)
    table["position"] = rng.integers(1, 4, 2000)
    table["clicked"] = rng.random(2000) < 0.3
    harvested = posbias.harvest(posbias.ClickLog(table), max_rank=3)
    assert harvested.about["non_functional_pairs"]
    assert_strata(harvested)


def test_strata_of_known_ranks_agree_with_the_log():
    """Straight from the rows: the page views and clicks of each signature, over all buckets."""
    table = posbias.simulate(WORLD).to_pandas()
    ranks = table[["rank_a", "rank_b"]].where(table[["rank_a", "rank_b"]] <= WORLD.max_rank).fillna(0).astype(int)
    keys = [ranks["rank_a"], ranks["rank_b"], table["ranker"]]
    expected = table[table["position"] <= WORLD.max_rank].groupby(keys)["clicked"].agg(["size", "sum"])
    strata = harvest_of("wide").strata()
    signature = np.zeros((strata.size, 2), dtype=int)
    signature[strata.cells.stratum, strata.cells.ranker] = strata.cells.rank
    shown = np.zeros((2, strata.size, 2), dtype=int)
    for i, counts in enumerate((strata.cells.impressions, strata.cells.clicks)):
        np.add.at(shown[i], (strata.cells.stratum, strata.cells.ranker), counts)
    found = {
        (*signature[s], "ab"[i]): tuple(shown[:, s, i]) for s in range(strata.size) for i in (0, 1) if shown[0, s, i]
    }
    assert found == {key: tuple(row) for key, row in zip(expected.index, expected.to_numpy(), strict=True)}


def test_an_empty_harvest_has_no_strata(harvest):
    empty = harvest.table.where(np.zeros(len(harvest.table), dtype=bool))
    strata = Harvest(4, ("a", "b"), Layout.WIDE, "traffic", (), ((),), "signatures", empty).strata()
    assert (strata.size, strata.buckets, strata.clicked) == (0, 0, False)


def test_sums_have_no_strata():
    sums = harvest_of("wide", max_strata=1)
    with pytest.raises(posbias.HarvestError, match=r"holds sums over intervention sets.*all-pairs"):
        sums.strata()
    with pytest.raises(posbias.HarvestError, match="has no strata"):
        ConditionalPoisson().fit(sums)


# ---- An estimator on them


def slow_tables(harvest: Harvest) -> tuple[FloatArray, FloatArray]:
    """D_k and C_k, stratum by stratum of each bucket."""
    views, slow = list(harvest.page_views.values()), slow_strata(harvest)
    exposure, clicks = np.zeros((2, len(slow), harvest.max_rank))
    for row, ((signature, _), cell) in enumerate(slow.items()):
        for ranker, k, each in signature:
            exposure[row, k - 1] += each or views[ranker]
            clicks[row, k - 1] += cell[ranker, k, "clicks"]
    return exposure, clicks


def test_estimate_is_the_maximum_of_the_objective(harvest):
    fitted = ConditionalPoisson(interval=None).fit(harvest)

    exposure, clicks = slow_tables(harvest)

    def loss(x: FloatArray) -> float:
        chance = exposure * np.exp(np.append(0, x))
        chance /= chance.sum(axis=1, keepdims=True)
        return -float(np.sum(clicks[clicks > 0] * np.log(chance[clicks > 0])))

    best = minimize(loss, np.zeros(3), method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-9, "maxiter": 2000})
    np.testing.assert_allclose(fitted.propensity_, np.exp(np.append(0, best.x)), rtol=1e-5)


def test_estimate_recovers_the_curve_within_its_interval(harvest):
    fitted = ConditionalPoisson(level=0.999, bootstrap=300).fit(harvest)
    low, high = fitted.interval_.T
    assert np.all((low <= WORLD.propensity) & (WORLD.propensity <= high))
    assert np.all(high - low < 0.2)
    assert str(fitted.summary()).startswith("conditional-poisson, 99.9% interval")


def test_batched_bucket_weights_agree_with_single_fits(harvest):
    estimator = ConditionalPoisson()
    counts = estimator.count(harvest)
    weights = resample_weights(counts.buckets, 6, seed=1)
    batch = estimator.curves(counts, weights.reshape(2, 3, -1))
    assert batch.shape == (2, 3, 4)
    np.testing.assert_allclose(batch.reshape(6, 4), [estimator.curves(counts, w) for w in weights], rtol=1e-9)


def test_resample_equals_the_harvest_of_the_resampled_log():
    harvest = harvest_of("wide")
    estimator = ConditionalPoisson(interval=None)
    for weights in resample_weights(len(harvest.buckets), 3, seed=2):
        times = weights.astype(int)[np.searchsorted(harvest.buckets, harvest.table.bucket)]
        columns = harvest.table.columns()
        columns |= {name: columns[name] * times for name in ("impressions", "clicks")}
        again = Harvest(4, harvest.rankers, Layout.WIDE, "traffic", (), ((),), "signatures", Cells(**columns))
        expected = estimator.curves(estimator.count(harvest), weights)
        np.testing.assert_allclose(estimator.fit(again).propensity_, expected, rtol=1e-8)


@pytest.mark.parametrize("layout", ["wide", "replay"])
def test_base_class_fits_segments_and_reports_missing_methods(layout):
    whole = harvest_of(layout, by=["device"])
    fitted = ConditionalPoisson(bootstrap=20).fit(whole)
    assert list(fitted.segments_) == [("desk",), ("phone",)]
    alone = ConditionalPoisson(bootstrap=20).fit(whole.segment("phone"))
    np.testing.assert_array_equal(fitted.segments_[("phone",)].interval_, alone.interval_)
    assert fitted.curve().weighting is None
    table = posbias.simulate(WORLD, layout).to_pandas()
    one = posbias.ClickLog(table[table["ranker"] == "a"])
    with pytest.raises(posbias.EstimateError, match=r"Only one ranker served the log \(a\)"):
        ConditionalPoisson().fit(posbias.harvest(one))
    with pytest.raises(posbias.EstimateError, match="not a single click"):
        ConditionalPoisson().fit(posbias.harvest(posbias.ClickLog(table.assign(clicked=0)), force=True))


def test_unconnected_ranks_have_no_estimate():
    fitted = ConditionalPoisson(interval=None).fit(harvest_of("wide", max_rank=WORLD.max_rank + 2))
    assert np.isnan(fitted.propensity_[4:]).all()
    assert np.isfinite(fitted.propensity_[:4]).all()
    assert fitted.reasons_[5] == "no stratum with clicks connects it to rank 1"


@pytest.mark.parametrize("ranker", ["ranker", "none"])
def test_few_buckets_decide_whether_strata_are_tried(ranker, monkeypatch):
    """What would be tried in vain is not tried: an engine on which that is dear looks first at a part."""
    log = posbias.ClickLog(posbias.simulate(posbias.World(queries=1500), "replay"), ranker=ranker)
    strata = posbias.harvest(log)
    many = len(np.unique(strata.table.stratum))
    tried = []
    table_up_to = DuckDBLog.table_up_to
    monkeypatch.setattr(DuckDBLog, "samples_first", True)
    monkeypatch.setattr(DuckDBLog, "table_up_to", lambda *given: tried.append(1) or table_up_to(*given))
    assert posbias.harvest(log, max_strata=many // 2).kind == "pairs"
    assert not tried
    kept = posbias.harvest(log, max_strata=2 * many)
    assert tried
    np.testing.assert_allclose(kept.pairs().clicks, strata.pairs().clicks, rtol=1e-12)
