"""What DuckDB says, as errors that name the file and a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

from posbias.engines.headers import odd_lines
from posbias.errors import PosbiasError
from posbias.findings import unusable
from posbias.logs.bounds import sums_overflow
from posbias.logs.schemas import Schema

# What a message of an engine contains -> the name of the problem, and what to do.
REMEDIES = {
    r"not utf-8|invalid unicode": ("not-utf-8", "Convert the file to UTF-8."),
    r"already been consumed": ("unreadable", "Give a new reader, or keep what it holds as a table: reader.read_all()."),
    r"no space left": ("disk", "Free space in the temporary folder, or point TMPDIR to another."),
    r"footer|magic bytes|too small|truncated|gzip|eof|end of|decompress|corrupt|snappy|zstd|checksum|invalid page"
    r"|tprotocol": (
        "damaged-file",
        "The file looks truncated or damaged: copy or write it again, or leave it out.",
    ),
    r"disabled by configuration|disabled through configuration": (
        "reads-other-files",
        "A view may read the tables of its own database only. If you trust it, say so by giving it as your own query, "
        "such as sql='SELECT * FROM name', or export its rows to Parquet.",
    ),
    r"missing extension|extension\S* .*(loaded|install)": (
        "needs-extension",
        "posbias loads no extension. In Python, read it with DuckDB and give the relation: ClickLog(duckdb.sql(...)).",
    ),
    r"duplicate key": ("names-twice", "Rename or leave out one of the two keys."),
    r"state machine": (
        "broken-row",
        "Write the file again with one kind of line ending, and with quotes only around whole values.",
    ),
    r"csv error": ("broken-row", "Mend or remove that row, or write the file again."),
    r"malformed json|json transform": ("broken-row", "Expected one JSON object for each row: mend or remove that row."),
    r"failed to cast column|type mismatch|schema mismatch": (
        "mixed-files",
        "The files do not fit together: give files of one layout, or convert the odd one.",
    ),
    r"could not set lock|conflicting lock": ("locked", "Another process has it open for writing: close that first."),
    r"syntax error|does not exist|referenced column|binder error|parser error": (
        "bad-sql",
        "Check the query given as sql: it reads `source`, or the tables of a DuckDB file by their names.",
    ),
}


@contextmanager
def explained(schema: Schema | None = None) -> Iterator[None]:
    """Turn what DuckDB raises, while it counts what is in a log, into an error of ours."""
    try:
        yield
    except duckdb.OutOfMemoryException as error:
        raise PosbiasError(
            "The memory limit is too small for this log, or the disk that takes what does not fit is full. "
            f"Raise memory_limit, lower threads or free space in the temporary folder. ({gist(error)})"
        ) from None
    except duckdb.InterruptException:
        raise KeyboardInterrupt from None
    except duckdb.Error as error:
        low = str(error).lower()
        if schema is not None and schema.aggregated and re.search("out of range|overflow in", low):
            raise sums_overflow(schema) from None
        name, remedy = next(
            (found for pattern, found in REMEDIES.items() if re.search(pattern, low)),
            ("unreadable", "Open it with DuckDB to see what is wrong, or write it again as Parquet."),
        )
        raise unusable(name, f"The log cannot be read: {gist(error)}", remedy) from None
    except RuntimeError as error:
        # What Ctrl-C becomes while DuckDB is at work.
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from None
        raise


def gist(error: Exception) -> str:
    """Return what an engine's error says, without its class, its advice and its full stop.

    >>> gist(ValueError("Binder Error: No such thing.\\nLINE 1: SELECT"))
    'No such thing'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    first = re.sub(r"^[A-Z][A-Za-z ]+ Error: ", "", lines[0]).rstrip(".")
    if "state machine" in first:
        file = next((line.removeprefix("file = ") for line in lines if line.startswith("file = ")), "")
        return f"{file!r} {odd_lines(file)}"
    if not first.startswith("CSV Error"):
        return first
    # "CSV Error on Line: 3", "Original Line: ...", and then the reason.
    where = re.sub(r"\D+", "", first)
    file = next((line.removeprefix("file = ") for line in lines if line.startswith("file = ")), "")
    row = next((line.removeprefix("Original Line: ") for line in lines if line.startswith("Original Line")), "")
    reason = lines[2].rstrip(".") if len(lines) > 2 else "it is no CSV"
    reason = re.sub(r"Expected Number of Columns: (\d+) Found: (\d+)", r"\2 values for \1 columns", reason)
    return f"line {where} of {file!r} is {row[:80]!r}: {reason[0].lower()}{reason[1:]}"
