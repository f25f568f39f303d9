"""The default engine: an embedded DuckDB that spills to disk under a memory limit."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import duckdb

from posbias.engines.explaining import explained
from posbias.engines.opening import open_rankings, open_source, refuse_empty_rankings
from posbias.engines.readers import select_files
from posbias.errors import PosbiasError
from posbias.log import ClickLog, Schema, resolve
from posbias.progress import Progress, silent
from posbias.sql.dialect import DuckDB

if TYPE_CHECKING:
    from posbias.answers import Answer


class Engine:
    """A DuckDB connection with one log opened as `log`, and its rankings, if it has any, as `rankings`."""

    dialect = DuckDB()

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, schema: Schema, files: Sequence[str], progress: Progress
    ) -> None:
        self._connection = connection
        self._files = files
        self.schema = schema
        self.progress = progress

    def file_columns(self) -> dict[str, dict[str, str]]:
        """Return the columns and types of each file of the log, where it has several."""
        if len(self._files) < 2:
            return {}
        with explained():
            return {
                file: dict(row[:2] for row in self._connection.execute(f"DESCRIBE {text}").fetchall())
                for file in self._files
                for text in [select_files(self._connection, [file])]
            }

    def rows(self, sql: str, doing: str = "") -> list[tuple[Any, ...]]:
        """Run a query whose answer is small."""
        with explained(), self._watched(doing):
            return self._connection.execute(sql).fetchall()

    def table(self, sql: str, doing: str = "") -> Answer:
        """Run a query and return its answer."""
        with explained(), self._watched(doing):
            answer = self._connection.execute(sql)
            # NumPy only now: a command imports it while the engine counts.
            from posbias.answers import plain

            return {name: plain(column) for name, column in answer.fetchnumpy().items()}

    def table_up_to(self, sql: str, most: int, doing: str = "") -> Answer | None:
        """Run a query and return its answer; None if it has more than `most` rows."""
        answer = self.table(f"SELECT * FROM (\n{sql}\n) answer LIMIT {most + 1}", doing)
        return answer if len(next(iter(answer.values()))) <= most else None

    @contextmanager
    def _watched(self, doing: str) -> Iterator[None]:
        if not doing or self.progress is silent:
            yield
            return
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.1):
                self.progress(doing, max(self._connection.query_progress(), 0.0) / 100)

        self.progress(doing, 0.0)
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
        opened = open_source(con, log)
        rankings = {} if log.rankings is None else open_rankings(con, log).types
        schema = resolve(log, opened.types, rankings).by_engine_names(opened.names)
        if schema.layout == "long":
            refuse_empty_rankings(con, schema)
        yield Engine(con, schema, opened.files, progress)


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
        # Columns of Python objects get their type from all rows: ids may turn from numbers to text late.
        con.execute("SET pandas_analyze_sample = 1000000000")
        yield con
    finally:
        con.close()
