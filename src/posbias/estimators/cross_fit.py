"""The default estimator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple, Self

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray, at_once, distinct, group, tally
from posbias._text import listed
from posbias._validate import DEFAULT_LEVEL
from posbias.errors import EstimateError
from posbias.estimators.base import (
    Estimator,
    Interval,
    Reasons,
    ReportedCounts,
    connected_ranks,
    explain_uneven_traffic,
    identified_curve,
    link_matrix,
    reachable_ranks,
)
from posbias.harvesting.harvest import Harvest
from posbias.harvesting.interventions import ranker_shares
from posbias.harvesting.tables import Strata

# So many rows are worked on at once: they should stay in the cache.
_PART = 1 << 15
# Up to so many ranks a cell with all of them is faster to multiply than one with those that it has.
_DENSE = 64
# Without the buckets that are left out, traffic is off by no more than this factor.
_EVEN = 2.0
# So large a share of the buckets may be left out, one at the least; where that does not mend it, nothing is.
_MOST_LEFT_OUT = 0.05
# What is left out because traffic hangs on it has more than this share of the page views.
_MOST_VIEWS = 0.5
# Bins of strata that are guessed to be of one relevance, and the clicks that each of them needs to be guessed from.
_BINS, _CLICKS_OF_BIN = 100, 50
# b = 1 / a, where a says how many views, each sure to be examined, the relevance of the bin counts for beside those of
# the cell; so that a = ∞ is a number.
_PRIORS = 1 / np.array([0.5, 1, 2, 4, 8, 16, 32, 64, 256, np.inf])
# Of more rows some parts are enough to choose one of them by.
_ROWS_TO_CHOOSE_BY = 2**18
# The most steps, the furthest that one goes in log p, how often it is halved.
_STEPS, _REACH, _HALVINGS = 50, 1.0, 10
# The size of the last step: what it leaves is of the order of its square. Where only the neighbourhood matters, less.
_END, NEAR = 1e-6, 1e-3
# Roots of one score that are further apart than this in log p are two.
_APART = 1e-2
# So many cells show whether there is one.
_CELLS_TO_LOOK_AT = 20_000
# Beyond this p r the variance of a click is no longer believed to vanish.
_MOST_CERTAIN = 0.9
# The steps in which r0 and a are made anew; after them they stand.
_GUESSES, _CHOICES = 3, 2
# A refit that is further away than this in log p is not left to one step.
_FAR = 0.1
# So many numbers of slopes by bucket are kept; beyond, one slope serves all.
_MOST_SLOPES = 4 * 10**7
# From here on, rankers are not drawn anew for each view: a query with its views has one for several.
STICKY_DISPERSION = 2.0
# Traffic that is off by this factor and hangs on a few buckets is taken from the others; by the lesser one where the
# equations fail besides. Sticky assignment of queries as unequal as they come stays below.
_LOPSIDED, _LOPSIDED_AND_LOST = 30.0, 3.0
# From as many queries of equal say a ranker on, the deletions alone tell how sure a standard error is.
_FEW_ASSIGNED = 25
_STICKY_NOTE = (
    "Views of one query were given to rankers together, not each by itself (dispersion {:.1f} where chance makes 1): "
    "relevance is guessed from how documents are ranked, not from their own clicks, which would bias the curve."
)
_LOST_NOTE = (
    "With guesses of relevance the equations have {}: this is the curve without them (relevance none). It is "
    "less precise, and if a few documents have most of the impressions, or rankers were not drawn by chance, not to be "
    "trusted: compare it with AllPairs."
)
Exposure = Literal["design", "observed"]
Relevance = Literal["guessed", "signature", "none"]
_EXPOSURES: tuple[Exposure, ...] = ("design", "observed")
_RELEVANCES: tuple[Relevance, ...] = ("guessed", "signature", "none")


@dataclass(frozen=True, eq=False)
class Comparison:
    """All that can be compared in a harvest, and the curve that comes of it.

    Attributes:
        rows: of all cells at two ranks or more.
        views: page views by bucket and ranker, (B, m).
        signatures: by which strata are guessed to be alike.
        relevance: how it is guessed, as `CrossFit` takes it.
        left_out: what is to be said of buckets that were left out, if any were.
        kept: which buckets of the harvest were not.
    """

    rows: Rows
    views: FloatArray
    signatures: Signatures
    relevance: str
    kept: BoolArray
    left_out: str | None = None

    @classmethod
    def of(cls, strata: Strata, *, by_design: bool, relevance: str) -> Comparison:
        """Return what can be compared in the strata of a harvest, without the few buckets that belie its traffic."""
        every = np.ones(strata.buckets, dtype=np.bool_)
        whole = cls(Rows.of(strata, by_design=by_design), strata.views, Signatures.of(strata), relevance, every)
        return whole._evened() if by_design else whole

    def _evened(self) -> Comparison:
        """Return the same without the buckets that the traffic hangs on, where that would make the curve theirs.

        One row with most of the impressions says of every other document that only its ranker would have shown it.
        """
        factor = lopsidedness(self.views)
        if factor <= _LOPSIDED_AND_LOST or (kept := even_buckets(self.views)) is None:
            return self
        if factor <= _LOPSIDED and np.isfinite(self._fit[0].x).all():
            return self
        note = say_left_out(self.views, kept)
        return replace(self, rows=self.rows.within(kept), views=self.views[kept], kept=kept, left_out=note)

    @property
    def buckets(self) -> int:
        """How many buckets hold anything."""
        return len(self.views)

    @property
    def clicked(self) -> bool:
        """Whether there is a click on anything that can be compared."""
        return bool(self.rows.clicks.any())

    @cached_property
    def traffic(self) -> FloatArray:
        """n_i of the whole log."""
        return np.asarray(self.views.sum(axis=0))

    @cached_property
    def dispersion(self) -> float:
        """Pearson's χ² of the views against what traffic promised, over its degrees of freedom; NaN if observed."""
        rows = self.rows
        if rows.shares is None or not len(rows):
            return float("nan")
        promised = rows.promised(self.traffic)
        expected = rows.summed(rows.views) * promised / np.maximum(rows.summed(promised), 1e-300)
        seen = expected > 0
        degrees = np.count_nonzero(seen) - np.count_nonzero(tally(rows.cell, seen, len(rows.bucket)))
        squares = (rows.views[seen] - expected[seen]) ** 2 / expected[seen]
        return float(squares.sum() / degrees) if degrees else float("nan")

    @property
    def sticky(self) -> bool:
        """Whether rankers were not drawn view by view, though a guess from the clicks of other views needs that."""
        return self.relevance == "guessed" and self.dispersion > STICKY_DISPERSION

    @cached_property
    def max_degrees(self) -> float:
        """As many as the ranker with the fewest has queries of equal say, if those are few and were given to it whole.

        A deletion moves the curve little by each of many queries; the luck of a few, to which ranker they went, is one.
        """
        few = effective_buckets(self.views) if self.dispersion > STICKY_DISPERSION else np.inf
        return few if few < _FEW_ASSIGNED else np.inf

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What is to be known of the curve."""
        lost = self._fit[1]
        said = (
            self.left_out,
            _STICKY_NOTE.format(self.dispersion) if self.sticky and not lost else None,
            _LOST_NOTE.format(lost) if lost else None,
        )
        return tuple(note for note in said if note)

    @cached_property
    def estimate(self) -> FloatArray:
        """p_k / p_1; NaN where nothing connects k to rank 1, 0 where it was never clicked."""
        return identified_curve(self._fit[0].x, self.links)

    @property
    def root(self) -> Root:
        """Where the score is 0, with what was guessed of relevance; NaN if there is no such place."""
        return self._fit[0]

    @cached_property
    def excess(self) -> float:
        """φ = tr(J⁻¹ Σ_b g_b g_bᵀ) / (M−1): how much more scores vary between buckets than information says."""
        ranks = connected_ranks(self.links)
        root, free = self.root, np.flatnonzero(ranks)[1:]
        score = Score.at(root.x, self.rows.where(ranks[self.rows.rank]), self.traffic, root.guess)
        gradient, information = score.gradient()[:, free], score.information()[np.ix_(free, free)]
        return float(np.trace(np.linalg.pinv(information, hermitian=True) @ (gradient.T @ gradient)) / len(free))

    @cached_property
    def links(self) -> BoolArray:
        """Whether something was clicked at one rank that is at another too: (M, M)."""
        return link_matrix(self.rows.links[0], self.rows.ranks)

    @cached_property
    def _fit(self) -> tuple[Root, str | None]:
        """The root, and what went wrong on the way to a better one."""
        ranks = connected_ranks(self.links)
        root, lost = self._fitted(self.rows.where(ranks[self.rows.rank]), ranks)
        # Without a guess all depends on traffic: no curve is better than that of a traffic that is none.
        return (Root(np.full(len(ranks), np.nan), None), None) if lost and self._lopsided else (root, lost)

    @cached_property
    def _lopsided(self) -> bool:
        return self.rows.shares is not None and lopsidedness(self.views) > _LOPSIDED_AND_LOST

    def _fitted(self, rows: Rows, ranks: BoolArray) -> tuple[Root, str | None]:
        plain = rows.merged if rows.alike else rows
        if rows.shares is None:
            # What is guessed cancels, and only weighs.
            rows = plain
        start = newton(naive(plain, ranks), plain, self.traffic, None, ranks, end=NEAR)
        if start is None:
            return Root(np.full(len(ranks), np.nan), None), None
        if self.relevance == "none":
            return self._without(start, plain, ranks), None
        x, trust = start, 0.0
        for step in range(_GUESSES):
            relevance = guess_relevance(rows, x, self.signatures)
            if step < _CHOICES and self.relevance == "guessed" and not self.sticky:
                trust = choose_trust(x, rows, relevance)
            guess = Guess(relevance, trust)
            ahead = newton(x, rows, self.traffic, guess, ranks, steps=1)
            if ahead is None:
                return self._without(start, plain, ranks), "no root near the start"
            x = ahead
        root = newton(x, rows, self.traffic, guess, ranks)
        if root is None:
            return self._without(start, plain, ranks), "no root near the start"
        if not unique(root, start, rows, self.traffic, guess, ranks):
            return self._without(start, plain, ranks), "a second root"
        return Root(root, guess), None

    def _without(self, start: FloatArray, rows: Rows, ranks: BoolArray) -> Root:
        """Return the root without a guess, from near it: that score is a concave function's and has one root."""
        x = newton(start, rows, self.traffic, None, ranks)
        return Root(np.full(len(ranks), np.nan) if x is None else x, None)

    @cached_property
    def _nearby(self) -> Nearby:
        ranks = connected_ranks(self.links)
        rows = self.rows.where(ranks[self.rows.rank])
        by_bucket = self.buckets * len(ranks) ** 2 <= _MOST_SLOPES
        return Nearby.of(self.root.x, rows, self.traffic, self.root.guess, by_bucket=by_bucket)

    def refits(self, weights: FloatArray) -> FloatArray:
        """Return the curves of buckets counted `weights` (n, B) times, r0 and a as they are.

        One step of Newton, unless it goes far, or the weights leave a rank or a ranker without what compared it.
        """
        answer = np.tile(self.estimate, (len(weights), 1))
        root = self._fit[0]
        if not np.isfinite(root.x).all():
            return answer
        near, traffic, free = self._nearby, weights @ self.views, np.flatnonzero(connected_ranks(self.links))[1:]
        changed = self._unlinked(weights > 0) | np.any((traffic > 0) != (self.traffic > 0), axis=1)
        # Only the shares of traffic matter.
        shares = traffic / traffic.sum(axis=1, keepdims=True) * self.traffic.sum() - self.traffic
        scores = (weights @ near.gradient + weights.mean(axis=1, keepdims=True) * (shares @ near.by_traffic.T))[:, free]
        if near.slopes.ndim == 3:
            slopes = np.tensordot(weights, near.slopes[:, free[:, None], free], axes=1)
        else:
            slopes = weights.mean(axis=1)[:, None, None] * near.slopes[free[:, None], free]
        # These are fitted anew: a batch with a singular slope in it would be lost.
        slopes[changed] = np.eye(len(free))
        steps = np.linalg.solve(slopes, scores[:, :, None])[:, :, 0]
        with np.errstate(over="ignore"):
            answer[:, free] = np.exp(root.x[free] + steps)
        for i in np.flatnonzero(changed | ~(np.abs(steps).max(axis=1) <= _FAR)):
            answer[i] = self._refit(weights[i])
        return answer

    def _unlinked(self, counted: BoolArray) -> BoolArray:
        """Return whether the buckets that count, (n, B), compare other ranks than all of them do."""
        keys, buckets = self.rows.links
        found, link = np.unique(keys, return_inverse=True)
        whole = connected_ranks(self.links)
        changed = np.zeros(len(counted), dtype=np.bool_)
        # What more buckets hold than are ever left out stays.
        rare = np.bincount(link, minlength=len(found)) <= (~counted).sum(axis=1).max(initial=0)
        link, buckets = link[rare[link]], buckets[rare[link]]
        for i, held in enumerate(counted if rare.any() else ()):
            left = (np.bincount(link[held[buckets]], minlength=len(found)) > 0) | ~rare
            if not left.all():
                changed[i] = not np.array_equal(connected_ranks(link_matrix(found[left], len(self.links))), whole)
        return changed

    def _refit(self, weights: FloatArray) -> FloatArray:
        """Return the curve of weights of the buckets, by all the steps that it takes."""
        traffic = weights @ self.views
        rows = self.rows.weighted(weights)
        rows = rows.where(rows.promised(traffic) > 0)
        links = link_matrix(rows.links[0], rows.ranks)
        ranks = connected_ranks(links)
        root = self._fit[0]
        start = np.where(ranks, root.x, 0.0)
        x = newton(start, rows.where(ranks[rows.rank]), traffic, root.guess, ranks)
        return identified_curve(np.full(len(ranks), np.nan) if x is None else x, links)

    def reasons(self) -> list[str | None]:
        """Return, for each rank, why it cannot be compared with rank 1."""
        links = self.links
        if not links[0].any():
            return ["no click at rank 1 on a document that is also at another rank"] * len(links)
        if connected_ranks(links).any() and np.isnan(self._fit[0].x).any():
            lopsided = say_lopsided(self.views) if self._lopsided else None
            return [lopsided or "no curve fits: the equations have no root"] * len(links)
        ahead, back = reachable_ranks(links), reachable_ranks(links.T)
        return [
            "no document at this rank is at another rank by another ranker, with clicks"
            if not (links[k].any() or links[:, k].any())
            else "no chain of documents with clicks connects it to rank 1"
            if not (ahead[k] or back[k])
            else "what connects it to rank 1 is clicked on one side only"
            for k in range(len(links))
        ]


class CrossFit(Estimator[Comparison]):
    """Each view's click against what is expected there, given a guess of relevance from all other views of its kind.

    Views are compared within a bucket and stratum: documents that all rankers treat alike. There, where a view was
    shown is decided by which ranker was drawn, so that the guess may be wrong without harm; the better it is, the
    narrower the interval. It needs no bound on p, and each view must have drawn its ranker independently.

    Where the rankers' ranks are not known (replay), exposure is as observed, and the guess only weighs the views.

    Arguments:
        exposure: "design", what traffic promised each rank, or "observed", the impressions it had. By default the
            design where ranks are known.
        relevance: "guessed" from the clicks of the stratum and of those that rankers treat likewise; by "signature",
            from the latter alone, which sticky assignment needs; or "none". With none, exposure by design and as
            observed give the two forms of conditional Poisson regression.
        pool: estimate segments together. Each is drawn toward the curve of all as far as the data say that they are
            alike, and has a number at every rank that any of them tells. Their intervals allow for both.
        level: the coverage of the intervals.
        interval: "jackknife", which leaves out each of the harvest's buckets, the percentiles of a "bootstrap" over
            them, or None for no interval.
        bootstrap: the number of resamples of the bootstrap.
        seed: of the resamples. Nothing else is drawn.

    After `fit`, `dispersion_` says how much more unequally than by chance views were assigned to rankers: about 1 where
    each was drawn independently, about as many as a query has views where one ranker served them all. It is NaN
    where exposure is as observed.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=2000)))
        >>> CrossFit(interval=None).fit(posbias.harvest(log)).propensity_[:3].round(2)
        array([1.  , 0.5 , 0.35])
    """

    name = "cross-fit"
    no_click_reason = "no click at rank {rank} on documents that are also at others"

    dispersion_: float

    def __init__(
        self,
        *,
        exposure: Exposure | None = None,
        relevance: Relevance = "guessed",
        pool: bool = False,
        level: float = DEFAULT_LEVEL,
        interval: Interval | None = "jackknife",
        bootstrap: int = 1000,
        seed: int = 0,
    ) -> None:
        super().__init__(level=level, interval=interval, bootstrap=bootstrap, seed=seed)
        self.exposure = exposure
        self.relevance = relevance
        self.pool = pool

    def _check(self) -> None:
        super()._check()
        if self.exposure is not None and not (isinstance(self.exposure, str) and self.exposure in _EXPOSURES):
            raise EstimateError(f"exposure must be one of {listed(_EXPOSURES)}, or None, not {self.exposure!r}.")
        if not isinstance(self.relevance, str) or self.relevance not in _RELEVANCES:
            raise EstimateError(f"relevance must be one of {listed(_RELEVANCES)}, not {self.relevance!r}.")
        if not isinstance(self.pool, bool):
            raise EstimateError(f"pool must be True or False, not {self.pool!r}.")

    def count(self, harvest: Harvest) -> Comparison:
        """Return the views and clicks of each bucket and stratum by rank, and what traffic promised there."""
        strata = harvest.strata()
        if self.exposure == "design" and not strata.by_design:
            raise EstimateError(
                "In replay it is not known where the rankers that were not shown would have put a document, so that "
                "there is no exposure by design. Leave it out, or log every ranker's rank (ranks or rankings)."
            )
        by_design = strata.by_design and self.exposure != "observed"
        return Comparison.of(strata, by_design=by_design, relevance=self.relevance)

    def curves(self, counts: Comparison, weights: FloatArray) -> FloatArray:
        """Return the curve, and those of other weights of the buckets by one step from it."""
        weights = np.asarray(weights, dtype=np.float64)
        if weights.ndim == 1 and np.all(weights == 1):
            self.dispersion_, self.notes_ = counts.dispersion, counts.notes
            return counts.estimate
        return np.asarray(counts.refits(np.atleast_2d(weights)).reshape(*weights.shape[:-1], -1))

    def _fit_segments(self, harvest: Harvest, counts: Comparison) -> Self:
        """Estimate the curve of each segment, all together if they are to be pooled."""
        if not (self.pool and harvest.by):
            return super()._fit_segments(harvest, counts)
        from posbias.estimators.pooling import PooledSegments

        self.by_ = harvest.by
        pooled, reasons = PooledSegments.of(harvest, counts), self.reasons(counts)
        level, given = None if self.interval is None else self.level, self.parameters()
        intervals = pooled.intervals(level, self.degrees_of_freedom_)
        told = zip(harvest.segments, intervals, pooled.notes(), strict=True)
        for i, (key, own, note) in enumerate(told):
            part = type(self)(**given)
            traffic = dict(zip(harvest.rankers, map(int, pooled.traffic[i]), strict=True))
            seen = ReportedCounts(pooled.impressions[i], pooled.clicks[i], traffic, None)
            curve = np.exp(pooled.log_propensity[i])
            part._store(seen, curve, reasons, own)
            part.dispersion_, part.notes_ = self.dispersion_, (note,)
            self.segments_[key] = part
        return self

    def max_degrees(self, counts: Comparison) -> float:
        """Return as many as the ranker that fewest queries tell of has queries of equal say, if they were assigned."""
        return counts.max_degrees

    def assumption_notes(self, harvest: Harvest, counts: Comparison) -> tuple[str, ...]:
        """Say where traffic was not what it is in all, which a guess of relevance bears."""
        if counts.rows.shares is None or counts.left_out or (uneven := explain_uneven_traffic(harvest)) is None:
            return ()
        if self.relevance == "none":
            return (f"{uneven} Without guesses of relevance the curve is wrong then.",)
        return (f"{uneven} Guesses of relevance make up for most of it; to be sure, estimate each period by itself.",)

    def reasons(self, counts: Comparison) -> Reasons:
        """Say what keeps a rank from being compared with rank 1."""
        return counts.reasons()


@dataclass(frozen=True, eq=False)
class Rows:
    """One row for each cell and rank that can be compared, sorted by cell.

    Attributes:
        cell: counts from 0 without gaps; each has two rows or more.
        rank: from 0.
        views: N.
        clicks: C.
        share: which of the `shares` the row has. `shares @ n` are the page views D that would show the cell there;
            without shares D is N, what was observed.
        bucket: of each cell.
        stratum: of each cell, numbered alike in all buckets.
        times: how often each cell counts.
        alike: whether all cells of a stratum share their exposure in the same way, so that they could be one.
        buckets: B.
        ranks: M.
    """

    cell: IntArray
    rank: IntArray
    views: FloatArray
    clicks: FloatArray
    share: IntArray
    shares: FloatArray | None
    bucket: IntArray
    stratum: IntArray
    times: FloatArray
    alike: bool
    buckets: int
    ranks: int

    @classmethod
    def of(cls, strata: Strata, *, by_design: bool) -> Rows:
        """Return the rows of a harvest's strata; D is N unless exposure is taken `by_design`."""
        cells = strata.cells if by_design else strata.cells.where(strata.cells.impressions > 0)
        first, number = group([cells.bucket, cells.stratum])
        begins, row = group([number, cells.rank])
        share, shares = np.zeros(len(begins), dtype=np.int64), None
        if by_design and len(begins):
            share, shares = ranker_shares(replace(cells, stratum=number), row, len(begins), strata.views.shape[1])
        rows = cls(
            cell=number[begins],
            rank=cells.rank[begins] - 1,
            views=tally(row, cells.impressions, len(begins)),
            clicks=tally(row, cells.clicks, len(begins)),
            share=share,
            shares=shares,
            bucket=cells.bucket[first],
            stratum=cells.stratum[first],
            times=np.ones(len(first)),
            alike=by_design or not strata.by_design,
            buckets=strata.buckets,
            ranks=strata.max_rank,
        )
        return rows.where(np.ones(len(begins), dtype=np.bool_))

    def where(self, kept: BoolArray) -> Rows:
        """Return some of the rows, of the cells that have two of them or more."""
        several = tally(self.cell, kept, len(self.bucket)) > 1
        kept = kept & several[self.cell]
        if kept.all():
            return self
        number = np.cumsum(several) - 1
        return replace(
            self,
            cell=number[self.cell[kept]],
            rank=self.rank[kept],
            views=self.views[kept],
            clicks=self.clicks[kept],
            share=self.share[kept],
            bucket=self.bucket[several],
            stratum=self.stratum[several],
            times=self.times[several],
        )

    @cached_property
    def merged(self) -> Rows:
        """The same with the cells of a stratum made one, in no bucket: as good where no click tells of another."""
        begins, row = group([self.kind, self.rank])
        strata, cell = np.unique(self.kind[begins], return_inverse=True)
        counts = [tally(row, self.counted(values), len(begins)) for values in (self.views, self.clicks)]
        return replace(
            self,
            cell=cell,
            rank=self.rank[begins],
            views=counts[0],
            clicks=counts[1],
            share=self.share[begins],
            bucket=np.zeros(len(strata), dtype=np.int64),
            stratum=strata,
            times=np.ones(len(strata)),
        )

    def weighted(self, weights: FloatArray) -> Rows:
        """Return the rows of the buckets that have a weight, each counted so often."""
        kept = self.where((weights > 0)[self.bucket][self.cell])
        return replace(kept, times=kept.times * weights[kept.bucket])

    def within(self, kept: BoolArray) -> Rows:
        """Return the rows of some of the buckets, which are numbered anew."""
        rows, number = self.where(kept[self.bucket][self.cell]), np.cumsum(kept) - 1
        return replace(rows, bucket=number[rows.bucket], buckets=int(kept.sum()))

    def __len__(self) -> int:
        return len(self.cell)

    @cached_property
    def parts(self) -> list[Rows]:
        """The rows in parts that stay in the processor's cache, each of whole cells."""
        if len(self) <= _PART:
            return [self]
        ends = self.starts[np.searchsorted(self.starts, np.arange(_PART, len(self), _PART)) - 1]
        return [self._between(*rows) for rows in pairwise([0, *ends.tolist(), len(self)]) if rows[0] < rows[1]]

    def _between(self, start: int, stop: int) -> Rows:
        rows, cells = slice(start, stop), slice(int(self.cell[start]), int(self.cell[stop - 1]) + 1)
        return replace(
            self,
            cell=self.cell[rows] - cells.start,
            rank=self.rank[rows],
            views=self.views[rows],
            clicks=self.clicks[rows],
            share=self.share[rows],
            bucket=self.bucket[cells],
            stratum=self.stratum[cells],
            times=self.times[cells],
        )

    def held_buckets(self) -> tuple[slice, Rows]:
        """Return the buckets from the first to the last that have a cell, and the rows with these alone."""
        first, last = int(self.bucket[0]), int(self.bucket[-1])
        return slice(first, last + 1), replace(self, bucket=self.bucket - first, buckets=last + 1 - first)

    @cached_property
    def starts(self) -> IntArray:
        """Where each cell begins."""
        return np.flatnonzero(np.diff(self.cell, prepend=-1))

    @cached_property
    def place(self) -> IntArray:
        """Bucket and rank of each row as one number."""
        return self.bucket[self.cell] * self.ranks + self.rank

    @cached_property
    def kind(self) -> IntArray:
        """The stratum of each row."""
        return self.stratum[self.cell]

    def summed(self, values: FloatArray) -> FloatArray:
        """Return the sum of values over each cell, at each of its rows."""
        return np.asarray(tally(self.cell, values, len(self.bucket))[self.cell])

    def counted(self, values: FloatArray) -> FloatArray:
        """Return values of rows, each as often as it counts."""
        return values * self.times[self.cell]

    @cached_property
    def all_clicks(self) -> FloatArray:
        """C_c, at each row of the cell."""
        return self.summed(self.clicks)

    def promised(self, traffic: FloatArray) -> FloatArray:
        """Return D for page views n_i by ranker, or by bucket and ranker: what they promised, or what was observed."""
        if self.shares is None:
            return self.views
        if traffic.ndim == 1:
            return np.asarray((self.shares @ traffic)[self.share])
        return np.asarray(np.einsum("ij,ij->i", self.shares[self.share], traffic[self.bucket[self.cell]]))

    def at_ranks(self, values: FloatArray) -> FloatArray:
        """Return, at each row, the value of its rank, (M,), or of its bucket and rank, (B, M)."""
        return np.asarray(values[self.rank] if values.ndim == 1 else values[self.bucket[self.cell], self.rank])

    def by_rank(self, values: FloatArray) -> FloatArray:
        """Return the sum of values by rank: (M,)."""
        return tally(self.rank, self.counted(values), self.ranks)

    def by_bucket(self, values: FloatArray) -> FloatArray:
        """Return the sum of values by bucket and rank: (B, M)."""
        return tally(self.place, self.counted(values), self.buckets * self.ranks).reshape(self.buckets, self.ranks)

    def products(self, *terms: tuple[FloatArray, FloatArray], by_bucket: bool) -> FloatArray:
        """Return Σ_c left_ck right_cl, summed over terms, for each two ranks: (M, M), or (B, M, M) by bucket."""
        if not by_bucket and self.ranks <= _DENSE:
            tables = [self._table(self.counted(left)).T @ self._table(right) for left, right in terms]
            return np.asarray(np.sum(tables, axis=0))
        place = self.place if by_bucket else self.rank
        size = (self.buckets if by_bucket else 1) * self.ranks**2
        counted = [(self.counted(left), right) for left, right in terms]
        answer = tally(place * self.ranks + self.rank, _added([left * right for left, right in counted]), size)
        for one, two in self.pairs():
            values = _added([left[one] * right[two] for left, right in counted])
            answer += tally(place[one] * self.ranks + self.rank[two], values, size)
        return answer.reshape(-1, self.ranks, self.ranks) if by_bucket else answer.reshape(self.ranks, self.ranks)

    def pairs(self) -> Iterator[tuple[IntArray, IntArray]]:
        """Yield all ordered pairs of different rows of one cell, a part at a time."""
        for step in range(1, len(self)):
            # Rows that are so many apart.
            upper = np.flatnonzero(self.cell[step:] == self.cell[:-step])
            if not len(upper):
                break
            yield upper, upper + step
            yield upper + step, upper

    @cached_property
    def links(self) -> tuple[IntArray, IntArray]:
        """(k, l) as k M + l, and the bucket, wherever a cell of the bucket was clicked at k and is at l too."""
        size = self.ranks**2
        parts = [np.zeros(0, dtype=np.int64)]
        for one, two in self.pairs():
            clicked = self.clicks[one] > 0
            one, two = one[clicked], two[clicked]
            parts.append(distinct(self.place[one] * self.ranks + self.rank[two], self.buckets * size))
        found = distinct(np.concatenate(parts), self.buckets * size)
        return found % size, found // size

    def _table(self, values: FloatArray) -> FloatArray:
        """Return values by cell and rank, 0 where there is no row."""
        table = np.zeros(len(self.bucket) * self.ranks)
        table[self._where] = values
        return table.reshape(-1, self.ranks)

    @cached_property
    def _where(self) -> IntArray:
        return self.cell * self.ranks + self.rank


def _added(parts: list[FloatArray]) -> FloatArray:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def lopsidedness(views: FloatArray) -> float:
    """Return by which factor the odds of two rankers' page views, (B, m), are off their odds in a bucket as it comes.

    All buckets have the same say in the latter, so that no query can move it far. It is about 1 where each view draws
    its ranker, however few queries have most of the views; in sticky assignment it is off by the luck of those few.

    Example:
        >>> views = np.array([[9.0, 11.0], [11.0, 9.0], [10.0, 10.0], [10.0, 10.0]])
        >>> lopsidedness(views), lopsidedness(views + [[0, 0], [0, 0], [0, 0], [960, 0]]).__round__(1)
        (1.0, 15.2)
    """
    return float(_factors(views.sum(axis=0)[None], _usual(views))[0]) if views.any() else 1.0


def _factors(traffic: FloatArray, usual: FloatArray) -> FloatArray:
    """Return the largest factor between odds of traffic, (n, m), and usual odds; infinite where a ranker has none."""
    seen = usual > 0
    with np.errstate(divide="ignore"):
        off = np.log(traffic[:, seen]) - np.log(usual[seen])
    with np.errstate(invalid="ignore"):
        factor = np.exp(off.max(axis=1) - off.min(axis=1))
    return np.asarray(np.where(np.isnan(factor), np.inf, factor))


def _usual(views: FloatArray) -> FloatArray:
    """Return the mean over buckets of each ranker's share of the views, (m,)."""
    served = views[views.sum(axis=1) > 0]
    return np.asarray((served / served.sum(axis=1, keepdims=True)).mean(axis=0))


def even_buckets(views: FloatArray) -> BoolArray | None:
    """Return which buckets are left without the few that have most of the views and make traffic lopsided.

    None if it does not hang on a few: it stays lopsided without them, or they have not most of the views.
    """
    kept = np.ones(len(views), dtype=np.bool_)
    for _ in range(max(1, int(_MOST_LEFT_OUT * len(views)))):
        # Without one more bucket, each of those that are left in turn.
        factors = _factors(views[kept].sum(axis=0) - views[kept], _usual(views))
        worst = np.flatnonzero(kept)[int(np.argmin(factors))]
        kept[worst] = False
        if factors.min() <= _EVEN:
            return kept if views[~kept].sum() > _MOST_VIEWS * views.sum() else None
    return None


def say_left_out(views: FloatArray, kept: BoolArray) -> str:
    """Say which part of the buckets was left out, and why."""
    share = int(100 - 100 * views[kept].sum() / views.sum())
    return (
        f"{np.count_nonzero(~kept)} of {len(kept)} buckets of queries, with {share}% of the page views, left out: "
        "rankers served them in other proportions than the rest, so that traffic was off by a factor of "
        f"{lopsidedness(views):,.0f}. Look for a query, or an aggregated row, with most of the impressions."
    )


def say_lopsided(views: FloatArray) -> str:
    """Say why there is no curve where traffic hangs on more buckets than may be left out."""
    return (
        "no curve fits the traffic: queries with many page views were served by rankers in other proportions than the "
        f"rest, by a factor of {lopsidedness(views):,.0f}, and are too many to be left out; compare with AllPairs, or "
        "with exposure as observed"
    )


def effective_buckets(views: FloatArray) -> float:
    """Return how many buckets of equal views the page views of a ranker are as good as, of the one with the fewest.

    Example:
        >>> effective_buckets(np.array([[5.0, 9.0], [5.0, 1.0], [5.0, 0.0], [5.0, 0.0]])).__round__(2)
        1.22
    """
    served = views[:, views.any(axis=0)]
    return float((served.sum(axis=0) ** 2 / (served**2).sum(axis=0)).min(initial=len(views)))


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


def newton(
    x: FloatArray,
    rows: Rows,
    traffic: FloatArray,
    guess: Guess | None,
    ranks: BoolArray,
    steps: int = _STEPS,
    end: float = _END,
) -> FloatArray | None:
    """Return the x near this one at which the score of some ranks is 0, x = 0 at rank 1; None if Newton is lost.

    A step must bring the next one down, measured by this one's slope, or it is halved. After `steps` fewer than all
    it returns how far it came.
    """
    free = np.flatnonzero(ranks)[1:]
    if not len(free):
        return None
    inner = np.ix_(free, free)
    gradient, slope = score_and_slope(x, rows, traffic, guess)
    for _ in range(steps):
        try:
            inverse = np.linalg.inv(slope[inner])
        except np.linalg.LinAlgError:
            return None
        step = inverse @ gradient[free]
        size = np.abs(step).max()
        if not np.isfinite(size):
            return None
        scale = min(1.0, _REACH / size) if size else 1.0
        for _ in range(_HALVINGS):
            ahead = x.copy()
            ahead[free] += scale * step
            if size < end:
                return ahead
            gradient, slope = score_and_slope(ahead, rows, traffic, guess)
            if np.abs(inverse @ gradient[free]).max() < (1 - scale / 4) * size:
                break
            scale /= 2
        else:
            return None
        x = ahead
    return x if steps < _STEPS else None


def score_and_slope(
    x: FloatArray, rows: Rows, traffic: FloatArray, guess: Guess | None
) -> tuple[FloatArray, FloatArray]:
    """Return the score of log p, (M,), and −∂score/∂x, (M, M)."""

    def of(part: Rows) -> tuple[FloatArray, FloatArray]:
        score = Score.at(x, part, traffic, guess)
        return part.by_rank(score.value), score.slope()

    gradient, slope = np.zeros(rows.ranks), np.zeros((rows.ranks, rows.ranks))
    for by_rank, by_ranks in at_once(of, rows.parts):
        gradient += by_rank
        slope += by_ranks
    return gradient, slope


@dataclass(frozen=True)
class Score:
    """The terms of the score at one x, by row."""

    rows: Rows
    value: FloatArray
    weight: FloatArray
    total: FloatArray
    steep: FloatArray
    diagonal: FloatArray
    pull: FloatArray | None
    exposure: FloatArray
    odds: FloatArray
    certainty: FloatArray
    promised: FloatArray

    @classmethod
    def at(cls, x: FloatArray, rows: Rows, traffic: FloatArray, guess: Guess | None) -> Score:
        """Return the score at x = log p; without a guess, that of ConditionalPoisson: t = 0 and f = 1.

        Both x and the traffic may be one for all buckets, or each bucket's own.
        """
        p = rows.at_ranks(np.exp(x))
        promised = rows.promised(traffic)
        exposure = rows.views * p
        relevance = np.zeros(len(rows))
        f, steep = np.ones(len(rows)), np.zeros(len(rows))
        if guess is not None:
            relevance = guess.at(rows)
            chance = p * relevance
            f = 1 / (1 - np.minimum(chance, _MOST_CERTAIN))
            steep = np.where(chance < _MOST_CERTAIN, chance * f, 0.0)
        if guess is None or rows.shares is None:
            # As observed, what is guessed cancels.
            residual, diagonal, pull = f * rows.clicks, steep * f * rows.clicks, None
        else:
            b = guess.trust
            seen = b * np.maximum(rows.summed(exposure) - p, 0) + 1
            expected = p * (rows.views * (b * rows.all_clicks + relevance) - b * rows.clicks) / seen
            residual, pull = f * (rows.clicks - expected), f * expected * b / seen
            diagonal = steep * residual - f * expected - p * pull
        total = rows.summed(residual)
        odds = p * f
        weight = promised * odds
        weight = weight / np.maximum(rows.summed(weight), 1e-300)
        return cls(rows, residual - weight * total, weight, total, steep, diagonal, pull, exposure, odds, f, promised)

    def gradient(self) -> FloatArray:
        """Return the score of log p by bucket and rank: (B, M)."""
        return self.rows.by_bucket(self.value)

    def slope(self, *, by_bucket: bool = False) -> FloatArray:
        """Return −∂score/∂x: (M, M), or (B, M, M) by bucket."""
        rows, w = self.rows, self.weight
        scaled = w * (1 + self.steep) * self.total
        own = (rows.by_bucket if by_bucket else rows.by_rank)(scaled - self.diagonal)
        terms = [(w, self.diagonal - scaled)]
        if self.pull is not None:
            terms.append((w * rows.summed(self.pull) - self.pull, self.exposure))
        spread = rows.products(*terms, by_bucket=by_bucket)
        index = np.arange(rows.ranks)
        spread[..., index, index] += own
        return spread

    def information(self, *, by_bucket: bool = False) -> FloatArray:
        """Return what is known of log p by the clicks alone, Σ_c (Σ C f)(diag w − w wᵀ): (M, M), or (B, M, M).

        It is about the slope, and other than that never negative.
        """
        rows, w = self.rows, self.weight
        clicked = rows.summed(rows.clicks * self.certainty)
        spread = -rows.products((w * clicked, w), by_bucket=by_bucket)
        index = np.arange(rows.ranks)
        spread[..., index, index] += (rows.by_bucket if by_bucket else rows.by_rank)(w * clicked)
        return spread

    def traffic_slope(self, rankers: int, *, by_bucket: bool = False) -> FloatArray:
        """Return ∂score/∂n: how the score of a rank moves with the page views of a ranker, (M, m) or (B, M, m)."""
        rows = self.rows
        answer = np.zeros((*([rows.buckets] if by_bucket else []), rows.ranks, rankers))
        if rows.shares is None:
            return answer
        expected = np.maximum(rows.summed(self.promised * self.odds), 1e-300)
        for ranker in range(rankers):
            gain = rows.shares[:, ranker][rows.share] * self.odds
            moved = -self.total * (gain - self.weight * rows.summed(gain)) / expected
            answer[..., ranker] = (rows.by_bucket if by_bucket else rows.by_rank)(moved)
        return answer


def naive(rows: Rows, ranks: BoolArray) -> FloatArray:
    """Return log click rates relative to that of rank 1: somewhere to start from."""
    clicks, views = rows.by_rank(rows.clicks), rows.by_rank(rows.views)
    rate = np.divide(clicks, views, out=np.ones(len(ranks)), where=ranks & (clicks > 0))
    return np.where(ranks, np.log(rate / rate[0]), 0.0)


def unique(
    root: FloatArray, start: FloatArray, rows: Rows, traffic: FloatArray, guess: Guess, ranks: BoolArray
) -> bool:
    """Return whether Newton from other places, a flatter curve and a steeper one, finds no other root.

    On a large log it looks at some of the buckets, whose score has the same shape.
    """
    every = max(1, len(rows.bucket) // _CELLS_TO_LOOK_AT)
    if every > 1:
        rows = rows.weighted((np.arange(rows.buckets) % every == 0).astype(np.float64))
        nearby = newton(root, rows, traffic, guess, ranks, end=NEAR)
        if nearby is None:
            return True
        root = nearby
    for factor in (0.5, 1.5):
        other = newton(factor * start, rows, traffic, guess, ranks, end=NEAR)
        if other is not None and np.abs(other - root)[ranks].max() > _APART:
            return False
    return True


class Nearby(NamedTuple):
    """The score around an x, for refits of the buckets."""

    gradient: FloatArray  # by bucket and rank, (B, M)
    slopes: FloatArray  # by bucket, (B, M, M), or of the whole log, (M, M)
    by_traffic: FloatArray  # (M, m)

    @classmethod
    def of(cls, x: FloatArray, rows: Rows, traffic: FloatArray, guess: Guess | None, *, by_bucket: bool) -> Nearby:
        """Return it at x, for page views and a guess that are those of all buckets."""

        def around(part: Rows) -> Nearby:
            score = Score.at(x, part, traffic, guess)
            return cls(score.gradient(), score.slope(by_bucket=by_bucket), score.traffic_slope(len(traffic)))

        whole = cls(
            np.zeros((rows.buckets, rows.ranks)),
            np.zeros((*([rows.buckets] if by_bucket else []), rows.ranks, rows.ranks)),
            np.zeros((rows.ranks, len(traffic))),
        )
        held, parts = zip(*(part.held_buckets() for part in rows.parts), strict=True)
        for buckets, part in zip(held, at_once(around, parts), strict=True):
            whole.gradient[buckets] += part.gradient
            whole.slopes[buckets if by_bucket else ...] += part.slopes
            whole.by_traffic[:] += part.by_traffic
        return whole


class Root(NamedTuple):
    """Where Newton ended, and with which guess."""

    x: FloatArray
    guess: Guess | None
