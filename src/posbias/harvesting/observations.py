"""Count what click models and experiments need of a log: `Observations`, the input of estimators that fit on a log.

`RankAgreement` tests whether a ranker that should show results in random order does so. In random order, the rank of a
result on one page view says nothing about its rank on another. In a ranking, results return to the same ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self, TypedDict, Unpack

import numpy as np

from posbias._arrays import AnyArray, FloatArray, IntArray, sum_by_index
from posbias._defaults import DEFAULT_MAX_RANK
from posbias._stats import round_significant
from posbias._text import listed
from posbias.engines import EngineChoice as EngineChoice
from posbias.engines import OpenLog, open_log
from posbias.engines.base import Answer, row_count, segment_numbers, stack_columns
from posbias.errors import EstimateError, HarvestError, LogError
from posbias.findings import Finding
from posbias.harvesting.count import check_findings, check_segment_columns, check_settings, check_usable
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.page_checks import find_repeats
from posbias.harvesting.row_checks import find_click_defects, profile_log, small_sample
from posbias.harvesting.tables import Cells, count_page_views
from posbias.logs.click_log import ClickLog, Segment
from posbias.logs.schema import require_column
from posbias.progress import Progress, silent
from posbias.sql.dialects import INTEGERS
from posbias.sql.exposures import MISSING_ID
from posbias.sql.observations import NO_RANK, feature_positions, pair_positions, random_order, swaps, totals
from posbias.sql.plan import QueryPlan

# With fewer results than this, random order is not tested.
_MIN_RESULTS = 20
# The agreement of ranks from which an order is partly random, and from which it is not random. The mean relevance then
# falls by a tenth, or by half, from the first rank to the last, if relevance is uniform between 0 and 1.
_PARTLY_RANDOM, _NOT_RANDOM = 0.005, 0.15
# Without page view ids, results that only short pages show agree with themselves too.
_NOT_RANDOM_UNPAGED = 0.5
# The weight of a pair stops growing at this many page views.
_MAX_WEIGHTED_VIEWS = 16
# One in ten thousand logs with random order has an agreement of more standard deviations than this.
_CRITICAL_DEVIATIONS = 3.72
_REPEATED_PAIRS = "(query, document) pairs that {ranker} showed several times return to the same ranks"
Columns = Mapping[str, AnyArray]
ObservationKind = Literal["totals", "pairs", "features", "swaps", "random"]
_CountRows = Callable[[OpenLog, QueryPlan], tuple[Answer, Answer]]
_NUMERIC_TYPES = INTEGERS | {"DOUBLE", "FLOAT", "DECIMAL", "BOOLEAN"}


def observe_totals(log: ClickLog, **how: Unpack[ObserveOptions]) -> Observations:
    """Count impressions and clicks by bucket, ranker and rank."""

    def read(opened: OpenLog, plan: QueryPlan) -> tuple[Answer, Answer]:
        table = opened.table(totals(plan), "Counting clicks")
        return table, table

    return _observe("totals", read, log, **how)


class ObserveOptions(TypedDict, total=False):
    """The options of the `observe_` functions, with the meaning that they have in `posbias.harvest`."""

    max_rank: int
    by: Sequence[str]
    engine: EngineChoice | None
    progress: Progress
    force: bool


@dataclass(frozen=True, eq=False)
class Observations:
    """Impressions and clicks of the top ranks of a log, by what an estimator needs to explain them.

    `observe_totals`, `observe_pairs`, `observe_features`, `observe_swaps` and `observe_random` make them. The `observe`
    method of an estimator makes the kind that it fits on. The log is not needed again.

    Attributes:
        kind (str): what `rows` are counted by: nothing more ("totals"), (query, document) pairs or vectors of features
            with the number `item` ("pairs", "features"), or ranks before the swap of an experiment ("swaps"). The rows
            of "random" say how far the ranks agree when a ranker shows a pair again; see `sql.random_order`.
        max_rank (int): M, the number of top ranks.
        rankers (tuple of str): the names of the rankers, sorted.
        totals (mapping): `impressions` and `clicks` by `segment`, `bucket`, `ranker` and `rank`; for "swaps", those of
            the experiment only.
        rows (mapping): `impressions` and `clicks` by `segment`, `rank` and the kind.
        by (tuple of str): the segment columns.
        segments (tuple of tuples): the segments, each a tuple of values.
        features (tuple of str): the columns that are `feature_0`, `feature_1` and so on in `rows`.
        findings (tuple of Finding): what the user should know about the rows.
        ranker (str or None): the ranker of "random".

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=200)))
        >>> observe_totals(log, max_rank=3).impressions
        array([2000, 2000, 2000])
    """

    kind: ObservationKind
    max_rank: int
    rankers: tuple[str, ...]
    totals: Columns
    rows: Columns
    by: tuple[str, ...] = ()
    segments: tuple[Segment, ...] = ((),)
    features: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    ranker: str | None = None

    @cached_property
    def counts(self) -> IntArray:
        """Impressions and clicks by ranker and rank: (2, m, M)."""
        shape = (len(self.rankers), self.max_rank)
        where = np.ravel_multi_index((self.totals["ranker"], self.totals["rank"] - 1), shape)
        counts = [sum_by_index(where, self.totals[name], shape[0] * shape[1]) for name in ("impressions", "clicks")]
        return np.stack(counts).astype(np.int64).reshape(2, *shape)

    @property
    def page_views(self) -> dict[str, int]:
        """The page views that each ranker served."""
        return dict(zip(self.rankers, count_page_views(self.counts[0]).tolist(), strict=True))

    @property
    def impressions(self) -> IntArray:
        """Impressions by rank."""
        return np.asarray(self.counts[0].sum(axis=0))

    @property
    def clicks(self) -> IntArray:
        """Clicks by rank."""
        return np.asarray(self.counts[1].sum(axis=0))

    def segment(self, key: Segment | str) -> Observations:
        """Return the observations of one segment."""
        wanted = (key,) if isinstance(key, str) else tuple(key)
        if wanted not in self.segments:
            raise HarvestError(f"There is no segment {wanted!r}. Segments: {listed(map(str, self.segments))}.")
        number = self.segments.index(wanted)
        totals, rows = (
            {name: column[table["segment"] == number] for name, column in table.items()}
            for table in (self.totals, self.rows)
        )
        return replace(self, by=(), segments=((),), totals=totals, rows=rows)


def _observe(
    kind: ObservationKind,
    read: _CountRows,
    log: ClickLog,
    *,
    max_rank: int = DEFAULT_MAX_RANK,
    by: str | Sequence[str] = (),
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    force: bool = False,
) -> Observations:
    """Open a log, check its rows, and return the totals and rows that `read` counts."""
    check_settings(max_rank)
    with open_log(log, engine, progress) as opened:
        plan = QueryPlan(opened.schema, opened.dialect, (), max_rank, check_segment_columns(opened, by))
        profile = profile_log(opened, plan)
        check_usable(opened, plan, profile.rows, profile.rows_unusable)
        plan = replace(plan, rankers=profile.rankers)
        findings = [
            *find_click_defects(profile.positions),
            *find_repeats(opened, plan, small_sample(opened, profile.rows)),
        ]
        check_findings(findings, force=force)
        counted, rows = read(opened, plan)
        without_id = counted["row_count"][counted["bucket"] == MISSING_ID]
        if without_id.size:
            check_usable(opened, plan, int(counted["row_count"].sum()), int(without_id.sum()))
    numbers, segments = segment_numbers(stack_columns([counted, rows], ["rank", *plan.segments]), plan.segments)
    split = row_count(counted)
    return Observations(
        kind=kind,
        max_rank=max_rank,
        rankers=plan.rankers,
        totals=_number_segments(counted, plan, numbers[:split]),
        rows=_number_segments(rows, plan, numbers[split:]),
        by=plan.by,
        segments=tuple(segments),
        findings=tuple(findings),
    )


def _number_segments(answer: Answer, plan: QueryPlan, segment: IntArray) -> Columns:
    """Return the columns of an answer, with the number of the segment in place of its values."""
    return {name: column for name, column in answer.items() if name not in plan.segments} | {"segment": segment}


def observe_pairs(log: ClickLog, **how: Unpack[ObserveOptions]) -> Observations:
    """Count impressions and clicks of each (query, document) pair at each rank."""

    def read(opened: OpenLog, plan: QueryPlan) -> tuple[Answer, Answer]:
        table = opened.table(pair_positions(plan), "Counting pairs")
        without_doc = int((table["item"] < 0).sum())
        if without_doc:
            raise LogError(
                f"Some rows have no value in column {plan.schema.doc!r} ({without_doc:,} groups of rows by query and "
                "rank). They belong to no (query, document) pair. Leave such rows out."
            )
        return opened.table(totals(plan), "Counting clicks"), table

    return _observe("pairs", read, log, **how)


def observe_features(log: ClickLog, features: Sequence[str], **how: Unpack[ObserveOptions]) -> Observations:
    """Count impressions and clicks of each vector of features, columns of numbers or booleans, at each rank."""

    def read(opened: OpenLog, plan: QueryPlan) -> tuple[Answer, Answer]:
        types = plan.schema.types
        for column in features:
            require_column(column, types, argument="features")
            if types[column].split("(")[0] not in _NUMERIC_TYPES:
                raise LogError(
                    f"The feature {column!r} is of type {types[column]}. Features are numbers or booleans: encode it "
                    "in the log, or with a query (sql)."
                )
        table = opened.table(feature_positions(plan, features), "Counting by features")
        return opened.table(totals(plan), "Counting clicks"), table

    observed = _observe("features", read, log, **how)
    return replace(observed, features=tuple(features))


def observe_swaps(log: ClickLog, **how: Unpack[ObserveOptions]) -> Observations:
    """Count an experiment by bucket, ranker, original rank, rank shown and the last rank of the page (`reach`)."""

    def read(opened: OpenLog, plan: QueryPlan) -> tuple[Answer, Answer]:
        column = plan.schema.original
        if column is None:
            raise LogError(
                "Column 'original_rank' is not in the log. The log of a swap experiment needs a column with the rank "
                "that each result had before it was swapped, beside the position at which it was shown. Columns found: "
                f"{listed(plan.schema.types)}. Name that column (original).",
                {"original": "COLUMN"},
            )
        table = opened.table(swaps(plan, column), "Counting swaps")
        rows, original = table["row_count"], table["original"]
        bad = int(rows[original == NO_RANK].sum())
        if bad:
            raise LogError(
                f"{bad:,} of {rows.sum():,} rows have a value in {column!r} that is not a rank. Ranks before the swap "
                "count from 1, like positions. Leave the value empty for results outside of the experiment."
            )
        if not len(rows):
            raise EstimateError(
                f"Nothing was swapped: no row within the top {plan.max_rank} has a value in {column!r}."
            )
        return table, table

    return _observe("swaps", read, log, **how)


def observe_random(log: ClickLog, ranker: str | bool | None, **how: Unpack[ObserveOptions]) -> Observations:
    """Count impressions and clicks by bucket, ranker and rank, and how far the ranks of repeated results agree."""

    def read(opened: OpenLog, plan: QueryPlan) -> tuple[Answer, Answer]:
        number = ranker_number(ranker, plan.rankers)
        order = opened.table(random_order(plan, number), "Testing random order")
        paged = plan.schema.impression is not None and not plan.schema.aggregated
        findings = RankAgreement.of_rows(order).findings(plan.rankers[number], paged=paged)
        check_findings(findings, force=how.get("force", False))
        return opened.table(totals(plan), "Counting clicks"), order

    observed = _observe("random", read, log, **how)
    return replace(observed, ranker=observed.rankers[ranker_number(ranker, observed.rankers)])


def ranker_number(ranker: str | bool | None, rankers: Sequence[str]) -> int:
    """Return the number of the ranker that shows results in random order; raise an error if the log does not have it.

    A single ranker need not be named. Engines write booleans in lower case, Python does not.

    >>> ranker_number(None, ["any"]), ranker_number(True, ["false", "true"]), ranker_number("b", ["a", "b"])
    (0, 1, 1)
    """
    if ranker is None:
        if len(rankers) == 1:
            return 0
        raise EstimateError(f"Name the ranker that shows results in random order. Rankers found: {listed(rankers)}.")
    name = str(ranker).lower() if {*rankers} <= {"true", "false"} else str(ranker)
    if name not in rankers:
        raise EstimateError(
            f"The log has no ranker {ranker!r}, which should show results in random order. Rankers found: "
            f"{listed(rankers)}."
        )
    return rankers.index(name)


@dataclass(frozen=True)
class RankAgreement:
    """How far results return to the same ranks: 0 in random order, 1 if each result has only one rank.

    Attributes:
        of (str): the results, and what their ranks agree with, in words; "{ranker}" stands for the name of the ranker.
        results (int): the number of results.
        share (float): the agreement, 0 to 1.
        deviations (float): the agreement in standard deviations under random order.
    """

    of: str
    results: int
    share: float
    deviations: float

    @classmethod
    def of_rows(cls, rows: Mapping[str, AnyArray]) -> Self:
        """Return the agreement of pairs that a log shows again: the mean correlation of ranks on two page views."""
        pairs, repeats, product = (float(rows[name].sum()) for name in ("pairs", "repeats", "product"))
        independent, exclusive = (float(rows[f"variance_{name}"].sum()) for name in ("independent", "exclusive"))
        # The statistic of Friedman's test, summed over queries: results / (results - 1) times chi squared minus its
        # degrees of freedom. The cube root makes it normal (Wilson and Hilferty).
        deviations = 0.0
        if independent:
            scale = exclusive / independent
            degrees = independent / scale
            mean, spread = 1 - 2 / (9 * degrees), np.sqrt(2 / (9 * degrees))
            deviations = float((np.cbrt(max(0.0, 1 + product / (scale * degrees))) - mean) / spread)
        return cls(_REPEATED_PAIRS, int(pairs), product / max(repeats, 1.0), deviations)

    @classmethod
    def of_harvest(cls, harvest: Harvest, ranker: int) -> Self | None:
        """Return the agreement of a ranker's ranks in a harvest; None if the harvest does not show it.

        Of exposures, the ranks of the same pair are compared; of signatures, the ranks by the ranker with those by
        each other ranker. Sums over intervention sets show neither.
        """
        if not isinstance(harvest.table, Cells):
            return None
        cells = harvest.table
        shown = cells.where((cells.ranker == ranker) & (cells.impressions > 0))
        if harvest.kind == "exposures":
            return cls._of_exposures(shown)
        agreements = [
            cls._with_ranker(shown, cells.where(cells.ranker == other), name)
            for other, name in enumerate(harvest.rankers)
            if other != ranker
        ]
        strongest = max(agreements, key=lambda agreement: agreement.deviations, default=None)
        # An order that agrees with no other ranker need not be random, so only agreement is reported.
        return strongest if strongest and strongest.findings(harvest.rankers[ranker]) else None

    @classmethod
    def _of_exposures(cls, cells: Cells) -> Self:
        """Compare the ranks of each pair on any two page views. A harvest does not know which results share a page."""
        order = np.lexsort((cells.rank, cells.stratum))
        rank, pairs = cells.rank[order], cells.pairs[order]
        n = cells.impressions[order] / np.maximum(pairs, 1)
        _, first, stratum = np.unique(cells.stratum[order], return_index=True, return_inverse=True)
        above, ranks = (np.cumsum(values) - values for values in (n, n * rank))
        above, ranks = (values - values[first][stratum] for values in (above, ranks))
        # For each rank: the number of two page views whose lower rank it is, and the sum of their higher ranks.
        same = n * (n - 1) / 2
        lower, higher = n * above + same, n * ranks + same * rank
        views = np.maximum(sum_by_index(stratum, n, len(first)), 1)
        # Limit the weight of frequent queries. One query that dominates would leave one observation of chance.
        weight = np.minimum(1.0, _MAX_WEIGHTED_VIEWS / views) / views
        expected = _expected_higher_rank(rank)
        agreement = sum_by_index(stratum, higher - lower * expected, len(first)) * weight
        maximum = sum_by_index(stratum, lower * (rank - expected), len(first)) * weight
        repeated = np.where(views > 1, pairs[first], 0)
        # Two documents of a page cannot have the same rank. At worst, with two on each page, that doubles the variance.
        variance = 2 * repeated * agreement**2
        return cls._from_sums(_REPEATED_PAIRS, int(repeated.sum()), repeated * agreement, repeated * maximum, variance)

    @classmethod
    def _with_ranker(cls, shown: Cells, other: Cells, name: str) -> Self:
        """Compare the rank at which a result was shown with its rank by another ranker."""
        ranks = np.zeros(max(shown.stratum.max(initial=0), other.stratum.max(initial=0)) + 1, dtype=np.int64)
        ranks[other.stratum] = other.rank
        shown = shown.where(ranks[shown.stratum] > 0)
        rank = ranks[shown.stratum]
        lower, higher = np.maximum(rank, shown.rank), np.minimum(rank, shown.rank)
        size = int(shown.bucket.max(initial=0)) + 1
        expected = _expected_higher_rank(lower)
        agreement = sum_by_index(shown.bucket, shown.impressions * (higher - expected), size)
        maximum = sum_by_index(shown.bucket, shown.impressions * (lower - expected), size)
        # Queries of different buckets are independent, so the squares of buckets add up to the variance.
        of = f"results that {{ranker}} showed have ranks near those by {name!r}"
        return cls._from_sums(of, int(shown.impressions.sum()), agreement, maximum, agreement**2)

    @classmethod
    def _from_sums(
        cls, of: str, results: int, agreement: FloatArray, maximum: FloatArray, variance: FloatArray
    ) -> Self:
        deviation = max(float(np.sqrt(variance.sum())), 1e-9)
        total = float(agreement.sum())
        return cls(of, results, total / max(float(maximum.sum()), 1e-9), total / deviation)

    @property
    def enough_results(self) -> bool:
        """Whether there are enough results to test random order."""
        return self.results >= _MIN_RESULTS

    def findings(self, ranker: str, *, paged: bool = True) -> list[Finding]:
        """Return a finding if the order is not random, an error if it is clearly a ranking.

        Arguments:
            ranker (str): the name of the ranker.
            paged (bool, default True): whether the log has page view ids.
        """
        if not self.enough_results or self.share < _PARTLY_RANDOM or self.deviations < _CRITICAL_DEVIATIONS:
            return []
        ranking = self.share > (_NOT_RANDOM if paged else _NOT_RANDOM_UNPAGED)
        remedy = (
            "The order is a ranking, perhaps with noise: better results have higher ranks. Name the ranker that shows "
            "results in random order. If a random order was drawn once for each query or user and then kept, this is "
            "no problem."
            if ranking
            else "Some page views, or parts of pages, may be ranked. Better results then have higher ranks, and the "
            "curve falls too fast. If a random order is kept for a while, this is no problem."
        )
        return [
            Finding(
                "not-random",
                "error" if ranking else "warning",
                f"{{count}} {self.of.format(ranker=repr(ranker))}: the agreement of ranks is {self.share:.2g}, where "
                "random order gives 0 and a fixed order 1",
                self.results,
                evidence={
                    "agreement": round_significant(self.share),
                    "standard_deviations": round_significant(self.deviations),
                },
                remedy=remedy,
            )
        ]


def _expected_higher_rank(lower: IntArray) -> FloatArray:
    """Return the expected higher rank of a result shown twice in random order, given its lower rank k: k² / (2k − 1).

    All pairs of ranks are equally likely. Of the 2k − 1 pairs whose lower rank is k, each rank above k is the
    higher one in two pairs, and k itself in one. The length of the page does not matter.
    """
    return np.asarray(lower**2 / (2 * lower - 1))
