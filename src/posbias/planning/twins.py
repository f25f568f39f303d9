"""A twin of a harvest: the same strata with the relevance that their clicks tell, to be shown to users anew.

What other traffic would bring is read from twins: harvests drawn from the fitted model, once with the traffic that was
and once with another. Only the ratio of their standard errors is used, in which what the model has wrong mostly
cancels; the level comes from the harvest itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from posbias.arrays import FloatArray, IntArray, group, tally
from posbias.harvesting.equal_strata import strata_of
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.strata import Cells

# a: how many views, each sure to be examined, the relevance of a stratum counts for beside those of a bucket's.
_PRIORS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 256.0, 1e6)
# The relevance of a stratum is drawn to that of all by this many views.
_SHRINK = 2.0
# Beyond so many cells some of the buckets stand for all: only ratios are read.
_MOST_CELLS = 40_000
_FEWEST_BUCKETS = 128


@dataclass(frozen=True, eq=False)
class Twin:
    """The strata of a harvest, a row for each bucket and stratum.

    Attributes:
        harvest: whose twin it is.
        bucket: of each row, counted from 0.
        ranks: where each ranker puts its documents, (rows, m); 0 where beyond M.
        views: how many page views of theirs there were, by whatever ranker.
        clicks: the clicks on them and those missed, (rows, 2), from which relevance is drawn: a Beta distribution.
        pages: page views by bucket.
        propensity: p_k / p_1, (M,), a number at every rank.
    """

    harvest: Harvest
    bucket: IntArray
    ranks: IntArray
    views: FloatArray
    clicks: FloatArray
    pages: IntArray
    propensity: FloatArray

    @classmethod
    def of(cls, harvest: Harvest, propensity: FloatArray) -> Twin:
        """Return the twin of a harvest by signature, with the curve that was estimated from it."""
        if not isinstance(harvest.table, Cells) or harvest.kind != "signatures":
            raise TypeError("twins are made of harvests by signature")
        p = filled(propensity)
        # Rankers that served nothing keep their ranks: they may be given traffic.
        known = harvest.views + 1e-9
        strata = strata_of(harvest.table, harvest.max_rank, harvest.buckets, known, by_design=True)
        cells, traffic = strata.cells, harvest.views.sum(axis=0)
        rankers = len(traffic)
        first, row = group([cells.bucket, cells.stratum])
        ranks = np.zeros((len(first), rankers), dtype=np.int64)
        ranks[row, cells.ranker] = cells.rank
        shown = tally(row, cells.impressions, len(first))
        clicks = tally(row, cells.clicks, len(first))
        exposure = tally(row, cells.impressions * p[cells.rank - 1], len(first))
        reach = (ranks > 0) @ (traffic / traffic.sum())
        pages = np.rint(harvest.views.sum(axis=1)).astype(np.int64)
        bucket, stratum = cells.bucket[first], cells.stratum[first]
        # Shown only by those who rank it: with the others there were so many page views.
        views = np.minimum(shown / np.maximum(reach, 1e-12), pages[bucket])
        told = _told(stratum, clicks, exposure)
        twin = cls(harvest, bucket, ranks, views, told, pages, p)
        return twin._some()

    def _some(self) -> Twin:
        """Return the twin with no more cells than are worth drawing."""
        every = min(len(self.bucket) // _MOST_CELLS + 1, max(1, len(self.pages) // _FEWEST_BUCKETS))
        if every == 1:
            return self
        kept = self.bucket % every == 0
        return replace(
            self,
            bucket=self.bucket[kept] // every,
            ranks=self.ranks[kept],
            views=self.views[kept],
            clicks=self.clicks[kept],
            pages=self.pages[::every],
        )

    @property
    def rankers(self) -> int:
        """How many rankers put documents somewhere."""
        return int(self.ranks.shape[1])

    def draw(self, shares: FloatArray, rng: np.random.Generator) -> Harvest:
        """Return a harvest of as many page views, each given to a ranker by its share, with clicks drawn anew."""
        traffic = rng.multinomial(self.pages, np.asarray(shares) / np.sum(shares))
        # Rows that compare nothing under this traffic would only take time.
        ranked = np.where(np.asarray(shares) > 0, self.ranks, 0)
        high, low = ranked.max(axis=1), np.where(ranked > 0, ranked, np.iinfo(np.int64).max).min(axis=1)
        kept = high > low
        bucket, ranked = self.bucket[kept], ranked[kept]
        relevance = rng.beta(*(self.clicks[kept] + 1e-9).T)
        views = np.floor(self.views[kept] + rng.random(len(bucket))).astype(np.int64)
        views = np.minimum(views, self.pages[bucket])
        shown = _dealt(traffic[bucket], views, rng)
        row, ranker = np.nonzero(ranked)
        rank, impressions = ranked[row, ranker], shown[row, ranker]
        chance = np.minimum(self.propensity[rank - 1] * relevance[row], 1.0)
        cells = Cells(
            segment=np.zeros(len(row), dtype=np.int64),
            bucket=bucket[row],
            stratum=row,
            pairs=np.zeros(len(row), dtype=np.int64),
            ranker=ranker,
            rank=rank,
            impressions=impressions,
            clicks=rng.binomial(impressions, chance),
        )
        names = (*self.harvest.rankers, *(f"new {i + 1}" for i in range(self.rankers - len(self.harvest.rankers))))
        held = np.unique(cells.bucket)
        return replace(
            self.harvest,
            rankers=names,
            by=(),
            segments=((),),
            table=cells,
            findings=(),
            traffic=traffic[held].astype(np.float64),
        )


def filled(propensity: FloatArray) -> FloatArray:
    """Return a curve with a number at every rank: that of the rank above where there is none."""
    p = np.where(np.isfinite(propensity) & (propensity > 0), propensity, np.nan)
    p[0] = 1.0
    known = np.flatnonzero(np.isfinite(p))
    return np.asarray(p[known[np.searchsorted(known, np.arange(len(p)), side="right") - 1]])


def _told(stratum: IntArray, clicks: FloatArray, exposure: FloatArray) -> FloatArray:
    """Return what is known of each row's relevance, as clicks and misses: its own, and a of the stratum's.

    a makes the guess of one row from its stratum and all but one of its views best; here by the likelihood of the
    clicks of rows, which overdispersion beyond the binomial lowers.
    """
    size = int(stratum.max(initial=0)) + 1
    rate = clicks.sum() / max(exposure.sum(), 1e-300)
    mean = (tally(stratum, clicks, size) + _SHRINK * rate) / (tally(stratum, exposure, size) + _SHRINK)
    mean = np.clip(mean, 1e-6, 1 - 1e-6)[stratum]
    missed = np.maximum(exposure - clicks, 0)
    from scipy.special import betaln

    fits = [
        float((betaln(clicks + a * mean, missed + a * (1 - mean)) - betaln(a * mean, a * (1 - mean))).sum())
        for a in _PRIORS
    ]
    a = _PRIORS[int(np.argmax(fits))]
    # By exposure and not by clicks and misses, of which a thin row may have more than exposure: so clicks add up.
    relevance = np.minimum((clicks + a * mean) / (exposure + a), 1.0)
    return np.stack([(exposure + a) * relevance, (exposure + a) * (1 - relevance)], axis=1)


def _dealt(traffic: IntArray, views: IntArray, rng: np.random.Generator) -> IntArray:
    """Return how many of a row's views each ranker served, out of the page views of its bucket, (rows, m).

    Rows of a bucket lie on the same pages, so that chance favours a ranker in all of them together.
    """
    shown = np.zeros(traffic.shape, dtype=np.int64)
    rest, left = traffic.sum(axis=1), views.copy()
    for ranker in range(traffic.shape[1]):
        own = traffic[:, ranker]
        rest = rest - own
        shown[:, ranker] = rng.hypergeometric(own, rest, left)
        left = left - shown[:, ranker]
    return shown
