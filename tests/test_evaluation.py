"""Rankings judged offline: the formula in loops, the truth of simulated worlds, and what cannot be judged."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from scipy.special import stdtrit

import posbias
from posbias.cli import cli
from posbias.engines import open_log
from posbias.judging.sides import fit
from posbias.learning.credits import Credits, Refits
from posbias import evaluate
from posbias.learning.metrics import Metric
from posbias.simulation import rank
from posbias.simulation.blocks import blocks_of, draw_rankings

from . import oracle

Row = dict[str, Any]
Gain = Callable[[int], float]
GAINS: dict[str, Gain] = {
    "dcg": lambda k: 1 / math.log2(k + 1) if k <= 10 else 0.0,
    "dcg@3": lambda k: 1 / math.log2(k + 1) if k <= 3 else 0.0,
    "precision@5": lambda k: 0.2 if k <= 5 else 0.0,
    "rank": float,
}
WORLD = posbias.World(queries=60, repeats=4, quality=(0.5, 2.0), similarity=0.3, candidates=18, seed=3)


# ---- The formula, slowly. A log is a list of dicts as `tests/oracle.py` has them.


def gains_of(documents: list[Any], scores: dict[Any, float], gain: Gain) -> dict[Any, float]:
    """What each of the documents of a query is worth: those of one score share their ranks, those of none are last."""
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
        N += n
        worth = gains_of([*documents], scores.get(query, {}), gain) if scores is not None else as_shown(documents, n, gain)
        for doc, own in documents.items():
            rho = sum(oracle.impressions(row) * p[row["position"] - 1] for row in own) / n
            total += sum(map(oracle.clicks, own)) * worth[doc] / rho
    return total / N


def as_shown(documents: dict[Any, list[Row]], n: int, gain: Gain) -> dict[Any, float]:
    """What each document of a query was worth in its n page views: those that a page leaves out share the ranks below."""
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


@pytest.mark.parametrize("metric", GAINS)
@pytest.mark.parametrize("aggregated", [False, True], ids=["rows", "counts"])
@pytest.mark.parametrize("layout", ["wide", "long", "replay"])
def test_values_are_those_of_the_formula(layout: str, aggregated: bool, metric: str) -> None:
    log = click_log(layout, aggregated=aggregated)
    wide = posbias.simulate(WORLD, "wide", aggregated=aggregated)
    ranking = made_up(wide, seed=1)
    found = evaluate(log, {"new": ranking}, metric=metric)
    p = fit(posbias.harvest(log)).propensity_.tolist()
    rows = rows_of(wide)
    for name, scores in (("new", scores_of(ranking)), ("the log", None)):
        expected = judge(rows, scores, p, GAINS[metric])
        assert found[name].value.value == pytest.approx(expected, rel=1e-9)
    relevant = judge(rows, {}, p, lambda k: 1.0)
    assert found["new"].normalised.value == pytest.approx(found["new"].value.value / relevant, rel=1e-9)
    assert found["new"].ratio.value == pytest.approx(found["new"].value.value / found["the log"].value.value)


def test_a_ranker_of_the_log_is_what_its_ranks_say() -> None:
    log, wide = click_log("wide"), posbias.simulate(WORLD, "wide")
    p = fit(posbias.harvest(log)).propensity_.tolist()
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


# ---- The maths by itself.


def test_refits_are_those_of_the_formula_to_the_first_order() -> None:
    log, wide = click_log("wide"), posbias.simulate(WORLD, "wide")
    ranking = made_up(wide, seed=2)
    rows, scores = rows_of(wide), scores_of(ranking)
    harvest = posbias.harvest(log)
    deletions = fit(harvest).deletions_
    assert deletions is not None
    with open_log(log) as opened:
        of = dict(opened.rows(f"SELECT DISTINCT query_id, {opened.dialect.bucket('query_id', 'BIGINT')} FROM log"))
    ratio = evaluate(log, {"new": ranking})["new"].ratio
    moved = []
    for p, bucket in zip(deletions.tolist(), harvest.buckets.tolist(), strict=True):
        kept = [row for row in rows if of[row["query"]] != bucket]
        new, old = (judge(kept, told, p, GAINS["dcg"]) for told in (scores, None))
        moved.append(math.log(new / old / ratio.value))
    error = math.sqrt((len(moved) - 1) / len(moved) * sum(d * d for d in moved))
    half = stdtrit(ratio.degrees_of_freedom, 0.975) * error
    assert math.log(ratio.high / ratio.value) == pytest.approx(half, rel=0.03)
    assert ratio.low * ratio.high == pytest.approx(ratio.value**2)


def test_a_click_counts_less_where_it_was_likelier() -> None:
    credits_ = Credits(np.ones((1, 2, 3)) * [1, 1, 0], np.full(2, 5.0), np.array([1.0, 0.5, 0.0]))
    ones = np.ones(2)
    assert credits_.values(ones, np.array([1.0, 0.5, np.nan])).tolist() == [0.4]
    # p_2 a quarter higher: what stands at rank 2 counts a fifth less. Without it, the other ranks still do.
    assert credits_.values(ones, np.array([1.0, 0.625, 0.0])).tolist() == pytest.approx([0.36])
    assert credits_.values(ones, np.array([1.0, 0.0, 0.0])).tolist() == pytest.approx([1.0])
    curves = np.array([[1.0, 0.5, 0.0]] * 2)
    assert credits_.values(np.array([[1.0, 0.0], [2.0, 1.0]]), curves).tolist() == [[0.4], [0.4]]


def test_too_few_buckets_and_lone_ones_have_no_interval() -> None:
    few = Credits(np.ones((2, 3, 1)), np.ones(3), np.ones(1))
    told = Refits.of(few, np.ones(1), np.ones((3, 1)), 0.95, np.inf).ratio(0, 1)
    assert (told.low, told.reason) == (None, "3 buckets of queries: no interval from fewer than 8")
    one = np.zeros((2, 9, 1))
    one[:, 4] = 1
    alone = Credits(one, np.ones(9), np.ones(1))
    told = Refits.of(alone, np.ones(1), np.ones((9, 1)), 0.95, np.inf).ratio(0, 1)
    assert (told.value, told.low, told.reason) == (1.0, None, "rests on one bucket of queries: no interval")


def test_metrics_are_named_and_others_refused() -> None:
    assert [Metric.named(name, 10).title for name in GAINS] == ["DCG@10", "DCG@3", "precision@5", "average rank"]
    for bad in ("ndcg", "dcg@0", "dcg@", "rank@3", "dcg@11", "", None, 5):
        with pytest.raises(posbias.PosbiasError, match="metric"):
            Metric.named(bad, 10)  # type: ignore[arg-type]


# ---- Truth.


def truths(world: posbias.World) -> dict[str, float]:
    """The true DCG@M of every ranker, over all candidates."""
    worth = 1 / np.log2(np.arange(2, world.pool + 2)) * (np.arange(world.pool) < world.max_rank)
    [drawn] = [draw_rankings(world, block) for block in blocks_of(world)]
    relevance = np.where(drawn.relevant, 1.0, world.noise)
    return {
        name: float((worth[drawn.ranks[:, i] - 1] * relevance).sum(1).mean()) for i, name in enumerate(world.rankers)
    }


@pytest.mark.parametrize("layout", ["wide", "replay"])
def test_intervals_hold_the_truth(layout: str) -> None:
    world = posbias.World(queries=3000, repeats=20, quality=(0.5, 1.5), similarity=0.5, seed=5)
    true = truths(world)
    found = evaluate(click_log(layout, world), ["ranker:a", "ranker:b"])
    for name in "ab":
        one = found[name]
        # The queries are the very ones whose truth is known, so that intervals are wide for it.
        assert one.value.low < true[name] < one.value.high
        assert one.ratio.low < true[name] / ((true["a"] + true["b"]) / 2) < one.ratio.high
        assert one.value.value == pytest.approx(true[name], rel=0.05)
    assert (found.best, found["a"].verdict(True), found["b"].verdict(True)) == ("b", "worse", "better")
