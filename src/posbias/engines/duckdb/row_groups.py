"""Some row groups of Parquet files, read without the others: DuckDB would ask every row for its place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# Difference sets (Singer): of each of them every distance modulo its period is that of just one pair. A batch of row
# groups that stands in the log twice, however far away, meets itself among those taken if it has as many as the period.
_TAKEN = {57: (0, 1, 3, 13, 32, 36, 43, 52), 21: (0, 1, 4, 14, 16)}
# So often the period fits into a log before so few of its row groups are taken for all.
_PERIODS = 2
_BATCH = 2**17


@dataclass(frozen=True)
class RowGroups:
    """Row groups of some files, and how large a share of all rows they hold."""

    files: Sequence[tuple[Any, list[int]]]
    columns: Sequence[str]
    schema: Any
    share: float

    def reader(self) -> Any:
        """Return their columns as they are read, a piece at a time."""
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def _batches(self) -> Iterator[Any]:
        for file, groups in self.files:
            yield from file.iter_batches(_BATCH, row_groups=groups, columns=list(self.columns))


def some_row_groups(names: Sequence[str], columns: Sequence[str]) -> RowGroups | None:
    """Return some row groups, spread over all files; None where there are few, or files differ in the columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        files = [pq.ParquetFile(name) for name in names]
    except (pa.ArrowException, OSError):
        # What is wrong with a file is told by the engine, which reads all of it.
        return None
    sizes = [file.metadata.num_row_groups for file in files]
    period = next((period for period in _TAKEN if sum(sizes) >= _PERIODS * period), None)
    schemas = [file.schema_arrow for file in files]
    if period is None or any(schema.names.count(column) != 1 for schema in schemas for column in columns):
        return None
    fields = [[schema.field(column).remove_metadata() for column in columns] for schema in schemas]
    if any(own != fields[0] for own in fields):
        return None
    taken, first, rows = [], 0, 0
    for file, size in zip(files, sizes, strict=True):
        groups = [group for group in range(size) if (first + group) % period in _TAKEN[period]]
        rows += sum(file.metadata.row_group(group).num_rows for group in groups)
        taken.append((file, groups))
        first += size
    total = sum(file.metadata.num_rows for file in files)
    return RowGroups(taken, columns, pa.schema(fields[0]), rows / total) if rows else None
