"""Weights against a plain loop over the rows: every layout, source and name, with errors and findings."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import posbias
from posbias.cli import cli
from posbias.curves.curve import Curve, Position
from posbias.learning import weights
from posbias.learning.learners import learner_form
from posbias.learning.weights import find_few_clicks, relative_propensities
from tests.harvesting.test_harvest import click_log
from tests.support.logs import (
    CONVERTERS,
    HOSTILE_KINDS,
    HOSTILE_RANKERS,
    LAYOUTS,
    Log,
    Names,
    aggregate,
    hostile_names,
    logs,
)

Row = dict[str, Any]
P = [1.0, 0.7, 1.1, 0.02, 0.3, 0.25, 0.0, 0.1]


def a_curve(
    values: Iterable[float | None] = P, max_rank: int | None = None, *, reasons: dict[int, str] | None = None
) -> Curve:
    """Return a curve with these values from rank 1 on, None for one without a number."""
    values = list(values)
    positions = tuple(
        Position(k, p, None, None, 1000, 100, (reasons or {}).get(k)) for k, p in enumerate(values, start=1)
    )
    return Curve("by-hand", max_rank or len(values), None, None, None, positions, {})


def segmented(parts: dict[Any, list[float]]) -> Curve:
    """Return a curve by device."""
    whole = a_curve(max(parts.values(), key=len))
    segments = {(key,): a_curve(values, whole.max_rank) for key, values in parts.items()}
    return Curve("by-hand", whole.max_rank, None, None, None, whole.positions, {}, by=("device",), segments=segments)


def expected(rows: Iterable[Row], p: Any, cap: float | None = 20.0) -> dict[Any, list[float]]:
    """Return impressions, clicks, exposure and weight of each pair; `p` gives the propensity of a row."""
    found: dict[Any, list[float]] = defaultdict(lambda: [0, 0, 0.0, 0.0])
    for row in rows:
        shown, clicked = row.get("impressions", 1), int(row.get("clicks", row.get("clicked", 0)))
        if shown:
            pair = found[row["query"], row["doc"]]
            pair[0] += shown
            pair[1] += clicked
            pair[2] += shown * p(row)
            pair[3] += clicked * min(1 / p(row) if p(row) else math.inf, cap or math.inf) if clicked else 0
    return dict(found)


def by_rank(row: Row) -> float:
    return P[row["position"] - 1]


def values_of(table: pa.Table, query: str = "query_id", doc: str = "doc_id") -> dict[Any, list[float]]:
    """Return the values of a table by pair."""
    columns = ("impressions", "clicks", "exposure", "weight")
    rows = table.to_pylist()
    found = {(row[query], row[doc]): [row[name] for name in columns] for row in rows}
    assert len(found) == len(rows)
    return found


def assert_alike(found: dict[Any, list[float]], want: dict[Any, list[float]]) -> None:
    assert {*found} == {*want}
    for key, values in want.items():
        assert found[key] == pytest.approx(values, rel=1e-12, abs=1e-12), key


def usable(log: Log) -> bool:
    """Whether something was clicked, and not everything."""
    clicks = sum(int(row["clicked"]) for row in log.rows)
    return 0 < clicks < len(log.rows)


def rows_of(seed: int = 0, queries: int = 40, **settings: Any) -> list[Row]:
    """Return a simulated log by short names."""
    world = posbias.World(queries=queries, max_rank=5, seed=seed, **settings)
    return posbias.simulate(world, "replay").to_pylist()


def oracle_rows(rows: Iterable[Row]) -> list[Row]:
    return [{**row, "query": row["query_id"], "doc": row["doc_id"]} for row in rows]


# ---- The table


@pytest.mark.parametrize("aggregated", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=12)
@given(data=st.data())
def test_pairs_equal_those_of_a_loop(layout: str, aggregated: bool, data: Any) -> None:
    log = data.draw(logs(layout, functional=False).filter(usable))
    if aggregated:
        log = aggregate(log)
    result = posbias.ips_weights(click_log(log), a_curve(), force=True)
    assert_alike(values_of(result.table), expected(log.rows, by_rank))


@pytest.mark.parametrize("form", ["pandas", "polars", "parquet", "csv", "jsonl"])
def test_every_source_gives_the_same(form: str, tmp_path: Path) -> None:
    rows = [{**row, "query_id": f"q{row['query_id']}", "doc_id": f"d{row['doc_id']}"} for row in rows_of()]
    result = posbias.ips_weights(posbias.ClickLog(CONVERTERS[form](rows, tmp_path / "log")), a_curve())
    assert_alike(values_of(result.table), expected(oracle_rows(rows), by_rank))


@settings(max_examples=12)
@given(data=st.data(), names=hostile_names())
def test_hostile_names_and_ids_are_handled_as_data(data: Any, names: Names) -> None:
    log = data.draw(logs("wide", ids=HOSTILE_KINDS, rankers=HOSTILE_RANKERS).filter(usable))
    taken = {names.query.lower(), names.doc.lower()} & {"impressions", "clicks", "exposure", "weight"}
    if taken:
        with pytest.raises(posbias.LogError, match="has the name of a column that posbias adds"):
            posbias.ips_weights(click_log(log, names), a_curve(), force=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        output = f'{folder}/it\'s a "file" [1]*.parquet'
        posbias.ips_weights(click_log(log, names), a_curve(), output, force=True)
        assert_alike(values_of(pq.read_table(output), names.query, names.doc), expected(log.rows, by_rank))


def test_a_file_holds_what_the_table_holds(tmp_path: Path) -> None:
    log = posbias.ClickLog(pa.Table.from_pylist(rows_of()))
    held, written = posbias.ips_weights(log, a_curve()), posbias.ips_weights(log, a_curve(), tmp_path / "w.parquet")
    assert_alike(values_of(pq.read_table(tmp_path / "w.parquet")), values_of(held.table))
    assert (written.rows, written.queries, written.clicks) == (held.rows, held.queries, held.clicks)
    for metadata in (held.table.schema.metadata, pq.read_schema(tmp_path / "w.parquet").metadata):
        assert float(metadata[b"posbias.effective_clicks"]) == pytest.approx(held.effective_clicks)
        assert float(metadata[b"posbias.scale"]) == pytest.approx(held.scale)
    assert written.output == str(tmp_path / "w.parquet")
    assert [*tmp_path.iterdir()] == [tmp_path / "w.parquet"]


@pytest.mark.parametrize("split", [None, "user", "impression_id"])
def test_every_row_is_in_one_part_and_rows_with_one_value_stay_together(split: str | None, tmp_path: Path) -> None:
    frame = posbias.simulate(posbias.World(queries=200, repeats=3)).to_pandas()
    frame["user"] = frame.impression_id.map(lambda view: None if view % 7 == 0 else f"u{view % 50}")
    frame.to_csv(tmp_path / "log.csv", index=False)
    frame.to_parquet(tmp_path / "log.parquet")

    ids = "impression_id", "doc_id"

    def parts(source: Any, **settings: Any) -> dict[str, Counter[Any]]:
        made = {
            part: posbias.ips_weights(
                posbias.ClickLog(source, part=part, split=split, **settings), a_curve([1.0] * 10), rows=True, force=True
            )
            for part in ("train", "test")
        }
        return {
            part: Counter(zip(*(map(int, each.table[name].to_pylist()) for name in ids), strict=True))
            for part, each in made.items()
        }

    found = parts(frame)
    assert found["train"] + found["test"] == Counter(zip(frame.impression_id, frame.doc_id, strict=True))
    key = dict(zip(frame.impression_id, frame[split or "query_id"].fillna("none"), strict=True))
    values = {part: {key[view] for view, _ in rows} for part, rows in found.items()}
    assert not values["train"] & values["test"]
    assert 0.2 < found["test"].total() / len(frame) < 0.4
    # The parts do not depend on the format, on other rows or on a query of the user's own.
    assert parts(tmp_path / "log.csv") == parts(tmp_path / "log.parquet") == found
    smaller = parts(tmp_path / "log.parquet", sql="SELECT * FROM source WHERE position < 4")
    assert smaller["test"] <= found["test"]
    assert smaller["train"] <= found["train"]


def test_a_log_that_cannot_be_split_raises() -> None:
    table = pa.Table.from_pylist(rows_of())
    table = table.append_column("one", pa.array(["the same"] * len(table)))
    for given_settings, message in (
        ({"part": "validation"}, "part='validation' is not known. Use 'train' or 'test'"),
        ({"split": "query_id"}, "no part is named. Add part='train'"),
        ({"part": "test", "split": "nowhere"}, "Column 'nowhere' is not in the log"),
        ({"part": "test", "split": "doc_id"}, "cannot be split by 'doc_id', the column of the doc"),
        ({"part": "test", "split": "clicked"}, "cannot be split by 'clicked', the column of the click"),
        ({"part": "test", "split": "one"}, "The part 'test' of the log has no rows: column 'one' has too few values"),
    ):
        with pytest.raises(posbias.LogError, match=message):
            posbias.ips_weights(posbias.ClickLog(table, **given_settings), a_curve())


@pytest.mark.parametrize("cap", [1.0, 2.5, None])
def test_no_click_counts_for_more_than_the_cap(cap: float | None) -> None:
    rows = [row for row in rows_of() if row["position"] != 7]
    result = posbias.ips_weights(posbias.ClickLog(pa.Table.from_pylist(rows)), a_curve(), cap=cap)
    assert_alike(values_of(result.table), expected(oracle_rows(rows), by_rank, cap))
    clicks = [by_rank(row) for row in rows if row["clicked"]]
    whole, capped = (sum(min(1 / p, most) for p in clicks) for most in (math.inf, cap or math.inf))
    assert result.capped_share == pytest.approx(1 - capped / whole)
    weights = [min(1 / p, cap or math.inf) for p in clicks]
    assert result.effective_clicks == pytest.approx(sum(weights) ** 2 / sum(w * w for w in weights))
    assert result.scale == pytest.approx(
        sum(weights) / len({(r["query_id"], r["doc_id"]) for r in rows if r["clicked"]})
    )


def test_tables_of_days_add_up() -> None:
    rows = [row for row in rows_of() if row["position"] != 7]
    parts = rows[: len(rows) // 3], rows[len(rows) // 3 :]
    whole, *days = (
        posbias.ips_weights(posbias.ClickLog(pa.Table.from_pylist(part)), a_curve()).to_pandas()
        for part in (rows, *parts)
    )
    keys = ["query_id", "doc_id"]
    added = pd.concat(days).groupby(keys, as_index=False).sum()
    pd.testing.assert_frame_equal(added, whole.sort_values(keys, ignore_index=True), check_dtype=False)


@pytest.mark.parametrize(
    "kind",
    [list, tuple, np.array, pd.Series, pa.array, pa.chunked_array, "dict", "json", "ranks as index", "absolute"],
)
def test_plain_propensities_are_an_estimate(kind: Any) -> None:
    given: Any = P
    if kind == "dict":
        given = dict(enumerate(P, start=1))
    elif kind == "json":
        given = json.loads(json.dumps(dict(enumerate(P, start=1))))
    elif kind is pa.chunked_array:
        given = pa.chunked_array([P[:3], P[3:]])
    elif kind == "ranks as index":
        given = pd.Series(P[::-1], index=range(len(P), 0, -1))
    elif kind == "absolute":
        given = [0.4 * p for p in P]
    else:
        given = kind(P)
    log = posbias.ClickLog(pa.Table.from_pylist(rows_of()))
    plain, usual = (posbias.ips_weights(log, estimate).table for estimate in (given, a_curve()))
    assert_alike(values_of(plain), values_of(usual))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "The estimate is empty"),
        ({}, "The estimate is empty"),
        ({2: 0.5}, "rank 1 has none"),
        ([0.0, 1.0], "0.0 at rank 1"),
        ([1.0, math.nan], "nan at rank 2"),
        ([1.0, "x"], "'x' at rank 2"),
        ([1.0, -0.1], "-0.1 at rank 2"),
        ({0: 1.0, 1: 1.0}, "whole numbers from 1 to 100,000; found 1.0 at rank 0"),
        ({1: 1.0, 2.5: 1.0}, "whole numbers .* at rank 2.5"),
        ({1: 1.0, "b": 1.0}, "whole numbers .* at rank 'b'"),
        (np.array(0.5), "not a ndarray"),
        ([[1.0], [0.5]], "at rank 1"),
        ([1e-310, 1.0, 1.0], "1e-310, is too small beside the others"),
        (7, "not a int"),
    ],
)
def test_wrong_propensities_are_rejected(given: Any, message: str) -> None:
    with pytest.raises(posbias.CurveError, match=message):
        posbias.ips_weights(posbias.ClickLog(pa.Table.from_pylist(rows_of())), given)


def test_a_rank_that_was_given_twice_is_named() -> None:
    for twice in (pd.Series([1.0, 0.5, 0.4], index=[1, 2, 2]), {1: 1.0, 2: 0.5, "2": 0.4}):
        with pytest.raises(posbias.CurveError, match="Rank 2 has more than one propensity"):
            posbias.ips_weights(posbias.ClickLog(pa.Table.from_pylist(rows_of())), twice)


def test_a_rank_that_was_not_given_is_named() -> None:
    with pytest.raises(posbias.CurveError, match="ranks 2 to 5: no propensity was given"):
        posbias.ips_weights(posbias.ClickLog(pa.Table.from_pylist(rows_of())), {1: 1.0, 8: 0.1})


def test_segments_use_their_own_curve() -> None:
    rows = rows_of(segments={"phone": 2.0, "desktop": 0.5})
    curves = {"phone": [1.0, 0.4, 0.3, 0.2, 0.1], "desktop": [1.0, 0.9, 0.8, 0.7, 0.6]}
    result = posbias.ips_weights(posbias.ClickLog(pa.Table.from_pylist(rows)), segmented(curves))
    want = expected(oracle_rows(rows), lambda row: curves[row["device"]][row["position"] - 1])
    assert_alike(values_of(result.table), want)
    with pytest.raises(posbias.CurveError, match="none for desktop"):
        posbias.ips_weights(posbias.ClickLog(pa.Table.from_pylist(rows)), segmented({"phone": curves["phone"]}))


def test_a_missing_segment_and_a_number_are_segments_too() -> None:
    rows = [{**row, "device": None if row["doc_id"] % 2 else 7} for row in rows_of()]
    curves = {None: [1.0, 0.5, 0.4, 0.3, 0.2], "7": [1.0, 0.9, 0.8, 0.7, 0.6]}
    result = posbias.ips_weights(posbias.ClickLog(pa.Table.from_pylist(rows)), segmented(curves))
    key = {None: None, 7: "7"}
    assert_alike(
        values_of(result.table),
        expected(oracle_rows(rows), lambda row: curves[key[row["device"]]][row["position"] - 1]),
    )


def test_a_log_without_rankers_with_a_window_and_copies() -> None:
    rows = [{name: value for name, value in row.items() if name != "ranker"} | {"day": 1} for row in rows_of()]
    plain = posbias.ips_weights(posbias.ClickLog(pa.Table.from_pylist(rows)), a_curve())
    copied = pa.Table.from_pylist([*rows, *rows[:25]])
    log = posbias.ClickLog(copied, duplicates="drop", window="day")
    assert_alike(values_of(posbias.ips_weights(log, a_curve(), keep=["day"]).table), values_of(plain.table))
    assert "day" in posbias.ips_weights(log, a_curve(), keep=["day"]).columns


def test_a_query_of_the_users_own_is_read_in_place_of_the_log() -> None:
    rows = rows_of()
    log = posbias.ClickLog(pa.Table.from_pylist(rows), sql="SELECT * FROM source WHERE position < 3")
    want = expected([row for row in oracle_rows(rows) if row["position"] < 3], by_rank)
    assert_alike(values_of(posbias.ips_weights(log, a_curve()).table), want)


def test_events_are_weighted_too(tmp_path: Path) -> None:
    views = {"impression_id": [1, 2], "query_id": ["tea", "tea"], "doc_ids": [["x", "y"], ["y", "x"]]}
    taps = {"impression_id": [1], "doc_id": ["y"]}
    log = posbias.ClickLog.from_events(pa.table(views), pa.table(taps))
    want = {("tea", "x"): [2, 0, 1.7, 0], ("tea", "y"): [2, 1, 1.7, 1 / 0.7]}
    assert_alike(values_of(posbias.ips_weights(log, a_curve()).table), want)
    pq.write_table(pa.table({"query_id": ["tea"], "doc_id": ["z"]}), tmp_path / "c.parquet")
    posbias.ips_weights(log, a_curve(), tmp_path / "w.parquet", candidates=tmp_path / "c.parquet", force=True)
    assert len(values_of(pq.read_table(tmp_path / "w.parquet"))) == 3


# ---- Rows, kept columns, candidates


@pytest.mark.parametrize("aggregated", [False, True])
def test_rows_of_the_log_are_all_kept(aggregated: bool) -> None:
    rows = rows_of()
    if aggregated:
        rows = [
            {**row, "impressions": 2 - row["clicked"] % 2 if i else 0, "clicks": row["clicked"] if i else 0}
            for i, row in enumerate(rows)
        ]
        rows = [{name: value for name, value in row.items() if name != "clicked"} for row in rows]
    table = pa.Table.from_pylist([{**row, "number": i} for i, row in enumerate(rows)])
    result = posbias.ips_weights(posbias.ClickLog(table), a_curve(), rows=True)
    assert result.columns == (*table.column_names, "weight")
    found = sorted(result.table.to_pylist(), key=lambda row: row["number"])
    raw = [row.get("clicks", row.get("clicked")) * min(1 / by_rank(row), 20) for row in rows]
    assert [row["weight"] for row in found] == pytest.approx(raw)
    assert [row["doc_id"] for row in found] == [row["doc_id"] for row in rows]
    assert result.rows == len(rows)


def test_kept_columns_are_in_the_table_and_varying_ones_are_reported() -> None:
    rows = [{**row, "price": row["doc_id"] * 0.5, "day": row["impression_id"] % 3} for row in rows_of()]
    result = posbias.ips_weights(posbias.ClickLog(pa.Table.from_pylist(rows)), a_curve(), keep=["price", "day"])
    assert result.columns == ("query_id", "doc_id", "price", "day", "impressions", "clicks", "exposure", "weight")
    days: dict[Any, set[int]] = defaultdict(set)
    for row in rows:
        days[row["query_id"], row["doc_id"]].add(row["day"])
    for row in result.table.to_pylist():
        assert row["price"] == row["doc_id"] * 0.5
        assert row["day"] == min(days[row["query_id"], row["doc_id"]])
    [finding] = [finding for finding in result.findings if finding.code == "kept-column-varies"]
    assert finding.evidence["column"] == "day"
    assert finding.count == sum(len(values) > 1 for values in days.values())


def test_kept_columns_that_vary_in_the_candidates_or_between_them_and_the_log_are_reported() -> None:
    rows = [{**row, "fresh": 1} for row in rows_of(queries=5)]
    log = posbias.ClickLog(pa.Table.from_pylist(rows))
    pairs = sorted({(row["query_id"], row["doc_id"]) for row in rows})
    listed = [{"query_id": q, "doc_id": d, "size": d, "fresh": 1} for q, d in [*pairs, (10**9, 1), (10**9, 2)]]

    def found(more: list[Row], keep: str) -> list[tuple[int | None, str]]:
        table = pa.Table.from_pylist([*listed, *more])
        result = posbias.ips_weights(log, a_curve(), keep=[keep], candidates=table)
        return [(finding.count, finding.message) for finding in result.findings if finding.code == "kept-column-varies"]

    assert found([], "size") == found([], "fresh") == []
    # The query is not in the log, and its candidates are left out.
    assert found([{**row, "size": -1} for row in listed[-2:]], "size") == []
    [(count, _)] = found([{**row, "size": -1} for row in listed[:3]], "size")
    assert count == 3
    [(count, message)] = found([{**row, "fresh": 2} for row in listed[:3]], "fresh")
    assert count == 3
    assert "from the log before the candidates" in message
    never_shown = {**listed[0], "doc_id": -1}
    [(count, _)] = found([{**never_shown, "fresh": 2}, {**never_shown, "fresh": 3}], "fresh")
    assert count == 1


def candidates_of(rows: list[Row], more: int) -> list[Row]:
    """Return each shown document but one, and so many never shown, of every query."""
    found = {(row["query_id"], row["doc_id"]) for row in rows}
    found |= {(row["query_id"], -1 - i) for row in rows for i in range(more)}
    found.remove(min(pair for pair in found if pair[1] >= 0))
    return [{"query_id": q, "doc_id": d, "size": float(d)} for q, d in sorted(found)]


@pytest.mark.parametrize("text", [False, True])
def test_candidates_have_the_exposure_of_all_page_views(text: bool, tmp_path: Path) -> None:
    rows = rows_of(segments={"phone": 2.0, "desktop": 0.5})
    curves = {"phone": [1.0, 0.4, 0.3, 0.2, 0.01], "desktop": [1.0, 0.9, 0.8, 0.7, 0.6]}
    listed = [*candidates_of(rows, 2), {"query_id": 10**9, "doc_id": 1, "size": 0.0}]
    form = "csv" if text else "parquet"
    source = CONVERTERS[form](listed, tmp_path / "candidates")
    log = posbias.ClickLog(pa.Table.from_pylist(rows))
    result = posbias.ips_weights(log, segmented(curves), keep=["size"], candidates=source)

    # From the definition: E = Σ_k N_k p_k + (N_q − N) p_last, by page view, with no p below 1 / cap.
    def p(row: Row) -> float:
        return max(curves[row["device"]][row["position"] - 1], 1 / 20)

    views: dict[Any, dict[Any, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        views[row["query_id"]][row["impression_id"]].append(row)
    want = expected(oracle_rows(rows), p)
    shown_alone = {pair: values[2] for pair, values in want.items()}
    for query, doc in {*want} | {(row["query_id"], row["doc_id"]) for row in listed[:-1]}:
        exposure = 0.0
        for page in views[query].values():
            here = [row for row in page if row["doc_id"] == doc]
            exposure += p(here[0]) if here else max(curves[page[0]["device"]][-1], 1 / 20)
        shown = want.get((query, doc), [0, 0, 0.0, 0.0])
        want[query, doc] = [shown[0], shown[1], exposure, shown[3]]
    assert_alike(values_of(result.table), want)
    for row in result.table.to_pylist():
        assert row["exposure_shown"] == pytest.approx(shown_alone.get((row["query_id"], row["doc_id"]), 0.0))
    assert [finding.code for finding in result.findings] == [
        "candidate-queries-not-in-log",
        "shown-documents-not-in-candidates",
    ]
    assert result.findings[1].count == 1
    sizes = {(row["query_id"], row["doc_id"]): float(row["size"]) for row in listed}
    found = {(row["query_id"], row["doc_id"]): row["size"] for row in result.table.to_pylist()}
    missing = {*found} - {*sizes}
    assert len(missing) == 1
    assert all(found[pair] is None if pair in missing else float(found[pair]) == sizes[pair] for pair in found)


@pytest.mark.parametrize("first", [0, 2**53, 2**60])
def test_ids_of_candidates_are_never_rounded(first: int) -> None:
    rows = [{**row, "doc_id": first + 2 * row["doc_id"]} for row in rows_of(queries=5)]
    log = posbias.ClickLog(pa.Table.from_pylist(rows))
    # Beside each document that was shown, one whose id is as close as can be.
    listed = sorted({(row["query_id"], row["doc_id"] + more) for row in rows for more in (0, 1)})
    tables = [
        pa.table({"query_id": [kind(q) for q, _ in listed], "doc_id": [kind(d) for _, d in listed]})
        for kind in (int, str)
    ]
    whole, text = (values_of(posbias.ips_weights(log, a_curve(), candidates=table).table) for table in tables)
    assert {*whole} == {*listed}
    assert_alike(text, whole)
    # As texts these are other ids, or none.
    for other in ("07", "7.0", "1_000", " 7"):
        with pytest.raises(posbias.LogError, match="1 of 1 rows of the candidates"):
            posbias.ips_weights(log, a_curve(), candidates=pa.table({"query_id": [1], "doc_id": [other]}))


def test_candidates_are_read_from_their_own_file_alone(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("query_id,doc_id\n1,2\n")
    with duckdb.connect(tmp_path / "log.duckdb") as con:
        con.register("rows", pa.Table.from_pylist(rows_of()))
        con.execute("CREATE TABLE shown AS SELECT * FROM rows")
        con.execute("CREATE TABLE candidates AS SELECT query_id, -doc_id - 1 AS doc_id FROM rows")
        con.execute(f"CREATE VIEW sly AS SELECT * FROM read_csv('{tmp_path}/secret.csv')")
    log = posbias.ClickLog(tmp_path / "log.duckdb", table="shown")
    with pytest.raises(posbias.LogError, match="A view may read only tables of its own DuckDB file"):
        posbias.ips_weights(log, a_curve(), candidates="sly")
    shown = posbias.ips_weights(log, a_curve()).rows
    assert posbias.ips_weights(log, a_curve(), candidates="candidates", force=True).rows == 2 * shown
    # A query of the user's own sees its table by that name, and not ours.
    mine = posbias.ClickLog(tmp_path / "log.duckdb", sql="SELECT * FROM shown SEMI JOIN candidates USING (query_id)")
    one = pa.table({"query_id": [0], "doc_id": [-1]})
    assert posbias.ips_weights(mine, a_curve(), candidates=one, force=True).rows == shown + 1


def test_unsuitable_candidates_raise_or_are_reported(tmp_path: Path) -> None:
    rows = rows_of()
    log = posbias.ClickLog(pa.Table.from_pylist(rows))
    with pytest.raises(posbias.LogError, match="no column 'doc_id'"):
        posbias.ips_weights(log, a_curve(), candidates=pa.table({"query_id": [1]}))
    with pytest.raises(posbias.LogError, match=r"1 of 2 rows of the candidates"):
        posbias.ips_weights(log, a_curve(), candidates=pa.table({"query_id": ["1", "x"], "doc_id": [1, 2]}))
    with pytest.raises(posbias.LogError, match="An id stored as a fraction"):
        posbias.ips_weights(log, a_curve(), candidates=pa.table({"query_id": [1.0], "doc_id": [1]}))
    with pytest.raises(posbias.LogError, match="candidates are empty"):
        posbias.ips_weights(log, a_curve(), candidates=pa.table({"query_id": pa.array([], pa.int64()), "doc_id": []}))
    result = posbias.ips_weights(
        log, a_curve(), candidates=pa.table({"query_id": [rows[0]["query_id"]], "doc_id": [-1]}), force=True
    )
    [finding] = [finding for finding in result.findings if finding.code == "queries-without-candidates"]
    assert finding.count == len({row["query_id"] for row in rows}) - 1
    elsewhere = pa.table({"query_id": [10**9], "doc_id": [1]})
    with pytest.raises(
        posbias.LogError, match="None of the 1 queries of the candidates is among the 40 queries of the log"
    ):
        posbias.ips_weights(log, a_curve(), candidates=elsewhere)


def test_documents_with_other_ids_in_the_candidates_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of()
    pairs = sorted({(row["query_id"], row["doc_id"]) for row in rows})
    log = posbias.ClickLog(pa.Table.from_pylist(rows))

    def found(name: Callable[[int], int]) -> list[int | None]:
        listed = pa.Table.from_pylist([{"query_id": query, "doc_id": name(doc)} for query, doc in pairs])
        result = posbias.ips_weights(log, a_curve(), candidates=listed, force=force)
        return [finding.count for finding in result.findings if finding.code == "shown-documents-not-in-candidates"]

    force = False
    with pytest.raises(posbias.LogError, match=rf"{len(pairs)} of .* not among .*same ids in both.*add force=True"):
        found(lambda doc: -doc - 1)
    few = [doc for _, doc in pairs if doc % 3 == 0]
    assert found(lambda doc: -doc - 1 if doc % 3 == 0 else doc) == [len(few)]
    force = True
    assert found(lambda doc: -doc - 1) == [len(pairs)]
    assert found(lambda doc: doc) == []
    # In a large log the same sample of queries of log and candidates is compared.
    monkeypatch.setattr(weights, "_MAX_EXACT_ROWS", len(rows) // 4)
    [some] = found(lambda doc: -doc - 1)
    assert some is not None
    assert 0 < some < len(pairs)
    assert found(lambda doc: doc) == []


def test_a_kept_column_of_two_types_raises() -> None:
    rows = [{**row, "price": 1} for row in rows_of(queries=5)]
    log = posbias.ClickLog(pa.Table.from_pylist(rows))
    ids = {"query_id": [rows[0]["query_id"]], "doc_id": [rows[0]["doc_id"]]}
    with pytest.raises(posbias.LogError, match="'price' of keep is BIGINT in the log and VARCHAR in the candidates"):
        posbias.ips_weights(log, a_curve(), keep=["price"], candidates=pa.table(ids | {"price": ["dear"]}))
    candidates = pa.table(ids | {"price": [2.5]})
    result = posbias.ips_weights(log, a_curve(), keep=["price"], candidates=candidates, force=True)
    assert {*result.table["price"].to_pylist()} == {1.0}


def test_a_page_view_that_did_not_show_a_document_counts_no_more_than_the_deepest_rank() -> None:
    rows = rows_of()
    candidates = pa.Table.from_pylist([{"query_id": query, "doc_id": -1} for query in {r["query_id"] for r in rows}])
    log = posbias.ClickLog(pa.Table.from_pylist(rows))
    # (1/k)^1 to rank 3, and on to rank 5.
    curve = a_curve([1.0, 1 / 2, 1 / 3])
    result = posbias.ips_weights(log, curve, beyond="extrapolate", candidates=candidates, force=True).table.to_pylist()
    views = Counter(row["query_id"] for row in rows if row["position"] == 1)
    for row in result:
        if row["doc_id"] == -1:
            assert row["exposure"] == pytest.approx(views[row["query_id"]] / 5)


# ---- Ranks


@pytest.mark.parametrize("kind", ["curve", "estimator", "harvest", "json", "harvest file"])
def test_estimates_of_every_kind(kind: str, tmp_path: Path) -> None:
    log = posbias.ClickLog(posbias.simulate(posbias.World(queries=200, max_rank=5)))
    harvest = posbias.harvest(log, max_rank=5)
    fitted = posbias.CrossFit().fit(harvest)
    fitted.curve().save(tmp_path / "curve.json")
    harvest.save(tmp_path / "harvest.parquet")
    given: Any = {
        "curve": fitted.curve(),
        "estimator": fitted,
        "harvest": harvest,
        "json": str(tmp_path / "curve.json"),
        "harvest file": tmp_path / "harvest.parquet",
    }[kind]
    found = relative_propensities(given, {(): range(1, 6)})
    assert list(found[()].values()) == pytest.approx(fitted.propensity_.tolist(), rel=1e-9)
    assert posbias.ips_weights(log, given).clicks == harvest.clicks.sum()


def test_ranks_beyond_the_curve_raise_or_are_clipped_or_extrapolated() -> None:
    rows = rows_of()
    log = posbias.ClickLog(pa.Table.from_pylist(rows))
    curve = a_curve([1.0, 1 / 2, 1 / 3])
    with pytest.raises(posbias.CurveError, match=r"ranks 4 and 5: beyond the 3 ranks of the curve.*beyond='clip'"):
        posbias.ips_weights(log, curve)
    clipped = posbias.ips_weights(log, curve, beyond="clip")
    assert_alike(values_of(clipped.table), expected(oracle_rows(rows), lambda row: 1 / min(row["position"], 3)))
    continued = posbias.ips_weights(log, curve, beyond="extrapolate")
    assert_alike(values_of(continued.table), expected(oracle_rows(rows), lambda row: 1 / row["position"]))


def test_extrapolation_continues_from_the_last_rank() -> None:
    found = relative_propensities(a_curve([1.0, 0.6, 0.2]), {(): [6]}, "extrapolate")[()]
    x, y = np.log([2.0, 3.0]), np.log([0.6, 0.2])
    assert found == {6: pytest.approx(0.2 * 2 ** ((x @ y) / (x @ x)))}
    with pytest.raises(posbias.CurveError, match="no rank but the first"):
        relative_propensities(a_curve([1.0, 0.0]), {(): [3]}, "extrapolate")


def test_a_rank_without_a_number_raises_with_its_reason() -> None:
    log = posbias.ClickLog(pa.Table.from_pylist(rows_of()))
    curve = a_curve([1.0, 0.5, None, None], 9, reasons={3: "no chain leads there", 4: "no chain leads there"})
    for beyond in ("refuse", "clip", "extrapolate"):
        with pytest.raises(
            posbias.CurveError,
            match=r"ranks 3 and 4: no chain leads there.*rank 5: the log of the estimate has no results there",
        ):
            posbias.ips_weights(log, curve, beyond=beyond)
    whole = segmented({"phone": [1.0, 0.5, 0.4, 0.3, 0.2], "desktop": [1.0, 0.5]})
    rows = rows_of(segments={"phone": 2.0, "desktop": 0.5})
    with pytest.raises(posbias.CurveError, match=r"ranks 3 to 5.*\(in desktop\)"):
        posbias.ips_weights(posbias.ClickLog(pa.Table.from_pylist(rows)), whole)


def test_a_click_at_a_rank_with_propensity_0_has_the_weight_of_the_cap() -> None:
    rows = rows_of()
    log = posbias.ClickLog(pa.Table.from_pylist(rows))
    values = [1.0, 0.5, 0.0, 0.3, 0.2]
    result = posbias.ips_weights(log, a_curve(values))
    assert_alike(values_of(result.table), expected(oracle_rows(rows), lambda row: values[row["position"] - 1]))
    assert result.capped_share == 1
    [finding] = [finding for finding in result.findings if finding.code == "zero-propensity-rank"]
    at = [row for row in rows if row["position"] == 3]
    assert finding.count == len(at)
    assert finding.evidence["clicks"] == sum(row["clicked"] for row in at)
    assert "propensity of rank 3 is 0" in finding.message
    assert "much-weight-capped" not in [finding.code for finding in result.findings]
    # The remedies work: with candidates, or with the ranks above alone.
    listed = pa.table({"query_id": [row["query_id"] for row in rows], "doc_id": [row["doc_id"] for row in rows]})
    above = posbias.ClickLog(pa.Table.from_pylist(rows), sql="SELECT * FROM source WHERE position < 3")
    for fit in (posbias.ips_weights(log, a_curve(values), candidates=listed), posbias.ips_weights(above, a_curve())):
        assert "zero-propensity-rank" not in [finding.code for finding in fit.findings]
        learner_form("lightgbm-poisson", fit)
    with pytest.raises(posbias.PosbiasError, match="rows have clicks but no exposure"):
        learner_form("lightgbm-poisson", result)
    with pytest.raises(posbias.CurveError, match="propensity of rank 3 is 0"):
        posbias.ips_weights(log, a_curve(values), cap=None)


# ---- Errors and findings


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cap": 0.5}, "cap must be a number of 1 or more"),
        ({"cap": math.nan}, "cap must be a number"),
        ({"cap": "20"}, "cap must be a number"),
        ({"beyond": "guess"}, "beyond='guess' is not known"),
        ({"keep": 7}, "keep must be a list"),
        ({"keep": "price"}, "Column 'price' is not in the log"),
        ({"keep": ["nothing"]}, "Column 'nothing' is not in the log"),
        ({"keep": ["query_id"]}, "is always kept"),
        ({"keep": ["Weight"]}, "has the name of a column that posbias adds"),
        ({"rows": True}, "has the name of a column that posbias adds"),
        ({"rows": True, "keep": ["ranker"]}, "rows=True keeps all columns of the log"),
        ({"rows": True, "candidates": "c.parquet"}, "Leave one of them out"),
        ({"engine": "spark"}, "Spark cannot make weights"),
    ],
)
def test_invalid_arguments_raise(arguments: dict[str, Any], message: str) -> None:
    rows = [{**row, "Weight": 1} for row in rows_of(queries=5)]
    with pytest.raises(posbias.PosbiasError, match=message):
        posbias.ips_weights(posbias.ClickLog(pa.Table.from_pylist(rows)), a_curve(), **arguments)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"query_id": None}, "no value in column 'query_id'"),
        ({"doc_id": None}, "no value in column 'doc_id'"),
        ({"position": 0}, "positions seem to count from 0"),
        ({"position": None}, "position"),
        ({"clicked": 2}, "neither 0 nor 1"),
    ],
)
def test_unusable_rows_raise_and_nothing_is_written(spoil: Row, message: str, tmp_path: Path) -> None:
    rows = rows_of(queries=5)
    rows[3] |= spoil
    with pytest.raises(posbias.LogError, match=message):
        posbias.ips_weights(posbias.ClickLog(pa.Table.from_pylist(rows)), a_curve(), tmp_path / "w.parquet")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["query_id", "doc_id"])
@pytest.mark.parametrize("rows", [False, True])
def test_a_row_without_an_id_raises_with_its_column_in_every_layout(name: str, rows: bool) -> None:
    log = posbias.simulate(posbias.World(queries=20, max_rank=5)).to_pylist()
    log[3][name] = None
    for missing in (log, [{**row, name: math.nan if row[name] is None else float(row[name])} for row in log]):
        with pytest.raises(posbias.LogError, match=f"1 of {len(log):,} rows have no value in column '{name}'"):
            posbias.ips_weights(posbias.ClickLog(pa.Table.from_pylist(missing)), a_curve(), rows=rows)
        with pytest.raises(posbias.LogError, match=f"rows have no value in column '{name}'"):
            posbias.harvest(posbias.ClickLog(pa.Table.from_pylist(missing)), max_rank=5, weighting="uniform")


def test_logs_without_rows_or_clicks_and_invalid_estimates_raise() -> None:
    rows = rows_of(queries=5)
    table = pa.Table.from_pylist(rows)
    with pytest.raises(posbias.LogError, match="The log is empty"):
        posbias.ips_weights(posbias.ClickLog(table.slice(0, 0)), a_curve())
    clickless = posbias.ClickLog(pa.Table.from_pylist([{**row, "clicked": 0} for row in rows]))
    with pytest.raises(posbias.LogError, match="not a single click"):
        posbias.ips_weights(clickless, a_curve())
    with pytest.raises(posbias.LogError, match="no click in the log"):
        posbias.ips_weights(clickless, a_curve(), force=True)
    with pytest.raises(posbias.CurveError, match="Expected an estimate"):
        posbias.ips_weights(posbias.ClickLog(table), object())
    with pytest.raises(posbias.CurveError, match="There is no file"):
        posbias.ips_weights(posbias.ClickLog(table), "nowhere.json")
    with pytest.raises(posbias.PosbiasError, match="Expected a ClickLog"):
        posbias.ips_weights(table, a_curve())
    with pytest.raises(posbias.CurveError, match="no column 'device'"):
        posbias.ips_weights(posbias.ClickLog(table), segmented({"phone": P}))


def test_a_log_written_twice_raises_unless_forced() -> None:
    table = pa.Table.from_pylist(rows_of(queries=5) * 2)
    with pytest.raises(posbias.LogError, match="force"):
        posbias.ips_weights(posbias.ClickLog(table), a_curve())
    assert posbias.ips_weights(posbias.ClickLog(table), a_curve(), force=True).findings


@pytest.mark.parametrize(("repeats", "reported"), [(1, True), (2, True), (4, False), (16, False)])
def test_too_few_clicks_for_inverse_propensities_are_reported(repeats: int, reported: bool) -> None:
    rows = rows_of(repeats=repeats, queries=200)
    result = posbias.ips_weights(posbias.ClickLog(pa.Table.from_pylist(rows)), a_curve([1, 0.5, 0.4, 0.3, 0.2]))
    assert ("few-clicks-for-ips" in [finding.code for finding in result.findings]) == reported
    assert result.page_views == 200 * repeats
    assert result.queries == 200


def test_many_views_with_few_clicks_are_too_few() -> None:
    assert find_few_clicks(100, 10_000, 399)
    assert not find_few_clicks(100, 400, 400)


def test_a_cap_that_removes_much_weight_is_reported() -> None:
    log = posbias.ClickLog(pa.Table.from_pylist(rows_of()))
    with pytest.warns(posbias.PosbiasWarning) as caught:
        found = posbias.ips_weights(log, a_curve([1, 0.01, 0.01, 0.01, 0.01]), cap=2)
    assert [finding.code for finding in found.findings] == ["much-weight-capped"]
    assert [(str(each.message), each.filename) for each in caught] == [(str(found.findings[0]), __file__)]
    assert "the cap of 2 removed" in str(found)


# ---- The command


def invoke(*words: str) -> Any:
    return CliRunner().invoke(cli, ["weights", *words])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    pq.write_table(pa.Table.from_pylist(rows_of()), tmp_path / "log.parquet")
    a_curve().save(tmp_path / "curve.json")
    return tmp_path


def test_the_command_writes_what_the_function_returns(files: Path) -> None:
    log, curve, output = (str(files / name) for name in ("log.parquet", "curve.json", "w.parquet"))
    done = invoke(log, "--estimate", curve, "-o", output, "--cap", "3", "--json")
    assert done.exit_code == 0, done.stderr
    printed = json.loads(done.stdout)
    result = posbias.ips_weights(posbias.ClickLog(log), curve, cap=3)
    assert_alike(values_of(pq.read_table(output)), values_of(result.table))
    assert printed == {**result.to_dict(), "output": output}
    again = invoke(log, "--estimate", curve, "-o", output, "--cap", "none")
    assert again.exit_code == 0
    assert "effective sample size" in again.stderr


def test_a_table_of_weights_is_replaced_and_other_files_are_not(files: Path) -> None:
    log, curve, output = (str(files / name) for name in ("log.parquet", "curve.json", "other.parquet"))
    pq.write_table(pa.table({"x": [1]}), output)
    refused = invoke(log, "--estimate", curve, "-o", output)
    assert refused.exit_code == 2
    assert "exists and is not a table of weights, so it is not replaced" in refused.stderr
    assert refused.stderr.rstrip().endswith("Add --overwrite")
    assert pq.read_table(output).column_names == ["x"]
    for words in (["--overwrite"], ["--rows"], []):
        assert invoke(log, "--estimate", curve, "-o", output, *words).exit_code == 0
        assert "weight" in pq.read_table(output).column_names


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cap", "many"], "expected a number of 1 or more, or none"),
        (["--cap", "0"], "cap must be a number of 1 or more"),
        (["--engine", "spark"], "DuckDB"),
        (["--rows", "--keep", "ranker"], "--rows keeps all columns of the log"),
        (["--estimate", "{folder}/log.parquet"], "is not a curve, or is damaged"),
        (["-o", "{folder}/log.parquet"], "is the file that is being read"),
        (["-o", "{folder}/curve.json"], "is the file that is being read"),
        (["-o", "{folder}/w.csv"], "Parquet"),
        (["-o", "{folder}/none/w.parquet"], "does not exist"),
    ],
)
def test_the_command_rejects_invalid_options(words: list[str], message: str, files: Path) -> None:
    usual = ["--estimate", f"{files}/curve.json", "-o", f"{files}/w.parquet"]
    done = invoke(f"{files}/log.parquet", *usual, *(word.format(folder=files) for word in words))
    assert done.exit_code == 2
    assert message in done.stderr
    assert {path.name for path in files.iterdir()} == {"log.parquet", "curve.json"}


@pytest.mark.parametrize("name", ["log.parquet", "curve.json"])
def test_inputs_are_never_overwritten(name: str, files: Path) -> None:
    log, before = posbias.ClickLog(files / "log.parquet"), (files / name).read_bytes()
    with pytest.raises(posbias.PosbiasError, match="is the file that is being read"):
        posbias.ips_weights(log, files / "curve.json", files / name, overwrite=True)
    with pytest.raises(posbias.PosbiasError, match="is in the folder that is being read"):
        posbias.ips_weights(posbias.ClickLog(files), files / "curve.json", files / "w.parquet")
    with pytest.raises(posbias.PosbiasError, match="matches the pattern that is being read"):
        posbias.ips_weights(posbias.ClickLog(f"{files}/*.parquet"), files / "curve.json", files / "w.parquet")
    assert (files / name).read_bytes() == before


def test_no_file_is_left_where_memory_does_not_suffice(files: Path) -> None:
    log, curve = posbias.ClickLog(files / "log.parquet"), files / "curve.json"
    with pytest.raises(posbias.PosbiasError):
        posbias.ips_weights(log, curve, files / "w.parquet", engine=posbias.DuckDB(memory_limit="1KB"))
    assert {path.name for path in files.iterdir()} == {"log.parquet", "curve.json"}


def test_weighting_imports_no_learner(files: Path) -> None:
    code = (
        "import sys, posbias; posbias.ips_weights(posbias.ClickLog(sys.argv[1]), sys.argv[2]); "
        "import posbias.objectives; "
        "print([name for name in ('lightgbm', 'xgboost', 'sklearn', 'torch', 'pandas') if name in sys.modules])"
    )
    words = [sys.executable, "-c", code, str(files / "log.parquet"), str(files / "curve.json")]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_pandas_frame_is_accepted_and_returned(files: Path) -> None:
    result = posbias.ips_weights(posbias.ClickLog(pd.read_parquet(files / "log.parquet")), files / "curve.json")
    assert [*result.to_pandas().columns] == [*result.columns]
    written = posbias.ips_weights(posbias.ClickLog(files / "log.parquet"), a_curve(), files / "w.parquet")
    with pytest.raises(posbias.PosbiasError, match="Read that file"):
        written.to_pandas()


def test_the_curve_of_other_rankers_is_reported() -> None:
    own, other = (
        posbias.ClickLog(posbias.simulate(posbias.World(queries=100, max_rank=4, rankers=rankers)))
        for rankers in (("a", "b"), ("x", "y"))
    )
    curve = posbias.CrossFit(interval=None).fit(posbias.harvest(other, max_rank=4)).curve()
    [finding] = [f for f in posbias.ips_weights(own, curve).findings if f.code == "other-rankers"]
    assert "from the rankers 'x', 'y', and the log has 'a', 'b'" in finding.message
    assert not any(f.code == "other-rankers" for f in posbias.ips_weights(other, curve).findings)
    assert not any(f.code == "other-rankers" for f in posbias.ips_weights(own, [1, 0.5, 0.3, 0.2]).findings)


def test_the_curve_of_deeper_pages_is_reported() -> None:
    logs = [posbias.ClickLog(posbias.simulate(posbias.World(queries=100, max_rank=depth))) for depth in (4, 6)]
    deep = posbias.CrossFit(interval=None).fit(posbias.harvest(logs[1], max_rank=6)).curve()
    [finding] = [f for f in posbias.ips_weights(logs[0], deep).findings if f.code == "other-depth"]
    assert "down to rank 6, and the log has none below rank 4" in finding.message
    # A harvest may look for more ranks than pages have.
    own = posbias.CrossFit(interval=None).fit(posbias.harvest(logs[0], max_rank=6)).curve()
    assert not any(f.code == "other-depth" for f in posbias.ips_weights(logs[0], own).findings)


@pytest.mark.parametrize("propensities", [[2, 0.5, 0.4, 0.3], {1: 1.5, 2: 1, 3: 0.5, 4: 0.4}])
def test_propensities_above_1_at_rank_1_are_refused(propensities: Any) -> None:
    log = posbias.ClickLog(posbias.simulate(posbias.World(queries=100, max_rank=4)))
    with pytest.raises(posbias.CurveError, match=r"at rank 1 is .*Divide all of them"):
        posbias.ips_weights(log, propensities)


def test_a_log_is_split_by_the_unit_and_by_the_time() -> None:
    log = posbias.simulate(posbias.World(queries=100, max_rank=3)).to_pandas()
    log = log.assign(user_id=log["impression_id"] % 50, day=log["impression_id"] % 20)
    for column in ("user_id", "day"):
        made = [
            posbias.ips_weights(posbias.ClickLog(log, part=part, split=column, time="day"), [1, 0.5, 0.3])
            for part in ("train", "test")
        ]
        assert sum(one.clicks for one in made) == log["clicked"].sum()
        assert min(one.clicks for one in made) > 0
