"""What every engine offers: a log that is open for queries (`OpenLog`), and the results of queries as NumPy columns."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from posbias._arrays import AnyArray, BoolArray, IntArray, numbers_from_arrow
from posbias.errors import PosbiasError
from posbias.findings import Finding, unusable
from posbias.logs.click_log import Segment
from posbias.logs.schema import Columns, Schema
from posbias.progress import Progress, ProgressBar, TimedStep, profile_is_on, silent
from posbias.progress import step as profile_step
from posbias.sql.dialects import Dialect

# The result of a query: its columns by name, numbers as 64-bit arrays and text as arrays of objects. NULL is 0 in a
# column of whole numbers, NaN among other numbers and None in text.
Answer = dict[str, AnyArray]
# The values of the segment columns, one tuple for each segment.


class OpenLog(ABC):
    """A log that is open for queries, which read it as `log`, and its table of rankings, if any, as `rankings`.

    Attributes:
        dialect (Dialect): the SQL of the engine.
        schema (Schema): the roles and types of the columns.
        progress (callable): called with the name of the current step and the share of it that is done.
        findings (tuple of Finding): what was found while a log was joined from events.
        extra_tables (mapping of str to Columns): the columns of the tables that were opened with the log, by name.
        files (sequence of str): the files of the log, if it is not the result of a query over them.
        full_view (str): the view with all columns of the log; `log` may have only those that the schema uses.
        is_sample (bool): whether `log` holds only rows that were sampled from the log.
    """

    dialect: Dialect

    def __init__(self, schema: Schema, progress: Progress, findings: Sequence[Finding] = ()) -> None:
        self.schema = schema
        self.progress = progress
        self.findings = tuple(findings)
        self.extra_tables: Mapping[str, Columns] = {}
        self.files: Sequence[str] = ()
        self.full_view = "log"
        self.is_sample = False

    @abstractmethod
    def rows(self, sql: str, step: str = "") -> list[tuple[Any, ...]]:
        """Run a query and return its few rows; `step` names it in the progress bar."""

    @abstractmethod
    def table(self, sql: str, step: str = "", *, few_groups: bool = False) -> Answer:
        """Run a query and return its columns.

        Arguments:
            sql (str): the query.
            step (str, default ""): the name of the step in the progress bar.
            few_groups (bool, default False): whether the keys of its GROUP BY have at most a few million values.
        """

    def table_up_to(self, sql: str, max_rows: int, step: str = "") -> Answer | None:
        """Run a query and return its columns, or None if it has more than `max_rows` rows."""
        answer = self.table(f"SELECT * FROM (\n{sql}\n) answer LIMIT {max_rows + 1}", step)
        return answer if row_count(answer) <= max_rows else None

    @abstractmethod
    def file_columns(self) -> dict[str, dict[str, str]]:
        """Return the columns and types of each file, if the log has several files."""

    def copied_files(self) -> list[tuple[str, str]]:
        """Return files of the log that are copies of others, each with the other one, where that is known."""
        return []

    def arrow(self, sql: str, step: str = "") -> Any:
        """Run a query and return its result as an Arrow table; only DuckDB does this."""
        raise self._only_duckdb()

    def write(self, sql: str, path: str, step: str = "", metadata: Mapping[str, str] | None = None) -> None:
        """Stream the result of a query into a Parquet file with metadata; only DuckDB does this."""
        raise self._only_duckdb()

    def keep(self, name: str, sql: str, step: str = "") -> None:
        """Keep the result of a query as a table that other queries read by its name; only DuckDB does this."""
        raise self._only_duckdb()

    def _only_duckdb(self) -> PosbiasError:
        return PosbiasError(
            f"Only DuckDB can weight rows, not {self.dialect.name}. Leave out engine, and give the log as files."
        )

    @abstractmethod
    def cache_text(self, extra_columns: Sequence[str] = ()) -> None:
        """Copy a log of CSV or JSON files into a table that is fast to read: the columns in use and the extra ones."""

    @property
    @abstractmethod
    def is_text(self) -> bool:
        """Whether the log is CSV or JSON, so that each query parses all of it again."""

    @property
    def samples_first(self) -> bool:
        """Whether to try an expensive query on a sample first, because its result may be too large."""
        return False

    @property
    def knows_bounds(self) -> bool:
        """Whether the minimum and maximum of a column are known without reading it."""
        return False

    @abstractmethod
    def share_done(self) -> float:
        """Return the share of the running query that is done."""

    @contextmanager
    def ignoring_file_statistics(self) -> Iterator[None]:
        """Ignore the minimum and maximum that files store for each column: they may leave out NaN."""
        yield

    def known_rows(self) -> int | None:
        """Return the number of rows if it is known without reading the log, else None."""
        return None

    def known_minimum(self, columns: Sequence[str]) -> int | None:
        """Return the minimum of some columns of whole numbers if it is known without reading them, else None."""
        return None

    @contextmanager
    def for_samples(self, sampled_rows: str = "") -> Iterator[OpenLog]:
        """Yield the log as samples of it are read fastest: by this engine, or by one that starts no jobs.

        Arguments:
            sampled_rows (str, default ""): a query of the rows of a sample. An engine that answers each query with a
                job may read these rows once, and yield a log of them alone, with `is_sample`.
        """
        yield self

    @contextmanager
    def sample_rows(self, columns: Sequence[str]) -> Iterator[tuple[str, float] | None]:
        """Yield a view with some columns of a sample of the rows, and the share of the rows in it.

        The view can be read once. Yield None if the log is small, or if a sample is not faster to read than all rows.
        """
        yield None

    @contextmanager
    def reporting_progress(self, step: str, sql: str = "") -> Iterator[TimedStep]:
        """Report the progress of the query that runs in the `with` block, and measure it for a profile."""
        rows = self._rows_to_profile if profile_is_on() and "FROM log" in sql else None
        with profile_step(step or "Other queries") as measured, self._drawing_progress(step):
            measured.add_rows(rows_in=rows)
            yield measured

    @cached_property
    def _rows_to_profile(self) -> int | None:
        return self.known_rows()

    @contextmanager
    def _drawing_progress(self, step: str) -> Iterator[None]:
        if not step or self.progress is silent:
            yield
            return
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.1):
                self.progress(step, self.share_done())

        if isinstance(self.progress, ProgressBar) and self.progress.rows is None:
            self.progress.rows = self.known_rows()
        self.progress(step, 0.0)
        # Joined in `finally`: a thread that is alive at exit makes DuckDB print warnings about leaks.
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()
        # An engine that counts the reading and the work after it equally may have reported only half.
        self.progress(step, 1.0)

    def refuse_empty_rankings(self) -> None:
        """Refuse a table of rankings without any ranker."""
        name = self.dialect.as_text(self.dialect.quote(self.schema.ranker))
        if not self.rows(f"SELECT 1 FROM rankings WHERE {name} <> '' LIMIT 1"):
            raise unusable(
                "empty-rankings",
                f"The table of rankings is empty, or has no value in column {self.schema.ranker!r}",
                "It needs one row with the rank for each query, ranker and document. Without such a table, leave out "
                "rankings: posbias then learns the ranks from recurring queries.",
            )


# ---- Results of queries


def from_arrow(table: Any) -> Answer:
    """Return the columns of an Arrow table as NumPy arrays."""
    return {name: _column_from_arrow(table.column(name)) for name in table.column_names}


def _column_from_arrow(column: Any) -> AnyArray:
    import pyarrow as pa

    type_ = column.type
    if not (pa.types.is_integer(type_) or pa.types.is_floating(type_)):
        return np.array([*column.to_pylist(), None], dtype=object)[:-1]
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count:
        array = array.fill_null(0 if pa.types.is_integer(type_) else float("nan"))
    return as_64_bit(numbers_from_arrow(array))


def as_64_bit(column: AnyArray) -> AnyArray:
    """Return a column as int64, float64 or objects, with masked values replaced as in `Answer`."""
    is_int, is_float = np.issubdtype(column.dtype, np.integer), np.issubdtype(column.dtype, np.floating)
    if isinstance(column, np.ma.MaskedArray):
        missing: Any = 0 if is_int else np.nan if is_float else None
        column = np.where(np.ma.getmaskarray(column), missing, column.data)
    return column.astype(np.int64 if is_int else np.float64 if is_float else object, copy=False)


def filter_rows(answer: Answer, mask: BoolArray) -> Answer:
    """Return the rows where the mask is true; without a copy if it is true everywhere."""
    return answer if mask.all() else {name: column[mask] for name, column in answer.items()}


def stack_columns(answers: Sequence[Answer], names: Sequence[str]) -> Answer:
    """Concatenate the named columns of several answers."""
    if len(answers) == 1:
        return {name: answers[0][name] for name in names}
    return {name: np.concatenate([answer[name] for answer in answers]) for name in names}


def row_count(answer: Answer) -> int:
    """Return the number of rows of an answer."""
    return len(next(iter(answer.values())))


def segment_numbers(answer: Answer, names: Sequence[str]) -> tuple[IntArray, list[Segment]]:
    """Return the number of each row's segment, and the segments by number (sorted, null first)."""
    if not names:
        return np.zeros(row_count(answer), dtype=np.int64), [()]
    keys = list(zip(*(answer[name] for name in names), strict=True))
    segments = merge_segments([keys])
    number = {key: i for i, key in enumerate(segments)}
    return np.array([number[key] for key in keys], dtype=np.int64), segments


def merge_segments(parts: Sequence[Sequence[Segment]]) -> list[Segment]:
    """Return the distinct segments of several answers (sorted, null first)."""
    return sorted({*chain(*parts)}, key=lambda key: [(value is not None, value or "") for value in key])
