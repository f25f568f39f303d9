"""Any source as a table of an embedded DuckDB."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import duckdb

from posbias.engines.duckdb.connections import shut
from posbias.engines.duckdb.databases import attach, choose_table, query_tables
from posbias.engines.duckdb.errors import explained, gist
from posbias.engines.duckdb.readers import select_files
from posbias.engines.files import file_format, find_files, is_path, one_format
from posbias.engines.headers import refuse_unreadable
from posbias.errors import LogError, PosbiasError
from posbias.findings import unusable
from posbias.logs.click_log import ClickLog
from posbias.logs.columns import refuse_twins
from posbias.logs.schemas import ANY_RANKER, NATURAL, Columns
from posbias.sql.dialect import DuckDBDialect

_SQL = DuckDBDialect()


@dataclass(frozen=True)
class Opened:
    """A table that can be selected from: the files it is read from, if any, and its columns."""

    files: Sequence[str]
    columns: Columns


@dataclass(frozen=True)
class Source:
    """What was defined under a name: its columns as the source calls them, and those that only folders' names tell."""

    name: str
    originals: Sequence[str]
    in_paths: tuple[str, ...] = ()


def open_tables(
    con: duckdb.DuckDBPyConnection, log: ClickLog, beside: Mapping[str, Any] | None = None, outputs: Sequence[str] = ()
) -> tuple[Opened, Opened | None, dict[str, Opened]]:
    """Make the rows of a log selectable as `log`, the second table of a long one as `rankings`, and others `beside` it.

    What is to be read is settled first; then the doors are shut, and only then is anything looked at: a view of a
    database file would read what it likes as soon as it is asked for its columns.
    """
    with explained():
        files = find_files(log.source) if is_path(log.source) else []
        database = bool(files) and one_format(files) == "duckdb"
        refuse_unreadable(files)
        tables = attach(con, files) if database else {}
        more = [] if log.rankings is None else find_second("rankings", log.rankings, tables)
        refuse_unreadable(more)
        others = find_beside(beside or {}, tables)
        seen = [*([] if database else files), *more, *chain(*others.values()), *outputs]
        shut(con, seen, trusting=log.sql is not None)
        if database:
            opened = _open_database(con, files[0], tables, log)
        elif log.table is not None:
            what = repr(files[0]) if files else f"a {type(log.source).__name__}"
            raise LogError(f"table goes with a DuckDB file, and {what} is not one. Leave it out, or use sql.")
        else:
            source = define(con, "source", log.source, files)
            opened = publish(con, "log", log.sql or "SELECT * FROM source", files, source)
        second = None if log.rankings is None else open_second(con, "rankings", log.rankings, more, tables)
        return opened, second, open_beside(con, beside or {}, others, tables)


def find_beside(beside: Mapping[str, Any], tables: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the files of each table that stands beside the log."""
    found: dict[str, list[str]] = {}
    for name, source in beside.items():
        in_log = isinstance(source, str) and source in tables
        files = found[name] = [] if in_log or not is_path(source) else find_files(source)
        if files and file_format(files[0]) == "duckdb":
            raise LogError(
                f"{files[0]!r} is a DuckDB file, and of those only that of the log is read. Put the table into "
                "it and give its name, or export it to Parquet."
            )
        refuse_unreadable(files)
    return found


def open_beside(
    con: duckdb.DuckDBPyConnection,
    beside: Mapping[str, Any],
    files: Mapping[str, list[str]],
    tables: Mapping[str, str],
) -> dict[str, Opened]:
    """Make each table that stands beside the log selectable by its name."""
    return {name: open_second(con, name, source, files[name], tables) for name, source in beside.items()}


def open_second(
    con: duckdb.DuckDBPyConnection, name: str, source: Any, files: list[str], tables: Mapping[str, str]
) -> Opened:
    """Make a source, or a table of the same DuckDB file, selectable under a name."""
    if isinstance(source, str) and source in tables:
        return publish(con, name, f"SELECT * FROM {tables[source]}", [])
    found = define(con, f"{name}_source", source, files)
    return publish(con, name, f"SELECT * FROM {name}_source", files, found)


def name_no_ranker(con: duckdb.DuckDBPyConnection) -> None:
    """Let every row of a log that names no ranker have been shown by the same."""
    con.execute("ALTER VIEW log RENAME TO nameless_log")
    ranker = f"{_SQL.text(ANY_RANKER)} AS {_SQL.quote(NATURAL)}"
    con.execute(f"CREATE TEMP VIEW log AS SELECT *, {ranker} FROM nameless_log")


def find_second(name: str, source: Any, tables: Mapping[str, str]) -> list[str]:
    """Return the files of a table that stands beside the first, where it has any."""
    if (isinstance(source, str) and source in tables) or not is_path(source):
        return []
    files = find_files(source)
    if file_format(files[0]) == "duckdb":
        raise LogError(
            f"The {name} cannot be read from the DuckDB file {files[0]!r}. Put them into the DuckDB file of the "
            "log and name their table, or export them to Parquet.",
            {name: "TABLE"},
        )
    return files


def define(con: duckdb.DuckDBPyConnection, name: str, source: Any, files: list[str]) -> Source:
    """Make files or data selectable under a name, and tell the columns as the source calls them."""
    if files:
        reading = select_files(con, files)
        con.execute(f"CREATE TEMP VIEW {name} AS {reading.select}")
        return Source(name, reading.originals, reading.in_paths)
    if isinstance(source, duckdb.DuckDBPyRelation):
        refuse_twins(source.columns, "the relation")
        source = source.to_arrow_reader()
    if type(source).__name__ == "RecordBatchReader":
        # It can be read only once, and we read a log more than once: into a table that may spill to disk.
        con.register("stream", source)
        con.execute(f"CREATE TEMP TABLE {name} AS SELECT * FROM stream")
        con.unregister("stream")
        return Source(name, _names_of(source))
    kind = type(source).__name__
    try:
        if type(source).__module__.startswith("polars"):
            source = _from_polars(source)
        if kind == "RecordBatch":
            import pyarrow as pa

            source = pa.Table.from_batches([source])
        _register(con, name, source)
        return Source(name, _names_of(source))
    except PosbiasError:
        raise
    # Anything may be given, and what a lazy frame reads may be anywhere: whatever is raised is told.
    except Exception as error:
        raise LogError(
            f"A log cannot be read from a {kind} ({gist(error)}). Give a path, glob or folder, a "
            "DuckDB relation, or a pandas, Polars or Arrow table, with the columns of the log only."
        ) from None


def _names_of(source: Any) -> list[str]:
    """Return the columns of data in memory as it calls them itself."""
    if hasattr(source, "__arrow_c_stream__") and not hasattr(source, "columns") and not hasattr(source, "schema"):
        import pyarrow as pa

        source = pa.RecordBatchReader.from_stream(source)
    names = source if isinstance(source, dict) else getattr(getattr(source, "schema", None), "names", None)
    names = [str(name) for name in (getattr(source, "columns", ()) if names is None else names)]
    refuse_twins(names, f"the {type(source).__name__}")
    return names


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


def _open_database(con: duckdb.DuckDBPyConnection, file: str, tables: Mapping[str, str], log: ClickLog) -> Opened:
    """Make the table of a database file that is the log, or the user's query over its tables, selectable as `log`."""
    table = choose_table(file, tables, log)
    rows = f"SELECT * FROM {tables[table]}" if table is not None else ""
    if log.sql is None:
        return publish(con, "log", rows, [file])
    if table is not None and "source" not in tables:
        con.execute(f"CREATE TEMP VIEW source AS {rows}")
    return publish(con, "log", query_tables(con, tables, log.sql), [file])


def publish(
    con: duckdb.DuckDBPyConnection, name: str, sql: str, files: Sequence[str], source: Source | None = None
) -> Opened:
    """Make a query selectable under a name, and tell its columns: as the source calls them, and as the engine does."""
    body = sql.strip().rstrip(";")
    statements = len(con.extract_statements(body))
    if statements > 1:
        raise unusable("bad-sql", f"The query given as sql holds {statements} statements", "Give a single SELECT.")
    described = [row[0] for row in con.execute(f"DESCRIBE {body}").fetchall()]
    refuse_twins(described, "the answer to the query")
    con.execute(f"CREATE TEMP VIEW {name} AS {_enums_as_text(con, body)}")
    # Of two names that differ only by case the view gives one a number.
    found = {row[0]: row[1] for row in con.execute(f"DESCRIBE {name}").fetchall()}
    renamed = {} if source is None else _renamed(con, source)
    names: dict[str, str] = {}
    for told, column in zip(described, found, strict=True):
        original = renamed.get(told, told)
        names[told if original in described else original] = column
    types = {original: found[column] for original, column in names.items()}
    in_paths = frozenset(() if source is None else source.in_paths) & types.keys()
    return Opened(files, Columns(types, names, in_paths))


def _enums_as_text(con: duckdb.DuckDBPyConnection, body: str) -> str:
    """Return a query whose ENUMs are texts: one is a number inside, another one in every file."""
    inside = f"FROM (\n{body}\n) s"
    found = con.execute(f"DESCRIBE SELECT * {inside}").fetchall()
    enums = [_SQL.quote(row[0]) for row in found if row[1].startswith("ENUM")]
    return f"SELECT * REPLACE ({', '.join(f'{_SQL.as_text(c)} AS {c}' for c in enums)}) {inside}" if enums else body


def _renamed(con: duckdb.DuckDBPyConnection, source: Source) -> dict[str, str]:
    """Return the columns that the engine calls otherwise than the source, which differ from others only by case."""
    columns = [row[0] for row in con.execute(f"DESCRIBE {source.name}").fetchall()]
    return {
        column: original
        for column, original in zip(columns, source.originals, strict=False)
        if column != original and re.fullmatch(re.escape(original) + r"(_\d+)+", column, re.IGNORECASE)
    }
