"""What is counted of a replay beside its strata: totals, the sizes of sets, pairs, and rows that are not counted."""

from __future__ import annotations

from posbias.sql.exposures import cell_steps, usable
from posbias.sql.shown import Plan, comma, shown
from posbias.sql.steps import Step, render


def totals(plan: Plan) -> str:
    """Return impressions and clicks by bucket, ranker and position: what pair sums no longer tell."""
    d = plan.dialect
    bucket = d.bucket("query", plan.schema.types[plan.schema.query])
    return render(
        [
            *shown(plan, ranks=False),
            Step(
                "totals",
                "Impressions and clicks by bucket, ranker and position.",
                f"SELECT {comma(plan.segments, f'{bucket} AS bucket', 'ranker', 'position AS rank')}, "
                f"{d.total('impressions')} AS impressions, {d.total('clicks')} AS clicks\nFROM shown\n"
                f"WHERE {usable(plan)}\nGROUP BY {comma(plan.segments, bucket, 'ranker', 'position')}",
            ),
        ]
    )


def of_buckets(plan: Plan, buckets: int, sql: str) -> str:
    """Return how many rows a query over `few`, the rows of the first buckets of a log, answers with."""
    d, schema = plan.dialect, plan.schema
    type_ = schema.types[schema.query]
    bucket = d.bucket(d.known(d.quote(schema.query), type_), type_)
    few = Step("few", "The rows of so many buckets.", f"SELECT *\nFROM log\nWHERE {bucket} < {buckets}")
    return render([few, Step("counted", "How many strata they have.", f"SELECT COUNT(*)\nFROM (\n{sql}\n) strata")])


def set_sizes(plan: Plan) -> str:
    """Return how many distinct (query, document) pairs were shown at both k and k'."""
    return render(
        [
            *cell_steps(plan),
            Step(
                "ranked",
                "Where each pair was shown.",
                "SELECT DISTINCT query, doc, position AS rank\nFROM cells",
            ),
            Step(
                "set_sizes",
                "The size of every interventional set.",
                "SELECT a.rank, b.rank, COUNT(*)\nFROM ranked a\nJOIN ranked b ON a.query = b.query AND "
                "a.doc = b.doc AND a.rank <> b.rank\nGROUP BY a.rank, b.rank",
            ),
        ]
    )


def nameless(plan: Plan) -> str:
    """Return how many rows within the top M have no query or no document."""
    why = "Rows without an id."
    select = f"SELECT COUNT(*)\nFROM shown\nWHERE {usable(plan)} AND (query IS NULL OR doc IS NULL)"
    return render([*shown(plan, ranks=False), Step("nameless", why, select)])


def non_functional(plan: Plan) -> str:
    """Return how many pairs a ranker showed at several ranks, and how many pairs there are, each by segment."""
    ids = comma(plan.segments, "query", "doc")
    return render(
        [
            *cell_steps(plan),
            Step(
                "seen",
                "Whether any ranker showed a pair at several ranks.",
                f"SELECT {ids}, COUNT(*) > COUNT(DISTINCT ranker) AS several\nFROM cells\nGROUP BY {ids}",
            ),
            Step(
                "non_functional",
                "Those of which one did, and all.",
                "SELECT COUNT(CASE WHEN several THEN 1 END), COUNT(*)\nFROM seen",
            ),
        ]
    )


def pair_counts(plan: Plan) -> str:
    """Return how many (query, document) pairs there are, and how many were shown at several ranks."""
    return render(
        [
            *cell_steps(plan),
            Step(
                "spread",
                "At how many ranks each pair was shown.",
                "SELECT query, doc, COUNT(DISTINCT position) AS ranks\nFROM cells\nGROUP BY query, doc",
            ),
            Step(
                "pair_counts",
                "All, and those at several ranks.",
                "SELECT COUNT(*), SUM(CASE WHEN ranks > 1 THEN 1 ELSE 0 END)\nFROM spread",
            ),
        ]
    )
