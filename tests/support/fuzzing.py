"""Random click logs from a seed: every layout, column type, container and name, and sometimes a defect.

What is drawn is a `Trial`: the rows as the oracle reads them (`oracle`), and the same as what a user holds.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import gzip
import io
import itertools
import json
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

import posbias
from tests.support.logs import (
    HOSTILE_COLUMNS,
    HOSTILE_RANKERS,
    HOSTILE_STRINGS,
    HOSTILE_TEMPLATES,
    LAYOUTS,
    RANKERS,
    WEIGHTINGS,
    Log,
    Names,
    Row,
    aggregate,
    rank_of,
)

# A column: its Arrow type and its values.
Column = tuple[pa.DataType, list[Any]]
Columns = dict[str, Column]


@dataclass(frozen=True)
class Trial:
    """A random log for the oracle and for posbias, and the arguments of the harvest."""

    log: Log
    max_rank: int
    weighting: str | None
    max_strata: int
    by: tuple[str, ...]
    # How a segment's values are written in this container, by the keys of the rows that hold them.
    labels: dict[str, Callable[[Any], str | None]]
    # Whether every page view is there from its top on, in one segment.
    whole_pages: bool
    container: str
    source: Any
    arguments: dict[str, Any]
    names: Names
    # The rows as columns, before anything was damaged, and the ids by role, of which rows hold the places.
    columns: Columns
    ids: dict[str, Column]
    # What is wrong with what posbias is given, if anything, and what may be found of it.
    defect: str = ""
    found: tuple[str, ...] = ()

    def __str__(self) -> str:
        defect = f", {self.defect}" if self.defect else ""
        return f"{self.log.layout} log of {len(self.log.rows)} rows as {self.container}{defect}"


# ---- Types of columns


def _integers(chance: random.Random, n: int) -> Column:
    bits, signed = chance.choice([8, 16, 32, 64]), chance.random() < 0.7
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    ends = [low, high, low + 1, high - 1, 0, 1]
    values = [*ends, *(chance.randint(low, high) for _ in range(2 * n)), *range(2, 100)]
    return pa.type_for_alias(f"{'int' if signed else 'uint'}{bits}"), list(dict.fromkeys(values))[:n]


def _floats(chance: random.Random, n: int) -> Column:
    type_ = chance.choice([pa.float32(), pa.float64()])
    return type_, [i * chance.choice([1.0, 1.0]) if chance.random() < 0.9 else i + 0.5 for i in range(n)]


def _decimals(chance: random.Random, n: int) -> Column:
    type_ = chance.choice([pa.decimal128(9, 0), pa.decimal128(12, 2), pa.decimal128(38, 0)])
    return type_, [decimal.Decimal(i).scaleb(-type_.scale) * (10 if type_.scale else 1) for i in range(1, n + 1)]


def _texts(chance: random.Random, n: int) -> Column:
    type_ = chance.choice(
        [pa.string(), pa.large_string(), pa.string_view(), *(pa.dictionary(i, pa.string()) for i in _INDEXES)]
    )
    known = chance.choice([[f"id{i}" for i in range(n)], [str(uuid.UUID(int=i * (2**124 + 1))) for i in range(n)]])
    values = chance.sample(HOSTILE_STRINGS, n) if chance.random() < 0.5 else known
    return type_, values


def _times(chance: random.Random, n: int) -> Column:
    start = datetime.datetime(2024, 2, 28, 23, 59, 58)
    moments = [start + datetime.timedelta(hours=7 * i, microseconds=i) for i in range(n)]
    utc = [moment.replace(tzinfo=datetime.UTC) for moment in moments]
    days = [start.date() + datetime.timedelta(days=i) for i in range(n)]
    return chance.choice([(pa.timestamp("us"), moments), (pa.timestamp("us", "UTC"), utc), (pa.date32(), days)])


def _uuids(chance: random.Random, n: int) -> Column:
    return pa.uuid(), [uuid.UUID(int=2**127 + i * (2**100 + 7)) for i in range(n)]


_INDEXES = (pa.int8(), pa.int32(), pa.uint16())
# By how often they are drawn.
_IDS = (_integers, _integers, _texts, _texts, _floats, _decimals, _times, _uuids)
# What holds small whole numbers, and no ids: positions, ranks and counts.
_SMALL = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float32(), pa.float64(), pa.decimal128(9, 0), pa.decimal128(12, 2), pa.string(), pa.large_string()),
)
_LARGE = (pa.int64(), pa.uint64(), pa.float64(), pa.decimal128(18, 0), pa.string())
_CLICKS = (pa.bool_(), pa.int8(), pa.int64(), pa.uint8(), pa.float64(), pa.decimal128(3, 1), pa.string())


def _typed(values: list[Any], type_: pa.DataType) -> list[Any]:
    """Convert whole numbers to a column type."""
    if pa.types.is_boolean(type_):
        return [None if v is None else bool(v) for v in values]
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return [None if v is None else str(int(v)) for v in values]
    if pa.types.is_floating(type_):
        return [None if v is None else float(v) for v in values]
    if pa.types.is_decimal(type_):
        return [None if v is None else decimal.Decimal(int(v)) for v in values]
    return [None if v is None else int(v) for v in values]


# ---- The rows


def _draw_log(chance: random.Random, segmented: bool) -> tuple[Log, bool, dict[str, Column]]:
    """Draw page views: what rankers make of some queries, shown in part, clicked at random, in any order.

    Return the log, whether its pages are whole, and the columns of ids, of which rows hold the places.
    """
    layout = chance.choice(LAYOUTS)
    names = chance.sample(chance.choice([RANKERS, HOSTILE_RANKERS]), chance.choice([1, 2, 2, 3, 4]))
    pool = {"query": chance.choice(_IDS)(chance, 8), "doc": chance.choice(_IDS)(chance, 12)}
    queries, docs = range(chance.choice([1, 2, 3, 8])), range(chance.choice([2, 3, 5, 8, 12]))
    serving = names[: chance.choice([4, 4, 3, 2, 1])]
    functional = layout != "replay" or chance.random() < 0.6

    def ranking() -> list[int]:
        return chance.sample(docs, chance.choice([len(docs), len(docs), chance.randint(1, len(docs))]))

    ranked = {(i, q): ranking() for i in names for q in queries}
    traffic = [chance.choice([1, 3, 10]) for _ in serving]
    rate = chance.choice([0.1, 0.3, 0.5, 0.9])
    short, missing = chance.random() < 0.3, chance.random() < 0.2
    rows: list[Row] = []
    for view in range(chance.choice([1, 3, 10, 25, 60, 150])):
        ranker, query = chance.choices(serving, traffic)[0], chance.choice(queries)
        shown = ranked[ranker, query]
        if not functional and chance.random() < 0.5:
            shown = chance.sample(shown, len(shown))
        if short:
            shown = shown[: chance.randint(1, len(shown))]
        segment = {"device": chance.choice(_DEVICES), "land": chance.choice([1, 2, 10])} if segmented else {}
        for k, doc in enumerate(shown, start=1):
            row = {"query": query, "doc": doc, "ranker": ranker, "position": k, "view": view} | segment
            row["clicked"] = int(chance.random() < rate)
            if layout == "wide":
                row["ranks"] = {i: rank_of(doc, ranked[i, query]) for i in names}
            if not (missing and rows and chance.random() < 0.2):
                rows.append(row)
    chance.shuffle(rows)
    rankings = None
    if layout == "long":
        rankings = [
            {"query": q, "ranker": i, "doc": doc, "rank": k}
            for (i, q), listed in ranked.items()
            for k, doc in enumerate(listed, start=1)
        ]
        # Told twice, it is told once.
        rankings += chance.sample(rankings, chance.choice([0, 0, len(rankings) // 2]))
        chance.shuffle(rankings)
    return Log(layout, rows, tuple(names), rankings), not missing, pool


_DEVICES = ("phone", "desk top", "it's", "ü 🚀", None)


def _count(chance: random.Random, log: Log) -> Log:
    """Return the aggregated log; some rows are split in two, and some counts are multiplied by a large number."""
    scale = chance.choice([1, 1, 7, 2**31, 10**11])
    counted = []
    for row in aggregate(log).rows:
        n, c = row["impressions"] * scale, row["clicks"] * scale
        first = chance.randint(0, c) if chance.random() < 0.3 else None
        parts = [(n, c)] if first is None else [(first, first), (n - first, c - first)]
        counted += [row | {"impressions": i, "clicks": k} for i, k in parts]
    chance.shuffle(counted)
    return replace(log, rows=counted)


# ---- The rows as columns


def _columns(chance: random.Random, log: Log, names: Names, pool: dict[str, Column], text: bool) -> Columns:
    rows = log.rows
    found: Columns = {}
    for role in ("query", "doc"):
        type_, values = pool[role]
        found[getattr(names, role)] = type_, [values[row[role]] for row in rows]
    found[names.ranker] = _ranker_type(chance), [row["ranker"] for row in rows]

    def numbers(name: str, values: list[Any], types: tuple[pa.DataType, ...]) -> None:
        type_ = chance.choice(types)
        found[name] = type_, _typed(values, type_)

    numbers(names.position, [row["position"] for row in rows], _SMALL)
    if "clicks" in rows[0]:
        for role in ("impressions", "clicks"):
            numbers(getattr(names, role), [row[role] for row in rows], _LARGE)
    else:
        numbers(names.click, [row["clicked"] for row in rows], _CLICKS)
    if names.view:
        numbers(names.view, [row["view"] for row in rows], (pa.int64(), pa.string()))
    for ranker in log.rankers if log.layout == "wide" else ():
        ranks = [row["ranks"][ranker] for row in rows]
        numbers(names.ranks.replace("{ranker}", ranker), ranks, _SMALL)
    for key, column in names.segments.items():
        found[column] = pa.string() if key == "device" else pa.int32(), [row[key] for row in rows]
    if chance.random() < 0.3:
        found["a note"] = pa.list_(pa.int8()) if not text else pa.string(), [None] * len(rows)
    order = list(found)
    chance.shuffle(order)
    return {name: found[name] for name in order}


def _ranker_type(chance: random.Random) -> pa.DataType:
    return chance.choice([pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])


def _ranking_columns(chance: random.Random, log: Log, names: Names, pool: dict[str, Column]) -> Columns:
    rows = log.rankings or []
    found: Columns = {}
    for role in ("query", "doc"):
        type_, values = pool[role]
        found[getattr(names, role)] = type_, [values[row[role]] for row in rows]
    found[names.ranker] = _ranker_type(chance), [row["ranker"] for row in rows]
    type_ = chance.choice(_SMALL)
    found[names.rank] = type_, _typed([row["rank"] for row in rows], type_)
    return found


# ---- Defects: what is done to the columns, and what may be found of it

Spoil = Callable[[random.Random, Columns, Names], None]


def _some(chance: random.Random, n: int) -> list[int]:
    return chance.sample(range(n), chance.randint(1, min(n, 3)))


def _put(role: str, value: Any, type_: pa.DataType | None = None) -> Spoil:
    """Return a defect that writes a value into some rows of a column, with another type if needed."""

    def spoil(chance: random.Random, columns: Columns, names: Names) -> None:
        name = getattr(names, role)
        old, values = columns[name]
        values = values if type_ is None else _typed(values, type_)
        columns[name] = type_ or old, values
        for i in _some(chance, len(values)):
            values[i] = value

    return spoil


def _put_rank(value: Any, type_: pa.DataType) -> Spoil:
    """Return a defect that writes an invalid rank into a wide log or into the rankings of a long log."""

    def spoil(chance: random.Random, columns: Columns, names: Names) -> None:
        before, after = names.ranks.split("{ranker}")
        others = {getattr(names, role) for role in ("query", "doc", "ranker", "position", "click", "view")}
        others |= {names.impressions, names.clicks, *names.segments.values()}
        wide = [c for c in columns if c.startswith(before) and c.endswith(after) and c not in others]
        name = names.rank if names.rank in columns else chance.choice(wide)
        values = _typed(columns[name][1], type_)
        columns[name] = type_, values
        for i in _some(chance, len(values)):
            values[i] = value

    return spoil


def _twice(chance: random.Random, columns: Columns, names: Names) -> None:
    """Duplicate some results of page views."""
    some = _some(chance, len(columns[names.query][1]))
    for _, values in columns.values():
        values += [values[i] for i in some]


def _elsewhere(chance: random.Random, columns: Columns, names: Names) -> None:
    """Show a result at a position that contradicts its ranker, within the counted ranks."""
    values = _typed(columns[names.position][1], pa.int64())
    for i in _some(chance, len(values)):
        values[i] = 2 if values[i] == 1 else 1
    columns[names.position] = pa.int64(), values


_F, _T = pa.float64(), pa.string()
_NAN = float("nan")
# In every layout; where single results were logged; where they were counted together.
_ANY: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "no query": (_put("query", None), ()),
    "no ranker": (_put("ranker", None), ()),
    "no position": (_put("position", None), ()),
    "position 0": (_put("position", 0.0, _F), ()),
    "position -1": (_put("position", -1.0, _F), ()),
    "position 1.5": (_put("position", 1.5, _F), ()),
    "position NaN": (_put("position", _NAN, _F), ()),
    "position first": (_put("position", "first", _T), ()),
}
_SINGLE: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "no click": (_put("click", None), ()),
    "click 2": (_put("click", 2, pa.int32()), ()),
    "click -1": (_put("click", -1, pa.int32()), ()),
    "click 0.5": (_put("click", 0.5, _F), ()),
    "click NaN": (_put("click", _NAN, _F), ()),
    "click yes": (_put("click", "yes", _T), ()),
}
_COUNTED: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "no impressions": (_put("impressions", None), ()),
    "no clicks": (_put("clicks", None), ()),
    "impressions -1": (_put("impressions", -1, pa.int64()), ()),
    "impressions 0.5": (_put("impressions", 0.5, _F), ()),
    "impressions NaN": (_put("impressions", _NAN, _F), ()),
    "impressions many": (_put("impressions", "many", _T), ()),
    "clicks 10^15": (_put("clicks", 10**15, pa.int64()), ()),
    "clicks -1": (_put("clicks", -1, pa.int64()), ()),
}
_RANKED: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "rank 0": (_put_rank(0, pa.int64()), ()),
    "rank -1": (_put_rank(-1, pa.int64()), ()),
    "rank 1.5": (_put_rank(1.5, _F), ()),
    "rank first": (_put_rank("first", _T), ()),
    "rank inf": (_put_rank(float("inf"), _F), ()),
}
_KNOWN: dict[str, tuple[Spoil, tuple[str, ...]]] = {
    "a ranker of no name": (_put("ranker", "nobody at all"), ()),
    "shown elsewhere": (_elsewhere, ("contradicted-rank",)),
}
_OBSERVED: dict[str, tuple[Spoil, tuple[str, ...]]] = {"no document": (_put("doc", None), ())}
_VIEWED = {"logged twice": (_twice, ("duplicates",))}


def _defects(log: Log, names: Names, weighting: str | None) -> dict[str, tuple[Spoil, tuple[str, ...]]]:
    found = _ANY | (_COUNTED if "clicks" in log.rows[0] else _SINGLE)
    # By other weightings, as in replay, a result counts where it was shown, whatever its ranks.
    if log.layout == "replay" or weighting not in (None, "traffic"):
        found |= _OBSERVED
    else:
        found |= _RANKED | _KNOWN
    return found | (_VIEWED if names.view else {})


# ---- Containers


def _table(columns: Columns) -> pa.Table:
    return pa.table({name: _array(type_, values) for name, (type_, values) in columns.items()})


def _array(type_: pa.DataType, values: list[Any]) -> pa.Array:
    if type_ == pa.uuid():
        return pa.array([None if v is None else v.bytes for v in values], type_)
    if pa.types.is_dictionary(type_):
        return pa.array(values, type_.value_type).dictionary_encode().cast(type_)
    return pa.array(values, type_)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _csv(chance: random.Random, columns: Columns, path: Path) -> Path:
    kind = chance.choice([".csv", ".csv", ".tsv", ".txt", ".csv.gz", ".csv.zst"])
    delimiter = {".tsv": "\t", ".txt": chance.choice("|;")}.get(kind, chance.choice(",,,;"))
    text = io.StringIO()
    quoting: Any = chance.choice([csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC])
    end = chance.choice(["\n", "\n", "\r\n"])
    writer = csv.writer(text, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerow(columns)
    for row in zip(*(values for _, values in columns.values()), strict=True):
        # A value that is missing has no quotes, which would make it an empty text.
        writer.writerow([None if value is None else _cell(value) for value in row])
    # DuckDB does not find the end of a first name that needs its quotes and follows a mark.
    marked = not {"\n", delimiter} & set(next(iter(columns))) and chance.random() < 0.3
    data = text.getvalue().encode("utf-8-sig" if marked else "utf-8")
    path = path.with_name(path.name + kind)
    packed = gzip.compress(data) if kind.endswith(".gz") else data
    path.write_bytes(pa.compress(data, codec="zstd", asbytes=True) if kind.endswith(".zst") else packed)
    return path


def _json(chance: random.Random, columns: Columns, path: Path) -> Path:
    lines = []
    keep = chance.random() < 0.5
    for row in zip(*(values for _, values in columns.values()), strict=True):
        named = zip(columns, row, strict=True)
        record = {name: value for name, value in named if keep or not lines or value is not None}
        lines.append(json.dumps(record, ensure_ascii=chance.random() < 0.5, default=str))
    kind = chance.choice([".jsonl", ".ndjson", ".json", ".jsonl.gz"])
    text = f"[{','.join(lines)}]" if kind == ".json" else "\n".join(lines) + "\n"
    path = path.with_name(path.name + kind)
    path.write_bytes(gzip.compress(text.encode()) if kind.endswith(".gz") else text.encode())
    return path


def _parquet(chance: random.Random, columns: Columns, path: Path) -> Path:
    path = path.with_name(path.name + chance.choice([".parquet", ".pq", ".PARQUET"]))
    pq.write_table(
        _table(columns),
        path,
        compression=chance.choice(["snappy", "zstd", "gzip", "none"]),
        row_group_size=chance.choice([3, 100, 10**6]),
        use_dictionary=chance.random() < 0.7,
        data_page_version=chance.choice(["1.0", "2.0"]),
    )
    return path


def _parts(chance: random.Random, columns: Columns, path: Path, write: Write) -> Any:
    """Write several files, and return them as a list, a folder or a pattern."""
    path.mkdir()
    n = len(next(iter(columns.values()))[1])
    cuts = sorted({0, n, *(chance.randint(0, n) for _ in range(2))})
    paths = []
    for a, b in itertools.pairwise(cuts):
        part = {name: (type_, values[a:b]) for name, (type_, values) in columns.items()}
        paths.append(write(chance, dict(chance.sample(list(part.items()), len(part))), path / f"part-{a}"))
    return chance.choice([paths, path, str(path), str(path / "part-*")])


def _relation(columns: Columns) -> duckdb.DuckDBPyRelation:
    con = duckdb.connect()
    con.register("rows", _table(columns))
    return con.sql("SELECT * FROM rows")


def _database(chance: random.Random, columns: Columns, path: Path) -> Path:
    path = path.with_name(path.name + chance.choice([".duckdb", ".db", ".ddb"]))
    with duckdb.connect(str(path)) as con:
        con.register("rows", _table(columns))
        con.execute('CREATE TABLE "the log" AS SELECT * FROM rows')
    return path


Write = Callable[[random.Random, Columns, Path], Any]
CONTAINERS: dict[str, Write] = {
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
    "parts of csv": partial(_parts, write=_csv),
    "parts of json": partial(_parts, write=_json),
    "parts of parquet": partial(_parts, write=_parquet),
    "pandas": lambda chance, columns, path: _table(columns).to_pandas(),
    "polars": lambda chance, columns, path: polars.from_arrow(_table(columns)),
    "lazy": lambda chance, columns, path: polars.from_arrow(_table(columns)).lazy(),  # type: ignore[union-attr]
    "arrow": lambda chance, columns, path: _table(columns),
    "batch": lambda chance, columns, path: _table(columns).combine_chunks().to_batches()[0],
    "reader": lambda chance, columns, path: _table(columns).to_reader(max_chunksize=7),
    "dataset": lambda chance, columns, path: pyarrow.dataset.dataset(_table(columns)),
    "dataset of files": lambda chance, columns, path: pyarrow.dataset.dataset(_parquet(chance, columns, path)),
    "relation": lambda chance, columns, path: _relation(columns),
    "database": _database,
}
# What a query of a second is spent on, on Spark.
ON_SPARK = ("csv", "json", "parquet", "parts of csv", "parts of parquet", "arrow", "pandas")


def _folders(chance: random.Random, columns: Columns, path: Path, column: str, write: Write) -> Path:
    """Write one partition folder for each value of a segment column."""
    _, values = columns[column]
    for value in dict.fromkeys(values):
        name = "__HIVE_DEFAULT_PARTITION__" if value is None else quote(str(value), safe="")
        folder = path / f"{column}={name}"
        folder.mkdir(parents=True)
        part = {
            name: (type_, [v for v, at in zip(kept, values, strict=True) if at == value])
            for name, (type_, kept) in columns.items()
            if name != column
        }
        write(chance, part, folder / "part")
    return path


# ---- All of it


def draw(seed: int, folder: Path, containers: tuple[str, ...] = tuple(CONTAINERS)) -> Trial:
    """Return the random log of a seed, with its files in a folder."""
    chance = random.Random(seed)
    container = chance.choice(containers)
    segmented = chance.random() < 0.35
    log, whole, pool = _draw_log(chance, segmented)
    counted = chance.random() < 0.3
    names = _draw_names(chance, viewed=not counted and chance.random() < 0.5, segmented=segmented)
    if counted:
        log = _count(chance, log)
    if container in _NO_UUIDS and any(type_ == pa.uuid() for type_, _ in pool.values()):
        pool = {role: _texts(chance, len(values)) for role, (_, values) in pool.items()}
    text = container.endswith(("csv", "json"))
    columns = _columns(chance, log, names, pool, text)
    rankings = _ranking_columns(chance, log, names, pool) if log.layout == "long" else None

    whole_columns = {name: (type_, list(values)) for name, (type_, values) in columns.items()}
    weighting = chance.choice([None, None, *WEIGHTINGS])
    defect, found = "", ()
    arguments = _arguments(log, names)
    if chance.random() < 0.25:
        kinds = _defects(log, names, weighting)
        defect = chance.choice(list(kinds))
        spoil, found = kinds[defect]
        spoil(chance, rankings if rankings is not None and defect in _RANKED else columns, names)
    elif names.view and chance.random() < 0.3:
        # The same rows twice, and counted once.
        arguments["duplicates"] = "drop"
        _twice(chance, columns, names)

    # Ids are compared as texts, which a text holds as they were written: the second table is of the same kind.
    write = CONTAINERS[container if container != "database" else "arrow"]
    if rankings is not None:
        arguments["rankings"] = write(chance, rankings, folder / "rankings")
    if (
        container in ("parquet", "csv", "json")
        and not {"/", "?"} & set(names.segments.get("device", "/"))
        and chance.random() < 0.5
    ):
        source: Any = _folders(chance, columns, folder / "log", names.segments["device"], write)
        container = f"folders of {container}"
    else:
        source = CONTAINERS[container](chance, columns, folder / "log")
    label: dict[str, Callable[[Any], str | None]] = {
        key: (lambda value: None if value is None else str(value)) for key in names.segments
    }
    return Trial(
        log=log,
        max_rank=chance.choice([2, 3, 4, 6, 10, 20]),
        weighting=weighting,
        max_strata=chance.choice([0, 2_000_000, 2_000_000]),
        by=tuple(names.segments.values()),
        labels=label,
        whole_pages=whole,
        container=container,
        source=source,
        arguments=arguments,
        names=names,
        columns=whole_columns,
        ids=pool,
        defect=defect,
        found=found,
    )


def write_beside(trial: Trial, columns: Columns, path: Path) -> Any:
    """Return another table in the container of a random log; one that is a single table in memory is Arrow."""
    kind = trial.container.split()[-1]
    kind = kind if kind in ("csv", "json", "parquet", "pandas", "polars") else "arrow"
    return CONTAINERS[kind](random.Random(0), columns, path)


_NO_UUIDS = ("pandas", "polars", "lazy", "parquet", "parts of parquet", "dataset of files")


def _draw_names(chance: random.Random, *, viewed: bool, segmented: bool) -> Names:
    plain = Names(view="impression_id" if viewed else None)
    if chance.random() < 0.5:
        return replace(plain, segments={"device": "device", "land": "land"} if segmented else {})
    picked = chance.sample(HOSTILE_COLUMNS, 11)
    query, doc, ranker, position, click, view, impressions, clicks, rank, device, land = picked
    template = chance.choice(HOSTILE_TEMPLATES)
    segments = {"device": device, "land": land} if segmented else {}
    return Names(
        query, doc, ranker, position, click, view if viewed else None, impressions, clicks, template, rank, segments
    )


def _arguments(log: Log, names: Names) -> dict[str, Any]:
    given: dict[str, Any] = {role: getattr(names, role) for role in ("query", "doc", "ranker", "position")}
    if log.layout == "wide":
        given["ranks"] = names.ranks
    elif log.layout == "replay":
        given["ranks"] = "none"
    else:
        given["rank"] = names.rank
    if "clicks" in log.rows[0]:
        given |= {"impressions": names.impressions, "clicks": names.clicks}
    else:
        given["click"] = names.click
    return given | ({"impression": names.view} if names.view else {})


def click_log(trial: Trial) -> posbias.ClickLog:
    """Return the `ClickLog` of a random log."""
    return posbias.ClickLog(trial.source, **trial.arguments)
