"""Events of a tracker as a query to run where they lie, whose result is a click log."""

from __future__ import annotations

from posbias.errors import LogError
from posbias.harvesting.warehouse.queries import table_name
from posbias.logs.events import NO_RANKER
from posbias.sql.trackers import TRACKERS, ga4, snowplow
from posbias.sql.warehouses import DIALECTS
from posbias.wording import listed

_QUERIES = {"ga4": ga4, "snowplow": snowplow}
# What tells the query unless the user does: a parameter of GA4's events, a column of Snowplow's.
_ASKED = {"ga4": "search_term", "snowplow": "page_urlquery"}


def events_sql(
    preset: str,
    table: str,
    *,
    dialect: str | None = None,
    query: str | None = None,
    ranker: str | None = None,
    impression: str | None = None,
) -> str:
    """Return the query that makes a click log of a tracker's events.

    Arguments:
        preset: "ga4" (Google Analytics 4 in BigQuery) or "snowplow" (its e-commerce events).
        table: the events, such as "project.analytics_1.events_*" or "atomic.events".
        dialect: whose SQL: "bigquery" for GA4; "snowflake", "bigquery" or "databricks" for Snowplow; or "duckdb".
        query, ranker, impression: what tells the query, the ranker and the page view: a parameter of GA4's events, or a
            column of Snowplow's; a ranker "none" is none. Without an impression GA4's page view is the visit, the list
            and the moment.

    Example:
        >>> print(events_sql("ga4", "shop.analytics_1.events_*", ranker="variant").splitlines()[0])
        -- GA4: items shown in a list (view_item_list) and clicked (select_item).
    """
    if not isinstance(preset, str) or preset not in TRACKERS:
        raise LogError(f"The preset {preset!r} is not known. Use one of {listed(TRACKERS)}.")
    dialects = tuple(dict.fromkeys(TRACKERS[preset]))
    chosen = dialects[0] if dialect is None else dialect
    if not isinstance(chosen, str) or chosen not in dialects:
        raise LogError(f"{preset} is not printed as {chosen!r}. Use one of {listed(dialects)}.")
    for name, value in (("table", table), ("query", query), ("ranker", ranker), ("impression", impression)):
        if not (isinstance(value, str) and value.strip()) and not (value is None and name != "table"):
            raise LogError(f"{name}={value!r} must be a text. Leave it out if there is none to name.")
    hooks = DIALECTS[chosen]
    # BigQuery knows a pattern of tables by the quotes around all of its name.
    named = hooks.quote(table) if chosen == "bigquery" and "*" in table else table_name(hooks, table)
    shown_by = None if ranker == NO_RANKER else ranker
    return _QUERIES[preset](chosen, named, query or _ASKED[preset], shown_by, impression)
