"""What a file is, told from its first or last bytes: a harvest, saved or exported by a warehouse, or a log."""

from __future__ import annotations

import os
from typing import Any

from posbias.reading import odd_kind

# Where a Parquet file that is a harvest says so, and what it holds.
METADATA_KEY = b"posbias.harvest"
# A column that every export has and no log; a warehouse may write it in capitals.
_EXPORTED = "answer_rows"
# As much of a CSV file as holds its header.
_HEAD = 2**16
_GZIP = b"\x1f\x8b"


def is_harvest(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a harvest rather than a log: saved by posbias, or exported by a warehouse."""
    if odd_kind(path) is not None:
        return False
    footer = _footer(path)
    return is_export(path) if footer is None else METADATA_KEY in footer or _has_exported(footer)


def is_export(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is the answer to a query of `posbias sql`, or a part of it: whether its columns say so."""
    footer = _footer(path)
    if footer is not None:
        return METADATA_KEY not in footer and _has_exported(footer)
    names, _ = csv_header(path)
    return _EXPORTED in names or {"about", "bucket"} <= set(names)


def _has_exported(footer: bytes) -> bool:
    return _EXPORTED.encode() in footer or _EXPORTED.upper().encode() in footer


def _footer(path: str | os.PathLike[str]) -> bytes | None:
    """Return the footer of a Parquet file, None if it is none."""
    try:
        with open(path, "rb") as file:
            file.seek(-8, os.SEEK_END)
            length, magic = int.from_bytes(file.read(4), "little"), file.read(4)
            if magic != b"PAR1":
                return None
            file.seek(-8 - length, os.SEEK_END)
            return file.read(length)
    except OSError:
        return None


def csv_header(path: str | os.PathLike[str]) -> tuple[list[str], str]:
    """Return the columns that the first line of a file names, in lower case, and what stands between them."""
    try:
        with open_csv(path) as file:
            head: bytes = file.read(_HEAD)
    except (OSError, EOFError):
        return [], ","
    line = (head.decode("utf-8-sig", "replace").splitlines() or [""])[0]
    delimiter = max(",;\t|", key=line.count)
    return [name.strip().strip('"').lower() for name in line.split(delimiter)], delimiter


def open_csv(path: str | os.PathLike[str]) -> Any:
    """Open a text file for reading bytes, compressed or not."""
    with open(path, "rb") as file:
        compressed = file.read(2) == _GZIP
    if not compressed:
        return open(path, "rb")
    import gzip

    return gzip.open(path)
