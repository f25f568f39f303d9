"""The default engine: an embedded DuckDB that spills to disk under a memory limit."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from posbias.engines.sources import find_files, is_path, one_format, reader
from posbias.errors import LogError, PosbiasError
from posbias.log import ClickLog, Schema, listed, resolve
from posbias.progress import Progress, silent
from posbias.sql.dialect import DuckDB


class Engine:
    """A DuckDB connection with one log opened as `log`, and its rankings, if it has any, as `rankings`."""

    dialect = DuckDB()

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, schema: Schema, files: list[str], progress: Progress
    ) -> None:
        self._connection = connection
        self._files = files
        self.schema = schema
        self.progress = progress

    def file_columns(self) -> dict[str, dict[str, str]]:
        """Return the columns and types of each file of the log, where it has several."""
        if len(self._files) < 2:
            return {}
        with _explained():
            text = self.dialect.text
            return {f: _columns(self._connection, f"SELECT * FROM {reader([f], text)}") for f in self._files}

    def rows(self, sql: str, doing: str = "") -> list[tuple[Any, ...]]:
        """Run a query whose answer is small."""
        with _explained(), self._watched(doing):
            return self._connection.execute(sql).fetchall()

    def batches(self, sql: str, doing: str = "") -> Iterator[pa.RecordBatch]:
        """Run a query and return its answer in batches, so that one can stop reading."""
        with _explained(), self._watched(doing):
            yield from self._connection.sql(sql).to_arrow_reader(100_000)

    @contextmanager
    def _watched(self, doing: str) -> Iterator[None]:
        if not doing or self.progress is silent:
            yield
            return
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.1):
                self.progress(doing, max(self._connection.query_progress(), 0.0) / 100)

        # Joined before the query's answer is used: a thread alive at exit makes DuckDB print leak warnings.
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()


@contextmanager
def open_log(
    log: ClickLog,
    *,
    memory_limit: str | None = None,
    threads: int | None = None,
    progress: Progress = silent,
) -> Iterator[Engine]:
    """Open a log in an embedded DuckDB for as long as the block lasts."""
    with (
        tempfile.TemporaryDirectory(prefix="posbias-") as spill,
        _connected(spill, memory_limit, threads) as con,
    ):
        with _explained():
            files = _define(con, "log", log.source, log.table, log.sql)
            if log.rankings is not None:
                _define(con, "rankings", log.rankings)
            columns = _columns(con, "log")
            ranked = _columns(con, "rankings") if log.rankings is not None else {}
        schema = resolve(log, columns, ranked)
        yield Engine(con, schema, files, progress)


@contextmanager
def _connected(spill: str, memory_limit: str | None, threads: int | None) -> Iterator[duckdb.DuckDBPyConnection]:
    con = duckdb.connect(":memory:", config={"temp_directory": spill})
    try:
        if memory_limit is not None:
            try:
                con.execute("SET memory_limit = ?", [memory_limit])
            except duckdb.Error:
                raise PosbiasError(
                    f"The memory limit {memory_limit!r} is not understood. Give a size such as 2GB or 500MB."
                ) from None
        if threads is not None:
            if threads < 1:
                raise PosbiasError(f"The number of threads must be 1 or more, not {threads}.")
            con.execute("SET threads = ?", [threads])
        # Row order has no meaning here, and keeping it costs memory.
        con.execute("SET preserve_insertion_order = false")
        con.execute("SET enable_progress_bar = false")
        yield con
    finally:
        con.close()


def _define(
    con: duckdb.DuckDBPyConnection, name: str, source: Any, table: str | None = None, sql: str | None = None
) -> list[str]:
    """Make a source selectable under a name, and return the files it is read from."""
    if is_path(source):
        files = find_files(source)
        if one_format(files) == "duckdb":
            _attach(con, name, files, table, sql)
        elif table or sql:
            raise LogError(f"table and sql go with a DuckDB file, and {files[0]!r} is not one.")
        else:
            con.execute(f"CREATE TEMP VIEW {name} AS SELECT * FROM {reader(files, Engine.dialect.text)}")
        return files
    if isinstance(source, duckdb.DuckDBPyRelation):
        source = source.to_arrow_reader()
    if isinstance(source, pa.RecordBatchReader):
        # It can be read only once, and we read a log more than once: into a table that may spill to disk.
        con.register("stream", source)
        con.execute(f"CREATE TEMP TABLE {name} AS SELECT * FROM stream")
        con.unregister("stream")
        return []
    if hasattr(source, "collect") and hasattr(source, "lazy"):  # a Polars LazyFrame
        source = source.collect()
    if type(source).__module__.startswith("polars"):
        source = source.to_arrow()
    try:
        con.register(name, source)
    except (duckdb.Error, TypeError):
        raise LogError(
            f"A log cannot be read from a {type(source).__name__}. Give a path, glob or folder, a DuckDB "
            "relation, or a pandas, Polars or Arrow table."
        ) from None
    return []


def _attach(con: duckdb.DuckDBPyConnection, name: str, files: list[str], table: str | None, sql: str | None) -> None:
    if len(files) > 1:
        raise LogError(f"{len(files)} DuckDB files were given; a log is a table or query of one of them.")
    quote, text = Engine.dialect.quote, Engine.dialect.text
    con.execute(f"ATTACH {text(files[0])} AS source (READ_ONLY)")
    con.execute("USE source")
    tables = [
        row[0]
        for row in con.execute(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = 'source' "
            "UNION ALL SELECT view_name FROM duckdb_views() "
            "WHERE database_name = 'source' AND NOT internal"
        ).fetchall()
    ]
    if sql is None and table is None:
        if len(tables) != 1:
            raise LogError(
                f"{files[0]!r} holds {len(tables)} tables: {listed(sorted(tables))}. Say which one is the log "
                "with --table NAME, or give a query with --sql."
            )
        table = tables[0]
    if table is not None and table not in tables:
        raise LogError(f"There is no table {table!r} in {files[0]!r}. Tables found: {listed(sorted(tables))}.")
    body = sql.strip().rstrip(";") if sql is not None else f"SELECT * FROM source.{quote(table or '')}"
    con.execute(f"CREATE TEMP VIEW {name} AS {body}")


def _columns(con: duckdb.DuckDBPyConnection, name: str) -> dict[str, str]:
    return {row[0]: row[1] for row in con.execute(f"DESCRIBE {name}").fetchall()}


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what DuckDB says into an error that names the file and a remedy."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise PosbiasError(
            "The memory limit is too small for this log, or the disk that takes what does not fit is full. "
            f"Raise --memory-limit, lower --threads or free space in the temporary folder. ({first_line(error)})"
        ) from None
    except duckdb.Error as error:
        raise LogError(f"The log cannot be read: {first_line(error)}. {_remedy(str(error))}") from None


def first_line(error: Exception) -> str:
    """Return the first sentence of an engine's error, without its class and its full stop."""
    line = next((part for part in str(error).splitlines() if part.strip()), type(error).__name__)
    return re.sub(r"^[A-Z][A-Za-z ]+ Error: ", "", line.strip()).rstrip(".")


def _remedy(message: str) -> str:
    low = message.lower()
    if any(sign in low for sign in ("footer", "magic bytes", "too small", "truncated", "gzip", "eof", "end of")):
        return "The file looks truncated or damaged: copy or write it again, or leave it out."
    if "not found in" in low or "mismatch" in low or "union_by_name" in low:
        return "The files do not fit together: give files of one layout, or convert the odd one."
    return "Run `posbias check` on it, or open it with DuckDB to see the row in question."
