"""Rankings judged by logs as arrays, without an engine: what it takes to judge them by thousands of logs.

`tests/test_experiments.py` holds it against `posbias.evaluate` of the same log written out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from experiments.drawn import Drawn, draw_log
from posbias._arrays import BoolArray, FloatArray, IntArray, places, tally
from posbias.estimators import CrossFit
from posbias.learning.evaluate import Credits, Refits
from posbias.logs.layouts import Layout
from posbias.simulation.simulate import blocks_of, draw_rankings
from posbias.simulation.users import PositionBased, User
from posbias.simulation.world import World

# The lists of `Credits`: what is relevant, the log, and from here on the rankings.
RELEVANT, LOG, FIRST = 0, 1, 2


@dataclass(frozen=True, eq=False)
class JudgedLog:
    """A log of the rankers that have traffic, and rankings of its candidates, by DCG of the top M.

    Attributes:
        drawn: the log, in which there are no rankers but those.
        ranks: of all candidates in each ranking, from 1: (rankings, queries, candidates).
    """

    drawn: Drawn
    ranks: IntArray

    @classmethod
    def of(cls, world: World, buckets: IntArray, user: User | None = None) -> JudgedLog:
        """Draw the log of a world; the rankers to which it gives no traffic are what is judged."""
        drawn = draw_log(world, buckets, user=user)
        every = np.concatenate([draw_rankings(world, block).ranks for block in blocks_of(world)]).swapaxes(0, 1)
        every = every.astype(np.int64)
        logged = [i for i, share in enumerate(world.shares) if share > 0]
        names = tuple(world.rankers[i] for i in logged)
        shares = tuple(world.shares[i] for i in logged)
        small = replace(world, rankers=names, traffic=shares, quality=tuple(world.qualities[i] for i in logged))
        one = replace(drawn, world=small, ranks=drawn.ranks[:, logged], ranker=places(drawn.ranker, np.array(logged)))
        judged = [i for i in range(len(world.rankers)) if i not in logged]
        return cls(one, every[judged])

    @classmethod
    def learnt(cls, world: World, buckets: IntArray) -> JudgedLog:
        """Draw a log, and rankings learnt from other clicks on the same pages: from raw clicks, and from weighed ones.

        Both are the mean clicks of each document, shrunk to the mean of all by one view: where it was shown, and where
        it was seen.
        """
        before = cls.of(world, buckets)
        drawn = before.drawn
        p = world.propensity[drawn.rank - 1]
        views, seen = before._by_document(drawn.impressions), before._by_document(drawn.impressions * p)
        rates = [(before.clicks + before.clicks.sum() / of.sum()) / (of + 1) for of in (views, seen)]
        # Those that are alike, and those never shown at the end, are put in any order.
        luck = np.random.default_rng((world.seed, 2)).random(views.shape)
        order = [np.lexsort((luck, np.where(before.shown, -rate, 1.0)), axis=-1) for rate in rates]
        after = cls.of(world, buckets, PositionBased(world.eta, world.noise))
        return replace(after, ranks=np.argsort(np.stack(order), axis=-1) + 1)

    def _by_document(self, counts: IntArray | FloatArray) -> FloatArray:
        drawn = self.drawn
        shape = drawn.relevance.shape
        return tally(drawn.query * shape[1] + drawn.candidate, counts, shape[0] * shape[1]).reshape(shape)

    @cached_property
    def clicks(self) -> FloatArray:
        """By query and candidate."""
        return self._by_document(self.drawn.clicks)

    @cached_property
    def shown(self) -> BoolArray:
        """Whether a candidate was ever shown, by query and candidate."""
        return self._by_document(self.drawn.impressions) > 0

    @property
    def worth(self) -> FloatArray:
        """What each rank is worth: DCG of the top M."""
        ranks = np.arange(1, self.ranks.shape[-1] + 1)
        return np.asarray(np.where(ranks <= self.drawn.world.max_rank, 1 / np.log2(ranks + 1), 0.0))

    @cached_property
    def new_gains(self) -> FloatArray:
        """What candidates are worth in each ranking, ranked among those shown: (rankings, queries, candidates)."""
        among = np.where(self.shown, self.ranks, self.ranks.shape[-1] + 1)
        place = np.argsort(np.argsort(among, axis=-1, kind="stable"), axis=-1)
        return np.asarray(np.where(self.shown, self.worth[place], 0.0))

    @cached_property
    def log_gains(self) -> FloatArray:
        """Of the log as it was shown, in whole pages of M results: what is not on one is worth nothing there."""
        drawn = self.drawn
        return self._by_document(drawn.impressions * self.worth[drawn.rank - 1]) / drawn.views[:, None]

    def credits(self, p: FloatArray) -> Credits:
        """Return the worth of clicks by bucket and rank, as the engine answers it."""
        drawn = self.drawn
        held = np.unique(drawn.buckets)
        bucket, width = places(drawn.buckets, held), drawn.world.max_rank
        query, candidate, rank = drawn.query, drawn.candidate, drawn.rank - 1
        exposure = self._by_document(drawn.impressions * p[rank])[query, candidate]
        rho = exposure / drawn.views[query]
        weight = self.clicks[query, candidate] * drawn.impressions * p[rank] / exposure / rho
        gains = np.concatenate([np.ones((1, *self.shown.shape)), self.log_gains[None], self.new_gains])
        key = bucket[query] * width + rank
        worth = np.stack([tally(key, weight * gain[query, candidate], len(held) * width) for gain in gains])
        views = tally(bucket, drawn.views, len(held))
        return Credits(worth.reshape(len(gains), len(held), width), views, np.asarray(p))

    def judge(self, layout: Layout) -> tuple[Refits, Refits]:
        """Return the values of all lists with propensities estimated anew for each bucket left out, and held fixed."""
        fitted = CrossFit().fit(self.drawn.harvest(layout))
        found = self.credits(fitted.propensity_)
        refitted = fitted.deletions_
        fixed = None if refitted is None else np.broadcast_to(fitted.propensity_, refitted.shape)
        most = fitted.most_degrees_
        refits = Refits.of(found, fitted.propensity_, refitted, 0.95, most)
        return refits, Refits.of(found, fitted.propensity_, fixed, 0.95, most)

    def raw(self) -> FloatArray:
        """Return the DCG of raw clicks in the log and each ranking: what is chosen by where nobody thinks of bias."""
        log = (self.drawn.clicks * self.worth[self.drawn.rank - 1]).sum()
        new = (self.clicks * self.new_gains).sum(axis=(1, 2))
        return np.asarray(np.array([log, *new]) / self.drawn.views.sum())

    def plain(self) -> FloatArray:
        """Return inverse propensity scoring of the log and each ranking by full ranks, with the true propensities."""
        drawn = self.drawn
        clicks = drawn.clicks / drawn.world.propensity[drawn.rank - 1]
        log = (clicks * self.worth[drawn.rank - 1]).sum()
        new = (self._by_document(clicks) * self.worth[self.ranks - 1]).sum(axis=(1, 2))
        return np.asarray(np.array([log, *new]) / drawn.views.sum())

    def truth(self) -> tuple[FloatArray, FloatArray]:
        """Return the true sums of the log and each ranking: of documents shown, ranked among them, and of all."""
        relevance = self.drawn.views[:, None] * self.drawn.relevance
        gains = [self.log_gains, *self.new_gains], [self.log_gains, *self.worth[self.ranks - 1]]
        shown, every = (np.array([(relevance * gain).sum() for gain in lists]) for lists in gains)
        return shown, every
