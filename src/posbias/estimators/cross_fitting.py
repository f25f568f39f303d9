"""How CrossFit is fitted: which ranks can be compared, Newton's method with its guards, and refits by one step."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from posbias.arrays import BoolArray, FloatArray, IntArray, tally
from posbias.estimators.view_scores import (
    Guess,
    Rows,
    Score,
    Signatures,
    choose_trust,
    guess_relevance,
    score_and_slope,
)
from posbias.harvesting.equal_strata import Strata

# Newton: the most steps, the furthest that one goes in log p, how often it is halved.
_STEPS, _REACH, _HALVINGS = 50, 1.0, 10
# The size of the last step: what it leaves is of the order of its square. Where only the neighbourhood matters, less.
_END, _NEAR = 1e-6, 1e-3
# The steps in which r0 and a are made anew; after them they stand.
_GUESSES, _CHOICES = 3, 2
# Roots of one score that are further apart than this in log p are two.
_APART = 1e-2
# So many cells show whether there is one.
_CELLS_TO_LOOK_AT = 20_000
# A refit that is further away than this in log p is not left to one step.
_FAR = 0.1
# So many numbers of slopes by bucket are kept; beyond, one slope serves all.
_MOST_SLOPES = 4 * 10**7
# From here on, rankers are not drawn anew for each view: a query with its views has one for several.
STICKY = 2.0

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


class Nearby(NamedTuple):
    """The score around the root."""

    free: IntArray  # the ranks compared, but the first
    gradient: FloatArray  # by bucket and rank, (B, M)
    slopes: FloatArray  # by bucket, (B, M, M), or of the whole log, (M, M)
    by_traffic: FloatArray  # (M, m)


@dataclass(frozen=True, eq=False)
class Comparison:
    """All that can be compared in a harvest, and the curve that comes of it.

    Attributes:
        rows: of all cells at two ranks or more.
        views: page views by bucket and ranker, (B, m).
        signatures: by which strata are guessed to be alike.
        relevance: how it is guessed, as `CrossFit` takes it.
    """

    rows: Rows
    views: FloatArray
    signatures: Signatures
    relevance: str

    @classmethod
    def of(cls, strata: Strata, *, by_design: bool, relevance: str) -> Comparison:
        """Return what can be compared in the strata of a harvest."""
        return cls(Rows.of(strata, by_design=by_design), strata.views, Signatures.of(strata), relevance)

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
    def notes(self) -> tuple[str, ...]:
        """What is to be known of the curve."""
        notes = (_STICKY_NOTE.format(self.dispersion),) if self.sticky else ()
        lost = self._fit[1]
        return (*notes, _LOST_NOTE.format(lost)) if lost else notes

    @cached_property
    def estimate(self) -> FloatArray:
        """p_k / p_1; NaN where nothing connects k to rank 1, 0 where it was never clicked."""
        return curve_of(self._fit[0].x, self.links)

    @cached_property
    def links(self) -> BoolArray:
        """Whether something was clicked at one rank that is at another too: (M, M)."""
        return linked(self.rows.links()[0], self.rows.ranks)

    @cached_property
    def _fit(self) -> tuple[Root, str | None]:
        """The root, and what went wrong on the way to a better one."""
        ranks = component(self.links)
        return self._fitted(self.rows.where(ranks[self.rows.rank]), ranks)

    def _fitted(self, rows: Rows, ranks: BoolArray) -> tuple[Root, str | None]:
        plain = rows.merged if rows.alike else rows
        if rows.shares is None:
            # What is guessed cancels, and only weighs.
            rows = plain
        start = newton(naive(plain, ranks), plain, self.traffic, None, ranks, end=_NEAR)
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
        root = self._fit[0]
        score = Score.at(root.x, rows, self.traffic, root.guess)
        by_bucket = self.buckets * len(ranks) ** 2 <= _MOST_SLOPES
        slopes = score.slope(by_bucket=by_bucket)
        return Nearby(np.flatnonzero(ranks)[1:], score.gradient(), slopes, score.traffic_slope(self.traffic))

    def refits(self, weights: FloatArray) -> FloatArray:
        """Return the curves of buckets counted `weights` (n, B) times, r0 and a as they are.

        One step of Newton, unless it goes far, or the weights leave a rank or a ranker without what compared it.
        """
        answer = np.tile(self.estimate, (len(weights), 1))
        root = self._fit[0]
        if not np.isfinite(root.x).all():
            return answer
        near, traffic = self._nearby, weights @ self.views
        changed = self._unlinked(weights > 0) | np.any((traffic > 0) != (self.traffic > 0), axis=1)
        # Only the shares of traffic matter.
        shares = traffic / traffic.sum(axis=1, keepdims=True) * self.traffic.sum() - self.traffic
        scores = (weights @ near.gradient + weights.mean(axis=1, keepdims=True) * (shares @ near.by_traffic.T))[
            :, near.free
        ]
        if near.slopes.ndim == 3:
            slopes = np.tensordot(weights, near.slopes[:, near.free[:, None], near.free], axes=1)
        else:
            slopes = weights.mean(axis=1)[:, None, None] * near.slopes[near.free[:, None], near.free]
        # These are fitted anew: a batch with a singular slope in it would be lost.
        slopes[changed] = np.eye(len(near.free))
        steps = np.linalg.solve(slopes, scores[:, :, None])[:, :, 0]
        with np.errstate(over="ignore"):
            answer[:, near.free] = np.exp(root.x[near.free] + steps)
        for i in np.flatnonzero(changed | ~(np.abs(steps).max(axis=1) <= _FAR)):
            answer[i] = self._refit(weights[i])
        return answer

    def _unlinked(self, counted: BoolArray) -> BoolArray:
        """Return whether the buckets that count, (n, B), compare other ranks than all of them do."""
        keys, buckets = self.rows.links()
        found, link = np.unique(keys, return_inverse=True)
        whole = component(self.links)
        changed = np.zeros(len(counted), dtype=np.bool_)
        for i, held in enumerate(counted):
            left = np.bincount(link[held[buckets]], minlength=len(found)) > 0
            if not left.all():
                changed[i] = not np.array_equal(component(linked(found[left], len(self.links))), whole)
        return changed

    def _refit(self, weights: FloatArray) -> FloatArray:
        """Return the curve of weights of the buckets, by all the steps that it takes."""
        traffic = weights @ self.views
        rows = self.rows.weighted(weights)
        rows = rows.where(rows.promised(traffic) > 0)
        links = linked(rows.links()[0], rows.ranks)
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
        if np.isnan(self._fit[0].x).any():
            return ["no curve fits: the equations have no root"] * len(links)
        ahead, back = reachable(links), reachable(links.T)
        return [
            "no document at this rank is at another rank by another ranker, with clicks"
            if not (links[k].any() or links[:, k].any())
            else "no chain of documents with clicks connects it to rank 1"
            if not (ahead[k] or back[k])
            else "what connects it to rank 1 is clicked on one side only"
            for k in range(len(links))
        ]


def linked(keys: IntArray, ranks: int) -> BoolArray:
    """Return which ranks are linked, k M + l saying that k is to l: (M, M)."""
    links = np.zeros(ranks * ranks, dtype=np.bool_)
    links[keys] = True
    return links.reshape(ranks, ranks)


def curve_of(x: FloatArray, links: BoolArray) -> FloatArray:
    """Return p_k / p_1 from log p; NaN where nothing connects k to rank 1, 0 where it was never clicked."""
    compared = component(links)
    # A rank without a click, beside ranks that have a number.
    never = ~links.any(axis=1) & links[compared].any(axis=0)
    return np.where(compared, np.exp(x), np.where(never, 0.0, np.nan))


def component(links: BoolArray) -> BoolArray:
    """Return which ranks chains of clicks connect with rank 1, both there and back; none if rank 1 has no link."""
    found = reachable(links) & reachable(links.T)
    return found if found.sum() > 1 else np.zeros_like(found)


def reachable(links: BoolArray) -> BoolArray:
    """Return which ranks a chain of links leads to from rank 1."""
    found: BoolArray = np.arange(len(links)) == 0
    while not np.array_equal(found, further := np.asarray(found | links[found].any(axis=0))):
        found = further
    return found


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
        nearby = newton(root, rows, traffic, guess, ranks, end=_NEAR)
        if nearby is None:
            return True
        root = nearby
    for factor in (0.5, 1.5):
        other = newton(factor * start, rows, traffic, guess, ranks, end=_NEAR)
        if other is not None and np.abs(other - root)[ranks].max() > _APART:
            return False
    return True
