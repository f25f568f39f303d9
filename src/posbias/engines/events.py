"""Two tables of events looked at before they are joined: what is odd about them, and the query that makes the log."""

from __future__ import annotations

from dataclasses import dataclass, replace

from posbias.engines.event_findings import (
    Rows,
    Shape,
    find_lost,
    find_missing,
    find_oddities,
    first_positions,
    no_results,
)
from posbias.engines.ubi_findings import find_requests
from posbias.findings import Finding, UnusableLogError
from posbias.logs.event_schemas import CLICK, VIEW, resolve_events
from posbias.logs.events import Events
from posbias.logs.schemas import Columns
from posbias.sql.dialect import Dialect
from posbias.sql.event_looks import shape_query
from posbias.sql.events import EventPlan, log_query
from posbias.sql.ubi import Ubi

# What is counted of a log that was written.
LOG_COUNTS = f"COUNT(*), COUNT(DISTINCT {VIEW}), SUM({CLICK})"


@dataclass(frozen=True)
class Joined:
    """The query that makes the log, and what is to be said of what it is made from."""

    query: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class WrittenLog:
    """A log that was written: its rows, page views, clicks and columns, and what was found in the events."""

    rows: int
    page_views: int
    clicks: int
    columns: tuple[str, ...]
    findings: tuple[Finding, ...]


def join_events(events: Events, dialect: Dialect, impressions: Columns, clicks: Columns, rows: Rows) -> Joined:
    """Look at two tables, opened as `impressions` and `clicks`, and say how they are joined; `rows` runs a query."""
    findings: list[Finding] = []
    ubi = None
    if events.preset == "ubi":
        ubi = Ubi(dialect, impressions, clicks, None if events.names_no_ranker else events.ranker)
        plan = EventPlan(ubi.schema, dialect, ubi.steps, "ubi_shown", "ubi_clicked", first_look=True)
        findings += find_requests(rows(ubi.pages_query, "Looking at requests"))
    else:
        plan = EventPlan(resolve_events(events, impressions, clicks), dialect, first_look=True)
    findings += find_missing(plan, rows)
    shapes = [Shape(*row) for row in rows(shape_query(plan), "Looking at page views")]
    if not sum(shape.pages for shape in shapes):
        if ubi is not None and ubi.ranker is not None:
            [(results, named)] = rows(ubi.rankers_query, "Looking for rankers")
            if results and not named:
                raise ubi.no_ranker([text for (text,) in rows(ubi.attributes_query, "Looking for rankers")])
        raise UnusableLogError(*no_results(findings))
    from_zero, odd = first_positions(plan, shapes, events.first)
    findings += [*odd, *find_oddities(plan, shapes, rows)]
    plan = replace(plan, first_look=False, from_zero=from_zero, odd=any(shape.odd for shape in shapes))
    findings += find_lost(plan, rows)
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        # What was left out on the way is often why.
        raise UnusableLogError(*errors, *(finding for finding in findings if finding.severity != "error"))
    return Joined(log_query(plan), tuple(findings))
