"""Any source as a table of an embedded DuckDB."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from posbias.engines.duckdb.errors import explained, gist
from posbias.engines.duckdb.readers import original_names, select_files
from posbias.engines.files import file_format, find_files, is_path, one_format
from posbias.errors import LogError
from posbias.findings import unusable
from posbias.logs.click_log import ClickLog
from posbias.logs.columns import guess
from posbias.sql.dialect import DuckDBDialect
from posbias.wording import listed

_SQL = DuckDBDialect()
# What a DuckDB file is called once attached.
_DATABASE = "log_database"


@dataclass(frozen=True)
class Opened:
    """A table that can be selected from: the files it is read from, if any, and its columns.

    `names` maps what the source calls a column to what the engine does; they differ only where two names of the
    source differ by upper and lower case alone.
    """

    files: Sequence[str]
    types: dict[str, str]
    names: dict[str, str]


def open_source(con: duckdb.DuckDBPyConnection, log: ClickLog) -> Opened:
    """Make the rows of a log selectable as `log`, by the query of the user's own where there is one."""
    with explained():
        files = find_files(log.source) if is_path(log.source) else []
        rows, originals = "SELECT * FROM source", []
        if files and one_format(files) == "duckdb":
            rows = _open_database(con, files, log)
        elif log.table is not None:
            what = repr(files[0]) if files else f"a {type(log.source).__name__}"
            raise LogError(f"table goes with a DuckDB file, and {what} is not one. Leave it out, or use sql.")
        else:
            originals = _define(con, "source", log.source, files)
        return _publish(con, "log", log.sql or rows, files, [] if log.sql else originals)


def open_rankings(con: duckdb.DuckDBPyConnection, log: ClickLog) -> Opened:
    """Make the second table of a long log selectable as `rankings`."""
    source = log.rankings
    with explained():
        tables = _tables(con)
        if isinstance(source, str) and source in tables:
            return _publish(con, "rankings", f"SELECT * FROM {tables[source]}", [], [])
        files = find_files(source) if is_path(source) else []
        if files and file_format(files[0]) == "duckdb":
            raise LogError(
                f"The rankings cannot be read from the DuckDB file {files[0]!r}. Put them into the DuckDB file of the "
                "log and name their table, or export them to Parquet.",
                {"rankings": "TABLE"},
            )
        _define(con, "rankings_source", source, files)
        return _publish(con, "rankings", "SELECT * FROM rankings_source", files, [])


def _define(con: duckdb.DuckDBPyConnection, name: str, source: Any, files: list[str]) -> list[str]:
    """Make files or data selectable under a name, and return the columns as the source calls them."""
    if files:
        con.execute(f"CREATE TEMP VIEW {name} AS {select_files(con, files)}")
        return original_names(con, files)
    if isinstance(source, duckdb.DuckDBPyRelation):
        source = source.to_arrow_reader()
    if type(source).__name__ == "RecordBatchReader":
        # It can be read only once, and we read a log more than once: into a table that may spill to disk.
        con.register("stream", source)
        con.execute(f"CREATE TEMP TABLE {name} AS SELECT * FROM stream")
        con.unregister("stream")
        return list(source.schema.names)
    if type(source).__module__.startswith("polars"):
        source = _from_polars(source)
    if type(source).__name__ == "RecordBatch":
        import pyarrow as pa

        source = pa.Table.from_batches([source])
    try:
        _register(con, name, source)
    except (duckdb.Error, TypeError, ValueError) as error:
        raise LogError(
            f"A log cannot be read from a {type(source).__name__} ({gist(error)}). Give a path, glob or folder, a "
            "DuckDB relation, or a pandas, Polars or Arrow table, with the columns of the log only."
        ) from None
    names = getattr(source, "column_names", None) or getattr(source, "columns", None)
    return [] if names is None else [str(column) for column in names]


def _register(con: duckdb.DuckDBPyConnection, name: str, source: Any) -> None:
    try:
        con.register(name, source)
    except duckdb.Error:
        if not type(source).__module__.startswith("pandas"):
            raise
        # A frame that is a view of another one backwards, as frame[::-1] is, can be read only as a copy.
        con.register(name, source.copy())


def _from_polars(frame: Any) -> Any:
    import polars

    if isinstance(frame, polars.LazyFrame):
        frame = frame.collect()
    # The newest Arrow has the string views that Polars itself uses: nothing is copied.
    return frame.to_arrow(compat_level=polars.CompatLevel.newest())


def _open_database(con: duckdb.DuckDBPyConnection, files: Sequence[str], log: ClickLog) -> str:
    """Attach a DuckDB file and return the SELECT of its table that is the log, which a query may call `source`."""
    if len(files) > 1:
        raise LogError(f"{len(files)} DuckDB files were given; a log is a table or query of one of them.")
    con.execute(f"ATTACH {_SQL.text(files[0])} AS {_DATABASE} (READ_ONLY)")
    con.execute(f"USE {_DATABASE}")
    tables = _tables(con)
    table = next(iter(tables)) if log.table is None and len(tables) == 1 else log.table
    if table is None and log.sql is None:
        raise unusable(
            "which-table",
            f"{files[0]!r} holds {len(tables)} tables: {listed(tables)}",
            "Say which one is the log, or give a query (sql).",
            count=len(tables),
            arguments={"table": "NAME"},
        )
    if table is not None and table not in tables:
        near = guess("", table, tables)
        raise unusable(
            "which-table",
            f"There is no table {table!r} in {files[0]!r}",
            (f"Did you mean {near!r}? " if near else "") + f"Tables found: {listed(tables)}. Name one of them.",
            arguments={"table": near or "NAME"},
        )
    if table is None:
        return ""
    rows = f"SELECT * FROM {tables[table]}"
    if "source" not in tables:
        con.execute(f"CREATE TEMP VIEW source AS {rows}")
    return rows


def _tables(con: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Return the tables and views of the attached file, by what a user calls them: schema.name where not in main."""
    found = con.execute(
        f"SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = '{_DATABASE}' UNION ALL "
        f"SELECT schema_name, view_name FROM duckdb_views() WHERE database_name = '{_DATABASE}' AND NOT internal"
    ).fetchall()
    return {
        name if schema == "main" else f"{schema}.{name}": ".".join([_DATABASE, _SQL.quote(schema), _SQL.quote(name)])
        for schema, name in sorted(found, key=lambda row: (row[0] != "main", row))
    }


def _publish(
    con: duckdb.DuckDBPyConnection, name: str, sql: str, files: Sequence[str], originals: Sequence[str]
) -> Opened:
    """Make a query selectable under a name, and tell its columns."""
    body = sql.strip().rstrip(";")
    found = {row[0]: row[1] for row in con.execute(f"DESCRIBE {body}").fetchall()}
    # An ENUM is a number inside, another one in every file: its text is what was meant.
    enums = [_SQL.quote(column) for column, type_ in found.items() if type_.startswith("ENUM")]
    if enums:
        body = f"SELECT * REPLACE ({', '.join(f'{_SQL.as_text(c)} AS {c}' for c in enums)}) FROM ({body}) s"
        found = {column: "VARCHAR" if type_.startswith("ENUM") else type_ for column, type_ in found.items()}
    con.execute(f"CREATE TEMP VIEW {name} AS {body}")
    names: dict[str, str] = {}
    for place, column in enumerate(found):
        original = originals[place] if place < len(originals) else column
        renamed = re.fullmatch(re.escape(original) + r"(_\d+)*", column, re.IGNORECASE) and original not in names
        names[original if renamed else column] = column
    return Opened(files, {original: found[column] for original, column in names.items()}, names)
