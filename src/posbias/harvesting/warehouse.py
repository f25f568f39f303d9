"""Print the SQL that a warehouse runs: the query of a harvest, and the query that makes a click log of tracker events.

No row leaves the warehouse. It runs the query, the user exports the small result, and `Harvest.load` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from posbias._defaults import DEFAULT_MAX_RANK
from posbias._text import listed
from posbias._validate import names
from posbias.errors import LogError
from posbias.harvesting.count import check_segment_roles, check_settings, table_kind
from posbias.harvesting.row_checks import check_non_functional_setting
from posbias.logs.click_log import DEFAULT_RANKS, NO_RANKER, NO_RANKS, NO_UNIT, ClickLog, Layout, Weighting
from posbias.logs.schema import NATURAL, Schema
from posbias.sql.dialects import BUCKETS, DIALECTS, Warehouse
from posbias.sql.exports import ExportPlan, export_query
from posbias.sql.trackers import TRACKERS, ga4, snowplow
from posbias.version import __version__

# The table is not opened, so the types of its columns are not known.
_UNKNOWN = "UNKNOWN"
_QUERIES = {"ga4": ga4, "snowplow": snowplow}
# The default for the query: a parameter of GA4 events, a column of Snowplow events.
_ASKED = {"ga4": "search_term", "snowplow": "page_urlquery"}

# Warehouses in which two columns may differ by case alone, if their names are in quotes.
_CASE_SENSITIVE = ("postgres", "clickhouse", "snowflake")


def events_sql(
    preset: str,
    table: str,
    *,
    dialect: str | None = None,
    query: str | None = None,
    ranker: str | None = None,
    impression: str | None = None,
) -> str:
    """Return the SQL query that makes a click log of the events of a tracker.

    Arguments:
        preset (str): "ga4" (Google Analytics 4 in BigQuery) or "snowplow" (its e-commerce events).
        table (str): the table of events, such as "project.analytics_1.events_*" or "atomic.events".
        dialect (str, default None): the SQL dialect: "bigquery" for GA4; "snowflake", "bigquery" or "databricks" for
            Snowplow; or "duckdb".
        query (str, default None): the event parameter (GA4) or column (Snowplow) of the query.
        ranker (str, default None): the parameter or column of the ranker; "none" if there is none.
        impression (str, default None): the parameter or column of the page view. By default a page view of GA4 is a
            visit, a list and a moment.

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


def harvest_sql(
    dialect: str,
    table: str,
    *,
    query: str = "query_id",
    doc: str = "doc_id",
    ranker: str = "ranker",
    position: str = "position",
    click: str = "clicked",
    impression: str | None = None,
    impressions: str | None = None,
    clicks: str | None = None,
    ranks: str | None = None,
    rankings: str | None = None,
    rank: str = "rank",
    rankers: str | Sequence[str] = (),
    window: str | None = None,
    unit: str | None = None,
    duplicates: Literal["keep", "drop"] = "keep",
    max_rank: int = DEFAULT_MAX_RANK,
    by: str | Sequence[str] = (),
    weighting: Weighting | None = None,
    non_functional: Literal["share", "refuse"] = "share",
) -> str:
    """Return the SQL query of a harvest. Export its result as CSV or Parquet, and read it with `Harvest.load`.

    The table is not opened: its positions, ranks and counts must be whole numbers, and its clicks numbers or booleans.

    Arguments:
        dialect (str): "bigquery", "snowflake", "redshift", "databricks", "trino", "clickhouse", "postgres", "spark" or
            "duckdb".
        table (str): the log, with dots between the parts of its name. Put a part that contains a dot in double quotes.
        query, doc, ranker, position, click, impressions, clicks (str): the columns, as in `ClickLog`. Give ranker
            "none" for a table that names no ranker.
        impression (str, default None): the column of the page view, needed to drop duplicates; by default
            `impression_id`.
        rankers (sequence of str, default ()): the names of the rankers whose ranks are known (wide and long). In replay
            the query finds them in the log.
        ranks (str, default None): the pattern of the rank columns (wide), by default `rank_{ranker}`.
        rankings (str, default None): the table of rankings of the long layout.
        rank (str, default "rank"): the column of ranks in that table.
        window (str, default None): in replay, the column of a period; a document is compared with itself within one.
        unit (str, default None): the column of what was assigned to rankers, usually the user.
        duplicates (str, default "keep"): "drop" counts each result of a page view once, however often it was logged.
        max_rank, by, weighting, non_functional: as in `harvest`.

    Example:
        >>> sql = harvest_sql("bigquery", "shop.search.clicks", rankers=["a", "b"])
        >>> print(sql[: sql.index("SELECT")])
        -- The counts that posbias estimates position bias from, in one scan of the log.
        -- Export the whole result as CSV or Parquet, and read it with: posbias estimate FILE
        WITH
        -- One row for each result shown, with typed columns.
        shown AS (

    Reference: Agarwal et al., WSDM 2019, section 3.
    """
    if not isinstance(dialect, str) or dialect not in DIALECTS:
        raise LogError(f"The dialect {dialect!r} is not known. Use one of {listed(DIALECTS)}.")
    check_settings(max_rank, weighting, non_functional)
    segments = names("by", by, LogError)
    rankers = names("rankers", rankers, LogError)
    log = ClickLog(
        table,
        query=query,
        doc=doc,
        ranker=ranker,
        position=position,
        click=click,
        impression=impression,
        impressions=impressions,
        clicks=clicks,
        ranks=ranks,
        rankings=rankings,
        rank=rank,
        window=window,
        unit=None if unit in (NO_UNIT, query) else unit,
        duplicates=duplicates,
    )
    schema = _schema(log, rankers, segments)
    _check_rank_columns(schema, dialect)
    check_segment_roles(schema, segments)
    chosen = weighting or schema.layout.weighting
    counted = table_kind(schema.layout, chosen)
    check_non_functional_setting(schema.natural, non_functional)
    if window is not None and counted == "signatures":
        raise LogError("A window is used only in replay, and this query has the rank of each ranker. Leave window out.")
    if schema.unit is not None and schema.natural:
        raise LogError("A unit is what was assigned to rankers, and this table names no ranker. Leave unit out.")
    named = tuple(sorted(set(rankers)))
    hooks = DIALECTS[dialect]
    plan = ExportPlan(
        schema,
        hooks,
        named if counted == "signatures" else (),
        max_rank,
        segments,
        log=table_name(hooks, table),
        rankings="" if rankings is None else table_name(hooks, rankings),
    )
    about = {
        "posbias": __version__,
        "dialect": hooks.name,
        "layout": schema.layout.value,
        "max_rank": max_rank,
        "weighting": chosen,
        "non_functional": non_functional,
        "ranker": None if schema.natural else schema.ranker,
        "window": window,
        **({} if schema.unit is None else {"unit": schema.unit}),
        "by": list(by),
        "rankers": list(plan.rankers),
        "buckets": BUCKETS,
        "source": table,
    }
    sql = export_query(plan, hooks, counted, about)
    for name in (table, rankings or ""):
        # Some engines would take the table for the step itself.
        if f"\n{name.lower()} AS (" in sql:
            raise LogError(f"The query has a step called {name!r} like the table. Write its schema too: schema.{name}")
    return sql


def table_name(dialect: Warehouse, name: str) -> str:
    """Return the name of a table for a query, with each part in quotes.

    >>> table_name(DIALECTS["postgres"], 'shop."my.clicks"')
    '"shop"."my.clicks"'
    """
    return ".".join(dialect.quote_exactly(part) if exact else dialect.quote(part) for part, exact in _parts(name))


def _parts(name: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a name between dots, and whether each was in quotes."""
    rest: str | None = name
    while rest is not None:
        quote = rest[:1]
        if quote in ('"', "`"):
            # Two quotes are one that belongs to the name.
            pieces = rest[1:].replace(quote * 2, "\0").split(quote, 1)
            part, after = pieces[0].replace("\0", quote), "".join(pieces[1:]).replace("\0", quote * 2)
            if len(pieces) < 2 or after[:1] not in ("", "."):
                raise LogError(f"The table name {name!r} has a part whose quotes do not close at its end.")
            rest = after[1:] if after else None
        else:
            part, dot, after = rest.partition(".")
            rest = after if dot else None
        if not part:
            raise LogError(
                f"The table name {name!r} has an empty part. Write schema.table, or project.dataset.table; a part that "
                "holds a dot stands in double quotes."
            )
        yield part, quote in ('"', "`")


def _schema(log: ClickLog, rankers: Sequence[str], by: Sequence[str]) -> Schema:
    """Return the schema that the log must have for the query to run."""
    layout, rank_columns = _layout(log, rankers)
    natural = log.ranker == NO_RANKER
    if natural and layout.ranks_known:
        raise LogError(
            "The ranks of rankers say where each would have put a result, and ranker 'none' that it is not known which "
            "of them was shown. Name the column of the ranker, or leave the rankers out."
        )
    aggregated = log.impressions is not None
    if log.duplicates == "drop" and aggregated:
        raise LogError(
            "Duplicates cannot be dropped from an aggregated log: its counts no longer tell which rows were logged "
            "twice. Drop them before adding up, and leave duplicates='drop' out."
        )
    schema = Schema(
        layout=layout,
        query=log.query,
        doc=log.doc,
        ranker=NATURAL if natural else log.ranker,
        position=log.position,
        click=None if aggregated else log.click,
        impression=log.impression or "impression_id",
        impressions=log.impressions,
        clicks=log.clicks,
        window=log.window,
        time=None,
        original=None,
        unit=log.unit,
        rank_columns=rank_columns,
        types={},
        rankings=dict.fromkeys((log.query, log.doc, log.ranker, log.rank), _UNKNOWN),
        rank=log.rank,
        drop_duplicates=log.duplicates == "drop",
    )
    columns = (*schema.roles.values(), *rank_columns.values(), *by)
    return replace(schema, types=dict.fromkeys(columns, _UNKNOWN))


def _layout(log: ClickLog, rankers: Sequence[str]) -> tuple[Layout, dict[str, str]]:
    """Return the layout, and in the wide one the column of each ranker's rank."""
    wide = log.ranks not in (None, NO_RANKS)
    if not rankers and (wide or log.rankings is not None):
        raise LogError(
            "The query must name every ranker whose ranks are known, because the table is not opened. Name them.",
            {"rankers": ["NAME", "NAME"]},
        )
    if blank := [name for name in rankers if not name.strip()]:
        raise LogError(f"The name of a ranker is blank: {blank[0]!r}. Name every ranker as the log does.")
    if log.rankings is not None:
        return Layout.LONG, {}
    if not rankers:
        return Layout.REPLAY, {}
    if log.ranks == NO_RANKS:
        raise LogError("Without rank columns (ranks 'none') the rankers are learned from the log. Leave rankers out.")
    pattern = log.ranks or DEFAULT_RANKS
    return Layout.WIDE, {name: pattern.replace("{ranker}", name) for name in sorted(set(rankers))}


def _check_rank_columns(schema: Schema, dialect: str) -> None:
    """Reject rankers that have no rank column of their own; the warehouse would fail, or take another column."""
    ignores_case = dialect not in _CASE_SENSITIVE
    roles = {name.lower() if ignores_case else name: role for role, name in schema.roles.items()}
    rankers: dict[str, str] = {}
    for ranker, column in schema.rank_columns.items():
        key = column.lower() if ignores_case else column
        if key in roles:
            raise LogError(
                f"The ranker {ranker!r} has no rank column: {column!r} is the column of the {roles[key]}. Give the "
                "pattern of the rank columns (ranks), such as ranks='rank_{ranker}'."
            )
        if key in rankers:
            raise LogError(
                f"The rank columns of {rankers[key]!r} and {ranker!r} differ only by upper and lower case, which "
                f"{dialect} ignores in names. Query a view that gives them other names."
            )
        rankers[key] = ranker
