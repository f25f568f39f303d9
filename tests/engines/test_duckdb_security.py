"""Test that files cannot make DuckDB read, load, download or replace anything else."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import posbias
from posbias.engines import open_log

WORLD = posbias.World(queries=60, repeats=6, max_rank=4, seed=1)
LOOKED_FOR_BY_NAME = posbias.simulate(WORLD)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return posbias.simulate(WORLD)


@pytest.fixture
def database(table: pa.Table, tmp_path: Path) -> Callable[..., Path]:
    """A DuckDB file with the log as `clicks`, and whatever else is said."""

    def make(*statements: str) -> Path:
        path = tmp_path / "log.duckdb"
        with duckdb.connect(str(path)) as con:
            con.register("t", table)
            con.execute("CREATE TABLE clicks AS SELECT * FROM t")
            for statement in statements:
                con.execute(statement)
        return path

    return make


def harvest(source: Any, **names: Any) -> posbias.Harvest:
    return posbias.harvest(posbias.ClickLog(source, **names), max_rank=4)


def assert_same(one: posbias.Harvest, other: posbias.Harvest) -> None:
    np.testing.assert_array_equal(one.table.bucket, other.table.bucket)
    np.testing.assert_array_equal(one.pairs().clicks, other.pairs().clicks)


SETTINGS = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
}


@pytest.mark.parametrize("sql", [None, "FROM source"])
def test_settings_are_locked_and_only_user_queries_may_read_other_files(table: pa.Table, sql: str | None):
    with open_log(posbias.ClickLog(table, sql=sql)) as opened:
        found = dict(opened.rows("SELECT name, value FROM duckdb_settings()"))
        assert {name: found[name] for name in SETTINGS} == SETTINGS
        assert found["enable_external_access"] == ("true" if sql else "false")
        for statement in ("SET threads = 1", "SET enable_external_access = true", "SET lock_configuration = false"):
            with pytest.raises(posbias.LogError, match=r"locked|Cannot|disabled"):
                opened.rows(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "LOAD httpfs",
        "INSTALL httpfs",
        "FROM read_text('/etc/hostname')",
        "FROM glob('/*')",
        "COPY (SELECT 1) TO 'x.csv'",
    ],
)
def test_duckdb_accesses_only_the_log(statement: str, table: pa.Table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with open_log(posbias.ClickLog(table)) as opened, pytest.raises(posbias.LogError):
        opened.rows(statement)
    assert list(tmp_path.iterdir()) == []


def test_macros_of_a_database_do_not_replace_functions(table: pa.Table, database: Callable[..., Path]):
    path = database(
        "CREATE MACRO hash(x) AS 42", "CREATE MACRO lower(x) AS 'true'", "CREATE MACRO isnan(x) AS true",
        "CREATE VIEW views AS SELECT * REPLACE (clicked::VARCHAR AS clicked) FROM clicks",
    )  # fmt: skip
    want = harvest(table)
    assert len(set(want.table.bucket)) > 10
    for names in ({"table": "clicks"}, {"table": "views"}, {"sql": "FROM clicks"}):
        assert_same(harvest(path, **names), want)


READING = {
    "text": "SELECT c.* FROM clicks c, read_text('{file}')",
    "CSV": "SELECT c.* FROM clicks c, read_csv('{file}')",
    "the name alone": "SELECT c.* FROM clicks c, '{file}'",
    "a pattern": "SELECT c.* FROM clicks c, glob('{folder}/*')",
}


@pytest.mark.parametrize("kind", READING)
def test_views_of_a_database_read_other_files_only_with_permission(kind, table, database, tmp_path):
    secret = tmp_path / "secret.csv"
    secret.write_text("word\nopen sesame\n")
    path = database("CREATE VIEW seen AS " + READING[kind].format(file=secret, folder=tmp_path / "nothing*"))
    with pytest.raises(posbias.LogError, match=r"If you trust it, read it by your own query, such as sql=") as refused:
        harvest(path, table="seen")
    assert "sesame" not in str(refused.value)
    if kind != "a pattern":
        assert_same(harvest(path, sql="SELECT * FROM seen"), harvest(table))


def test_views_over_tables_of_the_same_database(table, database):
    path = database(
        "CREATE SCHEMA web", 'CREATE TABLE web."my log" AS FROM clicks', 'CREATE VIEW web.v AS FROM web."my log"',
        "CREATE VIEW w AS SELECT * FROM web.v",
    )  # fmt: skip
    for name in ("web.my log", "web.v", "w"):
        assert_same(harvest(path, table=name), harvest(table))
    assert_same(harvest(path, sql='SELECT * FROM web."my log"'), harvest(table))


def test_tables_with_internal_names_are_read(table, database):
    path = database("CREATE TABLE log AS FROM clicks", "CREATE TABLE rankings AS SELECT 1 AS x")
    for names in ({"table": "log"}, {"sql": "FROM log -- all"}, {"sql": "WITH r AS (FROM log) SELECT * FROM r;"}):
        assert_same(harvest(path, **names), harvest(table))


@pytest.mark.parametrize("sql", [None, "SELECT * FROM LOOKED_FOR_BY_NAME"])
def test_names_never_resolve_to_python_variables(sql, table, database):
    path = database(
        "CREATE TABLE looked_for_by_name AS FROM clicks", "CREATE VIEW seen AS FROM looked_for_by_name",
        "DROP TABLE looked_for_by_name",
    )  # fmt: skip
    with pytest.raises(posbias.LogError, match="does not exist"):
        harvest(path, **({"table": "seen"} if sql is None else {"sql": sql}))


def test_sqlite_databases_are_rejected_without_download(tmp_path):
    path = tmp_path / "x.db"
    with sqlite3.connect(path) as con:
        con.execute("CREATE TABLE clicks (query_id)")
    con.close()
    with pytest.raises(
        posbias.LogError, match=r"x.db' is not a DuckDB database but a SQLite database.* Export the table"
    ):
        harvest(path)
    (tmp_path / "y.duckdb").write_bytes(b"hello, world, this is a text")
    with pytest.raises(posbias.LogError, match="is not a DuckDB database"):
        harvest(tmp_path / "y.duckdb")


def test_large_queries_spill_to_disk(tmp_path: Path):
    path = tmp_path / "log.parquet"
    rows = "SELECT range AS query_id, range * 7 AS doc_id, CASE WHEN range % 2 = 0 THEN 'a' ELSE 'b' END AS ranker, "
    duckdb.sql(f"COPY ({rows} 1 + range % 4 AS position, range % 3 = 0 AS clicked FROM range(3000000)) TO '{path}'")
    limited = posbias.DuckDB(memory_limit="60MB", threads=1)
    with open_log(posbias.ClickLog(path), limited) as opened:
        opened.rows("CREATE TEMP TABLE copy AS SELECT *, md5(query_id::VARCHAR) AS text FROM log")
        [(spilt,)] = opened.rows("SELECT SUM(size) FROM duckdb_temporary_files()")
        assert spilt > 50_000_000
        assert opened.rows("SELECT COUNT(*) FROM copy") == [(3000000,)]


def test_a_query_may_read_other_files(table, tmp_path):
    pq.write_table(table, tmp_path / "log.parquet")
    (tmp_path / "bots.csv").write_text("query_id\n1\n2\n3\n")
    sql = f"FROM source WHERE query_id NOT IN (SELECT query_id FROM '{tmp_path}/bots.csv')"
    assert_same(
        harvest(tmp_path / "log.parquet", sql=sql),
        harvest(table.filter(~pa.compute.field("query_id").isin([1, 2, 3]))),
    )
    with pytest.raises(posbias.LogError, match="loads no extension"):
        harvest(table, sql="FROM 'https://127.0.0.1:9/x.parquet'")
