"""ClickHouse in the test process: `chdb` is the engine in a wheel, with MergeTree tables."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet


@functools.cache
def session() -> Any:
    """Return the ClickHouse session of this process; its tables are temporary."""
    # Not at the top: an engine of half a gigabyte is loaded where it is used.
    from chdb.session import Session

    return Session()


def create(name: str, table: pyarrow.Table) -> None:
    """Create a MergeTree table, replacing one of the same name."""
    typed = zip(table.column_names, map(type_of, table.columns), strict=True)
    columns = ", ".join(f"{quoted(column)} {type_}" for column, type_ in typed)
    session().query(f"DROP TABLE IF EXISTS {quoted(name)} SYNC")
    session().query(f"CREATE TABLE {quoted(name)} ({columns}) ENGINE = MergeTree ORDER BY tuple()")
    if table.num_rows:
        insert(name, table)


def insert(name: str, table: pyarrow.Table) -> None:
    """Insert rows by column order, so that columns may have any name."""
    with tempfile.NamedTemporaryFile(suffix=".parquet") as file:
        pyarrow.parquet.write_table(table.rename_columns([f"c{i}" for i in range(table.num_columns)]), file.name)
        session().query(
            f"INSERT INTO {quoted(name)} SELECT * FROM file('{file.name}', Parquet)"
            " SETTINGS use_structure_from_insertion_table_in_table_functions = 0"
        )


def type_of(column: pyarrow.ChunkedArray) -> str:
    """Return the ClickHouse type of a column: Nullable only if it has nulls (functions treat both differently)."""
    type_ = column.type
    if pyarrow.types.is_null(type_):
        return "Nullable(Int64)"  # A column without any value is one of ranks.
    if pyarrow.types.is_string(type_):
        plain = "String"
    elif pyarrow.types.is_boolean(type_):
        plain = "Bool"
    else:
        plain = "Float64" if pyarrow.types.is_floating(type_) else "Int64"
    return f"Nullable({plain})" if column.null_count else plain


def rows_of(sql: str) -> list[dict[str, Any]]:
    answer = session().query(sql, "Arrow").bytes()
    return pyarrow.ipc.open_file(answer).read_all().to_pylist()


def export(sql: str, path: Path, format_: str) -> Path:
    """Write a query result in the format of `clickhouse-client --format`."""
    path.write_bytes(session().query(sql, format_).bytes())
    return path


def quoted(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"
