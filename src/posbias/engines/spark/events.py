"""Two tables of events as a log of a Spark session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from posbias.engines.events import LOG_COUNTS, Joined, WrittenLog, join_events
from posbias.engines.spark.errors import explained
from posbias.engines.spark.opened import named, select
from posbias.engines.spark.sources import Opened, open_source, types_of
from posbias.findings import Finding
from posbias.logs.events import Events
from posbias.logs.schemas import Columns
from posbias.progress import Progress
from posbias.sql.spark import SparkDialect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def open_events(
    session: SparkSession, events: Events, progress: Progress
) -> Iterator[tuple[Opened, Sequence[Finding]]]:
    """Yield the log of two tables, which is joined anew whenever it is looked at."""
    with _joined(session, events, progress) as (frame, joined):
        types = types_of(frame)
        yield Opened(frame, [], Columns(types, {name: name for name in types})), joined.findings


def write_events(events: Events, path: str, session: SparkSession, progress: Progress) -> WrittenLog:
    """Write the log of two tables as a folder of Parquet files."""
    with explained(), _joined(session, events, progress) as (frame, joined):
        progress("Writing", 0.0)
        frame.write.mode("overwrite").parquet(path)
        written = session.read.parquet(path)
        with named(session, {"written": written}) as views:
            [(rows, page_views, clicks)] = select(session, f"SELECT {LOG_COUNTS} FROM written", views).collect()
        return WrittenLog(rows, page_views, clicks or 0, tuple(frame.columns), joined.findings)


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
