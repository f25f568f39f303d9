"""The contract of every estimator, their formulas against slow ones, and recovery of known curves."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import numpy as np
import pytest

import posbias
from posbias.estimators import ESTIMATORS as REGISTERED
from posbias.estimators import Estimator, estimator_class
from posbias.estimators.base import deletion_weights, percentile_intervals, resample_weights
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.tables import Cells
from posbias.logs.click_log import Layout
from posbias.testing import CHECKS, check_estimator

ESTIMATORS = [kind for kind in map(estimator_class, REGISTERED) if issubclass(kind, Estimator)]


def cells_of(rows: list[tuple[int, int, int, int, int, int]]) -> Cells:
    """Cells from (bucket, stratum, ranker, rank, impressions, clicks)."""
    columns = np.array(rows, dtype=np.int64).reshape(-1, 6).T
    bucket, stratum, ranker, rank, impressions, clicks = columns
    zero = np.zeros(len(rows), dtype=np.int64)
    return Cells(zero, bucket, stratum, zero, ranker, rank, impressions, clicks)


def harvest_of(rows: list[tuple[int, int, int, int, int, int]], max_rank: int = 5) -> Harvest:
    return Harvest(max_rank, ("a", "b"), Layout.WIDE, "traffic", (), ((),), "signatures", cells_of(rows))


def swaps(*links: tuple[int, int, int, int], buckets: int = 8) -> Harvest:
    """A harvest of swaps (k, k', clicks at k, clicks at k') of 1,000 impressions each, by either ranker."""
    rows = []
    for b in range(buckets):
        for s, (k, other, c, c_other) in enumerate(links):
            for ranker in (0, 1):
                stratum = 100 * b + 2 * s + ranker
                rows += [(b, stratum, ranker, k, 1000, c), (b, stratum, 1 - ranker, other, 1000, c_other)]
    return harvest_of(rows)


@pytest.fixture(scope="module")
def world() -> posbias.World:
    return posbias.World(queries=10_000, repeats=2, similarity=0.5)


@pytest.fixture(scope="module")
def harvest(world: posbias.World) -> Harvest:
    return posbias.harvest(posbias.ClickLog(posbias.simulate(world)))


# ---- The contract


@pytest.mark.parametrize("make", ESTIMATORS)
@pytest.mark.parametrize("rule", CHECKS)
def test_the_rules_hold(rule, make):
    CHECKS[rule](make)


class Shy(posbias.PivotOne):
    """Its intervals are too narrow."""

    def fit(self, harvest):
        super().fit(harvest)
        self.interval_ = self.propensity_[:, None] * np.array([0.9999, 1.0001])
        return self


class Silent(posbias.PivotOne):
    """It returns nothing, as a procedure would."""

    def fit(self, harvest):
        super().fit(harvest)


class Inventive(posbias.PivotOne):
    """It has a number for every rank."""

    def propensities(self, clicks, skips):
        return np.nan_to_num(super().propensities(clicks, skips), nan=0.5)


class Biased(posbias.PivotOne):
    """It is off by a factor, however much data there are."""

    def propensities(self, clicks, skips):
        found = super().propensities(clicks, skips)
        return np.where(np.arange(found.shape[-1]) > 0, 0.8 * found, found)


class Eager(posbias.PivotOne):
    """It computes with its parameters before it is fitted."""

    def __init__(self, **parameters):
        super().__init__(**parameters)
        self.bootstrap = max(self.bootstrap, 1)


class Partial(posbias.PivotOne):
    """It prefers the ranker whose name comes first."""

    def fit(self, harvest):
        super().fit(harvest)
        self.propensity_ = self.propensity_ * (1 + 1e-6 * (harvest.rankers[0] == "a") * (self.propensity_ < 1))
        return self


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Shy, "'recovery': the true curve is outside its interval"),
        (Silent, "'results': fit does not return the estimator"),
        (Inventive, "'missing data': ranks that never occur have a number"),
        (Biased, "'recovery': the true curve is outside"),
        (Eager, "'parameters': it was given"),
        (Partial, "'invariance': renaming rankers changes propensity_"),
    ],
)
def test_broken_estimators_break_a_rule(make, message):
    with pytest.raises(AssertionError, match=message):
        check_estimator(make)


@pytest.mark.parametrize("make", ESTIMATORS)
class TestContract:
    def test_scale_does_not_matter(self, make, harvest):
        if make is posbias.CrossFit:
            # What it guesses of a document grows better with the clicks of its kind, wherever they come from.
            make = partial(make, relevance="none")
        many = posbias.merge([harvest, harvest, harvest], force=True)
        once, thrice = make(interval=None).fit(harvest), make(interval=None).fit(many)
        np.testing.assert_allclose(once.propensity_, thrice.propensity_, rtol=1e-9)

    def test_no_resamples_no_interval(self, make, harvest):
        fitted = make(interval=None).fit(harvest)
        assert np.isnan(fitted.interval_).all()
        assert "1.000" in str(fitted.summary())

    def test_positions_that_never_occur_are_not_invented(self, make):
        world = posbias.World(queries=500, max_rank=4)
        fitted = make(interval=None).fit(posbias.harvest(posbias.ClickLog(posbias.simulate(world)), max_rank=10))
        assert [p.position for p in fitted.summary().positions] == [1, 2, 3, 4]
        assert np.isnan(fitted.propensity_[4:]).all()

    def test_plot_takes_and_returns_an_axes(self, make, harvest):
        from matplotlib.figure import Figure

        ax = Figure().add_subplot()
        fitted = make().fit(harvest)
        assert fitted.plot(ax) is ax
        np.testing.assert_allclose(ax.lines[0].get_ydata(), fitted.propensity_)
        assert "truth" in [line.get_label() for line in fitted.plot(truth=1 / np.arange(1, 11)).lines]

    def test_a_single_ranker_has_nothing_to_compare(self, make):
        table = posbias.simulate(posbias.World(queries=50)).to_pandas()
        with pytest.raises(posbias.EstimateError, match=r"Only one ranker served the log \(a\)"):
            make().fit(posbias.harvest(posbias.ClickLog(table[table["ranker"] == "a"])))

    def test_no_click_at_all(self, make):
        with pytest.raises(posbias.EstimateError, match="not a single click"):
            make().fit(harvest_of([(0, 0, 0, 1, 10, 0), (0, 0, 1, 2, 10, 0)]))


# ---- Formulas


def test_pivot_one_and_chain_are_the_papers_formulas(harvest):
    table = harvest.pairs()
    c = [[Fraction(float(v)) for v in row] for row in table.clicks]
    pivot = [1.0] + [float(c[k][0] / c[0][k]) for k in range(1, 10)]
    chain = [Fraction(1)]
    for k in range(1, 10):
        chain.append(chain[-1] * c[k][k - 1] / c[k - 1][k])
    np.testing.assert_allclose(posbias.PivotOne(interval=None).fit(harvest).propensity_, pivot, rtol=1e-12)
    np.testing.assert_allclose(
        posbias.AdjacentChain(interval=None).fit(harvest).propensity_, [float(p) for p in chain], rtol=1e-12
    )


def test_a_broken_chain_says_where_and_gives_no_number_beyond():
    fitted = posbias.AdjacentChain(bootstrap=10).fit(swaps((1, 2, 400, 200), (2, 3, 300, 200), (3, 4, 90, 60)))
    np.testing.assert_allclose(fitted.propensity_[:4], [1, 1 / 2, 1 / 3, 2 / 9])
    assert np.isnan(fitted.propensity_[4])
    assert "the chain breaks between ranks 4 and 5" in fitted.reasons_[4]
    fitted = posbias.AdjacentChain(bootstrap=10).fit(swaps((1, 2, 400, 200), (3, 4, 90, 60), (4, 5, 9, 6)))
    assert np.isnan(fitted.propensity_[2:]).all()
    assert [("between ranks 2 and 3" in reason) for reason in fitted.reasons_[2:]] == [True] * 3


def test_a_clickless_link_leaves_the_ranks_beyond_it_undefined():
    fitted = posbias.AdjacentChain(bootstrap=10).fit(swaps((1, 2, 400, 200), (2, 3, 300, 0), (3, 4, 90, 60)))
    assert fitted.propensity_[2] == 0
    assert np.isnan(fitted.interval_[2]).all()
    assert "without an interval" in fitted.reasons_[2]
    assert np.isnan(fitted.propensity_[3:]).all()
    assert "between ranks 2 and 3: no click at rank 3" in fitted.reasons_[3]


def test_pivot_one_names_the_missing_set():
    fitted = posbias.PivotOne(bootstrap=10).fit(swaps((1, 2, 400, 200), (2, 3, 300, 200), (1, 4, 0, 3)))
    np.testing.assert_allclose(fitted.propensity_[:2], [1, 0.5])
    assert np.isnan(fitted.propensity_[2:]).all()
    assert "rank 3" in fitted.reasons_[2]
    assert "no click at rank 1" in fitted.reasons_[3]


def test_all_pairs_reaches_ranks_through_others_and_no_further():
    links = ((1, 2, 400, 200), (2, 3, 300, 200), (4, 5, 90, 60))
    fitted = posbias.AllPairs(bootstrap=20).fit(swaps(*links))
    np.testing.assert_allclose(fitted.propensity_[:3], [1, 1 / 2, 1 / 3], rtol=1e-8)
    assert np.isnan(fitted.propensity_[3:]).all()
    assert all("connects it to rank 1" in reason for reason in fitted.reasons_[3:])


def test_all_pairs_says_why_a_connected_rank_may_be_undetermined():
    clicks = np.array([[0.0, 4, 4], [4, 0, 4], [4, 4, 0]])
    reasons = posbias.AllPairs().explain(clicks, np.zeros((3, 3)))
    assert all("several values fit equally well" in reason for reason in reasons)


def test_propensities_may_exceed_one_and_rise():
    fitted = posbias.AllPairs(interval=None).fit(swaps((1, 2, 200, 400), (2, 3, 100, 150)))
    np.testing.assert_allclose(fitted.propensity_[:3], [1, 2, 3], rtol=1e-8)


# ---- Intervals


@pytest.mark.parametrize("make", [make for make in ESTIMATORS if make is not posbias.CrossFit])
def test_resamples_recount_clicks_and_page_views(make, harvest):
    """The batch equals harvesting each resample anew: buckets repeated, n_i recounted, ĉ and ¬ĉ from there."""
    buckets = harvest.buckets
    draws = np.concatenate([resample_weights(len(buckets), 5, seed=3), deletion_weights(len(buckets))[:3]])
    batch = make().curves(make().count(harvest), draws)
    for counts, estimate in zip(draws.astype(int), batch, strict=True):
        times = counts[np.searchsorted(buckets, harvest.table.bucket)]
        columns = harvest.table.columns()
        columns |= {"impressions": columns["impressions"] * times, "clicks": columns["clicks"] * times}
        again = Harvest(10, harvest.rankers, Layout.WIDE, "traffic", (), ((),), "signatures", Cells(**columns))
        assert again.page_views != harvest.page_views
        np.testing.assert_allclose(make(interval=None).fit(again).propensity_, estimate, rtol=1e-7)


def test_percentiles():
    drawn = np.column_stack([np.arange(1.0, 101), np.full(100, np.nan), np.append(np.arange(1.0, 97), [np.nan] * 4)])
    drawn[:5, 0] = np.inf
    bounds = percentile_intervals(np.ones(3), drawn, 0.9).bounds
    np.testing.assert_array_equal(bounds[0], [10, 100])
    assert np.isnan(bounds[1]).all()
    np.testing.assert_array_equal(bounds[2], [5, 92])
    assert np.isnan(
        percentile_intervals(np.ones(3), np.where(np.arange(100)[:, None] < 6, np.nan, drawn), 0.9).bounds[0]
    ).all()


@pytest.mark.long
@pytest.mark.parametrize(("layout", "traffic"), [("wide", (0.5, 0.5)), ("replay", (0.7, 0.3))])
def test_intervals_cover_the_truth(layout, traffic):
    """95% intervals of 200 logs: the share that covers, over ranks, within 4 standard errors of 95%."""
    covered = []
    for seed in range(200):
        world = posbias.World(
            queries=400, repeats=4, max_rank=5, similarity=0.6, traffic=traffic, quality=(1.5, 0.5), seed=seed
        )
        log = posbias.ClickLog(posbias.simulate(world, layout=layout))
        fitted = posbias.AllPairs(bootstrap=300, seed=seed).fit(
            posbias.harvest(log, max_rank=5, engine=posbias.DuckDB(threads=1))
        )
        low, high = fitted.interval_[1:].T
        covered.append((low <= world.propensity[1:]) & (world.propensity[1:] <= high))
    share = np.mean(covered)
    # Ranks of one log go together: the standard error is that of the 200 means.
    error = np.std(np.mean(covered, axis=1)) / np.sqrt(200)
    assert abs(share - 0.95) < 4 * error, share


# ---- Weighting


@pytest.mark.long
def test_traffic_is_biased_in_replay_and_the_default_is_not():
    """Unequal traffic, unequal rankers, rare repeats: impressions of pairs that both served are not as n_i."""
    estimates: dict[str, list] = {"traffic": [], "harmonic": [], "uniform": []}
    for seed in range(6):
        world = posbias.World(
            queries=60_000, repeats=1.5, skew=1.0, traffic=(0.95, 0.05), quality=(2.0, 0.2), similarity=0.3, seed=seed
        )
        log = posbias.ClickLog(posbias.simulate(world, layout="replay"))
        harvested = posbias.harvest(log)
        assert harvested.weighting == "harmonic"
        for weighting, found in estimates.items():
            found.append(posbias.AllPairs(weighting=weighting, interval=None).fit(harvested).propensity_)
    ratio = {name: np.mean(found, axis=0) / world.propensity for name, found in estimates.items()}
    assert np.max(np.abs(ratio["traffic"] - 1)) > 0.5
    assert np.max(np.abs(ratio["harmonic"] - 1)) < 0.1


def test_asking_for_traffic_in_replay_warns(world):
    log = posbias.ClickLog(posbias.simulate(world, layout="replay"))
    assert not posbias.harvest(log).findings
    assert any("biased" in f.message for f in posbias.harvest(log, weighting="traffic").findings)


def test_a_harvest_by_signature_cannot_be_weighted_by_pairs(harvest):
    with pytest.raises(posbias.HarvestError, match="weighting='harmonic'"):
        posbias.AllPairs(weighting="harmonic").fit(harvest)


# ---- Segments


def test_a_segment_is_found_by_its_only_value():
    log = posbias.ClickLog(posbias.simulate(posbias.World(queries=400, segments={"phone": 1.0, "desktop": 2.0})))
    fitted = posbias.CrossFit(interval=None).fit(posbias.harvest(log, by="device"))
    assert fitted.segments_["phone"] is fitted.segments_[("phone",)]
    assert fitted.summary().segments["phone"] == fitted.segments_["phone"].summary()
    with pytest.raises(KeyError, match="tablet"):
        fitted.segments_["tablet"]


def test_segments_have_curves_of_their_own():
    world = posbias.World(queries=6000, segments={"phone": 1.6, "desk": 0.6}, max_rank=5)
    harvested = posbias.harvest(posbias.ClickLog(posbias.simulate(world)), max_rank=5, by=["device"])
    fitted = posbias.AllPairs(level=0.999).fit(harvested)
    assert list(fitted.segments_) == [("desk",), ("phone",)]
    for (name,), part in fitted.segments_.items():
        truth = world.curves[list(world.segments).index(name)]
        low, high = part.interval_.T
        assert np.all((low <= truth) & (truth <= high)), name
    low, high = fitted.interval_.T
    assert np.all((low <= world.propensity) & (world.propensity <= high))


def test_a_segment_of_documents_is_weighted_by_the_traffic_of_pages(tmp_path):
    """Where a page shows several segments, counting n_i within one would mistake what a ranker prefers for traffic."""
    world = posbias.World(queries=20_000, repeats=2, max_rank=5, similarity=0.3)
    table = posbias.simulate(world).to_pandas()
    table["kind"] = np.where(table["doc_id"] % 3 == 0, "video", "text")
    # Ranker a shows more videos at the top: page views of videos, counted at rank 1, would say it had more traffic.
    harvested = posbias.harvest(posbias.ClickLog(table), max_rank=5, by=["kind"])
    part = harvested.segment("video")
    assert part.page_views == harvested.page_views
    part.save(tmp_path / "video.parquet")
    assert posbias.Harvest.load(tmp_path / "video.parquet").page_views == harvested.page_views
    with pytest.raises(posbias.HarvestError, match="Merge whole harvests first"):
        posbias.merge([part, part])
    fitted = posbias.AdjacentChain(level=0.999).fit(harvested).segments_[("video",)]
    low, high = fitted.interval_.T
    assert np.all((low <= world.propensity) & (world.propensity <= high))


@pytest.mark.parametrize("kind", [posbias.CrossFit, posbias.AllPairs, posbias.PivotOne, posbias.AdjacentChain])
@pytest.mark.parametrize(
    ("rank", "said"), [(1, "no click at rank 1, in 3,000"), (2, "no click below rank 1, in 9,000")]
)
def test_a_curve_without_any_estimate_is_an_error(kind, rank, said):
    table = posbias.simulate(posbias.World(queries=300, max_rank=4)).to_pandas()
    table.loc[(table["position"] == 1) == (rank == 1), "clicked"] = 0
    harvested = posbias.harvest(posbias.ClickLog(table), max_rank=4)
    with pytest.raises(posbias.EstimateError, match=said):
        kind().fit(harvested)


def test_no_rank_connected_to_the_first_is_an_error_with_the_reason():
    table = posbias.simulate(posbias.World(queries=300, max_rank=4)).to_pandas()
    # Only documents that both rankers have first are clicked there.
    table.loc[(table["position"] == 1) & (table["rank_a"] != table["rank_b"]), "clicked"] = 0
    harvested = posbias.harvest(posbias.ClickLog(table), max_rank=4)
    for kind in (posbias.CrossFit, posbias.AllPairs, posbias.PivotOne):
        with pytest.raises(posbias.EstimateError, match=r"No rank below the first .*: no click at rank 1 .*more data"):
            kind().fit(harvested)


@pytest.mark.parametrize("kind", [posbias.CrossFit, posbias.AllPairs, posbias.PivotOne])
@pytest.mark.long
def test_rankers_with_hardly_a_page_view_are_named(kind):
    table = posbias.simulate(posbias.World(queries=300, max_rank=3, rankers=tuple("abcdefgh"))).to_pandas()
    kept = {name: table[table["ranker"] == name]["impression_id"].unique() for name in "abcdefgh"}
    lengths = {"a": None, "b": None, "c": 1, "d": 29, "e": 30, "f": 5, "g": 6, "h": 7}
    rows = np.isin(table["impression_id"], np.concatenate([kept[name][:n] for name, n in lengths.items()]))
    harvested = posbias.harvest(posbias.ClickLog(table[rows]), max_rank=3)
    fitted = kind().fit(harvested)
    said = "Rankers with fewer than 30 page views: 'c' (1), 'd' (29), 'f' (5), 'g' (6) and 1 more. "
    assert [note for note in fitted.fit(harvested).notes_ if note.startswith(said)] == [fitted.notes_[-1]]
    assert kind().fit(posbias.harvest(posbias.ClickLog(table), max_rank=3)).notes_ == ()
    found = [one for one in posbias.check(posbias.ClickLog(table[rows])).findings if one.code == "few-page-views"]
    assert [one.evidence["page_views"] for one in found] == [{"c": 1, "f": 5, "g": 6, "h": 7}]


@pytest.mark.long
def test_hundreds_of_segments_and_one_without_any_intervention():
    table = posbias.simulate(posbias.World(queries=2000, repeats=3, max_rank=4)).to_pandas()
    table["cohort"] = table["query_id"] % 300
    table.loc[table["cohort"] == 7, ["ranker", "position"]] = None
    table = table[table["ranker"].notna()]
    lonely = posbias.simulate(posbias.World(queries=5, similarity=1.0, max_rank=4)).to_pandas()
    lonely["cohort"] = 1000
    both = __import__("pandas").concat([table, lonely])
    harvested = posbias.harvest(posbias.ClickLog(both), max_rank=4, by=["cohort"])
    fitted = posbias.AllPairs(bootstrap=10).fit(harvested)
    assert len(fitted.segments_) == 300
    alone = fitted.segments_[("1000",)]
    assert np.isnan(alone.propensity_).all()
    assert all(alone.reasons_)
