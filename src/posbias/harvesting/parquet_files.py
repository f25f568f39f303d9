"""Parquet files that anyone may have written, or damaged: read within bounds, or refused."""

from __future__ import annotations

from typing import Any

from posbias.harvesting.counts import MAX_STRATA
from posbias.records import UnfitError

# What a file may say of itself, and how many columns and row groups it may have.
_MOST_TEXT = 64 * 2**20
_MOST_PARTS = 1_000_000
# Far beyond what a harvest keeps; a file of a few bytes can claim any number.
_MOST_ROWS = 50 * MAX_STRATA


def read_parquet(name: str) -> Any:
    """Return a Parquet file as an Arrow table, its pages checked where they have checksums."""
    import pyarrow.parquet as pq

    try:
        # Not a dataset: a name such as a=1/x.parquet adds no column.
        with pq.ParquetFile(
            name,
            thrift_string_size_limit=_MOST_TEXT,
            thrift_container_size_limit=_MOST_PARTS,
            page_checksum_verification=True,
        ) as file:
            if file.metadata.num_rows <= _MOST_ROWS:
                return file.read()
            rows = file.metadata.num_rows
    # What a reader raises on hostile bytes is anything: errors of Arrow, of memory, of text, of Python.
    except Exception as error:
        raise UnfitError(f"it cannot be read as Parquet ({gist(error)})") from None
    raise UnfitError(f"it claims to have {rows:,} rows where up to {_MOST_ROWS:,} can be held")


def gist(error: Exception) -> str:
    """Return the first line of what a reader says."""
    return (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__
