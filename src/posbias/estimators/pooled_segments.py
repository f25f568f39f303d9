"""The segments of a harvest, estimated together by CrossFit: thin ones lean on the curve that all have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from posbias.arrays import BoolArray, FloatArray, IntArray, tally
from posbias.errors import EstimateError
from posbias.estimators.compared_rows import Rows
from posbias.estimators.cross_fitting import Comparison
from posbias.estimators.intervals import FEWEST_BUCKETS, Intervals, no_intervals
from posbias.estimators.mixed_normals import MixedNormals
from posbias.estimators.partial_pooling import Scores, pool
from posbias.estimators.rank_links import component
from posbias.estimators.relevance_guesses import Guess
from posbias.estimators.view_scores import Score
from posbias.harvesting.harvests import Harvest
from posbias.harvesting.segment_strata import SegmentStrata
from posbias.quantiles import t_quantile

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
    def of(cls, harvest: Harvest, counts: Comparison) -> PooledSegments:
        """Return the curves of a harvest's segments, given what was fitted on all of it."""
        segments, ranks = len(harvest.segments), harvest.max_rank
        if segments * ranks**2 > _MOST_NUMBERS:
            raise EstimateError(
                f"{segments:,} segments of {ranks} ranks are too many to pool: {_MOST_NUMBERS // ranks**2:,} are the "
                "most. Harvest by fewer columns, or fewer ranks (max_rank)."
            )
        root = counts.root
        if not np.isfinite(root.x).all():
            raise EstimateError(f"Segments cannot be pooled without a curve of them all: {counts.reasons()[1]}.")
        strata = SegmentStrata.of(harvest)
        rows = Rows.of(strata.strata, by_design=counts.rows.shares is not None)
        parts = rows.where(strata.within(counts.kept)[rows.bucket][rows.cell])
        alone = _alone(replace(parts, bucket=strata.segment[parts.bucket], buckets=segments))
        held = component(counts.links)
        free = np.flatnonzero(held)[1:]
        parts = parts.where(held[parts.rank])
        at = root.x[free]
        x, tried = np.tile(root.x, (segments, 1)), None
        for _ in range(_TIMES):
            scores = _scores(x, parts, strata, root.guess, free, counts.excess)
            found = pool(scores, at, (free + 1).astype(np.float64), tried)
            tried = found.tried
            x[:, free] += np.clip(found.x - x[:, free], -_REACH, _REACH)
        impressions, clicks = harvest.shown("segment", "rank")
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


def _scores(
    x: FloatArray, parts: Rows, strata: SegmentStrata, guess: Guess | None, free: IntArray, excess: float
) -> Scores:
    """Return the scores of segments at x, (S, M), from the rows of their parts."""
    rows = replace(parts, bucket=strata.segment[parts.bucket], buckets=len(x))
    score = Score.at(x, rows, strata.traffic, None if guess is None else _levelled(guess, x, rows))
    gradient, information = score.gradient()[:, free], score.information(by_bucket=True)[:, free[:, None], free]
    dispersion = _dispersion(score, information, parts, strata, free)
    dispersion = excess if np.isnan(dispersion) else dispersion
    # Of few buckets it is not known, and one alone has none.
    dispersion = dispersion if len(np.unique(strata.bucket)) >= FEWEST_BUCKETS else max(dispersion, 1.0)
    value = gradient + np.einsum("snm,sm->sn", information, x[:, free])
    return Scores(value, information, dispersion, max(dispersion, excess))


def _dispersion(score: Score, information: FloatArray, parts: Rows, strata: SegmentStrata, free: IntArray) -> float:
    """Return φ = tr((Σ J)⁻¹ Σ h hᵀ) / (M−1), h what a part adds to the score of its segment, less their mean.

    A part moves the segment's traffic too. That takes off part of what chance does: with it left in, noise would be
    thought larger than it is, and the segments more alike. NaN if no segment has two parts.
    """
    segment, size = strata.segment, strata.traffic.sum(axis=1)
    own = parts.by_bucket(score.value)[:, free]
    slope = score.traffic_slope(strata.traffic.shape[1], by_bucket=True)[:, free]
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


def _levelled(guess: Guess, x: FloatArray, rows: Rows) -> Guess:
    """Return the guess with as much more or less relevance in each segment as its clicks, and some at r0, say."""
    expected = rows.by_bucket(guess.at(rows) * rows.views * rows.at_ranks(np.exp(x))).sum(axis=1)
    return replace(guess, level=(rows.by_bucket(rows.clicks).sum(axis=1) + _STEADY) / (expected + _STEADY))


def _alone(rows: Rows) -> BoolArray:
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


def _spread(values: FloatArray, free: IntArray, ranks: int) -> FloatArray:
    """Return values of free ranks among those of all, 0 at rank 1 and NaN where there is no number."""
    placed = np.full((*values.shape[:-1], ranks), np.nan)
    placed[..., free] = values
    placed[..., 0] = 0.0
    return placed
