"""Join impressions and clicks into a log, and report what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from posbias._text import listed
from posbias.findings import Finding, UnusableLogError, unusable
from posbias.logs.click_log import Events
from posbias.logs.schema import CLICK, VIEW, Columns, EventSchema, resolve_events
from posbias.sql.dialects import Dialect
from posbias.sql.events import (
    EventPlan,
    clicked_results_query,
    clicks_query,
    empty_slots_query,
    irregularities_query,
    log_query,
    missing_query,
    shape_query,
    unmatched_clicks_query,
)
from posbias.sql.trackers import Ubi

Rows = Callable[[str, str], list[tuple[Any, ...]]]
# One page view in so many may contradict the others before it is no longer an accident.
_ACCIDENT = 100
# From this share of clicks on, what was not shown is no accident either; not of a handful.
_MOST_ASTRAY, _FEWEST_ASTRAY = 0.5, 20
# Nobody has so many applications, but a column of ids has more values.
_MOST_APPLICATIONS = 1_000
# What is counted of a log that was written.
LOG_COUNTS = f"COUNT(*), COUNT(DISTINCT {VIEW}), SUM({CLICK})"


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
        plan = EventPlan(ubi.schema, dialect, ubi.steps, "ubi_shown", "ubi_clicked", positions_as_logged=True)
        findings += find_requests(rows(ubi.pages_query, "Looking at requests"))
    else:
        plan = EventPlan(resolve_events(events, impressions, clicks), dialect, positions_as_logged=True)
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
    plan = replace(plan, positions_as_logged=False, from_zero=from_zero, irregular=any(shape.odd for shape in shapes))
    findings += find_lost(plan, rows)
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        # What was left out on the way is often why.
        raise UnusableLogError(*errors, *(finding for finding in findings if finding.severity != "error"))
    return Joined(log_query(plan), tuple(findings))


@dataclass(frozen=True)
class Joined:
    """The query that makes the log, and what is to be said of what it is made from."""

    query: str
    findings: tuple[Finding, ...]


def find_requests(rows: Sequence[tuple[Any, ...]]) -> Iterator[Finding]:
    """Yield which requests are known by what was returned alone, and which for later pages begin at the top again."""
    requests = [Requests(*row) for row in rows]
    hits = [one for one in requests if one.shown_by == "hits"]
    total = sum(one.requests for one in requests)
    if hits:
        names = listed(sorted({str(one.application) for one in hits}))
        yield Finding(
            "returned-counted-as-shown",
            "warning",
            f"{{count}} of {{requests}} requests are of applications that log no impressions ({names}): what was "
            "returned counts as shown",
            sum(one.requests for one in hits),
            None,
            {"requests": total},
            "What was returned was not always seen. The column 'shown_by' tells them apart.",
        )
    # Some applications call the first page 0.
    first: dict[str | None, int] = {}
    for one in requests:
        if one.page is not None:
            first[one.application] = min(one.page, first.get(one.application, one.page))
    later = sum(one.at_top for one in requests if one.page is not None and one.page > first[one.application])
    if later:
        yield Finding(
            "later-pages",
            "warning",
            "{count} of {requests} requests are for a later page, whose results are counted from the topmost position "
            "again",
            later,
            None,
            {"requests": total},
            "Leave them out by a query, or add the results of the pages before to their positions: the column 'page' "
            "tells them apart.",
        )


class Requests(NamedTuple):
    """How many requests an application has of one page, by what tells that they were shown, and where these begin."""

    application: str | None
    shown_by: str
    page: int | None
    requests: int
    at_top: int


def find_missing(plan: EventPlan, rows: Rows) -> Iterator[Finding]:
    """Yield rows of the impressions that lack what they must have, and elements of arrays that are no document."""
    schema = plan.schema
    [(total, *counts)] = rows(missing_query(plan), "Looking for gaps")
    if not total:
        raise unusable(
            "empty-log",
            "The impressions are empty: they have their columns but no row",
            "Check the path, or the filter that made them.",
        )
    nothing = "They are left out. If there should be none, repair what writes them."
    whole = "page views" if schema.position is None else "rows of the impressions"
    told = [
        ("null", f"have no value in {schema.impression!r}, the page view", nothing),
        ("null", f"have no value in {schema.called.get(schema.query, schema.query)!r}, the query", nothing),
        ("null", f"have no value in {schema.called.get(schema.ranker or '', schema.ranker)!r}, the ranker", nothing),
    ]
    if schema.position is None:
        told += [
            ("empty-page", f"show nothing: {schema.doc!r} is missing or empty", "They have no row in the log."),
            (
                "not-an-array",
                f"have a text in {schema.doc!r} that is no JSON array",
                'They are left out. Write arrays as JSON, such as ["x", "y"].',
            ),
        ]
    else:
        told += [
            ("null", f"have no value in {schema.doc!r}, the document", nothing),
            ("not-a-position", f"have no whole number from 0 on in {schema.position!r}", nothing),
        ]
    for (code, what, remedy), count in zip(told, counts, strict=True):
        if count:
            yield Finding(
                code, "warning", f"{{count}} of {{rows}} {whole} {what}", int(count), None, {"rows": int(total)}, remedy
            )
    if schema.position is None:
        [(holes, nested, example)] = rows(empty_slots_query(plan), "Looking for gaps")
        if holes:
            yield Finding(
                "null",
                "warning",
                f"{{count}} places in {schema.doc!r} hold no document",
                int(holes),
                remedy="They have no row in the log, and the documents below keep their positions.",
            )
        if nested:
            yield Finding(
                "nested-document",
                "warning",
                f"{{count}} elements of {schema.doc!r} look like objects or arrays of JSON, and each was taken for "
                "the id of a document as it is",
                int(nested),
                str(example)[:80],
                remedy="If so, make an array of their ids by a query (sql).",
            )


class Shape(NamedTuple):
    """What the page views of one application look like."""

    application: str | None
    pages: int
    results: int
    odd: int
    at_zero: int
    at_one: int
    zero_example: str | None
    one_example: str | None


def no_results(findings: Sequence[Finding]) -> list[Finding]:
    """Return, as findings, that nothing is left, and why."""
    none = Finding(
        "empty-log",
        "error",
        "The impressions hold no result that could be a row of the log",
        remedy="Check the path, or the filter that made them, and the columns that were named.",
    )
    return [none, *findings]


def first_positions(
    plan: EventPlan, shapes: Sequence[Shape], told: int | None
) -> tuple[tuple[str | None, ...], list[Finding]]:
    """Return the applications whose positions count from 0, as their page views tell unless the user does."""
    if plan.schema.position is None:
        return (), []
    if len(shapes) > _MOST_APPLICATIONS:
        raise unusable(
            "too-many-applications",
            f"Column {plan.schema.application!r} has {len(shapes):,} values: too many to be applications",
            "Name the column of what logs the positions (application), or leave it out.",
            count=len(shapes),
        )
    found: list[Finding] = []
    from_zero: list[str | None] = []
    for shape in shapes:
        zero, one = shape.at_zero, shape.at_one
        name = "" if plan.schema.application is None else f" of application {shape.application!r}"
        if told is None and min(zero, one) * _ACCIDENT > zero + one:
            found.append(_begin_twice(plan, shape, name))
        if told == 0 or (told is None and zero > one):
            from_zero.append(shape.application)
        elif zero:
            found.append(
                Finding(
                    "zero-based-position",
                    "warning",
                    f"{{count}} page views{name} have a position 0, where positions count from 1",
                    zero,
                    f"{plan.schema.impression}={shape.zero_example}",
                    {"page_views": shape.pages},
                    "What stands there is left out.",
                )
            )
    return tuple(from_zero), found


def _begin_twice(plan: EventPlan, shape: Shape, name: str) -> Finding:
    apart, each = (
        ("If two applications log differently, name the column that tells them apart (application). ", "")
        if plan.schema.application is None
        else ("", ", of one application at a time if they differ (sql and clicks_sql leave the others out)")
    )
    return Finding(
        "duplicate-top-position",
        "error",
        f"{{at_zero}} page views{name} begin at position 0 and {{at_one}} at position 1",
        shape.at_zero + shape.at_one,
        f"{plan.schema.impression}={shape.zero_example} and {plan.schema.impression}={shape.one_example}",
        {"at_zero": shape.at_zero, "at_one": shape.at_one},
        f"Which is the topmost? {apart}If the topmost result was not always logged, say where positions begin (first=0 "
        f"or first=1){each}.",
    )


def find_oddities(plan: EventPlan, shapes: Sequence[Shape], rows: Rows) -> Iterator[Finding]:
    """Yield what page views show twice, and which of them are two."""
    if not any(shape.odd for shape in shapes):
        return
    [(repeats, moved, moved_example, conflicts, example)] = rows(
        irregularities_query(plan), "Looking closer at page views"
    )
    name = plan.schema.impression
    pages, results = (sum(getattr(shape, kind) for shape in shapes) for kind in ("pages", "results"))
    if repeats:
        yield Finding(
            "duplicates",
            "warning",
            "{count} of {rows} results repeat one of the same page view at the same position, as at-least-once logging "
            "does",
            int(repeats),
            None,
            {"rows": int(results)},
            "Each is counted once.",
        )
    if moved:
        yield Finding(
            "document-at-several-positions",
            "warning",
            "{count} documents stand at several positions of one page view",
            int(moved),
            f"{name}={moved_example}",
            {"rows": int(results)},
            f"They are left out, because a click does not tell which was meant. Check that {name!r} names one page "
            "view, not a session.",
        )
    if conflicts:
        many = conflicts * _ACCIDENT > pages
        grid = "" if plan.schema.position is None else " In a grid, number the cells in reading order."
        yield Finding(
            "conflicting-page-view",
            "error" if many else "warning",
            "{count} of {page_views} page views contradict themselves: one id, but other documents at the same place, "
            "or another query or ranker",
            int(conflicts),
            f"{name}={example}",
            {"page_views": int(pages)},
            f"{'' if many else 'They are left out. '}Is {name!r} the id of a page view, and not of a session or a "
            f"user?{grid}",
        )


def find_lost(plan: EventPlan, rows: Rows) -> Iterator[Finding]:
    """Yield what is odd about clicks: without ids, several on one result, on what was not shown."""
    schema = plan.schema
    [(total, named)] = rows(clicks_query(plan), "Looking at clicks")
    if not total:
        yield Finding(
            "no-clicks",
            "warning",
            "The clicks are empty: they have their columns but no row",
            remedy="Every result counts as not clicked. Check the path, or the filter that made them.",
        )
        return
    if named < total:
        yield Finding(
            "null",
            "warning",
            f"{{count}} of {{clicks}} clicks have no value in {schema.click_impression!r} or {schema.click_doc!r}",
            int(total - named),
            None,
            {"clicks": int(total)},
            "They are left out.",
        )
    [(tapped,)] = rows(clicked_results_query(plan), "Looking at clicks")
    [(lost, example, astray, known)] = rows(unmatched_clicks_query(plan), "Looking for clicks on what was not shown")
    astray, known = int(astray or 0), int(known or 0)
    # What was not shown is that, however often it was clicked.
    again = int(named - tapped) - (astray - int(lost))
    if again:
        yield Finding(
            "double-clicks",
            "warning",
            "{count} of {clicks} clicks repeat one on the same result of the same page view",
            again,
            None,
            {"clicks": int(total)},
            "A result counts as clicked once.",
        )
    if lost:
        unknown = astray - known
        every = lost == tapped
        # Impressions may be a sample, so that most clicks are on page views that are not there. Those that are there
        # show most of what is clicked on them, or documents are called otherwise.
        mostly = known > max(_FEWEST_ASTRAY, _MOST_ASTRAY * (named - unknown))
        yield Finding(
            "click-without-impression",
            "error" if every or mostly else "warning",
            "{count} of {clicks} clicks are on what was not shown: {known} on page views that are there, without this "
            "document, and {unknown} on others",
            astray,
            example,
            {"clicks": int(total), "known": known, "unknown": unknown},
            _why_lost(
                schema, every=every, mostly=mostly, elsewhere=unknown > _MOST_ASTRAY * named, here=known > unknown
            ),
        )


def _why_lost(schema: EventSchema, *, every: bool, mostly: bool, elsewhere: bool, here: bool) -> str:
    if every:
        return f"No click would be left. Are ids written alike in both tables? They are {_ids_told(schema)}."
    if mostly:
        return (
            "Most clicks on these page views would be lost. Is a document called the same in both tables, and not by a "
            f"product in one and its variant in the other, or by its place? Ids are {_ids_told(schema)}. Clicks on "
            "what is no result, such as an advertisement, are left out by a query (clicks_sql)."
        )
    if elsewhere:
        return (
            "They are left out. If the impressions are a sample, that is as it should be; else compare the days of "
            f"both tables, and how ids of page views are written: they are {_ids_told(schema)}."
        )
    if here:
        return (
            "They are left out. The usual reason is that something else was clicked, such as an advertisement, or that "
            "a document is called by its product in one table and by a variant in the other."
        )
    return "They are left out. Page views of the day before, or of pages that were not logged, are the usual reason."


def _ids_told(schema: EventSchema) -> str:
    shown = [(schema.impression, schema.types[schema.impression]), (schema.doc, schema.types[schema.doc])]
    tapped = [(name, schema.click_types[name]) for name in (schema.click_impression, schema.click_doc)]
    one, other = (", ".join(f"{name!r} ({type_})" for name, type_ in pair) for pair in (shown, tapped))
    return f"{one} in the impressions, and {other} in the clicks"
