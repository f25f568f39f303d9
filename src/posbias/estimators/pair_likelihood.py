"""The likelihood of the position-based model with one relevance for each item, and its maximum.

    Σ_i Σ_k  c log(p_k r_i) + n log(1 − p_k r_i)  +  prior · Σ log(p (1 − p))  +  prior · Σ log(r (1 − r))

In x = log p and u = log r it is concave: linear terms and log(1 − e^z), with p, r ≤ 1. Given p each r is the root of an
equation of its own, so that M numbers remain, and Newton on them has the exact slope: with q = n p r / (1 − p r)², the
curvature of a term, each item adds diag(q) − q qᵀ / Σ q.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from posbias.arrays import BoolArray, FloatArray, IntArray, tally
from posbias.estimators.compared_rows import Rows
from posbias.estimators.pbm_items import ShownItems

_TINY = float(np.finfo(np.float64).tiny)
_INNER_STEPS, _INNER_END = 100, 1e-13
_REACH, _HALVINGS = 2.0, 30
# A refit that is further away than this in log p is not left to one step.
_FAR = 0.1


class Summit(NamedTuple):
    """Where the climb ended: log p, r, the steps it took, and whether it arrived."""

    x: FloatArray
    relevance: FloatArray
    steps: int
    arrived: bool


class Slope(NamedTuple):
    """The likelihood at one log p, with the best r: its value, its first derivative and minus its second, and r."""

    value: float
    gradient: FloatArray
    information: FloatArray
    relevance: FloatArray
    parts: tuple[FloatArray, FloatArray, FloatArray]  # by row: c − n p r / (1 − p r), q, and q / Σ q


@dataclass(frozen=True)
class PairLikelihood:
    """The terms of the likelihood: a row for each item and rank.

    `free` are the ranks whose p is to be found: without a prior, those with a click.
    """

    rows: Rows
    prior: float
    free: BoolArray

    @classmethod
    def of(cls, shown: ShownItems, bucket: IntArray, prior: float) -> PairLikelihood:
        """Return that of items, each of a bucket."""
        buckets, number = np.unique(bucket, return_inverse=True)
        rows = Rows(
            cell=shown.item,
            rank=shown.rank,
            views=shown.clicks + shown.skips,
            clicks=shown.clicks,
            share=np.zeros(len(shown.item), dtype=np.int64),
            shares=None,
            bucket=number,
            stratum=np.zeros(shown.items, dtype=np.int64),
            times=np.ones(shown.items),
            alike=False,
            buckets=len(buckets),
            ranks=shown.ranks,
        )
        return cls(rows, prior, _free(rows, prior))

    def weighted(self, times: FloatArray) -> PairLikelihood:
        """Return that of buckets counted so many times."""
        rows = replace(self.rows, times=times[self.rows.bucket])
        return replace(self, rows=rows, free=_free(rows, self.prior))

    def start(self) -> FloatArray:
        """Return log p from the click rates of the ranks: somewhere to start from."""
        clicks, views = self.rows.by_rank(self.rows.clicks) + 0.5, self.rows.by_rank(self.rows.views) + 1
        return np.asarray(np.log(clicks / views) - np.log(clicks / views).max() - 0.1)

    def relative(self, x: FloatArray) -> FloatArray:
        """Return p_k / p_1; 0 where a rank without a click has no prior, NaN where nothing was shown."""
        seen = self.rows.by_rank(self.rows.views) > 0
        return np.where(self.free, np.exp(x - x[0]), np.where(seen & self.free[0], 0.0, np.nan))

    def climb(self, x: FloatArray, steps: int, tolerance: float, relevance: FloatArray | None = None) -> Summit:
        """Return the maximum, by Newton from x with halved steps, r near `relevance` if given; p may not pass 1."""
        x = np.where(self.free, np.minimum(x, 0.0), 0.0)
        if self.prior:
            x = np.where(self.free, np.minimum(x, -1e-6), 0.0)
        here = self.at(x, np.full(len(self.rows.bucket), 0.5) if relevance is None else relevance)
        for step in range(1, steps + 1):
            moving = self.moving(x, here)
            ahead = self._direction(here, moving)
            size = float(np.abs(ahead).max(initial=0))
            if size < tolerance:
                return Summit(x, here.relevance, step, arrived=True)
            scale = min(1.0, _REACH / size)
            for _ in range(_HALVINGS):
                tried = x.copy()
                tried[moving] = self._within(x[moving] + scale * ahead, x[moving])
                there = self.at(tried, here.relevance)
                if there.value >= here.value:
                    break
                scale /= 2
            else:
                # Nothing is higher within rounding: it is the summit if what pulls is rounding too.
                level = np.abs(here.gradient[moving]).max(initial=0) <= 1e-7 * max(1.0, self.rows.clicks.sum())
                return Summit(x, here.relevance, step, arrived=bool(level))
            x, here = tried, there
        return Summit(x, here.relevance, steps, arrived=False)

    def moving(self, x: FloatArray, here: Slope) -> IntArray:
        """Return the ranks that are not held by p ≤ 1."""
        return np.flatnonzero(self.free & ~((x >= 0) & (here.gradient > 0) & (self.prior == 0)))

    def _within(self, x: FloatArray, before: FloatArray) -> FloatArray:
        """Return log p below its bound: 0, or with a prior, whose force grows there, half the way to it at most."""
        if self.prior:
            return np.minimum(x, before / 2)
        return np.minimum(x, 0.0)

    def _direction(self, here: Slope, moving: IntArray) -> FloatArray:
        information = here.information[np.ix_(moving, moving)]
        # Where only ratios of p are told, the level is any: a trifle keeps it where it is.
        ridge = 1e-10 * np.maximum(np.diagonal(information), 1 + np.abs(here.gradient[moving]))
        return np.asarray(np.linalg.solve(information + np.diag(ridge), here.gradient[moving]))

    def at(self, x: FloatArray, r: FloatArray) -> Slope:
        """Return the likelihood at x, with the best relevance for it, looked for from r."""
        rows, prior = self.rows, self.prior
        p = np.where(self.free, np.exp(x), 0.0)
        own = p[rows.rank]
        r = self._relevance(own, r)
        t = np.minimum(own * r[rows.cell], 1 - 1e-16)
        skips = rows.views - rows.clicks
        # Where nothing was clicked, or skipped, a term is 0 whatever it multiplies.
        logs = np.where(rows.clicks > 0, rows.clicks * np.log(np.maximum(t, _TINY)), 0.0)
        logs += np.where(skips > 0, skips * np.log1p(-t), 0.0)
        pull = skips * t / (1 - t)
        q = pull / (1 - t)
        total = tally(rows.cell, q, len(rows.bucket))
        value, gradient = rows.counted(logs).sum(), rows.by_rank(rows.clicks - pull)
        if prior:
            inner = np.clip(r, _TINY, 1 - 1e-16)
            value += prior * (rows.times @ (np.log(inner) + np.log1p(-inner)))
            total = total + prior * inner / (1 - inner) ** 2
            shown = p[self.free]
            value += prior * (np.log(shown) + np.log1p(-shown)).sum()
        share = np.where((r < 1)[rows.cell], q / np.maximum(total, _TINY)[rows.cell], 0.0)
        information = np.diag(rows.by_rank(q)) - rows.products((share, q), by_bucket=False)
        if prior:
            gradient = gradient + np.where(self.free, prior * (1 - 2 * p) / np.maximum(1 - p, _TINY), 0.0)
            information += np.diag(np.where(self.free, prior * p / np.maximum(1 - p, _TINY) ** 2, 0.0))
        return Slope(float(value), gradient, information, r, (rows.clicks - pull, q, share))

    def refits(self, summit: Summit, weights: FloatArray, steps: int, tolerance: float) -> FloatArray:
        """Return p_k / p_1 of buckets counted `weights` (n, B) times: one step from the summit, or all if it is far."""
        rows, here = self.rows, self.at(summit.x, summit.relevance)
        push, q, share = here.parts
        moving, index = self.moving(summit.x, here), np.arange(rows.ranks)
        gradients, slopes = rows.by_bucket(push), -rows.products((share, q), by_bucket=True)
        slopes[:, index, index] += rows.by_bucket(q)
        # What is left is the prior's, whatever the weights.
        gradient = weights @ gradients + here.gradient - gradients.sum(axis=0)
        slope = np.tensordot(weights, slopes, axes=1) + here.information - slopes.sum(axis=0)
        slope = slope[:, moving[:, None], moving]
        size = len(moving)
        slope[:, np.arange(size), np.arange(size)] *= 1 + 1e-10
        ahead = np.linalg.solve(slope, gradient[:, moving, None])[:, :, 0] if size else np.zeros((len(weights), 0))
        answer = []
        for times, step in zip(weights, ahead, strict=True):
            # Only ratios count.
            if size and np.ptp(np.append(step, 0.0)) <= _FAR:
                x = summit.x.copy()
                x[moving] += step
                answer.append(self.relative(x))
            else:
                again = self.weighted(times)
                answer.append(again.relative(again.climb(summit.x, steps, tolerance, summit.relevance).x))
        return np.array(answer)

    def _relevance(self, p: FloatArray, r: FloatArray) -> FloatArray:
        """Return the best r of each item given p at its rows, from r near it: Σ n p r / (1 − p r) + … = Σ c + …"""
        rows, prior = self.rows, self.prior
        wanted = tally(rows.cell, rows.clicks, len(rows.bucket)) + prior
        skips = rows.views - rows.clicks
        low, high = np.zeros(len(r)), np.ones(len(r))
        r = np.clip(r, 1e-9, 1 - 1e-9)
        for _ in range(_INNER_STEPS):
            t = p * r[rows.cell]
            pull = skips * t / np.maximum(1 - t, _TINY)
            have, steep = (tally(rows.cell, values, len(r)) for values in (pull, pull / np.maximum(1 - t, _TINY)))
            if prior:
                have += prior * r / (1 - r)
                steep += prior * r / (1 - r) ** 2
            low, high = np.where(have < wanted, r, low), np.where(have < wanted, high, r)
            # In log r; where Newton leaves the bracket, its middle.
            with np.errstate(over="ignore"):
                ahead = r * np.exp(np.clip((wanted - have) / np.maximum(steep, _TINY), -50, 50))
            ahead = np.where((ahead > low) & (ahead < high), ahead, (low + high) / 2)
            moved = np.abs(ahead - r) > _INNER_END * r
            r = ahead
            if not moved.any():
                break
        bounded = self._at_one(p, skips, wanted) if not prior else np.zeros(len(r), dtype=np.bool_)
        return np.where(bounded, 1.0, np.where(wanted > 0, r, 0.0))

    def _at_one(self, p: FloatArray, skips: FloatArray, wanted: FloatArray) -> BoolArray:
        """Return which items would have a relevance of 1 or more: there, clicks push more than skips pull."""
        cell = self.rows.cell
        with np.errstate(divide="ignore", invalid="ignore"):
            pull = np.where(skips > 0, skips * p / (1 - p), 0.0)
        return tally(cell, pull, len(wanted)) <= wanted


def _free(rows: Rows, prior: float) -> BoolArray:
    return (rows.by_rank(rows.clicks) > 0) | ((rows.by_rank(rows.views) > 0) & (prior > 0))
