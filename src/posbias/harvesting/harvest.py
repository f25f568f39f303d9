"""Harvest the interventions of a log: the first step of everything that estimates a curve.

`harvest` opens the log on an engine, runs one aggregation over its rows, checks what was counted, and returns a
`Harvest`: a table of kilobytes to a few megabytes that holds all that estimators need. The log is not needed again.

    1. Validate the arguments.
    2. Open the log on DuckDB or Spark, and learn its layout (wide, long or replay).
    3. Count impressions and clicks: by signature where ranks are known, by observed exposure otherwise.
    4. Check the counts and a sample of page views for damage, and stop if the log cannot be used.
    5. Return the counts as a `Harvest`.

Reference: Agarwal et al., WSDM 2019, section 3.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray, distinct, group, lookup, sum_by_index
from posbias._defaults import DEFAULT_MAX_RANK
from posbias._text import listed, printable
from posbias._validate import integer
from posbias.engines import EngineChoice, OpenLog, open_log
from posbias.errors import HarvestError, PosbiasError
from posbias.findings import Finding, any_error, serious, warn
from posbias.harvesting.click_checks import columns_of_checks, find_click_patterns, find_flat_curve
from posbias.harvesting.count import (
    MAX_STRATA,
    HarvestSettings,
    TableKind,
    check_findings,
    check_page_view_ids,
    check_segment_columns,
    check_settings,
    check_usable,
    check_window,
    count_exposures,
    count_signatures,
    known_rankers,
    table_kind,
)
from posbias.harvesting.interventions import (
    Interventions,
    count_pair_clicks,
    interventions_from_cells,
    interventions_from_pair_sums,
    interventions_from_strata,
)
from posbias.harvesting.page_checks import find_interleaved, find_repeats, sketch_page_views
from posbias.harvesting.row_checks import (
    ALL_ROWS,
    Sample,
    count_rows,
    find_click_defects,
    find_contradicted_ranks,
    find_copied_files,
    find_ranker_overlap,
    find_rounded_ids,
    small_sample,
    whole_pages_sample,
)
from posbias.harvesting.tables import (
    Cells,
    PairSums,
    RankerShortfall,
    Strata,
    busiest_rank_index,
    count_positions,
    largest_shortfall,
    sort_cells,
    strata_from_cells,
)
from posbias.logs.click_log import WEIGHTINGS, ClickLog, Layout, Segment, Weighting, no_segment
from posbias.progress import Progress, silent
from posbias.sql.dialects import BUCKET_RULE
from posbias.sql.plan import QueryPlan
from posbias.version import __version__

# The function that counts each kind of table. A new kind needs its SQL, its function and a line here.
_COUNTERS = {"signatures": count_signatures, "exposures": count_exposures}
CountAxis = Literal["segment", "bucket", "ranker", "rank"]
# The repr of a harvest names at most this many rankers.
_MAX_NAMED_RANKERS = 6
# Page views may have lost up to this share of the rows at a rank.
_LOST_SHARE = 0.05
# Lost rows explain differences between ranks within segments that are up to so many times those of the whole log.
_LOST_TIMES = 10
# Copied files, repeated results and patterns of clicks.
_Seen = tuple[list[Finding], list[Finding], list[Finding]]
# Interventions with more numbers than this (16 MB, twice) are computed again each time instead of kept in memory.
_MAX_CACHED = 2 * 10**6


def harvest(
    log: ClickLog,
    *,
    max_rank: int = DEFAULT_MAX_RANK,
    by: str | Sequence[str] = (),
    weighting: Weighting | None = None,
    non_functional: Literal["share", "refuse"] = "share",
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    max_strata: int = MAX_STRATA,
    force: bool = False,
) -> Harvest:
    """Harvest the interventions of a log in one aggregation.

    Arguments:
        log (ClickLog): the click log.
        max_rank (int, default 10): M, the number of top ranks. Results shown or ranked below it are not counted.
        by (str or sequence of str, default ()): segment columns. Each segment gets its own counts in the same pass. In
            replay a document is compared with itself only within a segment, for the curve of all segments as well.
        weighting ("traffic", "harmonic", "min" or "uniform", default None): how much each (query, document) pair
            counts. "traffic" is the weighting of the paper, and the default where ranks are known (wide, long).
            "harmonic" is the default in replay. "min" counts each pair as often as its smaller number of impressions at
            the two ranks, "uniform" once. All but "traffic" compare a pair only with itself, where it was shown at both
            ranks.
        non_functional ("share" or "refuse", default "share"): what to do in replay with a ranker that showed a document
            at several ranks for one query. "share" counts each rank by its share of the impressions; "refuse" raises an
            error.
        engine (str, DuckDB or Spark, default None): "duckdb" (embedded, the default) or "spark", or an engine with its
            own settings, such as `posbias.DuckDB(memory_limit="2GB")` or `posbias.Spark(master="yarn")`.
        progress (callable, default silent): called with the name of the current step and the share that is done.
        max_strata (int, default 2,000,000): with more strata than this, the harvest keeps sums over intervention
            sets instead of strata.
        force (bool, default False): go on if the log is damaged (a page view logged twice, only clicks). The findings
            are kept with the harvest. Rows that cannot be counted still raise an error.

    Returns:
        Harvest: the counts, with findings about the rows.

    Raises:
        LogError: the log cannot be read, or has rows that cannot be counted.

    Warns:
        PosbiasWarning: a finding of severity "warning", such as a log that names no ranker.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=200)))
        >>> posbias.harvest(log)
        <Harvest of 2,000 page views (a: 1,008, b: 992), wide, ranks 1 to 10>

    Reference: Agarwal et al., WSDM 2019, section 3.
    """
    check_settings(max_rank, weighting, non_functional)
    integer("max_strata", max_strata, 0)
    with open_log(log, engine, progress) as opened:
        segment_columns = check_segment_columns(opened, by)
        layout = opened.schema.layout
        weighting = weighting or layout.weighting
        kind = table_kind(layout, weighting)
        check_window(opened, kind)
        settings = HarvestSettings(max_rank, segment_columns, weighting, non_functional, max_strata)
        if opened.schema.drop_duplicates:
            check_page_view_ids(opened, settings.plan(opened, ()))
        counted = _COUNTERS[kind](opened, settings)
        plan = settings.plan(opened, counted.rankers)
        copied, repeats, patterns = _look_at_sample(opened, plan, counted.rows.rows)
        table = counted.table
        click_defects = [*find_click_defects(count_positions(table))]
        # Clicks that were joined without the page view explain a flat curve.
        flat = find_flat_curve(table) if isinstance(table, Cells) and not any_error(patterns) else []
        overlap = find_ranker_overlap(opened, plan)
        findings = [
            *opened.findings,
            *copied,
            *find_rounded_ids(opened),
            *counted.findings,
            *click_defects,
            *repeats,
            *patterns,
            *flat,
            *overlap,
        ]
        check_findings(findings, force=force)
        warn(finding.sentence() for finding in serious(findings))
        sketch = sketch_page_views(opened, plan, counted.rows.rows)
        found = Harvest(
            max_rank=max_rank,
            rankers=counted.rankers,
            layout=layout,
            weighting=weighting,
            by=settings.by,
            segments=tuple(counted.segments),
            kind=counted.kind,
            table=table,
            about={
                "posbias": __version__,
                "engine": opened.dialect.name,
                "bucket_rule": BUCKET_RULE,
                "made": datetime.now(UTC).isoformat(timespec="seconds"),
                "source": repr(log),
                **counted.rows.to_dict(),
                **sketch,
            },
            findings=tuple(findings),
        )
        return found.with_units(opened.schema.unit, counted.by_units)


def _look_at_sample(opened: OpenLog, plan: QueryPlan, rows: int) -> _Seen:
    """Return copied files, repeated results and patterns of clicks, from samples of a log of `rows` rows."""
    sample = small_sample(opened, rows)
    seen = None
    with opened.for_samples(sample.query(plan, columns_of_checks(plan.schema))) as sampled:
        own_plan = replace(plan, schema=sampled.schema, dialect=sampled.dialect)
        # What only the engine of the log can read, it reads itself.
        with suppress(*() if sampled is opened else (PosbiasError,)):
            if not sampled.is_sample or _has_its_share(sampled, sample, rows):
                seen = _look(sampled, own_plan, ALL_ROWS if sampled.is_sample else sample, rows)
    # A log of sampled rows shows that there is something; all of the log shows how much.
    if seen is None or (sampled.is_sample and any(seen)):
        seen = _look(opened, plan, sample, rows)
    return seen


def _has_its_share(sampled: OpenLog, sample: Sample, rows: int) -> bool:
    """Whether at least a quarter of the expected rows were sampled: of few ids, there may be none in the sample."""
    [(found,)] = sampled.rows("SELECT COUNT(*) FROM log")
    return bool((sample.first or rows / sample.one_in) <= 4 * found)


def _look(opened: OpenLog, plan: QueryPlan, sample: Sample, rows: int) -> _Seen:
    copied = find_copied_files(opened)
    repeats = find_repeats(opened, plan, sample)
    patterns = find_click_patterns(opened, plan, sample.beginning, harvested=True)
    if patterns and sample.beginning != sample:
        # A join may have written the clicked rows first. Only whole page views show what was left out.
        patterns = find_click_patterns(opened, plan, whole_pages_sample(rows), harvested=True)
    return copied, repeats, patterns


@dataclass(frozen=True, eq=False)
class Harvest:
    """Impressions and clicks by bucket, stratum and ranker: the input of every estimator.

    `posbias.harvest` makes it from a log, and `posbias.merge` adds up several. `save` writes it to a file, and
    `Harvest.load` reads it back; `load` also reads the exported result of the query of `posbias.harvest_sql`.

    Attributes:
        max_rank (int): M, the number of top ranks.
        rankers (tuple of str): the names of the rankers, sorted.
        layout (Layout): how the ranks were known: wide, long or replay.
        weighting (str): the weighting of (query, document) pairs that estimators use by default.
        by (tuple of str): the segment columns.
        segments (tuple of tuples): the segments, each a tuple of one value for each column of `by`.
        kind (str): what the table holds: strata by "signatures" or by "exposures", or sums over "pairs" of ranks.
        table (Cells or PairSums): the counts. They are `Cells`, or `PairSums` if there are too many strata. Cells are
            sorted by segment, bucket, stratum, ranker and rank; in any other order they are sorted when needed.
        about (mapping): the number of rows by use, and when, how and from what the harvest was made.
        findings (tuple of Finding): what the user should know about rows that were counted or left out.
        traffic (array or None): page views by bucket and ranker, if the table does not have them. That is so in the
            harvest of a segment that groups documents.
        units (Units or None): the same counts by other buckets, if the log has a column of the unit that was assigned
            to rankers.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=200)))
        >>> found = posbias.harvest(log, max_rank=3)
        >>> found.page_views
        {'a': 1008, 'b': 992}
        >>> found.impressions
        array([2000, 2000, 2000])

    Reference: Agarwal et al., WSDM 2019, section 3.
    """

    max_rank: int
    rankers: tuple[str, ...]
    layout: Layout
    weighting: Weighting
    by: tuple[str, ...]
    segments: tuple[Segment, ...]
    kind: TableKind
    table: Cells | PairSums
    about: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    traffic: FloatArray | None = None
    units: Units | None = None

    def with_units(
        self, column: str | None, tables: Sequence[Cells | PairSums], traffic: Iterable[FloatArray] = ()
    ) -> Harvest:
        """Return the harvest with the same counts by bucket of units, and by bucket of queries and units.

        Arguments:
            column (str or None): the column of the unit.
            tables (sequence of tables): the two tables; without any, the harvest itself is returned.
            traffic (iterable of arrays, default ()): page views as in `traffic`, if the tables do not have them.
        """
        if column is None or not tables:
            return self
        # In replay, documents are compared over all units: the tables have what sums over intervention sets lose.
        changed: dict[str, Any] = {} if self.kind == "signatures" else {"kind": "pairs"}
        changed |= {} if table_kind(self.layout, self.weighting) == "signatures" else {"weighting": "harmonic"}
        by_unit, by_both = (
            replace(self, table=table, traffic=views, findings=(), **changed)
            for table, views in zip(tables, tuple(traffic) or (None, None), strict=True)
        )
        return replace(self, units=Units(column, by_unit, by_both))

    @cached_property
    def buckets(self) -> IntArray:
        """The numbers of the buckets that have data. A bucket is a group of queries, by a hash of the query id."""
        cells = self._shown if isinstance(self.table, Cells) else self.table
        return distinct(cells.bucket, int(cells.bucket.max(initial=-1)) + 1)

    @cached_property
    def _shown(self) -> Cells | PairSums:
        """Plain impressions and clicks by segment, bucket, ranker and rank."""
        if isinstance(self.table, Cells):
            return self.table.without_strata()
        return self.table.where(self.table.other == 0)

    def counts(self, *by: CountAxis) -> IntArray:
        """Count impressions and clicks by any of segment, bucket, ranker and rank.

        Arguments:
            by ("segment", "bucket", "ranker" or "rank"): the axes of the result, in this order. Buckets are those of
                `buckets`.

        Returns:
            array: impressions first, then clicks, each with one dimension for each axis.
        """
        cells = self._shown
        axes: dict[CountAxis, tuple[IntArray, int]] = {
            "segment": (cells.segment, len(self.segments)),
            "bucket": (lookup(cells.bucket, self.buckets), len(self.buckets)),
            "ranker": (cells.ranker, len(self.rankers)),
            "rank": (cells.rank - 1, self.max_rank),
        }
        shape = tuple(axes[name][1] for name in by)
        where = np.ravel_multi_index(tuple(axes[name][0] for name in by), shape)
        impressions = cells.impressions if isinstance(cells, Cells) else cells.clicks + cells.skips
        counts = [sum_by_index(where, c, math.prod(shape)) for c in (impressions, cells.clicks)]
        return np.rint(np.stack(counts)).astype(np.int64).reshape(2, *shape)

    @cached_property
    def _busiest(self) -> IntArray:
        """The rank of each ranker (from 0) at which its page views are counted."""
        return busiest_rank_index(self.counts("ranker", "rank")[0])

    @cached_property
    def views(self) -> FloatArray:
        """Page views by bucket and ranker, (B, m): impressions at the busiest rank, which on whole pages is rank 1."""
        if self.traffic is not None:
            return self.traffic
        cells = self._shown.where(self._shown.rank - 1 == self._busiest[self._shown.ranker])
        impressions = cells.impressions if isinstance(cells, Cells) else cells.clicks + cells.skips
        where = lookup(cells.bucket, self.buckets) * len(self.rankers) + cells.ranker
        counts = sum_by_index(where, impressions, len(self.buckets) * len(self.rankers))
        return np.rint(counts).reshape(len(self.buckets), len(self.rankers))

    @property
    def page_views(self) -> dict[str, int]:
        """The page views of each ranker: n_i in the paper."""
        return {name: int(n) for name, n in zip(self.rankers, self.views.sum(axis=0), strict=True)}

    @cached_property
    def _by_rank(self) -> IntArray:
        return self.counts("rank")

    @property
    def impressions(self) -> IntArray:
        """Impressions by rank."""
        return np.asarray(self._by_rank[0])

    @property
    def clicks(self) -> IntArray:
        """Clicks by rank."""
        return np.asarray(self._by_rank[1])

    def interventions(self, weighting: Weighting | None = None) -> Interventions:
        """Return ĉ and ¬ĉ of every intervention set by bucket, so that buckets can be resampled.

        Arguments:
            weighting (str, default None): "traffic", "harmonic", "min" or "uniform"; by default that of the harvest.

        Raises:
            HarvestError: the harvest does not have the counts that this weighting needs.
        """
        weighting = self.weighting if weighting is None else weighting
        if weighting not in WEIGHTINGS:
            raise HarvestError(f"The weighting {weighting!r} is not known. Use one of {listed(WEIGHTINGS)}.")
        if isinstance(self.table, PairSums):
            if weighting != self.weighting:
                raise HarvestError(
                    f"This harvest cannot be weighted by {weighting!r}: it had too many strata to keep, and holds only "
                    f"sums weighted by {self.weighting!r}. Harvest the log again.",
                    {"weighting": weighting},
                )
            return interventions_from_pair_sums(self.table, weighting, self.max_rank, self.buckets, self.views)
        if weighting != "traffic" and self.kind == "signatures":
            raise HarvestError(
                f"This harvest cannot be weighted by {weighting!r}: that needs separate counts for each (query, "
                "document) pair, and this harvest counts by signature. Harvest the log again.",
                {"weighting": weighting},
            )
        cached = self._cached_interventions
        interventions = cached.get(weighting) or (
            interventions_from_cells(self.cells, self.max_rank, self.buckets, self.views)
            if weighting == "traffic"
            else interventions_from_strata(self.strata(), weighting)
        )
        if interventions.clicks.size <= _MAX_CACHED:
            cached[weighting] = interventions
        return interventions

    @cached_property
    def _cached_interventions(self) -> dict[Weighting, Interventions]:
        """Interventions by weighting, because several estimators use the same ones."""
        return {}

    def pairs(self, weighting: Weighting | None = None) -> PairTable:
        """Return ĉ and ¬ĉ of every intervention set over all buckets; `weighting` is as in `interventions`."""
        return PairTable(*self.interventions(weighting).total())

    def pair_clicks(self) -> FloatArray:
        """Return the unweighted clicks at rank k on documents that are also ranked at k', as an (M, M) table.

        A harvest of pair sums holds only weighted clicks, and returns those.
        """
        if isinstance(self.table, Cells) and self.weighting == "traffic":
            interventions = self.interventions()
            # Estimators need these anyway, and with `shares` their clicks are not weighted yet.
            if interventions.shares is not None:
                return interventions.unweighted_clicks()
        by_strata = isinstance(self.table, Cells) and self.weighting != "traffic"
        return count_pair_clicks(self.strata() if by_strata else self.table, self.max_rank, self.views)

    @cached_property
    def cells(self) -> Cells:
        """The counts by stratum, sorted by segment, bucket, stratum, ranker and rank.

        Raises:
            HarvestError: the harvest holds sums over pairs of ranks instead of strata.
        """
        if isinstance(self.table, PairSums):
            raise HarvestError(
                "This harvest has no strata: there were too many to keep, and it holds sums over intervention sets "
                "instead. Take an estimator on pair tables, such as AllPairs ('all-pairs'), or harvest the log again "
                "with a smaller max_rank or a larger max_strata."
            )
        return sort_cells(self.table)

    def strata(self) -> Strata:
        """Return impressions and clicks by stratum and bucket, with strata numbered the same in every bucket.

        In replay the rankers are added up, because it does not matter which ranker showed a document.

        Raises:
            HarvestError: the harvest holds sums over pairs of ranks instead of strata.
        """
        return self._strata

    @cached_property
    def _strata(self) -> Strata:
        by_design = self.kind == "signatures"
        return strata_from_cells(self.cells, self.max_rank, self.buckets, self.views, by_design=by_design)

    @cached_property
    def derived(self) -> dict[str, Any]:
        """What estimators and tests computed from the harvest, by name, so that they compute it once."""
        return {}

    @cached_property
    def largest_shortfall(self) -> RankerShortfall | None:
        """The ranker that showed significantly less than its share of traffic implies, if exposure is by design."""
        assert isinstance(self.table, Cells)
        return largest_shortfall(self.table, self.views.sum(axis=0)) if self.kind == "signatures" else None

    def segment(self, key: Segment | str) -> Harvest:
        """Return the harvest of one segment.

        Its n_i are the page views of the segment. If the segment is a property of the document, so that one page view
        shows several segments, n_i are the page views of the whole log.

        Arguments:
            key (str or tuple): the value of the segment, or one value for each segment column.
        """
        wanted = tuple(key) if isinstance(key, tuple | list) else (key,)
        if wanted not in self.segments:
            raise HarvestError(no_segment(key, self.segments if self.by else ()))
        mask = self.table.segment == self.segments.index(wanted)
        columns = self.table.where(mask).columns() | {"segment": np.zeros(int(mask.sum()), dtype=np.int64)}
        if isinstance(self.table, Cells):
            columns |= {"stratum": group([columns["stratum"]])[1]}
        table = type(self.table)(**columns)
        kept = np.isin(self.buckets, table.bucket)
        traffic = None if self.segments_hold_whole_pages else self.views[kept]
        units = None if self.units is None else self.units.map(lambda harvest: harvest.segment(wanted))
        # What finds overlapping harvests is about all segments.
        about = {name: value for name, value in self.about.items() if name not in ("merged", "page_view_sketch")}
        return replace(self, by=(), segments=((),), table=table, about=about, traffic=traffic, units=units)

    @cached_property
    def segments_hold_whole_pages(self) -> bool:
        """Whether each page view lies in one segment.

        Then no segment has more impressions at any rank than at the rank where its page views are counted, except for
        rows that were lost. If rows were lost, ranks differ in the whole log too, and the square of an excess is a
        small share of the page views. In segments of documents the excess is chance: it is larger than that.
        """
        cells = self._shown
        first, which = group([cells.segment, cells.ranker, cells.rank])
        impressions = cells.impressions if isinstance(cells, Cells) else cells.clicks + cells.skips
        shown = np.rint(sum_by_index(which, impressions, len(first)))
        ranker, rank = cells.ranker[first], cells.rank[first] - 1
        own, pages = group([cells.segment[first], ranker])
        views = sum_by_index(pages, np.where(rank == self._busiest[ranker], shown, 0), len(own))
        excess = np.maximum(shown - views[pages], 0)
        if not excess.any():
            return True
        _, place = group([ranker, rank])
        in_log = sum_by_index(place, shown, int(place.max()) + 1)[place]
        most = np.zeros(len(self.rankers))
        np.maximum.at(most, ranker, in_log)
        lost = most[ranker] - in_log
        # Ranks that few pages reach show no excess in either case.
        reached = (lost <= _LOST_SHARE * most[ranker]) & (rank != self._busiest[ranker])
        if not reached.any():
            return False
        by_segment = (excess**2 / np.maximum(views[pages], 1))[reached].mean()
        by_log = (lost**2 / np.maximum(most[ranker], 1))[reached].mean()
        return bool(by_segment <= min(2 * _LOST_SHARE, _LOST_TIMES * by_log))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the harvest to one Parquet file; if writing fails, no file is left behind."""
        from posbias.harvesting.files import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, force: bool = False) -> Harvest:
        """Read a harvest that `save` wrote, or the exported result of a query of `harvest_sql`.

        Arguments:
            path (str or path): the file.
            force (bool, default False): go on if an exported result shows that the log is damaged (no clicks, or only
                clicks). A harvest that was saved has passed this check.

        Raises:
            HarvestError: the file is not a harvest, or it is damaged.
        """
        from posbias.harvesting.files import load

        return load(path, force=force)

    def __repr__(self) -> str:
        shown = sorted(self.page_views.items(), key=lambda item: -item[1])[:_MAX_NAMED_RANKERS]
        more = len(self.rankers) - len(shown)
        traffic = ", ".join(f"{printable(name)}: {n:,}" for name, n in sorted(shown))
        traffic += f" and {more:,} more rankers" if more else ""
        units = f", units by {printable(self.units.column)}" if self.units else ""
        by = f", {len(self.segments)} segments by {printable(', '.join(self.by))}" if self.by else ""
        return (
            f"<Harvest of {sum(self.page_views.values()):,} page views ({traffic}), {self.layout}, "
            f"ranks 1 to {self.max_rank}{by}{units}>"
        )


@dataclass(frozen=True, eq=False)
class Units:
    """The counts of a harvest by buckets of units, for intervals that cluster by query and by unit.

    Attributes:
        column (str): the column of the unit.
        by_unit (Harvest): the harvest with buckets of units in place of buckets of queries. In replay it has plain
            counts, and what ĉ and ¬ĉ, with the weighting "harmonic", lose without each bucket.
        by_both (Harvest): the same with buckets of (query, unit) pairs.
    """

    column: str
    by_unit: Harvest
    by_both: Harvest

    @property
    def are_losses(self) -> bool:
        """Whether sums over intervention sets are what is lost without a bucket, as in replay, and do not add up."""
        return table_kind(self.by_unit.layout, self.by_unit.weighting) == "exposures"

    def map(self, change: Callable[[Harvest], Harvest]) -> Units:
        """Return the units with both harvests changed."""
        return Units(self.column, change(self.by_unit), change(self.by_both))


@dataclass(frozen=True)
class PairTable:
    """ĉ and ¬ĉ of every intervention set: `clicks[k-1, k'-1]` is ĉ_k^{k,k'}, `skips[k-1, k'-1]` is ¬ĉ_k^{k,k'}."""

    clicks: FloatArray
    skips: FloatArray


def check_rows(opened: OpenLog, max_rank: int, *, force: bool) -> list[Finding]:
    """Validate the rows of a log before they are counted, and return the findings.

    Rows that cannot be counted raise an error, and so does a damaged log unless `force` is true.
    """
    plan = QueryPlan(opened.schema, opened.dialect, known_rankers(opened), max_rank)
    profile, counts = count_rows(opened, plan)
    check_usable(opened, plan, counts.rows, counts.rows_unusable)
    sample = small_sample(opened, profile.rows)
    repeats = find_repeats(opened, plan, sample)
    contradicted = find_interleaved(opened, plan, counts, sample) or find_contradicted_ranks(counts)
    findings = [*contradicted, *find_click_defects(profile.positions), *repeats]
    check_findings(findings, force=force)
    return findings


@dataclass(frozen=True, eq=False)
class SegmentStrata:
    """The strata of a harvest by segment, for estimators that fit all segments together.

    Strata are numbered as in `harvest.strata()`. A *part* is one bucket of one segment; it takes the place of a bucket.

    Attributes:
        strata (Strata): the strata, with parts in place of buckets.
        segment (array): the segment of each part.
        bucket (array): the bucket of each part, as an index into `harvest.buckets`.
        traffic (array): page views by segment and ranker, (S, m).
    """

    strata: Strata
    segment: IntArray
    bucket: IntArray
    traffic: FloatArray

    @classmethod
    def of(cls, harvest: Harvest) -> SegmentStrata:
        """Split the strata of a harvest by segment."""
        by_design = harvest.strata().by_design
        table = harvest.table
        assert isinstance(table, Cells)
        place = lookup(table.bucket, harvest.buckets)
        parts, part = np.unique(table.segment * len(harvest.buckets) + place, return_inverse=True)
        segment, bucket = np.divmod(parts, len(harvest.buckets))
        views = (
            _page_views_by_part(harvest, table, part, len(parts))
            if harvest.segments_hold_whole_pages
            else harvest.views[bucket]
        )
        cells = type(table)(**table.columns() | {"bucket": part})
        strata = strata_from_cells(cells, harvest.max_rank, np.arange(len(parts)), views, by_design=by_design)
        traffic = np.stack([sum_by_index(segment, n, len(harvest.segments)) for n in views.T], axis=1)
        return cls(strata, segment, bucket, traffic)

    def within(self, buckets: BoolArray) -> BoolArray:
        """Return the mask of the parts that belong to the masked buckets."""
        return np.asarray(buckets[self.bucket])


def _page_views_by_part(harvest: Harvest, table: Cells, part: IntArray, parts: int) -> FloatArray:
    """Return page views by part and ranker: the impressions at the busiest rank of the segment."""
    shown = harvest.counts("segment", "ranker", "rank")[0]
    counted = table.rank - 1 == busiest_rank_index(shown)[table.segment, table.ranker]
    where = part[counted] * len(harvest.rankers) + table.ranker[counted]
    views = sum_by_index(where, table.impressions[counted], parts * len(harvest.rankers))
    return np.rint(views).reshape(parts, len(harvest.rankers))
