"""What a file is, told from the names of its columns and its metadata: a harvest, saved or exported, or a log."""

from __future__ import annotations

import csv
import os
import zlib
from collections.abc import Iterable
from typing import Any

from posbias.engines.headers import DELIMITERS, first_record
from posbias.reading import odd_kind, parquet_footer

# Where a Parquet file that is a harvest says so, and what it holds.
METADATA_KEY = b"posbias.harvest"
# The columns of an answer to a query of `posbias sql`, by what was counted; a warehouse may write them in capitals.
_ANSWER = {"about", "answer_rows", "bucket", "row_count"}
_EXPORTED = (_ANSWER | {"ranker", "code_0", "impressions", "clicks"}, _ANSWER | {"stratum", "pairs"})
# Columns that a log has and no answer.
_LOGGED = {"query_id", "doc_id", "position"}
# As much of a CSV file as holds its header.
_HEAD = 2**16
_GZIP = b"\x1f\x8b"


def is_harvest(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a harvest rather than a log: saved by posbias, or exported by a warehouse."""
    if odd_kind(path) is not None:
        return False
    footer = parquet_footer(path)
    if footer is None:
        return is_export(path)
    return (METADATA_KEY in footer and METADATA_KEY in _described(path)[1]) or _is_exported(path, footer)


def is_export(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is the answer to a query of `posbias sql`, or a part of it: whether its columns say so."""
    footer = parquet_footer(path)
    return _are_exported(csv_header(path)[0]) if footer is None else _is_exported(path, footer)


def _is_exported(path: str | os.PathLike[str], footer: bytes) -> bool:
    # The bytes of names are looked for first: to read them properly takes longer than a small harvest.
    if not any(name in footer.lower() for name in (b"about", b"answer_rows")):
        return False
    names, keys = _described(path)
    return METADATA_KEY not in keys and _are_exported(names)


def _are_exported(names: Iterable[str]) -> bool:
    """Return whether columns are those of an answer; one may be missing, which reading it will say."""
    found = {name.strip().lower() for name in names}
    return min(len(columns - found) for columns in _EXPORTED) <= 1 and not found & _LOGGED


def _described(path: str | os.PathLike[str]) -> tuple[list[str], frozenset[bytes]]:
    """Return the columns of a Parquet file and the keys of its metadata; none of a file that is damaged."""
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
        return metadata.schema.to_arrow_schema().names, frozenset(metadata.metadata or ())
    # A reader of hostile bytes may raise anything; whoever reads the file will say what is wrong.
    except Exception:
        return [], frozenset()


def csv_header(path: str | os.PathLike[str]) -> tuple[list[str], str]:
    """Return the columns that the first line of a file names, in lower case, and what stands between them."""
    try:
        with open_csv(path) as file:
            head: bytes = file.read(_HEAD)
        text = head.decode("utf-8-sig", "replace")
        delimiter = max(DELIMITERS, key=lambda d: len(first_record(text, d)))
        return [name.strip().lower() for name in first_record(text, delimiter)], delimiter
    except (OSError, EOFError, ValueError, zlib.error, csv.Error):
        return [], ","


def open_csv(path: str | os.PathLike[str]) -> Any:
    """Open a text file for reading bytes, compressed or not."""
    with open(path, "rb") as file:
        compressed = file.read(2) == _GZIP
    if not compressed:
        return open(path, "rb")
    import gzip

    return gzip.open(path)
