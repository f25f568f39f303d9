"""Test that every kind of source, type and column name gives the same harvest."""

from __future__ import annotations

import functools
import gzip
import json
import os
import uuid
from collections.abc import Callable
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

import posbias
from posbias.engines import open_log
from posbias.engines.duckdb_sources import _from_polars
from posbias.engines.files import find_files
from posbias.harvesting.row_checks import skip_rank_checks
from posbias.simulation import write
from posbias.simulation.simulate import rank
from posbias.sql.plan import QueryPlan
from posbias.sql.signatures import signatures

WORLD = posbias.World(queries=150, repeats=8, max_rank=6, seed=3)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return posbias.simulate(WORLD)


@pytest.fixture(scope="module")
def expected(table: pa.Table) -> posbias.Harvest:
    return harvest(table)


@pytest.fixture(scope="module")
def replayed(table: pa.Table) -> posbias.Harvest:
    return harvest(table, ranks="none")


def harvest(source: Any, **names: Any) -> posbias.Harvest:
    return posbias.harvest(posbias.ClickLog(source, **names), max_rank=6)


def assert_same(one: posbias.Harvest, other: posbias.Harvest) -> None:
    assert one.layout == other.layout
    assert one.rankers == other.rankers
    assert one.page_views == other.page_views
    np.testing.assert_array_equal(one.impressions, other.impressions)
    np.testing.assert_array_equal(one.clicks, other.clicks)
    # Ids of another type fall into other buckets, and floating sums over them may differ in the last bit.
    np.testing.assert_allclose(one.pairs().clicks, other.pairs().clicks, rtol=1e-12)
    np.testing.assert_allclose(one.pairs().skips, other.pairs().skips, rtol=1e-12)


# ---- Files


def write_csv(table: pa.Table, path: Path, **options: Any) -> Path:
    table.to_pandas().to_csv(path, index=False, **options)
    return path


def write_json(table: pa.Table, path: Path) -> Path:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        for row in table.to_pylist():
            # As many loggers do: what is null is left out.
            file.write(json.dumps({name: value for name, value in row.items() if value is not None}) + "\n")
    return path


def write_parquet(table: pa.Table, path: Path) -> Path:
    pq.write_table(table, path)
    return path


def pack(plain: Path, path: Path) -> Path:
    path.write_bytes(pa.compress(plain.read_bytes(), codec="zstd", asbytes=True))
    return path


WRITERS: dict[str, Callable[[pa.Table, Path], Path]] = {
    "log.parquet": write_parquet,
    "log.csv": write_csv,
    "log.csv.gz": write_csv,
    "log.csv.zst": lambda table, path: pack(write_csv(table, path.with_suffix("")), path),
    "log.tsv": lambda table, path: write_csv(table, path, sep="\t"),
    "semicolons.csv": lambda table, path: write_csv(table, path, sep=";"),
    "bars.txt": lambda table, path: write_csv(table, path, sep="|"),
    "windows.csv": lambda table, path: write_csv(table, path, lineterminator="\r\n", encoding="utf-8-sig"),
    "quoted.csv": lambda table, path: write_csv(table, path, quoting=1),
    "log.jsonl": write_json,
    "log.ndjson.gz": write_json,
    "LOG.PARQUET": write_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_files(name: str, table: pa.Table, expected: posbias.Harvest, tmp_path: Path) -> None:
    assert_same(harvest(WRITERS[name](table, tmp_path / name)), expected)


@pytest.mark.parametrize(
    ("rankers", "threads", "large", "by_place"),
    [(2, 64, 2**25, True), (3, 2, 0, True), (3, 2, 2**25, False), (3, 64, 0, False)],
)
def test_few_signatures_are_counted_by_array_index(
    rankers: int, threads: int, large: int, by_place: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.parquet"
    names = tuple("abc"[:rankers])
    write(posbias.World(rankers=names, queries=50), path)
    monkeypatch.setattr("posbias.engines.duckdb._LARGE_BYTES", large)
    with (
        open_log(posbias.ClickLog(path), posbias.DuckDB(threads=threads)) as engine,
        engine._array_of_groups(few_groups=True),
    ):
        [(_, text)] = engine.rows(f"EXPLAIN {signatures(QueryPlan(engine.schema, engine.dialect, names, 6))}")
    assert ("perfect hash" in text.lower()) == by_place
    assert_same(harvest(path), harvest(pq.read_table(path)))


def test_ranks_are_checked_only_without_file_statistics(table: pa.Table, tmp_path: Path) -> None:
    column = table.column_names.index("rank_a")
    below = pa.array([0, *table["rank_a"].to_pylist()[1:]], table.schema.field(column).type)
    zero = table.set_column(column, "rank_a", below)

    def asks(source: Any) -> bool:
        with open_log(posbias.ClickLog(source), posbias.DuckDB()) as engine:
            return "rank_0 < 1" in signatures(
                skip_rank_checks(engine, QueryPlan(engine.schema, engine.dialect, ("a", "b"), 6))
            )

    sound, unsound = (write_parquet(t, tmp_path / f"{len(t)}-{t is zero}.parquet") for t in (table, zero))
    assert not asks(sound)
    assert all(map(asks, [unsound, table, [sound, unsound]]))
    for source in (unsound, zero, [sound, unsound]):
        with pytest.raises(posbias.LogError, match="rank of 0"):
            harvest(source)


def test_an_array_of_json_is_read_like_json_lines(table: pa.Table, expected: posbias.Harvest, tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text(json.dumps(table.to_pylist()), encoding="utf-8")
    assert_same(harvest(path), expected)


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_many_files(ending: str, table: pa.Table, expected: posbias.Harvest, tmp_path: Path) -> None:
    write = {"parquet": write_parquet, "csv": write_csv, "jsonl": write_json}[ending]
    (tmp_path / "days" / "more").mkdir(parents=True)
    half = len(table) // 2
    # The second file has its columns in another order, and one more.
    second = table.slice(half).select(list(reversed(table.column_names)))
    second = second.append_column("device", pa.array(["phone"] * len(second)))
    one = write(table.slice(0, half), tmp_path / "days" / f"1.{ending}")
    two = write(second, tmp_path / "days" / "more" / f"2.{ending}")
    for source in (
        [one, str(two)],
        (one, two),
        tmp_path / "days",
        str(tmp_path / "days" / "**" / f"*.{ending}"),
        # A file that two patterns name counts once.
        [tmp_path / "days", one, str(tmp_path / "days" / f"*.{ending}")],
    ):
        assert_same(harvest(source), expected)


def test_files_with_different_delimiters(table: pa.Table, expected: posbias.Harvest, tmp_path: Path) -> None:
    half = len(table) // 2
    one = write_csv(table.slice(0, half), tmp_path / "1.csv")
    two = write_csv(table.slice(half), tmp_path / "2.csv", sep=";")
    assert_same(harvest([one, two]), expected)


def test_folders_written_by_spark_and_the_simulator_are_read(
    table: pa.Table, expected: posbias.Harvest, tmp_path: Path
) -> None:
    write_parquet(table, tmp_path / "part-0000.snappy.parquet")
    write_parquet(table, tmp_path / ".part-0000.parquet")
    (tmp_path / "_SUCCESS").write_text("")
    (tmp_path / "_temporary" / "0").mkdir(parents=True)
    write_parquet(table, tmp_path / "_temporary" / "0" / "part-0000.parquet")
    write_parquet(table, tmp_path / "log.rankings.parquet")
    (tmp_path / "log.truth.json").write_text("{}")
    (tmp_path / "notes.md").write_text("none")
    assert_same(harvest(tmp_path), expected)


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_partitions_are_columns(ending: str, table: pa.Table, expected: posbias.Harvest, tmp_path: Path) -> None:
    write = {"parquet": write_parquet, "csv": write_csv, "jsonl": write_json}[ending]
    for name in "ab":
        folder = tmp_path / f"ranker={name}" / "day=2026-01-01"
        folder.mkdir(parents=True)
        part = table.filter(pa.compute.equal(table["ranker"], name)).drop_columns(["ranker"])
        write(part, folder / f"log.{ending}")
    with pytest.raises(posbias.LogError, match=r"it exists only in the names of folders.* Add ranker='ranker'"):
        harvest(tmp_path)
    assert_same(harvest(tmp_path, ranker="ranker"), expected)
    by_day = posbias.harvest(posbias.ClickLog(tmp_path, ranker="ranker"), max_rank=6, by=["day"])
    assert by_day.segments == (("2026-01-01",),)


NAMES = [
    "it's.parquet",
    'say "x".csv',
    "a b.jsonl",
    "[1].parquet",
    "[a-z]*?.csv",
    "*.parquet",
    "日本 ü🚀.csv",
    "50%.tsv",
    "{a,b}.jsonl",
]


@pytest.mark.parametrize("name", NAMES)
def test_file_names(name: str, table: pa.Table, expected: posbias.Harvest, tmp_path: Path) -> None:
    write = {"parquet": write_parquet, "csv": write_csv, "tsv": write_csv, "jsonl": write_json}[name.rsplit(".")[-1]]
    # What a pattern in the name would find too, if it were one.
    write(table.slice(0, 100), tmp_path / f"1.{name.rsplit('.')[-1]}")
    path = write(table, tmp_path / name)
    assert_same(harvest(str(path)), expected)
    assert find_files(str(path)) == [str(path)]


def test_file_names_that_are_not_utf_8_are_read(table: pa.Table, tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/log\xff.csv")
    try:
        os.rename(write_csv(table, tmp_path / "log.csv"), path)
    except OSError:
        pytest.skip("this file system has no such names")
    with pytest.raises(posbias.LogError, match="Rename the file"):
        harvest(path)


def test_late_json_keys_and_types_are_read(table: pa.Table, tmp_path: Path) -> None:
    """DuckDB would look at the first 20,480 rows, ignore what comes later and take the log for another layout."""
    rows = posbias.simulate(posbias.World(queries=260, repeats=10, max_rank=10)).to_pylist()
    late = 22_000
    assert len(rows) > late + 1000
    mixed = [
        row | {"query_id": f"q{row['query_id']}" if row["query_id"] % 2 and i > late else row["query_id"]}
        for i, row in enumerate(rows)
    ]
    for row in mixed[:late]:
        row["rank_b"] = None
    path = write_json(
        pa.Table.from_pylist([row | {"query_id": str(row["query_id"])} for row in mixed]), tmp_path / "l.jsonl"
    )
    with open_log(posbias.ClickLog(path)) as engine:
        assert engine.schema.layout == "wide"
        assert engine.rows("SELECT COUNT(rank_b) FROM log")[0][0] == sum(r["rank_b"] is not None for r in mixed)
        assert engine.rows("SELECT COUNT(DISTINCT query_id) FROM log")[0][0] == len({str(r["query_id"]) for r in mixed})


def test_json_text_stays_text(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    ids = ["2026-01-01", "2026-01-01 10:00", "00000000-0000-0000-0000-00000000000A", "007", "7"]
    rows = [
        {"query_id": q, "doc_id": d, "ranker": r, "position": 1, "clicked": d == 1}
        for q in ids
        for d, r in ((1, "2026-01-01T10:00"), (2, "b"))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with open_log(posbias.ClickLog(path)) as engine:
        assert {row[0] for row in engine.rows("SELECT DISTINCT query_id FROM log")} == set(ids)
    assert set(posbias.check(posbias.ClickLog(path)).page_views) == {"2026-01-01T10:00", "b"}


def test_csv_text_stays_text_and_odd_rows_are_not_skipped(tmp_path: Path) -> None:
    header = "query_id,doc_id,ranker,position,clicked\n"
    path = tmp_path / "log.csv"
    path.write_text(header + "007,1,a,1,true\n7,1,b,1,FALSE\n" + '"a,""b""\nc", x ,a,2,0\n')
    with open_log(posbias.ClickLog(path)) as engine:
        found = engine.rows("SELECT query_id, doc_id FROM log ORDER BY query_id")
        assert found == [("007", "1"), ("7", "1"), ('a,"b"\nc', " x ")]
    # DuckDB's own detection would take the first two lines for a preamble and the third for the header.
    path.write_text(header + "1,1,a,1,0\n1,2,a,2\n1,3,b,3,0,9\n")
    with pytest.raises(posbias.LogError, match=r"line 3 of .*log.csv' is '1,2,a,2': 4 values for 5 columns"):
        harvest(path)


# ---- DuckDB


@pytest.fixture
def database(table: pa.Table, tmp_path: Path) -> Path:
    path = tmp_path / "a 'b'.duckdb"
    with duckdb.connect(str(path)) as con:
        con.register("t", table)
        con.execute('CREATE TABLE "my ""clicks""" AS SELECT * FROM t')
    return path


def run(path: Path, *statements: str) -> None:
    with duckdb.connect(str(path)) as con:
        for statement in statements:
            con.execute(statement)


def test_the_only_table_of_a_duckdb_file(database: Path, expected: posbias.Harvest) -> None:
    assert_same(harvest(database), expected)
    assert_same(harvest(database, table='my "clicks"'), expected)
    assert_same(harvest(database, sql='SELECT * FROM "my ""clicks""";'), expected)
    assert_same(harvest(database, sql="FROM source -- all of it"), expected)


def test_one_of_several_tables(database: Path, expected: posbias.Harvest) -> None:
    run(
        database,
        'CREATE TABLE "a.b" AS SELECT * FROM "my ""clicks"""',
        "CREATE TABLE other AS SELECT 1 AS x",
        "CREATE SCHEMA web",
        'CREATE TABLE web.clicks AS SELECT * FROM "my ""clicks"""',
        'CREATE VIEW source AS SELECT * FROM "my ""clicks"""',
    )
    with pytest.raises(
        posbias.LogError, match=r"has 5 tables: 'a.b', 'my \"clicks\"', 'other', 'source', 'web.clicks'"
    ):
        harvest(database)
    with pytest.raises(posbias.LogError, match=r"no table 'web.click' .* Did you mean 'web.clicks'"):
        harvest(database, table="web.click")
    for name in ('my "clicks"', "a.b", "web.clicks", "source"):
        assert_same(harvest(database, table=name), expected)
    assert_same(harvest(database, sql="SELECT * FROM web.clicks"), expected)
    with pytest.raises(posbias.LogError, match=r"are not in the log\. This does not look like a click log"):
        harvest(database, table="other")


def test_a_query_on_any_source(table: pa.Table, expected: posbias.Harvest, tmp_path: Path) -> None:
    shifted = table.set_column(3, "position", pa.compute.subtract(table["position"], 1))
    mend = "SELECT * REPLACE (position + 1 AS position) FROM source"
    assert_same(harvest(shifted, sql=mend), expected)
    assert_same(harvest(write_parquet(shifted, tmp_path / "log.parquet"), sql=mend), expected)
    assert_same(
        harvest(table, sql="FROM source WHERE query_id < 20"), harvest(table.filter(pa.compute.field("query_id") < 20))
    )
    for wrong in ("SELEC", "SELECT * FROM nothing", "SELECT nothing FROM source"):
        with pytest.raises(posbias.LogError, match="Check the query given as sql"):
            harvest(table, sql=wrong)
    with pytest.raises(posbias.LogError, match="table is for a DuckDB file"):
        harvest(table, table="t")


def test_rankings_in_the_same_duckdb_file(tmp_path: Path) -> None:
    log, rankings = posbias.simulate(WORLD, "long"), rank(WORLD)
    path = tmp_path / "log.duckdb"
    with duckdb.connect(str(path)) as con:
        con.register("l", log)
        con.register("r", rankings)
        con.execute("CREATE TABLE clicks AS SELECT * FROM l")
        con.execute("CREATE TABLE ranked AS SELECT * FROM r")
    files = harvest(log, rankings=write_parquet(rankings, tmp_path / "rankings.parquet"))
    assert_same(harvest(path, table="clicks", rankings="ranked"), files)
    assert_same(harvest(log, rankings=rankings.to_pandas()), files)
    with pytest.raises(posbias.LogError, match=r"give its name, or .* Add rankings="):
        harvest(log, rankings=path)


def test_relations_and_readers(table: pa.Table, expected: posbias.Harvest) -> None:
    con = duckdb.connect()
    con.register("t", table)
    con.execute("CREATE TABLE clicks AS SELECT * FROM t")
    relation = con.sql("SELECT * FROM clicks WHERE position > 0")
    assert_same(harvest(relation), expected)
    assert_same(harvest(relation), expected)
    assert_same(harvest(con.table("clicks")), expected)
    assert_same(harvest(table.to_reader(max_chunksize=1000)), expected)
    reader = table.to_reader()
    reader.read_all()
    with pytest.raises(posbias.LogError, match=r"consumed|read only once|empty"):
        harvest(reader)


# ---- In memory


class Stream:
    """Anything that speaks Arrow's C stream."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


FRAMES: dict[str, Callable[[pa.Table], Any]] = {
    "pandas": lambda t: t.to_pandas(),
    "pandas of Arrow": lambda t: t.to_pandas(types_mapper=pandas.ArrowDtype),
    "pandas of objects": lambda t: t.to_pandas().astype(object),
    "polars": polars.from_arrow,
    "polars lazy": lambda t: polars.from_arrow(t).lazy(),  # type: ignore[union-attr]
    "arrow": lambda t: t,
    "arrow in chunks": lambda t: pa.Table.from_batches(t.to_batches(max_chunksize=1000)),
    "arrow batch": lambda t: t.combine_chunks().to_batches()[0],
    "arrow dataset": pyarrow.dataset.dataset,
    "C stream": Stream,
    "numpy": lambda t: {name: t[name].to_numpy() for name in t.column_names},
}


@pytest.mark.parametrize("kind", FRAMES)
def test_frames(kind: str, table: pa.Table, expected: posbias.Harvest) -> None:
    assert_same(harvest(FRAMES[kind](table)), expected)


def test_frames_are_read_without_copy(table: pa.Table) -> None:
    frame = polars.from_arrow(table.append_column("text", pa.array(["x" * 40] * len(table))))
    assert isinstance(frame, polars.DataFrame)
    for source in (table, frame, frame.lazy(), table.to_pandas()):
        with open_log(posbias.ClickLog(source)) as engine:
            assert engine.rows("SELECT table_name FROM duckdb_tables()") == []
    shared = _from_polars(frame.rechunk())
    for name in ("query_id", "text"):
        again = frame.rechunk().to_arrow(compat_level=polars.CompatLevel.newest())
        addresses = [[b.address for b in c[name].chunk(0).buffers() if b] for c in (shared, again)]
        assert addresses[0] == addresses[1], f"{name} was copied"


def numbers(values: Any, type_: Any) -> Any:
    return values.to_pandas().astype(type_)


BIG = 2**63 - 1 - 10_000

TYPES: dict[str, tuple[str, Callable[[pa.ChunkedArray], Any]]] = {
    "pandas str": ("ranker", lambda c: numbers(c, "str")),
    "pandas category": ("ranker", lambda c: numbers(c, "category")),
    "category ids": ("query_id", lambda c: c.to_pandas().astype(str).astype("category")),
    "category of numbers": ("query_id", lambda c: numbers(c, "category")),
    "category positions": ("position", lambda c: c.to_pandas().astype(str).astype("category")),
    "category clicks": ("clicked", lambda c: c.to_pandas().map({0: "False", 1: "True"}).astype("category")),
    "nullable integers": ("rank_a", lambda c: c.to_pandas().astype("Int16")),
    "nullable booleans": ("clicked", lambda c: numbers(c, "boolean")),
    "floating positions": ("position", lambda c: numbers(c, "float32")),
    "floating clicks": ("clicked", lambda c: numbers(c, "float64")),
    "decimal positions": ("position", lambda c: c.cast(pa.decimal128(5, 0))),
    "text positions": ("position", lambda c: c.cast(pa.string())),
    "unsigned positions": ("position", lambda c: c.cast(pa.uint8())),
    "text clicks": ("clicked", lambda c: c.to_pandas().map({0: " false", 1: "TRUE"})),
    "boolean clicks": ("clicked", lambda c: c.cast(pa.bool_())),
    "objects, mixed late": ("doc_id", lambda c: pandas.Series([*c.to_pylist()[:-1], "x"], dtype=object)),
    "dictionary": ("ranker", lambda c: c.dictionary_encode()),
    "dictionary of numbers": ("query_id", lambda c: c.dictionary_encode()),
    "string view": ("ranker", lambda c: c.cast(pa.string_view())),
    "large string": ("ranker", lambda c: c.cast(pa.large_string())),
    "near 2**63": ("query_id", lambda c: pa.compute.add(c, BIG)),
    "near -2**63": ("doc_id", lambda c: pa.compute.subtract(c, 2**63 - 10_000)),
    "near 2**64": ("query_id", lambda c: pa.array([2**64 - 1 - i for i in c.to_pylist()], pa.uint64())),
    "UUID": ("query_id", lambda c: pandas.Series([uuid.UUID(int=i * 2**100) for i in c.to_pylist()])),
    "UUID text": ("doc_id", lambda c: pa.array([str(uuid.UUID(int=i * 2**100)) for i in c.to_pylist()])),
    "bytes": ("query_id", lambda c: pa.array([i.to_bytes(16, "big") for i in c.to_pylist()], pa.binary(16))),
    "text with quotes": ("query_id", lambda c: pa.array([f'it\'s "{i}" ü🚀\n' for i in c.to_pylist()])),
}


@pytest.mark.parametrize("kind", TYPES)
def test_types(kind: str, table: pa.Table, expected: posbias.Harvest, replayed: posbias.Harvest) -> None:
    name, convert = TYPES[kind]
    place = table.column_names.index(name)
    converted = convert(table[name])
    frame = table.to_pandas()
    sources: list[Any] = [frame]
    if isinstance(converted, pandas.Series):
        frame[name] = converted
    else:
        frame[name] = converted.to_pandas(types_mapper=pandas.ArrowDtype)
        sources.append(table.set_column(place, name, converted))
    # Replay is where ids are compared.
    for ranks, want in ((None, expected), ("none", replayed)) if name.endswith("_id") else ((None, expected),):
        if kind == "objects, mixed late":
            want = harvest(table.set_column(place, name, pa.array(list(map(str, converted)))), ranks=ranks)
        for source in sources:
            assert_same(harvest(source, ranks=ranks), want)


def test_polars_types(table: pa.Table, expected: posbias.Harvest) -> None:
    frame = polars.from_arrow(table)
    assert isinstance(frame, polars.DataFrame)
    cast = frame.with_columns(
        polars.col("ranker").cast(polars.Enum(["a", "b"])),
        polars.col("query_id").cast(polars.String).cast(polars.Categorical),
        polars.col("clicked").cast(polars.Boolean),
        polars.col("position").cast(polars.UInt8),
    )
    assert_same(harvest(cast), expected)


def test_text_ids_have_the_same_bucket_in_every_source(table: pa.Table, tmp_path: Path) -> None:
    """An ENUM is a number inside, another one in each day's frame: days must still merge by query."""
    text = table.set_column(0, "query_id", table["query_id"].cast(pa.string()))
    frame = text.to_pandas()
    frame["query_id"] = frame["query_id"].astype("category")
    buckets = [
        np.sort(harvest(source).table.bucket)
        for source in (
            text,
            frame,
            frame[::-1],
            write_csv(text, tmp_path / "log.csv"),
            write_json(text, tmp_path / "l.jsonl"),
        )
    ]
    for other in buckets[1:]:
        np.testing.assert_array_equal(buckets[0], other)


@pytest.mark.parametrize(
    ("source", "shown"), [(None, "NoneType"), (3, "int"), ([{"a": 1}], "list"), (b"log.csv", "bytes")]
)
def test_invalid_sources_are_rejected(source: Any, shown: str) -> None:
    with pytest.raises(posbias.LogError, match=rf"cannot be read from a {shown}\. Give a path, a glob or a folder"):
        harvest(source)


# ---- Names of columns


ROLES = {
    "query": "query_id",
    "doc": "doc_id",
    "ranker": "ranker",
    "position": "position",
    "click": "clicked",
    "impression": "impression_id",
}
RENAMED = {
    "spaces": {"query": "the query", "doc": " doc", "ranker": "ranker ", "position": "pos.", "click": "a click"},
    "quotes": {"query": 'my "query"', "doc": "doc's", "ranker": "`r`", "position": "[p]", "click": "''"},
    "keywords": {"query": "order", "doc": "group by", "ranker": "select", "position": "from", "click": "where"},
    "our own": {"query": "doc", "doc": "query", "ranker": "position", "position": "ranker", "click": "clicks"},
    "of our steps": {
        "query": "shown",
        "doc": "bucket",
        "ranker": "expected_position",
        "position": "rank_0",
        "click": "segment_0",
    },
    "of our tables": {"query": "log", "doc": "source", "ranker": "rankings", "position": "deduplicated", "click": "n"},
    "of the check": {"query": "v", "doc": "q", "ranker": "d", "position": "r", "click": "p", "impression": "place_0"},
    "exchanged": {"query": "clicked", "click": "query_id", "position": "doc_id", "doc": "position"},
    "other case": {"query": "Query_ID", "doc": "DOC", "ranker": "RANKER", "position": "Position", "click": "Clicked"},
    "odd": {"query": "%s", "doc": "{x}", "ranker": "ü🚀", "position": "\\", "click": "--", "impression": "line\nbreak"},
}


@functools.cache
def plainly_named(layout: Any) -> tuple[pa.Table, pa.Table | None, posbias.Harvest]:
    """A log by the names that need not be said, its rankings and its harvest."""
    world = posbias.World(queries=40, repeats=6, max_rank=4, seed=1)
    table, rankings = posbias.simulate(world, layout), rank(world) if layout == "long" else None
    return table, rankings, harvest(table, rankings=rankings)


@pytest.mark.parametrize("layout", ["wide", "long", "replay"])
@pytest.mark.parametrize("kind", RENAMED)
def test_column_names(kind: str, layout: Any, tmp_path: Path) -> None:
    table, rankings, want = plainly_named(layout)
    names: dict[str, Any] = ROLES | RENAMED[kind]
    back = {default: names[role] for role, default in ROLES.items()}
    if rankings is not None:
        names["rank"] = "its rank"
        names["rankings"] = rankings.rename_columns([back.get(n, "its rank") for n in rankings.column_names])
    renamed = table.rename_columns([back.get(n, n) for n in table.column_names])
    assert_same(harvest(write_csv(renamed, tmp_path / "log.csv"), **names), want)
    assert_same(harvest(renamed, **names, duplicates="drop"), want)
    found = posbias.check(posbias.ClickLog(renamed, **names), max_rank=6)
    # In replay without a time, and only there, check says that it could not compare times.
    assert [f.code for f in found.findings] == ["overlap-not-tested"] * (want.layout.value == "replay")
    assert (found.rows, found.page_views) == (len(table), want.page_views)


@pytest.mark.parametrize("ending", ["parquet", "csv", "arrow", "pandas"])
def test_columns_that_differ_only_by_case(
    ending: str, table: pa.Table, expected: posbias.Harvest, tmp_path: Path
) -> None:
    def made(table: pa.Table) -> Any:
        if ending == "arrow":
            return table
        if ending == "pandas":
            return table.to_pandas()
        return {"parquet": write_parquet, "csv": write_csv}[ending](table, tmp_path / f"log.{ending}")

    noise = pa.array([7] * len(table))
    crowded = table
    for place, name in enumerate(["QUERY_ID", "Position", "CLICKED", "Rank_a"]):
        crowded = crowded.add_column(2 * place, name, noise)
    assert_same(harvest(made(crowded)), expected)
    # Rankers whose names differ only by case, each with its column.
    names = [{"rank_a": "rank_X", "rank_b": "rank_x"}.get(name, name) for name in table.column_names]
    twins = table.rename_columns(names)
    ranker = pa.array(["X" if name == "a" else "x" for name in table["ranker"].to_pylist()])
    found = harvest(made(twins.set_column(2, "ranker", ranker)))
    assert found.rankers == ("X", "x")
    np.testing.assert_array_equal(found.pairs().clicks, expected.pairs().clicks)


def test_aggregated_logs(tmp_path: Path, expected: posbias.Harvest) -> None:
    table = posbias.simulate(WORLD, aggregated=True)
    for source in (table, write_csv(table, tmp_path / "log.csv"), write_json(table, tmp_path / "log.jsonl")):
        assert_same(harvest(source), expected)
    renamed = table.rename_columns(
        ["seen" if n == "impressions" else "order" if n == "clicks" else n for n in table.column_names]
    )
    assert_same(harvest(renamed, impressions="seen", clicks="order"), expected)
    with pytest.raises(posbias.LogError, match="both impressions and clicks"):
        posbias.ClickLog(renamed, impressions="seen")


@pytest.mark.parametrize(
    "ranker", ["a'b\"c", "", " ", "1", "null", "{ranker}", "Ranker'); DROP TABLE log; --", "ü🚀\n"]
)
def test_ranker_names(ranker: str, table: pa.Table, replayed: posbias.Harvest) -> None:
    names = [ranker if name == "a" else "other" for name in table["ranker"].to_pylist()]
    named = table.set_column(2, "ranker", pa.array(names))
    found = harvest(named, ranks="none")
    assert found.page_views == {ranker: replayed.page_views["a"], "other": replayed.page_views["b"]}
    if ranker:
        columns = [{"rank_a": f"rank_{ranker}", "rank_b": "rank_other"}.get(name, name) for name in table.column_names]
        assert harvest(named.rename_columns(columns)).page_views == found.page_views


def test_repr_shows_the_arguments(table: pa.Table) -> None:
    assert repr(posbias.ClickLog(Path("a.csv"))) == "ClickLog('a.csv')"
    assert (
        repr(posbias.ClickLog(["a.csv", Path("b.csv")], query="".join(["query", "_id"])))
        == "ClickLog(['a.csv', 'b.csv'])"
    )
    assert repr(posbias.ClickLog(table, rankings=table)) == "ClickLog(<pyarrow.Table>, rankings=<pyarrow.Table>)"


# ---- Engines as values


@pytest.mark.parametrize(
    "limits",
    [{"threads": 0}, {"threads": 100_000}, {"threads": 2.5}, {"threads": True}, {"memory_limit": 2}],
)
def test_invalid_limits_are_rejected(limits):
    with pytest.raises(posbias.PosbiasError, match=f"{next(iter(limits))} must be"):
        posbias.DuckDB(**limits)


def test_an_engine_is_a_value_and_its_limits_reach_the_connection(tmp_path):
    log = posbias.ClickLog(posbias.simulate(posbias.World(queries=20)))
    with open_log(log, posbias.DuckDB(memory_limit="123MiB", threads=1)) as opened:
        settings = opened.rows("SELECT current_setting('memory_limit'), current_setting('threads')")
    assert settings == [("123.0 MiB", 1)]
    assert posbias.DuckDB(threads=1) == posbias.DuckDB(threads=1)
