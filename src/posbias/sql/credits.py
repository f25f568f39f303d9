"""What rankings would be worth: the clicks of a log joined with them, weighed by how likely each was seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from posbias.sql.dialect import Dialect
from posbias.sql.exposures import cell_steps
from posbias.sql.shown import Plan, comma
from posbias.sql.signatures import placed_by_own
from posbias.sql.steps import Step, render


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


@dataclass(frozen=True)
class Exposure:
    """Who sees what: p_k / p_1 by rank, 0 where nothing is shown, and the rankers' shares of the traffic."""

    propensity: Sequence[float]
    shares: Sequence[float]


def number(value: float) -> str:
    """Return a number as a literal that is a double in every dialect, to the last digit."""
    return f"{value:.17e}"


def credit_sums(plan: Plan, ranked: Sequence[Ranked], exposure: Exposure, gain: Callable[[str], str]) -> str:
    """Return, by bucket and place, clicks and what they are worth: `worth` itself, in the log, and in each ranking.

    A place is a rank, by one ranker (`slot`) where all ranks are known. `gain` gives what a relevant document is worth at a rank.
    """
    known = plan.schema.layout.ranks_known
    steps = _known_documents(plan) if known else _seen_documents(plan, ranked, exposure, gain)
    lists = [*ranked, *(Ranked(ranker=i) for i in range(len(plan.rankers)))] if known else list(ranked)
    joins = [
        f"LEFT JOIN ({one.scored(plan.dialect)} FROM {one.table}) t_{j} ON {same_ids(plan, one, 'd', f't_{j}')}"
        for j, one in enumerate(lists)
        if one.table
    ]
    told = [f"{_score(one, j, known=known)} AS score_{j}" for j, one in enumerate(lists)]
    places = {str(j): _place(f"score_{j} DESC NULLS LAST") for j in range(len(lists))}
    # What all ranks of a query are worth together, where the log itself tells the ranks.
    places |= {} if known else {"all": _place("doc")}
    every = comma([f"{place} AS place_{j}" for j, place in places.items()])
    gains = comma([f"{gain(f'place_{j}')} AS one_{j}" for j in places])
    means = comma(
        [f"AVG(one_{j}) OVER (PARTITION BY query, score_{j}) AS gain_{j}" for j in range(len(lists))],
        [] if known else [f"{_as_shown()} AS gain_log"],
    )
    steps += [
        Step(
            "scored",
            "The score of each document in each ranking: none where a ranking does not have it.",
            f"SELECT d.*, {comma(told)}\nFROM documents d\n" + "\n".join(joins),
        ),
        Step(
            "ordered",
            "Its rank among the documents of its query that were shown: those without a score last.",
            f"SELECT *, {every}\nFROM scored",
        ),
        Step("gained", "What a relevant document is worth there.", f"SELECT *, {gains}\nFROM ordered"),
        Step(
            "meant",
            "Documents that a ranking does not tell apart share what they are worth.",
            f"SELECT *, {means}\nFROM gained",
        ),
    ]
    steps += _known_places(plan, exposure, len(ranked)) if known else _seen_places(plan)
    bucket = plan.dialect.bucket("query", plan.schema.types[plan.schema.query])
    part = "clicks * part / whole"
    sums = [
        f"SUM({part}) AS clicks",
        f"SUM({part} / whole) AS worth",
        f"SUM({part} / whole * gain_log) AS worth_log",
        *(f"SUM({part} / whole * gain_{j}) AS worth_{j}" for j in range(len(ranked))),
        *(f"SUM(CASE WHEN score_{j} IS NOT NULL THEN {part} ELSE 0e0 END) AS scored_{j}" for j in range(len(ranked))),
    ]
    steps.append(
        Step(
            "credits",
            "Each click weighed by the exposure of its document, and split by where that comes from.",
            f"SELECT {bucket} AS bucket, slot, rank,\n  "
            + ",\n  ".join(sums)
            + f"\nFROM places\nWHERE clicks > 0 AND part > 0\nGROUP BY {bucket}, slot, rank",
        )
    )
    return render(steps)


def _score(one: Ranked, j: int, *, known: bool) -> str:
    if one.table:
        return f"t_{j}.score"
    return f"-1e0 * d.rank_{one.ranker}" if known else f"d.shown_by_{one.ranker}"


def _place(order: str) -> str:
    return f"ROW_NUMBER() OVER (PARTITION BY query ORDER BY {order})"


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


def _known_documents(plan: Plan) -> list[Step]:
    """Return the steps that end in `documents` where every ranker's rank is known."""
    rank = f"MIN(CASE WHEN rank_{{i}} <= {plan.max_rank} THEN rank_{{i}} END) AS rank_{{i}}"
    shown = f"position = own AND position BETWEEN 1 AND {plan.max_rank} AND impressions > 0 AND doc IS NOT NULL"
    return [
        *placed_by_own(plan),
        Step(
            "documents",
            "Each (query, document) that was shown, with the rank that every ranker gives it and its clicks.",
            f"SELECT query, doc, {plan.each(rank)},\n  {plan.dialect.total('clicks')} AS clicks\n"
            f"FROM placed_by_own\nWHERE {shown}\nGROUP BY query, doc",
        ),
    ]


def _known_places(plan: Plan, exposure: Exposure, first: int) -> list[Step]:
    """Return the steps that end in `places`: each document once for each ranker that has it, with its part of ρ."""
    # ρ = Σ_f share_f · p_{rank_f(d)} / p_1.
    parts = []
    for i, share in enumerate(exposure.shares):
        cases = " ".join(f"WHEN {k} THEN {number(share * p)}" for k, p in enumerate(exposure.propensity, start=1))
        parts.append(f"CASE rank_{i} {cases} ELSE 0e0 END AS part_{i}")
    mixed = " + ".join(f"{number(share)} * gain_{first + i}" for i, share in enumerate(exposure.shares))
    slots = " UNION ALL ".join(f"SELECT {i} AS slot" for i in range(len(plan.rankers)))
    own, part = (f"CASE slot {plan.each(f'WHEN {{i}} THEN {name}_{{i}}', ' ')} END" for name in ("rank", "part"))
    return [
        Step(
            "seen",
            "How likely each ranker is to show it and have it seen, and what it is worth in the log as a whole.",
            f"SELECT *, {mixed} AS gain_log,\n  " + ",\n  ".join(parts) + "\nFROM meant\nWHERE clicks > 0",
        ),
        Step("exposed", "All of its exposure.", f"SELECT *, {plan.each('part_{i}', ' + ')} AS whole\nFROM seen"),
        Step("slots", "The rankers.", slots),
        Step(
            "places",
            "Each once for every ranker.",
            f"SELECT *, {own} AS rank, {part} AS part\nFROM exposed\nCROSS JOIN slots",
        ),
    ]


def _seen_documents(plan: Plan, ranked: Sequence[Ranked], exposure: Exposure, gain: Callable[[str], str]) -> list[Step]:
    """Return the steps that end in `documents` where ranks are those at which documents were shown."""
    # A document is itself in every window: only what is compared for the curve lies within one.
    plan = replace(plan, schema=replace(plan.schema, window=None))
    d = plan.dialect
    p = " ".join(f"WHEN {k} THEN {number(value)}" for k, value in enumerate(exposure.propensity, start=1))
    own = "CASE WHEN ranker = {0} THEN {1} ELSE 0 END"
    means = [
        f"-1e0 * SUM({own.format(i, 'impressions * position')}) / NULLIF(SUM({own.format(i, 'impressions')}), 0) "
        f"AS shown_by_{i}"
        for i in dict.fromkeys(one.ranker for one in ranked if not one.table)
    ]
    return [
        *cell_steps(plan),
        Step(
            "ranks",
            "Each (query, document) at each rank, whoever put it there.",
            f"SELECT query, doc, position AS rank, {d.total('impressions')} AS impressions,\n"
            f"  CASE position {p} ELSE 0e0 END AS p\nFROM cells\nGROUP BY query, doc, position",
        ),
        Step(
            "views",
            "The page views of each query: what was shown at its busiest rank.",
            "SELECT query, MAX(shown) AS views\nFROM (\n  SELECT query, rank, SUM(impressions) AS shown FROM ranks "
            "GROUP BY query, rank\n) r\nGROUP BY query",
        ),
        Step(
            "exposures",
            "Each (query, document) with the exposure that it had, and what it was worth where it was shown.",
            "SELECT query, doc, SUM(impressions) AS impressions, SUM(impressions * p) AS exposure,\n"
            f"  SUM(impressions * {gain('rank')}) AS worth\nFROM ranks\nGROUP BY query, doc",
        ),
        Step(
            "clicked",
            "Its clicks, and where each ranker that is asked for put it on average.",
            "SELECT query, doc, "
            + comma(f"{d.total('clicks')} AS clicks", means)
            + "\nFROM cells\nGROUP BY query, doc",
        ),
        Step(
            "documents",
            "Both, with the page views of the query.",
            "SELECT e.*, "
            + comma("c.clicks", [f"c.{text.rpartition(' ')[2]}" for text in means], "v.views")
            + "\nFROM exposures e\nJOIN clicked c ON e.query = c.query AND e.doc = c.doc\n"
            "JOIN views v ON e.query = v.query",
        ),
    ]


def _as_shown() -> str:
    """Return what a document was worth in the page views of its query: where it was shown, and below them elsewhere.

    Each page view ranks all documents of the query, those that it does not show in any order below: a document gets its
    even part of what is left of the worth of all ranks.
    """
    of_query = "OVER (PARTITION BY query)"
    left = f"SUM(one_all * views - worth) {of_query} / NULLIF(SUM(views - impressions) {of_query}, 0)"
    return f"(worth + (views - impressions) * COALESCE({left}, 0e0)) / views"


def _seen_places(plan: Plan) -> list[Step]:
    """Return the steps that end in `places`: each document once for each rank at which it was shown."""
    kept = "m.*, r.rank AS rank, 0 AS slot, 1e0 * r.impressions * r.p / m.views AS part, m.exposure / m.views AS whole"
    return [
        Step(
            "places",
            "Each once for every rank at which it was shown, with the part that has in its exposure.",
            f"SELECT {kept}\nFROM meant m\nJOIN ranks r ON m.query = r.query AND m.doc = r.doc\nWHERE m.clicks > 0",
        ),
    ]
