"""What rankings would be worth: the clicks of a log joined with them, weighed by how likely each was seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from posbias.sql.dialect import Dialect
from posbias.sql.shown import Plan, comma, shown
from posbias.sql.steps import Step, render
from posbias.sql.vacancies import Pages, counted_rows, moved_up


@dataclass(frozen=True)
class Ranked:
    """A ranking to be judged: a table of query, document and a score, or a ranker of the log by its number.

    Attributes:
        table: what the table is called in queries; none for a ranker of the log.
        ranker: the number of the log's ranker, where it is one.
        query, doc, score: the columns of the table.
        types: of these columns.
        descending: whether a higher score is better; a lower rank is.
    """

    table: str = ""
    ranker: int = -1
    query: str = ""
    doc: str = ""
    score: str = ""
    types: tuple[str, str, str] = ("", "", "")
    descending: bool = True

    def number(self, d: Dialect) -> str:
        """Return the score, or the rank, as a double."""
        raw, kind = d.quote(self.score), self.types[2]
        return d.number(raw, kind) if kind == "VARCHAR" else d.cast(raw, "DOUBLE")

    def scored(self, d: Dialect) -> str:
        """Return a SELECT from the table: query, doc and a score of which the higher is the better."""
        query, doc = (
            d.known(d.quote(name), type_) for name, type_ in zip((self.query, self.doc), self.types, strict=False)
        )
        return f"SELECT {query} AS query, {doc} AS doc, {'' if self.descending else '-'}{self.number(d)} AS score"


def literal(value: float) -> str:
    """Return a number as a literal that is a double in every dialect, to the last digit."""
    return f"{value:.17e}"


def credit_sums(
    plan: Plan,
    ranked: Sequence[Ranked],
    propensity: Sequence[float],
    gain: Callable[[str], str],
    *,
    pages: Pages,
) -> str:
    """Return, by bucket and rank, clicks and what they are worth: `worth` itself, in the log, and in each ranking.

    The page views of a bucket stand at rank 0. `propensity` is p_k / p_1 from rank 1 on, `gain` says what a rank is
    worth. `pages` says whether page views show all ranks down to one ("whole"), and else whether each is "known".
    """
    joins = [
        f"LEFT JOIN ({one.scored(plan.dialect)} FROM {one.table}) t_{j} ON {same_ids(plan, one, 'd', f't_{j}')}"
        for j, one in enumerate(ranked)
        if one.table
    ]
    scores = [f"{f't_{j}.score' if one.table else f'd.own_{one.ranker}'} AS score_{j}" for j, one in enumerate(ranked)]
    # What all ranks of a query are worth together is that of its documents in any order.
    places = {str(j): f"score_{j} DESC NULLS LAST" for j in range(len(ranked))} | {"all": "doc"}
    orders = [f"ROW_NUMBER() OVER (PARTITION BY query ORDER BY {by}) AS place_{j}" for j, by in places.items()]
    means = [f"AVG(one_{j}) OVER (PARTITION BY query, score_{j}) AS gain_{j}" for j in range(len(ranked))]
    steps = [
        *_documents(plan, ranked, propensity, gain, pages),
        Step(
            "scored",
            "The score of each document in each ranking: none where a ranking does not have it.",
            f"SELECT d.*, {comma(scores)}\nFROM documents d\n" + "\n".join(joins),
        ),
        Step(
            "ordered",
            "Its rank among the documents of its query that were shown: those without a score last.",
            "SELECT *,\n  " + ",\n  ".join(orders) + "\nFROM scored",
        ),
        Step(
            "gained",
            "What a relevant document is worth there.",
            "SELECT *,\n  " + ",\n  ".join(f"{gain(f'place_{j}')} AS one_{j}" for j in places) + "\nFROM ordered",
        ),
        Step(
            "meant",
            "Documents that a ranking does not tell apart share what they are worth.",
            "SELECT *,\n  "
            + ",\n  ".join([*means, f"{_as_shown(by_page=pages == 'known')} AS gain_log"])
            + "\nFROM gained",
        ),
    ]
    return render([*steps, *_credits(plan, len(ranked))])


def _documents(
    plan: Plan,
    ranked: Sequence[Ranked],
    propensity: Sequence[float],
    gain: Callable[[str], str],
    pages: Pages,
) -> list[Step]:
    """Return the steps that end in `documents`: what was shown of each query, where and how often."""
    # A document is itself in every window: only what is compared for the curve lies within one.
    schema = replace(plan.schema, window=None)
    plan = replace(plan, schema=schema, by=(), keep=(schema.impression or "",) if pages == "known" else ())
    d, known = plan.dialect, plan.schema.layout.ranks_known
    inside = counted_rows(plan)
    asked = list(dict.fromkeys(one.ranker for one in ranked if not one.table))
    p = " ".join(f"WHEN {k} THEN {literal(value)}" for k, value in enumerate(propensity, start=1))
    if known:
        own = [f"MIN(CASE WHEN rank_{i} <= {plan.max_rank} THEN rank_{i} END) AS own_{i}" for i in asked]
        means = [f"-1e0 * MIN(own_{i}) AS own_{i}" for i in asked]
    else:
        # Where the ranker showed it, on average.
        own = [f"SUM(CASE WHEN ranker = {i} THEN impressions ELSE 0 END) AS own_{i}" for i in asked]
        means = [f"-1e0 * SUM(own_{i} * r.rank) / NULLIF(SUM(own_{i}), 0) AS own_{i}" for i in asked]
    worth, moved, below, more = gain("r.rank"), "", "", ""
    if pages != "whole":
        worth = f"COALESCE(m.worth, {worth})"
        moved = "\nLEFT JOIN moved m ON r.query = m.query AND r.doc = m.doc AND r.rank = m.rank"
    if plan.keep:
        means += ["SUM(m.slots) AS slots", "SUM(m.above) AS above"]
        more, below = ", b.slots AS all_slots, b.above AS all_above", "\nLEFT JOIN below b ON e.query = b.query"
    return [
        *shown(plan, ranks=known and bool(asked)),
        Step(
            "ranks",
            "Each (query, document) at each rank, whoever put it there.",
            "SELECT "
            + comma("query", "doc", "position AS rank", f"{d.total('impressions')} AS impressions", own)
            + f",\n  {d.total('clicks')} AS clicks, CASE position {p} ELSE 0e0 END AS p\nFROM shown\n"
            f"WHERE {inside}\nGROUP BY query, doc, position",
        ),
        Step(
            "busy",
            "How often each rank of a query was shown.",
            "SELECT query, rank, SUM(impressions) AS n\nFROM ranks\nGROUP BY query, rank",
        ),
        Step(
            "views",
            "The page views of each query.",
            f"SELECT query, COUNT(DISTINCT kept_0) AS views\nFROM shown\nWHERE {inside}\nGROUP BY query",
        )
        if plan.keep
        else Step(
            "views",
            "The page views of each query: what was shown at its busiest rank.",
            "SELECT query, MAX(n) AS views\nFROM busy\nGROUP BY query",
        ),
        *(moved_up(inside, gain, by_page=bool(plan.keep)) if pages != "whole" else []),
        Step(
            "exposures",
            "Each (query, document) with its clicks, the exposure that it had, and what it was worth as it was shown.",
            "SELECT "
            + comma("r.query", "r.doc", "SUM(impressions) AS impressions", "SUM(clicks) AS clicks", means)
            + f",\n  SUM(impressions * p) AS exposure,\n"
            f"  SUM(impressions * {worth}) AS shown_worth\nFROM ranks r{moved}\nGROUP BY r.query, r.doc",
        ),
        Step(
            "documents",
            "Both together.",
            f"SELECT e.*, v.views{more}\nFROM exposures e\nJOIN views v ON e.query = v.query{below}",
        ),
    ]


def same_ids(plan: Plan, one: Ranked, left: str, right: str, roles: Sequence[str] = ("query", "doc")) -> str:
    """Compare ids of the log with those of a ranking, as text where their types differ."""
    d, schema = plan.dialect, plan.schema
    told = []
    for role in roles:
        mine, theirs = f"{left}.{role}", f"{right}.{role}"
        if schema.types[getattr(schema, role)] != one.types[("query", "doc").index(role)]:
            mine, theirs = d.as_text(mine), d.as_text(theirs)
        told.append(f"{mine} = {theirs}")
    return " AND ".join(told)


def _as_shown(*, by_page: bool) -> str:
    """Return what a document was worth in the page views of its query: where it was shown, and below them elsewhere.

    Each page view ranks all documents of the query, those that it does not show in any order below: a document gets its
    even part of what is left of the worth of all ranks.
    """
    of_query = "OVER (PARTITION BY query)"
    left = f"SUM(one_all * views - shown_worth) {of_query} / NULLIF(SUM(views - impressions) {of_query}, 0)"
    elsewhere = f"(views - impressions) * COALESCE({left}, 0e0)"
    if by_page:
        # Where pages differ in how many they show, each leaves something else.
        parts = f"SUM(one_all) {of_query} * (all_slots - slots) - (all_above - above)"
        elsewhere = f"CASE WHEN all_slots IS NULL THEN {elsewhere} ELSE {parts} END"
    return f"(shown_worth + {elsewhere}) / views"


def _credits(plan: Plan, rankings: int) -> list[Step]:
    """Return the steps that end in the answer."""
    bucket = plan.dialect.bucket("query", plan.schema.types[plan.schema.query])
    # ρ of a document is its exposure by page view, and each rank at which it was shown has a part in it.
    part = "clicks * part"
    sums = {
        "clicks": part,
        "worth": f"{part} / rho",
        "worth_log": f"{part} / rho * gain_log",
        **{f"worth_{j}": f"{part} / rho * gain_{j}" for j in range(rankings)},
        **{f"scored_{j}": f"CASE WHEN score_{j} IS NOT NULL THEN {part} ELSE 0e0 END" for j in range(rankings)},
    }
    none = comma([f"0e0 AS {name}" for name in sums])
    return [
        Step(
            "clicked",
            "Each that was clicked once for every rank at which it was shown, with the part that has in its exposure.",
            "SELECT m.*, r.rank, r.impressions * r.p / m.exposure AS part, m.exposure / m.views AS rho\nFROM meant m\n"
            "JOIN ranks r ON m.query = r.query AND m.doc = r.doc\nWHERE m.clicks > 0 AND m.exposure > 0",
        ),
        Step(
            "credits",
            "Each click weighed by the exposure of its document, and split by where that comes from; page views.",
            f"SELECT {bucket} AS bucket, rank, 0e0 AS views,\n  "
            + ",\n  ".join(f"SUM({text}) AS {name}" for name, text in sums.items())
            + f"\nFROM clicked\nGROUP BY {bucket}, rank\nUNION ALL\n"
            f"SELECT {bucket} AS bucket, 0 AS rank, 1e0 * SUM(views) AS views, {none}\nFROM views\nGROUP BY {bucket}",
        ),
    ]
