"""How CrossFit is fitted: from what can be compared to a curve, what is to be known of it, and refits by one step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from posbias.arrays import BoolArray, FloatArray, tally
from posbias.estimators import lopsided_traffic
from posbias.estimators.compared_rows import Rows
from posbias.estimators.rank_links import component, curve_of, linked, reachable
from posbias.estimators.relevance_guesses import Guess, Signatures, choose_trust, guess_relevance
from posbias.estimators.score_roots import NEAR, naive, newton, unique
from posbias.estimators.view_scores import Nearby, Score
from posbias.harvesting.equal_strata import Strata

# The steps in which r0 and a are made anew; after them they stand.
_GUESSES, _CHOICES = 3, 2
# A refit that is further away than this in log p is not left to one step.
_FAR = 0.1
# So many numbers of slopes by bucket are kept; beyond, one slope serves all.
_MOST_SLOPES = 4 * 10**7
# From here on, rankers are not drawn anew for each view: a query with its views has one for several.
STICKY = 2.0
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


class Root(NamedTuple):
    """Where Newton ended, and with which guess."""

    x: FloatArray
    guess: Guess | None


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
        factor = lopsided_traffic.lopsidedness(self.views)
        if factor <= _LOPSIDED_AND_LOST or (kept := lopsided_traffic.even_buckets(self.views)) is None:
            return self
        if factor <= _LOPSIDED and np.isfinite(self._fit[0].x).all():
            return self
        note = lopsided_traffic.say_left_out(self.views, kept)
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
        return self.relevance == "guessed" and self.dispersion > STICKY

    @cached_property
    def most_degrees(self) -> float:
        """As many as the ranker with the fewest has queries of equal say, if those are few and were given to it whole.

        A deletion moves the curve little by each of many queries; the luck of a few, to which ranker they went, is one.
        """
        few = lopsided_traffic.effective_buckets(self.views) if self.dispersion > STICKY else np.inf
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
        return curve_of(self._fit[0].x, self.links)

    @property
    def root(self) -> Root:
        """Where the score is 0, with what was guessed of relevance; NaN if there is no such place."""
        return self._fit[0]

    @cached_property
    def excess(self) -> float:
        """φ = tr(J⁻¹ Σ_b g_b g_bᵀ) / (M−1): how much more scores vary between buckets than information says."""
        ranks = component(self.links)
        root, free = self.root, np.flatnonzero(ranks)[1:]
        score = Score.at(root.x, self.rows.where(ranks[self.rows.rank]), self.traffic, root.guess)
        gradient, information = score.gradient()[:, free], score.information()[np.ix_(free, free)]
        return float(np.trace(np.linalg.pinv(information, hermitian=True) @ (gradient.T @ gradient)) / len(free))

    @cached_property
    def links(self) -> BoolArray:
        """Whether something was clicked at one rank that is at another too: (M, M)."""
        return linked(self.rows.links[0], self.rows.ranks)

    @cached_property
    def _fit(self) -> tuple[Root, str | None]:
        """The root, and what went wrong on the way to a better one."""
        ranks = component(self.links)
        root, lost = self._fitted(self.rows.where(ranks[self.rows.rank]), ranks)
        # Without a guess all depends on traffic: no curve is better than that of a traffic that is none.
        return (Root(np.full(len(ranks), np.nan), None), None) if lost and self._lopsided else (root, lost)

    @cached_property
    def _lopsided(self) -> bool:
        return self.rows.shares is not None and lopsided_traffic.lopsidedness(self.views) > _LOPSIDED_AND_LOST

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
        ranks = component(self.links)
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
        near, traffic, free = self._nearby, weights @ self.views, np.flatnonzero(component(self.links))[1:]
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
        whole = component(self.links)
        changed = np.zeros(len(counted), dtype=np.bool_)
        # What more buckets hold than are ever left out stays.
        rare = np.bincount(link, minlength=len(found)) <= (~counted).sum(axis=1).max(initial=0)
        link, buckets = link[rare[link]], buckets[rare[link]]
        for i, held in enumerate(counted if rare.any() else ()):
            left = (np.bincount(link[held[buckets]], minlength=len(found)) > 0) | ~rare
            if not left.all():
                changed[i] = not np.array_equal(component(linked(found[left], len(self.links))), whole)
        return changed

    def _refit(self, weights: FloatArray) -> FloatArray:
        """Return the curve of weights of the buckets, by all the steps that it takes."""
        traffic = weights @ self.views
        rows = self.rows.weighted(weights)
        rows = rows.where(rows.promised(traffic) > 0)
        links = linked(rows.links[0], rows.ranks)
        ranks = component(links)
        root = self._fit[0]
        start = np.where(ranks, root.x, 0.0)
        x = newton(start, rows.where(ranks[rows.rank]), traffic, root.guess, ranks)
        return curve_of(np.full(len(ranks), np.nan) if x is None else x, links)

    def reasons(self) -> list[str | None]:
        """Return, for each rank, why it cannot be compared with rank 1."""
        links = self.links
        if not links[0].any():
            return ["no click at rank 1 on a document that is also at another rank"] * len(links)
        if component(links).any() and np.isnan(self._fit[0].x).any():
            lopsided = lopsided_traffic.say_lopsided(self.views) if self._lopsided else None
            return [lopsided or "no curve fits: the equations have no root"] * len(links)
        ahead, back = reachable(links), reachable(links.T)
        return [
            "no document at this rank is at another rank by another ranker, with clicks"
            if not (links[k].any() or links[:, k].any())
            else "no chain of documents with clicks connects it to rank 1"
            if not (ahead[k] or back[k])
            else "what connects it to rank 1 is clicked on one side only"
            for k in range(len(links))
        ]
