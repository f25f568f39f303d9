"""Events of trackers as they lie in a warehouse, GA4's and Snowplow's, turned into a log by one printed query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from posbias.sql.steps import Step, render
from posbias.sql.warehouses import DIALECTS, Warehouse

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
# What was looked for: a query, or the list itself where nobody asked for one. Where neither is told, all would be one.
_ASKED = "NULLIF(COALESCE(term, list), '') AS q"
# Preset -> the dialects that it is printed in, the usual one first.
TRACKERS: dict[str, tuple[str, ...]] = {"ga4": tuple(_PARAMETER), "snowplow": ("snowflake", *_ACCESS)}


def ga4(dialect: str, table: str, query: str, ranker: str | None, impression: str | None) -> str:
    """Return the log of GA4's `view_item_list` and `select_item`, whose parameters tell query, ranker and page view."""
    d = DIALECTS[dialect]

    def parameter(key: str) -> str:
        return _PARAMETER[dialect].format(key=d.text(key))

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
        f"{_looked_for(parameter(query))} AS term",
        *([f"{parameter(ranker)} AS ranker"] if ranker else []),
        f"{told('item_id')} AS doc",
        # Where a site does not number its items, this is no number.
        f"{d.attempt(f'{d.item}.item_list_index', 'BIGINT')} AS numbered",
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
                "SELECT\n  " + ",\n  ".join(listed) + f"\nFROM {d.spread(table, 't.items')}\n"
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
        f"{_looked_for(d.as_text(f't.{d.quote(query)}'))} AS term",
        *([f"{d.as_text(f't.{d.quote(ranker)}')} AS ranker"] if ranker else []),
        f"{d.as_text(product)} AS doc",
        f"{d.attempt(position, 'BIGINT')} AS numbered",
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
                "SELECT\n  " + ",\n  ".join(listed) + f"\nFROM {d.spread(table, f't.{_PRODUCTS}')}\n"
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


def _looked_for(text: str) -> str:
    """Return the text of a query, NULL where it is empty: then it was the list that was looked for."""
    return f"NULLIF(LOWER(TRIM({text})), '')"


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


def _printed(d: Warehouse, what: str, steps: list[Step]) -> str:
    head = (
        f"-- {what}\n-- The result is a click log: keep it as a table, print its harvest with posbias sql, or export "
        "it for posbias check.\n"
    )
    return f"{head}{render(steps)}{d.ending}\n"
