"""Any source as a Spark DataFrame: a DataFrame, a table, files that the cluster sees, or data in memory."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from posbias.engines.files import file_format, find_files, is_path, one_format, path_keys
from posbias.engines.headers import Header, read_header, refuse_other_case, refuse_unreadable
from posbias.engines.spark.errors import explained
from posbias.errors import LogError
from posbias.findings import unusable
from posbias.logs.click_log import ClickLog
from posbias.logs.column_refusals import INTEGERS
from posbias.logs.columns import refuse_twins
from posbias.logs.schemas import Columns
from posbias.sql.spark import SparkDialect
from posbias.writing import scratch_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark's names of types -> those that the rest of the code goes by.
_TYPES = {"INT": "INTEGER", "STRING": "VARCHAR", "LONG": "BIGINT", "SHORT": "SMALLINT", "BYTE": "TINYINT"}
# What an Arrow table may hold that Spark does not read -> what it reads.
_READABLE = {
    "UTINYINT": "SMALLINT",
    "USMALLINT": "INTEGER",
    "UINTEGER": "BIGINT",
    "UBIGINT": "DECIMAL(20, 0)",
    "HUGEINT": "DECIMAL(38, 0)",
    "UHUGEINT": "DECIMAL(38, 0)",
    "UUID": "VARCHAR",
    "TIME": "VARCHAR",
    "BIT": "VARCHAR",
}


@dataclass(frozen=True)
class Opened:
    """A DataFrame with the files it is read from, if they are known, and its columns."""

    frame: DataFrame
    files: list[str]
    columns: Columns


@dataclass(frozen=True)
class _Found:
    """A source as a DataFrame: its files where they are on this machine, and its columns as it calls them itself."""

    frame: DataFrame
    originals: Sequence[str]
    files: Sequence[str] = ()
    in_paths: Sequence[str] = ()


def open_source(session: SparkSession, source: Any, sql: str | None = None) -> Opened:
    """Return the rows of a source, by the query of the user's own where there is one."""
    found = _find(session, source)
    if sql is None:
        return _opened(found)
    view = f"posbias_source_{os.urandom(8).hex()}"
    opened = _opened(found)
    opened.frame.createOrReplaceTempView(view)
    try:
        body = sql.strip().rstrip(";")
        chosen = session.sql(f"WITH source AS (SELECT * FROM {view})\nSELECT * FROM (\n{body}\n) chosen")
        refuse_twins(chosen.columns, "the answer to the query")
        renamed = {name: original for original, name in opened.columns.names.items() if original not in chosen.columns}
        originals = [renamed.get(name, name) for name in chosen.columns]
        return _opened(_Found(chosen, originals, found.files, found.in_paths))
    finally:
        session.catalog.dropTempView(view)


def _find(session: SparkSession, source: Any) -> _Found:
    if type(source).__module__.startswith("pyspark."):
        return _Found(source, source.columns)
    if not is_path(source):
        return _from_memory(session, source)
    if isinstance(source, str) and "://" in source:
        frame = _read_remote(session, source)
        return _Found(frame, frame.columns)
    if isinstance(source, str) and not os.path.exists(source) and _is_table(session, source):
        frame = session.table(source)
        return _Found(frame, frame.columns)
    files = find_files(source)
    frame, in_paths = read_files(session, files)
    return _Found(frame, frame.columns, files, in_paths)


def _is_table(session: SparkSession, name: str) -> bool:
    from pyspark.errors import PySparkException

    try:
        return session.catalog.tableExists(name)
    except PySparkException:
        return False  # Not even a name of one, such as a path or a glob.


def _read_remote(session: SparkSession, address: str) -> DataFrame:
    """Read what only Spark can reach; what has no ending that tells otherwise is Parquet."""
    kind = file_format(address.rstrip("/*")) or "parquet"
    if kind == "csv":
        return session.read.csv(address, header=True, escape='"', multiLine=True, mode="FAILFAST")
    if kind == "json":
        return session.read.json(address, mode="FAILFAST")
    return session.read.option("mergeSchema", "true").parquet(address)


def read_files(session: SparkSession, files: Sequence[str]) -> tuple[DataFrame, list[str]]:
    """Read files of one format as one table, columns matched by name; and tell which only the folders' names tell."""
    kind = one_format(files)
    refuse_unreadable(files)
    keys = path_keys(files)
    if kind == "csv":
        return _union(*_with_paths(_read_csv(session, files), keys))
    if kind == "json":
        with explained(files[0]):
            frame = session.read.json([_literal(file) for file in files], mode="FAILFAST")
            return _union(*_with_paths([frame], keys))
    if kind == "duckdb":
        raise LogError(
            f"Spark cannot read the DuckDB file {files[0]!r}. Leave engine='spark' out, or export its table to Parquet."
        )
    schemas = {file: _parquet_schema(file) for file in files}
    refuse_other_case({file: schema.names for file, schema in schemas.items()})
    groups: dict[str, list[str]] = {}
    for file, schema in schemas.items():
        groups.setdefault(str(schema), []).append(file)
    return _union(*_with_paths([session.read.parquet(*map(_literal, group)) for group in groups.values()], keys))


def _with_paths(frames: list[DataFrame], keys: Sequence[str]) -> tuple[list[DataFrame], list[str]]:
    """Add what the names of folders tell, as text, where no file has such a column itself."""
    from pyspark.sql import functions

    inside = {name.lower() for frame in frames for name in frame.columns}
    told = [key for key in keys if key.lower() not in inside]
    for key in told:
        # The path is an address, in which the folder's name, itself written like an address, is written once more.
        part = f"regexp_extract(_metadata.file_path, {_text(f'.*/{re.escape(quote(key))}=([^/]*)/')}, 1)"
        value = f"url_decode(replace(url_decode(replace({part}, '+', '%2B')), '+', '%2B'))"
        named = functions.expr(f"NULLIF({value}, '__HIVE_DEFAULT_PARTITION__')")
        frames = [frame.withColumn(key, named) for frame in frames]
    return frames, told


def _text(value: str) -> str:
    return SparkDialect().text(value)


def _parquet_schema(file: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(file).remove_metadata()
    except (pa.ArrowException, OSError) as error:
        raise unusable(
            "damaged-file",
            f"The log cannot be read: {file!r}: {str(error).splitlines()[0]}",
            "The file looks truncated or damaged: copy or write it again, or leave it out.",
        ) from None
    refuse_twins(schema.names, f"the file {file!r}")
    return schema


def _read_csv(session: SparkSession, files: Sequence[str]) -> list[DataFrame]:
    """Read CSV files, one part for each header; values stay text as written."""
    from pyspark.sql import functions
    from pyspark.sql.types import StringType, StructField, StructType

    groups: dict[Header, list[str]] = {}
    for file in files:
        groups.setdefault(read_header(file), []).append(file)
    refuse_other_case({group[0]: header.names for header, group in groups.items()})
    parts = []
    for header, group in groups.items():
        places = [StructField(f"column_{i}", StringType()) for i in range(len(header.names))]
        frame = session.read.csv(
            [_literal(file) for file in group],
            schema=StructType(places),
            header=True,
            sep=header.delimiter,
            escape='"',
            multiLine=True,
            mode="FAILFAST",
        )
        if header.ending == "\n":
            # Spark would take the first half of another line ending for a part of the last value.
            last = places[-1].name
            odd = "raise_error(concat('The file ', input_file_name(), ' mixes line endings'))"
            frame = frame.withColumn(last, functions.expr(f"CASE WHEN {last} LIKE '%\r' THEN {odd} ELSE {last} END"))
        parts.append(frame.toDF(*(name or f"column{i}" for i, name in enumerate(header.names))))
    return parts


def _union(frames: list[DataFrame], in_paths: list[str]) -> tuple[DataFrame, list[str]]:
    """Put tables under each other by the names of their columns; where types differ, whole numbers widen, else text."""
    from pyspark.sql import functions

    found: dict[str, set[str]] = {}
    for frame in frames:
        for name, type_ in types_of(frame).items():
            found.setdefault(name, set()).add(type_)
    for i, frame in enumerate(frames):
        for name in frame.columns if len(frames) > 1 else ():
            if len(found[name]) > 1:
                _refuse_nested(name, found[name])
                wider = "bigint" if found[name] <= INTEGERS else "string"
                frames[i] = frames[i].withColumn(name, functions.col(_quoted(name)).cast(wider))
    return reduce(lambda a, b: a.unionByName(b, allowMissingColumns=True), frames), in_paths


def _refuse_nested(name: str, types: set[str]) -> None:
    if any("<" in type_ for type_ in types):
        raise unusable(
            "mixed-files",
            f"The files disagree on column {name!r}: {' and '.join(sorted(types))}",
            "The files do not fit together: give files of one layout, or convert the odd one.",
        )


def _from_memory(session: SparkSession, source: Any) -> _Found:
    """Hand a pandas, Polars or Arrow table to Spark through Arrow, as types that Spark knows."""
    from posbias.engines.duckdb.connections import connected
    from posbias.engines.duckdb.errors import explained as duckdb_explained
    from posbias.engines.duckdb.opening import open_tables
    from posbias.sql.dialect import DuckDBDialect

    with scratch_folder() as spill, connected(spill) as con, duckdb_explained():
        opened, *_ = open_tables(con, ClickLog(source))
        quoted = DuckDBDialect().quote
        columns = []
        for original, name in opened.columns.names.items():
            type_ = opened.columns.types[original]
            readable = _READABLE.get(type_)
            columns.append(f"CAST({quoted(name)} AS {readable}) AS {quoted(name)}" if readable else quoted(name))
        table = con.sql(f"SELECT {', '.join(columns)} FROM log").to_arrow_table()
    # Of a table without any row PySpark wants one chunk at least.
    table = table if table.num_rows else table.schema.empty_table()
    return _Found(session.createDataFrame(table), list(opened.columns.names))


def _opened(found: _Found) -> Opened:
    """Tell the columns of a DataFrame; names that differ only by case, which Spark takes for one, get a number."""
    refuse_twins(found.originals, "the log")
    frame = found.frame
    names: dict[str, str] = {}
    taken: set[str] = set()
    for column in found.originals:
        name, number = column, 0
        while name.lower() in taken:
            number += 1
            name = f"{column}_{number}"
        taken.add(name.lower())
        names[column] = name
    if list(names.values()) != frame.columns:
        frame = frame.toDF(*names.values())
    types = types_of(frame)
    in_paths = frozenset(found.in_paths) & names.keys()
    columns = Columns({original: types[name] for original, name in names.items()}, names, in_paths)
    return Opened(frame, list(found.files), columns)


def types_of(frame: DataFrame) -> dict[str, str]:
    """Return the columns of a DataFrame and their types, by the names that the rest of the code goes by."""
    return {field.name: _type_name(field.dataType.simpleString()) for field in frame.schema.fields}


def _type_name(spark: str) -> str:
    name = spark.upper()
    if name.startswith(("VARCHAR", "CHAR")):
        return "VARCHAR"
    return _TYPES.get(name, name)


def _literal(file: str) -> str:
    """Keep Spark from reading a file name as a glob."""
    return "".join(f"\\{c}" if c in "*?[]{}\\" else c for c in Path(file).absolute().as_posix())


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
