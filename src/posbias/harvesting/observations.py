"""Count what click models and experiments need of a log: `Observations`, the input of estimators that fit on a log.

`RankAgreement` checks whether a ranker that should show results in random order does so.
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
_FEWEST_PAIRS = 20
# The agreement of ranks from which an order is partly random, and from which it is not random. The mean relevance then
# falls by a tenth, or by half, from the first rank to the last, if relevance is uniform between 0 and 1.
_SOME, _MOST = 0.005, 0.15
# Without page view ids, results that only short pages show agree with themselves too.
_MOST_UNPAGED = 0.5
# The weight of a pair stops growing at this many page views.
_MOST_VIEWS = 16
# One log in ten thousand with random order has more standard deviations than this.
_SURE = 3.72
_PAIRS = "(query, document) pairs that {ranker} showed several times come back to where they stood"
Columns = Mapping[str, AnyArray]
ObservationKind = Literal["totals", "pairs", "features", "swaps", "random"]
_Read = Callable[[OpenLog, QueryPlan], tuple[Answer, Answer]]
_NUMBERS = INTEGERS | {"DOUBLE", "FLOAT", "DECIMAL", "BOOLEAN"}


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
        alone = [
            {name: column[table["segment"] == number] for name, column in table.items()}
            for table in (self.totals, self.rows)
        ]
        return replace(self, by=(), segments=((),), totals=alone[0], rows=alone[1])


def _observe(
    kind: ObservationKind,
    read: _Read,
    log: ClickLog,
    *,
    max_rank: int = DEFAULT_MAX_RANK,
    by: Sequence[str] = (),
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    force: bool = False,
) -> Observations:
    """Open a log, check its rows, and return the totals and rows that `read` counts."""
    check_settings(max_rank)
    with open_log(log, engine, progress) as opened:
        check_segment_columns(opened, by)
        plan = QueryPlan(opened.schema, opened.dialect, (), max_rank, tuple(by))
        profile = profile_log(opened, plan)
        check_usable(opened, plan, profile.rows, profile.rows_unusable)
        plan = replace(plan, rankers=profile.rankers)
        findings = [
            *find_click_defects(profile.positions),
            *find_repeats(opened, plan, small_sample(opened, profile.rows)),
        ]
        check_findings(findings, force=force)
        counted, rows = read(opened, plan)
        nameless = counted["row_count"][counted["bucket"] == MISSING_ID]
        if nameless.size:
            check_usable(opened, plan, int(counted["row_count"].sum()), int(nameless.sum()))
    numbers, segments = segment_numbers(stack_columns([counted, rows], ["rank", *plan.segments]), plan.segments)
    split = row_count(counted)
    return Observations(
        kind=kind,
        max_rank=max_rank,
        rankers=plan.rankers,
        totals=_columns(counted, plan, numbers[:split]),
        rows=_columns(rows, plan, numbers[split:]),
        by=plan.by,
        segments=tuple(segments),
        findings=tuple(findings),
    )


def _columns(answer: Answer, plan: QueryPlan, segment: IntArray) -> Columns:
    """Return an answer's numbers, and the number of each row's segment."""
    return {name: column for name, column in answer.items() if name not in plan.segments} | {"segment": segment}


def observe_pairs(log: ClickLog, **how: Unpack[ObserveOptions]) -> Observations:
    """Count impressions and clicks of each (query, document) pair at each rank."""

    def read(opened: OpenLog, plan: QueryPlan) -> tuple[Answer, Answer]:
        table = opened.table(pair_positions(plan), "Counting pairs")
        nameless = int((table["item"] < 0).sum())
        if nameless:
            raise LogError(
                f"There are rows with no value in column {plan.schema.doc!r} ({nameless:,} groups of them by query and "
                "rank), which belong to no (query, document) pair. Leave such rows out."
            )
        return opened.table(totals(plan), "Counting clicks"), table

    return _observe("pairs", read, log, **how)


def observe_features(log: ClickLog, features: Sequence[str], **how: Unpack[ObserveOptions]) -> Observations:
    """Count impressions and clicks of each vector of features, columns of numbers or booleans, at each rank."""

    def read(opened: OpenLog, plan: QueryPlan) -> tuple[Answer, Answer]:
        types = plan.schema.types
        for column in features:
            require_column(column, types, argument="features")
            if types[column].split("(")[0] not in _NUMBERS:
                raise LogError(
                    f"The feature {column!r} is of type {types[column]}. Features are numbers or booleans: encode it "
                    "in the log, or by a query (sql)."
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
                "A swap experiment's log has a column with the rank that a result had before it was swapped, beside "
                f"the position at which it was shown. 'original_rank' is not in the log. Columns found: "
                f"{listed(plan.schema.types)}. Say which to read.",
                {"original": "COLUMN"},
            )
        table = opened.table(swaps(plan, column), "Counting swaps")
        rows, original = table["row_count"], table["original"]
        bad = int(rows[original == NO_RANK].sum())
        if bad:
            raise LogError(
                f"{bad:,} of {rows.sum():,} rows have a value in {column!r} that is not a rank. Ranks before the swap "
                "count from 1 like positions. Where a result was no part of the experiment, leave the value out."
            )
        if not len(rows):
            raise EstimateError(
                f"No row within the top {plan.max_rank} has a value in {column!r}: nothing was swapped."
            )
        return table, table

    return _observe("swaps", read, log, **how)


def observe_random(log: ClickLog, ranker: str | bool | None, **how: Unpack[ObserveOptions]) -> Observations:
    """Count impressions and clicks by bucket, ranker and rank, and how far ranks of results shown again agree."""

    def read(opened: OpenLog, plan: QueryPlan) -> tuple[Answer, Answer]:
        number = ranker_number(ranker, plan.rankers)
        order = opened.table(random_order(plan, number), "Looking at the order")
        paged = plan.schema.impression is not None and not plan.schema.aggregated
        found = RankAgreement.of_rows(order).findings(plan.rankers[number], paged=paged)
        check_findings(found, force=how.get("force", False))
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
        raise EstimateError(f"Which ranker shows results in random order? Name one of those found: {listed(rankers)}.")
    name = str(ranker).lower() if {*rankers} <= {"true", "false"} else str(ranker)
    if name not in rankers:
        raise EstimateError(
            f"There is no ranker {ranker!r} that could show results in random order. Rankers found: {listed(rankers)}."
        )
    return rankers.index(name)


@dataclass(frozen=True)
class RankAgreement:
    """How far results return to the same ranks: 0 in random order, 1 if each result has only one rank.

    Attributes:
        of (str): which results, and what their ranks agree with, in words.
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
        """Return that of pairs that a log's engine saw again: the mean correlation of places on two page views."""
        pairs, repeats, product = (float(rows[name].sum()) for name in ("pairs", "repeats", "product"))
        independent, exclusive = (float(rows[f"variance_{name}"].sum()) for name in ("independent", "exclusive"))
        # Friedman's statistic, query by query: results / (results - 1) times chi squared less its degrees of freedom,
        # made normal by its cube root (Wilson and Hilferty).
        sure = 0.0
        if independent:
            scale = exclusive / independent
            degrees = independent / scale
            mean, spread = 1 - 2 / (9 * degrees), np.sqrt(2 / (9 * degrees))
            sure = float((np.cbrt(max(0.0, 1 + product / (scale * degrees))) - mean) / spread)
        return cls(_PAIRS, int(pairs), product / max(repeats, 1.0), sure)

    @classmethod
    def of_harvest(cls, harvest: Harvest, ranker: int) -> Self | None:
        """Return that of a harvest's pairs, or of ranks that others are known to give; None where it tells neither."""
        if not isinstance(harvest.table, Cells):
            return None
        cells = harvest.table
        own = cells.where((cells.ranker == ranker) & (cells.impressions > 0))
        if harvest.kind == "exposures":
            return cls._of_exposures(own)
        others = [
            cls._of_others(own, cells.where(cells.ranker == other), name)
            for other, name in enumerate(harvest.rankers)
            if other != ranker
        ]
        most = max(others, key=lambda one: one.deviations, default=None)
        # That no other ranks alike does not make an order random.
        return most if most and most.findings(harvest.rankers[ranker]) else None

    @classmethod
    def _of_exposures(cls, cells: Cells) -> Self:
        """Compare the ranks of each pair on every two page views. Their places are not known: nor are the pages."""
        order = np.lexsort((cells.rank, cells.stratum))
        rank, pairs = cells.rank[order], cells.pairs[order]
        n = cells.impressions[order] / np.maximum(pairs, 1)
        _, first, stratum = np.unique(cells.stratum[order], return_index=True, return_inverse=True)
        above, ranks = (np.cumsum(values) - values for values in (n, n * rank))
        above, ranks = (values - values[first][stratum] for values in (above, ranks))
        # Two page views of which the lower rank is this: how many, and what the higher ones add up to.
        same = n * (n - 1) / 2
        lower, higher = n * above + same, n * ranks + same * rank
        views = np.maximum(sum_by_index(stratum, n, len(first)), 1)
        # A query that is asked all the time must not stand for all: its chance is told by itself alone.
        weight = np.minimum(1.0, _MOST_VIEWS / views) / views
        found = sum_by_index(stratum, higher - lower * _higher(rank), len(first)) * weight
        most = sum_by_index(stratum, lower * (rank - _higher(rank)), len(first)) * weight
        again = np.where(views > 1, pairs[first], 0)
        # Documents of one page exclude each other: at worst, of two on each, that doubles the variance.
        return cls._summed(_PAIRS, int(again.sum()), again * found, again * most, 2 * again * found**2)

    @classmethod
    def _of_others(cls, own: Cells, other: Cells, name: str) -> Self:
        """Compare the rank at which a result was shown with that which another ranker gives it."""
        given = np.zeros(max(own.stratum.max(initial=0), other.stratum.max(initial=0)) + 1, dtype=np.int64)
        given[other.stratum] = other.rank
        own = own.where(given[own.stratum] > 0)
        rank = given[own.stratum]
        low, high = np.maximum(rank, own.rank), np.minimum(rank, own.rank)
        size = int(own.bucket.max(initial=0)) + 1
        found = sum_by_index(own.bucket, own.impressions * (high - _higher(low)), size)
        most = sum_by_index(own.bucket, own.impressions * (low - _higher(low)), size)
        # Queries of other buckets are independent, and all that is not lies within one.
        of = f"results that {{ranker}} showed stand near where {name!r} ranks them"
        return cls._summed(of, int(own.impressions.sum()), found, most, found**2)

    @classmethod
    def _summed(cls, of: str, results: int, found: FloatArray, most: FloatArray, variance: FloatArray) -> Self:
        spread = max(float(np.sqrt(variance.sum())), 1e-9)
        return cls(of, results, float(found.sum()) / max(float(most.sum()), 1e-9), float(found.sum()) / spread)

    @property
    def enough_results(self) -> bool:
        """Whether there are enough results to test random order."""
        return self.results >= _FEWEST_PAIRS

    def findings(self, ranker: str, *, paged: bool = True) -> list[Finding]:
        """Report that the order is not random; `paged` says whether the log has page view ids."""
        if not self.enough_results or self.share < _SOME or self.deviations < _SURE:
            return []
        plainly = self.share > (_MOST if paged else _MOST_UNPAGED)
        remedy = (
            "It is a ranking, if a noisy one, and better results stand higher: name the ranker that shows results in "
            "random order. Only if that order was drawn once for each query or user and kept is all well."
            if plainly
            else "Part of its pages, or some of its page views, may be ranked: then better results stand higher, and "
            "the curve falls too fast. Only if an order that was drawn at random is kept for a while is all well."
        )
        return [
            Finding(
                "not-random",
                "error" if plainly else "warning",
                f"{{count}} {self.of.format(ranker=repr(ranker))}: ranks agree by {self.share:.2g}, where random order "
                "gives 0 and a fixed one 1",
                self.results,
                evidence={
                    "agreement": round_significant(self.share),
                    "standard_deviations": round_significant(self.deviations),
                },
                remedy=remedy,
            )
        ]


def _higher(lower: IntArray) -> FloatArray:
    """Return the expected higher rank of a result shown twice in random order, given its lower rank k: k² / (2k − 1).

    All pairs of ranks are equally likely. Of the 2k − 1 pairs whose lower rank is k, each rank above k is the
    higher one in two pairs, and k itself in one. The length of the page does not matter.
    """
    return np.asarray(lower**2 / (2 * lower - 1))
