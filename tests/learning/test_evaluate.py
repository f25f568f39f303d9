"""Evaluation of rankings: the formula in loops, the truth of simulated worlds, and invalid input."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from scipy.special import stdtrit

import posbias
from posbias import evaluate
from posbias.cli import cli
from posbias.cli.options import as_flags
from posbias.engines import open_log
from posbias.estimators.base import ONE_BUCKET_REASON, explain_few_buckets
from posbias.judging.compare import fit_harvest
from posbias.learning.evaluate import ClickCredits, ClickFit, FrequentQueries, JackknifeValues, Metric, evaluation_chart
from posbias.simulation import rank
from posbias.simulation.simulate import blocks_of, draw_rankings
from posbias.sql.evaluation import EvaluatedRanking, reranked_documents, reranked_pairs, shown_ranks
from posbias.sql.plan import QueryPlan
from tests.support import ROOT, oracle
from tests.support.users import with_users

Row = dict[str, Any]
Gain = Callable[[int], float]
GAINS: dict[str, Gain] = {
    "dcg": lambda k: 1 / math.log2(k + 1) if k <= 10 else 0.0,
    "dcg@3": lambda k: 1 / math.log2(k + 1) if k <= 3 else 0.0,
    "precision@5": lambda k: 0.2 if k <= 5 else 0.0,
    "rank": float,
}
WORLD = posbias.World(queries=60, repeats=4, quality=(0.5, 2.0), similarity=0.3, candidates=18, seed=3)


# ---- The formula, slowly. A log is a list of dicts as in `tests/support/oracle.py`.


def gains_of(documents: list[Any], scores: dict[Any, float], gain: Gain) -> dict[Any, float]:
    """Return the gain of each document of a query: those with one score share ranks, those without are last."""
    groups: dict[float, list[Any]] = defaultdict(list)
    for doc in documents:
        groups[scores.get(doc, -math.inf)].append(doc)
    found, above = {}, 0
    for score in sorted(groups, reverse=True):
        tied = groups[score]
        mean = sum(gain(above + i + 1) for i in range(len(tied))) / len(tied)
        found |= dict.fromkeys(tied, mean)
        above += len(tied)
    return found


def judge(
    rows: list[Row], scores: dict[Any, dict[Any, float]] | None, p: list[float], gain: Gain, M: int = 10
) -> float:
    """Δ = 1/N Σ over clicks of λ(rank(d)) / ρ(q,d); `scores` by query and document, or None for what was logged."""
    shown: dict[Any, dict[Any, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in oracle.top(rows, M):
        shown[row["query"]][row["doc"]].append(row)
    total, N = 0.0, 0
    for query, documents in shown.items():
        pages: dict[int, int] = defaultdict(int)
        for own in documents.values():
            for row in own:
                pages[row["position"]] += oracle.impressions(row)
        n = max(pages.values())
        views = {row.get("impression_id") for own in documents.values() for row in own}
        # By their ids where these are known; no rank need be on every page view.
        n = n if None in views else len(views)
        N += n
        worth = (
            gains_of([*documents], scores.get(query, {}), gain) if scores is not None else as_shown(documents, n, gain)
        )
        for doc, own in documents.items():
            rho = sum(oracle.impressions(row) * p[row["position"] - 1] for row in own) / n
            total += sum(map(oracle.clicks, own)) * worth[doc] / rho
    return total / N


def as_shown(documents: dict[Any, list[Row]], n: int, gain: Gain) -> dict[Any, float]:
    """Return the gain of each document in its n page views: those that a page leaves out share the ranks below."""
    rows = [row for own in documents.values() for row in own]
    if all("impression_id" in row for row in rows):
        worth: dict[Any, float] = dict.fromkeys(documents, 0.0)
        pages: dict[Any, list[Row]] = defaultdict(list)
        for row in rows:
            pages[row["impression_id"]].append(row)
        for page in pages.values():
            order = [row["doc"] for row in sorted(page, key=lambda row: row["position"])]
            # As with scores: documents that are not on the page are tied below it.
            for doc, mean in gains_of([*documents], {doc: -k for k, doc in enumerate(order)}, gain).items():
                worth[doc] += mean / n
        return worth
    times = {doc: sum(map(oracle.impressions, own)) for doc, own in documents.items()}
    worth = {doc: sum(oracle.impressions(row) * gain(row["position"]) for row in own) for doc, own in documents.items()}
    left = n * sum(gain(k) for k in range(1, len(documents) + 1)) - sum(worth.values())
    absent = sum(n - t for t in times.values())
    return {doc: (worth[doc] + (n - times[doc]) * (left / absent if absent else 0)) / n for doc in documents}


def rows_of(table: pa.Table) -> list[Row]:
    """A simulated log as the oracle has it."""
    ranks = [name for name in table.column_names if name.startswith("rank_")]
    names = {"query_id": "query", "doc_id": "doc"}
    return [
        {names.get(name, name): value for name, value in row.items() if name not in ranks}
        | {"ranks": {name.removeprefix("rank_"): row[name] for name in ranks}}
        for row in table.to_pylist()
    ]


def made_up(table: pa.Table, seed: int, share: float = 0.8, levels: int = 4) -> pa.Table:
    """A ranking of part of the log's documents, in which many are tied, and some that the log does not have."""
    rng = np.random.default_rng(seed)
    pairs = table.select(["query_id", "doc_id"]).group_by(["query_id", "doc_id"]).aggregate([])
    kept = pairs.filter(pa.array(rng.random(len(pairs)) < share))
    scores = rng.integers(0, levels, len(kept)) / 8
    more = pa.table({"query_id": kept["query_id"], "doc_id": pa.array(np.arange(len(kept)) + 10**9), "score": scores})
    return pa.concat_tables([kept.append_column("score", pa.array(scores)), more])


def scores_of(ranking: pa.Table) -> dict[Any, dict[Any, float]]:
    found: dict[Any, dict[Any, float]] = defaultdict(dict)
    for row in ranking.to_pylist():
        found[row["query_id"]][row["doc_id"]] = row["score"]
    return found


def click_log(layout: str, world: posbias.World = WORLD, **form: Any) -> posbias.ClickLog:
    table = posbias.simulate(world, layout, **form)  # type: ignore[arg-type]
    return posbias.ClickLog(table, **({"rankings": rank(world)} if layout == "long" else {}))


FORMS = [(layout, aggregated) for layout in ("wide", "long", "replay") for aggregated in (False, True)]
OTHERS = [(layout, metric) for layout in ("wide", "replay") for metric in GAINS if metric != "dcg"]


@pytest.mark.parametrize(
    ("layout", "aggregated", "metric"),
    [*((*form, "dcg") for form in FORMS), *((layout, False, metric) for layout, metric in OTHERS)],
)
def test_values_equal_the_formula(layout: str, aggregated: bool, metric: str) -> None:
    log = click_log(layout, aggregated=aggregated)
    wide = posbias.simulate(WORLD, "wide", aggregated=aggregated)
    ranking = made_up(wide, seed=1)
    found = evaluate(log, {"new": ranking}, metric=metric)
    p = fit_harvest(posbias.harvest(log)).propensity_.tolist()
    rows = rows_of(wide)
    for name, scores in (("new", scores_of(ranking)), ("the log", None)):
        expected = judge(rows, scores, p, GAINS[metric])
        assert found[name].value.value == pytest.approx(expected, rel=1e-9)
    relevant = judge(rows, {}, p, lambda k: 1.0)
    assert found["new"].normalised.value == pytest.approx(found["new"].value.value / relevant, rel=1e-9)
    assert found["new"].ratio.value == pytest.approx(found["new"].value.value / found["the log"].value.value)


def test_a_ranker_of_the_log_has_its_logged_ranks() -> None:
    log, wide = click_log("wide"), posbias.simulate(WORLD, "wide")
    p = fit_harvest(posbias.harvest(log)).propensity_.tolist()
    found = evaluate(log, ["ranker:a", "ranker:b"])
    for name in "ab":
        scores: dict[Any, dict[Any, float]] = defaultdict(dict)
        for row in wide.to_pylist():
            if row[f"rank_{name}"]:
                scores[row["query_id"]][row["doc_id"]] = -row[f"rank_{name}"]
        assert found[name].value.value == pytest.approx(judge(rows_of(wide), scores, p, GAINS["dcg"]))
    assert found["b"].ratio_to_first.value == pytest.approx(found["b"].value.value / found["a"].value.value)


def test_in_replay_a_ranker_of_the_log_ranks_where_it_showed() -> None:
    world = posbias.World(queries=40, repeats=30, quality=(0.5, 2.0), similarity=0.3)
    log = click_log("replay", world)
    table = rank(world)
    ranking = table.filter(pc.equal(table["ranker"], "b")).drop_columns(["ranker"])
    found = evaluate(log, {"file": ranking, "b": "ranker:b"})
    assert found["b"].value.value == pytest.approx(found["file"].value.value, rel=1e-9)


# ---- The arithmetic


def test_refits_equal_the_formula_to_first_order() -> None:
    log, wide = click_log("wide"), posbias.simulate(WORLD, "wide")
    ranking = made_up(wide, seed=2)
    rows, scores = rows_of(wide), scores_of(ranking)
    harvest = posbias.harvest(log)
    deletions = fit_harvest(harvest).deletions_
    assert deletions is not None
    with open_log(log) as opened:
        of = dict(opened.rows(f"SELECT DISTINCT query_id, {opened.dialect.bucket('query_id', 'BIGINT')} FROM log"))
    ratio = evaluate(log, {"new": ranking})["new"].ratio
    moved = []
    for p, bucket in zip(deletions.tolist(), harvest.buckets.tolist(), strict=True):
        kept = [row for row in rows if of[row["query"]] != bucket]
        new, old = (judge(kept, given, p, GAINS["dcg"]) for given in (scores, None))
        moved.append(math.log(new / old / ratio.value))
    error = math.sqrt((len(moved) - 1) / len(moved) * sum(d * d for d in moved))
    half = stdtrit(ratio.degrees_of_freedom, 0.975) * error
    assert math.log(ratio.high / ratio.value) == pytest.approx(half, rel=0.03)
    assert ratio.low * ratio.high == pytest.approx(ratio.value**2)


def test_a_click_counts_less_where_it_was_more_likely() -> None:
    credits_ = ClickCredits(np.ones((1, 2, 3)) * [1, 1, 0], np.full(2, 5.0), np.array([1.0, 0.5, 0.0]))
    ones = np.ones(2)
    assert credits_.values(ones, np.array([1.0, 0.5, np.nan])).tolist() == [0.4]
    # p_2 a quarter higher: rank 2 counts a fifth less. Without rank 2, the other ranks still count.
    assert credits_.values(ones, np.array([1.0, 0.625, 0.0])).tolist() == pytest.approx([0.36])
    assert credits_.values(ones, np.array([1.0, 0.0, 0.0])).tolist() == pytest.approx([1.0])
    curves = np.array([[1.0, 0.5, 0.0]] * 2)
    assert credits_.values(np.array([[1.0, 0.0], [2.0, 1.0]]), curves).tolist() == [[0.4], [0.4]]


def test_a_frequent_query_keeps_its_share_and_adds_only_the_noise_of_its_clicks() -> None:
    rng = np.random.default_rng(0)
    # Two lists, 20 buckets, one rank; and a query with as many page views as all others, with two documents.
    credit, views = rng.uniform(1, 3, (2, 20, 1)), np.full(20, 10.0)
    clicks, impressions = np.array([30.0, 50.0]), np.array([120.0, 100.0])
    worth = np.array([[2.0, 1.0], [1.0, 3.0]]) * clicks
    frequent = FrequentQueries.of(worth, np.ones(2, int), np.arange(2), clicks, impressions, 200.0, 1)
    credits_ = ClickCredits(credit, views, np.ones(1), frequent)
    found = JackknifeValues.of(credits_, np.ones(1), np.ones((20, 1)), 0.95, np.inf)
    value = (credit.sum(axis=(1, 2)) + worth.sum(axis=1)) / 400
    assert found.value.tolist() == pytest.approx(value.tolist())
    # The delta method, by hand: what the queries outside the frequent one add, and binomial clicks within it.
    rest = credit[..., 0] - credit[..., 0].mean(axis=1, keepdims=True)
    between = ((rest[0] / value[0] - rest[1] / value[1]) ** 2).sum() / 400**2
    each = worth / clicks / value[:, None] / 400
    within = (clicks * (1 - clicks / impressions) * (each[0] - each[1]) ** 2).sum()
    ratio = found.ratio(0, 1)
    assert ratio.low is not None
    half = math.log(ratio.value / ratio.low) / stdtrit(ratio.degrees_of_freedom, 0.975)
    assert half == pytest.approx(math.sqrt(between * 20 / 19 + within), rel=0.03)


def test_too_few_buckets_or_a_single_one_with_clicks_give_no_interval() -> None:
    few = ClickCredits(np.ones((2, 3, 1)), np.ones(3), np.ones(1))
    estimate = JackknifeValues.of(few, np.ones(1), np.ones((3, 1)), 0.95, np.inf).ratio(0, 1)
    assert (estimate.low, estimate.reason) == (None, explain_few_buckets(3))
    one = np.zeros((2, 9, 1))
    one[:, 4] = 1
    alone = ClickCredits(one, np.ones(9), np.ones(1))
    estimate = JackknifeValues.of(alone, np.ones(1), np.ones((9, 1)), 0.95, np.inf).ratio(0, 1)
    assert (estimate.value, estimate.low, estimate.reason) == (1.0, None, ONE_BUCKET_REASON)


def test_metrics_are_parsed_and_unknown_ones_raise() -> None:
    assert [Metric.parse(name, 10).title for name in GAINS] == ["DCG@10", "DCG@3", "precision@5", "average rank"]
    for bad in ("ndcg", "dcg@0", "dcg@", "rank@3", "dcg@11", "", None, 5):
        with pytest.raises(posbias.PosbiasError, match="metric"):
            Metric.parse(bad, 10)  # type: ignore[arg-type]


# ---- The truth of simulated worlds


def truths(world: posbias.World) -> dict[str, float]:
    """The true DCG@M of every ranker, over all candidates."""
    worth = 1 / np.log2(np.arange(2, world.pool + 2)) * (np.arange(world.pool) < world.max_rank)
    [drawn] = [draw_rankings(world, block) for block in blocks_of(world)]
    relevance = np.where(drawn.relevant, 1.0, world.noise)
    return {
        name: float((worth[drawn.ranks[:, i] - 1] * relevance).sum(1).mean()) for i, name in enumerate(world.rankers)
    }


@pytest.mark.parametrize("layout", ["wide", "replay"])
def test_intervals_cover_the_truth(layout: str) -> None:
    world = posbias.World(queries=3000, repeats=20, quality=(0.5, 1.5), similarity=0.5, seed=5)
    true = truths(world)
    found = evaluate(click_log(layout, world), ["ranker:a", "ranker:b"])
    for name in "ab":
        one = found[name]
        # The truth is that of these very queries, so intervals are wide for it.
        assert one.value.low < true[name] < one.value.high
        assert one.ratio.low < true[name] / ((true["a"] + true["b"]) / 2) < one.ratio.high
        assert one.value.value == pytest.approx(true[name], rel=0.05)
    assert (found.best, found["a"].verdict(True), found["b"].verdict(True)) == ("b", "worse", "better")


def with_advertisement(table: pa.Table, at: int, world: posbias.World) -> pa.Table:
    """The log where an advertisement stands at a rank of every second page, and results from there on one below."""
    p, rng, rows = world.propensity, np.random.default_rng(0), []
    for row in table.to_pylist():
        k = row["position"]
        if row["impression_id"] % 2 and k >= at:
            if k == world.max_rank:
                continue
            # Who looks at a rank looks at the one below as often as p says.
            row |= {"position": k + 1, "clicked": int(row["clicked"] and rng.random() < p[k] / p[k - 1])}
        rows.append(row)
    return pa.Table.from_pylist(rows).drop_columns(["ranker"])


@pytest.mark.parametrize("at", [1, 3])
def test_an_advertisement_does_not_count_against_the_log(at: int) -> None:
    world = posbias.World(queries=1500, max_rank=5, candidates=12, traffic=(0.8, 0.2), similarity=0.6, seed=2)
    rank_a = posbias.simulate(world).filter(pc.field("rank_a") > 0).group_by(["query_id", "doc_id"])
    ranking = rank_a.aggregate([("rank_a", "min")]).rename_columns(["query_id", "doc_id", "rank"])
    table = with_advertisement(posbias.simulate(world, "replay"), at, world)
    # As much as without advertisements, but for what these pushed off the page.
    for log in (posbias.simulate(world), table):
        found = evaluate(posbias.ClickLog(log, ranker="none", ranks="none"), ranking, max_rank=5).rankings[0]
        assert found.verdict(True) is None
        assert found.ratio.value == pytest.approx(1, abs=0.005)


LEFT_OUT: dict[str, Callable[[Row], bool]] = {
    "a rank of each page, by turns": lambda row: row["position"] == 1 + row["impression_id"] % 5,
    "what lies below other depths": lambda row: row["position"] > (1, 10)[row["impression_id"] % 5 > 0],
}


@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_pages_of_any_shape_rank_their_results(left_out: str, wide: pa.Table, ranking: pa.Table) -> None:
    table = pa.Table.from_pylist([row for row in wide.to_pylist() if not LEFT_OUT[left_out](row)])
    found = evaluate(posbias.ClickLog(table), ranking, metric="dcg")
    p = fit_harvest(posbias.harvest(posbias.ClickLog(table)), None, 0.95).propensity_.tolist()
    assert found.log.value.value == pytest.approx(judge(rows_of(table), None, p, GAINS["dcg"]), rel=1e-9)
    value = judge(rows_of(table), scores_of(ranking), p, GAINS["dcg"])
    assert found.rankings[0].value.value == pytest.approx(value, rel=1e-9)
    # Rows without a page view are not a page.
    some = [
        row | {"impression_id": row["impression_id"] if row["impression_id"] % 4 else None} for row in table.to_pylist()
    ]
    nearly = evaluate(posbias.ClickLog(pa.Table.from_pylist(some)), ranking, metric="dcg")
    assert nearly.log.value.value == pytest.approx(found.log.value.value, rel=0.03)


@pytest.mark.parametrize("metric", ["dcg", "rank"])
def test_a_page_ranks_its_results_whatever_ranks_are_empty(metric: str, wide: pa.Table, ranking: pa.Table) -> None:
    odd = pc.equal(pc.bit_wise_and(wide["impression_id"], 1), 1)
    vacant = pc.or_(pc.equal(wide["position"], 1), pc.equal(wide["position"], 4))
    table = wide.filter(pc.invert(pc.and_(odd, vacant)))
    log = posbias.ClickLog(table)
    found = evaluate(log, ranking, metric=metric)
    p = fit_harvest(posbias.harvest(log), None, 0.95).propensity_.tolist()
    assert found.log.value.value == pytest.approx(judge(rows_of(table), None, p, GAINS[metric]), rel=1e-9)
    assert found.rankings[0].value.value == pytest.approx(
        judge(rows_of(table), scores_of(ranking), p, GAINS[metric]), rel=1e-9
    )
    assert [f.severity for f in found.findings if f.code == "empty-ranks"] == ["info"]
    # Where pages are not known they are assumed to be alike, and a warning says so.
    nearly = evaluate(posbias.ClickLog(table.drop_columns(["impression_id"])), ranking, metric=metric)
    assert nearly.log.value.value == pytest.approx(found.log.value.value, rel=0.01)
    assert [f.severity for f in nearly.findings if f.code == "empty-ranks"] == ["warning"]
    assert "empty-ranks" not in [f.code for f in evaluate(posbias.ClickLog(wide), ranking).findings]


# ---- Rankings as input


@pytest.fixture(scope="module")
def wide() -> pa.Table:
    return posbias.simulate(WORLD)


@pytest.fixture(scope="module")
def ranking(wide: pa.Table) -> pa.Table:
    return made_up(wide, seed=1, share=1.0, levels=1000)


def value(log: pa.Table, ranking: Any, **settings: Any) -> float:
    return float(evaluate(posbias.ClickLog(log), {"new": ranking}, **settings)["new"].value.value)


def test_a_ranking_may_be_any_table_by_score_or_rank(wide: pa.Table, ranking: pa.Table, tmp_path: Any) -> None:
    expected = value(wide, ranking)
    by_rank = ranking.rename_columns({"score": "rank"})
    by_rank = by_rank.set_column(2, "rank", pc.negate(by_rank["rank"]))
    pq.write_table(ranking, tmp_path / "new.parquet")
    ranking.to_pandas().to_csv(tmp_path / "new.csv", index=False)
    (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ranking.to_pylist()))
    texts = ranking.set_column(1, "doc_id", ranking["doc_id"].cast(pa.string()))
    wider = ranking.set_column(1, "doc_id", ranking["doc_id"].cast(pa.uint64()))
    for other in (by_rank, ranking.to_pandas(), tmp_path / "new.parquet", str(tmp_path / "new.csv"), texts, wider):
        assert value(wide, other) == pytest.approx(expected)
    assert value(wide, str(tmp_path / "new.jsonl")) == pytest.approx(expected)
    # Only the order counts.
    shifted = ranking.set_column(2, "score", pc.multiply(pc.add(ranking["score"], 5.0), 1e9))
    assert value(wide, shifted) == pytest.approx(expected)
    named = ranking.rename_columns({"score": "model output"}).append_column("rank", pa.array(np.arange(len(ranking))))
    assert value(wide, named, score="model output") == pytest.approx(expected)
    assert value(wide, by_rank.append_column("score", pa.array(np.arange(len(ranking)))), score="none") == expected


def test_documents_without_a_score_are_ranked_last(wide: pa.Table, ranking: pa.Table) -> None:
    half = pc.greater(ranking["score"], 60.0)
    missing = ranking.filter(half)
    empty = ranking.set_column(2, "score", pc.if_else(half, ranking["score"], None))
    assert value(wide, missing) == pytest.approx(value(wide, empty))
    found = evaluate(posbias.ClickLog(wide), {"new": missing})
    codes = [finding.code for finding in found.findings]
    assert "ranking-lacks-documents" in codes
    assert 0.5 < found["new"].covered < 0.95


def first_score(table: pa.Table, value: Any) -> pa.Table:
    """Return a ranking with another first score, all of them as texts if it is one."""
    scores = table["score"].to_pylist()[1:]
    return table.set_column(2, "score", [[value, *(map(str, scores) if isinstance(value, str) else scores)]])


INVALID = {
    "have NaN or a value that is not a number in column 'score'": lambda t: first_score(t, math.nan),
    "have NaN or a value that is not a number": lambda t: first_score(t, "high"),
    "1 of ": lambda t: first_score(t, "NaN"),
    "has 1 documents of a query more than once": lambda t: pa.concat_tables([t, t.slice(0, 1)]),
    "have no query or no document": lambda t: t.set_column(1, "doc_id", [[None, *t["doc_id"].to_pylist()[1:]]]),
    "has no rows": lambda t: t.slice(0, 0),
    "has no value in column 'score'": lambda t: t.set_column(2, "score", [pa.nulls(len(t), pa.float64())]),
    "has no column 'doc_id' (the doc, named as in the log). Did you mean 'item'": lambda t: t.rename_columns(
        ["query_id", "item", "score"]
    ),
    "neither a column 'score' nor a column 'rank'": lambda t: t.rename_columns(["query_id", "doc_id", "s"]),
    "both a score ('score') and a rank ('rank')": lambda t: t.append_column("rank", t["score"]),
    "is BOOLEAN; numbers to rank by were expected": lambda t: t.set_column(2, "score", [pc.greater(t["score"], 1)]),
    "single values were expected": lambda t: t.set_column(2, "score", [[[1.0]] * len(t)]),
    "only 0.0% of the clicked documents": lambda t: t.set_column(1, "doc_id", [pc.add(t["doc_id"], 10**12)]),
    "An id stored as a fraction": lambda t: t.set_column(1, "doc_id", [t["doc_id"].cast(pa.float64())]),
}


@pytest.mark.parametrize("message", INVALID)
def test_an_invalid_ranking_raises(message: str, wide: pa.Table, ranking: pa.Table) -> None:
    with pytest.raises(posbias.PosbiasError) as error:
        value(wide, INVALID[message](ranking))
    assert message in " ".join(str(error.value).split())


@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        ([], {}, "no ranking to evaluate"),
        ([""], {}, "is empty"),
        ({"": "ranker:a"}, {}, "cannot be called ''"),
        ({"the log": "ranker:a"}, {}, "cannot be called 'the log'"),
        (["ranker:c"], {}, "no ranker 'c'. It has 'a', 'b'"),
        (["ranker:a", "ranker:a"], {}, "given twice"),
        (["nowhere.parquet"], {}, "nowhere.parquet"),
        (["ranker:a"], {"metric": "ndcg"}, "metric 'ndcg'"),
        (["ranker:a"], {"metric": "dcg@11"}, "larger max_rank"),
        (["ranker:a"], {"level": 1.0}, "level"),
        (["ranker:a"], {"estimator": "naive-ctr"}, "does not fit on a harvest"),
        (["ranker:a"], {"engine": "spark"}, "Only DuckDB can join rankings"),
        ([5], {}, "A ranking must be a file or a table .* or 'ranker:NAME' .*, not 5"),
        (None, {}, "A ranking must be a file or a table .*, not None"),
    ],
)
def test_invalid_arguments_raise(given: Any, settings: Any, message: str, wide: pa.Table) -> None:
    with pytest.raises(posbias.PosbiasError, match="(?s)" + message):
        evaluate(posbias.ClickLog(wide), given, **settings)


def test_a_stream_raises_because_it_is_read_twice(wide: pa.Table) -> None:
    with pytest.raises(posbias.LogError, match="a stream can be read only once"):
        evaluate(posbias.ClickLog(wide.to_reader()), ["ranker:a"])


def test_ranks_without_a_propensity_raise_with_the_reason() -> None:
    world = posbias.World(queries=40, similarity=1.0)
    rows = posbias.simulate(world).to_pylist()
    # Two rankers that differ only at the first two ranks.
    for row in rows:
        if row["ranker"] == "b" and row["position"] < 3:
            row["position"] = 3 - row["position"]
        if row["rank_b"] in (1, 2):
            row["rank_b"] = 3 - row["rank_b"]
    log = posbias.ClickLog(pa.Table.from_pylist(rows))
    with pytest.raises(
        posbias.EstimateError, match=r"8 ranks, the first of them rank 3, have no propensity \(.*max_rank=2"
    ):
        evaluate(log, ["ranker:a"])
    assert evaluate(log, ["ranker:a"], max_rank=2)["a"].ratio.value > 0


def test_ranks_from_one_without_clicks_on_are_left_out(wide: pa.Table) -> None:
    rank = wide["position"].to_numpy()
    clicked = np.where(rank == 8, 0, wide["clicked"].to_numpy())
    log = posbias.ClickLog(wide.set_column(wide.column_names.index("clicked"), "clicked", pa.array(clicked)))
    found, fewer = evaluate(log, ["ranker:a"], force=True), evaluate(log, ["ranker:a"], max_rank=7, force=True)
    assert found.notes[0] == "Rank 8 has no click, so it has no propensity: only the top 7 ranks count."
    assert found.notes[0] in found.to_text().replace("\n  ", " ")
    assert (found.metric, found.clicks) == ("DCG@7", fewer.clicks)
    # Not to the last digit: DuckDB adds the rows of its threads in any order.
    for bound in ("value", "low", "high"):
        assert getattr(found["a"].ratio, bound) == pytest.approx(getattr(fewer["a"].ratio, bound), rel=1e-12)
    # A ranking that turns pages around: no advice sends the user back to the ranks without a click.
    turned = wide.to_pandas().groupby(["query_id", "doc_id"], as_index=False).position.max()
    turned = turned.rename(columns={"position": "score"})
    deeper = [f for f in evaluate(log, {"turned": turned}, force=True).findings if f.code == "documents-shown-deeper"]
    assert [f.arguments for f in deeper] == [{}]
    # The advice works, in Python and in the command; a smaller cut-off alone is enough, too.
    for metric in ("dcg@10", "precision@8"):
        with pytest.raises(posbias.EstimateError, match=r"rank 8 has no propensity .*Add max_rank=7, ") as raised:
            evaluate(log, ["ranker:a"], metric=metric, force=True)
        advice: Any = raised.value.arguments
        advised = evaluate(log, ["ranker:a"], **advice, force=True)
        assert advised.metric.endswith("@7")
        assert f"--max-rank 7 --metric {advice['metric']}" in raised.value.sentence(as_flags)
    alone = evaluate(log, ["ranker:a"], metric="precision@7", force=True)
    assert alone.log.value.value == pytest.approx(advised.log.value.value)


def test_documents_that_were_never_shown_are_reported(wide: pa.Table, ranking: pa.Table) -> None:
    found = evaluate(posbias.ClickLog(wide), {"new": ranking}, metric="dcg@5")
    # By the page views of each query. Each document is tied with one that is made up, and shares its place.
    assert found["new"].never_shown == pytest.approx(0.5)
    [finding] = [finding for finding in found.findings if finding.code == "documents-never-shown"]
    assert finding.severity == "warning"
    assert "of the top 5 of 'new' was never shown for that query" in finding.message
    real = ranking.filter(pc.less(ranking["doc_id"], 10**9))
    assert evaluate(posbias.ClickLog(wide), {"new": real})["new"].never_shown == 0
    # Two documents of every query, of which the log has one.
    tops = pa.concat_tables(
        [
            pa.table({"query_id": np.arange(60), "doc_id": np.arange(60) + 10**9, "score": np.full(60, 9.0)}),
            real.set_column(2, "score", [pc.multiply(real["score"], 0.001)]),
        ]
    )
    assert evaluate(posbias.ClickLog(wide), {"new": tops}, metric="dcg@2")["new"].never_shown == pytest.approx(0.5)


def test_documents_that_were_shown_only_deeper_are_not_called_never_shown() -> None:
    world = posbias.World(queries=60, max_rank=20, candidates=20)
    log = posbias.ClickLog(posbias.simulate(world))
    # Every document was shown, half of them below rank 10; the ranking turns the log of ranker a around.
    turned = rank(world).to_pandas().query("ranker == 'a'").drop(columns="ranker")
    turned["rank"] = 21 - turned["rank"]
    found = evaluate(log, {"turned": turned}, metric="dcg@10")
    assert found["turned"].never_shown == 0
    [finding] = [finding for finding in found.findings if finding.code == "documents-shown-deeper"]
    assert finding.evidence["share"] > 0.5
    assert "was shown for that query only below rank 10, where clicks are not counted" in finding.message
    assert str(finding).endswith(f"Add max_rank={finding.arguments['max_rank']}")
    assert 15 < int(str(finding.arguments["max_rank"])) <= 20
    whole = evaluate(log, {"turned": turned}, metric="dcg@10", max_rank=20)
    assert not [finding for finding in whole.findings if finding.code.startswith("documents-")]


# ---- Clicks that a ranking was made from


def learned_from(log: posbias.ClickLog) -> pa.Table:
    """Return a ranking that knows the clicks of each pair, and nothing else."""
    made = posbias.ips_weights(log, posbias.CrossFit().fit(posbias.harvest(log)), force=True).table
    score = pc.divide(pc.add(made["clicks"], 0.1), pc.add(made["exposure"], 0.3))
    return made.select(["query_id", "doc_id"]).append_column("score", score)


def is_warned_of(log: posbias.ClickLog, ranking: Any) -> bool:
    codes = [finding.code for finding in evaluate(log, {"new": ranking}).findings]
    return "memorised-clicks" in codes


def honest_and_memorised(seed: int, repeats: float) -> tuple[pa.Table, pa.Table]:
    """Return a log, and a ranker that was never shown and learned nothing from its clicks."""
    rankers = {"rankers": ("a", "b", "new"), "quality": (1.0, 1.0, 2.0), "traffic": (1, 1, 0)}
    world = posbias.World(queries=300, repeats=repeats, candidates=15, similarity=0.5, seed=seed, **rankers)
    honest = rank(replace(world, max_rank=15)).filter(pc.field("ranker") == "new").drop_columns(["ranker"])
    return posbias.simulate(world).drop_columns(["rank_new"]), honest


def test_a_ranking_that_knows_the_clicks_is_warned_of_and_another_is_not() -> None:
    table, honest = honest_and_memorised(0, 10)
    # Half of the log alone: the ranking that knows all clicks knows those of the part `test`, too.
    part = posbias.ClickLog(table, part="test", split="impression_id")
    memorised = learned_from(posbias.ClickLog(table))
    with pytest.warns(posbias.PosbiasWarning, match="'new' seems to be made from the clicks that evaluate it"):
        found = evaluate(part, {"new": memorised})
    [finding] = [finding for finding in found.findings if finding.code == "memorised-clicks"]
    assert finding.evidence["similarity"] > 1.05
    assert finding.evidence["p_value"] < 0.001
    # A document has about 5 page views in this part, so that the whole gain comes from such documents.
    assert "100% of its gain comes from documents with fewer than 10 impressions" in finding.message
    # The result itself says that it cannot be trusted, as text, as JSON and as a value.
    text = " ".join(found.to_text().split())
    assert text.startswith("Do not trust new: it seems to be made from the clicks that evaluate it (DCG@10 +")
    assert "but from the part 'train' of the same split (by impression_id)" in text
    assert found.to_dict()["rankings"][0]["verdict"] == "not trusted"
    assert (found.best, found["new"].verdict(True), found["new"].memorised) == ("the log", "not trusted", True)
    assert [one.name for one in evaluation_chart(found).series] == ["not trusted: made from these clicks"]
    assert not is_warned_of(part, honest)
    # Neither is a comparison with it.
    with pytest.warns(posbias.PosbiasWarning, match="seems to be made"):
        several = evaluate(part, {"new": memorised, "honest": honest})
    assert len(several.verdicts) == 2
    assert several.best == "honest"


# `POSBIAS_MEASURE=1` repeats the table of docs/evidence_evaluation.md, and otherwise a tenth of its logs is compared.
MEASURE, PUBLISHED_LOGS = "POSBIAS_MEASURE" in os.environ, 20


@pytest.mark.long
def test_rankings_are_warned_of_as_often_as_the_page_says() -> None:
    import lightgbm

    # The page has 20 logs, 2 of them with fresh clicks; here are the first ones of each number of views.
    views, logs, fresh_logs = (3, 10, 30, 100), PUBLISHED_LOGS if MEASURE else 2, 2 if MEASURE else 1
    found: dict[str, list[int]] = {}
    too_high: dict[str, list[float]] = {}
    for column, repeats in enumerate(views):
        for seed in range(logs):
            rankers = {"rankers": ("a", "b", "new", "best"), "quality": (1.0, 1.0, 1.5, 8.0), "traffic": (1, 1, 0, 0)}
            world = posbias.World(
                queries=300, repeats=repeats, candidates=15, similarity=0.5, seed=100 + seed, **rankers
            )
            table = posbias.simulate(world).drop_columns(["rank_new", "rank_best"])
            log, part = posbias.ClickLog(table), {"part": "test", "split": "impression_id"}
            ranks = rank(replace(world, max_rank=15))
            curve = posbias.CrossFit().fit(posbias.harvest(log))
            made = posbias.ips_weights(log, curve, keep=["rank_a", "rank_b"], force=True).table
            ids, clicks, exposure = made.select(["query_id", "doc_id"]), made["clicks"], made["exposure"].to_numpy()
            x = np.column_stack([made[name].fill_null(12) for name in ("rank_a", "rank_b")])
            trees = lightgbm.LGBMRegressor(objective="poisson", num_leaves=15, verbosity=-1, n_jobs=1)
            trees.fit(x, clicks.to_numpy() / exposure, sample_weight=exposure)
            rates = (clicks.to_numpy() + 0.1) / (exposure + 0.3)
            known = np.column_stack([x, made["query_id"].to_numpy(), np.random.default_rng(seed).random((len(x), 8))])
            deep = lightgbm.LGBMRegressor(
                objective="poisson", num_leaves=255, min_child_samples=2, verbosity=-1, n_jobs=1
            )
            deep.fit(known, clicks.to_numpy() / exposure, sample_weight=exposure)
            scores = {
                "click rates of the judged clicks": rates,
                "raw counts of the judged clicks": clicks.to_numpy().astype(float),
                "whether a document was ever clicked": (clicks.to_numpy() > 0).astype(float),
                "LightGBM on two features": np.asarray(trees.predict(x)),
                "LightGBM with 255 leaves": np.asarray(deep.predict(known)),
            }
            rankings: dict[str, Any] = {name: ids.append_column("score", pa.array(s)) for name, s in scores.items()}
            for label, ranker in (("a better ranker", "new"), ("a ranker that knows relevance", "best")):
                rankings[label] = ranks.filter(pc.field("ranker") == ranker).drop_columns(["ranker"])
            halves = {
                "click rates of both parts": ids.append_column("score", pa.array(rates)),
                "click rates of the other part": learned_from(posbias.ClickLog(table, **part | {"part": "train"})),
            }
            by_query = {"click rates of the part `train` by page view": halves["click rates of the other part"]}
            results = (
                evaluate(log, rankings),
                evaluate(posbias.ClickLog(table, **part), halves),
                evaluate(posbias.ClickLog(table, part="test"), by_query),
            )
            for finding in (finding for result in results for finding in result.findings):
                if finding.code == "memorised-clicks":
                    found.setdefault(finding.evidence["ranking"], [0] * len(views))[column] += 1
            for name in (*rankings, *halves, *by_query):
                found.setdefault(name, [0] * len(views))
            if seed < fresh_logs:
                # The truth: the clicks of other page views of the same queries.
                both = replace(world, repeats=repeats + 100)
                other = posbias.simulate(both).filter(pc.field("impression_id") >= repeats * world.queries)
                truth = evaluate(
                    posbias.ClickLog(other.drop_columns(["rank_new", "rank_best"])), rankings | halves | by_query
                )
                for result in results:
                    for one in result.rankings:
                        more = one.normalised.value / truth[one.name].normalised.value - 1
                        too_high.setdefault(one.name, [0.0] * len(views))[column] += more / fresh_logs
    page = (ROOT / "docs" / "evidence_evaluation.md").read_text("utf-8")
    wrong = []
    for name, warned in found.items():
        [row] = [line for line in page.splitlines() if line.startswith(f"| {name}")]
        cells = [f"{n / logs:.0%} / {round(100 * x) + 0}%" for n, x in zip(warned, too_high[name], strict=True)]
        printed = [
            tuple(int(n) for n in re.findall(r"(-?\d+)%", cell)) for cell in row.replace("−", "-").split("|")[-5:-1]
        ]
        for (share, too_much), n, x in zip(printed, warned, too_high[name], strict=True):
            of_page = round(share * PUBLISHED_LOGS / 100)
            # These logs are among those of the page.
            exact = (round(100 * n / logs), round(100 * x)) == (share, too_much)
            possible = n <= of_page and logs - n <= PUBLISHED_LOGS - of_page and abs(100 * x - too_much) <= 6
            if not (exact if MEASURE else possible):
                wrong.append(f"{name} {cells}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.long
@pytest.mark.parametrize("split", ["impression_id", "user"])
def test_a_ranking_that_learned_from_the_other_part_is_judged_rightly(split: str) -> None:
    world = posbias.World(queries=300, repeats=20, candidates=15, similarity=0.5, seed=5)
    table = posbias.simulate(world)
    table = table.append_column("user", pc.bit_wise_and(table["impression_id"], 1023))
    whole = posbias.ClickLog(table)
    train, test = (posbias.ClickLog(table, part=part, split=split) for part in ("train", "test"))
    ranking = learned_from(train)
    # The truth: the clicks of many other page views of the same queries.
    fresh = posbias.ClickLog(
        posbias.simulate(replace(world, repeats=200, seed=5)).filter(pc.field("impression_id") > 10**4)
    )
    truth = evaluate(fresh, {"new": ranking})["new"].ratio.value
    found = evaluate(test, {"new": ranking})
    ratio = found["new"].ratio
    assert found.part == "test"
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < truth < ratio.high
    assert not is_warned_of(test, ranking)
    # Judged by what it learned from, it looks far better than it is.
    praised = evaluate(train, {"new": ranking})
    assert praised["new"].ratio.value > truth + 0.05
    assert "hold" in praised.to_text()
    assert is_warned_of(train, ranking)
    assert whole.part is None


def test_the_similarity_of_neighbours_is_that_of_a_loop() -> None:
    table, honest = honest_and_memorised(3, 4)
    log, p = posbias.ClickLog(table), [1 / k for k in range(1, 11)]
    score = {(row["query_id"], row["doc_id"]): -row["rank"] for row in honest.to_pylist()}
    shown: dict[Any, dict[Any, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in table.to_pylist():
        shown[row["query_id"]][row["doc_id"]].append(row)
    repeated = {query: {doc for doc, own in documents.items() if len(own) > 1} for query, documents in shown.items()}
    clicks = {q: sum(row["clicked"] for doc in docs for row in shown[q][doc]) for q, docs in repeated.items()}
    cuts = np.quantile([clicks[q] for q, docs in repeated.items() for _ in docs], [0.25, 0.5, 0.75])

    def rate_square_exposure(own: list[Row]) -> tuple[float, float, float]:
        e = sum(p[row["position"] - 1] for row in own)
        views = [(row["clicked"], p[row["position"] - 1]) for row in own]
        # The mean over all ordered pairs of different views of one document is an unbiased estimate of r².
        of_pairs = [(a[0] * b[0], a[1] * b[1]) for a, b in itertools.permutations(views, 2)]
        return sum(c for c, _ in views) / e, sum(c for c, _ in of_pairs) / sum(x for _, x in of_pairs), e

    squares, products = 0.0, 0.0
    neighbours = []
    for query, documents in shown.items():
        order = sorted(documents, key=lambda doc: -score[query, doc])
        for place, (d, e) in enumerate(itertools.pairwise(order)):
            if {d, e} <= repeated[query]:
                (y, s, x), (z, t, u) = (rate_square_exposure(documents[doc]) for doc in (d, e))
                weight = 1 / (1 / x + 1 / u)
                squares += weight * (s + t)
                products += weight * 2 * y * z
                better = round(np.log(x / len(documents[d])) - np.log(u / len(documents[e])), 9)
                neighbours.append(((min(place, 9), int(np.searchsorted(cuts, clicks[query]))), better, weight, y - z))
    fifths = np.quantile([better for _, better, _, _ in neighbours], [0.2, 0.4, 0.6, 0.8])
    differences: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for place_and_clicks, better, weight, difference in neighbours:
        differences[place_and_clicks, int(np.searchsorted(fifths, better))].append((weight, difference))
    means = sum(sum(w * x for w, x in own) ** 2 / sum(w for w, _ in own) for own in differences.values())
    with open_log(log, extra_tables={"ranking_0": honest}) as opened:
        plan = QueryPlan(opened.schema, opened.dialect, ("a", "b"), 10)
        types = tuple(opened.extra_tables["ranking_0"].types[name] for name in ("query_id", "doc_id", "rank"))
        ranking = EvaluatedRanking("ranking_0", -1, "query_id", "doc_id", "rank", types, descending=False)
        opened.keep("shown_ranks", shown_ranks(plan, [ranking], p))
        opened.keep("reranked_documents", reranked_documents(plan, [ranking], lambda rank: "0e0", pages="whole"))
        pairs = opened.table(reranked_pairs(plan, [0], 1))
    found = ClickFit.of(pairs, pairs["rank_0"])
    assert found is not None
    assert found.similarity == pytest.approx((products + means) / squares)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_too_few_pairs_are_not_tested_for_memorised_clicks(rows: int) -> None:
    ones = np.ones(rows)
    pairs = {"bucket": np.arange(rows), "query": np.arange(rows), "impressions": 2 * ones, "clicks": ones}
    pairs |= {"exposure": 2 * ones, "squares": ones}
    assert ClickFit.of(pairs, np.ones(rows, dtype=np.int64)) is None


def test_odd_names_and_ids_are_handled_as_data(tmp_path: Any) -> None:
    odd = {"query_id": 'q"; DROP', "doc_id": "d'oc", "ranker": "r r", "position": "po;s", "clicked": "--c"}
    table = posbias.simulate(WORLD, ids="str").rename_columns(odd | {"rank_a": "rank_a", "rank_b": "rank_b"})
    log = posbias.ClickLog(table, query='q"; DROP', doc="d'oc", ranker="r r", position="po;s", click="--c")
    plain = posbias.simulate(WORLD, ids="str")
    pairs = plain.select(["query_id", "doc_id"]).group_by(["query_id", "doc_id"]).aggregate([])
    new = pairs.append_column("score", pa.array(np.random.default_rng(0).random(len(pairs))))
    path = tmp_path / "it's a [new]; model\x1b.parquet"
    pq.write_table(new.rename_columns({"query_id": 'q"; DROP', "doc_id": "d'oc"}), path)
    found = evaluate(log, [path, "ranker:b"])
    assert found.rankings[0].value.value == pytest.approx(value(plain, new))
    assert "\x1b" not in found.to_text()
    assert max(map(len, found.to_text().splitlines())) <= 80


def test_every_layout_and_window_and_no_ranker() -> None:
    world = posbias.World(queries=100, repeats=20, quality=(0.5, 2.0), seed=2)
    table = posbias.simulate(world, "replay")
    rng = np.random.default_rng(0)
    with_days = table.append_column("day", pa.array(rng.integers(0, 2, len(table))))
    pairs = table.select(["query_id", "doc_id"]).group_by(["query_id", "doc_id"]).aggregate([])
    new = pairs.append_column("score", pa.array(rng.random(len(pairs))))
    plain = evaluate(posbias.ClickLog(table), {"new": new})
    window = evaluate(posbias.ClickLog(with_days, window="day"), {"new": new})
    natural = evaluate(posbias.ClickLog(table.drop_columns(["ranker"])), {"new": new})
    for other in (window, natural):
        assert other["new"].ratio.value == pytest.approx(plain["new"].ratio.value, rel=0.05)
    assert plain["new"].verdict(True) == "worse"


def test_rows_logged_twice_and_rows_out_of_place(wide: pa.Table, ranking: pa.Table) -> None:
    twice = posbias.ClickLog(pa.concat_tables([wide, wide.slice(0, 500)]), duplicates="drop")
    assert evaluate(twice, {"new": ranking})["new"].value.value == pytest.approx(value(wide, ranking))
    rows = wide.to_pylist()
    for row in rows[:40]:
        row["position"] = row["position"] % 10 + 1
    # The harvest leaves them out; what was clicked where is still known.
    found = evaluate(posbias.ClickLog(pa.Table.from_pylist(rows)), {"new": ranking})
    assert any(finding.code == "contradicted-rank" for finding in found.findings)
    assert found["new"].value.value == pytest.approx(value(wide, ranking), rel=0.2)
    assert found.clicks == sum(row["clicked"] for row in rows)


def test_a_log_from_events_can_be_evaluated() -> None:
    table = posbias.simulate(WORLD, "wide").to_pandas()
    taps = table[table.clicked == 1][["impression_id", "doc_id"]]
    log = posbias.ClickLog.from_events(table.drop(columns=["clicked"]), taps)
    expected = evaluate(posbias.ClickLog(table), ["ranker:b"])["b"].ratio
    assert evaluate(log, ["ranker:b"])["b"].ratio.value == pytest.approx(expected.value)


def test_tables_of_a_database_are_rankings_too(wide: pa.Table, ranking: pa.Table, tmp_path: Any) -> None:
    import duckdb

    with duckdb.connect(tmp_path / "all.duckdb") as con:
        con.register("w", wide)
        con.register("r", ranking)
        con.execute("CREATE TABLE log AS FROM w; CREATE TABLE model AS FROM r")
    log = posbias.ClickLog(tmp_path / "all.duckdb", table="log")
    assert evaluate(log, ["model"])["model"].value.value == pytest.approx(value(wide, ranking))


# ---- The command


def run(*words: Any) -> Any:
    return CliRunner().invoke(cli, ["evaluate", *map(str, words)])


def test_the_command_prints_the_evaluation(wide: pa.Table, ranking: pa.Table, tmp_path: Any) -> None:
    log, new, picture = (tmp_path / name for name in ("log.parquet", "new.parquet", "ratios.png"))
    pq.write_table(wide, log)
    pq.write_table(ranking, new)
    words = (log, "--ranking", new, "--ranking", "ranker:b", "--metric", "precision@5")
    found = evaluate(posbias.ClickLog(str(log)), [str(new), "ranker:b"], metric="precision@5")
    done = run(*words, "--plot", picture)
    assert done.exit_code == 0, done.output
    assert done.stdout == found.to_text() + "\n"
    assert "was never shown" in done.stderr
    assert picture.read_bytes()[:4] == b"\x89PNG"
    printed = json.loads(run(*words, "--json").stdout)
    assert [*printed] == [*found.to_dict()]
    assert printed["rankings"][0]["ratio"] == pytest.approx(vars(found.rankings[0].ratio))
    assert printed["rankings"][1]["name"] == "b"
    assert [*printed["rankings"][0]["ratio"]] == ["value", "low", "high", "degrees_of_freedom", "reason"]


def test_the_command_reports_errors_without_a_traceback(wide: pa.Table, tmp_path: Any) -> None:
    log = tmp_path / "log.parquet"
    pq.write_table(wide, log)
    for words, message in (
        ((log,), "Missing option '--ranking'"),
        ((log, "--ranking", tmp_path / "none.parquet"), "none.parquet"),
        ((log, "--ranking", "ranker:z"), "no ranker 'z'"),
        ((log, "--ranking", "ranker:a", "--metric", "map"), "metric 'map'"),
        ((log, "--ranking", "ranker:a", "--plot", log), "expected a file name that ends in"),
        ((log, "--ranking", "ranker:a", "--engine", "spark", "--spark-conf", "x=y"), "Only DuckDB can join rankings"),
        ((log, "--ranking", log), "neither a column 'score' nor a column 'rank'"),
    ):
        done = run(*words)
        assert done.exit_code == 2, words
        assert message in done.stderr
        assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("queries", "repeats", "likeness", "tolerance"),
    # If few users saw a document, ranks among the documents shown change, too, which is not allowed for.
    [(12, 40, 0.99, 0.1), (100, 3, 0.8, 0.2)],
    ids=["many users saw each document", "one or two did"],
)
def test_with_units_values_change_as_they_do_without_the_users_of_a_bucket(
    queries: int, repeats: int, likeness: float, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = with_users(30, queries=queries, max_rank=5, repeats=repeats, quality=(0.5, 2.0), similarity=0.3)
    log = posbias.ClickLog(table, unit="user_id")
    harvest = posbias.harvest(log, max_rank=5)
    fitted = fit_harvest(harvest, None, 0.95)
    assert fitted.jackknife_ is not None
    units = fitted.jackknife_.units
    assert units is not None
    made: list[JackknifeValues] = []
    of = JackknifeValues.of.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(JackknifeValues, "of", classmethod(lambda cls, *args: made.append(of(cls, *args)) or made[-1]))
    evaluate(log, ["ranker:a", "ranker:b"], max_rank=5)
    by_units = made[0].by_units
    assert by_units is not None

    rows = rows_of(table)
    with open_log(log) as opened:
        bucket = {
            column: dict(opened.rows(f"SELECT DISTINCT {column}, {opened.dialect.bucket(column, 'BIGINT')} FROM log"))
            for column in ("query_id", "user_id")
        }
    scores: dict[str, dict[Any, dict[Any, float]]] = {name: defaultdict(dict) for name in "ab"}
    for row, (name, ranks) in product(rows, scores.items()):
        if (row["ranks"][name] or math.inf) <= 5:
            ranks[row["query"]][row["doc"]] = -row["ranks"][name]

    def log_values(kept: list[Row], p: Any) -> Any:
        lists = (None, scores["a"], scores["b"])
        return np.log([judge(kept, ranks, p.tolist(), lambda k: GAINS["dcg"](k) * (k <= 5), 5) for ranks in lists])

    for row in rows:
        row["by_unit"] = bucket["user_id"][row["user_id"]]
        row["by_both"] = (bucket["query_id"][row["query"]] + row["by_unit"]) % 256
    for kind, jackknife, values in (
        ("by_unit", units.by_unit, by_units[0]),
        ("by_both", units.by_both, by_units[1]),
    ):
        curves = fitted.propensity_ * jackknife.deletions / jackknife.propensity
        numbers = sorted({row[kind] for row in rows})
        # A part of them, since the oracle is slow.
        some = slice(None, None, max(len(numbers) // 25, 1))
        expected = np.array(
            [
                log_values([row for row in rows if row[kind] != b], p)
                for b, p in zip(numbers[some], curves[some], strict=True)
            ]
        )
        found = np.log(values[some, 1:])
        for one, other in ((1, 0), (2, 0), (2, 1)):
            ratios = [each[:, one] - each[:, other] for each in (found, expected)]
            assert np.corrcoef(*ratios)[0, 1] > likeness
            # To first order, which leaves a little of the change out.
            assert np.std(ratios[0]) == pytest.approx(np.std(ratios[1]), rel=tolerance)


def test_users_who_differ_make_intervals_wider_than_queries_alone_do() -> None:
    table = with_users(40, queries=200, max_rank=5, quality=(0.5, 2.0), similarity=0.3)
    ratios = [
        evaluate(posbias.ClickLog(table, unit=unit), ["ranker:a", "ranker:b"], max_rank=5)["b"].ratio
        for unit in ("user_id", "none")
    ]
    by_both, by_query = (ratio.high / ratio.value for ratio in ratios)
    # With units, CrossFit weights all clicks equally.
    assert ratios[0].value == pytest.approx(ratios[1].value, rel=1e-3)
    assert math.log(by_both) > 1.2 * math.log(by_query)


def test_few_units_give_no_interval() -> None:
    table = with_users(4, max_rank=3)
    ratio = evaluate(posbias.ClickLog(table, unit="user_id"), ["ranker:a", "ranker:b"], max_rank=3)["b"].ratio
    assert (ratio.low, ratio.high) == (None, None)
    assert "units (user_id) fill only 4 buckets" in ratio.reason
