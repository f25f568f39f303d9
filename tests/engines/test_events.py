"""Test that joining events gives, row for row, the log that the events were made from."""

from __future__ import annotations

import json
import random
import re
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
from hypothesis import given
from hypothesis import strategies as st

import posbias
from posbias.cli import cli
from posbias.progress import silent
from tests.harvesting.test_harvest import examples
from tests.support import sparks
from tests.support.logs import Row, to_csv, to_jsonl, to_parquet

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
    unknown, absent = {"impression_id": type(view)(10**6), "doc_id": doc}, {"impression_id": view}
    # A click on nothing is one however often it was made, and no double click.
    strange = [unknown, unknown, unknown, absent | {"doc_id": type(doc)(10**6)}]
    nameless = [{"impression_id": None, "doc_id": doc}, {"impression_id": view, "doc_id": None}]
    again = chance.sample(shown, 15)
    gone = [chance.choice(shown) | {name: None} for name in ("impression_id", "query_id", "ranker")]
    results = sum(len(row["doc_ids"]) for row in again) if "doc_ids" in shown[0] else len(again)
    mixed, tapped = [*shown, *again, *gone], [*clicks, *double, *strange, *nameless]
    chance.shuffle(mixed)
    chance.shuffle(tapped)
    return mixed, tapped, {"duplicates": results, "double-clicks": 20, "click-without-impression": 4}


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
def test_events_are_joined_to_the_original_log(each_engine: str, form: str, ids: str, tmp_path: Path) -> None:
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


def test_complete_events_have_no_findings(tmp_path: Path) -> None:
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
def test_events_are_read_from_every_source(form: str, kind: str, tmp_path: Path) -> None:
    rows = simulated()
    shown = as_arrays(rows) if form == "array" else as_rows(rows)
    if kind == "csv" and form == "array":
        shown = [row | {"doc_ids": json.dumps(row["doc_ids"])} for row in shown]
    make = SOURCES[kind]
    out, _ = written(join(make(shown, tmp_path / "shown"), make(clicks_of(rows), tmp_path / "clicks")), tmp_path)
    assert keyed(out) == keyed(rows)


def test_many_clicks_on_documents_not_shown_are_an_error(tmp_path: Path) -> None:
    """As of variants of products, whose ids are now and then those of a product."""
    rows = simulated()
    clicks = clicks_of(rows)
    strange = [row | {"doc_id": row["doc_id"] + 10**6} for row in clicks]
    log = join(pa.Table.from_pylist(as_arrays(rows)), pa.Table.from_pylist([*strange, *clicks[:20]]))
    told = rf"{len(clicks):,} of {len(clicks) + 20:,} clicks match no impression.*Most clicks on these page views"
    with pytest.raises(posbias.LogError, match=told):
        posbias.write_events(log, tmp_path / "x.parquet")
    some_strange = pa.Table.from_pylist([*strange[:20], *clicks])
    found = written(join(pa.Table.from_pylist(as_arrays(rows)), some_strange), tmp_path)[1]
    assert "the other the id of its variant" in next(
        one.remedy for one in found.findings if one.code == "click-without-impression"
    )
    # A sample of page views misses clicks as well, but not on those that are there.
    some = {row["impression_id"] for row in rows if row["impression_id"] % 5 == 0}
    shown = [row for row in rows if row["impression_id"] in some]
    out, found = written(
        join(pa.Table.from_pylist(as_arrays(shown)), pa.Table.from_pylist(clicks)), tmp_path, overwrite=True
    )
    assert keyed(out) == keyed(shown)
    (finding,) = (finding for finding in found.findings if finding.code == "click-without-impression")
    assert finding.severity == "warning"
    assert "correct if the impressions are a sample" in finding.remedy


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
    assert counted(found.findings)["click-without-impression"] == sum(
        r["clicked"] for r in rows if r["device"] == "desk"
    )
    with pytest.raises(posbias.LogError, match="has 2 tables: 'taps', 'views'"):
        posbias.write_events(join(tmp_path / "shop.duckdb", "taps"), tmp_path / "x.parquet")


@pytest.mark.parametrize("sql", [None, "SELECT * FROM impressions"])
def test_tables_with_internal_names_are_read(sql: str | None, tmp_path: Path) -> None:
    rows = simulated()
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as con:
        con.register("s", pa.Table.from_pylist(as_arrays(rows)))
        con.register("c", pa.Table.from_pylist(clicks_of(rows)))
        con.execute("CREATE TABLE impressions AS FROM s; CREATE TABLE clicks AS FROM c; CREATE TABLE joined AS FROM c")
    log = join(tmp_path / "shop.duckdb", "clicks", table="impressions", sql=sql)
    assert keyed(written(log, tmp_path)[0]) == keyed(rows)
    assert posbias.harvest(log, max_rank=4).layout == "replay"


def test_views_of_a_database_read_no_other_files(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("impression_id,doc_id\n1,sesame\n")
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as con:
        con.register("s", pa.table(SHOWN))
        con.execute("CREATE TABLE views AS FROM s")
        con.execute(f"CREATE VIEW taps AS FROM read_csv('{tmp_path}/secret.csv')")
    with pytest.raises(posbias.LogError, match="A view may read only tables of its own DuckDB file") as error:
        written(join(tmp_path / "shop.duckdb", "taps", table="views"), tmp_path)
    assert "sesame" not in str(error.value)


def test_partition_folder_gives_the_ranker_only_on_request(tmp_path: Path) -> None:
    rows = simulated()
    for ranker in ("a", "b"):
        folder = tmp_path / f"shown/ranker={ranker}"
        folder.mkdir(parents=True)
        shown = pa.Table.from_pylist([row for row in as_arrays(rows) if row["ranker"] == ranker])
        pq.write_table(shown.drop_columns("ranker"), folder / "x.parquet")
    clicks = pa.Table.from_pylist(clicks_of(rows))
    with pytest.raises(posbias.LogError, match=r"two columns named 'ranker'.* give its name as an argument"):
        written(join(tmp_path / "shown", clicks), tmp_path)
    assert keyed(written(join(tmp_path / "shown", clicks, ranker="ranker"), tmp_path)[0]) == keyed(rows)


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


def test_ranker_none_drops_the_ranker(tmp_path: Path) -> None:
    rows = simulated()
    shown, clicks = pa.Table.from_pylist(as_arrays(rows)), pa.Table.from_pylist(clicks_of(rows))
    out, _ = written(join(shown, clicks, ranker="none"), tmp_path)
    assert "ranker" not in out[0]
    assert len(out) == len(rows)
    told = posbias.harvest(join(shown, clicks, ranker="none"), max_rank=3)
    bare = posbias.harvest(join(shown.drop_columns("ranker"), clicks), max_rank=3)
    assert told.rankers == bare.rankers == ("any",)
    assert told.impressions.tolist() == bare.impressions.tolist()
    sources = [str(tmp_path / f"{name}.parquet") for name in ("shown", "clicks")]
    for table, path in zip((shown, clicks), sources, strict=True):
        pq.write_table(table, path)
    done = CliRunner().invoke(cli, ["events", *sources, "-o", str(tmp_path / "o.parquet"), "--ranker", "none"])
    assert done.exit_code == 0, done.stderr
    assert "ranker" not in pq.read_schema(tmp_path / "o.parquet").names


def test_extra_columns_have_the_same_findings_as_in_a_log() -> None:
    rows = simulated()
    days = [row | {"day": row["impression_id"] % 7, "before": row["position"]} for row in rows]
    known = [
        {name: row[name] for name in ("impression_id", "query_id", "ranker", "doc_id", "position", "day", "before")}
        for row in days
    ]
    clicks = pa.Table.from_pylist(clicks_of(rows))
    made = join(pa.Table.from_pylist(known), clicks, window="day", original="before", ranks="none")
    log = posbias.ClickLog(pa.Table.from_pylist(days), window="day", original="before", ranks="none")
    assert (made.window, made.original, made.ranks) == ("day", "before", "none")
    one, other = (posbias.AllPairs().fit(posbias.harvest(each, max_rank=3)) for each in (made, log))
    assert one.propensity_.tolist() == other.propensity_.tolist()
    apart = posbias.AllPairs().fit(posbias.harvest(join(pa.Table.from_pylist(known), clicks), max_rank=3))
    assert one.propensity_.tolist() != apart.propensity_.tolist()


def test_decimals_without_places_are_whole_numbers(each_engine: str, tmp_path: Path) -> None:
    """Snowflake exports every whole number so."""
    whole = pa.decimal128(38, 0)
    shown = SHOWN | {"impression_id": pa.array([1, 2], whole), "doc_ids": pa.array([[7, 8], [8, 7]], pa.list_(whole))}
    rows, found = codes(log_of(shown, {"impression_id": [1, 2], "doc_id": [8, 8]}), tmp_path)
    assert [(int(view), int(doc), *more) for view, doc, *more in rows] == [
        (1, 7, 1, 0), (1, 8, 2, 1), (2, 7, 2, 0), (2, 8, 1, 1)
    ]  # fmt: skip
    assert found == {}


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


# ---- What goes wrong

SHOWN = {"impression_id": [1, 2], "query_id": ["tea", "tea"], "doc_ids": [["x", "y"], ["y", "x"]], "ranker": ["a", "b"]}
TAPS = {"impression_id": [1], "doc_id": ["y"]}


def log_of(shown: dict[str, Any], taps: dict[str, Any] | None = None, **names: Any) -> posbias.ClickLog:
    return join(pa.table(shown), pa.table(taps or TAPS), **names)


def refused(log: posbias.ClickLog, folder: Path) -> str:
    """What is said of events that make no log: nothing is written, and a harvest and a check say the same."""
    with pytest.raises(posbias.LogError) as error:
        posbias.write_events(log, folder / "log.parquet")
    assert list(folder.glob("*.parquet")) == []
    with pytest.raises(posbias.LogError) as again:
        posbias.harvest(log)
    assert str(again.value) == str(error.value)
    assert not posbias.check(log).usable
    return str(error.value)


def codes(log: posbias.ClickLog, folder: Path) -> tuple[list[tuple[Any, ...]], dict[str, int]]:
    """The rows of a log, as (page view, document, position, clicked), and what was found how often."""
    out, found = written(log, folder, overwrite=True)
    rows = sorted((row["impression_id"], row["doc_id"], row["position"], row["clicked"]) for row in out)
    return rows, {finding.code: finding.count for finding in found.findings}


def test_an_empty_table_of_impressions(tmp_path: Path) -> None:
    empty = join(pa.table(SHOWN).slice(0, 0), pa.table(TAPS))
    assert refused(empty, tmp_path).startswith("The impressions have no rows.")


def test_missing_clicks_are_reported(tmp_path: Path) -> None:
    rows, found = codes(join(pa.table(SHOWN), pa.table(TAPS).slice(0, 0)), tmp_path)
    assert found == {"no-clicks": 0}
    assert [row[-1] for row in rows] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("shown", "taps", "names", "message"),
    [
        ({"view": [1]}, None, {}, r"neither an array .* nor a document .*Columns found: 'view'.*docs='COLUMN'"),
        (
            {"page_view_id": [1], "qid": ["t"], "results": [["x"]]},
            None,
            {},
            r"neither an array .* Add docs='results'",
        ),
        (
            {"page_view_id": [1], "qid": ["t"], "doc_ids": [["x"]]},
            None,
            {},
            r"Columns 'impression_id', 'query_id' are not in the impressions. Columns found: 'page_view_id', 'qid', "
            r"'doc_ids'. Name the right ones. Add impression='page_view_id', query='qid'",
        ),
        (SHOWN, {"view_id": [1], "sku": ["y"]}, {}, r"in the clicks. .*click_impression='view_id', click_doc='sku'"),
        (SHOWN, None, {"ranker": "arm"}, r"Column 'arm' is not in the impressions"),
        (SHOWN, None, {"application": "site"}, r"Column 'site' is not in the impressions"),
        (SHOWN | {"doc_ids": [1, 2]}, None, {}, r"'doc_ids' of the impressions is BIGINT, where an array"),
        (SHOWN | {"doc_ids": [[{"id": 1}], [{"id": 2}]]}, None, {}, r"STRUCT.*an id must be a single value"),
        (SHOWN | {"impression_id": [[1], [2]]}, None, {}, r"'impression_id' of the impressions is BIGINT\[\]"),
        (SHOWN | {"Clicked": [1, 1]}, None, {}, r"two columns named 'clicked'.*EXCLUDE \(Clicked\)"),
        (SHOWN | {"posbias: item": ["u", "v"]}, None, {}, r"two columns named 'posbias: item'"),
        (SHOWN, {"impression_id": [1.0], "doc_id": ["y"]}, {}, r"is BIGINT in the impr.* DOUBLE in the clicks"),
        (SHOWN | {"ranker": [["a"], ["b"]]}, None, {}, r"'ranker' of the impressions is VARCHAR\[\]"),
        (SHOWN, None, {"ranker": "query_id"}, r"'query_id' cannot be both query and ranker"),
        (
            SHOWN,
            {"impression_id": ["v1", "v2"], "doc_id": ["x", "y"]},
            {},
            r"2 of 2 clicks match no impression.*written the same way",
        ),
        (SHOWN | {"impression_id": [None, None]}, None, {}, r"have no result .*\n2 of 2 page views have no value"),
        (SHOWN | {"doc_ids": [None, []]}, None, {}, r"have no result .*\n2 of 2 page views show no results"),
        (
            {"impression_id": [1, 1], "query_id": ["t"] * 2, "doc_id": ["x", "y"], "position": [1, None]},
            None,
            {},
            r"No click would be left.*\n1 of 2 rows of the impressions have no whole number",
        ),
        (SHOWN | {"impression_id": [1, 1]}, None, {}, r"1 of 1 page views contradict themselves"),
    ],
)  # fmt: skip
def test_unusable_events_are_rejected(shown: Any, taps: Any, names: Any, message: str, tmp_path: Path) -> None:
    told = refused(log_of(shown, taps, **names), tmp_path)
    assert re.search(message, told, re.DOTALL), told


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"query": ""}, "query='' must be text"),
        ({"first": 2}, "first=2 must be 0 or 1"),
        ({"preset": "ga4"}, "preset='ga4' is not known"),
        ({"docs": "a", "position": "b"}, "Give docs or position, not both"),
    ],
)
def test_invalid_arguments_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(posbias.LogError, match=message):
        log_of(SHOWN, **settings)
    with pytest.raises(posbias.LogError, match="Expected a log of events"):
        posbias.write_events(posbias.ClickLog("x.parquet"), "y.parquet")


def test_ids_shared_by_two_page_views_are_dropped_and_many_are_rejected(each_engine: str, tmp_path: Path) -> None:
    views = 300
    shown = {"impression_id": [*range(views), 7, 8, 9], "query_id": ["tea"] * views + ["tea", "rum", "tea"]}
    shown |= {
        "doc_ids": [["x", "y"]] * views + [["x", "z"], ["x", "y"], ["x", "y"]],
        "ranker": ["a"] * (views + 2) + ["b"],
    }
    rows, found = codes(log_of(shown), tmp_path)
    # One id with another document at the same place, one with another query, one with another ranker.
    assert {view for view, *_ in rows} == {*range(views)} - {7, 8, 9}
    # Copies at the same place: of `x` in the first, of both documents in the others.
    assert found == {"conflicting-page-view": 3, "duplicates": 5}
    few = {name: values[-20:] for name, values in shown.items()} | {"impression_id": [1, 2] * 10}
    with pytest.raises(posbias.LogError, match=r"2 of 2 page views contradict themselves.* not of a session"):
        posbias.write_events(log_of(few), tmp_path / "few.parquet")


Shown = tuple[int, str, str, str, int]


def oracle(shown: list[Shown], taps: list[tuple[int, str]]) -> tuple[list[Row], dict[str, int]]:
    """What events make, straight from what is said of them; and how often what happens."""
    copies: dict[tuple[int, str], list[Shown]] = {}
    for row in shown:
        copies.setdefault((row[0], row[3]), []).append(row)
    moved = {key for key, rows in copies.items() if len({row[4] for row in rows}) > 1}
    clashing = set()
    for view in {row[0] for row in shown}:
        results = {key: rows for key, rows in copies.items() if key[0] == view}
        steady = [rows[0][4] for key, rows in results.items() if key not in moved]
        mixed = any(len({row[2] for row in rows}) > 1 for rows in results.values())
        if mixed or len({row[1] for row in shown if row[0] == view}) > 1 or len({*steady}) < len(steady):
            clashing.add(view)
    names = ("impression_id", "query_id", "ranker", "doc_id", "position")
    log = [
        dict(zip(names, rows[0], strict=True)) | {"clicked": int(key in taps)}
        for key, rows in copies.items()
        if key not in moved and key[0] not in clashing
    ]
    found = {
        "duplicates": sum(len(rows) - 1 for key, rows in copies.items() if key not in moved),
        "document-at-several-positions": len(moved),
        "conflicting-page-view": len(clashing),
        "double-clicks": sum(tap in copies for tap in taps) - len({*taps} & copies.keys()),
        "click-without-impression": sum(tap not in copies for tap in taps),
    }
    return log, {code: count for code, count in found.items() if count}


shown_rows = st.tuples(
    st.integers(0, 3), st.sampled_from("tu"), st.sampled_from("ab"), st.sampled_from("xyz"), st.integers(1, 4)
)
taps_rows = st.tuples(st.integers(0, 4), st.sampled_from("wxyz"))


@examples(40)
@given(shown=st.lists(shown_rows, max_size=8), taps=st.lists(taps_rows, max_size=6))
def test_duplicate_and_contradictory_events_are_handled(
    each_engine: str, tmp_path_factory: pytest.TempPathFactory, shown: list[Shown], taps: list[tuple[int, str]]
) -> None:
    # Among page views that are whole, so that a few others may be accidents.
    shown = [*shown, *((view, "t", "a", doc, place) for view in range(100, 500) for place, doc in enumerate("xy", 1))]
    taps = [*taps, (100, "x")]
    expected, found = oracle(shown, taps)
    names = ("impression_id", "query_id", "ranker", "doc_id", "position")
    events = pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in shown])
    clicks = pa.Table.from_pylist([{"impression_id": view, "doc_id": doc} for view, doc in taps])
    out, written_log = written(join(events, clicks), tmp_path_factory.mktemp("log"))
    assert sorted(tuple(row[name] for name in (*names, "clicked")) for row in out) == sorted(
        tuple(row[name] for name in (*names, "clicked")) for row in expected
    )
    assert counted(written_log.findings) == found


def test_documents_at_two_positions_are_dropped(each_engine: str, tmp_path: Path) -> None:
    shown = SHOWN | {"doc_ids": [["x", "y", "x"], ["y", None]]}
    rows, found = codes(log_of(shown, {"impression_id": [1, 1], "doc_id": ["x", "y"]}), tmp_path)
    assert rows == [(1, "y", 2, 1), (2, "y", 1, 0)]
    assert found == {"document-at-several-positions": 1, "null": 1}


def test_arrays_as_texts(each_engine: str, tmp_path: Path) -> None:
    shown = SHOWN | {"doc_ids": ['["x", "y"]', "[1, null, 3]"]}
    rows, found = codes(log_of(shown, {"impression_id": [1, 2], "doc_id": ["y", "3"]}), tmp_path)
    assert rows == [(1, "x", 1, 0), (1, "y", 2, 1), (2, "1", 1, 0), (2, "3", 3, 1)]
    assert found == {"null": 1}
    rows, found = codes(log_of(SHOWN | {"doc_ids": ['["x", "y"]', "['x', 'y']x"]}), tmp_path)
    assert rows == [(1, "x", 1, 0), (1, "y", 2, 1)]
    assert found == {"not-an-array": 1}
    _, found = codes(log_of(SHOWN | {"doc_ids": ['["{x", "y"]', '[{"id": "x", "price": 3}, ["y"]]']}), tmp_path)
    assert found == {"nested-document": 2}


def positions(begin: dict[str, list[int]]) -> pa.Table:
    """Page views of two results each, by the application and the position at which they begin."""
    views = [(app, first) for app, firsts in begin.items() for first in firsts]
    rows = [(i, app, doc, first + doc) for i, (app, first) in enumerate(views) for doc in (0, 1)]
    names = ("impression_id", "app", "doc_id", "position")
    table = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    return pa.table(table | {"query_id": ["tea"] * len(rows), "ranker": ["a"] * len(rows)})


def test_first_position_is_detected_by_application(each_engine: str, tmp_path: Path) -> None:
    table, taps = positions({"web": [0] * 5, "it's": [1] * 5}), pa.table({"impression_id": [0], "doc_id": [1]})
    out, found = written(join(table, taps, application="app"), tmp_path)
    assert {(row["app"], row["doc_id"], row["position"]) for row in out} == {
        (app, doc, doc + 1) for app in ("web", "it's") for doc in (0, 1)
    }
    assert found.findings == ()
    with pytest.raises(posbias.LogError, match=r"5 page views begin at position 0 and 5 at position 1.*application"):
        written(join(table, taps), tmp_path, overwrite=True)
    out, found = written(join(table, taps, first=0), tmp_path, overwrite=True)
    assert {row["position"] for row in out} == {1, 2, 3}
    mixed = positions({"web": [0, 1] * 5})
    with pytest.raises(posbias.LogError, match="of application 'web' begin at position 0"):
        written(join(mixed, taps, application="app"), tmp_path, overwrite=True)


def test_single_zero_position_does_not_shift_all_positions(tmp_path: Path) -> None:
    taps = pa.table({"impression_id": [0], "doc_id": [1]})
    out, found = written(join(positions({"web": [0] + [1] * 300}), taps), tmp_path)
    assert {row["position"] for row in out} == {1, 2}
    assert len(out) == 601
    assert [(f.code, f.count, f.example) for f in found.findings] == [("zero-based-position", 1, "impression_id=0")]
    out, found = written(join(positions({"web": [1] + [0] * 300}), taps), tmp_path, overwrite=True)
    assert {row["position"] for row in out} == {1, 2, 3}
    assert found.findings == ()


def test_invalid_positions_are_counted(tmp_path: Path) -> None:
    shown = {
        "impression_id": [1] * 6,
        "query_id": ["t"] * 6,
        "doc_id": [*"uvwxyz"],
        "position": ["4294967296", "2147483647", "1", "2.5", "-3", "two"],
    }
    rows, found = codes(log_of(shown, {"impression_id": [1], "doc_id": ["w"]}), tmp_path)
    assert rows == [(1, "w", 1, 1)]
    assert found == {"not-a-position": 5}


@pytest.mark.parametrize("first", [0, 1])
def test_too_large_positions_are_counted(each_engine: str, first: int, tmp_path: Path) -> None:
    shown = {"impression_id": [1] * 4, "query_id": ["t"] * 4, "doc_id": [*"wxyz"]}
    shown |= {"position": [first, first + 1, 2**62, 2**63 - 1]}
    rows, found = codes(log_of(shown, {"impression_id": [1], "doc_id": ["w"]}), tmp_path)
    assert rows == [(1, "w", 1, 1), (1, "x", 2, 0)]
    assert found == {"not-a-position": 2}


@pytest.mark.parametrize(
    ("shift", "first", "message"),
    [
        (0, 0, r"first=0 says that positions count from 0, but no page view has a position 0, and 300 begin at 1"),
        (1, None, r"None of 300 page views begins at position 0 or 1"),
        (10, 1, r"None of 300 page views begins at position 0 or 1"),
        (1, 0, r"None of 300 page views begins at position 0\."),
    ],
)
def test_positions_that_do_not_begin_at_the_top_are_an_error(
    each_engine: str, shift: int, first: int | None, message: str, tmp_path: Path
) -> None:
    rows = simulated()
    shown = [row | {"position": row["position"] + shift} for row in rows]
    taps = [{"impression_id": row["impression_id"], "doc_id": row["doc_id"]} for row in rows if row["clicked"]]
    log = posbias.ClickLog.from_events(
        pa.Table.from_pylist(shown).drop_columns(["clicked"]), pa.Table.from_pylist(taps), first=first
    )
    with pytest.raises(posbias.PosbiasError, match=message):
        posbias.write_events(log, tmp_path / "log.parquet")


def test_files_are_replaced_only_on_request(each_engine: str, tmp_path: Path) -> None:
    log, path = log_of(SHOWN), tmp_path / "log.parquet"
    path.write_text("mine")
    with pytest.raises(posbias.PosbiasError, match=r"log.parquet' is there already. .* Add overwrite=True"):
        posbias.write_events(log, path)
    assert path.read_text() == "mine"
    posbias.write_events(log, path, overwrite=True)
    posbias.write_events(log, path, overwrite=True)
    assert pq.read_table(path).num_rows == 4
    with pytest.raises(posbias.LogError):
        posbias.write_events(join(pa.table(SHOWN).slice(0, 0), pa.table(TAPS)), path, overwrite=True)
    assert pq.read_table(path).num_rows == 4
    assert [file.name for file in tmp_path.iterdir()] == ["log.parquet"]


@pytest.mark.parametrize("output", ["in", "in/", ".", "in/log.parquet", "in/shown.parquet"])
def test_inputs_are_never_written_over(
    each_engine: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table(SHOWN), tmp_path / "in" / "shown.parquet")
    pq.write_table(pa.table(TAPS), tmp_path / "taps.parquet")
    monkeypatch.chdir(tmp_path)
    log = posbias.ClickLog.from_events(str(tmp_path / "in"), str(tmp_path / "taps.parquet"))
    with pytest.raises(posbias.PosbiasError, match="being read"):
        posbias.write_events(log, str(tmp_path / output), overwrite=True)
    assert pq.read_table(tmp_path / "in" / "shown.parquet").num_rows == 2
    assert pq.read_table(tmp_path / "taps.parquet").num_rows > 0


def test_remote_inputs_are_never_written_over() -> None:
    from posbias.engines.files import refuse_overwriting

    for output in ("s3://b/in", "s3://b/in/", "s3://b", "s3://b/in/log"):
        with pytest.raises(posbias.PosbiasError, match="being read"):
            refuse_overwriting(output, ["s3://b/in/shown.parquet" if output == "s3://b" else "s3://b/in"])
    refuse_overwriting("s3://b/inner", ["s3://b/in"])


def test_an_address_of_a_local_folder_is_guarded_like_its_path(tmp_path: Path) -> None:
    from posbias.engines.files import refuse_overwriting

    folder = tmp_path / "my in"
    folder.mkdir()
    pq.write_table(pa.table(SHOWN), folder / "part-0.parquet")
    for source in (folder.as_uri(), f"file:{folder}", pyarrow.dataset.dataset(folder)):
        for output in (folder, folder.as_uri(), tmp_path, folder / "part-0.parquet"):
            with pytest.raises(posbias.PosbiasError, match="being read"):
                refuse_overwriting(str(output), [source])
    refuse_overwriting(str(tmp_path / "my"), [folder.as_uri()])


@pytest.mark.server
def test_spark_replaces_no_input_and_no_folder_of_others(tmp_path: Path) -> None:
    session = sparks.session()
    pq.write_table(pa.table(TAPS), tmp_path / "taps.parquet")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("mine")
    log = log_of(SHOWN)
    out = tmp_path / "out"
    posbias.write_events(log, out, engine="spark")
    assert {"_SUCCESS", *(p.name for p in out.glob("part-*"))} <= set((out / "_posbias").read_text().split())

    def refused(impressions: Any, output: object, message: str) -> None:
        events = posbias.ClickLog.from_events(
            impressions, str(tmp_path / "taps.parquet"), sql="SELECT * EXCEPT (clicked) FROM source"
        )
        with pytest.raises(posbias.PosbiasError, match=message):
            posbias.write_events(events, str(output), overwrite=True, engine="spark")
        assert sum(pq.read_table(file).num_rows for file in out.glob("part-*")) == 4

    # As an address, as a frame that reads it, and as a view of it.
    session.read.parquet(str(out)).createOrReplaceTempView("shown_before")
    for source in (out.as_uri(), session.read.parquet(str(out)), "shown_before"):
        refused(source, out, "being read")
        refused(source, out.as_uri(), "being read")
    refused(str(tmp_path / "taps.parquet"), (tmp_path / "home").as_uri(), "did not write, such as 'letter.txt'")
    assert (tmp_path / "home" / "letter.txt").read_text() == "mine"


@pytest.mark.server
def test_spark_itself_replaces_only_a_folder_of_ours(tmp_path: Path) -> None:
    """On storage that only Spark reaches there is no rename: Spark replaces the folder, after the same check."""
    spark, events = posbias.Spark(sparks.session()), log_of(SHOWN).source
    address = (tmp_path / "out").as_uri()
    for _ in range(2):
        assert spark.write(events, address, silent, overwrite=True).rows == 4
    (tmp_path / "out" / "part-9.parquet").write_text("mine")
    with pytest.raises(posbias.PosbiasError, match=r"did not write, such as 'part-9\.parquet'"):
        spark.write(events, address, silent, overwrite=True)
    assert (tmp_path / "out" / "part-9.parquet").read_text() == "mine"


def test_output_name_without_parquet_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(posbias.PosbiasError, match=r"'.*log.csv' does not say: end its name with .parquet"):
        posbias.write_events(log_of(SHOWN), tmp_path / "log.csv")
    assert list(tmp_path.iterdir()) == []


def test_command_prints_written_rows_and_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table(SHOWN), "shown.parquet")
    pq.write_table(pa.table({"impression_id": [1, 1, 9], "doc_id": ["y", "y", "x"]}), "taps.parquet")
    words = ["events", "shown.parquet", "taps.parquet", "-o"]
    done = CliRunner().invoke(cli, [*words, "log.parquet"])
    assert done.exit_code == 0
    assert "4 rows of 2 page views with 1 clicks written to log.parquet" in done.stderr
    assert "Note: 1 of 3 clicks match no impression: 0 are on known page views that did not show " in " ".join(
        done.stderr.split()
    )
    told = json.loads(CliRunner().invoke(cli, [*words, "other.parquet", "--json"]).stdout)
    assert {f["code"]: f["count"] for f in told.pop("findings")} == {"double-clicks": 1, "click-without-impression": 1}
    columns = ["query_id", "doc_id", "ranker", "position", "clicked", "impression_id"]
    assert told == {"output": "other.parquet", "rows": 4, "page_views": 2, "clicks": 1, "columns": columns}
    for output, message in (
        ("log.parquet", "is there already. Name another file, or replace it. Add --overwrite"),
        ("taps.parquet", "is the file that is being read"),
        ("/dev/null", "'/dev/null' is a device, which is not replaced by a file. Choose another path."),
        ("/dev", "'/dev' is a folder. Name the file to write in it."),
    ):
        failed = CliRunner().invoke(cli, [*words, output])
        assert failed.exit_code == 2
        assert message in failed.stderr
    missing = CliRunner().invoke(cli, [*words, "x.parquet", "--click-doc", "sku"])
    assert missing.exit_code == 2
    assert "Columns found: 'impression_id', 'doc_id'. Name the right ones. Add --click-doc doc_id" in missing.stderr


def test_hostile_names_are_kept(each_engine: str, tmp_path: Path) -> None:
    names = ["it's", 'my "name"', "select", "c_0", "v", "a.b", "ü 🚀", "app"]
    shown = SHOWN | {name: [f"{name};--", None] for name in names} | {"nested": [{"a": [1]}, None]}
    out, _ = written(log_of({name: values + values[:1] for name, values in shown.items()}), tmp_path)
    assert {name: {row[name] for row in out if row["impression_id"] == 1} for name in names} == {
        name: {f"{name};--"} for name in names
    }
    assert len(out) == 4
