"""Page views in random order: their curve against a slow one and the truth, and the test of the order."""

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
from posbias.harvesting.observations import RankAgreement
from tests.support.sparks import on_server, session

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


def test_the_only_ranker_need_not_be_named(table, tmp_path):
    own = table[table["ranker"] == "shuffled"]
    named = posbias.RandomTraffic("shuffled", max_rank=5).fit(posbias.ClickLog(own))
    for log in (posbias.ClickLog(own), posbias.ClickLog(own.drop(columns="ranker"))):
        for seen in (log, posbias.harvest(log, max_rank=5)):
            fitted = posbias.RandomTraffic(max_rank=5).fit(seen)
            np.testing.assert_allclose(fitted.propensity_, named.propensity_)
        again = posbias.RandomTraffic(max_rank=5)
        np.testing.assert_allclose(again.fit(again.observe(log)).propensity_, named.propensity_)
    own.drop(columns="ranker").to_parquet(tmp_path / "log.parquet")
    done = run("estimate", tmp_path / "log.parquet", "--estimator", "random-traffic", "--max-rank", 5, "--json")
    assert done.exit_code == 0, done.stderr
    rates = [rank["propensity"] for rank in json.loads(done.stdout)["positions"]]
    np.testing.assert_allclose(rates, named.propensity_)
    with pytest.raises(posbias.EstimateError, match="Name the ranker that shows results in random order"):
        posbias.RandomTraffic(max_rank=5).fit(posbias.ClickLog(table))


def test_whether_the_order_is_random_may_be_true_or_false(table, tmp_path):
    told = table.assign(shuffled=table["ranker"] == "shuffled").drop(columns="ranker")
    log = posbias.ClickLog(told, ranker="shuffled")
    named = posbias.RandomTraffic("shuffled", max_rank=5).fit(posbias.ClickLog(table))
    told.to_parquet(tmp_path / "log.parquet")
    for seen in (log, posbias.harvest(log, max_rank=5)):
        for ranker in (True, "True", "true"):
            fitted = posbias.RandomTraffic(ranker, max_rank=5).fit(seen)
            np.testing.assert_allclose(fitted.propensity_, named.propensity_)
            assert [*fitted.curve().page_views] == ["true"]
    words = ("estimate", tmp_path / "log.parquet", "--ranker", "shuffled", "--estimator", "random-traffic", "--json")
    done = run(*words, "--max-rank", 5, "--random", "True")
    assert done.exit_code == 0, done.stderr
    rates = [rank["propensity"] for rank in json.loads(done.stdout)["positions"]]
    np.testing.assert_allclose(rates, named.propensity_)
    with pytest.raises(posbias.EstimateError, match="The log has no ranker 'yes'"):
        posbias.RandomTraffic("yes", max_rank=5).fit(log)


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


@pytest.mark.parametrize(
    ("ranker", "message"), [(None, "Name the ranker that shows"), ("c", "The log has no ranker 'c'")]
)
def test_a_ranker_that_is_not_there_names_those_that_are(ranker, message, table, harvest):
    for seen in (posbias.ClickLog(table), harvest):
        with pytest.raises(posbias.EstimateError, match=rf"{message}.*'a', 'b', 'shuffled'"):
            posbias.RandomTraffic(ranker).fit(seen)


def test_observations_are_of_one_ranker(table):
    observed = posbias.RandomTraffic("shuffled", max_rank=5).observe(posbias.ClickLog(table))
    with pytest.raises(posbias.EstimateError, match=r"are of 'shuffled', not of 'a'.*observe\(log\)"):
        posbias.RandomTraffic("a").fit(observed)


# ---- Orders that are not random


def test_a_ranking_is_refused_unless_forced(table, harvest):
    for seen in (posbias.ClickLog(table), harvest):
        with pytest.raises(
            posbias.LogError, match=r"that 'a' showed several times return to the same ranks.*\n.*force"
        ):
            posbias.RandomTraffic("a", max_rank=5).fit(seen)
        forced = posbias.RandomTraffic("a", max_rank=5).fit(seen, force=True)
        assert "The order is a ranking" in forced.notes_[0]
        assert forced.propensity_[4] < 0.8 * WORLD.propensity[4]


def test_an_order_that_is_random_in_part_is_noted(table):
    """Beside its own page views, those of a ranker for one query in forty."""
    ranked = table[(table["ranker"] == "a") & (table["query_id"] % 40 == 0)]
    mixed = pandas.concat([table[table["ranker"] == "shuffled"], ranked.assign(query_id=-1 - ranked["query_id"])])
    log = posbias.ClickLog(mixed.assign(ranker="shuffled"))
    assert "may be ranked" in posbias.RandomTraffic("shuffled", max_rank=5).fit(log).notes_[0]


def test_short_pages_are_not_mistaken_for_a_fixed_order():
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


def test_random_order_is_assumed_if_results_do_not_recur(table):
    once = table[table["ranker"] == "shuffled"].drop_duplicates(["query_id", "doc_id"])
    fitted = posbias.RandomTraffic("shuffled", max_rank=5).fit(posbias.ClickLog(once))
    assert "(too few results were shown again). Random order was assumed." in " ".join(str(fitted.summary()).split())


def test_a_harvest_by_signature_tells_by_what_others_rank():
    wide = posbias.simulate(posbias.World(queries=300))
    for seen in (posbias.ClickLog(wide), harvest := posbias.harvest(posbias.ClickLog(wide))):
        with pytest.raises(posbias.LogError, match=r"'a' showed .* agreement of ranks is .* The order is a ranking"):
            posbias.RandomTraffic("a").fit(seen)
    forced = posbias.RandomTraffic("a").fit(harvest, force=True)
    assert "have ranks near those by 'b'" in forced.notes_[0]


@pytest.mark.parametrize("depths", [(5,), (2, 3, 10)])
def test_a_harvest_by_signature_cannot_tell_a_random_order_from_one_that_no_other_ranker_has(depths):
    """Both rankers rank at random, on pages of one depth or of several."""
    rng = np.random.default_rng(2)
    rows = []
    for query in range(600):
        size = depths[query % len(depths)]
        ranks = {"a": rng.permutation(size) + 1, "b": rng.permutation(size) + 1}
        for ranker, own in ranks.items():
            rows += [
                (query, doc, ranker, own[doc], rng.random() < 0.3, ranks["a"][doc], ranks["b"][doc])
                for doc in range(size)
            ]
    names = ["query_id", "doc_id", "ranker", "position", "clicked", "rank_a", "rank_b"]
    harvest = posbias.harvest(posbias.ClickLog(pandas.DataFrame(rows, columns=names)))
    assert harvest.kind == "signatures"
    (note,) = posbias.RandomTraffic("a").fit(harvest).notes_
    assert "(this harvest does not distinguish (query, document) pairs). Random order was assumed." in note


def pages(queries, views, depth, rng, *, order=None, of=None, cut=None):
    """Rows of page views in some order, random unless said: of each, documents by place. Depths may be several."""
    rows = []
    for query in range(queries):
        size = int(rng.choice(depth))
        relevance = rng.random(of or size)
        for view in range(int(rng.choice(views))):
            shown = rng.permutation(len(relevance)) if order is None else order(relevance, rng)
            last = min(size, int(rng.choice(cut or [size])))
            rows += [(query, f"{query}-{view}", int(doc), k) for k, doc in enumerate(shown[:last], 1)]
    return rows


def noisy(noise):
    return lambda relevance, rng: np.argsort(-relevance - rng.normal(0, noise, len(relevance)))


def log_of(rows):
    frame = pandas.DataFrame(rows, columns=["query_id", "impression_id", "doc_id", "position"])
    return frame.assign(ranker="r", clicked=np.random.default_rng(len(frame)).random(len(frame)) < 1 / 3)


SHUFFLED = {
    "two results, twice": {"views": [2], "depth": [2]},
    "three views": {"views": [3], "depth": [10]},
    "many views": {"views": [20], "depth": [4]},
    "one view of most": {"views": [1, 1, 1, 2, 30], "depth": [5]},
    "queries of other depths": {"views": [4], "depth": [1, 2, 3, 10]},
    "page views of other depths": {"views": [5], "depth": [6], "cut": [1, 3, 6]},
    "ten of thirty": {"views": [6], "depth": [10], "of": 30},
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("kind", SHUFFLED)
@pytest.mark.long
def test_random_order_raises_no_finding(kind, known):
    """Of 100 logs, given as segments of one, the statistic is that of chance, or below where pages are not known."""
    rng = np.random.default_rng(3)
    logs = [
        log_of(pages(20, rng=rng, **SHUFFLED[kind])).assign(
            number=str(n),
            query_id=lambda log, n=n: log["query_id"] + 20 * n,
            impression_id=lambda log, n=n: log["impression_id"] + f"-{n}",
        )
        for n in range(100)
    ]
    whole = pandas.concat(logs)
    log = posbias.ClickLog(whole if known else whole.drop(columns="impression_id"))
    observed = posbias.RandomTraffic("r").observe(log, by=["number"])
    found = [RankAgreement.of_rows(observed.segment(key).rows) for key in observed.segments]
    deviations = np.array([one.deviations for one in found])
    assert len(deviations) == 100
    assert np.mean(deviations > 1.645) < 0.12
    assert np.mean(deviations > 2.326) < 0.06
    if known:
        assert np.mean(deviations > 1.645) > 0.01
        assert 0.8 < deviations.std() < 1.35
        assert abs(deviations.mean()) < 0.3
    assert all(one.findings("r") == [] for one in found)
    harvests = posbias.harvest(log, by=["number"], max_rank=10)
    for key in harvests.segments:
        agreement = RankAgreement.of_harvest(harvests.segment(key), 0)
        assert agreement is not None
        assert agreement.findings("r") == []


@pytest.mark.parametrize(
    ("noise", "views", "severity"), [(0.5, 20, "error"), (0.5, 2, "error"), (1.0, 20, "warning"), (2.0, 20, "warning")]
)
def test_a_noisy_ranking_is_no_random_order(noise, views, severity, tmp_path):
    rng = np.random.default_rng(4)
    log = log_of(pages(300, [views], [6], rng, order=noisy(noise)))
    for frame in (log, log.drop(columns="impression_id")):
        observed = posbias.RandomTraffic("r").observe(posbias.ClickLog(frame), force=True)
        (finding,) = RankAgreement.of_rows(observed.rows).findings("r")
        assert (finding.code, finding.severity) == ("not-random", severity)
        assert finding.evidence["agreement"] > 0.01
        assert (
            f"agreement of ranks is {finding.evidence['agreement']:.2g}, where random order gives 0" in finding.message
        )
    log.to_parquet(tmp_path / "log.parquet")
    done = run("estimate", tmp_path / "log.parquet", "--estimator", "random-traffic", "--max-rank", 6)
    assert done.exit_code == (2 if severity == "error" else 0)
    assert "the agreement of ranks is" in " ".join(
        (done.stderr if severity == "error" else done.stdout + done.stderr).split()
    )


def test_a_harvest_of_a_noisy_ranking_says_so_too():
    rng = np.random.default_rng(5)
    log = posbias.ClickLog(log_of(pages(300, [20], [6], rng, order=noisy(0.5))))
    assert "may be ranked" in posbias.RandomTraffic("r").fit(posbias.harvest(log, max_rank=6)).notes_[0]


def test_one_very_frequent_query_does_not_hide_a_ranking():
    fixed = [(q, f"{q}-{n}", doc, doc + 1) for q in range(40) for n in range(4000 if q == 0 else 5) for doc in range(5)]
    with pytest.raises(posbias.LogError, match="agreement of ranks is 1, where"):
        posbias.RandomTraffic("r").check_harvest(
            posbias.harvest(posbias.ClickLog(log_of(fixed)), max_rank=5), force=False
        )


def agreement_in_words(log):
    """The definition, page view by page view and pair by pair."""
    places, excluded = {}, {}
    for _, page in log.groupby(["query_id", "impression_id"]):
        position = page["position"].to_numpy()
        if len(position) > 1:
            for doc, place in zip(page["doc_id"], (position - position.mean()) / position.std(), strict=True):
                key = page["query_id"].iloc[0], doc
                places.setdefault(key, []).append(place)
                excluded.setdefault(key, []).append(1 / (len(position) - 1))
    again = {key: own for key, own in places.items() if len(own) > 1}
    products = [
        sum(own[i] * own[j] for i in range(len(own)) for j in range(len(own)) if i != j) / len(own)
        for own in again.values()
    ]
    freely = {key: (len(own) - 1) / len(own) for key, own in again.items()}
    together = [value * (1 + np.mean(excluded[key])) for key, value in freely.items()]
    return len(again), sum(len(own) - 1 for own in again.values()), sum(products), sum(freely.values()), sum(together)


@pytest.mark.parametrize("engine", [on_server("duckdb"), on_server("spark")])
def test_the_engine_counts_what_the_definition_says(engine, tmp_path):
    rng = np.random.default_rng(6)
    frame = log_of(pages(40, [1, 2, 5], [1, 2, 6], rng, order=noisy(1.0), cut=[2, 4, 6]))
    frame.to_parquet(tmp_path / "log.parquet")
    chosen = posbias.Spark(session()) if engine == "spark" else None
    observed = posbias.RandomTraffic("r").observe(posbias.ClickLog(tmp_path / "log.parquet"), force=True, engine=chosen)
    columns = ("pairs", "repeats", "product", "variance_independent", "variance_exclusive")
    counted = [observed.rows[name].sum() for name in columns]
    np.testing.assert_allclose(counted, agreement_in_words(frame))


def test_the_agreement_of_a_harvest_is_that_of_every_two_page_views(table, harvest):
    """Against the definition: the higher of two ranks of a pair beyond its mean, over what a fixed rank has."""
    found = most = 0.0
    pairs = 0
    for _, own in table[table["ranker"] == "shuffled"].groupby(["query_id", "doc_id"]):
        ranks = own["position"].tolist()
        pairs += len(ranks) > 1
        for i, one in enumerate(ranks):
            for other in ranks[:i]:
                low, high = max(one, other), min(one, other)
                cells = [min(a, b) for a in range(1, low + 1) for b in range(1, low + 1) if max(a, b) == low]
                found += (high - np.mean(cells)) / len(ranks)
                most += (low - np.mean(cells)) / len(ranks)
    seen = RankAgreement.of_harvest(harvest, 2)
    assert seen is not None
    assert seen.results == pairs
    np.testing.assert_allclose(seen.share, found / most)


# ---- One ranker among others


@pytest.mark.parametrize("kind", [posbias.AllPairs, posbias.CrossFit])
def test_in_replay_a_random_ranker_is_one_like_others(kind, harvest):
    fitted = kind().fit(harvest)
    low, high = fitted.interval_[1:].T
    truth = WORLD.propensity[1:]
    assert np.all((low < truth) & (truth < high))
    (finding,) = harvest.findings
    assert finding.code == "non-functional-ranker"
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
    assert "return to the same ranks" in refused.stderr
    assert "--force" in refused.stderr
    forced = run("estimate", log, "--estimator", "random-traffic", "--random", "a", "--force")
    assert forced.exit_code == 0
    unused = run("estimate", log, "--random", "r")
    assert "cross-fit does not use --random" in unused.stderr
