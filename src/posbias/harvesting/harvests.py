"""The harvest: all that estimation needs to know of a log, in a table of kilobytes to a few megabytes."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from posbias.arrays import FloatArray, IntArray, distinct, group, places, tally
from posbias.errors import HarvestError
from posbias.findings import Finding
from posbias.harvesting.counts import Kind
from posbias.harvesting.equal_strata import Strata, strata_of
from posbias.harvesting.interventions import Interventions, count_clicks, from_cells, from_pair_sums
from posbias.harvesting.page_views import busiest
from posbias.harvesting.promised_views import Promised
from posbias.harvesting.strata import Cells, PairSums
from posbias.logs.layouts import Layout
from posbias.logs.weightings import WEIGHTINGS, Weighting
from posbias.wording import listed, printable

Segment = tuple[str | None, ...]
Axis = Literal["segment", "bucket", "ranker", "rank"]
# So many rankers are named in a line about a harvest.
_MOST_SHOWN = 6
# Interventions of more numbers than these are made anew each time, in place of memory that is held: 16 MB, twice.
_MOST_KEPT = 2 * 10**6


@dataclass(frozen=True)
class PairTable:
    """ĉ and ¬ĉ of every interventional set: `clicks[k-1, k'-1]` is ĉ_k^{k,k'}, `skips` likewise ¬ĉ."""

    clicks: FloatArray
    skips: FloatArray


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
    kind: Kind
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

    def shown(self, *by: Axis) -> IntArray:
        """Impressions and clicks by some of segment, bucket (as in `buckets`), ranker and rank, in the order given."""
        cells = self._shown
        axes: dict[Axis, tuple[IntArray, int]] = {
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
        return busiest(self.shown("ranker", "rank")[0])

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
        return self.shown("rank")

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
            return from_pair_sums(self.table, weighting, self.max_rank, self.buckets, self.views)
        if weighting != "traffic" and self.kind == "signatures":
            raise HarvestError(
                f"This harvest counts by signature and cannot tell (query, document) pairs apart, which the weighting "
                f"{weighting!r} needs. Harvest the log again.",
                {"weighting": weighting},
            )
        made = self._kept.get(weighting) or from_cells(self.table, weighting, self.max_rank, self.buckets, self.views)
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

    def set_clicks(self) -> FloatArray:
        """Return the clicks at k on documents that are at k' too, as they were counted, not weighted: (M, M).

        A harvest that keeps sums over interventional sets gives these, which are weighted.
        """
        if isinstance(self.table, Cells) and self.weighting == "traffic":
            made = self.interventions()
            # Made for estimators anyway, and not weighted yet.
            if made.shares is not None:
                return made.counted()
        return count_clicks(self.table, self.weighting, self.max_rank, self.views)

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
            return strata_of(self.table, self.max_rank, self.buckets, self.views, by_design=False, by_ranker=True)
        return self._strata

    @cached_property
    def _strata(self) -> Strata:
        assert isinstance(self.table, Cells)
        by_design = self.kind == "signatures"
        return strata_of(self.table, self.max_rank, self.buckets, self.views, by_design=by_design)

    @cached_property
    def promised(self) -> Promised:
        """What rankers showed, of strata, beside what their traffic promised."""
        assert isinstance(self.table, Cells)
        return Promised.of(self.table, self.views.sum(axis=0))

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
        traffic = None if self.by_page else self.views[kept]
        return replace(self, by=(), segments=((),), table=table, traffic=traffic)

    @cached_property
    def by_page(self) -> bool:
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
