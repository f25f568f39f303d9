"""Strata that are kept apart by segment, for what is estimated of all segments at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posbias.arrays import BoolArray, FloatArray, IntArray, places, tally
from posbias.harvesting.equal_strata import Strata, strata_of
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.page_views import busiest
from posbias.harvesting.strata import Cells


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
        views = _views(harvest, table, part, len(parts)) if harvest.by_page else harvest.views[bucket]
        cells = type(table)(**table.columns() | {"bucket": part})
        strata = strata_of(cells, harvest.max_rank, np.arange(len(parts)), views, by_design=by_design)
        traffic = np.stack([tally(segment, n, len(harvest.segments)) for n in views.T], axis=1)
        return cls(strata, segment, bucket, traffic)

    def within(self, buckets: BoolArray) -> BoolArray:
        """Return which parts are of some of the buckets."""
        return np.asarray(buckets[self.bucket])


def _views(harvest: Harvest, table: Cells, part: IntArray, parts: int) -> FloatArray:
    """Return page views by part and ranker: what the segment was shown at its busiest position."""
    shown = harvest.shown("segment", "ranker", "rank")[0]
    counted = table.rank - 1 == busiest(shown)[table.segment, table.ranker]
    where = part[counted] * len(harvest.rankers) + table.ranker[counted]
    views = tally(where, table.impressions[counted], parts * len(harvest.rankers))
    return np.rint(views).reshape(parts, len(harvest.rankers))
