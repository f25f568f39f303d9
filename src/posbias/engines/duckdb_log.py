"""A log opened by DuckDB."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import duckdb

from posbias._files import scratch_folder
from posbias.engines.base import OpenLog
from posbias.engines.duckdb_sources import (
    Opened,
    attach,
    choose_table,
    connected,
    define,
    distrust,
    escape_glob,
    explained,
    find_extra_tables,
    find_second,
    name_no_ranker,
    open_extra_tables,
    open_tables,
    publish,
    query_tables,
    select_files,
    shut,
    trust,
)
from posbias.engines.events import LOG_COUNTS, Joined, WrittenLog, join_events
from posbias.engines.files import file_format, find_files, is_path, one_format, refuse_unreadable
from posbias.errors import LogError
from posbias.findings import Finding
from posbias.logs.click_log import ClickLog, Events
from posbias.logs.schema import Schema, resolve_log
from posbias.progress import Progress, silent
from posbias.sql.dialects import FLOATS, DuckDBDialect

if TYPE_CHECKING:
    from posbias.engines.base import Answer

# Difference sets (Singer): of each of them every distance modulo its period is that of just one pair. A batch of row
# groups that stands in the log twice, however far away, meets itself among those taken if it has as many as the period.
_TAKEN = {57: (0, 1, 3, 13, 32, 36, 43, 52), 21: (0, 1, 4, 14, 16)}
# So often the period fits into a log before so few of its row groups are taken for all.
_PERIODS = 2
_BATCH = 2**17
# From this many bytes of files on a table of 2^22 groups is worth its making: it takes 64 MB in every thread, and one
# thread alone adds them up.
_LARGE = 2**25
# The rows of more files are not asked for: each has to be opened.
_MANY_FILES = 100


@contextmanager
def open_log(
    log: ClickLog,
    *,
    memory_limit: str | None = None,
    threads: int | None = None,
    progress: Progress = silent,
    extra_tables: Mapping[str, Any] | None = None,
    outputs: Sequence[str] = (),
) -> Iterator[OpenLog]:
    """Open a log in an embedded DuckDB for as long as the block lasts, and tables beside it by the names they get."""
    with (
        scratch_folder() as spill,
        connected(spill, memory_limit, threads, counting=progress is not silent) as con,
    ):
        findings: Sequence[Finding] = ()
        if isinstance(log.source, Events):
            opened, second, more, findings = open_events(con, log, log.source, progress, extra_tables or {}, outputs)
        else:
            opened, second, more = open_tables(con, log, extra_tables or {}, outputs)
        schema = resolve_log(log, opened.columns, second.columns if second else None)
        if schema.natural:
            name_no_ranker(con)
        engine = DuckDBLog(con, schema, opened.files, progress, findings, queried=log.sql is not None)
        engine.extra_tables = {name: table.columns for name, table in more.items()}
        if schema.layout.ranks_in == "table":
            engine.refuse_empty_rankings()
        yield engine


def open_events(
    con: duckdb.DuckDBPyConnection,
    log: ClickLog,
    events: Events,
    progress: Progress,
    extra_tables: Mapping[str, Any],
    outputs: Sequence[str] = (),
) -> tuple[Opened, Opened | None, dict[str, Opened], Sequence[Finding]]:
    """Make the log of two tables selectable as `log`, the second table of a long one as `rankings`, others `beside`."""
    with explained():
        joined, rankings, more = _join(con, events, log.rankings, outputs, progress, extra_tables)
        progress("Joining", 0.0)
        # A log is looked at more than once: what does not fit into memory goes to disk.
        con.execute(f"CREATE TEMP TABLE joined AS {joined.query}")
        return publish(con, "log", "SELECT * FROM joined", []), rankings, more, joined.findings


def _join(
    con: duckdb.DuckDBPyConnection,
    events: Events,
    rankings: Any,
    outputs: Sequence[str],
    progress: Progress,
    extra_tables: Mapping[str, Any],
) -> tuple[Joined, Opened | None, dict[str, Opened]]:
    """Open both tables and look at them.

    As with any log, all that is to be read, and where it is to be written, is settled before anything is looked at.
    """
    files = find_files(events.impressions) if is_path(events.impressions) else []
    database = bool(files) and one_format(files) == "duckdb"
    refuse_unreadable(files)
    tables = attach(con, files) if database else {}
    tapped = find_second("clicks", events.clicks, tables)
    ranked = [] if rankings is None else find_second("rankings", rankings, tables)
    refuse_unreadable([*tapped, *ranked])
    others = find_extra_tables(extra_tables, tables)
    trusting = events.sql is not None or events.clicks_sql is not None
    seen = [*([] if database else files), *tapped, *ranked, *chain(*others.values()), *outputs]
    shut(con, seen, trusting=trusting)
    progress("Reading", 0.0)
    if database:
        shown = _from_database(con, files[0], tables, events)
    elif events.table is not None:
        raise LogError("table goes with a DuckDB file, and the impressions are none. Leave it out, or use sql.")
    else:
        source = define(con, "source", events.impressions, files)
        shown = publish(con, "impressions", events.sql or "SELECT * FROM source", files, source)
        _keep(con, "impressions", files)
    clicks = _open_second(con, "clicks", events.clicks, tapped, tables, events.clicks_sql)
    second = None if rankings is None else _open_second(con, "rankings", rankings, ranked, tables, None)

    if any(_may_be_nan(events, table.columns.types) for table in (shown, clicks)):
        distrust(con)

    def rows(sql: str, doing: str) -> list[tuple[Any, ...]]:
        progress(doing, 0.0)
        return con.execute(sql).fetchall()

    more = open_extra_tables(con, extra_tables, others, tables)
    return join_events(events, DuckDBDialect(), shown.columns, clicks.columns, rows), second, more


def _from_database(con: duckdb.DuckDBPyConnection, file: str, tables: dict[str, str], events: Events) -> Opened:
    table = choose_table(file, tables, events)
    if events.sql is None:
        return publish(con, "impressions", f"SELECT * FROM {tables[table or '']}", [file])
    if table is not None and "source" not in tables:
        con.execute(f"CREATE TEMP VIEW source AS SELECT * FROM {tables[table]}")
    return publish(con, "impressions", query_tables(con, tables, events.sql), [file])


def _keep(con: duckdb.DuckDBPyConnection, name: str, files: Sequence[str]) -> None:
    """Keep text as a table: it is looked at more than once, and each look would read it anew."""
    if files and file_format(files[0]) in ("csv", "json"):
        con.execute(f"CREATE TEMP TABLE {name}_kept AS SELECT * FROM {name}")
        con.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT * FROM {name}_kept")


def _open_second(
    con: duckdb.DuckDBPyConnection, name: str, source: Any, files: list[str], tables: dict[str, str], sql: str | None
) -> Opened:
    """Open a table that stands beside the first: a source of its own, or a table of the same DuckDB file."""
    if isinstance(source, str) and source in tables:
        con.execute(f"CREATE TEMP VIEW {name}_source AS SELECT * FROM {tables[source]}")
        found = None
    else:
        found = define(con, f"{name}_source", source, files)
    body = f"SELECT * FROM {name}_source"
    if sql is not None:
        body = f"WITH source AS ({body})\nSELECT * FROM (\n{sql.strip().rstrip(';')}\n) chosen"
    opened = publish(con, name, body, files, found)
    _keep(con, name, files)
    return opened


def _may_be_nan(events: Events, types: Mapping[str, str]) -> bool:
    """Return whether what is joined or counted by may be NaN: fractions, that is, in any column that has a meaning."""
    roles = ("impression", "query", "doc", "position", "ranker", "application", "click_impression", "click_doc")
    named = {getattr(events, role) or role for role in roles}
    # Presets know by themselves what columns mean.
    return any(type_ in FLOATS and (events.preset or name in named) for name, type_ in types.items())


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
        self._odd = any(schema.types.get(name) in FLOATS for name in _used(schema)) or bool(
            FLOATS & {*schema.rankings.values()}
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
        with explained(self.schema), self.reporting_progress(doing):
            return self._connection.execute(sql).fetchall()

    def table(self, sql: str, doing: str = "", *, few_groups: bool = False) -> Answer:
        """Run a query and return its answer."""
        with explained(self.schema), self.reporting_progress(doing), self._by_place(few_groups):
            answer = self._connection.execute(sql)
            # NumPy only now: a command imports it while the engine counts.
            from posbias.engines.base import plain

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
    def ignoring_file_statistics(self) -> Iterator[None]:
        """Believe only what is read of columns, and not what files say of them, which may leave NaN out."""
        distrust(self._connection)
        try:
            yield
        finally:
            if not self._odd:
                trust(self._connection)

    def arrow(self, sql: str, doing: str = "") -> Any:
        """Run a query and return its answer as an Arrow table."""
        with explained(self.schema), self.reporting_progress(doing):
            return self._connection.sql(sql).to_arrow_table()

    def write(self, sql: str, path: str, doing: str = "") -> None:
        """Write the answer to a query as a Parquet file, as it is made."""
        # The draft is ours: DuckDB needs none beside it, and may not write one.
        options = "FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false"
        with explained(self.schema), self.reporting_progress(doing):
            self._connection.execute(f"COPY (\n{sql}\n) TO {self.dialect.literal(path)} ({options})")

    def cache_text(self, more: Sequence[str] = ()) -> None:
        """Keep text as a table, of which what does not fit into memory goes to disk."""
        if self.is_text and not self._kept:
            used = dict.fromkeys([*_used(self.schema), *more])
            columns = ", ".join(map(self.dialect.quote, used))
            with explained(), self.reporting_progress("Reading"):
                self._connection.execute(f"CREATE TEMP TABLE kept AS SELECT {columns} FROM log")
                self._connection.execute("ALTER VIEW log RENAME TO whole_log")
                self._connection.execute("CREATE TEMP VIEW log AS SELECT * FROM kept")
            self.full_view = "whole_log"
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
    def knows_bounds(self) -> bool:
        """Whether files tell the least and the greatest value of a column, and are believed."""
        return self._told and not self._odd

    def known_minimum(self, columns: Sequence[str]) -> int | None:
        """Return the least whole number in some columns where a file tells it, and is believed."""
        # Of several files DuckDB would read the columns.
        if not self.knows_bounds or len(self._files) > 1:
            return None
        lows = ", ".join(f"MIN({self.dialect.quote(column)})" for column in columns)
        with explained():
            [found] = self._connection.execute(f"SELECT {lows} FROM log").fetchall()
        return min((int(low) for low in found if low is not None), default=None)

    @contextmanager
    def sample_rows(self, columns: Sequence[str]) -> Iterator[tuple[str, float] | None]:
        """Yield the name of a part of the rows, spread over all row groups, and how large a part it is."""
        pass

        found = sample_row_groups(self._files, columns) if columns and self._told else None
        if found is None:
            yield None
            return
        self._connection.register("sample_rows", found.reader())
        try:
            types = dict(row[:2] for row in self._connection.execute("DESCRIBE sample_rows").fetchall())
            # What Arrow takes for something else would be told apart otherwise than in the log.
            alike = all(types[column] == self.schema.types[column] for column in columns)
            yield ("sample_rows", found.share) if alike else None
        finally:
            self._connection.unregister("sample_rows")

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


def sample_row_groups(names: Sequence[str], columns: Sequence[str]) -> RowGroups | None:
    """Return some row groups, spread over all files; None where there are few, or files differ in the columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        files = [pq.ParquetFile(name) for name in names]
    except (pa.ArrowException, OSError):
        # What is wrong with a file is told by the engine, which reads all of it.
        return None
    sizes = [file.metadata.num_row_groups for file in files]
    period = next((period for period in _TAKEN if sum(sizes) >= _PERIODS * period), None)
    schemas = [file.schema_arrow for file in files]
    if period is None or any(schema.names.count(column) != 1 for schema in schemas for column in columns):
        return None
    fields = [[schema.field(column).remove_metadata() for column in columns] for schema in schemas]
    if any(own != fields[0] for own in fields):
        return None
    taken, first, rows = [], 0, 0
    for file, size in zip(files, sizes, strict=True):
        groups = [group for group in range(size) if (first + group) % period in _TAKEN[period]]
        rows += sum(file.metadata.row_group(group).num_rows for group in groups)
        taken.append((file, groups))
        first += size
    total = sum(file.metadata.num_rows for file in files)
    return RowGroups(taken, columns, pa.schema(fields[0]), rows / total) if rows else None


@dataclass(frozen=True)
class RowGroups:
    """Row groups of some files, and how large a share of all rows they hold."""

    files: Sequence[tuple[Any, list[int]]]
    columns: Sequence[str]
    schema: Any
    share: float

    def reader(self) -> Any:
        """Return their columns as they are read, a piece at a time."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Iterator[Any]:
        for file, groups in self.files:
            yield from file.iter_batches(_BATCH, row_groups=groups, columns=list(self.columns))


def write_events(
    events: Events, path: str, *, memory_limit: str | None, threads: int | None, progress: Progress
) -> WrittenLog:
    """Write the log of two tables as one Parquet file, streamed as it is joined."""
    d = DuckDBDialect()
    with scratch_folder() as spill, connected(spill, memory_limit, threads) as con, explained():
        joined, *_ = _join(con, events, None, (path,), progress, {})
        progress("Writing", 0.0)
        # The draft is ours: DuckDB needs none beside it, and may not write one.
        options = "FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false"
        con.execute(f"COPY ({joined.query}) TO {d.literal(path)} ({options})")
        written = f"FROM read_parquet({d.literal(escape_glob(path))})"
        columns = [row[0] for row in con.execute(f"DESCRIBE SELECT * {written}").fetchall()]
        [(rows, views, clicks)] = con.execute(f"SELECT {LOG_COUNTS} {written}").fetchall()
    return WrittenLog(rows, views, int(clicks or 0), tuple(columns), joined.findings)
