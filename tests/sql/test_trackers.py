"""Printed queries over trackers' events: run on DuckDB with events of that schema, and parsed in every dialect.

What a warehouse would run is translated by sqlglot and run as well: the log is the one that the events were made from.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from click.testing import CliRunner

import posbias
from posbias.cli import cli
from posbias.sql.trackers import TRACKERS
from tests.engines.test_events import simulated
from tests.support import sparks
from tests.support.logs import Row

ACTION = "unstruct_event_com_snowplowanalytics_snowplow_ecommerce_snowplow_ecommerce_action_1"
PRODUCTS = "contexts_com_snowplowanalytics_snowplow_ecommerce_product_1"
WEB_PAGE = "contexts_com_snowplowanalytics_snowplow_web_page_1"
KEYS = ("query_id", "doc_id", "ranker", "position", "clicked")


def pages_of(rows: list[Row]) -> list[list[Row]]:
    pages: dict[Any, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["position"]):
        pages.setdefault(row["impression_id"], []).append(row)
    return list(pages.values())


def keyed(rows: list[Row]) -> list[tuple[str, ...]]:
    """Rows with each page view as what it showed: a warehouse gives it an id of its own."""
    pages: dict[Any, list[tuple[str, ...]]] = {}
    for row in rows:
        pages.setdefault(row["impression_id"], []).append(tuple(str(row[name]) for name in KEYS))
    return sorted(str(sorted(page)) for page in pages.values())


def parameters(**values: Any) -> list[Row]:
    return [
        {
            "key": key,
            "value": {
                "string_value": value if isinstance(value, str) else None,
                "int_value": value if isinstance(value, int) else None,
                "float_value": None,
                "double_value": value if isinstance(value, float) else None,
            },
        }
        for key, value in values.items()
    ]


def ga4_events(
    rows: list[Row], *, numbered: bool = True, page: bool = False, zero_share: float | None = None
) -> pa.Table:
    """Views of lists and clicks in them: one stream counts from 0, the other from 1; clicks come twice.

    With `zero_share` there is one stream, which counts from 0 on this share of its pages.
    """
    chance = random.Random(5)
    events = []
    moment = 1_000_000
    for number, shown in enumerate(pages_of(rows)):
        app = number % 2 if zero_share is None else int(number % 20 >= 20 * zero_share)
        own = {"view": f"p{number}"} if page else {}
        told = parameters(
            ga_session_id=7, search_term=f" Q{shown[0]['query_id']} ".upper(), variant=shown[0]["ranker"], **own
        )
        items = [
            {
                "item_id": str(row["doc_id"]),
                "item_name": "x",
                "item_list_id": "search",
                "item_list_name": None,
                "item_list_index": str(row["position"] - 1 + app) if numbered else "(not set)",
            }
            for row in shown
        ]
        # The same user sees the same list again later: a click is on the last view before it.
        base = {
            "user_pseudo_id": f"u{number % 5}",
            "stream_id": f"s{app if zero_share is None else ''}",
            "event_date": "20260101",
        }
        base |= {"device": {"category": "phone"}, "event_params": told}
        moment += 1000
        events.append(base | {"event_name": "view_item_list", "event_timestamp": moment, "items": items})
        for row, item in zip(shown, items, strict=True):
            if row["clicked"]:
                for _ in range(2):
                    moment += 1
                    click = {"event_name": "select_item", "event_timestamp": moment, "items": [item]}
                    events.append(base | click)
    events.append(events[0])
    stray = {"event_name": "select_item", "items": [events[0]["items"][0]], "event_timestamp": 1}
    events.append(events[0] | stray)
    events.append(events[0] | {"event_name": "page_view", "items": []})
    chance.shuffle(events)
    return pa.Table.from_pylist(events)


def snowplow_events(rows: list[Row], zero_share: float | None = None) -> pa.Table:
    """Views of lists and clicks in them: one application counts from 0, the other from 1; a page has a second list."""
    chance = random.Random(5)
    events = []
    for number, shown in enumerate(pages_of(rows)):
        zero = number % 2 if zero_share is None else int(number % 20 < 20 * zero_share)
        products = [{"id": str(row["doc_id"]), "position": row["position"] - zero} for row in shown]
        base = {
            "app_id": f"a{zero if zero_share is None else ''}",
            WEB_PAGE: [{"id": f"page{number}"}],
            "variant": shown[0]["ranker"],
        }
        base |= {"page_urlquery": f"Q{shown[0]['query_id']}"}
        events.append(base | {ACTION: {"type": "list_view", "name": "results"}, PRODUCTS: products})
        for row, product in zip(shown, products, strict=True):
            if row["clicked"]:
                events += [base | {ACTION: {"type": "list_click", "name": "results"}, PRODUCTS: [product]}] * 2
    other = {ACTION: {"type": "list_click", "name": "recommended"}, PRODUCTS: events[0][PRODUCTS][:1]}
    events += [events[0], events[0] | other, events[0] | {ACTION: {"type": "product_view", "name": None}}]
    chance.shuffle(events)
    return pa.Table.from_pylist(events)


def run(sql: str, events: pa.Table) -> list[Row]:
    with duckdb.connect() as con:
        con.register("tracked", events)
        return con.sql(sql).to_arrow_table().to_pylist()


def translated(sql: str, dialect: str) -> str:
    """What a warehouse would run, as DuckDB's SQL."""
    # An offset of BigQuery counts from 0, and what sqlglot makes of it in DuckDB from 1.
    assert "CAST(place + 1 AS INT64)" in sql
    counted = sql.replace("CAST(place + 1 AS INT64)", "CAST(place AS INT64)")
    (statement,) = sqlglot.transpile(counted, read=dialect, write="duckdb", error_level=sqlglot.ErrorLevel.RAISE)
    return statement


def expected(rows: list[Row]) -> list[tuple[str, ...]]:
    return keyed([row | {"query_id": f"q{row['query_id']}"} for row in rows])


GA4: dict[str, Callable[[list[Row]], pa.Table]] = {
    "numbered": ga4_events,
    "in order": lambda rows: ga4_events(rows, numbered=False),
    "with a page's own id": lambda rows: ga4_events(rows, page=True),
}


@pytest.mark.parametrize("dialect", TRACKERS["ga4"])
@pytest.mark.parametrize("kind", GA4)
def test_the_events_of_ga4_give_back_their_log(kind: str, dialect: str) -> None:
    rows = simulated()
    impression = "view" if "own" in kind else None
    sql = posbias.events_sql("ga4", "tracked", dialect=dialect, ranker="variant", impression=impression)
    found = run(sql if dialect == "duckdb" else translated(sql, dialect), GA4[kind](rows))
    assert keyed(found) == expected(rows)
    assert {row["device"] for row in found} == {"phone"}


@pytest.mark.parametrize("term", [None, " "])
@pytest.mark.parametrize("dialect", TRACKERS["ga4"])
def test_not_set_is_neither_a_list_nor_an_item(dialect: str, term: str | None) -> None:
    """Lists without an id are known by their names; lists without a name and a query are left out."""
    told = parameters(ga_session_id=7, variant=1.5, **({} if term is None else {"search_term": term}))
    base = {"user_pseudo_id": "u", "stream_id": "s", "event_date": "20260101", "device": {"category": "phone"}}
    base |= {"event_params": told, "event_timestamp": 5}

    def item(doc: str, name: str, place: int) -> Row:
        return {"item_id": doc, "item_list_id": "(not set)", "item_list_name": name, "item_list_index": str(place)}

    shown = [item("x", "new", 0), item("y", "new", 1), item("(not set)", "new", 2)]
    more = [item("y", "sale", 0), item("z", "(not set)", 0)]
    views = [base | {"event_name": "view_item_list", "items": items} for items in (shown, more)]
    events = pa.Table.from_pylist([*views, base | {"event_name": "select_item", "items": [item("y", "sale", 0)]}])
    sql = posbias.events_sql("ga4", "tracked", dialect=dialect, ranker="variant")
    found = run(sql if dialect == "duckdb" else translated(sql, dialect), events)
    assert sorted((row["query_id"], row["doc_id"], row["position"], row["clicked"]) for row in found) == [
        ("new", "x", 1, 0),
        ("new", "y", 2, 0),
        ("sale", "y", 1, 1),
    ]
    assert len({row["impression_id"] for row in found}) == 2
    # A parameter that reads like a fraction is exported as one.
    assert {row["ranker"] for row in found} == {"1.5"}


@pytest.mark.parametrize("dialect", ["bigquery", "duckdb"])
def test_the_events_of_snowplow_give_back_their_log(dialect: str) -> None:
    rows = simulated()
    sql = posbias.events_sql("snowplow", "tracked", dialect=dialect, ranker="variant")
    found = run(sql if dialect == "duckdb" else translated(sql, dialect), snowplow_events(rows))
    assert keyed(found) == expected(rows)


def with_strays(events: pa.Table, items: str, renumber: Callable[[Row], Row]) -> pa.Table:
    """One more page view of each application that counts from 1, whose first result has a stray 0."""
    rows = events.to_pylist()
    views = [row for row in rows if row.get("event_name", "view_item_list") == "view_item_list"]
    # The first of an application stands for all: those that count from 1 have nothing at 0.
    stray = next(row for row in views if len(row[items]) > 1 and renumber(row[items][0]) != row[items][0])
    return pa.Table.from_pylist(
        [*rows, stray | {items: [renumber(stray[items][0]), *stray[items][1:]]} | _elsewhere(stray)]
    )


def _elsewhere(event: Row) -> Row:
    """Return the changes that put an event on another page view."""
    return {"event_timestamp": 9_000_000} if "event_timestamp" in event else {WEB_PAGE: [{"id": "astray"}]}


@pytest.mark.parametrize("dialect", ["bigquery", "duckdb"])
@pytest.mark.parametrize("preset", TRACKERS)
def test_a_stray_position_0_does_not_make_an_application_zero_based(preset: str, dialect: str) -> None:
    rows = simulated()
    sql = posbias.events_sql(preset, "tracked", dialect=dialect, ranker="variant")
    if preset == "ga4":
        events = ga4_events(rows)
        strayed = with_strays(
            events,
            "items",
            lambda item: item | {"item_list_index": "0" if item["item_list_index"] == "1" else item["item_list_index"]},
        )
    else:
        events = snowplow_events(rows)
        strayed = with_strays(events, PRODUCTS, lambda item: item | {"position": min(item["position"], 0)})
    runnable = sql if dialect == "duckdb" else translated(sql, dialect)
    before, after = run(runnable, events), run(runnable, strayed)
    known = {row["impression_id"] for row in before}
    assert keyed([row for row in after if row["impression_id"] in known]) == expected(rows)
    # Of the new page view the result at 0 is left out, and the others keep their positions.
    added = [row["position"] for row in after if row["impression_id"] not in known]
    assert added
    assert min(added) == 2


@pytest.mark.parametrize("dialect", ["bigquery", "duckdb"])
@pytest.mark.parametrize("preset", TRACKERS)
@pytest.mark.parametrize("share", [0.45, 0.55])
def test_an_application_that_counts_some_pages_from_0_loses_no_row(preset: str, dialect: str, share: float) -> None:
    rows = simulated()
    make = ga4_events if preset == "ga4" else snowplow_events
    events = make(rows, zero_share=share)
    sql = posbias.events_sql(preset, "tracked", dialect=dialect, ranker="variant")
    assert keyed(run(sql if dialect == "duckdb" else translated(sql, dialect), events)) == expected(rows)


@pytest.mark.parametrize("dialect", TRACKERS["ga4"])
def test_clicks_that_name_their_list_by_its_name_are_kept(dialect: str) -> None:
    rows = simulated()
    events = ga4_events(rows).to_pylist()
    for event in events:
        click = event["event_name"] == "select_item"
        named = {"item_list_name": "Search results"} | ({"item_list_id": None} if click else {})
        event["items"] = [item | named for item in event["items"]]
    sql = posbias.events_sql("ga4", "tracked", dialect=dialect, ranker="variant")
    found = run(sql if dialect == "duckdb" else translated(sql, dialect), pa.Table.from_pylist(events))
    assert keyed(found) == expected(rows)


@pytest.mark.parametrize("preset", TRACKERS)
def test_the_printed_query_counts_what_it_leaves_out(preset: str) -> None:
    rows = simulated()
    known = ga4_events(rows) if preset == "ga4" else snowplow_events(rows)
    sql = posbias.events_sql(preset, "tracked", dialect="duckdb", ranker="variant")
    steps, rest = sql.split("-- Each result, clicked or not.\n")
    count = steps + "\n".join(line.removeprefix("-- ") for line in rest[rest.index("-- SELECT") :].splitlines())
    [found] = run(count, known)
    clicked = sum(row["clicked"] for row in rows)
    assert (found["rows_of_the_log"], found["clicked_rows_of_the_log"]) == (len(rows), clicked)
    # A page view came twice, and so did each click; one click is on nothing that was shown.
    assert found["items_shown"] > found["rows_of_the_log"]
    assert found["clicks"] == 2 * clicked + 1


@pytest.mark.parametrize("dialect", TRACKERS["ga4"])
@pytest.mark.parametrize("lacks", ["user", "session"])
def test_events_without_a_user_or_session_are_left_out(lacks: str, dialect: str) -> None:
    rows = simulated()
    nobody = []
    for row in ga4_events(rows, page=True).to_pylist():
        if lacks == "user":
            nobody.append(row | {"user_pseudo_id": None, "event_timestamp": row["event_timestamp"] + 1})
        else:
            kept = [each for each in row["event_params"] if each["key"] != "ga_session_id"]
            nobody.append(row | {"event_params": kept, "event_timestamp": row["event_timestamp"] + 1})
    known = ga4_events(rows)
    events = pa.Table.from_pylist([*known.to_pylist(), *nobody], schema=known.schema)

    def found(impression: str | None, table: pa.Table) -> list[Row]:
        sql = posbias.events_sql("ga4", "tracked", dialect=dialect, ranker="variant", impression=impression)
        assert "Events without a user or session" in sql
        return run(sql if dialect == "duckdb" else translated(sql, dialect), table)

    assert keyed(found(None, events)) == expected(rows)
    # A parameter of their own tells page views apart, whoever saw them.
    assert keyed(found("view", pa.Table.from_pylist(nobody, schema=known.schema))) == expected(rows)


@pytest.mark.parametrize("preset", TRACKERS)
def test_page_views_without_a_ranker_are_left_out_and_the_query_says_so(preset: str) -> None:
    rows = simulated()
    sql = posbias.events_sql(preset, "tracked", dialect="duckdb", ranker="variant")
    assert "Page views with no ranker, or neither a query nor a list, are left out only here" in sql
    unnamed = posbias.events_sql(preset, "tracked", dialect="duckdb")
    assert "ranker" not in unnamed
    assert unnamed == posbias.events_sql(preset, "tracked", dialect="duckdb", ranker="none")
    known = ga4_events(rows) if preset == "ga4" else snowplow_events(rows)
    unranked = [
        row
        | ({"event_params": [p for p in row["event_params"] if p["key"] != "variant"]} if preset == "ga4" else {})
        | ({"event_timestamp": row["event_timestamp"] + 5_000_000} if preset == "ga4" else {"variant": None})
        | ({} if preset == "ga4" else {WEB_PAGE: [{"id": f"again {row[WEB_PAGE][0]['id']}"}]})
        for row in known.to_pylist()
    ]
    found = run(sql, pa.Table.from_pylist([*known.to_pylist(), *unranked], schema=known.schema))
    assert len(found) == len(rows)
    assert {row["ranker"] for row in found} == {row["ranker"] for row in rows}


@pytest.mark.parametrize("dialect", TRACKERS["ga4"])
@pytest.mark.parametrize("lacks", ["variant", "search_term", "position"])
def test_a_click_belongs_to_the_last_view_even_if_that_is_left_out(lacks: str, dialect: str) -> None:
    """The same list twice, the second time without a value that a page view needs: its click goes nowhere else."""
    told = {"ga_session_id": 1, "search_term": "t", "variant": "a"}

    def event(name: str, moment: int, order: str, params: Row, first: int = 1) -> Row:
        items = [
            {"item_id": doc, "item_list_id": None, "item_list_name": None, "item_list_index": str(place)}
            for place, doc in zip((first, 2), order, strict=False)
        ]
        base = {"user_pseudo_id": "u", "stream_id": "s", "event_date": "20260101", "device": {"category": "phone"}}
        times = {"event_name": name, "event_timestamp": moment}
        return base | times | {"event_params": parameters(**params), "items": items}

    less = {key: value for key, value in told.items() if key != lacks}
    events = [
        event("view_item_list", 5, "XY", told | {"ga_session_id": 2}),
        event("view_item_list", 10, "XY", told),
        event("view_item_list", 20, "XY" if lacks == "position" else "YX", less, int(lacks != "position")),
        event("select_item", 30, "X", told),
    ]
    sql = posbias.events_sql("ga4", "tracked", dialect=dialect, ranker="variant", query="search_term")
    log = run(sql if dialect == "duckdb" else translated(sql, dialect), pa.Table.from_pylist(events))
    early = [row["clicked"] for row in log if "|1|" in row["impression_id"] and row["impression_id"].endswith("|10")]
    assert early == [0, 0], log
    assert sum(row["clicked"] for row in log) == 0


def test_a_product_at_two_positions_is_left_out_even_if_one_view_has_no_ranker() -> None:
    """Two views of one list on one page, of which one names no ranker: a click does not tell the position."""
    page = {"app_id": "a", WEB_PAGE: [{"id": "p"}], "page_urlquery": "q"}
    view, click = {"type": "list_view", "name": "l"}, {"type": "list_click", "name": "l"}
    events = [
        page | {"variant": "a", ACTION: view, PRODUCTS: [{"id": "X", "position": 1}, {"id": "Y", "position": 2}]},
        page | {"variant": None, ACTION: view, PRODUCTS: [{"id": "X", "position": 3}, {"id": "Y", "position": 2}]},
        page | {"variant": None, ACTION: click, PRODUCTS: [{"id": "X", "position": 3}]},
    ]
    log = run(
        posbias.events_sql("snowplow", "tracked", dialect="duckdb", ranker="variant"), pa.Table.from_pylist(events)
    )
    assert [(row["doc_id"], row["position"], row["clicked"]) for row in log] == [("Y", 2, 0)]


@pytest.mark.server
def test_the_log_of_snowplow_on_spark() -> None:
    rows = simulated()
    sparks.session().createDataFrame(snowplow_events(rows)).createOrReplaceTempView("tracked")
    sql = posbias.events_sql("snowplow", "tracked", dialect="databricks", ranker="variant")
    assert keyed(sparks.session().sql(sql).toArrow().to_pylist()) == expected(rows)


@pytest.mark.parametrize(("preset", "dialect"), [(p, d) for p, dialects in TRACKERS.items() for d in dialects])
def test_sqlglot_parses_every_dialect(preset: str, dialect: str) -> None:
    for options in ({}, {"ranker": "my `arm`", "query": "it's", "impression": 'a "b"'}):
        sql = posbias.events_sql(preset, "shop.events", dialect=dialect, **options)
        statements = sqlglot.parse(sql, dialect=dialect, error_level=sqlglot.ErrorLevel.RAISE)
        assert len(statements) == 1
        assert statements[0] is not None
        names = [column.alias_or_name for column in statements[0].selects]
        assert names[:2] == ["query_id", "doc_id"]
        assert ("ranker" in names) == bool(options)


def test_the_command_prints_the_query() -> None:
    done = CliRunner().invoke(cli, ["events", "p.analytics_1.events_*", "--preset", "ga4", "--ranker", "variant"])
    assert done.exit_code == 0
    assert done.stdout == posbias.events_sql("ga4", "p.analytics_1.events_*", ranker="variant")
    assert "FROM `p.analytics_1.events_*` t" in done.stdout
    wrong = CliRunner().invoke(cli, ["events", "t", "clicks.csv", "--preset", "ga4", "-o", "x.parquet", "--doc", "d"])
    assert wrong.exit_code == 2
    assert "Leave out --output, --doc, CLICKS" in wrong.stderr
    assert CliRunner().invoke(cli, ["events", "t", "--preset", "ga4", "--dialect", "snowflake"]).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ga5", "t"), "preset 'ga5' is not known"),
        (("ga4", "t", "snowflake"), "ga4 is not printed as 'snowflake'"),
        (("ga4", " "), "table=' ' must be a text"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: tuple[str, ...], message: str) -> None:
    preset, table, *dialect = arguments
    with pytest.raises(posbias.LogError, match=message):
        posbias.events_sql(preset, table, dialect=dialect[0] if dialect else None)
