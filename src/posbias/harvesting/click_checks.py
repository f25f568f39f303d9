"""Check how clicks fall on page views: rows and clicks that were kept, dropped or joined in a way that bends the curve.

`find_click_patterns` runs one query on a sample of page views, and compares its answer with what clicks can look like:

- rows that end at the last click of a page, or a fixed number of rows below it;
- pages whose length follows from their clicks, as after sampling results without a click;
- clicks that are the same on every page view of a query, as after a join without the page view;
- clicks that follow the document wherever it is shown;
- page views without a second click, or page views that all have a click;
- pages that begin below position 1, or leave positions out.

`find_flat_curve` reports clicks that follow the document from the counts of a harvest, which show more than a sample.
`possible_page_views` says how many page views with many clicks users can make, and `ClickOrder` whether the clicks of
such page views follow rank and document as those of users do. The others are those of crawlers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray, group, sum_by_index
from posbias._text import Arguments, listed
from posbias.engines import OpenLog
from posbias.findings import Finding
from posbias.harvesting.row_checks import ALL_ROWS, Sample, sampling_interval
from posbias.logs.schema import ANY_RANKER, INTEGERS, Schema
from posbias.sql.dialects import Dialect
from posbias.sql.observations import click_histogram, click_order
from posbias.sql.plan import QueryPlan, Step, deduplicated_step, render

if TYPE_CHECKING:
    from posbias.harvesting.tables import Cells

# A pattern holds if at least this share of page views has it: the first rows of a log may end within a page view.
_NEARLY_ALL = 0.99
# A pattern is certain if chance would produce it in one log of exp(30). That leaves room for clicks that depend on each
# other.
_CERTAIN = 30.0
# Rows that end up to this many below the last click are looked for.
_MOST_ROWS_BELOW = 8
# The values of up to this many columns may be applications that cut their pages.
_MAX_COLUMNS = 8
# A pattern that chance cannot be excluded for needs this many cases, and where it is expected, this many expected ones.
_MIN_CASES, _MIN_EXPECTED = 30, 20
# Second clicks are rare if there are fewer than this share of those that independent clicks would give, or so many
# standard errors fewer than on other views of the same page. Clicks at the first so many positions are compared.
_RARE_SHARE, _RARE_ERRORS, _MANY_ERRORS, _MOST_POSITIONS = 0.5, 3.0, 4.0, 20
# Page views that begin below position 1, or leave out a position, are reported if they are more than this share.
_MAX_INCOMPLETE = 0.02
# The first rows of a log hold whole page views if at least this share of pages is nearly as long as the longest.
_WHOLE_SHARE = 0.2
# A column may explain the first positions if it has at most this many values.
_MAX_VALUES = 50
# With more rankers than this, page views are not examined by ranker.
_MAX_RANKERS = 20
# Positions start again within a list if more than this share of them has several documents that never move.
_RESTART_SHARE = 0.2
# Page views are those of crawlers if each of at least so many results was clicked, and page views with up to so many
# clicks less are so many times rarer, where fewer than this share of all results is clicked.
_MIN_RESULTS, _FEW_LESS, _MORE_OFTEN, _RARE_CLICKS = 5, 3, 2, 0.3
# Names of columns with the period of a page view, besides columns of type DATE or TIMESTAMP; so many are looked at.
_PERIODS = ("day", "date", "dt", "ds", "event_date", "partition_date", "log_date", "hour", "week")
_MAX_PERIODS = 3
# Clicks follow the document if its click rate at a rank at least twice as deep is at least this share (with 99%
# confidence), though the click rates of these ranks fall to less than _STEEP.
_FLAT, _STEEP, _FLAT_QUANTILE = 0.85, 0.5, 2.33
# About this many cells are enough to see it, but at least one of so many buckets.
_FLAT_CELLS, _FLAT_BUCKETS = 2**17, 8
# Page views are those of crawlers if at most this share of them can be those of users; fewer page views than these, or
# than this share of all, do not matter.
_MAX_USERS_SHARE, _MIN_CRAWLED, _MIN_CRAWLED_SHARE = 0.1, 10, 0.001
# Page views with many clicks are those of crawlers if their clicks follow rank and document by at most this share of
# what other clicks do, and with 95% confidence by at most _ORDER_LIMIT. Those of users do so by .4 or more. Page views
# that do so by less than _CUT_ORDER are left out with them. At most this share of page views is examined.
_MAX_ORDER, _ORDER_LIMIT, _CUT_ORDER, _ORDER_QUANTILE, _MAX_EXAMINED_SHARE = 0.15, 0.28, 0.4, 1.645, 0.1
# Other clicks must follow rank and document with this many standard errors.
_MIN_ORDER_ERRORS = 3.0
# Rows that tell how clicks follow rank and document.
_ORDER_ROWS = 2**19
_CRAWLERS_REMEDY = (
    "Crawlers click all ranks alike and flatten the curve. Leave them out of the log, best by what identifies them "
    "(user, address, agent)."
)
# Relevances of page views that are tried.
_RELEVANCES = 50
# A sample has so many buckets of queries; a variance needs at least _FEWEST_BUCKETS of them.
_SAMPLED_BUCKETS, _FEWEST_BUCKETS = 64, 8
# A rank is compared with so many of the next ranks at which the same documents were shown.
_MOST_RANKS = 12
# What each row of the answer counts: page views of a shape, rows at a position, queries, places of a ranker, clicks of
# equal pages, clicks at two ranks, and pairs in all; from there on pairs of a ranker, and pairs within each period.
_SHAPE, _POSITION, _QUERIES, _PLACES, _SAME_PAGE, _TWO_RANKS, _PAIRS = range(7)


def find_click_patterns(
    opened: OpenLog, plan: QueryPlan, sample: Sample = ALL_ROWS, *, harvested: bool = False
) -> list[Finding]:
    """Report how page views were cut and clicks were joined, as far as a sample of page views shows it.

    Arguments:
        opened (OpenLog): the log.
        plan (QueryPlan): the plan of its queries.
        sample (Sample, default all rows): the rows to look at. A sample by hash keeps all page views of some queries.
        harvested (bool, default False): whether the log is harvested. Then the harvest shows whether clicks follow the
            document, and crawlers are looked for here; otherwise it is the other way round.
    """
    if plan.schema.aggregated:
        return []
    sql = _pages_sql(plan, sample, two_ranks=not harvested)
    pages = _Pages.of(opened.rows(sql, "Checking the clicks of page views"), plan, sample)
    joined = [*_find_equal_clicks(pages)]
    cut = [*_find_cut_pages(pages)] or [*_find_length_by_clicks(pages)] or _find_by_ranker(_find_cut_pages, pages, plan)
    cut = cut or _find_cut_application(opened, plan, pages) or [*_find_cut_pages(pages, shorter=True)]
    gaps = [*_find_gaps(pages)]
    # Rows that were left out explain pages without a second click, or with a click each.
    others = []
    if not (cut or joined or gaps):
        clicked = [*_find_clicked_pages(pages)] or _find_by_ranker(_find_clicked_pages, pages, plan)
        others = [*_find_one_click(pages), *clicked, *_find_clicked_above(pages)]
    late = [f for f in _find_late_pages(opened, plan, pages) if f.severity == "error" or not gaps]
    # Where a click leaves its row or its page view in the log, all rows of some page views are clicked.
    crawled = [] if cut or joined or gaps else [*_find_all_clicked(pages)]
    if harvested and not (cut or joined or gaps or crawled):
        crawled = [*_find_clicks_anywhere(opened, plan, pages)]
    flat = [] if cut or joined else pages.flat
    return [*cut, *joined, *flat, *others, *late, *gaps, *_find_restarts(pages), *crawled]


def _find_by_ranker(find: Callable[[_Pages], Iterable[Finding]], pages: _Pages, plan: QueryPlan) -> list[Finding]:
    """Report a pattern that the page views of some rankers have."""
    found = {name: [*find(pages.of_ranker(i))] for i, name in enumerate(plan.rankers)}
    return [replace(f, what=f"ranker {name!r}: {f.what}") for name, findings in found.items() for f in findings]


# ---- The query


def _pages_sql(plan: QueryPlan, sample: Sample, *, two_ranks: bool) -> str:
    """Return the query that counts page views by shape, clicks by position, and equal clicks of a pair.

    One query answers all, because each query is a job on Spark. Without ids of page views, a query that a ranker served
    once is a page view: it has each position once.
    """
    schema, d = plan.schema, plan.dialect
    replayed = not (schema.layout.ranks_known or schema.natural)
    number = "-1"
    if 1 < len(plan.rankers) <= _MAX_RANKERS and not schema.natural:
        number = f"MIN(COALESCE({plan.ranker_number('r', schema.types[schema.ranker])}, -1))"
    once = "" if schema.impression else ", r\nHAVING COUNT(*) = COUNT(DISTINCT p)"
    top = range(1, min(plan.max_rank, _MOST_POSITIONS) + 1)
    content = d.cast(f"{d.hash('d, p')} & {2**31 - 1}", "BIGINT")
    by_position = "".join(f", SUM(CASE WHEN p = {k} THEN c ELSE 0 END) AS clicks_{k}" for k in top)
    by_position += f", SUM(CASE WHEN p <= {max(top)} THEN c ELSE 0 END) AS top_clicks"
    several = ["COUNT(*)", "COUNT(CASE WHEN several = 1 THEN 1 END)"]
    queries = "COUNT(CASE WHEN clicks > n THEN 1 END), 0, 0, 0, 0, COUNT(*)\nFROM queries\nWHERE n > 2"
    # What is counted -> the steps that lead to it, and the last of them, which has a row of eight numbers for each.
    parts = [
        (
            [
                Step(
                    "pages",
                    "Each page view: its rows, its first and last position, its clicks and the last of them.",
                    f"SELECT q, {number} AS ranker, COUNT(*) AS n, MIN(p) AS first_position, MAX(p) AS last_position,\n"
                    "  SUM(c) AS clicks, MAX(CASE WHEN c = 1 THEN p ELSE 0 END) AS last_click"
                    + (f",\n  SUM({content}) AS content{by_position}" if schema.impression else "")
                    + f"\nFROM views\nGROUP BY v, q{once}",
                )
            ],
            f"SELECT {_SHAPE}, ranker, n, first_position, last_position, clicks, last_click, COUNT(*)\nFROM pages\n"
            "GROUP BY ranker, n, first_position, last_position, clicks, last_click",
        ),
        ([], f"SELECT {_POSITION}, p, SUM(c), 0, 0, 0, 0, COUNT(*)\nFROM views\nGROUP BY p"),
        (
            [
                Step(
                    "queries",
                    "Clicks and page views of each query and ranker.",
                    "SELECT SUM(CASE WHEN p = 1 THEN 1 ELSE 0 END) AS n, SUM(c) AS clicks\nFROM views\nGROUP BY q, r",
                )
            ],
            f"SELECT {_QUERIES}, COUNT(CASE WHEN clicks <= n AND 5 * clicks >= 4 * n THEN 1 END), {queries}",
        ),
    ]
    for number_of_group, group_ in enumerate(_pair_groups(plan)):
        parts.append(_pair_part(number_of_group, group_))
    if schema.impression:
        parts.append(_same_page_part(d, top))
    if two_ranks:
        parts.append(_two_ranks_part(d, max(top)))
    if replayed:
        places = Step(
            "places",
            "Each position of a query and ranker, and whether it has several documents.",
            "SELECT CASE WHEN MIN(d) <> MAX(d) THEN 1 ELSE 0 END AS several\nFROM views\nGROUP BY q, r, p\n"
            "HAVING COUNT(*) > 1",
        )
        documents = Step(
            "documents",
            "Each document of a query and ranker, and whether it was at several positions.",
            "SELECT CASE WHEN MIN(p) <> MAX(p) THEN 1 ELSE 0 END AS several\nFROM views\nGROUP BY q, r, d\n"
            "HAVING COUNT(*) > 1",
        )
        parts.append(([places], f"SELECT {_PLACES}, {several[0]}, {several[1]}, 0, 0, 0, 0, 0\nFROM places"))
        parts.append(([documents], f"SELECT {_PLACES}, 0, 0, {several[1]}, 0, 0, 0, 0\nFROM documents"))
    answer = Step("answer", "How many of each.", "\nUNION ALL\n".join(last for _, last in parts))
    return render(
        [*_view_steps(plan, sample, two_ranks=two_ranks), *(step for steps, _ in parts for step in steps), answer]
    )


def _view_steps(plan: QueryPlan, sample: Sample, *, two_ranks: bool = False, columns: Sequence[str] = ()) -> list[Step]:
    """Return the steps that end in `views`: the rows of the sample by short names, with other columns if given."""
    schema, d = plan.schema, plan.dialect
    click = d.quote(schema.click or "")
    known = {
        "v": d.quote(schema.impression) if schema.impression else "0",
        "q": d.nan_to_null(d.quote(schema.query), schema.types[schema.query]),
        "d": d.quote(schema.doc),
        "r": d.literal(ANY_RANKER) if schema.natural else d.quote(schema.ranker),
        "p": d.integer(d.quote(schema.position), schema.types[schema.position]),
        "c": click if schema.drop_duplicates else d.click(click, schema.types[schema.click or ""]),
    }
    for i, (name, unit) in enumerate(_periods(schema)):
        known[f"w{i}"] = _cut_time(d, name, unit, schema.types[name]) if unit else d.quote(name)
    if two_ranks:
        # Documents with the same ranks are compared if ranks are known, and each document with itself otherwise.
        same = [*schema.rank_columns.values()] or [schema.query, schema.doc]
        known["s"] = d.hash(", ".join(map(d.quote, same)))
    known |= {f"a{i}": d.as_text(d.quote(name)) for i, name in enumerate(columns)}
    selected = ", ".join(f"{sql} AS {name}" for name, sql in known.items())
    source = "deduplicated" if schema.drop_duplicates else sample.source
    views = Step(
        "views",
        "Rows by short names.",
        f"SELECT * FROM (SELECT {selected} FROM {source}) s\nWHERE v IS NOT NULL AND q IS NOT NULL AND p >= 1 AND "
        f"c IN (0, 1) AND {sample.condition(d, 'q')}",
    )
    return [deduplicated_step(plan), views] if schema.drop_duplicates else [views]


class _PairGroup(NamedTuple):
    """Columns within which the clicks on a document of a query may have been joined, and the words for them."""

    columns: tuple[str, ...]
    within: str = ""
    joined_by: str = "query and document"


def _pair_groups(plan: QueryPlan) -> list[_PairGroup]:
    """Return what is looked at: all page views, those of a ranker, those of a period, those of both."""
    groups = [_PairGroup(())]
    for i, (name, unit) in enumerate(_periods(plan.schema)):
        groups.append(_PairGroup((f"w{i}",), f" within one {f'{unit} of ' if unit else ''}{name!r}"))
    if plan.schema.natural or len(plan.rankers) < 2:
        return groups
    by = "query, document and ranker"
    return [*groups, *(_PairGroup((*columns, "r"), f" by one ranker{within}", by) for columns, within, _ in groups)]


def _pair_part(number: int, of: _PairGroup) -> tuple[list[Step], str]:
    """Return the steps that count pairs which were shown several times, and those clicked every time."""
    keys = ", ".join(("q", "d", *of.columns))
    why = "Documents of a query that were shown several times, and how often they were clicked."
    counts = f"SELECT COUNT(*) AS n, SUM(c) AS clicks\nFROM views\nWHERE d IS NOT NULL\nGROUP BY {keys}"
    equal = "COUNT(CASE WHEN clicks > 0 THEN 1 END), COUNT(CASE WHEN clicks = n THEN 1 END), 0, 0, 0, 0, COUNT(*)"
    steps = [Step(f"pairs{number}", why, f"{counts}\nHAVING COUNT(*) > 1")]
    return steps, f"SELECT {_PAIRS + number}, {equal}\nFROM pairs{number}"


def _same_page_part(d: Dialect, top: range) -> tuple[list[Step], str]:
    """Return the steps that count pairs of clicks in one view and in two views of the same page.

    If clicks were independent, the pairs in two of n views divided by n - 1 would be as many as those in one.
    """
    squares = " + ".join(f"SUM(clicks_{k}) * SUM(clicks_{k})" for k in top)
    counts = "COUNT(*) AS n, SUM(top_clicks) AS clicks, SUM(top_clicks * (top_clicks - 1)) AS together"
    same = Step(
        "same_page",
        "Page views of a query that show the same page, and how their clicks fall together.",
        f"SELECT q, {counts},\n  {squares} AS squares\nFROM pages\nGROUP BY q, content\nHAVING COUNT(*) > 1",
    )
    compared = Step(
        "compared",
        "Beside what is expected in each view.",
        f"SELECT q, n, together, {d.cast('clicks * clicks - squares - together', 'DOUBLE')} / (n * (n - 1)) AS expected"
        "\nFROM same_page",
    )
    bucket = f"{d.hash('q')} & {_SAMPLED_BUCKETS - 1}"
    # The variance of c (c - 1), for a Poisson count c with the mean m, is 4 m³ + 2 m².
    variance = "n * (4 * expected * SQRT(expected) + 2 * expected)"
    sums = f"{bucket}, SUM(together), SUM(n * expected), SUM({variance}), 0, 0, 0"
    return [same, compared], f"SELECT {_SAME_PAGE}, {sums}\nFROM compared\nGROUP BY {bucket}"


def _two_ranks_part(d: Dialect, deepest: int) -> tuple[list[Step], str]:
    """Return the steps that count clicks of the same documents at two ranks, one at least twice as deep."""
    cells = Step(
        "cells",
        "Impressions and clicks of the same documents by position.",
        f"SELECT {d.hash('q')} & {_SAMPLED_BUCKETS - 1} AS b, s, p, COUNT(*) AS n, SUM(c) AS c\nFROM views\n"
        f"WHERE d IS NOT NULL AND p <= {deepest}\nGROUP BY {d.hash('q')} & {_SAMPLED_BUCKETS - 1}, s, p",
    )
    last = (
        f"SELECT {_TWO_RANKS}, x.p, y.p, x.b, SUM(x.n * y.c / (x.n + y.n)), SUM(y.n * x.c / (x.n + y.n)), 0, 0\n"
        "FROM cells x JOIN cells y ON y.b = x.b AND y.s = x.s AND y.p >= 2 * x.p\nWHERE x.c + y.c > 0\n"
        "GROUP BY x.p, y.p, x.b"
    )
    return [cells], last


def period_columns(schema: Schema) -> list[str]:
    """Return columns with the day or the hour of a page view: the window, and those of a known name or type."""
    free = [name for name in schema.types if name not in schema.roles.values() or name == schema.time]
    by_type = [name for name in free if schema.types[name] == "DATE" or schema.types[name].startswith("TIMESTAMP")]
    named = [name for name in free if name.lower() in _PERIODS]
    return [*dict.fromkeys([*([schema.window] if schema.window else []), *named, *by_type])][:_MAX_PERIODS]


def _periods(schema: Schema) -> list[tuple[str, str]]:
    """Return columns within whose values clicks may have been joined, and the unit to which a time is cut."""
    if schema.drop_duplicates:
        return []
    times = {name for name in schema.types if schema.types[name].startswith("TIMESTAMP")}
    columns = period_columns(schema)
    # In text files a time is a text.
    if schema.time and schema.types[schema.time] == "VARCHAR" and schema.time not in columns:
        times, columns = {*times, schema.time}, [*columns, schema.time]
    return [(name, unit) for name in columns for unit in (("day", "hour") if name in times else ("",))]


def _cut_time(d: Dialect, name: str, unit: str, type_: str) -> str:
    """Return a time cut to its day or hour; a text is cut as if it were written as 2026-03-01 12:30."""
    if type_ == "VARCHAR":
        return f"SUBSTRING({d.quote(name)}, 1, {10 if unit == 'day' else 13})"
    return f"DATE_TRUNC({d.literal(unit)}, {d.quote(name)})"


@dataclass(frozen=True, eq=False)
class _Pages:
    """The answer of `_pages_sql`.

    Attributes:
        ranker, n, first, last, clicks, last_click, count (arrays): each shape of a page view, and how many have it. The
            ranker is its number, or -1 if there are many.
        positions, position_clicks, position_rows (arrays): clicks and rows by position.
        pairs (dict): pairs shown several times with a click, and those of them that were clicked every time, by group.
        queries (tuple): pairs of query and ranker with at most as many clicks as page views but nearly, and with more.
        places (tuple): positions of a query and ranker with results, those with several documents, and documents that
            were shown at several positions.
        same_page (array of shape B × 3): ordered pairs of clicks on one view of a page that was shown several times,
            those expected if clicks were independent, and their variance, by bucket.
        two_ranks (array of shape n × 5): two positions, a bucket, and the weighted clicks of the same documents at the
            lower and at the upper position.
        sample (Sample): what was looked at.
        has_ids (bool): whether page views have ids.
    """

    ranker: IntArray
    n: IntArray
    first: IntArray
    last: IntArray
    clicks: IntArray
    last_click: IntArray
    count: IntArray
    positions: IntArray
    position_clicks: IntArray
    position_rows: IntArray
    pairs: dict[_PairGroup, tuple[int, int]]
    queries: tuple[int, ...]
    places: tuple[int, ...]
    same_page: FloatArray
    two_ranks: FloatArray
    sample: Sample
    has_ids: bool

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]], plan: QueryPlan, sample: Sample) -> _Pages:
        table = np.array([[float(value or 0) for value in row] for row in rows]).reshape(-1, 8)

        def part(fact: int) -> IntArray:
            return np.asarray(table[table[:, 0] == fact], dtype=np.int64)

        def counts(fact: int) -> tuple[int, ...]:
            return tuple(part(fact)[:, 1:4].sum(axis=0).tolist())

        positions = part(_POSITION)
        ranker, n, first, last, clicks, last_click, count = part(_SHAPE).T[1:]
        return cls(
            ranker,
            n,
            first,
            last,
            clicks,
            last_click,
            count,
            positions[:, 1],
            positions[:, 2],
            positions[:, 7],
            {of: (counts(_PAIRS + i)[0], counts(_PAIRS + i)[1]) for i, of in enumerate(_pair_groups(plan))},
            counts(_QUERIES),
            counts(_PLACES),
            table[table[:, 0] == _SAME_PAGE, 2:5],
            table[table[:, 0] == _TWO_RANKS, 1:6],
            sample,
            plan.schema.impression is not None,
        )

    def of_ranker(self, ranker: int) -> _Pages:
        """Return the page views of one ranker."""
        own = self.ranker == ranker
        names = ("ranker", "n", "first", "last", "clicks", "last_click", "count")
        return replace(self, **{name: getattr(self, name)[own] for name in names})

    @cached_property
    def views(self) -> int:
        """The number of page views."""
        return int(self.count.sum())

    @cached_property
    def partly_clicked(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Shapes with clicked and unclicked results and no gaps: rows, clicks, rows below the last click, page views.

        On a page whose results were all clicked, the last result is a click in any case.
        """
        mixed = (self.clicks > 0) & (self.clicks < self.n) & (self.n == self.last - self.first + 1)
        return self.n[mixed], self.clicks[mixed], (self.last - self.last_click)[mixed], self.count[mixed]

    def chance_of_click_near_end(self, rows: int) -> FloatArray:
        """Return the chance that so many rows or fewer are below the last click, if clicks are anywhere on a page."""
        n, clicks, *_ = self.partly_clicked
        pairs = zip(n.tolist(), clicks.tolist(), strict=True)
        return np.array([1 - math.comb(max(a - 1 - rows, 0), b) / math.comb(a, b) for a, b in pairs])

    @property
    def has_whole_pages(self) -> bool:
        """Whether the sample holds all rows of its page views, as it does unless rows of a log are shuffled."""
        if self.sample.first is None:
            return True
        whole = self.count[self.n >= 0.9 * self.n.max(initial=0)].sum()
        return bool(whole >= _WHOLE_SHARE * max(self.views, 1)) and bool(np.any(self.n > 1))

    @property
    def click_rate(self) -> float:
        """Clicks divided by rows."""
        return float(self.position_clicks.sum() / max(int(self.position_rows.sum()), 1))

    @cached_property
    def rates(self) -> FloatArray:
        """The click rate at each position up to the last."""
        rates = np.zeros(int(self.positions.max(initial=0)))
        rates[self.positions - 1] = self.position_clicks / self.position_rows
        return rates

    @property
    def flat(self) -> list[Finding]:
        """Clicks that follow the document, as `find_flat_curve` reports them."""
        upper, lower, bucket = self.two_ranks[:, :3].astype(np.int64).T
        deep, high = self.two_ranks[:, 3:].T
        if not len(deep):
            return []
        marginal = high * self.rates[lower - 1] / self.rates[upper - 1].clip(1e-12)
        return _flat_finding(deep, high, marginal, bucket, str(self.sample))

    @property
    def expected_pairs(self) -> float:
        """Pairs of clicks on one page view, if clicks were independent."""
        total, squares = np.cumsum(self.rates), np.cumsum(self.rates**2)
        return float((self.count * (total**2 - squares)[self.last - 1] / 2).sum()) if self.views else 0.0

    @property
    def expected_without_click(self) -> float:
        """Page views without a click, if clicks were independent."""
        return float((self.count * np.cumprod(1 - self.rates)[self.last - 1]).sum()) if self.views else 0.0


# ---- Rows that were kept because of clicks


def _find_cut_pages(pages: _Pages, *, shorter: bool = False) -> Iterator[Finding]:
    """Report that pages, or those that are shorter than the usual page, end at most so many rows below a click."""
    n, _, below, count = pages.partly_clicked
    usual = int(np.bincount(n, weights=count).argmax()) if len(n) else 0
    for rows in range(_MOST_ROWS_BELOW + 1):
        chance = pages.chance_of_click_near_end(rows)
        telling = (chance < 1) & ((n < usual) | (not shorter))
        near, total = int(count[telling & (below <= rows)].sum()), int(count[telling].sum())
        # Pages that are cut by their clicks have different lengths.
        if not total or np.bincount(n[telling], weights=count[telling]).max() >= _NEARLY_ALL * total:
            continue
        if near < _NEARLY_ALL * total or -float(count[telling] @ np.log(chance[telling])) < _CERTAIN:
            continue
        where = "in a click" if rows == 0 else f"at most {rows} row{'s' * (rows > 1)} below the last click"
        yield Finding(
            "pages-end-at-click",
            "error",
            f"{pages.sample}{{count}} of {{page_views}} {'shorter ' * shorter}page views with a click and a result "
            f"without one end {where}: the results below were shown and not logged",
            near,
            evidence={"page_views": total, "rows_below": rows},
            remedy="Rows that were kept because of a click make deep ranks look several times as attractive as they "
            "are. Log all results of a page view, whether or not anything was clicked.",
        )
        return


def _find_cut_application(opened: OpenLog, plan: QueryPlan, pages: _Pages) -> list[Finding]:
    """Report the values of another column whose pages end near the last click, if pages differ in length."""
    n, *_, count = pages.partly_clicked
    # Copies that are dropped keep only the columns in use.
    columns = [] if plan.schema.drop_duplicates else _application_columns(plan.schema)
    if not columns or not len(n) or np.bincount(n, weights=count).max() >= _NEARLY_ALL * count.sum():
        return []
    shapes: dict[tuple[int, str], list[list[int]]] = {}
    sample = replace(pages.sample, rows_of=opened.full_view)
    for i, value, *shape in opened.rows(_shapes_sql(plan, sample, columns), "Looking for pages that are cut"):
        shapes.setdefault((int(i), value), []).append([int(number) for number in shape])
    found = []
    for (i, value), rows in shapes.items():
        names = ("n", "first", "last", "clicks", "last_click", "count")
        own = replace(pages, **dict(zip(names, np.array(rows).T, strict=True)))
        found += [replace(f, what=f"where {columns[i]!r} is {value!r}, {f.what}") for f in _find_cut_pages(own)]
    return found


def columns_of_checks(schema: Schema) -> list[str]:
    """Return the columns that checks of rows and clicks read: those in use, of periods, and of applications."""
    used = [*schema.roles.values(), *schema.rank_columns.values()]
    return list(dict.fromkeys([*used, *period_columns(schema), *_application_columns(schema)]))


def _application_columns(schema: Schema) -> list[str]:
    """Return columns whose values may be applications."""
    return [name for name in _free_columns(schema) if schema.types[name] in {"VARCHAR", "BOOLEAN", *INTEGERS}][
        :_MAX_COLUMNS
    ]


def _shapes_sql(plan: QueryPlan, sample: Sample, columns: Sequence[str]) -> str:
    """Return the query that counts page views by their shape and the value of each column that has few values."""
    shape = "n, first_position, last_position, clicks, last_click"
    once = "" if plan.schema.impression else ", r\nHAVING COUNT(*) = COUNT(DISTINCT p)"
    numbers = range(len(columns))
    parts = [
        f"SELECT {i}, a{i}, {shape}, COUNT(*)\nFROM pages CROSS JOIN numbers\n"
        f"WHERE a{i} IS NOT NULL AND values{i} BETWEEN 2 AND {_MAX_VALUES}\nGROUP BY a{i}, {shape}"
        for i in numbers
    ]
    return render(
        [
            *_view_steps(plan, sample, columns=columns),
            Step(
                "pages",
                "Each page view with a value of each column.",
                f"SELECT {', '.join(f'MIN(a{i}) AS a{i}' for i in numbers)}, COUNT(*) AS n, MIN(p) AS first_position,\n"
                "  MAX(p) AS last_position, SUM(c) AS clicks, MAX(CASE WHEN c = 1 THEN p ELSE 0 END) AS last_click\n"
                f"FROM views\nGROUP BY v, q{once}",
            ),
            Step(
                "numbers",
                "How many values there are.",
                f"SELECT {', '.join(f'COUNT(DISTINCT a{i}) AS values{i}' for i in numbers)}\nFROM pages",
            ),
            Step("shapes", "How many of each shape.", "\nUNION ALL\n".join(parts)),
        ]
    )


def _find_length_by_clicks(pages: _Pages) -> Iterator[Finding]:
    """Report that the number of clicks determines how many rows a page view has."""
    lengths: dict[int, int] = {}
    usual = 0
    for clicks in np.unique(pages.clicks[pages.clicks > 0]).tolist():
        of = pages.clicks == clicks
        counts = np.bincount(pages.n[of], weights=pages.count[of])
        usual += int(counts.max())
        if counts.max() >= _MIN_CASES:
            lengths[clicks] = int(counts.argmax())
    clicked = int(pages.count[pages.clicks > 0].sum())
    if usual >= _NEARLY_ALL * clicked and len({*lengths.values()}) > 1:
        examples = listed([f"{rows} for {clicks}" for clicks, rows in lengths.items()], most=3)
        yield Finding(
            "page-length-follows-clicks",
            "error",
            f"{pages.sample}the number of rows of a page view follows from its clicks in {{count}} of {{page_views}} "
            f"page views with a click (rows for clicks: {examples}): results without a click were sampled",
            usual,
            evidence={"page_views": clicked},
            remedy="Impressions are then not counted, and the curve is wrong. Log all results of a page view.",
        )


# ---- Clicks that were joined or dropped


def _find_equal_clicks(pages: _Pages) -> Iterator[Finding]:
    """Report that a document has the same clicks on all page views of a query."""
    # A pair with two views and a click has two clicks with the chance r² / (1 - (1 - r)²), more views even less.
    rate = min(pages.click_rate, 1 - 1e-9)
    evidence = -math.log(rate / (2 - rate)) if rate > 0 else 0.0
    for of, (clicked, every) in pages.pairs.items():
        if every >= _NEARLY_ALL * clicked and every * evidence >= _CERTAIN and every >= _MIN_CASES:
            yield Finding(
                "clicks-without-page-view",
                "error",
                f"{pages.sample}{{count}} of {{pairs}} (query, document) pairs that were shown several times"
                f"{of.within} and clicked were clicked every time: the clicks were joined by {of.joined_by}, not by "
                "page view",
                every,
                evidence={"pairs": clicked},
                remedy="Each click must belong to the one page view on which it happened: join clicks by the id of the "
                "page view as well. Otherwise every rank looks alike.",
            )
            return


def _find_one_click(pages: _Pages) -> Iterator[Finding]:
    """Report that page views have no second click, or hardly any."""
    found = int((pages.count * pages.clicks * (pages.clicks - 1)).sum()) // 2
    expected = pages.expected_pairs
    remedy = (
        "If later clicks were lost, or only the first or the last was kept, log all of them. If the page closes at a "
        "click, or users stop there, the curve is an average over the results above: use it for these rankers only."
    )
    if pages.has_whole_pages and expected >= _MIN_EXPECTED and found < _RARE_SHARE * expected:
        several = int(pages.count[pages.clicks > 1].sum())
        yield Finding(
            "one-click-pages",
            "warning",
            f"{pages.sample}{{count}} of {{page_views}} page views have a second click: {found:,} pairs of clicks, "
            f"where independent clicks would give about {expected:,.0f}",
            several,
            evidence={"page_views": pages.views, "expected_click_pairs": round(expected)},
            remedy=remedy,
        )
        return
    together, independent, variance = pages.same_page.sum(axis=0)
    # These pairs are ordered: each counts twice.
    pairs, expected = together / 2, independent / 2
    missing = pages.same_page[:, 1] - pages.same_page[:, 0]
    # The expected number varies as well. Users who differ make pairs of clicks more frequent, not rarer.
    by_chance, by_bucket = math.sqrt(2 * variance), math.sqrt(float((missing**2).sum()))
    rarer = missing.sum() > _RARE_ERRORS * max(by_chance, by_bucket)
    if rarer or missing.sum() > _MANY_ERRORS * by_bucket > 0:
        yield Finding(
            "one-click-pages",
            "warning",
            f"{pages.sample}two clicks on one page view are rarer than on two views of the same page: {pairs:,.0f} "
            f"pairs of clicks, where independent clicks would give about {expected:,.0f}",
            evidence={"page_views": pages.views, "expected_click_pairs": round(expected)},
            remedy=remedy,
        )
        return
    nearly, more, _ = pages.queries
    if not pages.has_ids and not more and nearly >= _MIN_CASES:
        yield Finding(
            "one-click-pages",
            "warning",
            f"{pages.sample}no query has more clicks on the page views of a ranker than page views, though it has "
            "nearly as many in {count} cases: it seems that a page view has one click at most",
            nearly,
            remedy=remedy,
        )


def _find_clicked_pages(pages: _Pages) -> Iterator[Finding]:
    """Report that every page view has a click."""
    without = pages.expected_without_click
    if pages.has_whole_pages and without >= _MIN_EXPECTED and not pages.count[pages.clicks == 0].any():
        yield Finding(
            "only-clicked-pages",
            "warning",
            f"{pages.sample}each of {{count}} page views has a click, though about {without:,.0f} would have none if "
            "clicks were independent: page views without a click were dropped, or users always click",
            pages.views,
            evidence={"expected_without_click": round(without)},
            remedy="Log every page view, with or without a click. On a page that was kept for its click, a result is "
            "clicked more often if nothing else was. That bends the curve.",
        )


def _find_clicked_above(pages: _Pages) -> Iterator[Finding]:
    """Report that all results above a click were clicked, too."""
    deep = (pages.first == 1) & (pages.last_click > 1)
    clicks, last, count = pages.clicks[deep], pages.last_click[deep], pages.count[deep]
    every, total = int(count[clicks == last].sum()), int(count.sum())
    # The chance that independent clicks are on all results above the last one.
    chance = np.cumprod(pages.rates)[last - 2]
    if total and every >= _NEARLY_ALL * total and -float(count @ np.log(chance.clip(1e-12))) >= _CERTAIN:
        yield Finding(
            "clicks-on-all-above",
            "warning",
            f"{pages.sample}all results above a click were clicked, too, on {{count}} of {{page_views}} page views "
            "with a click below position 1",
            every,
            evidence={"page_views": total},
            remedy="It seems that the column says which results were seen or played, or that clicks were filled in "
            "above the last one. Name the column of clicks (click).",
        )


# ---- Positions


def _find_all_clicked(pages: _Pages) -> Iterator[Finding]:
    """Report page views on which every result was clicked, if page views with a few clicks less are rarer."""
    long = pages.n >= _MIN_RESULTS
    every = int(pages.count[long & (pages.clicks == pages.n)].sum())
    nearly = int(pages.count[long & (pages.clicks < pages.n) & (pages.clicks >= pages.n - _FEW_LESS)].sum())
    if every >= _MIN_CASES and every > _MORE_OFTEN * nearly and pages.click_rate < _RARE_CLICKS:
        yield Finding(
            "crawlers",
            "warning",
            f"{pages.sample}every result was clicked on {{count}} of {{page_views}} page views, and all but 1 to "
            f"{_FEW_LESS} results on {{nearly}}: it seems that crawlers clicked them",
            every,
            evidence={"page_views": pages.views, "nearly": nearly},
            remedy=_CRAWLERS_REMEDY,
        )


def _find_clicks_anywhere(opened: OpenLog, plan: QueryPlan, pages: _Pages) -> Iterator[Finding]:
    """Report page views with many clicks that follow neither rank nor document, if there are page views with many."""
    max_rank = plan.max_rank
    histogram = np.zeros((max_rank + 1, max_rank + 1))
    np.add.at(histogram, (np.minimum(pages.n, max_rank), np.minimum(pages.clicks, max_rank)), pages.count)
    half = max(_MIN_RESULTS, max_rank // 2)
    if not pages.has_ids or histogram[:, half:].sum() < max(_MIN_CRAWLED, _MIN_CRAWLED_SHARE * pages.views):
        return
    order = _count_order(opened, click_order(replace(plan, log=pages.sample.source), pages.sample.one_in), max_rank)
    crawled = order.find_crawled(histogram)
    if crawled is not None:
        clicks, follows, _ = crawled
        yield Finding(
            "crawlers",
            "warning",
            f"{pages.sample}{{count}} of {{page_views}} page views have {clicks} clicks or more, and their clicks "
            f"follow neither rank nor document ({max(follows, 0.0):.0%} as much as other clicks): it seems that "
            "crawlers clicked them",
            int(histogram[:, clicks:].sum()),
            evidence={"page_views": pages.views, "clicks": clicks, "order": round(follows, 3)},
            remedy=_CRAWLERS_REMEDY,
        )


def _find_late_pages(opened: OpenLog, plan: QueryPlan, pages: _Pages) -> Iterator[Finding]:
    """Report page views that begin below position 1, with the column that decides it, if there is one."""
    late = int(pages.count[pages.first > 1].sum())
    # If nothing is shown at position 1, that is reported already.
    if not pages.has_whole_pages or not _MAX_INCOMPLETE * pages.views < late < pages.views or late < _MIN_CASES:
        return
    column, first = _column_of_first_position(opened, plan)
    what = f"{pages.sample}{{count}} of {{page_views}} page views have nothing at position 1"
    remedy = (
        "That is right if an advertisement stands there. It is wrong if positions count from 2, or rows are missing. "
    )
    arguments: Arguments = {}
    if column is not None:
        d = plan.dialect
        position = plan.schema.position
        shifts = {value: low - 1 for value, low in first.items() if low > 1}
        cases = " ".join(f"WHEN {d.literal(value)} THEN {shift}" for value, shift in shifts.items())
        shift = f"CASE {d.as_text(d.quote(column))} {cases} ELSE 0 END"
        late_ranks = _columns_that_begin_late(opened, plan, column, shifts)
        names = [position, *late_ranks]
        what += f": where {column!r} is {listed(shifts, most=4)}, positions begin at {min(first[v] for v in shifts)}"
        remedy = f"{'Positions and ranks' if late_ranks else 'Positions'} must count from 1 everywhere. Subtract what "
        remedy += "they begin too late. "
        arguments = {"sql": d.select_replacing({d.quote(name): f"{d.quote(name)} - {shift}" for name in names})}
    yield Finding(
        "pages-begin-late",
        "warning" if column is None else "error",
        what,
        late,
        evidence={"page_views": pages.views} | ({"first_position": first} if column else {}),
        remedy=f"{remedy}Check each application and each ranker.",
        arguments=arguments,
    )


def _columns_that_begin_late(opened: OpenLog, plan: QueryPlan, column: str, shifts: Mapping[str, int]) -> list[str]:
    """Return the columns of ranks that begin as late as positions do, for the values of a column."""
    schema, d = plan.schema, plan.dialect
    names = list(schema.rank_columns.values())
    if not names:
        return []
    least = ", ".join(f"MIN({d.integer(d.quote(name), schema.types[name])})" for name in names)
    value = d.as_text(d.quote(column))
    sql = f"SELECT {value}, {least} FROM {opened.full_view} WHERE {value} IS NOT NULL GROUP BY 1"
    rows = [(shifts[v], lows) for v, *lows in opened.rows(sql, "Looking for first ranks") if v in shifts]
    return [
        name
        for number, name in enumerate(names)
        if all(lows[number] is None or lows[number] > shift for shift, lows in rows)
    ]


def _column_of_first_position(opened: OpenLog, plan: QueryPlan) -> tuple[str | None, dict[str, int]]:
    """Return a column of which some values have no row at position 1, and the first position of each value."""
    schema, d = plan.schema, plan.dialect
    position = d.integer(d.quote(schema.position), schema.types[schema.position])
    for name in _free_columns(schema):
        value = d.as_text(d.quote(name))
        sql = (
            f"SELECT value, MIN(p), COUNT(*) FROM (SELECT {value} AS value, {position} AS p FROM {opened.full_view}) s "
            f"WHERE value IS NOT NULL AND p >= 1 GROUP BY value LIMIT {_MAX_VALUES + 1}"
        )
        rows = opened.rows(sql, "Looking for first positions")
        first = {value: int(low) for value, low, n in rows if n >= _MIN_CASES}
        if len(rows) <= _MAX_VALUES and len(first) > 1 and min(first.values()) == 1 < max(first.values()):
            return name, first
    return None, {}


def _free_columns(schema: Schema) -> list[str]:
    """Return columns that may name an application: all but ids, positions, clicks and ranks.

    A finding names their values, and a harvest file keeps it.
    """
    ids = {schema.query, schema.doc, schema.impression, schema.unit}
    ids |= {schema.position, schema.click, *schema.rank_columns.values()}
    return [name for name in schema.types if name not in ids and "[" not in schema.types[name]]


def _find_gaps(pages: _Pages) -> Iterator[Finding]:
    """Report that rows are missing at most positions of a page view, and not only where other things are shown."""
    if not (pages.has_ids and pages.has_whole_pages):
        return
    # Page views that begin above each position and end below it.
    spanning = [int(pages.count[(pages.first < k) & (k < pages.last)].sum()) for k in pages.positions]
    within = [int(pages.count[(pages.first == k) | (k == pages.last)].sum()) for k in pages.positions]
    missing = [n + ends - rows for n, ends, rows in zip(spanning, within, pages.position_rows, strict=True)]
    common = [n for n in spanning if n >= _MIN_CASES]
    often = [m for m, n in zip(missing, spanning, strict=True) if n >= _MIN_CASES and m > _MAX_INCOMPLETE * n]
    if len(often) > 1 and 2 * len(often) > len(common):
        yield Finding(
            "missing-rows",
            "warning",
            f"{pages.sample}rows are missing: page views leave out {{count}} positions between others",
            int(sum(often)),
            evidence={"page_views": pages.views},
            remedy="Find out which filter removed the rows. If results without a click were sampled, or results were "
            "hidden or logged once only, the curve is wrong.",
        )


def _find_restarts(pages: _Pages) -> Iterator[Finding]:
    """Report that a ranker shows several documents of a query at one position, though no document ever moves."""
    places, several, moved = pages.places
    crowded = int(pages.count[pages.n > pages.last - pages.first + 1].sum())
    # Positions with several results on one page view are reported already.
    if crowded > _MAX_INCOMPLETE * pages.views:
        return
    if several >= _MIN_CASES and several > _RESTART_SHARE * places and moved < _MAX_INCOMPLETE * several:
        yield Finding(
            "positions-start-again",
            "warning",
            f"{pages.sample}a ranker shows several documents of a query at {{count}} of {{places}} positions, though "
            "none of its documents is ever at two: positions seem to start again on each page of a longer list",
            several,
            evidence={"places": places},
            remedy="Count positions through the whole list: add the length of the pages before.",
        )


# ---- Clicks that do not depend on the position


def find_flat_curve(cells: Cells) -> list[Finding]:
    """Report that a document's click rate hardly depends on its rank, though click rates fall steeply with the rank.

    Strata are numbered as `merge_equal_strata` does: each is in one segment and one bucket.

    It compares the click rates of the same stratum at two ranks, one at least twice as deep as the other, by the rate
    ratio of Mantel and Haenszel, with a variance from buckets. Some of the buckets of a large log are enough.
    """
    every = min(len(cells) // _FLAT_CELLS, _FLAT_BUCKETS)
    if every > 1:
        cells = cells.where(cells.bucket % every == 0)
    clicked = sum_by_index(cells.stratum, cells.clicks, int(cells.stratum.max(initial=-1)) + 1) > 0
    if not clicked.any():
        return []
    by_rank = [
        sum_by_index(cells.rank, counts, int(cells.rank.max()) + 1) for counts in (cells.clicks, cells.impressions)
    ]
    rates = by_rank[0] / np.maximum(by_rank[1], 1)
    # A stratum without a click adds nothing to the sums below.
    cells = cells.where((cells.impressions > 0) & clicked[cells.stratum])
    first, cell = group([cells.stratum, cells.rank])
    bucket, rank, pair = cells.bucket[first], cells.rank[first], cells.stratum[first]
    shown, clicks = (sum_by_index(cell, counts, len(first)) for counts in (cells.impressions, cells.clicks))
    deep, high, marginal, where = [], [], [], []
    for step in range(1, min(int(np.bincount(pair).max()), _MOST_RANKS)):
        upper = np.flatnonzero(pair[:-step] == pair[step:])
        lower = upper + step
        far = rank[lower] >= 2 * rank[upper]
        upper, lower = upper[far], lower[far]
        weight = shown[upper] * shown[lower] / (shown[upper] + shown[lower])
        deep.append(weight * clicks[lower] / shown[lower])
        high.append(weight * clicks[upper] / shown[upper])
        marginal.append(weight * clicks[upper] / shown[upper] * rates[rank[lower]] / rates[rank[upper]].clip(1e-12))
        where.append(bucket[upper])
    if not deep or not np.concatenate(high).sum():
        return []
    a, b, m, at = map(np.concatenate, (deep, high, marginal, where))
    return _flat_finding(a, b, m, at)


def _flat_finding(a: FloatArray, b: FloatArray, m: FloatArray, at: IntArray, sample: str = "") -> list[Finding]:
    """Report that clicks at the lower of two ranks, `a`, are about as many as at the upper one, `b`.

    Arguments:
        a, b (arrays): weighted clicks of the same documents.
        m (array): what `a` would be if it fell as click rates do.
        at (array): buckets of queries.
        sample (str, default ""): words for the sample.
    """
    # From few buckets there is no telling how much they differ, as for intervals.
    if len(np.unique(at)) < _FEWEST_BUCKETS or a.sum() == 0 or not 0 < m.sum() < _STEEP * b.sum():
        return []
    size = int(at.max()) + 1
    ratio = a.sum() / b.sum()
    influence = sum_by_index(at, a, size) / a.sum() - sum_by_index(at, b, size) / b.sum()
    error = math.sqrt(float((influence**2).sum()))
    # Documents that are clicked more often at deep ranks have another cause, such as clicks missing at the top.
    if math.log(ratio) - _FLAT_QUANTILE * error < math.log(_FLAT) or ratio > 1 / _FLAT:
        return []
    fall = float(b.sum() / m.sum())
    return [
        Finding(
            "flat-curve",
            "warning",
            f"{sample}documents are clicked about as often at a rank twice as deep or more ({ratio:.0%}), though click "
            f"rates fall by a factor of {fall:.1f} between these ranks: the clicks do not depend on where a result was "
            "shown",
            evidence={"ratio": round(float(ratio), 3), "fall": round(fall, 2)},
            remedy="Usually clicks were joined to another page view: to all page views of the query, to the one "
            "before, or to those of the same day or user. Join them by the id of the page view. If that is done, users "
            "see all ranks alike.",
        )
    ]


# ---- More clicks than users make


def count_click_histogram(opened: OpenLog, rankers: tuple[str, ...], max_rank: int) -> FloatArray | None:
    """Count page views by results and clicks, (M + 1) × (M + 1); None if the log does not identify page views."""
    schema = opened.schema
    if schema.impression is None or schema.aggregated or not rankers:
        return None
    plan = QueryPlan(schema, opened.dialect, rankers, max_rank)
    histogram = np.zeros((max_rank + 1, max_rank + 1))
    for shown, clicks, views in opened.rows(click_histogram(plan), "Counting clicks of page views"):
        # A result that was logged twice does not make a page longer than it can be.
        histogram[min(shown, max_rank), min(clicks, max_rank)] += views
    return histogram if histogram.any() else None


def possible_page_views(histogram: FloatArray, chances: FloatArray) -> FloatArray:
    """Return on how many page views users may click c times or more, if they click rank k with these chances at most.

    The relevance of the results differs by page view, in a way that is not known. Of all ways that give as many clicks
    as there are, the one with the most such page views is taken: some page views of equal relevance f, others of none.
    """
    page_views = histogram.sum(axis=1)
    clicks = histogram.sum(axis=0) @ np.arange(len(page_views))
    mean = min(1.0, clicks / max(page_views @ np.concatenate([[0.0], np.cumsum(chances)]), 1e-300))
    relevances = np.geomspace(max(mean, 1e-6), 1.0, _RELEVANCES)
    return np.asarray(np.max([page_views @ _most_clicks(f * chances) * min(1.0, mean / f) for f in relevances], axis=0))


def exceeds_users(histogram: FloatArray, possible: FloatArray) -> BoolArray:
    """Return for which c page views with c clicks or more are enough to matter, and hardly any can be a user's."""
    at_least = np.cumsum(histogram.sum(axis=0)[::-1])[::-1]
    enough = at_least >= max(_MIN_CRAWLED, _MIN_CRAWLED_SHARE * histogram.sum())
    return np.asarray(enough & (possible < _MAX_USERS_SHARE * at_least))


def count_click_order(opened: OpenLog, rankers: tuple[str, ...], histogram: FloatArray) -> ClickOrder:
    """Count how far clicks follow rank and document, for page views with the histogram of `count_click_histogram`."""
    max_rank = len(histogram) - 1
    rows = int(histogram.sum(axis=1) @ np.arange(max_rank + 1))
    sql = click_order(QueryPlan(opened.schema, opened.dialect, rankers, max_rank), sampling_interval(rows, _ORDER_ROWS))
    return _count_order(opened, sql, max_rank)


def _count_order(opened: OpenLog, sql: str, max_rank: int) -> ClickOrder:
    sums = np.zeros((max_rank + 1, 6))
    for clicks, *row in opened.rows(sql, "Checking pages with many clicks"):
        sums[min(int(clicks), max_rank)] += np.array(row, dtype=np.float64)
    return ClickOrder(sums)


@dataclass(frozen=True, eq=False)
class ClickOrder:
    """How far clicks follow rank and document, by the number of clicks of the page view.

    Users click the first and the best results of a page view. A crawler clicks any of them. The slope of clicks on the
    scores of `click_order` is Σa / Σb over page views.

    Attributes:
        sums (array of shape (M + 1) × 6): page views, and sums of a, b, a², ab and b² over them, by clicks.
    """

    sums: FloatArray

    def compared(self, clicks: int) -> tuple[float, float]:
        """Return the slope of page views with so many clicks or more, over that of the others, and its upper limit.

        Both are NaN if there is too little data.
        """
        (many, error), (few, other_error) = _slope(self.sums[clicks:]), _slope(self.sums[1:clicks])
        if not few > _MIN_ORDER_ERRORS * other_error or not np.isfinite(many):
            return math.nan, math.nan
        ratio = many / few
        return ratio, ratio + _ORDER_QUANTILE * math.hypot(error, ratio * other_error) / few

    def follows(self, clicks: int, histogram: FloatArray) -> bool:
        """Return whether most page views with so many clicks show where users click, and their clicks do follow.

        A page view on which everything is clicked shows nothing.
        """
        many = histogram[:, clicks:]
        telling = np.tril(histogram, -1)[:, clicks:].sum()
        ratio, limit = self.compared(clicks)
        return bool(2 * telling >= many.sum() and 2 * ratio - limit > _MAX_ORDER)

    def find_crawled(self, histogram: FloatArray) -> tuple[int, float, int] | None:
        """Return from how many clicks on page views are those of crawlers, how far their clicks follow, and a cut.

        Page views from the cut on are mostly those of crawlers too. None if there are none.
        """
        at_least = np.cumsum(histogram.sum(axis=0)[::-1])[::-1]
        low, high = max(_MIN_CRAWLED, _MIN_CRAWLED_SHARE * histogram.sum()), _MAX_EXAMINED_SHARE * histogram.sum()
        counted = np.cumsum(self.sums[::-1, 0])[::-1] >= _MIN_CRAWLED
        tried = [c for c in range(2, len(self.sums)) if low <= at_least[c] <= high and counted[c]]
        compared = {clicks: self.compared(clicks) for clicks in tried}
        crawled = [clicks for clicks, (ratio, limit) in compared.items() if limit < _ORDER_LIMIT and ratio < _MAX_ORDER]
        if not crawled:
            return None
        cut = min(clicks for clicks, (ratio, _) in compared.items() if ratio < _CUT_ORDER)
        return crawled[0], compared[crawled[0]][0], cut


def _slope(sums: FloatArray) -> tuple[float, float]:
    """Return the slope of page views and its standard error; NaN without variance."""
    _, a, b, aa, ab, bb = sums.sum(axis=0)
    if not b > 0:
        return math.nan, math.nan
    slope = a / b
    return float(slope), math.sqrt(max(aa - 2 * slope * ab + slope**2 * bb, 0.0)) / b


def _most_clicks(chances: FloatArray) -> FloatArray:
    """Return the probability of c independent clicks or more on the first n ranks, for each n and c.

    >>> _most_clicks(np.array([1.0, 0.5])).tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 0.5]]
    """
    ranks = len(chances)
    exactly = np.zeros((ranks + 1, ranks + 1))
    exactly[0, 0] = 1.0
    for n, chance in enumerate(chances):
        exactly[n + 1] = (1 - chance) * exactly[n]
        exactly[n + 1, 1:] += chance * exactly[n, :-1]
    return np.asarray(np.cumsum(exactly[:, ::-1], axis=1)[:, ::-1])
