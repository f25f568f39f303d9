"""Segments estimated together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray, tally
from posbias._stats import normal_tail, t_quantile
from posbias.errors import EstimateError
from posbias.estimators.base import MIN_BUCKETS, Intervals, connected_ranks, no_intervals
from posbias.estimators.cross_fit import CellRows, CrossFitCounts, RelevanceGuess, ScoreTerms
from posbias.harvesting.harvest import Harvest, SegmentStrata

# Halvings of what is left to search, which is never more than some times the answer.
_HALVINGS = 20
# The standard deviations of log p that are tried; for the curves, from what makes a difference on; and those that go
# with another kind.
_SIZES = 0.005 * 2.0 ** np.arange(0, 8.5, 0.5)
_MATTERS = 0.02
_COARSE = _SIZES[6::4]
# One more kind of deviation must bring −2ℓ down by more than this.
_WORTH = 4.0
# For the width of intervals all variances up to the square of this are as likely as each other, and beyond it all
# magnitudes. None at all is as likely as those up to so many times the variance of the mean, which makes of it what
# differs little from none, and no more than this beside all others: thin data tell little from none.
_USUAL, _SMALL, _MOST_NONE = 0.32, 6.0, 0.1
# Sizes less likely than this make no difference, and kinds of which none is likelier than that need no second look.
_UNLIKELY, _HOPELESS = 1e-3, 1e-6
# The sizes of each kind of deviation, 0 for one that there is not.
Sizes = tuple[float, ...]
_NONE: Sizes = (0.0, 0.0, 0.0)
# Scores are taken anew so many times where the curves came to lie, each within reach of the one before.
_TIMES, _REACH = 3, 1.0
# A level of relevance that is told by a segment's own few clicks leans on the chance that its score does. With 1 in
# place of this, 3,000 segments of ten rows each had .55 for .5.
_STEADY = 20.0
# More numbers than these would fill the memory.
_MOST_NUMBERS = 10**8
_BORROWED = "borrowed from the other segments, since nothing here connects it to rank 1"


@dataclass(frozen=True)
class PooledSegments:
    """Curves of all segments.

    Attributes:
        log_propensity: (S, M); NaN where no segment connects a rank to rank 1.
        centre: about which its intervals lie, (S, M).
        covariance: of log p about that, (S, M, M).
        about: how log p lies about that, at the ranks after the first that have a number, (S, n).
        own: how far each number is the segment's own, from 0 to 1, (S, M).
        alone: which ranks the segment could tell without the others, (S, M).
        impressions: by segment and rank.
        clicks: likewise.
        traffic: page views by segment and ranker.
        differ: how likely it is that the segments differ at all.
    """

    log_propensity: FloatArray
    centre: FloatArray
    covariance: FloatArray
    about: MixedNormals
    own: FloatArray
    alone: BoolArray
    impressions: IntArray
    clicks: IntArray
    traffic: FloatArray
    differ: float

    @classmethod
    def of(cls, harvest: Harvest, counts: CrossFitCounts) -> PooledSegments:
        """Return the curves of a harvest's segments, given what was fitted on all of it."""
        segments, ranks = len(harvest.segments), harvest.max_rank
        if segments * ranks**2 > _MOST_NUMBERS:
            raise EstimateError(
                f"{segments:,} segments of {ranks} ranks are too many to pool: {_MOST_NUMBERS // ranks**2:,} are the "
                "most. Harvest by fewer columns, or fewer ranks (max_rank)."
            )
        root = counts.solution
        if not np.isfinite(root.x).all():
            raise EstimateError(f"Segments cannot be pooled without a curve of them all: {counts.reasons()[1]}.")
        strata = SegmentStrata.of(harvest)
        rows = CellRows.of(strata.strata, by_design=counts.rows.design is not None)
        parts = rows.where(strata.within(counts.used_buckets)[rows.cell_bucket][rows.cell])
        alone = _alone(replace(parts, cell_bucket=strata.segment[parts.cell_bucket], buckets=segments))
        held = connected_ranks(counts.links)
        free = np.flatnonzero(held)[1:]
        parts = parts.where(held[parts.rank])
        at = root.x[free]
        x, tried = np.tile(root.x, (segments, 1)), None
        for _ in range(_TIMES):
            scores = _scores(x, parts, strata, root.guess, free, counts.score_dispersion)
            found = pool(scores, at, (free + 1).astype(np.float64), tried)
            tried = found.tried
            x[:, free] += np.clip(found.x - x[:, free], -_REACH, _REACH)
        impressions, clicks = harvest.counts("segment", "rank")
        return cls(
            log_propensity=np.where(held, x, np.nan),
            centre=_spread(found.centre, free, ranks),
            covariance=_spread(_spread(found.covariance, free, ranks).swapaxes(1, 2), free, ranks),
            about=found.about,
            own=_spread(found.own, free, ranks),
            alone=alone,
            impressions=impressions,
            clicks=clicks,
            traffic=strata.traffic,
            differ=found.differ,
        )

    def intervals(self, level: float | None, degrees: FloatArray) -> Iterator[Intervals]:
        """Yield the intervals of each segment, or none without a level; degrees are those of the curve of all."""
        x, known = self.log_propensity, np.isfinite(self.log_propensity)
        borrowed = [[_BORROWED if one else None for one in row] for row in (known & ~self.alone).tolist()]
        if level is None:
            nothing = no_intervals(x.shape[1])
            yield from (replace(nothing, reasons=reasons) for reasons in borrowed)
            return
        free = np.flatnonzero(known.all(axis=0))[1:]
        *quantiles, normal = t_quantile(np.append(degrees, np.inf), (1 + level) / 2)
        half = _spread(self.about.half_width(normal), free, x.shape[1]) * quantiles / normal
        # However far a curve is drawn in, its interval does not leave it out.
        low, high = np.minimum(x, self.centre - half), np.maximum(x, self.centre + half)
        ends = np.exp(np.stack([low, high], axis=-1))
        for own, covariance, reasons in zip(ends, self.covariance, borrowed, strict=True):
            yield Intervals(own, covariance, degrees, reasons)

    def notes(self) -> Iterator[str]:
        """Say how much of each segment's curve is its own."""
        known = np.isfinite(self.log_propensity).all(axis=0) & (np.arange(self.own.shape[1]) > 0)
        shares = np.clip(100 * self.own[:, known], 0, 100)
        for least, most in zip(shares.min(axis=1).tolist(), shares.max(axis=1).tolist(), strict=True):
            low, high = f"{least:.0f}", f"{most:.0f}"
            share = f"{low}%" if low == high else f"{low} to {high}%"
            if low == "100":
                yield "Pooled: nearly all of it, over 99%, is told by the clicks of this segment alone."
                continue
            yield f"Pooled: {share} of it is told by the clicks of this segment, the rest by those of all."


@dataclass(frozen=True, eq=False)
class MixedNormals:
    """Numbers about a centre, each normal under K suppositions.

    Attributes:
        chances: of the suppositions, which add up to 1: (K,).
        means: under each, less the centre: (K, ...).
        deviations: under each, none of them 0: (K, ...).
    """

    chances: FloatArray
    means: FloatArray
    deviations: FloatArray

    def half_width(self, z: float) -> FloatArray:
        """Return how far from the centre each number lies as often as a normal lies within z of its mean.

        >>> MixedNormals(np.array([0.9, 0.1]), np.zeros((2, 1)), np.array([[1.0], [3.0]])).half_width(1.96).round(2)
        array([2.53])
        """
        # The narrowest is too narrow for all others, and off its middle for itself; what holds each, holds all.
        low = z * self.deviations.min(axis=0)
        high = (np.abs(self.means) + z * self.deviations).max(axis=0)
        wanted = 2 * normal_tail(np.array(z))
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            left_out = np.zeros_like(middle)
            for chance, mean, deviation in zip(self.chances, self.means, self.deviations, strict=True):
                left_out += chance * (
                    normal_tail((middle - mean) / deviation) + normal_tail((middle + mean) / deviation)
                )
            narrow = left_out > wanted
            low, high = np.where(narrow, middle, low), np.where(narrow, high, middle)
        return np.asarray(high)


def _alone(rows: CellRows) -> BoolArray:
    """Return which ranks each segment connects to rank 1 by itself, there and back, (S, M)."""
    keys, segments = rows.links
    flat = np.zeros((rows.buckets, rows.ranks**2), dtype=np.bool_)
    flat[segments, keys] = True
    links = flat.reshape(-1, rows.ranks, rows.ranks)
    found = _reached(links) & _reached(links.swapaxes(1, 2))
    return np.asarray(found & (found.sum(axis=1, keepdims=True) > 1))


def _reached(links: BoolArray) -> BoolArray:
    """Return which ranks a chain of links leads to from rank 1, of each segment."""
    found = np.zeros(links.shape[:2], dtype=np.bool_)
    found[:, 0] = True
    while True:
        further = found | (found[:, :, None] & links).any(axis=1)
        if np.array_equal(found, further):
            return found
        found = further


def _scores(
    x: FloatArray, parts: CellRows, strata: SegmentStrata, guess: RelevanceGuess | None, free: IntArray, excess: float
) -> Scores:
    """Return the scores of segments at x, (S, M), from the rows of their parts."""
    rows = replace(parts, cell_bucket=strata.segment[parts.cell_bucket], buckets=len(x))
    score = ScoreTerms.at(x, rows, strata.traffic, None if guess is None else _levelled(guess, x, rows))
    gradient, information = score.by_bucket()[:, free], score.information(by_bucket=True)[:, free[:, None], free]
    dispersion = _dispersion(score, information, parts, strata, free)
    dispersion = excess if np.isnan(dispersion) else dispersion
    # Of few buckets it is not known, and one alone has none.
    dispersion = dispersion if len(np.unique(strata.bucket)) >= MIN_BUCKETS else max(dispersion, 1.0)
    value = gradient + np.einsum("snm,sm->sn", information, x[:, free])
    return Scores(value, information, dispersion, max(dispersion, excess))


class Scores(NamedTuple):
    """What the segments' clicks say of log p.

    Attributes:
        value: v = g + J x, (S, n).
        information: J, (S, n, n).
        dispersion: φ, how many times as much as J says the score of a segment varies.
        of_mean: ψ, how many times as much their sum does; φ, unless segments have queries in common.
    """

    value: FloatArray
    information: FloatArray
    dispersion: float
    of_mean: float


def _levelled(guess: RelevanceGuess, x: FloatArray, rows: CellRows) -> RelevanceGuess:
    """Return the guess with as much more or less relevance in each segment as its clicks, and some at r0, say."""
    expected = rows.sum_by_bucket(guess.at(rows) * rows.views * rows.at_ranks(np.exp(x))).sum(axis=1)
    return replace(guess, bucket_level=(rows.sum_by_bucket(rows.clicks).sum(axis=1) + _STEADY) / (expected + _STEADY))


def _dispersion(
    score: ScoreTerms, information: FloatArray, parts: CellRows, strata: SegmentStrata, free: IntArray
) -> float:
    """Return φ = tr((Σ J)⁻¹ Σ h hᵀ) / (M−1), h what a part adds to the score of its segment, less their mean.

    A part moves the segment's traffic too. That takes off part of what chance does: with it left in, noise would be
    thought larger than it is, and the segments more alike. NaN if no segment has two parts.
    """
    segment, size = strata.segment, strata.traffic.sum(axis=1)
    own = parts.sum_by_bucket(score.score)[:, free]
    slope = score.traffic_jacobian(strata.traffic.shape[1], by_bucket=True)[:, free]
    views = strata.strata.views
    off = views - views.sum(axis=1, keepdims=True) * (strata.traffic / np.maximum(size, 1)[:, None])[segment]
    for ranker in range(off.shape[1]):
        own += slope[segment, :, ranker] * off[:, [ranker]]
    count = np.bincount(segment, minlength=len(size))
    mean = np.stack([tally(segment, of_rank, len(size)) for of_rank in own.T], axis=1) / np.maximum(count, 1)[:, None]
    several = count > 1
    if not several.any():
        return float("nan")
    left = (own - mean[segment]) * np.sqrt(several * count / np.maximum(count - 1, 1))[segment, None]
    known = np.linalg.pinv(information[several].sum(axis=0), hermitian=True)
    return float(np.trace(known @ (left.T @ left)) / len(free))


def pool(scores: Scores, at: FloatArray, ranks: FloatArray, tried: list[Sizes] | None = None) -> Pooled:
    """Return the curves that scores make of segments with a mean near `at`, (n,), of ranks (n,).

    `tried` are deviations to be averaged over, with all sizes of those of one kind; without them they are searched for.
    """
    around = _Around(scores, at, scores.value - scores.information @ at, kinds(ranks))
    single = {sizes.index(max(sizes)) for sizes in tried if np.count_nonzero(sizes) == 1} if tried else range(3)
    singles = [model for kind in single for model in around.models(_NONE, kind)]
    none = around.model(_NONE)
    several = [around.model(sizes) for sizes in tried or [] if np.count_nonzero(sizes) > 1]
    models = [none, *singles, *(_searched(around, none, singles) if tried is None else several)]
    fits = np.array([model.fit for model in models])
    sizes = np.linalg.norm([model.sizes for model in models], axis=1)
    usual, matters = np.minimum(sizes, _USUAL), (sizes > 0.9 * _MATTERS).astype(np.float64)
    # For the curves none is as likely as all that matters.
    point = _chances(fits, 3.0 * np.sum(_SIZES > 0.9 * _MATTERS), matters)
    centre = _chances(fits, 0.0, usual**6)
    # A step to √2 times the size adds this much to the variance.
    steps = usual**2 * np.log(2)
    most = _MOST_NONE * 3 * (np.minimum(_SIZES, _USUAL) ** 2).sum() * np.log(2)
    width = _chances(fits, min(_SMALL * around.error_of_mean(), most), steps)
    chance = np.max([point, centre, width], axis=0)
    again = [model.sizes for model, likely in zip(models, chance > _HOPELESS, strict=True) if likely]
    kept = chance > _UNLIKELY
    curves = [around.curves(model) for model, likely in zip(models, kept, strict=True) if likely]
    point, centre, width = (chances[kept] / chances[kept].sum() for chances in (point, centre, width))
    x, middle = (np.asarray(sum(w * c.x for w, c in zip(chances, curves, strict=True))) for chances in (point, centre))
    own = np.asarray(sum(w * c.own for w, c in zip(point, curves, strict=True)))
    covariance, about = _lying(curves, width, middle)
    return Pooled(x, middle, covariance, about, own, again, 1 - float(point[0]) if kept[0] else 1.0)


@dataclass(frozen=True)
class Pooled:
    """The segments' curves.

    Attributes:
        x: log p by segment, (S, n).
        centre: a curve that is drawn in less, about which intervals lie, (S, n).
        covariance: of log p about it, (S, n, n).
        about: how log p lies about it, (S, n).
        own: how far the segment's own clicks decide, (S, n): the share of a change of the mean, if that fell
            faster or slower, that they would not follow. 0 where all is borrowed, 1 where nothing is.
        tried: the deviations that were not hopeless.
        differ: how likely it is that the segments differ at all, from an even chance.
    """

    x: FloatArray
    centre: FloatArray
    covariance: FloatArray
    about: MixedNormals
    own: FloatArray
    tried: list[Sizes]
    differ: float


class _Around(NamedTuple):
    """Scores about a fixed mean, and the kinds of deviation from it."""

    scores: Scores
    at: FloatArray
    u: FloatArray
    kinds: tuple[FloatArray, ...]

    def model(self, sizes: Sizes) -> _Model:
        """Return T of these sizes."""
        parts = [size * root for size, root in zip(sizes, self.kinds, strict=True) if size]
        root = np.hstack(parts) if parts else np.zeros((len(self.at), 1))
        if root.shape[1] > len(root):
            # Any root of T will do: one with no more columns than rows.
            root = np.linalg.cholesky(root @ root.T).astype(np.float64)
        # A root of the inverse: to decompose it would take five times as long.
        half = np.linalg.cholesky(
            root.T @ self.scores.information @ root + self.scores.dispersion * np.eye(root.shape[1])
        )
        turned = root @ np.linalg.inv(half).swapaxes(1, 2)
        gain = 2 * np.log(np.diagonal(half, axis1=1, axis2=2) / np.sqrt(self.scores.dispersion)).sum()
        return self._fitted(turned, [(np.ones((len(half), root.shape[1])), gain, sizes)])[0]

    def models(self, sizes: Sizes, kind: int) -> list[_Model]:
        """Return T with one kind in each size in place of none."""
        tried = _COARSE if any(sizes) else _SIZES
        every = [(*sizes[:kind], float(size), *sizes[kind + 1 :]) for size in tried]
        if any(sizes):
            return [self.model(mixture) for mixture in every]
        # One decomposition of Lᵀ J L serves all sizes.
        root, phi = self.kinds[kind], self.scores.dispersion
        values, vectors = np.linalg.eigh(root.T @ self.scores.information @ root)
        scaled = [size**2 * np.maximum(values, 0.0) for size in tried]
        shrunk = [size**2 / (own + phi) for size, own in zip(tried, scaled, strict=True)]
        gains = [np.log1p(own / phi).sum() for own in scaled]
        return self._fitted(root @ vectors, list(zip(shrunk, gains, every, strict=True)))

    def error_of_mean(self) -> float:
        """Return the variance of the mean in each kind of deviation, added up.

        It is φ √m / ‖Lᵀ (Σ J) L‖ where L has m columns: of most of them less is known, of the first few more.
        """
        known = self.scores.information.sum(axis=0)
        roots = [np.sqrt(root.shape[1]) / np.linalg.norm(root.T @ known @ root) for root in self.kinds]
        return float(self.scores.dispersion * sum(roots))

    def _fitted(self, turned: FloatArray, models: list[tuple[FloatArray, float, Sizes]]) -> list[_Model]:
        """Return each T, given what B is made of, and log|I + Lᵀ J L / φ| of all segments."""
        u, (_, J, phi, _) = self.u, self.scores
        along = np.einsum("snm,sn->sm", turned, u)
        flat = np.moveaxis(J @ turned, 1, 0).reshape(len(self.at), -1)
        answer = []
        for shrunk, gain, sizes in models:
            known = J.sum(axis=0) - (flat * shrunk.ravel()) @ flat.T
            left = u.sum(axis=0) - flat @ (shrunk * along).ravel()
            fit = (
                gain
                - (shrunk * along**2).sum() / phi
                - left @ np.linalg.solve(known, left) / phi
                + np.linalg.slogdet(known)[1]
            )
            answer.append(_Model(sizes, turned, shrunk, known, float(fit)))
        return answer

    def curves(self, model: _Model) -> _Curves:
        """Return the segments' curves under one T, with their covariance and how much of each is its own."""
        u, (_, J, phi, of_mean) = self.u, self.scores
        B = (model.turned * model.shrunk[:, None, :]) @ model.turned.swapaxes(1, 2)
        drawn = B @ J
        F = np.eye(len(self.at)) - drawn
        unknown = np.linalg.inv(model.known)
        shift = unknown @ np.einsum("snm,sn->m", F, u)
        x = self.at + shift + np.einsum("snm,sm->sn", B, u - J @ shift)
        steeper = self.kinds[0][:, 0]
        return _Curves(x, phi * B + of_mean * (F @ unknown @ F.swapaxes(1, 2)), drawn @ steeper / steeper)


def kinds(ranks: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the kinds of deviation, of size 1 at the last rank, as roots L.

    A curve that falls faster or slower; one that wanders as it goes down, in log k; and ranks each by itself.
    """
    place = np.log(ranks)
    slope = (place / place[-1])[:, None]
    wandering = np.tril(np.ones((len(ranks), len(ranks)))) * np.sqrt(np.diff(place, prepend=0.0) / place[-1])
    return slope, wandering, np.eye(len(ranks))


class _Model(NamedTuple):
    """One T: what it is made of, L Q (S, n, m), the diagonal of B in it (S, m), Σ W, and −2ℓ."""

    sizes: Sizes
    turned: FloatArray
    shrunk: FloatArray
    known: FloatArray
    fit: float


class _Curves(NamedTuple):
    x: FloatArray
    covariance: FloatArray
    own: FloatArray


def _searched(around: _Around, none: _Model, singles: list[_Model]) -> list[_Model]:
    """Return deviations of more than one kind, added to the best while that explains more."""
    best, found = min(singles, key=lambda model: model.fit), []
    if best.fit >= none.fit - _WORTH:
        return []
    while 0.0 in best.sizes:
        more = [model for kind, size in enumerate(best.sizes) if not size for model in around.models(best.sizes, kind)]
        ahead = min(more, key=lambda model: model.fit)
        if ahead.fit >= best.fit - _WORTH:
            break
        found += more
        best = ahead
    return found


def _chances(fits: FloatArray, none: float, others: FloatArray) -> FloatArray:
    """Return how likely each T is, the first being no deviation, from what each was before the data."""
    before = np.concatenate([[none], others[1:]])
    likely = before * np.exp(-(fits - fits.min()) / 2)
    return np.asarray(likely / likely.sum())


def _lying(curves: list[_Curves], chances: FloatArray, middle: FloatArray) -> tuple[FloatArray, MixedNormals]:
    """Return how log p lies about a curve: its covariance, and what it is normal in parts of."""
    covariance = np.zeros_like(curves[0].covariance)
    for chance, curve in zip(chances, curves, strict=True):
        off = curve.x - middle
        covariance += chance * (curve.covariance + off[:, :, None] * off[:, None, :])
    likely = np.flatnonzero(chances > _UNLIKELY)
    about = MixedNormals(
        chances=chances[likely] / chances[likely].sum(),
        means=np.array([curves[i].x - middle for i in likely]),
        deviations=np.sqrt([np.diagonal(curves[i].covariance, axis1=1, axis2=2) for i in likely]),
    )
    return covariance, about


def _spread(values: FloatArray, free: IntArray, ranks: int) -> FloatArray:
    """Return values of free ranks among those of all, 0 at rank 1 and NaN where there is no number."""
    placed = np.full((*values.shape[:-1], ranks), np.nan)
    placed[..., free] = values
    placed[..., 0] = 0.0
    return placed
