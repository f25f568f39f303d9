"""What the first bytes of a file tell, before an engine reads it."""

from __future__ import annotations

import csv
import gzip
import io
import os
import zlib
from collections.abc import Sequence
from typing import cast

from posbias.findings import UnusableLogError, unusable
from posbias.logs.columns import refuse_twins

DELIMITERS = (",", "\t", ";", "|")
# A header is looked for in this many characters.
_LONGEST_HEADER = 250_000


def refuse_unreadable(files: Sequence[str]) -> None:
    """Refuse files without a byte, and names that are not text."""
    for name in files:
        if os.path.getsize(name) == 0:
            raise empty_file(name)
        if not name.isprintable() and name.encode("utf-8", "ignore").decode() != name:
            raise unusable("unreadable", f"The file name {name!r} is not text in UTF-8", "Rename the file.")


def read_header(name: str) -> tuple[str, tuple[str, ...]]:
    """Return the delimiter and the column names of a CSV file."""
    try:
        with _open_text(name) as stream:
            text = stream.read(_LONGEST_HEADER)
        if not text.strip():
            raise empty_file(name)
        delimiter = max(DELIMITERS, key=lambda d: len(first_record(text, d)))
        names = tuple(first_record(text, delimiter))
        refuse_twins(filter(None, names), f"the file {name!r}")
        return delimiter, names
    except (UnicodeDecodeError, csv.Error) as error:
        raise unusable(
            "not-a-log",
            f"The file {name!r} is not CSV text in UTF-8 ({error})",
            "Convert it to UTF-8, or give it the ending of what it is.",
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise damaged_file(name, error) from None


def first_record(text: str, delimiter: str) -> list[str]:
    """Return the first record of CSV text, which may span lines; none of an empty text."""
    return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])


def odd_lines(name: str) -> str:
    """Return what keeps a CSV file from being cut into rows, as the end of a sentence about it."""
    kinds: dict[str, int] = {}
    try:
        with _open_text(name) as stream:
            for number, line in enumerate(stream, start=1):
                kinds.setdefault(line[len(line.rstrip("\r\n")) :], number)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error):
        return "has rows that are no CSV"
    kinds.pop("", None)
    if len(kinds) < 2:
        return "has rows that are no CSV: a quote stands inside a value, or is never closed"
    told = " and ".join(f"{kind!r} (first in line {number:,})" for kind, number in kinds.items())
    return f"mixes line endings: {told}"


def _open_text(name: str) -> io.TextIOBase:
    if name.lower().endswith(".zst"):
        import pyarrow as pa

        return io.TextIOWrapper(io.BufferedReader(pa.input_stream(name)), encoding="utf-8-sig", newline="")
    opener = gzip.open if name.lower().endswith(".gz") else open
    return cast(io.TextIOBase, opener(name, "rt", encoding="utf-8-sig", newline=""))


def empty_file(name: str) -> UnusableLogError:
    """Return the error that a file without a byte is."""
    return unusable("empty-file", f"The file {name!r} is empty: it has no columns", "Leave it out, or write it again.")


def damaged_file(name: str, error: Exception) -> UnusableLogError:
    """Return the error that a compressed file is whose bytes are not as they were written."""
    return unusable(
        "damaged-file",
        f"The file {name!r} cannot be unpacked ({(str(error).splitlines() or [type(error).__name__])[0]})",
        "It looks truncated or damaged: copy or write it again, or leave it out.",
    )
