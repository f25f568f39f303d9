"""Results that a page view shows twice, and positions that hold two of them."""

from __future__ import annotations

from typing import Any

from posbias.columns import guess
from posbias.engines.duckdb import Engine
from posbias.log import Problem, shell
from posbias.sql.shown import Plan, once
from posbias.sql.steps import Step, render


def find_repeats(engine: Engine, plan: Plan) -> list[Problem]:
    """Return results logged twice in a page view, and page views with two results at one position."""
    schema = plan.schema
    if schema.impression is None or schema.aggregated:
        return _find_crowded_queries(engine, plan)
    return [*_find_twice(engine, plan), *_find_crowded_views(engine, plan)]


def _views(plan: Plan) -> tuple[list[Step], str]:
    """Return the steps that end in `views`, rows by short names, and how an example is shown."""
    schema, d = plan.schema, plan.dialect
    names = zip("vqrdp", (schema.impression, schema.query, schema.ranker, schema.doc, schema.position), strict=True)
    columns = ", ".join(f"{d.quote(column or '')} AS {short}" for short, column in names)
    source = "once" if schema.drop_duplicates else "log"
    view = Step(
        "views",
        "Rows whose page view is known.",
        f"SELECT * FROM (SELECT {columns} FROM {source}) s\nWHERE v IS NOT NULL",
    )
    steps = [once(plan), view] if schema.drop_duplicates else [view]
    label = " || ', ' || ".join(
        f"{d.text(f'{column}=')} || COALESCE({d.as_text(short)}, 'null')"
        for short, column in (("v", schema.impression), ("q", schema.query))
    )
    return steps, label


def _find_twice(engine: Engine, plan: Plan) -> list[Problem]:
    schema, d = plan.schema, plan.dialect
    steps, label = _views(plan)
    label += f" || {d.text(f', {schema.doc}=')} || COALESCE({d.as_text('d')}, 'null')"
    sql = render(
        [
            *steps,
            Step(
                "results",
                "Each result of a page view: how often it was logged, and at how many positions.",
                "SELECT v, q, r, d, COUNT(*) AS n, COUNT(DISTINCT p) AS places\nFROM views\nGROUP BY v, q, r, d",
            ),
            Step(
                "pages",
                "Each page view.",
                "SELECT COUNT(DISTINCT r) AS rankers, SUM(n - places) AS again, "
                f"MIN(CASE WHEN n > places THEN {label} END) AS again_example, "
                "SUM(CASE WHEN places > 1 THEN 1 ELSE 0 END) AS moved, "
                f"MIN(CASE WHEN places > 1 THEN {label} END) AS moved_example, MIN({label}) AS example\n"
                "FROM results\nWHERE places > 0\nGROUP BY v, q",
            ),
            Step(
                "twice",
                "All together.",
                "SELECT SUM(again), MIN(again_example), SUM(moved), MIN(moved_example), "
                "SUM(CASE WHEN rankers > 1 THEN 1 ELSE 0 END), MIN(CASE WHEN rankers > 1 THEN example END), COUNT(*)\n"
                "FROM pages",
            ),
        ]
    )
    again, again_example, moved, moved_example, mixed, mixed_example, pages = engine.rows(sql, "Looking for repeats")[0]
    return [
        *_problem(
            "duplicates",
            "error",
            f"{again:,} rows repeat a result of the same page view at the same position, as at-least-once logging does"
            if again
            else "",
            again,
            again_example,
            f"They differ in more than the click, so that --duplicates drop keeps them: check {schema.impression!r}."
            if schema.drop_duplicates
            else "They would be counted twice: drop them.",
            "" if schema.drop_duplicates else "--duplicates drop",
        ),
        *_problem(
            "moved-in-view",
            "warning",
            f"{moved:,} results stand at several positions of one page view" if moved else "",
            moved,
            moved_example,
            f"Check that {schema.impression!r} names one page view, not a session. Each position is counted.",
        ),
        *_problem(
            "mixed-view",
            "warning",
            f"{mixed:,} of {pages:,} page views hold results of several rankers" if mixed else "",
            mixed,
            mixed_example,
            f"A page view is one ranker's list: check that {schema.impression!r} names one page view. If lists were "
            "interleaved, a position is not the ranker's own rank.",
        ),
    ]


def _find_crowded_views(engine: Engine, plan: Plan) -> list[Problem]:
    schema, d = plan.schema, plan.dialect
    steps, label = _views(plan)
    label += f" || {d.text(f', {schema.position}=')} || COALESCE({d.as_text('p')}, 'null')"
    sql = render(
        [
            *steps,
            Step(
                "places",
                "Each position of a page view.",
                "SELECT v, q, p, COUNT(DISTINCT d) AS docs\nFROM views\nWHERE p IS NOT NULL\nGROUP BY v, q, r, p",
            ),
            Step(
                "crowded", "Those with several results.", f"SELECT COUNT(*), MIN({label})\nFROM places\nWHERE docs > 1"
            ),
        ]
    )
    crowded, example = engine.rows(sql, "Looking for crowded positions")[0]
    return _problem(
        "crowded-position",
        "warning",
        f"{crowded:,} positions of a page view hold two or more results",
        crowded,
        example,
        f"Check {schema.position!r} and {schema.impression!r}; in a grid, number the cells in reading order. Each "
        "result is counted.",
    )


def _find_crowded_queries(engine: Engine, plan: Plan) -> list[Problem]:
    """Without page views: a query's ranker cannot show more results at a lower position than at the first."""
    schema, d = plan.schema, plan.dialect
    names = zip("qrp", (schema.query, schema.ranker, schema.position), strict=True)
    columns = ", ".join(
        f"{d.integer(d.quote(c), schema.types[c]) if short == 'p' else d.quote(c)} AS {short}" for short, c in names
    )
    count = schema.impressions
    n = d.integer(d.quote(count), schema.types[count]) if count else "1"
    label = (
        f"{d.text(f'{schema.query}=')} || {d.as_text('q')} || {d.text(f', {schema.ranker}=')} || {d.as_text('r')} || "
    )
    label += f"{d.text(f', {schema.position}=')} || {d.as_text('p')}"
    sql = render(
        [
            Step("typed", "Rows by short names.", f"SELECT {columns}, {n} AS n\nFROM log"),
            Step(
                "places",
                "What each ranker showed of a query at each position.",
                "SELECT q, r, p, SUM(n) AS n\nFROM typed\nWHERE q IS NOT NULL AND r IS NOT NULL AND p IS NOT NULL\n"
                "GROUP BY q, r, p",
            ),
            Step(
                "compared",
                "Beside what it showed at the first position that it has.",
                "SELECT q, r, p, n, FIRST_VALUE(n) OVER (PARTITION BY q, r ORDER BY p) AS top\nFROM places",
            ),
            Step("crowded", "Those with more.", f"SELECT COUNT(*), MIN({label})\nFROM compared\nWHERE n > top"),
        ]
    )
    crowded, example = engine.rows(sql, "Looking for repeats")[0]
    flags = ""
    if schema.aggregated:
        remedy = "Count results again from the log that was added up, each once for a page view."
    else:
        column = guess("impression", "impression_id", schema.types)
        flags = f"--impression {shell(column)}" if column else ""
        remedy = (
            "Name the column of the page view with --impression to tell which; rows logged twice can then be dropped "
            "with --duplicates drop."
        )
    return _problem(
        "crowded-position",
        "warning",
        f"{crowded:,} times a ranker has more results of a query at a position than at the first: one result logged "
        "twice, or two results at one position",
        crowded,
        example,
        remedy,
        flags,
    )


def _problem(
    name: str, severity: Any, what: str, count: int | None, example: str | None, remedy: str, flags: str = ""
) -> list[Problem]:
    return [Problem(name, severity, what, int(count), example, remedy, flags)] if count else []
