"""Queries that judge rankings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from posbias.sql.dialects import Dialect
from posbias.sql.exposures import in_top_ranks
from posbias.sql.plan import QueryPlan, Step, comma, render, shown_steps

# Whether page views show all ranks down to one that is the same for all, and else whether each row tells its own.
Pages = Literal["whole", "known", "unknown"]


def credit_sums(
    plan: QueryPlan,
    ranked: Sequence[EvaluatedRanking],
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


@dataclass(frozen=True)
class EvaluatedRanking:
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
        return d.as_double(raw, kind) if kind == "VARCHAR" else d.cast(raw, "DOUBLE")

    def scored(self, d: Dialect) -> str:
        """Return a SELECT from the table: query, doc and a score of which the higher is the better."""
        query, doc = (
            d.nan_to_null(d.quote(name), type_) for name, type_ in zip((self.query, self.doc), self.types, strict=False)
        )
        return f"SELECT {query} AS query, {doc} AS doc, {'' if self.descending else '-'}{self.number(d)} AS score"


def same_ids(
    plan: QueryPlan, one: EvaluatedRanking, left: str, right: str, roles: Sequence[str] = ("query", "doc")
) -> str:
    """Compare ids of the log with those of a ranking, as text where their types differ."""
    d, schema = plan.dialect, plan.schema
    told = []
    for role in roles:
        mine, theirs = f"{left}.{role}", f"{right}.{role}"
        if schema.types[getattr(schema, role)] != one.types[("query", "doc").index(role)]:
            mine, theirs = d.as_text(mine), d.as_text(theirs)
        told.append(f"{mine} = {theirs}")
    return " AND ".join(told)


def _documents(
    plan: QueryPlan,
    ranked: Sequence[EvaluatedRanking],
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
        *shown_steps(plan, ranks=known and bool(asked)),
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


def counted_rows(plan: QueryPlan) -> str:
    """Return which rows of `shown` count."""
    return f"{in_top_ranks(plan)} AND query IS NOT NULL AND doc IS NOT NULL"


def literal(value: float) -> str:
    """Return a number as a literal that is a double in every dialect, to the last digit."""
    return f"{value:.17e}"


def moved_up(inside: str, gain: Callable[[str], str], *, by_page: bool) -> list[Step]:
    """Return the steps that end in `moved`: what documents are worth below ranks that some page views leave vacant.

    A page view ranks what it shows: below an advertisement documents are one rank higher than they stand. `inside` says
    which rows of `shown` count; `busy` tells how often each rank of a query was shown, `ranks` of which documents, and
    `views` the page views of a query.
    """
    counted = Step(
        "counted",
        "Which of its ranks each is, and how often one from there on was shown.",
        "SELECT b.*, v.views, ROW_NUMBER() OVER (PARTITION BY b.query ORDER BY rank) AS nth,\n"
        "  MAX(n) OVER (PARTITION BY b.query ORDER BY rank DESC) AS later\nFROM busy b\n"
        "JOIN views v ON b.query = v.query",
    )
    return [counted, *(_by_page(inside, gain) if by_page else _on_average(gain))]


def _by_page(inside: str, gain: Callable[[str], str]) -> list[Step]:
    """Return the steps where each row tells its page view, as the column that comes along.

    What a page of m documents leaves of all ranks is worth G − Σ_{k≤m} λ(k), and its D − m others share it: `slots` is
    1 / (D − m), and `above` the sum times that. G is known later.
    """
    page = "OVER (PARTITION BY s.query, page)"
    return [
        Step(
            "stood",
            "Where documents stand among those of their page, for queries of which some page lacks a rank of others.",
            "SELECT query, doc, position AS rank, kept_0 AS page,\n"
            "  DENSE_RANK() OVER (PARTITION BY query, kept_0 ORDER BY position) AS place\nFROM shown\n"
            f"WHERE {inside} AND query IN (SELECT query FROM counted WHERE n < views OR nth <> rank)",
        ),
        Step(
            "paged",
            "What they are worth there, and what their page leaves to others.",
            f"SELECT s.*, {gain('place')} AS worth, SUM({gain('place')}) {page} AS page_worth,\n"
            f"  1e0 / COUNT(*) {page} AS part, COALESCE(1e0 / NULLIF(z.docs - COUNT(*) {page}, 0), 0e0) AS slots\n"
            "FROM stood s\nJOIN (SELECT query, COUNT(DISTINCT doc) AS docs FROM ranks GROUP BY query) z "
            "ON s.query = z.query",
        ),
        Step(
            "moved",
            "By document and rank.",
            "SELECT query, doc, rank, AVG(worth) AS worth, SUM(slots) AS slots, SUM(slots * page_worth) AS above\n"
            "FROM paged\nGROUP BY query, doc, rank",
        ),
        Step(
            "below",
            "What all pages of a query leave, each page once.",
            "SELECT query, SUM(part * slots) AS slots, SUM(part * slots * page_worth) AS above\nFROM paged\n"
            "GROUP BY query",
        ),
    ]


def _on_average(gain: Callable[[str], str]) -> list[Step]:
    """Return the steps where page views are not known: min(1, n_j / n_k) of those with a rank k are taken to have j."""
    between = "place - FLOOR(place)"
    return [
        Step(
            "vacant",
            "The documents that are missing above a rank, on average.",
            "SELECT c.query, c.rank, SUM(1e0 - 1e0 * v.n / c.n) AS missing\nFROM counted v\n"
            "JOIN counted c ON v.query = c.query AND v.rank < c.rank AND v.n < c.n\nWHERE v.n < v.later\n"
            "GROUP BY c.query, c.rank",
        ),
        Step(
            "places",
            "Ranks that are higher than they stand.",
            "SELECT c.query, c.rank, c.nth - COALESCE(v.missing, 0e0) AS place\nFROM counted c\n"
            "LEFT JOIN vacant v ON c.query = v.query AND c.rank = v.rank\n"
            "WHERE c.nth <> c.rank OR v.missing IS NOT NULL",
        ),
        Step(
            "moved",
            "What they are worth there; between two ranks, a part of each.",
            f"SELECT r.query, r.doc, r.rank, (1e0 - ({between})) * {gain('FLOOR(place)')}\n"
            f"    + ({between}) * {gain('(FLOOR(place) + 1)')} AS worth\nFROM places m\n"
            "JOIN ranks r ON m.query = r.query AND m.rank = r.rank",
        ),
    ]


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


def _credits(plan: QueryPlan, rankings: int) -> list[Step]:
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


def ranking_rows(d: Dialect, one: EvaluatedRanking) -> str:
    """Return how many rows a ranking has: in all, without an id, with no number for a score, with one; and its ends."""
    raw = d.as_text(d.quote(one.score))
    # By its text, as ids are: to SQL a NaN is a number like any other, and above all of them.
    odd = f"{d.is_nan(d.quote(one.score))} OR ({one.number(d)} IS NULL AND TRIM({raw}) <> '')"
    return render(
        [
            Step(
                "told",
                "The rows of the ranking.",
                f"{one.scored(d)}, CASE WHEN {odd} THEN 1 END AS odd\nFROM {one.table}",
            ),
            Step(
                "ranking_rows",
                "How many can be used.",
                "SELECT COUNT(*), COUNT(CASE WHEN query IS NULL OR doc IS NULL THEN 1 END), COUNT(odd), COUNT(score),\n"
                "  MIN(score), MAX(score)\nFROM told",
            ),
        ]
    )


def repeated(d: Dialect, one: EvaluatedRanking) -> str:
    """Return the (query, document) pairs that a ranking has several times: how many, and one of them."""
    return render(
        [
            Step(
                "pairs",
                "How often each is there.",
                f"SELECT query, doc, COUNT(*) AS times\nFROM ({one.scored(d)} FROM {one.table}) t\n"
                "GROUP BY query, doc\nHAVING COUNT(*) > 1",
            ),
            Step(
                "repeated",
                "How many are there several times, and an example.",
                f"SELECT COUNT(*), MIN({d.as_text('query')}), MIN(times)\nFROM pairs",
            ),
        ]
    )


def unseen(plan: QueryPlan, ranked: Sequence[EvaluatedRanking], top: int) -> str:
    """Return what rankings that are tables have in their top ranks, by page views of their queries.

    By the number of a ranking: what would be shown there, and what of it never was.
    """
    plan = replace(plan, schema=replace(plan.schema, window=None), by=())
    inside = f"{in_top_ranks(plan)} AND query IS NOT NULL AND doc IS NOT NULL"
    steps, answers = [], []
    for j, one in enumerate(ranked):
        if not one.table:
            continue
        steps += [
            Step(
                f"placed_{j}",
                "Whether a document stands in the top of a ranking, by all documents that it has.",
                f"SELECT query, doc, score,\n  CASE WHEN ROW_NUMBER() OVER (PARTITION BY query ORDER BY score DESC) "
                f"<= {top} THEN 1e0 ELSE 0e0 END AS inside\n"
                f"FROM ({one.scored(plan.dialect)} FROM {one.table}) r\nWHERE score IS NOT NULL",
            ),
            Step(
                f"top_{j}",
                "Documents that a ranking does not tell apart share the places that they have in its top.",
                f"SELECT query, doc, AVG(inside) OVER (PARTITION BY query, score) AS part\nFROM placed_{j}",
            ),
        ]
        answers.append(
            f"SELECT {j} AS ranking, SUM(v.views * t.part) AS views,\n"
            "  SUM(CASE WHEN s.doc IS NULL THEN v.views * t.part ELSE 0e0 END) AS never\n"
            f"FROM top_{j} t\nJOIN views v ON {same_ids(plan, one, 'v', 't', ['query'])}\n"
            f"LEFT JOIN seen s ON {same_ids(plan, one, 's', 't')}\nWHERE t.part > 0"
        )
    return render(
        [
            *shown_steps(plan, ranks=False),
            Step("seen", "What was shown.", f"SELECT DISTINCT query, doc\nFROM shown\nWHERE {inside}"),
            Step(
                "views",
                "The page views of each query: what was shown at its busiest rank.",
                "SELECT query, MAX(shown) AS views\nFROM (\n  SELECT query, position, SUM(impressions) AS shown "
                f"FROM shown WHERE {inside} GROUP BY query, position\n) r\nGROUP BY query",
            ),
            *steps,
            Step("unseen", "What would be shown, and what of it never was.", "\nUNION ALL\n".join(answers)),
        ]
    )


def page_shapes(plan: QueryPlan) -> str:
    """Return the results of no page view, the page views, those with a vacant rank, and how few and many they show."""
    paged = replace(plan, schema=replace(plan.schema, window=None), by=(), keep=(plan.schema.impression or "",))
    return render(
        [
            *shown_steps(paged, ranks=False),
            Step(
                "pages",
                "What each page view shows, and how far down.",
                f"SELECT kept_0 AS page, COUNT(*) AS n, MAX(position) AS last\nFROM shown\nWHERE {counted_rows(plan)}\n"
                "GROUP BY query, kept_0",
            ),
            Step(
                "shapes",
                "Of all of them.",
                "SELECT COALESCE(SUM(CASE WHEN page IS NULL THEN n ELSE 0 END), 0), COUNT(*), "
                "COALESCE(SUM(CASE WHEN n < last THEN 1 ELSE 0 END), 0), MIN(n), MAX(n)\nFROM pages",
            ),
        ]
    )
