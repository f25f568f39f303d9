"""Results that a page view shows twice, and positions that hold two of them."""

from __future__ import annotations

from collections.abc import Mapping

from posbias.engines import OpenLog
from posbias.findings import Finding, Severity
from posbias.judging.looks import Look
from posbias.logs.columns import guess
from posbias.sql.shown import Plan, once
from posbias.sql.steps import Step, render
from posbias.wording import Arguments


def find_repeats(look: Look) -> list[Finding]:
    """Return results logged twice in a page view, and page views with two results at one position."""
    opened, plan = look.opened, look.plan
    schema = plan.schema
    if schema.impression is None or schema.aggregated:
        return _find_crowded_queries(opened, plan)
    rows, places, results, lists, pages = opened.rows(_screen(plan), "Looking for repeats")[0]
    found: list[Finding] = []
    if places < rows:
        found += _find_duplicates(opened, plan) + _find_crowded(opened, plan)
    if results < rows:
        found += _find_moved(opened, plan)
    if pages < lists:
        found += _find_mixed(opened, plan, pages)
    return found


def _views(plan: Plan) -> list[Step]:
    """Return the steps that end in `views`: rows whose page view is known, by short names."""
    schema, d = plan.schema, plan.dialect
    names = zip("vqrdp", (schema.impression, schema.query, schema.ranker, schema.doc, schema.position), strict=True)
    columns = ", ".join(f"{d.quote(column or '')} AS {short}" for short, column in names)
    source = "once" if schema.drop_duplicates else "log"
    select = f"SELECT * FROM (SELECT {columns} FROM {source}) s\nWHERE v IS NOT NULL AND p IS NOT NULL"
    views = Step("views", "Rows whose page view and position are known.", select)
    return [once(plan), views] if schema.drop_duplicates else [views]


def _screen(plan: Plan) -> str:
    """Return a query that counts rows, places, results, lists and page views in one scan.

    By their hashes, which is many times faster than by groups. In a sound log every row is a place and a result of its
    own; hashes that collide only make us look closer.
    """
    keys = ("v, q, r, p", "v, q, r, d", "v, q, r", "v, q")
    counts = ", ".join(f"COUNT(DISTINCT {plan.dialect.hashed(key)})" for key in keys)
    return render([*_views(plan), Step("screen", "All and distinct.", f"SELECT COUNT(*), {counts}\nFROM views")])


def _look(opened: OpenLog, plan: Plan, keys: str, odd: str, count: str, shown: str) -> tuple[int, str]:
    """Return how many groups of rows are odd, and an example by the columns to be shown."""
    schema, d = plan.schema, plan.dialect
    columns = dict(zip("vqdp", (schema.impression, schema.query, schema.doc, schema.position), strict=True))
    label = " || ', ' || ".join(f"{d.text(f'{columns[c]}=')} || COALESCE({d.as_text(c)}, 'null')" for c in shown)
    groups = f"SELECT {keys}, COUNT(*) AS n\nFROM views\nGROUP BY {keys}\nHAVING {odd}"
    answer = f"SELECT {count}, MIN({label})\nFROM odd"
    steps = [*_views(plan), Step("odd", "Groups that should not be.", groups), Step("count", "How many.", answer)]
    found, example = opened.rows(render(steps), "Looking closer at repeats")[0]
    return int(found or 0), example


def _find_duplicates(opened: OpenLog, plan: Plan) -> list[Finding]:
    count, example = _look(opened, plan, "v, q, r, d, p", "COUNT(*) > 1", "SUM(n - 1)", "vqd")
    dropping = plan.schema.drop_duplicates
    return _finding(
        "duplicates",
        "error",
        "{count} rows repeat a result of the same page view at the same position, as at-least-once logging does",
        count,
        example,
        f"They differ in more than the click, so that duplicates='drop' keeps them: check {plan.schema.impression!r}."
        if dropping
        else "They would be counted twice: drop them.",
        {} if dropping else {"duplicates": "drop"},
    )


def _find_crowded(opened: OpenLog, plan: Plan) -> list[Finding]:
    schema = plan.schema
    count, example = _look(opened, plan, "v, q, r, p", "MIN(d) <> MAX(d)", "COUNT(*)", "vqp")
    return _finding(
        "crowded-position",
        "warning",
        "{count} positions of a page view hold two or more results",
        count,
        example,
        f"Check {schema.position!r} and {schema.impression!r}; in a grid, number the cells in reading order. Each "
        "result is counted.",
    )


def _find_moved(opened: OpenLog, plan: Plan) -> list[Finding]:
    count, example = _look(opened, plan, "v, q, r, d", "MIN(p) <> MAX(p)", "COUNT(*)", "vqd")
    return _finding(
        "moved-in-view",
        "warning",
        "{count} results stand at several positions of one page view",
        count,
        example,
        f"Check that {plan.schema.impression!r} names one page view, not a session. Each position is counted.",
    )


def _find_mixed(opened: OpenLog, plan: Plan, pages: int) -> list[Finding]:
    count, example = _look(opened, plan, "v, q", "MIN(r) <> MAX(r)", "COUNT(*)", "vq")
    return _finding(
        "mixed-view",
        "warning",
        "{count} of {page_views} page views hold results of several rankers",
        count,
        example,
        f"A page view is one ranker's list: check that {plan.schema.impression!r} names one page view. If lists were "
        "interleaved, a position is not the ranker's own rank.",
        evidence={"page_views": pages},
    )


def _find_crowded_queries(opened: OpenLog, plan: Plan) -> list[Finding]:
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
    crowded, example = opened.rows(sql, "Looking for repeats")[0]
    arguments: Arguments = {}
    if schema.aggregated:
        remedy = "Count results again from the log that was added up, each once for a page view."
    else:
        column = guess("impression", "impression_id", schema.types)
        arguments = {"impression": column} if column else {}
        remedy = (
            "Name the column of the page view (impression) to tell which; rows logged twice can then be dropped with "
            "duplicates='drop'."
        )
    return _finding(
        "crowded-position",
        "warning",
        "{count} times a ranker has more results of a query at a position than at the first: one result logged "
        "twice, or two results at one position",
        crowded,
        example,
        remedy,
        arguments,
    )


def _finding(
    code: str,
    severity: Severity,
    what: str,
    count: int | None,
    example: str | None,
    remedy: str,
    arguments: Arguments | None = None,
    evidence: Mapping[str, int] | None = None,
) -> list[Finding]:
    found = Finding(code, severity, what, int(count or 0), example, evidence or {}, remedy, arguments or {})
    return [found] if count else []
