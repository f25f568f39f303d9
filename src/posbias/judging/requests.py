"""Queries that are none: ids of single requests, which never come again."""

from __future__ import annotations

from posbias.findings import Finding
from posbias.judging.looks import Look
from posbias.logs.columns import guess

# A request that is sent again keeps its id: one in so many may come twice and be no query for it.
_AGAIN = 20


def find_request_ids(look: Look) -> list[Finding]:
    """Return that values of the query occur on one page view only, all or nearly all, where queries must recur."""
    schema, d = look.plan.schema, look.plan.dialect
    if schema.layout.ranks_known or schema.aggregated:
        return []
    columns = {"q": schema.query, "r": schema.ranker, "v": schema.impression or schema.position}
    names = ", ".join(f"{d.quote(column)} AS {short}" for short, column in columns.items())
    # Without a page view, one has each position once.
    again = "MIN(v) <> MAX(v)" if schema.impression else "MIN(r) <> MAX(r) OR COUNT(*) > COUNT(DISTINCT v)"
    sql = (
        f"SELECT COUNT(*), COUNT(CASE WHEN again THEN 1 END) FROM (SELECT q, {again} AS again FROM "
        f"(SELECT {names} FROM log) s WHERE q IS NOT NULL GROUP BY q) t"
    )
    queries, recurring = look.opened.rows(sql, "Looking for queries that recur")[0]
    if queries < 2 or recurring * _AGAIN > queries:
        return []
    used = schema.roles.values()
    meant = guess("query", "query", [column for column in schema.types if column not in used])
    return [
        Finding(
            "request-id",
            "error",
            (
                f"{{count}} of {{queries}} values of {schema.query!r} occur"
                if recurring
                else f"each value of {schema.query!r} occurs"
            )
            + " on one page view only: is it the id of the request?",
            int(queries - recurring),
            evidence={"queries": int(queries)},
            remedy="A query is what was looked for, and comes again: name that column (query), such as the text that "
            "was typed. If none ever comes again, log each ranker's rank (ranks or rankings).",
            arguments={"query": meant} if meant else {},
        )
    ]
