"""The default engine: DuckDB in this process. It spills to disk under a memory limit.

`duckdb_sources` reads files, tables and data in memory. `duckdb_log` is the opened log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from posbias._validate import integer
from posbias.errors import PosbiasError
from posbias.progress import Progress

if TYPE_CHECKING:
    from posbias.engines.base import OpenLog
    from posbias.engines.events import WrittenLog
    from posbias.logs.click_log import ClickLog, Events

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
        from posbias.engines.duckdb_log import open_duckdb_log

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
        from posbias.engines.duckdb_log import write_events

        return write_events(events, path, memory_limit=self.memory_limit, threads=self.threads, progress=progress)
