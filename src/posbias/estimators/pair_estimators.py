"""The paper's estimators on intervention sets: AllPairs, PivotOne and AdjacentChain.

All three work on the pair tables ĉ[k,k'] and ¬ĉ[k,k'] of section 3.3: weighted clicks and skips at rank k of the
documents that another ranker puts at k'. PivotOne and AdjacentChain are ratios of clicks (section 4.1). AllPairs
maximises the likelihood of all sets at once (section 4.2)::

    Σ_{k≠k'}  ĉ[k,k'] log(p_k r_kk') + ¬ĉ[k,k'] log(1 − p_k r_kk'),   p, r ∈ [0, 1],  r_kk' = r_k'k

In x = log p and u = log r this is concave. Two methods share the work, each on a whole batch of tables:

1. **Newton** on M numbers. Given p, each r is the root of a quadratic, or 1 where the root is above 1. Inserting it
leaves
   the profile likelihood G(x), concave and continuously differentiable, with x ≤ 0 as its only constraint. The Hessian
   of −G is a weighted graph Laplacian over the pairs with r < 1, and diagonal over those with r = 1. From least squares
   on log ratios of click rates, 4 to 6 steps are exact on tables with enough clicks.
2. **Interior point** in x and u for tables on which Newton fails: thin ones, where some bounds bind, so that G bends
   sharply. It comes close to the maximum in 10 to 20 steps, and Newton finishes.

Multiplying all p by a factor and dividing all r by it changes no p r, so the largest p may always be set to 1. Arrays
inside have the shape (M, M, B) or (M, B): the tables run along the last axis, where NumPy is fastest.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from posbias._arrays import BoolArray, FloatArray
from posbias.estimators.base import PairEstimator, Reasons, reachable_ranks
from posbias.harvesting.interventions import Interventions

_Scalar = TypeVar("_Scalar", bound=np.generic)
_NO_CLICK_AT_ONE = "no click at rank 1 in any intervention set; use more data"
_TINY = float(np.finfo(np.float64).tiny)
# The smallest positive value of 1 − t in floating point.
_HALF_ULP = float(np.finfo(np.float64).epsneg)
# The size of a batch, in cells of tables and in tables, whichever is more: batches should stay in the processor's
# cache.
_BATCH_CELLS, _BATCH_TABLES = 1 << 15, 16
# log p of ranks that a table does not have: p = 0.
_ABSENT = -1e3
# The largest step in log p or log r: the quadratic model is not valid beyond it.
_MAX_STEP = 2.0
# Relative ridge: it makes a Laplacian invertible without slowing Newton down.
_RIDGE = 1e-11
_NEWTON_STEPS, _INTERIOR_STEPS = 8, 100
# The last Newton step in log p. Convergence is quadratic, so the next step would be rounding error.
_NEWTON_TOLERANCE = 1e-9
# The same for refits, whose next step would be about 1e-12.
_REFIT_TOLERANCE = 1e-6
# Steps below this are not followed by another one, where a rough refit is enough.
_FIRST_STEP = 0.2
# The last slack times multiplier, relative to the weight; the second value is used if Newton fails from the first.
_INTERIOR_TOLERANCES = 1e-9, 1e-14
# The relative rounding error of p r.
_ROUNDING = 1e-15
# A bound is taken to bind if its relative multiplier is above this.
_BINDING = 1e-10


class AllPairs(PairEstimator):
    """Estimate p_k / p_1 by the paper's extremum estimator, from all intervention sets at once.

    It maximises Σ_{k≠k'} ĉ log(p_k r_{kk'}) + ¬ĉ log(1 − p_k r_{kk'}) over p, r ∈ [0,1] with r_{kk'} = r_{k'k}. Ranks
    that no document connects directly are connected through other ranks. The result is deterministic: there is no
    learning rate, no number of epochs and no seed.

    Arguments:
        weighting (str or None, default None): how much each (query, document) pair counts: "traffic", "harmonic",
            "min" or "uniform"; by default the harvest's own weighting.
        level (float, default 0.95): the coverage of the intervals.
        interval (str or None, default "jackknife"): "jackknife" leaves out one bucket of queries at a time, "bootstrap"
            takes percentiles of resampled buckets, None computes no intervals.
        bootstrap (int, default 1000): the number of bootstrap resamples.
        seed (int, default 0): the random seed of the resamples. Nothing else is random.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=2000)))
        >>> AllPairs(interval=None).fit(posbias.harvest(log)).propensity_[:3].round(2)
        array([1.  , 0.5 , 0.35])

    Reference: Agarwal et al., WSDM 2019, section 4.2.
    """

    name = "all-pairs"

    def propensities(self, clicks: FloatArray, skips: FloatArray) -> FloatArray:
        """Return p_k / p_1 at the maximum of the likelihood."""
        return maximise(clicks, skips)

    def curves(self, counts: Interventions, weights: FloatArray) -> FloatArray:
        """Return the curve for each row of bucket weights; several rows start from the curve of all buckets."""
        near = maximise(*counts.total()) if np.ndim(weights) == 2 and len(weights) > 1 else None
        return maximise(*counts.tables(weights), near=near)

    def rough_refits(self, counts: Interventions, weights: FloatArray) -> FloatArray:
        """Return the curve for each row of bucket weights, mostly by one Newton step."""
        return maximise(*counts.tables(weights), near=maximise(*counts.total()), tolerance=_FIRST_STEP)

    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Return, for each rank, why it is not connected to rank 1, or why its estimate is not unique."""
        seen = clicks + skips > 0
        np.fill_diagonal(seen, False)
        linked = seen & seen.T & (clicks + clicks.T > 0)
        clicked = np.where(seen, clicks, 0).sum(axis=1) > 0
        if not clicked[0]:
            return [_NO_CLICK_AT_ONE] * len(clicks)
        reached = reachable_ranks(linked & clicked[:, None])
        return [
            "no document that appears at this rank and at another was clicked; use more data"
            if not linked[k].any()
            else "no chain of intervention sets with clicks connects it to rank 1; use more data"
            if not reached[k]
            else "several values fit equally well: its intervention sets have almost no result without a click"
            for k in range(len(clicks))
        ]


class PivotOne(PairEstimator):
    """Estimate p_k / p_1 = ĉ_k^{1,k} / ĉ_1^{1,k}, from documents that one ranker puts first and another at rank k.

    Arguments:
        weighting (str or None, default None): how much each (query, document) pair counts: "traffic", "harmonic",
            "min" or "uniform"; by default the harvest's own weighting.
        level (float, default 0.95): the coverage of the intervals.
        interval (str or None, default "jackknife"): "jackknife" leaves out one bucket of queries at a time, "bootstrap"
            takes percentiles of resampled buckets, None computes no intervals.
        bootstrap (int, default 1000): the number of bootstrap resamples.
        seed (int, default 0): the random seed of the resamples. Nothing else is random.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=2000, similarity=0.5)))
        >>> PivotOne(interval=None).fit(posbias.harvest(log)).propensity_[:3].round(2)
        array([1.  , 0.5 , 0.31])

    Reference: Agarwal et al., WSDM 2019, section 4.1.
    """

    name = "pivot-one"

    def propensities(self, clicks: FloatArray, skips: FloatArray) -> FloatArray:
        """Return the ratio of ĉ at k and at 1 in the intervention set S_{1,k}."""
        at_one, at_k = clicks[..., 0, :], clicks[..., :, 0]
        seen = at_k + skips[..., :, 0] > 0
        ratio = np.divide(at_k, at_one, out=np.full(at_k.shape, np.nan), where=(at_one > 0) & seen)
        ratio[..., 0] = np.where(np.any(at_one > 0, axis=-1), 1.0, np.nan)
        return np.asarray(ratio)

    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Return, for each rank k, why S_{1,k} gives no ratio, or None."""
        reasons: Reasons = [None if np.any(clicks[0] > 0) else _NO_CLICK_AT_ONE]
        for k in range(1, len(clicks)):
            if clicks[0, k] + skips[0, k] == 0 or clicks[k, 0] + skips[k, 0] == 0:
                reasons.append(f"no ranker puts a document of rank 1 at rank {k + 1}; use AllPairs")
            elif clicks[0, k] == 0:
                reasons.append(f"no click at rank 1 on documents that are also ranked {k + 1}; use AllPairs")
            else:
                reasons.append(None)
        return reasons


class AdjacentChain(PairEstimator):
    """Estimate p_k / p_1 = Π_{j<k} ĉ_{j+1}^{j,j+1} / ĉ_j^{j,j+1}, from documents that moved by one rank.

    If two adjacent ranks have no common document, or no click on one, the ranks below them have no estimate.

    Arguments:
        weighting (str or None, default None): how much each (query, document) pair counts: "traffic", "harmonic",
            "min" or "uniform"; by default the harvest's own weighting.
        level (float, default 0.95): the coverage of the intervals.
        interval (str or None, default "jackknife"): "jackknife" leaves out one bucket of queries at a time, "bootstrap"
            takes percentiles of resampled buckets, None computes no intervals.
        bootstrap (int, default 1000): the number of bootstrap resamples.
        seed (int, default 0): the random seed of the resamples. Nothing else is random.

    Example:
        >>> import posbias
        >>> log = posbias.ClickLog(posbias.simulate(posbias.World(queries=2000)))
        >>> AdjacentChain(interval=None).fit(posbias.harvest(log)).propensity_[:3].round(2)
        array([1.  , 0.49, 0.32])

    Reference: Agarwal et al., WSDM 2019, section 4.1.
    """

    name = "adjacent-chain"

    def propensities(self, clicks: FloatArray, skips: FloatArray) -> FloatArray:
        """Return the product of the ratios of adjacent ranks; NaN below the first missing one."""
        upper, lower = _adjacent_entries(clicks)
        seen = lower + _adjacent_entries(skips)[1] > 0
        ratio = np.divide(lower, upper, out=np.full(upper.shape, np.nan), where=(upper > 0) & seen)
        chain = np.cumprod(ratio, axis=-1)
        # Below a ratio of 0 the product is 0 whatever the data are, which is no estimate.
        below_zero = np.cumsum(lower == 0, axis=-1) - (lower == 0) > 0
        chain = np.where(below_zero, np.nan, chain)
        first = np.where(upper[..., :1] > 0, 1.0, np.nan)
        return np.concatenate([first, chain], axis=-1)

    def explain(self, clicks: FloatArray, skips: FloatArray) -> Reasons:
        """Return, for each rank, which adjacent ranks above it break the chain, or None."""
        upper, lower = _adjacent_entries(clicks)
        upper_skips, lower_skips = _adjacent_entries(skips)
        undefined: Reasons = []
        zero: Reasons = []
        for k, (c, c_lower) in enumerate(zip(upper, lower, strict=True)):
            chain = f"the chain breaks between ranks {k + 1} and {k + 2}"
            no_document = f"{chain}: no document is at both; use AllPairs"
            no_click = [f"{chain}: no click at rank {rank} in this set; use AllPairs" for rank in (k + 1, k + 2)]
            missing = min(c + upper_skips[k], c_lower + lower_skips[k]) == 0
            undefined.append(no_document if missing else no_click[0] if c == 0 else None)
            zero.append(no_click[1] if c_lower == 0 else None)
        return explain_chain(undefined, zero)


def explain_chain(undefined: Reasons, zero: Reasons) -> Reasons:
    """Return, for each of M ranks, the first break of a chain of ratios above it, or None.

    Arguments:
        undefined (list of length M − 1): for each ratio of adjacent ranks, why it is not defined, or None.
        zero (list of length M − 1): why it is 0, which leaves the ranks below without an estimate, or None.
    """
    reasons: Reasons = [None]
    broken: str | None = None
    for no_ratio, zero_ratio in zip(undefined, zero, strict=True):
        broken = broken or no_ratio
        reasons.append(broken)
        broken = broken or zero_ratio
    # Without a click at rank 1 there is nothing to relate the curve to.
    return [reasons[1], *reasons[1:]] if undefined else reasons


# ---- The maximum of the AllPairs likelihood


def maximise(
    clicks: FloatArray, skips: FloatArray, *, near: FloatArray | None = None, tolerance: float | None = None
) -> FloatArray:
    """Return p_k / p_1 at the maximum of the AllPairs likelihood, p and r in [0, 1], for a batch of tables.

    A pair of ranks is *informative* if there are results on both sides of it, and a click on at least one. A rank is
    NaN if

    - no chain of informative pairs connects it with rank 1 over ranks that were clicked (in any pair), or
    - such a chain exists, but other values of p_k / p_1 reach the same maximum. This requires cells without a single
      skip: log(p r) alone is linear in log p, and linear terms can cancel.

    A rank without a click, in an informative pair with a connected rank, is 0. All ranks are NaN if rank 1 was never
    clicked or has no informative pair. A pair with results on one side only connects nothing, but it counts: because
    r ≤ 1, its clicks bound p_k from below.

    Arguments:
        clicks (array of shape (..., M, M)): ĉ at k in the intervention set S_{k,k'}. The diagonal is not read.
        skips (array of shape (..., M, M)): ¬ĉ, the same for results without a click.
        near (array of length M or None, default None): p_k / p_1 of similar tables, where Newton's method starts.
        tolerance (float or None, default None): the last Newton step in log p; the error is about its square. By
            default 1e-9, or 1e-6 with `near`, which is for the spread of many curves.

    Returns:
        An array of shape (..., M). Values may exceed 1 and need not fall with the rank. The scale of a table has no
        effect.

    Example:
        Rank 2 is clicked half as often as rank 1 over the same results, and nothing was shown at rank 3.

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
    batch = max(_BATCH_TABLES, _BATCH_CELLS // max(ranks * ranks, 1))
    starts = range(0, max(len(tables[0]), 1), batch)
    parts = [
        _maximise_batch(tables[0][start : start + batch], tables[1][start : start + batch], near, tolerance)
        for start in starts
    ]
    return np.concatenate(parts).reshape(clicks.shape[:-1])


def _maximise_batch(
    clicks: FloatArray, skips: FloatArray, near: FloatArray | None, tolerance: float | None
) -> FloatArray:
    """Return p_k / p_1, (B, M), for one batch of tables, (B, M, M)."""
    seen = clicks + skips > 0
    informative = seen & seen.swapaxes(1, 2) & (clicks + clicks.swapaxes(1, 2) > 0)
    clicked = clicks.sum(axis=-1) > 0
    # p = 0 maximises every term of a rank without clicks. Its terms then do not depend on r, so they connect no ranks.
    link = informative & clicked[:, :, None] & clicked[:, None, :]
    first = np.zeros_like(clicked)
    first[:, :1] = clicked[:, :1] & informative[:, :1].any(axis=-1)
    connected = _reachable(link, first)
    never_clicked = ~clicked & (informative & connected[:, None, :]).any(axis=-1)
    # The likelihood is a sum over the components of the graph: only that of rank 1 matters.
    # A pair without a click has its maximum at r = 0 for every p, and drops out.
    clicks = clicks * connected[:, :, None]
    skips = skips * (connected[:, :, None] & (clicks + clicks.swapaxes(1, 2) > 0))
    c, n = (np.ascontiguousarray(counts.transpose(1, 2, 0)) for counts in (clicks, skips))
    tables = _Tables(c, n, c + _mirror(c), np.where(n > 0, c + _mirror(c) + n, 0))

    if near is None:
        start, last_step = _least_squares_start(tables), tolerance or _NEWTON_TOLERANCE
    else:
        log_near = np.log(near, out=np.zeros_like(near), where=near > 0)
        start = np.where(tables.clicks.any(axis=1), (log_near - log_near.max())[:, None], _ABSENT)
        last_step = tolerance or _REFIT_TOLERANCE
    x, converged = _newton(start, tables, last_step)
    for tolerance in _INTERIOR_TOLERANCES:
        if not converged.all():
            failed = tables.where(~converged)
            x[:, ~converged], converged[~converged] = _newton(_interior_point(failed, tolerance), failed)
    identified = _reachable(_tied_ranks(x, tables), first)
    ratio = np.exp(np.where(identified, (x - x[:1]).T, 0))
    return np.where(identified, ratio, np.where(never_clicked, 0.0, np.nan))


def _reachable(link: BoolArray, first: BoolArray) -> BoolArray:
    """Return the ranks that chains of links, (B, M, M), lead to from the first ones, (B, M)."""
    while True:
        further = first | (link & first[:, None, :]).any(axis=-1)
        if np.array_equal(further, first):
            return first
        first = further


class _Tables(NamedTuple):
    """The coefficients of the likelihood, (M, M, B)."""

    clicks: FloatArray
    skips: FloatArray
    both: FloatArray  # C: the clicks on both sides of the pair
    load: FloatArray  # C + skips, where there are skips

    def where(self, mask: BoolArray) -> _Tables:
        return _Tables(*(part[..., mask] for part in self))


def _mirror(cells: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    """Return the other side of each pair."""
    return cells.swapaxes(0, 1)


# ---- Newton on the profile likelihood


def _newton(x: FloatArray, tables: _Tables, tolerance: float = _NEWTON_TOLERANCE) -> tuple[FloatArray, BoolArray]:
    """Maximise G by projected Newton steps from x, (M, B); return the maxima and which tables converged.

    A table that did not converge keeps its start.
    """
    maximum, converged = x.copy(), np.zeros(x.shape[1], dtype=bool)
    weight = tables.clicks.sum(axis=1)
    for _ in range(_NEWTON_STEPS):
        slope = _profile_slope(x, tables)
        # With all r < 1 the scale is free: the heaviest rank is fixed, because its gradient has most of the rounding
        # error, and the others move relative to it. If some r = 1, but no rank presses against p = 1, the top rank is.
        free_scale = slope.inside.all(axis=(0, 1))
        at_bound = (x >= 0) & (slope.gradient > 0) & ~free_scale
        no_bound = ~at_bound.any(axis=0)
        anchor = np.where(free_scale, weight, x).argmax(axis=0)
        fixed = at_bound | (weight == 0) | (no_bound & (np.arange(len(x))[:, None] == anchor))
        step = _newton_step(slope, fixed, _RIDGE * weight)

        # At a flat maximum steps are rounding errors, so the gradient decides.
        steepness = np.where(fixed, 0, np.abs(slope.gradient))
        flat = (steepness <= _ROUNDING * (weight + slope.curvature.sum(axis=1))).all(axis=0)
        size = np.abs(step).max(axis=0)
        arrived = flat | ((size <= tolerance) & (steepness <= max(1e-6, tolerance) * weight).all(axis=0))
        x = x + np.where(flat, 0, step) * (_MAX_STEP / np.maximum(size, _MAX_STEP))
        x = np.where(no_bound, x - x.max(axis=0), np.minimum(x, 0))

        active = np.flatnonzero(~converged)
        maximum[:, active[arrived]], converged[active] = x[:, arrived], arrived
        if arrived.all():
            break
        if arrived.any():
            tables, x, weight = tables.where(~arrived), x[:, ~arrived], weight[:, ~arrived]
    return maximum, converged


def _profile_slope(x: FloatArray, tables: _Tables) -> _ProfileSlope:
    p = np.exp(x)
    r = _best_relevance(p, tables)
    pull, curvature = _skip_derivatives(p[:, None] * np.minimum(r, 1), tables.skips)
    return _ProfileSlope((tables.clicks - pull).sum(axis=1), curvature, r < 1)


class _ProfileSlope(NamedTuple):
    """The derivatives of G at one x for each table."""

    gradient: FloatArray  # (M, B)
    curvature: FloatArray  # (M, M, B): −∂²/∂z² of each term in z = log(p_k r_kk')
    inside: BoolArray  # (M, M, B): r < 1


def _best_relevance(p: FloatArray, tables: _Tables) -> FloatArray:
    """Return the r_kk' that maximise the likelihood given p without their bound; where they exceed 1, the bound binds.

    The smaller root of C − r (a + a') + r² p p' (C + n + n') = 0, with C = c + c', a = p (C + n), primes for k', in a
    form without cancellation. A side without skips has no pole at p r = 1 and does not enter: a = 0.
    """
    a, skipped = p[:, None] * tables.load, p[:, None] * tables.skips
    root = np.sqrt((a - _mirror(a)) ** 2 + 4 * skipped * _mirror(skipped))
    with np.errstate(over="ignore"):
        return 2 * tables.both / np.maximum(a + _mirror(a) + root, _TINY)


def _skip_derivatives(t: FloatArray, skips: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return minus the first and second derivative of n log(1 − t) in log t, with t = p r."""
    miss = np.maximum(1 - t, _HALF_ULP)
    pull = skips * t / miss
    return pull, pull / miss


def _newton_step(slope: _ProfileSlope, fixed: BoolArray, ridge: FloatArray) -> FloatArray:
    """Solve (H + ridge) step = gradient for the ranks that are not fixed, with H the Hessian of −G."""
    h = slope.curvature
    laplacian: FloatArray = h * _mirror(h) / np.maximum(h + _mirror(h), _TINY)
    matrix = np.where(slope.inside & ~fixed & ~fixed[:, None], -laplacian, 0)
    diagonal = np.where(slope.inside, laplacian, h).sum(axis=1) * (1 + _RIDGE) + ridge
    return _solve(matrix, np.where(fixed, 1, diagonal), np.where(fixed, 0, slope.gradient))


def _solve(matrix: FloatArray, diagonal: FloatArray, vector: FloatArray) -> FloatArray:
    """Solve matrix · solution = vector for each table; the matrix, (M, M, B), has its diagonal apart, (M, B)."""
    ranks = np.arange(len(vector))
    matrix[ranks, ranks] = diagonal
    solution = np.linalg.solve(matrix.transpose(2, 0, 1), vector.T[:, :, None])
    return solution[:, :, 0].T.astype(np.float64, copy=False)


def _least_squares_start(tables: _Tables) -> FloatArray:
    """Return x by least squares on the log ratios of click rates, close to the maximum if clicks are many."""
    c, weight = tables.clicks, tables.clicks.sum(axis=1)
    log_rate = np.log(np.where(c > 0, c, 1) / np.where(c > 0, c + tables.skips, 1))
    h = c * _mirror(c) / np.maximum(tables.both, _TINY)
    slope = _ProfileSlope((h * (log_rate - _mirror(log_rate))).sum(axis=1), 2 * h, h >= 0)
    x: FloatArray = np.where(weight > 0, _newton_step(slope, weight == 0, 1e-3 * weight), _ABSENT)
    x -= x.max(axis=0)
    return x


# ---- Interior point


def _interior_point(tables: _Tables, tolerance: float) -> FloatArray:
    """Return an x near the maximum by a primal-dual interior point method in x and u; NaN for tables on which it fails.

    The u of all pairs fill a table whose diagonal holds the x. A multiplier keeps each value below 0; it is at most the
    weight of the value, the clicks that push against the bound. −value · multiplier / weight follows μ to the
    tolerance.
    """
    ranks, batch = tables.clicks.shape[1:]
    on_diagonal = np.arange(ranks), np.arange(ranks)
    weight = tables.both.copy()
    weight[on_diagonal] = tables.clicks.sum(axis=1)
    unit = np.maximum(weight, _TINY)
    seen = np.maximum(tables.both + tables.skips + _mirror(tables.skips), _TINY)
    value = np.minimum(np.log(np.where(tables.both > 0, tables.both, seen) / seen) + 1, -1)
    multiplier, gap, mu = -weight / value, np.ones(batch), np.ones(batch)
    near, active = np.full((ranks, batch), np.nan), np.arange(batch)
    for _ in range(_INTERIOR_STEPS):
        pull, h = _skip_derivatives(np.exp(value[on_diagonal][:, None] + value), tables.skips)
        push = tables.clicks - pull
        gradient = push + _mirror(push)
        gradient[on_diagonal] += push.sum(axis=1)
        # With low click rates the values are far below 0, where a small gap alone does not show convergence.
        arrived = (gap < tolerance) & ((np.abs(gradient - multiplier) / unit).max(axis=(0, 1)) < 1e-7)

        # Each u belongs to one pair only: eliminating it leaves M equations for x, as in G.
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
        factor = 0.99 / np.maximum(loss, np.abs(step) / _MAX_STEP).max(axis=(0, 1), initial=0.99)
        value, multiplier = value + factor * step, multiplier + factor * multiplier_step
        gap = (-value * multiplier / unit).max(axis=(0, 1))
        mu = np.minimum(mu, gap * np.maximum(0.02, (1 - factor) ** 2))
        near[:, active[arrived]] = np.where(weight > 0, value, _ABSENT)[on_diagonal][:, arrived]
        if arrived.all():
            break
        if arrived.any():
            tables, active, gap, mu = tables.where(~arrived), active[~arrived], gap[~arrived], mu[~arrived]
            weight, unit, value, multiplier = (part[..., ~arrived] for part in (weight, unit, value, multiplier))
    near -= near.max(axis=0)
    # An interior point comes close to a bound, but never reaches it.
    return np.where(near > -(tolerance**0.5), 0, near)


# ---- Identification


def _tied_ranks(x: FloatArray, tables: _Tables) -> BoolArray:
    """Return which ranks have the same ratio at all maxima, (B, M, M).

    All maxima have the same multipliers, and the same p r where there are skips. So two ranks keep their ratio if they
    share a pair with skips on both sides, or if binding bounds fix both: p_k = 1, or r_kk' = 1 with skips at k.
    """
    p = np.exp(x)
    r = np.minimum(_best_relevance(p, tables), 1)
    push = tables.clicks - _skip_derivatives(p[:, None] * r, tables.skips)[0]
    p_binds = push.sum(axis=1) > tables.clicks.sum(axis=1) * np.maximum(1 - p, _BINDING)
    r_binds = push + _mirror(push) > tables.both * np.maximum(1 - r, _BINDING)
    skipped = tables.skips > 0
    fixed = p_binds | (skipped & r_binds).any(axis=1)
    tied: BoolArray = (skipped & _mirror(skipped)) | (fixed & fixed[:, None])
    return tied.transpose(2, 0, 1)


def _adjacent_entries(table: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the entries [k, k+1] and [k+1, k] of a table."""
    return np.diagonal(table, 1, -2, -1), np.diagonal(table, -1, -2, -1)
