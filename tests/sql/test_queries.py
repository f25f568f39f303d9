"""Printed queries: executed by engines that can be run here, and parsed by sqlglot in every dialect."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlglot
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

import posbias
from posbias.sql.dialects import DIALECTS
from tests.harvesting.test_harvest import assert_equal, click_log, devices, examples, expected, max_ranks, served
from tests.support import clickhouse, oracle, postgres, sparks
from tests.support.logs import (
    HOSTILE_COLUMNS,
    HOSTILE_KINDS,
    HOSTILE_RANKERS,
    LAYOUTS,
    WEIGHTINGS,
    Log,
    Names,
    Row,
    aggregate,
    hostile_names,
    logs,
    ranking_records,
    records,
    to_arrow,
)
from tests.support.warehouses import EXECUTORS, EXPORTS, Run, to_csv, to_parquet

DEVICE = Names(segments={"segment": "device"})


@pytest.fixture(scope="module", params=map(sparks.on_server, EXECUTORS))
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[str, Run]]:
    with EXECUTORS[request.param]() as run:
        yield request.param, run


def query(dialect: str, log: Log, names: Names | None = None, **options: Any) -> str:
    """The query of a log, which lies in the table `clicks`, with its rankings in `ranked`."""
    names = names or Names()
    if log.layout != "replay":
        options |= {"rankers": log.rankers}
    if log.layout == "wide":
        options |= {"ranks": names.ranks}
    if log.layout == "long":
        options |= {"rankings": "ranked", "rank": names.rank}
    if "impressions" in log.rows[0]:
        options |= {"impressions": names.impressions, "clicks": names.clicks}
    return posbias.harvest_sql(
        dialect,
        "clicks",
        query=names.query,
        doc=names.doc,
        ranker=names.ranker,
        position=names.position,
        click=names.click,
        impression=names.view,
        **options,
    )


def answer(engine: tuple[str, Run], log: Log, names: Names | None = None, **options: Any) -> list[Row]:
    dialect, run = engine
    tables = {"clicks": to_arrow(records(log, names))}
    if log.layout == "long":
        tables["ranked"] = to_arrow(ranking_records(log, names))
    return run(query(dialect, log, names, **options), tables)


def load(rows: list[Row], export: Any = to_csv) -> posbias.Harvest:
    with tempfile.TemporaryDirectory() as folder:
        # Logs of a few rows may well have no click at all.
        return posbias.Harvest.load(export(rows, Path(folder)), force=True)


# ---- Executed


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("layout", LAYOUTS)
@examples(8)
@given(data=st.data(), M=max_ranks)
def test_answers_equal_the_oracle(engine: Any, layout: str, weighting: str, data: Any, M: int) -> None:
    log = data.draw(logs(layout, functional=layout != "replay", segments=devices))
    rows = answer(engine, log, max_rank=M, weighting=weighting)
    for export in (to_csv, to_parquet):
        harvested = load(rows, export)
        assert harvested.layout == layout
        assert harvested.weighting == weighting
        assert served(harvested.page_views) == oracle.page_views(log.rows, M)
        assert_equal(harvested.pairs(), expected(log, M, weighting), M)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
@pytest.mark.parametrize("layout", LAYOUTS)
@examples(6)
@given(data=st.data(), M=max_ranks)
def test_answers_equal_the_harvest_of_duckdb_except_for_buckets(
    engine: Any, layout: str, weighting: str, data: Any, M: int
) -> None:
    log = data.draw(logs(layout, functional=layout != "replay", segments=devices))
    if data.draw(st.booleans()):
        log = aggregate(log)
    options = {"max_rank": M, "weighting": weighting, "by": ["device"]}
    exported = load(answer(engine, log, DEVICE, **options))
    harvested = posbias.harvest(click_log(log, DEVICE), force=True, **options)
    for name in ("max_rank", "rankers", "layout", "weighting", "by", "segments", "page_views", "kind"):
        assert getattr(exported, name) == getattr(harvested, name), name
    # A warehouse's answer tells nothing of page views side by side.
    repeats = {
        "duplicates",
        "several-results-at-position",
        "document-at-several-positions",
        "several-rankers-in-page-view",
    }
    assert list(exported.findings) == [f for f in harvested.findings if f.code not in repeats]
    axes = ("segment", "ranker", "rank")
    np.testing.assert_array_equal(exported.counts(*axes), harvested.counts(*axes))
    counts = [name for name in harvested.about if name.startswith("rows") or name == "non_functional_pairs"]
    assert [exported.about[name] for name in counts] == [harvested.about[name] for name in counts]
    for key in harvested.segments:
        one, other = exported.segment(key).pairs(), harvested.segment(key).pairs()
        np.testing.assert_allclose(one.clicks, other.clicks, rtol=1e-12)
        np.testing.assert_allclose(one.skips, other.skips, rtol=1e-12, atol=1e-12)


@examples(15)
@given(log=logs("replay", functional=False), M=max_ranks)
def test_an_exported_replay_holds_every_weighting(engine: Any, log: Log, M: int) -> None:
    exported = load(answer(engine, log, max_rank=M))
    for weighting in WEIGHTINGS:
        assert_equal(exported.pairs(weighting), expected(log, M, weighting), M)


@pytest.mark.parametrize("layout", LAYOUTS)
@examples(10)
@given(data=st.data())
def test_a_segment_equals_the_harvest_of_its_rows(engine: Any, layout: str, data: Any) -> None:
    values = st.sampled_from(data.draw(st.sampled_from([["phone", "it's", None], ["", " ü 🚀", None], [1, 2, 10]])))
    log = data.draw(logs(layout, segments=values))
    rows = answer(engine, log, DEVICE, by=["device"], max_rank=4)
    for export in EXPORTS.values():
        exported = load(rows, export)
        keys = {value: (value if value is None else str(value),) for value in {r["segment"] for r in log.rows}}
        assert set(exported.segments) == set(keys.values())
        for value, key in keys.items():
            part = log.only(lambda row, value=value: row["segment"] == value)
            assert_equal(exported.segment(key).pairs(), expected(part, 4), 4)


@pytest.mark.parametrize("layout", LAYOUTS)
@examples(10)
@given(data=st.data(), names=hostile_names(), counted=st.booleans())
def test_hostile_names(engine: Any, layout: str, data: Any, names: Names, counted: bool) -> None:
    log = data.draw(logs(layout, ids=HOSTILE_KINDS, rankers=HOSTILE_RANKERS, segments=devices))
    if counted:
        log, names = aggregate(log), replace(names, view=None)
    exported = load(answer(engine, log, names, by=[names.segments["segment"]], max_rank=4))
    for key in exported.segments:
        part = log.only(lambda row, key=key: row["segment"] == key[0])
        assert served(exported.segment(key).page_views) == oracle.page_views(part.rows, 4)
        assert_equal(exported.segment(key).pairs(), expected(part, 4), 4)


@pytest.mark.parametrize("layout", LAYOUTS)
@examples(10)
@given(data=st.data())
def test_dropped_duplicates(engine: Any, layout: str, data: Any) -> None:
    log = data.draw(logs(layout))
    copied = replace(log, rows=[*log.rows, *(row | {"clicked": type(row["clicked"])(0)} for row in log.rows[::2])])
    names = Names(view="page")
    exported = load(answer(engine, copied, names, duplicates="drop", max_rank=4))
    assert_equal(exported.pairs(), expected(log, 4), 4)
    assert exported.about["rows"] == len(log.rows)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_large_counts(engine: Any, layout: str) -> None:
    one = {"query": "q", "doc": "x", "ranker": "A", "position": 1, "impressions": 2**40, "clicks": 2**33 + 1}
    two = one | {"ranker": "B", "position": 2, "clicks": 7}
    empty = one | {"doc": "never", "impressions": 0, "clicks": 0}
    rows = [row | {"ranks": {"A": 1, "B": 2}} for row in (one, two, one, empty)]
    rankings = [{"query": "q", "ranker": i, "doc": "x", "rank": k} for i, k in (("A", 1), ("B", 2))]
    rankings += [{"query": "q", "ranker": "A", "doc": "never", "rank": 1}]
    if layout != "wide":
        rows = [{name: value for name, value in row.items() if name != "ranks"} for row in rows]
    log = Log(layout, rows, ("A", "B"), rankings if layout == "long" else None)
    exported = load(answer(engine, log, max_rank=3))
    assert exported.page_views == {"A": 2**41, "B": 2**40}
    assert_equal(exported.pairs(), expected(log, 3), 3)
    assert exported.about["rows"] == exported.about["rows_counted"] == 4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_rankers(engine: Any, layout: str) -> None:
    names = [f"ranker {i:02}" for i in range(20)]
    docs = "stuvwxyz"
    ranked = {name: docs[i % 8 :] + docs[: i % 8] for i, name in enumerate(names)}
    rows = [
        {"query": "q", "doc": doc, "ranker": name, "position": k, "clicked": (i + k) % 3 == 0}
        | ({"ranks": {n: ranked[n].index(doc) + 1 for n in names}} if layout == "wide" else {})
        for i, name in enumerate(names)
        for k, doc in enumerate(ranked[name], start=1)
    ]
    rankings = [{"query": "q", "ranker": n, "doc": d, "rank": k + 1} for n in names for k, d in enumerate(ranked[n])]
    log = Log(layout, rows, tuple(names), rankings if layout == "long" else None)
    exported = load(answer(engine, log, max_rank=6))
    assert exported.rankers == tuple(names)
    assert_equal(exported.pairs(), expected(log, 6), 6)


def test_tables_can_have_any_name(engine: Any) -> None:
    dialect, run = engine
    row = {"query_id": 1, "doc_id": 2, "ranker": "a", "position": 1, "clicked": True}
    for name in ("log", 'cl"icks', "se;lect", "a.b", "log l", "cells"):
        sql = posbias.harvest_sql(dialect, '"' + name.replace('"', '""') + '"')
        exported = load(run(sql, {name: to_arrow([row])}))
        assert exported.page_views == {"a": 1}


@pytest.mark.server
def test_psql_writes_an_export(tmp_path: Path) -> None:
    sql, counts = tmp_path / "harvest.sql", tmp_path / "counts.csv"
    sql.write_text(posbias.harvest_sql("postgres", "clicks", by=["device"]), encoding="utf-8")
    with postgres.server() as server:
        with server.connect() as connection:
            connection.execute(
                "CREATE TABLE clicks (query_id INT, doc_id INT, ranker TEXT, position SMALLINT,"
                " clicked BOOLEAN, device TEXT)"
            )
            connection.execute("INSERT INTO clicks VALUES (1, 2, 'a b', 1, true, ''), (1, 2, 'c', 2, false, NULL)")
        command = [postgres.programs() / "psql", "--csv", "--file", sql, server.address]
        counts.write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    exported = posbias.Harvest.load(counts)
    assert exported.segments == ((None,), ("",))
    assert exported.page_views == {"a b": 1, "c": 1}
    assert exported.clicks.tolist()[:2] == [1, 0]


@pytest.mark.server
@pytest.mark.parametrize(("format_", "file"), [("CSVWithNames", "counts.csv"), ("Parquet", "counts.parquet")])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_clickhouse_writes_an_export(layout: str, format_: str, file: str, tmp_path: Path) -> None:
    """The tables have the types that are usual in ClickHouse; only ranks are Nullable."""
    table = posbias.simulate(posbias.World(queries=200, seed=8))
    ask = clickhouse.session().query
    for name, columns in {
        "logged": "query_id UInt64, doc_id UInt64, ranker LowCardinality(String), position UInt8, clicked UInt8,"
        " impression_id UInt64, rank_a Nullable(UInt8), rank_b Nullable(UInt8)",
        "rankings": "query_id UInt64, ranker LowCardinality(String), doc_id UInt64, rank UInt8",
    }.items():
        ask(f"CREATE OR REPLACE TABLE {name} ({columns}) ENGINE = MergeTree ORDER BY query_id")
    clickhouse.insert("logged", table)
    ask(
        "INSERT INTO rankings SELECT DISTINCT query_id, ranker, doc_id, rank FROM logged"
        " ARRAY JOIN ['a', 'b'] AS ranker, [rank_a, rank_b] AS rank WHERE rank IS NOT NULL"
    )
    options = {"wide": {"rankers": ["a", "b"]}, "long": {"rankers": ["a", "b"], "rankings": "rankings"}, "replay": {}}
    sql = posbias.harvest_sql("clickhouse", "default.logged", **options[layout])
    exported = posbias.Harvest.load(clickhouse.export(sql, tmp_path / file, format_))
    assert exported.layout == layout
    harvested = posbias.harvest(posbias.ClickLog(table, ranks="none" if layout == "replay" else None))
    sparks.assert_same_counts(exported, harvested)
    curve, same = (posbias.AllPairs(interval=None).fit(found).propensity_ for found in (exported, harvested))
    assert np.isfinite(same).all()
    np.testing.assert_allclose(curve, same, rtol=1e-9)


# ---- Rows that cannot be counted

GOOD = {"query": "q", "doc": "d", "ranker": "A", "position": 1, "clicked": 1, "ranks": {"A": 1, "B": 2}, "view": 1}


@pytest.mark.parametrize("layout", ["wide", "replay"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"query": None}, "no query"),
        ({"ranker": None}, "no ranker"),
        ({"position": None}, "no position"),
        ({"position": 0}, "positions count from 1"),
        ({"position": 1.5}, "not a whole number"),
        ({"clicked": None}, "no click"),
        ({"clicked": 2}, "neither 0 nor 1"),
        ({"clicked": -1}, "neither 0 nor 1"),
    ],
)
def test_unusable_rows_are_refused(engine: Any, layout: str, change: Row, reason: str) -> None:
    rows = [GOOD, GOOD | change, GOOD | change]
    log = Log(layout, rows if layout == "wide" else [{**row, "ranks": {}} for row in rows], ("A", "B"))
    with pytest.raises(posbias.LogError, match=r"2 of 3 rows of the log cannot be used:\n.*" + reason):
        load(answer(engine, log))


@pytest.mark.parametrize("change", [{"impressions": None}, {"clicks": None}, {"clicks": 9}, {"impressions": -1}])
@pytest.mark.parametrize("layout", ["wide", "replay"])
def test_unusable_counts_are_refused(engine: Any, layout: str, change: Row) -> None:
    row = {name: value for name, value in GOOD.items() if name != "clicked"} | {"impressions": 3, "clicks": 1}
    if layout == "replay":
        row["ranks"] = {}
    with pytest.raises(posbias.LogError, match=r"1 of 2 rows of the log cannot be used:\n.*aggregated log"):
        load(answer(engine, Log(layout, [row, row | change], ("A", "B"))))


def test_in_replay_a_document_must_have_an_id(engine: Any) -> None:
    rows = [{**GOOD, "ranks": {}}, {**GOOD, "ranks": {}, "doc": None}]
    with pytest.raises(posbias.LogError, match=r"1 of 2 rows .*\n.*no query or no document"):
        load(answer(engine, Log("replay", rows)))
    # Beyond M it is counted nowhere, and so is not missed.
    beyond = load(answer(engine, Log("replay", [rows[0], rows[1] | {"position": 5}]), max_rank=3))
    assert beyond.about["rows_beyond"] == 1


def test_an_unknown_ranker_is_rejected(engine: Any) -> None:
    with pytest.raises(posbias.LogError, match=r"1 of 2 rows .*\n.*the query names 'A', 'B'.*rankers"):
        load(answer(engine, Log("wide", [GOOD, GOOD | {"ranker": "C"}], ("A", "B"))))


@pytest.mark.parametrize("layout", ["wide", "replay"])
def test_rows_without_a_page_view_are_not_taken_for_copies(engine: Any, layout: str) -> None:
    rows = [row if layout == "wide" else {**row, "ranks": {}} for row in (GOOD, GOOD | {"view": None})]
    with pytest.raises(posbias.LogError, match="no page view"):
        load(answer(engine, Log(layout, rows, ("A", "B")), Names(view="page"), duplicates="drop"))


def test_rows_shown_elsewhere_are_left_out_with_a_warning(engine: Any) -> None:
    rows = [GOOD, GOOD | {"ranker": "B"}]
    exported = load(answer(engine, Log("wide", rows, ("A", "B"))))
    assert exported.about["rows_contradicted"] == 1
    assert "1 of 2 rows were left out" in exported.findings[0].message
    with pytest.raises(posbias.LogError, match="in all 1 rows within the top ranks"):
        load(answer(engine, Log("wide", rows[1:], ("A", "B"))))


def test_a_non_functional_ranker_is_rejected_on_request(engine: Any) -> None:
    rows = [{**GOOD, "ranks": {}, "position": k} for k in (1, 2)]
    assert "1 of 1 (query, document) pairs" in load(answer(engine, Log("replay", rows))).findings[0].message
    with pytest.raises(posbias.LogError, match="not a function of the query"):
        load(answer(engine, Log("replay", rows), non_functional="refuse"))


def test_traffic_in_replay_is_warned_of(engine: Any) -> None:
    exported = load(answer(engine, Log("replay", [{**GOOD, "ranks": {}}]), weighting="traffic"))
    assert "The weighting 'traffic' is biased in replay" in exported.findings[0].message


def test_an_empty_log_is_refused(engine: Any, tmp_path: Path) -> None:
    dialect, run = engine
    table = to_arrow(records(Log("replay", [{**GOOD, "ranks": {}}])))
    assert run(posbias.harvest_sql(dialect, "clicks"), {"clicks": table.slice(0, 0)}) == []


# ---- Parsed, in every dialect

# Functions that sqlglot has no class for: hashes that only one warehouse has, and ClickHouse's on bits and arrays.
UNKNOWN_TO_SQLGLOT = {
    "clickhouse": {"arraySort", "arrayStringConcat", "bitAnd"},
    "databricks": {"xxhash64"},
    "duckdb": {"hash"},
    "postgres": {"HASHTEXTEXTENDED"},
    "snowflake": {"HASH"},
    "spark": {"xxhash64"},
    "trino": {"FROM_BIG_ENDIAN_64", "XXHASH64"},
}
SHAPES: dict[str, dict[str, Any]] = {
    "replay": {},
    "replay by traffic": {"weighting": "traffic"},
    "replay, counted": {"impressions": "n", "clicks": "c", "by": ["device", "land"]},
    "replay, once": {"duplicates": "drop"},
    "wide": {"rankers": ["a", "b"]},
    "wide, counted": {"rankers": ["a", "b"], "impressions": "n", "clicks": "c", "by": ["device"]},
    "wide, once": {"rankers": ["a", "b"], "duplicates": "drop"},
    "wide, units": {"rankers": ["a", "b"], "unit": "user_id", "by": ["device"]},
    "replay, units": {"unit": "user_id", "by": ["device"]},
    "replay, units, once": {"unit": "user_id", "duplicates": "drop"},
    "wide, units, once": {"rankers": ["a", "b"], "unit": "user_id", "duplicates": "drop"},
    "wide, many": {"rankers": [f"r{i}" for i in range(40)]},
    "wide, harmonic": {"rankers": ["a", "b"], "weighting": "harmonic"},
    "long": {"rankers": ["a", "b"], "rankings": "shop.ranked"},
    "long, once": {"rankers": ["a", "b"], "rankings": "shop.ranked", "duplicates": "drop", "by": ["device"]},
}


def parse(sql: str, dialect: str) -> exp.Expression:
    statements = sqlglot.parse(sql, dialect=dialect, error_level=sqlglot.ErrorLevel.RAISE)
    assert len(statements) == 1
    (statement,) = statements
    assert statement is not None
    return statement


def unknown_functions(tree: exp.Expression) -> set[str]:
    return {function.name for function in tree.find_all(exp.Anonymous)}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_list_of_unknown_functions_is_exact(dialect: str) -> None:
    trees = [parse(posbias.harvest_sql(dialect, "t", **shape), dialect) for shape in SHAPES.values()]
    assert set().union(*map(unknown_functions, trees)) == UNKNOWN_TO_SQLGLOT.get(dialect, set())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_sqlglot_parses_every_dialect(dialect: str, shape: str) -> None:
    tree = parse(posbias.harvest_sql(dialect, "shop.clicks", **SHAPES[shape]), dialect)
    assert isinstance(tree, exp.Select)
    assert not list(tree.find_all(exp.Command))
    assert unknown_functions(tree) <= UNKNOWN_TO_SQLGLOT.get(dialect, set())
    steps = [cte.alias for cte in tree.find_all(exp.CTE)]
    assert len(steps) == len(set(steps)) >= 3
    read = [table for table in tree.find_all(exp.Table) if table.db]
    assert sorted(table.name.lower() for table in read) == (["clicks", "ranked"] if "long" in shape else ["clicks"])
    # Every other table is a step, and each step and the log is read once; units of a replay are compared by joins.
    used = sorted(table.name for table in tree.find_all(exp.Table) if not table.db)
    assert (sorted(set(used)) if shape.startswith("replay, units") else used) == sorted(steps)
    assert [column.alias_or_name for column in tree.selects][-2:] == ["about", "answer_rows"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_step_has_a_comment(dialect: str) -> None:
    lines = posbias.harvest_sql(dialect, "clicks", rankers=["a", "b"]).splitlines()
    steps = [i for i, line in enumerate(lines) if line.endswith(" AS (")]
    assert len(steps) >= 4
    assert all(lines[i - 1].startswith("-- ") and lines[i - 1].endswith(".") for i in steps)
    assert max(map(len, lines[: steps[-1]])) < 400


HOSTILE = [
    *HOSTILE_COLUMNS,
    "`",
    "a`b",
    "``",
    'a"b',
    "back\\slash",
    "\\`",
    "\\'",
    "new\nline",
    "'; DROP TABLE x; --",
    "ß",
]


def hostile(dialect: str) -> list[str]:
    """Hostile names that a dialect can have: in BigQuery a dot ends a name even within its quotes."""
    return [name for name in HOSTILE if dialect != "bigquery" or "." not in name]


def kept(dialect: str, name: str) -> str:
    """The name as it must come back: Snowflake keeps plain names in capitals."""
    plain = name.isidentifier() and name.isascii() and name == name.lower()
    return name.upper() if dialect == "snowflake" and plain else name


@pytest.mark.long
@pytest.mark.parametrize("dialect", DIALECTS)
def test_hostile_columns_come_back_from_every_dialect(dialect: str) -> None:
    for name in hostile(dialect):
        tree = parse(posbias.harvest_sql(dialect, "t", query=name, by=[f"{name} again"]), dialect)
        columns = [column.name for column in tree.find_all(exp.Column) if column.table == "l"]
        assert columns.count(kept(dialect, name)) == 1 + (name in ("doc_id", "ranker")) + 3 * (name == "position"), name
        assert f"{name} again" in columns


@pytest.mark.parametrize("dialect", DIALECTS)
def test_hostile_rankers_come_back_from_every_dialect(dialect: str) -> None:
    rankers = sorted({*(name for name in HOSTILE_RANKERS if "." not in name), *hostile(dialect)})
    for options in ({}, {"rankings": "ranked"}):
        tree = parse(posbias.harvest_sql(dialect, "t", rankers=rankers, **options), dialect)
        cases = [case for case in tree.find_all(exp.Case) if isinstance(case.this, exp.Cast)]
        assert cases
        for case in cases:
            assert [when.this.this for when in case.args["ifs"]] == rankers
            assert [int(when.args["true"].this) for when in case.args["ifs"]] == list(range(len(rankers)))
        (about,) = [text.this for text in tree.find_all(exp.Literal) if text.this.startswith('{"version"')]
        assert json.loads(about)["rankers"] == rankers
        columns = {column.name for column in tree.find_all(exp.Column) if column.table == "l"}
        if not options:
            assert columns >= {kept(dialect, f"rank_{name}") for name in rankers}


@pytest.mark.long
@pytest.mark.parametrize("dialect", DIALECTS)
def test_hostile_tables_come_back_from_every_dialect(dialect: str) -> None:
    dotted = "b.c" if "a.b" in hostile(dialect) else "b-c"
    for name in hostile(dialect):
        if "." not in name and name[0] not in '"`':
            tree = parse(posbias.harvest_sql(dialect, f"shop.{name}"), dialect)
            (table,) = [table for table in tree.find_all(exp.Table) if table.db]
            assert (table.db.lower(), table.name) == ("shop", kept(dialect, name))
        # In quotes a name is taken as it is, dots and all.
        tree = parse(posbias.harvest_sql(dialect, f'a."{dotted}".' + '"' + name.replace('"', '""') + '"'), dialect)
        (table,) = [table for table in tree.find_all(exp.Table) if table.db]
        assert (table.catalog.lower(), table.db, table.name) == ("a", dotted, name)


def test_a_table_in_backticks_is_the_same() -> None:
    assert "FROM `my-project`.`a.b`.`c` l" in posbias.harvest_sql("bigquery", "`my-project`.`a.b`.c")


# ---- What cannot be printed


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"dialect": "oracle"}, "The dialect 'oracle' is not known. Use one of 'bigquery'"),
        ({"max_rank": 1}, "max_rank must be a whole number from 2"),
        ({"weighting": "none"}, "weighting='none' is not known"),
        ({"ranks": "rank_{ranker}"}, "must name every ranker .* Add rankers="),
        ({"rankings": "ranked"}, "must name every ranker"),
        ({"ranks": "none", "rankers": ["a"]}, "Leave rankers out"),
        ({"ranks": "rank"}, r"must contain {ranker} once"),
        ({"rankers": ["a", " "]}, "The name of a ranker is blank: ' '"),
        (
            {"rankers": ["a", "position"], "ranks": "{ranker}"},
            "'position' has no rank column: .* column of the position",
        ),
        ({"rankers": ["a", "A"], "dialect": "bigquery"}, "differ only by upper and lower case, which bigquery ignores"),
        ({"impressions": "n"}, "both impressions and clicks, or neither"),
        ({"impressions": "n", "clicks": "c", "duplicates": "drop"}, "cannot be dropped from an aggregated log"),
        ({"table": "a..b"}, "has an empty part"),
        ({"table": ""}, "has an empty part"),
        ({"table": '"a'}, "quotes do not close"),
        ({"table": '"a"b'}, "quotes do not close"),
        ({"table": "Shown"}, "a step called 'Shown' like the table. Write its schema too: schema.Shown"),
    ],
)
def test_invalid_arguments_are_rejected(given_: dict[str, Any], message: str) -> None:
    with pytest.raises(posbias.LogError, match=message):
        posbias.harvest_sql(**{"dialect": "postgres", "table": "t"} | given_)
