"""Test the harvest against tests/support/oracle.py: every layout, weighting, source and name."""

from __future__ import annotations

import os
import random
import tempfile
import uuid
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import posbias
from tests.support import oracle
from tests.support.logs import (
    CONVERTERS,
    HOSTILE_KINDS,
    HOSTILE_RANKERS,
    LAYOUTS,
    PLAIN_KINDS,
    WEIGHTINGS,
    Log,
    Names,
    aggregate,
    hostile_names,
    logs,
    ranking_records,
    records,
    small_ids,
    to_arrow,
    to_pandas,
    uuid_ids,
)

pytestmark = pytest.mark.usefixtures("each_engine")

max_ranks = st.sampled_from([4, 3, 6, 10, 2])
devices = st.sampled_from(["phone", "desk top", "it's"])


def examples(n: int) -> settings:
    """So many in CI, and half as many where someone waits for it."""
    return settings(max_examples=n if os.environ.get("CI") else max(n // 2, 4))


# ---- From the oracle's rows to posbias and back


def click_log(log: Log, names: Names | None = None, convert: Any = to_arrow, directory: Any = ".") -> Any:
    names = names or Names()
    given: dict[str, Any] = {}
    if log.layout == "wide":
        given["ranks"] = names.ranks
    if log.layout == "long":
        given["rankings"] = convert(ranking_records(log, names), Path(directory) / "rankings")
        given["rank"] = names.rank
    if "impressions" in log.rows[0]:
        given |= {"impressions": names.impressions, "clicks": names.clicks}
    else:
        given["click"] = names.click
    if names.view:
        given["impression"] = names.view
    source = convert(records(log, names), Path(directory) / "log")
    return posbias.ClickLog(
        source, query=names.query, doc=names.doc, ranker=names.ranker, position=names.position, **given
    )


def harvest(log: Log, M: int, names: Names | None = None, convert: Any = to_arrow, **options: Any) -> Any:
    return posbias.harvest(click_log(log, names, convert), max_rank=M, force=True, **options)


def expected(log: Log, M: int, weighting: str | None = None, **options: Any) -> oracle.Pairs:
    return oracle.harvest(log.layout, log.rows, M, weighting, log.rankings, **options)


def matrix(values: dict[tuple[int, int], Any], M: int) -> np.ndarray:
    table = np.zeros((M, M))
    for (k, k_), value in values.items():
        table[k - 1, k_ - 1] = value
    return table


def assert_equal(table: Any, want: oracle.Pairs, M: int) -> None:
    clicks = matrix({kk: c for kk, (c, _) in want.items()}, M)
    skips = matrix({kk: not_c for kk, (_, not_c) in want.items()}, M)
    assert np.shape(table.clicks) == np.shape(table.skips) == (M, M)
    # No click is exactly no click: estimators decide by it whether a link of a chain exists.
    np.testing.assert_allclose(table.clicks, clicks, rtol=1e-12, atol=0, err_msg="clicks")
    np.testing.assert_allclose(table.skips, skips, rtol=1e-12, atol=1e-12, err_msg="skips")


def assert_same(one: Any, other: Any) -> None:
    assert one.layout == other.layout
    assert one.rankers == other.rankers
    assert one.page_views == other.page_views
    assert one.segments == other.segments
    np.testing.assert_array_equal(one.pairs().clicks, other.pairs().clicks)
    np.testing.assert_array_equal(one.pairs().skips, other.pairs().skips)


def served(page_views: dict[str, int]) -> dict[str, int]:
    return {ranker: n for ranker, n in page_views.items() if n > 0}


# ---- The oracle itself, by hand


def shown(ranker: str, docs: str, clicked: str = "", query: str = "q", **more: Any) -> list[dict[str, Any]]:
    """One page view: `docs` from the top, of which `clicked` were clicked."""
    return [
        {"query": query, "doc": d, "ranker": ranker, "position": k, "clicked": int(d in clicked)} | more
        for k, d in enumerate(docs, start=1)
    ]


def with_ranks(rows: list[dict[str, Any]], **rankings: str) -> list[dict[str, Any]]:
    """A wide log: each ranker's ranking of every query is the same string of documents."""
    return [
        row | {"ranks": {i: docs.index(row["doc"]) + 1 if row["doc"] in docs else None for i, docs in rankings.items()}}
        for row in rows
    ]


def told(layout: str, rows: list[dict[str, Any]], **rankings: str) -> Log:
    """The rows as a log of any layout, with what each ranker makes of the query."""
    if layout == "wide":
        return Log(layout, with_ranks(rows, **rankings), tuple(rankings))
    listed = [(ranker, doc, k) for ranker, docs in rankings.items() for k, doc in enumerate(docs, start=1)]
    table = [{"query": "q", "ranker": ranker, "doc": doc, "rank": k} for ranker, doc, k in listed]
    return Log(layout, rows, tuple(rankings), table if layout == "long" else None)


# A puts x above y and served twice, B the other way round and served once.
SWAP = [*shown("A", "xy", "x"), *shown("A", "xy"), *shown("B", "yx", "x")]


def test_oracle_by_traffic() -> None:
    rows = with_ranks(SWAP, A="xy", B="yx")
    assert oracle.page_views(rows, 2) == {"A": 2, "B": 1}
    w = oracle.exposure(oracle.wide_shares(rows, 2), {"A": 2, "B": 1})
    assert w == {("q", "x"): {1: 2, 2: 1}, ("q", "y"): {1: 1, 2: 2}}
    assert oracle.interventional_set(w, 1, 2) == {("q", "x"), ("q", "y")}
    # At 1: x clicked in one of A's two views, y skipped in B's one. At 2: x clicked (1/1), y skipped (2/2).
    assert oracle.harvest("wide", rows, 2) == {
        (1, 2): (Fraction(1, 2), Fraction(3, 2)),
        (2, 1): (Fraction(1), Fraction(1)),
    }


def test_oracle_counts_traffic_of_every_query() -> None:
    rows = [*SWAP, *shown("A", "z", "z", query="other"), *shown("A", "z", query="other")]
    # n_A is 4 now, so A's exposure of x at 1 and of y at 2 is 4, though it showed each of them twice.
    want = {(1, 2): (Fraction(1, 4), Fraction(5, 4)), (2, 1): (Fraction(1), Fraction(1, 2))}
    assert oracle.harvest("replay", rows, 2, "traffic") == want
    wide = with_ranks(rows, A="xy", B="yx")
    for row in wide:
        if row["doc"] == "z":
            row["ranks"] = {"A": 1, "B": None}
    assert oracle.harvest("wide", wide, 2) == want


def test_oracle_computes_click_rates_of_pairs() -> None:
    assert oracle.harvest("replay", SWAP, 2, "uniform") == {
        (1, 2): (Fraction(1, 2), Fraction(3, 2)),
        (2, 1): (Fraction(1), Fraction(1)),
    }
    # N_1 N_2 / (N_1 + N_2) = 2/3 for x and for y.
    assert oracle.harvest("replay", SWAP, 2) == {
        (1, 2): (Fraction(1, 3), Fraction(1)),
        (2, 1): (Fraction(2, 3), Fraction(2, 3)),
    }


def test_oracle_splits_a_non_functional_ranker() -> None:
    rows = [*shown("A", "xy", "x") * 3, *shown("A", "yx")]
    shares = oracle.replay_shares(rows, 2)
    assert shares["q", "x"] == {"A": {1: Fraction(3, 4), 2: Fraction(1, 4)}}
    assert oracle.not_functions(shares) == 2
    # w(x,1) = w(y,2) = 3 and w(x,2) = w(y,1) = 1: x is clicked at 1 (3/3), all else is skipped.
    assert oracle.harvest("replay", rows, 2, "traffic") == {
        (1, 2): (Fraction(1), Fraction(1)),
        (2, 1): (Fraction(0), Fraction(2)),
    }
    # Beyond M nothing was observed: with M = 1 each of them was at one rank only.
    assert oracle.not_functions(oracle.replay_shares(rows, 1)) == 0


def test_oracle_leaves_out_a_ranker_without_traffic() -> None:
    rows = with_ranks(shown("A", "xy", "x"), A="xy", idle="yx")
    assert oracle.harvest("wide", rows, 2) == {(1, 2): (0, 0), (2, 1): (0, 0)}
    assert oracle.intervention_sets("wide", rows, 2) == {(1, 2): 0, (2, 1): 0}


def test_oracle_cuts_at_max_rank() -> None:
    rows = with_ranks([*shown("A", "xyz"), *shown("B", "zxy", "z")], A="xyz", B="zxy")
    assert oracle.intervention_sets("wide", rows, 3) == {
        (1, 2): 1, (2, 1): 1, (2, 3): 1, (3, 2): 1, (1, 3): 1, (3, 1): 1
    }  # fmt: skip
    assert oracle.intervention_sets("wide", rows, 2) == {(1, 2): 1, (2, 1): 1}
    assert oracle.harvest("wide", rows, 2) == {(1, 2): (0, 1), (2, 1): (0, 1)}


@examples(30)
@given(st.data(), st.sampled_from(LAYOUTS), st.sampled_from(WEIGHTINGS))
def test_oracle_accepts_aggregated_rows(data: Any, layout: str, weighting: str) -> None:
    log = data.draw(logs(layout))
    assert expected(aggregate(log), 4, weighting) == expected(log, 4, weighting)


# ---- Every layout by every weighting


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("layout", LAYOUTS)
@examples(18)
@given(data=st.data(), M=max_ranks)
def test_harvest_equals_the_oracle(layout: str, weighting: str, data: Any, M: int) -> None:
    log = data.draw(logs(layout))
    harvested = harvest(log, M, weighting=weighting)
    assert harvested.layout == layout
    assert served(harvested.page_views) == oracle.page_views(log.rows, M)
    assert harvested.rankers == tuple(sorted(harvested.rankers))
    assert set(harvested.page_views) <= set(harvested.rankers) <= set(log.rankers)
    assert_equal(harvested.pairs(), expected(log, M, weighting), M)


@pytest.mark.parametrize("layout", LAYOUTS)
@examples(10)
@given(data=st.data(), M=max_ranks)
def test_default_weighting(layout: str, data: Any, M: int) -> None:
    log = data.draw(logs(layout))
    assert_equal(harvest(log, M).pairs(), expected(log, M), M)


@examples(18)
@given(logs("replay", functional=False), max_ranks)
def test_one_replay_harvest_holds_every_weighting(log: Log, M: int) -> None:
    harvested = harvest(log, M)
    for weighting in WEIGHTINGS:
        assert_equal(harvested.pairs(weighting), expected(log, M, weighting), M)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("layout", LAYOUTS)
@examples(8)
@given(data=st.data(), M=max_ranks)
def test_sums_in_place_of_strata(layout: str, weighting: str, data: Any, M: int) -> None:
    log = data.draw(logs(layout, functional=layout != "replay", segments=devices))
    names = Names(segments={"segment": "device"})
    plain = harvest(log, M, weighting=weighting, max_strata=0)
    assert served(plain.page_views) == oracle.page_views(log.rows, M)
    assert_equal(plain.pairs(), expected(log, M, weighting), M)
    by_device = harvest(log, M, names, weighting=weighting, by=("device",), max_strata=0)
    for key in by_device.segments:
        part = log.only(lambda row, key=key: row["segment"] == key[0])
        assert served(by_device.segment(key).page_views) == oracle.page_views(part.rows, M)
        assert_equal(by_device.segment(key).pairs(), expected(part, M, weighting), M)


@examples(18)
@given(logs("replay", functional=False), max_ranks)
def test_non_functional_ranker_is_split_or_rejected(log: Log, M: int) -> None:
    assert_equal(harvest(log, M, weighting="traffic", non_functional="share").pairs(), expected(log, M, "traffic"), M)
    if oracle.not_functions(oracle.replay_shares(log.rows, M)):
        with pytest.raises(posbias.PosbiasError):
            harvest(log, M, weighting="traffic", non_functional="refuse").pairs()
    else:
        refusing = harvest(log, M, weighting="traffic", non_functional="refuse")
        assert_equal(refusing.pairs(), expected(log, M, "traffic"), M)


@examples(18)
@given(logs("long", complete=False), max_ranks)
def test_rankings_with_gaps(log: Log, M: int) -> None:
    # A result that its own ranker's ranking does not have was not put there by it: such rows are left out.
    ranked = {(r["query"], r["doc"], r["ranker"]) for r in log.rankings}
    kept = log.only(lambda row: (row["query"], row["doc"], row["ranker"]) in ranked)
    if not any(row["position"] <= M for row in kept.rows):
        return
    harvested = harvest(log, M)
    assert_equal(harvested.pairs(), expected(kept, M), M)
    gone = sum(row["position"] <= M for row in log.rows) - sum(row["position"] <= M for row in kept.rows)
    assert harvested.about["rows_contradicted"] == gone
    assert bool(gone) == any("left out" in finding.message for finding in harvested.findings)


@examples(10)
@given(logs("long"), max_ranks)
def test_duplicate_rankings_are_handled(log: Log, M: int) -> None:
    twice = replace(log, rankings=[*log.rankings, *log.rankings[::-1]])
    assert_equal(harvest(twice, M).pairs(), expected(log, M), M)


@pytest.mark.parametrize("layout", LAYOUTS)
@examples(12)
@given(data=st.data(), M=max_ranks)
def test_intervention_sets(layout: str, data: Any, M: int) -> None:
    log = data.draw(logs(layout))
    sizes = posbias.intervention_sets(click_log(log), max_rank=M, force=True)
    assert np.issubdtype(sizes.dtype, np.integer)
    want = oracle.intervention_sets(layout, log.rows, M, log.rankings)
    np.testing.assert_array_equal(sizes, matrix(want, M))


@pytest.mark.parametrize(("layout", "weighting"), [*((x, "traffic") for x in LAYOUTS), ("replay", "harmonic")])
@examples(10)
@given(data=st.data())
def test_smaller_max_rank_is_a_submatrix(layout: str, weighting: str, data: Any) -> None:
    log = data.draw(logs(layout))
    whole = harvest(log, 10, weighting=weighting).pairs()
    for M in (2, 5):
        part = harvest(log, M, weighting=weighting).pairs()
        np.testing.assert_allclose(part.clicks, whole.clicks[:M, :M], rtol=1e-12)
        np.testing.assert_allclose(part.skips, whole.skips[:M, :M], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logs_without_results_in_the_top_are_empty_or_rejected(layout: str) -> None:
    log = told(layout, [row for row in SWAP * 2 if row["position"] == 2], A="xy", B="yx")
    log = replace(log, rows=[row | {"position": 7} for row in log.rows])
    if layout == "wide":
        log = replace(log, rows=[row | {"ranks": {"A": 7, "B": 7}} for row in log.rows])
    try:
        harvested = harvest(log, 3)
    except posbias.PosbiasError:
        return
    assert_equal(harvested.pairs(), expected(log, 3), 3)


@pytest.mark.parametrize("rankers", [20, 70])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_rankers(layout: str, rankers: int) -> None:
    chance = random.Random(rankers)
    listed = {f"ranker {i}": "".join(chance.sample("stuvwxyz", 8)) for i in range(rankers)}
    views = [chance.choice(list(listed)) for _ in range(3 * rankers)]
    rows = [row for i in views for row in shown(i, listed[i], chance.choice("stuvwxyz"))]
    log = told(layout, rows, **listed)
    assert_equal(harvest(log, 6).pairs(), expected(log, 6), 6)
    assert_equal(harvest(log, 6, weighting="traffic").pairs(), expected(log, 6, "traffic"), 6)


@examples(8)
@given(logs("long", ids=(small_ids,)), max_ranks)
def test_ids_may_be_numbers_and_text(log: Log, M: int) -> None:
    def text(rows: list[dict[str, Any]], path: Path) -> Any:
        if path.name == "log":
            return to_arrow(rows)
        return to_arrow([row | {name: str(row[name]) for name in ("query_id", "doc_id")} for row in rows])

    assert_equal(harvest(log, M, convert=text).pairs(), expected(log, M), M)


# ---- Merge, save, load


def parts(log: Log, n: int) -> list[Log]:
    """The log's page views dealt out to n logs, as days are, less those that got none."""
    dealt = [log.only(lambda row, part=part: row["view"] % n == part) for part in range(n)]
    return [part for part in dealt if part.rows]


@pytest.mark.parametrize("layout", ["wide", "long"])
@examples(15)
@given(data=st.data(), M=max_ranks, n=st.sampled_from([2, 3]))
def test_merged_harvests_equal_the_harvest_of_both_logs(layout: str, data: Any, M: int, n: int) -> None:
    log = data.draw(logs(layout))
    days = [harvest(day, M) for day in parts(log, n)]
    merged = posbias.merge(days)
    assert served(merged.page_views) == oracle.page_views(log.rows, M)
    assert_equal(merged.pairs(), expected(log, M), M)
    again = posbias.merge(days[::-1])
    assert_equal(again.pairs(), expected(log, M), M)


def test_harvests_are_merged_as_arguments_or_as_a_list() -> None:
    days = [posbias.harvest(posbias.ClickLog(posbias.simulate(posbias.World(queries=50, seed=i)))) for i in (1, 2)]
    assert posbias.merge(*days).page_views == posbias.merge(days).page_views
    assert posbias.merge(days[0]).page_views == days[0].page_views


@examples(18)
@given(logs("replay", functional=False), max_ranks, st.sampled_from([2, 3]), st.sampled_from(WEIGHTINGS))
def test_merged_replays_keep_their_own_strata(log: Log, M: int, n: int, weighting: str) -> None:
    merged = posbias.merge([harvest(day, M) for day in parts(log, n)])
    assert served(merged.page_views) == oracle.page_views(log.rows, M)
    want = expected(log, M, weighting, stratum=lambda row: (row["view"] % n, row["query"], row["doc"]))
    assert_equal(merged.pairs(weighting), want, M)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_merged_sums_weight_each_part_by_its_traffic(layout: str, weighting: str) -> None:
    # Each half by another mix of traffic: what was divided by the n_i of one half stays so, and counts by its views.
    halves = [[*shown("A", "xyz", "x") * 4, *shown("B", "yzx", "y")], [*shown("A", "xyz"), *shown("B", "yzx", "x") * 4]]
    rows = [row | {"segment": half} for half, views in zip("st", halves, strict=True) for row in views]
    log = told(layout, rows, A="xyz", B="yzx")

    def merged() -> Any:
        parts = [log.only(lambda row, half=half: row["segment"] == half) for half in "st"]
        return posbias.merge([harvest(part, 3, weighting=weighting, max_strata=0) for part in parts])

    def segmented() -> Any:
        names = Names(segments={"segment": "half"})
        return harvest(log, 3, names, by=("half",), weighting=weighting, max_strata=0)

    def part(half: str) -> tuple[Any, int]:
        rows = log.only(lambda row: row["segment"] == half)
        return expected(rows, 3, weighting), sum(oracle.page_views(rows.rows, 3).values())

    (first, n), (second, m) = part("s"), part("t")
    scale = (n / (n + m), m / (n + m)) if weighting == "traffic" else (1, 1)
    want = {
        key: tuple(a * scale[0] + b * scale[1] for a, b in zip(first[key], second[key], strict=True)) for key in first
    }
    for make in (merged, segmented):
        assert_equal(make().pairs(), want, 3)


@pytest.mark.parametrize("max_strata", [0, 10_000])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_harvests_from_an_iterator_are_merged_in_batches(
    layout: str, max_strata: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = told(layout, [*shown("A", "xyz", "x") * 4, *shown("B", "yzx", "y") * 2], A="xyz", B="yzx")
    day = harvest(log, 3, max_strata=max_strata)
    at_once = posbias.merge([day] * 5, force=True)
    monkeypatch.setattr("posbias.harvesting.merge._AT_ONCE", len(day.table))
    in_turns = posbias.merge(iter([day] * 5), force=True)
    assert in_turns.page_views == at_once.page_views
    np.testing.assert_allclose(in_turns.pairs().clicks, at_once.pairs().clicks, rtol=1e-12)
    np.testing.assert_allclose(in_turns.pairs().skips, at_once.pairs().skips, rtol=1e-12)
    assert len(in_turns.table) == len(day.table)
    assert in_turns.about["parts"] == 5
    assert in_turns.about["rows"] == 5 * day.about["rows"]


@examples(15)
@given(st.data(), st.sampled_from(LAYOUTS), max_ranks)
def test_saved_and_loaded_harvest_is_equal(data: Any, layout: str, M: int) -> None:
    log = data.draw(logs(layout, rankers=HOSTILE_RANKERS, segments=devices))
    harvested = harvest(log, M, Names(segments={"segment": "device"}), by=("device",))
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "some harvest.posbias"
        harvested.save(path)
        loaded = posbias.Harvest.load(path)
    assert_same(loaded, harvested)
    for key in harvested.segments:
        assert_same(loaded.segment(key), harvested.segment(key))
    assert_same(posbias.merge([loaded, harvested], force=True), posbias.merge([harvested, loaded], force=True))


@pytest.mark.long
@examples(40)
@given(st.data(), st.sampled_from(LAYOUTS), max_ranks, st.sampled_from([0, 10**6]), st.sampled_from(WEIGHTINGS))
def test_harvests_and_merges_can_be_read_back(data: Any, layout: str, M: int, max_strata: int, weighting: str) -> None:
    log = data.draw(logs(layout, functional=layout != "replay", segments=devices))
    names = Names(segments={"segment": "device"})
    harvested = harvest(log, M, names, by=("device",), weighting=weighting, max_strata=max_strata)
    with tempfile.TemporaryDirectory() as directory:
        merged = posbias.merge([harvested] * 3, force=True)
        for made in (harvested, merged, *map(harvested.segment, harvested.segments)):
            made.save(Path(directory) / "harvest")
            assert_same(posbias.Harvest.load(Path(directory) / "harvest"), made)


# ---- Segments


@pytest.mark.parametrize("layout", LAYOUTS)
@examples(15)
@given(data=st.data(), M=max_ranks)
def test_segment_equals_the_harvest_of_its_rows(layout: str, data: Any, M: int) -> None:
    values = st.sampled_from(data.draw(st.sampled_from([["phone", "it's", None], ["", "ü 🚀"], [1, 2, 10]])))
    log = data.draw(logs(layout, segments=values))
    by_device = harvest(log, M, Names(segments={"segment": "device"}), by=("device",))
    keys = {value: (value if value is None else str(value),) for value in {r["segment"] for r in log.rows}}
    assert len(by_device.segments) == len(keys)
    assert set(by_device.segments) == set(keys.values())
    for value, key in keys.items():
        part = log.only(lambda row, value=value: row["segment"] == value)
        assert served(by_device.segment(key).page_views) == oracle.page_views(part.rows, M)
        assert_equal(by_device.segment(key).pairs(), expected(part, M), M)

    stratum = oracle.query_doc
    if layout == "replay":
        stratum = lambda row: (row["segment"], row["query"], row["doc"])  # noqa: E731
    assert served(by_device.page_views) == oracle.page_views(log.rows, M)
    assert_equal(by_device.pairs(), expected(log, M, stratum=stratum), M)


@examples(8)
@given(st.data(), st.sampled_from(LAYOUTS))
def test_segments_by_two_columns(data: Any, layout: str) -> None:
    both = st.tuples(devices, st.sampled_from(["de", "fr"]))
    log = data.draw(logs(layout, segments=both))
    log = replace(log, rows=[row | dict(zip(("device", "land"), row["segment"], strict=True)) for row in log.rows])
    names = Names(segments={"device": "device", "land": "land"})
    harvested = harvest(log, 4, names, by=("device", "land"))
    assert sorted(harvested.segments) == sorted({row["segment"] for row in log.rows})
    for key in harvested.segments:
        part = log.only(lambda row, key=key: row["segment"] == key)
        assert_equal(harvested.segment(key).pairs(), expected(part, 4), 4)


# ---- Rows counted together


@pytest.mark.parametrize("layout", LAYOUTS)
@examples(12)
@given(data=st.data(), M=max_ranks, weighting=st.sampled_from(WEIGHTINGS))
def test_aggregated_rows_count_like_single_rows(layout: str, data: Any, M: int, weighting: str) -> None:
    log = data.draw(logs(layout, functional=layout != "replay"))
    counted = harvest(aggregate(log), M, weighting=weighting)
    assert served(counted.page_views) == oracle.page_views(log.rows, M)
    assert_equal(counted.pairs(), expected(log, M, weighting), M)


@pytest.mark.parametrize("layout", LAYOUTS)
@examples(12)
@given(data=st.data(), M=max_ranks, weighting=st.sampled_from(WEIGHTINGS))
def test_large_and_empty_counts(layout: str, data: Any, M: int, weighting: str) -> None:
    log = aggregate(data.draw(logs(layout, functional=layout != "replay")))
    scale = data.draw(st.sampled_from([1, 2**20, 2**31, 2**32 + 1, 10**11]))
    rows = [row | {name: row[name] * scale for name in ("impressions", "clicks")} for row in log.rows]
    # A result that was never shown, counted by somebody all the same.
    if layout == "replay":
        rows.append(rows[0] | {"position": rows[0]["position"] % M + 1, "impressions": 0, "clicks": 0})
    log = replace(log, rows=rows)
    harvested = harvest(log, M, weighting=weighting)
    assert served(harvested.page_views) == oracle.page_views(log.rows, M)
    assert_equal(harvested.pairs(), expected(log, M, weighting), M)


# ---- Sources, types and names


@pytest.mark.parametrize("kind", CONVERTERS)
@examples(10)
@given(data=st.data(), layout=st.sampled_from(LAYOUTS), M=max_ranks)
def test_every_source_gives_the_same_harvest(kind: str, data: Any, layout: str, M: int) -> None:
    log = data.draw(logs(layout, ids=(*PLAIN_KINDS, uuid_ids)))
    with tempfile.TemporaryDirectory() as directory:
        source = click_log(log, convert=CONVERTERS[kind], directory=directory)
        harvested = posbias.harvest(source, max_rank=M, force=True)
    assert harvested.layout == layout
    assert served(harvested.page_views) == oracle.page_views(log.rows, M)
    assert_equal(harvested.pairs(), expected(log, M), M)


@pytest.mark.parametrize("layout", LAYOUTS)
@examples(15)
@given(data=st.data(), M=max_ranks)
def test_hostile_ids_and_rankers(layout: str, data: Any, M: int) -> None:
    log = data.draw(logs(layout, ids=HOSTILE_KINDS, rankers=HOSTILE_RANKERS))
    convert = data.draw(st.sampled_from([CONVERTERS[kind] for kind in ("pandas", "polars", "arrow")]))
    harvested = harvest(log, M, convert=convert)
    assert served(harvested.page_views) == oracle.page_views(log.rows, M)
    assert_equal(harvested.pairs(), expected(log, M), M)


@pytest.mark.parametrize("layout", LAYOUTS)
@examples(15)
@given(data=st.data(), names=hostile_names(), counted=st.booleans())
def test_hostile_column_names(layout: str, data: Any, names: Names, counted: bool) -> None:
    log = data.draw(logs(layout, rankers=HOSTILE_RANKERS, segments=devices))
    if counted:
        log, names = aggregate(log), replace(names, view=None)
    harvested = harvest(log, 4, names, by=(names.segments["segment"],))
    for key in harvested.segments:
        part = log.only(lambda row, key=key: row["segment"] == key[0])
        assert_equal(harvested.segment(key).pairs(), expected(part, 4), 4)


@examples(10)
@given(logs("wide", rankers=HOSTILE_RANKERS))
def test_rank_columns_are_found_by_their_prefix(log: Log) -> None:
    found = posbias.harvest(posbias.ClickLog(to_arrow(records(log))), max_rank=4, force=True)
    assert found.layout == "wide"
    assert_equal(found.pairs(), expected(log, 4), 4)


@pytest.mark.parametrize("layout", LAYOUTS)
@examples(8)
@given(data=st.data())
def test_rankers_with_numeric_names(layout: str, data: Any) -> None:
    log = data.draw(logs(layout, rankers=("1", "2", "10", "-3")))

    def numbered(rows: list[dict[str, Any]], _: Any) -> Any:
        return to_pandas([row | {"ranker": int(row["ranker"])} for row in rows])

    harvested = harvest(log, 4, convert=numbered)
    assert served(harvested.page_views) == oracle.page_views(log.rows, 4)
    assert_equal(harvested.pairs(), expected(log, 4), 4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rankers_that_differ_only_in_case_are_counted_or_rejected(layout: str) -> None:
    log = told(layout, [*shown("a", "xyz", "x"), *shown("A", "yzx", "z") * 2], a="xyz", A="yzx")
    try:
        harvested = harvest(log, 3)
    except posbias.PosbiasError:
        assert layout == "wide", "only columns may be refused for their case"
        return
    assert served(harvested.page_views) == {"a": 1, "A": 2}
    assert_equal(harvested.pairs(), expected(log, 3), 3)


@pytest.mark.parametrize("kind", ["pandas", "arrow"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_uuid_ids_are_read(layout: str, kind: str) -> None:
    uuids = {name: uuid.UUID(int=2**127 + i) for i, name in enumerate(["q", "x", "y"])}
    log = told(layout, SWAP, A="xy", B="yx")

    def with_uuids(rows: list[dict[str, Any]], _: Any) -> Any:
        ids = {name: [uuids[row[name]] for row in rows] for name in ("query_id", "doc_id")}
        if kind == "pandas":
            return to_pandas(rows).assign(**ids)
        table = to_arrow(rows)
        for name, values in ids.items():
            column = pyarrow.array([value.bytes for value in values], pyarrow.uuid())
            table = table.set_column(table.column_names.index(name), name, column)
        return table

    assert_equal(harvest(log, 2, convert=with_uuids).pairs(), expected(log, 2), 2)
