"""What runs the SQL of a harvest: an embedded DuckDB, or Spark."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal

from posbias.engines.engine import Engine
from posbias.errors import PosbiasError
from posbias.logs.click_log import ClickLog
from posbias.progress import Progress, silent
from posbias.wording import listed

EngineName = Literal["duckdb", "spark"]
ENGINES: tuple[EngineName, ...] = ("duckdb", "spark")
# What runs a log that does not itself say by what.
DEFAULT: EngineName = "duckdb"

__all__ = ["ENGINES", "Engine", "EngineName", "open_log"]


def open_log(
    log: ClickLog,
    *,
    engine: EngineName | None = None,
    memory_limit: str | None = None,
    threads: int | None = None,
    progress: Progress = silent,
) -> AbstractContextManager[Engine]:
    """Open a log for as long as a block lasts; a Spark DataFrame is opened by Spark without being told."""
    framed = type(log.source).__module__.startswith("pyspark.")
    chosen = engine or ("spark" if framed else DEFAULT)
    if chosen not in ENGINES:
        raise PosbiasError(f"The engine {chosen!r} is not known. Use one of {listed(ENGINES)}.")
    if chosen == "duckdb":
        if framed:
            raise PosbiasError("The log is a Spark DataFrame, which DuckDB cannot read. Leave engine='duckdb' out.")
        from posbias.engines.duckdb import engine as duckdb

        return duckdb.open_log(log, memory_limit=memory_limit, threads=threads, progress=progress)
    if memory_limit is not None or threads is not None:
        raise PosbiasError(
            "The memory limit and the number of threads are DuckDB's. Spark has settings of its own, such as "
            "spark.executor.memory and spark.executor.cores: give them to the session, or with --spark-conf NAME=VALUE."
        )
    from posbias.engines.spark import engine as spark

    return spark.open_log(log, progress=progress)
