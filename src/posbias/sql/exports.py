"""The harvest as one query whose answer is exported: the answer says what it is, and whether it is whole."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posbias.sql.dialects import Warehouse
from posbias.sql.plan import QueryPlan, Step, comma, render, shown_steps
from posbias.sql.signatures import signature_steps

FORMAT_VERSION = 1
# What `bucket` holds for rows of a replay that are counted nowhere: beyond M, or without impressions.
BEYOND, EMPTY = -1, -2
# And for rows that cannot be counted, by the reason.
NO_RANKER, NO_POSITION, NO_CLICK, NO_ID = -3, -4, -5, -6


def printed(plan: ExportPlan, dialect: Warehouse, table: str, about: Mapping[str, Any]) -> str:
    """Return the whole query: of "signatures" or of "exposures", as `table` says."""
    steps, columns = (_signatures if table == "signatures" else _exposures)(plan)
    text = json.dumps({"version": FORMAT_VERSION, "table": table, **about})
    steps.append(_answer(plan, steps[-1].name, columns, text))
    head = (
        "-- The counts that posbias estimates position bias from, in one scan of the log.\n"
        "-- Export the whole result as CSV or Parquet, and read it with: posbias estimate FILE\n"
    )
    return f"{head}{render(steps)}{dialect.query_suffix}\n"


@dataclass(frozen=True)
class ExportPlan(QueryPlan):
    """What a harvest asks of a table that is not opened: without names of rankers, they are taken as they come."""

    def ranker_number(self, expression: str, type_: str) -> str:
        """Return the number of the ranker that a column names, or its name where no ranker is known beforehand."""
        name = self.dialect.as_text(expression)
        return super().ranker_number(name, "VARCHAR") if self.rankers else name

    def click_of_copies(self, typed: str) -> str:
        """Return the click of a result logged several times; rows of no page view cannot be told from copies."""
        view = self.dialect.quote(self.schema.impression or "")
        return f"CASE WHEN COUNT({view}) > 0 THEN {super().click_of_copies(typed)} ELSE -1 END"


def _signatures(plan: QueryPlan) -> tuple[list[Step], list[str]]:
    return signature_steps(plan), ["bucket", "ranker", *plan.coding.names, "impressions", "clicks", "row_count"]


def _exposures(plan: QueryPlan) -> tuple[list[Step], list[str]]:
    """Pairs by the exposure and the clicks they had, as one text, so that no step is read twice."""
    d, segments = plan.dialect, plan.segments
    keys = comma(segments, "mark", "query_key", "doc_key", "ranker_key", "rank_key")
    # A name may hold anything: without its spaces it ends where the next cell begins.
    name = "REPLACE(REPLACE(ranker_key, '~', '~~'), ' ', '~s')"
    numbers = " || ':' || ".join(d.as_text(c) for c in ("rank_key", "impressions", "clicks"))
    cell = f"CASE WHEN mark = 0 THEN\n    {numbers}\n    || ':' || {name} ELSE '' END"
    pair = comma(segments, "mark", "query_key", "doc_key")
    bucket = d.bucket("query_key", "UNKNOWN")
    columns = ["bucket", "stratum", "pairs", "row_count"]
    return [
        *shown_steps(plan, ranks=False),
        Step(
            "marked",
            "Which rows count (0), and why others do not.",
            f"SELECT {comma(segments, 'query', 'doc', 'ranker', 'position', 'impressions', 'clicks')},\n"
            f"  {_mark(plan)} AS mark\nFROM shown",
        ),
        Step(
            "kept",
            "Rows that do not count, without all that could tell them apart.",
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
            f"COUNT(*) AS row_count\nFROM kept\nGROUP BY {keys}",
        ),
        Step(
            "pairs",
            "Each (query, document) once, with all its cells as one text: rank, impressions, clicks, ranker.",
            f"SELECT {pair},\n  {d.string_agg(cell, 'ranker_key, rank_key')} AS stratum,\n"
            f"  {d.total('row_count')} AS row_count\nFROM cells\nGROUP BY {pair}",
        ),
        Step(
            "bucketed",
            "The bucket of its query, or the mark of rows that do not count.",
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
    ], columns


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
    """The last step: with it a reader can tell what the answer is and that no row is missing."""
    # After a colon an empty segment is not taken for a missing one, however the export writes it.
    segments = [f"':' || {name} AS {name}" for name in plan.segments]
    return Step(
        "answer",
        "The counts, with what they are in one row and their number in all: a part of them is known as such.",
        f"SELECT {comma(segments, columns)},\n"
        f"  CASE WHEN ROW_NUMBER() OVER (ORDER BY bucket) = 1 THEN\n    {plan.dialect.literal(about)} END AS about,\n"
        f"  COUNT(*) OVER () AS answer_rows\nFROM {source}",
    )
