"""What can be wrong with the rows of a log, each with how often, an example and a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from posbias.engines.duckdb import Engine
from posbias.log import listed, shell
from posbias.sql.shown import Plan, once, shown
from posbias.sql.steps import Step, render


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: an "error" makes the log unusable, a "warning" does not."""

    severity: Literal["error", "warning"]
    what: str
    count: int
    example: str | None
    remedy: str

    def __str__(self) -> str:
        example = f", for example {self.example}" if self.example else ""
        return f"{self.what}{example}. {self.remedy}"


@dataclass(frozen=True)
class _Defect:
    """A condition on a row that makes it unusable, with the column to show as an example."""

    condition: str
    column: str
    what: str
    remedy: str


def _defects(plan: Plan) -> Iterator[_Defect]:
    schema, d = plan.schema, plan.dialect

    def typed(name: str) -> str:
        return d.integer(d.quote(name), schema.types[name])

    drop = "Leave such rows out, or repair the job that writes the log."
    for name in (schema.query, schema.doc, schema.ranker, schema.position):
        yield _Defect(f"{d.quote(name)} IS NULL", name, f"no value in column {name!r}", drop)
    position, raw = typed(schema.position), d.quote(schema.position)
    yield _Defect(
        f"{raw} IS NOT NULL AND {position} IS NULL",
        schema.position,
        f"a position in {schema.position!r} that is not a whole number",
        "Positions are ranks: 1, 2, 3 and so on. Name the right column with --position.",
    )
    yield _Defect(
        f"{position} = 0",
        schema.position,
        f"a position of 0 in {schema.position!r}: positions seem to count from 0",
        "They must count from 1: add 1 to every position (and to every rank).",
    )
    yield _Defect(f"{position} < 0", schema.position, f"a negative position in {schema.position!r}", drop)
    if schema.click is not None:
        click = d.click(d.quote(schema.click), schema.types[schema.click])
        yield _Defect(f"{d.quote(schema.click)} IS NULL", schema.click, f"no value in column {schema.click!r}", drop)
        yield _Defect(
            f"{d.quote(schema.click)} IS NOT NULL AND NOT COALESCE({click} BETWEEN 0 AND 1, FALSE)",
            schema.click,
            f"a click in {schema.click!r} that is neither 0 nor 1",
            "A click is 0 or 1, or true or false. If the column counts clicks over many impressions, name both with "
            "--impressions and --clicks.",
        )
    else:
        for name in (schema.impressions or "", schema.clicks or ""):
            yield _Defect(
                f"NOT COALESCE({typed(name)} >= 0, FALSE)",
                name,
                f"a count in {name!r} that is not a whole number of 0 or more",
                drop,
            )
        yield _Defect(
            f"{typed(schema.clicks or '')} > {typed(schema.impressions or '')}",
            schema.clicks or "",
            f"more clicks in {schema.clicks!r} than impressions in {schema.impressions!r}",
            "Each click belongs to an impression: check that the two columns are not exchanged.",
        )
    if plan.rankers:
        known = listed(plan.rankers)
        place = "rankings table" if schema.layout == "long" else "log's rank columns"
        yield _Defect(
            f"{d.quote(schema.ranker)} IS NOT NULL AND "
            f"({plan.number(d.quote(schema.ranker), schema.types[schema.ranker])}) IS NULL",
            schema.ranker,
            f"a ranker whose ranks are not known: the {place} tell those of {known}",
            "Add the missing ranker's ranks, name their columns with --ranks 'rank_{ranker}', or leave its rows out.",
        )


def find_defects(engine: Engine, plan: Plan) -> list[Problem]:
    """Return what makes rows unusable, in one scan of the log."""
    schema, d = plan.schema, plan.dialect
    defects = list(_defects(plan))

    def example(defect: _Defect) -> str:
        value = f"COALESCE({d.as_text(d.quote(defect.column))}, 'null')"
        query = f"COALESCE({d.as_text(d.quote(schema.query))}, 'null')"
        label = d.text(f" ({schema.query} ")
        return f"MIN(CASE WHEN {defect.condition} THEN {value} || {label} || {query} || ')' END)"

    parts = [f"COALESCE(SUM(CASE WHEN {f.condition} THEN 1 ELSE 0 END), 0), {example(f)}" for f in defects]
    row = engine.rows(f"SELECT COUNT(*), {', '.join(parts)} FROM log", "Looking for problems")[0]
    rows = row[0]
    return [
        Problem(
            "error",
            f"{row[1 + 2 * i]:,} of {rows:,} rows have {f.what}",
            int(row[1 + 2 * i]),
            row[2 + 2 * i],
            f.remedy,
        )
        for i, f in enumerate(defects)
        if row[1 + 2 * i]
    ]


def explain_unusable(engine: Engine, plan: Plan, unusable: int, rows: int) -> str:
    """Return why rows of a log cannot be counted."""
    found = find_defects(engine, plan)
    reasons = "\n".join(f"  - {problem}" for problem in found)
    return f"{unusable:,} of {rows:,} rows of the log cannot be used:\n{reasons}"


def find_contradictions(engine: Engine, plan: Plan) -> list[Problem]:
    """Return rows shown at a position that is not the rank their own ranker gives them (wide and long)."""
    d = plan.dialect
    own = "CASE ranker " + plan.each("WHEN {i} THEN rank_{i}", " ") + " END"
    label = f"'position ' || {d.as_text('position')} || ', rank ' || COALESCE({d.as_text('own')}, 'none')"
    query = d.text(f" ({plan.schema.query} ") + f" || {d.as_text('query')} || ')'"
    bad = f"position BETWEEN 1 AND {plan.max_rank} AND ranker IS NOT NULL AND (own IS NULL OR own <> position)"
    sql = render(
        [
            *shown(plan, ranks=True),
            Step(
                "owned",
                "The rank of the ranker shown.",
                f"SELECT query, ranker, position, {own} AS own FROM shown",
            ),
            Step(
                "contradicted",
                "Where it is not the position.",
                f"SELECT COUNT(*), SUM(CASE WHEN {bad} THEN 1 ELSE 0 END), "
                f"MIN(CASE WHEN {bad} THEN {label} || {query} END) FROM owned",
            ),
        ]
    )
    rows, count, example = engine.rows(sql, "Comparing positions with ranks")[0]
    if not count:
        return []
    return [
        Problem(
            "warning" if count < rows else "error",
            f"{count:,} of {rows:,} rows were shown at a position that is not the rank their own ranker gives them",
            int(count),
            example,
            "They are left out. If results are moved after ranking (advertisements, blending), log the final ranks; "
            f"ranks must count from 1 like {shell(plan.schema.position)}.",
        )
    ]


def find_repeats(engine: Engine, plan: Plan) -> list[Problem]:
    """Return results logged twice in a page view, and page views with two results at one position."""
    schema, d = plan.schema, plan.dialect
    if schema.impression is None or schema.aggregated:
        return _find_crowded(engine, plan)
    view, query, doc, position = (
        d.quote(name) for name in (schema.impression, schema.query, schema.doc, schema.position)
    )
    source = "once" if schema.drop_duplicates else "log"
    label = f"'page view ' || {d.as_text('v')} || ', document ' || {d.as_text('d')}"
    steps = [once(plan)] if schema.drop_duplicates else []
    sql = render(
        [
            *steps,
            Step(
                "results",
                "Each result of a page view.",
                f"SELECT {view} AS v, {query} AS q, {doc} AS d, COUNT(*) AS n, COUNT(DISTINCT {position}) AS places\n"
                f"FROM {source} GROUP BY {view}, {query}, {doc}",
            ),
            Step(
                "twice",
                "Those logged more than once: at one position, or at several.",
                "SELECT SUM(CASE WHEN n > places THEN n - places ELSE 0 END), "
                f"MIN(CASE WHEN n > places THEN {label} END), SUM(CASE WHEN places > 1 THEN 1 ELSE 0 END), "
                f"MIN(CASE WHEN places > 1 THEN {label} END) FROM results",
            ),
        ]
    )
    again, again_example, moved, moved_example = engine.rows(sql, "Looking for repeats")[0]
    problems = []
    if again:
        problems.append(
            Problem(
                "error",
                f"{again:,} rows repeat a result of the same page view at the same position, as at-least-once logging "
                "does",
                int(again),
                again_example,
                "They would be counted twice: drop them with --duplicates drop.",
            )
        )
    if moved:
        problems.append(
            Problem(
                "warning",
                f"{moved:,} results stand at several positions of one page view",
                int(moved),
                moved_example,
                f"Check that {schema.impression!r} names one page view, not a session.",
            )
        )
    crowd = f"'page view ' || {d.as_text('v')} || ', position ' || {d.as_text('p')}"
    sql = render(
        [
            *steps,
            Step(
                "places",
                "Each position of a page view.",
                f"SELECT {view} AS v, {position} AS p, COUNT(DISTINCT {doc}) AS docs\nFROM {source}\n"
                f"GROUP BY {view}, {query}, {position}",
            ),
            Step(
                "crowded",
                "Those with several results.",
                f"SELECT COUNT(*), MIN({crowd}) FROM places WHERE docs > 1",
            ),
        ]
    )
    crowded, example = engine.rows(sql, "Looking for crowded positions")[0]
    if crowded:
        problems.append(
            Problem(
                "warning",
                f"{crowded:,} positions of a page view hold two or more results",
                int(crowded),
                example,
                f"Check {schema.position!r} and {schema.impression!r}; in a grid, number the cells in reading order.",
            )
        )
    return problems


def _find_crowded(engine: Engine, plan: Plan) -> list[Problem]:
    """Without page views: a query's ranker cannot show more results at a lower position than at the first."""
    schema, d = plan.schema, plan.dialect
    query, ranker, position = (d.quote(name) for name in (schema.query, schema.ranker, schema.position))
    rows = d.total(d.quote(schema.impressions)) if schema.impressions else "COUNT(*)"
    # Ranks seen from far down the page need no top: only positions that occur are compared with the first that does.
    label = f"{d.as_text('q')} || ' by ' || {d.as_text('r')} || ' at position ' || {d.as_text('p')}"
    sql = (
        f"SELECT COUNT(*), MIN({label}) FROM (SELECT q, r, p, n, FIRST_VALUE(n) OVER (PARTITION BY q, r ORDER BY p) "
        f"AS top FROM (SELECT {query} AS q, {ranker} AS r, {position} AS p, {rows} AS n FROM log "
        f"GROUP BY {query}, {ranker}, {position}) a) b WHERE n > top"
    )
    crowded, example = engine.rows(sql, "Looking for repeats")[0]
    if not crowded:
        return []
    return [
        Problem(
            "warning",
            f"{crowded:,} times a ranker has more results of a query at a position than page views: one result logged "
            "twice, or two results at one position",
            int(crowded),
            example,
            "Name the column of the page view with --impression to tell which; then repeats can be dropped with "
            "--duplicates drop.",
        )
    ]


def find_moving(engine: Engine, plan: Plan) -> list[Problem]:
    """Return pairs for which a ranker is not a function of the query."""
    schema, d = plan.schema, plan.dialect
    query, doc = d.quote(schema.query), d.quote(schema.doc)
    label = f"{d.as_text('q')} || ', document ' || {d.as_text('d')}"
    if schema.layout == "replay":
        ranker, position = d.quote(schema.ranker), d.quote(schema.position)
        inner = (
            f"SELECT {query} AS q, {doc} AS d, {ranker} AS r, MIN({position}) AS least, MAX({position}) AS most "
            f"FROM log GROUP BY {query}, {doc}, {ranker}"
        )
        moves, where = "least <> most", "were shown at several positions by one and the same ranker"
    elif schema.layout == "wide":
        columns = [d.quote(schema.rank_columns[name]) for name in plan.rankers]
        differ = " OR ".join(f"MIN({c}) <> MAX({c}) OR COUNT({c}) NOT IN (0, COUNT(*))" for c in columns)
        inner = f"SELECT {query} AS q, {doc} AS d, ({differ}) AS moves FROM log GROUP BY {query}, {doc}"
        moves, where = "moves", "have rank columns that differ between rows"
    else:
        ranker, rank = d.quote(schema.ranker), d.quote(schema.rank)
        inner = (
            f"SELECT {query} AS q, {doc} AS d, MIN({rank}) AS least, MAX({rank}) AS most FROM rankings "
            f"GROUP BY {query}, {doc}, {ranker}"
        )
        moves, where = "least <> most", "have several ranks by one ranker in the rankings table"
    pairs, count, example = engine.rows(
        f"SELECT COUNT(*), SUM(CASE WHEN {moves} THEN 1 ELSE 0 END), MIN(CASE WHEN {moves} THEN {label} END) "
        f"FROM ({inner}) t",
        "Looking for rankers that changed their mind",
    )[0]
    if not count:
        return []
    return [
        Problem(
            "warning",
            f"{count:,} of {pairs:,} (query, document) pairs {where}: a ranker is not a function of the query",
            int(count),
            f"query {example}",
            "Put into the query id what the ranking depends on (user, day, filters). Otherwise each rank counts by its "
            "share in replay, or is refused with --non-functional refuse.",
        )
    ]
