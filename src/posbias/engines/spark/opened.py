"""The engine for logs that outgrow one machine: the same queries on Spark, of which only the answers come back."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from posbias.engines.files import file_format
from posbias.engines.opened import OpenLog
from posbias.engines.spark.errors import INSTALL_JAVA, explained
from posbias.errors import PosbiasError
from posbias.extras import optional
from posbias.findings import Finding
from posbias.logs.click_log import ClickLog
from posbias.logs.events import Events
from posbias.logs.schemas import ANY_RANKER, NATURAL, Schema, resolve
from posbias.progress import Progress
from posbias.sql.spark import SparkDialect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from posbias.engines.answers import Answer


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
        with explained(schema=self.schema), self._grouped(doing), self.watched(doing):
            return [tuple(row) for row in self.frame(sql).collect()]

    def table(self, sql: str, doing: str = "", *, few_groups: bool = False) -> Answer:
        """Run a query and return its answer."""
        from posbias.engines.answers import from_arrow

        with explained(schema=self.schema), self._grouped(doing), self.watched(doing):
            return from_arrow(self.frame(sql).toArrow())

    def file_columns(self) -> dict[str, dict[str, str]]:
        """Return the columns and types of each file of the log, where it has several."""
        from posbias.engines.spark.sources import read_files, types_of

        if len(self._files) < 2:
            return {}
        with explained():
            return {file: types_of(read_files(self._session, [file])[0]) for file in self._files}

    def keep(self, more: Sequence[str] = ()) -> None:
        """Leave it where it is: whether a cluster has room for a copy is not ours to say."""

    @property
    def is_text(self) -> bool:
        """Whether the log is text, of which every look has to read all columns anew."""
        return bool(self._files) and file_format(self._files[0]) in ("csv", "json")

    @property
    def looks_first(self) -> bool:
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


@contextmanager
def open_log(log: ClickLog, session: SparkSession, *, progress: Progress) -> Iterator[SparkLog]:
    """Open a log in a session."""
    from posbias.engines.spark.events import open_events
    from posbias.engines.spark.sources import open_source

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
        schema = resolve(log, opened.columns, second.columns if second else None)
        if schema.natural:
            from pyspark.sql.functions import lit

            opened.frame.withColumn(NATURAL, lit(ANY_RANKER)).createOrReplaceTempView(views["log"])
        engine = SparkLog(session, schema, views, opened.files, progress, findings)
        if schema.layout.ranks_in == "table":
            engine.refuse_empty_rankings()
        yield engine


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


def select(session: SparkSession, sql: str, views: Mapping[str, str]) -> DataFrame:
    """Return a query that calls views of the session by other names."""
    named = ",\n".join(f"{name} AS (SELECT * FROM {view})" for name, view in views.items())
    return session.sql(f"WITH {named}\nSELECT * FROM (\n{sql}\n) answer")


def session_of(log: ClickLog, master: str | None, conf: Mapping[str, str]) -> SparkSession:
    """Return the session of a log's DataFrame, else the active one; one is started where there is none."""
    _require_spark()
    from pyspark.sql import SparkSession

    if type(log.sources[0]).__module__.startswith("pyspark."):
        session: SparkSession = log.sources[0].sparkSession
        return session
    return SparkSession.getActiveSession() or start_session(master, conf)


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


def _require_spark() -> None:
    with warnings.catch_warnings():
        # It warns of new versions of pandas, which is not used here.
        warnings.simplefilter("ignore", FutureWarning)
        optional("pyspark.sql", "The engine Spark needs")


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
