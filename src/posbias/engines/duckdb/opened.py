"""The default engine: an embedded DuckDB that spills to disk under a memory limit."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import duckdb

from posbias.engines.duckdb.connections import connected, distrust, trust
from posbias.engines.duckdb.errors import explained
from posbias.engines.duckdb.events import open_events
from posbias.engines.duckdb.opening import name_no_ranker, open_tables
from posbias.engines.duckdb.readers import select_files
from posbias.engines.files import file_format
from posbias.engines.opened import OpenLog
from posbias.findings import Finding
from posbias.logs.click_log import ClickLog
from posbias.logs.events import Events
from posbias.logs.schemas import Schema, resolve
from posbias.progress import Progress, silent
from posbias.sql.dialect import FRACTIONS, DuckDBDialect
from posbias.writing import scratch_folder

if TYPE_CHECKING:
    from posbias.engines.answers import Answer


# From this many bytes of files on a table of 2^22 groups is worth its making: it takes 64 MB in every thread, and one
# thread alone adds them up.
_LARGE = 2**25
# The rows of more files are not asked for: each has to be opened.
_MANY_FILES = 100


class DuckDBLog(OpenLog):
    """A log in a DuckDB connection."""

    dialect = DuckDBDialect()

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        schema: Schema,
        files: Sequence[str],
        progress: Progress,
        findings: Sequence[Finding] = (),
        *,
        queried: bool = False,
    ) -> None:
        super().__init__(schema, progress, findings)
        self._connection = connection
        self._files = files
        self._kept = False
        self._queried = queried
        # Where ids, positions or counts are fractions, which can be NaN, nothing is believed for as long as it is open.
        self._odd = any(schema.types.get(name) in FRACTIONS for name in _used(schema)) or bool(
            FRACTIONS & {*schema.rankings.values()}
        )
        if self._odd:
            distrust(connection)

    def file_columns(self) -> dict[str, dict[str, str]]:
        """Return the columns and types of each file of the log, where it has several."""
        if len(self._files) < 2:
            return {}
        with explained():
            return {
                file: dict(row[:2] for row in self._connection.execute(f"DESCRIBE {text}").fetchall())
                for file in self._files
                for text in [select_files(self._connection, [file]).select]
            }

    def rows(self, sql: str, doing: str = "") -> list[tuple[Any, ...]]:
        """Run a query whose answer is small."""
        with explained(self.schema), self.watched(doing):
            return self._connection.execute(sql).fetchall()

    def table(self, sql: str, doing: str = "", *, few_groups: bool = False) -> Answer:
        """Run a query and return its answer."""
        with explained(self.schema), self.watched(doing), self._by_place(few_groups):
            answer = self._connection.execute(sql)
            # NumPy only now: a command imports it while the engine counts.
            from posbias.engines.answers import plain

            return {name: plain(column) for name, column in answer.fetchnumpy().items()}

    @contextmanager
    def _by_place(self, few_groups: bool) -> Iterator[None]:
        """Count in a table with a place for every group there can be, where that is small: faster than hashing."""
        if not few_groups:
            yield
            return
        [(threads,)] = self._connection.execute("SELECT current_setting('threads')").fetchall()
        large = threads <= 4 and sum(map(os.path.getsize, self._files)) >= _LARGE
        self._connection.execute(f"SET perfect_ht_threshold = {22 if large else 18}")
        try:
            yield
        finally:
            self._connection.execute("RESET perfect_ht_threshold")

    @contextmanager
    def distrusting(self) -> Iterator[None]:
        """Believe only what is read of columns, and not what files say of them, which may leave NaN out."""
        distrust(self._connection)
        try:
            yield
        finally:
            if not self._odd:
                trust(self._connection)

    def arrow(self, sql: str, doing: str = "") -> Any:
        """Run a query and return its answer as an Arrow table."""
        with explained(self.schema), self.watched(doing):
            return self._connection.sql(sql).to_arrow_table()

    def write(self, sql: str, path: str, doing: str = "") -> None:
        """Write the answer to a query as a Parquet file, as it is made."""
        # The draft is ours: DuckDB needs none beside it, and may not write one.
        options = "FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false"
        with explained(self.schema), self.watched(doing):
            self._connection.execute(f"COPY (\n{sql}\n) TO {self.dialect.text(path)} ({options})")

    def keep(self, more: Sequence[str] = ()) -> None:
        """Keep text as a table, of which what does not fit into memory goes to disk."""
        if self.is_text and not self._kept:
            used = dict.fromkeys([*_used(self.schema), *more])
            columns = ", ".join(map(self.dialect.quote, used))
            with explained(), self.watched("Reading"):
                self._connection.execute(f"CREATE TEMP TABLE kept AS SELECT {columns} FROM log")
                self._connection.execute("ALTER VIEW log RENAME TO whole_log")
                self._connection.execute("CREATE TEMP VIEW log AS SELECT * FROM kept")
            self.whole = "whole_log"
            self._kept = True

    @property
    def is_text(self) -> bool:
        """Whether the log is text, of which every look has to read all columns anew."""
        return bool(self._files) and file_format(self._files[0]) in ("csv", "json")

    @property
    def _told(self) -> bool:
        """Whether files tell how many rows they have, and between what their values lie."""
        # A view or a query would have to be answered for that.
        return 0 < len(self._files) <= _MANY_FILES and file_format(self._files[0]) == "parquet" and not self._queried

    @property
    def tells_bounds(self) -> bool:
        """Whether files tell the least and the greatest value of a column, and are believed."""
        return self._told and not self._odd

    def least(self, columns: Sequence[str]) -> int | None:
        """Return the least whole number in some columns where a file tells it, and is believed."""
        # Of several files DuckDB would read the columns.
        if not self.tells_bounds or len(self._files) > 1:
            return None
        lows = ", ".join(f"MIN({self.dialect.quote(column)})" for column in columns)
        with explained():
            [found] = self._connection.execute(f"SELECT {lows} FROM log").fetchall()
        return min((int(low) for low in found if low is not None), default=None)

    @contextmanager
    def some_rows(self, columns: Sequence[str]) -> Iterator[tuple[str, float] | None]:
        """Yield the name of a part of the rows, spread over all row groups, and how large a part it is."""
        from posbias.engines.duckdb.row_groups import some_row_groups

        found = some_row_groups(self._files, columns) if columns and self._told else None
        if found is None:
            yield None
            return
        self._connection.register("some_rows", found.reader())
        try:
            types = dict(row[:2] for row in self._connection.execute("DESCRIBE some_rows").fetchall())
            # What Arrow takes for something else would be told apart otherwise than in the log.
            alike = all(types[column] == self.schema.types[column] for column in columns)
            yield ("some_rows", found.share) if alike else None
        finally:
            self._connection.unregister("some_rows")

    def known_rows(self) -> int | None:
        """Return the rows of the log where its files tell them without being read, or they are kept."""
        if not (self._told or self._kept):
            return None
        with explained():
            [(rows,)] = self._connection.execute("SELECT COUNT(*) FROM log").fetchall()
        return int(rows)

    def done(self) -> float:
        """Return the share of the running query that is done."""
        return max(self._connection.query_progress(), 0.0) / 100


def _used(schema: Schema) -> list[str]:
    """Return the columns of a log that mean something."""
    return [*schema.roles.values(), *schema.rank_columns.values()]


@contextmanager
def open_log(
    log: ClickLog,
    *,
    memory_limit: str | None = None,
    threads: int | None = None,
    progress: Progress = silent,
    beside: Mapping[str, Any] | None = None,
    outputs: Sequence[str] = (),
) -> Iterator[OpenLog]:
    """Open a log in an embedded DuckDB for as long as the block lasts, and tables beside it by the names they get."""
    with (
        scratch_folder() as spill,
        connected(spill, memory_limit, threads, counting=progress is not silent) as con,
    ):
        findings: Sequence[Finding] = ()
        if isinstance(log.source, Events):
            opened, second, more, findings = open_events(con, log, log.source, progress, beside or {}, outputs)
        else:
            opened, second, more = open_tables(con, log, beside or {}, outputs)
        schema = resolve(log, opened.columns, second.columns if second else None)
        if schema.natural:
            name_no_ranker(con)
        engine = DuckDBLog(con, schema, opened.files, progress, findings, queried=log.sql is not None)
        engine.beside = {name: table.columns for name, table in more.items()}
        if schema.layout.ranks_in == "table":
            engine.refuse_empty_rankings()
        yield engine
