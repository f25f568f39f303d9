"""Queries that turn the events of trackers into impressions and clicks: GA4, Snowplow and UBI.

`ga4` and `snowplow` are printed: one query makes a click log of the events in a warehouse, and posbias does not open
the table. `Ubi` (User Behavior Insights of OpenSearch) is run: its steps turn the two exported tables into what was
shown and what was clicked, and `sql/events.py` joins these to a log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from posbias._text import listed
from posbias.findings import UnusableLogError, unusable
from posbias.logs.schema import Columns, EventSchema
from posbias.sql.dialects import DIALECTS, Dialect, Warehouse
from posbias.sql.plan import Step, render

# The value of a parameter of a GA4 event as text, by dialect.
_PARAMETER = {
    "bigquery": "(SELECT COALESCE(p.value.string_value, CAST(p.value.int_value AS STRING), "
    "CAST(p.value.double_value AS STRING))\n"
    "    FROM UNNEST(t.event_params) AS p WHERE p.key = {key} LIMIT 1)",
    "duckdb": "(SELECT COALESCE(p.value.string_value, CAST(p.value.int_value AS VARCHAR), "
    "CAST(p.value.double_value AS VARCHAR))\n"
    "    FROM (SELECT UNNEST(t.event_params) AS p) s WHERE p.key = {key} LIMIT 1)",
}
# At most one page view in this many may begin at 1 by accident in an application that counts from 0.
_PAGE_VIEWS_PER_ACCIDENT = 100
# GA4 exports this for a value that a site does not send.
_NOT_SET = "'(not set)'"
_WEB_PAGE = "contexts_com_snowplowanalytics_snowplow_web_page_1"
_ACTION = "unstruct_event_com_snowplowanalytics_snowplow_ecommerce_snowplow_ecommerce_action_1"
_PRODUCTS = "contexts_com_snowplowanalytics_snowplow_ecommerce_product_1"
# The query is the search term, or the name of the list if there is no term. Without both it is NULL, because otherwise
# all such page views would be of one query.
_QUERY_OR_LIST = "NULLIF(COALESCE(search_term, list), '') AS query"
# A bulk file of OpenSearch has a line with one of these keys before each document; a search result has the document in
# the field `_source`.
_BULK_ACTIONS = ("index", "create", "update", "delete")
_SOURCE = "_source"
_POSITION = ("event_attributes", "position", "ordinal")
_DOCUMENT = ("event_attributes", "object", "object_id")
# How many different query_attributes to read for the keys that an error message names.
_SAMPLED_ATTRIBUTES = 1000


def ga4(dialect: str, table: str, query: str, ranker: str | None, impression: str | None) -> str:
    """Return the query that makes a log of GA4's events `view_item_list` and `select_item`.

    Arguments:
        dialect (str): "bigquery" or "duckdb".
        table (str): the table of events, as SQL.
        query, ranker, impression (str or None): the parameters of an event that hold the query, the ranker and the page
            view. Without an impression a page view is a session, a list and a time.
    """
    d = DIALECTS[dialect]

    def parameter(key: str) -> str:
        return _PARAMETER[dialect].format(key=d.literal(key))

    def item_field(name: str) -> str:
        return f"NULLIF({d.item}.{name}, {_NOT_SET})"

    page_id = parameter(impression) if impression else d.cast("NULL", "VARCHAR")
    moment = f"COALESCE(page_id, {d.as_text('event_time')})"
    known = "visitor IS NOT NULL AND session_id IS NOT NULL" + (" OR page_id IS NOT NULL" if impression else "")
    columns = [
        "t.event_name = 'select_item' AS is_click",
        "t.event_timestamp AS event_time",
        "t.stream_id AS application",
        "t.user_pseudo_id AS visitor",
        f"{parameter('ga_session_id')} AS session_id",
        f"COALESCE({item_field('item_list_id')}, {item_field('item_list_name')}, '') AS list",
        f"{item_field('item_list_name')} AS list_name",
        f"{page_id} AS page_id",
        f"{_query_text(parameter(query))} AS search_term",
        *([f"{parameter(ranker)} AS ranker"] if ranker else []),
        f"{item_field('item_id')} AS doc",
        # If a site does not number its items, this is not a number.
        f"{d.try_cast(f'{d.item}.item_list_index', 'BIGINT')} AS item_index",
        f"{d.cast(d.place, 'BIGINT')} AS place",
        "t.device.category AS device",
        "t.event_date AS event_date",
    ]
    page = "CONCAT(session, '|', list, '|', COALESCE(page_id, {moment}))"
    ranked = ", ranker" if ranker else ""
    return _printed(
        d,
        "GA4: items shown in a list (view_item_list) and clicked (select_item).",
        [
            Step(
                "items",
                "One row for each item of an event.",
                "SELECT\n  " + ",\n  ".join(columns) + f"\nFROM {d.unnest(table, 't.items')}\n"
                "WHERE t.event_name IN ('view_item_list', 'select_item')",
            ),
            Step(
                "with_session",
                "Events without a user or session, as before consent, are left out: it is unknown whose clicks they "
                f"are{', unless a parameter names their page view' if impression else ''}.",
                "SELECT s.*, CONCAT(COALESCE(visitor, ''), '|', COALESCE(session_id, '')) AS session\n"
                f"FROM items s\nWHERE {known}",
            ),
            *_position_steps("with_session", ["session", "list", moment]),
            Step(
                "shown",
                "Items shown. GA4 has no id of a page view: it is the session, the list and the time, or a parameter.",
                f"SELECT {page.format(moment=d.as_text('event_time'))} AS page_view, session, list, list_name, "
                f"page_id, event_time,\n  {_QUERY_OR_LIST}{ranked}, doc, position, device, event_date\n"
                "FROM positioned\nWHERE NOT is_click AND doc IS NOT NULL",
            ),
            Step(
                "attributed",
                "A click belongs to the last page view before it that showed its item in the same list and session. A "
                "click may give only the name of a list, and its page view the id too.",
                "SELECT s.page_view, s.doc, ROW_NUMBER() OVER (\n"
                "    PARTITION BY c.session, c.list, c.doc, c.page_id, c.event_time\n"
                "    ORDER BY CASE WHEN s.list = c.list THEN 0 ELSE 1 END, s.event_time DESC) AS choice\n"
                "FROM positioned c\nJOIN shown s ON s.session = c.session AND s.doc = c.doc\n"
                "  AND (s.list = c.list OR s.list_name = c.list_name)\n"
                "  AND COALESCE(s.page_id, '') = COALESCE(c.page_id, '') AND s.event_time <= c.event_time\n"
                "WHERE c.is_click",
            ),
            Step(
                "clicked",
                "Each clicked result once, however often it was clicked.",
                "SELECT DISTINCT page_view, doc\nFROM attributed\nWHERE choice = 1",
            ),
            *_log_steps(["device", "event_date"], bool(ranker)),
        ],
    )


def _query_text(text: str) -> str:
    """Return SQL for the text of a query in lower case, NULL where it is empty."""
    return f"NULLIF(LOWER(TRIM({text})), '')"


def _printed(d: Warehouse, title: str, steps: list[Step]) -> str:
    """Return a query with a title, and with a comment that holds the query of what it leaves out."""
    head = (
        f"-- {title}\n-- The result is a click log. Keep it as a table and print its harvest with posbias sql, or "
        "export it for posbias check.\n"
    )
    in_log = "clicked c JOIN deduplicated s ON s.page_view = c.page_view AND s.doc = c.doc"
    counts = {
        "items_shown": "items WHERE NOT is_click",
        "items_with_ids": "shown",
        "rows_of_the_log": "deduplicated",
        "clicks": "items WHERE is_click",
        "clicked_results": "clicked",
        "clicked_rows_of_the_log": in_log,
    }
    tail = "\n".join(
        f"--   (SELECT COUNT(*) FROM {source}) AS {name}," for name, source in counts.items()
    ).removesuffix(",")
    what = (
        "-- To count what is left out, put this in place of the last SELECT. Events that are repeated count more than "
        "once among items and clicks.\n-- SELECT\n"
    )
    return f"{head}{render(steps)}{d.query_suffix}\n\n{what}{tail}\n"


def _position_steps(source: str, view: list[str]) -> list[Step]:
    """Return the steps that end in `positioned`: items with positions that count from 1.

    Some applications number items from 0, and some do so on a part of their pages. So each page view that has the
    numbers 0 and 1 counts from 0. One that lacks a number does so only if nearly all page views of its application do.
    `view` are the columns that identify a page view.
    """
    at_zero, at_one = (f"COUNT(CASE WHEN lowest = {place} THEN 1 END)" for place in (0, 1))
    keys = ", ".join(["application", *view])
    numbers = [
        f"MAX(CASE WHEN NOT is_click AND item_index = {n} THEN 1 END) OVER (PARTITION BY {keys})" for n in (0, 1)
    ]
    return [
        Step(
            "first_numbers",
            "The smallest number of an item in each page view.",
            f"SELECT application, MIN(item_index) AS lowest\nFROM {source}\nWHERE NOT is_click AND item_index >= 0\n"
            f"GROUP BY {keys}",
        ),
        Step(
            "zero_based",
            f"Applications that count from 0: at most one page view in {_PAGE_VIEWS_PER_ACCIDENT} begins at 1.",
            "SELECT COALESCE(application, '') AS application\nFROM first_numbers\nGROUP BY COALESCE(application, '')\n"
            f"HAVING {at_zero} >= {_PAGE_VIEWS_PER_ACCIDENT} * {at_one} AND {at_zero} > 0",
        ),
        Step(
            "numbered",
            "Whether the page view of an item has the numbers 0 and 1.",
            f"SELECT s.*, {numbers[0]} AS has_zero,\n  {numbers[1]} AS has_one\nFROM {source} s",
        ),
        Step(
            "positioned",
            "Positions from 1, by the number of an item, or by its place in the event if it has no number.",
            "SELECT s.*,\n  CASE WHEN item_index >= 0 THEN item_index\n"
            "      + CASE WHEN has_zero + has_one = 2 OR z.application IS NOT NULL THEN 1 ELSE 0 END\n"
            "    ELSE place END AS position\nFROM numbered s\n"
            "LEFT JOIN zero_based z ON COALESCE(s.application, '') = z.application",
        ),
    ]


def _log_steps(carried: list[str], ranked: bool) -> list[Step]:
    """Return the last steps, from `shown` and `clicked` to each result of a page view once, clicked or not."""
    keys = ["query", *(["ranker"] if ranked else []), *carried]
    columns = [
        "s.query AS query_id",
        "s.doc AS doc_id",
        *(["s.ranker"] if ranked else []),
        "s.position",
        "CASE WHEN c.page_view IS NULL THEN 0 ELSE 1 END AS clicked",
        "s.page_view AS impression_id",
        *(f"s.{name}" for name in carried),
    ]
    single = ["position", "query", *(["ranker"] if ranked else [])]
    missing = "no ranker, or neither a query nor a list," if ranked else "neither a query nor a list"
    return [
        Step(
            "deduplicated",
            "Each result of a page view once, without documents at two positions: a click does not tell which. "
            f"Page views with {missing} are left out only here, after they have received their clicks.",
            f"SELECT page_view, doc, MIN(position) AS position, {', '.join(f'MIN({key}) AS {key}' for key in keys)}\n"
            "FROM shown\nGROUP BY page_view, doc\nHAVING MIN(position) >= 1 AND "
            + " AND ".join(f"MIN({name}) = MAX({name})" for name in single),
        ),
        Step(
            "answer",
            "Each result, clicked or not.",
            f"SELECT {', '.join(columns)}\nFROM deduplicated s\n"
            "LEFT JOIN clicked c ON s.page_view = c.page_view AND s.doc = c.doc",
        ),
    ]


def snowplow(dialect: str, table: str, query: str, ranker: str | None, impression: str | None) -> str:
    """Return the query that makes a log of Snowplow's e-commerce actions `list_view` and `list_click`.

    Arguments:
        dialect (str): "snowflake", "bigquery", "databricks" or "duckdb".
        table (str): the table of events, as SQL.
        query, ranker, impression (str or None): the columns of the events that hold the query, the ranker and the page
            view. Without an impression it is the id of the web page.
    """
    d, access = DIALECTS[dialect], _ACCESS[dialect]
    kind, name = (access.field.format(column=_ACTION, name=part) for part in ("type", "name"))
    page = f"t.{d.quote(impression)}" if impression else access.first.format(column=_WEB_PAGE, name="id")
    product, position = (access.element.format(item=d.item, name=part) for part in ("id", "position"))
    columns = [
        f"{kind} = 'list_click' AS is_click",
        "t.app_id AS application",
        f"COALESCE({name}, '') AS list",
        f"{page} AS page_id",
        f"{_query_text(d.as_text(f't.{d.quote(query)}'))} AS search_term",
        *([f"{d.as_text(f't.{d.quote(ranker)}')} AS ranker"] if ranker else []),
        f"{d.as_text(product)} AS doc",
        f"{d.try_cast(position, 'BIGINT')} AS item_index",
        f"{d.cast(d.place, 'BIGINT')} AS place",
    ]
    ranked = ", ranker" if ranker else ""
    return _printed(
        d,
        "Snowplow e-commerce: products shown in a list (list_view) and clicked (list_click).",
        [
            Step(
                "items",
                "One row for each product of an event.",
                "SELECT\n  " + ",\n  ".join(columns) + f"\nFROM {d.unnest(table, f't.{_PRODUCTS}')}\n"
                f"WHERE {kind} IN ('list_view', 'list_click')",
            ),
            *_position_steps("items", ["page_id", "list"]),
            Step(
                "shown",
                "Products shown. Each list of a web page counts as a page view.",
                f"SELECT CONCAT(page_id, '|', list) AS page_view, {_QUERY_OR_LIST}{ranked},\n"
                "  doc, position, application\nFROM positioned\n"
                "WHERE NOT is_click AND doc IS NOT NULL AND page_id IS NOT NULL",
            ),
            Step(
                "clicked",
                "Each clicked result once, however often it was clicked.",
                "SELECT DISTINCT CONCAT(page_id, '|', list) AS page_view, doc\nFROM positioned\nWHERE is_click",
            ),
            *_log_steps(["application"], bool(ranker)),
        ],
    )


@dataclass(frozen=True)
class _Access:
    """How a warehouse reads Snowplow's nested columns.

    Attributes:
        field (str): a field of a structure.
        first (str): a field of the first element of an array.
        element (str): a field of an unnested element.
    """

    field: str = "t.{column}.{name}"
    first: str = "t.{column}[0].{name}"
    element: str = "{item}.{name}"


_ACCESS: Mapping[str, _Access] = {
    "bigquery": _Access(first="t.{column}[SAFE_OFFSET(0)].{name}"),
    "snowflake": _Access("t.{column}:{name}::VARCHAR", "t.{column}[0]:{name}::VARCHAR", "{item}:{name}::VARCHAR"),
    "databricks": _Access(),
    "duckdb": _Access(first="t.{column}[1].{name}"),
}


@dataclass(frozen=True)
class Ubi:
    """The tables of User Behavior Insights: `ubi_queries` (opened as `impressions`) and `ubi_events` (as `clicks`).

    A `query_id` of UBI is one request, so it is the page view. The query is the text `user_query`.

    Arguments:
        dialect (Dialect): the SQL to write.
        queries (Columns): the columns of ubi_queries.
        events (Columns): the columns of ubi_events.
        ranker (str or None, default None): a column of ubi_queries or ubi_events, or a key of `query_attributes`.
    """

    dialect: Dialect
    queries: Columns
    events: Columns
    ranker: str | None = None

    def __post_init__(self) -> None:
        for table, columns, needed in (
            ("ubi_queries", self.queries, [("query_id",), ("user_query",)]),
            ("ubi_events", self.events, [("query_id",), ("action_name",), _DOCUMENT]),
        ):
            missing = [".".join(path) for path in needed if self._text(columns, path) is None]
            if missing:
                raise unusable(
                    "missing-column",
                    f"{table} has no {listed(missing)}",
                    f"Columns found: {listed(columns.types)}. Give the export of ubi_queries first and that of "
                    "ubi_events second; tables with other columns are joined without a preset.",
                    count=len(missing),
                )
        if self.ranker is not None and not self._has_ranker():
            raise self._missing_ranker(f"ubi_queries has no query_attributes that could hold {self.ranker!r}", "")

    @property
    def schema(self) -> EventSchema:
        """The columns of `ubi_shown` and `ubi_clicked`."""
        names = ["impression_id", "query_id", "doc_id", "position", "application", "page", "shown_by"]
        types = dict.fromkeys([*names, *(["ranker"] if self.ranker else [])], "VARCHAR")
        return EventSchema(
            impression="impression_id",
            query="query_id",
            doc="doc_id",
            ranker="ranker" if self.ranker else None,
            application="application",
            position="position",
            carried=("application", "page", "shown_by"),
            types=types,
            click_impression="impression_id",
            click_doc="doc_id",
            click_types={"impression_id": "VARCHAR", "doc_id": "VARCHAR"},
            user_names={"query_id": "user_query", "ranker": self.ranker or ""},
        )

    @property
    def steps(self) -> list[Step]:
        """The steps that end in `ubi_shown` and `ubi_clicked`."""
        d = self.dialect
        ranked = ", r.ranker" if self.ranker else ""
        shown = [
            "e.query_id AS impression_id",
            "COALESCE(r.query, e.query) AS query_id",
            "e.doc_id",
            "e.position",
            "COALESCE(e.application, r.application) AS application",
            "r.page",
            "'events' AS shown_by",
            *(["COALESCE(e.ranker, r.ranker) AS ranker"] if self.ranker else []),
        ]
        hits = d.unnest("ubi_unlogged", d.as_array("t.hits", "VARCHAR"))
        returned = [
            "t.query_id AS impression_id",
            "t.query AS query_id",
            f"{d.item} AS doc_id",
            f"{d.as_text(d.place)} AS position",
            "t.application",
            "t.page",
            "'hits' AS shown_by",
            *(["t.ranker"] if self.ranker else []),
        ]
        return [
            self._requests_step(),
            self._events_step(),
            Step(
                "ubi_unique_requests",
                "Each request once, however often it was logged; an id with two queries stays two requests.",
                f"SELECT r.query_id, r.query{ranked}, MIN(r.application) AS application, MIN(r.page) AS page\n"
                f"FROM ubi_requests r\nGROUP BY r.query_id, r.query{ranked}",
            ),
            Step(
                "ubi_logged_requests",
                "Requests with events. The application is that of the events: ubi_queries may name it differently.",
                "SELECT e.query_id, COALESCE(MIN(e.application), MIN(r.application)) AS application,\n"
                "  COUNT(CASE WHEN e.action_name = 'impression' THEN 1 END) AS seen\n"
                "FROM ubi_all_events e\nLEFT JOIN ubi_unique_requests r ON e.query_id = r.query_id\n"
                "GROUP BY e.query_id",
            ),
            Step(
                "ubi_applications",
                "Applications, and whether they log impressions.",
                "SELECT COALESCE(application, '') AS application, MAX(seen) AS seen\nFROM ubi_logged_requests\n"
                "GROUP BY COALESCE(application, '')",
            ),
            Step(
                "ubi_unlogged",
                "Each request of applications that do not log impressions once; all requests if none does.",
                f"SELECT DISTINCT r.query_id, r.query{ranked}, r.hits, r.page,\n"
                "  COALESCE(e.application, r.application) AS application\n"
                "FROM ubi_requests r\nLEFT JOIN ubi_logged_requests e ON r.query_id = e.query_id\n"
                "LEFT JOIN ubi_applications a ON COALESCE(e.application, r.application, '') = a.application\n"
                "WHERE a.seen = 0 OR (SELECT MAX(seen) FROM ubi_applications) = 0",
            ),
            Step(
                "ubi_shown",
                "The impressions; for applications that do not log them, the hits that were returned.",
                "SELECT "
                + ", ".join(shown)
                + "\nFROM ubi_all_events e\nLEFT JOIN ubi_unique_requests r ON e.query_id = r.query_id\n"
                "WHERE e.action_name = 'impression'\nUNION ALL\n"
                "SELECT " + ", ".join(returned) + f"\nFROM {hits}",
            ),
            Step(
                "ubi_clicked",
                "The clicks.",
                "SELECT query_id AS impression_id, doc_id\nFROM ubi_all_events\nWHERE action_name = 'click'",
            ),
        ]

    @property
    def pages_query(self) -> str:
        """The query of how many requests there are by application, by source (events or hits) and by page, and how many
        of them begin at position 0 or 1.

        A later page that does not continue the positions of the page before begins there.
        """
        page, position = (self.dialect.integer(name, "VARCHAR") for name in ("page", "position"))
        return render(
            [
                *self.steps,
                Step(
                    "requests",
                    "The first position of each request.",
                    f"SELECT impression_id, application, shown_by, {page} AS page, MIN({position}) AS first\n"
                    f"FROM ubi_shown\nWHERE impression_id IS NOT NULL\n"
                    f"GROUP BY impression_id, application, shown_by, {page}",
                ),
                Step(
                    "pages",
                    "How many requests there are of each kind.",
                    "SELECT application, shown_by, page, COUNT(*), COUNT(CASE WHEN first <= 1 THEN 1 END)\n"
                    "FROM requests\nGROUP BY application, shown_by, page",
                ),
            ]
        )

    @property
    def rankers_query(self) -> str:
        """The query of how many results there are, and how many of them name a ranker."""
        counted = Step("named", "Results that name a ranker.", "SELECT COUNT(*), COUNT(ranker)\nFROM ubi_shown")
        return render([*self.steps, counted])

    @property
    def attributes_query(self) -> str:
        """The query of some of the query_attributes, as JSON."""
        name = "query_attributes"
        type_ = self.queries.types.get(name, "VARCHAR")
        column = self.dialect.quote(self.queries.names.get(name, name))
        nested = name in self.queries.types and type_ not in ("VARCHAR", "JSON")
        text = self.dialect.as_json(column) if nested else self._text(self.queries, (name,))
        json_text = text or self.dialect.cast("NULL", "VARCHAR")
        answer = f"SELECT DISTINCT {json_text} AS attributes\nFROM impressions\nLIMIT {_SAMPLED_ATTRIBUTES}"
        return render([Step("attributes", "The attributes of requests.", answer)])

    def missing_ranker(self, attributes: Sequence[Any]) -> UnusableLogError:
        """Return the error that no result names a ranker, with the keys that `attributes_query` found."""
        keys: dict[str, None] = {}
        for text in attributes:
            with suppress(TypeError, ValueError):
                values = json.loads(text)
                keys |= dict.fromkeys(values if isinstance(values, dict) else ())
        known = listed(sorted(keys)) if keys else "none"
        return self._missing_ranker("no query_attributes has such a key", f" Keys of query_attributes: {known}.")

    def _missing_ranker(self, reason: str, keys: str) -> UnusableLogError:
        return unusable(
            "missing-column",
            f"No column of ubi_queries or ubi_events is named {self.ranker!r}, and {reason}",
            f"Columns of ubi_queries: {listed(self.queries.types)}. Columns of ubi_events: "
            f"{listed(self.events.types)}.{keys} Name the column of the ranker, or a key of query_attributes.",
            arguments={"ranker": "COLUMN"},
        )

    def _requests_step(self) -> Step:
        user_query = self._text(self.queries, ("user_query",))
        ranker = self._ranker(self.queries, ("query_attributes", self.ranker or ""))
        columns = {
            "query_id": self._text(self.queries, ("query_id",)),
            "query": _query_text(user_query or ""),
            "application": self._text(self.queries, ("application",)),
            "hits": self._text(self.queries, ("query_response_hit_ids",)),
            "page": self._text(self.queries, ("query_attributes", "page")),
            **({"ranker": ranker} if self.ranker else {}),
        }
        why = "The requests of ubi_queries."
        return Step("ubi_requests", why, self._select(columns, "impressions", self.queries))

    def _events_step(self) -> Step:
        user_query = self._text(self.events, ("user_query",)) or self.dialect.cast("NULL", "VARCHAR")
        columns = {
            "query_id": self._text(self.events, ("query_id",)),
            "query": _query_text(user_query),
            "action_name": f"LOWER(TRIM({self._text(self.events, ('action_name',))}))",
            "application": self._text(self.events, ("application",)),
            "doc_id": self._text(self.events, _DOCUMENT),
            "position": self._text(self.events, _POSITION),
            **({"ranker": self._ranker(self.events)} if self.ranker else {}),
        }
        return Step("ubi_all_events", "The events of ubi_events.", self._select(columns, "clicks", self.events))

    def _select(self, columns: Mapping[str, str | None], table: str, source: Columns) -> str:
        d = self.dialect
        select = ",\n  ".join(f"{text or d.cast('NULL', 'VARCHAR')} AS {name}" for name, text in columns.items())
        # A bulk file has a line before each document that says what to do with it. Such a line is not a document.
        actions = [d.quote(source.names.get(name, name)) for name in _BULK_ACTIONS if name in source.types]
        bulk = (
            f"\nWHERE {columns['query_id']} IS NOT NULL OR ({' AND '.join(f'{a} IS NULL' for a in actions)})"
            if actions
            else ""
        )
        return f"SELECT\n  {select}\nFROM {table}{bulk}"

    def _has_ranker(self) -> bool:
        in_queries = self._ranker(self.queries, ("query_attributes", self.ranker or ""))
        return in_queries is not None or self._ranker(self.events) is not None

    def _ranker(self, columns: Columns, *more: tuple[str, ...]) -> str | None:
        """Return SQL for the ranker, from the first place that has it; None if no column can hold it."""
        paths = [(self.ranker or "",), *more]
        return _first_value([text for path in paths if (text := self._text(columns, path)) is not None])

    def _text(self, columns: Columns, path: tuple[str, ...]) -> str | None:
        """Return SQL for a part of a document as text, wherever the export has put it; None if no column can hold it.

        An export may have a column with a dotted name, a structure or JSON, or the whole document in `_source`.
        """
        d, types = self.dialect, columns.types

        def quoted(name: str) -> str:
            return d.quote(columns.names.get(name, name))

        places = []
        dotted = ".".join(path)
        if dotted in types:
            nested = dotted == "query_response_hit_ids" and types[dotted] not in ("VARCHAR", "JSON")
            places.append(d.as_json(quoted(dotted)) if nested else d.as_text(quoted(dotted)))
        if len(path) > 1 and path[0] in types:
            places.append(d.json_field(quoted(path[0]), types[path[0]], path[1:]))
        if _SOURCE in types:
            places.append(d.json_field(quoted(_SOURCE), types[_SOURCE], path))
        return _first_value(places)


def _first_value(expressions: Sequence[str]) -> str | None:
    """Return SQL for the first of some values that is not NULL; None without any."""
    return f"COALESCE({', '.join(expressions)})" if len(expressions) > 1 else next(iter(expressions), None)


# The dialects that each preset is printed in, the default first.
TRACKERS: dict[str, tuple[str, ...]] = {"ga4": tuple(_PARAMETER), "snowplow": ("snowflake", *_ACCESS)}
