"""The score of CrossFit: what each view says of log p, its sum over a harvest, by bucket, and its derivative.

A *cell* is the pairs of one bucket and stratum: documents that the rankers treat alike. It has a row for each rank at
which they may be. With N views and C clicks there, D the page views that would have shown them there, and E = Σ N p::

    t_y = (C_c − y + a r0) / (E_c − p_k + a)         the guess of relevance, from all of the cell but this view
    f_k = 1 / (1 − min(p_k r0, 0.9))                 the inverse variance of its click, up to p r0
    w_k = D_k p_k f_k / Σ_j D_j p_j f_j              where in the cell its click was to be expected
    R_k = f_k [C_k (1 − p_k t_1) − (N_k − C_k) p_k t_0]
    g_k = Σ_c (R_ck − w_ck Σ_j R_cj)                 which is 0 at the estimate

`docs/theory.md` derives it. Rows are sorted by cell; b = 1 / a stands for a, so that a = ∞ is a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from posbias.arrays import FloatArray, at_once
from posbias.estimators.compared_rows import Rows
from posbias.estimators.relevance_guesses import Guess

# Beyond this p r the variance of a click is no longer believed to vanish.
_MOST_CERTAIN = 0.9


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
