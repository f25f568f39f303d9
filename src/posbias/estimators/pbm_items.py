"""What the click models by EM share: clicks and skips of items, each of one relevance, at each rank."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posbias.arrays import BoolArray, FloatArray, IntArray, tally
from posbias.estimators.rank_links import reachable
from posbias.harvesting.observations import Columns


@dataclass(frozen=True)
class ShownItems:
    """Clicks and skips of items, each of one relevance, at each rank (from 0); sorted, so that sums are repeatable.

    `impressions` are by rank, `repeats` are the impressions by item, and `first` is a row of each item.
    """

    item: IntArray
    rank: IntArray
    clicks: FloatArray
    skips: FloatArray
    items: int
    ranks: int
    impressions: FloatArray
    repeats: FloatArray
    first: IntArray

    @classmethod
    def of(cls, rows: Columns, max_rank: int) -> ShownItems:
        """Return the items of a log or a segment, numbered without gaps."""
        order = np.lexsort((rows["clicks"], rows["impressions"], rows["rank"], rows["item"]))
        rank, impressions, clicks = (rows[name][order] for name in ("rank", "impressions", "clicks"))
        new = np.diff(rows["item"][order], prepend=-1) > 0
        item, items, rank = np.cumsum(new) - 1, int(new.sum()), rank - 1
        return cls(
            item=item,
            rank=rank,
            clicks=clicks.astype(np.float64),
            skips=(impressions - clicks).astype(np.float64),
            items=items,
            ranks=max_rank,
            impressions=tally(rank, impressions, max_rank),
            repeats=tally(item, impressions, items),
            first=order[new],
        )

    def by_rank(self, values: FloatArray) -> FloatArray:
        """Return the sum of values at each rank."""
        return tally(self.rank, values, self.ranks)

    def by_item(self, values: FloatArray) -> FloatArray:
        """Return the sum of values of each item."""
        return tally(self.item, values, self.items)

    def linked(self, counted: BoolArray | None = None) -> BoolArray:
        """Return which ranks a chain of items, each clicked and shown at two ranks, connects to rank 1.

        Of all items, or of those that are `counted`.
        """
        kept = self.by_item(self.clicks) > 0
        if counted is not None:
            kept &= counted
        item, rank = self.item[kept[self.item]], self.rank[kept[self.item]]
        same = np.flatnonzero(item[1:] == item[:-1])
        links = np.zeros((self.ranks, self.ranks), dtype=np.bool_)
        links[rank[same], rank[same + 1]] = links[rank[same + 1], rank[same]] = True
        first = np.any((self.rank == 0) & (self.clicks > 0) & kept[self.item])
        return reachable(links) & first


def posteriors(p: FloatArray, r: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the probability that a result was examined, and that it is relevant, though it was not clicked."""
    both = p * r
    skipped = np.maximum(1 - both, np.finfo(np.float64).tiny)
    return (p - both) / skipped, (r - both) / skipped


def ratio(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Return part / whole, NaN where there is no whole."""
    return np.asarray(np.divide(part, whole, out=np.full(np.shape(part), np.nan), where=whole > 0))
