"""What the first bytes of a file tell, before an engine reads it."""

from __future__ import annotations

import csv
import gzip
import io
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from posbias.findings import UnusableLogError, unusable
from posbias.logs.columns import differ_by_case, refuse_twins
from posbias.wording import listed

DELIMITERS = (",", "\t", ";", "|")
# A header is looked for in this many characters.
_LONGEST_HEADER = 250_000
# The byte order mark, which some programs write before UTF-8.
_MARK = "\ufeff"


def refuse_unreadable(files: Sequence[str]) -> None:
    """Refuse files without a byte, and names that are not text."""
    for name in files:
        if os.path.getsize(name) == 0:
            raise empty_file(name)
        if not name.isprintable() and name.encode("utf-8", "ignore").decode() != name:
            raise unusable("unreadable", f"The file name {name!r} is not text in UTF-8", "Rename the file.")


@dataclass(frozen=True)
class Header:
    """How a CSV file is cut into values, its columns, and how its lines end; that is empty where it has no other."""

    delimiter: str
    names: tuple[str, ...]
    ending: str


def read_header(name: str) -> Header:
    """Return what the first line of a CSV file tells."""
    try:
        with _open_text(name) as stream:
            marked = stream.read(_LONGEST_HEADER)
        text = marked.removeprefix(_MARK)
        if not text.strip():
            raise empty_file(name)
        delimiter = max(DELIMITERS, key=lambda d: len(first_record(text, d)))
        names = tuple(first_record(text, delimiter))
        if len(set(names)) < len(names) and all(value.strip("+-.").isdigit() for value in names[:2]):
            raise unusable(
                "no-header",
                f"The first line of {name!r} holds values and not the names of columns: {listed(names)}",
                "Write the names of the columns into the first line.",
            )
        refuse_twins(filter(None, names), f"the file {name!r}")
        if text != marked and {"\r", "\n", delimiter} & set(names[0]):
            # DuckDB takes no quote after the mark for one, and the rest of the name for a row or one column more.
            what = "a line break" if {"\r", "\n"} & set(names[0]) else f"the delimiter {delimiter!r}"
            raise unusable(
                "broken-row",
                f"The first column of {name!r} is named {names[0]!r}, with {what} in it, after a byte order mark",
                "Rename the column, or write the file without the mark.",
            )
        return Header(delimiter, names, _ending(text, delimiter))
    except (UnicodeDecodeError, csv.Error) as error:
        raise unusable(
            "not-a-log",
            f"The file {name!r} is not CSV text in UTF-8 ({error})",
            "Convert it to UTF-8, or give it the ending of what it is.",
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise damaged_file(name, error) from None


def refuse_other_case(columns: Mapping[str, Sequence[str]]) -> None:
    """Refuse files of which one spells a column as another does not: they would be read as one column."""
    spelt: dict[str, tuple[str, list[str]]] = {}
    for file, names in columns.items():
        for low in {name.lower() for name in names}:
            here = sorted(name for name in names if name.lower() == low)
            first, there = spelt.setdefault(low, (file, here))
            if here != there:
                raise differ_by_case([*there, *here], f"{file!r}, beside {first!r},")


def first_record(text: str, delimiter: str) -> list[str]:
    """Return the first record of CSV text, which may span lines; none of an empty text."""
    return next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])


def _ending(text: str, delimiter: str) -> str:
    """Return how the first record of CSV text ends; line breaks in its quotes may be of another kind."""
    lines = io.StringIO(text, newline="").readlines()
    reader = csv.reader(lines, delimiter=delimiter)
    next(reader, [])
    last = lines[reader.line_num - 1]
    return last[len(last.rstrip("\r\n")) :]


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

        return io.TextIOWrapper(io.BufferedReader(pa.input_stream(name)), encoding="utf-8", newline="")
    opener = gzip.open if name.lower().endswith(".gz") else open
    return cast(io.TextIOBase, opener(name, "rt", encoding="utf-8", newline=""))


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
