"""Files of one format as something DuckDB can select from, read the same whatever their first rows look like."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from posbias.engines.duckdb.errors import explained
from posbias.engines.files import PACKED, one_format, path_keys
from posbias.engines.headers import Header, read_header, refuse_other_case, refuse_unreadable
from posbias.findings import unusable
from posbias.logs.columns import differ_by_case, refuse_twins
from posbias.sql.dialect import INTEGERS, DuckDBDialect

_SQL = DuckDBDialect()
# The column that holds the path of a row's file, by a name that no log has.
_PATH = "posbias: the path of the file"


@dataclass(frozen=True)
class Reading:
    """Files as a SELECT, their columns as the first file calls them, and those that only the folders' names tell."""

    select: str
    originals: list[str]
    in_paths: tuple[str, ...] = ()


def select_files(con: duckdb.DuckDBPyConnection, files: Sequence[str]) -> Reading:
    """Read files of one format as one table; columns are matched by name, and those of the files come first."""
    kind = one_format(files)
    refuse_unreadable(files)
    _refuse_packed_after_mark(files)
    keys = path_keys(files)
    # DuckDB's own reading of such folders would put what they say in the place of what the files say.
    options = "hive_partitioning = false" + (f", filename = {_SQL.text(_PATH)}" if keys else "")
    if kind == "csv":
        select, originals = _select_csv(files, options)
    elif kind == "json":
        select, originals = _select_json(con, files, options), []
    else:
        select = f"SELECT * FROM read_parquet({_names(files)}, union_by_name = true, {options})"
        originals = _parquet_names(con, files)
    if not keys:
        return Reading(select, originals)
    inside = {row[0].lower() for row in con.execute(f"DESCRIBE {select}").fetchall()}
    told = tuple(key for key in keys if key.lower() not in inside)
    values = "".join(f", {_told_by_path(key)} AS {_SQL.quote(key)}" for key in told)
    return Reading(f"SELECT * EXCLUDE ({_SQL.quote(_PATH)}){values} FROM (\n{select}\n) files", originals, told)


def _refuse_packed_after_mark(files: Sequence[str]) -> None:
    """Refuse compressed files of which DuckDB does not see the ending: it takes a name for an address."""
    for name in files:
        if "?" in name and name.lower().endswith(PACKED):
            raise unusable(
                "unreadable",
                f"The compressed file {name!r} has a question mark in its path, after which its ending is not seen",
                "Rename the file or its folder, or unpack it.",
            )


def _told_by_path(key: str) -> str:
    pattern = f".*(?:^|/){re.escape(key)}=([^/]*)/"
    written = f"regexp_extract({_SQL.quote(_PATH)}, {_SQL.text(pattern)}, 1)"
    return f"NULLIF(COALESCE(TRY(url_decode({written})), {written}), '__HIVE_DEFAULT_PARTITION__')"


def _parquet_names(con: duckdb.DuckDBPyConnection, files: Sequence[str]) -> list[str]:
    """Return the columns as the first file names them: DuckDB renames one of two that differ only by case."""
    schemas: dict[str, list[tuple[str, int | None]]] = {}
    listed = con.execute(f"SELECT file_name, name, num_children FROM parquet_schema({_names(files)})")
    for file, name, children in listed.fetchall():
        schemas.setdefault(file, []).append((name, children))
    columns = {file: _parquet_columns(schema) for file, schema in schemas.items()}
    for file, names in columns.items():
        refuse_twins(names, f"the file {file!r}")
    refuse_other_case(columns)
    return columns[next(iter(columns))]


def _parquet_columns(schema: Sequence[tuple[str, int | None]]) -> list[str]:
    """Return the names of columns from a schema that lists them depth-first under its root, nested fields included."""
    names, inside = [], 0
    for name, children in schema[1:]:
        if not inside:
            names.append(name)
        inside += (children or 0) - (1 if inside else 0)
    return names


def _select_csv(files: Sequence[str], options: str) -> tuple[str, list[str]]:
    """Return a SELECT over CSV files, one part for each header, and the columns of the first of them.

    The header says what the columns are: DuckDB's own detection takes a file with one odd row for something else.
    Values stay text as written ("007" is not 7), and a stray one is a finding instead of a failed read.
    """
    groups: dict[Header, list[str]] = {}
    for name in files:
        groups.setdefault(read_header(name), []).append(name)
    refuse_other_case({group[0]: header.names for header, group in groups.items()})
    select = " UNION ALL BY NAME ".join(
        f"SELECT * FROM read_csv({_names(group)}, delim = {_SQL.text(header.delimiter)}, "
        f"columns = {_typed(header.names)}, header = true, auto_detect = false, quote = '\"', escape = '\"', "
        f"{_line_ending(header)}{options})"
        for header, group in groups.items()
    )
    return select, list(next(iter(groups)).names)


def _line_ending(header: Header) -> str:
    """Say how lines end: DuckDB would go by the first line break, in quotes or not, and by another find no row."""
    escaped = header.ending.encode("unicode_escape").decode()
    return f"new_line = {_SQL.text(escaped)}, " if header.ending else ""


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


def _select_json(con: duckdb.DuckDBPyConnection, files: Sequence[str], options: str) -> str:
    """Return a SELECT over JSON files whose columns were looked up in every row, not in the first thousands.

    A key may appear late, such as a rank that is left out where there is none, and an id may be a number here
    and a text there. Dates and UUIDs stay the text that was written.
    """
    looked = f"{_names(files)}, union_by_name = true, hive_partitioning = false"
    with explained():
        found = con.execute(
            f"DESCRIBE SELECT * FROM read_json({looked}, sample_size = -1, maximum_sample_files = {len(files)})"
        ).fetchall()
    if [row[0] for row in found] == ["json"]:
        raise unusable(
            "not-a-log", f"{files[0]!r} holds no JSON objects", "Expected one object for each row: JSON lines."
        )
    _refuse_renamed_keys(con, files, [row[0] for row in found])
    kept = INTEGERS | {"BOOLEAN", "DOUBLE"}
    columns = ", ".join(f"{_SQL.text(name)}: '{type_ if type_ in kept else 'VARCHAR'}'" for name, type_, *_ in found)
    return f"SELECT * FROM read_json({_names(files)}, union_by_name = true, columns = {{{columns}}}, {options})"


def _refuse_renamed_keys(con: duckdb.DuckDBPyConnection, files: Sequence[str], found: Sequence[str]) -> None:
    """Refuse keys that differ only by case: DuckDB gives one of them a number, and would find nothing by that name."""
    names = {name.lower() for name in found}
    numbered = [name for name in found if (match := re.fullmatch(r"(.+)_\d+", name)) and match[1].lower() in names]
    if not numbered:
        return
    keys = con.execute(
        f"SELECT DISTINCT UNNEST(json_keys(json)) FROM read_json_objects({_names(files)}, format = 'auto')"
    ).fetchall()
    twins = {key for (key,) in keys if sum(key.lower() == other.lower() for (other,) in keys) > 1}
    if twins:
        raise differ_by_case(sorted(twins), f"{files[0]!r}" if len(files) == 1 else "the log")


def _names(files: Sequence[str]) -> str:
    return "[" + ", ".join(_SQL.text(literal(name)) for name in files) + "]"


def literal(name: str) -> str:
    """Keep DuckDB from reading a file name as a glob: each special character becomes a class of one."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
