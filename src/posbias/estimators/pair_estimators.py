"""Estimators on pairs of ranks."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from posbias._arrays import BoolArray, FloatArray
from posbias.estimators.base import PairEstimator, Reasons, reachable_ranks

_Scalar = TypeVar("_Scalar", bound=np.generic)
_TINY = float(np.finfo(np.float64).tiny)
_HALF_ULP = float(np.finfo(np.float64).epsneg)  # the smallest value of 1 − t but zero
_CELLS, _TABLES = 1 << 15, 64  # worked on at once, whichever is more tables: they should stay in the cache
_ABSENT = -1e3  # log p of the ranks that are not in a table: p = 0
_MAX_MOVE = 2.0  # of a log p or log r in one step: beyond it, the quadratic model says nothing
_RIDGE = 1e-11  # enough to make a Laplacian invertible, too little to slow Newton down
_NEWTON_STEPS, _INTERIOR_STEPS = 8, 100
_NEWTON_END = 1e-9  # the last step in log p: Newton is quadratic, so the next would be lost in rounding
_INTERIOR_ENDS = 1e-9, 1e-14  # slack times multiplier, relative: the second if Newton is lost from the first
_ROUNDING = 1e-15  # of p r
_BINDING = 1e-10  # the multiplier, relative, from which a bound is taken to bind


class AllPairs(PairEstimator):
    """argmax over p, r ∈ [0,1] of Σ_{k≠k'} ĉ log(p_k r_{kk'}) + ¬ĉ log(1 − p_k r_{kk'}), with r_{kk'} = r_{k'k}.

    Uses every interventional set, so that ranks which no document links directly are linked through others.
    Deterministic: no learning rate, no epochs, no seed.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=2000)))
        >>> AllPairs(interval=None).fit(posbias.harvest(log)).propensity_[:3].round(2)
        array([1.  , 0.5 , 0.35])

    Reference: Agarwal et al., WSDM 2019, section 4.2.
    """

    name = "all-pairs"

    def propensities(self, clicks: FloatArray, skips: FloatArray) -> FloatArray:
        """Return the maximiser, relative to rank 1."""
        return maximise(clicks, skips)

    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Say what keeps each rank from being connected to rank 1."""
        seen = clicks + skips > 0
        np.fill_diagonal(seen, False)
        linked = seen & seen.T & (clicks + clicks.T > 0)
        clicked = np.where(seen, clicks, 0).sum(axis=1) > 0
        if not clicked[0]:
            return ["no click at rank 1 in any interventional set"] * len(clicks)
        reached = reachable_ranks(linked & clicked[:, None])
        return [
            "no document at this rank is at another rank by another ranker, with clicks"
            if not linked[k].any()
            else "no chain of interventional sets with clicks connects it to rank 1"
            if not reached[k]
            else "several values fit equally well: its interventional sets hold hardly a skip"
            for k in range(len(clicks))
        ]


class PivotOne(PairEstimator):
    """p̂_k / p̂_1 = ĉ_k^{1,k} / ĉ_1^{1,k}: only the documents that some ranker puts first.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=2000, similarity=0.5)))
        >>> PivotOne(interval=None).fit(posbias.harvest(log)).propensity_[:3].round(2)
        array([1.  , 0.5 , 0.31])

    Reference: Agarwal et al., WSDM 2019, section 4.1.
    """

    name = "pivot-one"
    compares_clicks = True

    def propensities(self, clicks: FloatArray, skips: FloatArray) -> FloatArray:
        """Return the ratio of clicks at k and at 1 over S_{1,k}."""
        at_one, at_k = clicks[..., 0, :], clicks[..., :, 0]
        seen = at_k + skips[..., :, 0] > 0
        ratio = np.divide(at_k, at_one, out=np.full(at_k.shape, np.nan), where=(at_one > 0) & seen)
        ratio[..., 0] = np.where(np.any(at_one > 0, axis=-1), 1.0, np.nan)
        return np.asarray(ratio)

    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Name the set S_{1,k} that is missing or has no clicks at rank 1."""
        reasons: Reasons = [None if np.any(clicks[0] > 0) else "no click at rank 1 in any interventional set"]
        for k in range(1, len(clicks)):
            if clicks[0, k] + skips[0, k] == 0 or clicks[k, 0] + skips[k, 0] == 0:
                reasons.append(f"no document shown at rank 1 is shown at rank {k + 1} by another ranker")
            elif clicks[0, k] == 0:
                reasons.append(f"no click at rank 1 on documents also ranked {k + 1}")
            else:
                reasons.append(None)
        return reasons


class AdjacentChain(PairEstimator):
    """p̂_k / p̂_1 = Π_{j<k} ĉ_{j+1}^{j,j+1} / ĉ_j^{j,j+1}: only documents that moved by one rank.

    A missing or clickless link leaves the ranks beyond it undefined.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=2000)))
        >>> AdjacentChain(interval=None).fit(posbias.harvest(log)).propensity_[:3].round(2)
        array([1.  , 0.49, 0.32])

    Reference: Agarwal et al., WSDM 2019, section 4.1.
    """

    name = "adjacent-chain"
    compares_clicks = True

    def propensities(self, clicks: FloatArray, skips: FloatArray) -> FloatArray:
        """Return the product of the links' ratios, NaN beyond the first broken one."""
        upper, lower = _links(clicks)
        seen = lower + _links(skips)[1] > 0
        ratio = np.divide(lower, upper, out=np.full(upper.shape, np.nan), where=(upper > 0) & seen)
        chain = np.cumprod(ratio, axis=-1)
        # Behind a link with no click at its lower rank the product is 0 whatever the data say: that is no estimate.
        behind = np.cumsum(lower == 0, axis=-1) - (lower == 0) > 0
        chain = np.where(behind, np.nan, chain)
        first = np.where(upper[..., :1] > 0, 1.0, np.nan)
        return np.concatenate([first, chain], axis=-1)

    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Name the link that breaks the chain."""
        reasons: Reasons = [None]
        broken: str | None = None
        for k in range(len(clicks) - 1):
            here = f"the chain is broken at ({k + 1},{k + 2})"
            upper, lower = clicks[k, k + 1], clicks[k + 1, k]
            if broken is None and min(upper + skips[k, k + 1], lower + skips[k + 1, k]) == 0:
                broken = f"{here}: no document is shown at both ranks"
            elif broken is None and upper == 0:
                broken = f"{here}: no click at rank {k + 1} in this set"
            reasons.append(broken)
            if broken is None and lower == 0:
                broken = f"{here}: no click at rank {k + 2} in this set"
        if reasons[1:] and reasons[1] is not None:
            reasons[0] = reasons[1]
        return reasons


def maximise(clicks: FloatArray, skips: FloatArray) -> FloatArray:
    """Propensities p_k / p_1 at the maximum of the AllPairs objective, p and r in [0, 1], for a batch of tables.

    A pair is *informative* when both of its sides were seen, and one at least was clicked. A rank is NaN when

    - no chain of informative pairs leads from it to rank 1 over ranks that were clicked (in any pair), or
    - such a chain exists, but other values of p_k / p_1 reach the very same maximum. It takes cells without a
      single skip for this: log(p r) alone is linear in log p, and linear terms can cancel.

    A rank that was never clicked, in an informative pair with a rank that such a chain leads to, is 0. All are NaN
    when rank 1 was never clicked or has no informative pair. A pair seen on one side only connects nothing, but
    counts: as r ≤ 1, its clicks keep p_k from falling below what they need.

    Args:
        clicks: Clicks at k over the interventional set S_{k,k'}, shape (..., M, M). The diagonal is not read.
        skips: The same for impressions without a click.

    Returns:
        Shape (..., M). Values may exceed 1, and need not fall with the rank. The scale of a table does not matter.

    Example: rank 2 is clicked half as often as rank 1 over the same results, and rank 3 was never seen.
        >>> clicks = np.array([[0.0, 40.0, 0.0], [20.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
        >>> skips = np.array([[0.0, 60.0, 0.0], [80.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
        >>> maximise(clicks, skips)
        array([1. , 0.5, nan])

    Reference: Agarwal et al., Estimating Position Bias without Intrusive Interventions, WSDM 2019, section 4.2.
    """
    clicks, skips = np.asarray(clicks, np.float64), np.asarray(skips, np.float64)
    if clicks.ndim < 2 or clicks.shape != skips.shape or clicks.shape[-1] != clicks.shape[-2]:
        raise ValueError(f"expected two arrays of shape (..., M, M), found {clicks.shape} and {skips.shape}")
    ranks = clicks.shape[-1]
    diagonal = np.eye(ranks, dtype=bool)
    tables = [np.where(diagonal, 0, counts).reshape(-1, ranks, ranks) for counts in (clicks, skips)]
    if not all(((counts >= 0) & (counts < np.inf)).all() for counts in tables):
        raise ValueError("expected finite clicks and skips, none below 0: look for missing values")
    chunk = max(_TABLES, _CELLS // max(ranks * ranks, 1))
    starts = range(0, max(len(tables[0]), 1), chunk)
    parts = [_maximise_chunk(*(counts[start : start + chunk] for counts in tables)) for start in starts]
    return np.concatenate(parts).reshape(clicks.shape[:-1])


def _maximise_chunk(clicks: FloatArray, skips: FloatArray) -> FloatArray:
    """`maximise` for a few tables, shape (B, M, M)."""
    seen = clicks + skips > 0
    informative = seen & seen.swapaxes(1, 2) & (clicks + clicks.swapaxes(1, 2) > 0)
    clicked = clicks.sum(axis=-1) > 0
    # p = 0 maximises every term of a rank without clicks. It then says nothing about r, so nothing of its partner.
    link = informative & clicked[:, :, None] & clicked[:, None, :]
    first = np.zeros_like(clicked)
    first[:, :1] = clicked[:, :1] & informative[:, :1].any(axis=-1)
    connected = _reach(link, first)
    never_clicked = ~clicked & (informative & connected[:, None, :]).any(axis=-1)
    # The objective is a sum over the components of the graph: only that of rank 1 bears on the answer.
    # Without a click in the pair, r = 0 is best whatever p is: the pair drops out.
    clicks = clicks * connected[:, :, None]
    skips = skips * (connected[:, :, None] & (clicks + clicks.swapaxes(1, 2) > 0))
    c, n = (np.ascontiguousarray(counts.transpose(1, 2, 0)) for counts in (clicks, skips))
    tables = _Tables(c, n, c + _mirror(c), np.where(n > 0, c + _mirror(c) + n, 0))

    x, settled = _newton(_start(tables), tables)
    for end in _INTERIOR_ENDS:
        if not settled.all():
            thin = tables.where(~settled)
            x[:, ~settled], settled[~settled] = _newton(_central_path(thin, end), thin)
    identified = _reach(_ties(x, tables), first)
    ratio = np.exp(np.where(identified, (x - x[:1]).T, 0))
    return np.where(identified, ratio, np.where(never_clicked, 0.0, np.nan))


def _reach(link: BoolArray, first: BoolArray) -> BoolArray:
    """The ranks that chains of links, (B, M, M), lead to from the first, (B, M)."""
    while True:
        further = first | (link & first[:, None, :]).any(axis=-1)
        if np.array_equal(further, first):
            return first
        first = further


class _Tables(NamedTuple):
    """The terms of the objective, (M, M, B)."""

    clicks: FloatArray
    skips: FloatArray
    both: FloatArray  # clicks on both sides of the pair
    load: FloatArray  # both + skips, where there are skips

    def where(self, chosen: BoolArray) -> _Tables:
        return _Tables(*(part[..., chosen] for part in self))


def _mirror(cells: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    """The other side of each pair."""
    return cells.swapaxes(0, 1)


def _newton(x: FloatArray, tables: _Tables) -> tuple[FloatArray, BoolArray]:
    """Projected Newton on G, unguarded: the maximum, or x itself where it was lost, and where it was not."""
    summit, settled = x.copy(), np.zeros(x.shape[1], dtype=bool)
    weight = tables.clicks.sum(axis=1)
    for _ in range(_NEWTON_STEPS):
        slope = _slope(x, tables)
        # With all r < 1 the scale is free: the heaviest rank stays, as its gradient has most of the rounding, and the
        # rest are moved relative to it. The same with the top rank if, with some r = 1, none presses against p = 1.
        free = slope.inside.all(axis=(0, 1))
        pressing = (x >= 0) & (slope.gradient > 0) & ~free
        adrift = ~pressing.any(axis=0)
        anchor = np.where(free, weight, x).argmax(axis=0)
        held = pressing | (weight == 0) | (adrift & (np.arange(len(x))[:, None] == anchor))
        step = _newton_step(slope, held, _RIDGE * weight)

        # A flat maximum has steps of pure noise: there, it is the gradient that tells.
        uphill = np.where(held, 0, np.abs(slope.gradient))
        level = (uphill <= _ROUNDING * (weight + slope.curvature.sum(axis=1))).all(axis=0)
        size = np.abs(step).max(axis=0)
        arrived = level | ((size <= _NEWTON_END) & (uphill <= 1e-6 * weight).all(axis=0))
        x = x + np.where(level, 0, step) * (_MAX_MOVE / np.maximum(size, _MAX_MOVE))
        x = np.where(adrift, x - x.max(axis=0), np.minimum(x, 0))

        climbing = np.flatnonzero(~settled)
        summit[:, climbing[arrived]], settled[climbing] = x[:, arrived], arrived
        if arrived.all():
            break
        if arrived.any():
            tables, x, weight = tables.where(~arrived), x[:, ~arrived], weight[:, ~arrived]
    return summit, settled


def _slope(x: FloatArray, tables: _Tables) -> _Slope:
    p = np.exp(x)
    r = _best_relevance(p, tables)
    pull, curvature = _pull(p[:, None] * np.minimum(r, 1), tables.skips)
    return _Slope((tables.clicks - pull).sum(axis=1), curvature, r < 1)


class _Slope(NamedTuple):
    """Of G at one x for each table."""

    gradient: FloatArray  # (M, B)
    curvature: FloatArray  # (M, M, B): −∂²/∂z² of each term in z = log(p_k r_kk')
    inside: BoolArray  # (M, M, B): r < 1


def _best_relevance(p: FloatArray, tables: _Tables) -> FloatArray:
    """The r_kk' that maximise the objective given p, as if they had no bound: from 1 on, it binds.

    The smaller root of C − r (a + a') + r² p p' (C + n + n') = 0, with C = c + c', a = p (C + n), primes for k', in
    a form without cancellation. A side without skips has no pole at p r = 1, and so no part in it: a = 0.
    """
    a, skipped = p[:, None] * tables.load, p[:, None] * tables.skips
    root = np.sqrt((a - _mirror(a)) ** 2 + 4 * skipped * _mirror(skipped))
    with np.errstate(over="ignore"):
        return 2 * tables.both / np.maximum(a + _mirror(a) + root, _TINY)


def _pull(t: FloatArray, skips: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Of n log(1 − t) with t = p r: minus its first and second derivative in log t."""
    miss = np.maximum(1 - t, _HALF_ULP)
    pull = skips * t / miss
    return pull, pull / miss


def _newton_step(slope: _Slope, held: BoolArray, ridge: FloatArray) -> FloatArray:
    """Solve (H + ridge) step = gradient for the ranks that are not held, with H the Hessian of −G."""
    h = slope.curvature
    laplacian: FloatArray = h * _mirror(h) / np.maximum(h + _mirror(h), _TINY)
    matrix = np.where(slope.inside & ~held & ~held[:, None], -laplacian, 0)
    diagonal = np.where(slope.inside, laplacian, h).sum(axis=1) * (1 + _RIDGE) + ridge
    return _solve(matrix, np.where(held, 1, diagonal), np.where(held, 0, slope.gradient))


def _solve(matrix: FloatArray, diagonal: FloatArray, vector: FloatArray) -> FloatArray:
    """(M, M, B) but for its diagonal (M, B), and (M, B), to (M, B)."""
    ranks = np.arange(len(vector))
    matrix[ranks, ranks] = diagonal
    solution = np.linalg.solve(matrix.transpose(2, 0, 1), vector.T[:, :, None])
    return solution[:, :, 0].T.astype(np.float64, copy=False)


def _start(tables: _Tables) -> FloatArray:
    """Least squares on the log ratios of click rates, which is all there is to it when clicks are many."""
    c, weight = tables.clicks, tables.clicks.sum(axis=1)
    log_rate = np.log(np.where(c > 0, c, 1) / np.where(c > 0, c + tables.skips, 1))
    h = c * _mirror(c) / np.maximum(tables.both, _TINY)
    slope = _Slope((h * (log_rate - _mirror(log_rate))).sum(axis=1), 2 * h, h >= 0)
    x: FloatArray = np.where(weight > 0, _newton_step(slope, weight == 0, 1e-3 * weight), _ABSENT)
    x -= x.max(axis=0)
    return x


def _central_path(tables: _Tables, end: float) -> FloatArray:
    """Primal-dual interior point in x and u: an x near the maximum, NaN for a table on which even this fails.

    The u of all pairs fill a table whose diagonal is free for the x. Each value is held below 0 by a multiplier, of at
    most its weight: the clicks that push against the bound. −value · multiplier / weight follows μ down to the end.
    """
    ranks, batch = tables.clicks.shape[1:]
    on_diagonal = np.arange(ranks), np.arange(ranks)
    weight = tables.both.copy()
    weight[on_diagonal] = tables.clicks.sum(axis=1)
    unit = np.maximum(weight, _TINY)
    seen = np.maximum(tables.both + tables.skips + _mirror(tables.skips), _TINY)
    value = np.minimum(np.log(np.where(tables.both > 0, tables.both, seen) / seen) + 1, -1)
    multiplier, gap, mu = -weight / value, np.ones(batch), np.ones(batch)
    near, walking = np.full((ranks, batch), np.nan), np.arange(batch)
    for _ in range(_INTERIOR_STEPS):
        pull, h = _pull(np.exp(value[on_diagonal][:, None] + value), tables.skips)
        push = tables.clicks - pull
        gradient = push + _mirror(push)
        gradient[on_diagonal] += push.sum(axis=1)
        # Low click rates take the values far down, which a small gap alone does not show.
        arrived = (gap < end) & ((np.abs(gradient - multiplier) / unit).max(axis=(0, 1)) < 1e-7)

        # Each u is in one pair only: eliminating it leaves M equations for x, as in G.
        nearness = -1 / value
        target, barrier = mu * weight * nearness, multiplier * nearness
        force, h_other = gradient - target, _mirror(h)
        curvature = np.maximum(h + h_other + barrier, _TINY)
        share = h / curvature
        diagonal = (share * (h_other + barrier)).sum(axis=1) * (1 + _RIDGE) + barrier[on_diagonal]
        rest = force[on_diagonal] - (share * force).sum(axis=1)
        x_step = _solve(-share * h_other, np.where(weight[on_diagonal] > 0, diagonal, 1), rest)
        step = force / curvature - share * x_step[:, None] - _mirror(share) * x_step
        step[on_diagonal] = x_step
        multiplier_step = target - multiplier + barrier * step
        loss = np.maximum(step * nearness, -multiplier_step / np.maximum(multiplier, _TINY))
        factor = 0.99 / np.maximum(loss, np.abs(step) / _MAX_MOVE).max(axis=(0, 1), initial=0.99)
        value, multiplier = value + factor * step, multiplier + factor * multiplier_step
        gap = (-value * multiplier / unit).max(axis=(0, 1))
        mu = np.minimum(mu, gap * np.maximum(0.02, (1 - factor) ** 2))
        near[:, walking[arrived]] = np.where(weight > 0, value, _ABSENT)[on_diagonal][:, arrived]
        if arrived.all():
            break
        if arrived.any():
            tables, walking, gap, mu = tables.where(~arrived), walking[~arrived], gap[~arrived], mu[~arrived]
            weight, unit, value, multiplier = (part[..., ~arrived] for part in (weight, unit, value, multiplier))
    near -= near.max(axis=0)
    return np.where(near > -(end**0.5), 0, near)  # an interior point comes near a bound, but never on it


def _ties(x: FloatArray, tables: _Tables) -> BoolArray:
    """Which ranks the maximum ties to each other, (B, M, M): others may move apart while it stays the same.

    All maxima have the same multipliers, and the same p r where there are skips. So two ranks keep their ratio if
    they share a pair with skips on both sides, or if binding bounds fix both: p_k = 1, or r_kk' = 1 with skips at k.
    """
    p = np.exp(x)
    r = np.minimum(_best_relevance(p, tables), 1)
    push = tables.clicks - _pull(p[:, None] * r, tables.skips)[0]
    p_binds = push.sum(axis=1) > tables.clicks.sum(axis=1) * np.maximum(1 - p, _BINDING)
    r_binds = push + _mirror(push) > tables.both * np.maximum(1 - r, _BINDING)
    skipped = tables.skips > 0
    fixed = p_binds | (skipped & r_binds).any(axis=1)
    tied: BoolArray = (skipped & _mirror(skipped)) | (fixed & fixed[:, None])
    return tied.transpose(2, 0, 1)


def _links(table: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the entries [k, k+1] and [k+1, k]."""
    return np.diagonal(table, 1, -2, -1), np.diagonal(table, -1, -2, -1)
