"""Queries that weight the clicks of a log by the propensity of their rank, for learning to rank.

`pairs` returns one row for each (query, document) with its clicks, exposure and weight; `rows` returns the rows of the
log with a weight. With a table of candidates, `pairs` also returns the documents that could have been shown and never
were. The other queries count what a user should know first: unusable rows, unreadable candidates, columns whose value
varies within a pair.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posbias.logs.schema import NATURAL, Columns
from posbias.sql.dialects import INTEGERS, Dialect, double_literal
from posbias.sql.plan import QueryPlan, Step, comma, render, shown_steps

# The position of rows that cannot be weighted.
UNUSABLE = -1
# The columns that `pairs` adds to those of the log, and with candidates one more.
COUNTS = ("impressions", "clicks", "exposure", "weight")
EXPOSURE_SHOWN = "exposure_shown"


def profile(plan: QueryPlan) -> str:
    """Return the query of rows, impressions, clicks, clicked rows and rows without an id, by segment and position."""
    d, keys = plan.dialect, comma(plan.segments, "position")
    usable = "position >= 1 AND clicks BETWEEN 0 AND impressions"
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step(
                "classified",
                "Where each row was shown; -1 for a row that cannot be used.",
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
                f"{d.total('CASE WHEN impressions > 0 THEN 1 ELSE 0 END')} AS seen\nFROM classified\nGROUP BY {keys}",
            ),
        ]
    )


def clicked_pairs(plan: QueryPlan) -> str:
    """Return the query of how many (query, document) pairs were clicked."""
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step("clicked", "Pairs with a click.", "SELECT query, doc FROM shown WHERE clicks > 0 GROUP BY query, doc"),
            Step("answer", "How many pairs.", "SELECT COUNT(*) FROM clicked"),
        ]
    )


def pairs(
    plan: QueryPlan,
    rank_weights: Sequence[RankWeight],
    candidates: Columns | None = None,
    keep: Sequence[str] = (),
) -> str:
    """Return the query of impressions, clicks, exposure and weight of each (query, document).

    Arguments:
        plan (QueryPlan): what is asked of the log. Of each of its `keep` columns the least value of a pair is kept.
        rank_weights (sequence of RankWeight): the weights of each rank and segment.
        candidates (Columns or None, default None): the columns of a table of all documents that could have been shown;
            with it the answer has them too.
        keep (sequence of str, default ()): with candidates, the columns to keep, of the log or of the candidates.
    """
    d, schema = plan.dialect, plan.schema
    steps = [*shown_steps(plan, ranks=False), *_weighted(plan, rank_weights, unseen=candidates is not None)]
    kept = [f"MIN({name}) AS {name}" for name in plan.kept]
    impressions = d.total("impressions") if schema.aggregated else "COUNT(*)"
    unseen = ["SUM(impressions * unseen) AS unseen"] if candidates is not None else []
    steps.append(
        Step(
            "pairs",
            "Each (query, document) once: its impressions, clicks, exposure and weight.",
            f"SELECT query, doc, {impressions} AS impressions, {d.total('clicks')} AS clicks,\n  "
            f"SUM({_times(plan, 'exposure')}) AS exposure, SUM(clicks * weight) AS weight"
            f"{''.join(f', {text}' for text in [*unseen, *kept])}\nFROM weighted\nGROUP BY query, doc",
        )
    )
    if candidates is None:
        columns = {"query": schema.query, "doc": schema.doc, **dict(zip(plan.kept, plan.keep, strict=True))}
        renamed = comma([f"{column} AS {d.quote(name)}" for column, name in columns.items()], COUNTS)
        answer = Step("answer", "The same under the column names of the log.", f"SELECT {renamed}\nFROM pairs")
        return render([*steps, answer])
    return render([*steps, *_with_candidates(plan, candidates, keep)])


@dataclass(frozen=True)
class RankWeight:
    """The weights of one rank in one segment.

    Attributes:
        segment (tuple): the values of the segment columns; empty without segments.
        position (int): the rank.
        exposure (float): how many impressions at rank 1 an impression at this rank counts as.
        weight (float): the weight of a click at this rank.
        unseen (float, default 0): how many impressions at rank 1 a page view that did not show a document counts as.
    """

    segment: tuple[str | None, ...]
    position: int
    exposure: float
    weight: float
    unseen: float = 0.0


def _weighted(plan: QueryPlan, rank_weights: Sequence[RankWeight], *, unseen: bool) -> list[Step]:
    """Return the steps that end in `weighted`: each result shown with the weights of its rank."""
    same = ["s.position = w.position", *(f"s.{name} IS NOT DISTINCT FROM w.{name}" for name in plan.segments)]
    columns = comma("s.*", "w.exposure", "w.weight", ["w.unseen"] if unseen else [])
    where = "\nWHERE s.impressions > 0" if plan.schema.aggregated else ""
    return [
        _rank_weights_step(plan, rank_weights, unseen=unseen),
        Step(
            "weighted",
            "Each result shown with the weights of its rank.",
            f"SELECT {columns}\nFROM shown s\nJOIN rank_weights w ON {' AND '.join(same)}{where}",
        ),
    ]


def _rank_weights_step(plan: QueryPlan, rank_weights: Sequence[RankWeight], *, unseen: bool) -> Step:
    """Return the step that holds the weights of each rank as a table."""
    d = plan.dialect
    values = ",\n  ".join(
        "("
        + comma(
            [d.cast("NULL", "VARCHAR") if value is None else d.literal(value) for value in at.segment],
            str(at.position),
            double_literal(at.exposure),
            double_literal(at.weight),
            [double_literal(at.unseen)] if unseen else [],
        )
        + ")"
        for at in rank_weights
    )
    names = comma(plan.segments, "position", "exposure", "weight", ["unseen"] if unseen else [])
    why = "What an impression counts as at each rank, in impressions at rank 1, and the weight of a click."
    return Step("rank_weights", why, f"SELECT * FROM (VALUES\n  {values}\n) AS v({names})")


def _times(plan: QueryPlan, factor: str) -> str:
    """Return SQL for impressions times a factor; without aggregation a row is one impression."""
    return f"impressions * {factor}" if plan.schema.aggregated else factor


def _with_candidates(plan: QueryPlan, candidates: Columns, keep: Sequence[str]) -> list[Step]:
    """Return the steps from `pairs` to all documents that could have been shown, each with all page views of its query.

    The exposure is E = Σ_k N_k p_k + (N_q − N) p_last: each of the N_q page views of the query that did not show the
    document counts as an impression at the last rank. Its first part, of the page views that showed it, has a column.
    """
    d, segments = plan.dialect, plan.segments
    query, doc = (candidate_id(plan, candidates, name) for name in (plan.schema.query, plan.schema.doc))
    in_log = {name: f"p.{kept}" for name, kept in zip(plan.keep, plan.kept, strict=True)}
    in_candidates = {name: f"candidate_{i}" for i, name in enumerate(keep) if name in candidates.types}
    values = "".join(f", MIN({d.quote(candidates.names[name])}) AS {alias}" for name, alias in in_candidates.items())
    columns = [(plan.schema.query, ["p.query", "c.query"]), (plan.schema.doc, ["p.doc", "c.doc"])]
    for name in keep:
        sources = [in_log[name]] if name in in_log else []
        columns.append((name, [*sources, f"c.{in_candidates[name]}"] if name in in_candidates else sources))
    renamed = [f"COALESCE({', '.join(sources)}) AS {d.quote(name)}" for name, sources in columns]
    return [
        Step(
            "rank_impressions",
            "How often each rank of a query was shown.",
            f"SELECT {comma('query', segments, 'position')}, MAX(unseen) AS unseen, SUM(impressions) AS n\n"
            f"FROM weighted\nGROUP BY {comma('query', segments, 'position')}",
        ),
        Step(
            "page_views",
            "The page views of a query (the impressions at its busiest rank), times what one counts as if not shown.",
            f"SELECT {comma('query', segments)}, MAX(n) * MAX(unseen) AS unseen\nFROM rank_impressions\n"
            f"GROUP BY {comma('query', segments)}",
        ),
        Step(
            "queries",
            "The exposure of a document that no page view of the query showed.",
            "SELECT query, SUM(unseen) AS unseen FROM page_views GROUP BY query",
        ),
        Step(
            "candidate_pairs",
            "Each candidate once.",
            f"SELECT {query} AS query, {doc} AS doc{values}\nFROM candidates\nGROUP BY {query}, {doc}",
        ),
        Step(
            "answer",
            "All candidates and all documents shown, for queries that the log has.",
            f"SELECT {comma(renamed)},\n  COALESCE(p.impressions, 0) AS impressions, COALESCE(p.clicks, 0) AS clicks,\n"
            "  COALESCE(p.exposure, 0) + GREATEST(q.unseen - COALESCE(p.unseen, 0), 0) AS exposure,\n"
            f"  COALESCE(p.weight, 0) AS weight, COALESCE(p.exposure, 0) AS {EXPOSURE_SHOWN}\nFROM pairs p\n"
            "FULL JOIN candidate_pairs c ON p.query = c.query AND p.doc = c.doc\n"
            "JOIN queries q ON q.query = COALESCE(p.query, c.query)",
        ),
    ]


def candidate_id(plan: QueryPlan, candidates: Columns, name: str) -> str:
    """Return SQL for an id of the candidates in the type that the log has, NULL where it does not convert exactly."""
    d: Dialect = plan.dialect
    log_type, type_ = plan.schema.types[name], candidates.types[name]
    expression = d.nan_to_null(d.quote(candidates.names[name]), type_)
    if log_type == type_:
        return expression
    converted = d.try_cast(expression, log_type)
    # Engines round when they read a number, and one id must not become another.
    is_number = log_type in INTEGERS or log_type.startswith(("DOUBLE", "FLOAT", "REAL", "DECIMAL"))
    same = f"{d.as_text(converted)} = {d.as_text(expression)}"
    return f"CASE WHEN {same} THEN {converted} END" if is_number else converted


def rows(plan: QueryPlan, rank_weights: Sequence[RankWeight]) -> str:
    """Return the query of every row of the log with its weight."""
    d, schema = plan.dialect, plan.schema
    columns = comma([f"l.{d.quote(name)}" for name in schema.types if name != NATURAL])
    position = d.integer(f"l.{d.quote(schema.position)}", schema.types[schema.position])
    column = schema.click or schema.clicks or ""
    typed = d.click if schema.click is not None else d.integer
    clicks = typed(f"l.{d.quote(column)}", schema.types[column])
    same = [f"{d.as_text(f'l.{d.quote(name)}')} IS NOT DISTINCT FROM w.segment_{i}" for i, name in enumerate(plan.by)]
    return render(
        [
            _rank_weights_step(plan, rank_weights, unseen=False),
            Step(
                "answer",
                "Each row with the weight of its clicks.",
                f"SELECT {columns}, COALESCE({clicks} * w.weight, 0) AS weight\n"
                f"FROM {plan.log} l\nLEFT JOIN rank_weights w ON {' AND '.join([f'{position} = w.position', *same])}",
            ),
        ]
    )


def unreadable_candidates(plan: QueryPlan, candidates: Columns) -> str:
    """Return the query of how many rows the candidates have, and how many lack an id of the type that the log has."""
    ids = [candidate_id(plan, candidates, name) for name in (plan.schema.query, plan.schema.doc)]
    missing = " OR ".join(f"{expression} IS NULL" for expression in ids)
    return f"SELECT COUNT(*), COALESCE(SUM(CASE WHEN {missing} THEN 1 ELSE 0 END), 0) FROM candidates"


def queries_in_common(plan: QueryPlan, candidates: Columns) -> str:
    """Return the query of how many queries the log has, how many the candidates have, and how many both have."""
    query = candidate_id(plan, candidates, plan.schema.query)
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step("log_queries", "The queries of the log.", "SELECT DISTINCT query FROM shown WHERE impressions > 0"),
            Step(
                "candidate_queries",
                "The queries of the candidates.",
                f"SELECT DISTINCT {query} AS query FROM candidates",
            ),
            Step(
                "answer",
                "How many each has, and how many both have.",
                "SELECT COUNT(l.query), COUNT(c.query), COUNT(CASE WHEN l.query = c.query THEN 1 END)\n"
                "FROM log_queries l\nFULL JOIN candidate_queries c ON l.query = c.query",
            ),
        ]
    )


def shown_candidates(plan: QueryPlan, candidates: Columns, condition: str) -> str:
    """Return the query of how many documents of a sample of queries were shown, and how many of them are candidates.

    `condition` selects the sample. Only queries that have candidates count.
    """
    query, doc = (candidate_id(plan, candidates, name) for name in (plan.schema.query, plan.schema.doc))
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step(
                "shown_pairs",
                "The documents shown.",
                f"SELECT query, doc FROM shown WHERE impressions > 0 AND {condition} GROUP BY query, doc",
            ),
            Step(
                "candidate_pairs",
                "The candidates.",
                f"SELECT DISTINCT query, doc\nFROM (SELECT {query} AS query, {doc} AS doc FROM candidates) c\n"
                f"WHERE {condition}",
            ),
            Step("candidate_queries", "Queries with candidates.", "SELECT DISTINCT query FROM candidate_pairs"),
            Step(
                "answer",
                "How many were shown, and how many of these are candidates.",
                "SELECT COUNT(*), COUNT(c.doc)\nFROM shown_pairs s\nJOIN candidate_queries q ON s.query = q.query\n"
                "LEFT JOIN candidate_pairs c ON s.query = c.query AND s.doc = c.doc",
            ),
        ]
    )


def varying_columns(plan: QueryPlan, condition: str, candidates: Columns | None, keep: Sequence[str]) -> str:
    """Return the query of how many pairs a sample has, and in how many of them each `keep` column has several values.

    `condition` selects the sample. Only queries of the log count; values come from the log and from the candidates.
    """
    d = plan.dialect
    columns = [f"value_{i}" for i in range(len(keep))]
    in_log = dict(zip(plan.keep, plan.kept, strict=True))
    flags = comma([f"CASE WHEN MIN({c}) <> MAX({c}) THEN 1 ELSE 0 END AS {c}" for c in columns])
    sums = comma([f"COALESCE(SUM({c}), 0)" for c in columns])
    log_values = comma([f"{in_log.get(name, 'NULL')} AS {c}" for name, c in zip(keep, columns, strict=True)])
    values = f"SELECT query, doc, {log_values}\nFROM shown\nWHERE {condition}"
    if candidates is not None:
        query, doc = (candidate_id(plan, candidates, name) for name in (plan.schema.query, plan.schema.doc))
        candidate_values = comma(
            [d.quote(candidates.names[name]) if name in candidates.types else "NULL" for name in keep]
        )
        values += (
            f"\nUNION ALL\nSELECT query, doc, {comma(columns)}\n"
            f"FROM (SELECT {query}, {doc}, {candidate_values} FROM candidates) AS c({comma('query', 'doc', columns)})\n"
            f"WHERE {condition} AND query IN (SELECT query FROM shown)"
        )
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step("kept_values", "The values of each pair in the log and in the candidates.", values),
            Step(
                "pairs",
                "Whether a pair has several values of a column.",
                f"SELECT {flags}\nFROM kept_values\nGROUP BY query, doc",
            ),
            Step(
                "answer",
                "How many pairs, and how many with several values of each column.",
                f"SELECT COUNT(*), {sums} FROM pairs",
            ),
        ]
    )
