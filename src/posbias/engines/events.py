"""Check tables of impressions and clicks, and return the query that joins them into a log.

Nothing is joined here: `join_events` runs small queries that count problems, returns the problems as findings, and
returns the SQL of the log for an engine to run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from posbias._text import listed
from posbias.findings import Finding, UnusableLogError, unusable
from posbias.logs.click_log import Events
from posbias.logs.schema import CLICK, EXACT, VIEW, Columns, EventSchema, resolve_events, rounded_ids
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
from posbias.sql.plan import Step, render
from posbias.sql.trackers import Ubi

# Runs a query, named as a step of the progress, and returns its rows.
Rows = Callable[[str, str], list[tuple[Any, ...]]]
# At most one page view in this many may contradict the others before it is an error.
_PAGE_VIEWS_PER_ACCIDENT = 100
# From this share and this number on, clicks without an impression are an error.
_MAX_UNMATCHED_SHARE, _MIN_UNMATCHED = 0.5, 20
# Of this many page views, at least one should begin at the top.
_ENOUGH_PAGE_VIEWS = 20
# A column with more values is not one of applications but probably one of ids.
_MAX_APPLICATIONS = 1_000
# The counts of a written log: rows, page views and clicks.
LOG_COUNTS = f"COUNT(*), COUNT(DISTINCT {VIEW}), SUM({CLICK})"


@dataclass(frozen=True)
class WrittenLog:
    """A log that was written from events.

    Attributes:
        rows (int): the number of rows.
        page_views (int): the number of page views.
        clicks (int): the number of clicks.
        columns (tuple of str): the columns.
        findings (tuple of Finding): what was found in the events.
    """

    rows: int
    page_views: int
    clicks: int
    columns: tuple[str, ...]
    findings: tuple[Finding, ...]


def join_events(events: Events, dialect: Dialect, impressions: Columns, clicks: Columns, rows: Rows) -> Joined:
    """Check two tables, which queries read as `impressions` and `clicks`, and return the query that joins them.

    Arguments:
        events (Events): the tables, with the names of their columns.
        dialect (Dialect): the SQL of the engine.
        impressions (Columns): the columns of the impressions.
        clicks (Columns): the columns of the clicks.
        rows (callable): runs a query and returns its rows.
    """
    findings: list[Finding] = []
    ubi = None
    if events.preset == "ubi":
        ubi = Ubi(dialect, impressions, clicks, None if events.names_no_ranker else events.ranker)
        plan = EventPlan(ubi.schema, dialect, ubi.steps, "ubi_shown", "ubi_clicked", positions_as_logged=True)
        findings += _check_requests(rows(ubi.pages_query, "Checking requests"))
    else:
        plan = EventPlan(resolve_events(events, impressions, clicks), dialect, positions_as_logged=True)
    findings += [*_find_rounded_ids(plan, rows), *_check_missing_values(plan, rows)]
    counts = [_PageViewCounts(*row) for row in rows(shape_query(plan), "Checking page views")]
    if not sum(group.pages for group in counts):
        if ubi is not None and ubi.ranker is not None:
            [(results, named)] = rows(ubi.rankers_query, "Checking rankers")
            if results and not named:
                raise ubi.missing_ranker([text for (text,) in rows(ubi.attributes_query, "Checking rankers")])
        raise UnusableLogError(_no_results(), *findings)
    from_zero, first_findings = _first_positions(plan, counts, events.first)
    findings += [*first_findings, *_check_page_views(plan, counts, rows)]
    plan = replace(
        plan, positions_as_logged=False, from_zero=from_zero, irregular=any(group.irregular for group in counts)
    )
    findings += _check_clicks(plan, rows)
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        # The warnings, about rows that were left out, often explain the error.
        raise UnusableLogError(*errors, *(finding for finding in findings if finding.severity != "error"))
    return Joined(log_query(plan), tuple(findings))


@dataclass(frozen=True)
class Joined:
    """The query of the joined log, and the findings about its events."""

    query: str
    findings: tuple[Finding, ...]


def _check_requests(rows: Sequence[tuple[Any, ...]]) -> Iterator[Finding]:
    """Yield findings about UBI requests: results that were returned but not logged as seen, and later pages."""
    groups = [_RequestGroup(*row) for row in rows]
    hits = [group for group in groups if group.shown_by == "hits"]
    total = sum(group.requests for group in groups)
    if hits:
        names = listed(sorted({str(group.application) for group in hits}))
        yield Finding(
            "returned-counted-as-shown",
            "warning",
            f"{{count}} of {{requests}} requests are from applications that log no impressions ({names}), so all "
            "returned results count as shown",
            sum(group.requests for group in hits),
            None,
            {"requests": total},
            "Some returned results were not seen. The column 'shown_by' of the log marks these requests.",
        )
    # Some applications number the first page 0.
    first: dict[str | None, int] = {}
    for group in groups:
        if group.page is not None:
            first[group.application] = min(group.page, first.get(group.application, group.page))
    later = sum(group.at_top for group in groups if group.page is not None and group.page > first[group.application])
    if later:
        yield Finding(
            "later-pages",
            "warning",
            "{count} of {requests} requests are for a later page, and the positions on it start at the top again",
            later,
            None,
            {"requests": total},
            "Leave them out with a query, or add the number of results on earlier pages to their positions. The column "
            "'page' of the log marks these requests.",
        )


class _RequestGroup(NamedTuple):
    """Requests of one application for one page, shown by impression events or by hits.

    `at_top` is the number of requests whose positions start at the top.
    """

    application: str | None
    shown_by: str
    page: int | None
    requests: int
    at_top: int


def _find_rounded_ids(plan: EventPlan, rows: Rows) -> Iterator[Finding]:
    """Yield findings about ids that are stored as floats and are too large to be exact: clicks would join others."""
    schema, d = plan.schema, plan.dialect
    # The documents of an array are not looked at: as floats they are unheard of.
    shown = [schema.impression, schema.query, *([] if schema.position is None else [schema.doc])]
    tables = {
        "impressions": {name: schema.types[name] for name in shown},
        "clicks": {name: schema.click_types[name] for name in (schema.click_impression, schema.click_doc)},
    }
    for table, types in tables.items():
        for name, type_ in types.items():
            if type_ in EXACT:
                source = plan.impressions if table == "impressions" else plan.clicks
                condition = d.is_rounded(d.quote(name), type_)
                query = f"SELECT COUNT(CASE WHEN {condition} THEN 1 END) FROM {source}"
                [(count,)] = rows(render([*plan.source_steps, Step("rounded", "Rounded ids.", query)]), "Checking ids")
                if count:
                    yield rounded_ids(schema.user_names.get(name, name), type_, count, f"the {table}")


def _check_missing_values(plan: EventPlan, rows: Rows) -> Iterator[Finding]:
    """Yield findings about impressions without an id, a position or a document."""
    schema = plan.schema
    [(total, *counts)] = rows(missing_query(plan), "Checking impressions")
    if not total:
        raise unusable(
            "empty-log",
            "The impressions have no rows",
            "Check the path, or the filter that created them.",
        )
    left_out = "They are left out. If there should be none, fix the program that writes them."
    unit = "page views" if schema.position is None else "rows of the impressions"
    problems = [
        ("null", f"have no value in {schema.impression!r}, the page view", left_out),
        ("null", f"have no value in {schema.user_names.get(schema.query, schema.query)!r}, the query", left_out),
        (
            "null",
            f"have no value in {schema.user_names.get(schema.ranker or '', schema.ranker)!r}, the ranker",
            left_out,
        ),
    ]
    if schema.position is None:
        problems += [
            ("empty-page", f"show no results: {schema.doc!r} is missing or empty", "They have no rows in the log."),
            (
                "not-an-array",
                f"have text in {schema.doc!r} that is not a JSON array",
                'They are left out. Write arrays as JSON, such as ["x", "y"].',
            ),
        ]
    else:
        problems += [
            ("null", f"have no value in {schema.doc!r}, the document", left_out),
            ("not-a-position", f"have no whole number of 0 or more in {schema.position!r}", left_out),
        ]
    for (code, what, remedy), count in zip(problems, counts, strict=True):
        if count:
            yield Finding(
                code, "warning", f"{{count}} of {{rows}} {unit} {what}", int(count), None, {"rows": int(total)}, remedy
            )
    if schema.position is None:
        [(holes, nested, example)] = rows(empty_slots_query(plan), "Checking impressions")
        if holes:
            yield Finding(
                "null",
                "warning",
                f"{{count}} elements of {schema.doc!r} are no document",
                int(holes),
                remedy="They have no rows in the log. The documents below them keep their positions.",
            )
        if nested:
            yield Finding(
                "nested-document",
                "warning",
                f"{{count}} elements of {schema.doc!r} look like JSON objects or arrays, and each was used as an id of "
                "a document",
                int(nested),
                str(example)[:80],
                remedy="If they are not ids, build an array of ids with a query (sql).",
            )


class _PageViewCounts(NamedTuple):
    """Counts of the page views of one application: how many begin at position 0 or 1, and how many are irregular."""

    application: str | None
    pages: int
    results: int
    irregular: int
    at_zero: int
    at_one: int
    zero_example: str | None
    one_example: str | None


def _no_results() -> Finding:
    """Return the error for impressions without any usable result."""
    return Finding(
        "empty-log",
        "error",
        "The impressions have no result that can become a row of the log",
        remedy="Check the path, the filter that created them, and the column names.",
    )


def _first_positions(
    plan: EventPlan, counts: Sequence[_PageViewCounts], first: int | None
) -> tuple[tuple[str | None, ...], list[Finding]]:
    """Return the applications whose positions count from 0, and findings about first positions.

    Arguments:
        plan (EventPlan): the plan of the queries.
        counts (sequence): the counts of each application.
        first (int, optional): the top position, if the user gave it; else it is detected from the page views.
    """
    if plan.schema.position is None:
        return (), []
    if len(counts) > _MAX_APPLICATIONS:
        raise unusable(
            "too-many-applications",
            f"Column {plan.schema.application!r} has {len(counts):,} values, too many for applications",
            "Give the column of the application that logs the positions (application), or leave it out.",
            count=len(counts),
        )
    findings: list[Finding] = []
    from_zero: list[str | None] = []
    for group in counts:
        zero, one = group.at_zero, group.at_one
        name = "" if plan.schema.application is None else f" of application {group.application!r}"
        if first is None and min(zero, one) * _PAGE_VIEWS_PER_ACCIDENT > zero + one:
            findings.append(_two_first_positions(plan, group, name))
        if group.pages and not (zero if first == 0 else zero + one):
            findings.append(_no_first_position(group, first, name))
        if first == 0 or (first is None and zero > one):
            from_zero.append(group.application)
        elif zero:
            findings.append(
                Finding(
                    "zero-based-position",
                    "warning",
                    f"{{count}} page views{name} have a position 0, but positions count from 1",
                    zero,
                    f"{plan.schema.impression}={group.zero_example}",
                    {"page_views": group.pages},
                    "Results at position 0 are left out.",
                )
            )
    return tuple(from_zero), findings


def _no_first_position(group: _PageViewCounts, first: int | None, name: str) -> Finding:
    """Return the finding that no page view begins at the top position."""
    if first == 0 and group.at_one:
        return Finding(
            "no-first-position",
            "error",
            f"first=0 says that positions count from 0, but no page view{name} has a position 0, and {{count}} begin "
            "at 1: every result would be one rank too low",
            group.at_one,
            remedy="Give first=1, or leave it out.",
        )
    return Finding(
        "no-first-position",
        "error" if group.pages >= _ENOUGH_PAGE_VIEWS else "warning",
        f"None of {{count}} page views{name} begins at position {'0' if first == 0 else '0 or 1'}",
        group.pages,
        remedy="Propensities are relative to the top position. If positions count from another number, subtract it "
        "(sql); if these are only later pages of results, add the first ones.",
    )


def _two_first_positions(plan: EventPlan, group: _PageViewCounts, name: str) -> Finding:
    """Return the error for page views of which some begin at position 0 and others at 1."""
    by_application, one_at_a_time = (
        ("If two applications log differently, give the column of the application (application). ", "")
        if plan.schema.application is None
        else ("", ", for one application at a time if they differ (filter by sql and clicks_sql)")
    )
    return Finding(
        "mixed-first-positions",
        "error",
        f"{{at_zero}} page views{name} begin at position 0 and {{at_one}} at position 1",
        group.at_zero + group.at_one,
        f"{plan.schema.impression}={group.zero_example} and {plan.schema.impression}={group.one_example}",
        {"at_zero": group.at_zero, "at_one": group.at_one},
        f"Which one is the top position? {by_application}If the top result was not always logged, give the top "
        f"position (first=0 or first=1){one_at_a_time}.",
    )


def _check_page_views(plan: EventPlan, counts: Sequence[_PageViewCounts], rows: Rows) -> Iterator[Finding]:
    """Yield findings about page views that repeat a result, or contradict themselves."""
    if not any(group.irregular for group in counts):
        return
    [(repeats, moved, moved_example, conflicts, example)] = rows(irregularities_query(plan), "Checking page views")
    name = plan.schema.impression
    pages, results = (sum(getattr(group, kind) for group in counts) for kind in ("pages", "results"))
    if repeats:
        yield Finding(
            "duplicates",
            "warning",
            "{count} of {rows} results repeat a result of the same page view at the same position, as at-least-once "
            "logging does",
            int(repeats),
            None,
            {"rows": int(results)},
            "Each result is counted once.",
        )
    if moved:
        yield Finding(
            "document-at-several-positions",
            "warning",
            "{count} documents are at several positions of one page view",
            int(moved),
            f"{name}={moved_example}",
            {"rows": int(results)},
            f"They are left out, because a click does not say which position it was on. Check that {name!r} is the id "
            "of a page view, not of a session.",
        )
    if conflicts:
        is_error = conflicts * _PAGE_VIEWS_PER_ACCIDENT > pages
        grid = "" if plan.schema.position is None else " In a grid, number the cells in reading order."
        yield Finding(
            "conflicting-page-view",
            "error" if is_error else "warning",
            "{count} of {page_views} page views contradict themselves: the same id has different documents at one "
            "position, or different queries or rankers",
            int(conflicts),
            f"{name}={example}",
            {"page_views": int(pages)},
            f"{'' if is_error else 'They are left out. '}Is {name!r} the id of a page view, and not of a session or a "
            f"user?{grid}",
        )


def _check_clicks(plan: EventPlan, rows: Rows) -> Iterator[Finding]:
    """Yield findings about clicks: without ids, repeated, or on results that were not shown."""
    schema = plan.schema
    [(total, named)] = rows(clicks_query(plan), "Checking clicks")
    if not total:
        yield Finding(
            "no-clicks",
            "warning",
            "The clicks have no rows",
            remedy="No result counts as clicked. Check the path, or the filter that created them.",
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
    [(distinct,)] = rows(clicked_results_query(plan), "Checking clicks")
    [(unmatched_distinct, example, unmatched, on_known)] = rows(unmatched_clicks_query(plan), "Checking clicks")
    unmatched, on_known = int(unmatched or 0), int(on_known or 0)
    # Repeated clicks on a result that was not shown count as unmatched, not as repeated.
    repeated = int(named - distinct) - (unmatched - int(unmatched_distinct))
    if repeated:
        yield Finding(
            "double-clicks",
            "warning",
            "{count} of {clicks} clicks repeat a click on the same result of the same page view",
            repeated,
            None,
            {"clicks": int(total)},
            "A result counts as clicked once.",
        )
    if unmatched_distinct:
        on_unknown = unmatched - on_known
        all_unmatched = unmatched_distinct == distinct
        # The impressions may be a sample, so most clicks may be on page views that are not in it. On a page view
        # that is in it, most clicks are on documents that it shows, unless document ids differ between the tables.
        most_unmatched = on_known > max(_MIN_UNMATCHED, _MAX_UNMATCHED_SHARE * (named - on_unknown))
        yield Finding(
            "click-without-impression",
            "error" if all_unmatched or most_unmatched else "warning",
            "{count} of {clicks} clicks match no impression: {known} are on known page views that did not show the "
            "document, and {unknown} on unknown page views",
            unmatched,
            example,
            {"clicks": int(total), "known": on_known, "unknown": on_unknown},
            _unmatched_remedy(
                schema,
                all_unmatched=all_unmatched,
                most_unmatched=most_unmatched,
                most_on_unknown=on_unknown > _MAX_UNMATCHED_SHARE * named,
                more_on_known=on_known > on_unknown,
            ),
        )


def _unmatched_remedy(
    schema: EventSchema, *, all_unmatched: bool, most_unmatched: bool, most_on_unknown: bool, more_on_known: bool
) -> str:
    """Return the usual reason for clicks without an impression, and what to do."""
    if all_unmatched:
        return f"No click would be left. Are ids written the same way in both tables? They are {_id_columns(schema)}."
    if most_unmatched:
        return (
            "Most clicks on these page views would be lost. Does a document have the same id in both tables, and not "
            "the id of a product in one and of its variant, or its position, in the other? Ids are "
            f"{_id_columns(schema)}. Leave out clicks on other things, such as advertisements, by a query (clicks_sql)."
        )
    if most_on_unknown:
        return (
            "They are left out. That is correct if the impressions are a sample. Otherwise compare the days of both "
            f"tables, and how the ids of page views are written: they are {_id_columns(schema)}."
        )
    if more_on_known:
        return (
            "They are left out. Usually the click was on something else, such as an advertisement, or one table has "
            "the id of a product and the other the id of its variant."
        )
    return "They are left out. Usually they belong to page views of the day before, or to pages that were not logged."


def _id_columns(schema: EventSchema) -> str:
    """Return the id columns of both tables with their types, as text."""
    impression_ids = [(schema.impression, schema.types[schema.impression]), (schema.doc, schema.types[schema.doc])]
    click_ids = [(name, schema.click_types[name]) for name in (schema.click_impression, schema.click_doc)]
    in_impressions, in_clicks = (
        ", ".join(f"{name!r} ({type_})" for name, type_ in columns) for columns in (impression_ids, click_ids)
    )
    return f"{in_impressions} in the impressions, and {in_clicks} in the clicks"
