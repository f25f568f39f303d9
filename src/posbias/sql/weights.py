"""Queries that weigh the rows of a log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posbias.logs.schema import NATURAL, Columns
from posbias.sql.dialects import INTEGERS, Dialect
from posbias.sql.plan import QueryPlan, Step, comma, render, shown_steps

# What `position` holds for rows that cannot be weighed.
UNUSABLE = -1
# The columns of ours.
COUNTS = ("impressions", "clicks", "exposure", "weight")


def profile(plan: QueryPlan) -> str:
    """Return rows, impressions, clicks, clicked rows and rows without an id by segment and position."""
    d, keys = plan.dialect, comma(plan.segments, "position")
    usable = "position >= 1 AND clicks BETWEEN 0 AND impressions"
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step(
                "placed",
                "Where each row was shown; -1 where it cannot be used.",
                f"SELECT {comma(plan.segments, 'impressions', 'clicks')},\n"
                "  CASE WHEN query IS NULL OR doc IS NULL THEN 1 ELSE 0 END AS nameless,\n"
                f"  CASE WHEN {usable} THEN position ELSE {UNUSABLE} END AS position\nFROM shown",
            ),
            Step(
                "profile",
                "Rows, impressions and clicks by segment and position.",
                f"SELECT {keys}, COUNT(*) AS row_count, {d.total('impressions')} AS impressions, "
                f"{d.total('clicks')} AS clicks, {d.total('nameless')} AS nameless,\n"
                f"  {d.total('CASE WHEN clicks > 0 THEN 1 ELSE 0 END')} AS clicked, "
                f"{d.total('CASE WHEN impressions > 0 THEN 1 ELSE 0 END')} AS seen\nFROM placed\nGROUP BY {keys}",
            ),
        ]
    )


def clicked_pairs(plan: QueryPlan) -> str:
    """Return how many (query, document) pairs were clicked."""
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step("clicked", "Pairs with a click.", "SELECT query, doc FROM shown WHERE clicks > 0 GROUP BY query, doc"),
            Step("answer", "How many.", "SELECT COUNT(*) FROM clicked"),
        ]
    )


def pairs(
    plan: QueryPlan,
    worth: Sequence[RankWeight],
    scale: float,
    candidates: Columns | None = None,
    keep: Sequence[str] = (),
) -> str:
    """Return impressions, clicks, exposure and weight of each (query, document) shown; of all candidates if given.

    Weights are divided by `scale`. Of columns that come along, the least value of a pair is kept; with candidates,
    `keep` names those that the log or the candidates have.
    """
    d, schema = plan.dialect, plan.schema
    steps = [*shown_steps(plan, ranks=False), *_weighed(plan, worth, unseen=candidates is not None)]
    kept = [f"MIN({name}) AS {name}" for name in plan.kept]
    impressions = d.total("impressions") if schema.aggregated else "COUNT(*)"
    unseen = ["SUM(impressions * unseen) AS unseen"] if candidates is not None else []
    steps.append(
        Step(
            "pairs",
            "Each (query, document) once: how often it was shown and clicked, and what that is worth.",
            f"SELECT query, doc, {impressions} AS impressions, {d.total('clicks')} AS clicks,\n  "
            f"SUM({_times(plan, 'exposure')}) AS exposure, SUM(clicks * weight) / {number(scale)} AS weight"
            f"{''.join(f', {text}' for text in [*unseen, *kept])}\nFROM weighed\nGROUP BY query, doc",
        )
    )
    if candidates is None:
        columns = {"query": schema.query, "doc": schema.doc, **dict(zip(plan.kept, plan.keep, strict=True))}
        told = comma([f"{column} AS {d.quote(name)}" for column, name in columns.items()], COUNTS)
        answer = Step("answer", "By the names that the log has.", f"SELECT {told}\nFROM pairs")
        return render([*steps, answer])
    return render([*steps, *_with_candidates(plan, candidates, keep)])


@dataclass(frozen=True)
class RankWeight:
    """What results at one rank of one segment are worth.

    An impression counts as `exposure` views at rank 1 and a click as `weight`; a page view that did not show a document
    counts as `unseen` such views.
    """

    segment: tuple[str | None, ...]
    position: int
    exposure: float
    weight: float
    unseen: float = 0.0


def _weighed(plan: QueryPlan, worth: Sequence[RankWeight], *, unseen: bool) -> list[Step]:
    same = ["s.position = w.position", *(f"s.{name} IS NOT DISTINCT FROM w.{name}" for name in plan.segments)]
    columns = comma("s.*", "w.exposure", "w.weight", ["w.unseen"] if unseen else [])
    where = "\nWHERE s.impressions > 0" if plan.schema.aggregated else ""
    return [
        _worth(plan, worth, unseen=unseen),
        Step(
            "weighed",
            "Each result shown with what its rank is worth.",
            f"SELECT {columns}\nFROM shown s\nJOIN worth w ON {' AND '.join(same)}{where}",
        ),
    ]


def _worth(plan: QueryPlan, worth: Sequence[RankWeight], *, unseen: bool) -> Step:
    """Return the curve as a table of the ranks that the log has."""
    d = plan.dialect
    values = ",\n  ".join(
        "("
        + comma(
            [d.cast("NULL", "VARCHAR") if value is None else d.literal(value) for value in one.segment],
            str(one.position),
            number(one.exposure),
            number(one.weight),
            [number(one.unseen)] if unseen else [],
        )
        + ")"
        for one in worth
    )
    names = comma(plan.segments, "position", "exposure", "weight", ["unseen"] if unseen else [])
    why = "What an impression and a click are worth at each rank, in views at rank 1."
    return Step("worth", why, f"SELECT * FROM (VALUES\n  {values}\n) AS v({names})")


def number(value: float) -> str:
    """Return a number as a double: one without an exponent would be a decimal.

    >>> number(0.05), number(1e-30)
    ('0.05e0', '1e-30')
    """
    text = repr(float(value))
    return text if "e" in text else f"{text}e0"


def _times(plan: QueryPlan, factor: str) -> str:
    """Return impressions times a factor; a row of single clicks is one impression."""
    return f"impressions * {factor}" if plan.schema.aggregated else factor


def _with_candidates(plan: QueryPlan, candidates: Columns, keep: Sequence[str]) -> list[Step]:
    """Return the steps from pairs to all documents that could have been shown, each with all page views of its query.

    E = Σ_k N_k p_k + (N_q − N) p_last: a page view that did not show a document counts as one at the last rank.
    """
    d, segments = plan.dialect, plan.segments
    query, doc = (candidate_id(plan, candidates, name) for name in (plan.schema.query, plan.schema.doc))
    ours = {name: f"p.{kept}" for name, kept in zip(plan.keep, plan.kept, strict=True)}
    theirs = {name: f"own_{i}" for i, name in enumerate(keep) if name in candidates.types}
    found = "".join(f", MIN({d.quote(candidates.names[name])}) AS {own}" for name, own in theirs.items())
    columns = [(plan.schema.query, ["p.query", "c.query"]), (plan.schema.doc, ["p.doc", "c.doc"])]
    for name in keep:
        values = [ours[name]] if name in ours else []
        columns.append((name, [*values, f"c.{theirs[name]}"] if name in theirs else values))
    told = [f"COALESCE({', '.join(values)}) AS {d.quote(name)}" for name, values in columns]
    return [
        Step(
            "busy",
            "How often each rank of a query was shown.",
            f"SELECT {comma('query', segments, 'position')}, MAX(unseen) AS unseen, SUM(impressions) AS n\n"
            f"FROM weighed\nGROUP BY {comma('query', segments, 'position')}",
        ),
        Step(
            "pages",
            "The page views of a query: what was shown at its busiest rank.",
            f"SELECT {comma('query', segments)}, MAX(n) * MAX(unseen) AS unseen\nFROM busy\n"
            f"GROUP BY {comma('query', segments)}",
        ),
        Step(
            "queries",
            "What a document that no page view showed was seen.",
            "SELECT query, SUM(unseen) AS unseen FROM pages GROUP BY query",
        ),
        Step(
            "listed",
            "Each candidate once.",
            f"SELECT {query} AS query, {doc} AS doc{found}\nFROM candidates\nGROUP BY {query}, {doc}",
        ),
        Step(
            "answer",
            "All candidates, and what was shown without being one; of queries that the log has.",
            f"SELECT {comma(told)},\n  COALESCE(p.impressions, 0) AS impressions, COALESCE(p.clicks, 0) AS clicks,\n"
            "  COALESCE(p.exposure, 0) + GREATEST(q.unseen - COALESCE(p.unseen, 0), 0) AS exposure,\n"
            "  COALESCE(p.weight, 0) AS weight\nFROM pairs p\nFULL JOIN listed c ON p.query = c.query AND p.doc = c.doc"
            "\nJOIN queries q ON q.query = COALESCE(p.query, c.query)",
        ),
    ]


def candidate_id(plan: QueryPlan, candidates: Columns, name: str) -> str:
    """Return an id of the candidates as the log has it, by its text; NULL where it cannot be."""
    d: Dialect = plan.dialect
    wanted, found = plan.schema.types[name], candidates.types[name]
    expression = d.nan_to_null(d.quote(candidates.names[name]), found)
    if wanted == found:
        return expression
    made = d.try_cast(expression, wanted)
    # Engines round what they read as a number, and ids must not be taken for their neighbours.
    number = wanted in INTEGERS or wanted.startswith(("DOUBLE", "FLOAT", "REAL", "DECIMAL"))
    return f"CASE WHEN {d.as_text(made)} = {d.as_text(expression)} THEN {made} END" if number else made


def rows(plan: QueryPlan, worth: Sequence[RankWeight], scale: float) -> str:
    """Return every row of the log with its weight, divided by `scale`."""
    d, schema = plan.dialect, plan.schema
    columns = comma([f"l.{d.quote(name)}" for name in schema.types if name != NATURAL])
    position = d.integer(f"l.{d.quote(schema.position)}", schema.types[schema.position])
    column = schema.click or schema.clicks or ""
    typed = d.click if schema.click is not None else d.integer
    clicks = typed(f"l.{d.quote(column)}", schema.types[column])
    same = [f"{d.as_text(f'l.{d.quote(name)}')} IS NOT DISTINCT FROM w.segment_{i}" for i, name in enumerate(plan.by)]
    return render(
        [
            _worth(plan, worth, unseen=False),
            Step(
                "answer",
                "Each row with what its clicks are worth.",
                f"SELECT {columns}, COALESCE({clicks} * w.weight / {number(scale)}, 0) AS weight\nFROM {plan.log} l\n"
                f"LEFT JOIN worth w ON {' AND '.join([f'{position} = w.position', *same])}",
            ),
        ]
    )


def unreadable_candidates(plan: QueryPlan, candidates: Columns) -> str:
    """Return how many rows of the candidates there are, and how many lack an id as the log has them."""
    ids = [candidate_id(plan, candidates, name) for name in (plan.schema.query, plan.schema.doc)]
    missing = " OR ".join(f"{expression} IS NULL" for expression in ids)
    return f"SELECT COUNT(*), COALESCE(SUM(CASE WHEN {missing} THEN 1 ELSE 0 END), 0) FROM candidates"


def queries_in_common(plan: QueryPlan, candidates: Columns) -> str:
    """Return how many queries the log has, how many the candidates have, and how many both."""
    query = candidate_id(plan, candidates, plan.schema.query)
    return render(
        [
            *shown_steps(plan, ranks=False),
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


def shown_candidates(plan: QueryPlan, candidates: Columns, condition: str) -> str:
    """Return how many documents of a sample of queries were shown, and how many of them are candidates.

    Of queries that have candidates.
    """
    query, doc = (candidate_id(plan, candidates, name) for name in (plan.schema.query, plan.schema.doc))
    return render(
        [
            *shown_steps(plan, ranks=False),
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


def varying(plan: QueryPlan, condition: str, candidates: Columns | None, keep: Sequence[str]) -> str:
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
            *shown_steps(plan, ranks=False),
            Step("told", "What the log, and the candidates, say of each pair.", values),
            Step(
                "pairs",
                "Whether a pair has several values of a column.",
                f"SELECT {flags}\nFROM told\nGROUP BY query, doc",
            ),
            Step("answer", "Pairs, and those with several values.", f"SELECT COUNT(*), {sums} FROM pairs"),
        ]
    )
