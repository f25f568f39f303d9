"""Engines that execute printed queries, and the files that their answers are exported to."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow
import pyarrow.parquet

from posbias.sql.dialects import SparkDialect
from tests.support import clickhouse, postgres, sparks
from tests.support.logs import Row

# Executes a query on tables that it makes of Arrow tables, by name, and returns the rows.
Run = Callable[[str, dict[str, pyarrow.Table]], list[Row]]


# ---- Engines


@contextlib.contextmanager
def run_duckdb() -> Iterator[Run]:
    def run(sql: str, tables: dict[str, pyarrow.Table]) -> list[Row]:
        with duckdb.connect() as connection:
            for name, table in tables.items():
                connection.register(name, table)
            answer = connection.execute(sql)
            names = [column[0] for column in answer.description]
            return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]

    yield run


@contextlib.contextmanager
def run_postgres() -> Iterator[Run]:
    with postgres.server() as server:

        def run(sql: str, tables: dict[str, pyarrow.Table]) -> list[Row]:
            with server.connect() as connection, connection.cursor() as cursor:
                for name, table in tables.items():
                    columns = ", ".join(f"{quoted(field.name)} {postgres_type(field.type)}" for field in table.schema)
                    cursor.execute(f"CREATE TEMPORARY TABLE {quoted(name)} ({columns})")
                    with cursor.copy(f"COPY {quoted(name)} FROM STDIN") as copy:
                        for row in table.to_pylist():
                            copy.write_row(list(row.values()))
                cursor.execute(sql)
                names = [column.name for column in cursor.description or ()]
                return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

        yield run


@contextlib.contextmanager
def run_spark() -> Iterator[Run]:
    session = sparks.session()

    def run(sql: str, tables: dict[str, pyarrow.Table]) -> list[Row]:
        for i, (name, table) in enumerate(tables.items()):
            # A column without any value is one of ranks.
            fields = [f.with_type(pyarrow.int64()) if pyarrow.types.is_null(f.type) else f for f in table.schema]
            frame = session.createDataFrame(table.cast(pyarrow.schema(fields)))
            frame.createOrReplaceTempView(f"staged_{i}")
            session.sql(f"CREATE OR REPLACE TEMPORARY VIEW {SparkDialect().quote(name)} AS SELECT * FROM staged_{i}")
        return [row.asDict() for row in session.sql(sql).collect()]

    yield run


@contextlib.contextmanager
def run_clickhouse() -> Iterator[Run]:
    def run(sql: str, tables: dict[str, pyarrow.Table]) -> list[Row]:
        for name, table in tables.items():
            clickhouse.create(name, table)
        return clickhouse.rows_of(sql)

    yield run


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def postgres_type(type_: pyarrow.DataType) -> str:
    if pyarrow.types.is_string(type_):
        return "TEXT"
    if pyarrow.types.is_boolean(type_):
        return "BOOLEAN"
    if pyarrow.types.is_floating(type_):
        return "DOUBLE PRECISION"
    # A column without any value is one of ranks.
    return "INTEGER" if pyarrow.types.is_null(type_) else "BIGINT"


# By the dialect that the query is printed in.
EXECUTORS: dict[str, Callable[[], contextlib.AbstractContextManager[Run]]] = {
    "duckdb": run_duckdb,
    "postgres": run_postgres,
    "spark": run_spark,
    "clickhouse": run_clickhouse,
}


# ---- Exports, as warehouses and their tools write them


def csv_text(rows: list[Row], **style: Any) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), **style)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def to_csv(rows: list[Row], folder: Path) -> Path:
    path = folder / "counts.csv"
    path.write_text(csv_text(rows), encoding="utf-8", newline="")
    return path


def to_quoted_csv(rows: list[Row], folder: Path) -> Path:
    """Write a CSV file with quotes, a byte order mark, upper-case names and another order of columns."""
    path = folder / "COUNTS.csv"
    shuffled = [{name.upper(): row[name] for name in reversed(row)} for row in rows]
    path.write_text(csv_text(shuffled, quoting=csv.QUOTE_ALL), encoding="utf-8-sig", newline="")
    return path


def to_gzip(rows: list[Row], folder: Path) -> Path:
    """Write a gzipped CSV file with semicolons and the text NULL."""
    path = folder / "counts.csv.gz"
    told = [{name: "NULL" if value is None else value for name, value in row.items()} for row in rows]
    path.write_bytes(gzip.compress(csv_text(told, delimiter=";", lineterminator="\n").encode()))
    return path


def to_floats(rows: list[Row], folder: Path) -> Path:
    """Write numbers as floats, like pandas with missing values."""
    path = folder / "floats.csv"
    path.write_text(csv_text([{n: float(v) if isinstance(v, int) else v for n, v in row.items()} for row in rows]))
    return path


def to_parquet(rows: list[Row], folder: Path) -> Path:
    path = folder / "counts.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def to_decimals(rows: list[Row], folder: Path) -> Path:
    """Write decimals under upper-case names, like Snowflake."""
    path = folder / "COUNTS.parquet"
    told = [{n.upper(): Decimal(v) if isinstance(v, int) else v for n, v in row.items()} for row in rows]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(told), path)
    return path


EXPORTS: dict[str, Callable[[list[Row], Path], Path]] = {
    "csv": to_csv,
    "quoted csv": to_quoted_csv,
    "gzip": to_gzip,
    "floats": to_floats,
    "parquet": to_parquet,
    "decimals": to_decimals,
}
