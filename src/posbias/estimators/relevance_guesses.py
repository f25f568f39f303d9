"""What CrossFit guesses of relevance before it looks at a view: from the signature, and how far a cell is trusted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posbias.arrays import FloatArray, IntArray, group, tally
from posbias.estimators.compared_rows import Rows
from posbias.harvesting.equal_strata import Strata

# Bins of strata that are guessed to be of one relevance, and the clicks that each of them needs to be guessed from.
_BINS, _CLICKS_OF_BIN = 100, 50
# b = 1 / a, where a says how many views, each sure to be examined, the relevance of the bin counts for beside those of
# the cell; so that a = ∞ is a number.
_PRIORS = 1 / np.array([0.5, 1, 2, 4, 8, 16, 32, 64, 256, np.inf])
# Of more rows some parts are enough to choose one of them by.
_ROWS_TO_CHOOSE_BY = 2**18


@dataclass(frozen=True)
class Guess:
    """What is guessed of relevance: r0 by stratum, and b = 1 / a, how much more a view of the cell itself tells.

    Where buckets are known to be more or less relevant on the whole, `level` has a factor of r0 for each.
    """

    relevance: FloatArray
    trust: float
    level: FloatArray | None = None

    def at(self, rows: Rows) -> FloatArray:
        """Return r0 of each row."""
        own = self.relevance[rows.kind]
        return np.asarray(own if self.level is None else own * self.level[rows.bucket[rows.cell]])


def guess_relevance(rows: Rows, x: FloatArray, signatures: Signatures) -> FloatArray:
    """Return r0 of each stratum: the click rate per examination of those that its signature says are alike."""
    exposure = rows.views * np.exp(x)[rows.rank]
    size = signatures.size
    clicks, exposures = tally(rows.kind, rows.clicks, size), tally(rows.kind, exposure, size)
    rate = clicks.sum() / max(exposures.sum(), 1e-300)
    order = np.argsort(signatures.scores(clicks, exposures, rate), kind="stable")
    bins = int(np.clip(clicks.sum() // _CLICKS_OF_BIN, 1, _BINS))
    reached = np.cumsum(exposures[order])
    which = np.empty(size, dtype=np.int64)
    # The bin in which the middle of a stratum's exposure lies.
    middle = reached - exposures[order] / 2
    which[order] = np.minimum(bins * middle // max(reached[-1], 1e-300), bins - 1)
    found, among = tally(which, clicks, bins), tally(which, exposures, bins)
    rates = np.divide(found, among, out=np.full(bins, rate), where=among > 0)
    return np.asarray(rates[which])


@dataclass(frozen=True)
class Signatures:
    """Where the rankers put each stratum: a number of ranker and rank for each of its entries."""

    stratum: IntArray
    entry: IntArray
    size: int
    rankers: int
    ranks: int

    @classmethod
    def of(cls, strata: Strata) -> Signatures:
        """Return the signatures of a harvest's strata."""
        cells = strata.cells
        rankers = strata.views.shape[1]
        first, _ = group([cells.stratum, cells.ranker, cells.rank])
        entry = cells.ranker[first] * strata.max_rank + cells.rank[first] - 1
        return cls(cells.stratum[first], entry, strata.size, rankers, strata.max_rank)

    def scores(self, clicks: FloatArray, exposures: FloatArray, rate: float) -> FloatArray:
        """Return, for each stratum, the sum over rankers of the log click rate of all that they rank as they rank it.

        A ranker that does not rank it counts too, by the rate of all that it does not rank.
        """
        size = self.rankers * self.ranks
        counts = [(tally(self.entry, c[self.stratum], size), c.sum()) for c in (clicks, exposures)]
        # Half a click more at the rate of all, so that none is without.
        ranked = [part + 0.5 / scale for (part, _), scale in zip(counts, (1, rate or 1), strict=True)]
        elsewhere = [
            np.maximum(total - part.reshape(self.rankers, self.ranks).sum(axis=1), 0) + 0.5 / scale
            for (part, total), scale in zip(counts, (1, rate or 1), strict=True)
        ]
        gain = np.log(ranked[0] / ranked[1]) - np.repeat(np.log(elsewhere[0] / elsewhere[1]), self.ranks)
        return tally(self.stratum, gain[self.entry], self.size)


def choose_trust(x: FloatArray, rows: Rows, relevance: FloatArray) -> float:
    """Return the b = 1 / a whose guesses of each view, from all others of its cell, are off by the least squares."""
    errors = np.zeros(len(_PRIORS))
    # Parts are of buckets, to which queries came by chance.
    for part in rows.parts[:: max(1, len(rows) // _ROWS_TO_CHOOSE_BY)]:
        p, r = np.exp(x)[part.rank], relevance[part.kind]
        others = np.maximum(part.summed(part.views * p) - p, 0)
        for i, b in enumerate(_PRIORS):
            seen = p / (b * others + 1)
            clicked, skipped = (1 - seen * (b * (part.all_clicks - 1) + r)), seen * (b * part.all_clicks + r)
            errors[i] += part.clicks @ clicked**2 + (part.views - part.clicks) @ skipped**2
    return float(_PRIORS[int(np.argmin(errors))])
