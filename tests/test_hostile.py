"""Bad input, as data: what is given, and what must be said. It never becomes a number.

To add a case is to add a line to CASES. Each runs on every engine, in Python and, where it is a file, as a command.
"""

from __future__ import annotations

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
from posbias.simulation.tables import rank

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
LINES = [HEADER, *(f"{i % 5},{i % 7},{'ab'[i % 2]},{i % 3 + 1},{i % 2}" for i in range(40))]

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
        'duplicate key "clicked"',
        spark=False,
    ),
    "twice in Arrow": Case(the(twice(WIDE)), "Table are named 'clicked'"),
    "twice in a batch": Case(the(twice(WIDE).combine_chunks().to_batches()[0]), "are named 'clicked'"),
    "twice in a reader": Case(lambda folder: twice(WIDE).to_reader(), "are named 'clicked'"),
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
        r"2.csv', beside .*1.csv', has columns that differ only by upper and lower case: 'rank_b', 'rank_B'",
        spark=False,
    ),
    "case in two Parquet files": Case(
        all_of(parquet(PARTS[0], "1.parquet"), parquet(named(PARTS[1], clicked="Clicked"), "2.parquet")),
        r"2.parquet', beside .* 'clicked', 'Clicked'",
        spark=False,
    ),
    "case in the rankings": Case(
        the(LONG),
        "rankings table has columns that differ only by upper and lower case: 'RANK', 'rank'",
        {"rankings": twice(named(RANKINGS, rank="RANK"), "rank")},
    ),
    # Two names of one ranker.
    "rank_1 and rank_01": Case(the(TWO_ONES), r"rankers '01', '1' are one and the same in column 'ranker'"),
    "rank_1 and rank_01 in Parquet": Case(parquet(TWO_ONES), "'rank_01', 'rank_1' would be its ranks"),
    "rank_1 and rank_1.0": Case(the(named(TWO_ONES, rank_01="rank_1.0")), r"'1', '1\.0' are one and the same"),
    "rankings of 1 and 01": Case(
        the(cut(LONG, "ranker", lambda old: [1 if n == "a" else 2 for n in old])),
        "'01', '1' are one and the same",
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
    # Counts that no 64 bits hold.
    "sums in wide": Case(the(HUGE), r"'impressions' and 'clicks' add up to more than 2\^63 - 1"),
    "sums in Parquet": Case(parquet(HUGE), r"add up to more than 2\^63 - 1"),
    "sums in CSV": Case(csv(HUGE), r"add up to more than 2\^63 - 1"),
    "sums in replay": Case(the(HUGE.drop_columns(["rank_a", "rank_b"])), r"add up to more than 2\^63 - 1"),
    "sums of clicks": Case(the(cut(HUGE, "clicks", lambda old: [2**61] * len(old))), r"add up to more than 2\^63 - 1"),
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
        r"No file of the log has the column 'ranker'; only folders are called so.* Add ranker='ranker'",
    ),
    "click by folder": Case(
        all_of(*(csv(WIDE.drop_columns(["clicked"]), f"clicked={n}/log.csv") for n in (0, 1))),
        "'clicked'; only folders are called so",
    ),
    "query by folder": Case(
        all_of(*(parquet(WIDE.drop_columns(["query_id"]), f"query_id={n}/log.parquet") for n in (0, 1))),
        "'query_id'; only folders are called so",
    ),
    "rank by folder": Case(
        the(LONG),
        "No file of the rankings table has the column 'rank'; only folders are called so",
        {"rankings": all_of(*(csv(RANKINGS.drop_columns(["rank"]), f"rank={n}/r.csv") for n in (1, 2)))},
    ),
    # Something else in place of rankers.
    "too many rankers": Case(
        the(cut(MANY, "ranker", ids)), r"too many rankers: 10,\d+ in column 'ranker', such as 'user 0'"
    ),
    "too many rankers in CSV": Case(csv(cut(MANY, "doc_id", ids)), r"too many rankers", {"ranker": "doc_id"}),
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
        r"log\.csv' mixes line endings: '\\n' \(first in line 1\) and '\\r\\n' \(first in line 10\)",
        spark=False,
    ),
    "CRLF and then LF": Case(
        raw("log.csv", ("\r\n".join(LINES[:9]) + "\r\n" + "\n".join(LINES[9:]) + "\n").encode()),
        r"mixes line endings: '\\r\\n'",
        spark=False,
    ),
    "CRLF and LF in gzip": Case(
        raw("log.csv.gz", gzip.compress(("\r\n".join(LINES[:9]) + "\r\n" + "\n".join(LINES[9:])).encode())),
        r"log\.csv\.gz' mixes line endings",
        spark=False,
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
    "SQLite": Case(sqlite, "log.db' is a SQLite database, not one of DuckDB", spark=False),
    "text as a database": Case(raw("log.duckdb", b"hello, world, hello"), "is no DuckDB database", spark=False),
    "nothing as a database": Case(raw("log.duckdb", b""), "is empty", spark=False),
    "a view of a file": Case(
        database("CREATE VIEW v AS SELECT c.* FROM clicks c, '{folder}/secret.csv'"),
        "secret.csv.*say so by giving it as your own query",
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
    "a setting in the query": Case(the(WIDE), "locked|syntax", {"sql": "FROM source; SET threads = 1"}, spark=False),
    "an extension in the query": Case(
        the(WIDE), "loads no extension", {"sql": "FROM 'https://127.0.0.1:9/x.parquet'"}, spark=False
    ),
    "a variable in the query": Case(the(WIDE), "does not exist", {"sql": "FROM WIDE"}, spark=False),
}


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_told_and_never_becomes_a_number(
    name: str, each_engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    if each_engine == "spark" and not case.spark:
        return
    monkeypatch.chdir(tmp_path)
    told = {key: value(tmp_path) if callable(value) else value for key, value in case.log.items()}
    log = posbias.ClickLog(case.give(tmp_path), **told)
    if case.finding:
        found = posbias.harvest(log, max_rank=3).findings
        assert re.search(case.said, "\n".join(map(str, found)))
        return
    with pytest.raises(posbias.PosbiasError, match=f"(?s){case.said}"):
        posbias.harvest(log, max_rank=3)
    if name == "twice in a reader":
        return
    with suppress(posbias.PosbiasError):
        assert not posbias.check(log, max_rank=3).usable
    if isinstance(log.source, str | Path) and log.rankings is None and each_engine == "duckdb":
        flags = [word for key, value in told.items() for word in (f"--{key}", str(value))]
        done = CliRunner().invoke(cli, ["estimate", str(log.source), *flags, "--max-rank", "3"])
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith("Error: ")
        assert "Traceback" not in done.stderr


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
def test_rank_columns_that_differ_by_case_are_told_apart(give: Give, each_engine: str, tmp_path: Path) -> None:
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
