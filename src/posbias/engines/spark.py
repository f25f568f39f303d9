"""The engine for clusters: Spark."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from posbias._files import scratch_folder
from posbias._optional import optional
from posbias.engines.base import OpenLog
from posbias.engines.events import LOG_COUNTS, Joined, WrittenLog, join_events
from posbias.engines.files import (
    Header,
    file_format,
    find_files,
    is_path,
    odd_lines,
    one_format,
    path_keys,
    read_header,
    refuse_other_case,
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
from posbias.progress import Progress
from posbias.sql.dialects import SparkDialect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from posbias.engines.base import Answer, OpenLog
    from posbias.engines.events import WrittenLog
    from posbias.logs.click_log import ClickLog, Events

INSTALL_JAVA = (
    "Spark needs Java 17 or newer, and no java command was found. Install one (on Debian and Ubuntu: apt install "
    "openjdk-17-jre-headless; on macOS: brew install openjdk@17) or point JAVA_HOME to it."
)
# What a message of Spark contains -> the name of the problem, and what to do.
_REMEDIES = {
    r"unexpected end-of-input": ("damaged-file", "The file looks truncated or damaged: copy or write it again."),
    r"invalid_json_record_type": ("not-a-log", "Expected one object for each row: JSON lines."),
    r"column_already_exists|ambiguous_column": (
        "names-differ-by-case",
        "Two columns have one name, or names that differ only by upper and lower case: rename or leave out one.",
    ),
    r"mixes line endings": ("broken-row", "Write the file again with one kind of line ending."),
    r"malformed csv": ("broken-row", "Mend or remove that row, or write the file again."),
    r"malformed_record|jsonparse": ("broken-row", "Expected one JSON object for each row: mend or remove that row."),
    r"no filesystem for scheme": (
        "unreadable",
        "Spark lacks the connector for such addresses: add it by the setting spark.jars.packages=NAME (conf).",
    ),
    r"path_not_found|filenotfound": ("missing-file", "Check the path, and that every worker sees it."),
    r"failed_read_file|file_footer|not a parquet file|eofexception|corrupt": (
        "damaged-file",
        "The file looks truncated or damaged: copy or write it again, or leave it out.",
    ),
    r"no space left": ("disk-full", "Free space in the folders of spark.local.dir, or point it to others."),
    r"parse_syntax_error|unresolved_column|table_or_view_not_found|unresolved_routine": (
        "bad-sql",
        "Check the query given as sql: it reads `source`.",
    ),
}
# Spark's names of types -> those that the rest of the code goes by.
_TYPES = {"INT": "INTEGER", "STRING": "VARCHAR", "LONG": "BIGINT", "SHORT": "SMALLINT", "BYTE": "TINYINT"}
# What an Arrow table may hold that Spark does not read -> what it reads.
_READABLE = {
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
    """Spark: the log may be a DataFrame, a table, or a path that the cluster sees.

    Arguments:
        session: the session to use; by default that of the log's DataFrame, else the active one, else one is started.
        master: where a session is started: "local[*]" by default, "spark://HOST:PORT", "yarn".
        conf: settings of a session that is started, such as {"spark.executor.memory": "4g"}.
    """

    session: SparkSession | None = None
    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    name: ClassVar = "spark"

    def open(self, log: ClickLog, progress: Progress) -> AbstractContextManager[OpenLog]:
        """Open a log for as long as a block lasts."""
        pass

        return open_log(log, self.session or session_of(log, self.master, self.conf), progress=progress)

    def write(self, events: Events, path: str, progress: Progress) -> WrittenLog:
        """Write the log that events make as a folder of Parquet files."""
        pass
        pass
        from posbias.logs.click_log import ClickLog

        session = self.session or session_of(ClickLog(events), self.master, self.conf)
        return write_events(events, path, session, progress)


@contextmanager
def open_log(log: ClickLog, session: SparkSession, *, progress: Progress) -> Iterator[SparkLog]:
    """Open a log in a session."""
    pass
    pass

    findings: Sequence[Finding] = ()
    with ExitStack() as stack, explained():
        if isinstance(log.source, Events):
            opened, findings = stack.enter_context(open_events(session, log.source, progress))
        else:
            opened = open_source(session, log.table if log.table is not None else log.source, log.sql)
        second = None if log.rankings is None else open_source(session, log.rankings)
        held = stack.pop_all()
    tables = {"log": opened.frame} | ({} if second is None else {"rankings": second.frame})
    with held, named(session, tables) as views:
        schema = resolve_log(log, opened.columns, second.columns if second else None)
        if schema.natural:
            from pyspark.sql.functions import lit

            opened.frame.withColumn(NATURAL, lit(ANY_RANKER)).createOrReplaceTempView(views["log"])
        engine = SparkLog(session, schema, views, opened.files, progress, findings)
        if schema.layout.ranks_in == "table":
            engine.refuse_empty_rankings()
        yield engine


class SparkLog(OpenLog):
    """A log in a Spark session."""

    dialect = SparkDialect()

    def __init__(
        self,
        session: SparkSession,
        schema: Schema,
        views: Mapping[str, str],
        files: list[str],
        progress: Progress,
        findings: Sequence[Finding] = (),
    ) -> None:
        super().__init__(schema, progress, findings)
        self._session = session
        self._views = views
        self._files = files
        self._group = ""

    def frame(self, sql: str) -> DataFrame:
        """Return a query as a DataFrame that is not computed yet."""
        return select(self._session, sql, self._views)

    def rows(self, sql: str, doing: str = "") -> list[tuple[Any, ...]]:
        """Run a query whose answer is small."""
        with explained(schema=self.schema), self._grouped(doing), self.reporting_progress(doing):
            return [tuple(row) for row in self.frame(sql).collect()]

    def table(self, sql: str, doing: str = "", *, few_groups: bool = False) -> Answer:
        """Run a query and return its answer."""
        from posbias.engines.base import from_arrow

        with explained(schema=self.schema), self._grouped(doing), self.reporting_progress(doing):
            return from_arrow(self.frame(sql).toArrow())

    def file_columns(self) -> dict[str, dict[str, str]]:
        """Return the columns and types of each file of the log, where it has several."""
        pass

        if len(self._files) < 2:
            return {}
        with explained():
            return {file: types_of(read_files(self._session, [file])[0]) for file in self._files}

    def cache_text(self, more: Sequence[str] = ()) -> None:
        """Leave it where it is: whether a cluster has room for a copy is not ours to say."""

    @property
    def is_text(self) -> bool:
        """Whether the log is text, of which every look has to read all columns anew."""
        return bool(self._files) and file_format(self._files[0]) in ("csv", "json")

    @property
    def samples_first(self) -> bool:
        """Whether an answer that may be too large is dear enough to look first at a part of it: pairs are shuffled."""
        return True

    def done(self) -> float:
        """Return the share of the tasks of the running query that are done."""
        if not self._has_context:
            return 0.0
        tracker = self._session.sparkContext.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        tasks = sum(stage.numTasks for stage in stages if stage)
        return sum(stage.numCompletedTasks for stage in stages if stage) / tasks if tasks else 0.0

    @property
    def _has_context(self) -> bool:
        """Whether jobs can be watched from here: a session of Spark Connect has its context elsewhere."""
        return hasattr(self._session, "_jsparkSession")

    @contextmanager
    def _grouped(self, doing: str) -> Iterator[None]:
        """Run jobs as a group that can be watched and, when the user has had enough, cancelled."""
        if not self._has_context:
            yield
            return
        context = self._session.sparkContext
        self._group = f"posbias-{uuid.uuid4().hex}"
        context.setJobGroup(self._group, f"posbias: {doing or 'looking'}", interruptOnCancel=True)
        try:
            yield
        except KeyboardInterrupt:
            context.cancelJobGroup(self._group)
            raise
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
            context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]


def select(session: SparkSession, sql: str, views: Mapping[str, str]) -> DataFrame:
    """Return a query that calls views of the session by other names."""
    named = ",\n".join(f"{name} AS (SELECT * FROM {view})" for name, view in views.items())
    return session.sql(f"WITH {named}\nSELECT * FROM (\n{sql}\n) answer")


@contextmanager
def named(session: SparkSession, tables: Mapping[str, DataFrame]) -> Iterator[dict[str, str]]:
    """Make tables selectable for as long as the block lasts, and return what the session calls them."""
    # By names of their own: the session is the user's, and may have a `log` already.
    views = {name: f"posbias_{name}_{uuid.uuid4().hex}" for name in tables}
    try:
        for name, frame in tables.items():
            frame.createOrReplaceTempView(views[name])
        yield views
    finally:
        for view in views.values():
            session.catalog.dropTempView(view)


@contextmanager
def explained(file: str | None = None, schema: Schema | None = None) -> Iterator[None]:
    """Turn what Spark raises, while it reads a file or counts what is in a log, into an error of ours."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        if "JAVA_GATEWAY_EXITED" in text:
            told = " ".join(getattr(error, "__notes__", []))
            raise PosbiasError(f"Spark needs Java 17 or newer, and it could not be started. {told}".strip()) from None
        if re.search("masters are unresponsive|could not connect|context was shut down|connection refused", text, re.I):
            raise PosbiasError(f"Spark cannot be reached: {gist(text)}. Check the address of its master.") from None
        low = text.lower()
        if (
            schema is not None
            and schema.aggregated
            and re.search("arithmetic_overflow|cast_overflow|out_of_range", low)
        ):
            raise counts_overflow(schema) from None
        name, remedy = next(
            (found for pattern, found in _REMEDIES.items() if re.search(pattern, low)),
            ("unreadable", "Read it with Spark itself to see what is wrong, or write it again as Parquet."),
        )
        named = re.search(r"reading file (?:file://)?(\S+?)\.?\s", text)
        where = named[1] if named else file
        said = gist(text)
        if name == "broken-row" and where and os.path.isfile(where) and file_format(where) == "csv":
            said = odd_lines(where) if "mixes" in odd_lines(where) else said
        what = f"The log cannot be read by Spark: {said}"
        raise unusable(name, f"{what} ({where!r})" if where else what, remedy) from None


def gist(text: str) -> str:
    """Return what Spark says, without its error class, its query and its Java.

    >>> gist("[TABLE_OR_VIEW_NOT_FOUND] The table `x` cannot be found. Verify. SQLSTATE: 42P01; line 1 pos 14;\\n'Pro")
    'The table `x` cannot be found'
    >>> gist("An error occurred while calling o7.json.\\n: org.apache.SparkException: [BAD] Not so. SQLSTATE: 1\\n")
    'Not so'
    """
    caused = re.findall(r"(?:Caused by|\n): [\w.$]+: (.+)", text)
    first = (caused[-1] if caused else text).strip().splitlines()[0]
    first = re.sub(r"^\[[\w.]+\] ", "", first)
    first = re.sub(r"@[0-9a-f]+", "", first)
    return re.split(r"\. | SQLSTATE| \(start marker", first)[0].rstrip(".")


def types_of(frame: DataFrame) -> dict[str, str]:
    """Return the columns of a DataFrame and their types, by the names that the rest of the code goes by."""
    return {field.name: _type_name(field.dataType.simpleString()) for field in frame.schema.fields}


def _type_name(spark: str) -> str:
    name = spark.upper()
    if name.startswith(("VARCHAR", "CHAR")):
        return "VARCHAR"
    return _TYPES.get(name, name)


def read_files(session: SparkSession, files: Sequence[str]) -> tuple[DataFrame, list[str]]:
    """Read files of one format as one table, columns matched by name; and tell which only the folders' names tell."""
    kind = one_format(files)
    refuse_unreadable(files)
    keys = path_keys(files)
    if kind == "csv":
        return _union(*_with_paths(_read_csv(session, files), keys))
    if kind == "json":
        with explained(files[0]):
            frame = session.read.json([_literal(file) for file in files], mode="FAILFAST")
            return _union(*_with_paths([frame], keys))
    if kind == "duckdb":
        raise LogError(
            f"Spark cannot read the DuckDB file {files[0]!r}. Leave engine='spark' out, or export its table to Parquet."
        )
    schemas = {file: _parquet_schema(file) for file in files}
    refuse_other_case({file: schema.names for file, schema in schemas.items()})
    groups: dict[str, list[str]] = {}
    for file, schema in schemas.items():
        groups.setdefault(str(schema), []).append(file)
    return _union(*_with_paths([session.read.parquet(*map(_literal, group)) for group in groups.values()], keys))


def _union(frames: list[DataFrame], in_paths: list[str]) -> tuple[DataFrame, list[str]]:
    """Put tables under each other by the names of their columns; where types differ, whole numbers widen, else text."""
    from pyspark.sql import functions

    found: dict[str, set[str]] = {}
    for frame in frames:
        for name, type_ in types_of(frame).items():
            found.setdefault(name, set()).add(type_)
    for i, frame in enumerate(frames):
        for name in frame.columns if len(frames) > 1 else ():
            if len(found[name]) > 1:
                _refuse_nested(name, found[name])
                wider = "bigint" if found[name] <= INTEGERS else "string"
                frames[i] = frames[i].withColumn(name, functions.col(_quoted(name)).cast(wider))
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames), in_paths


def _refuse_nested(name: str, types: set[str]) -> None:
    if any("<" in type_ for type_ in types):
        raise unusable(
            "mixed-files",
            f"The files disagree on column {name!r}: {' and '.join(sorted(types))}",
            "The files do not fit together: give files of one layout, or convert the odd one.",
        )


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _with_paths(frames: list[DataFrame], keys: Sequence[str]) -> tuple[list[DataFrame], list[str]]:
    """Add what the names of folders tell, as text, where no file has such a column itself."""
    from pyspark.sql import functions

    inside = {name.lower() for frame in frames for name in frame.columns}
    told = [key for key in keys if key.lower() not in inside]
    for key in told:
        # The path is an address, in which the folder's name, itself written like an address, is written once more.
        part = f"regexp_extract(_metadata.file_path, {_text(f'.*/{re.escape(quote(key))}=([^/]*)/')}, 1)"
        value = f"url_decode(replace(url_decode(replace({part}, '+', '%2B')), '+', '%2B'))"
        named = functions.expr(f"NULLIF({value}, '__HIVE_DEFAULT_PARTITION__')")
        frames = [frame.withColumn(key, named) for frame in frames]
    return frames, told


def _text(value: str) -> str:
    return SparkDialect().literal(value)


def _read_csv(session: SparkSession, files: Sequence[str]) -> list[DataFrame]:
    """Read CSV files, one part for each header; values stay text as written."""
    from pyspark.sql import functions
    from pyspark.sql.types import StringType, StructField, StructType

    groups: dict[Header, list[str]] = {}
    for file in files:
        groups.setdefault(read_header(file), []).append(file)
    refuse_other_case({group[0]: header.names for header, group in groups.items()})
    parts = []
    for header, group in groups.items():
        places = [StructField(f"column_{i}", StringType()) for i in range(len(header.names))]
        frame = session.read.csv(
            [_literal(file) for file in group],
            schema=StructType(places),
            header=True,
            sep=header.delimiter,
            escape='"',
            multiLine=True,
            mode="FAILFAST",
        )
        if header.ending == "\n":
            # Spark would take the first half of another line ending for a part of the last value.
            last = places[-1].name
            odd = "raise_error(concat('The file ', input_file_name(), ' mixes line endings'))"
            frame = frame.withColumn(last, functions.expr(f"CASE WHEN {last} LIKE '%\r' THEN {odd} ELSE {last} END"))
        parts.append(frame.toDF(*(name or f"column{i}" for i, name in enumerate(header.names))))
    return parts


def _literal(file: str) -> str:
    """Keep Spark from reading a file name as a glob."""
    return "".join(f"\\{c}" if c in "*?[]{}\\" else c for c in Path(file).absolute().as_posix())


def _parquet_schema(file: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(file).remove_metadata()
    except (pa.ArrowException, OSError) as error:
        raise unusable(
            "damaged-file",
            f"The log cannot be read: {file!r}: {str(error).splitlines()[0]}",
            "The file looks truncated or damaged: copy or write it again, or leave it out.",
        ) from None
    check_duplicate_columns(schema.names, f"the file {file!r}")
    return schema


@contextmanager
def open_events(
    session: SparkSession, events: Events, progress: Progress
) -> Iterator[tuple[Opened, Sequence[Finding]]]:
    """Yield the log of two tables, which is joined anew whenever it is looked at."""
    with _joined(session, events, progress) as (frame, joined):
        types = types_of(frame)
        yield Opened(frame, [], Columns(types, {name: name for name in types})), joined.findings


@dataclass(frozen=True)
class Opened:
    """A DataFrame with the files it is read from, if they are known, and its columns."""

    frame: DataFrame
    files: list[str]
    columns: Columns


@contextmanager
def _joined(session: SparkSession, events: Events, progress: Progress) -> Iterator[tuple[DataFrame, Joined]]:
    shown = open_source(session, events.table if events.table is not None else events.impressions, events.sql)
    clicks = open_source(session, events.clicks, events.clicks_sql)
    with named(session, {"impressions": shown.frame, "clicks": clicks.frame}) as views:

        def rows(sql: str, doing: str) -> list[tuple[Any, ...]]:
            progress(doing, 0.0)
            return [tuple(row) for row in select(session, sql, views).collect()]

        joined = join_events(events, SparkDialect(), shown.columns, clicks.columns, rows)
        yield select(session, joined.query, views), joined


def open_source(session: SparkSession, source: Any, sql: str | None = None) -> Opened:
    """Return the rows of a source, by the query of the user's own where there is one."""
    found = _find(session, source)
    if sql is None:
        return _opened(found)
    view = f"posbias_source_{os.urandom(8).hex()}"
    opened = _opened(found)
    opened.frame.createOrReplaceTempView(view)
    try:
        body = sql.strip().rstrip(";")
        chosen = session.sql(f"WITH source AS (SELECT * FROM {view})\nSELECT * FROM (\n{body}\n) chosen")
        check_duplicate_columns(chosen.columns, "the answer to the query")
        renamed = {name: original for original, name in opened.columns.names.items() if original not in chosen.columns}
        originals = [renamed.get(name, name) for name in chosen.columns]
        return _opened(_Found(chosen, originals, found.files, found.in_paths))
    finally:
        session.catalog.dropTempView(view)


def _find(session: SparkSession, source: Any) -> _Found:
    if type(source).__module__.startswith("pyspark."):
        return _Found(source, source.columns)
    if not is_path(source):
        return _from_memory(session, source)
    if isinstance(source, str) and "://" in source:
        frame = _read_remote(session, source)
        return _Found(frame, frame.columns)
    if isinstance(source, str) and not os.path.exists(source) and _is_table(session, source):
        frame = session.table(source)
        return _Found(frame, frame.columns)
    files = find_files(source)
    frame, in_paths = read_files(session, files)
    return _Found(frame, frame.columns, files, in_paths)


@dataclass(frozen=True)
class _Found:
    """A source as a DataFrame: its files where they are on this machine, and its columns as it calls them itself."""

    frame: DataFrame
    originals: Sequence[str]
    files: Sequence[str] = ()
    in_paths: Sequence[str] = ()


def _from_memory(session: SparkSession, source: Any) -> _Found:
    """Hand a pandas, Polars or Arrow table to Spark through Arrow, as types that Spark knows."""
    from posbias.engines.duckdb_sources import connected, open_tables
    from posbias.engines.duckdb_sources import explained as duckdb_explained
    from posbias.sql.dialects import DuckDBDialect

    with scratch_folder() as spill, connected(spill) as con, duckdb_explained():
        opened, *_ = open_tables(con, ClickLog(source))
        quoted = DuckDBDialect().quote
        columns = []
        for original, name in opened.columns.names.items():
            type_ = opened.columns.types[original]
            readable = _READABLE.get(type_)
            columns.append(f"CAST({quoted(name)} AS {readable}) AS {quoted(name)}" if readable else quoted(name))
        table = con.sql(f"SELECT {', '.join(columns)} FROM log").to_arrow_table()
    # Of a table without any row PySpark wants one chunk at least.
    table = table if table.num_rows else table.schema.empty_table()
    return _Found(session.createDataFrame(table), list(opened.columns.names))


def _read_remote(session: SparkSession, address: str) -> DataFrame:
    """Read what only Spark can reach; what has no ending that tells otherwise is Parquet."""
    kind = file_format(address.rstrip("/*")) or "parquet"
    if kind == "csv":
        return session.read.csv(address, header=True, escape='"', multiLine=True, mode="FAILFAST")
    if kind == "json":
        return session.read.json(address, mode="FAILFAST")
    return session.read.option("mergeSchema", "true").parquet(address)


def _is_table(session: SparkSession, name: str) -> bool:
    from pyspark.errors import PySparkException

    try:
        return session.catalog.tableExists(name)
    except PySparkException:
        return False  # Not even a name of one, such as a path or a glob.


def _opened(found: _Found) -> Opened:
    """Tell the columns of a DataFrame; names that differ only by case, which Spark takes for one, get a number."""
    check_duplicate_columns(found.originals, "the log")
    frame = found.frame
    names: dict[str, str] = {}
    taken: set[str] = set()
    for column in found.originals:
        name, number = column, 0
        while name.lower() in taken:
            number += 1
            name = f"{column}_{number}"
        taken.add(name.lower())
        names[column] = name
    if list(names.values()) != frame.columns:
        frame = frame.toDF(*names.values())
    types = types_of(frame)
    in_paths = frozenset(found.in_paths) & names.keys()
    columns = Columns({original: types[name] for original, name in names.items()}, names, in_paths)
    return Opened(frame, list(found.files), columns)


def session_of(log: ClickLog, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    """Return the session of a log's DataFrame, else the active one; one is started where there is none."""
    _require_spark()
    from pyspark.sql import SparkSession

    if type(log.sources[0]).__module__.startswith("pyspark."):
        session: SparkSession = log.sources[0].sparkSession
        return session
    return SparkSession.getActiveSession() or start_session(master, conf)


def _require_spark() -> None:
    with warnings.catch_warnings():
        # It warns of new versions of pandas, which is not used here.
        warnings.simplefilter("ignore", FutureWarning)
        optional("pyspark.sql", "The engine Spark needs")


def start_session(master: str | None = None, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Start a Spark session that keeps quiet; on one machine it may take half of the memory."""
    _require_spark()
    java = os.path.join(os.environ.get("JAVA_HOME", ""), "bin", "java")
    if shutil.which("java") is None and not os.access(java, os.X_OK):
        raise PosbiasError(INSTALL_JAVA)
    from pyspark.sql import SparkSession

    master = master or "local[*]"
    chosen = {"spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    if master.startswith("local"):
        half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**21
        chosen |= {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": f"{max(half, 1024)}m",
        }
    builder = SparkSession.builder.master(master).appName("posbias")
    for name, value in (chosen | dict(conf or {})).items():
        builder = builder.config(name, value)
    with explained(), _hushed():
        return builder.getOrCreate()


@contextmanager
def _hushed() -> Iterator[None]:
    """Keep what the Java process that starts here writes to stderr, banners and stack traces, off the terminal."""
    kept = os.dup(2)
    with tempfile.TemporaryFile() as words:
        os.dup2(words.fileno(), 2)
        try:
            yield
        except Exception as error:
            words.seek(0)
            said = words.read().decode(errors="replace").strip().splitlines()
            error.add_note("\n".join(said[-5:]))
            raise
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def write_events(events: Events, path: str, session: SparkSession, progress: Progress) -> WrittenLog:
    """Write the log of two tables as a folder of Parquet files."""
    with explained(), _joined(session, events, progress) as (frame, joined):
        progress("Writing", 0.0)
        frame.write.mode("overwrite").parquet(path)
        written = session.read.parquet(path)
        with named(session, {"written": written}) as views:
            [(rows, page_views, clicks)] = select(session, f"SELECT {LOG_COUNTS} FROM written", views).collect()
        return WrittenLog(rows, page_views, clicks or 0, tuple(frame.columns), joined.findings)
