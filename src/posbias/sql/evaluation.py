"""Queries that estimate what rankings are worth from the clicks of a log.

A click is divided by the probability that its document was examined, and multiplied by the gain of the rank that an
evaluated ranking gives the document (inverse propensity scoring). `credit_sums` returns these sums by bucket and rank,
from two tables that are made once: `shown_ranks`, the only one that reads the log, and `reranked_documents`.
The other queries find problems: rows of a ranking that cannot be used, repeated documents, documents that the log
never showed, and page views with vacant ranks (such as a rank taken by an advertisement).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from posbias.logs.schema import EXACT
from posbias.sql.dialects import BUCKETS, FLOATS, Dialect, double_literal
from posbias.sql.exposures import in_top_ranks
from posbias.sql.plan import BY_BOTH, QueryPlan, Step, bucket_columns, bucket_steps, comma, render, shown_steps

# "whole": every page view shows all ranks down to the same one. Otherwise, whether each row names its page view.
PageKnowledge = Literal["whole", "known", "unknown"]
# A frequent query has more than this share of the page views, and more than this many times those of the mean query.
FREQUENT_SHARE, FREQUENT_TIMES = 0.01, 10.0
# A document with fewer impressions has few: much of its clicks is chance.
FEW_IMPRESSIONS = 10


def shown_ranks(plan: QueryPlan, rankings: Sequence[EvaluatedRanking], propensity: Sequence[float]) -> str:
    """Return the query of the table `shown_ranks`: each (query, document) at each rank, whichever ranker put it there.

    The other queries read this table instead of the log. Its columns are `query`, `doc`, `rank` (also beyond M),
    `impressions`, `clicks`, `p` (0 beyond M) and `ranker_<i>` for each ranker of the log that is evaluated.

    Arguments:
        plan (QueryPlan): what is asked of the log.
        rankings (sequence of EvaluatedRanking): what is evaluated.
        propensity (sequence of float): p_k / p_1 from rank 1 on.
    """
    plan = _without_window(plan)
    d, known, rankers = plan.dialect, plan.schema.layout.ranks_known, _evaluated_rankers(rankings)
    if known:
        ranks = [f"MIN(CASE WHEN rank_{i} <= {plan.max_rank} THEN rank_{i} END) AS ranker_{i}" for i in rankers]
    else:
        ranks = [f"SUM(CASE WHEN ranker = {i} THEN impressions ELSE 0 END) AS ranker_{i}" for i in rankers]
    counted = "query IS NOT NULL AND doc IS NOT NULL AND position > 0"
    return render(
        [
            *shown_steps(plan, ranks=known and bool(rankers)),
            Step(
                "ranks",
                "Each (query, document) at each rank, whichever ranker put it there.",
                "SELECT "
                + comma("query", "doc", "position AS rank", f"{d.total('impressions')} AS impressions", ranks)
                + f",\n  {d.total('clicks')} AS clicks, {_propensity_case(propensity)} AS p\nFROM shown\n"
                # An aggregated row may have no impressions.
                f"WHERE {counted}{' AND impressions > 0' if plan.schema.aggregated else ''}\n"
                "GROUP BY query, doc, position",
            ),
        ]
    )


def reranked_documents(
    plan: QueryPlan, rankings: Sequence[EvaluatedRanking], gain: Callable[[str], str], *, pages: PageKnowledge
) -> str:
    """Return the query of the table `reranked_documents`: each document of a query with its rank in each ranking.

    It reads `shown_ranks`. A rank is among the documents of the query that were shown in the top M; documents without a
    score are last. The columns are `query`, `doc`, `impressions`, `clicks`, `exposure` Σ N_k p_k, `squares` Σ N_k p_k²,
    `shown_gain`, the page views of the query `views`, and for each ranking `score_<j>`, `rank_<j>` and `equals_<j>`:
    so many documents have the same score, and all of them the first of their ranks.

    Arguments:
        plan (QueryPlan): what is asked of the log.
        rankings (sequence of EvaluatedRanking): what is evaluated.
        gain (callable): from SQL for a rank to SQL for what a relevant document is worth there.
        pages (str): "whole", "known" or "unknown": see `PageKnowledge`.
    """
    d = plan.dialect
    joins = [
        f"LEFT JOIN ({ranking.select_scores(d)} FROM {ranking.table}) t_{j} "
        f"ON {_same_ids(plan, ranking, 'd', f't_{j}')}"
        for j, ranking in enumerate(rankings)
        if ranking.table
    ]
    scores = [
        f"{f't_{j}.score' if ranking.table else f'd.ranker_score_{ranking.ranker}'} AS score_{j}"
        for j, ranking in enumerate(rankings)
    ]
    ranks = [text for j in range(len(rankings)) for text in _rank_columns(f"score_{j}", f"_{j}")]
    return render(
        [
            *_documents(plan, rankings, gain, pages),
            Step(
                "scored",
                "The score of each document in each ranking, NULL where a ranking does not have it.",
                f"SELECT d.*, {comma(scores)}\nFROM documents d\n" + "\n".join(joins),
            ),
            Step(
                "reranked",
                "The rank of each document among those of its query that were shown.",
                "SELECT *,\n  " + ",\n  ".join(ranks) + "\nFROM scored",
            ),
        ]
    )


def _rank_columns(score: str, suffix: str = "") -> list[str]:
    """Return SQL for the rank of documents by their score, and for how many have the same score."""
    order = f"PARTITION BY query ORDER BY {score} DESC NULLS LAST"
    return [
        f"RANK() OVER ({order}) AS rank{suffix}",
        f"COUNT(*) OVER ({order} RANGE BETWEEN CURRENT ROW AND CURRENT ROW) AS equals{suffix}",
    ]


def credit_sums(plan: QueryPlan, rankings: int, gain: Callable[[str], str], *, pages: PageKnowledge) -> str:
    """Return the query of clicks and what they are worth, by bucket and rank.

    It reads `shown_ranks` and `reranked_documents`. The columns are `worth` (each click divided by its propensity),
    `worth_log` (times the gain in the pages that were shown), `worth_<j>` (times the gain in ranking j) and `few_<j>`
    (the difference of the two for documents with fewer than `FEW_IMPRESSIONS` impressions). Rank 0 has the page
    views of a bucket.

    Arguments:
        plan (QueryPlan): what is asked of the log.
        rankings (int): the number of rankings.
        gain (callable): from SQL for a rank to SQL for what a relevant document is worth there.
        pages (str): "whole", "known" or "unknown": see `PageKnowledge`.
    """
    return render([*_gains(rankings, gain), *_credits(plan, rankings, by_page=pages == "known")])


def unit_credit_sums(
    plan: QueryPlan, rankings: int, propensity: Sequence[float], gain: Callable[[str], str], *, pages: PageKnowledge
) -> str:
    """Return the query of what each bucket of units adds to the sums of `credit_sums`, and each of queries and units.

    It reads `reranked_documents` and the log. Buckets are numbered as in a harvest of a log with units. A sum is what
    Σ N C λ / E over documents would lose without the bucket, N being the page views of the query, C the clicks and E
    the exposure of the document: N λ (C / E − (C − C_u) / (E − E_u)) of the documents that the bucket saw, and n_u C λ
    / E of its n_u page views of each query. A document that only this bucket saw is lost. The gains λ of a ranking stay
    the same. Those in the pages that were shown are counted without the pages of the bucket. The arguments are as in
    `credit_sums` and `shown_ranks`.
    """
    plan = _without_window(plan)
    gains = {"worth": "1e0", "worth_log": "gain_log", **{f"worth_{j}": f"gain_{j}" for j in range(rankings)}}
    # What a page view that does not show a document leaves to it, in place of its gain as shown.
    of_page = {**gains, "worth_log": "left_gain"}
    lost = {name: f"(all_views - lost_views) * {text} * (rate - other_rate)" for name, text in gains.items()}
    lost["worth_log"] = (
        "rate * (all_views * gain_log - lost_views * left_gain)\n    - other_rate * "
        "(all_views * gain_log - shown_gain - (lost_views - impressions) * left_gain)"
    )
    of_documents = comma([f"SUM({text}) AS {name}" for name, text in lost.items()])
    worths = comma([f"SUM(clicks / exposure * {text}) AS {name}" for name, text in of_page.items()])
    of_pages = comma([f"SUM(p.views * COALESCE(w.{name}, 0e0)) AS {name}" for name in gains])
    buckets = "unit_bucket, both_bucket"
    gain_log = _gain_as_shown(by_page=pages == "known")
    return render(
        [
            *_gains(rankings, gain),
            Step(
                "clicked",
                "The clicked documents with their gains in each ranking and in the pages that were shown.",
                f"SELECT *, COALESCE((views * gain_log - shown_gain) / NULLIF(views - impressions, 0), 0e0) AS "
                f"left_gain\nFROM (\n  SELECT g.*, {gain_log} AS gain_log\n  FROM gains g\n"
                "  JOIN page_views v ON g.query = v.query\n  WHERE g.clicks > 0 AND g.exposure > 0\n) c",
            ),
            *shown_steps(plan, ranks=False),
            *bucket_steps(plan, "shown"),
            Step(
                "unit_rows",
                "Each row with the bucket of its unit.",
                f"SELECT query, doc, position, impressions, clicks, {bucket_columns(plan)}\nFROM with_buckets\n"
                f"WHERE {_counted_rows(plan)}",
            ),
            Step(
                "unit_documents",
                "The clicks on each document, its exposure and its gain where it was shown, by bucket of units.",
                f"SELECT query, doc, {buckets}, SUM(impressions) AS impressions, SUM(clicks) AS clicks,\n"
                f"  SUM(impressions * {_propensity_case(propensity)}) AS exposure,\n"
                f"  SUM(impressions * {gain('position')}) AS shown_gain\nFROM unit_rows\n"
                f"GROUP BY query, doc, {buckets}",
            ),
            Step(
                "unit_views",
                "The page views of each query, by bucket of units.",
                f"SELECT query, {buckets}, MAX(n) AS views\nFROM (\n  SELECT query, {buckets}, SUM(impressions) AS n "
                f"FROM unit_rows GROUP BY query, {buckets}, position\n) r\nGROUP BY query, {buckets}",
            ),
            Step(
                "query_worth",
                "What one page view of a query is worth.",
                f"SELECT query, {worths}\nFROM clicked\nGROUP BY query",
            ),
            Step(
                "unit_rates",
                "The clicks for each exposure of a document, and those without a bucket that saw it.",
                "SELECT u.*, g.clicks / g.exposure AS rate, g.views AS all_views, p.views AS lost_views, gain_log,\n"
                f"  left_gain, {comma([f'gain_{j}' for j in range(rankings)])},\n"
                "  CASE WHEN u.exposure < g.exposure * (1 - 1e-9)\n"
                "    THEN (g.clicks - u.clicks) / (g.exposure - u.exposure) ELSE 0e0 END AS other_rate\n"
                "FROM unit_documents u\nJOIN clicked g ON u.query = g.query AND u.doc = g.doc\n"
                "JOIN unit_views p ON u.query = p.query AND u.unit_bucket = p.unit_bucket",
            ),
            Step(
                "unit_worth",
                "What is lost without the bucket: of the documents that it saw, and of its page views.",
                f"SELECT {buckets}, 0e0 AS views, {of_documents}\nFROM unit_rates\nGROUP BY {buckets}\nUNION ALL\n"
                f"SELECT {buckets}, 1e0 * SUM(views) AS views, {of_pages}\nFROM unit_views p\n"
                f"LEFT JOIN query_worth w ON p.query = w.query\nGROUP BY {buckets}",
            ),
            Step(
                "unit_credits",
                "The same by bucket of units, and by bucket of queries and units.",
                f"SELECT CASE WHEN GROUPING(unit_bucket) = 0 THEN {BUCKETS} + unit_bucket ELSE {BY_BOTH} + both_bucket "
                "END AS bucket,\n  SUM(views) AS views, "
                + comma([f"SUM({name}) AS {name}" for name in gains])
                + "\nFROM unit_worth\nGROUP BY GROUPING SETS ((unit_bucket), (both_bucket))",
            ),
        ]
    )


def _gains(rankings: int, gain: Callable[[str], str]) -> list[Step]:
    """Return the steps that end in `gains`, what a relevant document is worth in each ranking, and in `page_views`."""
    shared = [
        Step(
            f"shared_gains_{j}",
            "Documents with the same score share the gains of their ranks.",
            f"SELECT query, rank, AVG({gain('nth')}) AS gain\nFROM (\n"
            f"  SELECT query, rank_{j} AS rank,\n"
            f"    rank_{j} - 1 + ROW_NUMBER() OVER (PARTITION BY query, rank_{j}) AS nth\n"
            f"  FROM reranked_documents WHERE equals_{j} > 1\n) tied\nGROUP BY query, rank",
        )
        for j in range(rankings)
    ]
    gains = [f"COALESCE(s_{j}.gain, {gain(f'rank_{j}')}) AS gain_{j}" for j in range(rankings)]
    joins = [
        f"LEFT JOIN shared_gains_{j} s_{j} ON d.query = s_{j}.query AND d.rank_{j} = s_{j}.rank"
        for j in range(rankings)
    ]
    return [
        *shared,
        Step(
            "gains",
            "The gain of a relevant document at its rank in each ranking.",
            "SELECT d.*,\n  " + ",\n  ".join(gains) + "\nFROM reranked_documents d\n" + "\n".join(joins),
        ),
        Step(
            "page_views",
            "The page views of each query, and the gain that they leave to documents that they do not show. The sum of "
            "gains over all ranks is the same in every ranking.",
            "SELECT query, MAX(views) AS views, SUM(gain_0) AS all_gain,\n"
            "  SUM(gain_0 * views - shown_gain) / NULLIF(SUM(views - impressions), 0) AS left_gain\nFROM gains\n"
            "GROUP BY query",
        ),
    ]


def reranked_pairs(plan: QueryPlan, rankings: Sequence[int], every: int) -> str:
    """Return the query of (query, document) pairs with their clicks and ranks, of one query in `every`.

    It reads `reranked_documents`. The columns are `bucket`, `query`, `impressions` N, `clicks` C, `exposure` Σ N_k p_k,
    `squares` Σ N_k p_k², and `rank_<j>` for each of the rankings, given by their numbers. Pairs with a single
    impression are left out: they tell nothing about chance.
    """
    d = plan.dialect
    sample = f"\nWHERE {d.hash('query')} >> 8 & {every - 1} = 0" if every > 1 else ""
    bucket = d.bucket("query", plan.schema.types[plan.schema.query])
    # A shift, because a hash may be unsigned.
    query = d.cast(f"{d.hash('query')} >> 1", "BIGINT")
    # Documents with the same score must not be in the order of another ranking.
    ranks = [f"ROW_NUMBER() OVER (PARTITION BY query ORDER BY rank_{j}, {d.hash('doc')}) AS rank_{j}" for j in rankings]
    return render(
        [
            Step(
                "documents",
                "The documents of some queries, each at a rank of its own.",
                f"SELECT query, impressions, clicks, exposure, squares, {comma(ranks)}\n"
                f"FROM reranked_documents{sample}",
            ),
            Step(
                "pairs",
                "What the memorised clicks are looked for in.",
                f"SELECT {bucket} AS bucket, {query} AS query, 1e0 * impressions AS impressions, "
                "1e0 * clicks AS clicks, exposure, squares, "
                + comma([f"rank_{j}" for j in rankings])
                + "\nFROM documents\nWHERE impressions > 1",
            ),
        ]
    )


@dataclass(frozen=True)
class EvaluatedRanking:
    """A ranking to evaluate: a table of queries, documents and scores, or a ranker of the log.

    Attributes:
        table (str, default ""): what queries call the table; empty for a ranker of the log.
        ranker (int, default -1): the number of the log's ranker, if it is one.
        query, doc, score (str, default ""): the columns of the table.
        types (tuple of str): the types of these columns.
        descending (bool, default True): whether a higher score is better; False for ranks.
    """

    table: str = ""
    ranker: int = -1
    query: str = ""
    doc: str = ""
    score: str = ""
    types: tuple[str, str, str] = ("", "", "")
    descending: bool = True

    def score_as_double(self, d: Dialect) -> str:
        """Return SQL for the score, or the rank, as a DOUBLE."""
        raw, kind = d.quote(self.score), self.types[2]
        return d.as_double(raw, kind) if kind == "VARCHAR" else d.cast(raw, "DOUBLE")

    def score_is_rounded(self, d: Dialect) -> str:
        """Return SQL for whether a whole number is too large to be exact as a DOUBLE, or as the float that it is."""
        raw, kind = d.quote(self.score), self.types[2]
        if kind in FLOATS:
            return f"ABS({self.score_as_double(d)}) BETWEEN {EXACT[kind]} AND 1e300"
        whole = f" AND {raw} NOT LIKE '%.%'" if kind == "VARCHAR" else ""
        return f"(ABS({self.score_as_double(d)}) >= {EXACT['DOUBLE']}{whole})"

    def score_is_fraction(self, d: Dialect) -> str:
        """Return SQL for whether a score that is stored as a float is no whole number."""
        score = self.score_as_double(d)
        return f"{score} <> FLOOR({score})" if self.types[2] in FLOATS else "FALSE"

    def select_scores(self, d: Dialect) -> str:
        """Return a SELECT of query, doc and a score of which a higher one is better; FROM is left to the caller."""
        query, doc = (
            d.nan_to_null(d.quote(name), type_) for name, type_ in zip((self.query, self.doc), self.types, strict=False)
        )
        return (
            f"SELECT {query} AS query, {doc} AS doc, {'' if self.descending else '-'}{self.score_as_double(d)} AS score"
        )


def _same_ids(
    plan: QueryPlan, ranking: EvaluatedRanking, left: str, right: str, roles: Sequence[str] = ("query", "doc")
) -> str:
    """Return SQL that compares ids of the log with those of a ranking, as text where their types differ."""
    d, schema = plan.dialect, plan.schema
    conditions = []
    for role in roles:
        log_id, ranking_id = f"{left}.{role}", f"{right}.{role}"
        if schema.types[getattr(schema, role)] != ranking.types[("query", "doc").index(role)]:
            log_id, ranking_id = d.as_text(log_id), d.as_text(ranking_id)
        conditions.append(f"{log_id} = {ranking_id}")
    return " AND ".join(conditions)


def _documents(
    plan: QueryPlan, rankings: Sequence[EvaluatedRanking], gain: Callable[[str], str], pages: PageKnowledge
) -> list[Step]:
    """Return the steps that end in `documents`: the documents shown for each query, where and how often."""
    plan = replace(_without_window(plan), keep=(plan.schema.impression or "",) if pages == "known" else ())
    counted, rankers = _counted_rows(plan), _evaluated_rankers(rankings)
    if plan.schema.layout.ranks_known:
        means = [f"-1e0 * MIN(ranker_{i}) AS ranker_score_{i}" for i in rankers]
    else:
        # The score of a document is minus the mean rank at which the ranker showed it.
        means = [f"-1e0 * SUM(ranker_{i} * r.rank) / NULLIF(SUM(ranker_{i}), 0) AS ranker_score_{i}" for i in rankers]
    worth, join_adjusted, join_remainder, remainder = gain("r.rank"), "", "", ""
    if pages != "whole":
        worth = f"COALESCE(a.gain, {worth})"
        join_adjusted = "\nLEFT JOIN adjusted_gains a ON r.query = a.query AND r.doc = a.doc AND r.rank = a.rank"
    if plan.keep:
        means += ["SUM(a.slots) AS slots", "SUM(a.above) AS above"]
        remainder = ", u.slots AS all_slots, u.above AS all_above"
        join_remainder = "\nLEFT JOIN unshown_ranks u ON e.query = u.query"
    return [
        *(shown_steps(plan, ranks=False) if plan.keep else []),
        Step("ranks", "The top M.", f"SELECT *\nFROM shown_ranks\nWHERE rank <= {plan.max_rank}"),
        Step(
            "rank_impressions",
            "How often each rank of a query was shown.",
            "SELECT query, rank, SUM(impressions) AS n\nFROM ranks\nGROUP BY query, rank",
        ),
        Step(
            "page_views",
            "The page views of each query.",
            f"SELECT query, COUNT(DISTINCT kept_0) AS views\nFROM shown\nWHERE {counted}\nGROUP BY query",
        )
        if plan.keep
        else Step(
            "page_views",
            "The page views of each query: the impressions at the rank that was shown most often.",
            "SELECT query, MAX(n) AS views\nFROM rank_impressions\nGROUP BY query",
        ),
        *(_vacant_rank_steps(counted, gain, by_page=bool(plan.keep)) if pages != "whole" else []),
        Step(
            "exposures",
            "Each (query, document) with its clicks, its exposure, and its gain at the ranks at which it was shown.",
            "SELECT "
            + comma("r.query", "r.doc", "SUM(impressions) AS impressions", "SUM(clicks) AS clicks", means)
            + ",\n  SUM(impressions * p) AS exposure, SUM(impressions * p * p) AS squares,\n"
            f"  SUM(impressions * {worth}) AS shown_gain\nFROM ranks r{join_adjusted}\nGROUP BY r.query, r.doc",
        ),
        Step(
            "documents",
            "The same with the page views of the query.",
            f"SELECT e.*, v.views{remainder}\nFROM exposures e\nJOIN page_views v ON e.query = v.query{join_remainder}",
        ),
    ]


def _without_window(plan: QueryPlan) -> QueryPlan:
    """Return the plan for all impressions: a window limits which of them are compared for the curve.

    Here a document is the same in every window.
    """
    return replace(plan, schema=replace(plan.schema, window=None), by=())


def _evaluated_rankers(rankings: Sequence[EvaluatedRanking]) -> list[int]:
    """Return the numbers of the rankers of the log that are evaluated."""
    return list(dict.fromkeys(ranking.ranker for ranking in rankings if not ranking.table))


def _propensity_case(propensity: Sequence[float]) -> str:
    """Return SQL for p_k / p_1 of the position of a row."""
    values = " ".join(f"WHEN {k} THEN {double_literal(value)}" for k, value in enumerate(propensity, start=1))
    return f"CASE position {values} ELSE 0e0 END"


def _counted_rows(plan: QueryPlan) -> str:
    """Return the condition on rows of `shown` that count."""
    return f"{in_top_ranks(plan)} AND query IS NOT NULL AND doc IS NOT NULL"


def _vacant_rank_steps(counted: str, gain: Callable[[str], str], *, by_page: bool) -> list[Step]:
    """Return the steps that end in `adjusted_gains`: the gain of documents below ranks that page views leave vacant.

    A page view ranks what it shows. Below an advertisement, documents have a rank one higher than their position says.

    Arguments:
        counted (str): the condition on rows of `shown` that count.
        gain (callable): from SQL for a rank to SQL for its gain.
        by_page (bool): whether each row names its page view; otherwise vacant ranks are estimated.
    """
    used_ranks = Step(
        "used_ranks",
        "The ranks of a query in order, and how often the busiest rank from there on was shown.",
        "SELECT i.*, v.views, ROW_NUMBER() OVER (PARTITION BY i.query ORDER BY rank) AS nth,\n"
        "  MAX(n) OVER (PARTITION BY i.query ORDER BY rank DESC) AS later\nFROM rank_impressions i\n"
        "JOIN page_views v ON i.query = v.query",
    )
    return [used_ranks, *(_gains_by_page(counted, gain) if by_page else _gains_on_average(gain))]


def _gains_by_page(counted: str, gain: Callable[[str], str]) -> list[Step]:
    """Return the steps of `_vacant_rank_steps` where each row names its page view, in `kept_0`.

    A page of m documents leaves G − Σ_{k≤m} λ(k) of the gain G of all ranks to the D − m documents of the query that it
    does not show, in equal parts: `slots` is 1 / (D − m), and `above` is Σ_{k≤m} λ(k) / (D − m). G is known later.
    """
    page = "OVER (PARTITION BY s.query, page)"
    return [
        Step(
            "page_ranks",
            "The rank of documents among those of their page, for queries of which some page lacks a rank of another.",
            "SELECT query, doc, position AS rank, kept_0 AS page,\n"
            "  DENSE_RANK() OVER (PARTITION BY query, kept_0 ORDER BY position) AS page_rank\nFROM shown\n"
            f"WHERE {counted} AND query IN (SELECT query FROM used_ranks WHERE n < views OR nth <> rank)",
        ),
        Step(
            "page_gains",
            "Their gain at that rank, and the gain that their page leaves to documents that it does not show.",
            f"SELECT s.*, {gain('page_rank')} AS gain, SUM({gain('page_rank')}) {page} AS page_gain,\n"
            f"  1e0 / COUNT(*) {page} AS part, COALESCE(1e0 / NULLIF(z.docs - COUNT(*) {page}, 0), 0e0) AS slots\n"
            "FROM page_ranks s\nJOIN (SELECT query, COUNT(DISTINCT doc) AS docs FROM ranks GROUP BY query) z "
            "ON s.query = z.query",
        ),
        Step(
            "adjusted_gains",
            "The same by document and rank.",
            "SELECT query, doc, rank, AVG(gain) AS gain, SUM(slots) AS slots, SUM(slots * page_gain) AS above\n"
            "FROM page_gains\nGROUP BY query, doc, rank",
        ),
        Step(
            "unshown_ranks",
            "What all pages of a query leave, each page once.",
            "SELECT query, SUM(part * slots) AS slots, SUM(part * slots * page_gain) AS above\nFROM page_gains\n"
            "GROUP BY query",
        ),
    ]


def _gains_on_average(gain: Callable[[str], str]) -> list[Step]:
    """Return the steps of `_vacant_rank_steps` where page views are unknown.

    Of the page views with a rank k, a share of min(1, n_j / n_k) is assumed to have a rank j above it.
    """
    fraction = "page_rank - FLOOR(page_rank)"
    return [
        Step(
            "vacant_ranks",
            "The mean number of ranks above a rank that are vacant.",
            "SELECT c.query, c.rank, SUM(1e0 - 1e0 * v.n / c.n) AS missing\nFROM used_ranks v\n"
            "JOIN used_ranks c ON v.query = c.query AND v.rank < c.rank AND v.n < c.n\nWHERE v.n < v.later\n"
            "GROUP BY c.query, c.rank",
        ),
        Step(
            "page_ranks",
            "The mean rank among the documents of a page, where it is not the position.",
            "SELECT c.query, c.rank, c.nth - COALESCE(v.missing, 0e0) AS page_rank\nFROM used_ranks c\n"
            "LEFT JOIN vacant_ranks v ON c.query = v.query AND c.rank = v.rank\n"
            "WHERE c.nth <> c.rank OR v.missing IS NOT NULL",
        ),
        Step(
            "adjusted_gains",
            "The gain at that rank, interpolated between two ranks.",
            f"SELECT r.query, r.doc, r.rank, (1e0 - ({fraction})) * {gain('FLOOR(page_rank)')}\n"
            f"    + ({fraction}) * {gain('(FLOOR(page_rank) + 1)')} AS gain\nFROM page_ranks m\n"
            "JOIN ranks r ON m.query = r.query AND m.rank = r.rank",
        ),
    ]


def _gain_as_shown(*, by_page: bool) -> str:
    """Return SQL for the mean gain of a document in the page views of its query.

    Each page view ranks all documents of the query: first those that it shows, then the others in any order. Those
    share the gain of the remaining ranks in equal parts.
    """
    elsewhere = "(g.views - g.impressions) * COALESCE(v.left_gain, 0e0)"
    if by_page:
        # Pages with different numbers of documents leave different gains.
        parts = "v.all_gain * (g.all_slots - g.slots) - (g.all_above - g.above)"
        elsewhere = f"CASE WHEN g.all_slots IS NULL THEN {elsewhere} ELSE {parts} END"
    return f"(g.shown_gain + {elsewhere}) / g.views"


def _credits(plan: QueryPlan, rankings: int, *, by_page: bool) -> list[Step]:
    """Return the last steps, which end in the sums of what clicks are worth."""
    d = plan.dialect
    bucket = d.bucket("query", plan.schema.types[plan.schema.query])
    limit = f"GREATEST({double_literal(FREQUENT_SHARE)} * SUM(views), {double_literal(FREQUENT_TIMES)} * AVG(views))"
    # A shift, because a hash may be unsigned.
    document = d.cast(f"{d.hash('g.query, g.doc')} >> 1", "BIGINT")
    is_frequent = f"views > (SELECT {limit} FROM page_views)"
    # ρ, the propensity of a document, is its exposure for each page view. Each rank at which it was shown has a part
    # in it, and gets that part of the clicks.
    part, few = "clicks * part", f"impressions < {FEW_IMPRESSIONS}"
    sums = {
        "clicks": part,
        "worth": f"{part} / rho",
        "worth_log": f"{part} / rho * gain_log",
        **{f"worth_{j}": f"{part} / rho * gain_{j}" for j in range(rankings)},
        **{
            f"few_{j}": f"CASE WHEN {few} THEN {part} / rho * (gain_{j} - gain_log) ELSE 0e0 END"
            for j in range(rankings)
        },
        **{f"scored_{j}": f"CASE WHEN score_{j} IS NOT NULL THEN {part} ELSE 0e0 END" for j in range(rankings)},
    }
    none = comma([f"0e0 AS {name}" for name in sums])
    return [
        Step(
            "clicked",
            "Each clicked document once for every rank at which it was shown, with that rank's part of its exposure.",
            "SELECT g.*, r.rank, r.impressions * r.p / g.exposure AS part, g.exposure / g.views AS rho,\n"
            f"  CASE WHEN g.{is_frequent} THEN {document} ELSE 0 END AS frequent,\n"
            f"  {_gain_as_shown(by_page=by_page)} AS gain_log\nFROM gains g\nJOIN page_views v ON g.query = v.query\n"
            "JOIN shown_ranks r ON g.query = r.query AND g.doc = r.doc\n"
            f"WHERE g.clicks > 0 AND g.exposure > 0 AND r.rank <= {plan.max_rank}",
        ),
        Step(
            "credits",
            "Clicks divided by the propensity of their document, by rank; the page views of each bucket at rank 0. "
            "Frequent queries apart, by document.",
            f"SELECT {bucket} AS bucket, rank, frequent, 0e0 AS views, 1e0 * MAX(impressions) AS impressions,\n  "
            + ",\n  ".join(f"SUM({text}) AS {name}" for name, text in sums.items())
            + f"\nFROM clicked\nGROUP BY {bucket}, rank, frequent\nUNION ALL\n"
            f"SELECT {bucket} AS bucket, 0 AS rank, CASE WHEN {is_frequent} THEN 1 ELSE 0 END AS frequent, "
            f"1e0 * SUM(views) AS views,\n  0e0 AS impressions, {none}\nFROM page_views\nGROUP BY ALL",
        ),
    ]


# ---- Problems of rankings and pages


def ranking_rows(d: Dialect, ranking: EvaluatedRanking) -> str:
    """Return the query of how many rows a ranking has: all, without an id, without a number, with a score.

    The least and the greatest score follow, and the number of scores that are too large to be exact, and of fractions.
    """
    raw = d.as_text(d.quote(ranking.score))
    # A NaN is found by its text: in SQL it is a number, and greater than all others.
    not_a_number = f"{d.is_nan(d.quote(ranking.score))} OR ({ranking.score_as_double(d)} IS NULL AND TRIM({raw}) <> '')"
    return render(
        [
            Step(
                "scores",
                "The rows of the ranking.",
                f"{ranking.select_scores(d)}, CASE WHEN {not_a_number} THEN 1 END AS not_a_number, "
                f"CASE WHEN {ranking.score_is_rounded(d)} THEN 1 END AS rounded, "
                f"CASE WHEN {ranking.score_is_fraction(d)} THEN 1 END AS fraction\n"
                f"FROM {ranking.table}",
            ),
            Step(
                "ranking_rows",
                "How many can be used.",
                "SELECT COUNT(*), COUNT(CASE WHEN query IS NULL OR doc IS NULL THEN 1 END), COUNT(not_a_number), "
                "COUNT(score),\n  MIN(score), MAX(score), COUNT(rounded), COUNT(fraction)\nFROM scores",
            ),
        ]
    )


def repeated_pairs(d: Dialect, ranking: EvaluatedRanking) -> str:
    """Return the query of how many (query, document) pairs a ranking has several times, and an example."""
    return render(
        [
            Step(
                "pairs",
                "Pairs that the ranking has several times.",
                f"SELECT query, doc, COUNT(*) AS times\nFROM ({ranking.select_scores(d)} FROM {ranking.table}) t\n"
                "GROUP BY query, doc\nHAVING COUNT(*) > 1",
            ),
            Step(
                "repeated_pairs",
                "How many there are, and an example.",
                f"SELECT COUNT(*), MIN({d.as_text('query')}), MIN(times)\nFROM pairs",
            ),
        ]
    )


def never_shown(plan: QueryPlan, rankings: Sequence[EvaluatedRanking], top: int, *, pages: PageKnowledge) -> str:
    """Return the query of how much of the top ranks of each ranking the log never showed, weighted by page views.

    It reads `shown_ranks` and `reranked_documents`. A row has the number of a ranking that is a table, the impressions
    that its top ranks would get, how many of them would go to documents that were never shown, and how many to
    documents that were shown only below the top M, with the lowest rank at which these were shown first.
    """
    views = "SELECT query, MAX(views) AS views\nFROM reranked_documents\nGROUP BY query"
    if pages == "known":
        # Not all of the page views: the impressions at the rank that was shown most often.
        views = (
            "SELECT query, MAX(shown) AS views\nFROM (\n  SELECT query, rank, SUM(impressions) AS shown "
            f"FROM shown_ranks WHERE rank <= {plan.max_rank} GROUP BY query, rank\n) r\nGROUP BY query"
        )
    steps, answers = [], []
    for j, ranking in enumerate(rankings):
        if not ranking.table:
            continue
        steps += [
            Step(
                f"ranked_{j}",
                "The rank of documents among all that the ranking has, and how many have the same score.",
                f"SELECT query, doc, {comma(_rank_columns('score'))}\n"
                f"FROM ({ranking.select_scores(plan.dialect)} FROM {ranking.table}) r\nWHERE score IS NOT NULL",
            ),
            Step(
                f"top_{j}",
                "Documents with the same score share their ranks in the top.",
                f"SELECT query, doc, LEAST(1e0 * ({top + 1} - rank) / equals, 1e0) AS part\n"
                f"FROM ranked_{j}\nWHERE rank <= {top}",
            ),
        ]
        answers.append(
            f"SELECT {j} AS ranking, SUM(v.views * t.part) AS views,\n"
            "  SUM(CASE WHEN s.doc IS NULL THEN v.views * t.part ELSE 0e0 END) AS never,\n"
            f"  SUM(CASE WHEN s.highest > {plan.max_rank} THEN v.views * t.part ELSE 0e0 END) AS deeper,\n"
            "  MAX(s.highest) AS lowest\n"
            f"FROM top_{j} t\nJOIN page_views v ON {_same_ids(plan, ranking, 'v', 't', ['query'])}\n"
            f"LEFT JOIN documents s ON {_same_ids(plan, ranking, 's', 't')}"
        )
    return render(
        [
            Step(
                "documents",
                f"The documents shown, and their highest rank beyond {plan.max_rank} where they were shown only there.",
                "SELECT query, doc, 1 AS highest\nFROM reranked_documents\nUNION ALL\n"
                "SELECT query, doc, MIN(rank) AS highest\nFROM shown_ranks r\n"
                f"WHERE rank > {plan.max_rank} AND NOT EXISTS (\n  SELECT 1 FROM reranked_documents d "
                "WHERE d.query = r.query AND d.doc = r.doc\n)\nGROUP BY query, doc",
            ),
            Step("page_views", "The page views of each query.", views),
            *steps,
            Step("never_shown", "What would be shown, and how much of it never was.", "\nUNION ALL\n".join(answers)),
        ]
    )


def page_shapes(plan: QueryPlan) -> str:
    """Return the query of how many results name no page view, how many page views there are, how many of them have a
    vacant rank, and how few and how many results they show.
    """
    paged = replace(plan, schema=replace(plan.schema, window=None), by=(), keep=(plan.schema.impression or "",))
    return render(
        [
            *shown_steps(paged, ranks=False),
            Step(
                "pages",
                "How many results each page view shows, and its last position.",
                f"SELECT kept_0 AS page, COUNT(*) AS n, MAX(position) AS last\nFROM shown\n"
                f"WHERE {_counted_rows(plan)}\nGROUP BY query, kept_0",
            ),
            Step(
                "shapes",
                "All page views together.",
                "SELECT COALESCE(SUM(CASE WHEN page IS NULL THEN n ELSE 0 END), 0), COUNT(*), "
                "COALESCE(SUM(CASE WHEN n < last THEN 1 ELSE 0 END), 0), MIN(n), MAX(n)\nFROM pages",
            ),
        ]
    )
