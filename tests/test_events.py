"""Events joined to a log: what comes out is, row for row, the log that the events were made from."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import posbias
from .logs import Row, to_csv, to_jsonl, to_parquet

WORLD = posbias.World(queries=60, repeats=5, max_rank=4, segments={"phone": 1.5, "desk": 0.5}, seed=3)
COLUMNS = ("query_id", "doc_id", "ranker", "position", "clicked", "impression_id", "device")


def simulated(ids: str = "int") -> list[Row]:
    return posbias.simulate(WORLD, "replay", ids=ids).to_pylist()


def keyed(rows: list[Row]) -> list[tuple[str, ...]]:
    """Rows as they compare: sorted, values by their texts."""
    return sorted(tuple(str(row[name]) for name in COLUMNS) for row in rows)


def as_arrays(rows: list[Row]) -> list[Row]:
    """One row for each page view, its documents in the order shown."""
    pages: dict[Any, Row] = {}
    for row in sorted(rows, key=lambda row: row["position"]):
        page = {name: row[name] for name in ("impression_id", "query_id", "ranker", "device")}
        pages.setdefault(row["impression_id"], page | {"doc_ids": []})["doc_ids"].append(row["doc_id"])
    return list(pages.values())


def as_rows(rows: list[Row], first: int = 1) -> list[Row]:
    """One row for each document shown."""
    return [
        {name: row[name] for name in ("impression_id", "query_id", "ranker", "device", "doc_id")}
        | {"position": row["position"] - 1 + first}
        for row in rows
    ]


def clicks_of(rows: list[Row]) -> list[Row]:
    return [{name: row[name] for name in ("impression_id", "doc_id")} for row in rows if row["clicked"]]


def spoilt(rows: list[Row], shown: list[Row], chance: random.Random) -> tuple[list[Row], list[Row], dict[str, int]]:
    """Events in shuffled order, with all that goes wrong on the way; and how often each of it does."""
    clicks = clicks_of(rows)
    double = chance.sample(clicks, 20)
    view, doc = rows[0]["impression_id"], rows[0]["doc_id"]
    strange = [{"impression_id": type(view)(10**6), "doc_id": doc}, {"impression_id": view, "doc_id": type(doc)(10**6)}]
    nameless = [{"impression_id": None, "doc_id": doc}, {"impression_id": view, "doc_id": None}]
    again = chance.sample(shown, 15)
    gone = [chance.choice(shown) | {name: None} for name in ("impression_id", "query_id", "ranker")]
    results = sum(len(row["doc_ids"]) for row in again) if "doc_ids" in shown[0] else len(again)
    mixed, tapped = [*shown, *again, *gone], [*clicks, *double, *strange, *nameless]
    chance.shuffle(mixed)
    chance.shuffle(tapped)
    return mixed, tapped, {"duplicates": results, "double-clicks": 20, "not-shown": 2}


def join(shown: Any, clicks: Any, **names: Any) -> posbias.ClickLog:
    return posbias.ClickLog.from_events(shown, clicks, **names)


def written(log: posbias.ClickLog, folder: Path, **settings: Any) -> tuple[list[Row], Any]:
    """The rows of the file, or of the folder, that events become."""
    path = folder / "log.parquet"
    found = posbias.write_events(log, path, **settings)
    return pq.read_table(path).to_pylist(), found


def counted(findings: Any) -> dict[str, int]:
    return {finding.code: finding.count for finding in findings if finding.code != "null"}


# ---- The oracle


@pytest.mark.parametrize("ids", ["int", "str"])
@pytest.mark.parametrize("form", ["array", "rows", "rows from 0"])
def test_the_log_that_comes_out_is_the_log_that_went_in(each_engine: str, form: str, ids: str, tmp_path: Path) -> None:
    rows = simulated(ids)
    shown = as_arrays(rows) if form == "array" else as_rows(rows, 0 if "0" in form else 1)
    events, clicks, expected = spoilt(rows, shown, random.Random(7))
    log = join(pa.Table.from_pylist(events), pa.Table.from_pylist(clicks))
    out, found = written(log, tmp_path)
    assert keyed(out) == keyed(rows)
    assert list(out[0]) == list(COLUMNS)
    assert counted(found.findings) == expected
    assert [f.count for f in found.findings if f.code == "null"] == [1, 1, 1, 2]
    pages = len({row["impression_id"] for row in rows})
    assert (found.rows, found.page_views, found.clicks) == (len(rows), pages, sum(row["clicked"] for row in rows))
    whole = posbias.harvest(posbias.ClickLog(pa.Table.from_pylist(rows)), max_rank=4, by=["device"])
    for other in (log, posbias.ClickLog(tmp_path / "log.parquet")):
        made = posbias.harvest(other, max_rank=4, by=["device"])
        np.testing.assert_array_equal(made.pairs().clicks, whole.pairs().clicks)
        curves = [posbias.CrossFit().fit(harvest).propensity_ for harvest in (made, whole)]
        np.testing.assert_allclose(*curves, rtol=1e-9)
        if other is log:
            assert {finding.code for finding in made.findings} >= {*expected}


def test_what_is_whole_has_nothing_said_of_it(tmp_path: Path) -> None:
    rows = simulated()
    for shown in (as_arrays(rows), as_rows(rows)):
        out, found = written(
            join(pa.Table.from_pylist(shown), pa.Table.from_pylist(clicks_of(rows))), tmp_path, overwrite=True
        )
        assert keyed(out) == keyed(rows)
        assert found.findings == ()


SOURCES = {
    "parquet": to_parquet,
    "csv": to_csv,
    "jsonl": to_jsonl,
    "pandas": lambda rows, _: pandas.DataFrame(rows),
    "polars": lambda rows, _: polars.DataFrame(rows),
}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("form", ["array", "rows"])
def test_every_source_of_a_log_is_one_of_events(form: str, kind: str, tmp_path: Path) -> None:
    rows = simulated()
    shown = as_arrays(rows) if form == "array" else as_rows(rows)
    if kind == "csv" and form == "array":
        shown = [row | {"doc_ids": json.dumps(row["doc_ids"])} for row in shown]
    make = SOURCES[kind]
    out, _ = written(join(make(shown, tmp_path / "shown"), make(clicks_of(rows), tmp_path / "clicks")), tmp_path)
    assert keyed(out) == keyed(rows)


def test_tables_of_a_duckdb_file(tmp_path: Path) -> None:
    rows = simulated()
    shown, clicks = pa.Table.from_pylist(as_arrays(rows)), pa.Table.from_pylist(clicks_of(rows))
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as con:
        con.register("s", shown)
        con.register("c", clicks)
        con.execute("CREATE TABLE views AS FROM s; CREATE TABLE taps AS FROM c")
    log = join(tmp_path / "shop.duckdb", "taps", table="views")
    assert keyed(written(log, tmp_path)[0]) == keyed(rows)
    filtered = join(tmp_path / "shop.duckdb", "taps", sql="FROM views WHERE device = 'phone'")
    kept, found = written(filtered, tmp_path, overwrite=True)
    assert keyed(kept) == keyed([row for row in rows if row["device"] == "phone"])
    assert counted(found.findings)["not-shown"] == sum(r["clicked"] for r in rows if r["device"] == "desk")
    with pytest.raises(posbias.LogError, match="holds 2 tables: 'taps', 'views'"):
        posbias.write_events(join(tmp_path / "shop.duckdb", "taps"), tmp_path / "x.parquet")


def test_names_are_mapped_and_ids_of_other_types_compared_as_texts(each_engine: str, tmp_path: Path) -> None:
    rows = simulated()
    renamed = {"impression_id": "view", "query_id": "term", "ranker": "arm", "doc_ids": 'the "list"'}
    shown = [{renamed.get(name, name): value for name, value in row.items()} for row in as_arrays(rows)]
    clicks = [{"page": str(row["impression_id"]), "item": str(row["doc_id"])} for row in clicks_of(rows)]
    names = {"impression": "view", "query": "term", "ranker": "arm", "docs": 'the "list"'}
    log = join(
        pa.Table.from_pylist(shown), pa.Table.from_pylist(clicks), **names, click_impression="page", click_doc="item"
    )
    out, found = written(log, tmp_path)
    assert keyed(out) == keyed(rows)
    assert found.findings == ()


def test_a_log_without_rankers_has_no_column_for_them(tmp_path: Path) -> None:
    rows = simulated()
    shown = pa.Table.from_pylist(as_arrays(rows)).drop_columns("ranker")
    out, _ = written(join(shown, pa.Table.from_pylist(clicks_of(rows))), tmp_path)
    assert "ranker" not in out[0]
    assert keyed([row | {"ranker": "?"} for row in out]) == keyed([row | {"ranker": "?"} for row in rows])


def test_rankings_make_the_long_layout() -> None:
    from posbias.simulation import rank

    rows = simulated()
    log = join(pa.Table.from_pylist(as_arrays(rows)), pa.Table.from_pylist(clicks_of(rows)), rankings=rank(WORLD))
    whole = posbias.ClickLog(pa.Table.from_pylist(rows), rankings=rank(WORLD))
    made, expected = (posbias.harvest(each, max_rank=4) for each in (log, whole))
    assert made.layout == "long"
    np.testing.assert_array_equal(made.pairs().clicks, expected.pairs().clicks)
