"""An exported answer as columns: CSV or Parquet, in whatever types and spelling a warehouse writes them."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from posbias.arrays import BoolArray, IntArray
from posbias.engines.answers import from_arrow
from posbias.errors import HarvestError
from posbias.harvesting.file_kinds import csv_header, open_csv
from posbias.harvesting.parquet_files import gist, read_parquet
from posbias.records import UnfitError, shown
from posbias.wording import printable

# Ways to write a missing value. No text of an answer is one of them.
_MISSING = ["", "NULL", "null", "\\N", "None", "nan", "NaN", "NA", "<NA>"]
# Up to here a fraction of 64 bits tells every whole number.
_EXACT = 2**53


def read_columns(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the columns of an export by their names in lower case, as Arrow arrays."""

    name = os.fspath(path)
    with open(name, "rb") as file:
        parquet = file.read(4) == b"PAR1"
    try:
        table = read_parquet(name) if parquet else _read_csv(name)
    except UnfitError as error:
        raise HarvestError(
            f"The export {name!r} cannot be used: {printable(str(error))}. It may have been cut: export the whole "
            "result again."
        ) from None
    names = [column.strip().lower() for column in table.column_names]
    twice = sorted({column for column in names if names.count(column) > 1})
    if twice:
        raise HarvestError(f"The export {name!r} has the column {twice[0]!r} twice. Export the result as it is.")
    return {column: table.column(i).combine_chunks() for i, column in enumerate(names)}


def _read_csv(name: str) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    names, delimiter = csv_header(name)
    try:
        with open_csv(name) as file:
            return csv.read_csv(
                file,
                read_options=csv.ReadOptions(column_names=names, skip_rows=1),
                parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    null_values=_MISSING,
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=True,
                ),
            )
    # What readers raise on hostile bytes is anything: errors of Arrow, of zlib, of text, of memory.
    except Exception as error:
        raise UnfitError(f"it cannot be read as CSV ({gist(error)})") from None


def texts(column: Any, name: str) -> list[str | None]:
    """Return a column of texts."""
    import pyarrow as pa

    try:
        values = column.to_pylist()
    except UnicodeDecodeError:
        raise UnfitError(f"its column {name} holds bytes that are not text in UTF-8") from None
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return [value if value is None else value.decode("utf-8", "replace") for value in values]
    return [value if value is None else str(value) for value in values]


def numbers(column: Any, name: str) -> tuple[IntArray, BoolArray]:
    """Return a column of whole numbers, with 0 for a missing one, and which are missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        whole = _whole(column)
    except (pa.ArrowException, OverflowError):
        example = next((value for value in texts(column, name) if not _is_whole(value)), column.type)
        raise UnfitError(f"its column {name} holds {shown(str(example))}, which is not a whole number") from None
    missing = np.zeros(len(whole), dtype=np.bool_)
    if whole.null_count:
        missing[:] = pc.is_null(whole).to_pylist()
    return from_arrow(pa.table({name: whole}))[name], missing


def _whole(column: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_boolean(column.type):
        raise pa.ArrowInvalid("a boolean is no number")
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return pc.cast(column, pa.int64())
    trimmed = pc.utf8_trim_whitespace(column)
    try:
        return pc.cast(trimmed, pa.int64())
    except pa.ArrowInvalid:
        # 3.0, as tools write it that make a column with missing values one of fractions.
        real = pc.cast(trimmed, pa.float64())
        if pc.any(pc.greater_equal(pc.abs(real), _EXACT)).as_py():
            raise
        return pc.cast(real, pa.int64())


def _is_whole(text: str | None) -> bool:
    try:
        return text is None or (abs(float(text)) < _EXACT and float(text) % 1 == 0)
    except (ValueError, OverflowError):
        return False
