"""The tables of a DuckDB file: attached to be read, under a name of its own, so that nothing in it replaces ours."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb

from posbias.errors import LogError
from posbias.findings import unusable
from posbias.logs.click_log import ClickLog
from posbias.logs.columns import guess
from posbias.logs.events import Events
from posbias.sql.dialect import DuckDBDialect
from posbias.wording import listed

_SQL = DuckDBDialect()
# What a DuckDB file is called once attached.
_DATABASE = "log_database"
_MAGIC = b"DUCK"
# What we call the tables of a log ourselves.
_OURS = ("log", "rankings", "impressions", "clicks", "joined", "candidates")


def attach(con: duckdb.DuckDBPyConnection, files: list[str]) -> dict[str, str]:
    """Attach a DuckDB file and return its tables and views, by what a user calls them: schema.name where not in main.

    It is never the database in use: its macros do not take the place of functions.
    """
    if len(files) > 1:
        raise LogError(f"{len(files)} DuckDB files were given; a log is a table or query of one of them.")
    with open(files[0], "rb") as file:
        head = file.read(12 + len(_MAGIC))
    if head[8:12] != _MAGIC:
        kind = "a SQLite database, not one of DuckDB" if head.startswith(b"SQLite format 3") else "no DuckDB database"
        raise unusable(
            "not-a-log",
            f"The file {files[0]!r} is {kind}",
            "Export the table of the log to Parquet or CSV, or give the file the ending of what it is.",
        )
    con.execute(f"ATTACH {_SQL.text(files[0])} AS {_DATABASE} (TYPE duckdb, READ_ONLY)")
    found = con.execute(
        f"SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = '{_DATABASE}' UNION ALL "
        f"SELECT schema_name, view_name FROM duckdb_views() WHERE database_name = '{_DATABASE}' AND NOT internal"
    ).fetchall()
    return {
        name if schema == "main" else f"{schema}.{name}": ".".join([_DATABASE, _SQL.quote(schema), _SQL.quote(name)])
        for schema, name in sorted(found, key=lambda row: (row[0] != "main", row))
    }


def choose_table(file: str, tables: Mapping[str, str], log: ClickLog | Events) -> str | None:
    """Return the table of a file that is the log; None where a query of the user's own says what is."""
    table = next(iter(tables)) if log.table is None and len(tables) == 1 else log.table
    if table is None and log.sql is None:
        raise unusable(
            "which-table",
            f"{file!r} holds {len(tables)} tables: {listed(tables)}",
            "Say which one is the log, or give a query (sql).",
            count=len(tables),
            arguments={"table": "NAME"},
        )
    if table is not None and table not in tables:
        near = guess("", table, tables)
        raise unusable(
            "which-table",
            f"There is no table {table!r} in {file!r}",
            (f"Did you mean {near!r}? " if near else "") + f"Tables found: {listed(tables)}. Name one of them.",
            arguments={"table": near or "NAME"},
        )
    return table


def query_tables(con: duckdb.DuckDBPyConnection, tables: Mapping[str, str], sql: str) -> str:
    """Let a query name the tables of the file without saying where they are, and return it."""
    schemas = con.execute(f"SELECT schema_name FROM duckdb_schemas() WHERE database_name = '{_DATABASE}'").fetchall()
    for (schema,) in schemas:
        con.execute(f"CREATE SCHEMA IF NOT EXISTS {_SQL.quote(schema)}")
    for name in tables.values():
        con.execute(f"CREATE VIEW {name.removeprefix(f'{_DATABASE}.')} AS SELECT * FROM {name}")
    shadowed = [f"{_SQL.quote(name)} AS (SELECT * FROM {tables[name]})" for name in tables if name.lower() in _OURS]
    body = sql.strip().rstrip(";")
    return f"WITH {', '.join(shadowed)}\nSELECT * FROM (\n{body}\n) chosen" if shadowed else body
