"""Documents that could have been shown: their ids as the log has them, and what they and the log have in common."""

from __future__ import annotations

from collections.abc import Sequence

from posbias.logs.schemas import Columns
from posbias.sql.dialect import INTEGERS, Dialect
from posbias.sql.shown import Plan, comma, shown
from posbias.sql.steps import Step, render


def candidate_id(plan: Plan, candidates: Columns, name: str) -> str:
    """Return an id of the candidates as the log has it, by its text; NULL where it cannot be."""
    d: Dialect = plan.dialect
    wanted, found = plan.schema.types[name], candidates.types[name]
    expression = d.known(d.quote(candidates.names[name]), found)
    if wanted == found:
        return expression
    made = d.attempt(expression, wanted)
    # Engines round what they read as a number, and ids must not be taken for their neighbours.
    number = wanted in INTEGERS or wanted.startswith(("DOUBLE", "FLOAT", "REAL", "DECIMAL"))
    return f"CASE WHEN {d.as_text(made)} = {d.as_text(expression)} THEN {made} END" if number else made


def unreadable_candidates(plan: Plan, candidates: Columns) -> str:
    """Return how many rows of the candidates there are, and how many lack an id as the log has them."""
    ids = [candidate_id(plan, candidates, name) for name in (plan.schema.query, plan.schema.doc)]
    missing = " OR ".join(f"{expression} IS NULL" for expression in ids)
    return f"SELECT COUNT(*), COALESCE(SUM(CASE WHEN {missing} THEN 1 ELSE 0 END), 0) FROM candidates"


def queries_in_common(plan: Plan, candidates: Columns) -> str:
    """Return how many queries the log has, how many the candidates have, and how many both."""
    query = candidate_id(plan, candidates, plan.schema.query)
    return render(
        [
            *shown(plan, ranks=False),
            Step("asked", "The queries of the log.", "SELECT DISTINCT query FROM shown WHERE impressions > 0"),
            Step("listed", "The queries of the candidates.", f"SELECT DISTINCT {query} AS query FROM candidates"),
            Step(
                "answer",
                "How many each has, and both.",
                "SELECT COUNT(a.query), COUNT(l.query), COUNT(CASE WHEN a.query = l.query THEN 1 END)\n"
                "FROM asked a\nFULL JOIN listed l ON a.query = l.query",
            ),
        ]
    )


def shown_and_listed(plan: Plan, candidates: Columns, condition: str) -> str:
    """Return how many documents of a sample of queries were shown, and how many of them are candidates.

    Of queries that have candidates.
    """
    query, doc = (candidate_id(plan, candidates, name) for name in (plan.schema.query, plan.schema.doc))
    return render(
        [
            *shown(plan, ranks=False),
            Step(
                "asked",
                "What was shown.",
                f"SELECT query, doc FROM shown WHERE impressions > 0 AND {condition} GROUP BY query, doc",
            ),
            Step(
                "listed",
                "The candidates.",
                f"SELECT DISTINCT query, doc\nFROM (SELECT {query} AS query, {doc} AS doc FROM candidates) c\n"
                f"WHERE {condition}",
            ),
            Step("known", "The queries that have some.", "SELECT DISTINCT query FROM listed"),
            Step(
                "answer",
                "How many were shown, and how many of these are candidates.",
                "SELECT COUNT(*), COUNT(l.doc)\nFROM asked a\nJOIN known k ON a.query = k.query\n"
                "LEFT JOIN listed l ON a.query = l.query AND a.doc = l.doc",
            ),
        ]
    )


def varying(plan: Plan, condition: str, candidates: Columns | None, keep: Sequence[str]) -> str:
    """Return how many pairs of a sample there are, and in how many each column that comes along has several values.

    Of queries of the log: in the log, in the candidates, or in both together.
    """
    d = plan.dialect
    own = [f"own_{i}" for i in range(len(keep))]
    ours = dict(zip(plan.keep, plan.kept, strict=True))
    flags = comma([f"CASE WHEN MIN({c}) <> MAX({c}) THEN 1 ELSE 0 END AS {c}" for c in own])
    sums = comma([f"COALESCE(SUM({c}), 0)" for c in own])
    told = comma([f"{ours.get(name, 'NULL')} AS {c}" for name, c in zip(keep, own, strict=True)])
    values = f"SELECT query, doc, {told}\nFROM shown\nWHERE {condition}"
    if candidates is not None:
        query, doc = (candidate_id(plan, candidates, name) for name in (plan.schema.query, plan.schema.doc))
        theirs = comma([d.quote(candidates.names[name]) if name in candidates.types else "NULL" for name in keep])
        values += (
            f"\nUNION ALL\nSELECT query, doc, {comma(own)}\nFROM (SELECT {query}, {doc}, {theirs} FROM candidates) "
            f"AS c({comma('query', 'doc', own)})\nWHERE {condition} AND query IN (SELECT query FROM shown)"
        )
    return render(
        [
            *shown(plan, ranks=False),
            Step("told", "What the log, and the candidates, say of each pair.", values),
            Step(
                "pairs",
                "Whether a pair has several values of a column.",
                f"SELECT {flags}\nFROM told\nGROUP BY query, doc",
            ),
            Step("answer", "Pairs, and those with several values.", f"SELECT COUNT(*), {sums} FROM pairs"),
        ]
    )
