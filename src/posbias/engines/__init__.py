"""What runs the SQL of a harvest: an engine is a value, an embedded DuckDB or Spark, that opens a log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Literal

from posbias._text import listed
from posbias.engines.base import OpenLog
from posbias.engines.duckdb import DuckDB
from posbias.engines.events import WrittenLog
from posbias.engines.files import verified
from posbias.engines.spark import Spark
from posbias.errors import PosbiasError
from posbias.logs.click_log import ClickLog
from posbias.progress import Progress, silent

EngineName = Literal["duckdb", "spark"]
# What a user says of the engine: a value, or the name of one without limits of its own.
EngineChoice = DuckDB | Spark | EngineName
ENGINES: dict[str, type[DuckDB] | type[Spark]] = {"duckdb": DuckDB, "spark": Spark}
# What runs a log that does not itself say by what.
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
    "chosen_engine",
    "open_log",
]


def open_log(
    log: ClickLog,
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    *,
    beside: Mapping[str, Any] | None = None,
    outputs: Sequence[str] = (),
) -> AbstractContextManager[OpenLog]:
    """Open a log for as long as a block lasts; a Spark DataFrame is opened by Spark without being told.

    `beside` are further tables, by the names under which queries call them: sources as a log is, or the names of tables
    in the same DuckDB file. `outputs` are files that answers may be written to. Both are for DuckDB alone.
    """
    chosen = chosen_engine(log, engine)
    if not callable(progress):
        raise PosbiasError(f"progress must be a function of what is being done and the share done, not {progress!r}.")
    return _opened(chosen, log, progress, beside or {}, outputs)


def chosen_engine(log: ClickLog, engine: EngineChoice | None = None) -> DuckDB | Spark:
    """Return the engine as a value: the one that was chosen, or that of the log."""
    if not isinstance(log, ClickLog):
        raise PosbiasError(f"Expected a click log, not a {type(log).__name__}: ClickLog('clicks.parquet') makes one.")
    if engine is None:
        engine = Spark() if type(log.sources[0]).__module__.startswith("pyspark.") else ENGINES[DEFAULT]()
    elif isinstance(engine, str) and engine in ENGINES:
        engine = ENGINES[engine]()
    if not isinstance(engine, DuckDB | Spark):
        raise PosbiasError(
            f"The engine {engine!r} is not known. Use one of {listed(ENGINES)}, or a value such as "
            "posbias.DuckDB(memory_limit='2GB')."
        )
    return engine


@contextmanager
def _opened(
    engine: DuckDB | Spark, log: ClickLog, progress: Progress, beside: Mapping[str, Any], outputs: Sequence[str]
) -> Iterator[OpenLog]:
    if beside and not isinstance(engine, DuckDB):
        raise PosbiasError(
            f"Tables beside the log ({listed(beside)}) are joined with it by DuckDB alone. Leave "
            f"engine={engine.name!r} out, and give the log as files."
        )
    with ExitStack() as stack:
        for source in (log, *map(ClickLog, beside.values())):
            stack.enter_context(verified(source))
        if isinstance(engine, DuckDB):
            yield stack.enter_context(engine.open(log, progress, beside, outputs))
        else:
            yield stack.enter_context(engine.open(log, progress))
