"""Queries for GA4, Snowplow and UBI events."""

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

# In each: the first value that a parameter of an event has, as text.
_PARAMETER = {
    "bigquery": "(SELECT COALESCE(p.value.string_value, CAST(p.value.int_value AS STRING), "
    "CAST(p.value.double_value AS STRING))\n"
    "    FROM UNNEST(t.event_params) AS p WHERE p.key = {key} LIMIT 1)",
    "duckdb": "(SELECT COALESCE(p.value.string_value, CAST(p.value.int_value AS VARCHAR), "
    "CAST(p.value.double_value AS VARCHAR))\n"
    "    FROM (SELECT UNNEST(t.event_params) AS p) s WHERE p.key = {key} LIMIT 1)",
}
# What GA4 exports in place of what a site does not send.
_NOT_SET = "'(not set)'"
_WEB_PAGE = "contexts_com_snowplowanalytics_snowplow_web_page_1"
_ACTION = "unstruct_event_com_snowplowanalytics_snowplow_ecommerce_snowplow_ecommerce_action_1"
_PRODUCTS = "contexts_com_snowplowanalytics_snowplow_ecommerce_product_1"
# What was looked for: a query, or the list itself where nobody asked for one. Where neither is told, all would be one.
_ASKED = "NULLIF(COALESCE(term, list), '') AS q"
# What a bulk file says before each document, and what a search wraps it in.
_ACTIONS = ("index", "create", "update", "delete")
_WRAPPED = "_source"
_POSITION = ("event_attributes", "position", "ordinal")
_DOCUMENT = ("event_attributes", "object", "object_id")
# So many requests tell which keys their attributes have.
_FEW = 1000


def ga4(dialect: str, table: str, query: str, ranker: str | None, impression: str | None) -> str:
    """Return the log of GA4's `view_item_list` and `select_item`, whose parameters tell query, ranker and page view."""
    d = DIALECTS[dialect]

    def parameter(key: str) -> str:
        return _PARAMETER[dialect].format(key=d.literal(key))

    def told(name: str) -> str:
        return f"NULLIF({d.item}.{name}, {_NOT_SET})"

    own = parameter(impression) if impression else d.cast("NULL", "VARCHAR")
    moment = f"COALESCE(page_id, {d.as_text('happened')})"
    known = "visitor IS NOT NULL AND session_id IS NOT NULL" + (" OR page_id IS NOT NULL" if impression else "")
    listed = [
        "t.event_name = 'select_item' AS is_click",
        "t.event_timestamp AS happened",
        "t.stream_id AS application",
        "t.user_pseudo_id AS visitor",
        f"{parameter('ga_session_id')} AS session_id",
        f"COALESCE({told('item_list_id')}, {told('item_list_name')}, '') AS list",
        f"{own} AS page_id",
        f"{_query_text(parameter(query))} AS term",
        *([f"{parameter(ranker)} AS ranker"] if ranker else []),
        f"{told('item_id')} AS doc",
        # Where a site does not number its items, this is no number.
        f"{d.try_cast(f'{d.item}.item_list_index', 'BIGINT')} AS numbered",
        f"{d.cast(d.place, 'BIGINT')} AS place",
        "t.device.category AS device",
        "t.event_date AS event_date",
    ]
    page = "CONCAT(visit, '|', list, '|', COALESCE(page_id, {moment}))"
    ranked = ", ranker" if ranker else ""
    return _printed(
        d,
        "GA4: items shown in a list (view_item_list) and clicked (select_item).",
        [
            Step(
                "listed",
                "One row for each item of an event: GA4 has no id of the page view.",
                "SELECT\n  " + ",\n  ".join(listed) + f"\nFROM {d.unnest(table, 't.items')}\n"
                "WHERE t.event_name IN ('view_item_list', 'select_item')",
            ),
            Step(
                "visited",
                "Events without a user or session, as before consent, are left out: nobody's clicks can be told from "
                f"another's{', unless a parameter says of which page view they are' if impression else ''}.",
                "SELECT s.*, CONCAT(COALESCE(visitor, ''), '|', COALESCE(session_id, '')) AS visit\n"
                f"FROM listed s\nWHERE {known}",
            ),
            *_numbered("visited", ["visit", "list", moment]),
            Step(
                "views",
                "Lists that were shown: a page view is the visit, the list and the moment, or what a parameter says.",
                f"SELECT {page.format(moment=d.as_text('happened'))} AS v, visit, list, page_id, happened,\n"
                f"  {_ASKED}{ranked}, doc, position, device, event_date\n"
                "FROM numbered\nWHERE NOT is_click AND doc IS NOT NULL",
            ),
            Step(
                "followed",
                "A click belongs to the last view of its item in the same list and visit before it, whatever it tells.",
                "SELECT c.visit, c.list, c.doc, c.page_id, c.happened, MAX(s.happened) AS shown\nFROM numbered c\n"
                "JOIN views s ON s.visit = c.visit AND s.list = c.list AND s.doc = c.doc\n"
                "  AND COALESCE(s.page_id, '') = COALESCE(c.page_id, '') AND s.happened <= c.happened\n"
                "WHERE c.is_click\nGROUP BY c.visit, c.list, c.doc, c.page_id, c.happened",
            ),
            Step(
                "taps",
                "What was clicked, once however often.",
                f"SELECT DISTINCT {page.format(moment=d.as_text('shown'))} AS v, doc\nFROM followed",
            ),
            *_log(d, ["device", "event_date"], bool(ranker)),
        ],
    )


def _query_text(text: str) -> str:
    """Return the text of a query, NULL where it is empty: then it was the list that was looked for."""
    return f"NULLIF(LOWER(TRIM({text})), '')"


def _printed(d: Warehouse, what: str, steps: list[Step]) -> str:
    head = (
        f"-- {what}\n-- The result is a click log: keep it as a table, print its harvest with posbias sql, or export "
        "it for posbias check.\n"
    )
    return f"{head}{render(steps)}{d.query_suffix}\n"


def _numbered(source: str, view: list[str]) -> list[Step]:
    """Return the steps that tell from where the page views of an application, known by `view`, begin to count."""
    at_zero, at_one = (f"COUNT(CASE WHEN lowest = {place} THEN 1 END)" for place in (0, 1))
    keys = ", ".join(["application", *view])
    return [
        Step(
            "begun",
            "The smallest number in each page view.",
            f"SELECT application, MIN(numbered) AS lowest\nFROM {source}\nWHERE NOT is_click AND numbered >= 0\n"
            f"GROUP BY {keys}",
        ),
        Step(
            "counting",
            "Applications that count from 0: more of their page views begin there than at 1.",
            "SELECT COALESCE(application, '') AS application\nFROM begun\nGROUP BY COALESCE(application, '')\n"
            f"HAVING {at_zero} > {at_one}",
        ),
        Step(
            "numbered",
            "Positions from 1, so that a stray 0 is none; where items have no number their order tells.",
            "SELECT s.*,\n  CASE WHEN numbered >= 0 THEN numbered + CASE WHEN c.application IS NULL THEN 0 ELSE 1 END\n"
            f"    ELSE place END AS position\nFROM {source} s\n"
            "LEFT JOIN counting c ON COALESCE(s.application, '') = c.application",
        ),
    ]


def _log(d: Warehouse, carried: list[str], ranked: bool) -> list[Step]:
    """Return the last steps: each result of a page view once, clicked or not."""
    keys = ["q", *(["ranker"] if ranked else []), *carried]
    columns = [
        "s.q AS query_id",
        "s.doc AS doc_id",
        *(["s.ranker"] if ranked else []),
        "s.position",
        "CASE WHEN t.v IS NULL THEN 0 ELSE 1 END AS clicked",
        "s.v AS impression_id",
        *(f"s.{name}" for name in carried),
    ]
    alike = ["position", "q", *(["ranker"] if ranked else [])]
    unnamed = "ranker, or no query and no list," if ranked else "query and no list"
    return [
        Step(
            "once",
            "Each result of a page view once; not those at two places, of which a click tells neither. Page views that "
            f"name no {unnamed} are left out only here: they have had their clicks.",
            f"SELECT v, doc, MIN(position) AS position, {', '.join(f'MIN({key}) AS {key}' for key in keys)}\n"
            "FROM views\nGROUP BY v, doc\nHAVING MIN(position) >= 1 AND "
            + " AND ".join(f"MIN({name}) = MAX({name})" for name in alike),
        ),
        Step(
            "answer",
            "Each result, clicked or not.",
            f"SELECT {', '.join(columns)}\nFROM once s\nLEFT JOIN taps t ON s.v = t.v AND s.doc = t.doc",
        ),
    ]


def snowplow(dialect: str, table: str, query: str, ranker: str | None, impression: str | None) -> str:
    """Return the log of Snowplow's `list_view` and `list_click`; columns of the events tell query and ranker."""
    d, reach = DIALECTS[dialect], _ACCESS[dialect]
    kind, name = (reach.field.format(column=_ACTION, name=part) for part in ("type", "name"))
    page = f"t.{d.quote(impression)}" if impression else reach.first.format(column=_WEB_PAGE, name="id")
    product, position = (reach.element.format(item=d.item, name=part) for part in ("id", "position"))
    listed = [
        f"{kind} = 'list_click' AS is_click",
        "t.app_id AS application",
        f"COALESCE({name}, '') AS list",
        f"{page} AS page_id",
        f"{_query_text(d.as_text(f't.{d.quote(query)}'))} AS term",
        *([f"{d.as_text(f't.{d.quote(ranker)}')} AS ranker"] if ranker else []),
        f"{d.as_text(product)} AS doc",
        f"{d.try_cast(position, 'BIGINT')} AS numbered",
        f"{d.cast(d.place, 'BIGINT')} AS place",
    ]
    ranked = ", ranker" if ranker else ""
    return _printed(
        d,
        "Snowplow e-commerce: products shown in a list (list_view) and clicked (list_click).",
        [
            Step(
                "listed",
                "One row for each product of an event.",
                "SELECT\n  " + ",\n  ".join(listed) + f"\nFROM {d.unnest(table, f't.{_PRODUCTS}')}\n"
                f"WHERE {kind} IN ('list_view', 'list_click')",
            ),
            *_numbered("listed", ["page_id", "list"]),
            Step(
                "views",
                "Lists that were shown: each list of a page view is one of its own.",
                f"SELECT CONCAT(page_id, '|', list) AS v, {_ASKED}{ranked},\n  doc, position, application\n"
                "FROM numbered\nWHERE NOT is_click AND doc IS NOT NULL AND page_id IS NOT NULL",
            ),
            Step(
                "taps",
                "What was clicked, once however often.",
                "SELECT DISTINCT CONCAT(page_id, '|', list) AS v, doc\nFROM numbered\nWHERE is_click",
            ),
            *_log(d, ["application"], bool(ranker)),
        ],
    )


@dataclass(frozen=True)
class _Access:
    """How a warehouse reaches into Snowplow's columns: a field, a field of the first element, a field of an element."""

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
    """`ubi_queries`, opened as `impressions`, and `ubi_events`, opened as `clicks`.

    A `query_id` is one request: our page view. The ranker is a column of ubi_queries or ubi_events, or a key of
    `query_attributes`.
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
                    f"Columns found: {listed(columns.types)}. Give first the export of ubi_queries, then that of "
                    "ubi_events; tables of other names are joined without preset.",
                    count=len(missing),
                )
        if self.ranker is not None and not self._rankers():
            raise self._no_ranker("nor has ubi_queries query_attributes", "")

    @property
    def schema(self) -> EventSchema:
        """What `ubi_shown` and `ubi_clicked` hold."""
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
            called={"query_id": "user_query", "ranker": self.ranker or ""},
        )

    @property
    def steps(self) -> list[Step]:
        """The steps that end in `ubi_shown` and `ubi_clicked`."""
        d = self.dialect
        ranked = ", r.ranker" if self.ranker else ""
        own = ["COALESCE(e.ranker, r.ranker) AS ranker"] if self.ranker else []
        shown = [
            "e.query_id AS impression_id",
            "COALESCE(r.query, e.query) AS query_id",
            "e.doc_id",
            "e.position",
            "COALESCE(e.application, r.application) AS application",
            "r.page",
            "'events' AS shown_by",
            *own,
        ]
        hits = d.unnest("ubi_unseen", d.as_array("t.hits", "VARCHAR"))
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
            self._requests(),
            self._happened(),
            Step(
                "ubi_asked",
                "Each request once, however often it was written; one id for two queries stays two.",
                f"SELECT r.query_id, r.query{ranked}, MIN(r.application) AS application, MIN(r.page) AS page\n"
                f"FROM ubi_requests r\nGROUP BY r.query_id, r.query{ranked}",
            ),
            Step(
                "ubi_known",
                "Requests that events are of. The application is that of events: ubi_queries may call it otherwise.",
                "SELECT e.query_id, COALESCE(MIN(e.application), MIN(r.application)) AS application,\n"
                "  COUNT(CASE WHEN e.action_name = 'impression' THEN 1 END) AS seen\n"
                "FROM ubi_happened e\nLEFT JOIN ubi_asked r ON e.query_id = r.query_id\nGROUP BY e.query_id",
            ),
            Step(
                "ubi_watched",
                "Applications, and whether they log what was seen.",
                "SELECT COALESCE(application, '') AS application, MAX(seen) AS seen\nFROM ubi_known\n"
                "GROUP BY COALESCE(application, '')",
            ),
            Step(
                "ubi_unseen",
                "Requests of applications that do not log what was seen, each once; all, where none does.",
                f"SELECT DISTINCT r.query_id, r.query{ranked}, r.hits, r.page,\n"
                "  COALESCE(e.application, r.application) AS application\n"
                "FROM ubi_requests r\nLEFT JOIN ubi_known e ON r.query_id = e.query_id\n"
                "LEFT JOIN ubi_watched w ON COALESCE(e.application, r.application, '') = w.application\n"
                "WHERE w.seen = 0 OR (SELECT MAX(seen) FROM ubi_watched) = 0",
            ),
            Step(
                "ubi_shown",
                "What was seen; of applications that do not log it, what was returned.",
                "SELECT "
                + ", ".join(shown)
                + "\nFROM ubi_happened e\nLEFT JOIN ubi_asked r ON e.query_id = r.query_id\n"
                "WHERE e.action_name = 'impression'\nUNION ALL\n"
                "SELECT " + ", ".join(returned) + f"\nFROM {hits}",
            ),
            Step(
                "ubi_clicked",
                "What was clicked.",
                "SELECT query_id AS impression_id, doc_id\nFROM ubi_happened\nWHERE action_name = 'click'",
            ),
        ]

    @property
    def pages_query(self) -> str:
        """How many requests there are by application, by what tells that they were shown, and by page; how many of
        them begin at 0 or 1, where the pages before have left off if positions go on.
        """
        page, position = (self.dialect.integer(name, "VARCHAR") for name in ("page", "position"))
        return render(
            [
                *self.steps,
                Step(
                    "requests",
                    "Where each request begins.",
                    f"SELECT impression_id, application, shown_by, {page} AS page, MIN({position}) AS first\n"
                    f"FROM ubi_shown\nWHERE impression_id IS NOT NULL\n"
                    f"GROUP BY impression_id, application, shown_by, {page}",
                ),
                Step(
                    "pages",
                    "Requests of each kind.",
                    "SELECT application, shown_by, page, COUNT(*), COUNT(CASE WHEN first <= 1 THEN 1 END)\n"
                    "FROM requests\nGROUP BY application, shown_by, page",
                ),
            ]
        )

    @property
    def rankers_query(self) -> str:
        """How many results there are, and how many of them name a ranker."""
        counted = Step("named", "Results that name a ranker.", "SELECT COUNT(*), COUNT(ranker)\nFROM ubi_shown")
        return render([*self.steps, counted])

    @property
    def attributes_query(self) -> str:
        """Some of the query_attributes that there are, as JSON."""
        name = "query_attributes"
        type_ = self.queries.types.get(name, "VARCHAR")
        column = self.dialect.quote(self.queries.names.get(name, name))
        nested = name in self.queries.types and type_ not in ("VARCHAR", "JSON")
        text = self.dialect.as_json(column) if nested else self._text(self.queries, (name,))
        said = text or self.dialect.cast("NULL", "VARCHAR")
        answer = f"SELECT DISTINCT {said} AS said\nFROM impressions\nLIMIT {_FEW}"
        return render([Step("attributes", "What requests are described by.", answer)])

    def no_ranker(self, attributes: Sequence[Any]) -> UnusableLogError:
        """Return that no result names a ranker, with the keys that `attributes_query` shows."""
        keys: dict[str, None] = {}
        for text in attributes:
            with suppress(TypeError, ValueError):
                told = json.loads(text)
                keys |= dict.fromkeys(told if isinstance(told, dict) else ())
        found = listed(sorted(keys)) if keys else "none"
        return self._no_ranker("nor does a query_attributes hold it", f"; keys of query_attributes: {found}")

    def _no_ranker(self, nor: str, keys: str) -> UnusableLogError:
        return unusable(
            "missing-column",
            f"Neither ubi_queries nor ubi_events has {self.ranker!r}, {nor}",
            f"Columns found: {listed(self.queries.types)}; {listed(self.events.types)}{keys}. Name the ranker's "
            "column, or a key of query_attributes.",
            arguments={"ranker": "COLUMN"},
        )

    def _requests(self) -> Step:
        asked = self._text(self.queries, ("user_query",))
        ranker = self._ranker(self.queries, ("query_attributes", self.ranker or ""))
        columns = {
            "query_id": self._text(self.queries, ("query_id",)),
            "query": _ubi_query_text(asked or ""),
            "application": self._text(self.queries, ("application",)),
            "hits": self._text(self.queries, ("query_response_hit_ids",)),
            "page": self._text(self.queries, ("query_attributes", "page")),
            **({"ranker": ranker} if self.ranker else {}),
        }
        why = "Requests, as ubi_queries has them."
        return Step("ubi_requests", why, self._select(columns, "impressions", self.queries))

    def _happened(self) -> Step:
        asked = self._text(self.events, ("user_query",)) or self.dialect.cast("NULL", "VARCHAR")
        columns = {
            "query_id": self._text(self.events, ("query_id",)),
            "query": _ubi_query_text(asked),
            "action_name": f"LOWER(TRIM({self._text(self.events, ('action_name',))}))",
            "application": self._text(self.events, ("application",)),
            "doc_id": self._text(self.events, _DOCUMENT),
            "position": self._text(self.events, _POSITION),
            **({"ranker": self._ranker(self.events)} if self.ranker else {}),
        }
        return Step("ubi_happened", "Events, as ubi_events has them.", self._select(columns, "clicks", self.events))

    def _select(self, columns: Mapping[str, str | None], table: str, source: Columns) -> str:
        d = self.dialect
        select = ",\n  ".join(f"{text or d.cast('NULL', 'VARCHAR')} AS {name}" for name, text in columns.items())
        # Before each document a bulk file says what to do with it, in a line that has nothing of a document.
        actions = [d.quote(source.names.get(name, name)) for name in _ACTIONS if name in source.types]
        here = columns["query_id"]
        bulk = f"\nWHERE {here} IS NOT NULL OR ({' AND '.join(f'{a} IS NULL' for a in actions)})" if actions else ""
        return f"SELECT\n  {select}\nFROM {table}{bulk}"

    def _rankers(self) -> list[str]:
        found = [self._ranker(self.queries, ("query_attributes", self.ranker or "")), self._ranker(self.events)]
        return [text for text in found if text is not None]

    def _ranker(self, columns: Columns, *more: tuple[str, ...]) -> str | None:
        paths = [(self.ranker or "",), *more]
        found = [text for path in paths if (text := self._text(columns, path)) is not None]
        return f"COALESCE({', '.join(found)})" if len(found) > 1 else next(iter(found), None)

    def _text(self, columns: Columns, path: tuple[str, ...]) -> str | None:
        """Return a part of a document as text, wherever the export has put it; None if there is no such place."""
        d, types = self.dialect, columns.types

        def quoted(name: str) -> str:
            return d.quote(columns.names.get(name, name))

        found = []
        dotted = ".".join(path)
        if dotted in types:
            nested = dotted == "query_response_hit_ids" and types[dotted] not in ("VARCHAR", "JSON")
            found.append(d.as_json(quoted(dotted)) if nested else d.as_text(quoted(dotted)))
        if len(path) > 1 and path[0] in types:
            found.append(d.json_field(quoted(path[0]), types[path[0]], path[1:]))
        if _WRAPPED in types:
            found.append(d.json_field(quoted(_WRAPPED), types[_WRAPPED], path))
        return f"COALESCE({', '.join(found)})" if len(found) > 1 else next(iter(found), None)


def _ubi_query_text(text: str) -> str:
    """Return the text of a query; a request without one, as of a start page, was for nothing."""
    return f"NULLIF(LOWER(TRIM({text})), '')"


# Preset -> the dialects that it is printed in, the usual one first.
TRACKERS: dict[str, tuple[str, ...]] = {"ga4": tuple(_PARAMETER), "snowplow": ("snowflake", *_ACCESS)}
