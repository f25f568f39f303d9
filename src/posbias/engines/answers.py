"""What an engine answers: a few columns by name, numbers as 64-bit arrays and texts as arrays of objects."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from posbias.arrays import AnyArray, BoolArray, IntArray

# Where SQL has NULL, a whole number is 0, another number NaN and a text None.
Answer = dict[str, AnyArray]


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


def rows_of(answer: Answer) -> int:
    """Return how many rows an answer has."""
    return len(next(iter(answer.values())))


def select(answer: Answer, mask: BoolArray) -> Answer:
    """Return the rows where the mask holds; the answer itself where that is all of them."""
    return answer if mask.all() else {name: column[mask] for name, column in answer.items()}


def stacked(answers: Sequence[Answer], names: Sequence[str]) -> Answer:
    """Return some columns of several answers, one answer under the other."""
    if len(answers) == 1:
        return {name: answers[0][name] for name in names}
    return {name: np.concatenate([answer[name] for answer in answers]) for name in names}


Segments = list[tuple[str | None, ...]]


def segment_numbers(answer: Answer, names: Sequence[str]) -> tuple[IntArray, Segments]:
    """Return the number of each row's segment, and the segments by number (sorted, null first)."""
    if not names:
        return np.zeros(rows_of(answer), dtype=np.int64), [()]
    keys = list(zip(*(answer[name] for name in names), strict=True))
    found = joined_segments([keys])
    number = {key: i for i, key in enumerate(found)}
    return np.array([number[key] for key in keys], dtype=np.int64), found


def joined_segments(found: Sequence[Segments]) -> Segments:
    """Return the segments of several answers, each once (sorted, null first)."""
    return sorted({*chain(*found)}, key=lambda key: [(value is not None, value or "") for value in key])
