"""How many clicks a page view has, and how many it would have if each came by itself: one aggregation of the log."""

from __future__ import annotations

from posbias.logs.schemas import ANY_RANKER
from posbias.sql.shown import Plan, once
from posbias.sql.steps import Step, render

# Pages with fewer results may well have all of them clicked.
FEW_RESULTS = 5


def page_clicks(plan: Plan) -> str:
    """Return the query: by bucket, page views, those with clicks, and pairs of clicks together and apart.

    Views of one query that show the same results at the same positions are views of one page. Two clicks at different
    positions of it are together if in one of its n views, and else apart; if each click came by itself, those apart,
    over n − 1, would be as many as those together. Both count in both orders. Likewise views on which everything was
    clicked, and as many of them as there would be if each click came by itself: n Π_k c_k / n.
    """
    schema, d = plan.schema, plan.dialect

    def column(name: str | None) -> str:
        return d.quote(name or "")

    click = column(schema.click)
    ranker = d.text(ANY_RANKER) if schema.natural else column(schema.ranker)
    clicked = click if schema.drop_duplicates else d.click(click, schema.types[schema.click or ""])
    query = d.known(column(schema.query), schema.types[schema.query])
    position = d.integer(column(schema.position), schema.types[schema.position])
    columns = [
        f"{query} AS query",
        f"{plan.number(ranker, schema.types[schema.ranker])} AS ranker",
        f"{column(schema.impression)} AS page",
        f"{column(schema.doc)} AS doc",
        f"{position} AS position",
        f"{clicked} AS clicked",
    ]
    # Of 31 bits, so that sums of many fit.
    content = f"{d.hashed('doc, position')} & {2**31 - 1}"
    source = "once" if schema.drop_duplicates else plan.log
    bucket = d.bucket("query", schema.types[schema.query])
    ranks = range(1, plan.max_rank + 1)
    at = ",\n  ".join(f"SUM(CASE WHEN position = {k} THEN clicked ELSE 0 END) AS clicks_{k}" for k in ranks)
    at += ",\n  " + ",\n  ".join(f"SUM(CASE WHEN position = {k} THEN 1 ELSE 0 END) AS shown_{k}" for k in ranks)
    squares = _joined([f"SUM(clicks_{k}) * SUM(clicks_{k})" for k in ranks], "+")
    every = _joined(
        [
            f"(CASE WHEN MAX(shown_{k}) = 0 THEN 1 ELSE {d.cast(f'SUM(clicks_{k})', 'DOUBLE')} / COUNT(*) END)"
            for k in ranks
        ],
        "*",
    )
    full = f"shown >= {FEW_RESULTS}"
    steps = [
        Step(
            "results",
            "Results of page views that are known, in the top M.",
            f"SELECT * FROM (\nSELECT {', '.join(columns)}\nFROM {source}\n) r\nWHERE query IS NOT NULL AND ranker IS "
            f"NOT NULL AND page IS NOT NULL AND position BETWEEN 1 AND {plan.max_rank} AND clicked IN (0, 1)",
        ),
        Step(
            "pages",
            "Each page view with what it shows, as a number, and its clicks.",
            f"SELECT query, ranker, page, COUNT(*) AS shown, SUM({d.cast(content, 'BIGINT')}) AS content, "
            f"SUM(clicked) AS clicks,\n  {at}\nFROM results\nGROUP BY query, ranker, page",
        ),
        Step(
            "alike",
            "Page views that show the same page, and how their clicks fall together.",
            "SELECT query, COUNT(*) AS views, SUM(clicks) AS clicks, SUM(clicks * (clicks - 1)) AS together,\n"
            f"  {squares} AS squares,\n"
            "  SUM(CASE WHEN clicks > 0 THEN 1 ELSE 0 END) AS clicked,\n"
            "  SUM(CASE WHEN clicks > 1 THEN 1 ELSE 0 END) AS several,\n"
            f"  SUM(CASE WHEN {full} THEN 1 ELSE 0 END) AS full_pages,\n"
            f"  SUM(CASE WHEN {full} AND clicks = shown THEN 1 ELSE 0 END) AS all_clicked,\n"
            f"  SUM(CASE WHEN {full} AND clicks = shown - 1 THEN 1 ELSE 0 END) AS nearly_all,\n"
            f"  {every} AS every_one\n"
            "FROM pages\nGROUP BY query, ranker, content",
        ),
        Step(
            "answer",
            "All of it by bucket.",
            f"SELECT {bucket} AS bucket, {d.total('views')}, {d.total('clicked')}, {d.total('several')}, "
            f"{d.total('full_pages')}, {d.total('all_clicked')}, {d.total('nearly_all')},\n"
            "  SUM(CASE WHEN views > 1 THEN together ELSE 0 END),\n"
            f"  SUM(CASE WHEN views > 1 THEN {d.cast('clicks * clicks - squares - together', 'DOUBLE')} / (views - 1) "
            "ELSE 0 END),\n"
            "  SUM(CASE WHEN views > 1 THEN all_clicked ELSE 0 END),\n"
            "  SUM(CASE WHEN views > 1 AND full_pages > 0 THEN views * every_one ELSE 0 END)\n"
            f"FROM alike\nGROUP BY {bucket}\nORDER BY 1",
        ),
    ]
    return render([once(plan), *steps] if schema.drop_duplicates else steps)


def _joined(terms: list[str], sign: str) -> str:
    """Return terms added or multiplied, half by half: a row of a thousand is deeper than engines read."""
    if len(terms) <= 16:
        return f" {sign} ".join(terms)
    half = len(terms) // 2
    return f"({_joined(terms[:half], sign)}) {sign} ({_joined(terms[half:], sign)})"
