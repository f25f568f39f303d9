"""Bad input, as data: what is given, and what must be said. It never becomes a number.

To add a case is to add a line to CASES. Each runs on every engine, in Python and, where it is a file, as a command.
"""

from __future__ import annotations

import datetime
import decimal
import gzip
import os
import re
import socket
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import posbias
from posbias.cli import cli
from posbias.simulation.simulate import rank

pytestmark = pytest.mark.usefixtures("each_engine")

WORLD = posbias.World(queries=30, repeats=4, max_rank=3, seed=1)
WIDE = posbias.simulate(WORLD)
REPLAY = WIDE.drop_columns(["rank_a", "rank_b"])
COUNTS = posbias.simulate(WORLD, aggregated=True)
LONG, RANKINGS = posbias.simulate(WORLD, "long"), rank(WORLD)
NAN = float("nan")
HEADER = "query_id,doc_id,ranker,position,clicked"

Give = Callable[[Path], Any]


@dataclass(frozen=True)
class Case:
    """What is given, as it is made in a folder; what must be said; arguments of the log; whether Spark can take it."""

    give: Give
    said: str
    log: Mapping[str, Any] = field(default_factory=dict)
    spark: bool = True
    # Said on the way, as a finding of a harvest that is made.
    finding: bool = False
    # Whether it can be given to the command too, and more than once.
    command: bool = True
    again: bool = True


# ---- What can be given


def the(source: Any) -> Give:
    return lambda folder: source


def text(name: str, *lines: str, end: str = "\n") -> Give:
    def give(folder: Path) -> Path:
        data = "".join(line + end for line in lines).encode()
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return give


def raw(name: str, data: bytes) -> Give:
    def give(folder: Path) -> Path:
        (folder / name).write_bytes(data)
        return folder / name

    return give


def parquet(table: pa.Table, name: str = "log.parquet") -> Give:
    def give(folder: Path) -> Path:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, folder / name)
        return folder / name

    return give


def csv(table: pa.Table, name: str = "log.csv") -> Give:
    def give(folder: Path) -> Path:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        table.to_pandas().to_csv(folder / name, index=False)
        return folder / name

    return give


def jsonl(*rows: str) -> Give:
    return text("log.jsonl", *rows)


def all_of(*parts: Give, pattern: str = "") -> Give:
    """Several files in a folder, of which the folder or a pattern is given."""

    def give(folder: Path) -> str:
        for part in parts:
            part(folder)
        return str(folder / pattern) if pattern else str(folder)

    return give


def special(name: str, kind: str, of: Callable[[Path], Any] = lambda path: path) -> Give:
    """What is no file: a pipe, a socket, a link to a device or to nothing."""

    def give(folder: Path) -> Any:
        path = folder / name
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(path)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as held:
                here = os.getcwd()
                os.chdir(folder)
                held.bind(name)
                os.chdir(here)
        else:
            path.symlink_to(kind)
        return of(path)

    return give


def relation(sql: str) -> Give:
    def give(folder: Path) -> duckdb.DuckDBPyRelation:
        con = duckdb.connect()
        con.register("wide", WIDE)
        con.register("counts", COUNTS)
        con.register("twins", named(CASED, rank_X="a", rank_x="b"))
        return con.sql(sql)

    return give


def database(*statements: str, name: str = "log.duckdb") -> Give:
    def give(folder: Path) -> Path:
        (folder / "secret.csv").write_text("word\nsesame\n")
        with duckdb.connect(str(folder / name)) as con:
            con.register("wide", WIDE)
            con.execute("CREATE TABLE clicks AS FROM wide")
            for statement in statements:
                con.execute(statement.replace("{folder}", str(folder)))
        return folder / name

    return give


def sqlite(folder: Path) -> Path:
    con = sqlite3.connect(folder / "log.db")
    con.execute("CREATE TABLE clicks (query_id)")
    con.commit()
    con.close()
    return folder / "log.db"


def cut(table: pa.Table, name: str, values: Any) -> pa.Table:
    """The table with another column in place of one; a function is given the old values."""
    old = table[name].to_pylist()
    new = values(old) if callable(values) else values
    return table.set_column(table.column_names.index(name), name, new if isinstance(new, pa.Array) else pa.array(new))


def named(table: pa.Table, **names: str) -> pa.Table:
    return table.rename_columns([names.get(name, name) for name in table.column_names])


def twice(table: pa.Table, name: str = "clicked") -> pa.Table:
    return table.append_column(name, pa.array([0] * len(table)))


def some_nan(values: list[Any]) -> pa.Array:
    return pa.array([NAN if i % 5 == 0 else float(value) for i, value in enumerate(values)])


def beside_nan(column: str, table: pa.Table = REPLAY) -> pa.Table:
    """The table with one number in a column, or NaN."""
    return cut(table, column, lambda old: [NAN if i % 2 else 5.0 for i in range(len(old))])


def every(column: str, of: Callable[[Any], Any], table: pa.Table = WIDE) -> pa.Table:
    """The table with something else in place of each value of a column, where it has any."""
    return cut(table, column, lambda old: pa.array([None if value is None else of(value) for value in old]))


def some(column: str, *wrong: Any, table: pa.Table = WIDE, type_: pa.DataType | None = None) -> pa.Table:
    """The table with wrong values in every seventh row of a column."""

    def put(old: list[Any]) -> pa.Array:
        return pa.array([wrong[i // 7 % len(wrong)] if i % 7 == 3 else value for i, value in enumerate(old)], type_)

    return cut(table, column, put)


def number(column: str, *wrong: float, table: pa.Table = WIDE) -> pa.Table:
    return some(column, *wrong, table=every(column, float, table))


def word(column: str, *wrong: str, table: pa.Table = WIDE) -> pa.Table:
    return some(column, *wrong, table=every(column, str, table))


def both(*tables: pa.Table) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive")


def damaged(make: Give, change: Callable[[bytes], bytes], name: str = "") -> Give:
    """A file with other bytes than were written, or by another name."""

    def give(folder: Path) -> Path:
        path: Path = make(folder)
        data = change(path.read_bytes())
        path.unlink()
        (folder / (name or path.name)).write_bytes(data)
        return folder / (name or path.name)

    return give


def nothing_left(folder: Path) -> Path:
    duckdb.connect(str(folder / "log.duckdb")).close()
    return folder / "log.duckdb"


def harvested(folder: Path) -> Path:
    posbias.harvest(posbias.ClickLog(WIDE), max_rank=3).save(folder / "harvest.parquet")
    return folder / "harvest.parquet"


def read_already(folder: Path) -> pa.RecordBatchReader:
    reader = WIDE.to_reader()
    reader.read_all()
    return reader


def closed(folder: Path) -> duckdb.DuckDBPyRelation:
    con = duckdb.connect()
    con.register("wide", WIDE)
    rows = con.sql("FROM wide")
    con.close()
    return rows


def gone(folder: Path) -> pyarrow.dataset.Dataset:
    path = parquet(WIDE)(folder)
    rows = pyarrow.dataset.dataset(path)
    path.unlink()
    return rows


def day(value: Any) -> datetime.date:
    return datetime.date(2024, 1, 1 + int(value))


def moment(value: Any) -> datetime.datetime:
    return datetime.datetime(2024, 1, 1 + int(value))


def unlike(ranks: Callable[[Any], Any], some: int = len(RANKINGS)) -> pa.Table:
    """The rankings, and some of them once more with other ranks."""
    return both(RANKINGS, every("rank", ranks, RANKINGS.slice(0, some)))


def ids(values: list[Any]) -> list[str]:
    return [f"user {i}" for i in range(len(values))]


NUMBERED = cut(WIDE, "ranker", lambda old: [1 if name == "a" else 2 for name in old])
TWO_ONES = named(twice(NUMBERED, "rank_01"), rank_a="rank_1", rank_b="rank_2")
CASED = named(
    cut(WIDE, "ranker", lambda old: ["X" if name == "a" else "x" for name in old]), rank_a="rank_X", rank_b="rank_x"
)
MANY = pa.concat_tables([REPLAY] * 30)
HUGE = cut(COUNTS, "impressions", lambda old: [2**61] * len(old))
THIRD = len(WIDE) // 3
PARTS = [WIDE.slice(i * THIRD, THIRD) for i in range(3)]


def lacking(column: str, write: Callable[[pa.Table, str], Give] = parquet, ending: str = "parquet") -> Give:
    """Three files of which the second lacks a column."""
    parts = [PARTS[0], PARTS[1].drop_columns([column]), PARTS[2]]
    return all_of(*(write(p, f"{i}.{ending}") for i, p in enumerate(parts)), pattern=f"*.{ending}")


TWINS = 'SELECT * EXCLUDE (a, b), a AS "rank_X", b AS rank_x FROM twins'
DOZEN = cut(REPLAY, "ranker", lambda old: [f"ranker {i % 12}" for i in range(len(old))])
ROW = '{"query_id":1,"doc_id":1,"ranker":"a","position":1,"clicked":0}'
LINES = [HEADER, *(f"{i % 5},{i % 7},{'ab'[i % 2]},{i % 3 + 1},{i % 2}" for i in range(40))]

PACKED = gzip.compress("\n".join(LINES).encode())
ZSTD = pa.compress("\n".join(LINES).encode(), codec="zstd", asbytes=True)

CASES: dict[str, Case] = {
    # Two columns of one name: nothing says which is meant.
    "twice in CSV": Case(text("log.csv", f"{HEADER},clicked", "1,1,a,1,0,1"), "log.csv' are named 'clicked'"),
    "twice in TSV": Case(text("log.tsv", "\t".join([*HEADER.split(","), "ranker"]), "1\t1\ta\t1\t0\tb"), "'ranker'"),
    "twice in gzip": Case(text("log.csv.gz", f"position,{HEADER}", "3,1,1,a,1,0"), "are named 'position'"),
    "twice, not used": Case(text("log.csv", f"{HEADER},note,note", "1,1,a,1,0,x,y"), "are named 'note'"),
    "twice in the second file": Case(
        all_of(csv(WIDE, "1.csv"), text("2.csv", f"{HEADER},clicked", "1,1,a,1,0,1")), "2.csv' are named 'clicked'"
    ),
    "twice in Parquet": Case(parquet(twice(WIDE)), "log.parquet' are named 'clicked'"),
    "twice in the second Parquet": Case(
        all_of(parquet(WIDE, "1.parquet"), parquet(twice(WIDE), "2.parquet")), "2.parquet' are named 'clicked'"
    ),
    "twice in JSON": Case(
        jsonl('{"query_id":1,"doc_id":1,"ranker":"a","position":1,"clicked":0,"clicked":1}'),
        'duplicate key "clicked"|`clicked` already exists',
    ),
    "twice in Arrow": Case(the(twice(WIDE)), "Table are named 'clicked'"),
    "twice in a batch": Case(the(twice(WIDE).combine_chunks().to_batches()[0]), "are named 'clicked'"),
    "twice in a reader": Case(lambda folder: twice(WIDE).to_reader(), "are named 'clicked'", again=False),
    "twice in a dataset": Case(the(pyarrow.dataset.dataset(twice(WIDE, "position"))), "are named 'position'"),
    "twice in pandas": Case(the(pandas.concat([WIDE.to_pandas(), WIDE.to_pandas()[["clicked"]]], axis=1)), "'clicked'"),
    "twice in a relation": Case(relation("SELECT *, 1 AS clicked FROM wide"), "relation are named 'clicked'"),
    "twice in the query": Case(
        the(WIDE), "query are named 'position'", {"sql": "SELECT *, position + 1 AS position FROM source"}
    ),
    "twice in the rankings": Case(the(LONG), "are named 'rank'", {"rankings": twice(RANKINGS, "rank")}),
    # Names that are one to SQL.
    "case in JSON": Case(
        jsonl('{"query_id":1,"doc_id":1,"ranker":"x","position":1,"clicked":0,"rank_X":1,"rank_x":2}'),
        "differ only by upper and lower case",
    ),
    "case in two CSV files": Case(
        all_of(csv(PARTS[0], "1.csv"), csv(named(PARTS[1], rank_b="rank_B"), "2.csv")),
        r"2.csv', compared with .*1.csv', has columns that differ only by upper and lower case: 'rank_b', 'rank_B'",
    ),
    "case in two Parquet files": Case(
        all_of(parquet(PARTS[0], "1.parquet"), parquet(named(PARTS[1], clicked="Clicked"), "2.parquet")),
        r"2.parquet', compared with .*1.parquet', .* 'clicked', 'Clicked'",
    ),
    "case in the rankings": Case(
        the(LONG),
        "rankings table has columns that differ only by upper and lower case: 'RANK', 'rank'",
        {"rankings": twice(named(RANKINGS, rank="RANK"), "rank")},
    ),
    # Two names of one ranker.
    "rank_1 and rank_01": Case(the(TWO_ONES), r"rankers '01', '1' have the same value in column 'ranker'"),
    "rank_1 and rank_01 in Parquet": Case(parquet(TWO_ONES), "'rank_01', 'rank_1' would both hold its ranks"),
    "rank_1 and rank_1.0": Case(the(named(TWO_ONES, rank_01="rank_1.0")), r"'1', '1\.0' have the same value"),
    "rankings of 1 and 01": Case(
        the(cut(LONG, "ranker", lambda old: [1 if n == "a" else 2 for n in old])),
        "'01', '1' have the same value",
        {"rankings": cut(RANKINGS, "ranker", lambda old: ["1" if n == "a" else "01" for n in old])},
    ),
    # Ids that are NaN would all be one.
    "NaN queries": Case(the(cut(WIDE, "query_id", some_nan)), "no value in column 'query_id'"),
    "NaN queries in Parquet": Case(parquet(cut(WIDE, "query_id", some_nan)), "no value in column 'query_id'"),
    "NaN queries in replay": Case(the(cut(REPLAY, "query_id", some_nan)), "no value in column 'query_id'"),
    "NaN documents in replay": Case(the(cut(REPLAY, "doc_id", some_nan)), "no value in column 'doc_id'"),
    "NaN documents in polars": Case(
        the(polars.from_arrow(cut(REPLAY, "doc_id", some_nan))), "no value in column 'doc_id'"
    ),
    "NaN documents in pandas": Case(the(cut(REPLAY, "doc_id", some_nan).to_pandas()), "no value in column 'doc_id'"),
    "NaN rankers": Case(
        the(cut(REPLAY, "ranker", lambda old: [NAN if n == "a" else 1.0 for n in old])), "no value in column 'ranker'"
    ),
    "NaN rankers beside ranks": Case(
        the(named(cut(WIDE, "ranker", lambda old: [NAN if n == "a" else 1.0 for n in old]), rank_a="rank_1")),
        "no value in column 'ranker'",
    ),
    "NaN page views": Case(
        the(cut(WIDE, "impression_id", some_nan)), "no value in column 'impression_id'", {"duplicates": "drop"}
    ),
    "NaN single precision": Case(
        the(cut(REPLAY, "query_id", lambda old: some_nan(old).cast(pa.float32()))), "no value in column 'query_id'"
    ),
    "NaN queries of a swap": Case(
        the(cut(REPLAY, "query_id", some_nan).append_column("original_rank", REPLAY["position"])), "'query_id'"
    ),
    # What a Parquet file says of a column leaves NaN out: of one other value, each would be that.
    "NaN beside one query": Case(parquet(beside_nan("query_id")), "180 of 360 rows have no value in column 'query_id'"),
    "NaN beside one document": Case(parquet(beside_nan("doc_id")), "180 of 360 rows have no value in column 'doc_id'"),
    "NaN beside one ranker": Case(parquet(beside_nan("ranker")), "180 of 360 rows have no value in column 'ranker'"),
    "NaN beside one page view": Case(
        parquet(beside_nan("impression_id")), "no value in column 'impression_id'", {"duplicates": "drop"}
    ),
    "NaN beside one window": Case(
        parquet(beside_nan("day", twice(REPLAY, "day"))), "no value in column 'day'", {"window": "day"}
    ),
    # Counts that no 64 bits hold.
    "sums in wide": Case(the(HUGE), r"'impressions' and 'clicks' add up to more than 2\^53"),
    "sums in Parquet": Case(parquet(HUGE), r"add up to more than 2\^53"),
    "sums in CSV": Case(csv(HUGE), r"add up to more than 2\^53"),
    "sums in replay": Case(the(HUGE.drop_columns(["rank_a", "rank_b"])), r"add up to more than 2\^53"),
    "sums of clicks": Case(the(cut(HUGE, "clicks", lambda old: [2**61] * len(old))), r"add up to more than 2\^53"),
    "sums of unsigned": Case(
        the(cut(COUNTS, "impressions", lambda old: pa.array([2**64 - 1] * len(old), pa.uint64()))), r"2\^63|not a whole"
    ),
    "sums of 128 bits": Case(
        relation("SELECT * REPLACE (170141183460469231731687303715884105727 AS impressions) FROM counts"),
        r"2\^63|not a whole|cannot be represented",
    ),
    # What a folder is called.
    "ranker by folder": Case(
        all_of(*(parquet(WIDE.drop_columns(["ranker"]), f"ranker={n}/log.parquet") for n in "ab")),
        r"No file of the log has the column 'ranker'; it exists only in the names of folders.* Add ranker='ranker'",
    ),
    "click by folder": Case(
        all_of(*(csv(WIDE.drop_columns(["clicked"]), f"clicked={n}/log.csv") for n in (0, 1))),
        "'clicked'; it exists only in the names of folders",
    ),
    "query by folder": Case(
        all_of(*(parquet(WIDE.drop_columns(["query_id"]), f"query_id={n}/log.parquet") for n in (0, 1))),
        "'query_id'; it exists only in the names of folders",
    ),
    "rank by folder": Case(
        the(LONG),
        "No file of the rankings table has the column 'rank'; it exists only in the names of folders",
        {"rankings": all_of(*(csv(RANKINGS.drop_columns(["rank"]), f"rank={n}/r.csv") for n in (1, 2)))},
    ),
    # Something else in place of rankers.
    "too many rankers": Case(
        the(cut(MANY, "ranker", ids)), r"too many rankers: 10,\d+ in column 'ranker', such as 'user 0'"
    ),
    "too many rankers in CSV": Case(csv(cut(MANY, "ranker", ids)), r"too many rankers"),
    "too many rankers in the rankings": Case(
        the(LONG), "too many rankers", {"rankings": cut(pa.concat_tables([RANKINGS] * 70), "ranker", ids)}
    ),
    "rankers beside their ranks": Case(the(cut(WIDE, "ranker", ids)), "whose ranks are not known"),
    # Files of a log that do not agree.
    "a file without clicks": Case(lacking("clicked"), r"disagree on column 'clicked'.*missing in .*1\.parquet"),
    "a file without queries": Case(lacking("query_id"), r"disagree on column 'query_id'.*missing in .*1\.parquet"),
    "a CSV file without positions": Case(
        lacking("position", csv, "csv"), r"disagree on column 'position'.*missing in .*1\.csv"
    ),
    "a file without rank_b": Case(
        lacking("rank_b"), r"disagree on column 'rank_b': .*missing in 1 of 3.*1\.parquet", finding=True
    ),
    "a CSV file without rank_b": Case(
        lacking("rank_b", csv, "csv"), r"disagree on column 'rank_b': .*missing in 1 of 3.*1\.csv", finding=True
    ),
    # Lines of two kinds.
    "LF and then CRLF": Case(
        raw("log.csv", ("\n".join(LINES[:9]) + "\n" + "\r\n".join(LINES[9:]) + "\r\n").encode()),
        r"log\.csv'? mixes line endings(: '\\n' \(first in line 1\) and '\\r\\n' \(first in line 10\)|\. Write)",
    ),
    "CRLF and then LF": Case(
        raw("log.csv", ("\r\n".join(LINES[:9]) + "\r\n" + "\n".join(LINES[9:]) + "\n").encode()),
        r"mixes line endings: '\\r\\n'",
    ),
    "CRLF and LF in gzip": Case(
        raw("log.csv.gz", gzip.compress(("\r\n".join(LINES[:9]) + "\r\n" + "\n".join(LINES[9:])).encode())),
        r"mixes line endings",
    ),
    # Ids that are fractions here and whole there.
    "log of fractions": Case(
        the(cut(LONG, "query_id", lambda old: pa.array(list(map(float, old))))),
        "Column 'query_id' is DOUBLE in the log and BIGINT in the rankings table",
        {"rankings": RANKINGS},
    ),
    "rankings of fractions": Case(
        the(LONG),
        "Column 'doc_id' is BIGINT in the log and DOUBLE in the rankings table",
        {"rankings": cut(RANKINGS, "doc_id", lambda old: pa.array(list(map(float, old))))},
    ),
    "rankings of decimals": Case(
        the(LONG),
        r"Column 'doc_id' is BIGINT in the log and DECIMAL\(21,2\) in the rankings table",
        {"rankings": RANKINGS.set_column(2, "doc_id", RANKINGS["doc_id"].cast(pa.decimal128(21, 2)))},
    ),
    # What is no file is not waited for.
    "a link to itself": Case(special("x.csv", "link"), "x.csv' is a link to a file that does not exist"),
    "a pipe": Case(special("x.csv", "pipe"), "x.csv' is a pipe"),
    "a pipe of Parquet": Case(special("x.parquet", "pipe"), "x.parquet' is a pipe"),
    "a pipe in a folder": Case(special("x.csv", "pipe", lambda path: path.parent), "x.csv' is a pipe"),
    "a pipe by a pattern": Case(special("x.csv", "pipe", lambda path: str(path.parent / "*.csv")), "x.csv' is a pipe"),
    "a pipe in a list": Case(special("x.csv", "pipe", lambda path: [path, path]), "x.csv' is a pipe"),
    "a socket": Case(special("x.jsonl", "socket"), "x.jsonl' is a socket"),
    "a device": Case(special("x.csv", "/dev/zero"), "x.csv' is a device"),
    "a link to nothing": Case(special("x.csv", "nowhere.csv"), "x.csv' is a link that leads nowhere"),
    "a link to nothing in a folder": Case(special("x.csv", "nowhere", lambda path: path.parent), "leads nowhere"),
    "a pipe of rankings": Case(special("x.csv", "pipe", lambda path: LONG), "is a pipe", {"rankings": "x.csv"}),
    "a device of rankings": Case(special("x.csv", "/dev/zero", lambda path: LONG), "a device", {"rankings": "x.csv"}),
    # Databases.
    "SQLite": Case(sqlite, "log.db' is not a DuckDB database but a SQLite database", spark=False),
    "text as a database": Case(raw("log.duckdb", b"hello, world, hello"), "is not a DuckDB database", spark=False),
    "nothing as a database": Case(raw("log.duckdb", b""), "is empty", spark=False),
    "a view of a file": Case(
        database("CREATE VIEW v AS SELECT c.* FROM clicks c, '{folder}/secret.csv'"),
        "secret.csv.*If you trust it, read it by your own query",
        {"table": "v"},
        spark=False,
    ),
    "a view of a text": Case(
        database("CREATE VIEW v AS SELECT c.* FROM clicks c, read_text('{folder}/secret.csv')"),
        "secret.csv.*your own query",
        {"table": "v"},
        spark=False,
    ),
    "a view of what is gone": Case(
        database("CREATE TABLE t AS FROM clicks", "CREATE VIEW v AS FROM t", "DROP TABLE t"),
        "t does not exist",
        {"table": "v"},
        spark=False,
    ),
    "a macro in the query": Case(
        database("CREATE MACRO twisted(x) AS x"), "twisted", {"sql": "SELECT twisted(1) FROM clicks"}, spark=False
    ),
    "a setting in the query": Case(the(WIDE), "has 2 statements", {"sql": "FROM source; SET threads = 1"}, spark=False),
    "an extension in the query": Case(
        the(WIDE), "loads no extension", {"sql": "FROM 'https://127.0.0.1:9/x.parquet'"}, spark=False
    ),
    "a variable in the query": Case(the(WIDE), "does not exist", {"sql": "FROM WIDE"}, spark=False),
    # Positions.
    "position NULL": Case(the(some("position", None)), "no value in column 'position'"),
    "position of no type": Case(the(cut(WIDE, "position", lambda old: [None] * len(old))), "no value in column"),
    "position 0": Case(the(some("position", 0)), "position of 0 in 'position': positions seem to count from 0"),
    "position -0.0": Case(the(number("position", -0.0)), "positions seem to count from 0"),
    "position -1": Case(the(some("position", -1)), "negative position in 'position'"),
    "position 1.5": Case(the(number("position", 1.5)), "not a whole number.*position=1.5"),
    "position NaN": Case(the(number("position", NAN)), "position in 'position' that is not a whole number"),
    "position inf": Case(the(number("position", float("inf"), -float("inf"))), "not a whole number"),
    "position 1e30": Case(the(number("position", 1e30)), "not a whole number"),
    "position 2^64 - 1": Case(the(some("position", 2**64 - 1, type_=pa.uint64())), "not a whole number"),
    "position of 128 bits": Case(
        relation("SELECT * REPLACE (170141183460469231731687303715884105727 AS position) FROM wide"),
        "not a whole number|cannot be represented",
    ),
    "position first": Case(the(word("position", "first")), "not a whole number.*position=first"),
    "position 0x1": Case(the(word("position", "0x1")), "not a whole number"),
    "position 1_0": Case(the(word("position", "1_0")), "not a whole number.*position=1_0"),
    "position 1,5": Case(the(word("position", "1,5")), "not a whole number"),
    "position 2d": Case(the(word("position", "2d")), "not a whole number"),
    "position of other digits": Case(the(word("position", "\u0661")), "not a whole number"),
    "position of blanks": Case(csv(word("position", " ")), "not a whole number"),
    "position of NUL": Case(text("log.csv", *LINES[:9], "1,1,a,\0\0,0", *LINES[9:]), "not a whole number"),
    "position of decimals": Case(
        the(
            some(
                "position", decimal.Decimal("1.5"), table=every("position", decimal.Decimal), type_=pa.decimal128(5, 1)
            )
        ),
        "not a whole number.*position=1.5",
    ),
    "position of booleans": Case(
        the(every("position", lambda k: k == 1)), "Column 'position' of the log is true or false"
    ),
    "position of dates": Case(the(every("position", day)), "not a whole number"),
    "position of times": Case(the(every("position", moment)), "not a whole number"),
    "position of lists": Case(the(every("position", lambda k: [k])), "not a whole number"),
    "position of structs": Case(the(every("position", lambda k: {"k": k})), "not a whole number"),
    "position of bytes": Case(the(every("position", lambda k: bytes([k]))), "not a whole number"),
    # Clicks.
    "click NULL": Case(the(some("clicked", None)), r"no value in column 'clicked'.*COALESCE\(clicked, 0\)"),
    "click of no type": Case(the(cut(WIDE, "clicked", lambda old: [None] * len(old))), "no value in column 'clicked'"),
    "click 2": Case(the(some("clicked", 2)), "click in 'clicked' that is neither 0 nor 1"),
    "click -1": Case(the(some("clicked", -1)), "neither 0 nor 1.*clicked=-1"),
    "click 2^64 - 1": Case(the(some("clicked", 2**64 - 1, type_=pa.uint64())), "neither 0 nor 1"),
    "click 0.5": Case(the(number("clicked", 0.5)), "neither 0 nor 1.*clicked=0.5"),
    "click NaN": Case(the(number("clicked", NAN)), "neither 0 nor 1"),
    "click inf": Case(the(number("clicked", float("inf"))), "neither 0 nor 1"),
    "click yes": Case(the(word("clicked", "yes", "no")), "neither 0 nor 1.*clicked=(yes|no)"),
    "click t": Case(the(word("clicked", "t")), "neither 0 nor 1"),
    "click of no letter": Case(the(word("clicked", "")), "neither 0 nor 1"),
    "click of dates": Case(the(every("clicked", day)), "neither 0 nor 1"),
    "click of times, else NULL": Case(the(every("clicked", lambda c: moment(c) if c else None)), "no value in column"),
    "click of lists": Case(the(every("clicked", lambda c: [c])), "neither 0 nor 1"),
    "click of structs": Case(the(every("clicked", lambda c: {"c": c})), "neither 0 nor 1"),
    "click of bytes": Case(the(every("clicked", lambda c: b"1" if c else b"0")), "neither 0 nor 1"),
    "click of objects": Case(the(WIDE.to_pandas().assign(clicked=["yes", 1, 0] * (len(WIDE) // 3))), "neither 0 nor 1"),
    "no click at all": Case(the(every("clicked", lambda c: 0)), "not a single click on 360 results"),
    "nothing but clicks": Case(the(every("clicked", lambda c: 1)), "All 360 results were clicked"),
    # Counts.
    "more clicks than impressions": Case(
        the(some("clicks", 10**6, table=COUNTS)), "more clicks in 'clicks' than impressions"
    ),
    "counts exchanged": Case(the(COUNTS), "more clicks", {"impressions": "clicks", "clicks": "impressions"}),
    "clicks -1": Case(the(some("clicks", -1, table=COUNTS)), "'clicks' that is not a whole number of 0 or more"),
    "clicks 0.5": Case(the(number("clicks", 0.5, table=COUNTS)), "'clicks' that is not a whole number of 0 or more"),
    "impressions NULL": Case(the(some("impressions", None, table=COUNTS)), "'impressions' that is not a whole number"),
    "impressions -1": Case(the(some("impressions", -1, table=COUNTS)), "not a whole number of 0 or more"),
    "impressions 1.5": Case(the(number("impressions", 1.5, table=COUNTS)), "not a whole number of 0 or more"),
    "impressions NaN": Case(the(number("impressions", NAN, table=COUNTS)), "not a whole number of 0 or more"),
    "impressions inf": Case(the(number("impressions", float("inf"), table=COUNTS)), "not a whole number of 0 or more"),
    "impressions many": Case(the(word("impressions", "many", table=COUNTS)), "not a whole number of 0 or more"),
    "impressions 1e3_0": Case(the(word("impressions", "1e3_0", table=COUNTS)), "not a whole number of 0 or more"),
    "impressions of dates": Case(the(every("impressions", lambda n: day(1), COUNTS)), "not a whole number"),
    "impressions of lists": Case(the(every("impressions", lambda n: [n], COUNTS)), "not a whole number"),
    "no impressions at all": Case(
        the(every("clicks", lambda n: 0, every("impressions", lambda n: 0, COUNTS))), "Nothing was shown", finding=True
    ),
    "clicks alone": Case(the(COUNTS.drop_columns(["impressions"])), "Column 'clicked' is not in the log"),
    # Ids.
    "query NULL": Case(the(some("query_id", None)), "no value in column 'query_id'"),
    "query of no type": Case(
        the(cut(WIDE, "query_id", lambda old: [None] * len(old))), "no value in column 'query_id'"
    ),
    "query of lists": Case(
        the(every("query_id", lambda q: [q])), "Column 'query_id' of the log is .*must be a single value"
    ),
    "query of structs": Case(the(every("query_id", lambda q: {"id": q})), "must be a single value"),
    "document NULL in replay": Case(the(some("doc_id", None, table=REPLAY)), "no value in column 'doc_id'"),
    "document NULL by many rankers": Case(the(some("doc_id", None, table=DOZEN)), "no value in column 'doc_id'"),
    "query NULL by many rankers": Case(the(some("query_id", None, table=DOZEN)), "no value in column 'query_id'"),
    "document of structs in replay": Case(the(every("doc_id", lambda d: {"id": d}, REPLAY)), "must be a single value"),
    "document of lists in replay": Case(the(every("doc_id", lambda d: [d], REPLAY)), "must be a single value"),
    "document of maps in replay": Case(
        the(cut(REPLAY, "doc_id", lambda old: pa.array([[("id", d)] for d in old], pa.map_(pa.string(), pa.int64())))),
        "Column 'doc_id' of the log is MAP",
    ),
    # Rankers.
    "ranker NULL": Case(the(some("ranker", None)), "no value in column 'ranker'"),
    "ranker NULL in replay": Case(the(some("ranker", None, table=REPLAY)), "no value in column 'ranker'"),
    "ranker of no type": Case(the(cut(WIDE, "ranker", lambda old: [None] * len(old))), "no value in column 'ranker'"),
    "ranker of no letter": Case(the(some("ranker", "")), "whose ranks are not known"),
    "ranker and a blank": Case(the(some("ranker", "a ")), "whose ranks are not known.*the ranks of 'a', 'b'"),
    "ranker in capitals": Case(the(some("ranker", "A")), "whose ranks are not known"),
    "ranker of lists": Case(
        the(every("ranker", lambda r: [r])), "Column 'ranker' of the log is .*must be a single value"
    ),
    "ranker of structs in replay": Case(the(every("ranker", lambda r: {"name": r}, REPLAY)), "must be a single value"),
    "ranker of dates": Case(the(every("ranker", lambda r: day(1))), "whose ranks are not known"),
    # Ranks of rankers that were not shown.
    "rank 0": Case(the(some("rank_b", 0)), "rank of 0 in 'rank_a', 'rank_b': ranks seem to count from 0"),
    "rank 0 unsigned": Case(the(some("rank_b", 0, type_=pa.uint64())), "ranks seem to count from 0"),
    "rank -1": Case(the(some("rank_b", -1)), "not a whole number of 1 or more"),
    "rank of -128 bits": Case(
        relation("SELECT * REPLACE (-170141183460469231731687303715884105727 AS rank_b) FROM wide"),
        "not a whole number of 1 or more|cannot be represented",
    ),
    "rank 1.5": Case(the(number("rank_b", 1.5)), "not a whole number of 1 or more"),
    "rank inf": Case(the(number("rank_b", float("inf"))), "not a whole number of 1 or more"),
    "rank second": Case(the(word("rank_b", "second")), "not a whole number of 1 or more"),
    "rank -": Case(the(word("rank_b", "-")), "not a whole number of 1 or more"),
    "rank 1_0": Case(the(word("rank_b", "1_0")), "not a whole number of 1 or more"),
    "rank of booleans": Case(the(every("rank_b", lambda k: k == 1)), "Column 'rank_b' of the log is true or false"),
    "rank of dates": Case(the(every("rank_b", day)), "not a whole number of 1 or more"),
    "rank of times": Case(the(every("rank_b", moment)), "not a whole number of 1 or more"),
    "rank of lists": Case(the(every("rank_b", lambda k: [k])), "not a whole number of 1 or more"),
    "rank of structs": Case(the(every("rank_b", lambda k: {"k": k})), "not a whole number of 1 or more"),
    "rank of halves": Case(the(every("rank_b", lambda k: decimal.Decimal(k) / 2)), "not a whole number of 1 or more"),
    "ranks exchanged": Case(
        the(named(WIDE, rank_a="rank_b", rank_b="rank_a")), "position is not the rank", finding=True
    ),
    "ranks moved by one": Case(the(every("rank_a", lambda k: k + 1)), "position is not the rank", finding=True),
    "no rank of a ranker shown": Case(
        the(cut(WIDE, "rank_a", lambda old: [None] * len(old))), "180 of 360 rows were left out", finding=True
    ),
    "ranks that fit nothing": Case(the(WIDE), "No column fits ranks='place_{ranker}'", {"ranks": "place_{ranker}"}),
    "ranks of no ranker": Case(the(WIDE), "must contain {ranker} once", {"ranks": "rank_"}),
    "ranks of two rankers": Case(the(WIDE), "must contain {ranker} once", {"ranks": "{ranker}_{ranker}"}),
    # The second table of a long log.
    "rankings of NULL": Case(
        the(LONG), "rows were left out", {"rankings": some("rank", None, table=RANKINGS)}, finding=True
    ),
    "rankings of NaN": Case(
        the(LONG), "rows were left out", {"rankings": number("rank", NAN, table=RANKINGS)}, finding=True
    ),
    "rankings of NULL documents": Case(
        the(LONG), "rows were left out", {"rankings": some("doc_id", None, table=RANKINGS)}, finding=True
    ),
    "rankings of 0": Case(the(LONG), "rankings have a rank of 0", {"rankings": some("rank", 0, table=RANKINGS)}),
    "rankings of -1": Case(
        the(LONG), "not a whole number of 1 or more", {"rankings": some("rank", -1, table=RANKINGS)}
    ),
    "rankings of 1.5": Case(
        the(LONG), "not a whole number of 1 or more", {"rankings": number("rank", 1.5, table=RANKINGS)}
    ),
    "rankings of words": Case(
        the(LONG), "not a whole number of 1 or more", {"rankings": word("rank", "top", table=RANKINGS)}
    ),
    "rankings of dates": Case(the(LONG), "not a whole number of 1 or more", {"rankings": every("rank", day, RANKINGS)}),
    "rankings of times": Case(
        the(LONG), "not a whole number of 1 or more", {"rankings": every("rank", moment, RANKINGS)}
    ),
    "rankings of lists": Case(
        the(LONG), "not a whole number of 1 or more", {"rankings": every("rank", lambda k: [k], RANKINGS)}
    ),
    "rankings of booleans": Case(
        the(LONG),
        "'rank' of the rankings table is true or false",
        {"rankings": every("rank", lambda k: k == 1, RANKINGS)},
    ),
    "rankings of list documents": Case(
        the(LONG),
        "'doc_id' of the rankings table is .*single value",
        {"rankings": every("doc_id", lambda d: [d], RANKINGS)},
    ),
    "rankings that contradict": Case(
        the(LONG), "116 of 116 .* have several ranks by one ranker", {"rankings": unlike(lambda k: k % 3 + 1)}
    ),
    "rankings that contradict in part": Case(
        the(LONG), "2 of 116 .* several ranks by one ranker", {"rankings": unlike(lambda k: k % 3 + 1, 2)}, finding=True
    ),
    "rankings that hide a 0": Case(the(LONG), "have a rank of 0", {"rankings": unlike(lambda k: 0)}),
    "rankings without rows": Case(
        the(LONG), "table of rankings is empty, or has no value in column 'ranker'", {"rankings": RANKINGS.slice(0, 0)}
    ),
    "rankings of nobody": Case(
        the(LONG),
        "table of rankings is empty, or has no value in column 'ranker'",
        {"rankings": every("ranker", lambda r: "", RANKINGS)},
    ),
    "rankings of no type": Case(
        the(LONG),
        "table of rankings is empty, or has no value in column 'ranker'",
        {"rankings": cut(RANKINGS, "ranker", lambda old: [None] * len(old))},
    ),
    "rankings of one ranker": Case(
        the(LONG),
        "ranks are not known: the rankings table has the ranks of 'a'",
        {"rankings": RANKINGS.filter(pa.compute.equal(RANKINGS["ranker"], "a"))},
    ),
    "rankings of others": Case(the(LONG), "are not known", {"rankings": every("ranker", lambda r: f"{r}2", RANKINGS)}),
    "rankings without ranks": Case(
        the(LONG), "Column 'rank' is not in the rankings table", {"rankings": RANKINGS.drop_columns(["rank"])}
    ),
    "rankings without queries": Case(
        the(LONG), "'query_id' is not in the rankings table", {"rankings": RANKINGS.drop_columns(["query_id"])}
    ),
    "rankings that are the log": Case(the(LONG), "'rank' is not in the rankings table", {"rankings": LONG}),
    "rankings that are not there": Case(the(LONG), "There is no file 'nothing.csv'", {"rankings": "nothing.csv"}),
    "rankings that are a number": Case(the(LONG), "cannot be read from a int", {"rankings": 7}),
    "rankings beside ranks": Case(the(LONG), "not both", {"rankings": RANKINGS, "ranks": "rank_{ranker}"}),
    "rankings in another database": Case(
        the(LONG),
        "cannot be read from a second DuckDB file|cannot read the DuckDB",
        {"rankings": database(name="r.duckdb")},
    ),
    "rankings of other documents": Case(
        the(LONG),
        "have no value of column 'doc_id' in common",
        {"rankings": every("doc_id", lambda d: d + 10**6, RANKINGS)},
    ),
    "rankings of 1.0 in CSV": Case(
        the(LONG),
        "no value of column 'doc_id' .*BIGINT, such as '0',.*such as '0.0'",
        {"rankings": csv(every("doc_id", float, RANKINGS), "rankings.csv")},
    ),
    "rankings of queries 1.0 in CSV": Case(
        the(LONG),
        "no value of column 'query_id'",
        {"rankings": csv(every("query_id", float, RANKINGS), "rankings.csv")},
    ),
    "rankings of 1, a log of 1.0": Case(
        csv(every("doc_id", float, LONG)), "no value of column 'doc_id'", {"rankings": RANKINGS}
    ),
    "rankings of 007": Case(
        the(LONG), "no value of column 'doc_id'.*'00000'", {"rankings": every("doc_id", lambda d: f"{d:05}", RANKINGS)}
    ),
    "rankings of blanks": Case(
        the(LONG), "no value of column 'doc_id'.*'0 '", {"rankings": every("doc_id", lambda d: f"{d} ", RANKINGS)}
    ),
    # Text files.
    "nothing in CSV": Case(raw("log.csv", b""), "log.csv' is empty"),
    "blank lines in CSV": Case(raw("log.csv", b"\n\n \n"), "log.csv' is empty"),
    "a mark in CSV": Case(raw("log.csv", b"\xef\xbb\xbf"), "log.csv' is empty"),
    "a header alone": Case(text("log.csv", HEADER), "it has columns but no rows"),
    "no header": Case(text("log.csv", *LINES[1:]), "has values instead of column names: '0', '0', 'a'"),
    "UTF-16": Case(raw("log.csv", "\n".join(LINES).encode("utf-16")), "not CSV text in UTF-8"),
    "UTF-16 without a mark": Case(raw("log.csv", "\n".join(LINES).encode("utf-16-le")), "not in the log"),
    "Latin-1": Case(raw("log.csv", "\n".join([*LINES, "\xe9,1,a,1,0"]).encode("latin-1")), "not CSV text in UTF-8"),
    "NUL in the header": Case(text("log.csv", f"{HEADER}\0", *LINES[1:]), "not in the log|is not CSV"),
    "a short row": Case(text("log.csv", *LINES, "1,1,a,1"), "4 values for 5 columns|Malformed CSV record: 1,1,a,1"),
    "a long row": Case(text("log.csv", *LINES, "1,1,a,1,0,7"), "line 42|Malformed CSV record: 1,1,a,1,0,7"),
    "an open quote": Case(text("log.csv", *LINES, '"1,1,a,1,0'), "log.csv"),
    "an open quote early": Case(text("log.csv", *LINES[:4], '"1,1,a,1,0', *LINES[4:]), "log.csv"),
    "an open quote in the header": Case(text("log.csv", f'"{HEADER}', *LINES[1:]), "log"),
    "rows by another delimiter": Case(text("log.csv", HEADER, *(r.replace(",", ";") for r in LINES[1:])), "log.csv"),
    "a line break after a mark": Case(
        raw("log.csv", "\n".join(['\ufeff"a\nb",' + HEADER, *(f"x,{r}" for r in LINES[1:])]).encode()),
        "contains a line break after a byte order mark",
    ),
    "a delimiter after a mark": Case(
        raw("log.csv", "\n".join(['\ufeff"a,b",' + HEADER, *(f"x,{r}" for r in LINES[1:])]).encode()),
        "contains the delimiter ',' after a byte order mark",
    ),
    # Files that are something else, or cut.
    "Parquet as CSV": Case(damaged(parquet(WIDE), lambda data: data, "log.csv"), "not CSV text in UTF-8|is not CSV"),
    "CSV as Parquet": Case(text("log.parquet", *LINES), "looks truncated or damaged"),
    "CSV as gzip": Case(raw("log.csv.gz", b"a,b\n1,2\n"), "cannot be decompressed"),
    "gzip as CSV": Case(raw("log.csv", PACKED), "not CSV text in UTF-8"),
    "gzip cut": Case(raw("log.csv.gz", PACKED[:-9]), "cannot be decompressed"),
    "gzip of another sum": Case(raw("log.csv.gz", PACKED[:-8] + b"\0" * 8), "cannot be decompressed"),
    "gzip and more": Case(raw("log.csv.gz", PACKED + b"more"), "cannot be decompressed"),
    "gzip of JSON cut": Case(
        raw("log.jsonl.gz", gzip.compress((ROW + "\n").encode() * 99)[:-9]), "cannot be decompressed"
    ),
    "Zstandard cut": Case(raw("log.csv.zst", ZSTD[:-5]), "cannot be decompressed", spark=False),
    "CSV as Zstandard": Case(text("log.csv.zst", *LINES), "cannot be decompressed", spark=False),
    "Parquet without its end": Case(damaged(parquet(WIDE), lambda data: data[:-100]), "looks truncated or damaged"),
    "Parquet without its start": Case(damaged(parquet(WIDE), lambda data: data[100:]), "looks truncated or damaged"),
    "Parquet without its middle": Case(
        damaged(parquet(WIDE), lambda data: data[:200] + data[900:]), "log.parquet|read"
    ),
    "eight bytes of Parquet": Case(raw("log.parquet", b"PAR1PAR1"), "looks truncated or damaged"),
    "nothing in Parquet": Case(raw("log.parquet", b""), "log.parquet' is empty"),
    "no rows in Parquet": Case(parquet(WIDE.slice(0, 0)), "it has columns but no rows"),
    "no columns in Parquet": Case(parquet(pa.table({})), "read|Columns? "),
    "Arrow files": Case(raw("log.arrow", b"ARROW1\0\0"), "log.arrow' has no ending of a known format"),
    "a spreadsheet": Case(raw("log.xlsx", b"PK"), "log.xlsx' has no ending of a known format"),
    "a file of no ending": Case(text("log", *LINES), "log' has no ending of a known format"),
    # JSON.
    "nothing in JSON": Case(raw("log.jsonl", b""), "log.jsonl' is empty"),
    "numbers in JSON": Case(jsonl("1", "2"), "has no JSON objects|one object for each row"),
    "lists in JSON": Case(jsonl("[1, 2]", "[3, 4]"), "JSON|column"),
    "words in JSON": Case(jsonl("hello"), "[Ee]xpected one"),
    "empty objects in JSON": Case(jsonl("{}", "{}"), "has no JSON objects|not in the log"),
    "half an object in JSON": Case(jsonl(ROW, ROW[:20]), "[Ee]xpected one|truncated"),
    "NaN in JSON": Case(jsonl(ROW.replace('"query_id":1', '"query_id":NaN')), "read|no value|query_id"),
    "JSON 5,000 deep": Case(jsonl(ROW.replace(":1,", f":{'[' * 5000}{']' * 5000},", 1)), "log.jsonl|read"),
    "objects as positions in JSON": Case(
        jsonl(ROW.replace('"position":1', '"position":{"k":1}')), "not a whole number"
    ),
    "lists as positions in JSON": Case(jsonl(ROW.replace('"position":1', '"position":[1]')), "not a whole number"),
    "fractions as positions in JSON": Case(jsonl(ROW.replace('"position":1', '"position":1.5')), "not a whole number"),
    "a key twice, late in JSON": Case(
        jsonl(ROW, ROW[:-1] + ',"position":2}'), 'duplicate key "position"|`position` already exists'
    ),
    "JSON in UTF-16": Case(raw("log.jsonl", ROW.encode("utf-16")), "log.jsonl", spark=False),
    "JSON in Latin-1": Case(
        raw("log.jsonl", ROW.replace('"a"', '"\xe9"').encode("latin-1")), "UTF-8|log.jsonl", spark=False
    ),
    # Folders and lists.
    "an empty folder": Case(all_of(), "contains no log file"),
    "a folder of notes": Case(all_of(text("notes.md", "none")), "contains no log file"),
    "a folder of hidden files": Case(all_of(csv(WIDE, "_temporary/log.csv")), "contains no log file"),
    "a folder of two formats": Case(all_of(csv(WIDE, "1.csv"), parquet(WIDE, "2.parquet")), "several formats"),
    "an empty file among others": Case(all_of(csv(WIDE, "1.csv"), raw("2.csv", b"")), "2.csv' is empty"),
    "a text among clicks": Case(
        all_of(parquet(WIDE, "1.parquet"), parquet(every("clicked", lambda c: "yes"), "2.parquet")), "neither 0 nor 1"
    ),
    "lists among queries": Case(
        all_of(parquet(WIDE, "1.parquet"), parquet(every("query_id", lambda q: [q]), "2.parquet")),
        "has different types in the files|must be a single value",
    ),
    "a question mark before gzip": Case(text("day?/log.csv.gz", *LINES), "question mark in its path", spark=False),
    "no path at all": Case(lambda folder: (csv(WIDE)(folder), "")[1], "The path '' is not a file name"),
    "a path of blanks": Case(lambda folder: (csv(WIDE)(folder), " ")[1], "The path ' ' is not a file name"),
    "no path in a list": Case(lambda folder: [csv(WIDE)(folder), ""], "The path '' is not a file name"),
    "no path of rankings": Case(
        lambda folder: (csv(RANKINGS)(folder), LONG)[1], "is not a file name", {"rankings": ""}
    ),
    "a path with a NUL": Case(the("log\0.csv"), "is not a file name"),
    "no such file": Case(lambda folder: folder / "nothing.csv", "There is no file"),
    "no such pattern": Case(lambda folder: str(folder / "*.csv"), "No file matches"),
    "no files in a list": Case(the([]), "list of files is empty"),
    "an address": Case(the("s3://bucket/log.parquet"), "is a remote address", spark=False),
    "a harvest as a log": Case(harvested, "'query_id', 'doc_id', 'position' are not in the log", command=False),
    # Data in memory.
    "None": Case(the(None), "cannot be read from a NoneType"),
    "a number": Case(the(7), "cannot be read from a int"),
    "bytes": Case(the(b"log.csv"), "cannot be read from a bytes"),
    "a dict": Case(the({"query_id": [1]}), "cannot be read from a dict"),
    "a list of rows": Case(the([{"query_id": 1}]), "cannot be read from a list"),
    "a generator": Case(lambda folder: (row for row in [1]), "cannot be read from a generator"),
    "a series": Case(the(WIDE.to_pandas()["clicked"]), "cannot be read from a Series"),
    "an array": Case(the(np.zeros((3, 5))), "does not look like a click log"),
    "a frame of nothing": Case(the(pandas.DataFrame()), "at least one column"),
    "a frame of numbered columns": Case(the(pandas.DataFrame([[1, 2]])), "Columns found: '0', '1'"),
    "a frame of two headers": Case(
        the(pandas.DataFrame([[1, 2]], columns=pandas.MultiIndex.from_product([["query_id"], ["x", "y"]]))),
        "not in the log",
    ),
    "a frame of complex numbers": Case(the(WIDE.to_pandas().assign(clicked=1j)), "complex128"),
    "a table without rows": Case(the(WIDE.slice(0, 0)), "it has columns but no rows"),
    "a lazy frame of no file": Case(
        lambda folder: polars.scan_csv(folder / "nothing.csv"), "from a LazyFrame .*nothing.csv"
    ),
    "a lazy frame of no column": Case(
        lambda folder: polars.from_arrow(WIDE).lazy().select("nothing"), "from a LazyFrame .*nothing"
    ),
    "a reader that was read": Case(read_already, "no row|consumed", again=False),
    "a closed relation": Case(closed, "already been closed"),
    "a dataset that is gone": Case(gone, "No such file"),
    # Databases.
    "no table in a database": Case(nothing_left, "has 0 tables", spark=False),
    "two tables in a database": Case(database("CREATE TABLE other AS FROM clicks"), "has 2 tables", spark=False),
    "another table in a database": Case(
        database(), "no table 'klicks'.*mean 'clicks'", {"table": "klicks"}, spark=False
    ),
    "two databases": Case(
        lambda folder: [database(name=f"{i}.duckdb")(folder) for i in (1, 2)], "2 DuckDB files", spark=False
    ),
    "a database cut": Case(damaged(database(), lambda data: data[:5000]), "Could not read enough bytes", spark=False),
    "a table of a file": Case(csv(WIDE), "table is for a DuckDB file", {"table": "clicks"}, spark=False),
    # Arguments.
    "a column that is not there": Case(the(WIDE), "'qid' is not in the log. Did you mean 'query_id'", {"query": "qid"}),
    "a column of no name": Case(the(WIDE), "query='' must be text: the name of a column", {"query": ""}),
    "None as a column": Case(the(WIDE), "doc=None must be text", {"doc": None}),
    "a number as a column": Case(the(WIDE), "click=3 must be text", {"click": 3}),
    "a list as a column": Case(the(WIDE), "impression=.* must be text", {"impression": ["impression_id"]}),
    "query and document in one": Case(the(WIDE), "'query_id' cannot be both query and doc", {"doc": "query_id"}),
    "query and ranker in one": Case(the(REPLAY), "'query_id' cannot be both query and ranker", {"ranker": "query_id"}),
    "position and click in one": Case(the(WIDE), "'position' cannot be both position and click", {"click": "position"}),
    "impressions and clicks in one": Case(
        the(COUNTS), "cannot be both impressions and clicks", {"impressions": "clicks", "clicks": "clicks"}
    ),
    "page views that are queries": Case(
        the(WIDE),
        "page views have results of several rankers",
        {"impression": "query_id", "duplicates": "drop"},
        finding=True,
    ),
    "impressions without clicks": Case(
        the(COUNTS), "Give both impressions and clicks, or neither", {"impressions": "impressions"}
    ),
    "duplicates of counts": Case(the(COUNTS), "cannot be dropped from an aggregated log", {"duplicates": "drop"}),
    "duplicates without page views": Case(
        the(WIDE.drop_columns(["impression_id"])), "only from a log with a column of page views", {"duplicates": "drop"}
    ),
    "duplicates, maybe": Case(the(WIDE), "duplicates='maybe' is not known", {"duplicates": "maybe"}),
    "an original rank that is not there": Case(the(WIDE), "'first' is not in the log", {"original": "first"}),
    "an empty query": Case(the(WIDE), "sql=' ;' must be text: a query", {"sql": " ;"}),
    "a number as a query": Case(the(WIDE), "sql=7 must be text: a query", {"sql": 7}),
    "a comment as a query": Case(the(WIDE), "Check the query given as sql", {"sql": "--"}),
    "a query that drops": Case(the(WIDE), "Check the query given as sql", {"sql": "DROP TABLE source"}),
    "two queries": Case(the(WIDE), "2 statements|Check the query", {"sql": "SELECT 1; SELECT * FROM source"}),
    "a query of no rows": Case(the(WIDE), "no row", {"sql": "SELECT * FROM source WHERE FALSE"}),
    "a query that fails": Case(
        the(WIDE), "'x0'", {"sql": "SELECT *, CAST('x' || query_id AS INT) AS n FROM source ORDER BY n"}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_reported_and_never_becomes_a_number(
    name: str, each_engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    if each_engine == "spark" and not case.spark:
        return
    monkeypatch.chdir(tmp_path)
    told = {key: value(tmp_path) if callable(value) else value for key, value in case.log.items()}
    source = case.give(tmp_path)
    if case.finding:
        found = posbias.harvest(posbias.ClickLog(source, **told), max_rank=3).findings
        assert re.search(case.said, "\n".join(map(str, found)))
        return
    with pytest.raises(posbias.PosbiasError, match=f"(?s){case.said}"):
        posbias.harvest(posbias.ClickLog(source, **told), max_rank=3)
    if not case.again or each_engine == "spark":
        # The second look and the command are the same, whatever counts.
        return
    with suppress(posbias.PosbiasError):
        assert not posbias.check(posbias.ClickLog(source, **told), max_rank=3).usable
    if isinstance(source, str | Path) and case.command and "rankings" not in told:
        flags = [word for key, value in told.items() for word in (f"--{key}", str(value))]
        done = CliRunner().invoke(cli, ["estimate", str(source), *flags, "--max-rank", "3"])
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith("Error: ")
        assert "Traceback" not in done.stderr


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "max_rank 1": ({"max_rank": 1}, "max_rank must be a whole number from 2 to 1,000, not 1"),
    "max_rank -3": ({"max_rank": -3}, "max_rank must be"),
    "max_rank 2.5": ({"max_rank": 2.5}, "max_rank must be"),
    "max_rank true": ({"max_rank": True}, "max_rank must be"),
    "max_rank text": ({"max_rank": "3"}, "max_rank must be"),
    "max_rank 10^9": ({"max_rank": 10**9}, "max_rank must be"),
    "by bytes": ({"by": b"ranker"}, "by must be a list of column names"),
    "by a number": ({"by": [7]}, "by must be a list of column names"),
    "by nothing there": ({"by": ["devise"]}, "Column 'devise' is not in the log"),
    "by None": ({"by": None}, "by must be a list of column names"),
    "by twice the same": ({"by": ["ranker", "ranker"]}, "by names 'ranker' twice"),
    "weighting by guess": ({"weighting": "guess"}, "weighting='guess' is not known"),
    "non_functional maybe": ({"non_functional": "maybe"}, "non_functional='maybe' is not known"),
    "max_strata -1": ({"max_strata": -1}, "max_strata must be a whole number"),
    "engine of no name": ({"engine": "sqlite"}, "sqlite"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_make_no_harvest_are_reported(name: str, each_engine: str) -> None:
    told, said = SETTINGS[name]
    with pytest.raises(posbias.PosbiasError, match=said):
        posbias.harvest(posbias.ClickLog(WIDE), **{"max_rank": 3} | told)


@pytest.mark.parametrize("max_strata", [0, 10**6])
@pytest.mark.parametrize("column", ["query_id", "doc_id"])
def test_ids_are_missed_however_the_log_is_counted(column: str, max_strata: int, each_engine: str) -> None:
    for table in (REPLAY, DOZEN):
        with pytest.raises(posbias.LogError, match=f"no value in column '{column}'"):
            posbias.harvest(posbias.ClickLog(some(column, None, table=table)), max_rank=3, max_strata=max_strata)


@pytest.mark.parametrize("max_strata", [0, 10**6])
def test_a_ranker_that_is_no_function_is_refused_however_it_is_counted(max_strata: int, each_engine: str) -> None:
    moving = pa.concat_tables([REPLAY, every("position", lambda k: k % 3 + 1, REPLAY).cast(REPLAY.schema)])
    log = posbias.ClickLog(moving.drop_columns(["impression_id"]))
    told = posbias.harvest(log, max_rank=3, max_strata=max_strata)
    assert "non-functional-ranker" in [finding.code for finding in told.findings]
    assert told.about["non_functional_pairs"] > 0
    with pytest.raises(posbias.LogError, match="shown at several ranks by the same ranker"):
        posbias.harvest(log, max_rank=3, max_strata=max_strata, non_functional="refuse")


@pytest.mark.parametrize("flag", ["LOG", "--truth", "--rankings", "merge"])
@pytest.mark.parametrize("kind", ["pipe", "socket", "/dev/zero", "nowhere"])
def test_what_is_no_file_is_refused_wherever_one_is_read(
    kind: str, flag: str, each_engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    parquet(WIDE)(tmp_path)
    special("x.parquet", kind)(tmp_path)
    words = {"LOG": ["estimate", "x.parquet"], "merge": ["merge", "x.parquet", "-o", "h.parquet"]}
    done = CliRunner().invoke(cli, words.get(flag, ["estimate", "log.parquet", flag, "x.parquet"]))
    assert done.exit_code == 2
    assert re.search("is a (pipe|socket|device|link)|There is no (truth )?file", done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("write", [parquet, csv])
def test_a_column_of_the_file_wins_over_the_name_of_a_folder(write: Any, each_engine: str, tmp_path: Path) -> None:
    ending = write.__name__
    for i, part in enumerate(PARTS):
        write(part, f"clicked=1/Position=3/rank_c=1/impression_id=7/day=a b%2F{i}/log.{ending}")(tmp_path)
    log = posbias.ClickLog(tmp_path)
    found, want = posbias.harvest(log, max_rank=3, by=["day"]), posbias.harvest(posbias.ClickLog(WIDE), max_rank=3)
    np.testing.assert_array_equal(found.pairs().clicks, want.pairs().clicks)
    assert found.rankers == ("a", "b")
    assert found.segments == (("a b/0",), ("a b/1",), ("a b/2",))
    assert posbias.check(log, max_rank=3).ranks == {"a": "rank_a", "b": "rank_b"}


@pytest.mark.parametrize(
    "give",
    [the(CASED), parquet(CASED), csv(CASED), the(CASED.to_pandas()), the(polars.from_arrow(CASED)),
     the(pyarrow.dataset.dataset(CASED)), relation(TWINS)],
    ids=["arrow", "parquet", "csv", "pandas", "polars", "dataset", "relation"],
)  # fmt: skip
def test_rank_columns_that_differ_by_case_are_distinguished(give: Give, each_engine: str, tmp_path: Path) -> None:
    if each_engine == "spark" and str(given := give(tmp_path)).endswith(".parquet"):
        # Spark itself reads no such file.
        with pytest.raises(posbias.LogError, match=r"`rank_x` already exists.* differ only by upper and lower case"):
            posbias.harvest(posbias.ClickLog(given), max_rank=3)
        return
    want = posbias.harvest(posbias.ClickLog(WIDE), max_rank=3)
    for sql in (None, "SELECT * FROM source"):
        log = posbias.ClickLog(give(tmp_path), sql=sql)
        found = posbias.harvest(log, max_rank=3)
        assert found.rankers == ("X", "x")
        np.testing.assert_array_equal(found.pairs().clicks, want.pairs().clicks)
        np.testing.assert_array_equal(
            posbias.intervention_sets(posbias.ClickLog(give(tmp_path), sql=sql), max_rank=3),
            posbias.intervention_sets(posbias.ClickLog(WIDE), max_rank=3),
        )
