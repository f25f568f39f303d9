"""An opened log, and the answers of an engine."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np

from posbias._arrays import AnyArray, BoolArray, IntArray
from posbias.errors import PosbiasError
from posbias.findings import Finding, unusable
from posbias.logs.schema import Columns, Schema
from posbias.progress import Progress, ProgressBar, silent
from posbias.sql.dialects import Dialect

# Where SQL has NULL, a whole number is 0, another number NaN and a text None.
Answer = dict[str, AnyArray]
Segments = list[tuple[str | None, ...]]


def from_arrow(table: Any) -> Answer:
    """Return the columns of an Arrow table."""
    return {name: _from_arrow(table.column(name)) for name in table.column_names}


def _from_arrow(column: Any) -> AnyArray:
    import pyarrow as pa

    type_ = column.type
    if not (pa.types.is_integer(type_) or pa.types.is_floating(type_)):
        return np.array([*column.to_pylist(), None], dtype=object)[:-1]
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if array.null_count:
        array = array.fill_null(0 if pa.types.is_integer(type_) else float("nan"))
    # The memory as it is: Arrow's own conversion would import pandas where that is installed.
    values = np.frombuffer(array.buffers()[1] or b"", dtype=type_.to_pandas_dtype())
    return plain(values[array.offset : array.offset + len(array)])


def plain(column: AnyArray) -> AnyArray:
    """Return a column without a mask, in 64 bits."""
    whole, real = np.issubdtype(column.dtype, np.integer), np.issubdtype(column.dtype, np.floating)
    if isinstance(column, np.ma.MaskedArray):
        missing: Any = 0 if whole else np.nan if real else None
        column = np.where(np.ma.getmaskarray(column), missing, column.data)
    return column.astype(np.int64 if whole else np.float64 if real else object, copy=False)


def filter_rows(answer: Answer, mask: BoolArray) -> Answer:
    """Return the rows where the mask holds; the answer itself where that is all of them."""
    return answer if mask.all() else {name: column[mask] for name, column in answer.items()}


def stack_columns(answers: Sequence[Answer], names: Sequence[str]) -> Answer:
    """Return some columns of several answers, one answer under the other."""
    if len(answers) == 1:
        return {name: answers[0][name] for name in names}
    return {name: np.concatenate([answer[name] for answer in answers]) for name in names}


def segment_numbers(answer: Answer, names: Sequence[str]) -> tuple[IntArray, Segments]:
    """Return the number of each row's segment, and the segments by number (sorted, null first)."""
    if not names:
        return np.zeros(row_count(answer), dtype=np.int64), [()]
    keys = list(zip(*(answer[name] for name in names), strict=True))
    found = merge_segments([keys])
    number = {key: i for i, key in enumerate(found)}
    return np.array([number[key] for key in keys], dtype=np.int64), found


def row_count(answer: Answer) -> int:
    """Return how many rows an answer has."""
    return len(next(iter(answer.values())))


def merge_segments(found: Sequence[Segments]) -> Segments:
    """Return the segments of several answers, each once (sorted, null first)."""
    return sorted({*chain(*found)}, key=lambda key: [(value is not None, value or "") for value in key])


class OpenLog(ABC):
    """One log opened as `log`, and its rankings, if it has any, as `rankings`."""

    dialect: Dialect

    def __init__(self, schema: Schema, progress: Progress, findings: Sequence[Finding] = ()) -> None:
        self.schema = schema
        self.progress = progress
        # What was found while the log was made of events.
        self.findings = tuple(findings)
        # The columns of the tables that were opened beside the log, by the names under which they are selected from.
        self.extra_tables: Mapping[str, Columns] = {}
        # Where columns that are not used are selected from, too.
        self.full_view = "log"

    @abstractmethod
    def rows(self, sql: str, doing: str = "") -> list[tuple[Any, ...]]:
        """Run a query whose answer is small."""

    @abstractmethod
    def table(self, sql: str, doing: str = "", *, few_groups: bool = False) -> Answer:
        """Run a query and return its answer; `few_groups` says that its keys can only have some million values."""

    def table_up_to(self, sql: str, most: int, doing: str = "") -> Answer | None:
        """Run a query and return its answer; None if it has more than `most` rows."""
        answer = self.table(f"SELECT * FROM (\n{sql}\n) answer LIMIT {most + 1}", doing)
        return answer if len(next(iter(answer.values()))) <= most else None

    @abstractmethod
    def file_columns(self) -> dict[str, dict[str, str]]:
        """Return the columns and types of each file of the log, where it has several."""

    def arrow(self, sql: str, doing: str = "") -> Any:
        """Run a query and return its answer as an Arrow table."""
        raise self._for_duckdb()

    def write(self, sql: str, path: str, doing: str = "") -> None:
        """Write the answer to a query as a Parquet file, as it is made."""
        raise self._for_duckdb()

    def _for_duckdb(self) -> PosbiasError:
        return PosbiasError(
            f"Rows are weighed by DuckDB alone, not by {self.dialect.name}. Leave the engine out, and give the log as "
            "files."
        )

    @abstractmethod
    def cache_text(self, more: Sequence[str] = ()) -> None:
        """Keep what is read slowly, such as text, in a form that is read fast again; with more columns of it."""

    @property
    @abstractmethod
    def is_text(self) -> bool:
        """Whether the log is text, of which every look has to read all columns anew."""

    @property
    def samples_first(self) -> bool:
        """Whether an answer that may be too large is dear enough to look first at a part of it."""
        return False

    @property
    def knows_bounds(self) -> bool:
        """Whether the least and the greatest value of a column are known without reading it."""
        return False

    @abstractmethod
    def done(self) -> float:
        """Return the share of the running query that is done."""

    @contextmanager
    def ignoring_file_statistics(self) -> Iterator[None]:
        """Believe only what is read of columns, and not what files say of them, which may leave NaN out."""
        yield

    def known_rows(self) -> int | None:
        """Return the rows of the log where that takes no reading of it."""
        return None

    def known_minimum(self, columns: Sequence[str]) -> int | None:
        """Return the least whole number in some columns where that takes no reading of them."""
        return None

    @contextmanager
    def sample_rows(self, columns: Sequence[str]) -> Iterator[tuple[str, float] | None]:
        """Yield the name by which some columns of a part of the rows can be selected once, and how large a part it is.

        None where no part of a log is read faster than all of it, or the log is small.
        """
        yield None

    @contextmanager
    def reporting_progress(self, doing: str) -> Iterator[None]:
        """Tell the progress of the query that runs inside."""
        if not doing or self.progress is silent:
            yield
            return
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.1):
                self.progress(doing, self.done())

        if isinstance(self.progress, ProgressBar) and self.progress.rows is None:
            self.progress.rows = self.known_rows()
        self.progress(doing, 0.0)
        # Joined before the query's answer is used: a thread alive at exit makes DuckDB print leak warnings.
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()
        # An engine that counts what follows the reading as much as the reading may be done at half.
        self.progress(doing, 1.0)

    def refuse_empty_rankings(self) -> None:
        """Refuse a second table that names no ranker: nothing would be known of any row."""
        name = self.dialect.as_text(self.dialect.quote(self.schema.ranker))
        if not self.rows(f"SELECT 1 FROM rankings WHERE {name} <> '' LIMIT 1"):
            raise unusable(
                "empty-rankings",
                f"The rankings table names no ranker: it is empty, or has no value in column {self.schema.ranker!r}",
                "It must have a row for each query, ranker and document with the rank. Without such a table, leave "
                "rankings out to learn the ranks from recurring queries.",
            )
