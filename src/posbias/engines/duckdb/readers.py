"""Files of one format as something DuckDB can select from, read the same whatever their first rows look like."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from posbias.engines.duckdb.errors import explained
from posbias.engines.files import one_format
from posbias.engines.headers import read_header, refuse_unreadable
from posbias.findings import unusable
from posbias.sql.dialect import INTEGERS, DuckDBDialect

_SQL = DuckDBDialect()


def select_files(con: duckdb.DuckDBPyConnection, files: Sequence[str]) -> str:
    """Return a SELECT that reads files of one format as one table; columns are matched by name."""
    kind = one_format(files)
    refuse_unreadable(files)
    if kind == "csv":
        return _select_csv(files)
    if kind == "json":
        return _select_json(con, files)
    return f"SELECT * FROM read_parquet({_names(files)}, union_by_name = true, hive_types_autocast = false)"


def original_names(con: duckdb.DuckDBPyConnection, files: Sequence[str]) -> list[str]:
    """Return the columns as the first file names them: DuckDB renames one of two that differ only by case."""
    kind = one_format(files)
    if kind == "csv":
        return list(read_header(files[0])[1])
    if kind == "parquet":
        return _parquet_columns(con.execute(f"SELECT name, num_children FROM parquet_schema({_names(files[:1])})"))
    return []


def _parquet_columns(schema: duckdb.DuckDBPyConnection) -> list[str]:
    """Return the names of columns from a schema that lists them depth-first under its root, nested fields included."""
    names, inside = [], 0
    for name, children in schema.fetchall()[1:]:
        if not inside:
            names.append(name)
        inside += (children or 0) - (1 if inside else 0)
    return names


def _select_csv(files: Sequence[str]) -> str:
    """Return a SELECT over CSV files, one part for each header.

    The header says what the columns are: DuckDB's own detection takes a file with one odd row for something else.
    Values stay text as written ("007" is not 7), and a stray one is a finding instead of a failed read.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name in files:
        groups.setdefault(read_header(name), []).append(name)
    return " UNION ALL BY NAME ".join(
        f"SELECT * FROM read_csv({_names(group)}, delim = {_SQL.text(delimiter)}, columns = {_typed(header)}, "
        "header = true, auto_detect = false, quote = '\"', escape = '\"', hive_types_autocast = false)"
        for (delimiter, header), group in groups.items()
    )


def _typed(header: Sequence[str]) -> str:
    """Return the columns of a header for `read_csv`, names made unique as DuckDB makes them."""
    taken: set[str] = set()
    parts = []
    for place, column in enumerate(header):
        name = base = column or f"column{place}"
        number = 0
        while name.lower() in taken:
            number += 1
            name = f"{base}_{number}"
        taken.add(name.lower())
        parts.append(f"{_SQL.text(name)}: 'VARCHAR'")
    return "{" + ", ".join(parts) + "}"


def _select_json(con: duckdb.DuckDBPyConnection, files: Sequence[str]) -> str:
    """Return a SELECT over JSON files whose columns were looked up in every row, not in the first thousands.

    A key may appear late, such as a rank that is left out where there is none, and an id may be a number here
    and a text there. Dates and UUIDs stay the text that was written.
    """
    options = f"{_names(files)}, union_by_name = true, hive_types_autocast = false"
    with explained():
        found = con.execute(
            f"DESCRIBE SELECT * FROM read_json({options}, sample_size = -1, maximum_sample_files = {len(files)})"
        ).fetchall()
    if [row[0] for row in found] == ["json"]:
        raise unusable(
            "not-a-log", f"{files[0]!r} holds no JSON objects", "Expected one object for each row: JSON lines."
        )
    kept = INTEGERS | {"BOOLEAN", "DOUBLE"}
    columns = ", ".join(f"{_SQL.text(name)}: '{type_ if type_ in kept else 'VARCHAR'}'" for name, type_, *_ in found)
    return f"SELECT * FROM read_json({options}, columns = {{{columns}}})"


def _names(files: Sequence[str]) -> str:
    return "[" + ", ".join(_SQL.text(literal(name)) for name in files) + "]"


def literal(name: str) -> str:
    """Keep DuckDB from reading a file name as a glob: each special character becomes a class of one."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
