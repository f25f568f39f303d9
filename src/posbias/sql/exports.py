"""The harvest as one query to print and run in a warehouse, whose exported answer posbias reads back.

Each step is read once, so the warehouse scans the log once; only the units of a replay are compared by joins. The
answer describes itself: one row holds, as JSON in `about`, what was asked, and each row holds the number of all rows in
`answer_rows`. So a reader can tell what an export is and whether it is complete. `docs/warehouse.md` describes the
columns; `harvesting/exports.py` reads them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posbias.sql.dialects import Warehouse
from posbias.sql.exposures import LOSSES, unit_loss_steps, unit_rows_step, unit_totals_step
from posbias.sql.plan import QueryPlan, Step, bucket_steps, comma, render, shown_steps
from posbias.sql.signatures import signature_steps

FORMAT_VERSION = 3
# The answer to a query without a unit, or with strata by unit, is as before, so that an older posbias can read it.
_VERSION_WITHOUT_UNITS, _VERSION_WITHOUT_LOSSES = 1, 2
# What is lost without a bucket of units comes as a whole number of millionths: each warehouse writes fractions its way.
LOSS_SCALE = 10**6
# The bucket of rows that are not counted in replay: beyond the top M, or without impressions.
BEYOND, EMPTY = -1, -2
# The bucket of rows that cannot be used, by the reason.
NO_RANKER, NO_POSITION, NO_CLICK, NO_ID = -3, -4, -5, -6


def export_query(plan: ExportPlan, dialect: Warehouse, table: str, about: Mapping[str, Any]) -> str:
    """Return the query to print.

    Arguments:
        plan (ExportPlan): what is asked of the table.
        dialect (Warehouse): the SQL to write.
        table (str): "signatures" if each ranker's rank is known, "exposures" if not (replay).
        about (mapping): what the answer says of itself, beside its version and table.
    """
    steps, columns = (_signatures if table == "signatures" else _exposures)(plan)
    with_units = _VERSION_WITHOUT_LOSSES if table == "signatures" else FORMAT_VERSION
    version = _VERSION_WITHOUT_UNITS if plan.schema.unit is None else with_units
    text = json.dumps({"version": version, "table": table, **about})
    steps.append(_answer(plan, steps[-1].name, columns, text))
    scan = "" if version == FORMAT_VERSION else ", in one scan of the log"
    head = (
        f"-- The counts that posbias estimates position bias from{scan}.\n"
        "-- Export the whole result as CSV or Parquet, and read it with: posbias estimate FILE\n"
    )
    return f"{head}{render(steps)}{dialect.query_suffix}\n"


@dataclass(frozen=True)
class ExportPlan(QueryPlan):
    """What a harvest asks of a table that posbias does not open; without `rankers` their names are read from it."""

    def ranker_number(self, expression: str, type_: str) -> str:
        """Return SQL for the number of the ranker that a column names, or for its name where `rankers` is empty."""
        name = self.dialect.as_text(expression)
        return super().ranker_number(name, "VARCHAR") if self.rankers else name

    def click_of_copies(self, click: str) -> str:
        """Return SQL for the click of a result that was logged several times.

        It is -1, which is no click, for rows without a page view: they may be copies or different results.
        """
        view = self.dialect.quote(self.schema.impression or "")
        return f"CASE WHEN COUNT({view}) > 0 THEN {super().click_of_copies(click)} ELSE -1 END"


def _signatures(plan: QueryPlan) -> tuple[list[Step], list[str]]:
    return signature_steps(plan), ["bucket", "ranker", *plan.coding.names, "impressions", "clicks", "row_count"]


def _exposures(plan: QueryPlan) -> tuple[list[Step], list[str]]:
    """Return the steps and columns of the replay harvest: pairs by exposure and clicks as one text.

    The text holds both, so that no step is read twice.
    """
    d, segments = plan.dialect, plan.segments
    keys = comma(segments, "mark", "query_key", "doc_key", "ranker_key", "rank_key")
    # Cells are separated by spaces, so a space in the name of a ranker is escaped.
    name = "REPLACE(REPLACE(ranker_key, '~', '~~'), ' ', '~s')"
    numbers = " || ':' || ".join(d.as_text(c) for c in ("rank_key", "impressions", "clicks"))
    cell = f"CASE WHEN mark = 0 THEN\n    {numbers}\n    || ':' || {name} ELSE '' END"
    pair = comma(segments, "mark", "query_key", "doc_key")
    bucket = d.bucket("query_key", "UNKNOWN")
    columns = ["bucket", "stratum", "pairs", "row_count"]
    unit = [] if plan.schema.unit is None else ["unit"]
    return [
        *shown_steps(plan, ranks=False),
        Step(
            "marked",
            "Mark 0 for rows that count, a negative number for the reason why others do not.",
            f"SELECT {comma(segments, 'query', 'doc', 'ranker', 'position', 'impressions', 'clicks', unit)},\n"
            f"  {_mark(plan)} AS mark\nFROM shown",
        ),
        Step(
            "keyed",
            "Rows that do not count lose everything but their mark, so that they add up to one row.",
            f"SELECT {comma(segments, 'mark')},\n  "
            + ",\n  ".join(
                f"CASE WHEN mark = 0 THEN {column} END AS {key}"
                for column, key in (
                    ("query", "query_key"),
                    ("doc", "doc_key"),
                    ("ranker", "ranker_key"),
                    ("position", "rank_key"),
                    ("impressions", "shown_times"),
                    ("clicks", "clicked_times"),
                )
            )
            + "\nFROM marked",
        ),
        Step(
            "cells",
            "Each (query, document) at each rank by each ranker.",
            f"SELECT {keys},\n  {d.total('shown_times')} AS impressions, {d.total('clicked_times')} AS clicks, "
            f"COUNT(*) AS row_count\nFROM keyed\nGROUP BY {keys}",
        ),
        Step(
            "pairs",
            "Each (query, document) once, with all its cells as one text: rank, impressions, clicks, ranker.",
            f"SELECT {pair},\n  {d.string_agg(cell, 'ranker_key, rank_key')} AS stratum,\n"
            f"  {d.total('row_count')} AS row_count\nFROM cells\nGROUP BY {pair}",
        ),
        Step(
            "bucketed",
            "The bucket of the pair, or the mark of rows that do not count.",
            f"SELECT {comma(segments, 'stratum', 'row_count')},\n"
            f"  CASE WHEN mark = 0 THEN {bucket} ELSE mark END AS bucket\nFROM pairs",
        ),
        Step(
            "exposures",
            "Pairs with the same exposure and clicks.",
            f"SELECT {comma(segments, 'bucket', 'stratum')},\n"
            f"  COUNT(*) AS pairs, {d.total('row_count')} AS row_count\n"
            f"FROM bucketed\nGROUP BY {comma(segments, 'bucket', 'stratum')}",
        ),
        *(_unit_steps(plan, name, columns) if unit else ()),
    ], columns


def _unit_steps(plan: QueryPlan, name: str, columns: Sequence[str]) -> list[Step]:
    """Return the steps that add the counts by bucket of units to the answer, each row as a text in `stratum`.

    Plain counts are rank, impressions, clicks and ranker. Losses are the word "lost", two ranks, and the columns of
    `LOSSES`.
    """
    d, segments = plan.dialect, plan.segments
    # The length of the query stands first, so that no two pairs give the same text.
    query = d.as_text("query")
    text = " || ".join([f"COALESCE(':' || {s}, '') || ' '" for s in segments] + [d.as_text(f"LENGTH({query})")])
    pair = d.hash(f"{text} || ':' || {query} || {d.as_text('doc')}")
    counts = " || ':' || ".join(d.as_text(column) for column in ("rank", "impressions", "clicks"))
    losses = " || ':' || ".join(d.as_text(column) for column in ("rank", "other", *LOSSES))
    rows = (
        f"SELECT {comma(segments, columns)}\nFROM exposures\nUNION ALL\n"
        f"SELECT {comma(segments, 'bucket')}, {counts} || ':' || {name}, 1, 1\nFROM unit_totals\nUNION ALL\n"
        f"SELECT {comma(segments, 'bucket')}, 'lost:' || {losses}, 1, 1\nFROM unit_losses"
    ).replace("ranker_key", "ranker")
    return [
        *bucket_steps(plan, "marked"),
        unit_rows_step(plan, pair, "mark = 0"),
        unit_totals_step(plan),
        *unit_loss_steps(plan, lambda lost: d.total(d.cast(f"ROUND(({lost}) * {LOSS_SCALE})", "BIGINT"))),
        Step("with_units", "The counts by bucket of units follow those by bucket of queries.", rows),
    ]


def _mark(plan: QueryPlan) -> str:
    many = plan.schema.aggregated
    bad = "clicks IS NULL OR clicks < 0 OR clicks > impressions" + (" OR impressions IS NULL" if many else "")
    cases = {
        "ranker IS NULL": NO_RANKER,
        "position IS NULL OR position < 1": NO_POSITION,
        bad: NO_CLICK,
        f"position > {plan.max_rank}": BEYOND,
        **({"impressions = 0": EMPTY} if many else {}),
        "query IS NULL OR doc IS NULL": NO_ID,
    }
    whens = "".join(f"\n    WHEN {condition} THEN {mark}" for condition, mark in cases.items())
    return f"CASE{whens}\n    ELSE 0 END"


def _answer(plan: QueryPlan, source: str, columns: Sequence[str], about: str) -> Step:
    """Return the last step, which adds what a reader needs to check the answer."""
    # With a colon in front, an empty segment is not mistaken for a missing one in an export.
    segments = [f"':' || {name} AS {name}" for name in plan.segments]
    return Step(
        "answer",
        "The counts. One row says what they are, and every row how many rows there are: a cut export is noticed.",
        f"SELECT {comma(segments, columns)},\n"
        f"  CASE WHEN ROW_NUMBER() OVER (ORDER BY bucket) = 1 THEN\n    {plan.dialect.literal(about)} END AS about,\n"
        f"  COUNT(*) OVER () AS answer_rows\nFROM {source}",
    )
