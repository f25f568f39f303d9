"""Harvest the interventions of a log."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray, distinct, group, places, tally
from posbias._text import listed, printable
from posbias._validate import DEFAULT_MAX_RANK, whole
from posbias.engines import EngineChoice, OpenLog, open_log
from posbias.errors import HarvestError
from posbias.findings import Finding
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
)
from posbias.harvesting.page_checks import find_interleaved, find_repeats
from posbias.harvesting.row_checks import count_rows, find_click_defects, find_contradicted_ranks, small_sample
from posbias.harvesting.tables import (
    Cells,
    ExpectedImpressions,
    PairSums,
    Strata,
    busiest_rank_index,
    strata_from_cells,
)
from posbias.logs.click_log import WEIGHTINGS, ClickLog, Weighting
from posbias.logs.layouts import Layout
from posbias.progress import Progress, silent
from posbias.sql.plan import QueryPlan
from posbias.version import __version__

# What is counted -> how. A new kind is a file of SQL, a file of counting and a line here.
_COUNTERS = {"signatures": count_signatures, "exposures": count_exposures}
Segment = tuple[str | None, ...]
CountAxis = Literal["segment", "bucket", "ranker", "rank"]
# So many rankers are named in a line about a harvest.
_MOST_SHOWN = 6
# Interventions of more numbers than these are made anew each time, in place of memory that is held: 16 MB, twice.
_MOST_KEPT = 2 * 10**6


# NumPy is imported only when the engine has answered: it takes as long as harvesting a million rows, and the command
# imports it meanwhile.


def harvest(
    log: ClickLog,
    *,
    max_rank: int = DEFAULT_MAX_RANK,
    by: Sequence[str] = (),
    weighting: Weighting | None = None,
    non_functional: Literal["share", "refuse"] = "share",
    engine: EngineChoice | None = None,
    progress: Progress = silent,
    max_strata: int = MAX_STRATA,
    force: bool = False,
) -> Harvest:
    """Harvest the interventions of a log: one aggregation, after which the log is no longer needed.

    Arguments:
        log: the click log.
        max_rank: M; results shown or ranked beyond it are not counted.
        by: segment columns; each segment gets its own counts in the same pass. In replay a document is compared with
            itself only within a segment, for the curve of all as well.
        weighting: how much each (query, document) pair counts. "traffic" is the paper's and the default where ranks
            are known (wide, long); "harmonic" is the default in replay; "uniform" counts each pair once. The last
            two compare a pair only with itself, where it was shown at both ranks.
        non_functional: in replay, a ranker that showed a document at several ranks for one query counts at each by
            its "share" of impressions, or is "refuse"d with an error.
        engine: "duckdb" (embedded, the default) or "spark"; or a value with settings of its own, such as
            `posbias.DuckDB(memory_limit="2GB")` or `posbias.Spark(master="yarn")`.
        progress: called with what is being done and the share done.
        max_strata: beyond this many rows, sums over interventional sets are kept in place of strata.
        force: go on where the log was found to be damaged (a page view logged twice, nothing but clicks); what was
            found is kept with the harvest. Rows that cannot be counted are refused all the same.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=200)))
        >>> posbias.harvest(log)
        <Harvest of 2,000 page views (a: 1,008, b: 992), wide, ranks 1 to 10>

    Reference: Agarwal et al., WSDM 2019, section 3.
    """
    check_settings(max_rank, weighting, non_functional)
    whole("max_strata", max_strata, 0)
    with open_log(log, engine, progress) as opened:
        check_segment_columns(opened, by)
        layout = opened.schema.layout
        chosen = weighting or layout.weighting
        check_window(opened, table_kind(layout, chosen))
        settings = HarvestSettings(max_rank, tuple(by), chosen, non_functional, max_strata)
        if opened.schema.drop_duplicates:
            check_page_view_ids(opened, settings.plan(opened, ()))
        counted = _COUNTERS[table_kind(layout, chosen)](opened, settings)
        pass
        from posbias.harvesting.tables import count_positions

        plan = settings.plan(opened, counted.rankers)
        repeats = find_repeats(opened, plan, small_sample(opened, counted.rows.rows))
        findings = [*opened.findings, *counted.findings, *find_click_defects(count_positions(counted.table)), *repeats]
        check_findings(findings, force=force)
        return Harvest(
            max_rank=max_rank,
            rankers=counted.rankers,
            layout=layout,
            weighting=chosen,
            by=tuple(by),
            segments=tuple(counted.segments),
            kind=counted.kind,
            table=counted.table,
            about={
                "posbias": __version__,
                "engine": opened.dialect.name,
                "made": datetime.now(UTC).isoformat(timespec="seconds"),
                "source": repr(log),
                **counted.rows.to_dict(),
            },
            findings=tuple(findings),
        )


@dataclass(frozen=True, eq=False)
class Harvest:
    """Impressions and clicks by bucket, stratum and ranker: what every estimator is computed from.

    Made by `posbias.harvest`, joined by `posbias.merge`, kept by `save` and `Harvest.load`, which also reads what a
    warehouse answered to the query of `posbias.harvest_sql`.

    Attributes:
        max_rank: M, the number of top ranks harvested.
        rankers: the rankers' names, sorted.
        layout: how the ranks were known: wide, long or replay.
        weighting: the weighting of pairs that estimators use unless told otherwise.
        by: the segment columns.
        segments: the segments found, each a tuple of values.
        kind: what the table holds: strata by "signatures" or by "exposures", or sums over "pairs" of ranks.
        table: the counts themselves, as `Cells` or, where those would not compress, as `PairSums`.
        about: row counts, when and from what it was made.
        findings: what the user should know about the rows that were and were not counted.
        traffic: page views by bucket and ranker where the table itself does not tell them: in a segment of documents.

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

    @cached_property
    def buckets(self) -> IntArray:
        """The buckets that hold anything."""
        return distinct(self.table.bucket, int(self.table.bucket.max(initial=-1)) + 1)

    @cached_property
    def _shown(self) -> Cells | PairSums:
        """The rows that tell what was shown, whether or not it intervenes."""
        return self.table if isinstance(self.table, Cells) else self.table.where(self.table.other == 0)

    def counts(self, *by: CountAxis) -> IntArray:
        """Impressions and clicks by some of segment, bucket (as in `buckets`), ranker and rank, in the order given."""
        cells = self._shown
        axes: dict[CountAxis, tuple[IntArray, int]] = {
            "segment": (cells.segment, len(self.segments)),
            "bucket": (places(cells.bucket, self.buckets), len(self.buckets)),
            "ranker": (cells.ranker, len(self.rankers)),
            "rank": (cells.rank - 1, self.max_rank),
        }
        shape = tuple(axes[name][1] for name in by)
        where = np.ravel_multi_index(tuple(axes[name][0] for name in by), shape)
        impressions = cells.impressions if isinstance(cells, Cells) else cells.clicks + cells.skips
        counts = [tally(where, c, math.prod(shape)) for c in (impressions, cells.clicks)]
        return np.rint(np.stack(counts)).astype(np.int64).reshape(2, *shape)

    @cached_property
    def _busiest(self) -> IntArray:
        """The rank (from 0), by ranker, at which its page views are counted."""
        return busiest_rank_index(self.counts("ranker", "rank")[0])

    @cached_property
    def views(self) -> FloatArray:
        """Page views by bucket and ranker: what was shown at the busiest position; in whole pages, the first."""
        if self.traffic is not None:
            return self.traffic
        cells = self._shown.where(self._shown.rank - 1 == self._busiest[self._shown.ranker])
        impressions = cells.impressions if isinstance(cells, Cells) else cells.clicks + cells.skips
        where = places(cells.bucket, self.buckets) * len(self.rankers) + cells.ranker
        counts = tally(where, impressions, len(self.buckets) * len(self.rankers))
        return np.rint(counts).reshape(len(self.buckets), len(self.rankers))

    @property
    def page_views(self) -> dict[str, int]:
        """n_i: the page views that each ranker served."""
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
        """Return ĉ and ¬ĉ by bucket, ready to be resampled."""
        weighting = self.weighting if weighting is None else weighting
        if weighting not in WEIGHTINGS:
            raise HarvestError(f"The weighting {weighting!r} is not known. Use one of {listed(WEIGHTINGS)}.")
        if isinstance(self.table, PairSums):
            if weighting != self.weighting:
                raise HarvestError(
                    f"This harvest keeps sums weighted by {self.weighting!r}, because strata did not compress, and "
                    f"cannot be weighted anew by {weighting!r}. Harvest the log again.",
                    {"weighting": weighting},
                )
            return interventions_from_pair_sums(self.table, weighting, self.max_rank, self.buckets, self.views)
        if weighting != "traffic" and self.kind == "signatures":
            raise HarvestError(
                f"This harvest counts by signature and cannot tell (query, document) pairs apart, which the weighting "
                f"{weighting!r} needs. Harvest the log again.",
                {"weighting": weighting},
            )
        made = self._kept.get(weighting) or interventions_from_cells(
            self.table, weighting, self.max_rank, self.buckets, self.views
        )
        if made.clicks.size <= _MOST_KEPT:
            self._kept[weighting] = made
        return made

    @cached_property
    def _kept(self) -> dict[Weighting, Interventions]:
        """What was made by weighting: estimators side by side ask for the same."""
        return {}

    def pairs(self, weighting: Weighting | None = None) -> PairTable:
        """Return ĉ and ¬ĉ of every interventional set."""
        return PairTable(*self.interventions(weighting).total())

    def pair_clicks(self) -> FloatArray:
        """Return the clicks at k on documents that are at k' too, as they were counted, not weighted: (M, M).

        A harvest that keeps sums over interventional sets gives these, which are weighted.
        """
        if isinstance(self.table, Cells) and self.weighting == "traffic":
            made = self.interventions()
            # Made for estimators anyway, and not weighted yet.
            if made.shares is not None:
                return made.counted()
        return count_pair_clicks(self.table, self.weighting, self.max_rank, self.views)

    def strata(self, *, by_ranker: bool = False) -> Strata:
        """Return impressions and clicks by stratum and bucket, strata numbered the same in every bucket.

        In replay it does not matter who showed a document, and rankers are told apart only if asked for (`by_ranker`).
        """
        if isinstance(self.table, PairSums):
            raise HarvestError(
                "This harvest keeps sums over interventional sets, because strata did not compress, and has none. "
                "Take an estimator on pair tables, such as AllPairs ('all-pairs'), or harvest the log again "
                "with a smaller max_rank or a larger max_strata."
            )
        if by_ranker and self.kind != "signatures":
            return strata_from_cells(
                self.table, self.max_rank, self.buckets, self.views, by_design=False, by_ranker=True
            )
        return self._strata

    @cached_property
    def _strata(self) -> Strata:
        assert isinstance(self.table, Cells)
        by_design = self.kind == "signatures"
        return strata_from_cells(self.table, self.max_rank, self.buckets, self.views, by_design=by_design)

    @cached_property
    def expected_impressions(self) -> ExpectedImpressions:
        """What rankers showed, of strata, beside what their traffic promised."""
        assert isinstance(self.table, Cells)
        return ExpectedImpressions.of(self.table, self.views.sum(axis=0))

    def segment(self, key: Segment | str) -> Harvest:
        """Return the harvest of one segment alone.

        Its n_i are the page views of the segment; where a segment is a property of the document, so that one page
        shows several, they are those of the whole log.
        """
        wanted = (key,) if isinstance(key, str) else tuple(key)
        if wanted not in self.segments:
            raise HarvestError(f"There is no segment {wanted!r}. Segments: {listed(map(str, self.segments))}.")
        mask = self.table.segment == self.segments.index(wanted)
        columns = self.table.where(mask).columns() | {"segment": np.zeros(int(mask.sum()), dtype=np.int64)}
        table = type(self.table)(**columns)
        kept = np.isin(self.buckets, table.bucket)
        traffic = None if self.segments_hold_whole_pages else self.views[kept]
        return replace(self, by=(), segments=((),), table=table, traffic=traffic)

    @cached_property
    def segments_hold_whole_pages(self) -> bool:
        """Whether every page view lies in one segment: then none shows more at a lower rank than at the first."""
        cells = self._shown
        first, which = group([cells.segment, cells.ranker, cells.rank])
        impressions = cells.impressions if isinstance(cells, Cells) else cells.clicks + cells.skips
        shown = np.rint(tally(which, impressions, len(first)))
        ranker, rank = cells.ranker[first], cells.rank[first] - 1
        # Beside what the same ranker showed in the same segment where its page views are counted.
        own, pages = group([cells.segment[first], ranker])
        views = tally(pages, np.where(rank == self._busiest[ranker], shown, 0), len(own))
        return bool(np.all(shown <= views[pages]))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the harvest to one Parquet file, whole or not at all."""
        from posbias.harvesting.files import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, force: bool = False) -> Harvest:
        """Read a harvest that `save` wrote, or the exported answer to a query of `harvest_sql`.

        Arguments:
            path: the file.
            force: go on where an export shows that the log is damaged (no click at all, or nothing but clicks), as
                with `posbias.harvest`; what was found is kept. A harvest that was saved has passed that door.
        """
        from posbias.harvesting.files import load

        return load(path, force=force)

    def __repr__(self) -> str:
        shown = sorted(self.page_views.items(), key=lambda item: -item[1])[:_MOST_SHOWN]
        more = len(self.rankers) - len(shown)
        traffic = ", ".join(f"{printable(name)}: {n:,}" for name, n in sorted(shown))
        traffic += f" and {more:,} more rankers" if more else ""
        by = f", {len(self.segments)} segments by {printable(', '.join(self.by))}" if self.by else ""
        return (
            f"<Harvest of {sum(self.page_views.values()):,} page views ({traffic}), {self.layout}, "
            f"ranks 1 to {self.max_rank}{by}>"
        )


@dataclass(frozen=True)
class PairTable:
    """ĉ and ¬ĉ of every interventional set: `clicks[k-1, k'-1]` is ĉ_k^{k,k'}, `skips` likewise ¬ĉ."""

    clicks: FloatArray
    skips: FloatArray


def check_rows(opened: OpenLog, max_rank: int, *, force: bool) -> list[Finding]:
    """Refuse rows that cannot be counted and logs that are damaged, and return what else was found."""
    plan = QueryPlan(opened.schema, opened.dialect, known_rankers(opened), max_rank)
    profile, counts = count_rows(opened, plan)
    check_usable(opened, plan, counts.rows, counts.rows_unusable)
    sample = small_sample(opened, profile.rows)
    repeats = find_repeats(opened, plan, sample)
    left_out = find_interleaved(opened, plan, counts, sample) or find_contradicted_ranks(counts)
    findings = [*left_out, *find_click_defects(profile.positions), *repeats]
    check_findings(findings, force=force)
    return findings


@dataclass(frozen=True, eq=False)
class SegmentStrata:
    """The strata of a harvest, numbered as in `harvest.strata()`, where each *part* is a bucket of one segment.

    Attributes:
        strata: with parts in place of buckets.
        segment: of each part.
        bucket: of each part, as in `harvest.buckets`.
        traffic: page views by segment and ranker, (S, m).
    """

    strata: Strata
    segment: IntArray
    bucket: IntArray
    traffic: FloatArray

    @classmethod
    def of(cls, harvest: Harvest) -> SegmentStrata:
        """Return the strata of a harvest by segment."""
        by_design = harvest.strata().by_design
        table = harvest.table
        assert isinstance(table, Cells)
        place = places(table.bucket, harvest.buckets)
        parts, part = np.unique(table.segment * len(harvest.buckets) + place, return_inverse=True)
        segment, bucket = np.divmod(parts, len(harvest.buckets))
        views = _views(harvest, table, part, len(parts)) if harvest.segments_hold_whole_pages else harvest.views[bucket]
        cells = type(table)(**table.columns() | {"bucket": part})
        strata = strata_from_cells(cells, harvest.max_rank, np.arange(len(parts)), views, by_design=by_design)
        traffic = np.stack([tally(segment, n, len(harvest.segments)) for n in views.T], axis=1)
        return cls(strata, segment, bucket, traffic)

    def within(self, buckets: BoolArray) -> BoolArray:
        """Return which parts are of some of the buckets."""
        return np.asarray(buckets[self.bucket])


def _views(harvest: Harvest, table: Cells, part: IntArray, parts: int) -> FloatArray:
    """Return page views by part and ranker: what the segment was shown at its busiest position."""
    shown = harvest.counts("segment", "ranker", "rank")[0]
    counted = table.rank - 1 == busiest_rank_index(shown)[table.segment, table.ranker]
    where = part[counted] * len(harvest.rankers) + table.ranker[counted]
    views = tally(where, table.impressions[counted], parts * len(harvest.rankers))
    return np.rint(views).reshape(parts, len(harvest.rankers))
