"""Engines that read a log and run SQL on it: DuckDB in this process, or Spark.

An engine is a value, `DuckDB(...)` or `Spark(...)`. `open_log` opens a log with it, and returns an `OpenLog` that runs
queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Literal

from posbias._text import listed
from posbias.engines.base import OpenLog
from posbias.engines.duckdb import DuckDB
from posbias.engines.events import WrittenLog
from posbias.engines.files import verify_checksums
from posbias.engines.spark import Spark
from posbias.errors import PosbiasError
from posbias.logs.click_log import ClickLog
from posbias.progress import Progress, silent, step

EngineName = Literal["duckdb", "spark"]
# An engine as users give it: a value, or a name for its defaults.
EngineChoice = DuckDB | Spark | EngineName
ENGINES: dict[str, type[DuckDB] | type[Spark]] = {"duckdb": DuckDB, "spark": Spark}
# The engine of every log that is not a Spark DataFrame.
DEFAULT = "duckdb"

__all__ = [
    "DEFAULT",
    "ENGINES",
    "DuckDB",
    "EngineChoice",
    "EngineName",
    "OpenLog",
    "Spark",
    "WrittenLog",
    "choose_engine",
    "open_log",
]


def open_log(
    log: ClickLog,
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    *,
    extra_tables: Mapping[str, Any] | None = None,
    outputs: Sequence[str] = (),
) -> AbstractContextManager[OpenLog]:
    """Open a log with an engine, for as long as the `with` block lasts.

    Arguments:
        log (ClickLog): the log to open.
        engine (DuckDB, Spark or str, optional): the engine. By default a Spark DataFrame is opened by Spark, and any
            other log by DuckDB.
        progress (callable, optional): called with the name of the current step and the share of it that is done.
        extra_tables (mapping, optional): more tables to open, by the name that queries use for each. A table is a
            source like that of a log, or the name of a table in the same DuckDB file. Only DuckDB takes them.
        outputs (sequence of str, default ()): files that queries may write to. Only DuckDB takes them.
    """
    chosen = choose_engine(log, engine)
    if not callable(progress):
        raise PosbiasError(
            f"progress must be a function of a step's name and the share of it that is done, not {progress!r}."
        )
    return _open(chosen, log, progress, extra_tables or {}, outputs)


def choose_engine(log: ClickLog, engine: EngineChoice | None = None) -> DuckDB | Spark:
    """Return the engine as a value: the given one, or the default of the log."""
    if not isinstance(log, ClickLog):
        raise PosbiasError(
            f"Expected a ClickLog, not a {type(log).__name__}. Describe the log first: ClickLog(log), where log is a "
            "path, a data frame or an Arrow table."
        )
    if engine is None:
        engine = Spark() if type(log.sources[0]).__module__.startswith("pyspark.") else ENGINES[DEFAULT]()
    elif isinstance(engine, str) and engine in ENGINES:
        engine = ENGINES[engine]()
    if not isinstance(engine, DuckDB | Spark):
        raise PosbiasError(
            f"Unknown engine {engine!r}. Use one of {listed(ENGINES)}, or a value such as "
            "posbias.DuckDB(memory_limit='2GB')."
        )
    return engine


@contextmanager
def _open(
    engine: DuckDB | Spark, log: ClickLog, progress: Progress, extra_tables: Mapping[str, Any], outputs: Sequence[str]
) -> Iterator[OpenLog]:
    if extra_tables and not isinstance(engine, DuckDB):
        raise PosbiasError(
            f"Only DuckDB can join tables ({listed(extra_tables)}) with the log. Leave out engine={engine.name!r}, and "
            "give the log as files."
        )
    with ExitStack() as stack:
        with step("Opening the log"):
            for source in (log, *map(ClickLog, extra_tables.values())):
                stack.enter_context(verify_checksums(source))
            if isinstance(engine, DuckDB):
                opened = stack.enter_context(engine.open(log, progress, extra_tables, outputs))
            else:
                opened = stack.enter_context(engine.open(log, progress))
        yield opened
