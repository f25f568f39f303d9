"""Whether a ranker that is said to show results in random order does so, as far as what it shows again tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from posbias.arrays import AnyArray, FloatArray, IntArray, tally
from posbias.errors import EstimateError
from posbias.findings import Finding
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.strata import Cells
from posbias.wording import listed

# With fewer pairs that were shown again nothing is said of their order.
_FEWEST_PAIRS = 20
# The agreement of places from which an order is not quite random, and from which it is none: the mean relevance of
# results then falls by a tenth, or a half, from the first rank to the last where relevance is anything from 0 to 1.
_SOME, _MOST = 0.005, 0.15
# Where page views are not known, results that only short pages show agree with themselves as well.
_MOST_UNPAGED = 0.5
# Pairs with more views than this have no more say.
_MOST_VIEWS = 16
# So many standard deviations are no chance: one log in ten thousand has more.
_SURE = 3.72


def number_of(ranker: str | bool | None, rankers: Sequence[str]) -> int:
    """Return the number of the ranker that shows results in random order; refuse a name that is not there.

    A single one need not be named. Engines write booleans in small letters, Python does not.

    >>> number_of(None, ["any"]), number_of(True, ["false", "true"]), number_of("b", ["a", "b"])
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
class Agreement:
    """How far results come back to their places: 0 in random order, 1 where each has one rank only.

    Attributes:
        of: which results, and with what their ranks agree, in words.
        results: how many results tell it.
        share: the agreement.
        deviations: by how many standard deviations of random order it is above 0.
    """

    of: str
    results: int
    share: float
    deviations: float

    @classmethod
    def of_rows(cls, rows: Mapping[str, AnyArray]) -> Self:
        """Return that of pairs that a log's engine saw again: the mean correlation of places on two page views."""
        pairs, again, alike = (float(rows[name].sum()) for name in ("pairs", "again", "alike"))
        freely, together = (float(rows[name].sum()) for name in ("freely", "together"))
        # Friedman's statistic, query by query: results / (results - 1) times chi squared less its degrees of freedom,
        # made normal by its cube root (Wilson and Hilferty).
        sure = 0.0
        if freely:
            scale = together / freely
            degrees = freely / scale
            mean, spread = 1 - 2 / (9 * degrees), np.sqrt(2 / (9 * degrees))
            sure = float((np.cbrt(max(0.0, 1 + alike / (scale * degrees))) - mean) / spread)
        return cls(_PAIRS, int(pairs), alike / max(again, 1.0), sure)

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
        views = np.maximum(tally(stratum, n, len(first)), 1)
        # A query that is asked all the time must not stand for all: its chance is told by itself alone.
        weight = np.minimum(1.0, _MOST_VIEWS / views) / views
        found = tally(stratum, higher - lower * _higher(rank), len(first)) * weight
        most = tally(stratum, lower * (rank - _higher(rank)), len(first)) * weight
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
        found = tally(own.bucket, own.impressions * (high - _higher(low)), size)
        most = tally(own.bucket, own.impressions * (low - _higher(low)), size)
        # Queries of other buckets are independent, and all that is not lies within one.
        of = f"results that {{ranker}} showed stand near where {name!r} ranks them"
        return cls._summed(of, int(own.impressions.sum()), found, most, found**2)

    @classmethod
    def _summed(cls, of: str, results: int, found: FloatArray, most: FloatArray, variance: FloatArray) -> Self:
        spread = max(float(np.sqrt(variance.sum())), 1e-9)
        return cls(of, results, float(found.sum()) / max(float(most.sum()), 1e-9), float(found.sum()) / spread)

    @property
    def told(self) -> bool:
        """Whether there are enough of them to tell an order."""
        return self.results >= _FEWEST_PAIRS

    def findings(self, ranker: str, *, paged: bool = True) -> list[Finding]:
        """Return what speaks against random order, if anything does; `paged` says whether page views are known."""
        if not self.told or self.share < _SOME or self.deviations < _SURE:
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
                    "agreement": float(f"{self.share:.4g}"),
                    "standard_deviations": float(f"{self.deviations:.4g}"),
                },
                remedy=remedy,
            )
        ]


_PAIRS = "(query, document) pairs that {ranker} showed several times come back to where they stood"


def _higher(lower: IntArray) -> FloatArray:
    """Return the mean of the higher of two ranks of which the lower is known, in random order.

    All k² pairs of ranks down to the same depth are equally likely: of the 2k − 1 whose lower rank is k, as often any
    other is the higher one twice, or k once. How deep the page is does not matter.
    """
    return np.asarray(lower**2 / (2 * lower - 1))
