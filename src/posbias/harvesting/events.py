"""Write the click log that impressions and clicks make as a file, with the engine: no row passes through Python."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from posbias._files import atomic_write, atomic_write_folder, writable
from posbias._validate import as_path, boolean
from posbias.engines import EngineChoice, WrittenLog, choose_engine
from posbias.engines.files import file_format, local_path, refuse_overwriting, verify_checksums
from posbias.errors import LogError, PosbiasError
from posbias.logs.click_log import ClickLog, Events
from posbias.progress import Progress, silent


def write_events(
    log: ClickLog,
    output: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    engine: EngineChoice | None = None,
    progress: Progress = silent,
) -> WrittenLog:
    """Write the log of `ClickLog.from_events` as a Parquet file.

    Arguments:
        log (ClickLog): the log that two tables of events make.
        output (str or path): the Parquet file to write. With Spark it is a folder, which may be on storage that only
            the cluster can access.
        overwrite (bool, default False): replace a log that exists already.
        engine (str, DuckDB or Spark, default None): as in `harvest`.
        progress (callable, default silent): called with the name of the current step.

    Returns:
        WrittenLog: the numbers of rows, page views and clicks, and the findings.

    Example:
        >>> import posbias, pyarrow, tempfile
        >>> views = {"impression_id": [1], "query_id": ["tea"], "doc_ids": [["x", "y"]], "ranker": ["a"]}
        >>> taps = {"impression_id": [1, 1], "doc_id": ["y", "y"]}
        >>> log = posbias.ClickLog.from_events(pyarrow.table(views), pyarrow.table(taps))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = write_events(log, f"{folder}/log.parquet")
        >>> written.rows, written.page_views, written.clicks, [finding.code for finding in written.findings]
        (2, 1, 1, ['double-clicks'])
    """
    if not isinstance(log, ClickLog) or not isinstance(log.source, Events):
        raise LogError("Expected a log of events: ClickLog.from_events(impressions, clicks) makes one.")
    runner = choose_engine(log, engine)
    name = local_path(as_path("output", output))
    refuse_overwriting(name, log.sources)
    spark = runner.name == "spark"
    with verify_checksums(log), _place(name, overwrite=overwrite, folder=spark) as draft:
        # Only Spark knows the files of its tables, and what is on remote storage.
        target: dict[str, Any] = {"output": name, "overwrite": overwrite} if spark else {}
        return runner.write(log.source, draft, progress, **target)


@contextmanager
def _place(name: str, *, overwrite: bool, folder: bool) -> Iterator[str]:
    """Yield a draft path, which becomes `name` once it is written completely."""
    remote = folder and "://" in name
    # What is no file is not to be replaced.
    if not remote and not (folder and os.path.isdir(name)):
        writable(name)
    if not remote and os.path.lexists(name) and not boolean("overwrite", overwrite):
        raise PosbiasError(f"{name!r} is there already. Name another file, or replace it.", {"overwrite": True})
    if not folder and file_format(name) != "parquet":
        raise PosbiasError(f"The log is written as Parquet, which {name!r} does not say: end its name with .parquet.")
    if remote:
        # Spark itself marks a folder as complete there.
        yield name
    elif folder:
        with atomic_write_folder(name) as draft:
            yield draft
    else:
        with atomic_write(name) as draft:
            yield draft
