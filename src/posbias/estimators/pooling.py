"""Partial pooling: estimate the curves of all segments together, each shrunk toward the mean as far as the data say.

With x = log p of ranks 2..M, a segment s gives its score g and its information J at x; J may be singular, so that ranks
the segment does not identify borrow from the others. With v = g + J x, deviations x_s − μ ~ N(0, T), T = L Lᵀ, and u =
v − J μ::

    B = L (Lᵀ J L + φ I)⁻¹ Lᵀ       x_s = μ + B u       W = J − J B J       μ = (Σ W)⁻¹ Σ (I − J B) v
    V_s = φ B + F ψ (Σ W)⁻¹ Fᵀ,  F = I − B J,  ψ = φ unless segments have queries in common
    −2ℓ = Σ log|I + Lᵀ J L / φ| − Σ uᵀ B u / φ − rᵀ (Σ W)⁻¹ r / φ + log|Σ W|,  r = Σ (u − J B u),  u at a fixed μ

φ is the dispersion: how many times more than J says the scores vary. T is unknown: a sum of kinds of deviation, each of
some size. Results are averaged over sizes, weighted by how well each explains the scores.
`docs/theory_pooling.md` derives it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from posbias._arrays import BoolArray, FloatArray, IntArray, sum_by_index
from posbias._stats import t_quantile
from posbias._text import format_ranks
from posbias.errors import EstimateError
from posbias.estimators.base import MIN_BUCKETS, Intervals, connected_ranks, no_intervals
from posbias.estimators.cross_fit import CellRows, CrossFitCounts, RelevanceGuess, ScoreTerms
from posbias.estimators.page_depth import PageDepth
from posbias.harvesting.harvest import Harvest, SegmentStrata

# The size of each kind of deviation; 0 for a kind that is absent.
Sizes = tuple[float, ...]
_NO_DEVIATION: Sizes = (0.0, 0.0, 0.0)
# The standard deviations of log p that are tried, and those that are tried in combination with another kind.
_SIZES = 0.005 * 2.0 ** np.arange(0, 8.5, 0.5)
_COARSE_SIZES = _SIZES[6::4]
# Smaller deviations do not matter for the curves.
_SMALLEST_RELEVANT = 0.02
# One more kind of deviation must lower −2ℓ by more than this.
_MIN_GAIN = 4.0
# The prior for the width of intervals. All variances up to the square of the first number are equally likely, and
# beyond it all magnitudes. "No deviation" is as likely as variances up to the second number times the variance of the
# mean, which includes what hardly differs from none, but at most the third number times all others: thin data cannot
# tell.
_USUAL_SIZE, _NEAR_ZERO, _MAX_PRIOR_OF_NONE = 0.32, 6.0, 0.1
# Models less likely than the first make no difference; models less likely than the second are not tried again.
_UNLIKELY, _HOPELESS = 1e-3, 1e-6
# With more segments than this, all have the same depth of pages.
_MAX_OWN_DEPTHS = 200
# A smaller dispersion is that of scores that are 0.
_NO_DISPERSION = 1e-9
# How often the scores are computed again at the new curves, and the largest step in log p of each time.
_LINEARISATIONS, _MAX_STEP = 3, 1.0
# Pseudo-clicks for the relevance level of a segment. Its few clicks share their chance errors with its score: with 1 in
# place of 20, 3,000 segments of ten rows each had an estimate of .55 for .5.
_LEVEL_PRIOR = 20.0
# Bisections in the search for the half-width.
_BISECTIONS = 20
# Arrays of more numbers than this would fill the memory.
_MAX_NUMBERS = 10**8
_BORROWED = "borrowed from the other segments: no clicks of this segment connect it to rank 1"


@dataclass(frozen=True)
class PooledSegments:
    """The pooled curves of all S segments of a harvest.

    Attributes:
        log_propensity (array of shape S × M): log p; NaN where no segment connects a rank to rank 1.
        centre (array of shape S × M): the centre of the intervals on the log scale.
        covariance (array of shape S × M × M): the covariance of log p about the centre.
        posterior (NormalMixture): the distribution of log p about the centre, at the identified ranks after the first.
        own_share (array of shape S × M): how much of each estimate comes from the segment's own clicks, from 0 to 1.
        self_identified (array of bool, S × M): which ranks the segment identifies without the others.
        impressions (array of shape S × M): impressions by segment and rank.
        clicks (array of shape S × M): clicks by segment and rank.
        traffic (array of shape S × m): page views by segment and ranker.
        difference_probability (float): the probability that the segments differ at all.
    """

    log_propensity: FloatArray
    centre: FloatArray
    covariance: FloatArray
    posterior: NormalMixture
    own_share: FloatArray
    self_identified: BoolArray
    impressions: IntArray
    clicks: IntArray
    traffic: FloatArray
    difference_probability: float

    @classmethod
    def of(cls, harvest: Harvest, counts: CrossFitCounts, widening: float = 1.0) -> PooledSegments:
        """Return the curves of a harvest's segments, given the fit of the whole harvest.

        Arguments:
            harvest (Harvest): the harvest.
            counts (CrossFitCounts): its counts, with their fit.
            widening (float, default 1.0): how many times the variance by queries the variance is, because of units.
        """
        segments, ranks = len(harvest.segments), harvest.max_rank
        if segments * ranks**2 > _MAX_NUMBERS:
            raise EstimateError(
                f"{segments:,} segments of {ranks} ranks are too many to pool: the maximum is "
                f"{_MAX_NUMBERS // ranks**2:,}. Harvest by fewer columns, or fewer ranks (max_rank)."
            )
        solution = counts.solution
        if not np.isfinite(solution.x).all():
            raise EstimateError(
                f"Segments cannot be pooled, because their common curve has no estimate: {counts.reasons()[1]}."
            )
        strata = SegmentStrata.of(harvest)
        rows = CellRows.of(strata.strata, by_design=counts.rows.design is not None)
        parts = rows.where(strata.within(counts.used_buckets)[rows.cell_bucket][rows.cell])
        self_identified = _self_identified(_by_segment(parts, strata, segments))
        connected = connected_ranks(counts.links)
        free = np.flatnonzero(connected)[1:]
        parts = parts.where(connected[parts.rank])
        mean = solution.x[free]
        x, tried = np.tile(solution.x, (segments, 1)), None
        shown = _shown_by_segment(strata, counts.depth, segments)
        for _ in range(_LINEARISATIONS):
            scores = _segment_scores(x, parts, strata, shown, solution.guess, free, widening * counts.score_dispersion)
            _require_comparisons(scores, free)
            pooled = pool(scores, mean, (free + 1).astype(np.float64), tried)
            tried = pooled.tried
            x[:, free] += np.clip(pooled.x - x[:, free], -_MAX_STEP, _MAX_STEP)
        impressions, clicks = harvest.counts("segment", "rank")
        return cls(
            log_propensity=np.where(connected, x, np.nan),
            centre=_at_all_ranks(pooled.centre, free, ranks),
            covariance=_at_all_ranks(_at_all_ranks(pooled.covariance, free, ranks).swapaxes(1, 2), free, ranks),
            posterior=pooled.posterior,
            own_share=_at_all_ranks(pooled.own_share, free, ranks),
            self_identified=self_identified,
            impressions=impressions,
            clicks=clicks,
            traffic=strata.traffic,
            difference_probability=pooled.difference_probability,
        )

    def intervals(self, level: float | None, degrees: FloatArray) -> Iterator[Intervals]:
        """Yield the intervals of each segment.

        Arguments:
            level (float or None): the coverage; None for no intervals.
            degrees (array of length M): the degrees of freedom of the common curve.
        """
        x, known = self.log_propensity, np.isfinite(self.log_propensity)
        borrowed = known & ~self.self_identified
        all_reasons = [[_BORROWED if is_borrowed else None for is_borrowed in row] for row in borrowed.tolist()]
        if level is None:
            nothing = no_intervals(x.shape[1])
            yield from (replace(nothing, reasons=reasons) for reasons in all_reasons)
            return
        free = np.flatnonzero(known.all(axis=0))[1:]
        *quantiles, normal = t_quantile(np.append(degrees, np.inf), (1 + level) / 2)
        half = _at_all_ranks(self.posterior.half_width(normal), free, x.shape[1]) * quantiles / normal
        # The interval includes the estimate, even if that is shrunk further than the centre.
        low, high = np.minimum(x, self.centre - half), np.maximum(x, self.centre + half)
        bounds = np.exp(np.stack([low, high], axis=-1))
        for segment_bounds, covariance, reasons in zip(bounds, self.covariance, all_reasons, strict=True):
            yield Intervals(segment_bounds, covariance, degrees, reasons)

    def notes(self) -> Iterator[str]:
        """Yield, for each segment, how much of its curve comes from its own clicks."""
        known = np.isfinite(self.log_propensity).all(axis=0) & (np.arange(self.own_share.shape[1]) > 0)
        shares = np.clip(100 * self.own_share[:, known], 0, 100)
        for least, most in zip(shares.min(axis=1).tolist(), shares.max(axis=1).tolist(), strict=True):
            low, high = f"{least:.0f}", f"{most:.0f}"
            share = f"{low}%" if low == high else f"{low} to {high}%"
            if low == "100":
                yield "Pooled: over 99% of this curve comes from the clicks of this segment."
                continue
            yield f"Pooled: {share} of this curve comes from the clicks of this segment, the rest from all segments."


# ---- Scores of segments


class SegmentScores(NamedTuple):
    """The scores of segments at some curves, linearised; n is the number of free ranks."""

    value: FloatArray  # v = g + J x, (S, n)
    information: FloatArray  # J, (S, n, n)
    dispersion: float  # φ: the variance of a segment's score over its information
    mean_dispersion: float  # ψ: the same for the sum of all scores; φ unless segments have queries in common


def _segment_scores(
    x: FloatArray,
    parts: CellRows,
    strata: SegmentStrata,
    shown: FloatArray | None,
    guess: RelevanceGuess | None,
    free: IntArray,
    common_dispersion: float,
) -> SegmentScores:
    """Return the scores of segments at x, (S, M), from the rows of their parts (bucket × segment)."""
    rows = replace(_by_segment(parts, strata, len(x)), shown=shown)
    terms = ScoreTerms.at(x, rows, strata.traffic, None if guess is None else _with_levels(guess, x, rows))
    score, information = terms.by_bucket()[:, free], terms.information(by_bucket=True)[:, free[:, None], free]
    dispersion = _dispersion(terms, information, parts, strata, free)
    dispersion = common_dispersion if np.isnan(dispersion) else dispersion
    # Few buckets do not show the dispersion, and a single one has none. Nor do scores that are all 0 but for rounding.
    shown_by_buckets = len(np.unique(strata.bucket)) >= MIN_BUCKETS and dispersion > _NO_DISPERSION
    dispersion = dispersion if shown_by_buckets else max(dispersion, 1.0)
    value = score + np.einsum("snm,sm->sn", information, x[:, free])
    return SegmentScores(value, information, dispersion, max(dispersion, common_dispersion))


def _require_comparisons(scores: SegmentScores, free: IntArray) -> None:
    """Raise an error if comparisons within single segments do not connect all ranks, so that they have no mean."""
    information = scores.information.sum(axis=0)
    if np.linalg.matrix_rank(information, hermitian=True) == len(free):
        return
    # Names the ranks without any comparison; if all have some, these are only among each other.
    missing = [int(k) + 1 for k in free[np.diag(information) <= 0]] or [int(k) + 1 for k in free]
    raise EstimateError(
        f"Segments cannot be pooled: within single segments no documents connect {format_ranks(missing)} with rank 1, "
        "as when a segment was served by one ranker only. Leave pool out, or use segments that all rankers served."
    )


def _shown_by_segment(strata: SegmentStrata, depth: PageDepth | None, segments: int) -> FloatArray | None:
    """Return how often rankers show what they rank, (S, m, M), where pages differ in depth.

    It is that of all segments together, except where impressions say that the pages of a segment are longer or shorter.
    """
    if depth is None:
        return None
    shown = np.tile(depth.shown, (segments, 1, 1))
    for segment in range(segments if segments <= _MAX_OWN_DEPTHS else 0):
        own = PageDepth.unlike(strata.strata.in_buckets(strata.segment == segment), depth.shown)
        if own is not None:
            shown[segment] = own.shown
    return shown


def _by_segment(parts: CellRows, strata: SegmentStrata, segments: int) -> CellRows:
    """Return the rows with segments in place of parts as their buckets."""
    return replace(parts, cell_bucket=strata.segment[parts.cell_bucket], buckets=segments)


def _with_levels(guess: RelevanceGuess, x: FloatArray, rows: CellRows) -> RelevanceGuess:
    """Return the guess with a factor of r0 for each segment, from its clicks and those that r0 predicts."""
    expected = rows.sum_by_bucket(guess.at(rows) * rows.views * rows.at_ranks(np.exp(x))).sum(axis=1)
    clicks = rows.sum_by_bucket(rows.clicks).sum(axis=1)
    return replace(guess, bucket_level=(clicks + _LEVEL_PRIOR) / (expected + _LEVEL_PRIOR))


def _dispersion(
    terms: ScoreTerms, information: FloatArray, parts: CellRows, strata: SegmentStrata, free: IntArray
) -> float:
    """Return φ = tr((Σ J)⁻¹ Σ h hᵀ) / (M−1), where h is a part's contribution to the score of its segment, centred.

    A part also changes the traffic of its segment, which cancels some of the chance error. Without this term φ would be
    too large, and segments would look more alike. NaN if no segment has two parts.
    """
    segment, size = strata.segment, strata.traffic.sum(axis=1)
    contribution = parts.sum_by_bucket(terms.score)[:, free]
    traffic_jacobian = terms.traffic_jacobian(strata.traffic.shape[1], by_bucket=True)[:, free]
    views = strata.strata.views
    shift = views - views.sum(axis=1, keepdims=True) * (strata.traffic / np.maximum(size, 1)[:, None])[segment]
    for ranker in range(shift.shape[1]):
        contribution += traffic_jacobian[segment, :, ranker] * shift[:, [ranker]]
    count = np.bincount(segment, minlength=len(size))
    sums = np.stack([sum_by_index(segment, of_rank, len(size)) for of_rank in contribution.T], axis=1)
    mean = sums / np.maximum(count, 1)[:, None]
    several = count > 1
    if not several.any():
        return float("nan")
    centred = (contribution - mean[segment]) * np.sqrt(several * count / np.maximum(count - 1, 1))[segment, None]
    inverse = np.linalg.pinv(information[several].sum(axis=0), hermitian=True)
    return float(np.trace(inverse @ (centred.T @ centred)) / len(free))


def _self_identified(rows: CellRows) -> BoolArray:
    """Return which ranks each segment connects with rank 1 by itself, in both directions, (S, M)."""
    keys, segments = rows.links
    flat = np.zeros((rows.buckets, rows.ranks**2), dtype=np.bool_)
    flat[segments, keys] = True
    links = flat.reshape(-1, rows.ranks, rows.ranks)
    connected = _reachable(links) & _reachable(links.swapaxes(1, 2))
    return np.asarray(connected & (connected.sum(axis=1, keepdims=True) > 1))


def _reachable(links: BoolArray) -> BoolArray:
    """Return which ranks chains of links lead to from rank 1, in each segment."""
    reached = np.zeros(links.shape[:2], dtype=np.bool_)
    reached[:, 0] = True
    while True:
        further = reached | (reached[:, :, None] & links).any(axis=1)
        if np.array_equal(reached, further):
            return reached
        reached = further


def _at_all_ranks(values: FloatArray, free: IntArray, ranks: int) -> FloatArray:
    """Return values of free ranks among those of all ranks: 0 at rank 1, NaN at ranks that are not identified."""
    placed = np.full((*values.shape[:-1], ranks), np.nan)
    placed[..., free] = values
    placed[..., 0] = 0.0
    return placed


# ---- Pooling


@dataclass(frozen=True)
class PooledCurves:
    """The pooled curves at the free ranks.

    Attributes:
        x (array of shape S × n): log p by segment.
        centre (array of shape S × n): a curve that is shrunk less, about which intervals lie.
        covariance (array of shape S × n × n): the covariance of log p about the centre.
        posterior (NormalMixture): the distribution of log p about the centre, (S, n).
        own_share (array of shape S × n): how much the segment's own clicks determine: the share of a change of the
            mean, if that fell faster or slower, that the curve would not follow. 0 if all is borrowed, 1 if nothing is.
        tried (list of Sizes): the deviations that were likely enough to be tried again.
        difference_probability (float): the probability that the segments differ at all, with ½ as its prior.
    """

    x: FloatArray
    centre: FloatArray
    covariance: FloatArray
    posterior: NormalMixture
    own_share: FloatArray
    tried: list[Sizes]
    difference_probability: float


def pool(scores: SegmentScores, mean: FloatArray, ranks: FloatArray, tried: list[Sizes] | None = None) -> PooledCurves:
    """Return the pooled curves of segments.

    Arguments:
        scores (SegmentScores): the scores of the segments.
        mean (array of length n): a curve near the mean of all.
        ranks (array of length n): the ranks of its entries.
        tried (list of Sizes, default None): the deviations to average over, with all sizes of those of one kind; by
            default they are searched for.
    """
    problem = _PoolingProblem(scores, mean, scores.value - scores.information @ mean, deviation_kinds(ranks))
    single = {sizes.index(max(sizes)) for sizes in tried if np.count_nonzero(sizes) == 1} if tried else range(3)
    singles = [model for kind in single for model in problem.models(_NO_DEVIATION, kind)]
    none = problem.model(_NO_DEVIATION)
    several = [problem.model(sizes) for sizes in tried or [] if np.count_nonzero(sizes) > 1]
    models = [none, *singles, *(_search_mixtures(problem, none, singles) if tried is None else several)]
    fits = np.array([model.fit for model in models])
    sizes = np.linalg.norm([model.sizes for model in models], axis=1)
    usual, relevant = np.minimum(sizes, _USUAL_SIZE), (sizes > 0.9 * _SMALLEST_RELEVANT).astype(np.float64)
    # For the curves, no deviation is as likely as all relevant ones together.
    point = _posterior_weights(fits, 3.0 * np.sum(_SIZES > 0.9 * _SMALLEST_RELEVANT), relevant)
    centre = _posterior_weights(fits, 0.0, usual**6)
    # The grid grows by √2, which adds this much to the variance.
    steps = usual**2 * np.log(2)
    most = _MAX_PRIOR_OF_NONE * 3 * (np.minimum(_SIZES, _USUAL_SIZE) ** 2).sum() * np.log(2)
    width = _posterior_weights(fits, min(_NEAR_ZERO * problem.variance_of_mean(), most), steps)
    largest = np.max([point, centre, width], axis=0)
    again = [model.sizes for model, likely in zip(models, largest > _HOPELESS, strict=True) if likely]
    kept = largest > _UNLIKELY
    curves = [problem.curves(model) for model, likely in zip(models, kept, strict=True) if likely]
    point, centre, width = (weights[kept] / weights[kept].sum() for weights in (point, centre, width))
    x, middle = (np.asarray(sum(w * c.x for w, c in zip(weights, curves, strict=True))) for weights in (point, centre))
    own_share = np.asarray(sum(w * c.own_share for w, c in zip(point, curves, strict=True)))
    covariance, posterior = _distribution_about(curves, width, middle)
    differ = 1 - float(point[0]) if kept[0] else 1.0
    return PooledCurves(x, middle, covariance, posterior, own_share, again, differ)


class _PoolingProblem(NamedTuple):
    """Scores about a fixed mean, u = v − J μ, and the kinds of deviation from it as roots L."""

    scores: SegmentScores
    mean: FloatArray
    u: FloatArray
    kinds: tuple[FloatArray, ...]

    def model(self, sizes: Sizes) -> _DeviationModel:
        """Return the model T of these sizes."""
        parts = [size * root for size, root in zip(sizes, self.kinds, strict=True) if size]
        root = np.hstack(parts) if parts else np.zeros((len(self.mean), 1))
        if root.shape[1] > len(root):
            # Any root of T will do: take one with no more columns than rows.
            root = np.linalg.cholesky(root @ root.T).astype(np.float64)
        # The Cholesky root of the inverse: an eigendecomposition would take five times as long.
        half = np.linalg.cholesky(
            root.T @ self.scores.information @ root + self.scores.dispersion * np.eye(root.shape[1])
        )
        turned = root @ np.linalg.inv(half).swapaxes(1, 2)
        log_determinant = 2 * np.log(np.diagonal(half, axis1=1, axis2=2) / np.sqrt(self.scores.dispersion)).sum()
        return self._fit_models(turned, [(np.ones((len(half), root.shape[1])), log_determinant, sizes)])[0]

    def models(self, sizes: Sizes, kind: int) -> list[_DeviationModel]:
        """Return the models in which an absent kind of deviation has each of the sizes."""
        tried = _COARSE_SIZES if any(sizes) else _SIZES
        every = [(*sizes[:kind], float(size), *sizes[kind + 1 :]) for size in tried]
        if any(sizes):
            return [self.model(mixture) for mixture in every]
        # One decomposition of Lᵀ J L serves all sizes.
        root, phi = self.kinds[kind], self.scores.dispersion
        values, vectors = np.linalg.eigh(root.T @ self.scores.information @ root)
        scaled = [size**2 * np.maximum(values, 0.0) for size in tried]
        shrunk = [size**2 / (value + phi) for size, value in zip(tried, scaled, strict=True)]
        log_determinants = [np.log1p(value / phi).sum() for value in scaled]
        return self._fit_models(root @ vectors, list(zip(shrunk, log_determinants, every, strict=True)))

    def variance_of_mean(self) -> float:
        """Return the variance of the mean curve in each kind of deviation, added up.

        It is φ √m / ‖Lᵀ (Σ J) L‖ where L has m columns.
        """
        information = self.scores.information.sum(axis=0)
        variances = [np.sqrt(root.shape[1]) / np.linalg.norm(root.T @ information @ root) for root in self.kinds]
        return float(self.scores.dispersion * sum(variances))

    def _fit_models(self, turned: FloatArray, models: list[tuple[FloatArray, float, Sizes]]) -> list[_DeviationModel]:
        """Return each model with its −2ℓ, given the factors of B and Σ log|I + Lᵀ J L / φ|."""
        u, (_, J, phi, _) = self.u, self.scores
        along = np.einsum("snm,sn->sm", turned, u)
        flat = np.moveaxis(J @ turned, 1, 0).reshape(len(self.mean), -1)
        fitted = []
        for shrunk, log_determinant, sizes in models:
            W = J.sum(axis=0) - (flat * shrunk.ravel()) @ flat.T
            r = u.sum(axis=0) - flat @ (shrunk * along).ravel()
            fit = (
                log_determinant
                - (shrunk * along**2).sum() / phi
                - r @ np.linalg.solve(W, r) / phi
                + np.linalg.slogdet(W)[1]
            )
            fitted.append(_DeviationModel(sizes, turned, shrunk, W, float(fit)))
        return fitted

    def curves(self, model: _DeviationModel) -> _ModelCurves:
        """Return the segments' curves under one model, with their covariance and own share."""
        u, (_, J, phi, psi) = self.u, self.scores
        B = (model.turned * model.shrunk[:, None, :]) @ model.turned.swapaxes(1, 2)
        BJ = B @ J
        F = np.eye(len(self.mean)) - BJ
        inverse = np.linalg.inv(model.W)
        shift = inverse @ np.einsum("snm,sn->m", F, u)
        x = self.mean + shift + np.einsum("snm,sm->sn", B, u - J @ shift)
        steeper = self.kinds[0][:, 0]
        return _ModelCurves(x, phi * B + psi * (F @ inverse @ F.swapaxes(1, 2)), BJ @ steeper / steeper)


class _DeviationModel(NamedTuple):
    """One T: B = turned diag(shrunk) turnedᵀ."""

    sizes: Sizes
    turned: FloatArray  # (S, n, m)
    shrunk: FloatArray  # (S, m)
    W: FloatArray  # Σ W, (n, n)
    fit: float  # −2ℓ


class _ModelCurves(NamedTuple):
    x: FloatArray
    covariance: FloatArray
    own_share: FloatArray


def deviation_kinds(ranks: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the kinds of deviation as roots L, of size 1 at the last rank.

    A curve that falls faster or slower; one that wanders with log k (Brownian motion); each rank by itself.
    """
    place = np.log(ranks)
    slope = (place / place[-1])[:, None]
    wandering = np.tril(np.ones((len(ranks), len(ranks)))) * np.sqrt(np.diff(place, prepend=0.0) / place[-1])
    return slope, wandering, np.eye(len(ranks))


def _search_mixtures(
    problem: _PoolingProblem, none: _DeviationModel, singles: list[_DeviationModel]
) -> list[_DeviationModel]:
    """Return models with several kinds of deviation, adding a kind to the best while −2ℓ falls enough."""
    best, mixtures = min(singles, key=lambda model: model.fit), []
    if best.fit >= none.fit - _MIN_GAIN:
        return []
    while 0.0 in best.sizes:
        more = [model for kind, size in enumerate(best.sizes) if not size for model in problem.models(best.sizes, kind)]
        better = min(more, key=lambda model: model.fit)
        if better.fit >= best.fit - _MIN_GAIN:
            break
        mixtures += more
        best = better
    return mixtures


def _posterior_weights(fits: FloatArray, none: float, others: FloatArray) -> FloatArray:
    """Return the posterior probability of each model from −2ℓ and its prior; the first is no deviation."""
    prior = np.concatenate([[none], others[1:]])
    weights = prior * np.exp(-(fits - fits.min()) / 2)
    return np.asarray(weights / weights.sum())


def _distribution_about(
    curves: list[_ModelCurves], weights: FloatArray, centre: FloatArray
) -> tuple[FloatArray, NormalMixture]:
    """Return the covariance of log p about a centre, and its distribution as a mixture of normals."""
    covariance = np.zeros_like(curves[0].covariance)
    for weight, curve in zip(weights, curves, strict=True):
        off = curve.x - centre
        covariance += weight * (curve.covariance + off[:, :, None] * off[:, None, :])
    likely = np.flatnonzero(weights > _UNLIKELY)
    mixture = NormalMixture(
        weights=weights[likely] / weights[likely].sum(),
        means=np.array([curves[i].x - centre for i in likely]),
        deviations=np.sqrt([np.diagonal(curves[i].covariance, axis1=1, axis2=2) for i in likely]),
    )
    return covariance, mixture


@dataclass(frozen=True, eq=False)
class NormalMixture:
    """Numbers that are distributed about 0 as a mixture of K normals.

    Attributes:
        weights (array of length K): the probabilities of the components.
        means (array of shape K × ...): the mean of each number in each component.
        deviations (array of shape K × ...): its standard deviation, none of them 0.
    """

    weights: FloatArray
    means: FloatArray
    deviations: FloatArray

    def half_width(self, z: float) -> FloatArray:
        """Return the half-width of the interval about 0 with the coverage that ± z has for a standard normal.

        Example:
            >>> mixture = NormalMixture(np.array([0.9, 0.1]), np.zeros((2, 1)), np.array([[1.0], [3.0]]))
            >>> mixture.half_width(1.96).round(2)
            array([2.53])
        """
        from scipy.special import ndtr

        # The narrowest component bounds the answer from below, and an interval that holds for each component from
        # above.
        low = z * self.deviations.min(axis=0)
        high = (np.abs(self.means) + z * self.deviations).max(axis=0)
        wanted = 2 * ndtr(-z)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            outside = np.zeros_like(middle)
            for weight, mean, deviation in zip(self.weights, self.means, self.deviations, strict=True):
                outside += weight * (ndtr((mean - middle) / deviation) + ndtr((-mean - middle) / deviation))
            narrow = outside > wanted
            low, high = np.where(narrow, middle, low), np.where(narrow, high, middle)
        return np.asarray(high)
