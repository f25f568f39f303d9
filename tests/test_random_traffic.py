"""Page views in random order: their curve against a slow one and the truth, and orders that are none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import posbias
from posbias.cli import cli
from posbias.harvesting.random_order import Repeated

WORLD = posbias.World(
    queries=1500, rankers=("a", "b", "shuffled"), random=("shuffled",), traffic=(4, 4, 2), quality=(1, 2, 0), max_rank=5
)


@pytest.fixture(scope="module")
def table() -> pandas.DataFrame:
    return posbias.simulate(WORLD, "replay").to_pandas()


@pytest.fixture(scope="module")
def harvest(table: pandas.DataFrame) -> posbias.Harvest:
    return posbias.harvest(posbias.ClickLog(table), max_rank=5)


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


# ---- The estimator


def test_it_is_the_click_rates_of_the_random_ranker(table, harvest):
    own = table[table["ranker"] == "shuffled"]
    rate = np.array([own["clicked"][own["position"] == k].mean() for k in range(1, 6)])
    for seen in (posbias.ClickLog(table), harvest):
        fitted = posbias.RandomTraffic("shuffled", max_rank=5).fit(seen)
        np.testing.assert_allclose(fitted.propensity_, rate / rate[0])
        assert fitted.notes_ == ()
        curve = fitted.curve()
        assert [p.impressions for p in curve.positions] == own.groupby("position").size().tolist()
        assert [p.clicks for p in curve.positions] == own.groupby("position")["clicked"].sum().tolist()
        assert curve.page_views == {"shuffled": own["impression_id"].nunique()}


def test_its_interval_is_that_of_its_own_page_views(table, harvest):
    """Buckets that it did not serve have no say, and other rankers none at all."""
    alone = posbias.ClickLog(table[table["ranker"] == "shuffled"])
    whole = posbias.RandomTraffic("shuffled").fit(harvest)
    np.testing.assert_allclose(posbias.NaiveCTR(max_rank=5).fit(alone).interval_, whole.interval_)
    few = table[(table["query_id"] < 40) | (table["ranker"] != "shuffled")]
    fitted = posbias.RandomTraffic("shuffled", max_rank=5).fit(posbias.ClickLog(few))
    served = few["query_id"][few["ranker"] == "shuffled"].nunique()
    assert np.nanmax(fitted.degrees_of_freedom_) < served


def test_intervals_hold_the_truth():
    """Of 200 logs, given as segments of one, 95% intervals miss the truth at some 2% to 8% of the ranks."""
    rng = np.random.default_rng(0)
    truth, logs = 1 / np.arange(1, 5), []
    for number in range(200):
        relevance = np.repeat(rng.uniform(0, 1, size=(120, 4)), 3, axis=0)
        order = rng.permuted(np.tile(np.arange(4), (360, 1)), axis=1)
        clicked = rng.random(order.shape) < np.take_along_axis(relevance, order, axis=1) * truth
        log = pandas.DataFrame(
            {
                "number": str(number),
                "query_id": np.repeat(np.arange(360) // 3, 4),
                "doc_id": order.ravel(),
                "ranker": "random",
                "position": np.tile(np.arange(1, 5), 360),
                "clicked": clicked.ravel(),
            }
        )
        logs.append(log)
    fitted = posbias.RandomTraffic("random", max_rank=4).fit(posbias.ClickLog(pandas.concat(logs)), by=["number"])
    ends = np.array([part.interval_[1:] for part in fitted.segments_.values()])
    assert len(ends) == 200
    held = (ends[..., 0] < truth[1:]) & (truth[1:] < ends[..., 1])
    assert 0.92 < np.mean(held) < 0.98


def test_segments_have_curves_of_their_own():
    world = posbias.World(
        queries=3000, rankers=("a", "r"), random=("r",), max_rank=3, segments={"phone": 1.5, "desktop": 0.3}
    )
    log = posbias.ClickLog(posbias.simulate(world, "replay"))
    one = posbias.RandomTraffic("r", max_rank=3).fit(log, by=["device"])
    other = posbias.RandomTraffic("r").fit(posbias.harvest(log, max_rank=3, by=["device"]))
    for name, curve in zip(world.segments, world.curves, strict=True):
        part = one.segments_[name,]
        np.testing.assert_allclose(part.propensity_, other.segments_[name,].propensity_)
        assert np.all((part.interval_[1:, 0] < curve[1:]) & (curve[1:] < part.interval_[1:, 1]))


# ---- Which ranker


@pytest.mark.parametrize(("ranker", "message"), [(None, "Which ranker shows"), ("c", "There is no ranker 'c'")])
def test_a_ranker_that_is_not_there_names_those_that_are(ranker, message, table, harvest):
    for seen in (posbias.ClickLog(table), harvest):
        with pytest.raises(posbias.EstimateError, match=rf"{message}.*'a', 'b', 'shuffled'"):
            posbias.RandomTraffic(ranker).fit(seen)


def test_observations_are_of_one_ranker(table):
    observed = posbias.RandomTraffic("shuffled", max_rank=5).observe(posbias.ClickLog(table))
    with pytest.raises(posbias.EstimateError, match=r"are of 'shuffled', not of 'a'.*observe\(log\)"):
        posbias.RandomTraffic("a").fit(observed)


# ---- Orders that are none


def test_a_ranking_is_refused_unless_forced(table, harvest):
    for seen in (posbias.ClickLog(table), harvest):
        with pytest.raises(
            posbias.LogError, match=r"that 'a' showed several times always stood at one rank.*\n.*force"
        ):
            posbias.RandomTraffic("a", max_rank=5).fit(seen)
        forced = posbias.RandomTraffic("a", max_rank=5).fit(seen, force=True)
        assert "It is a ranking" in forced.notes_[0]
        assert forced.propensity_[4] < 0.8 * WORLD.propensity[4]


def test_an_order_that_is_random_in_part_is_noted(table):
    """Beside its own page views, those of a ranker for one query in twelve."""
    ranked = table[(table["ranker"] == "a") & (table["query_id"] % 12 == 0)]
    mixed = pandas.concat([table[table["ranker"] == "shuffled"], ranked.assign(query_id=-1 - ranked["query_id"])])
    log = posbias.ClickLog(mixed.assign(ranker="shuffled"))
    assert "may be ranked" in posbias.RandomTraffic("shuffled", max_rank=5).fit(log).notes_[0]


def test_short_pages_are_no_fixed_order():
    """Results of a query with two of them stand at one rank every other time, and a single one always."""
    rng = np.random.default_rng(1)
    rows = []
    for query in range(400):
        length = (1, 2, 3, 10)[query % 4]
        for _ in range(3):
            order = rng.permutation(length)
            rows += [(query, doc, "r", k + 1, rng.random() < 0.5 / (k + 1)) for k, doc in enumerate(order)]
    log = pandas.DataFrame(rows, columns=["query_id", "doc_id", "ranker", "position", "clicked"])
    assert posbias.RandomTraffic("r").fit(posbias.ClickLog(log)).notes_ == ()


def test_what_was_never_shown_again_is_taken_on_trust(table):
    once = table[table["ranker"] == "shuffled"].drop_duplicates(["query_id", "doc_id"])
    fitted = posbias.RandomTraffic("shuffled", max_rank=5).fit(posbias.ClickLog(once))
    assert "taken on trust: hardly a result was shown again" in str(fitted.summary())


def test_a_harvest_by_signature_cannot_tell():
    wide = posbias.simulate(posbias.World(queries=300))
    fitted = posbias.RandomTraffic("a").fit(posbias.harvest(posbias.ClickLog(wide)))
    assert "taken on trust: this harvest does not tell pairs apart" in fitted.notes_[0]
    with pytest.raises(posbias.LogError, match="always stood at one rank"):
        posbias.RandomTraffic("a").fit(posbias.ClickLog(wide))


def test_repeats_are_counted_alike_on_a_log_and_its_harvest(table, harvest):
    """Against a count in plain pandas."""
    own = table[table["ranker"] == "shuffled"].groupby(["query_id", "doc_id"])["position"].agg(["size", "nunique"])
    again = own[own["size"] > 1]
    observed = posbias.RandomTraffic("shuffled", max_rank=5).observe(posbias.ClickLog(table))
    for seen in (Repeated.of_rows(observed.rows), Repeated.of_harvest(harvest, 2)):
        assert seen is not None
        assert (seen.pairs, seen.fixed) == (len(again), int((again["nunique"] == 1).sum()))
        np.testing.assert_allclose(seen.expected, (5.0 ** (1 - again["size"])).sum(), rtol=0.01)


# ---- One ranker among others


@pytest.mark.parametrize("kind", [posbias.AllPairs, posbias.CrossFit])
def test_in_replay_a_random_ranker_is_one_like_others(kind, harvest):
    fitted = kind().fit(harvest)
    low, high = fitted.interval_[1:].T
    truth = WORLD.propensity[1:]
    assert np.all((low < truth) & (truth < high))
    (finding,) = harvest.findings
    assert finding.code == "not-a-function"
    assert "shuffles on purpose does no harm" in finding.remedy


# ---- The simulator


def test_random_page_views_are_in_random_order(table):
    own = table[table["ranker"] == "shuffled"]
    shown = own.groupby("impression_id")["doc_id"].nunique()
    assert np.all(shown == 5)
    # Rank says nothing of relevance: the same documents stand at each.
    place = own.groupby(["query_id", "doc_id"])["position"].mean()
    assert abs(place.mean() - 3) < 0.05
    seen = [own["query_id"].size, *own.groupby("position").size()]
    assert len({*seen[1:]}) == 1


def test_a_random_ranker_has_no_ranks_and_moves_no_other():
    world = posbias.World(queries=50, rankers=("a", "b", "r"), random=("r",), seed=3)
    wide, rankings = posbias.simulate(world), posbias.simulation.rank(world)
    assert "rank_r" not in wide.column_names
    assert {*rankings["ranker"].to_pylist()} == {"a", "b"}
    assert world.truth()["random"] == ["r"]
    plain = posbias.simulate(posbias.World(queries=50, rankers=("a", "b", "r"), seed=3)).to_pandas()
    frame = wide.to_pandas()
    ours = frame["ranker"] == "a"
    pandas.testing.assert_series_equal(frame["doc_id"][ours], plain["doc_id"][ours])
    added = posbias.simulate(world, aggregated=True).to_pandas()
    keys = ["query_id", "doc_id", "ranker", "position"]
    expected = frame.groupby(keys)["clicked"].agg(["size", "sum"])
    found = added.groupby(keys)[["impressions", "clicks"]].sum()
    np.testing.assert_array_equal(found.to_numpy(), expected.to_numpy())


def test_a_random_ranker_must_be_one():
    with pytest.raises(posbias.PosbiasError, match=r"random must name some of the rankers \(a, b\), found \('c',\)"):
        posbias.World(random=("c",))


# ---- The command


def test_from_the_command_line(tmp_path: Path):
    log = tmp_path / "log.parquet"
    flags = ["--layout", "replay", "--rankers", "a,r", "--random", "r", "--queries", "400", "--max-rank", "3"]
    assert run("simulate", log, *flags).exit_code == 0
    assert "rank_r" not in pq.read_schema(log).names
    done = run("estimate", log, "--estimator", "random-traffic", "--random", "r", "--max-rank", "3", "--json")
    assert done.exit_code == 0, done.output
    fitted = posbias.RandomTraffic("r", max_rank=3).fit(posbias.ClickLog(log))
    assert json.loads(done.stdout)["positions"][1]["propensity"] == fitted.propensity_[1]
    assert run("harvest", log, "-o", tmp_path / "x.harvest", "--max-rank", "3").exit_code == 0
    again = run("estimate", tmp_path / "x.harvest", "--estimator", "random-traffic", "--random", "r", "--json")
    assert json.loads(again.stdout)["positions"] == json.loads(done.stdout)["positions"]
    refused = run("estimate", log, "--estimator", "random-traffic", "--random", "a")
    assert refused.exit_code == 2
    assert "always stood at one rank" in refused.stderr
    assert "--force" in refused.stderr
    forced = run("estimate", log, "--estimator", "random-traffic", "--random", "a", "--force")
    assert forced.exit_code == 0
    unused = run("estimate", log, "--random", "r")
    assert "cross-fit has no use for --random" in unused.stderr
