"""The engine for logs that outgrow one machine."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from posbias.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from posbias.engines.events import WrittenLog
    from posbias.engines.opened import OpenLog
    from posbias.logs.click_log import ClickLog
    from posbias.logs.events import Events


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
        from posbias.engines.spark.opened import open_log, session_of

        return open_log(log, self.session or session_of(log, self.master, self.conf), progress=progress)

    def write(self, events: Events, path: str, progress: Progress) -> WrittenLog:
        """Write the log that events make as a folder of Parquet files."""
        from posbias.engines.spark.events import write_events
        from posbias.engines.spark.opened import session_of
        from posbias.logs.click_log import ClickLog

        session = self.session or session_of(ClickLog(events), self.master, self.conf)
        return write_events(events, path, session, progress)
