"""The engine for logs that do not fit one machine: the same queries on Spark, which returns only their results.

The log may be a DataFrame, a table, files that the cluster can read, or data in memory.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from posbias._files import FOLDER_MARKER, check_folder_content
from posbias._optional import optional
from posbias.engines.base import OpenLog
from posbias.engines.events import LOG_COUNTS, Joined, WrittenLog, join_events
from posbias.engines.files import (
    Header,
    common_format,
    describe_broken_csv,
    file_format,
    find_files,
    is_path,
    partition_columns,
    read_header,
    refuse_other_case,
    refuse_overwriting,
    refuse_unreadable,
)
from posbias.errors import LogError, PosbiasError
from posbias.findings import Finding, unusable
from posbias.logs.click_log import ClickLog, Events
from posbias.logs.schema import (
    ANY_RANKER,
    INTEGERS,
    NATURAL,
    Columns,
    Schema,
    check_duplicate_columns,
    counts_overflow,
    resolve_log,
)
from posbias.progress import Progress, TimedStep, step
from posbias.sql.dialects import FLOATS, SparkDialect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from posbias.engines.base import Answer

INSTALL_JAVA = (
    "Spark needs Java 17 or newer, and no java command was found. Install one (on Debian and Ubuntu: apt install "
    "openjdk-17-jre-headless; on macOS: brew install openjdk@17) or point JAVA_HOME to it."
)
# Pattern in Spark's message -> code of the finding, and its remedy.
_REMEDIES = {
    r"unexpected end-of-input": ("damaged-file", "The file looks truncated or damaged. Copy or write it again."),
    r"invalid_json_record_type": ("not-a-log", "Expected JSON lines: one object for each row."),
    r"column_already_exists|ambiguous_column": (
        "names-differ-by-case",
        "Two columns have the same name, or names that differ only by upper and lower case. Rename or leave out one.",
    ),
    r"mixes line endings": ("broken-row", "Write the file again with one kind of line ending."),
    r"malformed csv": ("broken-row", "Repair or remove that row, or write the file again."),
    r"malformed_record|jsonparse": ("broken-row", "Expected one JSON object for each row. Repair or remove that row."),
    r"no filesystem for scheme": (
        "unreadable",
        "Spark has no connector for such addresses. Add it with the setting spark.jars.packages=NAME (conf).",
    ),
    r"path_not_found|filenotfound": ("missing-file", "Check the path, and that every worker can read it."),
    r"failed_read_file|file_footer|not a parquet file|eofexception|corrupt": (
        "damaged-file",
        "The file looks truncated or damaged. Copy or write it again, or leave it out.",
    ),
    r"no space left": ("disk-full", "Free space in the folders of spark.local.dir, or choose others."),
    r"parse_syntax_error|unresolved_column|table_or_view_not_found|unresolved_routine": (
        "bad-sql",
        "Check the query given as sql. It can read `source`.",
    ),
}
# Type name in Spark -> the name that the rest of posbias uses, which is DuckDB's.
_TYPE_NAMES = {"INT": "INTEGER", "STRING": "VARCHAR", "LONG": "BIGINT", "SHORT": "SMALLINT", "BYTE": "TINYINT"}
# Type of an Arrow column that Spark cannot read -> the type to convert it to.
_SPARK_TYPES = {
    "UTINYINT": "SMALLINT",
    "USMALLINT": "INTEGER",
    "UINTEGER": "BIGINT",
    "UBIGINT": "DECIMAL(20, 0)",
    "HUGEINT": "DECIMAL(38, 0)",
    "UHUGEINT": "DECIMAL(38, 0)",
    "UUID": "VARCHAR",
    "TIME": "VARCHAR",
    "BIT": "VARCHAR",
}


@dataclass(frozen=True)
class Spark:
    """Spark, for logs that do not fit one machine.

    The log may be a DataFrame, a table, or a path that the cluster can read.

    Arguments:
        session (SparkSession, optional): the session to use. By default the session of the log's DataFrame, else the
            active one, else a new one.
        master (str, default "local[*]"): the master of a new session, such as "spark://HOST:PORT" or "yarn".
        conf (mapping, optional): settings of a new session, such as {"spark.executor.memory": "4g"}.
    """

    session: SparkSession | None = None
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    name: ClassVar = "spark"

    def open(self, log: ClickLog, progress: Progress) -> AbstractContextManager[OpenLog]:
        """Open a log for a `with` block."""
        return open_spark_log(log, self.session or find_session(log, self.master, self.conf), progress=progress)

    def write(
        self, events: Events, path: str, progress: Progress, *, output: str | None = None, overwrite: bool = False
    ) -> WrittenLog:
        """Join events into a log, and write it as a folder of Parquet files.

        Arguments:
            events (Events): the tables of events.
            path (str): the folder to write.
            progress (Progress): called with the name of the current step.
            output (str, optional): the folder that `path` is renamed to; what is read must not be there.
            overwrite (bool, default False): replace a folder on remote storage, if posbias wrote it.
        """
        session = self.session or find_session(ClickLog(events), self.master, self.conf)
        return write_events(events, path, session, progress, output=output or path, overwrite=overwrite)


@contextmanager
def open_spark_log(log: ClickLog, session: SparkSession, *, progress: Progress) -> Iterator[SparkLog]:
    """Open a log in a Spark session, for a `with` block."""
    if log.part is not None:
        raise LogError("Only DuckDB splits a log into parts. Leave out part, or give the log as files to DuckDB.")
    findings: Sequence[Finding] = ()
    with ExitStack() as stack, translate_errors():
        if isinstance(log.source, Events):
            opened, findings = stack.enter_context(open_events(session, log.source, progress))
        else:
            opened = open_source(session, log.table if log.table is not None else log.source, log.sql)
        rankings = None if log.rankings is None else open_source(session, log.rankings)
        resources = stack.pop_all()
    tables = {"log": opened.frame} | ({} if rankings is None else {"rankings": rankings.frame})
    with resources, temporary_views(session, tables) as views:
        schema = resolve_log(log, opened.columns, rankings.columns if rankings else None, SparkLog.dialect.quote)
        if schema.natural:
            from pyspark.sql.functions import lit

            opened.frame.withColumn(NATURAL, lit(ANY_RANKER)).createOrReplaceTempView(views["log"])
        spark_log = SparkLog(session, schema, views, opened.files, progress, findings, log)
        spark_log.files = () if log.sql is not None else opened.files
        if schema.layout.ranks_in == "table":
            spark_log.refuse_empty_rankings()
        yield spark_log


class SparkLog(OpenLog):
    """A log that is open in a Spark session."""

    dialect = SparkDialect()

    def __init__(
        self,
        session: SparkSession,
        schema: Schema,
        views: Mapping[str, str],
        files: list[str],
        progress: Progress,
        findings: Sequence[Finding] = (),
        log: ClickLog | None = None,
    ) -> None:
        super().__init__(schema, progress, findings)
        self._log = log
        self._session = session
        self._views = views
        self._files = files
        self._group = ""

    def frame(self, sql: str) -> DataFrame:
        """Return the result of a query as a lazy DataFrame."""
        return run_query(self._session, sql, self._views)

    def rows(self, sql: str, step: str = "") -> list[tuple[Any, ...]]:
        """Run a query and return its few rows."""
        with self._running(step, sql) as measured:
            rows = [tuple(row) for row in self.frame(sql).collect()]
            measured.add_rows(rows_out=len(rows))
            return rows

    def table(self, sql: str, step: str = "", *, few_groups: bool = False) -> Answer:
        """Run a query and return its columns."""
        from posbias.engines.base import from_arrow, row_count

        with self._running(step, sql) as measured:
            answer = from_arrow(self.frame(sql).toArrow())
            measured.add_rows(rows_out=row_count(answer))
            return answer

    def file_columns(self) -> dict[str, dict[str, str]]:
        """Return the columns and types of each file, if the log has several files."""
        if len(self._files) < 2:
            return {}
        with translate_errors():
            return {file: column_types(read_files(self._session, [file])[0]) for file in self._files}

    def cache_text(self, extra_columns: Sequence[str] = ()) -> None:
        """Do nothing: the cluster may have no room for a copy."""

    @property
    def is_text(self) -> bool:
        """Whether the log is CSV or JSON, so that each query parses all of it again."""
        return bool(self._files) and file_format(self._files[0]) in ("csv", "json")

    @contextmanager
    def for_samples(self, sampled_rows: str = "") -> Iterator[OpenLog]:
        """Yield the log opened by DuckDB if the driver can read its Parquet files, else the sampled rows.

        A job takes longer than a sample, so that one job reads the rows for all checks.
        """
        from posbias.engines.duckdb import open_duckdb_log, open_sampled_rows

        with ExitStack() as stack:
            local: OpenLog = self
            # What only Spark can read, it reads itself.
            with suppress(PosbiasError):
                if self._log is not None and self._driver_reads_files:
                    local = stack.enter_context(open_duckdb_log(self._log, progress=self.progress))
                elif sampled_rows:
                    with self._running("Sampling rows", sampled_rows) as measured:
                        rows = self.frame(sampled_rows).toArrow()
                        measured.add_rows(rows_out=rows.num_rows)
                    local = stack.enter_context(open_sampled_rows(rows, self.schema, self.progress))
            yield local

    @cached_property
    def _rows_to_profile(self) -> int | None:
        """The rows of Parquet files, which store their number."""
        import pyarrow.parquet as pq

        return sum(pq.read_metadata(file).num_rows for file in self._files) if self._driver_reads_files else None

    @property
    def _driver_reads_files(self) -> bool:
        """Whether the log consists of Parquet files, as they are, that were found on the machine of the driver."""
        changed = self._log is None or self._log.sql is not None or self.schema.drop_duplicates
        return not changed and bool(self._files) and file_format(self._files[0]) == "parquet"

    @property
    def samples_first(self) -> bool:
        """Whether to try an expensive query on a sample first: Spark shuffles the pairs between machines."""
        return True

    def share_done(self) -> float:
        """Return the share of the running query's tasks that are done."""
        if not self._has_context:
            return 0.0
        tracker = self._session.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        tasks = sum(stage.numTasks for stage in stages if stage)
        return sum(stage.numCompletedTasks for stage in stages if stage) / tasks if tasks else 0.0

    @property
    def _has_context(self) -> bool:
        """Whether the session has a local context to track jobs with; a session of Spark Connect has none."""
        return hasattr(self._session, "_jsparkSession")

    @contextmanager
    def _running(self, step: str, sql: str) -> Iterator[TimedStep]:
        """Translate errors, track jobs, report progress and measure while a query runs."""
        with (
            translate_errors(schema=self.schema),
            self._job_group(step),
            self.reporting_progress(step, sql) as measured,
        ):
            yield measured

    @contextmanager
    def _job_group(self, step: str) -> Iterator[None]:
        """Run jobs as a group, so that they can be tracked, and cancelled on Ctrl-C."""
        if not self._has_context:
            yield
            return
        context = self._session.sparkContext
        self._group = f"posbias-{uuid.uuid4().hex}"
        context.setJobGroup(self._group, f"posbias: {step or 'checking'}", interruptOnCancel=True)
        try:
            yield
        except KeyboardInterrupt:
            context.cancelJobGroup(self._group)
            raise
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
            context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


def run_query(session: SparkSession, sql: str, views: Mapping[str, str]) -> DataFrame:
    """Return the lazy result of a query that reads views of the session by other names.

    Arguments:
        session (SparkSession): the session.
        sql (str): the query.
        views (mapping of str to str): the name of a view in the session, by its name in the query.
    """
    aliases = ",\n".join(f"{name} AS (SELECT * FROM {view})" for name, view in views.items())
    return session.sql(f"WITH {aliases}\nSELECT * FROM (\n{sql}\n) answer")


@contextmanager
def temporary_views(session: SparkSession, tables: Mapping[str, DataFrame]) -> Iterator[dict[str, str]]:
    """Create a view of each table for a `with` block, and yield the names of the views."""
    # Unique names, because the session belongs to the user and may already have a `log`.
    views = {name: f"posbias_{name}_{uuid.uuid4().hex}" for name in tables}
    try:
        for name, frame in tables.items():
            frame.createOrReplaceTempView(views[name])
        yield views
    finally:
        for view in views.values():
            session.catalog.dropTempView(view)


# ---- Sessions


def find_session(log: ClickLog, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    """Return the session of the log's DataFrame, else the active session, else a new one."""
    _require_spark()
    from pyspark.sql import SparkSession

    if type(log.sources[0]).__module__.startswith("pyspark."):
        session: SparkSession = log.sources[0].sparkSession
        return session
    return SparkSession.getActiveSession() or start_session(master, conf)


def start_session(master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Start a Spark session without console output; a local one may use half of the memory."""
    _require_spark()
    java = os.path.join(os.environ.get("JAVA_HOME", ""), "bin", "java")
    if shutil.which("java") is None and not os.access(java, os.X_OK):
        raise PosbiasError(INSTALL_JAVA)
    from pyspark.sql import SparkSession

    master = master or "local[*]"
    settings = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    if master.startswith("local"):
        half_of_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**21
        settings |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": f"{max(half_of_memory, 1024)}m",
        }
    builder = SparkSession.builder.master(master).appName("posbias")
    for name, value in (settings | dict(conf or {})).items():
        builder = builder.config(name, value)
    with translate_errors(), _silence_stderr():
        return builder.getOrCreate()


def _require_spark() -> None:
    with warnings.catch_warnings():
        # PySpark warns about new versions of pandas, which posbias does not use here.
        warnings.simplefilter("ignore", FutureWarning)
        optional("pyspark.sql", "The engine Spark needs")


@contextmanager
def _silence_stderr() -> Iterator[None]:
    """Keep the output of the Java process off the terminal; if it fails, add the end of it to the error."""
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as output:
        os.dup2(output.fileno(), 2)
        try:
            yield
        except Exception as error:
            output.seek(0)
            lines = output.read().decode(errors="replace").strip().splitlines()
            error.add_note("\n".join(lines[-5:]))
            raise
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


# ---- Errors


@contextmanager
def translate_errors(file: str | None = None, schema: Schema | None = None) -> Iterator[None]:
    """Raise the errors of Spark as errors of posbias, with a remedy.

    Arguments:
        file (str, optional): the file that is read, to name it in the message.
        schema (Schema, optional): the schema of the log, to recognise counts whose sum overflows.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        # PySpark logs such errors as JSON with a Java stack, besides raising them.
        with _silence_logger("SQLQueryContextLogger"):
            yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        if "JAVA_GATEWAY_EXITED" in text:
            notes = " ".join(getattr(error, "__notes__", []))
            raise PosbiasError(f"Spark could not start. It needs Java 17 or newer. {notes}".strip()) from None
        if "PATH_ALREADY_EXISTS" in text:
            replaced = {"overwrite": True}
            raise PosbiasError("There is a folder already. Name another one, or replace it.", replaced) from None
        if re.search("masters are unresponsive|could not connect|context was shut down|connection refused", text, re.I):
            raise PosbiasError(
                f"Spark cannot be reached: {error_summary(text)}. Check the address of its master."
            ) from None
        lower = text.lower()
        if (
            schema is not None
            and schema.aggregated
            and re.search("arithmetic_overflow|cast_overflow|out_of_range", lower)
        ):
            raise counts_overflow(schema) from None
        code, remedy = next(
            (problem for pattern, problem in _REMEDIES.items() if re.search(pattern, lower)),
            ("unreadable", "Read it with Spark itself to see what is wrong, or write it again as Parquet."),
        )
        path = re.search(r"reading file (?:file://)?(\S+?)\.?\s", text)
        where = path[1] if path else file
        summary = error_summary(text)
        if code == "broken-row" and where and os.path.isfile(where) and file_format(where) == "csv":
            summary = describe_broken_csv(where) if "mixes" in describe_broken_csv(where) else summary
        what = f"Spark cannot read the log: {summary}"
        raise unusable(code, f"{what} ({where!r})" if where else what, remedy) from None


@contextmanager
def _silence_logger(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def error_summary(text: str) -> str:
    """Return the message of a Spark error, without its class, its query and its Java trace.

    >>> error_summary("[TABLE_OR_VIEW_NOT_FOUND] The table `x` cannot be found. Verify. SQLSTATE: 42; line 1;\\n'Pro")
    'The table `x` cannot be found'
    >>> error_summary("An error occurred while calling o7.json.\\n: org.SparkException: [BAD] Not so. SQLSTATE: 1\\n")
    'Not so'
    """
    caused = re.findall(r"(?:Caused by|\n): [\w.$]+: (.+)", text)
    first = (caused[-1] if caused else text).strip().splitlines()[0]
    first = re.sub(r"^\[[\w.]+\] ", "", first)
    first = re.sub(r"@[0-9a-f]+", "", first)
    return re.split(r"\. | SQLSTATE| \(start marker", first)[0].rstrip(".")


# ---- Sources: DataFrames, tables, remote paths and data in memory


def open_source(session: SparkSession, source: Any, sql: str | None = None) -> OpenedFrame:
    """Read a source, or the result of the user's query over it."""
    read = _read_source(session, source)
    if sql is None:
        return _open_frame(read)
    view = f"posbias_source_{os.urandom(8).hex()}"
    opened = _open_frame(read)
    opened.frame.createOrReplaceTempView(view)
    try:
        body = sql.strip().rstrip(";")
        chosen = session.sql(f"WITH source AS (SELECT * FROM {view})\nSELECT * FROM (\n{body}\n) chosen")
        check_duplicate_columns(chosen.columns, "the result of the query")
        renamed = {name: original for original, name in opened.columns.names.items() if original not in chosen.columns}
        originals = [renamed.get(name, name) for name in chosen.columns]
        return _open_frame(_SourceFrame(chosen, originals, read.files, read.in_paths))
    finally:
        session.catalog.dropTempView(view)


@dataclass(frozen=True)
class OpenedFrame:
    """A DataFrame that queries can read: its files, if they are known, and its columns."""

    frame: DataFrame
    files: list[str]
    columns: Columns


def _open_frame(source: _SourceFrame) -> OpenedFrame:
    """Return a DataFrame with its columns; a number is appended to names that differ from others only by case.

    Spark would treat such names as the same.
    """
    check_duplicate_columns(source.originals, "the log")
    frame = source.frame
    names: dict[str, str] = {}
    taken: set[str] = set()
    for column in source.originals:
        name, number = column, 0
        while name.lower() in taken:
            number += 1
            name = f"{column}_{number}"
        taken.add(name.lower())
        names[column] = name
    if list(names.values()) != frame.columns:
        frame = frame.toDF(*names.values())
    types = column_types(frame)
    in_paths = frozenset(source.in_paths) & names.keys()
    columns = Columns({original: types[name] for original, name in names.items()}, names, in_paths)
    return OpenedFrame(frame, list(source.files), columns)


def _read_source(session: SparkSession, source: Any) -> _SourceFrame:
    """Read a DataFrame, data in memory, a remote path, a table or files."""
    if type(source).__module__.startswith("pyspark."):
        return _SourceFrame(source, source.columns)
    if not is_path(source):
        return _from_memory(session, source)
    if isinstance(source, str) and "://" in source:
        frame = _read_remote_path(session, source)
        return _SourceFrame(frame, frame.columns)
    if isinstance(source, str) and not os.path.exists(source) and _is_table(session, source):
        frame = session.table(source)
        return _SourceFrame(frame, frame.columns)
    files = find_files(source)
    frame, in_paths = read_files(session, files)
    return _SourceFrame(frame, frame.columns, files, in_paths)


@dataclass(frozen=True)
class _SourceFrame:
    """A source as a DataFrame: its original column names, its local files, and columns that come from folder names."""

    frame: DataFrame
    originals: Sequence[str]
    files: Sequence[str] = ()
    in_paths: Sequence[str] = ()


def _from_memory(session: SparkSession, source: Any) -> _SourceFrame:
    """Pass a pandas, Polars or Arrow table to Spark through Arrow, in types that Spark can read."""
    from posbias.engines.duckdb_sources import connect, open_log_tables
    from posbias.engines.duckdb_sources import translate_errors as translate_duckdb_errors
    from posbias.sql.dialects import DuckDBDialect

    with connect() as con, translate_duckdb_errors():
        opened, *_ = open_log_tables(con, ClickLog(source))
        quoted = DuckDBDialect().quote
        columns = []
        for original, name in opened.columns.names.items():
            type_ = opened.columns.types[original]
            spark_type = _SPARK_TYPES.get(type_)
            columns.append(f"CAST({quoted(name)} AS {spark_type}) AS {quoted(name)}" if spark_type else quoted(name))
        table = con.sql(f"SELECT {', '.join(columns)} FROM log").to_arrow_table()
    # PySpark needs at least one chunk, even in a table without rows.
    table = table if table.num_rows else table.schema.empty_table()
    return _SourceFrame(session.createDataFrame(table), list(opened.columns.names))


def _read_remote_path(session: SparkSession, address: str) -> DataFrame:
    """Read a path that only Spark can reach; without a known ending it is read as Parquet."""
    file_kind = file_format(address.rstrip("/*")) or "parquet"
    if file_kind == "csv":
        return session.read.csv(address, header=True, escape='"', multiLine=True, mode="FAILFAST")
    if file_kind == "json":
        return session.read.json(address, mode="FAILFAST")
    return session.read.option("mergeSchema", "true").parquet(address)


def _is_table(session: SparkSession, name: str) -> bool:
    from pyspark.errors import PySparkException

    try:
        return session.catalog.tableExists(name)
    except PySparkException:
        return False  # Not a valid name of a table, such as a path or a glob.


def column_types(frame: DataFrame) -> dict[str, str]:
    """Return the columns of a DataFrame and their types, by DuckDB's names of types."""
    return {field.name: _type_name(field.dataType.simpleString()) for field in frame.schema.fields}


def _type_name(spark: str) -> str:
    name = spark.upper()
    if name.startswith(("VARCHAR", "CHAR")):
        return "VARCHAR"
    return _TYPE_NAMES.get(name, name)


# ---- Files: CSV, JSON and Parquet


def read_files(session: SparkSession, files: Sequence[str]) -> tuple[DataFrame, list[str]]:
    """Read files of one format as one table, with columns matched by name.

    Returns:
        The DataFrame, and the columns that come from folder names such as `day=2026-01-01`.
    """
    file_kind = common_format(files)
    refuse_unreadable(files)
    partitions = partition_columns(files)
    if file_kind == "csv":
        return _union(*_add_partition_columns(_read_csv(session, files), partitions))
    if file_kind == "json":
        with translate_errors(files[0]):
            frame = session.read.json([_escape_glob(file) for file in files], mode="FAILFAST")
            return _union(*_add_partition_columns([frame], partitions))
    if file_kind == "duckdb":
        raise LogError(
            f"Spark cannot read the DuckDB file {files[0]!r}. Leave out engine='spark', or export its table to Parquet."
        )
    schemas = {file: _parquet_schema(file) for file in files}
    refuse_other_case({file: schema.names for file, schema in schemas.items()})
    groups: dict[str, list[str]] = {}
    for file, schema in schemas.items():
        groups.setdefault(str(schema), []).append(file)
    return _union(
        *_add_partition_columns(
            [session.read.parquet(*map(_escape_glob, group)) for group in groups.values()], partitions
        )
    )


def _read_csv(session: SparkSession, files: Sequence[str]) -> list[DataFrame]:
    """Read CSV files, one DataFrame for each distinct header; values stay text."""
    from pyspark.sql import functions
    from pyspark.sql.types import StringType, StructField, StructType

    groups: dict[Header, list[str]] = {}
    for file in files:
        groups.setdefault(read_header(file), []).append(file)
    refuse_other_case({group[0]: header.names for header, group in groups.items()})
    parts = []
    for header, group in groups.items():
        fields = [StructField(f"column_{i}", StringType()) for i in range(len(header.names))]
        frame = session.read.csv(
            [_escape_glob(file) for file in group],
            schema=StructType(fields),
            header=True,
            sep=header.delimiter,
            escape='"',
            multiLine=True,
            mode="FAILFAST",
        )
        last = fields[-1].name
        if header.ending == "\r\n" and any("\n" in name for name in header.names):
            # Spark takes the line break in a name for that of all lines.
            frame = frame.withColumn(last, functions.expr(f"NULLIF(regexp_replace({last}, '\r$', ''), '')"))
        if header.ending == "\n":
            # Spark would read the \r of a \r\n as part of the last value.
            mixed = "raise_error(concat('The file ', input_file_name(), ' mixes line endings'))"
            frame = frame.withColumn(last, functions.expr(f"CASE WHEN {last} LIKE '%\r' THEN {mixed} ELSE {last} END"))
        parts.append(frame.toDF(*(name or f"column{i}" for i, name in enumerate(header.names))))
    return parts


def _parquet_schema(file: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(file).remove_metadata()
    except (pa.ArrowException, OSError) as error:
        raise unusable(
            "damaged-file",
            f"The log cannot be read: {file!r}: {str(error).splitlines()[0]}",
            "The file looks truncated or damaged. Copy or write it again, or leave it out.",
        ) from None
    check_duplicate_columns(schema.names, f"the file {file!r}")
    return schema


def _escape_glob(file: str) -> str:
    """Return a file name that Spark does not read as a glob."""
    return "".join(f"\\{c}" if c in "*?[]{}\\" else c for c in Path(file).absolute().as_posix())


def _union(frames: list[DataFrame], in_paths: list[str]) -> tuple[DataFrame, list[str]]:
    """Concatenate tables by column name. Where types differ, numbers are widened and anything else becomes text."""
    from pyspark.sql import functions

    types: dict[str, set[str]] = {}
    for frame in frames:
        for name, type_ in column_types(frame).items():
            types.setdefault(name, set()).add(type_)
    for i, frame in enumerate(frames):
        for name in frame.columns if len(frames) > 1 else ():
            if len(types[name]) > 1:
                _refuse_nested(name, types[name])
                numbers = "bigint" if types[name] <= INTEGERS else "double"
                wider = numbers if types[name] <= INTEGERS | FLOATS else "string"
                frames[i] = frames[i].withColumn(name, functions.col(_quote(name)).cast(wider))
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames), in_paths


def _refuse_nested(name: str, types: set[str]) -> None:
    if any("<" in type_ for type_ in types):
        raise unusable(
            "mixed-files",
            f"Column {name!r} has different types in the files: {' and '.join(sorted(types))}",
            "The files have different columns or types. Give files with the same columns, or convert the one that "
            "differs.",
        )


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _add_partition_columns(frames: list[DataFrame], keys: Sequence[str]) -> tuple[list[DataFrame], list[str]]:
    """Add the columns that come from folder names, as text, unless the files have them themselves."""
    from pyspark.sql import functions

    inside = {name.lower() for frame in frames for name in frame.columns}
    in_paths = [key for key in keys if key.lower() not in inside]
    for key in in_paths:
        # The path is URL-encoded, and folder names are already URL-encoded, so the value is decoded twice.
        path = "url_decode(replace(_metadata.file_path, '+', '%2B'))"
        part = f"regexp_extract({path}, {_text(f'.*/{re.escape(key)}=([^/]*)/')}, 1)"
        value = f"url_decode(replace({part}, '+', '%2B'))"
        column = functions.expr(f"NULLIF({value}, '__HIVE_DEFAULT_PARTITION__')")
        frames = [frame.withColumn(key, column) for frame in frames]
    return frames, in_paths


def _text(value: str) -> str:
    return SparkDialect().literal(value)


# ---- Events


@contextmanager
def open_events(
    session: SparkSession, events: Events, progress: Progress
) -> Iterator[tuple[OpenedFrame, Sequence[Finding]]]:
    """Yield the log that is joined from events; each query joins it again."""
    with _join(session, events, progress) as (frame, joined):
        types = column_types(frame)
        yield OpenedFrame(frame, [], Columns(types, {name: name for name in types})), joined.findings


def write_events(
    events: Events, draft: str, session: SparkSession, progress: Progress, *, output: str, overwrite: bool
) -> WrittenLog:
    """Join events into a log, and write it as a folder of Parquet files."""
    with translate_errors(), _join(session, events, progress) as (frame, joined):
        # Tables and views tell their files only now.
        refuse_overwriting(output, [frame])
        if draft == output and overwrite:
            _check_replaceable_remotely(session, output)
        progress("Writing", 0.0)
        with step("Joining and writing"):
            frame.write.mode("overwrite" if overwrite else "errorifexists").parquet(draft)
        if draft == output:
            _mark_remotely(session, output)
        written = session.read.parquet(draft)
        with temporary_views(session, {"written": written}) as views:
            [(rows, page_views, clicks)] = run_query(session, f"SELECT {LOG_COUNTS} FROM written", views).collect()
        return WrittenLog(rows, page_views, clicks or 0, tuple(frame.columns), joined.findings)


def _check_replaceable_remotely(session: SparkSession, address: str) -> None:
    """Raise an error if a folder on storage that Spark reaches has anything that posbias did not write."""
    if not hasattr(session, "_jsparkSession"):
        raise PosbiasError(
            "With Spark Connect, posbias cannot see what a folder holds, and does not replace it. Name a new folder."
        )
    files, folder = _remote_folder(session, address)
    if not files.exists(folder):
        return
    entries = [(entry.getPath().getName(), entry.isDirectory()) for entry in files.listStatus(folder)]
    names = [f"{name}/" if is_folder else name for name, is_folder in entries]
    listed = None
    if FOLDER_MARKER in names:
        stream = files.open(_hadoop(session).Path(folder, FOLDER_MARKER))
        try:
            listed = bytes(stream.readAllBytes()).decode(errors="replace")
        finally:
            stream.close()
    check_folder_content(address, names, listed)


def _mark_remotely(session: SparkSession, address: str) -> None:
    """Write the marker of a folder on storage that Spark reaches: the list of its files."""
    if not hasattr(session, "_jsparkSession"):
        return
    files, folder = _remote_folder(session, address)
    names = sorted(entry.getPath().getName() for entry in files.listStatus(folder))
    stream = files.create(_hadoop(session).Path(folder, FOLDER_MARKER), True)
    try:
        stream.write("".join(f"{name}\n" for name in names).encode())
    finally:
        stream.close()


def _remote_folder(session: SparkSession, address: str) -> tuple[Any, Any]:
    """Return Hadoop's file system and path of an address."""
    folder = _hadoop(session).Path(address)
    return folder.getFileSystem(session._jsparkSession.sessionState().newHadoopConf()), folder


def _hadoop(session: SparkSession) -> Any:
    return session.sparkContext._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]


@contextmanager
def _join(session: SparkSession, events: Events, progress: Progress) -> Iterator[tuple[DataFrame, Joined]]:
    """Check the tables of events, and yield the joined log with the query that joins it."""
    impressions = open_source(session, events.table if events.table is not None else events.impressions, events.sql)
    clicks = open_source(session, events.clicks, events.clicks_sql)
    with temporary_views(session, {"impressions": impressions.frame, "clicks": clicks.frame}) as views:

        def rows(sql: str, name: str) -> list[tuple[Any, ...]]:
            progress(name, 0.0)
            with step(name) as measured:
                found = [tuple(row) for row in run_query(session, sql, views).collect()]
                measured.add_rows(rows_out=len(found))
                return found

        joined = join_events(events, SparkDialect(), impressions.columns, clicks.columns, rows)
        yield run_query(session, joined.query, views), joined
