"""The default engine: DuckDB in this process, a log that is open in it, and logs that it joins from events.

DuckDB spills to disk under a memory limit. `duckdb_sources` reads files, tables and data in memory.

Some checks read a sample of the rows. DuckDB cannot sample a Parquet file without reading all of it, so
`sample_row_groups` picks row groups instead, by a difference set: for every distance modulo its period it contains
exactly one pair. A batch of rows that was written twice therefore meets its copy in the sample, however far apart they
are.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from posbias._validate import integer
from posbias.engines.base import OpenLog, as_64_bit, row_count
from posbias.engines.duckdb_sources import (
    OpenedTable,
    add_ranker_column,
    attach_database,
    choose_table,
    connect,
    create_source_view,
    create_view,
    escape_glob,
    expose_tables,
    find_extra_table_files,
    find_table_files,
    ignore_file_statistics,
    keep_part,
    lock_down,
    open_extra_tables,
    open_log_tables,
    read_files,
    translate_errors,
    use_file_statistics,
)
from posbias.engines.events import LOG_COUNTS, Joined, WrittenLog, join_events
from posbias.engines.files import common_format, file_format, find_copies, find_files, is_path, refuse_unreadable
from posbias.errors import LogError, PosbiasError
from posbias.findings import Finding
from posbias.logs.click_log import ClickLog, Events
from posbias.logs.schema import Schema, resolve_log, split_column
from posbias.progress import Progress, silent, step
from posbias.sql.dialects import FLOATS, DuckDBDialect

if TYPE_CHECKING:
    import duckdb

    from posbias.engines.base import Answer

_MAX_THREADS = 1024


@dataclass(frozen=True)
class DuckDB:
    """DuckDB in this process, the default engine.

    Arguments:
        memory_limit (str, optional): the memory that DuckDB may use, such as "2GB"; what does not fit goes to disk. By
            default 80% of the memory of the machine.
        threads (int, optional): the number of threads, by default one for each core.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=200)))
        >>> posbias.harvest(log, engine=DuckDB(memory_limit="2GB", threads=2))
        <Harvest of 2,000 page views (a: 1,008, b: 992), wide, ranks 1 to 10>
    """

    memory_limit: str | None = None
    threads: int | None = None

    name: ClassVar = "duckdb"

    def __post_init__(self) -> None:
        if self.memory_limit is not None and not isinstance(self.memory_limit, str):
            raise PosbiasError(f"memory_limit must be a size such as '2GB', not {self.memory_limit!r}.")
        if self.threads is not None:
            object.__setattr__(self, "threads", integer("threads", self.threads, 1, _MAX_THREADS))

    def open(
        self,
        log: ClickLog,
        progress: Progress,
        extra_tables: Mapping[str, Any] | None = None,
        outputs: Sequence[str] = (),
    ) -> AbstractContextManager[OpenLog]:
        """Open a log, and extra tables by name, for a `with` block; queries may write to the files `outputs`."""
        if any(type(source).__module__.startswith("pyspark.") for source in log.sources):
            raise PosbiasError("DuckDB cannot read a Spark DataFrame. Leave out engine='duckdb'.")
        if any(type(source).__module__.startswith("pyspark.") for source in (extra_tables or {}).values()):
            raise PosbiasError(
                "DuckDB cannot read a Spark DataFrame. Write it to files, or give it as an Arrow or pandas table."
            )
        limits = {"memory_limit": self.memory_limit, "threads": self.threads}
        return open_duckdb_log(log, **limits, progress=progress, extra_tables=extra_tables or {}, outputs=outputs)  # type: ignore[arg-type]

    def write(self, events: Events, path: str, progress: Progress) -> WrittenLog:
        """Join events into a log, and write it as a Parquet file."""
        return write_events(events, path, memory_limit=self.memory_limit, threads=self.threads, progress=progress)


# Period -> Singer difference set.
_DIFFERENCE_SETS = {57: (0, 1, 3, 13, 32, 36, 43, 52), 21: (0, 1, 4, 14, 16)}
# A log is sampled only if its row groups fill the period this many times.
_MIN_PERIODS = 2
_BATCH_ROWS = 2**17
# From this many bytes on, an array of 2^22 groups pays off: each thread fills its own 64 MB, and a single thread adds
# them up.
_LARGE_BYTES = 2**25
# posbias writes to a draft itself, so DuckDB needs no temporary file; it may not write one either.
_PARQUET_OPTIONS = "FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false"
# Row counts are read from at most this many files, because each has to be opened.
_MAX_FILES_TO_COUNT = 100


@contextmanager
def open_duckdb_log(
    log: ClickLog,
    *,
    memory_limit: str | None = None,
    threads: int | None = None,
    progress: Progress = silent,
    extra_tables: Mapping[str, Any] | None = None,
    outputs: Sequence[str] = (),
) -> Iterator[OpenLog]:
    """Open a log in DuckDB, and extra tables by name, for a `with` block."""
    with connect(memory_limit, threads, with_progress=progress is not silent) as con:
        findings: Sequence[Finding] = ()
        if isinstance(log.source, Events):
            opened, rankings, extra, findings = open_events(con, log, log.source, progress, extra_tables or {}, outputs)
        else:
            opened, rankings, extra = open_log_tables(con, log, extra_tables or {}, outputs)
        schema = resolve_log(log, opened.columns, rankings.columns if rankings else None, DuckDBLog.dialect.quote)
        if log.part is not None:
            with translate_errors(schema):
                keep_part(con, log.part, split_column(log, schema, opened.columns))
        if schema.natural:
            add_ranker_column(con)
        has_query = log.sql is not None or log.part is not None
        duckdb_log = DuckDBLog(con, schema, opened.files, progress, findings, has_query=has_query)
        duckdb_log.extra_tables = {name: table.columns for name, table in extra.items()}
        if schema.layout.ranks_in == "table":
            duckdb_log.refuse_empty_rankings()
        yield duckdb_log


@contextmanager
def open_sampled_rows(rows: Any, schema: Schema, progress: Progress = silent) -> Iterator[OpenLog]:
    """Open an Arrow table of rows that another engine sampled from a log with this schema, for a `with` block."""
    with connect(with_progress=progress is not silent) as con:
        con.register("log", rows)
        lock_down(con, [], trusted=False)
        log = DuckDBLog(con, schema, (), progress)
        log.is_sample = True
        yield log


class DuckDBLog(OpenLog):
    """A log that is open in a DuckDB connection."""

    dialect = DuckDBDialect()

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        schema: Schema,
        files: Sequence[str],
        progress: Progress,
        findings: Sequence[Finding] = (),
        *,
        has_query: bool = False,
    ) -> None:
        super().__init__(schema, progress, findings)
        self._connection = connection
        self._files = files
        self._is_cached = False
        self._has_query = has_query
        self.files = () if has_query else files
        # Fractions in ids, positions or counts may be NaN.
        self._may_be_nan = any(schema.types.get(name) in FLOATS for name in _used_columns(schema)) or bool(
            FLOATS & {*schema.rankings.values()}
        )
        if self._may_be_nan:
            ignore_file_statistics(connection)

    def file_columns(self) -> dict[str, dict[str, str]]:
        """Return the columns and types of each file, if the log has several files."""
        if len(self._files) < 2:
            return {}
        with translate_errors():
            return {
                file: dict(row[:2] for row in self._connection.execute(f"DESCRIBE {text}").fetchall())
                for file in self._files
                for text in [read_files(self._connection, [file]).select]
            }

    def rows(self, sql: str, step: str = "") -> list[tuple[Any, ...]]:
        """Run a query and return its few rows."""
        with translate_errors(self.schema), self.reporting_progress(step, sql) as measured:
            rows = self._connection.execute(sql).fetchall()
            measured.add_rows(rows_out=len(rows))
            return rows

    def table(self, sql: str, step: str = "", *, few_groups: bool = False) -> Answer:
        """Run a query and return its columns."""
        with (
            translate_errors(self.schema),
            self.reporting_progress(step, sql) as measured,
            self._array_of_groups(few_groups),
        ):
            result = self._connection.execute(sql)
            answer = {name: as_64_bit(column) for name, column in result.fetchnumpy().items()}
            measured.add_rows(rows_out=row_count(answer))
            return answer

    def copied_files(self) -> list[tuple[str, str]]:
        """Return files with the same rows as another file of the log, in any order."""
        columns = [*self.schema.roles.values(), *self.schema.rank_columns.values()]
        return find_copies(self._files, columns, self._hash_rows)

    def _hash_rows(self, name: str, columns: list[str]) -> int:
        """Return a hash of the rows of a Parquet file, for any order of rows."""
        quoted = ", ".join(map(self.dialect.quote, columns)) or "0"
        sql = f"SELECT SUM(HASH({quoted})) FROM read_parquet(?, hive_partitioning = false)"
        [(total,)] = self._connection.execute(sql, [name]).fetchall()
        return int(total or 0)

    @contextmanager
    def _array_of_groups(self, few_groups: bool) -> Iterator[None]:
        """Let DuckDB aggregate few groups in an array with a place for each: faster than hashing."""
        if not few_groups:
            yield
            return
        [(threads,)] = self._connection.execute("SELECT current_setting('threads')").fetchall()
        large = threads <= 4 and sum(map(os.path.getsize, self._files)) >= _LARGE_BYTES
        self._connection.execute(f"SET perfect_ht_threshold = {22 if large else 18}")
        try:
            yield
        finally:
            self._connection.execute("RESET perfect_ht_threshold")

    @contextmanager
    def ignoring_file_statistics(self) -> Iterator[None]:
        """Ignore the minimum and maximum that files store for each column: they may leave out NaN."""
        ignore_file_statistics(self._connection)
        try:
            yield
        finally:
            if not self._may_be_nan:
                use_file_statistics(self._connection)

    def arrow(self, sql: str, step: str = "") -> Any:
        """Run a query and return its result as an Arrow table."""
        with translate_errors(self.schema), self.reporting_progress(step, sql) as measured:
            table = self._connection.sql(sql).to_arrow_table()
            measured.add_rows(rows_out=table.num_rows)
            return table

    def write(self, sql: str, path: str, step: str = "", metadata: Mapping[str, str] | None = None) -> None:
        """Stream the result of a query into a Parquet file with metadata."""
        d = self.dialect
        pairs = ", ".join(f"{d.quote(name)}: {d.literal(value)}" for name, value in (metadata or {}).items())
        options = _PARQUET_OPTIONS + (f", KV_METADATA {{{pairs}}}" if pairs else "")
        with translate_errors(self.schema), self.reporting_progress(step, sql) as measured:
            copy = f"COPY (\n{sql}\n) TO {d.literal(path)} ({options})"
            [(rows,)] = self._connection.execute(copy).fetchall()
            measured.add_rows(rows_out=rows)

    def keep(self, name: str, sql: str, step: str = "") -> None:
        """Keep the result of a query as a table; what does not fit into memory goes to disk."""
        with translate_errors(self.schema), self.reporting_progress(step, sql) as measured:
            [(rows,)] = self._connection.execute(f"CREATE TEMP TABLE {name} AS\n{sql}").fetchall()
            measured.add_rows(rows_out=rows)

    def cache_text(self, extra_columns: Sequence[str] = ()) -> None:
        """Copy a log of CSV or JSON files into a table; what does not fit into memory goes to disk."""
        if self.is_text and not self._is_cached:
            used = dict.fromkeys([*_used_columns(self.schema), *extra_columns])
            columns = ", ".join(map(self.dialect.quote, used))
            with translate_errors(), self.reporting_progress("Reading"):
                self._connection.execute(f"CREATE TEMP TABLE cached AS SELECT {columns} FROM log")
                self._connection.execute("ALTER VIEW log RENAME TO full_log")
                self._connection.execute("CREATE TEMP VIEW log AS SELECT * FROM cached")
            self.full_view = "full_log"
            self._is_cached = True

    @property
    def is_text(self) -> bool:
        """Whether the log is CSV or JSON, so that each query parses all of it again."""
        return bool(self._files) and file_format(self._files[0]) in ("csv", "json")

    @property
    def _has_file_statistics(self) -> bool:
        """Whether the files store their row counts, and the minimum and maximum of columns."""
        # The statistics of files say nothing about the result of a query.
        return (
            0 < len(self._files) <= _MAX_FILES_TO_COUNT
            and file_format(self._files[0]) == "parquet"
            and not self._has_query
        )

    @property
    def knows_bounds(self) -> bool:
        """Whether the minimum and maximum of a column are known without reading it."""
        return self._has_file_statistics and not self._may_be_nan

    def known_minimum(self, columns: Sequence[str]) -> int | None:
        """Return the minimum of some columns of whole numbers if a file stores it, else None."""
        # For several files DuckDB would read the columns.
        if not self.knows_bounds or len(self._files) > 1:
            return None
        lows = ", ".join(f"MIN({self.dialect.quote(column)})" for column in columns)
        with translate_errors():
            [minima] = self._connection.execute(f"SELECT {lows} FROM log").fetchall()
        return min((int(low) for low in minima if low is not None), default=None)

    @contextmanager
    def sample_rows(self, columns: Sequence[str]) -> Iterator[tuple[str, float] | None]:
        """Yield a view of some row groups, spread over all files, and the share of the rows in it."""
        sample = sample_row_groups(self._files, columns) if columns and self._has_file_statistics else None
        if sample is None:
            yield None
            return
        self._connection.register("sample_rows", sample.reader())
        try:
            types = dict(row[:2] for row in self._connection.execute("DESCRIBE sample_rows").fetchall())
            # Arrow may read a type differently, so that other values would count as equal.
            same_types = all(types[column] == self.schema.types[column] for column in columns)
            yield ("sample_rows", sample.share) if same_types else None
        finally:
            self._connection.unregister("sample_rows")

    def known_rows(self) -> int | None:
        """Return the number of rows if the files store it or the log is cached, else None."""
        if not (self._has_file_statistics or self._is_cached):
            return None
        with translate_errors():
            [(rows,)] = self._connection.execute("SELECT COUNT(*) FROM log").fetchall()
        return int(rows)

    def share_done(self) -> float:
        """Return the share of the running query that is done."""
        return max(self._connection.query_progress(), 0.0) / 100


def _used_columns(schema: Schema) -> list[str]:
    """Return the columns of a log that have a role."""
    return [*schema.roles.values(), *schema.rank_columns.values()]


# ---- Samples of row groups


def sample_row_groups(names: Sequence[str], columns: Sequence[str]) -> RowGroupSample | None:
    """Return a sample of the row groups of Parquet files; None if there are few, or if the files' columns differ."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        files = [pq.ParquetFile(name) for name in names]
    except (pa.ArrowException, OSError):
        # DuckDB reports a damaged file when it reads the log.
        return None
    sizes = [file.metadata.num_row_groups for file in files]
    period = next((period for period in _DIFFERENCE_SETS if sum(sizes) >= _MIN_PERIODS * period), None)
    schemas = [file.schema_arrow for file in files]
    if period is None or any(schema.names.count(column) != 1 for schema in schemas for column in columns):
        return None
    fields = [[schema.field(column).remove_metadata() for column in columns] for schema in schemas]
    if any(file_fields != fields[0] for file_fields in fields):
        return None
    sampled, first, rows = [], 0, 0
    for file, size in zip(files, sizes, strict=True):
        groups = [group for group in range(size) if (first + group) % period in _DIFFERENCE_SETS[period]]
        rows += sum(file.metadata.row_group(group).num_rows for group in groups)
        sampled.append((file, groups))
        first += size
    total = sum(file.metadata.num_rows for file in files)
    return RowGroupSample(sampled, columns, pa.schema(fields[0]), rows / total) if rows else None


@dataclass(frozen=True)
class RowGroupSample:
    """Some row groups of each file, and the share of all rows that they hold."""

    files: Sequence[tuple[Any, list[int]]]
    columns: Sequence[str]
    schema: Any
    share: float

    def reader(self) -> Any:
        """Return a reader that streams the columns."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Iterator[Any]:
        for file, groups in self.files:
            yield from file.iter_batches(_BATCH_ROWS, row_groups=groups, columns=list(self.columns))


# ---- Events


def open_events(
    con: duckdb.DuckDBPyConnection,
    log: ClickLog,
    events: Events,
    progress: Progress,
    extra_tables: Mapping[str, Any],
    outputs: Sequence[str] = (),
) -> tuple[OpenedTable, OpenedTable | None, dict[str, OpenedTable], Sequence[Finding]]:
    """Join events into a log that is readable as `log`, with its table of rankings and extra tables."""
    with translate_errors():
        joined, rankings_table, extra = _join(con, events, log.rankings, outputs, progress, extra_tables)
        progress("Joining", 0.0)
        # A table, because a log is read more than once. What does not fit into memory goes to disk.
        with step("Joining") as measured:
            [(rows,)] = con.execute(f"CREATE TEMP TABLE joined AS {joined.query}").fetchall()
            measured.add_rows(rows_out=rows)
        return create_view(con, "log", "SELECT * FROM joined", []), rankings_table, extra, joined.findings


def write_events(
    events: Events, path: str, *, memory_limit: str | None, threads: int | None, progress: Progress
) -> WrittenLog:
    """Join events into a log, and stream it into one Parquet file."""
    dialect = DuckDBDialect()
    with connect(memory_limit, threads) as con, translate_errors():
        joined, *_ = _join(con, events, None, (path,), progress, {})
        progress("Writing", 0.0)
        with step("Joining and writing") as measured:
            copy = f"COPY ({joined.query}) TO {dialect.literal(path)} ({_PARQUET_OPTIONS})"
            [(written_rows,)] = con.execute(copy).fetchall()
            measured.add_rows(rows_out=written_rows)
        written = f"FROM read_parquet({dialect.literal(escape_glob(path))})"
        columns = [row[0] for row in con.execute(f"DESCRIBE SELECT * {written}").fetchall()]
        [(rows, page_views, clicks)] = con.execute(f"SELECT {LOG_COUNTS} {written}").fetchall()
    return WrittenLog(rows, page_views, int(clicks or 0), tuple(columns), joined.findings)


def _join(
    con: duckdb.DuckDBPyConnection,
    events: Events,
    rankings: Any,
    outputs: Sequence[str],
    progress: Progress,
    extra_tables: Mapping[str, Any],
) -> tuple[Joined, OpenedTable | None, dict[str, OpenedTable]]:
    """Open the tables of events, check them and return the query that joins them.

    As in `open_log_tables`, the connection is locked down before anything is read.
    """
    files = find_files(events.impressions) if is_path(events.impressions) else []
    is_database = bool(files) and common_format(files) == "duckdb"
    refuse_unreadable(files)
    tables = attach_database(con, files) if is_database else {}
    clicks_files = find_table_files("clicks", events.clicks, tables)
    rankings_files = [] if rankings is None else find_table_files("rankings", rankings, tables)
    refuse_unreadable([*clicks_files, *rankings_files])
    extra_files = find_extra_table_files(extra_tables, tables)
    trusted = events.sql is not None or events.clicks_sql is not None
    allowed = [*([] if is_database else files), *clicks_files, *rankings_files, *chain(*extra_files.values()), *outputs]
    lock_down(con, allowed, trusted=trusted)
    progress("Reading", 0.0)
    if is_database:
        impressions = _open_impressions_table(con, files[0], tables, events)
    elif events.table is not None:
        raise LogError("table is for a DuckDB file, and the impressions are not one. Leave out table, or use sql.")
    else:
        source = create_source_view(con, "source", events.impressions, files)
        impressions = create_view(con, "impressions", events.sql or "SELECT * FROM source", files, source)
        _cache_text(con, "impressions", files)
    clicks = _open_event_table(con, "clicks", events.clicks, clicks_files, tables, events.clicks_sql)
    rankings_table = (
        None if rankings is None else _open_event_table(con, "rankings", rankings, rankings_files, tables, None)
    )

    if any(_may_be_nan(events, table.columns.types) for table in (impressions, clicks)):
        ignore_file_statistics(con)

    def rows(sql: str, name: str) -> list[tuple[Any, ...]]:
        progress(name, 0.0)
        with step(name) as measured:
            found = con.execute(sql).fetchall()
            measured.add_rows(rows_out=len(found))
            return found

    extra = open_extra_tables(con, extra_tables, extra_files, tables)
    return join_events(events, DuckDBDialect(), impressions.columns, clicks.columns, rows), rankings_table, extra


def _open_impressions_table(
    con: duckdb.DuckDBPyConnection, file: str, tables: dict[str, str], events: Events
) -> OpenedTable:
    table = choose_table(file, tables, events)
    if events.sql is None:
        return create_view(con, "impressions", f"SELECT * FROM {tables[table or '']}", [file])
    if table is not None and "source" not in tables:
        con.execute(f"CREATE TEMP VIEW source AS SELECT * FROM {tables[table]}")
    return create_view(con, "impressions", expose_tables(con, tables, events.sql), [file])


def _open_event_table(
    con: duckdb.DuckDBPyConnection, name: str, source: Any, files: list[str], tables: dict[str, str], sql: str | None
) -> OpenedTable:
    """Make the clicks or the rankings readable: a source, or a table of the DuckDB file of the impressions."""
    if isinstance(source, str) and source in tables:
        con.execute(f"CREATE TEMP VIEW {name}_source AS SELECT * FROM {tables[source]}")
        view = None
    else:
        view = create_source_view(con, f"{name}_source", source, files)
    body = f"SELECT * FROM {name}_source"
    if sql is not None:
        body = f"WITH source AS ({body})\nSELECT * FROM (\n{sql.strip().rstrip(';')}\n) chosen"
    opened = create_view(con, name, body, files, view)
    _cache_text(con, name, files)
    return opened


def _cache_text(con: duckdb.DuckDBPyConnection, name: str, files: Sequence[str]) -> None:
    """Copy CSV and JSON into a table: it is read more than once, and each query would parse it again."""
    if files and file_format(files[0]) in ("csv", "json"):
        con.execute(f"CREATE TEMP TABLE {name}_cached AS SELECT * FROM {name}")
        con.execute(f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT * FROM {name}_cached")


def _may_be_nan(events: Events, types: Mapping[str, str]) -> bool:
    """Return whether a column that is joined or grouped by has fractions, and so may hold NaN."""
    roles = ("impression", "query", "doc", "position", "ranker", "application", "click_impression", "click_doc")
    named = {getattr(events, role) or role for role in roles}
    # A preset has its own column names.
    return any(type_ in FLOATS and (events.preset or name in named) for name, type_ in types.items())
